from libc.stdint cimport int64_t, uint32_t

from qcore.engine.job cimport Job
from qcore.engine.losses cimport Losses
from qcore.engine.queue cimport Queue


cdef enum:
    OPEN = 0                # not completed, or not there
    DONE = 1                # completed, with a record
    EVIDENCED = 2           # completed, the record is gone


cdef class Flows(Losses):
    cdef readonly list far_needed  # ids that live jobs are tied to, perhaps of archived jobs: for the host to read back
    cdef dict edges             # slot -> set of the ids that this job still waits for; never empty
    cdef dict children          # slot of a parent -> set of its childrenIds, made when first asked for
    cdef dict waiting           # queue index -> how many of its jobs have open edges; never 0
    cdef list failures          # terminal failures whose parents are still to be told
    cdef bint telling

    cdef set c_opened(self, uint32_t slot)
    cdef int c_settled(self, uint32_t slot) except -1
    cdef object c_beyond_waiting(self, str queue, Py_ssize_t n)
    cdef int c_need(self, str job_id, uint32_t slot) except -1
    cdef int c_keep_needed(self, uint32_t slot) except -1
    cdef int c_unneed(self, str job_id) except -1
    cdef int c_end_ties(self, uint32_t slot) except -1
    cdef int c_done_as(self, str job_id) except -1
    cdef int c_note_open(self, str job_id) except -1
    cdef int c_trace(self, uint32_t slot, Job *job) except -1
    cdef set c_children_of(self, uint32_t slot)
    cdef int c_attach(self, uint32_t parent, uint32_t child, int64_t now_ms) except -1
    cdef int c_detach(self, uint32_t parent, set gone, int64_t now_ms) except -1
    cdef int c_resolve(self, uint32_t slot, int64_t now_ms) except -1
    cdef int c_unpark(self, uint32_t slot, int64_t now_ms, bint tell) except -1
    cdef bint c_same_child(self, str job_id, object parent_id) except -1
    cdef int c_tell_parents(self, int64_t now_ms) except -1
    cdef int c_fail_parked(self, uint32_t slot, str child_id, str error, int64_t now_ms) except -1
    cdef object c_parent_of(self, uint32_t slot)
    cdef bint c_may_link(self, uint32_t parent, str token) except -1
    cdef bint c_park(self, uint32_t slot, int64_t now_ms, bint leave) except -1
    cdef int c_relink_all(self, int64_t now_ms) except -1
    cdef int c_check_flows(self) except -1
