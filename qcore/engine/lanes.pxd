cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from qcore.structs.delayheap cimport DelayHeap
from qcore.structs.skiplist cimport SkipList

cdef enum:
    MAX_VIEWS = 8               # distinct limits that the pulls of one queue use at one time

cdef enum Affinity:
    ANY = 0
    UNGROUPED = 1               # only jobs without a group
    ONE_GROUP = 2


# What a pull wants of grouped jobs.
@cython.final
cdef class Wanted:
    cdef readonly int64_t concurrency       # active jobs of a group; 0 = the pull sets no limit
    cdef readonly int64_t window_max        # starts of a group in a window; 0 = likewise
    cdef readonly int64_t window_ms
    cdef readonly int affinity
    cdef readonly str group
    cdef readonly bint ungrouped_first
    cdef readonly tuple key                 # equal for pulls that want the same


@cython.final
cdef class Group:
    cdef readonly str name
    cdef uint32_t index                     # in its lanes
    cdef DelayHeap ready                    # slots by intra-group priority, then admission
    cdef readonly Py_ssize_t n_delayed, n_active, n_staged  # staged: of durable adds before their commit
    cdef int64_t turn                       # place in the round; 0 = nothing is ready
    cdef readonly bint paused
    cdef readonly int64_t concurrency       # replaces that of pulls that set one; 0 = none
    cdef readonly int64_t rate_max, rate_ms     # likewise; 0 = none
    cdef int64_t blocked_ns                 # nothing starts before; 0 = it may
    cdef int64_t blocked_ms, blocked_span_ms    # the same on the wall clock and as a duration, for the store
    # The window that is open; none while window_end_ns is 0.
    cdef int64_t window_end_ns, window_max, window_ms, window_count
    cdef uint32_t timer                     # handle in the times of its lanes
    cdef int64_t listed[MAX_VIEWS]          # turn under which it stands in a view; 0 = it does not

    cdef bint c_has_settings(self) noexcept
    cdef bint c_is_idle(self) noexcept


@cython.final
cdef class View:
    cdef int64_t concurrency, window_max, window_ms
    cdef SkipList eligible                  # groups that may start a job, by turn
    cdef int64_t used                       # when it was last asked for


@cython.final
cdef class Lanes:
    cdef dict by_name
    cdef list groups                        # by index; None = free
    cdef list free
    cdef list views                         # None = free
    cdef DelayHeap times                    # groups by the time at which a block or a window ends (monotonic ns)
    cdef readonly Py_ssize_t n_ready, n_delayed
    cdef int64_t turns, uses
    cdef int64_t plain_turn                 # of the ungrouped jobs, for pulls that give them a turn only
    cdef uint64_t seed

    cdef Group c_group(self, str name)
    cdef Group c_find(self, str name)
    cdef uint32_t c_add(self, Group g, int64_t priority, int64_t seq, uint32_t slot) except 0
    cdef int c_remove(self, Group g, uint32_t handle) except -1
    cdef int c_reorder(self, Group g, uint32_t handle, int64_t priority, int64_t seq) except -1
    cdef bint c_may(self, Group g, int64_t concurrency, int64_t window_max, int64_t window_ms) noexcept
    cdef int c_touch(self, Group g) except -1
    cdef View c_view(self, Wanted wanted)
    cdef Group c_first(self, Wanted wanted)
    cdef int c_start(self, Group g, Wanted wanted, int64_t now_ns) except -1
    cdef int c_enter(self, Group g) except -1
    cdef int c_leave(self, Group g) except -1
    cdef int c_set_timer(self, Group g) except -1
    cdef Group c_ended(self, int64_t now_ns)
    cdef int c_drop_idle(self, Group g) except -1
    cdef size_t c_nbytes(self)
