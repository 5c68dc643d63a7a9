"""Case C037: waiting for a result always ends, with the right value or the error that says why."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from qclient import (
    ClosedError,
    JobFailedError,
    JobLostError,
    Queue,
    UnrecoverableError,
    WaitTimeout,
    Worker,
)
from qclient.client import Client
from qclient.url import resolve


def until(look: Callable[[], bool]) -> None:
    """Look again and again, with a pause, until it holds."""
    bound = time.monotonic() + 60
    while not look():
        assert time.monotonic() < bound
        time.sleep(0.002)


def waiters(url: str) -> int:
    """Requests that wait in the engine, seen through a connection of its own."""
    client = Client(resolve(url))
    try:
        collections = client.call("DashboardOverview")["data"]["collections"]
        return int(collections["waits"])
    finally:
        client.close()


def test_c037_waits_before_during_and_after_the_end(engine_url: str, name: str) -> None:
    n = 400
    seen: Counter[str] = Counter()

    def one(queue: Queue, i: int) -> None:
        keep = i % 2 == 0
        job = queue.add("n", i, remove_on_complete=not keep)
        if i % 5 == 4:  # some look when it may be over, and gone
            until(lambda: queue.counts().waiting <= 50)
        result = job.result(60)
        if result is None:  # completed and gone before anybody waited: that is known, the value is not
            assert not keep
            seen["gone"] += 1
        else:
            assert result == i
            seen["value"] += 1

    with Queue(name, engine_url) as queue:
        with Worker(queue, lambda job: job.data, concurrency=8), ThreadPoolExecutor(16) as pool:
            for future in [pool.submit(one, queue, i) for i in range(n)]:
                future.result(120)
        assert seen.total() == n
        assert seen["value"] >= n / 2
        assert queue.counts().completed == n / 2
    assert waiters(engine_url) == 0


def test_c037_a_job_that_was_removed_on_completion_has_completed(engine_url: str, name: str) -> None:
    with Queue(name, engine_url) as queue:
        job = queue.add("n", 5, remove_on_complete=True)
        with Worker(queue, lambda job: job.data):
            until(lambda: not job.exists())
        assert job.result(60) is None
        assert queue.wait(job.id, 60) is None
        assert job.wait(60)


def test_c037_waits_that_find_no_result(engine_url: str, name: str) -> None:
    def fail(job: Any) -> None:
        raise UnrecoverableError("no luck")

    with Queue(name, engine_url) as queue:
        with pytest.raises(JobLostError):
            queue.wait("no-such-job", 60)
        queue.pause()
        paused = queue.add("n")
        with pytest.raises(WaitTimeout, match="waiting after"):
            paused.result(0.05)
        waiting = threading.Thread(target=lambda: results.append(_outcome(paused.result)))
        results: list[str] = []
        waiting.start()
        until(lambda: waiters(engine_url) == 1)
        paused.remove()
        waiting.join(60)
        assert results == ["JobLostError"]
        queue.resume()
        failed = queue.add("n")
        gone = queue.add("n", remove_on_fail=True)
        with Worker(queue, fail):
            assert _outcome(failed.result) == "JobFailedError"
            assert _outcome(gone.result) in ("JobLostError", "JobFailedError")
        with pytest.raises(JobFailedError, match="no luck"):
            failed.result(1)
    assert waiters(engine_url) == 0


def _outcome(call: Any) -> str:
    try:
        return repr(call(60))
    except Exception as error:
        return type(error).__name__


def test_c037_a_wait_goes_on_over_a_reconnect(proxy: Any, tcp_url: str, name: str) -> None:
    results: list[str] = []
    with Queue(name, proxy.url) as queue, Queue(name, tcp_url) as straight:
        job = queue.add("n", "value")
        waits = [threading.Thread(target=lambda: results.append(_outcome(job.result))) for _ in range(8)]
        for wait in waits:
            wait.start()
        until(lambda: waiters(tcp_url) == 8)
        proxy.kill()
        with Worker(straight, lambda job: job.data):
            for wait in waits:
                wait.join(60)
    assert results == ["'value'"] * 8


def test_c037_closing_ends_every_wait(engine_url: str, name: str) -> None:
    results: list[str] = []
    queue = Queue(name, engine_url)
    job = queue.add("n", delay=3600)
    waits = [threading.Thread(target=lambda: results.append(_outcome(job.result))) for _ in range(50)]
    for wait in waits:
        wait.start()
    with Queue(name, engine_url):
        until(lambda: waiters(engine_url) == 50)
        queue.close()
        for wait in waits:
            wait.join(60)
        assert results == [ClosedError.__name__] * 50
        until(lambda: waiters(engine_url) == 0)  # a server learns of closed connections a moment later
