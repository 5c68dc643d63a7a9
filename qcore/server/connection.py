"""One accepted socket: its session, its unsent bytes and its bounds."""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
from typing import Literal

from qcore.broker.session import Session
from qcore.errors import described

logger = logging.getLogger("qcore.server")

RECEIVE_BYTES = 262_144
_LINGER_OFF = struct.pack("ii", 1, 0)
#: A vanished peer is given up after so many periods of silence.
SILENT_PERIODS = 4


def _notice_silence(sock: socket.socket, idle_s: int) -> None:
    """Let the system end a connection whose peer vanished: it would hold its jobs until their leases end.

    An idle peer is asked after ``idle_s`` and then again and again. One that confirms neither
    that nor what was sent to it, or that has no room for more, is given up after four times as long.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", idle_s),
        ("TCP_KEEPINTVL", idle_s),
        ("TCP_KEEPCNT", SILENT_PERIODS - 1),
        ("TCP_USER_TIMEOUT", SILENT_PERIODS * idle_s * 1000),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Connection:
    """A non-blocking socket with a session on top.

    :meth:`receive` runs what came in; :meth:`send` writes what the session has, in one
    call while the peer keeps up. Unsent bytes are bounded: a peer that does not read
    is cut off.
    """

    __slots__ = (
        "closed",
        "events",
        "max_unsent_bytes",
        "n_unsent",
        "partial",
        "partial_frame",
        "partial_since_ns",
        "ready",
        "resumed",
        "room",
        "session",
        "sock",
        "unsent",
    )

    def __init__(
        self, sock: socket.socket, room: bytearray, max_unsent_bytes: int, keepalive_s: int = 15
    ) -> None:
        sock.setblocking(False)
        if sock.family != getattr(socket, "AF_UNIX", None):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if keepalive_s:
                _notice_silence(sock, keepalive_s)
        self.sock = sock
        self.room = room
        self.session: Session
        self.unsent: list[memoryview] = []
        self.n_unsent = 0
        self.max_unsent_bytes = max_unsent_bytes
        self.partial = False  # something has come of which the rest is missing
        self.partial_since_ns = 0
        self.partial_frame = 0
        self.closed = False
        self.events = 0  # what the selector watches it for
        self.resumed = False  # requests that waited for room have run
        self.ready = True  # the peer may send requests: no handshake is under way

    def receive(self) -> bool:
        """Read once and run what is whole. False when the peer has gone, or the session broke."""
        try:
            n = self.sock.recv_into(self.room)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        return n > 0 and self._feed(self.room, n)

    def _feed(self, data: bytes | bytearray, n: int) -> bool:
        """Run what has come: the first ``n`` bytes."""
        try:
            self.partial = self.session.feed(data, n) > 0
        except Exception as fault:
            return self._broken(fault)
        return True

    def _broken(self, fault: Exception) -> Literal[False]:
        """A fault of ours costs this connection, not the server."""
        logger.error("a request broke its session: %s", described(fault))
        return False

    def send(self) -> bool:
        """Write what there is. False when the connection is to be closed now."""
        fresh = self._take()
        if fresh and not self.unsent:
            # The common case: one call takes it all.
            try:
                n = self.sock.send(fresh)
            except (BlockingIOError, InterruptedError):
                n = 0
            except OSError:
                return False
            if n == len(fresh):
                return self.session.settled or self._sent()
            fresh_rest = memoryview(fresh)[n:]
            self.unsent.append(fresh_rest)
            self.n_unsent += len(fresh_rest)
        elif fresh:
            self.unsent.append(memoryview(fresh))
            self.n_unsent += len(fresh)
        while self.unsent:
            try:
                n = self.sock.send(self.unsent[0])
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                return False
            self.n_unsent -= n
            if n == len(self.unsent[0]):
                del self.unsent[0]
            else:
                self.unsent[0] = self.unsent[0][n:]
                break
        if self.max_unsent_bytes and self.n_unsent > self.max_unsent_bytes:
            with contextlib.suppress(OSError):  # a reset, so that the peer learns of it at once
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_OFF)
            return False
        return bool(self.unsent) or self._sent()

    def _take(self) -> bytes:
        """The bytes to be sent now."""
        return self.session.take()

    def _sent(self) -> bool:
        """Everything is out: go on with requests that waited for that. False when this was the end."""
        session = self.session
        if session.backlogged:
            if session.behind_adds:
                return True  # it has output again when their commit is over
            self.resumed = True
            try:
                session.resume()
            except Exception as fault:
                return self._broken(fault)
            return True
        return not session.closing

    def close(self, *, release: bool = True) -> None:
        if not self.closed:
            self.closed = True
            self.session.close(release=release)
            self.sock.close()
