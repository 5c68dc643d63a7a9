"""The log of changes and its fold, held against a store in memory."""

from __future__ import annotations

import logging
import os
import random
import shutil
import sqlite3
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from qcore.store import sqlite
from qcore.store.base import Cut, StoreFault, pack_rows
from qcore.store.changelog import PAGE_BYTES, ChangeLog
from qcore.store.memory import MemoryStore
from qcore.store.native import NativeSqliteStore
from qcore.store.sqlite import SqliteStore

KINDS: list[type[SqliteStore]] = [SqliteStore, NativeSqliteStore]


def everything(store: SqliteStore | MemoryStore) -> tuple[object, ...]:
    snapshot = store.load()
    return snapshot.names, snapshot.queues, snapshot.meta, snapshot.side, list(snapshot.jobs)


def tables(store: SqliteStore) -> list[Any]:
    """The rows as they lie in their table, whatever the log says."""
    return store._con.execute("SELECT seq, state, record, result FROM jobs ORDER BY seq").fetchall()


def settle(store: SqliteStore) -> None:
    """Let maintenance do everything there is to do."""
    for _ in range(1000):
        if not store.maintain():
            return
    raise AssertionError("maintenance does not end")


def adds(first: int, last: int, size: int = 20) -> Cut:
    return Cut(inserts=[v for seq in range(first, last + 1) for v in (seq, 1, 1, b"r", b"d" * size, None)])


def updates(seqs: list[int], state: int, record: bytes = b"u", result: bytes | None = None) -> Cut:
    return Cut(updates=[v for seq in seqs for v in (seq, state, record, result)])


# --- what is written where ----------------------------------------------------------------


def test_a_change_is_appended_and_folded_later(store: SqliteStore) -> None:
    store.commit(adds(1, 3))
    store.commit(updates([2], 3))
    store.commit(Cut(deletes=[3], side={("telemetry", 1): b"t"}, queues=[(1, b"q")]))
    assert tables(store) == [(1, 1, b"r", None), (2, 1, b"r", None), (3, 1, b"r", None)]
    assert [row[:4] for row in store.load().jobs] == [(1, 1, 1, b"r"), (2, 1, 3, b"u")]
    assert store._con.execute("SELECT count(*) FROM telemetry").fetchone() == (0,)
    assert store.status()["changelog_rows"] == 4
    before = everything(store)
    settle(store)
    assert tables(store) == [(1, 1, b"r", None), (2, 3, b"u", None)]
    assert store._con.execute("SELECT value FROM telemetry").fetchall() == [(b"t",)]
    assert everything(store) == before
    assert store.status()["changelog_rows"] == 0


def test_a_commit_of_few_changes_writes_one_page(store: SqliteStore) -> None:
    store.commit(adds(1, 2000))
    store.commit(updates([1], 3))
    store._con.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    order = random.Random(1).sample(range(1, 2001), 20)
    store.commit(Cut(updates=updates(order, 3).updates, side={("telemetry", 1): b"t" * 50}))
    store.commit(Cut(deletes=order[:5], side={("evidence", 1): b"e" * 50}))
    assert store._frames()[1] == 2


def test_large_changes_are_written_at_once_and_count(store: SqliteStore) -> None:
    store.commit(adds(1, 4))
    store.commit(updates([1, 2, 3], 3, b"old"))
    big = b"x" * 5000
    store.commit(updates([1], 4, b"new", big))
    store.commit(Cut(inserts=[2, 1, 2, b"new", b"other", None], side={("logs", 1): big}))
    store.commit(Cut(deletes=[3]))
    store.commit(updates([3], 4, b"none", big))  # there is no such row any more
    store.commit(Cut(inserts=[3, 1, 2, b"again", None, None]))
    assert tables(store)[:3] == [(1, 4, b"new", big), (2, 2, b"new", None), (3, 2, b"again", None)]
    before = everything(store)
    assert [row[3] for row in before[4]] == [b"new", b"new", b"again", b"r"]  # type: ignore[attr-defined]
    settle(store)
    assert everything(store) == before
    store.commit(updates([1], 5, b"newer"))
    assert [row[2:4] for row in store.read([1])] == [(5, b"newer")]


def test_a_large_value_takes_the_place_of_a_small_one(store: SqliteStore) -> None:
    for value in (b"small", b"l" * 5000, b"s", None, b"m" * 5000):
        store.commit(Cut(side={("logs", 1): value, ("schedules", "a"): value}, queues=[(1, value)]))
        found = store.load()
        expected = [] if value is None else [value]
        assert [v for _, v in found.side["logs"]] == expected
        assert [v for _, v in found.side["schedules"]] == expected
        assert [v for _, v in found.queues] == expected
    settle(store)
    assert store.load().queues == [(1, b"m" * 5000)]


def test_a_payload_goes_with_its_job_at_once(store: SqliteStore) -> None:
    store.commit(adds(1, 10, size=5000))
    store.commit(Cut(deletes=[2, 5]))
    assert store._con.execute("SELECT count(*) FROM payloads").fetchone() == (8,)
    assert len(tables(store)) == 10


def test_pages_are_written_again(store: SqliteStore) -> None:
    store.commit(adds(1, 500))
    for _ in range(30):
        for seq in range(1, 500, 20):
            store.commit(updates(list(range(seq, seq + 20)), 3, b"u" * 60))
        settle(store)
    assert store._changes.n_slots < 40
    assert store._con.execute("SELECT count(*) FROM changelog").fetchone() == (store._changes.n_slots + 1,)


def test_a_file_that_is_closed_has_no_changes_left_to_fold(db: Path) -> None:
    for kind in KINDS:
        store = kind(db)
        store.commit(adds(1, 3000))
        for _ in range(3):
            store.commit(updates(list(range(1, 3001)), 4, b"done"))
        store.commit(Cut(deletes=list(range(1, 3000, 2))))
        expected = everything(store)
        store.close()
        con = sqlite3.connect(db)
        found = con.execute("SELECT seq, state FROM jobs ORDER BY seq").fetchall()
        assert found == [(seq, 4) for seq in range(2, 3001, 2)]
        assert con.execute("SELECT count(*) FROM changelog").fetchone() == (17,)
        con.close()
        store = kind(db)
        assert everything(store) == expected
        store.close()
        db.unlink()


# --- any history, folded at any moment ------------------------------------------------------

blob = st.binary(max_size=40) | st.just(b"h" * 2000)
value = st.binary(min_size=1, max_size=40) | st.just(b"h" * 2000)  # no packed value is empty


@st.composite
def cuts(draw: st.DrawFn, alive: list[int], next_seq: int) -> Cut:
    """Draw a cut as an engine takes it: only rows that exist are updated."""
    cut = Cut()
    for seq in draw(st.lists(st.sampled_from(alive), unique=True, max_size=12)) if alive else ():
        match draw(st.sampled_from(["update", "update", "replace", "delete"])):
            case "update":
                cut.updates += [seq, draw(st.integers(0, 9)), draw(blob), draw(st.none() | blob)]
            case "replace":
                cut.inserts += [seq, 1, draw(st.integers(0, 9)), draw(blob), draw(st.none() | value), None]
            case "delete":
                cut.deletes.append(seq)
    for _ in range(draw(st.integers(0, 5))):
        cut.inserts += [next_seq, 2, 0, draw(blob), draw(st.none() | value), None]
        next_seq += draw(st.sampled_from([1, 1, 1, 40]))
    if draw(st.booleans()):  # born and gone within the window: it never had a row
        cut.deletes.append(next_seq)
    cut.queues = [(n, draw(st.none() | blob)) for n in draw(st.sets(st.integers(1, 3), max_size=2))]
    cut.side = {
        (table, key): draw(st.none() | blob)
        for table, key in draw(
            st.sets(
                st.sampled_from(
                    [("logs", 1), ("logs", -2), ("schedules", "ä"), ("lanes", "1:"), ("minutes", 5)]
                )
            )
        )
    }
    if draw(st.booleans()):
        cut.meta = {"k": draw(blob)}
    return cut


class Folding(RuleBasedStateMachine):
    """Cuts, slices of folds, failures, kills and clean ends in any order: always what memory says."""

    kind: type[SqliteStore]

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.path = self.directory / "0.db"
        self.n_kills = 0
        self.store = self.kind(self.path)
        self.model = MemoryStore()
        self.next_seq = 1

    def alive(self) -> list[int]:
        return [row[0] for row in self.model.load().jobs]

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        cut = data.draw(cuts(self.alive(), self.next_seq))
        self.store.commit(cut, sync=data.draw(st.booleans()))
        self.model.commit(cut)
        self.next_seq = max(self.next_seq, *(seq + 1 for seq in [*cut.inserts[::6], *cut.deletes, 0]))  # type: ignore[operator]

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        """A cut that does not come through leaves nothing behind, in memory as in the file."""
        cut = data.draw(cuts(self.alive(), self.next_seq))
        cut.names = [(2**70, "no such number")]
        with pytest.raises((OverflowError, StoreFault)):
            self.store.commit(cut)

    @rule(rows=st.integers(1, 9), values=st.integers(1, 3))
    def fold(self, rows: int, values: int) -> None:
        sqlite.FOLD_ROWS, sqlite.FOLD_VALUES = rows, values
        self.store._fold()

    @rule()
    def fold_that_fails(self) -> None:
        if isinstance(self.store, NativeSqliteStore):
            return
        self.store._con.set_authorizer(
            lambda action, *_: (
                sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK
            )
        )
        self.store._try_fold()
        self.store._con.set_authorizer(None)
        self.store._fold_again_at = 0.0

    @rule()
    def maintain(self) -> None:
        self.store.maintain()

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = self.kind(self.path)

    @rule()
    def kill(self) -> None:
        """Go on with a copy of the files as they are, as after the end of the process."""
        self.n_kills += 1
        path = self.directory / f"{self.n_kills}.db"
        for suffix in ("", "-wal"):
            shutil.copy(f"{self.path}{suffix}", f"{path}{suffix}")
        self.store.close()
        self.path = path
        self.store = self.kind(path)

    @precondition(lambda self: hasattr(self, "store"))
    @invariant()
    def same(self) -> None:
        assert everything(self.store) == everything(self.model)
        alive = self.alive()
        assert self.store.read(alive[::2]) == self.model.read(alive[::2])
        if alive:
            assert self.store.scan(alive[0] + 1, 3) == self.model.scan(alive[0] + 1, 3)
        self.store._changes._check()

    def teardown(self) -> None:
        sqlite.FOLD_ROWS, sqlite.FOLD_VALUES = 512, 64
        if hasattr(self, "store"):
            assert self.store.integrity_check() == []
            self.store.close()
            shutil.rmtree(self.directory)


class FoldingModule(Folding):
    kind = SqliteStore


class FoldingNative(Folding):
    kind = NativeSqliteStore


TestFoldingModule = FoldingModule.TestCase
TestFoldingNative = FoldingNative.TestCase
TestFoldingModule.settings = TestFoldingNative.settings = settings(
    max_examples=10,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # to shrink a history of files takes minutes
)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=300))
@settings(max_examples=50, deadline=None)
def test_a_fold_goes_in_the_order_of_the_keys(seqs: list[int]) -> None:
    log = ChangeLog()
    log.restore(log.first_row_of(0), [], 2**63 - 1)
    log.stage([pack_rows(Cut(deletes=seqs))], [])
    log.accept()
    log._check()
    assert log.begin_fold() == bool(seqs)
    if seqs:
        assert log.fold_rows(1000) == (len(seqs), [], sorted(seqs))


# --- when it folds ---------------------------------------------------------------------------


def committed_until_a_fold(store: SqliteStore, cuts: Iterator[Cut], most: int) -> int:
    for n, cut in enumerate(cuts):
        store.commit(cut)
        if store._changes.wants_fold:
            return n
        if n > most:
            break
    raise AssertionError("no fold is wanted")


def test_scattered_changes_wait_until_a_page_is_met_by_many(store: SqliteStore) -> None:
    store.commit(adds(1, 20_000))
    order = list(range(1, 20_001))
    in_order = (updates(order[i : i + 20], 3) for i in range(0, 20_000, 20))
    n_in_order = committed_until_a_fold(store, in_order, 200)
    settle(store)
    random.Random(1).shuffle(order)
    scattered = (updates(order[i : i + 20], 3) for i in range(0, 20_000, 20))
    assert committed_until_a_fold(store, scattered, 500) > 2 * n_in_order


def test_the_same_row_over_and_over_does_not_grow_the_log(store: SqliteStore) -> None:
    store.commit(adds(1, 1))
    over = (updates([1], 3, b"p%d" % n + b" " * 1000) for n in range(100_000))
    committed_until_a_fold(store, over, 2000)


def test_rows_that_are_gone_make_room_for_large_ones(store: SqliteStore) -> None:
    """However few they are: their place is worth more than the pages a fold writes (C032)."""
    sizes = []
    for n in range(600):
        first = n * 10 + 1
        store.commit(adds(first, first + 9, size=1000))
        store.commit(
            Cut(updates=[v for seq in range(first, first + 10) for v in (seq, 4, b"r", b"x" * 3000)])
        )
        store.maintain()
        store.commit(Cut(deletes=list(range(first, first + 10))))
        store.maintain()
        sizes.append(os.path.getsize(store.path))
    assert sizes[-1] < 12 * 2**20
    assert sizes[-1] <= sizes[len(sizes) // 3] * 1.1


def test_a_slice_is_short_and_a_commit_comes_between(store: SqliteStore) -> None:
    store.commit(adds(1, 6000))
    for i in range(1, 6001, 500):
        store.commit(updates(list(range(i, i + 500)), 3))
    assert store.wants_maintenance
    slices = 0
    while store._changes.folding or store._changes.wants_fold:
        assert store.wants_maintenance
        before = store._changes.folding
        store.maintain()
        slices += 1
        store.commit(updates([slices], 4, b"between"))
        assert before or store._changes.folding  # one call does not do all of it
    assert slices > 6000 // sqlite.FOLD_ROWS
    rows = list(store.load().jobs)
    assert [row[2] for row in rows[:slices]] == [4] * slices
    assert all(row[2] == 3 for row in rows[slices:])


def test_any_thread_may_commit_while_another_folds(store: SqliteStore) -> None:
    store.commit(adds(1, 4000))
    stop = threading.Event()

    def fold() -> None:
        while not stop.is_set():
            store.maintain()

    thread = threading.Thread(target=fold)
    thread.start()
    order = random.Random(2).sample(range(1, 4001), 4000)
    for i in range(0, 4000, 10):
        store.commit(updates(order[i : i + 10], 5))
    stop.set()
    thread.join()
    assert all(row[2] == 5 for row in store.load().jobs)


def test_a_question_beside_commits_and_folds_sees_whole_rows(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Record, data and result of one moment, none older than what was seen before."""
    monkeypatch.setattr(sqlite, "FOLD_ROWS", 20)

    def row(seq: int, n: int, size: int) -> list[object]:
        return [seq, 1, n, b"%d" % n, b"%d " % n * size, None]

    store.commit(Cut(inserts=[v for seq in range(1, 101) for v in row(seq, 0, 1)]))
    stop = threading.Event()
    wrong: list[object] = []
    seen = 0

    def ask() -> None:
        nonlocal seen
        last = dict.fromkeys(range(1, 101), 0)
        rng = random.Random(1)
        while not stop.is_set():
            found = store.scan(0, 1000) if rng.random() < 0.5 else store.read(rng.sample(range(1, 101), 5))
            for seq, _, state, record, data, result in found:
                n = int(record)
                inserted, _, again = (data or b"").partition(b" ")
                ok = n >= last[seq] and state == n and int(inserted) <= n
                ok = ok and (result is None or result.startswith(record + b" "))
                ok = ok and again in (b"", (inserted + b" ") * 999)
                if not ok:
                    wrong.append((seq, last[seq], state, record, data, result))
                last[seq] = n
                seen += 1

    thread = threading.Thread(target=ask)
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        rng = random.Random(2)
        alive = set(range(1, 101))
        for n in range(1, 1500):
            cut = Cut()
            for seq in rng.sample(range(1, 101), 8):
                kind = rng.random()
                if seq not in alive or kind < 0.2:
                    alive.add(seq)
                    cut.inserts += row(seq, n, 1000 if kind < 0.1 else 1)
                elif kind < 0.3:
                    alive.discard(seq)
                    cut.deletes.append(seq)
                else:
                    cut.updates += [seq, n, b"%d" % n, b"%d " % n * (900 if kind < 0.5 else 1)]
            store.commit(cut)
            if n % 7 == 0:
                with store._lock:  # as maintenance does
                    store._fold()
    finally:
        sys.setswitchinterval(switch)
        stop.set()
        thread.join()
    assert not wrong, wrong[:3]
    assert seen > 1000
    assert store._folds


# --- when it cannot -----------------------------------------------------------------------------


def test_a_fold_on_a_full_disk_is_tried_again(
    store: SqliteStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "FOLD_RETRY_S", 0.0)
    store.commit(adds(1, 400))
    store.commit(updates(list(range(1, 401)), 3, b"u" * 90))  # rows grow, so pages split
    settled = everything(store)
    pages = store._con.execute("PRAGMA page_count").fetchone()[0]
    store._set(f"max_page_count = {pages}")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert store.maintain()
    assert caplog.text.count("cannot be moved") == 1
    assert everything(store) == settled
    assert store.status()["changelog_rows"] == 400
    store.commit(updates([7], 4))  # there is room in the log
    store._set("max_page_count = 1073741823")
    settle(store)
    assert store.status()["changelog_rows"] == 0
    assert tables(store)[6] == (7, 4, b"u", None)
    assert store.integrity_check() == []


def test_maintenance_does_not_spin_while_a_fold_fails(store: SqliteStore) -> None:
    store.commit(adds(1, 3000))
    for i in range(1, 3001, 500):
        store.commit(updates(list(range(i, i + 500)), 3, b"u" * 900))
    assert store.wants_maintenance
    pages = store._con.execute("PRAGMA page_count").fetchone()[0]
    store._set(f"max_page_count = {pages}")
    store.maintain()
    store._pages_due = sqlite.CHECKPOINT_PAGES
    assert not store.wants_maintenance
    assert store.maintain()  # but it is asked again in a while
    store._set("max_page_count = 1073741823")


@pytest.mark.parametrize("at", [0, 9, 30, 2000])
def test_a_damaged_log_is_one_clear_error(db: Path, at: int) -> None:
    store = NativeSqliteStore(db)
    store.commit(adds(1, 50))
    store.commit(updates(list(range(1, 51)), 3, b"u" * 60))
    shutil.copy(db, db.with_name("copy.db"))
    shutil.copy(f"{db}-wal", db.with_name("copy.db-wal"))
    store.close()
    copy = db.with_name("copy.db")
    con = sqlite3.connect(copy)
    n, page = con.execute(
        "SELECT n, page FROM changelog WHERE n > 0 AND page != zeroblob(?)", (PAGE_BYTES,)
    ).fetchone()
    page = page[:at] + bytes([page[at] ^ 64]) + page[at + 1 :]
    con.execute("UPDATE changelog SET page = ? WHERE n = ?", (page, n))
    con.commit()
    con.close()
    with pytest.raises(StoreFault, match="log of changes") as caught:
        SqliteStore(copy)
    assert caught.value.kind == "corrupt"
    assert str(copy) in str(caught.value)
    assert "uuuu" not in str(caught.value)


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM changelog WHERE n = 0",
        "UPDATE changelog SET page = x'00' WHERE n = 0",
        "UPDATE changelog SET page = 'text' WHERE n = 3",
        "UPDATE changelog SET page = (SELECT page FROM changelog WHERE substr(page, 1, 1) = x'01' AND n > 0)"
        " WHERE n = 1",
        "DELETE FROM changelog WHERE substr(page, 1, 1) = x'01' AND n > 0",
        "DELETE FROM changelog WHERE substr(page, 1, 1) = x'03' AND n > 0",
        "DELETE FROM changelog WHERE n = 16",
        "INSERT INTO changelog VALUES (17, zeroblob(4050))",
        "INSERT INTO changelog VALUES (-1, zeroblob(4050))",
    ],
)
def test_a_log_that_was_edited_is_one_clear_error(db: Path, sql: str) -> None:
    store = NativeSqliteStore(db)
    store.commit(adds(1, 200))
    store.commit(updates(list(range(1, 201)), 3, b"u" * 60))
    shutil.copy(db, db.with_name("copy.db"))
    shutil.copy(f"{db}-wal", db.with_name("copy.db-wal"))
    store.close()
    copy = db.with_name("copy.db")
    con = sqlite3.connect(copy)
    assert con.execute(sql).rowcount == 1
    con.commit()
    con.close()
    with pytest.raises(StoreFault, match="log of changes"):
        SqliteStore(copy)


def test_every_flipped_bit_is_noticed_or_means_nothing(store: SqliteStore) -> None:
    """In pages that count, in those that do not, and in the row that says which do."""
    store.commit(adds(1, 60))
    rows = store.scan(0, 100)
    for turn in range(5):
        if turn == 3:
            settle(store)
        store.commit(
            Cut(updates=updates(list(range(1, 61)), turn, b"r" * 40).updates, side={("logs", turn): b"l"})
        )
    pages = dict(store._con.execute("SELECT n, page FROM changelog").fetchall())
    first = pages.pop(0)

    def restored(first: bytes, pages: dict[int, bytes]) -> object:
        log = ChangeLog()
        log.restore(first, pages.items(), 60)
        return log.merge(rows, True), log.side

    sound = restored(first, pages)
    assert sound != (rows, {})
    kinds = {page[:8]: n for n, page in pages.items()}
    assert len(kinds) >= 4  # blank, folded and such that count
    rng = random.Random(5)
    noticed = 0
    for n in (0, *kinds.values()):
        size = len(pages[n]) if n else len(first)
        for bit in [*range(24 * 8), *(rng.randrange(24 * 8, size * 8) for _ in range(300 if n else 0))]:
            page = bytearray(pages[n] if n else first)
            page[bit // 8] ^= 1 << bit % 8
            try:
                found = restored(first, pages | {n: bytes(page)}) if n else restored(bytes(page), pages)
            except StoreFault as fault:
                noticed += fault.kind == "corrupt"
            else:
                assert found == sound
                assert bit >= 24 * 8 or pages[n] == bytes(PAGE_BYTES)
    assert noticed > 24 * 8 * len(kinds)


def test_an_interrupt_behind_the_end_of_a_commit(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the cut came through or not: what is written next lies over it."""
    store.commit(adds(1, 2000))
    many = updates(list(range(1, 2001)), 2, b"interrupted" * 4)
    write = store._write
    for commits in (True, False):

        def interrupted(cut: Cut, values: Any, commits: bool = commits) -> None:
            if commits:
                write(cut, values)
            raise KeyboardInterrupt

        monkeypatch.setattr(store, "_write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.commit(many)
        monkeypatch.setattr(store, "_write", write)
        assert store.maintain()
        assert [row[2] for row in store.read([1, 2000])] == [2, 2]
        store.commit(many.merge_under(updates([5, 6], 7)))
        store._changes._check()
        expected = everything(store)
        store._in_doubt = True  # as the file has it, so as after a kill
        assert everything(store) == expected
        assert [row[2] for row in store.read([4, 5, 6])] == [2, 7, 7]
    settle(store)
    assert everything(store) == expected


def test_a_full_disk_is_freed_by_what_is_deleted(store: SqliteStore) -> None:
    """The log may need room before a fold gives some: then it folds first."""
    store.commit(adds(1, 20_000, size=100))
    settle(store)
    store._set(f"max_page_count = {store._con.execute('PRAGMA page_count').fetchone()[0]}")
    store._con.execute("PRAGMA max_page_count = 1")
    order = random.Random(3).sample(range(1, 20_001), 20_000)
    refused = 0
    for i in range(0, 20_000, 500):
        for cut in (updates(order[i : i + 500], 3, b"u"), Cut(deletes=order[i : i + 400])):
            for _ in range(50):
                try:
                    store.commit(cut)
                    break
                except StoreFault as fault:
                    refused += fault.kind == "full"
                    store.maintain()
            else:
                raise AssertionError("what is in the log could not be folded")
    assert refused
    settle(store)
    assert [row[:3] for row in store.load().jobs] == [
        (seq, 1, 3) for seq in sorted(seq for i in range(400, 20_000, 500) for seq in order[i : i + 100])
    ]
    assert store.integrity_check() == []


def test_a_damaged_key_does_not_stop_the_load(db: Path) -> None:
    store = NativeSqliteStore(db)
    store.commit(Cut(side={("logs", 1): b"one", ("logs", 2): b"two", ("schedules", "b"): b"b"}))
    store.close()
    con = sqlite3.connect(db)
    con.execute("UPDATE logs SET key = 'x' WHERE key = 1")
    con.execute("UPDATE schedules SET key = 5")
    con.commit()
    con.close()
    store = NativeSqliteStore(db)
    store.commit(Cut(side={("logs", 3): b"three", ("schedules", "a"): b"a"}))
    found = store.load().side
    assert found["logs"] == [(2, b"two"), (3, b"three"), ("x", b"one")]
    assert found["schedules"] == [("5", b"b"), ("a", b"a")]
    store.close()


def test_a_log_of_an_unknown_table_is_refused() -> None:
    log = ChangeLog()
    with pytest.raises(ValueError, match="no table 'nonsense'"):
        log.stage([], [("nonsense", 1, b"x")])
    assert log.staged_pages() == []
    with pytest.raises(OverflowError, match="64 bits"):
        log.stage([], [("logs", 2**63, b"x")])


KILLED = """
import os, random, sys
from qcore.store import sqlite
from qcore.store.base import Cut
from qcore.store.native import NativeSqliteStore
from qcore.store.sqlite import SqliteStore
sqlite.FOLD_ROWS, sqlite.FOLD_VALUES = 200, 4
store = (NativeSqliteStore if sys.argv[2] == "native" else SqliteStore)(sys.argv[1])
rng = random.Random(int(sys.argv[3]))
if not list(store.scan(0, 1)):
    store.commit(Cut(inserts=[v for seq in range(3000) for v in (seq, 1, 0, b"r", b"d" * 50, None)]))
n = int.from_bytes(store.load().meta.get("n", b""), "little")
print("open", n, flush=True)
while True:
    n += 1
    seqs = rng.sample(range(3000), 20)
    store.commit(Cut(updates=[v for seq in seqs for v in (seq, n % 7, b"%d" % n, b"x" * (n % 90))],
                     side={("telemetry", 1): b"%d" % n}, meta={"n": n.to_bytes(8, "little")}))
    os.write(1, b"%d %s\\n" % (n, b",".join(b"%d" % seq for seq in seqs)))
    store._fold()
"""


@pytest.mark.parametrize("kind", ["module", "native"])
def test_a_kill_in_the_middle_of_a_fold_loses_nothing(
    db: Path, kind: str, start_child: Callable[..., Any]
) -> None:
    """Every state that was told to be committed is there, and none that is older."""
    last: dict[int, int] = {}
    folded = 0
    for turn in range(4):
        child = start_child(KILLED, db, kind, turn)
        told = int(child.stdout.readline().split()[1])
        assert told >= max(last.values(), default=0)
        for _ in range(60 + 17 * turn):
            n, _, seqs = child.stdout.readline().strip().partition(" ")
            last |= {int(seq): int(n) for seq in seqs.split(",")}
        child.kill()
        rest = child.stdout.read().splitlines(keepends=True)
        for line in rest:
            if line.endswith("\n"):
                n, _, seqs = line.strip().partition(" ")
                last |= {int(seq): int(n) for seq in seqs.split(",")}
        child.wait()
        store = NativeSqliteStore(db) if turn % 2 else SqliteStore(db)
        folded += len(store._changes) < len(last)
        found = store.load()
        n = int.from_bytes(found.meta["n"], "little")
        told = max(last.values())
        assert told <= n <= told + 1  # what was not told may be there as well, but whole
        assert found.side["telemetry"] == [(1, b"%d" % n)]
        newer = 0
        for seq, _, state, record, data, result in found.jobs:
            at = int(record) if record != b"r" else 0
            assert data == b"d" * 50
            if at > told:
                newer += 1
                last[seq] = at
            else:
                assert at == last.get(seq, 0)
            if at:
                assert (state, result) == (at % 7, b"x" * (at % 90))
        assert newer == (20 if n > told else 0)
        assert store.integrity_check() == []
        if turn % 2 == 0:
            store._closed = True  # leave the log as it is, as another kill would
            store._release()
        else:
            store.close()
    assert folded
