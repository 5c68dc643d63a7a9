"""Queues that nobody uses any more.

A queue is made by first use, and costs memory and a row for as long as it is known. One that
nothing is left of and that nobody has used for a while is forgotten: its record, its row and
its minutes. What was counted of it in all is kept for when the name comes back, which it does
under another index, because rows and evidence of what has passed may still bear the old one.

Nothing is noted when a queue becomes empty, so that jobs pay nothing for this: its host has
all queues looked at from time to time, some in each step.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from qcore.engine.queue cimport Queue
from qcore.engine.schedules cimport Schedules
from qcore.engine.table cimport QueuePage

from qcore import limits
from qcore.engine.queue import DLQ_DEFAULTS

cdef int64_t IDLE_NS = limits.QUEUE_IDLE_MS * 1_000_000


cdef class Idle(Schedules):
    """:class:`~qcore.engine.schedules.Schedules` with the end of queues."""

    cdef bint c_is_empty(self, Queue q, int64_t now_ns) except -1:
        """Whether nothing of a queue is left but what was counted of it. O(1)."""
        if (q.ready.n or q.delayed.n or q.active.n or q.completed.n or q.failed.n or q.n_archived or q.parked
                or q.n_staged or q.n_hidden or q.n_waits or q.keys or q.kept):
            return False
        if q.rate is not None and q.rate.ends_ns and now_ns >= q.rate.ends_ns:
            self.c_end_rate(q)
        if q.paused or q.limited or q.stall_settings or (q.dlq_settings and q.dlq_config != DLQ_DEFAULTS):
            return False
        if q.lanes is not None:
            self.c_expire_groups(q, now_ns)
            if q.lanes.by_name:
                return False
        if q.floor_seq or (q.journal is not None and q.n_events):
            return False        # rows of it are in the store: obliterated ones, or events to be read
        return not (q.name in self.wanted or q.name in self.scheduled or self.workers.c_knows(q.name))

    cdef int c_forget_idle(self, int64_t now_ns) except -1:
        """Take the next step of a look at all queues. 1 if more steps are to follow."""
        cdef Queue q
        cdef QueuePage *page
        cdef uint64_t at = max(1, self.looking)
        cdef int64_t left = limits.QUEUE_LOOK_STEPS
        if self.holds:
            return 0            # somebody reads the archive of a queue, between other commands
        while at <= self.last_queue:
            if left <= 0:
                self.looking = <uint32_t>at
                return 1
            left -= 1
            page = self.queue_pages[at >> 8] if at >> 8 < self.n_queue_pages else NULL
            if page == NULL:
                at = ((at >> 8) + 1) << 8
                continue
            if page.at[at & 255] == NULL:
                at += 1
                continue
            q = <Queue>page.at[at & 255]
            at += 1
            if not self.c_is_empty(q, now_ns):
                q.idle_ns = -1
            elif q.used or q.idle_ns < 0:
                q.idle_ns = now_ns
            elif now_ns - q.idle_ns >= IDLE_NS:
                left -= q.completions.n_closed + q.failures.n_closed    # as many rows go
                self.c_drop_queue(q)
            q.used = False
        self.looking = 0
        return 0

    def forget_idle(self, int64_t now_ns):
        """Look at the next queues: those that are empty and were unused for ten minutes are forgotten.

        True when there are more to be looked at; a host comes back at once then, else in five minutes.
        A queue counts as unused since the look that found it so.
        """
        return self.c_forget_idle(now_ns) != 0
