"""The dead letters of a queue."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from qcore.broker.handlers.answer import Answer, Fields, Handler, Reply, at_most
from qcore.engine.queue import DLQ_DEFAULTS
from qcore.errors import LimitError
from qcore.limits import (
    MAX_PULL_REPLY_BYTES,
)
from qcore.wire.fields import DEAD_REASONS


def _retry_dlq(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    queue, now = fields["queue"], broker.wall_ms
    if "filter" in fields and "jobId" not in fields:
        offset, limit = _page(fields["filter"], fields.get("count"))
        chosen = broker.engine.choose_dead(
            queue, now, wanted=dict(fields["filter"]), offset=offset, limit=limit
        )
        return {"count": sum(broker.engine.retry_dead(queue, now, job_id=job_id) for job_id in chosen)}
    n = broker.engine.retry_dead(queue, now, job_id=fields.get("jobId"), count=at_most(fields.get("count")))
    return {"count": n}


def _page(wanted: Mapping[str, Any], count: int | None) -> tuple[int, int]:
    """How many of the selected to pass over, and how many to take at most; -1 = all."""
    bounds = [max(0, int(bound)) for bound in (count, wanted.get("limit")) if bound is not None]
    return min(max(0, int(wanted.get("offset", 0))), sys.maxsize), at_most(min(bounds, default=None))


def _purge_dlq(answer: Answer, fields: Fields) -> Reply:
    return {"count": answer.session.broker.engine.purge_dead(fields["queue"])}


def _remove_dlq_job(answer: Answer, fields: Fields) -> Reply:
    return {"data": {"removed": answer.session.broker.engine.remove_dead(fields["queue"], fields["jobId"])}}


def _get_dlq_stats(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    queue = fields["queue"]
    found = broker.engine.dead_letter_stats(queue, broker.wall_ms)
    stats: Reply = {
        "total": found["total"],
        "byReason": dict.fromkeys(DEAD_REASONS, 0) | found["reasons"],
        "byQueue": {queue: found["total"]},
        "pendingRetry": found["pending"],
        "expired": found["expired"],
        "oldestEntry": found["oldest"],
        "newestEntry": found["newest"],
    }
    return {"data": {"stats": stats}}


def _set_dlq_config(answer: Answer, fields: Fields) -> Reply:
    answer.session.broker.engine.configure(fields["queue"], dead=fields["config"])
    return {}


def _get_dlq_config(answer: Answer, fields: Fields) -> Reply:
    queue = answer.session.broker.engine.queue(fields["queue"])
    return {"config": dict(DLQ_DEFAULTS) if queue is None else queue.dlq_config}


def _dlq(answer: Answer, fields: Fields) -> Reply:
    session = answer.session
    wanted = dict(fields.get("filter") or {})
    offset, limit = _page(wanted, fields.get("count"))
    jobs: list[object] = []
    entries: list[Reply] = []
    size = 0
    for job, entered_ms, extra in session.broker.dead_letters(
        session, fields["queue"], wanted, offset, limit
    ):
        letter = extra["dlq"]
        size += 2 * len(job)
        if size > MAX_PULL_REPLY_BYTES:
            raise LimitError(
                f"The reply would pass {MAX_PULL_REPLY_BYTES} bytes: ask for at most {len(jobs)} entries"
            )
        jobs.append(job)
        entries.append(
            {
                "job": job,
                "enteredAt": letter.get("enteredAt", entered_ms),
                "reason": letter["reason"],
                "error": letter["error"],
                "attempts": extra.get("attemptRecords", []),
                "retryCount": letter["retryCount"],
                "lastRetryAt": letter["lastRetryAt"],
                "nextRetryAt": letter["nextRetryAt"],
                "expiresAt": letter["expiresAt"],
            }
        )
    return {"jobs": jobs, "entries": entries}


HANDLERS: Mapping[str, Handler] = {
    "RetryDlq": _retry_dlq,
    "PurgeDlq": _purge_dlq,
    "RemoveDlqJob": _remove_dlq_job,
    "GetDlqStats": _get_dlq_stats,
    "SetDlqConfig": _set_dlq_config,
    "GetDlqConfig": _get_dlq_config,
    "Dlq": _dlq,
}
