"""Workers: outcomes, events, control and closing, on every engine and for both kinds of processor."""

from __future__ import annotations

import asyncio
import ctypes
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from qclient import (
    Backoff,
    ClosedError,
    ConfigError,
    Counts,
    DelayedError,
    JobContext,
    JobFailedError,
    Queue,
    RateLimitError,
    RetryJob,
    UnrecoverableError,
    Worker,
    current_job,
)

Processor = Callable[[JobContext], Any]


@pytest.fixture(params=["def", "async def"])
def kind(request: pytest.FixtureRequest) -> Callable[[Processor], Processor]:
    """Turns a plain function into a processor of either kind."""
    if request.param == "def":
        return lambda fn: fn

    def as_async(fn: Processor) -> Processor:
        async def processor(job: JobContext) -> Any:
            return fn(job)

        return processor

    return as_async


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for something another thread does; a guard against hanging, not a measure."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened in time"
        time.sleep(0.005)


def test_every_job_runs_once(engine_url: str, name: str, kind: Callable[[Processor], Processor]) -> None:
    ran: list[int] = []
    with Queue(name, engine_url) as queue:
        queue.add_bulk(("n", i) for i in range(500))
        completed: list[tuple[str, Any]] = []
        worker = Worker(name, kind(lambda job: ran.append(job.data)), engine_url, concurrency=8)
        worker.on("completed", lambda job, value: completed.append((job.id, value)))
        with worker:
            until(lambda: len(completed) == 500)
        assert sorted(ran) == list(range(500))
        assert len({job_id for job_id, _ in completed}) == 500
        assert queue.counts() == Counts(completed=500)
        assert worker.stats().completed == 500
        assert worker.is_closed


def test_failures_are_retried_then_kept(
    engine_url: str, name: str, kind: Callable[[Processor], Processor]
) -> None:
    attempts: list[int] = []
    failed: list[BaseException] = []

    def work(job: JobContext) -> None:
        attempts.append(job.attempt)
        assert current_job() is job
        raise ValueError(f"attempt {job.attempt} of {job.max_attempts}, last: {job.is_last_attempt}")

    with Queue(name, engine_url) as queue:
        worker = Worker(name, kind(work), engine_url)
        worker.on("failed", lambda job, exc: failed.append(exc))
        with worker:
            job = queue.add("n", attempts=3, backoff=0)
            with pytest.raises(JobFailedError, match="ValueError: attempt 3 of 3, last: True") as info:
                job.result(timeout=20)
        assert attempts == [1, 2, 3]
        assert info.value.attempts == 3
        assert "in work" in "\n".join(info.value.stacktrace)
        assert [type(exc) for exc in failed] == [ValueError] * 3
        assert queue.counts() == Counts(failed=1)


def test_processors_steer_their_job(
    engine_url: str, name: str, kind: Callable[[Processor], Processor]
) -> None:
    seen: dict[str, list[int]] = {}

    def work(job: JobContext) -> str:
        tries = seen.setdefault(job.name, [])
        tries.append(job.attempts_made)
        if len(tries) == 1:
            if job.name == "retry":
                raise RetryJob
            if job.name == "retry-later":
                raise RetryJob(delay=0.05)
            if job.name == "delay":
                raise DelayedError(delay=0.05)
            if job.name == "limit":
                raise RateLimitError(0.05)
        if job.name == "never":
            raise UnrecoverableError("give up")
        return job.name

    with Queue(name, engine_url) as queue, Worker(name, kind(work), engine_url, concurrency=5):
        far = Backoff.fixed(3600)
        for job_name, counted in (("retry", 1), ("retry-later", 1), ("delay", 0), ("limit", 0)):
            assert queue.add(job_name, backoff=far, attempts=3).result(timeout=20) == job_name
            assert seen[job_name] == [0, counted], job_name
        with pytest.raises(JobFailedError, match=r"^give up$"):
            queue.add("never", attempts=9, backoff=far).result(timeout=20)
        assert seen["never"] == [0]


class NeedsArguments(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(a, b)
        self.lock = threading.Lock()


class CannotBePrinted(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def deep_chain() -> BaseException:
    exc: BaseException = ValueError("0")
    for i in range(10_000):
        after = ValueError(str(i))
        after.__cause__ = exc
        exc = after
    return exc


@pytest.mark.parametrize(
    "make",
    [
        lambda: NeedsArguments(1, 2),
        CannotBePrinted,
        lambda: ExceptionGroup("many", [ValueError(str(i)) for i in range(1000)]),
        deep_chain,
        lambda: ValueError("x" * (20 << 20)),
        lambda: ValueError("\ud800 half"),
        lambda: SystemExit(0),
        lambda: SystemExit("x"),
        KeyboardInterrupt,
        GeneratorExit,
        asyncio.CancelledError,
        lambda: type("Base", (BaseException,), {})("mine"),
    ],
)
def test_whatever_is_raised_is_a_failed_job(
    engine_url: str, name: str, kind: Callable[[Processor], Processor], make: Callable[[], BaseException]
) -> None:
    def work(job: JobContext) -> str:
        if job.name == "bad":
            raise make()
        return "fine"

    with Queue(name, engine_url) as queue, Worker(name, kind(work), engine_url, concurrency=3) as worker:
        before = queue.add_bulk(("n",) for _ in range(5))
        bad = queue.add("bad", attempts=1)
        after = queue.add_bulk(("n",) for _ in range(5))
        with pytest.raises(JobFailedError) as info:
            bad.result(timeout=20)
        assert type(make()).__name__ in str(info.value)
        assert len(str(info.value)) + sum(map(len, info.value.stacktrace)) < 65536
        assert [job.result(timeout=20) for job in before + after] == ["fine"] * 10
        assert worker.is_running


@pytest.mark.parametrize(
    "make",
    [
        lambda: RateLimitError("1"),  # type: ignore[arg-type]
        lambda: RateLimitError(float("nan")),
        lambda: RateLimitError(-1),
        lambda: DelayedError(delay=float("nan")),
        lambda: DelayedError(delay=float("inf")),
        lambda: DelayedError(delay=-5),
        lambda: DelayedError(60),  # type: ignore[arg-type]
        lambda: RetryJob(delay="soon"),  # type: ignore[arg-type]
    ],
)
def test_a_control_exception_that_asks_for_the_impossible_is_a_failure(
    engine_url: str, name: str, kind: Callable[[Processor], Processor], make: Callable[[], BaseException]
) -> None:
    """Nothing of the wave that it ends in is lost with it."""

    def work(job: JobContext) -> str:
        if job.name == "bad":
            raise make()
        return "fine"

    with Queue(name, engine_url) as queue, Worker(name, kind(work), engine_url, concurrency=8, batch_size=8):
        jobs = queue.add_bulk([("bad", None, {"attempts": 1, "priority": 5}), *[("n",)] * 7])
        with pytest.raises(JobFailedError, match=r"delay|retry_after"):
            jobs[0].result(timeout=20)
        assert [job.result(timeout=20) for job in jobs[1:]] == ["fine"] * 7
        assert queue.counts() == Counts(failed=1, completed=7)


def test_control_exceptions_take_a_timedelta(engine_url: str, name: str) -> None:
    moment = timedelta(milliseconds=20)
    steps = [DelayedError(delay=moment), RateLimitError(moment), RetryJob(delay=moment)]

    def work(job: JobContext) -> str:
        if steps:
            raise steps.pop(0)
        return "done"

    with Queue(name, engine_url) as queue, Worker(name, work, engine_url):
        job = queue.add("n", attempts=2)
        assert job.result(timeout=20) == "done"


@pytest.mark.parametrize("fault", [SystemExit(3), GeneratorExit(), ValueError("no")])
def test_a_listener_that_raises_harms_no_job(engine_url: str, name: str, fault: BaseException) -> None:
    with Queue(name, engine_url) as queue, Worker(name, lambda job: job.name, engine_url) as worker:

        def listener(*args: Any) -> None:
            raise fault

        worker.on("completed", listener)
        for job_name in ("a", "b", "c"):
            assert queue.add(job_name).result(timeout=20) == job_name
        assert worker.is_running


def loop_list() -> list[Any]:
    out: list[Any] = []
    out.append(out)
    return out


@pytest.mark.parametrize(
    "make",
    [
        lambda: (i for i in ()),
        threading.Lock,
        lambda: print,
        loop_list,
        lambda: 2**70,
        lambda: b"x" * (11 << 20),
        lambda: asyncio.sleep(0),
    ],
)
def test_results_that_cannot_be_stored_fail_their_job(
    engine_url: str, name: str, kind: Callable[[Processor], Processor], make: Callable[[], Any]
) -> None:
    with (
        Queue(name, engine_url) as queue,
        Worker(name, kind(lambda job: make() if job.name == "bad" else 1), engine_url, concurrency=2),
    ):
        bad = queue.add("bad", attempts=2, backoff=0)
        with pytest.raises(JobFailedError, match=r"^result cannot be stored: ") as info:
            bad.result(timeout=20)
        assert info.value.attempts == 2
        assert queue.add("n").result(timeout=20) == 1
        assert [dead.job.id for dead in queue.dlq.list()] == [bad.id]


def test_events_and_listeners(engine_url: str, name: str) -> None:
    seen: list[str] = []
    drained = threading.Event()
    worker = Worker(name, lambda job: 1, engine_url, poll_timeout=0.02)

    @worker.on("active")
    def on_active(job: JobContext) -> None:
        seen.append("active")
        raise RuntimeError("a listener's own trouble")

    async def on_completed(job: JobContext, value: Any) -> None:
        seen.append(f"completed {value}")

    once: list[str] = []
    worker.on("completed", on_completed).once("completed", lambda job, value: once.append(job.id))
    worker.on("ready", lambda: seen.append("ready")).on("closed", lambda: seen.append("closed"))
    worker.on("drained", drained.set)
    unwanted: list[int] = []
    off = lambda job, value: unwanted.append(1)  # noqa: E731
    worker.on("completed", off).off("completed", off)
    with pytest.raises(ConfigError, match="did you mean 'completed'"):
        worker.on("complete", off)
    with Queue(name, engine_url) as queue, worker:
        assert drained.wait(20)
        for _ in range(2):
            queue.add("n").result(timeout=20)
        until(lambda: seen.count("completed 1") == 2)
    assert seen[0] == "ready"
    assert seen[-1] == "closed"
    assert seen.count("active") == 2
    assert len(once) == 1
    assert not unwanted


def test_pause_resume_and_concurrency(engine_url: str, name: str) -> None:
    gate = threading.Event()
    running: list[int] = []

    def work(job: JobContext) -> None:
        running.append(1)
        gate.wait(20)

    with Queue(name, engine_url) as queue, Worker(name, work, engine_url, concurrency=2) as worker:
        queue.add_bulk(("n",) for _ in range(10))
        until(lambda: len(running) == 2)
        worker.concurrency = 4
        until(lambda: len(running) == 4)
        worker.pause()
        until(lambda: worker.is_paused)
        gate.set()
        until(lambda: worker.stats().completed >= 4)
        assert len(running) <= 4
        worker.resume()
        until(lambda: queue.counts() == Counts(completed=10))
        with pytest.raises(ConfigError):
            worker.concurrency = 0


def test_never_more_than_concurrency_at_once(engine_url: str, name: str) -> None:
    now = most = 0

    async def work(job: JobContext) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.001)
        now -= 1

    with Queue(name, engine_url) as queue:
        queue.add_bulk(("n",) for _ in range(300))
        with Worker(name, work, engine_url, concurrency=7, batch_size=3):
            until(lambda: queue.counts() == Counts(completed=300))
    assert most == 7


def test_timeout_cancels_and_retries(engine_url: str, name: str) -> None:
    ends: list[str] = []

    async def work(job: JobContext) -> int:
        if job.attempt == 2:
            return job.attempt
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ends.append(str(job.cancel_reason))
            raise
        return 0

    with Queue(name, engine_url) as queue, Worker(name, work, engine_url):
        assert queue.add("n", timeout=0.1, backoff=0, attempts=2).result(timeout=20) == 2
    assert ends == ["timeout"]


def test_cancel_one_job(engine_url: str, name: str, kind: Callable[[Processor], Processor]) -> None:
    started = threading.Event()
    if kind(test_cancel_one_job) is test_cancel_one_job:

        def work(job: JobContext) -> None:
            started.set()
            job.sleep(60)

        processor: Processor = work
    else:

        async def awork(job: JobContext) -> None:
            started.set()
            await asyncio.sleep(60)

        processor = awork
    told: list[tuple[str, str]] = []
    worker = Worker(name, processor, engine_url).on("cancelled", lambda *args: told.append(args))
    with Queue(name, engine_url) as queue, worker:
        job = queue.add("n", attempts=5)
        assert started.wait(20)
        worker.cancel_job(job.id)
        with pytest.raises(JobFailedError, match="cancelled"):
            job.result(timeout=20)
    assert told == [(job.id, "cancelled")]


# ---------------------------------------------------------------------- closing


def test_close_waits_for_running_jobs(
    engine_url: str, name: str, kind: Callable[[Processor], Processor]
) -> None:
    started: list[str] = []

    def work(job: JobContext) -> None:
        started.append(job.id)
        time.sleep(0.2)
        if job.data % 2:
            raise ValueError("odd")

    with Queue(name, engine_url) as queue:
        jobs = queue.add_bulk(("n", i, {"attempts": 1}) for i in range(4))
        worker = Worker(name, kind(work), engine_url, concurrency=4, lock_duration=0.5).start()
        until(lambda: len(started) >= 1)
        worker.close()
        worker.close()
        counts = queue.counts()
        assert counts.active == 0
        assert counts.completed + counts.failed == len(started)
        assert counts.total == 4
        assert len(set(started)) == len(started)
        assert {job.id for job in jobs} >= set(started)
    for thread in threading.enumerate():
        if thread.name.startswith("qclient"):
            thread.join(30)  # told to end, and not waited for
            assert not thread.is_alive()


def test_close_gives_back_what_does_not_end(engine_url: str, name: str) -> None:
    release = threading.Event()
    started = threading.Event()

    def stubborn(job: JobContext) -> None:
        started.set()
        release.wait(30)

    with Queue(name, engine_url) as queue:
        worker = Worker(name, stubborn, engine_url, cancel_grace=0.05).start()
        job = queue.add("n", attempts=1)
        assert started.wait(20)
        worker.close(timeout=0.05)
        job.refresh()
        assert job.state == "waiting"
        assert job.attempts_made == 0
        release.set()
        with Worker(name, lambda job: "second", engine_url):
            assert job.result(timeout=20) == "second"


def test_close_cancels_coroutines_without_charging_them(engine_url: str, name: str) -> None:
    started = threading.Event()

    async def work(job: JobContext) -> None:
        started.set()
        await asyncio.sleep(60)

    with Queue(name, engine_url) as queue:
        worker = Worker(name, work, engine_url).start()
        job = queue.add("n", attempts=1)
        assert started.wait(20)
        worker.close(force=True)
        job.refresh()
        assert (job.state, job.attempts_made) == ("waiting", 0)


def test_close_inside_a_processor(engine_url: str, name: str) -> None:
    holder: list[Worker] = []

    def work(job: JobContext) -> str:
        holder[0].close()
        return "done"

    with Queue(name, engine_url) as queue:
        holder.append(Worker(name, work, engine_url))
        job = queue.add("n")
        holder[0].start()
        assert job.result(timeout=20) == "done"
        assert holder[0].wait_closed(20)


def test_close_before_start(engine_url: str, name: str) -> None:
    worker = Worker(name, print, engine_url)
    worker.close()
    with pytest.raises(ClosedError):
        worker.start()
    assert worker.wait_closed(0)


def test_an_idle_worker_closes_at_once(engine_url: str, name: str) -> None:
    worker = Worker(name, print, engine_url, poll_timeout=30).start()
    began = time.monotonic()
    worker.close()
    assert time.monotonic() - began < 10


def test_a_worker_is_started_once(engine_url: str, name: str) -> None:
    with Worker(name, print, engine_url) as worker, pytest.raises(ConfigError, match="already"):
        worker.start()


def test_in_a_running_loop(engine_url: str, name: str) -> None:
    async def work(job: JobContext) -> int:
        return job.data + 1  # type: ignore[no-any-return]

    async def main() -> None:
        async with Worker(name, work, engine_url, concurrency=3) as worker:
            job = await asyncio.to_thread(queue.add, "n", 1)
            assert await asyncio.to_thread(job.result, 20) == 2
            assert worker.is_running
        assert worker.is_closed
        second = Worker(name, work, engine_url)
        task = asyncio.create_task(second.arun())
        job = await asyncio.to_thread(queue.add, "n", 2)
        assert await asyncio.to_thread(job.result, 20) == 3
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert second.is_closed

    with Queue(name, engine_url) as queue:
        asyncio.run(main())


def test_burst_ends_when_idle(engine_url: str, name: str) -> None:
    with Queue(name, engine_url) as queue:
        queue.add_bulk(("n", i) for i in range(30))
        assert Worker(name, lambda job: None, engine_url, burst=True, handle_signals=False).run() == 0
        assert queue.counts() == Counts(completed=30)


# ----------------------------------------------------------------------- order


@pytest.mark.parametrize(("batch_size", "prefetch"), [(1, 0), (1000, 0), (10, 7)])
def test_c007_jobs_start_in_their_order(engine_url: str, name: str, batch_size: int, prefetch: int) -> None:
    """An urgent one is the next; those that were fetched ahead have started, as far as others see it."""
    ran: list[int] = []
    held: list[int] = []

    with Queue(name, engine_url) as queue:

        def work(job: JobContext) -> None:
            ran.append(job.data)
            if job.data == 200:
                queue.add("n", -1, priority=1)
                held.append(queue.counts().active)

        queue.add_bulk(("n", i) for i in range(400))
        options: dict[str, Any] = {"batch_size": batch_size, "prefetch": prefetch, "handle_signals": False}
        assert Worker(name, work, engine_url, burst=True, **options).run() == 0
        assert queue.counts() == Counts(completed=401)
    assert [i for i in ran if i >= 0] == list(range(400))
    assert ran.index(-1) <= 200 + 1 + prefetch
    assert held[0] <= 1 + prefetch


# ---------------------------------------------------------------------- leases


def test_a_long_job_keeps_its_lease(
    engine_url: str, name: str, kind: Callable[[Processor], Processor]
) -> None:
    """C001, with a processor that blocks its thread or the event loop."""
    starts: list[int] = []

    def work(job: JobContext) -> str:
        starts.append(1)
        if job.data == "spin":
            end = time.monotonic() + 1.5
            while time.monotonic() < end:
                sum(range(1000))
        else:
            time.sleep(1.5)
        return "once"

    errors: list[Any] = []
    with Queue(name, engine_url) as queue:
        workers = [
            Worker(name, kind(work), engine_url, lock_duration=0.5, concurrency=n, poll_timeout=0.2)
            for n in (1, 50)
        ]
        for worker in workers:
            worker.on("error", lambda *args: errors.append(args))
            worker.start()
        jobs = [queue.add("n", how, attempts=3) for how in ("sleep", "spin")]
        assert [job.result(timeout=30) for job in jobs] == ["once", "once"]
        assert [job.attempts_made for job in jobs] == [0, 0]
        for worker in workers:
            worker.close()
    assert len(starts) == 2
    assert errors == []


def test_c001_a_call_that_holds_the_interpreters_lock(engine_url: str, name: str) -> None:
    """Nothing of this program can renew meanwhile: its own engine waits for that, a server cannot know."""
    hold_us = ctypes.PyDLL(None).usleep
    starts: list[int] = []

    def work(job: JobContext) -> int:
        starts.append(len(starts) + 1)
        mine = starts[-1]
        if mine == 1:
            hold_us(900_000)
        return mine

    lost: list[Any] = []
    with Queue(name, engine_url) as queue:
        options: dict[str, Any] = {"lock_duration": 0.3, "poll_timeout": 0.2}
        workers = [Worker(name, work, engine_url, concurrency=n, **options) for n in (1, 5)]
        for worker in workers:
            worker.on("error", lambda *args: lost.append(args))
            worker.start()
            worker.wait_ready(timeout=20)
        job = queue.add("n", attempts=3)
        result = job.result(timeout=30)
        for worker in workers:
            worker.close()
        assert job.refresh().returnvalue == result
        assert queue.counts() == Counts(completed=1)
        if engine_url.startswith("tcp"):
            assert len(starts) <= 2
        else:
            assert (starts, result, job.attempts_made, lost) == ([1], 1, 0, [])


def test_what_waits_for_a_slot_is_renewed(engine_url: str, name: str) -> None:
    """C002: prefetched jobs run once, here or elsewhere."""
    starts: list[int] = []

    def work(job: JobContext) -> None:
        starts.append(job.data)
        if job.data == 0:
            time.sleep(1.2)

    with Queue(name, engine_url) as queue:
        queue.add_bulk(("n", i) for i in range(10))
        options: dict[str, Any] = {"lock_duration": 0.5, "batch_size": 10}
        with Worker(name, work, engine_url, prefetch=5, **options):
            until(lambda: len(starts) >= 1)
            with Worker(name, work, engine_url, concurrency=4, **options):
                until(lambda: queue.counts() == Counts(completed=10), 30)
    assert sorted(starts) == list(range(10))


def test_the_interpreter_ends_with_an_open_worker(engine_url: str, name: str) -> None:
    """C044: nothing that a worker or queue owns keeps the process alive."""
    code = f"""
import sys, time, warnings
warnings.simplefilter("ignore", ResourceWarning)
from qclient import Queue, Worker
queue = Queue({name!r}, {engine_url!r})
worker = Worker({name!r}, lambda job: time.sleep(30), {engine_url!r}).start()
queue.add("n")
while not worker.stats().active:
    time.sleep(0.01)
print("leaving", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "leaving\n"
    assert "destroyed" not in done.stderr
    assert done.returncode == 0, done.stderr


SIGNALLED = """
import sys
from qclient import Worker
worker = Worker({name!r}, lambda job: job.data, {url!r}, concurrency=4)
worker.once("active", lambda job: print("active", flush=True))
sys.exit(worker.run())
"""


@pytest.mark.parametrize("pause", [0, 0.0005, 0.002, 0.01])
def test_a_signal_at_any_moment_loses_nothing(tcp_url: str, name: str, pause: float) -> None:
    """C043: every job ends once, whatever the signal interrupts."""
    n = 400
    with Queue(name, tcp_url) as queue:
        queue.add_bulk(("n", i) for i in range(n))
        code = SIGNALLED.format(name=name, url=tcp_url)
        for _ in range(2):
            child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
            assert child.stdout is not None
            with child.stdout:
                child.stdout.readline()
                time.sleep(pause)
                child.send_signal(signal.SIGTERM)
                assert child.wait(30) == 0
            counts = queue.counts()
            assert counts.total == n
            assert counts.active == 0
            if not counts.waiting:
                break
        with Worker(name, lambda job: None, tcp_url, concurrency=10):
            until(lambda: queue.counts() == Counts(completed=n))
        assert queue.dlq.list() == []


def test_a_paused_worker_gives_a_late_job_to_others(engine_url: str, name: str) -> None:
    with Queue(name, engine_url) as queue:
        paused = Worker(name, lambda job: "paused", engine_url, poll_timeout=30).start()
        paused.wait_ready(timeout=10)
        paused.pause()
        job = queue.add("n")  # may go to the poll that is open still
        with Worker(name, lambda job: "other", engine_url):
            assert job.result(timeout=20) == "other"
        paused.close()
