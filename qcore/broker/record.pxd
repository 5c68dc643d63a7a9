from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    RECORD_VERSION = 12         # no changed bit makes it one of those before, which are held against less
    FIXED_VERSION = 2
    UNSEALED_VERSION = 1
    SEAL_BYTES = 4
    HAS_RUN = 1
    HAS_EXTRA = 2
    HAS_PRIORITY = 4
    RECORD_PART_MOST = 96       # bytes of a packed head, or a packed delivery
    FIXED_HEAD_BYTES = 60       # of a head in versions 1 and 2
    FIXED_RUN_BYTES = 72        # of a delivery

# Each field lies where it lay in versions 1 and 2, without gaps.
cdef struct RecordHead:
    uint8_t version
    uint8_t parts           # HAS_RUN, HAS_EXTRA, HAS_PRIORITY
    uint8_t first_state
    uint8_t reserved
    uint32_t flags
    int64_t created_ms
    int64_t run_ms
    double priority
    uint32_t attempts
    uint32_t max_attempts
    uint32_t backoff_ms
    uint32_t name
    uint32_t data_notes
    uint32_t stalls
    uint32_t id_n           # bytes of the id; 16 for a number

cdef union Last:
    int64_t timeout_ms      # of an active job: end of the execution bound on the wall clock; 0 = none
    int64_t ahead           # of a finished one: its number, see Run, less seq, and 1; 0 = it has none, and ended before

cdef struct RecordRun:
    uint64_t token_hi
    uint64_t token_lo
    int64_t started_ms
    int64_t finished_ms
    int64_t heartbeat_ms
    int64_t lease_ms
    int64_t expires_ms      # end of the lease on the wall clock; 0 = no lease
    Last last
    uint32_t renewals
    uint32_t result_notes

cdef struct Record:             # one that was read
    RecordHead head
    RecordRun tail              # zeros without a delivery
    const unsigned char *id_p
    const unsigned char *extra_p
    Py_ssize_t extra_n

cdef enum Reading:
    READ_WELL = 0
    OTHER_VERSION = 1
    HEAD_CUT = 2
    ID_CUT = 3
    RUN_CUT = 4

# A checksum of 24 bits, never 0.
cdef uint32_t record_check(const unsigned char *p, Py_ssize_t n) noexcept nogil
# The checksum over the record at ``p`` and the place it has in the file.
cdef uint32_t record_seal(int64_t seq, uint32_t queue, uint32_t state, const char *p, Py_ssize_t n) noexcept nogil
# Each writes at most RECORD_PART_MOST bytes; how many.
cdef Py_ssize_t record_put_head(const RecordHead *head, uint8_t *p) noexcept nogil
cdef Py_ssize_t record_put_run(const RecordRun *tail, int64_t created_ms, uint8_t *p) noexcept nogil
# Find the parts of a record, of any version; whether it is as it was written is not looked at.
cdef int record_read(const unsigned char *p, Py_ssize_t n, Record *record) noexcept nogil
