"""Payload packing: the one place where values become bytes and bytes become values."""

from __future__ import annotations

from typing import Any, Final

import msgpack

from qcore.errors import SerializationError

try:
    from qcore.wire.packing import pack as _pack
    from qcore.wire.packing import unpack as _unpack
except ImportError:  # the compiled packing is not built: plain MessagePack values only
    _packer = msgpack.Packer(use_bin_type=True, datetime=True, autoreset=True)

    def _pack(value: Any, *, typed: bool = False, int64: bool = True) -> bytes:
        try:
            return msgpack.packb(value, use_bin_type=True, datetime=True)
        except (TypeError, ValueError, OverflowError, RecursionError) as exc:
            raise SerializationError(f"value cannot be carried: {exc}") from None

    def _unpack(data: Any, *, typed: bool = True) -> Any:
        return msgpack.unpackb(data, strict_map_key=False, timestamp=3, ext_hook=_ext)


class Encoded:
    """A value that is MessagePack already; spliced as it is.

    ``data`` must hold exactly one value; this is not checked again.
    """

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


NIL: Final = b"\xc0"


def _ext(code: int, data: bytes) -> Any:
    # Extension 0 is how JavaScript peers write "undefined".
    if code == 0:
        return None
    return msgpack.ExtType(code, data)


def pack_payload(value: Any, *, typed: bool = False, int64: bool = True) -> bytes:
    """Pack job data or a result; ``SerializationError`` before anything was sent."""
    if value is None:
        return NIL
    if type(value) is Encoded:
        return value.data
    return _pack(value, typed=typed, int64=int64)


def unpack_payload(data: Any) -> Any:
    """Unpack what :func:`pack_payload` or another client packed."""
    return _unpack(data)


def unpack_frame(body: Any) -> Any:
    """Unpack the body of one reply frame."""
    return msgpack.unpackb(body, strict_map_key=False, timestamp=3, ext_hook=_ext)


pack_plain = msgpack.Packer(use_bin_type=True, autoreset=True, buf_size=1 << 16).pack
