from libc.stdint cimport int64_t, uint32_t

from qcore.engine.flows cimport Flows


cdef class Schedules(Flows):
    pass
