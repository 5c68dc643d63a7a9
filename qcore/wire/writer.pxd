from libc.stdint cimport int64_t, uint64_t


cdef class Packed:
    cdef readonly bytes data
    cdef readonly str fault


# A Packed around bytes that are known to hold exactly one value.
cdef Packed c_packed(bytes data)


cdef class Writer:
    cdef unsigned char *p
    cdef Py_ssize_t n  # bytes written
    cdef Py_ssize_t cap  # bytes allocated
    cdef Py_ssize_t keep  # an emptied buffer larger than this is given back

    cdef bytes c_copy(self)
    cdef void c_clear(self) noexcept
    cdef int c_grow(self, Py_ssize_t k) except -1
    cdef inline int c_need(self, Py_ssize_t k) except -1:
        # Room for k more bytes.
        if self.cap - self.n >= k:
            return 0
        return self.c_grow(k)

    cdef int c_raw(self, const void *ptr, Py_ssize_t k) except -1
    cdef int c_str(self, const void *ptr, Py_ssize_t k) except -1
    cdef int c_bin(self, const void *ptr, Py_ssize_t k) except -1
    cdef int c_int(self, int64_t v) except -1
    cdef int c_float(self, double v) except -1
    cdef int c_ms(self, int64_t v) except -1
    cdef int c_nil(self) except -1
    cdef int c_bool(self, bint v) except -1
    cdef int c_map(self, Py_ssize_t k) except -1
    cdef int c_array(self, Py_ssize_t k) except -1
    # Reserves a frame's length and returns the offset after it; c_close fills it in.
    cdef Py_ssize_t c_open(self) except -1
    cdef int c_close(self, Py_ssize_t at) except -1
    # A plain Python value, or a Packed as it is. Nothing stays behind after an error.
    cdef int c_value(self, object o) except -1
    cdef int c_put(self, object o, int depth) except -1
    cdef int c_text(self, object s) except -1


cdef inline void c_store16(unsigned char *p, unsigned int v) noexcept nogil:
    p[0] = (v >> 8) & 0xFF
    p[1] = v & 0xFF

cdef inline void c_store32(unsigned char *p, uint64_t v) noexcept nogil:
    p[0] = (v >> 24) & 0xFF
    p[1] = (v >> 16) & 0xFF
    p[2] = (v >> 8) & 0xFF
    p[3] = v & 0xFF

cdef inline void c_store64(unsigned char *p, uint64_t v) noexcept nogil:
    c_store32(p, v >> 32)
    c_store32(p + 4, v)
