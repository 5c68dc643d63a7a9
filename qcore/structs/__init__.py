"""The compiled structures of the engine. They hold numbers only, no Python objects.

=========== ========================= ==========================================
module      class                     serves as
=========== ========================= ==========================================
skiplist    ``SkipList``              jobs that wait, in the order of running
delayheap   ``DelayHeap``             jobs and leases with a time, earliest first
tokens      ``CompletionTokens``      jobs that have finished, oldest forgotten
idtable     ``IdTable``               job id to slot
siphash     (functions)               the keyed hash of the tables
=========== ========================= ==========================================

Each class has a plain twin in ``qcore.reference``, but for the table, and a ``_check()``
that verifies all of its invariants in O(n).
"""

from __future__ import annotations

try:
    from qcore.structs.delayheap import DelayHeap
    from qcore.structs.idtable import IdTable
    from qcore.structs.skiplist import SkipList
    from qcore.structs.tokens import CompletionTokens
except ModuleNotFoundError as error:
    raise ImportError(
        f"{error.name} is not compiled; build it with 'python setup.py build_ext --inplace' "
        "or install the package with pip"
    ) from error

__all__ = ["CompletionTokens", "DelayHeap", "IdTable", "SkipList"]
