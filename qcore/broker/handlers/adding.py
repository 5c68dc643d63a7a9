"""Adding jobs: what is admitted, and in what form."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from qcore.engine.cron import Cron, CronError, check_zone
from qcore.engine.schedule import next_occurrence
from qcore.errors import CommandError, LimitError, NotFoundError
from qcore.limits import (
    DEFAULT_ATTEMPTS,
    DEFAULT_BACKOFF_MS,
    DEFAULT_STACK_LINES,
    MAX_TIME_MS,
)
from qcore.wire import commands
from qcore.wire.packing import take_name
from qcore.wire.writer import Packed

if TYPE_CHECKING:
    from qcore.broker.session import Added, Session
from qcore.broker.handlers.answer import Answer, Fields, Handler, Reply

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
    "groupId",
)
_TIES = ("dependsOn", "childrenIds", "parentId")


_REMOVALS = ("removeOnComplete", "removeOnFail")
#: What ``dedup`` says, by the names under which a job has it.
_DEDUP = {
    "ttl": "deduplicationTtl",
    "extend": "deduplicationExtend",
    "replace": "deduplicationReplace",
    "keepUntilExpiry": "deduplicationKeep",
}


#: queue, id or None, dependsOn, parentId or None, parentToken or None
_Tie: TypeAlias = tuple[str, str | None, list[str], str | None, str | None]


class NotStored(CommandError):
    """Refused up front, because the data file cannot be written."""

    code = "storage"


def keeps_none(removal: object) -> bool:
    """Whether a policy of removal says that the job goes at its end."""
    if isinstance(removal, Mapping):
        return removal.get("count") == 0
    return removal is True or (removal is not False and removal == 0)


def _push(answer: Answer, fields: Fields) -> Reply:
    session = answer.session
    admissible(session, [fields])
    bad = _bad_tie(session, fields["queue"], [fields], fields.get("resentSince"))
    if bad is not None:
        raise bad[1]
    admissions = [admission(fields, session.broker.wall_ms)]
    outcome = session.add(fields["queue"], admissions, fields.get("resentSince"))
    hold_add(answer, outcome)
    return {"id": outcome.ids[0]}


def _pushb(answer: Answer, fields: Fields) -> Reply:
    session = answer.session
    jobs: list[Fields] = fields["jobs"]
    for index, options in enumerate(jobs):
        try:
            admissible(session, [options])
        except CommandError as error:
            raise _of_member(index, error) from None
    bad = _bad_tie(session, fields["queue"], jobs, fields.get("resentSince"))
    if bad is not None:
        raise _of_member(*bad)
    admissions = []
    for index, options in enumerate(jobs):
        try:
            admissions.append(admission(options, session.broker.wall_ms))
        except CommandError as error:  # a name that is in the data
            raise _of_member(index, error) from None
    outcome = session.add(fields["queue"], admissions, fields.get("resentSince"))
    hold_add(answer, outcome)
    return {"ids": outcome.ids}


def _of_member(index: int, error: CommandError) -> CommandError:
    """The refusal of one job of a batch: it says which, and is of the same kind."""
    named = type(error)(f"jobs[{index}]: {error}")
    named.came = error.came
    return named


def _bad_tie(
    session: Session, queue: str, jobs: list[Fields], resent_since_ms: int | None
) -> tuple[int, CommandError] | None:
    """The first job that cannot be tied to others as it says, and why."""
    engine = session.broker.engine
    if not engine.tied and not any(name in options for options in jobs for name in _TIES):
        return None
    ties: list[_Tie] = []
    for options in jobs:
        job_id = options.get("customId")
        if (
            job_id is not None
            and resent_since_ms is not None
            and engine.admitted_since(job_id, resent_since_ms, options.get("timestamp"))
        ):
            ties.append((queue, None, [], None, None))  # it was added by the first sending
            continue
        depends_on = list(dict.fromkeys(options.get("dependsOn", ())))
        ties.append((queue, job_id, depends_on, options.get("parentId"), options.get("parentToken")))
    bad = engine.check_links(ties, lenient(jobs))
    return bad if bad is not None else _missing_parent(session, jobs, ties)


def _missing_parent(
    session: Session, jobs: list[Fields], ties: list[_Tie]
) -> tuple[int, CommandError] | None:
    """The first job that is to be refused because its parent is neither there nor comes before it."""
    engine = session.broker.engine
    for index, (_, job_id, _, parent_id, _) in enumerate(ties):
        if parent_id is None or not jobs[index].get("parentRequired"):
            continue
        if job_id is not None and engine.state(job_id) not in ("unknown", "completed", "failed"):
            continue  # it is there, and adding it again changes nothing
        if engine.state(parent_id) == "unknown" and all(other[1] != parent_id for other in ties[:index]):
            return (index, NotFoundError(f"Parent job not found: {parent_id}"))
    return None


def lenient(jobs: Iterable[Fields]) -> set[int]:
    """Places of jobs that may depend on ids that nobody knows yet."""
    return {index for index, options in enumerate(jobs) if options.get("allowUnknownDependencies")}


def hold_add(answer: Answer, outcome: Added) -> None:
    broker = answer.session.broker
    answer.add = outcome.how == "staged"
    held = broker.durable if outcome.how in ("staged", "committed") else broker.hold_adds
    answer.held = held and bool(outcome.ids)  # an empty batch waits for nothing


def admissible(session: Session, jobs: list[Fields]) -> None:
    """Refuse what cannot be admitted now, before anything changes."""
    broker = session.broker
    for options in jobs:
        if options.get("uniqueKey") and options.get("debounceId"):
            raise CommandError("uniqueKey and debounceId cannot be given together")
        if "repeat" in options:
            first_run(options, broker.wall_ms)
        data = options.get("data")
        limit = options.get("sizeLimit")
        if isinstance(data, Packed) and limit is not None and len(data) > limit:
            raise LimitError(f"Job data of {len(data)} bytes is over its sizeLimit of {limit}")
        if broker.degraded is not None:
            kind = broker.trouble
            if options.get("durable"):
                raise NotStored(f"Nothing was stored: the data file cannot be written ({kind})")
            if broker.unflushed > broker.unflushed_limit:
                raise NotStored(f"Nothing was stored: {broker.unflushed} changes wait for the disk ({kind})")


def first_run(options: Fields, now_ms: int) -> tuple[int, int | None]:
    """When the first run of a chain may start, in ms after its creation, and the slot that this is.

    At once, but not before ``startDate``, and by a pattern at its first instant; ``immediately``
    is stronger than both.
    """
    repeat = options["repeat"]
    if repeat.get("tz") is not None and "pattern" not in repeat:
        try:
            check_zone(repeat["tz"])
        except CronError as error:
            raise CommandError(f"Invalid repeat.tz: {error}") from None
    created = options.get("timestamp", now_ms)
    delay: int = options.get("delay", 0)
    start = repeat.get("startDate")
    slot = None
    if "pattern" in repeat:
        try:
            cron = Cron(repeat["pattern"], repeat.get("tz"))
        except CronError as error:
            raise CommandError(f"Invalid repeat pattern: {error}") from None
        slot = next_occurrence({**repeat, "limit": None, "endDate": None}, now_ms, cron)
        if slot is None and not repeat.get("immediately"):
            raise CommandError("repeat.pattern never comes due after repeat.startDate")
    elif start is not None and start + repeat.get("offset", 0) > now_ms:
        slot = min(math.floor(start + repeat.get("offset", 0)), MAX_TIME_MS)
    if repeat.get("immediately"):
        slot = None
    first = created + delay if slot is None else max(created + delay, slot)
    if repeat.get("endDate", first) < first:
        raise CommandError("repeat.endDate is before the first run")
    return first - created, slot


def admission(options: Fields, now_ms: int) -> dict[str, Any]:
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
    delay = options.get("delay", 0)
    if options.get("uniqueKey"):
        extra["uniqueKey"] = options["uniqueKey"]
        asked = options.get("dedup") or {}
        extra |= {_DEDUP[key]: value for key, value in asked.items() if value is not False}
    elif "debounceId" in extra and "debounceTtl" in extra:
        delay = max(delay, extra["debounceTtl"])
    if "repeat" in options:
        first, slot = first_run(options, now_ms)
        delay = max(delay, first)
        extra["repeat"] = {**options["repeat"], "count": options["repeat"].get("count", 0)}
        if slot is not None:
            extra["repeat"]["prevMillis"] = slot
    removal = {name: options[name] for name in _REMOVALS if not isinstance(options.get(name, False), bool)}
    extra |= removal
    ties = {key: options[key] for key in _TIES if options.get(key)}
    for key, tie in ties.items():
        extra[key] = list(dict.fromkeys(tie)) if isinstance(tie, list) else tie
    extra.update((key, True) for key in commands.POLICIES if options.get(key))
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
        "delay_ms": math.floor(delay),
        "created_ms": options.get("timestamp"),
        "attempts": options.get("maxAttempts", DEFAULT_ATTEMPTS),
        # No wait is longer than a day, so what is cut off here changes none.
        "backoff_ms": min(math.floor(backoff), MAX_BACKOFF_MS),
        "lifo": bool(options.get("lifo")),
        "remove_on_complete": keeps_none(options.get("removeOnComplete")),
        "remove_on_fail": keeps_none(options.get("removeOnFail")),
        "durable": bool(options.get("durable")),
        "linked": bool(ties),
        "extra": extra or None,
        "group_max": options.get("groupMaxSize"),
    }


HANDLERS: Mapping[str, Handler] = {
    "PUSH": _push,
    "PUSHB": _pushb,
}
