"""The lock goes along with the file, and a file that was taken away under its owner is missed."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qcore.errors import EngineBusyError
from qcore.store.base import Cut, Row, Store, StoreFault
from qcore.store.owner import drop_lock, hold_file, take_lock
from qcore.store.sqlite import SqliteStore
from tests.store.test_sqlite_owner import OWNER

Rows = Callable[[Store], list[Row]]


def one(seq: int) -> Cut:
    return Cut(inserts=[seq, 1, 0, b"r", b"d", None])


@pytest.mark.parametrize("renamed", [False, True])
def test_a_lock_that_was_removed_or_a_file_that_was_renamed_has_its_owner_still(
    db: Path, start_child: Any, rows_of: Rows, renamed: bool
) -> None:
    child = start_child(OWNER, db)
    assert child.stdout.readline() == "open\n"
    name = db
    if renamed:
        name = db.with_name("other.db")
        db.rename(name)
    else:
        os.unlink(f"{db}.lock")
    link = db.with_name("link.db")
    link.symlink_to(name)
    for _ in range(2):
        for path in (name, link):
            with pytest.raises(EngineBusyError) as caught:
                SqliteStore(path)
            assert str(caught.value) == f"{name} is in use by process {child.pid}"
            assert not os.path.exists(f"{name}.lock")
    if renamed:
        name.rename(db)
    child.communicate("")
    assert child.returncode == 0
    store = SqliteStore(db)
    assert len(rows_of(store)) == 1
    store.close()
    assert sorted(os.listdir(db.parent)) == ["jobs.db", "link.db"]


def test_the_same_in_one_process(store: SqliteStore, db: Path, rows_of: Rows) -> None:
    store.commit(one(1))
    os.unlink(f"{db}.lock")
    with pytest.raises(EngineBusyError, match="already open in this process"):
        SqliteStore(db)
    with pytest.raises(EngineBusyError, match="already open in this process"):
        hold_file(str(db))
    store.commit(one(2))
    assert len(rows_of(store)) == 2


def test_the_lock_of_another_is_not_removed(db: Path) -> None:
    first = take_lock(str(db))
    os.unlink(f"{db}.lock")
    second = take_lock(str(db))
    drop_lock(str(db), first)
    with pytest.raises(EngineBusyError):
        take_lock(str(db))
    drop_lock(str(db), second)
    assert os.listdir(db.parent) == []


@pytest.mark.parametrize("what", ["removed", "log removed", "renamed", "replaced"])
def test_a_file_that_is_taken_away_takes_no_more_commits(
    store: SqliteStore, db: Path, rows_of: Rows, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    store.commit(one(1))
    wal, elsewhere = Path(f"{db}-wal"), db.with_name("elsewhere")
    if what == "replaced":
        shutil.copy(db, elsewhere)
        os.rename(elsewhere, db)
    elif what == "renamed":
        db.rename(elsewhere)
    else:
        (db if what == "removed" else wal).unlink()
    with caplog.at_level(logging.ERROR, "qcore.store"):
        for _ in range(3):
            with pytest.raises(StoreFault, match="was removed, renamed or replaced while") as caught:
                store.commit(one(2), sync=True)
    assert caught.value.kind == "missing"
    assert not caught.value.unsure
    assert store.status()["last_error"] == str(caught.value)
    assert len(caplog.records) == 1
    if what == "renamed":
        elsewhere.rename(db)
        store.commit(one(2))
        assert [row[0] for row in rows_of(store)] == [1, 2]
        return
    # What the log says saves what was committed.
    data, rescue, log, rescue_log = re.findall(r"copy (\S+) to (\S+) and (\S+) to (\S+) ", caplog.text)[0]
    for source, target in ((data, rescue), (log, rescue_log)):
        shutil.copy(source, db.with_name(target))
    other = SqliteStore(db.with_name(rescue))
    assert [row[0] for row in rows_of(other)] == [1]
    other.close()


@pytest.mark.parametrize("what", ["missing", "empty"])
def test_a_log_without_its_file_is_not_thrown_away(
    db: Path, start_child: Any, rows_of: Rows, what: str
) -> None:
    child = start_child(OWNER, db)
    assert child.stdout.readline() == "open\n"
    child.kill()
    child.wait()
    kept = db.with_name("kept")
    shutil.copy(db, kept)
    wal = Path(f"{db}-wal")
    log = wal.read_bytes()
    if what == "missing":
        db.unlink()
    else:
        os.truncate(db, 0)
    with pytest.raises(StoreFault) as caught:
        SqliteStore(db)
    for word in (str(wal), "put the data file back", "move the log away"):
        assert word in str(caught.value)
    assert wal.read_bytes() == log
    os.rename(kept, db)
    store = SqliteStore(db)
    assert len(rows_of(store)) == 1
    store.close()


def test_the_log_of_another_file_is_named_and_does_no_harm(
    db: Path, start_child: Any, rows_of: Rows, adds: Callable[..., Cut]
) -> None:
    store = SqliteStore(db)
    store.commit(adds(1, 500))
    store.close()
    other = db.with_name("other.db")
    child = start_child(OWNER, other)
    assert child.stdout.readline() == "open\n"
    child.kill()
    child.wait()
    wal = Path(f"{db}-wal")
    os.rename(f"{other}-wal", wal)
    before = db.read_bytes(), wal.read_bytes()
    with pytest.raises(StoreFault) as caught:
        SqliteStore(db)
    assert caught.value.kind == "corrupt"
    assert f"if {wal} is the log of another file" in str(caught.value)
    assert (db.read_bytes(), wal.read_bytes()) == before
    wal.rename(db.with_name("away"))
    store = SqliteStore(db)
    assert len(rows_of(store)) == 500
    store.close()


def test_pages_that_are_found_damaged_late_leave_the_log_alone(
    db: Path, start_child: Any, rows_of: Rows, adds: Callable[..., Cut]
) -> None:
    store = SqliteStore(db)
    store.commit(adds(1, 500))
    store.close()
    child = start_child(OWNER.replace("[1, 1,", "[1000, 1,"), db)
    assert child.stdout.readline() == "open\n"
    child.kill()
    child.wait()
    content = bytearray(db.read_bytes())
    leaves = [at for at in range(0, len(content), 4096) if b"d" * 600 in content[at : at + 4096]]
    content[leaves[5] : leaves[5] + 4096] = b"\xa5" * 4096
    db.write_bytes(content)
    log = Path(f"{db}-wal").read_bytes()
    store = SqliteStore(db)
    with pytest.raises(StoreFault, match=f"is damaged: .* if {db}-wal is the log of another"):
        rows_of(store)
    store.close()
    assert db.read_bytes() == content
    assert Path(f"{db}-wal").read_bytes() == log
