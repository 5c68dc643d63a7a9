"""Unique keys: who holds one, what a second add does, and when a key is free again."""

from __future__ import annotations

from typing import Any

import pytest

from qcore import limits
from qcore.broker import rows
from qcore.engine.engine import Engine
from qcore.engine.table import EVENT_BITS
from qcore.errors import StateError
from qcore.store.memory import MemoryStore

SEED = bytes(16)
NOW = 1_700_000_000_000
HOUR = 3_600_000


def keyed(engine: Engine, now_ms: int = NOW, *, key: str = "k", queue: str = "q", **options: Any) -> str:
    extra = {"uniqueKey": key, **options.pop("extra", {})}
    return engine.push(queue, None, now_ms, extra=extra, **options)


def ttl(ms: int, **more: object) -> dict[str, Any]:
    return {"deduplicationTtl": ms, **more}


REPLACE = {"deduplicationReplace": True}


def extend(ms: int) -> dict[str, Any]:
    return ttl(ms, deduplicationExtend=True)


def reopened(engine: Engine, now_ms: int = NOW, store: MemoryStore | None = None) -> Engine:
    """The same after a restart; ``store`` is what it was opened from before."""
    store = MemoryStore() if store is None else store
    store.commit(rows.take_rows(engine, now_ms, 0))
    snapshot = store.reopened().load()
    again = Engine(bytes(15) + b"\1", tracking=True)
    rows.restore_names(again, snapshot.names, snapshot.queues)
    assert rows.restore_side(again, snapshot.side) == []
    for row in snapshot.jobs:
        rows.restore(again, row, now_ms, 0)
    rows.settle_active(again, True, False, now_ms)
    again._check()
    return again


# --- the table ---------------------------------------------------------------------------


def test_a_second_job_with_a_key_is_dropped_and_its_holder_answered() -> None:
    engine = Engine(SEED)
    holder = keyed(engine)
    assert keyed(engine) == holder
    other = keyed(engine, queue="other")
    assert other != holder
    assert keyed(engine, key="K") not in (holder, other)
    assert engine.queue("q").total_pushed == 2
    assert engine.key_owner("q", "k", NOW) == holder
    assert engine.key_owner("q", "absent", NOW) is None
    assert engine.key_owner("absent", "k", NOW) is None


def test_invariant_27_a_dropped_job_is_told_as_a_duplicate_of_its_holder_and_as_nothing_else() -> None:
    engine = Engine(SEED)
    engine.listen("q", sum(EVENT_BITS.values()))
    holder = keyed(engine, extra=ttl(HOUR))
    for options in ({}, ttl(5), extend(HOUR)):
        engine.take_events()
        assert keyed(engine, extra=options) == holder
        assert engine.take_events() == [("duplicated", "q", holder, NOW, None)]
    assert engine.queue("q").total_pushed == 1


@pytest.mark.parametrize("state", ["waiting", "delayed", "active"])
def test_defect_38_39_replace_takes_the_place_of_a_holder_that_has_not_started(state: str) -> None:
    engine = Engine(SEED)
    holder = keyed(engine, delay_ms=1000 if state == "delayed" else 0)
    if state == "active":
        engine.pull("q", NOW, 0)
    new = keyed(engine, extra=REPLACE)
    assert new != holder
    assert engine.state(holder) == ("active" if state == "active" else "unknown")
    assert engine.key_owner("q", "k", NOW) == new
    if state == "active":
        engine.ack(holder, NOW)
        assert engine.key_owner("q", "k", NOW) == new
    engine._check()


def test_defect_39_extend_starts_the_time_of_a_key_over() -> None:
    engine = Engine(SEED)
    holder = keyed(engine, extra=ttl(1000))
    assert keyed(engine, NOW + 900, extra=extend(1000)) == holder
    assert keyed(engine, NOW + 1899) == holder
    assert keyed(engine, NOW + 1900) != holder
    without_time = keyed(engine, key="l")
    assert keyed(engine, NOW + HOUR, key="l", extra={"deduplicationExtend": True}) == without_time


def test_extending_the_key_of_a_job_at_work_is_refused_and_changes_nothing() -> None:
    engine = Engine(SEED, tracking=True)
    holder = keyed(engine, extra=ttl(1000))
    engine.pull("q", NOW, 0)
    rows.take_rows(engine, NOW, 0)
    with pytest.raises(StateError, match=r"Duplicate unique_key \(extended TTL\)"):
        keyed(engine, NOW + 500, extra=extend(HOUR), job_id="mine")
    assert engine.n_changes == 0
    assert (engine.state("mine"), len(engine)) == ("unknown", 1)
    assert keyed(engine, NOW + 999) == holder
    assert keyed(engine, NOW + 1000) != holder


def test_replace_goes_before_extend_and_extend_before_the_default() -> None:
    engine = Engine(SEED)
    first = keyed(engine, extra=ttl(1000))
    second = keyed(engine, extra={**extend(1000), **REPLACE})
    assert second != first
    assert keyed(engine, NOW + 500, extra=extend(1000)) == second
    assert engine.key_owner("q", "k", NOW + 1499) == second


@pytest.mark.parametrize("ms", [-5, 0, 1])
def test_a_key_is_over_at_the_end_of_its_time_to_the_millisecond(ms: int) -> None:
    engine = Engine(SEED)
    holder = keyed(engine, extra=ttl(ms))
    if ms > 0:
        assert keyed(engine, NOW + ms - 1) == holder
    assert engine.key_owner("q", "k", NOW + max(0, ms)) is None
    new = keyed(engine, NOW + max(0, ms))
    assert new != holder
    assert engine.counts("q", NOW + HOUR)["waiting"] == 2
    engine.remove(holder)  # it has lost the key, so the key stays where it is
    assert engine.key_owner("q", "k", NOW + HOUR) == new
    engine._check()


def test_a_custom_id_is_looked_up_before_the_key() -> None:
    engine = Engine(SEED)
    holder = keyed(engine)
    engine.push("q", b"\1", NOW, job_id="done")
    engine.pull("q", NOW, 0)
    engine.pull("q", NOW, 0)
    engine.ack("done", NOW, result=b"\7")
    assert keyed(engine, job_id="done") == holder  # dropped: the finished job is not replaced
    assert engine.result("done") == b"\7"
    assert keyed(engine, job_id=holder, extra=REPLACE) == holder
    assert engine.key_owner("q", "k", NOW) == holder


# --- holding -----------------------------------------------------------------------------


def test_c015_defect_40_a_key_is_held_in_every_state_that_is_not_an_end() -> None:
    engine = Engine(SEED)
    engine.pause("q")
    holder = keyed(engine, delay_ms=10, attempts=5, backoff_ms=500)
    now, ns = NOW, 0

    def held(state: str) -> None:
        assert engine.state(holder) == state
        assert keyed(engine, now) == holder
        assert engine.queue("q").total_pushed == 1

    held("delayed")
    now += 10
    engine.counts("q", now)
    held("waiting")
    engine.pause("q", False)
    token = engine.pull("q", now, ns, lease_ms=100)[1]
    held("active")
    engine.fail(holder, now, token=token)
    held("delayed")  # between two attempts
    engine.promote(holder, now)
    engine.pull("q", now, ns, lease_ms=100)
    now, ns = now + 100, ns + 100_000_000
    engine.advance(now, ns)
    held("waiting")  # its lease ran out
    token = engine.pull("q", now, ns, lease_ms=100)[1]
    engine.move_to_delayed(holder, 50, now, token=token)
    held("delayed")
    engine.move_to_wait(holder, now)
    engine.pull("q", now, ns, session=3)
    engine.close_session(3, now)
    held("waiting")
    token = engine.pull("q", now, ns, lease_ms=100)[1]
    engine.ack(holder, now, token=token)
    assert engine.key_owner("q", "k", now) is None
    assert keyed(engine, now) != holder
    engine._check()


def end(engine: Engine, how: str, job_id: str, now_ms: int) -> None:
    if how == "remove":
        assert engine.remove(job_id)
    elif how == "cancel":
        assert engine.cancel(job_id, now_ms)
    elif how == "clean":
        assert engine.clean("q", now_ms) == [job_id]
    elif how == "drain":
        assert engine.drain("q") == 1
    elif how == "obliterate":
        engine.obliterate("q")
    elif how == "discard":
        engine.discard(job_id, now_ms)
    elif how == "expire":
        assert engine.pull("q", now_ms + 2000, 0) is None
    else:
        engine.pull("q", now_ms, 0, lease_ms=1)
        if how == "lose":
            engine.advance(now_ms + 1, 1_000_000)
        else:
            assert engine.remove(job_id)


ENDS = ["remove", "cancel", "clean", "drain", "obliterate", "discard", "expire", "lose", "remove active"]


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("how", ENDS)
def test_c016_whatever_ends_the_holder_frees_its_key_at_once(how: str, restart: bool) -> None:
    engine = Engine(SEED, tracking=True)
    holder = keyed(engine, extra={**ttl(HOUR), "ttl": 1000}, attempts=1)
    end(engine, how, holder, NOW)
    if restart:
        engine = reopened(engine)
    assert engine.key_owner("q", "k", NOW) is None
    new = keyed(engine)
    assert new != holder
    assert engine.key_owner("q", "k", NOW) == new
    engine._check()


@pytest.mark.parametrize("remove", [False, True, 1])
@pytest.mark.parametrize("well", [True, False])
def test_c016_the_last_outcome_frees_the_key(well: bool, remove: bool | int) -> None:
    engine = Engine(SEED)
    holder = keyed(engine, extra=ttl(HOUR), attempts=1)
    engine.pull("q", NOW, 0)
    if well:
        engine.ack(holder, NOW, remove=remove)
    else:
        engine.fail(holder, NOW, remove=remove)
    assert keyed(engine) != holder


def test_c016_a_key_belongs_to_one_job_whatever_becomes_of_an_earlier_one() -> None:
    engine = Engine(SEED)
    first = keyed(engine, attempts=1)
    engine.pull("q", NOW, 0)
    engine.fail(first, NOW)
    second = keyed(engine, delay_ms=10_000)
    engine.remove(first)
    assert keyed(engine) == second
    engine._check()


def test_defect_37_a_cleanup_touches_no_key_of_an_active_job_and_none_that_is_kept() -> None:
    """Nothing is left of the queues but an active holder and a key that outlives its job."""
    engine = Engine(SEED)
    holder = keyed(engine)
    others = [keyed(engine, key=f"k{n}") for n in range(3)]
    engine.pull("q", NOW, 0, lease_ms=HOUR)
    assert engine.drain("q") == len(others)
    gone = keyed(engine, queue="kept", extra=ttl(HOUR, deduplicationKeep=True))
    engine.remove(gone)
    for minute in range(1, 30):
        ms = NOW + minute * 60_000
        ns = minute * 60_000_000_000
        while engine.advance(ms, ns):
            pass
        engine._check()
        assert engine.key_owner("q", "k", ms) == holder == keyed(engine, ms)
        assert keyed(engine, ms, queue="kept") == gone
    while engine.advance(NOW + HOUR, HOUR * 1_000_000):
        pass
    assert engine.key_owner("kept", "k", NOW + HOUR) is None


def test_defect_41_custom_ids_of_live_jobs_are_never_pushed_out() -> None:
    """Beside many more ids of finished jobs than are remembered."""
    engine = Engine(SEED, max_completed=10)
    live = [engine.push("q", None, NOW, job_id=f"live{n}", delay_ms=HOUR) for n in range(3000)]
    active = engine.push("a", None, NOW, job_id="active")
    engine.pull("a", NOW, 0)
    for n in range(3000):
        engine.push("b", None, NOW, job_id=f"done{n}")
        engine.pull("b", NOW, 0)
        engine.ack(f"done{n}", NOW)
    assert [engine.push("q", b"\x01", NOW, job_id=job_id) for job_id in (*live, active)] == [*live, active]
    assert engine.data(live[0]) is None
    assert len(engine) == 3000 + 1 + 10
    assert engine.state(active) == "active"


def test_defect_37_41_keys_of_live_jobs_are_never_pushed_out() -> None:
    engine = Engine(SEED)
    holders = [keyed(engine, key=f"k{n}") for n in range(3000)]
    engine.push("empty", None, NOW, job_id="x")
    engine.remove("x")
    assert [keyed(engine, key=f"k{n}") for n in range(3000)] == holders
    assert len(engine) == 3000


# --- restart -------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["waiting", "delayed", "active"])
def test_invariant_26_a_key_is_held_over_a_restart(state: str) -> None:
    engine = Engine(SEED, tracking=True)
    holder = keyed(engine, delay_ms=50 if state == "delayed" else 0)
    if state == "active":
        engine.pull("q", NOW, 0, lease_ms=1000)
    engine = reopened(engine)
    assert engine.state(holder) == state
    assert keyed(engine) == holder


def test_defect_42_a_restart_does_not_start_the_time_of_a_key_over() -> None:
    engine = Engine(SEED, tracking=True)
    holder = keyed(engine, extra=ttl(1000))
    engine = reopened(engine, NOW + 600)
    assert keyed(engine, NOW + 999) == holder
    assert keyed(engine, NOW + 1000) != holder
    engine = Engine(SEED, tracking=True)
    holder = keyed(engine, extra=ttl(1000))
    engine = reopened(engine, NOW + 1000)
    assert keyed(engine, NOW + 1000) != holder


def test_a_key_that_passed_to_another_job_stays_there_over_a_restart() -> None:
    engine, store = Engine(SEED, tracking=True), MemoryStore()
    old = keyed(engine)
    token = engine.pull("q", NOW, 0, lease_ms=1000)[1]
    new = keyed(engine, extra=REPLACE)
    assert engine.remove(new)
    engine = reopened(engine, store=store)
    assert (engine.state(old), engine.key_owner("q", "k", NOW)) == ("active", None)
    new = keyed(engine)
    engine = reopened(engine, store=store)
    engine.ack(old, NOW, token=token)
    assert engine.key_owner("q", "k", NOW) == new


# --- starting over ---------------------------------------------------------------------------


def test_a_dead_letter_whose_key_another_job_holds_is_not_retried() -> None:
    engine = Engine(SEED)
    dead = [keyed(engine, attempts=1, extra=REPLACE) for _ in range(1)]
    engine.pull("q", NOW, 0)
    engine.fail(dead[0], NOW)
    dead.append(keyed(engine, attempts=1))
    engine.pull("q", NOW, 0)
    engine.fail(dead[1], NOW)
    plain = engine.push("q", None, NOW, attempts=1)
    engine.pull("q", NOW, 0)
    engine.fail(plain, NOW)
    holder = keyed(engine)
    assert engine.retry_dead("q", NOW, job_id=dead[0]) == 0
    with pytest.raises(StateError, match="another job holds its unique key"):
        engine.move_to_wait(dead[0], NOW)
    assert engine.retry_dead("q", NOW, count=1) == 1  # the first one that may
    assert engine.state(plain) == "waiting"
    engine.remove(holder)
    assert engine.retry_dead("q", NOW) == 1  # one takes the key, so the other may not
    assert [engine.state(job_id) for job_id in dead] == ["waiting", "failed"]
    assert engine.key_owner("q", "k", NOW) == dead[0]
    engine._check()


def test_a_completed_job_whose_key_another_job_holds_is_not_run_again() -> None:
    engine = Engine(SEED)
    done = keyed(engine)
    engine.pull("q", NOW, 0)
    engine.ack(done, NOW)
    holder = keyed(engine)
    plain = engine.push("q", None, NOW, priority=1)
    engine.pull("q", NOW, 0)
    engine.ack(plain, NOW)
    assert engine.retry_completed("q", NOW, job_id=done) == 0
    assert engine.retry_completed("q", NOW, count=1) == 1
    assert engine.state(plain) == "prioritized"
    engine.remove(holder)
    assert engine.retry_completed("q", NOW) == 1
    assert keyed(engine) == done
    engine._check()


def test_a_job_that_starts_over_after_the_time_of_its_key_does_not_hold_it() -> None:
    engine = Engine(SEED, tracking=True)
    dead = keyed(engine, attempts=1, extra=ttl(1000))
    engine.pull("q", NOW, 0)
    engine.fail(dead, NOW)
    assert engine.retry_dead("q", NOW + 1000) == 1
    assert engine.key_owner("q", "k", NOW) is None
    engine = reopened(engine, NOW)
    assert keyed(engine, NOW) != dead


# --- keys that outlive their jobs ----------------------------------------------------------------


KEEP = ttl(1000, deduplicationKeep=True)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("how", ["remove", "drain", "discard", "complete"])
def test_a_kept_key_throttles_until_its_time_is_over(how: str, restart: bool) -> None:
    engine, store = Engine(SEED, tracking=True), MemoryStore()
    gone = keyed(engine, extra=KEEP)
    if how == "complete":
        _, token, _ = engine.pull("q", NOW, 0, lease_ms=60_000)
        engine.ack(gone, NOW, token=token, remove=True)
    else:
        end(engine, how, gone, NOW)
    if restart:
        engine = reopened(engine, NOW + 400, store)
    engine.listen("q", sum(EVENT_BITS.values()))
    n = len(engine)
    for options in ({}, REPLACE, extend(HOUR), KEEP):
        assert keyed(engine, NOW + 999, extra=options, job_id="mine") == gone
        assert engine.take_events() == [("duplicated", "q", gone, NOW + 999, None)]
    assert (len(engine), engine.key_owner("q", "k", NOW + 999)) == (n, gone)
    assert engine.next_due(NOW + 400, 0) == 600_000_000
    engine._check()
    engine.advance(NOW + 1000, 0)
    assert engine.next_due(NOW + 1000, 0) is None or how == "discard"
    assert engine.key_owner("q", "k", NOW) is None  # not only over: forgotten
    assert keyed(reopened(engine, NOW, store), NOW + 1000) != gone


def test_a_kept_key_can_be_freed_and_goes_with_its_queue() -> None:
    engine = Engine(SEED, tracking=True)
    for _ in range(2):
        engine.remove(keyed(engine, extra=KEEP))
        assert engine.remove_key("q", "k", NOW)
        assert not engine.remove_key("q", "k", NOW)
    engine.remove(keyed(engine, extra=KEEP))
    engine.obliterate("q")
    assert engine.key_owner("q", "k", NOW) is None
    assert reopened(engine).key_owner("q", "k", NOW) is None
    assert engine.next_due(NOW, 0) is None


def test_kept_keys_are_bounded_and_the_one_that_ends_first_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_KEPT_KEYS", 3)
    engine = Engine(SEED, tracking=True)
    for n, ms in enumerate((500, 300, 400, 600)):
        engine.remove(keyed(engine, key=f"k{n}", extra=ttl(ms, deduplicationKeep=True)))
        engine._check()
    assert [engine.key_owner("q", f"k{n}", NOW) is not None for n in range(4)] == [True, False, True, True]
    again = reopened(engine)
    again.remove(keyed(again, key="new", extra=ttl(350, deduplicationKeep=True)))
    again._check()
    assert again.key_owner("q", "k2", NOW) is None


# --- control ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_job", [False, True])
def test_a_removed_key_does_not_come_back(by_job: bool) -> None:
    engine = Engine(SEED, tracking=True)
    holder = keyed(engine)
    engine = reopened(engine)
    if by_job:
        assert engine.remove_job_key(holder)
        assert not engine.remove_job_key(holder)
    else:
        assert engine.remove_key("q", "k", NOW)
        assert not engine.remove_key("q", "k", NOW)
    assert engine.n_changes == 1
    store = MemoryStore()
    engine._check()
    store.commit(rows.take_rows(engine, NOW, 0))
    assert engine.key_owner("q", "k", NOW) is None
    assert keyed(engine) != holder


def test_a_job_gives_up_only_its_own_key() -> None:
    engine = Engine(SEED)
    old = keyed(engine)
    engine.pull("q", NOW, 0)
    new = keyed(engine, extra=REPLACE)
    assert not engine.remove_job_key(old)
    assert not engine.remove_job_key("absent")
    assert not engine.remove_job_key(engine.push("q", None, NOW))
    engine.ack(old, NOW)
    assert not engine.remove_job_key(old)
    assert engine.remove_job_key(new)


# --- debounce ----------------------------------------------------------------------------------------


def debounced(engine: Engine, now_ms: int, data: bytes, wait_ms: int = 100) -> str:
    extra = {"debounceId": "k", "debounceTtl": wait_ms}
    return engine.push("q", data, now_ms, delay_ms=wait_ms, extra=extra)


def test_of_debounced_jobs_the_last_one_runs_after_the_last_add() -> None:
    engine = Engine(SEED)
    unique = keyed(engine)  # keys of another kind
    engine.cancel(unique, NOW)
    ids = [debounced(engine, NOW + 50 * n, bytes([n])) for n in range(4)]
    assert len(set(ids)) == 4
    assert engine.pull("q", NOW + 249, 0) is None
    assert engine.pull("q", NOW + 250, 0) == (ids[3], None, b"\3")
    later = debounced(engine, NOW + 260, b"\4")  # the first is at work: a new round
    assert engine.state(ids[3]) == "active"
    assert keyed(engine) != later
    engine.ack(ids[3], NOW + 270)
    last = debounced(engine, NOW + 280, b"\5")
    assert (engine.state(later), engine.pull("q", NOW + 380, 0)[2]) == ("unknown", None)
    assert engine.pull("q", NOW + 380, 0)[:1] == (last,)
    engine._check()


# --- plans -------------------------------------------------------------------------------------------


def test_a_plan_sees_what_earlier_members_do() -> None:
    engine = Engine(SEED)
    holder = keyed(engine, job_id="holder")
    engine.pull("q", NOW, 0)
    k = {"uniqueKey": "k"}
    late = {**k, **extend(100)}

    def plan(*members: tuple[str | None, dict[str, Any] | None]) -> tuple[int, str] | None:
        before = (len(engine), engine.key_owner("q", "k", NOW))
        found = engine.plan_keys("q", list(members), NOW)
        assert (len(engine), engine.key_owner("q", "k", NOW)) == before
        return found

    assert plan((None, k), (None, None)) is None
    assert plan((None, None), (None, late)) == (1, "Duplicate unique_key (extended TTL)")
    assert plan((None, {**k, **REPLACE}), (None, late)) is None  # the new holder is not at work
    assert plan(("holder", late), (None, k)) is None  # the id is there, so the key is not asked for
    tied = "Cannot replace deduplicated job a because live jobs depend on it"
    assert plan(
        ("a", {"uniqueKey": "l"}), (None, {"dependsOn": ["a"]}), (None, {"uniqueKey": "l", **REPLACE})
    ) == (
        2,
        tied,
    )
    assert (
        plan(("a", {"uniqueKey": "l"}), (None, {"uniqueKey": "l", **REPLACE}), ("a", {"uniqueKey": "m"}))
        is None
    )
    assert engine.plan_keys("absent", [(None, late), (None, late)], NOW) is None
    assert holder == "holder"
