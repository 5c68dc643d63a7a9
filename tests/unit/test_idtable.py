from __future__ import annotations

import pickle
import random
import sys
from collections import Counter

import pytest

from qcore.structs import IdTable

MIX = 0x9E3779B97F4A7C15


def hash_with_tag(tag: int, low: int = 0) -> int:
    """A hash whose mixed upper half, the tag, is the given one."""
    return (tag << 32 | low) * pow(MIX, -1, 2**64) % 2**64


def test_empty() -> None:
    table = IdTable()
    assert len(table) == table.n == 0
    assert table.nbytes == 0
    assert table.find(1) == []
    assert not table.delete(1, 1)
    table._check()


def test_put_find_delete() -> None:
    table = IdTable()
    table.put(7, 70)
    table.put(8, 80)
    assert table.find(7) == [70]
    assert table.find(9) == []
    assert not table.delete(7, 80)
    assert table.delete(7, 70)
    assert not table.delete(7, 70)
    assert table.find(7) == []
    assert len(table) == 1


def test_slot_bounds() -> None:
    table = IdTable()
    table.put(1, 2**32 - 1)
    assert table.find(1) == [2**32 - 1]
    with pytest.raises(ValueError, match="slot must not be 0"):
        table.put(1, 0)
    with pytest.raises(OverflowError):
        table.put(1, 2**32)
    assert not table.delete(1, 0)


def test_equal_hashes_are_all_found() -> None:
    table = IdTable()
    for slot in range(1, 101):
        table.put(5, slot)
    table._check()
    assert sorted(table.find(5)) == list(range(1, 101))
    for slot in range(1, 101, 2):
        assert table.delete(5, slot)
    table._check()
    assert sorted(table.find(5)) == list(range(2, 101, 2))


def test_hashes_with_one_tag_are_candidates_for_each_other() -> None:
    table = IdTable()
    table.put(hash_with_tag(77, 1), 1)
    table.put(hash_with_tag(77, 2), 2)
    assert sorted(table.find(hash_with_tag(77, 3))) == [1, 2]
    assert table.find(hash_with_tag(78, 1)) == []


def test_deletion_in_a_cluster_that_wraps() -> None:
    # All homes are the last positions of the table, so the cluster goes on at its start.
    for victim in range(6):
        table = IdTable()
        hashes = [hash_with_tag(2**32 - 1 - i) for i in range(6)]
        for i, h in enumerate(hashes):
            table.put(h, i + 1)
        assert table.delete(hashes[victim], victim + 1)
        table._check()
        for i, h in enumerate(hashes):
            assert table.find(h) == ([] if i == victim else [i + 1])


def test_grows_and_shrinks() -> None:
    table = IdTable()
    rng = random.Random(1)
    keys = [rng.getrandbits(64) for _ in range(50_000)]
    for i, h in enumerate(keys):
        table.put(h, i + 1)
    table._check()
    assert 8 / (5 / 6) <= table.nbytes / len(table) <= 8 / (5 / 9) + 0.1
    assert all(i + 1 in table.find(h) for i, h in enumerate(keys))
    for i, h in enumerate(keys):
        assert table.delete(h, i + 1)
    table._check()
    assert len(table) == 0
    assert table.nbytes <= 1024


@pytest.mark.parametrize("seed", range(4))
def test_against_a_counter(seed: int) -> None:
    rng = random.Random(seed)
    table = IdTable()
    model: Counter[tuple[int, int]] = Counter()
    for step in range(6000):
        if rng.random() < (0.75 if step // 1500 % 2 == 0 else 0.2):
            entry = (rng.choice([rng.getrandbits(64), rng.randrange(6)]), rng.randrange(1, 50))
            table.put(*entry)
            model[entry] += 1
        elif model:
            entry = rng.choice(list(model))
            assert table.delete(*entry)
            model[entry] -= 1
            model += Counter()
        if step % 500 == 0:
            table._check()
    assert len(table) == model.total()
    for h in {entry[0] for entry in model}:
        assert Counter(table.find(h)) == Counter({s: k for (g, s), k in model.items() if g == h})


def test_clear() -> None:
    table = IdTable()
    table.put(1, 1)
    table.clear()
    assert table.find(1) == []
    assert (len(table), table.nbytes) == (0, 0)
    table.put(1, 2)
    assert table.find(1) == [2]


def test_sizeof_counts_the_storage() -> None:
    table = IdTable()
    empty = sys.getsizeof(table)
    table.put(1, 1)
    assert sys.getsizeof(table) == empty + table.nbytes


def test_not_pickled() -> None:
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(IdTable())
