"""``qcore backup``: output and exit codes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from qclient import cli
from tests.backup.looking import rows
from tests.soak.line import Server


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def backup(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    def run(*arguments: str) -> Done:
        try:
            code = cli.main(["backup", *arguments])
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        return Done(code, *capsys.readouterr())

    return run


def test_a_place_in_a_directory_that_is_missing(
    backup: Callable[..., Done], data: Path, tmp_path: Path
) -> None:
    done = backup("now", "--data", str(data), "--to", str(tmp_path / "no" / "such"))
    assert done.code == 1
    assert f"{tmp_path}/no is not a directory; it must exist" in done.err
    assert not (tmp_path / "no").exists()


def test_now_list_status_restore(
    backup: Callable[..., Done], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QCORE_BACKUP_TO", f"file://{tmp_path}/b")
    monkeypatch.setenv("BUNQUEUE_DATA_PATH", str(data))
    for verb in ("list", "status"):
        done = backup(verb)
        assert done.code == 1
        assert f"{tmp_path}/b is not there" in done.err
    (tmp_path / "b").mkdir()
    assert backup("list").out == f"no backup in {tmp_path}/b\n"
    assert backup("status", "--json").document["newest"] is None
    (tmp_path / "b").rmdir()
    made = backup("now", "--json").document
    key = made["backup"]["key"]
    assert backup("create").code == 0
    assert [found["key"] for found in backup("list", "--json").document["backups"]][1] == key
    assert key in backup("list").out
    status = backup("status", "--json").document
    assert (status["backups"], status["keep"], status["interval_ms"]) == (2, 7, 21_600_000)
    assert 0 <= status["age_ms"] < 600_000
    assert "minutes ago" in backup("status").out
    before = rows(data)
    done = backup("restore", key, "--force", "--json")
    assert [Path(path).parent for path in done.document["old"]] == [tmp_path]
    assert rows(data) == before
    assert backup("now", "--keep", "1").out.count("removed") == 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "restored"), [("y", True), ("yes", True), ("n", False), ("", False)])
def test_a_restore_over_a_file_asks_on_a_terminal(
    backup: Callable[..., Done],
    make_data: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    restored: bool,
) -> None:
    data = make_data(3)
    options = ("--data", str(data), "--to", str(tmp_path / "b"))
    assert backup("now", *options).code == 0
    before = rows(data)
    make_data(1)
    after = rows(data)
    monkeypatch.setattr("sys.stdin", Terminal(f"{answer}\n"))
    done = backup("restore", "latest", *options)
    assert str(data) in done.err
    assert done.code == (0 if restored else 1)
    assert rows(data) == (before if restored else after)
    # Where there is nothing to replace there is nothing to ask.
    monkeypatch.setattr("sys.stdin", Terminal(""))
    drill = str(tmp_path / "drill.db")
    assert backup("restore", "latest", "--data", drill, *options[2:]).code == 0


def test_exit_codes(
    backup: Callable[..., Done], data: Path, tmp_path: Path, serve: Callable[..., Server]
) -> None:
    to = ("--to", str(tmp_path / "b"))
    here = ("--data", str(data))
    for code, text, arguments in (
        (2, "required", []),
        (2, "--to", ["now", *here]),
        (2, "--data", ["now", *to]),
        (2, "--keep", ["now", *here, *to, "--keep", "none"]),
        (2, "ftp", ["list", "--to", "ftp://x"]),
        (2, "KEY", ["restore", *here, *to]),
        (1, "no backup", ["restore", "latest", "--yes", *here, *to]),
        (1, "no key", ["restore", "last", "--yes", *here, *to]),
        (1, "not there", ["now", "--data", str(tmp_path / "no.db"), *to]),
        (0, "", ["now", *here, *to]),
        (2, "--yes", ["restore", "latest", *here, *to]),
    ):
        done = backup(*arguments)
        assert done.code == code, (arguments, done)
        if code:
            assert text in done.err
            assert done.err.count("\n") == 1, done.err
    server = serve(data)
    done = backup("restore", "latest", "-f", *here, *to, "--json")
    assert done.code == 2
    assert str(server.process.pid) in json.loads(done.err)["error"]
    assert backup("now", *here, *to).code == 0, "a server that runs is no hindrance"
    assert server.stop() == 0
