"""Figures of the whole broker."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from qcore.errors import CommandError
from qcore.wire import commands

if TYPE_CHECKING:
    from qcore.broker.core import Broker
from qcore.broker.handlers.answer import Answer, Fields, Handler, Reply

#: A rate is taken over at least so long, and the newest weighs so much against those before.
RATE_WINDOW_S = 0.1
RATE_WEIGHT = 0.3


def _stats(answer: Answer, fields: Fields) -> Reply:
    """Jobs by state as they are, pauses left aside; ``completed`` and ``failed`` since the start."""
    broker = answer.session.broker
    totals = counted(broker)
    pushed, pulled, _, _ = rates(broker, totals)
    return {
        "stats": {
            "waiting": totals["waiting"],
            "active": totals["active"],
            "delayed": totals["delayed"],
            "dlq": totals["failed"],
            "completed": totals["total_completed"],
            "failed": totals["total_failed"],
            "uptime": broker.wall_ms - broker.started_ms,
            "pushPerSec": round(pushed, 2),
            "pullPerSec": round(pulled, 2),
        }
    }


def counted(broker: Broker) -> dict[str, int]:
    """Jobs of all queues by state, and how many passed since the start."""
    return broker.engine.totals(broker.wall_ms)


def rates(broker: Broker, totals: Mapping[str, int]) -> tuple[float, ...]:
    """Jobs pushed, pulled, completed and failed a second: a moving average over the looks at it.

    A look within the window of the one before answers the same. The first covers the time since the start.
    """
    counts = tuple(totals[name] for name in ("pushed", "pulled", "total_completed", "total_failed"))
    since_ns, before, averages = broker.rate_sample or (broker.started_ns, (0, 0, 0, 0), None)
    seconds = (broker.monotonic_ns - since_ns) * 1e-9
    if seconds < RATE_WINDOW_S:
        return averages or (0.0, 0.0, 0.0, 0.0)
    found = tuple((now - then) / seconds for now, then in zip(counts, before, strict=True))
    if averages is not None:
        found = tuple(
            RATE_WEIGHT * new + (1 - RATE_WEIGHT) * old for new, old in zip(found, averages, strict=True)
        )
    broker.rate_sample = (broker.monotonic_ns, counts, found)
    return found


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
    took = broker.latencies().values()
    n, seconds = sum(sum(counts) for counts, _ in took), sum(seconds for _, seconds in took)
    done = totals["total_completed"]
    return {
        "metrics": {
            "totalPushed": totals["pushed"],
            "totalPulled": totals["pulled"],
            "totalCompleted": totals["total_completed"],
            "totalFailed": totals["total_failed"],
            "avgLatencyMs": round(1000 * seconds / n, 3) if n else 0,
            "avgProcessingMs": round(broker.engine.busy_ms / done, 3) if done else 0,
            "memoryUsageMb": memory_mb(),
            "sqliteSizeMb": _file_mb(broker),
            "activeConnections": broker.n_sessions,
        }
    }


def memory_mb() -> float:
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
    """The structures shrink by themselves; what is left are cycles of Python objects, and free heap pages."""
    gc.collect()
    trim = getattr(
        ctypes.CDLL(None), "malloc_trim", None
    )  # of glibc, which keeps what lies below something in use
    if trim is not None:
        trim(ctypes.c_size_t(0))
    return {}


def _storage_status(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    _, error, since = broker.degraded or (None, None, None)
    damage = broker.recovery.log_damage if broker.recovery is not None else None
    lost = None if damage is None else str(damage)
    return {"data": {"diskFull": error == "full", "error": error, "since": since, "lostAtStart": lost}}


HANDLERS: Mapping[str, Handler] = {
    "Stats": _stats,
    "Metrics": _metrics,
    "CompactMemory": _compact_memory,
    "StorageStatus": _storage_status,
}
