"""Keyed hash of short byte strings (SipHash), for tables whose keys a peer may choose."""

from libc.stdint cimport uint64_t


cdef struct SipKey:
    uint64_t k0
    uint64_t k1


cdef uint64_t siphash13(SipKey *k, const unsigned char *p, size_t n) noexcept nogil
cdef uint64_t siphash24(SipKey *k, const unsigned char *p, size_t n) noexcept nogil
# The same as siphash24 of the eight little-endian bytes of x.
cdef uint64_t siphash24_u64(SipKey *k, uint64_t x) noexcept nogil
