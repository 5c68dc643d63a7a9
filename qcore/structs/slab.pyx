"""Chunked slab of equal records; see the .pxd for the contract."""

from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset


cdef int slab_init(Slab *slab, size_t item_bytes) except -1:
    memset(slab, 0, sizeof(Slab))
    slab.item_bytes = item_bytes
    slab.fresh = 1
    return 0


cdef void slab_dealloc(Slab *slab) noexcept:
    cdef uint32_t i
    for i in range(slab.n_chunks):
        free(slab.chunks[i])
    PyMem_Free(slab.chunks)
    slab.chunks = NULL
    slab.n_chunks = 0


cdef int _grow(Slab *slab) except -1:
    cdef char **chunks
    cdef char *chunk
    cdef uint32_t cap
    if slab.n_chunks == slab.cap_chunks:
        cap = slab.cap_chunks * 2 if slab.cap_chunks else 8
        chunks = <char **>PyMem_Realloc(slab.chunks, cap * sizeof(char *))
        if chunks == NULL:
            raise MemoryError
        slab.chunks = chunks
        slab.cap_chunks = cap
    # calloc: a fresh record is all zero, and untouched pages cost nothing.
    chunk = <char *>calloc(SLAB_MASK + 1, slab.item_bytes)
    if chunk == NULL:
        raise MemoryError
    slab.chunks[slab.n_chunks] = chunk
    slab.n_chunks += 1
    return 0


cdef uint32_t slab_alloc(Slab *slab) except 0:
    """A zeroed record. O(1)."""
    cdef uint32_t slot = slab.free_head
    cdef void *item
    if slot:
        item = slab_at(slab, slot)
        slab.free_head = (<uint32_t *>item)[0]
        memset(item, 0, slab.item_bytes)
    else:
        slot = slab.fresh
        if (slot >> SLAB_SHIFT) >= slab.n_chunks:
            _grow(slab)
        slab.fresh += 1
    slab.n_used += 1
    return slot


cdef void slab_free(Slab *slab, uint32_t slot) noexcept nogil:
    (<uint32_t *>slab_at(slab, slot))[0] = slab.free_head
    slab.free_head = slot
    slab.n_used -= 1


cdef size_t slab_nbytes(Slab *slab) noexcept nogil:
    return slab.n_chunks * (SLAB_MASK + 1) * slab.item_bytes
