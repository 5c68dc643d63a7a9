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
            Field("queue", "text", help="outcomes of this queue by minute; absent: totals of all"),
            Field("type", "text", help="completed or failed; only with a queue"),
            Field("start", "int", 0, help="first minute of the page, 0 the newest"),
            Field("end", "int", -1, help="its last, -1 the oldest"),
        ),
        ("metrics", "data.meta", "data.data", "data.count"),
        (
            "Metrics queue is required",
            "Metrics type must be 'completed' or 'failed'",
        ),
        "Read totals since the start of the server, or what ended in a queue by minute.",
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
