"""What a store is: cuts go in, a snapshot comes out.

A *cut* is the set of changes between two moments at which the engine was at rest,
encoded when it was taken. A store writes a cut whole or not at all, so what it
holds is always a past state of the engine as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, cast

from qcore.errors import StoreError

INSERT_WIDTH = 6
UPDATE_WIDTH = 4

#: The state of a row whose ``queue`` or ``state`` column holds no integer.
STATE_UNREADABLE = -1

#: ``(seq, queue, state, record, data, result)``
Row: TypeAlias = tuple[int, int, int, bytes, bytes | None, bytes | None]


class StoreFault(StoreError):
    """A store failed; ``kind`` is the reason in one word.

    ``full``, ``locked``, ``corrupt``, ``foreign``, ``newer``, ``readonly``,
    ``missing``, ``io`` or ``other``.
    """

    def __init__(self, message: str, kind: str = "other") -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(slots=True)
class Cut:
    """One consistent set of changes; a job stands in at most one of the three lists.

    The job lists are flat, row after row, as multi-row statements take them.

    * ``inserts``: seq, queue, state, record, data, result. A row that exists is
      replaced in every column, so this is also how data is changed.
    * ``updates``: seq, state, record, result. The row exists; queue and data stay.
    * ``deletes``: seq. The row need not exist.
    * ``names``: (id, text) of newly interned names.
    * ``queues``: (queue id, packed state); None removes the state.
    * ``meta``: small values by key.
    """

    inserts: list[object] = field(default_factory=list)
    updates: list[object] = field(default_factory=list)
    deletes: list[int] = field(default_factory=list)
    names: list[tuple[int, str]] = field(default_factory=list)
    queues: list[tuple[int, bytes | None]] = field(default_factory=list)
    meta: dict[str, bytes] = field(default_factory=dict)

    @property
    def n_jobs(self) -> int:
        """Count the job rows that this cut writes or deletes."""
        return len(self.inserts) // INSERT_WIDTH + len(self.updates) // UPDATE_WIDTH + len(self.deletes)

    @property
    def is_empty(self) -> bool:
        return not (self.inserts or self.updates or self.deletes or self.names or self.queues or self.meta)

    def merge_under(self, newer: Cut) -> Cut:
        """Return one cut that does what this one and then ``newer`` would do.

        For a cut that could not be committed: the newer rows win, an update of a
        row that is still to be inserted becomes part of that insert, and a delete
        takes the place of whatever was pending. The delete itself stays, since
        the insert may have replaced a row that is in the file. Neither argument
        is changed. O(rows of both).
        """
        if newer.is_empty:
            return self
        if self.is_empty:
            return newer
        inserts = _rows(self.inserts, INSERT_WIDTH)
        updates = _rows(self.updates, UPDATE_WIDTH)
        deletes = dict.fromkeys(self.deletes)
        for seq, row in _rows(newer.inserts, INSERT_WIDTH).items():
            updates.pop(seq, None)
            deletes.pop(seq, None)
            inserts[seq] = row
        for seq, row in _rows(newer.updates, UPDATE_WIDTH).items():
            pending = inserts.get(seq)
            if pending is not None:
                _, state, record, result = row
                inserts[seq] = [seq, pending[1], state, record, pending[4], result]
            else:
                deletes.pop(seq, None)
                updates[seq] = row
        for seq in newer.deletes:
            inserts.pop(seq, None)
            updates.pop(seq, None)
            deletes[seq] = None
        return Cut(
            inserts=[value for row in inserts.values() for value in row],
            updates=[value for row in updates.values() for value in row],
            deletes=list(deletes),
            names=list(({id_: (id_, text) for id_, text in (*self.names, *newer.names)}).values()),
            queues=list(dict((*self.queues, *newer.queues)).items()),
            meta={**self.meta, **newer.meta},
        )


def _rows(flat: Sequence[object], width: int) -> dict[int, Sequence[object]]:
    return {cast(int, flat[i]): flat[i : i + width] for i in range(0, len(flat), width)}


@dataclass(slots=True)
class Snapshot:
    """Everything a store holds, as the engine is rebuilt from it.

    ``jobs`` is read while it is iterated, in order of seq, and keeps no
    transaction open between rows; use it up before the first commit.
    """

    names: list[tuple[int, str]]
    queues: list[tuple[int, bytes]]
    meta: dict[str, bytes]
    jobs: Iterator[Row]


class Store(Protocol):
    """Where cuts are kept. Every method may be called from any thread."""

    @property
    def path(self) -> str | None: ...

    def load(self) -> Snapshot:
        """Read the last committed state."""
        ...

    def read(self, seqs: Sequence[int]) -> list[Row]:
        """Read single rows, in order of seq; those that do not exist are left out."""
        ...

    def commit(self, cut: Cut, *, sync: bool = False) -> None:
        """Write the whole cut or nothing; with ``sync`` it also survives a power cut.

        Raises StoreError when nothing was written; the store stays usable.
        """
        ...

    @property
    def wants_maintenance(self) -> bool:
        """Tell, cheaply, whether :meth:`maintain` may have something to do."""
        ...

    def maintain(self) -> bool:
        """Do what has to be done between commits; never raises.

        Returns True when it wants to be called again in a while, whatever happens.
        """
        ...

    def status(self) -> dict[str, object]: ...

    def close(self) -> None:
        """Give the data file up. A second call does nothing."""
        ...
