"""Whether the files of a broker stay small, however much goes through them (C030, C032).

``python -m tests.store.soak --jobs 2000000`` adds, pulls and acknowledges that many jobs in
batches, some with priorities and some kept, and looks at the sizes of the data file and its
write-ahead log meanwhile. One line of JSON says what they were; it fails when a limit is passed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from qcore.broker.embedded import EmbeddedEngine
from tests.crash.load import LocalCaller

#: What the manual promises of the write-ahead log.
WAL_MIB = 64.0
BATCH = 500


class Soak:
    """One file and the sizes that were seen."""

    def __init__(self, path: Path, seed: int = 1) -> None:
        self.path = path
        self.engine = EmbeddedEngine(str(path))
        self._caller = LocalCaller(self.engine)
        self.rng = random.Random(seed)
        self.wal: list[float] = []
        self.file: list[float] = []
        self.done = 0
        self._pages = 0

    def call(self, cmd: str, **fields: object) -> dict[str, Any]:
        reply = self._caller.call({"cmd": cmd, **fields})
        assert reply["ok"], reply
        return reply

    def look(self) -> None:
        self.wal.append(os.stat(f"{self.path}-wal").st_size / 2**20)
        self.file.append(os.stat(self.path).st_size / 2**20)

    def batch(self, size: int = 100, **options: object) -> None:
        """Add, pull and acknowledge one batch; a fifth of it is added with priorities."""
        jobs = [
            {
                "name": "n",
                "data": {"i": i, "text": "x" * size},
                **options,
                **({"priority": self.rng.randrange(1000)} if i % 5 == 0 else {}),
            }
            for i in range(BATCH)
        ]
        self.call("PUSHB", queue="soak", jobs=jobs)
        pulled = self.call("PULLB", queue="soak", count=BATCH, owner="w")
        ids = [job["id"] for job in pulled["jobs"]]
        assert len(ids) == BATCH
        self.call("ACKB", ids=ids, tokens=pulled["tokens"])
        self.done += BATCH
        self.look()

    def page(self) -> None:
        """The next page of a slow walk through what is kept."""
        jobs = self.call("GetJobs", queue="soak", state="completed", limit=20, offset=self._pages)["jobs"]
        self._pages = self._pages + 20 if jobs else 0

    def run(self, jobs: int) -> None:
        """The plain part: most jobs are removed when they are done, some are kept for a while."""
        end = self.done + jobs
        while self.done < end:
            # Kept: one batch in ten, the newest 2,000 of them.
            keep: object = 2000 if self.done // BATCH % 10 == 0 else True
            self.batch(removeOnComplete=keep)
            if self.done % (BATCH * 4) == 0:
                self.page()

    def close(self) -> None:
        self.engine.close()

    def report(self) -> dict[str, object]:
        tenth = max(self.file[: max(1, len(self.file) // 10)])
        return {
            "jobs": self.done,
            "wal_max_mib": round(max(self.wal), 1),
            "wal_end_mib": round(self.wal[-1], 1),
            "file_after_a_tenth_mib": round(tenth, 1),
            "file_max_mib": round(max(self.file), 1),
            "file_end_mib": round(self.file[-1], 1),
        }


def pin(path: Path) -> sqlite3.Connection:
    """A foreign reader that holds on to what it sees."""
    con = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
    con.execute("BEGIN")
    con.execute("SELECT count(*) FROM names").fetchone()
    return con


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--jobs", type=int, default=2_000_000)
    parser.add_argument("--folder", type=Path, help="where the file goes; default a temporary folder")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        soak = Soak(Path(folder) / "jobs.db")
        began = time.monotonic()
        soak.run(options.jobs)
        report = soak.report() | {"seconds": round(time.monotonic() - began, 1)}
        soak.close()
        report["file_closed_mib"] = round(os.stat(soak.path).st_size / 2**20, 1)
    print(json.dumps(report))
    return 0 if max(soak.wal) < WAL_MIB and max(soak.file) < 1.1 * report["file_after_a_tenth_mib"] else 1  # type: ignore[operator]


if __name__ == "__main__":
    sys.exit(main())
