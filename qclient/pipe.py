"""Byte pipes to an engine, blocking form: a socket, or a session in this process.

Both carry the same bytes, so nothing above can tell them apart.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import sys
import time
from typing import Protocol

from qclient.tls import refused_handshake
from qclient.url import Target
from qcore.errors import CommandTimeout, ConfigError, ConnectionLost, TransportError

READ_BYTES = 1 << 18
CONNECT_TIMEOUT_S = 5.0


class Pipe(Protocol):
    """What the blocking client needs of a connection."""

    def write(self, data: bytes, timeout: float) -> None: ...

    def read(self, timeout: float) -> bytes:
        """Return what came, at least one byte; ``ConnectionLost`` at the end."""

    def alive(self) -> bool:
        """Whether the pipe is still of use, as far as can be seen without asking."""

    def close(self) -> None: ...

    def abort(self) -> None:
        """Close, ending a read in another thread."""


def tune(sock: socket.socket) -> None:
    """No delay for small frames; notice a dead peer within half a minute. A local socket needs neither."""
    if sock.family == getattr(socket, "AF_UNIX", None):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)


def refused_address(target: Target, exc: OSError) -> TransportError:
    """The error for an address that does not answer, with what to do next."""
    if isinstance(exc, ssl.SSLError):
        return ConnectionLost(f"no safe connection to {target}: {refused_handshake(exc)}")
    reason = exc.strerror or str(exc) or type(exc).__name__
    text = f"no engine answers at {target}: {reason}"
    if target.hint:
        text += f"; {target.hint}"
    return ConnectionLost(text)


def connect(target: Target, timeout: float) -> socket.socket:
    """Open a blocking socket to a server; ``OSError`` as it comes."""
    if target.kind == "tcp":
        return socket.create_connection((target.host, target.port), timeout)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    until = time.monotonic() + timeout
    try:
        sock.settimeout(timeout)
        while True:
            try:
                sock.connect(target.path or "")
                break
            except BlockingIOError:  # more wait there than are let in; for TCP the kernel waits by itself
                if time.monotonic() >= until:
                    raise
                time.sleep(0.01)
    except BaseException:
        sock.close()
        raise
    return sock


def server_name(target: Target) -> str:
    """The name that the certificate of the server must hold."""
    assert target.tls is not None
    return target.tls.server_name or target.host


def _encrypt(sock: socket.socket, context: ssl.SSLContext, target: Target) -> ssl.SSLSocket:
    try:
        # The handshake is under the timeout of the socket.
        return context.wrap_socket(sock, server_hostname=server_name(target))
    except BaseException as exc:
        sock.close()
        if isinstance(exc, ValueError) and not isinstance(exc, OSError):
            raise ConfigError(f"{target}: {exc}") from None  # no name that a certificate could hold
        raise


class SocketPipe:
    """A blocking socket, with TLS or without. Receives into one buffer for its life."""

    __slots__ = ("_sock", "_timeout", "_view")

    def __init__(self, target: Target, timeout: float = CONNECT_TIMEOUT_S) -> None:
        context = target.tls.context() if target.tls is not None else None
        try:
            self._sock = connect(target, timeout)
            tune(self._sock)
            if context is not None:
                self._sock = _encrypt(self._sock, context, target)
        except OSError as exc:
            raise refused_address(target, exc) from None
        self._timeout = timeout
        self._view = memoryview(bytearray(READ_BYTES))

    def _wait_at_most(self, timeout: float) -> None:
        if timeout != self._timeout:
            self._sock.settimeout(timeout)
            self._timeout = timeout

    def write(self, data: bytes, timeout: float) -> None:
        try:
            self._wait_at_most(timeout)
            self._sock.sendall(data)
        except OSError as exc:
            raise ConnectionLost(f"connection broke while writing: {exc}", maybe_applied=True) from None

    def read(self, timeout: float) -> bytes:
        try:
            self._wait_at_most(timeout)
            n = self._sock.recv_into(self._view)
        except TimeoutError:
            raise CommandTimeout(f"no reply within {timeout:g} s") from None
        except OSError as exc:
            raise ConnectionLost(f"connection broke: {exc}", maybe_applied=True) from None
        if not n:
            raise ConnectionLost("the server closed the connection", maybe_applied=True)
        return bytes(self._view[:n])

    def alive(self) -> bool:
        try:
            self._sock.settimeout(0)
            self._timeout = 0
            if isinstance(self._sock, ssl.SSLSocket):
                # It cannot look without reading. Nothing is expected but what TLS itself may say.
                self._sock.recv(1)
                return False
            return bool(self._sock.recv(1, socket.MSG_PEEK))
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False

    def close(self) -> None:
        self._sock.close()

    def abort(self) -> None:
        # A thread blocked in recv() is woken by the shutdown, not by the close.
        with contextlib.suppress(OSError):
            # That of TLS would take the machine away from the thread that is in it.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        self._sock.close()
