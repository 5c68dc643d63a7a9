"""What each level of durability lets a reply wait for: nothing, a commit, or a commit that is fsynced.

Replies are looked at before any commit was made, so that what is there by then was not held.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from broker_talk import Talk

from qcore.broker import open_broker
from qcore.broker.core import Broker
from qcore.broker.opening import Level, commit, flush
from qcore.clock import ManualClock
from qcore.store.memory import MemoryStore
from qcore.wire import commands

SEED = bytes(range(16))
LEVELS: tuple[Level, ...] = ("buffered", "committed", "synced")
RANK = {level: rank for rank, level in enumerate(LEVELS)}


def opened(clock: ManualClock, adds: Level = "buffered", changes: Level = "committed") -> Talk:
    broker = open_broker(
        store=MemoryStore(), mode="server", adds=adds, changes=changes, clock=clock, seed=SEED
    )
    return Talk(broker)


def level_of(talk: Talk, cmd: str, **fields: Any) -> Level:
    """What the reply to a command waited for."""
    broker = talk.broker
    flush(broker)
    talk.send({"cmd": cmd, **fields})
    replies = talk.replies()
    if replies:
        assert replies[0]["ok"] is True, replies
        return "buffered"
    cut = broker.begin_commit()
    assert cut is not None
    synced = broker.sync
    assert talk.replies() == []
    commit(broker, cut)
    (reply,) = talk.replies()
    assert reply["ok"] is True, reply
    return "synced" if synced else "committed"


Fields = dict[str, Any]


def waiting(talk: Talk, **options: Any) -> str:
    return str(talk.good("PUSH", queue="q", name="n", data={}, **options)["id"])


def held(talk: Talk, **options: Any) -> Fields:
    """A job in a worker's hands."""
    job_id = waiting(talk, priority=9, **options)
    got = talk.good("PULL", queue="q", owner="w")
    assert got["job"]["id"] == job_id
    return {"id": job_id, "token": got["token"]}


def failed(talk: Talk) -> str:
    job = held(talk)
    talk.good("FAIL", **job, error="x", unrecoverable=True)
    return str(job["id"])


def done(talk: Talk) -> str:
    job = held(talk)
    talk.good("ACK", **job)
    return str(job["id"])


def batch(talk: Talk) -> Fields:
    one, other = held(talk), held(talk)
    return {"ids": [one["id"], other["id"]], "tokens": [one["token"], other["token"]]}


def family(talk: Talk) -> tuple[str, str]:
    """A child and the parent that waits for it."""
    talk.good("PUSHF", **flow(talk))
    return "c", "p"


def flow(talk: Talk) -> Fields:
    parent = {"__childrenIds": ["c"]}
    child = {"__parentId": "p", "__parentQueue": "q"}
    return {
        "jobs": [
            {"id": "c", "queue": "q", "input": {"name": "n", "data": child, "parentId": "p"}},
            {
                "id": "p",
                "queue": "q",
                "input": {"name": "n", "data": parent, "dependsOn": ["c"], "childrenIds": ["c"]},
            },
        ]
    }


def hook(talk: Talk) -> str:
    reply = talk.good("AddWebhook", url="https://example.org/", events=["job.completed"])
    return str(reply["data"]["webhookId"])


#: A good request of every command whose effect is to be committed.
CHANGES: dict[str, Callable[[Talk], Fields]] = {
    "PUSHF": flow,
    "MoveToWaitingChildren": held,
    "UpdateParent": lambda t: {"childId": waiting(t), "parentId": family(t)[1]},
    "RemoveChildDependency": lambda t: {"id": family(t)[0]},
    "RemoveUnprocessedChildren": lambda t: {"id": family(t)[1]},
    "ACK": held,
    "ACKB": batch,
    "FAIL": lambda t: {**held(t), "error": "x"},
    "MoveToDelayed": lambda t: {**held(t), "delay": 5},
    "Promote": lambda t: {"id": waiting(t, delay=1000)},
    "ChangeDelay": lambda t: {"id": waiting(t, delay=1000), "delay": 5},
    "MoveToWait": held,
    "Cancel": lambda t: {"id": waiting(t)},
    "Discard": lambda t: {"id": waiting(t)},
    "ChangePriority": lambda t: {"id": waiting(t), "priority": 3},
    "Update": lambda t: {"id": waiting(t), "data": {"a": 1}},
    "ClearLogs": lambda t: {"id": logged(t)},
    "RemoveJobDeduplicationKey": lambda t: {"id": waiting(t, uniqueKey="k")},
    "PromoteJobs": lambda t: {"queue": queue_of(waiting(t, delay=1000))},
    "Drain": lambda t: {"queue": queue_of(waiting(t))},
    "Clean": lambda t: {"queue": queue_of(done(t)), "grace": 0, "state": "completed"},
    "Obliterate": lambda t: {"queue": queue_of(waiting(t))},
    "RemoveDeduplicationKey": lambda t: {
        "queue": queue_of(waiting(t, uniqueKey="k")),
        "deduplicationId": "k",
    },
    "RetryCompleted": lambda t: {"queue": "q", "id": done(t)},
    "SetStallConfig": lambda t: {"queue": "q", "config": {"maxStalls": 7}},
    "Pause": lambda t: {"queue": "q"},
    "Resume": lambda t: {"queue": queue_of(t.good("Pause", queue="q"))},
    "RateLimit": lambda t: {"queue": "q", "limit": 5},
    "RateLimitClear": lambda t: {"queue": queue_of(t.good("RateLimit", queue="q", limit=5))},
    "SetConcurrency": lambda t: {"queue": "q", "limit": 5},
    "ClearConcurrency": lambda t: {"queue": queue_of(t.good("SetConcurrency", queue="q", limit=5))},
    "SetGroupRateLimit": lambda t: {"queue": "q", "groupId": "g", "max": 3, "duration": 1000},
    "RemoveGroupRateLimit": lambda t: {"queue": "q", "groupId": "g"},
    "SetGroupConcurrency": lambda t: {"queue": "q", "groupId": "g", "concurrency": 3},
    "RemoveGroupConcurrency": lambda t: {"queue": "q", "groupId": "g"},
    "PauseGroup": lambda t: {"queue": "q", "groupId": grouped(t)},
    "ResumeGroup": lambda t: {"queue": "q", "groupId": grouped(t)},
    "RateLimitGroup": lambda t: {"queue": "q", **in_group(t), "duration": 1000},
    "RetryDlq": lambda t: {"queue": "q", "jobId": failed(t)},
    "PurgeDlq": lambda t: {"queue": queue_of(failed(t))},
    "RemoveDlqJob": lambda t: {"queue": "q", "jobId": failed(t)},
    "SetDlqConfig": lambda t: {"queue": "q", "config": {"maxEntries": 7}},
    "Cron": lambda t: {"name": "s", "queue": "q", "repeatEvery": 60_000},
    "CronDelete": lambda t: {"name": t.good("Cron", name="s", queue="q", repeatEvery=60_000) and "s"},
    "TrimEvents": lambda t: {"queue": queue_of(waiting(t)), "maxLength": 0},
    "AddWebhook": lambda t: {"url": "https://example.org/", "events": ["job.completed"]},
    "RemoveWebhook": lambda t: {"webhookId": hook(t)},
    "SetWebhookEnabled": lambda t: {"id": hook(t), "enabled": False},
}


def queue_of(_: object) -> str:
    return "q"


def logged(talk: Talk) -> str:
    job_id = waiting(talk)
    talk.good("AddLog", id=job_id, message="x")
    return job_id


def grouped(talk: Talk) -> str:
    waiting(talk, groupId="g")
    return "g"


def in_group(talk: Talk) -> Fields:
    got = talk.good("PULL", queue="q", owner="w") if waiting(talk, groupId="g") else {}
    return {"groupId": "g", "id": got["job"]["id"], "token": got["token"]}


def test_every_command_that_is_to_be_committed_has_a_request_here() -> None:
    assert set(CHANGES) == {c.name for c in commands.COMMANDS.values() if c.level == "committed"}


@pytest.mark.parametrize("cmd", CHANGES)
def test_a_change_waits_for_what_its_level_says(clock: ManualClock, cmd: str) -> None:
    for level in LEVELS:
        talk = opened(clock, changes=level)
        fields = CHANGES[cmd](talk)
        # A flow is committed whatever the level: nobody may see half of it.
        expected = "committed" if cmd == "PUSHF" and level == "buffered" else level
        assert level_of(talk, cmd, **fields) == expected


@pytest.mark.parametrize("level", LEVELS)
def test_a_plain_add_waits_for_what_its_level_says(clock: ManualClock, level: Level) -> None:
    for changes in LEVELS:
        talk = opened(clock, adds=level, changes=changes)
        assert level_of(talk, "PUSH", queue="q", name="n") == level
        assert level_of(talk, "PUSH", queue="q", name="n", groupId="g") == level  # the general path
        assert level_of(talk, "PUSHB", queue="q", jobs=[{"name": "n"}] * 3) == level


@pytest.mark.parametrize("changes", LEVELS)
@pytest.mark.parametrize("adds", LEVELS)
def test_durable_adds_and_those_that_end_another_job_are_committed_at_least(
    clock: ManualClock, adds: Level, changes: Level
) -> None:
    talk = opened(clock, adds=adds, changes=changes)
    expected = max("committed", adds, changes, key=RANK.__getitem__)

    def level(**options: Any) -> Level:
        return level_of(talk, "PUSH", queue="q", name="n", **options)

    assert level(durable=True) == expected
    assert level(durable=True, groupId="g") == expected
    assert (
        level_of(talk, "PUSHB", queue="q", jobs=[{"name": "n"}, {"name": "n", "durable": True}]) == expected
    )
    job = held(talk, jobId="again")
    talk.good("ACK", **job)
    assert level(jobId="again") == expected
    assert level(uniqueKey="k", dedup={"ttl": 60_000, "replace": True}) == adds
    assert level(uniqueKey="k", dedup={"ttl": 60_000, "replace": True}) == expected
    # An add that a live job answers changes nothing, so that it has nothing to wait for but its level.
    assert level(jobId="again") == adds


@pytest.mark.parametrize("adds", LEVELS)
def test_what_ends_or_moves_a_durable_job_is_committed_at_least(clock: ManualClock, adds: Level) -> None:
    talk = opened(clock, adds=adds, changes="buffered")
    assert level_of(talk, "ACK", **held(talk)) == "buffered"
    assert level_of(talk, "ACK", **held(talk, durable=True)) == "committed"
    assert level_of(talk, "ACK", **held(talk, durable=True, removeOnComplete=True)) == "committed"
    plain, durable = held(talk), held(talk, durable=True)
    batch = {"ids": [plain["id"], durable["id"]], "tokens": [plain["token"], durable["token"]]}
    assert level_of(talk, "ACKB", **batch) == "committed"
    assert level_of(talk, "FAIL", **held(talk, durable=True), error="x") == "committed"
    assert level_of(talk, "MoveToDelayed", **held(talk, durable=True), delay=5) == "committed"
    assert level_of(talk, "Cancel", id=waiting(talk, durable=True)) == "committed"
    assert level_of(talk, "Cancel", id=waiting(talk)) == "buffered"
    # Also after a restart: the job says so in its record.
    flush(talk.broker)
    kept = waiting(talk, durable=True)
    store = talk.broker.store.reopened()
    again = Talk(open_broker(store=store, mode="server", changes="buffered", clock=clock, seed=bytes(16)))
    assert level_of(again, "Cancel", id=kept) == "committed"


def test_pulls_wait_for_their_commit_only_in_embedded_mode(clock: ManualClock) -> None:
    for mode, changes, expected in (
        ("server", "synced", "buffered"),
        ("embedded", "buffered", "buffered"),
        ("embedded", "committed", "committed"),
        ("embedded", "synced", "synced"),
    ):
        broker: Broker = open_broker(
            store=MemoryStore(),
            mode=mode,  # type: ignore[arg-type]
            changes=changes,  # type: ignore[arg-type]
            clock=clock,
            seed=SEED,
        )
        talk = Talk(broker)
        waiting(talk)
        assert level_of(talk, "PULL", queue="q", owner="w") == expected


def test_only_the_commits_that_promise_it_are_fsynced(clock: ManualClock) -> None:
    talk = opened(clock, adds="buffered", changes="synced")
    store = talk.broker.store

    def counts() -> tuple[object, object]:
        status = store.status()
        return status["commits"], status["syncs"]

    commits, syncs = counts()
    for _ in range(5):
        talk.good("PUSH", queue="q", name="n")
        flush(talk.broker)
    assert counts() == (commits + 5, syncs)
    talk.good("Pause", queue="q")
    assert counts() == (commits + 6, syncs + 1)
    talk.good("PUSH", queue="q", name="n")
    flush(talk.broker)
    assert counts() == (commits + 7, syncs + 1)


def test_many_that_wait_share_one_fsync(clock: ManualClock) -> None:
    talk = opened(clock, changes="synced")
    broker = talk.broker
    others = [Talk(broker) for _ in range(64)]
    syncs = broker.store.status()["syncs"]
    for other in others:
        other.send({"cmd": "PUSH", "queue": "q", "name": "n", "durable": True})
    flush(broker)
    assert all(other.replies()[0]["ok"] for other in others)
    assert broker.store.status()["syncs"] == syncs + 1
