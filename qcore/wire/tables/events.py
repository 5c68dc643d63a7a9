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
        "Drop old events from the journal of a queue, or from their number where only that is kept.",
        "committed",
    ),
    Command(
        "GetEvents",
        (
            QUEUE,
            Field("after", "int", 0, minimum=0, help="only events with numbers beyond this"),
            Field("limit", "int", 100, minimum=0, help="most events to return, up to 1000; oldest first"),
        ),
        ("data.events", "data.count"),
        (),
        "Read the journal of a queue, if the server keeps its events, and their number.",
    ),
)
