"""Errors of SQLite and of the system as faults of a store."""

from __future__ import annotations

import errno
import sqlite3

from qcore.store.base import StoreFault

_KINDS = {
    sqlite3.SQLITE_FULL: "full",
    sqlite3.SQLITE_BUSY: "locked",
    sqlite3.SQLITE_LOCKED: "locked",
    sqlite3.SQLITE_CORRUPT: "corrupt",
    sqlite3.SQLITE_NOTADB: "corrupt",
    sqlite3.SQLITE_READONLY: "readonly",
    sqlite3.SQLITE_CANTOPEN: "missing",
    sqlite3.SQLITE_PERM: "readonly",
    sqlite3.SQLITE_IOERR: "io",
}

_BEFORE_THE_MARK = (sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ)


def sqlite_fault(error: sqlite3.Error, path: str) -> StoreFault:
    return fault_of(getattr(error, "sqlite_errorcode", 0) & 0xFF, str(error), path)


def fault_of(code: int, text: str, path: str) -> StoreFault:
    """The error for a primary result code of SQLite."""
    return StoreFault(f"{path}: {text}", _KINDS.get(code, "other"))


def commit_fault_of(code: int, text: str, path: str) -> StoreFault:
    """The error for an extended result code of a commit."""
    fault = fault_of(code & 0xFF, text, path)
    # A failed write leaves the mark of the commit out; whatever comes after has it in the log.
    fault.unsure = fault.kind == "io" and code not in _BEFORE_THE_MARK
    return fault


def system_fault(error: OSError, text: str) -> StoreFault:
    kind = "full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "readonly"
    if error.errno in (errno.EIO, errno.EMFILE, errno.ENFILE):
        kind = "io"
    return StoreFault(f"{text}: {error.strerror}", kind)
