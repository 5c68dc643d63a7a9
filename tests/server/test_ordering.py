"""The order of what one connection asks, and what is answered or ended without waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from qcore.broker import open_broker
from qcore.broker.session import Session
from qcore.clock import ManualClock
from qcore.wire.packing import pack

Start = Callable[..., Any]
Lines = Callable[[Any, int], list[Any]]

#: A lease ends within this of its time; a guard leaves ten times as much for a busy machine.
LATE_S = 0.2


@pytest.fixture
def open_lines() -> Iterator[Lines]:
    """So many connections to a server."""
    with ExitStack() as stack:
        yield lambda server, n: [stack.enter_context(closing(server.connect())) for _ in range(n)]


@pytest.mark.parametrize("kept", [False, True])
def test_requests_of_one_segment_run_in_the_order_written(
    start: Start, open_lines: Lines, tmp_path: Path, kept: bool
) -> None:
    """Each sees what the one before it did, whichever of them waits for a commit."""
    server = start(*(("--data", str(tmp_path / "jobs.db")) if kept else ()))
    (line,) = open_lines(server, 1)
    for n in range(50):
        frames: list[bytes] = []

        def also(frames: list[bytes] = frames, **request: Any) -> None:
            frames.append(line.frame(**request, reqId=str(len(frames))))

        job_id = f"j{n}"
        also(cmd="PUSH", queue="q", name="n", jobId=job_id, data=n, durable=bool(n % 2))
        also(cmd="PULL", queue="q")  # long before any timeout of its own
        also(cmd="GetState", id=job_id)
        also(cmd="Progress", id=job_id, progress=n)
        also(cmd="ACK", id=job_id, result={"n": n})
        also(cmd="GetResult", id=job_id)
        also(cmd="WaitJob", id=job_id, timeout=600_000)
        also(cmd="PUSHB", queue="p", jobs=[{"name": "n", "data": i} for i in range(3)])
        also(cmd="PULLB", queue="p", count=5)
        also(cmd="Obliterate", queue="p", force=True)
        also(cmd="Count", queue="p")
        also(cmd="Ping")
        line.send(*frames)
        replies = {reply["reqId"]: reply for reply in (line.receive() for _ in frames)}
        assert all(reply["ok"] for reply in replies.values()), replies
        assert replies["1"]["job"]["id"] == job_id
        assert replies["1"]["job"]["data"] == n
        assert replies["2"]["state"] == "active"
        assert replies["5"]["result"] == {"n": n}
        assert replies["6"]["completed"] is True
        assert replies["6"]["result"] == {"n": n}
        assert [job["data"] for job in replies["8"]["jobs"]] == [0, 1, 2]
        assert replies["10"]["count"] == 0


def test_a_pull_behind_a_durable_add_gets_it_with_its_commit(
    start: Start, open_lines: Lines, tmp_path: Path
) -> None:
    """Until then the job is nobody's; a pull that waits holds up nothing."""
    (line,) = open_lines(start("--data", str(tmp_path / "jobs.db")), 1)
    for n in range(20):
        line.send(
            line.frame(cmd="PUSH", queue="q", name="n", jobId=f"j{n}", durable=True, reqId="push"),
            line.frame(cmd="PULL", queue="q", timeout=60_000, reqId="pull"),
            line.frame(cmd="Ping", reqId="ping"),
        )
        replies = {reply["reqId"]: reply for reply in (line.receive() for _ in range(3))}
        assert replies["push"]["id"] == replies["pull"]["job"]["id"] == f"j{n}"
        assert replies["ping"]["ok"]
        assert line.ask(cmd="ACK", id=f"j{n}")["ok"]


def test_a_pull_that_waits_holds_up_nothing_behind_it(start: Start, open_lines: Lines) -> None:
    """It gets the job of a later request of its own connection."""
    (line,) = open_lines(start(), 1)
    line.send(
        line.frame(cmd="PULL", queue="q", timeout=60_000, reqId="pull"),
        line.frame(cmd="WaitJob", id="none", timeout=600_000, reqId="none"),
        line.frame(cmd="Ping", reqId="ping"),
        line.frame(cmd="PUSH", queue="q", name="n", jobId="a", reqId="push"),
        line.frame(cmd="WaitJob", id="a", timeout=600_000, reqId="wait"),
        line.frame(cmd="Count", queue="q", reqId="count"),
    )
    replies = {reply["reqId"]: reply for reply in (line.receive() for _ in range(5))}
    assert replies.keys() == {"pull", "none", "ping", "push", "count"}
    assert replies["pull"]["job"]["id"] == "a"
    assert "not found" in replies["none"]["error"]
    assert line.ask(cmd="ACK", id="a", result=1, reqId="ack")["reqId"] in ("ack", "wait")
    assert line.receive()["ok"]


@pytest.mark.parametrize("kept", [False, True])
def test_a_wait_for_a_job_that_will_not_complete_is_answered_at_once(
    start: Start, open_lines: Lines, tmp_path: Path, kept: bool
) -> None:
    """Failed, removed or finished, before it is asked for and while it is waited for."""
    server = start(*(("--data", str(tmp_path / "jobs.db")) if kept else ()))
    line, other = open_lines(server, 2)
    wait = {"cmd": "WaitJob", "timeout": 600_000}

    def add(job_id: str, **options: Any) -> None:
        assert line.ask(cmd="PUSH", queue="q", name="n", jobId=job_id, **options)["ok"]

    # The connection would not be read for so long by a server that waits.
    began = time.monotonic()
    for when in ("before", "while"):
        ends: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
            "finished": ({"cmd": "ACK", "result": [1]}, {"completed": True, "result": [1]}),
            "finished and gone": (
                {"cmd": "ACK", "result": [2], "removeOnComplete": True},
                {"completed": True},
            ),
            "failed": ({"cmd": "FAIL", "error": "e", "unrecoverable": True}, {"completed": False}),
            "discarded": ({"cmd": "Discard"}, {"completed": False}),
            "cancelled": ({"cmd": "Cancel"}, {"completed": False}),
        }
        for name, (end, expected) in ends.items():
            job_id = f"{name} {when}"
            add(job_id)
            if end["cmd"] in ("ACK", "FAIL"):
                assert line.ask(cmd="PULL", queue="q")["job"]["id"] == job_id
            if when == "while":
                other.send(other.frame(**wait, id=job_id))
                assert other_is_heard(other)
            assert line.ask(**end, id=job_id)["ok"]
            reply = other.receive() if when == "while" else other.ask(**wait, id=job_id)
            gone = when == "before" and name in ("finished and gone", "cancelled")
            if gone and not reply["ok"]:
                assert "not found" in reply["error"]
                continue
            assert reply["ok"], (name, when, reply)
            assert {key: reply.get(key) for key in expected} == expected, (name, when)
    add("obliterated")
    other.send(other.frame(**wait, id="obliterated"))
    assert other_is_heard(other)
    assert line.ask(cmd="Obliterate", queue="q", force=True)["ok"]
    assert other.receive().get("completed") is False
    assert time.monotonic() - began < 300, "a wait lasted"


def other_is_heard(line: Any) -> bool:
    """What the connection sent before has been taken: a Ping behind it is answered."""
    return bool(line.ask(cmd="Ping")["ok"])


def test_leases_end_at_their_time(start: Start, open_lines: Lines) -> None:
    """Not before it, with the holder's connection open; how late leaves room for a busy machine."""
    server = start()
    holder, other = open_lines(server, 2)
    late: list[float] = []
    for lease_s in (0.1, 0.35, 0.8):
        holder.ask(cmd="PUSH", queue="q", name="n", backoff=0, maxAttempts=9)
        began = time.monotonic()
        job_id = holder.ask(cmd="PULL", queue="q", owner="w", lockTtl=int(lease_s * 1000))["job"]["id"]
        granted = time.monotonic()
        got = other.ask(cmd="PULL", queue="q", owner="v", timeout=30_000)
        ended = time.monotonic()
        assert got["job"]["id"] == job_id
        assert got["job"]["attempts"] == 1
        assert ended - began >= lease_s
        late.append(ended - granted - lease_s)
        other.ask(cmd="ACK", id=job_id, token=got["token"])
    assert min(late) < LATE_S * 10, late


def test_a_lease_ends_at_its_time_to_the_millisecond() -> None:
    """The same without a machine in between: a turn at its time leaves nothing to be done."""
    clock = ManualClock()
    broker = open_broker(mode="server", clock=clock, seed=bytes(16))
    session = Session(broker)

    def ask(**request: Any) -> None:
        body = pack(request)
        session.feed(len(body).to_bytes(4, "big") + body)
        session.take()

    ask(cmd="PUSH", queue="q", name="n", jobId="a", maxAttempts=9)
    ask(cmd="PULL", queue="q", owner="w", lockTtl=1500)
    clock.advance(1499)
    broker.pump()
    assert broker.engine.state("a") == "active"
    clock.advance(1)
    broker.pump()
    assert broker.engine.state("a") != "active"
