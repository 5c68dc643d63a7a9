"""Bad options of adds and schedules: refused with a text that says why, and nothing has changed."""

from __future__ import annotations

from typing import Any

import pytest
from broker_talk import Talk

from qcore.broker.core import Broker
from qcore.broker.opening import open_broker
from qcore.clock import ManualClock

END_OF_CALENDAR_MS = 253_402_300_799_000


@pytest.fixture
def broker(clock: ManualClock) -> Broker:
    return open_broker(None, mode="server", clock=clock, seed=bytes(16))


@pytest.fixture
def talk(broker: Broker) -> Talk:
    return Talk(broker)


@pytest.mark.parametrize(
    ("repeat", "text"),
    [
        ({"pattern": "* * * * *", "startDate": END_OF_CALENDAR_MS}, "never comes due after repeat.startDate"),
        ({"pattern": "0 0 29 2 *", "startDate": END_OF_CALENDAR_MS - 1000}, "never comes due after"),
        ({"every": 1000, "tz": "Mars/Olympus"}, "Invalid repeat.tz: unknown time zone 'Mars/Olympus'"),
        ({"pattern": "* * * * *", "tz": "Mars/Olympus"}, "unknown time zone 'Mars/Olympus'"),
        ({"every": 1000, "limit": 1.5}, "repeat.limit must be an integer"),
        ({"every": 1000, "limit": 1, "count": -5}, "repeat.count must be at least 0"),
    ],
)
def test_a_chain_that_cannot_be_kept_is_refused(talk: Talk, repeat: dict[str, Any], text: str) -> None:
    assert text in talk.refused("PUSH", queue="q", name="n", repeat=repeat)
    assert text in talk.refused("PUSHB", queue="q", jobs=[{"name": "n"}, {"name": "n", "repeat": repeat}])
    assert talk.good("Count", queue="q")["count"] == 0


def test_nothing_of_a_chain_runs_before_its_start(talk: Talk, clock: ManualClock) -> None:
    late = clock.now_ms() + 10**12
    talk.good("PUSH", queue="q", name="n", repeat={"every": 1000, "startDate": late})
    talk.good("PUSH", queue="q", name="n", repeat={"every": 1000, "startDate": 8.6e15, "offset": 1e300})
    assert talk.good("PULLB", queue="q", count=9)["jobs"] == []


def test_a_schedule_without_a_pattern_has_no_unknown_zone(talk: Talk) -> None:
    text = talk.refused("Cron", name="s", queue="q", repeatEvery=1000, timezone="Mars/Olympus")
    assert text == "Invalid cron expression: unknown time zone 'Mars/Olympus'"
    assert talk.good("CronList")["crons"] == []
    assert "maxLimit must be an integer" in talk.refused(
        "Cron", name="s", queue="q", repeatEvery=1000, maxLimit=0.5
    )


def test_a_refused_flag_changes_nothing(talk: Talk) -> None:
    talk.good("PUSH", queue="p", jobId="p", name="n")
    for name in ("failParentOnFailure", "lifo", "durable"):
        assert talk.refused("PUSH", queue="q", name="n", parentId="p", **{name: "false"}) == (
            f"{name} must be a boolean"
        )
    assert talk.good("GetState", id="p")["state"] == "waiting"
    assert talk.good("Count", queue="q")["count"] == 0


def test_what_came_is_said_to_those_who_ask_for_it(talk: Talk) -> None:
    assert "came" not in talk.ask("PUSH", queue="q", lifo="false")
    talk.good("Hello", capabilities=["codes"])
    reply = talk.ask("PUSH", queue="q", lifo="secret")
    assert (reply["error"], reply["came"]) == ("lifo must be a boolean", "a string of 6 characters")
    reply = talk.ask("PUSHB", queue="q", jobs=[{}, {"delay": [1]}])
    assert (reply["error"], reply["came"]) == ("jobs[1]: delay must be a number", "an array of 1")


# --- children that are there already --------------------------------------------------------------


@pytest.fixture
def family(talk: Talk) -> Talk:
    talk.good("PUSHB", queue="p", jobs=[{"customId": "p", "name": "n"}, {"customId": "other", "name": "n"}])
    talk.good("PUSH", queue="q", name="n", jobId="c", parentId="p", uniqueKey="k")
    return talk


def test_the_same_child_may_be_added_again(family: Talk) -> None:
    assert family.good("PUSH", queue="q", name="n", jobId="c", parentId="p")["id"] == "c"
    assert family.good("PUSH", queue="q", name="n", uniqueKey="k", parentId="p")["id"] == "c"
    assert family.good("PUSH", queue="q", name="n", jobId="c")["id"] == "c"
    assert family.good("PUSH", queue="q", name="n", jobId="c", parentId="not there")["id"] == "c"
    assert family.good("PUSH", queue="q", name="n", uniqueKey="k", parentId="not there")["id"] == "c"


def test_a_parent_is_not_promised_a_child_that_is_not_its_own(family: Talk) -> None:
    by_id = {"name": "n", "customId": "c", "parentId": "other"}
    by_key = {"name": "n", "uniqueKey": "k", "parentId": "other"}
    id_text = "Job c exists already and is not a child of other"
    key_text = "The unique key is held by a job that is not a child of other"
    assert family.refused("PUSH", queue="q", name="n", jobId="c", parentId="other") == id_text
    assert family.refused("PUSH", queue="q", **by_key) == key_text
    assert family.refused("PUSHB", queue="q", jobs=[{"name": "n"}, by_id]) == f"jobs[1]: {id_text}"
    assert family.refused("PUSHB", queue="q", jobs=[{"name": "n"}, by_key]) == f"jobs[1]: {key_text}"
    assert family.good("GetState", id="other")["state"] == "waiting"
    assert family.good("Count", queue="q")["count"] == 1


def test_nor_one_that_another_of_the_same_batch_drops(talk: Talk) -> None:
    talk.good("PUSH", queue="p", jobId="p", name="n")
    for first in ({"customId": "c"}, {"uniqueKey": "k"}):
        text = talk.refused("PUSHB", queue="q", jobs=[first, {**first, "parentId": "p"}])
        assert text.startswith("jobs[1]: ")
        assert "not a child of p" in text
        assert talk.good("PUSHB", queue="q", jobs=[{**first, "parentId": "p"}] * 2)["ids"]


def test_a_key_that_outlived_its_job_is_nobodys_child(talk: Talk) -> None:
    talk.good("PUSH", queue="q", name="n", uniqueKey="k", dedup={"ttl": 60_000, "keepUntilExpiry": True})
    delivery = talk.good("PULL", queue="q", owner="w")
    talk.good("ACK", id=delivery["job"]["id"], token=delivery["token"])
    talk.good("PUSH", queue="p", jobId="p", name="n")
    assert "not a child of p" in talk.refused("PUSH", queue="q", name="n", uniqueKey="k", parentId="p")


def test_a_child_that_takes_the_place_of_a_job_is_waited_for(talk: Talk) -> None:
    talk.good("PUSH", queue="p", jobId="p", name="n")
    talk.good("PUSH", queue="q", name="n", uniqueKey="k")
    talk.good("PUSH", queue="q", name="n", uniqueKey="k", dedup={"replace": True}, parentId="p")
    assert talk.good("GetState", id="p")["state"] == "waiting-children"


@pytest.mark.parametrize("req_id", [5, 0, -(2**31), 1.5, None, True, False, [1, "a"], b"raw", "text"])
@pytest.mark.parametrize(
    ("cmd", "fields"),
    [
        ("PUSH", {"queue": "a b", "name": "n"}),
        ("PUSH", {"queue": "q", "name": "n", "delay": "soon"}),
        ("PUSH", {"queue": "q", "name": ""}),
        ("PUSHB", {"queue": "q", "jobs": [{"name": "n", "delay": []}]}),
        ("PULL", {"queue": ""}),
        ("PULLB", {"queue": "q", "count": 0}),
        ("ACK", {"id": "nobody"}),
        ("ACKB", {"ids": ["a"], "tokens": []}),
        ("CronGet", {"name": "nobody"}),
    ],
)
def test_a_refusal_has_the_request_id_as_it_came(
    talk: Talk, cmd: str, fields: dict[str, object], req_id: object
) -> None:
    """A client that numbers its requests would wait for its timeout."""
    talk.send({"cmd": cmd, "reqId": req_id, **fields})
    (reply,) = talk.replies()
    assert reply["ok"] is False
    assert reply["reqId"] == req_id
    assert type(reply["reqId"]) is type(req_id)
