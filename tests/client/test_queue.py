"""Adding and reading, the same on every engine."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from qclient import (
    ClosedError,
    Counts,
    FlowProducer,
    JobFailedError,
    JobLostError,
    JobSpec,
    JobState,
    NotFoundError,
    Queue,
    QueueGroup,
    SerializationError,
    UnrecoverableError,
    WaitTimeout,
    Worker,
)


def test_add_and_read(engine_url: str, name: str) -> None:
    with Queue(name, engine_url) as queue:
        job = queue.add("mail", {"to": "a@example.org"}, priority=3, attempts=5)
        assert job.queue == name
        assert job.name == "mail"
        assert job.data == {"to": "a@example.org"}
        assert (job.priority, job.max_attempts, job.attempts_made) == (3, 5, 0)
        assert job.state is JobState.PRIORITIZED
        assert job.created_at is not None
        assert abs(datetime.now(UTC) - job.created_at) < timedelta(minutes=1)
        again = queue.get(job.id)
        assert again == job
        assert queue.get("no-such-job") is None
        assert queue.job(job.id).refresh().name == "mail"
        assert queue.counts() == Counts(prioritized=1)
        assert len(queue) == 1
        assert bool(queue)


def test_states(engine_url: str, name: str) -> None:
    with Queue(name, engine_url) as queue:
        later = queue.add("a", delay=3600)
        at = queue.add("a", run_at=datetime.now(UTC) + timedelta(hours=1))
        now = queue.add("a", run_at=datetime(2001, 1, 1, tzinfo=UTC))
        assert queue.state(later.id) == "delayed" == at.state
        assert queue.state(now.id) is JobState.WAITING
        assert queue.counts() == Counts(waiting=1, delayed=2)
        assert queue.returnvalue(now.id) is None
        for read in (queue.state, queue.returnvalue):
            with pytest.raises(NotFoundError):
                read("no-such-job")


def test_bulk_keeps_order_and_forms(engine_url: str, name: str) -> None:
    with Queue(name, engine_url) as queue:
        jobs = queue.add_bulk(
            [
                ("a", 1),
                ("b",),
                ("c", None, {"delay": 3600}),
                {"name": "d", "data": [1], "priority": 1},
                JobSpec("e", "x", {"job_id": f"{name}-e"}),
            ]
        )
        assert [job.name for job in jobs] == ["a", "b", "c", "d", "e"]
        assert [job.data for job in jobs] == [1, None, None, [1], "x"]
        assert jobs[4].id == f"{name}-e"
        assert queue.counts() == Counts(waiting=3, prioritized=1, delayed=1)
        assert queue.add_bulk([]) == []
        many = queue.add_bulk(("n", i) for i in range(2500))
        assert len({job.id for job in many}) == 2500
        assert [many[i].data for i in (0, 999, 1000, 2499)] == [0, 999, 1000, 2499]


def test_bulk_is_cut_by_bytes(engine_url: str, name: str) -> None:
    with Queue(name, engine_url) as queue:
        block = "x" * (3 << 20)
        jobs = queue.add_bulk(("n", block) for _ in range(12))
        assert queue.counts().waiting == 12
        assert len(jobs[11].data) == 3 << 20
        with pytest.raises(
            SerializationError, match=r"jobs\[1\]: data of \d+ bytes is too large; the limit is"
        ):
            queue.add_bulk([("n", 1), ("n", "x" * (11 << 20))])
        assert queue.counts().waiting == 12


def test_a_live_id_means_the_existing_job(engine_url: str, name: str) -> None:
    with Queue(name, engine_url) as queue:
        first = queue.add("a", 1, job_id=f"{name}/x")
        second = queue.add("a", 2, job_id=f"{name}/x")
        assert first == second
        assert second.data == 1
        assert len(queue) == 1


@pytest.mark.parametrize("value", [{1, 2}, object(), 2**70, datetime(2024, 1, 1), "\ud800", {"a": lambda: 0}])
def test_what_cannot_be_carried_is_refused_in_the_caller(engine_url: str, name: str, value: object) -> None:
    with Queue(name, engine_url) as queue:
        with pytest.raises(SerializationError):
            queue.add("a", value)
        assert queue.counts() == Counts()


def test_results(engine_url: str, name: str) -> None:
    def work(job: object) -> object:
        data = job.data  # type: ignore[attr-defined]
        if data == "bad":
            raise UnrecoverableError("no good")
        return data

    with Queue(name, engine_url) as queue:
        early = queue.add("a", {"n": [1, 2]})
        with pytest.raises(WaitTimeout):
            early.result(timeout=0.05)
        with Worker(name, work, engine_url, concurrency=4, poll_timeout=1):
            assert early.result(timeout=10) == {"n": [1, 2]}
            assert early.result(timeout=10) == {"n": [1, 2]}
            assert queue.add("a").result(timeout=10) is None
            assert queue.returnvalue(early.id) == {"n": [1, 2]}
            with pytest.raises(JobFailedError, match="no good") as failed:
                queue.add("a", "bad", attempts=5).result(timeout=10)
            assert failed.value.attempts == 1
        with pytest.raises(JobLostError):
            queue.job("no-such-job").result(timeout=1)
        [dead] = queue.dlq.list()
        assert (dead.job.data, dead.error) == ("bad", "no good")
        assert dead.job.state is JobState.FAILED
        assert dead.entered_at is not None
        assert queue.dlq.list(limit=1, offset=1) == []


def test_many_threads_share_one_queue(engine_url: str, name: str) -> None:
    errors: list[BaseException] = []

    def add(k: int) -> None:
        try:
            for i in range(25):
                queue.add("n", [k, i])
        except BaseException as exc:
            errors.append(exc)

    with Queue(name, engine_url) as queue:
        threads = [threading.Thread(target=add, args=(k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert len(queue) == 200


def test_close_ends_a_wait_in_another_thread(engine_url: str, name: str) -> None:
    queue = Queue(name, engine_url)
    job = queue.add("a")
    seen: list[BaseException] = []
    waiting = threading.Event()

    def wait() -> None:
        waiting.set()
        try:
            job.result()
        except BaseException as exc:
            seen.append(exc)

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait()
    queue.close()
    thread.join(10)
    assert not thread.is_alive()
    assert [type(exc) for exc in seen] == [ClosedError]
    with pytest.raises(ClosedError):
        queue.add("a")
    queue.close()


def test_a_queue_dropped_open_says_so(engine_url: str, name: str) -> None:
    queue = Queue(name, engine_url)
    queue.counts()
    with pytest.warns(ResourceWarning, match="was not closed"):
        del queue
    unused = Queue(name, engine_url)
    del unused
    flows, group = FlowProducer(engine_url), QueueGroup(name, engine_url)
    flows.results(["no-such-job"])
    group.names()
    with pytest.warns(ResourceWarning, match="<FlowProducer at .*> was not closed"):
        del flows
    with pytest.warns(ResourceWarning, match="<QueueGroup .*> was not closed"):
        del group


@pytest.mark.parametrize("levels", [508, 511, 512])
def test_data_are_read_back_at_every_depth_that_is_admitted(engine_url: str, name: str, levels: int) -> None:
    """What a payload is wrapped in does not count against its depth."""
    deep: Any = "x"
    for _ in range(levels):
        deep = [deep]
    with Queue(name, engine_url) as queue:
        job = queue.add("n", deep)
        found = queue.get(job.id)
        assert found is not None
        assert found.data == deep
        with Worker(name, lambda job: job.data, engine_url):
            assert job.result(timeout=20) == deep
        dead = queue.add("n", deep, attempts=1)
        with Worker(name, lambda job: 1 / 0, engine_url), pytest.raises(JobFailedError):
            dead.result(timeout=20)
        assert [entry.job.data for entry in queue.dlq.list()] == [deep]
        with pytest.raises(SerializationError, match="deeper"):
            queue.add("n", nested(513))


def nested(levels: int) -> Any:
    deep: Any = "x"
    for _ in range(levels):
        deep = [deep]
    return deep


def test_half_of_a_surrogate_pair_is_refused_in_names_and_ids(engine_url: str, name: str) -> None:
    with Queue(name, engine_url) as queue:
        for attempt in (
            lambda: queue.add("\ud800"),
            lambda: queue.add("n", job_id="\ud800"),
            lambda: queue.get("\ud800"),
            lambda: queue.state("\ud800"),
        ):
            with pytest.raises(SerializationError, match="surrogate"):
                attempt()
        with pytest.raises(SerializationError, match=r"jobs\[1\]"):
            queue.add_bulk([("ok", 1), ("\ud800", 1)])
        with pytest.raises(TypeError, match=r"jobs\[0\]"):
            queue.add_bulk([("a", 1, 5)])
        assert len(queue) == 0
