cimport cython
from libc.stdint cimport int64_t, uint32_t

from qcore.structs.skiplist cimport SkipList, SkipNode

cdef enum Listed:               # what jobs are listed under
    L_WAITING, L_PRIORITIZED, L_DELAYED, L_ACTIVE, L_COMPLETED, L_FAILED, L_PARKED
    N_LISTED

cdef struct Tallied:
    double priority
    int64_t n
    bint used


@cython.final
cdef class Listing:
    cdef readonly bint broken   # memory ran out: to be built anew
    cdef list states            # a SkipList each: (0, created ms, seq) -> slot
    cdef Py_ssize_t n_custom    # jobs whose ids the callers gave
    cdef void c_put(self, int which, int64_t created_ms, int64_t seq, uint32_t slot, bint custom) noexcept
    cdef void c_drop(self, int which, int64_t created_ms, int64_t seq, bint custom) noexcept
    cdef SkipList c_state(self, int which)


@cython.final
cdef class Page:
    cdef Listing listing
    cdef bint asc
    cdef int n
    cdef list lists
    cdef SkipNode *heads[N_LISTED]
    cdef int c_least(self) noexcept
    cdef uint32_t c_next(self) noexcept


@cython.final
cdef class Tally:
    cdef readonly Py_ssize_t total
    cdef readonly bint overflown        # more priorities than it holds: they have to be counted
    cdef Tallied *places
    cdef uint32_t n_places
    cdef uint32_t n_used
    cdef uint32_t last
    cdef void c_count(self, double priority, int by) noexcept
    cdef uint32_t c_place(self, double priority) noexcept
    cdef bint c_find(self, double priority) noexcept
    cdef bint c_rehash(self) noexcept
