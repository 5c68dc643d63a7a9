"""The same frames over sockets, cut into segments at random."""

from __future__ import annotations

import random
import select
import socket
import struct
import time

from tests.fuzz.campaign import EVENT, Finding, bodies_of, framed
from tests.fuzz.frames import Frames

#: Requests that may be answered later, or after those behind them.
MAY_WAIT = (b"PULL", b"WaitJob")
LAST = b"\x82\xa3cmd\xa4Ping\xa5reqId\xa8the last"
PATIENCE_S = 60.0


def replies_of(out: bytes) -> list[bytes]:
    """The whole replies, without events."""
    return [body for body in bodies_of(out) if not body.startswith(EVENT)]


class Peer:
    """A connection that reads whatever comes while it writes."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.got = bytearray()
        self.closed = False

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self.closed:
            readable, writable, _ = select.select([self.sock], [self.sock], [], PATIENCE_S)
            if not readable and not writable:
                raise Finding("the server neither reads nor writes")
            if readable:
                self._read()
            elif writable:
                try:
                    view = view[self.sock.send(view) :]
                except OSError:
                    self.closed = True

    def _read(self) -> None:
        try:
            piece = self.sock.recv(1 << 18)
        except OSError:
            piece = b""
        self.got += piece
        self.closed = self.closed or not piece

    def read_until(self, end: bytes) -> bool:
        """Whether these bytes came; False when the server closed before."""
        deadline = time.monotonic() + PATIENCE_S
        seen = 0
        while self.got.find(end, max(0, seen - len(end))) < 0:
            if self.closed:
                return False
            seen = len(self.got)
            if not select.select([self.sock], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise Finding("no answer")
            self._read()
        return True

    def close(self) -> None:
        self.sock.close()


def storm(port: int, seed: int, n_frames: int, *, each: int = 150) -> int:
    """Write frames on one connection after the other; how many whole ones were answered."""
    frames = Frames(seed)
    rng = random.Random(seed)
    answered = 0
    for _ in range(-(-n_frames // each)):
        bodies = [frames.body() for _ in range(each)]
        stream = b"".join(framed(body) for body in bodies)
        lies = rng.random() < 0.2
        if lies:
            at = sum(4 + len(body) for body in bodies[: rng.randrange(each)])
            stream = (
                stream[:at]
                + struct.pack(">I", rng.choice((3, 90_000, 2**26 + 1, 2**32 - 1)))
                + stream[at + 4 :]
            )
        whole = bodies_of(stream)
        peer = Peer(port)
        pos = 0
        while pos < len(stream) and not peer.closed:
            size = rng.choice((1, 2, 5, 60, 1000, 20_000, 200_000))
            if len(stream) - pos > 50_000:
                size = max(size, 8000)
            peer.write(stream[pos : pos + size])
            pos += size
        if not lies:
            peer.write(framed(LAST))
            if not peer.read_until(LAST[-9:]):
                raise Finding("the server closed a connection that sent whole frames only")
            missing = len(whole) + 1 - len(replies_of(bytes(peer.got)))
            may_wait = sum(any(word in body for word in MAY_WAIT) for body in whole)
            if not 0 <= missing <= may_wait:
                raise Finding(f"{missing} frames without an answer, {may_wait} may wait")
        answered += len(replies_of(bytes(peer.got)))
        peer.close()
        following = Peer(port)
        following.write(framed(LAST))
        if not following.read_until(LAST[-9:]):
            raise Finding("the next connection does not work")
        following.close()
    return answered
