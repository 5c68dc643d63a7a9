from libc.stdint cimport int64_t, uint32_t

from qcore.engine.queue cimport Queue
from qcore.engine.transitions cimport Transitions

cdef enum Requeue:              # how a job goes back to its queue
    AT_ONCE = 0
    AFTER_BACKOFF = 1


cdef class Losses(Transitions):
    cdef int c_lost(self, uint32_t slot, str error, str dead_error, str stalled_error, int64_t now_ms,
                    int how=*) except -1
    cdef int c_cut_off(self, uint32_t slot, int64_t now_ms) except -1
    cdef int c_stalled(self, uint32_t slot, int64_t now_ms) except -1
    cdef int c_find_stalled(self, Queue q, int64_t now_ms, int64_t now_ns) except -1
    cdef list c_choose_dead(self, Queue q, dict wanted, int64_t now_ms, Py_ssize_t offset, Py_ssize_t limit)
    cdef c_check_losses(self)
