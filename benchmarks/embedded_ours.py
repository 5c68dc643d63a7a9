"""The workloads of ``js/embedded.mjs`` with our queue in a program of its own."""

from __future__ import annotations

import argparse
import json
import time

from qclient import Queue

BATCH = 1000
WARM = 50


def bulk(queue: Queue, n: int) -> dict[str, float | bool]:
    text = "x" * 100
    queue.add_bulk([("warm", {"i": -1, "text": text})])
    clock = time.perf_counter
    start = clock()
    for first in range(0, n, BATCH):
        queue.add_bulk([("job", {"i": i, "text": text}) for i in range(first, first + BATCH)])
    adding = clock() - start
    ok = queue.counts().waiting == n + 1
    start = clock()
    queue.close()  # the last user of the file: everything is flushed
    return {"ok": ok, "add_bulk": n / adding, "add_bulk_to_disk": n / (adding + clock() - start)}


def single(queue: Queue, n: int, durable: bool) -> dict[str, float | bool]:
    for i in range(WARM):
        queue.add("job", {"i": i}, durable=durable)
    clock = time.perf_counter
    took = [0.0] * n
    start = clock()
    for i in range(n):
        before = clock()
        queue.add("job", {"i": i}, durable=durable)
        took[i] = clock() - before
    seconds = clock() - start
    ok = queue.counts().waiting == n + WARM
    queue.close()
    took.sort()
    return {"ok": ok, "add": n / seconds, "p50_us": took[n // 2] * 1e6, "p99_us": took[n * 99 // 100] * 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--what", choices=("bulk", "buffered", "durable"), required=True)
    parser.add_argument("--n", type=int, required=True)
    parser.add_argument("--file", required=True)
    args = parser.parse_args()
    queue = Queue("bench", f"sqlite:///{args.file}")
    figures = bulk(queue, args.n) if args.what == "bulk" else single(queue, args.n, args.what == "durable")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
