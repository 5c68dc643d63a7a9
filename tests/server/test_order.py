"""What is written on one connection runs in that order, also behind adds that wait for their commit."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Start = Callable[..., Any]


@pytest.fixture(params=["memory", "sqlite"])
def line(request: pytest.FixtureRequest, start: Start, tmp_path: Path) -> Any:
    server = start(*(("--data", str(tmp_path / "jobs.db")) if request.param == "sqlite" else ()))
    line = server.connect()
    yield line
    line.close()


def by_request(line: Any, *requests: dict[str, Any]) -> list[Any]:
    """Write all requests at once; their replies in the order of the requests."""
    line.send(*(line.frame(**request, reqId=str(n)) for n, request in enumerate(requests)))
    replies = {}
    for _ in requests:
        reply = line.receive()
        replies[reply.pop("reqId")] = reply
    return [replies[str(n)] for n in range(len(requests))]


def flow(n: int) -> dict[str, Any]:
    parent = {"childrenIds": [f"k{n}"], "dependsOn": [f"k{n}"], "data": {"__childrenIds": [f"k{n}"]}}
    child = {"parentId": f"p{n}", "data": {"__parentId": f"p{n}", "__parentQueue": "p"}}
    jobs = [{"id": f"p{n}", "queue": "p", "input": parent}, {"id": f"k{n}", "queue": "k", "input": child}]
    return {"cmd": "PUSHF", "jobs": jobs}


@pytest.mark.parametrize(
    "add",
    [
        {"cmd": "PUSH", "queue": "k", "jobId": "k0"},
        {"cmd": "PUSH", "queue": "k", "jobId": "k0", "durable": True},
        {"cmd": "PUSHB", "queue": "k", "jobs": [{"customId": "k0", "durable": True}, {}]},
        flow(0),
    ],
    ids=["plain", "durable", "bulk", "flow"],
)
def test_who_follows_an_add_sees_its_job(line: Any, add: dict[str, Any]) -> None:
    counts, state, pulled, counted = by_request(
        line,
        add,
        {"cmd": "GetJobCounts", "queue": "k"},
        {"cmd": "GetState", "id": "k0"},
        {"cmd": "PULL", "queue": "k", "owner": "w"},
        {"cmd": "Count", "queue": "k"},
    )[1:]
    assert counts["counts"]["waiting"] == (2 if add["cmd"] == "PUSHB" else 1)
    assert state["state"] == "waiting"
    assert pulled["job"]["id"] == "k0"
    assert counted["count"] == counts["counts"]["waiting"] - 1


def test_many_adds_and_looks_in_one_write(line: Any) -> None:
    """However many commits it takes, nothing overtakes and every request has one reply."""
    requests: list[dict[str, Any]] = []
    for n in range(100):
        requests.append({"cmd": "PUSH", "queue": "q", "jobId": str(n), "durable": n % 3 == 0})
        requests.append({"cmd": "Count", "queue": "q"})
        if n % 10 == 9:
            requests += [flow(n), {"cmd": "PULL", "queue": "k", "owner": "w"}, {"cmd": "Ping"}]
    replies = by_request(line, *requests)
    found = list(zip(requests, replies, strict=True))
    assert [r["count"] for request, r in found if request["cmd"] == "Count"] == list(range(1, 101))
    assert [r["job"]["id"] for q, r in found if q["cmd"] == "PULL"] == [f"k{n}" for n in range(9, 100, 10)]


def test_adds_share_a_commit_and_outcomes_do_not_wait_for_it(line: Any) -> None:
    """Only requests that could see the new jobs wait."""
    line.ask(cmd="PUSH", queue="q", jobId="held")
    held = line.ask(cmd="PULL", queue="q", owner="w")
    durable = {"cmd": "PUSH", "queue": "q", "durable": True}
    ack = {"cmd": "ACK", "id": "held", "token": held["token"]}
    replies = by_request(line, *[durable] * 200, ack, {"cmd": "Ping"}, {"cmd": "Count", "queue": "q"})
    assert all(reply["ok"] for reply in replies)
    assert replies[-1]["count"] == 200


def test_what_was_written_runs_also_when_the_peer_leaves(start: Start, tmp_path: Path) -> None:
    server = start("--data", str(tmp_path / "jobs.db"))
    gone, line = server.connect(), server.connect()
    gone.send(
        line.frame(cmd="PUSH", queue="q", durable=True),
        line.frame(cmd="Pause", queue="q"),
        line.frame(cmd="PUSH", queue="r"),
    )
    gone.sock.shutdown(socket.SHUT_WR)
    assert gone.ended()
    assert line.ask(cmd="IsPaused", queue="q")["paused"] is True
    assert line.ask(cmd="Count", queue="r")["count"] == 1
    gone.close()
    line.close()
