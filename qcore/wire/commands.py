"""The commands of the protocol as data, and the check of a request against them.

The table names every command with its fields, reply, errors and how safe its
effect must be before the reply goes out. Documentation and dispatch both read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from qcore.errors import CommandError
from qcore.wire import fields as _fields
from qcore.wire.fields import ABSENT, Check, Field, Refused, checker, given, seen, shape
from qcore.wire.tables import (
    adding,
    capacity,
    connection,
    deadletters,
    delivery,
    events,
    flows,
    jobs,
    queues,
    schedules,
    totals,
    webhooks,
    workers,
)
from qcore.wire.tables.adding import JOB_OPTIONS
from qcore.wire.tables.shape import Command, Level, job_id_first

__all__ = [
    "ABSENT",
    "COMMANDS",
    "JOB_OPTIONS",
    "POLICIES",
    "Command",
    "Field",
    "Level",
    "check",
    "find",
    "job_name",
    "job_options",
    "queue_name",
]

# Of some kinds an absent field is one more value that is not acceptable.
_MISSING: Final = {
    "queue": "Queue name is required",
    "finite": "{} must be a finite number",
    "safe": "{} must be a positive safe integer",
}

# A peer sees at most this much of a command name it made up.
_ECHO_CHARS: Final = 100

COMMANDS: Final[Mapping[str, Command]] = {
    command.name: command
    for family in (
        connection,
        adding,
        flows,
        delivery,
        jobs,
        queues,
        capacity,
        deadletters,
        schedules,
        workers,
        events,
        totals,
        webhooks,
    )
    for command in family.COMMANDS
}


class UnknownCommand(CommandError):
    """There is no command of that name."""

    code = "unknown_command"


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


#: What a parent makes of the failure of its child: one of these at most, and only with a parent.
POLICIES: Final = (
    "failParentOnFailure",
    "removeDependencyOnFailure",
    "ignoreDependencyOnFailure",
    "continueParentOnFailure",
)
_TOGETHER: Final = frozenset({"dependsOn", "repeat", *POLICIES})


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
            try:
                checked = field_check(value)
            except Refused as refused:
                raise seen(refused, value) from None
            if checked is not ABSENT:
                out[name] = checked
        if not _TOGETHER.isdisjoint(out):
            self._check_together(out)

    def _check_together(self, out: dict[str, object]) -> None:
        policies = [name for name in POLICIES if out.get(name)]
        if len(policies) > 1:
            raise Refused(f"failure policies are mutually exclusive: {' and '.join(policies)}")
        if policies and "parentId" not in out:
            raise Refused(f"{policies[0]} requires a parent")
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
        options = {field.name: field for field in job_id_first(JOB_OPTIONS)}
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
                text = field.absent or _MISSING.get(field.kind, "{} is required").format(field.name)
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
            try:
                out[name] = field_check(value)
            except Refused as refused:
                raise seen(refused, value) from None
        if self._options is not None:
            self._options.check(request, out)
        if self._optional:
            for name, optional in self._optional.items():
                if name not in request:
                    continue
                value = request[name]
                if value is None:
                    if name != "result":
                        continue
                elif not given(value):
                    continue
                try:
                    checked = optional(value)
                except Refused as refused:
                    raise seen(refused, value) from None
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
                    raise Refused("must be an object", job)
                options.check(job, one)
            except Refused as refused:
                indexed = type(refused)(f"jobs[{len(checked)}]: {refused}")
                indexed.came = refused.came
                raise indexed from None
            checked.append(one)
        return checked

    def _check_lengths(self, out: dict[str, object]) -> None:
        if self._command.name != "ACKB":
            return
        ids = out["ids"]
        for name in ("tokens", "results", "removeOnCompletes"):
            values = out.get(name)
            if values is not None and len(values) != len(ids):  # type: ignore[arg-type]
                raise Refused(f"{self._command.name} {name} length must match ids length")
        flags = out.get("removeOnCompletes")
        if isinstance(flags, list):
            out["removeOnCompletes"] = [_REMOVAL(flag) if given(flag) else None for flag in flags]


_FLOW_OPTIONS: Final = _Options("customId")


def job_options(options: Mapping[str, object]) -> dict[str, object]:
    """Return the options of one job of a flow, checked as those of a batch are."""
    out: dict[str, object] = {}
    try:
        _FLOW_OPTIONS.check(options, out)
    except Refused as refused:
        error = CommandError(str(refused))
        error.came, error.code = refused.came, refused.code
        raise error from None
    return out


_REMOVAL: Final = checker(Field("removeOnCompletes", "removal"))
_CHECKERS: Final[dict[str, _Checker]] = {}


def find(cmd: object) -> Command:
    """Return the command of a request's ``cmd``; CommandError when there is none."""
    command = COMMANDS.get(cmd) if isinstance(cmd, str) else None
    if command is not None:
        return command
    if not given(cmd) or cmd in (False, 0, "", b""):
        raise CommandError("Invalid command")
    shown = cmd if isinstance(cmd, str) else shape(cmd)
    if len(shown) > _ECHO_CHARS:
        shown = shown[:_ECHO_CHARS] + "..."
    raise UnknownCommand(f"Unknown command: {shown}")


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
        error = CommandError(str(refused), command.name)
        error.came, error.code = refused.came, refused.code
        raise error from None
