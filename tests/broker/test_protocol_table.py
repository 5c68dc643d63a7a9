"""The command table says of each field what the server does about it, and of each refusal what it is."""

from __future__ import annotations

from typing import Any

import pytest
from broker_talk import Talk, settle
from test_odd_values import MEANT

from qcore.broker import open_broker
from qcore.broker.handlers import HANDLERS
from qcore.broker.opening import commit
from qcore.clock import ManualClock
from qcore.errors import CODES
from qcore.store.base import StoreFault
from qcore.store.memory import MemoryStore
from qcore.wire.commands import COMMANDS, Command
from qcore.wire.fields import Field

#: Commands that want one of two fields, neither of which is required.
ONE_OF = {"Cron": "Cron job must have either schedule or repeatEvery"}

by_command = pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)


@pytest.fixture
def talk(clock: ManualClock) -> Talk:
    talk = Talk(open_broker(mode="server", clock=clock, seed=bytes(16)))
    assert "codes" in talk.good("Hello", capabilities=["codes"])["capabilities"]
    return talk


NUMBERS = ("int", "number", "time", "duration", "safe", "finite", "length")


def value(field: Field) -> Any:
    return MEANT.get(field.name, 1 if field.kind in NUMBERS else "a")


def required(command: Command) -> dict[str, Any]:
    return {field.name: value(field) for field in command.fields if field.required}


def refusal(talk: Talk, command: Command, fields: dict[str, Any]) -> tuple[str, str] | None:
    """Code and text of a refusal; None when it is not refused, or waits."""
    talk.send({"cmd": command.name, "reqId": "r", **fields})
    settle(talk.broker, talk.session)
    replies = talk.replies()
    if not replies:
        assert command.blocking
        return None
    [reply] = replies
    if reply["ok"]:
        assert "code" not in reply
        return None
    assert reply["code"] in CODES
    return reply["code"], reply["error"]


def test_every_command_is_served_and_described() -> None:
    assert COMMANDS.keys() == HANDLERS.keys()
    for command in COMMANDS.values():
        assert command.help.endswith("."), command.name
        for field in command.fields:
            assert field.help, f"{command.name}.{field.name}"


@by_command
def test_what_is_not_required_may_be_absent(talk: Talk, command: Command) -> None:
    refused = refusal(talk, command, required(command))
    if command.name in ONE_OF:
        assert refused == ("invalid", ONE_OF[command.name])
    elif refused is not None:
        assert refused[0] != "invalid", refused
        assert "required" not in refused[1]


@by_command
def test_what_is_required_is_missed(talk: Talk, command: Command) -> None:
    whole = required(command)
    for name in whole:
        # As data, null is a value.
        for missing in ({}, {} if name == "data" else {name: None}):
            fields = {key: given for key, given in whole.items() if key != name} | missing
            refused = refusal(talk, command, fields)
            assert refused is not None, name
            assert refused[0] == "invalid", (name, refused)


REFUSALS: dict[str, tuple[str, dict[str, Any]]] = {
    "invalid": ("PUSH", {"queue": "a b"}),
    "not_found": ("GetJob", {"id": "nobody"}),
    "state": ("Promote", {"id": "out"}),
    "lease": ("ACK", {"id": "out", "token": "none"}),
    "duplicate": ("PUSHF", {"jobs": [{"id": "out", "queue": "q", "input": {"data": {}}}]}),
    "flow": ("UpdateParent", {"childId": "out", "parentId": "out"}),
    "limit": ("PUSHB", {"queue": "q", "jobs": [{"groupId": "g", "groupMaxSize": 1}] * 2}),
    "unauthenticated": ("Auth", {"token": "wrong"}),
    "unknown_command": ("Nonsense", {}),
}


@pytest.mark.parametrize(("code", "request_"), REFUSALS.items(), ids=list(REFUSALS))
def test_a_refusal_says_what_it_is_to_those_who_asked(
    talk: Talk, code: str, request_: tuple[str, dict[str, Any]]
) -> None:
    talk.good("PUSH", queue="q", jobId="out")
    talk.good("PULL", queue="q", owner="w")
    command, fields = request_
    reply = talk.ask(command, **fields)
    assert (reply["ok"], reply["code"]) == (False, code), reply
    plain = Talk(talk.broker).ask(command, **fields)
    assert plain.keys() == {"ok", "error"}
    assert plain["error"] == reply["error"]


def test_members_of_a_batch_have_codes_of_their_own(talk: Talk) -> None:
    ids = talk.good("PUSHB", queue="q", jobs=[{}, {}])["ids"]
    tokens = talk.good("PULLB", queue="q", owner="w", count=2)["tokens"]
    acks = {"ids": [*ids, "nobody"], "tokens": [tokens[0], "wrong", ""]}
    refused = talk.good("ACKB", **acks)["data"]["refused"]
    assert [one["code"] for one in refused] == ["lease", "state"]
    assert talk.refused("PUSHB", queue="q", jobs=[{"data": "x" * 10_485_760}]).startswith("jobs[0]: ")
    assert talk.ask("PUSHB", queue="q", jobs=[{"data": "x" * 10_485_760}])["code"] == "limit"


def test_refusals_outside_of_commands_have_codes(clock: ManualClock) -> None:
    broker = open_broker(mode="server", clock=clock, seed=bytes(16))
    talk = Talk(broker, max_waits=1, rate_max=5)
    talk.good("Hello", capabilities=["codes"])
    talk.send({"cmd": "PULL", "queue": "empty", "timeout": 1000})
    assert talk.ask("PULL", queue="q", timeout=1000)["code"] == "limit"
    assert talk.ask("WaitJob", id=talk.good("PUSH", queue="q")["id"])["code"] == "limit"
    assert talk.ask("Ping")["code"] == "rate_limited"
    plain = Talk(broker, max_waits=1)
    plain.send({"cmd": "PULL", "queue": "empty", "timeout": 1000})
    assert plain.ask("PULL", queue="q2", timeout=1000).keys() == {"ok", "error"}
    for frame in (b"\x00\x00\x00\x01\xc1", b"\x00\x00\x00\x01\x05"):
        other = Talk(broker)
        other.good("Hello", capabilities=["codes"])
        other.session.feed(frame)
        assert other.replies()[0]["code"] == "invalid"
    other.session.feed(b"\xff\xff\xff\xff")
    assert other.replies()[0]["code"] == "limit"


def test_a_disk_that_fails_has_codes(clock: ManualClock) -> None:
    store = MemoryStore()
    broker = open_broker(store=store, mode="server", clock=clock, seed=bytes(16))
    talk, plain = Talk(broker), Talk(broker)
    talk.good("Hello", capabilities=["codes"])
    requests = (
        {"cmd": "Pause", "queue": "q"},
        {"cmd": "PUSH", "queue": "q", "name": "n", "durable": True},
    )
    for one in (talk, plain):
        one.send(*requests)
    _, cut = broker.pump()
    assert cut is not None
    store.broken = StoreFault("no space left", "full")
    commit(broker, cut)
    assert [reply["code"] for reply in talk.replies()] == ["unknown_outcome", "storage"]
    assert [reply.keys() for reply in plain.replies()] == [{"ok", "error"}] * 2
    assert talk.ask("PUSH", queue="q", name="n", durable=True)["code"] == "storage"
    store.broken = None


def test_a_fault_of_ours_has_a_code(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(answer: object, fields: object) -> None:
        raise RuntimeError

    monkeypatch.setitem(HANDLERS, "Ping", fail)  # type: ignore[arg-type]
    assert talk.ask("Ping")["code"] == "internal"
