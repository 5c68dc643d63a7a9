"""Backups in a bucket, of a server that speaks the protocol of S3."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from qclient import Queue, shutdown_engine
from qcore.backup import (
    BackupSettings,
    Place,
    find_backup,
    list_backups,
    make_backup,
    open_place,
    restore_backup,
)
from qcore.backup.places import META_SUFFIX
from qcore.errors import BackupError
from tests.backup.looking import rows

SECRET = "s3cr3t-of-the-bucket"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    moto = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                break
            except ConnectionRefusedError:
                assert moto.poll() is None, "moto's server did not start"
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        moto.kill()
        moto.wait()


@pytest.fixture
def settings(endpoint: str, request: pytest.FixtureRequest) -> BackupSettings:
    bucket = f"b{abs(hash(request.node.name)):x}"
    found = BackupSettings(bucket=bucket, endpoint=endpoint, access_key="key", secret_key=SECRET)
    client(found).create_bucket(Bucket=bucket)
    return found


def client(settings: BackupSettings) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=settings.endpoint,
        region_name=settings.region,
        aws_access_key_id=settings.access_key,
        aws_secret_access_key=settings.secret_key,
    )


def keys(settings: BackupSettings) -> list[str]:
    found = client(settings).list_objects_v2(Bucket=settings.bucket)
    return sorted(entry["Key"] for entry in found.get("Contents", ()))


def test_there_and_back(data: Path, settings: BackupSettings) -> None:
    place = open_place(settings)
    before = rows(data)
    backup, _ = make_backup(data, place, 7)
    assert keys(settings) == [f"backups/{backup.key}", f"backups/{backup.key}{META_SUFFIX}"]
    assert list_backups(place) == [backup]
    data.unlink()
    restore_backup(data, place, "latest")
    assert rows(data) == before


def test_only_the_newest_stay(data: Path, settings: BackupSettings) -> None:
    store = client(settings)
    for foreign in ("backups/notes.txt", "elsewhere/x"):
        store.put_object(Bucket=settings.bucket, Key=foreign, Body=b"mine")
    place = open_place(settings)
    made = [make_backup(data, place, 2)[0].key for _ in range(4)]
    wanted = [f"backups/{key}{suffix}" for key in made[-2:] for suffix in ("", META_SUFFIX)]
    assert keys(settings) == sorted([*wanted, "backups/notes.txt", "elsewhere/x"])


def test_a_payload_in_several_parts(settings: BackupSettings, tmp_path: Path) -> None:
    file = tmp_path / "large.db"
    with Queue("q", f"sqlite:///{file}") as queue:
        queue.add_bulk([("n", os.urandom(1_000_000)) for _ in range(9)])
    shutdown_engine()
    place = open_place(settings)
    backup, _ = make_backup(file, place, 7)
    assert backup.packed_bytes > 8 << 20, "boto3 sends more than this in parts"
    restore_backup(tmp_path / "restored.db", place, "latest")
    assert rows(tmp_path / "restored.db") == rows(file)


def test_an_object_that_was_changed_is_refused(data: Path, settings: BackupSettings) -> None:
    place = open_place(settings)
    backup, _ = make_backup(data, place, 7)
    before = data.read_bytes()
    client(settings).put_object(
        Bucket=settings.bucket, Key=f"backups/{backup.key}", Body=b"x" * backup.packed_bytes
    )
    with pytest.raises(BackupError, match="damaged"):
        restore_backup(data, place, "latest", force=True)
    client(settings).delete_object(Bucket=settings.bucket, Key=f"backups/{backup.key}")
    with pytest.raises(BackupError, match="never finished"):
        find_backup(place, backup.key, "jobs")
    assert data.read_bytes() == before


def _use(place: Place, data: Path) -> list[str]:
    """What every operation says of a place that cannot be used."""
    said = []
    for operation in (
        lambda: make_backup(data, place, 7),
        lambda: list_backups(place),
        lambda: restore_backup(data, place, "latest", force=True),
    ):
        with pytest.raises(BackupError) as caught:
            operation()
        said.append(str(caught.value))
    assert all(SECRET not in text and "\n" not in text for text in said)
    return said


def test_a_bucket_that_is_not_there(data: Path, settings: BackupSettings, tmp_path: Path) -> None:
    place = open_place(BackupSettings(**{**vars(settings), "bucket": "nowhere"}))
    assert all("NoSuchBucket" in text for text in _use(place, data))
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_nobody_at_the_address(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setattr("qcore.backup.s3.TRIES", 1)
    place = open_place(
        BackupSettings(bucket="b", endpoint=f"http://127.0.0.1:{port}", access_key="k", secret_key=SECRET)
    )
    assert all("connect" in text for text in _use(place, data))


def test_the_command_line(
    data: Path, settings: BackupSettings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from qclient import cli

    monkeypatch.setenv("S3_BUCKET", settings.bucket or "")
    monkeypatch.setenv("S3_ENDPOINT", settings.endpoint or "")
    monkeypatch.setenv("S3_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("S3_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("DATA_PATH", str(data))
    assert cli.main(["backup", "now"]) == 0
    assert cli.main(["backup", "list"]) == 0
    assert cli.main(["backup", "restore", "latest", "--force"]) == 0
    out = capsys.readouterr().out
    assert out.count("jobs-20") == 3
    assert SECRET not in out


def test_a_server_makes_them(settings: BackupSettings, tmp_path: Path, serve: Callable[..., Any]) -> None:
    env = {"S3_BACKUP_ENABLED": "1", "S3_BUCKET": settings.bucket, "S3_ENDPOINT": settings.endpoint}
    env |= {"S3_ACCESS_KEY_ID": "key", "S3_SECRET_ACCESS_KEY": SECRET, "S3_BACKUP_PREFIX": "of/server"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, str(value))
        server = serve(tmp_path / "jobs.db")
    deadline = time.monotonic() + 60
    while len(keys(settings)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert all(key.startswith("of/server/jobs-") for key in keys(settings))
    assert server.stop() == 0
