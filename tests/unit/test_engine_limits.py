"""Limits of a whole queue: how many jobs are active, and how many start in a time."""

from __future__ import annotations

import itertools
import random

import pytest

from qcore.broker import rows
from qcore.engine.bucket import TokenBucket
from qcore.engine.engine import Engine
from qcore.store.memory import MemoryStore

SEED = bytes(16)
NOW = 1_700_000_000_000
SECOND = 1_000_000_000
MS = 1_000_000


def engine_with(n: int, **options: object) -> Engine:
    engine = Engine(SEED, **options)  # type: ignore[arg-type]
    engine.push_many("q", [b"\xc0"] * n, NOW)
    return engine


def take(engine: Engine, ns: int = 0, queue: str = "q") -> str | None:
    got = engine.pull(queue, NOW + ns // MS, ns)
    engine._check()
    return None if got is None else got[0]


def take_all(engine: Engine, ns: int = 0) -> list[str]:
    return list(iter(lambda: take(engine, ns), None))


def test_defect_29_a_concurrency_limit_counts_the_jobs_that_are_active_already() -> None:
    engine = engine_with(5)
    first, second = take(engine), take(engine)
    engine.set_concurrency("q", 2)
    assert take(engine) is None
    assert engine.queue_limits("q", 0) == (None, -2, 2, True)
    engine.ack(first, NOW)
    assert take(engine) is not None
    engine.set_concurrency("q", 1)  # lowered below: what runs may end, nothing starts
    engine.ack(second, NOW)
    assert take(engine) is None
    engine.set_concurrency("q", None)
    assert len(take_all(engine)) == 2


def test_a_concurrency_limit_of_nothing_starts_nothing() -> None:
    engine = engine_with(1)
    engine.set_concurrency("q", 0)
    assert take(engine) is None
    assert engine.queue_limits("q", 0) == (None, -2, 0, True)


WAYS_OUT = ["ack", "fail", "retry", "lease", "timeout", "moved", "returned", "discarded", "removed", "closed"]


def leave(engine: Engine, way: str, job_id: str, token: str | None) -> int:
    """End a delivery that session 1 has with a lease of 100 ms and a timeout of 200 ms; the time after it."""
    if way == "ack":
        engine.ack(job_id, NOW, token=token)
    elif way == "fail":
        engine.fail(job_id, NOW, token=token, unrecoverable=True)
    elif way == "retry":
        engine.fail(job_id, NOW, token=token)
    elif way == "lease":
        engine.advance(NOW + 100, 100 * MS)
        return 100 * MS
    elif way == "timeout":
        engine.renew(job_id, NOW, 0, token=token, lease_ms=60_000)
        engine.advance(NOW + 200, 200 * MS)
        return 200 * MS
    elif way == "moved":
        engine.move_to_delayed(job_id, 60_000, NOW, token=token)
    elif way == "returned":
        engine.move_to_wait(job_id, NOW, token=token)
    elif way == "discarded":
        engine.discard(job_id, NOW, token=token)
    elif way == "removed":
        engine.remove(job_id)
    elif way == "closed":
        engine.close_session(1, NOW)
    return 0


@pytest.mark.parametrize("way", WAYS_OUT)
def test_defect_21_every_way_out_of_active_frees_a_slot(way: str) -> None:
    engine = engine_with(0)
    engine.set_concurrency("q", 1)
    for _ in range(3):
        engine.push("q", None, NOW, extra={"timeout": 200})
    ns = 0
    for _ in range(2):
        got = engine.pull("q", NOW, ns, lease_ms=100, session=1)
        assert got is not None
        assert take(engine, ns) is None
        ns += leave(engine, way, got[0], got[1])
        engine._check()
        if ns:
            break
    assert take(engine, ns) is not None


def test_invariant_20_no_interval_holds_more_starts_than_the_bucket_allows() -> None:
    rng = random.Random(5)
    for most, span_ms in ((1, 100), (3, 1000), (7, 333), (10, 1000), (250, 60_000)):
        bucket_ns, starts = 0, []
        engine = engine_with(3 * most + 20)
        engine.set_rate("q", most, NOW, 0, duration_ms=span_ms)
        while len(starts) < 3 * most:
            bucket_ns += rng.choice([0, 1, 50_000, span_ms * MS // most, span_ms * MS // 3, 3 * span_ms * MS])
            while len(starts) < 3 * most + 20 and engine.pull("q", NOW, bucket_ns):
                starts.append(bucket_ns)
        for i, j in itertools.combinations(range(len(starts)), 2):
            within = starts[j] - starts[i]
            assert j - i + 1 <= most * (1 + within / (span_ms * MS)) + 1e-6


def test_case_023_a_limited_queue_works_off_its_jobs_as_fast_as_it_may() -> None:
    engine = engine_with(105)
    engine.set_rate("q", 10, NOW, 0)
    starts, ns = [], 0
    while len(starts) < 105:
        while take(engine, ns):
            starts.append(ns)
        ns += 100 * MS
    assert starts[:10] == [0] * 10
    assert starts[10:] == [100 * MS * n for n in range(1, 96)]
    assert starts[-1] <= 12 * SECOND


def test_case_023_an_urgent_job_that_comes_due_while_limited_is_the_next() -> None:
    engine = engine_with(3)
    engine.set_rate("q", 1, NOW, 0)
    assert take(engine)
    urgent = engine.push("q", None, NOW, priority=9, delay_ms=500)
    assert take(engine, 999 * MS) is None
    assert take(engine, SECOND) == urgent


def test_case_023_a_limit_changed_while_limited_keeps_what_was_spent() -> None:
    engine = engine_with(20)
    engine.set_rate("q", 4, NOW, 0)
    assert len(take_all(engine)) == 4
    engine.set_rate("q", 4, NOW, 0)  # said again
    assert take(engine) is None
    engine.set_rate("q", 6, NOW, 0)  # two more
    assert len(take_all(engine)) == 2
    engine.set_rate("q", 2, NOW, 0)
    assert take(engine) is None
    assert take(engine, 499 * MS) is None
    assert take(engine, 500 * MS) is not None
    engine.set_rate("q", None, NOW, 0)
    assert len(take_all(engine, 500 * MS)) == 13


def test_defect_31_and_invariant_21_a_pull_that_gets_nothing_costs_no_token() -> None:
    engine = engine_with(0)
    engine.set_rate("q", 1, NOW, 0, duration_ms=3_600_000)
    for _ in range(5):
        assert take(engine) is None  # empty
    engine.push("q", None, NOW, extra={"ttl": 5})
    engine.push("q", None, NOW + 10, delay_ms=50)
    assert engine.pull("q", NOW + 20, 0) is None  # past its ttl, and not yet due
    assert len(engine) == 1
    engine.pause("q")
    assert engine.pull("q", NOW + 100, 0) is None
    engine.pause("q", False)
    engine.push("q", None, NOW, extra={"groupId": "g"})
    engine.pause_group("q", "g")
    engine.set_concurrency("q", 0)
    assert engine.pull("q", NOW + 100, 0) is None
    engine.set_concurrency("q", None)
    assert engine.pull("q", NOW + 100, 0) is not None
    assert engine.pull("q", NOW + 100, 0) is None
    assert engine.queue_limits("q", 0)[1] == 3_600_000


def test_a_temporary_limit_ends_by_itself() -> None:
    engine = engine_with(4)
    engine.set_rate("q", 1, NOW, 0, duration_ms=60_000, ttl_ms=1000)
    assert engine.queue_limits("q", 0) == ((1, 60_000), 1000, None, False)
    assert take(engine) is not None
    assert take(engine, 999 * MS) is None
    assert len(take_all(engine, 1000 * MS)) == 3
    assert engine.queue_limits("q", SECOND) == (None, -2, None, False)
    assert not engine.queue("q").limited  # type: ignore[union-attr]


def test_what_the_wait_says() -> None:
    engine = engine_with(9)
    engine.set_rate("q", 4, NOW, 0, duration_ms=2000)
    assert engine.queue_limits("q", 0)[1] == 0
    assert len(take_all(engine)) == 4
    assert engine.queue_limits("q", 0)[1] == 500
    assert engine.queue_limits("q", 499 * MS)[1] == 1
    assert engine.queue_limits("q", 500 * MS)[1] == 0
    assert engine.queue_limits("q", 500 * MS, max_jobs=3)[1] == 0
    assert engine.queue_limits("q", 0, max_jobs=5)[1] == 0
    assert engine.queue_limits("nowhere", 0) == (None, -2, None, False)


def test_a_rate_of_nothing_starts_nothing_for_ever() -> None:
    engine = engine_with(1)
    engine.set_rate("q", 0.5, NOW, 0)
    assert take(engine, 10**18) is None
    engine.set_rate("q", 1, NOW, 0)
    assert take(engine) is not None


def test_waits_are_exact_to_the_nanosecond() -> None:
    bucket = TokenBucket(3, 1000, NOW, 0, debt_ns=1e9)
    wait = bucket.wait_ns(0)
    assert wait == 333_333_334
    assert bucket.wait_ns(wait - 1) in (0, 1)
    assert bucket.wait_ns(wait) == 0
    assert TokenBucket(0, 1000, NOW, 0).wait_ns(10**18) == -1


def reopened(engine: Engine, store: MemoryStore, now_ms: int, now_ns: int) -> tuple[Engine, MemoryStore]:
    store.commit(rows.take_rows(engine, now_ms, now_ns))
    assert rows.take_rows(engine, now_ms, now_ns).is_empty
    store = store.reopened()
    fresh = Engine(SEED, tracking=True)
    found = store.load()
    rows.restore_names(fresh, found.names, found.queues, now_ms, now_ns)
    assert rows.restore_groups(fresh, found.side["lanes"], now_ms, now_ns) == []
    for row in found.jobs:
        rows.restore(fresh, row, now_ms, now_ns)
    rows.settle_active(fresh, True, False, now_ms)
    fresh._check()
    return fresh, store


def test_invariant_22_limits_outlive_a_restart_with_what_was_spent() -> None:
    engine, store = engine_with(9, tracking=True), MemoryStore()
    engine.set_concurrency("q", 7)
    engine.set_rate("q", 4, NOW, 0, duration_ms=2000)
    assert len(take_all(engine)) == 4
    engine, store = reopened(engine, store, NOW + 300, 77 * SECOND)
    assert engine.queue_limits("q", 77 * SECOND) == ((4, 2000), 200, 7, False)
    # The wall clock may have been set back by an hour: nobody waits longer for that.
    engine, store = reopened(engine, store, NOW - 3_600_000, 5)
    assert engine.queue_limits("q", 5)[1] <= 500
    engine.set_concurrency("q", None)
    engine.set_rate("q", None, NOW, 5)
    engine, store = reopened(engine, store, NOW, 5)
    assert engine.queue_limits("q", 5) == (None, -2, None, False)


def test_a_temporary_limit_goes_on_after_a_restart_for_the_rest_of_its_time() -> None:
    engine, store = engine_with(3, tracking=True), MemoryStore()
    engine.set_rate("q", 1, NOW, 0, ttl_ms=1000)
    engine, store = reopened(engine, store, NOW + 400, 9)
    assert engine.queue_limits("q", 9)[1] == 600
    engine, store = reopened(engine, store, NOW + 1000, 9)
    assert engine.queue_limits("q", 9) == (None, -2, None, False)


def test_obliteration_takes_the_limits_too() -> None:
    engine = engine_with(1)
    engine.set_concurrency("q", 0)
    engine.set_rate("q", 0, NOW, 0)
    engine.obliterate("q")
    assert engine.queue_limits("q", 0) == (None, -2, None, False)
    engine.push_many("q", [b"\xc0"] * 3, NOW)
    assert len(take_all(engine)) == 3
