"""What may start now: the limits of queues and of groups.

Counts of active jobs are never kept here: a queue's is the length of its list of active
jobs, and a group's changes with that list only. See :mod:`~qcore.engine.bucket` for the
rate of a queue and :mod:`~qcore.engine.lanes` for the groups.
"""

from libc.stdint cimport int64_t, uint32_t

from qcore.engine.bucket cimport TokenBucket
from qcore.engine.job cimport ACTIVE, DELAYED, F_GROUPED, MAX_SPAN_MS, READY, STAGED, Job
from qcore.engine.keys cimport Keys
from qcore.engine.lanes cimport Group, Lanes, Wanted
from qcore.engine.queue cimport Queue

from qcore.errors import LimitError

cdef int64_t TIDY_NS = 1_000_000_000    # nobody waits for it: so much later, and many at once


cdef class Capacity(Keys):
    """:class:`~qcore.engine.keys.Keys` with limits on what starts."""

    # --- limits of a queue -------------------------------------------------------------

    cdef bint c_has_room(self, Queue q, int64_t now_ns) except? 0:
        """May a limited queue start one more job? Takes nothing."""
        if q.rate is not None and q.rate.ends_ns and now_ns >= q.rate.ends_ns:
            self.c_end_rate(q)
        if q.concurrency >= 0 and <int64_t>q.active.n >= q.concurrency:
            return False
        return q.rate is None or q.rate.c_wait(now_ns) == 0

    cdef int c_end_rate(self, Queue q) except -1:
        q.rate = None
        q.limited = q.concurrency >= 0
        self.c_mark_queue(q)
        return 0

    def set_concurrency(self, str queue not None, object limit):
        """Let at most ``limit`` jobs of a queue be active, None any number. Those that are active count."""
        cdef Queue q
        if limit is None and queue not in self.queues:
            return
        q = self.c_queue(queue)
        q.concurrency = -1 if limit is None else min(max(0, int(limit)), 2**53)
        q.limited = q.concurrency >= 0 or q.rate is not None
        self.c_mark_queue(q)
        if q.n_waits:
            self.c_wake(q)

    def set_rate(self, str queue not None, object limit, int64_t now_ms, int64_t now_ns, *, object duration_ms=1000,
                 object ttl_ms=0):
        """Let at most ``limit`` jobs of a queue start in ``duration_ms``, None any number.

        A token bucket: a burst of ``limit``, then steadily. Of a fraction the whole part counts;
        0 starts none. Tokens that were spent under an earlier limit stay spent. With ``ttl_ms``
        the limit is gone after that time.
        """
        cdef Queue q
        cdef int64_t most, span_ms
        cdef double used = 0
        if limit is None and queue not in self.queues:
            return
        q = self.c_queue(queue)
        if limit is None:
            if q.rate is not None:
                self.c_end_rate(q)
        else:
            most = min(max(0, int(limit)), 2**53)
            span_ms = min(max(1, int(duration_ms)), MAX_SPAN_MS)
            if q.rate is not None and not (q.rate.ends_ns and now_ns >= q.rate.ends_ns):
                used = q.rate.used(now_ns)
            q.rate = TokenBucket(most, span_ms, now_ms, now_ns, ttl_ms=min(max(0, int(ttl_ms)), MAX_SPAN_MS),
                                 debt_ns=min(used, <double>most) * (span_ms * 1e6) / most if most else 0)
            q.limited = True
            self.c_mark_queue(q)
        if q.n_waits:
            self.c_wake(q)

    def queue_limits(self, str queue not None, int64_t now_ns, *, object max_jobs=None):
        """What is set for a queue: rate (max, duration in ms) or None, its wait in ms, concurrency or None, maxed.

        The wait: -2 without a rate limit; of a temporary one the time that it still stands; else 0
        while fewer than ``max_jobs`` tokens (None: all) are taken, or the time until the next.
        """
        cdef Queue q = self.queues.get(queue)
        cdef int64_t wait
        if q is None:
            return (None, -2, None, False)
        if q.rate is not None and q.rate.ends_ns and now_ns >= q.rate.ends_ns:
            self.c_end_rate(q)
        maxed = q.concurrency >= 0 and <int64_t>q.active.n >= q.concurrency
        concurrency = None if q.concurrency < 0 else q.concurrency
        if q.rate is None:
            return (None, -2, concurrency, maxed)
        if q.rate.ends_ns:
            wait = q.rate.ends_ns - now_ns
        elif max_jobs is not None and q.rate.used(now_ns) < max_jobs:
            wait = 0
        else:
            wait = q.rate.c_wait(now_ns)
        # Rounded up: who asks again that much later finds it so. 0 tokens: a whole span says "not soon".
        wait = q.rate.span_ms if wait < 0 else (wait + 999_999) // 1_000_000
        return ((q.rate.most, q.rate.span_ms), wait, concurrency, maxed)

    # --- time ------------------------------------------------------------------------------

    cdef int c_set_check(self, Queue q, int64_t at_ns) except -1:
        """Look at a queue at that time, or earlier if that is set already."""
        if not q.check:
            q.check = self.checks.c_push(at_ns, q.index, q.index)
        elif at_ns < self.checks.c_due(q.check):
            self.checks.c_change(q.check, at_ns, q.index)
        return 0

    cdef int c_expect(self, Queue q, int64_t now_ns) except -1:
        """Have the queue looked at when time alone may let a waiting pull be served, or something be forgotten."""
        cdef int64_t at
        cdef uint32_t index
        if q.n_waits and q.rate is not None and not q.paused:
            if q.rate.ends_ns:
                self.c_set_check(q, q.rate.ends_ns)
            at = q.rate.c_wait(now_ns)
            if at > 0:
                self.c_set_check(q, now_ns + at)
        if q.lanes is not None and q.lanes.times.c_first(&at, &index):
            self.c_set_check(q, at if q.n_waits else at + TIDY_NS)
        return 0

    # --- jobs of groups -------------------------------------------------------------------

    cdef Lanes c_lane(self, Queue q, Job *job):
        if q.lanes is None:
            q.lanes = Lanes(q.index + 1)
        return q.lanes

    cdef Group c_group_of(self, Queue q, Job *job):
        """The group of a grouped job, created by first use."""
        return self.c_lane(q, job).c_group(<str>(<dict>job.extra)["groupId"])

    cdef int c_group_delay(self, Queue q, Job *job, int change) except -1:
        """A job of a group begins (1) or ceases (-1) to be delayed."""
        cdef Group g = self.c_group_of(q, job)
        g.n_delayed += change
        q.lanes.n_delayed += change
        return q.lanes.c_drop_idle(g) if change < 0 else 0

    cdef int c_group_stage(self, Queue q, Job *job, int change) except -1:
        """A durable add of a group begins (1) or ceases (-1) to wait for its commit."""
        cdef Group g = self.c_group_of(q, job)
        g.n_staged += change
        return q.lanes.c_drop_idle(g) if change < 0 else 0

    cdef int c_take_turn(self, Queue q, Job *job, Wanted wanted, int64_t now_ns) except -1:
        """A pull takes the first job of a group."""
        cdef Group g = self.c_group_of(q, job)
        q.lanes.c_remove(g, job.delayed)
        job.delayed = 0
        q.lanes.c_start(g, wanted, now_ns)
        if q.lanes.times.n:
            self.c_expect(q, now_ns)
        return 0

    cdef int c_take_plain_turn(self, Queue q) except -1:
        """A pull that gives the ungrouped jobs a turn took one of them."""
        if q.lanes is not None:
            q.lanes.turns += 1
            q.lanes.plain_turn = q.lanes.turns
        return 0

    cdef int c_leave_group(self, Queue q, Job *job) except -1:
        """A job of a group has left the active state."""
        cdef Group g = self.c_group_of(q, job)
        q.lanes.c_leave(g)
        return q.lanes.c_drop_idle(g)

    cdef int c_expire_groups(self, Queue q, int64_t now_ns) except -1:
        """End the blocks and windows whose time has come."""
        cdef Group g
        if q.lanes is None or q.lanes.times.n == 0:
            return 0
        while True:
            g = q.lanes.c_ended(now_ns)
            if g is None:
                return 0
            if g.blocked_ms and not g.blocked_ns:
                g.blocked_ms = 0
                self.c_note_group(q, g)
            q.lanes.c_drop_idle(g)

    cdef int c_note_group(self, Queue q, Group g) except -1:
        """The settings of a group changed: have them written."""
        return self.c_side("lanes", f"{q.index}:{g.name}", g.settings)

    cdef int c_reset_groups(self, Queue q) except -1:
        """Forget what is set for the groups of a queue, and their windows."""
        cdef Group g
        if q.lanes is None:
            return 0
        for g in list(q.lanes.by_name.values()):
            if g.c_has_settings():
                g.paused = False
                g.concurrency = g.rate_max = g.rate_ms = 0
                g.blocked_ns = g.blocked_ms = 0
                self.c_note_group(q, g)
            g.window_end_ns = 0
            self.c_changed_group(q, g)
        return 0

    # --- settings of groups -----------------------------------------------------------------

    cdef int c_changed_group(self, Queue q, Group g) except -1:
        """After a change of what is set for a group."""
        q.lanes.c_set_timer(g)
        q.lanes.c_touch(g)
        q.lanes.c_drop_idle(g)
        if q.n_waits:
            self.c_wake(q)
        return 0

    cdef Group c_known_group(self, str queue, str group):
        cdef Queue q = self.queues.get(queue)
        return None if q is None or q.lanes is None else q.lanes.c_find(group)

    def group(self, str queue not None, str group not None):
        """A group that has jobs, settings or an open window; else None."""
        return self.c_known_group(queue, group)

    def group_names(self, str queue not None):
        """Names of the groups of a queue that have jobs, settings or an open window."""
        cdef Queue q = self.queues.get(queue)
        return [] if q is None or q.lanes is None else q.lanes.names()

    def pause_group(self, str queue not None, str group not None, bint paused=True):
        """Pause or resume a group; False when it was so already."""
        cdef Queue q
        cdef Group g = self.c_known_group(queue, group)
        if paused == (g is not None and g.paused):
            return False
        q = self.c_queue(queue)
        g = self.c_lane(q, NULL).c_group(group)
        g.paused = paused
        self.c_note_group(q, g)
        self.c_changed_group(q, g)
        return True

    def set_group_concurrency(self, str queue not None, str group not None, object limit):
        """Set how many jobs of a group may be active, for pulls that bring such a limit; None removes that.

        False when there was nothing to remove.
        """
        cdef Queue q
        cdef Group g = self.c_known_group(queue, group)
        if limit is None and (g is None or g.concurrency == 0):
            return False
        q = self.c_queue(queue)
        g = self.c_lane(q, NULL).c_group(group)
        g.concurrency = 0 if limit is None else limit
        self.c_note_group(q, g)
        self.c_changed_group(q, g)
        return True

    def set_group_rate(self, str queue not None, str group not None, object limit, object duration_ms=0):
        """Set how many jobs of a group may start in a window, for pulls that bring such a limit; None removes that.

        The open window is dropped. False when there was nothing to remove.
        """
        cdef Queue q
        cdef Group g = self.c_known_group(queue, group)
        if limit is None and (g is None or g.rate_max == 0):
            return False
        q = self.c_queue(queue)
        g = self.c_lane(q, NULL).c_group(group)
        g.rate_max = 0 if limit is None else limit
        g.rate_ms = 0 if limit is None else duration_ms
        g.window_end_ns = 0
        self.c_note_group(q, g)
        self.c_changed_group(q, g)
        return True

    def block_group(self, str queue not None, str group not None, int64_t duration_ms, int64_t now_ms, int64_t now_ns):
        """Let nothing of a group start for ``duration_ms``, whatever pulls bring along."""
        cdef Queue q = self.c_queue(queue)
        cdef Group g
        self.c_expire_groups(q, now_ns)
        g = self.c_lane(q, NULL).c_group(group)
        g.blocked_span_ms = min(duration_ms, MAX_SPAN_MS)
        g.blocked_ms = now_ms + g.blocked_span_ms
        g.blocked_ns = now_ns + g.blocked_span_ms * 1_000_000
        self.c_note_group(q, g)
        self.c_changed_group(q, g)
        self.c_expect(q, now_ns)

    def group_wait_ms(self, str queue not None, str group not None, int64_t now_ns, *, object max_jobs=None):
        """Time until a block or an exhausted window of a group ends; 0 when it is not exhausted, -2 without either.

        ``max_jobs`` is what counts as exhausted, None the limit of the window.
        """
        cdef Group g = self.c_known_group(queue, group)
        if g is None:
            return -2
        if g.blocked_ns > now_ns:
            return (g.blocked_ns - now_ns + 999_999) // 1_000_000
        if g.window_end_ns <= now_ns:
            return -2
        if g.window_count < (g.window_max if max_jobs is None else max_jobs):
            return 0
        return (g.window_end_ns - now_ns + 999_999) // 1_000_000

    def demand_group_room(self, str queue not None, list adds not None):
        """Raise unless the groups of a queue have room for all of ``adds``: (group, most or None) of each new job.

        Waiting, prioritized and delayed jobs count, and those whose durable add is not committed yet.

        :raises LimitError: a group would be larger than one of its new jobs permits
        """
        cdef dict sizes = {}
        cdef Group g
        for group, most in adds:
            if group not in sizes:
                g = self.c_known_group(queue, group)
                sizes[group] = 0 if g is None else g.ready.n + g.n_delayed + g.n_staged
            sizes[group] += 1
            if most is not None and sizes[group] > most:
                raise LimitError(f"Group {group} has reached its maximum size of {most}")

    def restore_group(self, int64_t queue, str group not None, dict settings not None, int64_t now_ms, int64_t now_ns):
        """Bring back what was set for a group. A block ends when it would have ended, at the latest after its span."""
        cdef Queue q
        cdef Group g
        cdef int64_t concurrency = settings.get("concurrency", 0), most = settings.get("max", 0)
        cdef int64_t until, span, left, span_ms = settings.get("duration", 0)
        cdef bint paused = settings.get("paused", False)
        until, span = settings.get("blocked", (0, 0))
        q = self.c_queue_at(queue)
        if q is None:
            raise LookupError(f"no queue {queue}")
        g = self.c_lane(q, NULL).c_group(group)
        g.paused = paused
        g.concurrency = concurrency
        if most > 0 and span_ms > 0:
            g.rate_max = most
            g.rate_ms = span_ms
        left = min(until - now_ms, span)
        if left > 0:
            g.blocked_ms, g.blocked_span_ms = now_ms + left, left
            g.blocked_ns = now_ns + left * 1_000_000
        elif until:
            self.c_note_group(q, g)
        self.c_changed_group(q, g)
        self.c_expect(q, now_ns)

    cdef c_check_capacity(self):
        """Every invariant of limits and groups, O(n)."""
        cdef Queue q
        cdef Group g
        cdef uint32_t slot
        cdef Job *job
        cdef int64_t priority
        cdef Py_ssize_t i
        cdef dict counts = {}
        for slot in range(1, self.jobs.fresh):
            job = self.job_at(slot)
            if job.state == 0:
                continue
            assert ((job.flags & F_GROUPED) != 0) == (job.extra != NULL and "groupId" in <dict>job.extra)
            if job.flags & F_GROUPED and job.state in (READY, DELAYED, ACTIVE, STAGED):
                at = (job.queue, (<dict>job.extra)["groupId"])
                counts.setdefault(at, {READY: 0, DELAYED: 0, ACTIVE: 0, STAGED: 0})[job.state] += 1
        for q in self.queues.values():
            assert q.limited == (q.concurrency >= 0 or q.rate is not None)
            assert q.concurrency >= -1
            if q.check:
                assert self.checks.c_has(q.check)
            if q.lanes is None:
                continue
            q.lanes._check()
            assert q.lanes.times.n == 0 or q.check, f"queue {q.name}: nobody looks when a block or window ends"
            for g in q.lanes.by_name.values():
                mine = counts.pop((q.index, g.name), {READY: 0, DELAYED: 0, ACTIVE: 0, STAGED: 0})
                assert (g.ready.n, g.n_delayed, g.n_active, g.n_staged) == \
                    (mine[READY], mine[DELAYED], mine[ACTIVE], mine[STAGED]), f"group {g.name}: {mine}"
                for i in range(g.ready.n):
                    slot = g.ready.c_at(i, &priority)
                    job = self.job_at(slot)
                    assert job.state == READY and g.ready.c_has(job.delayed)
                    assert priority == <int64_t>job.priority
        assert not counts, f"groups that are not known: {counts}"
