"""The random walks of ``test_engine`` with limits and groups: both engines let the same jobs start."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from test_engine import BACKOFFS, CUSTOM_IDS, QUEUES, StoredEngineMachine, leases, queues, sessions

from qcore.engine.lanes import Wanted
from qcore.reference.capacity import Wishes

GROUPS = ("g", "h", "k")

groups = st.sampled_from(GROUPS)
wishes = st.fixed_dictionaries(
    {},
    optional={
        "concurrency": st.integers(1, 2),
        "window": st.sampled_from([(1, 20), (1, 20), (2, 200)]),
        "affinity": st.sampled_from(["", "g", "h", "nobody"]),
        "ungrouped_first": st.just(False),
    },
)


class CapacityMachine(StoredEngineMachine):
    @rule(
        queue=queues,
        group=groups,
        n=st.integers(1, 3),
        data=st.sampled_from([*BACKOFFS, b"\x02"]),
        options=st.fixed_dictionaries(
            {},
            optional={
                "priority": st.sampled_from([0, 1, 2_097_151]),
                "delay_ms": st.sampled_from([-1, 0, 1, 30, 500]),
                "attempts": st.integers(1, 3),
                "lifo": st.booleans(),
                "remove_on_complete": st.booleans(),
                "ttl_ms": st.sampled_from([0, 20]),
                "timeout_ms": st.sampled_from([20, 1000]),
                "job_id": st.sampled_from(CUSTOM_IDS),
            },
        ),
    )
    def push_grouped(self, queue: str, group: str, n: int, data: bytes, options: dict[str, Any]) -> None:
        backoff_ms, config = BACKOFFS[data]
        plain = {k: v for k, v in options.items() if k not in ("ttl_ms", "timeout_ms")}
        for _ in range(n):
            extra = dict(config, groupId=group)
            for key, name in (("ttl_ms", "ttl"), ("timeout_ms", "timeout")):
                if key in options:
                    extra[name] = options[key]
            got = self.engine.push(queue, data, self.ms, backoff_ms=backoff_ms, extra=extra, **plain)
            assert got == self.twin.push(queue, data, self.ms, new_id=got, group=group, **options)
            if got not in self.ids:
                self.ids.append(got)

    @rule(queue=queues, wish=wishes, count=st.integers(1, 4), lease_ms=leases, session=sessions)
    def pull_as_wished(
        self, queue: str, wish: dict[str, Any], count: int, lease_ms: int, session: int
    ) -> None:
        wish = dict(wish)
        wish["window_max"], wish["window_ms"] = wish.pop("window", (0, 0))
        wanted, wished = Wanted(**wish), Wishes(**wish)
        for _ in range(count):
            got = self.engine.pull(queue, self.ms, self.ns, lease_ms=lease_ms, session=session, wanted=wanted)
            self.delivered(got, queue, lease_ms, session, wishes=wished)

    @rule(
        queue=queues,
        lined_up=st.lists(
            st.tuples(st.sampled_from([*GROUPS, None]), st.integers(0, 2)), min_size=3, max_size=9
        ),
        steps=st.lists(
            st.tuples(st.sampled_from([0, 0, 0, 1, 10, 20, 200]), st.booleans()), min_size=3, max_size=9
        ),
        wish=wishes,
        data=st.data(),
    )
    def rush(
        self,
        queue: str,
        lined_up: list[tuple[str | None, int]],
        steps: list[tuple[int, bool]],
        wish: dict[str, Any],
        data: st.DataObject,
    ) -> None:
        """Many jobs and many pulls at a time: single steps seldom line up several groups."""
        if data.draw(st.booleans()):
            self.lift(queue)
        for group, priority in lined_up:
            how: dict[str, Any] = {} if group is None else {"extra": {"groupId": group}}
            got = self.engine.push(queue, b"\x02", self.ms, priority=priority, backoff_ms=0, **how)
            self.twin.push(queue, b"\x02", self.ms, new_id=got, priority=priority, group=group)
            self.ids.append(got)
        for ms, finish in steps:
            before = len(self.deliveries)
            self.pull_as_wished(queue, wish, 1, 0, 0)
            if finish and len(self.deliveries) > before:
                self.both("ack", self.deliveries[-1][0], remove=True)
            self.advance(ms, finish)
            self.look_at_limits(queue, None)

    @rule(queue=queues, limit=st.sampled_from([None, None, 0, 1, 2, 4]))
    def set_concurrency(self, queue: str, limit: int | None) -> None:
        self.same("set_concurrency", queue, limit)

    @rule(
        queue=queues,
        limit=st.sampled_from([None, None, 0, 1, 2, 3]),
        duration_ms=st.sampled_from([20, 1000]),
        ttl_ms=st.sampled_from([0, 0, 100]),
    )
    def set_rate(self, queue: str, limit: int | None, duration_ms: int, ttl_ms: int) -> None:
        self.same("set_rate", queue, limit, self.ms, self.ns, duration_ms=duration_ms, ttl_ms=ttl_ms)

    @rule(queue=queues, group=groups, paused=st.booleans())
    def pause_group(self, queue: str, group: str, paused: bool) -> None:
        self.same("pause_group", queue, group, paused)

    @rule(queue=queues, group=groups, limit=st.sampled_from([None, 1, 3]))
    def set_group_concurrency(self, queue: str, group: str, limit: int | None) -> None:
        self.same("set_group_concurrency", queue, group, limit)

    @rule(queue=queues, group=groups, limit=st.sampled_from([None, 1, 3]), ms=st.sampled_from([20, 1000]))
    def set_group_rate(self, queue: str, group: str, limit: int | None, ms: int) -> None:
        self.same("set_group_rate", queue, group, limit, ms)

    @rule(queue=queues, group=groups, ms=st.sampled_from([1, 20, 1000]))
    def block_group(self, queue: str, group: str, ms: int) -> None:
        self.same("block_group", queue, group, ms, self.ms, self.ns)

    @rule(queue=queues, adds=st.lists(st.tuples(groups, st.sampled_from([None, 1, 3])), max_size=3))
    def demand_group_room(self, queue: str, adds: list[tuple[str, int | None]]) -> None:
        self.same("demand_group_room", queue, adds)

    @rule(queue=queues, max_jobs=st.sampled_from([None, 1, 2]))
    def look_at_limits(self, queue: str, max_jobs: int | None) -> None:
        self.same("queue_limits", queue, self.ns, max_jobs=max_jobs)
        for group in GROUPS:
            self.same("group_wait_ms", queue, group, self.ns, max_jobs=max_jobs)
            found = self.engine.group(queue, group)
            sizes = (0, 0, 0) if found is None else (found.n_ready, found.n_delayed, found.n_active)
            assert sizes == self.twin.group_sizes(queue, group)

    def agree_on_time(self) -> None:
        """The ends of windows are known to the compiled engine only, which may be early but never late."""
        due, known = self.engine.next_due(self.ms, self.ns), self.twin.next_due(self.ms, self.ns)
        assert known is None or (due is not None and due <= known)

    def lift(self, queue: str) -> None:
        super().lift(queue)
        self.set_concurrency(queue, None)
        self.set_rate(queue, None, 1000, 0)
        for group in GROUPS:
            self.pause_group(queue, group, False)
            self.set_group_concurrency(queue, group, None)
            self.set_group_rate(queue, group, None, 0)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "twin"):
            assert [self.engine.group_names(queue) for queue in QUEUES] == [[], []]


TestCapacity = CapacityMachine.TestCase
TestCapacity.settings = settings(stateful_step_count=40)
