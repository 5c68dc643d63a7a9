"""Ready jobs are lined up at once when a file is opened: in the order that they had."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from broker_talk import Talk

from qcore.broker import open_broker, rows
from qcore.broker.archive import FENCE_ROWS
from qcore.broker.core import Broker
from qcore.broker.opening import close_broker, flush
from qcore.clock import ManualClock
from qcore.store.native import NativeSqliteStore

QUEUES = ["a", "b", "c"]


def fill(talk: Talk, rng: random.Random, n: int) -> None:
    for at in range(0, n, 50):
        jobs: list[dict[str, Any]] = []
        for i in range(at, at + 50):
            job: dict[str, Any] = {"name": "n", "data": i, "customId": str(i)}
            job["priority"] = rng.choice([0, 0, 1, -2.5, 1e300, rng.randrange(10**6)])
            match rng.randrange(8):
                case 0:
                    job["lifo"] = True
                case 1:
                    job["delay"] = rng.choice([1, 10**9])
                case 2:
                    job |= {"groupId": f"g{i % 3}", "priority": i % 5}
                case 3:
                    job["ttl"] = 10**9
            jobs.append(job)
        talk.good("PUSHB", queue=rng.choice(QUEUES), jobs=jobs)


def drained(broker: Broker) -> list[list[str]]:
    talk = Talk(broker)
    return [[job["id"] for job in talk.good("PULLB", queue=q, count=1000)["jobs"]] for q in QUEUES]


def opened(path: Path, clock: ManualClock) -> Broker:
    return open_broker(str(path), clock=clock, seed=b"s" * 16, mode="server")


@pytest.mark.parametrize("seed", range(3))
def test_order_after_a_restart(tmp_path: Path, clock: ManualClock, seed: int) -> None:
    rng = random.Random(seed)
    path = tmp_path / "jobs.db"
    broker = opened(path, clock)
    talk = Talk(broker)
    fill(talk, rng, 1500)
    clock.advance(5)
    talk.good("PULLB", queue="a", count=20)
    for i in rng.sample(range(1500), 100):
        talk.ask("ChangePriority", id=str(i), priority=rng.randrange(5))
        talk.ask("Cancel", id=str(i + 1))
    flush(broker)
    # Both from one state of the file: one that was reopened, one that went on.
    copy = tmp_path / "copy.db"
    broker.store.close()
    copy.write_bytes(path.read_bytes())
    again = opened(path, clock)
    again.engine._check()
    other = open_broker(clock=clock, seed=b"s" * 16, mode="server")
    one_by_one(other, copy, clock)
    expected = drained(other)
    assert drained(again) == expected
    assert sum(map(len, expected)) > 1000
    again.engine._check()
    close_broker(again)


def one_by_one(broker: Broker, path: Path, clock: ManualClock) -> None:
    store = NativeSqliteStore(path)
    snapshot = store.load()
    now_ms, now_ns = clock.now_ms(), clock.now_ns()
    rows.restore_names(broker.engine, snapshot.names, snapshot.queues, now_ms, now_ns)
    for row in snapshot.jobs:
        rows.restore(broker.engine, row, now_ms, now_ns)
    rows.settle_active(broker.engine, True, False, now_ms)
    store.close()


def test_a_later_generation_takes_the_place_of_a_job_that_is_not_lined_up(
    tmp_path: Path, clock: ManualClock
) -> None:
    path = tmp_path / "jobs.db"
    broker = opened(path, clock)
    Talk(broker).good("PUSHB", queue="a", jobs=[{"name": "n", "customId": c, "priority": 3} for c in "xyz"])
    flush(broker)
    broker.store.close()
    store = NativeSqliteStore(path)
    snapshot = store.load()
    found = list(snapshot.jobs)
    store.close()
    broker = open_broker(clock=clock, seed=b"s" * 16)
    engine = broker.engine
    rows.restore_names(engine, snapshot.names, snapshot.queues)
    loader = rows.Loader(engine, clock.now_ms(), clock.now_ns(), FENCE_ROWS, 10)
    # The seal binds a row to its number, so the same rows twice stand for two generations.
    loader.load([*found, found[0], (99, 1, 1, b"cut", None, None)])
    loader.line_up()
    assert [seq for seq, _ in loader.unreadable] == [99]
    assert loader.damaged == [((99, 1, 1, b"cut", None, None), loader.unreadable[0][1])]
    rows.settle_active(engine, True, False, clock.now_ms())
    engine._check()
    assert len(engine) == 3
    jobs = Talk(broker).good("PULLB", queue="a", count=9)["jobs"]
    assert [job["id"] for job in jobs] == ["x", "y", "z"]
