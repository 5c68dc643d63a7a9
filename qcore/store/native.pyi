from __future__ import annotations

from typing import ClassVar

from qcore.store.sqlite import SqliteStore

def available() -> bool: ...

class NativeSqliteStore(SqliteStore):
    takes_packed: ClassVar[bool]
