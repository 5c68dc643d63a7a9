"""Bytes in, bytes out: streams, long polls, and what a connection owns."""

from __future__ import annotations

import gc
import itertools
import random
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_talk import Talk, frame, frames

from qcore.broker import open_broker
from qcore.broker.core import Broker, Wait
from qcore.broker.opening import close_broker, flush
from qcore.broker.session import Session
from qcore.clock import ManualClock

SEED = bytes(range(16))


@pytest.fixture
def broker(clock: ManualClock) -> Broker:
    return open_broker(clock=clock, seed=SEED)


@pytest.fixture
def talk(broker: Broker) -> Talk:
    return Talk(broker)


def state(broker: Broker, job_id: str) -> str:
    return str(broker.engine.state(job_id))


# --- the stream --------------------------------------------------------------------------

CONVERSATION: list[Any] = [
    {"cmd": "Hello", "capabilities": ["int64"], "reqId": "0"},
    {"cmd": "PUSH", "queue": "q", "name": "n", "data": "x" * 300, "jobId": "a", "reqId": 1},
    {"cmd": "PUSHB", "queue": "q", "jobs": [{"name": "n", "data": b"\xff" * n} for n in range(30)]},
    {"cmd": "PULL", "queue": "q", "owner": "w", "reqId": None},
    {"cmd": "PULLB", "queue": "q", "count": 100},
    {"cmd": "ACK", "id": "a"},
    {"cmd": "Nonsense", "reqId": "7"},
    17,
    {"cmd": "GetJobCounts", "queue": "q"},
    {"cmd": "Ping"},
]
STREAM = b"".join(frame(request) for request in CONVERSATION)


def converse(pieces: Iterator[bytes]) -> bytes:
    session = Session(open_broker(clock=ManualClock(), seed=SEED))
    out = b""
    for piece in pieces:
        session.feed(piece)
        out += session.take()
    assert session.partial == 0
    return out


def cut(*places: int) -> Iterator[bytes]:
    bounds = [0, *sorted(places), len(STREAM)]
    return (STREAM[a:b] for a, b in itertools.pairwise(bounds))


def test_a_stream_says_the_same_however_it_is_cut() -> None:
    whole = converse(cut())
    replies = frames(whole)
    assert len(replies) == len(CONVERSATION)
    assert [reply["ok"] for reply in replies] == [True] * 5 + [False] * 3 + [True] * 2
    assert converse(cut(*range(1, len(STREAM)))) == whole
    for size in (2, 3, 4, 5, 7, 64, 1000):
        assert converse(cut(*range(size, len(STREAM), size))) == whole
    rng = random.Random(3)
    for _ in range(100):
        assert converse(cut(*rng.sample(range(1, len(STREAM)), rng.randint(1, 20)))) == whole


def test_every_single_place_to_cut() -> None:
    whole = converse(cut())
    for place in range(1, len(STREAM), 7):
        assert converse(cut(place)) == whole


def test_an_empty_frame_gets_a_reply(talk: Talk) -> None:
    talk.session.feed(bytes(4) + frame({"cmd": "Ping"}))
    bad, good = talk.replies()
    assert bad == {"ok": False, "error": "Invalid command format"}
    assert good["ok"] is True


def test_a_frame_that_is_too_large_ends_the_conversation_at_its_length(talk: Talk) -> None:
    size = 64 * 1024 * 1024 + 1
    talk.session.feed(frame({"cmd": "Ping"}) + struct.pack(">I", size)[:3])
    assert len(talk.replies()) == 1
    assert not talk.session.closing
    talk.session.feed(struct.pack(">I", size)[3:])
    assert talk.replies() == [
        {"ok": False, "error": f"Frame too large: {size} bytes exceeds maximum {size - 1}"}
    ]
    assert talk.session.closing
    talk.session.feed(frame({"cmd": "Ping"}))
    assert talk.replies() == []


def test_a_connection_without_a_token_gets_one_reply_to_each_request(broker: Broker) -> None:
    talk = Talk(broker, authenticated=False)
    for cmd in ("PUSH", "PULL", "ACK", "Ping"):
        assert talk.refused(cmd, queue="q", name="n", reqId="r") == "Not authenticated"
    assert broker.engine.queue_names() == []
    assert talk.refused("Auth", token="wrong") == "Invalid token"


# --- odd options ---------------------------------------------------------------------------

ODD = [
    {"backoff": 2**32},
    {"backoff": 1e300},
    {"backoff": {"delay": 1e300, "jitter": 1e-9}},
    {"keepLogs": 1e300},
    {"keepLogs": "9" * 4000},
    {"sizeLimit": 2.0**70},
    {"stackTraceLimit": 2.5},
    {"stackTraceLimit": -7},
    {"stackTraceLimit": 1e300},
    {"priority": "9" * 4000},
    {"priority": "9" * 300},
    {"priority": -1e300},
    {"delay": -1e300},
    {"timeout": 4.32e15},
    {"ttl": 1e300},
    {"timestamp": -5},
    {"timestamp": -4.32e15},
    {"maxAttempts": 1e300},
    {"jobId": "x" * 1_100_000},
    {"name": "é" * 256},
    {"tags": ["ü"] * 1000},
    {"debounceTtl": 1e300, "debounceId": "x"},
    {"uniqueKey": "k", "dedup": {"ttl": 1e300, "keepUntilExpiry": True}},
    {"uniqueKey": "k", "dedup": {"ttl": -1e300}},
    {"removeOnFail": 2**60},
    {"removeOnFail": {"age": 1e300, "count": 2**60}},
]


@pytest.mark.parametrize("options", ODD, ids=lambda options: "-".join(options))
def test_whatever_is_admitted_can_be_stored_delivered_failed_and_read_back(
    tmp_path: Any, clock: ManualClock, options: dict[str, Any]
) -> None:
    path = str(tmp_path / "jobs.db")
    broker = open_broker(path, mode="server", clock=clock, seed=SEED)
    talk = Talk(broker)
    reply = talk.ask("PUSH", **{"queue": "q", "name": "n", "data": 1, **options, "reqId": "r"})
    assert reply["reqId"] == "r"
    if not reply["ok"]:
        assert "must be a finite number" in reply["error"]
    else:
        if "debounceTtl" in options:
            talk.good("Promote", id=reply["id"])
        job = talk.good("PULL", queue="q", owner="w", lockTtl=10)
        assert job["job"]["id"] == reply["id"]
        if "timestamp" in options:
            assert job["job"]["createdAt"] == options["timestamp"]
        talk.good(
            "FAIL", id=reply["id"], token=job["token"], error="no", stack=["a", "b", "c"], unrecoverable=True
        )
        before = talk.good("GetJob", id=reply["id"])
        close_broker(broker)
        broker = open_broker(path, mode="server", clock=clock, seed=SEED)
        assert broker.recovery.unreadable == []
        assert Talk(broker).good("GetJob", id=reply["id"]) == before
    close_broker(broker)


@pytest.mark.parametrize("ttl", [0, -1, 1, 1.4, 4.32e12, 4.32e15, 1e300])
def test_a_pull_with_an_owner_has_a_lease_whatever_its_length(talk: Talk, ttl: float) -> None:
    talk.good("PUSH", queue="q", name="n", jobId="a")
    token = talk.good("PULL", queue="q", owner="w", lockTtl=ttl)["token"]
    assert talk.refused("ACK", id="a") == "Lock token required for job a"
    if ttl > 1:
        talk.good("JobHeartbeat", id="a", token=token, duration=4.32e15)
        talk.broker.pump()
    talk.good("ACK", id="a", token=token)


def test_a_single_add_keeps_its_id_by_both_ways(talk: Talk) -> None:
    for options in ({}, {"ttl": 5000}):
        assert talk.good("PUSH", queue="q", name="n", jobId="mine", **options)["id"] == "mine"
    assert talk.good("Count", queue="q")["count"] == 1


@pytest.mark.parametrize("options", [{}, {"removeOnComplete": False}])
def test_results_with_64_bit_integers_reach_clients_that_know_less_as_floats(
    talk: Talk, options: dict[str, Any]
) -> None:
    talk.good("PUSH", queue="q", name="n", jobId="a", data=2**40)
    assert isinstance(talk.good("PULL", queue="q")["job"]["data"], float)
    talk.good("ACK", id="a", result=[2**40], **options)
    assert isinstance(talk.good("GetResult", id="a")["result"][0], float)
    talk.good("Hello", capabilities=["int64"])
    assert isinstance(talk.good("GetResult", id="a")["result"][0], int)


def test_a_refused_request_leaves_nothing_behind(clock: ManualClock) -> None:
    from qcore.store.memory import MemoryStore

    broker = open_broker(store=MemoryStore(), clock=clock, seed=SEED)
    talk = Talk(broker)
    talk.good("PUSH", queue="q", name="known", jobId="a")
    while (cut := broker.begin_commit()) is not None:
        broker.end_commit()
    for request in (
        {"cmd": "PUSH", "queue": "q", "name": "new", "priority": "high"},
        {"cmd": "PUSH", "queue": "no queue", "name": "new"},
        {"cmd": "PUSHB", "queue": "q", "jobs": [{"name": "new"}, {"name": "new", "delay": "soon"}]},
        {"cmd": "PUSHB", "queue": "q", "jobs": [{"name": "known"}, {"name": ""}]},
        {"cmd": "PULLB", "queue": "new", "count": 0},
        {"cmd": "ACK", "id": "a"},
        {"cmd": "ACKB", "ids": ["a", "b"]},
        {"cmd": "FAIL", "id": "a"},
    ):
        talk.send(request)
        assert [reply["ok"] for reply in talk.replies()] == [False], request
        assert broker.engine.n_changes == 0, request
        assert (cut := broker.begin_commit()) is None, cut
    assert broker.engine.queue_names() == ["q"]
    assert broker.engine.queue("q").total_pushed == 1


def test_members_of_a_batch_have_one_outcome_each(talk: Talk) -> None:
    talk.good("PUSHB", queue="q", jobs=[{"name": "n", "customId": i} for i in "abcd"])
    tokens = talk.good("PULLB", queue="q", owner="w", count=3)["tokens"]
    reply = talk.good("ACKB", ids=["a", "d", "b", "a", "x"], tokens=[tokens[0], None, "bad", tokens[0], None])
    assert reply["data"]["ignoredIndices"] == [1, 2, 3, 4]
    assert reply["data"]["ignoredIds"] == ["d", "b", "a", "x"]
    assert [(one["index"], one["reason"]) for one in reply["data"]["refused"]] == [
        (1, "Job not found or not in processing state: d"),
        (2, "Invalid or expired lock token for job b"),
        (4, "Job not found or not in processing state: x"),
    ]
    assert [state(talk.broker, i) for i in "abcd"] == ["completed", "active", "active", "waiting"]
    assert talk.refused("ACKB", ids=["b", "d"], tokens=["bad", None]).startswith("Invalid or expired")
    assert talk.good("ACKB", ids=["b", "c"], tokens=tokens[1:]) == {"ok": True}


# --- long polls -----------------------------------------------------------------------------


def n_waits() -> int:
    gc.collect()
    return sum(isinstance(found, Wait) for found in gc.get_objects())


def test_a_batch_may_bring_a_new_name(tmp_path: Path, clock: ManualClock) -> None:
    """One, beside known ones, several, and one in a request that is refused: the same as a job at a time."""
    path = str(tmp_path / "jobs.db")
    broker = open_broker(path, mode="server", clock=clock, seed=bytes(16))
    talk = Talk(broker)
    batches = [["a", "a"], ["a", "b", "b"], ["a", "c", "d", "c"], ["\N{GREEK SMALL LETTER OMEGA}" * 256]]
    for names in batches:
        talk.good("PUSHB", queue="q", jobs=[{"name": name} for name in names])
    for refused in ("e" * 257, ""):
        talk.refused("PUSHB", queue="q", jobs=[{"name": "e"}, {"name": refused}])
    talk.refused("PUSHB", queue="no queue", jobs=[{"name": "e"}])
    flush(broker)
    expected = [name for names in batches for name in names]
    assert [job["name"] for job in talk.good("GetJobs", queue="q", limit=100)["jobs"]] == expected
    assert sorted(text for _, text in broker.store.load().names) == sorted({"default", *expected})
    broker.store.close()
    again = Talk(open_broker(path, mode="server", clock=clock, seed=bytes([1] * 16)))
    assert [job["name"] for job in again.good("GetJobs", queue="q", limit=100)["jobs"]] == expected
    close_broker(again.broker)


def test_waiting_pulls_are_served_in_their_order(broker: Broker) -> None:
    talks = [Talk(broker) for _ in range(3)]
    for n, talk in enumerate(talks):
        talk.send({"cmd": "PULL", "queue": "q", "timeout": 1000, "reqId": n})
        assert talk.replies() == []
    producer = Talk(broker)
    for n, talk in enumerate(talks):
        assert talk.heard == 0
        producer.good("PUSH", queue="q", name="n", jobId=f"job-{n}")
        assert talk.heard == 1
        (reply,) = talk.replies()
        assert (reply["reqId"], reply["job"]["id"]) == (n, f"job-{n}")
    producer.good("PUSH", queue="q", name="n", jobId="left")
    assert state(broker, "left") == "waiting"


def test_one_batch_of_adds_serves_as_many_as_there_are_jobs(broker: Broker) -> None:
    talks = [Talk(broker) for _ in range(3)]
    for talk in talks:
        talk.send({"cmd": "PULLB", "queue": "q", "timeout": 1000, "count": 2, "owner": "w"})
    Talk(broker).good("PUSHB", queue="q", jobs=[{"name": "n", "customId": i} for i in "abc"])
    got = [[job["id"] for reply in talk.replies() for job in reply["jobs"]] for talk in talks]
    assert got == [["a", "b"], ["c"], []]
    assert talks[2].heard == 0


def test_a_waiting_pull_ends_empty_at_its_time_and_not_before(broker: Broker, clock: ManualClock) -> None:
    talk = Talk(broker)
    talk.send({"cmd": "PULL", "queue": "q", "timeout": 100, "owner": "w", "reqId": 1})
    assert broker.pump() == (pytest.approx(0.1), None)
    clock.advance(99)
    assert broker.pump() == (pytest.approx(0.001), None)
    assert talk.replies() == []
    clock.advance(1)
    assert broker.pump() == (pytest.approx(299.9), None)  # but for a look at its queues
    assert talk.replies() == [{"ok": True, "job": None, "token": None, "reqId": 1}]
    assert n_waits() == 0


def test_a_waiting_pull_gets_a_job_whose_time_comes(broker: Broker, clock: ManualClock) -> None:
    talk = Talk(broker)
    talk.send({"cmd": "PULL", "queue": "q", "timeout": 60_000})
    Talk(broker).good("PUSH", queue="q", name="n", jobId="later", delay=50)
    assert talk.replies() == []
    assert broker.pump()[0] == pytest.approx(0.05)
    clock.advance(50)
    broker.pump()
    assert [reply["job"]["id"] for reply in talk.replies()] == ["later"]


def test_a_job_that_comes_back_goes_to_who_waits(broker: Broker, clock: ManualClock) -> None:
    holder, talk = Talk(broker), Talk(broker)
    for n, how in enumerate(("fail", "lease", "close", "resume")):
        job_id = f"job-{n}"
        if how == "resume":
            broker.engine.pause("q")
        holder.good("PUSH", queue="q", name="n", jobId=job_id, backoff=0)
        token = None
        if how != "resume":
            token = holder.good("PULL", queue="q", owner="w", lockTtl=100)["token"]
        talk.send({"cmd": "PULL", "queue": "q", "timeout": 60_000})
        assert talk.replies() == []
        if how == "fail":
            holder.good("FAIL", id=job_id, token=token)
        elif how == "lease":
            clock.advance(100)
            broker.pump()
        elif how == "close":
            holder.session.close()
            holder = Talk(broker)
        else:
            broker.engine.pause("q", False)
            broker.pump()
        assert [reply["job"]["id"] for reply in talk.replies()] == [job_id]


def test_a_closed_connection_waits_no_longer_and_takes_nothing(broker: Broker) -> None:
    gone, there = Talk(broker), Talk(broker)
    for talk in (gone, there, gone):
        talk.send({"cmd": "PULL", "queue": "q", "timeout": 1000})
    gone.session.close()
    producer = Talk(broker)
    producer.good("PUSHB", queue="q", jobs=[{"name": "n", "customId": i} for i in "ab"])
    assert [reply["job"]["id"] for reply in there.replies()] == ["a"]
    assert state(broker, "b") == "waiting"
    assert n_waits() == 0


def test_polls_that_end_empty_leave_nothing_behind(broker: Broker, clock: ManualClock) -> None:
    """An idle worker polls for ever."""
    before = n_waits()
    talk = Talk(broker)
    for _ in range(500):
        talk.send({"cmd": "PULL", "queue": "idle", "timeout": 5})
        clock.advance(5)
        broker.pump()
        assert len(talk.replies()) == 1
    assert n_waits() == before
    assert broker.pump() == (pytest.approx(297.5), None)  # but for a look at its queues


def test_a_stopped_intake_lets_polls_end_empty(broker: Broker, clock: ManualClock) -> None:
    talk = Talk(broker)
    talk.send({"cmd": "PULL", "queue": "q", "timeout": 50})
    broker.stop_intake()
    Talk(broker).good("PUSH", queue="q", name="n", jobId="a")
    assert talk.good("PULL", queue="q")["job"] is None
    clock.advance(50)
    broker.pump()
    assert [reply["job"] for reply in talk.replies()] == [None]
    assert state(broker, "a") == "waiting"


def test_a_batch_of_large_jobs_comes_in_replies_of_bounded_size(talk: Talk) -> None:
    talk.good("Hello")
    for _ in range(5):
        talk.good("PUSH", queue="q", name="n", data=b"x" * 10_000_000)
    sizes = []
    while jobs := talk.good("PULLB", queue="q", count=100)["jobs"]:
        sizes.append(len(jobs))
    assert sizes == [3, 2]


# --- what a connection owns --------------------------------------------------------------------


def test_a_connection_gives_back_what_it_pulled_and_never_renewed(broker: Broker, clock: ManualClock) -> None:
    talk = Talk(broker)
    talk.good("PUSHB", queue="q", jobs=[{"name": "n", "customId": i} for i in "abcd"])
    a, b = (talk.good("PULL", queue="q", owner="w", lockTtl=1000)["token"] for _ in "ab")
    talk.good("PULL", queue="q", detach=True)
    talk.good("PULL", queue="q")
    talk.good("JobHeartbeat", id="b", token=b)
    talk.session.close()
    assert [state(broker, i) for i in "abcd"] == ["waiting", "active", "active", "waiting"]
    other = Talk(broker)
    assert "not in processing" in other.refused("ACK", id="a", token=a)
    assert [other.good("GetJob", id=i)["job"]["attempts"] for i in "abcd"] == [0] * 4
    other.good("ACK", id="b", token=b)
    talk.session.close()


def test_a_number_of_a_connection_that_kept_its_deliveries_is_not_used_again(broker: Broker) -> None:
    """A planned stop closes connections without giving back what their workers still do."""
    first = Talk(broker)
    first.good("PUSH", queue="q", name="n", jobId="a")
    first.good("PULL", queue="q", owner="w")
    first.session.close(release=False)
    Talk(broker).session.close()
    assert state(broker, "a") == "active"


def test_workers_leave_with_their_connection(broker: Broker) -> None:
    talk, other = Talk(broker), Talk(broker)
    talk.good("RegisterWorker", name="w", queues=["q"], workerId="1")
    other.good("RegisterWorker", name="v", queues=["q"], workerId="2")
    talk.session.close()
    assert [w["id"] for w in other.good("ListWorkers")["data"]["workers"]] == ["2"]


# --- the request rate ----------------------------------------------------------------------------


def test_a_rate_limit_refuses_what_is_over_it_and_runs_none_of_it(broker: Broker, clock: ManualClock) -> None:
    talk = Talk(broker, rate_max=3, rate_window_ms=1000)
    for n in range(5):
        reply = talk.ask("PUSH", queue="q", name="n", reqId=f"r{n}")
        assert reply["reqId"] == f"r{n}"
        assert reply["ok"] is (n < 3)
        assert n < 3 or reply["error"] == "Rate limit exceeded"
    assert Talk(broker).good("Count", queue="q")["count"] == 3
    clock.advance(1100)
    talk.good("Ping")


@pytest.mark.parametrize("window_ms", [1, 10, 640, 1000, 60_000])
def test_no_window_holds_more_than_the_limit(window_ms: int) -> None:
    rng = random.Random(window_ms)
    clock = ManualClock(ns=12_345)
    broker = open_broker(clock=clock, seed=SEED)
    talk = Talk(broker, rate_max=5, rate_window_ms=window_ms)
    admitted: list[int] = []
    step = max(1, window_ms // 64)
    for _ in range(2000):
        clock.advance(rng.choice([0, 0, 0, 1, step, step, window_ms - step, window_ms]))
        if talk.ask("Ping")["ok"]:
            admitted.append(clock.now_ns())
    for early, late in zip(admitted, admitted[5:], strict=False):
        assert late - early >= window_ms * 1_000_000
    assert len(admitted) > 300


def test_a_stream_may_come_in_one_buffer_that_is_used_again() -> None:
    whole, rng = converse(cut()), random.Random(4)
    for _ in range(50):
        session = Session(open_broker(clock=ManualClock(), seed=SEED))
        room, at, out = bytearray(rng.randint(1, 200)), 0, b""
        while at < len(STREAM):
            n = min(rng.randint(1, len(room)), len(STREAM) - at)
            room[:n] = STREAM[at : at + n]
            missing = session.feed(room, n)
            assert missing == session.partial
            room[:] = rng.randbytes(len(room))
            out += session.take()
            at += n
        assert out == whole


def test_no_more_can_have_come_than_a_buffer_holds(talk: Talk) -> None:
    with pytest.raises(ValueError, match="at most the 5 bytes of data, got 6"):
        talk.session.feed(bytearray(5), 6)
    assert talk.session.partial == 0


def test_a_host_learns_when_a_job_is_due_to_the_nanosecond() -> None:
    # The wall clock of jobs has milliseconds: a host that counted from their beginning came up to one late.
    broker = open_broker()
    talk = Talk(broker)
    job = talk.ask("PUSH", queue="q", delay=60_000)["id"]
    due_ns = talk.ask("GetJob", id=job)["job"]["runAt"] * 1_000_000
    for _ in range(100):
        before_ns = time.time_ns()
        left_s, _ = broker.pump()
        after_ns = time.time_ns()
        assert left_s is not None
        assert before_ns - 1000 <= due_ns - left_s * 1e9 <= after_ns + 1000


def test_requests_are_counted_so_that_a_host_can_tell_a_new_incomplete_frame(talk: Talk) -> None:
    whole = frame({"cmd": "Ping"})
    talk.session.feed(whole[:5])
    assert (talk.session.n_frames, talk.session.partial) == (0, 5)
    talk.session.feed(whole[5:] + whole + whole[:3])
    assert (talk.session.n_frames, talk.session.partial) == (2, 3)


@pytest.mark.parametrize("more", [{}, {"group": {"concurrency": 1}}])
@pytest.mark.parametrize("cmd", ["PULL", "PULLB"])
def test_asking_for_jobs_of_a_queue_that_is_not_there_makes_none(
    talk: Talk, cmd: str, more: dict[str, Any]
) -> None:
    """Names that are only polled would stay for ever."""
    count = {"count": 5} if cmd == "PULLB" else {}
    assert talk.good(cmd, queue="nowhere", owner="w", **count, **more) in (
        {"ok": True, "job": None, "token": None},
        {"ok": True, "jobs": [], "tokens": []},
    )
    assert talk.good("ListQueues")["queues"] == []
