"""Troubles that other queues had with the write path, with batches and with questions, one test each.

The numbers are those of docs/explanation/defects.md.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from broker_talk import Talk, frame, frames

from qcore.broker import open_broker
from qcore.broker.core import Broker
from qcore.broker.opening import close_broker, commit, flush
from qcore.clock import ManualClock
from qcore.errors import StoreError
from qcore.store.base import Cut, StoreFault
from qcore.store.memory import MemoryStore
from qcore.wire.commands import JOB_OPTIONS
from qcore.wire.packing import pack

FULL = StoreFault("no space left", "full")


class Life:
    """A broker over a store that outlives it."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.store = MemoryStore()
        self.n = 0
        self.open()

    def open(self, **options: Any) -> Talk:
        self.n += 1
        self.broker: Broker = open_broker(
            store=self.store, mode="server", clock=self.clock, seed=bytes([self.n] * 16), **options
        )
        self.broker.engine._check()
        self.talk = Talk(self.broker)
        return self.talk

    def crash(self, *, flushed: bool = True) -> Talk:
        """Start again from what is in the store."""
        if flushed:
            flush(self.broker)
        self.store = self.store.reopened()
        return self.open()

    def rows(self) -> int:
        return sum(1 for _ in self.store.load().jobs)


@pytest.fixture
def life(clock: ManualClock) -> Life:
    return Life(clock)


def states(talk: Talk, *ids: str) -> list[str]:
    return [talk.good("GetState", id=job_id)["state"] for job_id in ids]


def test_defect_01_one_id_twice_in_a_flush_is_one_row(life: Life) -> None:
    talk = life.talk
    talk.good("PUSHB", queue="q", jobs=[{"customId": "a"}, {"customId": "a"}, {"customId": "b"}])
    talk.send(
        {"cmd": "PULL", "queue": "q"}, {"cmd": "ACK", "id": "a"}, {"cmd": "PUSH", "queue": "q", "jobId": "a"}
    )
    talk = life.crash()
    assert life.rows() == 2
    assert states(talk, "a", "b") == ["waiting", "waiting"]


@pytest.mark.parametrize("when", ["before the flush", "during the flush"])
@pytest.mark.parametrize("how", ["Cancel", "Drain", "Obliterate"])
def test_defects_02_03_what_was_removed_does_not_come_back(life: Life, when: str, how: str) -> None:
    """A removal may overtake the insert that is still on its way."""
    talk = life.talk
    talk.good("PUSH", queue="q", jobId="a")
    cut = None
    if when == "during the flush":
        cut = life.broker.begin_commit()
        assert cut is not None
    talk.send({"cmd": how, **({"id": "a"} if how == "Cancel" else {"queue": "q"})})
    if cut is not None:
        commit(life.broker, cut)
    talk = life.crash()
    assert states(talk, "a") == ["unknown"]
    assert life.rows() == 0


def test_defect_06_recovery_sees_every_row_although_it_changes_them(
    tmp_path: Path, clock: ManualClock
) -> None:
    """Rows are read in pages by key: what recovery requeues cannot push others out of a page."""
    path = str(tmp_path / "jobs.db")
    broker = open_broker(path, mode="embedded", clock=clock)
    talk = Talk(broker)
    for _ in range(3):
        talk.good("PUSHB", queue="q", jobs=[{"maxAttempts": 1 + i % 2} for i in range(1000)])
    for _ in range(2):
        talk.good("PULLB", queue="q", count=1000)
    flush(broker)
    broker.store.close()
    broker = open_broker(path, mode="embedded", clock=clock)
    counts = Talk(broker).good("GetJobCounts", queue="q")["counts"]
    assert (counts["failed"], counts["waiting"] + counts["delayed"]) == (1000, 2000)
    broker.engine._check()
    close_broker(broker)


def test_defect_10_every_change_of_a_job_is_stored(life: Life) -> None:
    talk = life.talk
    talk.good(
        "PUSHB", queue="q", jobs=[{"customId": i, "delay": 5_000} for i in ("late", "up", "new", "moved")]
    )
    talk.good("PUSH", queue="q", jobId="taken")
    flush(life.broker)
    token = talk.good("PULL", queue="q", owner="w")["token"]
    talk.good("ChangeDelay", id="late", delay=60_000)
    talk.good("ChangePriority", id="up", priority=7)
    talk.good("Update", id="new", data={"v": 2})
    talk.good("MoveToWait", id="moved")
    talk.good("MoveToDelayed", id="taken", token=token, delay=9_000)
    before = [talk.good("GetJob", id=i)["job"] for i in ("late", "up", "new", "moved", "taken")]
    talk = life.crash(flushed=False)
    assert [talk.good("GetJob", id=i)["job"] for i in ("late", "up", "new", "moved", "taken")] == before
    assert [job["state"] for job in before] == ["delayed", "delayed", "delayed", "waiting", "delayed"]


def test_defect_13_a_new_generation_has_nothing_of_the_old_row(life: Life) -> None:
    talk = life.talk
    talk.good("PUSH", queue="q", jobId="a", data="old", timeout=5_000)
    talk.good("PULL", queue="q")
    talk.good("Progress", id="a", progress=50, message="half")
    talk.good("AddLog", id="a", message="line")
    talk.good("ACK", id="a", result="old")
    talk.good("PUSH", queue="q", jobId="a")
    talk = life.crash(flushed=False)
    job = talk.good("GetJob", id="a")["job"]
    assert (job["state"], job["progress"], job["progressMessage"], job["timeout"]) == (
        "waiting",
        0,
        None,
        None,
    )
    assert "data" not in job
    assert "result" not in talk.good("GetResult", id="a")
    assert talk.good("GetLogs", id="a")["data"]["count"] == 0


def test_defect_14_one_durable_member_makes_its_batch_wait_for_the_disk(life: Life) -> None:
    talk = life.talk
    talk.send({"cmd": "PUSHB", "queue": "q", "jobs": [{"customId": "a"}, {"customId": "b", "durable": True}]})
    assert talk.replies() == []
    flush(life.broker)
    assert talk.replies()[0]["ids"] == ["a", "b"]
    assert life.rows() == 2


def test_defect_17_a_flush_for_a_backup_leaves_nothing_out_or_says_so(life: Life) -> None:
    life.talk.good("PUSH", queue="q", jobId="a")
    life.store.broken = FULL
    with pytest.raises(StoreError, match="no space left"):
        flush(life.broker)
    life.store.broken = None
    flush(life.broker)
    assert life.rows() == 1


def test_defect_18_a_failure_is_confirmed_when_it_is_in_the_file(life: Life) -> None:
    talk = life.talk
    talk.good("PUSH", queue="q", jobId="a", maxAttempts=1)
    talk.good("PULL", queue="q")
    talk.send({"cmd": "FAIL", "id": "a", "error": "no"})
    assert talk.replies() == []
    life.store.broken = FULL
    cut = life.broker.begin_commit()
    assert cut is not None
    commit(life.broker, cut)
    (reply,) = talk.replies()
    assert "Outcome unknown" in reply["error"]
    life.store.broken = None
    talk = life.crash()  # what was kept is written with the next cut
    assert states(talk, "a") == ["failed"]


def test_defect_19_many_requests_share_one_commit(life: Life) -> None:
    talk = life.talk
    talk.good("PUSHB", queue="q", jobs=[{"customId": str(i)} for i in range(300)])
    talk.good("PULLB", queue="q", count=300)
    flush(life.broker)
    before = life.store.status()["commits"]
    talk.send(*({"cmd": "ACK", "id": str(i)} for i in range(300)))
    flush(life.broker)
    assert all(reply["ok"] for reply in talk.replies())
    assert life.store.status()["commits"] == before + 1


def test_defect_47_a_batch_pull_waits_as_a_single_one_does(life: Life, clock: ManualClock) -> None:
    talk = life.talk
    talk.send({"cmd": "PULLB", "queue": "q", "count": 5, "timeout": 1_000})
    clock.advance(999)
    life.broker.pump()
    assert talk.replies() == []
    Talk(life.broker).good("PUSHB", queue="q", jobs=[{}, {}])
    assert len(talk.replies()[0]["jobs"]) == 2


def _cpu_s(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def _grows_by(small: Callable[[], Callable[[], object]], large: Callable[[], Callable[[], object]]) -> float:
    """How much more processor time the large piece of work takes: the least of a few of each, in turns.

    A piece is made ready by the call and done by the call of what that returns.
    """
    costs = [(_cpu_s(small()), _cpu_s(large())) for _ in range(3)]
    return min(cost for _, cost in costs) / min(cost for cost, _ in costs)


def test_defect_49_a_batch_costs_what_there_is_in_it(clock: ManualClock) -> None:
    """1,000 jobs in one batch, against 32 batches of them; quadratic work would grow by 1,024."""
    batch = b"\x83\xa3cmd\xa5PUSHB\xa5queue\xa1q\xa4jobs\xdc\x03\xe8" + b"\x81\xa4name\xa1n" * 1_000

    def stream(batches: int) -> Callable[[], object]:
        broker = open_broker(clock=clock, max_completed=1_000)
        talk = Talk(broker)
        data = (struct.pack(">I", len(batch)) + batch) * batches

        def feed() -> None:
            for at in range(0, len(data), 1_000):
                talk.session.feed(data[at : at + 1_000])
            assert broker.engine.counts("q", 0)["waiting"] == 1_000 * batches

        return feed

    assert _grows_by(lambda: stream(1), lambda: stream(32)) < 32 * 4


@pytest.mark.parametrize("kept", [10, 1_000_000], ids=["evicted", "kept"])
def test_defect_49_completing_costs_what_is_completed(clock: ManualClock, kept: int) -> None:
    """Eviction of the oldest, and the lists of what is held, know nothing of how many there are."""

    def completing(batches: int) -> Callable[[], object]:
        talk = Talk(open_broker(clock=clock, max_completed=kept))
        for _ in range(batches):
            talk.good("PUSHB", queue="q", jobs=[{"name": "n"}] * 500)

        def complete() -> None:
            for _ in range(batches):
                ids = [job["id"] for job in talk.good("PULLB", queue="q", count=500)["jobs"]]
                talk.good("ACKB", ids=ids)
            counts = talk.good("GetJobCounts", queue="q")["counts"]
            assert counts["completed"] == min(kept, 500 * batches)

        return complete

    assert _grows_by(lambda: completing(1), lambda: completing(16)) < 16 * 3


def test_defect_49_small_frames_cost_what_they_are(clock: ManualClock) -> None:
    """50 requests of 1 KB in one piece, against 64 times as many: what was read is not copied for each."""

    def pinging(n: int) -> Callable[[], object]:
        talk = Talk(open_broker(clock=clock))
        data = frame({"cmd": "Ping", "filler": "x" * 1_000}) * n

        def ping() -> None:
            talk.session.feed(data)
            answered = 0
            while talk.session.has_output or talk.session.backlogged:
                answered += len(frames(talk.session.take()))
                talk.session.resume()
            assert answered == n

        return ping

    assert _grows_by(lambda: pinging(50), lambda: pinging(64 * 50)) < 64 * 4


def test_defect_50_a_live_job_is_never_nowhere(clock: ManualClock) -> None:
    broker = open_broker(clock=clock)
    talk = Talk(broker)
    talk.good("PUSH", queue="q", jobId="a", maxAttempts=2_000_000)
    ended = threading.Event()
    seen: set[str] = set()

    def look() -> None:
        asking = Talk(broker)
        while not ended.is_set():
            seen.add(asking.good("GetState", id="a")["state"])

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(3_000):
            talk.good("PULL", queue="q")
            talk.good("MoveToDelayed", id="a", delay=0)
    finally:
        ended.set()
        looking.join()
    assert "unknown" not in seen


def test_defect_52_pages_over_several_states_join(life: Life, clock: ManualClock) -> None:
    talk = life.talk
    for i in range(28):
        clock.advance(1)
        talk.good("PUSH", queue="q", jobId=f"{i:02}", delay=0 if i % 3 else 50_000, maxAttempts=1)
    talk.good("PULLB", queue="q", count=9)
    for i in (1, 2, 4):
        talk.good("ACK", id=f"{i:02}")
    for i in (5, 7):
        talk.good("FAIL", id=f"{i:02}")
    wanted = [f"{i:02}" for i in range(28)]
    for asc, expected in ((True, wanted), (False, wanted[::-1])):
        for size in (1, 9, 10, 28, 100):
            pages = [
                [job["id"] for job in talk.good("GetJobs", queue="q", offset=at, limit=size, asc=asc)["jobs"]]
                for at in range(0, 28, size)
            ]
            assert [job_id for page in pages for job_id in page] == expected
            assert all(len(page) == size for page in pages[:-1])
    assert talk.good("GetJobs", queue="q", offset=28)["jobs"] == []
    assert talk.good("GetJobs", queue="q", limit=0)["jobs"] == []
    assert "at least 0" in talk.refused("GetJobs", queue="q", limit=-1)
    assert "at least 0" in talk.refused("GetJobs", queue="q", offset=-1)


def test_defect_53_cleaning_delayed_jobs_leaves_the_others(life: Life) -> None:
    talk = life.talk
    talk.good("PUSHB", queue="q", jobs=[{"customId": "w"}, {"customId": "p", "priority": 1}])
    talk.good("PUSH", queue="q", jobId="d", delay=1_000)
    assert talk.good("Clean", queue="q", grace=0, state="delayed")["ids"] == ["d"]
    assert states(talk, "w", "p", "d") == ["waiting", "prioritized", "unknown"]


def _given(name: str, value: object) -> dict[str, object]:
    """Where a job shows an option."""
    if name == "backoff":
        assert isinstance(value, dict)
        return {"backoffConfig": value}
    if name == "dedup":
        assert isinstance(value, dict)
        return {f"deduplication{key.capitalize()}": item for key, item in value.items()}
    return {{"timestamp": "createdAt"}.get(name, name): value}


#: Options that may stand beside each other.
ROUND_TRIPS: list[dict[str, object]] = [
    {
        "name": "n",
        "data": {"k": [1, None, b"\x00"]},
        "customId": "own",
        "priority": 2.5,
        "delay": 60_000,
        "maxAttempts": 7,
        "backoff": {"type": "fixed", "delay": 50, "maxDelay": 70},
        "ttl": 70_000,
        "timeout": 1_234,
        "stallTimeout": 4_321,
        "tags": ["x", "y"],
        "lifo": True,
        "removeOnComplete": True,
        "removeOnFail": True,
        "durable": True,
        "stackTraceLimit": 3,
        "keepLogs": 4,
        "sizeLimit": 10_000,
    },
    {
        "backoff": {"type": "exponential", "delay": 50, "jitter": 0.5},
        "removeOnComplete": {"age": 60, "count": 5},
        "removeOnFail": 7,
        "timestamp": 1_234_567_890_123,
    },
    {"uniqueKey": "u", "dedup": {"ttl": 900_000, "extend": True}},
    {"uniqueKey": "v", "dedup": {"ttl": 800_000, "replace": True}},
    {"debounceId": "d", "debounceTtl": 5_000},
    {"groupId": "g", "priority": 4},
    {"repeat": {"every": 60_000, "limit": 4}},
    {"repeat": {"pattern": "5 * * * *", "tz": "Europe/Berlin"}},
    {"dependsOn": ["first", "second"], "childrenIds": ["first"]},
    {"parentId": "up", "failParentOnFailure": True},
    {"parentId": "up", "removeDependencyOnFailure": True},
    {"parentId": "up", "ignoreDependencyOnFailure": True},
    {"parentId": "up", "continueParentOnFailure": True},
]
#: They say whether a job is added, and nothing of it afterwards.
OF_THE_ADD = {"groupMaxSize", "parentToken", "parentRequired", "allowUnknownDependencies"}


@pytest.mark.parametrize("cmd", ["PUSH", "PUSHB"])
def test_defect_72_no_option_is_lost_between_the_layers(life: Life, cmd: str) -> None:
    """Each option comes back as it was given, by every way in and after a restart."""
    talk = life.talk
    talk.good("PUSHB", queue="q", jobs=[{"customId": i} for i in ("first", "second", "up")])
    ids = []
    for options in ROUND_TRIPS:
        if cmd == "PUSH":
            named = {"jobId" if name == "customId" else name: value for name, value in options.items()}
            ids.append(talk.good("PUSH", queue="q", **named)["id"])
        else:
            ids += talk.good("PUSHB", queue="q", jobs=[options])["ids"]
    assert len(set(ids)) == len(ROUND_TRIPS)
    for _ in range(2):
        for job_id, options in zip(ids, ROUND_TRIPS, strict=True):
            job = talk.good("GetJob", id=job_id)["job"]
            for name, value in options.items():
                if name == "delay":
                    assert job["runAt"] - job["createdAt"] == value
                    continue
                for key, item in _given(name, value).items():
                    found = job[key]
                    if name == "repeat":
                        found = {inner: found.get(inner) for inner in value}  # type: ignore[attr-defined]
                    assert found == item, (name, key)
        talk = life.crash()
    tried = {name for options in ROUND_TRIPS for name in options}
    assert tried | OF_THE_ADD == {field.name for field in JOB_OPTIONS}


def test_defect_73_a_view_of_a_buffer_is_exactly_its_own_bytes(life: Life) -> None:
    buffer = bytearray(b"secret-mine-secret")
    packed = pack({"v": memoryview(buffer)[7:11]}, typed=False)
    body = b"\x83\xa3cmd\xa4PUSH\xa5queue\xa1q\xa4data" + packed
    life.talk.session.feed(struct.pack(">I", len(body)) + body)
    assert life.talk.replies()[0]["ok"]
    assert b"secret" not in packed
    assert life.talk.good("PULL", queue="q")["job"]["data"] == {"v": b"mine"}


def test_defect_76_who_waits_is_not_told_completed_when_the_engine_closes(life: Life) -> None:
    talk = life.talk
    talk.good("PUSH", queue="q", jobId="a", delay=1000)
    talk.send({"cmd": "WaitJob", "id": "a", "timeout": 600_000, "reqId": "1"})
    talk.send({"cmd": "PULL", "queue": "q", "timeout": 60_000, "owner": "w", "reqId": "2"})
    assert talk.replies() == []
    life.broker.part()
    close_broker(life.broker)
    assert talk.replies() == [
        {"ok": True, "completed": False, "reqId": "1"},
        {"ok": True, "job": None, "token": None, "reqId": "2"},
    ]


def test_defect_91_one_bad_token_costs_only_its_own_member(life: Life) -> None:
    talk = life.talk
    talk.good("PUSHB", queue="q", jobs=[{"customId": i} for i in "abc"])
    tokens = talk.good("PULLB", queue="q", count=3, owner="w")["tokens"]
    reply = talk.good("ACKB", ids=["a", "b", "c"], tokens=[tokens[0], tokens[0], tokens[2]])
    assert reply["data"]["ignoredIds"] == ["b"]
    assert "Invalid or expired lock token" in reply["data"]["refused"][0]["reason"]
    assert states(talk, "a", "b", "c") == ["completed", "active", "completed"]


def test_defect_94_accepted_jobs_are_never_given_up(life: Life, clock: ManualClock) -> None:
    talk = life.talk
    life.store.broken = FULL
    talk.good("PUSH", queue="q", jobId="a")
    for _ in range(40):  # twenty minutes of a full disk
        clock.advance(30_000)
        _, cut = life.broker.pump()
        if cut is not None:
            commit(life.broker, cut)
    assert life.broker.degraded is not None
    assert states(talk, "a") == ["waiting"]
    life.store.broken = None
    clock.advance(30_000)
    _, cut = life.broker.pump()
    assert cut is not None
    commit(life.broker, cut)
    assert life.broker.degraded is None
    assert states(life.crash(flushed=False), "a") == ["waiting"]


def test_defect_95_a_durable_add_takes_the_buffered_ones_before_it_along(life: Life) -> None:
    talk = life.talk
    for i in range(50):
        talk.good("PUSH", queue="q", jobId=f"b{i}")
    for i in range(5):
        talk.good("PUSH", queue="q", jobId=f"d{i}", durable=True)
    talk = life.crash(flushed=False)
    assert talk.good("Count", queue="q")["count"] == 55


def test_defect_96_who_waits_for_a_job_that_fails_or_has_ended_is_answered_at_once(life: Life) -> None:
    talk = life.talk
    other = Talk(life.broker)
    talk.good("PUSHB", queue="q", jobs=[{"customId": "ok"}, {"customId": "bad", "maxAttempts": 1}])
    talk.good("PULLB", queue="q", count=2)
    other.send({"cmd": "WaitJob", "id": "ok"}, {"cmd": "WaitJob", "id": "bad"})
    assert other.replies() == []
    talk.good("ACK", id="ok", result=5)
    talk.good("FAIL", id="bad")
    assert [(r["completed"], r.get("result")) for r in other.replies()] == [(True, 5), (False, None)]
    other.send({"cmd": "WaitJob", "id": "ok"}, {"cmd": "WaitJob", "id": "bad"})
    assert [(r["completed"], r.get("result")) for r in other.replies()] == [(True, 5), (False, None)]


def test_defect_97_delayed_jobs_of_higher_priority_are_not_stepped_over(clock: ManualClock) -> None:
    """300 pulls cost the same behind 100 delayed jobs and behind 64 times as many."""

    def pulling(batches: int) -> Callable[[], object]:
        broker = open_broker(clock=clock)
        talk = Talk(broker)
        for _ in range(batches):
            talk.good("PUSHB", queue="q", jobs=[{"priority": 9, "delay": 60_000}] * 100)
        talk.good("PUSHB", queue="q", jobs=[{"customId": str(i)} for i in range(300)])

        def pull() -> None:
            got = [talk.good("PULL", queue="q")["job"]["id"] for _ in range(300)]
            assert got == [str(i) for i in range(300)]
            assert broker.engine.counts("q", clock.now_ms())["delayed"] == 100 * batches

        return pull

    assert _grows_by(lambda: pulling(1), lambda: pulling(64)) < 4


def test_invariant_07_a_refused_command_has_no_effect(life: Life) -> None:
    talk = life.talk
    talk.good(
        "PUSHB", queue="q", jobs=[{"customId": "a"}, {"customId": "b"}, {"customId": "c", "delay": 9_000}]
    )
    token = talk.good("PULL", queue="q", owner="w")["token"]
    flush(life.broker)
    engine = life.broker.engine
    before = [talk.good("GetJob", id=i)["job"] for i in "abc"]
    engine.listen("q", 0xFFFFFF)
    engine.take_events()
    wrong = token[:-1] + ("0" if token[-1] != "0" else "1")
    for cmd, fields in (
        ("PUSH", {"queue": "q", "delay": "soon"}),
        ("PUSHB", {"queue": "q", "jobs": [{}, {"priority": "high"}]}),
        ("ACK", {"id": "a", "token": wrong}),
        ("ACK", {"id": "a"}),
        ("ACK", {"id": "b"}),
        ("ACKB", {"ids": ["a", "b"], "tokens": [wrong, wrong]}),
        ("FAIL", {"id": "a", "token": wrong, "error": "x"}),
        ("MoveToDelayed", {"id": "a", "token": wrong, "delay": 1}),
        ("ChangeDelay", {"id": "a", "delay": 1}),
        ("Discard", {"id": "a", "token": wrong}),
        ("Cancel", {"id": "a"}),
        ("Promote", {"id": "a"}),
        ("ChangePriority", {"id": "a", "priority": 1}),
        ("Progress", {"id": "b", "progress": 1}),
        ("JobHeartbeat", {"id": "a", "token": wrong}),
        ("ExtendLock", {"id": "a", "token": wrong, "duration": 5}),
        ("PULLB", {"queue": "q", "count": 0}),
    ):
        assert talk.refused(cmd, **fields), cmd
        assert engine.n_changes == 0, cmd
        assert engine.take_events() == [], cmd
    assert [talk.good("GetJob", id=i)["job"] for i in "abc"] == before
    engine._check()


def test_invariant_07_what_does_nothing_makes_no_queue(life: Life) -> None:
    talk = life.talk
    talk.good("PUSH", queue="q", jobId="a")
    talk.good("PUSH", queue="q", jobId="b", durable=True)
    flush(life.broker)
    for cmd, fields in (
        ("PUSH", {"jobId": "a"}),
        ("PUSH", {"jobId": "a", "tags": ["x"]}),
        ("PUSH", {"jobId": "b", "durable": True}),
        ("PUSHB", {"jobs": []}),
        ("PUSHB", {"jobs": [{"name": "n", "customId": "a"}, {"name": "n", "customId": "b"}]}),
        ("Resume", {}),
        ("RateLimitClear", {}),
        ("ClearConcurrency", {}),
        ("ResumeGroup", {"groupId": "g"}),
        ("SetDlqConfig", {"config": {}}),
        ("SetStallConfig", {"config": {}}),
        ("TrimEvents", {"maxLength": 0}),
        ("Drain", {}),
        ("Obliterate", {}),
        ("Clean", {"grace": 0}),
        ("RetryDlq", {}),
        ("PurgeDlq", {}),
        ("RetryCompleted", {}),
        ("PULL", {"timeout": 0}),
    ):
        talk.good(cmd, queue="ghost", name="n", **fields) if cmd == "PUSH" else talk.good(
            cmd, queue="ghost", **fields
        )
        assert talk.good("ListQueues")["queues"] == ["q"], cmd
        assert life.broker.engine.n_changes == 0, cmd
    group = {"queue": "ghost", "name": "n", "groupId": "g", "groupMaxSize": 1}
    talk.good("PUSHB", queue="other", jobs=[{"name": "n", "groupId": "g"}])
    assert talk.refused("PUSHB", queue="ghost", jobs=[{**group, "queue": "x"}] * 2)
    assert talk.good("ListQueues")["queues"] == ["other", "q"]
    # A batch that adds something does make its queue.
    jobs = [{"name": "n", "customId": "a"}, {"name": "n", "customId": "c"}]
    assert talk.good("PUSHB", queue="new", jobs=jobs)["ids"] == ["a", "c"]
    assert talk.good("ListQueues")["queues"] == ["new", "other", "q"]
    life.broker.engine._check()


def test_invariant_38_recovery_twice_is_recovery_once(life: Life, clock: ManualClock) -> None:
    talk = life.talk
    talk.good(
        "PUSHB",
        queue="q",
        jobs=[{"customId": f"{i}", "priority": i % 3, "lifo": i % 4 == 0} for i in range(12)],
    )
    talk.good("PULLB", queue="q", count=3)
    talk.good("PULLB", queue="q", count=2, owner="w")
    talk.good("Pause", queue="q")
    once = _everything(life.crash())
    life.broker.store.commit(Cut())
    twice = _everything(life.crash())
    assert once == twice


def _everything(talk: Talk) -> Any:
    jobs = talk.good("GetJobs", queue="q")["jobs"]
    return jobs, talk.good("GetJobCounts", queue="q")["counts"], talk.good("IsPaused", queue="q")["paused"]


def test_invariant_53_payload_bytes_come_back_as_they_were(life: Life) -> None:
    """Also forms that no packer of ours would choose."""
    odd = (
        b"\xdf\x00\x00\x00\x02\xd9\x01a\xcd\x00\x05\xdb\x00\x00\x00\x01b\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00"
    )
    body = b"\x84\xa3cmd\xa4PUSH\xa5queue\xa1q\xa5jobId\xa1a\xa4data" + odd
    life.talk.session.feed(struct.pack(">I", len(body)) + body)
    life.talk.replies()
    for _ in range(2):
        life.talk.send({"cmd": "GetJob", "id": "a"})
        assert odd in life.talk.session.take()
        life.crash()
    assert msgpack.unpackb(odd) == {"a": 5, "b": 1.0}


def turn(broker: Broker) -> None:
    """Do all that is due, commits too."""
    seconds: float | None = 0
    while seconds == 0:
        seconds, cut = broker.pump()
        if cut is not None:
            commit(broker, cut)


def expire(life: Life, ms: int) -> None:
    """Let a lease of that length run out."""
    life.clock.advance(ms)
    turn(life.broker)


def test_defects_04_05_dead_letters_and_their_retry_are_stored(life: Life) -> None:
    talk = life.talk
    talk.good("PUSH", queue="q", jobId="a", maxAttempts=1)
    talk.good("PULL", queue="q", owner="w", lockTtl=100)
    expire(life, 101)
    talk = life.crash()
    assert states(talk, "a") == ["failed"]
    assert talk.good("RetryDlq", queue="q")["count"] == 1
    talk = life.crash(flushed=False)
    assert states(talk, "a") == ["waiting"]
    assert talk.good("Dlq", queue="q")["jobs"] == []
    talk.good("PULL", queue="q")
    talk.good("FAIL", id="a", error="no")
    assert states(life.crash(flushed=False), "a") == ["failed"]


@pytest.mark.parametrize("crashed", [True, False])
def test_defects_07_08_a_crash_charges_what_ran_and_a_planned_stop_does_not(
    tmp_path: Path, clock: ManualClock, crashed: bool
) -> None:
    path = str(tmp_path / "jobs.db")
    broker = open_broker(path, mode="embedded", clock=clock)
    talk = Talk(broker)
    talk.good("PUSHB", queue="q", jobs=[{"customId": "once", "maxAttempts": 1}, {"customId": "again"}])
    talk.good("PULLB", queue="q", count=2)
    if crashed:
        flush(broker)
        broker.store.close()
    else:
        close_broker(broker)
    broker = open_broker(path, mode="embedded", clock=clock)
    talk = Talk(broker)
    assert states(talk, "once", "again") == (["failed", "waiting"] if crashed else ["waiting", "waiting"])
    assert [talk.good("GetJob", id=i)["job"]["attempts"] for i in ("once", "again")] == [int(crashed)] * 2
    close_broker(broker)


def test_defect_09_what_is_set_for_a_queue_outlives_a_restart(life: Life) -> None:
    talk = life.talk
    talk.good("Pause", queue="q")
    talk.good("SetConcurrency", queue="q", limit=3)
    talk.good("RateLimit", queue="q", limit=5, duration=2_000)
    talk.good("SetStallConfig", queue="q", config={"maxStalls": 7})
    talk.good("SetDlqConfig", queue="q", config={"maxEntries": 9, "maxAge": None})
    talk.good("PauseGroup", queue="q", groupId="g")
    asked = [("IsPaused", {}), ("GetQueueLimits", {}), ("GetStallConfig", {}), ("GetDlqConfig", {}),
             ("IsGroupPaused", {"groupId": "g"})]  # fmt: skip
    before = [talk.good(cmd, queue="q", **more) for cmd, more in asked]
    talk = life.crash(flushed=False)
    assert [talk.good(cmd, queue="q", **more) for cmd, more in asked] == before
    assert before[0]["paused"]


def test_defect_11_rows_of_expired_jobs_go(life: Life) -> None:
    talk = life.talk
    talk.good(
        "PUSHB", queue="q", jobs=[{"customId": "a", "ttl": 50}, {"customId": "b", "ttl": 50, "delay": 40}]
    )
    flush(life.broker)
    expire(life, 60)
    flush(life.broker)
    assert life.rows() == 0
    assert states(life.crash(), "a", "b") == ["unknown", "unknown"]


def test_defect_23_work_that_was_done_counts_although_its_lease_ran_out(life: Life) -> None:
    talk = life.talk
    talk.good("PUSH", queue="q", jobId="a")
    token = talk.good("PULL", queue="q", owner="w", lockTtl=100)["token"]
    expire(life, 101)
    assert states(talk, "a") == ["waiting"]
    talk.good("ACK", id="a", token=token, result="done")
    assert talk.good("GetResult", id="a")["result"] == "done"


def test_defect_24_the_answer_of_a_timed_out_attempt_does_not_end_the_next_one(life: Life) -> None:
    talk = life.talk
    talk.good("PUSH", queue="q", jobId="a", timeout=100, backoff=0)
    old = talk.good("PULL", queue="q", owner="w")["token"]
    expire(life, 101)
    new = talk.good("PULL", queue="q", owner="w")["token"]
    assert talk.good("ACK", id="a", token=old)["data"] == {"applied": False, "reason": "already-finalized"}
    assert states(talk, "a") == ["active"]
    talk.good("ACK", id="a", token=new)


def test_defects_25_26_a_lost_connection_gives_back_only_what_it_alone_holds(life: Life) -> None:
    talk = life.talk
    first, second = Talk(life.broker), Talk(life.broker)
    talk.good("PUSHB", queue="q", jobs=[{"customId": "renewed"}, {"customId": "not"}])
    tokens = first.good("PULLB", queue="q", owner="w", count=2)["tokens"]
    second.good("JobHeartbeat", id="renewed", token=tokens[0])
    first.session.close()
    assert states(talk, "renewed", "not") == ["active", "waiting"]
    third = Talk(life.broker)
    token = third.good("PULL", queue="q", owner="w")["token"]
    second.session.close()
    assert states(talk, "renewed", "not") == ["active", "active"]
    third.good("ACK", id="not", token=token)


def test_defect_32_an_id_twice_in_a_batch_is_acknowledged_once(life: Life) -> None:
    talk = life.talk
    talk.good("PUSHB", queue="q", jobs=[{"customId": "a"}, {"customId": "b"}])
    talk.good("PULLB", queue="q", count=2)
    reply = talk.good("ACKB", ids=["a", "a", "b"], results=[1, 2, 3])
    assert (reply["data"]["ignoredIndices"], reply["data"]["ignoredIds"]) == ([1], ["a"])
    assert talk.good("GetResult", id="a")["result"] == 1
    assert states(talk, "a", "b") == ["completed", "completed"]


@pytest.mark.parametrize("end", ["completed", "failed"])
@pytest.mark.parametrize("written", [True, False])
def test_defect_36_an_id_that_is_used_again_is_one_of_both_after_a_crash(
    life: Life, end: str, written: bool
) -> None:
    talk = life.talk
    talk.good("PUSH", queue="q", jobId="a", data="old", maxAttempts=1)
    talk.good("PULL", queue="q")
    talk.good("ACK" if end == "completed" else "FAIL", id="a")
    talk.send({"cmd": "PUSH", "queue": "q", "jobId": "a", "data": "new"})
    assert talk.replies() == []  # held until both are in one commit
    talk = life.crash(flushed=written)
    job = talk.good("GetJob", id="a")["job"]
    assert (job["data"], job["state"]) == (("new", "waiting") if written else ("old", end))
    assert life.rows() == 1
