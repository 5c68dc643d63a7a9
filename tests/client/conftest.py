"""Engines for the client's tests: in memory, in a file, and behind a port."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from qclient import shutdown_engine

# With this variable the same tests run against any server of the protocol.
_GIVEN = os.environ.get("QCORE_TEST_TCP_URL")
_KINDS = ("tcp",) if _GIVEN else ("memory", "sqlite", "tcp")
_names = itertools.count(1)


@pytest.fixture(scope="session")
def tcp_url() -> Iterator[str]:
    """A server for the session; tests keep apart by the names of their queues."""
    if _GIVEN:
        yield _GIVEN
        return
    env = {k: v for k, v in os.environ.items() if not k.startswith(("QCORE_", "BUNQUEUE_", "BQ_"))}
    env |= {"TCP_PORT": "0", "HOST": "127.0.0.1"}
    server = subprocess.Popen(
        [sys.executable, "-m", "qcore.server"], env=env, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        line = server.stdout.readline()
        assert "listening on 127.0.0.1:" in line, line
        port = line.split("listening on 127.0.0.1:")[1].split()[0].rstrip(".,;")
        yield f"tcp://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(20)
        server.stdout.close()


@pytest.fixture(params=_KINDS)
def engine_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """One engine of each kind."""
    if request.param == "tcp":
        yield request.getfixturevalue("tcp_url")
        return
    yield "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"
    shutdown_engine()


@pytest.fixture
def name() -> str:
    """A queue name that nobody used before."""
    return f"q{os.getpid()}-{next(_names)}"


@pytest.fixture
def proxy(tcp_url: str) -> Iterator[Proxy]:
    """A proxy in front of the session's server."""
    proxy = Proxy(tcp_url)
    yield proxy
    proxy.close()


class Proxy:
    """Forwards bytes both ways, records commands, breaks and freezes connections.

    ``on_request(command)`` may return ``"cut"``, which forwards the request and
    closes both sides before the reply.
    """

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("tcp://").split(":")
        self._target = (host, int(port))
        self.requests: list[dict[str, Any]] = []
        self.on_request: Callable[[dict[str, Any]], str | None] = lambda request: None
        self.frozen = threading.Event()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"tcp://127.0.0.1:{self.port}"
        self._threads: list[threading.Thread] = []
        self._spawn(self._accept)

    def _spawn(self, fn: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=fn, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            for sock in (near, far):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets |= {near, far}
            self._spawn(self._upstream, near, far)
            self._spawn(self._downstream, near, far)

    def _upstream(self, near: socket.socket, far: socket.socket) -> None:
        buffer = b""
        with contextlib.suppress(OSError):
            while data := near.recv(1 << 16):
                buffer += data
                while len(buffer) >= 4:
                    n = 4 + int.from_bytes(buffer[:4], "big")
                    if len(buffer) < n:
                        break
                    frame, buffer = buffer[:n], buffer[n:]
                    request = msgpack.unpackb(frame[4:], strict_map_key=False)
                    self.requests.append(request)
                    action = self.on_request(request)
                    if self.frozen.is_set():
                        continue
                    if action == "cut":
                        # The server runs the command; its reply finds nobody.
                        self._close(near)
                        far.sendall(frame)
                        far.shutdown(socket.SHUT_WR)
                        return
                    far.sendall(frame)
        self._close(near)
        self._close(far)

    def _downstream(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(1 << 16):
                if not self.frozen.is_set():
                    near.sendall(data)
        self._close(near)
        self._close(far)

    @staticmethod
    def _close(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()

    def commands(self, command: str) -> list[dict[str, Any]]:
        return [r for r in self.requests if r.get("cmd") == command]

    def kill(self) -> None:
        """Break every connection; new ones are accepted."""
        for sock in list(self._sockets):
            self._close(sock)
        self._sockets.clear()

    def stop_listening(self) -> None:
        self._close(self._listener)

    def close(self) -> None:
        self.stop_listening()
        self.kill()
        for thread in self._threads:
            thread.join(5)
