"""A disk that fails on request: cuts are kept as bytes, and those since the last sync may be lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack

from qcore.store.base import Cut, LogDamage, Row, Snapshot, StoreFault, pack_rows
from qcore.store.memory import MemoryStore


def encode(cut: Cut) -> bytes:
    """The bytes of one cut as they lie on the disk."""
    rows = b"".join(cut.packed) if cut.packed else pack_rows(cut)
    side = [[table, key, value] for (table, key), value in cut.side.items()]
    return bytes(msgpack.packb([rows, cut.names, cut.queues, cut.meta, side]))


def decode(data: bytes) -> Cut:
    rows, names, queues, meta, side = msgpack.unpackb(data, use_list=False)
    cut = Cut(packed=[rows] if rows else []).unpacked()
    cut.names, cut.queues, cut.meta = list(names), list(queues), dict(meta)
    cut.side = {(table, key): value for table, key, value in side}
    return cut


class Disk:
    """What is left when a process ends: a synced part, and a log of the cuts since then.

    ``fault`` makes commits fail: ``full``, ``io`` or ``locked`` write nothing,
    ``unknown`` writes the cut and reports a failure all the same.
    """

    def __init__(self, takes_packed: bool) -> None:
        self.takes_packed = takes_packed
        self.fault: str | None = None
        self.n_cuts = 0  # written since the beginning, less those lost
        self._synced = MemoryStore()
        self._live = MemoryStore()
        self._log: list[bytes] = []

    @property
    def n_unsynced(self) -> int:
        """Cuts that a power cut may take away."""
        return len(self._log)

    def write(self, data: bytes, sync: bool) -> None:
        self._live.commit(decode(data))
        self._log.append(data)
        self.n_cuts += 1
        if sync:
            self.sync()

    def sync(self) -> None:
        """Everything written so far survives a power cut from now on."""
        for data in self._log:
            self._synced.commit(decode(data))
        self._log.clear()

    def lose(self, n: int) -> None:
        """Take the last ``n`` unsynced cuts away."""
        kept = self._log[: len(self._log) - n]
        self.n_cuts -= n
        self._log.clear()
        self._live = self._synced.reopened()
        for data in kept:
            self._live.commit(decode(data))
            self._log.append(data)

    def copy(self) -> Disk:
        """Another disk with the same content."""
        twin = Disk(self.takes_packed)
        twin._synced = self._live.reopened()
        twin._live = self._live.reopened()
        return twin

    def read(self) -> MemoryStore:
        return self._live

    def open(self) -> DiskStore:
        return DiskStore(self)


class DiskStore:
    """A :class:`~qcore.store.base.Store` on a :class:`Disk`, for one process."""

    path: str | None = None
    wants_maintenance = False
    log_damage: LogDamage | None = None

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.takes_packed = disk.takes_packed

    def load(self) -> Snapshot:
        return self._disk.read().load()

    def read(self, seqs: Sequence[int]) -> list[Row]:
        return self._disk.read().read(seqs)

    def scan(self, first_seq: int, limit: int, *, payloads: bool = True) -> list[Row]:
        return self._disk.read().scan(first_seq, limit, payloads=payloads)

    def commit(self, cut: Cut, *, sync: bool = False) -> None:
        disk = self._disk
        fault = disk.fault
        if fault in ("full", "io", "locked"):
            raise StoreFault(f"made to fail: {fault}", fault)
        disk.write(encode(cut), sync)
        if fault == "unknown":
            disk.fault = None
            raise StoreFault("made to fail after the write", "io", unsure=True)

    def maintain(self) -> bool:
        return False

    def status(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass
