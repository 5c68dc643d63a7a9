"""What a job is tied to, as clients ask for it; adds before what they depend on; acknowledgements as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from broker_talk import Talk

from qcore.broker.core import Broker
from qcore.broker.embedded import EmbeddedEngine
from qcore.broker.opening import close_broker, open_broker
from qcore.clock import ManualClock


@pytest.fixture
def broker(clock: ManualClock) -> Broker:
    return open_broker(None, mode="server", clock=clock, seed=bytes(16))


@pytest.fixture
def talk(broker: Broker) -> Talk:
    return Talk(broker)


def run(talk: Talk, queue: str, cmd: str = "ACK", **fields: Any) -> None:
    delivery = talk.good("PULL", queue=queue, owner="w")
    talk.good(cmd, id=delivery["job"]["id"], token=delivery["token"], **fields)


# --- GetDependencies ------------------------------------------------------------------------------


def test_each_child_is_where_it_belongs(talk: Talk) -> None:
    talk.good("PUSH", queue="p", name="n", jobId="p")
    for child, more in (
        ("done", {}),
        ("hidden", {"removeOnComplete": True}),
        ("failed", {"maxAttempts": 1}),
        ("ignored", {"maxAttempts": 1, "ignoreDependencyOnFailure": True}),
        ("gone", {}),
        ("open", {}),
    ):
        talk.good("PUSH", queue=f"q-{child}", name="n", jobId=child, parentId="p", **more)
    run(talk, "q-done", result={"a": 1})
    run(talk, "q-hidden", result=None)
    run(talk, "q-failed", "FAIL", error="no")
    run(talk, "q-ignored", "FAIL", error="no")
    talk.good("Cancel", id="gone")
    reply = talk.good("GetDependencies", id="p")
    assert reply["data"] == {
        "processed": {"done": {"a": 1}, "hidden": None},
        "unprocessed": ["open"],
        "failed": ["failed"],
        "ignored": ["ignored"],
        "missing": ["gone"],
        "counts": {"processed": 2, "unprocessed": 1, "failed": 1, "ignored": 1, "missing": 1},
    }
    assert talk.good("GetState", id="p")["state"] == "waiting-children"
    talk.good("PUSH", queue="q-gone", name="n", jobId="gone", parentId="p")
    assert talk.good("GetDependencies", id="p")["data"]["missing"] == []


def test_a_limit_cuts_lists_and_not_counts(talk: Talk) -> None:
    talk.good("PUSHB", queue="q", jobs=[{"customId": f"c{i}", "name": "n"} for i in range(5)])
    talk.good("PUSH", queue="p", name="n", jobId="p", dependsOn=[f"c{i}" for i in range(5)])
    run(talk, "q", result=1)
    run(talk, "q", result=2)
    data = talk.good("GetDependencies", id="p", limit=1)["data"]
    assert (data["processed"], data["unprocessed"]) == ({"c0": 1}, ["c2"])
    assert data["counts"] == {"processed": 2, "unprocessed": 3, "failed": 0, "ignored": 0, "missing": 0}
    assert talk.good("GetDependencies", id="p", limit=0)["data"]["processed"] == {}
    assert talk.refused("GetDependencies", id="p", limit=-1) == "limit must be at least 0"


def test_a_job_that_is_not_there_is_tied_to_nothing(talk: Talk) -> None:
    assert talk.refused("GetDependencies", id="x") == "Job not found"
    talk.good("PUSH", queue="q", name="n", jobId="lone")
    assert set(talk.good("GetDependencies", id="lone")["data"]["counts"].values()) == {0}


# --- allowUnknownDependencies -----------------------------------------------------------------------


def test_a_dependent_may_come_before_what_it_depends_on(talk: Talk) -> None:
    assert talk.refused("PUSH", queue="q", name="n", dependsOn=["later"]) == "Dependency job not found: later"
    talk.good("PUSH", queue="q", name="n", jobId="d", dependsOn=["later"], allowUnknownDependencies=True)
    assert talk.good("GetState", id="d")["state"] == "waiting-children"
    assert talk.good("GetDependencies", id="d")["data"]["missing"] == ["later"]
    talk.good("PUSH", queue="other", name="n", jobId="later")
    assert talk.good("GetDependencies", id="d")["data"]["unprocessed"] == ["later"]
    run(talk, "other")
    assert talk.good("GetState", id="d")["state"] == "waiting"


def test_only_the_job_that_says_so(talk: Talk) -> None:
    jobs = [
        {"customId": "a", "dependsOn": ["later"], "allowUnknownDependencies": True},
        {"customId": "b", "dependsOn": ["later"]},
    ]
    assert talk.refused("PUSHB", queue="q", jobs=jobs) == "jobs[1]: Dependency job not found: later"
    assert talk.good("Count", queue="q")["count"] == 0
    assert talk.good("GetState", id="a")["state"] == "unknown"


def test_nobody_waits_for_itself_by_way_of_an_unknown_one(talk: Talk) -> None:
    talk.good("PUSH", queue="q", name="n", jobId="d", dependsOn=["later"], allowUnknownDependencies=True)
    assert "cycle" in talk.refused("PUSH", queue="q", name="n", jobId="later", dependsOn=["d"])


def test_a_flow_may_depend_on_what_is_still_to_come(talk: Talk) -> None:
    node = {"name": "n", "data": {}, "dependsOn": ["later"]}
    entry = {"id": "f", "queue": "q", "input": node}
    assert talk.refused("PUSHF", jobs=[entry]) == "flow dependency not found: later"
    talk.good("PUSHF", jobs=[{**entry, "input": {**node, "allowUnknownDependencies": True}}])
    talk.good("PUSH", queue="other", name="n", jobId="later")
    run(talk, "other")
    assert talk.good("GetState", id="f")["state"] == "waiting"


def test_an_unknown_dependency_is_waited_for_after_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    path = str(tmp_path / "jobs.db")
    broker = open_broker(path, mode="server", clock=clock, seed=bytes(16))
    Talk(broker).good(
        "PUSH", queue="q", name="n", jobId="d", dependsOn=["later"], allowUnknownDependencies=True
    )
    close_broker(broker)
    broker = open_broker(path, mode="server", clock=clock, seed=bytes([1] * 16))
    talk = Talk(broker)
    assert talk.good("GetDependencies", id="d")["data"]["missing"] == ["later"]
    talk.good("PUSH", queue="other", name="n", jobId="later")
    run(talk, "other")
    assert talk.good("GetState", id="d")["state"] == "waiting"
    broker.engine._check()
    close_broker(broker)


# --- ACKB with atomic ---------------------------------------------------------------------------------


def test_invariant_12_an_atomic_batch_is_applied_as_a_whole_or_not_at_all(talk: Talk) -> None:
    talk.good("PUSHB", queue="q", jobs=[{"customId": i} for i in "abc"])
    tokens = talk.good("PULLB", queue="q", count=3, owner="w")["tokens"]
    for bad in range(3):
        given = [*tokens]
        given[bad] = tokens[bad - 1]
        text = talk.refused("ACKB", ids=["a", "b", "c"], tokens=given, atomic=True)
        assert text == f"Invalid or expired lock token for job {'abc'[bad]}"
        assert [talk.good("GetState", id=i)["state"] for i in "abc"] == ["active"] * 3
    assert "data" not in talk.good("ACKB", ids=["a", "b", "c"], tokens=tokens, atomic=True)
    assert [talk.good("GetState", id=i)["state"] for i in "abc"] == ["completed"] * 3


def test_an_atomic_batch_passes_over_what_is_final(talk: Talk, clock: ManualClock) -> None:
    """A member that timed out is no refused one."""
    talk.good("PUSH", queue="q", jobId="late", name="n", timeout=100, maxAttempts=1)
    talk.good("PUSH", queue="q", jobId="good", name="n")
    tokens = talk.good("PULLB", queue="q", count=2, owner="w")["tokens"]
    clock.advance(200)
    talk.broker.pump()
    reply = talk.good("ACKB", ids=["late", "good"], tokens=tokens, atomic=True)
    assert reply["data"] == {"ignoredIndices": [0], "ignoredIds": ["late"]}
    assert talk.good("GetState", id="good")["state"] == "completed"


# --- the end of an embedded engine ----------------------------------------------------------------------


def test_invariant_54_who_waits_is_answered_when_an_embedded_engine_closes() -> None:
    engine = EmbeddedEngine(None)
    heard: list[None] = []
    session = engine.session(lambda: heard.append(None))
    talk = Talk(engine.broker)
    talk.good("PUSH", queue="q", name="n", jobId="a", delay=100_000)
    other = Talk(engine.broker)
    other.send({"cmd": "WaitJob", "id": "a", "timeout": 600_000})
    other.send({"cmd": "PULL", "queue": "q", "timeout": 60_000, "owner": "w"})
    assert other.replies() == []
    told = other.heard
    engine.close()
    assert other.heard > told
    assert heard
    assert other.replies() == [{"ok": True, "completed": False}, {"ok": True, "job": None, "token": None}]
    # Nobody begins to wait in what is closing.
    other.send({"cmd": "WaitJob", "id": "a", "timeout": 600_000}, {"cmd": "PULL", "queue": "q", "timeout": 9})
    assert other.replies() == [{"ok": True, "completed": False}, {"ok": True, "job": None}]
    assert session.take() == b""
