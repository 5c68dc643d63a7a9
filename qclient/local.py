"""Engines in this process: one per data file, shared by all clients that name it.

A file's engine is closed, and the file free for other processes, when its last
user has gone. The engine of ``memory://`` stays until :func:`shutdown_engine` or
the end of the process: its jobs would be lost with it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from qclient.url import Target
from qcore.errors import ClosedError, CommandTimeout, ConfigError, ConnectionLost, ForkedError
from qcore.limits import DEFAULT_COMPLETED_RETENTION_MS

_lock = threading.RLock()
_engines: dict[str, _Engine] = {}
_generation = 0
_shutdowns = 0


class _Engine:
    """A broker and the number of pipes that use it."""

    __slots__ = ("broker", "generation", "key", "users")

    def __init__(self, key: str, broker: Any) -> None:
        self.key = key
        self.broker = broker
        self.users = 0
        self.generation = _generation


def _after_fork_in_child() -> None:
    # The engine's threads and its hold on the file stayed in the parent: what the
    # child inherited must neither be used nor flushed.
    global _generation, _lock
    _generation += 1
    _lock = threading.RLock()
    _engines.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def shutdowns() -> int:
    """How often the engines of this process were shut down."""
    return _shutdowns


def acquire(target: Target) -> _Engine:
    """Open, or share, the engine of ``target``; pair with :func:`release`."""
    from qcore.broker.embedded import EmbeddedEngine

    key = target.path or ""
    with _lock:
        engine = _engines.get(key)
        if engine is None or engine.broker.closed:
            other = next((k for k in _engines if k and key and k != key), None)
            if other is not None:
                raise ConfigError(f"this process has {other!r} open already; one data file per process")
            adds, changes = target.adds or "buffered", target.changes or "committed"
            keep_ms = target.keep_completed_ms
            broker = EmbeddedEngine(
                target.path,
                adds=adds,
                changes=changes,
                keep_events=bool(target.journal),
                completed_retention_ms=DEFAULT_COMPLETED_RETENTION_MS if keep_ms is None else keep_ms or None,
            )
            engine = _engines[key] = _Engine(key, broker)
        settings: tuple[tuple[str, object, object], ...] = (
            ("adds", target.adds, engine.broker.adds),
            ("changes", target.changes, engine.broker.changes),
            ("journal", target.journal, engine.broker.keep_events),
            ("keep_completed_ms", target.keep_completed_ms, engine.broker.completed_retention_ms or 0),
        )
        for what, wanted, found in settings:
            if wanted is not None and wanted != found:
                raise ConfigError(f"{target} is open in this process with {what}={found}, not {wanted}")
        engine.users += 1
        return engine


def release(engine: _Engine) -> None:
    """Give up one use of ``engine``; the last one closes a file's engine."""
    with _lock:
        engine.users -= 1
        if engine.users <= 0 and engine.key and _engines.get(engine.key) is engine:
            del _engines[engine.key]
            engine.broker.close()


def shutdown_engine() -> None:
    """Close every engine of this process; waiting calls end with an error.

    Queues and workers that used one are done with it: they do not open it again.
    """
    global _shutdowns
    with _lock:
        _shutdowns += 1
        engines = list(_engines.values())
        _engines.clear()
    for engine in engines:
        engine.broker.close()


atexit.register(shutdown_engine)


class LocalPipe:
    """The blocking pipe to an engine of this process."""

    __slots__ = ("_closed", "_engine", "_output", "_session")

    def __init__(self, target: Target) -> None:
        self._engine = acquire(target)
        # Not an Event: an interrupt inside its methods could leave its lock taken.
        self._output: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._closed = False
        try:
            self._session = self._engine.broker.session(partial(self._output.put, None))
        except BaseException:
            release(self._engine)
            raise

    def _check(self) -> None:
        if self._engine.generation != _generation:
            raise ForkedError("this engine belongs to the parent process; open the queue after the fork")
        if self._closed or self._engine.broker.closed:
            raise ClosedError("the engine of this process was closed")

    def write(self, data: bytes, timeout: float) -> None:
        self._check()
        self._session.feed(data)

    def read(self, timeout: float) -> bytes:
        while True:
            with contextlib.suppress(queue.Empty):
                while True:
                    self._output.get_nowait()
            data: bytes = self._session.take()
            if data:
                return data
            if self._session.closing:
                raise ConnectionLost("the engine closed the session", maybe_applied=True)
            self._check()
            try:
                self._output.get(timeout=timeout)
            except queue.Empty:
                raise CommandTimeout(f"no reply within {timeout:g} s") from None

    def alive(self) -> bool:
        if self._engine.generation != _generation:
            raise ForkedError("this engine belongs to the parent process; open the queue after the fork")
        return not (self._closed or self._engine.broker.closed or self._session.closing)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._engine.generation != _generation:
            return
        if not self._engine.broker.closed:
            self._session.close()
        release(self._engine)
        self._output.put(None)

    abort = close


class AsyncLocalPipe:
    """The same for an event loop: output is handed to ``on_data`` in the loop's thread."""

    __slots__ = ("_closed", "_engine", "_loop", "_on_data", "_on_lost", "_scheduled", "_session")

    def __init__(
        self,
        target: Target,
        loop: asyncio.AbstractEventLoop,
        on_data: Callable[[bytes], None],
        on_lost: Callable[[Exception | None], None],
    ) -> None:
        self._loop = loop
        self._on_data = on_data
        self._on_lost = on_lost
        self._scheduled = False
        self._closed = False
        self._engine = acquire(target)
        try:
            self._session = self._engine.broker.session(self._wake)
        except BaseException:
            release(self._engine)
            raise

    def _wake(self) -> None:
        if self._scheduled or self._closed:
            return
        self._scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._pump)
        except RuntimeError:  # the loop is closed: nobody is left to read
            self._closed = True

    def _pump(self) -> None:
        self._scheduled = False
        if not self._closed and (data := self._session.take()):
            # One round a turn: an answer to what this one asks must not shut out the rest of the loop.
            self._on_data(data)
        if self._closed:
            return
        if self._session.closing or self._engine.broker.closed:
            self._on_lost(ConnectionLost("the engine closed the session", maybe_applied=True))

    def write(self, data: bytes) -> None:
        if self._closed:
            return
        if self._engine.generation != _generation:
            raise ForkedError("this engine belongs to the parent process; start the worker after the fork")
        if not self._scheduled:
            # Output of this very command needs no wake-up from another thread.
            self._scheduled = True
            self._loop.call_soon(self._pump)
        if not self._engine.broker.closed:
            self._session.feed(data)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._engine.generation != _generation:
            return
        if not self._engine.broker.closed:
            self._session.close()
        release(self._engine)
