"""Time of single operations of the structures, called from Python."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from qcore.structs import CompletionTokens, DelayHeap, IdTable, SkipList

N = 10_000
RNG = random.Random(1)
NUMBERS = [RNG.getrandbits(60) for _ in range(N)]

Key = Callable[[int], tuple[int, int, int]]
ARRIVALS: dict[str, Key] = {
    "equal": lambda i: (0, 0, i),
    "newest_first": lambda i: (0, -1, -i),
    "four_priorities": lambda i: (NUMBERS[i] % 4, 0, i),
    "random": lambda i: (NUMBERS[i], 0, i),
}


@pytest.mark.parametrize("arrival", ARRIVALS)
def test_skiplist_insert(benchmark: BenchmarkFixture, arrival: str) -> None:
    keys = [ARRIVALS[arrival](i) for i in range(N)]

    def run() -> SkipList:
        s = SkipList()
        insert = s.insert
        for a, b, c in keys:
            insert(a, b, c, 1)
        return s

    assert len(benchmark(run)) == N


@pytest.mark.parametrize("arrival", ARRIVALS)
def test_skiplist_pop(benchmark: BenchmarkFixture, arrival: str) -> None:
    def fill() -> tuple[tuple[SkipList], dict[str, object]]:
        s = SkipList()
        for i in range(N):
            s.insert(*ARRIVALS[arrival](i), 1)
        return (s,), {}

    def run(s: SkipList) -> SkipList:
        pop = s.pop
        for _ in range(N):
            pop()
        return s

    assert len(benchmark.pedantic(run, setup=fill, rounds=20)) == 0


def test_delayheap_push_and_pop(benchmark: BenchmarkFixture) -> None:
    def run() -> DelayHeap:
        h = DelayHeap()
        for due in NUMBERS:
            h.push(due, 0, 1)
        for _ in range(N):
            h.pop()
        return h

    assert len(benchmark(run)) == 0


def test_delayheap_renew(benchmark: BenchmarkFixture) -> None:
    # Leases: each element in turn becomes the latest.
    h = DelayHeap()
    handles = [h.push(i, 0, 1) for i in range(N)]
    clock = [N]

    def run() -> None:
        now = clock[0]
        for i, handle in enumerate(handles):
            h.change(handle, now + i, 0)
        clock[0] = now + N

    benchmark(run)
    assert len(h) == N


def test_tokens_add(benchmark: BenchmarkFixture) -> None:
    def run() -> CompletionTokens:
        t = CompletionTokens(N // 2)
        for key in NUMBERS:
            t.add(key, 0)
        return t

    assert len(benchmark(run)) == N // 2


def test_idtable_put_and_find(benchmark: BenchmarkFixture) -> None:
    def run() -> int:
        table = IdTable()
        for h in NUMBERS:
            table.put(h, 1)
        return sum(len(table.find(h)) for h in NUMBERS)

    assert benchmark(run) >= N
