"""Completion tokens: which jobs have finished, oldest forgotten first."""

cimport cython
from libc.stdint cimport uint32_t, uint64_t

from qcore.structs.idtable cimport IdTable
from qcore.structs.siphash cimport SipKey


cdef struct TokenEntry:
    uint64_t hi                  # the key, a number of 128 bits
    uint64_t lo
    uint32_t owner
    uint32_t value


cdef struct TokenSlot:
    TokenEntry entry
    uint64_t token               # place of the current occurrence, PINNED, or UNUSED


@cython.final
cdef class CompletionTokens:
    cdef readonly Py_ssize_t n_recent
    cdef readonly Py_ssize_t n_pinned
    cdef readonly uint32_t cap       # most recent keys
    cdef IdTable table               # hash of a key to its slot
    cdef SipKey secret
    cdef TokenSlot *slots            # slot 0 is never used
    cdef uint32_t n_slots            # slots ever given out since the last reset, plus one
    cdef uint32_t n_slot_places      # slots allocated
    cdef uint32_t free_slot          # head of the free list, linked by entry.value; 0: none
    cdef uint32_t *order             # slot of each occurrence, oldest first
    cdef Py_ssize_t head             # first occurrence that may be valid
    cdef Py_ssize_t tail             # end of the occurrences
    cdef Py_ssize_t n_order_places   # places allocated
    cdef uint64_t base               # token of order[0]; order[i] is valid iff its slot holds base + i

    # A key of either tier: owner and value are updated, its place is kept. Any other
    # becomes the newest recent one. 1: the oldest made room and went to evicted[0].
    cdef int c_add(
        self, uint64_t hi, uint64_t lo, uint32_t owner, uint32_t value, TokenEntry *evicted
    ) except -1
    cdef bint c_get(self, uint64_t hi, uint64_t lo, TokenEntry *out) noexcept nogil
    cdef bint c_contains(self, uint64_t hi, uint64_t lo) noexcept nogil
    # Recent to pinned; pinned keys are not counted in the cap and never evicted.
    cdef bint c_pin(self, uint64_t hi, uint64_t lo) noexcept nogil
    # Pinned to newest recent (retain; may evict one, then 1) or out. Others stay as they are.
    cdef int c_unpin(self, uint64_t hi, uint64_t lo, bint retain, TokenEntry *evicted) except -1
    cdef bint c_delete(self, uint64_t hi, uint64_t lo) noexcept nogil
    cdef Py_ssize_t c_delete_owner(self, uint32_t owner, bint pins) noexcept nogil
    cdef void c_clear(self) noexcept nogil
    cdef size_t c_nbytes(self) noexcept nogil

    cdef uint64_t c_hash(self, uint64_t hi, uint64_t lo) noexcept nogil
    cdef uint32_t c_slot(self, uint64_t hi, uint64_t lo) noexcept nogil
    cdef int c_reserve(self) except -1
    cdef void c_append(self, uint32_t slot) noexcept nogil
    cdef void c_compact(self) noexcept nogil
    cdef bint c_evict(self, TokenEntry *evicted) noexcept nogil
    cdef void c_drop(self, uint32_t slot) noexcept nogil
    cdef void c_settle(self) noexcept nogil
    cdef object c_entry_key(self, uint32_t slot)
