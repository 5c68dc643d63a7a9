"""Threads for processors that are plain functions.

Outcomes are handed over through a deque and one wake flag, so that a wave of
completions wakes the event loop once. The threads are daemons and no exit hook
waits for them.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from qclient.delivery import JobContext, set_current

Outcome = tuple[JobContext, Any, BaseException | None]


class ProcessorThreads:
    """Up to ``size`` threads, started as they are needed."""

    def __init__(
        self,
        fn: Callable[[JobContext], Any],
        finish: Callable[[JobContext, Any], Any],
        deliver: Callable[[list[Outcome]], None],
        loop: asyncio.AbstractEventLoop,
        name: str,
    ) -> None:
        self.size = 1
        self._fn = fn
        self._finish = finish
        self._deliver = deliver
        self._loop = loop
        self._name = name
        self._work: SimpleQueue[JobContext | None] = SimpleQueue()
        self._done: deque[Outcome] = deque()
        self._woken = False
        self._threads: list[threading.Thread] = []
        self._unfinished = 0

    def submit(self, job: JobContext) -> None:
        """Run ``job``; called in the loop's thread."""
        self._unfinished += 1
        if self._unfinished > len(self._threads) and len(self._threads) < self.size:
            thread = threading.Thread(
                target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        self._work.put(job)

    def _run(self) -> None:
        work, done, fn, finish = self._work, self._done, self._fn, self._finish
        while (job := work.get()) is not None:
            try:
                set_current(job)
                outcome: Outcome = (job, finish(job, fn(job)), None)
            except BaseException as exc:  # whatever a processor raises is its job's failure
                outcome = (job, None, exc)
            del job
            done.append(outcome)
            del outcome
            if not self._woken:
                self._woken = True
                try:
                    self._loop.call_soon_threadsafe(self._wake)
                except RuntimeError:  # the loop is gone: the worker gave this job up
                    return

    def _wake(self) -> None:
        self._woken = False
        n = len(self._done)
        if n:
            self._unfinished -= n
            self._deliver([self._done.popleft() for _ in range(n)])

    def stop(self) -> None:
        """Let every thread end after the job it is running."""
        for _ in self._threads:
            self._work.put(None)
        self._threads.clear()
