"""Counting the names of one file, in a pool of processes.

Counting keeps a processor busy, so threads would wait for each other. The worker's
threads hand the files to this pool and wait instead.
"""

from __future__ import annotations

import collections
import io
import multiprocessing
import os
import signal
import threading
import tokenize
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool


def count_names(path: str) -> dict[str, int]:
    """Count every name and keyword in one Python file.

    :raises SyntaxError: the file is no Python, or has an encoding that is not known
    """
    with tokenize.open(path) as source:
        text = source.read()
    if "\0" in text:
        raise SyntaxError("source code cannot contain null bytes")
    names: collections.Counter[str] = collections.Counter()
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME:
                names[token.string] += 1
    except tokenize.TokenError as exc:
        raise SyntaxError(exc.args[0]) from None
    return dict(names)


def _end_with_parent() -> None:
    """In a child: leave when the parent is gone, however it went."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


class CountingPool:
    """Up to ``n_processes`` children that count; thread-safe."""

    def __init__(self, n_processes: int) -> None:
        self._n_processes = n_processes
        self._lock = threading.Lock()
        self._closed = False
        self._executor = self._new_executor()

    def _new_executor(self) -> ProcessPoolExecutor:
        # Spawned, not forked: this process has an engine and threads.
        return ProcessPoolExecutor(
            self._n_processes,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_end_with_parent,
        )

    def count(self, path: str) -> dict[str, int]:
        """Count one file and wait for the result."""
        # A child starts with the signal mask of the thread that needed it: Ctrl-C is
        # for the parent, which lets its children finish the files they are at.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        executor = self._executor
        try:
            return executor.submit(count_names, path).result()
        except BrokenProcessPool:
            self._replace(executor)
            raise

    def _replace(self, broken: ProcessPoolExecutor) -> None:
        """A child died: the attempts that were running have failed, the next ones get a new pool."""
        with self._lock:
            if self._executor is broken and not self._closed:
                self._executor = self._new_executor()
        broken.shutdown(wait=False)

    def close(self) -> None:
        """End the children after the files they are at."""
        with self._lock:
            self._closed = True
        self._executor.shutdown(wait=True, cancel_futures=True)
