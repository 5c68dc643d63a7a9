"""What people see of the reply to a verb: columns of tables, and views that one verb alone has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from qclient.cli.show import (
    Block,
    Column,
    Line,
    Pairs,
    Reply,
    Table,
    brief,
    lasting,
    moment,
    pairs,
    payload,
    plain,
)
from qcore.wire.commands import COMMANDS

STATS: Final = pairs("stats", uptime=lasting)


def health(reply: Reply, fields: Reply) -> Iterable[Block]:
    """The counts, and what was lost before the start."""
    yield from STATS(reply, fields)
    if lost := reply["storage"].get("lostAtStart"):
        yield Line(f"lost before the start: {plain(lost)}")


def limits(reply: Reply, fields: Reply) -> Iterable[Block]:
    """The limits of a queue that are set."""
    found = reply["data"]["limits"]
    rows = []
    if rate := found["rateLimit"]:
        wait_ms = found["rateLimitTtl"]  # of a limit with a ttl the rest of that
        rows += [
            ("starts", f"{plain(rate['max'])} in {lasting(rate['duration'])}"),
            ("next start", f"at the latest in {lasting(wait_ms)}" if wait_ms > 0 else "now"),
        ]
    if found["concurrencyLimit"] is not None:
        rows += [("active at once", plain(found["concurrencyLimit"])), ("reached", plain(found["maxed"]))]
    yield Pairs(rows) if rows else Line("no limits")


def rate(reply: Reply, fields: Reply) -> Iterable[Block]:
    """What was set: how many in which time, for how long."""
    duration_ms = fields.get("duration", _default("RateLimit", "duration"))
    text = f"{fields['queue']} starts at most {plain(fields['limit'])} jobs in {lasting(duration_ms)}"
    yield Line(text + (f", for {lasting(fields['ttl'])}" if "ttl" in fields else ""))


def new_time(reply: Reply, fields: Reply) -> Iterable[Block]:
    """When a job may start now."""
    when = f"in {lasting(fields['delay'])}" if fields["delay"] else "now"
    yield Line(f"{plain(fields['id'])} may start {when}")


def letters(reply: Reply, fields: Reply) -> Iterable[Block]:
    """Dead letters by the reasons that occur."""
    stats = reply["data"]["stats"]
    rows = [("total", plain(stats["total"]))]
    rows += [(plain(reason), plain(n)) for reason, n in stats["byReason"].items() if n]
    rows += [("waiting for a retry", plain(stats["pendingRetry"])), ("expired", plain(stats["expired"]))]
    for name, key in (("oldest", "oldestEntry"), ("newest", "newestEntry")):
        rows += [(name, moment(stats[key]))] * (stats[key] is not None)
    yield Pairs(rows)


def minutes(reply: Reply, fields: Reply) -> Iterable[Block]:
    """Outcomes by minute."""
    first = fields.get("start", 0)
    rows = [(plain(first + i), plain(n)) for i, n in enumerate(reply["data"]["data"])]
    yield Table(("minutes ago", plain(fields.get("type", "completed"))), rows, "nothing")


def age_kept(value: object) -> str:
    """How long something is kept."""
    return "for ever" if value is None else lasting(value)


def what_is_cleaned(fields: Reply) -> str:
    """What a cleaning removes."""
    state, most = fields.get("state", "queued"), fields.get("limit", _default("Clean", "limit"))
    old = f" that are older than {lasting(fields['grace'])}" if fields.get("grace") else ""
    return f"remove at most {plain(most)} {plain(state)} jobs of {fields['queue']}{old}"


def _words(several: Any) -> str:
    return ", ".join(map(plain, several or ()))


def _default(command: str, name: str) -> object:
    return next(field.default for field in COMMANDS[command].fields if field.name == name)


# --- columns ------------------------------------------------------------------------


def _attempts(job: Any) -> str:
    return f"{job['attempts']}/{job['maxAttempts']}"


def _timing(cron: Any) -> str:
    return plain(cron["schedule"]) if cron.get("schedule") else f"every {lasting(cron.get('repeatEvery'))}"


def _runs(cron: Any) -> str:
    most = cron.get("maxLimit")
    return plain(cron["executions"]) + (f" of {plain(most)}" if most else "")


JOB = (
    Column("id", "id"),
    Column("name", "name"),
    Column("state", "state"),
    Column("priority", "priority"),
    Column("attempts", "", _attempts),
    Column("created", "createdAt", moment),
    Column("due", "runAt", moment),
)
JOB_DETAILS = (
    Column("id", "id"),
    Column("queue", "queue"),
    *JOB[1:],
    Column("started", "startedAt", moment),
    Column("completed", "completedAt", moment),
    Column("progress", "progress"),
    Column("message", "progressMessage"),
    Column("parent", "parentId"),
    Column("failed with", "failedReason"),
)
PAYLOADS = (Column("data", "data", payload), Column("result", "returnvalue", payload))
LETTER = (
    Column("id", "job.id"),
    Column("name", "job.name"),
    Column("reason", "reason"),
    Column("attempts", "job.attempts"),
    Column("entered", "enteredAt", moment),
    Column("error", "error", brief),
)
LOG = (Column("time", "timestamp", moment), Column("level", "level"), Column("message", "message"))
CRON = (
    Column("name", "name"),
    Column("queue", "queue"),
    Column("when", "", _timing),
    Column("zone", "timezone"),
    Column("next run", "nextRun", moment),
    Column("runs", "", _runs),
)
WORKER = (
    Column("id", "id"),
    Column("name", "name"),
    Column("queues", "queues", _words),
    Column("status", "status"),
    Column("active", "activeJobs"),
    Column("slots", "concurrency"),
    Column("seen", "lastSeen", moment),
)

HOOK = (
    Column("id", "id"),
    Column("url", "url"),
    Column("events", "events", _words),
    Column("queue", "queue"),
    Column("enabled", "enabled"),
    Column("told", "successCount"),
    Column("failed", "failureCount"),
    Column("last", "lastTriggered", moment),
)
PULLED = (
    Column("id", "job.id"),
    Column("name", "job.name"),
    Column("attempts", "job", _attempts),
    Column("lock token", "token"),
)
