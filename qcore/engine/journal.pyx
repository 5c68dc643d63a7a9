"""The events of a queue as rows: those that are counted, in order, up to the cap.

Events are gathered between two cuts and written as one row, so a row costs little more
than its bytes. The newest ones count, as many as the queue's count says; a row goes once
all of it is too old. Rows are kept in memory as well, packed, so that nobody who reads
them waits for the disk.
"""

cimport cython
from libc.stdint cimport int64_t, uint32_t

from qcore.engine.table cimport EV_COMPLETED, EV_FAILED

from collections import deque

import msgpack

from qcore import limits

cdef Py_ssize_t MAX_ROW_EVENTS = 256


cdef object _bounded(int kind, object data):
    """What is kept of the data of an event: payloads of some size are not."""
    if data is None:
        return None
    if kind == EV_COMPLETED:
        return data if len(<bytes>data[0]) <= limits.MAX_JOURNAL_PAYLOAD_BYTES else None
    if kind == EV_FAILED and len(<tuple>data) == 4 and data[2] is not None \
            and len(<bytes>data[2]) > limits.MAX_JOURNAL_PAYLOAD_BYTES:
        return data[0], data[1], None, 0
    return data


@cython.final
cdef class Journal:
    """The events of one queue. Their numbers grow, also over restarts."""

    def __cinit__(self, uint32_t queue):
        self.queue = queue
        self.rows = deque()
        self.pending = []
        self.staged = []

    cdef int c_add(self, int kind, int64_t now_ms, object job_id, object data) except -1:
        if not self.following:
            # A number that no earlier process has given out.
            self.following = now_ms * 1000
        self.pending.append((kind, now_ms, job_id, _bounded(kind, data)))
        return 0

    cdef bint c_write(self, dict side, int64_t key, Py_ssize_t n_events, int64_t now_ms) except -1:
        """Make a row of some of what is pending, with this key; False: nothing is.

        ``n_events`` of all without the staged count. After an error all is as it was but for the key in ``side``.
        """
        cdef Py_ssize_t over = len(self.pending) - n_events
        cdef list rest
        if not self.following:
            self.following = now_ms * 1000  # all are staged
        if over > 0:
            self.pending = self.pending[over:]
            self.following += over
        if not self.pending:
            return False
        rest = self.pending[MAX_ROW_EVENTS:]
        self.c_append(side, key, self.pending[:MAX_ROW_EVENTS])
        self.pending = rest
        return True

    cdef bint c_write_staged(self, dict side, int64_t key) except -1:
        """Make a row of what becomes known with the cut, with this key; False: nothing does."""
        if not self.staged:
            return False
        self.c_append(side, key, self.staged)
        self.unsure = self.newest
        self.staged = []
        return True

    cdef int c_append(self, dict side, int64_t key, list events) except -1:
        packed = msgpack.packb([self.queue, self.following, events])
        row = (key, self.following, len(events), packed)
        side["journal", key] = packed
        self.rows.append(row)
        self.newest = row
        self.n_stored += len(events)
        self.following += len(events)
        return 0

    cdef list c_trim(self, Py_ssize_t n_events):
        """Let go of the rows that are older than the newest ``n_events``: (key, None) of each."""
        cdef list out = []
        cdef int64_t first = self.following - n_events + len(self.pending)
        if self.c_unsure():
            first -= <int64_t>self.unsure[2]    # not counted yet
        while self.rows and self.rows[0][1] + self.rows[0][2] <= first:
            key, _, n, _ = self.rows.popleft()
            self.n_stored -= n
            if not self.rows:
                self.newest = None
            out.append((key, None))
        return out

    cdef bint c_unsure(self) noexcept:
        """Whether the row of the staged events of the last cut is still there."""
        return self.unsure is not None and self.newest is self.unsure

    cdef int c_undo(self) except -1:
        """The commit of the staged events failed: their row, which is there, goes."""
        cdef tuple row = self.unsure
        self.unsure = None
        self.rows.pop()
        self.newest = None              # the next row is another one, whatever is left
        self.n_stored -= row[2]
        self.following = row[1]
        return 0

    cdef int c_restore(self, int64_t key, int64_t first, object events, bytes packed) except -1:
        """Bring back a row; they come in order.

        :raises ValueError: it cannot be read
        """
        if first < self.following or not isinstance(events, tuple) or not events:
            raise ValueError("unknown form")
        for event in <tuple>events:
            if not isinstance(event, tuple) or len(<tuple>event) != 4 or not isinstance((<tuple>event)[2], str):
                raise ValueError("unknown form")
        self.rows.append((key, first, len(events), packed))
        self.n_stored += len(events)
        self.following = first + len(events)
        return 0

    def page(self, Py_ssize_t n_events, int64_t after, Py_ssize_t limit):
        """Up to ``limit`` of the newest ``n_events`` with numbers beyond ``after``, oldest first.

        Each is (number, kind, ms, job id, data by kind).
        """
        cdef list out = []
        cdef int64_t number
        if self.c_unsure():
            n_events += self.unsure[2]
        after = max(after, self.following + len(self.pending) - n_events - 1)
        for row in self.rows:
            if row is self.unsure:
                return out      # what stands behind it is read when it stays or is gone, and all have their numbers
            _, first, n, packed = row
            if first + n - 1 <= after:
                continue
            number = first
            for event in msgpack.unpackb(packed, use_list=False)[2]:
                if number > after and len(out) < limit:
                    out.append((number, *event))
                number += 1
            if len(out) == limit:
                return out
        number = self.following
        for event in self.pending:
            if number > after and len(out) < limit:
                out.append((number, *event))
            number += 1
        return out

    def _check(self, Py_ssize_t n_events):
        """Rows follow each other, and none is older than what counted at the last cut."""
        cdef int64_t before = 0
        for _, first, n, packed in self.rows:
            assert first >= before and n == len(msgpack.unpackb(packed)[2]), (first, before, n)
            before = first + n
        assert before <= self.following
        assert self.n_stored == sum([row[2] for row in self.rows])
        if self.rows and not self.pending and not self.c_unsure():
            # (Durable adds count only after their commit, so that what they push out goes with the next.)
            assert self.n_stored - self.rows[0][2] - self.rows[len(self.rows) - 1][2] < n_events
