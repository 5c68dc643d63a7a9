"""What is compared with whom."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from drains import drain
from harness import HERE, SampleFailed, Setup, checked, pinned, run_json, server, waiting_jobs

Sampler = Callable[[Setup], Mapping[str, float]]


@dataclass(frozen=True)
class Metric:
    """One compared figure. ``target`` maps a peer to the ratio that we aim at."""

    key: str
    title: str
    unit: str = "jobs/s"
    more_is_better: bool = True
    target: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Workload:
    """Samplers of one workload, run in turns: the peers', then ours.

    Keys of ``ours`` name the variant; with one variant the key is empty.
    """

    name: str
    title: str
    metrics: tuple[Metric, ...]
    peers: Mapping[str, Sampler]
    ours: Mapping[str, Sampler]


# ------------------------------------------------------------------------------ samplers


def peer_script(name: str, *options: str, file: bool = False) -> Sampler:
    def sample(setup: Setup) -> Mapping[str, float]:
        with setup.folder() as folder:
            more = [f"--file={folder / 'queue.db'}"] if file else []
            return checked(run_json(setup, [setup.bun, str(HERE / "js" / name), *options, *more]))

    return sample


def our_script(name: str, *options: str, file: bool = False) -> Sampler:
    def sample(setup: Setup) -> Mapping[str, float]:
        with setup.folder() as folder:
            more = [f"--file={folder / 'queue.db'}"] if file else []
            return checked(run_json(setup, [sys.executable, str(HERE / name), *options, *more]))

    return sample


def raw(kind: str, disk: bool, what: str, n: int, *options: object, cores: int = 0) -> Sampler:
    """The C client on a fresh server. What was pushed is drained afterwards, to see each job once."""

    def sample(setup: Setup) -> Mapping[str, float]:
        client = str(setup.tools / "rawload")
        with pinned(cores), server(setup, kind, disk) as srv:

            def load(*words: object) -> dict[str, float]:
                return checked(run_json(setup, [client, str(srv.port), *map(str, words)]))

            if what == "drain":
                load("pushb", n, 1000, 1)
                if disk:
                    srv.settle()
            srv.mark()
            figures = load(what, n, *options)
            figures |= srv.used(n)
            if kind == "echo" or what in ("idle", "late"):
                return figures  # the client has seen each reply and each job
            left = waiting_jobs(srv.port)
            if left != (n if what in ("push", "pushb") else n + 200 if what == "seq" else 0):
                raise SampleFailed(f"{left} jobs wait after {what} of {n}")
            if what in ("push", "pushb"):
                load("drain", n, 100, 4)
            return figures

    return sample


def bean(disk: bool, what: str, n: int, *options: object) -> Sampler:
    """The same load in beanstalkd's protocol."""

    def sample(setup: Setup) -> Mapping[str, float]:
        client = str(setup.tools / "beanload")
        with server(setup, "beanstalkd", disk) as srv:

            def load(*words: object) -> dict[str, float]:
                return checked(run_json(setup, [client, str(srv.port), *map(str, words)]))

            if what == "drain":
                load("push", n, 1000)
                if disk:
                    srv.settle()
            srv.mark()
            figures = load(what, n, *options)
            return figures | srv.used(n)

    return sample


def drained(who: str, disk: bool, n: int, result: str = "none") -> Sampler:
    return lambda setup: drain(setup, who, disk, n, result)


# ----------------------------------------------------------------------------- workloads

ENGINE = (
    Metric("push", "push", target={"bunqueue": 6}),
    Metric("pull", "pull", target={"bunqueue": 10}),
    Metric("ack", "acknowledge", target={"bunqueue": 15}),
    Metric("full_cycle", "push, pull and acknowledge"),
    Metric("push_batch_1000", "push in batches of 1,000", target={"bunqueue": 4}),
)
MILLION = (
    Metric("overall", "overall", target={"bunqueue": 5}),
    Metric("push", "pushing"),
    Metric("process", "pulling and acknowledging"),
    Metric("peak_mib", "peak memory", "MiB", False),
)
SINGLE = (
    Metric("add", "add"),
    Metric("p50_us", "median", "us", False),
    Metric("p99_us", "99th percentile", "us", False),
)
WRITTEN = Metric("server_bytes_written", "bytes written", "B/job", False)
MEMORY = (Metric("bytes_per_job", "memory of a waiting job", "B", False, {"bunqueue": 6}),)


def engine(name: str, title: str, what: str, script: str, n: int, metrics: tuple[Metric, ...]) -> Workload:
    ours = {
        variant: our_script("engine_ours.py", f"--what={what}", f"--n={n}", f"--payload={payload}")
        for payload, variant in (("packed", "of packed bytes"), ("values", "of values, packed and unpacked"))
    }
    return Workload(name, title, metrics, {"bunqueue": peer_script(script, f"--n={n}")}, ours)


def server_load(
    name: str,
    title: str,
    disk: bool,
    what: str,
    n: int,
    *options: object,
    target: float | None = None,
    bean_target: float | None = None,
) -> Workload:
    """Beside beanstalkd as well where there is a ``bean_target``: it knows neither batches nor results."""
    key = "drain" if what == "drain" else what
    targets = {"bunqueue": target, "beanstalkd": bean_target}
    metrics = [Metric("rate", key, target={k: v for k, v in targets.items() if v is not None})]
    if what == "seq":
        metrics.append(Metric("p50_us", "median round trip", "us", False))
    metrics.append(Metric("server_cpu_us", "server's processor time", "us/job", False))
    metrics.append(Metric("server_peak_mib", "server's peak memory", "MiB", False))
    if disk and what == "drain":
        metrics.append(WRITTEN)
    return Workload(
        f"server/{'disk' if disk else 'memory'}/{name}",
        f"server {'on disk' if disk else 'in memory'}, C client: {title}",
        tuple(metrics),
        {"bunqueue": raw("bunqueue", disk, what, n, *options)}
        | ({} if bean_target is None else {"beanstalkd": bean(disk, what, n, *options)}),
        {"": raw("ours", disk, what, n, *options)},
    )


def latency(
    name: str, title: str, what: str, n: int, *options: object, peer: str = "bunqueue", cores: int = 0
) -> Workload:
    return Workload(
        f"latency/{name}",
        f"server in memory, C client: {title}",
        (
            Metric("p50_us", "median", "us", False, {"echo": 1 / 1.3} if peer == "echo" else {}),
            Metric("p99_us", "99th percentile", "us", False),
        ),
        {peer: raw(peer, False, what, n, *options, cores=cores)},
        {"": raw("ours", False, what, n, *options, cores=cores)},
    )


def _workloads() -> list[Workload]:
    out = [
        engine("engine/one-by-one", "engine, 50,000 calls each", "one-by-one", "engine.mjs", 50_000, ENGINE),
        engine(
            "engine/million",
            "engine, a million jobs, 16 queues",
            "million",
            "million.mjs",
            1_000_000,
            MILLION,
        ),
        engine("engine/memory", "engine, a million waiting jobs", "memory", "memory.mjs", 1_000_000, MEMORY),
    ]
    for disk in (False, True):
        out += [
            server_load(
                "push",
                "single PUSH, 500 unanswered",
                disk,
                "push",
                50_000,
                500,
                target=5,
                bean_target=None if disk else 1.5,
            ),
            server_load("pushb", "PUSHB of 1,000, 4 unanswered", disk, "pushb", 50_000, 1000, 4, target=5),
        ]
        for count in (20, 100):
            plain = f"drain, PULLB {count} and ACKB on 4 connections"
            target = 4.0 if not disk else 8.0 if count == 100 else None
            bean_target = 2.0 if disk and count == 100 else None
            out += [
                server_load(
                    f"drain-{count}",
                    plain,
                    disk,
                    "drain",
                    50_000,
                    count,
                    4,
                    target=target,
                    bean_target=bean_target,
                ),
                server_load(
                    f"drain-{count}-results",
                    f"{plain}, null results",
                    disk,
                    "drain",
                    50_000,
                    count,
                    4,
                    "results",
                    target=target,
                ),
            ]
        out.append(server_load("seq", "one PUSH at a time", disk, "seq", 5000))
    out.append(server_load("seq-durable", "one durable PUSH at a time", True, "seq", 2000, "durable"))
    for cores in (1, 2):
        title = f"one PUSH at a time beside a bare echo, pinned to {cores} of the cores"
        out.append(latency(f"echo-{cores}", title, "seq", 5000, peer="echo", cores=cores))
    out += [
        latency("idle", "a PULL that waits, until its job is here", "idle", 2000),
        latency("late", "delayed jobs, from their time until they are here", "late", 1000, 200),
    ]
    for disk in (False, True):
        n = 100_000
        out.append(
            Workload(
                f"their-worker/{'disk' if disk else 'memory'}",
                f"bunqueue's worker on our server {'on disk' if disk else 'in memory'}, beside its own",
                (
                    Metric("drain", "drain", target={"bunqueue": 1}),
                    Metric("server_cpu_us", "server's processor time", "us/job", False, {"bunqueue": 1}),
                    Metric("worker_cpu_us", "worker's processor time", "us/job", False),
                ),
                {"bunqueue": drained("bunqueue", disk, n)},
                {"": drained("bunqueue on ours", disk, n)},
            )
        )
    for disk, result in ((False, "none"), (True, "none"), (True, "object")):
        n = 100_000
        place = f"{'on disk' if disk else 'in memory'}{'' if result == 'none' else ', with results'}"
        out.append(
            Workload(
                f"worker/{'disk' if disk else 'memory'}{'' if result == 'none' else '-results'}",
                f"worker {place}: 100,000 no-op jobs, concurrency 50",
                (
                    Metric(
                        "drain", "drain", target={"bunqueue": 10 if disk else 4, "BullMQ": 3 if disk else 1}
                    ),
                    Metric("server_cpu_us", "server's processor time", "us/job", False),
                    Metric("worker_cpu_us", "worker's processor time", "us/job", False),
                    Metric("server_peak_mib", "server's peak memory", "MiB", False),
                    *((WRITTEN,) if disk else ()),
                ),
                {
                    "bunqueue": drained("bunqueue", disk, n, result),
                    "BullMQ": drained("bullmq", disk, n, result),
                },
                {"": drained("ours", disk, n, result)},
            )
        )
    out += [
        Workload(
            "embedded/bulk",
            "embedded, 50,000 jobs in bulks of 1,000 on disk",
            (
                Metric("add_bulk_to_disk", "adding and flushing", target={"bunqueue": 4}),
                Metric("add_bulk", "adding alone"),
            ),
            {"bunqueue": peer_script("embedded.mjs", "--what=bulk", "--n=50000", file=True)},
            {"": our_script("embedded_ours.py", "--what=bulk", "--n=50000", file=True)},
        ),
        *(
            Workload(
                f"embedded/{what}",
                f"embedded, one {what} add at a time on disk",
                SINGLE,
                {"bunqueue": peer_script("embedded.mjs", f"--what={what}", "--n=2000", file=True)},
                {"": our_script("embedded_ours.py", f"--what={what}", "--n=2000", file=True)},
            )
            for what in ("buffered", "durable")
        ),
    ]  # fmt: skip
    return out


WORKLOADS = _workloads()
