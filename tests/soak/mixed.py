"""A mixed load for a given time against a real server on disk, watched and counted.

    python -m tests.soak.mixed --minutes 60 --rate 1000

Adds plain and durable ones, batches, priorities, delays, retries, flows, unique keys,
custom ids and dead letters, beside schedules and a subscriber, while workers come, are
ended and are killed. At first so many jobs go through without a pause that what is kept
up to a bound is full; only then the time begins. Samples are printed as JSON lines, the
report at the end. Fails when a job was lost or done twice, and when memory, log, file or
latency grow.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.soak import probe
from tests.soak.crew import Crew
from tests.soak.line import Line, Server, clean_env
from tests.soak.producer import CHILDREN, CLIENT, DEAD, DEAD_ATTEMPTS, FLOWS, KINDS, MIXED, TICKS, Producer
from tests.soak.records import Ints, add_up

PROBE_FIRST = 1 << 40
SCHEDULES: dict[str, dict[str, Any]] = {
    "fast": {"repeatEvery": 250, "preventOverlap": False},
    "apart": {"repeatEvery": 400},
    "seconds": {"schedule": "*/2 * * * * *"},
}
CREW = (
    ("raw", MIXED),
    ("raw", MIXED),
    ("raw", MIXED, FLOWS),
    ("raw", TICKS, DEAD, FLOWS),
    ("client", CLIENT),
)
#: The producer waits while more jobs than this are not finished: what a backlog took of memory stays its own.
MOST_LEFT = 1_000
LOOK_S = 0.1
#: Finished jobs that were kept are removed when they are this old; later, they would be in the file only.
KEEP_MS = 15_000

#: Answers of 10,000 deliveries to one kind of worker, 50,000 ids of completed jobs, the pages of the file
#: and the gaps in the heap between all of them are there after so many jobs.
FILL_JOBS = 800_000
FILL_RATE = 10_000.0

# What counts as growth: memory over the last half by its slope ...
MOST_MEMORY = 1.03
MEMORY_FLOOR_MIB = 1.0
# ... and the others from the first third after the warm-up to the last one.
MOST_FILE = 1.5
MOST_LATENCY = 3.0
LATENCY_FLOOR_MS = 20.0
MOST_WAL_MIB = 64.0
#: Shorter runs have no thirds that could be compared.
LEAST_S = 300.0
FOREVER_S = 1e9


@dataclass
class Tally:
    """What the clients other than workers were told."""

    purged: int = 0
    retried: int = 0
    cleaned: int = 0
    completed_events: int = 0
    filled: int = 0
    fill_s: float = 0.0
    samples: list[dict[str, float]] = field(default_factory=list)


class Subscriber(threading.Thread):
    """Counts the completions of one queue."""

    def __init__(self, port: int, queue: str) -> None:
        super().__init__(daemon=True)
        self.n = 0
        self._line = Line(port)
        self._line.sock.settimeout(None)
        self._line.call("SubscribeEvents", queue=queue, eventTypes=["completed"])

    def run(self) -> None:
        try:
            while True:
                if self._line.read().get("type") == "event":
                    self.n += 1
        except OSError:  # the server has ended
            self._line.close()


class Soak:
    """One run."""

    def __init__(
        self, folder: Path, seconds: float, rate: float, seed: int, sample_s: float, fill: int = 0
    ) -> None:
        self.folder = folder
        self.fill = fill
        self.seconds = seconds
        self.sample_s = sample_s
        self.rng = random.Random(seed)
        self.rate = rate
        self.tally = Tally()
        self.server = Server(folder / "jobs.db", "--log-level", "warning")
        self.line = Line(self.server.port)
        self.crew = Crew(self.server.port, folder)
        self.producer = Producer(self.server.port, rate, seed)
        self.began = time.monotonic()

    def run(self) -> dict[str, Any]:
        """The whole run, and its report; raises AssertionError at what must not be."""
        try:
            for queue in (MIXED, FLOWS, DEAD, CLIENT, TICKS):
                self.line.call("SetStallConfig", queue=queue, config={"maxStalls": 0})
            for name, options in SCHEDULES.items():
                self.line.call(
                    "Cron", name=name, queue=TICKS, jobOptions={"removeOnComplete": True}, **options
                )
            subscriber = Subscriber(self.server.port, MIXED)
            subscriber.start()
            for work in CREW:
                self.crew.hire(*work)
            prober = self._probe()
            try:
                self.line.call("Prometheus")  # loads a library
                self.began = time.monotonic()
                self.producer.start()
                self._fill()
                self._watch(self.seconds)
                self.producer.stop()
                prober.terminate()
                assert prober.wait(60) == 0
            finally:
                prober.kill()
                prober.wait()
            ran = {name: self._end_schedule(name) for name in SCHEDULES}
            self._settle()
            last = self._sample()
            totals = self.line.call("Metrics")["metrics"]
            dead = self.line.call("GetJobCounts", queue=DEAD)["counts"]["failed"]
            self.crew.close()
            self.line.close()
            code = self.server.stop()
            subscriber.join(30)
            self.tally.completed_events = subscriber.n
        finally:
            self.crew.abandon()
            self.server.kill()
        assert code == 0, f"the server ended with exit code {code}"
        assert not Path(f"{self.server.data}-wal").exists(), "a clean end left a log"
        return self._report(totals, dead, ran, last)

    def _probe(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.soak.probe", str(self.server.port)]
        command += [str(self.folder / "probe.samples"), MIXED, str(PROBE_FIRST)]
        prober = subprocess.Popen(command, env=clean_env())
        samples = self.folder / "probe.samples"
        deadline = time.monotonic() + 60
        # From its first sample on it can be ended gracefully.
        while not (samples.exists() and samples.stat().st_size):
            assert prober.poll() is None, "the prober did not start"
            assert time.monotonic() < deadline, "the prober gets no answer"
            time.sleep(0.02)
        return prober

    # --- the run ------------------------------------------------------------------------

    def _fill(self) -> None:
        """Let jobs through without a pause, until there are enough of them; then the time begins."""
        if self.fill:
            self.producer.rate = FILL_RATE
            self._watch(FOREVER_S, self.fill)
            self.producer.rate = self.rate
            self.producer.hold.clear()
        self.tally.filled = self.producer.confirmed
        self.tally.fill_s = time.monotonic() - self.began
        self.tally.samples.clear()
        self.began = time.monotonic()

    def _watch(self, seconds: float, jobs: int | None = None) -> None:
        """Until the time is over, or so many jobs are added: workers come and go, samples are taken."""
        end = self.began + seconds
        at = {"change": self.began + 1.0, "tidy": self.began + 2.0, "sample": self.began + self.sample_s}
        at["look"] = self.began
        while (now := time.monotonic()) < end and (jobs is None or self.producer.confirmed < jobs):
            if self.producer.failure is not None:
                raise self.producer.failure
            if now >= at["change"]:
                at["change"] = now + self.rng.uniform(2, 8)
                slot = self.rng.randrange(len(self.crew))
                (self.crew.kill if self.rng.random() < 0.6 else self.crew.end)(slot)
            if now >= at["tidy"]:
                at["tidy"] = now + 10.0
                self._tidy()
            if now >= at["sample"]:
                at["sample"] = now + self.sample_s
                sample = self._sample()
                print(json.dumps(sample), flush=True)
            if now >= at["look"]:
                at["look"] = now + LOOK_S
                left = self._left(self.line.call("Stats")["stats"])
                (self.producer.hold.set if left > MOST_LEFT else self.producer.hold.clear)()
            time.sleep(max(0.0, min(end, *at.values()) - time.monotonic()))

    @staticmethod
    def _left(stats: dict[str, Any]) -> int:
        return int(stats["waiting"] + stats["active"] + stats["delayed"])

    def _tidy(self) -> None:
        tally = self.tally
        tally.retried += self.line.call("RetryDlq", queue=DEAD, count=3)["count"]
        if self.rng.random() < 0.3:
            tally.purged += self.line.call("PurgeDlq", queue=DEAD)["count"]
        for queue in (MIXED, FLOWS, CLIENT):
            while True:
                n = self.line.call("Clean", queue=queue, state="completed", grace=KEEP_MS, limit=500)["count"]
                tally.cleaned += n
                if n < 500:
                    break

    def _sample(self) -> dict[str, float]:
        stats = self.line.call("Stats")["stats"]
        sample = {"at_s": round(time.monotonic() - self.began, 1), **self.server.figures()}
        sample = {name: round(value, 2) for name, value in sample.items()}
        sample["machine_load"] = round(os.getloadavg()[0], 1)
        sample["added"] = self.producer.confirmed
        sample["completed"] = stats["completed"]
        sample["left"] = self._left(stats)
        sample["kills"], sample["ended"] = self.crew.n_killed, self.crew.n_ended
        self.tally.samples.append(sample)
        return sample

    def _end_schedule(self, name: str) -> int:
        """Remove a schedule; how many of its jobs are to have run."""
        before = self.line.call("CronGet", name=name)["cron"]["executions"]
        self.line.call("CronDelete", name=name)
        return int(before)

    def _settle(self) -> None:
        """Wait until everything has run; flows need their parents, retries their time."""
        deadline = time.monotonic() + 120
        while True:
            counts = self.line.call("Stats")["stats"]
            parked = self.line.call("GetJobCounts", queue=FLOWS)["counts"].get("waiting-children", 0)
            left = self._left(counts) + parked
            if not left:
                return
            assert time.monotonic() < deadline, f"{left} jobs are never run: {counts}"
            time.sleep(0.2)

    # --- the sums -----------------------------------------------------------------------

    def _report(
        self, totals: dict[str, Any], dead: int, ran: dict[str, int], last: dict[str, float]
    ) -> dict[str, Any]:
        producer, tally = self.producer, self.tally
        samples = probe_samples(self.folder / "probe.samples")
        probes = int(np.count_nonzero(samples["kind"] == probe.DURABLE))
        kinds = np.array(producer.kinds, dtype=np.int64)
        failing = np.isin(kinds, [KINDS.index("retried"), KINDS.index("dead")])

        def may_fail(job: Ints) -> Any:
            own = (job >= 0) & (job < len(kinds))
            return own & failing[np.where(own, job, 0)]

        sums, per_job = add_up(self.crew.lives, may_fail)
        problems = list(sums.problems)
        expected = np.concatenate([np.flatnonzero(kinds >= 0), np.arange(PROBE_FIRST, PROBE_FIRST + probes)])
        job = per_job["job"]
        real = job[job >= 0]
        lost, unknown = np.setdiff1d(expected, real), np.setdiff1d(real, expected)
        problems += [f"job {n} was confirmed and never started" for n in lost[:20]]
        problems += [f"job {n} ran and was not added" for n in unknown[:20]]

        is_dead = np.isin(job, np.flatnonzero(kinds == KINDS.index("dead")))
        ended = per_job["done"] + (per_job["open"] > 0)
        problems += [f"job {n} did not end" for n in job[~is_dead & (ended < 1)][:20]]
        problems += [f"job {n} was done {k} times" for n, k in _over(job, per_job["done"], 1)]
        n_dead = int(np.count_nonzero(kinds == KINDS.index("dead")))
        if tally.purged + dead != n_dead:
            problems.append(f"{n_dead} jobs were to die: {tally.purged} were purged, {dead} are there")
        failures = int(per_job["failed"][is_dead].sum())
        wanted = DEAD_ATTEMPTS * (n_dead + tally.retried)
        if not wanted - int(per_job["open"][is_dead].sum()) <= failures <= wanted:
            problems.append(f"jobs that die failed {failures} times in place of {wanted}")
        ticks = int(np.count_nonzero(job < 0))
        # A schedule that runs between the two questions, or whose job its removal took along.
        if not sum(ran.values()) - len(ran) <= ticks <= sum(ran.values()) + len(ran):
            problems.append(f"{ticks} jobs of schedules ran in place of {ran}")
        completed = len(expected) - n_dead + ticks
        # Of a schedule that prevents overlap the job goes with its holder: the next slot brings another.
        gone = int(np.count_nonzero((job < 0) & (per_job["done"] == 0)))
        if not completed - gone <= totals["totalCompleted"] <= completed:
            problems.append(f"the server counts {totals['totalCompleted']} completed, {completed} were added")
        problems += self._order_of_flows(per_job)
        in_mixed = self._in_mixed(kinds) + probes
        if tally.completed_events != in_mixed:
            problems.append(f"{tally.completed_events} events told of {in_mixed} completions in {MIXED!r}")

        report: dict[str, Any] = {
            "seconds": round(self.seconds),
            "jobs": len(expected) + ticks,
            "jobs_per_s": round((len(expected) + ticks) / (self.seconds + tally.fill_s)),
            "jobs_to_fill": tally.filled,
            "seconds_to_fill": round(tally.fill_s),
            "by_kind": {k: int(np.count_nonzero(kinds == i)) for i, k in enumerate(KINDS)},
            "duplicates": producer.duplicates,
            "schedules": ran,
            "dead": n_dead,
            "retried_dead": tally.retried,
            "cleaned": tally.cleaned,
            "kills": self.crew.n_killed,
            "graceful_ends": self.crew.n_ended,
            "run_again": sums.cut_off - sums.ended_unseen,
            "applied_but_not_heard_of": sums.ended_unseen,
            "refused_ends": sums.refused,
            "completed_events": tally.completed_events,
            "server_cpu_us_per_job": round(last["cpu_s"] * 1e6 / (len(expected) + ticks), 1),
            "producer_late_s": round(producer.late_s, 1),
        }
        report |= self._growth(samples, problems)
        report["problems"] = problems
        return report

    def _order_of_flows(self, per_job: dict[str, Ints]) -> list[str]:
        """A parent starts after all its children have started."""
        flows = np.array(self.producer.flows, dtype=np.int64).reshape(-1, 1 + CHILDREN)
        at = np.searchsorted(per_job["job"], flows)
        if not len(flows) or at.max() >= len(per_job["job"]):
            return []  # one is lost, which is told already
        first = per_job["first_ns"][at]
        wrong = np.flatnonzero(first[:, 0] < first[:, 1:].max(axis=1))
        return [f"parent {flows[i, 0]} of a flow ran before a child" for i in wrong[:20]]

    def _in_mixed(self, kinds: Ints) -> int:
        elsewhere = [KINDS.index("client"), KINDS.index("dead")]
        parents = len(self.producer.flows) // (1 + CHILDREN)
        return int(np.count_nonzero((kinds >= 0) & ~np.isin(kinds, elsewhere))) - parents

    def _growth(self, samples: Any, problems: list[str]) -> dict[str, Any]:
        """The slope of memory; first third after the warm-up against the last one for the other figures."""
        warm_s = max(self.seconds * 0.1, min(60.0, self.seconds * 0.2))
        third_s = (self.seconds - warm_s) / 3
        spans = [(warm_s, warm_s + third_s), (self.seconds - third_s, self.seconds)]
        judged = self.seconds >= LEAST_S
        out: dict[str, Any] = {"warm_up_s": round(warm_s)}
        rows = [s for s in self.tally.samples if s["at_s"] <= self.seconds + self.sample_s]
        out["rss_mib"] = memory = flatness([(s["at_s"], s["rss_mib"]) for s in rows])
        if judged and not memory["flat"]:
            problems.append(f"memory grew by {memory['rise']} MiB in the last half, from {memory['middle']}")
        for name, most in (("file_mib", MOST_FILE), ("fds", 2.0)):
            first, last = ([s[name] for s in rows if a <= s["at_s"] <= b] or [0.0] for a, b in spans)
            figures = (statistics.median(first), statistics.median(last), max(s[name] for s in rows))
            out[name] = dict(zip(("first", "last", "max"), (round(f, 1) for f in figures), strict=True))
            if judged and figures[1] > most * figures[0]:
                problems.append(f"{name} grew from {figures[0]:.1f} to {figures[1]:.1f}")
        out["wal_mib_max"] = max(s["wal_mib"] for s in rows)
        if out["wal_mib_max"] > MOST_WAL_MIB:
            problems.append(f"the log grew to {out['wal_mib_max']} MiB")
        for kind, name in ((probe.PING, "ping_ms"), (probe.DURABLE, "durable_add_ms")):
            of_kind = samples[samples["kind"] == kind]
            at_s = of_kind["at_ns"] / 1e9 - self.began
            took_ms = of_kind["took_ns"] / 1e6
            figures = [
                percentiles(at_s[m], took_ms[m]) for a, b in spans if (m := (at_s >= a) & (at_s <= b)).any()
            ]
            out[name] = figures
            if judged and len(out[name]) == 2:
                before, after = (f["p99_of_windows"] for f in out[name])
                if after > max(MOST_LATENCY * before, LATENCY_FLOOR_MS):
                    problems.append(f"{name}: p99 grew from {before} to {after} ms")
        return out


def flatness(samples: list[tuple[float, float]]) -> dict[str, Any]:
    """How much the figure rose over the last half of the time, by the median slope between its samples.

    Flat is what rose by less than 3 %, or by less than 1 MiB.
    """
    end = samples[-1][0]
    half = [(at, value) for at, value in samples if at >= end / 2]
    at_s, value = np.array(half).T
    i, k = np.triu_indices(len(half), 1)
    apart = at_s[k] > at_s[i]
    slopes = (value[k] - value[i])[apart] / (at_s[k] - at_s[i])[apart]
    slope = float(np.median(slopes)) if slopes.size else 0.0
    rise, middle = slope * (end - end / 2), float(np.median(value))
    return {
        "first": samples[0][1],
        "middle": round(middle, 2),
        "last": samples[-1][1],
        "max": max(v for _, v in samples),
        "rise": round(rise, 2),
        "per_hour": round(slope * 3600, 2),
        "flat": rise < max(MEMORY_FLOOR_MIB, (MOST_MEMORY - 1) * middle),
    }


def percentiles(at_s: Any, took_ms: Any, window_s: float = 5.0) -> dict[str, float]:
    """p50 and p99 of all, and the median of the p99 of each window, which one bad moment does not move."""
    windows = (at_s // window_s).astype(int)
    each = [float(np.percentile(took_ms[windows == w], 99)) for w in np.unique(windows)]
    return {
        "p50": round(float(np.percentile(took_ms, 50)), 3),
        "p99": round(float(np.percentile(took_ms, 99)), 3),
        "p99_of_windows": round(statistics.median(each), 3),
        "samples": len(took_ms),
    }


def probe_samples(path: Path) -> Any:
    raw = path.read_bytes()
    return np.frombuffer(raw[: len(raw) // probe.SAMPLE.itemsize * probe.SAMPLE.itemsize], dtype=probe.SAMPLE)


def _over(job: Ints, counts: Ints, most: int) -> list[tuple[int, int]]:
    return [(int(job[i]), int(counts[i])) for i in np.flatnonzero(counts > most)[:20]]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=1000.0, help="jobs a second")
    parser.add_argument("--fill", type=int, default=FILL_JOBS, help="jobs before the time begins")
    parser.add_argument("--sample-s", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=None, help="of the load; printed")
    parser.add_argument("--folder", type=Path, help="where the files go; default a temporary one")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    folder: Path = options.folder or Path(tempfile.mkdtemp(prefix="qcore-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    soak = Soak(folder, options.minutes * 60, options.rate, seed, options.sample_s, options.fill)
    try:
        report = soak.run()
    except BaseException:
        print(f"seed {seed}; the files are in {folder}", file=sys.stderr)
        raise
    print(json.dumps(report | {"seed": seed}, indent=2), flush=True)
    if report["problems"]:
        print(f"seed {seed}; the files are in {folder}", file=sys.stderr)
        return 1
    if options.folder is None:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
