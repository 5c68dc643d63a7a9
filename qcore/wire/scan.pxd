from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    # Deepest nesting of lists and maps that is let through.
    SCAN_MAX_NESTING = 512
    # The same for a whole frame of replies, which holds payloads inside of its own levels.
    SCAN_MAX_FRAME_NESTING = 528

cdef enum ScanNote:
    NOTE_INT64 = 1  # a 64-bit integer form (cf, d3) is present
    NOTE_TYPED = 2  # one of our own extension types is present
    NOTE_UNDEFINED = 4  # extension type 0 is present

cdef enum ScanError:
    SCAN_TRUNCATED = -1  # a value ends after the bytes do
    SCAN_DEEP = -2  # nested deeper than SCAN_MAX_NESTING
    SCAN_UTF8 = -3  # a str is not UTF-8
    SCAN_EXT = -4  # an unknown extension type, or a malformed timestamp
    SCAN_RESERVED = -5  # the byte c1, which has no meaning
    SCAN_TYPE = -6  # another type than the one asked for
    SCAN_KEY = -7  # a key of a map is neither a text nor an integer
    SCAN_DATE = -8  # a timestamp outside the years 1 to 9999

# All positions are offsets from `p`; `end` is one past the last readable byte.
# Each returns the position after what it read, or a ScanError.
cdef Py_ssize_t c_skip(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end, uint32_t *notes) noexcept nogil
# The same for what a peer asks to have stored: nothing that some reader cannot give back. SCAN_KEY and SCAN_DATE
# come from here only, since what is stored already may hold such values.
cdef Py_ssize_t c_skip_given(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end, uint32_t *notes) noexcept nogil
# The same for a part of a reply that holds payloads.
cdef Py_ssize_t c_skip_frame(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end, uint32_t *notes) noexcept nogil
cdef Py_ssize_t c_str(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end,
                      const unsigned char **s, Py_ssize_t *n) noexcept nogil
cdef Py_ssize_t c_map(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end, Py_ssize_t *n) noexcept nogil
cdef Py_ssize_t c_array(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end, Py_ssize_t *n) noexcept nogil
cdef Py_ssize_t c_number(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end,
                         double *value, bint *is_int) noexcept nogil
cdef bint c_utf8(const unsigned char *s, Py_ssize_t n) noexcept nogil
# Raises ProtocolError for a ScanError; always returns -1.
cdef int c_raise(Py_ssize_t error) except -1

cdef inline uint32_t c_load16(const unsigned char *p) noexcept nogil:
    return (<uint32_t> p[0] << 8) | p[1]

cdef inline uint32_t c_load32(const unsigned char *p) noexcept nogil:
    return (<uint32_t> p[0] << 24) | (<uint32_t> p[1] << 16) | (<uint32_t> p[2] << 8) | p[3]

cdef inline uint64_t c_load64(const unsigned char *p) noexcept nogil:
    return (<uint64_t> c_load32(p) << 32) | c_load32(p + 4)


cdef class FrameBuffer:
    cdef unsigned char *p
    cdef Py_ssize_t start  # first byte not handed out yet
    cdef Py_ssize_t stop  # one past the last byte received
    cdef Py_ssize_t cap
    cdef Py_ssize_t limit  # longest body let through, in bytes
    cdef Py_ssize_t refused  # length of the frame that was too large, or -1

    cdef int c_room(self, Py_ssize_t n) except -1
    cdef int c_feed(self, const unsigned char *data, Py_ssize_t n) except -1
    # Length of the next whole frame, or -1; `body` is good until the next c_feed.
    cdef Py_ssize_t c_next(self, const unsigned char **body) except -2
