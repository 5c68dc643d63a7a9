"""The client's half of the protocol, without input or output.

Requests become bytes with a request id of their own; bytes become replies,
matched to what the caller attached to the request, whatever order they come in.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import msgpack

from qclient.codec import unpack_frame
from qclient.delivery import read_reply
from qcore.errors import ProtocolError, SerializationError
from qcore.limits import MAX_FRAME_BYTES

CAPABILITIES = ("pipelining", "separate-job-name", "int64", "typed", "outcomes", "codes")

_LENGTH = struct.Struct(">I")
#: How a TLS server begins when it is asked without TLS.
_TLS_ALERT = 0x1503


def _pack(value: object) -> bytes:
    try:
        packed: bytes = msgpack.packb(value)
    except UnicodeEncodeError:
        raise SerializationError("a text with half of a surrogate pair cannot be sent") from None
    except OverflowError:
        raise SerializationError("a whole number of more than 64 bits cannot be sent") from None
    return packed


def map_header(n: int) -> bytes:
    """Header of a map of ``n`` pairs."""
    if n < 16:
        return bytes((0x80 | n,))
    return b"\xde" + n.to_bytes(2, "big") if n < 0x10000 else b"\xdf" + n.to_bytes(4, "big")


def array_header(n: int) -> bytes:
    """Header of an array of ``n`` values."""
    if n < 16:
        return bytes((0x90 | n,))
    return b"\xdc" + n.to_bytes(2, "big") if n < 0x10000 else b"\xdd" + n.to_bytes(4, "big")


def map_body(fields: Mapping[str, object]) -> bytes:
    """The packed pairs of ``fields`` without the header, to be joined with more."""
    n = len(fields)
    if not n:
        return b""
    packed = _pack(fields)
    return packed[1 if n < 16 else 3 if n < 0x10000 else 5 :]


class ClientProtocol:
    """State of one connection: request ids, unanswered requests, the partial frame.

    ``pending`` maps a request id to the caller's tag, oldest first. Not
    thread-safe: one owner drives it.
    """

    __slots__ = ("_last_id", "_partial", "_want", "pending")

    def __init__(self) -> None:
        self.pending: dict[str, Any] = {}
        self._last_id = 0
        self._partial = bytearray()
        self._want = 4

    def request(
        self,
        command: str,
        fields: Mapping[str, object] | None = None,
        raw: tuple[tuple[str, bytes], ...] = (),
        tag: Any = None,
    ) -> bytes:
        """Return the frame of one request; ``raw`` are fields whose values are packed already."""
        self._last_id += 1
        request_id = str(self._last_id)
        n = 2 + len(raw)
        parts = [b"", b"", b"\xa3cmd", _pack(command), b"\xa5reqId", _pack(request_id)]
        if fields:
            n += len(fields)
            parts.append(map_body(fields))
        for key, value in raw:
            parts.append(_pack(key))
            parts.append(value)
        parts[1] = map_header(n)
        body_bytes = sum(map(len, parts))
        if body_bytes > MAX_FRAME_BYTES:
            raise ProtocolError(
                f"{command} would be a frame of {body_bytes} bytes; the limit is {MAX_FRAME_BYTES}"
            )
        parts[0] = _LENGTH.pack(body_bytes)
        self.pending[request_id] = tag
        return b"".join(parts)

    def feed(self, data: bytes) -> list[tuple[Any, dict[str, Any]]]:
        """Take bytes as they came; return ``(tag, reply)`` of every frame now whole.

        Events have the tag ``None``. A frame that no peer of this protocol would
        send raises ``ProtocolError``; the connection is then of no further use.
        """
        out: list[tuple[Any, dict[str, Any]]] = []
        partial = self._partial
        if partial:
            partial += data
            if len(partial) < self._want:
                return out
            data = bytes(partial)
            partial.clear()
        view = memoryview(data)
        at, end = 0, len(data)
        while end - at >= 4:
            n = int.from_bytes(view[at : at + 4], "big")
            if n > MAX_FRAME_BYTES:
                if n >> 16 == _TLS_ALERT:
                    raise ProtocolError("the server speaks TLS: name it tcps://, or say --tls")
                raise ProtocolError(f"peer announced a frame of {n} bytes; the limit is {MAX_FRAME_BYTES}")
            stop = at + 4 + n
            if stop > end:
                self._want = 4 + n
                break
            self._reply(data, view, at + 4, stop, out)
            at = stop
        else:
            self._want = 4
        if at < end:
            partial += view[at:]
        return out

    def _decode(self, data: bytes, view: memoryview, at: int, stop: int) -> Any:
        """Unpack one body; the worker's protocol does this in its own way."""
        return unpack_frame(view[at:stop])

    def _reply(
        self, data: bytes, view: memoryview, at: int, stop: int, out: list[tuple[Any, dict[str, Any]]]
    ) -> None:
        try:
            reply = self._decode(data, view, at, stop)
        except Exception as exc:
            raise ProtocolError(f"frame cannot be read: {type(exc).__name__}") from None
        if type(reply) is not dict:
            raise ProtocolError("frame is not a map")
        request_id = reply.get("reqId")
        if request_id is not None:
            try:
                tag = self.pending.pop(request_id)
            except (KeyError, TypeError):
                return  # the answer to something given up
            out.append((tag, reply))
        elif reply.get("type") == "event":
            out.append((None, reply))
        else:
            raise ProtocolError(f"peer reported: {reply.get('error', 'a frame without a request id')}")


class WorkerProtocol(ClientProtocol):
    """The same for a worker: jobs become ``JobContext`` objects of ``control``."""

    __slots__ = ("_control",)

    def __init__(self, control: Any) -> None:
        super().__init__()
        self._control = control

    def _decode(self, data: bytes, view: memoryview, at: int, stop: int) -> Any:
        return read_reply(data, at, stop, self._control)
