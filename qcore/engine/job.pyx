"""Packed values owned by job records; the record layouts are in the .pxd."""

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport uint32_t
from libc.string cimport memcpy


cdef Blob *blob_new(const void *p, size_t n, uint32_t notes) except NULL:
    """A copy of ``n`` bytes. The caller owns it."""
    cdef Blob *blob
    if n > 0xFFFFFFFF:
        raise OverflowError("a packed value is at most 4 GiB")
    blob = <Blob *>PyMem_Malloc(sizeof(Blob) + n)
    if blob == NULL:
        raise MemoryError
    blob.size = <uint32_t>n
    blob.notes = notes
    memcpy(blob_bytes(blob), p, n)
    return blob


cdef void blob_free(Blob *blob) noexcept:
    PyMem_Free(blob)
