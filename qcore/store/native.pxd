"""Rows of a cut in one buffer, as the compiled writer takes them."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from qcore.store.changelog cimport ChangeLog

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

# A row as it was read. A length of -1 means NULL.
cdef struct RawRow:
    int64_t seq
    int64_t queue
    int64_t state
    const uint8_t *record
    const uint8_t *data
    const uint8_t *result
    Py_ssize_t record_n
    Py_ssize_t data_n
    Py_ssize_t result_n


cdef class RowCursor:
    cdef object store
    cdef object connection      # of the statements
    cdef void *db
    cdef void *scan
    cdef void *payload
    cdef ChangeLog changes      # as they were when the page began
    cdef int64_t first          # the row to go on with
    cdef Py_ssize_t left        # rows of the table that may still be read for this page
    cdef readonly bint over     # there are no more rows
    cdef list page
    cdef Py_ssize_t at

    # Between these two the store is locked and a read transaction is open.
    cdef int c_begin(self) except -1
    cdef int c_end(self) except -1
    # The next row of the page, whose bytes stay until the call after it; 0: the page has ended.
    cdef int c_next(self, RawRow *row) except -1
    # Likewise the row with a number; 0: there is none.
    cdef int c_seek(self, int64_t seq, RawRow *row) except -1
    cdef int c_payload(self, RawRow *row) except -1
    cdef object c_fault(self)

cdef tuple row_of(const RawRow *row)
