"""What is left when nothing is left: no collection grows with what has passed."""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from broker_talk import Talk, settle

from qcore.broker import archive, open_broker
from qcore.broker.core import Broker
from qcore.broker.opening import commit, flush
from qcore.clock import ManualClock
from qcore.engine.engine import Engine
from qcore.limits import QUEUE_LOOK_MS
from qcore.store.memory import MemoryStore

#: What remembers the past, up to a bound.
BOUNDED = ("evidence",)
#: One more option each: together they reach every collection there is.
KINDS: list[dict[str, Any]] = [
    {},
    {"priority": 3},
    {"priority": -1, "lifo": True},
    {"delay": 50},
    {"ttl": 60_000},
    {"timeout": 60_000, "stallTimeout": 70_000},
    {"uniqueKey": "k$"},
    {"uniqueKey": "r$", "dedup": {"ttl": 100, "replace": True}},
    {"groupId": "g$", "priority": 5},
    {"groupId": "g$", "delay": 60},
    {"tags": ["a"], "keepLogs": 3},
    {"removeOnComplete": 2, "removeOnFail": True},
    {"debounceId": "d$", "debounceTtl": 20},
    {"customId": "id-$"},
    {"durable": True},
]
#: Filled and emptied within one request.
PASSING = {"events", "evicted", "settled", "woken queues"}
#: Only with a store.
STORED = {"staged", "custom ids in the archive"}


def numbered(value: Any, i: int) -> Any:
    if isinstance(value, dict):
        return {key: numbered(item, i) for key, item in value.items()}
    return value.replace("$", str(i)) if isinstance(value, str) else value


def fill(talk: Talk, round_: int) -> None:
    jobs = [numbered(kind, round_) for kind in KINDS]
    if round_ % 2:
        for job in jobs:
            talk.good(
                "PUSH", queue="q", name="n", **{"jobId" if k == "customId" else k: v for k, v in job.items()}
            )
    else:
        talk.good("PUSHB", queue="q", jobs=jobs)
    talk.good("PUSH", queue="q", name="child", jobId=f"c-{round_}", removeOnComplete=True)
    talk.good("PUSH", queue="q", name="waits", jobId=f"p-{round_}", dependsOn=[f"c-{round_}"])
    talk.good("AddLog", id=f"c-{round_}", message="line")
    talk.good("Cron", name=f"s-{round_}", queue="q", repeatEvery=30, data=None)


def fill_rest(talk: Talk, clock: ManualClock, round_: int, look: Callable[[], None]) -> None:
    """What the jobs of :func:`fill` do not reach."""
    once = {"ttl": 60_000, "keepUntilExpiry": True}
    talk.good("PUSH", queue="q", name="n", uniqueKey=f"l{round_}", dedup=once, removeOnComplete=True)
    talk.send({"cmd": "PUSH", "queue": "q", "name": "n", "durable": True})
    look()
    settle(talk.broker, talk.session)
    assert len(talk.replies()) == 1
    talk.good("PUSH", queue="q", name="n", jobId=f"g-{round_}", parentId=f"p-{round_}")
    talk.good("RegisterWorker", workerId="w", name="w", queues=["q"])
    talk.good("SubscribeEvents", queue="q", eventTypes=["resumed"])
    talk.good("ACK", id=talk.good("PULL", queue="q", detach=True)["job"]["id"])
    look()
    clock.advance(40)
    turn(talk.broker)
    look()
    talk.good("UnsubscribeEvents")


def empty(talk: Talk, clock: ManualClock, how: str, look: Callable[[], None] = lambda: None) -> None:
    """Let every job reach an end, some of them in the dead letters, then remove what is kept."""
    broker = talk.broker
    for name in [cron["name"] for cron in talk.good("CronList")["crons"]]:
        talk.good("CronDelete", name=name)
    for n in range(40):
        clock.advance(40)
        turn(broker)
        flush_if_durable(broker)
        look()
        got = talk.good("PULLB", queue="q", count=100, owner="w")
        look()
        for i, job in enumerate(got["jobs"]):
            token = got["tokens"][i]
            if (n + i) % 5 == 0 and job["name"] != "child":
                talk.good("FAIL", id=job["id"], token=token, error="no", unrecoverable=True)
            else:
                talk.good("ACK", id=job["id"], token=token, result=i)
    if how == "Obliterate":
        talk.good("Obliterate", queue="q")
        return
    assert (
        talk.good("GetJobs", queue="q", state=["waiting", "prioritized", "delayed", "active"])["jobs"] == []
    )
    talk.good("PurgeDlq", queue="q")
    talk.good("Clean", queue="q", grace=0, state="completed", limit=100_000)
    talk.good("Drain", queue="q")


def turn(broker: Broker) -> None:
    """Do all that is due, commits too."""
    seconds: float | None = 0
    while seconds == 0:
        seconds, cut = broker.pump()
        if cut is not None:
            commit(broker, cut)


def flush_if_durable(broker: Broker) -> None:
    if broker.durable:
        flush(broker)


@pytest.mark.parametrize("how", ["Clean", "Obliterate"])
@pytest.mark.parametrize("durable", [False, True])
def test_invariant_50_everything_is_as_small_as_at_the_start(
    clock: ManualClock, how: str, durable: bool
) -> None:
    store = MemoryStore() if durable else None
    broker = open_broker(store=store, mode="server", clock=clock, seed=bytes(16), max_completed=5)
    talk = Talk(broker)
    baseline: dict[str, int] | None = None
    reached: Counter[str] = Counter()

    def look() -> None:
        reached.update({name: n for name, n in broker.engine.sizes().items() if n})

    for round_ in range(3):
        fill(talk, round_)
        fill_rest(talk, clock, round_, look)
        talk.good("GetJobs", queue="q")
        look()
        empty(talk, clock, how, look)
        for _ in range(8):  # rows that were archived go, the worker is given up, and then the queue
            clock.advance(QUEUE_LOOK_MS)
            turn(broker)
        flush_if_durable(broker)
        broker.engine._check()
        found = {name: n for name, n in broker.engine.sizes().items() if n}
        assert found == {}, round_
        if store is not None:
            snapshot = store.load()
            rows = {table: len(entries) for table, entries in snapshot.side.items() if table not in BOUNDED}
            # The highest index of a queue; and totals, which only Obliterate forgets.
            assert rows.pop("telemetry") == (1 if how == "Obliterate" else 2)
            rows["jobs"] = sum(1 for _ in snapshot.jobs)
            assert baseline in (None, rows)
            baseline = rows
            assert set(rows.values()) == {0}
            assert list(snapshot.queues) == []
    assert set(broker.engine.sizes()) - set(reached) == PASSING | (set() if durable else STORED)


@pytest.mark.parametrize("durable", [False, True])
def test_nothing_grows_with_what_has_passed(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    """Also what remembers the past, once its bound is reached: counted in bytes that Python gave out."""
    monkeypatch.setattr(archive, "FENCE_ROWS", 1)
    monkeypatch.setattr(archive, "MOST_FENCES", 32)
    store = MemoryStore() if durable else None
    broker = open_broker(
        store=store, mode="server", clock=clock, seed=bytes(16), max_completed=20, max_minutes=5
    )
    talk = Talk(broker)
    held = []
    tracemalloc.start()
    try:
        for round_ in range(360):
            fill(talk, round_ % 8)
            empty(talk, clock, "Clean")
            clock.advance(60_000)
            turn(broker)
            flush_if_durable(broker)
            if round_ % 30 == 29:
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert held[-1] - held[-2] < 300, held


def test_invariant_52_an_idle_broker_has_nothing_to_do(clock: ManualClock) -> None:
    """A thousand queues, a thousand waiting pulls: the next turn is the end of the first wait."""
    broker = open_broker(clock=clock, seed=bytes(16))
    for i in range(1_000):
        talk = Talk(broker)
        talk.good("Pause", queue=f"paused-{i}")
        talk.good("PUSH", queue=f"paused-{i}", name="n")
        talk.send({"cmd": "PULL", "queue": f"q{i}", "timeout": 60_000})
    while (turn := broker.pump()[0]) == 0:
        pass
    assert turn == pytest.approx(60.0)
    clock.advance(59_999)
    assert broker.pump()[0] == pytest.approx(0.001)


@pytest.mark.parametrize(("n", "most"), [(200_000, 326)])
def test_a_waiting_job_of_100_bytes_costs_at_most_326(n: int, most: int) -> None:
    """Payload included; what the process holds beside that is measured by the benchmarks."""
    engine = Engine(bytes(16))
    empty_bytes = engine.memory()
    data = b"\xc4\x62" + b"x" * 98
    for _ in range(n // 1_000):
        engine.push_many("q", [data] * 1_000, 1_800_000_000_000)
    per_job = (engine.memory() - empty_bytes) / n + 8 + len(data) + 16  # header and rounding of the allocator
    assert per_job <= most
