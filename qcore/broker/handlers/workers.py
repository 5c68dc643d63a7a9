"""The registry of workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from qcore.errors import CommandError

if TYPE_CHECKING:
    pass
from qcore.broker.handlers.answer import Answer, Fields, Handler, Reply

WORKER_STALE_MS = 30_000
_WORKER_COUNTERS = ("registeredAt", "lastSeen", "activeJobs", "processedJobs", "failedJobs")


def _register_worker(answer: Answer, fields: Fields) -> Reply:
    session = answer.session
    broker = session.broker
    key = fields.get("workerId") or broker.new_id()
    known = broker.workers.get(key)
    worker = {
        "name": known["name"] if known else fields["name"],
        "queues": list(fields["queues"]),
        "concurrency": fields["concurrency"],
        "hostname": fields["hostname"],
        "pid": fields["pid"],
        "registeredAt": fields.get("startedAt", broker.wall_ms),
        "lastSeen": broker.wall_ms,
        "activeJobs": 0,
        "processedJobs": 0,
        "failedJobs": 0,
        "session": session.number,
    }
    broker.workers[key] = worker
    return {
        "data": {
            "workerId": key,
            **{k: worker[k] for k in ("name", "queues", "concurrency", "hostname", "pid")},
            "status": "active",
            **{k: worker[k] for k in _WORKER_COUNTERS},
            "currentJob": None,
        }
    }


def _heartbeat(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    worker = broker.workers.get(fields["id"])
    if worker is None:
        raise CommandError("Worker not found")
    worker["lastSeen"] = broker.wall_ms
    for field, name in (
        ("activeJobs", "activeJobs"),
        ("processed", "processedJobs"),
        ("failed", "failedJobs"),
    ):
        if fields.get(field) is not None:
            worker[name] = fields[field]
    return {"data": {"ok": True}}


def _unregister_worker(answer: Answer, fields: Fields) -> Reply:
    if answer.session.broker.workers.pop(fields["workerId"], None) is None:
        raise CommandError("Worker not found")
    return {"data": {"removed": True}}


def _list_workers(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    now = broker.wall_ms
    workers = []
    for key, worker in broker.workers.items():
        fresh = now - worker["lastSeen"] < WORKER_STALE_MS
        workers.append(
            {
                "id": key,
                **{k: worker[k] for k in ("name", "queues", "concurrency", "hostname", "pid")},
                "status": "active" if fresh else "stale",
                **{k: worker[k] for k in _WORKER_COUNTERS},
                "currentJob": None,
                "uptime": now - worker["registeredAt"],
            }
        )
    return {
        "data": {
            "workers": workers,
            "stats": {
                "total": len(workers),
                "active": sum(w["status"] == "active" for w in workers),
                "totalProcessed": sum(w["processedJobs"] for w in workers),
                "totalFailed": sum(w["failedJobs"] for w in workers),
                "activeJobs": sum(w["activeJobs"] for w in workers),
                "concurrencySlots": sum(w["concurrency"] for w in workers),
            },
        }
    }


HANDLERS: Mapping[str, Handler] = {
    "RegisterWorker": _register_worker,
    "Heartbeat": _heartbeat,
    "UnregisterWorker": _unregister_worker,
    "ListWorkers": _list_workers,
}
