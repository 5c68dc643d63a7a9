from libc.stdint cimport int64_t, uint32_t, uint64_t

from qcore.engine.capacity cimport Capacity
from qcore.engine.job cimport Blob, Job, Run
from qcore.engine.lanes cimport Wanted
from qcore.engine.queue cimport Queue, RunList
from qcore.structs.delayheap cimport DelayHeap

cdef enum:
    PROMOTIONS = 50000          # due jobs moved in one turn, so that a flood cannot stall the host
    REMOVALS = 1000             # finished jobs removed by the policy of one
    SKIPS = 100                 # ... and looked at in vain, because others need them

cdef enum Admission:            # how c_add answered
    ADDED = 1
    EXISTING = 2                # a live job holds the id: nothing was stored
    REUSED = 3                  # a finished job held the id: a new generation began
    DUPLICATE = 4               # a live job holds the unique key: nothing was stored
    THROTTLED = 5               # likewise, but that job is gone: there is no slot, `kept_by` has its id
    REPLACED = 6                # the key passed over from a live job

cdef enum Verdict:              # whether a caller may act on a job
    MAY = 0
    NOT_ACTIVE = 1
    TOKEN_MISSING = 2
    TOKEN_WRONG = 3
    ALREADY_FINAL = 4           # the delivery of this token was ended by the engine
    LATE = 5                    # the lease ran out, the job is queued again, the work is done

cdef enum TokenKind:            # what the caller presented
    NO_TOKEN = 0
    BAD_TOKEN = 1               # not in the form of a token: equals none
    TOKEN = 2

# What an admission needs to know. Strings are borrowed, `data` passes to the engine.
cdef struct Spec:
    const char *id_text         # custom id, UTF-8; NULL = none
    Py_ssize_t id_n
    Blob *data                  # NULL = none
    double priority
    int64_t created_ms
    int64_t run_ms
    uint32_t name
    uint32_t max_attempts
    uint32_t backoff_ms
    uint32_t flags


cdef object dead_due(dict letter)


cdef class Transitions(Capacity):
    cdef readonly list faults       # what went wrong unexpectedly: (what it came to, error), for the host to report

    cdef c_fault(self, str what, object error)
    cdef int c_follow_completed(self, uint32_t slot, int64_t now_ms) except -1
    cdef int c_follow_failed(self, uint32_t slot, str error, int64_t now_ms) except -1
    cdef int c_put_off(self, DelayHeap heap, uint32_t item, int64_t until, object error) except -1
    cdef bint c_is_taken(self, uint32_t slot, const char *text, Py_ssize_t n) except -1
    cdef Queue c_queue_for(self, str queue, const char *text, Py_ssize_t n)
    cdef uint32_t c_add(self, Queue q, Spec *spec, object extra, int64_t now_ms, bint staged, int *how) except? 0
    cdef uint32_t c_duplicate(self, Queue q, int verdict, uint32_t holder, dict extra, int64_t now_ms,
                              int *how) except? 0
    cdef uint32_t c_rare_flags(self, dict extra) except? 0
    cdef int c_trim(self, Queue q, RunList *list_, object policy, int64_t now_ms) except -1
    cdef Py_ssize_t c_cut(self, Queue q, RunList *list_, Py_ssize_t over, int64_t oldest_ms) except -1
    cdef int c_retrim(self) except -1
    cdef int c_let_go(self, Queue q, uint32_t slot, Job *job, Run *run) except -1
    cdef int c_publish(self, uint32_t slot, int64_t now_ms, bint staged=*) except -1
    cdef int c_enqueue(self, Queue q, uint32_t slot, Job *job, int64_t now_ms) except -1
    cdef int c_enter_ready(self, Queue q, uint32_t slot, Job *job) except -1
    cdef int c_line_up(self) except -1
    cdef int c_unqueue(self, Queue q, uint32_t slot, Job *job) except -1
    cdef int c_promote(self, Queue q, int64_t now_ms, int limit) except -1
    cdef int c_set_due(self, Queue q) except -1
    cdef uint32_t c_claim(self, Queue q, int64_t now_ms, int64_t now_ns, int64_t lease_ms, uint32_t session,
                          Wanted wanted) except? 0
    cdef uint32_t c_candidate(self, Queue q, Wanted wanted, int64_t now_ns) except? 0
    cdef uint32_t c_candidate_in_turn(self, Queue q, Wanted wanted, int64_t now_ns) except? 0
    cdef int c_enter_active(self, Queue q, Job *job, Run *run) except -1
    cdef int c_judge(self, uint32_t slot, int kind, uint64_t hi, uint64_t lo) except -1
    cdef int c_leave_active(self, Queue q, uint32_t slot, Job *job, Run *run) except -1
    cdef void c_end(self, Job *job, int64_t now_ms) noexcept
    cdef int c_complete(self, uint32_t slot, Blob *result, bint remove, int64_t now_ms) except -1
    cdef int c_complete_late(self, uint32_t slot, Blob *result, bint remove, int64_t now_ms) except -1
    cdef bint c_renew(self, uint32_t slot, int kind, uint64_t hi, uint64_t lo, int64_t lease_ms,
                      int64_t now_ms, int64_t now_ns) except? 0
    cdef int c_arm(self, uint32_t slot, Run *run) except -1
    cdef int c_fail(self, uint32_t slot, str error, object stack, str reason, bint final, bint remove,
                    int64_t now_ms) except -1
    cdef int c_bury(self, Queue q, uint32_t slot, Job *job, str reason, object error, int64_t now_ms) except -1
    cdef int c_note_retry(self, Job *job, dict extra, int64_t now_ms) except -1
    cdef int c_requeue(self, Queue q, uint32_t slot, Job *job, int64_t now_ms, bint later) except -1
    cdef int c_forget(self, uint32_t slot) except -1
    cdef int c_evict(self, uint32_t slot) except -1
    cdef int c_readmit(self, uint32_t slot, Job *job) except -1
    cdef Py_ssize_t c_expire(self, int64_t until_ms, Py_ssize_t most) except -1
    cdef int c_forget_done(self, uint32_t slot, Job *job, Queue q) except -1
    cdef int c_postpone(self, uint32_t slot, int64_t run_ms, int64_t now_ms) except -1
    cdef int c_retime(self, uint32_t slot, int64_t run_ms, int64_t now_ms) except -1
    cdef int c_revive(self, uint32_t slot, int64_t now_ms) except -1
    cdef int c_release(self, uint32_t slot, int64_t now_ms) except -1
    cdef int c_abandon(self, uint32_t slot, int64_t now_ms) except -1
    cdef int c_discard(self, uint32_t slot, int64_t now_ms) except -1
    cdef int c_redo(self, uint32_t slot, int64_t now_ms) except -1
    cdef int c_reprioritise(self, uint32_t slot, double priority, int lifo, int64_t now_ms) except -1
    cdef int c_replace_data(self, uint32_t slot, Blob *data) except -1
    cdef int c_progress(self, uint32_t slot, object progress, object message, int64_t now_ms,
                        int64_t now_ns) except -1
    cdef Py_ssize_t c_drain(self, Queue q) except -1
    cdef Py_ssize_t c_purge(self, Queue q, Py_ssize_t kept) except -1
    cdef int c_obliterate(self, Queue q) except -1
    cdef int c_configure(self, Queue q, dict dead, dict stalls) except -1
    cdef void c_forget_evidence(self, Job *job) noexcept
    cdef void c_leave_dead(self, Queue q, Run *run) noexcept
    cdef int64_t c_backoff(self, Job *job, dict extra, uint32_t attempts) except? -1
    cdef int c_record(self, Job *job, Run *run, dict extra, str reason, str error, int64_t now_ms) except -1
    cdef c_history(self, Job *job, Run *run, dict extra, str reason, str error, int64_t now_ms)
    cdef c_finalise(self, uint64_t hi, uint64_t lo, str outcome)
    cdef int64_t c_leases_over(self, int64_t now_ns) noexcept
    cdef int64_t c_next_due(self, int64_t now_ms, int64_t past_ns, int64_t now_ns) except? -2
    cdef int c_begin_life(self, uint32_t slot, Job *job) except -1
    cdef int c_end_life(self, uint32_t slot) except -1
    cdef bint c_is_watched(self, Queue q, Run *run) noexcept
    cdef int c_watch(self, Queue q, Run *run) except -1
    cdef int c_beat(self, uint32_t slot, Run *run, int64_t now_ms, int64_t now_ns) except -1
    cdef dict c_letter(self, Queue q, dict extra, str reason, object error, int64_t now_ms)
    cdef int c_set_dead_end(self, uint32_t slot, Job *job, Run *run) except -1
    # Overridden by the layers above
    cdef int c_deadline(self, uint32_t slot, int64_t now_ms, int64_t now_ns) except -1
    cdef int c_end_dead(self, uint32_t slot, int64_t now_ms) except -1
    cdef bint c_may_restart(self, uint32_t slot, int64_t now_ms) except -1
    cdef int c_check_queue(self, Queue q, int64_t now_ms, int64_t now_ns) except -1
    cdef int c_advance_more(self, int64_t now_ms, int64_t now_ns, int left) except -1
    cdef int64_t c_next_more(self, int64_t now_ms, int64_t past_ns, int64_t now_ns) except? -2
    cdef int c_after_completed(self, uint32_t slot, int64_t now_ms) except -1
    cdef int c_after_failed(self, uint32_t slot, str error, int64_t now_ms) except -1
    cdef int c_before_forgotten(self, uint32_t slot) except -1
    cdef int c_put_parked(self, Queue q, uint32_t slot, Job *job) except -1
    cdef int c_take_parked(self, Queue q, uint32_t slot, Job *job) except -1
    cdef int c_link(self, uint32_t slot, int64_t now_ms) except -1
    cdef bint c_hold(self, uint32_t slot, Job *job) except -1
    cdef int c_after_parked(self, uint32_t slot, int64_t now_ms) except -1
    cdef int c_after_revived(self, uint32_t slot) except -1
    cdef int c_advance(self, int64_t now_ms, int64_t now_ns) except -1
