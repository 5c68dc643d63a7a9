"""Figures of the whole broker."""

from __future__ import annotations

from typing import Final

from qcore.wire.fields import MAX_SAFE_INTEGER, OUTCOMES, Field
from qcore.wire.tables.shape import QUEUE, Command

COMMANDS: Final = (
    Command("Stats", (), ("stats",), (), "Count jobs of all queues."),
    Command(
        "Metrics",
        (
            Field("queue", "text", help="outcomes of this queue by minute; absent: totals of all"),
            Field("type", "text", help="completed or failed; only with a queue", meant=OUTCOMES),
            Field(
                "start",
                "int",
                0,
                help="first minute of the page, 0 the newest",
                meant=(0, MAX_SAFE_INTEGER),
            ),
            Field("end", "int", -1, help="its last, -1 the oldest"),
        ),
        ("metrics", "data.meta", "data.data", "data.count"),
        (
            "Metrics queue is required",
            "Metrics type must be 'completed' or 'failed'",
        ),
        "Read totals since the start of the server, or what ended in a queue by minute.",
    ),
    Command(
        "DashboardOverview",
        (),
        tuple(
            f"data.{name}"
            for name in (
                "stats",
                "throughput",
                "latency",
                "memory",
                "collections",
                "workers",
                "crons",
                "storage",
                "timestamp",
            )
        ),
        (),
        "Read the figures of the whole broker.",
    ),
    Command("DashboardQueues", (), ("data.queues", "data.timestamp"), (), "Read the counts of every queue."),
    Command(
        "DashboardQueue",
        (
            QUEUE,
            Field("includeJobs", "flag", False, help="list jobs too"),
            Field("jobsLimit", "int", 10, minimum=0, maximum=50, help="most jobs of each list"),
        ),
        tuple(
            f"data.{name}"
            for name in ("name", "counts", "paused", "priorityCounts", "dlqPreview", "timestamp", "jobs")
        ),
        (),
        "Read the figures of one queue, and some of its jobs.",
    ),
    Command("Prometheus", (), ("data.metrics",), (), "Read the figures in the text form of Prometheus."),
    Command("CompactMemory", (), (), (), "Give back memory that is not needed."),
    Command(
        "StorageStatus",
        (),
        ("data.diskFull", "data.error", "data.since", "data.lostAtStart"),
        (),
        "Read whether the data file can be written, and what of it was lost before this start.",
    ),
)
