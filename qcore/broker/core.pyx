"""The broker: one engine, its store, its clock, its waiting pulls and its commits.

Everything that has to happen around a pure engine: reading the clocks, one lock,
taking consistent cuts and holding the replies that promise their commit, ending
long polls. It knows bytes and sessions, but no sockets and no threads: its host
calls :meth:`Broker.pump` (a server, from its loop) or :meth:`Broker.settle` (an
embedded caller, from its own thread).
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.pythread cimport (
    NOWAIT_LOCK, WAIT_LOCK, PyThread_acquire_lock, PyThread_allocate_lock, PyThread_free_lock,
    PyThread_release_lock,
)
from libc.stdint cimport INT64_MAX, int64_t, uint32_t
from libc.time cimport time_t

from qcore.broker.jobview cimport (
    CAP_CODES, CAP_INT64, CAP_TYPED, VIEW_DELIVERY, VIEW_OUTCOME, VIEW_PAUSED, VIEW_STATE, c_write_job, c_write_payload,
)
from qcore.broker.events cimport c_notes, c_write_event, c_write_event_map
from qcore.broker.rows cimport Encoder, c_take_rows
from qcore.engine.engine cimport Engine
from qcore.engine.ids cimport uuid_text
from qcore.engine.job cimport ACTIVE, COMPLETED, DELAYED, F_CUSTOM_ID, F_DURABLE, KEPT, PARKED, READY, STAGED, Job, Run
from qcore.engine.lanes cimport Wanted
from qcore.engine.queue cimport Queue
from qcore.structs.delayheap cimport DelayHeap
from qcore.wire.writer cimport Writer, c_packed

import logging
import os
from collections import deque

import msgpack

from qcore import limits
from qcore.broker.archive import Archive
from qcore.broker.webhooks import Hooks
from qcore.engine.table import EVENT_BITS, EVENT_NAMES
from qcore.errors import ClosedError, LimitError, described
from qcore.wire.plain import plain

cdef extern from "time.h" nogil:
    cdef struct timespec:
        time_t tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec *t)
    int CLOCK_REALTIME
    int CLOCK_MONOTONIC

logger = logging.getLogger("qcore.broker")

cdef int64_t RETRY_MOST_NS = limits.MAX_RETRY_MS * 1000000
cdef int64_t ARCHIVE_ASK_MS = 60_000
cdef int64_t LOOK_NS = limits.QUEUE_LOOK_MS * 1_000_000

cdef int64_t[N_BUCKETS - 1] BOUNDS_NS = [int(bound * 1e6) for bound in limits.LATENCY_BOUNDS_MS]

cdef dict _TROUBLES = {"full": "disk full", "locked": "the data file is locked by another program"}

cdef bytes K_OK = b"\xa2ok\xc3"
cdef bytes K_JOB = b"\xa3job", K_JOBS = b"\xa4jobs", K_TOKEN = b"\xa5token", K_TOKENS = b"\xa6tokens"
cdef bytes K_REQ_ID = b"\xa5reqId"


cdef inline int _raw(Writer w, bytes piece) except -1:
    return w.c_raw(PyBytes_AS_STRING(piece), PyBytes_GET_SIZE(piece))


cdef class Outlet:

    cdef bint c_may_wait(self) noexcept:
        return self.waits is None or len(self.waits) < self.max_waits


@cython.final
cdef class Wait:
    pass


@cython.final
cdef class Line:

    def __cinit__(self):
        self.waits = deque()

    cdef int c_tidy(self) except -1:
        """One of them is over."""
        self.n -= 1
        while self.waits and not (<Wait>self.waits[0]).handle:
            self.waits.popleft()
        if len(self.waits) > 2 * self.n + 64:
            # Short waits behind a long one: they would be kept until it is over.
            self.waits = deque([wait for wait in self.waits if (<Wait>wait).handle])
        return 0


@cython.final
cdef class Watch:
    pass


@cython.final
cdef class Broker:
    """One engine with its store, for one process.

    ``store`` None keeps everything in memory. ``clock`` None reads the machine's
    clocks. ``hold_changes`` lets replies to acknowledgements, failures and control
    wait for their commit, ``hold_adds`` those to adds, ``hold_pulls`` those to pulls.
    ``sync_adds`` and ``sync_changes`` let those commits be fsynced as well.
    Thread-safe: one lock per call, about 20 ns when nobody else wants it.
    """

    def __cinit__(self, object store=None, *, object clock=None, bytes seed=None, bint hold_changes=True,
                  bint hold_adds=False, bint hold_pulls=False, bint sync_adds=False, bint sync_changes=False,
                  int flush_ms=10, int retry_ms=limits.DEFAULT_RETRY_MS, Py_ssize_t unflushed_limit=100_000,
                  uint32_t ahead_rows=limits.AHEAD_ROWS,
                  uint32_t max_completed=limits.DEFAULT_MAX_COMPLETED_JOBS,
                  Py_ssize_t max_waiting_deps=limits.DEFAULT_MAX_WAITING_DEPS,
                  Py_ssize_t max_events=limits.DEFAULT_MAX_QUEUE_EVENTS,
                  int64_t max_minutes=limits.DEFAULT_MAX_METRIC_MINUTES, bint keep_events=False,
                  object hooks=None, object retention_ms=limits.DEFAULT_COMPLETED_RETENTION_MS):
        self.lock = PyThread_allocate_lock()
        if self.lock == NULL:
            raise MemoryError
        self.store = store
        self.durable = store is not None
        if self.durable and store.takes_packed:
            self.encoder = Encoder()
        self.ahead_rows = ahead_rows
        self.clock = clock
        self.engine = Engine(seed or os.urandom(16), tracking=self.durable, archive=self.durable,
                             max_completed=max_completed, max_waiting_deps=max_waiting_deps,
                             max_events=max_events, max_minutes=max_minutes, keep_events=keep_events)
        self.hold_changes = hold_changes and self.durable
        self.hold_adds = hold_adds and self.durable
        self.hold_pulls = hold_pulls and self.durable
        self.sync_adds = sync_adds
        self.sync_changes = sync_changes
        self.flush_ns = <int64_t>flush_ms * 1000000
        self.retry_first_ns = <int64_t>retry_ms * 1000000
        self.unflushed_limit = unflushed_limit
        self.holding = []
        self.taken = []
        self.staged = {}
        self.ends = DelayHeap()
        self.waits = {}
        self.watches = {}
        self.queue_waits = {}
        self.free_numbers = []
        self.to_notify = []
        self.listeners = {}
        self.hooks = Hooks() if hooks is None else Hooks(hooks)
        self.noticed = []
        self.flight_noticed = []
        self.telling = []
        self.scratch = Writer()
        self.intake = True
        self.archive_asked_ms = INT64_MAX
        self.archive = Archive(self, store, retention_ms)
        self.c_tick()
        self.started_ms = self.now_ms
        self.started_ns = self.now_ns
        self.look_ns = self.now_ns + LOOK_NS

    def __dealloc__(self):
        if self.lock != NULL:
            PyThread_free_lock(self.lock)

    # --- the lock and the clocks --------------------------------------------------------

    cdef int c_enter(self) except -1:
        """Take the lock and read the clocks; pairs with :meth:`c_leave`."""
        self.c_lock()
        self.c_tick()
        return 0

    cdef int c_lock(self) except -1:
        """The same for what needs no time."""
        if not PyThread_acquire_lock(self.lock, NOWAIT_LOCK):
            with nogil:
                PyThread_acquire_lock(self.lock, WAIT_LOCK)
        return 0

    cdef c_leave(self):
        """Release the lock, then tell the outlets that got output from somebody else's call."""
        cdef list tell = None
        cdef Outlet outlet
        if self.to_notify:
            tell = self.to_notify
            self.to_notify = []
        PyThread_release_lock(self.lock)
        if tell is not None:
            for outlet in tell:
                if outlet.on_output is not None:
                    outlet.on_output()

    cdef int c_tick(self) except -1:
        cdef timespec t
        if self.clock is None:
            clock_gettime(CLOCK_REALTIME, &t)
            self.now_ms = <int64_t>t.tv_sec * 1000 + t.tv_nsec // 1000000
            self.past_ns = t.tv_nsec % 1000000
            clock_gettime(CLOCK_MONOTONIC, &t)
            self.now_ns = <int64_t>t.tv_sec * 1000000000 + t.tv_nsec
        else:
            self.now_ms = self.clock.now_ms()
            self.now_ns = self.clock.now_ns()
        return 0

    cdef int c_took(self, int64_t n_frames) except -1:
        """A feed of so many frames was run: share its time among the counted commands. One clock reading."""
        cdef timespec t
        cdef int64_t each
        cdef int kind, bucket = 0
        if self.clock is None:
            clock_gettime(CLOCK_MONOTONIC, &t)
            each = <int64_t>t.tv_sec * 1000000000 + t.tv_nsec - self.now_ns
        else:
            each = self.clock.now_ns() - self.now_ns
        each = max(0, each) // max(1, n_frames)
        while bucket < N_BUCKETS - 1 and each > BOUNDS_NS[bucket]:
            bucket += 1
        for kind in range(N_TIMED):
            self.n_took[kind][bucket] += self.timed[kind]
            self.took_ns[kind] += each * self.timed[kind]
            self.timed[kind] = 0
        return 0

    def latencies(self):
        """What the engine took for each push, pull and ack: (numbers by bucket, seconds in all)."""
        cdef dict out = {}
        cdef list counts
        cdef int kind = 0, i
        for name in ("push", "pull", "ack"):
            counts = []
            for i in range(N_BUCKETS):
                counts.append(self.n_took[kind][i])
            out[name] = (counts, self.took_ns[kind] * 1e-9)
            kind += 1
        return out

    def sizes(self):
        """Entries of what grows and shrinks in here."""
        return {
            "jobs": len(self.engine),
            "queues": len(self.engine.queues),
            "waits": len(self.waits),
            "subscriptions": sum([len(outlets) for outlets in self.listeners.values()]),
            "sessions": self.last_number - len(self.free_numbers),
            "workers": len(self.engine.workers),
            "webhooks": len(self.hooks.by_id),
            "unflushed": self.unflushed,
        }

    def __enter__(self):
        """Hold the lock for several engine calls (for generic handlers)."""
        self.c_enter()
        return self

    def __exit__(self, *exc):
        self.c_leave()

    @property
    def wall_ms(self):
        """The wall clock as of the present call."""
        return self.now_ms

    @property
    def monotonic_ns(self):
        """The monotonic clock as of the present call."""
        return self.now_ns

    # --- replies --------------------------------------------------------------------------

    cdef int c_notify(self, Outlet outlet) except -1:
        if outlet.on_output is not None:
            self.to_notify.append(outlet)
        return 0

    cdef bint c_holds(self, uint32_t slot) noexcept:
        """Whether the reply to a change of this job waits: by the level, or because the job was added as durable."""
        return self.hold_changes or (self.durable and slot != 0 and self.engine.job_at(slot).state != KEPT
                                     and (self.engine.job_at(slot).flags & F_DURABLE) != 0)

    def holds(self, object ids):
        """The same, for a command that names these jobs; to be asked before it runs."""
        if self.hold_changes or not self.durable:
            return self.hold_changes
        return any([self.c_holds(self.engine.c_slot(job_id)) for job_id in ids])

    cdef Writer c_reply(self, Outlet outlet, bint held, bint add, bint sync):
        """Where a reply is written: out at once, or held until the commit of the gathering cut.

        With ``sync`` that commit is fsynced.
        """
        if not held:
            return outlet.out
        if sync:
            self.owes_sync = True
        if not outlet.holding:
            outlet.holding = True
            self.holding.append(outlet)
        return outlet.held_adds if add else outlet.held

    cdef int c_bring_needed(self) except -1:
        """Read back the archived jobs that live ones are tied to since the last command: a job may start over."""
        cdef list ids = self.engine.take_far_needed()
        cdef bint alone = not self.engine.guests
        self.archive.bring(ids)
        self.engine.keep_needed(ids)
        if alone:
            self.engine.release_guests()
        return 0

    cdef int c_note(self) except -1:
        """After a change: start the clock of the flush window."""
        if self.engine.far_needed:
            self.c_bring_needed()
        if self.durable and not self.dirty_since_ns and (self.engine.n_changes or self.telling or self.noticed):
            self.dirty_since_ns = self.now_ns
        return 0

    cdef int c_encode_ahead(self) except -1:
        """After commands: with a commit on its way changes pile up, and their cut is not to stop everybody."""
        if self.encoder is not None and self.engine.n_dirty - self.engine.ahead_at > self.ahead_rows:
            self.encoder.c_ahead(self.engine, self.ahead_rows, self.now_ms, self.now_ns)
        return 0

    # --- delivery ---------------------------------------------------------------------------

    cdef Py_ssize_t c_deliver(self, Outlet outlet, Queue q, Py_ssize_t count, int64_t lease_ms, uint32_t session,
                              const unsigned char *req_id, Py_ssize_t req_id_n, bint empty_too,
                              Wanted wanted) except -1:
        """Claim up to ``count`` jobs (0: one, in the form of a single pull) and write the reply.

        How many; none of a queue that is None. Without a job nothing is written unless ``empty_too``. Stops before the
        reply passes its bound, so a large backlog of large payloads comes in several replies.
        """
        cdef Engine engine = self.engine
        cdef Writer w
        cdef Py_ssize_t n = 0, at, most = count if count else 1
        cdef uint32_t slot, following
        cdef Job *job
        cdef Run *run
        cdef char text[36]
        cdef uint32_t slots[1000]
        cdef Py_ssize_t size = 0, i
        if self.intake and q is not None:
            while n < most:
                slot = engine.c_claim(q, self.now_ms, self.now_ns, lease_ms, session, wanted)
                if not slot:
                    break
                slots[n] = slot
                n += 1
                job = engine.job_at(slot)
                size += 900 + (job.data.size if job.data != NULL else 0)
                following = engine.c_candidate(q, wanted, self.now_ns)
                if following:
                    job = engine.job_at(following)
                    if size + 900 + (job.data.size if job.data != NULL else 0) > limits.MAX_PULL_REPLY_BYTES:
                        break
        if n == 0 and not empty_too:
            return 0
        w = self.c_reply(outlet, self.hold_pulls and n > 0, False, self.sync_changes)
        at = w.c_open()
        w.c_map(2 + (1 if lease_ms else 0) + (1 if req_id != NULL else 0))
        _raw(w, K_OK)
        if count == 0:
            _raw(w, K_JOB)
            if n:
                c_write_job(w, engine, slots[0], VIEW_DELIVERY, outlet.caps)
            else:
                w.c_nil()
        else:
            _raw(w, K_JOBS)
            w.c_array(n)
            for i in range(n):
                c_write_job(w, engine, slots[i], VIEW_DELIVERY, outlet.caps)
        if lease_ms:
            if count == 0:
                _raw(w, K_TOKEN)
            else:
                _raw(w, K_TOKENS)
                w.c_array(n)
            for i in range(n):
                run = engine.run_at(engine.job_at(slots[i]).run)
                uuid_text(run.token_hi, run.token_lo, text)
                w.c_str(text, 36)
            if count == 0 and n == 0:
                w.c_nil()
        if req_id != NULL:
            _raw(w, K_REQ_ID)
            w.c_raw(req_id, req_id_n)
        w.c_close(at)
        if n:
            self.c_note()
        return n

    cdef int c_wait(self, Outlet outlet, Queue q, Py_ssize_t count, int64_t lease_ms, uint32_t session,
                    const unsigned char *req_id, Py_ssize_t req_id_n, int64_t timeout_ms, Wanted wanted) except -1:
        """Let a pull wait. Waits of one queue are served in the order in which they came.

        Those that want the same of groups stand in one line, so that only the heads of lines are asked.
        """
        cdef Wait wait = Wait()
        cdef Line line
        self.wait_number += 1
        wait.number = self.wait_number
        wait.outlet = outlet
        wait.queue = q
        wait.count = count
        wait.lease_ms = lease_ms
        wait.session = session
        wait.wanted = wanted
        wait.req_id = None if req_id == NULL else PyBytes_FromStringAndSize(<char *>req_id, req_id_n)
        wait.handle = self.ends.c_push(self.now_ns + timeout_ms * 1000000, wait.number, wait.number)
        self.c_keep_wait(outlet, wait.number, wait)
        lines = self.queue_waits.get(q.index)
        if lines is None:
            lines = self.queue_waits[q.index] = {}
        key = None if wanted is None else wanted.key
        line = lines.get(key)
        if line is None:
            line = lines[key] = Line()
        line.waits.append(wait)
        line.n += 1
        q.n_waits += 1
        return self.engine.c_expect(q, self.now_ns)

    cdef int c_keep_wait(self, Outlet outlet, uint32_t number, object wait) except -1:
        self.waits[number] = wait
        if outlet.waits is None:
            outlet.waits = {}
        outlet.waits[number] = wait
        return 0

    cdef int c_end_wait(self, Wait wait) except -1:
        """The wait is over, one way or another."""
        cdef dict lines = self.queue_waits[wait.queue.index]
        cdef object key = None if wait.wanted is None else wait.wanted.key
        cdef Line line = lines[key]
        self.ends.c_remove(wait.handle)
        wait.handle = 0
        del self.waits[wait.number]
        del wait.outlet.waits[wait.number]
        wait.queue.n_waits -= 1
        line.c_tidy()
        if not line.n:
            del lines[key]
            if not lines:
                del self.queue_waits[wait.queue.index]
        return 0

    cdef int c_serve(self) except -1:
        """Give jobs to the waits of the queues that were woken."""
        cdef Engine engine = self.engine
        cdef Queue q
        cdef list woken
        while engine.woken:
            woken = engine.woken
            engine.woken = []
            for q in woken:
                q.woken = False
                if q.n_waits:
                    self.c_serve_queue(q)
                if q.n_waits:
                    engine.c_expect(q, self.now_ns)
        return 0

    cdef int c_serve_queue(self, Queue q) except -1:
        """Serve the waits of one queue, first come first served, until no line can get anything.

        A wait that wants what is not there does not stop those behind it that want something else.
        """
        cdef dict lines = self.queue_waits[q.index]
        cdef list open_lines = list(lines.values())
        cdef Line line, first
        cdef Wait wait
        cdef const unsigned char *req_id
        while open_lines:
            first = open_lines[0]
            for line in open_lines:
                if (<Wait>line.waits[0]).number < (<Wait>first.waits[0]).number:
                    first = line
            wait = <Wait>first.waits[0]
            req_id = NULL
            if wait.req_id is not None:
                req_id = <const unsigned char *>PyBytes_AS_STRING(wait.req_id)
            if self.c_deliver(wait.outlet, q, wait.count, wait.lease_ms, wait.session, req_id,
                              0 if req_id == NULL else PyBytes_GET_SIZE(wait.req_id), False, wait.wanted):
                self.c_end_wait(wait)
                self.c_notify(wait.outlet)
                if first.n:
                    continue
            # Empty, or nothing for this line.
            open_lines.remove(first)
        return 0

    def end_waits(self, Outlet outlet not None):
        """End the waits of an outlet without an answer; its connection is gone."""
        if outlet.waits is None:
            return
        for wait in list(outlet.waits.values()):
            if isinstance(wait, Watch):
                self.c_end_watch(<Watch>wait)
            else:
                self.c_end_wait(<Wait>wait)

    # --- waiting for outcomes -----------------------------------------------------------------

    def watch(self, Outlet outlet not None, str job_id not None, object request, int64_t timeout_ms):
        """Answer a request when the outcome of a job is known, or with ``completed: false`` in the end.

        :raises LimitError: too many requests of this session wait already
        """
        cdef Watch watch
        if not outlet.c_may_wait():
            raise LimitError(too_many_waits(outlet.max_waits))
        watch = Watch()
        self.wait_number += 1
        watch.number = self.wait_number
        watch.outlet = outlet
        watch.job_id = job_id
        watch.request = request
        watch.handle = self.ends.c_push(self.now_ns + timeout_ms * 1000000, watch.number, watch.number)
        self.c_keep_wait(outlet, watch.number, watch)
        self.watches.setdefault(job_id, {})[watch.number] = watch

    cdef int c_end_watch(self, Watch watch) except -1:
        if watch.handle:
            self.ends.c_remove(watch.handle)
            watch.handle = 0
        del self.waits[watch.number]
        del watch.outlet.waits[watch.number]
        waiting = self.watches.get(watch.job_id)
        if waiting is not None:
            del waiting[watch.number]
            if not waiting:
                del self.watches[watch.job_id]
        return 0

    cdef int c_tell(self) except -1:
        """Answer those who wait for outcomes that have come."""
        cdef Watch watch
        cdef list settled = self.engine.settled
        self.engine.settled = []
        for job_id, kind, result in settled:
            for watch in list(self.watches.get(job_id, {}).values()):
                self.c_end_watch(watch)
                self.c_answer_watch(watch, kind == "completed", result)
        return 0

    cdef int c_answer_watch(self, Watch watch, bint completed, object result) except -1:
        cdef Outlet outlet = watch.outlet
        cdef Writer w = self.c_reply(outlet, self.hold_changes and completed, False, self.sync_changes)
        cdef Py_ssize_t at = w.c_open()
        cdef dict reply = {"ok": True, "completed": completed}
        if result is not None:
            if not outlet.caps & CAP_INT64 or not outlet.caps & CAP_TYPED:
                result = plain(result)
            reply["result"] = c_packed(result)
        if "reqId" in watch.request:
            reply["reqId"] = watch.request["reqId"]
        w.c_value(reply)
        w.c_close(at)
        self.c_notify(outlet)
        return 0

    # --- events ---------------------------------------------------------------------------------

    def subscribe(self, Outlet outlet not None, str queue not None, int mask):
        """Let an outlet get the events of a queue of these types (bits of ``EVENT_BITS``), from now on.

        It has one subscription; another one takes its place.
        """
        self.c_spread(self.c_holds_events())    # what was before is for those who listened then
        self.c_unlisten(outlet)
        if outlet.told is None:
            outlet.told = Writer()
        outlet.listens_to = queue
        outlet.listens_for = mask
        self.listeners.setdefault(queue, []).append(outlet)
        self.c_listen(queue)

    def unsubscribe(self, Outlet outlet not None):
        """End the subscription of an outlet, if it has one. Events before this may still follow."""
        self.c_spread(self.c_holds_events())
        self.c_unlisten(outlet)

    cdef int c_unlisten(self, Outlet outlet) except -1:
        cdef str queue = outlet.listens_to
        if queue is None:
            return 0
        outlet.listens_to = None
        outlet.listens_for = 0
        self.listeners[queue].remove(outlet)
        if not self.listeners[queue]:
            del self.listeners[queue]
        return self.c_listen(queue)

    cdef int c_listen(self, str queue) except -1:
        """Let the engine build what somebody wants of a queue, and nothing else."""
        cdef Outlet outlet
        cdef uint32_t mask = self.hooks.mask(queue) if self.hook_mask else 0
        for outlet in self.listeners.get(queue, ()):
            mask |= outlet.listens_for
        self.engine.listen(queue, mask)
        return 0

    # --- hooks ----------------------------------------------------------------------------------

    def keep_hook(self, object hook not None):
        """Add a hook, or store what changed of it."""
        self.c_spread(self.c_holds_events())
        self.c_store_hook(hook.id, hook.packed)
        if self.hooks.keep(hook):
            self.heed_hooks((hook.queue,))

    def drop_hook(self, str hook_id not None):
        """Remove a hook; False when it is not there."""
        hook = self.hooks.drop(hook_id)
        if hook is None:
            return False
        self.c_store_hook(hook_id, None)
        self.heed_hooks((hook.queue,))
        return True

    def heed_hooks(self, object queues):
        """Let the engine build what hooks of these queues (None: of every queue) want."""
        self.hook_mask = self.hooks.whole_mask
        for queue in queues:
            if queue is None:
                self.engine.listen_everywhere(self.hooks.mask(None))
            else:
                self.c_listen(queue)

    cdef int c_store_hook(self, str hook_id, object value) except -1:
        return self.engine.c_side("webhooks", hook_id, value)

    def hook_told(self, str hook_id not None, bint delivered, str status not None, Py_ssize_t times=1):
        """A hook was told, or could not be, so many times. Called by the host's threads."""
        self.c_enter()
        try:
            hook = self.hooks.by_id.get(hook_id)
            if hook is None:
                return
            hook.last_ms = self.now_ms
            hook.last_status = status
            if delivered:
                hook.n_delivered += times
            else:
                hook.n_failed += times
            self.c_store_hook(hook_id, hook.packed)
            self.c_note()
        finally:
            self.c_leave()

    cdef int c_notice(self, list notices) except -1:
        if notices and self.deliver is not None:
            self.deliver(notices)
        return 0

    cdef bint c_holds_events(self) noexcept:
        """Whether events wait for the commit of their changes.

        A store that fails tells them at once: their changes are kept in memory, as callers are told as well.
        """
        return self.hold_changes and (self.degraded is None or self.committing or len(self.telling) > 0
                                      or len(self.noticed) > 0)

    cdef int c_spread(self, bint held) except -1:
        """Write the events so far to those who listen. Each is encoded once for all who read alike."""
        cdef list events = self.engine.events
        cdef Outlet outlet
        cdef Queue q
        cdef uint32_t notes, reader
        cdef int bit
        cdef list notices = []
        cdef object job_id, data
        cdef list frames = [None, None, None, None]
        cdef int64_t now_ms
        if not events:
            return 0
        self.engine.events = []
        self.round += 1
        for name, queue, job_id, now_ms, data in events:
            bit = EVENT_BITS[name]
            q = self.engine.queues[queue]
            notes = c_notes(bit, data)
            frames[0] = frames[1] = frames[2] = frames[3] = None
            if self.hook_mask & bit:
                for hook_id in self.hooks.wanting(bit, queue):
                    notices.append((hook_id, name, queue, job_id, now_ms, data))
            for outlet in list(self.listeners.get(queue, ())):
                if not outlet.listens_for & bit:
                    continue
                reader = outlet.caps & (CAP_INT64 | CAP_TYPED) if notes else 0
                if frames[reader] is None:
                    c_write_event(self.scratch, bit, name, q.name_packed, job_id, now_ms, data, reader)
                    frames[reader] = self.scratch.take()
                self.c_tell_event(outlet, frames[reader], held)
        if held:
            self.noticed += notices
        else:
            self.c_notice(notices)
        return 0

    cdef int c_tell_event(self, Outlet outlet, bytes frame, bint held) except -1:
        cdef Writer w = outlet.told if held else outlet.out
        if w.n + PyBytes_GET_SIZE(frame) > limits.MAX_UNREAD_EVENT_BYTES:
            # It does not read. Nobody gets a stream with a hole: the conversation ends.
            self.c_unlisten(outlet)
            outlet.told.clear()
            outlet.closing = True
            self.c_notify(outlet)
            return 0
        _raw(w, frame)
        if outlet.round == self.round:
            return 0
        outlet.round = self.round
        if not held:
            self.c_notify(outlet)
        elif not outlet.telling:
            outlet.telling = True
            self.telling.append(outlet)
        return 0

    cdef int c_release_told(self) except -1:
        """Give out the events that waited for the gathering cut."""
        cdef Outlet outlet
        for outlet in self.telling:
            outlet.telling = False
            if not outlet.closed:
                _raw(outlet.out, outlet.told.take())
                self.c_notify(outlet)
        self.telling = []
        notices, self.noticed = self.noticed, []
        return self.c_notice(notices)

    # --- time ----------------------------------------------------------------------------------

    cdef int c_due(self) except -1:
        """Do what is due by now. 1 if more is due at once."""
        cdef int more = self.engine.c_advance(self.now_ms, self.now_ns)
        cdef int64_t due
        cdef uint32_t number
        if self.c_archive_left_ms() == 0:
            self.archive.turn()
            self.archive_asked_ms = INT64_MAX
        if self.engine.woken:
            self.c_serve()
        if self.engine.settled:
            self.c_tell()
        if self.engine.faults:
            for what, error in self.engine.take_faults():
                logger.error("%s: %s", what, described(error))
        while self.ends.c_first(&due, &number) and due <= self.now_ns:
            self.c_time_out(self.waits[number])
        if self.engine.events:
            self.c_spread(self.c_holds_events())
        if self.now_ns >= self.look_ns:
            if self.engine.c_forget_idle(self.now_ns):
                more = 1
            else:
                self.look_ns = self.now_ns + LOOK_NS
        self.c_note()
        return more

    cdef int64_t c_archive_left_ms(self) except? -2:
        """Milliseconds until the archive has something to do, or -1. It is asked when that may have changed."""
        if self.engine.trims or self.now_ms >= self.archive_at_ms or self.now_ms < self.archive_asked_ms:
            self.archive_left = self.archive.left_ms(self.now_ms)
            self.archive_asked_ms = self.now_ms
            self.archive_at_ms = self.now_ms + (self.archive_left if self.archive_left >= 0 else ARCHIVE_ASK_MS)
        if self.archive_left < 0:
            return -1
        return max(0, self.archive_at_ms - self.now_ms)

    def ask_archive(self):
        """The archive has something else to do than it last said."""
        self.archive_asked_ms = INT64_MAX

    cdef int64_t c_next_due(self, int more) except? -2:
        """Nanoseconds until something is due; -1 when nothing is."""
        cdef int64_t left = self.engine.c_next_due(self.now_ms, self.past_ns, self.now_ns), due
        cdef uint32_t item
        if self.ends.c_first(&due, &item) and (left < 0 or due - self.now_ns < left):
            left = max(0, due - self.now_ns)
        if not self.committing and (self.dirty_since_ns or self.unwritten is not None):
            due = self.c_retry_ns() if self.retry_at_ns else self.dirty_since_ns + self.flush_ns
            if left < 0 or due - self.now_ns < left:
                left = max(0, due - self.now_ns)
        if self.engine.queues and (left < 0 or self.look_ns - self.now_ns < left):
            left = max(0, self.look_ns - self.now_ns)
        due = self.c_archive_left_ms()
        if due >= 0 and (left < 0 or due * 1000000 < left):
            left = due * 1000000
        return 0 if more else left

    def pump(self, int64_t patience_ns=-1):
        """One turn: do what is due. Returns (seconds until the next turn or None, cut to commit or None).

        A returned cut must be committed and reported to :meth:`end_commit`. With ``patience_ns``, nothing is
        done when a lease was over for longer than that before anybody looked, and the seconds are how long,
        below zero: the program stood still, and who holds leases in it could not renew them.
        """
        cdef int more
        cdef int64_t left
        cdef object cut = None
        self.c_enter()
        try:
            if patience_ns >= 0:
                left = self.engine.c_leases_over(self.now_ns)
                if left > patience_ns:
                    return (-left * 1e-9, None)
            more = self.c_due()
            if self.c_commit_wanted():
                cut = self.c_begin_commit()
            else:
                self.c_encode_ahead()
            left = self.c_next_due(more)
        finally:
            self.c_leave()
        return (None if left < 0 else left * 1e-9, cut)

    def due_before(self, int64_t at_ns):
        """Whether something falls due before this reading of the monotonic clock."""
        cdef int64_t left
        self.c_enter()
        try:
            left = self.c_next_due(0)
            return left >= 0 and self.now_ns + left < at_ns
        finally:
            self.c_leave()

    # --- commits ----------------------------------------------------------------------------------

    cdef bint c_commit_wanted(self) noexcept:
        """At once when somebody waits; else when the flush window is over. Not while one runs."""
        if not self.durable or self.committing:
            return False
        if self.retry_at_ns:
            return self.now_ns >= self.c_retry_ns()
        if self.holding:
            return True
        return self.dirty_since_ns != 0 and self.now_ns - self.dirty_since_ns >= self.flush_ns

    cdef int64_t c_retry_ns(self) noexcept:
        """When a failed commit is tried again: sooner when somebody waits, who would take the server for dead."""
        if self.holding:
            return self.retry_at_ns - self.retry_wait_ns + self.retry_first_ns
        return self.retry_at_ns

    cdef c_begin_commit(self):
        """Take the cut: every change so far, and the replies that promise it.

        After an error nothing is lost: what has left the engine waits for the next try, and so do the replies.
        """
        cdef Outlet outlet
        cdef list flight, told, holding = [], telling = [], noticed = []
        cdef dict staged = {}
        self.archive.fence(self.engine.seq, self.engine.ids.last_hi)
        if self.engine.keeps_events:
            self.engine.c_write_journals(self.staged, self.now_ms)
        self.c_take()
        flight = [(outlet, outlet.held.c_copy(), outlet.held_adds.c_copy()) for outlet in self.holding]
        told = [(outlet, outlet.told.c_copy()) for outlet in self.telling]
        # From here on nothing fails.
        for outlet in self.holding:
            outlet.holding = False
            outlet.adds_away = outlet.held_adds.n > 0
            outlet.held.c_clear()
            outlet.held_adds.c_clear()
        for outlet in self.telling:
            outlet.telling = False
            outlet.told.c_clear()
        self.holding = holding
        self.telling = telling
        self.flight_told = told
        self.flight_noticed, self.noticed = self.noticed, noticed
        self.flight = flight
        self.flight_staged, self.staged = self.staged, staged
        self.flight_cut, self.unwritten = self.unwritten, None
        self.dirty_since_ns = 0
        self.sync = self.owes_sync
        self.owes_sync = False
        self.committing = True
        return self.flight_cut

    cdef int c_take(self) except -1:
        """Join all changes so far to what is not written yet."""
        # It is out of the engine then: where there is no memory to join it to the other it waits here.
        self.taken.append(None)
        try:
            if self.encoder is not None:
                self.taken[len(self.taken) - 1] = self.encoder.c_take(self.engine, self.now_ms, self.now_ns)
            else:
                self.taken[len(self.taken) - 1] = c_take_rows(self.engine, self.now_ms, self.now_ns)
        except BaseException:
            self.taken.pop()
            raise
        while self.taken:
            newer = self.taken[0]
            self.unwritten = newer if self.unwritten is None else self.unwritten.merge_under(newer)
            del self.taken[0]       # should it fail: to join it once more changes nothing
        return 0

    def begin_commit(self):
        """Take a cut now if there is anything to write or to answer and none is on its way; else None.

        Also when an earlier one failed and its time to be tried again has not come.
        """
        self.c_enter()
        try:
            if self.committing or not self.durable:
                return None
            if not (self.holding or self.telling or self.noticed or self.unwritten is not None or self.taken
                    or self.engine.n_changes):
                return None
            return self.c_begin_commit()
        finally:
            self.c_leave()

    def end_commit(self, object error=None):
        """The cut was committed, or was not: release the replies that waited for it.

        After a failure the changes stay in memory and are written with the next cut;
        durable adds are dropped, and every waiting caller is told what it can rely on.
        """
        cdef Outlet outlet
        cdef uint32_t slot
        cdef int64_t seq
        self.c_enter()
        try:
            flight, self.flight = self.flight, None
            staged, self.flight_staged = self.flight_staged, None
            self.committing = False
            if error is None:
                self.retry_at_ns = self.retry_wait_ns = 0
                self.degraded = None
                self.n_dropped = 0
                self.engine.c_committed()
                for slot, seq in staged.items():
                    if self.c_is_staged(slot, seq):
                        self.engine.c_publish(slot, self.now_ms, True)
                if self.engine.keeps_events:
                    self.engine.c_settle_journals()
                if self.staged:
                    self.staged = {slot: seq for slot, seq in self.staged.items() if staged.get(slot) != seq}
            else:
                self.unwritten = self.flight_cut
                self.retry_wait_ns = min(max(self.retry_first_ns, self.retry_wait_ns * 2), RETRY_MOST_NS)
                self.retry_at_ns = self.now_ns + self.retry_wait_ns
                self.degraded = (str(error), getattr(error, "kind", "other"),
                                 self.degraded[2] if self.degraded is not None else self.now_ms)
                if self.engine.keeps_events:
                    try:
                        self.engine.c_undo_journals()
                    except MemoryError:
                        pass        # the next cut does it
                for slot, seq in staged.items():
                    # One that was added again meanwhile stays, for the caller of that.
                    if slot not in self.staged and self.c_is_staged(slot, seq):
                        self.engine.c_forget(slot)
                        self.n_dropped += 1
            self.flight_cut = None
            for outlet, held, held_adds in flight:
                outlet.adds_away = False
                if outlet.closed:
                    continue
                if error is None:
                    _raw(outlet.out, held)
                    _raw(outlet.out, held_adds)
                else:
                    why = self.trouble
                    _refuse_held(outlet, held, f"Outcome unknown: applied in memory, not yet on disk ({why})",
                                 "unknown_outcome")
                    # After a sync that failed a crash may still bring back what was written.
                    if getattr(error, "unsure", False):
                        _refuse_held(outlet, held_adds, f"Outcome unknown: not in memory, perhaps on disk ({why})",
                                     "unknown_outcome")
                    else:
                        _refuse_held(outlet, held_adds, f"Nothing was stored ({why})", "storage")
                self.c_notify(outlet)
            self.c_notice(self.flight_noticed)
            self.flight_noticed = []
            told, self.flight_told = self.flight_told, []
            for outlet, frames in told:
                if not outlet.closed:
                    _raw(outlet.out, frames)
                    self.c_notify(outlet)
            if error is not None:
                self.c_release_told()
            # What the commit made known is told with it.
            self.c_spread(False)
            if self.engine.woken:
                self.c_serve()
                self.c_spread(self.c_holds_events())
            self.c_note()
        finally:
            self.c_leave()

    cdef bint c_is_staged(self, uint32_t slot, int64_t seq) noexcept:
        """Whether a durable add still waits for its commit: another may have replaced it, in the same slot too."""
        return self.engine.job_at(slot).state == STAGED and self.engine.job_at(slot).seq == seq

    def settle(self, Outlet outlet not None):
        """Take a cut for a caller that waits, if that is possible now.

        Returns (still waiting, cut or None). For embedded callers, who commit by themselves.
        """
        self.c_enter()
        try:
            if not outlet.holding and not (self.flight is not None
                                           and any(entry[0] is outlet for entry in self.flight)):
                return (False, None)
            if self.committing or not outlet.holding:
                return (True, None)
            return (True, self.c_begin_commit())
        finally:
            self.c_leave()

    # --- sessions ------------------------------------------------------------------------------------

    def session(self, object on_output=None, **options):
        """A new :class:`~qcore.broker.session.Session` with this broker."""
        from qcore.broker.session import Session

        return Session(self, on_output, **options)

    def adopt(self, Outlet outlet not None):
        """Give a new session its number."""
        self.c_enter()
        try:
            if self.closed:
                raise ClosedError("the engine is closed")
            if self.free_numbers:
                outlet.number = self.free_numbers.pop()
            else:
                self.last_number += 1
                outlet.number = self.last_number
        finally:
            self.c_leave()

    def dismiss(self, Outlet outlet not None, *, bint release=True):
        """A session ended: end its waits, give back its deliveries, forget its workers."""
        self.c_enter()
        try:
            if outlet.closed:
                return
            outlet.closed = True
            self.c_unlisten(outlet)
            self.end_waits(outlet)
            if release:
                self.engine.close_session(outlet.number, self.now_ms)
            self.engine.workers.leave(outlet.number)
            if release:
                self.free_numbers.append(outlet.number)     # else its deliveries still bear it
            self.c_serve()
            if self.engine.settled:
                self.c_tell()
            if self.engine.events:
                self.c_spread(self.c_holds_events())
            self.c_note()
        finally:
            self.c_leave()

    cdef int c_time_out(self, object entry) except -1:
        """Answer a wait that ends without what it waited for."""
        cdef Wait wait
        cdef const unsigned char *req_id = NULL
        if isinstance(entry, Watch):
            self.c_end_watch(<Watch>entry)
            return self.c_answer_watch(<Watch>entry, False, None)
        wait = <Wait>entry
        if wait.req_id is not None:
            req_id = <const unsigned char *>PyBytes_AS_STRING(wait.req_id)
        self.c_end_wait(wait)
        self.c_deliver(wait.outlet, wait.queue, wait.count, wait.lease_ms, wait.session, req_id,
                       0 if req_id == NULL else PyBytes_GET_SIZE(wait.req_id), True, wait.wanted)
        self.c_notify(wait.outlet)
        return 0

    def stop_intake(self):
        """Claim nothing more; everything else goes on. For a graceful stop."""
        self.intake = False

    def part(self):
        """Answer everybody who waits as if their time were over, and let nobody wait any more. For the end."""
        self.c_enter()
        try:
            self.intake = False
            self.parting = True
            if self.engine.settled:
                self.c_tell()
            for entry in list(self.waits.values()):
                self.c_time_out(entry)
            self.c_note()
        finally:
            self.c_leave()

    @property
    def n_active(self):
        """Deliveries that are out."""
        cdef Queue q
        return sum([q.active.n for q in self.engine.queues.values()])

    def mark_closed(self):
        """No further session is adopted."""
        self.closed = True

    @property
    def n_sessions(self):
        """Sessions that are open."""
        return self.last_number - len(self.free_numbers)

    def new_id(self):
        """A fresh id from the broker's source."""
        return self.engine.ids.next_id(self.now_ms)

    @property
    def trouble(self):
        """Why the data file cannot be written, in words for a caller; None when it can."""
        if self.degraded is None:
            return None
        return _TROUBLES.get(self.degraded[1], "storage error")

    @property
    def unflushed(self):
        """Changed jobs that are not on disk yet."""
        return (self.engine.n_changes + (0 if self.unwritten is None else self.unwritten.n_jobs)
                + sum([cut.n_jobs for cut in self.taken]))

    @property
    def unwritten_jobs(self):
        """Changed jobs that are lost if the process ends now: durable adds that were refused are none."""
        return self.unflushed - self.n_dropped

    # --- reads for generic handlers ----------------------------------------------------------------------

    def job_packed(self, Outlet outlet not None, str job_id not None, bint with_state=True):
        """One job as the packed job object, or None."""
        cdef uint32_t slot = self.engine.c_slot(job_id)
        if not slot or self.engine.job_at(slot).state >= STAGED:
            return None
        return self.c_packed_job(outlet, slot, VIEW_STATE if with_state else VIEW_DELIVERY)

    def added_packed(self, Outlet outlet not None, str job_id not None):
        """A job that was added just now, also one that waits for its commit, without its state."""
        return self.c_packed_job(outlet, self.engine.c_slot(job_id), VIEW_DELIVERY)

    def live_job_packed(self, Outlet outlet not None, str custom_id not None):
        """The live job that was added under this id, without its state, or None."""
        cdef uint32_t slot = self.engine.c_slot(custom_id)
        cdef Job *job
        if not slot:
            return None
        job = self.engine.job_at(slot)
        if not job.flags & F_CUSTOM_ID or job.state not in (READY, DELAYED, ACTIVE, PARKED):
            return None
        return self.c_packed_job(outlet, slot, VIEW_OUTCOME)

    def listed_packed(self, Outlet outlet not None, str queue not None, list ids not None, bint filtered):
        """Jobs of a queue as they stand in a listing, ``filtered`` by states or not; those that are gone left out.

        :raises LimitError: they do not fit into one reply
        """
        cdef Queue q = self.engine.queues.get(queue)
        cdef list out = []
        cdef uint32_t slot
        cdef Py_ssize_t size = 0
        for job_id in ids:
            slot = self.engine.c_slot(job_id)
            if not slot or self.engine.job_at(slot).state >= STAGED or self.engine.job_at(slot).queue != q.index:
                continue
            packed = self.c_packed_job(
                outlet, slot,
                VIEW_PAUSED if filtered and q.paused and self.engine.job_at(slot).state == READY else VIEW_STATE
            )
            size += len(packed)
            self.c_demand_size(size)
            out.append(packed)
        return out

    cdef int c_demand_size(self, Py_ssize_t size) except -1:
        if size > limits.MAX_FRAME_BYTES - 1024:
            raise LimitError(f"The reply would be over {limits.MAX_FRAME_BYTES} bytes: ask for fewer jobs")
        return 0

    def tell(self, Outlet outlet not None):
        """Output was written that no request of this turn asked for."""
        self.c_notify(outlet)

    def jobs_packed(self, Outlet outlet not None, str queue not None, object states, Py_ssize_t offset,
                    Py_ssize_t limit, bint asc):
        """A page of jobs as packed job objects, by creation time and then by id; ``states`` None = all.

        :raises LimitError: the page does not fit into one reply
        """
        cdef Queue q = self.engine.queues.get(queue)
        cdef uint32_t slot
        cdef list out = []
        cdef Py_ssize_t size = 0
        cdef bint as_paused
        if q is None:
            return out
        as_paused = q.paused and states is not None
        for slot in self.engine.c_select(q, states, offset, limit, asc, self.now_ms):
            packed = self.c_packed_job(
                outlet, slot, VIEW_PAUSED if as_paused and self.engine.job_at(slot).state == READY else VIEW_STATE
            )
            size += len(packed)
            self.c_demand_size(size)
            out.append(packed)
        return out

    cdef c_packed_job(self, Outlet outlet, uint32_t slot, int view):
        cdef Writer w = Writer()
        c_write_job(w, self.engine, slot, view, outlet.caps)
        return c_packed(w.take())

    def glances(self, Outlet outlet not None, str queue not None, object states, Py_ssize_t limit):
        """The oldest jobs of a queue in these states, in few words; of dead letters with their data."""
        cdef Queue q = self.engine.queues.get(queue)
        cdef uint32_t slot
        cdef Job *job
        cdef Writer w
        cdef list out = []
        cdef dict one
        cdef Py_ssize_t size = 0
        if q is None:
            return out
        for slot in self.engine.c_select(q, states, 0, limit, True, self.now_ms):
            job = self.engine.job_at(slot)
            one = {"id": self.engine.c_id(job), "createdAt": job.created_ms, "attempts": job.attempts}
            if "failed" in states:
                if job.data != NULL:
                    w = Writer()
                    c_write_payload(w, job.data, outlet.caps)
                    size += w.n
                    if size > limits.MAX_FRAME_BYTES:
                        raise LimitError(f"The reply would be over {limits.MAX_FRAME_BYTES} bytes: ask for fewer jobs")
                    one["data"] = c_packed(w.take())
            else:
                one["priority"] = int(job.priority) if job.priority == <int64_t>job.priority else job.priority
                one["runAt"] = job.run_ms
                one["progress"] = 0 if job.extra == NULL else (<dict>job.extra).get("progress", 0)
            out.append(one)
        return out

    def result_packed(self, Outlet outlet not None, str job_id not None, bint kept=False):
        """The result of a completed job as this reader can decode it, or None.

        With ``kept`` also that of a removed job, while a live one may read it.
        """
        cdef uint32_t slot = self.engine.c_slot(job_id)
        cdef Writer w
        cdef Run *run
        if not slot or not (self.engine.job_at(slot).state == COMPLETED
                            or kept and self.engine.job_at(slot).state == KEPT):
            return None
        run = self.engine.run_at(self.engine.job_at(slot).run)
        if run.result == NULL:
            return None
        w = Writer()
        c_write_payload(w, run.result, outlet.caps)
        return c_packed(w.take())

    def children_packed(self, Outlet outlet not None, str job_id not None):
        """The results of what a job depends on and was completed: "queue:id" -> packed result or None."""
        cdef uint32_t slot = self.engine.c_known(job_id)
        cdef dict extra
        if not slot or self.engine.job_at(slot).extra == NULL:
            return {}
        extra = <dict>self.engine.job_at(slot).extra
        children = [*(extra.get("childrenIds") or ()), *(extra.get("dependsOn") or ())]
        return {f"{self.engine.c_queue_of(self.engine.job_at(self.engine.c_slot(child))).name}:{child}": value
                for child, value in self.results_packed(outlet, children).items()}

    def results_packed(self, Outlet outlet not None, list job_ids not None):
        """The results of those that were completed, also of hidden ones: id -> packed result or None."""
        cdef Engine engine = self.engine
        cdef uint32_t other
        cdef Job *job
        cdef Run *run
        cdef Writer w
        cdef Py_ssize_t size = 0
        cdef dict out = {}
        for child in dict.fromkeys(job_ids):
            other = engine.c_slot(child)
            if not other:
                continue
            job = engine.job_at(other)
            if job.state != COMPLETED and job.state != KEPT:
                continue
            run = engine.run_at(job.run)
            value = None
            if run.result != NULL:
                w = Writer()
                c_write_payload(w, run.result, outlet.caps)
                size += w.n
                if size > limits.MAX_FRAME_BYTES:
                    raise LimitError(f"The results of the children are over {limits.MAX_FRAME_BYTES} bytes")
                value = c_packed(w.take())
            out[child] = value
        return out

    def journal_packed(self, Outlet outlet not None, str queue not None, int64_t after, Py_ssize_t limit):
        """Events of a queue's journal with numbers beyond ``after``: (number, packed event) of each, oldest first."""
        cdef Queue q = self.engine.queues.get(queue)
        cdef Writer w
        cdef uint32_t caps = outlet.caps
        cdef list out = []
        if q is None or q.journal is None:
            return out
        for number, kind, at_ms, job_id, data in q.journal.page(q.n_events, after, limit):
            w = Writer()
            c_write_event_map(w, kind, EVENT_NAMES[kind], q.name_packed, job_id, at_ms, data, caps)
            out.append((number, c_packed(w.take())))
        return out

    def dead_letters(self, Outlet outlet not None, str queue not None, dict wanted not None, Py_ssize_t offset,
                     Py_ssize_t limit):
        """(packed job, time of its end in ms, the extra dict) of the dead letters that ``wanted`` selects.

        Oldest first; see :meth:`Engine.choose_dead`.
        """
        cdef Queue q = self.engine.queues.get(queue)
        cdef uint32_t slot
        cdef Job *job
        if q is None:
            return
        for slot in self.engine.c_choose_dead(q, wanted, self.now_ms, offset, limit):
            job = self.engine.job_at(slot)
            yield (self.c_packed_job(outlet, slot, VIEW_DELIVERY), self.engine.run_at(job.run).finished_ms,
                   <dict>job.extra)


def too_many_waits(most):
    return f"Too many requests of this connection wait: at most {most} may"


cdef int _refuse_held(Outlet outlet, bytes held, str text, str code) except -1:
    """Replace held replies by errors with the same request ids.

    A pull is answered with its jobs all the same: they are delivered, and nobody else
    would run or return them. After a crash they are waiting again.
    """
    cdef Py_ssize_t pos = 0, n, at, end = len(held)
    cdef Writer out = outlet.out
    while pos < end:
        n = int.from_bytes(held[pos:pos + 4], "big")
        reply = msgpack.unpackb(held[pos + 4:pos + 4 + n], strict_map_key=False,
                                ext_hook=msgpack.ExtType, timestamp=0)
        if "job" in reply or "jobs" in reply:
            out.c_raw(PyBytes_AS_STRING(held) + pos, 4 + n)
            pos += 4 + n
            continue
        error = {"ok": False, "error": text}
        if outlet.caps & CAP_CODES:
            error["code"] = code
        if "reqId" in reply:
            error["reqId"] = reply["reqId"]
        at = out.c_open()
        out.c_value(error)
        out.c_close(at)
        pos += 4 + n
    return 0
