"""Rows of a cut in one buffer, as the compiled writer takes them."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

cdef enum RowOp:
    ROW_INSERT = 1          # seq, queue, state, record, data, result: replaces a row in every column
    ROW_UPDATE = 2          # seq, state, record, result
    ROW_DELETE = 3          # seq

# Followed by the bytes of record, data and result; a length of -1 means NULL.
cdef packed struct RowHead:
    uint8_t op
    int64_t seq
    uint32_t queue
    uint32_t state
    int32_t record_n
    int32_t data_n
    int32_t result_n
