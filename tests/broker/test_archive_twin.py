"""A broker that archives nearly everything beside one that archives nothing: no reply may differ.

Both have the same clock and the same source of ids, so whole replies are compared, also
after crashes and clean restarts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from broker_talk import Talk
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qcore.broker import archive, open_broker
from qcore.broker.handlers import archived
from qcore.broker.opening import close_broker, commit, flush
from qcore.clock import ManualClock
from qcore.store.memory import MemoryStore

DAY_MS = 86_400_000
ASKED = ("GetJob", "GetState", "GetResult", "GetProgress", "GetLogs", "WaitJob", "GetChildrenValues")


class Half:
    """One of the two: its store, its broker, one connection."""

    def __init__(self, clock: ManualClock, max_completed: int) -> None:
        self.clock = clock
        self.max_completed = max_completed
        self.store = MemoryStore()
        self.starts = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        self.broker = open_broker(
            store=self.store,
            mode="server",
            clock=self.clock,
            seed=bytes([self.starts] * 16),
            max_completed=self.max_completed,
        )
        self.broker.engine._check()
        self.talk = Talk(self.broker)

    def end(self, clean: bool) -> None:
        if clean:
            close_broker(self.broker)
        else:
            flush(self.broker)
        self.broker.engine._check()
        self.store = self.store.reopened()

    def turn(self) -> None:
        _, cut = self.broker.pump()
        if cut is not None:
            commit(self.broker, cut)

    def ask(self, request: dict[str, Any]) -> Any:
        """The reply, which may take turns: a walk through the rows is one."""
        self.talk.send(request)
        for _ in range(200):
            replies = self.talk.replies()
            if replies:
                (reply,) = replies
                return reply
            self.turn()
            flush(self.broker)
        raise AssertionError(f"no reply to {request}")


class Pair:
    def __init__(self, kept: int) -> None:
        self.clock = ManualClock()
        self.small, self.large = Half(self.clock, kept), Half(self.clock, 50_000)
        self.ids: list[str] = []

    @property
    def halves(self) -> tuple[Half, Half]:
        return self.small, self.large

    def ask(self, cmd: str, **fields: Any) -> Any:
        request = {"cmd": cmd, **fields}
        first, second = (half.ask(request) for half in self.halves)
        assert first == second, (request, first, second)
        return first

    def job(self, number: int) -> str:
        return self.ids[number % len(self.ids)] if self.ids else "nobody"

    # --- what may happen ----------------------------------------------------------------------

    def do_add(self, queue: str, custom: str | None, done: bool, on: int | None) -> None:
        options: dict[str, Any] = {"queue": queue, "name": "n", "data": len(self.ids)}
        if custom is not None:
            options["jobId"] = custom
        if on is not None:
            options["dependsOn"] = [self.job(on)]
        reply = self.ask("PUSH", **options)
        if reply["ok"]:
            self.ids.append(reply["id"])
            if done:
                self.do_finish(queue, "ACK")

    def do_finish(self, queue: str, how: str) -> None:
        job = self.ask("PULL", queue=queue)["job"]
        self.clock.advance(1)
        if job is not None:
            more = {"result": {"of": job["id"]}} if how == "ACK" else {"error": "no"}
            self.ask(how, id=job["id"], **more)

    def do_run(self, queue: str, n: int) -> None:
        for _ in range(n):
            self.do_add(queue, None, True, None)

    def do_log(self, number: int) -> None:
        self.ask("AddLog", id=self.job(number), message="line")

    def do_parent(self, child: int, parent: int) -> None:
        self.ask("UpdateParent", childId=self.job(child), parentId=self.job(parent))

    def do_list(self, queue: str, states: list[str] | None, offset: int, limit: int, asc: bool) -> None:
        more = {} if states is None else {"state": states}
        self.ask("GetJobs", queue=queue, offset=offset, limit=limit, asc=asc, **more)

    def do_clean(self, queue: str, state: str | None, grace: int, limit: int) -> None:
        more = {} if state is None else {"state": state}
        self.ask("Clean", queue=queue, grace=grace, limit=limit, **more)

    def do_restart_completed(
        self, queue: str, number: int | None, count: int | None, ago: int | None
    ) -> None:
        more: dict[str, Any] = {}
        if number is not None:
            more["id"] = self.job(number)
        if count is not None:
            more["count"] = count
        if ago is not None:
            more["timestamp"] = self.clock.now_ms() - ago
        self.ask("RetryCompleted", queue=queue, **more)

    def do_obliterate(self, queue: str) -> None:
        self.ask("Obliterate", queue=queue)

    def do_time(self, ms: int) -> None:
        self.clock.advance(ms)
        for half in self.halves:
            half.turn()

    def do_age(self) -> None:
        """So long that all completed jobs are over, and as many turns as their removal takes."""
        for ms in (8 * DAY_MS, 3_700_000):
            self.clock.advance(ms)
            self.sweep()

    def sweep(self) -> None:
        """Let both look for what is over until they have seen everything."""
        for _ in range(100):
            self.clock.advance(250)
            for half in self.halves:
                half.turn()
                flush(half.broker)
            if all(half.broker.archive.left_ms(self.clock.now_ms()) == -1 for half in self.halves):
                return

    def do_end(self, clean: bool) -> None:
        for half in self.halves:
            half.end(clean)
        self.clock.advance(10)
        for half in self.halves:
            half.start()
        self.sweep()

    def agree(self) -> None:
        for half in self.halves:
            flush(half.broker)
            half.broker.engine._check()
            half.broker.engine._check_order()
        for job_id in dict.fromkeys(self.ids):
            for cmd in ASKED:
                self.ask(cmd, id=job_id, **({"timeout": 0} if cmd == "WaitJob" else {}))
        for queue in "qp":
            self.ask("GetJobCounts", queue=queue)
            for asc in (True, False):
                self.ask("GetJobs", queue=queue, limit=1000, asc=asc)
                self.ask("GetJobs", queue=queue, state=["completed"], limit=1000, asc=asc)
        flush(self.small.broker)
        in_memory = self.small.broker.engine.sizes()
        assert in_memory["evicted"] == 0
        assert in_memory["completed"] <= self.small.max_completed + in_memory["needed"], in_memory


QUEUES = st.sampled_from("qqqp")
NUMBERS = st.integers(0, 40)
MAYBE = st.none() | NUMBERS
STATES = st.sampled_from((None, ["completed"], ["waiting", "completed"], ["failed"]))
STEPS = st.one_of(
    st.tuples(
        st.just("add"), QUEUES, st.sampled_from((None, None, *"abcd")), st.booleans(), st.none() | MAYBE
    ),
    st.tuples(st.just("add"), QUEUES, st.sampled_from((None, *"abcdefgh")), st.just(True), st.none()),
    st.tuples(st.just("run"), QUEUES, st.integers(1, 12)),
    st.tuples(st.just("finish"), QUEUES, st.sampled_from(("ACK", "ACK", "FAIL"))),
    st.tuples(st.just("log"), NUMBERS),
    st.tuples(st.just("parent"), NUMBERS, NUMBERS),
    st.tuples(st.just("list"), QUEUES, STATES, st.integers(0, 12), st.integers(1, 12), st.booleans()),
    st.tuples(
        st.just("clean"), QUEUES, st.sampled_from((None, "completed")), st.integers(0, 5), st.integers(1, 9)
    ),
    st.tuples(st.just("restart_completed"), QUEUES, MAYBE, st.none() | st.integers(1, 9), st.none()),
    st.tuples(st.just("restart_completed"), QUEUES, st.none(), st.none(), st.integers(0, 9)),
    st.tuples(st.just("obliterate"), QUEUES),
    st.tuples(st.just("time"), st.integers(0, 50)),
    st.tuples(st.just("end"), st.booleans()),
    st.tuples(st.just("age")),
)


@pytest.fixture(scope="module", autouse=True)
def small_pages() -> Iterator[None]:
    """Pages of a few rows, so that walks take turns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive, "ARCHIVE_PAGE_ROWS", 5)
        patch.setattr(archive, "FENCE_ROWS", 4)
        patch.setattr(archive, "MOST_FENCES", 8)
        patch.setattr(archived, "ARCHIVE_PAGE_ROWS", 5)
        patch.setattr(archived, "READ_ROWS", 3)
        patch.setattr(archived, "FIRST_TURNS", 2)
        yield


#: A job that starts over needs a job that is archived.
NEEDS_ARCHIVED = [
    ("add", "q", None, False, None),
    ("add", "p", None, True, None),
    ("add", "q", None, True, 1),
    ("add", "q", None, False, None),
    ("add", "q", None, True, None),
    ("restart_completed", "q", None, None, None),
    ("age",),
]
#: One of the two forgets its queue at an earlier look: its next ids are the same all the same.
FORGETS = [("run", "q", 6), ("age",), *[("add", "q", None, True, None)] * 3]


@settings(max_examples=40)
@example(kept=1, steps=NEEDS_ARCHIVED)
@example(kept=1, steps=FORGETS)
@given(kept=st.integers(1, 4), steps=st.lists(STEPS, min_size=5, max_size=40))
def test_nothing_tells_an_archived_job_from_one_in_memory(kept: int, steps: list[tuple[Any, ...]]) -> None:
    pair = Pair(kept)
    for name, *how in steps:
        getattr(pair, f"do_{name}")(*how)
    pair.agree()
    pair.do_end(clean=False)
    pair.agree()
