"""In which order jobs come out, and that none comes before its time."""

from __future__ import annotations

import math
import random

import pytest

from qcore.engine.engine import Engine

SEED = bytes(16)
NOW = 1_700_000_000_000
HOUR = 3_600_000


def drain(engine: Engine, queue: str = "q", now_ms: int = NOW) -> list[str]:
    return [job_id for job_id, _, _ in engine.pull_many(queue, 100_000, now_ms, 0)]


def test_equal_jobs_run_in_the_order_of_their_admission() -> None:
    engine = Engine(SEED)
    ids = engine.push_many("q", [b"\xc0"] * 10_000, NOW)
    assert drain(engine) == ids


def test_custom_ids_do_not_change_the_order_within_one_millisecond() -> None:
    engine = Engine(SEED)
    ids = [engine.push("q", None, NOW, job_id=name) for name in ("z", "a", "m", "0", "b")]
    assert drain(engine) == ids


def test_the_whole_order_against_the_rule() -> None:
    rng = random.Random(7)
    engine = Engine(SEED)
    jobs = []
    for seq in range(3000):
        priority = rng.choice([-2.5, -1, -0.0, 0, 0.5, 1, 1e300, -1e300, 2**53])
        lifo, delay = rng.random() < 0.3, rng.choice([0, 0, -5, -HOUR, 3, 10])
        job_id = engine.push("q", None, NOW, priority=priority, lifo=lifo, delay_ms=delay)
        place = (-priority, 0, -seq) if lifo else (-priority, 1, NOW + delay, seq)
        jobs.append((place, job_id))
    engine._check()
    assert drain(engine, now_ms=NOW + 10) == [job_id for _, job_id in sorted(jobs)]


def test_an_urgent_job_goes_next() -> None:
    engine = Engine(SEED)
    engine.push_many("q", [b"\xc0"] * 1000, NOW)
    urgent = engine.push("q", None, NOW + 1, priority=0.001)
    assert engine.pull("q", NOW + 1, 0)[0] == urgent


def test_a_delayed_job_that_became_ready_competes_by_its_run_time() -> None:
    engine = Engine(SEED)
    late = engine.push("q", None, NOW, delay_ms=10)
    early = engine.push("q", None, NOW + 5)
    later = engine.push("q", None, NOW + 15)
    assert drain(engine, now_ms=NOW + 20) == [early, late, later]


def test_a_blocked_head_blocks_nobody() -> None:
    engine = Engine(SEED)
    engine.push("q", None, NOW, priority=100, delay_ms=HOUR)
    engine.push("held", None, NOW, priority=100)
    engine.pause("held")
    plain = engine.push("q", None, NOW)
    assert drain(engine) == [plain]
    assert drain(engine, "held") == []


@pytest.mark.parametrize(
    "delay",
    [0, 1, 2_147_483_647, 2_147_483_648, 30 * 24 * HOUR, 100 * 365 * 24 * HOUR, 4_320_000_000_000_000],
)
def test_no_job_runs_before_its_time(delay: int) -> None:
    engine = Engine(SEED)
    job_id = engine.push("q", None, NOW, delay_ms=delay)
    if delay:
        assert engine.pull("q", NOW + delay - 1, 0) is None
        assert engine.state(job_id) == "delayed"
        due = engine.next_due(NOW, 0)
        # A century is as good as never; what counts is that the wait is neither negative nor too short.
        assert due == min(delay, 100 * 366 * 86_400_000) * 1_000_000
    assert engine.pull("q", NOW + delay, 0)[0] == job_id


@pytest.mark.parametrize("delay", [-1, -(NOW + 1), -4_320_000_000_000_000])
def test_a_time_in_the_past_means_ready_now_and_ahead_of_equals(delay: int) -> None:
    engine = Engine(SEED)
    plain = engine.push("q", None, NOW)
    past = engine.push("q", None, NOW, delay_ms=delay)
    assert engine.state(past) == "waiting"
    assert drain(engine) == [past, plain]


def test_a_retried_job_keeps_its_priority_and_goes_behind_those_that_were_ready_earlier() -> None:
    engine = Engine(SEED)
    first = engine.push("q", None, NOW, backoff_ms=0, priority=5)
    rest = [engine.push("q", None, NOW, priority=5) for _ in range(3)]
    assert engine.pull("q", NOW, 0)[0] == first
    engine.fail(first, NOW + 1)
    low = engine.push("q", None, NOW, priority=4)
    assert drain(engine, now_ms=NOW + 1) == [*rest, first, low]


def test_a_job_given_back_has_its_old_place() -> None:
    engine = Engine(SEED)
    ids = engine.push_many("q", [b"\xc0"] * 4, NOW)
    engine.pull_many("q", 2, NOW, 0, session=1)
    assert engine.close_session(1, NOW + 5) == 2
    assert drain(engine) == ids


@pytest.mark.parametrize("back_ms", [120_000, 14 * 365 * 24 * HOUR])
def test_a_ready_job_stays_ready_when_the_wall_clock_is_set_back(back_ms: int) -> None:
    engine = Engine(SEED)
    ids = engine.push_many("q", [b"\xc0"] * 3, NOW)
    engine.pull("q", NOW, 0, lease_ms=30_000)
    engine.pull("q", NOW, 0, lease_ms=60_000, session=4)
    then = NOW - back_ms
    assert not engine.advance(then, 29_999_000_000)
    assert engine.state(ids[0]) == "active"
    engine.advance(then, 30_000_000_000)
    engine.close_session(4, then)
    # A job admitted by the new clock sorts by it, and keeps to the order of ids all the same.
    assert engine.push("q", None, then) > ids[-1]
    assert drain(engine, now_ms=then)[1:] == ids


def test_priorities_that_are_not_different_are_one_priority() -> None:
    engine = Engine(SEED)
    ids = [engine.push("q", None, NOW, priority=p) for p in (-0.0, 0.0, -0.0)]
    assert drain(engine) == ids
    assert engine.counts("q", NOW)["prioritized"] == 0
    assert engine.push("q", None, NOW, priority=math.nextafter(0, 1))
    assert engine.counts("q", NOW)["prioritized"] == 1


def test_a_paused_queue_delivers_nothing_and_resumes_whole() -> None:
    engine = Engine(SEED)
    engine.pause("q")
    ids = engine.push_many("q", [b"\xc0"] * 3, NOW)
    engine.push("q", None, NOW, delay_ms=5, priority=1)
    assert engine.counts("q", NOW)["paused"] == 3
    assert engine.counts("q", NOW + 5) | {"delayed": 0} == engine.counts("q", NOW + 5)
    assert engine.counts("q", NOW + 5)["paused"] == 4
    assert drain(engine, now_ms=NOW + 5) == []
    engine.pause("q", False)
    assert drain(engine, now_ms=NOW + 5)[1:] == ids
