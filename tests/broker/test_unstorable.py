"""Values that some reader could not give back are refused where they come in, and nothing is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from broker_talk import Talk, settle

from qcore.broker import open_broker
from qcore.broker.core import Broker
from qcore.clock import ManualClock

LAST_SECOND = 253_402_300_799
FIRST_SECOND = -62_135_596_800


KEY = "cannot hold a map key that is neither a text nor an integer"
DATE = "cannot hold a timestamp outside of the years 1 to 9999"
ODD = {
    "nil key": ({None: 1}, KEY),
    "bool key": ({True: 1}, KEY),
    "float key": ({1.5: 1}, KEY),
    "binary key": ({b"k": 1}, KEY),
    "array key": ({(1, 2): 1}, KEY),
    "extension key": ({msgpack.Timestamp(0): 1}, KEY),
    "second key": ({"a": {"b": 1}, "c": [{}, {"d": None, None: 1}]}, KEY),
    "year 10000": (msgpack.Timestamp(LAST_SECOND + 1), DATE),
    "year 0": ([{"at": msgpack.Timestamp(FIRST_SECOND - 1)}], DATE),
}
FINE: list[Any] = [
    {1: "a", -1: "b", 2**40: "c", -(2**40): "d", "": 0},
    {"k" * 300: {}, "m": [], "n": [[]], "o": {"p": {}}},
    [
        msgpack.Timestamp(LAST_SECOND, 999_999_999),
        msgpack.Timestamp(FIRST_SECOND),
        msgpack.Timestamp(0),
        {"x": [msgpack.Timestamp(1)], "y": {}},
    ],
    [{}, {}, {"a": {}, "b": [None, True, 1.5, b"x"], "c": {}}],
]

odd = pytest.mark.parametrize(("value", "why"), ODD.values(), ids=list(ODD))


@pytest.fixture
def broker(clock: ManualClock) -> Broker:
    return open_broker(mode="server", clock=clock, seed=bytes(16))


def asked(talk: Talk, cmd: str, **fields: Any) -> Any:
    reply = talk.ask(cmd, **fields, reqId="77")
    assert reply.pop("reqId") == "77"
    return reply


def refused(what: str, why: str) -> dict[str, Any]:
    return {"ok": False, "error": f"{what} {why}"}


# Frames in the plain form, for the compiled paths, and with a field that only the general one knows.
@pytest.mark.parametrize("more", [{}, {"tags": ["t"]}], ids=["plain", "general"])
@odd
def test_adds_refuse_it(broker: Broker, more: dict[str, Any], value: Any, why: str) -> None:
    talk = Talk(broker)
    talk.good("PUSH", queue="q", name="n", data={})
    assert asked(talk, "PUSH", queue="q", name="n", data=value, **more) == refused("Job data", why)
    assert asked(talk, "PUSH", queue="q", data=value, **more) == refused("Job data", why)
    jobs = [{"name": "n", "data": {}, **more}, {"name": "n", "data": value, **more}]
    assert asked(talk, "PUSHB", queue="q", jobs=jobs) == refused("jobs[1]: Job data", why)
    if isinstance(value, dict):
        flow = [{"id": "f", "queue": "q", "input": {"name": "n", "data": value, **more}}]
        assert asked(talk, "PUSHF", jobs=flow) == refused("Job data", why)
    assert talk.good("GetJobCounts", queue="q")["counts"]["waiting"] == 1


@odd
def test_changes_and_schedules_refuse_it(broker: Broker, value: Any, why: str) -> None:
    talk = Talk(broker)
    job = talk.good("PUSH", queue="q", name="n", data={"k": 1})["id"]
    assert asked(talk, "Update", id=job, data=value) == refused("Job data", why)
    assert talk.good("GetJob", id=job)["job"]["data"] == {"k": 1}
    cron = asked(talk, "Cron", name="c", queue="q", data=value, repeatEvery=60_000)
    assert cron == refused("Job data", why)
    assert talk.good("CronList")["crons"] == []


@pytest.mark.parametrize("more", [{}, {"removeOnComplete": False}], ids=["plain", "general"])
@odd
def test_an_acknowledgement_refuses_it_and_may_come_again(
    broker: Broker, more: dict[str, Any], value: Any, why: str
) -> None:
    talk = Talk(broker)
    job = talk.good("PUSH", queue="q", name="n")["id"]
    token = talk.good("PULL", queue="q", owner="w")["token"]
    assert asked(talk, "ACK", id=job, token=token, result=value, **more) == refused("Job result", why)
    assert talk.good("GetState", id=job)["state"] == "active"
    talk.good("ACK", id=job, token=token, result={"done": 1})
    assert talk.good("GetResult", id=job)["result"] == {"done": 1}


def delivered(talk: Talk, n: int) -> tuple[list[str], list[str]]:
    talk.good("PUSHB", queue="q", jobs=[{"name": "n"}] * n)
    pulled = talk.good("PULLB", queue="q", owner="w", count=n)
    return [job["id"] for job in pulled["jobs"]], pulled["tokens"]


@odd
def test_in_a_batch_it_is_refused_for_its_member(broker: Broker, value: Any, why: str) -> None:
    talk = Talk(broker)
    ids, tokens = delivered(talk, 3)
    reply = asked(talk, "ACKB", ids=ids, tokens=tokens, results=[1, value, None])
    assert reply == {
        "ok": True,
        "data": {
            "ignoredIndices": [1],
            "ignoredIds": [ids[1]],
            "refused": [{"index": 1, "id": ids[1], "reason": f"Job result {why}"}],
        },
    }
    states = [talk.good("GetState", id=job)["state"] for job in ids]
    assert states == ["completed", "active", "completed"]
    reply = asked(talk, "ACKB", ids=ids[1:2], tokens=tokens[1:2], results=[value])
    assert reply == refused("Job result", why)


@odd
def test_an_atomic_batch_is_refused_whole(broker: Broker, value: Any, why: str) -> None:
    talk = Talk(broker)
    ids, tokens = delivered(talk, 2)
    reply = asked(talk, "ACKB", ids=ids, tokens=tokens, results=[1, value], atomic=True)
    assert reply == refused("Job result", why)
    assert [talk.good("GetState", id=job)["state"] for job in ids] == ["active", "active"]


def test_a_result_that_is_too_large_is_refused_for_its_member_too(broker: Broker) -> None:
    talk = Talk(broker)
    ids, tokens = delivered(talk, 2)
    reply = asked(talk, "ACKB", ids=ids, tokens=tokens, results=["x" * 10_485_761, 1])
    assert reply["data"]["refused"][0]["reason"] == "Job result too large (max 10MB)"
    assert [talk.good("GetState", id=job)["state"] for job in ids] == ["active", "completed"]


@pytest.mark.parametrize("value", FINE, ids=range(len(FINE)))
def test_what_readers_can_give_back_is_taken(broker: Broker, value: Any) -> None:
    talk = Talk(broker)
    adds: list[Callable[[], Any]] = [
        lambda: talk.good("PUSH", queue="q", name="n", data=value)["id"],
        lambda: talk.good("PUSHB", queue="q", jobs=[{"data": value, "tags": ["t"]}])["ids"][0],
    ]
    for add in adds:
        job = add()
        talk.good("Update", id=job, data=value)
        pulled = talk.good("PULL", queue="q", owner="w")
        assert pulled["job"]["data"] == value
        talk.good("ACK", id=job, token=pulled["token"], result=value)
        assert talk.good("GetResult", id=job)["result"] == value


@odd
def test_what_an_older_file_holds_is_still_delivered_and_listed(broker: Broker, value: Any, why: str) -> None:
    talk = Talk(broker)
    ids = talk.good("PUSHB", queue="q", jobs=[{"name": "n", "data": 1}] * 3)["ids"]
    packed = msgpack.packb(value)
    talk.session.update(ids[1], packed)
    # As they came: what reads frames here has no use for some of the keys.
    for request in ({"cmd": "GetJobs", "queue": "q"}, {"cmd": "PULLB", "queue": "q", "count": 3}):
        talk.send(request)
        settle(broker, talk.session)
        out = talk.session.take()
        assert packed in out
        assert all(job.encode() in out for job in ids)
