"""What an engine counts: its workers, and outcomes by minute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from qclient.job import moment


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker as the engine knows it; ``status`` is ``active``, or ``stale`` after 30 s without a sign."""

    id: str
    name: str
    queues: tuple[str, ...]
    concurrency: int
    hostname: str
    pid: int
    status: str
    registered_at: datetime | None
    last_seen: datetime | None
    active_jobs: int
    processed_jobs: int
    failed_jobs: int

    @classmethod
    def from_wire(cls, raw: Mapping[str, Any]) -> WorkerInfo:
        """Read the reply of the engine."""
        return cls(
            id=raw["id"],
            name=raw["name"],
            queues=tuple(raw["queues"]),
            concurrency=int(raw["concurrency"]),
            hostname=raw["hostname"],
            pid=int(raw["pid"]),
            status=raw["status"],
            registered_at=moment(raw["registeredAt"]),
            last_seen=moment(raw["lastSeen"]),
            active_jobs=int(raw["activeJobs"]),
            processed_jobs=int(raw["processedJobs"]),
            failed_jobs=int(raw["failedJobs"]),
        )


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Outcomes of one kind: in all, when the latest was, and by minute, newest first."""

    total: int
    latest: datetime | None
    minutes: tuple[int, ...]

    @classmethod
    def from_wire(cls, raw: Mapping[str, Any]) -> Outcomes:
        """Read the reply of the engine."""
        meta = raw["meta"]
        return cls(
            total=int(meta["count"]),
            latest=moment(meta["prevTS"]) if meta["prevTS"] else None,
            minutes=tuple(int(n) for n in raw["data"]),
        )
