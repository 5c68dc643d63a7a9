"""A client that we did not write, in front of our server, together with ours.

``bunqueue-client`` comes from PyPI. Without it these tests fail rather than be
skipped: that they ran is what they are for.
"""

from __future__ import annotations

import hashlib
import hmac
import http.server
import itertools
import json
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import bunqueue
import pytest

import qclient
from qclient import JobState

_names = itertools.count(1)


@pytest.fixture(params=["memory", "sqlite"])
def port(request: pytest.FixtureRequest, port_of: Callable[[str, str], int]) -> int:
    return port_of(request.param, "")


@pytest.fixture
def name() -> str:
    return f"foreign{os.getpid()}-{next(_names)}"


@pytest.fixture
def theirs(port: int, name: str) -> Iterator[bunqueue.Queue]:
    with bunqueue.Queue(name, host="127.0.0.1", port=port) as queue:
        yield queue


@pytest.fixture
def ours(port: int, name: str) -> Iterator[qclient.Queue]:
    with qclient.Queue(name, f"tcp://127.0.0.1:{port}") as queue:
        yield queue


def our_worker(
    queue: qclient.Queue, processor: Callable[[qclient.JobContext], Any], **options: Any
) -> qclient.Worker:
    return qclient.Worker(queue, processor, handle_signals=False, **options)


def their_worker(port: int, name: str, processor: Callable[[Any], Any], **options: Any) -> bunqueue.Worker:
    return bunqueue.Worker(
        name, processor, host="127.0.0.1", port=port, poll_timeout_ms=200, autorun=False, **options
    )


def counts(queue: qclient.Queue) -> dict[str, int]:
    found = queue.counts()
    return {state: getattr(found, state) for state in ("waiting", "delayed", "active", "completed", "failed")}


def by_end(worker: Any, n: int) -> tuple[threading.Event, Counter[str]]:
    """An event for the n-th end of a job of their worker, and the ends by kind."""
    ends: Counter[str] = Counter()
    lock, reached = threading.Lock(), threading.Event()

    def listener(kind: str) -> Callable[..., None]:
        def count(*args: Any) -> None:
            with lock:
                ends[kind] += 1
                if ends.total() >= n:
                    reached.set()

        return count

    for kind in ("completed", "failed"):
        worker.on(kind, listener(kind))
    return reached, ends


# --- they add, we run ---------------------------------------------------------------------------


def test_their_single_adds_run_here(theirs: bunqueue.Queue, ours: qclient.Queue) -> None:
    values = [
        {"n": 1, "tags": ["ä", "語"]},
        [1, 2.5, None, True],
        "text",
        7,
        None,
        {"deep": {"er": b"\x00\xff"}},
    ]
    added = [theirs.add("greet", value) for value in values]

    def processor(job: qclient.JobContext) -> Any:
        return {"name": job.name, "data": job.data}

    with our_worker(ours, processor, concurrency=4):
        results = [ours.job(job.id).result(timeout=10) for job in added]
    # Their client carries the name inside the data, and wraps what is not a map.
    assert [r["name"] for r in results] == ["greet"] * len(values)
    assert results[0]["data"] == {"n": 1, "tags": ["ä", "語"]}
    assert results[1]["data"] == {"payload": [1, 2.5, None, True]}
    assert results[2]["data"] == {"payload": "text"}
    assert results[5]["data"] == {"deep": {"er": b"\x00\xff"}}
    assert [theirs.get_state(job.id) for job in added] == ["completed"] * len(values)
    assert [theirs.get_result(job.id) for job in added] == results


def test_their_bulk_add_keeps_its_order(theirs: bunqueue.Queue, ours: qclient.Queue) -> None:
    ids = theirs.add_bulk([{"name": f"n{i}", "data": {"i": i}} for i in range(500)])
    assert len(set(ids)) == 500
    assert counts(ours)["waiting"] == 500
    seen: list[tuple[str, str, int]] = []
    with our_worker(
        ours, lambda job: seen.append((job.id, job.name, job.data["i"])), batch_size=100
    ) as worker:
        assert ours.job(ids[-1]).result(timeout=20) is None
        worker.close()
    assert seen == [(job_id, f"n{i}", i) for i, job_id in enumerate(ids)]


def test_their_priorities_and_delays(theirs: bunqueue.Queue, ours: qclient.Queue) -> None:
    late = theirs.add("late", {}, delay=300, priority=100)
    low = theirs.add("low", {}, priority=-3)
    high = theirs.add("high", {}, priority=10)
    plain = theirs.add("plain", {})
    assert ours.job(late.id).state == JobState.DELAYED
    started: dict[str, float] = {}
    begun = time.time()
    with our_worker(ours, lambda job: started.setdefault(job.id, time.time())) as worker:
        ours.job(late.id).result(timeout=10)
        worker.close()
    assert list(started) == [high.id, plain.id, low.id, late.id]
    due = ours.job(late.id).run_at
    assert due is not None
    assert started[late.id] >= due.timestamp() - 0.002 > begun - 1


def test_their_custom_ids_are_added_once(theirs: bunqueue.Queue, ours: qclient.Queue, name: str) -> None:
    first = theirs.add("once", {"n": 1}, job_id=f"{name}-a")
    again = theirs.add("once", {"n": 2}, job_id=f"{name}-a")
    bulk = theirs.add_bulk([{"name": "once", "data": {"n": i}, "job_id": f"{name}-b"} for i in range(3)])
    assert first.id == again.id == f"{name}-a"
    assert bulk == [f"{name}-b"] * 3
    assert ours.add("once", {"n": 9}, job_id=f"{name}-b").id == f"{name}-b"
    runs: list[tuple[str, int]] = []
    with our_worker(ours, lambda job: runs.append((job.id, job.data["n"]))) as worker:
        ours.job(f"{name}-b").result(timeout=10)
        worker.close()
    assert runs == [(f"{name}-a", 1), (f"{name}-b", 0)]


def test_their_options_steer_our_retries(theirs: bunqueue.Queue, ours: qclient.Queue) -> None:
    flaky = theirs.add("flaky", {}, attempts=3, backoff=1)
    doomed = theirs.add("doomed", {}, attempts=2, backoff=1)
    final = theirs.add("final", {}, attempts=5)
    starts: Counter[str] = Counter()

    def processor(job: qclient.JobContext) -> str:
        starts[job.id] += 1
        if job.name == "final":
            raise qclient.UnrecoverableError("never again")
        if job.name == "doomed" or starts[job.id] < 3:
            raise ValueError(f"attempt {starts[job.id]} of {job.name}")
        return "at last"

    with our_worker(ours, processor, concurrency=3):
        assert ours.job(flaky.id).result(timeout=10) == "at last"
        for job in (doomed, final):
            with pytest.raises(qclient.JobFailedError):
                ours.job(job.id).result(timeout=10)
    assert starts == {flaky.id: 3, doomed.id: 2, final.id: 1}
    assert theirs.get_state(doomed.id) == theirs.get_state(final.id) == "failed"
    assert {dead.job.id: dead.error for dead in ours.dlq.list()} == {
        doomed.id: "ValueError: attempt 2 of doomed",
        final.id: "never again",
    }


# --- we add, they run ---------------------------------------------------------------------------


def test_our_adds_run_there(port: int, theirs: bunqueue.Queue, ours: qclient.Queue, name: str) -> None:
    ids = [job.id for job in ours.add_bulk([("sum", {"a": i, "b": [i, i]}) for i in range(60)])]
    ids.append(ours.add("sum", {"a": 1, "b": []}, priority=5).id)
    worker = their_worker(
        port, name, lambda job: {"total": job.data["a"] + sum(job.data["b"])}, concurrency=8
    )
    reached, ends = by_end(worker, 61)
    worker.start()
    try:
        assert reached.wait(20)
    finally:
        worker.close(10)
    assert ends == {"completed": 61}
    assert [ours.job(i).result(timeout=5) for i in ids] == [{"total": 3 * i} for i in range(60)] + [
        {"total": 1}
    ]
    assert [theirs.get_result(i) for i in ids[:3]] == [{"total": 0}, {"total": 3}, {"total": 6}]
    assert counts(ours) == {"waiting": 0, "delayed": 0, "active": 0, "completed": 61, "failed": 0}


def test_their_worker_retries_and_fails_our_jobs(port: int, ours: qclient.Queue, name: str) -> None:
    flaky = ours.add("flaky", {}, attempts=3, backoff=0.001)
    doomed = ours.add("doomed", {"x": 1}, attempts=2, backoff=0.001)
    final = ours.add("final", {}, attempts=5)
    starts: Counter[str] = Counter()

    def processor(job: Any) -> str:
        # Their ``job.name`` looks into the data, where a name of its own no longer is.
        starts[job.id] += 1
        if job.raw["name"] == "final":
            raise bunqueue.UnrecoverableError("never again")
        if job.raw["name"] == "doomed" or starts[job.id] < 3:
            raise ValueError(f"attempt {starts[job.id]}")
        return "at last"

    worker = their_worker(port, name, processor, concurrency=3)
    reached, ends = by_end(worker, 6)
    worker.start()
    try:
        assert reached.wait(20)
    finally:
        worker.close(10)
    assert ends == {"completed": 1, "failed": 5}
    assert starts == {flaky.id: 3, doomed.id: 2, final.id: 1}
    assert flaky.result(timeout=5) == "at last"
    assert flaky.refresh().attempts_made == 2
    with pytest.raises(qclient.JobFailedError, match="attempt 2"):
        doomed.result(timeout=5)
    with pytest.raises(qclient.JobFailedError, match="never again"):
        final.result(timeout=5)
    assert doomed.refresh().attempts_made == 2
    assert any("ValueError: attempt 2" in line for line in doomed.stacktrace)


def test_their_batched_acknowledgements(port: int, ours: qclient.Queue, name: str) -> None:
    jobs = ours.add_bulk([("square", {"n": n}) for n in range(200)])
    batches = {"max_size": 50, "max_delay_ms": 5}
    worker = their_worker(port, name, lambda job: job.data["n"] ** 2, concurrency=16, ack_batch=batches)
    reached, ends = by_end(worker, 200)
    worker.start()
    try:
        assert reached.wait(20)
    finally:
        worker.close(10)
    assert ends == {"completed": 200}
    assert [job.result(timeout=5) for job in jobs] == [n**2 for n in range(200)]


def test_both_workers_share_a_queue(
    port: int, theirs: bunqueue.Queue, ours: qclient.Queue, name: str
) -> None:
    starts: Counter[str] = Counter()
    lock = threading.Lock()
    meeting = threading.Barrier(2)

    def run(job: Any, here: str) -> str:
        with lock:
            starts[job.id] += 1
        if job.data["n"] < 2:
            meeting.wait(20)  # two jobs that end only when both workers have one
        return here

    jobs = ours.add_bulk([("shared", {"n": n}) for n in range(100)])
    worker = their_worker(port, name, lambda job: run(job, "theirs"))
    with our_worker(ours, lambda job: run(job, "ours")):
        worker.start()
        try:
            results = Counter(job.result(timeout=20) for job in jobs)
        finally:
            worker.close(10)
    assert starts == dict.fromkeys((job.id for job in jobs), 1)
    assert results["ours"] >= 1
    assert results["theirs"] >= 1


def test_their_long_jobs_keep_their_leases(port: int, ours: qclient.Queue, name: str) -> None:
    """A lease shorter than the job lives by their heartbeats."""
    job = ours.add("long", {})
    starts: list[str] = []
    released = threading.Event()

    def processor(foreign: Any) -> str:
        starts.append(foreign.id)
        deadline = time.monotonic() + 0.9
        released.wait(max(0.0, deadline - time.monotonic()))
        return "done"

    worker = their_worker(port, name, processor, lock_ttl_ms=400, heartbeat_interval_s=0.1, concurrency=2)
    worker.start()
    try:
        assert job.result(timeout=10) == "done"
    finally:
        released.set()
        worker.close(10)
    assert starts == [job.id]
    assert job.refresh().attempts_made == 0


def test_they_pause_and_move_our_jobs(theirs: bunqueue.Queue, ours: qclient.Queue) -> None:
    job = ours.add("later", {}, delay=3600)
    theirs.pause()
    assert theirs.is_paused()
    theirs.promote_job(job.id)
    assert theirs.get_state(job.id) == ours.state(job.id) == JobState.WAITING
    with our_worker(ours, lambda job: "ran"):
        theirs.resume()
        assert job.result(timeout=10) == "ran"


def test_a_token_is_asked_of_both(port_of: Callable[[str, str], int], name: str) -> None:
    port = port_of("memory", "auth")
    with bunqueue.Queue(name, host="127.0.0.1", port=port, token="second-token") as theirs:
        job = theirs.add("secret", {"n": 1})
    with (
        bunqueue.Queue(name, host="127.0.0.1", port=port, token="wrong") as theirs,
        pytest.raises(bunqueue.BunqueueError, match="Invalid token"),
    ):
        theirs.add("secret", {})
    with qclient.Queue(name, f"tcp://127.0.0.1:{port}?token=golden-token") as ours:
        assert ours.job(job.id).data == {"n": 1}


# --- hooks --------------------------------------------------------------------------------------


@pytest.fixture
def told() -> Iterator[tuple[int, queue.Queue[tuple[dict[str, str], bytes]]]]:
    """The port of an HTTP server, and what it is told."""
    heard: queue.Queue[tuple[dict[str, str], bytes]] = queue.Queue()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.put((dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address[1], heard
        server.shutdown()
        thread.join()


def test_their_hook_is_told_by_a_server(
    port_of: Callable[[str, str], int], name: str, told: tuple[int, queue.Queue[Any]]
) -> None:
    """At an address that was allowed; the name of this machine is refused all the same."""
    port, (at, heard) = port_of("sqlite", "hooks"), told
    with bunqueue.Queue(name, host="127.0.0.1", port=port) as theirs:
        with pytest.raises(bunqueue.BunqueueError, match="cannot point to localhost"):
            theirs.add_webhook(f"http://localhost:{at}/", ["job.completed"])
        hook = theirs.add_webhook(f"http://127.0.0.1:{at}/x", ["job.completed", "job.failed"], name, "s3")
        good, bad = theirs.add("good", {"n": 1}), theirs.add("bad", {"n": 2}, attempts=1)

        def processor(job: Any) -> Any:
            if job.data["n"] == 2:
                raise ValueError("no")
            return {"sum": 3}

        worker = their_worker(port, name, processor)
        reached, _ = by_end(worker, 2)
        worker.start()
        try:
            assert reached.wait(20)
            posts = [heard.get(timeout=20) for _ in range(2)]
        finally:
            worker.close(10)
        messages = {}
        for headers, body in posts:
            assert headers["X-Webhook-Signature"] == hmac.new(b"s3", body, hashlib.sha256).hexdigest()
            message = json.loads(body)
            assert headers["X-Webhook-Event"] == message["event"]
            messages[message["jobId"]] = message
        assert messages[good.id]["event"] == "job.completed"
        assert messages[good.id]["data"] == {"sum": 3}
        assert messages[bad.id]["event"] == "job.failed"
        assert messages[bad.id]["error"] == "no"
        assert {message["queue"] for message in messages.values()} == {name}
        [listed] = [found for found in theirs.list_webhooks() if found["id"] == hook]
        assert "secret" not in listed
        theirs.remove_webhook(hook)
        theirs.add("after", {})
        assert heard.empty()


def test_their_hook_inside_is_refused(theirs: bunqueue.Queue) -> None:
    for url in (
        "http://127.0.0.1/",
        "http://[::ffff:10.0.0.1]/",
        "http://169.254.169.254/",
        "http://2130706433/",
    ):
        with pytest.raises(bunqueue.BunqueueError, match="Webhook URL cannot point to"):
            theirs.add_webhook(url, ["job.completed"])
