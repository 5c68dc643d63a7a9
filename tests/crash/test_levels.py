"""SIGKILL right after a reply: what was confirmed at a level is in the file."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from qclient import Queue

#: The ways to say it to a server: options or the environment.
WAYS = [
    (("--adds", "committed", "--changes", "committed"), {}),
    (("--adds", "synced"), {"QCORE_CHANGES": "synced"}),
    (("--changes", "buffered"), {"QCORE_ADDS": "buffered"}),
]


@pytest.mark.parametrize(("options", "variables"), WAYS)
def test_a_server_that_is_killed_after_its_reply(
    start: Any, line: Any, tmp_path: Path, options: tuple[str, ...], variables: dict[str, str]
) -> None:
    file = ("--data", str(tmp_path / "jobs.db"))
    # The lowest level loses what it confirmed just before; a durable job keeps its promises even there.
    durable = "buffered" in options
    server = start(*file, *options, **variables)
    talk = line(server)
    before = talk.call("PUSH", queue="q", name="n", data=0, jobId="before")
    job = {"queue": "q", "name": "n", "data": "x" * 2000, "jobId": "a", "durable": durable, "priority": 5}
    assert talk.call("PUSH", **job)["ok"]
    server.kill()

    server = start(*file, *options, **variables)
    talk = line(server)
    assert before["ok"]
    assert talk.call("Count", queue="q")["count"] == 2, "a commit takes along what was buffered before"
    got = talk.call("PULL", queue="q", owner="w")
    assert got["job"]["data"] == "x" * 2000
    assert talk.call("ACK", id="a", token=got["token"], result="done")["ok"]
    server.kill()

    server = start(*file, *options, **variables)
    talk = line(server)
    assert talk.call("GetResult", id="a")["result"] == "done"
    assert talk.call("Count", queue="q")["count"] == 1
    server.signal(signal.SIGTERM)
    assert server.end()[0] == 0


KILLED = """
import os, sys
from qclient import Queue
queue = Queue("q", sys.argv[1])
queue.add("plain", 1)
queue.add("last", 2, durable=sys.argv[2] == "durable")
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(
    ("query", "durable", "variables"),
    [
        ("?adds=committed", "", {}),
        ("?adds=synced&changes=synced", "", {}),
        ("", "", {"QCORE_ADDS": "synced"}),
        ("?adds=buffered&changes=buffered", "durable", {}),
    ],
)
def test_an_embedded_engine_that_is_killed_after_its_reply(
    program: Any, tmp_path: Path, query: str, durable: str, variables: dict[str, str]
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    assert program(KILLED, url + query, durable, **variables).returncode == -signal.SIGKILL
    with Queue("q", url) as queue:
        assert len(queue) == 2
