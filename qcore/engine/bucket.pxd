cimport cython
from libc.stdint cimport int64_t


@cython.final
cdef class TokenBucket:
    cdef readonly int64_t most              # starts that a full bucket allows; 0 = none ever
    cdef readonly int64_t span_ms           # time in which an empty bucket fills
    cdef readonly int64_t ends_ns           # the limit is gone from then on; 0 = it stays
    cdef readonly int64_t ends_ms, ttl_ms   # the same on the wall clock and as a duration, for the store
    cdef readonly double debt_ns            # time until the bucket is full, as of at_ns
    cdef int64_t at_ns
    cdef readonly int64_t at_ms             # at_ns on the wall clock, for the store

    cdef double c_debt(self, int64_t now_ns) noexcept
    cdef int64_t c_wait(self, int64_t now_ns) noexcept
    cdef void c_take(self, int64_t now_ms, int64_t now_ns) noexcept
