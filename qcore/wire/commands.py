"""The commands of the protocol as data, and the check of a request against them.

The table names every command with its fields, reply, errors and how safe its
effect must be before the reply goes out. Documentation and dispatch both read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from qcore.errors import CommandError
from qcore.limits import (
    DEFAULT_ATTEMPTS,
    DEFAULT_BACKOFF_MS,
    DEFAULT_LOCK_TTL_MS,
    DEFAULT_STACK_LINES,
    MAX_LINE_CHARS,
    MAX_NAME_CHARS,
    MAX_PULL_COUNT,
    MAX_PULL_TIMEOUT_MS,
    MAX_TIME_MS,
)
from qcore.wire import fields as _fields
from qcore.wire.fields import ABSENT, Check, Field, Refused, checker, given

__all__ = [
    "ABSENT",
    "COMMANDS",
    "JOB_OPTIONS",
    "Command",
    "Field",
    "Level",
    "check",
    "find",
    "job_name",
    "queue_name",
]

Level = Literal["none", "buffered", "committed"]

# A peer sees at most this much of a command name it made up.
_ECHO_CHARS: Final = 100


@dataclass(frozen=True, slots=True)
class Command:
    """One command: what it takes, what it answers, and how safe its effect is.

    ``reply`` names the fields of a successful answer, dots for nesting. ``level``
    says what must have happened to the effect before the reply is sent: ``none``
    (nothing to save), ``buffered`` (saved within the flush window), ``committed``.
    A ``blocking`` command may wait for work and answers out of order.
    """

    name: str
    fields: tuple[Field, ...] = ()
    reply: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    help: str = ""
    level: Level = "none"
    blocking: bool = False


JOB_OPTIONS: Final[tuple[Field, ...]] = (
    Field("name", "name", "default", help="what kind of job it is, 1 to 256 characters", implied=True),
    Field("data", "data", help="payload, any value, passed through as it came"),
    Field("customId", "text", help="id of the job; adding a live id again changes nothing"),
    Field("priority", "option", 0, help="higher runs first", implied=True),
    Field("delay", "duration", 0, help="ms before it may start; negative: ready at once", implied=True),
    Field("maxAttempts", "runs", DEFAULT_ATTEMPTS, help="executions allowed, at least 1", implied=True),
    Field("backoff", "backoff", DEFAULT_BACKOFF_MS, help="ms before a retry, or how it grows", implied=True),
    Field("ttl", "duration", minimum=0, help="ms after which a job that never started is dropped"),
    Field("timeout", "duration", minimum=0, help="ms that one execution may take; 0: no bound"),
    Field("stallTimeout", "duration", help="ms without a heartbeat that count as a stall"),
    Field("uniqueKey", "text", help="at most one live job of the queue holds a key"),
    Field("dedup", "dedup", help="what a second job with the same key does"),
    Field("dependsOn", "ids", help="jobs that must complete first"),
    Field("childrenIds", "ids", help="jobs whose outcome this one collects"),
    Field("parentId", "text", help="the job that waits for this one"),
    Field("tags", "tags", help="labels"),
    Field("groupId", "group_id", help="group for fair and limited delivery"),
    Field("groupMaxSize", "group_size", help="queued jobs the group may hold"),
    Field("lifo", "flag", False, help="newest first among equal priorities", implied=True),
    Field("removeOnComplete", "removal", False, help="true, a number kept, or age and count", implied=True),
    Field("removeOnFail", "removal", False, help="true, a number kept, or age and count", implied=True),
    Field("durable", "flag", False, help="committed before the reply", implied=True),
    Field("repeat", "repeat", help="run again every so many ms, or by a cron pattern"),
    Field("failParentOnFailure", "flag", False, help="its failure fails the parent", implied=True),
    Field("removeDependencyOnFailure", "flag", False, help="its failure frees the parent", implied=True),
    Field("ignoreDependencyOnFailure", "flag", False, help="the same, with a record", implied=True),
    Field("continueParentOnFailure", "flag", False, help="its failure starts the parent", implied=True),
    Field("stackTraceLimit", "option", DEFAULT_STACK_LINES, help="lines of a trace kept", implied=True),
    Field("keepLogs", "option", help="log lines kept"),
    Field("sizeLimit", "option", help="bytes of data allowed"),
    Field("debounceId", "text", help="stored and returned"),
    Field("debounceTtl", "duration", help="stored and returned"),
    Field(
        "timestamp",
        "duration",
        minimum=-MAX_TIME_MS,
        maximum=MAX_TIME_MS,
        help="ms since the epoch at which the job counts as created",
    ),
)

_QUEUE: Final = Field("queue", "queue", required=True, help="1 to 256 of A-Z a-z 0-9 _ . : -")
_ID: Final = Field("id", "id", required=True, help="job id")
_IDS: Final = Field("ids", "ids", required=True, help="job ids")
_TOKEN: Final = Field("token", "text", help="lock token of the delivery")
_TOKENS: Final = Field("tokens", "tokens", help="lock tokens, one an id")
_PULL: Final = (
    _QUEUE,
    Field("timeout", "time", 0, minimum=0, maximum=MAX_PULL_TIMEOUT_MS, help="ms to wait for a job"),
    Field("owner", "text", help="who takes the job; without it there is no lock"),
    Field("lockTtl", "time", DEFAULT_LOCK_TTL_MS, help="ms until the lock runs out"),
    Field("detach", "flag", False, help="keep the job active when the connection ends"),
    Field("group", "group", help="limits for grouped jobs"),
)
_LOCKED: Final = (
    "Lock token required for job <id>",
    "Invalid or expired lock token for job <id>",
    "Job not found or not in processing state: <id>",
)
_LENGTHS: Final = tuple(
    f"ACKB {name} length must match ids length" for name in ("tokens", "results", "removeOnCompletes")
)


def _job_id_first(options: tuple[Field, ...]) -> tuple[Field, ...]:
    """A single add names its custom id ``jobId``; a batch and a flow say ``customId``."""
    return tuple(replace(field, name="jobId") if field.name == "customId" else field for field in options)


def _table(*commands: Command) -> dict[str, Command]:
    return {command.name: command for command in commands}


COMMANDS: Final[Mapping[str, Command]] = _table(
    Command(
        "Hello",
        (
            Field("protocolVersion", "any", help="version the client speaks; not looked at"),
            Field("capabilities", "words", help="extensions the client understands"),
        ),
        ("protocolVersion", "capabilities", "server", "version"),
        help="Announce capabilities; optional.",
    ),
    Command("Auth", (Field("token", "any", help="one of the server's tokens"),), (), ("Invalid token",)),
    Command("Ping", reply=("data.pong", "data.time"), help="Ask for a sign of life."),
    Command(
        "PUSH",
        (_QUEUE, *_job_id_first(JOB_OPTIONS)),
        ("id",),
        ("Dependency job not found: <id>", "Job cannot depend on itself: <id>"),
        "Add one job.",
        "buffered",
    ),
    Command(
        "PUSHB",
        (_QUEUE, Field("jobs", "batch", required=True, help="job options, one map a job")),
        ("ids",),
        ("jobs[<index>]: <text>",),
        "Add jobs, all or none.",
        "buffered",
    ),
    Command(
        "PULL",
        _PULL,
        ("job", "token"),
        (),
        "Take one job, waiting for it if asked to.",
        "buffered",
        True,
    ),
    Command(
        "PULLB",
        (
            *_PULL,
            Field("count", "int", required=True, minimum=1, maximum=MAX_PULL_COUNT, help="most jobs to take"),
        ),
        ("jobs", "tokens"),
        (),
        "Take up to count jobs, waiting for the first if asked to.",
        "buffered",
        True,
    ),
    Command(
        "ACK",
        (
            _ID,
            _TOKEN,
            Field("result", "any", help="what the job returned; null is a result"),
            Field("removeOnComplete", "removal", help="overrides the option of the job"),
        ),
        ("data.applied", "data.reason"),
        _LOCKED,
        "Finish a job with success.",
        "committed",
    ),
    Command(
        "ACKB",
        (
            _IDS,
            _TOKENS,
            Field("results", "list", help="results, one an id"),
            Field("removeOnCompletes", "list", help="true or null, one an id"),
        ),
        ("data.ignoredIndices", "data.ignoredIds", "data.refused"),
        (*_LENGTHS, *_LOCKED),
        "Finish jobs with success, one outcome for each.",
        "committed",
    ),
    Command(
        "FAIL",
        (
            _ID,
            _TOKEN,
            Field("error", "text", help="what went wrong"),
            Field("unrecoverable", "flag", False, help="no further attempt"),
            Field("stack", "stack", help="lines of the trace"),
            Field("removeOnFail", "removal", help="overrides the option of the job"),
        ),
        ("data.applied", "data.reason"),
        _LOCKED,
        "Finish an attempt with a failure.",
        "committed",
    ),
    Command(
        "MoveToDelayed",
        (_ID, _TOKEN, Field("delay", "duration", required=True, help="ms from now")),
        (),
        ("Job not found", "Job is not active (current state: <state>)", *_LOCKED),
        "Put an active job off, uncharged, or change the time of a queued one.",
        "committed",
    ),
    Command(
        "Promote", (_ID,), (), ("Job not found or not delayed",), "Make a delayed job ready.", "committed"
    ),
    Command(
        "ChangeDelay",
        (_ID, _TOKEN, Field("delay", "duration", required=True, help="ms from now")),
        (),
        ("Job not found or cannot change delay", *_LOCKED),
        "Change the run time of a queued job, or put an active one off.",
        "committed",
    ),
    Command(
        "MoveToWait",
        (_ID, _TOKEN),
        (),
        ("Cannot move job from state '<state>' to waiting", *_LOCKED),
        "Make a job ready: give it back, promote it, or revive it from the dead letters.",
        "committed",
    ),
    Command(
        "RetryDlq",
        (
            _QUEUE,
            Field("jobId", "text", help="only this one"),
            Field("count", "int", minimum=0, help="only the oldest so many"),
            Field("filter", "filter", help="which entries"),
        ),
        ("count",),
        (),
        "Start dead letters over, with a fresh count of attempts.",
        "committed",
    ),
    Command(
        "Cancel",
        (_ID,),
        (),
        ("Job not found or cannot be cancelled",),
        "Remove a queued job.",
        "committed",
    ),
    Command(
        "Discard",
        (_ID, _TOKEN),
        (),
        ("Job not found", *_LOCKED),
        "Move a queued or active job to the dead letters, with the reason unknown.",
        "committed",
    ),
    Command(
        "PromoteJobs",
        (_QUEUE, Field("count", "int", minimum=0, help="only the oldest so many")),
        ("count",),
        (),
        "Make delayed jobs ready.",
        "committed",
    ),
    Command(
        "ChangePriority",
        (
            _ID,
            Field("priority", "option", required=True, help="higher runs first"),
            Field("lifo", "flag", help="newest first among equal priorities"),
        ),
        (),
        ("Job not found or not in queue",),
        "Give a queued job another place.",
        "committed",
    ),
    Command(
        "Update",
        (_ID, Field("data", "data", required=True, help="the new payload, any value")),
        (),
        ("Job not found or cannot be updated",),
        "Replace the data of a queued or active job.",
        "committed",
    ),
    Command(
        "Progress",
        (
            _ID,
            Field("progress", "number", required=True, help="0 to 100, what is outside is clamped"),
            Field("message", "string", maximum=MAX_LINE_CHARS, help="what it is doing; absent: as before"),
        ),
        (),
        ("Job not found", "Job is not active (current state: <state>)"),
        "Say how far an active job has come; a sign of life as well.",
        "buffered",
    ),
    Command(
        "GetProgress",
        (_ID,),
        ("progress", "message"),
        ("Job not found", "Job is not active (current state: <state>)"),
        "Read how far an active job has come.",
    ),
    Command(
        "AddLog",
        (
            _ID,
            Field("message", "string", required=True, maximum=MAX_LINE_CHARS, help="the line"),
            Field("level", "string", "info", maximum=MAX_NAME_CHARS, help="any word"),
        ),
        ("data.added",),
        ("Job not found",),
        "Append a line to the log of a job, which keeps its last 100.",
        "buffered",
    ),
    Command(
        "GetLogs",
        (
            _ID,
            Field("start", "int", 0, minimum=0, help="first line"),
            Field("end", "int", help="last line, included; negative ones count from the end"),
        ),
        ("data.logs", "data.count"),
        (),
        "Read the log of a job; unknown ids are no error.",
    ),
    Command(
        "ClearLogs",
        (_ID, Field("keepLogs", "int", 0, minimum=0, help="newest lines to keep")),
        (),
        (),
        "Drop the log of a job; unknown ids are no error.",
        "committed",
    ),
    Command(
        "Drain",
        (_QUEUE,),
        ("count",),
        (),
        "Remove the queued jobs of a queue, not the active ones.",
        "committed",
    ),
    Command(
        "Clean",
        (
            _QUEUE,
            Field("grace", "time", 0, minimum=0, help="ms that a job must be old"),
            Field("state", "text", help="only this state; absent: every queued job"),
            Field("limit", "int", 1000, minimum=0, help="most jobs to remove, oldest first"),
        ),
        ("count", "ids"),
        (),
        "Remove old jobs: finished ones by their end, others by their creation. Active ones never.",
        "committed",
    ),
    Command(
        "Obliterate",
        (_QUEUE,),
        (),
        (),
        "Remove everything of a queue, active jobs and settings too.",
        "committed",
    ),
    Command("PurgeDlq", (_QUEUE,), ("count",), (), "Remove the dead letters of a queue.", "committed"),
    Command(
        "RemoveDlqJob",
        (_QUEUE, Field("jobId", "id", required=True, help="job id")),
        ("data.removed",),
        (),
        "Remove one dead letter.",
        "committed",
    ),
    Command(
        "RetryCompleted",
        (
            _QUEUE,
            Field("id", "text", help="only this one"),
            Field("count", "int", minimum=0, help="only the oldest so many"),
            Field("timestamp", "time", help="only what was completed by then, ms since the epoch"),
        ),
        ("count",),
        (),
        "Start completed jobs over; their results are dropped.",
        "committed",
    ),
    Command("GetDlqStats", (_QUEUE,), ("data.stats",), (), "Count the dead letters of a queue."),
    Command(
        "SetDlqConfig",
        (_QUEUE, Field("config", "dead_config", required=True, help="what is to change")),
        (),
        (),
        "Change what holds for dead letters: maxAge and maxEntries; the other settings are only kept.",
        "committed",
    ),
    Command("GetDlqConfig", (_QUEUE,), ("config",), (), "Read what holds for dead letters."),
    Command(
        "SetStallConfig",
        (_QUEUE, Field("config", "stall_config", help="what is to change")),
        (),
        (),
        "Change what holds for stalled jobs: maxStalls; the other settings are only kept.",
        "committed",
    ),
    Command("GetStallConfig", (_QUEUE,), ("config",), (), "Read what holds for stalled jobs."),
    Command("Pause", (_QUEUE,), (), (), "Let nothing of a queue start.", "committed"),
    Command("Resume", (_QUEUE,), (), (), "End a pause.", "committed"),
    Command("IsPaused", (_QUEUE,), ("paused",), (), "Read whether a queue is paused."),
    Command("GetJob", (_ID,), ("job",), ("Job not found",), "Read one job."),
    Command("GetState", (_ID,), ("id", "state"), (), "Read the state of a job; unknown ids are no error."),
    Command("GetResult", (_ID,), ("id", "result"), (), "Read the result of a completed job."),
    Command(
        "WaitJob",
        (_ID, Field("timeout", "time", 30_000, minimum=0, maximum=600_000, help="ms to wait")),
        ("completed", "result"),
        ("Job not found",),
        "Wait for the outcome of a job; a failed or removed one answers at once.",
        blocking=True,
    ),
    Command(
        "GetJobs",
        (
            _QUEUE,
            Field("state", "states", help="one state or several; absent or none: all"),
            Field("offset", "int", 0, minimum=0, help="jobs to leave out at the beginning"),
            Field("limit", "int", 100, minimum=0, help="most jobs to return"),
            Field("asc", "flag", True, help="oldest first"),
        ),
        ("jobs",),
        (),
        "Read jobs by their creation time; those of a paused queue are paused, not waiting.",
    ),
    Command(
        "GetJobByCustomId",
        (Field("customId", "id", required=True, help="id that the producer gave"),),
        ("job",),
        ("Job not found",),
        "Read a live job by the id that its producer gave.",
    ),
    Command(
        "GetCountsPerPriority",
        (_QUEUE,),
        ("queue", "counts"),
        (),
        "Count the queued jobs of a queue by priority.",
    ),
    Command("GetJobCounts", (_QUEUE,), ("counts",), (), "Count the jobs of a queue by state."),
    Command("Count", (_QUEUE,), ("count",), (), "Count the queued jobs of a queue."),
    Command("ListQueues", (), ("queues",), (), "Name every queue."),
    Command(
        "Dlq",
        (
            _QUEUE,
            Field("count", "int", minimum=0, help="most entries to return"),
            Field("filter", "filter", help="which entries"),
        ),
        ("jobs", "entries"),
        (),
        "Read the dead letters of a queue, oldest first.",
    ),
    Command(
        "RegisterWorker",
        (
            Field("name", "id", required=True, help="name of the worker"),
            Field("queues", "queues", required=True, help="queues it serves"),
            Field("concurrency", "int", 1, minimum=1, help="jobs it runs at once"),
            Field("workerId", "text", help="id; one is made if absent"),
            Field("hostname", "text", "unknown", help="machine it runs on"),
            Field("pid", "int", 0, minimum=0, help="its process"),
            Field("startedAt", "time", help="ms since the epoch"),
        ),
        tuple(
            f"data.{name}"
            for name in (
                "workerId",
                "name",
                "queues",
                "concurrency",
                "hostname",
                "pid",
                "status",
                "registeredAt",
                "lastSeen",
                "activeJobs",
                "processedJobs",
                "failedJobs",
                "currentJob",
            )
        ),
        (),
        "Register a worker; it belongs to the connection.",
    ),
    Command(
        "UnregisterWorker",
        (Field("workerId", "id", required=True, help="worker id"),),
        ("data.removed",),
        ("Worker not found",),
        "Forget a worker.",
    ),
    Command(
        "Heartbeat",
        (
            Field("id", "id", required=True, help="worker id"),
            Field("activeJobs", "number", minimum=0, help="jobs it runs now"),
            Field("processed", "number", minimum=0, help="jobs it completed"),
            Field("failed", "number", minimum=0, help="jobs that failed in it"),
        ),
        ("data.ok",),
        ("Worker not found",),
        "Say that a worker lives.",
    ),
    Command("ListWorkers", (), ("data.workers", "data.stats"), (), "Read every worker."),
    Command(
        "JobHeartbeat",
        (_ID, _TOKEN, Field("duration", "time", minimum=1, help="new lock time in ms")),
        ("data.ok",),
        ("Job not found or not active (or invalid token)",),
        "Renew the lock of a job.",
        "buffered",
    ),
    Command(
        "JobHeartbeatB",
        (_IDS, _TOKENS, Field("duration", "time", minimum=1, help="new lock time in ms")),
        ("data.ok", "data.count"),
        ("JobHeartbeatB tokens length must match ids length",),
        "Renew the locks of jobs; the count says how many.",
        "buffered",
    ),
    Command(
        "ExtendLock",
        (_ID, _TOKEN, Field("duration", "time", required=True, minimum=1, help="new lock time in ms")),
        (),
        ("Lock not found or invalid token",),
        "Renew the lock of a job, by its holder.",
        "buffered",
    ),
    Command(
        "ExtendLocks",
        (
            _IDS,
            Field("tokens", "tokens", required=True, help="lock tokens, one an id"),
            Field("durations", "numbers", required=True, minimum=1, help="new lock times in ms, one an id"),
        ),
        ("count",),
        (
            "ExtendLocks tokens length must match ids length",
            "ExtendLocks durations length must match ids length",
        ),
        "Renew the locks of jobs; the count says how many.",
        "buffered",
    ),
    Command("Stats", (), ("stats",), (), "Count jobs of all queues."),
    Command(
        "Metrics",
        (
            Field("queue", "text", help="not served yet: totals only"),
            Field("type", "text", help="likewise"),
        ),
        ("metrics",),
        (
            "Metrics queue is required",
            "Metrics type must be 'completed' or 'failed'",
            "metrics of one queue are not supported by this server yet",
        ),
        "Read totals since the start of the server.",
    ),
    Command("CompactMemory", (), (), (), "Give back memory that is not needed."),
    Command(
        "StorageStatus",
        (),
        ("data.diskFull", "data.error", "data.since"),
        (),
        "Read whether the data file can be written.",
    ),
)


def queue_name(value: object) -> str:
    """Return a valid queue name; CommandError with the protocol's text otherwise."""
    try:
        return _fields.queue_name(value)
    except Refused as refused:
        raise CommandError(str(refused)) from None


def job_name(value: object) -> str:
    """Return a valid job name; CommandError with the protocol's text otherwise."""
    try:
        return _fields.job_name(value)
    except Refused as refused:
        raise CommandError(str(refused)) from None


class _Options:
    """The job options under one name of the custom id, ready to check.

    Only keys that are there are looked at, so a plain job costs two look-ups,
    not one for each of the options.
    """

    __slots__ = ("_grouped", "_plain")

    def __init__(self, id_key: str) -> None:
        self._plain: dict[str, tuple[str, Check]] = {}
        for field in JOB_OPTIONS:
            key = id_key if field.name == "customId" else field.name
            self._plain[key] = (field.name, checker(replace(field, name=key)))
        self._grouped = dict(self._plain)
        self._grouped["priority"] = ("priority", checker(Field("priority", "group_priority")))

    def check(self, job: Mapping[str, object], out: dict[str, object]) -> None:
        table = self._grouped if "groupId" in job and given(job["groupId"]) else self._plain
        for key, value in job.items():
            entry = table.get(key)
            if entry is None:
                continue
            if value is None:
                # Null is a payload, and a name it cannot be; elsewhere it is not given.
                if key != "data" and key != "name":
                    continue
            elif not given(value):
                continue
            name, field_check = entry
            checked = field_check(value)
            if checked is not ABSENT:
                out[name] = checked
        if "dependsOn" in out or "repeat" in out:
            self._check_together(out)

    def _check_together(self, out: dict[str, object]) -> None:
        job_id = out.get("customId")
        depends_on = out.get("dependsOn")
        if job_id is not None and isinstance(depends_on, list) and job_id in depends_on:
            raise Refused(f"Job cannot depend on itself: {job_id}")
        if "repeat" in out:
            if job_id is not None:
                raise Refused("repeat jobs cannot use JobOptions.jobId; use repeat.jobId instead")
            if depends_on or "parentId" in out or out.get("childrenIds"):
                raise Refused("repeat jobs cannot participate in parent or dependency relationships")


class _Checker:
    """One command, ready to check requests."""

    __slots__ = ("_absent_texts", "_batch", "_command", "_defaults", "_optional", "_options", "_required")

    def __init__(self, command: Command) -> None:
        self._command = command
        options = {field.name: field for field in _job_id_first(JOB_OPTIONS)}
        own = [field for field in command.fields if options.get(field.name) != field]
        self._options = _Options("jobId") if len(own) + len(options) == len(command.fields) else None
        if self._options is None:
            own = list(command.fields)
        self._batch = _Options("customId") if any(field.kind == "batch" for field in own) else None
        self._defaults = {
            field.name: field.default for field in own if field.default is not ABSENT and not field.implied
        }
        self._required: list[tuple[str, Check, str]] = []
        self._optional: dict[str, Check] = {}
        for field in own:
            if field.kind == "batch":
                continue
            if field.required:
                text = "Queue name is required" if field.kind == "queue" else f"{field.name} is required"
                self._required.append((field.name, checker(field), text))
            else:
                self._optional[field.name] = checker(field)

    @property
    def command(self) -> Command:
        return self._command

    def check(self, request: Mapping[str, object]) -> dict[str, object]:
        out = self._defaults.copy()
        for name, field_check, text in self._required:
            value = request.get(name)
            if not given(value):
                raise Refused(text)
            out[name] = field_check(value)
        if self._options is not None:
            self._options.check(request, out)
        elif self._optional:
            for name, value in request.items():
                optional = self._optional.get(name)
                if optional is None:
                    continue
                if value is None:
                    if name != "result":
                        continue
                elif not given(value):
                    continue
                checked = optional(value)
                if checked is not ABSENT:
                    out[name] = checked
        if self._batch is not None:
            out["jobs"] = self._check_batch(request.get("jobs"), self._batch)
        elif "ids" in out:
            self._check_lengths(out)
        return out

    def _check_batch(self, jobs: object, options: _Options) -> list[dict[str, object]]:
        if not given(jobs):
            raise Refused("jobs is required")
        if not isinstance(jobs, list):
            raise Refused("jobs must be an array")
        checked: list[dict[str, object]] = []
        for job in jobs:
            one: dict[str, object] = {}
            try:
                if not isinstance(job, dict):
                    raise Refused("must be an object")
                options.check(job, one)
            except Refused as refused:
                raise Refused(f"jobs[{len(checked)}]: {refused}") from None
            checked.append(one)
        return checked

    def _check_lengths(self, out: dict[str, object]) -> None:
        ids = out["ids"]
        for name in ("tokens", "results", "removeOnCompletes", "durations"):
            values = out.get(name)
            if values is not None and len(values) != len(ids):  # type: ignore[arg-type]
                raise Refused(f"{self._command.name} {name} length must match ids length")
        flags = out.get("removeOnCompletes")
        if isinstance(flags, list):
            out["removeOnCompletes"] = [_REMOVAL(flag) if given(flag) else None for flag in flags]


_REMOVAL: Final = checker(Field("removeOnCompletes", "removal"))
_CHECKERS: Final[dict[str, _Checker]] = {}


def find(cmd: object) -> Command:
    """Return the command of a request's ``cmd``; CommandError when there is none."""
    command = COMMANDS.get(cmd) if isinstance(cmd, str) else None
    if command is not None:
        return command
    if not given(cmd) or cmd in (False, 0, "", b""):
        raise CommandError("Invalid command")
    shown = cmd if isinstance(cmd, str) else repr(cmd) if isinstance(cmd, int | float) else type(cmd).__name__
    if len(shown) > _ECHO_CHARS:
        shown = shown[:_ECHO_CHARS] + "..."
    raise CommandError(f"Unknown command: {shown}")


def check(command: Command, request: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of ``request`` in the form the engine works with.

    Unknown fields are left out, absent ones too unless the table has a default to
    fill in; a job's custom id is ``customId`` in single adds as well. ``data`` and
    ``result`` stay as they are. O(fields that are there). Raises CommandError with
    the protocol's text for the first field that is not acceptable.
    """
    ready = _CHECKERS.get(command.name)
    if ready is None or ready.command is not command:
        ready = _CHECKERS[command.name] = _Checker(command)
    try:
        return ready.check(request)
    except Refused as refused:
        raise CommandError(str(refused), command.name) from None
