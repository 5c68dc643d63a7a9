"""Where the engine is."""

from __future__ import annotations

import os

import pytest

from qclient import ConfigError, ConnectionLost, Queue
from qclient.url import parse_url, resolve


def test_forms() -> None:
    assert parse_url("memory://").kind == "memory"
    assert parse_url("sqlite:///jobs.db").path == os.path.realpath("jobs.db")
    assert parse_url("sqlite:////tmp/a b.db").path == os.path.realpath("/tmp/a b.db")
    target = parse_url("tcp://[::1]:7000?token=secret")
    assert (target.host, target.port, target.token) == ("::1", 7000, "secret")
    assert parse_url("tcp://host").port == 6789
    assert "secret" not in f"{target} {target!r}"
    target = parse_url("unix:///run/a%20b.sock?token=secret", {"QCORE_TOKEN": "other"})
    assert (target.kind, target.path, target.token) == ("unix", "/run/a b.sock", "secret")
    assert f"{target}" == "unix:///run/a b.sock"
    assert not target.embedded


@pytest.mark.parametrize(
    "url",
    [
        "jobs.db",
        "memory://x",
        "sqlite://jobs.db",
        "sqlite:///",
        "sqlite:///a.db?mode=ro",
        "redis://localhost",
        "tcp://h:99999",
        "tcp://h:1/path",
        "tcp://u:p@h:1",
        "tcp://h:1?tokn=x",
        "tcp://[::1?token=x",
        "unix://",
        "unix:///",
        "unix://relative.sock",
        "unix:///run/",
        "unix:///run/q.sock?tokn=x",
        "unix:///run/q%00.sock",
    ],
)
def test_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        parse_url(url, {})


@pytest.mark.parametrize("url", ["host:1?token=secret", "x://h?token=secret", "tcp://h:x?token=secret"])
def test_an_error_shows_no_token(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_url(url, {})
    assert "secret" not in str(caught.value)


def test_order_of_resolution() -> None:
    env = {"QCORE_URL": "tcp://a:1", "BUNQUEUE_EMBEDDED": "1", "BUNQUEUE_DATA_PATH": "/tmp/x.db"}
    assert resolve("memory://", env).kind == "memory"
    assert str(resolve(None, env)) == "tcp://a:1"
    del env["QCORE_URL"]
    assert resolve(None, env).path == os.path.realpath("/tmp/x.db")
    del env["BUNQUEUE_DATA_PATH"]
    assert resolve(None, env).kind == "memory"
    env["BUNQUEUE_EMBEDDED"] = "0"
    assert resolve(None, env).is_default
    assert resolve(None, {"BQ_TOKEN": "t"}).token == "t"
    assert resolve("tcp://h", {"QCORE_TOKEN": "t"}).token == "t"


def test_nobody_at_the_address() -> None:
    with Queue("q", "tcp://127.0.0.1:1") as queue, pytest.raises(ConnectionLost, match="no engine answers"):
        queue.counts()
