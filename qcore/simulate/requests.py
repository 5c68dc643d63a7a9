"""What each command does to the model, and the reply that it predicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from qcore.errors import LeaseError, QError
from qcore.reference.engine import Job, keeps_none
from qcore.reference.keys import Key as KeyOf
from qcore.reference.schedules import Plan
from qcore.simulate.matching import Id, Some, Values
from qcore.simulate.model import DEFAULT_BACKOFF_MS, About, Model, Request, packed, unpacked

Reply = dict[str, Any]
Key = tuple[int, str]

#: Options that say what becomes of a parent whose child fails.
POLICIES = {
    "failParentOnFailure": "fail",
    "continueParentOnFailure": "continue",
    "ignoreDependencyOnFailure": "ignore",
    "removeDependencyOnFailure": "remove",
}
DEFAULT_LEASE_MS = 30_000
FINAL: Reply = {"data": {"applied": False, "reason": "already-finalized"}}

#: Commands whose good replies wait for a commit.
COMMITTED = frozenset(
    [
        "ACK",
        "ACKB",
        "FAIL",
        "MoveToDelayed",
        "Promote",
        "ChangeDelay",
        "MoveToWait",
        "Cancel",
        "Discard",
        "ChangePriority",
        "Update",
        "ClearLogs",
        "PromoteJobs",
        "Drain",
        "Clean",
        "Obliterate",
        "RetryCompleted",
        "SetStallConfig",
        "Pause",
        "Resume",
        "RetryDlq",
        "PurgeDlq",
        "RemoveDlqJob",
        "RemoveDeduplicationKey",
        "RateLimit",
        "RateLimitClear",
        "SetConcurrency",
        "ClearConcurrency",
        "PauseGroup",
        "ResumeGroup",
        "SetDlqConfig",
        "Cron",
        "CronDelete",
        "MoveToWaitingChildren",
        "UpdateParent",
        "RemoveChildDependency",
        "RemoveUnprocessedChildren",
    ]
)


class Refused(QError):
    """The command is refused with this text."""


def serve(model: Model, key: Key, request: Request) -> None:
    """Run one request on the model; the reply it predicts is then expected there."""
    cmd = request["cmd"]
    durable = _names_durable(model, request)
    try:
        reply = COMMANDS[cmd](model, key, request)
    except QError as error:
        reply = {"ok": False, "error": str(error)}
    if reply is not None:
        held = cmd in COMMITTED and (model.config.hold_changes or durable) and reply.get("ok", True)
        model.answer(key, request, reply, "held" if held else "out")
    model.note_outcomes()


def _names_durable(model: Model, request: Request) -> bool:
    """Whether a job that was added as durable is named."""
    ids = [request["id"]] if "id" in request else request.get("ids", ())
    jobs = [model.plain.jobs[job_id] for job_id in ids if job_id in model.plain.jobs]
    return any(model.about[job.seq].durable for job in jobs if job.seq in model.about)


def _hello(model: Model, key: Key, request: Request) -> Reply:
    if "outcomes" in request["capabilities"]:
        model.outcomes.add(key[0])
    else:
        model.outcomes.discard(key[0])
    extra = [name for name in ("outcomes",) if name in request["capabilities"]]
    return Some(protocolVersion=3, capabilities=["pipelining", "separate-job-name", *extra])


# --- adding ------------------------------------------------------------------------------


def _add(model: Model, queue: str, options: Mapping[str, Any], tag: str, durable: bool) -> tuple[str, str]:
    """Admit one job: its id, and how its reply goes (``plain``, ``held`` or ``staged``)."""
    plain = model.plain
    custom = options.get("customId", options.get("jobId"))
    if custom in model.staged:
        plain.touch(queue, custom)
        model.gathering[custom] = None
        model.tags[tag] = custom
        return custom, "staged"
    holder = plain.jobs.get(custom) if custom is not None else None
    reused = holder is not None and holder.state in ("completed", "failed")
    key = _key(options)
    owner = plain._holder(queue, key) if key is not None else None
    replaced = owner is not None and owner.key is not None and not owner.key.over(model.now_ms)
    seq = plain._seq
    delay_ms = options.get("delay", 0)
    if key is not None and key.debounce:
        delay_ms = max(delay_ms, options["debounceTtl"])
    repeat = _repeat(model, options)
    if repeat is not None and "prevMillis" in repeat:
        delay_ms = max(delay_ms, repeat["prevMillis"] - options.get("timestamp", model.now_ms))
    completed, failed = options.get("removeOnComplete", False), options.get("removeOnFail", False)
    job_id: str = plain.push(
        queue,
        packed(options["data"]) if "data" in options else None,
        model.now_ms,
        new_id=model.new_id(),
        job_id=custom,
        priority=options.get("priority", 0),
        delay_ms=delay_ms,
        created_ms=options.get("timestamp"),
        attempts=options.get("maxAttempts", 3),
        lifo=options.get("lifo", False),
        remove_on_complete=completed if isinstance(completed, bool) else keeps_none(completed),
        remove_on_fail=failed if isinstance(failed, bool) else keeps_none(failed),
        keep_completed=completed,
        keep_failed=failed,
        key=key,
        group=options.get("groupId"),
        ttl_ms=options.get("ttl"),
        timeout_ms=options.get("timeout") or None,
        stall_ms=options.get("stallTimeout"),
        depends_on=tuple(options.get("dependsOn", ())),
        parent=options.get("parentId"),
        parent_token=options.get("parentToken"),
        lenient=options.get("allowUnknownDependencies", False),
        parent_required=options.get("parentRequired", False),
        policy=next((POLICIES[name] for name in POLICIES if options.get(name)), None),
    )
    model.tags[tag] = job_id
    if plain._seq == seq:  # the id, or the key, is taken
        return job_id, "held" if durable else "plain"
    job = plain.jobs[job_id]
    if repeat is not None:
        plain.repeats[job_id] = repeat
    backoff = options.get("backoff", DEFAULT_BACKOFF_MS)
    if isinstance(backoff, Mapping):
        backoff = (backoff["delay"], backoff["type"])
    elif backoff == 0:
        backoff = (0, "fixed")
    model.about[job.seq] = About(tag, custom is not None, backoff, options.get("durable", False))
    if reused or replaced:
        return job_id, "held"
    if durable:
        # Nobody sees it before its commit.
        model.stage(job_id)
        return job_id, "staged"
    return job_id, "plain"


def _repeat(model: Model, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """The options of the first run of a chain: by a pattern it starts at the next instant of that."""
    if "repeat" not in options:
        return None
    repeat = {"count": 0, **options["repeat"]}
    if "pattern" in repeat:
        repeat["prevMillis"] = model.plain.cron(repeat["pattern"], None)(model.now_ms)
    return repeat


def _key(options: Mapping[str, Any]) -> KeyOf | None:
    if "uniqueKey" in options:
        asked = options.get("dedup", {})
        return KeyOf(
            options["uniqueKey"],
            ttl_ms=asked.get("ttl"),
            extend=asked.get("extend", False),
            replace=asked.get("replace", False),
            keep=asked.get("keepUntilExpiry", False),
        )
    if "debounceId" in options:
        return KeyOf(options["debounceId"], debounce=True)
    return None


def _admissible(model: Model, options: Mapping[str, Any]) -> None:
    if model.degraded is not None and options.get("durable"):
        raise Refused(f"Nothing was stored: the data file cannot be written ({model.trouble})")


def _where(model: Model, how: set[str]) -> Literal["out", "held", "held_adds"]:
    if "staged" in how:
        return "held_adds"
    return "held" if "held" in how or (how and model.config.hold_adds) else "out"


def _push(model: Model, key: Key, request: Request) -> None:
    _admissible(model, request)
    job_id, how = _add(model, request["queue"], request, _tag(request, 0), request.get("durable", False))
    model.answer(key, request, {"id": Id(job_id)}, _where(model, {how}))


def _pushb(model: Model, key: Key, request: Request) -> None:
    jobs = request["jobs"]
    for index, options in enumerate(jobs):
        try:
            _admissible(model, options)
        except Refused as error:
            raise Refused(f"jobs[{index}]: {error}") from None
    for index, options in enumerate(jobs):
        if "customId" in options and model.plain.is_waited_for(options["customId"]):
            text = f"Custom ID {options['customId']} still has unresolved dependency consumers"
            raise Refused(f"jobs[{index}]: {text}")
    durable = any(options.get("durable") for options in jobs)
    added = [
        _add(model, request["queue"], options, _tag(request, index), durable)
        for index, options in enumerate(jobs)
    ]
    reply = {"ids": [Id(job_id) for job_id, _ in added]}
    model.answer(key, request, reply, _where(model, {how for _, how in added}))


def _pushf(model: Model, key: Key, request: Request) -> None:
    """A root and its children, that appear together once they are on disk."""
    for node in request["jobs"]:
        if node["id"] in model.plain.jobs or node["id"] in model.staged:
            raise Refused(f"Flow job {node['id']} already exists")
    _admissible(model, {"durable": True})
    plain = model.plain
    for index, node in enumerate(request["jobs"]):
        options = node["input"]
        completed = options.get("removeOnComplete", False)
        job_id = plain.push(
            node["queue"],
            packed(options["data"]),
            model.now_ms,
            new_id="",
            job_id=node["id"],
            priority=options.get("priority", 0),
            delay_ms=options.get("delay", 0),
            attempts=options.get("maxAttempts", 3),
            remove_on_complete=completed,
            keep_completed=completed,
            depends_on=tuple(options.get("dependsOn", ())),
            parent=options.get("parentId"),
            policy=next((POLICIES[name] for name in POLICIES if options.get(name)), None),
        )
        job = plain.jobs[job_id]
        job.ties.children = list(options.get("childrenIds", ()))
        model.about[job.seq] = About(_tag(request, index), False, DEFAULT_BACKOFF_MS)
        model.tags[_tag(request, index)] = job_id
    for node in request["jobs"]:
        model.stage(node["id"])
    views = [Some(id=Id(node["id"]), queue=node["queue"]) for node in request["jobs"]]
    model.answer(key, request, {"data": {"jobs": views}}, "held_adds")


def _tag(request: Request, index: int) -> str:
    return f"{request['reqId']}.{index}"


# --- deliveries ----------------------------------------------------------------------------


def _pull(model: Model, key: Key, request: Request) -> None:
    queue, count = request["queue"], request.get("count", 0)
    if request.get("timeout"):
        model.plain.use(queue)  # to wait there; who does not wait makes none
    lease_ms = request.get("lockTtl", DEFAULT_LEASE_MS) if request.get("owner") else 0
    session = 0 if request.get("detach") and not lease_ms else key[0]
    timeout_ms = request.get("timeout", 0)
    if not model.deliver(key, request, queue, count, lease_ms, session, timeout_ms == 0) and timeout_ms:
        model.wait(key, request, queue, count, lease_ms, session, timeout_ms)


def _result(request: Request) -> bytes | None:
    return packed(request["result"]) if "result" in request else None


def _ack(model: Model, key: Key, request: Request) -> Reply:
    applied = model.plain.ack(
        request["id"],
        model.now_ms,
        token=request.get("token"),
        result=_result(request),
        remove=request.get("removeOnComplete", False),
        remember=key[0] in model.outcomes,
    )
    return {} if applied else FINAL


def _ackb(model: Model, key: Key, request: Request) -> Reply:
    ids = request["ids"]
    tokens = request.get("tokens") or [None] * len(ids)
    results = request.get("results")
    if request.get("atomic"):
        for job_id, token in zip(ids, tokens, strict=True):
            model.plain._judge(job_id, token)  # all or none
    ignored, refused, seen = [], [], set()
    first: QError | None = None
    accepted = 0
    for index, job_id in enumerate(ids):
        if job_id in seen:
            ignored.append(index)
            continue
        seen.add(job_id)
        result = None if results is None else packed(results[index])
        try:
            applied = model.plain.ack(
                job_id,
                model.now_ms,
                token=tokens[index],
                result=result,
                remember=key[0] in model.outcomes,
            )
        except QError as error:
            first = first or error
            ignored.append(index)
            refused.append({"index": index, "id": Id(job_id), "reason": str(error)})
            continue
        accepted += 1
        if not applied:
            ignored.append(index)
    if first is not None and not accepted:
        raise first
    if not ignored:
        return {}
    data: Reply = {"ignoredIndices": ignored, "ignoredIds": [Id(ids[index]) for index in ignored]}
    if refused:
        data["refused"] = refused
    return {"data": data}


def _fail(model: Model, key: Key, request: Request) -> Reply:
    applied = model.plain.fail(
        request["id"],
        model.now_ms,
        token=request.get("token"),
        error=request.get("error"),
        unrecoverable=request.get("unrecoverable", False),
        remove=request.get("removeOnFail", False),
        remember=key[0] in model.outcomes,
    )
    return {} if applied else FINAL


def _renew(model: Model, job_id: str, token: str | None, duration: int) -> bool:
    return model.plain.renew(job_id, model.now_ms, model.now_ns, token=token, lease_ms=duration)


def _heartbeat(model: Model, key: Key, request: Request) -> Reply:
    if not _renew(model, request["id"], request.get("token"), request.get("duration", 0)):
        raise LeaseError("Job not found or not active (or invalid token)")
    return {"data": {"ok": True}}


def _heartbeats(model: Model, key: Key, request: Request) -> Reply:
    ids = request["ids"]
    tokens = request.get("tokens") or [None] * len(ids)
    duration = request.get("duration", 0)
    good = [_renew(model, job_id, token, duration) for job_id, token in zip(ids, tokens, strict=True)]
    data: Reply = {"ok": True, "count": sum(good)}
    if key[0] in model.outcomes:
        data["lost"] = [Id(job_id) for job_id, held in zip(ids, good, strict=True) if not held]
    return {"data": data}


def _extend(model: Model, key: Key, request: Request) -> Reply:
    token = request.get("token")
    if not token or not _renew(model, request["id"], token, request["duration"]):
        raise LeaseError("Lock not found or invalid token")
    return {}


# --- one job -------------------------------------------------------------------------------


def _good(outcome: bool, otherwise: str) -> Reply:
    if not outcome:
        raise Refused(otherwise)
    return {}


def _promote(model: Model, key: Key, request: Request) -> Reply:
    return _good(model.plain.promote(request["id"], model.now_ms), "Job not found or not delayed")


def _change_delay(model: Model, key: Key, request: Request) -> Reply:
    done = model.plain.change_delay(request["id"], request["delay"], model.now_ms, token=request.get("token"))
    return _good(done, "Job not found or cannot change delay")


def _move_to_delayed(model: Model, key: Key, request: Request) -> Reply:
    model.plain.move_to_delayed(request["id"], request["delay"], model.now_ms, token=request.get("token"))
    return {}


def _move_to_wait(model: Model, key: Key, request: Request) -> Reply:
    model.plain.move_to_wait(request["id"], model.now_ms, token=request.get("token"))
    return {}


def _cancel(model: Model, key: Key, request: Request) -> Reply:
    return _good(model.plain.cancel(request["id"], model.now_ms), "Job not found or cannot be cancelled")


def _discard(model: Model, key: Key, request: Request) -> Reply:
    model.plain.discard(request["id"], model.now_ms, token=request.get("token"))
    return {}


def _change_priority(model: Model, key: Key, request: Request) -> Reply:
    done = model.plain.change_priority(
        request["id"], request["priority"], model.now_ms, lifo=request.get("lifo")
    )
    return _good(done, "Job not found or not in queue")


def _update(model: Model, key: Key, request: Request) -> Reply:
    job = model.plain.jobs.get(request["id"])
    if job is not None and job.data is not None and b"__" in job.data and isinstance(request["data"], str):
        raise Refused("flow job data must be an object")
    return _good(
        model.plain.update(request["id"], packed(request["data"])), "Job not found or cannot be updated"
    )


def _progress(model: Model, key: Key, request: Request) -> Reply:
    model.plain.set_progress(
        request["id"], request["progress"], model.now_ms, model.now_ns, message=request.get("message")
    )
    return {}


def _get_progress(model: Model, key: Key, request: Request) -> Reply:
    progress, message = model.plain.progress(request["id"])
    return {"progress": progress, "message": message}


def _add_log(model: Model, key: Key, request: Request) -> Reply:
    model.plain.add_log(request["id"], request["message"], "info", model.now_ms)
    return {"data": {"added": True}}


def _get_logs(model: Model, key: Key, request: Request) -> Reply:
    logs = [
        {"timestamp": at, "level": level, "message": text}
        for at, level, text in model.plain.logs(request["id"])
    ]
    return {"data": {"logs": logs, "count": len(logs)}}


def _clear_logs(model: Model, key: Key, request: Request) -> Reply:
    model.plain.clear_logs(request["id"], keep=request.get("keepLogs", 0))
    return {}


def _get_job(model: Model, key: Key, request: Request) -> Reply:
    job_id = request["id"]
    if job_id not in model.plain.jobs:
        raise Refused("Job not found")
    return {"job": model.view(job_id, model.plain.state(job_id))}


def _get_state(model: Model, key: Key, request: Request) -> Reply:
    return {"id": Id(request["id"]), "state": model.plain.state(request["id"])}


def _get_result(model: Model, key: Key, request: Request) -> Reply:
    result = model.plain.result(request["id"])
    reply: Reply = {"id": Id(request["id"])}
    if result is not None:
        reply["result"] = unpacked(result)
    return reply


def _wait_job(model: Model, key: Key, request: Request) -> Reply | None:
    job = model.plain.jobs.get(request["id"])
    if job is None:
        if not model.plain.is_done(request["id"]):
            raise Refused("Job not found")
        job = model.plain.held.get(request["id"])
        result = job.result if job is not None else None
        return {"completed": True, **({} if result is None else {"result": unpacked(result)})}
    if job.state == "failed":
        return {"completed": False}
    if job.state != "completed":
        model.watch(key, request, job, request["timeout"])
        return None
    reply: Reply = {"completed": True}
    if job.result is not None:
        reply["result"] = unpacked(job.result)
    return reply


# --- a queue as a whole --------------------------------------------------------------------


def _count_of(request: Request) -> int:
    return int(request.get("count", -1))


def _promote_jobs(model: Model, key: Key, request: Request) -> Reply:
    return {"count": model.plain.promote_jobs(request["queue"], model.now_ms, count=_count_of(request))}


def _drain(model: Model, key: Key, request: Request) -> Reply:
    return {"count": model.plain.drain(request["queue"])}


def _clean(model: Model, key: Key, request: Request) -> Reply:
    ids = model.plain.clean(
        request["queue"],
        model.now_ms,
        grace_ms=request.get("grace", 0),
        state=request.get("state"),
        limit=request.get("limit", 1000),
    )
    return {"count": len(ids), "ids": [Id(job_id) for job_id in ids]}


def _rate_limit(model: Model, key: Key, request: Request) -> Reply:
    model.plain.set_rate(
        request["queue"],
        request.get("limit"),
        model.now_ms,
        model.now_ns,
        duration_ms=request.get("duration", 1000),
        ttl_ms=request.get("ttl", 0),
    )
    return {}


def _concurrency(model: Model, key: Key, request: Request) -> Reply:
    model.plain.set_concurrency(request["queue"], request.get("limit"))
    return {}


def _queue_limits(model: Model, key: Key, request: Request) -> Reply:
    rate, wait, concurrency, maxed = model.plain.queue_limits(request["queue"], model.now_ns)
    limits = {
        "rateLimit": None if rate is None else {"max": rate[0], "duration": rate[1]},
        "rateLimitTtl": wait,
        "concurrencyLimit": concurrency,
        "maxed": maxed,
    }
    return {"data": {"limits": limits}}


def _pause_group(model: Model, key: Key, request: Request) -> Reply:
    paused = request["cmd"] == "PauseGroup"
    if not paused and request["queue"] not in model.plain.queues:
        return {"data": {"changed": False}}  # makes no queue
    return {"data": {"changed": model.plain.pause_group(request["queue"], request["groupId"], paused)}}


def _key_owner(model: Model, key: Key, request: Request) -> Reply:
    owner = model.plain.key_owner(request["queue"], request["deduplicationId"], model.now_ms)
    return {"data": {"jobId": None if owner is None else Id(owner)}}


def _remove_key(model: Model, key: Key, request: Request) -> Reply:
    removed = model.plain.remove_key(request["queue"], request["deduplicationId"], model.now_ms)
    return {"data": {"count": int(removed)}}


def _obliterate(model: Model, key: Key, request: Request) -> Reply:
    model.plain.obliterate(request["queue"])
    return {}


def _retry_completed(model: Model, key: Key, request: Request) -> Reply:
    n = model.plain.retry_completed(
        request["queue"], model.now_ms, job_id=request.get("id"), count=_count_of(request)
    )
    return {"count": n}


def _set_stall_config(model: Model, key: Key, request: Request) -> Reply:
    model.plain.configure(request["queue"], stalls=request["config"])
    return {}


def _set_dlq_config(model: Model, key: Key, request: Request) -> Reply:
    model.plain.configure(request["queue"], dead=request["config"])
    return {}


def _pause(model: Model, key: Key, request: Request) -> Reply:
    model.plain.pause(request["queue"], request["cmd"] == "Pause")
    return {}


def _is_paused(model: Model, key: Key, request: Request) -> Reply:
    q = model.plain.queues.get(request["queue"])
    return {"paused": q is not None and q.paused}


def _listed(model: Model, job: Job, by_state: bool) -> Some:
    q = model.plain.queues[job.queue]
    state = "paused" if by_state and q.paused and job.state == "ready" else model.plain.state(job.id)
    return model.view(job.id, state)


def _get_jobs(model: Model, key: Key, request: Request) -> Reply:
    states = request.get("state")
    ids = model.plain.list_jobs(
        request["queue"],
        model.now_ms,
        states=None if states is None else tuple(states),
        offset=request.get("offset", 0),
        limit=request.get("limit", 100),
        asc=request.get("asc", True),
    )
    return {"jobs": [_listed(model, model.plain.jobs[job_id], states is not None) for job_id in ids]}


def _get_counts_per_priority(model: Model, key: Key, request: Request) -> Reply:
    counts = {
        str(int(priority)) if float(priority).is_integer() else repr(float(priority)): n
        for priority, n in model.plain.counts_by_priority(request["queue"]).items()
    }
    return {"queue": request["queue"], "counts": counts}


def _get_job_counts(model: Model, key: Key, request: Request) -> Reply:
    return {"counts": model.plain.counts(request["queue"], model.now_ms)}


def _count(model: Model, key: Key, request: Request) -> Reply:
    return {"count": len(model.plain._of(request["queue"], "ready", "delayed"))}


def _list_queues(model: Model, key: Key, request: Request) -> Reply:
    return {"queues": sorted(model.plain.queues)}


# --- dead letters --------------------------------------------------------------------------


def _retry_dlq(model: Model, key: Key, request: Request) -> Reply:
    n = model.plain.retry_dead(
        request["queue"], model.now_ms, job_id=request.get("jobId"), count=_count_of(request)
    )
    return {"count": n}


def _purge_dlq(model: Model, key: Key, request: Request) -> Reply:
    return {"count": model.plain.purge_dead(request["queue"])}


def _remove_dlq_job(model: Model, key: Key, request: Request) -> Reply:
    return {"data": {"removed": model.plain.remove_dead(request["queue"], request["jobId"])}}


def _dlq(model: Model, key: Key, request: Request) -> Reply:
    ids = model.plain.failed(request["queue"])
    letters = [letter for job_id in ids if (letter := model.plain.jobs[job_id].letter)]
    return {
        "jobs": [model.view(job_id) for job_id in ids],
        "entries": [
            Some(
                enteredAt=letter.entered_ms,
                expiresAt=letter.expires_ms,
                nextRetryAt=letter.next_retry_ms,
                lastRetryAt=letter.last_retry_ms,
                retryCount=letter.retries,
            )
            for letter in letters
        ],
    }


# --- ties ----------------------------------------------------------------------------------


def _move_to_waiting_children(model: Model, key: Key, request: Request) -> Reply:
    model.plain.move_to_waiting_children(request["id"], model.now_ms, token=request.get("token"), leave=True)
    return {"data": {"moved": True}}


def _update_parent(model: Model, key: Key, request: Request) -> Reply:
    token = request.get("parentToken")
    model.plain.update_parent(request["childId"], request["parentId"], model.now_ms, token=token)
    return {}


def _remove_child_dependency(model: Model, key: Key, request: Request) -> Reply:
    return {"removed": model.plain.remove_child_dependency(request["id"], model.now_ms)}


def _remove_unprocessed_children(model: Model, key: Key, request: Request) -> Reply:
    model.plain.remove_unprocessed_children(request["id"], model.now_ms)
    return {}


def _child_failures(model: Model, key: Key, request: Request) -> Reply:
    policy = "continue" if request["cmd"] == "GetFailedChildrenValues" else "ignore"
    return {"values": Values(model.plain.child_failures(request["id"], policy))}


def _dependencies(model: Model, key: Key, request: Request) -> Reply:
    plain = model.plain
    found = plain.dependencies(request["id"])
    if found is None:
        raise Refused("Job not found")
    limit = request.get("limit")
    data: Reply = {kind: [Id(one) for one in ids[:limit]] for kind, ids in found.items()}
    results = Values()
    for one in found["processed"][:limit]:
        job = plain.jobs.get(one) or plain.held.get(one)
        results[one] = None if job is None or job.result is None else unpacked(job.result)
    data["processed"] = results
    data["counts"] = {kind: len(ids) for kind, ids in found.items()}
    return {"data": data}


# --- schedules -----------------------------------------------------------------------------


def _cron(model: Model, key: Key, request: Request) -> Reply:
    options = request.get("jobOptions", {})
    # What says no more than the default changes nothing.
    job: dict[str, Any] = {
        "remove_on_complete": options.get("removeOnComplete", False),
        "remove_on_fail": options.get("removeOnFail", False),
        "priority": request.get("priority", 0),
        "delay_ms": options.get("delay", 0),
    }
    for mine, theirs in (("attempts", "maxAttempts"), ("timeout_ms", "timeout")):
        if theirs in options:
            job[mine] = options[theirs]
    name = request["name"]
    plan = Plan(
        request["queue"],
        request.get("schedule"),
        request.get("repeatEvery", 0),
        None,
        packed(request["data"]) if "data" in request else None,
        job,
        request.get("maxLimit", 0),
        request.get("preventOverlap", True),
        request.get("skipMissedOnRestart", True),
        request.get("skipIfNoWorker", False),
    )
    now_ms, now_ns = model.now_ms, model.now_ns
    model.plain.put_schedule(name, plan, now_ms, now_ns, immediately=request.get("immediately", False))
    return {"cron": _schedule(name, model.plain.plans[name])}


def _schedule(name: str, plan: Plan) -> Some:
    return Some(
        name=name,
        queue=plan.queue,
        schedule=plan.pattern,
        repeatEvery=plan.every_ms or None,
        nextRun=plan.next_ms,
        executions=plan.executions,
        maxLimit=plan.max_runs or None,
        priority=plan.job["priority"],
    )


def _cron_get(model: Model, key: Key, request: Request) -> Reply:
    if request["name"] not in model.plain.plans:
        raise Refused("Cron job not found")
    return {"cron": _schedule(request["name"], model.plain.plans[request["name"]])}


def _cron_list(model: Model, key: Key, request: Request) -> Reply:
    plans = sorted(model.plain.plans.items(), key=lambda item: (item[1].next_ms, item[0]))
    return {"crons": [_schedule(name, plan) for name, plan in plans]}


def _cron_delete(model: Model, key: Key, request: Request) -> Reply:
    return _good(model.plain.remove_schedule(request["name"]), "Cron job not found")


COMMANDS: Mapping[str, Callable[[Model, Key, Request], Reply | None]] = {
    "Hello": _hello,
    "PUSH": _push,
    "PUSHB": _pushb,
    "PUSHF": _pushf,
    "PULL": _pull,
    "PULLB": _pull,
    "ACK": _ack,
    "ACKB": _ackb,
    "FAIL": _fail,
    "JobHeartbeat": _heartbeat,
    "JobHeartbeatB": _heartbeats,
    "ExtendLock": _extend,
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
    "GetJob": _get_job,
    "GetState": _get_state,
    "GetResult": _get_result,
    "WaitJob": _wait_job,
    "PromoteJobs": _promote_jobs,
    "Drain": _drain,
    "Clean": _clean,
    "Obliterate": _obliterate,
    "RateLimit": _rate_limit,
    "RateLimitClear": _rate_limit,
    "SetConcurrency": _concurrency,
    "ClearConcurrency": _concurrency,
    "GetQueueLimits": _queue_limits,
    "PauseGroup": _pause_group,
    "ResumeGroup": _pause_group,
    "GetDeduplicationJobId": _key_owner,
    "RemoveDeduplicationKey": _remove_key,
    "RetryCompleted": _retry_completed,
    "SetStallConfig": _set_stall_config,
    "SetDlqConfig": _set_dlq_config,
    "Pause": _pause,
    "Resume": _pause,
    "IsPaused": _is_paused,
    "GetJobs": _get_jobs,
    "GetCountsPerPriority": _get_counts_per_priority,
    "GetJobCounts": _get_job_counts,
    "Count": _count,
    "ListQueues": _list_queues,
    "RetryDlq": _retry_dlq,
    "PurgeDlq": _purge_dlq,
    "RemoveDlqJob": _remove_dlq_job,
    "Dlq": _dlq,
    "MoveToWaitingChildren": _move_to_waiting_children,
    "UpdateParent": _update_parent,
    "RemoveChildDependency": _remove_child_dependency,
    "RemoveUnprocessedChildren": _remove_unprocessed_children,
    "GetDependencies": _dependencies,
    "GetFailedChildrenValues": _child_failures,
    "GetIgnoredChildrenFailures": _child_failures,
    "Cron": _cron,
    "CronGet": _cron_get,
    "CronList": _cron_list,
    "CronDelete": _cron_delete,
}
