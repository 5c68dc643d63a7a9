"""Only what is whole is restored, only where nobody works, and what was there before is kept."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from qclient import Queue
from qcore.backup import Backup, Place, make_backup, restore_backup
from qcore.backup.places import META_SUFFIX
from qcore.errors import BackupError, ConfigError, EngineBusyError
from tests.backup.looking import names, rows
from tests.soak.line import Line, Server


def test_it_is_refused_while_a_broker_owns_the_file(
    data: Path, place: Place, serve: Callable[..., Server]
) -> None:
    make_backup(data, place, 7)
    server = serve(data)
    line = Line(server.port)
    with pytest.raises(EngineBusyError, match=str(server.process.pid)):
        restore_backup(data, place, "latest", force=True)
    line.call("PUSH", queue="q", name="n", data=1, durable=True)
    line.close()
    assert server.stop() == 0
    assert len(rows(data)) == 21


def test_a_file_that_is_there_is_replaced_only_by_force_and_kept(
    data: Path, place: Place, tmp_path: Path, make_data: Callable[..., Path]
) -> None:
    wanted = rows(data)
    make_backup(data, place, 7)
    make_data(5)  # more of them
    changed = rows(data)
    data.chmod(0o640)
    with pytest.raises(ConfigError, match="--yes"):
        restore_backup(data, place, "latest")
    assert rows(data) == changed
    _, old = restore_backup(data, place, "latest", force=True)
    assert rows(data) == wanted
    assert data.stat().st_mode & 0o777 == 0o640
    assert [path.parent for path in old] == [tmp_path]
    assert rows(old[0]) == changed
    assert names(tmp_path) == ["backups", "jobs.db", old[0].name]
    with Queue("q", f"sqlite:///{data}") as queue:
        assert len(queue) == 20


def test_the_log_of_a_killed_server_goes_with_its_file(
    serve: Callable[..., Server], place: Place, tmp_path: Path
) -> None:
    """It must not lie beside the restored file, which it does not belong to."""
    file = tmp_path / "jobs.db"
    server = serve(file)
    line = Line(server.port)
    line.call("PUSH", queue="q", name="first", data=0, durable=True)
    make_backup(file, place, 7)
    line.call("PUSH", queue="q", name="second", data=0, durable=True)
    line.close()
    server.kill()
    assert Path(f"{file}-wal").stat().st_size
    _, old = restore_backup(file, place, "latest", force=True)
    assert [path.suffix for path in old] == [f".{old[0].suffix[1:]}"]
    assert not Path(f"{file}-wal").exists()
    assert (len(rows(file)), len(rows(old[0]))) == (1, 2)


def test_a_damaged_file_is_set_aside_with_its_log(data: Path, place: Place, tmp_path: Path) -> None:
    make_backup(data, place, 7)
    data.write_bytes(b"\xff" * 9000)
    Path(f"{data}-wal").write_bytes(b"log")
    Path(f"{data}-shm").write_bytes(b"index")
    _, old = restore_backup(data, place, "latest", force=True)
    assert [path.read_bytes() for path in old] == [b"\xff" * 9000, b"log", b"index"]
    assert {path.name.removeprefix("jobs.db.before-restore-")[-4:] for path in old[1:]} == {"-wal", "-shm"}
    assert len(rows(data)) == 20


def test_a_database_of_another_program_is_not_replaced(data: Path, place: Place, tmp_path: Path) -> None:
    make_backup(data, place, 7)
    diary = tmp_path / "diary.db"
    with closing(sqlite3.connect(diary)) as con:
        con.execute("CREATE TABLE diary(day)")
        con.commit()
    before = diary.read_bytes()
    with pytest.raises(ConfigError, match="another program"):
        restore_backup(diary, place, "latest", force=True)
    assert diary.read_bytes() == before
    for bad in (tmp_path / "backups", tmp_path / "no" / "jobs.db"):
        with pytest.raises(ConfigError, match=str(bad.name if bad.exists() else bad.parent)):
            restore_backup(bad, place, "latest", force=True)


def refused(data: Path, place: Place, key: str) -> str:
    """Why a backup is refused; the file is untouched and nothing is left beside it."""
    before, around = data.read_bytes(), names(data.parent)
    with pytest.raises(BackupError) as caught:
        restore_backup(data, place, key, force=True)
    assert data.read_bytes() == before
    assert names(data.parent) == around
    assert "payload of the test" not in str(caught.value)
    return str(caught.value)


def test_a_bit_that_was_flipped_anywhere_is_found(data: Path, place: Place, tmp_path: Path) -> None:
    backup, _ = make_backup(data, place, 7)
    payload = Path(place.name) / backup.key
    whole = payload.read_bytes()
    rng = random.Random(7)
    for _ in range(60):
        at = rng.randrange(len(whole))
        payload.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :])
        assert backup.key in refused(data, place, backup.key)
    for cut in (b"", whole[:10], whole[:-1], whole + b"\0", whole + whole):
        payload.write_bytes(cut)
        assert "damaged" in refused(data, place, backup.key)
    payload.write_bytes(whole)
    restore_backup(data, place, backup.key, force=True)


def test_a_payload_that_unpacks_to_more_than_it_says_is_cut_off(data: Path, place: Place) -> None:
    backup, _ = make_backup(data, place, 7)
    bomb = gzip.compress(bytes(64 << 20))
    swap(
        place, backup, bomb, replace(backup, packed_bytes=len(bomb), sha256=hashlib.sha256(bomb).hexdigest())
    )
    assert f"more than {backup.db_bytes} bytes" in refused(data, place, backup.key)


def swap(place: Place, backup: Backup, payload: bytes, said: Backup) -> None:
    (Path(place.name) / backup.key).write_bytes(payload)
    (Path(place.name) / (backup.key + META_SUFFIX)).write_bytes(said.packed())


@pytest.mark.parametrize("what", ["foreign", "newer", "damaged"])
def test_a_payload_that_is_what_it_says_and_still_no_data_file(
    what: str, data: Path, place: Place, tmp_path: Path
) -> None:
    backup, _ = make_backup(data, place, 7)
    other = tmp_path / "other.db"
    if what == "foreign":
        with closing(sqlite3.connect(other)) as con:
            con.execute("CREATE TABLE jobs(seq)")
            con.commit()
    else:
        other.write_bytes(gzip.decompress((Path(place.name) / backup.key).read_bytes()))
        if what == "newer":
            with closing(sqlite3.connect(other)) as con:
                con.execute("PRAGMA user_version = 9999")
                con.commit()
        else:
            raw = bytearray(other.read_bytes())
            raw[4096:] = b"\xff" * (len(raw) - 4096)
            other.write_bytes(raw)
    plain = other.read_bytes()
    other.unlink()
    packed = gzip.compress(plain)
    said = replace(
        backup,
        packed_bytes=len(packed),
        sha256=hashlib.sha256(packed).hexdigest(),
        db_bytes=len(plain),
        db_sha256=hashlib.sha256(plain).hexdigest(),
    )
    swap(place, backup, packed, said)
    word = {"foreign": "not one of this program", "newer": "9999", "damaged": "damaged"}[what]
    assert word in refused(data, place, backup.key)


@pytest.mark.parametrize(
    "meta",
    [
        b"",
        b"not json",
        b"[]",
        b"{}",
        b'{"version": 1}',
        b'{"version": 99}',
        b"[" * 5000,
        b"x" * 200_000,
        b"\xff\xfe",
    ],
)
def test_a_description_that_cannot_be_read(data: Path, place: Place, meta: bytes) -> None:
    backup, _ = make_backup(data, place, 7)
    (Path(place.name) / (backup.key + META_SUFFIX)).write_bytes(meta)
    assert backup.key in refused(data, place, backup.key)


def test_a_description_with_odd_values(data: Path, place: Place) -> None:
    backup, _ = make_backup(data, place, 7)
    meta = Path(place.name) / (backup.key + META_SUFFIX)
    good = json.loads(meta.read_text())
    for name in good:
        for odd in (None, 1.5, [], {"a": 1}, True):
            meta.write_text(json.dumps({**good, name: odd}))
            assert backup.key in refused(data, place, backup.key)
    meta.write_text(json.dumps({**good, "key": good["key"].replace("jobs", "other")}))
    assert "another backup" in refused(data, place, backup.key)


@pytest.mark.parametrize("key", ["", "x", "../../etc/passwd", "a/jobs-20261130T173221651Z-3f1442a4.db.gz"])
def test_what_is_no_key(data: Path, place: Place, key: str) -> None:
    assert "no key" in refused(data, place, key)


def test_latest_is_of_the_same_file_where_there_are_several(
    data: Path, place: Place, tmp_path: Path, make_data: Callable[..., Path]
) -> None:
    make_backup(data, place, 7)
    drill = tmp_path / "drill.db"
    assert restore_backup(drill, place, "latest")[0].jobs == 20
    make_backup(make_data(3, "other.db"), place, 7)
    assert restore_backup(data, place, "latest", force=True)[0].jobs == 20
    assert "backups of jobs, other" in refused(drill, place, "latest")
