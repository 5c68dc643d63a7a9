"""Details of replies that no transcript holds, found by comparing with the reference server."""

from __future__ import annotations

from typing import Any

import pytest
from broker_talk import Talk

from qcore.broker.opening import open_broker
from qcore.clock import ManualClock


@pytest.fixture
def talk(clock: ManualClock) -> Talk:
    return Talk(open_broker(clock=clock))


def states(talk: Talk, job_id: str) -> list[tuple[str, int | None]]:
    timeline = talk.good("GetJob", id=job_id)["job"]["timeline"]
    return [(entry["state"], entry.get("attempt")) for entry in timeline]


def letter(talk: Talk, queue: str) -> dict[str, Any]:
    (entry,) = talk.good("Dlq", queue=queue)["entries"]
    assert isinstance(entry, dict)
    return entry


def test_a_job_that_is_moved_to_wait_goes_behind_what_is_ready(talk: Talk, clock: ManualClock) -> None:
    talk.good("PUSHB", queue="q", jobs=[{"customId": i} for i in "xyz"])
    token = talk.good("PULL", queue="q", owner="w")["token"]
    clock.advance(5)
    talk.good("MoveToWait", id="x", token=token)
    assert [job["id"] for job in talk.good("PULLB", queue="q", count=3)["jobs"]] == ["y", "z", "x"]


def test_a_job_whose_connection_ends_keeps_its_place(talk: Talk, clock: ManualClock) -> None:
    talk.good("PUSHB", queue="q", jobs=[{"customId": i} for i in "xyz"])
    other = Talk(talk.broker)
    other.good("PULL", queue="q", owner="w")
    clock.advance(5)
    other.session.close()
    assert [job["id"] for job in talk.good("PULLB", queue="q", count=3)["jobs"]] == ["x", "y", "z"]
    assert states(talk, "x") == [("waiting", None), ("active", None), ("active", None)]


@pytest.mark.parametrize("way", ["MoveToWait", "MoveToDelayed", "ChangeDelay"])
def test_the_timeline_keeps_executions_that_were_not_charged(
    talk: Talk, clock: ManualClock, way: str
) -> None:
    more = {} if way == "MoveToWait" else {"delay": 0}
    talk.good("PUSH", queue="q", jobId="j", backoff=0)
    token = talk.good("PULL", queue="q", owner="w")["token"]
    talk.good(way, id="j", token=token, **more)
    assert states(talk, "j") == [("waiting", None), ("active", None)]
    token = talk.good("PULL", queue="q", owner="w")["token"]
    talk.good("FAIL", id="j", token=token, error="broke")
    token = talk.good("PULL", queue="q", owner="w")["token"]
    talk.good(way, id="j", token=token, **more)
    assert states(talk, "j")[2:] == [("active", None), ("failed", 1), ("waiting", 2), ("active", None)]


@pytest.mark.parametrize("active", [False, True])
def test_a_discarded_job_has_a_record_of_its_end(talk: Talk, clock: ManualClock, active: bool) -> None:
    talk.good("PUSH", queue="q", jobId="j")
    clock.advance(20)
    token = talk.good("PULL", queue="q", owner="w")["token"] if active else None
    clock.advance(30)
    talk.good("Discard", id="j", token=token)
    entry = letter(talk, "q")
    began = entry["job"]["createdAt"] + (20 if active else 0)
    assert entry["attempts"] == [
        {
            "attempt": 0,
            "startedAt": began,
            "failedAt": entry["enteredAt"],
            "reason": "unknown",
            "error": None,
            "duration": 30 if active else 0,
        }
    ]
    seen = [("waiting", None), ("active", None)] if active else [("waiting", None)]
    assert [(e["state"], e.get("attempt")) for e in entry["job"]["timeline"]] == seen


def test_a_parent_that_fails_with_its_child_has_a_record_of_its_end(talk: Talk) -> None:
    parent = {"name": "p", "data": {"__childrenIds": ["k"]}, "childrenIds": ["k"], "dependsOn": ["k"]}
    child = {"name": "k", "data": {"__parentId": "p", "__parentQueue": "up"}, "parentId": "p"}
    child |= {"maxAttempts": 1, "failParentOnFailure": True}
    entries = [{"id": "p", "queue": "up", "input": parent}, {"id": "k", "queue": "down", "input": child}]
    talk.good("PUSHF", jobs=entries)
    token = talk.good("PULL", queue="down", owner="w")["token"]
    talk.good("FAIL", id="k", token=token, error="broke")
    (record,) = letter(talk, "up")["attempts"]
    assert (record["attempt"], record["reason"], record["duration"]) == (0, "unknown", 0)
    assert record["error"] == "Child job k failed: broke"


def test_a_failure_without_a_text_has_none(talk: Talk) -> None:
    follower = Talk(talk.broker)
    follower.good("SubscribeEvents", queue="q", eventTypes=["failed"])
    talk.good("PUSH", queue="q", jobId="j", maxAttempts=2, backoff=0)
    talk.good("FAIL", id="j", token=talk.good("PULL", queue="q", owner="w")["token"])
    failed, _ = talk.good("GetJob", id="j")["job"]["timeline"][2:]
    assert "error" not in failed
    talk.good("FAIL", id="j", token=talk.good("PULL", queue="q", owner="w")["token"], error="")
    told = [event["event"] for event in follower.replies()]
    assert ["error" in event for event in told] == [False, True]
    assert [event.get("error") for event in told] == [None, ""]
    entry = letter(talk, "q")
    assert [record["error"] for record in entry["attempts"]] == [None, ""]
    assert entry["error"] == ""


def test_dead_letters_are_counted_for_the_queue_asked_for_also_when_there_are_none(talk: Talk) -> None:
    assert talk.good("GetDlqStats", queue="q")["data"]["stats"]["byQueue"] == {"q": 0}


def test_missing_tokens_are_misses(talk: Talk) -> None:
    talk.good("PUSHB", queue="q", jobs=[{"customId": i} for i in "xy"])
    got = talk.good("PULLB", queue="q", count=2, owner="w")
    assert [job["id"] for job in got["jobs"]] == ["x", "y"]
    tokens = got["tokens"][:1]
    reply = talk.good("ExtendLocks", ids=["x", "y"], tokens=tokens, durations=[60_000])
    assert reply["count"] == 1
    assert talk.good("JobHeartbeatB", ids=["x", "y", "z"], tokens=tokens)["data"]["count"] == 2


def test_a_worker_that_registers_again_goes_on_as_it_was(talk: Talk) -> None:
    talk.good("RegisterWorker", workerId="w", name="a", queues=["q"], startedAt=5, hostname="h", pid=4)
    talk.good("Heartbeat", id="w", activeJobs=1, processed=3, failed=2)
    again = talk.good("RegisterWorker", workerId="w", name="b", queues=["r"], startedAt=9, concurrency=2)[
        "data"
    ]
    kept = {"name": "a", "hostname": "h", "pid": 4, "registeredAt": 5}
    assert again | kept == again
    assert (again["queues"], again["concurrency"]) == (["r"], 2)
    assert (again["activeJobs"], again["processedJobs"], again["failedJobs"]) == (1, 3, 2)
    moved = talk.good("RegisterWorker", workerId="w", name="b", queues=["r"], hostname="i", pid=6)["data"]
    assert (moved["hostname"], moved["pid"]) == ("i", 6)
