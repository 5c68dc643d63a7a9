"""Deliveries: taking jobs, finishing them, keeping their leases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from qcore.engine.lanes import Wanted
from qcore.errors import CommandError, LeaseError, LimitError, QError
from qcore.limits import MAX_STACK_LINES
from qcore.wire.jsontext import fits
from qcore.wire.writer import Packed, Writer

if TYPE_CHECKING:
    pass
from qcore.broker.handlers.answer import Answer, Fields, Handler, Reply

_ANY: Final = object()


def _pull(answer: Answer, fields: Fields) -> None:
    owner = fields.get("owner")
    request_id = answer.request.get("reqId")
    packed = None
    if "reqId" in answer.request:
        writer = Writer()
        writer.value(request_id)
        packed = writer.take()
    answer.session.pull(
        fields["queue"],
        fields.get("count", 0),
        max(1, fields["lockTtl"]) if owner else 0,
        not (fields["detach"] and not owner),
        packed,
        fields["timeout"],
        _wanted(fields.get("group") or {}),
    )


def _wanted(group: Mapping[str, Any]) -> Wanted | None:
    """What a pull wants of grouped jobs; None when it says nothing of them."""
    if not group:
        return None
    limit = group.get("limit") or {"max": 0, "duration": 0}
    affinity = group.get("affinity", _ANY)
    return Wanted(
        concurrency=group.get("concurrency", 0),
        window_max=limit["max"],
        window_ms=limit["duration"],
        # An absent affinity takes any job, null only those without a group.
        affinity=None if affinity is _ANY else affinity or "",
        ungrouped_first=group.get("ungroupedFirst", True),
    )


def _ack(answer: Answer, fields: Fields) -> Reply:
    session = answer.session
    applied = session.finish(
        fields["id"],
        fields.get("token"),
        _stored(fields.get("result")),
        fields.get("removeOnComplete", False),
    )
    return {} if applied else {"data": {"applied": False, "reason": "already-finalized"}}


def _stored(result: object) -> bytes | None:
    """The bytes of a result; None when there is none."""
    if not isinstance(result, Packed):
        return None
    if result.fault is not None:
        raise CommandError(f"Job result {result.fault}")
    if not fits(result.data):
        raise LimitError("Job result too large (max 10MB)")
    return result.data


def _ackb(answer: Answer, fields: Fields) -> Reply:
    """One outcome a member. Refused members never harm their neighbours."""
    session = answer.session
    ids: list[str] = fields["ids"]
    tokens = fields.get("tokens") or [None] * len(ids)
    results = fields.get("results") or [None] * len(ids)
    removals = fields.get("removeOnCompletes") if fields.get("results") else None
    for name in ("tokens", "results", "removeOnCompletes"):
        given = fields.get(name)
        if given is not None and len(given) != len(ids):
            raise CommandError(f"ACKB {name} length must match ids length")
    if fields.get("atomic"):
        for job_id, token, result in zip(ids, tokens, results, strict=True):
            session.broker.engine.demand_ack(job_id, token)
            _stored(result)
    ignored: list[int] = []
    refused: list[Reply] = []
    first: QError | None = None
    seen: set[str] = set()
    accepted = 0
    for index, job_id in enumerate(ids):
        if job_id in seen:
            ignored.append(index)
            continue
        seen.add(job_id)
        try:
            applied = session.finish(
                job_id,
                tokens[index],
                _stored(results[index]),
                False if removals is None or removals[index] is None else removals[index],
            )
        except QError as error:
            first = first or error
            ignored.append(index)
            refused.append({"index": index, "id": job_id, "reason": str(error), **answer.coded(error.code)})
            continue
        accepted += 1
        if not applied:
            ignored.append(index)
    if first is not None and not accepted:
        raise first
    if not ignored:
        return {}
    data: Reply = {"ignoredIndices": ignored, "ignoredIds": [ids[index] for index in ignored]}
    if refused:
        data["refused"] = refused
    return {"data": data}


def _fail(answer: Answer, fields: Fields) -> Reply:
    session = answer.session
    error = fields.get("error")
    applied = session.fail(
        fields["id"],
        fields.get("token"),
        error if isinstance(error, str) else None,
        stack_lines(fields.get("stack")),
        bool(fields.get("unrecoverable")),
        fields.get("removeOnFail", False),
    )
    return {} if applied else {"data": {"applied": False, "reason": "already-finalized"}}


def stack_lines(stack: object) -> list[str] | None:
    """Lines of a trace: texts only, at most 100, trimmed, blank ones dropped."""
    if not isinstance(stack, list | tuple):
        return None
    lines = [line.strip() for line in stack if isinstance(line, str)][:MAX_STACK_LINES]
    return [line for line in lines if line]


def _job_heartbeat(answer: Answer, fields: Fields) -> Reply:
    if not answer.session.renew(fields["id"], fields.get("token"), fields.get("duration", 0)):
        raise LeaseError("Job not found or not active (or invalid token)")
    return {"data": {"ok": True}}


def _job_heartbeat_b(answer: Answer, fields: Fields) -> Reply:
    ids: list[str] = fields["ids"]
    # As in the reference, a missing token is none given, and that is no error.
    tokens = fields.get("tokens") or ()
    duration = fields.get("duration", 0)
    renewed = [
        answer.session.renew(job_id, tokens[index] if index < len(tokens) else None, duration)
        for index, job_id in enumerate(ids)
    ]
    data: Reply = {"ok": True, "count": sum(renewed)}
    if answer.session.announced("outcomes"):
        data["lost"] = [job_id for job_id, good in zip(ids, renewed, strict=True) if not good]
    return {"data": data}


def _extend_lock(answer: Answer, fields: Fields) -> Reply:
    token = fields.get("token")
    if not token or not answer.session.renew(fields["id"], token, fields["duration"]):
        raise LeaseError("Lock not found or invalid token")
    return {}


def _extend_locks(answer: Answer, fields: Fields) -> Reply:
    members = zip(fields["ids"], fields["tokens"], fields["durations"], strict=False)
    return {
        "count": sum(
            bool(token) and answer.session.renew(job_id, token, duration)
            for job_id, token, duration in members
        )
    }


HANDLERS: Mapping[str, Handler] = {
    "PULL": _pull,
    "PULLB": _pull,
    "ACK": _ack,
    "ACKB": _ackb,
    "FAIL": _fail,
    "ExtendLock": _extend_lock,
    "ExtendLocks": _extend_locks,
    "JobHeartbeat": _job_heartbeat,
    "JobHeartbeatB": _job_heartbeat_b,
}
