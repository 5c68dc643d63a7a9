from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcore.reference import SkipList as PlainSkipList
from qcore.structs import SkipList

BOTH = pytest.mark.parametrize("make", [SkipList, PlainSkipList], ids=["compiled", "plain"])
Make = Callable[[], SkipList]
LEAST, MOST = -(2**63), 2**63 - 1


@BOTH
def test_empty(make: Make) -> None:
    s = make()
    assert len(s) == s.n == 0
    assert list(s) == []
    assert not s.remove(0, 0, 0)
    with pytest.raises(IndexError, match="empty"):
        s.first()
    with pytest.raises(IndexError, match="empty"):
        s.pop()
    s._check()


@BOTH
def test_order_is_by_a_then_b_then_c(make: Make) -> None:
    keys = [(a, b, c) for a in (-1, 0, 2) for b in (-5, 0, 5) for c in (LEAST, 0, MOST)]
    shuffled = random.Random(3).sample(keys, len(keys))
    s = make()
    for i, key in enumerate(shuffled):
        s.insert(*key, i)
    s._check()
    assert [entry[:3] for entry in s] == keys
    assert s.first()[:3] == keys[0]
    assert [s.pop()[:3] for _ in keys] == keys


@BOTH
@pytest.mark.parametrize("key", [(LEAST,) * 3, (MOST,) * 3, (0, 0, 0)])
def test_bounds_of_keys_and_values(make: Make, key: tuple[int, int, int]) -> None:
    s = make()
    s.insert(*key, 0)
    s.insert(0, 0, 1, 2**32 - 1)
    assert s.remove(*key)
    assert s.pop() == (0, 0, 1, 2**32 - 1)


@pytest.mark.parametrize("bad", [(MOST + 1, 0, 0, 0), (0, LEAST - 1, 0, 0), (0, 0, 0, -1), (0, 0, 0, 2**32)])
def test_numbers_out_of_range_are_refused(bad: tuple[int, int, int, int]) -> None:
    s = SkipList()
    with pytest.raises(OverflowError):
        s.insert(*bad)
    assert len(s) == 0


@BOTH
def test_duplicate_key_is_refused_and_changes_nothing(make: Make) -> None:
    s = make()
    for i in range(10):
        s.insert(i % 2, 0, i, i)
    before = list(s)
    for a, b, c, _ in before:
        with pytest.raises(ValueError, match=rf"\({a}, {b}, {c}\)"):
            s.insert(a, b, c, 99)
    s._check()
    assert list(s) == before


@BOTH
def test_iteration_is_over_a_copy(make: Make) -> None:
    s = make()
    for i in range(5):
        s.insert(0, 0, i, i)
    seen = []
    for entry in s:
        seen.append(entry[3])
        s.remove(*entry[:3])
    assert seen == [0, 1, 2, 3, 4]
    assert len(s) == 0


@BOTH
def test_clear(make: Make) -> None:
    s = make()
    for i in range(100):
        s.insert(0, 0, i, i)
    s.clear()
    s._check()
    assert list(s) == []
    s.insert(0, 0, 1, 1)
    assert s.pop() == (0, 0, 1, 1)


PARTS = st.sampled_from([LEAST, -(2**40), -257, -1, 0, 1, 255, 256, 2**33 + 7, MOST])


@BOTH
@given(keys=st.lists(st.tuples(PARTS, PARTS, PARTS), unique=True, max_size=60))
def test_filled_from_any_order(make: Make, keys: list[tuple[int, int, int]]) -> None:
    s = make()
    s.fill([(*key, i) for i, key in enumerate(keys)])
    s._check()
    assert list(s) == sorted((*key, i) for i, key in enumerate(keys))


@BOTH
@pytest.mark.parametrize("ordered_by", [0, 1, 2, 3], ids=["nothing", "c", "b and c", "all"])
def test_a_filled_list_is_like_any_other(make: Make, ordered_by: int) -> None:
    rng = random.Random(ordered_by)
    keys = [(rng.randrange(-500, 500), rng.randrange(3), c) for c in rng.sample(range(-(2**50), 2**50), 3000)]
    if ordered_by:
        keys.sort(key=lambda key: key[3 - ordered_by :])
    s, plain = make(), PlainSkipList()
    s.fill([(*key, i) for i, key in enumerate(keys)])
    for i, key in enumerate(keys):
        plain.insert(*key, i)
    assert list(s) == list(plain)
    for i, key in enumerate(rng.sample(keys, 1000)):
        assert s.remove(*key)
        assert plain.remove(*key)
        new = (key[0], key[1] + 1, 2**60 + i)
        s.insert(*new, i)
        plain.insert(*new, i)
    s._check()
    assert [s.pop() for _ in range(len(s))] == list(plain)


@BOTH
def test_what_a_list_is_not_filled_from(make: Make) -> None:
    s = make()
    with pytest.raises(ValueError, match=r"\(1, 2, 3\) comes twice"):
        s.fill([(1, 2, 3, 4), (0, 0, 0, 0), (1, 2, 3, 5)])
    s._check()
    assert len(s) == 0
    s.fill([])
    s.insert(0, 0, 0, 0)
    with pytest.raises(ValueError, match="has 1 entries"):
        s.fill([(1, 1, 1, 1)])
    assert list(s) == [(0, 0, 0, 0)]


def order_of_arrival(i: int) -> tuple[int, int, int]:
    return 0, 0, i


def newest_first(i: int) -> tuple[int, int, int]:
    return 0, -1, -i


def both_ends_of_one_priority(i: int) -> tuple[int, int, int]:
    return (0, -1, -i) if i % 2 else (0, 0, i)


def few_priorities(i: int) -> tuple[int, int, int]:
    return i * 7 % 5, 0, i


def more_priorities_than_fingers(i: int) -> tuple[int, int, int]:
    return i * 7 % 23, 0, i


def back_and_forth_in_a_run(i: int) -> tuple[int, int, int]:
    return 0, i * 769 % 997, i


@pytest.mark.parametrize(
    "key_of",
    [
        order_of_arrival,
        newest_first,
        both_ends_of_one_priority,
        few_priorities,
        more_priorities_than_fingers,
        back_and_forth_in_a_run,
    ],
)
def test_patterns_of_arrival(key_of: Callable[[int], tuple[int, int, int]]) -> None:
    s = SkipList()
    plain = PlainSkipList()
    s.insert(50, 0, 0, 0)
    plain.insert(50, 0, 0, 0)
    for i in range(1, 4000):
        s.insert(*key_of(i), i)
        plain.insert(*key_of(i), i)
        if i % 3 == 0:
            assert s.pop() == plain.pop()
        if i % 500 == 0:
            s._check()
    assert list(s) == list(plain)


@pytest.mark.parametrize("seed", range(6))
def test_long_random_runs(seed: int) -> None:
    rng = random.Random(seed)
    s = SkipList(seed)
    plain = PlainSkipList()
    for step in range(8000):
        choice = rng.random()
        if choice < (0.8 if step // 2000 % 2 == 0 else 0.3):
            b = rng.choice([-1, 0, 0, rng.randrange(10)])
            key = (rng.randrange(rng.choice([1, 3, 12])), b, -step if b < 0 else step)
            s.insert(*key, step)
            plain.insert(*key, step)
        elif choice < 0.9 and len(plain):
            assert s.pop() == plain.pop()
        elif len(plain):
            key = rng.choice(plain._entries)[:3]
            assert s.remove(*key)
            assert plain.remove(*key)
            assert not s.remove(*key)
        if step % 400 == 0:
            s._check()
            assert list(s) == list(plain)
    s._check()
    assert list(s) == list(plain)


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_equal_seeds_build_equal_lists(seed: int) -> None:
    lists = [SkipList(seed), SkipList(seed)]
    for s in lists:
        for i in range(5000):
            s.insert(0, 0, i, i)
    assert lists[0].nbytes == lists[1].nbytes


def test_bytes_per_entry() -> None:
    s = SkipList()
    for i in range(100_000):
        s.insert(i % 3, 0, i, i)
    assert s.nbytes / len(s) <= 38


def test_a_short_list_is_small() -> None:
    s = SkipList()
    assert s.nbytes == 0
    for i in range(10):
        s.insert(0, 0, i, i)
    assert s.nbytes <= 1100


def test_emptied_and_refilled_does_not_grow() -> None:
    s = SkipList()
    sizes = []
    for _ in range(5):
        for i in range(20_000):
            s.insert(i % 4, 0, i, i)
        sizes.append(s.nbytes)
        while len(s):
            s.pop()
        assert s.nbytes <= 5000
        s._check()
    assert max(sizes) <= 1.05 * sizes[0]


def test_a_queue_that_never_empties_does_not_grow() -> None:
    s = SkipList()
    for i in range(2000):
        s.insert(0, 0, i, i)
    size = s.nbytes
    for i in range(2000, 50_000):
        s.insert(0, 0, i, i)
        s.pop()
    assert s.nbytes <= 1.3 * size


def test_memory_of_a_flood_is_given_back_without_emptying() -> None:
    s = SkipList()
    for i in range(50_000):
        s.insert(i % 20, 0, i, i)
    flood = s.nbytes
    for i in range(50_000):
        if i % 100:
            assert s.remove(i % 20, 0, i)
    s.insert(99, 0, 0, 0)
    s._check()
    assert s.nbytes < flood / 20
    assert [entry[3] for entry in s] == [
        i for a in range(20) for i in range(0, 50_000, 100) if i % 20 == a
    ] + [0]
    for i in range(1000):
        s.insert(i % 20, 0, 100_000 + i, i)
    s._check()


def test_sizeof_counts_the_storage() -> None:
    s = SkipList()
    empty = sys.getsizeof(s)
    s.insert(0, 0, 0, 0)
    assert sys.getsizeof(s) == empty + s.nbytes


def test_not_pickled() -> None:
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(SkipList())


def test_compaction_forgets_the_runs() -> None:
    # A finger from before it, used again after it, leads into memory that was given back.
    s = SkipList(7)
    for c in range(6000):
        s.insert(9, 0, c, c)
    for a in range(5):  # a finger each, before the end of the list
        s.insert(a, 0, 0, 0)
    for c in range(5990):
        assert s.remove(9, 0, c)
    before = s.nbytes
    s.insert(5, 0, 0, 0)
    assert s.nbytes < before  # it compacted
    s._check()
    for a in range(5):
        s.insert(a, 0, 1, 1)
        s._check()
    assert [entry[:2] for entry in s][:10] == [(a, 0) for a in range(5) for _ in range(2)]


@pytest.mark.parametrize("seed", range(4))
def test_many_runs_through_growth_and_compaction(seed: int) -> None:
    rng = random.Random(seed)
    s, twin, alive, compacted = SkipList(seed + 1), PlainSkipList(), [], 0
    for round_ in range(12):
        for _ in range(4000 if round_ % 2 == 0 else 300):
            key = (rng.randrange(6), rng.choice((-1, 1)) * rng.randrange(3), len(alive) + round_ * 10**6)
            before = s.nbytes
            s.insert(*key, 1)
            compacted += s.nbytes < before
            twin.insert(*key, 1)
            alive.append(key)
        rng.shuffle(alive)
        while len(alive) > 60:
            key = alive.pop()
            assert s.remove(*key)
            assert twin.remove(*key)
        s._check()
        assert list(s) == list(twin)
    assert compacted >= 5
