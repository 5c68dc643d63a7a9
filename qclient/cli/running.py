"""Running one verb: from its arguments to what is printed."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qclient.cli.arguments import fields_of, shown_name
from qclient.cli.place import find_server
from qclient.cli.show import json_text, plain, print_blocks
from qclient.cli.verbs import Fields, Verb
from qclient.client import Client
from qclient.codec import pack_payload
from qclient.url import Target
from qcore.errors import CommandError, ConfigError, QError, SerializationError
from qcore.wire.commands import COMMANDS, check
from qcore.wire.fields import Field, Refused, checker, refuse_unmeant, seen
from qcore.wire.writer import Packed

#: Fields of a job that are payload.
PAYLOAD_KEYS = ("data", "returnvalue")


class Server:
    """The server that a verb asks."""

    def __init__(self, target: Target, timeout_s: float) -> None:
        self.place = str(target)
        self.timeout_s = timeout_s
        self._client = Client(target, timeout_s)

    def ask(self, command: str, fields: Fields, *, patience_s: float = 0.0) -> dict[str, Any]:
        plain_fields = {name: value for name, value in fields.items() if name != "data"}
        raw = (("data", pack_payload(fields["data"])),) if "data" in fields else ()
        reply = self._client.call(
            command,
            plain_fields,
            raw,
            # A change that may have been made is for the user to judge.
            repeatable=COMMANDS[command].level == "none",
            timeout=self.timeout_s + patience_s,
        )
        reply.pop("reqId", None)
        return reply

    def close(self) -> None:
        self._client.close()


def run_verb(verb: Verb, options: argparse.Namespace, as_json: bool) -> int:
    """Ask, and print the reply; the exit code. Arguments are checked before a socket is opened."""
    if getattr(options, "verbose", False):
        logging.basicConfig(level=logging.DEBUG, format="%(levelname)s %(name)s: %(message)s")
    fields = {**fields_of(options), **verb.fixed}
    _check(verb, fields)
    target = find_server(options)
    if verb.asks and not getattr(options, "yes", False) and not _agreed(verb, fields, target):
        raise QError("nothing was done")
    server = Server(target, getattr(options, "timeout", verb.timeout_s))
    try:
        reply = verb.run(server, verb.command, fields)
    except SerializationError as error:
        raise ConfigError(str(error)) from None
    finally:
        server.close()
    if getattr(options, "quiet", False):
        return 0
    if as_json:
        if verb.lists_payloads and not getattr(options, "payloads", False):
            reply = _without_payloads(reply)
        print(json_text(reply))
    else:
        print_blocks(verb.show(reply, fields))
    return 0


def _check(verb: Verb, fields: Fields) -> None:
    """Refuse what a server would refuse whatever it holds, and what means nothing to it.

    Each field alone first, by the name that the user gave it; then what is said together.
    """
    command = COMMANDS[verb.command]
    checked, sent = {}, dict(fields)
    for field in command.fields:
        if field.name not in fields:
            continue
        name = shown_name(field, verb)
        if field.name in ("data", "result"):
            try:
                sent[field.name] = Packed(pack_payload(fields[field.name]))
            except SerializationError as error:
                raise ConfigError(f"{name}: {error}") from None
        checked[field.name] = _checked(replace(field, name=name), sent[field.name])
    try:
        verb.checks(checked)
        check(command, sent)
    except CommandError as error:
        raise ConfigError(str(error)) from None


def _checked(field: Field, value: object) -> object:
    if value == "" and field.kind != "string":
        raise ConfigError(f"{field.name}: expected a text, got an empty one")
    try:
        checked = checker(field)(value)
        refuse_unmeant(field, value)
    except Refused as refused:
        # Of a text, which may be a secret, is not said what it was.
        came = "" if isinstance(value, str) else seen(refused, value).came
        raise ConfigError(
            f"{refused}, not {came}" if came and ", not " not in str(refused) else str(refused)
        ) from None
    return checked


def _agreed(verb: Verb, fields: Fields, target: Target) -> bool:
    what = (
        verb.asks.format_map({name: plain(value) for name, value in fields.items()})
        if isinstance(verb.asks, str)
        else verb.asks(fields)
    )
    if not sys.stdin.isatty():
        raise ConfigError(f"this would {what}, and there is no terminal to ask: say --yes")
    print(f"{what} at {target}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _without_payloads(reply: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(reply)
    out["jobs"] = [_bare(job) for job in reply.get("jobs", ())]
    if "entries" in reply:
        out["entries"] = [{**entry, "job": _bare(entry["job"])} for entry in reply["entries"]]
    return out


def _bare(job: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in job.items() if key not in PAYLOAD_KEYS}
