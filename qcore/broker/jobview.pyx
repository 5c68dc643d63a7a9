"""The job object of the protocol, written straight from the records.

The only encoder of jobs: replies over TCP, embedded reads and dead letters use it.
A plain job is a few numbers between constant pieces; only jobs with rare options
walk the table of optional fields.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t

from qcore.engine.engine cimport Engine
from qcore.engine.job cimport (
    ACTIVE, COMPLETED, F_CUSTOM_ID, F_DURABLE, F_KEEPS, F_LIFO, F_REMOVE_ON_COMPLETE, F_REMOVE_ON_FAIL,
    NOTE_INT64, NOTE_TYPED, Blob, Job, Run, blob_bytes,
)
from qcore.engine.queue cimport Queue
from qcore.wire.plain cimport c_plain
from qcore.wire.writer cimport Writer

import msgpack

from qcore import limits

# Fields that plain jobs have at their defaults. They live in a job's `extra` dict under the same names.
RARE_FIELDS = {
    "backoffConfig": None,
    "dependsOn": [],
    "childrenIds": [],
    "childrenCompleted": 0,
    "tags": [],
    "progress": 0,
    "progressMessage": None,
    "stacktrace": None,
    "repeat": None,
    "ttl": None,
    "timeout": None,
    "uniqueKey": None,
    "parentId": None,
    "groupId": None,
    "stallTimeout": None,
    "stackTraceLimit": limits.DEFAULT_STACK_LINES,
    "keepLogs": None,
    "sizeLimit": None,
    "failParentOnFailure": False,
    "removeDependencyOnFailure": False,
    "continueParentOnFailure": False,
    "ignoreDependencyOnFailure": False,
    "deduplicationTtl": None,
    "deduplicationExtend": False,
    "deduplicationReplace": False,
    "debounceId": None,
    "debounceTtl": None,
}


def _k(*keys):
    return b"".join(msgpack.packb(key) for key in keys)


cdef int N_FIELDS = 19 + len(RARE_FIELDS)          # without data
cdef bytes RARE_DEFAULTS = b"".join(msgpack.packb(k) + msgpack.packb(v) for k, v in RARE_FIELDS.items())
cdef list RARE_KEYS = [(k, msgpack.packb(k), v) for k, v in RARE_FIELDS.items()]
cdef bytes K_ID = _k("id"), K_QUEUE = _k("queue"), K_NAME = _k("name"), K_DATA = _k("data")
cdef bytes K_PRIORITY = _k("priority"), K_CREATED = _k("createdAt"), K_RUN = _k("runAt")
cdef bytes K_STARTED = _k("startedAt"), K_COMPLETED = _k("completedAt"), K_ATTEMPTS = _k("attempts")
cdef bytes K_MAX = _k("maxAttempts"), K_BACKOFF = _k("backoff"), K_CUSTOM = _k("customId")
cdef bytes K_LIFO = _k("lifo"), K_ROC = _k("removeOnComplete"), K_ROF = _k("removeOnFail")
cdef bytes K_DURABLE = _k("durable"), K_BEAT = _k("lastHeartbeat"), K_STALLS = _k("stallCount")
cdef bytes K_TIMELINE = _k("timeline"), K_STATE = _k("state"), K_TIME = _k("timestamp")
cdef bytes K_RESULT = _k("returnvalue"), K_REASON = _k("failedReason")
# lifo, removeOnComplete, removeOnFail, durable of a plain job in one piece
cdef bytes FLAGS_OFF = b"".join(k + b"\xc2" for k in (K_LIFO, K_ROC, K_ROF, K_DURABLE))
cdef bytes STATE_ACTIVE = b"\x82" + _k("state", "active", "timestamp")
cdef bytes STATE_COMPLETED = b"\x82" + _k("state", "completed", "timestamp")


cdef inline int _raw(Writer w, bytes piece) except -1:
    return w.c_raw(PyBytes_AS_STRING(piece), PyBytes_GET_SIZE(piece))


cdef inline int _text(Writer w, str value) except -1:
    cdef bytes utf8 = value.encode()
    return w.c_str(PyBytes_AS_STRING(utf8), PyBytes_GET_SIZE(utf8))


cdef int c_write_payload(Writer w, Blob *blob, uint32_t caps) except -1:
    """Splice a packed value; only one that the reader could not decode is rewritten."""
    if (blob.notes & NOTE_INT64 and not caps & CAP_INT64) or (blob.notes & NOTE_TYPED and not caps & CAP_TYPED):
        c_plain(w, blob_bytes(blob), 0, blob.size)
        return 0
    return w.c_raw(blob_bytes(blob), blob.size)


cdef int _removal(Writer w, dict extra, str name, bint flag) except -1:
    """What is done with a job at its end: a flag, or what its queue keeps then."""
    cdef object policy = None if extra is None else extra.get(name)
    if policy is None:
        return w.c_bool(flag)
    return w.c_value(policy)


cdef int c_write_job(Writer w, Engine engine, uint32_t slot, int view, uint32_t caps) except -1:
    cdef Job *job = engine.job_at(slot)
    cdef Run *run = engine.run_at(job.run) if job.run else NULL
    cdef Queue q = engine.c_queue_of(job)
    cdef dict extra = None if job.extra == NULL else <dict>job.extra
    cdef Blob *result = NULL
    cdef object reason = None
    cdef const char *text
    cdef char buffer[36]
    cdef Py_ssize_t n
    cdef uint32_t flags = job.flags
    cdef int n_fields = N_FIELDS
    if job.data != NULL:
        n_fields += 1
    if view != VIEW_DELIVERY:
        if view != VIEW_OUTCOME:
            n_fields += 1
        if job.state == COMPLETED and run.result != NULL:
            result = run.result
            n_fields += 1
        if extra is not None:
            reason = extra.get("failedReason")
            if reason is not None:
                n_fields += 1
    w.c_map(n_fields)
    _raw(w, K_ID)
    n = engine.c_id_text(job, buffer, &text)
    w.c_str(text, n)
    _raw(w, K_QUEUE)
    _raw(w, q.name_packed)
    _raw(w, K_NAME)
    if job.name:
        _raw(w, <bytes>engine.name_packed[job.name])
    else:
        _text(w, extra["name"])
    if job.data != NULL:
        _raw(w, K_DATA)
        c_write_payload(w, job.data, caps)
    _raw(w, K_PRIORITY)
    if job.priority == <int64_t>job.priority:
        w.c_int(<int64_t>job.priority)
    else:
        w.c_float(job.priority)
    _raw(w, K_CREATED)
    w.c_ms(job.created_ms)
    _raw(w, K_RUN)
    w.c_ms(job.run_ms)
    _raw(w, K_STARTED)
    if run != NULL and run.started_ms:
        w.c_ms(run.started_ms)
    else:
        w.c_nil()
    _raw(w, K_COMPLETED)
    if job.state == COMPLETED:
        w.c_ms(run.finished_ms)
    else:
        w.c_nil()
    _raw(w, K_ATTEMPTS)
    w.c_int(job.attempts)
    _raw(w, K_MAX)
    w.c_int(job.max_attempts)
    _raw(w, K_BACKOFF)
    w.c_int(job.backoff_ms)
    _raw(w, K_CUSTOM)
    if flags & F_CUSTOM_ID and (extra is None or "plannedId" not in extra):
        w.c_str(text, n)
    else:
        w.c_nil()
    if flags & (F_LIFO | F_REMOVE_ON_COMPLETE | F_REMOVE_ON_FAIL | F_DURABLE | F_KEEPS):
        _raw(w, K_LIFO)
        w.c_bool((flags & F_LIFO) != 0)
        _raw(w, K_ROC)
        _removal(w, extra, "removeOnComplete", (flags & F_REMOVE_ON_COMPLETE) != 0)
        _raw(w, K_ROF)
        _removal(w, extra, "removeOnFail", (flags & F_REMOVE_ON_FAIL) != 0)
        _raw(w, K_DURABLE)
        w.c_bool((flags & F_DURABLE) != 0)
    else:
        _raw(w, FLAGS_OFF)
    _raw(w, K_BEAT)
    w.c_ms(run.heartbeat_ms if run != NULL and run.heartbeat_ms else job.created_ms)
    _raw(w, K_STALLS)
    w.c_int(job.stalls)
    if extra is None:
        _raw(w, RARE_DEFAULTS)
    else:
        for name, packed, default in RARE_KEYS:
            _raw(w, <bytes>packed)
            w.c_value(extra.get(name, default))
    _raw(w, K_TIMELINE)
    _timeline(w, engine, job, run, extra)
    if view != VIEW_DELIVERY:
        if view != VIEW_OUTCOME:
            _raw(w, K_STATE)
            _text(w, "paused" if view == VIEW_PAUSED else engine.c_state_name(job))
        if result != NULL:
            _raw(w, K_RESULT)
            c_write_payload(w, result, caps)
        if reason is not None:
            _raw(w, K_REASON)
            w.c_value(reason)
    return 0


cdef int _timeline(Writer w, Engine engine, Job *job, Run *run, dict extra) except -1:
    """Stored entries of earlier executions, then what the record itself says about the present one."""
    cdef list stored = None if extra is None else extra.get("timeline")
    cdef int room, n
    n = 2 if job.state == COMPLETED else 1 if job.state == ACTIVE else 0
    if stored is None:
        w.c_array(1 + n)
        w.c_map(2)
        _raw(w, K_STATE)
        _text(w, engine.c_first_state(job))
        _raw(w, K_TIME)
        w.c_ms(job.created_ms)
    else:
        room = max(0, limits.MAX_TIMELINE_ENTRIES - <int>len(stored))
        n = min(n, room)
        w.c_array(len(stored) + n)
        for entry in stored:
            w.c_value(entry)
    if n:
        _raw(w, STATE_ACTIVE)
        w.c_ms(run.started_ms)
    if n == 2:
        _raw(w, STATE_COMPLETED)
        w.c_ms(run.finished_ms)
    return 0
