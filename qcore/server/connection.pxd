from libc.stdint cimport int64_t

from qcore.broker.session cimport Session


cdef class Connection:
    cdef readonly object sock
    cdef bytearray room             # shared: what is read is fed at once
    cdef public Session session
    cdef readonly list unsent       # memoryviews
    cdef Py_ssize_t n_unsent
    cdef int64_t max_unsent_bytes   # 0 = no bound
    cdef public bint partial        # something has come of which the rest is missing
    cdef int64_t partial_since_ns
    cdef int64_t partial_frame
    cdef public bint ready          # the peer may send requests: no handshake is under way
    cdef readonly bint closed
    cdef public int events          # what the selector watches it for
    cdef bint resumed               # requests that waited for room have run

    cpdef bint receive(self) except -1
    cpdef bint _feed(self, data, Py_ssize_t n) except -1
    cdef bint _broken(self, fault) except -1
    cpdef bint send(self) except -1
    cpdef bytes _take(self)
    cdef bint _sent(self) except -1
