"""A queue as a whole: control, listings and counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from qcore.engine.queue import STALL_DEFAULTS

if TYPE_CHECKING:
    pass
from qcore.broker.handlers import archived
from qcore.broker.handlers.answer import Answer, Fields, Handler, Reply, at_most

MAX_PAGE = 2**31  # of a listing: more jobs than there can be


def _promote_jobs(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    count = at_most(fields.get("count"))
    return {"count": broker.engine.promote_jobs(fields["queue"], broker.wall_ms, count=count)}


def _retry_completed(answer: Answer, fields: Fields) -> Reply | None:
    engine = answer.session.broker.engine
    queue, now_ms, until_ms = fields["queue"], answer.session.broker.wall_ms, fields.get("timestamp")
    count = at_most(fields.get("count"))
    if "id" in fields or not archived.has_archived(answer, queue):
        n = engine.retry_completed(queue, now_ms, job_id=fields.get("id"), count=count, until_ms=until_ms)
        return {"count": n}
    # What is started over may be completed again before the last one is: that end is none of these.
    until_ms = now_ms if until_ms is None else min(until_ms, now_ms)
    total = 0

    def some(most: int) -> int:
        nonlocal total
        n = engine.retry_completed(queue, now_ms, count=most, until_ms=until_ms)
        total += n
        return n

    def work() -> archived.Work:
        yield from archived.on_oldest(answer, queue, until_ms, count, some)
        return {"count": total}

    return archived.in_turns(answer, work())


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


def _clean(answer: Answer, fields: Fields) -> Reply | None:
    engine = answer.session.broker.engine
    queue, state, grace_ms, limit = (
        fields["queue"],
        fields.get("state"),
        fields["grace"],
        at_most(fields["limit"]),
    )
    now_ms = answer.session.broker.wall_ms
    ids: list[str] = []

    def some(most: int) -> int:
        cleaned = engine.clean(queue, now_ms, grace_ms=grace_ms, state=state, limit=most)
        ids.extend(cleaned)
        return len(cleaned)

    def work() -> archived.Work:
        yield from archived.on_oldest(answer, queue, now_ms - grace_ms, limit, some)
        return {"count": len(ids), "ids": ids}

    if state == "completed" and limit > 0 and archived.has_archived(answer, queue):
        return archived.in_turns(answer, work())
    some(limit)
    return {"count": len(ids), "ids": ids}


def _obliterate(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    far = archived.has_archived(answer, fields["queue"])
    broker.engine.obliterate(fields["queue"])
    if far:
        broker.archive.sweep_soon()
    return {}


def _get_jobs(answer: Answer, fields: Fields) -> Reply | None:
    session = answer.session
    queue, states, asc = fields["queue"], fields.get("state"), fields["asc"]
    offset, limit = min(fields["offset"], MAX_PAGE), min(fields["limit"], MAX_PAGE)
    if limit > 0 and (states is None or "completed" in states) and archived.has_archived(answer, queue):
        return archived.in_turns(answer, archived.page_of_all(answer, queue, states, offset, limit, asc))
    return {"jobs": session.broker.jobs_packed(session, queue, states, offset, limit, asc)}


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
