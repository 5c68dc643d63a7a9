"""The verb ``demo``."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
import textwrap
from typing import TYPE_CHECKING, Any

from qclient.cli.show import json_text

if TYPE_CHECKING:
    from qclient.demo import Summary

MAX_WORKERS = 256


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


def add_demo(words: Any, as_json: argparse.ArgumentParser) -> None:
    """Give the command line the verb."""
    demo = words.add_parser(
        "demo",
        help="count the names in the standard library with a queue and workers",
        description="Queue one job for each source file of the standard library, count its names in several "
        "processes, merge the results. Interrupt it and run it again: it goes on where it was.",
        parents=[as_json],
    )
    demo.add_argument("--tcp", action="store_true", default=False, help="start a server and work over TCP")
    demo.add_argument("--jobs", type=_jobs, metavar="N", default=None, help="stop after N files (all)")
    demo.add_argument(
        "--workers", type=_workers, metavar="N", default=None, help="processes that count (all processors)"
    )
    demo.add_argument("--data", default="qcore-demo.db", metavar="FILE", help="data file (qcore-demo.db)")
    demo.add_argument(
        "--fresh", action="store_true", default=False, help="delete what an earlier run made and start over"
    )
    demo.set_defaults(verb="demo")


def run_demo_verb(options: argparse.Namespace, as_json: bool) -> int:
    """Run the demo and print its summary; the exit code."""
    from qclient.demo import DemoOptions, run_demo
    from qclient.demo.display import choose_display

    # A polite kill ends the demo as Ctrl-C does: in order.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    display = choose_display(as_json=as_json)
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
    if as_json:
        print(json_text(dataclasses.asdict(summary)))
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
