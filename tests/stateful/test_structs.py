"""Each structure against its plain twin and a third, foreign one, in random walks.

Few keys and many ties: collisions are where the errors are.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sortedcontainers import SortedDict, SortedList

from qcore import reference, structs


class SkipListMachine(RuleBasedStateMachine):
    a = st.integers(0, 9)
    b = st.integers(-1, 2)
    c = st.integers(-8, 8)

    @initialize(seed=st.integers(0, 2**64 - 1))
    def start(self, seed: int) -> None:
        self.compiled = structs.SkipList(seed)
        self.plain = reference.SkipList(seed)
        self.model: SortedDict[tuple[int, int, int], int] = SortedDict()
        self.sequence = 100

    def add(self, key: tuple[int, int, int], value: int) -> None:
        if key in self.model:
            for s in (self.compiled, self.plain):
                with pytest.raises(ValueError, match="already"):
                    s.insert(*key, value)
        else:
            self.compiled.insert(*key, value)
            self.plain.insert(*key, value)
            self.model[key] = value

    @rule(a=a, b=b, c=c, value=st.integers(0, 2**32 - 1))
    def insert(self, a: int, b: int, c: int, value: int) -> None:
        self.add((a, b, c), value)

    @rule(a=a, newest_first=st.booleans(), count=st.integers(1, 40))
    def arrive(self, a: int, newest_first: bool, count: int) -> None:
        for _ in range(count):
            self.sequence += 1
            self.add((a, -1, -self.sequence) if newest_first else (a, 0, self.sequence), self.sequence)

    @rule(count=st.integers(1, 30))
    def pop(self, count: int) -> None:
        for _ in range(min(count, len(self.model))):
            key, value = self.model.popitem(0)
            assert self.compiled.pop() == self.plain.pop() == (*key, value)

    @rule(a=a, b=b, c=c)
    def remove_maybe(self, a: int, b: int, c: int) -> None:
        there = self.model.pop((a, b, c), None) is not None
        assert self.compiled.remove(a, b, c) == self.plain.remove(a, b, c) == there

    @rule(a=a, b=b, c=c)
    def neighbours(self, a: int, b: int, c: int) -> None:
        i = self.model.bisect_left((a, b, c))
        entries = [(*key, value) for key, value in self.model.items()]
        for s in (self.compiled, self.plain):
            assert s.before(a, b, c) == (entries[i - 1] if i else None)
            assert s.first_from(a, b, c) == (entries[i] if i < len(entries) else None)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        key, _ = self.model.popitem(data.draw(st.integers(0, len(self.model) - 1)))
        assert self.compiled.remove(*key)
        assert self.plain.remove(*key)

    @rule()
    def clear(self) -> None:
        for s in (self.compiled, self.plain, self.model):
            s.clear()

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "model"):
            return
        self.compiled._check()
        self.plain._check()
        assert list(self.compiled) == list(self.plain) == [(*k, v) for k, v in self.model.items()]
        assert len(self.compiled) == len(self.plain) == len(self.model)
        if self.model:
            assert self.compiled.first() == self.plain.first()


class DelayHeapMachine(RuleBasedStateMachine):
    # Items are unique, times are not: among equal times either element may come first.
    due = st.integers(0, 5)
    tie = st.integers(0, 1)

    @initialize()
    def start(self) -> None:
        self.compiled = structs.DelayHeap()
        self.plain = reference.DelayHeap()
        self.model: SortedList[tuple[int, int, int]] = SortedList()
        self.handles: dict[int, tuple[int, int]] = {}
        self.times: dict[int, tuple[int, int]] = {}
        self.next_item = 0

    def forget(self, item: int) -> None:
        self.model.remove((*self.times.pop(item), item))
        del self.handles[item]

    @rule(due=due, tie=tie, count=st.integers(1, 20))
    def push(self, due: int, tie: int, count: int) -> None:
        for _ in range(count):
            item = self.next_item
            self.next_item += 1
            handle = self.compiled.push(due, tie, item)
            assert handle > 0
            assert handle not in {known for known, _ in self.handles.values()}
            self.handles[item] = (handle, self.plain.push(due, tie, item))
            self.times[item] = (due, tie)
            self.model.add((due, tie, item))

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), due=due, tie=tie)
    def change(self, data: st.DataObject, due: int, tie: int) -> None:
        item = data.draw(st.sampled_from(sorted(self.handles)))
        for heap, handle in zip((self.compiled, self.plain), self.handles[item], strict=True):
            heap.change(handle, due, tie)
        self.model.remove((*self.times[item], item))
        self.times[item] = (due, tie)
        self.model.add((due, tie, item))

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(sorted(self.handles)))
        for heap, handle in zip((self.compiled, self.plain), self.handles[item], strict=True):
            assert heap.remove(handle) == item
            assert handle not in heap
            with pytest.raises(KeyError):
                heap.remove(handle)
        self.forget(item)

    @rule(count=st.integers(1, 15))
    def pop(self, count: int) -> None:
        for _ in range(min(count, len(self.model))):
            due, tie, item = self.compiled.pop()
            assert (due, tie) == self.model[0][:2] == self.plain.first()[:2]
            assert (due, tie, item) in self.model
            assert self.plain.remove(self.handles[item][1]) == item
            self.forget(item)

    @rule()
    def drain_like_heapq(self) -> None:
        twin = self.model.copy()
        heap = list(twin)
        heapq.heapify(heap)
        drained = structs.DelayHeap()
        for element in reversed(list(twin)):
            drained.push(*element)
        assert [drained.pop()[:2] for _ in range(len(drained))] == [heapq.heappop(heap)[:2] for _ in twin]

    @rule()
    def clear(self) -> None:
        for heap in (self.compiled, self.plain, self.model, self.handles, self.times):
            heap.clear()

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "model"):
            return
        self.compiled._check()
        self.plain._check()
        assert sorted(self.compiled.items()) == sorted(self.plain.items()) == list(self.model)
        assert len(self.compiled) == len(self.plain) == len(self.model)
        if self.model:
            assert self.compiled.first()[:2] == self.plain.first()[:2] == self.model[0][:2]


class CompletionTokensMachine(RuleBasedStateMachine):
    key = st.integers(0, 7).map(lambda n: n << 62)
    owner = st.integers(0, 2)

    @initialize(cap=st.integers(1, 5), seed=st.integers(0, 2**64 - 1))
    def start(self, cap: int, seed: int) -> None:
        self.cap = cap
        self.both = (structs.CompletionTokens(cap, seed), reference.CompletionTokens(cap, seed))
        self.recent: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self.pinned: dict[int, tuple[int, int]] = {}

    def newest(self, key: int, entry: tuple[int, int]) -> int | None:
        evicted = self.recent.popitem(last=False)[0] if len(self.recent) >= self.cap else None
        self.recent[key] = entry
        return evicted

    @rule(key=key, owner=owner, value=st.integers(0, 9))
    def add(self, key: int, owner: int, value: int) -> None:
        evicted = None
        if key in self.pinned:
            self.pinned[key] = (owner, value)
        elif key in self.recent:
            self.recent[key] = (owner, value)
        else:
            evicted = self.newest(key, (owner, value))
        for t in self.both:
            assert t.add(key, owner, value) == evicted

    @rule(key=key)
    def pin(self, key: int) -> None:
        there = key in self.recent
        if there:
            self.pinned[key] = self.recent.pop(key)
        for t in self.both:
            assert t.pin(key) == there

    @rule(key=key, retain=st.booleans())
    def unpin(self, key: int, retain: bool) -> None:
        evicted = None
        if key in self.pinned:
            entry = self.pinned.pop(key)
            evicted = self.newest(key, entry) if retain else None
        for t in self.both:
            assert t.unpin(key, retain) == evicted

    @rule(key=key)
    def delete(self, key: int) -> None:
        there = self.recent.pop(key, None) or self.pinned.pop(key, None)
        for t in self.both:
            assert t.delete(key) == (there is not None)

    @rule(owner=owner, pins=st.booleans())
    def delete_owner(self, owner: int, pins: bool) -> None:
        tiers = (self.recent, self.pinned) if pins else (self.recent,)
        gone = [k for tier in tiers for k, entry in tier.items() if entry[0] == owner]
        if not pins:
            for key, (whose, value) in self.pinned.items():
                self.pinned[key] = (0 if whose == owner else whose, value)
        for key in gone:
            self.recent.pop(key, None)
            self.pinned.pop(key, None)
        for t in self.both:
            assert t.delete_owner(owner, pins) == len(gone)

    @rule(entries=st.lists(st.tuples(key, owner, st.integers(0, 9)), max_size=8))
    def hydrate(self, entries: list[tuple[int, int, int]]) -> None:
        self.recent.clear()
        self.pinned.clear()
        for key, owner, value in entries:
            if key in self.recent:
                self.recent[key] = (owner, value)
            else:
                self.newest(key, (owner, value))
        for t in self.both:
            t.hydrate(entries)

    @rule()
    def clear(self) -> None:
        for t in (*self.both, self.recent, self.pinned):
            t.clear()

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "both"):
            return
        for t in self.both:
            t._check()
            assert list(t) == list(self.recent)
            assert sorted(t.pinned()) == sorted(self.pinned)
            assert (t.n_recent, t.n_pinned) == (len(self.recent), len(self.pinned))
            for key in (n << 62 for n in range(8)):
                assert t.get(key) == (self.recent.get(key) or self.pinned.get(key))
                assert (key in t) == (key in self.recent or key in self.pinned)


class IdTableMachine(RuleBasedStateMachine):
    # Hashes of one tag, of neighbouring homes at both ends of the table, and others.
    hash = st.sampled_from(
        [
            (tag << 32 | low) * pow(0x9E3779B97F4A7C15, -1, 2**64) % 2**64
            for tag in (0, 1, 2**31, 2**32 - 2, 2**32 - 1)
            for low in (0, 1)
        ]
    )
    slot = st.integers(1, 4)

    @initialize()
    def start(self) -> None:
        self.table = structs.IdTable()
        self.model: SortedList[tuple[int, int]] = SortedList()

    @rule(hash=hash, slot=slot, count=st.integers(1, 12))
    def put(self, hash: int, slot: int, count: int) -> None:
        for _ in range(count):
            self.table.put(hash, slot)
            self.model.add((hash, slot))

    @rule(hash=hash, slot=slot)
    def delete(self, hash: int, slot: int) -> None:
        there = (hash, slot) in self.model
        # An entry of another hash with the same tag is as good to the table.
        twin = next(((h, s) for h, s in self.model if s == slot and self.tag(h) == self.tag(hash)), None)
        assert self.table.delete(hash, slot) == (twin is not None)
        if there:
            self.model.remove((hash, slot))
        elif twin:
            self.model.remove(twin)

    @staticmethod
    def tag(hash: int) -> int:
        return hash * 0x9E3779B97F4A7C15 % 2**64 >> 32

    @rule()
    def clear(self) -> None:
        self.table.clear()
        self.model.clear()

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "model"):
            return
        self.table._check()
        assert len(self.table) == len(self.model)
        for hash in {h for h, _ in self.model}:
            expected = [s for h, s in self.model if self.tag(h) == self.tag(hash)]
            assert sorted(self.table.find(hash)) == sorted(expected)


STEPS = settings(stateful_step_count=60, deadline=None)

TestSkipList = SkipListMachine.TestCase
TestDelayHeap = DelayHeapMachine.TestCase
TestCompletionTokens = CompletionTokensMachine.TestCase
TestIdTable = IdTableMachine.TestCase
for case in (TestSkipList, TestDelayHeap, TestCompletionTokens, TestIdTable):
    case.settings = STEPS
