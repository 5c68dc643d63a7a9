"""Covers what jobs hold in memory: bytes a job, by state, from resident memory and from byte counters.

``peakmem_*`` would count the interpreter as well; these take the difference.
"""

from __future__ import annotations

import gc
from pathlib import Path

from qcore.engine.engine import Engine
from qcore.wire.packing import pack

SEED = bytes(range(16))
NOW_MS = 1_800_000_000_000
NOW_NS = 1_000_000_000_000
JOBS = 200_000
TEXT = "x" * 72


def resident_bytes():
    """Return the resident memory of this process (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise KeyError("VmRSS")


def push_all(engine, **options):
    for first in range(0, JOBS, 1000):
        datas = [pack({"id": i, "text": f"{i:08d}{TEXT}"}) for i in range(first, first + 1000)]
        if options:
            for data in datas:
                engine.push("q", data, NOW_MS, **options)
        else:
            engine.push_many("q", datas, NOW_MS)


class Held:
    """How many bytes does a job with about 100 bytes of data hold, payload included?"""

    params = ("waiting", "delayed", "active", "completed")
    param_names = ("state",)

    def track_bytes_per_job(self, state):
        gc.collect()
        before = resident_bytes()
        engine = Engine(SEED, max_completed=JOBS)
        push_all(engine, **({"delay_ms": 60_000} if state == "delayed" else {}))
        if state in ("active", "completed"):
            for _ in range(JOBS // 1000):
                for job_id, token, _ in engine.pull_many("q", 1000, NOW_MS, NOW_NS, lease_ms=30_000):
                    if state == "completed":
                        engine.ack(job_id, NOW_MS, token=token)
        gc.collect()
        return (resident_bytes() - before) / JOBS

    track_bytes_per_job.unit = "bytes/job"


class Structures:
    """How many bytes of it are records and structures, by the engine's own counter?"""

    def track_bytes_per_waiting_job(self):
        engine = Engine(SEED)
        push_all(engine)
        return engine.memory() / JOBS

    track_bytes_per_waiting_job.unit = "bytes/job"

    def track_bytes_per_job_after_a_flood(self):
        """What stays of it when all have been acknowledged and removed."""
        engine = Engine(SEED)
        push_all(engine)
        while jobs := engine.pull_many("q", 1000, NOW_MS, NOW_NS):
            for job_id, _, _ in jobs:
                engine.ack(job_id, NOW_MS, remove=True)
        return engine.memory() / JOBS

    track_bytes_per_job_after_a_flood.unit = "bytes/job"
