"""Python values to MessagePack and back, buffers included.

Plain values come out byte for byte as ``msgpack.packb(value, use_bin_type=True,
datetime=True)`` writes them. Buffers (memoryview, array.array, numpy arrays) go
as the exact bytes of their elements in C order, copied once, never item by item.
Between peers that agreed on it (``typed``) they travel as an extension that
brings format, shape and byte order along.

Layout of the extension, type 0x51: a MessagePack list ``[kind, format, shape]``,
then the elements. ``kind`` is ``v`` (memoryview), ``a`` (array.array), ``n``
(numpy array) or ``s`` (numpy scalar). ``format`` of ``v`` and ``a`` is byte order,
type code and item size, such as ``<d8``; of ``n`` and ``s`` the numpy type
string, such as ``>i8``, or the list of fields of a structured type.
"""

from cpython.buffer cimport (
    PyBUF_FULL_RO,
    PyBuffer_IsContiguous,
    PyBuffer_Release,
    PyBuffer_ToContiguous,
    PyObject_GetBuffer,
)
from cpython.bytearray cimport PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Next, PyDict_SetItem, PyDict_Size
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from cpython.tuple cimport PyTuple_GET_SIZE
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from qcore.wire.scan cimport (
    SCAN_DATE,
    SCAN_DEEP,
    SCAN_EXT,
    SCAN_KEY,
    SCAN_MAX_FRAME_NESTING,
    SCAN_MAX_NESTING,
    SCAN_RESERVED,
    SCAN_TRUNCATED,
    SCAN_UTF8,
    c_load16,
    c_load32,
    c_load64,
    c_map,
    c_raise,
    c_skip,
    c_skip_given,
    c_str,
)
from qcore.wire.writer cimport Packed, Writer, c_packed, c_store16, c_store32, c_store64

import math
import re
import sys
from sys import intern
from array import array
from datetime import datetime, timedelta, timezone

from qcore.errors import ProtocolError, SerializationError
from qcore.limits import MAX_FRAME_BYTES as _MAX_FRAME_BYTES

cdef extern from "Python.h":
    int64_t PyLong_AsLongLongAndOverflow(object o, int *overflow) except? -1
    uint64_t PyLong_AsUnsignedLongLong(object o) except? 0xFFFFFFFFFFFFFFFF
    object PyUnicode_DecodeUTF8(const char *s, Py_ssize_t size, const char *errors)
    const char *PyUnicode_AsUTF8AndSize(object s, Py_ssize_t *size) except NULL
    bint PyUnicode_IS_COMPACT_ASCII(object s)
    Py_ssize_t PyUnicode_GET_LENGTH(object s)
    void *PyUnicode_DATA(object s)
    bint PyDict_CheckExact(object o)
    bint PyUnicode_CheckExact(object o)
    bint PyLong_CheckExact(object o)
    bint PyFloat_CheckExact(object o)
    bint PyList_CheckExact(object o)
    bint PyTuple_CheckExact(object o)
    bint PyBytes_CheckExact(object o)
    double PyFloat_AS_DOUBLE(object o)
    PyObject *PyList_GET_ITEM(object o, Py_ssize_t i)
    PyObject *PyTuple_GET_ITEM(object o, Py_ssize_t i)

cdef enum:
    CACHED_KEYS = 512  # a power of two
    CACHED_KEY_BYTES = 32  # longer keys are not kept
    SPARE_BYTES = 1 << 22  # largest buffer kept between calls of pack
    ENVELOPE_VALUES = 4000000  # values one request may hold outside its payloads

cdef Py_ssize_t MAX_BYTES = _MAX_FRAME_BYTES
cdef object EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
cdef object UTC = timezone.utc
cdef str ORDER = "<" if sys.byteorder == "little" else ">"

# Code and size of the formats that memoryview.cast and array.array know.
cdef object FORMAT = re.compile(r"([<>|])([a-zA-Z?])([1-9][0-9]?)")
cdef object DTYPE = re.compile(r"[<>|][a-zA-Z][0-9]{0,9}(\[[0-9]*[a-zA-Z]+\])?")
cdef str CAST_CODES = "bBhHiIlLqQnNfd?c"
# Codes that hold the same numbers, for peers whose C types have other sizes.
cdef dict ALIKE = {
    **dict.fromkeys("bhilqn", "bhilq"),
    **dict.fromkeys("BHILQN", "BHILQ"),
    "f": "fd",
    "d": "fd",
    "?": "?",
    "c": "c",
    "u": "uw",
    "w": "uw",
}


# --- writing ---------------------------------------------------------------------------------

cdef int refuse_deep() except -1:
    raise SerializationError(f"nested deeper than {SCAN_MAX_NESTING} levels, or a value contains itself")


cdef int refuse_large() except -1:
    raise SerializationError(f"the encoded value is larger than {MAX_BYTES} bytes")


cdef int pack_int(Writer w, object o, bint int64) except -1:
    cdef int overflow = 0
    cdef int64_t v = PyLong_AsLongLongAndOverflow(o, &overflow)
    cdef uint64_t u
    if overflow == 0:
        if -2147483648 <= v <= <int64_t> 4294967295:
            return w.c_int(v)
        if not int64:
            if -(<int64_t> 1 << 53) <= v <= (<int64_t> 1 << 53):
                return w.c_float(<double> v)
            raise SerializationError("an integer beyond 2**53 cannot be sent to this peer exactly")
        w.c_need(9)
        # Positive numbers take the unsigned form, as the shortest-form rule of msgpack has it.
        w.p[w.n] = 0xCF if v >= 0 else 0xD3
        c_store64(w.p + w.n + 1, <uint64_t> v)
        w.n += 9
        return 0
    if overflow < 0 or not int64:
        raise SerializationError("an integer does not fit into 64 bits" if int64 else
                                 "an integer beyond 2**53 cannot be sent to this peer exactly")
    try:
        u = PyLong_AsUnsignedLongLong(o)
    except OverflowError:
        raise SerializationError("an integer does not fit into 64 bits") from None
    w.c_need(9)
    w.p[w.n] = 0xCF
    c_store64(w.p + w.n + 1, u)
    w.n += 9
    return 0


cdef inline int pack_text(Writer w, object s) except -1:
    if PyUnicode_GET_LENGTH(s) > MAX_BYTES - w.n:
        refuse_large()
    if PyUnicode_IS_COMPACT_ASCII(s):
        return w.c_str(PyUnicode_DATA(s), PyUnicode_GET_LENGTH(s))
    return w.c_text(s)


cdef int pack_ext_head(Writer w, int8_t code, Py_ssize_t n) except -1:
    cdef unsigned char *q
    w.c_need(6)
    q = w.p + w.n
    if n == 1 or n == 2 or n == 4 or n == 8 or n == 16:
        q[0] = 0xD4 if n == 1 else 0xD5 if n == 2 else 0xD6 if n == 4 else 0xD7 if n == 8 else 0xD8
        q += 1
    elif n < 256:
        q[0] = 0xC7
        q[1] = <unsigned char> n
        q += 2
    elif n < 65536:
        q[0] = 0xC8
        c_store16(q + 1, <unsigned int> n)
        q += 3
    else:
        q[0] = 0xC9
        c_store32(q + 1, <uint64_t> n)
        q += 5
    q[0] = <unsigned char> code
    w.n = q - w.p + 1
    return 0


cdef int pack_datetime(Writer w, object o) except -1:
    cdef int64_t seconds
    cdef uint64_t nanos
    if o.utcoffset() is None:
        raise SerializationError("a naive datetime names no instant; give it a tzinfo")
    if getattr(o, "nanosecond", 0):
        raise SerializationError("a datetime with nanoseconds would lose them")
    delta = o - EPOCH
    seconds = delta.days * 86400 + delta.seconds
    nanos = delta.microseconds * 1000
    if 0 <= seconds < (<int64_t> 1 << 34):
        if nanos == 0 and seconds <= <int64_t> 4294967295:
            pack_ext_head(w, EXT_TIMESTAMP, 4)
            w.c_need(4)
            c_store32(w.p + w.n, <uint64_t> seconds)
            w.n += 4
        else:
            pack_ext_head(w, EXT_TIMESTAMP, 8)
            w.c_need(8)
            c_store64(w.p + w.n, (nanos << 34) | <uint64_t> seconds)
            w.n += 8
    else:
        pack_ext_head(w, EXT_TIMESTAMP, 12)
        w.c_need(12)
        c_store32(w.p + w.n, nanos)
        c_store64(w.p + w.n + 4, <uint64_t> seconds)
        w.n += 12
    return 0


cdef int pack_elements(Writer w, object o, bytes header) except -1:
    """Write a buffer in C order: as bin when ``header`` is None, else as a typed extension."""
    cdef Py_buffer view
    cdef Py_ssize_t n
    PyObject_GetBuffer(o, &view, PyBUF_FULL_RO)
    try:
        n = view.len
        if n > MAX_BYTES - w.n:
            refuse_large()
        if header is None:
            w.c_need(n + 5)
            if n < 256:
                w.p[w.n] = 0xC4
                w.p[w.n + 1] = <unsigned char> n
                w.n += 2
            elif n < 65536:
                w.p[w.n] = 0xC5
                c_store16(w.p + w.n + 1, <unsigned int> n)
                w.n += 3
            else:
                w.p[w.n] = 0xC6
                c_store32(w.p + w.n + 1, <uint64_t> n)
                w.n += 5
        else:
            pack_ext_head(w, EXT_TYPED, n + PyBytes_GET_SIZE(header))
            w.c_raw(PyBytes_AS_STRING(header), PyBytes_GET_SIZE(header))
        w.c_need(n)
        if PyBuffer_IsContiguous(&view, b"C"):
            memcpy(w.p + w.n, view.buf, n)
        else:
            PyBuffer_ToContiguous(w.p + w.n, &view, n, b"C")
        w.n += n
    finally:
        PyBuffer_Release(&view)
    return 0


cdef bytes typed_header(str kind, object format, object shape):
    cdef Writer w = Writer()
    w.c_value([kind, format, list(shape)])
    return w.take()


cdef int refuse_pointers(str format) except -1:
    # Field names stand between colons and are no codes.
    for code in re.sub(":[^:]*:", "", format):
        if code in "OP&X":
            raise SerializationError("a buffer of object references or pointers cannot be carried")
    return 0


cdef int pack_view(Writer w, object o, bint typed) except -1:
    cdef str format
    try:
        format = o.format
    except ValueError:
        raise SerializationError("a released memoryview cannot be carried") from None
    refuse_pointers(format)
    if not typed or (o.ndim == 1 and format == "B"):
        return pack_elements(w, o, None)
    code = format[1:] if format[0] == "@" else format
    if len(code) != 1 or code not in CAST_CODES:
        raise SerializationError(f"a memoryview of format {format!r} would not survive; send its bytes")
    if o.ndim != 1 and 0 in o.shape:
        raise SerializationError("an empty memoryview of several dimensions would not survive")
    return pack_elements(w, o, typed_header("v", f"{ORDER}{code}{o.itemsize}", o.shape))


cdef int pack_ndarray(Writer w, object np, object o, bint typed) except -1:
    cdef bytes header = None
    dtype = o.dtype
    if dtype.hasobject:
        raise SerializationError("a numpy array of Python objects cannot be carried")
    if isinstance(o, np.ma.MaskedArray):
        raise SerializationError("a masked array would lose its mask; fill it first")
    if typed:
        if type(o) is not np.ndarray and type(o) is not np.memmap:
            raise SerializationError(f"a numpy array of type {type(o).__name__} would not survive; "
                                     "send numpy.asarray of it")
        header = typed_header("n", dtype_format(np, dtype), o.shape)
    if not o.flags.c_contiguous or dtype.kind not in "biufcSUV" or dtype.names is not None:
        # One extra copy, made by numpy: it is quick with strides, and some
        # types, such as datetime64, have no buffer form.
        return pack_elements(w, o.tobytes(), header)
    return pack_elements(w, o, header)


cdef object dtype_format(object np, object dtype):
    """The type string of a numpy type or the list of its fields; refused unless it leads back to it."""
    if dtype.itemsize == 0 or dtype.metadata:
        raise SerializationError(f"the numpy type {dtype} would not survive")
    format = dtype.str if dtype.names is None else [list(field) for field in dtype.descr]
    try:
        same = dtype_of(np, plain_lists(format)) == dtype
    except (ValueError, TypeError, ProtocolError):
        same = False
    if not same:
        raise SerializationError(f"the numpy type {dtype} would not survive")
    return plain_lists(format)


cdef object plain_lists(object format):
    if isinstance(format, (list, tuple)):
        return [plain_lists(part) for part in format]
    return format


cdef object dtype_of(object np, object format):
    return np.lib.format.descr_to_dtype(description_of(format))


cdef object description_of(object format):
    """The form in which numpy describes a type, from lists; nothing in it is evaluated."""
    if isinstance(format, str):
        if DTYPE.fullmatch(format) is None:
            raise ProtocolError("a typed buffer has an unknown element type")
        return format
    fields = []
    for field in format if isinstance(format, list) else [None]:
        if not isinstance(field, list) or len(field) not in (2, 3):
            raise ProtocolError("a typed buffer has an unknown element type")
        name = tuple(field[0]) if isinstance(field[0], list) else field[0]
        inner = description_of(field[1])
        if len(field) == 2:
            fields.append((name, inner))
        elif isinstance(field[2], list) and all(type(d) is int and d >= 0 for d in field[2]):
            fields.append((name, inner, tuple(field[2])))
        else:
            raise ProtocolError("a typed buffer has an unknown element type")
    return fields


cdef int pack_scalar(Writer w, object np, object o, bint typed, bint int64) except -1:
    dtype = o.dtype
    if typed:
        if dtype.hasobject or dtype.names is not None:
            raise SerializationError(f"a numpy scalar of type {dtype} cannot be carried")
        return pack_elements(w, o.tobytes(), typed_header("s", dtype_format(np, dtype), ()))
    if dtype.kind == "b":
        return w.c_bool(bool(o))
    if dtype.kind in "iu":
        return pack_int(w, int(o), int64)
    if dtype.kind == "f" and dtype.itemsize <= 8:
        return w.c_float(float(o))
    raise SerializationError(f"a numpy scalar of type {dtype} has no plain form")


cdef int pack_other(Writer w, object o, int depth, bint typed, bint int64) except -1:
    """Subclasses of plain types, dates, buffers; refusal of the rest."""
    cdef Py_ssize_t n
    if isinstance(o, str):
        return pack_text(w, o)
    if isinstance(o, bytes):
        n = PyBytes_GET_SIZE(o)
        if n > MAX_BYTES - w.n:
            refuse_large()
        return w.c_bin(PyBytes_AS_STRING(o), n)
    if isinstance(o, Packed):
        return w.c_raw(PyBytes_AS_STRING((<Packed> o).data), PyBytes_GET_SIZE((<Packed> o).data))
    np = sys.modules.get("numpy")
    # A half-imported numpy has no classes yet, so nothing can be one of them.
    if np is not None and hasattr(np, "memmap"):
        if isinstance(o, np.ndarray):
            return pack_ndarray(w, np, o, typed)
        if isinstance(o, np.generic):
            return pack_scalar(w, np, o, typed, int64)
    if isinstance(o, int):
        return pack_int(w, o, int64)
    if isinstance(o, float):
        return w.c_float(<double> o)
    if isinstance(o, (dict, list, tuple)):
        if depth == SCAN_MAX_NESTING:
            refuse_deep()
        if isinstance(o, dict):
            items = list(o.items())
            w.c_map(len(items))
            for key, value in items:
                if not isinstance(key, str):
                    raise SerializationError(f"a map key must be a str, not {type(key).__name__}")
                pack_text(w, key)
                pack_value(w, value, depth + 1, typed, int64)
            return 0
        items = list(o)
        w.c_array(len(items))
        for value in items:
            pack_value(w, value, depth + 1, typed, int64)
        return 0
    if isinstance(o, datetime):
        return pack_datetime(w, o)
    if isinstance(o, bytearray):
        return pack_elements(w, o, None)
    if isinstance(o, memoryview):
        return pack_view(w, o, typed)
    if isinstance(o, array):
        if not typed:
            return pack_elements(w, o, None)
        return pack_elements(w, o, typed_header("a", f"{ORDER}{o.typecode}{o.itemsize}", (len(o),)))
    raise SerializationError(f"cannot carry a value of type {type(o).__name__}")


cdef int pack_value(Writer w, object o, int depth, bint typed, bint int64) except -1:
    cdef Py_ssize_t i, n
    cdef PyObject *key
    cdef PyObject *value
    cdef object k, v
    if PyUnicode_CheckExact(o):
        return pack_text(w, o)
    if o is None:
        return w.c_nil()
    if o is True or o is False:
        return w.c_bool(o is True)
    if PyLong_CheckExact(o):
        return pack_int(w, o, int64)
    if PyFloat_CheckExact(o):
        return w.c_float(PyFloat_AS_DOUBLE(o))
    if PyDict_CheckExact(o):
        if depth == SCAN_MAX_NESTING:
            refuse_deep()
        if w.n > MAX_BYTES:
            refuse_large()
        n = PyDict_Size(o)
        w.c_map(n)
        i = 0
        while PyDict_Next(o, &i, &key, &value):
            # Held, because a hook further down may run other threads.
            k = <object> key
            v = <object> value
            if not isinstance(k, str):
                raise SerializationError(f"a map key must be a str, not {type(k).__name__}")
            pack_text(w, k)
            pack_value(w, v, depth + 1, typed, int64)
            n -= 1
            if PyDict_Size(o) < n or n < 0:
                break
        if n != 0:
            raise SerializationError("a map changed while it was packed")
        return 0
    if PyList_CheckExact(o):
        if depth == SCAN_MAX_NESTING:
            refuse_deep()
        if w.n > MAX_BYTES:
            refuse_large()
        n = PyList_GET_SIZE(o)
        w.c_array(n)
        for i in range(n):
            if PyList_GET_SIZE(o) != n:
                raise SerializationError("a list changed while it was packed")
            v = <object> PyList_GET_ITEM(o, i)
            pack_value(w, v, depth + 1, typed, int64)
        return 0
    if PyTuple_CheckExact(o):
        if depth == SCAN_MAX_NESTING:
            refuse_deep()
        if w.n > MAX_BYTES:
            refuse_large()
        n = PyTuple_GET_SIZE(o)
        w.c_array(n)
        for i in range(n):
            pack_value(w, <object> PyTuple_GET_ITEM(o, i), depth + 1, typed, int64)
        return 0
    return pack_other(w, o, depth, typed, int64)


# One buffer is kept for the next call: a small value then costs no allocation, and
# a large one no fresh pages, which cost more than the copying.
cdef Writer SPARE = None


cdef Writer spare_writer():
    global SPARE
    cdef Writer w = SPARE
    if w is None:
        w = Writer()
        w.keep = SPARE_BYTES
    SPARE = None
    return w


def pack(value, *, bint typed=False, bint int64=True):
    """Return ``value`` as MessagePack.

    Buffers are copied, at most 64 MiB in all. ``typed`` keeps their format, shape
    and byte order for a peer that reads it. Without ``int64``, integers outside
    32 bits go as floats, which is exact up to 2**53. O(size). Raises
    SerializationError for what cannot be carried: other types, keys that are not
    str, naive datetimes, lone surrogates, integers beyond 64 bits, values nested
    deeper than 512 levels.
    """
    global SPARE
    cdef Writer w = spare_writer()
    try:
        pack_value(w, value, 0, typed, int64)
        if w.n > MAX_BYTES:
            refuse_large()
        return w.take()
    finally:
        w.clear()
        SPARE = w


def pack_frame(value, *, bint typed=False, bint int64=True):
    """Return ``value`` packed as by :func:`pack`, behind its 4-byte big-endian length."""
    global SPARE
    cdef Writer w = spare_writer()
    cdef Py_ssize_t at
    try:
        at = w.c_open()
        pack_value(w, value, 0, typed, int64)
        if w.n - at > MAX_BYTES:
            refuse_large()
        w.c_close(at)
        return w.take()
    finally:
        w.clear()
        SPARE = w


# --- reading ---------------------------------------------------------------------------------

cdef enum Opens:
    ALL = 0
    REQUEST = 1  # not the payloads of a request, and no extensions
    REPLY = 2  # not the payloads of a reply
    FRAME = 3  # each payload of a reply by itself

cdef struct Cursor:
    const unsigned char *p
    Py_ssize_t pos
    Py_ssize_t end
    Py_ssize_t budget  # values that may still be built
    bint typed
    bint int_keys
    int deepest  # levels that are read
    int opens  # which parts are built: Opens
    bint each  # the values of the map that comes next are payloads

cdef object UNDEFINED = object()

cdef dict FAULTS = {
    SCAN_KEY: "cannot hold a map key that is neither a text nor an integer",
    SCAN_DATE: "cannot hold a timestamp outside of the years 1 to 9999",
}


class Unreadable:
    """A payload that came with a reply and has no counterpart here.

    ``data`` are its bytes, ``why`` says what stands in the way.
    """

    __slots__ = ("data", "why")

    def __init__(self, data, why):
        self.data = data
        self.why = why

    def __repr__(self):
        return f"<Unreadable {len(self.data)} bytes: {self.why}>"


# Short keys are interned, and told apart as pointers.
cdef str RESULT_KEY = intern("result"), DATA_KEY = intern("data"), RETURN_KEY = intern("returnvalue")
cdef str VALUES_KEY = intern("values"), PROCESSED_KEY = intern("processed")

# Keys repeat from message to message; the text of a short one is made once.
cdef PyObject *key_cache[CACHED_KEYS]


cdef object read_key_text(const unsigned char *s, Py_ssize_t n):
    cdef uint32_t h
    cdef Py_ssize_t i
    cdef PyObject *cached
    cdef object key
    if n == 0 or n > CACHED_KEY_BYTES:
        return PyUnicode_DecodeUTF8(<const char *> s, n, NULL)
    h = <uint32_t> n * 0x9E3779B1U
    for i in range(n):
        h = (h ^ s[i]) * 0x01000193U
    h = (h ^ (h >> 15)) & (CACHED_KEYS - 1)
    cached = key_cache[h]
    if cached != NULL:
        key = <object> cached
        if PyUnicode_GET_LENGTH(key) == n and memcmp(PyUnicode_DATA(key), s, n) == 0:
            return key
    key = PyUnicode_DecodeUTF8(<const char *> s, n, NULL)
    if PyUnicode_IS_COMPACT_ASCII(key):
        key = intern(key)
        Py_INCREF(key)
        key_cache[h] = <PyObject *> key
        Py_XDECREF(cached)
    return key


cdef object read_timestamp(const unsigned char *body, Py_ssize_t n):
    cdef uint64_t word
    cdef int64_t seconds = 0
    cdef uint32_t nanos = 0
    if n == 4:
        seconds = c_load32(body)
    elif n == 8:
        word = c_load64(body)
        nanos = <uint32_t> (word >> 34)
        seconds = <int64_t> (word & ((<uint64_t> 1 << 34) - 1))
    elif n == 12:
        nanos = c_load32(body)
        seconds = <int64_t> c_load64(body + 4)
    else:
        c_raise(SCAN_EXT)
    if nanos > 999999999:
        c_raise(SCAN_EXT)
    try:
        return EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)
    except OverflowError:
        raise SerializationError("a timestamp lies outside the years 1 to 9999") from None


cdef object read_typed(Cursor *c, Py_ssize_t start, Py_ssize_t n):
    """Give back the object that was packed, over its own copy of the elements."""
    cdef Cursor inner
    cdef object head
    inner = c[0]
    inner.pos = start
    inner.end = start + n
    # No extension inside the header, so that they cannot nest.
    inner.opens = REQUEST
    inner.budget = 512
    try:
        head = read_value(&inner, 0)
    except (ProtocolError, UnicodeDecodeError):
        raise ProtocolError("the header of a typed buffer is malformed") from None
    n = inner.end - inner.pos
    if not (isinstance(head, list) and len(head) == 3 and isinstance(head[0], str)
            and isinstance(head[1], (str, list)) and isinstance(head[2], list)
            and len(head[2]) <= 64 and all(type(d) is int and 0 <= d <= MAX_BYTES for d in head[2])):
        raise ProtocolError("the header of a typed buffer is malformed")
    kind, format, shape = head
    if not c.typed:
        return PyBytes_FromStringAndSize(<const char *> c.p + inner.pos, n)
    if kind == "n" or kind == "s":
        try:
            import numpy as np
        except ImportError:
            raise SerializationError("reading this value needs numpy") from None
        items = PyByteArray_FromStringAndSize(<const char *> c.p + inner.pos, n)
        return read_numpy(np, kind, format, shape, items)
    match = FORMAT.fullmatch(format) if isinstance(format, str) else None
    if match is None or kind not in ("v", "a"):
        raise ProtocolError("a typed buffer has an unknown element type")
    order, code, size = match.groups()
    if n != math.prod(shape) * int(size):
        raise ProtocolError("a typed buffer has another length than its shape says")
    items = PyBytes_FromStringAndSize(<const char *> c.p + inner.pos, n)
    return read_elements(kind, order, code, int(size), shape, items)


cdef object read_numpy(object np, str kind, object format, list shape, bytearray data):
    try:
        dtype = dtype_of(np, format)
    except ProtocolError:
        raise
    except Exception:
        raise ProtocolError("a typed buffer has an unknown element type") from None
    if dtype.hasobject or dtype.itemsize == 0:
        raise ProtocolError("a typed buffer has an unknown element type")
    if (kind == "s" and shape) or len(data) != math.prod(shape) * dtype.itemsize:
        raise ProtocolError("a typed buffer has another length than its shape says")
    try:
        made = np.ndarray(shape, dtype, data)
    except (ValueError, TypeError):
        raise SerializationError("this numpy cannot hold an array of that shape") from None
    return made[()] if kind == "s" else made


cdef object read_elements(str kind, str order, str code, int size, list shape, bytes data):
    codes = array_codes() if kind == "a" else CAST_CODES
    here = None
    for candidate in (code, *ALIKE.get(code, "")):
        if candidate in codes and item_size(kind, candidate) == size:
            here = candidate
            break
    if here is None:
        raise SerializationError(f"items of format {code!r} with {size} bytes have no counterpart here")
    if kind == "a":
        if len(shape) != 1:
            raise ProtocolError("the header of a typed buffer is malformed")
        items = array(here)
        items.frombytes(data)
        if order != ORDER and size > 1:
            items.byteswap()
        return items
    if order != ORDER and size > 1:
        swapped = array("B" if size == 1 else "H" if size == 2 else "I" if size == 4 else "Q")
        if swapped.itemsize != size:
            raise SerializationError(f"items of format {code!r} have another byte order here")
        swapped.frombytes(data)
        swapped.byteswap()
        data = swapped.tobytes()
    view = memoryview(data)
    if len(shape) == 1:
        return view.cast(here)
    if 0 in shape:
        raise ProtocolError("the header of a typed buffer is malformed")
    return view.cast(here, shape)


cdef str array_codes():
    import array as module
    return module.typecodes


cdef Py_ssize_t item_size(str kind, str code) except -1:
    if kind == "a":
        return array(code).itemsize
    return memoryview(bytes(8)).cast(code).itemsize


cdef object read_ext(Cursor *c, Py_ssize_t n):
    """The extension whose type byte is at ``pos`` and whose body of ``n`` bytes follows."""
    cdef int8_t code
    cdef Py_ssize_t start
    if c.end - c.pos < 1 or n > c.end - c.pos - 1:
        c_raise(SCAN_TRUNCATED)
    code = <int8_t> c.p[c.pos]
    start = c.pos + 1
    c.pos = start + n
    if code == EXT_UNDEFINED:
        return UNDEFINED
    if c.opens != REQUEST:
        if code == EXT_TIMESTAMP:
            return read_timestamp(c.p + start, n)
        if code == EXT_TYPED:
            return read_typed(c, start, n)
    c_raise(SCAN_EXT)


cdef object read_list(Cursor *c, Py_ssize_t n, int depth):
    cdef list out
    cdef Py_ssize_t _i
    cdef object item
    if depth == c.deepest:
        c_raise(SCAN_DEEP)
    if n > c.end - c.pos:
        c_raise(SCAN_TRUNCATED)
    # Appended rather than filled in: a list with empty slots must not be seen by the collector.
    out = []
    for _i in range(n):
        item = read_value(c, depth + 1)
        out.append(None if item is UNDEFINED else item)
    return out


cdef object read_map(Cursor *c, Py_ssize_t n, int depth):
    cdef dict out
    cdef Py_ssize_t _i
    cdef object key, item
    cdef bint each = c.each
    if depth == c.deepest:
        c_raise(SCAN_DEEP)
    if n > (c.end - c.pos) // 2:
        c_raise(SCAN_TRUNCATED)
    out = {}
    c.each = False
    for _i in range(n):
        key = read_key(c)
        if c.opens == FRAME:
            if each or key is RESULT_KEY or (depth > 0 and (key is DATA_KEY or key is RETURN_KEY)):
                item = read_payload(c, depth + 1)
            else:
                # Results of children, by id.
                c.each = depth == 1 and (key is VALUES_KEY or key is PROCESSED_KEY)
                item = read_value(c, depth + 1)
                c.each = False
        elif c.opens != ALL and is_payload(c.opens, key, depth):
            item = read_packed(c)
        elif c.opens == REQUEST and depth == 0 and key == "results":
            item = read_results(c)
        else:
            item = read_value(c, depth + 1)
        if item is not UNDEFINED:
            PyDict_SetItem(out, key, item)
    return out


cdef object read_key(Cursor *c):
    cdef unsigned char b
    cdef Py_ssize_t n, head
    if c.pos >= c.end:
        c_raise(SCAN_TRUNCATED)
    b = c.p[c.pos]
    if 0xA0 <= b <= 0xBF:
        n = b & 0x1F
        c.pos += 1
    elif 0xD9 <= b <= 0xDB:
        head = 1 << (b - 0xD9)
        if c.end - c.pos - 1 < head:
            c_raise(SCAN_TRUNCATED)
        n = read_size(c.p + c.pos + 1, head)
        c.pos += 1 + head
    else:
        key = read_value(c, c.deepest)
        if c.int_keys and type(key) is int:
            return key
        raise ProtocolError(f"a map key is not a str but {type(key).__name__}")
    if n > c.end - c.pos:
        c_raise(SCAN_TRUNCATED)
    key = read_key_text(c.p + c.pos, n)
    c.pos += n
    return key


cdef inline Py_ssize_t read_size(const unsigned char *p, Py_ssize_t head) noexcept nogil:
    return p[0] if head == 1 else c_load16(p) if head == 2 else <Py_ssize_t> c_load32(p)


cdef bint is_payload(int opens, object key, int depth) except -1:
    if opens == REQUEST:
        # data and result of one job; in a batch, data of each job; in a flow, of each job's input.
        if depth == 0:
            return key == "data" or key == "result"
        return (depth == 2 or depth == 3) and key == "data"
    # At the top of a reply, data is a wrapper; further down it belongs to a job.
    return key == "result" or (depth > 0 and (key == "data" or key == "returnvalue"))


cdef object read_payload(Cursor *c, int depth):
    """A payload of a reply; one that cannot be read here spoils nothing beside it."""
    cdef uint32_t notes = 0
    cdef Py_ssize_t start = c.pos, after
    c.opens = ALL
    try:
        return read_value(c, depth)
    except (ProtocolError, SerializationError) as error:
        after = c_skip(c.p, start, c.end, &notes)
        if after < 0:
            raise
        c.pos = after
        return Unreadable(PyBytes_FromStringAndSize(<const char *> c.p + start, after - start), str(error))
    finally:
        c.opens = FRAME


cdef object read_packed(Cursor *c):
    cdef uint32_t notes = 0
    cdef Py_ssize_t start = c.pos
    cdef Py_ssize_t after, fault = 0
    cdef Packed packed
    if c.opens == REQUEST:
        after = c_skip_given(c.p, start, c.end, &notes)
        if after == SCAN_KEY or after == SCAN_DATE:
            # A value all the same: who it is for says which field it spoils.
            fault = after
            after = c_skip(c.p, start, c.end, &notes)
    else:
        after = c_skip(c.p, start, c.end, &notes)
    if after < 0:
        c_raise(after)
    c.pos = after
    # An undefined payload is no payload.
    if notes and after - start <= 8 and (c.p[start] == 0xD4 or c.p[start] == 0xC7):
        if c.p[start + (1 if c.p[start] == 0xD4 else 2)] == 0:
            return UNDEFINED
    packed = c_packed(PyBytes_FromStringAndSize(<const char *> c.p + start, after - start))
    if fault:
        packed.fault = FAULTS[fault]
    return packed


cdef object read_results(Cursor *c):
    cdef unsigned char b
    cdef Py_ssize_t n, head, _i
    cdef object item
    cdef list out
    if c.pos >= c.end:
        c_raise(SCAN_TRUNCATED)
    b = c.p[c.pos]
    if (b & 0xF0) == 0x90:
        n = b & 0x0F
        c.pos += 1
    elif b == 0xDC or b == 0xDD:
        head = 2 if b == 0xDC else 4
        if c.end - c.pos - 1 < head:
            c_raise(SCAN_TRUNCATED)
        n = read_size(c.p + c.pos + 1, head)
        c.pos += 1 + head
    else:
        return read_value(c, 1)
    if n > c.end - c.pos:
        c_raise(SCAN_TRUNCATED)
    out = []
    for _i in range(n):
        item = read_packed(c)
        out.append(None if item is UNDEFINED else item)
    return out


cdef object read_value(Cursor *c, int depth):
    cdef const unsigned char *p
    cdef unsigned char b
    cdef Py_ssize_t n, size
    cdef uint32_t word32
    cdef uint64_t word64
    cdef float single
    cdef double real
    cdef object made
    if c.pos >= c.end:
        c_raise(SCAN_TRUNCATED)
    c.budget -= 1
    if c.budget < 0:
        raise ProtocolError("a request holds too many values")
    b = c.p[c.pos]
    c.pos += 1
    p = c.p + c.pos
    if b < 0x80:
        return <long> b
    if b >= 0xE0:
        return <long> <int8_t> b
    if b < 0x90:
        return read_map(c, b & 0x0F, depth)
    if b < 0xA0:
        return read_list(c, b & 0x0F, depth)
    if b < 0xC0:
        n = b & 0x1F
        if n > c.end - c.pos:
            c_raise(SCAN_TRUNCATED)
        c.pos += n
        return PyUnicode_DecodeUTF8(<const char *> p, n, NULL)
    if b == 0xC0:
        return None
    if b == 0xC2:
        return False
    if b == 0xC3:
        return True
    if b == 0xC1:
        c_raise(SCAN_RESERVED)
    if b >= 0xD4 and b <= 0xD8:
        return read_ext(c, 1 << (b - 0xD4))
    # What is left has 1, 2, 4 or 8 bytes of number or length.
    if b <= 0xC6:
        size = 1 << (b - 0xC4)
    elif b <= 0xC9:
        size = 1 << (b - 0xC7)
    elif b == 0xCA:
        size = 4
    elif b == 0xCB:
        size = 8
    elif b <= 0xD3:
        size = 1 << (b & 3)
    elif b <= 0xDB:
        size = 1 << (b - 0xD9)
    else:
        size = 4 if b & 1 else 2
    if size > c.end - c.pos:
        c_raise(SCAN_TRUNCATED)
    c.pos += size
    if b == 0xCA:
        word32 = c_load32(p)
        memcpy(&single, &word32, 4)
        return <double> single
    if b == 0xCB:
        word64 = c_load64(p)
        memcpy(&real, &word64, 8)
        return real
    if b == 0xCC:
        return <long> p[0]
    if b == 0xCD:
        return <long> c_load16(p)
    if b == 0xCE:
        return c_load32(p)
    if b == 0xCF:
        return c_load64(p)
    if b == 0xD0:
        return <long> <int8_t> p[0]
    if b == 0xD1:
        return <long> <int16_t> c_load16(p)
    if b == 0xD2:
        return <long> <int32_t> c_load32(p)
    if b == 0xD3:
        return <int64_t> c_load64(p)
    n = read_size(p, size)
    if b >= 0xDE:
        return read_map(c, n, depth)
    if b >= 0xDC:
        return read_list(c, n, depth)
    if b >= 0xC7 and b <= 0xC9:
        return read_ext(c, n)
    if n > c.end - c.pos:
        c_raise(SCAN_TRUNCATED)
    p = c.p + c.pos
    c.pos += n
    if b >= 0xD9:
        return PyUnicode_DecodeUTF8(<const char *> p, n, NULL)
    made = PyBytes_FromStringAndSize(<const char *> p, n)
    return made


cdef object read_whole(object data, Cursor *c, int depth=0):
    cdef Py_buffer view
    cdef object made
    PyObject_GetBuffer(data, &view, PyBUF_FULL_RO)
    try:
        if not PyBuffer_IsContiguous(&view, b"C"):
            raise SerializationError("the bytes to unpack are not contiguous")
        c.p = <const unsigned char *> view.buf
        c.pos = 0
        c.end = view.len
        c.each = False
        made = read_value(c, depth)
        if c.pos != c.end:
            raise ProtocolError(f"{c.end - c.pos} bytes follow the value")
    except UnicodeDecodeError:
        c_raise(SCAN_UTF8)
    finally:
        PyBuffer_Release(&view)
    return None if made is UNDEFINED else made


def unpack(data, *, bint typed=True, bint int_keys=False):
    """Return the one value that ``data`` holds; ``data`` may be any contiguous buffer.

    Timestamps become aware datetimes in UTC, an ``undefined`` becomes None in a
    list and is dropped from a map. With ``typed``, typed buffers become what was
    sent (memoryview, array.array, numpy array or scalar) over memory of their own;
    without, the bytes of their elements. Keys that are integers are read with
    ``int_keys`` only. O(size). Raises ProtocolError when the bytes are not exactly
    one valid value, SerializationError when a value has no counterpart here.
    """
    cdef Cursor c
    c.budget = (<Py_ssize_t> 1) << 62
    c.typed = typed
    c.int_keys = int_keys
    c.deepest = SCAN_MAX_NESTING
    c.opens = ALL
    return read_whole(data, &c)


def unpack_frame(data, *, bint part=False):
    """Return a whole reply or event with its payloads, as :func:`unpack` does with ``int_keys``.

    A payload may be as deep as it may be alone, whatever it is wrapped in; one that has
    no counterpart here becomes :class:`Unreadable`, and the rest of the reply is there.
    With ``part`` the bytes are what a reply has under a key, such as one job.
    """
    cdef Cursor c
    c.budget = (<Py_ssize_t> 1) << 62
    c.typed = True
    c.int_keys = True
    c.deepest = SCAN_MAX_FRAME_NESTING
    c.opens = FRAME
    return read_whole(data, &c, 1 if part else 0)


def unpack_request(data):
    """Return a request with its payloads unopened.

    ``data`` and ``result`` at the top, ``data`` in each of ``jobs`` or its ``input``, and
    the items of ``results`` become :class:`Packed`, checked but not built; one that is not to
    be stored has its ``fault``. Everything else is
    read as by :func:`unpack`, but no extension other than ``undefined`` and no key
    other than str is let through. O(size) in time; a request that would build more
    than four million values is refused. Raises ProtocolError.
    """
    cdef Cursor c
    c.budget = ENVELOPE_VALUES
    c.typed = False
    c.int_keys = False
    c.deepest = SCAN_MAX_NESTING
    c.opens = REQUEST
    return read_whole(data, &c)


def unpack_reply(data):
    """Return a reply or an event with its payloads unopened.

    ``result`` anywhere, and below the top ``data`` and ``returnvalue``, become
    :class:`Packed`, checked but not built: a payload that has no counterpart here
    spoils its own job and not the batch it came with. O(size). Raises ProtocolError.
    """
    cdef Cursor c
    c.budget = (<Py_ssize_t> 1) << 62
    c.typed = False
    c.int_keys = False
    c.deepest = SCAN_MAX_FRAME_NESTING
    c.opens = REPLY
    return read_whole(data, &c)


def take_name(Packed data not None):
    """Split the job name off a payload of an older client, which put it into the data.

    Returns ``(name, data without it)`` when the payload is a map with a text under
    ``name``, else None. The name is not checked. O(size) without building values.
    """
    cdef const unsigned char *p = <const unsigned char *> PyBytes_AS_STRING(data.data)
    cdef const unsigned char *s = NULL
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data.data)
    cdef Py_ssize_t n = 0, size = 0, count = 0, pos, start, value
    cdef uint32_t notes = 0
    cdef object name = None
    cdef Writer w
    pos = c_map(p, 0, end, &n)
    if pos < 0:
        return None
    w = Writer()
    for _i in range(n):
        start = pos
        value = c_str(p, pos, end, &s, &size)
        if value < 0:
            value = c_skip(p, pos, end, &notes)
            size = -1
        pos = c_skip(p, value, end, &notes)
        if value < 0 or pos < 0:
            c_raise(pos if value >= 0 else value)
        if size == 4 and memcmp(s, b"name", 4) == 0:
            if c_str(p, value, end, &s, &size) < 0:
                return None
            name = PyUnicode_DecodeUTF8(<const char *> s, size, NULL)
        else:
            count += 1
            w.c_raw(p + start, pos - start)
    if name is None:
        return None
    rest = w.take()
    w.c_map(count)
    w.c_raw(PyBytes_AS_STRING(rest), PyBytes_GET_SIZE(rest))
    return name, c_packed(w.take())
