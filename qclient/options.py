"""Job options: from Python names and units to the fields of the wire."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypedDict

from qclient.durations import Duration, delay_until_ms, instant_ms, to_ms, wire_number
from qclient.values import Backoff, Keep
from qcore.errors import ConfigError
from qcore.limits import MAX_ATTEMPTS


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


def suggestion(name: str, known: Iterable[str]) -> str:
    """A "did you mean" tail for an unknown name, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _number(value: object, name: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    if not math.isfinite(value):
        raise ConfigError(f"{name} must be finite, not {value!r}")
    if isinstance(value, int):
        return wire_number(value)
    return value


def _whole(value: object, name: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}")
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, not {value}")
    return value


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {type(value).__name__}")
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {type(value).__name__}")
    return value


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
    out["maxAttempts"] = MAX_ATTEMPTS if value is None else _whole(value, "attempts", 1)


def _put_backoff(value: Any, out: dict[str, object]) -> None:
    if isinstance(value, Backoff):
        out["backoff"] = value.to_wire()
    elif value is not None:
        out["backoff"] = wire_number(to_ms(value, "backoff"))


def _put_job_id(value: Any, out: dict[str, object]) -> None:
    if value is not None:
        text = _text(value, "job_id")
        if not text:
            raise ConfigError("job_id must not be empty")
        out["jobId"] = text


def _keep(wire: str) -> Callable[[Any, dict[str, object]], None]:
    def put(value: Any, out: dict[str, object]) -> None:
        if isinstance(value, Keep):
            out[wire] = value.to_wire()
        elif isinstance(value, bool):
            if value:
                out[wire] = True
        else:
            out[wire] = _whole(value, _PYTHON_NAME[wire], 0)

    return put


def _put_flag(wire: str) -> Callable[[Any, dict[str, object]], None]:
    def put(value: Any, out: dict[str, object]) -> None:
        if _flag(value, wire):
            out[wire] = True

    return put


def _put_timestamp(value: Any, out: dict[str, object]) -> None:
    out["timestamp"] = wire_number(instant_ms(value, "timestamp"))


def _put_priority(value: Any, out: dict[str, object]) -> None:
    out["priority"] = _number(value, "priority")


def _put_stack_lines(value: Any, out: dict[str, object]) -> None:
    out["stackTraceLimit"] = _whole(value, "stack_trace_limit", 0)


def _put_tags(value: Any, out: dict[str, object]) -> None:
    if isinstance(value, str):
        raise TypeError("tags must be a list of strings, not one string")
    out["tags"] = [_text(tag, "tags") for tag in value]


def _put_depends_on(value: Any, out: dict[str, object]) -> None:
    if isinstance(value, str):
        raise TypeError("depends_on must be a list of jobs or ids, not one string")
    out["dependsOn"] = [_text(getattr(job, "id", job), "depends_on") for job in value]


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
    "stack_trace_limit": _put_stack_lines,
    "tags": _put_tags,
    "depends_on": _put_depends_on,
}

OPTION_NAMES = frozenset(_PUT)


def to_wire(options: Mapping[str, Any]) -> dict[str, object]:
    """Check ``options`` and return them as wire fields.

    An unknown name is a ``ConfigError`` with a suggestion; nothing is coerced.
    """
    out: dict[str, object] = {}
    for name, value in options.items():
        put = _PUT.get(name)
        if put is None:
            raise ConfigError(f"unknown job option {name!r}{suggestion(name, _PUT)}")
        put(value, out)
    return out


__all__ = ["OPTION_NAMES", "JobOptions", "suggestion", "to_wire"]
