"""The states of a job and the ways between them.

Two procedures carry everything that ends a delivery: :meth:`Transitions.c_leave_active`
is the only way out of the active state, and a job becomes terminal only in
:meth:`Transitions.c_complete` or :meth:`Transitions.c_bury`.
"""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_INCREF, PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MIN, int64_t, uint32_t, uint64_t
from libc.string cimport memset

from qcore.engine.capacity cimport Capacity
from qcore.engine.ids cimport uuid_parse
from qcore.engine.job cimport (
    ACTIVE, COMPLETED, DELAYED, F_CUSTOM_ID, F_EVICTED, F_GROUPED, F_KEEPS, F_KEYED, F_LIFO, F_LINKED, F_LOGGED,
    F_NEEDED, F_RARE, F_REMOVE_ON_COMPLETE, F_REMOVE_ON_FAIL, F_REPEATS, F_REWRITE, F_STORED, F_TEXT_ID, F_WAS_NEEDED,
    F_WATCHED, FAILED, KEPT, MAX_SPAN_MS, NOTES, PARKED, READY, STAGED, Blob, Job, Run, blob_bytes,
    blob_free, blob_new, c_later, c_until,
)
from qcore.engine.keys cimport (
    KEY_BUSY, KEY_EXTENDED, KEY_FREE, KEY_HELD, KEY_KEPT, KEY_PASSED, KEY_REPLACED, KEY_TIED, key_of,
)
from qcore.engine.lanes cimport ONE_GROUP, UNGROUPED, Group, Wanted
from qcore.engine.listing cimport L_DELAYED, L_PARKED, L_PRIORITIZED, L_WAITING
from qcore.engine.queue cimport Queue, RunList
from qcore.engine.table cimport (
    EV_COMPLETED, EV_DUPLICATED, EV_FAILED, EV_PROGRESS, EV_PULLED, EV_PUSHED, EV_RETRIED, EV_WAITING,
)
from qcore.structs.skiplist cimport Key, SkipEntry
from qcore.structs.slab cimport slab_alloc, slab_free
from qcore.structs.tokens cimport TokenEntry

from mmap import mmap

from qcore import limits
from qcore.engine import backoff
from qcore.errors import StateError

cdef enum:
    LATE_ANSWERS = 10000
    PUT_OFF_MS = 1000           # what failed unexpectedly is tried again after this time

# What parents are told of a failure that came without a text.
cdef str UNTOLD = "unknown error"


cdef object dead_due(dict letter):
    """When something is to be done about a dead letter, in ms; None = never."""
    cdef object expires = letter["expiresAt"], retry = letter["nextRetryAt"]
    if expires is None or (retry is not None and retry < expires):
        return retry
    return expires


cdef class Transitions(Capacity):
    """:class:`~qcore.engine.capacity.Capacity` with the rules of the life of a job."""

    def __cinit__(self):
        self.faults = []

    # --- admission -----------------------------------------------------------------

    cdef bint c_is_taken(self, uint32_t slot, const char *text, Py_ssize_t n) except -1:
        """Whether an add under the id of this job adds nothing."""
        cdef Job *job = self.job_at(slot)
        return ((job.state != COMPLETED and job.state != FAILED and job.state != KEPT)
                or (job.flags & F_NEEDED and job.state != FAILED
                    and PyUnicode_DecodeUTF8(text, n, NULL) not in self.batch))

    cdef Queue c_queue_for(self, str queue, const char *text, Py_ssize_t n):
        """The queue of an add under this id (NULL: none), which makes it; an add that adds nothing makes none."""
        cdef uint32_t slot
        if text != NULL and queue not in self.queues:
            slot = self.c_find(text, n)
            if slot and self.c_is_taken(slot, text, n):
                return self.c_queue_of(self.job_at(slot))   # where nothing happens either
        return self.c_queue(queue)

    cdef uint32_t c_add(self, Queue q, Spec *spec, object extra, int64_t now_ms, bint staged, int *how) except? 0:
        """Admit one job; the slot of the new or the existing job, 0 for ``THROTTLED``.

        ``spec.data`` passes to the engine in every case. A staged job is known by its id
        and its unique key only, until :meth:`c_publish`. O(1) for a job at the end of its
        priority.

        :raises StateError: its unique key is held and does not permit what it asks
        """
        cdef uint64_t hi = 0, lo = 0
        cdef uint32_t slot, flags = spec.flags, predecessor = 0, holder = 0
        cdef uint64_t done_hi, done_lo
        cdef Blob *text = NULL
        cdef Job *job
        cdef int verdict
        cdef TokenEntry evidence
        how[0] = ADDED
        if extra is not None:
            flags |= self.c_rare_flags(<dict>extra)
        if spec.id_text != NULL:
            slot = self.c_find(spec.id_text, spec.id_n)
            if slot:
                if self.c_is_taken(slot, spec.id_text, spec.id_n):
                    how[0] = EXISTING
                    blob_free(spec.data)
                    spec.data = NULL
                    return slot
                predecessor = slot
        if flags & F_KEYED:
            verdict = self.c_judge_key(q, <dict>extra, now_ms, &holder)
            if verdict >= KEY_HELD and verdict != KEY_REPLACED and verdict != KEY_PASSED:
                blob_free(spec.data)
                spec.data = NULL
                return self.c_duplicate(q, verdict, holder, <dict>extra, now_ms, how)
            if holder:
                if verdict != KEY_FREE:
                    how[0] = REPLACED
                    staged = False      # its predecessor goes now; one cut carries both
                self.c_pass_key(q, holder)
                if verdict == KEY_REPLACED:
                    self.c_forget(holder)
        if predecessor:
            if how[0] == ADDED:
                how[0] = REUSED
            staged = False
            self.job_at(predecessor).flags &= ~<uint32_t>F_NEEDED
            self.c_forget(predecessor)
        if spec.id_text != NULL:
            flags |= F_CUSTOM_ID
            if uuid_parse(spec.id_text, spec.id_n, &hi, &lo):
                done_hi = hi
                done_lo = lo
            else:
                flags |= F_TEXT_ID
                done_hi = self.c_hash(spec.id_text, spec.id_n)
                done_lo = ~done_hi
            # Evidence of an earlier generation must not give this one its old place.
            if self.done.c_get(done_hi, done_lo, &evidence):
                self.done.c_delete(done_hi, done_lo)
                self.n_lasting_marks -= evidence.value == 0
                self.c_note_evidence(PyUnicode_DecodeUTF8(spec.id_text, spec.id_n, NULL) if flags & F_TEXT_ID else None,
                                     done_hi, done_lo, evidence.owner, False)
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
            if flags & F_KEYED:
                self.c_take_key(q, slot, <dict>extra, now_ms)
        job.first_state = DELAYED if spec.run_ms > now_ms else READY
        job.state = STAGED
        q.n_staged += 1
        if flags & F_GROUPED:
            self.c_group_stage(q, job, 1)
        self.c_mark(slot, job)
        if self.needed and flags & F_CUSTOM_ID and self.c_id(job) in self.needed:
            job.flags |= F_NEEDED
        if flags & F_LINKED:
            self.c_link(slot, now_ms)
        if self.tracking and not q.counted and q.n_events < self.max_events:
            self.c_mark_counts(q)       # with the cut that makes the job known
        if not staged:
            self.c_publish(slot, now_ms)
        return slot

    cdef uint32_t c_duplicate(self, Queue q, int verdict, uint32_t holder, dict extra, int64_t now_ms,
                              int *how) except? 0:
        """Answer an add whose unique key another job holds: the slot of that job, or a refusal."""
        cdef Job *job
        if verdict == KEY_KEPT:
            how[0] = THROTTLED
            if self.c_event(q, EV_DUPLICATED):
                self.c_note_event(q, EV_DUPLICATED, now_ms, self.kept_by, None)
            return 0
        job = self.job_at(holder)
        if verdict == KEY_BUSY or verdict == KEY_TIED:
            raise StateError(self.c_key_refusal(verdict, self.c_id(job)))
        how[0] = DUPLICATE
        if verdict == KEY_EXTENDED:
            (<dict>job.extra)["keyExpires"] = now_ms + <int64_t>extra["deduplicationTtl"]
            self.c_mark(holder, job)
        if self.c_event(q, EV_DUPLICATED):
            self.c_emit(EV_DUPLICATED, q, job, now_ms, None)
        return holder

    cdef uint32_t c_rare_flags(self, dict extra) except? 0:
        """Flags that follow from what stands in the rare options of a new job."""
        cdef uint32_t flags = 0
        if key_of(extra) is not None:
            flags |= F_KEYED
        if "removeOnComplete" in extra or "removeOnFail" in extra:
            flags |= F_KEEPS
        if "repeat" in extra:
            flags |= F_REPEATS
        return flags

    cdef int c_publish(self, uint32_t slot, int64_t now_ms, bint staged=False) except -1:
        """Make a new job claimable and known. One that was ready when it was added is ready now.

        ``staged``: its commit has succeeded, and has told the journal of it.
        """
        cdef Job *job = self.job_at(slot)
        cdef Queue q = self.c_queue_of(job)
        q.n_staged -= 1
        if job.flags & F_GROUPED:
            self.c_group_stage(q, job, -1)
        q.total_pushed += 1
        if not (job.flags & F_LINKED and self.c_hold(slot, job)):
            self.c_enqueue(q, slot, job, max(now_ms, job.run_ms) if job.first_state == READY else now_ms)
            if job.first_state == PARKED:
                self.c_mark(slot, job)      # what it waited for was completed meanwhile
        if q.n_events < self.max_events:
            q.n_events += 1             # stored with the job
        if staged and q.journal is not None and q.journal.c_unsure():
            if q.event_mask & EV_PUSHED:
                self.events.append(("pushed", q.name, self.c_id(job), now_ms, None))
        elif q.event_mask & EV_PUSHED or q.journal is not None:
            self.c_emit(EV_PUSHED, q, job, now_ms, None)
        if job.state == PARKED:
            self.c_after_parked(slot, now_ms)
        return 0

    cdef int c_enqueue(self, Queue q, uint32_t slot, Job *job, int64_t now_ms) except -1:
        """Put a job into its queue by its run time and priority."""
        cdef Key key
        if job.run_ms > now_ms:
            job.delayed = q.delayed.c_push(job.run_ms, job.seq, slot)
            job.state = DELAYED
            q.priorities.c_count(job.priority, 1)
            self.c_list(q, L_DELAYED, slot, job)
            if job.flags & F_GROUPED:
                self.c_group_delay(q, job, 1)
            self.c_set_due(q)
            if q.n_waits:
                self.c_wake(q)      # the wait's own end may have moved nearer
            if job.extra != NULL:
                self.c_begin_life(slot, job)
            return 0
        if job.flags & F_GROUPED:
            job.delayed = self.c_lane(q, job).c_add(self.c_group_of(q, job), <int64_t>job.priority, job.seq, slot)
        else:
            self.c_key(job, &key)
            q.ready.c_insert(key, slot)
        return self.c_enter_ready(q, slot, job)

    cdef int c_enter_ready(self, Queue q, uint32_t slot, Job *job) except -1:
        """Let a job that has its place in line be ready."""
        job.state = READY
        q.priorities.c_count(job.priority, 1)
        self.c_list(q, L_PRIORITIZED if job.priority > 0 else L_WAITING, slot, job)
        if job.priority > 0:
            q.n_prioritized += 1
        if q.n_waits:
            self.c_wake(q)
        if job.extra != NULL:
            self.c_begin_life(slot, job)
        return 0

    cdef int c_line_up(self) except -1:
        """Give every ready job without a group its place in line; none has one yet. O(jobs)."""
        cdef uint32_t slot
        cdef Job *job
        cdef Py_ssize_t n = 0, at = 0, count
        cdef Queue q
        cdef SkipEntry *entries
        cdef SkipEntry *entry
        cdef Py_buffer view
        for q in self.queues.values():
            q.lining = 0
        for slot in range(1, self.jobs.fresh):
            job = self.job_at(slot)
            if job.state == READY and not job.flags & F_GROUPED:
                q = self.c_queue_of(job)
                q.lining += 1
                n += 1
        for q in self.queues.values():
            count = q.lining
            q.lining = at
            at += count
        # Not from the heap, where the lists themselves would come to lie behind it and keep it.
        memory = mmap(-1, max(1, <Py_ssize_t>(2 * n * sizeof(SkipEntry))))
        PyObject_GetBuffer(memory, &view, PyBUF_WRITABLE)
        try:
            entries = <SkipEntry *>view.buf
            for slot in range(1, self.jobs.fresh):
                job = self.job_at(slot)
                if job.state == READY and not job.flags & F_GROUPED:
                    q = self.c_queue_of(job)
                    entry = &entries[q.lining]
                    q.lining += 1
                    self.c_key(job, &entry.key)
                    entry.value = slot
            at = 0
            for q in self.queues.values():
                q.ready.c_fill(entries + at, entries + n, q.lining - at)
                at = q.lining
        finally:
            PyBuffer_Release(&view)
        memory.close()
        return 0

    cdef int c_begin_life(self, uint32_t slot, Job *job) except -1:
        """A queued or parked job with a ttl is dropped when that is over, unless it has started before."""
        cdef object ttl = (<dict>job.extra).get("ttl")
        if ttl is not None and slot not in self.living and "begun" not in <dict>job.extra:
            self.living[slot] = self.lives.c_push(job.created_ms + <int64_t>ttl + 1, job.seq, slot)
        return 0

    cdef int c_end_life(self, uint32_t slot) except -1:
        cdef object handle = self.living.pop(slot, None)
        if handle is not None:
            self.lives.c_remove(handle)
        return 0

    cdef int c_unqueue(self, Queue q, uint32_t slot, Job *job) except -1:
        """Take a READY or DELAYED job out of its queue."""
        cdef Key key
        cdef Group g
        q.priorities.c_count(job.priority, -1)
        if job.extra != NULL and self.living:
            self.c_end_life(slot)
        if job.state == READY:
            self.c_unlist(q, L_PRIORITIZED if job.priority > 0 else L_WAITING, job)
            if job.flags & F_GROUPED:
                g = self.c_group_of(q, job)
                q.lanes.c_remove(g, job.delayed)
                job.delayed = 0
                q.lanes.c_drop_idle(g)
            else:
                self.c_key(job, &key)
                q.ready.c_remove(key)
            if job.priority > 0:
                q.n_prioritized -= 1
        else:
            self.c_unlist(q, L_DELAYED, job)
            q.delayed.c_remove(job.delayed)
            job.delayed = 0
            if job.flags & F_GROUPED:
                self.c_group_delay(q, job, -1)
            self.c_set_due(q)
        return 0

    cdef int c_put_parked(self, Queue q, uint32_t slot, Job *job) except -1:
        """Let a job wait for others, out of the run queue."""
        q.parked[slot] = None
        job.state = PARKED
        self.c_list(q, L_PARKED, slot, job)
        return self.c_begin_life(slot, job)

    cdef int c_take_parked(self, Queue q, uint32_t slot, Job *job) except -1:
        """The way out of the PARKED state."""
        del q.parked[slot]
        if self.living:
            self.c_end_life(slot)
        self.c_unlist(q, L_PARKED, job)
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
            q.priorities.c_count(job.priority, -1)
            self.c_unlist(q, L_DELAYED, job)
            if job.flags & F_GROUPED:
                self.c_group_delay(q, job, -1)
            self.c_enqueue(q, slot, job, now_ms)
            moved += 1
        if moved:
            self.c_set_due(q)
        return moved

    # --- delivery ------------------------------------------------------------------

    cdef inline uint32_t c_candidate(self, Queue q, Wanted wanted, int64_t now_ns) except? 0:
        """The job that a pull gets next; 0 = none. Pauses and limits of the queue are not looked at."""
        cdef Key key
        cdef uint32_t slot
        if wanted is None and q.ready.c_first(&key, &slot):
            return slot
        return self.c_candidate_in_turn(q, wanted, now_ns)

    cdef uint32_t c_candidate_in_turn(self, Queue q, Wanted wanted, int64_t now_ns) except? 0:
        """The same where groups may have a say. O(log groups)."""
        cdef Key key
        cdef uint32_t slot = 0, grouped
        cdef int64_t priority
        cdef Group g
        if wanted is None or wanted.affinity != ONE_GROUP:
            if q.ready.c_first(&key, &slot) and (
                    wanted is None or wanted.ungrouped_first or wanted.affinity == UNGROUPED):
                return slot
        if q.lanes is None:
            return slot
        self.c_expire_groups(q, now_ns)
        g = q.lanes.c_first(wanted)
        if g is None or (slot and q.lanes.plain_turn <= g.turn):
            return slot
        g.ready.c_first(&priority, &grouped)
        return grouped

    cdef uint32_t c_claim(self, Queue q, int64_t now_ms, int64_t now_ns, int64_t lease_ms, uint32_t session,
                          Wanted wanted) except? 0:
        """Deliver the next job; 0 when there is none, or the queue is paused or at a limit.

        ``lease_ms`` 0 delivers without a lease, ``wanted`` None takes any job. Jobs past their
        ttl are dropped on the way.
        """
        cdef Key key
        cdef uint32_t slot
        cdef Job *job
        cdef Run *run
        cdef object ttl, timeout, stall
        if q.paused or (q.limited and not self.c_has_room(q, now_ns)):
            return 0
        if q.due:
            self.c_promote(q, now_ms, PROMOTIONS)
        while True:
            slot = self.c_candidate(q, wanted, now_ns)
            if not slot:
                return 0
            job = self.job_at(slot)
            timeout = ttl = stall = None
            if job.extra != NULL:
                ttl = (<dict>job.extra).get("ttl")
                if ttl is not None and now_ms > job.created_ms + ttl and "begun" not in <dict>job.extra:
                    self.c_forget(slot)
                    continue
                timeout = (<dict>job.extra).get("timeout")
                stall = (<dict>job.extra).get("stallTimeout")
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
                run.expires_ns = c_later(now_ns, lease_ms)
            if timeout:
                run.timeout_ns = c_later(now_ns, timeout)
            run.quiet_ns = now_ns + q.grace_ns
            if stall is not None:
                run.stall_ns = max(1, c_later(0, stall))
                run.quiet_ns = now_ns + q.c_grace_ns(run.stall_ns)
            try:
                self.c_own(slot, run, session)
                self.c_arm(slot, run)
                if not lease_ms or q.stalls_leased:
                    self.c_watch(q, run)
            except BaseException:
                if run.session:
                    self.c_disown(run)
                memset(run, 0, sizeof(Run))     # the record stays in reserve, as new
                raise
            job.run = self.spare_run
            self.spare_run = 0
            if job.flags & F_GROUPED:
                self.c_take_turn(q, job, wanted, now_ns)
            else:
                q.ready.c_pop(&key, &slot)
                if wanted is not None and not wanted.ungrouped_first:
                    self.c_take_plain_turn(q)
            q.priorities.c_count(job.priority, -1)
            self.c_unlist(q, L_PRIORITIZED if job.priority > 0 else L_WAITING, job)
            if ttl is not None:
                self.c_end_life(slot)
                (<dict>job.extra)["begun"] = True
            if job.priority > 0:
                q.n_prioritized -= 1
            if q.limited and q.rate is not None:
                q.rate.c_take(now_ms, now_ns)
                self.c_mark_queue(q)
            self.deliveries += 1
            run.number = self.deliveries
            job.state = ACTIVE
            self.c_enter_active(q, job, run)
            q.total_pulled += 1
            self.c_mark(slot, job)
            if self.c_event(q, EV_PULLED):
                self.c_emit(EV_PULLED, q, job, now_ms, None)
            return slot

    cdef inline int c_enter_active(self, Queue q, Job *job, Run *run) except -1:
        """The only way into the active state; ``run`` is the record of ``job.run``."""
        self.c_list_append(&q.active, job.run, run)
        if job.flags & F_GROUPED:
            self.c_lane(q, job).c_enter(self.c_group_of(q, job))
        return 0

    cdef int c_arm(self, uint32_t slot, Run *run) except -1:
        """Set the deadline of a delivery: the earliest of lease end, timeout and silence the job itself bounds."""
        cdef int64_t due = run.expires_ns
        if run.timeout_ns and (due == 0 or run.timeout_ns < due):
            due = run.timeout_ns
        if run.stall_ns and self.c_queue_of(self.job_at(slot)).stalls_on:
            if due == 0 or run.quiet_ns + run.stall_ns < due:
                due = run.quiet_ns + run.stall_ns
        if due == 0:
            if run.deadline:
                self.deadlines.c_remove(run.deadline)
                run.deadline = 0
        elif run.deadline:
            self.deadlines.c_change(run.deadline, due, self.job_at(slot).seq)
        else:
            run.deadline = self.deadlines.c_push(due, self.job_at(slot).seq, slot)
        return 0

    cdef inline bint c_is_watched(self, Queue q, Run *run) noexcept:
        """Whether silence ends this delivery by the rule of its queue.

        Where stalls are looked for: of those without a lease, and of leased ones if an interval
        was set. Elsewhere of orphans only: no lease, and nobody's connection that would end.
        """
        if q.stalls_on:
            return run.stall_ns == 0 and (run.token_hi == 0 or q.stalls_leased)
        return run.token_hi == 0 and run.session == 0

    cdef inline int c_watch(self, Queue q, Run *run) except -1:
        """See to it that the queue is looked at when this delivery may be stalled. O(1) mostly."""
        cdef int64_t due
        if self.c_is_watched(q, run):
            due = run.quiet_ns + q.stall_ns
            if q.stall_at_ns == 0 or due < q.stall_at_ns:
                self.c_set_check(q, due)
                q.stall_at_ns = due
        return 0

    cdef int c_judge(self, uint32_t slot, int kind, uint64_t hi, uint64_t lo) except -1:
        """May a caller with this token act on the delivery of this job?

        A lease that has run out still counts until the deadline is handled.
        """
        cdef Job *job
        cdef Run *run
        cdef object last
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
            if job.extra != NULL and (job.state == READY or job.state == DELAYED):
                last = (<dict>job.extra).get("lastToken")
                # Of a delivery without a lease whatever the holder presents is as good.
                if last is not None and (last == (hi, lo) if kind == TOKEN else last == (0, 0)):
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
        run.quiet_ns = 0
        run.stall_ns = 0
        if job.extra != NULL:
            # An earlier holder may report only until somebody else had the job.
            (<dict>job.extra).pop("lastToken", None)
        if job.flags & F_GROUPED:
            self.c_leave_group(q, job)
        if q.n_waits:
            self.c_wake(q)
        return 0

    cdef void c_end(self, Job *job, int64_t now_ms) noexcept:
        """Note when a job ended, and after which others: several do in a millisecond, and the clock may be set back.

        Numbers of ends keep up with those of jobs, so that a row has a small difference only.
        """
        cdef Run *run = self.run_at(job.run)
        self.ends = max(self.ends + 1, job.seq)
        run.number = self.ends
        run.finished_ms = now_ms

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
        self.busy_ms += now_ms - run.started_ms
        self.c_outcome(q, q.completions, now_ms)
        if self.c_event(q, EV_COMPLETED):
            self.c_emit(EV_COMPLETED, q, job, now_ms,
                        None if result == NULL
                        else (PyBytes_FromStringAndSize(<char *>blob_bytes(result), result.size), result.notes & NOTES))
        if job.flags & F_WATCHED:
            self.c_settle(job, "completed", result)
        if job.flags & F_TEXT_ID:
            # A keyed hash stands for the text: 128 bits, so that evidence is numbers only.
            hi = lo
            lo = ~lo
        self.c_end(job, now_ms)
        run.result = result
        job.state = COMPLETED
        if job.flags & F_RARE:
            if job.flags & F_KEYED:
                self.c_release_key(slot, job)
            self.c_follow_completed(slot, now_ms)
        self.done_ms = now_ms
        if remove and not job.flags & F_NEEDED:
            self.c_note_gone(job, q.index)
            self.c_forget_done(slot, job, q)
            if self.done.c_add(hi, lo, q.index, 0, &evicted) and evicted.value:
                self.c_evict(evicted.value)
            return 0
        if remove:
            job.state = KEPT
            q.n_hidden += 1
        else:
            self.c_list_append(&q.completed, job.run, run)
        self.c_mark(slot, job)
        if self.done.c_add(hi, lo, q.index, slot, &evicted) and evicted.value:
            self.c_evict(evicted.value)
        if job.flags & F_NEEDED:
            self.done.c_pin(hi, lo)
        if job.flags & F_KEEPS and not remove:
            self.c_trim(q, &q.completed, (<dict>job.extra).get("removeOnComplete"), now_ms)
        return 0

    cdef int c_trim(self, Queue q, RunList *list_, object policy, int64_t now_ms) except -1:
        """Remove what a policy does not keep of the finished jobs of a queue, oldest first.

        ``policy``: a number that is kept, or {count, age in seconds}; None keeps all. What
        live jobs need stays. Bounded, so that the first job with a policy in a full queue
        does not stop the others; each end removes about one, so O(1) amortised.
        """
        cdef object count = policy, age = None
        cdef Py_ssize_t over = 0
        cdef int64_t oldest_ms = INT64_MIN
        if policy is None:
            return 0
        if isinstance(policy, dict):
            count = (<dict>policy).get("count")
            age = (<dict>policy).get("age")
        if count is not None:
            over = list_.n - <Py_ssize_t>min(count, list_.n)
        if age is not None:
            oldest_ms = now_ms - <int64_t>min(age * 1000, MAX_SPAN_MS)
        if list_ == &q.completed and q.n_archived:
            # The oldest are archived; the host looks for them in its own time.
            if oldest_ms > q.far_until_ms:
                q.far_until_ms = oldest_ms
                self.trims = True
                self.c_mark_queue(q)
            if count is not None and count < q.n_archived + list_.n:
                q.far_most = count
                self.trims = True
                if q.far_most_due != q.far_most or q.far_most_ms != now_ms:
                    q.far_most_due = q.far_most
                    q.far_most_ms = now_ms
                    self.c_mark_queue(q)
        self.c_cut(q, list_, over, oldest_ms)
        return 0

    cdef Py_ssize_t c_cut(self, Queue q, RunList *list_, Py_ssize_t over, int64_t oldest_ms) except -1:
        """Remove the oldest ``over`` of the finished jobs of a queue and those that ended before; how many."""
        cdef Py_ssize_t removals = 0, skips = 0
        cdef uint32_t at = list_.head, slot
        cdef Run *run
        cdef Job *job
        while at and removals < REMOVALS and skips < SKIPS:
            run = self.run_at(at)
            if over <= 0 and run.finished_ms >= oldest_ms:
                break
            over -= 1
            at = run.next
            slot = run.job
            job = self.job_at(slot)
            if job.flags & F_NEEDED:
                skips += 1
                continue
            removals += 1
            if job.state == FAILED:
                self.c_forget(slot)
            else:
                self.c_let_go(q, slot, job, run)
        return removals

    cdef int c_retrim(self) except -1:
        """After a start: memory has completed jobs again that only the store had when a policy ended them."""
        cdef Queue q
        cdef uint32_t at
        cdef Py_ssize_t later, over
        for q in list(self.queues.values()):
            later = 0
            if q.far_most >= 0:
                at = q.completed.tail
                while at and self.run_at(at).finished_ms > q.far_most_ms:
                    later += 1
                    at = self.run_at(at).prev
            while True:
                over = max(0, q.completed.n - later - q.far_most) if q.far_most >= 0 else 0
                if not self.c_cut(q, &q.completed, over, q.far_until_ms):
                    break
        return 0

    cdef int c_let_go(self, Queue q, uint32_t slot, Job *job, Run *run) except -1:
        """Remove a completed job that its queue does not keep. It stays known as completed."""
        cdef TokenEntry evicted
        cdef uint64_t hi = job.id_hi, lo = job.id_lo
        if job.flags & F_TEXT_ID:
            hi = lo
            lo = ~lo
        self.c_list_remove(&q.completed, run)
        self.c_note_gone(job, q.index)
        self.done.c_add(hi, lo, q.index, 0, &evicted)       # it is there: only its slot goes
        return self.c_forget_done(slot, job, q)

    cdef int c_forget_done(self, uint32_t slot, Job *job, Queue q) except -1:
        """Drop a job that is in no list any more, with its row."""
        if job.flags & F_RARE:
            self.c_before_forgotten(slot)
            if job.flags & F_KEYED:
                self.c_release_key(slot, job)
            if job.flags & F_LOGGED:
                self.c_drop_log(job.seq)
        if job.flags & F_WATCHED:
            self.c_settle(job, "failed" if job.state == FAILED else "removed", NULL)
        if job.state == KEPT:
            q.n_hidden -= 1
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
        self.c_enter_active(q, job, run)
        return self.c_complete(slot, result, remove, now_ms)

    cdef bint c_renew(self, uint32_t slot, int kind, uint64_t hi, uint64_t lo, int64_t lease_ms,
                      int64_t now_ms, int64_t now_ns) except? 0:
        """Renew a lease by its own duration, or by ``lease_ms`` if not 0.

        Without a token only the heartbeat time moves. A wrong token, or one on a delivery
        without a lease, is refused. A lease that has run out is renewed as long as that was
        not handled: after a standstill its holder may come before those who judge.
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
            self.c_beat(slot, run, now_ms, now_ns)
            return True
        if kind != TOKEN or run.token_hi != hi or run.token_lo != lo or run.token_hi == 0:
            return False
        run.renewals += 1
        run.expires_ns = c_later(now_ns, lease_ms if lease_ms else run.lease_ms)
        self.c_beat(slot, run, now_ms, now_ns)
        self.c_arm(slot, run)
        self.c_mark(slot, job)
        return True

    cdef int c_beat(self, uint32_t slot, Run *run, int64_t now_ms, int64_t now_ns) except -1:
        """A sign of life of the holder of a delivery. Nothing is written: a restart begins the count anew."""
        run.heartbeat_ms = now_ms
        if now_ns > run.quiet_ns:
            run.quiet_ns = now_ns
            if run.stall_ns:
                self.c_arm(slot, run)
        return 0

    cdef int c_fail(self, uint32_t slot, str error, object stack, str reason, bint final, bint remove,
                    int64_t now_ms) except -1:
        """A delivery failed: charge it, then retry after the backoff or dead-letter the job."""
        cdef Job *job = self.job_at(slot)
        cdef Run *run = self.run_at(job.run)
        cdef Queue q = self.c_queue_of(job)
        cdef dict extra = self.c_extra(job)
        cdef bint again = not final and job.attempts + 1 < job.max_attempts
        # What can fail comes before the first change.
        cdef int64_t wait_ms = self.c_backoff(job, extra, job.attempts + 1) if again else 0
        self.c_leave_active(q, slot, job, run)
        job.attempts += 1
        self.c_history(job, run, extra, reason if not again or reason == "timeout" else "explicit_fail", error, now_ms)
        if stack is not None:
            extra["stacktrace"] = stack[:max(0, int(extra.get("stackTraceLimit", limits.DEFAULT_STACK_LINES)))]
        if self.c_event(q, EV_FAILED):
            self.c_emit(EV_FAILED, q, job, now_ms, (error, not again))
        if not again:
            if remove or job.flags & F_REMOVE_ON_FAIL:
                q.total_failed += 1
                self.c_outcome(q, q.failures, now_ms)
                job.state = FAILED
                if job.flags & F_RARE:
                    if job.flags & F_KEYED:
                        self.c_release_key(slot, job)
                    self.c_follow_failed(slot, UNTOLD if error is None else error, now_ms)
                return self.c_forget_done(slot, job, q)
            return self.c_bury(q, slot, job, reason, error, now_ms)
        job.run_ms = now_ms + wait_ms
        self.c_note_retry(job, extra, now_ms)
        self.c_requeue(q, slot, job, now_ms, True)
        if self.c_event(q, EV_RETRIED):
            self.c_emit(EV_RETRIED, q, job, now_ms, None)
        return 0

    cdef int64_t c_backoff(self, Job *job, dict extra, uint32_t attempts) except? -1:
        cdef object config = extra.get("backoffConfig")
        if config is None:
            return backoff.backoff_ms(attempts, job.backoff_ms, r=self.ids.c_uniform())
        return backoff.backoff_ms(attempts, job.backoff_ms, kind=config["type"], cap_ms=config.get("maxDelay"),
                                  jitter=config.get("jitter"), r=self.ids.c_uniform())

    cdef c_history(self, Job *job, Run *run, dict extra, str reason, str error, int64_t now_ms):
        """Write down a charged execution: its timeline entries and its attempt record."""
        cdef list timeline = self.c_timeline(job, extra)
        cdef dict entry = {"state": "failed", "timestamp": now_ms}
        if error is not None:
            entry["error"] = error
        entry["attempt"] = job.attempts
        self.c_timeline_add(job, "active", run.started_ms)
        if len(timeline) < limits.MAX_TIMELINE_ENTRIES:
            timeline.append(entry)
        self.c_record(job, run, extra, reason, error, now_ms)
        extra["failedReason"] = error

    cdef int c_record(self, Job *job, Run *run, dict extra, str reason, str error, int64_t now_ms) except -1:
        """Write down how an execution ended, or with ``run`` NULL that there was none."""
        cdef list attempts = extra.setdefault("attemptRecords", [])
        cdef int64_t began_ms = job.created_ms if run == NULL else run.started_ms
        if len(attempts) == limits.MAX_TIMELINE_ENTRIES:
            del attempts[0]
        attempts.append({
            "attempt": job.attempts,
            "startedAt": began_ms,
            "failedAt": now_ms,
            "reason": reason,
            "error": error,
            "duration": 0 if run == NULL else now_ms - began_ms,
        })
        return 0

    cdef int c_note_retry(self, Job *job, dict extra, int64_t now_ms) except -1:
        cdef list timeline = self.c_timeline(job, extra)
        if len(timeline) < limits.MAX_TIMELINE_ENTRIES:
            timeline.append({"state": "waiting", "timestamp": now_ms, "attempt": job.attempts + 1})
        return 0

    cdef int c_requeue(self, Queue q, uint32_t slot, Job *job, int64_t now_ms, bint later) except -1:
        """A job that has left the active state goes back to its queue.

        ``later``: it waits for its run time. Else it was ready before and is so again, also
        when the wall clock was set back meanwhile, and keeps its place.
        """
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
        self.c_end(job, now_ms)
        run.token_hi = run.token_lo = 0
        extra["dlq"] = self.c_letter(q, extra, reason, error, now_ms)
        self.c_set_dead_end(slot, job, run)
        job.state = FAILED
        q.total_failed += 1
        self.c_outcome(q, q.failures, now_ms)
        if job.flags & F_WATCHED:
            self.c_settle(job, "failed", NULL)
        self.c_list_append(&q.failed, job.run, run)
        self.c_mark(slot, job)
        if job.flags & F_RARE:
            if job.flags & F_KEYED:
                self.c_release_key(slot, job)
            if error is None and reason != "unknown":   # so not one that was discarded
                error = UNTOLD
            self.c_follow_failed(slot, error, now_ms)
            if job.flags & F_KEEPS and not job.flags & F_REMOVE_ON_FAIL:
                self.c_trim(q, &q.failed, extra.get("removeOnFail"), now_ms)
        self.c_purge(q, q.dlq_max_entries)
        return 0

    cdef dict c_letter(self, Queue q, dict extra, str reason, object error, int64_t now_ms):
        """The entry of a job that becomes a dead letter; one that was retried by itself goes on where it was."""
        cdef dict chain = extra.pop("autoRetry", None)
        cdef dict letter
        if chain is not None:
            letter = {"reason": reason, "error": error, **chain}
            if not q.dlq_auto_retry or letter["retryCount"] >= q.dlq_max_retries:
                letter["nextRetryAt"] = None
            return letter
        return {
            "reason": reason,
            "error": error,
            "retryCount": 0,
            "lastRetryAt": None,
            "nextRetryAt": now_ms + q.dlq_retry_ms if q.dlq_auto_retry and q.dlq_max_retries > 0 else None,
            "expiresAt": now_ms + q.dlq_max_age_ms if q.dlq_max_age_ms >= 0 else None,
        }

    cdef int c_set_dead_end(self, uint32_t slot, Job *job, Run *run) except -1:
        """Set the time of a dead letter: the earlier of its end and its next retry."""
        cdef object due = dead_due((<dict>job.extra)["dlq"])
        if due is not None:
            run.deadline = self.expiries.c_push(due, job.seq, slot)
        return 0

    cdef void c_leave_dead(self, Queue q, Run *run) noexcept:
        """The way out of the dead letters: the list, and the end of their time."""
        self.c_list_remove(&q.failed, run)
        if run.deadline:
            self.expiries.c_remove(run.deadline)
            run.deadline = 0

    cdef c_finalise(self, uint64_t hi, uint64_t lo, str outcome):
        """Remember how the engine ended a delivery, for its holder's late answer. Bounded, first in first out."""
        cdef tuple token = (hi, lo)         # one object in both: most of what an entry costs
        self.final_tokens[token] = outcome
        self.final_order.append(token)
        if len(self.final_order) > LATE_ANSWERS:
            self.final_tokens.pop(self.final_order.popleft(), None)

    cdef int c_forget(self, uint32_t slot) except -1:
        """Remove a job in any state, with its row, so that nothing of it is left. Active ones lose their delivery."""
        cdef Job *job = self.job_at(slot)
        cdef Queue q = self.c_queue_of(job)
        if job.state == READY or job.state == DELAYED:
            self.c_unqueue(q, slot, job)
        elif job.state == ACTIVE:
            self.c_leave_active(q, slot, job, self.run_at(job.run))
        elif job.flags & F_EVICTED:
            self.c_unarchive(slot, job)
        elif job.state == COMPLETED:
            self.c_list_remove(&q.completed, self.run_at(job.run))
            if job.flags & F_NEEDED:
                # Gone for everybody but those who still need its result.
                job.state = KEPT
                q.n_hidden += 1
                return self.c_mark(slot, job)
            self.c_forget_evidence(job)
        elif job.state == KEPT:
            self.c_forget_evidence(job)
        elif job.state == PARKED:
            self.c_take_parked(q, slot, job)
        elif job.state == FAILED:
            self.c_leave_dead(q, self.run_at(job.run))
        elif job.state == STAGED:
            q.n_staged -= 1
            if job.flags & F_GROUPED:
                self.c_group_stage(q, job, -1)
            if not q.counted:
                self.c_mark_counts(q)       # its event was counted ahead
        return self.c_forget_done(slot, job, q)

    cdef void c_forget_evidence(self, Job *job) noexcept:
        """Forget that a job was completed."""
        if job.flags & F_TEXT_ID:
            self.done.c_delete(job.id_lo, ~job.id_lo)
        else:
            self.done.c_delete(job.id_hi, job.id_lo)

    cdef int c_evict(self, uint32_t slot) except -1:
        """The oldest completed job leaves memory. With a store it is archived: its row stays."""
        cdef Job *job = self.job_at(slot)
        cdef Queue q = self.c_queue_of(job)
        self.c_list_remove(&q.completed, self.run_at(job.run))
        if not self.archive:
            return self.c_forget_done(slot, job, q)
        q.n_archived += 1
        self.n_archived += 1
        if self.run_at(job.run).finished_ms < self.far_ms:
            self.far_ms = self.run_at(job.run).finished_ms
        if job.flags & F_WAS_NEEDED:
            self.c_mark(slot, job)      # else its row would bring it back to memory with each restart
        return self.c_leave_memory(slot, job)

    cdef int c_readmit(self, uint32_t slot, Job *job) except -1:
        """An archived job belongs to memory again, as the one that was completed last."""
        cdef Queue q = self.c_queue_of(job)
        cdef TokenEntry evicted
        cdef uint64_t hi = job.id_hi, lo = job.id_lo
        if job.flags & F_TEXT_ID:
            hi = lo
            lo = ~lo
        self.c_unarchive(slot, job)
        self.c_end(job, self.run_at(job.run).finished_ms)
        self.c_list_append(&q.completed, job.run, self.run_at(job.run))
        if self.done.c_add(hi, lo, q.index, slot, &evicted) and evicted.value:
            self.c_evict(evicted.value)
        return 0

    cdef Py_ssize_t c_expire(self, int64_t until_ms, Py_ssize_t most) except -1:
        """Remove completed jobs that ended by then and that no live job needs; at most ``most``. How many."""
        cdef Queue q
        cdef Py_ssize_t n = 0, skips
        cdef uint32_t at
        cdef Run *run
        for q in list(self.queues.values()):
            at = q.completed.head
            skips = 0
            while at and n < most and skips < SKIPS:
                run = self.run_at(at)
                if run.finished_ms > until_ms and not q.completed.backwards:
                    break
                at = run.next
                if run.finished_ms > until_ms or self.job_at(run.job).flags & F_NEEDED:
                    skips += 1
                    continue
                self.c_forget(run.job)
                n += 1
        return n

    # --- time ------------------------------------------------------------------------

    cdef int c_advance(self, int64_t now_ms, int64_t now_ns) except -1:
        """Do what is due: promote delayed jobs, end deliveries and lives, drop or retry dead letters.

        1 if more is due at once.
        """
        cdef Queue q
        cdef int64_t due
        cdef uint32_t item
        cdef int left = PROMOTIONS
        while self.due.c_first(&due, &item) and due <= now_ms:
            if left <= 0:
                return 1
            try:
                left -= self.c_promote(self.c_queue_at(item), now_ms, left)
            except Exception as error:
                left -= 1
                self.c_put_off(self.due, item, now_ms + PUT_OFF_MS, error)
        while self.deadlines.c_first(&due, &item) and due <= now_ns:
            if left <= 0:
                return 1
            left -= 1
            try:
                self.c_deadline(item, now_ms, now_ns)
            except Exception as error:
                self.c_put_off(self.deadlines, item, now_ns + PUT_OFF_MS * 1000000, error)
        while self.checks.c_first(&due, &item) and due <= now_ns:
            if left <= 0:
                return 1
            q = self.c_queue_at(item)
            self.checks.c_remove(q.check)
            q.check = 0
            left -= 1
            try:
                self.c_check_queue(q, now_ms, now_ns)
            except Exception as error:
                self.c_fault("something that was due was put off", error)
                self.c_set_check(q, now_ns + PUT_OFF_MS * 1000000)
        while self.lives.c_first(&due, &item) and due <= now_ms:
            if left <= 0:
                return 1
            left -= 1
            try:
                self.c_forget(item)
            except Exception as error:
                self.c_put_off(self.lives, item, now_ms + PUT_OFF_MS, error)
        while self.expiries.c_first(&due, &item) and due <= now_ms:
            if left <= 0:
                return 1
            left -= 1
            try:
                self.c_end_dead(item, now_ms)
            except Exception as error:
                self.c_put_off(self.expiries, item, now_ms + PUT_OFF_MS, error)
        while self.key_ends.c_first(&due, &item) and due <= now_ms:
            if left <= 0:
                return 1
            left -= 1
            try:
                self.c_drop_kept(item)
            except Exception as error:
                self.c_put_off(self.key_ends, item, now_ms + PUT_OFF_MS, error)
        return self.c_advance_more(now_ms, now_ns, left)

    cdef int c_check_queue(self, Queue q, int64_t now_ms, int64_t now_ns) except -1:
        """The time set by :meth:`c_set_check` has come: do what is due, and set the next."""
        if q.rate is not None and q.rate.ends_ns and now_ns >= q.rate.ends_ns:
            self.c_end_rate(q)
        self.c_expire_groups(q, now_ns)
        if q.n_waits:
            self.c_wake(q)
        return self.c_expect(q, now_ns)

    cdef int c_advance_more(self, int64_t now_ms, int64_t now_ns, int left) except -1:
        """What further layers do when their time comes; at most ``left`` steps. 1 if more is due at once."""
        return 0

    cdef int64_t c_next_more(self, int64_t now_ms, int64_t past_ns, int64_t now_ns) except? -2:
        """Nanoseconds until :meth:`c_advance_more` has something to do; -1 = never."""
        return -1

    cdef int c_put_off(self, DelayHeap heap, uint32_t item, int64_t until, object error) except -1:
        """Doing the first thing of a heap failed: report it, and let it not hold up the others."""
        cdef int64_t due
        cdef uint32_t first
        self.c_fault("something that was due was put off", error)
        if heap.c_first(&due, &first) and first == item:
            heap.c_change(heap.entries[0].handle, until, heap.entries[0].tie)
        return 0

    # --- what goes wrong -----------------------------------------------------------------

    cdef c_fault(self, str what, object error):
        self.faults.append((what, error))

    def take_faults(self):
        """What went wrong unexpectedly since the last call: (what it came to, error)."""
        faults = self.faults
        self.faults = []
        return faults

    # --- what follows from an end ------------------------------------------------------

    cdef int c_follow_completed(self, uint32_t slot, int64_t now_ms) except -1:
        """Let follow what has to. The end stands, whatever goes wrong with that."""
        try:
            self.c_after_completed(slot, now_ms)
        except Exception as error:
            self.c_fault(f"job {self.c_id(self.job_at(slot))!r} is completed, but what follows is not done", error)
        return 0

    cdef int c_follow_failed(self, uint32_t slot, str text, int64_t now_ms) except -1:
        try:
            self.c_after_failed(slot, text, now_ms)
        except Exception as error:
            self.c_fault(f"job {self.c_id(self.job_at(slot))!r} failed, but what follows is not done", error)
        return 0

    cdef int c_after_completed(self, uint32_t slot, int64_t now_ms) except -1:
        """A rare job is completed; its record is whole still. Layers above let follow what has to."""
        return 0

    cdef int c_after_failed(self, uint32_t slot, str error, int64_t now_ms) except -1:
        """A rare job failed for good, in the dead letters or about to be removed."""
        return 0

    cdef int c_before_forgotten(self, uint32_t slot) except -1:
        """A rare job is about to be removed, in whatever state; its record is whole still."""
        return 0

    cdef int c_link(self, uint32_t slot, int64_t now_ms) except -1:
        """A job with ties to others was admitted, and is staged still."""
        return 0

    cdef bint c_hold(self, uint32_t slot, Job *job) except -1:
        """Park a job that has to wait for others; False: it need not."""
        return False

    cdef int c_after_parked(self, uint32_t slot, int64_t now_ms) except -1:
        """A job waits for others from now on."""
        return 0

    cdef int c_after_revived(self, uint32_t slot) except -1:
        """A finished job with ties to others starts over."""
        return 0

    # --- what losing a holder means: see the layer above -------------------------------

    cdef int c_deadline(self, uint32_t slot, int64_t now_ms, int64_t now_ns) except -1:
        """The time of a delivery is over: its lease, its timeout, or its own bound of silence."""
        return 0

    cdef int c_end_dead(self, uint32_t slot, int64_t now_ms) except -1:
        """The time of a dead letter has come: to go, or to be retried."""
        return 0

    cdef bint c_may_restart(self, uint32_t slot, int64_t now_ms) except -1:
        """Whether a finished job may start over: not while another one holds its unique key."""
        return self.c_key_free(slot, now_ms)

    cdef int c_release(self, uint32_t slot, int64_t now_ms) except -1:
        """Give a delivery back, uncharged: its connection ended or its caller is gone."""
        cdef Job *job = self.job_at(slot)
        cdef Queue q = self.c_queue_of(job)
        self.c_leave_active(q, slot, job, self.run_at(job.run))
        self.c_timeline_add(job, "active", self.run_at(job.run).started_ms)
        return self.c_requeue(q, slot, job, now_ms, False)

    cdef int c_abandon(self, uint32_t slot, int64_t now_ms) except -1:
        """The holder of a delivery is gone in good order, or its connection is: nothing is charged."""
        return self.c_release(slot, now_ms)

    cdef int c_postpone(self, uint32_t slot, int64_t run_ms, int64_t now_ms) except -1:
        """Give a delivery back to be run at another time. Postponing is not failing: nothing is charged."""
        cdef Job *job = self.job_at(slot)
        cdef Queue q = self.c_queue_of(job)
        self.c_leave_active(q, slot, job, self.run_at(job.run))
        self.c_timeline_add(job, "active", self.run_at(job.run).started_ms)
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
        self.c_leave_dead(q, self.run_at(job.run))
        extra.pop("dlq", None)
        extra.pop("autoRetry", None)
        extra.pop("losses", None)
        if "ttl" in extra:
            extra["begun"] = True
        if job.flags & F_KEYED:
            self.c_retake_key(slot, job, now_ms)
        job.attempts = 0
        job.stalls = 0
        job.run_ms = now_ms
        if len(timeline) < limits.MAX_TIMELINE_ENTRIES:
            timeline.append({"state": "waiting", "timestamp": now_ms})
        slab_free(&self.runs, job.run)
        job.run = 0
        self.c_mark(slot, job)
        if self.c_event(q, EV_WAITING):
            self.c_emit(EV_WAITING, q, job, now_ms, "failed")
        if job.flags & F_LINKED:
            self.c_after_revived(slot)
        return self.c_enqueue(q, slot, job, now_ms)

    # --- control -------------------------------------------------------------------------

    cdef int c_discard(self, uint32_t slot, int64_t now_ms) except -1:
        """Dead-letter a queued or active job by request. No attempt is charged, no event told."""
        cdef Job *job = self.job_at(slot)
        cdef Queue q = self.c_queue_of(job)
        cdef Run *run = NULL
        if job.state == ACTIVE:
            run = self.run_at(job.run)
            self.c_leave_active(q, slot, job, run)
            self.c_timeline_add(job, "active", run.started_ms)
        else:
            # All that can fail comes before the first change.
            if not self.spare_run:
                self.spare_run = slab_alloc(&self.runs)
            self.c_reserve()
            if job.state == PARKED:
                self.c_take_parked(q, slot, job)
            else:
                self.c_unqueue(q, slot, job)
            job.run = self.spare_run
            self.spare_run = 0
            self.run_at(job.run).job = slot
            if job.extra != NULL:
                (<dict>job.extra).pop("lastToken", None)
        self.c_record(job, run, self.c_extra(job), "unknown", None, now_ms)
        return self.c_bury(q, slot, job, "unknown", None, now_ms)

    cdef int c_redo(self, uint32_t slot, int64_t now_ms) except -1:
        """A completed job starts over as if it had never run; its trace and its timeline stay."""
        cdef Job *job = self.job_at(slot)
        cdef Run *run = self.run_at(job.run)
        cdef Queue q = self.c_queue_of(job)
        cdef dict extra = self.c_extra(job)
        cdef list timeline = self.c_timeline(job, extra)
        timeline += [{"state": "active", "timestamp": run.started_ms},
                     {"state": "completed", "timestamp": run.finished_ms},
                     {"state": "waiting", "timestamp": now_ms}][:max(0, limits.MAX_TIMELINE_ENTRIES - len(timeline))]
        for key in ("progress", "progressMessage", "autoRetry", "losses"):
            extra.pop(key, None)
        if "ttl" in extra:
            extra["begun"] = True
        if job.flags & F_EVICTED:
            self.c_unarchive(slot, job)
        else:
            self.c_list_remove(&q.completed, run)
            self.c_forget_evidence(job)
        blob_free(run.result)
        slab_free(&self.runs, job.run)
        job.run = 0
        if job.flags & F_KEYED:
            self.c_retake_key(slot, job, now_ms)
        job.attempts = 0
        job.stalls = 0
        job.run_ms = now_ms
        self.c_mark(slot, job)
        if self.c_event(q, EV_WAITING):
            self.c_emit(EV_WAITING, q, job, now_ms, "completed")
        if job.flags & F_LINKED:
            self.c_after_revived(slot)
        return self.c_enqueue(q, slot, job, now_ms)

    cdef int c_reprioritise(self, uint32_t slot, double priority, int lifo, int64_t now_ms) except -1:
        """Give a queued job another place. ``lifo`` -1 leaves that as it is. O(log n)."""
        cdef Job *job = self.job_at(slot)
        cdef Queue q = self.c_queue_of(job)
        cdef bint ready = job.state == READY
        if job.first_state == READY and (priority > 0) != (job.priority > 0):
            self.c_timeline(job, self.c_extra(job))     # else the past would change with the priority
        self.c_reserve()
        if ready and job.flags & F_GROUPED:
            # In place: a change of urgency within the group is none of the round.
            q.lanes.c_reorder(self.c_group_of(q, job), job.delayed, <int64_t>priority, job.seq)
            q.n_prioritized += (priority > 0) - (job.priority > 0)
            self.c_unlist(q, L_PRIORITIZED if job.priority > 0 else L_WAITING, job)
            self.c_list(q, L_PRIORITIZED if priority > 0 else L_WAITING, slot, job)
            ready = False
        if ready:
            self.c_unqueue(q, slot, job)
        else:
            q.priorities.c_count(job.priority, -1)
            q.priorities.c_count(priority, 1)
        job.priority = priority
        if lifo == 0:
            job.flags &= ~<uint32_t>F_LIFO
        elif lifo > 0:
            job.flags |= F_LIFO
        self.c_mark(slot, job)
        if ready:
            # What was ready stays so, also if the wall clock was set back meanwhile.
            self.c_enqueue(q, slot, job, max(now_ms, job.run_ms))
        return 0

    cdef int c_replace_data(self, uint32_t slot, Blob *data) except -1:
        """Give a job other data, which pass to the engine."""
        cdef Job *job = self.job_at(slot)
        self.c_reserve()
        blob_free(job.data)
        job.data = data
        job.flags |= F_REWRITE
        return self.c_mark(slot, job)

    cdef int c_progress(self, uint32_t slot, object progress, object message, int64_t now_ms,
                        int64_t now_ns) except -1:
        """Note how far an active job has come; a sign of life as well. ``message`` None keeps the last one."""
        cdef Job *job = self.job_at(slot)
        cdef Queue q = self.c_queue_of(job)
        cdef dict extra = self.c_extra(job)
        extra["progress"] = progress
        if message is not None:
            extra["progressMessage"] = message
        self.c_beat(slot, self.run_at(job.run), now_ms, now_ns)
        if self.c_event(q, EV_PROGRESS):
            self.c_emit(EV_PROGRESS, q, job, now_ms, (progress, extra.get("progressMessage")))
        return self.c_mark(slot, job)

    cdef Py_ssize_t c_drain(self, Queue q) except -1:
        """Remove every queued job of a queue; how many."""
        cdef Py_ssize_t n = q.ready.n + q.delayed.n
        cdef Key key
        cdef int64_t due
        cdef uint32_t slot
        cdef Group g
        while q.ready.c_first(&key, &slot):
            self.c_forget(slot)
        if q.lanes is not None:
            n += q.lanes.n_ready
            for g in list(q.lanes.by_name.values()):
                while g.ready.c_first(&due, &slot):
                    self.c_forget(slot)
        while q.delayed.c_first(&due, &slot):
            self.c_forget(slot)
        return n

    cdef Py_ssize_t c_purge(self, Queue q, Py_ssize_t kept) except -1:
        """Remove the oldest dead letters of a queue but the newest ``kept``; how many."""
        cdef Py_ssize_t n = 0
        while q.failed.n > kept:
            self.c_forget(self.run_at(q.failed.head).job)
            n += 1
        return n

    cdef int c_obliterate(self, Queue q) except -1:
        """Remove every job of a queue in every state and all that was set for it.

        Rows that only the store has are known by number: their number is not above the
        queue's floor, and they are dropped when the store is next read. Jobs whose durable
        add is still to be committed come after the removal, and stay.
        """
        cdef uint32_t slot, at
        cdef Job *job
        self.c_drain(q)
        self.c_purge(q, 0)
        while q.active.n:
            self.c_forget(self.run_at(q.active.head).job)
        while q.completed.n:
            self.c_forget(self.run_at(q.completed.head).job)
        for slot in list(q.parked):
            if slot in q.parked:
                self.c_forget(slot)
        at = 0
        while at < self.n_leaving:
            if self.job_at(self.leaving[at]).queue == q.index:
                self.c_forget(self.leaving[at])     # another takes its place
            else:
                at += 1
        if q.n_archived:
            self.n_archived -= q.n_archived
            q.n_archived = 0
            q.far_until_ms = INT64_MIN
            q.far_most = q.far_most_due = -1
            q.floor_seq = self.seq
            if q.n_staged:
                for slot in range(1, self.jobs.fresh):
                    job = self.job_at(slot)
                    if job.state == STAGED and job.queue == q.index and job.seq <= q.floor_seq:
                        q.floor_seq = job.seq - 1
        self.c_end_evidence(q)
        self.c_clear_counts(q)
        for number in list(q.kept.values()):
            self.c_drop_kept(number)
        q.paused = False
        q.concurrency = -1
        q.rate = None
        q.limited = False
        self.c_reset_groups(q)
        q.dlq_settings.clear()
        q.stall_settings.clear()
        return self.c_configure(q, {}, {})

    cdef int c_configure(self, Queue q, dict dead, dict stalls) except -1:
        """Change settings of a queue. Dead letters that are there keep their time, not their number."""
        cdef uint32_t at = q.active.head
        cdef Run *run
        q.dlq_settings.update(dead)
        q.stall_settings.update(stalls)
        q.c_apply_settings()
        while at:
            run = self.run_at(at)
            at = run.next
            if run.stall_ns:
                self.c_arm(run.job, run)
            self.c_watch(q, run)
        self.c_purge(q, q.dlq_max_entries)
        self.c_mark_queue(q)
        return 0

    cdef int64_t c_leases_over(self, int64_t now_ns) noexcept:
        """For how many nanoseconds a lease, a timeout or a sign of life has been waiting to be judged. O(1)."""
        cdef int64_t due, over = 0
        cdef uint32_t item
        if self.deadlines.c_first(&due, &item):
            over = max(over, now_ns - due)
        if self.checks.c_first(&due, &item):
            over = max(over, now_ns - due)
        return over

    cdef int64_t c_next_due(self, int64_t now_ms, int64_t past_ns, int64_t now_ns) except? -2:
        """Nanoseconds until something is due; -1 when nothing ever is. O(1).

        The wall clock is ``past_ns`` beyond its whole millisecond.
        """
        cdef int64_t due, left = self.c_next_more(now_ms, past_ns, now_ns), other
        cdef uint32_t item
        if self.due.c_first(&due, &item):
            other = c_until(due, now_ms, past_ns)
            if left < 0 or other < left:
                left = other
        if self.lives.c_first(&due, &item):
            other = c_until(due, now_ms, past_ns)
            if left < 0 or other < left:
                left = other
        if self.deadlines.c_first(&due, &item):
            other = max(0, due - now_ns)
            if left < 0 or other < left:
                left = other
        if self.checks.c_first(&due, &item):
            other = max(0, due - now_ns)
            if left < 0 or other < left:
                left = other
        if self.expiries.c_first(&due, &item):
            other = c_until(due, now_ms, past_ns)
            if left < 0 or other < left:
                left = other
        if self.key_ends.c_first(&due, &item):
            other = c_until(due, now_ms, past_ns)
            if left < 0 or other < left:
                left = other
        return left
