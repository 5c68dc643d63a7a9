"""Job options: from Python names and units to the fields of the wire."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias, TypedDict

from qclient.checks import filled, flag, group_id, listed, number, text, whole
from qclient.durations import Duration, delay_until_ms, instant_ms, to_ms, wire_number
from qclient.values import Backoff, Debounce, Dedup, Group, Keep, Repeat
from qcore.errors import ConfigError
from qcore.limits import MAX_ATTEMPTS, MAX_GROUP_PRIORITY, MAX_NAME_CHARS

ChildFailure: TypeAlias = Literal["fail", "remove", "ignore", "continue"]
_CHILD_FAILURES: Final[Mapping[str, str]] = {
    "fail": "failParentOnFailure",
    "remove": "removeDependencyOnFailure",
    "ignore": "ignoreDependencyOnFailure",
    "continue": "continueParentOnFailure",
}
#: The fields of which a child has at most one.
CHILD_FAILURE_FIELDS: Final = frozenset(_CHILD_FAILURES.values())


class JobOptions(TypedDict, total=False):
    """What ``add`` takes besides name and data; durations are seconds or ``timedelta``."""

    priority: float
    delay: Duration
    run_at: datetime
    attempts: int | None
    backoff: Duration | Backoff
    timeout: Duration | None
    ttl: Duration | None
    stall_timeout: Duration | None
    job_id: str | None
    lifo: bool
    durable: bool
    remove_on_complete: bool | int | Keep
    remove_on_fail: bool | int | Keep
    timestamp: datetime
    stack_trace_limit: int
    tags: Iterable[str]
    depends_on: Iterable[Any]
    allow_unknown_dependencies: bool
    parent: Any
    on_child_failure: ChildFailure | None
    dedup: str | Dedup
    debounce: Debounce
    group: str | Group
    repeat: Repeat
    keep_logs: int
    size_limit: int


def suggestion(name: str, known: Iterable[str]) -> str:
    """A "did you mean" tail for an unknown name, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _duration(wire: str) -> Callable[[Any, dict[str, object]], None]:
    def put(value: Any, out: dict[str, object]) -> None:
        if value is not None:
            out[wire] = wire_number(to_ms(value, _PYTHON_NAME[wire]))

    return put


def _put_delay(value: Any, out: dict[str, object]) -> None:
    if "delay" in out:
        raise ConfigError("delay and run_at were both given")
    if value is not None:
        ms = to_ms(value, "delay")
        if ms:
            out["delay"] = wire_number(ms)


def _put_run_at(value: Any, out: dict[str, object]) -> None:
    if "delay" in out:
        raise ConfigError("delay and run_at were both given")
    out["delay"] = wire_number(delay_until_ms(value))


def _put_attempts(value: Any, out: dict[str, object]) -> None:
    out["maxAttempts"] = MAX_ATTEMPTS if value is None else whole(value, "attempts", 1, MAX_ATTEMPTS)


def _put_backoff(value: Any, out: dict[str, object]) -> None:
    if isinstance(value, Backoff):
        out["backoff"] = value.to_wire()
    elif value is not None:
        out["backoff"] = wire_number(to_ms(value, "backoff"))


def _put_job_id(value: Any, out: dict[str, object]) -> None:
    if value is not None:
        out["jobId"] = filled(value, "job_id")


def _keep(wire: str) -> Callable[[Any, dict[str, object]], None]:
    def put(value: Any, out: dict[str, object]) -> None:
        if isinstance(value, Keep):
            out[wire] = value.to_wire()
        elif isinstance(value, bool):
            if value:
                out[wire] = True
        else:
            out[wire] = whole(value, _PYTHON_NAME[wire], 0)

    return put


def _put_flag(wire: str) -> Callable[[Any, dict[str, object]], None]:
    def put(value: Any, out: dict[str, object]) -> None:
        if flag(value, wire):
            out[wire] = True

    return put


def _put_timestamp(value: Any, out: dict[str, object]) -> None:
    out["timestamp"] = wire_number(instant_ms(value, "timestamp"))


def _put_priority(value: Any, out: dict[str, object]) -> None:
    if "priority" in out:
        raise ConfigError("priority and the priority of the group were both given")
    checked = number(value, "priority")
    out["priority"] = wire_number(checked) if isinstance(checked, int) else checked


def _put_tags(value: Any, out: dict[str, object]) -> None:
    tags = [text(tag, "tags") for tag in listed(value, "tags", "strings")]
    for tag in tags:
        if len(tag) > MAX_NAME_CHARS:
            raise ConfigError(f"a tag has {len(tag)} characters; at most {MAX_NAME_CHARS}")
    out["tags"] = tags


def _put_depends_on(value: Any, out: dict[str, object]) -> None:
    jobs = listed(value, "depends_on", "jobs or ids")
    out["dependsOn"] = [filled(getattr(job, "id", job), "depends_on") for job in jobs]


def _put_parent(value: Any, out: dict[str, object]) -> None:
    out["parentId"] = filled(getattr(value, "id", value), "parent")
    out["parentRequired"] = True
    # Who runs the parent may add to it, and shows so by the token of its delivery.
    token = getattr(value, "token", None)
    if token:
        out["parentToken"] = token


def _put_on_child_failure(value: Any, out: dict[str, object]) -> None:
    if value is None:
        return
    wire = _CHILD_FAILURES.get(text(value, "on_child_failure"))
    if wire is None:
        raise ConfigError(
            f"on_child_failure must be None or one of {', '.join(_CHILD_FAILURES)}, not {value!r}"
        )
    out[wire] = True


def _put_dedup(value: Any, out: dict[str, object]) -> None:
    if isinstance(value, Dedup):
        out["uniqueKey"] = value.id
        rules = value.to_wire()
        if rules:
            out["dedup"] = rules
    elif value is not None:
        out["uniqueKey"] = filled(value, "dedup")


def _put_debounce(value: Any, out: dict[str, object]) -> None:
    if value is None:
        return
    if not isinstance(value, Debounce):
        raise TypeError(f"debounce must be a Debounce, not {type(value).__name__}")
    out["debounceId"] = value.id
    out["debounceTtl"] = wire_number(to_ms(value.wait))


def _put_group(value: Any, out: dict[str, object]) -> None:
    if isinstance(value, Group):
        out["groupId"] = value.id
        if value.priority:
            if "priority" in out:
                raise ConfigError("priority and the priority of the group were both given")
            out["priority"] = value.priority
        if value.max_size is not None:
            out["groupMaxSize"] = value.max_size
    elif value is not None:
        out["groupId"] = group_id(value)


def _put_repeat(value: Any, out: dict[str, object]) -> None:
    if value is None:
        return
    if not isinstance(value, Repeat):
        raise TypeError(f"repeat must be a Repeat, not {type(value).__name__}")
    out["repeat"] = value.to_wire()


def _put_count(wire: str, name: str, least: int = 0) -> Callable[[Any, dict[str, object]], None]:
    def put(value: Any, out: dict[str, object]) -> None:
        out[wire] = whole(value, name, least)

    return put


_PYTHON_NAME = {
    "timeout": "timeout",
    "ttl": "ttl",
    "stallTimeout": "stall_timeout",
    "removeOnComplete": "remove_on_complete",
    "removeOnFail": "remove_on_fail",
}

_PUT: dict[str, Callable[[Any, dict[str, object]], None]] = {
    "priority": _put_priority,
    "delay": _put_delay,
    "run_at": _put_run_at,
    "attempts": _put_attempts,
    "backoff": _put_backoff,
    "timeout": _duration("timeout"),
    "ttl": _duration("ttl"),
    "stall_timeout": _duration("stallTimeout"),
    "job_id": _put_job_id,
    "lifo": _put_flag("lifo"),
    "durable": _put_flag("durable"),
    "remove_on_complete": _keep("removeOnComplete"),
    "remove_on_fail": _keep("removeOnFail"),
    "timestamp": _put_timestamp,
    "stack_trace_limit": _put_count("stackTraceLimit", "stack_trace_limit"),
    "tags": _put_tags,
    "depends_on": _put_depends_on,
    "allow_unknown_dependencies": _put_flag("allowUnknownDependencies"),
    "parent": _put_parent,
    "on_child_failure": _put_on_child_failure,
    "dedup": _put_dedup,
    "debounce": _put_debounce,
    "group": _put_group,
    "repeat": _put_repeat,
    "keep_logs": _put_count("keepLogs", "keep_logs"),
    "size_limit": _put_count("sizeLimit", "size_limit", 1),
}

OPTION_NAMES = frozenset(_PUT)


def to_wire(options: Mapping[str, Any]) -> dict[str, object]:
    """Check ``options`` and return them as wire fields.

    An unknown name is a ``ConfigError`` with a suggestion; nothing is coerced. Not checked is
    whether there is a parent: see :func:`alone_to_wire`.
    """
    out: dict[str, object] = {}
    for name, value in options.items():
        put = _PUT.get(name)
        if put is None:
            raise ConfigError(f"unknown job option {name!r}{suggestion(name, _PUT)}")
        put(value, out)
    if not _TOGETHER.isdisjoint(out):
        _check_together(out)
    return out


#: Fields that say something about others.
_TOGETHER = frozenset({"repeat", "debounceId", "groupId", "dependsOn", "parentId"})


def _check_together(out: dict[str, object]) -> None:
    """Refuse what options cannot say together, as the engine would, by their names here."""
    job_id = out.get("jobId")
    if "repeat" in out:
        for wire, name in (("jobId", "job_id"), ("parentId", "parent"), ("dependsOn", "depends_on")):
            if out.get(wire):
                raise ConfigError(f"repeat and {name} cannot be given together")
    if "debounceId" in out and "uniqueKey" in out:
        raise ConfigError("dedup and debounce cannot be given together")
    if "groupId" in out and "priority" in out:
        priority = out["priority"]
        if not (
            isinstance(priority, (int, float)) and priority % 1 == 0 and 0 <= priority <= MAX_GROUP_PRIORITY
        ):
            raise ConfigError(
                f"the priority of a job of a group must be a whole number from 0 to {MAX_GROUP_PRIORITY},"
                f" not {priority!r}"
            )
    depends_on = out.get("dependsOn")
    if job_id is not None and isinstance(depends_on, list) and job_id in depends_on:
        raise ConfigError(f"depends_on names the job itself: {job_id!r}")
    if job_id is not None and job_id == out.get("parentId"):
        raise ConfigError(f"parent names the job itself: {job_id!r}")


def alone_to_wire(options: Mapping[str, Any]) -> dict[str, object]:
    """Options of a job that is added by itself, not by its place in a flow."""
    out = to_wire(options)
    if options.get("on_child_failure") is not None and "parentId" not in out:
        raise ConfigError("on_child_failure needs a parent")
    return out


__all__ = [
    "CHILD_FAILURE_FIELDS",
    "OPTION_NAMES",
    "ChildFailure",
    "JobOptions",
    "alone_to_wire",
    "suggestion",
    "to_wire",
]
