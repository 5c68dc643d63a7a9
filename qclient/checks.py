"""Checks of single values that callers pass in: a wrong type or value is named, nothing is coerced."""

from __future__ import annotations

from qcore.errors import ConfigError
from qcore.limits import MAX_NAME_CHARS


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


def whole(value: object, name: str, least: int, most: int | None = None) -> int:
    """A whole number from ``least`` on, and not beyond ``most`` if there is one."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}")
    if value < least or (most is not None and value > most):
        allowed = f"at least {least}" if most is None else f"{least} to {most}"
        raise ConfigError(f"{name} must be {allowed}, not {value}")
    return value


def flag(value: object, name: str) -> bool:
    """True or False, and nothing that merely counts as such."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {type(value).__name__}")
    return value


def group_id(value: object) -> str:
    """The name of a group, as the engine will check it."""
    checked = filled(value, "group id")
    if len(checked) > MAX_NAME_CHARS:
        raise ConfigError(f"group id has {len(checked)} characters; at most {MAX_NAME_CHARS}")
    if "\0" in checked:
        raise ConfigError("group id must hold no NUL character")
    return checked
