"""A map of a request, field by field, straight from its bytes: for hot paths, which know the plain forms only.

Nothing here raises: what is not plain is declined, and the general path finds the words for it.
"""

from libc.math cimport floor, isfinite
from libc.stdint cimport uint32_t
from libc.string cimport memcmp

from qcore.wire.scan cimport c_array, c_map, c_number, c_skip, c_skip_given, c_str

# Offsets of one value in a frame; start 0 = absent.
cdef struct Piece:
    Py_ssize_t start
    Py_ssize_t end
    uint32_t notes

# Where a walk over a map is. `pos` is negative once something was malformed.
cdef struct Fields:
    const unsigned char *p
    Py_ssize_t pos
    Py_ssize_t end              # one past the last readable byte
    Py_ssize_t left             # fields that are still to come
    const unsigned char *key
    Py_ssize_t key_n
    Piece value


cdef inline Piece c_no_piece() noexcept nogil:
    cdef Piece none
    none.start = none.end = 0
    none.notes = 0
    return none


cdef inline void c_open_fields(Fields *at, const unsigned char *p, Py_ssize_t pos, Py_ssize_t end) noexcept nogil:
    """Begin with the map at ``pos``. The fields end at the first thing that is malformed."""
    at.p = p
    at.end = end
    at.pos = c_map(p, pos, end, &at.left)
    if at.pos < 0:
        at.left = 0


cdef inline bint c_next_key(Fields *at) noexcept nogil:
    """Go to the next field and read its key alone: its value begins at ``pos``."""
    if at.left == 0:
        return False
    at.left -= 1
    at.pos = c_str(at.p, at.pos, at.end, &at.key, &at.key_n)
    return at.pos >= 0


cdef inline bint c_read_value(Fields *at) noexcept nogil:
    """Walk over the value of the field whose key was read."""
    at.value.notes = 0
    at.value.start = at.pos
    at.pos = at.value.end = c_skip_given(at.p, at.pos, at.end, &at.value.notes)
    return at.pos >= 0


cdef inline bint c_next_field(Fields *at) noexcept nogil:
    return c_next_key(at) and c_read_value(at)


cdef inline bint c_same(const unsigned char *text, Py_ssize_t n, const char *other, Py_ssize_t other_n) noexcept nogil:
    return n == other_n and memcmp(text, other, n) == 0


cdef inline bint c_called(const Fields *at, const char *name, Py_ssize_t n) noexcept nogil:
    return c_same(at.key, at.key_n, name, n)


cdef inline bint c_nil(const unsigned char *p, const Piece *piece) noexcept nogil:
    return piece.end - piece.start == 1 and p[piece.start] == 0xC0


cdef inline bint c_undefined(const unsigned char *p, const Piece *piece) noexcept nogil:
    """Whether the value is a JavaScript `undefined`, which clients send for what they do not give: extension type 0."""
    cdef unsigned char head = p[piece.start]
    if 0xD4 <= head <= 0xD8:
        return p[piece.start + 1] == 0
    return (head == 0xC7 and p[piece.start + 2] == 0 or head == 0xC8 and p[piece.start + 3] == 0
            or head == 0xC9 and p[piece.start + 5] == 0)


cdef inline bint c_flag(const unsigned char *p, const Piece *piece, bint *value) noexcept nogil:
    if piece.end - piece.start != 1 or p[piece.start] not in (0xC2, 0xC3):
        return False
    value[0] = p[piece.start] == 0xC3
    return True


cdef inline bint c_finite(const unsigned char *p, const Piece *piece, double *value) noexcept nogil:
    cdef bint is_int
    return c_number(p, piece.start, piece.end, value, &is_int) >= 0 and isfinite(value[0])


cdef inline bint c_whole(const unsigned char *p, const Piece *piece, double least, double most,
                         double *value) noexcept nogil:
    """A whole number from ``least`` to ``most``, in whatever form of a number."""
    cdef bint is_int
    return (c_number(p, piece.start, piece.end, value, &is_int) >= 0 and least <= value[0] <= most
            and value[0] == floor(value[0]))


cdef inline bint c_shortest(const unsigned char *p) noexcept nogil:
    """Whether a plain value, no list, map or extension, is packed as the general path would pack it."""
    if p[0] < 0x80 or p[0] >= 0xE0 or 0xA0 <= p[0] <= 0xC3 or p[0] == 0xC4 or p[0] == 0xCB:
        return p[0] != 0xC1
    if p[0] == 0xD9:
        return p[1] > 31
    if p[0] == 0xCC:
        return p[1] > 127
    if p[0] == 0xCD:
        return p[1] != 0
    if p[0] == 0xCE:
        return p[1] != 0 or p[2] != 0
    return False


cdef inline bint c_request_id(const Fields *at, Piece *req) noexcept nogil:
    """Note a request id that can be given back as it came."""
    req[0] = at.value
    return at.value.notes == 0 and c_shortest(at.p + at.value.start)


cdef inline bint c_list(const unsigned char *p, const Piece *piece, Piece *items, Py_ssize_t *n) noexcept nogil:
    """The members of a list, to be walked over with :func:`c_next_item`."""
    items.start = c_array(p, piece.start, piece.end, n)
    items.end = piece.end
    return items.start >= 0


cdef inline void c_next_item(const unsigned char *p, Piece *items, Piece *item) noexcept nogil:
    """Take the first member, of a value that has been walked over already, away from the others."""
    item.notes = 0
    item.start = items.start
    items.start = item.end = c_skip(p, items.start, items.end, &item.notes)
