"""The plain engine with the commands that only the wire has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qcore.engine.cron import Cron
from qcore.errors import LeaseError, NotFoundError, StateError
from qcore.reference.copies import alike
from qcore.reference.engine import Job, Removal
from qcore.reference.flows import FlowEngine, Jobs
from qcore.reference.schedules import ScheduledEngine


class PlainEngine(ScheduledEngine, FlowEngine):
    """The plain engine with schedules, ties, moves between states, and the outcomes of late.

    ``added`` hears of each job that the engine adds by itself, and of the run before it.
    """

    def __init__(
        self,
        retry_wait_ms: Callable[[str], int],
        new_id: Callable[[], str],
        added: Callable[[Job, Job | None], None],
    ) -> None:
        super().__init__(
            new_id=lambda queue: new_id(),
            cron=lambda pattern, zone: Cron(pattern, zone).next_ms,
            retry_wait_ms=retry_wait_ms,
        )
        self._added = added
        #: Jobs completed since somebody looked, and their results.
        self.completed_now: list[tuple[Job, bytes | None]] = []
        #: Jobs dead-lettered since somebody looked: a retry by itself may have brought one back at once.
        self.buried_now: list[Job] = []
        #: Outcomes that were reported by clients who may ask again, by token.
        self.remembered: dict[str, str] = {}

    def twin(self) -> PlainEngine:
        """Another engine with the same jobs, to see what pulls would do; nobody hears of what it adds."""
        twin = alike(self)
        twin.jobs = Jobs(twin._gone, {job_id: job.copied() for job_id, job in self.jobs.items()})
        twin.held = {job_id: job.copied() for job_id, job in self.held.items()}
        twin.queues = {name: q.copied() for name, q in self.queues.items()}
        twin.kept, twin._evidence = dict(self.kept), dict(self._evidence)
        twin.repeats, twin.links, twin.owned = dict(self.repeats), dict(self.links), dict(self.owned)
        twin.completed_now, twin.buried_now = [], []
        twin._finals, twin.remembered = dict(self._finals), dict(self.remembered)
        twin._failures, twin.events = [], []
        twin._added = lambda job, before: None
        return twin

    def _fire(self, name: str, now_ms: int, now_ns: int) -> None:
        before = self._seq
        super()._fire(name, now_ms, now_ns)
        if self._seq > before:
            self._added(next(reversed(self.jobs.values())), None)

    def _succeed(self, job: Job, now_ms: int) -> None:
        before = self._seq
        super()._succeed(job, now_ms)
        if self._seq > before:
            self._added(self.jobs[self.links[job.id]], job)

    def ack(
        self,
        job_id: str,
        now_ms: int,
        *,
        token: str | None = None,
        result: bytes | None = None,
        remove: Removal = False,
        remember: bool = False,
        **how: Any,
    ) -> bool:
        """With ``remember``, the same call again answers the same."""
        job = self.jobs.get(job_id)
        own = self._late(job_id, token) or self._holds(job_id, token)
        if not super().ack(job_id, now_ms, token=token, result=result, remove=remove):
            return token is not None and self.remembered.get(token) == "completed"
        assert job is not None
        self.completed_now.append((job, result))
        if remember and own:
            self._remember(token, "completed")
        return True

    def fail(
        self,
        job_id: str,
        now_ms: int,
        *,
        token: str | None = None,
        error: str | None = None,
        unrecoverable: bool = False,
        remove: Removal = False,
        remember: bool = False,
    ) -> bool:
        late, own = self._late(job_id, token), self._holds(job_id, token)
        if not super().fail(
            job_id, now_ms, token=token, error=error, unrecoverable=unrecoverable, remove=remove
        ):
            return not late and token is not None and self.remembered.get(token) == "failed"
        if remember and own:
            self._remember(token, "failed")
        return True

    def _bury(self, job: Job, now_ms: int, error: str | None = None) -> None:
        super()._bury(job, now_ms, error)
        self.buried_now.append(job)

    def _late(self, job_id: str, token: str | None) -> bool:
        job = self.jobs.get(job_id)
        return job is not None and job.delivery is None and token is not None and job.last_token == token

    def _holds(self, job_id: str, token: str | None) -> bool:
        """Whether this is the token of the delivery; one without a lease takes any."""
        job = self.jobs.get(job_id)
        return (
            job is not None and job.delivery is not None and token is not None and job.delivery.token == token
        )

    def _remember(self, token: str | None, outcome: str) -> None:
        if token is not None:
            self._finalise(token)
            self.remembered[token] = outcome

    def _demand(self, job: Job, token: str | None) -> None:
        if self._judge(job.id, token) != "may":
            raise LeaseError(f"Invalid or expired lock token for job {job.id}")
        self._leave_active(job)

    def promote(self, job_id: str, now_ms: int) -> bool:
        job = self.jobs.get(job_id)
        if job is None or job.state != "delayed":
            return False
        job.run_ms = now_ms
        self._enqueue(job, now_ms)
        return True

    def move_to_delayed(self, job_id: str, delay_ms: int, now_ms: int, *, token: str | None) -> None:
        job = self.jobs.get(job_id)
        if job is None:
            raise NotFoundError("Job not found")
        if job.state == "active":
            self._demand(job, token)
        elif job.state not in ("ready", "delayed"):
            raise StateError(f"Job is not active (current state: {self.state(job_id)})")
        job.run_ms = now_ms + max(0, delay_ms)
        self._enqueue(job, now_ms)

    def change_delay(self, job_id: str, delay_ms: int, now_ms: int, *, token: str | None) -> bool:
        job = self.jobs.get(job_id)
        if job is None or job.state not in ("ready", "delayed", "active"):
            return False
        self.move_to_delayed(job_id, delay_ms, now_ms, token=token)
        return True

    def move_to_wait(self, job_id: str, now_ms: int, *, token: str | None) -> None:
        job = self.jobs.get(job_id)
        if job is None:
            raise NotFoundError("Cannot move job from state 'unknown' to waiting")
        if job.state == "active":
            self._demand(job, token)
            job.run_ms = now_ms  # behind what is ready already
            self._enqueue(job, now_ms)  # also the job of a schedule: its holder gives it back
        elif job.state == "delayed":
            self.promote(job_id, now_ms)
        elif job.state == "failed":
            if not self._may_restart(job, now_ms):
                raise StateError(f"Cannot move job {job_id} to waiting: another job holds its unique key")
            self._start_over(job, now_ms, "failed")
        elif job.state != "ready":
            raise StateError(f"Cannot move job from state '{self.state(job_id)}' to waiting")
