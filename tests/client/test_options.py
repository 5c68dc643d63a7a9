"""Job options: names, units and refusals."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from qclient import Backoff, ConfigError, Keep, Queue, Worker
from qclient.options import OPTION_NAMES, JobOptions, to_wire


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({}, {}),
        ({"priority": 5}, {"priority": 5}),
        ({"delay": 1.5}, {"delay": 1500}),
        ({"delay": 0}, {}),
        ({"delay": timedelta(days=300)}, {"delay": 25_920_000_000.0}),
        ({"attempts": 1}, {"maxAttempts": 1}),
        ({"attempts": None}, {"maxAttempts": 2_147_483_647}),
        ({"backoff": 2}, {"backoff": 2000}),
        (
            {"backoff": Backoff.fixed(0.5)},
            {"backoff": {"type": "fixed", "delay": 500, "maxDelay": 500, "jitter": 0.0}},
        ),
        (
            {"backoff": Backoff.exponential(1, max=60)},
            {"backoff": {"type": "exponential", "delay": 1000, "maxDelay": 60_000}},
        ),
        ({"timeout": 30, "ttl": 60}, {"timeout": 30_000, "ttl": 60_000}),
        ({"job_id": "a/b c"}, {"jobId": "a/b c"}),
        ({"lifo": True, "durable": True}, {"lifo": True, "durable": True}),
        ({"lifo": False, "remove_on_complete": False}, {}),
        ({"remove_on_complete": True, "remove_on_fail": 10}, {"removeOnComplete": True, "removeOnFail": 10}),
        ({"remove_on_complete": Keep(age=60, count=5)}, {"removeOnComplete": {"age": 60.0, "count": 5}}),
        ({"timestamp": datetime(2024, 1, 1, tzinfo=UTC)}, {"timestamp": 1_704_067_200_000.0}),
        ({"run_at": datetime(2001, 1, 1, tzinfo=UTC)}, {"delay": 0}),
        ({"stack_trace_limit": 0}, {"stackTraceLimit": 0}),
    ],
)
def test_wire_form(options: dict[str, Any], fields: dict[str, Any]) -> None:
    out = to_wire(options)
    assert out == fields
    assert {k: type(v) for k, v in out.items()} == {k: type(v) for k, v in fields.items()}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"priorty": 1}, "did you mean 'priority'"),
        ({"delay_ms": 1}, "unknown job option 'delay_ms'"),
        ({"delay": 1, "run_at": datetime(2030, 1, 1, tzinfo=UTC)}, "both given"),
        ({"run_at": datetime(2030, 1, 1)}, "time zone"),
        ({"attempts": 0}, "1 to 2147483647"),
        ({"priority": float("nan")}, "finite"),
        ({"delay": -1}, "negative"),
        ({"job_id": ""}, "empty"),
    ],
)
def test_refusals(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        to_wire(options)


@pytest.mark.parametrize(
    "options",
    [{"delay": "5m"}, {"attempts": 1.0}, {"attempts": True}, {"lifo": 1}, {"job_id": 5}, {"tags": "a"}],
)
def test_nothing_is_coerced(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        to_wire(options)


def test_the_typed_options_are_the_served_ones() -> None:
    assert JobOptions.__optional_keys__ == OPTION_NAMES


def test_refused_before_anything_is_opened() -> None:
    queue = Queue("q", "tcp://127.0.0.1:1")
    with pytest.raises(ConfigError):
        queue.add("a", priorty=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"jobs\[1\]: unknown"):
        queue.add_bulk([("a",), ("b", None, {"tim": 1})])
    with pytest.raises(ConfigError, match="did you mean 'concurrency'"):
        Worker("q", print, concurency=3)
    with pytest.raises(ConfigError, match="below half"):
        Worker("q", print, lock_duration=1, heartbeat_interval=0.5)
    for bad in ("", "a b", "x" * 257, "ä"):
        with pytest.raises(ConfigError):
            Queue(bad)
