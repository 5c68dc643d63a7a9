from __future__ import annotations

from qcore.engine.keys import Keys

class Transitions(Keys): ...
