"""Every question about a job has the same answer before and after a restart, clean or not."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

#: What clients ask a server, as far as it concerns jobs and queues.
BY_ID = ("GetJob", "GetState", "GetResult")
BY_QUEUE = ("GetJobCounts", "Count", "IsPaused", "Dlq")


def one_of_each(talk: Any) -> list[str]:
    """A job in each state, with all that a job can have; their ids."""
    ids: list[str] = []

    def add(queue: str = "q", **options: Any) -> str:
        reply = talk.call("PUSH", queue=queue, **options)
        assert reply["ok"], reply
        ids.append(reply["id"])
        return str(reply["id"])

    def take(queue: str = "q") -> tuple[str, str]:
        reply = talk.call("PULL", queue=queue, owner="w", lockTtl=60_000)
        return reply["job"]["id"], reply["token"]

    for result in ({"deep": [1, 2.5, None, "ä"]}, None, b"\x00bytes", "x" * 20_000):
        add(name="completed", data={"r": 1})
        job_id, token = take()
        assert talk.call("ACK", id=job_id, token=token, result=result)["ok"]
    add(name="completed without a result", data=None)
    job_id, token = take()
    assert talk.call("ACK", id=job_id, token=token)["ok"]
    for attempts in (1, 5):
        add(name="failed", data=[1], maxAttempts=attempts, stackTraceLimit=3)
        job_id, token = take()
        stack = ["line 1", "line 2", "line 3", "line 4"]
        reply = talk.call("FAIL", id=job_id, token=token, error="why", stack=stack, unrecoverable=True)
        assert reply["ok"]
    add(name="to be tried again", data={}, backoff={"type": "exponential", "delay": 3_600_000})
    job_id, token = take()
    assert talk.call("FAIL", id=job_id, token=token, error="not yet", stack=["here"])["ok"]
    add(name="active", data={"a": 1}, timeout=3_600_000)
    take()
    add(name="renewed", data={"a": 1})
    job_id, token = take()
    assert talk.call("JobHeartbeat", id=job_id, token=token)["ok"]
    add(name="waiting", data="x" * 5000, tags=["a", "b"], ttl=3_600_000, stallTimeout=9000, keepLogs=3)
    add(name="prioritized", data=1.5, priority=-7, lifo=True, removeOnComplete=True, removeOnFail=True)
    add(name="custom", data={}, jobId="my-id", timestamp=1_700_000_000_000, maxAttempts=9)
    add(name="delayed", data={}, delay=3_600_000, durable=True)
    add(name="without data")
    for n in range(3):
        add("held", name="in a paused queue", data=n)
    assert talk.call("Pause", queue="held")["ok"]
    add("third", name="other", data=True)
    return ids


def answers(talk: Any, ids: list[str]) -> dict[str, Any]:
    found = {f"{cmd} {i}": talk.call(cmd, id=i) for cmd in BY_ID for i in ids}
    found |= {
        f"{cmd} {q}": talk.call(cmd, queue=q) for cmd in BY_QUEUE for q in ("q", "held", "third", "none")
    }
    return found | {"ListQueues": talk.call("ListQueues")}


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_cases_c026_answers_outlive_the_server(
    start: Any, line: Any, tmp_path: Path, end: signal.Signals
) -> None:
    options = ("--data", str(tmp_path / "jobs.db"), "--shutdown-timeout-ms", "100")
    server = start(*options)
    talk = line(server)
    ids = one_of_each(talk)
    # The commit of this one carries everything before it.
    assert talk.call("PUSH", queue="third", name="last", data=0, durable=True)["ok"]
    before = answers(talk, ids)
    for _ in range(2):
        server.signal(end)
        assert server.end()[0] in (0, -signal.SIGKILL)
        server = start(*options)
        talk = line(server)
        after = answers(talk, ids)
        assert {k: v for k, v in after.items() if before[k] != v} == {}
        assert after == before
    new = talk.call("PUSH", queue="third", name="next", data=0)["id"]
    assert new not in ids
    assert new > max(i for i in ids if i != "my-id"), "ids go on where they were"
    assert talk.call("PUSH", queue="q", name="custom", data={}, jobId="my-id")["id"] == "my-id"
    assert talk.call("Count", queue="q")["count"] == before["Count q"]["count"]
    order = [talk.call("PULL", queue="q", owner="w")["job"]["name"] for _ in range(4)]
    assert order == ["custom", "waiting", "without data", "prioritized"]  # by run time: custom is of 2023
