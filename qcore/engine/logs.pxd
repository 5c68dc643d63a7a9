from libc.stdint cimport int64_t

from qcore.engine.job cimport Job
from qcore.engine.table cimport Table


cdef class Logs(Table):
    cdef object log_lines       # seq -> list of [ms, level, message]; the one written to last comes last

    cdef list c_log(self, int64_t seq)
    cdef int c_add_log(self, Job *job, int64_t now_ms, str level, str message) except -1
    cdef int c_clear_log(self, int64_t seq, Py_ssize_t keep) except -1
    cdef int c_save_log(self, int64_t seq, list lines) except -1
    cdef int c_drop_log(self, int64_t seq) except -1
    cdef int c_restore_log(self, int64_t seq, list lines) except -1
    cdef int c_check_logs(self, Job *job, int64_t seq) except -1
