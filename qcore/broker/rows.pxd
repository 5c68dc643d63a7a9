from libc.stdint cimport int64_t, uint32_t

from qcore.engine.engine cimport Engine

# The changes since the last call as (inserts, updates, deletes), flat lists in the order of a cut's columns.
cdef tuple c_take_rows(Engine engine, int64_t now_ms, int64_t now_ns)
