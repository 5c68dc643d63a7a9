from libc.stdint cimport int64_t

from qcore.engine.job cimport Job
from qcore.engine.keys cimport Keys
from qcore.engine.lanes cimport Group, Lanes, Wanted
from qcore.engine.queue cimport Queue


cdef class Capacity(Keys):
    cdef bint c_has_room(self, Queue q, int64_t now_ns) except? 0
    cdef int c_end_rate(self, Queue q) except -1
    cdef int c_set_check(self, Queue q, int64_t at_ns) except -1
    cdef int c_expect(self, Queue q, int64_t now_ns) except -1
    cdef Lanes c_lane(self, Queue q, Job *job)
    cdef Group c_group_of(self, Queue q, Job *job)
    cdef int c_group_delay(self, Queue q, Job *job, int change) except -1
    cdef int c_group_stage(self, Queue q, Job *job, int change) except -1
    cdef int c_take_turn(self, Queue q, Job *job, Wanted wanted, int64_t now_ns) except -1
    cdef int c_take_plain_turn(self, Queue q) except -1
    cdef int c_leave_group(self, Queue q, Job *job) except -1
    cdef int c_expire_groups(self, Queue q, int64_t now_ns) except -1
    cdef int c_note_group(self, Queue q, Group g) except -1
    cdef int c_reset_groups(self, Queue q) except -1
    cdef int c_changed_group(self, Queue q, Group g) except -1
    cdef Group c_known_group(self, str queue, str group)
    cdef c_check_capacity(self)
