"""Limits, groups, keys, dead letters, stalls and schedules of a queue, the same on every engine."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from qclient import (
    ConfigError,
    Counts,
    DeadLetterConfig,
    Debounce,
    Dedup,
    Group,
    GroupLimits,
    LimitError,
    NotFoundError,
    Queue,
    QueueEvents,
    QueueGroup,
    RateLimit,
    Repeat,
    StallConfig,
    UnrecoverableError,
    Worker,
)
from qclient.options import to_wire


def fail(queue: Queue, n: int, **options: Any) -> list[str]:
    """Ids of jobs that have become dead letters."""

    def refuse(job: Any) -> None:
        raise UnrecoverableError(f"no {job.data}")

    jobs = [queue.add("fails", i, **options) for i in range(n)]
    with Worker(queue, refuse):
        assert all(job.wait(60) for job in jobs)
    return [job.id for job in jobs]


# --- limits -------------------------------------------------------------------------


def test_limits_of_a_queue(engine_url: str, name: str) -> None:
    with Queue(name, engine_url) as queue:
        limits = queue.limits
        assert (limits.rate(), limits.rate_ttl(), limits.concurrency(), limits.is_maxed()) == (
            None,
            None,
            None,
            False,
        )
        limits.set_rate(2, per=timedelta(minutes=1))
        limits.set_concurrency(3)
        assert limits.rate() == RateLimit(2, 60)
        assert limits.rate_ttl() == 0
        assert limits.concurrency() == 3
        queue.add_bulk([("n", i) for i in range(5)])
        for _ in range(2):
            assert queue.client.call("PULL", {"queue": name, "owner": "o"})["job"] is not None
        assert queue.client.call("PULL", {"queue": name, "owner": "o"})["job"] is None
        left = limits.rate_ttl()
        assert left is not None
        assert 0 < left <= 30
        assert not limits.is_maxed()
        limits.set_concurrency(2)
        assert limits.is_maxed()
        limits.clear_rate()
        limits.clear_concurrency()
        assert (limits.rate(), limits.concurrency()) == (None, None)
        limits.set_rate(0)
        assert limits.rate() == RateLimit(0, 1)
        limits.set_rate(1, ttl=3600)
        assert limits.rate() == RateLimit(1, 1)
        with pytest.raises(ConfigError, match="max must be at least 0"):
            limits.set_rate(-1)
        with pytest.raises(ConfigError, match="per must be longer than 0"):
            limits.set_rate(1, per=0)
        with pytest.raises(TypeError, match="concurrency must be a whole number"):
            limits.set_concurrency(True)


def test_groups(engine_url: str, name: str) -> None:
    with Queue(name, engine_url) as queue:
        queue.add_bulk([("n", i, {"group": "a"}) for i in range(3)])
        queue.add("n", group=Group(id="b", priority=5, max_size=2))
        first = queue.add("n", group=Group(id="b", priority=1, max_size=2))
        with pytest.raises(LimitError, match="maximum size of 2"):
            queue.add("n", group=Group(id="b", max_size=2))
        a, b = queue.group("a"), queue.group("b")
        assert (a.count(), b.count(), queue.groups_count()) == (3, 2, 5)
        assert (first.refresh().group, first.priority) == ("b", 1)
        assert a.pause() is True
        assert a.pause() is False
        assert a.is_paused()
        pulled = queue.client.call("PULL", {"queue": name, "owner": "o"})["job"]
        assert pulled["id"] == first.id
        assert (b.active(), b.count()) == (1, 1)
        assert a.resume() is True
        assert not a.is_paused()
        a.hold(3600)
        held = a.rate_ttl()
        assert held is not None
        assert 3500 < held <= 3600
        assert (b.rate(), b.rate_ttl(), b.concurrency()) == (None, None, None)
        b.set_rate(7, per=2)
        b.set_concurrency(4)
        assert (b.rate(), b.concurrency()) == (RateLimit(7, 2), 4)
        assert b.clear_rate()
        assert b.clear_concurrency()
        assert not b.clear_rate()
        assert not b.clear_concurrency()
        with pytest.raises(ConfigError, match="at most 256"):
            queue.group("g" * 257)


def test_a_worker_limits_each_group(engine_url: str, name: str) -> None:
    running: dict[str, int] = {"a": 0, "b": 0}
    most = dict(running)

    async def process(job: Any) -> None:
        import asyncio

        group = job.data
        running[group] += 1
        most[group] = max(most[group], running[group])
        await asyncio.sleep(0.005)
        running[group] -= 1

    with Queue(name, engine_url) as queue:
        jobs = [queue.add("n", g, group=g) for g in "aabbaabb"]
        queue.group("b").set_concurrency(2)
        with Worker(queue, process, concurrency=8, group=GroupLimits(concurrency=1)):
            for job in jobs:
                job.result(60)
        assert most["a"] == 1
        assert most["b"] <= 2
    with pytest.raises(ConfigError, match="needs concurrency or rate"):
        GroupLimits()
    with pytest.raises(TypeError, match="group must be GroupLimits"):
        Worker(name, process, group={"concurrency": 1})


# --- keys and chains ----------------------------------------------------------------


def test_unique_keys(engine_url: str, name: str) -> None:
    with Queue(name, engine_url) as queue:
        first = queue.add("n", 1, dedup="k")
        assert queue.add("n", 2, dedup=Dedup(id="k")) == first
        assert queue.dedup.owner("k") == first.id
        assert first.dedup_key == "k"
        second = queue.add("n", 3, dedup=Dedup(id="k", replace=True))
        assert second != first
        assert queue.get(first.id) is None
        assert queue.dedup.release("k")
        assert not queue.dedup.release("k")
        assert queue.dedup.owner("k") is None
        third = queue.add("n", 4, dedup=Dedup(id="k", ttl=3600, keep_until_expiry=True))
        assert third.release_dedup()
        assert not third.release_dedup()


def test_debounce_and_repeat(engine_url: str, name: str) -> None:
    with Queue(name, engine_url) as queue:
        queue.add("n", 1, debounce=Debounce(id="d", wait=3600))
        last = queue.add("n", 2, debounce=Debounce(id="d", wait=3600))
        assert queue.counts() == Counts(delayed=1)
        assert last.data == 2
        chained = queue.add("n", 3, repeat=Repeat(every=3600, limit=2))
        with Worker(queue, lambda job: None):
            assert chained.wait(60)
        assert queue.counts() == Counts(delayed=2, completed=1)
    start = datetime(2099, 1, 1, tzinfo=UTC)
    assert to_wire({"repeat": Repeat(cron="0 9 * * *", tz="Europe/Rome", start=start, offset=1)}) == {
        "repeat": {
            "pattern": "0 9 * * *",
            "tz": "Europe/Rome",
            "startDate": 4070908800000.0,
            "offset": 1000,
            "immediately": False,
            "continueOnFailure": True,
        }
    }


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Repeat(), "exactly one of every and cron"),
        (lambda: Repeat(every=1, cron="* * * * *"), "exactly one of every and cron"),
        (lambda: Repeat(every=1, tz="UTC"), "a tz belongs to a cron pattern"),
        (lambda: Repeat(every=0), "longer than 0"),
        (lambda: Dedup(id=""), "dedup id must not be empty"),
        (lambda: Dedup(id="k", extend=True), "need a ttl"),
        (lambda: Group(id="a\0"), "NUL"),
        (lambda: Group(id="a", priority=2_097_152), "0 to 2097151"),
        (lambda: RateLimit(1, per=0), "longer than 0"),
        (lambda: to_wire({"priority": 1, "group": Group(id="a", priority=1)}), "both given"),
        (lambda: to_wire({"group": Group(id="a", priority=1), "priority": 1}), "both given"),
        (lambda: to_wire({"on_child_failure": "explode"}), "one of fail, remove, ignore, continue"),
    ],
)
def test_values_that_cannot_be_used_are_named(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


# --- dead letters and stalls --------------------------------------------------------


def test_dead_letters(engine_url: str, name: str) -> None:
    with Queue(name, engine_url) as queue:
        before = datetime.now(UTC) - timedelta(seconds=1)
        ids = fail(queue, 4)
        letters = queue.dlq.list()
        assert sorted(letter.job.id for letter in letters) == sorted(ids)
        assert {letter.error for letter in letters} == {f"no {i}" for i in range(4)}
        assert [letter.job.id for letter in queue.dlq.list(limit=2, offset=1)] == [
            letter.job.id for letter in letters[1:3]
        ]
        entered = letters[0].entered_at
        assert entered is not None
        assert before < entered
        assert queue.dlq.list(older_than=3600) == []
        assert len(queue.dlq.list(newer_than=3600, reason="max_attempts_exceeded")) == 4
        stats = queue.dlq.stats()
        assert (stats.total, stats.by_reason["max_attempts_exceeded"], stats.oldest) == (4, 4, entered)
        assert queue.dlq.remove(ids[0])
        assert not queue.dlq.remove(ids[0])
        assert queue.dlq.retry(ids[1]) == 1
        assert queue.dlq.retry(reason="timeout") == 0
        assert queue.dlq.retry(limit=1) == 1
        assert queue.dlq.purge() == 1
        assert queue.dlq.purge() == 0
        assert queue.counts() == Counts(waiting=2)
        with pytest.raises(ConfigError, match="both given"):
            queue.dlq.retry(ids[1], limit=1)
        with pytest.raises(TypeError, match="unknown filter 'older'"):
            queue.dlq.list(older=1)  # type: ignore[call-arg]


def test_settings_of_dead_letters_and_stalls(engine_url: str, name: str) -> None:
    with Queue(name, engine_url) as queue:
        assert queue.dlq.config == DeadLetterConfig(
            auto_retry=False,
            auto_retry_interval=3600,
            max_auto_retries=3,
            max_age=604_800,
            max_entries=10_000,
        )
        queue.dlq.configure(auto_retry=True, max_age=None, max_entries=5)
        queue.dlq.configure(auto_retry_interval=timedelta(minutes=1), max_auto_retries=1)
        assert queue.dlq.config == DeadLetterConfig(True, 60, 1, None, 5)
        queue.dlq.configure(max_age=timedelta(days=1))
        assert queue.dlq.config.max_age == 86_400
        assert queue.stall.config == StallConfig(enabled=True, interval=30, max_stalls=3, grace=5)
        queue.stall.configure(enabled=False, interval=1.5, max_stalls=0, grace=0)
        assert queue.stall.config == StallConfig(False, 1.5, 0, 0)
        with pytest.raises(ConfigError, match="max_entries must be at least 1"):
            queue.dlq.configure(max_entries=0)


# --- webhooks, and queues of one namespace ------------------------------------------


def test_webhooks(engine_url: str, name: str) -> None:
    url = f"https://hooks.example.com/{name}"
    with Queue(name, engine_url) as queue, Queue(f"{name}-other", engine_url) as other:
        mine = queue.webhooks.add(url, ["job.completed", "job.failed"], secret="hidden")
        both = queue.webhooks.add(url, ["job.pushed"], every_queue=True)
        assert (mine.url, mine.events, mine.queue) == (url, ("job.completed", "job.failed"), name)
        listed = {hook.id: hook for hook in queue.webhooks.list()}
        assert {mine.id, both.id} <= listed.keys()
        assert (listed[mine.id].enabled, listed[mine.id].told, listed[mine.id].created_at) == (
            True,
            0,
            mine.created_at,
        )
        assert "hidden" not in repr(listed)
        assert mine.id not in {hook.id for hook in other.webhooks.list()}
        queue.webhooks.disable(mine.id)
        assert [hook.enabled for hook in queue.webhooks.list() if hook.id == mine.id] == [False]
        queue.webhooks.enable(mine.id)
        assert [hook.enabled for hook in queue.webhooks.list() if hook.id == mine.id] == [True]
        assert queue.webhooks.remove(mine.id)
        assert not queue.webhooks.remove(mine.id)
        assert queue.webhooks.remove(both.id)
        with pytest.raises(NotFoundError):
            queue.webhooks.enable(mine.id)
        with pytest.raises(ConfigError, match="cannot point to localhost"):
            queue.webhooks.add("http://localhost/", ["job.pushed"])
        with pytest.raises(ConfigError, match=r"did you mean 'job\.completed'"):
            queue.webhooks.add(url, ["job.complete"])
        with pytest.raises(ConfigError, match="at least one"):
            queue.webhooks.add(url, [])


def test_queues_of_a_namespace(engine_url: str, name: str) -> None:
    with QueueGroup(name, engine_url) as group, Queue(f"{name}x", engine_url) as stranger:
        stranger.add("n")
        with group.queue("a") as a, group.queue("b") as b:
            assert a.name == f"{name}:a"
            jobs = [a.add("n", 1), b.add("n", 2)]
            assert group.names() == ["a", "b"]
            group.pause_all()
            assert (a.is_paused, b.is_paused, stranger.is_paused) == (True, True, False)
            group.resume_all()
            with group.worker("a", lambda job: job.data, concurrency=2):
                assert jobs[0].result(60) == 1
            assert group.drain_all() == 1
            group.obliterate_all()
            assert (a.counts().total, b.counts().total) == (0, 0)
        assert len(stranger) == 1
    with pytest.raises(ConfigError, match="letters, digits"):
        QueueGroup("a b")


# --- schedules ----------------------------------------------------------------------


def test_schedules(engine_url: str, name: str) -> None:
    with Queue(name, engine_url) as queue, Queue(f"{name}-other", engine_url) as other:
        daily, often = f"{name}-daily", f"{name}-often"
        made = queue.schedules.upsert(
            daily, cron="0 9 * * *", tz="Europe/Rome", name="report", data={"n": 1}, priority=2, attempts=5
        )
        assert (made.id, made.queue, made.name, made.cron, made.tz, made.every, made.runs, made.priority) == (
            daily, name, "report", "0 9 * * *", "Europe/Rome", None, 0, 2,
        )  # fmt: skip
        assert made.next_run is not None
        assert made.next_run > datetime.now(UTC)
        with (
            QueueEvents(other.name, engine_url, types=["waiting"]) as events,
            Worker(other, lambda job: job.data),
        ):
            every = other.schedules.upsert(
                often, every=timedelta(hours=1), limit=3, immediately=True, data=[1]
            )
            assert (every.every, every.limit) == (3600, 3)
            assert other.wait(events.get(60).job_id, 60) == [1]
        assert queue.schedules.get(daily) == made
        assert queue.schedules.get(often) is None
        assert [one.id for one in queue.schedules.list()] == [daily]
        assert (queue.schedules.count(), other.schedules.count()) == (1, 1)
        assert not queue.schedules.remove(often)
        assert queue.schedules.remove(daily)
        assert not queue.schedules.remove(daily)
        assert other.schedules.remove(often)
        assert queue.schedules.list() == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "exactly one of cron and every"),
        ({"cron": "* * * * *", "every": 1}, "exactly one of cron and every"),
        ({"cron": "61 * * * *"}, "Invalid cron expression"),
        ({"cron": "* * * * *", "tz": "Mars/Base"}, "Invalid cron expression"),
        ({"every": 0}, "longer than 0"),
        ({"every": 5, "tz": "UTC"}, "a tz belongs to a cron expression"),
        ({"every": 5, "limit": 0}, "limit must be at least 1"),
        ({"every": 5, "tags": ["a"]}, "does not take: tags"),
        ({"every": 5, "attemps": 2}, "did you mean 'attempts'"),
    ],
)
def test_schedules_that_cannot_be_used(name: str, arguments: dict[str, Any], said: str) -> None:
    with Queue(name, "memory://") as queue:
        with pytest.raises(ConfigError, match=said):
            queue.schedules.upsert("s", **arguments)
        assert queue.schedules.list() == []
