from libc.stdint cimport uint32_t

from qcore.engine.engine cimport Engine
from qcore.engine.job cimport Blob
from qcore.wire.writer cimport Writer

cdef enum View:
    VIEW_DELIVERY = 0       # as a pull gives it
    VIEW_STATE = 1          # with state, returnvalue and failedReason
    VIEW_PAUSED = 2         # the same, of a job that is listed as paused
    VIEW_OUTCOME = 3        # with returnvalue and failedReason

cdef enum Capability:       # what the reader announced
    CAP_INT64 = 1           # decodes 64-bit integers
    CAP_TYPED = 2           # decodes typed buffers
    CAP_OUTCOMES = 4
    CAP_CODES = 8

cdef int c_write_job(Writer w, Engine engine, uint32_t slot, int view, uint32_t caps) except -1
cdef int c_write_payload(Writer w, Blob *blob, uint32_t caps) except -1
