"""SipHash-1-3 and SipHash-2-4.

Source: J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast short-input PRF", 2012.
The 1-3 variant serves hash tables, the 2-4 variant where the output is seen outside.
"""

from libc.stdint cimport uint64_t


cdef inline uint64_t rotl(uint64_t x, int bits) noexcept nogil:
    return (x << bits) | (x >> (64 - bits))


cdef inline uint64_t load64(const unsigned char *p) noexcept nogil:
    # Spelled by bytes: right on either byte order, and compilers see one load.
    return (
        <uint64_t> p[0] | <uint64_t> p[1] << 8 | <uint64_t> p[2] << 16 | <uint64_t> p[3] << 24
        | <uint64_t> p[4] << 32 | <uint64_t> p[5] << 40 | <uint64_t> p[6] << 48 | <uint64_t> p[7] << 56
    )


cdef inline void sip_round(uint64_t *v) noexcept nogil:
    v[0] += v[1]
    v[2] += v[3]
    v[1] = rotl(v[1], 13) ^ v[0]
    v[3] = rotl(v[3], 16) ^ v[2]
    v[0] = rotl(v[0], 32)
    v[2] += v[1]
    v[0] += v[3]
    v[1] = rotl(v[1], 17) ^ v[2]
    v[3] = rotl(v[3], 21) ^ v[0]
    v[2] = rotl(v[2], 32)


cdef inline void start(SipKey *k, uint64_t *v) noexcept nogil:
    v[0] = k.k0 ^ 0x736F6D6570736575ULL
    v[1] = k.k1 ^ 0x646F72616E646F6DULL
    v[2] = k.k0 ^ 0x6C7967656E657261ULL
    v[3] = k.k1 ^ 0x7465646279746573ULL


cdef inline void absorb(uint64_t *v, uint64_t word, int rounds) noexcept nogil:
    cdef int _
    v[3] ^= word
    for _ in range(rounds):
        sip_round(v)
    v[0] ^= word


cdef inline uint64_t finish(uint64_t *v, int rounds) noexcept nogil:
    cdef int _
    v[2] ^= 0xFF
    for _ in range(rounds):
        sip_round(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


cdef inline uint64_t sip(
    SipKey *k, const unsigned char *p, size_t n, int word_rounds, int final_rounds
) noexcept nogil:
    cdef uint64_t v[4]
    cdef uint64_t tail = <uint64_t> n << 56
    cdef size_t i = 0
    cdef int bits = 0
    start(k, v)
    while i + 8 <= n:
        absorb(v, load64(p + i), word_rounds)
        i += 8
    while i < n:
        tail |= <uint64_t> p[i] << bits
        bits += 8
        i += 1
    absorb(v, tail, word_rounds)
    return finish(v, final_rounds)


cdef uint64_t siphash13(SipKey *k, const unsigned char *p, size_t n) noexcept nogil:
    return sip(k, p, n, 1, 3)


cdef uint64_t siphash24(SipKey *k, const unsigned char *p, size_t n) noexcept nogil:
    return sip(k, p, n, 2, 4)


cdef uint64_t siphash24_u64(SipKey *k, uint64_t x) noexcept nogil:
    cdef uint64_t v[4]
    start(k, v)
    absorb(v, x, 2)
    absorb(v, <uint64_t> 8 << 56, 2)
    return finish(v, 4)


cdef int read_key(const unsigned char[::1] key, SipKey *k) except -1:
    if key.shape[0] != 16:
        raise ValueError(f"key must be 16 bytes, got {key.shape[0]}")
    k.k0 = load64(&key[0])
    k.k1 = load64(&key[8])
    return 0


def digest13(const unsigned char[::1] key, const unsigned char[::1] data) -> int:
    """Return SipHash-1-3 of ``data`` as an unsigned 64-bit integer.

    ``key`` is 16 bytes; another length raises ``ValueError``.
    """
    cdef SipKey k
    read_key(key, &k)
    return siphash13(&k, &data[0] if data.shape[0] else NULL, data.shape[0])


def digest24(const unsigned char[::1] key, const unsigned char[::1] data) -> int:
    """Return SipHash-2-4 of ``data`` as an unsigned 64-bit integer.

    ``key`` is 16 bytes; another length raises ``ValueError``.
    """
    cdef SipKey k
    read_key(key, &k)
    return siphash24(&k, &data[0] if data.shape[0] else NULL, data.shape[0])


def digest24_u64(const unsigned char[::1] key, uint64_t x) -> int:
    """Return SipHash-2-4 of the eight little-endian bytes of ``x``."""
    cdef SipKey k
    read_key(key, &k)
    return siphash24_u64(&k, x)
