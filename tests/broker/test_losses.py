"""Cases from the field about lost holders, retries and postponements, over the protocol."""

from __future__ import annotations

import json
import logging
import random
import threading
from pathlib import Path
from typing import Any, Literal

import pytest
from broker_talk import Talk, frame, frames

from qcore.broker import open_broker
from qcore.broker.embedded import EmbeddedEngine
from qcore.broker.opening import close_broker, flush
from qcore.clock import ManualClock
from qcore.store.base import Cut
from qcore.store.memory import MemoryStore
from tests.records import read_record

TABLE = json.loads((Path(__file__).parent.parent / "data" / "backoff.json").read_text())
Mode = Literal["embedded", "server"]
MINUTE = 60_000


class Machine:
    """A store that outlives brokers, and one clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore()
        self.n = 0

    def start(self, mode: Mode = "server") -> Talk:
        self.n += 1
        self.store = self.store.reopened()
        self.broker = open_broker(store=self.store, mode=mode, clock=self.clock, seed=bytes([self.n] * 16))
        self.broker.engine._check()
        return Talk(self.broker)

    def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        self.turn()

    def turn(self) -> None:
        """Let the broker do what is due, as its host would."""
        while True:
            seconds, cut = self.broker.pump()
            if cut is not None:
                self.store.commit(cut)
                self.broker.end_commit()
            elif seconds != 0:
                return

    def restart(self, mode: Mode = "server", *, crash: bool = False) -> Talk:
        if crash:
            flush(self.broker)
        else:
            close_broker(self.broker)
        return self.start(mode)


@pytest.fixture
def machine() -> Machine:
    return Machine()


def state(talk: Talk, job_id: str) -> str:
    return str(talk.good("GetState", id=job_id)["state"])


def job(talk: Talk, job_id: str) -> Any:
    return talk.good("GetJob", id=job_id)["job"]


# --- C003 ----------------------------------------------------------------------------------


def test_cases_c003_a_stale_holder_cannot_change_a_job(machine: Machine) -> None:
    a = machine.start()
    b = Talk(machine.broker)
    job_id = a.good("PUSH", queue="q", name="n", data=1)["id"]
    old = a.good("PULL", queue="q", owner="a", lockTtl=300)["token"]
    machine.advance(300)
    new = b.good("PULL", queue="q", owner="b")["token"]
    b.good("ACK", id=job_id, token=new, result="B")
    for cmd, fields in {
        "ACK": {"result": "A"},
        "FAIL": {"error": "A"},
        "Progress": {"progress": 7},
        "ExtendLock": {"duration": 1000},
        "JobHeartbeat": {},
        "MoveToDelayed": {"delay": 5},
        "ChangeDelay": {"delay": 5},
        "Discard": {},
        "MoveToWait": {},
    }.items():
        assert a.refused(cmd, id=job_id, token=old, **fields)
    shown = job(a, job_id)
    assert (shown["state"], shown["returnvalue"], shown["attempts"]) == ("completed", "B", 1)


def test_cases_c003_a_stale_holder_cannot_act_beside_the_new_one(machine: Machine) -> None:
    a = machine.start()
    b = Talk(machine.broker)
    job_id = a.good("PUSH", queue="q", name="n", data=1)["id"]
    old = a.good("PULL", queue="q", owner="a", lockTtl=300)["token"]
    machine.advance(300)
    new = b.good("PULL", queue="q", owner="b")["token"]
    before = job(b, job_id)
    for cmd, fields in {
        "ACK": {"result": "A"},
        "FAIL": {"error": "A"},
        "Progress": {"progress": 7},
        "AddLog": {"message": "A"},
        "Update": {"data": "A"},
        "ExtendLock": {"duration": 1000},
        "JobHeartbeat": {},
        "MoveToDelayed": {"delay": 5},
        "ChangeDelay": {"delay": 5},
        "Discard": {},
        "MoveToWait": {},
    }.items():
        assert "token" in a.refused(cmd, id=job_id, token=old, **fields), cmd
    assert job(b, job_id) == before
    assert b.good("GetLogs", id=job_id)["data"]["count"] == 0
    b.good("Progress", id=job_id, token=new, progress=7)
    b.good("AddLog", id=job_id, token=new, message="B")
    b.good("Update", id=job_id, token=new, data="B")
    b.good("AddLog", id=job_id, message="of somebody who is no holder")
    b.good("ACK", id=job_id, token=new)
    assert "not in processing state" in b.refused("AddLog", id=job_id, token=new, message="late")


def test_cases_c003_an_answer_that_races_the_end_of_its_lease_ends_the_job_once(machine: Machine) -> None:
    talk = machine.start()
    dice = random.Random(3)
    for _ in range(1_000):
        job_id = talk.good("PUSH", queue="q", name="n")["id"]
        token = talk.good("PULL", queue="q", owner="a", lockTtl=5)["token"]
        machine.advance(dice.randrange(8))
        talk.good("ACK", id=job_id, token=token)
        assert talk.refused("ACK", id=job_id, token=token)
        assert state(talk, job_id) == "completed"
    assert talk.good("GetJobCounts", queue="q")["counts"]["completed"] == 1_000
    assert machine.broker.engine.queue("q").total_completed == 1_000


# --- C005 ------------------------------------------------------------------------------------


def test_cases_c005_jobs_of_a_lost_connection_come_back_in_their_places(machine: Machine) -> None:
    a = machine.start()
    b = Talk(machine.broker)
    jobs = [{"name": "n", "customId": str(n), "priority": n % 3} for n in range(12)]
    a.good("PUSHB", queue="q", jobs=jobs)
    order = [one["id"] for one in a.good("PULLB", queue="q", count=5, owner="a")["jobs"]]
    mine = b.good("PULL", queue="q", owner="b")["job"]["id"]
    machine.broker.dismiss(a.session)
    again = [one["id"] for one in b.good("PULLB", queue="q", count=99, owner="b")["jobs"]]
    assert again[:5] == order
    assert len({*again, mine}) == 12
    assert b.good("GetJobCounts", queue="q")["counts"]["active"] == 12


@pytest.mark.parametrize("loss", ["its connection ends", "it falls silent"])
def test_cases_c005_who_lives_loses_no_moment(machine: Machine, loss: str) -> None:
    """Of 50 jobs of 100 ms the other worker ends one each 100 ms, before, during and after the loss."""
    lease_ms, job_ms, n_jobs, lost_at = 1_000, 100, 50, 4
    a = machine.start()
    b = Talk(machine.broker)
    jobs = [{"name": "n", "customId": str(n)} for n in range(n_jobs)]
    a.good("PUSHB", queue="q", jobs=jobs)
    held = a.good("PULL", queue="q", owner="a", lockTtl=lease_ms)["job"]["id"]
    order: list[str] = []
    for n in range(n_jobs):
        if n == lost_at and loss == "its connection ends":
            machine.broker.dismiss(a.session)
        taken = b.good("PULL", queue="q", owner="b", lockTtl=lease_ms)
        assert taken["job"] is not None, f"nothing to do {n * job_ms} ms after the start"
        order.append(taken["job"]["id"])
        machine.advance(job_ms)
        b.good("ACK", id=order[-1], token=taken["token"])
    assert sorted(order) == sorted(job["customId"] for job in jobs)
    # In its old place it is the first of all: at once, or when its lease has ended.
    back = lost_at if loss == "its connection ends" else lease_ms // job_ms
    assert order.index(held) == back
    counts = b.good("GetJobCounts", queue="q")["counts"]
    assert (counts["completed"], counts["active"], counts["waiting"]) == (n_jobs, 0, 0)


# --- C006 -------------------------------------------------------------------------------------


def test_cases_c006_nothing_is_left_that_only_a_vanished_holder_could_move(machine: Machine) -> None:
    """Active without a lease, under one that ended long ago, and under one that never would end."""
    talk = machine.start()
    talk.good("PUSHB", queue="q", jobs=[{"name": "n", "customId": i, "backoff": 0} for i in "abc"])
    talk.good("PULL", queue="q")
    talk.good("PULL", queue="q", owner="w", lockTtl=30_000)
    talk.good("PULL", queue="q", owner="w", lockTtl=30_000)
    flush(machine.broker)
    wall = machine.clock.now_ms()
    changed: list[object] = []
    for seq, _, row_state, record, data, result in machine.store.load().jobs:
        ends = {2: 1, 3: wall + 75 * 365 * 86_400_000}
        if seq in ends:  # the end of its lease, in a record without a seal
            now = (wall + 30_000).to_bytes(8, "little")
            plain = read_record(record).plain
            assert plain.count(now) == 1
            record = bytes(plain.replace(now, ends[seq].to_bytes(8, "little")))
        changed += [seq, 1, row_state, record, data, result]
    machine.store.commit(Cut(inserts=changed))
    talk = machine.start()
    machine.turn()
    assert state(talk, "a") == "waiting"  # at once
    machine.advance(1)
    assert state(talk, "b") == "waiting"
    machine.advance(29_999)
    assert state(talk, "c") == "waiting"  # after the longest lease that it was granted
    assert len(talk.good("PULLB", queue="q", count=9)["jobs"]) == 3


# --- C009 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["embedded", "server"])
def test_cases_c009_delays_are_kept_exactly_or_refused(machine: Machine, mode: Mode) -> None:
    talk = machine.start(mode)
    now = machine.clock.now_ms()
    kept = {
        0: 0,
        1: 1,
        2**31 - 1: 2**31 - 1,
        2**31: 2**31,
        30 * 86_400_000: 30 * 86_400_000,
        100 * 365 * 86_400_000: 100 * 365 * 86_400_000,
        -1: -1,
        1.5: 2,  # whole milliseconds, never early
        "5": 5,
    }
    for delay, expected in kept.items():
        job_id = talk.good("PUSH", queue="q", name="n", delay=delay)["id"]
        shown = job(talk, job_id)
        assert shown["runAt"] == now + expected, delay
        assert shown["state"] == ("delayed" if expected > 0 else "waiting"), delay
    for delay in (float("nan"), float("inf"), float("-inf"), True, [], "soon"):
        assert talk.refused("PUSH", queue="none", name="n", delay=delay)
    assert talk.good("GetJobCounts", queue="none")["counts"]["waiting"] == 0
    at_most = talk.good("PUSH", queue="far", name="n", delay=1e300)["id"]
    assert job(talk, at_most)["runAt"] <= 2 * 4_320_000_000_000_000  # clamped, and in no way early
    # No early run, and none left behind, also past 2038-01-19.
    due = talk.good("PUSH", queue="due", name="n", delay=15 * 365 * 86_400_000)["id"]
    machine.advance(15 * 365 * 86_400_000 - 1)
    assert state(talk, due) == "delayed"
    machine.advance(2)
    assert state(talk, due) == "waiting"


# --- C010 --------------------------------------------------------------------------------------


def test_cases_c010_a_delay_is_longer_than_any_lease(machine: Machine) -> None:
    talk = machine.start()
    talk.good("SetStallConfig", queue="q", config={"stallInterval": 100, "gracePeriod": 0})
    for n in range(20):
        talk.good("PUSH", queue="q", name="n", jobId=f"job {n}", delay=3000)
    workers = [Talk(machine.broker) for _ in range(3)]
    starts: dict[str, int] = {}
    for ms in range(0, 4000, 50):
        if ms % 500 == 0:
            machine.broker.dismiss(workers.pop(0).session)
            workers.append(Talk(machine.broker))
        for worker in workers:
            got = worker.good("PULL", queue="q", owner="w", lockTtl=300)
            if got["job"] is not None:
                assert ms >= 3000
                starts[got["job"]["id"]] = starts.get(got["job"]["id"], 0) + 1
                worker.good("ACK", id=got["job"]["id"], token=got["token"])
        machine.advance(50)
    assert starts == {f"job {n}": 1 for n in range(20)}
    assert job(talk, "job 0")["attempts"] == 0


# --- C011 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("back_ms", [120_000, 14 * 365 * 86_400_000])
def test_cases_c011_a_clock_that_goes_back(machine: Machine, back_ms: int) -> None:
    talk = machine.start()
    ids = [talk.good("PUSH", queue="q", name="n")["id"] for _ in range(3)]
    due = talk.good("PUSH", queue="due", name="n", delay=5000)["id"]
    token = talk.good("PULL", queue="q", owner="w", lockTtl=30_000)["token"]
    machine.clock.set_wall(machine.clock.now_ms() - back_ms)
    later = [talk.good("PUSH", queue="q", name="n")["id"] for _ in range(2)]
    assert sorted(ids + later) == ids + later
    for _ in range(29):
        machine.advance(1000)
        assert state(talk, ids[0]) == "active"
    talk.good("JobHeartbeat", id=ids[0], token=token)
    machine.advance(29_999)
    assert state(talk, ids[0]) == "active"
    machine.advance(1)
    assert state(talk, ids[0]) == "waiting"  # it is not immortal
    assert state(talk, due) == "delayed"  # a stored time waits for the wall clock
    talk.good("Promote", id=due)
    order = [one["id"] for one in talk.good("PULLB", queue="q", count=9)["jobs"]]
    assert sorted(order) == sorted(ids + later)
    assert [i for i in order if i in ids] == ids


# --- C013 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["embedded", "server"])
@pytest.mark.parametrize("row", TABLE["rows"], ids=lambda row: f"{row['attempts']}-{row['backoff']['type']}")
def test_cases_c013_waits_are_exact_over_a_restart(machine: Machine, row: dict[str, Any], mode: Mode) -> None:
    talk = machine.start(mode)
    given = row["backoff"]
    backoff = {
        "type": given["type"],
        "delay": given["delay_ms"],
        "maxDelay": given["max_delay_ms"],
        "jitter": 0,
    }
    talk.good("PUSH", queue="q", name="n", jobId="a", maxAttempts=row["attempts"], backoff=backoff)
    waits: list[int] = []
    for run in range(1, row["runs"] + 1):
        got = talk.good("PULL", queue="q", owner="w")
        assert got["job"]["attempts"] == run - 1
        talk.good("FAIL", id="a", token=got["token"], error="no")
        if run == row["runs"]:
            break
        wait = job(talk, "a")["runAt"] - machine.clock.now_ms()
        assert wait == int(wait)
        waits.append(wait)
        assert state(talk, "a") == ("delayed" if wait else "waiting")
        if run in (2, 11):  # in the middle of a wait
            machine.advance(wait // 2)
            talk = machine.restart(mode, crash=run == 11)
            machine.advance(wait - wait // 2 - (wait > 0))
        elif wait:
            machine.advance(wait - 1)
        if wait:
            assert state(talk, "a") == "delayed"
            machine.advance(1)
        assert state(talk, "a") == "waiting"
    assert waits[: len(row["delays_ms"])] == row["delays_ms"]
    assert (waits[-1] if waits else None) == row["last_delay_ms"]
    assert len(waits) == row["delays_total"]
    assert talk.good("GetDlqStats", queue="q")["data"]["stats"]["total"] == 1
    # By hand it starts over with a fresh count.
    talk.good("RetryDlq", queue="q", jobId="a")
    assert talk.good("PULL", queue="q", owner="w")["job"]["attempts"] == 0


@pytest.mark.parametrize("row", TABLE["refuse"])
def test_cases_c013_waits_that_are_none_are_refused(machine: Machine, row: dict[str, Any]) -> None:
    talk = machine.start()
    delay = row["backoff"]["delay_ms"]
    delay = float(delay) if isinstance(delay, str) else delay
    assert talk.refused("PUSH", queue="q", name="n", backoff={"type": row["backoff"]["type"], "delay": delay})
    assert talk.good("GetJobCounts", queue="q")["counts"]["waiting"] == 0


# --- C014 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cmd", ["MoveToDelayed", "MoveToWait"])
def test_cases_c014_postponing_is_not_failing(machine: Machine, cmd: str) -> None:
    talk = machine.start()
    backoff = {"type": "exponential", "delay": 1000, "jitter": 0}
    talk.good("PUSH", queue="q", name="n", jobId="a", maxAttempts=3, backoff=backoff)
    sizes = []
    for n in range(1200):
        got = talk.good("PULL", queue="q", owner="w")
        assert (got["job"]["attempts"], got["job"]["stallCount"]) == (0, 0)
        talk.good(cmd, id="a", token=got["token"], **({"delay": 1} if cmd == "MoveToDelayed" else {}))
        machine.advance(1)
        if n in (99, 1199):
            flush(machine.broker)
            ((*_, record, _, _),) = machine.store.load().jobs
            sizes.append(len(record))
    assert sizes[0] == sizes[1]  # no history of it is kept
    got = talk.good("PULL", queue="q", owner="w")
    assert len(got["job"]["timeline"]) <= 20
    talk.good("FAIL", id="a", token=got["token"], error="first")
    assert job(talk, "a")["runAt"] == machine.clock.now_ms() + 1000
    assert job(talk, "a")["attempts"] == 1


# --- over the protocol -----------------------------------------------------------------------


def test_settings_of_stalls_and_dead_letters_outlive_a_restart(machine: Machine) -> None:
    """Defect 9."""
    talk = machine.start()
    stalls = {"enabled": True, "stallInterval": 200, "maxStalls": 1, "gracePeriod": 0}
    dead = {"autoRetry": True, "autoRetryInterval": 50, "maxAutoRetries": 1, "maxAge": None, "maxEntries": 5}
    talk.good("SetStallConfig", queue="q", config=stalls)
    talk.good("SetDlqConfig", queue="q", config=dead)
    talk = machine.restart()
    assert talk.good("GetStallConfig", queue="q")["config"] == stalls
    assert talk.good("GetDlqConfig", queue="q")["config"] == dead
    talk.good("PUSH", queue="q", name="n", jobId="a")
    talk.good("PULL", queue="q")
    machine.advance(200)
    (entry,) = talk.good("Dlq", queue="q")["entries"]
    assert (entry["reason"], entry["error"]) == ("stalled", "Job stalled 1 times")
    assert entry["nextRetryAt"] == machine.clock.now_ms() + 50
    assert [record["reason"] for record in entry["attempts"]] == ["stalled"]
    talk = machine.restart(crash=True)
    machine.advance(50)
    assert state(talk, "a") == "waiting"
    assert job(talk, "a")["stallCount"] == 0


def test_a_leased_delivery_is_looked_after_again_after_a_restart(machine: Machine) -> None:
    talk = machine.start()
    talk.good("SetStallConfig", queue="q", config={"stallInterval": 1000, "gracePeriod": 0})
    talk.good("PUSH", queue="q", name="n", jobId="a", backoff=0)
    talk.good("PUSH", queue="other", name="n", jobId="b", backoff=0, stallTimeout=700)
    talk.good("PULL", queue="q", owner="w", lockTtl=MINUTE)
    talk.good("PULL", queue="other", owner="w", lockTtl=MINUTE)
    machine.advance(500)
    talk = machine.restart(crash=True)
    machine.advance(699)
    assert {state(talk, "a"), state(talk, "b")} == {"active"}
    machine.advance(5001)
    assert {state(talk, "a"), state(talk, "b")} == {"waiting"}
    assert job(talk, "a")["stallCount"] == job(talk, "b")["stallCount"] == 1


def test_losses_of_connections_are_counted_over_a_restart(machine: Machine) -> None:
    talk = machine.start()
    talk.good("PUSH", queue="q", name="n", jobId="a", maxAttempts=9)
    for _ in range(2):
        worker = Talk(machine.broker)
        worker.good("PULL", queue="q", owner="w")
        machine.broker.dismiss(worker.session)
    shown = job(talk, "a")
    assert (shown["attempts"], shown["stallCount"], shown["state"]) == (0, 0, "waiting")
    talk = machine.restart()
    worker = Talk(machine.broker)
    worker.good("PULL", queue="q", owner="w")
    machine.broker.dismiss(worker.session)
    (entry,) = talk.good("Dlq", queue="q")["entries"]
    assert (entry["reason"], entry["error"]) == ("stalled", "Connection lost 3 times")


def test_filters_of_dead_letters_with_pages(machine: Machine) -> None:
    talk = machine.start()
    for n in range(6):
        if n == 3:
            talk.good("SetDlqConfig", queue="q", config={"autoRetry": True})
        talk.good("PUSH", queue="q", name="n", jobId=f"{n}", maxAttempts=1)
        got = talk.good("PULL", queue="q", owner="w")
        talk.good("FAIL", id=f"{n}", token=got["token"], error="no")
        machine.advance(10)

    def ids(**fields: Any) -> list[str]:
        return [one["id"] for one in talk.good("Dlq", queue="q", **fields)["jobs"]]

    assert ids(filter={"retriable": True}) == ["3", "4", "5"]
    assert ids(filter={"retriable": False, "limit": 2}) == ["0", "1"]
    assert ids(filter={"retriable": True, "offset": 1, "limit": 1}) == ["4"]
    assert ids(filter={"limit": 4}, count=2) == ["0", "1"]
    assert ids(filter={"expired": True}) == []
    stats = talk.good("GetDlqStats", queue="q")["data"]["stats"]
    assert (stats["total"], stats["pendingRetry"], stats["byQueue"]) == (6, 3, {"q": 6})
    assert talk.good("RetryDlq", queue="q", filter={"retriable": True, "limit": 2})["count"] == 2
    assert talk.good("RetryDlq", queue="q", filter={"retriable": False}, count=1)["count"] == 1
    assert ids() == ["1", "2", "5"]
    assert talk.good("RetryDlq", queue="q", count=1)["count"] == 1
    assert talk.good("RetryDlq", queue="q", jobId="2")["count"] == 1
    assert talk.good("RetryDlq", queue="q")["count"] == 1
    assert talk.good("RetryDlq", queue="q")["count"] == 0
    assert talk.good("GetJobCounts", queue="q")["counts"]["waiting"] == 6


# --- faults of ours ----------------------------------------------------------------------------


def test_time_goes_on_after_a_fault_in_what_was_due(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread of an embedded engine outlives it, and says what happened."""
    engine = EmbeddedEngine(None)
    archive = engine.broker.archive
    met, secret = threading.Event(), "what is in a job"

    def broken() -> None:
        met.set()
        raise ValueError(secret)

    heard = threading.Event()
    session = engine.session(heard.set)
    with caplog.at_level(logging.ERROR):
        monkeypatch.setattr(archive, "left_ms", lambda now_ms: 0)
        monkeypatch.setattr(archive, "turn", broken)
        session.feed(frame({"cmd": "PUSH", "queue": "q", "name": "n", "delay": 50}))
        assert met.wait(30)
        monkeypatch.undo()
        session.feed(frame({"cmd": "PULL", "queue": "q", "timeout": 30_000}))
        replies = frames(session.take())
        while len(replies) < 2:
            assert heard.wait(30)
            heard.clear()
            replies += frames(session.take())
    assert replies[1]["job"]["id"] == replies[0]["id"]
    assert "what was due was not done: builtins.ValueError" in caplog.text
    assert secret not in caplog.text
    engine.close()
