"""Unique keys in plain Python: the holder of a key is found by looking through the jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qcore.errors import StateError

if TYPE_CHECKING:
    from qcore.reference.engine import Event, Job

LIVE = ("delayed", "ready", "active", "parked")


@dataclass
class Key:
    """What a job wants of its unique key."""

    name: str
    debounce: bool = False  # a name of another kind; the last add wins
    ttl_ms: int | None = None
    extend: bool = False
    replace: bool = False
    keep: bool = False  # the key outlives its job until its time is over
    expires_ms: int | None = None
    passed: bool = False  # lost to another job, for good; on disk
    holds: bool = False

    @property
    def place(self) -> tuple[str, bool]:
        return self.name, self.debounce

    def over(self, now_ms: int) -> bool:
        return self.expires_ms is not None and self.expires_ms <= now_ms


class Keys:
    """Rules of unique keys; part of :class:`~qcore.reference.engine.Engine`."""

    jobs: dict[str, Job]
    events: list[Event]
    kept: dict[tuple[str, tuple[str, bool]], tuple[int, str]]  # keys that outlive their jobs: end, id

    def _holder(self, queue: str, key: Key) -> Job | None:
        for job in self.jobs.values():
            if job.queue == queue and job.key and job.key.holds and job.key.place == key.place:
                return job
        return None

    def _make_way(self, queue: str, key: Key, now_ms: int) -> str | None:
        """Whose key it is, if an add with it is to be dropped; else nobody holds it any more.

        :raises StateError: the holder does not permit what the job asks
        """
        holder = self._holder(queue, key)
        if holder is None:
            end, job_id = self.kept.get((queue, key.place), (now_ms, ""))
            if end > now_ms:
                self._told(queue, job_id, now_ms)
                return job_id
            return None
        assert holder.key is not None
        tied = holder.state == "parked" or self.is_waited_on(holder.id)
        if not holder.key.over(now_ms) and not key.replace and not key.debounce:
            if key.extend and key.ttl_ms is not None:
                if holder.state == "active" or tied:
                    raise StateError("Duplicate unique_key (extended TTL)")
                holder.key.expires_ms = now_ms + key.ttl_ms
            self._told(queue, holder.id, now_ms)
            return holder.id
        if not holder.key.over(now_ms) and holder.state != "active":
            if tied:
                text = f"Cannot replace deduplicated job {holder.id} because live jobs depend on it"
                raise StateError(text)
            del self.jobs[holder.id]
        holder.key.holds, holder.key.passed = False, True
        return None

    def _is_free(self, queue: str, key: Key, now_ms: int) -> bool:
        """Whether an add with this key takes nothing from anybody."""
        holder = self._holder(queue, key)
        if holder is not None and holder.key is not None:
            return holder.key.over(now_ms)
        end, _ = self.kept.get((queue, key.place), (now_ms, ""))
        return end <= now_ms

    def is_waited_on(self, job_id: str) -> bool:
        """Whether live jobs are tied to this id."""
        return False

    def _told(self, queue: str, job_id: str, now_ms: int) -> None:
        raise NotImplementedError

    def _take(self, job: Job, now_ms: int) -> None:
        if job.key is None:
            return
        job.key.holds = True
        if job.key.ttl_ms is not None:
            job.key.expires_ms = now_ms + job.key.ttl_ms
        self.kept.pop((job.queue, job.key.place), None)

    def _release(self, job: Job) -> None:
        key = job.key
        if key is None or not key.holds:
            return
        key.holds = False
        if key.keep and key.expires_ms is not None:
            self.kept[job.queue, key.place] = (key.expires_ms, job.id)

    def _drop(self, job_id: str) -> Job:
        job = self.jobs.pop(job_id)
        self._release(job)
        return job

    def _may_restart(self, job: Job, now_ms: int) -> bool:
        holder = None if job.key is None else self._holder(job.queue, job.key)
        return holder is None or holder.key is None or holder.key.over(now_ms)

    def _retake(self, job: Job, now_ms: int) -> None:
        if job.key is None:
            return
        if job.key.over(now_ms):
            job.key.passed = True
            return
        holder = self._holder(job.queue, job.key)
        if holder is not None and holder.key is not None:
            holder.key.holds, holder.key.passed = False, True
        self.kept.pop((job.queue, job.key.place), None)
        job.key.holds, job.key.passed = True, False

    def _restore_key(self, job: Job, now_ms: int) -> None:
        """A job comes back from its row, in order of admission."""
        if job.key is None:
            return
        job.key.holds = False
        kept = (job.queue, job.key.place) in self.kept  # of a later job
        if job.state in LIVE and not job.key.passed and not kept:
            before = self._holder(job.queue, job.key)
            if before is not None and before.key is not None:
                before.key.holds = False
            job.key.holds = True

    def key_owner(self, queue: str, name: str, now_ms: int) -> str | None:
        holder = self._holder(queue, Key(name))
        if holder is not None:
            return None if holder.key is None or holder.key.over(now_ms) else holder.id
        end, job_id = self.kept.get((queue, (name, False)), (now_ms, ""))
        return job_id if end > now_ms else None

    def remove_key(self, queue: str, name: str, now_ms: int) -> bool:
        held = self.key_owner(queue, name, now_ms) is not None
        holder = self._holder(queue, Key(name))
        if holder is not None:
            holder.key = None
        self.kept.pop((queue, (name, False)), None)
        return held

    def remove_job_key(self, job_id: str) -> bool:
        job = self.jobs.get(job_id)
        if job is None or job.key is None or not job.key.holds:
            return False
        job.key = None
        return True
