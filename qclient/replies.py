"""From the texts of a refused command to the classes of this package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qcore.errors import (
    AuthError,
    CommandError,
    LeaseError,
    LimitError,
    NotFoundError,
    QError,
    StateError,
)

# First match wins; texts are those of the protocol and are kept in the message.
_TABLE: tuple[tuple[str, type[CommandError]], ...] = (
    ("lock token", LeaseError),
    ("invalid token)", LeaseError),
    ("lock not found", LeaseError),
    ("rate limit exceeded", LimitError),
    ("maximum size of", LimitError),
    ("not in processing", StateError),
    ("is not active", StateError),
    ("or cannot be", StateError),
    ("or not delayed", StateError),
    ("or not in queue", StateError),
    ("or cannot change", StateError),
    ("not found", NotFoundError),
)


def refused(reply: Mapping[str, Any], command: str) -> QError:
    """The exception for a reply with ``ok: false``."""
    text = str(reply.get("error") or "refused without a reason")
    if text in ("Not authenticated", "Invalid token"):
        return AuthError(f"{command}: {text}")
    lower = text.lower()
    for part, kind in _TABLE:
        if part in lower:
            return kind(text, command)
    return CommandError(text, command)
