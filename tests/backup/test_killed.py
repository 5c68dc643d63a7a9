"""A run that is killed at any step leaves either state whole, and hinders nobody."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from qcore.backup import Place, list_backups, make_backup, restore_backup
from qcore.backup.places import STALE_S, WORK_PREFIX, Directory
from qcore.errors import EngineBusyError
from qcore.store.owner import drop_lock, take_lock
from qcore.store.sqlite import SqliteStore
from tests.backup.looking import names, rows
from tests.soak.line import Line, Server, clean_env

#: Runs a step again and again in a child, which is killed before its first, second, ... call of
#: what changes a directory, until it passes untouched. Says after each how it ended.
KILLS = """
import json, os, shutil, signal, sys
from pathlib import Path
from qcore.backup import make_backup, open_place, read_settings, restore_backup

what, data, to, base = sys.argv[1:]
place = open_place(read_settings({}, to=to))
if what == "restore without links":
    def link(*args, **kwargs):
        raise PermissionError(1, "Operation not permitted")
    os.link = link
calls = ("link", "rename", "replace", "unlink", "rmdir", "fsync", "chmod", "mkdir", "open")

def arm(name, left):
    real = getattr(os, name)
    def step(*args, **kwargs):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)
    setattr(os, name, step)

for n in range(1, 200):
    folder = Path(base) / str(n)
    folder.mkdir()
    for suffix in ("", "-wal", "-shm"):
        if os.path.exists(data + suffix):
            shutil.copy(data + suffix, folder / ("jobs.db" + suffix))
    child = os.fork()
    if child == 0:
        left = [n]
        for name in calls:
            arm(name, left)
        if what.startswith("restore"):
            restore_backup(folder / "jobs.db", place, "latest", force=True)
        else:
            make_backup(folder / "jobs.db", open_place(read_settings({}, to=str(folder / "b"))), 2)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([str(folder), status]), flush=True)
    if status == 0:
        sys.exit(0)
    assert status == -signal.SIGKILL, status
sys.exit("it never passed")
"""


def kills(what: str, data: Path, place: Place, base: Path) -> list[tuple[Path, int]]:
    base.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", KILLS, what, str(data), place.name, str(base)],
        env=clean_env(),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return [(Path(folder), status) for folder, status in map(json.loads, done.stdout.splitlines())]


@pytest.fixture
def killed(serve: Callable[..., Server], tmp_path: Path) -> Path:
    """The file of a killed server; what it holds lies in its log."""
    file = tmp_path / "killed" / "jobs.db"
    file.parent.mkdir()
    server = serve(file)
    line = Line(server.port)
    for n in range(5):
        line.call("PUSH", queue="q", name="n", data=n, durable=True)
    line.close()
    server.kill()
    assert Path(f"{file}-wal").stat().st_size
    return file


def whole_rows(file: Path, tmp_path: Path) -> Any:
    """The jobs of a file and its log, which stay as they are."""
    copy = tmp_path / "copy"
    copy.mkdir()
    try:
        place = copy / "jobs.db"
        for suffix in ("", "-wal", "-shm"):
            if os.path.exists(f"{file}{suffix}"):
                shutil.copy(f"{file}{suffix}", f"{place}{suffix}")
        with closing(sqlite3.connect(place)) as con:
            con.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return rows(place)
    finally:
        shutil.rmtree(copy)


@pytest.mark.parametrize("what", ["restore", "restore without links"])
def test_a_restore_that_is_killed_leaves_the_old_file_or_the_new_one(
    what: str, data: Path, place: Place, killed: Path, tmp_path: Path, serve: Callable[..., Server]
) -> None:
    make_backup(data, place, 7)
    old, new = whole_rows(killed, tmp_path), rows(data)
    assert old != new
    seen = []
    for folder, _ in kills(what, killed, place, tmp_path / "runs"):
        file = folder / "jobs.db"
        found = whole_rows(file, tmp_path)
        assert found in (old, new), f"{folder}: {names(folder)}"
        seen.append(found == new)
        server = serve(file)
        line = Line(server.port)
        assert sum(line.call("GetJobCounts", queue="q")["counts"].values()) == len(found)
        line.close()
        server.kill()
        assert not any(".restore-" in name.replace(".before-restore-", "") for name in names(folder))
        # Nobody is locked out, and what is left over does not hinder the next run.
        restore_backup(file, place, "latest", force=True)
        assert rows(file) == new
        assert not any(name.endswith((".lock", "-wal", "-shm")) for name in names(folder))
    assert len(seen) > 5
    assert seen == sorted(seen)
    assert seen[-1]


def test_a_backup_that_is_killed_is_none(data: Path, place: Place, killed: Path, tmp_path: Path) -> None:
    runs = kills("make", killed, place, tmp_path / "runs")
    assert len(runs) > 5
    for folder, status in runs:
        its_own = Directory(folder / "b")
        there = list_backups(its_own)
        assert len(there) <= 1
        assert there or status
        for backup in there:
            restore_backup(folder / "drill.db", its_own, backup.key)
            assert len(rows(folder / "drill.db")) == 5
        assert make_backup(folder / "jobs.db", place, 1)[0].jobs == 5


def test_what_a_killed_run_left_goes_after_a_day(data: Path, place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    for name, age_s in (("old", STALE_S + 60), ("new", STALE_S - 60)):
        left = folder / f"{WORK_PREFIX}{name}"
        left.mkdir(parents=True)
        (left / "snapshot.db").write_text("half")
        os.utime(left, (time.time() - age_s,) * 2)
    make_backup(data, place, 7)
    assert [name for name in names(folder) if name.startswith(WORK_PREFIX)] == [f"{WORK_PREFIX}new"]


@pytest.mark.parametrize("by", ["start", "restore"])
def test_the_drafts_of_a_killed_restore_go(by: str, data: Path, place: Place, tmp_path: Path) -> None:
    """By the next owner of the file, and nothing else that is called alike."""
    backup, _ = make_backup(data, place, 7)
    drafts = [Path(f"{data}.restore-{rest}") for rest in ("1", "4711-old")]
    others = [
        tmp_path / name for name in ("jobs.db.restore-me", "other.db.restore-1", "jobs.db.restore-1.txt")
    ]
    for path in drafts + others:
        path.write_text("half")
    held = take_lock(str(data))  # as by a restore that is alive
    with pytest.raises(EngineBusyError):
        SqliteStore(data)
    with pytest.raises(EngineBusyError):
        restore_backup(data, place, backup.key, force=True)
    assert all(path.exists() for path in drafts + others)
    drop_lock(str(data), held)
    if by == "start":
        SqliteStore(data).close()
    else:
        restore_backup(data, place, backup.key, force=True)
    assert not any(path.exists() for path in drafts)
    assert all(path.exists() for path in others)
