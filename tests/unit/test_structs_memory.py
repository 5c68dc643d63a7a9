"""Every structure keeps its content when an allocation fails.

Each change is tried with its first allocation failing, then its second, and so on until
it passes untouched; after each failure the structure must hold what it held before.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qcore.structs import CompletionTokens, DelayHeap, IdTable, SkipList

_testcapi = pytest.importorskip("_testcapi")


def fail_each_allocation(change: Callable[[], object], unchanged: Callable[[], None]) -> int:
    """Run ``change`` until it passes; return how often it failed."""
    failures = 0
    while True:
        failed = False
        _testcapi.set_nomemory(failures, failures + 1)
        try:
            change()
        except MemoryError:
            failed = True
        finally:
            _testcapi.remove_mem_hooks()
        if not failed:
            return failures
        failures += 1
        unchanged()


def test_skiplist_grows() -> None:
    s = SkipList()
    failures = 0
    for i in range(1500):

        def unchanged(i: int = i) -> None:
            s._check()
            assert [entry[3] for entry in s] == list(range(i))

        failures += fail_each_allocation(lambda i=i: s.insert(0, 0, i, i), unchanged)  # type: ignore[misc]
    assert failures >= 5
    s._check()
    assert [entry[3] for entry in s] == list(range(1500))


@pytest.mark.parametrize("nth", range(8))
def test_skiplist_compaction_that_fails_is_put_off(nth: int) -> None:
    s = SkipList()
    for i in range(10_000):
        s.insert(i % 3, 0, i, i)
    for i in range(10_000):
        if i % 20:
            s.remove(i % 3, 0, i)
    _testcapi.set_nomemory(nth, nth + 1)
    try:
        s.insert(9, 0, 0, 1)
    finally:
        _testcapi.remove_mem_hooks()
    s._check()
    assert [entry[3] for entry in s] == [*sorted(range(0, 10_000, 20), key=lambda i: (i % 3, i)), 1]
    s.insert(9, 0, 1, 1)
    s._check()
    assert s.nbytes < 50_000


def test_delayheap_grows() -> None:
    # Handles stay below 257, so that returning one allocates nothing.
    h = DelayHeap()
    failures = 0
    for i in range(250):

        def unchanged(i: int = i) -> None:
            h._check()
            assert sorted(h.items()) == [(-k, 0, k) for k in reversed(range(i))]

        failures += fail_each_allocation(lambda i=i: h.push(-i, 0, i), unchanged)  # type: ignore[misc]
    assert failures >= 5
    h._check()
    assert len(h) == 250


def test_tokens_grow() -> None:
    # Evicted keys stay below 257, so that returning one allocates nothing.
    t = CompletionTokens(200)
    failures = 0
    for i in range(450):
        before = list(range(max(0, i - 200), i))

        def unchanged(before: list[int] = before) -> None:
            t._check()
            assert list(t) == before

        failures += fail_each_allocation(lambda i=i: t.add(i, 0), unchanged)  # type: ignore[misc]
        t.delete(i)
        t.add(i, 0)
    assert failures >= 5
    assert list(t) == list(range(250, 450))


def test_idtable_grows() -> None:
    table = IdTable()
    failures = 0
    for i in range(1, 1000):

        def unchanged(i: int = i) -> None:
            table._check()
            assert len(table) == i - 1

        failures += fail_each_allocation(lambda i=i: table.put(i, i), unchanged)  # type: ignore[misc]
    assert failures >= 5
    assert all(i in table.find(i) for i in range(1, 1000))


def test_idtable_that_cannot_shrink_goes_on() -> None:
    table = IdTable()
    for i in range(1, 1000):
        table.put(i, i)
    size = table.nbytes
    for i in range(1, 990):
        _testcapi.set_nomemory(0, 1)
        try:
            table.delete(i, i)
        finally:
            _testcapi.remove_mem_hooks()
    table._check()
    assert table.nbytes == size
    table.delete(990, 990)
    table._check()
    assert table.nbytes < size
    assert all(i in table.find(i) for i in range(991, 1000))
