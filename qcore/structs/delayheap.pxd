"""Min-heap of due times whose elements can be changed and removed by handle."""

cimport cython
from libc.stdint cimport int64_t, uint32_t


cdef struct DelayEntry:
    int64_t due
    int64_t tie
    uint32_t handle
    uint32_t item


@cython.final
cdef class DelayHeap:
    cdef readonly Py_ssize_t n
    cdef DelayEntry *entries     # the heap, root first
    cdef Py_ssize_t size         # entries allocated
    cdef uint32_t *place         # by handle: index in entries, or FREE_BIT + next free handle
    cdef uint32_t n_handles      # handles ever given out since the last reset, plus one
    cdef uint32_t n_places       # places allocated
    cdef uint32_t free_handle    # head of the free list; 0: none

    cdef uint32_t c_push(self, int64_t due, int64_t tie, uint32_t item) except 0
    cdef void c_change(self, uint32_t handle, int64_t due, int64_t tie) noexcept nogil
    cdef uint32_t c_remove(self, uint32_t handle) noexcept nogil
    cdef bint c_first(self, int64_t *due, uint32_t *item) noexcept nogil
    cdef bint c_pop(self, int64_t *due, uint32_t *item) noexcept nogil
    # Element i of 0 .. n-1 in heap-array order (only element 0 has a known rank).
    cdef uint32_t c_at(self, Py_ssize_t i, int64_t *due) noexcept nogil
    cdef int64_t c_due(self, uint32_t handle) noexcept nogil
    cdef bint c_has(self, uint32_t handle) noexcept nogil
    cdef void c_clear(self) noexcept nogil
    cdef size_t c_nbytes(self) noexcept nogil

    cdef void c_up(self, Py_ssize_t i, DelayEntry entry) noexcept nogil
    cdef void c_down(self, Py_ssize_t i, DelayEntry entry) noexcept nogil
    cdef void c_take_out(self, Py_ssize_t i) noexcept nogil
    cdef int c_grow(self) except -1
