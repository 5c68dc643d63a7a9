from libc.stdint cimport int64_t, uint32_t

cdef enum:
    MINUTE_MS = 60000


ctypedef struct Minute:
    int64_t minute                          # number since the epoch
    int64_t count                           # its outcomes


cdef class Meter:
    cdef readonly int64_t total             # outcomes ever
    cdef readonly int64_t prev_ms           # time of the latest one; 0 = none
    cdef readonly int64_t prev_count        # outcomes of the open minute
    cdef readonly int64_t minute            # number of the open minute since the epoch
    cdef int64_t until_ms                   # end of the open minute; 0 = none is open
    cdef Minute *closed                     # a ring of the kept minutes that are over; NULL until there is one
    cdef uint32_t first, n_closed, cap      # place of the oldest; how many; places, 0 or a power of two

    cdef bint c_count(self, int64_t now_ms) noexcept
    cdef object c_open(self, int64_t now_ms, int64_t max_minutes)
    cdef Minute *c_closed(self, uint32_t i) noexcept
    cdef int c_close(self, int64_t minute, int64_t count) except -1
