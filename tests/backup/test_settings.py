"""Settings of backups: where they come from, and what cannot be."""

from __future__ import annotations

import os

import pytest

from qcore.backup import BackupSettings, read_settings
from qcore.errors import ConfigError
from qcore.server.options import parse


def test_nothing_named_is_nothing() -> None:
    assert read_settings({}) is None
    # What other programs use must not stop a server.
    others = {"AWS_ACCESS_KEY_ID": "a", "AWS_BUCKET": "b", "S3_BACKUP_RETENTION": "many"}
    assert read_settings(others, only_scheduled=True) is None
    assert parse([], others).backups is None


@pytest.mark.parametrize(
    ("to", "found"),
    [
        ("file:///var/b%20k", {"directory": "/var/b k"}),
        ("/var/backups", {"directory": "/var/backups"}),
        ("relative", {"directory": os.path.abspath("relative")}),
        ("s3://bucket", {"bucket": "bucket", "prefix": "backups/"}),
        ("s3://bucket/a/b", {"bucket": "bucket", "prefix": "a/b/"}),
    ],
)
def test_places(to: str, found: dict[str, str]) -> None:
    for settings in (read_settings({}, to=to), read_settings({"QCORE_BACKUP_TO": to})):
        assert settings is not None
        assert settings.scheduled
        assert {name: getattr(settings, name) for name in found} == found
        child = read_settings(settings.variables())
        assert child is not None
        assert child.place == settings.place


def test_the_variables_of_the_reference() -> None:
    env = {
        "S3_BACKUP_ENABLED": "true",
        "S3_BUCKET": "b",
        "S3_ACCESS_KEY_ID": "key",
        "S3_SECRET_ACCESS_KEY": "secret",
        "S3_SESSION_TOKEN": "session",
        "S3_REGION": "eu-west-1",
        "S3_ENDPOINT": "minio:9000",
        "S3_VIRTUAL_HOSTED_STYLE": "1",
        "S3_BACKUP_INTERVAL": "60000",
        "S3_BACKUP_RETENTION": "3",
        "S3_BACKUP_PREFIX": "mine",
    }
    settings = read_settings(env, only_scheduled=True)
    assert settings == BackupSettings(
        bucket="b",
        prefix="mine/",
        keep=3,
        interval_ms=60_000,
        scheduled=True,
        region="eu-west-1",
        endpoint="https://minio:9000",
        virtual_hosted=True,
        access_key="key",
        secret_key="secret",
        session_token="session",
    )
    assert not {"secret", "session"} & set(repr(settings).replace("'", " ").split())
    del env["S3_BACKUP_ENABLED"]
    found = read_settings(env)
    assert found is not None
    assert not found.scheduled


def test_defaults() -> None:
    settings = read_settings({"S3_BACKUP_ENABLED": "1", "S3_BUCKET": "b"})
    assert settings is not None
    assert (settings.interval_ms, settings.keep, settings.prefix, settings.region) == (
        21_600_000,
        7,
        "backups/",
        "us-east-1",
    )


def test_the_command_line_is_stronger_and_durations_have_units() -> None:
    env = {"QCORE_BACKUP_TO": "/a", "QCORE_BACKUP_INTERVAL": "30m", "QCORE_BACKUP_RETENTION": "2"}
    options = parse(
        ["--data", "x", "--backup-to", "/b", "--backup-interval", "2h", "--backup-keep", "4"], env
    )
    assert options.backups is not None
    assert (options.backups.directory, options.backups.interval_ms, options.backups.keep) == (
        "/b",
        7_200_000,
        4,
    )
    options = parse(["--data", "x"], env)
    assert options.backups is not None
    assert (options.backups.directory, options.backups.interval_ms, options.backups.keep) == (
        "/a",
        1_800_000,
        2,
    )


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({"S3_BACKUP_ENABLED": "1"}, "S3_BUCKET"),
        ({"S3_BACKUP_ENABLED": "maybe"}, "S3_BACKUP_ENABLED"),
        ({"QCORE_BACKUP_TO": "ftp://x/y"}, "QCORE_BACKUP_TO"),
        ({"QCORE_BACKUP_TO": "s3://"}, "QCORE_BACKUP_TO"),
        ({"QCORE_BACKUP_TO": "file://host/x"}, "QCORE_BACKUP_TO"),
        ({"QCORE_BACKUP_TO": "/a", "QCORE_BACKUP_RETENTION": "0"}, "QCORE_BACKUP_RETENTION"),
        ({"QCORE_BACKUP_TO": "/a", "S3_BACKUP_RETENTION": "NaN"}, "S3_BACKUP_RETENTION"),
        ({"QCORE_BACKUP_TO": "/a", "QCORE_BACKUP_INTERVAL": "59s"}, "QCORE_BACKUP_INTERVAL"),
        ({"QCORE_BACKUP_TO": "/a", "QCORE_BACKUP_INTERVAL": "60000"}, "QCORE_BACKUP_INTERVAL"),
        ({"QCORE_BACKUP_TO": "/a", "S3_BACKUP_INTERVAL": "59999"}, "S3_BACKUP_INTERVAL"),
        ({"QCORE_BACKUP_TO": "/a", "S3_BACKUP_INTERVAL": "6h"}, "S3_BACKUP_INTERVAL"),
        ({"S3_BACKUP_ENABLED": "1", "S3_BUCKET": "b", "S3_ACCESS_KEY_ID": "k"}, "S3_SECRET_ACCESS_KEY"),
        ({"S3_BACKUP_ENABLED": "1", "S3_BUCKET": "b", "S3_ENDPOINT": "ftp://x"}, "S3_ENDPOINT"),
        ({"QCORE_BACKUP_TO": "/a", "S3_VIRTUAL_HOSTED_STYLE": "2"}, "S3_VIRTUAL_HOSTED_STYLE"),
        ({"QCORE_BACKUP_TO": "s3://a b/x"}, "QCORE_BACKUP_TO"),
        ({"S3_BACKUP_ENABLED": "1", "S3_BUCKET": "a/b"}, "S3_BUCKET"),
        ({"S3_BACKUP_ENABLED": "1", "S3_BUCKET": "b", "S3_REGION": "eu west"}, "S3_REGION"),
    ],
)
def test_what_cannot_be_stops_the_start_and_is_named(env: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse(["--data", "x"], env)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings({"QCORE_BACKUP_RETENTION": "x", "S3_BACKUP_INTERVAL": "y"}, to="ftp://z")
    assert len(caught.value.problems) == 3


def test_backups_need_a_file_and_a_schedule_a_place() -> None:
    with pytest.raises(ConfigError, match="--data"):
        parse(["--backup-to", "/b"], {})
    with pytest.raises(ConfigError, match="--backup-to"):
        parse(["--data", "x", "--backup-keep", "3"], {})
