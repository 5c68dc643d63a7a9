"""Frames in plain Python: four bytes of big-endian length, then the body."""

from __future__ import annotations

from qcore.errors import ProtocolError
from qcore.limits import MAX_FRAME_BYTES


class FrameTooLarge(ProtocolError):
    """A peer announced a frame longer than the limit."""

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(f"Frame too large: {length} bytes exceeds maximum {limit}")
        self.length = length


class FrameBuffer:
    """The compiled buffer's behaviour, by slicing one bytes object."""

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self._held = b""
        self._limit = limit
        self._refused: int | None = None

    def feed(self, data: bytes) -> None:
        if self._refused is None:
            self._held += data

    def next(self) -> bytes | None:
        if self._refused is None and len(self._held) >= 4:
            length = int.from_bytes(self._held[:4], "big")
            if length <= self._limit:
                if len(self._held) < 4 + length:
                    return None
                body = self._held[4 : 4 + length]
                self._held = self._held[4 + length :]
                return body
            self._refused = length
            self._held = b""
        if self._refused is not None:
            raise FrameTooLarge(self._refused, self._limit)
        return None

    @property
    def pending(self) -> int:
        return len(self._held)
