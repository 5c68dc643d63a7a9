"""Fields of requests: their kinds, and the check of each kind.

A check takes the value of one field, already decoded, and returns it in the one
form the engine works with, or raises :class:`Refused` with the text that goes to
the peer. Durations and times come out as whole milliseconds, whole numbers as
``int`` however they were written, flags as ``bool``.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, Literal, TypeAlias

from msgpack import ExtType

from qcore.limits import (
    DEFAULT_BACKOFF_MS,
    MAX_ATTEMPTS,
    MAX_BACKOFF_OPTION_MS,
    MAX_GROUP_PRIORITY,
    MAX_NAME_CHARS,
    MAX_STACK_LINES,
    MAX_TIME_MS,
)
from qcore.wire.jsontext import fits
from qcore.wire.writer import Packed

__all__ = [
    "ABSENT",
    "Absent",
    "Check",
    "Field",
    "Kind",
    "Refused",
    "checker",
    "given",
    "job_name",
    "queue_name",
    "refuse_unmeant",
    "seen",
    "shape",
]

MAX_SAFE_INTEGER: Final = 2**53 - 1
#: A number of jobs or runs beyond this says the same.
MAX_SETTING: Final = 2**32 - 1
#: The settings of a queue that are such numbers; the others are times.
_COUNTED_SETTINGS: Final = frozenset({"maxEntries", "maxAutoRetries", "maxStalls"})
#: Names of events, in the order in which a job meets them.
EVENT_TYPES: Final = (
    "pushed",
    "duplicated",
    "pulled",
    "progress",
    "completed",
    "failed",
    "retried",
    "stalled",
    "delayed",
    "waiting",
    "waiting-children",
    "removed",
    "drained",
    "paused",
    "resumed",
)
MAX_EVENT_TYPES: Final = 32
#: What a job can be listed as, and what of it can be cleaned away.
LISTED_STATES: Final = (
    "waiting",
    "prioritized",
    "delayed",
    "active",
    "completed",
    "failed",
    "waiting-children",
    "paused",
)
CLEANED_STATES: Final = ("completed", "failed", "waiting", "delayed", "prioritized", "paused")
#: Why a job became a dead letter.
DEAD_REASONS: Final = (
    "explicit_fail",
    "max_attempts_exceeded",
    "timeout",
    "stalled",
    "ttl_expired",
    "worker_lost",
    "unknown",
)
#: Outcomes that are counted by minute.
OUTCOMES: Final = ("completed", "failed")
_INT64_END: Final = 2.0**63
_SHOWN_DIGITS: Final = 30


class Absent(Enum):
    """The one value that stands for "not given", as opposed to None."""

    ABSENT = "absent"

    def __repr__(self) -> str:
        return "ABSENT"

    def __bool__(self) -> bool:
        return False


ABSENT: Final = Absent.ABSENT

Kind = Literal[
    "any",  # any value, kept as it came
    "backoff",  # a number of ms, or {type, delay, maxDelay, jitter}
    "batch",  # a list of job option maps
    "count",  # a whole number of things, 0 or more, or a text of digits
    "data",  # any value, of bounded size
    "date",  # an instant, as a number or a text
    "dead_config",  # settings of dead letters, what is not of its type left out
    "dedup",  # {ttl, extend, replace, keepUntilExpiry}
    "event_types",  # a list of 1 to 32 names of events
    "duration",  # ms, or a text of digits; clamped
    "filter",  # selection of dead letters
    "finite",  # a finite number, or a text of digits; one text for all that it is not
    "flag",  # true or false
    "group",  # group options of a pull
    "group_id",
    "group_priority",  # 0 to 2097151
    "group_size",
    "id",  # a text that is not empty
    "ids",  # a list of such
    "int",
    "whole",  # a whole number, or a text of digits; also a negative one
    "length",  # a whole number of things, 0 or more
    "interval",  # ms between the slots of a schedule
    "list",
    "name",  # a job name
    "number",
    "numbers",  # a list of such, as whole ms
    "occurrence",  # options of the jobs of a schedule, others left out
    "option",  # a number, or a text of digits
    "queue",
    "queues",
    "removal",  # bool, a count to keep, or {age, count}
    "removals",  # a list of such or nulls
    "repeat",
    "runs",  # number of executions allowed
    "safe",  # a positive safe integer
    "span",  # a positive number of ms; anything else counts as not given
    "stack",
    "stall_config",  # settings of stalled jobs, likewise
    "states",  # a name of a state or a list of such
    "string",  # a text, also an empty one, of at most so many characters
    "tags",
    "text",  # a text; an empty one counts as not given
    "time",  # ms since the epoch
    "tokens",  # a list of texts or nulls
    "url",  # of a webhook; its form is checked by what adds it
    "words",  # a list whose texts are kept
]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a request or of the job options.

    ``default`` is what an absent field means. ``implied`` says that the engine
    knows this default, and a checked request leaves the field out; other
    defaults are filled in. ``absent`` is the protocol's text for a required field that
    is not there, if it has one of its own. Bounds are inclusive.

    ``meant`` is what a value can mean: some names, or a least and a largest number. A server
    takes others too, for old clients, where they select nothing or are clamped; whoever checks
    what a person wrote refuses them with :func:`refuse_unmeant`.
    """

    name: str
    kind: Kind
    default: object = ABSENT
    required: bool = False
    minimum: int | None = None
    maximum: int | None = None
    help: str = ""
    implied: bool = False
    absent: str = ""
    meant: tuple[str, ...] | tuple[int, int] | None = None


#: The maps among the kinds: what each may hold.
MAPS: Final[Mapping[Kind, tuple[Field, ...]]] = {
    "backoff": (
        Field("type", "any", meant=("fixed", "exponential")),
        Field("delay", "duration", minimum=0),
        Field("maxDelay", "duration", minimum=0, maximum=MAX_BACKOFF_OPTION_MS),
        Field("jitter", "option", minimum=0, maximum=1),
    ),
    "dedup": (
        Field("ttl", "duration"),
        Field("extend", "flag"),
        Field("replace", "flag"),
        Field("keepUntilExpiry", "flag"),
    ),
    "filter": (
        Field("reason", "string", meant=DEAD_REASONS),
        Field("retriable", "flag"),
        Field("expired", "flag"),
        Field("olderThan", "duration"),
        Field("newerThan", "duration"),
        Field("limit", "duration"),
        Field("offset", "duration"),
    ),
    "occurrence": (
        Field("maxAttempts", "runs"),
        Field("backoff", "backoff"),
        Field("timeout", "duration", minimum=0),
        Field("delay", "duration"),
        Field("stallTimeout", "duration"),
        Field("removeOnComplete", "removal"),
        Field("removeOnFail", "removal"),
    ),
    "removal": (Field("age", "option", minimum=0), Field("count", "count")),
    "repeat": (
        Field("every", "option"),
        Field("pattern", "string"),
        Field("limit", "count"),
        Field("count", "count"),
        Field("prevMillis", "option"),
        Field("offset", "option"),
        Field("tz", "string"),
        Field("jobId", "string"),
        Field("startDate", "date"),
        Field("endDate", "date"),
        Field("immediately", "flag"),
        Field("continueOnFailure", "flag"),
    ),
}


class Refused(Exception):
    """A field is not acceptable; the text says which and why, ``came`` what was there instead."""

    code = "invalid"

    def __init__(self, text: str, value: object = ABSENT) -> None:
        super().__init__(text)
        self.came: str | None = None if value is ABSENT else shape(value)


class TooLarge(Refused):
    """It would be acceptable if it were smaller."""

    code = "limit"


def seen(refused: Refused, value: object) -> Refused:
    """The same with what came, unless a part of it was named already."""
    refused.came = refused.came or shape(value)
    return refused


def shape(value: object) -> str:
    """What a value is, in words of the protocol. Numbers are shown; texts, which may be secret, are not."""
    if value is None or value is ABSENT:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)[:_SHOWN_DIGITS]
    if isinstance(value, str):
        return f"a string of {len(value)} characters"
    if isinstance(value, bytes | bytearray | Packed):
        return "binary data"
    if isinstance(value, list):
        return f"an array of {len(value)}"
    if isinstance(value, dict):
        return f"an object of {len(value)}"
    return "an extension value"


Check: TypeAlias = Callable[[object], object]

_QUEUE = re.compile(r"[A-Za-z0-9_.:-]+")
_NUMERIC = re.compile(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\s*", re.ASCII)
_NAME_TEXT = f"Job name must be a non-empty string of at most {MAX_NAME_CHARS} characters"


def given(value: object) -> bool:
    """Whether a value counts as given: neither null nor a JavaScript ``undefined``."""
    return not (value is None or value is ABSENT or (isinstance(value, ExtType) and value.code == 0))


def queue_name(value: object) -> str:
    """Return a valid queue name, or raise :class:`Refused` with the protocol's text."""
    if not isinstance(value, str) or not value:
        raise Refused("Queue name is required")
    if len(value) > MAX_NAME_CHARS:
        raise Refused(f"Queue name too long (max {MAX_NAME_CHARS} characters)")
    if _QUEUE.fullmatch(value) is None:
        raise Refused("Queue name contains invalid characters")
    return value


def job_name(value: object) -> str:
    """Return a valid job name, or raise :class:`Refused` with the protocol's text."""
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_NAME_CHARS:
        raise Refused(_NAME_TEXT)
    return value


def _number(name: str, value: object, *, numeric_text: bool = False) -> int | float:
    """A finite number; integral floats become ``int``."""
    if type(value) is int:
        return value
    if numeric_text and isinstance(value, str) and _NUMERIC.fullmatch(value):
        text, value = value, float(value)
        if abs(value) < _INT64_END:
            try:
                return int(text)
            except ValueError:
                pass
    if not isinstance(value, float):
        raise Refused(f"{name} must be a number", value)
    if not math.isfinite(value):
        raise Refused(f"{name} must be a finite number", value)
    # An int of 300 digits could be neither stored nor answered.
    return int(value) if value.is_integer() and abs(value) < _INT64_END else value


def _bounded(name: str, value: int | float, minimum: int | None, maximum: int | None) -> None:
    if minimum is not None and value < minimum:
        raise Refused(f"{name} must be at least {minimum}", value)
    if maximum is not None and value > maximum:
        raise Refused(f"{name} must be at most {maximum}", value)


def _whole_ms(value: int | float) -> int:
    """Round to whole milliseconds, inside the range of times a date can have."""
    return max(-MAX_TIME_MS, min(MAX_TIME_MS, value if isinstance(value, int) else math.floor(value + 0.5)))


def _positive_safe(name: str, value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or not 1 <= value <= MAX_SAFE_INTEGER:
        raise Refused(f"{name} must be a positive safe integer", value)
    return value


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise Refused(f"{name} must be a boolean", value)
    return value


def _object(name: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise Refused(f"{name} must be an object", value)
    return value


def _number_check(field: Field, *, numeric_text: bool, duration: bool = False, whole: bool = False) -> Check:
    name, low, high = field.name, field.minimum, field.maximum
    if whole:
        # Beyond that a float names no whole number, and C no integer.
        high = MAX_SAFE_INTEGER if high is None else high
        low = -MAX_SAFE_INTEGER if low is None else low

    def check(value: object) -> int | float:
        number = _number(name, value, numeric_text=numeric_text)
        if whole and not float(number).is_integer():
            raise Refused(f"{name} must be an integer", number)
        _bounded(name, number, low, high)
        return _whole_ms(number) if duration else number

    return check


def _count(field: Field) -> Check:
    name = field.name

    def check(value: object) -> int:
        number = _number(name, value, numeric_text=True)
        if not isinstance(number, int):
            raise Refused(f"{name} must be an integer", number)
        _bounded(name, number, 0, None)
        return min(number, MAX_SAFE_INTEGER)  # beyond that it says the same

    return check


def _parts(field: Field) -> Callable[[object], dict[str, Any]]:
    """The check of a map: what is given of its parts, each by its own kind, and nothing else."""
    checks = {
        part.name: checker(replace(part, name=f"{field.name}.{part.name}")) for part in MAPS[field.kind]
    }

    def check(value: object) -> dict[str, Any]:
        fields = _object(field.name, value)
        out = {}
        for name, one in checks.items():
            if given(fields.get(name)):
                try:
                    out[name] = one(fields[name])
                except Refused as refused:
                    raise seen(refused, fields[name]) from None
        return out

    return check


def _any(field: Field) -> Check:
    return lambda value: value


def _data(field: Field) -> Check:
    def check(value: object) -> object:
        if isinstance(value, Packed):
            if value.fault is not None:
                raise Refused(f"Job data {value.fault}")
            if not fits(value.data):
                raise TooLarge("Job data too large (max 10MB)")
        return value

    return check


def _name(field: Field) -> Check:
    return job_name


def _queue(field: Field) -> Check:
    return queue_name


def _queues(field: Field) -> Check:
    def check(value: object) -> list[str]:
        if not isinstance(value, list):
            raise Refused(f"{field.name} must be an array of strings")
        return [queue_name(queue) for queue in value]

    return check


def _id(field: Field) -> Check:
    def check(value: object) -> str:
        if not isinstance(value, str):
            raise Refused(f"{field.name} must be a string")
        if not value:
            raise Refused(f"{field.name} is required")
        return value

    return check


def _text(field: Field) -> Check:
    def check(value: object) -> object:
        if not isinstance(value, str):
            raise Refused(f"{field.name} must be a string")
        return value or ABSENT

    return check


def _ids(field: Field) -> Check:
    text = f"{field.name} must be an array of valid string job ids"

    def check(value: object) -> list[str]:
        if not isinstance(value, list):
            raise Refused(text)
        for item in value:
            if not isinstance(item, str) or not item:
                raise Refused(text)
        return value

    return check


def _tokens(field: Field) -> Check:
    def check(value: object) -> list[str]:
        if not isinstance(value, list):
            raise Refused(f"{field.name} must be an array of strings")
        tokens = [token if given(token) else "" for token in value]
        if not all(isinstance(token, str) for token in tokens):
            raise Refused(f"{field.name} must be an array of strings")
        return tokens

    return check


def _list(field: Field) -> Check:
    def check(value: object) -> list[object]:
        if not isinstance(value, list):
            raise Refused(f"{field.name} must be an array")
        return value

    return check


def _words(field: Field) -> Check:
    def check(value: object) -> object:
        if not isinstance(value, list):
            return ABSENT
        return [word for word in value if isinstance(word, str)]

    return check


def _stack(field: Field) -> Check:
    def check(value: object) -> object:
        if not isinstance(value, list):
            return ABSENT
        return [line for line in value if isinstance(line, str)][:MAX_STACK_LINES]

    return check


def _tags(field: Field) -> Check:
    text = f"{field.name} must be an array of strings of at most {MAX_NAME_CHARS} characters"

    def check(value: object) -> list[str]:
        if not isinstance(value, list):
            raise Refused(text)
        for tag in value:
            if not isinstance(tag, str) or len(tag) > MAX_NAME_CHARS:
                raise Refused(text)
        return value

    return check


def _boolean(field: Field) -> Check:
    return lambda value: _flag(field.name, value)


def _runs(field: Field) -> Check:
    def check(value: object) -> int:
        number = _number(field.name, value, numeric_text=True)
        return max(1, min(MAX_ATTEMPTS, math.ceil(number)))

    return check


def _backoff(field: Field) -> Check:
    name = field.name

    parts = _parts(field)

    def check(value: object) -> object:
        if not isinstance(value, dict):
            number = _number(name, value, numeric_text=True)
            _bounded(name, number, 0, None)
            return _whole_ms(number)
        kind = "fixed" if value.get("type") == "fixed" else "exponential"
        return {"delay": DEFAULT_BACKOFF_MS, **parts(value), "type": kind}

    return check


def _removal(field: Field) -> Check:
    name = field.name
    parts = _parts(replace(field, kind="removal"))

    def check(value: object) -> object:
        if isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            count = _number(name, value)
            if not isinstance(count, int):
                raise Refused(f"{name} must be an integer", count)
            _bounded(name, count, 0, None)
            return min(count, MAX_SAFE_INTEGER)  # beyond that it says the same
        if not isinstance(value, dict):
            raise Refused(f"{name} must be a boolean, a number or an object")
        out = parts(value)
        if "age" in out:
            out["age"] = min(out["age"], MAX_TIME_MS)
        if not out:
            raise Refused(f"{name} requires age or count")
        return out

    return check


def _removals(field: Field) -> Check:
    one = _removal(field)

    def check(value: object) -> list[object]:
        if not isinstance(value, list):
            raise Refused(f"{field.name} must be an array")
        return [one(item) if given(item) else None for item in value]

    return check


def _dedup(field: Field) -> Check:
    name = field.name

    parts = _parts(field)

    def check(value: object) -> dict[str, object]:
        out = parts(value)
        if out.get("keepUntilExpiry") and "ttl" not in out:
            raise Refused(f"{name}.keepUntilExpiry requires {name}.ttl")
        return out

    return check


def _group_id(field: Field) -> Check:
    name = field.name

    def check(value: object) -> str:
        if not isinstance(value, str):
            raise Refused(f"{name} must be a string")
        if not value:
            raise Refused(f"{name} must be a non-empty string")
        if len(value) > MAX_NAME_CHARS:
            raise Refused(f"{name} must be at most {MAX_NAME_CHARS} characters")
        if "\0" in value:
            raise Refused(f"{name} must not contain NUL characters")
        return value

    return check


def _group_priority(field: Field) -> Check:
    def check(value: object) -> int:
        try:
            number = _number("group.priority", value, numeric_text=True)
        except Refused:
            raise Refused("group.priority must be a finite number") from None
        if not isinstance(number, int):
            raise Refused("group.priority must be an integer")
        if not 0 <= number <= MAX_GROUP_PRIORITY:
            raise Refused(f"group.priority must be between 0 and {MAX_GROUP_PRIORITY}")
        return number

    return check


def _safe(field: Field) -> Check:
    return lambda value: _positive_safe(field.name, value)


def _finite(field: Field) -> Check:
    def check(value: object) -> int | float:
        try:
            return _number(field.name, value, numeric_text=True)
        except Refused:
            raise Refused(f"{field.name} must be a finite number") from None

    return check


def _span(field: Field) -> Check:
    def check(value: object) -> object:
        try:
            number = _number(field.name, value, numeric_text=True)
        except Refused:
            return ABSENT
        return min(math.ceil(number), MAX_TIME_MS) if number > 0 else ABSENT

    return check


def _group_size(field: Field) -> Check:
    return lambda value: _positive_safe("group.maxSize", value)


def _group(field: Field) -> Check:
    def check(value: object) -> dict[str, object]:
        fields = _object("group", value)
        out: dict[str, object] = {}
        if given(fields.get("concurrency")):
            out["concurrency"] = _positive_safe("group.concurrency", fields["concurrency"])
        if given(fields.get("limit")):
            limit = _object("group.limit", fields["limit"])
            out["limit"] = {
                key: _positive_safe(f"group.limit.{key}", limit.get(key)) for key in ("max", "duration")
            }
        affinity = fields.get("affinity", ABSENT)
        if affinity is None or given(affinity):
            if affinity is not None and not isinstance(affinity, str):
                raise Refused("group.affinity must be a string or null")
            out["affinity"] = affinity
        if given(fields.get("ungroupedFirst")):
            out["ungroupedFirst"] = _flag("group.ungroupedFirst", fields["ungroupedFirst"])
        return out

    return check


def _repeat(field: Field) -> Check:
    name, parts = field.name, _parts(field)

    def check(value: object) -> object:
        if value is False:
            return ABSENT
        fields = {key: item for key, item in _object(name, value).items() if given(item)}
        if ("every" in fields) == ("pattern" in fields):
            raise Refused(f"{name} requires exactly one of every or pattern")
        if "every" in fields:
            try:
                every = _number(f"{name}.every", fields["every"], numeric_text=True)
            except Refused:
                every = 0
            if every <= 0:
                raise Refused(f"{name}.every must be a positive finite number", fields["every"])
        elif not isinstance(fields["pattern"], str) or not fields["pattern"]:
            raise Refused("Invalid repeat pattern: it must be a non-empty string", fields["pattern"])
        return fields | parts(fields)

    return check


def _date(field: Field) -> Check:
    """An instant in ms, from a number or from a text like ``2026-03-08T02:30:00Z``; UTC without an offset."""
    name = field.name

    def check(value: object) -> int:
        if isinstance(value, str) and _NUMERIC.fullmatch(value) is None:
            try:
                date = datetime.fromisoformat(value)
            except ValueError:
                raise Refused(f"{name} must be a date", value) from None
            value = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() * 1000
        return _whole_ms(_number(name, value, numeric_text=True))

    return check


def _interval(field: Field) -> Check:
    def check(value: object) -> int:
        try:
            number = _number(field.name, value)
        except Refused:
            number = 0
        if not isinstance(number, int) or not 0 < number <= MAX_SAFE_INTEGER:
            raise Refused(f"Cron {field.name} must be a positive safe integer number of milliseconds")
        return number

    return check


def _states(field: Field) -> Check:
    def check(value: object) -> object:
        states = [value] if isinstance(value, str) else value
        if not isinstance(states, list) or not all(isinstance(state, str) for state in states):
            raise Refused(f"{field.name} must be a string or an array of strings")
        return [state for state in states if state] or ABSENT

    return check


def _string(field: Field) -> Check:
    def check(value: object) -> str:
        if not isinstance(value, str):
            raise Refused(f"{field.name} must be a string")
        if field.maximum is not None and len(value) > field.maximum:
            raise Refused(f"{field.name} must be at most {field.maximum} characters")
        return value

    return check


def _numbers(field: Field) -> Check:
    name, low, high = field.name, field.minimum, field.maximum

    def check(value: object) -> list[int]:
        if not isinstance(value, list):
            raise Refused(f"{name} must be an array of numbers")
        numbers = []
        for item in value:
            number = _number(name, item)
            _bounded(name, number, low, high)
            numbers.append(_whole_ms(number))
        return numbers

    return check


def _settings(flag: str, least: Mapping[str, int], open_ended: str = "") -> Callable[[Field], Check]:
    """A map with one flag and numbers, each with its least value; what does not fit is left out.

    The number named ``open_ended`` may be null.
    """

    def factory(field: Field) -> Check:
        def check(value: object) -> dict[str, object]:
            out: dict[str, object] = {}
            for key, item in _object(field.name, value).items():
                if key == flag and isinstance(item, bool):
                    out[key] = item
                elif key == open_ended and item is None:
                    out[key] = None
                elif key in least:
                    with contextlib.suppress(Refused):
                        number = _whole_ms(_number(key, item, numeric_text=True))
                        if number >= 0:
                            most = MAX_SETTING if key in _COUNTED_SETTINGS else MAX_TIME_MS
                            out[key] = min(max(number, least[key]), most)
            return out

        return check

    return factory


def _event_types(field: Field) -> Check:
    def check(value: object) -> list[str]:
        if not isinstance(value, list) or not 1 <= len(value) <= MAX_EVENT_TYPES:
            raise Refused(f"{field.name} must be an array of 1 to {MAX_EVENT_TYPES} event names")
        for item in value:
            if item not in EVENT_TYPES:
                raise Refused(f"{field.name} must hold only names of events: {', '.join(EVENT_TYPES)}")
        return value

    return check


def _length(field: Field) -> Check:
    def check(value: object) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or not 0 <= value <= MAX_SAFE_INTEGER:
            raise Refused(f"{field.name} must be a non-negative safe integer")
        return value

    return check


_FACTORIES: Final[dict[Kind, Callable[[Field], Check]]] = {
    "any": _any,
    "backoff": _backoff,
    "count": _count,
    "data": _data,
    "date": _date,
    "dead_config": _settings(
        "autoRetry", {"autoRetryInterval": 0, "maxAutoRetries": 0, "maxAge": 0, "maxEntries": 1}, "maxAge"
    ),
    "dedup": _dedup,
    "event_types": _event_types,
    "duration": lambda field: _number_check(field, numeric_text=True, duration=True),
    "filter": _parts,
    "finite": _finite,
    "flag": _boolean,
    "group": _group,
    "group_id": _group_id,
    "group_priority": _group_priority,
    "group_size": _group_size,
    "id": _id,
    "ids": _ids,
    "int": lambda field: _number_check(field, numeric_text=False, whole=True),
    "length": _length,
    "whole": lambda field: _number_check(field, numeric_text=True, whole=True),
    "interval": _interval,
    "list": _list,
    "name": _name,
    "number": lambda field: _number_check(field, numeric_text=False),
    "numbers": _numbers,
    "occurrence": _parts,
    "option": lambda field: _number_check(field, numeric_text=True),
    "queue": _queue,
    "queues": _queues,
    "removal": _removal,
    "removals": _removals,
    "repeat": _repeat,
    "runs": _runs,
    "safe": _safe,
    "span": _span,
    "stack": _stack,
    "stall_config": _settings("enabled", {"stallInterval": 0, "maxStalls": 0, "gracePeriod": 0}),
    "states": _states,
    "string": _string,
    "tags": _tags,
    "text": _text,
    "time": lambda field: _number_check(field, numeric_text=False, duration=True),
    "tokens": _tokens,
    "url": _any,
    "words": _words,
}


_WHOLE: Final[frozenset[Kind]] = frozenset({"finite", "runs"})


def refuse_unmeant(field: Field, value: object) -> None:
    """Refuse what the protocol takes and nobody can mean: a name that is none, a limit of -1.

    ``value`` is one that the check of the field takes, as it was given.
    """
    if isinstance(value, Mapping) and field.kind in MAPS:
        parts = {part.name: part for part in MAPS[field.kind]}
        for key, item in value.items():
            _one_of(f"a key of {field.name}", key, tuple(parts))
            if given(item):
                refuse_unmeant(replace(parts[key], name=f"{field.name}.{key}"), item)
    if field.meant is None:
        return
    least, most = field.meant[0], field.meant[-1]
    if isinstance(least, int) and isinstance(most, int):
        number = _number(field.name, value, numeric_text=True)
        if field.kind in _WHOLE and not isinstance(number, int):
            raise Refused(f"{field.name} must be a whole number", number)
        _bounded(field.name, number, least, most)
        return
    came = value if isinstance(value, list) and field.kind == "states" else [value]
    for name in came or [""]:
        _one_of(field.name, name, field.meant)


def _one_of(name: str, value: object, names: tuple[object, ...]) -> None:
    if value not in names:
        raise Refused(f"{name} must be one of {', '.join(map(str, names))}, not {str(value)[:40]!r}")


def checker(field: Field) -> Check:
    """Build the check of one field; its bounds and texts are fixed here, once."""
    return _FACTORIES[field.kind](field)
