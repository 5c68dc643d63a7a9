"""Checks of single values that callers pass in: a wrong type or value is named, nothing is coerced."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from qcore.engine.cron import Cron, CronError
from qcore.errors import ConfigError
from qcore.limits import MAX_LINE_CHARS, MAX_NAME_CHARS

#: Beyond that not every peer has every whole number.
MAX_WHOLE = 2**53 - 1


def text(value: object, name: str) -> str:
    """A string, which may be empty."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {type(value).__name__}")
    return value


def filled(value: object, name: str) -> str:
    """A string that is not empty."""
    checked = text(value, name)
    if not checked:
        raise ConfigError(f"{name} must not be empty")
    return checked


def line(value: object, name: str, most: int = MAX_LINE_CHARS) -> str:
    """A string of at most so many characters that UTF-8 can carry; it may be empty."""
    checked = text(value, name)
    if len(checked) > most:
        raise ConfigError(f"{name} has {len(checked)} characters; at most {most}")
    try:
        checked.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name} holds a lone surrogate, which UTF-8 cannot carry") from None
    return checked


def log_level(value: object) -> str:
    """The word that a line of a log begins with."""
    return line(value, "level", MAX_NAME_CHARS)


def several(value: Any, name: str, of: str) -> Iterable[Any]:
    """What can be gone through, and is no text and no map; it is not gone through here."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a list of {of}, not {type(value).__name__}")
    return value


def listed(value: Any, name: str, of: str) -> list[Any]:
    """The same as a list."""
    return list(several(value, name, of))


def function(value: Any, name: str) -> Callable[..., Any]:
    """What can be called."""
    if not callable(value):
        raise TypeError(f"{name} must be callable, not {type(value).__name__}")
    return value  # type: ignore[no-any-return]


def whole(value: object, name: str, least: int, most: int | None = None) -> int:
    """A whole number from ``least`` to ``most``, or to what every peer can hold."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}")
    if not least <= value <= (MAX_WHOLE if most is None else most):
        if most is not None:
            allowed = f"{least} to {most}"
        else:
            allowed = f"at least {least}" if value < least else f"at most {MAX_WHOLE}"
        # A number may have more digits than Python turns into text.
        shown = f", not {value}" if -MAX_WHOLE <= value <= MAX_WHOLE else ""
        raise ConfigError(f"{name} must be {allowed}{shown}")
    return value


def number(value: object, name: str) -> int | float:
    """A finite number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    try:
        finite = math.isfinite(value)
    except OverflowError:
        raise ConfigError(f"{name} must be at most 1.7e308 in size") from None
    if not finite:
        raise ConfigError(f"{name} must be finite, not {value!r}")
    return value


def flag(value: object, name: str) -> bool:
    """True or False, and nothing that merely counts as such."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {type(value).__name__}")
    return value


def cron_expression(value: object, zone: object, name: str) -> str:
    """An expression that comes due sometimes, in a time zone that there is (None: UTC)."""
    checked = filled(value, name)
    try:
        Cron(checked, None if zone is None else filled(zone, f"tz of {name}"))
    except CronError as error:
        raise ConfigError(f"Invalid cron expression: {error}") from None
    return checked


def group_id(value: object) -> str:
    """The name of a group, as the engine will check it."""
    checked = filled(value, "group id")
    if len(checked) > MAX_NAME_CHARS:
        raise ConfigError(f"group id has {len(checked)} characters; at most {MAX_NAME_CHARS}")
    if "\0" in checked:
        raise ConfigError("group id must hold no NUL character")
    return checked
