"""Events: who is told of what happens, and how much of it is counted."""

from __future__ import annotations

from typing import Final

from qcore.wire.fields import Field
from qcore.wire.tables.shape import QUEUE, Command

COMMANDS: Final = (
    Command(
        "SubscribeEvents",
        (QUEUE, Field("eventTypes", "event_types", help="1 to 32 types of events; absent: all")),
        (),
        (),
        "Get the events of one queue on this connection; takes the place of an earlier subscription.",
    ),
    Command("UnsubscribeEvents", (), (), (), "End the subscription of this connection, if it has one."),
    Command(
        "TrimEvents",
        (QUEUE, Field("maxLength", "length", required=True, help="events to keep, the newest")),
        ("data.removed",),
        ("maxLength must be a non-negative safe integer",),
        "Drop old events from the journal of a queue, of which only the number is kept.",
        "committed",
    ),
)
