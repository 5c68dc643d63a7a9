"""Connections that break, freeze or never were, and forks."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from qclient import (
    AuthError,
    ClosedError,
    ConnectionLost,
    Counts,
    ForkedError,
    JobContext,
    Queue,
    Worker,
    shutdown_engine,
)


def cut_once(command: str) -> Any:
    """Break the connection at the first ``command``, before its reply."""
    seen: list[int] = []

    def on_request(request: dict[str, Any]) -> str | None:
        if request["cmd"] == command and not seen:
            seen.append(1)
            return "cut"
        return None

    return on_request


def test_an_add_without_id_is_not_repeated(proxy: Any, name: str) -> None:
    with Queue(name, proxy.url) as queue:
        queue.counts()
        proxy.on_request = cut_once("PUSH")
        with pytest.raises(ConnectionLost) as lost:
            queue.add("n")
        assert lost.value.maybe_applied
        assert queue.counts() == Counts(waiting=1)


def test_an_add_with_id_is_repeated(proxy: Any, name: str) -> None:
    with Queue(name, proxy.url) as queue:
        queue.counts()
        proxy.on_request = cut_once("PUSH")
        job = queue.add("n", job_id=f"{name}-1")
        assert len(proxy.commands("PUSH")) == 2
        assert queue.counts() == Counts(waiting=1)
        assert job.refresh().id == f"{name}-1"


@pytest.mark.parametrize("bulk", [False, True])
def test_a_repeated_add_knows_its_job_that_has_finished_meanwhile(
    proxy: Any, tcp_url: str, name: str, bulk: bool
) -> None:
    """C034: the reply was lost; by the time of the second try the job is done."""
    with Queue(name, tcp_url) as direct:
        direct.client.call("PUSH", {"queue": name, "jobId": f"{name}-1"})
        direct.client.call("PULL", {"queue": name})
        direct.client.call("ACK", {"id": f"{name}-1"})
        before = direct.counts()
        assert before == Counts(completed=1)

        def on_request(request: dict[str, Any]) -> str | None:
            if request["cmd"] not in ("PUSH", "PUSHB") or "resentSince" in request:
                return None
            applied.append(request["cmd"])
            return "cut"

        applied: list[str] = []
        finished = threading.Event()

        def finish() -> None:
            while not finished.is_set():
                got = direct.client.call("PULL", {"queue": name, "timeout": 100})["job"]
                if got is not None:
                    direct.client.call("ACK", {"id": got["id"], "result": "once"})
                    done.append(got["id"])

        done: list[str] = []
        worker = threading.Thread(target=finish)
        with Queue(name, proxy.url) as queue:
            queue.counts()
            proxy.on_request = on_request
            worker.start()
            try:
                # The id of a finished job is free: this is a new generation, and it is run once.
                if bulk:
                    queue.add_bulk([("n", None, {"job_id": f"{name}-1"})])
                else:
                    queue.add("n", job_id=f"{name}-1")
                assert direct.job(f"{name}-1").result(timeout=10) == "once"
            finally:
                finished.set()
                worker.join()
            assert len(applied) == 1
            assert len(done) == 1


def test_reads_are_repeated(proxy: Any, name: str) -> None:
    with Queue(name, proxy.url) as queue:
        queue.add("n")
        proxy.on_request = cut_once("GetJobCounts")
        assert queue.counts() == Counts(waiting=1)
        proxy.kill()
        assert queue.counts() == Counts(waiting=1)


@pytest.mark.parametrize("command", ["PULLB", "ACKB", "FAIL", "RegisterWorker", "JobHeartbeatB"])
def test_no_job_is_lost_and_none_completed_twice(proxy: Any, tcp_url: str, name: str, command: str) -> None:
    completed: list[str] = []
    lock = threading.Lock()

    def work(job: JobContext) -> None:
        if job.data == 5 and job.attempt == 1:
            raise ValueError("once")

    with Queue(name, tcp_url) as queue:
        queue.add_bulk(("n", i, {"backoff": 0}) for i in range(50))
        proxy.on_request = cut_once(command)
        worker = Worker(name, work, proxy.url, concurrency=4, lock_duration=1, poll_timeout=0.5)

        def note(job: JobContext, value: object) -> None:
            with lock:
                completed.append(job.id)

        worker.on("completed", note).on("error", lambda exc, context: None)
        with worker:
            end = time.monotonic() + 30
            while queue.counts() != Counts(completed=50):
                assert time.monotonic() < end, queue.counts()
                time.sleep(0.02)
        assert queue.counts() == Counts(completed=50)
    assert len(completed) == len(set(completed))


def test_a_worker_survives_many_broken_connections(proxy: Any, tcp_url: str, name: str) -> None:
    errors: list[str] = []
    with Queue(name, tcp_url) as queue:
        worker = Worker(name, lambda job: job.data, proxy.url, concurrency=4)
        worker.on("error", lambda exc, context: errors.append(context))
        with worker:
            for i in range(10):
                assert queue.add("n", i).result(timeout=30) == i
                proxy.kill()
            assert queue.add("n", 10).result(timeout=30) == 10
            assert worker.stats().reconnects == 10
        assert errors.count("connection") == 10


def test_close_while_the_server_is_away(proxy: Any, name: str) -> None:
    """C044: gone before, during, and while reconnecting."""
    worker = Worker(name, print, proxy.url)
    worker.on("error", lambda *args: None)
    worker.start()
    proxy.stop_listening()
    proxy.kill()
    began = time.monotonic()
    worker.close()
    assert time.monotonic() - began < 30
    assert not [t for t in threading.enumerate() if t.name.startswith("qclient")]


def test_close_of_a_frozen_link_with_a_job_in_hand(proxy: Any, tcp_url: str, name: str) -> None:
    started, release = threading.Event(), threading.Event()

    def work(job: JobContext) -> None:
        started.set()
        release.wait(30)

    with Queue(name, tcp_url) as queue:
        queue.add("n")
        worker = Worker(name, work, proxy.url)
        worker.on("error", lambda *args: None)
        worker.start()
        assert started.wait(20)
        proxy.frozen.set()
        release.set()
        worker.close(timeout=1)
        assert worker.wait_closed(0)


def test_a_frozen_peer_is_noticed(proxy: Any, tcp_url: str, name: str) -> None:
    """C034: a long poll without an answer well after its time is a dead link."""
    with Queue(name, tcp_url) as queue:
        worker = Worker(name, lambda job: job.data, proxy.url, poll_timeout=0.1)
        worker.on("error", lambda *args: None)
        with worker:
            assert queue.add("n", 1).result(timeout=20) == 1
            proxy.frozen.set()
            end = time.monotonic() + 60
            while worker._control is not None and worker._control.channel.up:
                assert time.monotonic() < end
                time.sleep(0.05)
            proxy.frozen.clear()
            proxy.kill()
            assert queue.add("n", 2).result(timeout=30) == 2


def test_start_without_a_server_raises(name: str) -> None:
    with pytest.raises(ConnectionLost, match="no engine answers"):
        Worker(name, print, "tcp://127.0.0.1:1").start()


def test_a_refused_token_is_raised(tcp_url: str, name: str) -> None:
    # A server without tokens refuses every token.
    with Queue(name, f"{tcp_url}?token=wrong") as queue, pytest.raises(AuthError) as refused:
        queue.counts()
    assert "wrong" not in str(refused.value)
    with pytest.raises(AuthError):
        Worker(name, print, f"{tcp_url}?token=wrong").start()


def in_child(fn: Any) -> str:
    """Run ``fn`` in a forked child and return what it said."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            said = str(fn())
        except BaseException as exc:
            said = type(exc).__name__
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_fork(engine_url: str, name: str, tmp_path: Path) -> None:
    with Queue(name, engine_url) as queue:
        queue.add("n")
        said = in_child(queue.counts)
        if engine_url.startswith("tcp"):
            assert said == str(Counts(waiting=1))
        else:
            assert said == ForkedError.__name__
        assert queue.counts() == Counts(waiting=1)


def test_embedded_engines_are_shared_and_closed(tmp_path: Path, name: str) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with Queue(name, url) as one, Queue(name, url) as two:
        one.add("n")
        assert two.counts() == Counts(waiting=1)
    with Queue(name, url) as again:
        assert again.counts() == Counts(waiting=1)
        shutdown_engine()
        with pytest.raises(ClosedError):
            again.counts()


@pytest.mark.parametrize("where", ["memory", "file"])
def test_who_used_an_engine_that_was_shut_down_does_not_open_it_again(
    where: str, tmp_path: Path, name: str
) -> None:
    url = "memory://" if where == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"
    started = threading.Event()
    let_go = threading.Event()

    def slow(job: JobContext) -> None:
        started.set()
        let_go.wait(10)

    problems: list[Exception] = []
    queue, worker = Queue(name, url), Worker(name, slow, url)
    lost = threading.Event()

    def on_error(exc: Exception, where: str) -> None:
        problems.append(exc)
        if isinstance(exc, ClosedError):
            lost.set()

    worker.on("error", on_error)
    worker.start()
    queue.add("n")
    assert started.wait(10)
    shutdown_engine()
    let_go.set()
    assert lost.wait(10), problems
    with pytest.raises(ClosedError, match="closed"):
        queue.add("again")
    if where == "file":
        # The file is free: a new queue opens it, and the job is there, once.
        with Queue(name, url) as other:
            assert len(other) == 1
    worker.close(timeout=1, force=True)
    queue.close()
    shutdown_engine()
