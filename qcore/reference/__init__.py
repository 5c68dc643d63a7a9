"""The structures of ``qcore.structs`` in plain Python: obvious rather than fast.

They have the same Python interface and serve as the measure of right in the tests.
"""

from __future__ import annotations

from qcore.reference.delayheap import DelayHeap
from qcore.reference.skiplist import SkipList
from qcore.reference.tokens import CompletionTokens

__all__ = ["CompletionTokens", "DelayHeap", "SkipList"]
