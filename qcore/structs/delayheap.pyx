"""Min-heap over (due, tie) with four children a node and handles to its elements.

Four children make the tree half as deep as two, and the children of a node lie side by
side (D. B. Johnson, "Priority queues with update and finding minimum spanning trees",
1975). A table from handle to position, kept by every move, lets an element be changed or
removed in O(log n), with no dead entries left behind.
"""

cimport cython
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from libc.stdint cimport int64_t, uint32_t

cdef enum:
    LEAST = 16                    # entries of the smallest storage

cdef uint32_t FREE_BIT = 0x80000000


cdef inline bint before(DelayEntry *x, DelayEntry *y) noexcept nogil:
    return x.due < y.due or (x.due == y.due and x.tie < y.tie)


@cython.final
cdef class DelayHeap:
    """Elements (due, tie, item) in order of ``due``, then ``tie``.

    ``due`` and ``tie`` are signed 64-bit numbers (milliseconds and a sequence number in
    the engine), ``item`` an unsigned 32-bit one; equal pairs are allowed. A handle is 1 to
    2**31 - 1 and is given out again after its element has gone. Holds 28 bytes an
    element. Not safe for concurrent use.
    """

    def __cinit__(self):
        self.n = 0
        self.size = 0
        self.entries = NULL
        self.place = NULL
        self.n_handles = 1
        self.n_places = 0
        self.free_handle = 0

    def __dealloc__(self):
        PyMem_RawFree(self.entries)
        PyMem_RawFree(self.place)

    cdef int c_grow(self) except -1:
        # Makes room for one more entry and, if no handle is free, one more handle.
        cdef Py_ssize_t size
        cdef void *memory
        if self.n == self.size:
            size = self.size + (self.size >> 1) if self.size else LEAST
            memory = PyMem_RawRealloc(self.entries, size * sizeof(DelayEntry))
            if memory == NULL:
                raise MemoryError()
            self.entries = <DelayEntry *> memory
            self.size = size
        if self.free_handle == 0 and self.n_handles >= self.n_places:
            size = self.n_places + (self.n_places >> 1) if self.n_places else LEAST
            if size > FREE_BIT:
                size = FREE_BIT
            if size == self.n_places:
                raise MemoryError(f"delay heap cannot grow beyond {self.n} elements")
            memory = PyMem_RawRealloc(self.place, size * sizeof(uint32_t))
            if memory == NULL:
                raise MemoryError()
            self.place = <uint32_t *> memory
            self.n_places = <uint32_t> size
        return 0

    cdef void c_up(self, Py_ssize_t i, DelayEntry entry) noexcept nogil:
        cdef DelayEntry *entries = self.entries
        cdef Py_ssize_t parent
        while i > 0:
            parent = (i - 1) >> 2
            if not before(&entry, &entries[parent]):
                break
            entries[i] = entries[parent]
            self.place[entries[i].handle] = <uint32_t> i
            i = parent
        entries[i] = entry
        self.place[entry.handle] = <uint32_t> i

    cdef void c_down(self, Py_ssize_t i, DelayEntry entry) noexcept nogil:
        cdef DelayEntry *entries = self.entries
        cdef Py_ssize_t child, best, end
        while True:
            child = 4 * i + 1
            if child >= self.n:
                break
            end = child + 4 if child + 4 < self.n else self.n
            best = child
            child += 1
            while child < end:
                if before(&entries[child], &entries[best]):
                    best = child
                child += 1
            if not before(&entries[best], &entry):
                break
            entries[i] = entries[best]
            self.place[entries[i].handle] = <uint32_t> i
            i = best
        entries[i] = entry
        self.place[entry.handle] = <uint32_t> i

    cdef uint32_t c_push(self, int64_t due, int64_t tie, uint32_t item) except 0:
        cdef DelayEntry entry
        cdef uint32_t handle
        if self.n == self.size or (self.free_handle == 0 and self.n_handles >= self.n_places):
            self.c_grow()
        handle = self.free_handle
        if handle != 0:
            self.free_handle = self.place[handle] & ~FREE_BIT
        else:
            handle = self.n_handles
            self.n_handles += 1
        entry.due = due
        entry.tie = tie
        entry.handle = handle
        entry.item = item
        self.n += 1
        self.c_up(self.n - 1, entry)
        return handle

    cdef void c_change(self, uint32_t handle, int64_t due, int64_t tie) noexcept nogil:
        cdef Py_ssize_t i = self.place[handle]
        cdef DelayEntry entry = self.entries[i]
        entry.due = due
        entry.tie = tie
        if before(&entry, &self.entries[i]):
            self.c_up(i, entry)
        else:
            self.c_down(i, entry)

    cdef void c_take_out(self, Py_ssize_t i) noexcept nogil:
        cdef DelayEntry entry
        cdef DelayEntry *entries = self.entries
        cdef uint32_t handle = entries[i].handle
        cdef Py_ssize_t size
        cdef void *memory
        self.place[handle] = FREE_BIT | self.free_handle
        self.free_handle = handle
        self.n -= 1
        if i < self.n:
            entry = entries[self.n]
            if before(&entry, &entries[i]):
                self.c_up(i, entry)
            else:
                self.c_down(i, entry)
        if self.n == 0:
            # The handles are as many as the largest flood; only now can they go.
            if self.n_places > 4 * LEAST:
                self.c_clear()
        elif self.size > 4 * LEAST and self.n < self.size >> 2:
            size = self.size >> 1
            memory = PyMem_RawRealloc(entries, size * sizeof(DelayEntry))
            if memory != NULL:
                self.entries = <DelayEntry *> memory
                self.size = size

    cdef uint32_t c_remove(self, uint32_t handle) noexcept nogil:
        cdef Py_ssize_t i = self.place[handle]
        cdef uint32_t item = self.entries[i].item
        self.c_take_out(i)
        return item

    cdef bint c_first(self, int64_t *due, uint32_t *item) noexcept nogil:
        if self.n == 0:
            return False
        due[0] = self.entries[0].due
        item[0] = self.entries[0].item
        return True

    cdef bint c_pop(self, int64_t *due, uint32_t *item) noexcept nogil:
        if self.n == 0:
            return False
        due[0] = self.entries[0].due
        item[0] = self.entries[0].item
        self.c_take_out(0)
        return True

    cdef uint32_t c_at(self, Py_ssize_t i, int64_t *due) noexcept nogil:
        due[0] = self.entries[i].due
        return self.entries[i].item

    cdef int64_t c_due(self, uint32_t handle) noexcept nogil:
        return self.entries[self.place[handle]].due

    cdef bint c_has(self, uint32_t handle) noexcept nogil:
        return 0 < handle < self.n_handles and not self.place[handle] & FREE_BIT

    cdef void c_clear(self) noexcept nogil:
        PyMem_RawFree(self.entries)
        PyMem_RawFree(self.place)
        self.entries = NULL
        self.place = NULL
        self.n = 0
        self.size = 0
        self.n_handles = 1
        self.n_places = 0
        self.free_handle = 0

    cdef size_t c_nbytes(self) noexcept nogil:
        return self.size * sizeof(DelayEntry) + self.n_places * sizeof(uint32_t)

    def push(self, int64_t due, int64_t tie, uint32_t item) -> int:
        """Add an element and return its handle; O(log n), O(1) when it is the latest."""
        return self.c_push(due, tie, item)

    def change(self, uint32_t handle, int64_t due, int64_t tie) -> None:
        """Give an element another time; O(log n). An unknown handle raises ``KeyError``."""
        if not self.c_has(handle):
            raise KeyError(handle)
        self.c_change(handle, due, tie)

    def remove(self, uint32_t handle) -> int:
        """Remove an element and return its item; O(log n). An unknown handle raises ``KeyError``."""
        if not self.c_has(handle):
            raise KeyError(handle)
        return self.c_remove(handle)

    def first(self) -> tuple[int, int, int]:
        """Return the earliest (due, tie, item); O(1). An empty heap raises ``IndexError``."""
        if self.n == 0:
            raise IndexError("delay heap is empty")
        return self.entries[0].due, self.entries[0].tie, self.entries[0].item

    def pop(self) -> tuple[int, int, int]:
        """Remove and return the earliest (due, tie, item); O(log n).

        An empty heap raises ``IndexError``.
        """
        cdef DelayEntry entry
        if self.n == 0:
            raise IndexError("delay heap is empty")
        entry = self.entries[0]
        self.c_take_out(0)
        return entry.due, entry.tie, entry.item

    def items(self) -> list[tuple[int, int, int]]:
        """Return all (due, tie, item) in no particular order."""
        cdef Py_ssize_t i
        return [(self.entries[i].due, self.entries[i].tie, self.entries[i].item) for i in range(self.n)]

    def clear(self) -> None:
        """Remove all elements and give the memory back; all handles end."""
        self.c_clear()

    def __contains__(self, uint32_t handle) -> bool:
        return self.c_has(handle)

    def __len__(self) -> int:
        return self.n

    @property
    def nbytes(self) -> int:
        """Bytes held beside the object itself."""
        return self.c_nbytes()

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + self.c_nbytes()

    def __reduce__(self):
        raise TypeError("DelayHeap cannot be pickled")

    def _check(self) -> None:
        """Verify every invariant; O(n)."""
        cdef Py_ssize_t i, count = 0
        cdef uint32_t handle
        assert 0 <= self.n <= self.size or self.n == 0, (self.n, self.size)
        for i in range(self.n):
            handle = self.entries[i].handle
            assert 0 < handle < self.n_handles, (i, handle, self.n_handles)
            assert self.place[handle] == i, f"handle {handle} at {i} believes {self.place[handle]}"
            if i:
                assert not before(&self.entries[i], &self.entries[(i - 1) >> 2]), f"order broken at {i}"
        handle = self.free_handle
        while handle != 0:
            assert handle < self.n_handles, (handle, self.n_handles)
            assert self.place[handle] & FREE_BIT, f"free handle {handle} has a place"
            count += 1
            assert count < self.n_handles, "the free list has a cycle"
            handle = self.place[handle] & ~FREE_BIT
        assert self.n + count + 1 == self.n_handles, (self.n, count, self.n_handles)
