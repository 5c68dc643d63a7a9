"""Schedules and repeated jobs beside their plain twin: clock steps, lost holders, changes, restarts.

Each schedule has a queue of its own, so that the ids which the engine gave to its jobs can
be handed to the twin in order.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from qcore.broker import rows
from qcore.clock import ManualClock
from qcore.engine.cron import Cron
from qcore.engine.engine import Engine
from qcore.engine.table import EVENT_BITS
from qcore.engine.workers import Worker
from qcore.errors import QError
from qcore.reference.schedules import Plan, SavedSchedules, ScheduledEngine
from qcore.store.base import INSERT_WIDTH, UPDATE_WIDTH
from qcore.store.memory import MemoryStore

NAMES = ("x", "y", "z")
QUEUES = (*NAMES, "chains")
START = 1_772_445_600_000  # 2026-03-02 10:00 UTC
HEARD = sum(bit for name, bit in EVENT_BITS.items() if name != "duplicated")

names = st.sampled_from(NAMES)
queues = st.sampled_from(QUEUES)
timings = st.sampled_from(
    [
        (None, 1000, None),
        (None, 1500, None),
        (None, 60_000, None),
        ("*/2 * * * * *", 0, None),
        ("* * * * *", 7000, "America/New_York"),
        ("*/20 2 * * *", 0, "America/New_York"),
    ]
)
occurrences = st.fixed_dictionaries(
    {},
    optional={
        "delay_ms": st.sampled_from([0, 500]),
        "attempts": st.integers(1, 2),
        "remove_on_complete": st.booleans(),
        "priority": st.sampled_from([0, 2.5]),
    },
)
repeats = st.one_of(
    st.fixed_dictionaries(
        {"every": st.sampled_from([300, 1000, 60_000])},
        optional={"startDate": st.sampled_from([0, START + 2000]), "offset": st.sampled_from([-200, 0, 50])},
    ),
    st.fixed_dictionaries(
        {"pattern": st.sampled_from(["* * * * *", "*/3 * * * * *"])},
        optional={"tz": st.sampled_from(["Asia/Kathmandu"]), "offset": st.sampled_from([-700, 900])},
    ),
)
bounds = st.fixed_dictionaries(
    {},
    optional={
        "limit": st.integers(0, 2),
        "endDate": st.just(START + 200_000),
        "continueOnFailure": st.booleans(),
    },
)


class ScheduleMachine(RuleBasedStateMachine):
    @initialize(seed=st.binary(min_size=16, max_size=16))
    def start(self, seed: bytes) -> None:
        self.clock = ManualClock(START)
        self.engine = Engine(seed, tracking=True)
        self.fresh: dict[str, deque[str]] = {queue: deque() for queue in QUEUES}
        self.heard: list[Any] = []
        self.ids: list[str] = ["00000000-0000-7000-8000-000000000001"]
        self.tokens: dict[str, str | None] = {}
        self.store = MemoryStore()
        self.saved = SavedSchedules()
        self.restarts = 0
        self.twin = ScheduledEngine(
            new_id=lambda queue: self.fresh[queue].popleft(),
            cron=lambda pattern, zone: Cron(pattern, zone).next_ms,
            retry_wait_ms=lambda job_id: 0,
        )
        self.listen()

    def listen(self) -> None:
        for queue in QUEUES:
            self.engine.listen(queue, HEARD)
            self.twin.listen(queue)

    @property
    def ms(self) -> int:
        return self.clock.now_ms()

    @property
    def ns(self) -> int:
        return self.clock.now_ns()

    def listened(self) -> None:
        """Note what the engine added by itself, before the twin does the same."""
        for event in self.engine.take_events():
            self.heard.append(event)
            if event[0] == "pushed":
                self.fresh[event[1]].append(event[2])
                self.ids.append(event[2])

    def both(self, command: str, *args: Any, **how: Any) -> object:
        def answer(of: object) -> object:
            try:
                result: object = getattr(of, command)(*args, **how)
            except QError as error:
                return (type(error), str(error))
            return result

        got = answer(self.engine)
        self.listened()
        assert got == answer(self.twin)
        return got

    # --- rules ---------------------------------------------------------------------------

    @rule(
        name=names,
        timing=timings,
        job=occurrences,
        data=st.sampled_from([None, b"\x01"]),
        max_runs=st.sampled_from([0, 0, 1, 3]),
        immediately=st.booleans(),
        flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    )
    def put(
        self,
        name: str,
        timing: tuple[str | None, int, str | None],
        job: dict[str, Any],
        data: bytes | None,
        max_runs: int,
        immediately: bool,
        flags: tuple[bool, bool, bool],
    ) -> None:
        pattern, every_ms, zone = timing
        prevent, skip_missed, needs_worker = flags
        self.engine.put_schedule(
            name,
            name,
            self.ms,
            self.ns,
            pattern=pattern,
            every_ms=every_ms or None,
            zone=zone,
            data=data,
            job={**job, "backoff_ms": 0, "extra": {"uniqueKey": f"cron:{name}"} if prevent else None},
            max_runs=max_runs,
            immediately=immediately,
            prevent_overlap=prevent,
            skip_missed=skip_missed,
            skip_if_no_worker=needs_worker,
        )
        self.listened()
        plan = Plan(name, pattern, every_ms, zone, data, job, max_runs, prevent, skip_missed, needs_worker)
        self.twin.put_schedule(name, plan, self.ms, self.ns, immediately=immediately)

    @rule(name=names)
    def remove(self, name: str) -> None:
        self.both("remove_schedule", name)

    @rule(data=st.sampled_from([b"\x01", b"\x02"]), repeat=repeats, bounds=bounds, removed=st.booleans())
    def push_chain(self, data: bytes, repeat: dict[str, Any], bounds: dict[str, Any], removed: bool) -> None:
        repeat = {"count": 0, **repeat, **bounds}
        got = self.engine.push(
            "chains",
            data,
            self.ms,
            attempts=2,
            backoff_ms=0,
            remove_on_complete=removed,
            extra={"repeat": repeat},
        )
        self.listened()
        assert self.fresh["chains"].popleft() == got
        self.twin.push_repeated(
            "chains", data, self.ms, repeat=repeat, new_id=got, attempts=2, remove_on_complete=removed
        )

    @rule(queue=queues, lease_ms=st.sampled_from([0, 50, 5000]), session=st.integers(0, 2))
    def pull(self, queue: str, lease_ms: int, session: int) -> None:
        got = self.engine.pull(queue, self.ms, self.ns, lease_ms=lease_ms, session=session)
        self.listened()
        token = got[1] if got else None
        assert got == self.twin.pull(queue, self.ms, self.ns, token=token, lease_ms=lease_ms, session=session)
        if got:
            self.tokens[got[0]] = token

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), remove=st.booleans())
    def ack(self, data: st.DataObject, remove: bool) -> None:
        job_id = data.draw(st.sampled_from(list(self.tokens)))
        self.both("ack", job_id, self.ms, token=self.tokens[job_id], remove=remove)

    @rule(queue=queues)
    def pull_and_ack(self, queue: str) -> None:
        self.pull(queue, 5000, 0)
        if self.tokens:
            job_id = next(reversed(self.tokens))
            self.both("ack", job_id, self.ms, token=self.tokens[job_id])

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), final=st.booleans(), remove=st.booleans())
    def fail(self, data: st.DataObject, final: bool, remove: bool) -> None:
        job_id = data.draw(st.sampled_from(list(self.tokens)))
        self.both("fail", job_id, self.ms, token=self.tokens[job_id], unrecoverable=final, remove=remove)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.both("cancel", data.draw(st.sampled_from(self.ids)), self.ms)

    @rule(data=st.data(), value=st.sampled_from([b"\x03", b"\x04"]))
    def update(self, data: st.DataObject, value: bytes) -> None:
        self.both("update", data.draw(st.sampled_from(self.ids)), value)

    @rule()
    def start_over(self) -> None:
        self.both("retry_dead", "chains", self.ms)
        self.both("retry_completed", "chains", self.ms, count=1)

    @rule(session=st.integers(1, 2))
    def close_session(self, session: int) -> None:
        self.both("close_session", session, self.ms)
        self.engine.workers.leave(session)
        self.twin.workers = {k: worker for k, worker in self.twin.workers.items() if worker[1] != session}

    @rule(name=names, queue=names, session=st.integers(1, 2))
    def register(self, name: str, queue: str, session: int) -> None:
        self.engine.workers.register(
            Worker(name, "w", [queue], 1, "host", 1, self.ms, self.ms, self.ns, session)
        )
        self.twin.workers[name] = ([queue], session, self.ns)

    @rule(ms=st.sampled_from([0, 1, 49, 400, 1000, 2000, 59_000, 61_000, 100_000]), step=st.booleans())
    def advance(self, ms: int, step: bool) -> None:
        self.clock.advance(ms)
        if step:
            self.turn()

    @rule(ms=st.sampled_from([-100_000, -30_000, -1001, -999, 500, 3_600_000]))
    def set_clock(self, ms: int) -> None:
        self.clock.set_wall(self.ms + ms)
        self.turn()

    def turn(self) -> None:
        while self.engine.advance(self.ms, self.ns):
            pass
        self.listened()
        assert not self.engine.take_faults()
        self.twin.advance(self.ms, self.ns)

    # --- a store -------------------------------------------------------------------------

    @rule()
    def save(self) -> None:
        cut = rows.take_rows(self.engine, self.ms, self.ns)
        self.store.commit(cut)
        assert self.engine.n_changes == 0
        written = {*cut.inserts[::INSERT_WIDTH], *cut.updates[::UPDATE_WIDTH]}
        self.saved = self.twin.save(self.saved, written, self.ms, self.ns)
        assert rows.take_rows(self.engine, self.ms, self.ns).is_empty

    @precondition(lambda self: self.restarts < 4)
    @rule(
        save_first=st.booleans(),
        keep_leases=st.booleans(),
        charge=st.booleans(),
        away_ms=st.sampled_from([0, 40, 5000, 100_000]),
        step_ms=st.sampled_from([0, 0, -20_000]),
        seed=st.binary(min_size=16, max_size=16),
    )
    def restart(
        self, save_first: bool, keep_leases: bool, charge: bool, away_ms: int, step_ms: int, seed: bytes
    ) -> None:
        if save_first:
            self.save()
        self.restarts += 1
        self.clock = ManualClock(self.ms + away_ms + step_ms, 5)
        self.store = self.store.reopened()
        self.engine = Engine(seed, tracking=True)
        snapshot = self.store.load()
        rows.restore_names(self.engine, snapshot.names, snapshot.queues)
        for row in snapshot.jobs:
            rows.restore(self.engine, row, self.ms, self.ns)
        self.engine.restore_chains()
        for name, packed in snapshot.side["schedules"]:
            self.engine.restore_schedule(str(name), packed, self.ms)
        self.listen()
        self.heard = []
        rows.settle_active(self.engine, keep_leases, charge, self.ms)
        self.listened()
        self.heard = []
        self.twin.restart(self.saved, self.ms, self.ns, keep_leases=keep_leases, charge=charge)
        self.twin.events = []

    # --- agreement -----------------------------------------------------------------------

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "twin"):
            return
        self.engine._check()
        self.listened()
        assert not any(self.fresh.values()), "the twin did not add what the engine added"
        assert Counter(self.heard) == Counter(self.twin.events)
        self.heard, self.twin.events = [], []
        plans = sorted((plan.next_ms, name) for name, plan in self.twin.plans.items())
        assert [(s.next_ms, s.name) for s in self.engine.list_schedules()] == plans
        for name, plan in self.twin.plans.items():
            schedule = self.engine.schedule(name)
            assert schedule is not None
            assert (schedule.executions, schedule.last_ms) == (plan.executions, plan.last_ms)
            assert not plan.max_runs or plan.executions <= plan.max_runs or plan.last_ms is None
        for job_id in self.ids:
            assert self.engine.state(job_id) == self.twin.state(job_id), job_id
            if job_id in self.twin.jobs:
                assert self.engine.run_at_ms(job_id) == self.twin.jobs[job_id].run_ms
        assert self.engine.next_due(self.ms, self.ns) == self.twin.next_due(self.ms, self.ns)


TestSchedules = ScheduleMachine.TestCase
TestSchedules.settings = settings(stateful_step_count=40)
