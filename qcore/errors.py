"""Every exception that this project raises on purpose.

One ``except QError`` catches all of them. A message says what was expected and
what came; it never contains a payload, a result or a token.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from datetime import timedelta
from typing import Final

#: More of what somebody wrote, such as a path of 4,000 characters, is not repeated.
_LINE_CHARS: Final = 1000


def described(fault: BaseException) -> str:
    """The kind of a fault and the way to it, for logs: its text is left out, which may hold a payload."""
    way = "".join(traceback.format_tb(fault.__traceback__))
    return f"{type(fault).__module__}.{type(fault).__qualname__}\n{way}".rstrip()


def one_line(error: object) -> str:
    """What is wrong with something that somebody wrote, in one line; of a long one the middle is left out."""
    text = " ".join(str(error).split())
    return text if len(text) <= _LINE_CHARS else f"{text[: _LINE_CHARS - 150]} ... {text[-145:]}"


def complain(line: str) -> None:
    """Print a line to standard error, if there is one that takes it: the exit code says the same."""
    if sys.stderr is not None:  # print() would take standard output in its place
        with contextlib.suppress(OSError):
            print(line, file=sys.stderr)


#: What a refusal is, for programs: the `code` of a reply to a client that announced ``codes``.
CODES: Final = {
    "invalid": "the request, or a field of it, is not acceptable",
    "not_found": "the job, schedule, worker or address is not there",
    "state": "the state of the job, or a unique key, does not permit it",
    "lease": "the lock token is missing, wrong or expired",
    "duplicate": "the id exists",
    "flow": "the jobs cannot be tied together like that",
    "limit": "a bound would be passed",
    "rate_limited": "too many requests of this connection in this time",
    "unauthenticated": "a token is wanted, or this one is none of the server's",
    "unknown_command": "there is no such command",
    "storage": "nothing was stored: the data file cannot be written",
    "unknown_outcome": "the data file could not be written: whether the change lasts is not known",
    "internal": "a fault of the server",
}


class QError(Exception):
    """Base of all errors of this project; ``code`` is one of :data:`CODES`."""

    code: str = "internal"


class ConfigError(QError, ValueError):
    """An option, variable or argument is not usable; ``problems`` names each."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = list(problems)


class SerializationError(QError, ValueError):
    """A value cannot be carried; raised in the caller before anything was sent."""


class StoreError(QError):
    """The data file could not be read or written; nothing was half done."""

    code = "storage"


class BackupError(QError):
    """A backup could not be made, found or restored; nothing was replaced."""


class TransportError(QError, ConnectionError):
    """The link to the engine failed."""


class ConnectionLost(TransportError):
    """The connection broke; ``maybe_applied`` says whether the command may have run."""

    def __init__(self, message: str, *, maybe_applied: bool = False) -> None:
        super().__init__(message)
        self.maybe_applied = maybe_applied


class CommandTimeout(TransportError, TimeoutError):
    """No reply came in time; the command may have run."""

    maybe_applied = True


class ProtocolError(TransportError):
    """The peer sent bytes that are not the protocol."""


class AuthError(QError, PermissionError):
    """The server refused the token, or wants one."""

    code = "unauthenticated"


class CommandError(QError):
    """The engine refused a command; ``command`` names it, ``came`` what it got instead."""

    code = "invalid"
    came: str | None = None

    def __init__(self, message: str, command: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.command = command


class NotFoundError(CommandError, LookupError):
    """A job, queue, schedule or worker is not there."""

    code = "not_found"


class StateError(CommandError):
    """The state of the job does not permit the command."""

    code = "state"


class LeaseError(CommandError):
    """The lock token is missing, wrong or expired."""

    code = "lease"


class DuplicateError(CommandError):
    """The id exists and the caller asked to be told."""

    code = "duplicate"


class LimitError(CommandError):
    """A limit was reached; ``retry_after`` in seconds where it is known."""

    code = "limit"
    retry_after: float | None = None


class FlowError(CommandError):
    """A flow was refused as a whole; nothing was created."""

    code = "flow"


class JobFailedError(QError):
    """The awaited job failed for good."""

    def __init__(self, reason: str, *, attempts: int = 0, stacktrace: list[str] | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.attempts = attempts
        self.stacktrace = stacktrace or []


class JobLostError(QError, LookupError):
    """The awaited job is gone and its outcome unknown."""


class WaitTimeout(QError, TimeoutError):
    """The job did not finish within the time given."""


class ClosedError(QError):
    """The client, worker or engine was closed."""


class EngineBusyError(QError):
    """Another process owns the data file; the message names its pid."""


class ForkedError(QError):
    """An embedded engine was used in a forked child."""


class JobControl(Exception):
    """Raised by a processor to steer its job; not an error."""


def _text(kind: type[JobControl], message: object) -> str:
    if not isinstance(message, str):
        # DelayedError(60) would put the job back at once, over and over.
        raise TypeError(f"{kind.__name__} takes its delay by name: {kind.__name__}(delay={message!r})")
    return message


class UnrecoverableError(JobControl):
    """Fail for good, whatever attempts are left."""


class RetryJob(JobControl):
    """Fail this attempt and retry, after ``delay`` (seconds or a ``timedelta``) if given."""

    def __init__(self, message: str = "retry requested", *, delay: float | timedelta | None = None) -> None:
        super().__init__(_text(type(self), message))
        self.delay = delay


class JobCancelled(JobControl):
    """Raised inside a processor when its job was cancelled."""


class DelayedError(JobControl):
    """Put the job back to delayed for ``delay`` (seconds or a ``timedelta``); counts no attempt."""

    def __init__(
        self, message: str = "delayed by its processor", *, delay: float | timedelta | None = None
    ) -> None:
        super().__init__(_text(type(self), message))
        self.delay = delay


class RateLimitError(JobControl):
    """Put the job back to waiting and hold further starts for ``retry_after``, seconds or a ``timedelta``."""

    def __init__(self, retry_after: float | timedelta, message: str = "rate limited") -> None:
        super().__init__(message)
        self.retry_after = retry_after


class WaitingChildrenError(JobControl):
    """Park the job until its children have finished; counts no attempt."""
