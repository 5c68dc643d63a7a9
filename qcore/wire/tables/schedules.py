"""Named schedules."""

from __future__ import annotations

from typing import Final

from qcore.wire.fields import MAX_SAFE_INTEGER, Field
from qcore.wire.tables.shape import QUEUE, Command

NAME: Final = Field("name", "id", required=True, help="name of the schedule, one for all queues")
SHOWN: Final = (
    "name",
    "jobName",
    "queue",
    "schedule",
    "repeatEvery",
    "nextRun",
    "executions",
    "maxLimit",
    "timezone",
    "priority",
)
_MISSING: Final = "Cron job not found"

COMMANDS: Final = (
    Command(
        "Cron",
        (
            NAME,
            QUEUE,
            Field("data", "data", help="payload of each job"),
            Field("jobName", "name", help="name of each job"),
            Field(
                "schedule",
                "text",
                help="cron expression, 5 fields or 6 with seconds first, or @daily",
            ),
            Field(
                "repeatEvery",
                "interval",
                help="ms between runs; an expression is stronger",
                meant=(1, MAX_SAFE_INTEGER),
            ),
            Field("timezone", "text", help="IANA zone of the expression; UTC if absent"),
            Field("priority", "option", 0, help="priority of each job"),
            Field("maxLimit", "whole", help="runs in all; 0 or less: no bound"),
            Field("uniqueKey", "text", help="unique key of each job; cron:<name> if overlap is prevented"),
            Field("dedup", "dedup", help="what a second job with the same key does"),
            Field("immediately", "flag", False, help="a new schedule runs at once"),
            Field(
                "preventOverlap",
                "flag",
                True,
                help="skip a slot while the last job is queued or active",
            ),
            Field("skipMissedOnRestart", "flag", True, help="do not run what came due while down"),
            Field("skipIfNoWorker", "flag", False, help="skip a slot when no active worker is there"),
            Field("jobOptions", "occurrence", help="further options of each job"),
        ),
        tuple(f"cron.{name}" for name in SHOWN),
        (
            "Cron job must have either schedule or repeatEvery",
            "Cron repeatEvery must be a positive safe integer number of milliseconds",
            "Invalid cron expression: <why>",
        ),
        "Create or change a schedule.",
        "committed",
    ),
    Command("CronGet", (NAME,), tuple(f"cron.{name}" for name in SHOWN), (_MISSING,), "Read one schedule."),
    Command("CronList", (), ("crons",), (), "Read every schedule, by its next run."),
    Command("CronDelete", (NAME,), (), (_MISSING,), "Remove a schedule and its queued job.", "committed"),
)
