from __future__ import annotations

from typing import Any, Final

from typing_extensions import disjoint_base

from qcore.engine.ids import IdSource

STATE_NAMES: Final[dict[int, str]]
EVENT_BITS: Final[dict[str, int]]

@disjoint_base
class Table:
    def __new__(
        cls,
        seed: bytes,
        *,
        tracking: bool = False,
        archive: bool = False,
        max_completed: int = 50_000,
        max_events: int = 10_000,
        max_minutes: int = 20_160,
        max_waiting_deps: int = 10_000,
    ) -> Table: ...
    @property
    def ids(self) -> IdSource: ...
    @property
    def archive(self) -> bool: ...
    @property
    def events(self) -> list[tuple[str, str, str, int, Any]]: ...
    @property
    def max_events(self) -> int: ...
    @property
    def max_minutes(self) -> int: ...
    @property
    def busy_ms(self) -> int: ...
    @property
    def max_waiting_deps(self) -> int: ...
    @property
    def n_changes(self) -> int: ...
