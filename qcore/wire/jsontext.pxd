# Whether the valid value from `pos` to `end` is short enough for the data or the result of a job.
cdef bint c_fits(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end) noexcept nogil
