"""One worker process of a soak.

    python -m tests.soak.worker raw PORT RECORDS QUEUE...
    python -m tests.soak.worker client PORT RECORDS QUEUE

``raw`` speaks the protocol and takes batches from its queues in turn; ``client`` is the
worker of the package. A job says in its data who it is (``n``), how often it is to fail
(``fails``) and how long it takes at most (``ms``); jobs of schedules are known by their
id. SIGTERM ends it gracefully.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from qclient import Worker
from tests.soak.line import Line
from tests.soak.records import DONE, FAILED, REFUSED, START, RecordFile

LEASE_MS = 60_000
BATCH = 20


def number(data: Any, job_id: str) -> int:
    """The number of a job: its own, or a negative one for the job of a schedule."""
    if isinstance(data, dict) and "n" in data:
        return int(data["n"])
    return -(uuid.uuid5(uuid.NAMESPACE_OID, job_id).int >> 66)


def _ms(data: Any) -> float:
    return float((data or {}).get("ms", 4))


def run_raw(port: int, records: RecordFile, queues: list[str]) -> None:
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    line, rng = Line(port), random.Random()
    while not ended:
        for queue in queues:
            wait_ms = 200 if len(queues) > 1 else 500
            reply = line.call(
                "PULLB", queue=queue, count=BATCH, timeout=wait_ms, owner="soak", lockTtl=LEASE_MS
            )
            jobs = reply["jobs"]
            numbers = [number(job.get("data"), job["id"]) for job in jobs]
            records.write(START, numbers)
            if jobs:
                time.sleep(rng.random() * max(_ms(job.get("data")) for job in jobs) / 1000)
                _report(line, records, jobs, reply["tokens"], numbers)
            if ended:
                break
    line.close()


def _report(line: Line, records: RecordFile, jobs: list[Any], tokens: list[str], numbers: list[int]) -> None:
    good = []
    for i, job in enumerate(jobs):
        if job["attempts"] < (job.get("data") or {}).get("fails", 0):
            line.call("FAIL", id=job["id"], token=tokens[i], error="as planned")
            records.write(FAILED, [numbers[i]])
        else:
            good.append(i)
    if len(good) == 1:
        i = good[0]
        line.call("ACK", id=jobs[i]["id"], token=tokens[i], result={"of": numbers[i]})
        records.write(DONE, [numbers[i]])
    elif good:
        reply = line.call(
            "ACKB",
            ids=[jobs[i]["id"] for i in good],
            tokens=[tokens[i] for i in good],
            results=[{"of": numbers[i]} for i in good],
        )
        refused = {good[entry["index"]] for entry in reply.get("data", {}).get("refused", ())}
        records.write(DONE, [numbers[i] for i in good if i not in refused])
        records.write(REFUSED, [numbers[i] for i in refused])


def run_client(port: int, records: RecordFile, queue: str) -> None:
    async def work(job: Any) -> dict[str, int]:
        n = number(job.data, job.id)
        records.write(START, [n])
        await asyncio.sleep(random.random() * _ms(job.data) / 1000)
        if job.attempts_made < (job.data or {}).get("fails", 0):
            raise RuntimeError("as planned")
        return {"of": n}

    worker = Worker(queue, work, f"tcp://127.0.0.1:{port}", concurrency=BATCH, lock_duration=LEASE_MS / 1000)
    worker.on("completed", lambda job, result: records.write(DONE, [number(job.data, job.id)]))
    worker.on("failed", lambda job, error: records.write(FAILED, [number(job.data, job.id)]))
    worker.run()


def main(argv: list[str]) -> int:
    kind, port, path, *queues = argv
    records = RecordFile(Path(path))
    if kind == "client":
        run_client(int(port), records, queues[0])
    else:
        run_raw(int(port), records, queues)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
