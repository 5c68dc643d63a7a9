"""The verbs of ``qcore`` that ask a server, as data.

A verb names the command that it sends. Its arguments are the fields of that command
in the command table, which also checks them: what is required is given by place, the
rest as options. Only what people see of a field that differs from the protocol is
said here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from qclient.cli import views
from qclient.cli.show import (
    Column,
    View,
    details,
    figure,
    lasting,
    lines,
    only,
    pairs,
    payload,
    plain,
    said,
    table,
)
from qcore.errors import CommandError, JobFailedError, NotFoundError, StateError, WaitTimeout
from qcore.limits import MAX_GROUP_PRIORITY

Fields: TypeAlias = Mapping[str, object]
Form: TypeAlias = Literal["text", "words", "file"]

#: ``job wait`` asks again after this long.
WAIT_ONCE_S = 60.0


class Asking(Protocol):
    """A connection to a server, as a verb sees it."""

    @property
    def place(self) -> str:
        """Where the server is, without a token."""

    @property
    def timeout_s(self) -> float:
        """How long the reply is waited for."""

    def ask(self, command: str, fields: Fields, *, patience_s: float = 0.0) -> dict[str, Any]:
        """The reply to one command; refusals are raised. ``patience_s`` comes on top of the timeout."""


Run: TypeAlias = Callable[[Asking, str, Fields], Mapping[str, Any]]


def _checked(fields: Fields) -> None:
    """Nothing to refuse beyond what the command table refuses."""


def _check_push(fields: Fields) -> None:
    if "dedup" in fields and "uniqueKey" not in fields:
        raise CommandError("--dedup says what a second job with the same key does: expected --unique-key too")
    priority = fields.get("priority", 0)
    if "groupId" in fields and not (isinstance(priority, int) and 0 <= priority <= MAX_GROUP_PRIORITY):
        raise CommandError(
            f"--priority of a job with --group must be a whole number from 0 to {MAX_GROUP_PRIORITY}, "
            f"not {priority}"
        )
    if "repeat" in fields:
        from qcore.broker.handlers.adding import first_run

        for name, option in (("jobId", "job-id"), ("parentId", "parent"), ("dependsOn", "depends-on")):
            if name in fields:
                raise CommandError(f"--repeat and --{option} cannot be given together")
        first_run(dict(fields), time.time_ns() // 1_000_000)


def _check_pull(fields: Fields) -> None:
    if "lockTtl" in fields and "owner" not in fields:
        raise CommandError("--lock: without --owner there is no lock")


def _check_metrics(fields: Fields) -> None:
    if "queue" not in fields:
        raise CommandError("QUEUE: expected a name, got none")


def _check_cron(fields: Fields) -> None:
    from qcore.broker.handlers.schedules import check_timing

    if ("schedule" in fields) == ("repeatEvery" in fields):
        came = "both" if "schedule" in fields else "neither"
        raise CommandError(f"expected one of --schedule and --every, got {came}")
    check_timing(dict(fields), time.time_ns() // 1_000_000)
    if "timezone" in fields and "schedule" not in fields:
        raise CommandError("--timezone is that of an expression: expected --schedule with it")


def _check_webhook(fields: Fields) -> None:
    from qcore.broker.webhooks import check_events, url_host

    url_host(fields.get("url"))
    events = fields["events"]
    assert isinstance(events, list)
    check_events(events)


def _ask(server: Asking, command: str, fields: Fields) -> Mapping[str, Any]:
    return server.ask(command, fields)


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb.

    ``places`` are optional fields that are given by place too; ``options`` the fields
    that are options, all that are left if None. ``renamed`` gives options a name of
    their own, ``helps`` another help. Fields in ``durations`` are written as durations, those
    in ``forms`` in another form than that of their kind: a text, words with commas, or the first
    line of a file. ``fixed`` fields are always sent. ``asks`` is what the user must agree to.
    ``checks`` raises for checked fields that together no server would take, or nobody can mean.
    ``takes_url`` lets the server be named without an option.
    ``lists_payloads`` says that payloads come in the reply, which are left out unless
    ``--payloads`` is given.
    """

    path: str
    command: str
    show: View
    about: str = ""
    run: Run = _ask
    places: tuple[str, ...] = ()
    options: tuple[str, ...] | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    durations: frozenset[str] = frozenset()
    helps: Mapping[str, str] = field(default_factory=dict)
    asks: str | Callable[[Fields], str] = ""
    lists_payloads: bool = False
    timeout_s: float = 30.0
    forms: Mapping[str, Form] = field(default_factory=dict)
    fixed: Mapping[str, object] = field(default_factory=dict)
    takes_url: bool = False
    checks: Callable[[Fields], None] = _checked


# --- verbs of more than one command ---------------------------------------------------


def _ping(server: Asking, command: str, fields: Fields) -> Mapping[str, Any]:
    server.ask(command, fields)
    started = time.perf_counter()
    server.ask(command, fields)
    return {"ok": True, "url": server.place, "ms": round(1000 * (time.perf_counter() - started), 3)}


def _healthcheck(server: Asking, command: str, fields: Fields) -> Mapping[str, Any]:
    server.ask(command, fields)
    return {"ok": True, "url": server.place}


def _state(server: Asking, fields: Fields) -> str:
    return str(server.ask("GetState", {"id": fields["id"]})["state"])


def _known_state(server: Asking, command: str, fields: Fields) -> Mapping[str, Any]:
    reply = server.ask(command, fields)
    if reply["state"] == "unknown":
        raise NotFoundError("Job not found", command)
    return reply


def _result(server: Asking, command: str, fields: Fields) -> Mapping[str, Any]:
    reply = server.ask(command, fields)
    if "result" not in reply:
        state = _state(server, fields)
        if state == "unknown":
            raise NotFoundError("Job not found", command)
        if state != "completed":
            raise StateError(f"Job has no result: it is {state}", command)
        reply["result"] = None
    return reply


def _wait(server: Asking, command: str, fields: Fields) -> Mapping[str, Any]:
    wait_s = server.timeout_s
    until = time.monotonic() + wait_s
    left = wait_s
    while True:
        # One wait is bounded by the server; a failed job answers at once.
        once_s = min(left, WAIT_ONCE_S)
        reply = server.ask(command, {**fields, "timeout": int(once_s * 1000)}, patience_s=5.0)
        if reply["completed"]:
            return {"result": None, **reply}
        left = until - time.monotonic()
        if left <= 0 or _state(server, fields) in ("failed", "unknown"):
            break
    try:
        job = server.ask("GetJob", {"id": fields["id"]})["job"]
    except NotFoundError:
        raise NotFoundError("Job not found: it was removed", command) from None
    if job["state"] == "failed":
        raise JobFailedError(f"Job failed: {plain(job.get('failedReason')) or 'no reason given'}")
    raise WaitTimeout(f"Job is {job['state']} after {wait_s:g} s")


def _retry(server: Asking, command: str, fields: Fields) -> Mapping[str, Any]:
    job = server.ask("GetJob", fields)["job"]
    if job["state"] == "failed":
        reply = server.ask("RetryDlq", {"queue": job["queue"], "jobId": job["id"]})
    elif job["state"] == "completed":
        reply = server.ask("RetryCompleted", {"queue": job["queue"], "id": job["id"]})
    else:
        raise StateError(f"Job is {job['state']}; only failed and completed jobs are retried", command)
    if not reply["count"]:
        raise CommandError("Job changed meanwhile; look again", command)
    return {"ok": True, "id": job["id"], "queue": job["queue"]}


def _of_job(server: Asking, command: str, fields: Fields) -> Mapping[str, Any]:
    """Ask what is answered with nothing for a job that is not there."""
    reply = server.ask(command, fields)
    found = reply["data"].get("values") or reply["data"].get("count") if "data" in reply else None
    if not found and _state(server, fields) == "unknown":
        raise NotFoundError("Job not found", command)
    return reply


def _retry_letters(server: Asking, command: str, fields: Fields) -> Mapping[str, Any]:
    reply = server.ask(command, fields)
    if not reply["count"] and "jobId" in fields:
        raise NotFoundError("Job not found among the dead letters", command)
    return reply


def _removed(server: Asking, command: str, fields: Fields) -> Mapping[str, Any]:
    reply = server.ask(command, fields)
    if not reply["data"]["removed"]:
        raise NotFoundError("Job not found among the dead letters", command)
    return reply


def _by_minute(server: Asking, command: str, fields: Fields) -> Mapping[str, Any]:
    return server.ask(command, {"type": "completed", **fields})


def _push(server: Asking, command: str, fields: Fields) -> Mapping[str, Any]:
    # A parent that is not there is a slip of who types, and no job of another to come.
    return server.ask(command, {**fields, **({"parentRequired": True} if "parentId" in fields else {})})


def _pull(server: Asking, command: str, fields: Fields) -> Mapping[str, Any]:
    wait_ms = fields.get("timeout", 0)
    assert isinstance(wait_ms, int | float)
    # This connection ends at once, and the job must stay out: without an owner, that can be asked for;
    # with one, a lock that was renewed outlives its connection.
    owned = "owner" in fields
    reply = server.ask(command, {**fields, **({} if owned else {"detach": True})}, patience_s=wait_ms / 1000)
    job = reply["job"]
    if job is None:
        raise NotFoundError("no job is ready", command)
    if owned:
        server.ask("JobHeartbeat", {"id": job["id"], "token": reply["token"]})
    return reply


def _health(server: Asking, command: str, fields: Fields) -> Mapping[str, Any]:
    reply = server.ask(command, fields)
    stats = server.ask("Stats", {})["stats"]
    if reply["data"]["diskFull"] or reply["data"]["error"]:
        raise StateError(
            f"the data file cannot be written: {plain(reply['data']['error']) or 'disk full'}", command
        )
    return {"ok": True, "url": server.place, "storage": reply["data"], "stats": stats}


#: What ``push`` takes; the rest is for programs.
_PUSH_OPTIONS = (
    "name", "jobId", "priority", "delay", "maxAttempts", "backoff", "ttl", "timeout", "uniqueKey", "dedup",
    "dependsOn", "parentId", "tags", "groupId", "lifo", "removeOnComplete", "removeOnFail", "durable",
    "repeat",
)  # fmt: skip
_LOCK_TOKEN = {"token": "lock-token"}

VERBS: tuple[Verb, ...] = (
    Verb(
        "ping",
        "Ping",
        said("pong from {url} in {ms:.2f} ms"),
        "measure one round trip",
        _ping,
        timeout_s=5.0,
        takes_url=True,
    ),
    Verb(
        "healthcheck",
        "Ping",
        said("ok"),
        "exit 0 if the server answers",
        _healthcheck,
        timeout_s=5.0,
        takes_url=True,
    ),
    Verb("health", "StorageStatus", views.health, "exit 0 if jobs can be stored", _health, timeout_s=5.0),
    Verb("stats", "Stats", views.STATS),
    Verb(
        "metrics",
        "Metrics",
        pairs(
            "metrics", avgLatencyMs=figure, avgProcessingMs=figure, memoryUsageMb=figure, sqliteSizeMb=figure
        ),
        "read totals since the start of the server",
        options=(),
    ),
    Verb("prometheus", "Prometheus", lines("data.metrics")),
    Verb(
        "push",
        "PUSH",
        only("id"),
        "add one job and print its id",
        _push,
        places=("data",),
        options=_PUSH_OPTIONS,
        renamed={
            "maxAttempts": "attempts",
            "parentId": "parent",
            "groupId": "group",
            "timeout": "job-timeout",
        },
        durations=frozenset({"delay", "ttl", "timeout", "backoff"}),
        helps={
            "data": "the payload as JSON; a text is written '\"hello\"', with both quotes",
            "parentId": "the job that waits for this one",
            "backoff": "before a retry, twice as long each time; or JSON with type, delay and maxDelay in ms",
        },
        checks=_check_push,
    ),
    Verb(
        "pull",
        "PULL",
        details("", views.PULLED, (Column("data", "job.data", payload),)),
        "take one job; ack or fail it afterwards",
        _pull,
        options=("timeout", "owner", "lockTtl"),
        renamed={"timeout": "wait", "lockTtl": "lock"},
        durations=frozenset({"timeout", "lockTtl"}),
        checks=_check_pull,
    ),
    Verb(
        "ack",
        "ACK",
        said("{id} is completed"),
        "finish a job that was pulled",
        options=("result", "removeOnComplete", "token"),
        renamed=_LOCK_TOKEN,
    ),
    Verb(
        "fail",
        "FAIL",
        said("{id} has failed"),
        "fail a job that was pulled",
        options=("error", "unrecoverable", "removeOnFail", "token"),
        renamed=_LOCK_TOKEN,
    ),
    Verb("queue list", "ListQueues", table("queues", (Column("queue", ""),), "no queues")),
    Verb("queue counts", "GetJobCounts", pairs("counts")),
    Verb(
        "queue jobs",
        "GetJobs",
        table("jobs", views.JOB, "no jobs"),
        "list jobs by their creation",
        lists_payloads=True,
    ),
    Verb("queue count", "Count", only("count")),
    Verb("queue priorities", "GetCountsPerPriority", pairs("counts", "no queued jobs")),
    Verb("queue paused", "IsPaused", only("paused")),
    Verb(
        "queue limits",
        "GetQueueLimits",
        views.limits,
        "read the limits of a queue",
        options=(),
    ),
    Verb(
        "queue metrics",
        "Metrics",
        views.minutes,
        "count what ended in a queue by minute, newest first: completed or failed",
        _by_minute,
        places=("queue", "type"),
        options=("start", "end"),
        checks=_check_metrics,
    ),
    Verb("queue pause", "Pause", said("{queue} is paused")),
    Verb("queue resume", "Resume", said("{queue} is resumed")),
    Verb("queue promote", "PromoteJobs", said("jobs made ready: {count}")),
    Verb("queue retry", "RetryCompleted", said("jobs queued again: {count}"), options=("count",)),
    Verb("queue drain", "Drain", said("jobs removed: {count}"), asks="remove the queued jobs of {queue}"),
    Verb(
        "queue clean",
        "Clean",
        said("jobs removed: {count}"),
        durations=frozenset({"grace"}),
        asks=views.what_is_cleaned,
    ),
    Verb(
        "queue obliterate",
        "Obliterate",
        said("{queue} is gone"),
        asks="remove everything of {queue}, active jobs and settings too",
    ),
    Verb(
        "job get",
        "GetJob",
        details("job", views.JOB_DETAILS, views.PAYLOADS),
        "read one job with its payload",
    ),
    Verb("job state", "GetState", only("state"), "read the state of a job", _known_state),
    Verb("job result", "GetResult", only("result", payload), run=_result),
    Verb(
        "job logs",
        "GetLogs",
        table("data.logs", views.LOG, "no log"),
        "read the log of a job",
        _of_job,
        options=("start", "end"),
    ),
    Verb("job retry", "GetJob", said("{id} is queued again"), "start a failed or completed job over", _retry),
    Verb(
        "job progress",
        "Progress",
        said("{id} is at {progress}"),
        options=("message", "token"),
        renamed=_LOCK_TOKEN,
    ),
    Verb("job update", "Update", said("{id} has new data"), options=("token",), renamed=_LOCK_TOKEN),
    Verb("job priority", "ChangePriority", said("{id} has priority {priority}")),
    Verb("job promote", "Promote", said("{id} is ready")),
    Verb(
        "job delay",
        "ChangeDelay",
        views.new_time,
        options=("token",),
        renamed=_LOCK_TOKEN,
        durations=frozenset({"delay"}),
    ),
    Verb("job discard", "Discard", said("{id} is a dead letter"), options=("token",), renamed=_LOCK_TOKEN),
    Verb(
        "job log",
        "AddLog",
        said("{id} has one line more"),
        options=("level", "token"),
        renamed=_LOCK_TOKEN,
    ),
    Verb(
        "job clear-logs",
        "ClearLogs",
        said("the log of {id} is cleared"),
        run=_of_job,
        renamed={"keepLogs": "keep"},
    ),
    Verb("job children", "GetChildrenValues", pairs("data.values", "no results"), run=_of_job),
    Verb("job cancel", "Cancel", said("{id} is cancelled")),
    Verb(
        "job wait",
        "WaitJob",
        only("result", payload),
        "wait until a job is completed and print its result; --timeout says how long",
        _wait,
        options=(),
    ),
    Verb("dlq list", "Dlq", table("entries", views.LETTER, "no dead letters"), lists_payloads=True),
    Verb(
        "dlq retry",
        "RetryDlq",
        said("jobs queued again: {count}"),
        run=_retry_letters,
        places=("jobId",),
    ),
    Verb("dlq stats", "GetDlqStats", views.letters),
    Verb("dlq remove", "RemoveDlqJob", said("{jobId} is removed"), run=_removed),
    Verb("dlq config", "GetDlqConfig", pairs("config", autoRetryInterval=lasting, maxAge=views.age_kept)),
    Verb("dlq purge", "PurgeDlq", said("jobs removed: {count}"), asks="remove the dead letters of {queue}"),
    Verb("worker list", "ListWorkers", table("data.workers", views.WORKER, "no workers")),
    Verb("worker unregister", "UnregisterWorker", said("{workerId} is forgotten")),
    Verb(
        "rate-limit set",
        "RateLimit",
        views.rate,
        durations=frozenset({"duration", "ttl"}),
    ),
    Verb("rate-limit clear", "RateLimitClear", said("{queue} has no rate limit")),
    Verb("concurrency set", "SetConcurrency", said("{queue} has at most {limit} active jobs")),
    Verb("concurrency clear", "ClearConcurrency", said("{queue} has no concurrency limit")),
    Verb("webhook list", "ListWebhooks", table("data.webhooks", views.HOOK, "no webhooks")),
    Verb(
        "webhook add",
        "AddWebhook",
        only("data.webhookId"),
        "have an address told of events, and print the id of that",
        renamed={"secret": "secret-file"},
        forms={"events": "words", "secret": "file"},
        checks=_check_webhook,
    ),
    Verb("webhook remove", "RemoveWebhook", said("{webhookId} is removed")),
    Verb("webhook enable", "SetWebhookEnabled", said("{id} is told"), fixed={"enabled": True}),
    Verb("webhook disable", "SetWebhookEnabled", said("{id} is not told for now"), fixed={"enabled": False}),
    Verb("cron list", "CronList", table("crons", views.CRON, "no schedules")),
    Verb("cron get", "CronGet", details("cron", views.CRON)),
    Verb(
        "cron add",
        "Cron",
        details("cron", views.CRON),
        renamed={"repeatEvery": "every", "jobName": "job-name"},
        durations=frozenset({"repeatEvery"}),
        checks=_check_cron,
    ),
    Verb("cron delete", "CronDelete", said("{name} is deleted")),
)
#: Other spellings of verbs.
ALIASES: Mapping[str, str] = {"worker-list": "worker list", "worker-unregister": "worker unregister"}
#: What a word of two-word verbs is about.
GROUPS: Mapping[str, str] = {
    "queue": "list, pause, empty and remove queues",
    "job": "look at one job, cancel it, wait for it",
    "dlq": "dead letters: list, retry, purge",
    "worker": "look at workers",
    "rate-limit": "how many jobs of a queue start in a time",
    "concurrency": "how many jobs of a queue are active at once",
    "webhook": "addresses that are told of events",
    "cron": "schedules: list, add, delete",
}
