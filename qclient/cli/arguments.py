"""From the command table to arguments, and from arguments to the fields of a request."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from qclient.cli.show import lasting
from qclient.cli.verbs import Verb
from qclient.durations import MAX_WAIT_S, wire_number
from qcore.errors import ConfigError
from qcore.server.tokenfile import read_tokens
from qcore.wire.commands import COMMANDS
from qcore.wire.fields import ABSENT, Field, Kind

_FIELD: Final = "field:"
_TEXTS: Final[frozenset[Kind]] = frozenset({"queue", "id", "text", "string", "name", "group_id", "url"})
_LISTS: Final[frozenset[Kind]] = frozenset(
    {"states", "ids", "queues", "tags", "words", "tokens", "event_types"}
)
_NUMBERS: Final[frozenset[Kind]] = frozenset(
    {
        "int",
        "length",
        "number",
        "option",
        "finite",
        "safe",
        "span",
        "count",
        "whole",
        "runs",
        "time",
        "duration",
        "interval",
        "group_priority",
        "group_size",
    }
)
_VALUES: Final[frozenset[Kind]] = frozenset({"any", "data"})
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?", re.ASCII)
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}


def duration(text: str) -> float:
    """Seconds of ``500ms``, ``5s``, ``2m``, ``1h``, ``7d``; a bare number is seconds."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected a duration like 500ms, 5s, 2m, 1h or 7d, got {text!r}")
    seconds = float(found[1]) * _UNIT_S[found[2]]
    if seconds > MAX_WAIT_S:
        raise argparse.ArgumentTypeError(f"expected at most {MAX_WAIT_S // 86400}d, got {text!r}")
    return seconds


def _duration_reader(field: Field) -> Callable[[str], object]:
    """Of ms inside the bounds of a field, which are said as durations."""
    meant = field.meant if field.meant and isinstance(field.meant[0], int) else (0, None)
    least = max(field.minimum or 0, int(meant[0]))
    most = MAX_WAIT_S * 1000 if field.maximum is None else field.maximum

    def read(text: str) -> object:
        if field.kind == "backoff" and text.lstrip().startswith("{"):
            return _json(text)
        ms = round(duration(text) * 1000)
        if not least <= ms <= most:
            allowed = f"at least {lasting(least)}" if ms < least else f"at most {lasting(most)}"
            raise argparse.ArgumentTypeError(f"expected {allowed}, got {text!r}")
        return wire_number(ms)

    return read


def _number(text: str) -> int | float:
    try:
        value = int(text) if re.fullmatch(r"[+-]?\d{1,18}", text, re.ASCII) else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from None
    return wire_number(value) if isinstance(value, int) else value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is none")


def _json(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"expected JSON: {error}") from None


def _value(text: str) -> object:
    """JSON where a text alone is a value as well, and is written by many without its quotes."""
    try:
        return _json(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(
            f"""{error}; a text is written '"hello"', with both quotes"""
        ) from None


def _words(text: str) -> list[str]:
    words = text.split(",")
    if not all(words):
        raise argparse.ArgumentTypeError(f"expected words with commas between them, got {text!r}")
    return words


def _first_line(path: str) -> str:
    try:
        return read_tokens(path, "file")[0]
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


_FORMS: Final[Mapping[str, Callable[[str], object]]] = {"text": str, "words": _words, "file": _first_line}


def _reader(field: Field, verb: Verb) -> Callable[[str], object]:
    if field.name in verb.forms:
        return _FORMS[verb.forms[field.name]]
    if field.name in verb.durations:
        return _duration_reader(field)
    if field.kind in _TEXTS:
        return str
    if field.kind in _LISTS:
        return _words
    if field.kind in _VALUES:
        return _value
    return _number if field.kind in _NUMBERS else _json


def _given(read: Callable[[str], object]) -> Callable[[str], object]:
    """The reader, which argparse also asks about the default of what was not given."""
    return lambda text: text if text == argparse.SUPPRESS else read(text)


def _by_place(field: Field, verb: Verb) -> bool:
    return field.required or field.name in verb.places


def _metavar(field: Field) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", field.name).upper()


def shown_name(field: Field, verb: Verb) -> str:
    """What a user of a verb calls a field: an option, or what stands for it in the usage."""
    if _by_place(field, verb):
        return _metavar(field)
    return "--" + verb.renamed.get(field.name, _metavar(field).lower().replace("_", "-"))


def add_fields(parser: argparse.ArgumentParser, verb: Verb) -> None:
    """Give the parser of a verb an argument for each field of its command."""
    for field in COMMANDS[verb.command].fields:
        metavar = _metavar(field)
        dest = _FIELD + field.name
        help_ = verb.helps.get(field.name, field.help).replace("%", "%%")
        if field.name in verb.durations:
            help_ = help_.removeprefix("ms ")
        if field.name in verb.fixed:
            continue
        if field.meant is not None and isinstance(field.meant[0], str) and field.meant[0] not in help_:
            help_ += f" ({', '.join(map(str, field.meant))})"
        if _by_place(field, verb):
            parser.add_argument(
                dest,
                metavar=metavar,
                type=_given(_reader(field, verb)),
                help=help_,
                nargs=None if field.required else "?",
                default=argparse.SUPPRESS,
            )
            continue
        if verb.options is not None and field.name not in verb.options:
            continue
        if field.name == "token" and field.name not in verb.renamed:
            continue
        option = shown_name(field, verb)
        if field.default is not ABSENT and not isinstance(field.default, bool):
            help_ += f" ({lasting(field.default) if field.name in verb.durations else field.default})"
        settings: dict[str, Any] = {"dest": dest, "default": argparse.SUPPRESS, "help": help_}
        if field.kind == "flag":
            settings["action"] = argparse.BooleanOptionalAction
        else:
            hint = "DURATION" if field.name in verb.durations else metavar
            hint = "JSON" if _reader(field, verb) in (_json, _value) else hint
            hint = "FILE" if verb.forms.get(field.name) == "file" else hint
            settings |= {"type": _reader(field, verb), "metavar": hint}
        parser.add_argument(option, **settings)


def fields_of(options: argparse.Namespace) -> dict[str, object]:
    """The fields that were given."""
    return {key.removeprefix(_FIELD): value for key, value in vars(options).items() if key.startswith(_FIELD)}
