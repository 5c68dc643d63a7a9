"""SIGKILL at random moments: promises kept, whatever was going on.

The campaigns are also a command, for more than a test run can afford; see
:mod:`tests.crash.campaign`. Only the crash of a process is tested here: what a power
cut leaves depends on ``synchronous`` and on the disk.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qclient import JobContext, Queue, Worker
from qcore.store.sqlite import SqliteStore
from tests.records import EXPIRES_AT, read_record

ROOT = Path(__file__).parents[2]

#: Guards against hanging: ten times what a kill and the start after it take on two busy cores.
MOST_S_PER_KILL = 20


def run_campaign(kills: int, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-X", "faulthandler", "-W", "error", "-m", "tests.crash.campaign", *options]
    command += ["--kills", str(kills)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=MOST_S_PER_KILL * kills)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.slow
@pytest.mark.timeout(MOST_S_PER_KILL * 40)
@pytest.mark.parametrize(("mode", "kills"), [("server", 28), ("embedded", 36)])
def test_cases_c021_c027_campaign(mode: str, kills: int) -> None:
    """Whatever was confirmed is there, once; what was removed stays away (C021); the file is whole (C027)."""
    # Another seed each time: a failure names it, and `QCORE_CRASH_SEED` repeats the load.
    seed = os.environ.get("QCORE_CRASH_SEED") or str(random.SystemRandom().randrange(10**6))
    journal = ["--journal"] if mode == "embedded" else []
    report = run_campaign(kills, "--mode", mode, "--seed", seed, *journal)
    assert report["kills"] == kills
    # The campaign was one: work was done, and work was under way when the killing came.
    assert report["jobs"] > 10 * kills
    assert report["confirmed_ends"] > 10 * kills
    assert report["script_steps"] > 2 * kills
    assert report["runs_of_schedules"] > 0
    assert report["charged" if mode == "embedded" else "kept_leases"] > 0
    assert report["oldest_loss_ms"] < 2000


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait for what another process does; a guard against hanging, not a measure."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened in time"
        time.sleep(0.005)


def test_a_worker_outlives_its_server(start: Any, tmp_path: Path) -> None:
    """It goes on with what it has in its hands, and what it has done is done once."""
    options = ["--data", str(tmp_path / "jobs.db")]
    server = start(*options)
    options += ["--port", str(server.port)]
    starts: Counter[str] = Counter()
    killed: set[str] = set()  # in a worker's hands when the server died
    running: set[str] = set()
    lock = threading.Lock()

    def processor(job: JobContext) -> int:
        with lock:
            starts[job.id] += 1
            running.add(job.id)
        time.sleep(0.02)
        with lock:
            running.discard(job.id)
        return int(job.data) * 2

    with Queue("q", f"tcp://127.0.0.1:{server.port}") as queue:
        jobs = queue.add_bulk([("double", n, {"durable": True}) for n in range(150)])
        # A renewed lease would be left to its end when a connection breaks; here it never breaks alone.
        with Worker(queue, processor, concurrency=4, handle_signals=False):
            for n in (20, 60, 100):
                until(lambda n=n: len(starts) >= n)
                with lock:
                    killed |= running
                server.kill()
                server = start(*options)
                assert server.port
            results = [job.result(timeout=30) for job in jobs]
        assert results == [2 * n for n in range(150)]
        assert all(job.refresh().attempts_made == 0 for job in jobs)
        counts = queue.counts()
        assert (counts.completed, counts.active, counts.waiting) == (150, 0, 0)
    assert max(starts.values()) <= 2


SUICIDE = """
import os, sys
from qclient import Queue, Worker

def run(job):
    if job.name == "bad":
        with open(sys.argv[2], "a") as file:
            file.write("x")
        os.kill(os.getpid(), 9)

queue = Queue("q", sys.argv[1])
Worker(queue, run, burst=True, handle_signals=False).run()
queue.close()
"""


@pytest.mark.parametrize(("attempts", "allowed"), [(1, 1), (2, 2), (10, 3)])
def test_a_job_that_kills_its_process_ends(program: Any, tmp_path: Path, attempts: int, allowed: int) -> None:
    """An embedded engine dies with its worker; the start was charged. Three stalls are the most."""
    url, starts = f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path / "starts"
    with Queue("q", url) as queue:
        bad = queue.add("bad", {}, attempts=attempts, backoff=0.001, priority=5)
        queue.add_bulk([("good", n) for n in range(20)])
    codes = [program(SUICIDE, url, str(starts)).returncode for _ in range(allowed + 1)]
    assert codes == [-signal.SIGKILL] * allowed + [0]
    assert len(starts.read_text()) == allowed
    with Queue("q", url) as queue:
        counts = queue.counts()
        assert (counts.completed, counts.failed, counts.waiting) == (20, 1, 0)
        (dead,) = queue.dlq.list()
        assert dead.job.id == bad.id
        assert dead.reason == ("stalled" if attempts > 3 else "max_attempts_exceeded")


HOLDER = """
import os, sys, time
from qclient import Queue, Worker

def run(job):
    os.write(1, (job.id + chr(10)).encode())
    time.sleep(60)

Worker("q", run, sys.argv[1], concurrency=4, lock_duration=60).run()
"""


def test_the_jobs_of_a_killed_worker_come_back_at_once(start: Any, tmp_path: Path) -> None:
    server = start("--data", str(tmp_path / "jobs.db"))
    url = f"tcp://127.0.0.1:{server.port}"
    with Queue("q", url) as queue:
        jobs = queue.add_bulk([("n", n) for n in range(50)])
        source = tmp_path / "holder.py"
        source.write_text(HOLDER)
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        holder = subprocess.Popen(
            [sys.executable, str(source), url], env=env, stdout=subprocess.PIPE, text=True
        )
        assert holder.stdout is not None
        held = {holder.stdout.readline().strip() for _ in range(4)}
        holder.kill()
        holder.wait()
        holder.stdout.close()
        order: list[str] = []
        with Worker(queue, lambda job: order.append(job.id), handle_signals=False):
            for job in jobs:
                job.result(timeout=20)  # their leases last longer
        assert Counter(order) == Counter(job.id for job in jobs)
        assert set(order[:4]) == held, "they come back to their old places"
        assert queue.counts().active == 0


def test_cases_c006_active_rows_without_a_live_lease_are_repaired(
    start: Any, line: Any, tmp_path: Path
) -> None:
    """No row is left that only a holder who is gone could move, whatever the file says about its lease."""
    file = tmp_path / "jobs.db"
    server = start("--data", str(file))
    talk = line(server)
    names = ("no lease", "ended last year", "of a far future")
    for name in names:
        talk.call("PUSH", queue="q", name=name, data={}, durable=True, maxAttempts=5)
        assert talk.call("PULL", queue="q", owner="gone", lockTtl=400)["job"]["name"] == name
    talk.call("PUSH", queue="other", name="n", data={}, durable=True)
    server.kill()
    SqliteStore(file).close()  # so that every row lies in its table
    now = int(time.time() * 1000)
    with sqlite3.connect(file) as con:
        rows = con.execute("SELECT seq, record FROM jobs WHERE state = 3 ORDER BY seq").fetchall()
        assert len(rows) == 3
        for (seq, record), (hi, until_ms) in zip(
            rows, [(0, 0), (None, now - 31_536_000_000), (None, 4_102_444_800_000)], strict=True
        ):
            job = read_record(record)
            changed, at = job.plain, len(job.head)
            if hi == 0:
                changed[at : at + 16] = bytes(16)
            struct.pack_into("<q", changed, at + EXPIRES_AT, until_ms)
            con.execute("UPDATE jobs SET record = ? WHERE seq = ?", (bytes(changed), seq))
    con.close()
    talk = line(start("--data", str(file)))
    got = [talk.call("PULL", queue="q", owner="w", timeout=20_000)["job"] for _ in names]
    assert {job["name"] for job in got} == set(names)
    assert all(job["attempts"] == 1 for job in got)


@pytest.mark.parametrize(
    "ends",
    [[signal.SIGTERM], [signal.SIGKILL], [signal.SIGKILL, signal.SIGTERM] * 3],
    ids=["graceful", "killed", "again and again"],
)
def test_long_jobs_outlive_restarts(
    start: Any, line: Any, tmp_path: Path, ends: list[signal.Signals]
) -> None:
    """The handlers begin before the first restart and end after the last, under leases of 30 s.

    After each restart their worker renews what it holds. Nothing is started twice, nothing is charged.
    """
    options = ["--data", str(tmp_path / "jobs.db"), "--shutdown-timeout-ms", "50"]
    server = start(*options)
    options += ["--port", str(server.port)]
    gate = threading.Event()
    starts: Counter[str] = Counter()
    lock = threading.Lock()

    def processor(job: JobContext) -> str:
        with lock:
            starts[job.id] += 1
        assert gate.wait(120)
        if job.name == "fails":
            raise RuntimeError("as planned")
        return f"done {job.data}"

    with Queue("q", f"tcp://127.0.0.1:{server.port}") as queue:
        jobs = queue.add_bulk([("long", n, {"attempts": 1}) for n in range(6)])
        bad = queue.add("fails", 0, attempts=2, backoff=3600)
        worker = Worker(
            queue, processor, concurrency=7, lock_duration=30, heartbeat_interval=0.1, handle_signals=False
        )
        with worker:
            until(lambda: len(starts) == 7)
            # Deliveries are buffered; the commit of this one carries them.
            with Queue("other", f"tcp://127.0.0.1:{server.port}") as other:
                other.add("n", durable=True)
            for end in ends:
                server.signal(end)
                assert server.end()[0] == (0 if end == signal.SIGTERM else -signal.SIGKILL)
                server = start(*options)
                talk = line(server)
                up_ms = time.time() * 1000
                held = [job.id for job in [*jobs, bad]]
                until(
                    lambda talk=talk, up_ms=up_ms, held=held: all(
                        talk.call("GetJob", id=i)["job"]["lastHeartbeat"] > up_ms for i in held
                    )
                )
                assert {talk.call("GetState", id=i)["state"] for i in held} == {"active"}
                # Nobody else gets them.
                assert talk.call("PULLB", queue="q", count=10, owner="other")["jobs"] == []
            gate.set()
            assert [job.result(timeout=30) for job in jobs] == [f"done {n}" for n in range(6)]
            until(lambda: bad.refresh().state == "delayed")
        for job in jobs:
            found = job.refresh()
            assert (found.state, found.attempts_made) == ("completed", 0)
        assert bad.refresh().attempts_made == 1
        stalls = [talk.call("GetJob", id=job.id)["job"]["stallCount"] for job in [*jobs, bad]]
        assert stalls == [0] * 7
    assert set(starts.values()) == {1}
