"""Jobs that kill their workers, workers that die and workers that hang, at a real server (C004, C005)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from qclient import Queue, Worker

ROOT = Path(__file__).parents[2]

WORKER = """
import os, signal, sys
from qclient import Queue, Worker

def run(job):
    with open(sys.argv[2], "a") as starts:
        starts.write(job.id + chr(10))
    if job.name == "killer":
        os.kill(os.getpid(), signal.SIGKILL)

queue = Queue("q", sys.argv[1])
Worker(queue, run, concurrency=1, burst=True, handle_signals=False).run()
queue.close()
"""


@pytest.mark.parametrize(("attempts", "allowed"), [(1, 3), (2, 3), (10, 3)])
def test_cases_c004_a_job_that_kills_its_worker_ends(
    start: Any, program: Any, tmp_path: Path, attempts: int, allowed: int
) -> None:
    """It is started at most max(attempts, maxStalls) times; its neighbours complete."""
    server = start("--data", str(tmp_path / "jobs.db"))
    url, starts = f"tcp://127.0.0.1:{server.port}", tmp_path / "starts"
    with Queue("q", url) as queue:
        killer = queue.add("killer", {}, attempts=attempts, backoff=0.001, priority=1)
        others = queue.add_bulk([("other", n) for n in range(20)])
        ends = []
        for _ in range(10):
            ends.append(program(WORKER, url, str(starts), timeout=60).returncode)
        counted = Counter(starts.read_text().split())
        assert ends == [-signal.SIGKILL] * allowed + [0] * (10 - allowed)
        assert counted == {killer.id: allowed} | {other.id: 1 for other in others}
        assert killer.refresh().state == "failed"
        counts = queue.counts()
        assert (counts.completed, counts.failed, counts.active, counts.waiting) == (20, 1, 0, 0)


STALLER = """
import os, sys, time
from qclient import Worker

def run(job):
    os.write(1, (job.id + chr(10)).encode())
    time.sleep(600)

Worker("q", run, sys.argv[1], concurrency=2, lock_duration=1).run()
"""


def test_cases_c005_jobs_of_a_worker_that_hangs_come_back_when_their_leases_end(
    start: Any, tmp_path: Path
) -> None:
    server = start("--data", str(tmp_path / "jobs.db"))
    url = f"tcp://127.0.0.1:{server.port}"
    source = tmp_path / "staller.py"
    source.write_text(STALLER)
    with Queue("q", url) as queue:
        jobs = queue.add_bulk([("n", n) for n in range(50)])
        hung = subprocess.Popen(
            [sys.executable, str(source), url],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert hung.stdout is not None
            held = {hung.stdout.readline().strip() for _ in range(2)}
            os.kill(hung.pid, signal.SIGSTOP)  # its socket stays open
            order: list[str] = []
            began = time.monotonic()
            with Worker(queue, lambda job: order.append(job.id), concurrency=4, handle_signals=False):
                for job in jobs:
                    job.result(timeout=30)
            assert Counter(order) == Counter(job.id for job in jobs)
            assert time.monotonic() - began < 30  # ten times a lease and a stall interval
            assert queue.counts().active == 0
            assert {job.id for job in jobs if job.refresh().attempts_made} == held
        finally:
            hung.kill()
            hung.communicate()
