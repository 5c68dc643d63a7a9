"""A token bucket that keeps one number: how long until it is full again.

A full bucket holds ``most`` tokens and an empty one fills in ``span_ms``, steadily. Taking
a token moves the time of being full by ``span_ms / most``; a token is there as long as that
time is at least one token away from a whole span. (This is the virtual scheduling form of
the generic cell rate algorithm, ITU-T I.371.) So in any interval of T ms at most
``most * (1 + T / span_ms)`` tokens are taken, whatever the pattern of takers.
"""

cimport cython
from libc.math cimport ceil
from libc.stdint cimport int64_t


@cython.final
cdef class TokenBucket:
    """``most`` tokens that come back within ``span_ms``. Full at first, or as ``debt_ns`` says. All O(1)."""

    def __cinit__(self, int64_t most, int64_t span_ms, int64_t now_ms, int64_t now_ns, *, double debt_ns=0,
                  int64_t ttl_ms=0, int64_t ends_ms=0):
        self.most = most
        self.span_ms = span_ms
        self.debt_ns = min(max(0.0, debt_ns), span_ms * 1e6)
        self.at_ms = now_ms
        self.at_ns = now_ns
        if ttl_ms:
            self.ttl_ms = ttl_ms
            self.ends_ms = ends_ms if ends_ms else now_ms + ttl_ms
            # No longer than it was set for, whatever the wall clock did meanwhile.
            self.ends_ns = now_ns + max(<int64_t>0, min(self.ends_ms - now_ms, ttl_ms)) * 1000000

    cdef double c_debt(self, int64_t now_ns) noexcept:
        return max(0.0, self.debt_ns - (now_ns - self.at_ns))

    cdef int64_t c_wait(self, int64_t now_ns) noexcept:
        """Nanoseconds until a token is there; 0 = one is, -1 = there never will be one."""
        cdef double over
        if self.most == 0:
            return -1
        over = self.c_debt(now_ns) - (self.span_ms * 1e6) * (self.most - 1) / self.most
        # Half a nanosecond is rounding, not waiting.
        return <int64_t>ceil(over) if over >= 0.5 else 0

    cdef void c_take(self, int64_t now_ms, int64_t now_ns) noexcept:
        """Take the token that is there."""
        self.debt_ns = self.c_debt(now_ns) + (self.span_ms * 1e6) / self.most
        self.at_ns = now_ns
        self.at_ms = now_ms

    def wait_ns(self, int64_t now_ns):
        """Nanoseconds until a token is there; 0 = one is, -1 = there never will be one."""
        return self.c_wait(now_ns)

    def used(self, int64_t now_ns):
        """Tokens that are taken and not back yet, as a number with a fraction."""
        return self.c_debt(now_ns) * self.most / (self.span_ms * 1e6)
