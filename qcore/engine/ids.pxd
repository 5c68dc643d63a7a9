from libc.stdint cimport int64_t, uint64_t

from qcore.structs.siphash cimport SipKey


cdef class IdSource:
    cdef SipKey key
    cdef uint64_t counter
    cdef uint64_t last_hi, last_lo

    cdef uint64_t c_random(self) noexcept nogil
    cdef double c_uniform(self) noexcept nogil
    cdef void c_next_id(self, int64_t now_ms, uint64_t *hi, uint64_t *lo) noexcept nogil
    cdef void c_next_token(self, int64_t now_ms, uint64_t *hi, uint64_t *lo) noexcept nogil

cdef inline bint is_own(uint64_t hi) noexcept nogil:
    """Whether an id with this upper half has the form of those that :class:`IdSource` makes."""
    return (hi & 0xF000) == 0x7000

cdef void uuid_text(uint64_t hi, uint64_t lo, char *out) noexcept nogil
cdef bint uuid_parse(const char *text, Py_ssize_t n, uint64_t *hi, uint64_t *lo) noexcept nogil
