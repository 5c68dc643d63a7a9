"""Which files are taken, and that a refused one is left as it was."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from qcore.errors import StoreError
from qcore.store.base import STATE_UNREADABLE, Cut, Row, Store, StoreFault
from qcore.store.datafile import APPLICATION_ID, SCHEMA_VERSION
from qcore.store.sqlite import SqliteStore
from tests.forks import answer_of

Rows = Callable[[Store], list[Row]]


def refuse(path: Path, kind: str, *words: str) -> None:
    """Check that opening fails with one line, and changes neither file nor directory."""
    before = path.read_bytes() if path.is_file() else None
    listing = sorted(os.listdir(path.parent)) if path.parent.is_dir() else None
    with pytest.raises(StoreError) as caught:
        SqliteStore(path)
    assert isinstance(caught.value, StoreFault)
    message = str(caught.value)
    assert caught.value.kind == kind, message
    assert "\n" not in message
    for word in words:
        assert word in message
    assert (path.read_bytes() if path.is_file() else None) == before
    assert (sorted(os.listdir(path.parent)) if path.parent.is_dir() else None) == listing


def test_a_closed_store_is_one_file(db: Path) -> None:
    store = SqliteStore(db)
    store.commit(Cut(inserts=[1, 1, 0, b"r", b"d", None]))
    store.close()
    assert os.listdir(db.parent) == [db.name]
    assert db.stat().st_size > 0


def test_a_file_without_a_byte_is_a_new_database(db: Path, rows_of: Rows) -> None:
    db.touch()
    store = SqliteStore(db)
    assert rows_of(store) == []
    store.close()


def test_an_empty_database_is_taken(db: Path) -> None:
    con = sqlite3.connect(db)
    con.execute("VACUUM")
    con.close()
    assert db.stat().st_size > 0
    SqliteStore(db).close()


def test_the_name_may_hold_anything(tmp_path: Path, rows_of: Rows) -> None:
    path = tmp_path / "a ?mode=ro&x#y%41 \N{SNOWMAN}.db"
    for n in (1, 2):
        store = SqliteStore(path)
        store.commit(Cut(inserts=[n, 1, 0, b"r", None, None]))
        assert len(rows_of(store)) == n
        store.close()
    assert os.listdir(tmp_path) == [path.name]


def test_a_directory(tmp_path: Path) -> None:
    refuse(tmp_path, "foreign", str(tmp_path), "is a directory")


def test_a_missing_directory(tmp_path: Path) -> None:
    refuse(tmp_path / "no" / "jobs.db", "missing", str(tmp_path / "no"))


def test_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreFault, match="file"):
        SqliteStore(tmp_path / "file" / "jobs.db")


@pytest.mark.parametrize("content", [b"x", b"hello, world\n" * 1000, b"SQLite format 3\x00", b"\x00" * 4096])
def test_something_that_is_no_database(db: Path, content: bytes) -> None:
    db.write_bytes(content)
    refuse(db, "foreign", str(db), "not a database")


def test_a_device(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    refuse(fifo, "foreign", "regular")


@pytest.mark.parametrize("application_id", [0, 1])
def test_a_database_of_another_program(db: Path, application_id: int) -> None:
    con = sqlite3.connect(db)
    con.execute(f"PRAGMA application_id = {application_id}")
    con.execute("CREATE TABLE jobs(id TEXT)")
    con.close()
    refuse(db, "foreign", str(db), "another program")


def test_a_foreign_database_whose_tables_are_still_in_its_log(db: Path) -> None:
    con = sqlite3.connect(db)
    con.execute("PRAGMA journal_mode = WAL")
    con.execute("CREATE TABLE theirs(id TEXT)")
    log = db.with_name("jobs.db-wal").read_bytes()
    refuse(db, "foreign", "another program")
    assert db.with_name("jobs.db-wal").read_bytes() == log
    con.close()


def test_a_newer_schema_is_not_touched(db: Path) -> None:
    SqliteStore(db).close()
    con = sqlite3.connect(db)
    con.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    con.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    con.close()
    refuse(db, "newer", str(db), f"version {SCHEMA_VERSION + 1}", f"knows {SCHEMA_VERSION}")


def test_a_newer_schema_that_is_still_in_the_log(db: Path) -> None:
    SqliteStore(db).close()
    con = sqlite3.connect(db)
    con.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(StoreFault, match=f"version {SCHEMA_VERSION + 1}"):
        SqliteStore(db)
    con.close()


def test_a_damaged_database_says_so(db: Path, rows_of: Rows) -> None:
    store = SqliteStore(db)
    store.commit(Cut(inserts=[v for seq in range(1, 500) for v in (seq, 1, 0, b"r" * 100, b"d" * 100, None)]))
    store.close()
    content = bytearray(db.read_bytes())
    leaves = [at for at in range(0, len(content), 4096) if b"d" * 100 in content[at : at + 4096]]
    for at in leaves[5:9]:
        content[at : at + 4096] = b"\xa5" * 4096
    db.write_bytes(content)
    store = SqliteStore(db)
    with pytest.raises(StoreFault) as caught:
        rows_of(store)
    assert caught.value.kind == "corrupt"
    assert store.integrity_check()
    store.close()


def test_a_truncated_database_says_so(db: Path, rows_of: Rows) -> None:
    store = SqliteStore(db)
    store.commit(Cut(inserts=[v for seq in range(1, 500) for v in (seq, 1, 0, b"r" * 100, b"d" * 100, None)]))
    store.close()
    os.truncate(db, 3 * 4096)
    with pytest.raises(StoreFault) as caught:
        SqliteStore(db)
    assert caught.value.kind == "corrupt"
    assert os.listdir(db.parent) == [db.name]


def test_rows_edited_by_hand_do_not_stop_a_load(db: Path, rows_of: Rows) -> None:
    store = SqliteStore(db)
    store.commit(
        Cut(
            inserts=[v for seq in range(1, 8) for v in (seq, 1, 0, b"r", b"big" * 1000, b"x")],
            names=[(1, "q"), (2, "p")],
            queues=[(1, b"s")],
            meta={"k": b"v"},
        )
    )
    store.close()
    con = sqlite3.connect(db)
    con.execute("UPDATE jobs SET state = 'sleeping' WHERE seq = 1")
    con.execute("UPDATE jobs SET queue = 1.5 WHERE seq = 2")
    con.execute("UPDATE jobs SET record = CAST(x'ff00' AS TEXT), result = 12 WHERE seq = 3")
    con.execute("DELETE FROM payloads WHERE seq = 4")
    con.execute("UPDATE jobs SET data = 'text' WHERE seq = 5")
    con.execute("UPDATE names SET text = CAST(x'ff' AS TEXT) WHERE id = 1")
    con.execute("UPDATE queues SET state = 5")
    con.execute("UPDATE meta SET value = 'text'")
    con.commit()
    con.close()
    store = SqliteStore(db)
    big = b"big" * 1000
    assert rows_of(store) == [
        (1, 1, STATE_UNREADABLE, b"r", big, b"x"),
        (2, 0, STATE_UNREADABLE, b"r", big, b"x"),
        (3, 1, 0, b"\xff\x00", big, b"12"),
        (4, 1, 0, b"r", b"", b"x"),  # no packed value is empty: the reader sees that it is lost
        (5, 1, 0, b"r", b"text", b"x"),
        (6, 1, 0, b"r", big, b"x"),
        (7, 1, 0, b"r", big, b"x"),
    ]
    snapshot = store.load()
    assert snapshot.names == [(1, "\N{REPLACEMENT CHARACTER}"), (2, "p")]
    assert snapshot.queues == [(1, b"5")]
    assert snapshot.meta == {"k": b"text"}
    store.close()


def test_the_settings(store: SqliteStore) -> None:
    def pragma(name: str) -> object:
        return store._con.execute(f"PRAGMA {name}").fetchone()[0]

    assert pragma("application_id") == APPLICATION_ID
    assert pragma("user_version") == SCHEMA_VERSION
    assert pragma("journal_mode") == b"wal"
    assert pragma("page_size") == 4096
    assert pragma("wal_autocheckpoint") == 0
    assert pragma("busy_timeout") == 5000
    assert pragma("synchronous") == 1
    store.commit(Cut(deletes=[1]), sync=True)
    assert store._sync_full
    if type(store) is SqliteStore:  # the compiled writer sets it on a connection of its own
        assert pragma("synchronous") == 2
    store.commit(Cut(deletes=[1]))
    assert pragma("synchronous") == 1


def as_nobody(path: Path) -> str:
    """Open ``path`` in a child without rights and return what it got."""

    def told() -> str:
        try:
            SqliteStore(path)
        except StoreFault as error:
            return f"{error.kind}: {error}"
        return "opened"

    return answer_of(told, as_nobody=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives rights up, so it must have them")
class TestWithoutRights:
    def test_a_directory_that_cannot_be_written(self, open_directory: Path) -> None:
        path = open_directory / "jobs.db"
        answer = as_nobody(path)
        assert answer == f"readonly: {path} needs {path}.lock beside it: Permission denied"
        assert os.listdir(open_directory) == []

    def test_a_file_that_cannot_be_written(self, open_directory: Path) -> None:
        path = open_directory / "jobs.db"
        SqliteStore(path).close()
        path.chmod(0o644)
        assert as_nobody(path) == f"readonly: {path} is not writable"

    def test_a_file_that_cannot_be_read(self, open_directory: Path) -> None:
        path = open_directory / "jobs.db"
        SqliteStore(path).close()
        path.chmod(0o600)
        assert as_nobody(path) == f"readonly: {path} cannot be read: Permission denied"

    @pytest.mark.parametrize("suffix", ["-wal", "-shm"])
    @pytest.mark.parametrize(("mode", "problem"), [(0o644, "is not writable"), (0o200, "is not readable")])
    def test_a_log_or_index_of_another_user(
        self, open_directory: Path, suffix: str, mode: int, problem: str
    ) -> None:
        open_directory.chmod(0o777)
        path = open_directory / "jobs.db"
        SqliteStore(path).close()
        path.chmod(0o666)
        beside = Path(f"{path}{suffix}")
        beside.touch()
        beside.chmod(mode)
        assert as_nobody(path) == f"readonly: {beside} {problem}"

    def test_a_directory_that_cannot_be_entered(self, open_directory: Path) -> None:
        (open_directory / "in").mkdir(mode=0o700)
        path = open_directory / "in" / "jobs.db"
        assert as_nobody(path) == f"readonly: {path} cannot be opened: Permission denied"


def test_a_schema_that_is_no_text_is_one_clear_error(db: Path) -> None:
    SqliteStore(db).close()
    raw = db.read_bytes()
    at = raw.index(b"CREATE TABLE jobs")
    db.write_bytes(raw[: at + 3] + b"\xff" + raw[at + 4 :])
    with pytest.raises(StoreFault, match=r"damaged|malformed"):
        SqliteStore(db)


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_a_directory_in_the_place_of_a_file_beside_it_is_named(db: Path, suffix: str) -> None:
    SqliteStore(db).close()
    beside = Path(f"{db}{suffix}")
    beside.mkdir()
    with pytest.raises(StoreFault) as got:
        SqliteStore(db)
    assert str(got.value) == f"{beside} is a directory"
    beside.rmdir()
    SqliteStore(db).close()


def test_a_file_with_two_names_is_refused(db: Path) -> None:
    """Lock and log lie beside a name, so two owners could not see each other (C029)."""
    SqliteStore(db).close()
    other = db.with_name("other.db")
    other.hardlink_to(db)
    with pytest.raises(StoreFault, match="2 names"):
        SqliteStore(other)
    other.unlink()
    SqliteStore(db).close()
