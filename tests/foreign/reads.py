"""Count the reads of TypeScript workers that drain a queue of 10,000 no-op jobs.

    python tests/foreign/reads.py [--jobs N] [--workers 1 4 8]

For each number of worker processes, once with their subscription to every event, as the
installed release of the client makes it, and once with one to ``stalled`` alone, as later
releases do; against our server and, with ``--reference``, against the reference's. Needs
what ``make foreign`` installs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import bunqueue
from differential import server

NPM = Path(__file__).parent / "npm"
BUN = NPM / "node_modules" / ".bin" / "bun"


class WorkerProcess:
    def __init__(self, port: int, queue: str, events: str) -> None:
        command = [str(BUN), str(NPM / "reads_worker.ts"), str(port), queue, events]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.done = 0

    def line(self) -> dict[str, int]:
        assert self.process.stdout is not None
        found: dict[str, int] = json.loads(self.process.stdout.readline())
        return found

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()


def drain(port: int, n_jobs: int, n_workers: int, events: str) -> tuple[int, int]:
    """Reads and bytes of all workers together."""
    queue = f"reads-{events}-{n_workers}"
    with bunqueue.Queue(queue, host="127.0.0.1", port=port) as producer:
        for begin in range(0, n_jobs, 1000):
            jobs = [{"name": "job", "data": {"i": begin + i}} for i in range(min(1000, n_jobs - begin))]
            producer.add_bulk(jobs)
    workers = [WorkerProcess(port, queue, events) for _ in range(n_workers)]
    try:
        for worker in workers:
            worker.line()
        changed = threading.Condition()
        finals: list[dict[str, int]] = []

        def follow(worker: WorkerProcess) -> None:
            while True:
                line = worker.line()
                with changed:
                    if "reads" in line:
                        finals.append(line)
                        return
                    worker.done = line["done"]
                    changed.notify()

        threads = [threading.Thread(target=follow, args=(worker,)) for worker in workers]
        for worker, thread in zip(workers, threads, strict=True):
            thread.start()
            worker.tell()
        with changed:
            assert changed.wait_for(lambda: sum(w.done for w in workers) >= n_jobs, 120)
        for worker, thread in zip(workers, threads, strict=True):
            worker.tell()
            thread.join(60)
        return sum(f["reads"] for f in finals), sum(f["bytes"] for f in finals)
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--reference", action="store_true")
    args = parser.parse_args()
    servers = {"ours": [sys.executable, "-m", "qcore.server"]}
    if args.reference:
        main_file = NPM / "node_modules" / "bunqueue" / "dist" / "main.js"
        servers["reference"] = [str(BUN), str(main_file)]
    for name, command in servers.items():
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            port = stack.enter_context(server(command, Path(folder) / "data", False))
            for events in ("all", "stalled"):
                for n in args.workers:
                    reads, size = drain(port, args.jobs, n, events)
                    print(
                        f"{name}, events {events}, {n} workers: {reads} reads, {size / 1024:.0f} KiB",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
