"""Covers ``qcore.engine.capacity``, ``lanes`` and ``bucket``: what limits and groups cost a pull."""

from __future__ import annotations

from qcore.engine.engine import Engine
from qcore.wire.packing import pack

try:
    from qcore.engine.lanes import Wanted
except ImportError as error:
    raise NotImplementedError("before there were groups") from error

SEED = bytes(range(16))
CALLS = 1000
NOW_MS = 1_800_000_000_000
NOW_NS = 1_000_000_000_000
LEASE_MS = 30_000


class BlockedGroups:
    """What do a thousand pulls cost beside ``blocked`` groups of which none may start a job?"""

    params = (("paused", "full", "window"), (1, 10, 100, 1_000, 10_000))
    param_names = ("by", "blocked")
    number = 1
    repeat = (3, 20, 5.0)
    rounds = 2
    warmup_time = 0

    def setup(self, by, blocked):
        self.engine = Engine(SEED)
        self.wanted = Wanted(concurrency=1, window_max=2, window_ms=3_600_000)
        data = pack({"id": 1})
        for i in range(blocked):
            for _ in range(3):
                self.engine.push("q", data, NOW_MS, extra={"groupId": f"blocked-{i}"})
            if by == "paused":
                self.engine.pause_group("q", f"blocked-{i}")
        if by != "paused":
            for _ in range(blocked * (1 if by == "full" else 2)):
                job_id, token, _ = self.engine.pull(
                    "q", NOW_MS, NOW_NS, lease_ms=LEASE_MS, wanted=self.wanted
                )
                if by == "window":
                    self.engine.ack(job_id, NOW_MS, token=token)
        self.engine.pull("q", NOW_MS, NOW_NS, wanted=self.wanted)
        for i in range(CALLS):
            self.engine.push("q", data, NOW_MS, extra={"groupId": f"open-{i}"})

    def time_pull(self, by, blocked):
        pull, wanted = self.engine.pull, self.wanted
        for _ in range(CALLS):
            pull("q", NOW_MS, NOW_NS, lease_ms=LEASE_MS, wanted=wanted)

    def time_pull_nothing(self, by, blocked):
        """The last thousand of two thousand pulls find all groups blocked."""
        pull, wanted = self.engine.pull, self.wanted
        for _ in range(2 * CALLS):
            pull("q", NOW_MS, NOW_NS, lease_ms=LEASE_MS, wanted=wanted)


class LimitedQueue:
    """What do a thousand pulls cost from a queue with limits, beside ``waiting`` other jobs?"""

    params = (("none", "rate", "rate and concurrency", "reached"), (0, 10_000, 1_000_000))
    param_names = ("limits", "waiting")
    number = 1
    repeat = (3, 20, 5.0)
    rounds = 2
    warmup_time = 0

    def setup(self, limits, waiting):
        self.engine = Engine(SEED)
        data = pack({"id": 1})
        for first in range(0, waiting + CALLS, 1000):
            self.engine.push_many("q", [data] * min(1000, waiting + CALLS - first), NOW_MS)
        if limits != "none":
            self.engine.set_rate("q", 0 if limits == "reached" else 10 * CALLS, NOW_MS, NOW_NS)
        if limits == "rate and concurrency":
            self.engine.set_concurrency("q", 10 * CALLS)

    def time_pull(self, limits, waiting):
        pull = self.engine.pull
        for _ in range(CALLS):
            pull("q", NOW_MS, NOW_NS, lease_ms=LEASE_MS)


class Groups:
    """What do a thousand grouped jobs cost from push to acknowledgement, in ``groups`` groups?"""

    params = (1, 100, 10_000)
    param_names = ("groups",)

    def setup(self, groups):
        self.engine = Engine(SEED, max_completed=10_000)
        self.data = pack({"id": 1})
        for i in range(groups):
            self.engine.push("q", self.data, NOW_MS, extra={"groupId": f"g{i}"})

    def time_cycle(self, groups):
        engine, data = self.engine, self.data
        for i in range(CALLS):
            engine.push("q", data, NOW_MS, extra={"groupId": f"g{i * 7919 % groups}"})
            job_id, token, _ = engine.pull("q", NOW_MS, NOW_NS, lease_ms=LEASE_MS)
            engine.ack(job_id, NOW_MS, token=token)
