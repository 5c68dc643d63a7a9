"""A schedule that many processes declare at once, while workers come and go by force."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

SECONDS = 5.0
EVERY_MS = 250
N_PROCESSES = 20

#: Registers the same schedule again and again until it is killed or the server goes.
DECLARE = """
import socket, sys, time
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
frame = bytes.fromhex(sys.argv[2])
while True:
    sock.sendall(frame)
    n = 4 + int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big")
    if n == 4 or b"error" in sock.recv(n - 4, socket.MSG_WAITALL):
        break
    time.sleep(0.02)
"""

#: Runs jobs of one queue, and writes down the data of each before it answers.
WORK = """
import socket, sys
import msgpack
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def call(**fields):
    body = msgpack.packb(fields)
    sock.sendall(len(body).to_bytes(4, "big") + body)
    n = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big")
    return msgpack.unpackb(sock.recv(n, socket.MSG_WAITALL))
with open(sys.argv[2], "a") as ran:
    while True:
        got = call(cmd="PULL", queue="q", owner="w", timeout=60000)
        if got["job"]:
            print(got["job"]["id"], got["job"]["data"], file=ran, flush=True)
            call(cmd="ACK", id=got["job"]["id"], token=got["token"])
"""


@pytest.fixture
def child() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    children: list[subprocess.Popen[bytes]] = []

    def start(source: str, *arguments: str) -> subprocess.Popen[bytes]:
        children.append(
            subprocess.Popen([sys.executable, "-c", source, *arguments], stderr=subprocess.DEVNULL)
        )
        return children[-1]

    yield start
    for each in children:
        each.kill()
        each.wait()


def declaration(**fields: Any) -> str:
    body = msgpack.packb({"cmd": "Cron", "name": "s", "queue": "q", "immediately": True, **fields})
    return (len(body).to_bytes(4, "big") + body).hex()


def test_case_048_redeploy_does_not_double_a_schedule(
    start: Any, line: Any, child: Any, tmp_path: Path
) -> None:
    server = start("--data", str(tmp_path / "q.db"))
    talk = line(server)
    ran = tmp_path / "ran"
    ran.touch()
    port = str(server.port)
    begun = time.monotonic()
    declaring = [
        child(DECLARE, port, declaration(repeatEvery=EVERY_MS, data="old")) for _ in range(N_PROCESSES)
    ]
    child(WORK, port, str(ran))
    doomed = child(WORK, port, str(ran))
    born = time.monotonic()
    most = 0

    def watch(until: float) -> None:
        nonlocal doomed, born, most
        while time.monotonic() < until:
            counts = talk.call("GetJobCounts", queue="q")["counts"]
            most = max(most, counts["waiting"] + counts["delayed"] + counts["active"])
            if time.monotonic() - born > 0.2:
                doomed.kill()
                doomed.wait()
                doomed, born = child(WORK, port, str(ran)), time.monotonic()

    watch(begun + SECONDS)
    (cron,) = talk.call("CronList")["crons"]
    slots = (time.monotonic() - begun) * 1000 / EVERY_MS
    assert most <= 1, f"{most} jobs of one schedule at once"
    assert 1 <= cron["executions"] <= slots + 2
    assert cron["nextRun"] <= time.time() * 1000 + EVERY_MS

    # A redeploy with other data and another interval, from all at once.
    for each in declaring:
        each.kill()
        each.wait()
    before = talk.call("CronGet", name="s")["cron"]["executions"]
    changed = time.monotonic()
    for _ in range(3):
        child(DECLARE, port, declaration(repeatEvery=2 * EVERY_MS, data="new"))
    while talk.call("CronGet", name="s")["cron"]["repeatEvery"] != 2 * EVERY_MS:
        assert time.monotonic() - changed < 60
    seen = talk.call("CronGet", name="s")["cron"]["executions"]
    lines = len(ran.read_text().splitlines())
    watch(time.monotonic() + SECONDS / 2)
    cron = talk.call("CronGet", name="s")["cron"]
    assert most <= 1, f"{most} jobs of one schedule at once"
    assert before <= seen < cron["executions"] <= seen + SECONDS / 2 * 1000 / (2 * EVERY_MS) + 3
    rows = [row.split() for row in ran.read_text().splitlines()]
    assert len({job_id for job_id, _ in rows}) == len(rows), "a job ran twice"
    assert {data for _, data in rows[lines + 1 :]} == {"new"}  # one of the old may have been running
    assert "new" not in {data for _, data in rows[:1]}
