"""The record of a job: what the store keeps of one beside its data and result.

It is the head, then the id, the delivery, the rare options as one
MessagePack map, and the seal. To change it: raise ``RECORD_VERSION`` and the version of
the schema, keep reading the old ones. All numbers are little-endian.

Most numbers of a record are small, or times soon after another one. So they take as many
bytes as they need, and times are told from each other: a record is rewritten at each step
of its job, and what it is longer than before makes pages of the file overflow. In versions
1 and 2 head and delivery were the structs of the header as they are.

The seal is a checksum over the record with the seq, queue and state of its row; the
record has checksums of data and result in its notes. SQLite finds damage to its pages,
not to what lies in them, and a job with a changed bit must not run. Version 1 had none.
"""

from libc.stdint cimport UINT32_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from qcore.engine.job cimport F_TEXT_ID
from qcore.store.varint cimport unzigzag, varint_get, varint_put, zigzag

import sys

if sys.byteorder != "little":
    raise ImportError("qcore stores little-endian records and has not been built for this machine")


cdef uint64_t _mix(uint64_t h, const unsigned char *p, Py_ssize_t n) noexcept nogil:
    """A checksum, not a hash against attackers. Each step is a bijection of the word and of what came before it."""
    cdef uint64_t word
    h ^= <uint64_t>n
    while n > 0:
        word = 0
        memcpy(&word, p, 8 if n >= 8 else n)
        h = (h ^ word) * <uint64_t>0x9E3779B97F4A7C15
        h ^= h >> 29
        p += 8
        n -= 8
    return h


cdef uint32_t record_check(const unsigned char *p, Py_ssize_t n) noexcept nogil:
    cdef uint64_t h = _mix(0, p, n)
    h = (h ^ (h >> 32)) & 0xFFFFFF
    return <uint32_t>h if h else 1


cdef uint32_t record_seal(int64_t seq, uint32_t queue, uint32_t state, const char *p, Py_ssize_t n) noexcept nogil:
    cdef uint64_t[2] place
    place[0] = <uint64_t>seq
    place[1] = <uint64_t>queue << 32 | state
    cdef uint64_t h = _mix(_mix(0, <const unsigned char *>place, sizeof(place)), <const unsigned char *>p, n)
    return <uint32_t>(h ^ (h >> 32))


cdef inline Py_ssize_t _put_since(uint8_t *p, Py_ssize_t at, int64_t value, int64_t since) noexcept nogil:
    return varint_put(p, at, zigzag(<int64_t>(<uint64_t>value - <uint64_t>since)))


cdef inline Py_ssize_t _get_since(const uint8_t *p, Py_ssize_t at, Py_ssize_t end, int64_t *value,
                                  int64_t since) noexcept nogil:
    cdef uint64_t n = 0
    at = varint_get(p, at, end, &n)
    value[0] = <int64_t>(<uint64_t>since + <uint64_t>unzigzag(n))
    return at


cdef inline Py_ssize_t _get_small(const uint8_t *p, Py_ssize_t at, Py_ssize_t end, uint32_t *value) noexcept nogil:
    cdef uint64_t n = 0
    at = varint_get(p, at, end, &n)
    value[0] = <uint32_t>n
    return at if n <= UINT32_MAX else -1


cdef Py_ssize_t record_put_head(const RecordHead *head, uint8_t *p) noexcept nogil:
    cdef Py_ssize_t at = 3
    p[0] = head.version
    p[1] = head.parts
    p[2] = head.first_state
    at = varint_put(p, at, head.flags)
    at = _put_since(p, at, head.created_ms, 0)
    at = _put_since(p, at, head.run_ms, head.created_ms)
    if head.parts & HAS_PRIORITY:
        memcpy(p + at, &head.priority, 8)
        at += 8
    at = varint_put(p, at, head.attempts)
    at = varint_put(p, at, head.max_attempts)
    at = varint_put(p, at, head.backoff_ms)
    at = varint_put(p, at, head.name)
    memcpy(p + at, &head.data_notes, 4)     # a checksum: it would only grow
    at = varint_put(p, at + 4, head.stalls)
    return varint_put(p, at, head.id_n)


cdef Py_ssize_t _get_head(const uint8_t *p, Py_ssize_t n, RecordHead *head) noexcept nogil:
    """Read a packed head of at most ``n`` bytes; where it ends, or -1."""
    cdef Py_ssize_t at = 3
    if n < at:
        return -1
    head.version = p[0]
    head.parts = p[1]
    head.first_state = p[2]
    if (at := _get_small(p, at, n, &head.flags)) < 0 \
            or (at := _get_since(p, at, n, &head.created_ms, 0)) < 0 \
            or (at := _get_since(p, at, n, &head.run_ms, head.created_ms)) < 0:
        return -1
    if head.parts & HAS_PRIORITY:
        if n - at < 8:
            return -1
        memcpy(&head.priority, p + at, 8)
        at += 8
    if (at := _get_small(p, at, n, &head.attempts)) < 0 \
            or (at := _get_small(p, at, n, &head.max_attempts)) < 0 \
            or (at := _get_small(p, at, n, &head.backoff_ms)) < 0 \
            or (at := _get_small(p, at, n, &head.name)) < 0 \
            or n - at < 4:
        return -1
    memcpy(&head.data_notes, p + at, 4)
    if (at := _get_small(p, at + 4, n, &head.stalls)) < 0:
        return -1
    return _get_small(p, at, n, &head.id_n)


cdef Py_ssize_t record_put_run(const RecordRun *tail, int64_t created_ms, uint8_t *p) noexcept nogil:
    """Most of the times are zero, at one step or the other: a bit tells which are there."""
    cdef Py_ssize_t at = 17
    cdef int64_t lease_end_ms = <int64_t>(<uint64_t>tail.heartbeat_ms + <uint64_t>tail.lease_ms)
    memcpy(p, &tail.token_hi, 16)
    p[16] = 0
    if tail.started_ms:
        p[16] |= 1
        at = _put_since(p, at, tail.started_ms, created_ms)
    if tail.finished_ms:
        p[16] |= 2
        at = _put_since(p, at, tail.finished_ms, tail.started_ms)
    if tail.heartbeat_ms:
        p[16] |= 4
        at = _put_since(p, at, tail.heartbeat_ms, tail.started_ms)
    if tail.lease_ms:
        p[16] |= 8
        at = _put_since(p, at, tail.lease_ms, 0)
    if tail.expires_ms:
        p[16] |= 16
        at = _put_since(p, at, tail.expires_ms, lease_end_ms)
    if tail.last.ahead:
        p[16] |= 32
        at = _put_since(p, at, tail.last.ahead, 0 if tail.finished_ms else tail.started_ms)
    if tail.renewals:
        p[16] |= 64
        at = varint_put(p, at, tail.renewals)
    if tail.result_notes:
        p[16] |= 128
        memcpy(p + at, &tail.result_notes, 4)
        at += 4
    return at


cdef Py_ssize_t _get_run(const uint8_t *p, Py_ssize_t n, int64_t created_ms, RecordRun *tail) noexcept nogil:
    """Read a packed delivery of at most ``n`` bytes into zeros; where it ends, or -1."""
    cdef Py_ssize_t at = 17
    if n < at:
        return -1
    memcpy(&tail.token_hi, p, 16)
    if p[16] & 1 and (at := _get_since(p, at, n, &tail.started_ms, created_ms)) < 0 \
            or p[16] & 2 and (at := _get_since(p, at, n, &tail.finished_ms, tail.started_ms)) < 0 \
            or p[16] & 4 and (at := _get_since(p, at, n, &tail.heartbeat_ms, tail.started_ms)) < 0 \
            or p[16] & 8 and (at := _get_since(p, at, n, &tail.lease_ms, 0)) < 0:
        return -1
    cdef int64_t lease_end_ms = <int64_t>(<uint64_t>tail.heartbeat_ms + <uint64_t>tail.lease_ms)
    if p[16] & 16 and (at := _get_since(p, at, n, &tail.expires_ms, lease_end_ms)) < 0 \
            or p[16] & 32 and (at := _get_since(p, at, n, &tail.last.ahead,
                                                0 if tail.finished_ms else tail.started_ms)) < 0 \
            or p[16] & 64 and (at := _get_small(p, at, n, &tail.renewals)) < 0:
        return -1
    if p[16] & 128:
        if n - at < 4:
            return -1
        memcpy(&tail.result_notes, p + at, 4)
        at += 4
    return at


cdef int record_read(const unsigned char *p, Py_ssize_t n, Record *record) noexcept nogil:
    cdef RecordHead *head = &record.head
    cdef Py_ssize_t at = FIXED_HEAD_BYTES, used
    memset(record, 0, sizeof(Record))
    if n < 1:
        return HEAD_CUT
    head.version = p[0]
    if head.version == RECORD_VERSION:
        n -= SEAL_BYTES
        at = _get_head(p, n, head)
        if at < 0:
            return HEAD_CUT
    elif head.version == FIXED_VERSION or head.version == UNSEALED_VERSION:
        n -= SEAL_BYTES if head.version == FIXED_VERSION else 0
        if n < at:
            return HEAD_CUT
        memcpy(head, p, FIXED_HEAD_BYTES)
    else:
        return OTHER_VERSION
    if (not head.flags & F_TEXT_ID and head.id_n != 16) or n - at < <Py_ssize_t>head.id_n:
        return ID_CUT
    record.id_p = p + at
    at += head.id_n
    if head.parts & HAS_RUN:
        if head.version == RECORD_VERSION:
            used = _get_run(p + at, n - at, head.created_ms, &record.tail)
            if used < 0:
                return RUN_CUT
            at += used
        else:
            if n - at < FIXED_RUN_BYTES:
                return RUN_CUT
            memcpy(&record.tail, p + at, FIXED_RUN_BYTES)
            at += FIXED_RUN_BYTES
    record.extra_p = p + at
    record.extra_n = n - at
    return READ_WELL
