"""Chunked slab of equal records, addressed by 32-bit slots. Slot 0 means "none".

A record never moves, so a pointer stays good across growth, and growth never
copies: a million records are a thousand chunks.
"""

from libc.stdint cimport uint32_t

cdef enum:
    SLAB_SHIFT = 10
    SLAB_MASK = 1023

cdef struct Slab:
    char **chunks
    size_t item_bytes
    uint32_t n_chunks
    uint32_t cap_chunks
    uint32_t fresh          # lowest slot never handed out
    uint32_t free_head      # free slots, linked through their first 4 bytes
    uint32_t n_used

cdef int slab_init(Slab *slab, size_t item_bytes) except -1
cdef void slab_dealloc(Slab *slab) noexcept
cdef uint32_t slab_alloc(Slab *slab) except 0
cdef void slab_free(Slab *slab, uint32_t slot) noexcept nogil
cdef size_t slab_nbytes(Slab *slab) noexcept nogil

cdef inline void *slab_at(Slab *slab, uint32_t slot) noexcept nogil:
    return slab.chunks[slot >> SLAB_SHIFT] + (slot & SLAB_MASK) * slab.item_bytes
