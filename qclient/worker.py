"""The consumer's side: a worker that runs a function for every job of a queue."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import signal
import threading
import uuid
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Any

from qclient.checks import filled, flag, function, text
from qclient.control import Control
from qclient.delivery import JobContext
from qclient.durations import Duration, to_seconds
from qclient.options import suggestion
from qclient.queue import Queue, queue_name
from qclient.settings import checked_concurrency, worker_settings
from qclient.url import resolve
from qcore.errors import ClosedError, ConfigError

_log = logging.getLogger("qclient.worker")

#: A pause is waited for this long; a loop that does not run for longer starts nothing either.
PAUSE_WAIT_S = 1.0

EVENTS = ("ready", "active", "completed", "failed", "cancelled", "drained", "error", "closed")
_OPTIONS = frozenset(inspect.signature(worker_settings).parameters)


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """Counters of one worker since it started; all zero before that."""

    active: int = 0
    buffered: int = 0
    waiting_ack: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    leases_lost: int = 0
    reconnects: int = 0
    ack_frames: int = 0
    mean_ack_width: float = 0.0
    fallback_flushes: int = 0
    pull_frames: int = 0


def _is_async(fn: Callable[..., Any]) -> bool:
    if inspect.iscoroutinefunction(fn):
        return True
    return inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004


#: What a listener may raise and harm no job: also what would end a program that it is not.
_LISTENER_FAULTS = (Exception, SystemExit, GeneratorExit)


class Worker:
    """Runs ``processor(job)`` for the jobs of ``queue``.

    ``queue`` is a name or a ``Queue``; ``processor`` is a function, run in a thread,
    or a coroutine function, run in the event loop. It gets a ``JobContext``, and
    what it returns is the job's result; an exception fails the attempt.

    :meth:`run` blocks until the worker is closed or signalled, :meth:`start` runs
    it in the background; ``async with`` and :meth:`arun` use the running loop.
    Nothing is connected before one of them. Options: see ``worker_settings``.
    """

    def __init__(
        self,
        queue: str | Queue,
        processor: Callable[[JobContext], Any],
        url: str | None = None,
        **options: Any,
    ) -> None:
        for name in options:
            if name not in _OPTIONS:
                raise ConfigError(f"unknown worker option {name!r}{suggestion(name, _OPTIONS)}")
        function(processor, "processor")
        if isinstance(queue, Queue):
            self.queue = queue.name
            self._target = queue.client.target if url is None else resolve(url)
        else:
            self.queue = queue_name(queue)
            self._target = resolve(url)
        self._settings = worker_settings(**options)
        self.name = self._settings.name
        self.id = f"{self.name}-{uuid.uuid4().hex[:8]}"
        self._fn = processor
        self._listeners: dict[str, list[Any]] = {event: [] for event in EVENTS}
        self._control: Control | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._started = threading.Event()
        self._ended = threading.Event()
        self._start_error: BaseException | None = None
        self._closing: asyncio.Task[int] | None = None
        self._force = False
        self._close_timeout: float | None = None
        self._was_started = False
        self._pid = os.getpid()
        self._closed = False
        self._paused_early = False
        self._tasks: set[asyncio.Task[Any]] = set()

    # ------------------------------------------------------------- listeners

    def on(self, event: str, listener: Callable[..., Any] | None = None) -> Any:
        """Call ``listener`` at every ``event``; without one, a decorator.

        Listeners run in the worker's loop and must not block it; a coroutine
        function becomes a task. One that raises is logged and harms no job.
        """
        listeners = self._listening(event)
        if listener is None:
            return lambda fn: (self.on(event, fn), fn)[1]
        listeners.append(function(listener, "listener"))
        return self

    def _listening(self, event: str) -> list[Any]:
        found = self._listeners.get(text(event, "event"))
        if found is None:
            raise ConfigError(f"unknown event {event!r}{suggestion(event, EVENTS)}")
        return found

    def once(self, event: str, listener: Callable[..., Any]) -> Worker:
        """Call ``listener`` at the next ``event`` only."""
        function(listener, "listener")

        def wrapper(*args: Any) -> Any:
            self.off(event, wrapper)
            return listener(*args)

        wrapper.__wrapped__ = listener  # type: ignore[attr-defined]
        self.on(event, wrapper)
        return self

    def off(self, event: str, listener: Callable[..., Any]) -> Worker:
        """Forget a listener; one that is not there is no error."""
        function(listener, "listener")
        kept = self._listening(event)
        for entry in kept:
            if entry is listener or getattr(entry, "__wrapped__", None) is listener:
                kept.remove(entry)
                break
        return self

    def _emit(self, event: str, *args: Any) -> None:
        listeners = self._listeners[event]
        if not listeners:
            if event == "error":
                _log.warning("worker of %s, %s: %s", self.queue, args[1], args[0])
            return
        for listener in tuple(listeners):
            try:
                made = listener(*args)
                if made is not None:
                    self._finish_listener(event, made)
            except _LISTENER_FAULTS:
                _log.exception("a listener of %r raised", event)

    def _finish_listener(self, event: str, made: Any) -> None:
        if asyncio.iscoroutine(made):
            task = asyncio.ensure_future(self._guard(event, made))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _emit_completed(self, jobs: list[JobContext]) -> None:
        """One ``completed`` each; a function of its own because it runs for every job."""
        listeners = self._listeners["completed"]
        if len(listeners) != 1:
            for job in jobs:
                self._emit("completed", job, job._value)
            return
        listener = listeners[0]
        for job in jobs:
            try:
                made = listener(job, job._value)
                if made is not None:
                    self._finish_listener("completed", made)
            except _LISTENER_FAULTS:
                _log.exception("a listener of %r raised", "completed")

    @staticmethod
    async def _guard(event: str, coroutine: Any) -> None:
        try:
            await coroutine
        except _LISTENER_FAULTS:
            _log.exception("a listener of %r raised", event)

    # ------------------------------------------------------------ life cycle

    def _asked_to_close(self) -> bool:
        return self._closed

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        control = Control(
            self.queue,
            self._target,
            self._fn,
            _is_async(self._fn),
            self._settings,
            self.id,
            self._listeners,
            loop,
            self._emit,
            self._emit_completed,
        )
        if self._paused_early:
            control.paused = True
        self._control = control
        try:
            if self._asked_to_close():
                return
            await control.start()
        except BaseException:
            control.channel.close()
            raise
        self._started.set()
        if self._asked_to_close():
            self._begin_close()
        try:
            await control.finished.wait()
        except asyncio.CancelledError:
            # The surrounding task ends: stop in order first, it is bounded in time.
            self._begin_close()
            assert self._closing is not None
            await asyncio.shield(self._closing)
            raise
        if self._closing is None:
            self._begin_close()
        assert self._closing is not None
        await self._closing

    def _begin_close(self) -> None:
        """In the loop's thread."""
        self._closed = True
        control = self._control
        assert control is not None
        if self._closing is None:
            timeout = self._settings.shutdown_timeout
            if self._close_timeout is not None:
                timeout = self._close_timeout
            self._closing = control.loop.create_task(control.close(self._force, timeout))
        elif self._force:
            control.cancel_all("shutdown")
            control._idle.set()

    async def _whole(self) -> None:
        try:
            await self._main()
        finally:
            self._closed = True
            self._emit("closed")
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=1.0)
            self._ended.set()

    def _claim_start(self) -> None:
        with self._lock:
            if self._closed:
                raise ClosedError("the worker was closed")
            if self._was_started:
                raise ConfigError("the worker was started already")
            self._was_started = True
            self._pid = os.getpid()

    async def arun(self) -> None:
        """Run in the current loop until the worker is closed."""
        self._claim_start()
        await self._whole()

    def _thread_main(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._whole())
        except BaseException as exc:
            self._start_error = exc
            if self._started.is_set():
                _log.exception("the worker ended with an error")
        finally:
            self._closed = True
            self._ended.set()
            self._started.set()

    def start(self) -> Worker:
        """Run in a thread of its own; returns when it is connected, raises why it is not."""
        self._claim_start()
        thread = threading.Thread(target=self._thread_main, name=f"qclient-{self.queue}", daemon=True)
        self._thread = thread
        thread.start()
        self._started.wait()
        if self._start_error is not None:
            thread.join()
            raise self._start_error
        return self

    def run(self) -> int:
        """Run until closed, or until SIGTERM or SIGINT; a second signal cancels at once.

        Returns how many jobs had to be abandoned.
        """
        previous: dict[signal.Signals, Any] = {}
        if self._settings.handle_signals and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                previous[number] = signal.signal(number, self._on_signal)
        try:
            try:
                self.start()
            except ClosedError:
                return 0
            # The system may deliver a signal to another thread; this one then runs
            # the handler only when its wait is over. So the wait is short.
            while not self._ended.wait(0.2):
                pass
            assert self._thread is not None
            self._thread.join()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        return self._control.abandoned if self._control is not None else 0

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        force = self._closed
        self._closed = True
        control = self._control
        if control is not None:
            self._force = self._force or force
            control.call_soon(self._begin_close)

    def close(self, *, force: bool = False, timeout: Duration | None = None) -> None:
        """Stop pulling, let active jobs finish, give back the rest, disconnect.

        Waits for active jobs up to ``timeout`` (``shutdown_timeout`` without one),
        with ``force`` not at all. May be called twice, before the start, and from
        inside a processor or listener, where it does not wait for the end.
        """
        flag(force, "force")
        if timeout is not None:
            self._close_timeout = to_seconds(timeout, "timeout")
        if os.getpid() != self._pid:
            return  # the threads of the worker stayed in the parent, and so did its jobs
        self._force = self._force or force
        with self._lock:
            self._closed = True
            if not self._was_started:
                self._was_started = True
                self._ended.set()
                return
        control = self._control
        if control is None:
            if self._thread is not None:
                self._ended.wait()
            return
        control.call_soon(self._begin_close)
        here = threading.current_thread()
        if here is self._thread or here.name.startswith(f"qclient-{self.queue}-"):
            return
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is control.loop:
            return
        self._ended.wait()
        if self._thread is not None:
            self._thread.join()

    async def aclose(self, *, force: bool = False, timeout: Duration | None = None) -> None:
        """Like :meth:`close`, for a worker in the running loop."""
        flag(force, "force")
        if timeout is not None:
            self._close_timeout = to_seconds(timeout, "timeout")
        self._force = self._force or force
        self._closed = True
        control = self._control
        if control is None or control.channel.closed:
            return
        if control.loop is not asyncio.get_running_loop():
            await asyncio.to_thread(self.close, force=force)
            return
        self._begin_close()
        await control.finished.wait()

    def __enter__(self) -> Worker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Worker:
        self._claim_start()
        self._async_main: asyncio.Task[None] = asyncio.ensure_future(self._whole())
        while not self._started.is_set():
            if self._async_main.done():
                self._async_main.result()
                break
            await asyncio.wait({self._async_main}, timeout=0.005)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()
        await self._async_main

    def __del__(self, _warn: Any = warnings.warn) -> None:
        if getattr(self, "_was_started", False) and not self._ended.is_set():
            _warn(f"worker of {self.queue!r} was not closed", ResourceWarning, stacklevel=2, source=self)

    # --------------------------------------------------------------- control

    def pause(self) -> None:
        """Start no further jobs; those that run go on. Buffered ones are given back after 5 s.

        Nothing starts any more once this has returned.
        """
        control = self._control
        if control is None:
            self._paused_early = True
        elif control.in_loop or self._ended.is_set():
            control.pause()
        else:
            applied: SimpleQueue[None] = SimpleQueue()

            def apply() -> None:
                control.pause()
                applied.put(None)

            control.call_soon(apply)
            with contextlib.suppress(Empty):
                applied.get(timeout=PAUSE_WAIT_S)

    def resume(self) -> None:
        """Start jobs again."""
        self._paused_early = False
        if self._control is not None:
            self._control.call_soon(self._control.resume)

    @property
    def concurrency(self) -> int:
        """Jobs that may run at once; can be set while the worker runs."""
        return self._settings.concurrency

    @concurrency.setter
    def concurrency(self, n: int) -> None:
        self._settings.concurrency = checked_concurrency(n)
        if self._control is not None:
            self._control.call_soon(self._control.set_concurrency, n)

    def cancel_job(self, job_id: str, reason: str = "cancelled") -> None:
        """Cancel the delivery of one job that runs here."""
        filled(job_id, "job_id")
        text(reason, "reason")
        if self._control is not None:
            self._control.call_soon(self._control.cancel_id, job_id, reason)

    def cancel_all(self, reason: str = "cancelled") -> None:
        """Cancel every delivery that runs here."""
        text(reason, "reason")
        if self._control is not None:
            self._control.call_soon(self._control.cancel_all, reason)

    def rate_limit(self, duration: Duration) -> None:
        """Start nothing for ``duration``."""
        seconds = to_seconds(duration, "duration")
        if self._control is not None:
            self._control.call_soon(self._control.hold, seconds)

    @property
    def is_running(self) -> bool:
        return self._started.is_set() and not self._closed

    @property
    def is_paused(self) -> bool:
        return self._paused_early if self._control is None else self._control.paused

    @property
    def is_closed(self) -> bool:
        return self._closed

    def wait_ready(self, timeout: Duration | None = None) -> bool:
        """Wait until the worker is connected; False when time ran out."""
        return self._started.wait(None if timeout is None else to_seconds(timeout, "timeout"))

    def wait_closed(self, timeout: Duration | None = None) -> bool:
        """Wait until the worker has ended; False when time ran out."""
        return self._ended.wait(None if timeout is None else to_seconds(timeout, "timeout"))

    def stats(self) -> WorkerStats:
        """Counters as they are now."""
        c = self._control
        if c is None:
            return WorkerStats()
        return WorkerStats(
            active=c.running,
            buffered=len(c._buffer),
            waiting_ack=len(c._gathered) + c._flying,
            completed=c.completed,
            failed=c.failed,
            cancelled=c.cancelled,
            leases_lost=c.leases_lost_n,
            reconnects=c.channel.reconnects,
            ack_frames=c.ack_frames,
            mean_ack_width=c.ack_members / c.ack_frames if c.ack_frames else 0.0,
            fallback_flushes=c.fallback_flushes,
            pull_frames=c.pull_frames,
        )

    def __repr__(self) -> str:
        state = "closed" if self._closed else "running" if self.is_running else "not started"
        return f"<Worker of {self.queue!r} at {self._target}, {state}>"
