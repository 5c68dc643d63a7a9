from __future__ import annotations

from typing import final

from qcore.engine.engine import Engine
from qcore.store.base import Cut, Row

class BadRow(ValueError): ...

@final
class Encoder: ...

def take_rows(engine: Engine, now_ms: int, now_ns: int) -> Cut: ...
def restore_names(
    engine: Engine,
    names: list[tuple[int, str]],
    queues: list[tuple[int, bytes]],
    now_ms: int = 0,
    now_ns: int = 0,
) -> None: ...
def restore_groups(
    engine: Engine, entries: list[tuple[int | str, bytes]], now_ms: int, now_ns: int
) -> list[str]: ...
def restore_counts(
    engine: Engine, telemetry: list[tuple[int | str, bytes]], minutes: list[tuple[int | str, bytes]]
) -> int: ...
def restore_side(
    engine: Engine, side: dict[str, list[tuple[int | str, bytes]]]
) -> list[tuple[str, int | str]]: ...
def restore(engine: Engine, row: Row, now_ms: int, now_ns: int) -> None: ...
def settle_active(engine: Engine, keep_leases: bool, charge: bool, now_ms: int) -> int: ...
