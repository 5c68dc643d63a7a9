"""Unique keys and policies of removal alone, compiled engine and twin side by side.

One queue, one key, no leases, few steps of the clock: what the walk over everything
meets once in a while, this one meets all the time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from qcore.broker import rows
from qcore.engine.engine import Engine
from qcore.errors import QError
from qcore.reference.engine import Engine as Twin
from qcore.reference.engine import Saved
from qcore.reference.keys import Key
from qcore.store.base import INSERT_WIDTH, UPDATE_WIDTH
from qcore.store.memory import MemoryStore

keys = st.builds(
    Key,
    st.just("k"),
    ttl_ms=st.sampled_from([None, 0, 10, 100]),
    extend=st.booleans(),
    replace=st.booleans(),
    keep=st.booleans(),
)
policies = st.sampled_from([False, 1, 2, {"count": 1}, {"age": 0.01}, {"age": 0.1, "count": 3}])


def answer(call: Callable[[], object]) -> object:
    try:
        return call()
    except QError as error:
        return (type(error), str(error))


class KeyMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.ms = 1_700_000_000_000
        self.engine = Engine(bytes(16), tracking=True)
        self.twin = Twin()
        self.store = MemoryStore()
        self.saved = Saved()
        self.ids: list[str] = []

    def same(self, command: str, *args: object, **how: object) -> object:
        got = answer(lambda: getattr(self.engine, command)(*args, **how))
        assert got == answer(lambda: getattr(self.twin, command)(*args, **how)), command
        return got

    @rule(key=st.none() | keys, delay_ms=st.sampled_from([0, 0, 10]), done=policies, dead=policies)
    def push(self, key: Key | None, delay_ms: int, done: Any, dead: Any) -> None:
        key = copy.copy(key)
        extra: dict[str, Any] = {"backoffConfig": {"type": "fixed", "delay": 0, "jitter": 0}}
        if key is not None:
            extra |= {"uniqueKey": "k", "deduplicationTtl": key.ttl_ms, "deduplicationExtend": key.extend}
            extra |= {"deduplicationReplace": key.replace, "deduplicationKeep": key.keep}
        for name, policy in (("removeOnComplete", done), ("removeOnFail", dead)):
            if policy is not False:
                extra[name] = policy
        how: dict[str, Any] = {"delay_ms": delay_ms, "attempts": 1}
        got = answer(lambda: self.engine.push("q", b"\0", self.ms, extra=extra, **how))
        mine = answer(
            lambda: self.twin.push(
                "q", b"\0", self.ms, new_id=str(got), key=key, keep_completed=done, keep_failed=dead, **how
            )
        )
        assert got == mine
        if isinstance(got, str) and got not in self.ids:
            self.ids.append(got)

    @rule(well=st.sampled_from([True, False, None]), remove=policies)
    def run(self, well: bool | None, remove: Any) -> None:
        got = self.same("pull", "q", self.ms, 0)
        if isinstance(got, tuple) and well is not None:
            self.same("ack" if well else "fail", got[0], self.ms, remove=remove)

    @rule(data=st.data(), well=st.booleans())
    def finish(self, data: st.DataObject, well: bool) -> None:
        active = [job_id for job_id in self.ids if self.twin.state(job_id) == "active"]
        if active:
            self.same("ack" if well else "fail", data.draw(st.sampled_from(active)), self.ms)

    @rule(count=st.integers(-1, 2), dead=st.booleans())
    def start_over(self, count: int, dead: bool) -> None:
        self.same("retry_dead" if dead else "retry_completed", "q", self.ms, count=count)

    @rule(ms=st.sampled_from([1, 9, 10, 100, -50]))
    def advance(self, ms: int) -> None:
        self.ms += ms
        self.engine.advance(self.ms, 0)
        self.twin.advance(self.ms, 0)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.ids:
            self.same("remove", data.draw(st.sampled_from(self.ids)))

    @rule()
    def remove_key(self) -> None:
        self.same("remove_key", "q", "k", self.ms)

    @rule(away_ms=st.sampled_from([0, 10, 100, -50]))
    def restart(self, away_ms: int) -> None:
        cut = rows.take_rows(self.engine, self.ms, 0)
        self.store.commit(cut)
        written: set[Any] = {*cut.inserts[::INSERT_WIDTH], *cut.updates[::UPDATE_WIDTH]}
        self.saved = self.twin.save(self.saved, written, self.ms, 0)
        self.ms += away_ms
        self.engine = Engine(bytes(15) + b"\1", tracking=True)
        self.store = self.store.reopened()
        snapshot = self.store.load()
        rows.restore_names(self.engine, snapshot.names, snapshot.queues)
        assert rows.restore_side(self.engine, snapshot.side) == []
        for row in snapshot.jobs:
            rows.restore(self.engine, row, self.ms, 0)
        rows.settle_active(self.engine, False, False, self.ms)
        self.twin.restart(self.saved, self.ms, 0, keep_leases=False, charge=False)

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "twin"):
            return
        self.engine._check()
        assert self.engine.key_owner("q", "k", self.ms) == self.twin.key_owner("q", "k", self.ms)
        for job_id in self.ids:
            assert self.engine.state(job_id) == self.twin.state(job_id), job_id


TestKeys = KeyMachine.TestCase
# Fast enough for more walks than usual.
TestKeys.settings = settings(max_examples=max(200, settings().max_examples), stateful_step_count=40)
