"""The dead letters of a queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qcore.engine.queue import DLQ_DEFAULTS
from qcore.errors import CommandError
from qcore.limits import (
    MAX_PULL_REPLY_BYTES,
)

if TYPE_CHECKING:
    from qcore.broker.core import Broker
from qcore.broker.handlers.answer import Answer, Fields, Handler, Reply, at_most

DEAD_REASONS = (
    "explicit_fail",
    "max_attempts_exceeded",
    "timeout",
    "stalled",
    "ttl_expired",
    "worker_lost",
    "unknown",
)


def _retry_dlq(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    if "filter" in fields and "jobId" not in fields:
        chosen = _chosen(broker, fields["queue"], fields["filter"], fields.get("count"))
        n = sum(broker.engine.retry_dead(fields["queue"], broker.wall_ms, job_id=id_) for id_ in chosen)
        return {"count": n}
    n = broker.engine.retry_dead(
        fields["queue"], broker.wall_ms, job_id=fields.get("jobId"), count=at_most(fields.get("count"))
    )
    return {"count": n}


def _chosen(broker: Broker, queue: str, wanted: Mapping[str, Any], count: int | None) -> list[str]:
    """Ids of the dead letters that a filter chooses, oldest first."""
    now = broker.wall_ms
    chosen = [
        job_id
        for job_id, entered_ms, letter in broker.engine.dead_letters(queue)
        if _selected(letter, entered_ms, wanted, now)
    ]
    offset = max(0, int(wanted.get("offset", 0)))
    bounds = [int(bound) for bound in (count, wanted.get("limit")) if bound is not None]
    return chosen[offset : offset + max(0, min(bounds))] if bounds else chosen[offset:]


def _purge_dlq(answer: Answer, fields: Fields) -> Reply:
    return {"count": answer.session.broker.engine.purge_dead(fields["queue"])}


def _remove_dlq_job(answer: Answer, fields: Fields) -> Reply:
    return {"data": {"removed": answer.session.broker.engine.remove_dead(fields["queue"], fields["jobId"])}}


def _get_dlq_stats(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    queue = fields["queue"]
    letters = broker.engine.dead_letters(queue)
    reasons = dict.fromkeys(DEAD_REASONS, 0)
    for _, _, letter in letters:
        reasons[letter["reason"]] = reasons.get(letter["reason"], 0) + 1
    entered = [entered_ms for _, entered_ms, _ in letters]
    stats: Reply = {
        "total": len(letters),
        "byReason": reasons,
        "byQueue": {queue: len(letters)} if letters else {},
        "pendingRetry": sum(letter["nextRetryAt"] is not None for _, _, letter in letters),
        "expired": sum(
            letter["expiresAt"] is not None and letter["expiresAt"] <= broker.wall_ms
            for _, _, letter in letters
        ),
        "oldestEntry": min(entered, default=None),
        "newestEntry": max(entered, default=None),
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
    wanted = fields.get("filter") or {}
    count = fields.get("count", wanted.get("limit"))
    offset = int(wanted.get("offset", 0))
    now = session.broker.wall_ms
    jobs: list[object] = []
    entries: list[Reply] = []
    size = 0
    for job, entered_ms, extra in session.broker.dead_letters(session, fields["queue"]):
        if count is not None and len(jobs) >= count:
            break
        letter = extra["dlq"]
        if not _selected(letter, entered_ms, wanted, now):
            continue
        if offset:
            offset -= 1
            continue
        size += 2 * len(job)
        if size > MAX_PULL_REPLY_BYTES:
            raise CommandError(
                f"The reply would pass {MAX_PULL_REPLY_BYTES} bytes: ask for at most {len(jobs)} entries"
            )
        jobs.append(job)
        entries.append(
            {
                "job": job,
                "enteredAt": entered_ms,
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


def _selected(letter: Mapping[str, Any], entered_ms: int, wanted: Mapping[str, Any], now: int) -> bool:
    if "reason" in wanted and letter["reason"] != wanted["reason"]:
        return False
    if "olderThan" in wanted and entered_ms >= wanted["olderThan"]:
        return False
    if "newerThan" in wanted and entered_ms <= wanted["newerThan"]:
        return False
    if "retriable" in wanted and bool(wanted["retriable"]) != (letter["nextRetryAt"] is not None):
        return False
    expired = letter["expiresAt"] is not None and letter["expiresAt"] <= now
    return "expired" not in wanted or bool(wanted["expired"]) == expired


HANDLERS: Mapping[str, Handler] = {
    "RetryDlq": _retry_dlq,
    "PurgeDlq": _purge_dlq,
    "RemoveDlqJob": _remove_dlq_job,
    "GetDlqStats": _get_dlq_stats,
    "SetDlqConfig": _set_dlq_config,
    "GetDlqConfig": _get_dlq_config,
    "Dlq": _dlq,
}
