"""A queue: the places of its jobs and what is set for it."""

cimport cython
from libc.stdint cimport uint32_t, uint64_t

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
        self.max_stalls = limits.DEFAULT_MAX_STALLS
        self.dlq_max_entries = limits.DEFAULT_DLQ_MAX_ENTRIES
        self.dlq_max_age_ms = limits.DEFAULT_DLQ_MAX_AGE_MS
        self.dlq_settings = {}
        self.stall_settings = {}
        self.completions = Meter()
        self.failures = Meter()
        self.keys = {}
        self.kept = {}

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
    def n_active(self):
        return self.active.n

    @property
    def n_completed(self):
        """Retained completed jobs, in memory or only in the store."""
        return self.completed.n + self.n_archived

    @property
    def n_failed(self):
        return self.failed.n
