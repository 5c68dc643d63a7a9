"""What is kept of finished jobs, when the last of them said so."""

from __future__ import annotations

from typing import Any

import pytest

from qcore.broker import rows
from qcore.engine.engine import Engine
from qcore.store.memory import MemoryStore

SEED = bytes(16)
NOW = 1_700_000_000_000


def complete(engine: Engine, n: int, now_ms: int = NOW, **options: Any) -> list[str]:
    ids = [engine.push("q", None, now_ms, **options) for _ in range(n)]
    for job_id in ids:
        engine.pull("q", now_ms, 0)
        engine.ack(job_id, now_ms)
    return ids


def kept(engine: Engine, state: str = "completed") -> list[str]:
    return list(engine.list_jobs("q", NOW, states=(state,), limit=5000))


def test_the_newest_ones_stay_whoever_asked_for_it() -> None:
    engine = Engine(SEED)
    plain = complete(engine, 5)
    assert kept(engine) == plain
    last = complete(engine, 1, extra={"removeOnComplete": 3})
    assert kept(engine) == plain[3:] + last
    more = complete(engine, 2)
    assert kept(engine) == plain[3:] + last + more
    engine._check()


def test_at_most_a_thousand_go_at_once() -> None:
    engine, store = Engine(SEED, tracking=True), MemoryStore()
    complete(engine, 2500)
    store.commit(rows.take_rows(engine, NOW, 0))
    for left in (1501, 502, 2, 2):
        complete(engine, 1, extra={"removeOnComplete": 2})
        assert len(kept(engine)) == engine.queue("q").n_completed == left
        engine._check()
    store.commit(rows.take_rows(engine, NOW, 0))
    assert len(list(store.load().jobs)) == 2


@pytest.mark.parametrize("policy", [{"age": 1}, {"age": 1, "count": 100}, {"age": 1.0005}])
def test_older_ones_go_and_the_one_of_the_edge_stays(policy: dict[str, float]) -> None:
    engine = Engine(SEED)
    complete(engine, 2)
    edge = complete(engine, 1, NOW + 1)
    last = complete(engine, 1, NOW + 1001, extra={"removeOnComplete": policy})
    assert kept(engine) == edge + last


def test_a_count_and_an_age_both_hold() -> None:
    engine = Engine(SEED)
    complete(engine, 3)
    late = complete(engine, 3, NOW + 5000)
    last = complete(engine, 1, NOW + 5000, extra={"removeOnComplete": {"age": 1, "count": 2}})
    assert kept(engine) == late[2:] + last


def test_a_removed_job_stays_known_as_completed_for_its_id() -> None:
    """It can be added again at once, and an id that comes back is a job of its own."""
    engine = Engine(SEED, max_completed=2)
    engine.push("q", None, NOW, job_id="a")
    engine.pull("q", NOW, 0)
    engine.ack("a", NOW)
    complete(engine, 1, extra={"removeOnComplete": 1})
    assert engine.state("a") == "unknown"
    engine.push("q", None, NOW, job_id="a")
    engine.pull("q", NOW, 0)
    engine.ack("a", NOW)
    complete(engine, 1)
    assert engine.state("a") == "completed"
    engine._check()


@pytest.mark.parametrize("how", ["fail", "discard", "lose"])
def test_dead_letters_are_kept_by_the_policy_of_the_last_one(how: str) -> None:
    engine = Engine(SEED)
    ids = []
    for n in range(4):
        ids.append(engine.push("q", None, NOW, attempts=1, extra={"removeOnFail": {"count": 2}}))
        if how == "discard":
            engine.discard(ids[n], NOW)
            continue
        engine.pull("q", NOW, 0, lease_ms=1 if how == "lose" else 0)
        if how == "fail":
            engine.fail(ids[n], NOW)
        else:
            engine.advance(NOW, 1_000_000)
    assert [entry[0] for entry in engine.dead_letters("q")] == ids[2:]
    assert engine.queue("q").total_failed == 4
    engine._check()


def test_the_wall_clock_set_back_keeps_what_is_not_old_yet() -> None:
    engine = Engine(SEED)
    ahead = complete(engine, 1, NOW + 100_000)
    behind = complete(engine, 2, NOW, extra={"removeOnComplete": {"age": 10}})
    assert sorted(kept(engine)) == sorted(ahead + behind)
    engine._check()
