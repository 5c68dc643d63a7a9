from libc.stdint cimport int64_t, uint32_t

from qcore.engine.losses cimport Losses


cdef class Flows(Losses):
    pass
