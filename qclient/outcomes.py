"""What ends a delivery: batches of acknowledgements, and what an exception of a processor asks for."""

from __future__ import annotations

import asyncio

from qclient.delivery import JobContext
from qclient.durations import to_ms, to_seconds
from qclient.failures import MAX_MESSAGE_CHARS, error_text, stack_lines
from qcore.errors import (
    DelayedError,
    JobCancelled,
    JobControl,
    RateLimitError,
    RetryJob,
    SerializationError,
    UnrecoverableError,
    WaitingChildrenError,
)

#: How the text of a result that cannot be packed begins: that is told as it is.
UNUSABLE_RESULT = "result cannot be stored"


class Flight:
    """One batch of acknowledgements under way."""

    __slots__ = ("fields", "jobs", "raw", "repeated", "sent_at", "tries")

    def __init__(
        self, jobs: list[JobContext], fields: dict[str, object], raw: tuple[tuple[str, bytes], ...]
    ) -> None:
        self.jobs = jobs
        self.fields = fields
        self.raw = raw
        self.tries = 0
        self.repeated = False
        self.sent_at = 0.0


class Report:
    """A single outcome under way: a failure or another command that ends a delivery.

    ``after`` is a command that follows once this one is applied; ``hold`` the seconds in
    which the worker starts nothing.
    """

    __slots__ = ("after", "command", "error", "fields", "hold", "job", "kind", "tries")

    def __init__(
        self,
        job: JobContext,
        command: str,
        fields: dict[str, object],
        kind: str,
        error: BaseException | None = None,
        after: tuple[str, dict[str, object]] | None = None,
        hold: float | None = None,
    ) -> None:
        self.job = job
        self.command = command
        self.fields = fields
        self.kind = kind
        self.error = error
        self.after = after
        self.hold = hold
        self.tries = 0


def report_of(job: JobContext, exc: BaseException) -> Report:
    """What an exception stands for; one that asks for the impossible is a failure."""
    try:
        return _report_of(job, exc)
    except Exception as fault:
        # The slot and the lease of the job would be lost with an error in here.
        return _report_of(job, fault)


def _report_of(job: JobContext, exc: BaseException) -> Report:
    base: dict[str, object] = {"id": job.id, "token": job.token}
    if isinstance(exc, DelayedError):
        delay_ms = float(to_ms(0 if exc.delay is None else exc.delay, "delay"))
        return Report(job, "MoveToDelayed", base | {"delay": delay_ms}, "moved")
    if isinstance(exc, RateLimitError):
        return Report(job, "MoveToWait", base, "moved", hold=to_seconds(exc.retry_after, "retry_after"))
    if isinstance(exc, WaitingChildrenError):
        return Report(job, "MoveToWaitingChildren", base, "moved")
    after: tuple[str, dict[str, object]] | None = None
    if isinstance(exc, RetryJob):
        if exc.delay:
            after = ("ChangeDelay", {"id": job.id, "delay": float(to_ms(exc.delay, "delay"))})
        else:
            after = ("Promote", {"id": job.id})
    unrecoverable = isinstance(exc, UnrecoverableError)
    if isinstance(exc, (asyncio.CancelledError, JobCancelled)) and job._reason is not None:
        if job._reason == "timeout":
            text = f"timed out after {job.timeout:g} s"
        else:
            text = "cancelled" if job._reason == "cancelled" else f"cancelled: {job._reason}"
            unrecoverable = True
    elif isinstance(exc, JobControl) or (
        isinstance(exc, SerializationError) and str(exc).startswith(UNUSABLE_RESULT)
    ):
        text = (str(exc) or type(exc).__name__)[:MAX_MESSAGE_CHARS]
        text = text.encode("utf-8", "replace").decode()
    else:
        text = error_text(exc)
    fields = base | {"error": text, "stack": stack_lines(exc)}
    if unrecoverable:
        fields["unrecoverable"] = True
    return Report(job, "FAIL", fields, "failed", exc, after)
