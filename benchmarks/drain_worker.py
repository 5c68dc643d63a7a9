"""One worker process of a drain of no-op jobs.

Says ``ready``, starts on a line of input, writes ``done N`` every 10 ms while N
grows, and on the next line ends with one JSON object: when it started and
completed its last job (ms since the epoch), how many, its processor time and
the numbers of the jobs it ran.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time

from qclient import JobContext, Worker
from qclient.codec import NIL, Encoded

RESULTS = {"none": None, "null": Encoded(NIL), "object": {"ok": True}}


def cpu_ms() -> float:
    t = os.times()
    return (t.user + t.system) * 1000


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--concurrency", type=int, default=50)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--queue", default="bench")
    parser.add_argument("--result", choices=RESULTS, default="none")
    parser.add_argument("--profile", default="", help="write a cProfile of the loop's thread to this file")
    args = parser.parse_args()

    ran: list[int] = []
    result = RESULTS[args.result]

    async def processor(job: JobContext) -> object:
        ran.append(job.data["i"])
        return result

    done = 0
    last = 0

    def completed(job: JobContext, value: object) -> None:
        nonlocal done, last
        done += 1
        last = time.time_ns()

    worker = Worker(
        args.queue,
        processor,
        f"tcp://127.0.0.1:{args.port}",
        concurrency=args.concurrency,
        batch_size=args.batch,
        heartbeat_interval=5,
        handle_signals=False,
    )
    worker.on("completed", completed)
    worker.on("error", lambda exc, context: None)
    if args.profile:
        import cProfile

        profile = cProfile.Profile()
        inner = worker._thread_main

        def profiled() -> None:
            profile.runcall(inner)
            profile.dump_stats(args.profile)

        worker._thread_main = profiled  # type: ignore[method-assign]
    say("ready")
    sys.stdin.readline()
    cpu0 = cpu_ms()
    started = time.time_ns()
    worker.start()
    stop = threading.Event()

    def tell() -> None:
        said = 0
        while not stop.wait(0.01):
            if done != said:
                said = done
                say(f"done {said}")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    sys.stdin.readline()
    stop.set()
    teller.join()
    report = {
        "started": started / 1e6,
        "last": last / 1e6,
        "done": done,
        "cpu_ms": cpu_ms() - cpu0,
        "ran": ran,
        "stats": str(worker.stats()),
    }
    say(json.dumps(report))
    worker.close(force=True)


if __name__ == "__main__":
    main()
