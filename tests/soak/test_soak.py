"""Small runs of the soak, and that its sums notice what they are there for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.soak import kills, mixed
from tests.soak.records import DONE, FAILED, RECORD, START, Life, Sums, add_up


def test_killed_workers_lose_no_job(tmp_path: Path) -> None:
    report = kills.run(tmp_path, jobs=1500, every_ms=300, seed=1, most_kills=6)
    assert report["kills"]


def test_a_mixed_load_adds_up(tmp_path: Path) -> None:
    report = mixed.Soak(tmp_path, seconds=4, rate=500, seed=1, sample_s=1, fill=1000).run()
    assert not report["problems"]
    assert report["jobs"] > 500
    assert report["jobs_to_fill"] >= 1000
    assert report["kills"] + report["graceful_ends"]
    assert all(n for kind, n in report["by_kind"].items() if kind != "custom"), report["by_kind"]


@pytest.mark.parametrize(
    ("per_minute", "jump", "flat"),
    [(0.0, 0.0, True), (0.02, 0.0, True), (0.13, 0.0, False), (0.0, 40.0, True), (-0.5, 0.0, True)],
    ids=["constant", "hardly", "as it once grew", "one moment", "shrinks"],
)
def test_growth_is_told_from_noise(per_minute: float, jump: float, flat: bool) -> None:
    noise = np.random.default_rng(1).normal(0, 0.3, 720)
    samples = [(5.0 * n, 55 + noise[n] + per_minute * n / 12 + jump * (n == 600)) for n in range(720)]
    found = mixed.flatness(samples)
    assert found["flat"] is flat
    assert found["per_hour"] == pytest.approx(60 * per_minute, abs=1.0)


def sums(tmp_path: Path, *workers: tuple[int, list[tuple[int, int, int]]]) -> Sums:
    """The sums of workers, each with the time of its kill (0: none) and its records."""
    lives = []
    for i, (killed, rows) in enumerate(workers):
        lives.append(Life(tmp_path / f"{i}", killed))
        lives[-1].path.write_bytes(np.array(rows, dtype=RECORD).tobytes())
    return add_up(lives)[0]


def test_runs_that_are_as_they_should_be(tmp_path: Path) -> None:
    found = sums(
        tmp_path,
        (50, [(1, 10, START), (2, 10, START), (1, 20, DONE), (3, 30, START)]),
        (0, [(2, 60, START), (2, 70, FAILED), (2, 80, START), (2, 90, DONE)]),
    )
    assert not found.problems
    assert (found.jobs, found.starts, found.done, found.failed) == (3, 5, 2, 1)
    assert (found.cut_off, found.ended_unseen) == (2, 1)


@pytest.mark.parametrize(
    ("workers", "named"),
    [
        (
            [(0, [(7, 10, START), (7, 20, DONE)]), (0, [(7, 30, START), (7, 40, DONE)])],
            "although it was done",
        ),
        ([(50, [(7, 10, START)]), (0, [(7, 40, START), (7, 45, DONE)])], "while the holder"),
        ([(0, [(7, 10, START)])], "was not killed"),
        ([(0, [(7, 10, DONE)])], "ends without a start"),
    ],
    ids=["done twice", "two holders", "never ended", "never started"],
)
def test_what_must_not_be_is_noticed(
    tmp_path: Path, workers: list[tuple[int, list[tuple[int, int, int]]]], named: str
) -> None:
    assert any(named in problem for problem in sums(tmp_path, *workers).problems)
