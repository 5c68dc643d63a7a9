"""The delivery of one job to a worker, and the reader of the frames that bring them.

A pull brings dozens of jobs of some fifty fields each; a processor looks at one
or two. So the reader walks the bytes once, keeps the few fields that the worker
needs, and leaves data and the rest packed until somebody asks.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_INCREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint32_t
from libc.string cimport memcmp
from qcore.wire.scan cimport c_array, c_map, c_number, c_skip, c_skip_frame, c_str

import threading
import time
from contextvars import ContextVar

from qclient.checks import line, log_level, number
from qclient.codec import readable, unpack_frame, unpack_payload
from qclient.durations import to_seconds
from qcore.errors import JobCancelled, ProtocolError

BUFFERED = D_BUFFERED
STARTED = D_STARTED
ACKING = D_ACKING
REPORTING = D_REPORTING
SETTLED = D_SETTLED
LOST = D_LOST


@cython.final
@cython.freelist(128)
cdef class JobContext:
    """The running job. Not to be kept after the processor has returned.

    Made by the worker only. ``id``, ``name`` and ``token`` are plain attributes;
    ``data`` and ``raw`` are unpacked when first asked for.
    """

    def __init__(self):
        raise TypeError("a JobContext is made by a worker")

    @property
    def data(self):
        """The job's data, as it was added."""
        if not self.has_decoded:
            if self.data_end:
                self.decoded = unpack_payload(self.packed[self.data_at:self.data_end])
            self.has_decoded = True
        return self.decoded

    @property
    def raw(self):
        """Every field as the engine sent it, times in milliseconds."""
        if self.fields is None:
            self.fields = unpack_frame(self.packed, part=True)
        return self.fields

    @property
    def queue(self):
        """Name of the queue."""
        return self.control.queue

    @property
    def attempts_made(self):
        """Failed attempts before this one."""
        return self.attempts

    @property
    def attempt(self):
        """Number of this attempt, the first is 1."""
        return self.attempts + 1

    @property
    def max_attempts(self):
        """How often the job may be tried in all."""
        return self.limit

    @property
    def is_last_attempt(self):
        """Whether a failure now is final."""
        return self.attempts + 1 >= self.limit

    @property
    def priority(self):
        """Higher runs first."""
        return int(self.priority_) if self.priority_ == <long> self.priority_ else self.priority_

    @property
    def timeout(self):
        """Processing time allowed, in seconds, or None."""
        return self.timeout_ms / 1000.0 if self.timeout_ms > 0 else None

    @property
    def deadline(self):
        """Reading of ``time.monotonic()`` at which the job's time is up, or None."""
        return self._deadline

    # ------------------------------------------------------------ cancellation

    @property
    def cancelled(self):
        """Whether this delivery was cancelled, for whatever reason."""
        return self._reason is not None

    @property
    def cancel_reason(self):
        """``cancelled``, ``timeout``, ``shutdown``, ``lease_lost`` or the caller's own; None."""
        return self._reason

    def check_cancelled(self):
        """Raise ``JobCancelled`` if this delivery was cancelled."""
        if self._reason is not None:
            raise JobCancelled(self._reason)

    def sleep(self, seconds):
        """Sleep in a thread; ends early with ``JobCancelled`` when cancelled."""
        if number(seconds, "seconds") > 0:
            to_seconds(seconds, "seconds")
        if self._event is None:
            self._event = threading.Event()
        self.check_cancelled()
        if self._event.wait(max(0.0, seconds)):
            self.check_cancelled()

    # --------------------------------------------------------------- reporting

    def set_progress(self, progress, message=None):
        """Report 0 to 100. Sent at once and not waited for; from any thread."""
        self.check_cancelled()
        fields = {"id": self.id, "token": self.token, "progress": number(progress, "progress")}
        if message is not None:
            fields["message"] = line(message, "message")
        self.control.post("Progress", fields)

    def log(self, message, level="info"):
        """Add a line to the job's log. Sent at once and not waited for; from any thread."""
        self.check_cancelled()
        fields = {"id": self.id, "token": self.token, "message": line(message, "message")}
        fields["level"] = log_level(level)
        self.control.post("AddLog", fields)

    def children_values(self):
        """Results of the children that have completed, by ``"queue:id"``.

        Waits for the reply: in a coroutine, ``await asyncio.to_thread(job.children_values)``.
        """
        values = self.control.ask("GetChildrenValues", {"id": self.id})["data"]["values"]
        return {child: readable(value) for child, value in values.items()}

    def failed_children(self):
        """Errors of children whose failure let this job go on. Waits for the reply."""
        return dict(self.control.ask("GetFailedChildrenValues", {"id": self.id})["values"])

    def ignored_children(self):
        """Errors of children whose failure was ignored. Waits for the reply."""
        return dict(self.control.ask("GetIgnoredChildrenFailures", {"id": self.id})["values"])

    def _start_clock(self):
        """Note when the job's time is over; return the seconds it has, or None."""
        if self.timeout_ms <= 0:
            return None
        self._deadline = time.monotonic() + self.timeout_ms / 1000.0
        return self.timeout_ms / 1000.0

    def __reduce__(self):
        raise TypeError("a JobContext cannot be pickled")

    def __repr__(self):
        return f"<JobContext {self.id!r} {self.name!r} attempt {self.attempt}>"


cdef int bad() except -1:
    raise ProtocolError("the engine sent a reply that cannot be read")


cdef inline bint same(const unsigned char *s, Py_ssize_t n, const char *word, Py_ssize_t k) noexcept nogil:
    return n == k and memcmp(s, word, k) == 0


cdef str text(const unsigned char *s, Py_ssize_t n):
    return PyUnicode_DecodeUTF8(<const char *> s, n, "replace")


cdef Py_ssize_t read_job(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end,
                         object control, JobContext job) except -1:
    """Read one job map at ``pos`` into ``job``; return the position after it."""
    cdef Py_ssize_t start = pos, n, k, at, _i
    cdef const unsigned char *s
    cdef double value
    cdef bint is_int
    cdef uint32_t notes = 0
    pos = c_map(p, pos, end, &n)
    if pos < 0:
        bad()
    job.control = control
    job.limit = 1
    for _i in range(n):
        pos = c_str(p, pos, end, &s, &k)
        if pos < 0 or pos >= end:
            bad()
        at = pos
        # Told apart by length first: most of the fields are none of these.
        if k == 2 and s[0] == c"i" and s[1] == c"d":
            pos = c_str(p, at, end, &s, &k)
            if pos < 0:
                bad()
            job.id = text(s, k)
            continue
        if k == 4:
            if memcmp(s, b"data", 4) == 0:
                pos = c_skip(p, at, end, &notes)
                if pos < 0:
                    bad()
                job.data_at = at - start
                job.data_end = pos - start
                continue
            if memcmp(s, b"name", 4) == 0:
                pos = c_str(p, at, end, &s, &k)
                if pos < 0:
                    bad()
                job.name = text(s, k)
                continue
        elif k == 7 and memcmp(s, b"timeout", 7) == 0:
            if c_number(p, at, end, &value, &is_int) > 0:
                job.timeout_ms = value
        elif k == 8:
            if memcmp(s, b"attempts", 8) == 0:
                if c_number(p, at, end, &value, &is_int) > 0 and 0 <= value < 1e15:
                    job.attempts = <long> value
            elif memcmp(s, b"priority", 8) == 0 and c_number(p, at, end, &value, &is_int) > 0:
                job.priority_ = value
        elif same(s, k, b"maxAttempts", 11):
            if c_number(p, at, end, &value, &is_int) > 0 and 0 <= value < 1e15:
                job.limit = <long> value
        # A field of one byte (nil, true, false, a small number) is most of them.
        if p[at] == 0xC0 or p[at] == 0xC2 or p[at] == 0xC3 or p[at] < 0x80 or p[at] == 0x90:
            pos = at + 1
        else:
            pos = c_skip(p, at, end, &notes)
            if pos < 0:
                bad()
    if job.id is None or job.name is None:
        bad()
    job.packed = PyBytes_FromStringAndSize(<const char *> p + start, pos - start)
    return pos


cdef Py_ssize_t read_jobs(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end,
                          object control, dict reply) except -1:
    cdef Py_ssize_t n, _i
    cdef JobContext job
    cdef list jobs
    pos = c_array(p, pos, end, &n)
    if pos < 0:
        bad()
    jobs = []
    for _i in range(n):
        job = JobContext.__new__(JobContext)
        pos = read_job(p, pos, end, control, job)
        jobs.append(job)
    reply["jobs"] = jobs
    return pos


cdef Py_ssize_t read_texts(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end, dict reply) except -1:
    cdef Py_ssize_t n, i, k
    cdef const unsigned char *s
    cdef list out
    cdef str one
    pos = c_array(p, pos, end, &n)
    if pos < 0 or n > end - pos:
        bad()
    out = PyList_New(n)
    for i in range(n):
        pos = c_str(p, pos, end, &s, &k)
        if pos < 0:
            # The list holds empty places until it is full; fill them before it is dropped.
            one = ""
            for k in range(i, n):
                Py_INCREF(one)
                PyList_SET_ITEM(out, k, one)
            bad()
        one = text(s, k)
        Py_INCREF(one)
        PyList_SET_ITEM(out, i, one)
    reply["tokens"] = out
    return pos


def read_reply(bytes frames not None, Py_ssize_t at, Py_ssize_t end, object control):
    """Return the reply map in ``frames[at:end]``, its ``jobs`` as ``JobContext`` objects.

    Raises ``ProtocolError`` when the bytes are not one map. One pass over the bytes.
    """
    cdef const unsigned char *p = <const unsigned char *> PyBytes_AS_STRING(frames)
    cdef Py_ssize_t n, _i, k, pos, start
    cdef const unsigned char *s
    cdef uint32_t notes = 0
    cdef dict reply = {}
    cdef str key
    if at < 0 or end > PyBytes_GET_SIZE(frames) or at >= end:
        bad()
    pos = c_map(p, at, end, &n)
    if pos < 0:
        bad()
    for _i in range(n):
        pos = c_str(p, pos, end, &s, &k)
        if pos < 0 or pos >= end:
            bad()
        start = pos
        if same(s, k, b"ok", 2) and (p[pos] == 0xC3 or p[pos] == 0xC2):
            reply["ok"] = p[pos] == 0xC3
            pos += 1
        elif same(s, k, b"reqId", 5) and c_str(p, start, end, &s, &k) > 0:
            pos = c_str(p, start, end, &s, &k)
            reply["reqId"] = text(s, k)
        elif same(s, k, b"jobs", 4) and (p[pos] & 0xF0 == 0x90 or p[pos] == 0xDC or p[pos] == 0xDD):
            pos = read_jobs(p, pos, end, control, reply)
        elif same(s, k, b"tokens", 6) and (p[pos] & 0xF0 == 0x90 or p[pos] == 0xDC or p[pos] == 0xDD):
            pos = read_texts(p, pos, end, reply)
        else:
            key = text(s, k)
            pos = c_skip_frame(p, start, end, &notes)
            if pos < 0:
                bad()
            reply[key] = unpack_frame(PyBytes_FromStringAndSize(<const char *> p + start, pos - start), part=True)
    if pos != end:
        bad()
    return reply


_current = ContextVar("qclient_current_job")
set_current = _current.set


def current_job():
    """The job that this code runs for; ``LookupError`` outside of a processor."""
    return _current.get()
