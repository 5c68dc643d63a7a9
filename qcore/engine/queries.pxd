from libc.stdint cimport int64_t, uint32_t

from qcore.engine.queue cimport Queue
from qcore.engine.schedules cimport Schedules


cdef class Queries(Schedules):
    cdef uint32_t c_known(self, str job_id) except? 0
    cdef list c_listed(self, Queue q, object states)
    cdef list c_select(self, Queue q, object states, Py_ssize_t offset, Py_ssize_t limit, bint asc, int64_t now_ms)
