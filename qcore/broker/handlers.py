"""Commands in their general form: decode, check, run, answer.

Runs under the broker's lock, called by a session for every frame that its compiled
paths leave alone. Each handler gets the checked fields of one request and returns
the fields of the reply, or None when it has answered by itself.
"""

from __future__ import annotations

import gc
import hmac
import logging
import math
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from qcore.engine.queue import DLQ_DEFAULTS, STALL_DEFAULTS
from qcore.errors import CommandError, LeaseError, ProtocolError, QError
from qcore.limits import (
    DEFAULT_ATTEMPTS,
    DEFAULT_BACKOFF_MS,
    DEFAULT_STACK_LINES,
    MAX_DATA_BYTES,
    MAX_PULL_REPLY_BYTES,
    MAX_STACK_LINES,
)
from qcore.wire import commands
from qcore.wire.commands import Command
from qcore.wire.packing import take_name, unpack_request
from qcore.wire.writer import Packed, Writer

if TYPE_CHECKING:
    from qcore.broker.core import Broker
    from qcore.broker.session import Added, Session

logger = logging.getLogger("qcore.broker")

Fields = Mapping[str, Any]
Reply = dict[str, object]

PROTOCOL_VERSION = 3
SERVER_NAME = "bunqueue"  # some clients may look at it; the version is ours
CAPABILITIES = ("pipelining", "separate-job-name")
#: Announced only to clients that list them; each changes what such a client gets.
EXTENSIONS = {"int64": 1, "typed": 2, "outcomes": 4, "codes": 8}
WORKER_STALE_MS = 30_000
MAX_PAGE = 2**31  # of a listing: more jobs than there can be
DEAD_REASONS = (
    "explicit_fail",
    "max_attempts_exceeded",
    "timeout",
    "stalled",
    "ttl_expired",
    "worker_lost",
    "unknown",
)

#: Options that are checked but not served. A value that asks for one is refused, never ignored.
UNSERVED_OPTIONS = (
    "uniqueKey",
    "dedup",
    "dependsOn",
    "childrenIds",
    "parentId",
    "groupId",
    "groupMaxSize",
    "repeat",
    "failParentOnFailure",
    "removeDependencyOnFailure",
    "ignoreDependencyOnFailure",
    "continueParentOnFailure",
)
MAX_BACKOFF_MS = 0xFFFFFFFF  # what a record can hold
_KEPT_OPTIONS = (
    "ttl",
    "timeout",
    "stallTimeout",
    "tags",
    "keepLogs",
    "sizeLimit",
    "debounceId",
    "debounceTtl",
)


def refuse_frame(frame: bytes, text: str) -> Reply:
    """The error for a frame that is not run; its request id is echoed if it is a text."""
    reply: Reply = {"ok": False, "error": text}
    try:
        request = unpack_request(frame)
    except ProtocolError:
        return reply
    if isinstance(request, dict) and isinstance(request.get("reqId"), str):
        reply["reqId"] = request["reqId"]
    return reply


def handle(session: Session, frame: bytes) -> int:
    """Serve one frame. Every frame gets exactly one reply, now or later."""
    try:
        request = unpack_request(frame)
    except ProtocolError:
        return session.reply({"ok": False, "error": "Invalid command format"})
    if request is None:
        return session.reply({"ok": False, "error": "Invalid command format"})
    if not isinstance(request, dict) or not request.get("cmd"):
        return session.reply(_early("Invalid command", request))
    cmd = request["cmd"]
    if not session.authenticated and cmd != "Auth":
        return session.reply(_early("Not authenticated", request))
    handler = HANDLERS.get(cmd) if isinstance(cmd, str) else None
    try:
        if handler is None:
            commands.find(cmd)  # has the text
            raise CommandError(f"Unknown command: {cmd}")
        command = commands.COMMANDS[cmd]
        fields = commands.check(command, request)
    except CommandError as error:
        return session.reply(_early(error.message, request))
    answer = Answer(session, request)
    try:
        reply = handler(answer, fields)
    except QError as error:
        reply = {"ok": False, "error": str(error)}
        answer.held = False
    except Exception:
        # A fault of ours must cost its caller an error, and nobody else anything.
        logger.exception("%s failed", cmd)
        reply = {"ok": False, "error": "Internal server error"}
        answer.held = False
    if reply is None:
        return 0
    reply.setdefault("ok", True)
    return answer.send(reply, command)


def _early(text: str, request: object) -> Reply:
    reply: Reply = {"ok": False, "error": text}
    if isinstance(request, dict) and isinstance(request.get("reqId"), str):
        reply["reqId"] = request["reqId"]
    return reply


class Answer:
    """The reply to one request in the making."""

    __slots__ = ("add", "held", "request", "session")

    def __init__(self, session: Session, request: dict[str, object]) -> None:
        self.session = session
        self.request = request
        self.held: bool | None = None
        self.add = False

    def send(self, reply: Reply, command: Command) -> int:
        ordered: Reply = {"ok": reply.pop("ok"), **reply}
        if "reqId" in self.request:
            ordered["reqId"] = self.request["reqId"]
        held = self.held
        if held is None:
            held = command.level == "committed" and self.session.broker.hold_changes
        return self.session.reply(ordered, held=held, add=self.add)


# --- session ---------------------------------------------------------------------------


def _hello(answer: Answer, fields: Fields) -> Reply:
    from qcore import __version__

    session = answer.session
    asked = fields.get("capabilities") or ()
    extra = [name for name in EXTENSIONS if name in asked]
    session.announce(sum(EXTENSIONS[name] for name in extra))
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "capabilities": [*CAPABILITIES, *extra],
        "server": SERVER_NAME,
        "version": __version__,
    }


def _auth(answer: Answer, fields: Fields) -> Reply:
    session = answer.session
    token = fields.get("token")
    known = session.settings.tokens if session.settings is not None else ()
    good = False
    if isinstance(token, str):
        for candidate in known:  # all of them, in constant time each
            good |= hmac.compare_digest(candidate.encode(), token.encode())
    if not good:
        raise CommandError("Invalid token")
    session.authenticated = True
    return {}


def _ping(answer: Answer, fields: Fields) -> Reply:
    return {"data": {"pong": True, "time": answer.session.broker.wall_ms}}


# --- adding -------------------------------------------------------------------------------


def _push(answer: Answer, fields: Fields) -> Reply:
    session = answer.session
    _admissible(session, [fields])
    outcome = session.add(fields["queue"], [admission(fields)])
    _hold_add(answer, outcome)
    return {"id": outcome.ids[0]}


def _pushb(answer: Answer, fields: Fields) -> Reply:
    session = answer.session
    jobs: list[Fields] = fields["jobs"]
    for index, options in enumerate(jobs):
        try:
            _admissible(session, [options])
        except CommandError as error:
            raise CommandError(f"jobs[{index}]: {error.message}") from None
    outcome = session.add(fields["queue"], [admission(options) for options in jobs])
    _hold_add(answer, outcome)
    return {"ids": outcome.ids}


def _hold_add(answer: Answer, outcome: Added) -> None:
    broker = answer.session.broker
    answer.add = outcome.how == "staged"
    held = broker.durable if outcome.how in ("staged", "committed") else broker.hold_adds
    answer.held = held and bool(outcome.ids)  # an empty batch waits for nothing


def _admissible(session: Session, jobs: list[Fields]) -> None:
    """Refuse what cannot be admitted now, before anything changes."""
    broker = session.broker
    for options in jobs:
        for name in UNSERVED_OPTIONS:
            if options.get(name):
                raise CommandError(f"{name} is not supported by this server yet")
        for name in ("removeOnComplete", "removeOnFail"):
            if not isinstance(options.get(name, False), bool):
                raise CommandError(
                    f"{name} must be a boolean: other forms are not supported by this server yet"
                )
        data = options.get("data")
        limit = options.get("sizeLimit")
        if isinstance(data, Packed):
            if len(data) > MAX_DATA_BYTES:
                raise CommandError("Job data too large (max 10MB)")
            if limit is not None and len(data) > limit:
                raise CommandError(f"Job data of {len(data)} bytes is over its sizeLimit of {limit}")
        if broker.degraded is not None:
            kind = "disk full" if broker.degraded[1] == "full" else "storage error"
            if options.get("durable"):
                raise CommandError(f"Nothing was stored: the data file cannot be written ({kind})")
            if broker.unflushed > broker.unflushed_limit:
                raise CommandError(
                    f"Nothing was stored: {broker.unflushed} changes wait for the disk ({kind})"
                )


def admission(options: Fields) -> dict[str, Any]:
    """Checked job options in the form in which a session admits them."""
    extra = {name: options[name] for name in _KEPT_OPTIONS if options.get(name) not in (None, [], ())}
    if not extra.get("timeout"):
        extra.pop("timeout", None)  # 0 = none
    backoff = options.get("backoff", DEFAULT_BACKOFF_MS)
    if isinstance(backoff, Mapping):
        extra["backoffConfig"] = dict(backoff)
        backoff = backoff["delay"]
    lines = options.get("stackTraceLimit", DEFAULT_STACK_LINES)
    if lines != DEFAULT_STACK_LINES:
        extra["stackTraceLimit"] = lines
    data = options.get("data")
    name = options.get("name")
    if name is None:
        # Clients of protocol 2 put the name into the data.
        split = take_name(data) if isinstance(data, Packed) else None
        name, data = split if split is not None else ("default", data)
        name = commands.job_name(name)
    return {
        "name": name,
        "data": data.data if isinstance(data, Packed) else None,
        "job_id": options.get("customId"),
        "priority": float(options.get("priority", 0)),
        "delay_ms": math.floor(options.get("delay", 0)),
        "created_ms": options.get("timestamp"),
        "attempts": options.get("maxAttempts", DEFAULT_ATTEMPTS),
        # No wait is longer than a day, so what is cut off here changes none.
        "backoff_ms": min(math.floor(backoff), MAX_BACKOFF_MS),
        "lifo": bool(options.get("lifo")),
        "remove_on_complete": bool(options.get("removeOnComplete")),
        "remove_on_fail": bool(options.get("removeOnFail")),
        "durable": bool(options.get("durable")),
        "extra": extra or None,
    }


# --- taking --------------------------------------------------------------------------------


def _pull(answer: Answer, fields: Fields) -> None:
    if fields.get("group"):
        raise CommandError("group is not supported by this server yet")
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
    )


# --- finishing -----------------------------------------------------------------------------


def _ack(answer: Answer, fields: Fields) -> Reply:
    session = answer.session
    applied = session.finish(
        fields["id"], fields.get("token"), _result(fields), _removal(fields.get("removeOnComplete"))
    )
    return {} if applied else {"data": {"applied": False, "reason": "already-finalized"}}


def _result(fields: Fields) -> bytes | None:
    result = fields.get("result")
    if not isinstance(result, Packed):
        return None
    if len(result) > MAX_DATA_BYTES:
        raise CommandError("Job result too large (max 10MB)")
    return result.data


def _removal(value: object) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    raise CommandError("removal other than true or false is not supported by this server yet")


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
    for result in results:
        if isinstance(result, Packed) and len(result) > MAX_DATA_BYTES:
            raise CommandError("Job result too large (max 10MB)")
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
        result = results[index]
        try:
            applied = session.finish(
                job_id,
                tokens[index],
                result.data if isinstance(result, Packed) else None,
                removals is not None and removals[index] is True,
            )
        except QError as error:
            first = first or error
            ignored.append(index)
            refused.append({"index": index, "id": job_id, "reason": str(error)})
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
        error if isinstance(error, str) else "Unknown error",
        stack_lines(fields.get("stack")),
        bool(fields.get("unrecoverable")),
        _removal(fields.get("removeOnFail")),
    )
    return {} if applied else {"data": {"applied": False, "reason": "already-finalized"}}


def stack_lines(stack: object) -> list[str] | None:
    """Lines of a trace: texts only, at most 100, trimmed, blank ones dropped."""
    if not isinstance(stack, list | tuple):
        return None
    lines = [line.strip() for line in stack if isinstance(line, str)][:MAX_STACK_LINES]
    return [line for line in lines if line]


def _move_to_delayed(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    broker.engine.move_to_delayed(
        fields["id"], math.floor(fields["delay"]), broker.wall_ms, token=fields.get("token")
    )
    return {}


def _promote(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    if not broker.engine.promote(fields["id"], broker.wall_ms):
        raise CommandError("Job not found or not delayed")
    return {}


def _change_delay(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    delay_ms = math.floor(fields["delay"])
    if not broker.engine.change_delay(fields["id"], delay_ms, broker.wall_ms, token=fields.get("token")):
        raise CommandError("Job not found or cannot change delay")
    return {}


def _move_to_wait(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    broker.engine.move_to_wait(fields["id"], broker.wall_ms, token=fields.get("token"))
    return {}


def _cancel(answer: Answer, fields: Fields) -> Reply:
    if not answer.session.broker.engine.cancel(fields["id"]):
        raise CommandError("Job not found or cannot be cancelled")
    return {}


def _discard(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    broker.engine.discard(fields["id"], broker.wall_ms, token=fields.get("token"))
    return {}


def _promote_jobs(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    count = _most(fields.get("count"))
    return {"count": broker.engine.promote_jobs(fields["queue"], broker.wall_ms, count=count)}


def _most(count: int | None) -> int:
    """A bound on a number of jobs; -1 = none."""
    return -1 if count is None else min(count, sys.maxsize)


def _change_priority(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    priority = float(fields["priority"])
    if not broker.engine.change_priority(fields["id"], priority, broker.wall_ms, lifo=fields.get("lifo")):
        raise CommandError("Job not found or not in queue")
    return {}


def _update(answer: Answer, fields: Fields) -> Reply:
    if not answer.session.update(fields["id"], fields["data"].data):
        raise CommandError("Job not found or cannot be updated")
    return {}


def _progress(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    broker.engine.set_progress(
        fields["id"], fields["progress"], broker.wall_ms, message=fields.get("message")
    )
    return {}


def _get_progress(answer: Answer, fields: Fields) -> Reply:
    progress, message = answer.session.broker.engine.progress(fields["id"])
    return {"progress": progress, "message": message}


def _add_log(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
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


def _retry_completed(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    n = broker.engine.retry_completed(
        fields["queue"],
        broker.wall_ms,
        job_id=fields.get("id"),
        count=_most(fields.get("count")),
        until_ms=fields.get("timestamp"),
    )
    return {"count": n}


def _retry_dlq(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    if "filter" in fields and "jobId" not in fields:
        chosen = _chosen(broker, fields["queue"], fields["filter"], fields.get("count"))
        n = sum(broker.engine.retry_dead(fields["queue"], broker.wall_ms, job_id=id_) for id_ in chosen)
        return {"count": n}
    n = broker.engine.retry_dead(
        fields["queue"], broker.wall_ms, job_id=fields.get("jobId"), count=_most(fields.get("count"))
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


def _set_stall_config(answer: Answer, fields: Fields) -> Reply:
    if "config" in fields:
        answer.session.broker.engine.configure(fields["queue"], stalls=fields["config"])
    return {}


def _get_stall_config(answer: Answer, fields: Fields) -> Reply:
    queue = answer.session.broker.engine.queue(fields["queue"])
    return {"config": dict(STALL_DEFAULTS) if queue is None else queue.stall_config}


# --- queues ----------------------------------------------------------------------------------


def _pause(answer: Answer, fields: Fields) -> Reply:
    answer.session.broker.engine.pause(fields["queue"], True)
    return {}


def _resume(answer: Answer, fields: Fields) -> Reply:
    answer.session.broker.engine.pause(fields["queue"], False)
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
        limit=_most(fields["limit"]),
    )
    return {"count": len(ids), "ids": ids}


def _obliterate(answer: Answer, fields: Fields) -> Reply:
    answer.session.broker.engine.obliterate(fields["queue"])
    return {}


# --- leases ---------------------------------------------------------------------------------


def _job_heartbeat(answer: Answer, fields: Fields) -> Reply:
    if not answer.session.renew(fields["id"], fields.get("token"), fields.get("duration", 0)):
        raise LeaseError("Job not found or not active (or invalid token)")
    return {"data": {"ok": True}}


def _job_heartbeat_b(answer: Answer, fields: Fields) -> Reply:
    ids: list[str] = fields["ids"]
    tokens = fields.get("tokens")
    if tokens is not None and len(tokens) != len(ids):
        raise CommandError("JobHeartbeatB tokens length must match ids length")
    duration = fields.get("duration", 0)
    renewed = [
        answer.session.renew(job_id, tokens[index] if tokens is not None else None, duration)
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
    members = zip(fields["ids"], fields["tokens"], fields["durations"], strict=True)
    return {
        "count": sum(
            bool(token) and answer.session.renew(job_id, token, duration)
            for job_id, token, duration in members
        )
    }


# --- questions -------------------------------------------------------------------------------


def _get_job(answer: Answer, fields: Fields) -> Reply:
    session = answer.session
    job = session.broker.job_packed(session, fields["id"])
    if job is None:
        raise CommandError("Job not found")
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


def _get_job_by_custom_id(answer: Answer, fields: Fields) -> Reply:
    session = answer.session
    job = session.broker.live_job_packed(session, fields["customId"])
    if job is None:
        raise CommandError("Job not found")
    return {"job": job}


def _get_counts_per_priority(answer: Answer, fields: Fields) -> Reply:
    counts = answer.session.broker.engine.counts_by_priority(fields["queue"])
    return {
        "queue": fields["queue"],
        "counts": {
            str(int(priority)) if priority.is_integer() else repr(priority): n
            for priority, n in counts.items()
        },
    }


def _wait_job(answer: Answer, fields: Fields) -> Reply | None:
    """Look and register in one step, so that no outcome can fall between."""
    session = answer.session
    job_id = fields["id"]
    state = session.broker.engine.watch(job_id)
    if state == "removed":
        raise CommandError("Job not found")
    if state == "failed":
        return {"completed": False}
    if state == "waiting":
        session.broker.watch(session, job_id, answer.request, fields["timeout"])
        return None
    reply: Reply = {"completed": True}
    result = session.broker.result_packed(session, job_id)
    if result is not None:
        reply["result"] = result
    return reply


def _get_job_counts(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    return {"counts": broker.engine.counts(fields["queue"], broker.wall_ms)}


def _count(answer: Answer, fields: Fields) -> Reply:
    queue = answer.session.broker.engine.queue(fields["queue"])
    return {"count": 0 if queue is None else queue.n_ready + queue.n_delayed}


def _list_queues(answer: Answer, fields: Fields) -> Reply:
    return {"queues": sorted(answer.session.broker.engine.queue_names())}


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


# --- workers -----------------------------------------------------------------------------------


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


_WORKER_COUNTERS = ("registeredAt", "lastSeen", "activeJobs", "processedJobs", "failedJobs")


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


# --- storage ------------------------------------------------------------------------------------


def _stats(answer: Answer, fields: Fields) -> Reply:
    """Jobs by state as they are, pauses left aside; ``completed`` and ``failed`` since the start."""
    broker = answer.session.broker
    totals = broker.engine.totals(broker.wall_ms)
    pushed, pulled = _rates(broker, totals)
    return {
        "stats": {
            "waiting": totals["waiting"],
            "active": totals["active"],
            "delayed": totals["delayed"],
            "dlq": totals["failed"],
            "completed": totals["total_completed"],
            "failed": totals["total_failed"],
            "uptime": broker.wall_ms - broker.started_ms,
            "pushPerSec": pushed,
            "pullPerSec": pulled,
        }
    }


def _rates(broker: Broker, totals: Mapping[str, int]) -> tuple[float, float]:
    """Jobs added and delivered a second, between this look and the last one a second or more before."""
    before = broker.rate_sample
    now = broker.monotonic_ns
    rates = (0.0, 0.0)
    if before is not None:
        seconds = (now - before[0]) * 1e-9
        if seconds < 1:
            return before[3]
        rates = ((totals["pushed"] - before[1]) / seconds, (totals["pulled"] - before[2]) / seconds)
    broker.rate_sample = (now, totals["pushed"], totals["pulled"], rates)
    return rates


def _metrics(answer: Answer, fields: Fields) -> Reply:
    if "queue" in fields or "type" in fields:
        if "queue" not in fields:
            raise CommandError("Metrics queue is required")
        commands.queue_name(fields["queue"])
        if fields.get("type") not in ("completed", "failed"):
            raise CommandError("Metrics type must be 'completed' or 'failed'")
        raise CommandError("metrics of one queue are not supported by this server yet")
    broker = answer.session.broker
    totals = broker.engine.totals(broker.wall_ms)
    return {
        "metrics": {
            "totalPushed": totals["pushed"],
            "totalPulled": totals["pulled"],
            "totalCompleted": totals["total_completed"],
            "totalFailed": totals["total_failed"],
            "avgLatencyMs": 0,
            "avgProcessingMs": 0,
            "memoryUsageMb": _memory_mb(),
            "sqliteSizeMb": _file_mb(broker),
            "activeConnections": broker.n_sessions,
        }
    }


def _memory_mb() -> float:
    """Resident memory of this process; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except (OSError, ValueError, IndexError):
        return 0.0


def _file_mb(broker: Broker) -> float:
    path = broker.store.path if broker.durable else None
    try:
        return os.stat(path).st_size / 1e6 if path else 0.0
    except OSError:
        return 0.0


def _compact_memory(answer: Answer, fields: Fields) -> Reply:
    """The structures shrink by themselves; what is left are cycles of Python objects."""
    gc.collect()
    return {}


def _storage_status(answer: Answer, fields: Fields) -> Reply:
    degraded = answer.session.broker.degraded
    if degraded is None:
        return {"data": {"diskFull": False, "error": None, "since": None}}
    return {"data": {"diskFull": degraded[1] == "full", "error": degraded[1], "since": degraded[2]}}


HANDLERS: Mapping[str, Callable[[Answer, Fields], Reply | None]] = {
    "Hello": _hello,
    "Auth": _auth,
    "Ping": _ping,
    "PUSH": _push,
    "PUSHB": _pushb,
    "PULL": _pull,
    "PULLB": _pull,
    "ACK": _ack,
    "ACKB": _ackb,
    "FAIL": _fail,
    "Promote": _promote,
    "ChangeDelay": _change_delay,
    "MoveToDelayed": _move_to_delayed,
    "MoveToWait": _move_to_wait,
    "RetryDlq": _retry_dlq,
    "Cancel": _cancel,
    "Discard": _discard,
    "PromoteJobs": _promote_jobs,
    "ChangePriority": _change_priority,
    "Update": _update,
    "Progress": _progress,
    "GetProgress": _get_progress,
    "AddLog": _add_log,
    "GetLogs": _get_logs,
    "ClearLogs": _clear_logs,
    "Drain": _drain,
    "Clean": _clean,
    "Obliterate": _obliterate,
    "PurgeDlq": _purge_dlq,
    "RemoveDlqJob": _remove_dlq_job,
    "RetryCompleted": _retry_completed,
    "GetDlqStats": _get_dlq_stats,
    "SetDlqConfig": _set_dlq_config,
    "GetDlqConfig": _get_dlq_config,
    "SetStallConfig": _set_stall_config,
    "GetStallConfig": _get_stall_config,
    "ExtendLock": _extend_lock,
    "ExtendLocks": _extend_locks,
    "GetJobs": _get_jobs,
    "GetJobByCustomId": _get_job_by_custom_id,
    "GetCountsPerPriority": _get_counts_per_priority,
    "Stats": _stats,
    "Metrics": _metrics,
    "CompactMemory": _compact_memory,
    "Pause": _pause,
    "Resume": _resume,
    "IsPaused": _is_paused,
    "JobHeartbeat": _job_heartbeat,
    "JobHeartbeatB": _job_heartbeat_b,
    "GetJob": _get_job,
    "GetState": _get_state,
    "GetResult": _get_result,
    "WaitJob": _wait_job,
    "GetJobCounts": _get_job_counts,
    "Count": _count,
    "ListQueues": _list_queues,
    "Dlq": _dlq,
    "RegisterWorker": _register_worker,
    "Heartbeat": _heartbeat,
    "UnregisterWorker": _unregister_worker,
    "ListWorkers": _list_workers,
    "StorageStatus": _storage_status,
}
