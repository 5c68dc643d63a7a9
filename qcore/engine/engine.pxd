cimport cython
from libc.stdint cimport uint32_t, uint64_t

from qcore.engine.transitions cimport Transitions


@cython.final
cdef class Engine(Transitions):
    cdef tuple c_delivery(self, uint32_t slot)

cdef int present_token(object token, uint64_t *hi, uint64_t *lo) except -1
