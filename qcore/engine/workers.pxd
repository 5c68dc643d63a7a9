from libc.stdint cimport int64_t


cdef class Workers:
    cdef readonly int64_t expires_ns    # when the longest silent one is forgotten, if it stays silent; 0 = none
    cdef object _workers                # id -> Worker, in order of the last sign of life
    cdef dict _by_queue                 # name -> the same of this queue
    cdef dict _by_session               # number -> ids

    cdef bint c_knows(self, str queue) except -1
    cdef int c_expect(self) except -1
    cdef int c_expire(self, int64_t now_ns) except -1
