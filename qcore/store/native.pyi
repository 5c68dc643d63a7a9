from __future__ import annotations

from collections.abc import Iterator
from typing import final

from qcore.store.base import Row
from qcore.store.sqlite import SqliteStore

SCAN_CACHE_KIB: int

def available() -> bool: ...

@final
class RowCursor(Iterator[Row]):
    over: bool
    def __new__(cls, store: NativeSqliteStore) -> RowCursor: ...
    def __iter__(self) -> RowCursor: ...
    def __next__(self) -> Row: ...

class NativeSqliteStore(SqliteStore):
    takes_packed: bool
