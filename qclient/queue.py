"""The producer's side of a queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Unpack

from qclient.checks import filled, flag, several, text, whole
from qclient.client import Client
from qclient.closing import Closing
from qclient.codec import NIL, SIZE_BOUND, fits, pack_payload, readable
from qclient.deadletters import DeadLetters, Stalls, UniqueKeys
from qclient.durations import Duration, instant_ms, to_ms, wire_number
from qclient.figures import Outcomes, WorkerInfo
from qclient.job import Job, removed, retried
from qclient.limits import GroupHandle, QueueLimits
from qclient.options import JobOptions, alone_to_wire, suggestion
from qclient.protocol import array_header, map_body, map_header
from qclient.replies import TOO_LARGE
from qclient.schedules import Schedules
from qclient.url import resolve
from qclient.values import Counts, JobState, job_state
from qclient.webhooks import Webhooks
from qcore.errors import ConfigError, LimitError, NotFoundError, SerializationError, StateError
from qcore.limits import MAX_NAME_CHARS
from qcore.wire.fields import CLEANED_STATES, LISTED_STATES

_BULK_JOBS = 1000
_BULK_BYTES = 16 * 1024 * 1024
_NAME_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:-")


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job of ``add_bulk``: a name, its data and options as for ``add``."""

    name: str
    data: Any = None
    options: Mapping[str, Any] | None = None


def queue_name(name: str) -> str:
    """Check the name of a queue as the engine will."""
    if not isinstance(name, str):
        raise TypeError(f"queue name must be a string, not {type(name).__name__}")
    if not name:
        raise ConfigError("queue name must not be empty")
    if len(name) > MAX_NAME_CHARS:
        raise ConfigError(f"queue name has {len(name)} characters; at most {MAX_NAME_CHARS}")
    if not _NAME_CHARS.issuperset(name):
        raise ConfigError(f"queue name {name!r} may hold letters, digits and _ . : - only")
    return name


def job_name(name: object) -> str:
    """Check the name of a job as the engine will."""
    if not isinstance(name, str):
        raise TypeError(f"job name must be a string, not {type(name).__name__}")
    if not 1 <= len(name) <= MAX_NAME_CHARS:
        raise ConfigError(f"job name must have 1 to {MAX_NAME_CHARS} characters, not {len(name)}")
    return name


def _check_size(payload: bytes, fields: Mapping[str, object]) -> None:
    limit = fields.get("sizeLimit")
    if isinstance(limit, int) and len(payload) > limit:
        raise SerializationError(f"data has {len(payload)} bytes; its size_limit is {limit}")


class Queue(Closing):
    """A named queue of one engine.

    ``url`` says where the engine runs: ``memory://``, ``sqlite:///jobs.db`` or
    ``tcp://host:port``; without it ``QCORE_URL``, ``BUNQUEUE_EMBEDDED`` and the
    default port are tried, in this order. Nothing is opened before the first
    command. Thread-safe.

    ``dlq``, ``limits``, ``schedules``, ``stall``, ``dedup`` and ``webhooks`` hold the commands of one
    subject each, and ``group(id)`` those of one group.
    """

    def __init__(self, name: str, url: str | None = None) -> None:
        self.name = queue_name(name)
        self.client = Client(resolve(url))
        self.dlq = DeadLetters(self.client, name)
        self.limits = QueueLimits(self.client, name)
        self.schedules = Schedules(self.client, name)
        self.stall = Stalls(self.client, name)
        self.dedup = UniqueKeys(self.client, name)
        self.webhooks = Webhooks(self.client, name)

    # ------------------------------------------------------------------ adding

    def add(self, name: str, data: Any = None, **options: Unpack[JobOptions]) -> Job:
        """Add one job and return its handle once the engine has it.

        With a ``job_id`` that is alive already the existing job is meant and nothing
        is added. Raises ``ConfigError`` for an option, ``SerializationError`` for
        data that cannot be carried; nothing was sent then. A ``parent`` that is not there is a
        ``NotFoundError``, one that has ended a ``StateError``.
        """
        fields = alone_to_wire(options)
        fields["queue"] = self.name
        fields["name"] = job_name(name)
        payload = self._payload(data)
        _check_size(payload, fields)
        reply = self.client.call(
            "PUSH", fields, (("data", payload),), repeatable="jobId" in fields, dated=True
        )
        return Job(self.client, self.name, reply["id"])

    def add_bulk(self, jobs: Iterable[JobSpec | tuple[Any, ...] | Mapping[str, Any]]) -> list[Job]:
        """Add many jobs; each is a ``JobSpec``, a ``(name, data, options)`` tuple or a dict.

        All are checked before anything is sent. Up to 1000 jobs or 16 MiB go in one
        command, which adds all of them or none; beyond that several commands are
        sent, in order.
        """
        packed: list[bytes] = []
        ids_given = True
        heads: dict[str, bytes] = {}
        for i, job in enumerate(several(jobs, "jobs", "jobs")):
            try:
                body, has_id = self._bulk_item(job, heads)
            except ConfigError as exc:
                raise ConfigError(*(f"jobs[{i}]: {problem}" for problem in exc.problems)) from None
            except (SerializationError, TypeError) as exc:
                raise type(exc)(f"jobs[{i}]: {exc}") from None
            packed.append(body)
            ids_given = ids_given and has_id
        out: list[Job] = []
        start = 0
        while start < len(packed):
            stop = min(len(packed), start + _BULK_JOBS)
            # Mostly the first look says that all of them fit.
            while stop - start > 1 and sum(map(len, packed[start:stop])) > _BULK_BYTES:
                stop = start + (stop - start) // 2
            raw = array_header(stop - start) + b"".join(packed[start:stop])
            reply = self.client.call(
                "PUSHB", {"queue": self.name}, (("jobs", raw),), repeatable=ids_given, dated=True
            )
            out.extend(Job(self.client, self.name, job_id) for job_id in reply["ids"])
            start = stop
        return out

    def _bulk_item(self, job: Any, heads: dict[str, bytes]) -> tuple[bytes, bool]:
        """The packed entry of one job, and whether it has an id of its own.

        ``heads`` keeps what the plain jobs of one name begin with.
        """
        options: Mapping[str, Any]
        if type(job) is tuple and len(job) == 2 and type(job[0]) is str:
            head = heads.get(job[0])
            if head is None:
                head = map_header(2) + map_body({"name": job_name(job[0])}) + b"\xa4data"
                heads[job[0]] = head
            return head + self._payload(job[1]), False
        if isinstance(job, JobSpec):
            name, data, options = job.name, job.data, job.options or {}
        elif isinstance(job, Mapping):
            rest = dict(job)
            name = rest.pop("name", None)
            data = rest.pop("data", None)
            options = rest
        elif isinstance(job, tuple) and 1 <= len(job) <= 3:
            name = job[0]
            data = job[1] if len(job) > 1 else None
            options = {} if len(job) < 3 or job[2] is None else job[2]
            if not isinstance(options, Mapping):
                raise TypeError(f"the options of a job are a dict, not {type(options).__name__}")
        else:
            raise TypeError(f"a job is a JobSpec, a tuple or a dict, not {type(job).__name__}")
        fields = alone_to_wire(options)
        job_id = fields.pop("jobId", None)
        if job_id is not None:
            fields["customId"] = job_id
        fields["name"] = job_name(name)
        payload = self._payload(data)
        _check_size(payload, fields)
        body = map_header(len(fields) + 1) + map_body(fields) + b"\xa4data" + payload
        return body, job_id is not None

    def _payload(self, data: Any) -> bytes:
        if data is None:
            return NIL
        can = self.client.greeted()
        payload = pack_payload(data, typed="typed" in can, int64="int64" in can)
        if not fits(payload):
            raise SerializationError(f"data of {len(payload)} bytes is too large; {SIZE_BOUND}")
        return payload

    # ----------------------------------------------------------------- reading

    def get(self, job_id: str) -> Job | None:
        """The job with a fresh snapshot, or None when the engine does not know it."""
        try:
            return self.job(job_id).refresh()
        except NotFoundError:
            return None

    def job(self, job_id: str) -> Job:
        """A handle without a read; it may name a job that is not there."""
        return Job(self.client, self.name, filled(job_id, "job_id"))

    def state(self, job_id: str) -> JobState | str:
        """State of one job; ``NotFoundError`` when the engine does not know it."""
        state = self.client.call("GetState", {"id": filled(job_id, "job_id")})["state"]
        if state == "unknown":
            raise NotFoundError(f"Job not found: {job_id}", "GetState")
        return job_state(state)

    def returnvalue(self, job_id: str) -> Any:
        """Result of a completed job, None while it has none."""
        reply = self.client.call("GetResult", {"id": filled(job_id, "job_id")})
        if "result" not in reply or reply["result"] is None:
            self.state(job_id)
        return readable(reply.get("result"))

    def progress(self, job_id: str) -> float:
        """Progress of one job, 0 to 100."""
        return self.job(job_id).progress

    def wait(self, job_id: str, timeout: Duration | None = None) -> Any:
        """Wait until a job ends and return its result; see ``Job.result``."""
        return self.job(job_id).result(timeout)

    def jobs(
        self, *states: JobState | str, offset: int = 0, limit: int = 100, asc: bool = False
    ) -> list[Job]:
        """Jobs in any of ``states``, or in all, newest first, with their snapshots.

        While a queue is paused its ready jobs are in the state ``paused``.
        """
        fields: dict[str, object] = {
            "queue": self.name,
            "offset": whole(offset, "offset", 0),
            "limit": whole(limit, "limit", 0),
            "asc": flag(asc, "asc"),
        }
        for state in states:
            if text(state, "state") not in LISTED_STATES:
                raise ConfigError(f"unknown state {str(state)!r}{suggestion(state, LISTED_STATES)}")
        if states:
            fields["state"] = [str(state) for state in states]
        listed = self.client.call("GetJobs", fields)["jobs"]
        return [Job(self.client, self.name, raw["id"], raw) for raw in listed]

    def iter_jobs(self, *states: JobState | str, chunk: int = 1000) -> Iterator[Job]:
        """All jobs in ``states``, oldest first, read ``chunk`` at a time.

        Each job once. One that changes its state meanwhile may be left out.
        """
        seen: set[str] = set()
        offset, limit = 0, whole(chunk, "chunk", 1)
        while True:
            try:
                page = self.jobs(*states, offset=offset, limit=limit, asc=True)
            except LimitError as exc:
                if limit == 1 or TOO_LARGE not in exc.message:
                    raise
                limit //= 2  # they are large: no reply holds so many
                continue
            for job in page:
                if job.id not in seen:
                    seen.add(job.id)
                    yield job
            if len(page) < limit:
                return
            offset += len(page)

    def counts_per_priority(self) -> dict[float, int]:
        """Jobs that wait to run, by their priority."""
        counts = self.client.call("GetCountsPerPriority", {"queue": self.name})["counts"]
        return {float(priority): int(n) for priority, n in counts.items()}

    def groups_count(self) -> int:
        """Jobs that wait to run in any group."""
        return int(self.client.call("GetGroupsJobsCount", {"queue": self.name})["data"]["count"])

    def group(self, id: str) -> GroupHandle:
        """The commands of one group; it need not have jobs."""
        return GroupHandle(self.client, self.name, id)

    def workers(self) -> list[WorkerInfo]:
        """Workers that have registered for this queue."""
        listed = self.client.call("ListWorkers")["data"]["workers"]
        return [WorkerInfo.from_wire(raw) for raw in listed if self.name in raw["queues"]]

    def metrics(self, kind: Literal["completed", "failed"], minutes: int = 60) -> Outcomes:
        """Outcomes of this queue, in all and by minute."""
        if kind not in ("completed", "failed"):
            raise ConfigError(f"metrics are of completed or failed jobs, not {kind!r}")
        last = whole(minutes, "minutes", 1) - 1
        fields = {"queue": self.name, "type": kind, "start": 0, "end": last}
        return Outcomes.from_wire(self.client.call("Metrics", fields)["data"])

    def trim_events(self, max_length: int) -> int:
        """Lower the number of events that count for this queue; returns by how much."""
        fields = {"queue": self.name, "maxLength": whole(max_length, "max_length", 0)}
        return int(self.client.call("TrimEvents", fields, repeatable=False)["data"]["removed"])

    def counts(self) -> Counts:
        """Number of jobs in each state."""
        return Counts.from_wire(self.client.call("GetJobCounts", {"queue": self.name})["counts"])

    def __len__(self) -> int:
        """Jobs that wait to run: waiting, prioritized and delayed."""
        return int(self.client.call("Count", {"queue": self.name})["count"])

    def __bool__(self) -> bool:
        # Without this an empty queue would be false, and asking would be a command.
        return True

    # ----------------------------------------------------------------- control

    def pause(self) -> None:
        """Stop handing out jobs, for all workers; adding goes on."""
        self.client.call("Pause", {"queue": self.name})

    def resume(self) -> None:
        """Hand out jobs again."""
        self.client.call("Resume", {"queue": self.name})

    @property
    def is_paused(self) -> bool:
        """Whether the queue is paused; asks each time."""
        return bool(self.client.call("IsPaused", {"queue": self.name})["paused"])

    def drain(self) -> int:
        """Remove the jobs that wait to run, delayed ones too; returns how many."""
        return int(self._change("Drain")["count"])

    def obliterate(self, *, force: bool = False) -> None:
        """Remove everything of the queue: jobs, dead letters, results, pause and limits.

        :raises StateError: jobs are active, and not ``force``
        """
        if not flag(force, "force") and (active := self.counts().active):
            raise StateError(f"{active} jobs are active; say force=True to remove them too", "Obliterate")
        self._change("Obliterate")

    def clean(self, older_than: Duration, *, state: str = "completed", limit: int = 1000) -> list[str]:
        """Remove at most ``limit`` jobs of one state that have been in it for that long; returns their ids.

        Completed and failed jobs count from their end, others from when they were added.
        """
        if text(state, "state") not in CLEANED_STATES:
            raise ConfigError(f"state must be one of {', '.join(CLEANED_STATES)}, not {state!r}")
        grace = wire_number(to_ms(older_than, "older_than"))
        reply = self._change("Clean", grace=grace, state=str(state), limit=whole(limit, "limit", 1))
        return list(reply["ids"])

    def remove(self, *job_ids: str) -> int:
        """Remove jobs that are queued or failed; returns how many were there.

        :raises StateError: one is active or completed; those before it are removed
        """
        return sum(removed(self.client, filled(job_id, "job_id")) for job_id in job_ids)

    def retry(self, job_id: str) -> None:
        """Start a failed or completed job over, with no attempts made.

        :raises StateError: it is neither
        """
        retried(self.client, filled(job_id, "job_id"))

    def retry_all(
        self,
        state: Literal["failed", "completed"] = "failed",
        *,
        limit: int | None = None,
        before: datetime | None = None,
    ) -> int:
        """Start failed or completed jobs over, those that ended before a time; returns how many."""
        if state not in ("failed", "completed"):
            raise ConfigError(f"only failed and completed jobs are retried, not {state!r}")
        fields: dict[str, object] = {}
        bound: dict[str, object] = {} if limit is None else {"limit": whole(limit, "limit", 0)}
        if state == "failed":
            if before is not None:
                bound["olderThan"] = wire_number(instant_ms(before, "before"))
            if bound:
                fields["filter"] = bound
            return int(self._change("RetryDlq", **fields)["count"])
        if bound:
            fields["count"] = bound["limit"]
        if before is not None:
            fields["timestamp"] = wire_number(instant_ms(before, "before"))
        return int(self._change("RetryCompleted", **fields)["count"])

    def promote(self, job_id: str) -> bool:
        """Make a delayed job ready; False when it is not delayed."""
        return self.job(job_id).promote()

    def promote_all(self, limit: int | None = None) -> int:
        """Make delayed jobs ready, the oldest first; returns how many."""
        fields: dict[str, object] = {} if limit is None else {"count": whole(limit, "limit", 0)}
        return int(self._change("PromoteJobs", **fields)["count"])

    def _change(self, command: str, **fields: object) -> dict[str, Any]:
        # Not sent again: after a lost reply the caller is told, and looks.
        return self.client.call(command, {"queue": self.name, **fields}, repeatable=False)

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} at {self.client.target}>"
