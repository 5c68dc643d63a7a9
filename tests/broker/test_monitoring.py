"""Figures of the broker: rates, times, dashboards, and the text for Prometheus."""

from __future__ import annotations

import re
import types
from typing import Any

import pytest
from broker_talk import Talk

from qcore.broker import open_broker
from qcore.broker.core import Broker
from qcore.broker.handlers.monitoring import percentile
from qcore.clock import ManualClock
from qcore.limits import LATENCY_BOUNDS_MS

SEED = bytes(range(16))


@pytest.fixture
def broker(clock: ManualClock) -> Broker:
    return open_broker(clock=clock, seed=SEED)


@pytest.fixture
def talk(broker: Broker) -> Talk:
    return Talk(broker)


def test_rates_are_a_moving_average_over_windows(broker: Broker, talk: Talk, clock: ManualClock) -> None:
    def look() -> tuple[float, float]:
        stats = talk.good("Stats")["stats"]
        return stats["pushPerSec"], stats["pullPerSec"]

    assert look() == (0, 0)
    clock.advance(1000)
    talk.good("PUSHB", queue="q", jobs=[{"name": "n"}] * 10)
    talk.good("PULLB", queue="q", count=3)
    assert look() == (10, 3)  # the first as it is
    clock.advance(99)
    talk.good("PUSHB", queue="q", jobs=[{"name": "n"}] * 10)
    assert look() == (10, 3)  # the window is not over
    clock.advance(901)
    assert look() == (10, 2.1)
    clock.advance(3000)
    assert look() == (7, 1.47)
    clock.advance(100)
    overview = talk.good("DashboardOverview")["data"]["throughput"]
    assert overview == {"pushPerSec": 4.9, "pullPerSec": 1.03, "completePerSec": 0, "failPerSec": 0}


class Slow(ManualClock):
    """Each reading takes a millisecond."""

    def now_ns(self) -> int:
        self.advance(1)
        return super().now_ns()


def test_the_time_of_a_feed_is_shared_by_its_commands() -> None:
    broker = open_broker(clock=Slow(), seed=SEED)
    talk = Talk(broker)
    talk.send({"cmd": "PUSH", "queue": "q", "name": "n"})
    talk.send(*[{"cmd": "PUSH", "queue": "q", "name": "n"}] * 3, {"cmd": "PULLB", "queue": "q", "count": 2})
    talk.send({"cmd": "Ping"}, {"cmd": "GetState", "id": "x"})
    ids = [job["id"] for reply in talk.replies() for job in reply.get("jobs", ())]
    talk.send({"cmd": "ACKB", "ids": ids}, {"cmd": "ACK", "id": "x"})
    talk.replies()
    took = broker.latencies()
    places = {
        name: {LATENCY_BOUNDS_MS[i]: n for i, n in enumerate(counts) if n}
        for name, (counts, _) in took.items()
    }
    assert places == {"push": {0.5: 3, 1: 1}, "pull": {0.5: 1}, "ack": {0.5: 2}}
    assert {name: round(seconds * 1e6) for name, (_, seconds) in took.items()} == {
        "push": 1750,
        "pull": 250,
        "ack": 1000,
    }
    latency = talk.good("DashboardOverview")["data"]["latency"]
    assert latency["averages"] == {"pushMs": 0.438, "pullMs": 0.25, "ackMs": 0.5}
    assert latency["percentiles"]["push"] == {"p50": 0.5, "p95": 1, "p99": 1}


def test_percentiles_answer_the_bound_of_their_bucket() -> None:
    assert percentile([0] * 16, 0.5) == 0
    assert percentile([99, 1, *[0] * 14], 0.99) == 0.1
    assert percentile([98, 2, *[0] * 14], 0.99) == 0.5
    assert percentile([0] * 15 + [1], 0.5) == 10_000


def test_totals_of_the_broker(broker: Broker, talk: Talk, clock: ManualClock) -> None:
    talk.good("PUSH", queue="q", name="n", jobId="a")
    talk.good("PULL", queue="q")
    clock.advance(40)
    talk.good("ACK", id="a")
    metrics = talk.good("Metrics")["metrics"]
    assert metrics["avgProcessingMs"] == 40
    assert (metrics["totalPushed"], metrics["totalPulled"], metrics["totalCompleted"]) == (1, 1, 1)


def some_jobs(talk: Talk) -> None:
    jobs: list[dict[str, Any]] = [{"name": "n", "data": i, "customId": f"w{i}"} for i in range(12)]
    talk.good("PUSHB", queue="q", jobs=jobs)
    talk.good("PUSH", queue="q", name="n", jobId="p", priority=3)
    talk.good("PUSH", queue="q", name="n", jobId="d", delay=50)
    talk.good("PULLB", queue="q", count=3)
    talk.good("ACK", id="p")
    talk.good("FAIL", id="w0", unrecoverable=True)


def test_dashboards_show_each_queue(broker: Broker, talk: Talk) -> None:
    some_jobs(talk)
    talk.good("PUSH", queue="a", name="n", jobId="x", data=b"\x00")
    talk.good("Pause", queue="a")
    assert talk.good("DashboardQueues")["data"]["queues"] == [
        {"name": "a", "waiting": 1, "prioritized": 0, "delayed": 0, "active": 0, "dlq": 0, "paused": True},
        {"name": "q", "waiting": 10, "prioritized": 0, "delayed": 1, "active": 1, "dlq": 1, "paused": False},
    ]
    shown = talk.good("DashboardQueue", queue="q", includeJobs=True, jobsLimit=2)["data"]
    assert shown["counts"]["totalCompleted"] == shown["counts"]["totalFailed"] == 1
    assert shown["priorityCounts"] == {"0": 11}
    assert [(one["id"], one["data"], one["attempts"]) for one in shown["dlqPreview"]] == [("w0", 0, 1)]
    assert {key: [job["id"] for job in jobs] for key, jobs in shown["jobs"].items()} == {
        "waiting": ["w10", "w11"],
        "active": ["w1"],
        "delayed": ["d"],
        "paused": [],
    }
    paused = talk.good("DashboardQueue", queue="a", includeJobs=True)["data"]
    assert paused["paused"] is True
    assert (paused["jobs"]["waiting"], [job["id"] for job in paused["jobs"]["paused"]]) == ([], ["x"])
    none = talk.good("DashboardQueue", queue="none", includeJobs=True)["data"]
    assert sum(none["counts"].values()) == 0
    assert broker.engine.queue("none") is None
    assert talk.refused("DashboardQueue", queue="q", jobsLimit=51) == "jobsLimit must be at most 50"
    assert talk.refused("DashboardQueue", queue="a b") == "Queue name contains invalid characters"


def test_defect_51_counts_have_one_meaning(broker: Broker, talk: Talk) -> None:
    """Lists, counts, dashboards and the text for Prometheus say the same, paused or not."""
    some_jobs(talk)
    talk.good("PUSHB", queue="q", jobs=[{"priority": 1}] * 4)
    talk.good("PUSHB", queue="q", jobs=[{"delay": 50}] * 119)
    talk.good("PUSHB", queue="q", jobs=[{"dependsOn": ["w11"]}] * 105)
    for paused in (False, True):
        if paused:
            talk.good("Pause", queue="q")
        counts = talk.good("GetJobCounts", queue="q")["counts"]
        assert counts == {
            k: v for k, v in talk.good("DashboardQueue", queue="q")["data"]["counts"].items() if k in counts
        }
        assert counts == {
            "waiting": 0 if paused else 10,
            "prioritized": 0 if paused else 4,
            "delayed": 120,
            "active": 1,
            "failed": 1,
            "completed": 1,
            "paused": 14 if paused else 0,
            "waiting-children": 105,
        }
        for state in counts:
            listed = talk.good("GetJobs", queue="q", state=state, limit=1000)["jobs"]
            assert len({job["id"] for job in listed}) == len(listed) == counts[state], state
        text = talk.good("Prometheus")["data"]["metrics"]
        for name, n in (("waiting", 14), ("delayed", 120), ("active", 1), ("retained", 1), ("dlq", 1)):
            assert f"bunqueue_jobs_{name} {n}.0\n" in text
            assert f'bunqueue_queue_jobs_{name}{{queue="q"}} {n}.0\n' in text


def samples(text: str) -> dict[str, float]:
    return {key: float(value) for key, value in re.findall(r"^(bunqueue\S*) (\S+)$", text, re.MULTILINE)}


def test_the_text_for_prometheus(broker: Broker, talk: Talk) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    some_jobs(talk)
    talk.good("RegisterWorker", name="w", queues=["q"], concurrency=7)
    talk.good("AddWebhook", url="https://example.com/", events=[])
    text = talk.good("Prometheus")["data"]["metrics"]
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert all(name.startswith("bunqueue_") for name in families)
    assert families["bunqueue_push_duration_seconds"].type == "histogram"
    got = samples(text)
    assert got["bunqueue_jobs_pushed_total"] == 14
    assert got["bunqueue_jobs_failed_total"] == 1
    assert got["bunqueue_worker_slots"] == 7
    assert got["bunqueue_webhooks_enabled"] == 1
    assert got["bunqueue_storage_degraded"] == 0
    assert got['bunqueue_push_duration_seconds_bucket{le="+Inf"}'] == 3
    assert got['bunqueue_queue_jobs_completed_total{queue="q"}'] == 1


def test_figures_of_single_queues_are_bounded(broker: Broker) -> None:
    talk = Talk(broker, settings=types.SimpleNamespace(max_metric_queues=3, tokens=()))
    for n in range(8):
        talk.good("PUSH", queue=f"q{n}", name="n")
    got = samples(talk.good("Prometheus")["data"]["metrics"])
    assert sum(key.startswith("bunqueue_queue_jobs_waiting{") for key in got) == 3
    assert got["bunqueue_queues_registered"] == 8
    assert got["bunqueue_queues_exported"] + got["bunqueue_queues_omitted"] == 8
    assert got["bunqueue_jobs_waiting"] == 8  # those left out count in the sums
