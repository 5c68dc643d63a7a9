"""Seconds in, milliseconds out."""

from __future__ import annotations

import math
import re
import threading
from datetime import UTC, datetime, timedelta

import pytest

from qclient import ConfigError
from qclient.durations import delay_until_ms, instant_ms, to_ms, to_seconds, wire_number


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (0, 0),
        (1, 1000),
        (0.5, 500),
        (0.0004, 1),
        (1e-300, 1),
        (0.0005, 1),
        (0.0015, 2),
        (0.00149, 1),
        (0.0025, 3),
        (timedelta(minutes=1), 60_000),
        (timedelta(microseconds=1), 1),
        (timedelta(0), 0),
        (365 * 86400, 31_536_000_000),
    ],
)
def test_rounds_half_up_and_never_to_nothing(value: object, ms: int) -> None:
    assert to_ms(value) == ms  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1, -0.001, timedelta(seconds=-1)])
def test_refuses_what_is_no_duration(value: float) -> None:
    with pytest.raises(ConfigError):
        to_ms(value)
    if not isinstance(value, timedelta) and math.isfinite(value):
        assert to_ms(value, negative=True) <= 0


@pytest.mark.parametrize("value", [True, "5m", None, b"1", 1j])
def test_other_types_are_type_errors(value: object) -> None:
    with pytest.raises(TypeError, match="pause must be seconds or a timedelta"):
        to_ms(value, "pause")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        to_seconds(value)  # type: ignore[arg-type]


def test_points_in_time_need_a_zone() -> None:
    assert instant_ms(datetime(1970, 1, 2, tzinfo=UTC), "run_at") == 86_400_000
    assert delay_until_ms(datetime(1970, 1, 2, tzinfo=UTC)) == 0
    with pytest.raises(ConfigError, match="time zone"):
        instant_ms(datetime(1970, 1, 2), "run_at")
    with pytest.raises(TypeError):
        instant_ms(5, "run_at")  # type: ignore[arg-type]


def test_large_counts_travel_as_floats() -> None:
    assert type(wire_number(2**31 - 1)) is int
    assert type(wire_number(2**31)) is float
    assert type(wire_number(-(2**31) - 1)) is float


def test_what_is_waited_for_is_a_time_that_the_system_can_wait() -> None:
    assert to_seconds(36_500 * 86_400) == 36_500 * 86_400 < threading.TIMEOUT_MAX
    for value in (36_500 * 86_400 + 1, 1e30, timedelta.max):
        with pytest.raises(ConfigError, match=f"t must be at most .* s, not {re.escape(repr(value))}"):
            to_seconds(value, "t")
