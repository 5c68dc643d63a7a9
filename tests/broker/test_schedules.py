"""Schedules over the protocol, and over restarts."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any, Literal

import pytest
from broker_talk import Talk

from qcore.broker import open_broker
from qcore.broker.opening import close_broker, commit, flush
from qcore.clock import ManualClock
from qcore.store.base import Cut
from qcore.store.memory import MemoryStore

START = int(datetime(2026, 3, 2, 10, 0, tzinfo=UTC).timestamp() * 1000)
SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
Mode = Literal["embedded", "server"]


class Host:
    """A data file and the brokers that open it one after the other."""

    def __init__(self) -> None:
        self.clock = ManualClock(START)
        self.store = MemoryStore()
        self.n = 0

    def start(self, mode: Mode = "server") -> Talk:
        self.n += 1
        self.store = self.store.reopened()
        self.broker = open_broker(store=self.store, mode=mode, clock=self.clock, seed=bytes([self.n] * 16))
        self.broker.engine._check()
        return Talk(self.broker)

    def crash(self) -> None:
        """End after the last commit, without a word."""
        flush(self.broker)

    def close(self) -> None:
        close_broker(self.broker)

    def pass_time(self, ms: int) -> None:
        """Let time go by, in steps that no wake-up lies within, as a host's loop does."""
        end = self.clock.now_ms() + ms
        while True:
            left, cut = self.broker.pump()
            if cut is not None:
                commit(self.broker, cut)
                continue
            step = end - self.clock.now_ms()
            if left is not None:
                step = min(step, max(1, round(left * 1000)))
            if step <= 0:
                break
            self.clock.advance(step)
        self.broker.engine._check()


@pytest.fixture
def host() -> Host:
    return Host()


def pull(talk: Talk, queue: str = "q") -> tuple[Any, str] | None:
    got = talk.good("PULL", queue=queue, owner="w", lockTtl=30_000)
    return (got["job"], got["token"]) if got["job"] else None


def work(talk: Talk, queue: str = "q") -> list[Any]:
    """Run what is there; the jobs."""
    done = []
    while (got := pull(talk, queue)) is not None:
        talk.good("ACK", id=got[0]["id"], token=got[1])
        done.append(got[0])
    return done


# --- the protocol ----------------------------------------------------------------------------


def test_a_schedule_as_it_is_shown(host: Host) -> None:
    talk = host.start()
    shown = {
        "name": "s", "jobName": "report", "queue": "q", "schedule": "0 12 * * *", "repeatEvery": None,
        "nextRun": START + HOUR, "executions": 0, "maxLimit": 5, "timezone": "Europe/Rome", "priority": 2,
    }  # fmt: skip
    fields = {
        "name": "s", "queue": "q", "jobName": "report", "schedule": "0 12 * * *", "timezone": "Europe/Rome",
        "priority": 2, "maxLimit": 5, "data": {"k": [1]},
    }  # fmt: skip
    assert talk.good("Cron", **fields)["cron"] == shown
    assert talk.good("CronGet", name="s")["cron"] == shown
    assert talk.good("CronList")["crons"] == [shown]
    host.pass_time(HOUR)
    (job,) = work(talk)
    assert (job["name"], job["data"], job["priority"], job["uniqueKey"]) == (
        "report",
        {"k": [1]},
        2,
        "cron:s",
    )
    assert talk.good("CronGet", name="s")["cron"]["executions"] == 1
    talk.good("CronDelete", name="s")
    assert talk.refused("CronGet", name="s") == "Cron job not found"
    assert talk.refused("CronDelete", name="s") == "Cron job not found"
    assert talk.good("CronList")["crons"] == []


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "Cron job must have either schedule or repeatEvery"),
        ({"schedule": ""}, "Cron job must have either schedule or repeatEvery"),
        *[
            (
                {"repeatEvery": value},
                "Cron repeatEvery must be a positive safe integer number of milliseconds",
            )
            for value in (0, -5, 1.5, 2.0**60, "5", True, [])
        ],
        ({"schedule": "0 0 * *"}, "Invalid cron expression: expected 5 fields"),
        ({"schedule": "0 0 30 2 *"}, "Invalid cron expression: "),
        ({"schedule": "* * * * *", "timezone": "Mars/Olympus"}, "Invalid cron expression: unknown time zone"),
        ({"schedule": 5}, "schedule must be a string"),
        ({"repeatEvery": 5, "queue": "a b"}, "Queue name contains invalid characters"),
        ({"repeatEvery": 5, "queue": ""}, "Queue name is required"),
        ({"repeatEvery": 5, "name": ""}, "name is required"),
        ({"repeatEvery": 5, "jobName": "x" * 300}, "Job name must be a non-empty string"),
        ({"repeatEvery": 5, "data": {"name": ""}}, "Job name must be a non-empty string"),
        ({"repeatEvery": 5, "priority": "high"}, "priority must be a number"),
        ({"repeatEvery": 5, "jobOptions": 5}, "jobOptions must be an object"),
        ({"repeatEvery": 5, "jobOptions": {"timeout": -1}}, "jobOptions.timeout must be at least 0"),
        ({"repeatEvery": 5, "jobOptions": {"backoff": "x"}}, "jobOptions.backoff must be a number"),
    ],
)
def test_what_is_refused_leaves_no_schedule(host: Host, fields: dict[str, Any], text: str) -> None:
    talk = host.start()
    assert talk.refused("Cron", **{"name": "s", "queue": "q", "data": 1, **fields}).startswith(text)
    assert talk.good("CronList")["crons"] == []


def test_job_options_reach_the_jobs(host: Host) -> None:
    talk = host.start()
    options = {
        "maxAttempts": 9, "backoff": {"type": "fixed", "delay": 250, "maxDelay": 900}, "timeout": 4000,
        "delay": 50, "stallTimeout": 777, "removeOnComplete": True, "removeOnFail": True,
        "lifo": True, "unknown": 1,
    }  # fmt: skip
    talk.good("Cron", name="s", queue="q", repeatEvery=SECOND, jobOptions=options)
    host.pass_time(SECOND + 50)
    (job,) = work(talk)
    assert {name: job[name] for name in options if name in job} == {
        "maxAttempts": 9, "backoff": 250, "timeout": 4000, "stallTimeout": 777, "removeOnComplete": True,
        "removeOnFail": True, "lifo": False,
    }  # fmt: skip
    assert job["backoffConfig"] == {"type": "fixed", "delay": 250, "maxDelay": 900}
    assert job["runAt"] == START + SECOND + 50
    assert talk.good("GetState", id=job["id"])["state"] == "unknown"


def test_the_name_of_old_clients_is_in_the_data(host: Host) -> None:
    talk = host.start()
    cron = talk.good("Cron", name="s", queue="q", repeatEvery=SECOND, data={"name": "old", "k": 1})["cron"]
    assert cron["jobName"] == "old"
    host.pass_time(SECOND)
    (job,) = work(talk)
    assert (job["name"], job["data"]) == ("old", {"k": 1})


def test_overlap_may_be_allowed(host: Host) -> None:
    talk = host.start()
    talk.good("Cron", name="s", queue="q", repeatEvery=SECOND, preventOverlap=False)
    host.pass_time(3 * SECOND)
    assert [job["uniqueKey"] for job in work(talk)] == [None] * 3


def test_a_schedule_wakes_a_pull_that_waits(host: Host) -> None:
    talk = host.start()
    talk.good("Cron", name="s", queue="q", repeatEvery=SECOND)
    talk.send({"cmd": "PULL", "queue": "q", "owner": "w", "timeout": 5000, "reqId": "1"})
    host.pass_time(SECOND)
    (reply,) = talk.replies()
    assert reply["job"]["uniqueKey"] == "cron:s"


def test_skip_if_no_worker_asks_the_registry(host: Host) -> None:
    talk = host.start()
    talk.good("Cron", name="s", queue="q", repeatEvery=10 * SECOND, skipIfNoWorker=True)
    host.pass_time(30 * SECOND)
    assert work(talk) == []
    other = Talk(host.broker)
    other.good("RegisterWorker", name="w", queues=["q"], workerId="w1")
    host.pass_time(10 * SECOND)
    assert len(work(talk)) == 1
    host.pass_time(30 * SECOND)  # silent by then
    assert len(work(talk)) == 1  # the slot at 20 s
    other.good("Heartbeat", id="w1")
    host.pass_time(10 * SECOND)
    assert len(work(talk)) == 1
    host.broker.dismiss(other.session)
    host.pass_time(10 * SECOND)
    assert work(talk) == []
    assert talk.good("CronGet", name="s")["cron"]["executions"] == 3


# --- restarts --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["server", "embedded"])
@pytest.mark.parametrize("end", ["crash", "close"])
def test_a_restart_neither_moves_nor_fires(host: Host, mode: Mode, end: str) -> None:
    talk = host.start(mode)
    talk.good("Cron", name="i", queue="q", repeatEvery=10 * SECOND, data=1, maxLimit=3)
    talk.good("Cron", name="p", queue="q", schedule="*/20 * * * * *", timezone="Asia/Kathmandu", data=2)
    host.pass_time(12 * SECOND)
    work(talk)
    before = talk.good("CronList")["crons"]
    assert [cron["executions"] for cron in before] == [1, 0]
    for _ in range(3):
        getattr(host, end)()
        talk = host.start(mode)
        assert talk.good("CronList")["crons"] == before
        assert work(talk) == []
    host.pass_time(8 * SECOND)
    assert sorted(job["data"] for job in work(talk)) == [1, 2]
    host.pass_time(30 * SECOND)
    assert [cron["name"] for cron in talk.good("CronList")["crons"]] == [
        "p"
    ]  # the bound outlived the restarts


@pytest.mark.parametrize("catch_up", [False, True])
def test_what_was_missed_while_down_runs_once_or_not(host: Host, catch_up: bool) -> None:
    talk = host.start()
    for name, timing in (("i", {"repeatEvery": 10 * SECOND}), ("p", {"schedule": "* * * * *"})):
        talk.good("Cron", name=name, queue=name, **timing, skipMissedOnRestart=not catch_up)
    host.pass_time(3 * SECOND)
    host.crash()
    host.clock.advance(DAY)
    talk = host.start()
    host.pass_time(0)
    for queue in "ip":
        assert len(work(talk, queue)) == catch_up
    crons = {cron["name"]: cron for cron in talk.good("CronList")["crons"]}
    assert crons["i"]["nextRun"] == START + DAY + 10 * SECOND
    assert crons["p"]["nextRun"] == START + DAY + MINUTE
    assert crons["i"]["executions"] == catch_up
    host.pass_time(7 * SECOND)
    assert len(work(talk, "i")) == 1


@pytest.mark.parametrize("catch_up", [False, True])
@pytest.mark.parametrize(
    "timing", [{"repeatEvery": 7 * DAY}, {"schedule": "0 0 * * 0"}], ids=["every", "pattern"]
)
def test_case_050_long_intervals_outlive_restarts(host: Host, timing: dict[str, Any], catch_up: bool) -> None:
    """Restarts every 6 hours for 5 weeks; then down over a slot; then a restart beside an active run."""
    talk = host.start()
    talk.good("Cron", name="s", queue="q", skipMissedOnRestart=not catch_up, **timing)
    ran = 0
    for i in range(5 * 7 * 4):
        host.pass_time(6 * HOUR)
        ran += len(work(talk))
        getattr(host, "close" if i % 3 else "crash")()
        talk = host.start()
        assert work(talk) == []
    assert ran == 5
    due = talk.good("CronGet", name="s")["cron"]["nextRun"]
    host.crash()
    host.clock.advance(due + HOUR - host.clock.now_ms())
    talk = host.start()
    host.pass_time(0)
    assert len(work(talk)) == catch_up
    due = talk.good("CronGet", name="s")["cron"]["nextRun"]
    host.pass_time(due - host.clock.now_ms())
    got = pull(talk)
    assert got is not None
    job, token = got
    host.crash()
    talk = host.start()
    talk.good("JobHeartbeat", id=job["id"], token=token, duration=8 * DAY)
    host.pass_time(7 * DAY)
    assert work(talk) == []  # no second run beside the active one
    talk.good("ACK", id=job["id"], token=token)
    host.pass_time(7 * DAY)
    assert len(work(talk)) == 1


def test_case_012_an_old_data_file(host: Host) -> None:
    talk = host.start()
    talk.good("Cron", name="i", queue="i", repeatEvery=SECOND, skipMissedOnRestart=False)
    talk.good("Cron", name="p", queue="p", schedule="* * * * *", skipMissedOnRestart=False)
    for year in (2036, 2200):
        host.close()
        host.clock.advance(
            int(datetime(year, 1, 1, tzinfo=UTC).timestamp() * 1000) - host.clock.now_ms() + 30_500
        )
        talk = host.start()
        host.pass_time(0)
        for queue in "ip":
            assert len(work(talk, queue)) == 1
        for cron in talk.good("CronList")["crons"]:
            assert host.clock.now_ms() < cron["nextRun"] <= host.clock.now_ms() + MINUTE


def test_an_occurrence_whose_worker_died_with_the_process_is_dropped(host: Host) -> None:
    talk = host.start("embedded")
    talk.good("Cron", name="s", queue="q", repeatEvery=10 * SECOND)
    host.pass_time(10 * SECOND)
    assert pull(talk) is not None
    host.crash()
    talk = host.start("embedded")
    counts = talk.good("GetJobCounts", queue="q")["counts"]
    assert not any(counts.values())
    host.pass_time(10 * SECOND)
    assert len(work(talk)) == 1


def test_a_queued_occurrence_outlives_a_restart_and_still_prevents_another(host: Host) -> None:
    talk = host.start()
    talk.good("Cron", name="s", queue="q", repeatEvery=10 * SECOND, data=1)
    host.pass_time(10 * SECOND)
    host.crash()
    talk = host.start()
    host.pass_time(20 * SECOND)
    assert talk.good("GetJobCounts", queue="q")["counts"]["waiting"] == 1
    # A change after the restart still finds the leftover of the old settings.
    talk.good("Cron", name="s", queue="q", repeatEvery=10 * SECOND, data=2)
    assert talk.good("GetJobCounts", queue="q")["counts"]["waiting"] == 0
    host.pass_time(10 * SECOND)
    assert [job["data"] for job in work(talk)] == [2]


def test_a_removed_schedule_stays_removed(host: Host) -> None:
    talk = host.start()
    talk.good("Cron", name="s", queue="q", repeatEvery=SECOND)
    talk.good("CronDelete", name="s")
    host.crash()
    talk = host.start()
    host.pass_time(5 * SECOND)
    assert (talk.good("CronList")["crons"], work(talk)) == ([], [])


def test_defect_64_no_run_at_a_restart_or_when_clients_register_again(host: Host) -> None:
    fields = {"name": "s", "queue": "q", "repeatEvery": HOUR, "immediately": True, "data": {"k": 1}}
    talk = host.start()
    talk.good("Cron", **fields)
    assert len(work(talk)) == 1
    for _ in range(4):
        host.crash()
        host.clock.advance(MINUTE)
        talk = host.start()
        assert talk.good("Cron", **fields)["cron"]["nextRun"] == START + HOUR
        host.pass_time(0)
        assert work(talk) == []
    assert len(talk.good("CronList")["crons"]) == 1


def test_a_schedule_that_cannot_be_read_is_reported_and_left_in_the_file(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    talk = host.start()
    talk.good("Cron", name="good", queue="q", repeatEvery=SECOND)
    host.crash()
    host.store.commit(Cut(side={("schedules", "bad"): b"\x81\xa4what\x01"}))
    with caplog.at_level(logging.ERROR, "qcore.broker"):
        talk = host.start()
    assert "schedule 'bad' cannot be read and was left in the file" in caplog.text
    assert [name for name, _ in host.broker.recovery.schedules_unreadable] == ["bad"]
    host.pass_time(SECOND)
    assert len(work(talk)) == 1
    assert [key for key, _ in host.store.reopened().load().side["schedules"]] == ["bad", "good"]


def test_a_restart_writes_no_schedule_that_did_not_change(host: Host) -> None:
    talk = host.start()
    talk.good("Cron", name="s", queue="q", repeatEvery=HOUR)
    host.crash()
    host.start()
    assert host.broker.unflushed == 0


# --- repeated jobs ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("repeat", "text"),
    [
        ({"pattern": "* * *"}, "Invalid repeat pattern: expected 5 fields"),
        ({"pattern": "0 0 30 2 *"}, "Invalid repeat pattern: "),
        ({"pattern": "* * * * *", "tz": "Nowhere"}, "Invalid repeat pattern: unknown time zone"),
        ({"every": 5, "startDate": "soon"}, "repeat.startDate must be a date"),
        ({"every": 5, "endDate": START - 1}, "repeat.endDate is before the first run"),
        ({"pattern": "0 0 1 1 *", "endDate": "2026-12-24"}, "repeat.endDate is before the first run"),
        ({"every": float("nan")}, "repeat.every must be a positive finite number"),
        ({"every": 5, "limit": "x"}, "repeat.limit must be a number"),
    ],
)
def test_a_repeat_that_is_refused_stores_nothing(host: Host, repeat: dict[str, Any], text: str) -> None:
    talk = host.start()
    assert talk.refused("PUSH", queue="q", data=1, repeat=repeat).startswith(text)
    jobs = [{"data": 1}, {"data": 2, "repeat": repeat}]
    assert talk.refused("PUSHB", queue="q", jobs=jobs).startswith(f"jobs[1]: {text}")
    assert work(talk) == []


def test_repeat_excludes_ids_parents_and_dependencies(host: Host) -> None:
    talk = host.start()
    for other, text in (
        ({"jobId": "x"}, "repeat jobs cannot use JobOptions.jobId; use repeat.jobId instead"),
        ({"parentId": "p"}, "repeat jobs cannot participate in parent or dependency relationships"),
        ({"dependsOn": ["p"]}, "repeat jobs cannot participate in parent or dependency relationships"),
        ({"childrenIds": ["p"]}, "repeat jobs cannot participate in parent or dependency relationships"),
    ):
        assert talk.refused("PUSH", queue="q", repeat={"every": 5}, **other) == text


@pytest.mark.parametrize(
    ("repeat", "first"),
    [
        ({"every": MINUTE}, START),
        ({"every": MINUTE, "startDate": "2026-03-02T12:00:00Z"}, START + 2 * HOUR),
        ({"every": MINUTE, "startDate": "2026-03-02T12:00:00+01:00", "offset": 5}, START + HOUR + 5),
        ({"every": MINUTE, "startDate": START - HOUR}, START),
        ({"every": MINUTE, "startDate": START + HOUR, "immediately": True}, START),
        ({"pattern": "30 * * * *"}, START + 30 * MINUTE),
        ({"pattern": "30 * * * *", "tz": "Asia/Kathmandu"}, START + 45 * MINUTE),
        ({"pattern": "30 * * * *", "offset": -MINUTE}, START + 29 * MINUTE),
        ({"pattern": "30 * * * *", "immediately": True}, START),
        ({"pattern": "30 * * * *", "startDate": START + HOUR}, START + 90 * MINUTE),
    ],
)
def test_when_the_first_run_of_a_chain_starts(host: Host, repeat: dict[str, Any], first: int) -> None:
    talk = host.start()
    job_id = talk.good("PUSH", queue="q", data=1, repeat=repeat)["id"]
    job = talk.good("GetJob", id=job_id)["job"]
    assert job["runAt"] == first
    assert job["repeat"]["count"] == 0
    host.pass_time(first - START)
    assert len(work(talk)) == 1
    (following,) = talk.good("GetJobs", queue="q", state="delayed")["jobs"]
    assert following["runAt"] > host.clock.now_ms()
    assert following["repeat"]["count"] == 1


def test_a_chain_goes_on_over_restarts_and_its_old_ids_still_reach_it(host: Host) -> None:
    talk = host.start()
    (first,) = talk.good(
        "PUSHB", queue="q", jobs=[{"data": 1, "repeat": {"every": 10 * SECOND, "limit": 4}}]
    )["ids"]
    work(talk)
    host.crash()
    host.clock.advance(25 * SECOND)
    talk = host.start()
    host.pass_time(0)
    assert talk.good("Update", id=first, data=2)
    ran = work(talk)
    assert [(job["data"], job["repeat"]["count"]) for job in ran] == [(2, 1)]
    host.close()
    talk = host.start()
    host.pass_time(5 * SECOND)  # slots stay where they were: at 30 s
    ran = work(talk)
    assert [(job["data"], job["repeat"]["count"], job["runAt"]) for job in ran] == [
        (2, 2, START + 30 * SECOND)
    ]
    talk.good("Cancel", id=first)
    host.pass_time(HOUR)
    assert work(talk) == []


HOLDER = ("waits", "active", "needed")
ENDS = ("ack", "batch", "fail", "timeout", "lease")


@pytest.mark.parametrize("restarted", [False, True], ids=["at once", "restarted"])
@pytest.mark.parametrize("holder", HOLDER)
@pytest.mark.parametrize("asked", [{}, {"extend": True}, {"replace": True}], ids=lambda asked: str([*asked]))
def test_defect_70_a_chain_whose_key_went_to_another_job_goes_on_without_it(
    host: Host, asked: dict[str, bool], holder: str, restarted: bool
) -> None:
    """Invariants 7 and 12: the end of a run stands, and nobody loses a key to the run after it."""
    for n, end in enumerate(ENDS):
        talk, queue = host.start(), f"q{n}"

        def states(talk: Talk = talk, queue: str = queue) -> dict[str, int]:
            counts = talk.good("GetJobCounts", queue=queue)["counts"]
            return {state: counts[state] for state in counts if counts[state]}

        talk.good(
            "PUSH",
            queue=queue,
            repeat={"every": 60 * SECOND},
            uniqueKey="k",
            dedup={"ttl": 100, **asked},
            maxAttempts=1,
            timeout=2500 if end == "timeout" else 0,
        )
        host.pass_time(200)  # the time of its key is over
        if restarted:
            host.close()
            talk = host.start()
        got = talk.good("PULL", queue=queue, owner="w", lockTtl=2000 if end == "lease" else 60 * SECOND)
        run, token = got["job"]["id"], got["token"]
        other = talk.good("PUSH", queue=queue, jobId=f"B{n}", uniqueKey="k")["id"]
        assert other == f"B{n}"
        if holder == "active":
            pull(talk, queue)
        elif holder == "needed":
            talk.good("PUSH", queue="needs", dependsOn=[other])
        if end == "ack":
            talk.good("ACK", id=run, token=token)
        elif end == "batch":
            ids = [talk.good("PUSH", queue=f"{queue}more", jobId=f"{name}{n}")["id"] for name in "CD"]
            more = [pull(talk, f"{queue}more") for _ in ids]
            tokens = [one[1] for one in more if one]
            talk.good("ACKB", ids=[ids[0], run, ids[1]], tokens=[tokens[0], token, tokens[1]])
            assert [talk.good("GetState", id=one)["state"] for one in ids] == ["completed"] * 2
        elif end == "fail":
            talk.good("FAIL", id=run, token=token, error="no")
        else:
            host.pass_time(3000)
        done = "completed" if end in ("ack", "batch") else "failed"
        there = "active" if holder == "active" else "waiting"
        assert states(talk, queue) == {done: 1, there: 1, "delayed": 1}
        assert talk.good("GetDeduplicationJobId", queue=queue, deduplicationId="k")["data"]["jobId"] == other
        following = talk.good("GetJobs", queue=queue, state=["delayed"])["jobs"][0]
        assert following["uniqueKey"] is None
        host.broker.engine._check()
        host.close()
        talk = host.start()
        host.pass_time(61 * SECOND)
        ran = [got[0]["id"] for _ in range(2) if (got := pull(talk, queue)) is not None]
        assert following["id"] in ran
        host.close()


def test_a_chain_keeps_its_key_while_nobody_else_takes_it(host: Host) -> None:
    """Also when the time of the key was over in between, and over a restart."""
    talk = host.start()
    talk.good("PUSH", queue="q", repeat={"every": SECOND}, uniqueKey="k", dedup={"ttl": 100})
    host.pass_time(200)
    host.close()
    talk = host.start()
    work(talk)
    (following,) = talk.good("GetJobs", queue="q", state=["delayed"])["jobs"]
    assert (following["uniqueKey"], following["deduplicationTtl"]) == ("k", 100)
    assert talk.good("PUSH", queue="q", uniqueKey="k")["id"] == following["id"]


def test_who_had_a_key_before_a_restart_is_remembered_when_another_takes_it(host: Host) -> None:
    """The chain goes the same way with and without a restart."""
    seen = []
    for restarted in (False, True):
        host = Host()
        talk = host.start()
        talk.good("PUSH", queue="q", repeat={"every": SECOND}, uniqueKey="k", dedup={"ttl": 100})
        host.pass_time(200)
        if restarted:
            host.close()
            talk = host.start()
        other = talk.good("PUSH", queue="q", uniqueKey="k", delay=HOUR)["id"]
        talk.good("Cancel", id=other)
        work(talk)
        (following,) = talk.good("GetJobs", queue="q", state=["delayed"])["jobs"]
        seen.append(following["uniqueKey"])
    assert seen == [None, None]
