"""Durations and points in time: seconds in Python, milliseconds on the wire.

This is the one boundary between the two units.
"""

from __future__ import annotations

import math
import time
from datetime import datetime, timedelta
from typing import TypeAlias

from qcore.errors import ConfigError
from qcore.limits import MAX_TIME_MS

Duration: TypeAlias = float | int | timedelta

#: A hundred years. The calls of the system that wait take no more than three times as much.
MAX_WAIT_S = 36_500 * 86_400

_ONE_MS = timedelta(milliseconds=1)


def _seconds(value: object, name: str) -> float:
    """A finite number of seconds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be seconds or a timedelta, not {type(value).__name__}")
    try:
        seconds = float(value)
    except OverflowError:
        raise ConfigError(f"{name} must be at most {MAX_TIME_MS // 1000} s") from None
    if not math.isfinite(seconds):
        raise ConfigError(f"{name} must be finite, not {value!r}")
    return seconds


def to_ms(value: Duration, name: str = "duration", *, negative: bool = False) -> int:
    """Turn seconds or a ``timedelta`` into whole milliseconds.

    Rounds half up; a positive value never becomes 0. ``bool`` and strings are a
    ``TypeError``; NaN, infinity and (unless ``negative``) values below zero are a
    ``ConfigError``, and so is what is longer than any time that an engine keeps.
    """
    seconds_ms = value / _ONE_MS if isinstance(value, timedelta) else _seconds(value, name) * 1000.0
    if seconds_ms < 0 and not negative:
        raise ConfigError(f"{name} must not be negative, not {value!r}")
    if abs(seconds_ms) > MAX_TIME_MS:
        raise ConfigError(f"{name} must be at most {MAX_TIME_MS // 1000} s, not {value!r}")
    ms = math.floor(seconds_ms + 0.5)
    if ms == 0 and seconds_ms > 0:
        return 1
    return ms


def to_seconds(value: Duration, name: str = "duration") -> float:
    """Check a duration like :func:`to_ms`, and that it can be waited for, and return it as seconds."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else _seconds(value, name)
    if seconds < 0:
        raise ConfigError(f"{name} must not be negative, not {value!r}")
    if seconds > MAX_WAIT_S:
        raise ConfigError(f"{name} must be at most {MAX_WAIT_S:g} s, not {value!r}")
    return seconds


def instant_ms(value: datetime, name: str) -> int:
    """Milliseconds since the epoch of an aware ``datetime``; a naive one is refused."""
    if not isinstance(value, datetime):
        raise TypeError(f"{name} must be a datetime, not {type(value).__name__}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise ConfigError(f"{name} has no time zone: which one is meant?")
    return math.floor(value.timestamp() * 1000.0 + 0.5)


def delay_until_ms(value: datetime, name: str = "run_at") -> int:
    """Milliseconds from now to ``value``; a past time means 0."""
    return max(0, instant_ms(value, name) - time.time_ns() // 1_000_000)


def wire_number(ms: int) -> int | float:
    """The form in which every peer can read a count of milliseconds.

    Integers outside 32 bits travel as floats: some peers cannot calculate with
    64-bit integers.
    """
    return ms if -0x80000000 <= ms <= 0x7FFFFFFF else float(ms)
