"""Run jobs while their workers are killed all the time: none is lost, none confirmed is run again.

    python -m tests.soak.kills --jobs 30000 --every-ms 400 --rounds 3

Each round starts a server on a new data file, adds the jobs and lets worker processes,
half of them raw and half of the package, run them. Every so many ms one of them is
killed with SIGKILL and replaced. Prints one JSON line a round.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.soak.crew import Crew
from tests.soak.line import Line, Server
from tests.soak.records import add_up

QUEUE = "work"
BULK = 500
#: What a job takes at most: long enough that each kill meets some.
WORK_MS = 50


def run(
    folder: Path, jobs: int, every_ms: int, seed: int, crew_size: int = 4, most_kills: int = 1_000_000
) -> dict[str, object]:
    """One round in an empty folder; raises AssertionError when a job was lost or done twice.

    Only who has started a job is killed, so that a slow machine comes to an end as well.
    """
    rng = random.Random(seed)
    started = time.monotonic()
    server = Server(folder / "jobs.db", "--log-level", "warning")
    crew = Crew(server.port, folder)
    try:
        line = Line(server.port)
        # A job that many kills meet would become a dead letter else, as the manual says.
        line.call("SetStallConfig", queue=QUEUE, config={"maxStalls": 0})
        for i in range(crew_size):
            crew.hire("client" if i % 2 else "raw", QUEUE)
        added = 0
        while True:
            until = time.monotonic() + every_ms / 1000
            # Added while the workers are killed, so that there is something of everything.
            while added < jobs and time.monotonic() < until:
                n = min(BULK, jobs - added)
                batch = [{"name": "n", "data": {"n": added + i, "ms": WORK_MS}} for i in range(n)]
                line.call("PUSHB", queue=QUEUE, jobs=batch, durable=rng.random() < 0.5)
                added += n
                if _left(line) > 4 * BULK:
                    break
            if added == jobs and not _left(line):
                break
            time.sleep(max(0.0, until - time.monotonic()))
            busy = crew.busy()
            if busy and crew.n_killed < most_kills:
                crew.kill(rng.choice(busy))
        crew.close()
        totals = line.call("Metrics")["metrics"]
        counts = line.call("GetJobCounts", queue=QUEUE)["counts"]
        line.close()
        code = server.stop()
    finally:
        crew.abandon()
        server.kill()
    sums, per_job = add_up(crew.lives)
    assert not sums.problems, "\n".join(sums.problems[:20])
    assert sums.jobs == jobs == added, f"{added} added, {sums.jobs} were started"
    assert int(per_job["done"].sum()) + sums.ended_unseen == jobs, sums
    assert totals["totalCompleted"] == jobs, totals
    assert totals["totalFailed"] == counts["failed"] == 0, counts
    assert code == 0, f"the server ended with exit code {code}"
    return {
        "jobs": jobs,
        "kills": crew.n_killed,
        "starts": sums.starts,
        "run_again": sums.starts - jobs,
        "most_starts_of_a_job": int(per_job["starts"].max()),
        "confirmed": sums.done,
        "applied_but_not_heard_of": sums.ended_unseen,
        "lost": 0,
        "done_twice": 0,
        "seconds": round(time.monotonic() - started, 1),
        "seed": seed,
    }


def _left(line: Line) -> int:
    counts = line.call("GetJobCounts", queue=QUEUE)["counts"]
    return int(counts["waiting"] + counts["active"] + counts["delayed"])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=30_000)
    parser.add_argument("--every-ms", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=None, help="of the kills; printed")
    parser.add_argument("--folder", type=Path, help="where the files go; default a temporary one")
    options = parser.parse_args(argv)
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    base: Path = options.folder or Path(tempfile.mkdtemp(prefix="qcore-kills-"))
    for n in range(options.rounds):
        folder = base / f"round-{n + 1}"
        folder.mkdir(parents=True)
        try:
            print(json.dumps(run(folder, options.jobs, options.every_ms, seed + n)), flush=True)
        except BaseException:
            print(f"seed {seed + n}; the files are in {folder}", file=sys.stderr)
            raise
        shutil.rmtree(folder)
    if options.folder is None:
        shutil.rmtree(base)
    return 0


if __name__ == "__main__":
    sys.exit(main())
