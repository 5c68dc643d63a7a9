cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from qcore.engine.queries cimport Queries


@cython.final
cdef class Engine(Queries):
    cdef tuple c_delivery(self, uint32_t slot)
    cdef bint c_keep(self, uint32_t slot, str option, object policy) except -1
    cdef int c_demand(self, uint32_t slot, object token, str job_id) except -1

cdef int present_token(object token, uint64_t *hi, uint64_t *lo) except -1
