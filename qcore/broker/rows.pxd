from libc.stdint cimport int64_t, uint32_t

from qcore.engine.engine cimport Engine
from qcore.engine.job cimport Job
from qcore.wire.writer cimport Writer


cdef class Encoder:
    cdef Writer out             # packed rows
    cdef list pieces            # the same, those before
    cdef Py_ssize_t n           # how many in all
    cdef Py_ssize_t largest     # longest payload among them

    cdef int c_row(self, Engine engine, Job *job, int64_t now_ms, int64_t now_ns) except -1
    cdef int c_ahead(self, Engine engine, uint32_t most, int64_t now_ms, int64_t now_ns) except -1
    cdef int c_close_piece(self) except -1
    # The changes since the last call, as a cut with packed rows. After an error everything is as it was.
    cdef object c_take(self, Engine engine, int64_t now_ms, int64_t now_ns)

# The changes since the last call as (inserts, updates, deletes, names, queues), lists as a cut has them.
cdef object c_take_rows(Engine engine, int64_t now_ms, int64_t now_ns)
