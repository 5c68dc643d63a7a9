"""Adding jobs."""

from __future__ import annotations

from typing import Final

from qcore.limits import (
    DEFAULT_ATTEMPTS,
    DEFAULT_BACKOFF_MS,
    DEFAULT_STACK_LINES,
    MAX_ATTEMPTS,
    MAX_TIME_MS,
)
from qcore.wire.fields import Field
from qcore.wire.tables.shape import QUEUE, Command, job_id_first

JOB_OPTIONS: Final[tuple[Field, ...]] = (
    Field("name", "name", "default", help="what kind of job it is, 1 to 256 characters", implied=True),
    Field("data", "data", help="payload, any value, passed through as it came"),
    Field("customId", "text", help="id of the job; adding a live id again changes nothing"),
    Field("priority", "option", 0, help="higher runs first", implied=True),
    Field("delay", "duration", 0, help="ms before it may start; 0 or less: at once", implied=True),
    Field(
        "maxAttempts",
        "runs",
        DEFAULT_ATTEMPTS,
        help="executions allowed, at least 1",
        implied=True,
        meant=(1, MAX_ATTEMPTS),
    ),
    Field("backoff", "backoff", DEFAULT_BACKOFF_MS, help="ms before a retry, or how it grows", implied=True),
    Field(
        "ttl",
        "duration",
        minimum=0,
        help="ms after which a job that never started is dropped",
        meant=(1, MAX_TIME_MS),
    ),
    Field("timeout", "duration", minimum=0, help="ms that one execution may take; 0: no bound"),
    Field("stallTimeout", "duration", help="ms without a heartbeat that count as a stall"),
    Field("uniqueKey", "text", help="at most one live job of the queue holds a key"),
    Field("dedup", "dedup", help="what a second job with the same key does"),
    Field("dependsOn", "ids", help="jobs that must complete first"),
    Field(
        "allowUnknownDependencies",
        "flag",
        False,
        help="ids in dependsOn may be of jobs that are still to be added",
        implied=True,
    ),
    Field("childrenIds", "ids", help="jobs whose outcome this one collects"),
    Field("parentId", "text", help="the job that waits for this one; one that is not there is only kept"),
    Field("parentToken", "text", help="lock token of an active parent, which only its holder adds to"),
    Field("parentRequired", "flag", False, help="refuse the job if its parent is not there", implied=True),
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
    Field("sizeLimit", "option", minimum=0, help="bytes of data allowed"),
    Field("debounceId", "text", help="a later add takes the place of a job that has not started"),
    Field("debounceTtl", "duration", help="ms after the last such add at which the job may start"),
    Field(
        "timestamp",
        "duration",
        minimum=-MAX_TIME_MS,
        maximum=MAX_TIME_MS,
        help="ms since the epoch at which the job counts as created",
    ),
)

_RESENT: Final = Field(
    "resentSince",
    "time",
    help="sent again after a lost reply: a job of the same id that was added at or after this time, in ms "
    "since the epoch, is the one meant, also when it is finished by now",
)

COMMANDS: Final = (
    Command(
        "PUSH",
        (QUEUE, *job_id_first(JOB_OPTIONS), _RESENT),
        ("id",),
        (
            "Dependency job not found: <id>",
            "Job cannot depend on itself: <id>",
            "Group <id> has reached its maximum size of <n>",
            "Parent job <id> is not linkable",
            "Custom ID <id> still has unresolved dependency consumers",
            "flow contains a dependency cycle",
            "failure policies are mutually exclusive: <names>",
            "<policy> requires a parent",
        ),
        "Add one job.",
        "buffered",
    ),
    Command(
        "PUSHB",
        (QUEUE, Field("jobs", "batch", required=True, help="job options, one map a job"), _RESENT),
        ("ids",),
        ("jobs[<index>]: <text>",),
        "Add jobs, all or none.",
        "buffered",
    ),
)
