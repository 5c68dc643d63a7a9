"""Payloads for peers that know less: 64-bit integers as float64, typed buffers as plain bin.

Only payloads that hold such values are rewritten, and only for readers that did not
announce that they can decode them.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t

from qcore.wire.packing cimport EXT_TYPED
from qcore.wire.scan cimport c_load16, c_load32, c_load64, c_skip
from qcore.wire.writer cimport Writer


cdef Py_ssize_t c_plain(Writer w, const unsigned char *p, Py_ssize_t pos, Py_ssize_t end) except -1:
    """A flat walk: MessagePack is prefix coded, so the heads of containers are copied like any token."""
    cdef uint64_t left = 1, k
    cdef Py_ssize_t at, head
    cdef unsigned char t
    cdef uint32_t notes
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
                # A description, then the elements: only those are for everybody.
                notes = 0
                at = c_skip(p, head + 1, pos, &notes)
                if at < 0:
                    at = head + 1
                w.c_bin(p + at, pos - at)
                continue
        w.c_raw(p + at, pos - at)
    return pos


def plain(bytes packed not None):
    """A valid packed value as peers without 64-bit integers and typed buffers get it. O(size)."""
    cdef Writer w = Writer()
    c_plain(w, <const unsigned char *>PyBytes_AS_STRING(packed), 0, PyBytes_GET_SIZE(packed))
    return w.take()
