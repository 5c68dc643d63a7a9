"""The workloads of ``js/engine.mjs``, ``million.mjs`` and ``memory.mjs`` on our engine.

``--payload values`` packs and unpacks inside the timed parts, ``--payload packed``
gives the engine bytes that were packed before and checks what came back after.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from pathlib import Path
from typing import Any

import engine_adapter

from qcore.wire.packing import pack, unpack

QUEUE = "bench"
WARM = 100
Figures = dict[str, float]


class Ticks:
    """Ticks off the numbers 0..n-1."""

    def __init__(self, n: int) -> None:
        self.seen = bytearray(n)
        self.wrong = 0

    def tick(self, i: int) -> None:
        if self.seen[i]:
            self.wrong += 1
        self.seen[i] = 1

    @property
    def complete(self) -> bool:
        return not self.wrong and sum(self.seen) == len(self.seen)


def status_mib(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    raise KeyError(name)


def one_by_one(engine: engine_adapter.Packed, n: int, packed: bool) -> tuple[bool, Figures]:
    figures: Figures = {}
    clock = time.perf_counter
    total = n + WARM
    push, ack = engine.push, engine.ack
    pull: Any = engine.pull  # there is always a job
    payloads = [{"id": i, "payload": "benchmark-data"} for i in range(total)]
    big: list[Any] = [pack(value) for value in payloads] if packed else payloads
    small: list[Any] = [pack({"id": i}) if packed else {"id": i} for i in range(total)]

    for data in big[:WARM]:
        push(QUEUE, data)
    start = clock()
    for data in big[WARM:]:
        push(QUEUE, data)
    figures["push"] = n / (clock() - start)
    ok = engine.waiting(QUEUE) == total
    engine.drain(QUEUE)

    for data in small:
        push(QUEUE, data)
    pulled = [pull(QUEUE)[0] for _ in range(WARM)]
    start = clock()
    pulled += [pull(QUEUE)[0] for _ in range(n)]
    figures["pull"] = n / (clock() - start)
    ok &= len(set(pulled)) == total

    for job_id in pulled[:WARM]:
        ack(job_id)
    start = clock()
    for job_id in pulled[WARM:]:
        ack(job_id)
    figures["ack"] = n / (clock() - start)

    start = clock()
    for data in small[WARM:]:
        push(QUEUE, data)
        ack(pull(QUEUE)[0])
    figures["full_cycle"] = n / (clock() - start)
    ok &= engine.waiting(QUEUE) == 0

    batch = small[:1000]
    batches = -(-n // 1000)
    start = clock()
    for _ in range(batches):
        engine.push_batch(QUEUE, batch)
    figures["push_batch_1000"] = batches * 1000 / (clock() - start)
    ok &= engine.waiting(QUEUE) == batches * 1000
    return ok, figures


def million(engine: engine_adapter.Packed, n: int, packed: bool) -> tuple[bool, Figures]:
    queues, into, out = 16, 5000, 500
    share = -(-n // queues)
    names = [f"queue-{q}" for q in range(queues)]
    ready = [pack({"index": i}) for i in range(n)] if packed else []
    gc.collect()
    before = status_mib("VmRSS")

    clock = time.perf_counter
    t0 = clock()
    for first in range(0, share, into):  # the queues take turns, as the concurrent producers do
        for q, name in enumerate(names):
            a, b = q * share + first, min(n, (q + 1) * share, q * share + first + into)
            engine.push_batch(name, ready[a:b] if packed else [{"index": i} for i in range(a, b)])
    t1 = clock()
    ok = sum(engine.waiting(name) for name in names) == n
    waiting_mib = status_mib("VmRSS") - before

    pulled, completed = Ticks(n), Ticks(n)
    seen: list[bytes] = []
    told: list[bytes] = []
    engine.on_completed(told.append if packed else lambda result: completed.tick(result["index"]))
    left = list(names)
    while left:
        for name in list(left):
            jobs = engine.pull_batch(name, out)
            if not jobs:
                left.remove(name)
                continue
            if packed:
                seen += [data for _, data in jobs]
            else:
                for _, data in jobs:
                    pulled.tick(data["index"])
            engine.ack_batch(jobs)
    t2 = clock()
    for data in seen:
        pulled.tick(unpack(data)["index"])
    for data in told:
        completed.tick(unpack(data)["index"])
    return ok and pulled.complete and completed.complete, {
        "push": n / (t1 - t0),
        "process": n / (t2 - t1),
        "overall": n / (t2 - t0),
        "waiting_mib": waiting_mib,
        "peak_mib": status_mib("VmHWM"),
    }


def memory(engine: engine_adapter.Packed, n: int, packed: bool) -> tuple[bool, Figures]:
    filler = "x" * 72
    gc.collect()
    before = status_mib("VmRSS")
    for first in range(0, n, 1000):
        values = [{"id": i, "text": f"{i:08d}{filler}"} for i in range(first, first + 1000)]
        engine.push_batch(QUEUE, [pack(v) for v in values] if packed else values)
    gc.collect()
    held = status_mib("VmRSS") - before
    return engine.waiting(QUEUE) == n, {
        "bytes_per_job": held * 1048576 / n,
        "held_mib": held,
        "peak_mib": status_mib("VmHWM"),
    }


WORKLOADS = {"one-by-one": one_by_one, "million": million, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--what", choices=WORKLOADS, required=True)
    parser.add_argument("--n", type=int, required=True)
    parser.add_argument("--payload", choices=("values", "packed"), default="values")
    args = parser.parse_args()
    packed = args.payload == "packed"
    engine = engine_adapter.make_packed() if packed else engine_adapter.make()
    ok, figures = WORKLOADS[args.what](engine, args.n, packed)
    engine.close()
    print(json.dumps({"ok": ok, **figures}))


if __name__ == "__main__":
    main()
