"""Records of jobs in a data file, decoded a second time from what :mod:`qcore.broker.record` says of them."""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass

HEAD = struct.Struct("<BBBBIqqdIIIIIII")
RUN = struct.Struct("<QQqqqqqqII")
#: Where the end of the lease lies in a delivery.
EXPIRES_AT = 48

HAS_RUN, HAS_PRIORITY = 1, 4
TEXT_ID = 1
RECORD_VERSION = 12


def varints(content: bytes, at: int, n: int) -> tuple[list[int], int]:
    """``n`` numbers of seven bits a byte from ``at`` on, and where they end."""
    numbers = []
    for _ in range(n):
        value = shift = 0
        while True:
            value |= (content[at] & 127) << shift
            shift += 7
            at += 1
            if content[at - 1] < 128:
                break
        numbers.append(value)
    return numbers, at


def unzigzag(n: int) -> int:
    return n >> 1 if n % 2 == 0 else -(n >> 1) - 1


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the present version."""

    parts: int
    first_state: int
    flags: int
    created_ms: int
    run_ms: int
    priority: float
    attempts: int
    max_attempts: int
    backoff_ms: int
    name: int
    data_notes: int
    stalls: int
    id_bytes: bytes
    #: Token (two halves), started, finished, heartbeat, lease, expires, timeout or how far the number of the
    #: end is ahead, renewals, notes.
    run: tuple[int, ...]
    extra: bytes

    @property
    def id(self) -> str:
        return self.id_bytes.decode() if self.flags & TEXT_ID else _uuid(*struct.unpack("<QQ", self.id_bytes))

    @property
    def token(self) -> str:
        return _uuid(*self.run[:2]) if self.parts & HAS_RUN else ""

    @property
    def head(self) -> bytes:
        """Head and id as version 1 had them."""
        numbers = (
            self.parts & 3,
            self.first_state,
            0,
            self.flags,
            self.created_ms,
            self.run_ms,
            self.priority,
        )
        counts = (self.attempts, self.max_attempts, self.backoff_ms, self.name, self.data_notes, self.stalls)
        return HEAD.pack(1, *numbers, *counts, len(self.id_bytes)) + self.id_bytes

    @property
    def plain(self) -> bytearray:
        """The record as version 1 had it: every number in its place, and no seal."""
        return bytearray(self.head + (RUN.pack(*self.run) if self.parts & HAS_RUN else b"") + self.extra)


def _uuid(hi: int, lo: int) -> str:
    return str(uuid.UUID(bytes=struct.pack(">QQ", hi, lo)))


def read_record(record: bytes) -> Record:
    """Decode a record; its seal is not looked at."""
    version, parts, first_state = record[:3]
    assert version == RECORD_VERSION
    (flags, created, since), at = varints(record, 3, 3)
    created_ms, priority = unzigzag(created), 0.0
    if parts & HAS_PRIORITY:
        (priority,) = struct.unpack_from("<d", record, at)
        at += 8
    counts, at = varints(record, at, 4)
    (notes,) = struct.unpack_from("<I", record, at)
    (stalls, id_n), at = varints(record, at + 4, 2)
    id_bytes = record[at : at + id_n]
    at += id_n
    run, at = _read_run(record, at, created_ms) if parts & HAS_RUN else ((), at)
    attempts, max_attempts, backoff_ms, name = counts
    return Record(
        parts=parts,
        first_state=first_state,
        flags=flags,
        created_ms=created_ms,
        run_ms=created_ms + unzigzag(since),
        priority=priority,
        attempts=attempts,
        max_attempts=max_attempts,
        backoff_ms=backoff_ms,
        name=name,
        data_notes=notes,
        stalls=stalls,
        id_bytes=id_bytes,
        run=run,
        extra=record[at:-4],
    )


def _read_run(record: bytes, at: int, created_ms: int) -> tuple[tuple[int, ...], int]:
    token = struct.unpack_from("<QQ", record, at)
    there = record[at + 16]
    at += 17

    def time(bit: int, since: int) -> int:
        nonlocal at
        if not there & bit:
            return 0
        (n,), at = varints(record, at, 1)
        return since + unzigzag(n)

    started = time(1, created_ms)
    finished = time(2, started)
    heartbeat = time(4, started)
    lease = time(8, 0)
    expires = time(16, heartbeat + lease)
    last = time(32, 0 if finished else started)
    renewals = notes = 0
    if there & 64:
        (renewals,), at = varints(record, at, 1)
    if there & 128:
        (notes,) = struct.unpack_from("<I", record, at)
        at += 4
    return (*token, started, finished, heartbeat, lease, expires, last, renewals, notes), at
