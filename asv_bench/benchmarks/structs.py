"""The structures of ``qcore.structs``: time of operations and bytes per entry.

Asks what a waiting, a timed and a finished job cost, and how that grows with their number.
"""

from __future__ import annotations

import random

from qcore.structs import CompletionTokens, DelayHeap, IdTable, SkipList

SIZES = (1_000, 10_000, 100_000)
BATCH = 1_000


class SkipListArrivals:
    """Does an insertion and a removal of the first stay O(1) while priorities are few?"""

    params = (SIZES, (1, 10, 0))
    param_names = ("waiting", "priorities (0: all differ)")

    def setup(self, waiting: int, priorities: int) -> None:
        rng = random.Random(1)
        self.list = SkipList()
        self.keys = []
        for i in range(waiting + BATCH):
            a = rng.randrange(priorities) if priorities else rng.getrandbits(60)
            if i < waiting:
                self.list.insert(a, 0, i, 1)
            else:
                self.keys.append((a, 0, i))

    def time_insert_and_remove(self, waiting: int, priorities: int) -> None:
        """Insert 1,000 entries, then remove them by key, so that the size stays."""
        insert, remove = self.list.insert, self.list.remove
        for a, b, c in self.keys:
            insert(a, b, c, 1)
        for a, b, c in self.keys:
            remove(a, b, c)

    def track_bytes(self, waiting: int, priorities: int) -> float:
        return self.list.nbytes / waiting

    track_bytes.unit = "bytes/entry"  # type: ignore[attr-defined]


class SkipListFlow:
    """What does a job cost that waits behind others of its priority?"""

    params = SIZES
    param_names = ("waiting",)

    def setup(self, waiting: int) -> None:
        self.list = SkipList()
        for i in range(waiting):
            self.list.insert(0, 0, i, 1)
        self.sequence = waiting

    def time_insert_and_pop(self, waiting: int) -> None:
        """1,000 times: insert at the end, pop the first."""
        insert, pop = self.list.insert, self.list.pop
        for c in range(self.sequence, self.sequence + BATCH):
            insert(0, 0, c, 1)
            pop()
        self.sequence += BATCH


class DelayHeapTimes:
    """What do timers cost that are set, moved and cancelled?"""

    params = SIZES
    param_names = ("timers",)

    def setup(self, timers: int) -> None:
        rng = random.Random(1)
        self.heap = DelayHeap()
        self.handles = [self.heap.push(rng.getrandbits(40), i, 1) for i in range(timers)]
        self.moved = [(rng.choice(self.handles), rng.getrandbits(40)) for _ in range(BATCH)]
        self.dues = [rng.getrandbits(40) for _ in range(BATCH)]

    def time_push_and_remove(self, timers: int) -> None:
        push, remove = self.heap.push, self.heap.remove
        for handle in [push(due, 0, 1) for due in self.dues]:
            remove(handle)

    def time_push_and_pop(self, timers: int) -> None:
        push, pop = self.heap.push, self.heap.pop
        for due in self.dues:
            push(due, 0, 1)
            pop()

    def time_change(self, timers: int) -> None:
        change = self.heap.change
        for handle, due in self.moved:
            change(handle, due, 0)

    def track_bytes(self, timers: int) -> float:
        return self.heap.nbytes / timers

    track_bytes.unit = "bytes/entry"  # type: ignore[attr-defined]


class CompletionTokensFull:
    """What does a completion cost once the cap is reached?"""

    params = SIZES
    param_names = ("cap",)

    def setup(self, cap: int) -> None:
        self.rng = random.Random(1)
        self.tokens = CompletionTokens(cap)
        for _ in range(2 * cap):
            self.tokens.add(self.rng.getrandbits(128), 0)

    def time_add(self, cap: int) -> None:
        """Add 1,000 new keys, each of which evicts one."""
        add, draw = self.tokens.add, self.rng.getrandbits
        for _ in range(BATCH):
            add(draw(128), 0)

    def time_pin_and_unpin(self, cap: int) -> None:
        pin, unpin = self.tokens.pin, self.tokens.unpin
        keys = [key for key, _ in zip(self.tokens, range(BATCH), strict=False)]
        for key in keys:
            pin(key)
            unpin(key)

    def track_bytes(self, cap: int) -> float:
        return self.tokens.nbytes / len(self.tokens)

    track_bytes.unit = "bytes/entry"  # type: ignore[attr-defined]


class IdTableLookups:
    """What does it cost to find a job by its id, and to learn that there is none?"""

    params = SIZES
    param_names = ("ids",)

    def setup(self, ids: int) -> None:
        rng = random.Random(1)
        hashes = [rng.getrandbits(64) for _ in range(ids)]
        self.table = IdTable()
        for i, h in enumerate(hashes):
            self.table.put(h, i + 1)
        self.present = [rng.choice(hashes) for _ in range(BATCH)]
        self.absent = [rng.getrandbits(64) for _ in range(BATCH)]

    def time_find(self, ids: int) -> None:
        find = self.table.find
        for h in self.present:
            find(h)

    def time_find_absent(self, ids: int) -> None:
        find = self.table.find
        for h in self.absent:
            find(h)

    def time_put_and_delete(self, ids: int) -> None:
        put, delete = self.table.put, self.table.delete
        for h in self.absent:
            put(h, 1)
        for h in self.absent:
            delete(h, 1)

    def track_bytes(self, ids: int) -> float:
        return self.table.nbytes / ids

    track_bytes.unit = "bytes/entry"  # type: ignore[attr-defined]
