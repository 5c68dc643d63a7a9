"""What a cut costs on disk, in time: rows by kind and size of the cut.

Run with ``pytest tests/benchmarks --benchmark-only``.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from qcore.store.base import Cut
from qcore.store.sqlite import SqliteStore
from qcore.store.writer import Writer

RECORD = random.Random(1).randbytes(90)
DATA = random.Random(2).randbytes(100)
RESULT = random.Random(3).randbytes(20)


def inserts(seqs: range) -> Cut:
    return Cut(inserts=[value for seq in seqs for value in (seq, 1, 0, RECORD, DATA, None)])


def updates(seqs: range) -> Cut:
    return Cut(updates=[value for seq in seqs for value in (seq, 3, RECORD, RESULT)])


def deletes(seqs: range) -> Cut:
    return Cut(deletes=list(seqs))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(tmp_path / "jobs.db")
    yield made
    made.close()


@pytest.mark.parametrize("kind", [inserts, updates, deletes])
@pytest.mark.parametrize("n_rows", [1, 50, 1000])
def test_commit(benchmark: Any, store: SqliteStore, kind: Callable[[range], Cut], n_rows: int) -> None:
    rounds = 100
    if kind is not inserts:
        store.commit(inserts(range(n_rows * rounds)))
        store.maintain()
    cuts = iter([kind(range(n * n_rows, (n + 1) * n_rows)) for n in range(rounds)])

    def commit(cut: Cut) -> None:
        store.commit(cut)
        store.maintain()

    benchmark.extra_info["rows"] = n_rows
    benchmark.pedantic(commit, setup=lambda: ((next(cuts),), {}), rounds=rounds)


def test_commit_synced(benchmark: Any, store: SqliteStore) -> None:
    seqs = count()
    benchmark.pedantic(
        lambda cut: store.commit(cut, sync=True),
        setup=lambda: ((inserts(range(seq := next(seqs), seq + 1)),), {}),
        rounds=50,
    )


@pytest.mark.parametrize("here", [True, False], ids=["in the caller", "in the writer"])
def test_one_row_and_its_answer(benchmark: Any, store: SqliteStore, here: bool) -> None:
    """The hop to the committing thread and back, against no hop."""
    done = threading.Event()
    writer = Writer(store, lambda epoch, error: done.set())
    seqs = count()

    def commit(cut: Cut) -> None:
        if here:
            writer.commit_here(cut)
        else:
            done.clear()
            writer.submit(0, cut)
            done.wait()

    benchmark.pedantic(commit, setup=lambda: ((inserts(range(seq := next(seqs), seq + 1)),), {}), rounds=300)
    writer.close()


def test_load(benchmark: Any, store: SqliteStore) -> None:
    store.commit(inserts(range(100_000)))
    store.maintain()
    assert benchmark.pedantic(lambda: sum(1 for _ in store.load().jobs), rounds=3) == 100_000
