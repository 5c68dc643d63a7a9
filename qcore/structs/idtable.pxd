"""Hash table from a 64-bit hash to a 32-bit slot number."""

cimport cython
from libc.stdint cimport uint32_t, uint64_t


cdef struct IdEntry:
    uint32_t tag         # 32 mixed bits of the hash; they also choose the home position
    uint32_t slot        # 0: the position is empty


@cython.final
cdef class IdTable:
    cdef readonly Py_ssize_t n
    cdef IdEntry *entries
    cdef uint64_t size           # positions; any number, not a power of two
    cdef Py_ssize_t n_most       # grow beyond this many entries

    # No uniqueness check: the table does not know the keys, the caller compares.
    cdef int c_put(self, uint64_t hash, uint32_t slot) except -1
    # Candidates: entries whose tag equals that of `hash`. 0: none (left).
    cdef uint32_t c_find(self, uint64_t hash, Py_ssize_t *cursor) noexcept nogil
    cdef uint32_t c_next(self, uint64_t hash, Py_ssize_t *cursor) noexcept nogil
    cdef bint c_del(self, uint64_t hash, uint32_t slot) noexcept nogil
    cdef void c_clear(self) noexcept nogil
    cdef size_t c_nbytes(self) noexcept nogil

    cdef bint c_resize(self, uint64_t size) noexcept nogil
    cdef uint32_t c_scan(self, uint32_t tag, Py_ssize_t *cursor) noexcept nogil
