"""The records of the engine: what a job is in memory.

A waiting job is one ``Job`` record, one index entry, one run-queue node and its
packed payload. What only a started job has is in ``Run``; what only few jobs have
is in the ``extra`` dict. The state column on disk holds the values of ``JobState``:
changing one needs a new schema version.
"""

from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum JobState:
    READY = 1           # in its queue's run queue: waiting or prioritized
    DELAYED = 2         # in its queue's delayed heap
    ACTIVE = 3          # delivered; has a Run with or without a lease
    COMPLETED = 4
    FAILED = 5          # dead-lettered
    PARKED = 6          # waits for children
    STAGED = 7          # durable add before its commit: claimable and visible to nobody; never on disk
    KEPT = 8            # completed and removed, but a live job may read its result: known to nobody else

cdef enum JobFlag:
    F_TEXT_ID = 1           # id_hi is a Blob* with the text, id_lo its hash
    F_CUSTOM_ID = 2         # the id came from the caller
    F_LIFO = 4
    F_REMOVE_ON_COMPLETE = 8
    F_REMOVE_ON_FAIL = 16
    F_DURABLE = 32
    F_NO_DATA = 64          # the producer gave no data: not the same as null
    F_GROUPED = 128         # has a groupId: ready in a lane of its queue
    F_KEYED = 256           # has a uniqueKey, which it may own
    F_LINKED = 512          # has dependencies, children or a parent
    F_REPEATS = 1024        # a successor follows it
    F_KEEPS = 2048          # its removal on completion or failure is by count or age
    F_NEEDED = 8192         # live jobs depend on its outcome
    F_PERSISTED = 0xFFFF    # the bits that go to disk
    F_STORED = 1 << 16      # a row exists, or is in a cut on its way
    F_DIRTY = 1 << 17       # listed in the engine's dirty vector
    F_WATCHED = 1 << 19     # somebody waits for the outcome
    F_EVICTED = 1 << 18     # completed, in no list any more: leaves memory once its row is committed
    F_REWRITE = 1 << 20     # the data changed: the next row replaces the stored one whole
    F_LOGGED = 1 << 22      # has written down lines, or had
    F_WAS_NEEDED = 1 << 23  # its row may say F_NEEDED, which it is no more
    F_GUEST = 1 << 24       # F_EVICTED, and read back from the store for one command
    # More than the plain life: one test on the hot path
    F_RARE = 1024 + 512 + 256 + 128 + 2048 + 8192 + (1 << 22)

cdef enum BlobNote:
    NOTE_INT64 = 1          # the packed value holds 64-bit integers
    NOTE_TYPED = 2          # ... or typed buffers
    NOTE_UNDEFINED = 4
    NOTES = 0xFF            # the bits above may hold a checksum of the bytes, for the store

# One packed value, bytes following the header. Owned by exactly one record.
cdef struct Blob:
    uint32_t size
    uint32_t notes

cdef struct Job:                # 104 bytes
    uint64_t id_hi              # UUID bits, or Blob* when F_TEXT_ID
    uint64_t id_lo              # UUID bits, or the hash of the text
    int64_t seq                 # admission number: key on disk, last tie-break, never reused
    double priority             # higher runs first
    int64_t created_ms
    int64_t run_ms              # earliest start
    Blob *data
    PyObject *extra             # dict of rare options and history, or NULL; owned
    uint32_t queue              # index of the queue
    uint32_t name               # interned job name; 0 = extra["name"]
    uint32_t attempts           # charged executions
    uint32_t max_attempts
    uint32_t backoff_ms
    uint32_t flags
    uint32_t run                # slot in the Run slab: active and finished jobs
    uint32_t delayed            # handle in the queue's delayed heap while DELAYED; while F_EVICTED, its place
    uint32_t dirty_at           # place in the dirty vector while F_DIRTY
    uint16_t stalls
    uint8_t state
    uint8_t first_state         # state at admission, opens the timeline

cdef struct Run:                # a delivery, and later the outcome
    uint64_t token_hi           # lease token; 0 = delivered without a lease
    uint64_t token_lo
    int64_t number              # of this delivery among all; of a finished job, of its end among all
    int64_t started_ms
    int64_t finished_ms         # completion, or entry into the dead letters
    int64_t heartbeat_ms
    int64_t expires_ns          # lease: monotonic; 0 = none
    int64_t timeout_ns          # execution bound: monotonic; 0 = none
    int64_t quiet_ns            # since when its silence counts: monotonic, the grace is in it
    int64_t stall_ns            # silence that the job itself permits; 0 = the queue's
    int64_t lease_ms            # lease duration, for renewals
    Blob *result                # NULL = none, which is not null
    uint32_t deadline           # handle in the engine's deadline heap; of a dead letter, in that of expiries
    uint32_t renewals
    uint32_t mark               # batch that last named this delivery
    uint32_t job                # slot of the job
    uint32_t prev, next         # Run slots of the queue's jobs in the same state, oldest first
    uint32_t session            # owner of the delivery; 0 = nobody
    uint32_t session_prev, session_next

cdef Blob *blob_new(const void *p, size_t n, uint32_t notes) except NULL
cdef void blob_free(Blob *blob) noexcept

cdef inline unsigned char *blob_bytes(Blob *blob) noexcept nogil:
    return <unsigned char *>(blob + 1)


# Spans of time: beyond 100 years they are all the same, and no sum overflows.
cdef extern from *:
    """
    #define QCORE_MAX_SPAN_MS (INT64_C(100) * 366 * 86400000)
    """
    const int64_t MAX_SPAN_MS "QCORE_MAX_SPAN_MS"


cdef inline int64_t c_later(int64_t now_ns, int64_t ms) noexcept nogil:
    """A deadline in nanoseconds, so many milliseconds from now."""
    return now_ns + min(ms, MAX_SPAN_MS) * 1000000


cdef inline int64_t c_until(int64_t due_ms, int64_t now_ms, int64_t past_ns) noexcept nogil:
    """Nanoseconds until a time of the wall clock, which is ``past_ns`` beyond its whole millisecond."""
    return max(0, min(due_ms - now_ms, MAX_SPAN_MS) * 1000000 - past_ns)
