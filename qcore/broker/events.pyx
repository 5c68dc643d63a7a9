"""The event frame of the protocol, written from what the engine emits.

The only encoder of events. What ``data`` holds by kind is said at
:meth:`Table.c_emit` in :mod:`qcore.engine.table`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t

from qcore.broker.jobview cimport CAP_INT64, CAP_TYPED
from qcore.engine.job cimport NOTE_INT64, NOTE_TYPED
from qcore.engine.table cimport (
    EV_COMPLETED, EV_DELAYED, EV_FAILED, EV_PROGRESS, EV_REMOVED, EV_RETRIED, EV_STALLED, EV_WAITING,
    EV_WAITING_CHILDREN,
)
from qcore.wire.plain cimport c_plain
from qcore.wire.writer cimport Writer

import msgpack


def _k(*keys):
    return b"".join(msgpack.packb(key) for key in keys)


cdef bytes HEAD = b"\x82" + _k("type", "event", "event")
cdef bytes K_TYPE = _k("eventType"), K_QUEUE = _k("queue"), K_JOB = _k("jobId"), K_TIME = _k("timestamp")
cdef bytes K_DATA = _k("data"), K_ERROR = _k("error"), K_TERMINAL = _k("terminal"), K_PREV = _k("prev")
cdef bytes K_DELAY = _k("delay"), K_PROGRESS = _k("progress"), K_MESSAGE = _k("message")
cdef bytes K_COUNT = _k("stallCount"), K_ACTION = _k("action")


cdef inline int _raw(Writer w, bytes piece) except -1:
    return w.c_raw(PyBytes_AS_STRING(piece), PyBytes_GET_SIZE(piece))


cdef uint32_t c_notes(int kind, object data) except? 0xFFFF:
    """``BlobNote`` bits of the payload of an event: what makes its frame differ from reader to reader."""
    if kind == EV_COMPLETED and data is not None:
        return data[1]
    if kind == EV_FAILED and len(<tuple>data) == 4:
        return data[3]
    return 0


cdef int _payload(Writer w, bytes packed, uint32_t notes, uint32_t caps) except -1:
    """A payload as this reader can decode it."""
    if (notes & NOTE_INT64 and not caps & CAP_INT64) or (notes & NOTE_TYPED and not caps & CAP_TYPED):
        c_plain(w, <const unsigned char *>PyBytes_AS_STRING(packed), 0, PyBytes_GET_SIZE(packed))
        return 0
    return _raw(w, packed)


cdef int c_write_event(Writer w, int kind, str name, bytes queue, str job_id, int64_t now_ms, object data,
                       uint32_t caps) except -1:
    """Write one event frame, its length in front. ``queue`` is packed."""
    cdef Py_ssize_t at = w.c_open()
    _raw(w, HEAD)
    c_write_event_map(w, kind, name, queue, job_id, now_ms, data, caps)
    return w.c_close(at)


cdef int c_write_event_map(Writer w, int kind, str name, bytes queue, str job_id, int64_t now_ms, object data,
                           uint32_t caps) except -1:
    """Write what the frame says of an event."""
    cdef int more = 0
    if kind == EV_COMPLETED or kind == EV_STALLED:
        more = data is not None
    elif kind == EV_FAILED:
        more = data[0] is not None
        if len(<tuple>data) == 4:
            more += (data[1] is not None) + (data[2] is not None)
    elif kind == EV_PROGRESS:
        more = 2
    elif kind in (EV_RETRIED, EV_DELAYED, EV_WAITING, EV_WAITING_CHILDREN, EV_REMOVED):
        more = 1
    w.c_map(4 + more)
    _raw(w, K_TYPE)
    w.c_text(name)
    _raw(w, K_QUEUE)
    _raw(w, queue)
    _raw(w, K_JOB)
    w.c_text(job_id)
    _raw(w, K_TIME)
    w.c_ms(now_ms)
    if not more:
        pass
    elif kind == EV_COMPLETED:
        _raw(w, K_DATA)
        _payload(w, data[0], data[1], caps)
    elif kind == EV_FAILED:
        if data[0] is not None:
            _raw(w, K_ERROR)
            w.c_value(data[0])
        if len(<tuple>data) == 4:
            if data[2] is not None:
                _raw(w, K_DATA)
                _payload(w, data[2], data[3], caps)
            if data[1] is not None:
                _raw(w, K_TERMINAL)
                w.c_bool(data[1])
    elif kind == EV_STALLED:
        _raw(w, K_DATA)
        w.c_map(2)
        _raw(w, K_COUNT)
        w.c_value(data[0])
        _raw(w, K_ACTION)
        w.c_value(data[1])
    elif kind == EV_PROGRESS:
        _raw(w, K_PROGRESS)
        w.c_value(data[0])
        _raw(w, K_DATA)
        w.c_map(1 + (data[1] is not None))
        _raw(w, K_PROGRESS)
        w.c_value(data[0])
        if data[1] is not None:
            _raw(w, K_MESSAGE)
            w.c_value(data[1])
    elif kind == EV_DELAYED:
        _raw(w, K_DELAY)
        w.c_value(data)
    else:
        _raw(w, K_PREV)
        w.c_value("failed" if kind == EV_RETRIED else "active" if data is None else data)
    return 0
