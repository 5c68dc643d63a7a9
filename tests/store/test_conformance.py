"""What every store does; a new one joins by being added to ``stores``."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qcore.errors import ClosedError
from qcore.store.base import SIDE_TABLES, Cut, Row, Snapshot, Store, pack_rows
from qcore.store.memory import MemoryStore
from qcore.store.native import NativeSqliteStore
from qcore.store.sqlite import HEAVY_BYTES, INLINE_DATA_BYTES, LOAD_PAGE_ROWS, SqliteStore

Reopen = Callable[[], Store]


class PackingStore(NativeSqliteStore):
    """Takes every row in packed form, as the broker hands them over."""

    def commit(self, cut: Cut, *, sync: bool = False) -> None:
        rows = pack_rows(cut)
        packed = Cut(names=cut.names, queues=cut.queues, meta=cut.meta, side=cut.side)
        packed.packed = [*cut.packed, rows] if rows else cut.packed
        packed.n_packed = cut.n_jobs
        sizes = [len(data) for data in cut.inserts[4::6] if isinstance(data, bytes)]
        packed.largest = max([cut.largest, *sizes])
        super().commit(packed, sync=sync)


@pytest.fixture(params=["memory", "sqlite", "native", "packed"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reopen]:
    """Open a store; each further call closes it and opens it again on the same rows."""
    made: list[Store] = []

    def memory() -> Store:
        made.append(made[-1].reopened() if made and isinstance(made[-1], MemoryStore) else MemoryStore())
        return made[-1]

    def sqlite() -> Store:
        if made:
            made[-1].close()
        kind = {"sqlite": SqliteStore, "native": NativeSqliteStore, "packed": PackingStore}[request.param]
        made.append(kind(tmp_path / "jobs.db"))
        return made[-1]

    yield memory if request.param == "memory" else sqlite
    for store in made:
        store.close()


def contents(snapshot: Snapshot) -> tuple[object, ...]:
    return snapshot.names, snapshot.queues, snapshot.meta, list(snapshot.jobs)


def test_a_new_store_is_empty(reopen: Reopen) -> None:
    assert contents(reopen().load()) == ([], [], {}, [])


def test_everything_comes_back(reopen: Reopen) -> None:
    store = reopen()
    store.commit(
        Cut(
            inserts=[5, 1, 2, b"r5", b"d5", b"x5", 3, 1, 0, b"r3", None, None],
            names=[(2, "sendMail"), (1, "mail \N{GREEK SMALL LETTER OMEGA}")],
            queues=[(1, b"paused")],
            meta={"seq": b"\x05"},
        )
    )
    expected = (
        [(1, "mail \N{GREEK SMALL LETTER OMEGA}"), (2, "sendMail")],
        [(1, b"paused")],
        {"seq": b"\x05"},
        [(3, 1, 0, b"r3", None, None), (5, 1, 2, b"r5", b"d5", b"x5")],
    )
    assert contents(store.load()) == expected
    assert contents(reopen().load()) == expected


@pytest.mark.parametrize("size", [0, 1, INLINE_DATA_BYTES, INLINE_DATA_BYTES + 1, 300_000])
def test_an_update_leaves_the_payload_alone(reopen: Reopen, size: int) -> None:
    data = bytes(size) or None
    store = reopen()
    store.commit(Cut(inserts=[1, 9, 0, b"r", data, None]))
    store.commit(Cut(updates=[1, 4, b"r2", b"result"]))
    assert list(reopen().load().jobs) == [(1, 9, 4, b"r2", data, b"result")]


@pytest.mark.parametrize("old", [None, b"small", b"l" * 5000])
@pytest.mark.parametrize("new", [None, b"SMALL", b"L" * 4000])
def test_an_insert_replaces_every_column(reopen: Reopen, old: bytes | None, new: bytes | None) -> None:
    store = reopen()
    store.commit(Cut(inserts=[1, 1, 1, b"old", old, b"old result"]))
    store.commit(Cut(inserts=[1, 2, 2, b"new", new, None]))
    assert list(store.load().jobs) == [(1, 2, 2, b"new", new, None)]


def test_a_deleted_row_leaves_nothing_behind(reopen: Reopen) -> None:
    store = reopen()
    store.commit(Cut(inserts=[1, 1, 0, b"r", b"big" * 1000, None]))
    store = reopen()
    store.commit(Cut(deletes=[1, 2]))
    store.commit(Cut(inserts=[1, 1, 0, b"again", None, None]))
    assert list(store.load().jobs) == [(1, 1, 0, b"again", None, None)]


@pytest.mark.parametrize("data", [None, b"d", b"big" * 1000])
@pytest.mark.parametrize("result", [b"small", b"large" * 1000])
def test_what_happened_to_a_new_job_may_follow_in_the_same_cut(
    reopen: Reopen, data: bytes | None, result: bytes
) -> None:
    """The rows of a job come one after the other, behind each other in packed form; the last one counts."""
    store = reopen()
    store.commit(Cut(inserts=[1, 1, 1, b"old", None, None]))
    first = [v for seq in range(2, 40) for v in (seq, 1, 1, b"r", data, None)]
    later = Cut(
        inserts=[10, 1, 1, b"again", b"changed", None, 40, 1, 1, b"r", data, None],
        updates=[1, 3, b"new", None, 20, 3, b"done", result, 38, 3, b"done", result],
        deletes=[30, 39],
    )
    cut = Cut(packed=[pack_rows(Cut(inserts=first)), pack_rows(later)], n_packed=45, largest=len(data or b""))
    store.commit(cut if store.takes_packed else cut.unpacked())
    left = [seq for seq in range(2, 41) if seq not in (30, 39)]
    expected: dict[int, Row] = {seq: (seq, 1, 1, b"r", data, None) for seq in left}
    expected[1] = (1, 1, 3, b"new", None, None)
    expected[10] = (10, 1, 1, b"again", b"changed", None)
    for seq in (20, 38):
        expected[seq] = (seq, 1, 3, b"done", data, result)
    assert list(store.load().jobs) == [expected[seq] for seq in sorted(expected)]
    store = reopen()
    assert list(store.load().jobs) == [expected[seq] for seq in sorted(expected)]
    if isinstance(store, SqliteStore):
        (n,) = store._con.execute("SELECT count(*) FROM payloads WHERE seq IN (30, 39)").fetchone()
        assert n == 0, "a payload outlived its job"


def test_names_and_queues_and_meta_are_replaced(reopen: Reopen) -> None:
    store = reopen()
    store.commit(Cut(names=[(1, "a")], queues=[(1, b"x"), (2, b"y")], meta={"k": b"1"}))
    store.commit(Cut(names=[(1, "a")], queues=[(1, None), (2, b"z"), (3, None)], meta={"k": b"2"}))
    assert contents(store.load()) == ([(1, "a")], [(2, b"z")], {"k": b"2"}, [])


def test_side_values_are_replaced_and_removed(reopen: Reopen) -> None:
    store = reopen()
    empty = {table: [] for table in SIDE_TABLES}
    assert store.load().side == empty
    store.commit(
        Cut(side={("logs", 2): b"x", ("logs", 10): b"y", ("schedules", "b"): b"", ("logs", 3): None})
    )
    store.commit(Cut(side={("logs", 2): None, ("schedules", "ä"): b"z", ("schedules", "b"): b"w"}))
    assert reopen().load().side == {
        **empty,
        "logs": [(10, b"y")],
        "schedules": [("b", b"w"), ("ä", b"z")],
    }


def test_an_update_of_no_row_makes_none(reopen: Reopen) -> None:
    store = reopen()
    store.commit(Cut(updates=[1, 1, b"r", None]))
    assert list(store.load().jobs) == []


def test_an_empty_cut_is_no_trouble(reopen: Reopen) -> None:
    store = reopen()
    store.commit(Cut())
    store.commit(Cut(), sync=True)
    assert contents(store.load()) == ([], [], {}, [])


@pytest.mark.parametrize("n", [1, 2, 3, 7, 63, 64, 65, 127, 128, 1000, 1024, 1025, 1800])
def test_any_number_of_rows(reopen: Reopen, n: int) -> None:
    """Statements have few sizes, and are filled up: no row is lost, none is made."""
    store = reopen()
    store.commit(Cut(inserts=[v for seq in range(1, n + 2) for v in (seq, 1, 0, b"%d" % seq, b"d", None)]))
    store.commit(Cut(updates=[v for seq in range(1, n + 1) for v in (seq, 5, b"u%d" % seq, b"x")]))
    assert list(store.load().jobs) == [
        *((seq, 1, 5, b"u%d" % seq, b"d", b"x") for seq in range(1, n + 1)),
        (n + 1, 1, 0, b"%d" % (n + 1), b"d", None),
    ]
    assert [row[0] for row in store.read(range(1, n + 1))] == list(range(1, n + 1))
    store.commit(Cut(deletes=list(range(1, n + 1))))
    assert [row[0] for row in store.load().jobs] == [n + 1]


def test_heavy_values_among_light_ones(reopen: Reopen) -> None:
    def size(seq: int, n: int) -> int:
        return HEAVY_BYTES + seq if (seq + n) % 5 == 0 else seq % 2000

    store = reopen()
    seqs = range(40)
    rows: list[Row] = [(seq, 1, 0, b"r", b"d" * size(seq, 0), b"x" * size(seq, 1)) for seq in seqs]
    store.commit(Cut(inserts=[value for row in rows for value in row]))
    assert list(store.load().jobs) == rows
    store.commit(Cut(updates=[v for seq in seqs for v in (seq, 2, b"u", b"y" * size(seq, 2))]))
    assert list(store.load().jobs) == [(*row[:2], 2, b"u", row[4], b"y" * size(row[0], 2)) for row in rows]


def test_load_pages_over_gaps(reopen: Reopen) -> None:
    store = reopen()
    seqs = random.Random(1).sample(range(1, 10**12), 2 * LOAD_PAGE_ROWS)
    store.commit(Cut(inserts=[v for seq in seqs for v in (seq, 1, 0, b"r", None, None)]))
    assert [row[0] for row in store.load().jobs] == sorted(seqs)


def test_seqs_may_be_anything_that_has_64_bits(reopen: Reopen) -> None:
    seqs = [-(2**63), -1, 0, 1, 2**63 - 1]
    store = reopen()
    store.commit(Cut(inserts=[v for seq in seqs for v in (seq, 1, 0, b"r", None, None)]))
    assert [row[0] for row in store.load().jobs] == seqs


def test_read_skips_what_is_not_there(reopen: Reopen) -> None:
    store = reopen()
    store.commit(Cut(inserts=[2, 1, 0, b"r", b"big" * 1000, None, 4, 1, 0, b"r", None, None]))
    rows: list[Row] = [(2, 1, 0, b"r", b"big" * 1000, None), (4, 1, 0, b"r", None, None)]
    assert store.read([4, 3, 2, 2]) == rows
    assert store.read([]) == []


def test_a_scan_begins_anywhere_and_ends_at_its_limit(reopen: Reopen) -> None:
    store = reopen()
    seqs = [-5, 1, 2, 7, 8, 2**63 - 1]
    rows: list[Row] = [(seq, 1, 0, b"r%d" % seq, b"big" * (seq % 3 * 500), b"x") for seq in seqs]
    store.commit(Cut(inserts=[value for row in reversed(rows) for value in row]))
    store.commit(Cut(updates=[2, 4, b"u", None], deletes=[7]))
    del rows[3]
    rows[2] = (2, 1, 4, b"u", rows[2][4], None)
    for _ in range(2):
        for first in (-(2**63), -5, -4, 0, 1, 2, 3, 7, 8, 9, 2**63 - 1):
            expected = [row for row in rows if row[0] >= first]
            for limit in (0, 1, 2, 5, 100):
                assert store.scan(first, limit) == expected[:limit]
        store = reopen()


def test_a_closed_store_says_so(reopen: Reopen) -> None:
    store = reopen()
    store.close()
    store.close()
    with pytest.raises(ClosedError):
        store.commit(Cut(deletes=[1]))
    with pytest.raises(ClosedError):
        store.load()
    with pytest.raises(ClosedError):
        store.scan(0, 1)
    assert not store.maintain()


def test_any_thread_may_commit(reopen: Reopen) -> None:
    store = reopen()

    def commit(first: int) -> None:
        for seq in range(first, first + 20):
            store.commit(Cut(inserts=[seq, 1, 0, b"r", None, None]))

    threads = [threading.Thread(target=commit, args=(n * 100,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(store.load().jobs)) == 80


def test_status_counts(reopen: Reopen) -> None:
    store = reopen()
    store.commit(Cut(inserts=[1, 1, 0, b"r", None, None], deletes=[5]))
    status = store.status()
    assert status["path"] == store.path
    assert (status["commits"], status["rows"]) == (1, 2)
