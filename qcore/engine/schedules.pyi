from __future__ import annotations

from qcore.engine.flows import Flows

class Schedules(Flows): ...
