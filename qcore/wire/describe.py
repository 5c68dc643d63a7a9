"""The command table as plain data and in words: for ``qcore commands`` and for the page of the protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from qcore.wire.commands import COMMANDS, JOB_OPTIONS
from qcore.wire.fields import ABSENT, Field, Kind
from qcore.wire.tables.shape import Command, job_id_first

_SETTINGS: Final = (
    "Numbers may be texts of digits, and are rounded. Other keys, values of another type and numbers below 0 "
    "are passed over; what is not given stays as it is"
)
#: What a value of each kind is, and what the kind itself bounds.
KINDS: Final[Mapping[Kind, str]] = {
    "any": "any value",
    "backoff": "ms ≥ 0, or a map: `type` (`fixed`, else `exponential`), `delay`, `maxDelay`, `jitter` 0 to 1",
    "batch": "a list of maps, each with the job options",
    "count": "a whole number or a text of digits, 0 or more",
    "data": "any value; its JSON text has at most 10,485,760 characters",
    "date": "ms since the epoch, or a text like `2026-03-08T02:30:00Z`",
    "dead_config": "a map: `autoRetry`, true or false; `autoRetryInterval`, `maxAge` in ms (null: "
    "for ever), `maxAutoRetries`, `maxEntries` (0 counts as 1). " + _SETTINGS,
    "dedup": "a map: `ttl` in ms, `extend`, `replace`, `keepUntilExpiry`",
    "duration": "a finite number or a text of digits; rounded to whole ms",
    "event_types": "a list of 1 to 32 names of events",
    "filter": "a map: `reason`, `retriable`, `expired`, `olderThan`, `newerThan`, `limit`, `offset`",
    "finite": "a finite number or a text of digits",
    "flag": "true or false",
    "group": "a map: `concurrency`, `limit` with `max` and `duration`, `affinity`",
    "group_id": "a text of 1 to 256 characters, without NUL",
    "group_priority": "a whole number, 0 to 2097151",
    "group_size": "a whole number, 1 or more",
    "id": "a text, not empty",
    "ids": "a list of texts, none empty",
    "int": "a whole number",
    "interval": "a whole number of ms, 1 or more",
    "length": "a whole number, 0 or more",
    "list": "a list",
    "name": "a text of 1 to 256 characters",
    "number": "a finite number",
    "numbers": "a list of finite numbers, rounded to whole ms",
    "occurrence": "a map: `maxAttempts`, `backoff`, `timeout`, `delay`, `stallTimeout`, `removeOnComplete`, "
    "`removeOnFail`",
    "option": "a finite number or a text of digits",
    "queue": "a text of 1 to 256 of `A-Z a-z 0-9 _ . : -`",
    "queues": "a list of names of queues",
    "removal": "true or false, a whole number ≥ 0 that is kept, or a map: `age`, `count`",
    "removals": "a list of what `removal` takes, or nulls",
    "repeat": "a map: one of `every` in ms and `pattern`, with `limit`, `count`, `startDate`, `endDate`, "
    "`tz`, `immediately`, `offset`, `jobId`",
    "runs": "a finite number or a text of digits; rounded up, at least 1",
    "safe": "a whole number, 1 to 2^53 - 1",
    "span": "ms, more than 0; anything else counts as not given",
    "stack": "a list; texts in it are kept",
    "stall_config": "a map: `enabled`, true or false; `stallInterval` and `gracePeriod` in ms, `maxStalls`. "
    + _SETTINGS,
    "states": "the name of a state, or a list of such",
    "string": "a text, also an empty one",
    "tags": "a list of texts of at most 256 characters",
    "text": "a text; an empty one counts as not given",
    "time": "a finite number, rounded to whole ms",
    "tokens": "a list of texts or nulls",
    "url": "a text of at most 2048 characters: http or https, of a public address",
    "whole": "a whole number or a text of digits",
    "words": "a list; texts in it are kept",
}


def describe(command: Command) -> dict[str, object]:
    """One command as a JSON document."""
    return {
        "name": command.name,
        "help": command.help,
        "level": command.level,
        "blocking": command.blocking,
        "fields": [describe_field(field) for field in command.fields],
        "reply": list(command.reply),
        "errors": list(command.errors),
    }


def describe_field(field: Field) -> dict[str, object]:
    """One field as a JSON document; what does not hold is left out."""
    out: dict[str, object] = {
        "name": field.name,
        "kind": field.kind,
        "required": field.required,
        "help": field.help,
    }
    if field.default is not ABSENT:
        out["default"] = field.default
    if field.minimum is not None:
        out["minimum"] = field.minimum
    if field.maximum is not None:
        out["maximum"] = field.maximum
    if field.meant is not None and isinstance(field.meant[0], str):
        out["names"] = list(field.meant)
    return out


LEVELS: Final = {
    "none": "nothing to save",
    "buffered": "saved within the flush window",
    "committed": "on disk before the reply",
}


def protocol_tables() -> str:
    """The tables of the protocol page, in Markdown."""
    kinds = sorted({field.kind for command in COMMANDS.values() for field in command.fields})
    parts = [
        "## Commands",
        "",
        _table(
            ("Command", "Does", "Level"),
            [(f"[`{c.name}`](#{c.name.lower()})", c.help, c.level) for c in COMMANDS.values()],
        ),
        "## Kinds of fields",
        "",
        _table(("Kind", "Value"), [(f"`{kind}`", KINDS[kind]) for kind in kinds]),
        "## Job options",
        "",
        "`PUSH` takes them beside its own fields, with `jobId` in place of `customId`; "
        "`PUSHB` one map of them a job.",
        "",
        _fields(JOB_OPTIONS),
    ]
    for command in COMMANDS.values():
        parts += [f"## {command.name}", "", *_command(command)]
    return "\n".join(parts).rstrip("\n") + "\n"


def _command(command: Command) -> list[str]:
    options = set(job_id_first(JOB_OPTIONS)) if command.name == "PUSH" else set()
    own = [field for field in command.fields if field not in options]
    lines = [command.help, ""]
    if own:
        lines.append(_fields(own))
    if options:
        lines += ["And the [job options](#job-options).", ""]
    reply = ", ".join(f"`{name}`" for name in command.reply) or "`ok` alone"
    level = f"{command.level}: {LEVELS[command.level]}"
    lines += [f"- Reply: {reply}", f"- Level: {level}"]
    if command.blocking:
        lines.append("- May wait, and is then answered out of order")
    lines += [f"- Error: `{text}`" for text in command.errors]
    return [*lines, ""]


def _fields(fields: list[Field] | tuple[Field, ...]) -> str:
    rows = [(f"`{f.name}`", f"`{f.kind}`", _bounds(f), _default(f), f.help) for f in fields]
    return _table(("Field", "Kind", "Bounds", "Default", "Meaning"), rows)


def _bounds(field: Field) -> str:
    unit = " characters" if field.kind == "string" else ""
    low, high = field.minimum, field.maximum
    if field.meant is not None and isinstance(field.meant[0], str):
        return f"one of {', '.join(f'`{name}`' for name in field.meant)}"
    if low is None and high is None:
        return ""
    if low is None:
        return f"≤ {high}{unit}"
    return f"≥ {low}" if high is None else f"{low} to {high}{unit}"


def _default(field: Field) -> str:
    if field.required:
        return "required"
    if field.default is ABSENT:
        return ""
    value = field.default
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines: list[tuple[str, ...]] = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
