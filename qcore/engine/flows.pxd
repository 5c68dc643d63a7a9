from libc.stdint cimport int64_t, uint32_t

from qcore.engine.transitions cimport Transitions


cdef class Flows(Transitions):
    pass
