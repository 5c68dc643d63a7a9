"""Ties between jobs, for the plain engine: who waits for whom is worked out anew each time.

There is nothing to forget for want of room: ``max_completed`` is to be larger than what is driven.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qcore.errors import FlowError, LeaseError, NotFoundError, StateError
from qcore.reference.engine import UNTOLD, Engine, Job, Removal, Saved
from qcore.reference.keys import Key
from qcore.reference.ties import Ties

LIVE = ("ready", "delayed", "active", "parked")


class Jobs(dict[str, Job]):
    """The jobs, telling of each that is removed."""

    def __init__(self, gone: Callable[[Job], None], jobs: dict[str, Job]) -> None:
        super().__init__(jobs)
        self.gone = gone

    def __delitem__(self, job_id: str) -> None:
        job = self[job_id]
        super().__delitem__(job_id)
        self.gone(job)

    def pop(self, job_id: str, default: Any = None) -> Any:
        job = self.get(job_id)
        if job is None:
            return default
        del self[job_id]
        return job


class FlowEngine(Engine):
    """The plain engine with dependencies, parents and children."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.jobs = Jobs(self._gone, {})
        self.held: dict[str, Job] = {}  # completed and removed, but needed
        self._completing: str | None = None
        self._new_ties: Ties | None = None
        self._failures: list[tuple[Job, str | None]] = []
        self._telling = False

    # --- looking ---------------------------------------------------------------------------

    def size(self) -> int:
        return len(self.jobs) + len(self.held)

    def _is_empty(self, name: str, now_ns: int) -> bool:
        return super()._is_empty(name, now_ns) and all(job.queue != name for job in self.held.values())

    def _live(self, job_id: str | None) -> Job | None:
        job = self.jobs.get(job_id) if job_id is not None else None
        return job if job is not None and job.state in LIVE else None

    def is_done(self, job_id: str) -> bool:
        """Whether it is known that a job of this id was completed, if it is there or not."""
        if job_id in self.jobs:
            return self.jobs[job_id].state == "completed"
        return job_id in self.held or job_id in self._evidence

    def is_waited_on(self, job_id: str) -> bool:
        return bool(self._holders(job_id))

    def is_waited_for(self, job_id: str) -> bool:
        """Whether this is a finished job whose result a live one may still read."""
        return self._live(job_id) is None and bool(self._holders(job_id)) and self.is_done(job_id)

    def _open(self, job: Job) -> list[str]:
        ties = job.ties
        return [
            other
            for other in ties.depends_on[ties.settled :]
            if other not in ties.dropped and other not in ties.evidenced and not self.is_done(other)
        ]

    def _holders(self, job_id: str) -> list[Job]:
        """Live jobs that are tied to this id."""
        return [
            job
            for job in self.jobs.values()
            if job.state in LIVE and (job_id in job.ties.depends_on or job_id in job.ties.children)
        ]

    def dependencies(self, job_id: str) -> dict[str, list[str]] | None:
        job = self.jobs.get(job_id)
        if job is None:
            return None
        out: dict[str, list[str]] = {
            "processed": [],
            "unprocessed": [],
            "failed": [],
            "ignored": [],
            "missing": [],
        }
        fatal = {key for key, why in job.ties.dropped.items() if why[0] == "fail"}
        if job.ties.child_failed is not None:
            fatal.add(job.ties.child_failed[0])
        for other in job.ties.ids:
            if other in job.ties.dropped and other not in fatal:
                out["failed" if job.ties.dropped[other][0] == "continue" else "ignored"].append(other)
            elif other in job.ties.evidenced or self.is_done(other):
                out["processed"].append(other)
            elif other not in self.jobs:
                out["failed" if other in fatal else "missing"].append(other)
            else:
                out["failed" if self.jobs[other].state == "failed" else "unprocessed"].append(other)
        return out

    def child_failures(self, job_id: str, policy: str) -> dict[str, str | None]:
        job = self.jobs.get(job_id)
        dropped = job.ties.dropped if job is not None else {}
        return {key: error for kind, key, error in dropped.values() if kind == policy}

    # --- adding ----------------------------------------------------------------------------

    def push(
        self,
        queue: str,
        data: bytes | None,
        now_ms: int,
        *,
        job_id: str | None = None,
        depends_on: tuple[str, ...] = (),
        parent: str | None = None,
        policy: str | None = None,
        parent_token: str | None = None,
        lenient: bool = False,
        parent_required: bool = False,
        **options: Any,
    ) -> str:
        """``lenient``: what it depends on may be still to come. ``parent_required``: its parent may not."""
        if job_id is not None:
            holder = self._live(job_id)
            if holder is not None:
                if self._is_there(parent) and holder.ties.parent != parent:
                    raise FlowError(f"Job {job_id} exists already and is not a child of {parent}")
                return self.touch(queue, job_id)
            if self.is_waited_for(job_id):
                holder = self.jobs.get(job_id) or self.held.get(job_id)
                if holder is not None and parent is not None and holder.ties.parent == parent:
                    return self.touch(queue, job_id)
                raise FlowError(f"Custom ID {job_id} still has unresolved dependency consumers")
        deps = list(dict.fromkeys(depends_on))
        for other in deps:
            if other == job_id:
                raise FlowError(f"Job cannot depend on itself: {job_id}")
            if not lenient and other not in self.jobs and not self.is_done(other):
                raise FlowError(f"Dependency job not found: {other}")
        if parent is not None and parent == job_id:
            raise FlowError("A flow job cannot be its own parent")
        if parent in self.jobs or parent in self.held:
            self._may_link(parent, parent_token)
        me = job_id if job_id is not None else options["new_id"]
        if self._circle(me, {me: deps, **({parent: [me]} if parent is not None else {})}):
            raise FlowError("flow contains a dependency cycle")
        if parent_required and parent is not None and parent not in self.jobs:
            raise NotFoundError(f"Parent job not found: {parent}")
        self._new_ties = Ties(depends_on=deps, parent=parent, policy=policy)
        try:
            return super().push(queue, data, now_ms, job_id=job_id, **options)
        finally:
            self._new_ties = None  # its key did not let it in

    def _is_there(self, job_id: str | None) -> bool:
        return job_id in self.jobs or job_id in self.held

    def _make_way(self, queue: str, key: Key, now_ms: int) -> str | None:
        parent = None if self._new_ties is None else self._new_ties.parent
        if parent is not None and self._is_there(parent):
            holder = self._holder(queue, key)
            if holder is None:
                dropped = self.kept.get((queue, key.place), (now_ms, ""))[0] > now_ms
            else:
                busy = holder.state in ("active", "parked") or self.is_waited_on(holder.id)
                dropped = not (
                    holder.key is None
                    or holder.key.over(now_ms)
                    or key.replace
                    or key.debounce
                    or (key.extend and key.ttl_ms is not None and busy)
                )
            if dropped and (holder is None or holder.ties.parent != parent):
                raise StateError(f"The unique key is held by a job that is not a child of {parent}")
        return super()._make_way(queue, key, now_ms)

    def _evidenced(self, job: Job) -> frozenset[str]:
        """What a job depends on that is known as completed and not there."""
        return frozenset(
            other
            for other in job.ties.depends_on
            if self.is_done(other) and other not in self.jobs and other not in self.held
        )

    def _start_over(self, job: Job, now_ms: int, before: str) -> None:
        job.ties.evidenced |= self._evidenced(job) - job.ties.dropped.keys()
        super()._start_over(job, now_ms, before)

    def _enqueue(self, job: Job, now_ms: int) -> None:
        if self._new_ties is not None:
            job.ties, self._new_ties = self._new_ties, None
            job.ties.evidenced = self._evidenced(job)
            parent = self._live(job.ties.parent)
            if parent is not None and parent is not job:
                self._attach(parent, job.id, now_ms)
            if self._open(job):
                job.state = "parked"
                return
        super()._enqueue(job, now_ms)

    def _may_link(self, parent_id: str, token: str | None) -> None:
        parent = self.jobs.get(parent_id)
        if parent is not None and parent.state in ("ready", "delayed", "parked"):
            return
        if parent is not None and parent.state == "active":
            try:
                if self._judge(parent_id, token) == "may":
                    return
            except (LeaseError, StateError):
                pass
        raise FlowError(f"Parent job {parent_id} is not linkable")

    def _circle(self, start: str, ahead: dict[str, list[str]]) -> bool:
        """Whether a job would wait for itself, given further edges."""
        seen: set[str] = set()
        left = [start]
        while left:
            key = left.pop()
            job = self._live(key)
            for following in [*ahead.get(key, ()), *(self._open(job) if job is not None else ())]:
                if following == start:
                    return True
                if following not in seen:
                    seen.add(following)
                    left.append(following)
        return False

    def _attach(self, parent: Job, child_id: str, now_ms: int) -> None:
        ties = parent.ties
        if child_id not in ties.children:
            ties.children = [*ties.children, child_id]
        if child_id not in ties.depends_on:
            ties.depends_on = [*ties.depends_on, child_id]
        if self._open(parent) and parent.state in ("ready", "delayed"):
            parent.state = "parked"

    # --- what follows from an end ------------------------------------------------------------

    def _gone(self, job: Job) -> None:
        needed = bool(self._holders(job.id))
        if needed and (job.state == "completed" or job.id == self._completing):
            job.state = "kept"
            self.held[job.id] = job
        self._let_go(job)

    def _end_evidence(self, queue: str) -> None:
        """As below, but what live jobs are tied to stays, and is of no queue then."""
        for other, whose in self._evidence.items():
            if whose == queue and self._holders(other):
                self._evidence[other] = ""
        super()._end_evidence(queue)

    def _let_go(self, job: Job) -> None:
        """The results that it needed may go."""
        for other in job.ties.ids:
            if other in self.held and not self._holders(other):
                self._evidence[other] = self.held.pop(other).queue

    def ack(self, job_id: str, now_ms: int, **how: Any) -> bool:
        job = self.jobs.get(job_id)
        self._completing = job_id
        try:
            applied = super().ack(job_id, now_ms, **how)
        finally:
            self._completing = None
        if (
            applied
            and job is not None
            and self.is_done(job_id)
            and job.state in ("completed", "kept", "active")
        ):
            job.result = how.get("result")
            for holder in self._holders(job_id):
                holder.ties.dropped = {key: why for key, why in holder.ties.dropped.items() if key != job_id}
                if holder.ties.child_failed is not None and holder.ties.child_failed[0] == job_id:
                    holder.ties.child_failed = None
                if holder.state == "parked" and not self._open(holder):
                    self._unpark(holder, now_ms)
            self._end_ties(job)
        return applied

    def _end_ties(self, job: Job) -> None:
        job.ties.settled = len(job.ties.depends_on)
        self._let_go(job)

    def _unpark(self, job: Job, now_ms: int) -> None:
        job.ties.settled = len(job.ties.depends_on)
        self._enqueue(job, now_ms)

    def _fail(self, job: Job, now_ms: int, error: str | None, final: bool, remove: bool) -> None:
        job.failed_reason = error
        super()._fail(job, now_ms, error, final, remove)
        if job.id not in self.jobs:
            self._failed(job, UNTOLD if error is None else error, now_ms)

    def _lose(
        self, job: Job, now_ms: int, error: str, dead: str, stalled: str, *, later: bool = False
    ) -> None:
        job.failed_reason = error
        super()._lose(job, now_ms, error, dead, stalled, later=later)

    def _bury(self, job: Job, now_ms: int, error: str | None = None) -> None:
        super()._bury(job, now_ms, error)
        self._failed(job, error, now_ms)

    def _failed(self, job: Job, error: str | None, now_ms: int) -> None:
        job.failed_reason = error if error is not None else job.failed_reason
        self._end_ties(job)
        self._report(job, error, now_ms)

    def _report(self, job: Job, error: str | None, now_ms: int) -> None:
        self._failures.append((job, error))
        if self._telling:
            return
        self._telling = True
        while self._failures:
            self._tell_parent(*self._failures.pop(), now_ms)
        self._telling = False

    def _tell_parent(self, job: Job, error: str | None, now_ms: int) -> None:
        parent = self._live(job.ties.parent)
        policy = job.ties.policy
        if parent is None or policy is None or job.id not in self._open(parent):
            return
        if error is None:
            error = "discarded"
        if policy == "fail":
            text = f"Child job {job.id} failed: {error}"
            if parent.state == "parked":
                self._fail_parked(parent, job.id, text, now_ms)
            else:
                parent.ties.child_failed = (job.id, text)
            return
        parent.ties.dropped = parent.ties.dropped | {job.id: (policy, f"{job.queue}:{job.id}", error)}
        if policy == "continue":
            parent.ties.settled = len(parent.ties.depends_on)
            if parent.state == "parked":
                parent.run_ms = now_ms
        if parent.state == "parked" and not self._open(parent):
            self._unpark(parent, now_ms)
            self._emit("waiting", parent, now_ms, "waiting-children")

    def _fail_parked(self, job: Job, child_id: str, error: str, now_ms: int) -> None:
        job.ties.child_failed = None
        job.ties.dropped = job.ties.dropped | {child_id: ("fail", "", None)}
        job.failed_reason = error
        self._emit("failed", job, now_ms, (error, None, job.data, 0))
        if not job.remove_on_fail:
            self._bury(job, now_ms, error)
            return
        q = self.queues[job.queue]
        q.failed += 1
        q.failures.count(now_ms, self._max_minutes)
        self._end_ties(job)
        del self.jobs[job.id]
        self._failed(job, error, now_ms)

    def _is_needed(self, job: Job) -> bool:
        return job.state == "completed" and bool(self._holders(job.id))

    def _may_restart(self, job: Job, now_ms: int) -> bool:
        return not self._is_needed(job) and super()._may_restart(job, now_ms)

    def _trim(self, queue: str, state: str, policy: Removal, now_ms: int) -> None:
        """As below, but what live jobs need stays."""
        beyond = self._beyond(queue, state, policy, now_ms)
        needed = {job.id for job in beyond if self._holders(job.id)}
        for job in beyond:
            if job.id not in needed:
                self._drop(job.id)

    # --- commands ------------------------------------------------------------------------------

    def move_to_waiting_children(
        self, job_id: str, now_ms: int, *, token: str | None = None, leave: bool = False
    ) -> bool:
        job = self.jobs.get(job_id)
        if job is None or job.state != "active":
            raise StateError("Job is not active")
        if self._judge(job_id, token) != "may":
            raise LeaseError(f"Invalid or expired lock token for job {job_id}")
        if not self._open(job):
            if leave:
                self._emit("waiting-children", job, now_ms, "active")
                self._leave_active(job)
                Engine._return(self, job)  # also the job of a schedule: its holder gives it back
            return False
        self._leave_active(job)
        job.state = "parked"
        self._emit("waiting-children", job, now_ms, "active")
        if job.ties.child_failed is not None:
            self._fail_parked(job, *job.ties.child_failed, now_ms)
        return True

    def update_parent(self, child_id: str, parent_id: str, now_ms: int, *, token: str | None = None) -> None:
        if child_id == parent_id:
            raise FlowError("A flow job cannot be its own parent")
        child, parent = self.jobs.get(child_id) or self.held.get(child_id), self.jobs.get(parent_id)
        listed = parent is not None and child_id in parent.ties.children
        if child is None:
            if listed and self.is_done(child_id):
                return
            raise NotFoundError(f"Child job not found: {child_id}")
        if parent is None:
            raise NotFoundError(f"Parent job not found: {parent_id}")
        before = child.ties.parent
        if before == parent_id and listed:
            return
        if before is not None and before != parent_id and before in self.jobs:
            raise FlowError(f"Child job {child_id} already belongs to parent {before}")
        if not listed:
            self._may_link(parent_id, token)
            if self._circle(parent_id, {parent_id: [child_id]}):
                raise FlowError("flow contains a dependency cycle")
        child.ties.parent = parent_id
        if parent.state not in LIVE:
            return
        self._attach(parent, child_id, now_ms)
        if child.state == "failed":
            self._tell_parent(child, child.failed_reason, now_ms)
            while self._failures:
                self._tell_parent(*self._failures.pop(), now_ms)

    def _detach(self, parent: Job, gone: set[str], now_ms: int) -> None:
        ties = parent.ties
        ties.settled -= sum(other in gone for other in ties.depends_on[: ties.settled])
        ties.depends_on = [other for other in ties.depends_on if other not in gone]
        ties.children = [other for other in ties.children if other not in gone]
        ties.dropped = {other: why for other, why in ties.dropped.items() if other not in gone}
        ties.evidenced -= gone
        for other in gone:
            if other in self.held and not self._holders(other):
                self._evidence[other] = self.held.pop(other).queue
        if parent.state == "parked" and not self._open(parent):
            self._unpark(parent, now_ms)
            self._emit("waiting", parent, now_ms, "waiting-children")

    def remove_child_dependency(self, child_id: str, now_ms: int) -> bool:
        child = self.jobs.get(child_id)
        if child is None:
            raise NotFoundError(f"Job not found: {child_id}")
        if child.ties.parent is None:
            raise FlowError(f"Job {child_id} has no parent")
        parent = self._live(child.ties.parent)
        if child.state == "failed" or parent is None or child_id not in self._open(parent):
            return False
        child.ties.parent = None
        self._detach(parent, {child_id}, now_ms)
        return True

    def remove_unprocessed_children(self, parent_id: str, now_ms: int) -> int:
        parent = self.jobs.get(parent_id)
        if parent is None:
            return 0
        live = parent.state in LIVE
        open_ = self._open(parent) if live else []
        missing = {child for child in parent.ties.children if child not in self.jobs and child in open_}
        queued = {
            child
            for child in parent.ties.children
            if child in self.jobs and self.jobs[child].state in ("ready", "delayed", "parked")
        }
        for child in queued:
            del self.jobs[child]
        if (missing or queued) and live:
            self._detach(parent, missing | queued, now_ms)
        return len(queued)

    # --- a store -------------------------------------------------------------------------------

    def save(self, before: Saved, changed: set[int], now_ms: int, now_ns: int) -> Saved:
        jobs = self.jobs
        self.jobs = {**jobs, **self.held}
        try:
            saved = super().save(before, changed, now_ms, now_ns)
        finally:
            self.jobs = jobs
        saved.evidence = self.stored_evidence()
        return saved

    def stored_evidence(self) -> dict[str, str]:
        """Completed ids that have no row, and the queue of each."""
        return {
            other: queue
            for other, queue in self._evidence.items()
            if other not in self.jobs and other not in self.held
        }

    def _relink(self, saved: Saved, now_ms: int) -> None:
        self.held = {job_id: job for job_id, job in self.jobs.items() if job.state == "kept"}
        self.jobs = Jobs(
            self._gone, {job_id: job for job_id, job in self.jobs.items() if job_id not in self.held}
        )
        live = [job for job in self.jobs.values() if job.state in LIVE]
        for other, queue in saved.evidence.items():
            if other not in self.jobs and other not in self.held:
                self._evidence[other] = queue
        for other in list(self.held):
            if not self._holders(other):
                self._evidence[other] = self.held.pop(other).queue
        for job in live:
            if job.state == "parked" and not self._open(job):
                self._unpark(job, now_ms)
