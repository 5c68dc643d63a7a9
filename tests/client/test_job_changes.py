"""Looking at jobs and changing them, the same on every engine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from qclient import (
    ConfigError,
    Counts,
    JobState,
    LimitError,
    NotFoundError,
    Queue,
    SerializationError,
    StateError,
    UnrecoverableError,
    Worker,
)


def test_lists(engine_url: str, name: str) -> None:
    with Queue(name, engine_url) as queue:
        created = datetime(2026, 1, 1, tzinfo=UTC)
        for i in range(7):
            delay = timedelta(days=36500) if i == 6 else 0
            queue.add("n", i, timestamp=created + timedelta(seconds=i), priority=i % 2, delay=delay)
        assert [job.data for job in queue.jobs()] == [6, 5, 4, 3, 2, 1, 0]
        assert [job.data for job in queue.jobs("prioritized", asc=True)] == [1, 3, 5]
        assert [job.data for job in queue.jobs("waiting", "delayed", offset=1, limit=2)] == [4, 2]
        assert queue.jobs(JobState.ACTIVE) == []
        assert [job.data for job in queue.iter_jobs(chunk=2)] == list(range(7))
        assert queue.counts_per_priority() == {0.0: 4, 1.0: 3}
        assert queue.jobs("delayed")[0].state is JobState.DELAYED
        queue.pause()
        paused = queue.is_paused
        assert len(queue.jobs("paused")) == 6
        queue.resume()
        assert (paused, queue.is_paused) == (True, False)
        with pytest.raises(ConfigError, match="did you mean 'waiting'"):
            queue.jobs("wating")


def test_changes_of_a_queued_job(engine_url: str, name: str) -> None:
    with Queue(name, engine_url) as queue:
        job = queue.add("n", {"a": 1}, delay=3600, tags=["x"])
        assert (job.tags, job.parent_id, job.children_ids, job.depends_on) == (["x"], None, [], [])
        job.update_data({"b": b"\x00"})
        assert job.change_delay(timedelta(hours=2))
        job.refresh()
        assert job.data == {"b": b"\x00"}
        assert job.run_at is not None
        assert job.run_at - datetime.now(UTC) > timedelta(minutes=110)
        assert job.promote()
        assert not job.promote()
        assert not queue.promote(job.id)
        assert job.change_priority(7, lifo=True)
        assert job.refresh().state is JobState.PRIORITIZED
        job.log("one")
        job.log("two", "warn")
        assert [(line.level, line.message) for line in job.logs()] == [("info", "one"), ("warn", "two")]
        assert [line.message for line in job.logs(offset=1, limit=5)] == ["two"]
        job.clear_logs(keep=1)
        assert [line.message for line in job.logs()] == ["two"]
        with pytest.raises(StateError, match="only failed and completed jobs are retried"):
            job.retry()
        assert not job.done()
        assert not job.wait(0.01)
        job.discard()
        assert job.done()
        assert job.wait()
        assert job.refresh().state is JobState.FAILED
        assert not job.change_priority(1)
        assert not job.change_delay(1)
        with pytest.raises(StateError):
            job.update_data(1)
        job.retry()
        assert job.refresh().state is JobState.PRIORITIZED
        assert job.remove()
        assert not job.remove()
        for gone in (job.discard, job.retry):
            with pytest.raises(NotFoundError):
                gone()


def test_why_a_job_is_not_started_over(engine_url: str, name: str) -> None:
    with Queue(name, engine_url) as queue:
        needed = queue.add("n")
        with Worker(queue, lambda job: 1):
            assert needed.wait(60)
        reader = queue.add("n", depends_on=[needed], delay=3600)
        with pytest.raises(StateError, match=r"is completed .*: a job .* needs its result$"):
            needed.retry()
        reader.remove()
        needed.retry()
        keyed = queue.add("n", dedup="key")
        keyed.discard()
        queue.add("n", dedup="key")
        with pytest.raises(StateError, match=r"is failed .*: another job holds its unique key$"):
            keyed.retry()


def test_removing_and_starting_over(engine_url: str, name: str) -> None:
    def process(job: Any) -> Any:
        if job.data == "fails":
            raise UnrecoverableError("no")
        return job.data

    with Queue(name, engine_url) as queue:
        fails, works = queue.add("n", "fails"), queue.add("n", "works")
        with Worker(queue, process):
            assert fails.wait(60)
            assert queue.wait(works.id, 60) == "works"
        waits = queue.add("n", delay=3600)
        with pytest.raises(StateError, match="is completed; only queued and failed"):
            queue.remove(works.id)
        with pytest.raises(StateError, match="is delayed"):
            queue.retry(waits.id)
        assert queue.remove(fails.id, waits.id, "no-such-job") == 2
        queue.retry(works.id)
        assert queue.state(works.id) is JobState.WAITING
        with Worker(queue, process):
            assert works.wait(60)
        assert queue.retry_all("completed", before=datetime.now(UTC) - timedelta(hours=1)) == 0
        assert queue.retry_all("completed", limit=5) == 1
        works.discard()
        assert queue.retry_all(before=datetime.now(UTC) - timedelta(hours=1)) == 0
        assert queue.retry_all(limit=5) == 1
        assert queue.counts() == Counts(waiting=1)


def test_emptying_a_queue(engine_url: str, name: str) -> None:
    with Queue(name, engine_url) as queue:
        queue.add_bulk([("n", i, {"delay": 3600 if i < 2 else 0}) for i in range(6)])
        assert queue.promote_all(limit=1) == 1
        assert queue.client.call("PULL", {"queue": name, "owner": "o"})["job"] is not None
        assert queue.clean(3600, state="waiting") == []
        assert len(queue.clean(0, state="waiting", limit=2)) == 2
        assert queue.drain() == 3
        with pytest.raises(StateError, match="1 jobs are active"):
            queue.obliterate()
        queue.obliterate(force=True)
        assert queue.counts() == Counts()
        queue.obliterate()
        with pytest.raises(ConfigError, match="state must be one of"):
            queue.clean(0, state="active")


def test_a_running_job_seen_from_outside(engine_url: str, name: str) -> None:
    with Queue(name, engine_url) as queue:
        job = queue.add("n")
        assert queue.progress(job.id) == 0
        assert queue.client.call("PULL", {"queue": name})["job"]["id"] == job.id
        job.set_progress(40, "half")
        assert (job.refresh().progress, job.progress_message) == (40, "half")
        assert queue.progress(job.id) == 40
        with pytest.raises(StateError, match="is active"):
            job.remove()
        with Worker(queue, lambda job: None, name="w1") as worker:
            queue.add("n").result(60)
            [info] = queue.workers()
            assert (info.name, info.queues, info.concurrency, info.status) == ("w1", (name,), 1, "active")
            assert worker is not None
        seen = queue.metrics("completed", minutes=5)
        assert (seen.total, seen.minutes[0]) == (1, 1)
        assert seen.latest is not None
        assert queue.metrics("failed").total == 0
        assert queue.trim_events(1) > 0
        assert queue.trim_events(1) == 0


MIB = 1 << 20


def test_c036_many_large_jobs_go_and_come_in_pieces(engine_url: str, name: str) -> None:
    """200 jobs of 1 MiB are added, listed and done in order; what fits into no frame is named."""
    with Queue(name, engine_url) as queue:
        jobs = queue.add_bulk([("n", bytes([i]) * MIB) for i in range(200)])
        with pytest.raises(SerializationError, match=r"^jobs\[1\]: data of 11534\d\d\d bytes"):
            queue.add_bulk([("n", 1), ("n", b"x" * (11 * MIB)), ("n", 3)])
        assert len(queue) == 200
        with pytest.raises(LimitError, match="ask for fewer"):
            queue.jobs(limit=100)
        assert [job.data[:1] for job in queue.iter_jobs()] == [bytes([i]) for i in range(200)]
        done = []
        with Worker(queue, lambda job: done.append(job.data[0]), concurrency=1, batch_size=50):
            assert jobs[-1].wait(60)
        assert done == list(range(200))


def test_c036_a_pull_of_large_jobs_comes_in_replies_that_fit(engine_url: str, name: str) -> None:
    """50 jobs of 2 MiB for one pull, and results of the same size."""
    with Queue(name, engine_url) as queue:
        jobs = queue.add_bulk([("n", bytes([i]) * (2 * MIB)) for i in range(50)])
        with Worker(queue, lambda job: job.data, concurrency=50, batch_size=50):
            assert [job.result(60)[:1] for job in jobs] == [bytes([i]) for i in range(50)]
            assert len(jobs[49].result()) == 2 * MIB


def test_c036_an_add_that_is_too_large_harms_none_beside_it(engine_url: str, name: str) -> None:
    """Adds of many threads share frames; the one that fits into none fails by itself."""
    with Queue(name, engine_url) as queue, ThreadPoolExecutor(16) as threads:
        adds = [threads.submit(queue.add, "n", bytes(11 * MIB if i == 7 else 1000)) for i in range(100)]
        for i, add in enumerate(adds):
            if i == 7:
                with pytest.raises(SerializationError, match="too large"):
                    add.result(60)
            else:
                assert len(add.result(60).data) == 1000
        assert len(queue) == 99
