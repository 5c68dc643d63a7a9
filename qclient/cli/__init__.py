"""The command ``qcore``.

Whatever goes wrong is said in one line on standard error, or with ``--json`` in one
document there. Exit codes: 0 done; 1 refused, not found, not in time, not agreed to,
not reachable; 2 not usable as given, and nothing was asked; 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
from collections.abc import Sequence

from qclient.cli.backup import run_backup_verb
from qclient.cli.demo import run_demo_verb
from qclient.cli.parser import UsageError, build_parser
from qclient.cli.running import run_verb
from qclient.cli.show import Column, json_text, print_blocks, table
from qclient.cli.verbs import ALIASES, VERBS
from qcore.errors import ConfigError, EngineBusyError, QError, StoreError, complain, one_line
from qcore.wire.commands import COMMANDS
from qcore.wire.describe import describe

DISTRIBUTION = "qcore-engine"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that has no ☃ gets \u2603
            stream.reconfigure(errors="backslashreplace")
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return _failed("qcore", "interrupted", _wants_json(arguments), 130)
    except BrokenPipeError:
        # The reader of our output has gone; the interpreter must not find that out again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["start"]:  # the server reads its own options
        from qcore.server.__main__ import main as start

        return start(arguments[1:])
    words = {verb.path.split()[0] for verb in VERBS}.union(ALIASES)
    at = next((at for at, one in enumerate(arguments) if one in words), None)
    if at is not None and arguments[at] in ALIASES:
        arguments = [*arguments[:at], *ALIASES[arguments[at]].split(), *arguments[at + 1 :]]
    parser = build_parser(arguments)
    try:
        options = parser.parse_args(arguments)
    except UsageError as error:
        return _failed(error.prog, error, _wants_json(arguments), 2)
    as_json = getattr(options, "json", False)
    name = getattr(options, "verb", None)
    if getattr(options, "version", False):
        name = "version"
    if name is None:
        group = getattr(options, "group", None)
        seconds = [verb.path.split()[1] for verb in VERBS if group and verb.path.startswith(f"{group} ")]
        listed = f"one of {', '.join(seconds)}" if seconds else "a command; qcore --help lists them"
        return _failed(f"qcore {group}" if group else "qcore", f"expected {listed}", as_json, 2)
    prog = f"qcore {name}"
    if name == "start":
        return _failed("qcore", "the options of start come after it: qcore start --help", as_json, 2)
    try:
        if name == "version":
            return _print_version(as_json)
        if name == "commands":
            return _print_commands(options, as_json)
        if name == "demo":
            return run_demo_verb(options, as_json)
        if name.startswith("backup "):
            return run_backup_verb(name, options, as_json)
        return run_verb(options.found, options, as_json)
    except BrokenPipeError:
        raise
    except (ConfigError, StoreError, EngineBusyError) as error:
        return _failed(prog, error, as_json, 2)
    except QError as error:
        return _failed(prog, error, as_json, 1)
    except OSError as error:  # the output goes to a disk that is full
        where = f"{error.filename}: " if error.filename else ""
        return _failed(prog, f"{where}{error.strerror or error}", as_json, 1)
    except Exception as error:
        return _failed(prog, f"{type(error).__name__}: {error} (a fault of qcore)", as_json, 1)


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether a command line that may not be readable asks for JSON."""
    return "--json" in arguments[: arguments.index("--") if "--" in arguments else None]


def _failed(prog: str, error: object, as_json: bool, code: int) -> int:
    text = one_line(error) if code == 2 else " ".join(str(error).split())
    complain(json.dumps({"ok": False, "error": text}) if as_json else f"{prog}: {text}")
    return code


# --- verbs that ask nobody ----------------------------------------------------------


def _print_version(as_json: bool) -> int:
    version = importlib.metadata.version(DISTRIBUTION)
    print(json_text({"name": DISTRIBUTION, "version": version}) if as_json else f"{DISTRIBUTION} {version}")
    return 0


def _print_commands(options: argparse.Namespace, as_json: bool) -> int:
    name = getattr(options, "name", None)
    if name is not None and name not in COMMANDS:
        raise ConfigError(f"unknown command {name!r}; qcore commands lists them")
    chosen = [describe(COMMANDS[name])] if name else [describe(command) for command in COMMANDS.values()]
    if as_json:
        print(json_text({"commands": chosen}))
        return 0
    if name is None:
        head = (Column("command", "name"), Column("level", "level"), Column("does", "help"))
        print_blocks(table("commands", head, "")({"commands": chosen}, {}))
        return 0
    keys = ("name", "kind", "required", "default", "minimum", "maximum", "help")
    print_blocks(table("fields", [Column(key, key) for key in keys], "no fields")(chosen[0], {}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
