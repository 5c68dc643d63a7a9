"""Every field of every command with values that nobody means: an answer in words, and nothing broken."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from broker_talk import Talk

from qcore.broker import open_broker
from qcore.clock import ManualClock
from qcore.store.memory import MemoryStore
from qcore.wire.commands import COMMANDS, JOB_OPTIONS, Command

ODD: list[Any] = [
    *(2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**31) - 1, -(2**53), -(2**63)),
    *(1e300, -1e300, 4.32e15, 4.33e15, 0.5, -0.5, float("nan"), float("inf"), float("-inf")),
    *(True, False, 0, -1, None, "", "5", "-5", "1e300", "x", "é☃", "\0", "x" * 70_000, b"", b"x"),
    *([], [None], ["x"], [2**63], [1e300], [[]], [{}], {}, {"ttl": 1e300}, {"every": 1e300}, {"every": 1e-9}),
    *({"age": 1e300}, {"count": 2**60}, {"count": 1.5}, {"delay": 1e300, "type": "fixed"}, {"limit": 1e300}),
    *({"concurrency": 2**53 - 1}, {"limit": {"max": 2**53 - 1, "duration": 2**53 - 1}}, {"offset": 2**70.0}),
    *({"pattern": "* * * * *", "tz": "Nowhere/None"}, {"pattern": "0 0 30 2 *"}, {"olderThan": -1e300}),
    *({"maxStalls": 1e300}, {"stallInterval": 0.1}, {"maxAge": 1e300}, {"autoRetryInterval": 1e300}),
]
#: A value for what a command requires, so that it comes to the field in question.
MEANT: dict[str, Any] = {
    "queue": "q",
    "id": "a",
    "ids": ["a", "b"],
    "name": "n",
    "data": {"k": 1},
    "jobs": [{}],
    "url": "https://example.com/",
    "events": [],
    "eventTypes": ["completed"],
    "groupId": "g",
    "tokens": [None, None],
    "durations": [1000, 1000],
    "queues": ["q"],
    "config": {},
    "priority": 1,
    "progress": 1,
    "message": "m",
    "enabled": True,
    "repeatEvery": 60_000,
}


def meant(command: Command) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for field in command.fields:
        if field.required or field.name in ("queue", "repeatEvery"):
            out[field.name] = MEANT.get(
                field.name, 1 if field.kind in ("int", "number", "time", "duration") else "a"
            )
    return out


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)
@pytest.mark.parametrize("durable", [False, True])
def test_no_value_of_any_field_breaks_anything(
    clock: ManualClock, caplog: pytest.LogCaptureFixture, command: Command, durable: bool
) -> None:
    caplog.set_level(logging.ERROR)
    store = MemoryStore() if durable else None
    broker = open_broker(store=store, mode="server", clock=clock, seed=bytes(16))
    talk, other = Talk(broker), Talk(broker)
    names = [field.name for field in command.fields]
    for field in names:
        for value in ODD:
            if len(broker.engine) < 4:
                other.good(
                    "PUSHB", queue="q", jobs=[{"customId": "a"}, {"customId": "b", "delay": 5}, {}, {}]
                )
                other.good("PULL", queue="q", owner="w")
            request = {**meant(command), field: value}
            talk.send({"cmd": command.name, "reqId": "r", **request})
            for _ in range(3):
                _, cut = broker.pump()
                if cut is not None:
                    assert store is not None
                    store.commit(cut)
                    broker.end_commit()
            for reply in talk.replies():
                assert reply.get("error") != "Internal server error", (command.name, field, value)
        broker.engine._check()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    # Time that passes finds nothing it cannot handle either.
    for step in (1, 1_000, 100_000, 10**9):
        clock.advance(step)
        for _ in range(50):
            seconds, cut = broker.pump()
            if cut is not None:
                assert store is not None
                store.commit(cut)
                broker.end_commit()
            elif seconds != 0:
                break
    broker.engine._check()
    talk.send({"cmd": "Ping", "reqId": "last"})
    assert any(reply.get("reqId") == "last" for reply in talk.replies())
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("option", [field.name for field in JOB_OPTIONS])
def test_no_value_of_any_option_breaks_its_job(clock: ManualClock, option: str) -> None:
    """What is admitted can be delivered, fail, be stored and come back."""
    store = MemoryStore()
    broker = open_broker(store=store, mode="server", clock=clock, seed=bytes(16))
    talk = Talk(broker)
    for value in ODD:
        reply = talk.ask("PUSHB", queue="q", jobs=[{option: value}])
        assert reply.get("error") != "Internal server error", value
        got = talk.good("PULL", queue="q", owner="w")
        if got["job"] is not None:
            talk.good("FAIL", id=got["job"]["id"], token=got["token"], error="no")
        talk.good("GetJobs", queue="q", limit=5)
        broker.engine._check()
    again = open_broker(store=store.reopened(), mode="server", clock=clock, seed=bytes([1] * 16))
    assert again.recovery.unreadable == []
    again.engine._check()
