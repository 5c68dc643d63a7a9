"""Where the engine's state is kept."""

from __future__ import annotations

import os

from qcore.store import native
from qcore.store.base import Store
from qcore.store.sqlite import SqliteStore


def open_store(path: str | os.PathLike[str]) -> Store:
    """Open the SQLite file at ``path``, with the compiled writer where SQLite's C interface can be reached.

    ``QCORE_STORE=sqlite3`` keeps to the sqlite3 module.

    :raises EngineBusyError: another engine owns the file
    :raises StoreError: the file cannot be used; it was not touched
    """
    if native.available() and os.environ.get("QCORE_STORE") != "sqlite3":
        return native.NativeSqliteStore(path)
    return SqliteStore(path)
