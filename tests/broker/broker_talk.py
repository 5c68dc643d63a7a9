"""A peer of a broker, for the tests of this directory."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import msgpack

from qcore.broker.core import Broker
from qcore.broker.opening import commit
from qcore.broker.session import Session


def frame(request: object) -> bytes:
    body = msgpack.packb(request)
    return struct.pack(">I", len(body)) + body


def frames(data: bytes) -> list[Any]:
    """Every reply in a piece of output, which must hold whole frames only."""
    out = []
    while data:
        (n,) = struct.unpack_from(">I", data)
        assert len(data) >= 4 + n
        out.append(msgpack.unpackb(data[4 : 4 + n], strict_map_key=False, timestamp=0))
        data = data[4 + n :]
    return out


class Talk:
    """One connection to a broker, as a peer sees it."""

    def __init__(self, broker: Broker, **options: Any) -> None:
        self.broker = broker
        self.heard = 0
        self.session = Session(broker, self._hear, **options)

    def _hear(self) -> None:
        self.heard += 1

    def send(self, *requests: Mapping[str, object]) -> None:
        self.session.feed(b"".join(frame(request) for request in requests))

    def replies(self) -> list[Any]:
        return frames(self.session.take())

    def ask(self, cmd: str, **fields: object) -> Any:
        """The reply to one request; commits what it waits for, as an embedded caller does."""
        self.send({"cmd": cmd, **fields})
        settle(self.broker, self.session)
        (reply,) = self.replies()
        return reply

    def good(self, cmd: str, **fields: object) -> Any:
        reply = self.ask(cmd, **fields)
        assert reply["ok"] is True, reply
        return reply

    def refused(self, cmd: str, **fields: object) -> str:
        reply = self.ask(cmd, **fields)
        assert reply["ok"] is False, reply
        return str(reply["error"])


def settle(broker: Broker, session: Session) -> None:
    waiting, cut = broker.settle(session)
    while waiting:
        assert cut is not None, "another commit is on its way"
        commit(broker, cut)
        waiting, cut = broker.settle(session)
