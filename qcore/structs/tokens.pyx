"""Completion tokens in two tiers: the recent ones, bounded, and the pinned ones.

Each time a key becomes the newest, that *occurrence* gets the next number of a sequence
that never repeats, its token, and a place in ``order``. An occurrence is valid while its
key still holds that token, so a key that is deleted, pinned or added anew leaves a stale
place behind instead of moving others. A head walks over ``order`` and skips stale places.
When it has passed ``cap`` places, or more than ``2 * cap`` are pending, the valid ones are
copied to the front: O(1) amortised for each operation, and at most about three places a
key. A token is the position of its occurrence, so ``order`` needs to hold no tokens, and
copying renumbers.
"""

cimport cython
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from libc.stdint cimport uint32_t, uint64_t

from qcore.structs.idtable cimport IdTable
from qcore.structs.siphash cimport siphash13

cdef enum:
    LEAST = 16                   # slots and places of the smallest storage

cdef uint64_t PINNED = <uint64_t> -1
cdef uint64_t UNUSED = <uint64_t> -2


cdef inline int split(object key, uint64_t *hi, uint64_t *lo) except -1:
    if not 0 <= key < 1 << 128:
        raise OverflowError(f"key must be 0 to 2**128 - 1, got {key}")
    hi[0] = key >> 64
    lo[0] = key & 0xFFFFFFFFFFFFFFFF
    return 0


@cython.final
cdef class CompletionTokens:
    """Ordered set of 128-bit keys, each with an owner and a value (32 bits each).

    At most ``cap`` *recent* keys, in order of arrival: one more evicts the oldest.
    *Pinned* keys are outside of that order and that bound. ``seed`` keys the hash of the
    table. All operations on one key are O(1) amortised; 50 to 60 bytes a key. Not safe for
    concurrent use.
    """

    def __cinit__(self, uint32_t cap=50000, uint64_t seed=0):
        if cap < 1:
            raise ValueError(f"cap must be at least 1, got {cap}")
        self.table = IdTable()
        self.cap = cap
        self.secret.k0 = seed
        self.secret.k1 = seed ^ 0x9E3779B97F4A7C15ULL
        self.n_slots = 1

    def __dealloc__(self):
        PyMem_RawFree(self.slots)
        PyMem_RawFree(self.order)

    # ---- parts ----

    cdef uint64_t c_hash(self, uint64_t hi, uint64_t lo) noexcept nogil:
        cdef uint64_t words[2]
        words[0] = hi
        words[1] = lo
        return siphash13(&self.secret, <const unsigned char *> words, sizeof(words))

    cdef uint32_t c_slot(self, uint64_t hi, uint64_t lo) noexcept nogil:
        # The slot of a key; 0: not here.
        cdef Py_ssize_t cursor
        cdef uint64_t hash = self.c_hash(hi, lo)
        cdef uint32_t slot = self.table.c_find(hash, &cursor)
        while slot != 0 and (self.slots[slot].entry.lo != lo or self.slots[slot].entry.hi != hi):
            slot = self.table.c_next(hash, &cursor)
        return slot

    cdef int c_reserve(self) except -1:
        # Makes room for one more slot and one more place, before anything changes.
        cdef Py_ssize_t size
        cdef void *memory
        if self.free_slot == 0 and self.n_slots >= self.n_slot_places:
            size = <Py_ssize_t> self.n_slot_places + (self.n_slot_places >> 1)
            size = min(max(size, LEAST), <Py_ssize_t> 0xFFFFFFFF)
            if size == self.n_slot_places:
                raise MemoryError(f"completion tokens cannot grow beyond {size - 1} keys")
            memory = PyMem_RawRealloc(self.slots, size * sizeof(TokenSlot))
            if memory == NULL:
                raise MemoryError()
            self.slots = <TokenSlot *> memory
            self.n_slot_places = <uint32_t> size
        if self.head > self.cap or self.tail - self.head > 2 * <Py_ssize_t> self.cap:
            self.c_compact()
        if self.tail == self.n_order_places:
            size = max(self.n_order_places + (self.n_order_places >> 1), LEAST)
            memory = PyMem_RawRealloc(self.order, size * sizeof(uint32_t))
            if memory == NULL:
                raise MemoryError()
            self.order = <uint32_t *> memory
            self.n_order_places = size
        return 0

    cdef void c_compact(self) noexcept nogil:
        cdef Py_ssize_t i, kept = 0
        cdef uint32_t slot
        cdef uint64_t base = self.base + <uint64_t> self.tail
        for i in range(self.head, self.tail):
            slot = self.order[i]
            if self.slots[slot].token == self.base + <uint64_t> i:
                self.order[kept] = slot
                self.slots[slot].token = base + <uint64_t> kept
                kept += 1
        self.base = base
        self.head = 0
        self.tail = kept

    cdef void c_append(self, uint32_t slot) noexcept nogil:
        # Needs a reserved place.
        self.order[self.tail] = slot
        self.slots[slot].token = self.base + <uint64_t> self.tail
        self.tail += 1
        self.n_recent += 1

    cdef bint c_evict(self, TokenEntry *evicted) noexcept nogil:
        # Forgets the oldest recent key; False: there is none.
        cdef uint32_t slot
        while self.head < self.tail:
            slot = self.order[self.head]
            self.head += 1
            if self.slots[slot].token == self.base + <uint64_t> (self.head - 1):
                evicted[0] = self.slots[slot].entry
                self.c_drop(slot)
                return True
        return False

    cdef void c_drop(self, uint32_t slot) noexcept nogil:
        # Frees the slot of a key of either tier; its place goes stale.
        cdef TokenSlot *s = &self.slots[slot]
        self.table.c_del(self.c_hash(s.entry.hi, s.entry.lo), slot)
        if s.token == PINNED:
            self.n_pinned -= 1
        else:
            self.n_recent -= 1
        s.token = UNUSED
        s.entry.value = self.free_slot
        self.free_slot = slot

    # ---- operations ----

    cdef int c_add(
        self, uint64_t hi, uint64_t lo, uint32_t owner, uint32_t value, TokenEntry *evicted
    ) except -1:
        cdef uint32_t slot = self.c_slot(hi, lo)
        cdef int full = 0
        cdef TokenEntry *entry
        if slot != 0:
            self.slots[slot].entry.owner = owner
            self.slots[slot].entry.value = value
            return 0
        self.c_reserve()
        slot = self.free_slot if self.free_slot != 0 else self.n_slots
        self.table.c_put(self.c_hash(hi, lo), slot)
        if slot == self.free_slot:
            self.free_slot = self.slots[slot].entry.value
        else:
            self.n_slots += 1
        entry = &self.slots[slot].entry
        entry.hi = hi
        entry.lo = lo
        entry.owner = owner
        entry.value = value
        if self.n_recent >= self.cap:
            full = self.c_evict(evicted)
        self.c_append(slot)
        return full

    cdef bint c_get(self, uint64_t hi, uint64_t lo, TokenEntry *out) noexcept nogil:
        cdef uint32_t slot = self.c_slot(hi, lo)
        if slot == 0:
            return False
        out[0] = self.slots[slot].entry
        return True

    cdef bint c_contains(self, uint64_t hi, uint64_t lo) noexcept nogil:
        return self.c_slot(hi, lo) != 0

    cdef bint c_pin(self, uint64_t hi, uint64_t lo) noexcept nogil:
        cdef uint32_t slot = self.c_slot(hi, lo)
        if slot == 0 or self.slots[slot].token == PINNED:
            return False
        self.slots[slot].token = PINNED
        self.n_recent -= 1
        self.n_pinned += 1
        return True

    cdef int c_unpin(self, uint64_t hi, uint64_t lo, bint retain, TokenEntry *evicted) except -1:
        cdef uint32_t slot = self.c_slot(hi, lo)
        cdef int full = 0
        if slot == 0 or self.slots[slot].token != PINNED:
            return 0
        if not retain:
            self.c_drop(slot)
            self.c_settle()
            return 0
        self.c_reserve()
        if self.n_recent >= self.cap:
            full = self.c_evict(evicted)
        self.n_pinned -= 1
        self.c_append(slot)
        return full

    cdef bint c_delete(self, uint64_t hi, uint64_t lo) noexcept nogil:
        cdef uint32_t slot = self.c_slot(hi, lo)
        if slot == 0:
            return False
        self.c_drop(slot)
        self.c_settle()
        return True

    cdef Py_ssize_t c_delete_owner(self, uint32_t owner, bint pins) noexcept nogil:
        cdef Py_ssize_t count = 0
        cdef uint32_t slot
        for slot in range(1, self.n_slots):
            if self.slots[slot].token != UNUSED and self.slots[slot].entry.owner == owner:
                if self.slots[slot].token == PINNED and not pins:
                    self.slots[slot].entry.owner = 0
                    continue
                self.c_drop(slot)
                count += 1
        self.c_settle()
        return count

    cdef void c_settle(self) noexcept nogil:
        # Slots are as many as the largest flood; they can go once none is in use.
        if self.n_recent + self.n_pinned == 0 and self.n_slot_places > 4 * LEAST:
            self.c_clear()

    cdef void c_clear(self) noexcept nogil:
        PyMem_RawFree(self.slots)
        PyMem_RawFree(self.order)
        self.slots = NULL
        self.order = NULL
        self.table.c_clear()
        self.n_recent = 0
        self.n_pinned = 0
        self.n_slots = 1
        self.n_slot_places = 0
        self.free_slot = 0
        self.head = 0
        self.tail = 0
        self.n_order_places = 0

    cdef size_t c_nbytes(self) noexcept nogil:
        return (
            self.n_slot_places * sizeof(TokenSlot) + self.n_order_places * sizeof(uint32_t)
            + self.table.c_nbytes()
        )

    # ---- Python ----

    cdef object c_entry_key(self, uint32_t slot):
        return <object> self.slots[slot].entry.hi << 64 | self.slots[slot].entry.lo

    def add(self, key, uint32_t owner, uint32_t value=0) -> int | None:
        """Add a key as the newest recent one and return the key that it evicted, if any.

        A key that is there, recent or pinned, gets the owner and value and keeps its place.
        """
        cdef uint64_t hi, lo
        cdef TokenEntry evicted
        split(key, &hi, &lo)
        if self.c_add(hi, lo, owner, value, &evicted) == 1:
            return <object> evicted.hi << 64 | evicted.lo
        return None

    def pin(self, key) -> bool:
        """Move a recent key to the pinned ones; tell whether it was recent."""
        cdef uint64_t hi, lo
        split(key, &hi, &lo)
        return self.c_pin(hi, lo)

    def unpin(self, key, bint retain=True) -> int | None:
        """Make a pinned key the newest recent one, or forget it if not ``retain``.

        Return the key evicted for it, if any. A key that is not pinned stays as it is.
        """
        cdef uint64_t hi, lo
        cdef TokenEntry evicted
        split(key, &hi, &lo)
        if self.c_unpin(hi, lo, retain, &evicted) == 1:
            return <object> evicted.hi << 64 | evicted.lo
        return None

    def delete(self, key) -> bool:
        """Forget a key of either tier; tell whether it was there."""
        cdef uint64_t hi, lo
        split(key, &hi, &lo)
        return self.c_delete(hi, lo)

    def delete_owner(self, uint32_t owner, bint pins=True) -> int:
        """Forget all keys of one owner; return how many. O(n).

        Without ``pins`` those that are pinned stay, and are of owner 0 then.
        """
        return self.c_delete_owner(owner, pins)

    def get(self, key) -> tuple[int, int] | None:
        """Return (owner, value) of a key, or None."""
        cdef uint64_t hi, lo
        cdef TokenEntry entry
        split(key, &hi, &lo)
        if not self.c_get(hi, lo, &entry):
            return None
        return entry.owner, entry.value

    def hydrate(self, entries) -> None:
        """Forget everything, then add each (key, owner, value), oldest first."""
        self.c_clear()
        for key, owner, value in entries:
            self.add(key, owner, value)

    def clear(self) -> None:
        """Forget everything and give the memory back."""
        self.c_clear()

    def pinned(self) -> list[int]:
        """Return the pinned keys, in no particular order; O(n)."""
        cdef uint32_t slot
        cdef list out = []
        for slot in range(1, self.n_slots):
            if self.slots[slot].token == PINNED:
                out.append(self.c_entry_key(slot))
        return out

    def __contains__(self, key) -> bool:
        cdef uint64_t hi, lo
        split(key, &hi, &lo)
        return self.c_contains(hi, lo)

    def __len__(self) -> int:
        return self.n_recent + self.n_pinned

    def __iter__(self):
        """Iterate over a copy of the recent keys, oldest first."""
        cdef Py_ssize_t i
        cdef list out = []
        for i in range(self.head, self.tail):
            if self.slots[self.order[i]].token == self.base + <uint64_t> i:
                out.append(self.c_entry_key(self.order[i]))
        return iter(out)

    @property
    def nbytes(self) -> int:
        """Bytes held beside the object itself."""
        return self.c_nbytes()

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + self.c_nbytes()

    def __reduce__(self):
        raise TypeError("CompletionTokens cannot be pickled")

    def _check(self) -> None:
        """Verify every invariant; O(n)."""
        cdef Py_ssize_t i, recent = 0, pinned = 0, free = 0
        cdef uint32_t slot
        cdef TokenSlot *s
        self.table._check()
        assert 0 <= self.head <= self.tail <= self.n_order_places, (self.head, self.tail)
        assert self.tail <= 3 * <Py_ssize_t> self.cap + 1, (self.head, self.tail, self.cap)
        assert self.tail - self.head <= 2 * <Py_ssize_t> self.cap + 1, (self.head, self.tail, self.cap)
        for slot in range(1, self.n_slots):
            s = &self.slots[slot]
            if s.token == UNUSED:
                free += 1
                continue
            assert self.c_slot(s.entry.hi, s.entry.lo) == slot, f"slot {slot} is not found by its key"
            if s.token == PINNED:
                pinned += 1
                continue
            recent += 1
            i = <Py_ssize_t> (s.token - self.base)
            assert self.head <= i < self.tail, f"slot {slot} at {i} of {self.head} .. {self.tail}"
            assert self.order[i] == slot, f"place {i} holds {self.order[i]}, not {slot}"
        assert recent == self.n_recent, f"n_recent is {self.n_recent}, counted {recent}"
        assert pinned == self.n_pinned, f"n_pinned is {self.n_pinned}, counted {pinned}"
        assert recent <= self.cap, (recent, self.cap)
        assert len(self.table) == recent + pinned, (len(self.table), recent, pinned)
        slot = self.free_slot
        while slot != 0:
            assert self.slots[slot].token == UNUSED, f"free slot {slot} is in use"
            free -= 1
            slot = self.slots[slot].entry.value
        assert free == 0, f"{free} unused slots are not in the free list"
