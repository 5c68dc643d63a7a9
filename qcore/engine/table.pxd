cimport cython
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t

from qcore.engine.ids cimport IdSource
from qcore.engine.job cimport Blob, F_CUSTOM_ID, Job, Run
from qcore.engine.meter cimport Meter
from qcore.engine.queue cimport Queue, RunList
from qcore.structs.delayheap cimport DelayHeap
from qcore.structs.idtable cimport IdTable
from qcore.structs.siphash cimport SipKey
from qcore.structs.skiplist cimport Key
from qcore.structs.slab cimport Slab
from qcore.structs.tokens cimport CompletionTokens

cdef enum EventType:            # bits of a queue's event mask
    EV_PUSHED = 1
    EV_PULLED = 2
    EV_COMPLETED = 4
    EV_FAILED = 8
    EV_RETRIED = 16
    EV_STALLED = 32
    EV_DUPLICATED = 64
    EV_PROGRESS = 128
    EV_DELAYED = 256
    EV_WAITING = 512
    EV_WAITING_CHILDREN = 1024
    EV_REMOVED = 2048
    EV_PAUSED = 4096
    EV_RESUMED = 8192
    EV_DRAINED = 16384


# What became of the evidence of one id, for the next cut.
cdef enum:
    MARK_KEPT = 1
    MARK_QUEUE_ENDS = 2         # all ids of the queue so far are forgotten


cdef struct Mark:
    uint64_t hi, lo             # the id as a number
    int64_t at_ms
    uint32_t queue
    uint32_t kept               # 1: completed and gone; 0: forgotten; or MARK_QUEUE_ENDS


cdef struct QueuePage:
    uint32_t n                  # of those that are there
    PyObject *at[256]           # borrowed from `queues`; NULL: forgotten, or of no queue yet


cdef class Table:
    cdef Slab jobs, runs
    cdef IdTable index
    cdef SipKey hash_key
    cdef readonly IdSource ids
    cdef dict queues            # name -> Queue
    cdef QueuePage **queue_pages        # the queues of 256 indexes each; NULL: none of them is there
    cdef uint32_t n_queue_pages
    cdef uint32_t last_queue    # highest index that was ever given to a queue; none is given again
    cdef dict past              # what passed through the queues that are forgotten
    cdef object forgotten       # name of a forgotten queue -> (its index, what was counted of it), the oldest first
    cdef dict names             # job name -> index
    cdef list name_texts        # index -> str; entry 0 is None
    cdef list name_packed       # index -> packed bytes
    cdef DelayHeap due          # queues by their earliest delayed job (wall ms)
    cdef DelayHeap deadlines    # active jobs by lease end or timeout (monotonic ns)
    cdef DelayHeap checks       # queues by the time to look at them again (monotonic ns)
    cdef DelayHeap expiries     # dead letters by the end of their time or their next retry (wall ms)
    cdef DelayHeap lives        # queued and parked jobs with a ttl by its end (wall ms)
    cdef dict living            # slot -> handle in `lives`
    cdef CompletionTokens done  # finished ids, recent first out; value 0: there is no record any more
    cdef Mark *marks            # evidence that no cut has yet, of ids that are numbers
    cdef uint32_t n_marks, cap_marks
    cdef list text_marks        # the same of other ids: (id, ms, queue, kept)
    cdef int64_t mark_row       # number of the row that the present marks go to
    cdef Py_ssize_t n_lasting_marks     # evidence that they add, less what they or earlier ones take away
    cdef object mark_rows       # (number, ids, what they add) of the rows in the store, oldest first
    cdef Py_ssize_t n_marked    # ids in those rows
    cdef Py_ssize_t n_lasting   # what those rows add
    cdef list loaded_marks      # what the store had, until all jobs are there
    cdef int64_t done_ms        # time of the last completion
    cdef dict needed            # id -> slots of the live jobs that depend on it or read its result
    cdef set batch              # ids that the present batch adds anew
    cdef readonly Py_ssize_t max_waiting_deps   # parked jobs a queue may hold
    cdef int64_t seq, deliveries
    cdef int64_t ends           # number of the last end of a job, which rows keep: their order outlives a restart
    cdef readonly bint archive  # finished jobs evicted from memory stay in the store
    cdef bint tracking          # a store listens: changes are collected
    cdef uint32_t *dirty        # slots of changed jobs; 0 = gone since
    cdef uint32_t n_dirty, cap_dirty
    cdef uint32_t ahead_at      # those before this place were looked at before their cut was taken
    cdef list deleted           # sequence numbers of stored jobs that are gone
    cdef list new_names         # (index, text) not yet taken by the store
    cdef list dirty_queues
    cdef dict side              # (table, key) -> packed value, None, or a call that packs it when the cut is taken
    cdef readonly Py_ssize_t max_events         # kept of each queue's journal
    cdef readonly int64_t max_minutes           # kept of each queue's outcomes; 0 = totals only
    cdef readonly int64_t busy_ms               # of all completed jobs, from delivery to end
    cdef readonly bint keeps_events             # as rows in the store, besides their number
    cdef list noted             # queues with events that no row has yet
    cdef list noted_cut         # ... in the cut on its way
    cdef int64_t journal_row    # key of the next row of a journal
    cdef list counted           # queues whose telemetry is in the gathering cut
    cdef uint32_t everywhere    # events that are built of every queue
    cdef dict wanted            # queue name -> events that are built of it besides, also before it exists
    cdef list woken             # queues with a waiting pull that may have got a job
    cdef readonly list events   # built only where someone listens
    cdef list settled           # outcomes of watched jobs: (id, kind, packed result or None)
    cdef dict final_tokens      # token -> outcome, of deliveries ended by the engine
    cdef object final_order
    cdef Py_ssize_t n_listings  # queues that keep an index of their jobs
    cdef uint32_t *sessions     # session -> head of its deliveries
    cdef uint32_t cap_sessions
    cdef uint32_t spare_run     # a Run record in reserve
    # the archive: completed jobs that only the store has
    cdef uint32_t *leaving      # slots of F_EVICTED jobs: they go once their rows are committed
    cdef readonly uint32_t n_leaving
    cdef uint32_t cap_leaving
    cdef public bint trims      # a policy of removal no longer keeps what is archived
    cdef list guests            # (slot, seq) of those read back for the present command
    cdef IdTable far_ids        # hash of a custom id -> place in far_seqs
    cdef Slab far_seqs          # int64_t each
    cdef readonly int64_t n_archived    # of all queues
    cdef uint64_t far_hi        # no id of ours in the archive is above this
    cdef int64_t far_ms         # no job that left since this was last set ended before
    cdef list flying            # lists of the rows deleted by cuts that are not committed
    cdef set going              # these and the first n_going of ``deleted``; None: to be gathered again
    cdef Py_ssize_t n_going
    cdef set refused            # numbers of the rows that could not be read at the start
    cdef public int holds       # while not 0, nothing leaves memory

    @cython.final
    cdef inline Job *job_at(self, uint32_t slot) noexcept:
        return <Job *>(self.jobs.chunks[slot >> 10] + (slot & 1023) * sizeof(Job))

    @cython.final
    cdef inline Run *run_at(self, uint32_t slot) noexcept:
        return <Run *>(self.runs.chunks[slot >> 10] + (slot & 1023) * sizeof(Run))

    @cython.final
    cdef inline Queue c_queue_of(self, Job *job):
        return <Queue>self.queue_pages[job.queue >> 8].at[job.queue & 255]

    @cython.final
    cdef inline bint c_event(self, Queue q, int kind) except -1:
        """Count an event in the journal of its queue. True: somebody wants it, so it is to be emitted."""
        if q.n_events < self.max_events:
            q.n_events += 1
            if self.tracking and not q.counted:
                self.c_mark_counts(q)
        return (q.event_mask & kind) != 0 or q.journal is not None

    @cython.final
    cdef inline void c_list(self, Queue q, int which, uint32_t slot, Job *job) noexcept:
        """The job is to be listed under this from now on."""
        if q.listing is not None:
            q.listing.c_put(which, job.created_ms, job.seq, slot, (job.flags & F_CUSTOM_ID) != 0)

    @cython.final
    cdef inline void c_unlist(self, Queue q, int which, Job *job) noexcept:
        if q.listing is not None:
            q.listing.c_drop(which, job.created_ms, job.seq, (job.flags & F_CUSTOM_ID) != 0)

    @cython.final
    cdef inline int c_outcome(self, Queue q, Meter meter, int64_t now_ms) except -1:
        """Count a terminal outcome of a queue."""
        if not meter.c_count(now_ms):
            self.c_open_minute(q, meter, now_ms)
        if self.tracking and not q.counted:
            self.c_mark_counts(q)
        return 0

    cdef uint64_t c_seed_of(self, uint32_t queue) noexcept
    cdef Queue c_queue(self, str name)
    cdef Queue c_queue_at(self, int64_t index)
    cdef int c_place_queue(self, Queue q) except -1
    cdef int c_keep_forgotten(self, uint32_t index, str name, bytes packed) except -1
    cdef Queue c_counted(self, str name)
    cdef int c_forget_counts(self, str name) except -1
    cdef int c_restore_forgotten(self, list rows) except -1
    cdef int c_drop_queue(self, Queue q) except -1
    cdef uint32_t c_name(self, str name) except? 0
    cdef uint32_t c_find(self, const char *text, Py_ssize_t n) noexcept
    cdef uint32_t c_find_number(self, uint64_t hi, uint64_t lo) noexcept
    cdef Py_ssize_t c_id_text(self, Job *job, char *buffer, const char **text) noexcept
    cdef str c_id(self, Job *job)
    cdef list c_timeline(self, Job *job, dict extra)
    cdef int c_timeline_add(self, Job *job, str state, int64_t now_ms) except -1
    cdef str c_first_state(self, Job *job)
    cdef c_mark_queue(self, Queue q)
    cdef uint64_t c_hash(self, const void *p, Py_ssize_t n) noexcept
    cdef uint64_t c_hash_of(self, Job *job) noexcept
    cdef uint32_t c_slot(self, str job_id) except? 0
    cdef void c_key(self, Job *job, Key *key) noexcept
    cdef str c_state_name(self, Job *job)
    cdef int c_taken(self) except -1
    cdef void c_taken_ahead(self, uint32_t at) noexcept
    cdef int c_mark(self, uint32_t slot, Job *job) except -1
    cdef int c_reserve(self) except -1
    cdef int c_drop_evicted(self, uint32_t slot) except -1
    cdef int c_leave_memory(self, uint32_t slot, Job *job) except -1
    cdef void c_stay(self, uint32_t slot, Job *job) noexcept
    cdef int c_unarchive(self, uint32_t slot, Job *job) except -1
    cdef int c_committed(self) except -1
    cdef int c_note_far(self, int64_t seq, uint64_t hashed) except -1
    cdef void c_forget_far(self, int64_t seq, uint64_t hashed) noexcept
    cdef bint c_may_be_far(self, const char *text, Py_ssize_t n) noexcept
    cdef bint c_is_going(self, int64_t seq) except -1
    cdef int c_free_job(self, uint32_t slot, Job *job) except -1
    cdef dict c_extra(self, Job *job)
    cdef void c_wake(self, Queue q)
    cdef void c_list_run(self, RunList *list_, Run *run, bint there) noexcept
    cdef void c_list_append(self, RunList *list_, uint32_t slot, Run *run) noexcept
    cdef void c_list_remove(self, RunList *list_, Run *run) noexcept
    cdef int c_own(self, uint32_t slot, Run *run, uint32_t session) except -1
    cdef void c_disown(self, Run *run) noexcept
    cdef int c_side(self, str table, object key, object value) except -1
    cdef int c_mark_counts(self, Queue q) except -1
    cdef int c_open_minute(self, Queue q, Meter meter, int64_t now_ms) except -1
    cdef int c_note_event(self, Queue q, int kind, int64_t now_ms, object job_id, object data) except -1
    cdef int c_note_journal(self, Queue q) except -1
    cdef int c_write_journals(self, dict staged, int64_t now_ms) except -1
    cdef int c_undo_journals(self) except -1
    cdef int c_settle_journals(self) except -1
    cdef int c_restore_event_row(self, object key, object packed) except -1
    cdef int c_trim_journal(self, Queue q) except -1
    cdef int c_clear_minutes(self, Queue q) except -1
    cdef int c_clear_counts(self, Queue q) except -1
    cdef bytes c_counts(self, Queue q)
    cdef int c_restore_counts(self, Queue q, bytes packed) except -1
    cdef int c_restore_last_queue(self, bytes packed) except -1
    cdef int c_restore_minute(self, object key, object packed) except -1
    cdef c_check_counts(self)
    cdef c_check_archive(self)
    cdef int c_note_gone(self, Job *job, uint32_t queue) except -1
    cdef int c_note_evidence(self, str text, uint64_t hi, uint64_t lo, uint32_t queue, int kept) except -1
    cdef int c_end_evidence(self, Queue q) except -1
    cdef int c_open_marks(self) except -1
    cdef bint c_number_of(self, str job_id, uint64_t *hi, uint64_t *lo) except? 0
    cdef int c_settle(self, Job *job, str kind, Blob *result) except -1
    cdef int c_emit(self, int kind, Queue q, Job *job, int64_t now_ms, object data) except -1

cdef int64_t order_of(double priority) noexcept nogil
