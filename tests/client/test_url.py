"""Where the engine is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qclient import TLS, ConfigError, ConnectionLost, Queue
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
    target = parse_url("tcps://h:1?token=secret&ca_file=/a%20b.pem&server_name=n&cert_file=c&key_file=k", {})
    assert target.tls == TLS(ca_file="/a b.pem", server_name="n", cert_file="c", key_file="k")
    assert (target.kind, f"{target}") == ("tcp", "tcps://h:1")
    assert parse_url("tcps://h").tls == TLS()
    assert parse_url("tcps://h?verify=no").tls == TLS(verify=False)
    assert parse_url("tcp://h").tls is None


@pytest.mark.parametrize(
    "url",
    [
        "jobs.db",
        "memory://x",
        "sqlite://jobs.db",
        "sqlite:///",
        "sqlite:///a.db?mode=ro",
        "sqlite:///a.db?adds=always",
        "redis://localhost",
        "tcp://h:99999",
        "tcp://h:1/path",
        "tcp://u:p@h:1",
        "tcp://h:1?tokn=x",
        "tcp://[::1?token=x",
        "tcp://h:1?ca_file=x",
        "tcps://h:1?verify=perhaps",
        "tcps://h:1?cert_file=x",
        "tcps://h:1?verify=no&ca_file=x",
        "tcps://h:1?tokn=x",
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
    assert resolve(None, env).hint
    assert resolve(None, {"BQ_TOKEN": "t"}).token == "t"
    assert resolve("tcp://h", {"QCORE_TOKEN": "t"}).token == "t"


def test_nobody_at_the_address() -> None:
    with Queue("q", "tcp://127.0.0.1:1") as queue, pytest.raises(ConnectionLost, match="no engine answers"):
        queue.counts()


def test_levels_of_durability_of_a_file() -> None:
    def levels(url: str, **env: str) -> tuple[str | None, str | None]:
        target = parse_url(url, env)
        return target.adds, target.changes

    assert levels("sqlite:///a.db") == (None, None)
    assert levels("sqlite:///a.db?adds=committed&changes=synced") == ("committed", "synced")
    assert levels("sqlite:///a.db?changes=synced", QCORE_ADDS="committed", QCORE_CHANGES="buffered") == (
        "committed",
        "synced",
    )
    embedded = {"BUNQUEUE_EMBEDDED": "1", "QCORE_DATA_PATH": "a.db", "QCORE_ADDS": "synced"}
    assert resolve(None, embedded).adds == "synced"
    with pytest.raises(ConfigError, match="QCORE_CHANGES: expected one of buffered, committed, synced"):
        parse_url("sqlite:///a.db", {"QCORE_CHANGES": "maybe"})
    with pytest.raises(ConfigError, match="expected one of buffered, committed, synced, got 'always'"):
        parse_url("sqlite:///a.db?adds=always", {})


def test_one_file_has_one_level_in_a_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with Queue("q", f"{url}?adds=committed") as queue, Queue("q", url) as same:
        queue.add("n", 1)
        same.add("n", 2)
        with Queue("q", f"{url}?adds=synced") as other, pytest.raises(ConfigError, match="adds=committed"):
            other.add("n", 3)
        assert len(same) == 2


def test_files_of_tls_are_named_when_they_cannot_be_used(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    for settings, said in (
        ("ca_file=/nowhere.pem", "cannot read /nowhere.pem: No such file"),
        (f"ca_file={empty}", "holds no certificates"),
        (f"cert_file={empty}&key_file={empty}", "are no certificate and its key"),
    ):
        with Queue("q", f"tcps://127.0.0.1:1?{settings}") as queue, pytest.raises(ConfigError, match=said):
            queue.counts()


def test_how_long_a_file_keeps_completed_jobs(tmp_path: Path) -> None:
    def keeps(query: str = "", **env: str) -> int | None:
        return parse_url(f"sqlite:///a.db{query}", env).keep_completed_ms

    name = "BUNQUEUE_COMPLETED_RETENTION_MS"
    assert keeps() is None
    assert keeps("?keep_completed=60", **{name: "off"}) == 60_000
    assert keeps("?keep_completed=off", **{name: "5000"}) == 0
    assert keeps(**{name: "5000"}) == 5000
    assert keeps(**{name: "off"}) == 0
    for query, env in (("?keep_completed=0", {}), ("?keep_completed=1.5", {}), ("", {name: "999"})):
        with pytest.raises(ConfigError, match="expected off or"):
            keeps(query, **env)
    url = f"sqlite:///{tmp_path}/jobs.db"
    with Queue("q", f"{url}?keep_completed=off") as queue, Queue("q", url) as same:
        queue.add("n", 1)
        same.add("n", 2)
        with (
            Queue("q", f"{url}?keep_completed=60") as other,
            pytest.raises(ConfigError, match="completed_ms=0"),
        ):
            other.add("n", 3)
