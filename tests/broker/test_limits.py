"""Pulls that wait for a limit: woken exactly when they can be served, and never otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from broker_talk import Talk, settle

from qcore.broker.opening import close_broker, open_broker
from qcore.clock import ManualClock


def talks(clock: ManualClock, n: int = 1) -> list[Talk]:
    broker = open_broker(clock=clock, seed=bytes(16))
    return [Talk(broker) for _ in range(n)]


def pumped(talk: Talk, clock: ManualClock, most_ms: float) -> tuple[int, float, list[Any]]:
    """Let the host run until a reply comes or the time is over: turns it took, ms that passed, replies."""
    passed, turns = 0.0, 0
    while True:
        wait_s, _ = talk.broker.pump()
        turns += 1
        assert turns < 1000, "a busy loop"
        replies = talk.replies()
        left = most_ms - passed
        if replies or wait_s is None or left <= 0:
            return turns, passed, replies
        step = min(wait_s * 1000, left)
        clock.advance(step)
        passed += step


def job_of(reply: Any) -> Any:
    return None if reply["job"] is None else reply["job"]["data"]


def test_defect_48_a_pull_that_waits_for_a_token_gets_its_job_when_that_comes(
    clock: ManualClock,
) -> None:
    (talk,) = talks(clock)
    talk.good("PUSHB", queue="q", jobs=[{"data": n} for n in range(3)])
    talk.good("RateLimit", queue="q", limit=1)
    assert talk.good("PULL", queue="q")["job"]["data"] == 0
    clock.advance(300)
    talk.send({"cmd": "PULL", "queue": "q", "timeout": 3000})
    turns, passed, (reply,) = pumped(talk, clock, 10_000)
    assert job_of(reply) == 1
    assert passed == pytest.approx(700, abs=0.01)
    assert turns <= 4


def test_a_temporary_limit_that_ends_wakes_who_waits(clock: ManualClock) -> None:
    (talk,) = talks(clock)
    talk.good("PUSH", queue="q", data=0)
    talk.good("RateLimit", queue="q", limit=0, ttl=400)
    talk.send({"cmd": "PULL", "queue": "q", "timeout": 3000})
    turns, passed, (reply,) = pumped(talk, clock, 10_000)
    assert job_of(reply) == 0
    assert passed == pytest.approx(400, abs=0.01)
    assert turns <= 4


def test_a_pull_that_waits_for_a_window_or_a_block_gets_its_job_when_that_ends(clock: ManualClock) -> None:
    (talk,) = talks(clock)
    group = {"limit": {"max": 1, "duration": 250}}
    talk.good("PUSHB", queue="q", jobs=[{"data": n, "groupId": "g"} for n in range(3)])
    assert job_of(talk.good("PULL", queue="q", group=group)) == 0
    talk.send({"cmd": "PULL", "queue": "q", "timeout": 3000, "group": group})
    turns, passed, (reply,) = pumped(talk, clock, 10_000)
    assert (job_of(reply), passed) == (1, pytest.approx(250, abs=0.01))
    assert turns <= 4
    talk.good("RateLimitGroup", queue="q", groupId="g", duration=900)
    talk.send({"cmd": "PULL", "queue": "q", "timeout": 3000})
    turns, passed, (reply,) = pumped(talk, clock, 10_000)
    assert (job_of(reply), passed) == (2, pytest.approx(900, abs=0.01))
    assert turns <= 4


def test_a_pull_that_can_never_be_served_costs_no_turns(clock: ManualClock) -> None:
    (talk,) = talks(clock)
    talk.good("PUSHB", queue="q", jobs=[{"data": n, "groupId": "g"} for n in range(3)])
    talk.good("RateLimit", queue="q", limit=0)
    talk.good("PauseGroup", queue="q", groupId="g")
    talk.send({"cmd": "PULL", "queue": "q", "timeout": 60_000})
    turns, passed, (reply,) = pumped(talk, clock, 100_000)
    assert (job_of(reply), passed) == (None, pytest.approx(60_000, abs=0.01))
    assert turns <= 3


WAKERS = {
    "a freed slot": {"cmd": "ACK", "id": "first"},
    "a higher limit": {"cmd": "SetConcurrency", "queue": "q", "limit": 2},
    "no limit": {"cmd": "ClearConcurrency", "queue": "q"},
}


@pytest.mark.parametrize("waker", WAKERS)
def test_defect_21_and_22_a_slot_that_comes_free_wakes_who_waits(clock: ManualClock, waker: str) -> None:
    talk, other = talks(clock, 2)
    talk.good("SetConcurrency", queue="q", limit=1)
    talk.good("PUSHB", queue="q", jobs=[{"data": 0, "customId": "first"}, {"data": 1}])
    assert job_of(other.good("PULL", queue="q")) == 0
    talk.send({"cmd": "PULL", "queue": "q", "timeout": 3000})
    assert talk.replies() == []
    other.send(WAKERS[waker])
    assert talk.heard == 1
    assert job_of(talk.replies()[0]) == 1


def test_defect_22_the_end_of_a_lease_wakes_who_waits_for_its_slot(clock: ManualClock) -> None:
    (talk,) = talks(clock)
    talk.good("SetConcurrency", queue="q", limit=1)
    talk.good("PUSH", queue="q", data=0)
    talk.good("PULL", queue="q", owner="gone", lockTtl=500)
    talk.send({"cmd": "PULL", "queue": "q", "timeout": 3000})
    _, passed, (reply,) = pumped(talk, clock, 10_000)
    assert (job_of(reply), passed) == (0, pytest.approx(500, abs=0.01))
    assert talk.good("GetJobCounts", queue="q")["counts"]["active"] == 1


GROUP_WAKERS: dict[str, dict[str, Any]] = {
    "resume": {"cmd": "ResumeGroup", "queue": "q", "groupId": "paused"},
    "an acknowledgement": {"cmd": "ACK", "id": "first"},
    "a concurrency of its own": {
        "cmd": "SetGroupConcurrency",
        "queue": "q",
        "groupId": "full",
        "concurrency": 2,
    },
}


@pytest.mark.parametrize("waker", GROUP_WAKERS)
def test_what_opens_a_group_wakes_who_waits(clock: ManualClock, waker: str) -> None:
    talk, other = talks(clock, 2)
    group = {"concurrency": 1}
    talk.good(
        "PUSHB",
        queue="q",
        jobs=[
            {"data": 0, "customId": "first", "groupId": "full"},
            {"data": 1, "groupId": "full"},
            {"data": 2, "groupId": "paused"},
        ],
    )
    talk.good("PauseGroup", queue="q", groupId="paused")
    assert job_of(other.good("PULL", queue="q", group=group)) == 0
    talk.send({"cmd": "PULL", "queue": "q", "timeout": 3000, "group": group})
    assert talk.replies() == []
    other.send(GROUP_WAKERS[waker])
    assert job_of(talk.replies()[0]) == (2 if waker == "resume" else 1)


def test_a_wait_that_wants_another_group_lets_those_behind_it_pass(clock: ManualClock) -> None:
    talk, first, second, third, push = talks(clock, 5)
    talk.send({"cmd": "PULL", "queue": "q", "timeout": 3000, "group": {"affinity": "b"}})
    first.send({"cmd": "PULL", "queue": "q", "timeout": 3000})
    second.send({"cmd": "PULL", "queue": "q", "timeout": 3000, "group": {"affinity": "a"}})
    third.send({"cmd": "PULL", "queue": "q", "timeout": 3000})
    push.send(
        {
            "cmd": "PUSHB",
            "queue": "q",
            "jobs": [{"data": 0, "groupId": "a"}, {"data": 1, "groupId": "a"}, {"data": 2}],
        }
    )
    assert talk.replies() == []
    assert [job_of(one.replies()[0]) for one in (first, second, third)] == [2, 0, 1]
    push.send({"cmd": "PUSH", "queue": "q", "data": 3, "groupId": "b"})
    assert job_of(talk.replies()[0]) == 3


def test_invariant_23_and_defect_46_one_wait_for_each_job_and_first_come_first_served(
    clock: ManualClock,
) -> None:
    *waiting, push = talks(clock, 7)
    wishes = [{}, {"group": {"concurrency": 2}}, {}, {"group": {"concurrency": 2}}, {}, {}]
    for one, wish in zip(waiting, wishes, strict=True):
        one.send({"cmd": "PULL", "queue": "q", "timeout": 3000, **wish})
    push.send({"cmd": "PUSHB", "queue": "q", "jobs": [{"data": n} for n in range(4)]})
    assert [[job_of(reply) for reply in one.replies()] for one in waiting] == [[0], [1], [2], [3], [], []]
    assert [one.heard for one in waiting] == [1, 1, 1, 1, 0, 0]
    for one in waiting[4:]:
        one.session.close()
    # No notification is left over for the next wait.
    push.send({"cmd": "PULL", "queue": "q", "timeout": 10})
    assert push.replies()[0]["ids"]
    assert push.replies() == []


def test_case_022_a_pause_holds_whatever_makes_jobs_ready(clock: ManualClock) -> None:
    (talk,) = talks(clock)
    jobs = [
        {"data": "retried", "backoff": 50, "customId": "retried"},
        {"data": "lost", "customId": "lost"},
        {"data": "delayed", "delay": 80, "customId": "delayed"},
        {"data": "promoted", "delay": 60_000, "customId": "promoted"},
        {"data": "grouped", "groupId": "g"},
    ]
    talk.good("PUSHB", queue="q", jobs=jobs)
    token = talk.good("PULL", queue="q", owner="w")["token"]
    talk.good("PULL", queue="q", owner="dead", lockTtl=40)
    talk.good("Pause", queue="q")
    talk.good("FAIL", id="retried", token=token, error="no")
    talk.good("Promote", id="promoted")
    talk.send({"cmd": "PULLB", "queue": "q", "count": 10, "timeout": 5000})
    clock.advance(200)
    talk.broker.pump()
    talk.good("PUSH", queue="q", data="new", priority=3)
    assert talk.good("GetJobCounts", queue="q")["counts"]["paused"] == 6
    assert talk.good("GetJobCounts", queue="q")["counts"]["active"] == 0
    talk.send({"cmd": "Resume", "queue": "q"})
    _, reply = sorted(talk.replies(), key=lambda reply: "jobs" in reply)
    assert [job["data"] for job in reply["jobs"]] == [
        "new",
        "lost",
        "promoted",
        *[job["data"] for job in reply["jobs"][3:5]],
        "grouped",
    ]
    assert {job["data"] for job in reply["jobs"][3:5]} == {"retried", "delayed"}


def test_case_023_three_workers_on_one_limit(clock: ManualClock) -> None:
    workers = talks(clock, 3)
    talk = workers[0]
    talk.good("RateLimit", queue="q", limit=10)
    talk.good("PUSHB", queue="q", jobs=[{"data": n} for n in range(105)])
    starts: list[float] = []
    began = clock.now_ns()
    for worker in workers:
        worker.send({"cmd": "PULLB", "queue": "q", "count": 20, "timeout": 60_000})
    for _ in range(10_000):
        for worker in workers:
            for reply in worker.replies():
                starts += [(clock.now_ns() - began) / 1e6] * len(reply["jobs"])
                worker.send({"cmd": "PULLB", "queue": "q", "count": 20, "timeout": 60_000})
        if len(starts) == 105:
            break
        wait_s, _ = talk.broker.pump()
        assert wait_s is not None
        clock.advance(wait_s * 1000)
    assert len(starts) == 105
    assert starts[-1] <= 12_000
    for i in range(105):
        for j in range(i, 105):
            assert j - i + 1 <= 10 * (1 + (starts[j] - starts[i]) / 1000) + 1e-6


def test_a_batch_is_cut_off_by_a_limit_and_not_refused(clock: ManualClock) -> None:
    (talk,) = talks(clock)
    talk.good("PUSHB", queue="q", jobs=[{"data": n} for n in range(9)])
    talk.good("RateLimit", queue="q", limit=4)
    talk.good("SetConcurrency", queue="q", limit=6)
    assert len(talk.good("PULLB", queue="q", count=9)["jobs"]) == 4
    talk.good("RateLimitClear", queue="q")
    assert len(talk.good("PULLB", queue="q", count=9)["jobs"]) == 2
    assert talk.good("GetQueueLimits", queue="q")["data"]["limits"]["maxed"] is True


def test_adds_to_a_full_group_are_refused_whole(clock: ManualClock) -> None:
    (talk,) = talks(clock)
    full = "Group g has reached its maximum size of 2"
    talk.good("PUSH", queue="q", data=0, groupId="g", groupMaxSize=2, jobId="one")
    batch = [{"data": n, "groupId": "g", "groupMaxSize": 2} for n in range(2)]
    assert talk.refused("PUSHB", queue="q", jobs=batch) == full
    assert talk.good("Count", queue="q")["count"] == 1
    talk.good("PUSH", queue="q", data=1, groupId="g", groupMaxSize=2, delay=1000)
    assert talk.refused("PUSH", queue="q", data=2, groupId="g", groupMaxSize=2) == full
    # An id that is there already adds nothing.
    assert talk.good("PUSH", queue="q", data=2, groupId="g", groupMaxSize=2, jobId="one")["id"] == "one"
    again = [{"data": 0, "groupId": "h", "groupMaxSize": 1, "customId": "x"}] * 2
    assert talk.good("PUSHB", queue="q", jobs=again)["ids"] == ["x", "x"]
    assert talk.good("GetGroupsJobsCount", queue="q")["data"]["count"] == 3
    assert talk.refused("PUSH", queue="q", groupId="g", groupMaxSize=0) == (
        "group.maxSize must be a positive safe integer"
    )


def test_a_key_that_is_held_or_passed_on_takes_no_room(clock: ManualClock) -> None:
    (talk,) = talks(clock)
    job = {"groupId": "g", "groupMaxSize": 1, "uniqueKey": "k"}
    first = talk.good("PUSH", queue="q", data=0, **job)["id"]
    assert talk.good("PUSH", queue="q", data=1, **job)["id"] == first
    second = talk.good("PUSH", queue="q", data=2, dedup={"replace": True}, **job)["id"]
    assert second != first
    assert talk.good("GetGroupJobsCount", queue="q", groupId="g")["data"]["count"] == 1
    assert talk.refused("PUSH", queue="q", data=3, groupId="g", groupMaxSize=1) == (
        "Group g has reached its maximum size of 1"
    )


def test_a_durable_add_takes_its_room_before_its_commit(clock: ManualClock) -> None:
    from qcore.store.memory import MemoryStore

    broker = open_broker(clock=clock, seed=bytes(16), store=MemoryStore(), mode="server")
    talk = Talk(broker)
    job = {"cmd": "PUSH", "queue": "q", "data": 0, "groupId": "g", "groupMaxSize": 1, "durable": True}
    talk.send(job, job)
    settle(broker, talk.session)
    first, second = sorted(talk.replies(), key=lambda reply: not reply["ok"])
    assert first["ok"] is True
    assert second["error"] == "Group g has reached its maximum size of 1"
    broker.engine._check()


def test_a_pull_says_what_is_wrong_with_its_group(clock: ManualClock) -> None:
    (talk,) = talks(clock)
    for group, text in (
        (5, "group must be an object"),
        ({"concurrency": 0}, "group.concurrency must be a positive safe integer"),
        ({"limit": 3}, "group.limit must be an object"),
        ({"limit": {"max": 1}}, "group.limit.duration must be a positive safe integer"),
        ({"affinity": 3}, "group.affinity must be a string or null"),
    ):
        assert talk.refused("PULL", queue="q", group=group) == text


def test_settings_survive_the_store(clock: ManualClock) -> None:
    from qcore.store.memory import MemoryStore

    store = MemoryStore()
    broker = open_broker(clock=clock, seed=bytes(16), store=store, mode="server")
    talk = Talk(broker)
    talk.good("PUSHB", queue="q", jobs=[{"data": n, "groupId": "g"} for n in range(3)])
    talk.good("RateLimit", queue="q", limit=1, duration=60_000)
    talk.good("SetConcurrency", queue="q", limit=7)
    talk.good("PauseGroup", queue="q", groupId="g")
    talk.good("SetGroupConcurrency", queue="q", groupId="h", concurrency=2)
    close_broker(broker)
    talk = Talk(open_broker(clock=clock, seed=bytes(16), store=store.reopened(), mode="server"))
    assert talk.good("GetQueueLimits", queue="q")["data"]["limits"] == {
        "rateLimit": {"max": 1, "duration": 60_000},
        "rateLimitTtl": 0,
        "concurrencyLimit": 7,
        "maxed": False,
    }
    assert talk.good("IsGroupPaused", queue="q", groupId="g")["data"]["paused"] is True
    assert talk.good("GetGroupConcurrency", queue="q", groupId="h")["data"]["concurrency"] == 2
    assert talk.good("PULL", queue="q")["job"] is None
    talk.good("ResumeGroup", queue="q", groupId="g")
    assert talk.good("PULL", queue="q")["job"]["groupId"] == "g"
    assert talk.good("PULL", queue="q")["job"] is None


NAMES = json.loads((Path(__file__).parent.parent / "data" / "names.json").read_text("utf-8"))["queues"]


@pytest.mark.parametrize("value", [row["value"] for row in NAMES if row["expect"] != "refuse"])
def test_case_018_a_name_works_as_a_group_everywhere_or_is_refused_at_the_call(
    clock: ManualClock, tmp_path: Path, value: str
) -> None:
    broker = open_broker(str(tmp_path / "a.db"), clock=clock, mode="server")
    talk = Talk(broker)
    pushed = talk.ask("PUSH", queue="q", data=1, groupId=value)
    assert pushed["ok"] is (1 <= len(value) <= 256)
    if not pushed["ok"]:
        assert talk.ask("PauseGroup", queue="q", groupId=value)["error"] == pushed["error"]
        close_broker(broker)
        return
    near = value + "x" if len(value) < 256 else value[:-1]
    talk.good("PUSH", queue="q", data=2, groupId=near)
    assert talk.good("PauseGroup", queue="q", groupId=value)["data"]["changed"] is True
    talk.good("SetGroupConcurrency", queue="q", groupId=value, concurrency=3)
    talk.good("SetGroupRateLimit", queue="q", groupId=value, max=5, duration=1000)
    talk.good("RateLimitGroup", queue="q", groupId=value, duration=1000)
    close_broker(broker)
    broker = open_broker(str(tmp_path / "a.db"), clock=clock, mode="server")
    talk = Talk(broker)
    for group, (count, paused, limit) in {value: (1, True, 3), near: (1, False, None)}.items():
        assert talk.good("GetGroupJobsCount", queue="q", groupId=group)["data"]["count"] == count
        assert talk.good("IsGroupPaused", queue="q", groupId=group)["data"]["paused"] is paused
        assert talk.good("GetGroupConcurrency", queue="q", groupId=group)["data"]["concurrency"] == limit
    assert talk.good("GetGroupRateLimitTtl", queue="q", groupId=value)["data"]["ttl"] == 1000
    assert talk.good("PULL", queue="q")["job"]["groupId"] == near
    assert talk.good("PULL", queue="q")["job"] is None
    talk.good("ResumeGroup", queue="q", groupId=value)
    clock.advance(1000)
    job = talk.good("PULL", queue="q", group={"affinity": value, "concurrency": 1})["job"]
    assert (job["groupId"], job["data"]) == (value, 1)
    assert talk.good("GetGroupActiveCount", queue="q", groupId=value)["data"]["count"] == 1
    talk.good("ACK", id=job["id"])
    close_broker(broker)


def test_case_023_the_wall_clock_may_go_back_by_an_hour_while_limited(clock: ManualClock) -> None:
    (talk,) = talks(clock)
    talk.good("RateLimit", queue="q", limit=1)
    talk.good("PUSHB", queue="q", jobs=[{"data": n} for n in range(2)])
    talk.good("PULL", queue="q")
    talk.send({"cmd": "PULL", "queue": "q", "timeout": 3000})
    clock.set_wall(clock.now_ms() - 3_600_000)
    _, passed, (reply,) = pumped(talk, clock, 10_000)
    assert (job_of(reply), passed) == (1, pytest.approx(1000, abs=0.01))


def test_invariant_19_a_wait_ends_with_the_delay_of_a_grouped_job(clock: ManualClock) -> None:
    (talk,) = talks(clock)
    talk.send({"cmd": "PULL", "queue": "q", "timeout": 3000, "group": {"affinity": "g"}})
    talk.send({"cmd": "PUSH", "queue": "q", "data": 7, "groupId": "g", "delay": 350, "reqId": "p"})
    assert [reply["reqId"] for reply in talk.replies()] == ["p"]
    _, passed, (reply,) = pumped(talk, clock, 10_000)
    assert (job_of(reply), passed) == (7, pytest.approx(350, abs=0.01))


def test_many_waits_behind_a_limit_are_served_one_token_each(clock: ManualClock) -> None:
    *waiting, talk = talks(clock, 6)
    talk.good("RateLimit", queue="q", limit=1, duration=100)
    talk.good("PUSHB", queue="q", jobs=[{"data": n} for n in range(5)])
    for one in waiting:
        one.send({"cmd": "PULL", "queue": "q", "timeout": 3000})
    served = []
    for turn in range(5):
        for number, one in enumerate(waiting):
            served += [(turn, number, job_of(reply)) for reply in one.replies()]
        wait_s, _ = talk.broker.pump()
        if wait_s is not None:
            clock.advance(wait_s * 1000)
            talk.broker.pump()
    assert served == [(n, n, n) for n in range(5)]
