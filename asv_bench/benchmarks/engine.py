"""Covers ``qcore.engine``: what one command costs, alone, in batches and beside many other jobs."""

from __future__ import annotations

import time

from qcore.engine.engine import Engine
from qcore.wire.packing import pack

from .common import needs

SEED = bytes(range(16))
CALLS = 1000
NOW_MS = 1_800_000_000_000
NOW_NS = 1_000_000_000_000
LEASE_MS = 30_000


def frame(request):
    """Return a request as a client sends it."""
    body = pack(request)
    return len(body).to_bytes(4, "big") + body


def filled(n):
    """Return an engine with ``n`` waiting jobs, and their ids."""
    engine = Engine(SEED)
    return engine, engine.push_many("q", [pack({"id": i}) for i in range(n)], NOW_MS)


class OneByOne:
    """What do a thousand commands cost beside ``waiting`` other jobs?"""

    params = (0, 10_000, 1_000_000)
    param_names = ("waiting",)
    number = 1
    repeat = (3, 20, 5.0)
    rounds = 2
    warmup_time = 0

    def setup(self, waiting):
        self.engine, _ = filled(waiting + CALLS)
        self.data = pack({"id": 1, "payload": "benchmark-data"})
        self.held = [self.engine.pull("q", NOW_MS, NOW_NS, lease_ms=LEASE_MS) for _ in range(CALLS)]
        self.engine.push_many("q", [self.data] * CALLS, NOW_MS)

    def time_push(self, waiting):
        push, data = self.engine.push, self.data
        for _ in range(CALLS):
            push("q", data, NOW_MS)

    def time_push_priorities(self, waiting):
        push, data = self.engine.push, self.data
        for i in range(CALLS):
            push("q", data, NOW_MS, priority=i * 7919 % 1000)

    def time_push_delayed(self, waiting):
        push, data = self.engine.push, self.data
        for i in range(CALLS):
            push("q", data, NOW_MS, delay_ms=1 + i * 7919 % 60_000)

    def time_pull(self, waiting):
        pull = self.engine.pull
        for _ in range(CALLS):
            pull("q", NOW_MS, NOW_NS, lease_ms=LEASE_MS)

    def time_ack(self, waiting):
        ack = self.engine.ack
        for job_id, token, _ in self.held:
            ack(job_id, NOW_MS, token=token)

    def time_fail(self, waiting):
        fail = self.engine.fail
        for job_id, token, _ in self.held:
            fail(job_id, NOW_MS, token=token, error="boom")

    def time_renew(self, waiting):
        renew = self.engine.renew
        for job_id, token, _ in self.held:
            renew(job_id, NOW_MS, NOW_NS, token=token, lease_ms=LEASE_MS)


class Cycle:
    """What does a job cost from push to acknowledgement, its completion kept as long as others are?"""

    def setup(self):
        self.engine = Engine(SEED, max_completed=10_000)
        self.data = pack({"id": 1})

    def time_cycle(self):
        engine, data = self.engine, self.data
        for _ in range(CALLS):
            engine.push("q", data, NOW_MS)
            job_id, token, _ = engine.pull("q", NOW_MS, NOW_NS, lease_ms=LEASE_MS)
            engine.ack(job_id, NOW_MS, token=token)


class Minutes:
    """What does a terminal event cost beside ``minutes`` minutes with outcomes in them?"""

    params = (1, 20_160)
    param_names = ("minutes",)
    number = 1
    repeat = (3, 20, 5.0)
    rounds = 2
    warmup_time = 0

    def setup(self, minutes):
        self.engine = Engine(SEED, max_completed=1000)
        with needs("metrics"):
            try:
                self.engine.metrics("q", "completed")
            except AttributeError as exc:
                raise ImportError from exc
        self.now = NOW_MS
        for i in range(minutes):
            self.now = NOW_MS + i * 60_000
            self.engine.push("q", None, self.now)
            job_id, _, _ = self.engine.pull("q", self.now, NOW_NS)
            self.engine.ack(job_id, self.now)
        self.engine.push_many("q", [b"\xc0"] * CALLS, self.now)
        self.held = [job[0] for job in self.engine.pull_many("q", CALLS, self.now, NOW_NS)]

    def time_complete(self, minutes):
        ack, now = self.engine.ack, self.now
        for job_id in self.held:
            ack(job_id, now)


class Listened:
    """What does a completion cost when its event is built for ``listeners``?"""

    params = (0, 1)
    param_names = ("listeners",)
    number = 1
    repeat = (3, 20, 5.0)
    rounds = 2
    warmup_time = 0

    def setup(self, listeners):
        with needs("session"):
            from qcore.broker import open_broker
            from qcore.broker.session import Session
        broker = open_broker(seed=SEED)
        self.session, self.listeners = Session(broker), [Session(broker) for _ in range(listeners)]
        for listener in self.listeners:
            listener.feed(frame({"cmd": "SubscribeEvents", "queue": "q", "eventTypes": ["completed"]}))
        jobs = [{"name": "default", "customId": f"job-{i}", "data": i} for i in range(CALLS)]
        self.session.feed(frame({"cmd": "PUSHB", "queue": "q", "jobs": jobs}))
        self.session.feed(frame({"cmd": "PULLB", "queue": "q", "count": CALLS}))
        self.acks = [frame({"cmd": "ACK", "id": f"job-{i}", "result": i}) for i in range(CALLS)]

    def time_complete(self, listeners):
        feed, take = self.session.feed, self.session.take
        for ack in self.acks:
            feed(ack)
            take()


class Batches:
    """What do a thousand jobs cost in batches?"""

    params = (10, 100, 1000)
    param_names = ("batch",)

    def setup(self, batch):
        self.engine = Engine(SEED, max_completed=10_000)
        self.datas = [pack({"id": i}) for i in range(batch)]

    def time_push_pull_ack(self, batch):
        engine = self.engine
        for _ in range(CALLS // batch):
            engine.push_many("q", self.datas, NOW_MS)
            for job_id, token, _ in engine.pull_many("q", batch, NOW_MS, NOW_NS, lease_ms=LEASE_MS):
                engine.ack(job_id, NOW_MS, token=token)


class Schedules:
    """What does a slot cost beside ``schedules`` others that are not due? Should grow like a logarithm."""

    params = (1, 1000, 100_000)
    param_names = ("schedules",)
    number = 1
    repeat = (3, 10, 5.0)
    rounds = 2
    warmup_time = 0

    def setup(self, schedules):
        self.engine = Engine(SEED)
        for i in range(schedules - 1):
            self.engine.put_schedule(f"s{i}", "other", NOW_MS, NOW_NS, every_ms=86_400_000 + i)
        self.engine.put_schedule("mine", "q", NOW_MS, NOW_NS, every_ms=1000, prevent_overlap=False)
        self.patterns = Engine(SEED)
        for i in range(schedules - 1):
            self.patterns.put_schedule(f"s{i}", "other", NOW_MS, NOW_NS, every_ms=86_400_000 + i)
        self.patterns.put_schedule(
            "mine", "q", NOW_MS, NOW_NS, pattern="* * * * *", zone="Europe/Berlin", prevent_overlap=False
        )

    def _fire(self, engine, step_ms):
        now_ms, now_ns = NOW_MS, NOW_NS
        for _ in range(CALLS):
            now_ms += step_ms
            now_ns += step_ms * 1_000_000
            engine.advance(now_ms, now_ns)
            engine.next_due(now_ms, now_ns)

    def time_slots_of_an_interval(self, schedules):
        self._fire(self.engine, 1000)

    def time_slots_of_a_pattern(self, schedules):
        self._fire(self.patterns, 60_000)

    def time_idle_turns(self, schedules):
        for _ in range(CALLS):
            self.engine.advance(NOW_MS, NOW_NS)
            self.engine.next_due(NOW_MS, NOW_NS)


class Million:
    """How many jobs a second go through 16 queues, 5,000 a push and 500 a pull?"""

    params = (100_000, 1_000_000)
    param_names = ("jobs",)
    timeout = 120

    def track_jobs_per_second(self, jobs):
        names = [f"queue-{i}" for i in range(16)]
        datas = [pack({"index": i}) for i in range(5000)]
        engine = Engine(SEED)
        start = time.perf_counter()
        for i in range(jobs // len(datas)):
            engine.push_many(names[i % 16], datas, NOW_MS)
        done = 0
        while done < jobs:
            for name in names:
                for job_id, _, data in engine.pull_many(name, 500, NOW_MS, NOW_NS):
                    engine.ack(job_id, NOW_MS, result=data, remove=True)
                    done += 1
        return jobs / (time.perf_counter() - start)

    track_jobs_per_second.unit = "jobs/s"
