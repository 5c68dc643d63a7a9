"""A queue: the places of its jobs and what is set for it."""

cimport cython
from libc.stdint cimport INT64_MIN, uint32_t, uint64_t

from qcore.engine.job cimport MAX_SPAN_MS
from qcore.engine.listing cimport Tally
from qcore.engine.meter cimport Meter
from qcore.structs.delayheap cimport DelayHeap
from qcore.structs.skiplist cimport SkipList

from qcore import limits


#: What can be set for the dead letters of a queue. Times in ms; ``maxAge`` None = kept for ever.
DLQ_DEFAULTS = {
    "autoRetry": False,
    "autoRetryInterval": 3_600_000,
    "maxAutoRetries": 3,
    "maxAge": limits.DEFAULT_DLQ_MAX_AGE_MS,
    "maxEntries": limits.DEFAULT_DLQ_MAX_ENTRIES,
}
#: What can be set for jobs whose holder is silent. Times in ms; ``maxStalls`` 0 = unlimited.
STALL_DEFAULTS = {
    "enabled": True,
    "stallInterval": 30_000,
    "maxStalls": limits.DEFAULT_MAX_STALLS,
    "gracePeriod": 5_000,
}


cdef bytes packed_text(str text):
    """A text as MessagePack."""
    cdef bytes utf8 = text.encode()
    if len(utf8) < 32:
        return bytes([0xA0 | len(utf8)]) + utf8
    if len(utf8) < 256:
        return b"\xd9" + bytes([len(utf8)]) + utf8
    return b"\xda" + len(utf8).to_bytes(2, "big") + utf8


@cython.final
cdef class Queue:
    """A named set of jobs. Created by first use."""

    def __cinit__(self, uint32_t index, str name not None, uint64_t seed):
        self.index = index
        self.name = name
        self.name_packed = packed_text(name)
        self.ready = SkipList(seed)
        self.delayed = DelayHeap()
        self.priorities = Tally()
        self.concurrency = -1
        self.far_until_ms = INT64_MIN
        self.far_most = -1
        self.idle_ns = -1
        self.far_most_due = -1
        self.parked = {}
        self.completions = Meter()
        self.failures = Meter()
        self.keys = {}
        self.kept = {}
        self.dlq_settings = {}
        self.stall_settings = {}
        self.c_apply_settings()

    cdef c_apply_settings(self):
        """Take what the settings say into the numbers that are looked at."""
        cdef dict config = self.dlq_config
        cdef int64_t interval_ms, grace_ms
        self.dlq_max_age_ms = -1 if config["maxAge"] is None else config["maxAge"]
        self.dlq_max_entries = config["maxEntries"]
        self.dlq_auto_retry = config["autoRetry"]
        self.dlq_retry_ms = min(config["autoRetryInterval"], limits.MAX_TIME_MS)
        self.dlq_max_retries = config["maxAutoRetries"]
        config = self.stall_config
        self.max_stalls = config["maxStalls"]
        self.stalls_on = config["enabled"]
        self.stalls_leased = "stallInterval" in self.stall_settings
        interval_ms = min(config["stallInterval"], MAX_SPAN_MS)
        grace_ms = min(config["gracePeriod"], MAX_SPAN_MS)
        if not self.stalls_on:
            interval_ms = max(interval_ms, limits.ORPHAN_SILENCE_MS)
        self.stall_ns = interval_ms * 1000000
        self.grace_ns = max(0, grace_ms - interval_ms) * 1000000

    cdef int64_t c_grace_ns(self, int64_t stall_ns):
        """The grace that is left beside a bound of silence other than the queue's."""
        return max(0, <int64_t>min(self.stall_config["gracePeriod"], MAX_SPAN_MS) * 1000000 - stall_ns)

    @property
    def dlq_config(self):
        """Settings of the dead letters, all keys."""
        return DLQ_DEFAULTS | self.dlq_settings

    @property
    def stall_config(self):
        """Settings of stalled jobs, all keys."""
        return STALL_DEFAULTS | self.stall_settings

    @property
    def n_ready(self):
        """Jobs that can start now, paused or not, of groups as well."""
        return self.ready.n + (self.lanes.n_ready if self.lanes is not None else 0)

    @property
    def n_delayed(self):
        """Jobs whose time has not come."""
        return self.delayed.n

    @property
    def n_parked(self):
        """Jobs that wait for others."""
        return len(self.parked)

    @property
    def n_active(self):
        return self.active.n

    @property
    def n_completed(self):
        """Retained completed jobs, in memory or only in the store."""
        return self.completed.n + self.n_archived

    @property
    def n_failed(self):
        return self.failed.n
