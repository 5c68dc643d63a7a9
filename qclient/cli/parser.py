"""The whole command line as one parser."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from qclient.cli.arguments import add_fields, duration
from qclient.cli.backup import add_backup
from qclient.cli.demo import add_demo
from qclient.cli.place import add_place_options
from qclient.cli.verbs import GROUPS, VERBS, Verb
from qcore.wire.commands import COMMANDS


class UsageError(Exception):
    """A command line that cannot be used as given; ``prog`` is the part of it that could."""

    def __init__(self, prog: str, message: str) -> None:
        super().__init__(message)
        self.prog = prog


class Parser(argparse.ArgumentParser):
    """Raises what is wrong as ``UsageError``; options work before and after a verb."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, argument_default=argparse.SUPPRESS, **settings)

    def error(self, message: str) -> NoReturn:
        raise UsageError(self.prog, message)


def build_parser(arguments: Sequence[str] = ()) -> Parser:
    """The parser of ``qcore``; what it finds has ``verb``, and ``found`` for a verb of the table.

    Without a verb, ``group`` may be there, the first word of verbs that have two. If the
    arguments begin with a verb of the table, it knows no other: all of them take 20 ms.
    """
    verbs = [verb for verb in VERBS if _begins(arguments, verb)] or VERBS
    as_json = Parser(add_help=False)
    as_json.add_argument("--json", action="store_true", help="print one JSON document")
    common = Parser(add_help=False, parents=[as_json])
    common.add_argument(
        "--timeout",
        type=duration,
        metavar="DURATION",
        help="how long to wait, like 5s or 2m (30s; probes 5s)",
    )
    common.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    common.add_argument("-v", "--verbose", action="store_true", help="log to standard error")
    add_place_options(common)

    parser = Parser(prog="qcore", description="A job queue: server, control, demo.", parents=[common])
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    words = parser.add_subparsers(metavar="COMMAND")
    words.add_parser("start", help="run the server; options: qcore start --help").set_defaults(verb="start")
    add_demo(words, as_json)
    add_backup(words, as_json)
    groups = {}
    for word in dict.fromkeys(verb.path.split()[0] for verb in verbs if " " in verb.path):
        about = GROUPS[word]
        group = words.add_parser(word, help=about, description=about)
        group.set_defaults(group=word)
        groups[word] = group.add_subparsers(metavar="COMMAND")
    for verb in verbs:
        word, _, second = verb.path.rpartition(" ")
        _add_verb(groups[word] if word else words, second, verb, common)
    about = "print the version"
    version = words.add_parser("version", help=about, description=about, parents=[as_json])
    version.set_defaults(verb="version")
    about = "print the commands of the protocol"
    commands = words.add_parser("commands", help=about, description=about, parents=[as_json])
    commands.add_argument("name", metavar="COMMAND", nargs="?", help="only this one, with its fields")
    commands.set_defaults(verb="commands")
    return parser


def _begins(arguments: Sequence[str], verb: Verb) -> bool:
    words = verb.path.split()
    return list(arguments[: len(words)]) == words


def _add_verb(words: Any, name: str, verb: Verb, common: Parser) -> None:
    about = verb.about or COMMANDS[verb.command].help
    about = (about[0].lower() + about[1:]).rstrip(".").replace("%", "%%")
    parser = words.add_parser(name, help=about, description=about, parents=[common])
    add_fields(parser, verb)
    if verb.takes_url:
        parser.add_argument(
            "url_by_place", metavar="URL", nargs="?", default=argparse.SUPPRESS, help="in place of --url"
        )
    if verb.asks:
        parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    if verb.lists_payloads:
        parser.add_argument("--payloads", action="store_true", help="data and results too, with --json")
    parser.set_defaults(verb=verb.path, found=verb)
