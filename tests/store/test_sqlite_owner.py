"""One engine owns a file, until it closes it or dies."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qcore.errors import EngineBusyError, ForkedError, QError
from qcore.store.base import Cut, Row, Store
from qcore.store.owner import is_dying
from qcore.store.sqlite import SqliteStore
from tests.forks import answer_of

Rows = Callable[[Store], list[Row]]

OWNER = """
import sys
from qcore.store.base import Cut
from qcore.store.sqlite import SqliteStore
store = SqliteStore(sys.argv[1])
store.commit(Cut(inserts=[1, 1, 0, b"r", b"d", None]))
print("open", flush=True)
sys.stdin.read()
store.close()
"""


def test_two_in_one_process(store: SqliteStore, db: Path, rows_of: Rows) -> None:
    with pytest.raises(EngineBusyError, match=f"already open in this process .*{os.getpid()}"):
        SqliteStore(db)
    # The refusal must not have cost the first one its locks.
    store.commit(Cut(inserts=[1, 1, 0, b"r", None, None]))
    assert len(rows_of(store)) == 1


def test_the_same_file_by_other_names(store: SqliteStore, db: Path) -> None:
    link, hard = db.with_name("link.db"), db.with_name("hard.db")
    link.symlink_to(db)
    os.link(db, hard)
    for name in (link, hard, db.parent / "." / db.name):
        with pytest.raises(EngineBusyError):
            SqliteStore(name)


THREADS = """
import sys, threading
from qcore.errors import EngineBusyError
from qcore.store.native import NativeSqliteStore
path = sys.argv[1]
N = 6
for turn in range(40):
    together, opened, refused = threading.Barrier(N), [], []
    def run():
        together.wait()
        try:
            opened.append(NativeSqliteStore(path))
        except EngineBusyError as error:
            refused.append(str(error))
    threads = [threading.Thread(target=run) for _ in range(N)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 1 and len(refused) == N - 1, (opened, refused)
    assert len(set(refused)) == 1, refused
    if turn < 39:
        opened[0].close()
print(refused[0], flush=True)
sys.stdin.read()
"""


def test_threads_that_open_one_file_at_once(db: Path, start_child: Any) -> None:
    """One gets it and the others are told; looking at the file costs it none of its locks."""
    child = start_child(THREADS, db)
    assert child.stdout.readline() == f"{db} is already open in this process (pid {child.pid})\n"
    # Only who has the file alone may end its write-ahead mode.
    con = sqlite3.connect(db, timeout=0)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        con.execute("PRAGMA journal_mode = DELETE").fetchall()
    con.close()


def test_it_may_be_opened_again_after_it_was_closed(db: Path) -> None:
    for _ in range(3):
        SqliteStore(db).close()


@pytest.mark.parametrize("stopped", [False, True])
def test_two_processes(db: Path, start_child: Any, rows_of: Rows, stopped: bool) -> None:
    child = start_child(OWNER, db)
    assert child.stdout.readline() == "open\n"
    if stopped:  # a stopped owner is an owner
        child.send_signal(signal.SIGSTOP)
    link = db.with_name("link.db")
    link.symlink_to(db)
    for name in (db, link):
        with pytest.raises(EngineBusyError) as caught:
            SqliteStore(name)
        assert str(caught.value) == f"{db} is in use by process {child.pid}"
    if stopped:
        child.send_signal(signal.SIGCONT)
    child.communicate("")
    assert child.returncode == 0
    store = SqliteStore(db)
    assert len(rows_of(store)) == 1
    store.close()


def test_a_killed_owner_does_not_block(db: Path, start_child: Any, rows_of: Rows) -> None:
    child = start_child(OWNER, db)
    assert child.stdout.readline() == "open\n"
    child.kill()
    child.wait()
    assert Path(f"{db}.lock").read_text() == f"{child.pid}\n"
    store = SqliteStore(db)
    assert Path(f"{db}.lock").read_text() == f"{os.getpid()}\n"
    assert rows_of(store) == [(1, 1, 0, b"r", b"d", None)]
    assert store.integrity_check() == []
    store.close()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this system does not tell who is dying")
def test_the_end_of_a_killed_owner_is_waited_for(db: Path, start_child: Any, rows_of: Rows) -> None:
    # Its memory is taken apart before its locks are dropped: nobody who is that quick comes after it.
    for ballast in (0, 300_000_000):
        child = start_child(OWNER.replace("print(", f"ballast = bytearray({ballast}); print("), db)
        assert child.stdout.readline() == "open\n"
        child.kill()
        store = SqliteStore(db)
        assert rows_of(store) == [(1, 1, 0, b"r", b"d", None)]
        store.close()


@pytest.mark.parametrize("pid", ["unknown", "-1", "0", "999999999", "1" * 40, "1/../self"])
def test_an_owner_that_nothing_is_known_of_is_not_waited_for(pid: str) -> None:
    assert not is_dying(pid)
    assert not is_dying(str(os.getpid()))


def in_fork(work: Callable[[], object]) -> str:
    """Run ``work`` in a forked child and return the name of what it raised."""

    def told() -> str:
        try:
            work()
        except QError as error:
            return type(error).__name__
        return "nothing"

    return answer_of(told)


def test_a_forked_child_cannot_write(store: SqliteStore, db: Path, rows_of: Rows) -> None:
    assert in_fork(lambda: store.commit(Cut(inserts=[1, 1, 0, b"r", None, None]))) == ForkedError.__name__
    assert in_fork(store.load) == ForkedError.__name__
    assert in_fork(lambda: SqliteStore(db)) == EngineBusyError.__name__
    assert in_fork(store.maintain) == "nothing"
    assert in_fork(store.close) == "nothing"
    store.commit(Cut(inserts=[2, 1, 0, b"r", None, None]))
    assert [row[0] for row in rows_of(store)] == [2]
    with pytest.raises(EngineBusyError):
        SqliteStore(db)


FORKING_OWNER = """
import os, sys, time
from qcore.store.sqlite import SqliteStore
store = SqliteStore(sys.argv[1])
if os.fork() == 0:
    os.write(1, b"forked\\n")
    os.close(1)
os.read(0, 1)
os._exit(0)
"""


def test_a_child_that_outlives_a_killed_owner_does_not_block(db: Path, start_child: Any) -> None:
    owner = start_child(FORKING_OWNER, db)
    assert owner.stdout.readline() == "forked\n"
    owner.kill()
    owner.wait()
    SqliteStore(db).close()  # the forked child still sleeps on its standard input


STORM = """
import sys
from qcore.store.base import Cut
from qcore.store.sqlite import SqliteStore
store = SqliteStore(sys.argv[1])
seq = int(sys.argv[2])
while True:
    # Two rows and a count that must agree: a cut is there whole or not at all.
    cut = Cut(
        inserts=[seq, 1, 0, b"%d" % seq, b"d" * (seq * 7919 % 200_000), None,
                 seq + 1, 1, 0, b"%d" % seq, None, None],
        deletes=[seq - 41, seq - 40],
        meta={"last": b"%d" % (seq + 1)},
    )
    if seq > 20:
        cut.updates = [seq - 20, 3, b"%d" % (seq - 20), b"result"]
    store.commit(cut, sync=seq % 50 == 1)
    store.maintain()
    print(seq + 1, flush=True)
    seq += 2
"""


@pytest.mark.parametrize("rounds", [5, pytest.param(100, marks=pytest.mark.slow)])
def test_a_kill_during_a_write_storm_loses_nothing(
    db: Path, start_child: Any, rows_of: Rows, rounds: int
) -> None:
    last = 0
    for n in range(rounds):
        child = start_child(STORM, db, last + 1)
        for _ in range(7 + n * 13 % 60):
            acknowledged = int(child.stdout.readline())
        child.kill()
        rest = child.stdout.read().split("\n")
        acknowledged = max([acknowledged, *(int(line) for line in rest[:-1])])
        child.wait()
        store = SqliteStore(db)
        assert store.integrity_check() == []
        last = int(store.load().meta["last"])
        assert last in (acknowledged, acknowledged + 2)
        rows = rows_of(store)
        first = max(1, last - 40)
        assert [row[0] for row in rows] == list(range(first, last + 1))
        for seq, _, state, _, data, result in rows:
            if seq % 2:
                assert data == b"d" * (seq * 7919 % 200_000)
                assert (state, result) == ((3, b"result") if seq < last - 20 else (0, None))
        store.close()
