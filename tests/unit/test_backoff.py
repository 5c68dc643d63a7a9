"""The arithmetic of waits, row by row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcore.engine.backoff import backoff_ms

TABLE = json.loads((Path(__file__).parent.parent / "data" / "backoff.json").read_text())
HOUR = 3_600_000
uniform = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize("row", TABLE["rows"], ids=lambda row: f"{row['attempts']}-{row['backoff']['type']}")
def test_exact_waits(row: dict[str, Any]) -> None:
    backoff = row["backoff"]
    waits = [
        backoff_ms(
            n, backoff["delay_ms"], kind=backoff["type"], cap_ms=backoff["max_delay_ms"], jitter=0, r=0.7
        )
        for n in range(1, row["attempts"])
    ]
    assert all(type(wait) is int for wait in waits)
    assert len(waits) == row["delays_total"] == row["runs"] - 1
    assert waits[: len(row["delays_ms"])] == row["delays_ms"]
    assert (waits[-1] if waits else None) == row["last_delay_ms"]


@pytest.mark.parametrize("row", TABLE["bounds"])
@given(r=uniform)
def test_jitter_only_shortens(row: dict[str, Any], r: float) -> None:
    backoff = row["backoff"]
    wait = backoff_ms(row["retry"], backoff["delay_ms"], kind=backoff["type"], jitter=row["jitter"], r=r)
    assert row["low_ms"] <= wait <= row["high_ms"]


@given(attempt=st.integers(1, 2**31), base=st.integers(0, 2**32), r=uniform, cap=st.integers(0, 86_400_000))
def test_the_wire_formula(attempt: int, base: int, r: float, cap: int) -> None:
    exponential = backoff_ms(attempt, base, cap_ms=cap, r=r)
    fixed = backoff_ms(attempt, base, kind="fixed", cap_ms=cap, r=r)
    assert fixed == round(min(cap, base * (0.8 + 0.4 * r)))
    if attempt < 40:
        assert exponential == round(min(cap, base * 2**attempt * (0.5 + r)))
    else:
        assert exponential == (cap if base else 0)


def test_the_first_retry_of_the_wire_is_around_twice_the_base() -> None:
    assert [backoff_ms(1, 1000, r=r) for r in (0, 0.5, 0.999)] == [1000, 2000, 2998]
    assert backoff_ms(1, 1000, kind="fixed", r=0.5) == 1000


def test_without_a_cap_an_hour_is_the_most() -> None:
    for kind in ("fixed", "exponential"):
        for jitter in (None, 0):
            assert backoff_ms(50, 10 * HOUR, kind=kind, jitter=jitter, r=0.9) == HOUR


@pytest.mark.parametrize("base", [0, -1, -0.0])
@pytest.mark.parametrize("kind", ["fixed", "exponential"])
@pytest.mark.parametrize("jitter", [None, 0, 1])
def test_no_base_no_wait(base: float, kind: str, jitter: float | None) -> None:
    assert backoff_ms(7, base, kind=kind, jitter=jitter, r=0.9) == 0
