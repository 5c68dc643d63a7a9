"""The registry of workers."""

from __future__ import annotations

from typing import Final

from qcore.wire.fields import Field
from qcore.wire.tables.shape import Command

COMMANDS: Final = (
    Command(
        "RegisterWorker",
        (
            Field("name", "id", required=True, help="name of the worker"),
            Field("queues", "queues", required=True, help="queues it serves"),
            Field("concurrency", "int", 1, minimum=1, help="jobs it runs at once"),
            Field("workerId", "text", help="id; one is made if absent"),
            Field("hostname", "text", "unknown", help="machine it runs on"),
            Field("pid", "int", 0, minimum=0, help="its process"),
            Field("startedAt", "time", help="ms since the epoch"),
        ),
        tuple(
            f"data.{name}"
            for name in (
                "workerId",
                "name",
                "queues",
                "concurrency",
                "hostname",
                "pid",
                "status",
                "registeredAt",
                "lastSeen",
                "activeJobs",
                "processedJobs",
                "failedJobs",
                "currentJob",
            )
        ),
        (),
        "Register a worker; it belongs to the connection.",
    ),
    Command(
        "UnregisterWorker",
        (Field("workerId", "id", required=True, help="worker id"),),
        ("data.removed",),
        ("Worker not found",),
        "Forget a worker.",
    ),
    Command(
        "Heartbeat",
        (
            Field("id", "id", required=True, help="worker id"),
            Field("activeJobs", "number", minimum=0, help="jobs it runs now"),
            Field("processed", "number", minimum=0, help="jobs it completed"),
            Field("failed", "number", minimum=0, help="jobs that failed in it"),
        ),
        ("data.ok",),
        ("Worker not found",),
        "Say that a worker lives.",
    ),
    Command("ListWorkers", (), ("data.workers", "data.stats"), (), "Read every worker."),
)
