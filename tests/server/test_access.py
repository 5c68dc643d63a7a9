"""Tokens: which are good, how they are compared, and what becomes of those that are taken away."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qcore.broker.access import Tokens

Start = Callable[..., Any]


def test_which_tokens_are_good() -> None:
    tokens = Tokens(["one", "zwei ☃", "one"])
    assert tokens.find("one") is not None
    assert tokens.find("one") != tokens.find("zwei ☃")
    for wrong in ("", "on", "onee", "ONE", "one ", None, 1, b"one", ["one"], "\ud800"):
        assert tokens.find(wrong) is None
    assert bool(tokens)
    assert not Tokens()
    assert Tokens().find("") is None
    assert "one" not in repr(tokens)


def test_tokens_that_are_replaced_are_no_longer_good() -> None:
    tokens = Tokens(["old", "kept"])
    old, kept = tokens.find("old"), tokens.find("kept")
    assert old is not None
    assert kept is not None
    tokens.replace(["kept", "new"])
    assert (tokens.has(old), tokens.has(kept)) == (False, True)
    assert tokens.find("old") is None
    assert tokens.find("new") is not None


def test_every_token_is_compared_in_constant_time_and_at_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time all of them, whichever is right, and never the texts, whose length would show."""
    compared: list[tuple[int, int]] = []
    real = hmac.compare_digest

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return real(a, b)

    tokens = Tokens(["a", "bb", "c" * 500])
    monkeypatch.setattr("qcore.broker.access.hmac.compare_digest", compare)
    for given in ("a", "bb", "c" * 500, "", "x" * 10_000):
        compared.clear()
        tokens.find(given)
        assert compared == [(64, 64)] * 3


def test_digests_are_of_no_use_elsewhere() -> None:
    assert Tokens(["a"]).find("a") != Tokens(["a"]).find("a")


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text("old\nkept\n")
    path.chmod(0o600)
    return path


def test_tokens_are_read_again_on_sighup(start: Start, token_file: Path) -> None:
    server = start("--token-file", str(token_file), "--token", "fixed")
    lines = {token: server.connect() for token in ("old", "kept", "fixed", "late", "new")}
    for token in ("old", "kept", "fixed"):
        assert lines[token].ask(cmd="Auth", token=token)["ok"]
    assert lines["new"].ask(cmd="Auth", token="new")["error"] == "Invalid token"
    token_file.write_text("kept\nnew\n")
    server.hang_up()
    said = server.log_until("tokens were read again")
    assert "a token that is gone: 1" in said
    # Who came with a token that is gone, goes; who has not shown one yet, is asked by the new list.
    assert lines["old"].ended()
    assert lines["late"].ask(cmd="Auth", token="old")["error"] == "Invalid token"
    assert lines["new"].ask(cmd="Auth", token="new")["ok"]
    for token in ("kept", "fixed", "new"):
        assert lines[token].ask(cmd="Ping")["ok"]
    assert not any(token in said for token in ("fixed", "kept"))
    for line in lines.values():
        line.close()


@pytest.mark.parametrize("content", [b"", b"\xff secret\n"])
def test_a_file_that_cannot_be_used_changes_nothing(start: Start, token_file: Path, content: bytes) -> None:
    server = start("--token-file", str(token_file))
    line = server.connect()
    assert line.ask(cmd="Auth", token="old")["ok"]
    token_file.write_bytes(content)
    server.hang_up()
    assert "secret" not in server.log_until("the tokens stay as they were")
    assert line.ask(cmd="Ping")["ok"]
    line.close()
    line = server.connect()
    assert line.ask(cmd="Stats")["error"] == "Not authenticated"
    assert line.ask(cmd="Auth", token="kept")["ok"]
    line.close()
