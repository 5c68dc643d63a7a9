"""Figures of the whole broker."""

from __future__ import annotations

from typing import Final

from qcore.wire.fields import Field
from qcore.wire.tables.shape import Command

COMMANDS: Final = (
    Command("Stats", (), ("stats",), (), "Count jobs of all queues."),
    Command(
        "Metrics",
        (
            Field("queue", "text", help="not served yet: totals only"),
            Field("type", "text", help="likewise"),
        ),
        ("metrics",),
        (
            "Metrics queue is required",
            "Metrics type must be 'completed' or 'failed'",
            "metrics of one queue are not supported by this server yet",
        ),
        "Read totals since the start of the server.",
    ),
    Command("CompactMemory", (), (), (), "Give back memory that is not needed."),
    Command(
        "StorageStatus",
        (),
        ("data.diskFull", "data.error", "data.since"),
        (),
        "Read whether the data file can be written.",
    ),
)
