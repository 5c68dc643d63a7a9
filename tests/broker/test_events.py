"""Who is told of what, in which order, and when."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import pytest
from broker_talk import Talk, frame, frames, settle

from qcore import limits
from qcore.broker import open_broker
from qcore.broker.core import Broker
from qcore.broker.embedded import EmbeddedEngine
from qcore.broker.opening import close_broker, commit
from qcore.clock import ManualClock
from qcore.store.base import StoreFault
from qcore.store.memory import MemoryStore
from qcore.wire.fields import EVENT_TYPES

SEED = bytes(range(16))


@pytest.fixture
def broker(clock: ManualClock) -> Broker:
    return open_broker(clock=clock, seed=SEED)


@pytest.fixture
def talk(broker: Broker) -> Talk:
    return Talk(broker)


def listener(broker: Broker, queue: str = "q", types: list[str] | None = None) -> Talk:
    talk = Talk(broker)
    talk.good("SubscribeEvents", queue=queue, **({} if types is None else {"eventTypes": types}))
    return talk


def told(talk: Talk) -> list[dict[str, Any]]:
    """The events that came, which is all that came."""
    out = []
    for message in talk.replies():
        assert set(message) == {"type", "event"}
        assert message["type"] == "event"
        event = message["event"]
        assert isinstance(event.pop("timestamp"), float)
        out.append(event)
    return out


def kinds(talk: Talk) -> list[str]:
    return [event["eventType"] for event in told(talk)]


# --- what is told ------------------------------------------------------------------------


def test_what_each_event_says(broker: Broker, talk: Talk, clock: ManualClock) -> None:
    ear = listener(broker)
    job = {"queue": "q", "jobId": "j"}

    def said(**more: Any) -> None:
        kind = more.pop("kind")
        assert told(ear) == [{"eventType": kind, **job, **more}]

    talk.good("PUSH", queue="q", name="n", jobId="j", data=[1], maxAttempts=3, backoff=0)
    said(kind="pushed")
    talk.good("PULL", queue="q")
    said(kind="pulled")
    talk.good("Progress", id="j", progress=12.5)
    said(kind="progress", progress=12.5, data={"progress": 12.5})
    talk.good("Progress", id="j", progress=200, message="m")
    said(kind="progress", progress=100, data={"progress": 100, "message": "m"})
    talk.good("MoveToWait", id="j")
    said(kind="waiting", prev="active")
    talk.good("PULL", queue="q")
    told(ear)
    talk.good("ChangeDelay", id="j", delay=50)
    said(kind="delayed", delay=50)
    talk.good("MoveToDelayed", id="j", delay=0)  # not active: no event
    talk.broker.engine.advance(clock.now_ms(), clock.now_ns())
    talk.good("PULL", queue="q")
    told(ear)
    talk.good("FAIL", id="j", error="no")
    assert told(ear) == [
        {"eventType": "failed", **job, "error": "no", "data": [1], "terminal": False},
        {"eventType": "retried", **job, "prev": "failed"},
    ]
    talk.good("PULL", queue="q")
    told(ear)
    talk.good("FAIL", id="j", error="gone", unrecoverable=True)
    said(kind="failed", error="gone", data=[1], terminal=True)
    talk.good("RetryDlq", queue="q")
    said(kind="waiting", prev="failed")
    talk.good("PULL", queue="q")
    told(ear)
    talk.good("ACK", id="j", result={"r": 1})
    said(kind="completed", data={"r": 1})
    talk.good("RetryCompleted", queue="q")
    said(kind="waiting", prev="completed")
    talk.good("PULL", queue="q")
    told(ear)
    talk.good("ACK", id="j")
    said(kind="completed")
    for delay in (0, 50):
        talk.good("PUSH", queue="q", name="n", jobId="c", delay=delay)
        talk.good("Cancel", id="c")
        assert told(ear)[-1] == {"eventType": "removed", "queue": "q", "jobId": "c", "prev": "waiting"}
    for cmd, kind in (("Pause", "paused"), ("Pause", "paused"), ("Resume", "resumed")):
        talk.good(cmd, queue="q")
        assert told(ear) == [{"eventType": kind, "queue": "q", "jobId": ""}]


def test_a_lost_lease_is_told_without_data(broker: Broker, talk: Talk, clock: ManualClock) -> None:
    ear = listener(broker)
    talk.good("PUSH", queue="q", name="n", jobId="j", data=1, maxAttempts=2)
    for _ in range(2):
        talk.good("PULL", queue="q", owner="w", lockTtl=10)
        clock.advance(10)
        broker.pump()
    job = {"queue": "q", "jobId": "j"}
    assert told(ear) == [
        {"eventType": "pushed", **job},
        {"eventType": "pulled", **job},
        {"eventType": "stalled", **job},
        {"eventType": "pulled", **job},
        {"eventType": "stalled", **job, "data": {"stallCount": 2, "action": "move_to_dlq"}},
        {"eventType": "failed", **job, "error": "Lock expired at max attempts (2)"},
    ]


def test_defect_55_retries_of_finished_jobs_are_told(broker: Broker, talk: Talk) -> None:
    ear = listener(broker, types=["waiting"])
    talk.good("PUSHB", queue="q", jobs=[{"name": "n", "customId": "a"}, {"name": "n", "customId": "b"}])
    talk.good("PULLB", queue="q", count=2)
    talk.good("ACK", id="a")
    talk.good("FAIL", id="b", unrecoverable=True)
    talk.good("RetryCompleted", queue="q", id="a")
    talk.good("MoveToWait", id="b")
    assert [(e["jobId"], e["prev"]) for e in told(ear)] == [("a", "completed"), ("b", "failed")]


def test_silent_commands_stay_silent(broker: Broker, talk: Talk, clock: ManualClock) -> None:
    for job_id in "abcdefgh":
        talk.good("PUSH", queue="q", name="n", jobId=job_id, delay=50)
    talk.good("PUSH", queue="q", name="n", jobId="old", ttl=10)
    ear = listener(broker)
    talk.good("Promote", id="a")
    talk.good("ChangeDelay", id="b", delay=60)
    talk.good("ChangePriority", id="b", priority=4)
    talk.good("Update", id="b", data=1)
    talk.good("Discard", id="b")
    talk.good("PromoteJobs", queue="q", count=1)
    talk.good("Clean", queue="q", grace=0, limit=1)
    clock.advance(55)
    broker.pump()
    talk.good("Drain", queue="q")
    talk.good("PULL", queue="q")
    talk.good("Obliterate", queue="q")
    assert told(ear) == []


def test_refused_and_repeated_commands_are_not_told(broker: Broker, talk: Talk) -> None:
    ear = listener(broker)
    talk.good("PUSH", queue="q", name="n", jobId="a")
    token = talk.good("PULL", queue="q", owner="w")["token"]
    assert kinds(ear) == ["pushed", "pulled"]
    talk.good("PUSH", queue="q", name="n", jobId="a")
    talk.refused("PUSHB", queue="q", jobs=[{"name": "n"}, {"name": ""}])
    talk.refused("ACK", id="a", token="no")
    talk.refused("FAIL", id="a")
    talk.refused("ACKB", ids=["a", "b"], tokens=["no", None])
    talk.refused("Cancel", id="a")
    talk.refused("Progress", id="b", progress=1)
    assert told(ear) == []
    talk.good("ACK", id="a", token=token)
    talk.refused("ACK", id="a", token=token)
    assert kinds(ear) == ["completed"]


# --- who is told -------------------------------------------------------------------------


def load(broker: Broker, clock: ManualClock, rng: random.Random, rounds: int) -> None:
    """Two peers add, take, finish, fail and lose jobs of two queues."""
    one, two = Talk(broker), Talk(broker)
    for n in range(rounds):
        queue = rng.choice("qqr")
        talk = rng.choice((one, two))
        jobs = [{"name": "n", "data": n, "maxAttempts": rng.randint(1, 2), "backoff": 0} for _ in range(3)]
        talk.ask("PUSHB", queue=queue, jobs=jobs)
        got = talk.ask("PULLB", queue=queue, count=rng.randint(1, 5), owner="w", lockTtl=50)
        for job, token in zip(got["jobs"], got["tokens"], strict=True):
            match rng.randint(0, 5):
                case 0 | 1:
                    talk.ask("ACK", id=job["id"], token=token, result=n)
                case 2:
                    talk.ask("FAIL", id=job["id"], token=token, error="no")
                case 3:
                    talk.ask("ACKB", ids=[job["id"]], tokens=[token])
                case 4:
                    talk.ask("Progress", id=job["id"], progress=n % 100)
        if rng.random() < 0.1:
            talk.ask("Pause", queue=queue)
            talk.ask("Resume", queue=queue)
        clock.advance(rng.choice((0, 1, 60)))
        cut = broker.pump()[1]
        if cut is not None:
            commit(broker, cut)


@pytest.mark.parametrize("stored", [False, True])
def test_invariant_45_a_filtered_stream_is_a_part_of_the_whole(stored: bool, clock: ManualClock) -> None:
    broker = open_broker(store=MemoryStore() if stored else None, mode="server", clock=clock, seed=SEED)
    rng = random.Random(5)
    every = listener(broker)
    chosen: dict[tuple[str, ...], Talk] = {
        types: listener(broker, types=list(types))
        for types in (("stalled",), ("completed", "failed"), ("pulled",), EVENT_TYPES[::2], EVENT_TYPES)
    }
    load(broker, clock, rng, 200)
    while (cut := broker.begin_commit()) is not None:
        commit(broker, cut)
    whole = told(every)
    assert {event["queue"] for event in whole} == {"q"}
    assert len({event["eventType"] for event in whole}) >= 9
    for types, ear in chosen.items():
        assert told(ear) == [event for event in whole if event["eventType"] in types]


def test_invariant_44_the_events_of_a_job_tell_its_life(broker: Broker, clock: ManualClock) -> None:
    ear = listener(broker)
    load(broker, clock, random.Random(7), 200)
    by_job: dict[str, list[dict[str, Any]]] = {}
    for event in told(ear):
        if event["jobId"]:
            by_job.setdefault(event["jobId"], []).append(event)
    queue = broker.engine.queue("q")
    assert queue is not None
    total: Counter[str] = Counter()
    for events in by_job.values():
        said = [event["eventType"] for event in events]
        total.update(said)
        assert said[0] == "pushed"
        assert said.count("pushed") == 1
        ends = [
            event
            for event in events
            if event["eventType"] == "completed"
            or (event["eventType"] == "failed" and event.get("terminal", True))
        ]
        assert len(ends) <= 1
        assert not ends or ends[0] is events[-1]
        for before, after in itertools.pairwise(said):
            assert after != "retried" or before == "failed"
            assert after != "completed" or before in ("pulled", "progress")
    assert total["pushed"] == queue.total_pushed
    assert total["pulled"] == queue.total_pulled
    assert total["completed"] == queue.total_completed == queue.completions.total
    assert queue.n_events == limits.DEFAULT_MAX_QUEUE_EVENTS or queue.n_events >= sum(total.values())


def test_nothing_is_built_that_nobody_takes(broker: Broker, talk: Talk) -> None:
    talk.good("PUSH", queue="q", name="n")
    queue = broker.engine.queue("q")
    assert queue is not None
    assert queue.event_mask == 0
    one, two = listener(broker, types=["stalled"]), listener(broker, types=["paused", "failed"])
    assert bin(queue.event_mask).count("1") == 3
    two.good("UnsubscribeEvents")
    two.good("UnsubscribeEvents")
    assert bin(queue.event_mask).count("1") == 1
    one.good("SubscribeEvents", queue="r")
    assert queue.event_mask == 0
    assert broker.engine.queue_names() == ["q"]  # to listen makes no queue
    talk.good("PUSH", queue="r", name="n")
    assert kinds(one) == ["pushed"]
    one.session.close()
    talk.good("PUSH", queue="r", name="n")
    assert broker.engine.events == []
    assert queue.n_events == 1


def test_a_new_subscription_replaces_the_old_one(broker: Broker, talk: Talk) -> None:
    ear = Talk(broker)
    ear.send(
        {"cmd": "SubscribeEvents", "queue": "q", "reqId": 1},
        {"cmd": "PUSH", "queue": "q", "name": "n", "reqId": 2},
        {"cmd": "SubscribeEvents", "queue": "r", "reqId": 3},
        {"cmd": "PUSH", "queue": "q", "name": "n", "reqId": 4},
        {"cmd": "PUSH", "queue": "r", "name": "n", "reqId": 5},
    )
    got = ear.replies()
    assert [m.get("reqId") or m["event"]["queue"] for m in got] == [1, 2, "q", 3, 4, 5, "r"]


def test_what_was_before_a_subscription_is_not_told(broker: Broker) -> None:
    ear, late = listener(broker), Talk(broker)
    late.send({"cmd": "PUSH", "queue": "q", "name": "n"}, {"cmd": "SubscribeEvents", "queue": "q"})
    assert [m.get("ok") for m in late.replies()] == [True, True]
    assert kinds(ear) == ["pushed"]


@pytest.mark.parametrize("types", [[], "pushed", {}, ["pushed"] * 33, ["pushed", "happened"], [1], [["x"]]])
def test_a_list_of_types_that_is_none_is_refused(talk: Talk, types: object) -> None:
    assert talk.refused("SubscribeEvents", queue="q", eventTypes=types).startswith("eventTypes must")
    talk.good("PUSH", queue="q", name="n")
    assert talk.replies() == []


def test_each_reader_gets_payloads_as_it_can_read_them(broker: Broker, talk: Talk) -> None:
    plain, wide, alike = listener(broker), Talk(broker), listener(broker)
    wide.good("Hello", capabilities=["int64"])
    wide.good("SubscribeEvents", queue="q")
    talk.good("PUSH", queue="q", name="n", jobId="a", data=2**40, maxAttempts=1)
    talk.good("PULL", queue="q")
    talk.good("FAIL", id="a")
    talk.good("RetryDlq", queue="q")
    talk.good("PULL", queue="q")
    talk.good("ACK", id="a", result=2**40)
    for ear, kind in ((plain, float), (wide, int), (alike, float)):
        data = [event["data"] for event in told(ear) if "data" in event]
        assert [type(value) for value in data] == [kind, kind]
        assert data == [2**40, 2**40]


def test_who_does_not_read_is_cut_off(broker: Broker, talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_UNREAD_EVENT_BYTES", 10_000)
    slow, good = listener(broker), listener(broker)
    n = 0
    for _ in range(200):
        talk.good("PUSHB", queue="q", jobs=[{"name": "n"}] * 5)
        n += len(kinds(good))
    assert n == 1000
    assert slow.session.closing
    assert not good.session.closing
    kept = told(slow)
    assert 0 < len(kept) < 100  # what it has is whole, and then comes the end
    talk.good("PUSH", queue="q", name="n")
    assert told(slow) == []


# --- when --------------------------------------------------------------------------------


def test_an_event_waits_for_the_commit_of_its_change(clock: ManualClock) -> None:
    store = MemoryStore()
    broker = open_broker(store=store, mode="server", clock=clock, seed=SEED)
    ear, talk = listener(broker), Talk(broker)
    talk.good("PUSH", queue="q", name="n", jobId="a")
    talk.good("PULL", queue="q")
    talk.send({"cmd": "ACK", "id": "a"})
    assert told(ear) == []
    cut = broker.pump()[1]
    assert cut is not None
    talk.send({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": "b"})
    assert (told(ear), ear.heard) == ([], 0)
    commit(broker, cut)
    assert ear.heard == 1
    assert kinds(ear) == ["pushed", "pulled", "completed"]
    clock.advance(10)
    cut = broker.pump()[1]
    assert cut is not None
    commit(broker, cut)
    assert kinds(ear) == ["pushed"]
    assert broker.begin_commit() is None


def test_an_event_without_a_change_does_not_wait_for_ever(clock: ManualClock) -> None:
    broker = open_broker(store=MemoryStore(), mode="server", clock=clock, seed=SEED, max_events=0)
    ear, talk = listener(broker), Talk(broker)
    while (cut := broker.begin_commit()) is not None:
        commit(broker, cut)
    with broker:
        broker.engine.pause("q", now_ms=broker.wall_ms)
    talk.good("Ping")
    clock.advance(10)
    cut = broker.pump()[1]
    assert cut is not None
    commit(broker, cut)
    assert kinds(ear) == ["paused"]


def test_a_durable_add_is_told_with_its_commit(clock: ManualClock) -> None:
    store = MemoryStore()
    broker = open_broker(store=store, mode="server", clock=clock, seed=SEED)
    ear, talk = listener(broker), Talk(broker)
    talk.good("PUSH", queue="q", name="n", jobId="a", durable=True)
    assert kinds(ear) == ["pushed"]
    queue = broker.engine.queue("q")
    assert queue is not None
    assert queue.n_events == 1
    assert broker.begin_commit() is None  # nothing is left to write
    again = open_broker(store=store.reopened(), clock=clock, seed=bytes(16)).engine.queue("q")
    assert again is not None
    assert again.n_events == 1


def test_without_held_replies_events_come_at_once(clock: ManualClock) -> None:
    broker = open_broker(store=MemoryStore(), mode="server", changes="buffered", clock=clock, seed=SEED)
    ear, talk = listener(broker), Talk(broker)
    talk.good("PUSH", queue="q", name="n", jobId="a")
    talk.good("PULL", queue="q")
    talk.good("ACK", id="a")
    assert kinds(ear) == ["pushed", "pulled", "completed"]


def test_a_failing_store_does_not_keep_events(clock: ManualClock) -> None:
    """Its changes stay in memory, and their callers are told as much."""
    store = MemoryStore()
    broker = open_broker(store=store, mode="server", clock=clock, seed=SEED)
    ear, talk = listener(broker), Talk(broker)
    store.broken = StoreFault("no space left", "full")
    talk.send({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": "a"})
    talk.send({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": "b", "durable": True})
    talk.send({"cmd": "PULL", "queue": "q"})
    talk.send({"cmd": "ACK", "id": "a"})
    cut = broker.pump()[1]
    assert cut is not None
    talk.send({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": "c"})
    commit(broker, cut)
    assert [event["jobId"] + " " + event["eventType"] for event in told(ear)] == [
        "a pushed",
        "a pulled",
        "a completed",
        "c pushed",
    ]
    talk.send({"cmd": "Pause", "queue": "q"})
    assert kinds(ear) == ["paused"]
    queue = broker.engine.queue("q")
    assert queue is not None
    assert queue.n_events == 5
    store.broken = None
    while (cut := broker.begin_commit()) is not None:
        commit(broker, cut)
    assert told(ear) == []
    again = open_broker(store=store.reopened(), clock=clock, seed=bytes(16)).engine.queue("q")
    assert again is not None
    assert again.n_events == 5
    broker.engine._check()


def test_a_program_can_listen_to_its_own_engine() -> None:
    engine = EmbeddedEngine(None)
    try:
        ear, other = engine.session(), engine.session()
        ear.feed(frame({"cmd": "SubscribeEvents", "queue": "q", "reqId": "1"}))
        assert frames(ear.take()) == [{"ok": True, "reqId": "1"}]
        other.feed(frame({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": "a"}))
        assert [message["event"]["eventType"] for message in frames(ear.take())] == ["pushed"]
    finally:
        engine.close()


# --- the journal and the meters ----------------------------------------------------------------


def reopened(store: MemoryStore, clock: ManualClock, **options: Any) -> Broker:
    return open_broker(store=store.reopened(), clock=clock, seed=bytes(16), mode="server", **options)


def test_invariant_42_the_journal_counts_exactly_over_restarts(clock: ManualClock) -> None:
    store = MemoryStore()
    rng = random.Random(11)
    bound, expected, most = 100, 0, 0
    broker = open_broker(store=store, mode="server", clock=clock, seed=SEED, max_events=bound)
    for _ in range(30):
        ear, talk = listener(broker), Talk(broker)
        for _ in range(rng.randint(1, 30)):
            talk.ask("PUSH", queue="q", name="n", durable=rng.random() < 0.3)
            if rng.random() < 0.7:
                job = talk.ask("PULL", queue="q")["job"]
                talk.ask("ACK", id=job["id"])
        while (cut := broker.begin_commit()) is not None:
            commit(broker, cut)
        expected = min(bound, expected + len(told(ear)))
        if rng.random() < 0.3:
            kept = rng.choice((0, 3, 100, 1000))
            removed = talk.good("TrimEvents", queue="q", maxLength=kept)["data"]["removed"]
            assert removed == max(0, expected - kept)
            expected -= removed
        if rng.random() < 0.1:
            talk.good("Obliterate", queue="q")
            expected = 0
        settle(broker, talk.session)
        queue = broker.engine.queue("q")
        assert queue is not None
        assert queue.n_events == expected
        broker.engine._check()
        store = store.reopened()
        broker = open_broker(store=store, mode="server", clock=clock, seed=bytes(16), max_events=bound)
        queue = broker.engine.queue("q")
        assert queue is not None
        assert queue.n_events == expected
        most = max(most, expected)
    assert most == bound


def test_invariant_43_outcomes_are_counted_by_minute_whatever_the_journal(clock: ManualClock) -> None:
    store = MemoryStore()
    clock.set_wall(1_700_000_040_000)  # where a minute begins
    broker = open_broker(store=store, mode="server", clock=clock, seed=SEED, max_events=0, max_minutes=5)
    done: Counter[int] = Counter()
    minutes = (0, 0, 1, 1, 1, 4, 5, 9, 9)
    for n, minute in enumerate(minutes):
        now = 1_700_000_040_000 + minute * 60_000 + n
        clock.set_wall(now)
        talk = Talk(broker)
        for kind in ("ACK", "FAIL"):
            talk.good("PUSH", queue="q", name="n", maxAttempts=2, backoff=0)
            job = talk.good("PULL", queue="q")["job"]
            talk.good(kind, id=job["id"], **({"removeOnFail": True} if n % 2 and kind == "FAIL" else {}))
        talk.good("FAIL", id=talk.good("PULL", queue="q")["job"]["id"])  # the last attempt
        done[minute] += 1
        every = [done[m] for m in range(minute, -1, -1)][: min(5, minute + 1)]
        while len(every) > 1 and not every[-1]:
            every.pop()  # the oldest minute that is kept is one with something in it
        for kind in ("completed", "failed"):
            reply = talk.good("Metrics", queue="q", type=kind)["data"]
            assert reply == {
                "meta": {"count": n + 1, "prevTS": now, "prevCount": done[minute]},
                "data": every,
                "count": len(every),
            }
        page = talk.good("Metrics", queue="q", type="completed", start=1, end=2)["data"]
        assert (page["data"], page["count"]) == (every[1:3], len(every))
        with broker:
            broker.engine._check()
        store = store.reopened()
        broker = open_broker(store=store, mode="server", clock=clock, seed=SEED, max_events=0, max_minutes=5)
        assert len(list(store.load().side["minutes"])) <= 8
    talk = Talk(reopened(store, clock, max_minutes=0))
    reply = talk.good("Metrics", queue="q", type="completed")["data"]
    assert reply["meta"]["count"] == len(minutes)
    assert (reply["data"], reply["count"]) == ([], 0)
    talk.good("Obliterate", queue="q")
    reply = talk.good("Metrics", queue="q", type="completed")["data"]
    assert reply == {"meta": {"count": 0, "prevTS": 0, "prevCount": 0}, "data": [], "count": 0}
    assert list(talk.broker.store.load().side["minutes"]) == []


def test_defect_54_metrics_are_not_always_zero(broker: Broker, talk: Talk) -> None:
    talk.good("PUSH", queue="q", name="n", jobId="a")
    talk.good("PULL", queue="q")
    talk.good("ACK", id="a", result=None)
    assert talk.good("Metrics", queue="q", type="completed")["data"]["data"] == [1]
    assert talk.good("GetResult", id="a")["result"] is None  # null, not missing
    talk.good("PUSH", queue="q", name="n", jobId="b")
    talk.good("PULL", queue="q")
    talk.good("ACK", id="b")
    assert "result" not in talk.good("GetResult", id="b")


def test_unreadable_counts_begin_anew(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    from qcore.store.base import Cut

    store = MemoryStore()
    broker = open_broker(store=store, mode="server", clock=clock, seed=SEED)
    talk = Talk(broker)
    talk.good("PUSH", queue="q", name="n", durable=True)
    close_broker(broker)
    store = store.reopened()
    bad = {
        ("telemetry", 1): b"?",
        ("telemetry", 99): b"?",
        ("minutes", 5): b"",
        ("minutes", 1 << 40): b"12345678",
    }
    store.commit(Cut(side=bad))  # type: ignore[arg-type]
    broker = open_broker(store=store, mode="server", clock=clock, seed=SEED)
    assert "3 counts of queues cannot be read" in caplog.text
    assert Talk(broker).good("PULL", queue="q")["job"] is not None
