"""One job: changing it, asking about it, waiting for it."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from qcore.errors import NotFoundError, StateError

if TYPE_CHECKING:
    pass
from qcore.broker.handlers.answer import Answer, Fields, Handler, Reply
from qcore.broker.handlers.flows import keep_reserved


def _move_to_delayed(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    broker.engine.move_to_delayed(
        fields["id"], math.floor(fields["delay"]), broker.wall_ms, token=fields.get("token")
    )
    return {}


def _promote(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    if not broker.engine.promote(fields["id"], broker.wall_ms):
        raise StateError("Job not found or not delayed")
    return {}


def _change_delay(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    delay_ms = math.floor(fields["delay"])
    if not broker.engine.change_delay(fields["id"], delay_ms, broker.wall_ms, token=fields.get("token")):
        raise StateError("Job not found or cannot change delay")
    return {}


def _move_to_wait(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    broker.engine.move_to_wait(fields["id"], broker.wall_ms, token=fields.get("token"))
    return {}


def _cancel(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    if not broker.engine.cancel(fields["id"], broker.wall_ms):
        raise StateError("Job not found or cannot be cancelled")
    return {}


def _discard(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    broker.engine.discard(fields["id"], broker.wall_ms, token=fields.get("token"))
    return {}


def _change_priority(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    priority = float(fields["priority"])
    if not broker.engine.change_priority(fields["id"], priority, broker.wall_ms, lifo=fields.get("lifo")):
        raise StateError("Job not found or not in queue")
    return {}


def _by_holder(answer: Answer, fields: Fields) -> None:
    """Who shows a token acts as the holder of the job, and must be it (C003)."""
    token = fields.get("token")
    if token:
        answer.session.broker.engine.demand_holder(fields["id"], token)


def _update(answer: Answer, fields: Fields) -> Reply:
    session = answer.session
    _by_holder(answer, fields)
    data = keep_reserved(session.broker.engine.data(fields["id"]), fields["data"].data)
    if not session.update(fields["id"], data):
        raise StateError("Job not found or cannot be updated")
    return {}


def _progress(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    if broker.engine.state(fields["id"]) == "active":
        _by_holder(answer, fields)
    broker.engine.set_progress(
        fields["id"],
        fields["progress"],
        broker.wall_ms,
        broker.monotonic_ns,
        message=fields.get("message"),
    )
    return {}


def _get_progress(answer: Answer, fields: Fields) -> Reply:
    progress, message = answer.session.broker.engine.progress(fields["id"])
    return {"progress": progress, "message": message}


def _add_log(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    _by_holder(answer, fields)
    broker.engine.add_log(fields["id"], fields["message"], fields["level"], broker.wall_ms)
    return {"data": {"added": True}}


def _get_logs(answer: Answer, fields: Fields) -> Reply:
    lines = answer.session.broker.engine.logs(fields["id"])
    end = fields.get("end", -1)
    page = lines[fields["start"] : end + 1 if end != -1 else None]
    logs = [{"timestamp": at, "level": level, "message": text} for at, level, text in page]
    return {"data": {"logs": logs, "count": len(lines)}}


def _clear_logs(answer: Answer, fields: Fields) -> Reply:
    answer.session.broker.engine.clear_logs(fields["id"], keep=min(fields["keepLogs"], sys.maxsize))
    return {}


def _remove_job_key(answer: Answer, fields: Fields) -> Reply:
    return {"data": {"removed": answer.session.broker.engine.remove_job_key(fields["id"])}}


def _get_job(answer: Answer, fields: Fields) -> Reply:
    session = answer.session
    job = session.broker.job_packed(session, fields["id"])
    if job is None:
        raise NotFoundError("Job not found")
    return {"job": job}


def _get_state(answer: Answer, fields: Fields) -> Reply:
    return {"id": fields["id"], "state": answer.session.broker.engine.state(fields["id"])}


def _get_result(answer: Answer, fields: Fields) -> Reply:
    session = answer.session
    reply: Reply = {"id": fields["id"]}
    result = session.broker.result_packed(session, fields["id"])
    if result is not None:
        reply["result"] = result
    return reply


def _get_job_by_custom_id(answer: Answer, fields: Fields) -> Reply:
    session = answer.session
    job = session.broker.live_job_packed(session, fields["customId"])
    if job is None:
        raise NotFoundError("Job not found")
    return {"job": job}


def _wait_job(answer: Answer, fields: Fields) -> Reply | None:
    """Look and register in one step, so that no outcome can fall between."""
    session = answer.session
    job_id = fields["id"]
    state = session.broker.engine.watch(job_id)
    if state == "removed":
        raise NotFoundError("Job not found")
    if state == "failed" or (state == "waiting" and session.broker.parting):
        return {"completed": False}
    if state == "waiting":
        session.broker.watch(session, job_id, answer.request, fields["timeout"])
        return None
    reply: Reply = {"completed": True}
    result = session.broker.result_packed(session, job_id, kept=True)
    if result is not None:
        reply["result"] = result
    return reply


HANDLERS: Mapping[str, Handler] = {
    "Promote": _promote,
    "ChangeDelay": _change_delay,
    "MoveToDelayed": _move_to_delayed,
    "MoveToWait": _move_to_wait,
    "Cancel": _cancel,
    "Discard": _discard,
    "ChangePriority": _change_priority,
    "Update": _update,
    "Progress": _progress,
    "GetProgress": _get_progress,
    "AddLog": _add_log,
    "GetLogs": _get_logs,
    "ClearLogs": _clear_logs,
    "RemoveJobDeduplicationKey": _remove_job_key,
    "GetJobByCustomId": _get_job_by_custom_id,
    "GetJob": _get_job,
    "GetState": _get_state,
    "GetResult": _get_result,
    "WaitJob": _wait_job,
}
