"""How many jobs of a queue ended in one way, by minute.

The open minute is two numbers; minutes that are over stand in a deque, so that an
outcome costs the same whether one minute is kept or two weeks of them: old minutes
are dropped only when a new one begins.
"""

cimport cython
from libc.stdint cimport int64_t

from collections import deque


@cython.final
cdef class Meter:
    """Outcomes of one kind: their total, the latest, and their number in each kept minute.

    When the wall clock is set back, what comes counts in the open minute; closed ones never change.
    """

    cdef inline bint c_count(self, int64_t now_ms) noexcept:
        """Count one outcome. False: a new minute begins, :meth:`c_open` has to follow. O(1)."""
        self.total += 1
        self.prev_ms = now_ms
        if now_ms >= self.until_ms:
            return False
        self.prev_count += 1
        return True

    cdef object c_open(self, int64_t now_ms, int64_t max_minutes):
        """Begin the minute of ``now_ms`` with one outcome; (the minute closed or None, dropped minutes).

        Keeps ``max_minutes`` with the open one. Amortised O(1).
        """
        cdef object over = None
        cdef list dropped = []
        if self.until_ms and max_minutes > 1:
            over = (self.minute, self.prev_count)
            if self.closed is None:
                self.closed = deque()
            self.closed.append(over)
        self.minute = now_ms // MINUTE_MS
        self.until_ms = (self.minute + 1) * MINUTE_MS
        self.prev_count = 1
        while self.closed and self.closed[0][0] <= self.minute - max_minutes:
            dropped.append(self.closed.popleft()[0])
        if over is not None and over[0] <= self.minute - max_minutes:
            over = None                     # dropped at once, and listed so
        return over, dropped

    @property
    def minutes(self):
        """Number of outcomes by minute since the epoch, of the kept minutes that have some."""
        cdef dict out = dict(self.closed or ())
        if self.until_ms:
            out[self.minute] = self.prev_count
        return out

    def page(self, int64_t start=0, int64_t end=-1):
        """(numbers by minute from the ``start``-th to the ``end``-th, newest first, minutes in all).

        Both ends are included; negative ones count from the oldest. Minutes without an
        outcome stand as 0. O(kept minutes).
        """
        cdef dict counts = self.minutes
        cdef int64_t n, i
        if not self.until_ms:
            return [], 0
        n = self.minute - (self.closed[0][0] if self.closed else self.minute) + 1
        start = max(0, start + n if start < 0 else start)
        end = min(n - 1, end + n if end < 0 else end)
        return [counts.get(self.minute - i, 0) for i in range(start, end + 1)], n

    def _check(self, int64_t max_minutes):
        """The minutes stand in order, inside the bound, and hold no more than the total."""
        cdef int64_t before = -1
        for minute, count in self.closed or ():
            assert before < minute < self.minute, f"minute {minute} after {before}, open is {self.minute}"
            assert minute > self.minute - max_minutes and count > 0
            before = minute
        assert self.until_ms in (0, (self.minute + 1) * MINUTE_MS)
        assert (self.prev_count > 0) == (self.until_ms > 0) == (self.total > 0)
        assert sum(self.minutes.values()) <= self.total
