"""Covers costs that must not grow with history or with the length of a queue."""

from __future__ import annotations

from qcore.engine.engine import Engine

SEED = bytes(range(16))
CALLS = 200
NOW_MS = 1_800_000_000_000
NOW_NS = 1_000_000_000_000
SIZES = (1_000, 10_000, 100_000, 1_000_000)


class Questions:
    """What does a look at a queue with ``jobs`` waiting jobs cost, once it has been looked at?"""

    params = SIZES
    param_names = ("jobs",)
    number = 1
    repeat = (3, 10, 5.0)
    rounds = 1
    warmup_time = 0

    def setup(self, jobs):
        self.engine = Engine(SEED)
        self.engine.push_many("q", [b"\xc0"] * jobs, NOW_MS)
        self.engine.list_jobs("q", NOW_MS, limit=1)

    def time_counts(self, jobs):
        for _ in range(CALLS):
            self.engine.counts("q", NOW_MS)

    def time_counts_by_priority(self, jobs):
        for _ in range(CALLS):
            self.engine.counts_by_priority("q")

    def time_first_page(self, jobs):
        for _ in range(CALLS):
            self.engine.list_jobs("q", NOW_MS, states=("waiting",), limit=10)

    def time_last_page(self, jobs):
        for _ in range(CALLS):
            self.engine.list_jobs("q", NOW_MS, limit=10, asc=False)

    def time_clean_of_ten(self, jobs):
        for _ in range(50):
            self.engine.clean("q", NOW_MS, state="waiting", limit=10)


class BehindDelayed:
    """What does a pull cost while ``delayed`` jobs of higher priority wait for their time?"""

    params = (0, 1_000, 10_000, 100_000)
    param_names = ("delayed",)
    number = 1
    repeat = (3, 10, 5.0)
    rounds = 1
    warmup_time = 0

    def setup(self, delayed):
        self.engine = Engine(SEED)
        for i in range(delayed):
            self.engine.push("q", b"\xc0", NOW_MS, priority=10, delay_ms=1_000 + i)
        self.engine.push_many("q", [b"\xc0"] * CALLS, NOW_MS)

    def time_pull(self, delayed):
        for _ in range(CALLS):
            assert self.engine.pull("q", NOW_MS, NOW_NS) is not None


class Idle:
    """What does a turn cost while ``queues`` queues with far jobs have nothing to do?"""

    params = (1, 10, 100, 1_000)
    param_names = ("queues",)

    def setup(self, queues):
        self.engine = Engine(SEED)
        for i in range(queues):
            self.engine.push(f"q{i}", b"\xc0", NOW_MS, delay_ms=10_000_000 + i)

    def time_turn(self, queues):
        for _ in range(CALLS):
            self.engine.advance(NOW_MS, NOW_NS)
            self.engine.next_due(NOW_MS, NOW_NS)
