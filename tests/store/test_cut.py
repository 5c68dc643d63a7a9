"""Merging of a cut that failed under the one that came after it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcore.store.base import Cut, pack_rows
from qcore.store.memory import MemoryStore

INSERT = [7, 1, 0, b"old", b"data", None]
UPDATE = [7, 2, b"new", b"result"]


def test_counts_rows() -> None:
    assert Cut().is_empty
    assert Cut().n_jobs == 0
    cut = Cut(inserts=INSERT * 2, updates=UPDATE, deletes=[1, 2, 3])
    assert cut.n_jobs == 6
    assert not cut.is_empty


@pytest.mark.parametrize(
    "cut",
    [
        Cut(names=[(1, "q")]),
        Cut(queues=[(1, None)]),
        Cut(meta={"k": b""}),
        Cut(side={("logs", 1): None}),
        Cut(deletes=[1]),
    ],
)
def test_any_part_makes_a_cut_not_empty(cut: Cut) -> None:
    assert not cut.is_empty


@pytest.mark.parametrize(
    ("older", "newer", "merged"),
    [
        (Cut(inserts=INSERT), Cut(updates=UPDATE), Cut(inserts=[7, 1, 2, b"new", b"data", b"result"])),
        (Cut(inserts=INSERT), Cut(deletes=[7]), Cut(deletes=[7])),
        (
            Cut(inserts=INSERT),
            Cut(inserts=[7, 2, 3, b"x", None, None]),
            Cut(inserts=[7, 2, 3, b"x", None, None]),
        ),
        (Cut(updates=UPDATE), Cut(updates=[7, 3, b"y", None]), Cut(updates=[7, 3, b"y", None])),
        (Cut(updates=UPDATE), Cut(deletes=[7]), Cut(deletes=[7])),
        (Cut(updates=UPDATE), Cut(inserts=INSERT), Cut(inserts=INSERT)),
        (Cut(deletes=[7]), Cut(inserts=INSERT), Cut(inserts=INSERT)),
        (Cut(deletes=[7]), Cut(deletes=[7, 8]), Cut(deletes=[7, 8])),
        (
            Cut(names=[(1, "a"), (2, "b")]),
            Cut(names=[(2, "c"), (3, "d")]),
            Cut(names=[(1, "a"), (2, "c"), (3, "d")]),
        ),
        (
            Cut(queues=[(1, b"a"), (2, b"b")]),
            Cut(queues=[(1, None), (2, b"c")]),
            Cut(queues=[(1, None), (2, b"c")]),
        ),
        (
            Cut(meta={"a": b"1", "b": b"1"}),
            Cut(meta={"b": b"2"}),
            Cut(meta={"a": b"1", "b": b"2"}),
        ),
        (
            Cut(side={("logs", 1): b"1", ("logs", 2): None}),
            Cut(side={("logs", 1): None, ("minutes", 1): b"m"}),
            Cut(side={("logs", 1): None, ("logs", 2): None, ("minutes", 1): b"m"}),
        ),
        (Cut(inserts=INSERT), Cut(), Cut(inserts=INSERT)),
        (Cut(), Cut(inserts=INSERT), Cut(inserts=INSERT)),
    ],
)
def test_the_newer_row_wins(older: Cut, newer: Cut, merged: Cut) -> None:
    assert older.merge_under(newer) == merged


def test_merging_leaves_its_arguments_alone() -> None:
    older, newer = Cut(inserts=list(INSERT)), Cut(updates=list(UPDATE), deletes=[8])
    older.merge_under(newer)
    assert older == Cut(inserts=INSERT)
    assert newer == Cut(updates=UPDATE, deletes=[8])


@st.composite
def histories(draw: st.DrawFn) -> list[Cut]:
    """Draw cuts as an engine takes them: only rows that exist are updated or deleted."""
    alive: set[int] = set()
    cuts = []
    next_seq = 1
    for _ in range(draw(st.integers(1, 5))):
        cut = Cut()
        blob = st.binary(max_size=2)
        for seq in sorted(alive):
            match draw(st.sampled_from(["keep", "update", "replace", "delete"])):
                case "update":
                    cut.updates += [seq, draw(st.integers(0, 9)), draw(blob), draw(st.none() | blob)]
                case "replace":
                    cut.inserts += [seq, 1, draw(st.integers(0, 9)), draw(blob), draw(blob), None]
                case "delete":
                    cut.deletes.append(seq)
                    alive.remove(seq)
        for _ in range(draw(st.integers(0, 3))):
            cut.inserts += [next_seq, 2, 0, draw(blob), draw(st.none() | blob), None]
            alive.add(next_seq)
            next_seq += 1
        cut.queues = [(draw(st.integers(1, 2)), draw(st.none() | blob))]
        cuts.append(cut)
    return cuts


@given(histories())
def test_one_merged_cut_does_what_all_of_them_do(cuts: list[Cut]) -> None:
    apart, merged = MemoryStore(), MemoryStore()
    whole = Cut()
    for cut in cuts:
        apart.commit(cut)
        whole = whole.merge_under(cut)
    merged.commit(whole)
    left, right = apart.load(), merged.load()
    assert list(left.jobs) == list(right.jobs)
    assert left.queues == right.queues
    seqs = [*whole.inserts[::6], *whole.updates[::4], *whole.deletes]
    assert len(seqs) == len(set(seqs))


@given(histories())
def test_of_packed_rows_of_a_job_the_last_one_counts(cuts: list[Cut]) -> None:
    apart, together = MemoryStore(), MemoryStore()
    whole = Cut(packed=[pack_rows(cut) for cut in cuts])
    for cut in cuts:
        apart.commit(Cut(cut.inserts, cut.updates, cut.deletes))
    unpacked = whole.unpacked()
    seqs = [*unpacked.inserts[::6], *unpacked.updates[::4], *unpacked.deletes]
    assert len(seqs) == len(set(seqs))
    together.commit(unpacked)
    assert list(together.load().jobs) == list(apart.load().jobs)


def test_rows_that_were_packed_are_merged_as_what_they_come_to() -> None:
    buffers = [pack_rows(Cut(inserts=INSERT)), pack_rows(Cut(updates=UPDATE))]
    failed = Cut(packed=buffers, n_packed=2)
    assert failed.merge_under(Cut(updates=[7, 3, b"y", None])) == Cut(inserts=[7, 1, 3, b"y", b"data", None])
    assert failed.merge_under(Cut(deletes=[7])) == Cut(deletes=[7])
