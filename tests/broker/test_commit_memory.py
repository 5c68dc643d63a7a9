"""A cut that cannot be taken, or undone, for want of memory loses nothing: the next try has it all."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from broker_talk import Talk, frames

from qcore.broker import open_broker
from qcore.broker.core import Broker
from qcore.broker.opening import commit
from qcore.clock import ManualClock
from qcore.store.base import StoreFault
from qcore.store.memory import MemoryStore

_testcapi = pytest.importorskip("_testcapi")

SEED = bytes(16)
FULL = StoreFault("no space left", "full")


class PackedStore(MemoryStore):
    """Takes cuts whose rows are packed, as the compiled store does."""

    takes_packed = True


def failing_at(nth: int, call: Callable[[], Any]) -> tuple[bool, Any]:
    """Call with the nth allocation failing; whether it was let through, and the result."""
    gc.disable()  # a collection now would fail in what others do in it
    _testcapi.set_nomemory(nth, nth + 1)
    try:
        return True, call()
    except MemoryError:
        return False, None
    finally:
        _testcapi.remove_mem_hooks()
        gc.enable()


def opened(store: MemoryStore, clock: ManualClock) -> Broker:
    return open_broker(store=store, mode="server", clock=clock, seed=SEED, keep_events=True)


def work(talk: Talk, n: int, durable: bool) -> None:
    """Changes of every kind that a cut carries, and replies that wait for it."""
    talk.send({"cmd": "PUSHB", "queue": "q", "jobs": [{"name": f"n{n}", "customId": f"plain-{n}"}]})
    talk.send({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": f"durable-{n}", "durable": durable})
    talk.send({"cmd": "PUSH", "queue": f"q{n}", "name": "n", "jobId": f"going-{n}"})
    talk.send({"cmd": "PULL", "queue": f"q{n}"})
    talk.send({"cmd": "ACK", "id": f"going-{n}"})
    talk.send({"cmd": "AddLog", "id": f"plain-{n}", "message": "m"})


@pytest.mark.parametrize("kind", [MemoryStore, PackedStore])
@pytest.mark.parametrize("behind", [False, True], ids=["alone", "behind one that failed"])
def test_a_cut_that_cannot_be_taken_is_taken_whole_by_the_next_try(
    clock: ManualClock, kind: type[MemoryStore], behind: bool
) -> None:
    """Each allocation on the way fails once, in a life of its own; then there is memory."""
    nth = 0
    while True:
        store = kind()
        broker = opened(store, clock)
        talk, ear = Talk(broker), Talk(broker)
        ear.good("SubscribeEvents", queue="q")
        if behind:
            talk.send({"cmd": "PUSHB", "queue": "q", "jobs": [{"name": "old", "customId": "old"}]})
            talk.send({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": "refused", "durable": True})
            assert broker.begin_commit() is not None
            broker.end_commit(FULL)
        talk.session.take()
        ear.session.take()
        work(talk, 1, not behind)
        passed, cut = failing_at(nth, broker.begin_commit)
        if not passed:
            assert not broker.committing
            talk.send({"cmd": "Cancel", "id": "plain-1"})
            work(talk, 2, not behind)  # durable adds are refused behind one
            cut = broker.begin_commit()
        assert cut is not None
        commit(broker, cut)
        while (cut := broker.begin_commit()) is not None:
            commit(broker, cut)
        broker.engine._check()
        n = 1 if passed else 2
        replies = frames(talk.session.take())
        assert len(replies) == (6 if passed else 13)
        assert all(reply["ok"] for reply in replies), nth
        pushed = [message["event"]["jobId"] for message in frames(ear.session.take())]
        assert sorted({f"durable-{i + 1}" for i in range(n)} & set(pushed)) == [
            f"durable-{i + 1}" for i in range(n)
        ]
        again = opened(store.reopened(), clock)
        assert again.recovery is not None
        assert again.recovery.unreadable == []
        ask = Talk(again)
        for i in range(1, n + 1):
            assert ask.good("GetState", id=f"durable-{i}")["state"] == "waiting", nth
            assert ask.good("GetState", id=f"going-{i}")["state"] == "completed", nth
        assert ask.good("GetState", id=f"plain-{n}")["state"] == "waiting", nth
        assert ask.good("GetState", id="plain-1")["state"] == ("waiting" if passed else "unknown"), nth
        assert ask.good("GetState", id="refused")["state"] == "unknown"
        assert (ask.good("GetState", id="old")["state"] == "waiting") == behind
        events = ask.good("GetEvents", queue="q", limit=1000)["data"]
        ids = [
            entry["event"]["jobId"] for entry in events["events"] if entry["event"]["eventType"] == "pushed"
        ]
        assert len(ids) == len(set(ids)), nth
        assert events["count"] == len(events["events"]), nth
        again.engine._check()
        if passed:
            assert nth > 3  # how many allocations there are depends on what the interpreter keeps free
            return
        nth += 1


def test_a_failed_commit_that_cannot_be_undone_leaves_the_journal_whole(clock: ManualClock) -> None:
    """The row of its durable adds goes from memory only when it is sure to go from the file."""
    for nth in range(40):
        store = MemoryStore()
        broker = opened(store, clock)
        talk = Talk(broker)
        talk.send({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": "refused", "durable": True})
        assert broker.begin_commit() is not None
        failing_at(nth, partial(broker.end_commit, FULL))
        talk.send({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": "later"})
        while (cut := broker.begin_commit()) is not None:
            commit(broker, cut)
        again = opened(store.reopened(), clock)
        found = Talk(again).good("GetEvents", queue="q", limit=10)["data"]
        assert [entry["event"]["jobId"] for entry in found["events"]] == ["later"], nth
        assert found["count"] == 1
