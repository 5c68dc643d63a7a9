"""The file is always a past state of the engine: after every command it brings back what the engine was."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from broker_talk import Talk

from qcore.broker import open_broker
from qcore.clock import ManualClock
from qcore.store.base import Cut
from qcore.store.memory import MemoryStore
from tests.crash.campaign import BrokerCaller
from tests.crash.script import order, perform, picture, request_of

PART = 1


class Caller:
    """Commits what its replies wait for, and keeps the store as it was when the first of them ended."""

    def __init__(self, talk: Talk, store: MemoryStore) -> None:
        self.talk = talk
        self.store = store
        self.left: MemoryStore | None = None

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        self.talk.send(request)
        while not (replies := self.talk.replies()):
            self.commit()
        reply: dict[str, Any] = replies[0]
        return reply

    def commit(self) -> bool:
        cut = self.talk.broker.begin_commit()
        if cut is None:
            return False
        self.store.commit(cut)
        self.left = self.store.reopened()
        self.talk.broker.end_commit()
        return True

    def close(self) -> None:
        self.talk.session.close()


class PackedStore(MemoryStore):
    """Takes rows as a compiled store does."""

    takes_packed = True

    def commit(self, cut: Cut, *, sync: bool = False) -> None:
        super().commit(cut.unpacked(), sync=sync)


@pytest.mark.parametrize("kind", [MemoryStore, PackedStore])
@pytest.mark.parametrize("seed", range(10))
def test_every_commit_brings_back_what_the_engine_was(
    clock: ManualClock, seed: int, kind: type[MemoryStore]
) -> None:
    """Jobs, results, logs, keys, groups, flows, settings, counts of events and outcomes, and the order."""
    rng = Random(seed)
    store = kind()
    # Every new job of a packed cut is encoded before that is taken.
    talk = Talk(open_broker(store=store, mode="server", clock=clock, seed=bytes(16), ahead_rows=0))
    caller, looking = Caller(talk, store), BrokerCaller(talk.broker)
    held: dict[str, str] = {}
    back = None
    for n in range(1, 60):
        clock.advance(1)
        perform(caller, request_of(PART, n, held, rng), held)
        while caller.commit():
            pass
        if caller.left is None:
            continue
        back = open_broker(store=caller.left, mode="server", clock=clock, seed=bytes([1] * 16))
        back.engine._check()
        assert picture(BrokerCaller(back), PART) == picture(looking, PART)
    assert back is not None
    assert order(BrokerCaller(back), PART) == order(looking, PART)
