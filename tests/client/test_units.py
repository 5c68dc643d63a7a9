"""Every option that carries a time or a number, read back from an engine or seen at work by its clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from qclient import (
    Backoff,
    Debounce,
    Dedup,
    Group,
    GroupLimits,
    Job,
    Keep,
    Queue,
    RateLimit,
    Repeat,
    Worker,
    local,
    shutdown_engine,
)
from qcore.broker.embedded import EmbeddedEngine
from qcore.broker.opening import commit
from qcore.clock import ManualClock
from qcore.errors import DelayedError, RetryJob

S = 1000  # ms


class World:
    """A queue on an engine whose clock stands until it is told."""

    def __init__(self) -> None:
        self.clock = ManualClock(time.time_ns() // 1_000_000)
        self.engine = EmbeddedEngine(clock=self.clock)
        local._engines[""] = local._Engine("", self.engine)
        self.queue = Queue("q", "memory://")

    def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        with self.engine._commits:
            while True:
                seconds, cut = self.engine.broker.pump()
                if cut is not None:
                    commit(self.engine.broker, cut)
                elif seconds != 0:
                    return

    def call(self, command: str, **fields: Any) -> dict[str, Any]:
        return self.queue.client.call(command, fields)

    def pull(self, **fields: Any) -> dict[str, Any]:
        """A delivery; it is not renewed."""
        return self.call("PULL", queue="q", owner="o", **{"lockTtl": 24 * 3600 * S, **fields})

    def fail(self, **fields: Any) -> None:
        taken = self.pull()
        self.call("FAIL", id=taken["job"]["id"], token=taken["token"], error="no", **fields)

    def done(self) -> None:
        taken = self.pull()
        self.call("ACK", id=taken["job"]["id"], token=taken["token"])

    def holds_for(self, ms: int, look: Callable[[], bool]) -> bool:
        """Whether something is so up to that time, and then not."""
        self.advance(ms - 1)
        before = look()
        self.advance(1)
        return before and not look()


@pytest.fixture
def world() -> Iterator[World]:
    shutdown_engine()
    world = World()
    yield world
    world.queue.close()
    shutdown_engine()


def later_ms(job: Job, world: World) -> float:
    job.refresh()
    run_at: float = job.raw["runAt"]
    return run_at - world.clock.now_ms()


def test_delays(world: World) -> None:
    queue = world.queue
    late = queue.add("n", delay=5)
    assert world.holds_for(5 * S, lambda: queue.state(late.id) == "delayed")
    at = datetime.fromtimestamp(world.clock.now_ms() / 1000 + 60, UTC)
    shift = (
        world.clock.now_ms() - time.time_ns() // 1_000_000
    )  # a delay is from now, which is told by our clock
    assert 50 * S < later_ms(queue.add("n", run_at=at), world) - shift <= 61 * S
    late.change_delay(timedelta(minutes=1))
    assert later_ms(late, world) == 60 * S


def test_waits_between_attempts(world: World) -> None:
    for backoff, waits in (
        (5, (None, None)),
        (Backoff.fixed(5), (5, 5)),
        (Backoff.fixed(7200), (7200,)),
        (Backoff.exponential(5, max=7, jitter=0), (5, 7)),
    ):
        job = world.queue.add("n", backoff=backoff)
        if waits[0] is None:
            assert job.raw["backoff"] == 5 * S
        for wait in waits:
            world.fail()
            if wait is not None:
                assert later_ms(job, world) == wait * S
            world.advance(7200 * S)
        world.queue.drain()


def test_bounds_of_one_run(world: World) -> None:
    queue = world.queue
    short = queue.add("n", timeout=5, attempts=1)
    world.pull()
    assert world.holds_for(5 * S, lambda: queue.state(short.id) == "active")
    never = queue.add("n", ttl=5)
    assert world.holds_for(5 * S + 1, lambda: queue.get(never.id) is not None and never.exists()) or (
        world.pull()["job"] is None
    )
    queue.stall.configure(interval=3600, grace=0)
    silent = queue.add("n", stall_timeout=5)
    assert silent.raw["stallTimeout"] == 5 * S
    world.pull(lockTtl=3600 * S)
    world.advance(5 * S - 1)
    assert silent.refresh().stalled_count == 0
    world.advance(6 * S)
    assert silent.refresh().stalled_count == 1


def test_unique_keys_and_debounce(world: World) -> None:
    queue = world.queue
    first = queue.add("n", dedup=Dedup(id="k", ttl=5))
    assert world.holds_for(5 * S, lambda: queue.add("n", dedup=Dedup(id="k", ttl=5)) == first)
    assert later_ms(queue.add("n", debounce=Debounce(id="d", wait=5)), world) == 5 * S


def test_repeats(world: World) -> None:
    queue = world.queue
    start = datetime.fromtimestamp(world.clock.now_ms() / 1000 + 100, UTC)
    for repeat, wait in (
        (Repeat(every=5), 5),
        (Repeat(every=5, offset=2), 7),
        (Repeat(every=5, start=start, offset=2), 102),
    ):
        first = queue.add("n", repeat=repeat)
        if first.refresh().state == "waiting":
            world.done()
        assert [later_ms(job, world) for job in queue.jobs("delayed")] == [wait * S], repeat
        queue.drain()


def test_a_repeat_ends_with_a_failure_if_it_is_told_to(world: World) -> None:
    queue = world.queue
    for going_on in (True, False):
        queue.add("n", repeat=Repeat(every=5, continue_on_failure=going_on), attempts=1)
        world.fail()
        assert queue.counts().delayed == going_on
        queue.obliterate(force=True)
    queue.add("n", repeat=Repeat(every=5), attempts=1)
    world.fail()
    assert queue.counts().delayed == 1


@pytest.mark.parametrize("option", ["remove_on_complete", "remove_on_fail"])
def test_kept_by_age_and_number(world: World, option: str) -> None:
    queue = world.queue
    state = "completed" if option == "remove_on_complete" else "failed"

    def end(keep: Any) -> None:
        queue.add("n", attempts=1, **{option: keep})  # type: ignore[arg-type]
        world.done() if state == "completed" else world.fail()

    def kept() -> int:
        return len(queue.jobs(state))

    end(Keep(age=5))
    world.advance(5 * S - 1)
    end(Keep(age=5))
    assert kept() == 2
    world.advance(2)
    end(Keep(age=5))
    assert kept() == 2  # the first is older
    for keep in (Keep(count=1), 1, Keep(age=timedelta(hours=1), count=1)):
        end(keep)
        assert kept() == 1
    end(True)
    assert kept() == 1
    assert len(queue.clean(3600, state=state)) == 0
    world.advance(5 * S)
    assert len(queue.clean(5.001, state=state)) == 0
    assert len(queue.clean(5, state=state)) == 1


def test_schedules(world: World) -> None:
    queue = world.queue
    made = queue.schedules.upsert("s", every=5, remove_on_complete=Keep(age=7), backoff=3, delay=2, timeout=4)
    assert made.every == 5
    assert made.next_run is not None
    assert made.next_run.timestamp() * 1000 == world.clock.now_ms() + 5 * S
    world.advance(5 * S)
    (job,) = queue.jobs("delayed")
    assert (later_ms(job, world), job.raw["backoff"], job.raw["timeout"]) == (2 * S, 3 * S, 4 * S)
    assert job.raw["removeOnComplete"] == {"age": 7}


def test_rates(world: World) -> None:
    queue = world.queue
    for i in range(20):
        queue.add("n", i, group="g" if i >= 10 else None)
    queue.limits.set_rate(1, per=5)
    assert world.pull()["job"] is not None
    assert queue.limits.rate_ttl() == 5
    assert world.holds_for(5 * S, lambda: world.pull()["job"] is None)
    queue.limits.set_rate(1, per=5, ttl=7)
    assert world.holds_for(7 * S, lambda: queue.limits.rate() is not None)
    while world.pull()["job"]["groupId"] is None:
        pass
    group = queue.group("g")
    group.hold(5)
    assert group.rate_ttl() == 5
    assert world.holds_for(5 * S, lambda: world.pull()["job"] is None)
    group.set_rate(1, per=5)
    assert group.rate() == RateLimit(1, per=5)
    brought = GroupLimits(rate=RateLimit(1, per=3600)).to_wire()
    assert world.pull(group=brought)["job"] is not None
    assert world.holds_for(5 * S, lambda: world.pull(group=brought)["job"] is None)
    group.clear_rate()
    world.advance(3600 * S)
    assert world.pull(group=brought)["job"] is not None
    assert world.holds_for(3600 * S, lambda: world.pull(group=brought)["job"] is None)


def test_dead_letters_and_stalls(world: World) -> None:
    queue = world.queue
    queue.dlq.configure(auto_retry=True, auto_retry_interval=5, max_age=60, max_entries=7, max_auto_retries=2)
    raw = world.call("GetDlqConfig", queue="q")["config"]
    assert raw == {
        "autoRetry": True,
        "autoRetryInterval": 5 * S,
        "maxAge": 60 * S,
        "maxEntries": 7,
        "maxAutoRetries": 2,
    }
    job = queue.add("n", attempts=1)
    world.fail()
    (dead,) = queue.dlq.list()
    assert dead.entered_at is not None
    assert dead.next_retry_at == dead.entered_at + timedelta(seconds=5)
    assert dead.expires_at == dead.entered_at + timedelta(seconds=60)
    assert world.holds_for(5 * S, lambda: queue.state(job.id) == "failed")
    queue.dlq.configure(auto_retry=False)
    world.fail()
    world.clock.set_wall(time.time_ns() // 1_000_000 + 30 * S)  # ages are told by our clock
    queue.stall.configure(interval=5, grace=6, max_stalls=7)
    raw = world.call("GetStallConfig", queue="q")["config"]
    assert (raw["stallInterval"], raw["gracePeriod"], raw["maxStalls"]) == (5 * S, 6 * S, 7)


def test_ages_of_dead_letters() -> None:
    shutdown_engine()
    clock = ManualClock(time.time_ns() // 1_000_000 - 100 * S)
    engine = EmbeddedEngine(clock=clock)
    local._engines[""] = local._Engine("", engine)
    with Queue("q", "memory://") as queue:
        queue.add("n", attempts=1)
        taken = queue.client.call("PULL", {"queue": "q"})["job"]["id"]
        queue.client.call("FAIL", {"id": taken})  # 100 s ago
        assert len(queue.dlq.list(older_than=90)) == len(queue.dlq.list(newer_than=timedelta(hours=1))) == 1
        assert len(queue.dlq.list(older_than=3600)) == len(queue.dlq.list(newer_than=90)) == 0
        now = datetime.now(UTC)
        assert queue.retry_all(before=now - timedelta(minutes=30)) == 0
        assert queue.retry_all(before=now) == 1
    shutdown_engine()


def test_a_lease_lasts_as_long_as_its_worker_says(world: World) -> None:
    queue, go, started = world.queue, threading.Event(), threading.Event()
    job = queue.add("n")

    def hold(job: Any) -> None:
        started.set()
        go.wait(60)

    with Worker(queue, hold, lock_duration=5, heartbeat_interval=0, handle_signals=False):
        assert started.wait(60)
        try:
            assert world.holds_for(5 * S, lambda: job.refresh().stalled_count == 0)
        finally:
            go.set()


def test_what_a_processor_asks_for(world: World) -> None:
    queue = world.queue

    def steer(job: Any) -> None:
        if job.data == "later":
            raise DelayedError(delay=5)
        raise RetryJob(delay=timedelta(seconds=7))

    jobs = [queue.add("n", "later"), queue.add("n", "again", backoff=100)]
    with Worker(queue, steer, handle_signals=False):
        bound = time.monotonic() + 60
        while [later_ms(job, world) for job in jobs] != [5 * S, 7 * S]:
            assert time.monotonic() < bound, [later_ms(job, world) for job in jobs]
            time.sleep(0.002)


def test_numbers_and_points_in_time(world: World) -> None:
    created = datetime(2024, 1, 1, tzinfo=UTC)
    job = world.queue.add(
        "n",
        priority=2.5,
        attempts=7,
        timestamp=created,
        stack_trace_limit=8,
        keep_logs=9,
        size_limit=1000,
    )
    raw = job.raw
    assert [raw[key] for key in ("priority", "maxAttempts", "stackTraceLimit", "keepLogs", "sizeLimit")] == [
        2.5,
        7,
        8,
        9,
        1000,
    ]
    assert job.created_at == created
    grouped = world.queue.add("n", group=Group(id="g", priority=3, max_size=1))
    assert grouped.raw["priority"] == 3
    with pytest.raises(Exception, match="maximum size of 1"):
        world.queue.add("n", group=Group(id="g", max_size=1))


#: What stands in the reference as the default of an option.
DEFAULTS: dict[str, Any] = {
    "priority": 0,
    "delay": 0,
    "attempts": 3,
    "backoff": 1,
    "timeout": None,
    "ttl": None,
    "stall_timeout": None,
    "lifo": False,
    "durable": False,
    "remove_on_complete": False,
    "remove_on_fail": False,
    "stack_trace_limit": 10,
    "tags": [],
    "depends_on": [],
}


@pytest.mark.parametrize("option", DEFAULTS)
def test_the_default_said_is_the_default_unsaid(world: World, option: str) -> None:
    volatile = ("id", "createdAt", "runAt", "lastHeartbeat", "timeline")
    said, unsaid = (
        {key: value for key, value in job.raw.items() if key not in volatile}
        for job in (world.queue.add("n", **{option: DEFAULTS[option]}), world.queue.add("n"))
    )
    assert said == unsaid


def test_defaults_of_values_are_those_of_the_engine(world: World) -> None:
    queue = world.queue
    plain = world.call("PUSH", queue="q", repeat={"every": 5000})
    ours = queue.add("n", repeat=Repeat(every=5))
    theirs = Job(queue.client, "q", plain["id"])
    engine_repeat = {"immediately": False, "continueOnFailure": True, **theirs.raw["repeat"]}
    assert ours.raw["repeat"] == engine_repeat
    assert queue.add("n", backoff=Backoff.exponential()).raw["backoff"] == theirs.raw["backoff"]
