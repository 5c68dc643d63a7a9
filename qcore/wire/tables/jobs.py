"""One job: changing it, asking about it, waiting for it."""

from __future__ import annotations

from typing import Final

from qcore.limits import MAX_LINE_CHARS, MAX_NAME_CHARS
from qcore.wire.fields import Field
from qcore.wire.tables.shape import ID, LOCKED, TOKEN, Command

COMMANDS: Final = (
    Command(
        "MoveToDelayed",
        (ID, TOKEN, Field("delay", "duration", required=True, help="ms from now")),
        (),
        ("Job not found", "Job is not active (current state: <state>)", *LOCKED),
        "Put an active job off, uncharged, or change the time of a queued one.",
        "committed",
    ),
    Command(
        "Promote", (ID,), (), ("Job not found or not delayed",), "Make a delayed job ready.", "committed"
    ),
    Command(
        "ChangeDelay",
        (ID, TOKEN, Field("delay", "duration", required=True, help="ms from now")),
        (),
        ("Job not found or cannot change delay", *LOCKED),
        "Change the run time of a queued job, or put an active one off.",
        "committed",
    ),
    Command(
        "MoveToWait",
        (ID, TOKEN),
        (),
        ("Cannot move job from state '<state>' to waiting", *LOCKED),
        "Make a job ready: give it back, promote it, or revive it from the dead letters.",
        "committed",
    ),
    Command(
        "Cancel",
        (ID,),
        (),
        ("Job not found or cannot be cancelled",),
        "Remove a queued job.",
        "committed",
    ),
    Command(
        "Discard",
        (ID, TOKEN),
        (),
        ("Job not found", *LOCKED),
        "Move a queued or active job to the dead letters, with the reason unknown.",
        "committed",
    ),
    Command(
        "ChangePriority",
        (
            ID,
            Field("priority", "option", required=True, help="higher runs first"),
            Field("lifo", "flag", help="newest first among equal priorities"),
        ),
        (),
        ("Job not found or not in queue",),
        "Give a queued job another place.",
        "committed",
    ),
    Command(
        "Update",
        (ID, TOKEN, Field("data", "data", required=True, help="the new payload, any value")),
        (),
        ("Job not found or cannot be updated",),
        "Replace the data of a queued or active job.",
        "committed",
    ),
    Command(
        "Progress",
        (
            ID,
            TOKEN,
            Field(
                "progress",
                "number",
                required=True,
                help="0 to 100, what is outside is clamped",
                meant=(0, 100),
            ),
            Field("message", "string", maximum=MAX_LINE_CHARS, help="what it is doing; absent: as before"),
        ),
        (),
        ("Job not found", "Job is not active (current state: <state>)"),
        "Say how far an active job has come; a sign of life as well.",
        "buffered",
    ),
    Command(
        "GetProgress",
        (ID,),
        ("progress", "message"),
        ("Job not found", "Job is not active (current state: <state>)"),
        "Read how far an active job has come.",
    ),
    Command(
        "AddLog",
        (
            ID,
            TOKEN,
            Field("message", "string", required=True, maximum=MAX_LINE_CHARS, help="the line"),
            Field("level", "string", "info", maximum=MAX_NAME_CHARS, help="any word"),
        ),
        ("data.added",),
        ("Job not found",),
        "Append a line to the log of a job, which keeps its last 100.",
        "buffered",
    ),
    Command(
        "GetLogs",
        (
            ID,
            Field("start", "int", 0, minimum=0, help="first line"),
            Field("end", "int", help="last line, included; negative ones count from the end"),
        ),
        ("data.logs", "data.count"),
        (),
        "Read the log of a job; unknown ids are no error.",
    ),
    Command(
        "ClearLogs",
        (ID, Field("keepLogs", "int", 0, minimum=0, help="newest lines to keep")),
        (),
        (),
        "Drop the log of a job; unknown ids are no error.",
        "committed",
    ),
    Command(
        "RemoveJobDeduplicationKey",
        (ID,),
        ("data.removed",),
        (),
        "Take its unique key from a job; false when it does not hold one.",
        "committed",
    ),
    Command("GetJob", (ID,), ("job",), ("Job not found",), "Read one job."),
    Command("GetState", (ID,), ("id", "state"), (), "Read the state of a job; unknown ids are no error."),
    Command("GetResult", (ID,), ("id", "result"), (), "Read the result of a completed job."),
    Command(
        "WaitJob",
        (ID, Field("timeout", "time", 30_000, minimum=0, maximum=600_000, help="ms to wait")),
        ("completed", "result"),
        ("Job not found",),
        "Wait for the outcome of a job; one that has failed or is gone answers at once. One that was removed "
        "when it was completed is completed, with a result only if a live job may still read that.",
        blocking=True,
    ),
    Command(
        "GetJobByCustomId",
        (Field("customId", "id", required=True, help="id that the producer gave"),),
        ("job",),
        ("Job not found",),
        "Read a live job by the id that its producer gave.",
    ),
)
