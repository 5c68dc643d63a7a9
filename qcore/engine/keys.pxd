from libc.stdint cimport int64_t, uint32_t

from qcore.engine.job cimport Job
from qcore.engine.logs cimport Logs
from qcore.engine.queue cimport Queue
from qcore.structs.delayheap cimport DelayHeap

cdef enum KeyVerdict:           # what an add with a unique key comes to
    KEY_FREE = 0                # nobody holds it, or no longer: admit, and take it
    KEY_HELD = 1                # the holder is the answer
    KEY_EXTENDED = 2            # likewise, and the time of the key starts over
    KEY_REPLACED = 3            # the holder makes way
    KEY_PASSED = 4              # the holder runs on without its key
    KEY_KEPT = 5                # the holder is gone, the time of its key is not over
    KEY_BUSY = 6                # refused: the time of a job at work cannot be extended
    KEY_TIED = 7                # refused: a job that others are tied to cannot make way


cdef class Keys(Logs):
    cdef dict kept_keys         # number -> (queue, key, its end in ms, id of the job that is gone, handle)
    cdef DelayHeap key_ends     # those numbers by the end of their time (wall ms)
    cdef list spare_numbers
    cdef uint32_t last_number
    cdef str kept_by            # the job of the last KEY_KEPT

    cdef int c_judge_key(self, Queue q, dict extra, int64_t now_ms, uint32_t *holder) except -1
    cdef str c_key_refusal(self, int verdict, str holder)
    cdef object c_missing(self, list members, set added, set gone, dict lost)
    cdef int c_take_key(self, Queue q, uint32_t slot, dict extra, int64_t now_ms) except -1
    cdef int c_pass_key(self, Queue q, uint32_t slot) except -1
    cdef int c_release_key(self, uint32_t slot, Job *job) except -1
    cdef bint c_key_free(self, uint32_t slot, int64_t now_ms) except -1
    cdef int c_retake_key(self, uint32_t slot, Job *job, int64_t now_ms) except -1
    cdef int c_restore_key(self, uint32_t slot, Job *job, int64_t now_ms) except -1
    cdef int c_drop_key(self, Queue q, uint32_t slot) except -1
    cdef int c_keep_key(self, Queue q, object key, int64_t expires_ms, str job_id) except -1
    cdef int c_restore_kept(self, uint32_t number, Queue q, object key, int64_t expires_ms, str job_id) except -1
    cdef int c_drop_kept(self, uint32_t number) except -1
    cdef int c_check_keys(self) except -1

cdef object key_of(dict extra)
