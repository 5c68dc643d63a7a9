"""An engine in a process of its own, forked with everything imported, under the shim."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Literal, NoReturn

import msgpack

from qcore.broker.embedded import EmbeddedEngine
from qcore.broker.opening import open_broker
from qcore.errors import QError
from qcore.server import loop
from qcore.server.options import parse
from qcore.store import sqlite
from tests.crash.load import LocalCaller, framed

Mode = Literal["server", "embedded"]

#: Nothing takes this long; a guard against hanging.
PATIENCE_S = 20.0
#: A small log, so that a small load sees checkpoints.
CHECKPOINT_PAGES = 40


class StartFailed(Exception):
    """The engine did not start, and said why in one line."""


class Conversation:
    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(PATIENCE_S)
        self._sock = sock
        self._buffer = b""

    def send(self, request: dict[str, Any]) -> None:
        self._sock.sendall(framed(request))

    def read(self) -> dict[str, Any]:
        while len(self._buffer) < 4 or len(self._buffer) < 4 + int.from_bytes(self._buffer[:4], "big"):
            data = self._sock.recv(1 << 16)
            if not data:
                raise ConnectionResetError("the engine is gone")
            self._buffer += data
        end = 4 + int.from_bytes(self._buffer[:4], "big")
        frame, self._buffer = self._buffer[4:end], self._buffer[end:]
        reply: dict[str, Any] = msgpack.unpackb(frame)
        return reply

    def close(self) -> None:
        self._sock.close()


class Host:
    """Start an engine over ``path``; ``before`` runs in its process first, with its pid."""

    def __init__(
        self, mode: Mode, path: Path, log: Path, *, before: Any = None, retry_ms: int = 5, **levels: str
    ) -> None:
        self.mode = mode
        reading, writing = os.pipe()
        ours, theirs = socket.socketpair(), socket.socketpair()
        self.pid = os.fork()
        if not self.pid:
            os.close(reading)
            for pair in (ours, theirs):
                pair[0].close()
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            _live(mode, path, log, writing, (ours[1], theirs[1]), before, retry_ms, levels)
        os.close(writing)
        for pair in (ours, theirs):
            pair[1].close()
        self._first, self._second = Conversation(ours[0]), Conversation(theirs[0])
        with open(reading, encoding="utf-8") as pipe:
            line = pipe.readline() if _readable(reading) else "nothing"
        if mode == "server" and "listening on 127.0.0.1:" in line:
            port = int(line.rsplit(":", 1)[1])
            self._first.close()
            self._second.close()
            self._first, self._second = (
                Conversation(socket.create_connection(("127.0.0.1", port))) for _ in range(2)
            )
        elif line != "ready\n":
            code = self._wait()
            self._close()
            if code != 2:
                raise AssertionError(f"the start failed with {code}: {line} {log.read_text()}")
            raise StartFailed(line.strip())

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        """Ask, and see that another connection is served meanwhile."""
        self._first.send(request)
        self.ping()
        return self._first.read()

    def ping(self) -> None:
        self._second.send({"cmd": "Ping"})
        assert self._second.read()["ok"]

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self._wait()
        self._close()

    def stop(self) -> int:
        """Let it end in good order; its exit code."""
        if self.mode == "server":
            os.kill(self.pid, signal.SIGTERM)
            code = self._wait()
            self._close()
            return code
        self._close()
        return self._wait()

    def _close(self) -> None:
        self._first.close()
        self._second.close()

    def _wait(self) -> int:
        end = time.monotonic() + PATIENCE_S
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise AssertionError("the engine did not end")
            time.sleep(0.002)


def _readable(fd: int) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        return bool(selector.select(PATIENCE_S))


def _live(
    mode: Mode,
    path: Path,
    log: Path,
    writing: int,
    socks: tuple[socket.socket, socket.socket],
    before: Any,
    retry_ms: int,
    levels: dict[str, Any],
) -> NoReturn:
    code = 3
    try:
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(fd, 2)
        out = open(writing, "w", encoding="utf-8", buffering=1)  # noqa: SIM115
        sqlite.CHECKPOINT_PAGES = CHECKPOINT_PAGES
        if before is not None:
            before(os.getpid())
        try:
            if mode == "server":
                loop.open_broker = functools.partial(open_broker, retry_ms=retry_ms)  # type: ignore[attr-defined]
                options = ["--port", "0", "--data", str(path), "--log-level", "error"]
                options += ["--shutdown-timeout-ms", "100"]
                options += [word for name, level in levels.items() for word in (f"--{name}", level)]
                code = loop.serve(parse(options, {}), out)
            else:
                code = _embedded(EmbeddedEngine(str(path), **levels), out, socks)
        except QError as error:
            with contextlib.suppress(BrokenPipeError):
                out.write(f"{error}\n")
            code = 2
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _embedded(engine: EmbeddedEngine, out: Any, socks: tuple[socket.socket, socket.socket]) -> int:
    out.write("ready\n")

    def serve(sock: socket.socket) -> None:
        caller, talk = LocalCaller(engine), Conversation(sock)
        sock.settimeout(None)
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            while True:
                talk.send(caller.call(talk.read()))

    threads = [threading.Thread(target=serve, args=(sock,), daemon=True) for sock in socks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.close()
    return 0
