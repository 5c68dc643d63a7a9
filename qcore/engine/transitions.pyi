from __future__ import annotations

from qcore.engine.table import Table

class Transitions(Table): ...
