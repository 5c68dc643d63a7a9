"""The jobs that there are: their records, their ids, their queues, and what changed.

Everything here is bookkeeping without rules: which states lead to which is in
:mod:`qcore.engine.transitions`.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MIN, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memset

from qcore.engine.ids cimport IdSource, uuid_parse, uuid_text
from qcore.engine.job cimport (
    ACTIVE, COMPLETED, DELAYED, F_DIRTY, F_LIFO, F_REWRITE, F_STORED, F_TEXT_ID, F_WATCHED, FAILED, KEPT, PARKED,
    READY, Blob, Job, Run, blob_bytes, blob_free,
)
from qcore.engine.listing cimport L_ACTIVE, L_COMPLETED, L_FAILED
from qcore.engine.meter cimport MINUTE_MS, Meter
from qcore.engine.queue cimport Queue, RunList, packed_text
from qcore.structs.delayheap cimport DelayHeap
from qcore.structs.idtable cimport IdTable
from qcore.structs.siphash cimport siphash13
from qcore.structs.skiplist cimport Key
from qcore.structs.slab cimport slab_dealloc, slab_free, slab_init
from qcore.structs.tokens cimport CompletionTokens

from collections import deque
from functools import partial
from struct import Struct

import msgpack

from qcore import limits

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object o, Py_ssize_t *size) except NULL

cdef extern from *:
    """
    static inline long long qcore_bits(double d) { long long i; memcpy(&i, &d, 8); return i; }
    """
    long long qcore_bits(double d) noexcept nogil

cdef enum:
    MAX_INTERNED_NAMES = 65535
    # A key of the table of minutes: queue, minute, kind of outcome; 23 + 39 + 1 bits.
    MINUTE_BITS = 39
    MAX_METERED_QUEUES = 1 << 23

# What is stored of a queue's counts: a version, its journal, and total, latest, open minute and its
# count of completions and of failures. A change needs another version.
cdef object _COUNTS = Struct("<B9q")
cdef enum:
    COUNTS_VERSION = 1

STATE_NAMES = {
    READY: "waiting",
    DELAYED: "delayed",
    ACTIVE: "active",
    COMPLETED: "completed",
    FAILED: "failed",
    PARKED: "waiting-children",
    KEPT: "unknown",
}
EVENT_BITS = {
    "pushed": EV_PUSHED,
    "pulled": EV_PULLED,
    "completed": EV_COMPLETED,
    "failed": EV_FAILED,
    "retried": EV_RETRIED,
    "stalled": EV_STALLED,
    "duplicated": EV_DUPLICATED,
    "progress": EV_PROGRESS,
    "delayed": EV_DELAYED,
    "waiting": EV_WAITING,
    "waiting-children": EV_WAITING_CHILDREN,
    "removed": EV_REMOVED,
    "paused": EV_PAUSED,
    "resumed": EV_RESUMED,
    "drained": EV_DRAINED,
}
cdef dict _EVENT_NAMES = {bit: name for name, bit in EVENT_BITS.items()}


cdef int64_t order_of(double priority) noexcept nogil:
    """An integer that sorts higher priorities first. -0.0 and 0.0 are one priority."""
    cdef int64_t bits = qcore_bits(-(priority + 0.0) + 0.0)
    return bits if bits >= 0 else bits ^ <int64_t>0x7FFFFFFFFFFFFFFF


def _packed_counts(Table table not None, Queue q not None):
    return table.c_counts(q)


cdef inline tuple _payload(Blob *blob):
    return PyBytes_FromStringAndSize(<char *>blob_bytes(blob), blob.size), blob.notes


cdef class Table:
    """Records, ids and queues of all jobs, and the lists of what the host has to do.

    ``seed`` (16 bytes) determines every id, token and jitter. ``tracking`` collects
    changes for a store. ``max_completed`` bounds the completed jobs kept in memory;
    with ``archive`` the evicted ones stay counted, because the store still has them.
    ``max_events`` bounds the journal of each queue; 0 keeps none. ``max_minutes`` bounds the
    minutes whose outcomes are kept of each queue; 0 keeps totals only. ``max_waiting_deps``
    bounds the jobs of a queue that wait for others.
    """

    def __cinit__(self, bytes seed not None, *, bint tracking=False, bint archive=False,
                  uint32_t max_completed=limits.DEFAULT_MAX_COMPLETED_JOBS,
                  Py_ssize_t max_events=limits.DEFAULT_MAX_QUEUE_EVENTS,
                  int64_t max_minutes=limits.DEFAULT_MAX_METRIC_MINUTES,
                  Py_ssize_t max_waiting_deps=limits.DEFAULT_MAX_WAITING_DEPS):
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
        self.expiries = DelayHeap()
        self.checks = DelayHeap()
        self.lives = DelayHeap()
        self.living = {}
        self.side = {}
        self.max_events = max_events
        self.max_minutes = max_minutes
        self.counted = []
        self.wanted = {}
        self.done = CompletionTokens(max_completed)
        self.text_marks = []
        self.mark_row = 1
        self.mark_rows = deque()
        self.loaded_marks = []
        self.needed = {}
        self.batch = set()
        self.max_waiting_deps = max_waiting_deps
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
        PyMem_Free(self.marks)

    # --- names and queues -------------------------------------------------------

    cdef Queue c_queue(self, str name):
        """The queue of that name, created by first use."""
        cdef object found = self.queues.get(name)
        cdef Queue q
        if found is not None:
            return <Queue>found
        q = Queue(len(self.queue_list), name, self.ids.c_random())
        q.event_mask = self.everywhere | <uint32_t>self.wanted.get(name, 0)
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
        if found is not None:
            return found
        if len(self.name_texts) > MAX_INTERNED_NAMES:
            return 0
        index = len(self.name_texts)
        self.name_texts.append(name)
        self.name_packed.append(packed_text(name))
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

    # --- order and state ------------------------------------------------------------

    cdef inline void c_key(self, Job *job, Key *key) noexcept:
        key.a = order_of(job.priority)
        if job.flags & F_LIFO:
            key.b = INT64_MIN
            key.c = -job.seq
        else:
            key.b = job.run_ms
            key.c = job.seq

    cdef str c_state_name(self, Job *job):
        if job.state == READY:
            return "prioritized" if job.priority > 0 else "waiting"
        return STATE_NAMES[job.state]

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

    cdef int c_drop_evicted(self, uint32_t slot) except -1:
        cdef Job *job = self.job_at(slot)
        self.index.c_del(self.c_hash_of(job), slot)
        return self.c_free_job(slot, job)

    cdef void c_list_append(self, RunList *list_, uint32_t at, Run *run) noexcept:
        run.prev = list_.tail
        run.next = 0
        if list_.tail:
            if self.run_at(list_.tail).finished_ms > run.finished_ms:
                list_.backwards = True
            self.run_at(list_.tail).next = at
        else:
            list_.head = at
        list_.tail = at
        list_.n += 1
        if self.n_listings:
            self.c_list_run(list_, run, True)

    cdef void c_list_run(self, RunList *list_, Run *run, bint there) noexcept:
        """Keep the index of the queue, if it has one, in step with its lists."""
        cdef Job *job = self.job_at(run.job)
        cdef Queue q = self.c_queue_of(job)
        cdef int which = (L_ACTIVE if list_ == &q.active else L_COMPLETED if list_ == &q.completed else L_FAILED)
        if there:
            self.c_list(q, which, run.job, job)
        else:
            self.c_unlist(q, which, job)

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
        if list_.n == 0:
            list_.backwards = False
        if self.n_listings:
            self.c_list_run(list_, run, False)

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

    cdef int c_side(self, str table, object key, object value) except -1:
        """Note a small value for the next cut: packed bytes, None to remove it, or a call that packs it then."""
        if self.tracking:
            self.side[(table, key)] = value
        return 0

    # --- journal and meters --------------------------------------------------------------

    cdef int c_mark_counts(self, Queue q) except -1:
        """Let the next cut carry the counts of a queue, once, as they are then."""
        if self.tracking:
            q.counted = True
            self.counted.append(q)
            self.side["telemetry", q.index] = partial(_packed_counts, self, q)
        return 0

    cdef int c_open_minute(self, Queue q, Meter meter, int64_t now_ms) except -1:
        """An outcome begins a minute: the one before is closed and stored, old ones are dropped."""
        over, dropped = meter.c_open(now_ms, self.max_minutes)
        if not self.tracking or q.index >= MAX_METERED_QUEUES:
            return 0
        key = <int64_t>q.index << (MINUTE_BITS + 1) | (meter is q.failures)
        if over is not None:
            self.side["minutes", key | over[0] << 1] = (<int64_t>over[1]).to_bytes(8, "little")
        for minute in dropped:
            self.side["minutes", key | minute << 1] = None
        return 0

    cdef int c_clear_counts(self, Queue q) except -1:
        """Forget what was counted of a queue."""
        cdef Meter meter
        if self.tracking and q.index < MAX_METERED_QUEUES:
            for meter in (q.completions, q.failures):
                key = <int64_t>q.index << (MINUTE_BITS + 1) | (meter is q.failures)
                for minute, _ in meter.closed or ():
                    self.side["minutes", key | minute << 1] = None
        q.completions = Meter()
        q.failures = Meter()
        q.n_events = 0
        if not q.counted:
            self.c_mark_counts(q)
        return 0

    cdef bytes c_counts(self, Queue q):
        """The counts of a queue as they are stored. Staged jobs of a cut are told of once it is committed."""
        cdef Meter c = q.completions, f = q.failures
        return _COUNTS.pack(COUNTS_VERSION, min(self.max_events, q.n_events + q.n_staged),
                            c.total, c.prev_ms, c.minute if c.until_ms else -1, c.prev_count,
                            f.total, f.prev_ms, f.minute if f.until_ms else -1, f.prev_count)

    cdef int c_restore_counts(self, Queue q, bytes packed) except -1:
        """Bring back stored counts. Raises ValueError when they cannot be read."""
        cdef Meter meter
        if len(packed) != _COUNTS.size or packed[0] != COUNTS_VERSION:
            raise ValueError("unknown form")
        fields = _COUNTS.unpack(packed)
        q.n_events = max(0, min(fields[1], self.max_events))
        for meter, (total, prev_ms, minute, prev_count) in ((q.completions, fields[2:6]), (q.failures, fields[6:])):
            meter.total = total
            meter.prev_ms = prev_ms
            if minute >= 0:
                meter.minute = minute
                meter.until_ms = (minute + 1) * MINUTE_MS
                meter.prev_count = prev_count
        return 0

    cdef int c_restore_minute(self, object key, object packed) except -1:
        """Bring back a closed minute; they come in order. One that is not kept any more is dropped."""
        cdef Meter meter
        cdef int64_t index = key >> (MINUTE_BITS + 1), minute = key >> 1 & ((<int64_t>1 << MINUTE_BITS) - 1)
        if not 0 < index < len(self.queue_list) or len(packed) != 8:
            raise ValueError("unknown form")
        meter = (<Queue>self.queue_list[index]).failures if key & 1 else (<Queue>self.queue_list[index]).completions
        if not meter.minute - self.max_minutes < minute < meter.minute:
            self.c_side("minutes", key, None)
            return 0
        if meter.closed is None:
            meter.closed = deque()
        meter.closed.append((minute, int.from_bytes(packed, "little")))
        return 0

    cdef c_check_counts(self):
        cdef Queue q
        for q in self.queue_list[1:]:
            assert 0 <= q.n_events <= self.max_events
            assert q.counted == (q in self.counted)
            assert not q.counted or ("telemetry", q.index) in self.side
            q.completions._check(max(1, self.max_minutes))
            q.failures._check(max(1, self.max_minutes))

    # --- evidence ------------------------------------------------------------------------
    #
    # An id that was completed and removed leaves evidence in `done`. What each cut adds to it
    # or takes from it is one row of the table `evidence`, by growing numbers; texts are written
    # out, since their hashes hold for this process only.

    cdef bint c_number_of(self, str job_id, uint64_t *hi, uint64_t *lo) except? 0:
        """The key of an id in `done`; True when the id is a number."""
        cdef Py_ssize_t n
        cdef const char *text = PyUnicode_AsUTF8AndSize(job_id, &n)
        if uuid_parse(text, n, hi, lo):
            return True
        hi[0] = self.c_hash(text, n)
        lo[0] = ~hi[0]
        return False

    cdef int c_note_gone(self, Job *job, uint32_t queue) except -1:
        """The job is completed and its record goes."""
        if not self.tracking:
            return 0
        if job.flags & F_TEXT_ID:
            return self.c_note_evidence(self.c_id(job), 0, 0, queue, True)
        return self.c_note_evidence(None, job.id_hi, job.id_lo, queue, True)

    cdef int c_note_evidence(self, str text, uint64_t hi, uint64_t lo, uint32_t queue, int kept) except -1:
        """Note for the next cut that an id (``text``, or a number) has evidence, or has none any more."""
        cdef uint32_t cap
        cdef Mark *marks
        cdef Mark *mark
        if not self.tracking:
            return 0
        if not self.n_marks and not self.text_marks:
            self.c_open_marks()
        if text is not None:
            self.text_marks.append((text, self.done_ms, queue, int(kept)))
            return 0
        if self.n_marks == self.cap_marks:
            cap = self.cap_marks * 2 if self.cap_marks else 256
            marks = <Mark *>PyMem_Realloc(self.marks, cap * sizeof(Mark))
            if marks == NULL:
                raise MemoryError
            self.marks = marks
            self.cap_marks = cap
        mark = &self.marks[self.n_marks]
        self.n_marks += 1
        mark.hi = hi
        mark.lo = lo
        mark.at_ms = self.done_ms
        mark.queue = queue
        mark.kept = kept
        return 0

    cdef int c_end_evidence(self, Queue q) except -1:
        """Forget the completed ids of a queue, but those that live jobs are tied to. O(what is known)."""
        if not self.done.c_delete_owner(q.index, False) and not (self.n_marked or self.n_marks or self.text_marks):
            return 0
        # The ids with texts and the others are lists of their own.
        self.c_note_evidence("", 0, 0, q.index, MARK_QUEUE_ENDS)
        return self.c_note_evidence(None, 0, 0, q.index, MARK_QUEUE_ENDS)

    cdef int c_open_marks(self) except -1:
        """Begin the row of this cut; the oldest rows go once the others hold as many ids as are kept."""
        self.c_side("evidence", self.mark_row, self._pack_marks)
        while self.mark_rows and self.n_marked - self.mark_rows[0][1] >= <Py_ssize_t>self.done.cap:
            row, n = self.mark_rows.popleft()
            self.n_marked -= n
            self.c_side("evidence", row, None)
        return 0

    def _pack_marks(self):
        return msgpack.packb([PyBytes_FromStringAndSize(<char *>self.marks, self.n_marks * sizeof(Mark)),
                              self.text_marks])

    cdef int c_settle(self, Job *job, str kind, Blob *result) except -1:
        """Note the outcome of a job for those who wait for it, once."""
        job.flags &= ~<uint32_t>F_WATCHED
        self.settled.append((self.c_id(job), kind, None if result == NULL
                             else PyBytes_FromStringAndSize(<char *>blob_bytes(result), result.size)))
        return 0

    cdef int c_emit(self, int kind, Queue q, Job *job, int64_t now_ms, object data) except -1:
        """Build an event. ``job`` NULL: it is of the whole queue.

        ``data`` by kind: *completed* the (packed result, its notes) or None; *failed* (error,
        terminal or None), which the job's data are added to, or (error,) without them; *stalled*
        (number of stalls, ``retry`` or ``move_to_dlq``), None when a job is back at once; *progress*
        (number, message or None); *delayed* the ms; *waiting* and *removed* the state before.
        """
        if kind == EV_FAILED and len(<tuple>data) == 2:
            data = (*data, *_payload(job.data)) if job.data != NULL else (*data, None, 0)
        self.events.append((_EVENT_NAMES[kind], q.name, "" if job == NULL else self.c_id(job), now_ms, data))
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
                job.flags = (job.flags & ~<uint32_t>(F_DIRTY | F_REWRITE)) | F_STORED
        self.n_dirty = 0
        for slot in self.evicted:
            self.c_drop_evicted(slot)
        self.evicted.clear()
        self.deleted = []
        self.new_names = []
        for q in self.dirty_queues:
            (<Queue>q).dirty = False
        self.dirty_queues = []
        self.side = {}
        for q in self.counted:
            (<Queue>q).counted = False
        self.counted = []
        if self.n_marks or self.text_marks:
            n = len(self.text_marks) + self.n_marks
            self.mark_rows.append((self.mark_row, n))
            self.n_marked += n
            self.mark_row += 1
            self.n_marks = 0
            self.text_marks = []
        return 0

    @property
    def n_changes(self):
        """Changed and removed jobs that no cut has taken yet."""
        return self.n_dirty + len(self.deleted) + len(self.dirty_queues) + len(self.side)
