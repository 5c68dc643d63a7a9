"""Taking jobs, finishing them, keeping their leases."""

from __future__ import annotations

from typing import Final

from qcore.limits import DEFAULT_LOCK_TTL_MS, MAX_PULL_COUNT, MAX_PULL_TIMEOUT_MS, MAX_TIME_MS
from qcore.wire.fields import Field
from qcore.wire.tables.shape import ID, IDS, LOCKED, QUEUE, TOKEN, TOKENS, Command

_PULL: Final = (
    QUEUE,
    Field("timeout", "time", 0, minimum=0, maximum=MAX_PULL_TIMEOUT_MS, help="ms to wait for a job"),
    Field("owner", "text", help="who takes the job; without it there is no lock"),
    Field("lockTtl", "time", DEFAULT_LOCK_TTL_MS, help="ms until the lock runs out", meant=(1, MAX_TIME_MS)),
    Field("detach", "flag", False, help="keep the job active when the connection ends"),
    Field("group", "group", help="limits for grouped jobs, and which of them"),
)
_LENGTHS: Final = tuple(
    f"ACKB {name} length must match ids length" for name in ("tokens", "results", "removeOnCompletes")
)

COMMANDS: Final = (
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
            ID,
            TOKEN,
            Field("result", "any", help="what the job returned; null is a result"),
            Field("removeOnComplete", "removal", help="overrides the option of the job"),
        ),
        ("data.applied", "data.reason"),
        LOCKED,
        "Finish a job with success.",
        "committed",
    ),
    Command(
        "ACKB",
        (
            IDS,
            TOKENS,
            Field("results", "list", help="results, one an id"),
            Field("removeOnCompletes", "removals", help="as removeOnComplete of ACK or null, one an id"),
            Field("atomic", "flag", False, help="if one is refused, none is applied", implied=True),
        ),
        ("data.ignoredIndices", "data.ignoredIds", "data.refused"),
        (*_LENGTHS, *LOCKED),
        "Finish jobs with success, one outcome for each.",
        "committed",
    ),
    Command(
        "FAIL",
        (
            ID,
            TOKEN,
            Field("error", "string", help="what went wrong"),
            Field("unrecoverable", "flag", False, help="no further attempt"),
            Field("stack", "stack", help="lines of the trace"),
            Field("removeOnFail", "removal", help="overrides the option of the job"),
        ),
        ("data.applied", "data.reason"),
        LOCKED,
        "Finish an attempt with a failure.",
        "committed",
    ),
    Command(
        "JobHeartbeat",
        (ID, TOKEN, Field("duration", "time", minimum=1, help="new lock time in ms")),
        ("data.ok",),
        ("Job not found or not active (or invalid token)",),
        "Renew the lock of a job.",
        "buffered",
    ),
    Command(
        "JobHeartbeatB",
        (IDS, TOKENS, Field("duration", "time", minimum=1, help="new lock time in ms")),
        ("data.ok", "data.count"),
        (),
        "Renew the locks of jobs; the count says how many.",
        "buffered",
    ),
    Command(
        "ExtendLock",
        (ID, TOKEN, Field("duration", "time", required=True, minimum=1, help="new lock time in ms")),
        (),
        ("Lock not found or invalid token",),
        "Renew the lock of a job, by its holder.",
        "buffered",
    ),
    Command(
        "ExtendLocks",
        (
            IDS,
            Field("tokens", "tokens", required=True, help="lock tokens, one an id"),
            Field("durations", "numbers", required=True, minimum=1, help="new lock times in ms, one an id"),
        ),
        ("count",),
        (),
        "Renew the locks of jobs, each by its holder; the count says how many. What lacks a token or a "
        "time is not renewed.",
        "buffered",
    ),
)
