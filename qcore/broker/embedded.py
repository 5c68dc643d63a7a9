"""The broker inside a program: callers commit for themselves, one thread keeps time."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable

from qcore.broker.core import Broker
from qcore.broker.opening import Level, close_broker, commit, commit_next, flush, open_broker
from qcore.broker.session import Session
from qcore.broker.webhooks import HookSettings, LazyPoster
from qcore.clock import Clock
from qcore.errors import ClosedError, ForkedError, described
from qcore.limits import DEFAULT_COMPLETED_RETENTION_MS

#: The thread looks again after this long even if nothing is due, in case a clock was set.
_LONGEST_SLEEP_S = 60.0

#: After an unexpected fault it tries again after this long.
_AGAIN_S = 1.0

#: A lease that ended longer ago than this did not only wait for the thread: the whole program stood still.
_LATE_NS = 50_000_000
#: After that, who holds a lease in this program is given so long to renew it before leases are judged.
_SHORTEST_GRACE_S, _LONGEST_GRACE_S = 0.05, 1.0

logger = logging.getLogger("qcore.broker")

_hosts: weakref.WeakSet[EmbeddedEngine] = weakref.WeakSet()


def _forget_in_child() -> None:
    """A forked child shares the parent's file handle: it must never write through it."""
    for host in _hosts:
        host._forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


class EmbeddedEngine:
    """One engine of this process, over one data file or in memory.

    A caller whose reply waits for a commit commits by itself when no commit is
    running: handing it to another thread costs several times the commit. The
    thread, started by the first call, flushes what is buffered and does what
    falls due. Thread-safe.
    """

    def __init__(
        self,
        path: str | None = None,
        *,
        adds: Level = "buffered",
        changes: Level = "committed",
        keep_events: bool = False,
        hooks: HookSettings | None = None,
        completed_retention_ms: int | None = DEFAULT_COMPLETED_RETENTION_MS,
        clock: Clock | None = None,
    ) -> None:
        self.path = path
        self.adds = adds
        self.changes = changes
        self.completed_retention_ms = completed_retention_ms
        self.keep_events = keep_events
        self.broker: Broker = open_broker(
            path,
            mode="embedded",
            adds=adds,
            changes=changes,
            keep_events=keep_events,
            hooks=hooks,
            completed_retention_ms=completed_retention_ms,
            clock=clock,
        )
        self._poster = LazyPoster(self.broker)
        self._commits = threading.Lock()
        # Not an Event: a KeyboardInterrupt inside its set() would leave its lock taken for ever.
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._wakes_at_ns = 0
        self._thread: threading.Thread | None = None
        self._start = threading.Lock()
        self._forked = False
        self.closed = False
        self._sessions: weakref.WeakSet[EmbeddedSession] = weakref.WeakSet()
        _hosts.add(self)

    def session(self, on_output: Callable[[], None] | None = None) -> EmbeddedSession:
        """A conversation with the engine, as a connection to a server would be."""
        self._usable()
        session = EmbeddedSession(self, on_output)
        self._sessions.add(session)
        return session

    def flush(self) -> None:
        """Commit everything that is buffered. Raises StoreError if the file cannot be written."""
        self._usable()
        with self._commits:
            flush(self.broker)

    def close(self) -> None:
        """Flush and let the file go. Idempotent; in a forked child it only lets go."""
        if self.closed or self._forked:
            self.closed = True
            return
        self.closed = True
        self._wakes.put(None)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=10)
        self._poster.close()
        try:
            self.broker.part()
            with self._commits:
                close_broker(self.broker)
        finally:
            _hosts.discard(self)
            # Whoever waits for a reply looks again and finds that none will come.
            for session in list(self._sessions):
                session.wake()

    def _usable(self) -> None:
        if self._forked:
            raise ForkedError(
                "this engine belongs to the parent process: open it after the fork, or use a server"
            )
        if self.closed:
            raise ClosedError("the engine is closed")

    def settle(self, session: Session) -> None:
        """Commit until no reply of this session waits for a commit."""
        while session.waiting or self.broker.committing:
            with self._commits:
                if (
                    not commit_next(self.broker, lambda: self.broker.settle(session)[1])
                    and not session.waiting
                ):
                    return
            if self.broker.durable and self.broker.store.wants_maintenance:
                self._ensure_thread()
                self._wakes.put(None)

    def nudge(self) -> None:
        """Let the thread look again if something falls due before it would."""
        if self.broker.due_before(self._wakes_at_ns) or self._thread is None:
            self._ensure_thread()
            self._wakes.put(None)

    def _ensure_thread(self) -> None:
        if self._thread is None:
            with self._start:
                if self._thread is None and not self.closed:
                    thread = threading.Thread(target=self._run, name="qcore-engine", daemon=True)
                    thread.start()
                    self._thread = thread  # only one that has started can be joined

    def _let_renew(self, late_s: float) -> None:
        """After a standstill, let the threads that renew leases go first.

        A processor that held the interpreter's lock kept them from it, and no other
        process could have noticed.
        """
        for _ in range(3):  # the next processor may do the same
            grace_s = min(max(late_s / 2, _SHORTEST_GRACE_S), _LONGEST_GRACE_S)
            end = time.monotonic() + grace_s
            while (left_s := end - time.monotonic()) > 0 and not self.closed:
                time.sleep(min(left_s, _SHORTEST_GRACE_S))
            late_s = -left_s
            if late_s * 1e9 < _LATE_NS or self.closed:
                return

    def _turn(self) -> float | None:
        """Do what is due; how long until something is, 0 if there is more at once."""
        seconds = self._pump(_LATE_NS)
        if seconds is not None and seconds < 0:
            self._let_renew(-seconds)
            seconds = self._pump(-1)
        broker = self.broker
        if seconds != 0 and broker.durable and broker.store.wants_maintenance:
            broker.store.maintain()
            if broker.store.wants_maintenance:
                return 0  # a further slice, behind what has come meanwhile
        return seconds

    def _pump(self, patience_ns: int) -> float | None:
        with self._commits:
            if self.closed:
                return 0
            seconds, cut = self.broker.pump(patience_ns)
            if cut is not None:
                commit(self.broker, cut)
                return 0
        return seconds

    def _run(self) -> None:
        broker = self.broker
        while not self.closed:
            with contextlib.suppress(queue.Empty):
                while True:
                    self._wakes.get_nowait()
            try:
                seconds = self._turn()
            except Exception as fault:
                # Without this thread no time would pass: it outlives a fault of ours.
                logger.error("what was due was not done: %s", described(fault))
                with contextlib.suppress(queue.Empty):
                    self._wakes.get(timeout=_AGAIN_S)
                continue
            if seconds == 0:
                continue
            seconds = _LONGEST_SLEEP_S if seconds is None else min(seconds, _LONGEST_SLEEP_S)
            self._wakes_at_ns = time.monotonic_ns() + int(seconds * 1e9)
            # What came in meanwhile looked at the old time.
            if not broker.due_before(self._wakes_at_ns - 1_000_000):
                with contextlib.suppress(queue.Empty):
                    self._wakes.get(timeout=seconds)
            self._wakes_at_ns = 0


class EmbeddedSession:
    """A session whose replies are there as soon as they can be."""

    __slots__ = ("__weakref__", "_engine", "_on_output", "_session")

    def __init__(self, engine: EmbeddedEngine, on_output: Callable[[], None] | None) -> None:
        self._engine = engine
        self._on_output = on_output
        self._session = Session(engine.broker, on_output)

    def feed(self, data: bytes) -> None:
        """Run the frames in ``data``; replies that wait for a commit are committed here."""
        engine = self._engine
        engine._usable()
        self._session.feed(data)
        if self._session.waiting:
            engine.settle(self._session)
        engine.nudge()

    def take(self) -> bytes:
        """The reply bytes that are ready."""
        data = self._session.take()
        more = self._session.backlogged
        if more:
            engine = self._engine
            while more:
                self._session.resume()
                if self._session.waiting:
                    engine.settle(self._session)
                data += self._session.take()
                more = self._session.backlogged
            engine.nudge()
        return data

    def wake(self) -> None:
        """Tell the owner to look at the session again."""
        if self._on_output is not None:
            self._on_output()

    @property
    def closing(self) -> bool:
        return self._session.closing

    def close(self) -> None:
        """End the conversation: waits end, deliveries that were never renewed go back."""
        if not self._engine._forked and not self._engine.closed:
            self._session.close()
            self._engine.nudge()
