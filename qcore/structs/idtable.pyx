"""Hash table from a 64-bit hash to a 32-bit slot number, eight bytes an entry.

Linear probing; deletion shifts later entries back, so there are no tombstones
(D. E. Knuth, The Art of Computer Programming 3, 6.4, algorithm R). The home position
is ``tag * size >> 32``: it needs no caller at growth, admits any table size (growth by
a half keeps the load between 5/9 and 5/6), and makes growth one forward pass over both
tables.
"""

cimport cython
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree
from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    LEAST = 8                          # positions of the smallest table

cdef uint64_t MOST = <uint64_t> 1 << 31  # positions of the largest table


cdef inline uint32_t tag_of(uint64_t hash) noexcept nogil:
    return <uint32_t> ((hash * 0x9E3779B97F4A7C15ULL) >> 32)


cdef inline uint64_t home_of(uint32_t tag, uint64_t size) noexcept nogil:
    return (<uint64_t> tag * size) >> 32


@cython.final
cdef class IdTable:
    """Multiset of (hash, slot) pairs, found by hash.

    A slot is 1 to 2**32 - 1. Several slots may share a hash: the caller keeps the keys
    and compares. Entries cost 9.6 to 14.4 bytes. Not safe for concurrent use.
    """

    def __cinit__(self):
        self.n = 0
        self.size = 0
        self.n_most = 0
        self.entries = NULL

    def __dealloc__(self):
        PyMem_RawFree(self.entries)

    cdef bint c_resize(self, uint64_t size) noexcept nogil:
        # False, and nothing changed, when there is no memory.
        cdef uint64_t i, j
        cdef IdEntry *old = self.entries
        cdef IdEntry *new = <IdEntry *> PyMem_RawCalloc(size, sizeof(IdEntry))
        if new == NULL:
            return False
        for i in range(self.size):
            if old[i].slot != 0:
                j = home_of(old[i].tag, size)
                while new[j].slot != 0:
                    j += 1
                    if j == size:
                        j = 0
                new[j] = old[i]
        PyMem_RawFree(old)
        self.entries = new
        self.size = size
        self.n_most = <Py_ssize_t> (size * 5 // 6)
        return True

    cdef int c_put(self, uint64_t hash, uint32_t slot) except -1:
        cdef uint64_t i, size
        cdef uint32_t tag = tag_of(hash)
        cdef IdEntry *entries
        if self.n >= self.n_most:
            size = self.size + (self.size >> 1) if self.size else LEAST
            if size > MOST:
                size = MOST
            if size == self.size or not self.c_resize(size):
                raise MemoryError(f"id table cannot grow beyond {self.n} entries")
        size = self.size
        entries = self.entries
        i = home_of(tag, size)
        while entries[i].slot != 0:
            i += 1
            if i == size:
                i = 0
        entries[i].tag = tag
        entries[i].slot = slot
        self.n += 1
        return 0

    cdef uint32_t c_scan(self, uint32_t tag, Py_ssize_t *cursor) noexcept nogil:
        # From *cursor to the next entry with this tag, or to the end of the cluster.
        cdef uint64_t i = <uint64_t> cursor[0]
        cdef uint32_t slot
        while True:
            slot = self.entries[i].slot
            if slot == 0 or self.entries[i].tag == tag:
                cursor[0] = <Py_ssize_t> i
                return slot
            i += 1
            if i == self.size:
                i = 0

    cdef uint32_t c_find(self, uint64_t hash, Py_ssize_t *cursor) noexcept nogil:
        cdef uint32_t tag = tag_of(hash)
        if self.n == 0:
            return 0
        cursor[0] = <Py_ssize_t> home_of(tag, self.size)
        return self.c_scan(tag, cursor)

    cdef uint32_t c_next(self, uint64_t hash, Py_ssize_t *cursor) noexcept nogil:
        cursor[0] += 1
        if <uint64_t> cursor[0] == self.size:
            cursor[0] = 0
        return self.c_scan(tag_of(hash), cursor)

    cdef bint c_del(self, uint64_t hash, uint32_t slot) noexcept nogil:
        cdef Py_ssize_t cursor
        cdef uint32_t found = self.c_find(hash, &cursor)
        cdef uint64_t hole, i, home, size
        cdef IdEntry *entries = self.entries
        while found != slot:
            if found == 0:
                return False
            found = self.c_next(hash, &cursor)
        if slot == 0:
            return False
        size = self.size
        hole = i = <uint64_t> cursor
        while True:
            i += 1
            if i == size:
                i = 0
            if entries[i].slot == 0:
                break
            home = home_of(entries[i].tag, size)
            # An entry may move back to the hole unless its home lies behind the hole.
            if (i + size - home if i < home else i - home) >= (i + size - hole if i < hole else i - hole):
                entries[hole] = entries[i]
                hole = i
        entries[hole].slot = 0
        self.n -= 1
        if size > 64 and <uint64_t> self.n < size >> 3:
            self.c_resize(size >> 2)
        return True

    cdef void c_clear(self) noexcept nogil:
        PyMem_RawFree(self.entries)
        self.entries = NULL
        self.size = 0
        self.n = 0
        self.n_most = 0

    cdef size_t c_nbytes(self) noexcept nogil:
        return self.size * sizeof(IdEntry)

    def put(self, uint64_t hash, uint32_t slot) -> None:
        """Add an entry; amortised O(1). Slot 0 raises ``ValueError``."""
        if slot == 0:
            raise ValueError("slot must not be 0")
        self.c_put(hash, slot)

    def find(self, uint64_t hash) -> list[int]:
        """Return the slots that may belong to ``hash``.

        Never lacks one that was put; may hold others, whose hash shares 32 bits.
        """
        cdef Py_ssize_t cursor
        cdef list out = []
        cdef uint32_t slot = self.c_find(hash, &cursor)
        while slot != 0:
            out.append(slot)
            slot = self.c_next(hash, &cursor)
        return out

    def delete(self, uint64_t hash, uint32_t slot) -> bool:
        """Remove one such entry; tell whether there was one."""
        return self.c_del(hash, slot)

    def clear(self) -> None:
        """Remove all entries and give the memory back."""
        self.c_clear()

    def __len__(self) -> int:
        return self.n

    @property
    def nbytes(self) -> int:
        """Bytes held beside the object itself."""
        return self.c_nbytes()

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + self.c_nbytes()

    def __reduce__(self):
        raise TypeError("IdTable cannot be pickled")

    def _check(self) -> None:
        """Verify every invariant; O(n)."""
        cdef uint64_t i, j
        cdef Py_ssize_t count = 0
        for i in range(self.size):
            if self.entries[i].slot == 0:
                continue
            count += 1
            j = home_of(self.entries[i].tag, self.size)
            while j != i:
                assert self.entries[j].slot != 0, f"hole at {j} before entry {i} of {self.size}"
                j = j + 1 if j + 1 < self.size else 0
        assert count == self.n, f"n is {self.n}, counted {count}"
        assert self.n <= self.n_most, f"n {self.n} above {self.n_most} of {self.size}"
