"""File and log know each other: a log that is gone or of another state is told, one that was moved is not."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qcore.backup import make_backup, open_place, read_settings, restore_backup
from qcore.store import sqlite
from qcore.store.base import Cut, LogDamage, Row, Store, StoreFault
from qcore.store.mark import HAS_LOG, IN_LOG, META_LOG, NO_LOG, LogMark, mark_of_file
from qcore.store.native import NativeSqliteStore
from qcore.store.sqlite import SqliteStore
from tests.faults.shim import Change, Faults
from tests.store.test_wal_damage import FRAME, HEADER, HOWS, leave, opened

Rows = Callable[[Store], list[Row]]


def row(seq: int) -> Cut:
    return Cut(inserts=[seq, 1, 0, b"r%d" % seq, b"d", None])


@pytest.mark.parametrize("how", HOWS)
def test_a_log_that_is_gone_with_its_index_is_missed(
    how: str, db: Path, start_child: Any, rows_of: Rows
) -> None:
    left = leave(db, how, start_child)
    for log, problem in ((None, "is missing"), (b"", "is empty"), (left.log[:31], "ends within its header")):
        left.lay(db, log, index=False)
        store = NativeSqliteStore(db)
        assert str(store.log_damage) == f"jobs.db-wal {problem}: whatever it held last is lost"
        store.close()
        store = NativeSqliteStore(db)
        assert store.log_damage is None
        store.close()
        for copy in db.parent.glob("*.damaged*"):
            copy.unlink()


@pytest.mark.parametrize("how", HOWS)
def test_a_log_that_another_program_moved_into_the_file_is_not_missed(
    how: str, db: Path, start_child: Any, rows_of: Rows
) -> None:
    left = leave(db, how, start_child)
    left.lay(db, left.log)
    con = sqlite3.connect(db)
    con.execute("SELECT count(*) FROM jobs").fetchone()
    con.close()
    assert not Path(f"{db}-wal").exists()
    assert opened(db, rows_of) == (left.last, None)


def test_what_the_mark_says_while_a_file_is_used(store: SqliteStore, db: Path) -> None:
    def marks() -> tuple[int, int]:
        of_file = mark_of_file(str(db)) or LogMark(99)
        with_log = sqlite3.connect(db)
        value = with_log.execute("SELECT value FROM meta WHERE key = ?", (META_LOG,)).fetchone()[0]
        with_log.close()
        return of_file.state, value[0]

    assert mark_of_file(str(db)) == LogMark()
    assert store.load().meta == {}
    assert marks() == (HAS_LOG, IN_LOG)
    for seq in range(300):
        store.commit(row(seq))
        store._pages_due = 0
        store.maintain()
        assert marks() == (HAS_LOG, IN_LOG)
    store.commit(Cut(inserts=[v for seq in range(100) for v in (seq, 1, 0, b"r", bytes(200_000), None)]))
    assert db.with_name("jobs.db-wal").stat().st_size > sqlite.WAL_LIMIT_BYTES
    assert not store.maintain()
    assert db.with_name("jobs.db-wal").stat().st_size < HEADER + 5 * FRAME
    assert marks() == (HAS_LOG, IN_LOG)
    assert store.load().meta == {}
    store.close()
    assert (mark_of_file(str(db)) or LogMark(99)).state == NO_LOG


class Unmarking(sqlite3.Connection):
    """Fails to write the mark from the time it is told to, as where a sync fails at the start of a log."""

    fails = False

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if self.fails and f"meta(key, value) VALUES ('{META_LOG}'" in sql:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error
        return super().execute(sql, *parameters)


@pytest.mark.parametrize("moved", [True, False])
def test_an_end_that_cannot_be_marked_raises_no_alarm(db: Path, rows_of: Rows, moved: bool) -> None:
    """The file goes on saying that there is a log, also when all of that is in the file."""
    store = type("Store", (SqliteStore,), {"connection_class": Unmarking})(db)
    store.load()
    store.commit(row(1))
    store._pages_due = 0
    store.maintain()
    if not moved:
        store.commit(row(2))
    assert isinstance(store._con, Unmarking)
    store._con.fails = True
    store.close()
    assert (mark_of_file(str(db)) or LogMark(99)).state == HAS_LOG
    for kind in (NativeSqliteStore, SqliteStore):
        again = kind(db)
        assert again.log_damage is None
        assert [one[0] for one in rows_of(again)] == ([1] if moved else [1, 2])
        again.close()
        assert os.listdir(db.parent) == [db.name]


def test_an_idle_store_comes_to_rest(store: SqliteStore, db: Path) -> None:
    store.load()
    store.commit(row(1))
    while store.maintain():
        pass
    size = db.with_name("jobs.db-wal").stat().st_size
    checkpoints = store.status()["checkpoints"]
    for _ in range(5):
        assert not store.maintain()
    assert store.status()["checkpoints"] == checkpoints
    assert db.with_name("jobs.db-wal").stat().st_size == size


# Says what is committed, and lays a copy aside when asked.
SERVING = """
import sys
from qcore.store.base import Cut
from qcore.store.native import NativeSqliteStore
store = NativeSqliteStore(sys.argv[1])
seq = max([row[0] for row in store.load().jobs], default=0)
for line in sys.stdin:
    if line == "move\\n":
        store._pages_due = 0
        store._salt_done = -2000
        store.maintain()
    elif line == "close\\n":
        store.close()
        break
    else:
        for _ in range(10):
            seq += 1
            store.commit(Cut(inserts=[seq, 1, 0, b"r%d" % seq, b"d", None], meta={"last": b"%d" % seq}))
    print(seq, flush=True)
"""


class Serving:
    def __init__(self, start_child: Any, db: Path) -> None:
        self.child = start_child(SERVING, db)

    def __call__(self, *words: str) -> None:
        for word in words:
            self.child.stdin.write(word + "\n")
            self.child.stdin.flush()
            if word != "close":
                self.child.stdout.readline()

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()

    def close(self) -> None:
        self("close")
        self.child.wait()


def without_log(db: Path) -> LogDamage | None:
    """What a copy of the file alone tells when it is opened."""
    copy = db.with_name("copy.db")
    shutil.copyfile(db, copy)
    store = NativeSqliteStore(copy)
    list(store.load().jobs)
    damage = store.log_damage
    store.close()
    copy.unlink()
    return damage


@pytest.mark.parametrize("mode", ["PASSIVE", "FULL", "RESTART", "TRUNCATE"])
def test_a_move_by_another_program_at_work_hides_no_loss(store: SqliteStore, db: Path, mode: str) -> None:
    store.load()
    store.commit(row(1))
    seq = 1
    for commits in (1, 2, 30):
        for _ in range(3):
            with contextlib.closing(sqlite3.connect(db)) as other:
                assert other.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()[0] == 0
            assert without_log(db) is None  # all of it is there
            for _ in range(commits):
                seq += 1
                store.commit(row(seq))
                assert str(without_log(db)) == "copy.db-wal is missing: whatever it held last is lost"


def test_a_move_by_another_program_behind_a_reader_hides_no_loss_for_long(
    store: SqliteStore, db: Path
) -> None:
    store.load()
    store.commit(row(1))
    with contextlib.closing(sqlite3.connect(db, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM jobs").fetchone()
        store.commit(row(2))
        with contextlib.closing(sqlite3.connect(db)) as other:
            other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        assert store.maintain()
        store.commit(row(3))
    store.commit(row(4))
    store._pages_due = 0
    store.maintain()
    store.commit(row(5))
    assert without_log(db) is not None


def test_commits_alone_move_nothing(store: SqliteStore, db: Path) -> None:
    store.load()
    checkpoints = store.status()["checkpoints"]
    with contextlib.closing(sqlite3.connect(db)) as other:
        for seq in range(100):
            store.commit(row(seq))
            other.execute("SELECT count(*) FROM jobs").fetchone()
    assert store.status()["checkpoints"] == checkpoints


def test_waiting_for_a_reader_does_not_let_the_log_grow(store: SqliteStore, db: Path) -> None:
    store.load()
    store.commit(row(1))
    with contextlib.closing(sqlite3.connect(db, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM jobs").fetchone()
        for seq in range(2, 1200):
            store.commit(Cut(inserts=[seq, 1, 0, b"r", bytes(5000), None]))
        assert store.maintain()
        size = db.with_name("jobs.db-wal").stat().st_size
        for seq in range(1200, 1250):
            for _ in range(3):
                assert store.maintain()
            store.commit(Cut(updates=[seq - 1000, 1, b"u", None]))
            assert store.maintain()
        assert db.with_name("jobs.db-wal").stat().st_size <= size + 50 * 4 * FRAME
    while store.maintain():
        pass
    assert (mark_of_file(str(db)) or LogMark()).state == HAS_LOG


@pytest.mark.parametrize("words", [("move",), ("move", "work"), ("move", "work", "move", "move")])
@pytest.mark.parametrize("readers", [1, 2])
def test_a_reader_that_ends_after_a_kill_raises_no_alarm(
    db: Path, start_child: Any, rows_of: Rows, words: tuple[str, ...], readers: int
) -> None:
    """The last one to close moves the whole log into the file and removes it."""
    serving = Serving(start_child, db)
    serving("work", "move", "work")
    pins = []
    for _ in range(readers):
        pins.append(sqlite3.connect(db, isolation_level=None))
        pins[-1].execute("BEGIN")
        pins[-1].execute("SELECT count(*) FROM jobs").fetchone()
        serving("work", *words)
    serving.kill()
    assert without_log(db) is not None
    for pin in pins:
        pin.close()
    assert not Path(f"{db}-wal").exists()
    store = NativeSqliteStore(db)
    assert store.log_damage is None
    assert len(rows_of(store)) == 10 * (2 + readers * (1 + words.count("work")))
    store.close()


def refused(db: Path) -> None:
    """It is, and nothing is touched; with the log moved away it opens."""
    before = {path.name: path.read_bytes() for path in db.parent.iterdir() if path.is_file()}
    for kind in (SqliteStore, NativeSqliteStore):
        with pytest.raises(StoreFault, match="is the log of another file, or of another state of this one"):
            kind(db)
    after = {path.name: path.read_bytes() for path in db.parent.iterdir() if path.is_file()}
    assert {name: after.get(name) for name in ("jobs.db", "jobs.db-wal")} == {
        name: before[name] for name in ("jobs.db", "jobs.db-wal")
    }
    Path(f"{db}-wal").rename(db.with_name("away"))
    Path(f"{db}-shm").unlink(missing_ok=True)
    store = NativeSqliteStore(db)
    list(store.load().jobs)
    store.close()


@pytest.mark.parametrize("when", ["earlier opening", "opening before", "same opening", "backup", "closed"])
def test_an_older_file_over_a_newer_one_is_refused(
    db: Path, start_child: Any, when: str, tmp_path: Path
) -> None:
    older = tmp_path / "older.db"
    place = open_place(read_settings({}, to=str(tmp_path / "backups")))
    if when in ("earlier opening", "opening before", "closed"):
        serving = Serving(start_child, db)
        serving("work", "move", "work")
        if when == "closed":
            serving.close()
        shutil.copy(db, older)
        serving.kill()
    if when == "earlier opening":
        serving = Serving(start_child, db)
        serving("work")
        serving.kill()
    serving = Serving(start_child, db)
    serving("work", "move", "work")
    if when == "same opening":
        shutil.copy(db, older)
    if when == "backup":
        backup, _ = make_backup(db, place, 3)
        restore_backup(older, place, backup.key)
    else:
        serving("work", "move", "work")
    serving.kill()
    shutil.copy(older, db)
    refused(db)


def test_the_log_of_another_file_is_refused(db: Path, start_child: Any) -> None:
    for name in (db, db.with_name("other.db")):
        serving = Serving(start_child, name)
        serving("work", "move", "work")
        serving.kill()
    shutil.move(f"{db.with_name('other.db')}-wal", f"{db}-wal")
    db.with_name("other.db").unlink()
    refused(db)


def test_kills_in_the_middle_of_everything_raise_no_alarm(db: Path, start_child: Any, rows_of: Rows) -> None:
    rnd = random.Random(7)
    last = 0
    for n in range(25):
        serving = Serving(start_child, db)
        serving("work", *("move" for _ in range(n % 3)))
        words = ["work", "move", "work"][: n % 4]
        for word in words:
            serving.child.stdin.write(word + "\n")
        if n % 5 == 4:
            serving.child.stdin.write("close\n")
        serving.child.stdin.flush()
        for _ in range(rnd.randint(0, len(words))):
            serving.child.stdout.readline()
        serving.kill()
        copy = db.with_name("copy.db")
        for index in (True, False):
            for suffix in ("", "-wal", "-shm"):
                Path(f"{copy}{suffix}").unlink(missing_ok=True)
                if Path(f"{db}{suffix}").exists() and (index or suffix != "-shm"):
                    shutil.copy(f"{db}{suffix}", f"{copy}{suffix}")
            store = NativeSqliteStore(copy)
            assert store.log_damage is None
            found = len(rows_of(store))
            store.close()
        assert found >= last + 10
        last = found


STEPS = """
import sys, time
from qcore.store import sqlite
from qcore.store.base import Cut
from qcore.store.native import NativeSqliteStore
sqlite.WAL_LIMIT_BYTES = 150_000
store = NativeSqliteStore(sys.argv[1])
seq = len(list(store.load().jobs))
for n in range(12):
    seq += 1
    store.commit(Cut(inserts=[seq, 1, 0, b"r%d" % seq, b"d" * 900, None]), sync=n % 4 == 3)
    print(seq, n % 4 == 3, time.monotonic_ns(), flush=True)
    if n in (3, 6):
        sqlite.CHECKPOINT_PAGES = 1
        store._pages_due = 0
        store.maintain()
        sqlite.CHECKPOINT_PAGES = 1000
if sys.argv[2] == "close":
    store.close()
"""


class Disk:
    """The files as every one of the recorded calls leaves them."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.live = {name: bytearray(content) for name, content in files.items()}
        self.safe = {name: bytes(content) for name, content in files.items()}
        self.loose: dict[str, list[Change]] = {}

    def apply(self, change: Change) -> None:
        name = change.name
        if name not in ("", "-wal", "-journal"):
            return
        if change.kind == "open":
            self.live[name] = bytearray()
            self.safe[name], self.loose[name] = b"", []
        elif change.kind == "unlink":
            for where in (self.live, self.safe, self.loose):
                where.pop(name, None)
        elif change.kind == "sync":
            self.safe[name], self.loose[name] = bytes(self.live[name]), []
        else:
            write(self.live[name], change)
            self.loose.setdefault(name, []).append(change)

    def after_power_cut(self, rnd: random.Random | None) -> dict[str, bytes]:
        """What was synced, and with ``rnd`` some of what was not."""
        files = {name: bytearray(content) for name, content in self.safe.items()}
        for name, changes in self.loose.items():
            for change in changes:
                if rnd is not None and rnd.random() < 0.5:
                    write(files[name], change)
        return {name: bytes(content) for name, content in files.items()}


def write(content: bytearray, change: Change) -> None:
    if change.kind == "truncate":
        del content[change.offset :]
        content.extend(bytes(change.offset - len(content)))
    else:
        content.extend(bytes(max(0, change.offset - len(content))))
        content[change.offset : change.offset + len(change.data)] = change.data


def recorded(db: Path, faults: Faults, how: str, files: dict[str, bytes]) -> Iterator[tuple[Disk, int, int]]:
    """The disk before each call of a life of the file, and what was confirmed, and synced, by then."""
    env = {**os.environ, **faults.env, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    faults.attach(-1, record=True)
    done = subprocess.run(
        [sys.executable, "-c", STEPS, str(db), how], env=env, capture_output=True, text=True, check=True
    )
    faults.attach(0, keep=True)
    told = [line.split() for line in done.stdout.splitlines()]
    disk = Disk(files)
    first = int(told[0][0]) - 1
    for change in faults.changes():
        before = [line for line in told if int(line[2]) < change.start_ns]
        synced = [line for line in before if line[1] == "True"]
        yield disk, int(before[-1][0]) if before else first, int(synced[-1][0]) if synced else 0
        disk.apply(change)
    yield disk, int(told[-1][0]), int([line for line in told if line[1] == "True"][-1][0])


@pytest.mark.parametrize(
    ("lives", "step"),
    [
        (("kill", "close"), 4),
        pytest.param(("kill", "kill", "close", "kill", "close"), 1, marks=pytest.mark.slow),
    ],
)
def test_a_stop_at_any_step_raises_no_alarm(
    db: Path, tmp_path: Path, rows_of: Rows, lives: tuple[str, ...], step: int
) -> None:
    """A kill loses nothing; a power cut loses what was not synced, and that may be told."""
    folder = tmp_path / "data"
    folder.mkdir()
    path, copy = folder / "jobs.db", tmp_path / "copy.db"
    faults = Faults(tmp_path, path)
    rnd = random.Random(3)
    stops = told = 0

    def look(files: dict[str, bytes], least: int, most: int, where: object) -> bool:
        for suffix in ("", "-wal", "-shm", "-journal"):
            Path(f"{copy}{suffix}").unlink(missing_ok=True)
        for suffix, content in files.items():
            Path(f"{copy}{suffix}").write_bytes(content)
        store = NativeSqliteStore(copy)
        try:
            rows = [row[0] for row in rows_of(store)]
            damage = store.log_damage
        finally:
            store.close()
        assert rows == list(range(1, len(rows) + 1)), where
        assert len(rows) >= least, (where, damage)
        assert damage is None or len(rows) < most, (where, str(damage))
        return damage is not None

    for life, how in enumerate(lives):
        files = {
            suffix: Path(f"{path}{suffix}").read_bytes()
            for suffix in ("", "-wal", "-journal")
            if Path(f"{path}{suffix}").exists()
        }
        Path(f"{path}-shm").unlink(missing_ok=True)
        for n, (disk, confirmed, synced) in enumerate(recorded(path, faults, how, files)):
            stops += 1
            if not disk.live.get(""):
                continue
            where = (life, how, n)
            live = {name: bytes(content) for name, content in disk.live.items()}
            assert not look(live, confirmed, 0, where)
            if n % step or (not life and "-wal" not in live):
                continue  # it is still being made
            told += look(disk.after_power_cut(None), synced, confirmed + 1, where)
            told += look(disk.after_power_cut(rnd), synced, confirmed + 1, where)
    assert stops > 100 * len(lives)
