"""Outcomes by minute: the compiled meter against a plain count, and its bounds."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcore.broker import rows
from qcore.engine.engine import Engine
from qcore.reference.counting import Journal, Outcomes
from qcore.store.memory import MemoryStore

SEED = bytes(range(16))
MINUTE = 60_000
NOW = 28_333_334 * MINUTE


def outcome(engine: Engine, now_ms: int) -> None:
    engine.push("q", None, now_ms)
    engine.pull("q", now_ms, 0)
    engine.ack(engine.list_jobs("q", now_ms, states=("active",))[0], now_ms)


@given(st.lists(st.integers(-3, 12), max_size=40), st.integers(1, 6), st.integers(-8, 8), st.integers(-8, 8))
def test_minutes_are_as_a_plain_count_has_them(steps: list[int], most: int, start: int, end: int) -> None:
    engine, plain, now = Engine(SEED, max_minutes=most), Outcomes(), NOW
    for step in steps:
        now += step * MINUTE // 3
        outcome(engine, now)
        plain.count(now, most)
        meta, page, n = engine.metrics("q", "completed", start=start, end=end)
        assert meta[:2] == (plain.total, plain.prev_ms)
        assert (page, n) == plain.page(start, end)
        assert n <= most
    engine._check()


def test_defect_93_old_minutes_are_dropped_when_one_begins() -> None:
    engine = Engine(SEED, tracking=True, max_minutes=1000)
    store = MemoryStore()
    for minute in range(3000):
        outcome(engine, NOW + minute * MINUTE)
        if minute % 100 == 0:
            store.commit(rows.take_rows(engine, NOW, 0))
    store.commit(rows.take_rows(engine, NOW, 0))
    assert engine.metrics("q", "completed")[2] == 1000
    assert len(store.load().side["minutes"]) == 999  # and the open one stands with the totals
    before = rows.take_rows(engine, NOW, 0)
    outcome(engine, NOW + 2999 * MINUTE + 1)
    cut = rows.take_rows(engine, NOW, 0)
    assert before.is_empty
    assert list(cut.side) == [("telemetry", 1)]  # inside a minute nothing of the others is touched
    engine._check()
    queue = engine.queue("q")
    assert queue is not None
    assert queue.completions.nbytes == 1024 * 16


@pytest.mark.parametrize("count", [0, -1])
def test_a_stored_minute_that_is_no_number_of_outcomes_is_told(count: int) -> None:
    engine = Engine(SEED, tracking=True)
    store = MemoryStore()
    for minute in range(3):
        outcome(engine, NOW + minute * MINUTE)
    store.commit(rows.take_rows(engine, NOW, 0))
    (first, _), second = store.load().side["minutes"]
    again = Engine(SEED, tracking=True)
    snapshot = store.load()
    rows.restore_names(again, snapshot.names, snapshot.queues, NOW, 0)
    damaged = [(first, count.to_bytes(8, "little", signed=True)), second]
    assert rows.restore_counts(again, snapshot.side["telemetry"], damaged) == 1
    assert again.metrics("q", "completed")[1] == [1, 1]
    again._check()


def test_defect_56_a_journal_is_a_number() -> None:
    engine = Engine(SEED, max_events=1000)
    for _ in range(600):
        outcome(engine, NOW)
        for job_id in engine.list_jobs("q", NOW):
            engine.remove(job_id)
    queue = engine.queue("q")
    assert queue is not None
    assert queue.n_events == 1000
    assert engine.events == []
    assert engine.trim_events("q", 10) == 990
    assert engine.trim_events("q", 10) == 0
    assert engine.trim_events("other", 0) == 0
    assert queue.n_events == 10


def test_no_journal_and_no_minutes() -> None:
    engine = Engine(SEED, max_events=0, max_minutes=0)
    for minute in range(3):
        outcome(engine, NOW + minute * MINUTE)
    queue = engine.queue("q")
    assert queue is not None
    assert queue.n_events == 0
    assert engine.metrics("q", "completed") == ((3, NOW + 2 * MINUTE, 1), [], 0)
    engine._check()


@pytest.mark.parametrize(("start", "end"), [(sys.maxsize, 0), (-sys.maxsize, sys.maxsize), (0, -sys.maxsize)])
def test_pages_out_of_range(start: int, end: int) -> None:
    engine = Engine(SEED)
    outcome(engine, NOW)
    assert engine.metrics("q", "completed", start=start, end=end)[1] in ([], [1])


def test_a_plain_journal() -> None:
    journal = Journal(3)
    for _ in range(5):
        journal.count()
    assert (journal.n, journal.trim(1), journal.n) == (3, 2, 1)
