from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable

import pytest

from qcore.reference import CompletionTokens as PlainCompletionTokens
from qcore.structs import CompletionTokens

BOTH = pytest.mark.parametrize("make", [CompletionTokens, PlainCompletionTokens], ids=["compiled", "plain"])
Make = Callable[..., CompletionTokens]


@BOTH
def test_oldest_is_evicted_first(make: Make) -> None:
    t = make(3)
    assert [t.add(key, 1) for key in (10, 11, 12, 13, 14)] == [None, None, None, 10, 11]
    assert list(t) == [12, 13, 14]
    assert 10 not in t
    assert t.get(10) is None
    assert t.n_recent == len(t) == 3
    t._check()


@BOTH
def test_cap_of_one(make: Make) -> None:
    t = make(1)
    assert [t.add(key, 0) for key in range(5)] == [None, 0, 1, 2, 3]
    assert list(t) == [4]
    t._check()


@BOTH
def test_cap_below_one_is_refused(make: Make) -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        make(0)


@BOTH
def test_add_again_updates_and_keeps_the_place(make: Make) -> None:
    t = make(3)
    for key in (1, 2, 3):
        t.add(key, 7, key)
    assert t.add(1, 8, 99) is None
    assert t.get(1) == (8, 99)
    assert list(t) == [1, 2, 3]
    assert t.add(4, 7) == 1


@BOTH
def test_deleted_and_added_again_is_the_newest(make: Make) -> None:
    # The place of the first occurrence must neither evict nor revive the key.
    t = make(3)
    for key in (1, 2, 3):
        t.add(key, 0)
    assert t.delete(1)
    assert not t.delete(1)
    assert t.add(1, 0) is None
    assert list(t) == [2, 3, 1]
    assert t.add(4, 0) == 2
    assert list(t) == [3, 1, 4]


@BOTH
def test_pinned_keys_are_outside_the_cap(make: Make) -> None:
    t = make(2)
    for key in (1, 2):
        t.add(key, 5, key)
    assert t.pin(1)
    assert not t.pin(1)
    assert not t.pin(9)
    assert [t.add(key, 5) for key in (3, 4, 5)] == [None, 2, 3]
    assert 1 in t
    assert t.get(1) == (5, 1)
    assert (t.n_recent, t.n_pinned, len(t)) == (2, 1, 3)
    assert t.pinned() == [1]
    assert t.add(1, 6, 7) is None
    assert t.get(1) == (6, 7)
    assert t.pinned() == [1]


@BOTH
def test_unpin(make: Make) -> None:
    t = make(2)
    for key in (1, 2):
        t.add(key, key)
    t.pin(1)
    t.add(3, 3)
    assert t.unpin(1) == 2
    assert list(t) == [3, 1]
    assert t.get(1) == (1, 0)
    assert t.unpin(1) is None
    assert list(t) == [3, 1]
    t.pin(3)
    assert t.unpin(3, retain=False) is None
    assert 3 not in t
    assert t.unpin(3) is None
    assert list(t) == [1]
    t._check()


@BOTH
def test_delete_pinned(make: Make) -> None:
    t = make(2)
    t.add(1, 1)
    t.pin(1)
    assert t.delete(1)
    assert len(t) == 0
    t._check()


@BOTH
def test_delete_owner_spares_the_others(make: Make) -> None:
    t = make(10)
    for key in range(10):
        t.add(key, key % 2)
    t.pin(2)
    t.pin(3)
    assert t.delete_owner(0) == 5
    assert t.delete_owner(0) == 0
    assert list(t) == [1, 5, 7, 9]
    assert t.pinned() == [3]
    t._check()


@BOTH
def test_hydrate_replaces(make: Make) -> None:
    t = make(3)
    t.add(1, 1)
    t.pin(1)
    t.hydrate((key, 1, key) for key in (5, 6, 7, 8))
    assert list(t) == [6, 7, 8]
    assert t.pinned() == []
    assert t.get(8) == (1, 8)


@BOTH
def test_clear_forgets_former_occurrences(make: Make) -> None:
    t = make(3)
    for key in (1, 2, 3):
        t.add(key, 0)
    t.clear()
    assert len(t) == 0
    for key in (3, 2, 1):
        assert t.add(key, 0) is None
    assert list(t) == [3, 2, 1]
    t._check()


@BOTH
def test_keys_of_128_bits(make: Make) -> None:
    keys = [0, 1, 2**64 - 1, 2**64, 2**127, 2**128 - 1]
    t = make(10)
    for key in keys:
        t.add(key, 2**32 - 1, 2**32 - 1)
    assert list(t) == keys
    assert t.get(2**128 - 1) == (2**32 - 1, 2**32 - 1)


@pytest.mark.parametrize("key", [-1, 2**128])
def test_other_keys_are_refused(key: int) -> None:
    t = CompletionTokens(2)
    with pytest.raises(OverflowError, match="key must be"):
        t.add(key, 0)
    with pytest.raises(OverflowError):
        t.add(0, 2**32)
    assert len(t) == 0


@pytest.mark.parametrize("cap", [1, 2, 7, 100])
@pytest.mark.parametrize("seed", range(3))
def test_against_the_plain_form(cap: int, seed: int) -> None:
    rng = random.Random(seed)
    t = CompletionTokens(cap, seed)
    plain = PlainCompletionTokens(cap)
    for step in range(5000):
        key = rng.randrange(3 * cap) << rng.choice([0, 64])
        match rng.randrange(10):
            case 0 | 1 | 2 | 3 | 4:
                assert t.add(key, key % 5, step) == plain.add(key, key % 5, step)
            case 5 | 6:
                assert t.delete(key) == plain.delete(key)
            case 7:
                assert t.pin(key) == plain.pin(key)
            case 8:
                retain = rng.random() < 0.7
                assert t.unpin(key, retain) == plain.unpin(key, retain)
            case 9:
                assert t.get(key) == plain.get(key)
        if step % 250 == 0:
            t._check()
            assert list(t) == list(plain)
            assert sorted(t.pinned()) == sorted(plain.pinned())
    t._check()
    assert list(t) == list(plain)


def test_stale_places_are_bounded() -> None:
    t = CompletionTokens(1000)
    for key in range(1000):
        t.add(key, 0)
    full = t.nbytes
    for i in range(50_000):
        t.delete(i % 1000)
        t.add(i % 1000, 0)
    t._check()
    assert t.nbytes <= full + 4 * 4 * 1000


def test_bytes_per_key() -> None:
    t = CompletionTokens(50_000)
    for key in range(200_000):
        t.add(key, 0)
    assert len(t) == 50_000
    assert t.nbytes / len(t) <= 75


def test_memory_of_a_flood_of_pins_is_given_back() -> None:
    t = CompletionTokens(10)
    for key in range(10_000):
        t.add(key, 0)
        t.pin(key)
    for key in range(10_000):
        t.unpin(key, retain=False)
    t._check()
    assert t.nbytes < 1000


def test_sizeof_counts_the_storage() -> None:
    t = CompletionTokens(10)
    empty = sys.getsizeof(t)
    t.add(1, 1)
    assert sys.getsizeof(t) == empty + t.nbytes


def test_not_pickled() -> None:
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(CompletionTokens())
