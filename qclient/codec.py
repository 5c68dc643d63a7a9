"""Payload packing: the one place where values become bytes and bytes become values."""

from __future__ import annotations

from typing import Any, Final

from qcore.errors import SerializationError
from qcore.limits import MAX_DATA_BYTES, MAX_DATA_CHARS
from qcore.wire.jsontext import fits
from qcore.wire.packing import Unreadable, pack, unpack, unpack_frame

__all__ = [
    "NIL",
    "SIZE_BOUND",
    "Encoded",
    "Unreadable",
    "fits",
    "pack_payload",
    "readable",
    "unpack_frame",
    "unpack_payload",
]


class Encoded:
    """A value that is MessagePack already; spliced as it is.

    ``data`` must hold exactly one value; this is not checked again.
    """

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


#: What bounds data and results, in words.
SIZE_BOUND: Final = f"the limit is {MAX_DATA_CHARS:,} characters as JSON, and {MAX_DATA_BYTES:,} bytes"

NIL: Final = b"\xc0"


def pack_payload(value: Any, *, typed: bool = False, int64: bool = True) -> bytes:
    """Pack job data or a result; ``SerializationError`` before anything was sent."""
    if value is None:
        return NIL
    if type(value) is Encoded:
        return value.data
    return pack(value, typed=typed, int64=int64)


def unpack_payload(data: Any) -> Any:
    """Unpack what :func:`pack_payload` or another client packed."""
    return unpack(data, int_keys=True)


def readable(value: Any) -> Any:
    """A payload of a reply for whoever asked for it; ``SerializationError`` when it cannot be read here."""
    if type(value) is Unreadable:
        raise SerializationError(f"the value cannot be read here: {value.why}")
    return value
