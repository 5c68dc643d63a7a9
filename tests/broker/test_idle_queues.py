"""Queues that nobody uses any more are forgotten, and nothing else is."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgpack
import pytest
from broker_talk import Talk

from qcore import limits
from qcore.broker import open_broker, rows
from qcore.broker.core import Broker
from qcore.broker.opening import close_broker, commit, flush
from qcore.clock import ManualClock
from qcore.engine.engine import Engine
from qcore.errors import LimitError
from qcore.limits import QUEUE_IDLE_MS, QUEUE_LOOK_MS, QUEUE_LOOK_STEPS
from qcore.store.base import StoreFault
from qcore.store.memory import MemoryStore

#: From its last use a queue is known for so long, and until the next look.
LONG_MS = QUEUE_IDLE_MS + QUEUE_LOOK_MS
#: What remembers the past, up to a bound.
BOUNDED = ("evidence",)
Step = tuple[str, Mapping[str, Any]]


def turns(broker: Broker) -> int:
    """Do all that is due, commits too; how many turns it took."""
    n = 0
    seconds: float | None = 0
    while seconds == 0:
        n += 1
        seconds, cut = broker.pump()
        if cut is not None:
            commit(broker, cut)
    return n


def idle(broker: Broker, clock: ManualClock, ms: int = LONG_MS) -> None:
    """Let so much time pass, with all the looks in it."""
    for _ in range(ms // QUEUE_LOOK_MS):
        clock.advance(QUEUE_LOOK_MS)
        turns(broker)
    if broker.durable:
        flush(broker)
    broker.engine._check()


def run(talk: Talk, queue: str, **options: Any) -> str:
    """Add a job of which nothing is left when it is done, and do it."""
    job_id = str(talk.good("PUSH", queue=queue, name="n", removeOnComplete=True, **options)["id"])
    got = talk.good("PULL", queue=queue, owner="w")
    assert got["job"]["id"] == job_id
    talk.good("ACK", id=job_id, token=got["token"])
    return job_id


def names(talk: Talk) -> list[str]:
    return list(talk.good("ListQueues")["queues"])


@pytest.mark.parametrize("durable", [False, True])
def test_invariant_50_queues_are_forgotten(clock: ManualClock, durable: bool) -> None:
    """A name for each customer: what stays of a thousand of them is what there was before the first."""
    store = MemoryStore() if durable else None
    broker = open_broker(store=store, mode="server", clock=clock, seed=bytes(16))
    talk = Talk(broker)
    for day in range(3):
        for n in range(300):
            queue = f"customer-{day}-{n}"
            run(talk, queue)
            talk.good("GetJobs", queue=queue)
            clock.advance(70_000 if n % 100 == 0 else 1)  # some minutes are over
        assert len(names(talk)) == 300
        idle(broker, clock, QUEUE_IDLE_MS - QUEUE_LOOK_MS)
        assert len(names(talk)) == 300
        idle(broker, clock)
        assert {name: n for name, n in broker.engine.sizes().items() if n} == {}
        assert broker.sizes()["queues"] == 0
        if store is not None:
            found = store.load()
            left = {table: n for table, n in found.side.items() if n and table not in BOUNDED}
            assert (list(found.queues), list(found.jobs)) == ([], [])
            assert list(left) == ["telemetry"]
            (last, *counted) = left["telemetry"]
            assert last == (0, msgpack.packb(300 * (day + 1)))  # no index is given again
            assert len(counted) == 300 * (day + 1)
            assert sum(len(packed) for _, packed in counted) < 100 * len(counted)
    stats = talk.good("Metrics")["metrics"]
    assert (stats["totalPushed"], stats["totalPulled"], stats["totalCompleted"]) == (900, 900, 900)


def test_a_broker_without_queues_looks_for_none(clock: ManualClock) -> None:
    broker = open_broker(clock=clock, seed=bytes(16))
    assert broker.pump() == (None, None)
    run(Talk(broker), "q")
    assert broker.pump()[0] == pytest.approx(QUEUE_LOOK_MS / 1000)
    idle(broker, clock)
    assert broker.pump() == (None, None)


HOLDS: dict[str, tuple[list[Step], list[Step]]] = {
    "a waiting job": ([("PUSH", {"name": "n", "jobId": "j"})], [("Drain", {})]),
    "a job of a group": ([("PUSH", {"name": "n", "groupId": "g"})], [("Drain", {})]),
    "a delayed job": ([("PUSH", {"name": "n", "delay": 86_400_000})], [("Drain", {})]),
    "a completed job": (
        [("PUSH", {"name": "n", "jobId": "j"}), ("PULL", {}), ("ACK", {"id": "j"})],
        [("Clean", {"state": "completed"})],
    ),
    "a dead letter": (
        [
            ("PUSH", {"name": "n", "jobId": "j"}),
            ("PULL", {}),
            ("FAIL", {"id": "j", "error": "no", "unrecoverable": True}),
        ],
        [("PurgeDlq", {})],
    ),
    "a pause": ([("Pause", {})], [("Resume", {})]),
    "a rate limit": ([("RateLimit", {"limit": 5})], [("RateLimitClear", {})]),
    "a bound of active jobs": ([("SetConcurrency", {"limit": 5})], [("ClearConcurrency", {})]),
    "a paused group": ([("PauseGroup", {"groupId": "g"})], [("ResumeGroup", {"groupId": "g"})]),
    "settings of stalls": ([("SetStallConfig", {"config": {"maxStalls": 9}})], [("Obliterate", {})]),
    "settings of dead letters": (
        [("SetDlqConfig", {"config": {"maxEntries": 9}})],
        [("SetDlqConfig", {"config": {"maxEntries": 10_000}})],
    ),
    "a schedule": (
        [("Pause", {}), ("Resume", {}), ("Cron", {"name": "s", "repeatEvery": 2_592_000_000, "data": None})],
        [("CronDelete", {"name": "s"})],
    ),
    "a key that outlives its job": (
        [
            (
                "PUSH",
                {
                    "name": "n",
                    "jobId": "j",
                    "uniqueKey": "k",
                    "dedup": {"ttl": 86_400_000, "keepUntilExpiry": True},
                    "removeOnComplete": True,
                },
            ),
            ("PULL", {}),
            ("ACK", {"id": "j"}),
        ],
        [("RemoveDeduplicationKey", {"deduplicationId": "k"})],
    ),
    "a subscriber": ([("Pause", {}), ("Resume", {}), ("SubscribeEvents", {})], [("UnsubscribeEvents", {})]),
}


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("what", HOLDS)
def test_a_queue_stays_for_as_long_as_there_is(clock: ManualClock, what: str, durable: bool) -> None:
    begin, end = HOLDS[what]
    store = MemoryStore() if durable else None
    broker = open_broker(store=store, mode="server", clock=clock, seed=bytes(16), completed_retention_ms=None)
    talk = Talk(broker)
    for cmd, fields in begin:
        talk.good(cmd, **{"queue": "q", **fields})
    idle(broker, clock, 2 * LONG_MS)
    assert names(talk) == ["q"]
    talk.replies()
    for cmd, fields in end:
        talk.good(cmd, **{"queue": "q", **fields})
    talk.replies()
    idle(broker, clock, QUEUE_IDLE_MS - QUEUE_LOOK_MS)
    assert names(talk) == ["q"]
    idle(broker, clock)
    assert names(talk) == []


def test_a_pull_or_a_worker_that_waits_holds_its_queue(clock: ManualClock) -> None:
    broker = open_broker(clock=clock, seed=bytes(16))
    talk = Talk(broker)
    for _ in range(40):
        talk.send({"cmd": "PULL", "queue": "polled", "timeout": 60_000, "owner": "w"})
        talk.good("RegisterWorker", workerId="w", name="w", queues=["served"])
        if "served" not in names(talk):
            run(talk, "served")
        clock.advance(60_000)
        turns(broker)
        talk.replies()
    assert names(talk) == ["polled", "served"]
    idle(broker, clock)
    assert names(talk) == []
    # The wait was for the queue of that name: a job of it that comes later is delivered.
    talk.send({"cmd": "PULL", "queue": "polled", "timeout": 60_000})
    Talk(broker).good("PUSH", queue="polled", name="n", jobId="late")
    assert talk.replies()[0]["job"]["id"] == "late"


def test_a_limit_that_is_over_holds_nothing(clock: ManualClock) -> None:
    broker = open_broker(clock=clock, seed=bytes(16))
    talk = Talk(broker)
    talk.good("RateLimit", queue="q", limit=1, ttl=1000)
    talk.good("RateLimitGroup", queue="q", groupId="g", duration=1000)
    idle(broker, clock)
    assert names(talk) == []


def test_the_result_that_a_live_job_needs_holds_the_queue_of_the_one_that_gave_it(clock: ManualClock) -> None:
    store = MemoryStore()
    broker = open_broker(store=store, mode="server", clock=clock, seed=bytes(16))
    talk = Talk(broker)
    talk.good("PUSH", queue="child", name="n", jobId="c", removeOnComplete=True)
    talk.good("PUSH", queue="parent", name="n", jobId="p", dependsOn=["c"], delay=86_400_000)
    token = talk.good("PULL", queue="child", owner="w")["token"]
    talk.good("ACK", id="c", token=token, result=7)
    idle(broker, clock, 2 * LONG_MS)
    assert names(talk) == ["child", "parent"]
    assert talk.good("GetChildrenValues", id="p")["data"]["values"] == {"child:c": 7}
    broker = open_broker(store=store.reopened(), mode="server", clock=clock, seed=bytes(16))
    talk = Talk(broker)
    idle(broker, clock, 2 * LONG_MS)
    assert talk.good("GetChildrenValues", id="p")["data"]["values"] == {"child:c": 7}
    talk.good("Cancel", id="p")
    idle(broker, clock)
    assert names(talk) == []


def test_events_that_are_kept_hold_their_queue(clock: ManualClock) -> None:
    """Who asked for a journal wants to read in it later."""
    store = MemoryStore()
    broker = open_broker(store=store, mode="server", clock=clock, seed=bytes(16), keep_events=True)
    talk = Talk(broker)
    run(talk, "q")
    idle(broker, clock, 2 * LONG_MS)
    assert names(talk) == ["q"]
    talk.good("TrimEvents", queue="q", maxLength=0)
    idle(broker, clock)
    assert names(talk) == []
    assert store.load().side["journal"] == []


def test_a_name_that_comes_back_begins_afresh(clock: ManualClock) -> None:
    store = MemoryStore()
    broker = open_broker(store=store, mode="server", clock=clock, seed=bytes(16))
    talk, other = Talk(broker), Talk(broker)
    done = run(talk, "q", jobId="first")
    run(talk, "other")
    found = broker.engine.queue("q")
    assert found is not None
    assert found.completions.total == 1
    talk.good("GetJobs", queue="q")
    idle(broker, clock)
    # A session that asked for it before asks again; it makes no queue by that.
    assert talk.good("GetJobs", queue="q")["jobs"] == []
    assert talk.good("GetJobCounts", queue="q")["counts"]["completed"] == 0
    assert talk.good("TrimEvents", queue="q", maxLength=0)["data"]["removed"] == 0
    assert talk.good("PULL", queue="q")["job"] is None
    assert names(talk) == []
    other.good("SubscribeEvents", queue="q", eventTypes=["pushed"])
    run(talk, "q")
    assert [one["event"]["eventType"] for one in other.replies() if "event" in one] == ["pushed"]
    again = broker.engine.queue("q")
    assert again is not None
    assert again.index > found.index
    assert talk.good("GetJobs", queue="q")["jobs"] == []
    # What was completed under the old queue is known still, also when the new one is obliterated.
    talk.good("Obliterate", queue="q")
    talk.good("PUSH", queue="w", name="n", dependsOn=[done], jobId="after")
    assert talk.good("GetState", id="after")["state"] == "waiting"
    flush(broker)
    talk = Talk(open_broker(store=store.reopened(), mode="server", clock=clock, seed=bytes(16)))
    talk.good("PUSH", queue="w", name="n", dependsOn=[done], jobId="after a restart")
    assert talk.good("GetState", id="after a restart")["state"] == "waiting"


def outcomes(talk: Talk, queue: str) -> tuple[int, ...]:
    """Totals of completions and failures, in both ways of asking for them."""
    meta = [talk.good("Metrics", queue=queue, type=kind)["data"]["meta"] for kind in ("completed", "failed")]
    counts = talk.good("DashboardQueue", queue=queue)["data"]["counts"]
    assert [one["count"] for one in meta] == [counts["totalCompleted"], counts["totalFailed"]]
    return tuple(one["count"] for one in meta)


@pytest.mark.parametrize("restarts", [False, True])
def test_totals_go_on_when_the_name_comes_back(tmp_path: Path, clock: ManualClock, restarts: bool) -> None:
    """A reader that adds up what a name has done would see it begin anew, and count wrong."""
    lives = 0

    def start() -> tuple[Broker, Talk]:
        nonlocal lives
        lives += 1
        broker = open_broker(str(tmp_path / "q.db"), mode="server", clock=clock, seed=bytes([lives] * 16))
        return broker, Talk(broker)

    def lived(broker: Broker, talk: Talk) -> tuple[Broker, Talk]:
        if not restarts:
            return broker, talk
        close_broker(broker)
        return start()

    broker, talk = start()
    for n in range(1, 4):
        run(talk, "q")
        run(talk, "q")
        job_id = talk.good("PUSH", queue="q", name="n", maxAttempts=1, removeOnFail=True)["id"]
        token = talk.good("PULL", queue="q", owner="w")["token"]
        talk.good("FAIL", id=job_id, token=token, error="no")
        talk.good("Pause", queue="never-used")
        talk.good("Resume", queue="never-used")
        assert outcomes(talk, "q") == (2 * n, n)
        idle(broker, clock)
        assert names(talk) == []
        broker, talk = lived(broker, talk)
        assert (names(talk), outcomes(talk, "q")) == ([], (2 * n, n))
        latest = talk.good("Metrics", queue="q", type="completed")["data"]
        assert (latest["meta"]["prevCount"], latest["data"]) == (2, [2])
        talk.good("Pause", queue="q")
        talk.good("Resume", queue="q")
        text = talk.good("Prometheus")["data"]["metrics"]
        assert f'bunqueue_queue_jobs_completed_total{{queue="q"}} {2 * n}.0' in text
        turns(broker)
        broker, talk = lived(broker, talk)
        assert (names(talk), outcomes(talk, "q")) == (["q"], (2 * n, n))
        broker.engine._check()
    idle(broker, clock)
    talk.good("Obliterate", queue="q")
    broker, talk = lived(broker, talk)
    assert outcomes(talk, "q") == (0, 0)
    assert names(talk) == []
    close_broker(broker)


def test_totals_are_kept_of_so_many_forgotten_queues(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ones that were used last, also after a restart."""
    monkeypatch.setattr(limits, "FORGOTTEN_QUEUES", 3)
    store = MemoryStore()
    broker = open_broker(store=store, mode="server", clock=clock, seed=bytes(16))
    talk = Talk(broker)
    for queue in "abcde":
        run(talk, queue)
        if queue == "c":
            run(talk, "a")
        idle(broker, clock)
    assert [sum(outcomes(talk, queue)) for queue in "abcde"] == [2, 0, 0, 1, 1]
    assert len(store.load().side["telemetry"]) == 4
    run(talk, "c")
    idle(broker, clock)
    broker = open_broker(store=store.reopened(), mode="server", clock=clock, seed=bytes(16))
    talk = Talk(broker)
    run(talk, "f")
    idle(broker, clock)
    assert [sum(outcomes(talk, queue)) for queue in "abcdef"] == [0, 0, 1, 0, 1, 1]


def test_a_count_that_cannot_be_read_is_left_out(clock: ManualClock) -> None:
    engine = Engine(bytes(16), tracking=True)
    assert (
        rows.restore_counts(
            engine, [(7, b"?"), (8, b"\1" + bytes(72) + b"\xff"), (9, None), (10, b"\1" + bytes(72))], []
        )
        == 4
    )
    assert rows.restore_counts(engine, [(7, b"\1" + bytes(72) + b"q")], []) == 0
    assert engine.metrics("q", "completed")[0] == (0, 0, 0)


def test_a_webhook_for_a_queue_holds_it(clock: ManualClock) -> None:
    broker = open_broker(clock=clock, seed=bytes(16))
    talk = Talk(broker)
    run(talk, "q")
    run(talk, "other")
    hook = talk.good("AddWebhook", url="https://example.com/q", queue="q", events=["job.failed"])
    talk.good("AddWebhook", url="https://example.com/all", events=["job.failed"])
    idle(broker, clock, 2 * LONG_MS)
    assert names(talk) == ["q"]
    talk.good("SetWebhookEnabled", id=hook["data"]["webhookId"], enabled=False)
    idle(broker, clock)
    assert names(talk) == []


@pytest.mark.parametrize("how", ["close", "kill"])
def test_what_is_forgotten_stays_so_over_restarts(tmp_path: Path, clock: ManualClock, how: str) -> None:
    """Its index is not given again either: rows of what has passed may bear it."""
    lives = 0

    def start(path: Path) -> Broker:
        return open_broker(str(path), mode="server", clock=clock, seed=bytes([lives] * 16))

    path = tmp_path / "0" / "q.db"
    path.parent.mkdir()
    broker = start(path)
    given: dict[int, str] = {}
    for _ in range(4):
        talk = Talk(broker)
        for n in range(3):
            queue = f"life-{lives}-{n}"
            run(talk, queue)
            found = broker.engine.queue(queue)
            assert found is not None
            assert found.index not in given, f"{queue} has the index of {given[found.index]}"
            given[found.index] = queue
        talk.good("PUSH", queue="stays", name="n", jobId=f"stays-{lives}")
        talk.good("PUSH", queue="stays", name="n", groupId="g")
        idle(broker, clock)
        assert names(talk) == ["stays"]
        lives += 1
        if how == "close":
            close_broker(broker)
        else:
            before = path.parent
            path = tmp_path / str(lives) / "q.db"
            shutil.copytree(before, path.parent)
        broker = start(path)
        broker.engine._check()
        talk = Talk(broker)
        assert names(talk) == ["stays"]
        ids = [job["id"] for job in talk.good("GetJobs", queue="stays")["jobs"]]
        assert [job_id for job_id in ids if job_id.startswith("stays")] == [
            f"stays-{n}" for n in range(lives)
        ]
    close_broker(broker)


def test_a_kill_before_the_commit_brings_the_queue_back(clock: ManualClock) -> None:
    store = MemoryStore()
    broker = open_broker(store=store, mode="server", clock=clock, seed=bytes(16))
    talk = Talk(broker)
    run(talk, "q")
    idle(broker, clock, LONG_MS - QUEUE_LOOK_MS)
    clock.advance(QUEUE_LOOK_MS)
    _, cut = broker.pump()
    assert names(talk) == []
    killed = open_broker(store=store.reopened(), mode="server", clock=clock, seed=bytes(16))
    assert names(Talk(killed)) == ["q"]
    assert Talk(killed).good("Metrics", queue="q", type="completed")["data"]["meta"]["count"] == 1
    idle(killed, clock)
    assert names(Talk(killed)) == []
    if cut is not None:
        commit(broker, cut)
    flush(broker)
    assert list(store.load().queues) == []


def test_a_commit_that_fails_forgets_later(clock: ManualClock) -> None:
    store = MemoryStore()
    broker = open_broker(store=store, mode="server", clock=clock, seed=bytes(16))
    talk = Talk(broker)
    run(talk, "old")
    flush(broker)
    store.broken = StoreFault("no", "full")
    for _ in range(LONG_MS // QUEUE_LOOK_MS):
        clock.advance(QUEUE_LOOK_MS)
        turns(broker)
    assert names(talk) == []
    broker.engine.push("old", None, broker.wall_ms)
    broker.engine.push("new", None, broker.wall_ms)
    turns(broker)
    assert [msgpack.unpackb(state)["name"] for _, state in store.load().queues] == ["old"]
    store.broken = None
    clock.advance(60_000)
    turns(broker)
    flush(broker)
    found = store.load()
    assert [(index, msgpack.unpackb(state)["name"]) for index, state in found.queues] == [
        (2, "old"),
        (3, "new"),
    ]
    assert dict(found.side["telemetry"])[0] == msgpack.packb(1)  # later ones have rows
    again = open_broker(store=store.reopened(), mode="server", clock=clock, seed=bytes(16))
    assert {name: again.engine.counts(name, 0)["waiting"] for name in names(Talk(again))} == {
        "old": 1,
        "new": 1,
    }


@pytest.mark.parametrize("restart", [False, True])
def test_an_obliterated_queue_with_archived_jobs_is_forgotten(clock: ManualClock, restart: bool) -> None:
    """Its rows go in the time of the archive, and with the last of them what says that they are over."""
    store = MemoryStore()
    broker = open_broker(store=store, mode="server", clock=clock, seed=bytes(16), max_completed=2)
    talk = Talk(broker)
    for n in range(6):
        talk.good("PUSH", queue="q", name="n", jobId=f"j{n}")
        talk.good("ACK", id=talk.good("PULL", queue="q")["job"]["id"])
    flush(broker)
    assert broker.engine.n_archived
    talk.good("Obliterate", queue="q")
    if restart:
        broker = open_broker(store=store.reopened(), mode="server", clock=clock, seed=bytes([1] * 16))
        store = broker.store
        talk = Talk(broker)
        flush(broker)
    for _ in range(5):
        clock.advance(1000)
        turns(broker)
    idle(broker, clock)
    assert names(talk) == []
    found = store.load()
    assert (list(found.queues), list(found.jobs)) == ([], [])


def test_a_look_is_taken_in_steps(clock: ManualClock) -> None:
    """Other requests are served between them, and what comes meanwhile is not forgotten."""
    broker = open_broker(clock=clock, seed=bytes(16))
    talk = Talk(broker)
    n = 3 * QUEUE_LOOK_STEPS
    for i in range(n):
        broker.engine.pause(f"q{i}")
        broker.engine.pause(f"q{i}", False)
    assert turns(broker) == 1
    clock.advance(QUEUE_LOOK_MS)
    assert turns(broker) == 3
    clock.advance(QUEUE_LOOK_MS)
    turns(broker)
    clock.advance(QUEUE_LOOK_MS)
    assert broker.pump()[0] == 0
    assert len(names(talk)) == n - QUEUE_LOOK_STEPS
    for i in (0, n - 1):
        talk.good("PUSH", queue=f"q{i}", name="n")
    turns(broker)
    assert names(talk) == ["q0", f"q{n - 1}"]
    broker.engine._check()


@pytest.mark.parametrize(
    "add",
    [
        ("PUSH", {"name": "n", "jobId": "a", "removeOnComplete": True}),
        ("PUSH", {"name": "n", "jobId": "a", "removeOnComplete": True, "tags": ["t"]}),
        ("PUSHB", {"jobs": [{"name": "n", "customId": "a", "removeOnComplete": True}]}),
    ],
)
def test_every_add_counts_as_a_use(clock: ManualClock, add: tuple[str, dict[str, Any]]) -> None:
    broker = open_broker(clock=clock, seed=bytes(16))
    talk = Talk(broker)
    run(talk, "q")
    for _ in range(6):
        turns(broker)
        clock.advance(QUEUE_LOOK_MS)
        talk.good(add[0], queue="q", **add[1])
        talk.good("ACK", id="a", token=talk.good("PULL", queue="q", owner="w")["token"])
    turns(broker)
    assert names(talk) == ["q"]


def test_a_walk_through_the_archive_keeps_its_queue(clock: ManualClock) -> None:
    broker = open_broker(clock=clock, seed=bytes(16))
    broker.engine.pause("q")
    broker.engine.pause("q", False)
    broker.engine.holds += 1
    for _ in range(6):
        clock.advance(QUEUE_LOOK_MS)
        broker.engine.forget_idle(clock.now_ns())
    assert broker.engine.queue_names() == ["q"]
    broker.engine.holds -= 1
    idle(broker, clock)
    assert broker.engine.queue_names() == []


def test_jobs_of_a_queue_whose_row_is_lost_are_found_under_another_name(clock: ManualClock) -> None:
    """A gap between the rows of queues is none that was forgotten, if jobs are in it."""
    store = MemoryStore()
    broker = open_broker(store=store, mode="server", clock=clock, seed=bytes(16))
    talk = Talk(broker)
    run(talk, "gone")
    for queue in ("lost", "lost-2", "last"):
        talk.good("PUSH", queue=queue, name="n", jobId=f"of {queue}")
    idle(broker, clock)
    del store._queues[2]
    broker = open_broker(store=store.reopened(), mode="server", clock=clock, seed=bytes(16))
    talk = Talk(broker)
    assert names(talk) == ["last", "lost-2", "lost-2-"]
    assert [job["id"] for job in talk.good("GetJobs", queue="lost-2-")["jobs"]] == ["of lost"]
    flush(broker)
    broker.engine._check()
    again = open_broker(store=broker.store.reopened(), mode="server", clock=clock, seed=bytes(16))
    assert names(Talk(again)) == ["last", "lost-2", "lost-2-"]


def test_indexes_end_with_an_error() -> None:
    engine = Engine(bytes(16))
    assert rows.restore_counts(engine, [(0, msgpack.packb(2**32 - 1))], []) == 0
    with pytest.raises(LimitError, match="There have been 4294967295 queues"):
        engine.push("q", None, 0)
    assert engine.queue_names() == []
