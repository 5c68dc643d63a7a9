"""Who may finish a job, and what becomes of one whose holder is gone."""

from __future__ import annotations

import pytest

from qcore.engine.engine import Engine
from qcore.engine.table import EVENT_BITS
from qcore.errors import LeaseError, StateError

SEED = bytes(16)
NOW = 1_700_000_000_000
MS = 1_000_000


def lost(engine: Engine, at_ms: int) -> None:
    """Handle what is due ``at_ms`` after the start of both clocks."""
    while engine.advance(NOW + at_ms, at_ms * MS):
        pass


def test_only_the_token_of_the_delivery_counts() -> None:
    engine = Engine(SEED)
    job_id = engine.push("q", None, NOW)
    other = engine.push("q", None, NOW)
    _, token, _ = engine.pull("q", NOW, 0, lease_ms=1000)
    _, foreign, _ = engine.pull("q", NOW, 0, lease_ms=1000)
    for command in (engine.ack, engine.fail):
        for missing in (None, ""):
            with pytest.raises(LeaseError, match=f"^Lock token required for job {job_id}$"):
                command(job_id, NOW, token=missing)
        for wrong in (foreign, token.upper(), token[:-1], "x", token + " "):
            with pytest.raises(LeaseError, match=f"^Invalid or expired lock token for job {job_id}$"):
                command(job_id, NOW, token=wrong)
    assert engine.attempts(job_id) == 0
    assert engine.ack(job_id, NOW, token=token, result=b"\x01")
    with pytest.raises(StateError, match=f"^Job not found or not in processing state: {job_id}$"):
        engine.ack(job_id, NOW, token=token)
    assert engine.result(job_id) == b"\x01"
    assert engine.state(other) == "active"


def test_a_stale_holder_cannot_change_a_job() -> None:
    engine = Engine(SEED)
    job_id = engine.push("q", None, NOW)
    _, old, _ = engine.pull("q", NOW, 0, lease_ms=300)
    lost(engine, 300)
    _, new, _ = engine.pull("q", NOW + 300, 300 * MS, lease_ms=300)
    for command in (engine.ack, engine.fail):
        with pytest.raises(LeaseError, match="Invalid or expired"):
            command(job_id, NOW + 300, token=old)
    assert not engine.renew(job_id, NOW + 300, 300 * MS, token=old)
    engine.ack(job_id, NOW + 301, token=new, result=b"\xa1B")
    for command in (engine.ack, engine.fail):
        with pytest.raises(StateError):
            command(job_id, NOW + 302, token=old)
    assert (engine.state(job_id), engine.result(job_id), engine.attempts(job_id)) == (
        "completed",
        b"\xa1B",
        1,
    )


def test_a_lease_that_ran_out_counts_until_that_is_handled() -> None:
    engine = Engine(SEED)
    job_id = engine.push("q", None, NOW)
    _, token, _ = engine.pull("q", NOW, 0, lease_ms=300)
    assert engine.renew(job_id, NOW + 400, 400 * MS, token=token)
    engine.advance(NOW + 699, 699 * MS)
    assert engine.state(job_id) == "active"
    assert engine.ack(job_id, NOW + 10_000, token=token)
    assert engine.attempts(job_id) == 0
    assert not engine.renew(job_id, NOW + 10_000, 10_000 * MS, token=token)


def test_a_lease_whose_end_was_handled_is_not_renewed() -> None:
    engine = Engine(SEED)
    job_id = engine.push("q", None, NOW)
    _, token, _ = engine.pull("q", NOW, 0, lease_ms=300)
    lost(engine, 300)
    assert not engine.renew(job_id, NOW + 300, 300 * MS, token=token)
    engine.pull("q", NOW + 301, 301 * MS, lease_ms=300)
    assert not engine.renew(job_id, NOW + 302, 302 * MS, token=token)


def test_after_that_its_holder_may_still_report_work_done_while_the_job_is_queued() -> None:
    engine = Engine(SEED)
    job_id = engine.push("q", None, NOW, priority=1)
    _, token, _ = engine.pull("q", NOW, 0, lease_ms=300)
    lost(engine, 300)
    assert engine.state(job_id) == "prioritized"
    assert engine.fail(job_id, NOW + 301, token=token) is False
    assert engine.attempts(job_id) == 1
    assert engine.ack(job_id, NOW + 302, token=token, result=b"\x05") is True
    assert engine.result(job_id) == b"\x05"
    assert engine.counts("q", NOW + 302) | {"completed": 1, "prioritized": 0} == engine.counts("q", NOW + 302)
    engine._check()


@pytest.mark.parametrize("lease_ms", [0, 1000])
def test_but_not_when_somebody_else_had_the_job_meanwhile(lease_ms: int) -> None:
    """Its second holder failed it, or gave it back: the first one's report is of no delivery any more."""
    for end in ("fail", "release"):
        engine = Engine(SEED)
        job_id = engine.push("q", None, NOW, backoff_ms=0)
        _, old, _ = engine.pull("q", NOW, 0, lease_ms=300)
        lost(engine, 300)
        _, token, _ = engine.pull("q", NOW + 300, 300 * MS, lease_ms=lease_ms, session=2)
        if end == "fail":
            engine.fail(job_id, NOW + 310, token=token)
        else:
            engine.close_session(2, NOW + 310)
        assert engine.state(job_id) == "waiting"
        with pytest.raises(StateError):
            engine.ack(job_id, NOW + 320, token=old)


def test_a_delivery_without_a_lease_takes_any_token_but_that_of_an_earlier_delivery() -> None:
    engine = Engine(SEED)
    job_id = engine.push("q", None, NOW, extra={"timeout": 5000})
    _, first, _ = engine.pull("q", NOW, 0, lease_ms=300)
    lost(engine, 300)
    engine.pull("q", NOW + 300, 300 * MS)
    for command in (engine.ack, engine.fail):
        with pytest.raises(LeaseError):
            command(job_id, NOW + 301, token=first)
    assert engine.ack(job_id, NOW + 302, token="anything")


def test_a_timeout_ends_the_delivery_for_good() -> None:
    engine = Engine(SEED)
    job_id = engine.push("q", None, NOW, attempts=2, backoff_ms=0, extra={"timeout": 100})
    _, token, _ = engine.pull("q", NOW, 0, lease_ms=1000)
    lost(engine, 100)
    assert (engine.state(job_id), engine.attempts(job_id)) == ("waiting", 1)
    for _ in range(2):
        assert engine.ack(job_id, NOW + 101, token=token) is False
        assert engine.fail(job_id, NOW + 101, token=token) is False
    engine.pull("q", NOW + 101, 101 * MS)  # somebody without a lease
    assert engine.ack(job_id, NOW + 101, token=token) is False
    assert engine.state(job_id) == "active"
    lost(engine, 201)
    assert (engine.state(job_id), engine.attempts(job_id)) == ("failed", 2)


@pytest.mark.parametrize("ms", [9_300_000_000_000, 4_320_000_000_000_000])
def test_a_bound_of_many_centuries_is_not_over_at_once(ms: int) -> None:
    engine = Engine(SEED)
    engine.configure("q", stalls={"stallInterval": ms})
    bounded = engine.push("q", None, NOW, extra={"timeout": ms, "stallTimeout": ms})
    leased = engine.push("q", None, NOW)
    engine.pull("q", NOW, 0)
    _, token, _ = engine.pull("q", NOW, 0, lease_ms=ms)
    lost(engine, 10**10)
    assert engine.renew(leased, NOW, 10**16, token=token, lease_ms=ms)
    lost(engine, 10**11)
    assert engine.state(bounded) == engine.state(leased) == "active"
    assert engine.next_due(NOW, 0) > 0


def test_lost_leases_are_charged_up_to_each_bound() -> None:
    engine = Engine(SEED)
    engine.listen("q", EVENT_BITS["stalled"] | EVENT_BITS["failed"])
    tried = engine.push("q", None, NOW, attempts=2)
    stalled = engine.push("q", None, NOW, attempts=10)
    starts = {tried: 0, stalled: 0}
    for round_ in range(1, 6):
        for job_id, _, _ in engine.pull_many("q", 9, NOW, round_ * 100 * MS, lease_ms=50):
            starts[job_id] += 1
        lost(engine, round_ * 100 + 50)
    assert starts == {tried: 2, stalled: 3}
    assert engine.state(tried) == engine.state(stalled) == "failed"
    said = [(kind, job_id, data) for kind, _, job_id, _, data in engine.take_events()]
    assert [entry for entry in said if entry[1] == tried] == [
        ("stalled", tried, None),
        ("stalled", tried, (2, "move_to_dlq")),
        ("failed", tried, ("Lock expired at max attempts (2)",)),
    ]
    assert said[-2:] == [
        ("stalled", stalled, (3, "move_to_dlq")),
        ("failed", stalled, ("Lock expired after 0 renewals",)),
    ]


def test_stalls_without_a_bound() -> None:
    engine = Engine(SEED)
    job_id = engine.push("q", None, NOW, attempts=1000)
    engine.configure("q", stalls={"maxStalls": 0})
    for round_ in range(1, 51):
        engine.pull("q", NOW, round_ * 100 * MS, lease_ms=50)
        lost(engine, round_ * 100 + 50)
    assert (engine.state(job_id), engine.attempts(job_id)) == ("waiting", 50)


def test_heartbeats_keep_a_lease() -> None:
    engine = Engine(SEED)
    job_id = engine.push("q", None, NOW)
    _, token, _ = engine.pull("q", NOW, 0, lease_ms=100)
    for at in range(50, 2000, 50):
        assert engine.renew(job_id, NOW + at, at * MS, token=token)
        lost(engine, at)
    assert engine.state(job_id) == "active"
    assert engine.renew(job_id, NOW + 2000, 2000 * MS, token=token, lease_ms=10_000)
    lost(engine, 11_999)
    assert engine.state(job_id) == "active"
    lost(engine, 12_000)
    assert engine.state(job_id) == "waiting"


def test_a_heartbeat_needs_the_token_to_renew() -> None:
    engine = Engine(SEED)
    leased, plain = engine.push_many("q", [b"\x01", b"\x02"], NOW)
    engine.pull("q", NOW, 0, lease_ms=100)
    engine.pull("q", NOW, 0)
    assert engine.renew(leased, NOW, 50 * MS)  # says that it lives, no more
    assert not engine.renew(leased, NOW, 50 * MS, token="x")
    assert engine.renew(plain, NOW, 50 * MS)
    assert not engine.renew(plain, NOW, 50 * MS, token="x")
    assert not engine.renew("absent", NOW, 50 * MS)
    lost(engine, 100)
    assert engine.state(leased) == "waiting"
    assert engine.state(plain) == "active"


def test_a_closed_session_gives_back_what_it_never_renewed_uncharged() -> None:
    engine = Engine(SEED)
    ids = engine.push_many("q", [b"\xc0"] * 5, NOW)
    tokens = {job_id: token for job_id, token, _ in engine.pull_many("q", 3, NOW, 0, lease_ms=500, session=7)}
    engine.pull("q", NOW, 0, lease_ms=500, session=8)
    engine.pull("q", NOW, 0, lease_ms=500)
    assert engine.renew(ids[1], NOW, 10 * MS, token=tokens[ids[1]])
    assert engine.close_session(7, NOW + 10) == 2
    assert engine.close_session(7, NOW + 10) == 0
    assert [engine.state(job_id) for job_id in ids] == ["waiting", "active", "waiting", "active", "active"]
    assert all(engine.attempts(job_id) == 0 for job_id in ids)
    # A silent old holder has no say in the next delivery, and a released one no late answer.
    with pytest.raises(StateError):
        engine.ack(ids[0], NOW + 11, token=tokens[ids[0]])
    assert engine.pull("q", NOW + 11, 11 * MS, session=7)[0] == ids[0]
    engine._check()


def test_answers_of_ended_deliveries_are_remembered_for_a_bounded_number() -> None:
    engine = Engine(SEED)
    ids = engine.push_many("q", [b"\xc0"] * 10_001, NOW)
    engine.remove(ids[0])
    first = engine.push("q", None, NOW, attempts=1, priority=1, extra={"timeout": 1})
    _, token, _ = engine.pull("q", NOW, 0, lease_ms=10)
    lost(engine, 1)
    assert engine.ack(first, NOW, token=token) is False
    engine.configure("q", stalls={"maxStalls": 1})  # every lost lease ends its job
    assert len(engine.pull_many("q", 10_000, NOW, 2 * MS, lease_ms=10)) == 10_000
    lost(engine, 12)
    with pytest.raises(StateError):
        engine.ack(first, NOW, token=token)
    assert engine.counts("q", NOW)["failed"] == 10_000  # the oldest dead letter went
    assert engine.state(first) == "unknown"
    engine._check()
