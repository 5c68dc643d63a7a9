"""The committing thread, over a store in memory and over a file."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import pytest

from qcore.errors import StoreError
from qcore.store.base import Cut, Row, Store, StoreFault
from qcore.store.memory import MemoryStore
from qcore.store.sqlite import SqliteStore
from qcore.store.writer import Writer

Rows = Callable[[Store], list[Row]]


def insert(seq: int) -> Cut:
    return Cut(inserts=[seq, 1, 0, b"r", b"d", None])


def test_commits_and_tells() -> None:
    done: queue.Queue[tuple[int, StoreError | None]] = queue.Queue()
    store = MemoryStore()
    writer = Writer(store, lambda epoch, error: done.put((epoch, error)))
    assert writer.idle
    writer.submit(41, insert(1))
    assert done.get(timeout=10) == (41, None)
    assert writer.idle
    assert len(list(store.load().jobs)) == 1
    writer.close()


def test_the_next_cut_may_be_submitted_from_on_done(store: SqliteStore, rows_of: Rows) -> None:
    finished = threading.Event()

    def on_done(epoch: int, error: StoreError | None) -> None:
        if epoch == 50 or error is not None:
            finished.set()
        else:
            writer.submit(epoch + 1, insert(epoch + 1), sync=epoch % 10 == 0)

    writer = Writer(store, on_done)
    writer.submit(1, insert(1))
    assert finished.wait(30)
    writer.close()
    assert [row[0] for row in rows_of(store)] == list(range(1, 51))


def test_one_cut_at_a_time() -> None:
    gate, inside = threading.Event(), threading.Event()

    class Slow(MemoryStore):
        def commit(self, cut: Cut, *, sync: bool = False) -> None:
            inside.set()
            gate.wait(30)
            super().commit(cut, sync=sync)

    writer = Writer(Slow(), lambda epoch, error: None)
    writer.submit(1, insert(1))
    assert inside.wait(30)
    assert not writer.idle
    with pytest.raises(RuntimeError, match="outstanding"):
        writer.submit(2, insert(2))
    with pytest.raises(RuntimeError, match="outstanding"):
        writer.commit_here(insert(2))
    gate.set()
    writer.close()


def test_a_failed_cut_is_kept_and_merged() -> None:
    done: queue.Queue[tuple[int, StoreError | None]] = queue.Queue()
    store = MemoryStore()
    writer = Writer(store, lambda epoch, error: done.put((epoch, error)))
    full = store.broken = StoreFault("no space", "full")
    writer.submit(1, insert(1))
    assert done.get(timeout=10) == (1, full)
    store.broken = None
    failed = writer.take_failed()
    assert failed == insert(1)
    assert writer.take_failed() is None
    writer.submit(2, failed.merge_under(Cut(updates=[1, 3, b"u", None])))
    assert done.get(timeout=10) == (2, None)
    assert list(store.load().jobs) == [(1, 1, 3, b"u", b"d", None)]
    writer.close()


def test_commit_here_keeps_its_cut_too() -> None:
    store = MemoryStore()
    writer = Writer(store, lambda epoch, error: None)
    store.broken = StoreFault("no space", "full")
    with pytest.raises(StoreFault):
        writer.commit_here(insert(1))
    assert writer.idle
    assert writer.take_failed() == insert(1)
    store.broken = None
    writer.commit_here(insert(1))
    assert len(list(store.load().jobs)) == 1
    writer.close()


def test_close_finishes_the_outstanding_cut() -> None:
    done: list[int] = []
    store = MemoryStore()
    writer = Writer(store, lambda epoch, error: done.append(epoch))
    writer.submit(1, insert(1))
    writer.close()
    writer.close()
    assert done == [1]
    with pytest.raises(RuntimeError, match="closed"):
        writer.submit(2, insert(2))


def test_any_failure_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    done: queue.Queue[StoreError | None] = queue.Queue()
    writer = Writer(MemoryStore(), lambda epoch, error: done.put(error))
    writer.submit(1, Cut(queues=[(1, b"a", b"b")]))  # type: ignore[list-item]
    error = done.get(timeout=10)
    assert isinstance(error, StoreFault)
    assert writer.take_failed() is not None
    writer.close()
    assert "unexpected" in caplog.text


def test_replies_do_not_wait_for_maintenance() -> None:
    order: queue.Queue[str] = queue.Queue()

    class Recording(MemoryStore):
        def maintain(self) -> bool:
            order.put("maintain")
            return False

    writer = Writer(Recording(), lambda epoch, error: order.put("done"))
    writer.submit(1, insert(1))
    assert [order.get(timeout=10), order.get(timeout=10)] == ["done", "maintain"]
    writer.close()


def test_maintenance_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qcore.store.writer.MAINTENANCE_RETRY_S", 0.001)
    enough = threading.Event()

    class Pinned(MemoryStore):
        calls = 0

        def maintain(self) -> bool:
            self.calls += 1
            if self.calls == 3:
                enough.set()
            return not enough.is_set()

    writer = Writer(Pinned(), lambda epoch, error: None)
    writer.submit(1, insert(1))
    assert enough.wait(30)
    writer.close()


def test_commit_here_leaves_the_checkpoint_to_the_thread() -> None:
    ran: queue.Queue[str] = queue.Queue()

    class Due(MemoryStore):
        wants_maintenance = True

        def maintain(self) -> bool:
            ran.put(threading.current_thread().name)
            return False

    writer = Writer(Due(), lambda epoch, error: None)
    writer.commit_here(insert(1))
    assert ran.get(timeout=10) == "qcore-writer"
    writer.close()
