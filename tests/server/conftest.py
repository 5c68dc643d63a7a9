"""Real servers in processes of their own, and raw connections to them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from qcore.wire.packing import pack, unpack

PATIENCE_S = 30.0


def until(condition: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Wait for what another process does; a guard against hanging, not a measure."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened in time"
        time.sleep(0.005)


class Running:
    """A server process."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("QCORE_", "BUNQUEUE_", "BQ_"))}
        env |= {"TCP_PORT": "0", "HOST": "127.0.0.1", **variables}
        self._seen = 0
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (it lives as long as this)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "qcore.server", *arguments],
            env=env,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        assert self.process.stdout is not None
        found = re.search(r"listening on 127\.0\.0\.1:(\d+)", self.process.stdout.readline())
        assert found
        self.port = int(found[1])

    def connect(self, path: str | None = None, **options: Any) -> Line:
        return Line(self.port if path is None else path, **options)

    def log_until(self, text: str) -> str:
        """What it has logged since this was last asked, up to a line with this text."""
        said: list[str] = []

        def is_there() -> bool:
            said[:] = [self.said()[self._seen :]]
            return text in said[0]

        until(is_there)
        end = said[0].index(text) + len(text)
        end = said[0].find("\n", end) + 1 or len(said[0])
        self._seen += end
        return said[0][:end]

    def hang_up(self) -> None:
        """Have it read its files again."""
        self.process.send_signal(signal.SIGHUP)

    def stop(self) -> int:
        """Ask it to stop, as an operator does; its exit code."""
        self.process.terminate()
        return self.process.wait(PATIENCE_S)

    def resident_mib(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def said(self) -> str:
        """What it has logged so far."""
        self._errors.seek(0)
        return self._errors.read()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        sys.stderr.write(self.said())
        self._errors.close()


class Line:
    """A raw connection, to a port or a path: requests are written as maps, replies read one by one."""

    def __init__(
        self,
        place: int | str,
        *,
        receive_buffer: int | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.sock = socket.socket(socket.AF_UNIX if isinstance(place, str) else socket.AF_INET)
        if receive_buffer is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(place if isinstance(place, str) else ("127.0.0.1", place))
        if tls is not None:
            try:
                self.sock = tls.wrap_socket(self.sock, server_hostname="localhost")
            except BaseException:
                self.sock.close()
                raise

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

    def rest(self) -> bytes:
        """What comes until the server closes; a reset is a close as well."""
        out = bytearray()
        with contextlib.suppress(ConnectionResetError):
            while piece := self.sock.recv(1 << 20):
                out += piece
        return bytes(out)

    def _exactly(self, n: int) -> bytes:
        out = bytearray()
        while len(out) < n:
            piece = self.sock.recv(min(1 << 20, n - len(out)))
            assert piece, "the server closed the connection"
            out += piece
        return bytes(out)

    def ended(self) -> bool:
        """Whether the server closes the connection; what it still sends is passed over."""
        try:
            while self.sock.recv(1 << 16):
                pass
        except (ConnectionResetError, ssl.SSLEOFError):
            pass
        return True

    def close(self) -> None:
        self.sock.close()


class Authority:
    """An authority of the test's own, and files with what it has signed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ca = trustme.CA()
        self.file = self._write("ca.pem", self.ca.cert_pem.bytes())

    def _write(self, name: str, content: bytes) -> str:
        path = self.directory / name
        path.write_bytes(content)
        path.chmod(0o600)
        return str(path)

    def issue(self, name: str, *hosts: str) -> tuple[str, str]:
        """Certificate and key for these hosts, localhost without any; the files of that name are replaced."""
        issued = self.ca.issue_cert(*(hosts or ("localhost", "127.0.0.1")))
        chain = b"".join(pem.bytes() for pem in issued.cert_chain_pems)
        return self._write(f"{name}.pem", chain), self._write(f"{name}.key", issued.private_key_pem.bytes())

    def context(self) -> ssl.SSLContext:
        """What a client knows that trusts this authority."""
        return ssl.create_default_context(cafile=self.file)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Authority]]:
    """One server with TLS for those that change nothing about it, and who has signed its certificate."""
    authority = Authority(tmp_path_factory.mktemp("tls"))
    cert, key = authority.issue("server")
    running = Running("--tls-cert", cert, "--tls-key", key)
    yield running, authority
    running.close()


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
