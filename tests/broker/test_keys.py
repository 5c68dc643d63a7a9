"""Unique keys, custom ids and policies of removal over the wire."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from broker_talk import Talk, frame, frames, settle

from qcore.broker import open_broker
from qcore.broker.core import Broker
from qcore.broker.opening import close_broker, commit
from qcore.broker.session import Session
from qcore.clock import ManualClock
from qcore.store.base import StoreFault
from qcore.store.memory import MemoryStore

SEED = bytes(range(16))
NAMES = json.loads((Path(__file__).parent.parent / "data" / "names.json").read_text())


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def broker(store: MemoryStore, clock: ManualClock) -> Broker:
    return open_broker(store=store, mode="server", clock=clock, seed=SEED)


@pytest.fixture
def talk(broker: Broker) -> Talk:
    return Talk(broker)


def push(talk: Talk, key: str = "k", **options: Any) -> Any:
    return talk.good("PUSH", queue="q", name="n", uniqueKey=key, **options)["id"]


def owner(talk: Talk, key: str = "k") -> Any:
    return talk.good("GetDeduplicationJobId", queue="q", deduplicationId=key)["data"]["jobId"]


# --- words -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cmd", "fields", "text"),
    [
        ("GetDeduplicationJobId", {"queue": "q"}, "deduplicationId is required"),
        ("RemoveDeduplicationKey", {"queue": "a b"}, "Queue name contains invalid characters"),
        ("RemoveJobDeduplicationKey", {}, "id is required"),
        ("PUSH", {"queue": "q", "uniqueKey": 5}, "uniqueKey must be a string"),
        ("PUSH", {"queue": "q", "uniqueKey": "k", "dedup": 5}, "dedup must be an object"),
        ("PUSH", {"queue": "q", "uniqueKey": "k", "dedup": {"ttl": []}}, "dedup.ttl must be a number"),
        (
            "PUSH",
            {"queue": "q", "uniqueKey": "k", "dedup": {"keepUntilExpiry": True}},
            "dedup.keepUntilExpiry requires dedup.ttl",
        ),
        (
            "PUSH",
            {"queue": "q", "uniqueKey": "k", "debounceId": "d"},
            "uniqueKey and debounceId cannot be given together",
        ),
        (
            "PUSH",
            {"queue": "q", "removeOnComplete": "yes"},
            "removeOnComplete must be a boolean, a number or an object",
        ),
        ("PUSH", {"queue": "q", "removeOnFail": -1}, "removeOnFail must be at least 0"),
        ("PUSH", {"queue": "q", "removeOnFail": 1.5}, "removeOnFail must be an integer"),
        ("PUSH", {"queue": "q", "removeOnFail": {}}, "removeOnFail requires age or count"),
        (
            "ACK",
            {"id": "x", "removeOnComplete": "yes"},
            "removeOnComplete must be a boolean, a number or an object",
        ),
        (
            "ACKB",
            {"ids": ["x"], "results": [1], "removeOnCompletes": ["yes"]},
            "removeOnCompletes must be a boolean, a number or an object",
        ),
    ],
)
def test_what_is_refused_is_said(talk: Talk, cmd: str, fields: dict[str, Any], text: str) -> None:
    assert talk.refused(cmd, **fields) == text
    assert talk.good("Count", queue="q")["count"] == 0


def test_a_key_is_shown_with_what_was_asked_of_it(talk: Talk) -> None:
    job_id = push(talk, dedup={"ttl": 500, "extend": True, "replace": True})
    job = talk.good("GetJob", id=job_id)["job"]
    assert (job["uniqueKey"], job["deduplicationTtl"]) == ("k", 500)
    assert (job["deduplicationExtend"], job["deduplicationReplace"]) == (True, True)
    assert talk.good("RemoveJobDeduplicationKey", id=job_id)["data"] == {"removed": True}
    assert talk.good("RemoveJobDeduplicationKey", id=job_id)["data"] == {"removed": False}
    job = talk.good("GetJob", id=job_id)["job"]
    assert (job["uniqueKey"], job["deduplicationTtl"]) == (None, None)
    assert push(talk) != job_id
    assert talk.good("RemoveDeduplicationKey", queue="q", deduplicationId="k")["data"] == {"count": 1}
    assert talk.good("RemoveDeduplicationKey", queue="q", deduplicationId="k")["data"] == {"count": 0}


# --- ways in -----------------------------------------------------------------------------


def test_c015_a_key_blocks_twice_in_one_batch(talk: Talk) -> None:
    jobs = [{"name": "n", "uniqueKey": key} for key in ("k", "l", "k", "k")]
    ids = talk.good("PUSHB", queue="q", jobs=jobs)["ids"]
    assert ids == [ids[0], ids[1], ids[0], ids[0]]
    assert talk.good("Count", queue="q")["count"] == 2
    assert push(talk) == ids[0]


def test_a_batch_with_a_member_that_is_refused_for_its_key_adds_nothing(talk: Talk) -> None:
    holder = push(talk)
    talk.good("PULL", queue="q")
    jobs = [
        {"name": "n", "customId": "first", "uniqueKey": "l"},
        {"name": "n", "uniqueKey": "k", "dedup": {"ttl": 5, "extend": True}},
    ]
    assert talk.refused("PUSHB", queue="q", jobs=jobs) == "jobs[1]: Duplicate unique_key (extended TTL)"
    assert talk.refused("PUSH", queue="q", **jobs[1]) == ("Duplicate unique_key (extended TTL)")
    assert talk.good("Count", queue="q")["count"] == 0
    assert (owner(talk), owner(talk, "l")) == (holder, None)
    talk.broker.engine._check()


def many(broker: Broker, request: dict[str, object], threads: int, times: int) -> list[Any]:
    """The answers of so many callers at once, each with a connection of its own."""
    answers: list[Any] = []
    start = threading.Barrier(threads)

    def run() -> None:
        session = Session(broker)
        start.wait()
        for _ in range(times):
            session.feed(frame(request))
        answers.extend(frames(session.take()))

    workers = [threading.Thread(target=run) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return answers


@pytest.mark.parametrize("named", [{"uniqueKey": "k"}, {"jobId": "mine"}])
def test_c015_c017_invariant_24_of_many_adds_at_once_one_makes_a_job(named: dict[str, object]) -> None:
    broker = open_broker(seed=SEED)
    answers = many(broker, {"cmd": "PUSH", "queue": "q", "name": "n", **named}, 50, 20)
    assert len(answers) == 1000
    assert len({answer["id"] for answer in answers}) == 1
    assert broker.engine.queue("q").total_pushed == 1
    close_broker(broker)


# --- commits -----------------------------------------------------------------------------


def test_a_replacement_is_answered_when_it_is_in_the_file(
    broker: Broker, talk: Talk, store: MemoryStore
) -> None:
    old = push(talk)
    talk.send({"cmd": "PUSH", "queue": "q", "name": "n", "uniqueKey": "k", "dedup": {"replace": True}})
    assert talk.session.waiting
    assert talk.replies() == []
    settle(broker, talk.session)
    new = talk.replies()[0]["id"]
    assert new != old
    again = Talk(open_broker(store=store.reopened(), mode="server", seed=bytes(16)))
    assert (again.good("GetState", id=old)["state"], owner(again)) == ("unknown", new)


def test_a_durable_holder_that_is_not_committed_holds_its_key(broker: Broker, talk: Talk) -> None:
    request = {"cmd": "PUSH", "queue": "q", "name": "n", "uniqueKey": "k"}
    talk.send({**request, "durable": True}, request)
    assert talk.replies() == []
    cut = broker.pump()[1]
    talk.send(request)  # it depends on the next commit, for want of a better one
    commit(broker, cut)
    settle(broker, talk.session)
    ids = [reply["id"] for reply in talk.replies()]
    assert (len(ids), len(set(ids))) == (3, 1)
    assert talk.good("Count", queue="q")["count"] == 1


def test_a_durable_holder_whose_commit_fails_gives_its_key_back(broker: Broker, talk: Talk) -> None:
    talk.send({"cmd": "PUSH", "queue": "q", "name": "n", "uniqueKey": "k", "durable": True})
    broker.pump()
    broker.end_commit(StoreFault("no space left", "full"))
    assert "Nothing was stored" in talk.replies()[0]["error"]
    assert owner(talk) is None
    broker.engine._check()


@pytest.mark.parametrize("fails", [False, True])
def test_a_durable_holder_can_be_replaced_before_its_commit(broker: Broker, talk: Talk, fails: bool) -> None:
    request = {"cmd": "PUSH", "queue": "q", "name": "n", "uniqueKey": "k"}
    talk.send({**request, "durable": True})
    cut = broker.pump()[1]
    replace = {**request, "dedup": {"replace": True}, "durable": True}
    plain = {"cmd": "PUSH", "queue": "q", "name": "n", "durable": True, "jobId": "staged"}
    talk.send(replace, plain)  # the second one may get the record of the first holder
    if fails:
        broker.end_commit(StoreFault("no space left", "full"))
    else:
        commit(broker, cut)
    broker.engine._check()
    settle(broker, talk.session)
    first, second, third = talk.replies()
    assert ("error" in first) == fails
    assert (second["ok"], third["id"]) == (True, "staged")
    assert owner(talk) == second["id"]
    assert talk.good("GetState", id="staged")["state"] == "waiting"
    assert talk.good("Count", queue="q")["count"] == 2
    broker.engine._check()


# --- custom ids --------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["PUSH", "PUSHB", "PUSHB of all"])
def test_c017_c018_every_allowed_id_works_by_every_way_in(talk: Talk, store: MemoryStore, way: str) -> None:
    ids = [row["value"] for row in NAMES["job_ids"] if row["value"]]

    def add() -> list[str]:
        if way == "PUSH":
            return [talk.good("PUSH", queue="q", name="n", data=i, jobId=i)["id"] for i in ids]
        if way == "PUSHB":
            batches = [[{"name": "n", "data": i, "customId": i}] for i in ids]
        else:
            batches = [[{"name": "n", "data": i, "customId": i} for i in ids]]
        return [got for jobs in batches for got in talk.good("PUSHB", queue="q", jobs=jobs)["ids"]]

    generated = talk.good("PUSH", queue="q", name="n")["id"]
    assert add() == add() == ids
    assert generated not in ids
    assert talk.good("Count", queue="q")["count"] == len(ids) + 1
    assert talk.good("PULL", queue="q")["job"]["id"] == generated
    for i in ids:
        assert talk.good("GetJobByCustomId", customId=i)["job"]["data"] == i
        assert talk.good("AddLog", id=i, message=i)["data"] == {"added": True}
    again = Talk(open_broker(store=store.reopened(), mode="server", seed=bytes(16)))
    talk.good("Cancel", id=ids[0])
    for i in ids[1:]:
        assert talk.good("PULL", queue="q")["job"]["id"] == i
        talk.good("ACK", id=i, result=i)
        assert talk.good("GetResult", id=i) == {"ok": True, "id": i, "result": i}
    del again


@pytest.mark.parametrize("row", NAMES["queues"], ids=lambda row: ascii(row["value"])[:20])
def test_c018_a_queue_has_any_allowed_name_and_no_other(talk: Talk, row: dict[str, str]) -> None:
    name = row["value"]
    by_way = [
        talk.ask("PUSH", queue=name, name="n", data=1),
        talk.ask("PUSHB", queue=name, jobs=[{"name": "n"}]),
        talk.ask("Pause", queue=name),
        talk.ask("GetJobCounts", queue=name),
        talk.ask("GetDeduplicationJobId", queue=name, deduplicationId="k"),
    ]
    allowed = by_way[0]["ok"]
    assert [reply["ok"] for reply in by_way] == [allowed] * len(by_way)
    if row["expect"] != "ok_or_refuse":
        assert allowed == (row["expect"] == "ok")
    if allowed:
        assert by_way[3]["counts"]["paused"] == 2
        assert talk.good("ListQueues")["queues"] == [name]


def test_c018_pairs_that_join_to_one_text_are_two_jobs(talk: Talk) -> None:
    pairs = [(queue, job_id) for queue, job_id in NAMES["pairs_distinct"] if job_id]
    for queue, job_id in pairs:
        talk.good("PUSH", queue=queue, name="n", jobId=job_id, uniqueKey=job_id, data=[queue, job_id])
    for queue, job_id in pairs:
        assert talk.good("GetJob", id=job_id)["job"]["data"] == [queue, job_id]
        key = talk.good("GetDeduplicationJobId", queue=queue, deduplicationId=job_id)
        assert key["data"]["jobId"] == job_id
    talk.good("Cancel", id=pairs[0][1])
    for _, job_id in pairs[1:]:
        assert talk.good("GetState", id=job_id)["state"] == "waiting"


@pytest.mark.parametrize("bad", [b"\xa3\xed\xa0\x80", b"\xa1\xff"])
def test_an_id_or_key_that_is_no_text_is_refused(talk: Talk, bad: bytes) -> None:
    """Half of a surrogate pair, and no UTF-8 at all."""
    for field in (b"\xa5jobId", b"\xa9uniqueKey"):
        body = b"\x83\xa3cmd\xa4PUSH\xa5queue\xa1q" + field + bad
        talk.session.feed(len(body).to_bytes(4, "big") + body)
        assert talk.replies()[0]["ok"] is False
    assert talk.good("Count", queue="q")["count"] == 0


# --- removal -----------------------------------------------------------------------------


def finish(talk: Talk, n: int, **how: Any) -> list[str]:
    """Add and complete so many jobs; the answers to what is left of them."""
    for i in range(n):
        talk.good("PUSH", queue="q", name="n", jobId=f"j{i}", **how.get("options", {}))
        talk.good("PULL", queue="q")
        talk.good("ACK", id=f"j{i}", **how.get("ack", {}))
    return [job["id"] for job in talk.good("GetJobs", queue="q", state="completed")["jobs"]]


@pytest.mark.parametrize(
    ("given", "kept"),
    [(False, 5), (True, 0), (0, 0), (1, 1), (3, 3), (9, 5), ({"count": 2}, 2), ({"count": 0, "age": 9}, 0)],
)
def test_defect_43_removal_means_what_it_says_on_the_job_and_on_the_acknowledgement(
    talk: Talk, given: Any, kept: int
) -> None:
    newest = [f"j{i}" for i in range(5 - kept, 5)]
    assert finish(talk, 5, options={"removeOnComplete": given}) == newest
    for job_id in newest:
        assert talk.good("GetJob", id=job_id)["job"]["removeOnComplete"] == given
    talk.good("Obliterate", queue="q")
    assert finish(talk, 5, ack={"removeOnComplete": given}) == newest
    talk.good("Obliterate", queue="q")
    # The acknowledgement has the last word, where it says anything.
    assert finish(talk, 5, options={"removeOnComplete": 4}, ack={"removeOnComplete": given}) == (
        newest if given is not False else [f"j{i}" for i in range(1, 5)]
    )
    talk.broker.engine._check()


def test_finished_jobs_are_kept_for_an_age(talk: Talk, clock: ManualClock) -> None:
    for i in range(4):
        talk.good("PUSH", queue="q", name="n", jobId=f"j{i}", removeOnComplete={"age": 10})
        talk.good("PULL", queue="q")
        talk.good("ACK", id=f"j{i}")
        clock.advance(5000)
    assert [job["id"] for job in talk.good("GetJobs", queue="q")["jobs"]] == ["j1", "j2", "j3"]


@pytest.mark.parametrize("on_job", [True, False])
def test_failed_jobs_are_kept_by_number(talk: Talk, store: MemoryStore, on_job: bool) -> None:
    how = {"removeOnFail": 2}
    for i in range(4):
        talk.good(
            "PUSH", queue="q", name="n", jobId=f"j{i}", maxAttempts=2, backoff=0, **(how if on_job else {})
        )
        for _ in range(2):
            talk.good("PULL", queue="q")
            talk.good("FAIL", id=f"j{i}", error="no", **({} if on_job else how))
    assert [job["id"] for job in talk.good("Dlq", queue="q")["jobs"]] == ["j2", "j3"]
    assert len(list(store.load().jobs)) == 2
    talk.broker.engine._check()


def test_an_override_of_a_failure_that_is_no_end_is_not_kept(talk: Talk) -> None:
    talk.good("PUSH", queue="q", name="n", jobId="a", maxAttempts=2, backoff=0)
    talk.good("PULL", queue="q")
    talk.good("FAIL", id="a", removeOnFail=0)
    assert talk.good("GetJob", id="a")["job"]["removeOnFail"] is False
    talk.good("PULL", queue="q")
    talk.good("FAIL", id="a", removeOnFail=0)
    assert talk.good("GetState", id="a")["state"] == "unknown"


def test_each_member_of_a_batch_has_its_own_removal(talk: Talk) -> None:
    talk.good("PUSHB", queue="q", jobs=[{"name": "n", "customId": i} for i in "abcde"])
    talk.good("PULLB", queue="q", count=5)
    talk.good("ACKB", ids=list("abcde"), results=[1] * 5, removeOnCompletes=[None, True, None, 2, False])
    assert [job["id"] for job in talk.good("GetJobs", queue="q")["jobs"]] == ["c", "d", "e"]


def test_a_removal_policy_outlives_a_restart(talk: Talk, store: MemoryStore) -> None:
    talk.good("PUSHB", queue="q", jobs=[{"name": "n", "customId": i, "removeOnComplete": 1} for i in "ab"])
    talk.good("Ping")
    settle(talk.broker, talk.session)
    talk.good("PUSH", queue="q", name="n", durable=True)
    again = Talk(open_broker(store=store.reopened(), mode="server", seed=bytes(16)))
    for job_id in "ab":
        again.good("PULL", queue="q")
        again.good("ACK", id=job_id)
    assert [job["id"] for job in again.good("GetJobs", queue="q", state="completed")["jobs"]] == ["b"]


# --- debounce ----------------------------------------------------------------------------


def test_debounced_adds_run_once_after_the_last_of_them(talk: Talk, clock: ManualClock) -> None:
    for n in range(3):
        job_id = talk.good("PUSH", queue="q", name="n", data=n, debounceId="d", debounceTtl=1000)["id"]
        clock.advance(900)
    assert talk.good("GetJobCounts", queue="q")["counts"]["delayed"] == 1
    job = talk.good("GetJob", id=job_id)["job"]
    assert (job["debounceId"], job["debounceTtl"], job["uniqueKey"]) == ("d", 1000, None)
    clock.advance(99)
    assert talk.good("PULL", queue="q")["job"] is None
    clock.advance(1)
    assert talk.good("PULL", queue="q")["job"]["data"] == 2


# --- nothing is left ---------------------------------------------------------------------


def made(talk: Talk, state: str, n: int = 10) -> list[str]:
    """Jobs in one state, each with a key and a log."""
    delay = {"delay": 60_000} if state == "delayed" else {}
    urgent = {"priority": 1} if state == "prioritized" else {}
    jobs = [
        {
            "name": "n",
            "customId": f"{state}{i}",
            "uniqueKey": f"{state}{i}",
            "maxAttempts": 1,
            **delay,
            **urgent,
        }
        for i in range(n)
    ]
    ids: list[str] = talk.good("PUSHB", queue="q", jobs=jobs)["ids"]
    if state in ("completed", "failed", "active"):
        talk.good("PULLB", queue="q", count=n, **({"owner": "w"} if state == "active" else {}))
    for job_id in ids:
        if state == "completed":
            talk.good("ACK", id=job_id, result=job_id)
        elif state == "failed":
            talk.good("FAIL", id=job_id)
        talk.good("AddLog", id=job_id, message="line")
    return ids


def left(store: MemoryStore) -> tuple[int, int]:
    """Rows of jobs and of logs."""
    snapshot = store.load()
    return sum(1 for _ in snapshot.jobs), len(snapshot.side["logs"])


@pytest.mark.parametrize("how", ["Clean", "Drain", "Obliterate"])
@pytest.mark.parametrize("state", ["waiting", "prioritized", "delayed", "completed", "failed", "active"])
def test_c021_what_is_removed_leaves_no_key_no_log_and_no_row(
    talk: Talk, store: MemoryStore, state: str, how: str
) -> None:
    ids = made(talk, state)
    commit_all(talk)
    assert left(store) == (10, 10)
    if how == "Clean":
        got = talk.good("Clean", queue="q", grace=0, state=state, limit=7)["ids"]
        assert got == ([] if state == "active" else ids[:7])
    elif how == "Drain":
        gone = state in ("waiting", "prioritized", "delayed")
        assert talk.good("Drain", queue="q")["count"] == (10 if gone else 0)
        got = ids if gone else []
    else:
        talk.good("Obliterate", queue="q")
        got = ids
    commit_all(talk)
    assert left(store) == (10 - len(got), 10 - len(got))
    again = Talk(open_broker(store=store.reopened(), mode="server", seed=bytes(16)))
    for peer in (talk, again):
        for job_id in ids:
            there = job_id not in got
            assert (peer.good("GetState", id=job_id)["state"] != "unknown") == there
            assert peer.good("GetLogs", id=job_id)["data"]["count"] == int(there)
            held = there and state not in ("completed", "failed")
            assert owner(peer, job_id) == (job_id if held else None)
        peer.broker.engine._check()


def commit_all(talk: Talk) -> None:
    cut = talk.broker.begin_commit()
    if cut is not None:
        commit(talk.broker, cut)
    talk.replies()


def test_c025_a_removed_job_gets_nothing_new_and_its_id_and_key_are_free(
    talk: Talk, store: MemoryStore
) -> None:
    job = {"queue": "q", "name": "n", "jobId": "X", "uniqueKey": "k"}
    for round_ in range(1_000):
        talk.good("PUSH", data=round_, **job)
        got = talk.good("PULL", queue="q", owner="w")
        assert got["job"]["data"] == round_
        talk.good("AddLog", id="X", message="line")
        talk.good("Obliterate", queue="q")
        token = got["token"]
        for cmd, fields in (
            ("Progress", {"progress": 5}),
            ("AddLog", {"message": "late"}),
            ("Update", {"data": 1}),
            ("JobHeartbeat", {"token": token}),
            ("ACK", {"token": token}),
            ("FAIL", {"token": token}),
        ):
            assert "not found" in talk.refused(cmd, id="X", **fields)
        assert talk.good("GetLogs", id="X")["data"]["count"] == 0
        assert owner(talk) is None
        if round_ % 50 == 0:
            talk.broker.engine._check()
    commit_all(talk)
    assert left(store) == (0, 0)
    talk.good("PUSH", **job)
    assert owner(talk) == "X"
    assert talk.good("PULL", queue="q")["job"]["id"] == "X"


# --- batches that wait for one of their own ------------------------------------------------------

A = {"name": "n", "customId": "A", "uniqueKey": "k"}
B = {"name": "n", "customId": "B", "dependsOn": ["A"]}
C = {"name": "n", "customId": "C", "uniqueKey": "k", "dedup": {"replace": True}}
ON_X = {"name": "n", "customId": "D", "dependsOn": ["X"]}


@pytest.mark.parametrize(
    ("before", "jobs", "member"),
    [
        ("waits", [A, B], 1),
        ("waits", [B, A], 0),
        ("active", [A, B], 1),
        ("kept", [A, B], 1),
        ("none", [A, C, B], 2),
        ("waits", [C, ON_X], 1),
        ("waits", [{**A, "dedup": {"extend": True, "ttl": 50}}, B], 1),
        ("none", [{**A, "debounceId": "d", "debounceTtl": 5, "uniqueKey": None},
                  {"name": "n", "debounceId": "d", "debounceTtl": 5}, B], 2),
    ],
)  # fmt: skip
def test_defect_62_no_member_of_a_batch_waits_for_one_that_is_never_made(
    talk: Talk, before: str, jobs: list[dict[str, Any]], member: int
) -> None:
    """Flows, 1: the same check everywhere, before anything changes."""
    jobs = [{name: value for name, value in job.items() if value is not None} for job in jobs]
    if before != "none":
        dedup = {"dedup": {"ttl": 60_000, "keepUntilExpiry": True}} if before == "kept" else {}
        push(talk, jobId="X", **dedup)
    if before in ("active", "kept"):
        talk.good("PULL", queue="q")
    if before == "kept":
        talk.good("ACK", id="X")
    counts = talk.good("GetJobCounts", queue="q")["counts"]
    gone = jobs[member]["dependsOn"][0]
    assert talk.refused("PUSHB", queue="q", jobs=jobs) == f"jobs[{member}]: Dependency job not found: {gone}"
    assert talk.good("GetJobCounts", queue="q")["counts"] == counts
    talk.broker.engine._check()


def test_a_member_may_wait_for_one_that_is_there_or_was(talk: Talk) -> None:
    """A member that its key keeps out leaves its id to the job that had it."""
    push(talk, key="other", jobId="A")
    talk.good("PULL", queue="q")
    talk.good("ACK", id="A")
    push(talk, jobId="X", delay=60_000)
    talk.good("PUSHB", queue="q", jobs=[A, B])
    assert talk.good("GetState", id="B")["state"] == "waiting"
    both = [A, {**A, "uniqueKey": "free"}, {"name": "n", "customId": "E", "dependsOn": ["A"]}]
    talk.good("Cancel", id="B")
    talk.good("PUSHB", queue="q", jobs=both)
    assert talk.good("GetState", id="E")["state"] == "waiting-children"
    talk.broker.engine._check()


def test_a_job_does_not_take_the_place_of_one_that_it_waits_for(talk: Talk) -> None:
    push(talk, jobId="X")
    how = {"queue": "q", "uniqueKey": "k", "dedup": {"replace": True}, "dependsOn": ["X"]}
    refusal = "Cannot replace deduplicated job X because live jobs depend on it"
    assert talk.refused("PUSH", jobId="Y", **how) == refusal
    assert talk.good("GetState", id="X")["state"] == "waiting"
