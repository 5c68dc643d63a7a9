"""Rows of jobs as they are loaded: the compiled way gives what the other gives, whatever is in the file."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from qcore.errors import ClosedError
from qcore.store.base import Cut, Row, StoreFault
from qcore.store.native import NativeSqliteStore
from qcore.store.sqlite import INLINE_DATA_BYTES, LOAD_PAGE_ROWS, SqliteStore

BIG = INLINE_DATA_BYTES + 1


def rows_by(kind: type[SqliteStore], db: Path) -> list[Row]:
    store = kind(db)
    try:
        return list(store.load().jobs)
    finally:
        store.close()


def put(db: Path, *statements: tuple[str, tuple[object, ...]]) -> None:
    with sqlite3.connect(db) as con:
        for sql, values in statements:
            con.execute(sql, values)
    con.close()


def test_odd_columns(db: Path) -> None:
    NativeSqliteStore(db).close()
    odd: list[object] = [7, -1, 2**40, 2.5, "text", "", b"", b"bytes", None]
    rng = random.Random(5)
    put(
        db,
        ("DROP TABLE jobs", ()),
        ("CREATE TABLE jobs(seq INTEGER PRIMARY KEY, queue, state, record, data, result)", ()),
    )
    for seq in range(400):
        columns = (seq, *(rng.choice(odd) for _ in range(5)))
        put(db, ("INSERT INTO jobs VALUES (?,?,?,?,?,?)", columns))
        if rng.random() < 0.5:
            put(db, ("INSERT INTO payloads VALUES (?,?)", (seq, rng.choice([b"large" * 999, b"", "text"]))))
    found = rows_by(NativeSqliteStore, db)
    assert found == rows_by(SqliteStore, db)
    assert len(found) == 400


def test_what_the_log_of_changes_says(db: Path) -> None:
    rng = random.Random(6)
    store = NativeSqliteStore(db)
    other = SqliteStore(db.with_name("other.db"))
    n = 2 * LOAD_PAGE_ROWS + 3
    cut = Cut(inserts=[v for seq in range(n) for v in (seq, 1, 1, b"r", b"d" * rng.choice([1, BIG]), None)])
    changes = Cut(deletes=[*range(900, 1100), n - 1])
    for seq in rng.sample(range(900), 300):
        changes.updates += (seq, 4, b"u%d" % seq, rng.choice([None, b"", b"result"]))
    for each in (store, other):
        each.commit(cut)
        each.commit(changes)
        assert len(each._changes) > 0
    found = list(store.load().jobs)
    assert found == list(other.load().jobs)
    assert len(found) == n - 201
    store.close()
    other.close()


def test_no_transaction_stays_open_between_pages(db: Path) -> None:
    store = NativeSqliteStore(db)
    store.commit(Cut(inserts=[v for seq in range(3000) for v in (seq, 1, 1, b"r", b"d" * BIG, None)]))
    rows = store.load().jobs
    assert next(rows)[0] == 0
    with sqlite3.connect(db) as con:
        assert con.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
    con.close()
    # What is committed meanwhile is there from the next page on.
    store.commit(Cut(deletes=[2999], inserts=[3000, 1, 1, b"r", None, None]))
    assert [row[0] for row in rows] == [*range(1, 2999), 3000]
    store.close()


def test_a_store_that_is_closed_meanwhile(db: Path) -> None:
    store = NativeSqliteStore(db)
    store.commit(Cut(inserts=[v for seq in range(3000) for v in (seq, 1, 1, b"r", None, None)]))
    rows = store.load().jobs
    assert next(rows)[0] == 0
    store.close()
    with pytest.raises(ClosedError):
        list(rows)
    assert [row[0] for row in rows_by(NativeSqliteStore, db)] == list(range(3000))


def test_a_page_that_cannot_be_read_is_an_error_and_no_end(db: Path) -> None:
    store = NativeSqliteStore(db)
    store.commit(Cut(inserts=[v for seq in range(5000) for v in (seq, 1, 1, b"r" * 200, None, None)]))
    store.close()
    store = NativeSqliteStore(db)
    rows = store.load().jobs
    assert next(rows)[0] == 0
    # Behind the back of the cache: the first byte of a page says what it is.
    size = db.stat().st_size
    with db.open("r+b") as file:
        for at in range(4096 * 60, size, 4096):
            file.seek(at)
            file.write(b"\xff" * 8)
    store._native.run_sql("PRAGMA cache_size = 1")
    store._native.run_sql("PRAGMA shrink_memory")
    with pytest.raises(StoreFault, match="malformed") as caught:
        list(rows)
    assert caught.value.kind == "corrupt"
    store.close()
