"""The plain engine with the commands that only the wire has."""

from __future__ import annotations

from collections.abc import Callable

from qcore.errors import LeaseError, NotFoundError, StateError
from qcore.reference import engine as reference
from qcore.reference.engine import Job


class PlainEngine(reference.Engine):
    """:class:`qcore.reference.engine.Engine`, moves between states, and the outcomes of late."""

    def __init__(self, retry_wait_ms: Callable[[str], int]) -> None:
        super().__init__(retry_wait_ms=retry_wait_ms)
        #: Jobs completed since somebody looked, and their results.
        self.completed_now: list[tuple[Job, bytes | None]] = []

    def ack(
        self,
        job_id: str,
        now_ms: int,
        *,
        token: str | None = None,
        result: bytes | None = None,
        remove: bool = False,
    ) -> bool:
        job = self.jobs.get(job_id)
        applied = super().ack(job_id, now_ms, token=token, result=result, remove=remove)
        if applied and job is not None:
            self.completed_now.append((job, result))
        return applied

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
            self._return(job)
        elif job.state == "delayed":
            self.promote(job_id, now_ms)
        elif job.state == "failed":
            self._start_over(job, now_ms)
        elif job.state != "ready":
            raise StateError(f"Cannot move job from state '{self.state(job_id)}' to waiting")
