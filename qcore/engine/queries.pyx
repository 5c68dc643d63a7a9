"""What can be asked of the engine, without changing it: states, counts, listings."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint32_t

from qcore.engine.job cimport (
    ACTIVE, COMPLETED, STAGED, Blob, Job, blob_bytes,
)
from qcore.engine.queue cimport Queue
from qcore.engine.schedules cimport Schedules
from qcore.engine.transitions cimport PROMOTIONS
from qcore.structs.skiplist cimport SkipNode
from qcore.structs.slab cimport slab_nbytes

import bisect

from qcore.errors import NotFoundError, StateError


cdef class Queries(Schedules):
    """:class:`~qcore.engine.schedules.Schedules` with questions."""

    cdef uint32_t c_known(self, str job_id) except? 0:
        """Slot of a job that callers may know of; 0 = none."""
        cdef uint32_t slot = self.c_slot(job_id)
        return slot if slot and self.job_at(slot).state != STAGED else 0

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
        if not slot or self.job_at(slot).extra == NULL:
            return []
        return [list(line) for line in (<dict>self.job_at(slot).extra).get("logs", ())]

    def queue(self, str name not None):
        """The queue of that name, or None."""
        return self.queues.get(name)

    def queue_names(self):
        return list(self.queues)

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

    cdef list c_listed(self, Queue q, object states):
        """Slots of the jobs of a queue that a listing of these states shows; None = all.

        While a queue is paused, what is ready is listed as ``paused`` and under no other name.
        """
        cdef list slots = []
        cdef SkipNode *node
        cdef int64_t due
        cdef uint32_t at
        cdef Py_ssize_t i
        cdef bint everything = states is None
        cdef bint waiting = everything or ("paused" if q.paused else "waiting") in states
        cdef bint prioritized = everything or ("paused" if q.paused else "prioritized") in states
        if waiting or prioritized:
            node = q.ready.c_begin()
            while node != NULL:
                if prioritized if self.job_at(node.value).priority > 0 else waiting:
                    slots.append(node.value)
                node = q.ready.c_after(node)
        if everything or "delayed" in states:
            for i in range(q.delayed.n):
                slots.append(q.delayed.c_at(i, &due))
        for state, head in (("active", q.active.head), ("completed", q.completed.head), ("failed", q.failed.head)):
            if everything or state in states:
                at = head
                while at:
                    slots.append(self.run_at(at).job)
                    at = self.run_at(at).next
        return slots

    cdef list c_select(self, Queue q, object states, Py_ssize_t offset, Py_ssize_t limit, bint asc, int64_t now_ms):
        """Slots of a page of the jobs in these states, by creation time and then by id.

        O(n) of those states: there is no index by creation time yet, which is to be built
        when a queue is first listed. Completed jobs that only the store has are not listed.
        """
        cdef list found = [], slots, times
        cdef uint32_t slot
        cdef Job *job
        cdef Py_ssize_t n, start, stop, before
        cdef int64_t first, last
        if limit <= 0:
            return []
        self.c_promote(q, now_ms, PROMOTIONS)
        slots = self.c_listed(q, states)
        n = len(slots)
        start, stop = offset, min(n, offset + limit)
        if start >= stop:
            return []
        if not asc:
            start, stop = n - stop, n - start
        # Only ids of jobs as old as those of the page are looked at: most lists come nearly sorted by time.
        times = [self.job_at(slot).created_ms for slot in slots]
        times.sort()
        first, last = times[start], times[stop - 1]
        before = bisect.bisect_left(times, first)
        for slot in slots:
            job = self.job_at(slot)
            if first <= job.created_ms <= last:
                found.append((job.created_ms, self.c_id(job), slot))
        found.sort()
        found = found[start - before:stop - before]
        if not asc:
            found.reverse()
        return [entry[2] for entry in found]

    def list_jobs(self, str queue not None, int64_t now_ms, *, object states=None, Py_ssize_t offset=0,
                  Py_ssize_t limit=100, bint asc=True):
        """Ids of a page of jobs by creation time and then by id; ``states`` None = all. O(n) of those states."""
        cdef Queue q = self.queues.get(queue)
        cdef uint32_t slot
        if q is None:
            return []
        return [self.c_id(self.job_at(slot)) for slot in self.c_select(q, states, offset, limit, asc, now_ms)]

    def counts_by_priority(self, str queue not None):
        """Queued jobs, ready and delayed, by priority. O(n)."""
        cdef Queue q = self.queues.get(queue)
        cdef uint32_t slot
        cdef dict counts = {}
        if q is None:
            return counts
        for slot in self.c_listed(q, ("waiting", "prioritized", "paused", "delayed")):
            priority = self.job_at(slot).priority
            counts[priority] = counts.get(priority, 0) + 1
        return counts

    def dead_letters(self, str queue not None):
        """(id, entry time in ms, a copy of the entry) of each dead letter of a queue, oldest first."""
        cdef Queue q = self.queues.get(queue)
        cdef uint32_t slot
        cdef list out = []
        if q is None:
            return out
        for slot in self.c_listed(q, ("failed",)):
            out.append((self.c_id(self.job_at(slot)), self.run_at(self.job_at(slot).run).finished_ms,
                        dict((<dict>self.job_at(slot).extra)["dlq"])))
        return out

    def totals(self, int64_t now_ms):
        """Jobs of all queues by state, pauses left aside, and how many passed since the start. O(queues)."""
        cdef Queue q
        cdef dict out = dict.fromkeys(("waiting", "delayed", "active", "completed", "failed", "pushed", "pulled",
                                       "total_completed", "total_failed"), 0)
        for q in self.queue_list[1:]:
            self.c_promote(q, now_ms, PROMOTIONS)
            out["waiting"] += q.ready.n
            out["delayed"] += q.delayed.n
            out["active"] += q.active.n
            out["completed"] += q.completed.n + q.n_archived
            out["failed"] += q.failed.n
            out["pushed"] += q.total_pushed
            out["pulled"] += q.total_pulled
            out["total_completed"] += q.total_completed
            out["total_failed"] += q.total_failed
        return out

    def __len__(self):
        """Jobs known, in all states."""
        return self.index.n

    def memory(self):
        """Bytes held by the structures, without payloads and rare options."""
        cdef Queue q
        cdef size_t n = slab_nbytes(&self.jobs) + slab_nbytes(&self.runs) + self.index.c_nbytes()
        for q in self.queue_list[1:]:
            n += q.ready.c_nbytes() + q.delayed.c_nbytes()
        return n + self.done.c_nbytes() + self.deadlines.c_nbytes() + self.expiries.c_nbytes()
