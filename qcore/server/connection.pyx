"""One accepted socket: its session, its unsent bytes and its bounds."""

from cpython.bytes cimport PyBytes_GET_SIZE
from libc.stdint cimport int64_t

from qcore.broker.session cimport Session

import contextlib
import logging
import socket
import struct

from qcore.errors import described

logger = logging.getLogger("qcore.server")

_LINGER_OFF = struct.pack("ii", 1, 0)
#: A vanished peer is given up after so many periods of silence.
SILENT_PERIODS = 4


def _notice_silence(sock, idle_s):
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


cdef class Connection:
    """A non-blocking socket with a session on top.

    :meth:`receive` runs what came in; :meth:`send` writes what the session has, in one
    call while the peer keeps up. Unsent bytes are bounded: a peer that does not read
    is cut off. The session is given to it after it was made, before its first use.
    """

    def __init__(self, sock, bytearray room not None, int64_t max_unsent_bytes, keepalive_s=15):
        sock.setblocking(False)
        if sock.family != getattr(socket, "AF_UNIX", None):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if keepalive_s:
                _notice_silence(sock, keepalive_s)
        self.sock = sock
        self.room = room
        self.unsent = []
        self.max_unsent_bytes = max_unsent_bytes
        self.ready = True

    cpdef bint receive(self) except -1:
        """Read once and run what is whole. False when the peer has gone, or the session broke."""
        cdef Py_ssize_t n
        try:
            n = self.sock.recv_into(self.room)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        return n > 0 and self._feed(self.room, n)

    cpdef bint _feed(self, data, Py_ssize_t n) except -1:
        """Run what has come: the first ``n`` bytes."""
        try:
            self.partial = self.session.feed(data, n) > 0
        except Exception as fault:
            return self._broken(fault)
        return True

    cdef bint _broken(self, fault) except -1:
        """A fault of ours costs this connection, not the server."""
        logger.error("a request broke its session: %s", described(fault))
        return False

    cpdef bint send(self) except -1:
        """Write what there is. False when the connection is to be closed now."""
        cdef bytes fresh = self._take()
        cdef Py_ssize_t size = PyBytes_GET_SIZE(fresh), n
        if size and not self.unsent:
            # The common case: one call takes it all.
            try:
                n = self.sock.send(fresh)
            except (BlockingIOError, InterruptedError):
                n = 0
            except OSError:
                return False
            if n == size:
                return self.session.c_settled() or self._sent()
            self.unsent.append(memoryview(fresh)[n:])
            self.n_unsent += size - n
        elif size:
            self.unsent.append(memoryview(fresh))
            self.n_unsent += size
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

    cpdef bytes _take(self):
        """The bytes to be sent now."""
        return self.session.take()

    cdef bint _sent(self) except -1:
        """Everything is out: go on with requests that waited for that. False when this was the end."""
        cdef Session session = self.session
        if session.backlogged:
            if session.c_behind_adds():
                return True  # it has output again when their commit is over
            self.resumed = True
            try:
                session.resume()
            except Exception as fault:
                return self._broken(fault)
            return True
        return not session.closing

    def close(self, *, bint release=True):
        """Dismiss the session and close the socket; once."""
        if not self.closed:
            self.closed = True
            self.unsent.clear()
            self.session.close(release=release)
            self.sock.close()
