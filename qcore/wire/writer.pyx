"""Growable buffer that writes MessagePack.

It writes what every peer can read: the shortest form of each type, floats as
float64, and integers outside -2147483648..4294967295 as float64 too, because
JavaScript peers cannot compute with 64-bit integer forms.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from qcore.wire.scan cimport SCAN_MAX_NESTING, c_raise, c_skip

from qcore.errors import ProtocolError, SerializationError

cdef extern from "Python.h":
    int64_t PyLong_AsLongLongAndOverflow(object o, int *overflow) except? -1

cdef enum:
    FIRST_BYTES = 256
    KEEP_BYTES = 1 << 18


@cython.final
cdef class Packed:
    """The bytes of exactly one MessagePack value, passed along unopened.

    ``Packed(data)`` checks the bytes, O(n), and raises ProtocolError when they
    are not exactly one valid value. ``fault`` says why a value that came with a
    request is not to be stored, if so: a reader could not give it back.
    """

    def __cinit__(self, bytes data not None=b"\xc0"):
        self.data = data

    def __init__(self, bytes data not None):
        cdef uint32_t notes = 0
        cdef Py_ssize_t n = PyBytes_GET_SIZE(data)
        cdef Py_ssize_t after = c_skip(<const unsigned char *> PyBytes_AS_STRING(data), 0, n, &notes)
        if after < 0:
            c_raise(after)
        if after != n:
            raise ProtocolError(f"{n - after} bytes follow the value")

    def __eq__(self, other):
        if isinstance(other, Packed):
            return self.data == (<Packed> other).data
        return NotImplemented

    def __hash__(self):
        return hash(self.data)

    def __len__(self):
        return PyBytes_GET_SIZE(self.data)

    def __repr__(self):
        return f"<Packed {PyBytes_GET_SIZE(self.data)} bytes>"

    def __reduce__(self):
        return Packed, (self.data,)


cdef Packed c_packed(bytes data):
    cdef Packed packed = Packed.__new__(Packed, data)
    return packed


@cython.final
cdef class Writer:
    """Collect MessagePack values, and frames of them, in one buffer.

    Owns its memory; ``take`` hands out a copy and empties it. Not thread-safe.
    """

    def __cinit__(self):
        self.p = <unsigned char *> PyMem_Malloc(FIRST_BYTES)
        if self.p == NULL:
            raise MemoryError()
        self.cap = FIRST_BYTES
        self.n = 0
        self.keep = KEEP_BYTES

    def __dealloc__(self):
        PyMem_Free(self.p)

    cdef int c_grow(self, Py_ssize_t k) except -1:
        cdef Py_ssize_t cap = self.cap
        cdef unsigned char *p
        if k > <Py_ssize_t> ((<size_t> -1) >> 2) - self.n:
            raise MemoryError()
        while cap - self.n < k:
            cap *= 2
        p = <unsigned char *> PyMem_Realloc(self.p, cap)
        if p == NULL:
            raise MemoryError()
        self.p = p
        self.cap = cap
        return 0

    cdef int c_raw(self, const void *ptr, Py_ssize_t k) except -1:
        self.c_need(k)
        memcpy(self.p + self.n, ptr, k)
        self.n += k
        return 0

    cdef int c_str(self, const void *ptr, Py_ssize_t k) except -1:
        cdef unsigned char *q
        self.c_need(k + 5)
        q = self.p + self.n
        if k < 32:
            q[0] = 0xA0 | <unsigned char> k
            q += 1
        elif k < 256:
            q[0] = 0xD9
            q[1] = <unsigned char> k
            q += 2
        elif k < 65536:
            q[0] = 0xDA
            c_store16(q + 1, k)
            q += 3
        elif k <= 0xFFFFFFFFLL:
            q[0] = 0xDB
            c_store32(q + 1, k)
            q += 5
        else:
            raise SerializationError(f"a text of {k} bytes is longer than MessagePack can hold")
        memcpy(q, ptr, k)
        self.n = q - self.p + k
        return 0

    cdef int c_bin(self, const void *ptr, Py_ssize_t k) except -1:
        cdef unsigned char *q
        self.c_need(k + 5)
        q = self.p + self.n
        if k < 256:
            q[0] = 0xC4
            q[1] = <unsigned char> k
            q += 2
        elif k < 65536:
            q[0] = 0xC5
            c_store16(q + 1, k)
            q += 3
        elif k <= 0xFFFFFFFFLL:
            q[0] = 0xC6
            c_store32(q + 1, k)
            q += 5
        else:
            raise SerializationError(f"{k} bytes are more than MessagePack can hold")
        memcpy(q, ptr, k)
        self.n = q - self.p + k
        return 0

    cdef int c_int(self, int64_t v) except -1:
        cdef unsigned char *q
        self.c_need(9)
        q = self.p + self.n
        if v >= 0:
            if v < 128:
                q[0] = <unsigned char> v
                self.n += 1
            elif v < 256:
                q[0] = 0xCC
                q[1] = <unsigned char> v
                self.n += 2
            elif v < 65536:
                q[0] = 0xCD
                c_store16(q + 1, v)
                self.n += 3
            elif v <= 0xFFFFFFFFLL:
                q[0] = 0xCE
                c_store32(q + 1, v)
                self.n += 5
            else:
                return self.c_float(<double> v)
        elif v >= -32:
            q[0] = <unsigned char> v
            self.n += 1
        elif v >= -128:
            q[0] = 0xD0
            q[1] = <unsigned char> v
            self.n += 2
        elif v >= -32768:
            q[0] = 0xD1
            c_store16(q + 1, <unsigned int> v & 0xFFFF)
            self.n += 3
        elif v >= -2147483648:
            q[0] = 0xD2
            c_store32(q + 1, <uint64_t> v)
            self.n += 5
        else:
            return self.c_float(<double> v)
        return 0

    cdef int c_float(self, double v) except -1:
        cdef uint64_t word
        self.c_need(9)
        memcpy(&word, &v, 8)
        self.p[self.n] = 0xCB
        c_store64(self.p + self.n + 1, word)
        self.n += 9
        return 0

    cdef int c_ms(self, int64_t v) except -1:
        return self.c_float(<double> v)

    cdef int c_nil(self) except -1:
        self.c_need(1)
        self.p[self.n] = 0xC0
        self.n += 1
        return 0

    cdef int c_bool(self, bint v) except -1:
        self.c_need(1)
        self.p[self.n] = 0xC3 if v else 0xC2
        self.n += 1
        return 0

    cdef int c_map(self, Py_ssize_t k) except -1:
        self.c_need(5)
        if k < 16:
            self.p[self.n] = 0x80 | <unsigned char> k
            self.n += 1
        elif k < 65536:
            self.p[self.n] = 0xDE
            c_store16(self.p + self.n + 1, k)
            self.n += 3
        elif k <= 0xFFFFFFFFLL:
            self.p[self.n] = 0xDF
            c_store32(self.p + self.n + 1, k)
            self.n += 5
        else:
            raise SerializationError(f"a map of {k} entries is larger than MessagePack can hold")
        return 0

    cdef int c_array(self, Py_ssize_t k) except -1:
        self.c_need(5)
        if k < 16:
            self.p[self.n] = 0x90 | <unsigned char> k
            self.n += 1
        elif k < 65536:
            self.p[self.n] = 0xDC
            c_store16(self.p + self.n + 1, k)
            self.n += 3
        elif k <= 0xFFFFFFFFLL:
            self.p[self.n] = 0xDD
            c_store32(self.p + self.n + 1, k)
            self.n += 5
        else:
            raise SerializationError(f"a list of {k} items is larger than MessagePack can hold")
        return 0

    cdef Py_ssize_t c_open(self) except -1:
        self.c_need(4)
        self.n += 4
        return self.n

    cdef int c_close(self, Py_ssize_t at) except -1:
        cdef Py_ssize_t size = self.n - at
        if size > 0xFFFFFFFFLL:
            raise SerializationError(f"a frame of {size} bytes is longer than its length field can say")
        c_store32(self.p + at - 4, size)
        return 0

    cdef int c_text(self, object s) except -1:
        cdef Py_ssize_t k
        cdef const char *utf8
        try:
            utf8 = PyUnicode_AsUTF8AndSize(s, &k)
        except UnicodeEncodeError:
            raise SerializationError("a text holds a lone surrogate, which UTF-8 cannot carry") from None
        return self.c_str(utf8, k)

    cdef int c_value(self, object o) except -1:
        cdef Py_ssize_t before = self.n
        try:
            return self.c_put(o, 0)
        except BaseException:
            self.n = before
            raise

    cdef int c_put(self, object o, int depth) except -1:
        cdef int overflow = 0
        cdef int64_t v
        cdef object key, value
        if o is None:
            return self.c_nil()
        if o is True or o is False:
            return self.c_bool(o is True)
        if isinstance(o, str):
            return self.c_text(o)
        if isinstance(o, Packed):
            return self.c_raw(PyBytes_AS_STRING((<Packed> o).data), PyBytes_GET_SIZE((<Packed> o).data))
        if isinstance(o, int):
            v = PyLong_AsLongLongAndOverflow(o, &overflow)
            if overflow == 0:
                return self.c_int(v)
            try:
                return self.c_float(<double> o)
            except OverflowError:
                raise SerializationError("an integer is too large for a float64") from None
        if isinstance(o, float):
            return self.c_float(<double> o)
        if isinstance(o, bytes):
            return self.c_bin(PyBytes_AS_STRING(o), PyBytes_GET_SIZE(o))
        if depth == SCAN_MAX_NESTING:
            raise SerializationError(f"nested deeper than {SCAN_MAX_NESTING} levels")
        if isinstance(o, dict):
            self.c_map(len(<dict> o))
            for key, value in (<dict> o).items():
                if not isinstance(key, str):
                    raise SerializationError(f"a map key must be a str, not {type(key).__name__}")
                self.c_text(key)
                self.c_put(value, depth + 1)
            return 0
        if isinstance(o, list):
            self.c_array(len(<list> o))
            for value in <list> o:
                self.c_put(value, depth + 1)
            return 0
        if isinstance(o, tuple):
            self.c_array(len(<tuple> o))
            for value in <tuple> o:
                self.c_put(value, depth + 1)
            return 0
        raise SerializationError(f"cannot carry a value of type {type(o).__name__}")

    def value(self, o):
        """Append one value; SerializationError, and nothing appended, if it cannot be carried."""
        self.c_value(o)

    def raw(self, bytes b not None):
        """Append bytes as they are."""
        self.c_raw(PyBytes_AS_STRING(b), PyBytes_GET_SIZE(b))

    def frame(self, o):
        """Append one value behind its 4-byte big-endian length."""
        cdef Py_ssize_t before = self.n
        cdef Py_ssize_t at = self.c_open()
        try:
            self.c_put(o, 0)
            self.c_close(at)
        except BaseException:
            self.n = before
            raise

    def tobytes(self):
        """Return a copy of what was written."""
        return PyBytes_FromStringAndSize(<char *> self.p, self.n)

    def take(self):
        """Return what was written and empty the buffer."""
        cdef bytes out = self.c_copy()
        self.c_clear()
        return out

    cdef bytes c_copy(self):
        return PyBytes_FromStringAndSize(<char *> self.p, self.n)

    def clear(self):
        """Empty the buffer; a large one gives its memory back."""
        self.c_clear()

    cdef void c_clear(self) noexcept:
        cdef unsigned char *p
        self.n = 0
        if self.cap > self.keep:
            p = <unsigned char *> PyMem_Realloc(self.p, FIRST_BYTES)
            if p != NULL:
                self.p = p
                self.cap = FIRST_BYTES

    def __len__(self):
        return self.n
