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
    Command("Auth", (Field("token", "any", help="one of the server's tokens"),), (), ("Invalid token",)),
    Command("Ping", reply=("data.pong", "data.time"), help="Ask for a sign of life."),
)
