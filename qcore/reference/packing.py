"""MessagePack in plain Python: the scanner, the writer, packing and unpacking.

Written to be read beside the compiled modules, and to disagree with them loudly
in tests. Typed buffers are read and written for memoryview and array.array only.
"""

from __future__ import annotations

import math
import re
import struct
import sys
from array import array
from datetime import UTC, datetime, timedelta
from typing import Any

from qcore.errors import ProtocolError, SerializationError

MAX_NESTING = 512
MAX_FRAME_BYTES = 64 * 1024 * 1024
INT64, TYPED, UNDEFINED = 1, 2, 4
EXT_UNDEFINED, EXT_TYPED, EXT_TIMESTAMP = 0, 0x51, -1

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ORDER = "<" if sys.byteorder == "little" else ">"
_ABSENT = object()

# First byte -> (struct format of a number, or width of a length).
_NUMBERS = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_LENGTHS = {
    first: width
    for firsts, width in ((b"\xc4\xc7\xd9", 1), (b"\xc5\xc8\xda\xdc\xde", 2), (b"\xc6\xc9\xdb\xdd\xdf", 4))
    for first in firsts
}


class _Token:
    """One head: what kind of value begins, its number or length, and its extension type."""

    __slots__ = ("code", "first", "kind", "size", "value")

    def __init__(self, kind: str, first: int, size: int = 0, value: object = None, code: int = 0) -> None:
        self.kind = kind
        self.first = first
        self.size = size
        self.value = value
        self.code = code


def _take(data: bytes, pos: int, n: int) -> bytes:
    if n > len(data) - pos:
        raise ProtocolError("the bytes end inside a value")
    return data[pos : pos + n]


def _head(data: bytes, pos: int) -> tuple[_Token, int]:
    """Read the head of the value at ``pos``: everything before its body."""
    first = _take(data, pos, 1)[0]
    pos += 1
    if first < 0x80:
        return _Token("scalar", first, value=first), pos
    if first >= 0xE0:
        return _Token("scalar", first, value=first - 256), pos
    if first < 0x90:
        return _Token("map", first, first & 0x0F), pos
    if first < 0xA0:
        return _Token("list", first, first & 0x0F), pos
    if first < 0xC0:
        return _Token("str", first, first & 0x1F), pos
    if first in (0xC0, 0xC2, 0xC3):
        return _Token("scalar", first, value={0xC0: None, 0xC2: False, 0xC3: True}[first]), pos
    if first == 0xC1:
        raise ProtocolError("the byte c1 has no meaning")
    if first in _NUMBERS:
        form = _NUMBERS[first]
        size = struct.calcsize(form)
        return _Token("scalar", first, value=struct.unpack(form, _take(data, pos, size))[0]), pos + size
    if 0xD4 <= first <= 0xD8:
        size = 1 << (first - 0xD4)
        code = int.from_bytes(_take(data, pos, 1 + size)[:1], "big", signed=True)
        return _Token("ext", first, size, code=code), pos + 1
    width = _LENGTHS[first]
    size = int.from_bytes(_take(data, pos, width), "big")
    pos += width
    if first <= 0xC6:
        return _Token("bin", first, size), pos
    if first <= 0xC9:
        code = int.from_bytes(_take(data, pos, 1), "big", signed=True)
        return _Token("ext", first, size, code=code), pos + 1
    kind = "str" if first <= 0xDB else "list" if first <= 0xDD else "map"
    return _Token(kind, first, size), pos


def _check_timestamp(body: bytes) -> tuple[int, int]:
    """Seconds and nanoseconds of a timestamp extension."""
    if len(body) == 4:
        return int.from_bytes(body, "big"), 0
    if len(body) == 8:
        word = int.from_bytes(body, "big")
        seconds, nanos = word & (2**34 - 1), word >> 34
    elif len(body) == 12:
        nanos, seconds = struct.unpack(">Iq", body)
    else:
        raise ProtocolError("an extension type is unknown or malformed")
    if nanos > 999_999_999:
        raise ProtocolError("an extension type is unknown or malformed")
    return seconds, nanos


def _check_text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise ProtocolError("a text is not valid UTF-8") from None


def skip(data: bytes, pos: int = 0) -> tuple[int, int]:
    """Step over one value; return the position after it and the notes."""
    notes = 0
    open_counts = [1]
    while open_counts:
        if open_counts[-1] == 0:
            open_counts.pop()
            continue
        open_counts[-1] -= 1
        token, pos = _head(data, pos)
        if token.first in (0xCF, 0xD3):
            notes |= INT64
        if token.kind in ("str", "bin", "ext"):
            body = _take(data, pos, token.size)
            pos += token.size
            if token.kind == "str":
                _check_text(body)
            elif token.kind == "ext":
                if token.code == EXT_UNDEFINED:
                    notes |= UNDEFINED
                elif token.code == EXT_TYPED:
                    notes |= TYPED
                elif token.code == EXT_TIMESTAMP:
                    _check_timestamp(body)
                else:
                    raise ProtocolError("an extension type is unknown or malformed")
        elif token.kind in ("list", "map"):
            if len(open_counts) > MAX_NESTING:
                raise ProtocolError(f"nested deeper than {MAX_NESTING} levels")
            count = token.size * (2 if token.kind == "map" else 1)
            if count > len(data) - pos:
                raise ProtocolError("the bytes end inside a value")
            open_counts.append(count)
    return pos, notes


def unpack(data: bytes, *, typed: bool = True, int_keys: bool = False) -> Any:
    """Return the one value that ``data`` holds."""
    value, pos = _read(data, 0, 0, typed, int_keys)
    if pos != len(data):
        raise ProtocolError(f"{len(data) - pos} bytes follow the value")
    return None if value is _ABSENT else value


def _read(data: bytes, pos: int, depth: int, typed: bool, int_keys: bool) -> tuple[Any, int]:
    token, pos = _head(data, pos)
    if token.kind == "scalar":
        return token.value, pos
    if token.kind in ("str", "bin", "ext"):
        body = _take(data, pos, token.size)
        pos += token.size
        if token.kind == "bin":
            return body, pos
        return (_check_text(body) if token.kind == "str" else _read_ext(token.code, body, typed)), pos
    if depth == MAX_NESTING:
        raise ProtocolError(f"nested deeper than {MAX_NESTING} levels")
    if token.size * (2 if token.kind == "map" else 1) > len(data) - pos:
        raise ProtocolError("the bytes end inside a value")
    if token.kind == "list":
        items = []
        for _ in range(token.size):
            item, pos = _read(data, pos, depth + 1, typed, int_keys)
            items.append(None if item is _ABSENT else item)
        return items, pos
    out: dict[object, object] = {}
    for _ in range(token.size):
        key, pos = _read(data, pos, MAX_NESTING, typed, int_keys)
        if not isinstance(key, str) and not (int_keys and type(key) is int):
            raise ProtocolError(f"a map key is not a str but {type(key).__name__}")
        item, pos = _read(data, pos, depth + 1, typed, int_keys)
        if item is not _ABSENT:
            out[key] = item
    return out, pos


def _read_ext(code: int, body: bytes, typed: bool) -> object:
    if code == EXT_UNDEFINED:
        return _ABSENT
    if code == EXT_TIMESTAMP:
        seconds, nanos = _check_timestamp(body)
        try:
            return _EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)
        except OverflowError:
            raise SerializationError("a timestamp lies outside the years 1 to 9999") from None
    if code == EXT_TYPED:
        return _read_typed(body, typed)
    raise ProtocolError("an extension type is unknown or malformed")


def _read_typed(body: bytes, typed: bool) -> object:
    head = None
    try:
        end, notes = skip(body)
        if not notes & TYPED:
            head = unpack(body[:end])
    except ProtocolError:
        end = 0
    match head:
        case [str(kind), str() | list() as form, list(shape)] if len(shape) <= 64 and all(
            type(d) is int and 0 <= d <= MAX_FRAME_BYTES for d in shape
        ):
            pass
        case _:
            raise ProtocolError("the header of a typed buffer is malformed")
    data = body[end:]
    if not typed:
        return data
    found = re.fullmatch(r"([<>|])([a-zA-Z?])([1-9][0-9]?)", form) if isinstance(form, str) else None
    if found is None or kind not in ("v", "a"):
        raise ProtocolError("a typed buffer has an unknown element type")
    order, code, size = found[1], found[2], int(found[3])
    if len(data) != math.prod(shape) * size:
        raise ProtocolError("a typed buffer has another length than its shape says")
    if order != _ORDER and size > 1:
        data = b"".join(data[i : i + size][::-1] for i in range(0, len(data), size))
    if kind == "a":
        items = array(code)
        items.frombytes(data)
        return items
    view: Any = memoryview(data)
    return view.cast(code) if len(shape) == 1 else view.cast(code, shape)


def pack(value: object, *, typed: bool = False, int64: bool = True) -> bytes:
    """Return ``value`` as MessagePack, by the shortest form of everything."""
    return _pack(value, 0, typed, int64)


def write(value: object) -> bytes:
    """Return ``value`` as the writer of replies does: integers beyond 32 bits as floats, at any loss."""
    return pack(_narrow(value))


def _narrow(value: object) -> object:
    if isinstance(value, int) and not -(2**31) <= value < 2**32:
        try:
            return float(value)
        except OverflowError:
            raise SerializationError("an integer is too large for a float64") from None
    if isinstance(value, list | tuple):
        return [_narrow(item) for item in value]
    if isinstance(value, dict):
        return {key: _narrow(item) for key, item in value.items()}
    return value


def _sized(n: int, fix: tuple[int, int] | None, *wider: tuple[int, str]) -> bytes:
    """A head with a length: the fixed form if it fits, else the narrowest that does."""
    if fix is not None and n < fix[1]:
        return bytes([fix[0] | n])
    for first, form in wider:
        if n < 1 << (8 * struct.calcsize(form)):
            return bytes([first]) + struct.pack(">" + form, n)
    raise SerializationError(f"a length of {n} is more than MessagePack can hold")


def _pack_int(value: int, int64: bool) -> bytes:
    if -32 <= value < 128:
        return struct.pack(">b", value)
    forms = (
        [(0xCC, ">B", 8), (0xCD, ">H", 16), (0xCE, ">I", 32), (0xCF, ">Q", 64)]
        if value >= 0
        else [(0xD0, ">b", 7), (0xD1, ">h", 15), (0xD2, ">i", 31), (0xD3, ">q", 63)]
    )
    for first, form, bits in forms:
        if bits > 32 and not int64:
            break
        if -(1 << bits) <= value < 1 << bits:
            return bytes([first]) + struct.pack(form, value)
    if not int64 and -(2**53) <= value <= 2**53:
        return b"\xcb" + struct.pack(">d", value)
    raise SerializationError("an integer is too large")


def _pack(value: object, depth: int, typed: bool, int64: bool) -> bytes:
    if value is None:
        return b"\xc0"
    if value is True or value is False:
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return _pack_int(value, int64)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        try:
            text = value.encode()
        except UnicodeEncodeError:
            raise SerializationError("a text holds a lone surrogate, which UTF-8 cannot carry") from None
        return _sized(len(text), (0xA0, 32), (0xD9, "B"), (0xDA, "H"), (0xDB, "I")) + text
    if isinstance(value, bytes | bytearray):
        return _sized(len(value), None, (0xC4, "B"), (0xC5, "H"), (0xC6, "I")) + value
    if isinstance(value, dict | list | tuple):
        if depth == MAX_NESTING:
            raise SerializationError(f"nested deeper than {MAX_NESTING} levels, or a value contains itself")
        if not isinstance(value, dict):
            head = _sized(len(value), (0x90, 16), (0xDC, "H"), (0xDD, "I"))
            return head + b"".join(_pack(item, depth + 1, typed, int64) for item in value)
        parts = [_sized(len(value), (0x80, 16), (0xDE, "H"), (0xDF, "I"))]
        for key, item in value.items():
            if not isinstance(key, str):
                raise SerializationError(f"a map key must be a str, not {type(key).__name__}")
            parts += (_pack(key, depth, typed, int64), _pack(item, depth + 1, typed, int64))
        return b"".join(parts)
    if isinstance(value, datetime):
        return _pack_datetime(value)
    if isinstance(value, memoryview):
        return _pack_view(value, typed)
    if isinstance(value, array):
        if not typed:
            return _pack(value.tobytes(), depth, typed, int64)
        return _pack_typed("a", f"{_ORDER}{value.typecode}{value.itemsize}", [len(value)], value.tobytes())
    raise SerializationError(f"cannot carry a value of type {type(value).__name__}")


def _pack_ext(code: int, body: bytes) -> bytes:
    if len(body) in (1, 2, 4, 8, 16):
        head = bytes([0xD4 + len(body).bit_length() - 1])
    else:
        head = _sized(len(body), None, (0xC7, "B"), (0xC8, "H"), (0xC9, "I"))
    return head + struct.pack(">b", code) + body


def _pack_datetime(value: datetime) -> bytes:
    if value.utcoffset() is None:
        raise SerializationError("a naive datetime names no instant; give it a tzinfo")
    since = value - _EPOCH
    seconds, nanos = since.days * 86400 + since.seconds, since.microseconds * 1000
    if 0 <= seconds < 2**32 and nanos == 0:
        return _pack_ext(EXT_TIMESTAMP, struct.pack(">I", seconds))
    if 0 <= seconds < 2**34:
        return _pack_ext(EXT_TIMESTAMP, struct.pack(">Q", nanos << 34 | seconds))
    return _pack_ext(EXT_TIMESTAMP, struct.pack(">Iq", nanos, seconds))


def _pack_view(value: memoryview, typed: bool) -> bytes:
    if any(code in "OP&X" for code in re.sub(":[^:]*:", "", value.format)):
        raise SerializationError("a buffer of object references or pointers cannot be carried")
    if not typed or (value.ndim == 1 and value.format == "B"):
        return _pack(value.tobytes(), 0, typed, True)
    code = value.format.removeprefix("@")
    if len(code) != 1 or code not in "bBhHiIlLqQnNfd?c":
        raise SerializationError(f"a memoryview of format {value.format!r} would not survive")
    shape = list(value.shape or ())
    if value.ndim != 1 and 0 in shape:
        raise SerializationError("an empty memoryview of several dimensions would not survive")
    return _pack_typed("v", f"{_ORDER}{code}{value.itemsize}", shape, value.tobytes())


def _pack_typed(kind: str, form: str, shape: list[int], data: bytes) -> bytes:
    return _pack_ext(EXT_TYPED, pack([kind, form, shape]) + data)
