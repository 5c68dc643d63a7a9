"""What workers write down about the jobs they run, and what must hold of all of it together.

Every worker process has a file of records of fixed size, on the machine's monotonic
clock. A start is written before the job runs, an end after its reply came. What a killed
process did not write down anymore stays open: it may have been applied or not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]

RECORD = np.dtype([("job", "<i8"), ("at_ns", "<i8"), ("what", "<i8")])
START, DONE, FAILED, REFUSED = range(4)


class RecordFile:
    """Appends records; whole ones, also when the process is killed."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)

    def write(self, what: int, jobs: Iterable[int]) -> None:
        now = time.monotonic_ns()
        rows = np.array([(job, now, what) for job in jobs], dtype=RECORD)
        if rows.size:
            os.write(self._fd, rows.tobytes())


@dataclass(frozen=True, slots=True)
class Life:
    """One worker process: its file, and when it was killed, if it was."""

    path: Path
    killed_ns: int = 0


@dataclass(slots=True)
class Sums:
    """What all records together say."""

    jobs: int = 0
    starts: int = 0
    done: int = 0
    failed: int = 0
    refused: int = 0
    #: Starts without an end, of processes that were killed.
    cut_off: int = 0
    #: Of those, how many were the last of their job: the end was applied, its reply lost.
    ended_unseen: int = 0
    problems: list[str] = field(default_factory=list)


def read(life: Life) -> NDArray[np.void]:
    raw = life.path.read_bytes() if life.path.exists() else b""
    return np.frombuffer(raw[: len(raw) // RECORD.itemsize * RECORD.itemsize], dtype=RECORD)


def add_up(
    lives: Iterable[Life], may_fail: Callable[[Ints], NDArray[np.bool_]] = lambda job: job != job
) -> tuple[Sums, dict[str, Ints]]:
    """Check all records, and give figures for each job: ``job``, ``starts``, ``done``, ``failed``, ``open``.

    A job that was confirmed as done starts never again. A job whose holder was killed
    starts after the kill only, unless it ``may_fail``: then its end can have been a
    failure that was not written down.
    """
    sums = Sums()
    runs: list[Ints] = []  # job, start, end, how; one row for each start
    for life in lives:
        rows = read(life)
        mine, problems = _runs(rows, life)
        sums.problems += problems
        sums.refused += int(np.count_nonzero(rows["what"] == REFUSED))
        runs.append(mine)
    every = np.concatenate(runs) if runs else np.empty((0, 4), np.int64)
    every = every[np.lexsort((every[:, 1], every[:, 0]))]
    job, start, end, how = every.T
    again = job[1:] == job[:-1]
    sums.problems += [
        f"job {job[i]} started at {start[i + 1]} although it was done at {end[i]}"
        for i in np.flatnonzero(again & (how[:-1] == DONE))
    ]
    sums.problems += [
        f"job {job[i]} started at {start[i + 1]} while the holder since {start[i]} lived, until {end[i]}"
        for i in np.flatnonzero(again & (how[:-1] == START) & (start[1:] < end[:-1]) & ~may_fail(job[:-1]))
    ]
    names, first, n = np.unique(job, return_index=True, return_counts=True)
    counts = {
        "job": names,
        "starts": n.astype(np.int64),
        "first_ns": start[first],
        "done": _per_job(how == DONE, first),
        "failed": _per_job(how == FAILED, first),
        "open": _per_job(how == START, first),
    }
    last = np.append(first[1:], len(job)) - 1
    sums.jobs, sums.starts = len(names), len(job)
    sums.done, sums.failed = int(np.count_nonzero(how == DONE)), int(np.count_nonzero(how == FAILED))
    sums.cut_off = int(np.count_nonzero(how == START))
    sums.ended_unseen = int(np.count_nonzero(how[last] == START)) if len(job) else 0
    return sums, counts


def _per_job(mask: NDArray[np.bool_], first: NDArray[np.intp]) -> Ints:
    return np.add.reduceat(mask.astype(np.int64), first) if len(first) else np.empty(0, np.int64)


def _runs(rows: NDArray[np.void], life: Life) -> tuple[Ints, list[str]]:
    """Pair the starts of one process with their ends."""
    order = np.lexsort((rows["at_ns"], rows["job"]))  # stable: a start stays before its end
    rows = rows[order]
    begins = np.flatnonzero(rows["what"] == START)
    follows = np.append(rows["job"][1:] == rows["job"][:-1], False) if len(rows) else np.empty(0, bool)
    ended = follows[begins] & (rows["what"][np.minimum(begins + 1, max(len(rows) - 1, 0))] != START)
    end = np.where(ended, rows["at_ns"][np.minimum(begins + 1, max(len(rows) - 1, 0))], life.killed_ns)
    how = np.where(ended, rows["what"][np.minimum(begins + 1, max(len(rows) - 1, 0))], START)
    problems = []
    if not life.killed_ns and not ended.all():
        problems = [f"{life.path.name} was not killed and has {np.count_nonzero(~ended)} jobs without an end"]
    if np.count_nonzero(rows["what"] != START) != np.count_nonzero(ended):
        problems.append(f"{life.path.name} has ends without a start")
    return np.stack([rows["job"][begins], rows["at_ns"][begins], end, how], axis=1).astype(np.int64), problems
