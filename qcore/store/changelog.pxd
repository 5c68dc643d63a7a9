"""Changes of rows, appended before they are moved into their tables."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    SLOT_BYTES = 4050       # the largest blob that lies on one leaf of 4096 bytes, with room to spare
    ENTRY_MOST = 1500       # bytes of a change that is appended; a larger one is written where it belongs

cdef enum EntryOp:
    ENTRY_UPDATE = 1        # seq, state, record, result
    ENTRY_DELETE = 2        # seq
    ENTRY_WRITTEN = 3       # seq: its row is what counts, not the entries before this one
    ENTRY_SIDE = 4          # packed [table, key, value], or [table, key] for one written where it belongs

cdef packed struct SlotHead:
    uint64_t ordinal        # grows by one from page to page; 0: never written
    uint64_t check          # of the ordinal and the entries
    uint32_t used           # bytes of entries
    uint32_t version

cdef struct Page:
    int64_t slot            # row of the table that holds it
    bint is_new             # the row does not exist yet
    uint8_t bytes[SLOT_BYTES]

cdef struct Entry:
    int op
    uint32_t state
    int64_t seq
    const uint8_t *record
    const uint8_t *result
    int32_t record_n
    int32_t result_n        # -1: NULL

cdef struct Map:            # open addressing; a value of 0 is an empty place
    int64_t *keys
    uint64_t *values
    size_t size
    size_t n


cdef class ChangeLog:
    cdef Page **pages           # those that count, by ordinal from `base` on
    cdef Py_ssize_t n_pages
    cdef Py_ssize_t cap_pages
    cdef uint64_t base
    cdef bint sealed            # the next entry begins a page
    cdef Map places             # seq -> ordinal << 12 | offset of its last entry
    cdef Map blocks             # neighbourhoods of seqs that have entries
    cdef readonly dict side     # (table, key) -> value, None: removed, ...: written where it belongs
    cdef dict side_after        # what came since the fold began
    cdef int64_t max_seq        # no row has a larger one
    cdef public bint has_payloads   # a row that goes may leave one behind
    cdef public int64_t file_bytes
    cdef int64_t version        # of what table and log say together; see `stamp`
    cdef int64_t grown_bytes    # written where they belong since the last fold
    cdef bint deletes           # rows were deleted since then

    cdef int64_t *free_slots
    cdef Py_ssize_t n_free
    cdef Py_ssize_t cap_free
    cdef readonly int64_t n_slots

    # Of the cut that is being committed.
    cdef Page **staged
    cdef Py_ssize_t n_staged
    cdef Py_ssize_t cap_staged
    cdef bint stages_tail       # the first page is the last one, continued
    cdef uint32_t tail_used
    cdef Py_ssize_t n_entries
    cdef int64_t staged_max
    cdef int64_t staged_slots
    cdef list staged_side
    cdef const uint8_t **direct     # packed rows that are written where they belong
    cdef Py_ssize_t n_direct
    cdef Py_ssize_t cap_direct
    cdef Py_ssize_t n_replaced
    cdef Py_ssize_t direct_bytes
    cdef Py_ssize_t n_deletes
    cdef bint replaces          # a row that the log speaks of, or a payload

    # Of the fold.
    cdef int64_t *fold_seqs
    cdef Py_ssize_t n_fold
    cdef Py_ssize_t fold_at
    cdef list fold_side
    cdef uint64_t fold_end
    cdef readonly bint folding

    cdef int c_stage_all(self, list packed) except -1
    cdef int c_stage_rows(self, const uint8_t *p, Py_ssize_t n) noexcept nogil
    cdef uint8_t *c_room(self, Py_ssize_t n) noexcept nogil
    cdef int c_append_key(self, int op, int64_t seq) noexcept nogil
    cdef int c_direct(self, const uint8_t *p) noexcept nogil
    cdef Page *c_new_page(self) noexcept nogil
    cdef void c_drop_staged(self) noexcept nogil
    cdef int c_find(self, int64_t seq, Entry *entry) noexcept nogil
    cdef void c_used(self, Py_ssize_t n) noexcept nogil
    cdef int c_fit_pages(self, Py_ssize_t n) except -1
    cdef int c_fit_free(self, Py_ssize_t n) except -1
    cdef int c_index_side(self, bytes packed) except -1
    cdef int c_index(self, Page *page) except -1
    cdef int c_index_from(self, Py_ssize_t first, Map *places, Map *blocks) noexcept nogil
    cdef int c_push_free(self, int64_t slot) except -1
