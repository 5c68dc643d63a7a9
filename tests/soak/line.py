"""A raw connection and a server process, for loads that count every reply."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0


def frame(cmd: str, **fields: Any) -> bytes:
    body: bytes = msgpack.packb({"cmd": cmd, **fields})
    return len(body).to_bytes(4, "big") + body


class Line:
    """Sends requests, one or many at once; replies come in their order."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self.sock.makefile("rb", buffering=1 << 16)

    def send(self, *frames: bytes) -> None:
        self.sock.sendall(b"".join(frames))

    def read(self) -> dict[str, Any]:
        head = self._file.read(4)
        if len(head or b"") < 4:
            raise ConnectionResetError("the server closed the connection")
        reply: dict[str, Any] = msgpack.unpackb(self._file.read(int.from_bytes(head, "big")))
        return reply

    def call(self, cmd: str, **fields: Any) -> dict[str, Any]:
        """One request whose refusal is an error."""
        self.send(frame(cmd, **fields))
        reply = self.read()
        if not reply.get("ok"):
            raise AssertionError(f"{cmd} was refused: {reply.get('error')}")
        return reply

    def close(self) -> None:
        self._file.close()
        self.sock.close()


def clean_env(**more: str) -> dict[str, str]:
    """The environment without settings of this project, so that they do not change the load."""
    ours = ("QCORE_", "BUNQUEUE_", "BQ_", "DATA_PATH", "SQLITE_PATH", "TCP_", "HTTP_PORT", "HOST", "AUTH_")
    env = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    paths = [str(ROOT), *filter(None, [env.get("PYTHONPATH")])]
    return env | {"PYTHONPATH": os.pathsep.join(paths)} | more


class Server:
    """``qcore start`` in a process of its own, on a data file."""

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        command = [sys.executable, "-m", "qcore.server", "--port", "0", "--data", str(data), *options]
        self.process = subprocess.Popen(command, env=clean_env(), stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"listening on 127\.0\.0\.1:(\d+)", line)
        if not found:
            raise AssertionError(f"the server did not start: {line!r}")
        self.port = int(found[1])

    def figures(self) -> dict[str, float]:
        """Memory, files and CPU of the process now."""
        pid = self.process.pid
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        ticks = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
        return {
            "rss_mib": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
            "file_mib": size_mib(self.data),
            "wal_mib": size_mib(Path(f"{self.data}-wal")),
            "cpu_s": sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"),
            "fds": len(os.listdir(f"/proc/{pid}/fd")),
        }

    def stop(self) -> int:
        self.process.terminate()
        try:
            return self.process.wait(PATIENCE_S)
        finally:
            self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def size_mib(path: Path) -> float:
    try:
        return path.stat().st_size / 2**20
    except OSError:
        return 0.0
