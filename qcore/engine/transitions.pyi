from __future__ import annotations

from typing_extensions import disjoint_base

from qcore.engine.capacity import Capacity

@disjoint_base
class Transitions(Capacity):
    @property
    def faults(self) -> list[tuple[str, Exception]]: ...
    def take_faults(self) -> list[tuple[str, Exception]]: ...
