from __future__ import annotations

import heapq
import pickle
import random
import sys
from collections.abc import Callable

import pytest

from qcore.reference import DelayHeap as PlainDelayHeap
from qcore.structs import DelayHeap

BOTH = pytest.mark.parametrize("make", [DelayHeap, PlainDelayHeap], ids=["compiled", "plain"])
Make = Callable[[], DelayHeap]
LEAST, MOST = -(2**63), 2**63 - 1


@BOTH
def test_empty(make: Make) -> None:
    h = make()
    assert len(h) == h.n == 0
    assert h.items() == []
    with pytest.raises(IndexError, match="empty"):
        h.first()
    with pytest.raises(IndexError, match="empty"):
        h.pop()
    h._check()


@BOTH
def test_order_is_by_due_then_tie(make: Make) -> None:
    times = [(due, tie) for due in (LEAST, -1, 0, MOST) for tie in (LEAST, 0, MOST)]
    h = make()
    for i, (due, tie) in enumerate(random.Random(1).sample(times, len(times))):
        h.push(due, tie, i)
    h._check()
    assert h.first()[:2] == times[0]
    assert [h.pop()[:2] for _ in times] == times


@BOTH
def test_change_both_ways(make: Make) -> None:
    h = make()
    handles = {item: h.push(10 * item, 0, item) for item in range(1, 30)}
    h.change(handles[20], 5, 0)
    h.change(handles[1], 1000, 0)
    h.change(handles[7], 70, 0)
    h._check()
    assert h.pop() == (5, 0, 20)
    out = [h.pop()[2] for _ in range(len(h))]
    assert out == [item for item in range(2, 30) if item != 20] + [1]


@BOTH
@pytest.mark.parametrize("victim", range(1, 12))
def test_remove_each_place(make: Make, victim: int) -> None:
    h = make()
    handles = {item: h.push(item * 7 % 12, 0, item) for item in range(1, 12)}
    assert h.remove(handles[victim]) == victim
    h._check()
    assert handles[victim] not in h
    assert [h.pop()[2] for _ in range(10)] == sorted(
        (item for item in range(1, 12) if item != victim), key=lambda item: item * 7 % 12
    )


def test_removal_can_move_the_last_element_up() -> None:
    # The last element replaces the removed one and is earlier than its new parent.
    h = DelayHeap()
    dues = [0, 100, 1, 1, 1, 101, 102, 103, 104, 2]
    handles = [h.push(due, 0, i) for i, due in enumerate(dues)]
    h.remove(handles[6])
    h._check()
    assert [h.pop()[0] for _ in range(9)] == sorted(dues[:6] + dues[7:])


@BOTH
def test_wrong_handles(make: Make) -> None:
    h = make()
    gone = h.push(1, 1, 1)
    kept = h.push(2, 2, 2)
    h.remove(gone)
    for handle in (0, gone, kept + 1, 2**32 - 1):
        assert handle not in h
        with pytest.raises(KeyError):
            h.remove(handle)
        with pytest.raises(KeyError):
            h.change(handle, 0, 0)
    assert kept in h
    h.clear()
    assert kept not in h


def test_handles_are_dense_and_never_zero() -> None:
    h = DelayHeap()
    handles = [h.push(i, 0, i) for i in range(1000)]
    assert sorted(handles) == list(range(1, 1001))
    for handle in handles[::2]:
        h.remove(handle)
    again = [h.push(i, 0, i) for i in range(500)]
    assert sorted(again) == sorted(handles[::2])


@pytest.mark.parametrize("seed", range(4))
def test_sorts_like_heapq(seed: int) -> None:
    rng = random.Random(seed)
    h = DelayHeap()
    model: list[tuple[int, int, int]] = []
    for item in range(3000):
        entry = (rng.randrange(100), item, item)
        h.push(*entry)
        heapq.heappush(model, entry)
        if rng.random() < 0.3:
            assert h.pop() == heapq.heappop(model)
    h._check()
    assert [h.pop() for _ in range(len(h))] == sorted(model)


def test_bytes_per_element_and_shrinking() -> None:
    h = DelayHeap()
    for i in range(100_000):
        h.push(-i, 0, i)
    assert h.nbytes / len(h) <= 28 * 1.5
    flood = h.nbytes
    while len(h) > 1000:
        h.pop()
    h._check()
    assert h.nbytes < flood / 4
    while len(h):
        h.pop()
    assert h.nbytes < 3000
    assert h.push(1, 1, 1) == 1


def test_sizeof_counts_the_storage() -> None:
    h = DelayHeap()
    empty = sys.getsizeof(h)
    h.push(0, 0, 0)
    assert sys.getsizeof(h) == empty + h.nbytes


def test_not_pickled() -> None:
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(DelayHeap())
