"""Limits of queues and of groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qcore.engine.lanes import Group
from qcore.broker.handlers.answer import Answer, Fields, Handler, Reply


def _rate_limit(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    broker.engine.set_rate(
        fields["queue"],
        fields["limit"],
        broker.wall_ms,
        broker.monotonic_ns,
        duration_ms=fields["duration"],
        ttl_ms=fields.get("ttl", 0),
    )
    return {}


def _rate_limit_clear(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    broker.engine.set_rate(fields["queue"], None, broker.wall_ms, broker.monotonic_ns)
    return {}


def _set_concurrency(answer: Answer, fields: Fields) -> Reply:
    answer.session.broker.engine.set_concurrency(fields["queue"], fields["limit"])
    return {}


def _clear_concurrency(answer: Answer, fields: Fields) -> Reply:
    answer.session.broker.engine.set_concurrency(fields["queue"], None)
    return {}


def _get_queue_limits(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    rate, wait, concurrency, maxed = broker.engine.queue_limits(
        fields["queue"], broker.monotonic_ns, max_jobs=fields.get("maxJobs")
    )
    return {
        "data": {
            "limits": {
                "rateLimit": None if rate is None else {"max": rate[0], "duration": rate[1]},
                "rateLimitTtl": wait,
                "concurrencyLimit": concurrency,
                "maxed": maxed,
            }
        }
    }


def _group(answer: Answer, fields: Fields) -> Group | None:
    return answer.session.broker.engine.group(fields["queue"], fields["groupId"])


def _get_group_jobs_count(answer: Answer, fields: Fields) -> Reply:
    group = _group(answer, fields)
    return {"data": {"count": 0 if group is None else group.n_ready + group.n_delayed}}


def _get_groups_jobs_count(answer: Answer, fields: Fields) -> Reply:
    queue = answer.session.broker.engine.queue(fields["queue"])
    lanes = None if queue is None else queue.lanes
    return {"data": {"count": 0 if lanes is None else lanes.n_ready + lanes.n_delayed}}


def _get_group_active_count(answer: Answer, fields: Fields) -> Reply:
    group = _group(answer, fields)
    return {"data": {"count": 0 if group is None else group.n_active}}


def _set_group_rate_limit(answer: Answer, fields: Fields) -> Reply:
    answer.session.broker.engine.set_group_rate(
        fields["queue"], fields["groupId"], fields["max"], fields["duration"]
    )
    return {}


def _get_group_rate_limit(answer: Answer, fields: Fields) -> Reply:
    group = _group(answer, fields)
    if group is None or not group.rate_max:
        return {"data": {"limit": None}}
    return {"data": {"limit": {"max": group.rate_max, "duration": group.rate_ms}}}


def _remove_group_rate_limit(answer: Answer, fields: Fields) -> Reply:
    removed = answer.session.broker.engine.set_group_rate(fields["queue"], fields["groupId"], None)
    return {"data": {"removed": int(removed)}}


def _get_group_rate_limit_ttl(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    ttl = broker.engine.group_wait_ms(
        fields["queue"], fields["groupId"], broker.monotonic_ns, max_jobs=fields.get("maxJobs")
    )
    return {"data": {"ttl": ttl}}


def _set_group_concurrency(answer: Answer, fields: Fields) -> Reply:
    answer.session.broker.engine.set_group_concurrency(
        fields["queue"], fields["groupId"], fields["concurrency"]
    )
    return {}


def _get_group_concurrency(answer: Answer, fields: Fields) -> Reply:
    group = _group(answer, fields)
    return {"data": {"concurrency": None if group is None else group.concurrency or None}}


def _remove_group_concurrency(answer: Answer, fields: Fields) -> Reply:
    removed = answer.session.broker.engine.set_group_concurrency(fields["queue"], fields["groupId"], None)
    return {"data": {"removed": int(removed)}}


def _pause_group(answer: Answer, fields: Fields) -> Reply:
    changed = answer.session.broker.engine.pause_group(fields["queue"], fields["groupId"], True)
    return {"data": {"changed": changed}}


def _resume_group(answer: Answer, fields: Fields) -> Reply:
    changed = answer.session.broker.engine.pause_group(fields["queue"], fields["groupId"], False)
    return {"data": {"changed": changed}}


def _is_group_paused(answer: Answer, fields: Fields) -> Reply:
    group = _group(answer, fields)
    return {"data": {"paused": group is not None and group.paused}}


def _rate_limit_group(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    broker.engine.block_group(
        fields["queue"], fields["groupId"], fields["duration"], broker.wall_ms, broker.monotonic_ns
    )
    return {}


HANDLERS: Mapping[str, Handler] = {
    "RateLimit": _rate_limit,
    "RateLimitClear": _rate_limit_clear,
    "SetConcurrency": _set_concurrency,
    "ClearConcurrency": _clear_concurrency,
    "GetQueueLimits": _get_queue_limits,
    "GetGroupJobsCount": _get_group_jobs_count,
    "GetGroupsJobsCount": _get_groups_jobs_count,
    "GetGroupActiveCount": _get_group_active_count,
    "SetGroupRateLimit": _set_group_rate_limit,
    "GetGroupRateLimit": _get_group_rate_limit,
    "RemoveGroupRateLimit": _remove_group_rate_limit,
    "GetGroupRateLimitTtl": _get_group_rate_limit_ttl,
    "SetGroupConcurrency": _set_group_concurrency,
    "GetGroupConcurrency": _get_group_concurrency,
    "RemoveGroupConcurrency": _remove_group_concurrency,
    "PauseGroup": _pause_group,
    "ResumeGroup": _resume_group,
    "IsGroupPaused": _is_group_paused,
    "RateLimitGroup": _rate_limit_group,
}
