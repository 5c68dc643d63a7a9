"""Processes for the crash tests."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

ROOT = Path(__file__).parents[2]


def clean_env(**more: str) -> dict[str, str]:
    """The environment without settings of this project, and with ours."""
    ours = ("QCORE_", "BUNQUEUE_", "BQ_", "DATA_PATH", "SQLITE_PATH", "TCP_", "HTTP_PORT", "HOST", "AUTH_")
    env = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    # What runs here may be started from any directory.
    env["PYTHONPATH"] = str(ROOT)
    return env | more


class ServerProcess:
    """``python -m qcore.server`` with whatever options."""

    def __init__(self, *options: str, stdin: int | None = subprocess.DEVNULL, **env: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "qcore.server", "--port", "0", *options],
            env=clean_env(**env),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._port = 0

    @property
    def port(self) -> int:
        """Where it listens, once it does."""
        if not self._port:
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
            assert "listening on 127.0.0.1:" in line, (line, self.process.communicate(timeout=20))
            self._port = int(line.rsplit(":", 1)[1])
        return self._port

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, timeout: float = 20) -> tuple[int, str]:
        """Wait for the end: exit code and what went to stderr."""
        _, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, err

    def kill(self) -> None:
        self.process.kill()
        with contextlib.suppress(ValueError):  # read to the end already
            self.process.communicate()


class Line:
    """One connection that speaks the protocol."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._buffer = b""

    def send(self, cmd: str, **fields: Any) -> None:
        body = msgpack.packb({"cmd": cmd, **fields})
        self.sock.sendall(len(body).to_bytes(4, "big") + body)

    def read(self) -> dict[str, Any]:
        while len(self._buffer) < 4 or len(self._buffer) < 4 + int.from_bytes(self._buffer[:4], "big"):
            data = self.sock.recv(65536)
            if not data:
                raise EOFError
            self._buffer += data
        end = 4 + int.from_bytes(self._buffer[:4], "big")
        frame, self._buffer = self._buffer[4:end], self._buffer[end:]
        reply: dict[str, Any] = msgpack.unpackb(frame)
        return reply

    def call(self, cmd: str, **fields: Any) -> dict[str, Any]:
        self.send(cmd, **fields)
        return self.read()

    def silent(self, seconds: float) -> bool:
        return not select.select([self.sock], [], [], seconds)[0]

    def close(self) -> None:
        self.sock.close()


@pytest.fixture
def start() -> Iterator[Callable[..., ServerProcess]]:
    """``start(*options, **environment)``: a server process, killed after the test at the latest."""
    servers: list[ServerProcess] = []

    def start(*options: str, **settings: Any) -> ServerProcess:
        servers.append(ServerProcess(*options, **settings))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


@pytest.fixture
def line() -> Iterator[Callable[[ServerProcess], Line]]:
    """``line(server)``: a connection, closed after the test."""
    lines: list[Line] = []

    def line(server: ServerProcess) -> Line:
        lines.append(Line(server.port))
        return lines[-1]

    yield line
    for each in lines:
        each.close()


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``program(source, **variables)``: run a Python program in a process of its own to its end."""

    def program(
        source: str, *arguments: str, timeout: float = 30, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "program.py"
        file.write_text(source)
        return subprocess.run(
            [sys.executable, "-W", "error", str(file), *arguments],
            env=clean_env(**variables),
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return program
