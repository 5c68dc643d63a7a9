"""Ordered map from a three-part key to a 32-bit value."""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t


cdef enum:
    SKIP_LEVELS = 16             # 4**16 nodes
    SKIP_CLASSES = 9             # node sizes, see size_class
    SKIP_FINGERS = 8


cdef struct Key:                 # ascending lexicographic order
    int64_t a
    int64_t b
    int64_t c                    # makes keys unique


cdef struct SkipNode:
    Key key
    uint32_t value
    uint32_t next[1]             # as many as the height of the node; 0: end


cdef struct SkipEntry:
    Key key
    uint32_t value


@cython.final
cdef class SkipList:
    cdef readonly Py_ssize_t n
    cdef int level                       # levels in use, at least 1
    cdef unsigned char **chunks
    cdef uint32_t n_chunks
    cdef uint32_t n_chunk_places         # length of chunks
    cdef uint32_t first_units            # size of chunk 0; the others are full size
    cdef uint32_t bump                   # first unused unit of the last chunk
    cdef uint32_t free[SKIP_CLASSES]     # heads of the free lists
    cdef Py_ssize_t n_units              # units that hold nodes
    cdef uint64_t random
    cdef uint32_t last[SKIP_LEVELS]      # last node of each level; 0: the head
    cdef int n_fingers
    cdef int recent_finger
    cdef int finger_turn                 # the next finger to be replaced
    cdef int64_t finger_a[SKIP_FINGERS]
    cdef bint finger_side[SKIP_FINGERS]  # b < 0 in the run of this finger
    cdef uint32_t finger[SKIP_FINGERS][SKIP_LEVELS]   # a predecessor per level

    cdef int c_insert(self, Key key, uint32_t value) except -1
    # Fill an empty list from entries in any order, which are sorted in place; `spare` has room for as many. O(n).
    cdef int c_fill(self, SkipEntry *entries, SkipEntry *spare, Py_ssize_t n) except -1
    cdef bint c_remove(self, Key key) noexcept nogil
    cdef bint c_first(self, Key *key, uint32_t *value) noexcept nogil
    cdef bint c_pop(self, Key *key, uint32_t *value) noexcept nogil
    # Iteration in order. A node stays where it is until it is removed or anything is inserted.
    cdef SkipNode *c_begin(self) noexcept nogil
    cdef SkipNode *c_after(self, SkipNode *node) noexcept nogil
    # The last entry before a key, the first that is not before it; NULL: none. O(log n).
    cdef SkipNode *c_before(self, Key *key) noexcept nogil
    cdef SkipNode *c_from(self, Key *key) noexcept nogil
    cdef void c_clear(self) noexcept nogil
    cdef size_t c_nbytes(self) noexcept nogil

    cdef bint c_start(self) noexcept nogil
    cdef uint32_t c_new(self, int height) noexcept nogil
    cdef void c_free(self, uint32_t ref, int height) noexcept nogil
    cdef uint32_t *c_finger(self, Key *key) noexcept nogil
    cdef void c_seek(self, uint32_t *path, Key *key, int height) noexcept nogil
    cdef void c_descend(self, uint32_t *path, Key *key, uint32_t x, int level) noexcept nogil
    cdef void c_unlink(self, uint32_t ref, uint32_t *path) noexcept nogil
    cdef void c_forget(self) noexcept nogil
    cdef void c_forget_fingers(self) noexcept nogil
    cdef void c_shrink(self) noexcept nogil
    cdef bint c_compact(self) noexcept nogil
