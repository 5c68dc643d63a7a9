"""Control operations and listings of the engine: what they change, and what they leave alone."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from qcore.broker import rows
from qcore.engine.engine import Engine
from qcore.engine.queue import DLQ_DEFAULTS, STALL_DEFAULTS
from qcore.engine.table import EVENT_BITS
from qcore.errors import LeaseError, LimitError, NotFoundError, StateError
from qcore.store.memory import MemoryStore

SEED = bytes(16)
NOW = 1_700_000_000_000
EVERYTHING = sum(EVENT_BITS.values())


@pytest.fixture
def engine() -> Engine:
    return Engine(SEED)


def one_of_each(engine: Engine) -> dict[str, str]:
    """A queue with a job in every state, by state."""
    ids = {
        "completed": engine.push("q", b"\x01", NOW - 50, job_id="completed"),
        "failed": engine.push("q", b"\x02", NOW - 40, job_id="failed"),
        "active": engine.push("q", b"\x03", NOW - 30, job_id="active"),
    }
    engine.pull_many("q", 3, NOW, 0)
    engine.ack("completed", NOW, result=b"\x07")
    engine.fail("failed", NOW, error="no", unrecoverable=True)
    ids["waiting"] = engine.push("q", b"\x04", NOW - 20, job_id="waiting")
    ids["prioritized"] = engine.push("q", b"\x05", NOW - 10, job_id="prioritized", priority=2)
    ids["delayed"] = engine.push("q", b"\x06", NOW, job_id="delayed", delay_ms=60_000)
    assert {state: engine.state(job_id) for state, job_id in ids.items()} == {s: s for s in ids}
    return ids


def states(engine: Engine) -> dict[str, str]:
    every = ("waiting", "prioritized", "delayed", "active", "completed", "failed")
    return {job_id: engine.state(job_id) for job_id in every}


def reopened(engine: Engine, store: MemoryStore, *, archive: bool = False, max_completed: int = 50) -> Engine:
    """The engine that comes back from what was saved."""
    store.commit(rows.take_rows(engine, NOW, 0))
    again = Engine(bytes([1] * 16), tracking=True, archive=archive, max_completed=max_completed)
    snapshot = store.load()
    rows.restore_names(again, snapshot.names, snapshot.queues)
    for row in snapshot.jobs:
        rows.restore(again, row, NOW, 0)
    rows.settle_active(again, True, False, NOW)
    again._check()
    return again


# --- removing ----------------------------------------------------------------------------


def test_only_queued_jobs_can_be_cancelled(engine: Engine) -> None:
    one_of_each(engine)
    assert [job_id for job_id in states(engine) if engine.cancel(job_id, NOW)] == [
        "waiting",
        "prioritized",
        "delayed",
    ]
    assert not engine.cancel("waiting", NOW)
    engine._check()


def test_a_drain_leaves_started_and_finished_jobs(engine: Engine) -> None:
    one_of_each(engine)
    assert engine.drain("q") == 3
    assert engine.drain("q") == 0
    assert engine.drain("no such queue") == 0
    assert {job_id for job_id, state in states(engine).items() if state != "unknown"} == {
        "active",
        "completed",
        "failed",
    }
    engine._check()


def test_nothing_is_left_of_an_obliterated_queue(engine: Engine) -> None:
    one_of_each(engine)
    other = engine.push("other", None, NOW)
    engine.pause("q")
    engine.configure("q", dead={"maxEntries": 5, "maxAge": None}, stalls={"maxStalls": 1})
    engine.obliterate("q")
    assert len(engine) == 1
    assert engine.state(other) == "waiting"
    assert set(engine.counts("q", NOW).values()) == {0}
    q = engine.queue("q")
    assert not q.paused
    assert (q.dlq_config, q.stall_config) == (DLQ_DEFAULTS, STALL_DEFAULTS)
    with pytest.raises(StateError, match="Job not found or not in processing state: active"):
        engine.ack("active", NOW)
    engine._check()
    engine.obliterate("no such queue")
    assert engine.queue("no such queue") is None
    assert engine.push("q", None, NOW, job_id="completed") == "completed"  # the id is free again
    assert engine.state("completed") == "waiting"


@pytest.mark.parametrize(
    ("state", "gone"),
    [
        (None, ["waiting", "prioritized", "delayed"]),
        ("wait", ["waiting"]),
        ("waiting", ["waiting"]),
        ("prioritized", ["prioritized"]),
        ("delayed", ["delayed"]),
        ("completed", ["completed"]),
        ("failed", ["failed"]),
        ("active", []),
        ("paused", []),
        ("anything", []),
    ],
)
def test_cleaning_takes_the_named_state_only(engine: Engine, state: str | None, gone: list[str]) -> None:
    one_of_each(engine)
    assert engine.clean("q", NOW, state=state, limit=0) == []
    assert engine.clean("q", NOW, state=state) == gone
    assert [job_id for job_id, now in states(engine).items() if now == "unknown"] == gone
    engine._check()


def test_a_paused_queue_has_its_ready_jobs_under_paused(engine: Engine) -> None:
    one_of_each(engine)
    engine.pause("q")
    assert engine.clean("q", NOW, state="waiting") == []
    assert engine.list_jobs("q", NOW, states=("waiting", "prioritized")) == []
    assert engine.list_jobs("q", NOW, states=("paused",)) == ["waiting", "prioritized"]
    assert engine.clean("q", NOW, state="paused") == ["waiting", "prioritized"]


def test_cleaning_goes_by_age_oldest_first(engine: Engine) -> None:
    for age in (30, 10, 20):
        engine.push("q", None, NOW, job_id=f"{age}", created_ms=NOW - age)
    assert engine.clean("q", NOW, grace_ms=31) == []
    assert engine.clean("q", NOW, grace_ms=15, limit=1) == ["30"]
    assert engine.clean("q", NOW, grace_ms=15) == ["20"]
    assert engine.clean("q", NOW, grace_ms=15) == []
    engine._check()


# --- moving ------------------------------------------------------------------------------


def test_a_discarded_job_is_a_dead_letter_without_an_error(engine: Engine) -> None:
    engine.listen("q", EVERYTHING)
    one_of_each(engine)
    engine.push("q", None, NOW, job_id="leased")
    engine.pull("q", NOW, 0)
    token = engine.pull_many("q", 2, NOW, 0, lease_ms=1000)[-1][1]
    engine.take_events()
    for job_id in ("delayed", "active"):
        engine.discard(job_id, NOW)
    with pytest.raises(LeaseError, match="Lock token required for job leased"):
        engine.discard("leased", NOW)
    with pytest.raises(LeaseError, match="Invalid or expired lock token for job leased"):
        engine.discard("leased", NOW, token="no")
    engine.discard("leased", NOW, token=token)
    for job_id in ("completed", "failed", "absent", "delayed"):
        with pytest.raises(NotFoundError, match="Job not found"):
            engine.discard(job_id, NOW)
    letters = engine.dead_letters("q")
    assert [letter[0] for letter in letters] == ["failed", "delayed", "active", "leased"]
    for _, _, letter in letters[1:]:
        assert (letter["reason"], letter["error"]) == ("unknown", None)
    assert engine.attempts("leased") == 0
    assert engine.take_events() == []
    engine._check()
    assert engine.retry_dead("q", NOW) == 4
    engine._check()


def test_delayed_jobs_are_promoted_oldest_first(engine: Engine) -> None:
    for job_id, age in (("b", 0), ("a", 0), ("c", 5)):
        engine.push("q", None, NOW, job_id=job_id, created_ms=NOW - age, delay_ms=60_000)
    assert engine.promote_jobs("q", NOW, count=0) == 0
    assert engine.promote_jobs("no such queue", NOW) == 0
    assert engine.promote_jobs("q", NOW, count=2) == 2
    assert [engine.state(i) for i in "abc"] == ["waiting", "delayed", "waiting"]
    assert engine.promote_jobs("q", NOW) == 1
    assert engine.promote_jobs("q", NOW) == 0
    engine._check()


def test_a_changed_priority_changes_the_place(engine: Engine) -> None:
    for job_id in "abcd":
        engine.push("q", None, NOW, job_id=job_id)
    engine.push("q", None, NOW, job_id="later", delay_ms=10)
    assert engine.change_priority("c", 5, NOW)
    assert engine.change_priority("d", 0, NOW, lifo=True)
    assert engine.change_priority("later", 9, NOW)
    assert not engine.change_priority("absent", 9, NOW)
    assert engine.counts("q", NOW)["prioritized"] == 1
    assert engine.counts_by_priority("q") == {0.0: 3, 5.0: 1, 9.0: 1}
    engine._check()
    pulled = engine.pull_many("q", 9, NOW + 10, 0)
    assert [job_id for job_id, _, _ in pulled] == ["later", "c", "d", "a", "b"]
    assert not engine.change_priority("a", 1, NOW)


def test_a_ready_job_stays_ready_when_the_clock_was_set_back(engine: Engine) -> None:
    job_id = engine.push("q", None, NOW)
    assert engine.change_priority(job_id, 1, NOW - 60_000)
    assert engine.state(job_id) == "prioritized"


def test_completed_jobs_start_over_as_if_new(engine: Engine) -> None:
    extra: dict[str, Any] = {"tags": ["t"]}
    engine.push("q", b"\x01", NOW, job_id="a", extra=extra)
    for job_id in "bc":
        engine.push("q", None, NOW, job_id=job_id)
    engine.pull_many("q", 3, NOW, 0)
    engine.set_progress("a", 50, NOW, message="half")
    for n, job_id in enumerate("abc"):
        engine.ack(job_id, NOW + n, result=b"\x07")
    assert engine.retry_completed("q", NOW + 5, job_id="absent") == 0
    assert engine.retry_completed("other", NOW + 5, job_id="a") == 0
    assert engine.retry_completed("q", NOW + 5, count=0) == 0
    assert engine.retry_completed("q", NOW + 5, until_ms=NOW - 1) == 0
    assert engine.retry_completed("q", NOW + 5, count=1) == 1
    assert (engine.state("a"), engine.result("a"), engine.run_at_ms("a")) == ("waiting", None, NOW + 5)
    assert engine.retry_completed("q", NOW + 5, until_ms=NOW + 1) == 1
    assert [engine.state(i) for i in "abc"] == ["waiting", "waiting", "completed"]
    engine._check()
    assert [entry["state"] for entry in extra["timeline"]] == ["waiting", "active", "completed", "waiting"]
    assert engine.pull("q", NOW + 5, 0) == ("a", None, b"\x01")
    assert engine.progress("a") == (0, None)
    for n in range(30):
        engine.ack("a", NOW + n)
        engine.retry_completed("q", NOW + 10 + n, job_id="a")
        engine.pull_many("q", 9, NOW + 10 + n, 0)
    assert len(extra["timeline"]) == 20
    engine._check()


# --- dead letters ------------------------------------------------------------------------


def dead(engine: Engine, job_id: str, now_ms: int = NOW) -> None:
    engine.push("q", None, now_ms, job_id=job_id)
    _, token, _ = engine.pull("q", now_ms, 0, lease_ms=30_000)
    engine.fail(job_id, now_ms, token=token, error="no", unrecoverable=True)


def test_dead_letters_end_with_their_time(engine: Engine) -> None:
    engine.configure("q", dead={"maxAge": 100})
    dead(engine, "a")
    engine.configure("q", dead={"maxAge": None})
    dead(engine, "b")
    engine.configure("q", dead={"maxAge": 50})
    dead(engine, "c")
    assert [letter["expiresAt"] for _, _, letter in engine.dead_letters("q")] == [NOW + 100, None, NOW + 50]
    assert engine.next_due(NOW, 0) == 50_000_000
    engine.advance(NOW + 50, 0)
    assert [engine.state(i) for i in "abc"] == ["failed", "failed", "unknown"]
    assert engine.retry_dead("q", NOW + 50, job_id="a") == 1  # a revived one has no end any more
    assert engine.next_due(NOW + 50, 0) is None
    engine.advance(NOW + 10**9, 0)
    assert [engine.state(i) for i in "abc"] == ["waiting", "failed", "unknown"]
    engine._check()


def test_a_time_of_nothing_drops_dead_letters_at_once(engine: Engine) -> None:
    engine.configure("q", dead={"maxAge": 0})
    dead(engine, "a")
    engine.advance(NOW, 0)
    assert engine.state("a") == "unknown"


def test_a_lowered_bound_drops_the_oldest(engine: Engine) -> None:
    for job_id in "abc":
        dead(engine, job_id)
    engine.configure("q", dead={"maxEntries": 2})
    assert [entry[0] for entry in engine.dead_letters("q")] == ["b", "c"]
    assert engine.remove_dead("q", "b")
    assert not engine.remove_dead("q", "b")
    assert not engine.remove_dead("other", "c")
    assert engine.purge_dead("q") == 1
    assert engine.purge_dead("other") == 0
    engine._check()


# --- data, progress, logs ----------------------------------------------------------------


def test_data_can_change_until_a_job_is_finished(engine: Engine) -> None:
    one_of_each(engine)
    can = [job_id for job_id in states(engine) if engine.update(job_id, b"\xa1x")]
    assert can == ["waiting", "prioritized", "delayed", "active"]
    assert not engine.update("absent", b"\xc0")
    assert engine.pull("q", NOW, 0)[2] == b"\xa1x"
    job_id = engine.push("other", b"\x01", NOW, extra={"sizeLimit": 2})
    assert engine.update(job_id, b"\xa1x")
    with pytest.raises(LimitError, match="3 bytes is over its sizeLimit of 2"):
        engine.update(job_id, b"\xa2xy")
    assert engine.pull("other", NOW, 0)[2] == b"\xa1x"
    engine._check()


def test_progress_is_clamped_and_of_active_jobs_only(engine: Engine) -> None:
    one_of_each(engine)
    seen = []
    for progress in (12.5, 50, 1e300, -1e300):
        engine.set_progress("active", progress, NOW)
        seen.append(engine.progress("active"))
    assert seen == [(12.5, None), (50, None), (100, None), (0, None)]
    assert [type(progress) for progress, _ in seen] == [float, int, int, int]
    for job_id in ("waiting", "failed", "completed"):
        text = rf"Job is not active \(current state: {job_id}\)"
        with pytest.raises(StateError, match=text):
            engine.set_progress(job_id, 1, NOW)
        with pytest.raises(StateError, match=text):
            engine.progress(job_id)
    with pytest.raises(NotFoundError, match="Job not found"):
        engine.set_progress("absent", 1, NOW)


@pytest.mark.parametrize(("limit", "kept"), [(None, 100), (3, 3), (0, 0), (-1, 0), (1e300, 100), (2.5, 2)])
def test_a_log_keeps_its_newest_lines(engine: Engine, limit: float | None, kept: int) -> None:
    job_id = engine.push("q", None, NOW, extra=None if limit is None else {"keepLogs": limit})
    for n in range(120):
        engine.add_log(job_id, f"{n}", "info", NOW + n)
    assert engine.logs(job_id) == [[NOW + n, "info", f"{n}"] for n in range(120 - kept, 120)]
    engine.clear_logs(job_id, keep=2)
    assert len(engine.logs(job_id)) == min(kept, 2)
    engine.clear_logs(job_id)
    assert engine.logs(job_id) == engine.logs("absent") == []
    engine.clear_logs("absent")


# --- listing -----------------------------------------------------------------------------


def test_jobs_are_listed_by_creation_and_then_by_id(engine: Engine) -> None:
    one_of_each(engine)
    order = ["completed", "failed", "active", "waiting", "prioritized", "delayed"]
    assert engine.list_jobs("q", NOW) == order
    assert engine.list_jobs("q", NOW, asc=False) == order[::-1]
    assert engine.list_jobs("q", NOW, offset=2, limit=2) == order[2:4]
    assert engine.list_jobs("q", NOW, offset=9) == engine.list_jobs("q", NOW, limit=0) == []
    assert engine.list_jobs("q", NOW, states=("delayed", "active")) == ["active", "delayed"]
    assert engine.list_jobs("q", NOW, states=("nonsense",)) == engine.list_jobs("no queue", NOW) == []
    for job_id in ("é", "Z", "a"):
        engine.push("q2", None, NOW, job_id=job_id)
    assert engine.list_jobs("q2", NOW) == ["Z", "a", "é"]


@pytest.mark.parametrize("asc", [True, False])
def test_pages_of_a_long_list_join(engine: Engine, asc: bool) -> None:
    ids = [engine.push("q", None, NOW, created_ms=NOW - n % 7) for n in range(500)]
    whole = engine.list_jobs("q", NOW, limit=1000, asc=asc)
    assert sorted(whole) == sorted(ids)
    pages = [engine.list_jobs("q", NOW, offset=at, limit=50, asc=asc) for at in range(0, 500, 50)]
    assert [job_id for page in pages for job_id in page] == whole


def test_totals_of_all_queues_pass_over_pauses(engine: Engine) -> None:
    one_of_each(engine)
    engine.pause("q")
    engine.push("other", None, NOW)
    assert engine.totals(NOW) == {
        "waiting": 3,
        "waiting-children": 0,
        "delayed": 1,
        "active": 1,
        "completed": 1,
        "failed": 1,
        "pushed": 7,
        "pulled": 3,
        "total_completed": 1,
        "total_failed": 1,
    }


# --- what a store brings back --------------------------------------------------------------


def test_changed_data_are_written_as_a_whole_row() -> None:
    engine, store = Engine(SEED, tracking=True), MemoryStore()
    engine.push("q", b"\x01", NOW, job_id="a")
    store.commit(rows.take_rows(engine, NOW, 0))
    engine.change_priority("a", 1, NOW)
    cut = rows.take_rows(engine, NOW, 0)
    inserts, updates = cut.inserts, cut.updates
    assert (len(inserts), len(updates)) == (0, 4)
    engine.update("a", b"\x02")
    engine._check()
    cut = rows.take_rows(engine, NOW, 0)
    inserts, updates = cut.inserts, cut.updates
    assert (len(inserts), len(updates)) == (6, 0)
    engine.change_priority("a", 2, NOW)
    cut = rows.take_rows(engine, NOW, 0)
    inserts, updates = cut.inserts, cut.updates
    assert (len(inserts), len(updates)) == (0, 4)
    engine.update("a", b"\x03")
    assert reopened(engine, store).pull("q", NOW, 0) == ("a", None, b"\x03")


def test_a_job_with_changed_data_that_goes_leaves_no_row() -> None:
    engine, store = Engine(SEED, tracking=True), MemoryStore()
    engine.push("q", b"\x01", NOW, job_id="a")
    store.commit(rows.take_rows(engine, NOW, 0))
    engine.update("a", b"\x02")
    engine.cancel("a", NOW)
    assert len(reopened(engine, store)) == 0


def test_settings_outlive_a_restart() -> None:
    engine, store = Engine(SEED, tracking=True), MemoryStore()
    engine.configure("q", dead={"maxEntries": 2, "maxAge": None, "autoRetry": True}, stalls={"maxStalls": 0})
    dead(engine, "a")
    engine.configure("q", dead={"maxAge": 100})
    dead(engine, "b")
    again = reopened(engine, store)
    q = again.queue("q")
    assert q.dlq_config == DLQ_DEFAULTS | {"maxEntries": 2, "maxAge": 100, "autoRetry": True}
    assert q.stall_config == STALL_DEFAULTS | {"maxStalls": 0}
    assert (q.dlq_max_entries, q.dlq_max_age_ms, q.max_stalls) == (2, 100, 0)
    again.advance(NOW + 100, 0)
    assert [again.state(i) for i in "ab"] == ["failed", "unknown"]
    again._check()
    again.obliterate("q")
    assert reopened(again, store).queue("q").dlq_config == DLQ_DEFAULTS


@pytest.mark.parametrize(
    "fields",
    [
        {"dlq": 1},
        {"dlq": {"maxEntries": "x"}},
        {"stall": {"maxStalls": 2**40}},
        {"floor": "x"},
        {"floor": None},
    ],
)
def test_settings_that_cannot_be_read_are_named(engine: Engine, fields: dict[str, object]) -> None:
    with pytest.raises(rows.BadRow, match="the settings of queue 1 cannot be read"):
        rows.restore_names(engine, [], [(1, msgpack.packb({"name": "q", **fields}))])


def test_rows_that_only_the_store_had_go_with_their_queue() -> None:
    engine, store = Engine(SEED, tracking=True, archive=True, max_completed=2), MemoryStore()
    for n in range(6):
        engine.push("q" if n % 2 else "other", None, NOW, job_id=f"{n}")
    for queue in ("q", "other"):
        for job_id, _, _ in engine.pull_many(queue, 9, NOW, 0):
            engine.ack(job_id, NOW)
    store.commit(rows.take_rows(engine, NOW, 0))
    assert engine.counts("q", NOW)["completed"] == 3
    assert engine.queue("q").n_archived == 3
    engine.obliterate("q")
    engine._check()
    assert engine.counts("q", NOW)["completed"] == 0
    engine.push("q", None, NOW, job_id="new")
    again = reopened(engine, store, archive=True, max_completed=2)
    assert again.counts("q", NOW)["completed"] == 0
    assert again.counts("other", NOW)["completed"] == 3
    assert again.state("new") == "waiting"
    again = reopened(again, store, archive=True)
    assert again.state("new") == "waiting"
    assert len(list(store.load().jobs)) == 4


def test_a_completed_job_on_its_way_out_of_memory_is_one_like_the_others() -> None:
    engine = Engine(SEED, tracking=True, archive=True, max_completed=1)
    for job_id in "abc":
        engine.push("q", None, NOW, job_id=job_id)
        engine.pull("q", NOW, 0)
        engine.ack(job_id, NOW)
    assert engine.queue("q").n_archived == 2
    engine.add_log("a", "still known", "info", NOW)
    assert engine.retry_completed("q", NOW, job_id="a") == 1
    assert engine.queue("q").n_archived == 1
    assert engine.state("a") == "waiting"
    engine._check()
    engine.obliterate("q")
    engine._check()
    assert len(engine) == 0
