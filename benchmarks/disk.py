"""What one server of ours does on disk: rates, bytes written, tails beside it, recovery.

    python benchmarks/disk.py --runs 3 --jobs 100000 --recover 1000000

Jobs are drained by the C client (PULLB and ACKB of 100 on 4 connections) in arrival order
and with random priorities, in turns, while another process sends one Ping after the other.
Bytes are those that the server handed to write calls, counted until it has settled. The last
lines are medians, with the smallest and the largest sample.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgpack
from harness import Setup, checked, prepare, run_json, server

from qcore.broker import open_broker
from qcore.broker.opening import close_broker

TEXT = "x" * 100


class Line:
    """A connection that sends one request and waits for its reply."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")

    def call(self, cmd: str, **fields: object) -> dict[str, Any]:
        body: bytes = msgpack.packb({"cmd": cmd, "reqId": "r", **fields})
        self._socket.sendall(len(body).to_bytes(4, "big") + body)
        reply: dict[str, Any] = msgpack.unpackb(
            self._stream.read(int.from_bytes(self._stream.read(4), "big"))
        )
        if not reply["ok"]:
            raise SystemExit(str(reply))
        return reply


def preload(port: int, n: int, order: str) -> None:
    line, rng = Line(port), random.Random(7)
    for first in range(0, n, 1000):
        jobs: list[dict[str, object]] = [
            {"name": "job", "data": {"i": i, "text": TEXT}} for i in range(first, min(n, first + 1000))
        ]
        if order == "random":
            for job in jobs:
                job["priority"] = rng.randrange(1_000_000)
        line.call("PUSHB", queue="bench", jobs=jobs)
    line.call("PUSH", queue="other", name="n", data=1, durable=True)  # what was buffered is on disk now


def pings(port: int) -> int:
    """The child: one Ping after the other until standard input ends."""
    line, took = Line(port), []
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    while not stop.is_set():
        began = time.perf_counter()
        line.call("Ping")
        took.append(time.perf_counter() - began)
    print(json.dumps(_tail("ping", took)))
    return 0


def _tail(name: str, took: list[float]) -> dict[str, float]:
    took.sort()
    return {f"{name}_p99_ms": took[len(took) * 99 // 100] * 1e3, f"{name}_max_ms": took[-1] * 1e3}


class Beside:
    """A child that pings while the block runs."""

    def __init__(self, port: int) -> None:
        self._command = [sys.executable, __file__, "--pings", str(port)]
        self.figures: dict[str, float] = {}

    def __enter__(self) -> Beside:
        self._child = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        out, _ = self._child.communicate("")
        self.figures = json.loads(out.splitlines()[-1])


def drain(setup: Setup, n: int, order: str, results: bool) -> dict[str, float]:
    with server(setup, "ours", True) as srv:
        preload(srv.port, n, order)
        srv.settle()
        before = srv.written_bytes()
        command = [str(setup.tools / "rawload"), str(srv.port), "drain", str(n), "100", "4"]
        with Beside(srv.port) as beside:
            found = checked(run_json(setup, [*command, *(["results"] if results else [])]))
        srv.settle()
        return {
            "jobs_per_s": found["rate"],
            "bytes_per_job": (srv.written_bytes() - before) / n,
            **beside.figures,
        }


def flood(setup: Setup, n: int) -> dict[str, float]:
    """Bulk adds of 1,000 one after the other, with pings beside them."""
    with server(setup, "ours", True) as srv:
        line, took = Line(srv.port), []
        jobs = [{"name": "job", "data": {"i": i, "text": TEXT}} for i in range(1000)]
        before = srv.written_bytes()
        with Beside(srv.port) as beside:
            for _ in range(n // 1000):
                began = time.perf_counter()
                line.call("PUSHB", queue="bench", jobs=jobs)
                took.append(time.perf_counter() - began)
        srv.settle()
        written = (srv.written_bytes() - before) / n
        return {
            "jobs_per_s": n / sum(took),
            "bytes_per_job": written,
            **_tail("pushb", took),
            **beside.figures,
        }


def recover(path: str) -> int:
    """The child: open a data file, and say how fast and in how much memory."""
    before = _memory()
    began, used = time.perf_counter(), time.process_time()
    broker = open_broker(path, mode="server")
    took, used = time.perf_counter() - began, time.process_time() - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    final = _memory()
    assert broker.recovery is not None
    jobs = broker.recovery.jobs
    close_broker(broker)
    found = {"jobs_per_s": jobs / took, "jobs_per_cpu_s": jobs / used}
    print(json.dumps(found | {"peak_by_final": (peak - before) / (final - before), "final_mib": final}))
    return 0


def _memory() -> float:
    fields = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line
    )
    return int(fields["VmRSS"].split()[0]) / 1024


def recovered(setup: Setup, file: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--open", str(file)]
    return {k: float(v) for k, v in run_json(setup, command).items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--recover", type=int, default=1_000_000, help="jobs of the recovery; 0: none")
    parser.add_argument("--scratch", type=Path, help="a folder on the disk to measure")
    parser.add_argument("--pings", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--open", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.pings:
        return pings(options.pings)
    if options.open:
        return recover(options.open)
    setup = prepare(None, options.scratch)
    samples: dict[str, list[dict[str, float]]] = {}

    def note(name: str, figures: dict[str, float]) -> None:
        samples.setdefault(name, []).append(figures)
        print(name, json.dumps({k: round(v, 2) for k, v in figures.items()}), flush=True)

    for _ in range(options.runs):
        for results in (False, True):
            for order in ("arrival", "random"):
                name = f"drain, {order} order{', results' if results else ''}"
                note(name, drain(setup, options.jobs, order, results))
        note("bulk adds", flood(setup, options.jobs * 3))
    for order in ("arrival", "random") if options.recover else ():
        with setup.folder() as folder:
            file = folder / "queue.db"
            with server(setup, "ours", True) as srv:
                preload(srv.port, options.recover, order)
                srv.settle()
                os.link(srv.folder / "queue.db", file)
                srv.process.terminate()
                srv.process.wait()
                os.unlink(srv.folder / "queue.db")
            for _ in range(options.runs):
                note(f"recovery, {order} order", recovered(setup, file))
    print(f"load average {os.getloadavg()}")
    for name, found in samples.items():
        print(name)
        for key in found[0]:
            values = [figures[key] for figures in found]
            print(
                f"    {key:16} {statistics.median(values):12,.2f} ({min(values):,.2f} to {max(values):,.2f})"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
