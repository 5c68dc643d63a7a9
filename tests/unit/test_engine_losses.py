"""What time does to deliveries: silence, orphans, lost connections, timeouts, the end of a ttl."""

from __future__ import annotations

from typing import Any

import pytest

from qcore.broker import rows
from qcore.engine.engine import Engine
from qcore.engine.table import EVENT_BITS
from qcore.errors import LeaseError, StateError
from qcore.store.memory import MemoryStore

SEED = bytes(16)
NOW = 1_700_000_000_000
MS = 1_000_000
MINUTE = 60_000
EXACT = {"backoffConfig": {"type": "exponential", "delay": 1000, "jitter": 0}}


def at(engine: Engine, ms: int) -> None:
    """Handle what is due ``ms`` after the start of both clocks."""
    while engine.advance(NOW + ms, ms * MS):
        pass
    engine._check()


def pull(engine: Engine, ms: int = 0, **how: Any) -> Any:
    return engine.pull("q", NOW + ms, ms * MS, **how)


@pytest.fixture
def engine() -> Engine:
    return Engine(SEED)


def reopened(engine: Engine) -> Engine:
    """The same after a restart."""
    store = MemoryStore()
    store.commit(rows.take_rows(engine, NOW, 0))
    snapshot = store.reopened().load()
    again = Engine(bytes(15) + b"\1", tracking=True)
    rows.restore_names(again, snapshot.names, snapshot.queues)
    for row in snapshot.jobs:
        rows.restore(again, row, NOW, 0)
    rows.settle_active(again, True, False, NOW)
    again._check()
    return again


def told(engine: Engine) -> list[tuple[str, object]]:
    return [(kind, data[:2] if kind == "failed" else data) for kind, _, _, _, data in engine.take_events()]


# --- silence -------------------------------------------------------------------------------


def test_a_silent_delivery_without_a_lease_is_retried_after_the_backoff(engine: Engine) -> None:
    engine.listen("q", EVENT_BITS["stalled"] | EVENT_BITS["failed"] | EVENT_BITS["retried"])
    job_id = engine.push("q", None, NOW, extra=dict(EXACT))
    pull(engine)
    at(engine, 29_999)
    assert engine.state(job_id) == "active"
    at(engine, 30_000)
    assert (engine.state(job_id), engine.attempts(job_id)) == ("delayed", 1)
    assert engine.run_at_ms(job_id) == NOW + 31_000
    assert told(engine) == [("stalled", (1, "retry"))]


def test_the_bounds_of_a_stalled_job(engine: Engine) -> None:
    engine.listen("q", EVENT_BITS["stalled"] | EVENT_BITS["failed"])
    tried = engine.push("q", None, NOW, attempts=1)
    pull(engine)
    at(engine, 30_000)
    assert told(engine) == [
        ("stalled", (1, "move_to_dlq")),
        ("failed", ("Job stalled at max attempts (1)", True)),
    ]
    stalled = engine.push("q", None, NOW, attempts=9, backoff_ms=0)
    for n in range(1, 4):
        assert pull(engine, n * MINUTE)[0] == stalled
        at(engine, n * MINUTE + 30_000)
    assert [letter["reason"] for _, _, letter in engine.dead_letters("q")] == [
        "max_attempts_exceeded",
        "stalled",
    ]
    assert told(engine)[-1] == ("failed", ("Job stalled 3 times", True))
    assert engine.state(tried) == engine.state(stalled) == "failed"


def test_defect_30_a_limit_of_no_stalls_is_no_limit_on_every_path(engine: Engine) -> None:
    engine.configure("q", stalls={"maxStalls": 0, "stallInterval": 100, "gracePeriod": 0})
    job_id = engine.push("q", None, NOW, attempts=1000, backoff_ms=0)
    for n in range(1, 41):
        assert pull(engine, n * 1000)[0] == job_id  # silent
        at(engine, n * 1000 + 100)
        assert pull(engine, n * 1000 + 200, lease_ms=50)[0] == job_id  # its lease ends
        at(engine, n * 1000 + 250)
        assert pull(engine, n * 1000 + 300, session=1)[0] == job_id  # its connection ends
        engine.close_session(1, NOW + n * 1000 + 300)
    assert (engine.state(job_id), engine.attempts(job_id)) == ("waiting", 80)


@pytest.mark.parametrize("sign", ["heartbeat", "progress"])
def test_invariant_15_signs_of_life_each_half_interval_keep_a_job(engine: Engine, sign: str) -> None:
    engine.configure("q", stalls={"stallInterval": 200, "gracePeriod": 0})
    job_id = engine.push("q", None, NOW)
    quiet = engine.push("q", None, NOW, backoff_ms=60_000)
    pull(engine)
    pull(engine)
    for ms in range(100, 5000, 100):
        at(engine, ms)
        if sign == "heartbeat":
            assert engine.renew(job_id, NOW + ms, ms * MS)
        else:
            engine.set_progress(job_id, 1, NOW + ms, ms * MS)
    assert engine.state(job_id) == "active"
    assert (engine.state(quiet), engine.attempts(quiet)) == ("delayed", 1)
    for ms in range(5000, 6500, 100):
        at(engine, ms)
    assert engine.state(job_id) != "active"


def test_a_lease_is_the_contract_unless_an_interval_was_set(engine: Engine) -> None:
    plain = engine.push("q", None, NOW)
    bounded = engine.push("q", None, NOW, extra={"stallTimeout": 8_000})
    pull(engine, lease_ms=10 * MINUTE)
    pull(engine, lease_ms=10 * MINUTE)
    at(engine, 7_999)
    assert engine.state(bounded) == "active"
    at(engine, 8_000)
    assert engine.state(bounded) == "delayed"
    at(engine, 5 * MINUTE)
    assert engine.state(plain) == "active"
    engine.configure("q", stalls={"stallInterval": 30_000})
    at(engine, 5 * MINUTE)
    assert engine.state(plain) == "delayed"


def test_the_grace_of_a_start_is_longer_than_a_short_interval(engine: Engine) -> None:
    engine.configure("q", stalls={"stallInterval": 100, "gracePeriod": 1000})
    job_id = engine.push("q", None, NOW)
    own = engine.push("q", None, NOW, extra={"stallTimeout": 300})
    pull(engine)
    pull(engine)
    at(engine, 999)
    assert engine.state(job_id) == engine.state(own) == "active"
    at(engine, 1000)
    assert engine.state(job_id) == engine.state(own) == "delayed"


def test_defect_28_what_counts_is_the_last_sign_at_the_moment_of_the_look(engine: Engine) -> None:
    job_id = engine.push("q", None, NOW)
    pull(engine)
    assert engine.renew(job_id, NOW + 29_999, 29_999 * MS)
    at(engine, 30_000)
    assert engine.state(job_id) == "active"
    # One that ended and was delivered again is another delivery.
    engine.ack(job_id, NOW + 30_001)
    again = engine.push("q", None, NOW)
    pull(engine, 40_000)
    at(engine, 60_000)
    assert engine.state(again) == "active"
    at(engine, 70_000)
    assert engine.state(again) == "delayed"


def test_plain_deliveries_set_one_time_a_queue(engine: Engine) -> None:
    """Nothing is kept by job: the next look stays where the first delivery put it."""
    engine.push_many("q", [b"\xc0"] * 100, NOW)
    pull(engine)
    due = engine.next_due(NOW, 0)
    assert due == 30_000 * MS
    for n in range(1, 100):
        pull(engine, n)
    assert engine.next_due(NOW + 99, 99 * MS) == due - 99 * MS
    at(engine, 30_000)
    assert engine.counts("q", NOW + 30_000)["active"] == 99
    # The next one may be stalled in a millisecond, but a queue is not looked at more than once a second.
    waits = engine.next_due(NOW + 30_000, 30_000 * MS)
    assert waits is not None
    assert waits >= min(
        1_000 * MS, (engine.run_at_ms(engine.list_jobs("q", NOW, states=("delayed",))[0]) - NOW - 30_000) * MS
    )
    at(engine, 31_000)
    assert engine.counts("q", NOW + 31_000)["active"] == 0


def test_what_was_done_by_the_holder_of_a_stalled_job_still_counts(engine: Engine) -> None:
    engine.configure("q", stalls={"stallInterval": 100, "gracePeriod": 0})
    leased = engine.push("q", None, NOW)
    _, token, _ = pull(engine, lease_ms=MINUTE)
    plain = engine.push("q", None, NOW)
    pull(engine)
    at(engine, 100)
    assert engine.state(leased) == engine.state(plain) == "delayed"
    assert engine.fail(leased, NOW + 101, token=token) is False  # the stall has charged it
    assert engine.fail(plain, NOW + 101) is False
    with pytest.raises(StateError):
        engine.ack(leased, NOW + 102)
    assert engine.ack(leased, NOW + 102, token=token, result=b"\x01")
    assert engine.ack(plain, NOW + 102, result=b"\x02")
    assert (engine.result(leased), engine.result(plain)) == (b"\x01", b"\x02")
    assert (engine.attempts(leased), engine.attempts(plain)) == (1, 1)
    engine._check()


def test_invariant_10_after_the_next_delivery_the_silent_holder_is_late(engine: Engine) -> None:
    engine.configure("q", stalls={"stallInterval": 100, "gracePeriod": 0})
    job_id = engine.push("q", None, NOW, backoff_ms=0)
    _, old, _ = pull(engine, lease_ms=MINUTE)
    at(engine, 100)
    _, new, _ = pull(engine, 100, lease_ms=MINUTE)
    for command in (engine.ack, engine.fail, engine.discard):
        with pytest.raises(LeaseError):
            command(job_id, NOW + 101, token=old)
    assert engine.ack(job_id, NOW + 102, token=new)


# --- orphans -------------------------------------------------------------------------------


def test_defect_27_an_orphan_is_given_up_after_half_an_hour_where_stalls_are_not_looked_for(
    engine: Engine,
) -> None:
    engine.configure("q", stalls={"enabled": False})
    orphan = engine.push("q", None, NOW)
    held = engine.push("q", None, NOW)
    alive = engine.push("q", None, NOW)
    bounded = engine.push("q", None, NOW, extra={"stallTimeout": 100})
    pull(engine)
    pull(engine, session=3)
    pull(engine)
    pull(engine, session=3)
    at(engine, 30 * MINUTE - 1)
    assert engine.state(orphan) == "active"
    engine.renew(alive, NOW, (30 * MINUTE - 1) * MS)
    at(engine, 30 * MINUTE)
    assert engine.state(orphan) == "delayed"
    at(engine, 45 * MINUTE)
    assert {engine.state(job_id) for job_id in (held, alive, bounded)} == {"active"}
    engine.configure("q", stalls={"enabled": True})
    at(engine, 45 * MINUTE)
    assert {engine.state(job_id) for job_id in (held, alive, bounded)} == {"delayed"}


# --- connections ---------------------------------------------------------------------------


@pytest.mark.parametrize("attempts", [1, 2, 50])
def test_a_job_whose_connection_always_ends_is_started_as_often_as_it_may_stall(
    engine: Engine, attempts: int
) -> None:
    engine.listen("q", EVENT_BITS["stalled"] | EVENT_BITS["failed"])
    job_id = engine.push("q", None, NOW, attempts=attempts)
    starts = 0
    while pull(engine, session=1, lease_ms=MINUTE):
        starts += 1
        engine.close_session(1, NOW)
        engine._check()
        if starts < 3:
            assert (engine.state(job_id), engine.attempts(job_id)) == ("waiting", 0)
    assert starts == 3
    ((dead, _, letter),) = engine.dead_letters("q")
    assert dead == job_id
    assert letter["reason"] == ("max_attempts_exceeded" if attempts == 1 else "stalled")
    assert told(engine) == [("stalled", (1, "move_to_dlq")), ("failed", (letter["error"],))]
    assert engine.retry_dead("q", NOW) == 1
    assert pull(engine, session=1)
    engine.close_session(1, NOW)
    assert engine.state(job_id) == "waiting"  # the count began anew


def test_invariant_14_only_never_renewed_deliveries_go_with_their_connection(engine: Engine) -> None:
    ids = engine.push_many("q", [b"\xc0"] * 3, NOW)
    _, renewed, _ = pull(engine, session=1, lease_ms=MINUTE)
    pull(engine, session=1, lease_ms=MINUTE)
    pull(engine, session=2, lease_ms=MINUTE)
    assert engine.renew(ids[0], NOW, 0, token=renewed)
    assert engine.close_session(1, NOW) == 1
    assert [engine.state(job_id) for job_id in ids] == ["active", "waiting", "active"]
    assert [engine.attempts(job_id) for job_id in ids] == [0, 0, 0]
    at(engine, MINUTE)
    assert engine.attempts(ids[0]) == 1


def test_defect_26_a_silent_old_connection_releases_no_later_delivery(engine: Engine) -> None:
    job_id = engine.push("q", None, NOW)
    pull(engine, session=1, lease_ms=50)
    at(engine, 50)
    pull(engine, 50, session=2, lease_ms=MINUTE)
    assert engine.close_session(1, NOW + 60) == 0
    assert engine.state(job_id) == "active"


# --- occurrences of schedules ----------------------------------------------------------------


@pytest.mark.parametrize("way", ["lease", "silence", "connection", "own bound"])
def test_an_occurrence_whose_holder_is_gone_is_dropped(engine: Engine, way: str) -> None:
    engine.listen("q", EVENT_BITS["stalled"] | EVENT_BITS["failed"] | EVENT_BITS["retried"])
    extra: dict[str, Any] = {"uniqueKey": "cron:nightly", "schedule": "nightly"}
    if way == "own bound":
        extra["stallTimeout"] = 8_000
    job_id = engine.push("q", None, NOW, extra=extra)
    _, token, _ = pull(engine, session=1, lease_ms=0 if way == "silence" else 30_000)
    if way == "connection":
        engine.close_session(1, NOW)
    else:
        at(engine, 30_000)
    engine._check()
    assert engine.state(job_id) == "unknown"
    assert told(engine) == ([] if way == "connection" else [("stalled", None)])
    if token:
        assert engine.ack(job_id, NOW, token=token) is False
    assert not engine.dead_letters("q")


# --- timeouts --------------------------------------------------------------------------------


def test_a_timeout_is_exact_and_takes_an_attempt(engine: Engine) -> None:
    engine.listen("q", EVENT_BITS["failed"] | EVENT_BITS["retried"])
    job_id = engine.push("q", None, NOW, attempts=2, extra={"timeout": 500, **EXACT})
    _, token, _ = pull(engine, lease_ms=MINUTE)
    assert engine.next_due(NOW, 0) == 500 * MS
    at(engine, 499)
    assert engine.state(job_id) == "active"
    at(engine, 500)
    assert (engine.state(job_id), engine.attempts(job_id)) == ("delayed", 1)
    # The answer of that holder changes nothing, neither now nor while somebody else has the job.
    assert engine.ack(job_id, NOW, token=token) is engine.fail(job_id, NOW, token=token) is False
    at(engine, 1500)
    _, second, _ = pull(engine, 1500, lease_ms=MINUTE)
    assert engine.ack(job_id, NOW, token=token) is False
    at(engine, 2000)
    assert engine.ack(job_id, NOW, token=second) is False
    ((_, _, letter),) = engine.dead_letters("q")
    assert (letter["reason"], letter["error"]) == ("timeout", "Job timeout exceeded")
    assert told(engine) == [
        ("failed", ("Job timeout exceeded", False)),
        ("retried", None),
        ("failed", ("Job timeout exceeded", True)),
    ]


# --- ttl -------------------------------------------------------------------------------------


@pytest.mark.parametrize("paused", [False, True])
def test_a_job_past_its_ttl_is_dropped_by_time(engine: Engine, paused: bool) -> None:
    engine.pause("q", paused)
    ready = engine.push("q", None, NOW, extra={"ttl": 100})
    delayed = engine.push("q", None, NOW, delay_ms=5000, extra={"ttl": 200})
    kept = engine.push("q", None, NOW)
    at(engine, 100)
    assert engine.state(ready) == "waiting"  # now > createdAt + ttl
    at(engine, 101)
    assert (engine.state(ready), engine.state(delayed)) == ("unknown", "delayed")
    at(engine, 201)
    assert [engine.state(job_id) for job_id in (ready, delayed, kept)] == ["unknown", "unknown", "waiting"]
    counts = engine.counts("q", NOW + 201)
    assert counts["waiting"] + counts["paused"] == 1
    assert engine.next_due(NOW + 201, 201 * MS) is None


def test_a_job_with_a_ttl_is_not_dropped_while_it_runs(engine: Engine) -> None:
    job_id = engine.push("q", None, NOW, extra={"ttl": 100})
    _, token, _ = pull(engine, lease_ms=MINUTE)
    at(engine, 101)
    assert engine.state(job_id) == "active"
    assert engine.ack(job_id, NOW + 200, token=token)
    again = engine.push("q", None, NOW + 1000, extra={"ttl": 100}, backoff_ms=0)
    _, token, _ = pull(engine, 1000, lease_ms=MINUTE)
    engine.fail(again, NOW + 1001, token=token)
    at(engine, 1101)
    assert engine.state(again) == "waiting"  # it has started in time
    assert engine.next_due(NOW + 1101, 1101 * MS) is None
    assert pull(engine, 5000) is not None


@pytest.mark.parametrize("how", ["retried", "lost", "given back", "postponed", "parked"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_job_that_started_in_time_outlives_its_ttl(how: str, restarted: bool) -> None:
    engine = Engine(SEED, tracking=True)
    job_id = engine.push("q", None, NOW, job_id="a", extra={"ttl": 1000, **EXACT})
    _, token, _ = pull(engine, lease_ms=500, session=1)
    if how == "retried":
        engine.fail(job_id, NOW, token=token)
    elif how == "lost":
        at(engine, 500)
    elif how == "given back":
        engine.close_session(1, NOW)
    elif how == "postponed":
        engine.move_to_delayed(job_id, 3000, NOW, token=token)
    else:
        engine.push("kids", None, NOW, job_id="kid", extra={"parentId": job_id}, parent_token=token)
        assert engine.move_to_waiting_children(job_id, NOW, token=token)
    if restarted:
        engine = reopened(engine)
    at(engine, 2000)
    if how == "parked":
        kid, _, _ = engine.pull("kids", NOW + 2000, 2000 * MS)
        engine.ack(kid, NOW + 2000)
    at(engine, 5000)
    got = pull(engine, 5000)
    assert got is not None
    assert got[0] == job_id


@pytest.mark.parametrize("how", ["completed", "failed", "discarded"])
def test_who_is_started_over_has_no_ttl_any_more(engine: Engine, how: str) -> None:
    job_id = engine.push("q", None, NOW, extra={"ttl": 1000}, attempts=1)
    if how == "discarded":
        engine.discard(job_id, NOW)
    else:
        pull(engine)
        (engine.ack if how == "completed" else engine.fail)(job_id, NOW)
    at(engine, MINUTE)
    retry = engine.retry_completed if how == "completed" else engine.retry_dead
    assert retry("q", NOW + MINUTE) == 1
    at(engine, 2 * MINUTE)
    assert engine.state(job_id) == "waiting"
    assert pull(engine, 2 * MINUTE) is not None


@pytest.mark.parametrize("by", ["time", "pull"])
@pytest.mark.parametrize(
    "policy",
    [
        "failParentOnFailure",
        "continueParentOnFailure",
        "ignoreDependencyOnFailure",
        "removeDependencyOnFailure",
        None,
    ],
)
def test_a_child_that_never_started_in_time_is_missing_for_its_parent(policy: str | None, by: str) -> None:
    """As one that was cancelled: it has not failed, so its policy says nothing."""
    engine = Engine(SEED, tracking=True)
    engine.push("parents", None, NOW, job_id="p")
    extra = {"ttl": 100, "parentId": "p"} | ({} if policy is None else {policy: True})
    engine.push("q", None, NOW, job_id="c", extra=extra)
    if by == "time":
        at(engine, 101)
    else:
        assert pull(engine, 101) is None
    for restarted in (False, True):
        if restarted:
            engine = reopened(engine)
        assert (engine.state("c"), engine.state("p")) == ("unknown", "waiting-children")
        ties = engine.dependencies("p")
        assert ties is not None
        assert {kind: ids for kind, ids in ties.items() if ids} == {"missing": ["c"]}
    assert engine.push("q", None, NOW + 200, job_id="c") == "c"
    pull(engine, 200)
    assert engine.ack("c", NOW + 200)
    assert engine.state("p") == "waiting"


QUEUED = (
    "waiting",
    "prioritized",
    "delayed",
    "waiting-children",
    "paused",
    "a group",
    "a paused group",
    "a full group",
)


@pytest.mark.parametrize("state", QUEUED)
@pytest.mark.parametrize("restarted", [False, True])
def test_no_count_shows_a_job_past_its_ttl(state: str, restarted: bool) -> None:
    """Whatever keeps it from starting."""
    engine = Engine(SEED, tracking=True)
    extra: dict[str, Any] = {"ttl": 100}
    how: dict[str, Any] = {}
    if state == "prioritized":
        how["priority"] = 7
    elif state == "delayed":
        how["delay_ms"] = 5000
    elif state == "waiting-children":
        engine.push("others", None, NOW, job_id="o")
        extra["dependsOn"] = ["o"]
    elif state == "paused":
        engine.pause("q", True)
    elif state != "waiting":
        extra["groupId"] = "g"
        if state == "a paused group":
            engine.pause_group("q", "g", True)
        elif state == "a full group":
            engine.set_group_concurrency("q", "g", 1)
            engine.push("q", None, NOW, job_id="runs", extra={"groupId": "g"})
            pull(engine, lease_ms=MINUTE)
    engine.push("q", None, NOW, job_id="j", extra=extra, **how)
    if restarted:
        engine = reopened(engine)
    before = engine.counts("q", NOW + 100)
    at(engine, 100)
    assert engine.state("j") != "unknown"
    at(engine, 101)
    assert engine.state("j") == "unknown"
    after = engine.counts("q", NOW + 101)
    assert sum(before.values()) - sum(after.values()) == 1
    assert after["waiting"] + after["paused"] + after["prioritized"] + after["delayed"] == 0
    assert after["waiting-children"] == 0
    assert engine.sizes()["lives"] == 0


def test_what_parks_before_its_first_start_keeps_its_ttl(engine: Engine) -> None:
    """And what is ready again, too."""
    engine.push("q", None, NOW, job_id="p", extra={"ttl": 100})
    engine.push("kids", None, NOW, job_id="c", extra={"parentId": "p"})
    assert engine.state("p") == "waiting-children"
    engine._check()
    kid, _, _ = engine.pull("kids", NOW + 50, 50 * MS)
    engine.ack(kid, NOW + 50)
    assert engine.state("p") == "waiting"
    engine._check()
    at(engine, 101)
    assert engine.state("p") == "unknown"


# --- clocks (C011) ---------------------------------------------------------------------------


@pytest.mark.parametrize("back_ms", [120_000, 14 * 365 * 86_400_000])
def test_a_step_of_the_wall_clock_changes_no_interval(engine: Engine, back_ms: int) -> None:
    engine.configure("q", stalls={"stallInterval": 20_000, "gracePeriod": 0})
    silent = engine.push("q", None, NOW)
    timed = engine.push("q", None, NOW, extra={"timeout": 10_000, "stallTimeout": 60_000})
    waits = engine.push("q", None, NOW, delay_ms=5_000)
    engine.configure("q", stalls={"enabled": True})
    _, lease, _ = pull(engine, lease_ms=30_000)
    pull(engine)
    then = NOW - back_ms
    for ms in range(0, 60_001, 1000):
        while engine.advance(then + ms, ms * MS):
            pass
        assert (engine.state(timed) == "active") == (ms < 10_000)
        assert (engine.state(silent) == "active") == (ms < 20_000)
    assert lease is not None
    engine._check()
    assert engine.state(waits) == "delayed"  # a stored time is the wall clock's
    assert engine.push("q", None, then) > waits


# --- what goes wrong ---------------------------------------------------------------------------


def test_one_thing_that_cannot_be_done_does_not_hold_up_the_others(engine: Engine) -> None:
    """It is reported and put off; the engine neither ends nor spins."""
    broken = {"backoffConfig": {"delay": 1000}}  # a damaged row: there is no type
    ends: list[dict[str, Any]] = [{"timeout": 100}, {"stallTimeout": 100}, {}]
    for n, end in enumerate(ends):
        for extra in (broken, EXACT):
            engine.push("q", None, NOW, job_id=f"{n}{len(extra['backoffConfig'])}", extra={**end, **extra})
            pull(engine)
    at(engine, 30_000)
    assert [engine.state(f"{n}3") for n in range(3)] == ["delayed"] * 3
    assert [engine.state(f"{n}1") for n in range(3)] == ["active"] * 3
    faults = engine.take_faults()
    assert {type(error) for _, error in faults} == {KeyError}
    assert len(faults) == 4  # one is late, and silent as well
    assert engine.next_due(NOW + 30_000, 30_000 * MS) == 1000 * MS
    assert not engine.advance(NOW + 31_000, 31_000 * MS)
    assert len(engine.take_faults()) == 4
    for n in range(3):
        assert engine.ack(f"{n}1", NOW + 31_000)
    at(engine, 50_000)
    assert engine.take_faults() == []
