from __future__ import annotations

from qcore.engine.capacity import Capacity

class Transitions(Capacity): ...
