from libc.stdint cimport int64_t, uint32_t

from qcore.wire.writer cimport Writer

cdef int c_write_event(Writer w, int kind, str name, bytes queue, str job_id, int64_t now_ms, object data,
                       uint32_t caps) except -1
cdef int c_write_event_map(Writer w, int kind, str name, bytes queue, str job_id, int64_t now_ms, object data,
                           uint32_t caps) except -1
cdef uint32_t c_notes(int kind, object data) except? 0xFFFF
