from __future__ import annotations

from typing import Any

from typing_extensions import disjoint_base

from qcore.engine.logs import Logs

@disjoint_base
class Keys(Logs):
    def key_owner(self, queue: str, key: str, now_ms: int) -> str | None: ...
    def remove_key(self, queue: str, key: str, now_ms: int) -> bool: ...
    def plan_keys(
        self,
        queue: str,
        members: list[tuple[str | None, dict[str, Any] | None]],
        now_ms: int,
        *,
        unmade: set[str] | None = None,
    ) -> tuple[int, str] | None: ...
