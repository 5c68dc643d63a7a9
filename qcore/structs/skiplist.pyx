"""Skip list with numbers only: keys of three parts, values of 32 bits.

Source: W. Pugh, "Skip lists: a probabilistic alternative to balanced trees", 1990, with
p = 1/4. The differences:

- Nodes lie in chunks of one slab and link by 32-bit references (chunk and 8-byte unit).
  A node of height h takes 28 + 4h bytes, rounded up to 8: 34 bytes on average. The height
  is not stored: whoever unlinks a node sees on how many levels it was linked.
- Reference 0 is the head, a node of full height at the start of chunk 0; as a link it
  means the end.
- Fingers (W. Pugh, "A skip list cookbook", 1990). A *run* is a stretch of keys with equal
  ``a`` and equal sign of ``b``. For up to eight runs the predecessors of the last
  insertion are kept; the next insertion into the run starts there. ``last`` does the same
  for the end of the list, exactly. So jobs of one priority in order of arrival, either
  way round, cost O(1) each.

What holds for the path of a finger, and is all that a search needs: its entry for level l
is the head or a node of height > l, and no entry lies behind the one of a lower level. It
need not be the closest predecessor: a search walks on, and each step is paid for by the
insertion of the node stepped over.
"""

cimport cython
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define QCORE_PREFETCH(p) __builtin_prefetch(p)
    #else
    #define QCORE_PREFETCH(p) ((void) 0)
    #endif
    """
    void QCORE_PREFETCH(void *p) noexcept nogil

cdef enum:
    UNIT_BITS = 11
    CHUNK_UNITS = 2048           # 16 KiB
    UNIT_MASK = 2047
    LEAST_UNITS = 128            # 1 KiB: a list of a few jobs
    IDLE_UNITS = 512             # 4 KiB: kept by a list that ran empty
    HEAD_UNITS = 12              # (28 + 4 * SKIP_LEVELS) rounded up
    MOST_CHUNKS = 2097152        # 32 bits of reference less UNIT_BITS


cdef inline SkipNode *at(unsigned char **chunks, uint32_t ref) noexcept nogil:
    return <SkipNode *> (chunks[ref >> UNIT_BITS] + (<size_t> (ref & UNIT_MASK) << 3))


cdef inline bint before(const Key *x, const Key *y) noexcept nogil:
    if x.a != y.a:
        return x.a < y.a
    if x.b != y.b:
        return x.b < y.b
    return x.c < y.c


cdef inline bint same(const Key *x, const Key *y) noexcept nogil:
    return x.c == y.c and x.b == y.b and x.a == y.a


cdef inline int size_class(int height) noexcept nogil:
    return height >> 1           # heights 1; 2, 3; 4, 5; ... share a size


cdef inline uint32_t units_of(int height) noexcept nogil:
    return 4 + (height >> 1)


cdef inline uint64_t word_of(const SkipEntry *entry, int word) noexcept nogil:
    """A part of a key, 0 the last one, as an unsigned number of the same order."""
    cdef int64_t part = entry.key.c if word == 0 else entry.key.b if word == 1 else entry.key.a
    return <uint64_t> part ^ (<uint64_t> 1 << 63)


cdef bint in_order(const SkipEntry *entries, Py_ssize_t n, int word) noexcept nogil:
    """Whether entries ascend by the last ``word`` + 1 parts of their keys."""
    cdef Py_ssize_t i
    cdef uint64_t x, y
    cdef int k
    for i in range(1, n):
        k = word
        x = word_of(&entries[i - 1], k)
        y = word_of(&entries[i], k)
        while x == y and k > 0:
            k -= 1
            x = word_of(&entries[i - 1], k)
            y = word_of(&entries[i], k)
        if x > y:
            return False
    return True


cdef void sort(SkipEntry *entries, SkipEntry *spare, Py_ssize_t n) noexcept nogil:
    """Sort by key: a radix sort by bytes from the last, which passes over all that is in order already."""
    cdef Py_ssize_t counts[8][256]
    cdef Py_ssize_t i, at, here
    cdef SkipEntry *from_ = entries
    cdef SkipEntry *to = spare
    cdef uint64_t part
    cdef int word, k
    for word in range(3):
        # Rows come in order of admission, so it is mostly by `a` alone that they have to be sorted.
        if in_order(from_, n, word):
            continue
        memset(counts, 0, sizeof(counts))
        for i in range(n):
            part = word_of(&from_[i], word)
            for k in range(8):
                counts[k][(part >> 8 * k) & 255] += 1
        for k in range(8):
            if counts[k][(word_of(&from_[0], word) >> 8 * k) & 255] == n:
                continue
            at = 0
            for i in range(256):
                here = counts[k][i]
                counts[k][i] = at
                at += here
            for i in range(n):
                part = (word_of(&from_[i], word) >> 8 * k) & 255
                to[counts[k][part]] = from_[i]
                counts[k][part] += 1
            from_, to = to, from_
    if from_ != entries:
        memcpy(entries, from_, n * sizeof(SkipEntry))


cdef object _entry(SkipNode *node):
    return None if node == NULL else (node.key.a, node.key.b, node.key.c, node.value)


@cython.final
cdef class SkipList:
    """Ordered map (a, b, c) -> value; keys unique, order ascending and lexicographic.

    ``a``, ``b`` and ``c`` are signed 64-bit numbers, ``value`` an unsigned 32-bit one. The
    heights of nodes come from ``seed``, so equal calls build equal lists. About 34 bytes
    an entry; memory is reused, and given back when little of it is in use. Not safe for
    concurrent use.
    """

    def __cinit__(self, uint64_t seed=0x9E3779B97F4A7C15):
        self.chunks = NULL
        self.n = 0
        self.random = seed if seed != 0 else 1
        self.c_forget()

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.n_chunks):
            PyMem_RawFree(self.chunks[i])
        PyMem_RawFree(self.chunks)

    cdef void c_forget(self) noexcept nogil:
        # All fields that refer to nodes, for a list without nodes.
        self.level = 1
        self.bump = HEAD_UNITS
        self.n_units = 0
        memset(self.free, 0, sizeof(self.free))
        memset(self.last, 0, sizeof(self.last))
        self.c_forget_fingers()

    cdef void c_forget_fingers(self) noexcept nogil:
        # The turn too: a finger that is set again brings all before it back into use.
        self.n_fingers = 0
        self.recent_finger = 0
        self.finger_turn = 0

    # ---- slab ----

    cdef bint c_start(self) noexcept nogil:
        # The first chunk, with the head. False: no memory.
        cdef unsigned char **chunks = <unsigned char **> PyMem_RawMalloc(4 * sizeof(unsigned char *))
        if chunks == NULL:
            return False
        chunks[0] = <unsigned char *> PyMem_RawCalloc(LEAST_UNITS, 8)
        if chunks[0] == NULL:
            PyMem_RawFree(chunks)
            return False
        self.chunks = chunks
        self.n_chunks = 1
        self.n_chunk_places = 4
        self.first_units = LEAST_UNITS
        return True

    cdef uint32_t c_new(self, int height) noexcept nogil:
        # Reference of an unused node; 0: no memory. May move chunk 0.
        cdef int k = size_class(height)
        cdef uint32_t units = units_of(height)
        cdef uint32_t ref = self.free[k]
        cdef uint32_t size
        cdef void *memory
        if ref != 0:
            self.free[k] = at(self.chunks, ref).next[0]
            self.n_units += units
            return ref
        if self.chunks == NULL and not self.c_start():
            return 0
        size = self.first_units if self.n_chunks == 1 else CHUNK_UNITS
        if self.bump + units > size:
            if size < CHUNK_UNITS:
                memory = PyMem_RawRealloc(self.chunks[0], 2 * size * 8)
                if memory == NULL:
                    return 0
                self.chunks[0] = <unsigned char *> memory
                self.first_units = 2 * size
            else:
                if self.n_chunks == MOST_CHUNKS:
                    return 0
                if self.n_chunks == self.n_chunk_places:
                    memory = PyMem_RawRealloc(self.chunks, 2 * self.n_chunk_places * sizeof(unsigned char *))
                    if memory == NULL:
                        return 0
                    self.chunks = <unsigned char **> memory
                    self.n_chunk_places *= 2
                memory = PyMem_RawMalloc(CHUNK_UNITS * 8)
                if memory == NULL:
                    return 0
                self.chunks[self.n_chunks] = <unsigned char *> memory
                self.n_chunks += 1
                self.bump = 0
        ref = ((self.n_chunks - 1) << UNIT_BITS) + self.bump
        self.bump += units
        self.n_units += units
        return ref

    cdef void c_free(self, uint32_t ref, int height) noexcept nogil:
        cdef int k = size_class(height)
        at(self.chunks, ref).next[0] = self.free[k]
        self.free[k] = ref
        self.n_units -= units_of(height)

    cdef void c_shrink(self) noexcept nogil:
        # Gives the memory of an empty list back, all but a little.
        cdef uint32_t i
        cdef void *memory
        for i in range(1, self.n_chunks):
            PyMem_RawFree(self.chunks[i])
        self.n_chunks = 1
        memory = PyMem_RawRealloc(self.chunks, 4 * sizeof(unsigned char *))
        if memory != NULL:
            self.chunks = <unsigned char **> memory
            self.n_chunk_places = 4
        if self.first_units > IDLE_UNITS:
            memory = PyMem_RawRealloc(self.chunks[0], IDLE_UNITS * 8)
            if memory != NULL:
                self.chunks[0] = <unsigned char *> memory
                self.first_units = IDLE_UNITS
        memset(self.chunks[0], 0, HEAD_UNITS * 8)
        self.c_forget()

    cdef bint c_compact(self) noexcept nogil:
        # Copies the nodes, in order, to new chunks. False, and nothing changed, when
        # there is no memory.
        cdef unsigned char **old = self.chunks
        cdef uint32_t n_old = self.n_chunks
        cdef uint32_t n_old_places = self.n_chunk_places
        cdef uint32_t old_bump = self.bump
        cdef uint32_t old_first_units = self.first_units
        cdef Py_ssize_t old_units = self.n_units
        cdef uint32_t old_free[SKIP_CLASSES]
        cdef uint32_t due[SKIP_LEVELS]     # by level: next old node to come
        cdef uint32_t path[SKIP_LEVELS]    # by level: last new node
        cdef uint32_t ref, new
        cdef int height, i
        cdef SkipNode *node
        cdef SkipNode *copy
        for i in range(SKIP_CLASSES):
            old_free[i] = self.free[i]
            self.free[i] = 0
        for i in range(SKIP_LEVELS):
            due[i] = at(old, 0).next[i]
            path[i] = 0
        self.chunks = NULL
        self.n_chunks = 0
        self.n_units = 0
        self.bump = HEAD_UNITS
        ref = due[0]
        new = 1 if self.c_start() else 0
        while ref != 0 and new != 0:
            node = at(old, ref)
            height = 0
            while height < self.level and due[height] == ref:
                due[height] = node.next[height]
                height += 1
            new = self.c_new(height)
            if new == 0:
                break
            copy = at(self.chunks, new)
            copy.key = node.key
            copy.value = node.value
            for i in range(height):
                at(self.chunks, path[i]).next[i] = new
                copy.next[i] = 0
                path[i] = new
            ref = due[0]
        if new == 0:
            for i in range(<int> self.n_chunks):
                PyMem_RawFree(self.chunks[i])
            PyMem_RawFree(self.chunks)
            self.chunks = old
            self.n_chunks = n_old
            self.n_chunk_places = n_old_places
            self.bump = old_bump
            self.first_units = old_first_units
            self.n_units = old_units
            for i in range(SKIP_CLASSES):
                self.free[i] = old_free[i]
            return False
        for i in range(<int> n_old):
            PyMem_RawFree(old[i])
        PyMem_RawFree(old)
        for i in range(SKIP_LEVELS):
            self.last[i] = path[i]
        self.c_forget_fingers()
        return True

    # ---- search ----

    cdef void c_descend(self, uint32_t *path, Key *key, uint32_t x, int level) noexcept nogil:
        # Fills path[level - 1] .. path[0] with the last nodes before the key; x is one
        # such, of height >= level, or the head.
        cdef unsigned char **chunks = self.chunks
        cdef SkipNode *node = at(chunks, x)
        cdef SkipNode *follower
        cdef uint32_t y, known = 0
        while level > 0:
            level -= 1
            while True:
                y = node.next[level]
                # `known` was found not to be before the key, one level up.
                if y == known or y == 0:
                    break
                follower = at(chunks, y)
                if not before(&follower.key, key):
                    known = y
                    break
                x = y
                node = follower
            path[level] = x

    cdef void c_seek(self, uint32_t *path, Key *key, int height) noexcept nogil:
        # From the path of a finger: afterwards entries 0 .. height - 1 are exact.
        cdef unsigned char **chunks = self.chunks
        cdef int level = 1
        cdef uint32_t x = path[0]
        cdef uint32_t y
        cdef SkipNode *node = at(chunks, x)
        cdef int steps = 0
        if x == 0 or before(&node.key, key):
            # In a run that grows at its end the last insertion lies one step ahead; in
            # one that grows at its start, none.
            while steps < 3:
                y = node.next[0]
                if y == 0 or not before(&at(chunks, y).key, key):
                    break
                x = y
                node = at(chunks, x)
                steps += 1
        else:
            steps = 3
        if steps < 3:
            path[0] = x
        else:
            # Up, until an entry and its follower enclose the key; then down.
            while level < self.level:
                x = path[level]
                node = at(chunks, x)
                if x == 0 or before(&node.key, key):
                    y = node.next[level]
                    if y == 0 or not before(&at(chunks, y).key, key):
                        break
                level += 1
            self.c_descend(path, key, path[level] if level < self.level else 0, level)
        while level < height:
            x = path[level]
            node = at(chunks, x)
            while True:
                y = node.next[level]
                if y == 0 or not before(&at(chunks, y).key, key):
                    break
                x = y
                node = at(chunks, x)
            path[level] = x
            level += 1

    cdef uint32_t *c_finger(self, Key *key) noexcept nogil:
        # The path of the finger of the key's run; NULL: none.
        cdef int i = self.recent_finger
        cdef bint side = key.b < 0
        if i < self.n_fingers and self.finger_a[i] == key.a and self.finger_side[i] == side:
            return self.finger[i]
        for i in range(self.n_fingers):
            if self.finger_a[i] == key.a and self.finger_side[i] == side:
                self.recent_finger = i
                return self.finger[i]
        return NULL

    # ---- operations ----

    cdef int c_insert(self, Key key, uint32_t value) except -1:
        cdef uint32_t *path
        cdef uint32_t ref, y
        cdef int height = 1
        cdef int i
        cdef uint64_t random
        cdef SkipNode *node
        cdef SkipNode *p
        # Before anything is looked up: both may move nodes.
        if self.n_chunks > 4 and self.n_units * 8 < <Py_ssize_t> self.n_chunks * CHUNK_UNITS:
            self.c_compact()
        if self.chunks == NULL and not self.c_start():
            raise MemoryError()

        # xorshift64 (G. Marsaglia, "Xorshift RNGs", 2003); two bits decide on a level.
        random = self.random
        random ^= random << 13
        random ^= random >> 7
        random ^= random << 17
        self.random = random
        random >>= 16
        while random & 3 == 0 and height <= self.level and height < SKIP_LEVELS:
            height += 1
            random >>= 2

        if self.last[0] == 0 or before(&at(self.chunks, self.last[0]).key, &key):
            path = self.last
        else:
            path = self.c_finger(&key)
            if path != NULL:
                self.c_seek(path, &key, height)
            else:
                i = self.finger_turn
                self.finger_turn = i + 1 if i + 1 < SKIP_FINGERS else 0
                if i >= self.n_fingers:
                    self.n_fingers = i + 1
                self.recent_finger = i
                self.finger_a[i] = key.a
                self.finger_side[i] = key.b < 0
                path = self.finger[i]
                memset(path, 0, SKIP_LEVELS * sizeof(uint32_t))
                self.c_descend(path, &key, 0, self.level)
            y = at(self.chunks, path[0]).next[0]
            if y != 0 and same(&at(self.chunks, y).key, &key):
                raise ValueError(f"key ({key.a}, {key.b}, {key.c}) is in the list already")

        ref = self.c_new(height)
        if ref == 0:
            raise MemoryError()
        node = at(self.chunks, ref)
        node.key = key
        node.value = value
        if height > self.level:
            self.level = height
        for i in range(height):
            p = at(self.chunks, path[i])
            y = p.next[i]
            node.next[i] = y
            p.next[i] = ref
            if y == 0:
                self.last[i] = ref
        self.n += 1
        return 0

    cdef int c_fill(self, SkipEntry *entries, SkipEntry *spare, Py_ssize_t n) except -1:
        cdef Py_ssize_t i
        cdef Key *key
        if self.n:
            raise ValueError(f"expected an empty list, this one has {self.n} entries")
        with nogil:
            sort(entries, spare, n)
        for i in range(1, n):
            key = &entries[i].key
            if same(&entries[i - 1].key, key):
                raise ValueError(f"key ({key.a}, {key.b}, {key.c}) comes twice")
        try:
            for i in range(n):
                self.c_insert(entries[i].key, entries[i].value)     # at the end
        except MemoryError:
            self.c_clear()
            raise
        return 0

    cdef void c_unlink(self, uint32_t ref, uint32_t *path) noexcept nogil:
        # `path` holds the predecessors of the node. Frees it.
        cdef SkipNode *node = at(self.chunks, ref)
        cdef SkipNode *p
        cdef uint32_t y
        cdef int height = 0
        cdef int i
        while height < self.level:
            p = at(self.chunks, path[height])
            if p.next[height] != ref:
                break
            y = node.next[height]
            p.next[height] = y
            if y == 0:
                self.last[height] = path[height]
            for i in range(self.n_fingers):
                if self.finger[i][height] == ref:
                    self.finger[i][height] = path[height]
            height += 1
        self.n -= 1
        if self.n == 0 and (self.n_chunks > 1 or self.first_units > IDLE_UNITS):
            self.c_shrink()
            return
        self.c_free(ref, height)
        while self.level > 1 and self.last[self.level - 1] == 0:
            self.level -= 1

    cdef bint c_remove(self, Key key) noexcept nogil:
        cdef uint32_t path[SKIP_LEVELS]
        cdef uint32_t ref
        if self.n == 0:
            return False
        ref = at(self.chunks, 0).next[0]
        if same(&at(self.chunks, ref).key, &key):
            memset(path, 0, sizeof(path))
            self.c_unlink(ref, path)
            return True
        self.c_descend(path, &key, 0, self.level)
        ref = at(self.chunks, path[0]).next[0]
        if ref == 0 or not same(&at(self.chunks, ref).key, &key):
            return False
        self.c_unlink(ref, path)
        return True

    cdef bint c_first(self, Key *key, uint32_t *value) noexcept nogil:
        cdef SkipNode *node
        if self.n == 0:
            return False
        node = at(self.chunks, at(self.chunks, 0).next[0])
        key[0] = node.key
        value[0] = node.value
        return True

    cdef bint c_pop(self, Key *key, uint32_t *value) noexcept nogil:
        cdef uint32_t path[SKIP_LEVELS]
        cdef uint32_t ref
        cdef SkipNode *node
        if self.n == 0:
            return False
        ref = at(self.chunks, 0).next[0]
        node = at(self.chunks, ref)
        key[0] = node.key
        value[0] = node.value
        memset(path, 0, sizeof(path))
        self.c_unlink(ref, path)
        # The new first node: with many priorities it lies anywhere, and is needed next.
        QCORE_PREFETCH(at(self.chunks, at(self.chunks, 0).next[0]))
        return True

    cdef SkipNode *c_begin(self) noexcept nogil:
        if self.n == 0:
            return NULL
        return at(self.chunks, at(self.chunks, 0).next[0])

    cdef SkipNode *c_after(self, SkipNode *node) noexcept nogil:
        return at(self.chunks, node.next[0]) if node.next[0] != 0 else NULL

    cdef SkipNode *c_before(self, Key *key) noexcept nogil:
        cdef uint32_t path[SKIP_LEVELS]
        if self.n == 0:
            return NULL
        self.c_descend(path, key, 0, self.level)
        return at(self.chunks, path[0]) if path[0] != 0 else NULL

    cdef SkipNode *c_from(self, Key *key) noexcept nogil:
        cdef uint32_t path[SKIP_LEVELS]
        if self.n == 0:
            return NULL
        self.c_descend(path, key, 0, self.level)
        return self.c_after(at(self.chunks, path[0]))

    cdef void c_clear(self) noexcept nogil:
        cdef uint32_t i
        for i in range(self.n_chunks):
            PyMem_RawFree(self.chunks[i])
        PyMem_RawFree(self.chunks)
        self.chunks = NULL
        self.n_chunks = 0
        self.n_chunk_places = 0
        self.first_units = 0
        self.n = 0
        self.c_forget()

    cdef size_t c_nbytes(self) noexcept nogil:
        cdef size_t units = self.first_units
        if self.n_chunks > 1:
            units += <size_t> (self.n_chunks - 1) * CHUNK_UNITS
        return units * 8 + self.n_chunk_places * sizeof(unsigned char *)

    def insert(self, int64_t a, int64_t b, int64_t c, uint32_t value) -> None:
        """Add an entry; O(log n), O(1) at the end of the list or of a recent run.

        A key that is there already raises ``ValueError``.
        """
        cdef Key key
        key.a = a
        key.b = b
        key.c = c
        self.c_insert(key, value)

    def fill(self, list entries not None) -> None:
        """Add (a, b, c, value) tuples, in any order, to an empty list; O(n).

        One that is not empty, or a key that comes twice, raises ``ValueError``.
        """
        cdef Py_ssize_t i, n = len(entries)
        cdef SkipEntry *packed = <SkipEntry *> PyMem_RawCalloc(2 * n + 1, sizeof(SkipEntry))
        if packed == NULL:
            raise MemoryError()
        try:
            for i in range(n):
                a, b, c, value = entries[i]
                packed[i].key.a = a
                packed[i].key.b = b
                packed[i].key.c = c
                packed[i].value = value
            self.c_fill(packed, packed + n, n)
        finally:
            PyMem_RawFree(packed)

    def remove(self, int64_t a, int64_t b, int64_t c) -> bool:
        """Remove an entry by key and tell whether it was there; O(log n)."""
        cdef Key key
        key.a = a
        key.b = b
        key.c = c
        return self.c_remove(key)

    def first(self) -> tuple[int, int, int, int]:
        """Return the least (a, b, c, value); O(1). An empty list raises ``IndexError``."""
        cdef Key key
        cdef uint32_t value
        if not self.c_first(&key, &value):
            raise IndexError("skip list is empty")
        return key.a, key.b, key.c, value

    def before(self, int64_t a, int64_t b, int64_t c) -> tuple[int, int, int, int] | None:
        """Return the last entry before a key, or None; O(log n)."""
        cdef Key key
        key.a = a
        key.b = b
        key.c = c
        return _entry(self.c_before(&key))

    def first_from(self, int64_t a, int64_t b, int64_t c) -> tuple[int, int, int, int] | None:
        """Return the first entry that is not before a key, or None; O(log n)."""
        cdef Key key
        key.a = a
        key.b = b
        key.c = c
        return _entry(self.c_from(&key))

    def pop(self) -> tuple[int, int, int, int]:
        """Remove and return the least (a, b, c, value); O(1) expected.

        An empty list raises ``IndexError``.
        """
        cdef Key key
        cdef uint32_t value
        if not self.c_pop(&key, &value):
            raise IndexError("skip list is empty")
        return key.a, key.b, key.c, value

    def clear(self) -> None:
        """Remove all entries and give the memory back."""
        self.c_clear()

    def __len__(self) -> int:
        return self.n

    def __iter__(self):
        """Iterate over a copy of the entries, as (a, b, c, value) in order."""
        cdef list out = []
        cdef SkipNode *node = self.c_begin()
        while node != NULL:
            out.append((node.key.a, node.key.b, node.key.c, node.value))
            node = self.c_after(node)
        return iter(out)

    @property
    def nbytes(self) -> int:
        """Bytes held beside the object itself."""
        return self.c_nbytes()

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + self.c_nbytes()

    def __reduce__(self):
        raise TypeError("SkipList cannot be pickled")

    def _check(self) -> None:
        """Verify every invariant; O(n)."""
        cdef uint32_t due[SKIP_LEVELS]
        cdef uint32_t last[SKIP_LEVELS]
        cdef uint32_t ref, y
        cdef int height, i, k
        cdef Py_ssize_t count = 0, units = 0
        cdef SkipNode *node
        cdef SkipNode *previous = NULL
        cdef dict heights = {0: SKIP_LEVELS}
        cdef dict ranks = {0: 0}
        cdef set free = set()
        if self.chunks == NULL:
            assert self.n == 0 and self.n_chunks == 0, (self.n, self.n_chunks)
            return
        for i in range(SKIP_LEVELS):
            due[i] = at(self.chunks, 0).next[i]
            last[i] = 0
            assert i < self.level or due[i] == 0, f"level {i} in use, {self.level} known"
        ref = due[0]
        while ref != 0:
            node = at(self.chunks, ref)
            assert previous == NULL or before(&previous.key, &node.key), f"order broken at {count}"
            height = 0
            while height < self.level and due[height] == ref:
                last[height] = ref
                due[height] = node.next[height]
                height += 1
            count += 1
            assert count <= self.n, f"n is {self.n}, there are more"
            heights[ref] = height
            ranks[ref] = count
            units += units_of(height)
            previous = node
            ref = due[0]
        assert count == self.n, f"n is {self.n}, counted {count}"
        assert units == self.n_units, f"n_units is {self.n_units}, counted {units}"
        for i in range(self.level):
            assert due[i] == 0, f"level {i} holds a node that level 0 lacks"
            assert last[i] == self.last[i], f"last[{i}] is {self.last[i]}, found {last[i]}"
        assert self.level == 1 or last[self.level - 1] != 0, f"level {self.level} is empty"
        assert self.finger_turn <= self.n_fingers, f"finger {self.finger_turn} is next of {self.n_fingers}"
        for k in range(self.n_fingers):
            for i in range(SKIP_LEVELS):
                y = self.finger[k][i]
                assert y in heights, f"finger {k} level {i} dangles"
                assert heights[y] > i, f"finger {k} level {i} at a node of height {heights[y]}"
                assert i == 0 or ranks[y] <= ranks[self.finger[k][i - 1]], f"finger {k} crosses at {i}"
        for k in range(SKIP_CLASSES):
            ref = self.free[k]
            while ref != 0:
                assert ref not in heights and ref not in free, f"free node {ref} is in use or twice free"
                free.add(ref)
                units += 4 + k
                ref = at(self.chunks, ref).next[0]
        units += HEAD_UNITS
        assert units * 8 <= <Py_ssize_t> self.c_nbytes(), (units, self.c_nbytes())
