"""Records of jobs: what is written is short, and reads as the numbers in their places did."""

from __future__ import annotations

from typing import Any

from broker_talk import Talk

from qcore.broker import open_broker
from qcore.broker import rows as codec
from qcore.broker.opening import close_broker, flush
from qcore.clock import ManualClock
from qcore.store.base import Cut
from qcore.store.memory import MemoryStore
from tests.records import read_record

YEARS_MS = 300_000_000_000

JOBS: list[dict[str, Any]] = [
    {},
    {"priority": -0.0},
    {"priority": 5e-324},
    {"priority": -1.7e308},
    {"delay": YEARS_MS},
    {"delay": 1},
    {"maxAttempts": 2**31 - 1, "backoff": 86_400_000},
    {"ttl": YEARS_MS, "timeout": 86_400_000},
    {"customId": "ä" * 500},
    {"customId": "k", "data": None},
    {"tags": ["a", "b"], "uniqueKey": "u"},
    {"lifo": True, "timeout": 1},
]


def filled(clock: ManualClock) -> MemoryStore:
    """Every state, and numbers at the ends of their ranges."""
    store = MemoryStore()
    broker = open_broker(store=store, mode="server", clock=clock, seed=bytes(16))
    talk = Talk(broker)
    for queue in ("waits", "runs", "ended", "dead", "again"):
        for job in JOBS:
            if queue == "waits" or not (job.keys() & {"delay", "uniqueKey"}):
                named = {"customId": f"{queue}-{job['customId']}"} if "customId" in job else {}
                talk.good("PUSH", queue=queue, name="n", **{"data": [queue], **job, **named})
    clock.advance(70_000)
    for queue, ttl in (("runs", 500), ("ended", 30_000), ("dead", 30_000), ("again", 30_000)):
        pulled = talk.good("PULLB", queue=queue, owner="w", count=50, lockTtl=ttl)
        clock.advance(3)
        for job, token in zip(pulled["jobs"], pulled["tokens"], strict=True):
            if queue == "runs":
                talk.good("JobHeartbeat", id=job["id"], token=token)
            elif queue == "ended":
                talk.good("ACK", id=job["id"], token=token, result={"r": 1})
            else:
                talk.good("FAIL", id=job["id"], token=token, error="e", unrecoverable=queue == "dead")
    flush(broker)
    return store


def answers(store: MemoryStore, ids: list[str], clock: ManualClock) -> list[dict[str, Any]]:
    """What a broker that starts with this says of each job."""
    broker = open_broker(store=store, mode="server", clock=clock, seed=bytes([1] * 16))
    assert broker.recovery is not None
    assert broker.recovery.unreadable == []
    talk = Talk(broker)
    found = [talk.good("GetJob", id=job_id)["job"] for job_id in ids]
    found += [talk.good("GetResult", id=job_id) for job_id in ids]
    broker.engine._check()
    close_broker(broker)
    return found


def test_a_packed_record_says_what_a_plain_one_said(clock: ManualClock) -> None:
    store = filled(clock)
    plain = store.reopened()
    rows: list[object] = []
    ids: list[str] = []
    for seq, queue, state, record, data, result in store.load().jobs:
        whole = read_record(record)
        assert len(record) < len(whole.plain) - 20
        ids.append(whole.id)
        rows += [seq, queue, state, bytes(whole.plain), data, result]
    plain.commit(Cut(inserts=rows))
    assert answers(store.reopened(), ids, clock) == answers(plain, ids, clock)


def test_a_record_that_was_cut_off_anywhere_is_refused(clock: ManualClock) -> None:
    store = filled(clock)
    snapshot = store.load()
    engine = open_broker(clock=clock, seed=bytes(16)).engine
    codec.restore_names(engine, snapshot.names, snapshot.queues)
    for seq, queue, state, record, data, result in snapshot.jobs:
        for n in range(0, len(record), 1 + len(record) // 90):
            try:
                codec.restore(engine, (seq, queue, state, record[:n], data, result), clock.now_ms(), 0)
            except codec.BadRow:
                continue
            raise AssertionError(f"{n} of {len(record)} bytes")
    assert len(engine) == 0
