"""Acknowledgements: the widths of batches, and that no wave waits for the timer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any

import pytest

from qclient import Counts, JobContext, Queue, Worker

# The timer is out of reach: whatever ends a wave in these tests, it is not the timer.
NEVER = {"ack_interval": 600}


def drain(name: str, url: str, jobs: int, fn: Any, **options: Any) -> Any:
    done = threading.Semaphore(0)
    worker = Worker(name, fn, url, **options)
    worker.on("completed", lambda job, value: done.release())
    worker.on("failed", lambda job, exc: done.release())
    with worker:
        for _ in range(jobs):
            assert done.acquire(timeout=30)
        return worker.stats()


async def nothing(job: JobContext) -> None:
    return None


@pytest.mark.parametrize("concurrency", [1, 2, 4, 10])
@pytest.mark.parametrize("batch_size", [1, 2, 10, 20])
def test_widths_are_exact(proxy: Any, tcp_url: str, name: str, concurrency: int, batch_size: int) -> None:
    n = 201
    with Queue(name, tcp_url) as queue:
        queue.add_bulk(("n",) for _ in range(n))
        stats = drain(name, proxy.url, n, nothing, concurrency=concurrency, batch_size=batch_size, **NEVER)
        assert queue.counts() == Counts(completed=n)
    widths = [len(frame["ids"]) for frame in proxy.commands("ACKB")]
    wide = min(concurrency, batch_size)
    expected = Counter({wide: n // wide})
    if n % wide:
        expected[n % wide] += 1
    assert Counter(widths) == expected
    assert stats.fallback_flushes == 0
    assert stats.mean_ack_width == pytest.approx(n / len(widths))


def test_one_at_a_time_never_waits(proxy: Any, tcp_url: str, name: str) -> None:
    with Queue(name, tcp_url) as queue:
        queue.add_bulk(("n",) for _ in range(60))
        drain(name, proxy.url, 60, nothing, concurrency=1, batch_size=10, **NEVER)
    assert [len(frame["ids"]) for frame in proxy.commands("ACKB")] == [1] * 60


def test_threads_make_whole_waves_too(tcp_url: str, name: str) -> None:
    with Queue(name, tcp_url) as queue:
        queue.add_bulk(("n",) for _ in range(200))
        stats = drain(name, tcp_url, 200, lambda job: None, concurrency=8, batch_size=20, **NEVER)
    assert stats.fallback_flushes == 0
    assert stats.completed == 200


def test_failures_leave_the_frontier(tcp_url: str, name: str) -> None:
    """The last successes of a wave go when its failures are known, not when a timer ends."""

    async def work(job: JobContext) -> None:
        await asyncio.sleep(0.01 * (job.data % 4))
        if job.data % 4 == 3:
            raise ValueError("slowest of its wave")

    with Queue(name, tcp_url) as queue:
        queue.add_bulk(("n", i, {"attempts": 1}) for i in range(40))
        stats = drain(name, tcp_url, 40, work, concurrency=4, batch_size=10, **NEVER)
    assert (stats.completed, stats.failed, stats.fallback_flushes) == (30, 10, 0)


@pytest.mark.parametrize("how", ["pause", "concurrency", "rate_limit"])
def test_a_setter_that_shrinks_the_frontier_flushes(tcp_url: str, name: str, how: str) -> None:
    """Finished jobs beside a buffer that may not start any more are sent at the setter."""
    release = asyncio.Event()
    finished = threading.Event()
    done = threading.Event()

    async def work(job: JobContext) -> None:
        if job.data == 1:
            await release.wait()

    with Queue(name, tcp_url) as queue:
        queue.add_bulk(("n", i) for i in range(2))
        worker = Worker(name, work, tcp_url, concurrency=2, batch_size=2, **NEVER)
        worker.on("completed", lambda job, value: (finished if job.data == 0 else done).set())
        with worker:
            while worker.stats().waiting_ack != 1:
                time.sleep(0.005)
            assert not finished.is_set()
            if how == "pause":
                worker.pause()
            elif how == "rate_limit":
                worker.rate_limit(0.01)
            else:
                worker.concurrency = 1
            # The other job still runs and can reach the batch: nothing is sent yet.
            assert worker._control is not None
            worker._control.call_soon(release.set)
            assert finished.wait(20)
            assert done.wait(20)
            assert worker.stats().fallback_flushes == 0


def test_the_timer_serves_a_slow_job_beside_fast_ones(tcp_url: str, name: str) -> None:
    release = threading.Event()
    fast = threading.Event()

    def work(job: JobContext) -> None:
        if job.data == "slow":
            release.wait(30)

    with Queue(name, tcp_url) as queue:
        queue.add_bulk([("n", "slow"), ("n", "fast")])
        worker = Worker(name, work, tcp_url, concurrency=2, ack_interval=0.01)
        worker.on("completed", lambda job, value: fast.set() if job.data == "fast" else None)
        with worker:
            assert fast.wait(20)
            assert worker.stats().fallback_flushes == 1
            release.set()


def test_results_travel_in_their_places(tcp_url: str, name: str) -> None:
    async def work(job: JobContext) -> Any:
        return None if job.data % 3 == 0 else {"n": job.data}

    with Queue(name, tcp_url) as queue:
        jobs = queue.add_bulk(("n", i) for i in range(30))
        drain(name, tcp_url, 30, work, concurrency=10, batch_size=10)
        values = [queue.returnvalue(job.id) for job in jobs]
    assert values == [None if i % 3 == 0 else {"n": i} for i in range(30)]


def test_large_results_are_split_over_frames(proxy: Any, tcp_url: str, name: str) -> None:
    async def work(job: JobContext) -> Any:
        return b"x" * (5 << 20)

    with Queue(name, tcp_url) as queue:
        queue.add_bulk(("n",) for _ in range(8))
        drain(name, proxy.url, 8, work, concurrency=8, batch_size=8)
        assert queue.counts() == Counts(completed=8)
    widths = [len(frame["ids"]) for frame in proxy.commands("ACKB")]
    assert sum(widths) == 8
    assert max(widths) <= 3
