"""Files of older schemas, built by the SQL of their time, become files of today."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import qcore.store
from qcore.store import sqlite
from qcore.store.base import Cut, Row, StoreFault
from qcore.store.datafile import APPLICATION_ID, SCHEMA_VERSION
from qcore.store.native import NativeSqliteStore
from qcore.store.sqlite import SqliteStore

SQL = Path(qcore.store.__file__).parent

ROWS: list[Row] = [
    (1, 1, 1, b"r1", b"d1", None),
    (2, 1, 5, b"r2", b"big" * 1000, b"x2"),
    (9, 1, 3, b"r9", None, None),
]


def build(path: Path, version: int) -> None:
    """Make a file as the program of that version left it."""
    con = sqlite3.connect(path, isolation_level=None)
    con.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    for number in range(1, version + 1):
        con.executescript((SQL / ("schema.sql" if number == 1 else f"schema-{number}.sql")).read_text())
    con.execute(f"PRAGMA user_version = {version}")
    con.execute("PRAGMA journal_mode = WAL")
    for seq, queue, state, record, data, result in ROWS:
        if data is not None and len(data) > 1024:
            con.execute("INSERT INTO payloads VALUES (?,?)", (seq, data))
            data = b""
        con.execute("INSERT INTO jobs VALUES (?,?,?,?,?,?)", (seq, queue, state, record, data, result))
    con.execute("INSERT INTO names VALUES (1, 'q')")
    con.execute("INSERT INTO queues VALUES (1, x'01')")
    con.execute("INSERT INTO meta VALUES ('open', x'31')")
    if version >= 2:
        con.execute("INSERT INTO logs VALUES (9, x'02')")
        con.execute("INSERT INTO lanes VALUES ('1:a', x'03')")
    con.close()


@pytest.mark.parametrize("kind", [SqliteStore, NativeSqliteStore])
@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
def test_an_older_file_is_brought_up_to_date(db: Path, version: int, kind: type[SqliteStore]) -> None:
    build(db, version)
    for turn in range(2):
        store = kind(db)
        found = store.load()
        assert (found.names, found.queues, found.meta) == ([(1, "q")], [(1, b"\x01")], {"open": b"1"})
        assert found.side["logs"] == ([(9, b"\x02")] if version >= 2 else [])
        assert found.side["lanes"] == ([("1:a", b"\x03")] if version >= 2 else [])
        assert list(found.jobs) == ROWS
        assert store.integrity_check() == []
        if turn:
            store.commit(
                Cut(
                    inserts=[10, 1, 1, b"r10", None, None],
                    updates=[9, 4, b"u9", b"x9"],
                    deletes=[2],
                    side={("minutes", 7): b"m"},
                )
            )
            assert list(store.load().jobs) == [
                ROWS[0],
                (9, 1, 4, b"u9", None, b"x9"),
                (10, 1, 1, b"r10", None, None),
            ]
        store.close()
    con = sqlite3.connect(db)
    assert con.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    assert con.execute("SELECT seq FROM payloads").fetchall() == []
    assert con.execute("SELECT state FROM jobs WHERE seq = 9").fetchall() == [(4,)]
    con.close()


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
def test_a_migration_that_fails_leaves_the_file_as_it_was(
    db: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(db, version)
    schema = sqlite._schema

    def broken(number: int) -> str:
        more = "; CREATE TABLE half(x); CREATE TABLE jobs(x)"
        return schema(number) + (more if number == SCHEMA_VERSION else "")

    monkeypatch.setattr(sqlite, "_schema", broken)
    with pytest.raises(StoreFault, match="already exists"):
        SqliteStore(db)
    monkeypatch.undo()
    con = sqlite3.connect(db)
    assert con.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION - 1,)
    assert con.execute("SELECT count(*) FROM sqlite_master WHERE name = 'half'").fetchone() == (0,)
    con.close()
    store = SqliteStore(db)
    assert list(store.load().jobs) == ROWS
    store.close()
