"""Measure this project beside its peers, in turns, on one machine.

    python benchmarks/compare.py --reference DIR --only 'server/' --markdown out.md

DIR is a folder in which ``npm install bunqueue bun bullmq ioredis`` was run; the
environment variable QCORE_BENCH_NODE names it as well. The drains beside BullMQ
need ``node`` and ``redis-server``, those beside beanstalkd ``beanstalkd``, the load clients a
C compiler.

Every sample has processes, a server, a database and a scratch folder of its own.
The sides of a workload take turns (peer, ours, peer, ours, ...) after one sample
of each that is thrown away; the figures are medians. A sample in which a job was
lost or came twice fails the workload.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import ROOT, SampleFailed, Setup, prepare
from workloads import WORKLOADS, Metric, Sampler, Workload


@dataclass(frozen=True)
class Row:
    """One line of the table: a metric of ours beside one peer's."""

    workload: Workload
    metric: Metric
    variant: str
    peer: str
    theirs: Sequence[float]
    ours: Sequence[float]

    @property
    def ratio(self) -> float:
        a, b = statistics.median(self.ours), statistics.median(self.theirs)
        return _better(self.metric, a, b)

    @property
    def paired(self) -> list[float]:
        """The ratio of each turn: what the noise of the machine leaves of it."""
        return [_better(self.metric, a, b) for a, b in zip(self.ours, self.theirs, strict=True)]

    @property
    def target(self) -> float | None:
        return self.metric.target.get(self.peer)


def _better(metric: Metric, ours: float, theirs: float) -> float:
    above, below = (ours, theirs) if metric.more_is_better else (theirs, ours)
    return above / below if below else float("nan")


Samples = dict[tuple[str, str], list[Mapping[str, float]]]


def measure(setup: Setup, workload: Workload, runs: int, sides: Sequence[str]) -> Samples:
    """Samples of every side, in turns."""
    every: list[tuple[tuple[str, str], Sampler]] = [
        *((("peer", name), sampler) for name, sampler in workload.peers.items() if name in sides),
        *((("ours", name), sampler) for name, sampler in workload.ours.items() if "ours" in sides),
    ]
    samples: Samples = {side: [] for side, _ in every}
    for turn in range(runs + 1):
        for side, sampler in every:
            try:
                figures = sampler(setup)
            except SampleFailed as error:
                raise SampleFailed(f"{' '.join(filter(None, side))}: {error}") from None
            if turn:
                samples[side].append(figures)
    return samples


def rows(workload: Workload, samples: Samples) -> list[Row]:
    peers = [name for kind, name in samples if kind == "peer"]
    variants = [name for kind, name in samples if kind == "ours"]
    return [
        Row(
            workload,
            metric,
            variant,
            peer,
            [s[metric.key] for s in samples["peer", peer]],
            [s[metric.key] for s in samples["ours", variant]],
        )
        for metric in workload.metrics
        for variant in variants
        for peer in peers
    ]


# ------------------------------------------------------------------------------- output


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread(values: Sequence[float]) -> str:
    return f"{number(statistics.median(values))} ({number(min(values))} to {number(max(values))})"


def cells(row: Row) -> tuple[str, ...]:
    what = f"{row.metric.title} {row.variant}".rstrip()
    target = "" if row.target is None else f"{row.target:g}"
    ratio = f"{row.ratio:.2f} ({min(row.paired):.2f} to {max(row.paired):.2f})"
    return (f"{what}, {row.metric.unit}", row.peer, spread(row.theirs), spread(row.ours), ratio, target)


def markdown(about: Mapping[str, str], table: Iterable[Row], failures: Sequence[str]) -> str:
    lines = ["# Measured beside the peers", ""]
    lines += [f"- {name}: {value}" for name, value in about.items()]
    lines += [
        "",
        "Medians, with the smallest and the largest sample. The ratio says how many times better ours is",
        "(rates: ours by theirs; times, bytes and memory: theirs by ours), with the range over the turns.",
    ]
    title = ""
    for row in table:
        if row.workload.title != title:
            title = row.workload.title
            lines += ["", f"## {title[0].upper()}{title[1:]}", ""]
            lines += [
                "| metric | peer | theirs | ours | ratio | aim |",
                "| --- | --- | ---: | ---: | ---: | ---: |",
            ]
        lines.append("| " + " | ".join(cells(row)) + " |")
    if failures:
        lines += ["", "## Failed", "", *(f"- {failure}" for failure in failures)]
    return "\n".join(lines) + "\n"


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "?"


def _model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def about(setup: Setup, runs: int) -> dict[str, str]:
    """Machine, versions and date."""
    model = _model()
    memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
    peers = []
    if setup.node is not None:
        peers = [f"{name} {setup.version(name)}" for name in ("bunqueue", "bun", "bullmq")]
    if shutil.which("redis-server"):
        peers.append("redis " + (re.findall(r"v=([\d.]+)", _output("redis-server", "--version")) or ["?"])[0])
    if shutil.which("node"):
        peers.append("node " + _output("node", "--version").lstrip("v"))
    dirty = " with changes" if _output("git", "-C", str(ROOT), "status", "--porcelain", "-uno") else ""
    memory = f"{memory_kib / 1048576:.0f} GiB, Linux {platform.release().split('-')[0]}"
    commit = _output("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        "machine": f"{model}, {os.cpu_count()} cores, {memory}",
        "ours": f"commit {commit}{dirty}, CPython {platform.python_version()}",
        "peers": ", ".join(peers),
        "samples": f"{runs} of each side, in turns, after one that is thrown away",
        "load average before": ", ".join(f"{x:.2f}" for x in os.getloadavg()),
    }


def record(workload: Workload, samples: Samples) -> dict[str, object]:
    return {
        "workload": workload.name,
        "title": workload.title,
        "samples": {" ".join(filter(None, side)): list(figures) for side, figures in samples.items()},
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="workloads whose name matches")
    parser.add_argument("--runs", type=int, default=5, help="samples of each side (5)")
    parser.add_argument("--reference", metavar="DIR", help="folder with node_modules (QCORE_BENCH_NODE)")
    parser.add_argument(
        "--sides", default="bunqueue,BullMQ,beanstalkd,echo,ours", help="of these only, by commas"
    )
    parser.add_argument("--scratch", metavar="DIR", help="on the disk to measure (the system's)")
    parser.add_argument("--out", metavar="FILE", help="write every sample as JSON")
    parser.add_argument("--markdown", metavar="FILE", help="write the table")
    parser.add_argument("--list", action="store_true", help="name the workloads and end")
    args = parser.parse_args(argv)
    chosen = [w for w in WORKLOADS if re.search(args.only, w.name)]
    if args.list or not chosen:
        for workload in chosen or WORKLOADS:
            print(f"{workload.name:32} {workload.title}")
        return 0 if args.list else 2
    node = args.reference or os.environ.get("QCORE_BENCH_NODE")
    # An end asked for from outside stops the servers too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    setup = prepare(Path(node).resolve() if node else None, Path(args.scratch) if args.scratch else None)
    facts = about(setup, args.runs)
    table: list[Row] = []
    records: list[dict[str, object]] = []
    failures: list[str] = []
    try:
        for workload in chosen:
            print(f"{workload.name}: {workload.title}", flush=True)
            try:
                samples = measure(setup, workload, args.runs, args.sides.split(","))
            except SampleFailed as error:
                failures.append(f"{workload.name}: {error}")
                print(f"  FAILED {error}", flush=True)
                continue
            records.append(record(workload, samples))
            found = rows(workload, samples)
            table += found
            for row in found:
                what, peer, theirs, ours, ratio, target = cells(row)
                aim = f"  aim {target}" if target else ""
                print(f"  {what}: {peer} {theirs}, ours {ours}, x{ratio}{aim}", flush=True)
            if not found:
                for side, figures in samples.items():
                    for metric in workload.metrics:
                        print(
                            f"  {' '.join(side)} {metric.key}: {spread([f[metric.key] for f in figures])}",
                            flush=True,
                        )
            if args.out:
                Path(args.out).write_text(
                    json.dumps({"about": facts, "workloads": records, "failed": failures}, indent=1)
                )
            if args.markdown:
                Path(args.markdown).write_text(markdown(facts, table, failures))
    finally:
        shutil.rmtree(setup.tools, ignore_errors=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
