"""Ties between jobs: dependencies, parents and children, failure policies, evidence.

An edge leads from a job to the id of one that it waits for. A job with open edges is
parked before its first run; an active one parks itself. Edges are by id, so they hold
for an id that is gone and for one that is still to come. ``needed`` is the index the other
way round: who is tied to an id, from admission until that job is finished itself. While
it has an entry, the result of the id is protected: a completed job that is to be removed
becomes ``KEPT``, which nobody sees.

On disk a tie is what the job's own ``extra`` says; completing a child writes nothing for its
parent. After a restart the open edges follow from what there is:

* ``dependsOn``, ``childrenIds``, ``parentId``: as they were given
* ``settledEdges``: the first so many of ``dependsOn`` are done with, whatever becomes of them
* ``edgesDone``: ids that were satisfied by evidence alone at admission, or when the job was started over
* ``edgesDropped``: id of a failed child -> [policy, "queue:id", error]; with the policy ``fail`` of the one
  that has ended this job
* ``childFailed``: [id, text] of a child whose failure ends this job as soon as it parks
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from qcore.engine.ids cimport uuid_parse
from qcore.engine.job cimport (
    ACTIVE, COMPLETED, DELAYED, F_CUSTOM_ID, F_EVICTED, F_LINKED, F_NEEDED, F_REMOVE_ON_FAIL, F_WAS_NEEDED, FAILED,
    KEPT, PARKED, READY, STAGED, Job,
)
from qcore.engine.losses cimport Losses
from qcore.engine.queue cimport Queue
from qcore.engine.table cimport EV_FAILED, EV_WAITING, EV_WAITING_CHILDREN
from qcore.engine.transitions cimport BAD_TOKEN, MAY, NO_TOKEN, TOKEN
from qcore.structs.slab cimport slab_free
from qcore.structs.tokens cimport TokenEntry

from qcore import limits
from qcore.errors import FlowError, LimitError, NotFoundError

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object o, Py_ssize_t *size) except NULL

# In the order in which they count if stored data has more than one.
POLICIES = (
    ("failParentOnFailure", "fail"),
    ("continueParentOnFailure", "continue"),
    ("ignoreDependencyOnFailure", "ignore"),
    ("removeDependencyOnFailure", "remove"),
)


cdef inline bint _live(Job *job) noexcept:
    return job.state in (READY, DELAYED, ACTIVE, PARKED, STAGED)


cdef class Flows(Losses):
    """:class:`~qcore.engine.losses.Losses` with ties between jobs."""

    def __cinit__(self, *args, **options):
        self.far_needed = []
        self.edges = {}
        self.waiting = {}
        self.children = {}
        self.failures = []

    # --- who waits ------------------------------------------------------------------------

    cdef set c_opened(self, uint32_t slot):
        """The open edges of a job, for more of them."""
        cdef object edges = self.edges.get(slot)
        cdef uint32_t index
        if edges is None:
            edges = self.edges[slot] = set()
            index = self.job_at(slot).queue
            self.waiting[index] = self.waiting.get(index, 0) + 1
        return <set>edges

    cdef int c_settled(self, uint32_t slot) except -1:
        """A job waits for nothing any more, or is gone."""
        cdef uint32_t index = self.job_at(slot).queue
        del self.edges[slot]
        self.waiting[index] -= 1
        if not self.waiting[index]:
            del self.waiting[index]
        return 0

    cdef object c_beyond_waiting(self, str queue, Py_ssize_t n):
        """The error if so many more jobs of a queue cannot wait for others; else None."""
        cdef Queue q = self.queues.get(queue)
        if n + (0 if q is None else <Py_ssize_t>self.waiting.get(q.index, 0)) <= self.max_waiting_deps:
            return None
        return LimitError(f"Queue {queue} has reached its maximum of {self.max_waiting_deps} waiting jobs")

    # --- who needs whom -------------------------------------------------------------------

    cdef int c_need(self, str job_id, uint32_t slot) except -1:
        """A live job is tied to this id. O(1)."""
        cdef uint64_t hi, lo
        cdef uint32_t other
        cdef object holders = self.needed.get(job_id)
        cdef const char *text
        cdef Py_ssize_t n
        if holders is not None:
            (<set>holders).add(slot)
            return 0
        self.needed[job_id] = {slot}
        self.c_number_of(job_id, &hi, &lo)
        other = self.c_slot(job_id)
        if other:
            self.c_keep_needed(other)
        elif self.n_archived:
            text = PyUnicode_AsUTF8AndSize(job_id, &n)
            if self.c_may_be_far(text, n):
                self.far_needed.append(job_id)
        self.done.c_pin(hi, lo)
        return 0

    cdef int c_keep_needed(self, uint32_t slot) except -1:
        """A job in memory is one that live jobs are tied to: it stays there."""
        cdef Job *job = self.job_at(slot)
        if job.flags & F_EVICTED:
            self.c_readmit(slot, job)
        job.flags |= F_NEEDED
        if job.state == COMPLETED or job.state == KEPT:
            self.c_mark(slot, job)      # so that it is not evicted when it is read back
        return 0

    def take_far_needed(self):
        """The ids in ``far_needed``, which are no longer there afterwards."""
        ids, self.far_needed = self.far_needed, []
        return ids

    def keep_needed(self, list ids not None):
        """Keep those of these jobs in memory that are there now, and still needed."""
        cdef uint32_t slot
        cdef uint64_t hi, lo
        for job_id in ids:
            slot = self.c_slot(job_id)
            if slot and job_id in self.needed and not self.job_at(slot).flags & F_NEEDED:
                self.c_keep_needed(slot)
                self.c_number_of(job_id, &hi, &lo)
                self.done.c_pin(hi, lo)

    cdef int c_unneed(self, str job_id) except -1:
        """No live job is tied to this id any more: its evidence is the newest now, its result may go."""
        cdef uint64_t hi, lo
        cdef uint32_t slot = self.c_slot(job_id)
        cdef bint number = self.c_number_of(job_id, &hi, &lo)
        cdef TokenEntry entry, evicted
        cdef Job *job
        evicted.value = 0
        if not self.done.c_get(hi, lo, &entry):
            if slot:
                job = self.job_at(slot)
                job.flags = (job.flags & ~<uint32_t>F_NEEDED) | F_WAS_NEEDED
            return 0
        self.done.c_unpin(hi, lo, True, &evicted)
        if slot:
            job = self.job_at(slot)
            job.flags = (job.flags & ~<uint32_t>F_NEEDED) | F_WAS_NEEDED
            if job.state == KEPT:
                self.done.c_add(hi, lo, job.queue, 0, &entry)
                self.c_note_gone(job, job.queue)
                self.c_forget_done(slot, job, self.c_queue_of(job))
        else:
            self.n_lasting_marks -= 1       # known before, and now again
            self.c_note_evidence(None if number else job_id, hi, lo, entry.owner, True)
        if evicted.value:
            self.c_evict(evicted.value)
        return 0

    cdef int c_end_ties(self, uint32_t slot) except -1:
        """A job is finished or about to be removed: it needs nothing any more. O(its ties)."""
        cdef Job *job = self.job_at(slot)
        cdef dict extra = self.c_extra(job)
        cdef set holders
        if slot in self.edges:
            self.c_settled(slot)
        self.children.pop(slot, None)
        extra["settledEdges"] = len(extra.get("dependsOn") or ())
        for name in ("dependsOn", "childrenIds"):
            for job_id in extra.get(name) or ():
                holders = self.needed.get(job_id)
                if holders is not None and slot in holders:
                    holders.discard(slot)
                    if not holders:
                        del self.needed[job_id]
                        self.c_unneed(job_id)
        return 0

    cdef int c_done_as(self, str job_id) except -1:
        """Whether an id is completed: OPEN, DONE or EVIDENCED. O(1)."""
        cdef uint64_t hi, lo
        cdef uint32_t slot = self.c_slot(job_id)
        cdef Job *job
        if slot:
            job = self.job_at(slot)
            if job.state != COMPLETED and job.state != KEPT:
                return OPEN
            return DONE
        self.c_number_of(job_id, &hi, &lo)
        return EVIDENCED if self.done.c_contains(hi, lo) else OPEN

    cdef int c_trace(self, uint32_t slot, Job *job) except -1:
        """Enter the ties of a live job into the indexes. O(its ties)."""
        cdef dict extra = <dict>job.extra
        cdef object deps = extra.get("dependsOn") or ()
        cdef object dropped = extra.get("edgesDropped") or ()
        cdef set done = set(extra.get("edgesDone") or ())
        cdef Py_ssize_t i, settled = extra.get("settledEdges", 0), completed = 0
        cdef set open_ = set()
        cdef str own = self.c_id(job)
        cdef uint32_t other
        for i, job_id in enumerate(deps):
            if job_id in dropped or job_id in done:
                continue
            how = OPEN if job_id in self.batch else self.c_done_as(job_id)
            if how == OPEN and i >= settled:
                open_.add(job_id)
            elif how == EVIDENCED:
                extra.setdefault("edgesDone", []).append(job_id)
        for job_id in dict.fromkeys([*deps, *(extra.get("childrenIds") or ())]):
            self.c_need(job_id, slot)
            other = self.c_slot(job_id)
            if other and self.job_at(other).state in (COMPLETED, KEPT) and self.job_at(other).extra != NULL:
                completed += (<dict>self.job_at(other).extra).get("parentId") == own
        if completed or "childrenCompleted" in extra:
            extra["childrenCompleted"] = completed
        if open_:
            self.c_opened(slot).update(open_)
        return 0

    cdef int c_note_open(self, str job_id) except -1:
        """An edge waits for this id: what the file still holds of an earlier generation is no evidence for it.

        Memory forgets ids one by one, the file by rows; after a restart such an id would have satisfied the edge.
        """
        cdef uint64_t hi, lo
        cdef uint32_t slot = self.c_slot(job_id)
        cdef bint number
        if not (self.n_marked or self.n_marks or self.text_marks):
            return 0
        if slot and not self.job_at(slot).flags & F_CUSTOM_ID:
            return 0    # there was none
        number = self.c_number_of(job_id, &hi, &lo)
        return self.c_note_evidence(None if number else job_id, hi, lo, 0, False)

    cdef set c_children_of(self, uint32_t slot):
        cdef object found = self.children.get(slot)
        cdef Job *job = self.job_at(slot)
        if found is None:
            found = set() if job.extra == NULL else set((<dict>job.extra).get("childrenIds") or ())
            if job.flags & F_LINKED and _live(job):
                self.children[slot] = found
        return <set>found

    # --- admission ------------------------------------------------------------------------

    cdef int c_link(self, uint32_t slot, int64_t now_ms) except -1:
        cdef Job *job = self.job_at(slot)
        cdef uint32_t parent
        self.c_trace(slot, job)
        if slot in self.edges:
            job.first_state = PARKED
            for job_id in <set>self.edges[slot]:
                self.c_note_open(job_id)
        parent_id = (<dict>job.extra).get("parentId")
        if parent_id is not None:
            # One that is not there is a name only: older clients link the child later.
            parent = self.c_slot(parent_id)
            if parent and parent != slot and _live(self.job_at(parent)):
                self.c_attach(parent, slot, now_ms)
        return 0

    cdef bint c_hold(self, uint32_t slot, Job *job) except -1:
        if slot not in self.edges:
            return False
        self.c_put_parked(self.c_queue_of(job), slot, job)
        return True

    cdef int c_after_parked(self, uint32_t slot, int64_t now_ms) except -1:
        """What its children did before counts now."""
        failed = (<dict>self.job_at(slot).extra).get("childFailed")
        if failed is not None:
            self.c_fail_parked(slot, failed[0], failed[1], now_ms)
            self.c_tell_parents(now_ms)
        return 0

    cdef int c_after_revived(self, uint32_t slot) except -1:
        return self.c_trace(slot, self.job_at(slot))

    cdef int c_end_evidence(self, Queue q) except -1:
        cdef list tied = []
        cdef uint64_t hi, lo
        cdef TokenEntry found
        cdef bint is_number
        for job_id in self.needed:
            if not self.c_slot(job_id):
                is_number = self.c_number_of(job_id, &hi, &lo)
                if self.done.c_get(hi, lo, &found) and found.owner == q.index:
                    tied.append((None if is_number else job_id, hi, lo))
        Losses.c_end_evidence(self, q)
        # What live jobs are tied to stays, and is of no queue: say so behind the end of this one.
        self.n_lasting_marks -= len(tied)
        for text, hi, lo in tied:
            self.c_note_evidence(text, hi, lo, 0, True)
        return 0

    cdef int c_attach(self, uint32_t parent, uint32_t child, int64_t now_ms) except -1:
        """Make a job a child of a live parent, which waits for it if it is not completed. O(1) amortised."""
        cdef Job *pj = self.job_at(parent)
        cdef Job *cj = self.job_at(child)
        cdef Queue q = self.c_queue_of(pj)
        cdef dict extra = self.c_extra(pj)
        cdef str job_id = self.c_id(cj)
        cdef set mine
        cdef bint known = parent in self.needed.get(job_id, ())
        cdef bint waits = parent in self.edges and job_id in <set>self.edges[parent]
        cdef bint completed = cj.state == COMPLETED or cj.state == KEPT
        pj.flags |= F_LINKED
        mine = self.c_children_of(parent)
        if job_id not in mine:
            mine.add(job_id)
            extra.setdefault("childrenIds", []).append(job_id)
        if not known or (not waits and job_id not in extra.get("dependsOn", ())):
            extra.setdefault("dependsOn", []).append(job_id)
            if not completed:
                self.c_opened(parent).add(job_id)
                self.c_note_open(job_id)
        self.c_need(job_id, parent)
        self.c_mark(parent, pj)
        if parent in self.edges:
            if pj.state == STAGED:
                pj.first_state = PARKED
            elif pj.state == READY or pj.state == DELAYED:
                self.c_timeline_add(pj, "waiting-children", now_ms)
                self.c_unqueue(q, parent, pj)
                self.c_hold(parent, pj)
        return 0

    cdef int c_detach(self, uint32_t parent, set gone, int64_t now_ms) except -1:
        """Undo the ties of a live parent to these ids, as if they had never been. O(its ties)."""
        cdef Job *pj = self.job_at(parent)
        cdef dict extra = self.c_extra(pj)
        cdef Py_ssize_t settled = extra.get("settledEdges", 0)
        cdef list deps = extra.get("dependsOn") or []
        cdef object edges = self.edges.get(parent)
        if settled:
            extra["settledEdges"] = settled - sum([job_id in gone for job_id in deps[:settled]])
        # Else a later job with such an id, which may be a child once more, would count as failed or done.
        if "edgesDropped" in extra:
            extra["edgesDropped"] = {job_id: why for job_id, why in extra["edgesDropped"].items() if job_id not in gone}
        if "edgesDone" in extra:
            extra["edgesDone"] = [job_id for job_id in extra["edgesDone"] if job_id not in gone]
        extra["dependsOn"] = [job_id for job_id in deps if job_id not in gone]
        extra["childrenIds"] = [job_id for job_id in extra.get("childrenIds") or () if job_id not in gone]
        self.children.pop(parent, None)
        self.c_mark(parent, pj)
        for job_id in gone:
            holders = self.needed.get(job_id)
            if holders is not None and parent in holders:
                holders.discard(parent)
                if not holders:
                    del self.needed[job_id]
                    self.c_unneed(job_id)
        if edges is not None:
            edges -= gone
            if not edges:
                self.c_settled(parent)
                if pj.state == PARKED:
                    self.c_unpark(parent, now_ms, True)
        return 0

    cdef int c_after_completed(self, uint32_t slot, int64_t now_ms) except -1:
        cdef Job *job = self.job_at(slot)
        if job.flags & F_NEEDED:
            self.c_resolve(slot, now_ms)
        if job.flags & F_LINKED:
            self.c_end_ties(slot)
        return Losses.c_after_completed(self, slot, now_ms)

    cdef int c_resolve(self, uint32_t slot, int64_t now_ms) except -1:
        """A job is completed: its edges are satisfied, and who waited for nothing else may run."""
        cdef Job *job = self.job_at(slot)
        cdef Job *other
        cdef str job_id = self.c_id(job)
        cdef object parent_id = None if job.extra == NULL else (<dict>job.extra).get("parentId")
        cdef uint32_t holder
        cdef dict extra
        cdef object edges
        for holder in sorted(self.needed.get(job_id, ())):
            other = self.job_at(holder)
            extra = <dict>other.extra
            if parent_id is not None and self.c_id(other) == parent_id:
                # Counted again after a restart, so nothing is written for it.
                extra["childrenCompleted"] = extra.get("childrenCompleted", 0) + 1
            if "edgesDropped" in extra and job_id in extra["edgesDropped"]:
                del extra["edgesDropped"][job_id]
                self.c_mark(holder, other)
            if "childFailed" in extra and extra["childFailed"][0] == job_id:
                del extra["childFailed"]
                self.c_mark(holder, other)
            edges = self.edges.get(holder)
            if edges is None or job_id not in edges:
                continue
            (<set>edges).discard(job_id)
            if not edges:
                self.c_settled(holder)
                if other.state == PARKED:
                    self.c_unpark(holder, now_ms, False)
        return 0

    cdef int c_unpark(self, uint32_t slot, int64_t now_ms, bint tell) except -1:
        """A parked job waits for nothing any more: it is ready, or delayed until its own time."""
        cdef Job *job = self.job_at(slot)
        cdef Queue q = self.c_queue_of(job)
        cdef dict extra = self.c_extra(job)
        self.c_take_parked(q, slot, job)
        extra["settledEdges"] = len(extra.get("dependsOn") or ())
        self.c_timeline_add(job, "delayed" if job.run_ms > now_ms else "prioritized" if job.priority > 0 else "waiting",
                            now_ms)
        self.c_mark(slot, job)
        self.c_enqueue(q, slot, job, now_ms)
        if tell and self.c_event(q, EV_WAITING):
            self.c_emit(EV_WAITING, q, job, now_ms, "waiting-children")
        return 0

    cdef int c_after_failed(self, uint32_t slot, str error, int64_t now_ms) except -1:
        cdef Job *job = self.job_at(slot)
        cdef dict extra
        Losses.c_after_failed(self, slot, error, now_ms)
        if not job.flags & F_LINKED:
            return 0
        self.c_end_ties(slot)
        extra = <dict>job.extra
        if extra.get("parentId") is not None:
            for name, policy in POLICIES:
                if extra.get(name):
                    job_id = self.c_id(job)
                    self.failures.append((job_id, f"{self.c_queue_of(job).name}:{job_id}", extra["parentId"], policy,
                                          error))
                    break
        return self.c_tell_parents(now_ms)

    cdef int c_tell_parents(self, int64_t now_ms) except -1:
        """Let each failure do to its parent what its policy says. A list, not a recursion: flows are deep."""
        cdef uint32_t parent
        cdef Job *job
        cdef dict extra
        cdef set edges
        if self.telling:
            return 0
        self.telling = True
        try:
            while self.failures:
                job_id, key, parent_id, policy, error = self.failures.pop()
                parent = self.c_slot(parent_id)
                # One that went on without this child, or is finished, is left alone.
                if not parent or parent not in self.edges or job_id not in <set>self.edges[parent]:
                    continue
                job = self.job_at(parent)
                extra = self.c_extra(job)
                edges = <set>self.edges[parent]
                self.c_mark(parent, job)
                if error is None:
                    error = "discarded"
                if policy == "fail":
                    error = f"Child job {job_id} failed: {error}"
                    if job.state == PARKED:
                        self.c_fail_parked(parent, job_id, error, now_ms)
                    else:
                        extra["childFailed"] = [job_id, error]
                    continue
                extra.setdefault("edgesDropped", {})[job_id] = [policy, key, error]
                edges.discard(job_id)
                if policy == "continue":
                    edges.clear()
                    extra["settledEdges"] = len(extra.get("dependsOn") or ())
                    if job.state == PARKED:
                        job.run_ms = now_ms
                if not edges:
                    self.c_settled(parent)
                    if job.state == PARKED:
                        self.c_unpark(parent, now_ms, True)
        finally:
            self.telling = False
        return 0

    cdef int c_fail_parked(self, uint32_t slot, str child_id, str error, int64_t now_ms) except -1:
        """A parked job ends because a child failed. Uncharged: it has not run."""
        cdef Job *job = self.job_at(slot)
        cdef Queue q = self.c_queue_of(job)
        cdef dict extra = self.c_extra(job)
        cdef list timeline = self.c_timeline(job, extra)
        self.c_take_parked(q, slot, job)
        self.c_record(job, NULL, extra, "unknown", error, now_ms)
        extra.pop("childFailed", None)
        # It may be gone already; so its parent says what became of it.
        extra.setdefault("edgesDropped", {})[child_id] = ["fail", "", None]
        extra["failedReason"] = error
        if len(timeline) < limits.MAX_TIMELINE_ENTRIES:
            timeline.append({"state": "failed", "timestamp": now_ms, "error": error})
        if self.c_event(q, EV_FAILED):
            self.c_emit(EV_FAILED, q, job, now_ms, (error, None))
        if not job.flags & F_REMOVE_ON_FAIL:
            return self.c_bury(q, slot, job, "unknown", error, now_ms)
        q.total_failed += 1
        self.c_outcome(q, q.failures, now_ms)
        job.state = FAILED
        self.c_follow_failed(slot, error, now_ms)
        return self.c_forget_done(slot, job, q)

    cdef int c_before_forgotten(self, uint32_t slot) except -1:
        cdef Job *job = self.job_at(slot)
        cdef uint32_t parent
        if job.flags & F_LINKED:
            if job.state == STAGED:
                # Its commit failed: for its parent it has never been.
                parent_id = (<dict>job.extra).get("parentId")
                parent = self.c_slot(parent_id) if parent_id is not None else 0
                if (parent and _live(self.job_at(parent)) and self.job_at(parent).state != STAGED
                        and parent in self.needed.get(self.c_id(job), ())):
                    self.c_detach(parent, {self.c_id(job)}, job.created_ms)
            self.c_end_ties(slot)
        return Losses.c_before_forgotten(self, slot)

    # --- checks before an add ---------------------------------------------------------------

    cdef bint c_may_link(self, uint32_t parent, str token) except -1:
        """Whether a live parent takes a further child: an active one only from its holder."""
        cdef Job *job = self.job_at(parent)
        cdef uint64_t hi = 0, lo = 0
        cdef Py_ssize_t n
        cdef const char *text
        cdef int kind = NO_TOKEN
        if job.state != ACTIVE:
            return job.state in (READY, DELAYED, PARKED)
        if token:
            text = PyUnicode_AsUTF8AndSize(token, &n)
            kind = TOKEN if uuid_parse(text, n, &hi, &lo) else BAD_TOKEN
        return self.c_judge(parent, kind, hi, lo) == MAY

    @property
    def tied(self):
        """Whether any job is tied to another."""
        return bool(self.needed)

    def owns(self, str job_id not None):
        """Whether this id belongs to a job, was that of one, or is waited for."""
        return self.c_slot(job_id) != 0 or job_id in self.needed or self.c_done_as(job_id) != OPEN

    def check_links(self, list jobs not None, object lenient=()):
        """Judge the ties of jobs that are about to be added together; (place, error) of the first bad one, or None.

        Each is (queue, id or None, dependsOn, parentId or None, parentToken or None); those at the
        places in ``lenient`` may depend on ids that nobody knows yet. O(their ties); what they are tied
        to is walked only where a circle is possible.
        """
        cdef uint32_t slot
        cdef dict fresh = {}
        cdef dict parking = {}
        cdef bint suspect = False
        cdef set wanted = set()
        for i, (_, job_id, _, _, _) in enumerate(jobs):
            if job_id is not None and job_id not in fresh:
                slot = self.c_slot(job_id)
                if not slot or self.job_at(slot).state in (COMPLETED, FAILED, KEPT):
                    fresh[job_id] = i
        for i, (queue, job_id, deps, parent_id, token) in enumerate(jobs):
            if job_id is not None and fresh.get(job_id, -1) != i:
                # It is there already, or comes earlier in the batch: nothing is added. A parent that is
                # there would not wait for it, so that must be its parent.
                if parent_id is not None and (parent_id in fresh or self.c_slot(parent_id)):
                    known = jobs[fresh[job_id]][3] if job_id in fresh else self.c_parent_of(self.c_slot(job_id))
                    if known != parent_id:
                        return (i, FlowError(f"Job {job_id} exists already and is not a child of {parent_id}"))
                continue
            if job_id is not None and job_id in self.needed:
                suspect = True
                for slot in self.needed[job_id]:
                    # Completed for this one, which may read the result still.
                    if slot not in self.edges or job_id not in <set>self.edges[slot]:
                        if self.c_done_as(job_id) == OPEN:
                            continue
                        if self.c_same_child(job_id, parent_id):
                            del fresh[job_id]
                            break
                        return (i, FlowError(f"Custom ID {job_id} still has unresolved dependency consumers"))
                if job_id not in fresh:
                    continue
            waits = False
            if parent_id is not None and parent_id != job_id:
                # A parent waits from now on, if it did not before.
                if parent_id in fresh:
                    parking.setdefault(jobs[fresh[parent_id]][0], set()).add(parent_id)
                else:
                    slot = self.c_slot(parent_id)
                    if slot and slot not in self.edges and _live(self.job_at(slot)):
                        parking.setdefault(self.c_queue_of(self.job_at(slot)).name, set()).add(parent_id)
            for other in deps:
                if other == job_id:
                    return (i, FlowError(f"Job cannot depend on itself: {job_id}"))
                if other in fresh:
                    waits = True
                    wanted.add(other)
                    continue
                how = self.c_done_as(other)
                if how == OPEN and not self.c_slot(other) and i not in lenient:
                    return (i, FlowError(f"Dependency job not found: {other}"))
                waits = waits or how == OPEN
            if parent_id is not None and parent_id == job_id:
                return (i, FlowError("A flow job cannot be its own parent"))
            if parent_id is not None and parent_id not in fresh:
                slot = self.c_slot(parent_id)
                if slot and self.job_at(slot).state != STAGED and not self.c_may_link(slot, token):
                    return (i, FlowError(f"Parent job {parent_id} is not linkable"))
            suspect = suspect or (parent_id is not None and len(deps) > 0)
            if waits:
                parking.setdefault(queue, set()).add(i if job_id is None else job_id)
        for queue, names in parking.items():
            error = self.c_beyond_waiting(queue, len(names))
            if error is not None:
                return (0, error)
        if suspect or wanted:
            i = self._circle([(job_id, deps, parent_id) for _, job_id, deps, parent_id, _ in jobs], fresh)
            if i is not None:
                return (i, FlowError("flow contains a dependency cycle"))
        return None

    cdef object c_parent_of(self, uint32_t slot):
        """Whose child a job is, or None."""
        return None if self.job_at(slot).extra == NULL else (<dict>self.job_at(slot).extra).get("parentId")

    cdef bint c_same_child(self, str job_id, object parent_id) except -1:
        """Whether a completed job is the child of that parent already: adding it again changes nothing."""
        cdef uint32_t slot = self.c_slot(job_id)
        return slot and parent_id is not None and self.c_parent_of(slot) == parent_id

    cdef object c_missing(self, list members, set added, set gone, dict lost):
        cdef dict extra
        for i, (_, extra) in enumerate(members):
            if i not in added or extra is None:
                continue
            for other in extra.get("dependsOn") or ():
                if other in gone or (lost.get(other, False) and not self.c_slot(other)
                                     and self.c_done_as(other) == OPEN):
                    return i, f"Dependency job not found: {other}"
        return None

    def begin_batch(self, list jobs not None):
        """The ids of jobs that :meth:`check_links` found good, and that are added next, are new ones."""
        cdef uint32_t slot
        for job_id in jobs:
            if job_id is None:
                continue
            slot = self.c_slot(job_id)
            if not slot or self.job_at(slot).state == FAILED or (
                    self.job_at(slot).state in (COMPLETED, KEPT) and not self.job_at(slot).flags & F_NEEDED):
                self.batch.add(job_id)

    def _circle(self, list jobs, dict fresh):
        """Place of a job that, once added, would wait for itself; None when there is none."""
        cdef dict ahead = {}
        cdef dict state = {}        # 1: on the present path, 2: leads to no circle
        for i, (job_id, deps, parent_id) in enumerate(jobs):
            key = i if job_id is None else job_id
            if job_id is not None and fresh.get(job_id, -1) != i:
                continue
            ahead.setdefault(key, []).extend(deps)
            if parent_id is not None:
                ahead.setdefault(parent_id, []).append(key)

        def follow(key):
            out = list(ahead.get(key, ()))
            if isinstance(key, str) and key not in fresh:
                slot = self.c_slot(key)
                out.extend(self.edges.get(slot, ()) if slot else ())
            return iter(out)

        for i, (job_id, _, _) in enumerate(jobs):
            start = i if job_id is None else job_id
            if start in state or start not in ahead:
                continue
            state[start] = 1
            path = [(start, follow(start))]
            while path:
                key, left = path[len(path) - 1]
                for following in left:
                    known = state.get(following)
                    if known == 1:
                        return i
                    if known is None:
                        state[following] = 1
                        path.append((following, follow(following)))
                        break
                else:
                    state[key] = 2
                    path.pop()
        return None

    # --- commands -----------------------------------------------------------------------------

    cdef bint c_park(self, uint32_t slot, int64_t now_ms, bint leave) except -1:
        """Park an active job that waits for something; else False, and with ``leave`` it goes back to its queue."""
        cdef Job *job = self.job_at(slot)
        cdef Queue q = self.c_queue_of(job)
        if slot not in self.edges:
            if leave:
                if self.c_event(q, EV_WAITING_CHILDREN):
                    self.c_emit(EV_WAITING_CHILDREN, q, job, now_ms, "active")
                self.c_release(slot, now_ms)
            return False
        self.c_timeline_add(job, "active", self.run_at(job.run).started_ms)
        self.c_timeline_add(job, "waiting-children", now_ms)
        self.c_leave_active(q, slot, job, self.run_at(job.run))
        slab_free(&self.runs, job.run)
        job.run = 0
        self.c_hold(slot, job)
        self.c_mark(slot, job)
        if self.c_event(q, EV_WAITING_CHILDREN):
            self.c_emit(EV_WAITING_CHILDREN, q, job, now_ms, "active")
        self.c_after_parked(slot, now_ms)
        return True

    def update_parent(self, str child_id not None, str parent_id not None, int64_t now_ms, *, str token=None):
        """Make a job a child of a queued or parked parent, or of an active one by its holder.

        A parent that lists the child already takes its name only. A child that is completed
        counts as done, a failed one by its policy.

        :raises NotFoundError: one of them is not there
        :raises FlowError: the parent is finished, or the child has another, or would wait for itself
        :raises LimitError: too many jobs of the parent's queue wait for others
        """
        cdef uint32_t child = self.c_slot(child_id), parent = self.c_slot(parent_id), other
        cdef Job *cj
        cdef Job *pj
        cdef dict extra
        cdef bint listed
        if child_id == parent_id:
            raise FlowError("A flow job cannot be its own parent")
        if parent and self.job_at(parent).state in (STAGED, KEPT):
            parent = 0
        if child and self.job_at(child).state == STAGED:
            child = 0
        listed = parent != 0 and child_id in self.c_children_of(parent)
        if not child:
            if listed and self.c_done_as(child_id) != OPEN:
                return              # completed and gone; the parent knows
            raise NotFoundError(f"Child job not found: {child_id}")
        if not parent:
            raise NotFoundError(f"Parent job not found: {parent_id}")
        cj, pj = self.job_at(child), self.job_at(parent)
        extra = {} if cj.extra == NULL else <dict>cj.extra
        before = extra.get("parentId")
        if before == parent_id and listed:
            return
        if before is not None and before != parent_id:
            other = self.c_slot(before)
            if other and self.job_at(other).state not in (STAGED, KEPT):
                raise FlowError(f"Child job {child_id} already belongs to parent {before}")
        if not listed:
            if not self.c_may_link(parent, token):
                raise FlowError(f"Parent job {parent_id} is not linkable")
            if self._circle([(None, [child_id], parent_id)], {}) is not None:
                raise FlowError("flow contains a dependency cycle")
        if (_live(pj) and parent not in self.edges and cj.state not in (COMPLETED, KEPT)
                and (not listed or child_id not in (<dict>pj.extra).get("dependsOn", ()))):
            error = self.c_beyond_waiting(self.c_queue_of(pj).name, 1)
            if error is not None:
                raise error
        known = before == parent_id and parent in self.needed.get(child_id, ())
        self.c_extra(cj)["parentId"] = parent_id
        cj.flags |= F_LINKED
        self.c_mark(child, cj)
        if not _live(pj):
            return
        self.c_attach(parent, child, now_ms)
        if not known and (cj.state == COMPLETED or cj.state == KEPT):
            (<dict>pj.extra)["childrenCompleted"] = (<dict>pj.extra).get("childrenCompleted", 0) + 1
        if cj.state == FAILED:
            for name, policy in POLICIES:
                if extra.get(name):
                    self.failures.append((child_id, f"{self.c_queue_of(cj).name}:{child_id}", parent_id, policy,
                                          extra.get("failedReason")))
                    break
            self.c_tell_parents(now_ms)

    def remove_child_dependency(self, str child_id not None, int64_t now_ms):
        """Undo the tie between an unfinished child and its parent, which may run then; False when there is none left.

        :raises NotFoundError: the job is not there
        :raises FlowError: it has no parent
        """
        cdef uint32_t child = self.c_slot(child_id), parent
        cdef Job *job
        if not child or self.job_at(child).state in (STAGED, KEPT):
            raise NotFoundError(f"Job not found: {child_id}")
        job = self.job_at(child)
        parent_id = None if job.extra == NULL else (<dict>job.extra).get("parentId")
        if parent_id is None:
            raise FlowError(f"Job {child_id} has no parent")
        parent = self.c_slot(parent_id)
        if job.state == FAILED or not parent or child_id not in self.edges.get(parent, ()):
            return False
        del (<dict>job.extra)["parentId"]
        self.c_mark(child, job)
        self.c_detach(parent, {child_id}, now_ms)
        return True

    def remove_unprocessed_children(self, str parent_id not None, int64_t now_ms):
        """Remove the queued children of a job, and its edges to those that are gone; it may run then. How many."""
        cdef uint32_t parent = self.c_slot(parent_id), child
        cdef set gone = set()
        cdef Py_ssize_t n = 0
        if not parent or self.job_at(parent).state in (STAGED, KEPT):
            return 0
        edges = self.edges.get(parent, ())
        for child_id in list(self.c_children_of(parent)):
            child = self.c_slot(child_id)
            if not child:
                if child_id in edges:
                    gone.add(child_id)
            elif self.job_at(child).state in (READY, DELAYED, PARKED):
                gone.add(child_id)
                self.c_forget(child)
                n += 1
        if gone and _live(self.job_at(parent)):
            self.c_detach(parent, gone, now_ms)
        return n

    def dependencies(self, str job_id not None):
        """What a job is tied to, as ids: ``processed``, ``unprocessed``, ``failed``, ``ignored``, ``missing``.

        None when the job is not there. A missing one is neither there nor known as completed.
        """
        cdef uint32_t slot = self.c_slot(job_id), other
        cdef dict extra
        cdef dict out = {"processed": [], "unprocessed": [], "failed": [], "ignored": [], "missing": []}
        if not slot or self.job_at(slot).state in (STAGED, KEPT):
            return None
        extra = {} if self.job_at(slot).extra == NULL else <dict>self.job_at(slot).extra
        dropped = extra.get("edgesDropped") or {}
        done = extra.get("edgesDone") or ()
        fatal = {name for name, (policy, _, _) in dropped.items() if policy == "fail"}
        if "childFailed" in extra:
            fatal.add(extra["childFailed"][0])
        for name in dict.fromkeys([*(extra.get("dependsOn") or ()), *(extra.get("childrenIds") or ())]):
            other = self.c_slot(name)
            if name in dropped and name not in fatal:
                out["ignored" if dropped[name][0] != "continue" else "failed"].append(name)
            elif name in done or self.c_done_as(name) != OPEN:
                out["processed"].append(name)
            elif not other or self.job_at(other).state == STAGED:
                # Nobody sees one that is still to be committed.
                out["failed" if name in fatal else "missing"].append(name)
            else:
                out["failed" if self.job_at(other).state == FAILED else "unprocessed"].append(name)
        return out

    def tied_to(self, str job_id not None):
        """Ids of what a job depends on, and of its children."""
        cdef uint32_t slot = self.c_slot(job_id)
        cdef dict extra
        if not slot or self.job_at(slot).extra == NULL:
            return []
        extra = <dict>self.job_at(slot).extra
        return [*(extra.get("dependsOn") or ()), *(extra.get("childrenIds") or ())]

    def child_failures(self, str job_id not None, str policy not None):
        """What a parent recorded of failed children with that policy: "queue:id" -> error."""
        cdef uint32_t slot = self.c_slot(job_id)
        if not slot or self.job_at(slot).state in (STAGED, KEPT) or self.job_at(slot).extra == NULL:
            return {}
        dropped = (<dict>self.job_at(slot).extra).get("edgesDropped") or {}
        return {key: error for kind, key, error in dropped.values() if kind == policy}

    # --- recovery -----------------------------------------------------------------------------

    cdef int c_relink_all(self, int64_t now_ms) except -1:
        """After a restart, when every job is there: enter all ties, and settle what was not needed any more."""
        cdef uint32_t slot
        cdef uint64_t hi, lo
        cdef Job *job
        cdef TokenEntry evicted
        cdef list flagged = [], linked = []
        for slot in range(1, self.jobs.fresh):
            job = self.job_at(slot)
            if job.state == 0:
                continue
            if job.flags & F_NEEDED or job.state == KEPT:
                job.flags &= ~<uint32_t>F_NEEDED
                flagged.append(self.c_id(job))
            if job.flags & F_LINKED and _live(job):
                linked.append(slot)
        for slot in linked:
            for job_id in (<dict>self.job_at(slot).extra).get("edgesDone") or ():
                if not self.c_slot(job_id):
                    self.c_number_of(job_id, &hi, &lo)
                    if self.done.c_contains(hi, lo):
                        continue
                    # Its rows went, or its queue was obliterated: it is of no queue.
                    if self.done.c_add(hi, lo, 0, 0, &evicted) and evicted.value:
                        self.c_evict(evicted.value)
                    self.done.c_pin(hi, lo)
            self.c_trace(slot, self.job_at(slot))
        for job_id in flagged:
            if job_id not in self.needed:
                self.c_unneed(job_id)
        for slot in linked:
            if self.job_at(slot).state == PARKED and slot not in self.edges:
                self.c_unpark(slot, now_ms, False)
        return 0

    cdef int c_check_flows(self) except -1:
        """Every invariant of the ties, O(all ties)."""
        cdef uint32_t slot, other
        cdef uint64_t hi, lo
        cdef Job *job
        cdef Queue q
        cdef dict needed = {}, waiting = {}
        assert not self.failures and not self.telling and not self.batch
        for slot in range(1, self.jobs.fresh):
            job = self.job_at(slot)
            if job.state == 0:
                continue
            assert (job.state == PARKED) == (slot in self.c_queue_of(job).parked)
            assert job.state != KEPT or job.flags & F_NEEDED
            assert bool(job.flags & F_NEEDED) == (self.c_id(job) in self.needed), f"{self.c_id(job)}: needed or not"
            if not job.flags & F_LINKED or not _live(job):
                assert slot not in self.edges and slot not in self.children
                continue
            extra = <dict>job.extra
            deps = extra.get("dependsOn") or []
            assert len(set(deps)) == len(deps)
            for job_id in [*deps, *(extra.get("childrenIds") or ())]:
                needed.setdefault(job_id, set()).add(slot)
            edges = self.edges.get(slot, set())
            if edges:
                waiting[job.queue] = waiting.get(job.queue, 0) + 1
            assert (job.state == PARKED) <= (slot in self.edges), f"{self.c_id(job)} waits for nothing"
            assert slot not in self.edges or edges
            assert edges <= set(deps[extra.get("settledEdges", 0):]) - set(extra.get("edgesDropped") or ())
            for job_id in deps[extra.get("settledEdges", 0):]:
                gone = job_id in (extra.get("edgesDropped") or ()) or job_id in (extra.get("edgesDone") or ())
                assert gone or (job_id in edges) == (self.c_done_as(job_id) == OPEN), f"{job_id}: edge or not"
            assert slot not in self.children or self.children[slot] == set(extra.get("childrenIds") or ())
        assert needed == self.needed
        assert waiting == self.waiting
        for job_id in needed:
            self.c_number_of(job_id, &hi, &lo)
            assert self.c_done_as(job_id) == OPEN or not self.done.c_pin(hi, lo), f"{job_id} is not pinned"
        for q in self.queues.values():
            for other in q.parked:
                assert self.job_at(other).state == PARKED and self.job_at(other).queue == q.index
        return 0
