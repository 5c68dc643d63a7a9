"""What workers receive that want one type of event: the same however many of them there are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

Start = Callable[..., Any]
JOBS = 2_000
BATCH = 20


class Share:
    """A worker on a connection of its own: what it asked, and what came."""

    def __init__(self, line: Any, types: list[str] | None) -> None:
        self.line = line
        self.asked = self.frames = self.done = 0
        self.events: list[str] = []
        self.ask(cmd="SubscribeEvents", queue="q", **({} if types is None else {"eventTypes": types}))

    def ask(self, **request: Any) -> Any:
        self.asked += 1
        self.line.send(self.line.frame(**request))
        while True:
            reply = self.line.receive()
            self.frames += 1
            if reply.get("type") != "event":
                return reply
            self.events.append(reply["event"]["eventType"])

    def drain(self) -> None:
        while True:
            got = self.ask(cmd="PULLB", queue="q", count=BATCH, owner="w", timeout=0)
            if not got["jobs"]:
                return
            ids = [job["id"] for job in got["jobs"]]
            self.done += len(ids)
            assert self.ask(cmd="ACKB", ids=ids, tokens=got["tokens"])["ok"]


def shares(server: Any, n: int, types: list[str] | None) -> list[Share]:
    """Have n workers do all the jobs."""
    workers = [Share(server.connect(), types) for _ in range(n)]
    producer = server.connect()
    producer.ask(cmd="PUSHB", queue="q", jobs=[{"name": "n", "data": i} for i in range(JOBS)])
    threads = [threading.Thread(target=worker.drain) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for line in (producer, *(worker.line for worker in workers)):
        line.close()
    assert sum(worker.done for worker in workers) == JOBS
    return workers


@pytest.mark.parametrize("n", [1, 8])
def test_a_worker_that_wants_stalls_receives_its_replies_alone(start: Start, n: int) -> None:
    """A frame a request: two for 20 jobs, and at its end an empty one."""
    workers = shares(start(), n, ["stalled"])
    assert all(worker.frames == worker.asked for worker in workers)
    assert sum(worker.frames for worker in workers) <= 2 * JOBS // BATCH + 4 * n


def test_a_worker_that_wants_all_receives_those_of_the_others_as_well(start: Start) -> None:
    """The test above can fail: events are sent to who asks for them."""
    workers = shares(start(), 2, None)
    for worker in workers:
        assert worker.frames - worker.asked == len(worker.events)
        assert worker.events.count("pulled") >= worker.done
        assert worker.events.count("pushed") == JOBS
