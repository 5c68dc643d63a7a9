"""What a dashboard or a scraper wants to know of the whole broker and of single queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qcore.broker.handlers import queues, totals, webhooks, workers
from qcore.broker.handlers.answer import Answer, Fields, Handler, Reply
from qcore.limits import DEFAULT_METRIC_QUEUES, LATENCY_BOUNDS_MS

if TYPE_CHECKING:
    from qcore.broker.core import Broker

#: Lists of a queue's jobs, and the states in each.
_LISTED = {
    "waiting": ("waiting", "prioritized"),
    "active": ("active",),
    "delayed": ("delayed",),
    "paused": ("paused",),
}
PREVIEW = 10  # dead letters shown of a queue


def _data(handler: Handler, answer: Answer) -> Any:
    """What another command answers, without its envelope."""
    reply = handler(answer, {})
    assert reply is not None
    return reply


def _crons(answer: Answer) -> Any:
    from qcore.broker.handlers import HANDLERS

    handler = HANDLERS.get("CronList")
    return [] if handler is None else _data(handler, answer)["crons"]


def percentile(counts: list[int], part: float) -> float:
    """The bound of the bucket in which this part of the observations ends, in ms; 0 without any."""
    wanted = part * sum(counts)
    seen = 0
    for count, bound in zip(counts, (*LATENCY_BOUNDS_MS, LATENCY_BOUNDS_MS[-1]), strict=True):
        seen += count
        if seen >= wanted and seen:
            return bound
    return 0


def _latency(broker: Broker) -> Reply:
    averages: dict[str, float] = {}
    percentiles: dict[str, object] = {}
    for kind, (counts, seconds) in broker.latencies().items():
        n = sum(counts)
        averages[f"{kind}Ms"] = round(1000 * seconds / n, 3) if n else 0
        percentiles[kind] = {f"p{part}": percentile(counts, part / 100) for part in (50, 95, 99)}
    return {"averages": averages, "percentiles": percentiles}


def _dashboard_overview(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    now = totals.counted(broker)
    push, pull, complete, fail = (round(rate, 2) for rate in totals.rates(broker, now))
    listed = _data(workers.HANDLERS["ListWorkers"], answer)["data"]
    return {
        "data": {
            "stats": {
                **{name: now[name] for name in ("waiting", "active", "delayed", "completed")},
                "dlq": now["failed"],
                "totalPushed": now["pushed"],
                "totalPulled": now["pulled"],
                "totalCompleted": now["total_completed"],
                "totalFailed": now["total_failed"],
                "uptime": broker.wall_ms - broker.started_ms,
            },
            "throughput": {
                "pushPerSec": push,
                "pullPerSec": pull,
                "completePerSec": complete,
                "failPerSec": fail,
            },
            "latency": _latency(broker),
            "memory": {
                "heapUsed": round(broker.engine.memory() / 1e6, 3),
                "heapTotal": round(totals.memory_mb(), 3),
                "rss": round(totals.memory_mb(), 3),
            },
            "collections": broker.sizes(),
            "workers": {
                "total": listed["stats"]["total"],
                "active": listed["stats"]["active"],
                "list": listed["workers"],
            },
            "crons": _crons(answer),
            "storage": _data(totals.HANDLERS["StorageStatus"], answer)["data"],
            "timestamp": broker.wall_ms,
        }
    }


def _dashboard_queues(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    shown = []
    for name in sorted(broker.engine.queue_names()):
        broker.engine.counts(name, broker.wall_ms)  # what is due is ready
        queue = broker.engine.queue(name)
        assert queue is not None
        shown.append(
            {
                "name": name,
                "waiting": queue.n_ready - queue.n_prioritized,
                "prioritized": queue.n_prioritized,
                "delayed": queue.n_delayed,
                "active": queue.n_active,
                "dlq": queue.n_failed,
                "paused": queue.paused,
            }
        )
    return {"data": {"queues": shown, "timestamp": broker.wall_ms}}


def _dashboard_queue(answer: Answer, fields: Fields) -> Reply:
    session = answer.session
    broker = session.broker
    name = fields["queue"]
    queue = broker.engine.queue(name)
    (completed, *_), (failed, *_) = (broker.engine.metrics(name, kind)[0] for kind in ("completed", "failed"))
    data: Reply = {
        "name": name,
        "counts": {
            **broker.engine.counts(name, broker.wall_ms),
            "totalCompleted": completed,
            "totalFailed": failed,
        },
        "paused": queue is not None and queue.paused,
        "priorityCounts": _data_of_queue("GetCountsPerPriority", answer, name)["counts"],
        "dlqPreview": broker.glances(session, name, ("failed",), PREVIEW),
        "timestamp": broker.wall_ms,
    }
    if fields["includeJobs"]:
        limit = fields["jobsLimit"]
        data["jobs"] = {key: broker.glances(session, name, states, limit) for key, states in _LISTED.items()}
    return {"data": data}


def _data_of_queue(cmd: str, answer: Answer, queue: str) -> Any:
    reply = queues.HANDLERS[cmd](answer, {"queue": queue})
    assert reply is not None
    return reply


def _prometheus(answer: Answer, fields: Fields) -> Reply:
    from qcore.broker.exposition import exposition

    broker = answer.session.broker
    most = getattr(answer.session.settings, "max_metric_queues", DEFAULT_METRIC_QUEUES)
    listed = _data(workers.HANDLERS["ListWorkers"], answer)["data"]["stats"]
    hooks = _data(webhooks.HANDLERS["ListWebhooks"], answer)["data"]["stats"]
    text = exposition(broker, listed, hooks, len(_crons(answer)), most)
    return {"data": {"metrics": text}}


HANDLERS: Mapping[str, Handler] = {
    "DashboardOverview": _dashboard_overview,
    "DashboardQueues": _dashboard_queues,
    "DashboardQueue": _dashboard_queue,
    "Prometheus": _prometheus,
}
