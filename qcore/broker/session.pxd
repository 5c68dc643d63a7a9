from libc.stdint cimport int64_t, uint32_t, uint64_t

from qcore.broker.core cimport Broker, Outlet
from qcore.engine.job cimport Blob
from qcore.engine.lanes cimport Wanted
from qcore.engine.queue cimport Queue
from qcore.engine.transitions cimport Spec
from qcore.wire.walk cimport Fields, Piece
from qcore.wire.writer cimport Writer

cdef enum:
    RATE_SLICES = 64


cdef class Session(Outlet):
    cdef readonly Broker broker
    cdef bytes pending              # start of a frame that is not whole yet
    cdef list chunks                # what came after it
    cdef Py_ssize_t n_chunks
    cdef readonly int64_t n_frames  # requests so far
    cdef readonly bint backlogged   # requests wait until the output has been taken, or the adds before them count
    cdef bint in_order              # no request runs before the adds in front of it count
    cdef public bint authenticated
    cdef readonly object settings
    # request rate
    cdef readonly int64_t rate_max  # 0 = off
    cdef int64_t rate_slice_ns, rate_slice
    cdef int64_t rate_total
    cdef uint32_t rate_counts[RATE_SLICES]
    # admissions of the batch in hand
    cdef Spec *specs                # one allocation, also the next three
    cdef Piece *pieces
    cdef double *delays
    cdef uint32_t *slots
    cdef Py_ssize_t cap_specs
    cdef uint32_t last_slot
    cdef str new_name           # of jobs of that batch, not interned yet; None: there is none
    cdef bint named             # the last queue that was asked for has a valid name
    cdef public dict state          # for generic handlers

    cpdef Py_ssize_t feed(self, data, Py_ssize_t n=*) except -1
    cpdef bytes take(self)
    cdef bint c_settled(self) noexcept
    cdef bint c_has_output(self) noexcept
    cdef int c_feed(self, const unsigned char *p, Py_ssize_t n) except -1
    cdef Py_ssize_t c_partial(self) noexcept
    cdef int c_run_pending(self) except -1
    cdef int c_run(self, const unsigned char *p, Py_ssize_t n) except -1
    cdef uint32_t c_most(self) noexcept
    cdef int c_frames(self, const unsigned char *p, Py_ssize_t n, Py_ssize_t *used) except -1
    cdef int c_frame(self, const unsigned char *p, Py_ssize_t n) except -1
    cdef bint c_behind_adds(self) noexcept
    cdef bint c_admit_request(self) noexcept
    cdef int c_generic(self, const unsigned char *p, Py_ssize_t n) except -1
    cdef int c_hot(self, const unsigned char *p, Py_ssize_t n) except -1
    cdef int c_push(self, const unsigned char *p, Py_ssize_t n) except -1
    cdef int c_pushb(self, const unsigned char *p, Py_ssize_t n) except -1
    cdef int c_pull(self, const unsigned char *p, Py_ssize_t n, bint batch) except -1
    cdef int c_ack(self, const unsigned char *p, Py_ssize_t n) except -1
    cdef int c_ackb(self, const unsigned char *p, Py_ssize_t n) except -1
    cdef int c_job_field(self, const Fields *at, Spec *spec, Piece *data, double *delay, bint batch) except -1
    cdef Py_ssize_t c_read_jobs(self, const unsigned char *p, Py_ssize_t pos, Py_ssize_t n,
                                Py_ssize_t *count) except -2
    cdef Queue c_queue_at(self, const unsigned char *p, Piece *piece, bint create)
    cdef void c_plain_spec(self, Spec *spec) noexcept
    cdef Writer c_admit(self, Queue q, const unsigned char *p, Spec *spec, Piece *data, double delay,
                        object extra, bint durable)
    cdef int c_complete(self, uint32_t slot, Blob *result) except -1
    cdef int c_write_id(self, Writer w, uint32_t slot) except -1
    cdef int c_write_req_id(self, Writer w, const unsigned char *p, Piece *req) except -1
    cdef object c_add_all(self, str queue, list admissions, bint durable, object resent_since_ms)
    cdef int c_room(self, Py_ssize_t count) except -2
    cdef int c_demand_room(self, str queue, list admissions) except -1
    cdef int c_pull_from(self, Queue q, Py_ssize_t count, int64_t lease_ms, uint32_t owner,
                         const unsigned char *req_id, Py_ssize_t req_id_n, int64_t timeout_ms,
                         Wanted wanted) except -1
    cdef int c_token_at(self, const unsigned char *p, const Piece *piece, uint64_t *hi, uint64_t *lo) noexcept
    cdef int c_write(self, Writer w, object reply) except -1
