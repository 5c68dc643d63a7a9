"""Greeting, authentication, signs of life."""

from __future__ import annotations

from typing import Final

from qcore.wire.fields import Field
from qcore.wire.tables.shape import Command

COMMANDS: Final = (
    Command(
        "Hello",
        (
            Field("protocolVersion", "any", help="version the client speaks; not looked at"),
            Field("capabilities", "words", help="extensions the client understands"),
        ),
        ("protocolVersion", "capabilities", "server", "version"),
        help="Announce capabilities; optional.",
    ),
    Command(
        "Auth",
        (Field("token", "any", required=True, help="one of the server's tokens", absent="Invalid token"),),
        errors=("Invalid token",),
        help="Show a token, which counts for this connection.",
    ),
    Command("Ping", reply=("data.pong", "data.time"), help="Ask for a sign of life."),
)
