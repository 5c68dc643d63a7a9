"""Clocks: the only place where time is read."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings: wall clock in ms since the epoch, monotonic clock in ns."""

    def now_ms(self) -> int: ...

    def now_ns(self) -> int: ...


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def now_ns(self) -> int:
        return time.monotonic_ns()


class ManualClock:
    """A clock that moves only when told; for tests and simulations.

    The two readings move together with :meth:`advance`; :meth:`set_wall` steps
    the wall clock alone, as an operator or NTP would.
    """

    __slots__ = ("_ms", "_ns")

    def __init__(self, ms: int = 1_700_000_000_000, ns: int = 1_000_000_000) -> None:
        self._ms = ms
        self._ns = ns

    def now_ms(self) -> int:
        return self._ms

    def now_ns(self) -> int:
        return self._ns

    def advance(self, ms: int) -> None:
        """Move both clocks forward by ``ms`` milliseconds."""
        self._ms += ms
        self._ns += ms * 1_000_000

    def set_wall(self, ms: int) -> None:
        """Set the wall clock, leaving the monotonic one alone."""
        self._ms = ms
