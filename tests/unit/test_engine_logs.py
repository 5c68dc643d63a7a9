"""Log lines: beside the rows of their jobs, bounded, and gone with them."""

from __future__ import annotations

import msgpack
import pytest

from qcore import limits
from qcore.broker import rows
from qcore.engine.engine import Engine
from qcore.store.memory import MemoryStore

SEED = bytes(16)
NOW = 1_700_000_000_000


def stored(store: MemoryStore) -> dict[int | str, object]:
    return {seq: msgpack.unpackb(packed) for seq, packed in store.load().side["logs"]}


def save(engine: Engine, store: MemoryStore) -> None:
    store.commit(rows.take_rows(engine, NOW, 0))


def reopened(engine: Engine, store: MemoryStore, **options: int) -> Engine:
    save(engine, store)
    snapshot = store.load()
    again = Engine(bytes(15) + b"\1", tracking=True, **options)
    rows.restore_names(again, snapshot.names, snapshot.queues)
    assert rows.restore_side(again, snapshot.side) == []
    for row in snapshot.jobs:
        rows.restore(again, row, NOW, 0)
    rows.settle_active(again, True, False, NOW)
    again._check()
    return again


def test_a_line_costs_no_row_of_its_job() -> None:
    engine, store = Engine(SEED, tracking=True), MemoryStore()
    job_id = engine.push("q", b"\1", NOW)
    save(engine, store)
    for n in range(3):
        engine.add_log(job_id, f"{n}", "info", NOW + n)
    assert engine.n_changes == 1
    cut = rows.take_rows(engine, NOW, 0)
    assert (cut.inserts, cut.updates, cut.deletes) == ([], [], [])
    lines = [[NOW + n, "info", f"{n}"] for n in range(3)]
    assert {at: msgpack.unpackb(packed or b"") for at, packed in cut.side.items()} == {("logs", 1): lines}
    engine._check()


def test_lines_outlive_a_restart_with_their_job() -> None:
    engine, store = Engine(SEED, tracking=True), MemoryStore()
    a = engine.push("q", None, NOW)
    b = engine.push("q", None, NOW)
    engine.add_log(a, "kept", "warn", NOW)
    engine.add_log(b, "gone", "info", NOW)
    engine.pull("q", NOW, 0)
    engine.ack(a, NOW)
    again = reopened(engine, store)
    assert again.logs(a) == [[NOW, "warn", "kept"]]
    again.add_log(a, "more", "info", NOW)
    again.remove(b)
    again = reopened(again, store)
    assert [line[2] for line in again.logs(a)] == ["kept", "more"]
    assert list(stored(store)) == [1]


@pytest.mark.parametrize("how", ["remove", "complete", "fail", "drain", "obliterate", "again", "crowded out"])
def test_lines_go_with_their_job(how: str) -> None:
    engine, store = Engine(SEED, tracking=True, max_completed=1), MemoryStore()
    engine.push(
        "q", None, NOW, job_id="a", remove_on_complete=how == "complete", attempts=1, remove_on_fail=True
    )
    engine.add_log("a", "line", "info", NOW)
    save(engine, store)
    if how == "remove":
        engine.remove("a")
    elif how == "drain":
        engine.drain("q")
    elif how == "obliterate":
        engine.obliterate("q")
    else:
        engine.pull("q", NOW, 0)
        if how == "fail":
            engine.fail("a", NOW)
        else:
            engine.ack("a", NOW)
        if how == "again":
            engine.push("q", None, NOW, job_id="a")
        elif how == "crowded out":
            engine.push("q", None, NOW, job_id="b")
            engine.pull("q", NOW, 0)
            engine.ack("b", NOW)
    assert engine.logs("a") == []
    save(engine, store)
    assert stored(store) == {}
    engine._check()


def test_lines_stay_with_a_job_that_only_the_file_has() -> None:
    engine, store = Engine(SEED, tracking=True, archive=True, max_completed=1), MemoryStore()
    for job_id in "ab":
        engine.push("q", None, NOW, job_id=job_id)
        engine.add_log(job_id, "line", "info", NOW)
        engine.pull("q", NOW, 0)
        engine.ack(job_id, NOW)
    save(engine, store)
    assert list(stored(store)) == [1, 2]


@pytest.mark.parametrize(("keep", "kept"), [(None, 100), (3, 3), (1, 1), (0, 0), (-1, 0), (500, 100)])
def test_a_job_keeps_its_newest_lines(keep: int | None, kept: int) -> None:
    engine, store = Engine(SEED, tracking=True), MemoryStore()
    job_id = engine.push("q", None, NOW, extra=None if keep is None else {"keepLogs": keep})
    for n in range(120):
        engine.add_log(job_id, f"{n}", "info", NOW)
    engine = reopened(engine, store)
    assert [line[2] for line in engine.logs(job_id)] == [f"{n}" for n in range(120 - kept, 120)]
    engine.clear_logs(job_id, keep=2)
    assert len(engine.logs(job_id)) == min(2, kept)
    engine = reopened(engine, store)
    assert len(engine.logs(job_id)) == min(2, kept)
    engine.clear_logs(job_id)
    save(engine, store)
    assert stored(store) == {}


def test_the_job_that_wrote_longest_ago_loses_its_lines_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_LOGGED_JOBS", 3)
    engine, store = Engine(SEED, tracking=True), MemoryStore()
    for job_id in "abc":
        engine.push("q", None, NOW, job_id=job_id)
        engine.add_log(job_id, "1", "info", NOW)
    save(engine, store)
    engine.add_log("a", "2", "info", NOW)
    engine.push("q", None, NOW, job_id="d")
    engine.add_log("d", "1", "info", NOW)
    assert [len(engine.logs(job_id)) for job_id in "abcd"] == [2, 0, 1, 1]
    save(engine, store)
    assert list(stored(store)) == [1, 3, 4]
    engine.remove("b")
    engine._check()


def test_a_log_that_cannot_be_read_is_named_and_left() -> None:
    engine = Engine(SEED, tracking=True)
    side = {
        "logs": [(1, b"\xc1"), (2, b"\x90")],
        "keys": [(1, b"\x93\1\2\3"), (2, msgpack.packb([9, "k", 5, "x"]))],
    }
    assert rows.restore_side(engine, side) == [("logs", 1), ("logs", 2), ("keys", 1), ("keys", 2)]
    engine._check()
