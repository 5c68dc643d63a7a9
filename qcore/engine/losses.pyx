"""Deliveries that time ends, and dead letters.

A delivery is lost when its lease runs out, when its holder is silent for too long, when
the connection that it was delivered to ends, or when the process that ran it did. What
follows is one decision, here; so is what becomes of dead letters in time.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from qcore.engine.job cimport ACTIVE, COMPLETED, DELAYED, FAILED, PARKED, READY, Job, Run
from qcore.engine.queue cimport Queue
from qcore.engine.table cimport EV_FAILED, EV_STALLED
from qcore.engine.transitions cimport Transitions, dead_due

from qcore import limits


cdef class Losses(Transitions):
    """:class:`~qcore.engine.transitions.Transitions` with losses and dead letters."""

    cdef int c_lost(self, uint32_t slot, str error, str dead_error, str stalled_error, int64_t now_ms,
                    int how=AT_ONCE) except -1:
        """The holder of a delivery is gone: charge an attempt and a stall; requeue or dead-letter."""
        cdef Job *job = self.job_at(slot)
        cdef Run *run = self.run_at(job.run)
        cdef Queue q = self.c_queue_of(job)
        cdef dict extra = self.c_extra(job)
        cdef uint64_t hi = run.token_hi, lo = run.token_lo
        cdef str reason = None
        cdef int64_t stalls = job.stalls + (job.stalls < 0xFFFF), wait_ms = 0
        if job.attempts + 1 >= job.max_attempts:
            reason, error = "max_attempts_exceeded", dead_error
        elif q.max_stalls and stalls + <int64_t>extra.get("losses", 0) >= q.max_stalls:
            reason, error = "stalled", stalled_error
        if reason is None and how == AFTER_BACKOFF:
            wait_ms = self.c_backoff(job, extra, job.attempts + 1)      # what can fail comes before the first change
        self.c_leave_active(q, slot, job, run)
        job.attempts += 1
        job.stalls = stalls
        self.c_history(job, run, extra, reason or "stalled", error, now_ms)
        if self.c_event(q, EV_STALLED):
            self.c_emit(EV_STALLED, q, job, now_ms,
                        (job.stalls, "move_to_dlq") if reason is not None
                        else (job.stalls, "retry") if how == AFTER_BACKOFF else None)
        if reason is not None:
            if hi:
                self.c_finalise(hi, lo, reason)
            if self.c_event(q, EV_FAILED):
                # As recorded, nothing is said about an end when a lease ran out; one means the other.
                self.c_emit(EV_FAILED, q, job, now_ms, (error, True) if how == AFTER_BACKOFF else (error,))
            return self.c_bury(q, slot, job, reason, error, now_ms)
        # Until somebody else gets the job, its old holder may still report the work as done.
        extra["lastToken"] = (hi, lo)
        if how == AFTER_BACKOFF:
            job.run_ms = now_ms + wait_ms
        self.c_note_retry(job, extra, now_ms)
        return self.c_requeue(q, slot, job, now_ms, how == AFTER_BACKOFF)

    cdef int c_cut_off(self, uint32_t slot, int64_t now_ms) except -1:
        """The connection of a delivery ended before it was ever renewed: give the job back, uncharged.

        That is not endless: each time counts towards the limit of stalls, and the one that
        reaches it is charged as a stall. So a job that kills its workers ends.
        """
        cdef Job *job = self.job_at(slot)
        cdef Queue q = self.c_queue_of(job)
        cdef dict extra = self.c_extra(job)
        cdef int64_t losses = <int64_t>extra.get("losses", 0) + 1
        if q.max_stalls and job.stalls + losses >= q.max_stalls:
            return self.c_lost(slot, "Connection lost",
                               f"Connection lost at max attempts ({job.attempts + 1})",
                               f"Connection lost {losses} times", now_ms)
        extra["losses"] = losses
        return self.c_release(slot, now_ms)

    cdef int c_stalled(self, uint32_t slot, int64_t now_ms) except -1:
        """The holder of a delivery was silent for too long."""
        cdef Job *job = self.job_at(slot)
        return self.c_lost(slot, "Job stalled", f"Job stalled at max attempts ({job.attempts + 1})",
                           f"Job stalled {job.stalls + 1} times", now_ms, AFTER_BACKOFF)

    # --- time ------------------------------------------------------------------------

    cdef int c_deadline(self, uint32_t slot, int64_t now_ms, int64_t now_ns) except -1:
        cdef Job *job = self.job_at(slot)
        cdef Run *run = self.run_at(job.run)
        cdef uint32_t renewals = run.renewals
        if run.timeout_ns and run.timeout_ns <= now_ns:
            if run.token_hi:
                self.c_finalise(run.token_hi, run.token_lo, "timeout")
            return self.c_fail(slot, "Job timeout exceeded", None, "timeout", False, False, now_ms)
        if run.expires_ns and run.expires_ns <= now_ns:
            return self.c_lost(slot, "Lock expired", f"Lock expired at max attempts ({job.attempts + 1})",
                               f"Lock expired after {renewals} renewals", now_ms)
        return self.c_stalled(slot, now_ms)

    cdef int c_check_queue(self, Queue q, int64_t now_ms, int64_t now_ns) except -1:
        Transitions.c_check_queue(self, q, now_ms, now_ns)
        if q.stall_at_ns and q.stall_at_ns <= now_ns:
            self.c_find_stalled(q, now_ms, now_ns)
        if q.stall_at_ns:
            self.c_set_check(q, q.stall_at_ns)
        return 0

    cdef int c_find_stalled(self, Queue q, int64_t now_ms, int64_t now_ns) except -1:
        """End the deliveries whose holders are silent, and set the time of the next look. O(active).

        The next look is at the earliest time at which one may stall, and not within the
        interval again or a second: so plain deliveries cost one look in a stall interval.
        """
        cdef uint32_t at = q.active.head, slot
        cdef Run *run
        cdef int64_t due, earliest = 0, delivery, pause_ns
        cdef list silent = []
        while at:
            run = self.run_at(at)
            at = run.next
            if not self.c_is_watched(q, run):
                continue
            due = run.quiet_ns + q.stall_ns
            if due <= now_ns:
                silent.append((run.job, run.number))
            elif earliest == 0 or due < earliest:
                earliest = due
        pause_ns = min(q.stall_ns, <int64_t>limits.STALL_CHECK_MS * 1000000)
        q.stall_at_ns = max(earliest, now_ns + pause_ns) if earliest else 0
        for slot, delivery in silent:
            # What follows from one may have ended another.
            if self.job_at(slot).state == ACTIVE and self.run_at(self.job_at(slot).run).number == delivery:
                try:
                    self.c_stalled(slot, now_ms)
                except Exception as error:
                    self.c_fault("a silent delivery was looked at again later", error)
                    q.stall_at_ns = now_ns + pause_ns
        return 0

    # --- dead letters ------------------------------------------------------------------

    cdef int c_end_dead(self, uint32_t slot, int64_t now_ms) except -1:
        cdef Job *job = self.job_at(slot)
        cdef Run *run = self.run_at(job.run)
        cdef Queue q = self.c_queue_of(job)
        cdef dict letter = (<dict>job.extra)["dlq"], chain
        cdef int64_t count
        if letter["expiresAt"] is not None and letter["expiresAt"] <= now_ms:
            return self.c_forget(slot)
        if not self.c_may_restart(slot, now_ms):
            self.expiries.c_remove(run.deadline)
            run.deadline = 0
            letter["nextRetryAt"] = now_ms + max(1, q.dlq_retry_ms)
            self.c_set_dead_end(slot, job, run)
            return self.c_mark(slot, job)
        count = letter["retryCount"] + 1
        chain = {
            "retryCount": count,
            "lastRetryAt": now_ms,
            "nextRetryAt": min(now_ms + float(q.dlq_retry_ms) * 2.0 ** min(count - 1, 64), limits.MAX_TIME_MS),
            "expiresAt": letter["expiresAt"],
            "enteredAt": letter.get("enteredAt", run.finished_ms),
        }
        chain["nextRetryAt"] = int(chain["nextRetryAt"])
        self.c_revive(slot, now_ms)
        (<dict>job.extra)["autoRetry"] = chain
        return 0

    cdef list c_choose_dead(self, Queue q, dict wanted, int64_t now_ms, Py_ssize_t offset, Py_ssize_t limit):
        """Slots of the dead letters that a selection takes, oldest entry first; ``limit`` -1 = all. O(entries)."""
        cdef uint32_t at = q.failed.head
        cdef Run *run
        cdef dict letter
        cdef list slots = []
        cdef object reason = wanted.get("reason"), older = wanted.get("olderThan"), newer = wanted.get("newerThan")
        cdef object retriable = wanted.get("retriable"), expired = wanted.get("expired"), entered
        while at and limit != 0:
            run = self.run_at(at)
            at = run.next
            letter = (<dict>self.job_at(run.job).extra)["dlq"]
            entered = letter.get("enteredAt", run.finished_ms)
            if reason is not None and letter["reason"] != reason:
                continue
            if older is not None and entered >= older:
                continue
            if newer is not None and entered <= newer:
                continue
            if retriable is not None and bool(retriable) != (letter["nextRetryAt"] is not None):
                continue
            if expired is not None and bool(expired) != (
                    letter["expiresAt"] is not None and letter["expiresAt"] <= now_ms):
                continue
            if offset > 0:
                offset -= 1
                continue
            slots.append(run.job)
            limit -= 1
        return slots

    def choose_dead(self, str queue not None, int64_t now_ms, *, dict wanted=None, Py_ssize_t offset=0,
                    Py_ssize_t limit=-1):
        """Ids of dead letters of a queue, oldest first: those that ``wanted`` selects.

        Its keys: ``reason``, ``olderThan``, ``newerThan`` (entry time in ms), ``retriable`` (a
        retry by itself is to come), ``expired``. O(entries), none is copied.
        """
        cdef Queue q = self.queues.get(queue)
        cdef uint32_t slot
        if q is None:
            return []
        return [self.c_id(self.job_at(slot)) for slot in self.c_choose_dead(q, wanted or {}, now_ms, offset, limit)]

    def dead_letter_stats(self, str queue not None, int64_t now_ms):
        """Numbers of the dead letters of a queue: total, by reason, with a retry to come, expired, oldest, newest."""
        cdef Queue q = self.queues.get(queue)
        cdef uint32_t at = 0 if q is None else q.failed.head
        cdef Run *run
        cdef dict letter, reasons = {}
        cdef Py_ssize_t pending = 0, expired = 0
        cdef object oldest = None, newest = None, entered
        while at:
            run = self.run_at(at)
            at = run.next
            letter = (<dict>self.job_at(run.job).extra)["dlq"]
            reasons[letter["reason"]] = reasons.get(letter["reason"], 0) + 1
            pending += letter["nextRetryAt"] is not None
            expired += letter["expiresAt"] is not None and letter["expiresAt"] <= now_ms
            entered = letter.get("enteredAt", run.finished_ms)
            if oldest is None or entered < oldest:
                oldest = entered
            if newest is None or entered > newest:
                newest = entered
        return {"total": 0 if q is None else q.failed.n, "reasons": reasons, "pending": pending, "expired": expired,
                "oldest": oldest, "newest": newest}

    # --- check ---------------------------------------------------------------------------

    cdef c_check_losses(self):
        """The invariants of what time ends; O(n)."""
        cdef uint32_t slot
        cdef Job *job
        cdef Run *run
        cdef Queue q
        cdef Py_ssize_t n_lives = 0, n_expiries = 0
        for slot in range(1, self.jobs.fresh):
            job = self.job_at(slot)
            if job.state in (READY, DELAYED, PARKED):
                assert (slot in self.living) == (job.extra != NULL and (<dict>job.extra).get("ttl") is not None
                                                 and "begun" not in <dict>job.extra)
                n_lives += slot in self.living
            else:
                assert slot not in self.living, f"slot {slot}: state {job.state}, lives"
            if job.state == ACTIVE:
                run = self.run_at(job.run)
                q = self.c_queue_of(job)
                assert (run.token_hi != 0) == (run.expires_ns != 0)
                assert (run.deadline != 0) == (run.expires_ns != 0 or run.timeout_ns != 0
                                               or (run.stall_ns != 0 and q.stalls_on))
                if self.c_is_watched(q, run):
                    # Looked for in time: when it may be stalled, or at the latest a pause later.
                    assert q.stall_at_ns and q.check and self.checks.c_due(q.check) <= q.stall_at_ns
                    assert q.stall_at_ns <= run.quiet_ns + q.stall_ns + limits.STALL_CHECK_MS * 1000000
            elif job.state == COMPLETED:
                assert self.run_at(job.run).deadline == 0
            elif job.state == FAILED:
                run = self.run_at(job.run)
                due_ms = dead_due((<dict>job.extra)["dlq"])
                assert (run.deadline != 0) == (due_ms is not None)
                assert not run.deadline or self.expiries.c_due(run.deadline) == due_ms
                n_expiries += run.deadline != 0
        assert n_lives == len(self.living) == self.lives.n
        assert n_expiries == self.expiries.n
        self.lives._check()
        self.expiries._check()
        self.checks._check()
