from __future__ import annotations

from typing_extensions import disjoint_base

from qcore.engine.table import Table

@disjoint_base
class Logs(Table): ...
