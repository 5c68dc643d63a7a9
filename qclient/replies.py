"""From the texts of a refused command to the classes of this package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qcore.errors import (
    AuthError,
    CommandError,
    DuplicateError,
    FlowError,
    LeaseError,
    LimitError,
    NotFoundError,
    QError,
    StateError,
)

#: What a reply says that would not fit into a frame.
TOO_LARGE = "ask for fewer"

# First match wins; texts are those of the protocol and are kept in the message.
_TABLE: tuple[tuple[str, type[CommandError]], ...] = (
    ("lock token", LeaseError),
    ("invalid token)", LeaseError),
    ("lock not found", LeaseError),
    ("rate limit exceeded", LimitError),
    ("maximum size of", LimitError),
    ("is not linkable", StateError),
    (TOO_LARGE, LimitError),
    ("not in processing", StateError),
    ("is not active", StateError),
    ("or cannot be", StateError),
    ("or not delayed", StateError),
    ("or not in queue", StateError),
    ("or cannot change", StateError),
    ("not found", NotFoundError),
)


_OF_ANY_COMMAND = (
    "maximum size of",
    "rate limit exceeded",
    "disk full",
    "storage error",
    "unknown command",
    "internal server error",
)


def refused(reply: Mapping[str, Any], command: str) -> QError:
    """The exception for a reply with ``ok: false``."""
    error = _refused(reply, command)
    if isinstance(code := reply.get("code"), str):
        error.code = code
    return error


def _refused(reply: Mapping[str, Any], command: str) -> QError:
    text = str(reply.get("error") or "refused without a reason")
    if text in ("Not authenticated", "Invalid token"):
        return AuthError(f"{command}: {text}")
    lower = text.lower()
    if isinstance(came := reply.get("came"), str):
        text = f"{text}, got {came}"
    if command == "PUSHF" and (kind := _of_flow(lower)) is not None:
        return kind(text, command)
    for part, kind in _TABLE:
        if part in lower:
            return kind(text, command)
    return CommandError(text, command)


def _of_flow(lower: str) -> type[CommandError] | None:
    """What a refused flow is; None where any command could be refused like that."""
    if "already exists" in lower:
        return DuplicateError
    return None if any(part in lower for part in _OF_ANY_COMMAND) else FlowError
