"""A drain: jobs that are there already, run by one worker process."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from typing import Any

from harness import HANG_S, HERE, SampleFailed, Server, Setup, checked, run_json, server, stop

CONCURRENCY = 50

_SERVERS = {"ours": "ours", "bunqueue": "bunqueue", "bunqueue on ours": "ours", "bullmq": "redis"}


def _worker(setup: Setup, who: str) -> list[str]:
    if who == "ours":
        return [sys.executable, str(HERE / "drain_worker.py")]
    if who.startswith("bunqueue"):
        return [setup.bun, str(HERE / "js" / "worker.mjs")]
    return ["node", str(HERE / "js" / "bullmq_worker.mjs")]


def _preload(setup: Setup, who: str, port: int, n: int) -> None:
    script = str(HERE / "js" / ("bullmq_preload.mjs" if who == "bullmq" else "preload.mjs"))
    runtime = "node" if who == "bullmq" else setup.bun
    checked(run_json(setup, [runtime, script, f"--port={port}", f"--n={n}"]))


def drain(setup: Setup, who: str, disk: bool, n: int, result: str) -> dict[str, float]:
    """Rate from the start signal to the last completion, and what the server used meanwhile.

    The jobs are added by the peer's own client, ours by bunqueue's as well: both servers
    of that protocol hold the same jobs.
    """
    with server(setup, _SERVERS[who], disk) as srv:
        _preload(setup, who, srv.port, n)
        if disk:
            srv.settle()
        command = [
            *_worker(setup, who),
            f"--port={srv.port}",
            f"--concurrency={CONCURRENCY}",
            f"--result={result}",
        ]
        worker = subprocess.Popen(
            command,
            env=setup.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            return _timed(srv, worker, n)
        finally:
            stop(worker, 3)


def _timed(srv: Server, worker: subprocess.Popen[bytes], n: int) -> dict[str, float]:
    assert worker.stdin is not None
    assert worker.stdout is not None
    out = worker.stdout.fileno()
    lines = _Lines(out)
    if lines.next() != "ready":
        raise SampleFailed("the worker did not say that it is ready")
    srv.mark()
    worker.stdin.write(b"go\n")
    worker.stdin.flush()
    done = 0
    while done < n:
        word, _, number = lines.next().partition(" ")
        if word == "done":
            done = int(number)
    used = srv.used(n)
    worker.stdin.write(b"stop\n")
    worker.stdin.flush()
    while not (line := lines.next()).startswith("{"):
        pass
    report: dict[str, Any] = json.loads(line)
    if sorted(report["ran"]) != list(range(n)):
        raise SampleFailed(f"{len(report['ran'])} runs, {len(set(report['ran']))} different jobs of {n}")
    return {
        "drain": n / (report["last"] - report["started"]) * 1000,
        "worker_cpu_us": report["cpu_ms"] / n * 1000,
        **used,
    }


class _Lines:
    """Lines of a pipe, with a guard against a writer that hangs."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.tail = b""
        self.deadline = time.monotonic() + HANG_S

    def next(self) -> str:
        while b"\n" not in self.tail:
            left = self.deadline - time.monotonic()
            if left <= 0 or not select.select([self.fd], [], [], left)[0]:
                raise SampleFailed("the worker hangs")
            chunk = os.read(self.fd, 1 << 20)
            if not chunk:
                raise SampleFailed("the worker ended")
            self.tail += chunk
        line, _, self.tail = self.tail.partition(b"\n")
        return line.decode()
