from cpython.pythread cimport PyThread_type_lock
from libc.stdint cimport int64_t, uint32_t

from qcore.broker.rows cimport Encoder
from qcore.engine.engine cimport Engine
from qcore.engine.lanes cimport Wanted
from qcore.engine.queue cimport Queue
from qcore.structs.delayheap cimport DelayHeap
from qcore.wire.writer cimport Writer


cdef enum:                      # commands whose time is taken
    T_PUSH = 0
    T_PULL = 1
    T_ACK = 2
    N_TIMED = 3
    N_BUCKETS = 16


cdef class Outlet:
    """What the broker needs of a session: where replies go, and how to say that there are some."""
    cdef Writer out             # frames ready to be sent
    cdef Writer held            # replies to changes of the gathering cut
    cdef Writer held_adds       # replies to durable adds of the gathering cut
    cdef bint adds_away         # there are some of the cut that is being committed
    cdef bint holding           # listed in Broker.holding
    cdef Writer told            # events that wait for the commit of their changes; None: never listened
    cdef bint telling           # listed in Broker.telling
    cdef readonly bint closing  # the conversation is over once the output has been taken
    cdef str listens_to         # a queue; None: to no events
    cdef uint32_t listens_for   # bits of their types
    cdef uint32_t round         # of Broker.c_spread that last wrote to it
    cdef readonly bint closed
    cdef readonly uint32_t number
    cdef uint32_t caps
    cdef object on_output
    cdef dict waits             # number -> Wait or Watch of its own; None: it never waited
    cdef Py_ssize_t max_waits   # requests that may wait at a time

    cdef bint c_may_wait(self) noexcept


cdef class Wait:
    """A pull that waits for a job."""
    cdef Outlet outlet
    cdef Queue queue
    cdef Py_ssize_t count       # 0 = a single job
    cdef int64_t lease_ms       # 0 = without a lease
    cdef uint32_t session
    cdef bytes req_id           # packed; None = none
    cdef Wanted wanted          # of grouped jobs; None = any
    cdef uint32_t handle        # in the heap of ends; 0 = over
    cdef uint32_t number


cdef class Line:
    """Pulls that wait for the same of a queue, in the order in which they came.

    The first one is not over. Others that are over stay until they are the most.
    """
    cdef object waits           # deque of Wait
    cdef Py_ssize_t n           # those that are not over

    cdef int c_tidy(self) except -1


cdef class Watch:
    """A command that waits for the outcome of a job."""
    cdef Outlet outlet
    cdef str job_id
    cdef object request         # the decoded request, for its id
    cdef uint32_t handle        # in the heap of ends; 0 = over
    cdef uint32_t number


cdef class Broker:
    cdef readonly Engine engine
    cdef readonly object store
    cdef readonly object archive        # completed jobs that only the store has; see archive.py
    cdef int64_t archive_asked_ms, archive_at_ms, archive_left  # when it was asked, is to be asked again; its answer
    cdef readonly object clock          # None = the machine's clocks
    cdef PyThread_type_lock lock
    cdef Encoder encoder                # None: the store takes rows in lists
    cdef uint32_t ahead_rows            # changes that are left to be encoded when the cut is taken
    cdef readonly bint durable          # a store that outlives the process is there
    cdef readonly bint hold_adds, hold_changes, hold_pulls
    cdef bint sync_adds, sync_changes
    cdef bint owes_sync                 # a held reply of the gathering cut promises an fsync
    cdef int64_t flush_ns, retry_first_ns
    cdef int64_t now_ms, now_ns, past_ns    # the last: the wall clock's part of a millisecond
    # the gathering cut
    cdef list holding                   # outlets with held replies
    cdef dict staged                    # slots of durable adds, in order, and the numbers of their jobs
    cdef int64_t dirty_since_ns         # 0 = nothing buffered
    # the cut on its way to the store
    cdef readonly bint committing
    cdef readonly bint sync             # it is to be fsynced
    cdef list flight                    # (outlet, held bytes, held adds bytes)
    cdef dict flight_staged
    cdef object flight_cut
    cdef object unwritten               # cut that failed, to be written with the next
    cdef list taken                     # cuts after it that could not be joined to it yet
    cdef int64_t retry_at_ns, retry_wait_ns
    cdef Py_ssize_t n_dropped           # durable adds that were dropped since the last commit that succeeded
    cdef readonly object degraded       # None, or (error text, kind, since ms)
    # events
    cdef dict listeners                 # queue name -> outlets, in order of their subscriptions
    cdef list telling                   # outlets with events for the gathering cut
    cdef list flight_told               # (outlet, event bytes) of the cut on its way
    cdef uint32_t round
    cdef Writer scratch
    cdef readonly object hooks          # addresses that are told of events
    cdef uint32_t hook_mask             # of all of them together
    cdef public object deliver          # the host's: takes a list of notices for hooks, without waiting
    cdef list noticed, flight_noticed   # notices that wait for a commit
    # waiting pulls
    cdef DelayHeap ends
    cdef dict waits                     # number -> Wait or Watch
    cdef dict watches                   # job id -> {number: Watch}
    cdef dict queue_waits               # queue index -> key of what is wanted -> Line
    cdef uint32_t wait_number
    # sessions
    cdef list free_numbers
    cdef uint32_t last_number
    cdef list to_notify
    cdef readonly bint closed, intake, parting
    cdef public object backups          # the host's: figures of the backups it makes by itself; or None
    cdef public object recovery         # what opening the store brought back
    cdef readonly Py_ssize_t unflushed_limit
    cdef readonly int64_t started_ms, started_ns
    cdef int64_t timed[N_TIMED]                 # commands of the feed in hand
    cdef int64_t n_took[N_TIMED][N_BUCKETS]     # how long they took, by LATENCY_BOUNDS_MS
    cdef int64_t took_ns[N_TIMED]
    cdef public object rate_sample      # (monotonic ns, totals, averages) of the last look at the rates
    cdef int64_t look_ns        # when to look for queues that nobody uses any more
    cdef uint32_t batch         # mark of the batch that is being judged

    cdef int c_enter(self) except -1
    cdef int c_lock(self) except -1
    cdef c_leave(self)
    cdef int c_tick(self) except -1
    cdef int c_took(self, int64_t n_frames) except -1
    cdef int c_note(self) except -1
    cdef int c_encode_ahead(self) except -1
    cdef int c_bring_needed(self) except -1
    cdef Writer c_reply(self, Outlet outlet, bint held, bint add, bint sync)
    cdef bint c_holds(self, uint32_t slot) noexcept
    cdef int c_notify(self, Outlet outlet) except -1
    cdef Py_ssize_t c_deliver(self, Outlet outlet, Queue q, Py_ssize_t count, int64_t lease_ms, uint32_t session,
                              const unsigned char *req_id, Py_ssize_t req_id_n, bint empty_too,
                              Wanted wanted) except -1
    cdef int c_wait(self, Outlet outlet, Queue q, Py_ssize_t count, int64_t lease_ms, uint32_t session,
                    const unsigned char *req_id, Py_ssize_t req_id_n, int64_t timeout_ms, Wanted wanted) except -1
    cdef int c_serve(self) except -1
    cdef int c_serve_queue(self, Queue q) except -1
    cdef int c_keep_wait(self, Outlet outlet, uint32_t number, object wait) except -1
    cdef int c_end_wait(self, Wait wait) except -1
    cdef int c_tell(self) except -1
    cdef int c_spread(self, bint held) except -1
    cdef int c_tell_event(self, Outlet outlet, bytes frame, bint held) except -1
    cdef int c_release_told(self) except -1
    cdef int c_listen(self, str queue) except -1
    cdef int c_notice(self, list notices) except -1
    cdef int c_store_hook(self, str hook_id, object value) except -1
    cdef int c_unlisten(self, Outlet outlet) except -1
    cdef bint c_holds_events(self) noexcept
    cdef int c_answer_watch(self, Watch watch, bint completed, object result) except -1
    cdef int c_end_watch(self, Watch watch) except -1
    cdef int c_time_out(self, object entry) except -1
    cdef bint c_commit_wanted(self) noexcept
    cdef int64_t c_retry_ns(self) noexcept
    cdef c_begin_commit(self)
    cdef int c_take(self) except -1
    cdef bint c_is_staged(self, uint32_t slot, int64_t seq) noexcept
    cdef int c_due(self) except -1
    cdef int64_t c_archive_left_ms(self) except? -2
    cdef int64_t c_next_due(self, int more) except? -2
    cdef int c_demand_size(self, Py_ssize_t size) except -1
    cdef c_packed_job(self, Outlet outlet, uint32_t slot, int view)
