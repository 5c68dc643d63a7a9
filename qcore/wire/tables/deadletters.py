"""Dead letters."""

from __future__ import annotations

from typing import Final

from qcore.wire.fields import Field
from qcore.wire.tables.shape import QUEUE, Command

COMMANDS: Final = (
    Command(
        "RetryDlq",
        (
            QUEUE,
            Field("jobId", "text", help="only this one"),
            Field("count", "int", minimum=0, help="only the oldest so many"),
            Field("filter", "filter", help="which entries"),
        ),
        ("count",),
        (),
        "Start dead letters over, with a fresh count of attempts.",
        "committed",
    ),
    Command("PurgeDlq", (QUEUE,), ("count",), (), "Remove the dead letters of a queue.", "committed"),
    Command(
        "RemoveDlqJob",
        (QUEUE, Field("jobId", "id", required=True, help="job id")),
        ("data.removed",),
        (),
        "Remove one dead letter.",
        "committed",
    ),
    Command("GetDlqStats", (QUEUE,), ("data.stats",), (), "Count the dead letters of a queue."),
    Command(
        "SetDlqConfig",
        (QUEUE, Field("config", "dead_config", required=True, help="what is to change")),
        (),
        (),
        "Change what holds for dead letters: how long and how many are kept, and whether they are retried.",
        "committed",
    ),
    Command("GetDlqConfig", (QUEUE,), ("config",), (), "Read what holds for dead letters."),
    Command(
        "Dlq",
        (
            QUEUE,
            Field("count", "int", minimum=0, help="most entries to return"),
            Field("filter", "filter", help="which entries"),
        ),
        ("jobs", "entries"),
        (),
        "Read the dead letters of a queue, oldest first.",
    ),
)
