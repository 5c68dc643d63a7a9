from libc.stdint cimport int64_t, uint32_t

from qcore.engine.flows cimport Flows
from qcore.engine.job cimport Job
from qcore.engine.queue cimport Queue
from qcore.engine.workers cimport Workers
from qcore.structs.delayheap cimport DelayHeap


cdef class Schedules(Flows):
    cdef readonly Workers workers   # who serves which queues
    cdef dict schedules             # name -> Schedule
    cdef list schedule_at           # number -> Schedule; entry 0 is None
    cdef list free_numbers          # of schedules that are gone
    cdef dict scheduled             # queue -> number of its schedules
    cdef DelayHeap slots            # schedules by their next slot (wall ms)
    cdef dict occurrences           # name -> id of its job that is queued or active, if overlap is prevented
    cdef int64_t looked_ms          # wall clock of the last look
    cdef dict successors            # id of a finished run of a chain -> id of the run after it
    cdef dict compiled              # (pattern, zone) -> Cron, of chains

    cdef int c_schedules_of(self, str queue, int change) except -1
    cdef int c_plan(self, object schedule) except -1
    cdef int c_unschedule(self, object schedule) except -1
    cdef int c_fire(self, object schedule, int64_t now_ms, int64_t now_ns) except -1
    cdef uint32_t c_occurrence(self, str name) except? 0
    cdef int c_end_occurrence(self, Job *job) except -1
    cdef int c_add_occurrence(self, object schedule, int64_t now_ms) except -1
    cdef int c_drop_key(self, Queue q, uint32_t slot) except -1
    cdef int c_drop_leftover(self, object schedule) except -1
    cdef int c_look_back(self, int64_t now_ms) except -1
    cdef bint c_is_occurrence(self, Job *job) except -1
    cdef int c_drop_occurrence(self, uint32_t slot, bint stalled, int64_t now_ms) except -1
    cdef int c_succeed(self, uint32_t slot, int64_t now_ms) except -1
    cdef int c_try_succeed(self, uint32_t slot, int64_t now_ms) except -1
    cdef uint32_t c_follow(self, str job_id) except? 0
    cdef c_check_schedules(self)
