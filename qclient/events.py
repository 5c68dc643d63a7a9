"""Events of a queue as they happen: ``QueueEvents``, and one class for each kind of event."""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, ClassVar, Final

from qclient.checks import function, listed
from qclient.client import COMMAND_TIMEOUT_S, Link
from qclient.durations import Duration, to_seconds
from qclient.job import moment
from qclient.options import suggestion
from qclient.pipe import CONNECT_TIMEOUT_S
from qclient.queue import queue_name
from qclient.replies import refused
from qclient.url import resolve
from qcore.errors import (
    ClosedError,
    CommandTimeout,
    ConfigError,
    TransportError,
    WaitTimeout,
)

_log = logging.getLogger("qclient.events")

#: Events that wait to be read; beyond it the oldest go.
MAX_BUFFERED: Final = 10_000
RETRY_FIRST_S = 0.1
RETRY_MOST_S = 30.0
CLOSE_PATIENCE_S = 1.0


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job of the queue, or with an empty ``job_id`` to the queue."""

    type: ClassVar[str] = ""
    job_id: str
    queue: str
    at: datetime | None


@dataclass(frozen=True, slots=True)
class Waiting(Event):
    """A job was added (``prev`` is None), given back, started over, or freed by its children."""

    type: ClassVar[str] = "waiting"
    prev: str | None = None


@dataclass(frozen=True, slots=True)
class Active(Event):
    """It was handed to a worker."""

    type: ClassVar[str] = "active"


@dataclass(frozen=True, slots=True)
class Completed(Event):
    """It is done; ``returnvalue`` is an ``Unreadable`` when the result has no counterpart here."""

    type: ClassVar[str] = "completed"
    returnvalue: Any = None


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """An attempt failed; ``terminal``: the last one."""

    type: ClassVar[str] = "failed"
    reason: str = ""
    terminal: bool = True


@dataclass(frozen=True, slots=True)
class Progress(Event):
    """Its worker reported progress."""

    type: ClassVar[str] = "progress"
    value: float = 0
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Stalled(Event):
    """Its delivery was lost."""

    type: ClassVar[str] = "stalled"


@dataclass(frozen=True, slots=True)
class Removed(Event):
    """It was cancelled."""

    type: ClassVar[str] = "removed"
    prev: str | None = None


@dataclass(frozen=True, slots=True)
class Delayed(Event):
    """Its worker put it off, by ``delay`` seconds."""

    type: ClassVar[str] = "delayed"
    delay: float = 0


@dataclass(frozen=True, slots=True)
class Duplicated(Event):
    """An add was dropped in favour of this job, which holds the unique key."""

    type: ClassVar[str] = "duplicated"


@dataclass(frozen=True, slots=True)
class Retried(Event):
    """It will be tried again."""

    type: ClassVar[str] = "retried"
    prev: str | None = None


@dataclass(frozen=True, slots=True)
class WaitingChildren(Event):
    """Its worker parked it until its children are done."""

    type: ClassVar[str] = "waiting-children"


@dataclass(frozen=True, slots=True)
class Paused(Event):
    """The queue was paused."""

    type: ClassVar[str] = "paused"


@dataclass(frozen=True, slots=True)
class Resumed(Event):
    """The queue was resumed."""

    type: ClassVar[str] = "resumed"


@dataclass(frozen=True, slots=True)
class Resubscribed(Event):
    """The connection broke and is there again: with ``gap``, events may have been missed."""

    type: ClassVar[str] = "resubscribed"
    gap: bool = True


@dataclass(frozen=True, slots=True)
class Overflow(Event):
    """The reader was too slow: ``n`` events were dropped."""

    type: ClassVar[str] = "overflow"
    n: int = 0


#: What events are called here, and the names that the protocol has for them.
_WIRE: Final[Mapping[str, tuple[str, ...]]] = {
    "waiting": ("pushed", "waiting"),
    "active": ("pulled",),
    "completed": ("completed",),
    "failed": ("failed",),
    "progress": ("progress",),
    "stalled": ("stalled",),
    "removed": ("removed",),
    "delayed": ("delayed",),
    "duplicated": ("duplicated",),
    "retried": ("retried",),
    "waiting-children": ("waiting-children",),
    "paused": ("paused",),
    "resumed": ("resumed",),
}
_LISTENED: Final = (*_WIRE, "resubscribed", "overflow", "error")
Listener = Callable[[Any], object]


def read_event(raw: Mapping[str, Any]) -> Event | None:
    """An event of the protocol; None for one of a kind that is not known here."""
    kind = raw.get("eventType")
    job_id, queue, at = str(raw.get("jobId") or ""), str(raw.get("queue")), moment(raw.get("timestamp"))
    prev = raw.get("prev")
    if kind == "pulled":
        return Active(job_id, queue, at)
    if kind == "completed":
        return Completed(job_id, queue, at, raw.get("data"))
    if kind in ("pushed", "waiting"):
        return Waiting(job_id, queue, at, prev)
    if kind == "failed":
        return Failed(job_id, queue, at, str(raw.get("error") or ""), raw.get("terminal") is not False)
    if kind == "progress":
        data = raw.get("data")
        message = data.get("message") if isinstance(data, dict) else None
        return Progress(job_id, queue, at, raw.get("progress") or 0, message)
    if kind == "removed":
        return Removed(job_id, queue, at, prev)
    if kind == "delayed":
        return Delayed(job_id, queue, at, (raw.get("delay") or 0) / 1000)
    if kind == "retried":
        return Retried(job_id, queue, at, prev)
    plain = _PLAIN.get(str(kind))
    return None if plain is None else plain(job_id, queue, at)


_PLAIN: Final[Mapping[str, type[Event]]] = {
    one.type: one for one in (Stalled, Duplicated, WaitingChildren, Paused, Resumed)
}


class QueueEvents:
    """The events of one queue, through a connection of its own.

    Iterate over it, :meth:`get` one, or let :meth:`on` call a function; nothing is opened
    before one of these, :meth:`wait_ready` or ``with``. ``types`` names the kinds that are
    sent at all. After an outage it subscribes again and says so by ``Resubscribed``; what
    happened meanwhile is not told. Of events that nobody reads the oldest beyond 10,000 are
    dropped, which ``Overflow`` tells. Thread-safe.
    """

    def __init__(self, queue: str, url: str | None = None, *, types: Iterable[str] | None = None) -> None:
        self.queue = queue_name(queue)
        self._target = resolve(url)
        self._wanted: list[str] | None = None
        if types is not None:
            names = [self._known(name, _WIRE) for name in listed(types, "types", "names")]
            if not names:
                raise ConfigError("types must name at least one kind of event")
            self._wanted = [wire for name in dict.fromkeys(names) for wire in _WIRE[name]]
        self._listeners: dict[str, list[Listener]] = {}
        self._buffer: deque[Event] = deque()
        self._dropped = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._link: Link | None = None
        self._ready = False
        self._closing = threading.Event()
        self._fatal: Exception | None = None

    @staticmethod
    def _known(name: str, names: Iterable[str]) -> str:
        if not isinstance(name, str):
            raise TypeError(f"the name of an event must be a string, not {type(name).__name__}")
        spelled = name.replace("_", "-")
        if spelled not in names:
            raise ConfigError(f"unknown event {name!r}{suggestion(spelled, names)}")
        return spelled

    # ----------------------------------------------------------------- reading

    def on(self, name: str, listener: Listener) -> Listener:
        """Call ``listener(event)`` for each event of that name, in a thread of this object.

        ``error`` tells of exceptions: outages, and listeners that raised. Without a listener
        for it they are logged.
        """
        known = self._known(name, _LISTENED)
        self._listeners.setdefault(known, []).append(function(listener, "listener"))
        self._start()
        return listener

    def wait_ready(self, timeout: Duration | None = None) -> None:
        """Wait until events come; raises ``WaitTimeout``, or why the engine refuses."""
        limit = None if timeout is None else to_seconds(timeout, "timeout")
        self._start()
        with self._changed:
            if not self._changed.wait_for(lambda: self._ready or self._over, limit):
                raise WaitTimeout(f"no subscription to {self.queue!r} within {limit:g} s")
            if not self._ready:
                raise self._fatal or ClosedError("the events were closed")

    def get(self, timeout: Duration | None = None) -> Event:
        """The next event; raises ``WaitTimeout``, and ``ClosedError`` after the end."""
        limit = None if timeout is None else to_seconds(timeout, "timeout")
        self._start()
        with self._changed:
            if not self._changed.wait_for(lambda: self._buffer or self._dropped or self._over, limit):
                raise WaitTimeout(f"no event of {self.queue!r} within {limit:g} s")
            if self._dropped:
                n, self._dropped = self._dropped, 0
                return Overflow("", self.queue, datetime.now(UTC), n)
            if self._buffer:
                return self._buffer.popleft()
            raise self._fatal or ClosedError("the events were closed")

    def __iter__(self) -> Iterator[Event]:
        """Events as they come, until :meth:`close`."""
        while True:
            try:
                event = self.get()
            except ClosedError:
                return
            yield event

    # ------------------------------------------------------------- the thread

    @property
    def _over(self) -> bool:
        return self._closing.is_set() or self._fatal is not None

    def _start(self) -> None:
        with self._changed:
            if self._closing.is_set():
                raise ClosedError("the events were closed")
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"qclient-events-{self.queue}", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        pause = RETRY_FIRST_S
        subscribed = told = False
        while not self._closing.is_set():
            try:
                link = Link(self._target, CONNECT_TIMEOUT_S)
                try:
                    with self._changed:
                        self._link = link
                        if self._closing.is_set():
                            return
                    link.events = deque()
                    self._subscribe(link)
                    if subscribed:
                        self._take(Resubscribed("", self.queue, datetime.now(UTC)))
                    subscribed, told, pause = True, False, RETRY_FIRST_S
                    with self._changed:
                        self._ready = True
                        self._changed.notify_all()
                    self._read(link)
                finally:
                    with self._changed:
                        self._link = None
                        self._ready = False
                    link.close()
            except Exception as exc:
                if self._closing.is_set():
                    return
                if not isinstance(exc, TransportError) or not subscribed:
                    # A first connection that is refused is news, not an outage.
                    self._end(exc)
                    return
                if not told:  # an outage is told once, not with each try
                    told = True
                    self._tell("error", exc)
                with self._changed:
                    self._changed.wait_for(self._closing.is_set, pause * (1 + 0.3 * random.random()))
                pause = min(pause * 2, RETRY_MOST_S)

    def _subscribe(self, link: Link) -> None:
        fields: dict[str, object] = {"queue": self.queue}
        if self._wanted is not None:
            fields["eventTypes"] = self._wanted
        reply = link.call("SubscribeEvents", fields)
        if not reply.get("ok"):
            raise refused(reply, "SubscribeEvents")

    def _read(self, link: Link) -> None:
        wanted = None if self._wanted is None else set(self._wanted)
        assert link.events is not None
        while not self._closing.is_set():
            while link.events:
                raw = link.events.popleft()
                # Older engines send everything.
                if isinstance(raw, dict) and (wanted is None or raw.get("eventType") in wanted):
                    event = read_event(raw)
                    if event is not None:
                        self._take(event)
            try:
                link.read_events(COMMAND_TIMEOUT_S)
            except CommandTimeout:
                # Nothing for a while: ask whether the engine is still there.
                link.call("Ping", timeout=COMMAND_TIMEOUT_S)

    def _take(self, event: Event) -> None:
        with self._changed:
            if len(self._buffer) >= MAX_BUFFERED:
                self._buffer.popleft()
                self._dropped += 1
            self._buffer.append(event)
            self._changed.notify_all()
        self._tell(event.type, event)

    def _tell(self, name: str, what: Any) -> None:
        listeners = self._listeners.get(name, ())
        if name == "error" and not listeners:
            _log.warning("events of %s: %s", self.queue, what)
        for listener in list(listeners):
            try:
                listener(what)
            except Exception as exc:
                if name == "error":
                    _log.warning("a listener for errors raised %s", type(exc).__name__)
                else:
                    self._tell("error", exc)

    def _end(self, exc: Exception) -> None:
        with self._changed:
            self._fatal = exc
            self._changed.notify_all()
        self._tell("error", exc)

    # -------------------------------------------------------------- life cycle

    def close(self) -> None:
        """Stop; what has come can still be read. May be called twice, also by a listener."""
        with self._changed:
            self._closing.set()
            link, thread = self._link, self._thread
            self._changed.notify_all()
        if link is not None:
            link.abort()
        if thread is not None and thread is not threading.current_thread():
            # One that is connecting cannot be woken, and ends by itself.
            thread.join(CLOSE_PATIENCE_S)

    def __enter__(self) -> QueueEvents:
        self.wait_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<QueueEvents of {self.queue!r} at {self._target}>"


__all__ = [
    "Active", "Completed", "Delayed", "Duplicated", "Event", "Failed", "Overflow", "Paused", "Progress",
    "QueueEvents", "Removed", "Resubscribed", "Resumed", "Retried", "Stalled", "Waiting", "WaitingChildren",
]  # fmt: skip
