"""The figures of a broker in the text form that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from qcore.limits import LATENCY_BOUNDS_MS

if TYPE_CHECKING:
    from qcore.broker.core import Broker

_STATES = (
    ("waiting", "ready jobs"),
    ("delayed", "jobs whose time has not come"),
    ("active", "jobs that are running"),
    ("completed", "kept completed jobs"),
    ("failed", "dead letters"),
)


class _Figures(Collector):
    def __init__(
        self,
        broker: Broker,
        workers: Mapping[str, int],
        hooks: Mapping[str, int],
        n_schedules: int,
        most_queues: int,
    ) -> None:
        self._broker = broker
        self._workers = workers
        self._hooks = hooks
        self._n_schedules = n_schedules
        self._most_queues = most_queues

    def collect(self) -> Iterator[Metric]:
        broker = self._broker
        totals = broker.engine.totals(broker.wall_ms)
        for state, help_ in _STATES:
            yield GaugeMetricFamily(f"bunqueue_jobs_{_label(state)}", f"All {help_}", totals[state])
        for name, key in (
            ("pushed", "pushed"),
            ("pulled", "pulled"),
            ("completed", "total_completed"),
            ("failed", "total_failed"),
        ):
            yield CounterMetricFamily(f"bunqueue_jobs_{name}", f"Jobs {name} since the start", totals[key])
        for kind, (counts, seconds) in broker.latencies().items():
            yield _histogram(kind, counts, seconds)
        degraded = broker.degraded is not None
        for name, help_, value in (
            ("uptime_seconds", "Time since the start", (broker.wall_ms - broker.started_ms) / 1000),
            ("connections", "Open connections", broker.n_sessions),
            ("workers", "Registered workers", self._workers["total"]),
            ("workers_active", "Workers that were heard of lately", self._workers["active"]),
            ("worker_slots", "Jobs that the workers can run at once", self._workers["concurrencySlots"]),
            ("cron_jobs", "Schedules", self._n_schedules),
            ("webhooks", "Webhooks", self._hooks["total"]),
            ("webhooks_enabled", "Webhooks that are told", self._hooks["enabled"]),
            ("storage_degraded", "1 while the data file cannot be written", int(degraded)),
            ("unflushed_changes", "Changes that are not on disk yet", broker.unflushed),
            ("memory_structures_bytes", "Memory of the structures, without payloads", broker.engine.memory()),
        ):
            yield GaugeMetricFamily(f"bunqueue_{name}", help_, value)
        sizes = GaugeMetricFamily("bunqueue_collection_size", "Entries of inner structures", labels=["name"])
        for name, n in broker.sizes().items():
            sizes.add_metric([name], n)
        yield sizes
        if broker.backups is not None:
            yield from _of_backups(broker.backups())
        yield from self._of_queues()

    def _of_queues(self) -> Iterator[Metric]:
        """The oldest queues up to the bound; how many there are says how many are left out."""
        engine = self._broker.engine
        names = engine.queue_names()
        shown = names[: self._most_queues]
        for name, help_, n in (
            ("registered", "Queues", len(names)),
            ("exported", "Queues with figures of their own here", len(shown)),
            ("omitted", "Queues without", len(names) - len(shown)),
        ):
            yield GaugeMetricFamily(f"bunqueue_queues_{name}", help_, n)
        gauges = {
            state: GaugeMetricFamily(
                f"bunqueue_queue_jobs_{_label(state)}", f"Of a queue: {help_}", labels=["queue"]
            )
            for state, help_ in _STATES
        }
        paused = GaugeMetricFamily("bunqueue_queue_paused", "1 while a queue is paused", labels=["queue"])
        ended = {
            kind: CounterMetricFamily(
                f"bunqueue_queue_jobs_{kind}", f"Jobs of a queue that {kind}, over restarts", labels=["queue"]
            )
            for kind in ("completed", "failed")
        }
        for name in shown:
            queue = engine.queue(name)
            assert queue is not None
            numbers = (queue.n_ready, queue.n_delayed, queue.n_active, queue.n_completed, queue.n_failed)
            for gauge, n in zip(gauges.values(), numbers, strict=True):
                gauge.add_metric([name], n)
            paused.add_metric([name], int(queue.paused))
            ended["completed"].add_metric([name], queue.completions.total)
            ended["failed"].add_metric([name], queue.failures.total)
        yield from (*gauges.values(), paused, *ended.values())


def _of_backups(figures: Mapping[str, float]) -> Iterator[Metric]:
    outcomes = CounterMetricFamily(
        "bunqueue_backups", "Backups of the server's schedule since the start", labels=["outcome"]
    )
    for outcome in ("success", "failure"):
        outcomes.add_metric([outcome], figures[outcome])
    yield outcomes
    for name, help_ in (
        ("running", "1 while a backup is looked for or made"),
        (
            "last_success_seconds",
            "When the newest known backup was made, since the epoch; 0 for none",
        ),
    ):
        yield GaugeMetricFamily(f"bunqueue_backup_{name}", help_, figures[name])


def _label(state: str) -> str:
    # A gauge beside the counter of the same word would be one family for a reader.
    return {"completed": "retained", "failed": "dlq"}.get(state, state)


def _histogram(kind: str, counts: list[int], seconds: float) -> HistogramMetricFamily:
    n = 0
    buckets = []
    for count, bound in zip(counts, (*LATENCY_BOUNDS_MS, None), strict=True):
        n += count
        buckets.append(("+Inf" if bound is None else repr(bound / 1000), n))
    return HistogramMetricFamily(
        f"bunqueue_{kind}_duration_seconds", f"Time that the engine took for a {kind}", buckets, seconds
    )


def exposition(
    broker: Broker,
    workers: Mapping[str, int],
    hooks: Mapping[str, int],
    n_schedules: int,
    most_queues: int,
) -> str:
    """Return the figures as text; those of single queues for at most so many queues."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(broker, workers, hooks, n_schedules, most_queues))
    return generate_latest(registry).decode()
