from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from qcore.engine.ids cimport IdSource
from qcore.engine.job cimport Blob, Job, Run
from qcore.structs.delayheap cimport DelayHeap
from qcore.structs.idtable cimport IdTable
from qcore.structs.siphash cimport SipKey
from qcore.structs.skiplist cimport Key, SkipList
from qcore.structs.slab cimport Slab
from qcore.structs.tokens cimport CompletionTokens

cdef enum EventType:            # bits of a queue's event mask
    EV_PUSHED = 1
    EV_PULLED = 2
    EV_COMPLETED = 4
    EV_FAILED = 8
    EV_RETRIED = 16
    EV_STALLED = 32

cdef enum Admission:            # how c_add answered
    ADDED = 1
    EXISTING = 2                # a live job holds the id: nothing was stored
    REUSED = 3                  # a finished job held the id: a new generation began

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

# A list of jobs in one state, linked through their Run records, oldest first.
cdef struct RunList:
    uint32_t head
    uint32_t tail
    uint32_t n

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


cdef class Queue:
    cdef readonly uint32_t index
    cdef readonly str name
    cdef bytes name_packed
    cdef SkipList ready
    cdef DelayHeap delayed
    cdef uint32_t due           # handle in the engine's heap of queues with delayed jobs
    cdef RunList active, completed, failed
    cdef readonly Py_ssize_t n_prioritized      # of the ready ones
    cdef readonly Py_ssize_t n_staged
    cdef public bint paused
    cdef public uint32_t max_stalls             # 0 = unlimited
    cdef public uint32_t dlq_max_entries
    cdef public uint32_t event_mask
    cdef readonly int64_t total_pushed, total_pulled, total_completed, total_failed
    cdef readonly Py_ssize_t n_archived         # completed jobs that only the store holds
    cdef Py_ssize_t n_waits     # pulls that wait for a job; kept by the host
    cdef bint woken             # listed in the engine's wake list
    cdef bint dirty


cdef class Engine:
    cdef Slab jobs, runs
    cdef IdTable index
    cdef SipKey hash_key
    cdef readonly IdSource ids
    cdef dict queues            # name -> Queue
    cdef list queue_list        # index -> Queue; entry 0 is None
    cdef dict names             # job name -> index
    cdef list name_texts        # index -> str; entry 0 is None
    cdef list name_packed       # index -> packed bytes
    cdef DelayHeap due          # queues by their earliest delayed job (wall ms)
    cdef DelayHeap deadlines    # active jobs by lease end or timeout (monotonic ns)
    cdef CompletionTokens done  # finished ids, recent first out
    cdef int64_t seq, deliveries
    cdef readonly bint archive  # finished jobs evicted from memory stay in the store
    cdef bint tracking          # a store listens: changes are collected
    cdef uint32_t *dirty        # slots of changed jobs; 0 = gone since
    cdef uint32_t n_dirty, cap_dirty
    cdef list deleted           # sequence numbers of stored jobs that are gone
    cdef list new_names         # (index, text) not yet taken by the store
    cdef list dirty_queues
    cdef list woken             # queues with a waiting pull that may have got a job
    cdef readonly list events   # built only where someone listens
    cdef list settled           # outcomes of watched jobs: (id, kind, packed result or None)
    cdef dict final_tokens      # token -> outcome, of deliveries ended by the engine
    cdef object final_order
    cdef uint32_t *sessions     # session -> head of its deliveries
    cdef uint32_t cap_sessions
    cdef uint32_t spare_run     # a Run record in reserve
    cdef set evicted            # completed jobs out of memory as soon as the next cut has them

    cdef inline Job *job_at(self, uint32_t slot) noexcept:
        return <Job *>(self.jobs.chunks[slot >> 10] + (slot & 1023) * sizeof(Job))

    cdef inline Run *run_at(self, uint32_t slot) noexcept:
        return <Run *>(self.runs.chunks[slot >> 10] + (slot & 1023) * sizeof(Run))

    # names and queues
    cdef Queue c_queue(self, str name)
    cdef Queue c_queue_of(self, Job *job)
    cdef uint32_t c_name(self, str name) except? 0

    # identity
    cdef uint32_t c_find(self, const char *text, Py_ssize_t n) noexcept
    cdef uint32_t c_find_number(self, uint64_t hi, uint64_t lo) noexcept
    cdef Py_ssize_t c_id_text(self, Job *job, char *buffer, const char **text) noexcept
    cdef str c_id(self, Job *job)

    # admission
    cdef uint32_t c_add(self, Queue q, Spec *spec, object extra, int64_t now_ms, bint staged, int *how) except 0
    cdef int c_publish(self, uint32_t slot, int64_t now_ms) except -1
    cdef int c_enqueue(self, Queue q, uint32_t slot, Job *job, int64_t now_ms) except -1
    cdef int c_unqueue(self, Queue q, uint32_t slot, Job *job) except -1
    cdef int c_promote(self, Queue q, int64_t now_ms, int limit) except -1
    cdef int c_set_due(self, Queue q) except -1

    # delivery
    cdef uint32_t c_claim(self, Queue q, int64_t now_ms, int64_t now_ns, int64_t lease_ms, uint32_t session) except? 0
    cdef int c_judge(self, uint32_t slot, int kind, uint64_t hi, uint64_t lo) except -1
    cdef int c_leave_active(self, Queue q, uint32_t slot, Job *job, Run *run) except -1
    cdef int c_complete(self, uint32_t slot, Blob *result, bint remove, int64_t now_ms) except -1
    cdef int c_complete_late(self, uint32_t slot, Blob *result, bint remove, int64_t now_ms) except -1
    cdef bint c_renew(self, uint32_t slot, int kind, uint64_t hi, uint64_t lo, int64_t lease_ms,
                      int64_t now_ms, int64_t now_ns) except? 0
    cdef int c_arm(self, uint32_t slot, Run *run) except -1
    cdef int c_fail(self, uint32_t slot, str error, object stack, str reason, bint final, bint remove,
                    int64_t now_ms) except -1
    cdef int c_bury(self, Queue q, uint32_t slot, Job *job, str reason, object error, int64_t now_ms) except -1
    cdef int c_requeue(self, Queue q, uint32_t slot, Job *job, int64_t now_ms, bint later) except -1
    cdef int c_forget(self, uint32_t slot) except -1
    cdef int c_evict(self, uint32_t slot) except -1
    cdef int c_drop_evicted(self, uint32_t slot) except -1
    cdef int c_forget_done(self, uint32_t slot, Job *job, Queue q) except -1
    cdef int c_postpone(self, uint32_t slot, int64_t run_ms, int64_t now_ms) except -1
    cdef int c_retime(self, uint32_t slot, int64_t run_ms, int64_t now_ms) except -1
    cdef int c_revive(self, uint32_t slot, int64_t now_ms) except -1
    cdef int c_release(self, uint32_t slot, int64_t now_ms) except -1
    cdef int c_deadline(self, uint32_t slot, int64_t now_ms, int64_t now_ns) except -1
    cdef int64_t c_backoff(self, Job *job, dict extra) except? -1
    cdef c_history(self, Job *job, Run *run, dict extra, str reason, str error, int64_t now_ms)
    cdef list c_timeline(self, Job *job, dict extra)
    cdef str c_first_state(self, Job *job)
    cdef c_finalise(self, uint64_t hi, uint64_t lo, str outcome)
    cdef c_mark_queue(self, Queue q)
    cdef uint64_t c_hash(self, const void *p, Py_ssize_t n) noexcept
    cdef uint64_t c_hash_of(self, Job *job) noexcept
    cdef uint32_t c_slot(self, str job_id) except? 0
    cdef void c_key(self, Job *job, Key *key) noexcept
    cdef str c_state_name(self, Job *job)
    cdef tuple c_delivery(self, uint32_t slot)
    cdef int c_taken(self) except -1
    cdef int c_lost(self, uint32_t slot, str error, str dead_error, str stalled_error, int64_t now_ms) except -1

    # bookkeeping
    cdef int c_mark(self, uint32_t slot, Job *job) except -1
    cdef int c_reserve(self) except -1
    cdef int c_free_job(self, uint32_t slot, Job *job) except -1
    cdef dict c_extra(self, Job *job)
    cdef void c_wake(self, Queue q)
    cdef void c_list_append(self, RunList *list_, uint32_t slot, Run *run) noexcept
    cdef void c_list_remove(self, RunList *list_, Run *run) noexcept
    cdef int c_own(self, uint32_t slot, Run *run, uint32_t session) except -1
    cdef void c_disown(self, Run *run) noexcept
    cdef int64_t c_next_due(self, int64_t now_ms, int64_t now_ns) noexcept
    cdef int c_advance(self, int64_t now_ms, int64_t now_ns) except -1
    cdef int c_settle(self, Job *job, str kind, Blob *result) except -1
    cdef int c_emit(self, int kind, Queue q, Job *job, int64_t now_ms, object data) except -1

cdef int64_t order_of(double priority) noexcept nogil
cdef int present_token(object token, uint64_t *hi, uint64_t *lo) except -1
