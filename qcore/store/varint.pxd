"""Numbers in as many bytes as they need: seven bits a byte, the low ones first."""

from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef inline Py_ssize_t varint_put(uint8_t *p, Py_ssize_t at, uint64_t value) noexcept nogil:
    """Write a number, of at most ten bytes; where it ends."""
    while value >= 128:
        p[at] = <uint8_t>(value | 128)
        at += 1
        value >>= 7
    p[at] = <uint8_t>value
    return at + 1


cdef inline Py_ssize_t varint_get(const uint8_t *p, Py_ssize_t at, Py_ssize_t end, uint64_t *value) noexcept nogil:
    """Read a number of 64 bits that ends before ``end``; where it ends, or -1."""
    cdef int shift = 0
    value[0] = 0
    while at < end and shift < 64:
        value[0] |= <uint64_t>(p[at] & 127) << shift
        at += 1
        if p[at - 1] < 128:
            return at if shift < 63 or p[at - 1] < 2 else -1
        shift += 7
    return -1


cdef inline uint64_t zigzag(int64_t n) noexcept nogil:
    """Small for what is near zero, on either side of it."""
    return (<uint64_t>n << 1) ^ <uint64_t>(n >> 63)


cdef inline int64_t unzigzag(uint64_t n) noexcept nogil:
    return <int64_t>(n >> 1) ^ -<int64_t>(n & 1)
