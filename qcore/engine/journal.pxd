from libc.stdint cimport int64_t, uint32_t


cdef class Journal:
    cdef uint32_t queue                 # its index
    cdef readonly int64_t following     # number of the next event
    cdef readonly object rows           # deque of (key of the row, number of its first event, events, packed)
    cdef readonly Py_ssize_t n_stored   # events in the rows
    cdef list pending                   # those that no cut has taken yet
    cdef list staged                    # of durable adds that the gathering cut makes known
    cdef tuple newest                   # the last row that was written
    cdef tuple unsure                   # the row of those, while the commit is on its way
    cdef bint noted                                # in the engine's list of journals that have something to write

    cdef int c_add(self, int kind, int64_t now_ms, object job_id, object data) except -1
    cdef int c_append(self, dict side, int64_t key, list events) except -1
    cdef bint c_write(self, dict side, int64_t key, Py_ssize_t n_events, int64_t now_ms) except -1
    cdef bint c_write_staged(self, dict side, int64_t key) except -1
    cdef bint c_unsure(self) noexcept
    cdef int c_undo(self) except -1
    cdef int c_restore(self, int64_t key, int64_t first, object events, bytes packed) except -1
    cdef list c_trim(self, Py_ssize_t n_events)
