"""What a processor receives: one delivery of one job."""

from __future__ import annotations

import threading
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from qcore.errors import JobCancelled

if TYPE_CHECKING:
    from asyncio import Task

    from qclient.control import Control

# Where a delivery is. The object is its own generation: a job that is delivered
# again is another object, so an outcome of the old one cannot touch it.
BUFFERED: Final = 0
STARTED: Final = 1
ACKING: Final = 2
REPORTING: Final = 3
SETTLED: Final = 4
LOST: Final = 5


class JobContext:
    """The running job. Not to be kept after the processor has returned."""

    __slots__ = (
        "_control",
        "_data",
        "_deadline",
        "_event",
        "_raw",
        "_reason",
        "_result",
        "_state",
        "_task",
        "_timer",
        "_value",
        "id",
        "name",
        "token",
    )

    def __init__(self, control: Control, raw: dict[str, Any], token: str) -> None:
        self._control = control
        self._raw = raw
        self._state = BUFFERED
        self._reason: str | None = None
        self._task: Task[None] | None = None
        self._result: bytes | None = None
        self._value: Any = None
        self._timer: Any = None
        self._event: threading.Event | None = None
        self._deadline: float | None = None
        self.id: str = raw["id"]
        self.name: str = raw["name"]
        self.token = token

    @property
    def data(self) -> Any:
        """The job's data, as it was added."""
        return self._raw.get("data")

    @property
    def raw(self) -> dict[str, Any]:
        """Every field as the engine sent it, times in milliseconds."""
        return self._raw

    @property
    def queue(self) -> str:
        return self._control.queue

    @property
    def attempts_made(self) -> int:
        """Failed attempts before this one."""
        return int(self._raw.get("attempts") or 0)

    @property
    def attempt(self) -> int:
        """Number of this attempt, the first is 1."""
        return self.attempts_made + 1

    @property
    def max_attempts(self) -> int:
        return int(self._raw.get("maxAttempts") or 1)

    @property
    def is_last_attempt(self) -> bool:
        return self.attempt >= self.max_attempts

    @property
    def priority(self) -> float:
        return self._raw.get("priority") or 0

    @property
    def timeout(self) -> float | None:
        """Processing time allowed, in seconds."""
        ms = self._raw.get("timeout")
        return ms / 1000 if ms else None

    @property
    def deadline(self) -> float | None:
        """Reading of ``time.monotonic()`` at which the job's time is up."""
        return self._deadline

    # ------------------------------------------------------------ cancellation

    @property
    def cancelled(self) -> bool:
        """Whether this delivery was cancelled, for whatever reason."""
        return self._reason is not None

    @property
    def cancel_reason(self) -> str | None:
        """``cancelled``, ``timeout``, ``shutdown``, ``lease_lost`` or the caller's own."""
        return self._reason

    def check_cancelled(self) -> None:
        """Raise ``JobCancelled`` if this delivery was cancelled."""
        if self._reason is not None:
            raise JobCancelled(self._reason)

    def sleep(self, seconds: float) -> None:
        """Sleep in a thread; ends early with ``JobCancelled`` when cancelled."""
        if self._event is None:
            self._event = threading.Event()
        self.check_cancelled()
        if self._event.wait(max(0.0, seconds)):
            self.check_cancelled()

    # --------------------------------------------------------------- reporting

    def set_progress(self, progress: float, message: str | None = None) -> None:
        """Report 0 to 100. Sent at once and not waited for; from any thread."""
        self.check_cancelled()
        fields: dict[str, object] = {"id": self.id, "progress": progress}
        if message is not None:
            fields["message"] = message
        self._control.post("Progress", fields)

    def log(self, message: str, level: str = "info") -> None:
        """Add a line to the job's log. Sent at once and not waited for; from any thread."""
        self.check_cancelled()
        self._control.post("AddLog", {"id": self.id, "message": message, "level": level})

    def __repr__(self) -> str:
        return f"<JobContext {self.id!r} {self.name!r} attempt {self.attempt}>"


def start_deadline(job: JobContext) -> float | None:
    """Seconds the job may run, noting when they are over; None without a timeout."""
    seconds = job.timeout
    if seconds is not None:
        job._deadline = time.monotonic() + seconds
    return seconds


_current: ContextVar[JobContext] = ContextVar("qclient_current_job")
set_current = _current.set


def current_job() -> JobContext:
    """The job that this code runs for; ``LookupError`` outside of a processor."""
    return _current.get()
