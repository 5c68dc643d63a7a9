"""The compiled wire layer against its plain twin and against msgpack, on anything."""

from __future__ import annotations

import array
import datetime as dt
import math
import re
from collections.abc import Callable
from typing import Any

import msgpack
from hypothesis import example, given
from hypothesis import strategies as st

from qcore.errors import ProtocolError, SerializationError
from qcore.reference import packing as plain
from qcore.wire import packing, scan
from qcore.wire.writer import Writer

TEXT = st.text("ab\0é☃\U0001f680", max_size=40)
MOMENTS = st.datetimes(timezones=st.sampled_from([dt.UTC, dt.timezone(dt.timedelta(hours=-9, minutes=-30))]))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.integers(-300, 70_000)
    | st.floats()
    | TEXT
    | st.binary(max_size=40)
)
PLAIN = st.recursive(
    SCALARS | MOMENTS,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(TEXT, inner, max_size=20),
    max_leaves=30,
)
PECULIAR: list[object] = [
    *(2**64, -(2**63) - 1, "\ud800", {1: 2}, {"k": {1, 2}}, object(), dt.datetime(2026, 1, 1)),
    *(array.array("d", [1.5]), memoryview(b"abcd").cast("h"), memoryview(b"abcd")[::2], bytearray(b"x")),
]
ODD = st.recursive(
    SCALARS | st.integers(0, len(PECULIAR) - 1).map(PECULIAR.__getitem__),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)

# Bytes that look like messages: heads of every kind, with lengths near the truth.
PIECES = (
    st.sampled_from([bytes([b]) for b in range(256)])
    | st.sampled_from(
        [
            *(
                b"\xd4\x00\x00",
                b"\xd6\xff\0\0\0\x01",
                b"\xd7\xff\xff\xff\xff\xff\0\0\0\0",
                b"\xc7\x0c\xff" + b"\0" * 12,
            ),
            *(
                b"\xc7\x0c\x51\x93\xa1v\xa3|B1\x91\x03abc",
                b"\xd4\x51\xc0",
                b"\xd5\x51\x93\xa1",
                b"\xd4\x07\x00",
            ),
            *(b"\xa1k", b"\x81\xa1k", b"\x92", b"\xde\x00\x01", b"\xdd\0\0\0\x02", b"\xd9\x02", b"\xc4\x01"),
            *(b"\xc3\xa9", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xcf" + b"\xff" * 8, b"\xcb" + b"\0" * 8),
        ]
    )
    | st.binary(max_size=6)
)
BYTES = st.lists(PIECES, max_size=12).map(b"".join)


def outcome(call: Callable[..., Any], *args: Any, **options: Any) -> tuple[str, Any]:
    """What a call gives, in a form that compares: NaN equals NaN, 1 is not True."""
    try:
        return "value", comparable(call(*args, **options))
    except (ProtocolError, SerializationError) as error:
        return "error", (ProtocolError if isinstance(error, ProtocolError) else SerializationError)


def comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return [(comparable(key), comparable(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(comparable, value)]
    if isinstance(value, memoryview):
        return "memoryview", value.format, value.shape, value.tobytes()
    if isinstance(value, array.array):
        return "array", value.typecode, value.tobytes()
    if isinstance(value, float):
        return "float", "nan" if math.isnan(value) else value.hex()
    return type(value).__name__, value


@given(PLAIN)
def test_plain_values_agree_with_msgpack(value: Any) -> None:
    data = packing.pack(value)
    assert data == msgpack.packb(value, use_bin_type=True, datetime=True)
    assert data == plain.pack(value)
    assert comparable(packing.unpack(data)) == comparable(msgpack.unpackb(data, timestamp=3))
    assert comparable(packing.unpack(data)) == comparable(plain.unpack(data))
    assert scan.skip(data) == plain.skip(data)
    assert scan.skip(data)[0] == len(data)


@given(ODD, st.booleans(), st.booleans())
def test_odd_values_agree_with_the_twin(value: Any, typed: bool, int64: bool) -> None:
    result = outcome(packing.pack, value, typed=typed, int64=int64)
    assert result == outcome(plain.pack, value, typed=typed, int64=int64)


@given(ODD)
def test_the_writer_agrees_with_the_twin(value: Any) -> None:
    def written(value: Any) -> bytes:
        writer = Writer()
        writer.value(value)
        return writer.take()

    supported = (dict, list, tuple, str, bytes, int, float, type(None))

    def within(value: Any) -> bool:
        if isinstance(value, dict):
            return all(within(item) for item in value.values())
        if isinstance(value, list | tuple):
            return all(within(item) for item in value)
        return isinstance(value, supported)

    if within(value):
        assert outcome(written, value) == outcome(plain.write, value)


@given(BYTES)
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\xdf\x80\0\0\0" + b"\0" * 9)
@example(b"\xc7\x0c\x51\x93\xa1v\xa3|B1\x91\x03abc")
def test_any_bytes_agree_with_the_twin(data: bytes) -> None:
    """Every byte string is a value for both or the same kind of error for both."""
    assert outcome(scan.skip, data) == outcome(plain.skip, data)
    for options in ({}, {"typed": False}, {"int_keys": True}):
        assert outcome(packing.unpack, data, **options) == outcome(plain.unpack, data, **options)


@given(BYTES)
def test_what_is_let_through_can_be_read(data: bytes) -> None:
    """A value that the scanner admits is read by a client, but for keys, dates and buffers of no meaning."""
    try:
        end, _ = scan.skip(data)
    except ProtocolError:
        assert outcome(packing.unpack, data)[0] == "error"
        return
    text = ""
    try:
        packing.unpack(data[:end], int_keys=True)
    except (ProtocolError, SerializationError) as error:
        text = str(error)
    # A container as a key counts as too deep, for it can be no key at any depth.
    assert re.search("^$|map key|typed buffer|nested|years|counterpart|numpy", text)


@given(BYTES)
def test_requests_are_read_or_refused(data: bytes) -> None:
    """The reader of requests lets through no more than the scanner, whatever comes."""
    kind, _ = outcome(packing.unpack_request, data)
    if kind == "value":
        assert scan.skip(data)[0] == len(data)


@given(st.binary(max_size=60))
def test_utf8_is_what_python_says(body: bytes) -> None:
    data = bytes(msgpack.packb(body, use_bin_type=False) or b"")
    try:
        body.decode()
    except UnicodeDecodeError:
        assert outcome(scan.skip, data) == ("error", ProtocolError)
    else:
        assert scan.skip(data)[0] == len(data)
