from libc.stdint cimport int64_t, uint32_t

from qcore.engine.queue cimport Queue
from qcore.engine.schedules cimport Schedules


cdef class Idle(Schedules):
    cdef uint32_t looking       # index at which the look that goes on is to go on

    cdef bint c_is_empty(self, Queue q, int64_t now_ns) except -1
    cdef int c_forget_idle(self, int64_t now_ns) except -1
