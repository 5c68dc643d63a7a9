from __future__ import annotations

from qcore.engine.transitions import Transitions

class Flows(Transitions): ...
