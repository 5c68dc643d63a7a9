from __future__ import annotations

from qcore.store.sqlite import SqliteStore

def available() -> bool: ...

class NativeSqliteStore(SqliteStore):
    takes_packed: bool
