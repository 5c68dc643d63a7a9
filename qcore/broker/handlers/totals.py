"""Figures of the whole broker."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from qcore.errors import CommandError
from qcore.wire import commands

if TYPE_CHECKING:
    from qcore.broker.core import Broker
from qcore.broker.handlers.answer import Answer, Fields, Handler, Reply


def _stats(answer: Answer, fields: Fields) -> Reply:
    """Jobs by state as they are, pauses left aside; ``completed`` and ``failed`` since the start."""
    broker = answer.session.broker
    totals = broker.engine.totals(broker.wall_ms)
    pushed, pulled = _rates(broker, totals)
    return {
        "stats": {
            "waiting": totals["waiting"],
            "active": totals["active"],
            "delayed": totals["delayed"],
            "dlq": totals["failed"],
            "completed": totals["total_completed"],
            "failed": totals["total_failed"],
            "uptime": broker.wall_ms - broker.started_ms,
            "pushPerSec": pushed,
            "pullPerSec": pulled,
        }
    }


def _rates(broker: Broker, totals: Mapping[str, int]) -> tuple[float, float]:
    """Jobs added and delivered a second, between this look and the last one a second or more before."""
    before = broker.rate_sample
    now = broker.monotonic_ns
    rates = (0.0, 0.0)
    if before is not None:
        seconds = (now - before[0]) * 1e-9
        if seconds < 1:
            return before[3]
        rates = ((totals["pushed"] - before[1]) / seconds, (totals["pulled"] - before[2]) / seconds)
    broker.rate_sample = (now, totals["pushed"], totals["pulled"], rates)
    return rates


def _metrics(answer: Answer, fields: Fields) -> Reply:
    if "queue" in fields or "type" in fields:
        if "queue" not in fields:
            raise CommandError("Metrics queue is required")
        queue = commands.queue_name(fields["queue"])
        if fields.get("type") not in ("completed", "failed"):
            raise CommandError("Metrics type must be 'completed' or 'failed'")
        most = 1 << 62
        (count, prev_ms, prev_count), data, n = answer.session.broker.engine.metrics(
            queue,
            fields["type"],
            start=max(-most, min(fields["start"], most)),
            end=max(-most, min(fields["end"], most)),
        )
        meta = {"count": count, "prevTS": prev_ms, "prevCount": prev_count}
        return {"data": {"meta": meta, "data": data, "count": n}}
    broker = answer.session.broker
    totals = broker.engine.totals(broker.wall_ms)
    return {
        "metrics": {
            "totalPushed": totals["pushed"],
            "totalPulled": totals["pulled"],
            "totalCompleted": totals["total_completed"],
            "totalFailed": totals["total_failed"],
            "avgLatencyMs": 0,
            "avgProcessingMs": 0,
            "memoryUsageMb": _memory_mb(),
            "sqliteSizeMb": _file_mb(broker),
            "activeConnections": broker.n_sessions,
        }
    }


def _memory_mb() -> float:
    """Resident memory of this process; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except (OSError, ValueError, IndexError):
        return 0.0


def _file_mb(broker: Broker) -> float:
    path = broker.store.path if broker.durable else None
    try:
        return os.stat(path).st_size / 1e6 if path else 0.0
    except OSError:
        return 0.0


def _compact_memory(answer: Answer, fields: Fields) -> Reply:
    """The structures shrink by themselves; what is left are cycles of Python objects."""
    gc.collect()
    return {}


def _storage_status(answer: Answer, fields: Fields) -> Reply:
    degraded = answer.session.broker.degraded
    if degraded is None:
        return {"data": {"diskFull": False, "error": None, "since": None}}
    return {"data": {"diskFull": degraded[1] == "full", "error": degraded[1], "since": degraded[2]}}


HANDLERS: Mapping[str, Handler] = {
    "Stats": _stats,
    "Metrics": _metrics,
    "CompactMemory": _compact_memory,
    "StorageStatus": _storage_status,
}
