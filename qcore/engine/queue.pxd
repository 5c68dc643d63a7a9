from libc.stdint cimport int64_t, uint32_t

from qcore.engine.bucket cimport TokenBucket
from qcore.engine.journal cimport Journal
from qcore.engine.lanes cimport Lanes
from qcore.engine.listing cimport Listing, Tally
from qcore.engine.meter cimport Meter
from qcore.structs.delayheap cimport DelayHeap
from qcore.structs.skiplist cimport SkipList

# A list of jobs in one state, linked through their Run records, oldest first.
cdef struct RunList:
    uint32_t head
    uint32_t tail
    uint32_t n
    bint backwards              # the wall clock was set back: ends are not in order of their times

cdef bytes packed_text(str text)


cdef class Queue:
    cdef readonly uint32_t index
    cdef readonly str name
    cdef bytes name_packed
    cdef SkipList ready
    cdef DelayHeap delayed
    cdef uint32_t due           # handle in the engine's heap of queues with delayed jobs
    cdef RunList active, completed, failed
    cdef Tally priorities       # of the queued ones
    cdef Listing listing        # None until the queue is first listed
    cdef readonly Py_ssize_t n_prioritized      # of the ready ones
    cdef readonly Py_ssize_t n_staged
    cdef dict parked            # slots of the jobs that wait for others, as keys
    cdef public bint paused
    cdef readonly bint limited                  # a limit of the whole queue is set: the claims look at it
    cdef readonly int64_t concurrency           # most active jobs; -1 = any number
    cdef readonly TokenBucket rate              # None = no limit
    cdef readonly Lanes lanes                   # its groups; None until the first one
    cdef readonly uint32_t max_stalls            # 0 = unlimited
    cdef bint stalls_on         # silence counts; else only that of orphans
    cdef bint stalls_leased     # ... of leased deliveries too: the interval was set
    cdef int64_t stall_ns       # silence that ends a delivery
    cdef int64_t grace_ns       # how much later than the start silence begins to count
    cdef int64_t stall_at_ns    # when to look for stalled jobs; 0 = no need
    cdef readonly uint32_t dlq_max_entries
    cdef readonly int64_t dlq_max_age_ms         # -1 = dead letters are kept for ever
    cdef bint dlq_auto_retry
    cdef int64_t dlq_retry_ms
    cdef int64_t dlq_max_retries
    cdef readonly dict dlq_settings             # what was set; absent ones are at their defaults
    cdef readonly dict stall_settings
    cdef int64_t floor_seq      # stored rows up to this number were obliterated
    cdef public uint32_t event_mask
    cdef readonly int64_t total_pushed, total_pulled, total_completed, total_failed
    cdef readonly Py_ssize_t n_archived         # completed jobs that only the store holds
    # What policies of removal keep: none that ended before, and so many of all completed jobs.
    cdef public int64_t far_until_ms
    cdef public Py_ssize_t far_most             # -1 = any number
    cdef readonly Py_ssize_t far_most_due       # of the look that goes on, or is due; as the store has it
    cdef int64_t far_most_ms                    # of those that had ended by then
    cdef readonly Py_ssize_t n_events           # of its journal, up to the cap
    cdef readonly Meter completions, failures   # terminal outcomes by minute, over restarts
    cdef readonly Journal journal               # its events as rows; None: they are only counted
    cdef bint counted           # its telemetry is in the gathering cut
    cdef dict keys              # unique key -> slot of the live job that holds it
    cdef dict kept              # unique key -> number of a key that outlives its job
    cdef uint32_t check         # handle in the engine's heap of checks; 0 = none is set
    cdef Py_ssize_t n_waits     # pulls that wait for a job; kept by the host
    cdef c_apply_settings(self)
    cdef int64_t c_grace_ns(self, int64_t stall_ns)
    cdef bint woken             # listed in the engine's wake list
    cdef bint used              # asked for by name since the last look at it
    cdef bint gone              # forgotten: who still has it must not write it
    cdef int64_t idle_ns        # since which look nothing is left of it, nor has it been used; -1 = not so
    cdef Py_ssize_t n_hidden    # jobs that nobody sees, whose results are needed
    cdef Py_ssize_t lining      # where the next of its jobs stands, while all are lined up
    cdef bint dirty
