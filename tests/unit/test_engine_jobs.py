"""Admission, identity, ends and counts of jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qcore.broker import rows
from qcore.engine.engine import Engine
from qcore.errors import NotFoundError, StateError
from qcore.store.memory import MemoryStore

SEED = bytes(16)
NOW = 1_700_000_000_000
NAMES = json.loads((Path(__file__).parent.parent / "data" / "names.json").read_text())
JOB_IDS = [row["value"] for row in NAMES["job_ids"] if row["value"]]


def complete(engine: Engine, job_id: str, result: bytes | None = None, now_ms: int = NOW) -> None:
    queue = next(name for name in engine.queue_names() if engine.counts(name, now_ms)["waiting"])
    assert engine.pull(queue, now_ms, 0)[0] == job_id
    engine.ack(job_id, now_ms, result=result)


def test_every_custom_id_is_a_job_of_its_own() -> None:
    engine = Engine(SEED)
    for _ in range(2):
        for job_id in JOB_IDS:
            assert engine.push("q", json.dumps(job_id).encode(), NOW, job_id=job_id) == job_id
    assert len(engine) == len(set(JOB_IDS)) == len(JOB_IDS)
    assert [data for _, _, data in engine.pull_many("q", 99, NOW, 0)] == [
        json.dumps(i).encode() for i in JOB_IDS
    ]
    for job_id in JOB_IDS:
        engine.ack(job_id, NOW, result=job_id.encode())
    assert [engine.result(job_id) for job_id in JOB_IDS] == [job_id.encode() for job_id in JOB_IDS]
    engine._check()


def test_a_text_id_and_the_number_that_it_spells_are_told_apart() -> None:
    engine = Engine(SEED)
    number = engine.push("q", None, NOW)
    others = [number.upper(), number.replace("-", ""), "{" + number + "}", number + "\0"]
    for other in others:
        assert engine.push("q", None, NOW, job_id=other) == other
    assert len(engine) == 1 + len(others)
    assert engine.push("q", None, NOW, job_id=number) == number
    assert len(engine) == 1 + len(others)
    for other in others:
        assert engine.remove(other)
    assert engine.state(number) == "waiting"


@pytest.mark.parametrize("job_id", ["one", "00000000-0000-7000-8000-000000000001"])
def test_a_live_holder_of_an_id_is_the_answer_wherever_it_is(job_id: str) -> None:
    engine = Engine(SEED)
    engine.push("q", b"\x01", NOW, job_id=job_id, delay_ms=10, backoff_ms=500)
    for now, state in ((NOW, "delayed"), (NOW + 10, "waiting"), (NOW + 10, "active"), (NOW + 10, "delayed")):
        if state == "waiting":
            engine.counts("q", now)
        elif state == "active":
            engine.pull("q", now, 0)
        elif now > NOW:
            engine.fail(job_id, now)
        assert engine.state(job_id) == state
        assert engine.push("other", b"\x02", now, job_id=job_id) == job_id
        assert engine.counts("other", now) == dict.fromkeys(engine.counts("other", now), 0)
    assert engine.pull("q", NOW + 10_000, 0)[2] == b"\x01"
    assert engine.queue("q").total_pushed == 1


@pytest.mark.parametrize("job_id", ["one", "00000000-0000-7000-8000-000000000001"])
def test_a_finished_holder_makes_room_for_a_new_generation(job_id: str) -> None:
    engine = Engine(SEED, tracking=True)
    store = MemoryStore()
    old: str | None = None
    for generation in range(4):
        engine.push(f"q{generation % 2}", bytes([generation]), NOW, job_id=job_id, attempts=1)
        assert (engine.state(job_id), engine.attempts(job_id), engine.result(job_id)) == ("waiting", 0, None)
        if old is not None:
            with pytest.raises(StateError):
                engine.ack(job_id, NOW, token=old)
        _, old, data = engine.pull(f"q{generation % 2}", NOW, 0, lease_ms=1000)
        assert data == bytes([generation])
        if generation % 2:
            engine.fail(job_id, NOW, token=old)
        else:
            engine.ack(job_id, NOW, token=old, result=b"\x09")
        assert len(engine) == 1
        if generation != 1:  # also a generation that the store never saw
            store.commit(rows.take_rows(engine, NOW, 0))
            assert len(list(store.load().jobs)) == 1
        engine._check()


def test_a_cancelled_id_is_free() -> None:
    engine = Engine(SEED)
    engine.push("q", b"\x01", NOW, job_id="x")
    assert engine.remove("x")
    assert not engine.remove("x")
    engine.push("q", b"\x02", NOW, job_id="x")
    assert engine.pull("q", NOW, 0)[2] == b"\x02"


def test_the_oldest_completed_job_leaves_first_also_when_an_id_is_used_again() -> None:
    engine = Engine(SEED, max_completed=2)
    engine.push("q", None, NOW, job_id="again", remove_on_complete=True)
    complete(engine, "again")
    first = engine.push("q", None, NOW)
    complete(engine, first)
    engine.push("q", None, NOW, job_id="again")
    complete(engine, "again")
    assert engine.state(first) == "completed"
    complete(engine, engine.push("q", None, NOW))
    assert engine.state(first) == "unknown"
    assert engine.state("again") == "completed"
    engine._check()


def test_completed_jobs_beyond_the_bound_stay_counted_with_an_archive() -> None:
    engine = Engine(SEED, tracking=True, archive=True, max_completed=3)
    store = MemoryStore()
    ids = engine.push_many("q", [b"\xc0"] * 10, NOW)
    for at, job_id in enumerate(ids):
        complete(engine, job_id)
        if at % 4 == 3:
            store.commit(rows.take_rows(engine, NOW, 0))
        engine._check()
        assert engine.counts("q", NOW)["completed"] == at + 1
    store.commit(rows.take_rows(engine, NOW, 0))
    assert len(engine) == 3
    again = Engine(SEED, tracking=True, archive=True, max_completed=3)
    snapshot = store.load()
    rows.restore_names(again, snapshot.names, snapshot.queues)
    for row in snapshot.jobs:
        rows.restore(again, row, NOW, 0)
    rows.settle_active(again, True, False, NOW)
    assert again.counts("q", NOW)["completed"] == 10
    assert len(again) == 3
    again._check()


def test_finished_jobs_come_back_in_the_order_in_which_they_finished() -> None:
    engine = Engine(SEED, tracking=True)
    ids = engine.push_many("q", [b"\xc0"] * 4, NOW)
    engine.pull_many("q", 4, NOW, 0)
    for at, job_id in enumerate(reversed(ids)):
        engine.ack(job_id, NOW + at)
    again = Engine(bytes(range(16)), max_completed=4)
    cut = rows.take_rows(engine, NOW, 0)
    inserts, names, queues = cut.inserts, cut.names, cut.queues
    rows.restore_names(again, names, queues)
    for at in range(0, len(inserts), 6):
        rows.restore(again, tuple(inserts[at : at + 6]), NOW, 0)
    rows.settle_active(again, True, False, NOW)
    complete(again, again.push("q", None, NOW))
    assert [again.state(job_id) for job_id in ids] == ["completed"] * 3 + ["unknown"]


def test_removal_on_completion_and_on_failure_leaves_nothing() -> None:
    engine = Engine(SEED)
    done = engine.push("q", None, NOW, remove_on_complete=True)
    dead = engine.push("q", None, NOW, remove_on_fail=True, attempts=1)
    asked = engine.push("q", None, NOW)
    engine.pull_many("q", 3, NOW, 0)
    engine.ack(done, NOW, result=b"\x01")
    engine.fail(dead, NOW)
    engine.ack(asked, NOW, remove=True)
    assert len(engine) == 0
    assert [engine.state(job_id) for job_id in (done, dead, asked)] == ["unknown"] * 3
    q = engine.queue("q")
    assert (q.total_pushed, q.total_completed, q.total_failed) == (3, 2, 1)
    with pytest.raises(NotFoundError):
        engine.attempts(done)


def test_a_job_past_its_ttl_is_dropped_when_a_pull_meets_it() -> None:
    engine = Engine(SEED)
    engine.push("q", None, NOW, priority=9, extra={"ttl": 100})
    live = engine.push("q", None, NOW, extra={"ttl": 101})
    assert engine.pull("q", NOW + 101, 0)[0] == live
    assert len(engine) == 1
    assert engine.pull("q", NOW + 101, 0) is None


def test_no_result_and_a_null_result_are_two_things() -> None:
    engine = Engine(SEED)
    for result in (None, b"\xc0"):
        job_id = engine.push("q", None, NOW)
        complete(engine, job_id, result)
        assert engine.result(job_id) == result


def test_payload_bytes_come_out_as_they_went_in() -> None:
    engine = Engine(SEED)
    datas = [None, b"", b"\xc0", bytes(range(256)) * 5, b"\0" * 100_000]
    for data in datas:
        engine.push("q", data, NOW)
    assert [data for _, _, data in engine.pull_many("q", 9, NOW, 0)] == datas


def test_dead_letters_are_bounded_oldest_first_out() -> None:
    engine = Engine(SEED)
    ids = engine.push_many("q", [b"\xc0"] * 5, NOW)
    engine.configure("q", dead={"maxEntries": 2})
    engine.pull_many("q", 5, NOW, 0)
    for job_id in ids:
        engine.fail(job_id, NOW, unrecoverable=True)
    assert [engine.state(job_id) for job_id in ids] == ["unknown"] * 3 + ["failed"] * 2
    engine._check()


def test_every_structure_is_back_at_its_size_when_all_jobs_are_gone() -> None:
    engine = Engine(SEED, tracking=True, max_completed=10)

    def life() -> int:
        ids = [
            engine.push("q", b"\xc0", NOW, job_id=f"job-{n}" if n % 3 else None, delay_ms=n % 2 * 5)
            for n in range(5000)
        ]
        given = engine.pull_many("q", 4000, NOW + 5, 0, lease_ms=50, session=3)
        for n, (job_id, token, _) in enumerate(given):
            if n % 3 == 0:
                engine.ack(job_id, NOW, token=token, result=b"\x01")
            elif n % 3 == 1:
                engine.fail(job_id, NOW, token=token, error="no")
        engine.advance(NOW + 5, 10**12)
        engine.close_session(3, NOW + 5)
        for job_id in ids:
            engine.remove(job_id)
        rows.take_rows(engine, NOW, 0)
        engine.take_events()
        engine._check()
        assert len(engine) == 0
        assert engine.next_due(NOW, 0) is None
        assert engine.n_changes == 0
        return int(engine.memory())

    life()
    size = life()
    for _ in range(5):
        assert life() < size * 1.02  # the tall nodes of the run queue are drawn anew


def test_a_flood_of_due_jobs_is_promoted_in_bounded_turns() -> None:
    engine = Engine(SEED)
    for _ in range(50_001):
        engine.push("q", None, NOW, delay_ms=1)
    assert engine.advance(NOW + 1, 0) is True
    assert engine.queue("q").n_ready == 50_000
    assert engine.next_due(NOW + 1, 0) == 0
    assert engine.advance(NOW + 1, 0) is False
    assert engine.queue("q").n_ready == 50_001
