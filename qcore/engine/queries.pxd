from libc.stdint cimport int64_t, uint32_t

from qcore.engine.idle cimport Idle
from qcore.engine.job cimport Job
from qcore.engine.listing cimport Listing
from qcore.engine.queue cimport Queue, RunList


cdef class Queries(Idle):
    cdef uint32_t c_known(self, str job_id) except? 0
    cdef bint c_admitted_since(self, str job_id, int64_t since_ms, object created_ms) except -1
    cdef list c_queued(self, Queue q)
    cdef list c_kinds(self, Queue q, object states)
    cdef int c_kind(self, Job *job) noexcept
    cdef Listing c_index(self, Queue q)
    cdef object c_by_creation(self)
    cdef object c_by_id(self)
    cdef list c_ended(self, RunList *list_, int64_t until_ms, Py_ssize_t limit, bint needed=*)
    cdef list c_completed(self, Queue q, int64_t until_ms, Py_ssize_t limit, bint needed)
    cdef tuple c_end_of(self, uint32_t slot)
    cdef list c_created(self, Queue q, object states, int64_t until_ms, Py_ssize_t limit)
    cdef int c_check_listing(self, Queue q) except -1
    cdef Py_ssize_t c_page_out(self, list moment, bint custom, bint asc, Py_ssize_t offset, Py_ssize_t limit,
                               list out) except -1
    cdef list c_select(self, Queue q, object states, Py_ssize_t offset, Py_ssize_t limit, bint asc, int64_t now_ms)
