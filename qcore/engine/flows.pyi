from __future__ import annotations

from qcore.engine.losses import Losses

class Flows(Losses): ...
