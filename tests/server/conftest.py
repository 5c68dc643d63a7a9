"""Real servers in processes of their own, and raw connections to them."""

from __future__ import annotations

import os
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qcore.wire.packing import pack, unpack

PATIENCE_S = 30.0


class Running:
    """A server process."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("QCORE_", "BUNQUEUE_", "BQ_"))}
        env |= {"TCP_PORT": "0", "HOST": "127.0.0.1", **variables}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "qcore.server", *arguments], env=env, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        found = re.search(r"listening on 127\.0\.0\.1:(\d+)", self.process.stdout.readline())
        assert found
        self.port = int(found[1])

    def connect(self, path: str | None = None, **options: Any) -> Line:
        return Line(self.port if path is None else path, **options)

    def stop(self) -> int:
        """Ask it to stop, as an operator does; its exit code."""
        self.process.terminate()
        return self.process.wait(PATIENCE_S)

    def resident_mib(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Line:
    """A raw connection, to a port or a path: requests are written as maps, replies read one by one."""

    def __init__(self, place: int | str, *, receive_buffer: int | None = None) -> None:
        self.sock = socket.socket(socket.AF_UNIX if isinstance(place, str) else socket.AF_INET)
        if receive_buffer is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(place if isinstance(place, str) else ("127.0.0.1", place))

    @staticmethod
    def frame(**request: Any) -> bytes:
        body: bytes = pack(request)
        return struct.pack(">I", len(body)) + body

    def send(self, *frames: bytes) -> None:
        self.sock.sendall(b"".join(frames))

    def receive(self) -> dict[str, Any]:
        reply = unpack(self._exactly(struct.unpack(">I", self._exactly(4))[0]))
        assert isinstance(reply, dict)
        return reply

    def ask(self, **request: Any) -> dict[str, Any]:
        self.send(self.frame(**request))
        return self.receive()

    def _exactly(self, n: int) -> bytes:
        out = bytearray()
        while len(out) < n:
            piece = self.sock.recv(min(1 << 20, n - len(out)))
            assert piece, "the server closed the connection"
            out += piece
        return bytes(out)

    def close(self) -> None:
        self.sock.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    """Start servers; they end with the test."""
    started: list[Running] = []

    def make(*arguments: str, **variables: str) -> Running:
        started.append(Running(*arguments, **variables))
        return started[-1]

    yield make
    for running in started:
        running.close()
