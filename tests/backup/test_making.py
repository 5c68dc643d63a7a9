"""Backups are whole past states, whatever goes on meanwhile, and only finished ones count."""

from __future__ import annotations

import errno
import gzip
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from qcore.backup import Place, find_backup, list_backups, make_backup, making, restore_backup
from qcore.backup.places import META_SUFFIX, Directory, prune
from qcore.errors import BackupError
from qcore.store.base import StoreFault
from qcore.store.owner import drop_lock, take_lock
from tests.backup.looking import names, rows
from tests.forks import answer_of
from tests.soak.line import Line, Server

CHILDREN = 3


def test_a_backup_holds_every_row_and_leaves_the_file_alone(data: Path, place: Place, tmp_path: Path) -> None:
    before = data.read_bytes()
    backup, removed = make_backup(data, place, 7)
    assert (backup.jobs, removed) == (20, [])
    assert list_backups(place) == [backup] == [find_backup(place, "latest", "jobs")]
    assert data.read_bytes() == before
    assert names(tmp_path) == ["backups", "jobs.db"], "no log, no lock, no draft is left"
    assert names(tmp_path / "backups") == [backup.key, backup.key + META_SUFFIX]
    packed = (tmp_path / "backups" / backup.key).read_bytes()
    assert len(packed) == backup.packed_bytes
    (tmp_path / "unpacked.db").write_bytes(gzip.decompress(packed))
    assert rows(tmp_path / "unpacked.db") == rows(data)
    assert all(
        (tmp_path / "backups" / name).stat().st_mode & 0o077 == 0 for name in names(tmp_path / "backups")
    )


def flow(n: int) -> list[dict[str, Any]]:
    ids = [f"{n}-{child}" for child in range(CHILDREN)]
    parent = {"data": {"__childrenIds": ids}, "name": "p", "childrenIds": ids, "dependsOn": ids}
    entries: list[dict[str, Any]] = [{"id": f"{n}", "queue": "top", "input": parent}]
    meta = {"__parentId": f"{n}", "__parentQueue": "top", "x": os.urandom(3000)}
    for child in ids:
        job = {"name": "k", "data": meta, "parentId": f"{n}"}
        entries.append({"id": child, "queue": "kids", "input": job})
    return entries


def test_under_load_it_is_a_past_state_and_nobody_waits(
    serve: Callable[..., Server], place: Place, tmp_path: Path
) -> None:
    """Of flows that are being added, each is in it whole or not at all; those confirmed before are."""
    server = serve(tmp_path / "jobs.db", "--log-level", "error")
    confirmed: list[int] = []
    ended = threading.Event()
    failures: list[BaseException] = []

    def produce() -> None:
        line = Line(server.port)
        try:
            while not ended.is_set():
                line.call("PUSHF", jobs=flow(len(confirmed)))
                confirmed.append(len(confirmed))
        except BaseException as failure:
            failures.append(failure)
        finally:
            line.close()

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        counts = []
        for _ in range(3):
            deadline = time.monotonic() + 60
            reached = len(confirmed)
            while len(confirmed) < reached + 50:
                assert time.monotonic() < deadline
                assert not failures
                time.sleep(0.005)
            before = len(confirmed)
            make_backup(tmp_path / "jobs.db", place, 7)
            counts.append((before, len(confirmed)))
    finally:
        ended.set()
        thread.join()
    assert not failures
    assert any(after > before for before, after in counts), "the producer went on meanwhile"
    for backup, (before, after) in zip(reversed(list_backups(place)), counts, strict=True):
        restored = tmp_path / f"{before}.db"
        restore_backup(restored, place, backup.key)
        line = Line(serve(restored, "--log-level", "error").port)
        tops = line.call("GetJobCounts", queue="top")["counts"]["waiting-children"]
        kids = line.call("GetJobCounts", queue="kids")["counts"]["waiting"]
        line.close()
        assert kids == CHILDREN * tops
        assert before <= tops <= after + 1
        assert backup.jobs == tops + kids


def test_the_file_of_a_killed_server(serve: Callable[..., Server], place: Place, tmp_path: Path) -> None:
    """What lies in its log only is in the backup, and the log stays as it is."""
    file = tmp_path / "jobs.db"
    server = serve(file)
    line = Line(server.port)
    for n in range(5):
        line.call("PUSH", queue="q", name="n", data=n, durable=True)
    line.close()
    server.kill()
    log = Path(f"{file}-wal").read_bytes()
    assert make_backup(file, place, 7)[0].jobs == 5
    assert Path(f"{file}-wal").read_bytes() == log


@pytest.mark.parametrize("kind", ["missing", "directory", "text", "foreign", "newer", "damaged"])
def test_what_is_no_data_file_is_not_backed_up(
    kind: str, tmp_path: Path, place: Place, make_data: Callable[..., Path]
) -> None:
    file = tmp_path / "odd.db"
    if kind == "directory":
        file.mkdir()
    elif kind == "text":
        file.write_text("a diary\n" * 1000)
    elif kind in ("foreign", "newer"):
        if kind == "newer":
            make_data(1, "odd.db")
        with closing(sqlite3.connect(file)) as con:
            con.execute("CREATE TABLE diary(day)")
            con.execute("PRAGMA user_version = 9999")
            con.commit()
    elif kind == "damaged":
        make_data(2000, "odd.db")
        with file.open("r+b") as raw:
            raw.seek(8192)
            raw.write(b"\xff" * 40_000)
    with pytest.raises(BackupError) as caught:
        make_backup(file, place, 7)
    assert str(file) in str(caught.value) or "damaged" in str(caught.value)
    assert not list_backups(place)
    assert names(tmp_path / "backups") == [] if (tmp_path / "backups").exists() else True


def test_two_at_once_are_refused(data: Path, place: Place) -> None:
    lock = f"{data}.backup"
    fd = take_lock(lock)
    try:
        with pytest.raises(BackupError, match=f"another backup of .*jobs.db runs.* {os.getpid()}"):
            make_backup(data, place, 7)
        assert not list_backups(place)
    finally:
        drop_lock(lock, fd)
    assert make_backup(data, place, 7)[0].jobs == 20


@pytest.mark.parametrize("call", ["open", "pwrite"])
def test_no_room_beside_the_data_file_hinders_no_backup(
    call: str, data: Path, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for the name of a lock file nor for the pid in it."""
    real = getattr(os, call)

    def full(target: Any, *args: Any, **kwargs: Any) -> Any:
        name = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else str(target)
        if name.endswith(".lock"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(target, *args, **kwargs)

    monkeypatch.setattr(os, call, full)
    assert make_backup(data, place, 7)[0].jobs == 20
    assert names(tmp_path) == ["backups", "jobs.db"]
    with pytest.raises(StoreFault, match="No space left"):
        take_lock(str(data))
    assert names(tmp_path) == ["backups", "jobs.db"], "a lock that cannot be named does not stay"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives rights up, so it must have them")
@pytest.mark.parametrize("state", ["stopped", "running", "killed", "damaged"])
def test_who_may_only_read_the_directory_can_back_up(
    state: str, open_directory: Path, serve: Callable[..., Server]
) -> None:
    file, to = open_directory / "jobs.db", open_directory / "b"
    to.mkdir()
    to.chmod(0o777)
    server = serve(file, "--log-level", "error")
    line = Line(server.port)
    for n in range(5):
        line.call("PUSH", queue="q", name="n", data=n, durable=True)
    line.close()
    if state == "stopped":
        assert server.stop() == 0
    elif state != "running":
        server.kill()
    if state == "damaged":
        os.truncate(f"{file}-wal", Path(f"{file}-wal").stat().st_size - 100)
    before = names(open_directory)
    answer = answer_of(lambda: str(make_backup(file, Directory(to), 7)[0].jobs), as_nobody=True)
    assert answer == ("4" if state == "damaged" else "5")
    assert names(open_directory) == before


class Failing(Directory):
    """A place whose nth operation that changes something fails."""

    def __init__(self, path: Path, fails: int) -> None:
        super().__init__(path)
        self.fails = fails

    def _count(self) -> None:
        self.fails -= 1
        if self.fails == 0:
            raise BackupError("the place is out of order")

    def put(self, key: str, file: Path) -> None:
        self._count()
        super().put(key, file)

    def delete(self, key: str) -> None:
        self._count()
        super().delete(key)


def test_whatever_step_fails_no_half_backup_counts(data: Path, tmp_path: Path) -> None:
    place = Directory(tmp_path / "b")
    for _ in range(2):
        make_backup(data, place, 7)
    for n in range(1, 20):
        before = list_backups(place)
        failing = Failing(tmp_path / "b", n)
        try:
            make_backup(data, failing, 2)
        except BackupError as error:
            found = list_backups(place)
            made = "was made" in str(error)
            assert len([backup for backup in found if backup not in before]) == made
            assert before[0] in found, "the newest of the older ones stays"
            for backup in found:
                restore_backup(tmp_path / "restored.db", place, backup.key, force=True)
        if failing.fails > 0:
            break
    else:
        pytest.fail("there were more operations than expected")
    assert n > 3


def test_a_description_without_a_payload_is_no_backup(data: Path, place: Place, tmp_path: Path) -> None:
    backup, _ = make_backup(data, place, 7)
    place.delete(backup.key)
    assert list_backups(place) == []
    with pytest.raises(BackupError, match="never finished"):
        find_backup(place, backup.key, "jobs")
    with pytest.raises(BackupError, match="has no backup"):
        find_backup(place, "latest", "jobs")


# --- how many stay -------------------------------------------------------------------------------


def test_the_newest_stay_and_nothing_else_is_touched(
    data: Path, place: Place, tmp_path: Path, make_data: Callable[..., Path]
) -> None:
    folder = tmp_path / "backups"
    other, _ = make_backup(make_data(1, "other.db"), place, 1)
    (folder / "notes.txt").write_text("mine")
    stale = "jobs-20200101T000000000Z-00000000.db.gz"
    (folder / (stale + META_SUFFIX)).write_text("{}")
    keys = [make_backup(data, place, 2)[0].key for _ in range(4)]
    assert [backup.key for backup in list_backups(place)] == [keys[3], keys[2], other.key]
    wanted = [key + suffix for key in (keys[3], keys[2], other.key) for suffix in ("", META_SUFFIX)]
    assert names(folder) == sorted([*wanted, "notes.txt"])


def test_a_clock_that_was_set_back_does_not_remove_what_was_just_made(data: Path, place: Place) -> None:
    first, _ = make_backup(data, place, 7)
    future = first.key.replace("-20", "-29", 1)
    for suffix in ("", META_SUFFIX):
        os.rename(Path(place.name) / (first.key + suffix), Path(place.name) / (future + suffix))
    made, removed = make_backup(data, place, 1)
    assert removed == [future]
    assert [backup.key for backup in list_backups(place)] == [made.key]


@pytest.mark.parametrize("keep", [0, -1, True, 2.5, float("nan"), None, "3"])
def test_an_invalid_number_to_keep_removes_nothing(data: Path, place: Place, keep: Any) -> None:
    made = [make_backup(data, place, 7)[0] for _ in range(3)]
    with pytest.raises(ValueError, match="1 or more"):
        prune(place, keep, made[-1].key)
    assert len(list_backups(place)) == 3


def test_a_disk_without_room_is_said_before_it_is_filled(
    data: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "SPARE_BYTES", 1 << 60)
    with pytest.raises(BackupError, match="MiB free"):
        make_backup(data, place, 7)


def test_a_place_that_cannot_be(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BackupError, match="file"):
        make_backup(data, Directory(tmp_path / "file" / "backups"), 7)
