from __future__ import annotations

from typing import Any

from qcore.engine.transitions import Transitions

class Losses(Transitions):
    def choose_dead(
        self,
        queue: str,
        now_ms: int,
        *,
        wanted: dict[str, Any] | None = None,
        offset: int = 0,
        limit: int = -1,
    ) -> list[str]: ...
    def dead_letter_stats(self, queue: str, now_ms: int) -> dict[str, Any]: ...
