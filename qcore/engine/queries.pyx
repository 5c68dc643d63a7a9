"""What can be asked of the engine, without changing it: states, counts, listings."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint32_t

from qcore.engine.idle cimport Idle
from qcore.engine.job cimport (
    ACTIVE, COMPLETED, DELAYED, F_CUSTOM_ID, F_EVICTED, F_NEEDED, FAILED, READY, STAGED, Blob, Job, Run, blob_bytes,
)
from qcore.engine.lanes cimport Group
from qcore.engine.listing cimport (
    L_ACTIVE, L_COMPLETED, L_DELAYED, L_FAILED, L_PARKED, L_PRIORITIZED, L_WAITING, N_LISTED, Listing, Page,
)
from qcore.engine.queue cimport Queue, RunList
from qcore.engine.transitions cimport PROMOTIONS
from qcore.structs.skiplist cimport SkipList, SkipNode
from qcore.structs.slab cimport slab_nbytes

from qcore.errors import NotFoundError, StateError

cdef tuple _LISTED = (
    ("delayed", L_DELAYED),
    ("active", L_ACTIVE),
    ("completed", L_COMPLETED),
    ("failed", L_FAILED),
    ("waiting-children", L_PARKED),
)


cdef class Queries(Idle):
    """:class:`~qcore.engine.idle.Idle` with questions."""

    cdef uint32_t c_known(self, str job_id) except? 0:
        """Slot of a job that callers may know of; 0 = none."""
        cdef uint32_t slot = self.c_slot(job_id)
        return slot if slot and self.job_at(slot).state < STAGED else 0

    cdef bint c_admitted_since(self, str job_id, int64_t since_ms, object created_ms) except -1:
        """Whether a job that is there, finished or not, was added at that time or later.

        ``created_ms``: the creation time that its producer gave, or None.
        """
        cdef uint32_t slot = self.c_slot(job_id)
        if not slot:
            return False
        if created_ms is not None:
            return self.job_at(slot).created_ms == created_ms
        return self.job_at(slot).created_ms >= since_ms

    def admitted_since(self, str job_id not None, int64_t since_ms, object created_ms):
        """See :meth:`c_admitted_since`."""
        return self.c_admitted_since(job_id, since_ms, created_ms)

    def progress(self, str job_id not None):
        """How far an active job has come, and the last message or None. Errors as of :meth:`set_progress`."""
        cdef uint32_t slot = self.c_known(job_id)
        cdef dict extra
        if not slot:
            raise NotFoundError("Job not found")
        if self.job_at(slot).state != ACTIVE:
            raise StateError(f"Job is not active (current state: {self.c_state_name(self.job_at(slot))})")
        extra = {} if self.job_at(slot).extra == NULL else <dict>self.job_at(slot).extra
        return (extra.get("progress", 0), extra.get("progressMessage"))

    def logs(self, str job_id not None):
        """The log of a job as [ms, level, message], oldest first; empty when the job is not there."""
        cdef uint32_t slot = self.c_known(job_id)
        return [list(line) for line in self.c_log(self.job_at(slot).seq)] if slot else []

    def queue(self, str name not None):
        """The queue of that name, or None."""
        return self.queues.get(name)

    def queue_names(self):
        return list(self.queues)

    def state(self, str job_id not None):
        """The state of a job; ``unknown`` when it is not there."""
        cdef uint32_t slot = self.c_slot(job_id)
        if not slot or self.job_at(slot).state >= STAGED:
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

    def data(self, str job_id not None):
        """The packed data of a job; None when it has none or is not there."""
        cdef uint32_t slot = self.c_known(job_id)
        cdef Blob *blob
        if not slot or self.job_at(slot).data == NULL:
            return None
        blob = self.job_at(slot).data
        return PyBytes_FromStringAndSize(<char *>blob_bytes(blob), blob.size)

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
        ready = q.n_ready
        prioritized = q.n_prioritized
        return {
            "waiting": 0 if q.paused else ready - prioritized,
            "prioritized": 0 if q.paused else prioritized,
            "delayed": q.delayed.n,
            "active": q.active.n,
            "completed": q.completed.n + q.n_archived,
            "failed": q.failed.n,
            "waiting-children": len(q.parked),
            "paused": ready if q.paused else 0,
        }

    cdef list c_kinds(self, Queue q, object states):
        """What a listing of these states shows of a queue, as numbers of ``Listed``; None = all.

        While a queue is paused, what is ready is listed as ``paused`` and under no other name.
        """
        cdef list kinds = []
        if states is None:
            return list(range(N_LISTED))
        if ("paused" if q.paused else "waiting") in states:
            kinds.append(L_WAITING)
        if ("paused" if q.paused else "prioritized") in states:
            kinds.append(L_PRIORITIZED)
        for name, kind in _LISTED:
            if name in states:
                kinds.append(kind)
        return kinds

    cdef Listing c_index(self, Queue q):
        """The index of a queue by creation time, built when it is first listed: O(n log n) once."""
        cdef Listing listing = q.listing
        cdef uint32_t at, slot
        cdef list found
        cdef Job *job
        if listing is not None and not listing.broken:
            return listing
        if listing is None:
            self.n_listings += 1
        found = self.c_queued(q)
        found.extend(q.parked)
        for head in (q.active.head, q.completed.head, q.failed.head):
            at = head
            while at:
                found.append(self.run_at(at).job)
                at = self.run_at(at).next
        found.sort(key=self.c_by_creation())
        listing = Listing(self.c_seed_of(q.index))
        for slot in found:
            job = self.job_at(slot)
            listing.c_put(self.c_kind(job), job.created_ms, job.seq, slot, (job.flags & F_CUSTOM_ID) != 0)
        if listing.broken:
            raise MemoryError
        q.listing = listing
        return listing

    cdef object c_by_creation(self):
        return lambda slot: (self.job_at(slot).created_ms, self.job_at(slot).seq)

    cdef int c_kind(self, Job *job) noexcept:
        """What a job is listed under."""
        if job.state == READY:
            return L_PRIORITIZED if job.priority > 0 else L_WAITING
        if job.state == DELAYED:
            return L_DELAYED
        if job.state == ACTIVE:
            return L_ACTIVE
        if job.state == COMPLETED:
            return L_COMPLETED
        return L_FAILED if job.state == FAILED else L_PARKED

    cdef list c_select(self, Queue q, object states, Py_ssize_t offset, Py_ssize_t limit, bint asc, int64_t now_ms):
        """Slots of a page of the jobs in these states, by creation time and then by id.

        O(offset + limit), times log n when descending, beside the jobs of one moment that
        the page begins or ends in. Completed jobs that only the store has are not listed.
        """
        cdef Listing listing
        cdef Page page
        cdef list kinds, out = [], moment = []
        cdef uint32_t slot
        cdef Job *job
        cdef int64_t created = 0
        cdef bint custom = False
        if limit <= 0:
            return out
        self.c_promote(q, now_ms, PROMOTIONS)
        kinds = self.c_kinds(q, states)
        if not kinds:
            return out
        listing = self.c_index(q)
        page = Page(listing, kinds, asc)
        while len(out) < limit:
            slot = page.c_next()
            if slot == 0:
                self.c_page_out(moment, custom, asc, offset, limit, out)
                break
            job = self.job_at(slot)
            if not listing.n_custom:
                # Ids of ours come in order of admission: nothing is to be sorted.
                if offset:
                    offset -= 1
                else:
                    out.append(slot)
                continue
            if moment and job.created_ms != created:
                offset = self.c_page_out(moment, custom, asc, offset, limit, out)
                moment = []
                custom = False
            created = job.created_ms
            custom = custom or (job.flags & F_CUSTOM_ID) != 0
            moment.append(slot)
        return out

    cdef list c_ended(self, RunList *list_, int64_t until_ms, Py_ssize_t limit, bint needed=True):
        """Slots of the jobs of a list that ended by then, in order of their ends; at most ``limit``, -1 = all.

        ``needed``: those too that live jobs depend on.
        O(those found), or O(n log n) after the wall clock was set back.
        """
        cdef list found = []
        cdef uint32_t at = list_.head
        cdef Run *run
        while at and (list_.backwards or len(found) != limit):
            run = self.run_at(at)
            if run.finished_ms <= until_ms:
                if needed or not self.job_at(run.job).flags & F_NEEDED:
                    found.append((run.finished_ms, len(found), run.job))
            elif not list_.backwards:
                break
            at = run.next
        if list_.backwards:
            found.sort()
        return [slot for _, _, slot in (found if limit < 0 else found[:limit])]

    cdef list c_completed(self, Queue q, int64_t until_ms, Py_ssize_t limit, bint needed):
        """The same of the completed jobs, with the archived ones whose records are in memory."""
        cdef list found = self.c_ended(&q.completed, until_ms, limit, needed), far = []
        cdef uint32_t i, slot
        cdef int64_t ended
        for i in range(self.n_leaving):
            slot = self.leaving[i]
            ended = self.run_at(self.job_at(slot).run).finished_ms
            if self.job_at(slot).queue == q.index and ended <= until_ms:
                far.append(self.c_end_of(slot))
        if not far:
            return found
        for slot in found:
            far.append(self.c_end_of(slot))
        far.sort()
        return [slot for _, _, _, slot in (far if limit < 0 else far[:limit])]

    cdef tuple c_end_of(self, uint32_t slot):
        """(end in ms, number of the end, seq, slot) of a finished job, by which those of a queue are in order."""
        cdef Job *job = self.job_at(slot)
        cdef Run *run = self.run_at(job.run)
        return run.finished_ms, run.number, job.seq, slot

    cdef list c_created(self, Queue q, object states, int64_t until_ms, Py_ssize_t limit):
        """Slots of the jobs in these states that were created by then, oldest first; at most ``limit``."""
        cdef list kinds = self.c_kinds(q, states), found = []
        cdef Page page
        cdef uint32_t slot
        if not kinds:
            return found
        page = Page(self.c_index(q), kinds, True)
        while len(found) < limit:
            slot = page.c_next()
            if slot == 0 or self.job_at(slot).created_ms > until_ms:
                break
            found.append(slot)
        return found

    cdef int c_check_listing(self, Queue q) except -1:
        """The index and the counts by priority say what the records say."""
        cdef dict counted = {}
        cdef uint32_t slot
        cdef Job *job
        cdef SkipNode *node
        cdef SkipList listed
        cdef set indexed = set(), known = set()
        for slot in self.c_queued(q):
            priority = self.job_at(slot).priority
            counted[priority] = counted.get(priority, 0) + 1
        assert q.priorities.total == sum(counted.values())
        assert q.priorities.overflown or q.priorities.counts() == counted
        if q.listing is None or q.listing.broken:
            return 0
        for kind in range(N_LISTED):
            listed = q.listing.c_state(kind)
            listed._check()
            node = listed.c_begin()
            while node != NULL:
                job = self.job_at(node.value)
                assert job.queue == q.index and self.c_kind(job) == <int>kind
                assert node.key.b == job.created_ms and node.key.c == job.seq
                indexed.add(node.value)
                node = listed.c_after(node)
        for slot in range(1, self.jobs.fresh):
            job = self.job_at(slot)
            if job.state and job.state < STAGED and job.queue == q.index and not job.flags & F_EVICTED:
                known.add(slot)
        assert indexed == known
        return 0

    cdef Py_ssize_t c_page_out(self, list moment, bint custom, bint asc, Py_ssize_t offset, Py_ssize_t limit,
                               list out) except -1:
        """Append the jobs of one creation time to a page, but the first ``offset``; what is left of that."""
        if custom:
            moment.sort(key=self.c_by_id(), reverse=not asc)
        if offset >= len(moment):
            return offset - len(moment)
        out += moment[offset:offset + limit - len(out)]
        return 0

    cdef object c_by_id(self):
        return lambda slot: self.c_id(self.job_at(slot))

    def list_jobs(self, str queue not None, int64_t now_ms, *, object states=None, Py_ssize_t offset=0,
                  Py_ssize_t limit=100, bint asc=True):
        """Ids of a page of jobs by creation time and then by id; ``states`` None = all. See :meth:`c_select`."""
        cdef Queue q = self.queues.get(queue)
        cdef uint32_t slot
        if q is None:
            return []
        return [self.c_id(self.job_at(slot)) for slot in self.c_select(q, states, offset, limit, asc, now_ms)]

    def listed(self, str queue not None, int64_t now_ms, *, object states=None, Py_ssize_t limit=100, bint asc=True):
        """(creation in ms, id) of the first jobs in these states, archived ones aside; see :meth:`c_select`."""
        cdef Queue q = self.queues.get(queue)
        cdef uint32_t slot
        if q is None:
            return []
        return [(self.job_at(slot).created_ms, self.c_id(self.job_at(slot)))
                for slot in self.c_select(q, states, 0, limit, asc, now_ms)]

    def leaving_memory(self, str queue not None):
        """(end in ms, creation in ms, number of the row, id) of the archived jobs of a queue that are in memory."""
        cdef Queue q = self.queues.get(queue)
        cdef uint32_t i
        cdef Job *job
        cdef list found = []
        if q is None:
            return found
        for i in range(self.n_leaving):
            job = self.job_at(self.leaving[i])
            if job.queue == q.index:
                found.append((self.run_at(job.run).finished_ms, job.created_ms, job.seq, self.c_id(job)))
        return found

    def counts_by_priority(self, str queue not None):
        """Queued jobs, ready and delayed, by priority. O(priorities), O(n) with more than 1,024 of them."""
        cdef Queue q = self.queues.get(queue)
        cdef uint32_t slot
        cdef object counts
        if q is None:
            return {}
        counts = q.priorities.counts()
        if counts is None:
            counts = {}
            for slot in self.c_queued(q):
                priority = self.job_at(slot).priority + 0.0
                counts[priority] = counts.get(priority, 0) + 1
        return counts

    cdef list c_queued(self, Queue q):
        """Slots of the ready and the delayed jobs of a queue."""
        cdef list slots = []
        cdef SkipNode *node = q.ready.c_begin()
        cdef Group g
        cdef int64_t due
        cdef Py_ssize_t i
        while node != NULL:
            slots.append(node.value)
            node = q.ready.c_after(node)
        if q.lanes is not None:
            for g in q.lanes.by_name.values():
                for i in range(g.ready.n):
                    slots.append(g.ready.c_at(i, &due))
        for i in range(q.delayed.n):
            slots.append(q.delayed.c_at(i, &due))
        return slots

    def dead_letters(self, str queue not None):
        """(id, entry time in ms, a copy of the entry) of each dead letter of a queue, oldest first."""
        cdef Queue q = self.queues.get(queue)
        cdef uint32_t slot, at
        cdef list out = []
        if q is None:
            return out
        at = q.failed.head
        while at:
            slot = self.run_at(at).job
            out.append((self.c_id(self.job_at(slot)), self.run_at(at).finished_ms,
                        dict((<dict>self.job_at(slot).extra)["dlq"])))
            at = self.run_at(at).next
        return out

    def metrics(self, str queue not None, str kind not None, *, int64_t start=0, int64_t end=-1):
        """Terminal outcomes of a queue, ``completed`` or ``failed``: ((total, time of the latest in ms,
        number in its minute), a page of numbers by minute, minutes in all); see :meth:`Meter.page`.

        Of a forgotten queue the totals are known, and the latest minute.
        """
        cdef Queue q = self.c_counted(queue)
        if q is None:
            return (0, 0, 0), [], 0
        meter = q.completions if kind == "completed" else q.failures
        page, n = meter.page(start, end) if self.max_minutes else ([], 0)
        return (meter.total, meter.prev_ms, meter.prev_count), page, n

    def totals(self, int64_t now_ms):
        """Jobs of all queues by state, pauses left aside, and how many passed since the start. O(queues).

        What passed through queues that are forgotten counts as well.
        """
        cdef Queue q
        cdef dict out = dict.fromkeys(("waiting", "delayed", "active", "completed", "failed", "waiting-children"), 0)
        out.update(self.past)
        for q in self.queues.values():
            self.c_promote(q, now_ms, PROMOTIONS)
            out["waiting"] += q.n_ready
            out["delayed"] += q.delayed.n
            out["active"] += q.active.n
            out["completed"] += q.completed.n + q.n_archived
            out["failed"] += q.failed.n
            out["waiting-children"] += len(q.parked)
            out["pushed"] += q.total_pushed
            out["pulled"] += q.total_pulled
            out["total_completed"] += q.total_completed
            out["total_failed"] += q.total_failed
        return out

    def __len__(self):
        """Jobs known, in all states."""
        return self.index.n

    def sizes(self):
        """Entries of every collection, by name; bounded ones of what is past left aside. O(queues)."""
        cdef Queue q
        cdef dict out = {
            "queues": len(self.queues),
            "jobs": self.jobs.n_used,
            "runs": self.runs.n_used - (self.spare_run != 0),
            "ids": self.index.n,
            "due queues": self.due.n,
            "deadlines": self.deadlines.n,
            "checks": self.checks.n,
            "dead letter ends": self.expiries.n,
            "lives": self.lives.n,
            "evicted": self.n_leaving,
            "custom ids in the archive": self.far_ids.n,
            "needed": len(self.needed),
            "edges": len(self.edges),
            "children": len(self.children),
            "pinned evidence": self.done.n_pinned,
            "kept keys": len(self.kept_keys),
            "logs": len(self.log_lines),
            "schedules": len(self.schedules),
            "slots": self.slots.n,
            "occurrences": len(self.occurrences),
            "scheduled queues": len(self.scheduled),
            "waiting in queues": len(self.waiting),
            "subscribed queues": len(self.wanted),
            "workers": len(self.workers),
            "woken queues": len(self.woken),
            "events": len(self.events),
            "settled": len(self.settled),
        }
        for name in ("ready", "delayed", "active", "completed", "failed", "parked", "staged", "keys", "groups",
                     "listed"):
            out[name] = 0
        for q in self.queues.values():
            out["ready"] += q.ready.n
            out["delayed"] += q.delayed.n
            out["active"] += q.active.n
            out["completed"] += q.completed.n
            out["failed"] += q.failed.n
            out["parked"] += len(q.parked)
            out["staged"] += q.n_staged
            out["keys"] += len(q.keys)
            if q.lanes is not None:
                out["groups"] += len(q.lanes.by_name)
            if q.listing is not None:
                out["listed"] += sum([q.listing.c_state(kind).n for kind in range(N_LISTED)])
        return out

    def memory(self):
        """Bytes held by the structures, without payloads and rare options."""
        cdef Queue q
        cdef size_t n = slab_nbytes(&self.jobs) + slab_nbytes(&self.runs) + self.index.c_nbytes()
        for q in self.queues.values():
            n += q.ready.c_nbytes() + q.delayed.c_nbytes()
            if q.lanes is not None:
                n += q.lanes.c_nbytes()
        return n + self.done.c_nbytes() + self.deadlines.c_nbytes() + self.expiries.c_nbytes()
