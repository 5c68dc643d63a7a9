"""A resend after a lost reply is safe for clients that understand outcomes."""

from __future__ import annotations

import pytest
from broker_talk import Talk

from qcore.broker import open_broker
from qcore.broker.opening import close_broker, flush
from qcore.store.memory import MemoryStore


def deliver(worker: Talk, producer: Talk, n: int = 1) -> tuple[list[str], list[str]]:
    ids = producer.good("PUSHB", queue="q", jobs=[{"name": "n", "maxAttempts": 1}] * n)["ids"]
    reply = worker.good("PULLB", queue="q", count=n, owner="w")
    assert [job["id"] for job in reply["jobs"]] == ids
    return ids, reply["tokens"]


@pytest.fixture
def pair() -> tuple[Talk, Talk]:
    broker = open_broker()
    worker = Talk(broker)
    worker.good("Hello", capabilities=["outcomes"])
    return worker, Talk(broker)


def test_the_same_acknowledgement_again_answers_the_same(pair: tuple[Talk, Talk]) -> None:
    worker, producer = pair
    (job,), (token,) = deliver(worker, producer)
    for _ in range(3):
        assert worker.ask("ACK", id=job, token=token, result=1) == {"ok": True}
    assert producer.good("GetResult", id=job)["result"] == 1
    # The other outcome was not the one.
    assert worker.good("FAIL", id=job, token=token)["data"] == {
        "applied": False,
        "reason": "already-finalized",
    }
    assert producer.good("GetState", id=job)["state"] == "completed"


def test_a_batch_again_in_other_company(pair: tuple[Talk, Talk]) -> None:
    worker, producer = pair
    ids, tokens = deliver(worker, producer, 3)
    assert worker.ask("ACKB", ids=ids[:2], tokens=tokens[:2]) == {"ok": True}
    assert worker.ask("ACKB", ids=ids, tokens=tokens) == {"ok": True}
    assert producer.good("GetJobCounts", queue="q")["counts"]["completed"] == 3


def test_a_failure_again(pair: tuple[Talk, Talk]) -> None:
    worker, producer = pair
    (job,), (token,) = deliver(worker, producer)
    for _ in range(2):
        assert worker.ask("FAIL", id=job, token=token, error="x") == {"ok": True}
    assert worker.good("ACK", id=job, token=token)["data"]["applied"] is False
    assert producer.good("GetJob", id=job)["job"]["attempts"] == 1


@pytest.mark.parametrize(
    ("command", "how"), [("ACK", {}), ("ACK", {"removeOnComplete": False}), ("FAIL", {})]
)
def test_a_token_is_the_outcome_of_its_own_delivery_only(
    pair: tuple[Talk, Talk], command: str, how: dict[str, object]
) -> None:
    """A delivery without a lease takes any token, also that of another one."""
    worker, producer = pair
    (job,), (token,) = deliver(worker, producer)
    producer.good("PUSH", queue="other", name="n", jobId="unleased")
    worker.good("PULL", queue="other")
    assert worker.ask(command, id="unleased", token=token, **how) == {"ok": True}
    worker.good("MoveToWait", id=job, token=token)
    worker.good("PULL", queue="q", owner="w")
    assert worker.refused(command, id=job, token=token, **how).startswith("Invalid or expired lock token")


@pytest.mark.parametrize(("command", "state"), [("ACK", "completed"), ("FAIL", "waiting")])
def test_a_restart_forgets_the_answers_and_a_resend_changes_nothing(command: str, state: str) -> None:
    store = MemoryStore()
    broker = open_broker(store=store, mode="server")
    worker = Talk(broker)
    worker.good("Hello", capabilities=["outcomes"])
    job = worker.good("PUSH", queue="q", name="n", maxAttempts=2, backoff=0, durable=True)["id"]
    token = worker.good("PULL", queue="q", owner="w")["token"]
    worker.good(command, id=job, token=token)
    flush(broker)
    again = Talk(open_broker(store=store.reopened(), mode="server"))
    again.good("Hello", capabilities=["outcomes"])
    for _ in range(2):
        refusal = again.refused(command, id=job, token=token)
        assert refusal.startswith("Job not found or not in processing state")
        assert again.good("GetState", id=job)["state"] == state
    if state == "waiting":
        # Nor once somebody else has it.
        other = again.good("PULL", queue="q", owner="w2")
        assert other["job"]["attempts"] == 1
        assert again.refused(command, id=job, token=token).startswith("Invalid or expired lock token")
        assert again.good("ACK", id=job, token=other["token"])


def test_others_get_the_recorded_error(pair: tuple[Talk, Talk]) -> None:
    _, producer = pair
    plain = Talk(producer.broker)
    (job,), (token,) = deliver(plain, producer)
    assert plain.ask("ACK", id=job, token=token) == {"ok": True}
    assert plain.ask("ACK", id=job, token=token) == {
        "ok": False,
        "error": f"Job not found or not in processing state: {job}",
    }


def test_a_wait_for_a_job_that_was_removed_on_completion_is_answered_from_evidence() -> None:
    store = MemoryStore()
    broker = open_broker(store=store)
    talk = Talk(broker)
    ids = [*talk.good("PUSHB", queue="q", jobs=[{"customId": "text"}, {}])["ids"]]
    for job_id in ids:
        talk.good("PULL", queue="q")
        talk.good("ACK", id=job_id, result=5, removeOnComplete=True)
    close_broker(broker)
    for life in (talk, Talk(open_broker(store=store.reopened()))):
        for job_id in ids:
            assert life.ask("WaitJob", id=job_id) == {"ok": True, "completed": True}
            assert life.good("GetState", id=job_id)["state"] == "unknown"
        assert life.refused("WaitJob", id="another") == "Job not found"


def test_a_wait_finds_the_result_that_is_held_for_a_parent() -> None:
    talk = Talk(open_broker())
    talk.good("PUSH", queue="q", jobId="child")
    talk.good("PUSH", queue="other", jobId="parent", dependsOn=["child"], childrenIds=["child"])
    talk.good("PULL", queue="q")
    talk.good("ACK", id="child", result=5, removeOnComplete=True)
    assert talk.ask("WaitJob", id="child") == {"ok": True, "completed": True, "result": 5}
    assert talk.ask("GetResult", id="child") == {"ok": True, "id": "child"}
    talk.good("PULL", queue="other")
    talk.good("ACK", id="parent")
    assert talk.ask("WaitJob", id="child") == {"ok": True, "completed": True}


def test_evidence_ends_with_the_next_job_of_that_id_and_with_its_queue() -> None:
    talk = Talk(open_broker())
    for _ in range(2):
        talk.good("PUSH", queue="q", jobId="a")
        talk.good("PULL", queue="q")
        talk.good("ACK", id="a", removeOnComplete=True)
        assert talk.ask("WaitJob", id="a") == {"ok": True, "completed": True}
    talk.good("PUSH", queue="q", jobId="a")
    talk.good("Cancel", id="a")
    assert talk.refused("WaitJob", id="a") == "Job not found"
    talk.good("PUSH", queue="q", jobId="b")
    talk.good("PULL", queue="q")
    talk.good("ACK", id="b", removeOnComplete=True)
    talk.good("Obliterate", queue="q")
    assert talk.refused("WaitJob", id="b") == "Job not found"
