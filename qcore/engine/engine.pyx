"""The engine: states and transitions of jobs, and nothing else.

A pure state machine. Both times come in with each command: ``now_ms``, the wall
clock, for what is stored (creation, due times), and ``now_ns``, a monotonic clock,
for leases and timeouts. Randomness comes from the :class:`IdSource` passed in. What
a transition wants done outside (rows to write, events to tell, pulls to wake) is
collected in the engine and taken by its host afterwards.

Two procedures carry everything that ends a delivery: :meth:`Engine.c_leave_active`
is the only way out of the active state, and a job becomes terminal only in
:meth:`Engine.c_complete` or :meth:`Engine.c_bury`.

Not thread-safe: the host takes one lock per call.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MIN, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memset

from qcore.engine.ids cimport IdSource, uuid_parse, uuid_text
from qcore.engine.job cimport (
    ACTIVE, COMPLETED, DELAYED, F_CUSTOM_ID, F_DIRTY, F_EVICTED, F_LIFO, F_REMOVE_ON_COMPLETE,
    F_REMOVE_ON_FAIL, F_STORED, F_TEXT_ID, F_WATCHED, FAILED, PARKED, READY, STAGED, Blob, Job, Run, blob_bytes,
    blob_free, blob_new,
)
from qcore.structs.delayheap cimport DelayHeap
from qcore.structs.idtable cimport IdTable
from qcore.structs.siphash cimport siphash13
from qcore.structs.skiplist cimport Key, SkipList, SkipNode
from qcore.structs.slab cimport slab_alloc, slab_dealloc, slab_free, slab_init, slab_nbytes
from qcore.structs.tokens cimport CompletionTokens, TokenEntry

from collections import deque

from qcore import limits
from qcore.engine import backoff
from qcore.errors import LeaseError, NotFoundError, StateError

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object o, Py_ssize_t *size) except NULL

cdef extern from *:
    """
    static inline long long qcore_bits(double d) { long long i; memcpy(&i, &d, 8); return i; }
    """
    long long qcore_bits(double d) noexcept nogil

cdef enum:
    MAX_INTERNED_NAMES = 65535
    LATE_ANSWERS = 10000
    PROMOTIONS = 50000          # due jobs moved in one turn, so that a flood cannot stall the host

cdef int64_t MAX_SPAN_MS = 100 * 366 * 86_400_000

STATE_NAMES = {
    READY: "waiting",
    DELAYED: "delayed",
    ACTIVE: "active",
    COMPLETED: "completed",
    FAILED: "failed",
    PARKED: "waiting-children",
}
EVENT_BITS = {
    "pushed": EV_PUSHED,
    "pulled": EV_PULLED,
    "completed": EV_COMPLETED,
    "failed": EV_FAILED,
    "retried": EV_RETRIED,
    "stalled": EV_STALLED,
}
cdef dict _EVENT_NAMES = {bit: name for name, bit in EVENT_BITS.items()}


cdef int64_t order_of(double priority) noexcept nogil:
    """An integer that sorts higher priorities first. -0.0 and 0.0 are one priority."""
    cdef int64_t bits = qcore_bits(-(priority + 0.0) + 0.0)
    return bits if bits >= 0 else bits ^ <int64_t>0x7FFFFFFFFFFFFFFF


cdef inline int64_t _later(int64_t now_ns, int64_t ms) noexcept nogil:
    """A deadline; beyond 100 years they are all the same, and no overflow."""
    return now_ns + min(ms, MAX_SPAN_MS) * 1000000


cdef int present_token(object token, uint64_t *hi, uint64_t *lo) except -1:
    """Classify what a caller presents as its lease token."""
    cdef const char *text
    cdef Py_ssize_t n
    hi[0] = lo[0] = 0
    if token is None:
        return NO_TOKEN
    text = PyUnicode_AsUTF8AndSize(token, &n)
    if n == 0:
        return NO_TOKEN
    return TOKEN if uuid_parse(text, n, hi, lo) else BAD_TOKEN


def refusal(int verdict, str job_id):
    """The error for a :class:`Verdict` that is not ``MAY``."""
    if verdict == TOKEN_MISSING:
        return LeaseError(f"Lock token required for job {job_id}")
    if verdict == TOKEN_WRONG:
        return LeaseError(f"Invalid or expired lock token for job {job_id}")
    return StateError(f"Job not found or not in processing state: {job_id}")


@cython.final
cdef class Queue:
    """A named set of jobs. Created by first use."""

    def __cinit__(self, uint32_t index, str name not None, uint64_t seed):
        cdef bytes utf8 = name.encode()
        self.index = index
        self.name = name
        if len(utf8) < 32:
            self.name_packed = bytes([0xA0 | len(utf8)]) + utf8
        else:
            self.name_packed = (b"\xd9" + bytes([len(utf8)]) if len(utf8) < 256
                                else b"\xda" + len(utf8).to_bytes(2, "big")) + utf8
        self.ready = SkipList(seed)
        self.delayed = DelayHeap()
        self.max_stalls = limits.DEFAULT_MAX_STALLS
        self.dlq_max_entries = limits.DEFAULT_DLQ_MAX_ENTRIES

    @property
    def n_ready(self):
        """Jobs that can start now, paused or not."""
        return self.ready.n

    @property
    def n_delayed(self):
        """Jobs whose time has not come."""
        return self.delayed.n

    @property
    def n_active(self):
        return self.active.n

    @property
    def n_completed(self):
        """Retained completed jobs, in memory or only in the store."""
        return self.completed.n + self.n_archived

    @property
    def n_failed(self):
        return self.failed.n


@cython.final
cdef class Engine:
    """All jobs of a broker.

    ``seed`` (16 bytes) determines every id, token and jitter. ``tracking`` collects
    changes for a store. ``max_completed`` bounds the completed jobs kept in memory;
    with ``archive`` the evicted ones stay counted, because the store still has them.
    """

    def __cinit__(self, bytes seed not None, *, bint tracking=False, bint archive=False,
                  uint32_t max_completed=limits.DEFAULT_MAX_COMPLETED_JOBS):
        slab_init(&self.jobs, sizeof(Job))
        slab_init(&self.runs, sizeof(Run))
        self.ids = IdSource(seed)
        self.hash_key.k0 = self.ids.c_random()
        self.hash_key.k1 = self.ids.c_random()
        self.index = IdTable()
        self.queues = {}
        self.queue_list = [None]
        self.names = {}
        self.name_texts = [None]
        self.name_packed = [None]
        self.due = DelayHeap()
        self.deadlines = DelayHeap()
        self.done = CompletionTokens(max_completed)
        self.tracking = tracking
        self.archive = archive
        self.deleted = []
        self.new_names = []
        self.dirty_queues = []
        self.woken = []
        self.events = []
        self.settled = []
        self.evicted = set()
        self.final_tokens = {}
        self.final_order = deque()
        self.c_name("default")

    def __dealloc__(self):
        cdef uint32_t slot
        cdef Job *job
        if self.jobs.chunks != NULL:
            for slot in range(1, self.jobs.fresh):
                job = self.job_at(slot)
                if job.state == 0:
                    continue
                PyMem_Free(job.data)
                if job.flags & F_TEXT_ID:
                    PyMem_Free(<Blob *>job.id_hi)
                if job.run:
                    PyMem_Free(self.run_at(job.run).result)
                if job.extra != NULL:
                    Py_DECREF(<object>job.extra)
        slab_dealloc(&self.jobs)
        slab_dealloc(&self.runs)
        PyMem_Free(self.dirty)
        PyMem_Free(self.sessions)

    # --- names and queues -------------------------------------------------------

    cdef Queue c_queue(self, str name):
        """The queue of that name, created by first use."""
        cdef object found = self.queues.get(name)
        cdef Queue q
        if found is not None:
            return <Queue>found
        q = Queue(len(self.queue_list), name, self.ids.c_random())
        self.queues[name] = q
        self.queue_list.append(q)
        self.c_mark_queue(q)
        return q

    cdef c_mark_queue(self, Queue q):
        if self.tracking and not q.dirty:
            q.dirty = True
            self.dirty_queues.append(q)

    cdef inline Queue c_queue_of(self, Job *job):
        return <Queue>self.queue_list[job.queue]

    cdef uint32_t c_name(self, str name) except? 0:
        """Interned index of a job name; 0 once the table is full (names may be made from ids)."""
        cdef object found = self.names.get(name)
        cdef uint32_t index
        cdef bytes utf8
        if found is not None:
            return found
        if len(self.name_texts) > MAX_INTERNED_NAMES:
            return 0
        index = len(self.name_texts)
        utf8 = name.encode()
        self.name_texts.append(name)
        if len(utf8) < 32:
            self.name_packed.append(bytes([0xA0 | len(utf8)]) + utf8)
        elif len(utf8) < 256:
            self.name_packed.append(b"\xd9" + bytes([len(utf8)]) + utf8)
        else:
            self.name_packed.append(b"\xda" + len(utf8).to_bytes(2, "big") + utf8)
        self.names[name] = index
        if self.tracking:
            self.new_names.append((index, name))
        return index

    # --- identity ----------------------------------------------------------------

    cdef inline uint64_t c_hash(self, const void *p, Py_ssize_t n) noexcept:
        return siphash13(&self.hash_key, <const unsigned char *>p, n)

    cdef inline uint64_t c_hash_of(self, Job *job) noexcept:
        if job.flags & F_TEXT_ID:
            return job.id_lo
        return self.c_hash(&job.id_hi, 16)

    cdef uint32_t c_find(self, const char *text, Py_ssize_t n) noexcept:
        """Slot of the job with that id, 0 = none. O(1)."""
        cdef uint64_t hi, lo, hashed
        cdef Py_ssize_t cursor
        cdef uint32_t slot
        cdef Job *job
        cdef Blob *blob
        if uuid_parse(text, n, &hi, &lo):
            return self.c_find_number(hi, lo)
        hashed = self.c_hash(text, n)
        slot = self.index.c_find(hashed, &cursor)
        while slot:
            job = self.job_at(slot)
            if job.flags & F_TEXT_ID:
                blob = <Blob *>job.id_hi
                if blob.size == <size_t>n and memcmp(blob_bytes(blob), text, n) == 0:
                    return slot
            slot = self.index.c_next(hashed, &cursor)
        return 0

    cdef uint32_t c_find_number(self, uint64_t hi, uint64_t lo) noexcept:
        """The same for an id in UUID form."""
        cdef uint64_t ids[2]
        cdef Py_ssize_t cursor
        cdef uint64_t hashed
        cdef uint32_t slot
        cdef Job *job
        ids[0] = hi
        ids[1] = lo
        hashed = self.c_hash(ids, 16)
        slot = self.index.c_find(hashed, &cursor)
        while slot:
            job = self.job_at(slot)
            if not job.flags & F_TEXT_ID and job.id_hi == hi and job.id_lo == lo:
                return slot
            slot = self.index.c_next(hashed, &cursor)
        return 0

    cdef Py_ssize_t c_id_text(self, Job *job, char *buffer, const char **text) noexcept:
        """Point ``text`` at the id: into ``buffer`` (36 bytes) or at the stored text. Returns its length."""
        cdef Blob *blob
        if job.flags & F_TEXT_ID:
            blob = <Blob *>job.id_hi
            text[0] = <const char *>blob_bytes(blob)
            return blob.size
        uuid_text(job.id_hi, job.id_lo, buffer)
        text[0] = buffer
        return 36

    cdef str c_id(self, Job *job):
        cdef char buffer[36]
        cdef const char *text
        cdef Py_ssize_t n = self.c_id_text(job, buffer, &text)
        return PyUnicode_DecodeUTF8(text, n, NULL)

    cdef uint32_t c_slot(self, str job_id) except? 0:
        cdef Py_ssize_t n
        cdef const char *text = PyUnicode_AsUTF8AndSize(job_id, &n)
        return self.c_find(text, n)

    # --- admission -----------------------------------------------------------------

    cdef uint32_t c_add(self, Queue q, Spec *spec, object extra, int64_t now_ms, bint staged, int *how) except 0:
        """Admit one job; the slot of the new or the existing job.

        ``spec.data`` passes to the engine in every case. A staged job is known by its id
        only, until :meth:`c_publish`. O(1) for a job at the end of its priority.
        """
        cdef uint64_t hi = 0, lo = 0
        cdef uint32_t slot, flags = spec.flags
        cdef uint64_t done_hi, done_lo
        cdef Blob *text = NULL
        cdef Job *job
        how[0] = ADDED
        if spec.id_text != NULL:
            slot = self.c_find(spec.id_text, spec.id_n)
            if slot:
                job = self.job_at(slot)
                if job.state != COMPLETED and job.state != FAILED:
                    how[0] = EXISTING
                    blob_free(spec.data)
                    spec.data = NULL
                    return slot
                how[0] = REUSED
                staged = False          # its predecessor is gone already; one cut carries both
                self.c_forget(slot)
            flags |= F_CUSTOM_ID
            if uuid_parse(spec.id_text, spec.id_n, &hi, &lo):
                done_hi = hi
                done_lo = lo
            else:
                flags |= F_TEXT_ID
                done_hi = self.c_hash(spec.id_text, spec.id_n)
                done_lo = ~done_hi
            # Evidence of an earlier generation must not give this one its old place.
            self.done.c_delete(done_hi, done_lo)
        else:
            self.ids.c_next_id(now_ms, &hi, &lo)
        self.c_reserve()
        slot = slab_alloc(&self.jobs)
        job = self.job_at(slot)
        try:
            if flags & F_TEXT_ID:
                text = blob_new(spec.id_text, spec.id_n, 0)
                hi = <uint64_t>text
                lo = self.c_hash(spec.id_text, spec.id_n)
            job.id_hi = hi
            job.id_lo = lo
            job.flags = flags
            self.index.c_put(self.c_hash_of(job), slot)
        except BaseException:
            blob_free(text)
            slab_free(&self.jobs, slot)
            raise
        self.seq += 1
        job.seq = self.seq
        job.priority = spec.priority
        job.created_ms = spec.created_ms
        job.run_ms = spec.run_ms
        job.data = spec.data
        spec.data = NULL
        job.queue = q.index
        job.name = spec.name
        job.max_attempts = spec.max_attempts
        job.backoff_ms = spec.backoff_ms
        if extra is not None:
            Py_INCREF(extra)
            job.extra = <PyObject *>extra
        job.first_state = DELAYED if spec.run_ms > now_ms else READY
        job.state = STAGED
        q.n_staged += 1
        self.c_mark(slot, job)
        if not staged:
            self.c_publish(slot, now_ms)
        return slot

    cdef int c_publish(self, uint32_t slot, int64_t now_ms) except -1:
        """Make a staged job claimable and known."""
        cdef Job *job = self.job_at(slot)
        cdef Queue q = self.c_queue_of(job)
        q.n_staged -= 1
        q.total_pushed += 1
        self.c_enqueue(q, slot, job, now_ms)
        if q.event_mask & EV_PUSHED:
            self.c_emit(EV_PUSHED, q, job, now_ms, None)
        return 0

    cdef int c_enqueue(self, Queue q, uint32_t slot, Job *job, int64_t now_ms) except -1:
        """Put a job into its queue by its run time and priority."""
        cdef Key key
        if job.run_ms > now_ms:
            job.delayed = q.delayed.c_push(job.run_ms, job.seq, slot)
            job.state = DELAYED
            self.c_set_due(q)
            if q.n_waits:
                self.c_wake(q)      # the wait's own end may have moved nearer
            return 0
        self.c_key(job, &key)
        q.ready.c_insert(key, slot)
        job.state = READY
        if job.priority > 0:
            q.n_prioritized += 1
        if q.n_waits:
            self.c_wake(q)
        return 0

    cdef inline void c_key(self, Job *job, Key *key) noexcept:
        key.a = order_of(job.priority)
        if job.flags & F_LIFO:
            key.b = INT64_MIN
            key.c = -job.seq
        else:
            key.b = job.run_ms
            key.c = job.seq

    cdef int c_unqueue(self, Queue q, uint32_t slot, Job *job) except -1:
        """Take a READY or DELAYED job out of its queue."""
        cdef Key key
        if job.state == READY:
            self.c_key(job, &key)
            q.ready.c_remove(key)
            if job.priority > 0:
                q.n_prioritized -= 1
        else:
            q.delayed.c_remove(job.delayed)
            job.delayed = 0
            self.c_set_due(q)
        return 0

    cdef int c_set_due(self, Queue q) except -1:
        """Keep the queue's entry in the heap of queues at its earliest delayed job."""
        cdef int64_t due
        cdef uint32_t slot
        if not q.delayed.c_first(&due, &slot):
            if q.due:
                self.due.c_remove(q.due)
                q.due = 0
        elif q.due:
            self.due.c_change(q.due, due, q.index)
        else:
            q.due = self.due.c_push(due, q.index, q.index)
        return 0

    cdef int c_promote(self, Queue q, int64_t now_ms, int limit) except -1:
        """Move at most ``limit`` due jobs of one queue to its run queue; how many. No row is written."""
        cdef int64_t due
        cdef uint32_t slot
        cdef Job *job
        cdef int moved = 0
        while moved < limit and q.delayed.c_first(&due, &slot) and due <= now_ms:
            job = self.job_at(slot)
            q.delayed.c_pop(&due, &slot)
            job.delayed = 0
            self.c_enqueue(q, slot, job, now_ms)
            moved += 1
        if moved:
            self.c_set_due(q)
        return moved

    # --- delivery ------------------------------------------------------------------

    cdef uint32_t c_claim(self, Queue q, int64_t now_ms, int64_t now_ns, int64_t lease_ms, uint32_t session) except? 0:
        """Deliver the first ready job; 0 when there is none or the queue is paused.

        ``lease_ms`` 0 delivers without a lease. Jobs past their ttl are dropped on the way.
        """
        cdef Key key
        cdef uint32_t slot
        cdef Job *job
        cdef Run *run
        cdef object ttl, timeout
        if q.paused:
            return 0
        if q.due:
            self.c_promote(q, now_ms, PROMOTIONS)
        while q.ready.c_first(&key, &slot):
            job = self.job_at(slot)
            timeout = None
            if job.extra != NULL:
                ttl = (<dict>job.extra).get("ttl")
                if ttl is not None and now_ms > job.created_ms + ttl:
                    self.c_forget(slot)
                    continue
                timeout = (<dict>job.extra).get("timeout")
            # All that can fail comes before the first change.
            if not self.spare_run:
                self.spare_run = slab_alloc(&self.runs)
            self.c_reserve()
            run = self.run_at(self.spare_run)
            run.job = slot
            run.started_ms = run.heartbeat_ms = now_ms
            if lease_ms:
                self.ids.c_next_token(now_ms, &run.token_hi, &run.token_lo)
                run.lease_ms = lease_ms
                run.expires_ns = _later(now_ns, lease_ms)
            if timeout:
                run.timeout_ns = _later(now_ns, timeout)
            self.c_own(slot, run, session)
            self.c_arm(slot, run)
            job.run = self.spare_run
            self.spare_run = 0
            q.ready.c_pop(&key, &slot)
            if job.priority > 0:
                q.n_prioritized -= 1
            self.deliveries += 1
            run.delivery = self.deliveries
            job.state = ACTIVE
            self.c_list_append(&q.active, job.run, run)
            q.total_pulled += 1
            self.c_mark(slot, job)
            if q.event_mask & EV_PULLED:
                self.c_emit(EV_PULLED, q, job, now_ms, None)
            return slot
        return 0

    cdef int c_arm(self, uint32_t slot, Run *run) except -1:
        """Set the deadline of a delivery: the earlier of lease end and timeout."""
        cdef int64_t due = run.expires_ns
        if run.timeout_ns and (due == 0 or run.timeout_ns < due):
            due = run.timeout_ns
        if due == 0:
            if run.deadline:
                self.deadlines.c_remove(run.deadline)
                run.deadline = 0
        elif run.deadline:
            self.deadlines.c_change(run.deadline, due, slot)
        else:
            run.deadline = self.deadlines.c_push(due, slot, slot)
        return 0

    cdef int c_judge(self, uint32_t slot, int kind, uint64_t hi, uint64_t lo) except -1:
        """May a caller with this token act on the delivery of this job?

        A lease that has run out still counts until the deadline is handled.
        """
        cdef Job *job
        cdef Run *run
        if slot:
            job = self.job_at(slot)
            if job.state == ACTIVE:
                run = self.run_at(job.run)
                if kind == TOKEN:
                    if run.token_hi == hi and run.token_lo == lo:
                        return MAY
                    if self.final_tokens and (hi, lo) in self.final_tokens:
                        return ALREADY_FINAL
                    if job.extra != NULL and (<dict>job.extra).get("lastToken") == (hi, lo):
                        return TOKEN_WRONG      # of the delivery before this one
                if run.token_hi == 0:
                    return MAY
                return TOKEN_MISSING if kind == NO_TOKEN else TOKEN_WRONG
            if kind == TOKEN and job.extra != NULL and (job.state == READY or job.state == DELAYED):
                if (<dict>job.extra).get("lastToken") == (hi, lo):
                    return LATE
        if kind == TOKEN and self.final_tokens and (hi, lo) in self.final_tokens:
            return ALREADY_FINAL
        return NOT_ACTIVE

    cdef int c_leave_active(self, Queue q, uint32_t slot, Job *job, Run *run) except -1:
        """The only way out of the active state: frees everything that a delivery holds.

        The Run record stays with the job; the caller gives it its next meaning or frees it.
        """
        self.c_list_remove(&q.active, run)
        if run.deadline:
            self.deadlines.c_remove(run.deadline)
            run.deadline = 0
        if run.session:
            self.c_disown(run)
        run.expires_ns = 0
        run.timeout_ns = 0
        if job.extra != NULL:
            # An earlier holder may report only until somebody else had the job.
            (<dict>job.extra).pop("lastToken", None)
        if q.n_waits:
            self.c_wake(q)
        return 0

    cdef int c_complete(self, uint32_t slot, Blob *result, bint remove, int64_t now_ms) except -1:
        """An active job is done. ``result`` (NULL = none) passes to the engine."""
        cdef Job *job = self.job_at(slot)
        cdef Run *run = self.run_at(job.run)
        cdef Queue q = self.c_queue_of(job)
        cdef TokenEntry evicted
        cdef uint64_t hi = job.id_hi, lo = job.id_lo
        self.c_reserve()
        self.c_leave_active(q, slot, job, run)
        remove = remove or (job.flags & F_REMOVE_ON_COMPLETE) != 0
        q.total_completed += 1
        if q.event_mask & EV_COMPLETED:
            self.c_emit(EV_COMPLETED, q, job, now_ms,
                        None if result == NULL
                        else PyBytes_FromStringAndSize(<char *>blob_bytes(result), result.size))
        if job.flags & F_WATCHED:
            self.c_settle(job, "completed", result)
        if job.flags & F_TEXT_ID:
            # A keyed hash stands for the text: 128 bits, so that evidence is numbers only.
            hi = lo
            lo = ~lo
        run.finished_ms = now_ms
        run.result = result
        job.state = COMPLETED
        if remove:
            self.c_forget_done(slot, job, q)
            if self.done.c_add(hi, lo, q.index, 0, &evicted) and evicted.value:
                self.c_evict(evicted.value)
            return 0
        self.c_list_append(&q.completed, job.run, run)
        self.c_mark(slot, job)
        if self.done.c_add(hi, lo, q.index, slot, &evicted) and evicted.value:
            self.c_evict(evicted.value)
        return 0

    cdef int c_forget_done(self, uint32_t slot, Job *job, Queue q) except -1:
        """Drop a job that is in no list any more, with its row."""
        if job.flags & F_WATCHED:
            self.c_settle(job, "failed" if job.state == FAILED else "removed", NULL)
        self.index.c_del(self.c_hash_of(job), slot)
        if job.flags & F_STORED:
            self.deleted.append(job.seq)
        return self.c_free_job(slot, job)

    cdef int c_complete_late(self, uint32_t slot, Blob *result, bint remove, int64_t now_ms) except -1:
        """The lease ran out and the job was queued again, but its work is done: complete it."""
        cdef Job *job = self.job_at(slot)
        cdef Queue q = self.c_queue_of(job)
        cdef Run *run
        if not self.spare_run:
            self.spare_run = slab_alloc(&self.runs)
        self.c_unqueue(q, slot, job)
        job.run = self.spare_run
        self.spare_run = 0
        run = self.run_at(job.run)
        run.job = slot
        run.started_ms = run.heartbeat_ms = now_ms
        job.state = ACTIVE
        self.c_list_append(&q.active, job.run, run)
        return self.c_complete(slot, result, remove, now_ms)

    cdef bint c_renew(self, uint32_t slot, int kind, uint64_t hi, uint64_t lo, int64_t lease_ms,
                      int64_t now_ms, int64_t now_ns) except? 0:
        """Renew a lease by its own duration, or by ``lease_ms`` if not 0.

        Without a token only the heartbeat time moves. A token on a delivery without a lease,
        a wrong one, or one that has run out is refused.
        """
        cdef Job *job
        cdef Run *run
        if not slot:
            return False
        job = self.job_at(slot)
        if job.state != ACTIVE:
            return False
        run = self.run_at(job.run)
        if kind == NO_TOKEN:
            run.heartbeat_ms = now_ms
            return True
        if kind != TOKEN or run.token_hi != hi or run.token_lo != lo or run.token_hi == 0:
            return False
        if now_ns >= run.expires_ns:
            return False
        run.heartbeat_ms = now_ms
        run.renewals += 1
        run.expires_ns = _later(now_ns, lease_ms if lease_ms else run.lease_ms)
        self.c_arm(slot, run)
        self.c_mark(slot, job)
        return True

    cdef int c_fail(self, uint32_t slot, str error, object stack, str reason, bint final, bint remove,
                    int64_t now_ms) except -1:
        """A delivery failed: charge it, then retry after the backoff or dead-letter the job."""
        cdef Job *job = self.job_at(slot)
        cdef Run *run = self.run_at(job.run)
        cdef Queue q = self.c_queue_of(job)
        cdef dict extra = self.c_extra(job)
        cdef bint again
        self.c_leave_active(q, slot, job, run)
        job.attempts += 1
        again = not final and job.attempts < job.max_attempts
        self.c_history(job, run, extra, reason if not again or reason == "timeout" else "explicit_fail", error, now_ms)
        if stack is not None:
            extra["stacktrace"] = stack[:max(0, int(extra.get("stackTraceLimit", limits.DEFAULT_STACK_LINES)))]
        if q.event_mask & EV_FAILED:
            self.c_emit(EV_FAILED, q, job, now_ms, (error, not again))
        if not again:
            if remove or job.flags & F_REMOVE_ON_FAIL:
                q.total_failed += 1
                job.state = FAILED
                return self.c_forget_done(slot, job, q)
            return self.c_bury(q, slot, job, reason, error, now_ms)
        job.run_ms = now_ms + self.c_backoff(job, extra)
        self.c_requeue(q, slot, job, now_ms, True)
        if q.event_mask & EV_RETRIED:
            self.c_emit(EV_RETRIED, q, job, now_ms, None)
        return 0

    cdef int64_t c_backoff(self, Job *job, dict extra) except? -1:
        cdef object config = extra.get("backoffConfig")
        if config is None:
            return backoff.backoff_ms(job.attempts, job.backoff_ms, r=self.ids.c_uniform())
        return backoff.backoff_ms(job.attempts, job.backoff_ms, kind=config["type"], cap_ms=config.get("maxDelay"),
                                  jitter=config.get("jitter"), r=self.ids.c_uniform())

    cdef c_history(self, Job *job, Run *run, dict extra, str reason, str error, int64_t now_ms):
        """Write down a charged execution: its timeline entries and its attempt record."""
        cdef list timeline = self.c_timeline(job, extra)
        cdef list attempts = extra.setdefault("attemptRecords", [])
        if len(timeline) < limits.MAX_TIMELINE_ENTRIES:
            timeline.append({"state": "active", "timestamp": run.started_ms})
        if len(timeline) < limits.MAX_TIMELINE_ENTRIES:
            timeline.append({"state": "failed", "timestamp": now_ms, "error": error, "attempt": job.attempts})
        if len(attempts) == limits.MAX_TIMELINE_ENTRIES:
            del attempts[0]
        attempts.append({
            "attempt": job.attempts,
            "startedAt": run.started_ms,
            "failedAt": now_ms,
            "reason": reason,
            "error": error,
            "duration": now_ms - run.started_ms,
        })
        extra["failedReason"] = error

    cdef list c_timeline(self, Job *job, dict extra):
        """The stored part of the timeline. Until a first failure it is derived, and nothing is stored."""
        cdef object found = extra.get("timeline")
        if found is None:
            found = extra["timeline"] = [{"state": self.c_first_state(job), "timestamp": job.created_ms}]
        return <list>found

    cdef str c_first_state(self, Job *job):
        if job.first_state == READY:
            return "prioritized" if job.priority > 0 else "waiting"
        return STATE_NAMES[job.first_state]

    cdef int c_requeue(self, Queue q, uint32_t slot, Job *job, int64_t now_ms, bint later) except -1:
        """A job that has left the active state goes back to its queue.

        ``later``: it waits for its run time. Else it was ready before and is so again, also
        when the wall clock was set back meanwhile, and keeps its place.
        """
        cdef list timeline
        if job.extra != NULL and "timeline" in <dict>job.extra:
            timeline = (<dict>job.extra)["timeline"]
            if len(timeline) < limits.MAX_TIMELINE_ENTRIES:
                timeline.append({"state": "waiting", "timestamp": now_ms, "attempt": job.attempts + 1})
        slab_free(&self.runs, job.run)
        job.run = 0
        self.c_mark(slot, job)
        return self.c_enqueue(q, slot, job, now_ms if later or job.run_ms < now_ms else job.run_ms)

    cdef int c_bury(self, Queue q, uint32_t slot, Job *job, str reason, object error, int64_t now_ms) except -1:
        """Dead-letter a job that is in no list any more. The oldest entry above the cap is dropped."""
        cdef Run *run
        cdef dict extra = self.c_extra(job)
        if not job.run:
            job.run = slab_alloc(&self.runs)
            self.run_at(job.run).job = slot
        run = self.run_at(job.run)
        run.finished_ms = now_ms
        run.token_hi = run.token_lo = 0
        extra["dlq"] = {
            "reason": reason,
            "error": error,
            "retryCount": 0,
            "lastRetryAt": None,
            "nextRetryAt": None,
            "expiresAt": now_ms + limits.DEFAULT_DLQ_MAX_AGE_MS,
        }
        job.state = FAILED
        q.total_failed += 1
        if job.flags & F_WATCHED:
            self.c_settle(job, "failed", NULL)
        self.c_list_append(&q.failed, job.run, run)
        self.c_mark(slot, job)
        while q.failed.n > q.dlq_max_entries:
            self.c_forget(self.run_at(q.failed.head).job)
        return 0

    cdef int c_lost(self, uint32_t slot, str error, str dead_error, str stalled_error, int64_t now_ms) except -1:
        """The holder of a delivery is gone: charge an attempt and a stall; requeue at once or dead-letter."""
        cdef Job *job = self.job_at(slot)
        cdef Run *run = self.run_at(job.run)
        cdef Queue q = self.c_queue_of(job)
        cdef dict extra = self.c_extra(job)
        cdef uint64_t hi = run.token_hi, lo = run.token_lo
        cdef str reason = None
        self.c_leave_active(q, slot, job, run)
        job.attempts += 1
        if job.stalls < 0xFFFF:
            job.stalls += 1
        if job.attempts >= job.max_attempts:
            reason, error = "max_attempts_exceeded", dead_error
        elif q.max_stalls and job.stalls >= q.max_stalls:
            reason, error = "stalled", stalled_error
        self.c_history(job, run, extra, reason or "stalled", error, now_ms)
        if q.event_mask & EV_STALLED:
            self.c_emit(EV_STALLED, q, job, now_ms, reason)
        if reason is not None:
            if hi:
                self.c_finalise(hi, lo, reason)
            if q.event_mask & EV_FAILED:
                self.c_emit(EV_FAILED, q, job, now_ms, (error, True))
            return self.c_bury(q, slot, job, reason, error, now_ms)
        if hi:
            # Until somebody else gets the job, its old holder may still report the work as done.
            extra["lastToken"] = (hi, lo)
        return self.c_requeue(q, slot, job, now_ms, False)

    cdef c_finalise(self, uint64_t hi, uint64_t lo, str outcome):
        """Remember how the engine ended a delivery, for its holder's late answer. Bounded, first in first out."""
        self.final_tokens[(hi, lo)] = outcome
        self.final_order.append((hi, lo))
        if len(self.final_order) > LATE_ANSWERS:
            self.final_tokens.pop(self.final_order.popleft(), None)

    cdef int c_forget(self, uint32_t slot) except -1:
        """Remove a job in any state, with its row, so that nothing of it is left. Active ones lose their delivery."""
        cdef Job *job = self.job_at(slot)
        cdef Queue q = self.c_queue_of(job)
        cdef uint64_t hi = job.id_hi, lo = job.id_lo
        if job.state == READY or job.state == DELAYED:
            self.c_unqueue(q, slot, job)
        elif job.state == ACTIVE:
            self.c_leave_active(q, slot, job, self.run_at(job.run))
        elif job.flags & F_EVICTED:
            self.evicted.discard(slot)
            q.n_archived -= 1
        elif job.state == COMPLETED:
            self.c_list_remove(&q.completed, self.run_at(job.run))
            if job.flags & F_TEXT_ID:
                hi = lo
                lo = ~lo
            self.done.c_delete(hi, lo)
        elif job.state == FAILED:
            self.c_list_remove(&q.failed, self.run_at(job.run))
        elif job.state == STAGED:
            q.n_staged -= 1
        return self.c_forget_done(slot, job, q)

    cdef int c_evict(self, uint32_t slot) except -1:
        """Drop the oldest completed job from memory. With a store its row stays."""
        cdef Job *job = self.job_at(slot)
        cdef Queue q = self.c_queue_of(job)
        self.c_list_remove(&q.completed, self.run_at(job.run))
        if not self.archive:
            return self.c_forget_done(slot, job, q)
        q.n_archived += 1
        job.flags |= F_EVICTED
        if job.flags & F_DIRTY:
            # The next cut still has to encode it; c_taken frees it then.
            self.evicted.add(slot)
            return 0
        return self.c_drop_evicted(slot)

    cdef int c_drop_evicted(self, uint32_t slot) except -1:
        cdef Job *job = self.job_at(slot)
        self.index.c_del(self.c_hash_of(job), slot)
        return self.c_free_job(slot, job)

    # --- time ------------------------------------------------------------------------

    cdef int c_advance(self, int64_t now_ms, int64_t now_ns) except -1:
        """Do what is due: promote delayed jobs, end leases and timeouts. 1 if more is due at once."""
        cdef int64_t due
        cdef uint32_t item
        cdef int left = PROMOTIONS
        while self.due.c_first(&due, &item) and due <= now_ms:
            if left <= 0:
                return 1
            left -= self.c_promote(<Queue>self.queue_list[item], now_ms, left)
        while self.deadlines.c_first(&due, &item) and due <= now_ns:
            if left <= 0:
                return 1
            self.c_deadline(item, now_ms, now_ns)
            left -= 1
        return 0

    cdef int c_deadline(self, uint32_t slot, int64_t now_ms, int64_t now_ns) except -1:
        cdef Job *job = self.job_at(slot)
        cdef Run *run = self.run_at(job.run)
        cdef uint32_t renewals = run.renewals
        if run.timeout_ns and run.timeout_ns <= now_ns:
            if run.token_hi:
                self.c_finalise(run.token_hi, run.token_lo, "timeout")
            return self.c_fail(slot, "Job timeout exceeded", None, "timeout", False, False, now_ms)
        return self.c_lost(slot, "Lock expired", f"Lock expired at max attempts ({job.attempts + 1})",
                           f"Lock expired after {renewals} renewals", now_ms)

    cdef int c_release(self, uint32_t slot, int64_t now_ms) except -1:
        """Give a delivery back, uncharged: its connection ended or its caller is gone."""
        cdef Job *job = self.job_at(slot)
        cdef Queue q = self.c_queue_of(job)
        self.c_leave_active(q, slot, job, self.run_at(job.run))
        return self.c_requeue(q, slot, job, now_ms, False)

    cdef int c_postpone(self, uint32_t slot, int64_t run_ms, int64_t now_ms) except -1:
        """Give a delivery back to be run at another time. Postponing is not failing: nothing is charged."""
        cdef Job *job = self.job_at(slot)
        cdef Queue q = self.c_queue_of(job)
        self.c_leave_active(q, slot, job, self.run_at(job.run))
        job.run_ms = run_ms
        return self.c_requeue(q, slot, job, now_ms, True)

    cdef int c_retime(self, uint32_t slot, int64_t run_ms, int64_t now_ms) except -1:
        """Change the run time of a queued job."""
        cdef Job *job = self.job_at(slot)
        cdef Queue q = self.c_queue_of(job)
        self.c_unqueue(q, slot, job)
        job.run_ms = run_ms
        self.c_mark(slot, job)
        return self.c_enqueue(q, slot, job, now_ms)

    cdef int c_revive(self, uint32_t slot, int64_t now_ms) except -1:
        """A dead letter starts over, with a fresh count of attempts and stalls."""
        cdef Job *job = self.job_at(slot)
        cdef Queue q = self.c_queue_of(job)
        cdef dict extra = self.c_extra(job)
        cdef list timeline = self.c_timeline(job, extra)
        self.c_list_remove(&q.failed, self.run_at(job.run))
        extra.pop("dlq", None)
        job.attempts = 0
        job.stalls = 0
        job.run_ms = now_ms
        if len(timeline) < limits.MAX_TIMELINE_ENTRIES:
            timeline.append({"state": "waiting", "timestamp": now_ms})
        slab_free(&self.runs, job.run)
        job.run = 0
        self.c_mark(slot, job)
        return self.c_enqueue(q, slot, job, now_ms)

    # --- bookkeeping -------------------------------------------------------------------

    cdef inline dict c_extra(self, Job *job):
        cdef dict extra
        if job.extra == NULL:
            extra = {}
            Py_INCREF(extra)
            job.extra = <PyObject *>extra
        return <dict>job.extra

    cdef inline void c_wake(self, Queue q):
        if not q.woken:
            q.woken = True
            self.woken.append(q)

    cdef int c_reserve(self) except -1:
        """Room for one more dirty slot, so that :meth:`c_mark` cannot fail in mid-transition."""
        cdef uint32_t cap
        cdef uint32_t *dirty
        if self.n_dirty < self.cap_dirty or not self.tracking:
            return 0
        cap = self.cap_dirty * 2 if self.cap_dirty else 1024
        dirty = <uint32_t *>PyMem_Realloc(self.dirty, cap * sizeof(uint32_t))
        if dirty == NULL:
            raise MemoryError
        self.dirty = dirty
        self.cap_dirty = cap
        return 0

    cdef inline int c_mark(self, uint32_t slot, Job *job) except -1:
        """List a changed job for the next cut, once."""
        if not self.tracking or job.flags & F_DIRTY:
            return 0
        if self.n_dirty == self.cap_dirty:
            self.c_reserve()
        job.flags |= F_DIRTY
        job.dirty_at = self.n_dirty
        self.dirty[self.n_dirty] = slot
        self.n_dirty += 1
        return 0

    cdef int c_free_job(self, uint32_t slot, Job *job) except -1:
        """Free the record of a job that is in no structure any more."""
        cdef PyObject *extra = job.extra
        if job.flags & F_DIRTY:
            self.dirty[job.dirty_at] = 0
        blob_free(job.data)
        if job.flags & F_TEXT_ID:
            blob_free(<Blob *>job.id_hi)
        if job.run:
            blob_free(self.run_at(job.run).result)
            slab_free(&self.runs, job.run)
        job.extra = NULL
        job.state = 0
        slab_free(&self.jobs, slot)
        if extra != NULL:
            Py_DECREF(<object>extra)
        return 0

    cdef void c_list_append(self, RunList *list_, uint32_t at, Run *run) noexcept:
        run.prev = list_.tail
        run.next = 0
        if list_.tail:
            self.run_at(list_.tail).next = at
        else:
            list_.head = at
        list_.tail = at
        list_.n += 1

    cdef void c_list_remove(self, RunList *list_, Run *run) noexcept:
        if run.prev:
            self.run_at(run.prev).next = run.next
        else:
            list_.head = run.next
        if run.next:
            self.run_at(run.next).prev = run.prev
        else:
            list_.tail = run.prev
        run.prev = run.next = 0
        list_.n -= 1

    cdef int c_own(self, uint32_t slot, Run *run, uint32_t session) except -1:
        """Note that a session holds this delivery. ``self.spare_run`` is the record's slot."""
        cdef uint32_t cap
        cdef uint32_t *heads
        if not session:
            return 0
        if session >= self.cap_sessions:
            cap = max(64, self.cap_sessions * 2, session + 1)
            heads = <uint32_t *>PyMem_Realloc(self.sessions, cap * sizeof(uint32_t))
            if heads == NULL:
                raise MemoryError
            memset(heads + self.cap_sessions, 0, (cap - self.cap_sessions) * sizeof(uint32_t))
            self.sessions = heads
            self.cap_sessions = cap
        run.session = session
        run.session_prev = 0
        run.session_next = self.sessions[session]
        if run.session_next:
            self.run_at(run.session_next).session_prev = self.spare_run
        self.sessions[session] = self.spare_run
        return 0

    cdef void c_disown(self, Run *run) noexcept:
        if run.session_prev:
            self.run_at(run.session_prev).session_next = run.session_next
        else:
            self.sessions[run.session] = run.session_next
        if run.session_next:
            self.run_at(run.session_next).session_prev = run.session_prev
        run.session = run.session_prev = run.session_next = 0

    cdef int c_settle(self, Job *job, str kind, Blob *result) except -1:
        """Note the outcome of a job for those who wait for it, once."""
        job.flags &= ~<uint32_t>F_WATCHED
        self.settled.append((self.c_id(job), kind, None if result == NULL
                             else PyBytes_FromStringAndSize(<char *>blob_bytes(result), result.size)))
        return 0

    def watch(self, str job_id not None):
        """Note the outcome of a job once it is known (see ``settled``).

        ``waiting`` when that is to come; else the outcome as it is: ``completed``, ``failed`` or ``removed``.
        """
        cdef uint32_t slot = self.c_slot(job_id)
        if not slot or self.job_at(slot).state == STAGED:
            return "removed"
        if self.job_at(slot).state == COMPLETED:
            return "completed"
        if self.job_at(slot).state == FAILED:
            return "failed"
        self.job_at(slot).flags |= F_WATCHED
        return "waiting"

    cdef int c_emit(self, int kind, Queue q, Job *job, int64_t now_ms, object data) except -1:
        self.events.append((_EVENT_NAMES[kind], q.name, self.c_id(job), now_ms, data))
        return 0

    # --- for the store -------------------------------------------------------------------

    cdef int c_taken(self) except -1:
        """The host has encoded every change: start the next set."""
        cdef uint32_t i, slot
        cdef Job *job
        for i in range(self.n_dirty):
            slot = self.dirty[i]
            if slot:
                job = self.job_at(slot)
                job.flags = (job.flags & ~<uint32_t>F_DIRTY) | F_STORED
        self.n_dirty = 0
        for slot in self.evicted:
            self.c_drop_evicted(slot)
        self.evicted.clear()
        self.deleted = []
        self.new_names = []
        for q in self.dirty_queues:
            (<Queue>q).dirty = False
        self.dirty_queues = []
        return 0

    @property
    def n_changes(self):
        """Changed and removed jobs that no cut has taken yet."""
        return self.n_dirty + len(self.deleted) + len(self.dirty_queues)

    # --- commands, as Python calls ---------------------------------------------------------
    #
    # The host's compiled paths call the c_ procedures above; these wrap the same ones for
    # tests, simulations and embedders. Payloads and results are packed bytes, None = none.

    def push(self, str queue not None, bytes data, int64_t now_ms, *, str name="default", str job_id=None,
             double priority=0, int64_t delay_ms=0, int64_t created_ms=-1, uint32_t attempts=3,
             uint32_t backoff_ms=1000, bint lifo=False, bint remove_on_complete=False,
             bint remove_on_fail=False, dict extra=None):
        """Admit one job and return its id; the id of the live job that holds ``job_id`` already."""
        cdef Spec spec
        cdef int how
        cdef uint32_t slot
        memset(&spec, 0, sizeof(spec))
        if job_id is not None:
            spec.id_text = PyUnicode_AsUTF8AndSize(job_id, &spec.id_n)
        if data is not None:
            spec.data = blob_new(<const char *>data, len(data), 0)
        spec.priority = priority
        spec.created_ms = now_ms if created_ms < 0 else created_ms
        spec.run_ms = spec.created_ms + delay_ms
        spec.name = self.c_name(name)
        if not spec.name:
            extra = dict(extra or {}, name=name)
        spec.max_attempts = attempts
        spec.backoff_ms = backoff_ms
        spec.flags = ((F_LIFO if lifo else 0) | (F_REMOVE_ON_COMPLETE if remove_on_complete else 0)
                      | (F_REMOVE_ON_FAIL if remove_on_fail else 0))
        try:
            slot = self.c_add(self.c_queue(queue), &spec, extra, now_ms, False, &how)
        finally:
            blob_free(spec.data)
        return self.c_id(self.job_at(slot))

    def push_many(self, str queue not None, list datas not None, int64_t now_ms):
        """Admit plain jobs, one for each packed payload; their ids in order."""
        cdef Queue q = self.c_queue(queue)
        cdef Spec spec
        cdef int how
        cdef uint32_t slot
        cdef bytes data
        cdef list ids = []
        memset(&spec, 0, sizeof(spec))
        spec.created_ms = spec.run_ms = now_ms
        spec.name = 1
        spec.max_attempts = limits.DEFAULT_ATTEMPTS
        spec.backoff_ms = limits.DEFAULT_BACKOFF_MS
        for data in datas:
            spec.data = blob_new(<const char *>data, len(data), 0)
            slot = self.c_add(q, &spec, None, now_ms, False, &how)
            ids.append(self.c_id(self.job_at(slot)))
        return ids

    def pull(self, str queue not None, int64_t now_ms, int64_t now_ns, *, int64_t lease_ms=0, uint32_t session=0):
        """Deliver the first ready job as ``(id, token or None, data)``; None when there is none."""
        cdef object found = self.queues.get(queue)
        cdef uint32_t slot
        if found is None:
            return None
        slot = self.c_claim(<Queue>found, now_ms, now_ns, lease_ms, session)
        return self.c_delivery(slot) if slot else None

    def pull_many(self, str queue not None, Py_ssize_t count, int64_t now_ms, int64_t now_ns, *,
                  int64_t lease_ms=0, uint32_t session=0):
        """Deliver up to ``count`` ready jobs, as :meth:`pull` does."""
        cdef object found = self.queues.get(queue)
        cdef list out = []
        cdef uint32_t slot
        if found is None:
            return out
        while count > 0:
            slot = self.c_claim(<Queue>found, now_ms, now_ns, lease_ms, session)
            if not slot:
                break
            out.append(self.c_delivery(slot))
            count -= 1
        return out

    cdef tuple c_delivery(self, uint32_t slot):
        cdef Job *job = self.job_at(slot)
        cdef Run *run = self.run_at(job.run)
        cdef char text[36]
        cdef object token = None
        if run.token_hi:
            uuid_text(run.token_hi, run.token_lo, text)
            token = PyUnicode_DecodeUTF8(text, 36, NULL)
        return (self.c_id(job), token,
                None if job.data == NULL
                else PyBytes_FromStringAndSize(<char *>blob_bytes(job.data), job.data.size))

    def ack(self, str job_id not None, int64_t now_ms, *, str token=None, bytes result=None,
            uint32_t result_notes=0, bint remove=False):
        """Complete an active job; False when the engine had ended this delivery before.

        ``result_notes`` are the ``BlobNote`` bits of the result.

        :raises StateError: the job is not active
        :raises LeaseError: the token is missing or wrong
        """
        cdef uint64_t hi, lo
        cdef uint32_t slot = self.c_slot(job_id)
        cdef int verdict = self.c_judge(slot, present_token(token, &hi, &lo), hi, lo)
        cdef Blob *packed = NULL
        if verdict == ALREADY_FINAL:
            return False
        if verdict != MAY and verdict != LATE:
            raise refusal(verdict, job_id)
        if result is not None:
            packed = blob_new(<const char *>result, len(result), result_notes)
        if verdict == LATE:
            self.c_complete_late(slot, packed, remove, now_ms)
        else:
            self.c_complete(slot, packed, remove, now_ms)
        return True

    def fail(self, str job_id not None, int64_t now_ms, *, str token=None, str error="", list stack=None,
             bint unrecoverable=False, bint remove=False):
        """Fail an active job: retry after its backoff, or dead-letter it. False as for :meth:`ack`.

        :raises StateError: the job is not active
        :raises LeaseError: the token is missing or wrong
        """
        cdef uint64_t hi, lo
        cdef uint32_t slot = self.c_slot(job_id)
        cdef int verdict = self.c_judge(slot, present_token(token, &hi, &lo), hi, lo)
        if verdict == ALREADY_FINAL or verdict == LATE:
            return False
        if verdict != MAY:
            raise refusal(verdict, job_id)
        self.c_fail(slot, error, stack, "max_attempts_exceeded", unrecoverable, remove, now_ms)
        return True

    def renew(self, str job_id not None, int64_t now_ms, int64_t now_ns, *, str token=None, int64_t lease_ms=0):
        """Renew the lease of a delivery; False when it is not this token's any more."""
        cdef uint64_t hi, lo
        cdef int kind = present_token(token, &hi, &lo)
        return self.c_renew(self.c_slot(job_id), kind, hi, lo, lease_ms, now_ms, now_ns)

    def move_to_delayed(self, str job_id not None, int64_t delay_ms, int64_t now_ms, *, str token=None):
        """Put an active job off, uncharged, or change the time of a queued one (no token then).

        :raises NotFoundError: the job is not there
        :raises StateError: it is neither active nor queued
        :raises LeaseError: the token is missing or wrong
        """
        cdef uint64_t hi, lo
        cdef uint32_t slot = self.c_slot(job_id)
        cdef Job *job
        cdef int verdict
        if not slot or self.job_at(slot).state == STAGED:
            raise NotFoundError("Job not found")
        job = self.job_at(slot)
        if job.state == READY or job.state == DELAYED:
            self.c_retime(slot, now_ms + max(0, delay_ms), now_ms)
        elif job.state == ACTIVE:
            verdict = self.c_judge(slot, present_token(token, &hi, &lo), hi, lo)
            if verdict == ALREADY_FINAL:
                verdict = TOKEN_WRONG
            if verdict != MAY:
                raise refusal(verdict, job_id)
            self.c_postpone(slot, now_ms + max(0, delay_ms), now_ms)
        else:
            raise StateError(f"Job is not active (current state: {self.c_state_name(job)})")

    def move_to_wait(self, str job_id not None, int64_t now_ms, *, str token=None):
        """Make a job ready: an active one is given back uncharged, a delayed one promoted, a dead one revived.

        :raises NotFoundError: the job is not there
        :raises StateError: it is in another state
        :raises LeaseError: the token is missing or wrong
        """
        cdef uint64_t hi, lo
        cdef uint32_t slot = self.c_slot(job_id)
        cdef Job *job
        cdef int verdict
        if not slot or self.job_at(slot).state == STAGED:
            raise NotFoundError("Cannot move job from state 'unknown' to waiting")
        job = self.job_at(slot)
        if job.state == ACTIVE:
            verdict = self.c_judge(slot, present_token(token, &hi, &lo), hi, lo)
            if verdict == ALREADY_FINAL:
                verdict = TOKEN_WRONG
            if verdict != MAY:
                raise refusal(verdict, job_id)
            self.c_release(slot, now_ms)
        elif job.state == DELAYED:
            self.c_retime(slot, now_ms, now_ms)
        elif job.state == FAILED:
            self.c_revive(slot, now_ms)
        elif job.state != READY:
            raise StateError(f"Cannot move job from state '{self.c_state_name(job)}' to waiting")

    def promote(self, str job_id not None, int64_t now_ms):
        """Make a delayed job ready; False when it is not delayed."""
        cdef uint32_t slot = self.c_slot(job_id)
        if not slot or self.job_at(slot).state != DELAYED:
            return False
        self.c_retime(slot, now_ms, now_ms)
        return True

    def change_delay(self, str job_id not None, int64_t delay_ms, int64_t now_ms, *, str token=None):
        """As :meth:`move_to_delayed`, but False when the job is neither queued nor active."""
        cdef uint32_t slot = self.c_slot(job_id)
        if not slot or self.job_at(slot).state not in (READY, DELAYED, ACTIVE):
            return False
        self.move_to_delayed(job_id, delay_ms, now_ms, token=token)
        return True

    def retry_dead(self, str queue not None, int64_t now_ms, *, str job_id=None, Py_ssize_t count=-1):
        """Revive dead letters of a queue: one by id, the oldest ``count``, or all. How many."""
        cdef Queue q = self.queues.get(queue)
        cdef uint32_t slot
        cdef Py_ssize_t n = 0
        if q is None:
            return 0
        if job_id is not None:
            slot = self.c_slot(job_id)
            if not slot or self.job_at(slot).state != FAILED or self.job_at(slot).queue != q.index:
                return 0
            self.c_revive(slot, now_ms)
            return 1
        while q.failed.n and n != count:
            self.c_revive(self.run_at(q.failed.head).job, now_ms)
            n += 1
        return n

    def remove(self, str job_id not None):
        """Remove a job in whatever state; False when it is not there."""
        cdef uint32_t slot = self.c_slot(job_id)
        if not slot:
            return False
        self.c_forget(slot)
        return True

    def close_session(self, uint32_t session, int64_t now_ms):
        """A connection ended: give back, uncharged, the deliveries it never renewed. How many."""
        cdef uint32_t at
        cdef Run *run
        cdef int n = 0
        if session >= self.cap_sessions:
            return 0
        while self.sessions[session]:
            at = self.sessions[session]
            run = self.run_at(at)
            if run.renewals:
                self.c_disown(run)      # another connection of the same worker may be renewing it
            else:
                self.c_release(run.job, now_ms)
                n += 1
        return n

    def advance(self, int64_t now_ms, int64_t now_ns):
        """Do what is due; True when more is due at once (work in one call is bounded)."""
        return self.c_advance(now_ms, now_ns) != 0

    cdef int64_t c_next_due(self, int64_t now_ms, int64_t now_ns) noexcept:
        """Nanoseconds until something is due; -1 when nothing ever is. O(1)."""
        cdef int64_t due, left = -1, other
        cdef uint32_t item
        if self.due.c_first(&due, &item):
            left = _later(0, max(0, due - now_ms))
        if self.deadlines.c_first(&due, &item):
            other = max(0, due - now_ns)
            if left < 0 or other < left:
                left = other
        return left

    def next_due(self, int64_t now_ms, int64_t now_ns):
        """Nanoseconds until the engine next has something to do; None when nothing is due ever."""
        cdef int64_t left = self.c_next_due(now_ms, now_ns)
        return None if left < 0 else left

    def pause(self, str queue not None, bint paused=True):
        """Pause or resume a queue."""
        cdef Queue q = self.c_queue(queue)
        q.paused = paused
        self.c_mark_queue(q)
        if not paused and q.n_waits:
            self.c_wake(q)

    def listen(self, str queue not None, int mask):
        """Choose the events of a queue that are built (bits of ``EVENT_BITS``)."""
        self.c_queue(queue).event_mask = mask

    def take_events(self):
        """The events since the last call: (type, queue, job id, ms, data)."""
        cdef list out = self.events
        self.events = []
        return out

    def queue(self, str name not None):
        """The queue of that name, or None."""
        return self.queues.get(name)

    def queue_names(self):
        return list(self.queues)

    # --- questions ---------------------------------------------------------------------------

    cdef str c_state_name(self, Job *job):
        if job.state == READY:
            return "prioritized" if job.priority > 0 else "waiting"
        return STATE_NAMES[job.state]

    def state(self, str job_id not None):
        """The state of a job; ``unknown`` when it is not there."""
        cdef uint32_t slot = self.c_slot(job_id)
        if not slot or self.job_at(slot).state == STAGED:
            return "unknown"
        return self.c_state_name(self.job_at(slot))

    def result(self, str job_id not None):
        """The packed result of a completed job; None when there is none."""
        cdef uint32_t slot = self.c_slot(job_id)
        cdef Blob *blob
        if not slot or self.job_at(slot).state != COMPLETED:
            return None
        blob = self.run_at(self.job_at(slot).run).result
        return None if blob == NULL else PyBytes_FromStringAndSize(<char *>blob_bytes(blob), blob.size)

    def attempts(self, str job_id not None):
        """Charged executions of a job.

        :raises NotFoundError: the job is not there
        """
        cdef uint32_t slot = self.c_slot(job_id)
        if not slot:
            raise NotFoundError("Job not found")
        return self.job_at(slot).attempts

    def run_at_ms(self, str job_id not None):
        """The earliest start of a job, in ms."""
        cdef uint32_t slot = self.c_slot(job_id)
        if not slot:
            raise NotFoundError("Job not found")
        return self.job_at(slot).run_ms

    def counts(self, str queue not None, int64_t now_ms):
        """Jobs by state, all keys always. O(1) beside promotions that are due."""
        cdef object found = self.queues.get(queue)
        cdef Queue q
        cdef Py_ssize_t ready, prioritized
        if found is None:
            return dict.fromkeys(("waiting", "prioritized", "delayed", "active", "completed", "failed",
                                  "waiting-children", "paused"), 0)
        q = <Queue>found
        self.c_promote(q, now_ms, PROMOTIONS)
        ready = q.ready.n
        prioritized = q.n_prioritized
        return {
            "waiting": 0 if q.paused else ready - prioritized,
            "prioritized": 0 if q.paused else prioritized,
            "delayed": q.delayed.n,
            "active": q.active.n,
            "completed": q.completed.n + q.n_archived,
            "failed": q.failed.n,
            "waiting-children": 0,
            "paused": ready if q.paused else 0,
        }

    def __len__(self):
        """Jobs known, in all states."""
        return self.index.n

    def memory(self):
        """Bytes held by the structures, without payloads and rare options."""
        cdef Queue q
        cdef size_t n = slab_nbytes(&self.jobs) + slab_nbytes(&self.runs) + self.index.c_nbytes()
        for q in self.queue_list[1:]:
            n += q.ready.c_nbytes() + q.delayed.c_nbytes()
        return n + self.done.c_nbytes() + self.deadlines.c_nbytes()

    def _check(self):
        """Every invariant of the engine, O(n); raises AssertionError that says which."""
        cdef uint32_t slot, at
        cdef Job *job
        cdef Run *run
        cdef Queue q
        cdef Key key
        cdef int64_t due
        cdef dict seen = {}
        cdef Py_ssize_t n_jobs = 0, n_runs = 0, n_deadlines = 0, n_dirty = 0, n_evicted = 0
        cdef SkipNode *node
        for slot in range(1, self.jobs.fresh):
            job = self.job_at(slot)
            if job.state == 0:
                continue
            n_jobs += 1
            assert 0 < job.state <= STAGED, f"slot {slot}: state {job.state}"
            assert self.c_slot(self.c_id(job)) == slot, f"slot {slot}: not found by its id"
            assert 0 < job.seq <= self.seq
            if job.flags & F_DIRTY:
                n_dirty += 1
                assert self.tracking and self.dirty[job.dirty_at] == slot
            has_run = job.state in (ACTIVE, COMPLETED, FAILED)
            assert (job.run != 0) == has_run, f"slot {slot}: state {job.state}, run {job.run}"
            assert (job.delayed != 0) == (job.state == DELAYED)
            if has_run:
                n_runs += 1
                run = self.run_at(job.run)
                assert run.job == slot
                if job.state == ACTIVE:
                    assert (run.deadline != 0) == (run.expires_ns != 0 or run.timeout_ns != 0)
                    assert (run.token_hi != 0) == (run.expires_ns != 0)
                    n_deadlines += run.deadline != 0
                else:
                    assert run.deadline == 0 and run.session == 0 and run.expires_ns == 0
            if job.flags & F_EVICTED:
                n_evicted += 1
                assert slot in self.evicted and job.state == COMPLETED
            else:
                seen.setdefault((job.queue, job.state), set()).add(slot)
        assert n_jobs == self.index.n, f"{n_jobs} jobs, {self.index.n} in the index"
        assert n_jobs == self.jobs.n_used
        assert n_runs + (self.spare_run != 0) == self.runs.n_used
        assert n_deadlines == self.deadlines.n
        assert n_evicted == len(self.evicted)
        assert n_dirty == sum(1 for i in range(self.n_dirty) if self.dirty[i])
        self.done._check()
        self.due._check()
        self.deadlines._check()
        self.index._check()
        for q in self.queue_list[1:]:
            q.ready._check()
            q.delayed._check()
            mine = set()
            prioritized = 0
            node = q.ready.c_begin()
            while node != NULL:
                job = self.job_at(node.value)
                self.c_key(job, &key)
                assert key.a == node.key.a and key.b == node.key.b and key.c == node.key.c
                prioritized += job.priority > 0
                mine.add(node.value)
                node = q.ready.c_after(node)
            assert mine == seen.pop((q.index, READY), set())
            assert prioritized == q.n_prioritized
            mine = set()
            for i in range(q.delayed.n):
                slot = q.delayed.c_at(i, &due)
                assert due == self.job_at(slot).run_ms
                mine.add(slot)
            assert mine == seen.pop((q.index, DELAYED), set())
            assert (q.due != 0) == (q.delayed.n > 0)
            for state, list_ in ((ACTIVE, q.active), (COMPLETED, q.completed), (FAILED, q.failed)):
                mine = set()
                at, before = list_.head, 0
                while at:
                    run = self.run_at(at)
                    assert run.prev == before
                    mine.add(run.job)
                    before, at = at, run.next
                assert list_.tail == before and list_.n == len(mine)
                assert mine == seen.pop((q.index, state), set())
            assert q.n_staged == len(seen.pop((q.index, STAGED), set()))
            assert q.failed.n <= q.dlq_max_entries
        assert not seen, f"jobs in no structure: {seen}"
        for session in range(self.cap_sessions):
            at, before = self.sessions[session], 0
            while at:
                run = self.run_at(at)
                assert run.session == session and run.session_prev == before
                assert self.job_at(run.job).state == ACTIVE
                before, at = at, run.session_next
