"""A queue as a whole: control, listings and counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from qcore.engine.queue import STALL_DEFAULTS

if TYPE_CHECKING:
    pass
from qcore.broker.handlers.answer import Answer, Fields, Handler, Reply, at_most

MAX_PAGE = 2**31  # of a listing: more jobs than there can be


def _promote_jobs(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    count = at_most(fields.get("count"))
    return {"count": broker.engine.promote_jobs(fields["queue"], broker.wall_ms, count=count)}


def _retry_completed(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    n = broker.engine.retry_completed(
        fields["queue"],
        broker.wall_ms,
        job_id=fields.get("id"),
        count=at_most(fields.get("count")),
        until_ms=fields.get("timestamp"),
    )
    return {"count": n}


def _set_stall_config(answer: Answer, fields: Fields) -> Reply:
    if "config" in fields:
        answer.session.broker.engine.configure(fields["queue"], stalls=fields["config"])
    return {}


def _get_stall_config(answer: Answer, fields: Fields) -> Reply:
    queue = answer.session.broker.engine.queue(fields["queue"])
    return {"config": dict(STALL_DEFAULTS) if queue is None else queue.stall_config}


def _pause(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    broker.engine.pause(fields["queue"], True, now_ms=broker.wall_ms)
    return {}


def _resume(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    broker.engine.pause(fields["queue"], False, now_ms=broker.wall_ms)
    return {}


def _is_paused(answer: Answer, fields: Fields) -> Reply:
    queue = answer.session.broker.engine.queue(fields["queue"])
    return {"paused": queue is not None and queue.paused}


def _drain(answer: Answer, fields: Fields) -> Reply:
    return {"count": answer.session.broker.engine.drain(fields["queue"])}


def _clean(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    ids = broker.engine.clean(
        fields["queue"],
        broker.wall_ms,
        grace_ms=fields["grace"],
        state=fields.get("state"),
        limit=at_most(fields["limit"]),
    )
    return {"count": len(ids), "ids": ids}


def _obliterate(answer: Answer, fields: Fields) -> Reply:
    answer.session.broker.engine.obliterate(fields["queue"])
    return {}


def _get_jobs(answer: Answer, fields: Fields) -> Reply:
    session = answer.session
    jobs = session.broker.jobs_packed(
        session,
        fields["queue"],
        fields.get("state"),
        min(fields["offset"], MAX_PAGE),
        min(fields["limit"], MAX_PAGE),
        fields["asc"],
    )
    return {"jobs": jobs}


def _get_counts_per_priority(answer: Answer, fields: Fields) -> Reply:
    counts = answer.session.broker.engine.counts_by_priority(fields["queue"])
    return {
        "queue": fields["queue"],
        "counts": {
            str(int(priority)) if priority.is_integer() else repr(priority): n
            for priority, n in counts.items()
        },
    }


def _get_job_counts(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    return {"counts": broker.engine.counts(fields["queue"], broker.wall_ms)}


def _count(answer: Answer, fields: Fields) -> Reply:
    queue = answer.session.broker.engine.queue(fields["queue"])
    return {"count": 0 if queue is None else queue.n_ready + queue.n_delayed}


def _list_queues(answer: Answer, fields: Fields) -> Reply:
    return {"queues": sorted(answer.session.broker.engine.queue_names())}


def _get_key_owner(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    return {
        "data": {"jobId": broker.engine.key_owner(fields["queue"], fields["deduplicationId"], broker.wall_ms)}
    }


def _remove_key(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    removed = broker.engine.remove_key(fields["queue"], fields["deduplicationId"], broker.wall_ms)
    return {"data": {"count": int(removed)}}


HANDLERS: Mapping[str, Handler] = {
    "PromoteJobs": _promote_jobs,
    "Drain": _drain,
    "Clean": _clean,
    "Obliterate": _obliterate,
    "RetryCompleted": _retry_completed,
    "SetStallConfig": _set_stall_config,
    "GetStallConfig": _get_stall_config,
    "GetJobs": _get_jobs,
    "GetCountsPerPriority": _get_counts_per_priority,
    "Pause": _pause,
    "Resume": _resume,
    "IsPaused": _is_paused,
    "GetJobCounts": _get_job_counts,
    "Count": _count,
    "ListQueues": _list_queues,
    "GetDeduplicationJobId": _get_key_owner,
    "RemoveDeduplicationKey": _remove_key,
}
