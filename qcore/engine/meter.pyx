"""How many jobs of a queue ended in one way, by minute.

The open minute is two numbers; minutes that are over stand in a ring, so that an
outcome costs the same whether one minute is kept or two weeks of them: old minutes
are dropped only when a new one begins. 16 bytes a minute, up to twice that while it grows.
"""

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint32_t


@cython.final
cdef class Meter:
    """Outcomes of one kind: their total, the latest, and their number in each kept minute.

    When the wall clock is set back, what comes counts in the open minute; closed ones never change.
    """

    def __dealloc__(self):
        PyMem_Free(self.closed)

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
        cdef int64_t oldest
        if self.until_ms and max_minutes > 1:
            self.c_close(self.minute, self.prev_count)
            over = (self.minute, self.prev_count)
        self.minute = now_ms // MINUTE_MS
        self.until_ms = (self.minute + 1) * MINUTE_MS
        self.prev_count = 1
        while self.n_closed and self.c_closed(0).minute <= self.minute - max_minutes:
            oldest = self.c_closed(0).minute
            dropped.append(oldest)
            self.first = (self.first + 1) & (self.cap - 1)
            self.n_closed -= 1
        if over is not None and over[0] <= self.minute - max_minutes:
            over = None                     # dropped at once, and listed so
        return over, dropped

    cdef inline Minute *c_closed(self, uint32_t i) noexcept:
        """The i-th kept minute that is over, oldest first."""
        return &self.closed[(self.first + i) & (self.cap - 1)]

    cdef int c_close(self, int64_t minute, int64_t count) except -1:
        """A minute is over: keep it as the newest one."""
        cdef uint32_t cap, i
        cdef Minute *closed
        if self.n_closed == self.cap:
            cap = 2 * self.cap if self.cap else 4
            closed = <Minute *>PyMem_Malloc(cap * sizeof(Minute))
            if closed == NULL:
                raise MemoryError
            for i in range(self.n_closed):
                closed[i] = self.c_closed(i)[0]
            PyMem_Free(self.closed)
            self.closed = closed
            self.cap = cap
            self.first = 0
        self.n_closed += 1
        self.c_closed(self.n_closed - 1).minute = minute
        self.c_closed(self.n_closed - 1).count = count
        return 0

    @property
    def minutes(self):
        """Number of outcomes by minute since the epoch, of the kept minutes that have some."""
        cdef dict out = {}
        cdef uint32_t i
        for i in range(self.n_closed):
            out[self.c_closed(i).minute] = self.c_closed(i).count
        if self.until_ms:
            out[self.minute] = self.prev_count
        return out

    @property
    def nbytes(self):
        """Bytes held beside the object itself."""
        return self.cap * sizeof(Minute)

    def page(self, int64_t start=0, int64_t end=-1):
        """(numbers by minute from the ``start``-th to the ``end``-th, newest first, minutes in all).

        Both ends are included; negative ones count from the oldest. Minutes without an
        outcome stand as 0. O(kept minutes).
        """
        cdef dict counts = self.minutes
        cdef int64_t n, i
        if not self.until_ms:
            return [], 0
        n = self.minute - (self.c_closed(0).minute if self.n_closed else self.minute) + 1
        start = max(0, start + n if start < 0 else start)
        end = min(n - 1, end + n if end < 0 else end)
        return [counts.get(self.minute - i, 0) for i in range(start, end + 1)], n

    def _check(self, int64_t max_minutes):
        """The minutes stand in order, inside the bound, and hold no more than the total."""
        cdef int64_t before = -1, minute
        cdef uint32_t i
        assert self.n_closed <= self.cap
        for i in range(self.n_closed):
            minute = self.c_closed(i).minute
            assert before < minute < self.minute, f"minute {minute} after {before}, open is {self.minute}"
            assert minute > self.minute - max_minutes and self.c_closed(i).count > 0
            before = minute
        assert self.until_ms in (0, (self.minute + 1) * MINUTE_MS)
        assert (self.prev_count > 0) == (self.until_ms > 0) == (self.total > 0)
        assert sum(self.minutes.values()) <= self.total
