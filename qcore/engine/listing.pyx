"""What makes listings and counts of a queue cheap: jobs by creation time, and counts by priority.

The index is built when a queue is first listed and kept from then on: a queue that
nobody looks at does not pay for it.
"""

cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int64_t, uint32_t, uint64_t

from qcore.structs.skiplist cimport Key, SkipList, SkipNode

cdef extern from *:
    """
    static inline unsigned long long qcore_tally_bits(double d) {
        unsigned long long i; d += 0.0; memcpy(&i, &d, 8); return i;
    }
    """
    uint64_t qcore_tally_bits(double d) noexcept nogil

cdef enum:
    LEAST_PLACES = 8
    MOST_PLACES = 2048          # half of them are used at most


@cython.final
cdef class Listing:
    """Jobs of one queue by what they are listed under, and by creation time and admission there.

    O(1) at the ends, O(log n) elsewhere; 34 bytes a job.
    """

    def __cinit__(self, uint64_t seed):
        self.states = [SkipList(seed + i) for i in range(N_LISTED)]

    cdef SkipList c_state(self, int which):
        return <SkipList>self.states[which]

    cdef void c_put(self, int which, int64_t created_ms, int64_t seq, uint32_t slot, bint custom) noexcept:
        # One run, whatever the times are: what comes in nearly in order then costs O(1).
        cdef Key key
        key.a = 0
        key.b = created_ms
        key.c = seq
        try:
            (<SkipList>self.states[which]).c_insert(key, slot)
            self.n_custom += custom
        except MemoryError:
            self.broken = True

    cdef void c_drop(self, int which, int64_t created_ms, int64_t seq, bint custom) noexcept:
        cdef Key key
        key.a = 0
        key.b = created_ms
        key.c = seq
        if (<SkipList>self.states[which]).c_remove(key):
            self.n_custom -= custom


@cython.final
cdef class Page:
    """A walk over jobs under several heads in one order, oldest or newest first.

    Good only until the index is changed.
    """

    def __cinit__(self, Listing listing not None, list kinds not None, bint asc):
        cdef Key end
        self.listing = listing
        self.asc = asc
        self.lists = [listing.states[kind] for kind in kinds]
        self.n = <int>len(kinds)
        end.a = 1
        end.b = end.c = 0
        for i in range(self.n):
            self.heads[i] = ((<SkipList>self.lists[i]).c_begin() if asc
                             else (<SkipList>self.lists[i]).c_before(&end))

    cdef int c_least(self) noexcept:
        """The head that comes next; -1 when there is none."""
        cdef int i, best = -1
        cdef const Key *x
        cdef const Key *y
        for i in range(self.n):
            if self.heads[i] == NULL:
                continue
            if best < 0:
                best = i
                continue
            x = &self.heads[i].key
            y = &self.heads[best].key
            if (x.b < y.b or (x.b == y.b and x.c < y.c)) == self.asc:
                best = i
        return best

    cdef uint32_t c_next(self) noexcept:
        """The slot of the next job; 0 at the end. O(1), descending O(log n)."""
        cdef int i = self.c_least()
        cdef SkipNode *node
        if i < 0:
            return 0
        node = self.heads[i]
        self.heads[i] = ((<SkipList>self.lists[i]).c_after(node) if self.asc
                         else (<SkipList>self.lists[i]).c_before(&node.key))
        return node.value


@cython.final
cdef class Tally:
    """How many queued jobs each priority has; O(1) for a priority like the last one.

    Holds 1,024 priorities. With more it only counts in all, until there are none.
    """

    def __dealloc__(self):
        PyMem_Free(self.places)

    cdef uint32_t c_place(self, double priority) noexcept:
        """Where a priority is, or would be put. There is a free place always."""
        cdef uint32_t mask = self.n_places - 1
        cdef uint32_t i = <uint32_t>((qcore_tally_bits(priority) * 0x9E3779B97F4A7C15ULL) >> 40) & mask
        while self.places[i].used and self.places[i].priority != priority:
            i = (i + 1) & mask
        return i

    cdef bint c_find(self, double priority) noexcept:
        """Set ``last`` to the place of a priority, made if it is new. False: there is no room."""
        cdef uint32_t i
        if self.n_places:
            i = self.c_place(priority)
            if self.places[i].used:
                self.last = i
                return True
        if 2 * self.n_used >= self.n_places and not self.c_rehash():
            return False
        i = self.c_place(priority)
        self.places[i].used = True
        self.places[i].priority = priority
        self.n_used += 1
        self.last = i
        return True

    cdef bint c_rehash(self) noexcept:
        """Drop the priorities that no job has any more, and make room for as many again."""
        cdef Tallied *old = self.places
        cdef uint32_t n_old = self.n_places, live = 0, wanted = LEAST_PLACES, i, at
        for i in range(n_old):
            live += old[i].n != 0
        while wanted < 4 * (live + 1):
            wanted *= 2
        if wanted > MOST_PLACES:
            return False
        self.places = <Tallied *>PyMem_Calloc(wanted, sizeof(Tallied))
        if self.places == NULL:
            self.places = old
            return False
        self.n_places = wanted
        self.n_used = live
        self.last = 0
        for i in range(n_old):
            if old[i].n != 0:
                at = self.c_place(old[i].priority)
                self.places[at] = old[i]
        PyMem_Free(old)
        return True

    cdef void c_count(self, double priority, int by) noexcept:
        self.total += by
        if self.overflown:
            self.overflown = self.total != 0
            return
        if self.n_places == 0 or not self.places[self.last].used or self.places[self.last].priority != priority:
            if not self.c_find(priority):
                self.overflown = True
                PyMem_Free(self.places)
                self.places = NULL
                self.n_places = self.n_used = self.last = 0
                return
        self.places[self.last].n += by

    def count(self, double priority, int by):
        """Note that ``by`` more jobs have a priority."""
        self.c_count(priority, by)

    def counts(self):
        """Jobs by priority; None when there are too many priorities to tell."""
        cdef uint32_t i
        if self.overflown:
            return None
        return {self.places[i].priority + 0.0: self.places[i].n for i in range(self.n_places) if self.places[i].n}
