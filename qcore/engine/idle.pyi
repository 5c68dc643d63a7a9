from __future__ import annotations

from typing_extensions import disjoint_base

from qcore.engine.schedules import Schedules

@disjoint_base
class Idle(Schedules):
    def forget_idle(self, now_ns: int) -> bool: ...
