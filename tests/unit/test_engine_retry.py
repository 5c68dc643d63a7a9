"""Failures: what they cost, how long the next attempt waits, and what is kept of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qcore.engine.engine import Engine
from qcore.engine.table import EVENT_BITS

SEED = bytes(16)
NOW = 1_700_000_000_000
TABLE = json.loads((Path(__file__).parent.parent / "data" / "backoff.json").read_text())


@pytest.mark.parametrize("row", TABLE["rows"], ids=lambda row: f"{row['attempts']}-{row['backoff']['type']}")
def test_a_handler_that_always_fails(row: dict[str, Any]) -> None:
    engine = Engine(SEED)
    engine.listen("q", EVENT_BITS["failed"])
    backoff = row["backoff"]
    config = {"type": backoff["type"], "delay": backoff["delay_ms"], "maxDelay": backoff["max_delay_ms"]}
    job_id = engine.push(
        "q",
        None,
        NOW,
        attempts=row["attempts"],
        backoff_ms=backoff["delay_ms"],
        extra={"backoffConfig": {**config, "jitter": 0}},
    )
    now, runs, waits = NOW, 0, []
    while engine.state(job_id) != "failed":
        assert engine.pull("q", now - 1, 0) is None or now == NOW or waits[-1] == 0
        if engine.state(job_id) != "active":
            assert engine.pull("q", now, 0)[0] == job_id
        runs += 1
        engine.fail(job_id, now, error="no")
        if engine.state(job_id) != "failed":
            waits.append(engine.run_at_ms(job_id) - now)
            assert engine.state(job_id) == ("delayed" if waits[-1] else "waiting")
            now += waits[-1]
    assert runs == row["runs"] == engine.attempts(job_id)
    assert len(waits) == row["delays_total"]
    assert waits[: len(row["delays_ms"])] == row["delays_ms"]
    assert (waits[-1] if waits else None) == row["last_delay_ms"]
    ends = [data[:2] for _, _, _, _, data in engine.take_events()]
    assert ends == [("no", False)] * (runs - 1) + [("no", True)]
    assert engine.counts("q", now)["failed"] == 1


def test_two_jobs_do_not_share_one_sequence_of_jitter() -> None:
    engine = Engine(SEED)
    ids = engine.push_many("q", [b"\xc0"] * 50, NOW)
    engine.pull_many("q", 50, NOW, 0)
    for job_id in ids:
        engine.fail(job_id, NOW)
    waits = {engine.run_at_ms(job_id) - NOW for job_id in ids}
    assert len(waits) > 40
    assert all(1000 <= wait <= 3000 for wait in waits)


def test_an_unrecoverable_failure_uses_one_attempt_and_ends_the_job() -> None:
    engine = Engine(SEED)
    job_id = engine.push("q", None, NOW, attempts=100)
    engine.pull("q", NOW, 0)
    engine.fail(job_id, NOW, unrecoverable=True)
    assert (engine.state(job_id), engine.attempts(job_id)) == ("failed", 1)


@pytest.mark.parametrize(
    ("limit", "kept"), [(None, 10), (0, 0), (3, 3), (2.5, 2), (-1, 0), (1e300, 50), (2**62, 50)]
)
def test_lines_of_a_trace_are_cut_to_any_limit(limit: float | None, kept: int) -> None:
    extra: dict[str, Any] = {} if limit is None else {"stackTraceLimit": limit}
    engine = Engine(SEED)
    job_id = engine.push("q", None, NOW, extra=extra)
    engine.pull("q", NOW, 0)
    engine.fail(job_id, NOW, stack=[f"line {n}" for n in range(50)])
    assert engine.state(job_id) == "delayed"
    assert extra.get("stacktrace", []) == ([f"line {n}" for n in range(kept)] if extra else [])
    engine._check()


def test_the_history_of_a_job_is_bounded() -> None:
    extra: dict[str, Any] = {}
    engine = Engine(SEED)
    job_id = engine.push("q", None, NOW, attempts=1000, backoff_ms=0, extra=extra | {"tags": []})
    history: dict[str, Any] = {"keep": 1}
    other = engine.push("q", None, NOW, attempts=1000, backoff_ms=0, extra=history)
    for _ in range(300):
        engine.pull_many("q", 2, NOW, 0)
        engine.fail(other, NOW)
        engine.fail(job_id, NOW)
    assert len(history["timeline"]) == 20
    assert len(history["attemptRecords"]) == 20
    assert history["attemptRecords"][-1]["attempt"] == 300
