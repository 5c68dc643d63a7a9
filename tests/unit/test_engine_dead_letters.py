"""Dead letters: their end, their retries by themselves and by hand, and how they are chosen and counted."""

from __future__ import annotations

from typing import Any

import pytest

from qcore.broker import rows
from qcore.engine.engine import Engine
from qcore.engine.table import EVENT_BITS
from qcore.store.memory import MemoryStore

SEED = bytes(16)
NOW = 1_700_000_000_000
MS = 1_000_000
DAY = 86_400_000


def at(engine: Engine, ms: int) -> None:
    while engine.advance(NOW + ms, ms * MS):
        pass
    engine._check()


def bury(engine: Engine, job_id: str, ms: int = 0, queue: str = "q") -> None:
    """Add a job and let it fail for good."""
    engine.push(queue, None, NOW + ms, job_id=job_id, attempts=1)
    fail(engine, job_id, ms, queue)


def fail(engine: Engine, job_id: str, ms: int, queue: str = "q") -> None:
    got, token, _ = engine.pull(queue, NOW + ms, ms * MS, lease_ms=60_000)
    assert got == job_id
    engine.fail(job_id, NOW + ms, token=token, error="no")
    engine._check()


def letter(engine: Engine, job_id: str) -> dict[str, Any]:
    return {found: entry for found, _, entry in engine.dead_letters("q")}[job_id]


@pytest.fixture
def engine() -> Engine:
    return Engine(SEED)


# --- retries by themselves -----------------------------------------------------------------


def test_a_dead_letter_is_retried_by_itself_with_doubled_intervals(engine: Engine) -> None:
    engine.configure("q", dead={"autoRetry": True, "autoRetryInterval": 1000, "maxAutoRetries": 3})
    engine.listen("q", EVENT_BITS["waiting"])
    bury(engine, "a")
    entered, expires = NOW, NOW + 7 * DAY
    starts, retried_at = [], 0
    for retry, wait in enumerate((1000, 1000, 2000), 1):
        assert letter(engine, "a")["nextRetryAt"] == NOW + retried_at + wait
        assert engine.next_due(NOW + retried_at, retried_at * MS) == wait * MS
        retried_at += wait
        at(engine, retried_at - 1)
        assert engine.state("a") == "failed"
        at(engine, retried_at)
        assert (engine.state("a"), engine.attempts("a")) == ("waiting", 0)
        starts.append(retried_at)
        fail(engine, "a", retried_at)
        entry = letter(engine, "a")
        assert (entry["retryCount"], entry["lastRetryAt"]) == (retry, NOW + retried_at)
        # A failure does not begin the entry anew.
        assert (entry["enteredAt"], entry["expiresAt"]) == (entered, expires)
    assert letter(engine, "a")["nextRetryAt"] is None
    assert starts == [1000, 2000, 4000]
    assert [data for _, _, _, _, data in engine.take_events()] == ["failed"] * 3
    at(engine, 7 * DAY - 1)
    assert engine.state("a") == "failed"
    at(engine, 7 * DAY)
    assert engine.state("a") == "unknown"


@pytest.mark.parametrize("way", ["by hand", "completed"])
def test_the_chain_of_retries_ends_with_a_retry_by_hand_or_completion(engine: Engine, way: str) -> None:
    engine.configure("q", dead={"autoRetry": True, "autoRetryInterval": 1000})
    bury(engine, "a")
    at(engine, 1000)
    if way == "by hand":
        fail(engine, "a", 1000)
        assert letter(engine, "a")["retryCount"] == 1
        assert engine.retry_dead("q", NOW + 1001, job_id="a") == 1
    else:
        _, token, _ = engine.pull("q", NOW + 1000, 1000 * MS, lease_ms=60_000)
        engine.ack("a", NOW + 1000, token=token)
        assert engine.retry_completed("q", NOW + 1001) == 1
    fail(engine, "a", 1500)
    entry = letter(engine, "a")
    assert (entry["retryCount"], entry["lastRetryAt"]) == (0, None)
    assert entry["nextRetryAt"] == NOW + 2500
    assert "enteredAt" not in entry


def test_settings_hold_from_the_next_entry_on(engine: Engine) -> None:
    bury(engine, "before")
    engine.configure("q", dead={"autoRetry": True, "autoRetryInterval": 1000, "maxAutoRetries": 1})
    bury(engine, "after")
    assert letter(engine, "before")["nextRetryAt"] is None
    engine.configure("q", dead={"autoRetry": False})
    bury(engine, "late")
    assert letter(engine, "late")["nextRetryAt"] is None
    at(engine, 1000)
    assert engine.state("after") == "waiting"
    fail(engine, "after", 1000)
    assert letter(engine, "after")["nextRetryAt"] is None
    engine.configure("q", dead={"autoRetry": True, "maxAutoRetries": 0})
    bury(engine, "never", 1000)
    assert letter(engine, "never")["nextRetryAt"] is None


def test_a_chain_goes_on_over_a_restart_and_time_away_counts() -> None:
    store = MemoryStore()
    engine = Engine(SEED, tracking=True)
    engine.configure("q", dead={"autoRetry": True, "autoRetryInterval": 1000, "maxAutoRetries": 9})
    bury(engine, "dead")
    bury(engine, "again")
    at(engine, 1000)
    fail(engine, "dead", 1000)
    store.commit(rows.take_rows(engine, NOW + 1000, 1000 * MS))
    snapshot = store.reopened().load()
    engine = Engine(SEED, tracking=True)
    rows.restore_names(engine, snapshot.names, snapshot.queues)
    for row in snapshot.jobs:
        rows.restore(engine, row, NOW + 1500, 7)
    rows.settle_active(engine, True, False, NOW + 1500)
    engine._check()
    assert letter(engine, "dead")["nextRetryAt"] == NOW + 2000
    got, token, _ = engine.pull("q", NOW + 1500, 7, lease_ms=60_000)
    assert got == "again"
    engine.fail("again", NOW + 1600, token=token)
    assert letter(engine, "again")["retryCount"] == 1
    while engine.advance(NOW + 2000, 500 * MS):
        pass
    engine._check()
    assert {engine.state("dead"), engine.state("again")} == {"waiting"}


def test_one_entry_that_cannot_be_read_stops_no_other() -> None:
    store = MemoryStore()
    engine = Engine(SEED, tracking=True)
    for queue in ("bad", "good"):
        engine.configure(queue, dead={"autoRetry": True, "autoRetryInterval": 10})
        bury(engine, queue, queue=queue)
    store.commit(rows.take_rows(engine, NOW, 0))
    snapshot = store.reopened().load()
    again = Engine(SEED, tracking=True)
    rows.restore_names(again, snapshot.names, snapshot.queues)
    for row in snapshot.jobs:
        seq, queue, state, record, data, result = row
        if seq == 1:
            record = record.replace(b"nextRetryAt", b"nextRetryXX")
            with pytest.raises(rows.BadRow):
                rows.restore(again, (seq, queue, state, record, data, result), NOW, 0)
        else:
            rows.restore(again, row, NOW, 0)
    rows.settle_active(again, True, False, NOW)
    at(again, 10)
    assert (again.state("good"), again.state("bad")) == ("waiting", "unknown")


# --- their end ---------------------------------------------------------------------------------


def test_an_age_of_null_is_for_ever_and_of_zero_ends_at_once(engine: Engine) -> None:
    engine.configure("q", dead={"maxAge": None})
    bury(engine, "kept")
    assert engine.next_due(NOW, 0) is None
    engine.configure("q", dead={"maxAge": 0})
    bury(engine, "gone")
    assert engine.next_due(NOW, 0) == 0
    at(engine, 0)
    assert (engine.state("kept"), engine.state("gone")) == ("failed", "unknown")


def test_an_end_comes_before_a_retry_at_the_same_time(engine: Engine) -> None:
    engine.configure("q", dead={"autoRetry": True, "autoRetryInterval": 100, "maxAge": 100})
    bury(engine, "a")
    at(engine, 100)
    assert engine.state("a") == "unknown"


def test_lowering_the_number_drops_the_oldest_wholly(engine: Engine) -> None:
    for n, job_id in enumerate("abcde"):
        bury(engine, job_id, n)
        engine.add_log(job_id, "line", "info", NOW)
    engine.configure("q", dead={"maxEntries": 2})
    engine._check()
    assert [job_id for job_id, _, _ in engine.dead_letters("q")] == ["d", "e"]
    assert [engine.state(job_id) for job_id in "abc"] == ["unknown"] * 3
    bury(engine, "f", 9)
    assert [job_id for job_id, _, _ in engine.dead_letters("q")] == ["e", "f"]
    assert engine.logs("a") == []


def test_defect_12_what_was_purged_is_not_failed_any_more(engine: Engine) -> None:
    for job_id in "abc":
        bury(engine, job_id)
    assert engine.remove_dead("q", "b")
    assert not engine.remove_dead("q", "b")
    assert engine.purge_dead("q") == 2
    assert engine.counts("q", NOW)["failed"] == 0
    assert [engine.state(job_id) for job_id in "abc"] == ["unknown"] * 3
    assert engine.list_jobs("q", NOW, states=("failed",)) == []
    engine._check()


# --- choosing and counting -----------------------------------------------------------------


@pytest.fixture
def mixed(engine: Engine) -> Engine:
    """Five letters: a, b at 0 and 10 ms, c by its timeout at 20, d to be retried, e at its end."""
    bury(engine, "a")
    bury(engine, "b", 10)
    engine.push("q", None, NOW + 10, job_id="c", attempts=1, extra={"timeout": 10})
    engine.pull("q", NOW + 10, 10 * MS, lease_ms=60_000)
    at(engine, 20)
    engine.configure("q", dead={"autoRetry": True})
    bury(engine, "d", 30)
    engine.configure("q", dead={"autoRetry": False, "maxAge": 10})
    bury(engine, "e", 40)
    return engine


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, "abcde"),
        ({"reason": "timeout"}, "c"),
        ({"reason": "stalled"}, ""),
        ({"olderThan": NOW + 10}, "a"),
        ({"newerThan": NOW + 10}, "cde"),
        ({"olderThan": NOW + 30, "newerThan": NOW}, "bc"),
        ({"retriable": True}, "d"),
        ({"retriable": False}, "abce"),
        ({"expired": True}, "e"),
        ({"expired": False, "retriable": False}, "abc"),
    ],
)
def test_letters_are_chosen_and_paged(mixed: Engine, wanted: dict[str, Any], expected: str) -> None:
    assert mixed.choose_dead("q", NOW + 50, wanted=wanted) == list(expected)
    for offset in range(len(expected) + 2):
        for limit in range(4):
            page = mixed.choose_dead("q", NOW + 50, wanted=wanted, offset=offset, limit=limit)
            assert page == list(expected)[offset : offset + limit]
    assert mixed.choose_dead("none", NOW, wanted=wanted) == []


def test_letters_are_counted(mixed: Engine) -> None:
    assert mixed.dead_letter_stats("q", NOW + 50) == {
        "total": 5,
        "reasons": {"max_attempts_exceeded": 4, "timeout": 1},
        "pending": 1,
        "expired": 1,
        "oldest": NOW,
        "newest": NOW + 40,
    }
    empty = {"total": 0, "reasons": {}, "pending": 0, "expired": 0, "oldest": None, "newest": None}
    assert mixed.dead_letter_stats("none", NOW) == empty


# --- starting over ----------------------------------------------------------------------------


def test_defect_55_a_retry_is_told(engine: Engine) -> None:
    engine.listen("q", EVENT_BITS["waiting"])
    bury(engine, "dead")
    engine.push("q", None, NOW, job_id="done")
    engine.pull("q", NOW, 0)
    engine.ack("done", NOW)
    assert engine.retry_dead("q", NOW) == engine.retry_completed("q", NOW) == 1
    assert [(job_id, before) for _, _, job_id, _, before in engine.take_events()] == [
        ("dead", "failed"),
        ("done", "completed"),
    ]


def test_retries_by_time_of_the_end_go_oldest_first(engine: Engine) -> None:
    for n, job_id in enumerate("abcd"):
        bury(engine, job_id, n * 10)
    assert engine.retry_dead("q", NOW + 50, count=2) == 2
    assert [engine.state(job_id) for job_id in "abcd"] == ["waiting", "waiting", "failed", "failed"]
    chosen = engine.choose_dead("q", NOW + 50, wanted={"olderThan": NOW + 30})
    assert chosen == ["c"]
    assert sum(engine.retry_dead("q", NOW + 50, job_id=job_id) for job_id in chosen) == 1
    assert engine.retry_dead("q", NOW + 50, job_id="c") == 0  # it is not dead any more
    assert engine.retry_dead("other", NOW + 50, job_id="d") == 0
    assert engine.retry_dead("q", NOW + 50) == 1
    engine._check()


def test_cases_c008_a_retried_job_stands_behind_those_that_were_ready(engine: Engine) -> None:
    """However a job becomes ready, it enters the one line with its own priority."""
    bury(engine, "failed")
    engine.push("q", None, NOW, job_id="stalled", priority=5, backoff_ms=0)
    engine.pull("q", NOW, 0)
    engine.push("q", None, NOW + 1, job_id="delayed", priority=5, delay_ms=3_600_000)
    for n in range(50):
        engine.push("q", None, NOW + 1, job_id=f"before {n}", priority=5)
    engine.change_priority("failed", 5, NOW)
    engine.promote("delayed", NOW + 2)
    at(engine, 30_000)
    assert engine.retry_dead("q", NOW + 30_001, job_id="failed") == 1
    assert engine.change_priority("failed", 5, NOW + 30_001)
    for n in range(50):
        engine.push("q", None, NOW + 30_002, job_id=f"after {n}", priority=5)
    line = [engine.pull("q", NOW + 40_000, 40_000 * MS, lease_ms=60_000)[0] for _ in range(103)]
    assert line[:50] == [f"before {n}" for n in range(50)]
    assert set(line[50:53]) == {"delayed", "stalled", "failed"}
