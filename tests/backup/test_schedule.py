"""Backups that a server makes by itself."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from qcore.backup import Place, list_backups, make_backup
from qcore.backup.places import try_out
from qcore.errors import StoreError
from qcore.server.backups import Flushes
from qcore.store.owner import drop_lock, take_lock
from tests.soak.line import Line, Server, clean_env


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def figures(line: Line) -> dict[str, float]:
    """What the server says to Prometheus of its backups."""
    text = line.call("Prometheus")["data"]["metrics"]
    found = re.findall(r"^bunqueue_backup(?:s_total|_)([^ ]+) (.*)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def test_one_is_made_when_none_is_younger_than_the_interval(
    data: Path, place: Place, serve: Callable[..., Server]
) -> None:
    options = (
        "--backup-to",
        place.name,
        "--backup-interval",
        "1h",
        "--backup-keep",
        "2",
        "--log-level",
        "error",
    )
    server = serve(data, *options)
    until(lambda: len(list_backups(place)) == 1)
    line = Line(server.port)
    until(lambda: not figures(line)["running"])
    (first,) = list_backups(place)
    assert figures(line) == {
        '{outcome="success"}': 1,
        '{outcome="failure"}': 0,
        "running": 0,
        "last_success_seconds": first.created_ms / 1000,
    }
    line.close()
    assert server.stop() == 0
    assert first.jobs == 20
    # The next server finds it young enough.
    server = serve(data, *options)
    line = Line(server.port)
    line.call("PUSH", queue="q", name="n", data=1, durable=True)
    until(lambda: figures(line)["last_success_seconds"] == first.created_ms / 1000)
    assert figures(line)['{outcome="success"}'] == 0
    line.close()
    assert server.stop() == 0
    assert list_backups(place) == [first]
    os.utime(Path(place.name) / first.key)  # what counts is when it says that it was made
    for suffix in ("", ".json"):
        path = Path(place.name) / (first.key + suffix)
        text = path.read_bytes()
        path.write_bytes(text.replace(b'"created_ms": ', b'"created_ms": -') if suffix else text)
    server = serve(data, *options)
    until(lambda: len(list_backups(place)) == 2)
    assert {backup.jobs for backup in list_backups(place)} == {20, 21}
    assert server.stop() == 0


def test_a_failure_is_one_line_in_the_log_and_the_server_goes_on(data: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "qcore.server", "--port", "0", "--data", str(data)]
    command += ["--backup-to", str(tmp_path / "place")]
    name = f"{data}.backup"
    held = take_lock(name)  # as by another backup
    with (
        contextlib.ExitStack() as stack,
        subprocess.Popen(
            command, env=clean_env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as server,
    ):
        stack.callback(drop_lock, name, held)
        assert server.stdout is not None
        assert server.stderr is not None
        port = int(server.stdout.readline().rsplit(":", 1)[1])
        lines = iter(server.stderr.readline, "")
        told = next(line for line in lines if "backup failed" in line)
        assert f"another backup of {data} runs" in told
        line = Line(port)
        assert line.call("PUSH", queue="q", name="n", data=1, durable=True)["ok"]
        until(lambda: figures(line)['{outcome="failure"}'] == 1)
        assert figures(line)["last_success_seconds"] == 0
        line.close()
        server.terminate()
        _, rest = server.communicate(timeout=60)
        assert server.returncode == 0
        assert "Traceback" not in rest


def test_a_stop_does_not_wait_for_a_backup(
    make_data: Callable[..., Path], place: Place, serve: Callable[..., Server]
) -> None:
    """It is ended, and is no backup; the next start makes one."""
    data = make_data(60_000)
    server = serve(data, "--backup-to", place.name, "--log-level", "error")
    until(lambda: Path(f"{data}.backup.lock").exists() or bool(list_backups(place)))
    assert server.stop() == 0
    assert len(list_backups(place)) <= 1
    until(lambda: not Path(f"{data}.backup.lock").exists())
    assert make_backup(data, place, 7)[0].jobs == 60_000


def test_who_asks_for_a_flush_waits_for_the_commit_that_begins_after_it() -> None:
    flushes = Flushes(lambda: woken.set())
    woken = threading.Event()
    told: list[str | None] = []

    def ask() -> threading.Thread:
        woken.clear()
        thread = threading.Thread(target=lambda: told.append(flushes.ask(60)))
        thread.start()
        assert woken.wait(60)
        return thread

    flushes.begin()
    first = ask()
    flushes.end(None)  # this commit had begun before
    assert first.is_alive()
    assert flushes.asked
    flushes.begin()
    assert not flushes.asked
    second = ask()
    flushes.end(StoreError("no room"))
    first.join(60)
    assert told == ["no room"]
    flushes.nothing()
    second.join(60)
    assert told == ["no room", None]
    assert flushes.ask(0) is not None, "patience has an end"


@pytest.mark.parametrize("where", ["start", "list"])
def test_without_the_extra_s3_is_one_clear_error(where: str, tmp_path: Path) -> None:
    arguments = {
        "start": f"['start', '--port', '0', '--data', {str(tmp_path / 'j.db')!r}, '--backup-to', 's3://b']",
        "list": "['backup', 'list', '--to', 's3://b']",
    }[where]
    program = (
        "import sys; sys.modules['boto3'] = None; import importlib.util as u\n"
        "find = u.find_spec; u.find_spec = lambda name, *a: None if name == 'boto3' else find(name, *a)\n"
        f"from qclient.cli import main; sys.exit(main({arguments}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=clean_env(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert 'pip install "qcore-engine[s3]"' in done.stderr
    assert not (tmp_path / "j.db").exists()


@pytest.mark.parametrize("where", ["file", "file/x", "nowhere/x", "/proc/x", "file:///proc/x"])
def test_a_place_that_cannot_be_used_stops_the_start(data: Path, tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("")
    place = where if ":" in where else str(tmp_path / where)
    done = subprocess.run(
        [sys.executable, "-m", "qcore.server", "--port", "0", "--data", str(data), "--backup-to", place],
        env=clean_env(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    path = place.removeprefix("file://")
    assert done.stderr.startswith(f"qcore start: backups cannot be made in {path}: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_look_at_a_place_leaves_nothing(tmp_path: Path) -> None:
    try_out(str(tmp_path / "new"))
    (tmp_path / "old").mkdir()
    try_out(str(tmp_path / "old"))
    assert [path.name for path in tmp_path.rglob("*")] == ["old"]
