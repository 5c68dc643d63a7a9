"""Requests as dicts whose payloads stay packed, and payloads for peers that know less.

``data``, ``result`` and the members of ``results`` are payloads: they are lifted out
of the frame as :class:`~qcore.wire.writer.Packed` and never decoded. Everything else
is the envelope.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from qcore.wire.packing cimport EXT_TYPED
from qcore.wire.scan cimport c_array, c_load16, c_load32, c_load64, c_map, c_skip, c_str, c_undefined
from qcore.wire.writer cimport Packed, Writer, c_packed

import msgpack

from qcore.errors import ProtocolError

cdef enum Shape:
    PLAIN = 0           # decode
    PAYLOAD = 1         # keep packed
    PAYLOADS = 2        # a list whose members stay packed
    BATCH = 3           # a list of maps that each have a payload `data`

cdef dict _SHAPES = {
    "data": PAYLOAD,
    "result": PAYLOAD,
    "results": PAYLOADS,
    "jobs": BATCH,
    "reqId": PLAIN,
}


class BadEnvelope(ProtocolError):
    """The frame is not one MessagePack value."""


cdef object _ext(int code, bytes data):
    if code == 0:
        return msgpack.ExtType(0, data)
    raise BadEnvelope("extension types are not allowed in an envelope")


def _ext_hook(code, data):
    return _ext(code, data)


cdef object _decode(const unsigned char *p, Py_ssize_t start, Py_ssize_t end):
    try:
        return msgpack.unpackb(PyBytes_FromStringAndSize(<char *>p + start, end - start), ext_hook=_ext_hook,
                               raw=False, strict_map_key=True, timestamp=0)
    except BadEnvelope:
        raise
    except (ValueError, msgpack.UnpackException):
        raise BadEnvelope("not MessagePack with text keys") from None


cdef Packed _slice(const unsigned char *p, Py_ssize_t start, Py_ssize_t end):
    return c_packed(PyBytes_FromStringAndSize(<char *>p + start, end - start))


cdef Py_ssize_t _next(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end) except -1:
    cdef uint32_t notes = 0
    cdef Py_ssize_t after = c_skip(p, pos, end, &notes)
    if after < 0:
        raise BadEnvelope("not MessagePack")
    return after


cdef object _shaped(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end, int shape):
    """One value; ``end`` is where it ends."""
    cdef Py_ssize_t n, at, after
    cdef list out
    if shape == PLAIN or (shape != PAYLOAD and c_array(p, pos, end, &n) < 0):
        return _decode(p, pos, end)
    if shape == PAYLOAD:
        return _slice(p, pos, end)
    out = []
    at = c_array(p, pos, end, &n)
    for _ in range(n):
        after = _next(p, at, end)
        if shape == PAYLOADS:
            out.append(None if c_undefined(p, at, after) > 0 else _slice(p, at, after))
        elif c_map(p, at, after, &n) < 0:
            out.append(_decode(p, at, after))
        else:
            out.append(_map(p, at, after))
        at = after
    return out


cdef dict _map(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end):
    cdef Py_ssize_t n, k, after
    cdef const unsigned char *key
    cdef dict out = {}
    cdef str name
    pos = c_map(p, pos, end, &n)
    for _ in range(n):
        pos = c_str(p, pos, end, &key, &k)
        if pos < 0:
            raise BadEnvelope("map keys must be text")
        try:
            name = (<char *>key)[:k].decode("utf-8")
        except UnicodeDecodeError:
            raise BadEnvelope("not UTF-8") from None
        after = _next(p, pos, end)
        if c_undefined(p, pos, after) < 0:      # a JavaScript `undefined` is a field not given
            out[name] = _shaped(p, pos, after, <int>_SHAPES.get(name, PLAIN))
        pos = after
    return out


def decode(bytes frame not None):
    """The request in a frame: a dict, or another plain value where the frame holds no map.

    :raises BadEnvelope: the frame is not exactly one valid value
    """
    cdef const unsigned char *p = <const unsigned char *>PyBytes_AS_STRING(frame)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(frame)
    cdef Py_ssize_t n
    if end == 0 or _next(p, 0, end) != end:
        raise BadEnvelope("not one MessagePack value")
    if c_map(p, 0, end, &n) < 0:
        return _decode(p, 0, end)
    return _map(p, 0, end)


cdef Py_ssize_t c_plain(Writer w, const unsigned char *p, Py_ssize_t pos, Py_ssize_t end) except -1:
    """A flat walk: MessagePack is prefix coded, so the heads of containers are copied like any token."""
    cdef uint64_t left = 1, k
    cdef Py_ssize_t at, head
    cdef unsigned char t
    while left:
        left -= 1
        at = pos
        t = p[pos]
        pos += 1
        if t < 0x80 or t >= 0xE0 or t in (0xC0, 0xC2, 0xC3):
            pass
        elif t < 0x90:
            left += 2 * (t & 15)
        elif t < 0xA0:
            left += t & 15
        elif t < 0xC0:
            pos += t & 31
        elif t == 0xCF:
            w.c_float(<double>c_load64(p + pos))
            pos += 8
            continue
        elif t == 0xD3:
            w.c_float(<double><int64_t>c_load64(p + pos))
            pos += 8
            continue
        elif t == 0xC4 or t == 0xD9:
            pos += 1 + p[pos]
        elif t == 0xC5 or t == 0xDA:
            pos += 2 + c_load16(p + pos)
        elif t == 0xC6 or t == 0xDB:
            pos += 4 + <Py_ssize_t>c_load32(p + pos)
        elif t == 0xCC or t == 0xD0:
            pos += 1
        elif t == 0xCD or t == 0xD1:
            pos += 2
        elif t == 0xCA or t == 0xCE or t == 0xD2:
            pos += 4
        elif t == 0xCB:
            pos += 8
        elif t == 0xDC:
            left += c_load16(p + pos)
            pos += 2
        elif t == 0xDD:
            left += c_load32(p + pos)
            pos += 4
        elif t == 0xDE:
            left += 2 * c_load16(p + pos)
            pos += 2
        elif t == 0xDF:
            left += 2 * <uint64_t>c_load32(p + pos)
            pos += 4
        else:
            if 0xD4 <= t <= 0xD8:
                k = <uint64_t>1 << (t - 0xD4)
                head = pos
            elif t == 0xC7:
                k = p[pos]
                head = pos + 1
            elif t == 0xC8:
                k = c_load16(p + pos)
                head = pos + 2
            else:
                k = c_load32(p + pos)
                head = pos + 4
            pos = head + 1 + <Py_ssize_t>k
            if p[head] == EXT_TYPED:
                c_typed_as_bin(w, p + head + 1, <Py_ssize_t>k)
                continue
        w.c_raw(p + at, pos - at)
    return pos


cdef int c_typed_as_bin(Writer w, const unsigned char *body, Py_ssize_t n) except -1:
    """The elements of a typed buffer without their description."""
    from qcore.wire.packing import typed_payload_offset

    cdef Py_ssize_t skip = typed_payload_offset(PyBytes_FromStringAndSize(<char *>body, min(n, 600)))
    return w.c_bin(body + skip, n - skip)


def plain(bytes packed not None):
    """A valid packed value as peers without 64-bit integers and typed buffers get it."""
    cdef Writer w = Writer()
    c_plain(w, <const unsigned char *>PyBytes_AS_STRING(packed), 0, PyBytes_GET_SIZE(packed))
    return w.take()
