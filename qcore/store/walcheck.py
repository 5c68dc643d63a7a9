"""What of the write-ahead log of a file that was not closed can be read, looked at before SQLite does.

SQLite ends its recovery at the first frame that is not sound, and says nothing. Two things
tell whether confirmed work lies behind that place: frames of the same use of the log that
come later, and the index in ``FILE-shm``. SQLite notes in it how far each commit went and
how much of that is in the file; it is shared memory, so it outlives a killed process as it
was. After a power cut it may be older than the log, never younger than what was synced.

A log that was cut off without a trace in either cannot be told from one that ended there.
"""

from __future__ import annotations

import errno
import filecmp
import mmap
import os
import shutil
import struct
import sys
from dataclasses import dataclass
from typing import NamedTuple

from qcore.store.base import LogDamage
from qcore.store.wal import walk

WAL_HEADER_BYTES = 32
#: What the name of a damaged log goes on with.
DAMAGED = ".damaged"
#: Pages that the mark changes.
MARK_FRAMES = 1

# The index, in the byte order of the machine; twice, the second is written first. Then how many frames are
# in the file, who reads how far, and how many were to be moved when a move began.
_INDEX = struct.Struct("=III BBH I I II 8s II")
_MOVED = struct.Struct("=I 28x I")
_MOVES = struct.Struct("=I 12x 8s 8x 48x I")  # from the number of frames on
_INDEX_VERSION = 3_007_000
_INDEX_SUMMED = 40
_FRAMES_AT = 16
#: What of the index tells about moves of the log.
INDEX_HEAD_BYTES = 2 * _INDEX.size + _MOVED.size


class _Index(NamedTuple):
    salt: bytes
    changes: int  # commits since the index was made; 0: it says what some recovery found
    frames: int
    moved: int
    moving: int


class _Walk(NamedTuple):
    sound: bool
    page_bytes: int
    salt: bytes
    frames: int
    kept: int
    after: int
    left: int
    commits_left: int


@dataclass(frozen=True, slots=True)
class LogState:
    """What a look at a log came to.

    * ``damage``: what is lost; None if nothing is, as far as that can be known
    * ``drop``: SQLite must not read the log: the file is ahead of what it would read
    * ``restart``: frames behind the end would be met again by the next look
    """

    damage: LogDamage | None = None
    drop: bool = False
    restart: bool = False


def look_at_log(path: str, expected: bool = False) -> LogState:
    """Judge the log of the file at ``path``, which nobody has open. Raises OSError.

    ``expected``: the mark of the file says that there is one, and that it begins with its own mark
    (see mark.py).
    """
    index = _read_index(path + "-shm")
    if index is not None and expected and index.frames - index.moved <= MARK_FRAMES:
        index = index._replace(moved=index.frames)  # the mark is all that is left
    name = os.path.basename(path) + "-wal"
    try:
        fd = os.open(path + "-wal", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return _ends_early(f"{name} is missing", index, expected)
    try:
        size = os.fstat(fd).st_size
        if size <= WAL_HEADER_BYTES:  # SQLite looks no further either
            problem = f"{name} is empty" if not size else f"{name} ends within its header"
            return _ends_early(problem, index, expected)
        found = _Walk(*walk(fd))
        if not found.sound:
            return _without_header(name, found, index)
        if index is not None and index.salt != found.salt:
            index = None  # of another use of the log
        if index is not None and found.kept < index.frames:
            found = _Walk(*walk(fd, index.frames))
    finally:
        os.close(fd)
    if index is not None and found.kept < index.frames:
        drop = found.kept < index.moved
        base = index.moved if drop else found.kept
        if base >= index.frames:
            return LogState(drop=True)
        # A move that a reader held up, or a kill, leaves pages of several commits in the file.
        partly = index.moving > (0 if drop else base)
        return LogState(_cut(name, found, index.frames, base, partly=partly), drop, True)
    if not found.after:
        return LogState()
    if index is not None and index.changes:
        # What was given up after its commit mark was written: the sync behind it had failed.
        return LogState(restart=True)
    return LogState(_cut(name, found, found.after, found.kept), restart=True)


def keep_copy(path: str) -> str:
    """Copy the log of a file beside it, and return the name; a copy that is there already will do."""
    source = path + "-wal"
    n = 1
    while True:
        target = f"{source}{DAMAGED}" if n == 1 else f"{source}{DAMAGED}.{n}"
        try:
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileExistsError:
            if os.path.isfile(target) and filecmp.cmp(source, target, shallow=False):
                return target
            n += 1
            continue
        try:
            with open(fd, "wb") as copy, open(source, "rb") as log:
                shutil.copyfileobj(log, copy, 1 << 18)
                copy.flush()
                os.fsync(copy.fileno())
        except BaseException:
            os.unlink(target)
            raise
        return target


def moves_of(index: mmap.mmap | None) -> bytes:
    """What changes in the index whenever the log is moved or started over; empty if all of it is moved.

    It takes a few hundred nanoseconds and keeps the interpreter lock.
    """
    if index is None:
        return b""
    frames, salt, moved = _MOVES.unpack_from(index, _FRAMES_AT)
    return b"" if moved >= frames else salt + moved.to_bytes(4, "big")


def _cut(name: str, found: _Walk, end: int, base: int, *, partly: bool = False) -> LogDamage:
    """The log is to have ``end`` frames and can be read up to ``base``."""
    first = found.frames + 1
    damaged = found.left > found.frames - found.kept or found.after
    where = f"{name} is damaged at frame {first}" if damaged else f"{name} ends after frame {found.frames}"
    commits = found.commits_left if base == found.kept else 0
    return LogDamage(f"{where} of {end}", end - base, commits, partly)


def _ends_early(problem: str, index: _Index | None, expected: bool) -> LogState:
    if index is None:
        return LogState(LogDamage(problem, 0) if expected else None)
    return LogState(_all_of(problem, index) if index.moved < index.frames else None)


def _without_header(name: str, found: _Walk, index: _Index | None) -> LogState:
    if index is not None and index.moved >= index.frames:
        return LogState(drop=True)
    problem = f"the header of {name} is damaged"
    if index is not None:
        return LogState(_all_of(problem, index), drop=True)
    # How many of them are in the file already is not known.
    return LogState(LogDamage(problem, found.left, found.commits_left, True), drop=True)


def _all_of(problem: str, index: _Index) -> LogDamage:
    return LogDamage(problem, index.frames - index.moved, 0, index.moving > 0)


def _read_index(path: str) -> _Index | None:
    """What the index of the log says; None if there is none that can be trusted."""
    try:
        with open(path, "rb") as file:
            head = file.read(2 * _INDEX.size + _MOVED.size)
    except OSError as error:
        if error.errno == errno.EIO:
            raise
        return None
    if len(head) < 2 * _INDEX.size + _MOVED.size:
        return None
    for at in (0, _INDEX.size):
        raw = head[at : at + _INDEX.size]
        version, _, changes, made, _, _, frames, _, _, _, salt, a, b = _INDEX.unpack(raw)
        if version == _INDEX_VERSION and made == 1 and (a, b) == _sums(raw[:_INDEX_SUMMED]):
            moved, moving = _MOVED.unpack_from(head, 2 * _INDEX.size)
            return _Index(salt, changes, frames, min(moved, frames), moving)
    return None


def _sums(raw: bytes) -> tuple[int, int]:
    words = struct.unpack(f"{'<' if sys.byteorder == 'little' else '>'}{len(raw) // 4}I", raw)
    a = b = 0
    for i in range(0, len(words), 2):
        a = (a + words[i] + b) & 0xFFFFFFFF
        b = (b + words[i + 1] + a) & 0xFFFFFFFF
    return a, b
