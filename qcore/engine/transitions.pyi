from __future__ import annotations

from qcore.engine.capacity import Capacity

class Transitions(Capacity):
    @property
    def faults(self) -> list[tuple[str, Exception]]: ...
    def take_faults(self) -> list[tuple[str, Exception]]: ...
