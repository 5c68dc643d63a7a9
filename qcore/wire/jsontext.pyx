"""How long the JSON text of a payload is, which is what bounds it.

Counted as JavaScript counts: in UTF-16 units, numbers as JSON.stringify writes them,
keys that are integers as texts. What JSON has no form for is counted by what there is
of it: a binary value by its bytes, a timestamp as the text of a date. Nothing is
built, and most payloads are so short that nothing is counted either.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.math cimport floor, isfinite
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from qcore.wire.packing cimport EXT_TIMESTAMP, EXT_UNDEFINED
from qcore.wire.scan cimport SCAN_MAX_FRAME_NESTING, c_load16, c_load32, c_load64

from qcore.limits import MAX_DATA_BYTES as _MAX_DATA_BYTES
from qcore.limits import MAX_DATA_CHARS as _MAX_DATA_CHARS

cdef enum:
    # A byte of a payload makes at most so many characters: a control character is \u0001, and false has a comma.
    MOST_CHARS_A_BYTE = 6
    DATE_CHARS = 26

cdef Py_ssize_t MAX_BYTES = _MAX_DATA_BYTES
cdef Py_ssize_t MAX_CHARS = _MAX_DATA_CHARS

# Units of UTF-16 that a byte of a text stands for: those that continue a character for none.
cdef unsigned char UNITS[256]


cdef void _fill_units() noexcept:
    cdef int b
    for b in range(256):
        UNITS[b] = 6 if b < 0x20 else 1 if b < 0x80 else 0 if b < 0xC0 else 1 if b < 0xF0 else 2
    for b in (8, 9, 10, 12, 13, 34, 92):    # \b \t \n \f \r \" \\
        UNITS[b] = 2

_fill_units()


cdef struct Open:
    uint64_t left       # values still to come
    bint keyed          # it is a map
    bint any            # it has something in it


cdef inline Py_ssize_t c_digits(uint64_t v) noexcept nogil:
    cdef Py_ssize_t n = 1
    while v >= 10:
        v //= 10
        n += 1
    return n


cdef inline Py_ssize_t c_int_chars(int64_t v) noexcept nogil:
    return c_digits(<uint64_t> v) if v >= 0 else 1 + c_digits(-<uint64_t> v)


# 10 to the k as 128 bits, upper and lower half, for k from -292 to 324: rounded up, without its exponent.
cdef uint64_t POWERS[617][2]


cdef int _fill_powers() except -1:
    for k in range(-292, 325):
        shift = 127 - (k * 1741647 >> 19)       # 127 minus the whole part of its logarithm to the base 2
        top, bottom = (10 ** k, 1) if k >= 0 else (1, 10 ** -k)
        top, bottom = (top << shift, bottom) if shift >= 0 else (top, bottom << -shift)
        power = -(-top // bottom)
        POWERS[k + 292][0] = power >> 64
        POWERS[k + 292][1] = power & 0xFFFFFFFFFFFFFFFF
    return 0

_fill_powers()


cdef inline uint64_t c_mul_high(uint64_t a, uint64_t b, uint64_t *low) noexcept nogil:
    cdef uint64_t a1 = a >> 32, a0 = a & 0xFFFFFFFFULL, b1 = b >> 32, b0 = b & 0xFFFFFFFFULL
    cdef uint64_t p00 = a0 * b0, p01 = a0 * b1, p10 = a1 * b0
    cdef uint64_t mid = (p00 >> 32) + (p01 & 0xFFFFFFFFULL) + (p10 & 0xFFFFFFFFULL)
    low[0] = a * b
    return a1 * b1 + (p01 >> 32) + (p10 >> 32) + (mid >> 32)


cdef inline uint64_t c_scaled(const uint64_t *power, uint64_t c) noexcept nogil:
    """The upper 64 bits of a product of 192, with the lowest bit set if anything was cut off."""
    cdef uint64_t low, middle
    cdef uint64_t carry = c_mul_high(power[1], c, &low)
    cdef uint64_t high = c_mul_high(power[0], c, &middle)
    middle += carry
    high += <uint64_t> (middle < carry)
    return high | <uint64_t> (middle > 1)


cdef Py_ssize_t c_shortest(uint64_t bits, int *k) noexcept nogil:
    """Digits of the shortest number that reads back as this positive one; it is 0.DIGITS times ten to the ``k``.

    Schubfach, by R. Giulietti: the shortest numbers of two lengths that lie inside of the
    interval of what rounds to the same double.
    """
    cdef uint64_t fraction = bits & 0xFFFFFFFFFFFFFULL, c, lower, upper, s, tens, vb, d
    cdef int exponent = <int> (bits >> 52), q, h, power
    cdef uint64_t closer = fraction == 0 and exponent > 1, odd = 0
    cdef bint under, over
    cdef const uint64_t *g
    cdef Py_ssize_t digits
    if exponent:
        c = fraction | (<uint64_t> 1 << 52)
        q = exponent - 1075
    else:
        c = fraction
        q = -1074
    odd = c & 1
    power = (q * 1262611 - <int> closer * 524031) >> 22
    h = q + (-power * 1741647 >> 19) + 1
    g = POWERS[292 - power]
    lower = c_scaled(g, (4 * c - 2 + closer) << h) + odd
    vb = c_scaled(g, 4 * c << h)
    upper = c_scaled(g, (4 * c + 2) << h) - odd
    s = vb >> 2
    d = 0
    if s >= 10:
        tens = s // 10
        under = lower <= 40 * tens
        over = 40 * tens + 40 <= upper
        if under != over:
            d = tens + <uint64_t> over
            power += 1
    if d == 0:
        under = lower <= 4 * s
        over = 4 * s + 4 <= upper
        if under != over:
            d = s + <uint64_t> over
        else:
            d = s + <uint64_t> (vb > 4 * s + 2 or (vb == 4 * s + 2 and s & 1 == 1))
    while d % 10 == 0:
        d //= 10
        power += 1
    digits = c_digits(d)
    k[0] = <int> digits + power
    return digits


cdef Py_ssize_t c_float_chars(double v) noexcept nogil:
    """Characters of a number as JavaScript writes it."""
    cdef uint64_t bits
    cdef Py_ssize_t digits
    cdef int n
    cdef bint negative = v < 0
    if not isfinite(v):
        return 4
    if v == floor(v) and -9007199254740992.0 <= v <= 9007199254740992.0:
        return c_int_chars(<int64_t> v)
    memcpy(&bits, &v, 8)
    digits = c_shortest(bits & 0x7FFFFFFFFFFFFFFFULL, &n)
    if digits <= n <= 21:
        return <int> negative + n
    if 0 < n <= 21:
        return <int> negative + digits + 1
    if -6 < n <= 0:
        return <int> negative + 2 - n + digits
    return <int> negative + digits + <int> (digits > 1) + 2 + c_digits(<uint64_t> (n - 1 if n > 0 else 1 - n))


cdef Py_ssize_t c_json_chars(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end, Py_ssize_t most) noexcept nogil:
    """Characters of the JSON text of the valid value at ``pos``; a count over ``most`` may be short of the rest."""
    cdef Open stack[SCAN_MAX_FRAME_NESTING + 1]
    cdef Open *top = &stack[0]
    cdef Py_ssize_t chars = 0, key = 0, n, i, head
    cdef uint64_t count
    cdef unsigned char b
    cdef bint is_key, opens
    cdef int8_t code
    cdef float single
    cdef double real
    cdef uint32_t word32
    cdef uint64_t word64
    top.left = 1
    top.keyed = top.any = False
    while chars <= most:
        while top.left == 0:
            if top == &stack[0]:
                return chars
            top -= 1
        is_key = top.keyed and not top.left & 1
        top.left -= 1
        b = p[pos]
        pos += 1
        opens = False
        count = 0
        n = 0
        if is_key:
            key = chars
        if b < 0x80:
            chars += c_digits(b)
        elif b >= 0xE0:
            chars += c_int_chars(<int8_t> b)
        elif b < 0xA0:
            opens = True
            count = (b & 0x0F) << 1 if b < 0x90 else b & 0x0F
        elif b < 0xC0 or 0xD9 <= b <= 0xDB:
            if b < 0xC0:
                n = b & 0x1F
            else:
                head = 1 << (b - 0xD9)
                n = p[pos] if head == 1 else c_load16(p + pos) if head == 2 else c_load32(p + pos)
                pos += head
            chars += 2
            for i in range(pos, pos + n):
                chars += UNITS[p[i]]
            pos += n
        elif b == 0xC0 or b == 0xC3:
            chars += 4
        elif b == 0xC2:
            chars += 5
        elif b <= 0xC6:
            head = 1 << (b - 0xC4)
            n = p[pos] if head == 1 else c_load16(p + pos) if head == 2 else c_load32(p + pos)
            pos += head + n
            chars += 2 + n
        elif b <= 0xC9 or 0xD4 <= b <= 0xD8:
            if b <= 0xC9:
                head = 1 << (b - 0xC7)
                n = p[pos] if head == 1 else c_load16(p + pos) if head == 2 else c_load32(p + pos)
                pos += head
            else:
                n = 1 << (b - 0xD4)
            code = <int8_t> p[pos]
            pos += 1 + n
            if code == EXT_UNDEFINED:
                if top.keyed and not is_key:
                    chars = key             # it goes with its key
                    continue
                chars += 4
            else:
                chars += DATE_CHARS if code == EXT_TIMESTAMP else 2 + n
        elif b == 0xCA:
            word32 = c_load32(p + pos)
            memcpy(&single, &word32, 4)
            chars += c_float_chars(single)
            pos += 4
        elif b == 0xCB:
            word64 = c_load64(p + pos)
            memcpy(&real, &word64, 8)
            chars += c_float_chars(real)
            pos += 8
        elif b == 0xCC:
            chars += c_digits(p[pos])
            pos += 1
        elif b == 0xCD:
            chars += c_digits(c_load16(p + pos))
            pos += 2
        elif b == 0xCE:
            chars += c_digits(c_load32(p + pos))
            pos += 4
        elif b == 0xCF:
            chars += c_digits(c_load64(p + pos))
            pos += 8
        elif b == 0xD0:
            chars += c_int_chars(<int8_t> p[pos])
            pos += 1
        elif b == 0xD1:
            chars += c_int_chars(<int16_t> c_load16(p + pos))
            pos += 2
        elif b == 0xD2:
            chars += c_int_chars(<int32_t> c_load32(p + pos))
            pos += 4
        elif b == 0xD3:
            chars += c_int_chars(<int64_t> c_load64(p + pos))
            pos += 8
        else:
            head = 4 if b & 1 else 2
            count = c_load16(p + pos) if head == 2 else c_load32(p + pos)
            pos += head
            opens = True
            if b >= 0xDE:
                count <<= 1
        if is_key:
            chars += 1 if b >= 0xA0 and (b < 0xC0 or 0xD9 <= b <= 0xDB) else 3     # a colon, and an integer's quotes
            continue
        if top != &stack[0]:
            chars += top.any                # the comma in front of it
            top.any = True
        if opens:
            chars += 2
            top += 1
            top.left = count
            top.keyed = b < 0x90 or b >= 0xDE
            top.any = False
    return chars


cdef bint c_fits(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end) noexcept nogil:
    if end - pos <= MAX_CHARS // MOST_CHARS_A_BYTE:
        return True
    return end - pos <= MAX_BYTES and c_json_chars(p, pos, end, MAX_CHARS) <= MAX_CHARS


def json_chars(bytes packed not None):
    """Length of the JSON text of a valid packed value, in UTF-16 units. O(size)."""
    return c_json_chars(<const unsigned char *> PyBytes_AS_STRING(packed), 0, PyBytes_GET_SIZE(packed),
                        (<Py_ssize_t> 1) << 62)


def fits(bytes packed not None):
    """Whether a valid packed value is short enough for a job: by its JSON text, and by its bytes. O(size)."""
    return c_fits(<const unsigned char *> PyBytes_AS_STRING(packed), 0, PyBytes_GET_SIZE(packed))
