"""Requests that wait for room behind large replies, and peers that do not read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BIG = b"x" * (9 << 20)  # its reply fills the room of a connection

Start = Callable[..., Any]


@pytest.mark.parametrize(
    "request_", [{"cmd": "Pause", "queue": "q"}, {"cmd": "PUSH", "queue": "q", "durable": True}]
)
def test_a_held_reply_behind_a_large_one_comes_by_itself(
    start: Start, tmp_path: Path, request_: dict[str, Any]
) -> None:
    """The request ran after its turn had begun a commit: nobody began the next one."""
    line = start("--data", str(tmp_path / "jobs.db")).connect()
    line.ask(cmd="PUSH", queue="q", jobId="big", data=BIG)
    line.send(line.frame(cmd="GetJob", id="big"), line.frame(reqId="last", **request_))
    assert line.receive()["job"]["id"] == "big"
    assert line.receive() == {"ok": True, "reqId": "last"} | (
        {"id": line_id(line)} if "durable" in request_ else {}
    )
    line.close()


def line_id(line: Any) -> Any:
    jobs = line.ask(cmd="GetJobs", queue="q", asc=False, limit=1)["jobs"]
    return jobs[0]["id"]


def test_a_plain_add_behind_a_large_reply_is_flushed(start: Start, tmp_path: Path) -> None:
    data = str(tmp_path / "jobs.db")
    server = start("--data", data)
    line = server.connect()
    line.ask(cmd="PUSH", queue="q", jobId="big", data=BIG)
    line.send(line.frame(cmd="GetJob", id="big"), line.frame(cmd="PUSH", queue="q", jobId="small"))
    line.receive()
    assert line.receive()["id"] == "small"
    # The window ends without another request; a commit of somebody else would carry it as well.
    line.sock.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        line.receive()
    line.close()
    server.kill()
    line = start("--data", data).connect()
    assert line.ask(cmd="GetState", id="small")["state"] == "waiting"
    line.close()


def test_a_long_poll_behind_a_large_reply_ends_in_time(start: Start) -> None:
    line = start().connect()
    line.ask(cmd="PUSH", queue="q", jobId="big", data=BIG)
    line.send(line.frame(cmd="GetJob", id="big"), line.frame(cmd="PULL", queue="empty", timeout=200))
    line.receive()
    assert line.receive()["job"] is None
    line.close()


def test_defect_74_what_a_peer_sends_without_reading_is_bounded(start: Start) -> None:
    """Its second burst lets requests wait; from then on nothing more of it is read."""
    server = start()
    line = server.connect(receive_buffer=4096)
    line.ask(cmd="PUSH", queue="q", jobId="big", data=b"x" * (4 << 20))
    get = line.frame(cmd="GetJob", id="big")
    line.send(get * 2)
    other = server.connect()
    assert other.ask(cmd="Ping")["ok"]
    line.send(get * 10)
    for _ in range(3):
        assert other.ask(cmd="Ping")["ok"]
    before = server.resident_mib()
    junk = line.frame(cmd="Ping", pad=b"y" * (1 << 20))
    line.sock.settimeout(1.0)
    with contextlib.suppress(TimeoutError):
        for _ in range(200):
            line.send(junk)
    assert other.ask(cmd="Ping")["ok"]
    assert server.resident_mib() - before < 48
    other.close()
    line.close()


@pytest.mark.parametrize("delay", [30 * 86_400_000, 36_500 * 86_400_000, 1e300])
def test_a_job_due_in_years_does_not_end_the_server(start: Start, tmp_path: Path, delay: float) -> None:
    """Polling takes no timeout of more than 24 days (C009)."""
    data = str(tmp_path / "jobs.db")
    line = start("--data", data).connect()
    assert line.ask(cmd="PUSH", queue="q", delay=delay, durable=True)["ok"]
    assert line.ask(cmd="Ping")["ok"]
    line.close()
    line = start("--data", str(tmp_path / "other.db")).connect()
    assert line.ask(cmd="PUSH", queue="q")["ok"]
    assert line.ask(cmd="PULL", queue="q", owner="w", lockTtl=min(delay, 4e15))["job"]
    for _ in range(2):
        assert line.ask(cmd="Ping")["ok"]
    line.close()
