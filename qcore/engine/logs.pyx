"""What jobs write down while they run.

Lines are kept beside the records, by the admission number of their job, so that a new
line costs no row of the job. Their table in the store holds a row for each job that
has lines. At most ``MAX_LOGGED_JOBS`` jobs have any: the one written to longest ago
loses its lines first, in memory and in the store.
"""

from libc.stdint cimport int64_t

from qcore.engine.job cimport F_LOGGED, Job
from qcore.engine.table cimport Table

from collections import OrderedDict
from functools import partial

import msgpack

from qcore import limits


cdef class Logs(Table):
    """:class:`~qcore.engine.table.Table` with log lines."""

    def __cinit__(self):
        self.log_lines = OrderedDict()

    cdef list c_log(self, int64_t seq):
        return self.log_lines.get(seq, [])

    cdef int c_add_log(self, Job *job, int64_t now_ms, str level, str message) except -1:
        """Append a line. A job keeps its newest 100, or fewer by its ``keepLogs``. O(1) beside the cut."""
        cdef list lines = self.log_lines.get(job.seq)
        cdef object keep = None
        if lines is None:
            lines = []
        if job.extra != NULL:
            keep = (<dict>job.extra).get("keepLogs")
        keep = limits.MAX_LOG_LINES if keep is None else max(0, min(int(keep), limits.MAX_LOG_LINES))
        lines.append([now_ms, level, message])
        del lines[:max(0, len(lines) - keep)]
        if not lines:
            return self.c_drop_log(job.seq)
        job.flags |= F_LOGGED
        self.log_lines[job.seq] = lines
        self.log_lines.move_to_end(job.seq)
        self.c_save_log(job.seq, lines)
        if len(self.log_lines) > limits.MAX_LOGGED_JOBS:
            self.c_drop_log(next(iter(self.log_lines)))
        return 0

    cdef int c_clear_log(self, int64_t seq, Py_ssize_t keep) except -1:
        """Drop the lines of a job but its newest ``keep``."""
        cdef list lines = self.log_lines.get(seq)
        if lines is None or len(lines) <= keep:
            return 0
        if keep <= 0:
            return self.c_drop_log(seq)
        del lines[:len(lines) - keep]
        return self.c_save_log(seq, lines)

    cdef int c_save_log(self, int64_t seq, list lines) except -1:
        return self.c_side("logs", seq, partial(msgpack.packb, lines))

    cdef int c_drop_log(self, int64_t seq) except -1:
        """The job is gone, or its lines are."""
        if self.log_lines.pop(seq, None) is not None:
            self.c_side("logs", seq, None)
        return 0

    cdef int c_restore_log(self, int64_t seq, list lines) except -1:
        """Bring back what the store has of one job, before the job itself."""
        self.log_lines[seq] = lines
        return 0

    cdef int c_check_logs(self, Job *job, int64_t seq) except -1:
        lines = self.log_lines.get(seq)
        assert lines is None or (job.flags & F_LOGGED and 0 < len(lines) <= limits.MAX_LOG_LINES), f"log of {seq}"
        return 0
