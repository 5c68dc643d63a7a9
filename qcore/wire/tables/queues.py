"""A queue as a whole: control, listings, counts."""

from __future__ import annotations

from typing import Final

from qcore.wire.fields import CLEANED_STATES, LISTED_STATES, Field
from qcore.wire.tables.shape import QUEUE, Command

COMMANDS: Final = (
    Command(
        "PromoteJobs",
        (QUEUE, Field("count", "int", minimum=0, help="only the oldest so many")),
        ("count",),
        (),
        "Make delayed jobs ready.",
        "committed",
    ),
    Command(
        "Drain",
        (QUEUE,),
        ("count",),
        (),
        "Remove the queued jobs of a queue, not the active ones.",
        "committed",
    ),
    Command(
        "Clean",
        (
            QUEUE,
            Field("grace", "time", 0, minimum=0, help="ms that a job must be old"),
            Field(
                "state",
                "text",
                help="only this state; absent: every queued job",
                # An old word of clients for what is queued.
                meant=(*CLEANED_STATES, "wait"),
            ),
            Field("limit", "int", 1000, minimum=0, help="most jobs to remove, oldest first"),
        ),
        ("count", "ids"),
        (),
        "Remove old jobs: finished ones by their end, others by their creation. Active ones never.",
        "committed",
    ),
    Command(
        "Obliterate",
        (QUEUE,),
        (),
        (),
        "Remove everything of a queue, active jobs and settings too.",
        "committed",
    ),
    Command(
        "GetDeduplicationJobId",
        (QUEUE, Field("deduplicationId", "id", required=True, help="a unique key")),
        ("data.jobId",),
        (),
        "Read which job holds a unique key; null: none does.",
    ),
    Command(
        "RemoveDeduplicationKey",
        (QUEUE, Field("deduplicationId", "id", required=True, help="a unique key")),
        ("data.count",),
        (),
        "Free a unique key; its job goes on without it.",
        "committed",
    ),
    Command(
        "RetryCompleted",
        (
            QUEUE,
            Field("id", "text", help="only this one"),
            Field("count", "int", minimum=0, help="only the oldest so many"),
            Field("timestamp", "time", help="only what was completed by then, ms since the epoch"),
        ),
        ("count",),
        (),
        "Start completed jobs over; their results are dropped.",
        "committed",
    ),
    Command(
        "SetStallConfig",
        (QUEUE, Field("config", "stall_config", help="what is to change")),
        (),
        (),
        "Change what holds for stalled jobs: how long their holders may be silent, and how often.",
        "committed",
    ),
    Command("GetStallConfig", (QUEUE,), ("config",), (), "Read what holds for stalled jobs."),
    Command("Pause", (QUEUE,), (), (), "Let nothing of a queue start.", "committed"),
    Command("Resume", (QUEUE,), (), (), "End a pause.", "committed"),
    Command("IsPaused", (QUEUE,), ("paused",), (), "Read whether a queue is paused."),
    Command(
        "GetJobs",
        (
            QUEUE,
            Field(
                "state",
                "states",
                help="one state or several; absent or none: all",
                meant=LISTED_STATES,
            ),
            Field("offset", "int", 0, minimum=0, help="jobs to leave out at the beginning"),
            Field("limit", "int", 100, minimum=0, help="most jobs to return"),
            Field("asc", "flag", True, help="oldest first"),
        ),
        ("jobs",),
        (),
        "Read jobs by their creation time; those of a paused queue are paused, not waiting.",
    ),
    Command(
        "GetCountsPerPriority",
        (QUEUE,),
        ("queue", "counts"),
        (),
        "Count the queued jobs of a queue by priority.",
    ),
    Command("GetJobCounts", (QUEUE,), ("counts",), (), "Count the jobs of a queue by state."),
    Command("Count", (QUEUE,), ("count",), (), "Count the queued jobs of a queue."),
    Command("ListQueues", (), ("queues",), (), "Name every queue."),
)
