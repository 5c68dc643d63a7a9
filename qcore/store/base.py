"""What a store is: cuts go in, a snapshot comes out.

A *cut* is the set of changes between two moments at which the engine was at rest,
encoded when it was taken. A store writes a cut whole or not at all, so what it
holds is always a past state of the engine as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError
from typing import Any, Final, Protocol, TypeAlias, cast

from qcore.errors import StoreError

INSERT_WIDTH = 6
UPDATE_WIDTH = 4

#: The state of a row whose ``queue`` or ``state`` column holds no integer.
STATE_UNREADABLE = -1

#: Tables of small values that stand beside the jobs, each a key and a packed value.
#:
#: * ``evidence`` (number): ids that were completed and removed, in order; see the engine
#: * ``journal`` (number): events of a queue, in order
#: * ``keys`` (number): unique keys that outlive their jobs
#: * ``lanes`` (queue id, colon, name): what is set for a group of a queue
#: * ``logs`` (seq of the job): its log lines
#: * ``minutes`` (number): closed minutes of the metrics of a queue
#: * ``schedules`` (name): what is to be added at its time
#: * ``telemetry`` (queue id): counts of events and outcomes of a queue, with its name once it is
#:   forgotten; at 0 the highest id there ever was
#: * ``webhooks`` (id): addresses that are told of events
SIDE_TABLES: Final = (
    "evidence",
    "journal",
    "keys",
    "lanes",
    "logs",
    "minutes",
    "schedules",
    "telemetry",
    "webhooks",
)

#: A table and a key in it.
Side: TypeAlias = tuple[str, int | str]

#: ``(seq, queue, state, record, data, result)``
Row: TypeAlias = tuple[int, int, int, bytes, bytes | None, bytes | None]


class StoreFault(StoreError):
    """A store failed; ``kind`` is the reason in one word.

    ``full``, ``locked``, ``corrupt``, ``foreign``, ``newer``, ``readonly``,
    ``missing``, ``io`` or ``other``. ``unsure``: a commit was written and could not be
    finished, so a crash before the next one may bring it back.
    """

    def __init__(self, message: str, kind: str = "other", *, unsure: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.unsure = unsure


@dataclass(frozen=True, slots=True)
class LogDamage:
    """What the write-ahead log held and gives no more, as far as one can know.

    ``frames`` is 0 if nobody knows. ``partly``: some of it may be in the file all the same.
    After a power cut it may be what was never synced.
    """

    problem: str
    frames: int
    commits: int = 0
    partly: bool = False
    #: Where the log was copied to before it was touched.
    copy: str | None = None

    def __str__(self) -> str:
        if not self.frames:
            return f"{self.problem}: whatever it held last is lost"
        lost = f"{self.frames:,} frame{'s' * (self.frames != 1)}"
        if self.commits:
            lost += f" with {self.commits:,} commit{'s' * (self.commits != 1)} or more"
        if self.partly:
            lost += ", of which a part may be in the file,"
        copied = f"; the log as it was is {os.path.basename(self.copy)}" if self.copy else ""
        return f"{self.problem}: {lost} cannot be read{copied}"


@dataclass(slots=True)
class Cut:
    """One consistent set of changes; a job stands in at most one of the three lists.

    The job lists are flat, row after row, as multi-row statements take them.

    * ``inserts``: seq, queue, state, record, data, result. A row that exists is
      replaced in every column, so this is also how data is changed.
    * ``updates``: seq, state, record, result. The row exists; queue and data stay.
    * ``deletes``: seq. The row need not exist.
    * ``packed``: buffers of ``n_packed`` further rows in the form of :func:`pack_rows`,
      in place of the lists; the largest payload in them has ``largest`` bytes. Only for
      a store that ``takes_packed``. Here an insert of a job may be followed by what
      happened to it before the cut was taken: another insert, an update or a delete,
      which then counts.
    * ``names``: (id, text) of newly interned names.
    * ``queues``: (queue id, packed state); None removes the state.
    * ``meta``: small values by key.
    * ``side``: packed values of :data:`SIDE_TABLES`; None removes one, which need not exist.
    """

    inserts: list[object] = field(default_factory=list)
    updates: list[object] = field(default_factory=list)
    deletes: list[int] = field(default_factory=list)
    names: list[tuple[int, str]] = field(default_factory=list)
    queues: list[tuple[int, bytes | None]] = field(default_factory=list)
    meta: dict[str, bytes] = field(default_factory=dict)
    side: dict[Side, bytes | None] = field(default_factory=dict)
    packed: list[bytes] = field(default_factory=list)
    n_packed: int = 0
    largest: int = 0

    @property
    def n_jobs(self) -> int:
        """Count the job rows that this cut writes or deletes."""
        return (
            len(self.inserts) // INSERT_WIDTH
            + len(self.updates) // UPDATE_WIDTH
            + len(self.deletes)
            + self.n_packed
        )

    @property
    def is_empty(self) -> bool:
        return not (self.n_jobs or self.names or self.queues or self.meta or self.side)

    def has_large(self, limit: int) -> bool:
        """Tell whether a payload of the cut is longer than ``limit``."""
        return self.largest > limit or any(
            data is not None and len(cast(bytes, data)) > limit for data in self.inserts[4::INSERT_WIDTH]
        )

    def unpacked(self) -> Cut:
        """Return the same cut with its packed rows in the lists, one for each job."""
        if not self.packed:
            return self
        rows = _Rows(self)
        for buffer in self.packed:
            _unpack_rows(buffer, rows)
        return rows.cut(names=self.names, queues=self.queues, meta=self.meta, side=self.side)

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
        if self.packed or newer.packed:
            return self.unpacked().merge_under(newer.unpacked())
        rows = _Rows(self)
        for row in _rows(newer.inserts, INSERT_WIDTH).values():
            rows.insert(row)
        for row in _rows(newer.updates, UPDATE_WIDTH).values():
            rows.update(row)
        for seq in newer.deletes:
            rows.delete(seq)
        return rows.cut(
            names=list(({id_: (id_, text) for id_, text in (*self.names, *newer.names)}).values()),
            queues=list(dict((*self.queues, *newer.queues)).items()),
            meta={**self.meta, **newer.meta},
            side={**self.side, **newer.side},
        )


class _Rows:
    """The rows of a cut, and of what comes after it: one for each job, the last that counts."""

    def __init__(self, cut: Cut) -> None:
        self._inserts = _rows(cut.inserts, INSERT_WIDTH)
        self._updates = _rows(cut.updates, UPDATE_WIDTH)
        self._deletes = dict.fromkeys(cut.deletes)

    def insert(self, row: Sequence[object]) -> None:
        seq = cast(int, row[0])
        self._updates.pop(seq, None)
        self._deletes.pop(seq, None)
        self._inserts[seq] = row

    def update(self, row: Sequence[object]) -> None:
        seq, state, record, result = cast(tuple[int, object, object, object], row)
        pending = self._inserts.get(seq)
        if pending is not None:
            self._inserts[seq] = [seq, pending[1], state, record, pending[4], result]
        else:
            self._deletes.pop(seq, None)
            self._updates[seq] = row

    def delete(self, seq: int) -> None:
        self._inserts.pop(seq, None)
        self._updates.pop(seq, None)
        self._deletes[seq] = None

    def cut(
        self,
        *,
        names: list[tuple[int, str]],
        queues: list[tuple[int, bytes | None]],
        meta: dict[str, bytes],
        side: dict[Side, bytes | None],
    ) -> Cut:
        return Cut(
            inserts=[value for row in self._inserts.values() for value in row],
            updates=[value for row in self._updates.values() for value in row],
            deletes=list(self._deletes),
            names=names,
            queues=queues,
            meta=meta,
            side=side,
        )


_ROW = Struct("<BqIIiii")
ROW_INSERT, ROW_UPDATE, ROW_DELETE = 1, 2, 3


def pack_rows(cut: Cut) -> bytes:
    """Return the rows of the lists in one buffer, as a compiled writer takes them.

    Each is a head (operation, seq, queue, state, and the lengths of record, data and
    result, -1 for NULL), then those three. Little-endian.
    """
    out = bytearray()
    flat = cut.inserts
    for i in range(0, len(flat), INSERT_WIDTH):
        _pack_row(out, ROW_INSERT, *cast(tuple[Any, ...], flat[i : i + INSERT_WIDTH]))
    flat = cut.updates
    for i in range(0, len(flat), UPDATE_WIDTH):
        seq, state, record, result = cast(tuple[Any, ...], flat[i : i + UPDATE_WIDTH])
        _pack_row(out, ROW_UPDATE, seq, 0, state, record, None, result)
    for seq in cut.deletes:
        _pack_row(out, ROW_DELETE, seq, 0, 0, None, None, None)
    return bytes(out)


def _pack_row(
    out: bytearray,
    op: int,
    seq: int,
    queue: int,
    state: int,
    record: bytes | None,
    data: bytes | None,
    result: bytes | None,
) -> None:
    parts = (record, data, result)
    try:
        out += _ROW.pack(op, seq, queue, state, *(-1 if part is None else len(part) for part in parts))
    except StructError as error:
        raise OverflowError(f"a number of row {seq} does not fit: {error}") from None
    for part in parts:
        out += part or b""


def _unpack_rows(buffer: bytes, rows: _Rows) -> None:
    at = 0
    while at < len(buffer):
        op, seq, queue, state, *lengths = _ROW.unpack_from(buffer, at)
        at += _ROW.size
        parts: list[bytes | None] = []
        for n in lengths:
            parts.append(None if n < 0 else buffer[at : at + n])
            at += max(n, 0)
        record, data, result = parts
        if op == ROW_INSERT:
            rows.insert((seq, queue, state, record, data, result))
        elif op == ROW_UPDATE:
            rows.update((seq, state, record, result))
        else:
            rows.delete(seq)


def _rows(flat: Sequence[object], width: int) -> dict[int, Sequence[object]]:
    return {cast(int, flat[i]): flat[i : i + width] for i in range(0, len(flat), width)}


@dataclass(slots=True)
class Snapshot:
    """Everything a store holds, as the engine is rebuilt from it.

    ``side`` has every one of :data:`SIDE_TABLES`, in order of the keys.
    ``jobs`` is read while it is iterated, in order of seq, and keeps no
    transaction open between rows; use it up before the first commit.
    """

    names: list[tuple[int, str]]
    queues: list[tuple[int, bytes]]
    meta: dict[str, bytes]
    side: dict[str, list[tuple[int | str, bytes]]]
    jobs: Iterator[Row]


class Store(Protocol):
    """Where cuts are kept. Every method may be called from any thread."""

    #: Whether cuts may carry their rows packed.
    takes_packed: bool
    #: What was lost before the file was opened.
    log_damage: LogDamage | None

    @property
    def path(self) -> str | None: ...

    def load(self) -> Snapshot:
        """Read the last committed state."""
        ...

    def read(self, seqs: Sequence[int]) -> list[Row]:
        """Read single rows, in order of seq; those that do not exist are left out.

        Neither this nor :meth:`scan` waits for a commit that is under way: they see the one before.
        """
        ...

    def scan(self, first_seq: int, limit: int, *, payloads: bool = True) -> list[Row]:
        """Read up to ``limit`` rows in order of seq, from the first that is not below ``first_seq``.

        Without ``payloads`` data and results are None, and are not read.
        """
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
