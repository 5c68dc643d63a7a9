"""The thread that commits, so that the owner of the engine does not wait for the disk."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeAlias

from qcore.errors import StoreError, described
from qcore.store.base import Cut, Store, StoreFault

#: While something keeps the store from tidying up, it is tried again this often.
MAINTENANCE_RETRY_S = 1.0

_Task: TypeAlias = tuple[int, Cut, bool]
_MAINTAIN: _Task = (0, Cut(), False)

_log = logging.getLogger("qcore.store")


class Writer:
    """Commit one cut at a time to ``store`` and tell ``on_done(epoch, error)``.

    ``on_done`` runs in the thread of the writer, after the commit and before any
    maintenance, so that replies do not wait for a checkpoint; the writer is idle
    by then, so it may submit the next cut. When a commit fails, the writer keeps
    its cut for :meth:`take_failed`. The thread is started by the first submit.

    Thread-safety: one caller at a time may submit or commit, under the lock that
    guards the engine; anybody may read ``idle``.
    """

    def __init__(self, store: Store, on_done: Callable[[int, StoreError | None], None]) -> None:
        self._store = store
        self._on_done = on_done
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._busy = False
        self._failed: Cut | None = None
        self._closed = False

    @property
    def idle(self) -> bool:
        """Tell whether a cut may be handed over: none is outstanding."""
        return not self._busy

    def submit(self, epoch: int, cut: Cut, sync: bool = False) -> None:
        """Hand a cut over; only when :attr:`idle`. Returns at once.

        Raises RuntimeError when a cut is outstanding or the writer is closed.
        """
        self._claim()
        self._start()
        self._tasks.put((epoch, cut, sync))

    def commit_here(self, cut: Cut, sync: bool = False) -> None:
        """Commit in the calling thread; only when :attr:`idle`.

        The hop to the writer and back costs more than a small commit. ``on_done``
        is not called; a checkpoint that has become due is left to the thread.
        Raises StoreError; after that, or an interrupt, the cut is kept as a submitted one is.
        """
        self._claim()
        try:
            self._store.commit(cut, sync=sync)
        except BaseException:
            self._failed = cut
            raise
        finally:
            self._busy = False
        if self._store.wants_maintenance:
            self._start()
            self._tasks.put(_MAINTAIN)

    def take_failed(self) -> Cut | None:
        """Give back the cut whose commit failed, once.

        The next cut to be written is that one with the changes since then merged
        over it: ``failed.merge_under(newer)``.
        """
        cut, self._failed = self._failed, None
        return cut

    def close(self) -> None:
        """Finish the outstanding cut, its ``on_done`` included, and end the thread.

        Not to be called from ``on_done``. The store stays open.
        """
        self._closed = True
        thread, self._thread = self._thread, None
        if thread is not None:
            self._tasks.put(None)
            thread.join()

    def _claim(self) -> None:
        if self._closed:
            raise RuntimeError("the writer is closed")
        if self._busy:
            raise RuntimeError("a cut is outstanding")
        self._busy = True

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="qcore-writer", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        again = False
        while True:
            try:
                if self._store.wants_maintenance:  # a further slice, unless a cut has come
                    task = self._tasks.get_nowait()
                else:
                    task = self._tasks.get(timeout=MAINTENANCE_RETRY_S if again else None)
            except Empty:
                task = _MAINTAIN
            if task is None:
                return
            if task is not _MAINTAIN:
                self._commit(*task)
            again = self._store.maintain()

    def _commit(self, epoch: int, cut: Cut, sync: bool) -> None:
        error: StoreError | None = None
        try:
            self._store.commit(cut, sync=sync)
        except StoreError as failure:
            error = failure
        except Exception as failure:
            # A waiting reply must never be left without an answer.
            _log.error("commit failed in an unexpected way: %s", described(failure))
            error = StoreFault(f"unexpected {type(failure).__name__}")
        if error is not None:
            self._failed = cut
        self._busy = False
        try:
            self._on_done(epoch, error)
        except Exception as failure:
            _log.error("on_done failed: %s", described(failure))
