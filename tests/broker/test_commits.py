"""Replies that promise a commit: held until it, and honest when it fails."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from broker_talk import Talk

from qcore.broker import open_broker
from qcore.broker.core import Broker
from qcore.broker.opening import close_broker, commit, flush
from qcore.clock import ManualClock
from qcore.errors import StoreError
from qcore.store.base import StoreFault
from qcore.store.memory import MemoryStore
from qcore.store.sqlite import SqliteStore

SEED = bytes(range(16))
FULL = StoreFault("no space left", "full")
UNKNOWN = "Outcome unknown: applied in memory, not yet on disk (disk full)"
NOTHING = "Nothing was stored (disk full)"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def broker(store: MemoryStore, clock: ManualClock) -> Broker:
    return open_broker(store=store, mode="server", clock=clock, seed=SEED)


@pytest.fixture
def talk(broker: Broker) -> Talk:
    return Talk(broker)


def ids_in(store: MemoryStore | SqliteStore) -> int:
    return sum(1 for _ in store.load().jobs)


def reopened(store: MemoryStore, clock: ManualClock, **options: Any) -> Broker:
    return open_broker(store=store.reopened(), clock=clock, seed=bytes(16), **options)


def test_an_acknowledgement_is_answered_when_it_is_in_the_file(tmp_path: Path, clock: ManualClock) -> None:
    path = str(tmp_path / "jobs.db")
    broker = open_broker(path, mode="server", clock=clock, seed=SEED)
    talk = Talk(broker)
    talk.good("PUSH", queue="q", name="n", jobId="a")
    token = talk.good("PULL", queue="q", owner="w")["token"]
    talk.send({"cmd": "ACK", "id": "a", "token": token, "result": 5, "reqId": "r"}, {"cmd": "Ping"})
    assert [reply["data"]["pong"] for reply in talk.replies()] == [True]  # it does not wait
    assert talk.session.waiting
    _, cut = broker.pump()
    assert cut is not None
    assert broker.begin_commit() is None  # one at a time
    assert talk.replies() == []
    heard = talk.heard
    commit(broker, cut)
    assert talk.heard == heard + 1
    assert talk.replies() == [{"ok": True, "reqId": "r"}]
    broker.store.close()  # a crash, as far as the file can tell
    again = open_broker(path, mode="server", clock=clock, seed=bytes(16))
    assert Talk(again).good("GetResult", id="a")["result"] == 5
    close_broker(again)


def test_while_a_commit_runs_the_next_one_gathers(broker: Broker, talk: Talk, store: MemoryStore) -> None:
    talk.good("PUSHB", queue="q", jobs=[{"name": "n", "customId": i} for i in "abc"])
    talk.good("PULLB", queue="q", count=3)
    talk.send({"cmd": "ACK", "id": "a"})
    first = broker.pump()[1]
    talk.send({"cmd": "ACK", "id": "b"}, {"cmd": "ACK", "id": "c"})
    assert broker.pump()[1] is None
    commit(broker, first)
    assert len(talk.replies()) == 1
    second = broker.pump()[1]
    commit(broker, second)
    assert len(talk.replies()) == 2
    assert broker.pump()[1] is None


def test_buffered_changes_are_written_within_the_flush_window(
    broker: Broker, talk: Talk, clock: ManualClock, store: MemoryStore
) -> None:
    talk.good("PUSH", queue="q", name="n")
    assert broker.pump() == (pytest.approx(0.01), None)
    clock.advance(9)
    assert broker.pump()[1] is None
    clock.advance(1)
    cut = broker.pump()[1]
    commit(broker, cut)
    assert ids_in(store) == 1
    assert broker.pump() == (pytest.approx(299.99), None)  # but for a look at its queues


# --- durable adds ------------------------------------------------------------------------


def test_a_durable_add_is_known_to_nobody_before_its_commit(broker: Broker, talk: Talk) -> None:
    worker = Talk(broker)
    worker.send({"cmd": "PULL", "queue": "q", "timeout": 1000})
    talk.send({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": "d", "durable": True})
    for request in ("GetJob", "GetState"):
        reply = worker.ask(request, id="d")
        assert reply.get("state", "unknown") == "unknown"
    assert worker.good("GetJobCounts", queue="q")["counts"]["waiting"] == 0
    assert worker.good("PULL", queue="q")["job"] is None
    assert talk.replies() == []
    commit(broker, broker.pump()[1])
    assert talk.replies() == [{"ok": True, "id": "d"}]
    assert [reply["job"]["id"] for reply in worker.replies()] == ["d"]
    broker.engine._check()


def test_a_durable_add_is_ready_although_the_wall_clock_was_set_back_during_its_commit(
    broker: Broker, talk: Talk, clock: ManualClock
) -> None:
    talk.send({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": "a", "durable": True})
    _, cut = broker.pump()
    assert cut is not None
    clock.set_wall(clock.now_ms() - 60_000)
    commit(broker, cut)
    assert [reply["ok"] for reply in talk.replies()] == [True]
    assert talk.good("GetState", id="a")["state"] == "waiting"  # as its row says
    assert talk.good("PULL", queue="q")["job"]["id"] == "a"


def test_a_durable_add_whose_commit_fails_leaves_no_trace(
    broker: Broker, talk: Talk, store: MemoryStore, clock: ManualClock
) -> None:
    store.broken = FULL
    talk.send({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": "d", "durable": True, "reqId": 4})
    commit(broker, broker.pump()[1])
    assert talk.replies() == [{"ok": False, "error": NOTHING, "reqId": 4}]
    assert len(broker.engine) == 0
    assert broker.engine.queue("q").total_pushed == 0
    assert talk.good("StorageStatus")["data"]["diskFull"] is True
    assert "Nothing was stored" in talk.refused("PUSH", queue="q", name="n", durable=True)
    store.broken = None
    clock.advance(1000)
    commit(broker, broker.pump()[1])
    assert ids_in(store) == 0
    assert talk.good("PUSH", queue="q", name="n", jobId="d", durable=True)["id"] == "d"
    assert ids_in(store) == 1
    broker.engine._check()


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("order", ["durable first", "durable last"])
@pytest.mark.parametrize("cmd", ["first", "last"])
def test_one_durable_member_makes_the_whole_batch_durable(
    broker: Broker, talk: Talk, store: MemoryStore, fails: bool, order: str, cmd: str
) -> None:
    talk.good("PUSH", queue="q", name="n", jobId="there")
    jobs = [{"name": "n", "customId": i} for i in ("x", "y", "x", "there")]
    jobs[0 if order == "durable first" else 1]["durable"] = True  # type: ignore[assignment]
    request = {"queue": "q", "jobs": jobs}
    talk.send({"cmd": "PUSHB", **request} if cmd == "first" else {**request, "cmd": "PUSHB"})
    assert len(broker.engine) == 3
    assert broker.engine.counts("q", broker.wall_ms)["waiting"] == 1
    store.broken = FULL if fails else None
    commit(broker, broker.pump()[1])
    (reply,) = talk.replies()
    if fails:
        assert reply == {"ok": False, "error": NOTHING}
        assert len(broker.engine) == 1
    else:
        assert reply == {"ok": True, "ids": ["x", "y", "x", "there"]}
        assert broker.engine.counts("q", broker.wall_ms)["waiting"] == 3
    broker.engine._check()


@pytest.mark.parametrize("durable", [False, True])
def test_who_adds_an_id_whose_commit_is_on_its_way_can_rely_on_the_answer(
    broker: Broker, store: MemoryStore, durable: bool
) -> None:
    """Either the first commit holds, or the second caller's own one decides."""
    first, second = Talk(broker), Talk(broker)
    first.send({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": "d", "durable": True})
    cut = broker.pump()[1]
    second.send({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": "d", "durable": durable})
    assert second.replies() == []
    store.broken = FULL
    commit(broker, cut)
    assert first.replies() == [{"ok": False, "error": NOTHING}]
    store.broken = None
    flush(broker)
    assert second.replies() == [{"ok": True, "id": "d"}]
    assert broker.engine.state("d") == "waiting"
    assert ids_in(store) == 1
    broker.engine._check()


@pytest.mark.parametrize("fails", [False, True])
def test_both_callers_of_one_id_get_the_answer_of_the_commit_that_holds_it(
    broker: Broker, store: MemoryStore, fails: bool
) -> None:
    talks = [Talk(broker), Talk(broker)]
    for talk in talks:
        talk.send({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": "d", "durable": True})
    store.broken = FULL if fails else None
    commit(broker, broker.pump()[1])
    answer: dict[str, object] = {"ok": False, "error": NOTHING} if fails else {"ok": True, "id": "d"}
    assert [talk.replies() for talk in talks] == [[answer], [answer]]
    assert len(broker.engine) == (0 if fails else 1)
    broker.engine._check()


def test_an_id_used_again_while_its_commit_succeeds_is_published_once(broker: Broker) -> None:
    first, second = Talk(broker), Talk(broker)
    first.send({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": "d", "durable": True})
    cut = broker.pump()[1]
    second.send({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": "d"})
    commit(broker, cut)
    flush(broker)
    assert first.replies() == second.replies() == [{"ok": True, "id": "d"}]
    assert broker.engine.queue("q").total_pushed == 1
    assert broker.engine.counts("q", broker.wall_ms)["waiting"] == 1
    broker.engine._check()


@pytest.mark.parametrize("durable", [False, True])
def test_a_reused_id_is_the_new_generation_at_once_and_after_a_failed_commit(
    broker: Broker, talk: Talk, store: MemoryStore, clock: ManualClock, durable: bool
) -> None:
    talk.good("PUSH", queue="q", name="n", jobId="a", data="old")
    talk.good("PULL", queue="q")
    talk.good("ACK", id="a", result="old")
    store.broken = FULL
    talk.send({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": "a", "data": "new", "durable": durable})
    assert broker.engine.state("a") == "waiting"
    commit(broker, broker.pump()[1])
    assert talk.replies() == [{"ok": False, "error": UNKNOWN}]
    before = reopened(store, clock)
    assert Talk(before).good("GetResult", id="a")["result"] == "old"
    store.broken = None
    flush(broker)
    after = Talk(reopened(store, clock)).good("GetJob", id="a")["job"]
    assert (after["data"], after["state"]) == ("new", "waiting")
    assert ids_in(store) == 1


# --- failed commits ------------------------------------------------------------------------


def test_other_changes_stay_and_are_tried_again_until_they_are_written(
    broker: Broker, talk: Talk, store: MemoryStore, clock: ManualClock
) -> None:
    talk.good("PUSHB", queue="q", jobs=[{"name": "n", "customId": i, "backoff": 0} for i in "ab"])
    talk.good("SetStallConfig", queue="q", config={"enabled": False})  # its time would be one more to wake up
    talk.good("PULLB", queue="q", count=2)
    store.broken = FULL
    talk.send({"cmd": "ACK", "id": "a", "reqId": 1}, {"cmd": "FAIL", "id": "b", "reqId": 2})
    commit(broker, broker.pump()[1])
    assert talk.replies() == [{"ok": False, "error": UNKNOWN, "reqId": n} for n in (1, 2)]
    assert broker.engine.state("a") == "completed"
    waits = []
    for _ in range(12):
        seconds, cut = broker.pump()
        assert cut is None
        waits.append(round(seconds, 3))
        clock.advance(round(seconds * 1000))
        cut = broker.pump()[1]
        assert cut is not None
        assert cut.n_jobs == 2
        commit(broker, cut)
    assert waits == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30, 30, 30]
    store.broken = None
    clock.advance(30_000)
    commit(broker, broker.pump()[1])
    assert broker.degraded is None
    again = Talk(reopened(store, clock))
    assert [again.good("GetState", id=i)["state"] for i in "ab"] == ["completed", "waiting"]


def test_who_waits_while_the_disk_fails_is_answered_soon(
    broker: Broker, talk: Talk, store: MemoryStore, clock: ManualClock
) -> None:
    """Alone the broker tries every 30 s; a worker that acknowledges would take it for dead until then."""
    talk.good("PUSHB", queue="q", jobs=[{"name": "n", "customId": i} for i in "ab"])
    talk.good("PULLB", queue="q", count=2)
    store.broken = FULL
    for _ in range(9):
        commit(broker, broker.begin_commit())
    assert broker.pump()[0] > 1
    clock.advance(100)
    talk.send({"cmd": "ACK", "id": "a"})
    assert broker.pump() == (pytest.approx(0.1), None)
    clock.advance(100)
    commit(broker, broker.pump()[1])
    assert [reply["error"] for reply in talk.replies()] == [UNKNOWN]
    assert broker.pump()[0] > 1
    talk.send({"cmd": "ACK", "id": "b"})
    assert broker.pump() == (pytest.approx(0.2), None)
    store.broken = None
    clock.advance(200)
    commit(broker, broker.pump()[1])
    assert talk.replies() == [{"ok": True}]


def test_a_durable_add_whose_sync_failed_may_come_back(
    broker: Broker, talk: Talk, store: MemoryStore
) -> None:
    """It is in the log although the commit failed, so a crash now would bring it back: nobody knows."""
    store.broken = StoreFault("disk I/O error", "io", unsure=True)
    talk.send({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": "d", "durable": True})
    commit(broker, broker.pump()[1])
    assert [reply["error"] for reply in talk.replies()] == [
        "Outcome unknown: not in memory, perhaps on disk (storage error)"
    ]
    assert len(broker.engine) == 0


def test_a_file_that_another_program_locks_is_named_as_the_reason(
    broker: Broker, talk: Talk, store: MemoryStore
) -> None:
    store.broken = StoreFault("database is locked", "locked")
    talk.send({"cmd": "PUSH", "queue": "q", "name": "n", "durable": True})
    commit(broker, broker.pump()[1])
    why = "the data file is locked by another program"
    assert [reply["error"] for reply in talk.replies()] == [f"Nothing was stored ({why})"]
    assert why in talk.refused("PUSH", queue="q", name="n", durable=True)
    assert talk.good("StorageStatus")["data"]["error"] == "locked"


def test_a_pulled_job_is_delivered_although_its_commit_failed(store: MemoryStore, clock: ManualClock) -> None:
    """Nobody else would run it, and nobody could give it back."""
    broker = open_broker(store=store, mode="embedded", clock=clock, seed=SEED)
    talk = Talk(broker)
    talk.good("PUSHB", queue="q", jobs=[{"name": "n", "customId": i, "data": i} for i in "abc"])
    store.broken = FULL
    talk.send(
        {"cmd": "PULL", "queue": "q", "owner": "w", "reqId": 1}, {"cmd": "PULLB", "queue": "q", "count": 2}
    )
    assert talk.replies() == []
    commit(broker, broker.begin_commit())
    one, two = talk.replies()
    assert (one["ok"], one["job"]["data"], one["reqId"]) == (True, "a", 1)
    assert [job["id"] for job in two["jobs"]] == ["b", "c"]
    talk.send({"cmd": "ACK", "id": "a", "token": one["token"]})
    store.broken = None
    flush(broker)
    assert talk.replies() == [{"ok": True}]


def test_changes_that_could_not_be_written_count_against_the_bound(
    store: MemoryStore, clock: ManualClock
) -> None:
    broker = Broker(store, clock=clock, seed=SEED, unflushed_limit=10)
    talk = Talk(broker)
    store.broken = FULL
    for _ in range(3):
        talk.send({"cmd": "PUSHB", "queue": "q", "jobs": [{"name": "n"}] * 4})
        commit(broker, broker.begin_commit())
        talk.replies()
    assert broker.unflushed >= 12
    assert "changes wait for the disk" in talk.refused("PUSH", queue="q", name="n")
    store.broken = None
    flush(broker)
    talk.good("PUSH", queue="q", name="n")


@pytest.mark.parametrize("cmd", ["PUSH", "PUSHB"])
def test_adds_that_are_far_ahead_of_the_disk_are_answered_with_their_commit(
    store: MemoryStore, clock: ManualClock, cmd: str
) -> None:
    broker = Broker(store, clock=clock, seed=SEED, unflushed_limit=10)
    talk = Talk(broker)
    talk.good("PUSH", queue="q", name="n")
    under_way = broker.begin_commit()
    n = 0
    while True:
        talk.send({"cmd": "PUSHB", "queue": "q", "jobs": [{"name": "n"}] * 2, "reqId": n})
        if not talk.session.has_output:
            break
        assert talk.replies()[0]["ok"]
        n += 1
    assert n == 5
    job = {"name": "n"} if cmd == "PUSH" else {"jobs": [{"name": "n"}]}
    talk.send({"cmd": cmd, "queue": "q", "reqId": n + 1, **job}, {"cmd": "Ping"})
    assert [reply["data"]["pong"] for reply in talk.replies()] == [True], "nothing else waits"
    commit(broker, under_way)
    assert not talk.session.has_output
    _, cut = broker.pump()
    assert cut is not None, "somebody waits"
    commit(broker, cut)
    assert [(reply["ok"], reply["reqId"]) for reply in talk.replies()] == [(True, n), (True, n + 1)]
    assert talk.good("PUSH", queue="q", name="n")["ok"]
    assert not talk.session.waiting


# --- new jobs that are encoded ahead ----------------------------------------------------------------


def row_ops(buffer: bytes) -> list[int]:
    """What the rows of a packed buffer do: 1 insert, 2 update, 3 delete."""
    ops, at = [], 0
    while at < len(buffer):
        op, *lengths = struct.unpack_from("<B16x3i", buffer, at)
        at += 29 + sum(max(n, 0) for n in lengths)
        ops.append(op)
    assert at == len(buffer)
    return ops


def test_a_cut_of_many_new_jobs_was_encoded_before_but_for_the_last_of_them(
    tmp_path: Path, clock: ManualClock
) -> None:
    path = str(tmp_path / "jobs.db")
    broker = open_broker(path, mode="server", clock=clock, seed=SEED, ahead_rows=3)
    talk = Talk(broker)
    talk.good("PUSH", queue="q", name="n")
    under_way = broker.begin_commit()
    for n in range(10):
        talk.good("PUSHB", queue="q", jobs=[{"name": "n", "customId": f"{n}-{i}"} for i in range(2)])
        assert broker.unflushed >= 2 * n + 2
    assert broker.pump()[1] is None, "a commit is under way"
    commit(broker, under_way)
    cut = broker.begin_commit()
    assert cut is not None
    assert [row_ops(buffer) for buffer in cut.packed] == [[1] * 17, [1] * 3]
    assert cut.n_packed == 20
    commit(broker, cut)
    broker.store.close()
    again = open_broker(path, mode="server", clock=clock, seed=bytes(16))
    listed = Talk(again).good("GetJobs", queue="q", state="waiting", limit=100)["jobs"]
    assert {job["id"] for job in listed} > {f"{n}-{i}" for n in range(10) for i in range(2)}
    close_broker(again)


@pytest.mark.parametrize("fails", [False, True])
def test_what_becomes_of_a_job_that_was_encoded_ahead_counts(
    tmp_path: Path, clock: ManualClock, fails: bool
) -> None:
    """Also when the commit before it failed, so that its rows are merged with the later ones."""
    path = str(tmp_path / "jobs.db")
    broker = open_broker(path, mode="server", clock=clock, seed=SEED, ahead_rows=0)
    talk = Talk(broker)
    jobs = [{"name": "n", "customId": c, "data": c, "priority": i} for i, c in enumerate("fedcba")]
    talk.good("PUSHB", queue="q", jobs=[{"name": "n", "customId": "before"}])
    under_way = broker.begin_commit()
    talk.good("PUSHB", queue="q", jobs=jobs)
    talk.send({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": "durable", "durable": True})
    talk.send({"cmd": "PULLB", "queue": "q", "count": 4, "owner": "w"})
    if fails:
        broker.end_commit(FULL)
    else:
        commit(broker, under_way)
    broker.engine._check()
    flush(broker)
    got = next(reply for reply in talk.replies() if "jobs" in reply)
    assert [job["id"] for job in got["jobs"]] == ["a", "b", "c", "d"]
    talk.good("PUSH", queue="q", name="n", jobId="between")
    under_way = broker.begin_commit()
    talk.send({"cmd": "PUSHB", "queue": "r", "jobs": [{"name": "n", "customId": c} for c in "xyz"]})
    talk.send({"cmd": "Cancel", "id": "x"}, {"cmd": "Update", "id": "y", "data": "other"})
    talk.send({"cmd": "ACK", "id": "a", "token": got["tokens"][0], "result": 1})
    if fails:
        broker.end_commit(FULL)
    else:
        commit(broker, under_way)
    flush(broker)
    broker.engine._check()
    broker.store.close()  # a crash, as far as the file can tell
    again = open_broker(path, mode="server", clock=clock, seed=bytes(16))
    look = Talk(again)
    states = {id_: look.ask("GetState", id=id_).get("state") for id_ in "abcdefyz"}
    assert states == dict.fromkeys("fyz", "waiting") | dict.fromkeys("bcd", "active") | {
        "a": "completed",
        "e": "prioritized",
    }
    assert look.good("GetResult", id="a")["result"] == 1
    assert look.good("GetJob", id="y")["job"]["data"] == "other"
    assert look.good("GetState", id="durable")["state"] == "waiting"
    assert not look.ask("GetJob", id="x")["ok"]
    close_broker(again)


def test_a_job_that_was_encoded_ahead_leaves_memory_only_when_its_end_is_in_the_file(
    tmp_path: Path, clock: ManualClock
) -> None:
    path = str(tmp_path / "jobs.db")
    broker = open_broker(path, mode="server", clock=clock, seed=SEED, ahead_rows=0, max_completed=1)
    talk = Talk(broker)
    talk.good("PUSH", queue="q", name="n", jobId="first")
    under_way = broker.begin_commit()
    talk.send(
        {"cmd": "PUSHB", "queue": "q", "jobs": [{"name": "n", "customId": c} for c in "abc"]},
        {"cmd": "PULLB", "queue": "q", "count": 4},
        *({"cmd": "ACK", "id": c, "result": c} for c in "abc"),
    )
    broker.pump()
    commit(broker, under_way)
    look = Talk(broker)
    for _ in range(2):
        for id_ in "abc":
            assert look.good("GetResult", id=id_)["result"] == id_
        flush(broker)
        broker.engine._check()
    close_broker(broker)


def test_closing_writes_what_an_earlier_commit_could_not(
    broker: Broker, talk: Talk, store: MemoryStore, clock: ManualClock
) -> None:
    """Also when the time of the next attempt has not come."""
    talk.good("PUSH", queue="q", name="n", jobId="a")
    store.broken = FULL
    commit(broker, broker.begin_commit())
    assert broker.pump()[1] is None
    with pytest.raises(StoreError, match="no space left"):
        flush(broker)
    store.broken = None
    twin = store
    flush(broker)
    assert broker.degraded is None
    assert ids_in(twin) == 1
    close_broker(broker)


def test_a_full_disk_of_a_real_file(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "jobs.db"
    broker = open_broker(str(path), mode="server", clock=clock, seed=SEED)
    talk = Talk(broker)
    talk.good("PUSH", queue="q", name="n", jobId="kept", durable=True)
    broker.store._set("max_page_count = 20")
    talk.send(
        {"cmd": "PUSH", "queue": "q", "name": "n", "jobId": "big", "data": b"x" * 500_000, "durable": True}
    )
    commit(broker, broker.begin_commit())
    assert talk.replies() == [{"ok": False, "error": NOTHING}]
    assert talk.good("StorageStatus")["data"]["diskFull"] is True
    broker.store._set("max_page_count = 1000000")
    flush(broker)
    talk.good("PUSH", queue="q", name="n", jobId="big", data=b"x" * 500_000, durable=True)
    assert talk.good("StorageStatus")["data"]["diskFull"] is False
    close_broker(broker)
    again = open_broker(str(path), mode="server", clock=clock, seed=bytes(16))
    assert [Talk(again).good("GetState", id=i)["state"] for i in ("kept", "big")] == ["waiting"] * 2
    close_broker(again)
