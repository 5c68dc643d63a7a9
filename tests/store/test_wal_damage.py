"""A log that is damaged, cut off, gone or foreign: what was confirmed is there, or its loss is told."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qcore.store.base import LogDamage, Row, Store, StoreFault
from qcore.store.native import NativeSqliteStore
from qcore.store.wal import walk
from qcore.store.walcheck import look_at_log

Rows = Callable[[Store], list[Row]]

HEADER, FRAME = 32, 24 + 4096

# Each commit adds a row and changes one, so that pages are written again and again.
WORKER = """
import sqlite3, sys
from qcore.store import sqlite
from qcore.store.base import Cut
from qcore.store.native import NativeSqliteStore
from qcore.store.sqlite import SqliteStore
path, how, kind = sys.argv[1:]
store = (NativeSqliteStore if kind == "native" else SqliteStore)(path)
list(store.load().jobs)
seq = 0
def work(n):
    global seq
    for _ in range(n):
        seq += 1
        row = [seq, 1, 0, b"r%d" % seq, b"d" * (seq * 97 % 1500), None]
        cut = Cut(inserts=row, meta={"last": b"%d" % seq})
        if seq > 3:
            cut.updates = [seq - 3, 1, b"u%d" % seq, None]
        store.commit(cut)
def settle():
    while store.maintain():
        pass
if how != "first":
    work(40)
    settle()
if how == "pinned":
    work(20)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM jobs").fetchone()
    work(20)
    store._pages_due = 0
    sqlite.CHECKPOINT_PAGES = 1
    store.maintain()
if how != "idle":
    work(20)
print(seq, flush=True)
sys.stdin.read()
"""


class Left:
    """What a killed process left: its files, and the last commit that it had confirmed."""

    def __init__(self, path: Path, last: int) -> None:
        self.files = {suffix: Path(f"{path}{suffix}").read_bytes() for suffix in ("", "-wal", "-shm")}
        self.last = last

    @property
    def log(self) -> bytes:
        return self.files["-wal"]

    @property
    def frames(self) -> int:
        """How many frames of the log carry its salt."""
        salt = self.log[16:24]
        return sum(self.log[at + 8 : at + 16] == salt for at in range(HEADER, len(self.log), FRAME))

    def lay(self, path: Path, log: bytes | None, *, index: bool = True) -> None:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        path.write_bytes(self.files[""])
        if log is not None:
            Path(f"{path}-wal").write_bytes(log)
        if index:
            Path(f"{path}-shm").write_bytes(self.files["-shm"])


def leave(path: Path, how: str, start_child: Any, kind: str = "native") -> Left:
    child = start_child(WORKER, path, how, kind)
    last = int(child.stdout.readline())
    child.kill()
    child.wait()
    return Left(path, last)


def opened(path: Path, rows_of: Rows) -> tuple[int, LogDamage | None]:
    """Open; the last commit that is there, whole and after all others, and what was told."""
    store = NativeSqliteStore(path)
    try:
        rows = rows_of(store)
        assert store.integrity_check() == []
        last = int(store.load().meta.get("last", b"0"))
        told = store.log_damage
    finally:
        store.close()
    assert [row[0] for row in rows] == list(range(1, last + 1))
    for seq, _, _, record, data, _ in rows:
        assert record == (b"u%d" % (seq + 3) if seq + 3 <= last else b"r%d" % seq)
        assert data == b"d" * (seq * 97 % 1500)
    return last, told


def check(left: Left, path: Path, log: bytes | None, rows_of: Rows, where: object = "") -> LogDamage | None:
    """Either all is there, or the loss is told; once, and with a copy of the log."""
    left.lay(path, log)
    kept = path.with_name(path.name + "-wal.damaged")
    kept.unlink(missing_ok=True)
    if (expected := look_at_log(str(path)).damage) is not None and expected.partly:
        # A reader had kept the log from being moved into the file as a whole. What was moved is
        # not one state.
        with contextlib.suppress(StoreFault):
            store = NativeSqliteStore(path)
            assert store.log_damage is not None
            store.close()
        return expected
    last, told = opened(path, rows_of)
    assert (told is None) == (last == left.last), (where, last, left.last, told)
    if told is not None:
        assert told.frames > 0, where
        assert (told.copy == str(kept)) is bool(log), where
        if log:
            assert kept.read_bytes() == log
    assert opened(path, rows_of) == (last, None), where
    return told


HOWS = ["first", "again", "idle", "pinned"]


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "qcore.store")


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("how", HOWS)
def test_a_changed_bit_anywhere_in_the_log(how: str, db: Path, start_child: Any, rows_of: Rows) -> None:
    left = leave(db, how, start_child)
    rnd = random.Random(how)
    end = HEADER + left.frames * FRAME
    frames = [HEADER + FRAME * rnd.randrange(left.frames) + rnd.randrange(24) for _ in range(15)]
    last = [end - FRAME, end - FRAME + 5, end - FRAME + 9, end - FRAME + 17, end - 1, end - 4096]
    places = [*range(HEADER), *frames, *last, *(rnd.randrange(HEADER, end) for _ in range(25))]
    lost = 0
    for n, at in enumerate(places):
        log = bytearray(left.log)
        log[at] ^= 1 << rnd.randrange(8)
        lost += check(left, db.with_name(f"{n}.db"), bytes(log), rows_of, (at, at % FRAME)) is not None
    assert lost == 0 if how == "idle" else lost > 50


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("how", HOWS)
def test_a_log_that_is_cut_off_empty_zeroed_or_gone(
    how: str, db: Path, start_child: Any, rows_of: Rows
) -> None:
    left = leave(db, how, start_child, "module")
    rnd = random.Random(how)
    end = HEADER + left.frames * FRAME
    logs: list[bytes | None] = [
        None,
        b"",
        bytes(len(left.log)),
        left.log[:HEADER] + bytes(len(left.log) - HEADER),
    ]
    logs += [left.log[:n] for n in (1, 31, 32, 33, 56, HEADER + FRAME, end - 1, end - FRAME, end)]
    logs += [left.log[: rnd.randrange(len(left.log))] for _ in range(15)]
    for n, log in enumerate(logs):
        told = check(left, db.with_name(f"{n}.db"), log, rows_of, n)
        if how == "idle":
            assert told is None
    assert check(left, db.with_name("whole.db"), left.log, rows_of) is None


@pytest.mark.usefixtures("quiet")
def test_without_the_index_damage_before_the_last_commit_is_told(
    db: Path, start_child: Any, rows_of: Rows
) -> None:
    left = leave(db, "again", start_child)
    rnd = random.Random(1)
    for n in range(40):
        path = db.with_name(f"{n}.db")
        at = rnd.randrange(HEADER, HEADER + (left.frames - 3) * FRAME)
        log = bytearray(left.log)
        log[at] ^= 1 << rnd.randrange(8)
        left.lay(path, bytes(log), index=False)
        state = look_at_log(str(path))
        assert state.damage is not None
        assert 0 < state.damage.frames <= left.frames
        assert f"frame {(at - HEADER) // FRAME + 1} of {left.frames}" in str(state.damage)
        last, told = opened(path, rows_of)
        assert last < left.last
        assert told is not None
        assert told.commits > 0
    left.lay(db, left.log, index=False)
    assert opened(db, rows_of) == (left.last, None)


SHORT_OF_SPACE = """
import resource, signal, sys
from qcore.store.sqlite import SqliteStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, resource.RLIM_INFINITY))
try:
    SqliteStore(sys.argv[1])
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_log_that_cannot_be_copied_is_not_touched(db: Path, start_child: Any, rows_of: Rows) -> None:
    left = leave(db, "first", start_child)
    log = bytearray(left.log)
    log[HEADER + 10 * FRAME + 100] ^= 1
    left.lay(db, bytes(log))
    child = start_child(SHORT_OF_SPACE, db)
    out, _ = child.communicate()
    assert out == f"StoreFault {db}-wal is damaged, and cannot be copied: File too large\n"
    assert {path.name: path.read_bytes() for path in db.parent.iterdir()} == {
        "jobs.db": left.files[""],
        "jobs.db-wal": log,
        "jobs.db-shm": left.files["-shm"],
    }
    last, told = opened(db, rows_of)
    assert last < left.last
    assert told is not None


def test_copies_get_names_of_their_own_and_are_made_once(
    db: Path, start_child: Any, rows_of: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    left = leave(db, "again", start_child)
    copies = []
    for at in (3, 5, 3):
        log = bytearray(left.log)
        log[HEADER + at * FRAME + 100] ^= 1
        left.lay(db, bytes(log))
        with caplog.at_level(logging.ERROR, "qcore.store"):
            _, told = opened(db, rows_of)
        assert told is not None
        assert told.copy is not None
        assert Path(told.copy).read_bytes() == log
        copies.append(Path(told.copy).name)
        assert f"{db}: confirmed work is lost: {told}" in caplog.text
    assert copies == ["jobs.db-wal.damaged", "jobs.db-wal.damaged.2", "jobs.db-wal.damaged"]


def test_what_a_failed_sync_left_behind_the_end_is_no_damage(
    db: Path, start_child: Any, rows_of: Rows
) -> None:
    """A commit that failed lies in the log, with its mark, until another is written over it."""
    left = leave(db, "first", start_child)
    log = bytearray(left.log)
    stale = HEADER + left.frames * FRAME
    log[stale:] = log[HEADER + FRAME : HEADER + 9 * FRAME]
    left.lay(db, bytes(log))
    assert look_at_log(str(db)).restart
    assert opened(db, rows_of) == (left.last, None)


def test_a_kill_in_the_middle_of_a_write_is_no_damage(db: Path, start_child: Any, rows_of: Rows) -> None:
    left = leave(db, "again", start_child)
    whole = HEADER + left.frames * FRAME
    for n in range(0, 2 * FRAME, 200):
        # As far as a next commit came, over what an older use of the log left.
        frame = (
            left.log[HEADER : HEADER + FRAME][:4] + b"\0\0\0\x20" + left.log[16:24] + bytes(8) + b"p" * 4096
        )
        log = bytearray(left.log)
        log[whole : whole + n] = (frame * 2)[:n]
        for index in (True, False):
            left.lay(db, bytes(log), index=index)
            # The second frame of two is only there when the first is: nothing but a broken disk does else.
            assert (look_at_log(str(db)).damage is None) == (index or n < FRAME + 24)
            if index:
                assert opened(db, rows_of) == (left.last, None)


def test_a_walk_sees_what_sqlite_reads(db: Path, start_child: Any) -> None:
    for how in HOWS:
        left = leave(db, how, start_child)
        left.lay(db, left.log)
        fd = os.open(f"{db}-wal", os.O_RDONLY)
        sound, page_bytes, salt, frames, kept, after, rest, commits = walk(fd)
        os.close(fd)
        con = sqlite3.connect(db)
        assert con.execute("PRAGMA wal_checkpoint").fetchone()[1] == kept == frames
        con.close()
        assert (sound, page_bytes, salt) == (True, 4096, left.log[16:24])
        assert (after, rest, commits) == (0, 0, 0)
        for suffix in ("", "-wal", "-shm"):
            Path(f"{db}{suffix}").unlink(missing_ok=True)
