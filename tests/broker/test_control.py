"""Control and questions over the wire: words, views, and what a data file brings back."""

from __future__ import annotations

from typing import Any

import pytest
from broker_talk import Talk, frame, settle

from qcore.broker import open_broker
from qcore.broker.core import Broker
from qcore.broker.opening import close_broker, commit
from qcore.clock import ManualClock
from qcore.engine.queue import DLQ_DEFAULTS, STALL_DEFAULTS
from qcore.store.memory import MemoryStore

SEED = bytes(range(16))


@pytest.fixture
def broker(clock: ManualClock) -> Broker:
    return open_broker(clock=clock, seed=SEED)


@pytest.fixture
def talk(broker: Broker) -> Talk:
    return Talk(broker)


def dead(talk: Talk, job_id: str, **options: Any) -> None:
    talk.good("PUSH", queue="q", name="n", jobId=job_id, maxAttempts=1, **options)
    talk.good("PULL", queue="q")
    talk.good("FAIL", id=job_id, error="no")


# --- words -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cmd", "fields", "text"),
    [
        ("Cancel", {"id": "x"}, "Job not found or cannot be cancelled"),
        ("Discard", {"id": "x"}, "Job not found"),
        ("ChangePriority", {"id": "x", "priority": 1}, "Job not found or not in queue"),
        ("ChangePriority", {"id": "x"}, "priority is required"),
        ("ChangePriority", {"id": "x", "priority": float("nan")}, "priority must be a finite number"),
        ("Update", {"id": "x", "data": 1}, "Job not found or cannot be updated"),
        ("Update", {"id": "x"}, "data is required"),
        ("Progress", {"id": "x", "progress": 1}, "Job not found"),
        ("Progress", {"id": "x", "progress": "1"}, "progress must be a number"),
        ("Progress", {"id": "x", "progress": 1, "message": 1}, "message must be a string"),
        ("GetProgress", {"id": "x"}, "Job not found"),
        ("AddLog", {"id": "x", "message": "m"}, "Job not found"),
        ("AddLog", {"id": "x"}, "message is required"),
        ("AddLog", {"id": "x", "message": "x" * 65_537}, "message must be at most 65536 characters"),
        ("AddLog", {"id": "x", "message": "", "level": "x" * 257}, "level must be at most 256 characters"),
        ("ExtendLock", {"id": "x", "token": "t", "duration": 1}, "Lock not found or invalid token"),
        ("ExtendLock", {"id": "x", "token": "t"}, "duration is required"),
        ("ExtendLock", {"id": "x", "token": "t", "duration": 0}, "duration must be at least 1"),
        ("PromoteJobs", {"queue": "q", "count": -1}, "count must be at least 0"),
        ("Clean", {"queue": "q", "grace": "x"}, "grace must be a number"),
        ("Drain", {}, "Queue name is required"),
        ("Obliterate", {"queue": "a b"}, "Queue name contains invalid characters"),
        ("SetDlqConfig", {"queue": "q"}, "config is required"),
        ("SetDlqConfig", {"queue": "q", "config": 1}, "config must be an object"),
        ("GetJobs", {"queue": "q", "state": 1}, "state must be a string or an array of strings"),
        ("GetJobs", {"queue": "q", "limit": -1}, "limit must be at least 0"),
        ("GetJobByCustomId", {"customId": "x"}, "Job not found"),
        ("Metrics", {"type": "completed"}, "Metrics queue is required"),
        ("Metrics", {"queue": "a b", "type": "completed"}, "Queue name contains invalid characters"),
        ("Metrics", {"queue": "q", "type": "no"}, "Metrics type must be 'completed' or 'failed'"),
    ],
)
def test_refusals(talk: Talk, cmd: str, fields: dict[str, object], text: str) -> None:
    assert talk.refused(cmd, **fields) == text


@pytest.mark.parametrize(
    ("cmd", "fields", "reply"),
    [
        ("PromoteJobs", {"queue": "no"}, {"count": 0}),
        ("Drain", {"queue": "no"}, {"count": 0}),
        ("Clean", {"queue": "no", "grace": 0}, {"count": 0, "ids": []}),
        ("Obliterate", {"queue": "no"}, {}),
        ("PurgeDlq", {"queue": "no"}, {"count": 0}),
        ("RemoveDlqJob", {"queue": "no", "jobId": "x"}, {"data": {"removed": False}}),
        ("RetryCompleted", {"queue": "no"}, {"count": 0}),
        ("RetryDlq", {"queue": "no", "filter": {"reason": "unknown"}}, {"count": 0}),
        ("GetJobs", {"queue": "no"}, {"jobs": []}),
        ("GetCountsPerPriority", {"queue": "no"}, {"queue": "no", "counts": {}}),
        ("GetDlqConfig", {"queue": "no"}, {"config": DLQ_DEFAULTS}),
        ("GetStallConfig", {"queue": "no"}, {"config": STALL_DEFAULTS}),
        ("SetStallConfig", {"queue": "no"}, {}),
        ("GetLogs", {"id": "x"}, {"data": {"logs": [], "count": 0}}),
        ("ClearLogs", {"id": "x"}, {}),
        ("CompactMemory", {}, {}),
    ],
)
def test_nothing_to_do_is_no_error(
    talk: Talk, cmd: str, fields: dict[str, object], reply: dict[str, object]
) -> None:
    assert talk.good(cmd, **fields) == {"ok": True, **reply}
    assert talk.good("ListQueues")["queues"] == []


# --- one job -----------------------------------------------------------------------------


@pytest.mark.parametrize("data", [None, 0, "text", {"a": [1, 2.5]}, b"\xff", 2**60])
def test_data_are_replaced_as_they_came(talk: Talk, data: object) -> None:
    talk.good("Hello", capabilities=["int64"])
    talk.good("PUSH", queue="q", name="n", data={"old": True}, jobId="a")
    talk.good("Update", id="a", data=data)
    assert talk.good("GetJob", id="a")["job"]["data"] == data
    assert talk.good("PULL", queue="q")["job"]["data"] == data


def test_64_bit_integers_of_new_data_are_told_apart_for_other_readers(talk: Talk) -> None:
    talk.good("PUSH", queue="q", name="n", data=1, jobId="a")
    talk.good("Update", id="a", data=2**60)
    got = talk.good("GetJob", id="a")["job"]["data"]
    assert isinstance(got, float)
    assert got == 2.0**60


def test_a_lock_is_extended_by_its_holder_only(talk: Talk, clock: ManualClock) -> None:
    for job_id in "ab":
        talk.good("PUSH", queue="q", name="n", jobId=job_id)
    tokens = talk.good("PULLB", queue="q", count=2, owner="w", lockTtl=100)["tokens"]
    assert talk.refused("ExtendLock", id="a", duration=1000) == "Lock not found or invalid token"
    assert (
        talk.refused("ExtendLock", id="a", token=tokens[1], duration=1000)
        == "Lock not found or invalid token"
    )
    talk.good("ExtendLock", id="a", token=tokens[0], duration=1000)
    extended = talk.good("ExtendLocks", ids=["a", "b"], tokens=[tokens[0], None], durations=[1000, 1000])
    assert extended["count"] == 1
    clock.advance(100)
    talk.broker.pump()
    assert talk.good("GetState", id="a")["state"] == "active"
    assert talk.good("GetState", id="b")["state"] == "waiting"


def test_a_job_is_found_by_its_custom_id_while_it_lives(talk: Talk) -> None:
    made = talk.good("PUSH", queue="q", name="n")["id"]
    assert talk.refused("GetJobByCustomId", customId=made) == "Job not found"
    talk.good("PUSH", queue="q", name="n", jobId="a", priority=1, backoff=0)
    job = talk.good("GetJobByCustomId", customId="a", queue="other")["job"]
    assert (job["id"], job["customId"]) == ("a", "a")
    assert "state" not in job
    talk.good("PULL", queue="q")
    talk.good("FAIL", id="a", error="no")
    assert talk.good("GetJobByCustomId", customId="a")["job"]["failedReason"] == "no"
    talk.good("PULL", queue="q")
    talk.good("ACK", id="a")
    assert talk.refused("GetJobByCustomId", customId="a") == "Job not found"


def test_the_past_of_a_job_does_not_change_with_its_priority(talk: Talk) -> None:
    talk.good("PUSH", queue="q", name="n", jobId="a")
    talk.good("ChangePriority", id="a", priority="2.5", lifo=True)
    job = talk.good("GetJob", id="a")["job"]
    assert (job["state"], job["priority"], job["lifo"]) == ("prioritized", 2.5, True)
    assert [entry["state"] for entry in job["timeline"]] == ["waiting"]
    assert talk.good("GetCountsPerPriority", queue="q")["counts"] == {"2.5": 1}
    talk.good("ChangePriority", id="a", priority=-1)
    assert talk.good("GetJob", id="a")["job"]["lifo"] is True
    assert talk.good("GetCountsPerPriority", queue="q")["counts"] == {"-1": 1}


def test_logs_are_read_by_their_places(talk: Talk) -> None:
    talk.good("PUSH", queue="q", name="n", jobId="a")
    for text in ("", "1", "2"):
        talk.good("AddLog", id="a", message=text, level="any")

    def texts(**page: int) -> list[str]:
        return [line["message"] for line in talk.good("GetLogs", id="a", **page)["data"]["logs"]]

    assert texts() == texts(end=-1) == texts(end=99) == ["", "1", "2"]
    assert texts(start=1, end=1) == ["1"]
    assert texts(start=1, end=-2) == ["1"]
    assert texts(start=3) == texts(start=2, end=1) == []


# --- waiting for what control does ---------------------------------------------------------


def test_those_who_wait_for_a_cancelled_job_are_told(talk: Talk) -> None:
    other = Talk(talk.broker)
    for job_id, cmd in (("a", "Cancel"), ("b", "Discard")):
        talk.good("PUSH", queue="q", name="n", jobId=job_id)
        other.send({"cmd": "WaitJob", "id": job_id})
        talk.good(cmd, id=job_id)
        assert other.replies() == [{"ok": True, "completed": False}]


@pytest.mark.parametrize("cmd", ["PromoteJobs", "RetryDlq", "RetryCompleted"])
def test_a_waiting_pull_gets_what_control_makes_ready(talk: Talk, cmd: str) -> None:
    other = Talk(talk.broker)
    if cmd == "PromoteJobs":
        talk.good("PUSH", queue="q", name="n", jobId="a", delay=60_000)
    elif cmd == "RetryDlq":
        dead(talk, "a")
    else:
        talk.good("PUSH", queue="q", name="n", jobId="a")
        talk.good("PULL", queue="q")
        talk.good("ACK", id="a")
    other.send({"cmd": "PULL", "queue": "q", "timeout": 1000})
    assert talk.good(cmd, queue="q")["count"] == 1
    assert other.replies()[0]["job"]["id"] == "a"


# --- dead letters and settings -----------------------------------------------------------


def test_dead_letters_are_counted_and_chosen(talk: Talk, clock: ManualClock) -> None:
    assert talk.good("GetDlqStats", queue="q")["data"]["stats"]["oldestEntry"] is None
    first = clock.now_ms()
    for job_id in "abc":
        dead(talk, job_id)
        clock.advance(10)
    talk.good("PUSH", queue="q", name="n", jobId="d")
    talk.good("Discard", id="d")
    stats = talk.good("GetDlqStats", queue="q")["data"]["stats"]
    assert stats == {
        "total": 4,
        "byReason": {
            "explicit_fail": 0,
            "max_attempts_exceeded": 3,
            "timeout": 0,
            "stalled": 0,
            "ttl_expired": 0,
            "worker_lost": 0,
            "unknown": 1,
        },
        "byQueue": {"q": 4},
        "pendingRetry": 0,
        "expired": 0,
        "oldestEntry": first,
        "newestEntry": first + 30,
    }

    def retry(**fields: object) -> int:
        return int(talk.good("RetryDlq", queue="q", **fields)["count"])

    assert retry(filter={"reason": "timeout"}) == retry(filter={}, count=0) == 0
    assert retry(filter={"reason": "unknown"}) == 1
    assert retry(filter={"olderThan": first + 10}) == 1
    assert talk.good("GetState", id="a")["state"] == "waiting"
    assert retry(filter={"offset": 1, "limit": 5}, count=3) == 1
    assert talk.good("GetState", id="c")["state"] == "waiting"
    assert talk.good("RemoveDlqJob", queue="q", jobId="b")["data"]["removed"] is True
    assert talk.good("PurgeDlq", queue="q")["count"] == 0
    talk.broker.engine._check()


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({"maxEntries": "12", "maxAge": None}, {"maxEntries": 12, "maxAge": None}),
        ({"maxEntries": 0, "maxAge": "7.0"}, {"maxEntries": 1, "maxAge": 7}),
        ({"maxEntries": 1e300}, {"maxEntries": 2**32 - 1}),
        ({"maxEntries": float("nan"), "maxAge": -1, "autoRetry": "yes"}, {}),
        ({"maxEntries": None, "autoRetryInterval": True, "maxAutoRetries": []}, {}),
        ({"autoRetry": True, "unknown": 1, "maxAutoRetries": 0}, {"autoRetry": True, "maxAutoRetries": 0}),
    ],
)
def test_settings_that_do_not_fit_are_left_out(
    talk: Talk, given: dict[str, object], changed: dict[str, object]
) -> None:
    talk.good("SetDlqConfig", queue="q", config=given)
    assert talk.good("GetDlqConfig", queue="q")["config"] == DLQ_DEFAULTS | changed
    talk.broker.engine._check()


def test_stall_settings_merge(talk: Talk) -> None:
    talk.good("SetStallConfig", queue="q", config={"maxStalls": "0", "enabled": False, "gracePeriod": "x"})
    talk.good("SetStallConfig", queue="q", config={"stallInterval": 5})
    assert talk.good("GetStallConfig", queue="q")["config"] == {
        "enabled": False,
        "stallInterval": 5,
        "maxStalls": 0,
        "gracePeriod": 5000,
    }
    assert talk.broker.engine.queue("q").max_stalls == 0


# --- listings ----------------------------------------------------------------------------


def test_listed_jobs_say_paused_only_when_asked_for_paused(talk: Talk) -> None:
    talk.good("PUSH", queue="q", name="n", jobId="a")
    talk.good("PUSH", queue="q", name="n", jobId="b", delay=1000)
    talk.good("Pause", queue="q")

    def listed(**fields: object) -> list[tuple[str, str]]:
        return [(job["id"], job["state"]) for job in talk.good("GetJobs", queue="q", **fields)["jobs"]]

    assert listed() == listed(state=[]) == listed(state="") == [("a", "waiting"), ("b", "delayed")]
    assert listed(state=["paused", "delayed"]) == [("a", "paused"), ("b", "delayed")]
    assert listed(state="waiting") == []
    assert listed(asc=False, limit=2**53 - 1)[0] == ("b", "delayed")
    assert listed(offset=2**53 - 1) == []


def test_a_page_that_is_too_large_for_a_reply_is_refused(talk: Talk) -> None:
    for _ in range(7):
        talk.good("PUSH", queue="q", name="n", data="x" * 10_000_000)
    assert talk.refused("GetJobs", queue="q") == "The reply would be over 67108864 bytes: ask for fewer jobs"
    assert len(talk.good("GetJobs", queue="q", limit=2)["jobs"]) == 2


def test_totals_and_rates(talk: Talk, clock: ManualClock) -> None:
    assert talk.good("Stats")["stats"]["pushPerSec"] == 0
    talk.good("PUSHB", queue="q", jobs=[{"name": "n"}] * 10)
    talk.good("PULL", queue="q")
    clock.advance(2000)
    stats = talk.good("Stats")["stats"]
    assert stats == {
        "waiting": 9,
        "active": 1,
        "delayed": 0,
        "dlq": 0,
        "completed": 0,
        "failed": 0,
        "uptime": 2000,
        "pushPerSec": 5,
        "pullPerSec": 0.5,
    }
    clock.advance(10)
    assert talk.good("Stats")["stats"]["pushPerSec"] == 5
    metrics = talk.good("Metrics")["metrics"]
    assert (metrics["totalPushed"], metrics["totalPulled"], metrics["activeConnections"]) == (10, 1, 1)


# --- a store -----------------------------------------------------------------------------


def test_control_outlives_a_crash(clock: ManualClock) -> None:
    store = MemoryStore()
    talk = Talk(open_broker(store=store, mode="server", clock=clock, seed=SEED))
    for job_id in "abc":
        talk.good("PUSH", queue="q", name="n", data=1, jobId=job_id)
    token = talk.good("PULL", queue="q", owner="w")["token"]
    talk.good("Progress", id="a", progress=50, message="half")
    talk.good("AddLog", id="a", message="line")
    talk.good("Update", id="b", data={"new": b"\x00" * 5000})
    talk.good("ChangePriority", id="c", priority=7)
    talk.good("PUSH", queue="q", name="n", jobId="d")
    talk.good("Discard", id="d")
    talk.good("SetDlqConfig", queue="q", config={"maxAge": 50})
    talk = Talk(open_broker(store=store.reopened(), mode="server", clock=clock, seed=bytes(16)))
    assert talk.good("GetProgress", id="a") == {"ok": True, "progress": 50, "message": "half"}
    assert talk.good("GetLogs", id="a")["data"]["logs"][0]["message"] == "line"
    assert talk.good("GetJob", id="b")["job"]["data"] == {"new": b"\x00" * 5000}
    assert talk.good("GetState", id="c")["state"] == "prioritized"
    assert talk.good("GetState", id="d")["state"] == "failed"
    assert talk.good("GetDlqConfig", queue="q")["config"]["maxAge"] == 50
    talk.good("ACK", id="a", token=token)
    talk.good("Obliterate", queue="q")
    talk.broker.engine._check()


def test_a_durable_add_on_its_way_is_beyond_the_reach_of_control(clock: ManualClock) -> None:
    """It is known to nobody before its commit, so what happens meanwhile comes before it."""
    store = MemoryStore()
    broker = open_broker(store=store, mode="server", clock=clock, seed=SEED)
    talk, other = Talk(broker), Talk(broker)
    other.session.feed(frame({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": "a", "durable": True}))
    assert broker.engine.remove("a") is False
    assert talk.refused("Cancel", id="b") == "Job not found or cannot be cancelled"
    assert broker.engine.cancel("a", broker.wall_ms) is False
    broker.engine.obliterate("q")
    assert broker.engine.drain("q") == 0
    broker.engine._check()
    settle(broker, other.session)
    assert [reply["id"] for reply in other.replies()] == ["a"]
    assert talk.good("GetState", id="a")["state"] == "waiting"
    broker.engine._check()
    close_broker(broker)


def test_obliteration_while_a_durable_add_is_being_written(clock: ManualClock) -> None:
    store = MemoryStore()
    broker = open_broker(store=store, mode="server", clock=clock, seed=SEED)
    talk, other = Talk(broker), Talk(broker)
    other.session.feed(frame({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": "a", "durable": True}))
    waiting, cut = broker.settle(other.session)
    assert waiting
    broker.engine.obliterate("q")
    talk.send({"cmd": "Discard", "id": "a"})
    assert talk.replies() == [{"ok": False, "error": "Job not found"}]
    commit(broker, cut)
    assert [reply["ok"] for reply in other.replies()] == [True]
    broker.engine._check()
    again = open_broker(store=store.reopened(), mode="server", clock=clock, seed=bytes(16))
    assert again.engine.state("a") == "waiting"


def test_intervals_of_queues_are_kept_as_they_are(talk: Talk) -> None:
    """Also beyond 49 days, where 32 bits end."""
    ninety_days = 90 * 86_400_000
    talk.good("SetDlqConfig", queue="q", config={"autoRetryInterval": ninety_days, "maxAge": ninety_days})
    talk.good("SetStallConfig", queue="q", config={"stallInterval": ninety_days, "gracePeriod": ninety_days})
    dead = talk.good("GetDlqConfig", queue="q")["config"]
    stalls = talk.good("GetStallConfig", queue="q")["config"]
    assert {dead["autoRetryInterval"], dead["maxAge"], stalls["stallInterval"], stalls["gracePeriod"]} == {
        ninety_days
    }


def test_leases_are_judged_late_only_after_their_holders_had_a_moment(
    broker: Broker, talk: Talk, clock: ManualClock
) -> None:
    """After a standstill of the program the host is told so first, whatever woke it: nothing is done yet."""
    patience_ns = 50_000_000
    for _ in range(2):
        talk.good("PUSH", queue="q", name="n")
    renewed, left = (talk.good("PULL", queue="q", owner="w", lockTtl=300) for _ in range(2))
    clock.advance(900)
    talk.good("PUSH", queue="q", name="later", delay=1)
    seconds, cut = broker.pump(patience_ns)
    assert (seconds, cut) == (pytest.approx(-0.6), None)
    talk.good("JobHeartbeat", id=renewed["job"]["id"], token=renewed["token"])
    broker.pump()
    assert talk.good("GetState", id=renewed["job"]["id"])["state"] == "active"
    assert talk.good("GetState", id=left["job"]["id"])["state"] != "active"
