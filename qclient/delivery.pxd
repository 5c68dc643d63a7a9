from libc.stdint cimport int8_t


cdef enum DeliveryState:
    # The object is its own generation: a job that is delivered again is another
    # object, so an outcome of the old one cannot touch it.
    D_BUFFERED = 0  # pulled, not started
    D_STARTED = 1  # its processor runs
    D_ACKING = 2  # its result waits for the engine's word
    D_REPORTING = 3  # its failure, or its return, waits for the engine's word
    D_SETTLED = 4  # the engine has answered
    D_LOST = 5  # its processor runs, but the lease is somebody else's


cdef class JobContext:
    cdef object control
    cdef bytes packed  # the job's map as it came
    cdef Py_ssize_t data_at, data_end  # where `packed` holds the data; 0, 0 without
    cdef object decoded  # the data, once it was asked for
    cdef bint has_decoded
    cdef dict fields  # every field, once asked for
    cdef readonly str id
    cdef readonly str name
    cdef public str token
    cdef double timeout_ms, priority_
    cdef long attempts, limit
    cdef public int8_t _state
    cdef public str _reason
    cdef public object _task
    cdef public bytes _result
    cdef public object _value
    cdef public object _timer
    cdef public object _event
    cdef public object _deadline
    cdef object __weakref__
