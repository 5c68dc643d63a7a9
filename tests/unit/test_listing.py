"""Listings and counts that do not look at every job."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcore.engine.engine import Engine
from qcore.engine.listing import Tally

NOW = 1_800_000_000_000
SEED = bytes(range(16))


@given(st.lists(st.tuples(st.sampled_from([0.0, -0.0, 1.5, -3.0, 1e300, 7.0]), st.booleans()), max_size=200))
def test_a_tally_is_a_counter(steps: list[tuple[float, bool]]) -> None:
    tally, model = Tally(), Counter[float]()
    for priority, leaves in steps:
        if leaves and not model[priority]:
            continue
        by = -1 if leaves else 1
        tally.count(priority, by)
        model[priority] += by
        assert tally.total == model.total()
        assert tally.counts() == +model


def test_a_tally_forgets_priorities_that_are_gone() -> None:
    tally = Tally()
    for i in range(100_000):
        tally.count(i / 7, 1)
        tally.count(i / 7, -1)
    assert tally.counts() == {}
    assert not tally.overflown


def test_a_tally_of_too_many_priorities_only_counts_until_it_is_empty() -> None:
    tally = Tally()
    for i in range(5_000):
        tally.count(i, 1)
    assert tally.counts() is None
    assert tally.total == 5_000
    for i in range(5_000):
        tally.count(i, -1)
    assert tally.counts() == {}
    tally.count(3, 1)
    assert tally.counts() == {3.0: 1}


@pytest.mark.parametrize("n", [3, 1_500])
def test_defect_51_counts_by_priority_are_those_of_the_jobs(n: int) -> None:
    engine = Engine(SEED)
    for i in range(n):
        engine.push("q", None, NOW, priority=i, delay_ms=i % 2 * 1000)
        engine.push("q", None, NOW, priority=0)
    assert engine.counts_by_priority("q") == {float(i): 1 + n * (i == 0) for i in range(n)}
    engine._check()


def test_a_listing_follows_every_change_of_state() -> None:
    """The index is built by the first listing, in the middle of everything."""
    engine = Engine(SEED, max_completed=3)
    ids = [engine.push("q", b"\xc0", NOW + i, attempts=1 + i % 2) for i in range(12)]
    assert engine.list_jobs("q", NOW, limit=100) == ids
    states: dict[str, list[str]] = {"active": [], "completed": [], "failed": [], "delayed": []}
    for i in range(8):
        got = engine.pull("q", NOW + 20, 0)
        assert got is not None
        if i % 4 == 0:
            states["active"].append(got[0])
        elif i % 4 == 1:
            engine.fail(got[0], NOW + 20 + i)
            states["failed" if engine.state(got[0]) == "failed" else "delayed"].append(got[0])
        else:
            engine.ack(got[0], NOW + 20 + i)
            states["completed"].append(got[0])
        engine._check()
    states["completed"] = states["completed"][-3:]  # the cap
    for state, expected in states.items():
        assert engine.list_jobs("q", NOW + 30, states=(state,)) == sorted(expected), state
    everything = engine.list_jobs("q", NOW + 30)
    assert everything == [job_id for job_id in ids if engine.state(job_id) != "unknown"]
    assert engine.list_jobs("q", NOW + 30, asc=False) == everything[::-1]
    engine.drain("q")
    assert engine.list_jobs("q", NOW + 30, states=("waiting", "delayed")) == []
    engine.obliterate("q")
    assert engine.list_jobs("q", NOW + 30) == []
    engine._check()


@pytest.mark.parametrize("asc", [True, False])
def test_custom_ids_of_one_moment_come_in_order_of_the_ids(asc: bool) -> None:
    engine = Engine(SEED)
    for name in ("b", "a", "c"):
        engine.push("q", None, NOW, job_id=name)
    ours = engine.push("q", None, NOW)
    later = engine.push("q", None, NOW + 1, job_id="0")
    expected = [*sorted(["a", "b", "c", ours]), later]
    if not asc:
        expected.reverse()
    for size in (1, 2, 3, 10):
        pages = [engine.list_jobs("q", NOW, offset=at, limit=size, asc=asc) for at in range(0, 5, size)]
        assert [job_id for page in pages for job_id in page] == expected


def test_cleaning_after_the_clock_was_set_back_goes_by_time() -> None:
    engine = Engine(SEED)
    ids = [engine.push("q", None, NOW) for _ in range(3)]
    for job_id, ended in zip(ids, (5_000, 1_000, 3_000), strict=True):
        engine.pull("q", NOW, 0)
        engine.ack(job_id, NOW + ended)
    assert engine.clean("q", NOW + 4_000, state="completed", grace_ms=0) == [ids[1], ids[2]]
    assert engine.clean("q", NOW + 6_000, state="completed", grace_ms=0) == [ids[0]]
    engine._check()
