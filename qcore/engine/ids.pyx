"""Ids, lease tokens and jitter from one seeded source; UUID text form.

All randomness of the engine comes from here, so a run replays from its seed.
"""

cimport cython
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

from qcore.structs.siphash cimport siphash24_u64

cdef enum:
    VERSION_7 = 0x7000

cdef const char *_HEX = b"0123456789abcdef"
cdef unsigned char _NIBBLE[256]


cdef void _fill_nibbles() noexcept:
    cdef int i
    for i in range(256):
        _NIBBLE[i] = 255
    for i in range(16):
        _NIBBLE[<unsigned char>_HEX[i]] = i

_fill_nibbles()


@cython.final
cdef class IdSource:
    """Seeded source of ids, tokens and uniform numbers.

    SipHash-2-4 in counter mode (Aumasson & Bernstein 2012): a keyed function, so a
    token cannot be guessed from those seen before. ``seed`` is 16 bytes.
    """

    def __cinit__(self, bytes seed not None):
        if len(seed) != 16:
            raise ValueError(f"seed must be 16 bytes, got {len(seed)}")
        memcpy(&self.key, <const char *>seed, 16)
        self.last_hi = VERSION_7

    cdef uint64_t c_random(self) noexcept nogil:
        self.counter += 1
        return siphash24_u64(&self.key, self.counter)

    cdef double c_uniform(self) noexcept nogil:
        """Uniform in [0, 1)."""
        return <double>(self.c_random() >> 11) * (1.0 / 9007199254740992.0)

    cdef void c_next_id(self, int64_t now_ms, uint64_t *hi, uint64_t *lo) noexcept nogil:
        """UUIDv7, strictly increasing also inside one millisecond and across a clock that goes back.

        ``rand_a`` (12 bits) counts within a millisecond (RFC 9562, 6.2, method 1); when it
        runs over, or the clock is behind, the last timestamp goes on.
        """
        cdef uint64_t stamp = (<uint64_t>now_ms) << 16
        cdef uint64_t random = self.c_random()
        if stamp > (self.last_hi & ~<uint64_t>0xFFFF):
            # Start in the lower half, so that a burst has room before it borrows from the next millisecond.
            self.last_hi = stamp | VERSION_7 | (random & 0x3FF)
        elif (self.last_hi & 0xFFF) == 0xFFF:
            self.last_hi = ((self.last_hi & ~<uint64_t>0xFFFF) + 0x10000) | VERSION_7
        else:
            self.last_hi += 1
        hi[0] = self.last_hi
        lo[0] = (<uint64_t>1 << 63) | (random >> 2)

    cdef void c_next_token(self, int64_t now_ms, uint64_t *hi, uint64_t *lo) noexcept nogil:
        """A lease token in the same layout, with 74 random bits; never zero."""
        hi[0] = ((<uint64_t>now_ms) << 16) | VERSION_7 | (self.c_random() & 0xFFF)
        lo[0] = (<uint64_t>1 << 63) | (self.c_random() >> 2)

    def next_id(self, int64_t now_ms):
        """The next job id as text."""
        cdef uint64_t hi, lo
        cdef char text[36]
        self.c_next_id(now_ms, &hi, &lo)
        uuid_text(hi, lo, text)
        return PyUnicode_DecodeASCII(text, 36, NULL)

    def uniform(self):
        """The next number in [0, 1)."""
        return self.c_uniform()


cdef void uuid_text(uint64_t hi, uint64_t lo, char *out) noexcept nogil:
    """Write the 36 characters of the canonical lower-case form."""
    cdef int i, k = 0
    for i in range(16):
        if i == 8 or i == 12:
            out[k] = c'-'
            k += 1
        out[k] = _HEX[(hi >> (60 - 4 * i)) & 15]
        k += 1
    out[k] = c'-'
    k += 1
    for i in range(16):
        if i == 4:
            out[k] = c'-'
            k += 1
        out[k] = _HEX[(lo >> (60 - 4 * i)) & 15]
        k += 1


cdef bint uuid_parse(const char *text, Py_ssize_t n, uint64_t *hi, uint64_t *lo) noexcept nogil:
    """True only for exactly the form that :func:`uuid_text` writes, so text and number map one to one."""
    cdef uint64_t a = 0, b = 0
    cdef unsigned char v
    cdef int i, k = 0
    if n != 36 or text[8] != c'-' or text[13] != c'-' or text[18] != c'-' or text[23] != c'-':
        return False
    for i in range(36):
        if i == 8 or i == 13 or i == 18 or i == 23:
            continue
        v = _NIBBLE[<unsigned char>text[i]]
        if v == 255:
            return False
        if k < 16:
            a = (a << 4) | v
        else:
            b = (b << 4) | v
        k += 1
    hi[0] = a
    lo[0] = b
    return True
