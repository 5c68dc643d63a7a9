"""What may be opened as a data file: looked at before SQLite may leave a mark on it."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import struct

from qcore.store.base import StoreFault
from qcore.store.faults import system_fault
from qcore.store.owner import drop_lock, take_lock
from qcore.store.walcheck import WAL_HEADER_BYTES

APPLICATION_ID = 0x71636F72  # "qcor"
SCHEMA_VERSION = 5

#: What the name of a file that was replaced by a restore goes on with.
ASIDE = ".before-restore-"
#: What the name of a file goes on with that is to replace it, or to be kept; then the pid of the restore.
DRAFT = ".restore-"

_HEADER = struct.Struct(">16s44xI4xI28x")  # magic, user_version, application_id
_MAGIC = b"SQLite format 3\x00"


def inspect_file(path: str) -> None:
    """Refuse a file that is not ours, before SQLite may leave a mark on it."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        directory = os.path.dirname(path)
        if not os.path.isdir(directory):
            raise StoreFault(f"{directory} is not a directory; it must exist", "missing") from None
        _refuse_log_alone(path, "is not there")
        return
    except OSError as error:
        raise system_fault(error, f"{path} cannot be opened") from None
    if stat.S_ISDIR(found.st_mode):
        raise StoreFault(f"{path} is a directory", "foreign")
    if not stat.S_ISREG(found.st_mode):
        raise StoreFault(f"{path} is not a regular file", "foreign")
    if found.st_nlink > 1 and not _undo_restore(path, found):
        # Lock and log lie beside a name: a second name would have its own of both.
        raise StoreFault(f"{path} has {found.st_nlink} names (hard links); it must have one", "foreign")
    try:
        with open(path, "rb") as file:
            head = file.read(_HEADER.size)
    except OSError as error:
        raise system_fault(error, f"{path} cannot be read") from None
    if not os.access(path, os.W_OK):
        raise StoreFault(f"{path} is not writable", "readonly")
    for suffix in ("-wal", "-shm", "-journal"):
        _inspect_beside(path + suffix)
    if not head:
        _refuse_log_alone(path, "is empty")
        return
    if len(head) < _HEADER.size or not head.startswith(_MAGIC):
        raise StoreFault(f"{path} is not a database", "foreign")
    _, version, application = _HEADER.unpack(head)
    if application == APPLICATION_ID:
        if version > SCHEMA_VERSION:
            raise newer_fault(path, version)
    elif application != 0 or os.path.exists(path + "-wal"):
        # Ours is named from its first page on; a log may hold the tables of a foreign one.
        raise foreign_fault(path)


def _inspect_beside(path: str) -> None:
    """Refuse what SQLite could not use, and would blame on the data file."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise system_fault(error, f"{path} cannot be opened") from None
    if not stat.S_ISREG(mode):
        raise StoreFault(
            f"{path} is {'a directory' if stat.S_ISDIR(mode) else 'not a regular file'}", "foreign"
        )
    if not os.access(path, os.R_OK):
        raise StoreFault(f"{path} is not readable", "readonly")
    if not os.access(path, os.W_OK):
        raise StoreFault(f"{path} is not writable", "readonly")


def _refuse_log_alone(path: str, what: str) -> None:
    n_bytes = size_of(path + "-wal")
    if n_bytes > WAL_HEADER_BYTES:
        raise StoreFault(
            f"{path} {what}, but its log {path}-wal has {n_bytes} bytes, which a start would throw away: "
            "put the data file back, or restore a backup; to begin without jobs, move the log away",
            "missing",
        )


def _undo_restore(path: str, found: os.stat_result) -> bool:
    """Take the second name away that a killed restore gave to the file; whether it has one name now."""
    directory, name = os.path.split(path)
    with os.scandir(directory) as entries:
        second = [
            entry.path
            for entry in entries
            if entry.name.startswith(name + ASIDE)
            and os.path.samestat(entry.stat(follow_symlinks=False), found)
        ]
    if len(second) != found.st_nlink - 1:
        return False
    fd = take_lock(path)  # a restore that is alive goes on
    try:
        if not os.path.samestat(os.stat(path), found):
            return os.stat(path).st_nlink == 1
        for other in second:
            for suffix in ("-wal", "-shm"):
                if os.path.exists(other + suffix) and not os.path.exists(path + suffix):
                    os.rename(other + suffix, path + suffix)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(other)
        return os.stat(path).st_nlink == 1
    except OSError as error:
        raise system_fault(error, f"{path}: what a killed restore left cannot be undone") from None
    finally:
        drop_lock(path, fd)


def remove_drafts(path: str) -> None:
    """Remove what killed restores had unpacked, by who has the lock of the file; never raises.

    A restore has that lock as long as it lives. What cannot be removed hinders nobody.
    """
    directory, name = os.path.split(path)
    draft = re.compile(re.escape(name + DRAFT) + r"\d+(-old)?")
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if draft.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                os.unlink(entry.path)


def foreign_fault(path: str) -> StoreFault:
    return StoreFault(f"{path} is an SQLite database of another program", "foreign")


def newer_fault(path: str, version: int) -> StoreFault:
    return StoreFault(
        f"{path} has schema version {version}, this program knows {SCHEMA_VERSION}; it was not touched",
        "newer",
    )


def about_log(path: str) -> str:
    """What to add to the news that a file is damaged: its log may be that of another one."""
    if size_of(path + "-wal") <= WAL_HEADER_BYTES:
        return ""
    return f"; if {path}-wal is the log of another file, move it away and start again"


def size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
