"""The registry of workers."""

from __future__ import annotations

from collections.abc import Mapping

from qcore.broker.handlers.answer import Answer, Fields, Handler, Reply
from qcore.engine.workers import Worker
from qcore.errors import NotFoundError


def _shown(worker: Worker, *, active: bool) -> Reply:
    return {
        "name": worker.name,
        "queues": worker.queues,
        "concurrency": worker.concurrency,
        "hostname": worker.hostname,
        "pid": worker.pid,
        "status": "active" if active else "stale",
        "registeredAt": worker.registered_ms,
        "lastSeen": worker.seen_ms,
        "activeJobs": worker.active_jobs,
        "processedJobs": worker.processed_jobs,
        "failedJobs": worker.failed_jobs,
        "currentJob": None,
    }


def _register_worker(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    registry = broker.engine.workers
    key = fields.get("workerId") or broker.new_id()
    known = registry.get(key)
    worker = Worker(
        id=key,
        name=known.name if known is not None else fields["name"],
        queues=list(dict.fromkeys(fields["queues"])),
        concurrency=fields["concurrency"],
        hostname=fields["hostname"],
        pid=fields["pid"],
        registered_ms=fields.get("startedAt", broker.wall_ms),
        seen_ms=broker.wall_ms,
        seen_ns=broker.monotonic_ns,
        session=answer.session.number,
    )
    if known is not None:  # after a reconnect it goes on as it was
        worker.registered_ms = known.registered_ms
        worker.hostname = worker.hostname if worker.hostname != "unknown" else known.hostname
        worker.pid = worker.pid or known.pid
        worker.active_jobs = known.active_jobs
        worker.processed_jobs = known.processed_jobs
        worker.failed_jobs = known.failed_jobs
    registry.register(worker)
    return {"data": {"workerId": key, **_shown(worker, active=True)}}


def _heartbeat(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    worker = broker.engine.workers.get(fields["id"])
    if worker is None:
        raise NotFoundError("Worker not found")
    broker.engine.workers.seen(worker, broker.wall_ms, broker.monotonic_ns)
    worker.active_jobs = fields.get("activeJobs", worker.active_jobs)
    worker.processed_jobs = fields.get("processed", worker.processed_jobs)
    worker.failed_jobs = fields.get("failed", worker.failed_jobs)
    return {"data": {"ok": True}}


def _unregister_worker(answer: Answer, fields: Fields) -> Reply:
    if not answer.session.broker.engine.workers.remove(fields["workerId"]):
        raise NotFoundError("Worker not found")
    return {"data": {"removed": True}}


def _list_workers(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    registry = broker.engine.workers
    workers = sorted(registry, key=lambda worker: (worker.registered_ms, worker.id))
    active = {worker.id for worker in workers if registry.is_active(worker, broker.monotonic_ns)}
    return {
        "data": {
            "workers": [
                {
                    "id": worker.id,
                    **_shown(worker, active=worker.id in active),
                    "uptime": broker.wall_ms - worker.registered_ms,
                }
                for worker in workers
            ],
            "stats": {
                "total": len(workers),
                "active": len(active),
                "totalProcessed": sum(worker.processed_jobs for worker in workers),
                "totalFailed": sum(worker.failed_jobs for worker in workers),
                "activeJobs": sum(worker.active_jobs for worker in workers),
                "concurrencySlots": sum(worker.concurrency for worker in workers),
            },
        }
    }


HANDLERS: Mapping[str, Handler] = {
    "RegisterWorker": _register_worker,
    "Heartbeat": _heartbeat,
    "UnregisterWorker": _unregister_worker,
    "ListWorkers": _list_workers,
}
