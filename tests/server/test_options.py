"""Options of the server: where they come from, and what is refused."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from qcore.errors import ConfigError
from qcore.server.__main__ import main
from qcore.server.options import parse


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text("one\n\n  two \r\n")
    path.chmod(0o600)
    return path


def test_tokens_add_up_and_the_command_line_wins(token_file: Path) -> None:
    env = {"AUTH_TOKENS": "a, b ,,", "AUTH_TOKENS_FILE": str(token_file)}
    assert parse([], env).tokens == ("a", "b", "one", "two")
    assert parse(["--token", "x"], env).tokens == ("x",)
    assert parse(["--token", "x", "--token-file", str(token_file)], env).tokens == ("x", "one", "two")
    assert parse([], {"AUTH_TOKENS_FILE": "", "AUTH_TOKENS": ""}).tokens == ()


@pytest.mark.parametrize("listed", [",", " ", " , ,"])
def test_a_list_without_a_token_stops_the_start(listed: str) -> None:
    """A server that went on would be open."""
    for args, env in (([], {"AUTH_TOKENS": listed}), (["--auth-tokens", listed], {})):
        with pytest.raises(
            ConfigError, match=r"(AUTH_TOKENS|--auth-tokens): expected tokens separated by commas"
        ):
            parse(args, env)


@pytest.mark.parametrize("content", [b"", b"\n \n", b"secret\xff\n", b"s" * (1 << 21)])
def test_a_file_without_usable_tokens_stops_the_start(tmp_path: Path, content: bytes) -> None:
    """A server that went on would be open."""
    path = tmp_path / "tokens"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="--token-file: ") as caught:
        parse(["--token-file", str(path)], {})
    assert "secret" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"AUTH_TOKENS_FILE: cannot read .*nothing: No such file"):
        parse([], {"AUTH_TOKENS_FILE": str(tmp_path / "nothing")})
    with pytest.raises(ConfigError, match="Is a directory"):
        parse(["--token-file", str(tmp_path)], {})


def test_a_file_for_everybody_is_warned_of(token_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    for mode, warned in ((0o600, False), (0o640, False), (0o644, True), (0o602, True)):
        caplog.clear()
        token_file.chmod(mode)
        assert parse(["--token-file", str(token_file)], {}).tokens == ("one", "two")
        said = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert bool(said) == warned
        assert not any(word in caplog.text for word in ("one\n", "two"))


def test_an_address_for_others_needs_tokens(token_file: Path) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        with pytest.raises(ConfigError, match="reachable from other machines"):
            parse(["--host", host], {})
        with pytest.raises(ConfigError, match="reachable from other machines"):
            parse([], {"HOST": host, "AUTH_TOKENS": ""})
        assert parse(["--host", host, "--token-file", str(token_file)], {}).host == host
        assert parse(["--host", host, "--allow-unauthenticated"], {}).host == host
    for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        assert parse(["--host", host], {}).host == host
    assert parse([], {}).host == "127.0.0.1"


def test_where_the_socket_is(tmp_path: Path) -> None:
    assert parse([], {}).socket is None
    assert parse([], {"TCP_SOCKET_PATH": "/run/a.sock"}).socket == "/run/a.sock"
    assert parse(["--socket", "/run/b.sock"], {"TCP_SOCKET_PATH": "/run/a.sock"}).socket == "/run/b.sock"
    # That of HTTP is another one.
    assert parse([], {"HTTP_SOCKET_PATH": "/run/c.sock"}).socket is None
    with pytest.raises(ConfigError, match="--socket: expected a path"):
        parse(["--socket", ""], {})


def test_completed_jobs_are_kept_seven_days_or_as_long_as_is_said() -> None:
    name = "BUNQUEUE_COMPLETED_RETENTION_MS"
    assert parse([], {}).completed_retention_ms == 7 * 86_400_000
    assert parse([], {name: "60000"}).completed_retention_ms == 60_000
    assert parse([], {name: "off"}).completed_retention_ms is None
    for wrong in ("0", "999", "week", "-1"):
        with pytest.raises(ConfigError, match=f"{name}: expected .*{wrong}"):
            parse([], {name: wrong})


def test_bounds_of_webhooks() -> None:
    assert parse([], {}).max_webhooks == 1000
    options = parse([], {"QCORE_MAX_WEBHOOKS": "0", "QCORE_MAX_WAITING_POSTS": "1"})
    assert (options.max_webhooks, options.max_waiting_posts) == (0, 1)
    # A result of the greatest size always has room.
    assert parse([], {"QCORE_MAX_WAITING_POST_BYTES": "62914560"}).max_waiting_post_bytes == 62_914_560
    for name, wrong in (
        ("QCORE_MAX_WEBHOOKS", "-1"),
        ("QCORE_MAX_WAITING_POSTS", "0"),
        ("QCORE_MAX_WAITING_POST_BYTES", "62914559"),
        ("QCORE_MAX_WAITING_POST_BYTES", "64MiB"),
    ):
        with pytest.raises(ConfigError, match=f"{name}: expected .*{wrong}"):
            parse([], {name: wrong})


@pytest.mark.parametrize("text", ["", "x", "1.5", "\u0663", "1_000", "9" * 5000, "0x50"])
def test_a_number_is_written_in_plain_digits(text: str) -> None:
    with pytest.raises(ConfigError, match="--port: expected "):
        parse(["--port", text], {})
    if text:
        with pytest.raises(ConfigError, match="TCP_PORT: expected "):
            parse([], {"TCP_PORT": text})
    assert parse([], {"TCP_PORT": " 80\n"}).port == 80


@pytest.mark.parametrize("host", ["", "\udcff", "x" * 300, "a..b"])
def test_a_host_is_one_that_can_be_looked_up(host: str) -> None:
    with pytest.raises(ConfigError, match="--host: expected an address"):
        parse(["--host", host, "--token", "t"], {})
    if host:
        with pytest.raises(ConfigError, match="HOST: expected an address"):
            parse([], {"HOST": host, "AUTH_TOKENS": "t"})


def test_what_stops_the_start_is_one_line_of_bounded_length(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("9" * 100_000, "a\nb"):
        assert main(["--port", wrong]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("qcore start: --port: expected a whole number from 0 to 65535, got ")
        assert said.err.count("\n") == 1
        assert len(said.err) < 1100
