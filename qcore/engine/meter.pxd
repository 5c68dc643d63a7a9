from libc.stdint cimport int64_t

cdef enum:
    MINUTE_MS = 60000


cdef class Meter:
    cdef readonly int64_t total             # outcomes ever
    cdef readonly int64_t prev_ms           # time of the latest one; 0 = none
    cdef readonly int64_t prev_count        # outcomes of the open minute
    cdef readonly int64_t minute            # number of the open minute since the epoch
    cdef int64_t until_ms                   # end of the open minute; 0 = none is open
    cdef object closed                      # deque of (minute, count), oldest first; None until there is one

    cdef bint c_count(self, int64_t now_ms) noexcept
    cdef object c_open(self, int64_t now_ms, int64_t max_minutes)
