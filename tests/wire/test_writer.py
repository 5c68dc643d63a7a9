"""Golden bytes of the writer, both sides of each limit."""

from __future__ import annotations

import math
import pickle
import struct

import msgpack
import pytest

from qcore.errors import ProtocolError, SerializationError
from qcore.wire.writer import Packed, Writer


def written(value: object) -> bytes:
    writer = Writer()
    writer.value(value)
    return writer.take()


@pytest.mark.parametrize(
    ("value", "head"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "cc80"),
        (255, "ccff"),
        (256, "cd0100"),
        (65535, "cdffff"),
        (65536, "ce00010000"),
        (4294967295, "ceffffffff"),
        (4294967296, "cb41f0000000000000"),
        (-1, "ff"),
        (-32, "e0"),
        (-33, "d0df"),
        (-128, "d080"),
        (-129, "d1ff7f"),
        (-32768, "d18000"),
        (-32769, "d2ffff7fff"),
        (-2147483648, "d280000000"),
        (-2147483649, "cbc1e0000000200000"),
        (2**64, "cb43f0000000000000"),
        (0.0, "cb0000000000000000"),
        (-0.0, "cb8000000000000000"),
        (1.5, "cb3ff8000000000000"),
        (math.inf, "cb7ff0000000000000"),
        (None, "c0"),
        (False, "c2"),
        (True, "c3"),
        ("", "a0"),
        ("é", "a2c3a9"),
        (b"", "c400"),
        ([], "90"),
        ((1, 2), "920102"),
        ({}, "80"),
        ({"a": 1}, "81a16101"),
    ],
)
def test_golden_bytes(value: object, head: str) -> None:
    assert written(value).hex() == head


@pytest.mark.parametrize("n", [31, 32, 255, 256, 65535, 65536])
def test_lengths_of_text_and_bytes(n: int) -> None:
    for value in ("x" * n, b"y" * n):
        assert written(value) == msgpack.packb(value, use_bin_type=True)


@pytest.mark.parametrize("n", [15, 16, 65535, 65536])
def test_lengths_of_containers(n: int) -> None:
    for value in ([None] * n, tuple([None] * n), {str(i): i for i in range(n)}):
        assert written(value) == msgpack.packb(value, use_bin_type=True)


def test_a_frame_begins_with_its_length() -> None:
    writer = Writer()
    writer.frame({"ok": True})
    writer.frame(None)
    assert writer.tobytes().hex() == "0000000581a26f6bc3" + "00000001c0"
    assert len(writer) == 14


def test_packed_is_spliced() -> None:
    assert written({"d": Packed(b"\xd3" + b"\x00" * 8)}) == b"\x81\xa1d\xd3" + b"\x00" * 8


def test_packed_holds_one_value() -> None:
    for bad in (b"", b"\x91", b"\xc0\xc0", b"\xc1", b"\xa1\xff"):
        with pytest.raises(ProtocolError):
            Packed(bad)
    assert Packed(b"\x01") == Packed(b"\x01")
    assert Packed(b"\x01") != Packed(b"\x02")
    assert len({Packed(b"\x01"), Packed(b"\x01")}) == 1
    assert pickle.loads(pickle.dumps(Packed(b"\x01"))) == Packed(b"\x01")  # noqa: S301


@pytest.mark.parametrize("value", [{1: 2}, {"a": {b"k": 1}}, {1, 2}, object(), "\ud800", 10**400])
def test_refused_value_leaves_nothing_behind(value: object) -> None:
    writer = Writer()
    writer.value("before")
    for call in (writer.value, writer.frame):
        with pytest.raises(SerializationError):
            call([1, "x" * 1000, value])
        assert writer.tobytes() == b"\xa6before"


def test_nesting_bound() -> None:
    value: object = None
    for _ in range(512):
        value = [value]
    assert written(value) == b"\x91" * 512 + b"\xc0"
    with pytest.raises(SerializationError, match="512"):
        written([value])


def test_a_cycle_is_refused() -> None:
    ring: list[object] = []
    ring.append(ring)
    with pytest.raises(SerializationError):
        written(ring)


def test_a_large_buffer_is_given_back() -> None:
    writer = Writer()
    for _ in range(3):
        writer.value(b"x" * 1_000_000)
        assert len(writer.take()) == 1_000_005
        assert len(writer) == 0
    writer.value(1.0)
    assert writer.take() == b"\xcb" + struct.pack(">d", 1.0)
    writer.raw(b"ab")
    writer.clear()
    assert writer.tobytes() == b""
