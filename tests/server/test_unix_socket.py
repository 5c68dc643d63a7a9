"""The socket in the file system: who may have the name, and who may connect."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qclient import ConnectionLost, Queue, Worker
from qcore.errors import ConfigError
from qcore.server.listening import open_unix

Start = Callable[..., Any]


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A path short enough for a socket, wherever the tests keep their files."""
    return str(tmp_path_factory.mktemp("s") / "q.sock")


def test_both_addresses_lead_to_one_broker(start: Start, path: str) -> None:
    server = start("--socket", path)
    local, remote = server.connect(path), server.connect()
    assert local.ask(cmd="PUSH", queue="q", jobId="a")["ok"]
    assert remote.ask(cmd="GetState", id="a")["state"] == "waiting"
    for line in (local, remote):
        line.close()


def test_only_the_owner_may_connect(start: Start, path: str) -> None:
    start("--socket", path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="becomes another user")
def test_another_user_is_refused(start: Start, path: str) -> None:
    os.chmod(os.path.dirname(path), 0o777)
    start("--socket", path)
    program = (
        "import os, socket, sys\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        f"os.chdir({os.path.dirname(path)!r})\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: s.connect('q.sock')\n"
        "except PermissionError: sys.exit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 7


def test_a_stopped_server_takes_its_socket_away(start: Start, path: str) -> None:
    server = start("--socket", path)
    assert os.path.exists(path)
    assert server.stop() == 0
    assert not os.path.exists(path)


def test_what_a_killed_server_left_is_replaced(start: Start, path: str) -> None:
    start("--socket", path).kill()
    assert os.path.exists(path)
    line = start("--socket", path).connect(path)
    assert line.ask(cmd="Ping")["ok"]
    line.close()


def test_a_socket_that_answers_is_left_alone(start: Start, path: str) -> None:
    server = start("--socket", path)
    with pytest.raises(ConfigError, match="another server answers"):
        open_unix(path)
    line = server.connect(path)
    assert line.ask(cmd="Ping")["ok"]
    line.close()


def test_a_socket_whose_owner_is_busy_is_left_alone(path: str) -> None:
    """Nobody accepts, and the queue of those who wait is full: that is not dead."""
    with socket.socket(socket.AF_UNIX) as owner, socket.socket(socket.AF_UNIX) as waiting:
        owner.bind(path)
        owner.listen(0)
        waiting.connect(path)
        with pytest.raises(ConfigError, match="another server answers"):
            open_unix(path)
        assert os.path.exists(path)


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, lambda p: p.symlink_to("/etc/hostname")])
def test_a_file_of_another_kind_is_left_alone(path: str, make: Callable[[Path], Any]) -> None:
    make(Path(path))
    with pytest.raises(ConfigError, match="no socket"):
        open_unix(path)
    assert os.path.lexists(path)


@pytest.mark.parametrize("bad", ["/nowhere/at/all/q.sock", "/" + "x" * 200, "/proc/q.sock"])
def test_a_path_that_cannot_be_is_one_error(bad: str) -> None:
    with pytest.raises(ConfigError, match="cannot listen on"):
        open_unix(bad)


def test_closing_leaves_the_socket_of_a_successor(path: str) -> None:
    first = open_unix(path)
    os.unlink(path)
    second = open_unix(path)
    first.close()
    assert os.path.exists(path)
    second.close()
    assert not os.path.exists(path)


def test_of_many_that_start_at_once_one_wins(path: str) -> None:
    """All find the socket of a dead one; removing and binding is one step."""
    open_unix(path).sock.close()
    ready = threading.Barrier(8)
    opened: list[Any] = []
    refused: list[str] = []

    def run() -> None:
        ready.wait()
        try:
            opened.append(open_unix(path))
        except ConfigError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(opened), len(refused)) == (1, 7)
    opened[0].close()


def test_tokens_hold_on_the_socket_too(start: Start, path: str) -> None:
    line = start("--socket", path, "--token", "secret").connect(path)
    assert line.ask(cmd="Stats")["error"] == "Not authenticated"
    assert line.ask(cmd="Auth", token="secret")["ok"]
    assert line.ask(cmd="Stats")["ok"]
    line.close()


def test_queue_and_worker_over_the_socket(start: Start, path: str) -> None:
    start("--socket", path, "--token", "secret")
    with Queue("q", f"unix://{path}?token=secret") as queue, Worker(queue, lambda job: job.data * 2):
        assert queue.add("double", 21).result(timeout=30) == 42


def test_nobody_at_the_path(path: str) -> None:
    for place in (path, "/" + "x" * 200):
        with Queue("q", f"unix://{place}") as queue, pytest.raises(ConnectionLost, match=r"at unix:///"):
            queue.counts()
