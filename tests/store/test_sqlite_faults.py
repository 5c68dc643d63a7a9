"""Failing statements, full disks, locked files and a pinned log."""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qcore.errors import StoreError
from qcore.store import sqlite
from qcore.store.base import Cut, Row, Store, StoreFault
from qcore.store.sqlite import CHECKPOINT_PAGES, WAL_LIMIT_BYTES, SqliteStore

Rows = Callable[[Store], list[Row]]
Adds = Callable[[int, int], Cut]


class FailingConnection(sqlite3.Connection):
    """Fails one statement: the one after ``left`` others."""

    left = -1
    code = sqlite3.SQLITE_IOERR

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if sql != "ROLLBACK":
            self.left -= 1
            if self.left == -1:
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = self.code
                raise error
        return super().execute(sql, *parameters)


class FailingStore(SqliteStore):
    connection_class = FailingConnection

    def fail_after(self, n: int) -> None:
        assert isinstance(self._con, FailingConnection)
        self._con.left = n


def everything(store: Store) -> tuple[object, ...]:
    snapshot = store.load()
    return snapshot.names, snapshot.queues, snapshot.meta, list(snapshot.jobs)


@pytest.mark.parametrize("sync", [False, True])
def test_whichever_statement_fails_nothing_is_half_done(db: Path, adds: Adds, sync: bool) -> None:
    store = FailingStore(db)
    store.commit(adds(1, 30))
    before = everything(store)
    cut = adds(31, 100)
    cut.updates = [v for seq in range(1, 12) for v in (seq, 3, b"u", b"x")]
    cut.deletes = list(range(20, 30))
    cut.names = [(1, "q"), (2, "p")]
    cut.queues = [(1, b"s"), (2, None)]
    cut.meta = {"a": b"b"}
    n = 0
    while True:
        store.fail_after(n)
        try:
            store.commit(cut, sync=sync)
        except StoreFault:
            store.fail_after(-1)
            assert everything(store) == before, f"statement {n}"
            assert store.status()["failed_commits"] == n + 1
            n += 1
        else:
            break
    store.fail_after(-1)
    assert n > 10
    assert store.status()["last_error"] is None
    assert len(everything(store)[3]) == 90  # type: ignore[arg-type]
    assert store.integrity_check() == []
    store.close()


def test_the_only_statement_of_a_cut_may_fail(db: Path, rows_of: Rows) -> None:
    store = FailingStore(db)
    cut = Cut(inserts=[1, 1, 0, b"r", None, None])
    store.fail_after(0)
    with pytest.raises(StoreFault):
        store.commit(cut)
    assert rows_of(store) == []
    store.commit(cut)
    assert len(rows_of(store)) == 1
    store.close()


def test_opening_may_fail_at_any_statement(db: Path) -> None:
    n = 0
    while True:
        connection = type("Connection", (FailingConnection,), {"left": n})
        failing = type("Failing", (SqliteStore,), {"connection_class": connection})
        try:
            store = failing(db)
        except StoreFault:
            n += 1
            assert not db.with_name("jobs.db.lock").exists()
        else:
            break
    assert n > 5
    store.close()


def test_a_checkpoint_may_fail_at_any_statement(
    db: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, rows_of: Rows
) -> None:
    monkeypatch.setattr(sqlite, "CHECKPOINT_PAGES", 1)
    store = FailingStore(db)
    for n in range(3):
        store.commit(Cut(inserts=[n, 1, 0, b"r", None, None]))
        store._pages_due = min(store._pages_due, 0)
        store.fail_after(n)
        assert store.maintain()
    store.fail_after(-1)
    assert not store.maintain()  # tried again although nothing was written since
    assert len(rows_of(store)) == 3
    assert store._con.execute("PRAGMA busy_timeout").fetchone()[0] == sqlite.BUSY_TIMEOUT_MS
    assert caplog.text.count("checkpoint failed") == 1
    store.close()


def test_a_full_disk_heals_without_reopening(store: SqliteStore, adds: Adds, rows_of: Rows) -> None:
    store.commit(adds(1, 50))
    pages = store._con.execute("PRAGMA page_count").fetchone()[0]
    store._set(f"max_page_count = {pages + 5}")
    before = rows_of(store)
    for _ in range(3):
        with pytest.raises(StoreFault) as caught:
            store.commit(adds(51, 300))
        assert caught.value.kind == "full"
        assert rows_of(store) == before
    assert store.status()["last_error"] == str(caught.value)
    store.commit(Cut(deletes=[1, 2]))  # what needs no space goes on
    store._set("max_page_count = 1073741823")
    store.commit(adds(51, 300))
    assert len(rows_of(store)) == 298
    assert store.integrity_check() == []


# A file size limit is how a test without privileges makes real writes fail.
SHORT_OF_SPACE = """
import resource, signal, sys
from qcore.store.base import Cut, StoreFault
from qcore.store.sqlite import SqliteStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = SqliteStore(sys.argv[1])
cut = Cut(inserts=[v for seq in range(400) for v in (seq, 1, 0, b"r" * 100, b"d" * 900, None)])
failed = 0
for limit in range(0, 10_000_000, 16_384):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        store.commit(cut, sync=True)
        break
    except StoreFault as error:
        assert error.kind in ("io", "full"), error
        failed += 1
        assert list(store.load().jobs) == []
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(failed, len(list(store.load().jobs)), store.integrity_check())
store.close()
"""


def test_real_writes_may_fail_anywhere(db: Path, start_child: Any) -> None:
    child = start_child(SHORT_OF_SPACE, db)
    out, _ = child.communicate()
    assert child.returncode == 0
    failed, rows, problems = out.split()
    assert int(failed) > 20
    assert (rows, problems) == ("400", "[]")


def test_cases_c028_a_foreign_lock_is_waited_for_and_then_named(
    store: SqliteStore, db: Path, monkeypatch: pytest.MonkeyPatch, rows_of: Rows
) -> None:
    store._con.execute("PRAGMA busy_timeout = 20")
    other = sqlite3.connect(db, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    for _ in range(2):
        with pytest.raises(StoreFault, match="locked") as caught:
            store.commit(Cut(inserts=[1, 1, 0, b"r", None, None, 2, 1, 0, b"r", b"d" * 5000, None]))
        assert caught.value.kind == "locked"
    other.execute("ROLLBACK")
    other.close()
    store.commit(Cut(inserts=[1, 1, 0, b"r", None, None]))
    assert [row[0] for row in rows_of(store)] == [1]


def test_a_reader_does_not_disturb(store: SqliteStore, db: Path) -> None:
    reader = sqlite3.connect(db, isolation_level=None)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM jobs").fetchone() == (0,)
    store.commit(Cut(inserts=[1, 1, 0, b"r", None, None]))
    assert reader.execute("SELECT count(*) FROM jobs").fetchone() == (0,)
    reader.execute("COMMIT")
    assert reader.execute("SELECT count(*) FROM jobs").fetchone() == (1,)
    copy = sqlite3.connect(db.with_name("copy.db"))
    reader.backup(copy)
    assert copy.execute("SELECT seq FROM jobs").fetchall() == [(1,)]
    copy.close()
    reader.close()


def churn(store: SqliteStore, first: int, last: int, size: int = 900) -> None:
    """Add and remove jobs; about four of them fill a page."""
    for seq in range(first, last, 100):
        store.commit(
            Cut(inserts=[v for n in range(seq, seq + 100) for v in (n, 1, 0, b"r", b"d" * size, None)])
        )
        store.maintain()
        store.commit(Cut(deletes=list(range(seq, seq + 100))))
        store.maintain()


def test_cases_c030_c032_the_log_and_the_file_stay_bounded(store: SqliteStore, db: Path) -> None:
    churn(store, 0, 20_000)
    status = store.status()
    assert store._salt_done >= 0
    checkpoints = status["checkpoints"]
    assert isinstance(checkpoints, int)
    assert checkpoints > 3
    assert db.with_name("jobs.db-wal").stat().st_size < 2 * CHECKPOINT_PAGES * 4096
    assert db.stat().st_size < 2**22
    churn(store, 20_000, 40_000)
    assert db.with_name("jobs.db-wal").stat().st_size < 2 * CHECKPOINT_PAGES * 4096
    assert db.stat().st_size < 2**22
    assert store.integrity_check() == []


def test_the_log_stays_bounded_when_every_process_is_killed_early(tmp_path: Path) -> None:
    """None of them writes enough to look at the log, so the next one looks at what it finds."""
    path = tmp_path / "0.db"
    for life in range(1, 30):
        left = tmp_path / f"{life}.db"
        store = SqliteStore(path)
        churn(store, life * 100, life * 100 + 400)
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{path}{suffix}", f"{left}{suffix}")
        store.close()
        path = left
        assert Path(f"{path}-wal").stat().st_size < 2 * CHECKPOINT_PAGES * 4096


def test_frames_are_counted_by_their_salt(store: SqliteStore) -> None:
    con = store._con
    for n in (50, 10, 20, 1):
        for _ in range(n):
            churn(store, 0, 300)
        _, log, done = con.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        assert store._frames()[1] == log == done


def test_cases_c030_a_pinned_log_shrinks_when_its_reader_leaves(
    store: SqliteStore, db: Path, caplog: pytest.LogCaptureFixture
) -> None:
    churn(store, 0, 100)
    log = db.with_name("jobs.db-wal")
    reader = sqlite3.connect(db, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM jobs").fetchone()
    seq = 100
    with caplog.at_level(logging.WARNING):
        while log.stat().st_size < 2 * WAL_LIMIT_BYTES:
            churn(store, seq, seq + 1000)
            seq += 1000
    assert caplog.text.count("keeps the log") == 1
    assert store.status()["log_pinned"] is True
    assert store.maintain()
    reader.execute("COMMIT")
    assert not store.maintain()
    assert store.status()["log_pinned"] is False
    assert log.stat().st_size == 0
    reader.close()


def test_one_large_cut_does_not_leave_a_large_log(store: SqliteStore, db: Path) -> None:
    store.commit(Cut(inserts=[v for seq in range(200) for v in (seq, 1, 0, b"r", bytes(200_000), None)]))
    assert db.with_name("jobs.db-wal").stat().st_size > WAL_LIMIT_BYTES
    assert not store.maintain()
    assert db.with_name("jobs.db-wal").stat().st_size == 0


def test_removed_payloads_give_their_space_back_to_new_ones(store: SqliteStore, db: Path) -> None:
    sizes = []
    for n in range(6):
        first = n * 100
        store.commit(
            Cut(
                inserts=[v for seq in range(first, first + 100) for v in (seq, 1, 0, b"r", b"d" * 9000, None)]
            )
        )
        store.commit(Cut(deletes=list(range(first, first + 100))))
        store._con.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        sizes.append(db.stat().st_size)
    assert sizes[-1] <= sizes[0] * 1.1


def test_errors_that_are_not_of_sqlite_roll_back_too(store: SqliteStore, rows_of: Rows) -> None:
    cut = Cut(inserts=[1, 1, 0, b"r", None, None], updates=[2**70, 1, b"r", None])
    with pytest.raises((OverflowError, StoreError)):
        store.commit(cut)
    assert rows_of(store) == []
    store.commit(Cut(inserts=[1, 1, 0, b"r", None, None]))
    assert len(rows_of(store)) == 1
