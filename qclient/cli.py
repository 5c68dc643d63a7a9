"""The command ``qcore``.

Whatever is wrong with a command line, an address or a file is said in one line on
standard error. Exit codes: 0 done, 1 not reachable or lost on the way, 2 not
usable as given, 130 interrupted.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import signal
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from qcore.errors import ConfigError, EngineBusyError, QError, StoreError

if TYPE_CHECKING:
    from qclient.demo import Summary

DISTRIBUTION = "qcore-engine"
PROBE_TIMEOUT_S = 5.0
MAX_WORKERS = 256


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage above it."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}", file=sys.stderr)
        raise SystemExit(2)


def _count(text: str, most: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}") from None
    if not 1 <= value <= most:
        raise argparse.ArgumentTypeError(f"expected 1 to {most}, got {value}")
    return value


def _jobs(text: str) -> int:
    return _count(text, 1_000_000)


def _workers(text: str) -> int:
    return _count(text, MAX_WORKERS)


def _version() -> str:
    return f"{DISTRIBUTION} {importlib.metadata.version(DISTRIBUTION)}"


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="qcore", description="A job queue: demo, server, probes.", allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND", parser_class=_Parser)

    verbs.add_parser("start", help="run the server; options: qcore start --help")

    demo = verbs.add_parser(
        "demo",
        help="count the names in the standard library with a queue and workers",
        description="Queue one job for each source file of the standard library, count its names in several "
        "processes, merge the results. Interrupt it and run it again: it goes on where it was.",
        allow_abbrev=False,
    )
    demo.add_argument("--tcp", action="store_true", help="start a server and work over TCP")
    demo.add_argument("--jobs", type=_jobs, metavar="N", help="stop after N files (all)")
    demo.add_argument("--workers", type=_workers, metavar="N", help="processes that count (all processors)")
    demo.add_argument("--data", default="qcore-demo.db", metavar="FILE", help="data file (qcore-demo.db)")
    demo.add_argument("--fresh", action="store_true", help="delete what an earlier run made and start over")
    demo.add_argument("--json", action="store_true", help="print one JSON document and no progress")

    for verb, about in (("ping", "measure one round trip"), ("healthcheck", "exit 0 if the server answers")):
        probe = verbs.add_parser(verb, help=about, description=about, allow_abbrev=False)
        probe.add_argument("--url", metavar="URL", help="tcp://host:port (QCORE_URL, else the local server)")

    verbs.add_parser("version", help="print the version")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        print("qcore: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has gone; the interpreter must not find that out again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["start"]:  # the server reads its own options
        from qcore.server.__main__ import main as start

        return start(arguments[1:])
    parser = _parser()
    options = parser.parse_args(arguments)
    verb = options.verb
    if options.version or verb == "version":
        print(_version())
        return 0
    if verb is None:
        parser.error("expected a command: start, demo, ping, healthcheck or version (qcore --help)")
    try:
        return _demo(options) if verb == "demo" else _probe(options)
    except (ConfigError, StoreError, EngineBusyError) as exc:
        print(f"qcore {verb}: {exc}", file=sys.stderr)
        return 2
    except QError as exc:
        print(f"qcore {verb}: {exc}", file=sys.stderr)
        return 1


def _probe(options: argparse.Namespace) -> int:
    from qclient.queue import Queue

    with Queue("probe", options.url) as queue:
        if queue.client.target.embedded:
            raise ConfigError(f"{queue.client.target} is no server; expected tcp://host:port")
        queue.client.call("Ping", timeout=PROBE_TIMEOUT_S)
        started = time.perf_counter()
        queue.client.call("Ping", timeout=PROBE_TIMEOUT_S)
        ms = 1000 * (time.perf_counter() - started)
        print(f"pong from {queue.client.target} in {ms:.2f} ms" if options.verb == "ping" else "ok")
    return 0


def _demo(options: argparse.Namespace) -> int:
    from qclient.demo import DemoOptions, run_demo
    from qclient.demo.display import choose_display

    # A polite kill ends the demo as Ctrl-C does: in order.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    display = choose_display(as_json=options.json)
    try:
        summary = run_demo(
            DemoOptions(
                data=options.data,
                jobs=options.jobs,
                workers=options.workers or min(MAX_WORKERS, len(os.sched_getaffinity(0))),
                tcp=options.tcp,
                fresh=options.fresh,
            ),
            display,
        )
    except KeyboardInterrupt:
        print("qcore demo: interrupted; run it again and it goes on where it was", file=sys.stderr)
        return 130
    if options.json:
        print(json.dumps(dataclasses.asdict(summary), indent=2))
    else:
        _print_summary(summary, options.data)
    return 0


def _print_summary(summary: Summary, data: str) -> None:
    print(f"{summary.ran} files in {summary.seconds:.1f} s with {summary.workers} processes at {summary.url}")
    if summary.kept:
        print(f"{summary.kept} more were finished by an earlier run; their results were kept in {data}")
    if summary.failed:
        print(f"{len(summary.failed)} could not be counted and are in the dead letter queue:")
        width = max(len(failed.name) for failed in summary.failed)
        for failed in summary.failed:
            error = failed.error.encode("ascii", "backslashreplace").decode()
            print(f"  {failed.name:{width}}  {failed.attempts} attempts, {textwrap.shorten(error, 60)}")
    print(f"the {len(summary.names)} most used names:")
    for used in summary.names:
        print(f"  {used.name:14} {used.count:9,}")
    print("next: qcore demo --fresh, stopped half-way with Ctrl-C and run again; qcore demo --fresh --tcp")


if __name__ == "__main__":
    sys.exit(main())
