"""A session: bytes of requests in, bytes of replies out.

One per connection, without a socket: a server feeds it what it received, an
embedded client what it would have sent. Frames of the frequent commands in their
plain forms are served here, straight from their bytes; every other frame goes
through :mod:`qcore.broker.handlers`. Both give the same bytes for the same request,
which a test holds; when in doubt, a hot path declines and changes nothing.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport INT64_MIN, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memset

from qcore.broker.core cimport Broker, Outlet, T_ACK, T_PULL, T_PUSH
from qcore.broker.jobview cimport CAP_CODES, CAP_OUTCOMES
from qcore.engine.engine cimport Engine
from qcore.engine.ids cimport uuid_parse
from qcore.engine.job cimport (
    COMPLETED, F_DURABLE, F_GROUPED, F_LIFO, F_LINKED, F_REMOVE_ON_COMPLETE, F_REMOVE_ON_FAIL, FAILED, STAGED, Blob,
    Run, blob_new,
)
from qcore.engine.lanes cimport Wanted
from qcore.engine.queue cimport Queue
from qcore.engine.keys cimport KEY_FREE, KEY_PASSED, KEY_REPLACED, key_of
from qcore.engine.transitions cimport BAD_TOKEN, MAY, NO_TOKEN, REPLACED, REUSED, TOKEN, Spec
from qcore.wire.jsontext cimport c_fits
from qcore.wire.scan cimport c_array, c_load32, c_map, c_skip, c_str, c_utf8
from qcore.wire.walk cimport (
    Fields, Piece, c_called, c_finite, c_flag, c_list, c_next_field, c_next_item, c_next_key, c_nil, c_no_piece,
    c_open_fields, c_read_value, c_request_id, c_same, c_undefined, c_whole,
)
from qcore.wire.writer cimport Writer

from collections import namedtuple

from qcore import limits
from qcore.broker import handlers
from qcore.broker.core import too_many_waits
from qcore.errors import StateError

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object o, Py_ssize_t *size) except NULL

cdef enum:
    DECLINED = 0            # not for the hot path; nothing has changed
    SERVED = 1
    OUTPUT_BOUND = 8388608  # replies of one connection before its further requests wait
    KEPT_SPECS = 1024       # members of a batch for which a connection keeps room

cdef uint32_t NEW_NAME = 0xFFFFFFFF    # stands for the name of a batch that is not interned yet

cdef uint32_t MAX_FRAME = limits.MAX_FRAME_BYTES
cdef uint32_t MAX_STRANGER = limits.MAX_UNAUTHENTICATED_BYTES   # while the connection has not presented its token
cdef Py_ssize_t MAX_NAME = limits.MAX_NAME_CHARS
cdef double MAX_MS = limits.MAX_TIME_MS, MAX_WAIT_MS = limits.MAX_PULL_TIMEOUT_MS
cdef double MAX_LEASE_MS = MAX_MS / 1000    # longer ones go the general way
cdef double MAX_PULLED = limits.MAX_PULL_COUNT, MAX_ATTEMPTS = limits.MAX_ATTEMPTS
cdef uint32_t ATTEMPTS = limits.DEFAULT_ATTEMPTS
cdef int64_t BACKOFF_MS = limits.DEFAULT_BACKOFF_MS, LEASE_MS = limits.DEFAULT_LOCK_TTL_MS

cdef bytes K_OK = b"\xa2ok\xc3", K_ID = b"\xa2id", K_IDS = b"\xa3ids", K_REQ_ID = b"\xa5reqId"
cdef bytes K_REFUSED = b"\xa2ok\xc2\xa5error"
cdef bytes K_LIMIT = b"\xa4code\xa5limit"
cdef bytes K_DATA = b"\xa4data"

cdef unsigned char QUEUE_CHARS[256]


cdef void _fill_queue_chars() noexcept:
    cdef int i
    for i in range(256):
        QUEUE_CHARS[i] = (c'a' <= i <= c'z' or c'A' <= i <= c'Z' or c'0' <= i <= c'9'
                          or i == c'_' or i == c'.' or i == c':' or i == c'-')

_fill_queue_chars()


cdef inline bint _command(const unsigned char *p, Py_ssize_t n, const unsigned char **name, Py_ssize_t *k) noexcept:
    """The command of a frame that begins with it, as clients write it; the others go the general path."""
    cdef Py_ssize_t pos, fields
    pos = c_map(p, 0, n, &fields)
    if pos < 0 or fields == 0:
        return False
    pos = c_str(p, pos, n, name, k)
    if pos < 0 or not c_same(name[0], k[0], b"cmd", 3):
        return False
    return c_str(p, pos, n, name, k) >= 0


cdef bint _overtakes(const unsigned char *p, Py_ssize_t n) noexcept:
    """Whether a request may run while adds in front of it wait for their commit: it cannot see their jobs."""
    cdef Py_ssize_t k
    cdef const unsigned char *key
    return _command(p, n, &key, &k) and (
        c_same(key, k, b"PUSH", 4) or c_same(key, k, b"PUSHB", 5) or c_same(key, k, b"PUSHF", 5)
        or c_same(key, k, b"ACK", 3) or c_same(key, k, b"ACKB", 4) or c_same(key, k, b"FAIL", 4)
        or c_same(key, k, b"JobHeartbeat", 12) or c_same(key, k, b"JobHeartbeatB", 13)
        or c_same(key, k, b"Heartbeat", 9) or c_same(key, k, b"Ping", 4)
    )


cdef inline int _raw(Writer w, bytes piece) except -1:
    return w.c_raw(PyBytes_AS_STRING(piece), PyBytes_GET_SIZE(piece))


Added = namedtuple("Added", "how ids")


@cython.final
cdef class Session(Outlet):
    """One connection's conversation with a broker.

    :meth:`feed` takes any slice of the incoming stream and runs every whole frame in it;
    :meth:`take` gives the reply bytes that may be sent now. ``on_output`` is called, without
    the lock, when output appears at another time: a long poll's job, a reply after its commit.
    With ``in_order`` requests that could see jobs of durable adds in front of them wait for the
    commit of those; else they run at once and do not see them. Thread-safe.
    """

    def __cinit__(self, Broker broker not None, object on_output=None, *, bint authenticated=True,
                  int64_t rate_max=0, int64_t rate_window_ms=60_000, Py_ssize_t max_waits=limits.DEFAULT_MAX_WAITS,
                  object settings=None, bint in_order=False):
        self.broker = broker
        self.on_output = on_output
        self.out = Writer()
        self.held = Writer()
        self.held_adds = Writer()
        self.authenticated = authenticated
        self.max_waits = max_waits
        self.rate_max = rate_max
        # One slice more than the window is long: the oldest of them is only partly inside it.
        self.rate_slice_ns = rate_window_ms * 1000000 // (RATE_SLICES - 1) + 1
        self.settings = settings
        self.in_order = in_order
        self.state = {}
        broker.adopt(self)

    def __dealloc__(self):
        PyMem_Free(self.specs)

    # --- the stream -----------------------------------------------------------------------

    cpdef Py_ssize_t feed(self, data, Py_ssize_t n=-1) except -1:
        """Run every whole frame of the stream so far. Linear in the bytes, however they are cut.

        ``data`` may be a buffer that is used again, of which the first ``n`` bytes have come.
        Returns how many bytes of a frame that is not whole yet are here.
        """
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if n < 0:
                n = view.len
            elif n > view.len:
                raise ValueError(f"n: expected at most the {view.len} bytes of data, got {n}")
            self.c_feed(<const unsigned char *>view.buf, n)
        finally:
            PyBuffer_Release(&view)
        return self.c_partial()

    cdef int c_feed(self, const unsigned char *p, Py_ssize_t n) except -1:
        cdef Py_ssize_t want
        if self.closing or self.closed or n == 0:
            return 0
        if self.backlogged or self.pending is not None:
            self.chunks.append(PyBytes_FromStringAndSize(<const char *>p, n))
            self.n_chunks += n
        if self.backlogged:
            return 0
        if self.pending is None:
            return self.c_run(p, n)
        # Pieces of one large frame are only joined once it is whole, or its length known.
        want = 4
        if PyBytes_GET_SIZE(self.pending) >= 4:
            want += c_load32(<const unsigned char *>PyBytes_AS_STRING(self.pending))
        if PyBytes_GET_SIZE(self.pending) + self.n_chunks < want <= self.c_most() + 4:
            return 0
        return self.c_run_pending()

    cdef int c_run_pending(self) except -1:
        cdef bytes whole = self.pending + b"".join(self.chunks)
        self.pending = None
        return self.c_run(<const unsigned char *>PyBytes_AS_STRING(whole), PyBytes_GET_SIZE(whole))

    cdef int c_run(self, const unsigned char *p, Py_ssize_t n) except -1:
        """Run the whole frames of these bytes and keep what is left."""
        cdef Py_ssize_t used = 0
        cdef int64_t before = self.n_frames
        cdef Broker broker = self.broker
        self.broker.c_enter()
        try:
            self.c_frames(p, n, &used)
            if broker.timed[T_PUSH] | broker.timed[T_PULL] | broker.timed[T_ACK]:
                broker.c_took(self.n_frames - before)
            if self.broker.engine.woken:
                self.broker.c_serve()
            if self.broker.engine.settled:
                self.broker.c_tell()
            if self.broker.engine.events:
                self.broker.c_spread(self.broker.c_holds_events())
            self.broker.c_note()
            self.broker.c_encode_ahead()
        finally:
            if self.cap_specs > KEPT_SPECS:
                PyMem_Free(self.specs)
                self.specs = NULL
                self.cap_specs = 0
            self.broker.c_leave()
        if used < n and not self.closing:
            self.pending = PyBytes_FromStringAndSize(<const char *>p + used, n - used)
            self.chunks = []
            self.n_chunks = 0
        return 0

    def resume(self):
        """Go on with the requests that waited for room, once the output has been taken, or for a commit."""
        if self.backlogged and not self.closed and not self.behind_adds:
            self.backlogged = False
            self.c_run_pending()

    @property
    def behind_adds(self):
        """Whether requests that see durable adds would have to wait for the commit of these."""
        return self.c_behind_adds()

    @property
    def partial(self):
        """Bytes of a frame that is not whole yet."""
        return self.c_partial()

    cdef Py_ssize_t c_partial(self) noexcept:
        if self.pending is None or self.backlogged:
            return 0
        return PyBytes_GET_SIZE(self.pending) + self.n_chunks

    @property
    def waiting(self):
        """Whether replies wait for a commit."""
        return self.holding

    @property
    def settled(self):
        """Whether it has no output, lets no request wait for room and is not to be closed."""
        return self.c_settled()

    cdef bint c_settled(self) noexcept:
        return self.out.n == 0 and not self.backlogged and not self.closing

    @property
    def has_output(self):
        """Whether :meth:`take` has something to give."""
        return self.c_has_output()

    cdef bint c_has_output(self) noexcept:
        return self.out.n > 0

    cpdef bytes take(self):
        """The bytes to be sent now; they are no longer here afterwards."""
        if self.out.n == 0:
            return b""
        self.broker.c_lock()
        try:
            return self.out.take()
        finally:
            self.broker.c_leave()

    def close(self, *, bint release=True):
        """The connection ended. Its waits end; with ``release`` its unrenewed deliveries go back."""
        if release and self.backlogged and self.c_behind_adds():
            self.in_order = False   # what the peer has written runs, whether or not it waits for the replies
            self.resume()
        self.broker.dismiss(self, release=release)
        self.on_output = None   # leads back to its owner: a cycle would keep what is unsent until a collection
        self.pending = None
        self.chunks = None

    cdef uint32_t c_most(self) noexcept:
        """Longest frame that is taken from this peer."""
        return MAX_FRAME if self.authenticated else MAX_STRANGER

    cdef int c_frames(self, const unsigned char *p, Py_ssize_t n, Py_ssize_t *used) except -1:
        cdef Py_ssize_t pos = 0
        cdef uint32_t size
        while n - pos >= 4 and not self.closing:
            if self.out.n > OUTPUT_BOUND:
                # Small requests may ask for large replies: the rest waits until these have gone.
                self.backlogged = True
                break
            size = c_load32(p + pos)
            if size > self.c_most():
                self.c_write(self.out, {
                    "ok": False,
                    "error": f"Frame too large: {size} bytes exceeds maximum {self.c_most()}",
                    **handlers.coded(self, "limit"),
                })
                self.closing = True
                break
            if <Py_ssize_t>size > n - pos - 4:
                break
            if self.c_behind_adds() and not _overtakes(p + pos + 4, size):
                self.backlogged = True
                break
            self.c_frame(p + pos + 4, size)
            pos += 4 + size
        used[0] = pos
        return 0

    cdef int c_frame(self, const unsigned char *p, Py_ssize_t n) except -1:
        self.n_frames += 1
        if self.rate_max and not self.c_admit_request():
            self.c_write(self.out, handlers.refuse_frame(self, PyBytes_FromStringAndSize(<char *>p, n),
                                                         "Rate limit exceeded", "rate_limited"))
            return 0
        if self.authenticated and self.c_hot(p, n) == SERVED:
            return 0
        return self.c_generic(p, n)

    cdef bint c_behind_adds(self) noexcept:
        return self.in_order and (self.held_adds.n > 0 or self.adds_away)

    cdef bint c_admit_request(self) noexcept:
        """A sliding window in slices: never more than the maximum in any window."""
        cdef int64_t now = self.broker.now_ns // self.rate_slice_ns
        cdef int64_t i
        if now - self.rate_slice >= RATE_SLICES:
            memset(self.rate_counts, 0, sizeof(self.rate_counts))
            self.rate_total = 0
        else:
            for i in range(self.rate_slice + 1, now + 1):
                self.rate_total -= self.rate_counts[i % RATE_SLICES]
                self.rate_counts[i % RATE_SLICES] = 0
        self.rate_slice = now
        if self.rate_total >= self.rate_max:
            return False
        self.rate_counts[now % RATE_SLICES] += 1
        self.rate_total += 1
        return True

    cdef int c_generic(self, const unsigned char *p, Py_ssize_t n) except -1:
        return handlers.handle(self, PyBytes_FromStringAndSize(<char *>p, n))

    cdef int c_write(self, Writer w, object reply) except -1:
        cdef Py_ssize_t at = w.c_open()
        try:
            w.c_value(reply)
            if w.n - at > MAX_FRAME:
                # No peer would take it.
                w.n = at
                refusal = {"ok": False, "error": f"The reply would be over {MAX_FRAME} bytes: ask for less",
                           **handlers.coded(self, "limit")}
                if "reqId" in reply:
                    refusal["reqId"] = reply["reqId"]
                w.c_value(refusal)
        except BaseException:
            w.n = at - 4
            raise
        return w.c_close(at)

    def reply(self, dict reply not None, *, bint held=False, bint add=False, bint change=False):
        """Write a reply frame; ``held`` lets it wait for the commit of the changes so far.

        ``change``: as safe as the level of changes says; that of adds was noted when they were admitted.
        """
        self.c_write(self.broker.c_reply(self, held and self.broker.durable, add,
                                         change and self.broker.sync_changes), reply)
        return 0

    # --- the engine as the general handlers see it ---------------------------------------------

    def announce(self, uint32_t caps):
        """The client's ``Hello`` named these extensions."""
        self.caps = caps

    def announced(self, str name not None):
        """Whether the client understands an extension."""
        return (self.caps & <uint32_t>handlers.EXTENSIONS[name]) != 0

    def add(self, str queue, list admissions not None, object resent_since_ms=None, *, bint staged=False):
        """Admit checked jobs (dicts of :func:`~qcore.broker.handlers.adding.admission`), in order.

        ``resent_since_ms``: the request may have been run before, not earlier than then.
        Without ``queue`` each names its own. ``staged``: nothing of them counts before its commit.
        """
        cdef Engine engine = self.broker.engine
        cdef bint durable = staged or any([options["durable"] for options in admissions])
        cdef bint several = len(admissions) > 1
        cdef set unmade = set()
        if (several or any([options["linked"] for options in admissions])) \
                and any([key_of(options["extra"] or {}) is not None for options in admissions]):
            refused = engine.plan_keys(queue, [(options["job_id"], options["extra"]) for options in admissions],
                                       self.broker.now_ms, unmade=unmade)
            if refused is not None:
                raise StateError(f"jobs[{refused[0]}]: {refused[1]}" if several else refused[1])
        if queue is not None:
            self.c_demand_room(queue, admissions)
        else:
            for name in dict.fromkeys([options["queue"] for options in admissions]):
                self.c_demand_room(name, [options for options in admissions if options["queue"] == name])
        if engine.needed or any([options["linked"] for options in admissions]):
            engine.begin_batch([options["job_id"] for options in admissions if options["job_id"] not in unmade])
        try:
            return self.c_add_all(queue, admissions, durable, resent_since_ms)
        finally:
            engine.batch.clear()

    cdef object c_add_all(self, str queue, list admissions, bint durable, object resent_since_ms):
        cdef Engine engine = self.broker.engine
        cdef Queue q
        cdef Spec spec
        cdef Piece piece
        cdef str how = "plain"
        cdef Writer target
        cdef list ids = []
        cdef object data, job_id, extra, name
        cdef bytes packed
        for options in admissions:
            self.c_plain_spec(&spec)
            memset(&piece, 0, sizeof(Piece))
            name = options["name"]
            extra = options["extra"]
            spec.name = engine.c_name(name)
            if not spec.name:
                extra = dict(extra or {}, name=name)
            job_id = options["job_id"]
            if job_id is not None and resent_since_ms is not None \
                    and engine.c_admitted_since(job_id, resent_since_ms, options["created_ms"]):
                ids.append(job_id)
                how = "committed" if how == "plain" else how
                continue
            if job_id is not None:
                spec.id_text = PyUnicode_AsUTF8AndSize(job_id, &spec.id_n)
            q = engine.c_queue_for(options.get("queue", queue), spec.id_text, spec.id_n)
            spec.priority = options["priority"]
            if options["created_ms"] is not None:
                spec.created_ms = options["created_ms"]
            spec.max_attempts = options["attempts"]
            spec.backoff_ms = options["backoff_ms"]
            spec.flags = ((F_LIFO if options["lifo"] else 0)
                          | (F_REMOVE_ON_COMPLETE if options["remove_on_complete"] else 0)
                          | (F_REMOVE_ON_FAIL if options["remove_on_fail"] else 0)
                          | (F_DURABLE if options["durable"] else 0) | (F_LINKED if options["linked"] else 0)
                          | (F_GROUPED if extra is not None and "groupId" in extra else 0))
            data = options["data"]
            packed = b"\0" if data is None else b"\0" + <bytes>data
            if data is not None:
                # Offset 0 of a piece means absent, hence the byte in front.
                piece.start = 1
                piece.end = PyBytes_GET_SIZE(packed)
                c_skip(<const unsigned char *>PyBytes_AS_STRING(packed), 1, piece.end, &piece.notes)
            target = self.c_admit(q, <const unsigned char *>PyBytes_AS_STRING(packed), &spec, &piece,
                                  options["delay_ms"], extra, durable)
            if target is self.held_adds:
                how = "staged"
            elif target is self.held and how == "plain":
                how = "committed"
            ids.append(engine.c_id(engine.job_at(self.last_slot)) if self.last_slot else engine.kept_by)
        return Added(how, ids)

    cdef int c_demand_room(self, str queue, list admissions) except -1:
        """Raise unless the groups named by these admissions have room for the jobs that are new."""
        cdef Engine engine = self.broker.engine
        cdef list adds = []
        cdef set taken = set(), keys = set()
        cdef Queue q = engine.queues.get(queue)
        cdef uint32_t slot
        cdef int verdict
        cdef object job_id, extra, key
        if not any([options["group_max"] is not None for options in admissions]):
            return 0
        for options in admissions:
            extra, job_id = options["extra"], options["job_id"]
            if extra is None or "groupId" not in extra:
                continue
            if job_id is not None:
                # An id that is taken, by a live job or in this batch, adds nothing.
                slot = engine.c_slot(job_id)
                if job_id in taken or (slot and engine.job_at(slot).state not in (COMPLETED, FAILED)):
                    continue
                taken.add(job_id)
            key = key_of(extra)
            if key is not None and q is not None:
                # Nor does a key that is held; and a job that makes way for another of its group leaves its place.
                verdict = engine.c_judge_key(q, extra, self.broker.now_ms, &slot)
                if key in keys or (verdict != KEY_FREE and verdict != KEY_PASSED and verdict != KEY_REPLACED):
                    continue
                if verdict == KEY_REPLACED and engine.job_at(slot).extra != NULL \
                        and (<dict>engine.job_at(slot).extra).get("groupId") == extra["groupId"]:
                    continue
                keys.add(key)
            adds.append((extra["groupId"], options["group_max"]))
        engine.demand_group_room(queue, adds)
        return 0

    def finish(self, str job_id not None, str token, bytes result, object remove):
        """Complete a job; see :meth:`Engine.ack`."""
        cdef uint32_t notes = 0
        if result is not None:
            c_skip(<const unsigned char *>PyBytes_AS_STRING(result), 0, PyBytes_GET_SIZE(result), &notes)
        return self.broker.engine.ack(job_id, self.broker.now_ms, token=token, result=result, result_notes=notes,
                                      remove=remove, remember=(self.caps & CAP_OUTCOMES) != 0)

    def update(self, str job_id not None, bytes data not None):
        """Replace the data of a job; see :meth:`Engine.update`."""
        cdef uint32_t notes = 0
        c_skip(<const unsigned char *>PyBytes_AS_STRING(data), 0, PyBytes_GET_SIZE(data), &notes)
        return self.broker.engine.update(job_id, data, notes=notes)

    def put_schedule(self, str name not None, str queue not None, bytes data, **options):
        """Create or change a schedule; see :meth:`Schedules.put_schedule`."""
        cdef uint32_t notes = 0
        if data is not None:
            c_skip(<const unsigned char *>PyBytes_AS_STRING(data), 0, PyBytes_GET_SIZE(data), &notes)
        return self.broker.engine.put_schedule(name, queue, self.broker.now_ms, self.broker.now_ns, data=data,
                                               notes=notes, **options)

    def fail(self, str job_id not None, str token, str error, list stack, bint unrecoverable, object remove):
        """Fail a job; see :meth:`Engine.fail`."""
        return self.broker.engine.fail(job_id, self.broker.now_ms, token=token, error=error, stack=stack,
                                       unrecoverable=unrecoverable, remove=remove,
                                       remember=(self.caps & CAP_OUTCOMES) != 0)

    def renew(self, str job_id not None, str token, int64_t lease_ms):
        """Renew a lease; see :meth:`Engine.renew`."""
        return self.broker.engine.renew(job_id, self.broker.now_ms, self.broker.now_ns, token=token,
                                        lease_ms=lease_ms)

    # --- hot paths ------------------------------------------------------------------------------
    #
    # Each parses its whole frame first. Whatever is not plain (an unknown field, another type,
    # a value out of range) is left to the generic path, which has the words for it.

    cdef int c_hot(self, const unsigned char *p, Py_ssize_t n) except -1:
        """Serve the frame if it is one of the frequent commands in plain form."""
        cdef Py_ssize_t k
        cdef const unsigned char *key
        if not _command(p, n, &key, &k):
            return DECLINED
        if k == 4:
            if memcmp(key, b"PUSH", 4) == 0:
                self.broker.timed[T_PUSH] += 1
                return self.c_push(p, n)
            if memcmp(key, b"PULL", 4) == 0:
                self.broker.timed[T_PULL] += 1
                return self.c_pull(p, n, False)
            if memcmp(key, b"ACKB", 4) == 0:
                self.broker.timed[T_ACK] += 1
                return self.c_ackb(p, n)
        elif k == 5:
            if memcmp(key, b"PUSHB", 5) == 0:
                self.broker.timed[T_PUSH] += 1
                return self.c_pushb(p, n)
            if memcmp(key, b"PULLB", 5) == 0:
                self.broker.timed[T_PULL] += 1
                return self.c_pull(p, n, True)
        elif k == 3 and memcmp(key, b"ACK", 3) == 0:
            self.broker.timed[T_ACK] += 1
            return self.c_ack(p, n)
        return DECLINED

    cdef Queue c_queue_at(self, const unsigned char *p, Piece *piece, bint create):
        """The queue whose name is in the piece; None when it is not a valid name, or not there.

        ``named`` tells these two apart.
        """
        cdef const unsigned char *s
        cdef Py_ssize_t n, i
        cdef str name
        self.named = False
        if piece.start == 0 or c_str(p, piece.start, piece.end, &s, &n) < 0 or not 1 <= n <= MAX_NAME:
            return None
        for i in range(n):
            if not QUEUE_CHARS[s[i]]:
                return None
        name = (<char *>s)[:n].decode("ascii")
        self.named = True
        if create:
            return self.broker.engine.c_queue(name)
        return <Queue>self.broker.engine.queues.get(name)

    cdef int c_job_field(self, const Fields *at, Spec *spec, Piece *data, double *delay, bint batch) except -1:
        """Take one option of a job; DECLINED when it is not plain."""
        cdef const unsigned char *p = at.p
        cdef const unsigned char *s
        cdef Py_ssize_t n
        cdef double value
        cdef uint32_t flag
        cdef bint absent = c_undefined(p, &at.value), on = False
        cdef str name
        if c_called(at, b"data", 4):
            if not c_fits(p, at.value.start, at.value.end):
                return DECLINED
            data[0] = at.value
            if absent:
                data.start = 0
            return SERVED
        if c_called(at, b"name", 4):
            # Characters are counted for the bound; bytes say the same while they are fewer.
            if c_str(p, at.value.start, at.value.end, &s, &n) < 0 or not 1 <= n <= MAX_NAME:
                return DECLINED
            name = (<char *>s)[:n].decode("utf-8")
            spec.name = self.broker.engine.names.get(name, 0)
            if spec.name:
                return SERVED
            # It is interned once the request is known to be good: of a single job by the generic path.
            if not batch or self.new_name is not None and self.new_name != name:
                return DECLINED
            self.new_name = name
            spec.name = NEW_NAME
            return SERVED
        # An option that is null or undefined is not given, also if it was given before.
        absent = absent or c_nil(p, &at.value)
        if c_called(at, b"customId", 8) if batch else c_called(at, b"jobId", 5):
            spec.id_text = NULL
            if absent:
                return SERVED
            if c_str(p, at.value.start, at.value.end, &s, &n) < 0 or n == 0:
                return DECLINED
            spec.id_text = <const char *>s
            spec.id_n = n
            return SERVED
        if c_called(at, b"priority", 8):
            value = 0
            if not absent and not c_finite(p, &at.value, &value):
                return DECLINED
            spec.priority = value + 0.0     # no negative zero
            return SERVED
        if c_called(at, b"delay", 5):
            delay[0] = 0
            return absent or c_whole(p, &at.value, 0, MAX_MS, delay)
        if c_called(at, b"timestamp", 9):
            spec.created_ms = INT64_MIN
            if absent:
                return SERVED
            if not c_whole(p, &at.value, 0, MAX_MS, &value):
                return DECLINED
            spec.created_ms = <int64_t>value
            return SERVED
        if c_called(at, b"maxAttempts", 11):
            value = ATTEMPTS
            if not absent and not c_whole(p, &at.value, 1, MAX_ATTEMPTS, &value):
                return DECLINED
            spec.max_attempts = <uint32_t>value
            return SERVED
        if c_called(at, b"lifo", 4):
            flag = F_LIFO
        elif c_called(at, b"removeOnComplete", 16):
            flag = F_REMOVE_ON_COMPLETE
        elif c_called(at, b"removeOnFail", 12):
            flag = F_REMOVE_ON_FAIL
        elif c_called(at, b"durable", 7):
            flag = F_DURABLE
        else:                               # some other option, or another command
            return absent and not c_called(at, b"cmd", 3) and c_utf8(at.key, at.key_n)
        if not absent and not c_flag(p, &at.value, &on):
            return DECLINED
        spec.flags = spec.flags | flag if on else spec.flags & ~flag
        return SERVED

    cdef int c_push(self, const unsigned char *p, Py_ssize_t n) except -1:
        cdef Fields at
        cdef Piece queue, req, data
        cdef Spec spec
        cdef double delay = 0
        cdef Queue q
        cdef Writer w
        cdef Py_ssize_t start
        queue = req = data = c_no_piece()
        self.c_plain_spec(&spec)
        c_open_fields(&at, p, 0, n)
        c_next_field(&at)                   # the command
        while c_next_field(&at):
            if c_called(&at, b"queue", 5):
                queue = at.value
            elif c_called(&at, b"reqId", 5):
                if not c_request_id(&at, &req):
                    return DECLINED
            elif self.c_job_field(&at, &spec, &data, &delay, False) == DECLINED:
                return DECLINED
        if at.pos != n:
            return DECLINED
        if spec.name == 0:
            return DECLINED                 # an older client: its name is in the data
        if self.broker.degraded is not None:
            return DECLINED
        if spec.id_text != NULL and (self.broker.engine.needed
                                     or self.broker.engine.c_may_be_far(spec.id_text, spec.id_n)):
            return DECLINED                 # its ties are to be judged, or an earlier job with its id
        q = self.c_queue_at(p, &queue, spec.id_text == NULL)
        if q is None:
            return DECLINED                 # or it would be made for a job that may not be added
        q.used = True
        w = self.c_admit(q, p, &spec, &data, delay, None, (spec.flags & F_DURABLE) != 0)
        start = w.c_open()
        w.c_map(2 + (req.start != 0))
        _raw(w, K_OK)
        _raw(w, K_ID)
        self.c_write_id(w, self.last_slot)
        self.c_write_req_id(w, p, &req)
        w.c_close(start)
        return SERVED

    cdef void c_plain_spec(self, Spec *spec) noexcept:
        memset(spec, 0, sizeof(Spec))
        spec.max_attempts = ATTEMPTS
        spec.backoff_ms = BACKOFF_MS
        spec.created_ms = INT64_MIN     # not given

    cdef Writer c_admit(self, Queue q, const unsigned char *p, Spec *spec, Piece *data, double delay, object extra,
                        bint durable):
        """Admit one parsed job, leave its slot in ``last_slot``; where its reply goes.

        ``durable``: the command holds a durable job, so nothing of it counts before its commit.
        """
        cdef Broker broker = self.broker
        cdef int how
        cdef bint staged, sync
        if data.start:
            spec.data = blob_new(p + data.start, data.end - data.start, data.notes)
        if spec.created_ms == INT64_MIN:
            spec.created_ms = broker.now_ms
        spec.run_ms = spec.created_ms + <int64_t>delay
        staged = broker.durable and durable
        sync = broker.sync_adds or broker.sync_changes
        self.last_slot = broker.engine.c_add(q, spec, extra, broker.now_ms, staged, &how)
        if self.last_slot and broker.engine.job_at(self.last_slot).state == STAGED:
            # Added again while its commit is on its way, it depends on the next one as well.
            broker.staged[self.last_slot] = broker.engine.job_at(self.last_slot).seq
            return broker.c_reply(self, True, True, sync)
        if how == REUSED or how == REPLACED or staged:
            return broker.c_reply(self, broker.durable, False, sync)
        # Who adds faster than the disk writes for long is answered at its pace: what waits for it is bounded.
        return broker.c_reply(
            self, broker.hold_adds or broker.durable and broker.engine.n_dirty > broker.unflushed_limit,
            False, broker.sync_adds)

    cdef int c_write_id(self, Writer w, uint32_t slot) except -1:
        cdef char buffer[36]
        cdef const char *text
        cdef Py_ssize_t n = self.broker.engine.c_id_text(self.broker.engine.job_at(slot), buffer, &text)
        return w.c_str(text, n)

    cdef int c_write_req_id(self, Writer w, const unsigned char *p, Piece *req) except -1:
        if req.start:
            _raw(w, K_REQ_ID)
            w.c_raw(p + req.start, req.end - req.start)
        return 0

    cdef Py_ssize_t c_read_jobs(self, const unsigned char *p, Py_ssize_t pos, Py_ssize_t n,
                                Py_ssize_t *count) except -2:
        """Read the members of a batch, walked once, into the scratch space; the position after them, or -1."""
        cdef Fields at
        cdef Py_ssize_t i
        self.new_name = None
        pos = c_array(p, pos, n, count)
        if pos < 0 or self.c_room(count[0]) < 0:
            return -1
        for i in range(count[0]):
            self.c_plain_spec(&self.specs[i])
            self.pieces[i].start = 0
            self.delays[i] = 0
            c_open_fields(&at, p, pos, n)
            while c_next_field(&at):
                if self.c_job_field(&at, &self.specs[i], &self.pieces[i], &self.delays[i], True) == DECLINED:
                    return -1
            if at.pos < 0 or self.specs[i].name == 0:
                return -1
            pos = at.pos
        return pos

    cdef int c_pushb(self, const unsigned char *p, Py_ssize_t n) except -1:
        cdef Fields at
        cdef Piece queue, req
        cdef Py_ssize_t start, count = -1, i
        cdef bint durable = False
        cdef uint32_t name
        cdef Queue q
        cdef Writer w, target
        queue = req = c_no_piece()
        c_open_fields(&at, p, 0, n)
        c_next_field(&at)                   # the command
        while c_next_key(&at):
            if c_called(&at, b"jobs", 4) and count < 0:
                at.pos = self.c_read_jobs(p, at.pos, n, &count)
                if at.pos < 0:
                    return DECLINED
            elif not c_read_value(&at):
                return DECLINED
            elif c_called(&at, b"queue", 5):
                queue = at.value
            elif not c_called(&at, b"reqId", 5) or not c_request_id(&at, &req):
                return DECLINED
        if at.pos != n or count < 0:
            return DECLINED
        if self.broker.degraded is not None:
            return DECLINED
        q = self.c_queue_at(p, &queue, False)
        if q is None:
            return DECLINED                 # it is made with its first job
        q.used = q.used or count > 0
        for i in range(count):
            durable = durable or (self.specs[i].flags & F_DURABLE) != 0
            if self.specs[i].id_text != NULL and (
                    self.broker.engine.needed
                    or self.broker.engine.c_may_be_far(self.specs[i].id_text, self.specs[i].id_n)):
                return DECLINED             # its ties are to be judged, or an earlier job with its id
        if self.new_name is not None:
            name = 0
            for i in range(count):
                if self.specs[i].name == NEW_NAME:
                    if not name:
                        name = self.broker.engine.c_name(self.new_name)
                        if not name:
                            return DECLINED     # no more are interned
                    self.specs[i].name = name
        w = self.out
        slots = self.slots
        for i in range(count):
            target = self.c_admit(q, p, &self.specs[i], &self.pieces[i], self.delays[i], None, durable)
            slots[i] = self.last_slot
            # One member that must wait for its commit lets the whole reply wait.
            if w is self.out or target is self.held_adds:
                w = target
        start = w.c_open()
        w.c_map(2 + (req.start != 0))
        _raw(w, K_OK)
        _raw(w, K_IDS)
        w.c_array(count)
        for i in range(count):
            self.c_write_id(w, slots[i])
        self.c_write_req_id(w, p, &req)
        w.c_close(start)
        return SERVED

    cdef int c_room(self, Py_ssize_t count) except -2:
        """Scratch space for a batch; -1 when the batch is not for the hot path."""
        cdef void *got
        if count > 100000:
            return -1
        if count <= self.cap_specs:
            return 0
        got = PyMem_Realloc(self.specs, count * (sizeof(Spec) + sizeof(Piece) + sizeof(double) + sizeof(uint32_t)))
        if got == NULL:
            raise MemoryError
        self.specs = <Spec *>got
        self.pieces = <Piece *>(self.specs + count)
        self.delays = <double *>(self.pieces + count)
        self.slots = <uint32_t *>(self.delays + count)
        self.cap_specs = count
        return 0

    cdef int c_pull(self, const unsigned char *p, Py_ssize_t n, bint batch) except -1:
        cdef Fields at
        cdef Piece queue, req
        cdef const unsigned char *s
        cdef Py_ssize_t size
        cdef double count = 0, timeout = 0, ttl = LEASE_MS
        cdef bint plain = True, owner = False, detach = False
        cdef Queue q
        queue = req = c_no_piece()
        c_open_fields(&at, p, 0, n)
        c_next_field(&at)                   # the command
        while plain and c_next_field(&at):
            if c_called(&at, b"queue", 5):
                queue = at.value
            elif c_called(&at, b"reqId", 5):
                plain = c_request_id(&at, &req)
            elif c_called(&at, b"owner", 5):
                plain = c_str(p, at.value.start, at.value.end, &s, &size) >= 0
                owner = plain and size > 0
            elif c_called(&at, b"count", 5):
                plain = batch and c_whole(p, &at.value, 1, MAX_PULLED, &count)
            elif c_called(&at, b"timeout", 7):
                plain = c_whole(p, &at.value, 0, MAX_WAIT_MS, &timeout)
            elif c_called(&at, b"lockTtl", 7):
                plain = c_whole(p, &at.value, 1, MAX_LEASE_MS, &ttl)
            elif c_called(&at, b"detach", 6):
                plain = c_flag(p, &at.value, &detach)
            else:
                return DECLINED
        if not plain or at.pos != n or (batch and count == 0):
            return DECLINED
        # Who asks for a job of a queue that is not there, and does not wait for it, makes none.
        q = self.c_queue_at(p, &queue, timeout > 0)
        if not self.named:
            return DECLINED
        self.c_pull_from(q, <Py_ssize_t>count, <int64_t>ttl if owner else 0,
                         0 if detach and not owner else self.number,
                         p + req.start if req.start else NULL, req.end - req.start,
                         <int64_t>timeout, None)
        return SERVED

    cdef int c_pull_from(self, Queue q, Py_ssize_t count, int64_t lease_ms, uint32_t owner,
                         const unsigned char *req_id, Py_ssize_t req_id_n, int64_t timeout_ms,
                         Wanted wanted) except -1:
        cdef Py_ssize_t at
        cdef bint at_once = timeout_ms == 0 or self.broker.parting
        if self.broker.c_deliver(self, q, count, lease_ms, owner, req_id, req_id_n, at_once, wanted) or at_once:
            return 0
        if self.c_may_wait():
            return self.broker.c_wait(self, q, count, lease_ms, owner, req_id, req_id_n, timeout_ms, wanted)
        at = self.out.c_open()
        self.out.c_map(2 + (req_id != NULL) + (self.caps & CAP_CODES != 0))
        _raw(self.out, K_REFUSED)
        self.out.c_text(too_many_waits(self.max_waits))
        if self.caps & CAP_CODES:
            _raw(self.out, K_LIMIT)
        if req_id != NULL:
            _raw(self.out, K_REQ_ID)
            self.out.c_raw(req_id, req_id_n)
        return self.out.c_close(at)

    def pull(self, str queue not None, Py_ssize_t count, int64_t lease_ms, bint owned, object req_id,
             int64_t timeout_ms, Wanted wanted=None):
        """A checked pull of the generic path. ``req_id`` is packed or None; ``count`` 0 = a single job."""
        cdef const unsigned char *p = NULL
        cdef Py_ssize_t n = 0
        if req_id is not None:
            p = <const unsigned char *>PyBytes_AS_STRING(<bytes>req_id)
            n = PyBytes_GET_SIZE(<bytes>req_id)
        cdef Queue q = self.broker.engine.c_queue(queue) if timeout_ms else self.broker.engine.queues.get(queue)
        self.c_pull_from(q, count, lease_ms, self.number if owned else 0, p, n, timeout_ms, wanted)

    cdef int c_token_at(self, const unsigned char *p, const Piece *piece, uint64_t *hi, uint64_t *lo) noexcept:
        """Classify a presented token; -1 when it is no text."""
        cdef const unsigned char *s
        cdef Py_ssize_t n
        hi[0] = lo[0] = 0
        if piece.start == 0 or c_nil(p, piece):
            return NO_TOKEN
        if c_str(p, piece.start, piece.end, &s, &n) < 0:
            return -1
        if n == 0:
            return NO_TOKEN
        return TOKEN if uuid_parse(<const char *>s, n, hi, lo) else BAD_TOKEN

    cdef int c_ack(self, const unsigned char *p, Py_ssize_t n) except -1:
        cdef Fields at
        cdef Piece job_id, token, result, req
        cdef const unsigned char *s
        cdef Py_ssize_t size, start
        cdef uint32_t slot
        cdef uint64_t hi, lo
        cdef int kind
        cdef bint held
        cdef Blob *packed = NULL
        cdef Engine engine = self.broker.engine
        cdef Writer w
        job_id = token = result = req = c_no_piece()
        c_open_fields(&at, p, 0, n)
        c_next_field(&at)                   # the command
        while c_next_field(&at):
            if c_called(&at, b"id", 2):
                job_id = at.value
            elif c_called(&at, b"token", 5):
                token = at.value
            elif c_called(&at, b"result", 6):
                result = at.value
                if c_undefined(p, &result):
                    result.start = 0
            elif not c_called(&at, b"reqId", 5) or not c_request_id(&at, &req):
                return DECLINED
        if at.pos != n or job_id.start == 0:
            return DECLINED
        if result.start and not c_fits(p, result.start, result.end):
            return DECLINED
        if c_str(p, job_id.start, job_id.end, &s, &size) < 0:
            return DECLINED
        kind = self.c_token_at(p, &token, &hi, &lo)
        if kind < 0:
            return DECLINED
        slot = engine.c_find(<const char *>s, size)
        if engine.c_judge(slot, kind, hi, lo) != MAY:
            return DECLINED                 # refusals and late answers have their words in the generic path
        if result.start:
            packed = blob_new(p + result.start, result.end - result.start, result.notes)
        held = self.broker.c_holds(slot)
        self.c_complete(slot, packed)
        w = self.broker.c_reply(self, held, False, self.broker.sync_changes)
        start = w.c_open()
        w.c_map(1 + (req.start != 0))
        _raw(w, K_OK)
        self.c_write_req_id(w, p, &req)
        w.c_close(start)
        return SERVED

    cdef int c_complete(self, uint32_t slot, Blob *result) except -1:
        """Complete a judged delivery; clients that understand outcomes may ask again after a lost reply."""
        cdef Engine engine = self.broker.engine
        cdef Run *run = engine.run_at(engine.job_at(slot).run)
        cdef uint64_t hi = run.token_hi, lo = run.token_lo
        engine.c_complete(slot, result, False, self.broker.now_ms)
        if hi and self.caps & CAP_OUTCOMES:
            engine.c_finalise(hi, lo, "completed")
        return 0

    cdef int c_ackb(self, const unsigned char *p, Py_ssize_t n) except -1:
        """All members plain and acceptable: one walk to judge them, one to apply them."""
        cdef Fields at
        cdef Piece ids, tokens, results, req, token
        cdef Py_ssize_t start, size, n_ids = 0, n_tokens = -1, n_results = -1, i
        cdef const unsigned char *s
        cdef uint32_t slot, mark
        cdef uint64_t hi, lo
        cdef int kind
        cdef bint held = False
        cdef Piece *result
        cdef Blob *packed
        cdef Engine engine = self.broker.engine
        cdef Writer w
        ids = tokens = results = token = req = c_no_piece()
        c_open_fields(&at, p, 0, n)
        c_next_field(&at)                   # the command
        while c_next_field(&at):
            if c_called(&at, b"ids", 3):
                if not c_list(p, &at.value, &ids, &n_ids):
                    return DECLINED
            elif c_called(&at, b"tokens", 6):
                if not c_list(p, &at.value, &tokens, &n_tokens):
                    return DECLINED
            elif c_called(&at, b"results", 7):
                if not c_list(p, &at.value, &results, &n_results):
                    return DECLINED
            elif not c_called(&at, b"reqId", 5) or not c_request_id(&at, &req):
                return DECLINED
        if at.pos != n or n_ids == 0 or self.c_room(n_ids) < 0:
            return DECLINED
        if (n_tokens >= 0 and n_tokens != n_ids) or (n_results >= 0 and n_results != n_ids):
            return DECLINED
        self.broker.batch += 1
        mark = self.broker.batch
        for i in range(n_ids):
            ids.start = c_str(p, ids.start, n, &s, &size)
            if ids.start < 0:
                return DECLINED
            if n_tokens >= 0:
                c_next_item(p, &tokens, &token)
            kind = self.c_token_at(p, &token, &hi, &lo)
            if kind < 0:
                return DECLINED
            slot = engine.c_find(<const char *>s, size)
            if engine.c_judge(slot, kind, hi, lo) != MAY:
                return DECLINED
            if engine.run_at(engine.job_at(slot).run).mark == mark:
                return DECLINED             # an id twice
            engine.run_at(engine.job_at(slot).run).mark = mark
            held = held or self.broker.c_holds(slot)
            self.slots[i] = slot
            result = &self.pieces[i]
            if n_results >= 0:
                c_next_item(p, &results, result)
                if c_undefined(p, result):
                    result.start = 0
                elif not c_fits(p, result.start, result.end):
                    return DECLINED
        for i in range(n_ids):
            packed = NULL
            result = &self.pieces[i]
            if n_results >= 0 and result.start:
                packed = blob_new(p + result.start, result.end - result.start, result.notes)
            self.c_complete(self.slots[i], packed)
        w = self.broker.c_reply(self, held, False, self.broker.sync_changes)
        start = w.c_open()
        w.c_map(1 + (req.start != 0))
        _raw(w, K_OK)
        self.c_write_req_id(w, p, &req)
        w.c_close(start)
        return SERVED
