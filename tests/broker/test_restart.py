"""What a data file brings back, after a clean end and after a crash."""

from __future__ import annotations

import struct
from typing import Any, Literal

import pytest
from broker_talk import Talk

from qcore.broker import open_broker
from qcore.broker.core import Broker
from qcore.broker.opening import close_broker, flush
from qcore.clock import ManualClock
from qcore.store.base import Cut
from qcore.store.memory import MemoryStore
from tests.records import EXPIRES_AT, read_record

SEED = bytes(range(16))
Mode = Literal["embedded", "server"]


class Machine:
    """A store that outlives brokers."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore()
        self.n = 0

    def start(self, mode: Mode = "server", **options: Any) -> Talk:
        self.n += 1
        self.store = self.store.reopened()
        self.broker = open_broker(
            store=self.store, mode=mode, clock=self.clock, seed=bytes([self.n] * 16), **options
        )
        self.broker.engine._check()
        return Talk(self.broker)

    def crash(self) -> None:
        flush(self.broker)

    def close(self) -> None:
        close_broker(self.broker)


@pytest.fixture
def machine() -> Machine:
    return Machine()


def job(talk: Talk, job_id: str) -> Any:
    return talk.good("GetJob", id=job_id)["job"]


@pytest.mark.parametrize("crashed", [False, True])
def test_embedded_workers_died_with_the_engine(machine: Machine, crashed: bool) -> None:
    talk = machine.start("embedded")
    talk.good("PUSHB", queue="q", jobs=[{"name": "n", "customId": "a"}, {"name": "n", "customId": "b"}])
    talk.good("PULL", queue="q", owner="w")
    talk.good("PULL", queue="q")
    (machine.crash if crashed else machine.close)()
    talk = machine.start("embedded")
    assert machine.broker.recovery.requeued == 2
    assert machine.broker.recovery.crashed is crashed
    for job_id in "ab":
        now = job(talk, job_id)
        assert (now["state"], now["attempts"], now["stallCount"]) == ("waiting", int(crashed), int(crashed))
    machine.crash()
    talk = machine.start("embedded")  # recovering twice is as recovering once
    assert machine.broker.recovery.requeued == 0
    assert job(talk, "a")["attempts"] == int(crashed)


@pytest.mark.parametrize("crashed", [False, True])
def test_a_worker_that_survived_the_server_keeps_its_job(machine: Machine, crashed: bool) -> None:
    talk = machine.start()
    talk.good("PUSHB", queue="q", jobs=[{"name": "n", "customId": i} for i in "abc"])
    tokens = talk.good("PULLB", queue="q", owner="w", count=3, lockTtl=1000)["tokens"]
    (machine.crash if crashed else machine.close)()
    machine.clock.advance(900)
    talk = machine.start()
    assert machine.broker.recovery.requeued == 0
    talk.good("ACK", id="a", token=tokens[0])
    talk.good("JobHeartbeat", id="b", token=tokens[1])
    assert talk.refused("ACK", id="c") == "Lock token required for job c"
    machine.clock.advance(100)
    machine.broker.pump()
    assert [job(talk, i)["state"] for i in "abc"] == ["completed", "active", "waiting"]
    assert [job(talk, i)["attempts"] for i in "abc"] == [0, 0, 1]


def test_active_without_a_lease_is_repaired_at_the_start(machine: Machine) -> None:
    talk = machine.start()
    talk.good("PUSHB", queue="q", jobs=[{"name": "n", "customId": i} for i in "abcd"])
    talk.good("PULL", queue="q")
    talk.good("PULLB", queue="q", owner="w", count=3, lockTtl=1000)
    machine.crash()
    # A lease that ended last year, and one until 2100 of a worker that nobody knows.
    for row, expires in zip(list(machine.store.load().jobs)[1:3], (1, 4_102_444_800_000), strict=True):
        seq, _, state, record, _, result = row
        whole = read_record(record)
        edited, expires_at = whole.plain, len(whole.head) + EXPIRES_AT
        assert struct.unpack_from("<q", edited, expires_at) == (machine.clock.now_ms() + 1000,)
        struct.pack_into("<q", edited, expires_at, expires)  # without a seal
        machine.store.commit(Cut(updates=[seq, state, bytes(edited), result]))
    talk = machine.start()
    assert [job(talk, i)["state"] for i in "abcd"] == ["waiting", "active", "active", "active"]
    machine.clock.advance(1)
    machine.broker.pump()
    assert [job(talk, i)["state"] for i in "abcd"] == ["waiting", "waiting", "active", "active"]
    machine.clock.advance(999)
    machine.broker.pump()
    assert [job(talk, i)["state"] for i in "abcd"] == ["waiting"] * 4
    assert len(talk.good("PULLB", queue="q", count=9)["jobs"]) == 4


def test_a_job_that_kills_its_process_ends(machine: Machine) -> None:
    talk = machine.start("embedded")
    talk.good("PUSH", queue="q", name="n", jobId="a", maxAttempts=2)
    starts = 0
    while talk.good("PULL", queue="q", owner="w")["job"] is not None:
        starts += 1
        machine.crash()
        talk = machine.start("embedded")
    assert starts == 2
    (entry,) = talk.good("Dlq", queue="q")["entries"]
    assert entry["reason"] == "max_attempts_exceeded"
    assert [record["attempt"] for record in entry["attempts"]] == [1, 2]


def test_order_survives(machine: Machine) -> None:
    talk = machine.start()
    jobs = [{"name": "n", "customId": str(n), "priority": n % 3, "lifo": n % 5 == 0} for n in range(40)]
    talk.good("PUSHB", queue="q", jobs=jobs)
    machine.crash()
    restarted = machine.start()
    got = [found["id"] for found in restarted.good("PULLB", queue="q", count=100)["jobs"]]
    assert got == [found["id"] for found in talk.good("PULLB", queue="q", count=100)["jobs"]]
    # New jobs go behind those that were there.
    machine.crash()
    talk = machine.start("embedded")
    talk.good("PUSH", queue="q", name="n", jobId="new")
    assert [found["id"] for found in talk.good("PULLB", queue="q", count=100)["jobs"]][-1] == "new"


def test_dead_letters_keep_their_order(machine: Machine) -> None:
    talk = machine.start()
    talk.good("PUSHB", queue="q", jobs=[{"name": "n", "customId": i} for i in "abc"])
    talk.good("PULLB", queue="q", count=3)
    for job_id in "cab":
        machine.clock.advance(1)
        talk.good("FAIL", id=job_id, unrecoverable=True, error=f"no {job_id}")
    before = talk.good("Dlq", queue="q")
    assert [entry["job"]["id"] for entry in before["entries"]] == ["c", "a", "b"]
    machine.crash()
    assert machine.start().good("Dlq", queue="q") == before


def end_all(talk: Talk, ids: str) -> None:
    """Add jobs, and end them in this order: capitals fail, others are completed."""
    for job_id in sorted(ids):
        talk.good("PUSH", queue="q", name="n", jobId=job_id)
    talk.good("PULLB", queue="q", count=len(ids))
    for job_id in ids:
        if job_id.isupper():
            talk.good("FAIL", id=job_id, unrecoverable=True, error=f"no {job_id}")
        else:
            talk.good("ACK", id=job_id)


def dead(talk: Talk) -> str:
    return "".join(entry["job"]["id"] for entry in talk.good("Dlq", queue="q")["entries"])


def ended(broker: Broker) -> str:
    """The completed jobs in the order in which they are removed or started over; removes them."""
    return "".join(broker.engine.clean("q", broker.wall_ms, state="completed", limit=1000))


@pytest.mark.parametrize("crashed", [False, True])
def test_jobs_that_ended_in_one_millisecond_keep_their_order(machine: Machine, crashed: bool) -> None:
    talk = machine.start()
    end_all(talk, "DcBdAbCa")
    assert dead(talk) == "DBAC"
    (machine.crash if crashed else machine.close)()
    talk = machine.start()
    assert dead(talk) == "DBAC"
    # Ends go on after those that there were, also in the same millisecond.
    end_all(talk, "FhEgfGe")
    (machine.crash if crashed else machine.close)()
    talk = machine.start()
    assert dead(talk) == "DBACFEG"
    assert talk.good("RetryCompleted", queue="q", count=2)["count"] == 2
    assert {job(talk, job_id)["state"] for job_id in "cd"} == {"waiting"}
    assert ended(machine.broker) == "bahgfe"


def test_dead_letters_keep_their_order_when_the_clock_was_set_back(machine: Machine) -> None:
    talk = machine.start()
    end_all(talk, "CA")
    machine.clock.set_wall(machine.clock.now_ms() - 3_600_000)
    end_all(talk, "DB")
    assert dead(talk) == "CADB"
    machine.crash()
    assert dead(machine.start()) == "CADB"


def test_the_oldest_dead_letter_goes_first_after_a_restart(machine: Machine) -> None:
    talk = machine.start()
    end_all(talk, "CAB")
    machine.crash()
    talk = machine.start()
    talk.good("SetDlqConfig", queue="q", config={"maxEntries": 2})
    assert dead(talk) == "AB"


def test_ends_without_a_number_come_first_in_order_of_time_and_admission(machine: Machine) -> None:
    """Rows from before ends had numbers."""
    talk = machine.start()
    end_all(talk, "cCaA")
    machine.clock.advance(1)
    end_all(talk, "bB")
    machine.crash()
    for seq, _, state, record, _, result in list(machine.store.load().jobs):
        machine.store.commit(Cut(updates=[seq, state, bytes(read_record(record).plain), result]))
    talk = machine.start()
    assert dead(talk) == "ACB"
    end_all(talk, "eEdD")
    machine.crash()
    talk = machine.start()
    assert dead(talk) == "ACBED"
    assert ended(machine.broker) == "acbed"


def test_a_wait_for_a_retry_and_a_pause_survive(machine: Machine) -> None:
    talk = machine.start()
    talk.good("PUSH", queue="q", name="n", jobId="a", backoff={"type": "fixed", "delay": 5000, "jitter": 0})
    talk.good("PULL", queue="q")
    talk.good("FAIL", id="a")
    machine.broker.engine.pause("p")
    talk.good("PUSH", queue="p", name="n", jobId="b")
    machine.clock.advance(2000)
    machine.crash()
    talk = machine.start()
    assert talk.good("PULL", queue="p")["job"] is None
    machine.clock.advance(2999)
    assert talk.good("PULL", queue="q")["job"] is None
    machine.clock.advance(1)
    assert talk.good("PULL", queue="q")["job"]["attempts"] == 1


def test_what_was_removed_does_not_come_back(machine: Machine) -> None:
    talk = machine.start()
    talk.good("PUSHB", queue="q", jobs=[{"name": "n", "customId": i} for i in "abcd"])
    flush(machine.broker)
    engine = machine.broker.engine
    assert engine.remove("a")
    talk.good("PUSH", queue="q", name="n", jobId="e")
    assert engine.remove("e")  # never written
    talk.good("PULL", queue="q")
    talk.good("ACK", id="b", removeOnComplete=True)
    talk.good("PULL", queue="q")
    talk.good("FAIL", id="c", unrecoverable=True, removeOnFail=True)
    machine.crash()
    talk = machine.start()
    assert [talk.good("GetState", id=i)["state"] for i in "abcde"] == ["unknown"] * 3 + ["waiting", "unknown"]


def test_cases_c031_a_row_that_cannot_be_read_costs_only_itself(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    talk = machine.start()
    talk.good("PUSHB", queue="q", jobs=[{"name": "n", "customId": str(n), "data": n} for n in range(60)])
    talk.good("PULLB", queue="q", count=20, owner="w")
    machine.crash()
    rows = list(machine.store.load().jobs)
    spoilt = 0
    for at, (seq, queue, state, record, data, result) in enumerate(rows[:40]):
        kinds: list[list[object]] = [
            [seq, queue, state, record[: min(at, len(record) - 1)], data, result],
            [seq, queue, 77, record, data, result],
            [seq, 5000, state, record, data, result],
            [seq, queue, state, b"\x63" + record[1:], data, result],
            [seq, queue, state, record, b"\xc1", result],
            [seq, queue, 4 if at >= 20 else 1, record, data, result],
        ]
        machine.store.commit(Cut(inserts=kinds[at % len(kinds)]))
        spoilt += 1
    talk = machine.start()
    assert len(machine.broker.recovery.unreadable) == spoilt
    assert machine.broker.recovery.jobs == 60 - spoilt
    assert "cannot be read" in caplog.text
    machine.broker.engine._check()
    assert len(talk.good("PULLB", queue="q", count=100)["jobs"]) == 20


def test_bytes_of_random_rows_are_refused_or_read(machine: Machine) -> None:
    import random

    from qcore.broker import rows as codec

    rng = random.Random(11)
    talk = machine.start()
    talk.good("PUSHB", queue="q", jobs=[{"name": "n", "customId": str(n), "ttl": 5} for n in range(10)])
    talk.good("PUSHB", queue="q", jobs=[{"name": "n"} for n in range(10)])
    talk.good("PULLB", queue="q", count=8, owner="w")
    machine.crash()
    snapshot = machine.store.load()
    originals = list(snapshot.jobs)
    for _ in range(30):
        engine = open_broker(clock=machine.clock, seed=SEED).engine
        codec.restore_names(engine, snapshot.names, snapshot.queues)
        read = 0
        for seq, queue, state, record, data, result in originals:
            spoilt = bytearray(record)
            # Not the head's flags and numbers alone: anything, anywhere.
            spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
            try:
                row = (seq, queue, rng.choice([state, rng.randint(-1, 9)]), bytes(spoilt), data, result)
                codec.restore(engine, row, machine.clock.now_ms(), machine.clock.now_ns())
            except codec.BadRow:
                continue
            read += 1
        codec.settle_active(engine, False, True, machine.clock.now_ms())
        engine._check()
        assert len(engine) <= read


def test_restart_of_a_broker_leaves_nothing_new_to_write(machine: Machine) -> None:
    talk = machine.start()
    talk.good("PUSH", queue="q", name="n", jobId="a")
    machine.close()
    machine.start()
    cut = machine.broker.begin_commit()
    assert cut is None or cut.n_jobs == 0
    assert isinstance(machine.broker, Broker)


@pytest.mark.parametrize("how", ["Cancel", "fail", "later"])
def test_a_completion_that_memory_forgot_satisfies_nobody_after_a_restart(machine: Machine, how: str) -> None:
    """Memory forgets completed ids one by one, the file by rows: such an id may begin a second life."""
    n = 4
    talk = machine.start(max_completed=n)

    def complete(*ids: str) -> None:
        jobs = [{"name": "n", "customId": one, "removeOnComplete": True} for one in ids]
        talk.good("PUSHB", queue="q", jobs=jobs)
        pulled = talk.good("PULLB", queue="q", owner="w", count=len(ids))
        talk.good("ACKB", ids=[one["id"] for one in pulled["jobs"]], tokens=pulled["tokens"])
        machine.crash()

    complete("kid", *[f"x{i}" for i in range(n - 1)])
    complete(*[f"y{i}" for i in range(n - 1)])
    complete("z")
    assert not talk.ask("PUSH", queue="p", name="n", dependsOn=["kid"])["ok"]
    talk.good("PUSH", queue="q", name="n", jobId="kid", removeOnFail=True, maxAttempts=1)
    if how == "later":
        talk.good("PUSH", queue="p", name="n", jobId="parent")
        talk.good("UpdateParent", childId="kid", parentId="parent")
    else:
        talk.good("PUSH", queue="p", name="n", jobId="parent", dependsOn=["kid"])
    if how == "Cancel":
        talk.good("Cancel", id="kid")
    else:
        token = talk.good("PULL", queue="q", owner="w")["token"]
        talk.good("FAIL", id="kid", token=token, error="no")
    before = talk.good("GetState", id="parent")["state"], talk.good("GetDependencies", id="parent")["data"]
    machine.crash()
    talk = machine.start(max_completed=n)
    after = talk.good("GetState", id="parent")["state"], talk.good("GetDependencies", id="parent")["data"]
    assert before == after
    assert after[0] == "waiting-children"
