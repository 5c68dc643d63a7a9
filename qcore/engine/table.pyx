"""The jobs that there are: their records, their ids, their queues, and what changed.

Everything here is bookkeeping without rules: which states lead to which is in
:mod:`qcore.engine.transitions`.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Realloc
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, INT64_MIN, UINT32_MAX, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memset

from qcore.engine.ids cimport IdSource, is_own, uuid_parse, uuid_text
from qcore.engine.job cimport (
    ACTIVE, COMPLETED, DELAYED, F_CUSTOM_ID, F_DIRTY, F_EVICTED, F_GUEST, F_LIFO, F_REWRITE, F_STORED, F_TEXT_ID,
    F_WAS_NEEDED, F_WATCHED, FAILED, KEPT, NOTES, PARKED, READY, STAGED, Blob, Job, Run, blob_bytes, blob_free,
)
from qcore.engine.journal cimport Journal
from qcore.engine.listing cimport L_ACTIVE, L_COMPLETED, L_FAILED
from qcore.engine.meter cimport MINUTE_MS, Meter
from qcore.engine.queue cimport Queue, RunList, packed_text
from qcore.structs.delayheap cimport DelayHeap
from qcore.structs.idtable cimport IdTable
from qcore.structs.siphash cimport siphash13
from qcore.structs.skiplist cimport Key
from qcore.structs.slab cimport slab_alloc, slab_at, slab_dealloc, slab_free, slab_init
from qcore.structs.tokens cimport CompletionTokens

from collections import OrderedDict, deque
from functools import partial
from struct import Struct

import msgpack

from qcore import limits
from qcore.errors import LimitError

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
EVENT_NAMES = {bit: name for name, bit in EVENT_BITS.items()}
cdef dict _EVENT_NAMES = EVENT_NAMES


cdef int64_t order_of(double priority) noexcept nogil:
    """An integer that sorts higher priorities first. -0.0 and 0.0 are one priority."""
    cdef int64_t bits = qcore_bits(-(priority + 0.0) + 0.0)
    return bits if bits >= 0 else bits ^ <int64_t>0x7FFFFFFFFFFFFFFF


def _packed_counts(Table table not None, Queue q not None):
    return table.c_counts(q)


cdef inline tuple _payload(Blob *blob):
    return PyBytes_FromStringAndSize(<char *>blob_bytes(blob), blob.size), blob.notes & NOTES


cdef class Table:
    """Records, ids and queues of all jobs, and the lists of what the host has to do.

    ``seed`` (16 bytes) determines every id, token and jitter. ``tracking`` collects
    changes for a store. ``max_completed`` bounds the completed jobs kept in memory;
    with ``archive`` the evicted ones stay counted, because the store still has them.
    ``max_events`` bounds the journal of each queue; 0 keeps none. With ``keep_events`` it is kept in
    the store, not only counted. ``max_minutes`` bounds the
    minutes whose outcomes are kept of each queue; 0 keeps totals only. ``max_waiting_deps``
    bounds the jobs of a queue that wait for others.
    """

    def __cinit__(self, bytes seed not None, *, bint tracking=False, bint archive=False,
                  uint32_t max_completed=limits.DEFAULT_MAX_COMPLETED_JOBS,
                  Py_ssize_t max_events=limits.DEFAULT_MAX_QUEUE_EVENTS,
                  int64_t max_minutes=limits.DEFAULT_MAX_METRIC_MINUTES,
                  Py_ssize_t max_waiting_deps=limits.DEFAULT_MAX_WAITING_DEPS, bint keep_events=False):
        slab_init(&self.jobs, sizeof(Job))
        slab_init(&self.runs, sizeof(Run))
        self.ids = IdSource(seed)
        self.hash_key.k0 = self.ids.c_random()
        self.hash_key.k1 = self.ids.c_random()
        self.index = IdTable()
        self.queues = {}
        self.past = dict.fromkeys(("pushed", "pulled", "total_completed", "total_failed"), 0)
        self.forgotten = OrderedDict()
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
        self.keeps_events = keep_events and tracking and max_events > 0
        self.noted = []
        self.noted_cut = []
        self.journal_row = 1
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
        self.refused = set()
        self.woken = []
        self.events = []
        self.settled = []
        self.guests = []
        self.flying = []
        self.going = None
        self.far_ids = IdTable()
        slab_init(&self.far_seqs, sizeof(int64_t))
        self.far_ms = INT64_MAX
        self.final_tokens = {}
        self.final_order = deque()
        self.c_name("default")

    def __dealloc__(self):
        cdef uint32_t slot, page
        cdef Job *job
        for page in range(self.n_queue_pages):
            PyMem_Free(self.queue_pages[page])
        PyMem_Free(self.queue_pages)
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
        slab_dealloc(&self.far_seqs)
        PyMem_Free(self.leaving)
        PyMem_Free(self.sessions)
        PyMem_Free(self.marks)

    # --- names and queues -------------------------------------------------------

    cdef uint64_t c_seed_of(self, uint32_t queue) noexcept:
        """A seed for what a queue has of its own; the next ids do not depend on whether it was asked for."""
        return self.hash_key.k0 ^ <uint64_t>queue * <uint64_t>0x9E3779B97F4A7C15

    cdef Queue c_queue(self, str name):
        """The queue of that name, created by first use."""
        cdef object found = self.queues.get(name)
        cdef Queue q
        if found is not None:
            q = <Queue>found
            q.used = True
            return q
        if self.last_queue == UINT32_MAX:
            raise LimitError(f"There have been {self.last_queue} queues: a data file knows no more")
        self.last_queue += 1
        q = Queue(self.last_queue, name, self.c_seed_of(self.last_queue))
        self.c_place_queue(q)
        self.c_mark_queue(q)
        if name in self.forgotten:
            index, packed = self.forgotten.pop(name)
            self.c_restore_counts(q, packed)
            self.c_side("telemetry", index, None)
            self.c_mark_counts(q)
        return q

    cdef int c_place_queue(self, Queue q) except -1:
        """Make a queue known by its name and its index, which no other has."""
        cdef uint32_t page = q.index >> 8
        cdef QueuePage **pages
        if page >= self.n_queue_pages:
            pages = <QueuePage **>PyMem_Realloc(self.queue_pages, (<size_t>page + 1) * sizeof(QueuePage *))
            if pages == NULL:
                raise MemoryError
            memset(&pages[self.n_queue_pages], 0, (<size_t>page + 1 - self.n_queue_pages) * sizeof(QueuePage *))
            self.queue_pages = pages
            self.n_queue_pages = page + 1
        if self.queue_pages[page] == NULL:
            self.queue_pages[page] = <QueuePage *>PyMem_Calloc(1, sizeof(QueuePage))
            if self.queue_pages[page] == NULL:
                raise MemoryError
        q.event_mask = self.everywhere | <uint32_t>self.wanted.get(q.name, 0)
        if self.keeps_events:
            q.journal = Journal(q.index)
        self.queues[q.name] = q
        self.queue_pages[page].at[q.index & 255] = <PyObject *>q
        self.queue_pages[page].n += 1
        q.used = True
        return 0

    cdef Queue c_queue_at(self, int64_t index):
        """The queue with this index; None when it is forgotten, or there never was one."""
        cdef PyObject *found
        if not 0 < index <= self.last_queue or index >> 8 >= self.n_queue_pages \
                or self.queue_pages[index >> 8] == NULL:
            return None
        found = self.queue_pages[index >> 8].at[index & 255]
        return None if found == NULL else <Queue>found

    cdef int c_drop_queue(self, Queue q) except -1:
        """Forget a queue that nothing is left of, here and in the store. Its index is never given again."""
        cdef uint32_t page = q.index >> 8
        if q.check:
            self.checks.c_remove(q.check)
            q.check = 0
        self.c_clear_minutes(q)
        q.n_events = 0
        self.c_trim_journal(q)
        packed = self.c_counts(q) if q.completions.total or q.failures.total else None
        self.c_side("telemetry", q.index, None if packed is None else packed + q.name.encode())
        if packed is not None:
            self.c_keep_forgotten(q.index, q.name, packed)
        # Rows of what has passed may bear its index, so that is known for ever, from the same cut on.
        self.c_side("telemetry", 0, msgpack.packb(self.last_queue))
        if q.listing is not None:
            self.n_listings -= 1
            q.listing = None
        self.past["pushed"] += q.total_pushed
        self.past["pulled"] += q.total_pulled
        self.past["total_completed"] += q.total_completed
        self.past["total_failed"] += q.total_failed
        q.gone = True
        self.c_mark_queue(q)
        self.queue_pages[page].at[q.index & 255] = NULL
        self.queue_pages[page].n -= 1
        if not self.queue_pages[page].n:
            PyMem_Free(self.queue_pages[page])
            self.queue_pages[page] = NULL
        del self.queues[q.name]
        return 0

    cdef int c_keep_forgotten(self, uint32_t index, str name, bytes packed) except -1:
        """Keep what was counted of a queue that is forgotten, for when its name comes back."""
        cdef object at
        self.forgotten[name] = index, packed
        while len(self.forgotten) > limits.FORGOTTEN_QUEUES:
            at, _ = self.forgotten.popitem(False)[1]
            self.c_side("telemetry", at, None)
        return 0

    cdef Queue c_counted(self, str name):
        """The queue of that name, or what was counted of it while it is forgotten; None when nothing is known."""
        cdef Queue q = self.queues.get(name)
        if q is None and name in self.forgotten:
            q = Queue(0, name, 0)
            self.c_restore_counts(q, self.forgotten[name][1])
        return q

    cdef int c_forget_counts(self, str name) except -1:
        """Forget what was counted of a forgotten queue."""
        cdef object found = self.forgotten.pop(name, None)
        if found is not None:
            self.c_side("telemetry", found[0], None)
        return 0

    cdef c_mark_queue(self, Queue q):
        if self.tracking and not q.dirty:
            q.dirty = True
            self.dirty_queues.append(q)

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

    cdef int c_timeline_add(self, Job *job, str state, int64_t now_ms) except -1:
        cdef list timeline = self.c_timeline(job, self.c_extra(job))
        if len(timeline) < limits.MAX_TIMELINE_ENTRIES:
            timeline.append({"state": state, "timestamp": now_ms})
        return 0

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

    # --- the archive -----------------------------------------------------------------
    #
    # A completed job beyond the bound is *archived*: counted, but in no list, and its record
    # leaves memory once the cut with its last change is committed (F_EVICTED until then). Its
    # host reads its row back for a command that needs it; then it is a guest, F_EVICTED again.
    # Rows are found by the order of their ids; of custom ids, which have none, memory keeps
    # where they are.

    cdef int c_leave_memory(self, uint32_t slot, Job *job) except -1:
        """List an archived job among those whose records go. Its queue counts it already."""
        cdef uint32_t cap
        cdef uint32_t *leaving
        if self.n_leaving == self.cap_leaving:
            cap = self.cap_leaving * 2 if self.cap_leaving else 256
            leaving = <uint32_t *>PyMem_Realloc(self.leaving, cap * sizeof(uint32_t))
            if leaving == NULL:
                raise MemoryError
            self.leaving = leaving
            self.cap_leaving = cap
        self.leaving[self.n_leaving] = slot
        self.n_leaving += 1
        job.delayed = self.n_leaving
        job.flags |= F_EVICTED
        return 0

    cdef void c_stay(self, uint32_t slot, Job *job) noexcept:
        """The record of an archived job is not in the list of :meth:`c_leave_memory` any more."""
        cdef uint32_t other
        self.n_leaving -= 1
        other = self.leaving[self.n_leaving]
        self.leaving[job.delayed - 1] = other
        self.job_at(other).delayed = job.delayed
        job.delayed = 0
        job.flags &= ~<uint32_t>F_EVICTED

    cdef int c_unarchive(self, uint32_t slot, Job *job) except -1:
        """An archived job is not one any more: it goes for good, or belongs to memory again."""
        cdef Queue q = self.c_queue_of(job)
        if job.flags & F_GUEST and job.flags & F_CUSTOM_ID:
            self.c_forget_far(job.seq, self.c_hash_of(job))
        self.c_stay(slot, job)
        job.flags &= ~<uint32_t>F_GUEST
        q.n_archived -= 1
        self.n_archived -= 1
        return 0

    cdef int c_drop_evicted(self, uint32_t slot) except -1:
        """Free the record of an archived job; its row is committed."""
        cdef Job *job = self.job_at(slot)
        cdef uint64_t hashed = self.c_hash_of(job)
        if job.flags & F_CUSTOM_ID:
            if not job.flags & F_GUEST:
                self.c_note_far(job.seq, hashed)
        elif job.id_hi > self.far_hi:
            self.far_hi = job.id_hi
        self.c_stay(slot, job)
        self.index.c_del(hashed, slot)
        return self.c_free_job(slot, job)

    cdef int c_committed(self) except -1:
        """Every cut that was taken is committed: archived jobs without later changes leave memory."""
        cdef uint32_t i, slot
        if self.flying:
            self.flying = []
            self.going = None
        if self.holds:
            return 0
        i = self.n_leaving
        while i:
            i -= 1
            slot = self.leaving[i]
            if not self.job_at(slot).flags & F_DIRTY:
                self.c_drop_evicted(slot)       # the last one takes its place, and was looked at
        return 0

    cdef int c_note_far(self, int64_t seq, uint64_t hashed) except -1:
        """The row with this number belongs to an archived job with a custom id."""
        cdef uint32_t place = slab_alloc(&self.far_seqs)
        (<int64_t *>slab_at(&self.far_seqs, place))[0] = seq
        return self.far_ids.c_put(hashed, place)

    cdef void c_forget_far(self, int64_t seq, uint64_t hashed) noexcept:
        cdef Py_ssize_t cursor
        cdef uint32_t place = self.far_ids.c_find(hashed, &cursor)
        while place:
            if (<int64_t *>slab_at(&self.far_seqs, place))[0] == seq:
                self.far_ids.c_del(hashed, place)
                slab_free(&self.far_seqs, place)
                return
            place = self.far_ids.c_next(hashed, &cursor)

    cdef bint c_may_be_far(self, const char *text, Py_ssize_t n) noexcept:
        """Whether an archived job without a record in memory may have this id; False: surely none."""
        cdef uint64_t ids[2]
        cdef Py_ssize_t cursor
        if not self.n_archived or self.c_find(text, n):
            return False
        if uuid_parse(text, n, &ids[0], &ids[1]):
            return (is_own(ids[0]) and ids[0] <= self.far_hi) or self.far_ids.c_find(self.c_hash(ids, 16), &cursor) != 0
        return self.far_ids.c_find(self.c_hash(text, n), &cursor) != 0

    cdef bint c_is_going(self, int64_t seq) except -1:
        """Whether the row with this number is deleted or was refused, but may be in the store still.

        O(1) but for what was deleted since the last question.
        """
        if self.refused and seq in self.refused:
            return True
        if self.going is None:
            self.going = set().union(*self.flying)
            self.n_going = 0
        if self.n_going < len(self.deleted):
            self.going.update(self.deleted[self.n_going:])
            self.n_going = len(self.deleted)
        return seq in self.going

    @property
    def far_end(self):
        """The upper half of the greatest id of ours in the archive."""
        return self.far_hi

    @property
    def last_id(self):
        """(upper half of the newest id of ours, newest number of a job)."""
        return self.ids.last_hi, self.seq

    def may_be_far(self, str job_id not None):
        """See :meth:`c_may_be_far`."""
        cdef Py_ssize_t n
        cdef const char *text = PyUnicode_AsUTF8AndSize(job_id, &n)
        return self.c_may_be_far(text, n)

    def far_places(self, str job_id not None):
        """Numbers of the rows of which one may belong to the archived job with this custom id."""
        cdef Py_ssize_t n, cursor
        cdef uint64_t ids[2]
        cdef uint64_t hashed
        cdef const char *text = PyUnicode_AsUTF8AndSize(job_id, &n)
        cdef uint32_t place
        cdef list found = []
        hashed = self.c_hash(ids, 16) if uuid_parse(text, n, &ids[0], &ids[1]) else self.c_hash(text, n)
        place = self.far_ids.c_find(hashed, &cursor)
        while place:
            found.append((<int64_t *>slab_at(&self.far_seqs, place))[0])
            place = self.far_ids.c_next(hashed, &cursor)
        return found

    def own_id(self, str job_id not None):
        """The upper half of an id in the form of ours, by which these are in order; None for others."""
        cdef uint64_t hi, lo
        cdef Py_ssize_t n
        cdef const char *text = PyUnicode_AsUTF8AndSize(job_id, &n)
        return hi if uuid_parse(text, n, &hi, &lo) and is_own(hi) else None

    def release_guests(self):
        """Let go of the archived jobs that were read back; one that was changed stays until that is committed."""
        cdef uint32_t slot
        cdef int64_t seq
        cdef Job *job
        cdef list guests = self.guests
        if not guests:
            return
        self.guests = []
        for slot, seq in guests:
            job = self.job_at(slot)
            if job.state == COMPLETED and job.seq == seq and job.flags & F_EVICTED and not job.flags & F_DIRTY:
                self.c_drop_evicted(slot)

    def committed(self):
        """See :meth:`c_committed`."""
        self.c_committed()

    def end_trim(self, Queue q not None, bint whole):
        """A look at the store for what a queue no longer keeps has ended; not ``whole``: another has to follow."""
        if not whole and q.far_most < 0:
            q.far_most = q.far_most_due
        self.trims = self.trims or (not whole and (q.far_most >= 0 or q.far_until_ms > INT64_MIN))
        if q.far_most_due != q.far_most:
            q.far_most_due = q.far_most
            self.c_mark_queue(q)

    def floors(self):
        """Queues that were obliterated while only the store had some of their rows -> number of the last of those."""
        cdef Queue q
        return {q.name: q.floor_seq for q in self.queues.values() if q.floor_seq}

    def end_floor(self, str queue not None, int64_t seq):
        """The store has no row up to this number any more that an obliterated queue left there."""
        cdef Queue q = self.queues.get(queue)
        if q is not None and q.floor_seq == seq and not self.refused:
            q.floor_seq = 0
            self.c_mark_queue(q)

    def note_ends(self):
        """From now on :meth:`earliest_end` knows of the jobs that leave memory from now on only."""
        self.far_ms = INT64_MAX

    def earliest_end(self):
        """The earliest end, in ms, of the completed jobs in memory and of those that left it; None without any.

        O(queues); O(n) of a queue in which the wall clock was set back.
        """
        cdef Queue q
        cdef uint32_t at
        cdef int64_t earliest = self.far_ms
        for q in self.queues.values():
            at = q.completed.head
            while at:
                earliest = min(earliest, self.run_at(at).finished_ms)
                at = self.run_at(at).next if q.completed.backwards else 0
        return None if earliest == INT64_MAX else earliest

    cdef c_check_archive(self):
        cdef uint32_t i
        cdef Job *job
        cdef int64_t n = 0
        assert not self.guests
        for i in range(self.n_leaving):
            job = self.job_at(self.leaving[i])
            assert job.state == COMPLETED and job.flags & F_EVICTED and job.delayed == i + 1
        for q in self.queues.values():
            assert (<Queue>q).n_archived >= 0
            n += (<Queue>q).n_archived
        assert n == self.n_archived and self.far_ids.n == self.far_seqs.n_used
        self.far_ids._check()

    def _check_order(self):
        """Check that ids of ours grow with the numbers of jobs, which only a damaged row may break. O(n log n)."""
        cdef uint32_t slot
        cdef Job *job
        cdef list own = []
        for slot in range(1, self.jobs.fresh):
            job = self.job_at(slot)
            if job.state and not job.flags & F_CUSTOM_ID:
                own.append((job.seq, job.id_hi))
        own.sort()
        assert all([one[1] < two[1] for one, two in zip(own, own[1:])]), "ids of ours are not in order"

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
            self.side["telemetry", q.index] = partial(_packed_counts, self, q)
            self.counted.append(q)
            q.counted = True        # last, for the others may fail
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

    cdef int c_clear_minutes(self, Queue q) except -1:
        """Let the next cut remove the closed minutes of a queue."""
        cdef Meter meter
        cdef uint32_t i
        if self.tracking and q.index < MAX_METERED_QUEUES:
            for meter in (q.completions, q.failures):
                key = <int64_t>q.index << (MINUTE_BITS + 1) | (meter is q.failures)
                for i in range(meter.n_closed):
                    self.side["minutes", key | meter.c_closed(i).minute << 1] = None
        return 0

    cdef int c_clear_counts(self, Queue q) except -1:
        """Forget what was counted of a queue."""
        self.c_clear_minutes(q)
        q.completions = Meter()
        q.failures = Meter()
        q.n_events = 0
        self.c_trim_journal(q)
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
        """Bring back stored counts. Raises ValueError when they cannot be read.

        1: fewer events count than then, since the bound is lower.
        """
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
        return fields[1] > self.max_events

    cdef int c_restore_forgotten(self, list rows) except -1:
        """Bring back what was counted of forgotten queues: (index, value) each; how many could not be read.

        The one whose last job ended first is the oldest.
        """
        cdef int bad = 0
        cdef list found = []
        for index, packed in rows:
            try:
                name = packed[_COUNTS.size:].decode()
                if not name:
                    raise ValueError("no queue has this index")
                self.c_restore_counts(Queue(0, name, 0), packed[:_COUNTS.size])
                fields = _COUNTS.unpack_from(packed)
            except (ValueError, TypeError):
                bad += 1
                continue
            if name in self.queues:
                self.c_side("telemetry", index, None)
            else:
                found.append((max(fields[3], fields[7]), index, name, packed[:_COUNTS.size]))
        for _, index, name, packed in sorted(found):
            self.c_keep_forgotten(index, name, packed)
        return bad

    cdef int c_restore_last_queue(self, bytes packed) except -1:
        """Bring back the highest index that a queue ever had; see :meth:`c_drop_queue`."""
        cdef uint32_t last = msgpack.unpackb(packed)
        self.last_queue = max(self.last_queue, last)
        return 0

    cdef int c_restore_minute(self, object key, object packed) except -1:
        """Bring back a closed minute; they come in order. One that is not kept any more is dropped."""
        cdef Meter meter
        cdef int64_t index = key >> (MINUTE_BITS + 1), minute = key >> 1 & ((<int64_t>1 << MINUTE_BITS) - 1)
        cdef Queue q = self.c_queue_at(index)
        if q is None or len(packed) != 8:
            raise ValueError("unknown form")
        meter = q.failures if key & 1 else q.completions
        if not meter.minute - self.max_minutes < minute < meter.minute:
            self.c_side("minutes", key, None)
            return 0
        count = int.from_bytes(packed, "little", signed=True)
        if count < 1:
            raise ValueError("not a number of outcomes")
        meter.c_close(minute, count)
        return 0

    cdef c_check_counts(self):
        cdef Queue q
        for q in self.queues.values():
            assert 0 <= q.n_events <= self.max_events
            assert q.counted == (q in self.counted)
            if q.journal is not None:
                q.journal._check(q.n_events)
                assert q.journal.noted == (q in self.noted)
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
        self.n_lasting_marks += kept == MARK_KEPT
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
        cdef Py_ssize_t n = self.done.c_delete_owner(q.index, False)
        if not n and not (self.n_marked or self.n_marks or self.text_marks):
            return 0
        self.n_lasting_marks -= n
        # The ids with texts and the others are lists of their own.
        self.c_note_evidence("", 0, 0, q.index, MARK_QUEUE_ENDS)
        return self.c_note_evidence(None, 0, 0, q.index, MARK_QUEUE_ENDS)

    cdef int c_open_marks(self) except -1:
        """Begin the row of this cut; the oldest rows go once the others know as many ids as are kept.

        What takes an id away, or brings it again, takes room in a row too, and must not push out what is known still;
        up to a bound, since there is no end of such.
        """
        cdef Py_ssize_t cap = self.done.cap
        self.c_side("evidence", self.mark_row, self._pack_marks)
        while self.mark_rows and (self.n_lasting - self.mark_rows[0][2] >= cap
                                  or self.n_marked - self.mark_rows[0][1] >= limits.EVIDENCE_SLACK * cap):
            row, n, lasting = self.mark_rows.popleft()
            self.n_marked -= n
            self.n_lasting -= lasting
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
        return self.c_note_event(q, kind, now_ms, "" if job == NULL else self.c_id(job), data)

    cdef int c_note_event(self, Queue q, int kind, int64_t now_ms, object job_id, object data) except -1:
        """Hand an event to those who listen, and to the journal if it is kept."""
        if q.event_mask & kind:
            self.events.append((_EVENT_NAMES[kind], q.name, job_id, now_ms, data))
        if q.journal is not None:
            q.journal.c_add(kind, now_ms, job_id, data)
            self.c_note_journal(q)
        return 0

    cdef int c_note_journal(self, Queue q) except -1:
        """There is something to write in the journal of a queue."""
        if not q.journal.noted:
            self.noted.append(q)
            q.journal.noted = True
        return 0

    # --- rows of the journals ------------------------------------------------------------

    cdef int c_write_journals(self, dict staged, int64_t now_ms) except -1:
        """Add rows of all events so far to the gathering cut, and of the durable adds that it makes known.

        After an error, or when there came no commit of it, it may be called again.
        """
        cdef Queue q
        cdef uint32_t slot
        cdef Job *job
        cdef list begun = []
        self.c_undo_journals()              # of a cut that could not be made
        for q in self.noted:
            q.journal.staged = []
        for slot, seq in staged.items():
            job = self.job_at(slot)
            if job.state == STAGED and job.seq == seq:
                q = self.c_queue_of(job)
                self.c_note_journal(q)
                q.journal.staged.append((EV_PUSHED, now_ms, self.c_id(job), None))
        self.noted_cut = list(self.noted)
        for q in self.noted:
            while q.journal.c_write(self.side, self.journal_row, q.n_events, now_ms):
                self.journal_row += 1
            for key, _ in q.journal.c_trim(q.n_events):
                self.side["journal", key] = None
            if q.journal.c_write_staged(self.side, self.journal_row):
                self.journal_row += 1
        self.noted = begun
        for q in self.noted_cut:
            q.journal.noted = False
        return 0

    cdef int c_undo_journals(self) except -1:
        """The commit failed: the durable adds in it are not known after all.

        After an error it may be called again, and is by :meth:`c_write_journals`.
        """
        cdef Queue q
        for q in self.noted_cut:
            if q.journal.c_unsure():
                # First, for it may fail: the row may be in the file, and its numbers are given out again.
                self.c_side("journal", q.journal.unsure[0], None)
                q.journal.c_undo()
        self.noted_cut = []
        return 0

    cdef int c_settle_journals(self) except -1:
        """The commit succeeded, and what it made known has been told."""
        cdef Queue q
        for q in self.noted_cut:
            q.journal.unsure = None
        self.noted_cut = []
        return 0

    cdef int c_trim_journal(self, Queue q) except -1:
        """Remove the rows that do not count any more."""
        if q.journal is not None:
            for key, _ in q.journal.c_trim(q.n_events):
                self.c_side("journal", key, None)
        return 0

    def trim_journals(self):
        """Remove the rows that do not count any more, of all queues. O(queues)."""
        cdef Queue q
        for q in self.queues.values():
            self.c_trim_journal(q)

    def count_journals(self):
        """After all rows: only events that are there count. O(queues).

        Those of a time without rows are not, nor those in a row that cannot be read.
        """
        cdef Queue q
        for q in self.queues.values():
            if q.journal is not None and q.n_events > q.journal.n_stored:
                q.n_events = q.journal.n_stored
                self.c_mark_counts(q)

    cdef int c_restore_event_row(self, object key, object packed) except -1:
        """Bring back a row of a journal; they come in order. One that is not kept any more goes."""
        cdef Queue q
        self.journal_row = max(self.journal_row, <int64_t>key + 1)
        if not self.keeps_events:
            self.c_side("journal", key, None)
            return 0
        queue, first, events = msgpack.unpackb(packed, use_list=False)
        q = self.c_queue_at(queue)
        if q is None:
            raise ValueError("unknown queue")
        return q.journal.c_restore(key, first, events, packed)

    # --- for the store -------------------------------------------------------------------

    cdef int c_taken(self) except -1:
        """The host has encoded every change: start the next set. After an error nothing has happened."""
        cdef uint32_t i, slot
        cdef Job *job
        cdef list deleted = [], names = [], queues = [], counted = [], texts = []
        cdef dict side = {}
        cdef Py_ssize_t n = len(self.text_marks) + self.n_marks
        if n:
            self.mark_rows.append((self.mark_row, n, self.n_lasting_marks))
        if self.deleted:
            try:
                self.flying.append(self.deleted)
            except MemoryError:
                if n:
                    self.mark_rows.pop()
                raise
            self.going = None
        # From here on nothing fails.
        for i in range(self.n_dirty):
            slot = self.dirty[i]
            if slot:
                job = self.job_at(slot)
                job.flags = (job.flags & ~<uint32_t>(F_DIRTY | F_REWRITE | F_WAS_NEEDED)) | F_STORED
        self.n_dirty = self.ahead_at = 0
        self.deleted = deleted  # also an empty one belongs to the cut now
        self.new_names = names
        for q in self.dirty_queues:
            (<Queue>q).dirty = False
        self.dirty_queues = queues
        self.side = side
        for q in self.counted:
            (<Queue>q).counted = False
        self.counted = counted
        if n:
            self.n_marked += n
            self.n_lasting += self.n_lasting_marks
            self.n_lasting_marks = 0
            self.mark_row += 1
            self.n_marks = 0
            self.text_marks = texts
        return 0

    cdef void c_taken_ahead(self, uint32_t at) noexcept:
        """The host has encoded the job at this place of the dirty vector, in the set that goes on.

        If it changes again, it is listed again. Not for one that leaves memory with its cut.
        """
        cdef Job *job = self.job_at(self.dirty[at])
        job.flags = (job.flags & ~<uint32_t>(F_DIRTY | F_REWRITE | F_WAS_NEEDED)) | F_STORED
        self.dirty[at] = 0

    @property
    def n_changes(self):
        """Changed and removed jobs that no cut has taken yet."""
        return self.n_dirty + len(self.deleted) + len(self.dirty_queues) + len(self.side) + len(self.noted)
