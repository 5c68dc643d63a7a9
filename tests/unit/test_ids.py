"""Ids: their form, their order, and that a seed determines them."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcore.engine.engine import Engine
from qcore.engine.ids import IdSource

SEED = bytes(range(16))
NOW = 1_700_000_000_000


@given(seed=st.binary(min_size=16, max_size=16), times=st.lists(st.integers(0, 2**40), max_size=50))
def test_ids_grow_whatever_the_clock_does(seed: bytes, times: list[int]) -> None:
    source = IdSource(seed)
    ids = [source.next_id(ms) for ms in times]
    assert len(set(ids)) == len(ids)
    assert ids == sorted(ids)


def test_ids_grow_within_one_millisecond_and_borrow_from_the_next_when_it_is_full() -> None:
    source = IdSource(SEED)
    ids = [source.next_id(NOW) for _ in range(20_000)]
    assert ids == sorted(set(ids))
    ahead_ms = int(ids[-1].replace("-", "")[:12], 16) - NOW
    assert 4 <= ahead_ms <= 6
    assert source.next_id(NOW + ahead_ms + 1) > ids[-1]


def test_ids_are_uuids_of_version_7_in_canonical_form() -> None:
    source = IdSource(SEED)
    for ms in (0, NOW, NOW - 1, 2**47):
        text = source.next_id(ms)
        parsed = uuid.UUID(text)
        assert str(parsed) == text
        assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert uuid.UUID(IdSource(SEED).next_id(NOW)).int >> 80 == NOW


def test_a_seed_determines_everything() -> None:
    def life(seed: bytes) -> list[object]:
        engine = Engine(seed)
        ids = engine.push_many("q", [b"\xc0"] * 3, NOW)
        out: list[object] = [ids, engine.pull_many("q", 2, NOW, 0, lease_ms=5)]
        engine.pull("q", NOW, 0)
        engine.fail(ids[2], NOW)
        return [*out, engine.run_at_ms(ids[2])]

    assert life(SEED) == life(SEED)
    assert life(SEED) != life(bytes(16))


def test_tokens_have_the_form_of_ids_and_share_nothing_but_the_time() -> None:
    engine = Engine(SEED)
    engine.push_many("q", [b"\xc0"] * 1000, NOW)
    tokens = [token for _, token, _ in engine.pull_many("q", 1000, NOW, 0, lease_ms=5)]
    assert len({token[14:] for token in tokens}) == 1000
    assert all(uuid.UUID(token).version == 7 for token in tokens)
    assert tokens != sorted(tokens)


def test_uniform_numbers() -> None:
    source = IdSource(SEED)
    numbers = [source.uniform() for _ in range(10_000)]
    assert all(0 <= r < 1 for r in numbers)
    assert abs(sum(numbers) / len(numbers) - 0.5) < 0.02


@pytest.mark.parametrize("seed", [b"", bytes(15), bytes(17)])
def test_a_seed_of_another_length_is_refused(seed: bytes) -> None:
    with pytest.raises(ValueError, match="seed must be 16 bytes"):
        IdSource(seed)
    with pytest.raises(ValueError, match="seed must be 16 bytes"):
        Engine(seed)
