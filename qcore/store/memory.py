"""A store that keeps its rows in dictionaries: for tests and simulations."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterator, Sequence
from typing import cast

from qcore.errors import ClosedError, StoreError
from qcore.store.base import INSERT_WIDTH, SIDE_TABLES, UPDATE_WIDTH, Cut, LogDamage, Row, Side, Snapshot


class MemoryStore:
    """Keep committed cuts in memory, row by row, as a file would.

    While ``broken`` holds an error, every commit raises it and changes nothing.
    """

    path: str | None = None
    takes_packed: bool = False
    log_damage: LogDamage | None = None
    wants_maintenance = False

    def __init__(self) -> None:
        self.broken: StoreError | None = None
        self._jobs: dict[int, Row] = {}
        self._names: dict[int, str] = {}
        self._queues: dict[int, bytes] = {}
        self._meta: dict[str, bytes] = {}
        self._side: dict[Side, bytes] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._commits = 0
        self._syncs = 0
        self._rows = 0

    def reopened(self) -> MemoryStore:
        """Return a new store with the rows committed so far, as after a kill."""
        twin = MemoryStore()
        with self._lock:
            twin._jobs = dict(self._jobs)
            twin._names = dict(self._names)
            twin._queues = dict(self._queues)
            twin._meta = dict(self._meta)
            twin._side = dict(self._side)
        return twin

    def load(self) -> Snapshot:
        with self._lock:
            self._check_open()
            return Snapshot(
                names=sorted(self._names.items()),
                queues=sorted(self._queues.items()),
                meta=dict(self._meta),
                side={
                    table: sorted(
                        ((key, value) for (of, key), value in self._side.items() if of == table),
                        key=lambda row: row[0],
                    )
                    for table in SIDE_TABLES
                },
                jobs=self._rows_in_order(),
            )

    def _rows_in_order(self) -> Iterator[Row]:
        for seq in sorted(self._jobs):
            yield self._jobs[seq]

    def read(self, seqs: Sequence[int]) -> list[Row]:
        with self._lock:
            self._check_open()
            return [self._jobs[seq] for seq in sorted(set(seqs)) if seq in self._jobs]

    def scan(self, first_seq: int, limit: int, *, payloads: bool = True) -> list[Row]:
        with self._lock:
            self._check_open()
            seqs = heapq.nsmallest(limit, (seq for seq in self._jobs if seq >= first_seq))
            rows = [self._jobs[seq] for seq in seqs]
            return rows if payloads else [(*row[:4], None, None) for row in rows]

    def commit(self, cut: Cut, *, sync: bool = False) -> None:
        cut = cut.unpacked()
        with self._lock:
            self._check_open()
            if self.broken is not None:
                raise self.broken
            jobs = self._jobs
            flat = cut.inserts
            for i in range(0, len(flat), INSERT_WIDTH):
                row = cast(Row, tuple(flat[i : i + INSERT_WIDTH]))
                jobs[row[0]] = row
            flat = cut.updates
            for i in range(0, len(flat), UPDATE_WIDTH):
                seq, state, record, result = cast(
                    tuple[int, int, bytes, bytes | None], flat[i : i + UPDATE_WIDTH]
                )
                old = jobs.get(seq)
                if old is not None:
                    jobs[seq] = (seq, old[1], state, record, old[4], result)
            for seq in cut.deletes:
                jobs.pop(seq, None)
            self._names.update(cut.names)
            for queue, packed in cut.queues:
                if packed is None:
                    self._queues.pop(queue, None)
                else:
                    self._queues[queue] = packed
            self._meta.update(cut.meta)
            for side, packed in cut.side.items():
                if packed is None:
                    self._side.pop(side, None)
                else:
                    self._side[side] = packed
            self._commits += 1
            self._syncs += sync
            self._rows += cut.n_jobs

    def maintain(self) -> bool:
        return False

    def status(self) -> dict[str, object]:
        return {
            "path": None,
            "jobs": len(self._jobs),
            "commits": self._commits,
            "syncs": self._syncs,
            "rows": self._rows,
        }

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the store is closed")
