"""Step over MessagePack values without building objects.

The scanner validates while it walks: lengths, nesting, UTF-8 and extension
types. Values that pass can be spliced into another frame as they came. The frame
buffer cuts a byte stream into frames: four bytes of big-endian length, then as
many bytes of body.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove

from qcore.wire.packing cimport EXT_TIMESTAMP, EXT_TYPED, EXT_UNDEFINED

from qcore.errors import ProtocolError
from qcore.limits import MAX_FRAME_BYTES as _MAX_FRAME_BYTES

cdef enum:
    FIRST_BYTES = 4096
    # An emptied buffer larger than this is given back.
    KEEP_BYTES = 1 << 18

# The first and the last second of the years 1 to 9999.
cdef int64_t FIRST_SECOND = -62135596800
cdef int64_t LAST_SECOND = 253402300799


class FrameTooLarge(ProtocolError):
    """A peer announced a frame longer than the limit; ``length`` is what it announced."""

    def __init__(self, length, limit):
        super().__init__(f"Frame too large: {length} bytes exceeds maximum {limit}")
        self.length = length


cdef bint c_utf8(const unsigned char *s, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i = 0
    cdef uint64_t word
    cdef unsigned char c, d
    while i < n:
        c = s[i]
        if c < 0x80:
            # Eight ASCII bytes at a time; the rest of a run one by one.
            while i + 8 <= n:
                memcpy(&word, s + i, 8)
                if word & 0x8080808080808080ULL:
                    break
                i += 8
            while i < n and s[i] < 0x80:
                i += 1
            continue
        if c < 0xC2:
            return False
        if i + 1 >= n:
            return False
        d = s[i + 1]
        if c < 0xE0:
            if (d & 0xC0) != 0x80:
                return False
            i += 2
        elif c < 0xF0:
            if i + 2 >= n or (d & 0xC0) != 0x80 or (s[i + 2] & 0xC0) != 0x80:
                return False
            # Neither overlong forms nor surrogates.
            if (c == 0xE0 and d < 0xA0) or (c == 0xED and d > 0x9F):
                return False
            i += 3
        elif c < 0xF5:
            if i + 3 >= n or (d & 0xC0) != 0x80:
                return False
            if (s[i + 2] & 0xC0) != 0x80 or (s[i + 3] & 0xC0) != 0x80:
                return False
            if (c == 0xF0 and d < 0x90) or (c == 0xF4 and d > 0x8F):
                return False
            i += 4
        else:
            return False
    return True


cdef inline Py_ssize_t c_ext(const unsigned char *body, Py_ssize_t n, int8_t code,
                             uint32_t *notes, bint strict) noexcept nogil:
    """0 when the extension is one that may travel, else why not."""
    cdef int64_t seconds
    if code == EXT_UNDEFINED:
        notes[0] |= NOTE_UNDEFINED
        return 0
    if code == EXT_TYPED:
        notes[0] |= NOTE_TYPED
        return 0
    if code != EXT_TIMESTAMP:
        return SCAN_EXT
    if n == 4:
        return 0
    # A timestamp whose nanoseconds exceed a second breaks readers.
    if n == 8:
        return 0 if (c_load32(body) >> 2) <= 999999999 else SCAN_EXT
    if n == 12:
        if c_load32(body) > 999999999:
            return SCAN_EXT
        seconds = <int64_t> c_load64(body + 4)
        return SCAN_DATE if strict and not FIRST_SECOND <= seconds <= LAST_SECOND else 0
    return SCAN_EXT


cdef Py_ssize_t c_skip(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end,
                       uint32_t *notes) noexcept nogil:
    return c_walk(p, pos, end, notes, SCAN_MAX_NESTING, False)


cdef Py_ssize_t c_skip_given(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end,
                             uint32_t *notes) noexcept nogil:
    return c_walk(p, pos, end, notes, SCAN_MAX_NESTING, True)


cdef Py_ssize_t c_skip_frame(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end,
                             uint32_t *notes) noexcept nogil:
    return c_walk(p, pos, end, notes, SCAN_MAX_FRAME_NESTING, False)


# Whether a value with this head, a text or an integer, may be the key of a map.
cdef unsigned char IS_KEY[256]


cdef void _fill_is_key() noexcept:
    cdef int b
    for b in range(256):
        IS_KEY[b] = b < 0x80 or b >= 0xE0 or 0xA0 <= b < 0xC0 or 0xD9 <= b <= 0xDB or 0xCC <= b <= 0xD3

_fill_is_key()


cdef inline Py_ssize_t c_walk(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end,
                              uint32_t *notes, int deepest, bint strict) noexcept nogil:
    cdef uint64_t stack[SCAN_MAX_FRAME_NESTING]  # values still to come, per open container
    cdef uint64_t left = 1, count, n
    cdef Py_ssize_t fault
    cdef int depth = 0, head
    cdef unsigned char b
    cdef bint opens, keyed = False  # keyed: in a map, where an even number of values is left before a key
    while True:
        # One value begins at pos.
        if pos >= end:
            return SCAN_TRUNCATED
        b = p[pos]
        pos += 1
        if strict and not IS_KEY[b] and keyed and not left & 1:
            return SCAN_KEY
        left -= 1
        opens = False
        count = 0
        if b < 0x80 or b >= 0xE0:
            pass
        elif b >= 0xC0:
            if b == 0xC0 or b == 0xC2 or b == 0xC3:
                pass
            elif b == 0xC1:
                return SCAN_RESERVED
            elif b <= 0xC6:  # bin 8, 16, 32
                head = 1 << (b - 0xC4)
                if end - pos < head:
                    return SCAN_TRUNCATED
                n = p[pos] if head == 1 else c_load16(p + pos) if head == 2 else c_load32(p + pos)
                pos += head
                if <uint64_t> (end - pos) < n:
                    return SCAN_TRUNCATED
                pos += n
            elif b <= 0xC9:  # ext 8, 16, 32
                head = 1 << (b - 0xC7)
                if end - pos < head + 1:
                    return SCAN_TRUNCATED
                n = p[pos] if head == 1 else c_load16(p + pos) if head == 2 else c_load32(p + pos)
                pos += head + 1
                if <uint64_t> (end - pos) < n:
                    return SCAN_TRUNCATED
                fault = c_ext(p + pos, n, <int8_t> p[pos - 1], notes, strict)
                if fault != 0:
                    return fault
                pos += n
            elif b == 0xCA:
                pos += 4
            elif b == 0xCB:
                pos += 8
            elif b <= 0xD3:  # uint 8 to 64, int 8 to 64
                if b == 0xCF or b == 0xD3:
                    notes[0] |= NOTE_INT64
                pos += 1 << (b & 3)
            elif b <= 0xD8:  # fixext 1, 2, 4, 8, 16
                n = 1 << (b - 0xD4)
                if <uint64_t> (end - pos) < n + 1:
                    return SCAN_TRUNCATED
                pos += 1
                fault = c_ext(p + pos, n, <int8_t> p[pos - 1], notes, strict)
                if fault != 0:
                    return fault
                pos += n
            elif b <= 0xDB:  # str 8, 16, 32
                head = 1 << (b - 0xD9)
                if end - pos < head:
                    return SCAN_TRUNCATED
                n = p[pos] if head == 1 else c_load16(p + pos) if head == 2 else c_load32(p + pos)
                pos += head
                if <uint64_t> (end - pos) < n:
                    return SCAN_TRUNCATED
                if not c_utf8(p + pos, n):
                    return SCAN_UTF8
                pos += n
            else:  # array 16, 32, map 16, 32
                head = 4 if b & 1 else 2
                if end - pos < head:
                    return SCAN_TRUNCATED
                count = c_load16(p + pos) if head == 2 else c_load32(p + pos)
                pos += head
                if b >= 0xDE:
                    count *= 2
                opens = True
            if pos > end:
                return SCAN_TRUNCATED
        elif b >= 0xA0:
            n = b & 0x1F
            if <uint64_t> (end - pos) < n:
                return SCAN_TRUNCATED
            if not c_utf8(p + pos, n):
                return SCAN_UTF8
            pos += n
        else:
            count = b & 0x0F
            if b < 0x90:
                count *= 2
            opens = True
        if opens:
            if depth == deepest:
                return SCAN_DEEP
            # Each value takes at least a byte, so a count that cannot fit is refused at once.
            if count > <uint64_t> (end - pos):
                return SCAN_TRUNCATED
            if count:
                stack[depth] = left << 1 | keyed
                depth += 1
                left = count
                keyed = b < 0x90 or b >= 0xDE
                continue
        while left == 0:
            if depth == 0:
                return pos
            depth -= 1
            left = stack[depth] >> 1
            keyed = stack[depth] & 1


cdef Py_ssize_t c_str(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end,
                      const unsigned char **s, Py_ssize_t *n) noexcept nogil:
    cdef unsigned char b
    cdef Py_ssize_t size
    if pos >= end:
        return SCAN_TRUNCATED
    b = p[pos]
    pos += 1
    if (b & 0xE0) == 0xA0:
        size = b & 0x1F
    elif b == 0xD9:
        if end - pos < 1:
            return SCAN_TRUNCATED
        size = p[pos]
        pos += 1
    elif b == 0xDA:
        if end - pos < 2:
            return SCAN_TRUNCATED
        size = c_load16(p + pos)
        pos += 2
    elif b == 0xDB:
        if end - pos < 4:
            return SCAN_TRUNCATED
        size = c_load32(p + pos)
        pos += 4
    else:
        return SCAN_TYPE
    if end - pos < size:
        return SCAN_TRUNCATED
    s[0] = p + pos
    n[0] = size
    return pos + size


cdef Py_ssize_t c_map(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end, Py_ssize_t *n) noexcept nogil:
    cdef unsigned char b
    if pos >= end:
        return SCAN_TRUNCATED
    b = p[pos]
    pos += 1
    if (b & 0xF0) == 0x80:
        n[0] = b & 0x0F
    elif b == 0xDE:
        if end - pos < 2:
            return SCAN_TRUNCATED
        n[0] = c_load16(p + pos)
        pos += 2
    elif b == 0xDF:
        if end - pos < 4:
            return SCAN_TRUNCATED
        n[0] = c_load32(p + pos)
        pos += 4
    else:
        return SCAN_TYPE
    if n[0] > (end - pos) // 2:
        return SCAN_TRUNCATED
    return pos


cdef Py_ssize_t c_array(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end, Py_ssize_t *n) noexcept nogil:
    cdef unsigned char b
    if pos >= end:
        return SCAN_TRUNCATED
    b = p[pos]
    pos += 1
    if (b & 0xF0) == 0x90:
        n[0] = b & 0x0F
    elif b == 0xDC:
        if end - pos < 2:
            return SCAN_TRUNCATED
        n[0] = c_load16(p + pos)
        pos += 2
    elif b == 0xDD:
        if end - pos < 4:
            return SCAN_TRUNCATED
        n[0] = c_load32(p + pos)
        pos += 4
    else:
        return SCAN_TYPE
    if n[0] > end - pos:
        return SCAN_TRUNCATED
    return pos


cdef Py_ssize_t c_number(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end,
                         double *value, bint *is_int) noexcept nogil:
    cdef unsigned char b
    cdef int size
    cdef uint32_t word32
    cdef uint64_t word64
    cdef float single
    if pos >= end:
        return SCAN_TRUNCATED
    b = p[pos]
    pos += 1
    is_int[0] = True
    if b < 0x80:
        value[0] = b
        return pos
    if b >= 0xE0:
        value[0] = <int8_t> b
        return pos
    if b < 0xCA or b > 0xD3:
        return SCAN_TYPE
    size = 4 if b == 0xCA else 8 if b == 0xCB else 1 << (b & 3)
    if end - pos < size:
        return SCAN_TRUNCATED
    if b == 0xCC:
        value[0] = p[pos]
    elif b == 0xCD:
        value[0] = c_load16(p + pos)
    elif b == 0xCE:
        value[0] = c_load32(p + pos)
    elif b == 0xCF:
        value[0] = <double> c_load64(p + pos)
    elif b == 0xD0:
        value[0] = <int8_t> p[pos]
    elif b == 0xD1:
        value[0] = <int16_t> c_load16(p + pos)
    elif b == 0xD2:
        value[0] = <int32_t> c_load32(p + pos)
    elif b == 0xD3:
        value[0] = <double> <int64_t> c_load64(p + pos)
    elif b == 0xCA:
        word32 = c_load32(p + pos)
        memcpy(&single, &word32, 4)
        value[0] = single
        is_int[0] = False
    else:
        word64 = c_load64(p + pos)
        memcpy(value, &word64, 8)
        is_int[0] = False
    return pos + size


cdef int c_raise(Py_ssize_t error) except -1:
    if error == SCAN_TRUNCATED:
        raise ProtocolError("the bytes end inside a value")
    if error == SCAN_DEEP:
        raise ProtocolError(f"nested deeper than {SCAN_MAX_NESTING} levels")
    if error == SCAN_UTF8:
        raise ProtocolError("a text is not valid UTF-8")
    if error == SCAN_EXT:
        raise ProtocolError("an extension type is unknown or malformed")
    if error == SCAN_RESERVED:
        raise ProtocolError("the byte c1 has no meaning")
    if error == SCAN_KEY:
        raise ProtocolError("a key of a map is neither a text nor an integer")
    if error == SCAN_DATE:
        raise ProtocolError("a timestamp lies outside the years 1 to 9999")
    raise ProtocolError("a value has another type than expected")


def skip(data not None, Py_ssize_t pos=0):
    """Step over the value at ``pos`` and return ``(position after it, notes)``.

    ``notes`` is a sum of 1 (64-bit integer form), 2 (typed buffer) and 4
    (undefined). O(n) in the bytes of the value, without recursion and without
    allocation. Raises ProtocolError for bytes that are no valid value.
    """
    cdef uint32_t notes = 0
    cdef Py_ssize_t after, end
    cdef const unsigned char[::1] view
    cdef const unsigned char *p = NULL
    if isinstance(data, bytes):
        p = <const unsigned char *> PyBytes_AS_STRING(data)
        end = PyBytes_GET_SIZE(data)
    else:
        view = data
        end = view.shape[0]
        if end:
            p = &view[0]
    if pos < 0 or pos >= end:
        c_raise(SCAN_TRUNCATED)
    after = c_skip(p, pos, end, &notes)
    if after < 0:
        c_raise(after)
    return after, notes


@cython.final
cdef class FrameBuffer:
    """Cut a byte stream, fed in slices of any size, into frames.

    ``limit`` is the longest body in bytes that is let through. Holds the bytes fed
    and not yet handed out, at most twice over, and allocates for what came, never
    for what a length announces. Linear time however the stream is sliced. Not
    thread-safe.
    """

    def __cinit__(self, Py_ssize_t limit=_MAX_FRAME_BYTES):
        self.p = NULL
        self.start = 0
        self.stop = 0
        self.cap = 0
        self.limit = limit
        self.refused = -1

    def __dealloc__(self):
        PyMem_Free(self.p)

    cdef int c_room(self, Py_ssize_t n) except -1:
        cdef Py_ssize_t cap = self.cap if self.cap else FIRST_BYTES
        cdef Py_ssize_t held = self.stop - self.start
        cdef unsigned char *p
        # Moving down pays only when at least half of the buffer was handed out;
        # otherwise a consumer that lags behind would make it quadratic.
        if self.p != NULL and self.start >= held and held + n <= self.cap:
            memmove(self.p, self.p + self.start, held)
        else:
            if n > (<Py_ssize_t> ((<size_t> -1) >> 2)) - self.stop:
                raise MemoryError()
            while cap < held + n or (cap == self.cap and self.start < held):
                cap *= 2
            p = <unsigned char *> PyMem_Malloc(cap)
            if p == NULL:
                raise MemoryError()
            if held:
                memcpy(p, self.p + self.start, held)
            PyMem_Free(self.p)
            self.p = p
            self.cap = cap
        self.start = 0
        self.stop = held
        return 0

    cdef int c_feed(self, const unsigned char *data, Py_ssize_t n) except -1:
        if self.refused >= 0 or n == 0:
            return 0
        if self.start == self.stop:
            self.start = 0
            self.stop = 0
            if self.cap > KEEP_BYTES:
                PyMem_Free(self.p)
                self.p = NULL
                self.cap = 0
        if n > self.cap - self.stop:
            self.c_room(n)
        memcpy(self.p + self.stop, data, n)
        self.stop += n
        return 0

    cdef Py_ssize_t c_next(self, const unsigned char **body) except -2:
        cdef Py_ssize_t held = self.stop - self.start
        cdef Py_ssize_t n
        if self.refused >= 0:
            raise FrameTooLarge(self.refused, self.limit)
        if held < 4:
            return -1
        n = c_load32(self.p + self.start)
        if n > self.limit:
            # What follows cannot be told apart any more, so nothing of it is kept.
            self.refused = n
            self.start = 0
            self.stop = 0
            self.cap = 0
            PyMem_Free(self.p)
            self.p = NULL
            raise FrameTooLarge(n, self.limit)
        if held - 4 < n:
            return -1
        body[0] = self.p + self.start + 4
        self.start += 4 + n
        return n

    def feed(self, data not None):
        """Take a slice of the stream; after a frame that was too large it is dropped."""
        cdef const unsigned char[::1] view
        if isinstance(data, bytes):
            self.c_feed(<const unsigned char *> PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
            return
        view = data
        if view.shape[0]:
            self.c_feed(&view[0], view.shape[0])

    def next(self):
        """Return the body of the next whole frame, or None; FrameTooLarge as soon as its length is known."""
        cdef const unsigned char *body = NULL
        cdef Py_ssize_t n = self.c_next(&body)
        if n < 0:
            return None
        return PyBytes_FromStringAndSize(<const char *> body, n)

    @property
    def pending(self):
        """Bytes received and not handed out."""
        return self.stop - self.start

    @property
    def nbytes(self):
        """Bytes of memory held for the stream."""
        return self.cap
