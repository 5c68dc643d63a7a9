from qcore.wire.writer cimport Writer

# Copies one valid value, with 64-bit integers as float64 and typed buffers as bin. Returns the position after it.
cdef Py_ssize_t c_plain(Writer w, const unsigned char *p, Py_ssize_t pos, Py_ssize_t end) except -1
