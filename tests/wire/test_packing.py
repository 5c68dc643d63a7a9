"""Packing against msgpack, both sides of each limit, and buffers of every kind."""

from __future__ import annotations

import array
import datetime as dt
import enum
import json
import math
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgpack
import numpy as np
import pytest

from qcore.errors import ProtocolError, SerializationError
from qcore.limits import MAX_FRAME_BYTES
from qcore.wire.packing import pack, pack_frame, take_name, unpack, unpack_reply, unpack_request
from qcore.wire.scan import skip
from qcore.wire.writer import Packed

ROWS = json.loads((Path(__file__).parents[1] / "data" / "payloads.json").read_text())["items"]
BERLIN = dt.timezone(dt.timedelta(hours=1))


def by_msgpack(value: object) -> bytes:
    packed = msgpack.packb(value, use_bin_type=True, datetime=True)
    assert packed is not None
    return packed


# --- plain values ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        *[
            sign * (2**bits + step)
            for bits in (0, 5, 7, 8, 15, 16, 31, 32, 53)
            for step in (-1, 0, 1)
            for sign in (1, -1)
        ],
        *[2**63 - 1, 2**63, 2**64 - 1, -(2**63)],
        *[0.0, -0.0, 1.5, 5e-324, 1.7976931348623157e308, math.inf, -math.inf],
        *[None, True, False, "", "é", "\0", "\U0010ffff", b"", (), [], {}],
        *["x" * n for n in (31, 32, 255, 256, 65535, 65536)],
        *["é" * n for n in (15, 16, 127, 128)],
        *[b"x" * n for n in (255, 256, 65535, 65536)],
        *[[None] * n for n in (15, 16, 65535, 65536)],
        *[{str(i): i for i in range(n)} for n in (15, 16, 65535, 65536)],
        dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
        dt.datetime(2026, 3, 29, 2, 30, tzinfo=BERLIN),
        dt.datetime(2026, 3, 29, 2, 30, 0, 123456, tzinfo=BERLIN),
        dt.datetime(2106, 2, 7, 6, 28, 15, tzinfo=dt.UTC),
        dt.datetime(2106, 2, 7, 6, 28, 16, tzinfo=dt.UTC),
        dt.datetime(2514, 5, 30, 1, 53, 4, tzinfo=dt.UTC),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
        dt.datetime(1, 1, 1, tzinfo=dt.UTC),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
    ],
    ids=lambda v: repr(v)[:40],
)
def test_bytes_are_those_of_msgpack(value: object) -> None:
    data = pack(value)
    assert data == by_msgpack(value)
    assert pack(value, typed=True) == data
    assert pack_frame(value) == len(data).to_bytes(4, "big") + data
    assert unpack(data) == (list(value) if isinstance(value, tuple) else value)
    assert skip(data)[0] == len(data)


def test_nan_travels() -> None:
    assert pack(math.nan).hex() == "cb7ff8000000000000"
    assert math.isnan(unpack(pack(math.nan)))


def test_subclasses_of_plain_types_go_as_those() -> None:
    class Color(enum.IntEnum):
        RED = 1

    class Word(str):
        __slots__ = ()

    pair = namedtuple("pair", "a b")
    ordered = OrderedDict(a=1, b=2)
    ordered.move_to_end("a")
    value = {"a": Color.RED, "b": Word("x"), "c": pair(1, 2), "d": ordered}
    assert unpack(pack(value)) == {"a": 1, "b": "x", "c": [1, 2], "d": {"b": 2, "a": 1}}
    assert list(unpack(pack(value))["d"]) == ["b", "a"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2**64, "64 bits"),
        (-(2**63) - 1, "64 bits"),
        ("\ud800", "surrogate"),
        ({"\ud800": 1}, "surrogate"),
        ({1: "a"}, "map key must be a str, not int"),
        ({(1, 2): 3}, "map key must be a str, not tuple"),
        ({None: 3}, "map key must be a str, not NoneType"),
        ({1, 2}, "type set"),
        (object(), "type object"),
        (1j, "type complex"),
        (Decimal("0.10"), "type Decimal"),
        (UUID(int=1), "type UUID"),
        (dt.datetime(2026, 1, 1), "naive"),
        (dt.date(2026, 1, 1), "type date"),
        (dt.timedelta(1), "type timedelta"),
        (msgpack.ExtType(5, b""), None),
        (ValueError("x"), "type ValueError"),
    ],
    ids=lambda v: repr(v)[:18],
)
def test_what_cannot_be_carried_is_refused(value: object, text: str | None) -> None:
    if isinstance(value, msgpack.ExtType):
        # A named tuple to every packer; it goes as the list it is.
        assert unpack(pack(value)) == [5, b""]
        return
    for wrapped in (value, [value], {"k": [value]}):
        with pytest.raises(SerializationError, match=text):
            pack(wrapped)
    assert pack(1) == b"\x01"


def test_cycles_are_refused_at_once() -> None:
    ring: list[object] = []
    ring += [ring, ring]
    loop: dict[str, object] = {}
    loop["self"] = loop
    for value in (ring, loop):
        with pytest.raises(SerializationError, match="contains itself"):
            pack(value)


@pytest.mark.parametrize(
    "wrap", [lambda v: [v], lambda v: (v,), lambda v: {"k": v}, lambda v: OrderedDict(k=v)]
)
def test_nesting_bound_both_ways(wrap: Callable[[object], object]) -> None:
    value: object = 1
    for _ in range(512):
        value = wrap(value)
    data = pack(value)
    assert pack(unpack(data)) == data
    with pytest.raises(SerializationError, match="512"):
        pack(wrap(value))
    with pytest.raises(ProtocolError, match="512"):
        unpack(b"\x91" + data)
    with pytest.raises(ProtocolError, match="512"):
        unpack(b"\x91" * 1_000_000)


def test_size_bound() -> None:
    half = b"x" * (MAX_FRAME_BYTES // 2)
    for value in ([half, half, b"x"], [half, bytearray(half), b"xx"], [half, "x" * len(half), {}]):
        with pytest.raises(SerializationError, match="larger than 67108864 bytes"):
            pack(value)
        with pytest.raises(SerializationError, match="larger than 67108864 bytes"):
            pack_frame(value)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (2**31, "ce80000000"),
        (2**32 - 1, "ceffffffff"),
        (2**32, "cb41f0000000000000"),
        (-(2**31), "d280000000"),
        (-(2**31) - 1, "cbc1e0000000200000"),
        (2**53, "cb4340000000000000"),
        (-(2**53), "cbc340000000000000"),
    ],
)
def test_without_int64_integers_go_as_exact_floats(value: int, data: str) -> None:
    assert pack(value, int64=False).hex() == data


@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1, 2**54, 2**63, 2**64, -(2**63)])
def test_without_int64_inexact_integers_are_refused(value: int) -> None:
    with pytest.raises(SerializationError, match=r"2\*\*53"):
        pack([value], int64=False)


def test_packed_is_spliced() -> None:
    assert pack({"d": Packed(b"\x93\1\2\3")}) == b"\x81\xa1d\x93\1\2\3"


def test_a_value_changed_while_packed_is_refused() -> None:
    class Zone(dt.tzinfo):
        def utcoffset(self, when: dt.datetime | None) -> dt.timedelta:
            victim.clear()
            return dt.timedelta(0)

        def dst(self, when: dt.datetime | None) -> None:
            return None

        def tzname(self, when: dt.datetime | None) -> None:
            return None

    moment = dt.datetime(2026, 1, 1, tzinfo=Zone())
    victim: Any = [moment, 1, 2]
    with pytest.raises(SerializationError, match="changed"):
        pack(victim)
    victim = {"a": moment, "b": 1, "c": 2}
    with pytest.raises(SerializationError, match="changed"):
        pack(victim)


# --- reading --------------------------------------------------------------------------------


def test_undefined_is_none_in_lists_and_absent_in_maps() -> None:
    undefined = b"\xd4\x00\x00"
    assert unpack(undefined) is None
    assert unpack(b"\x93\x01" + undefined + b"\x02") == [1, None, 2]
    assert unpack(b"\x82\xa1a" + undefined + b"\xa1b\xc0") == {"b": None}


def test_keys() -> None:
    data = bytes.fromhex("8201a16102a162")
    with pytest.raises(ProtocolError, match="map key is not a str but int"):
        unpack(data)
    assert unpack(data, int_keys=True) == {1: "a", 2: "b"}
    for key in (b"\xc0", b"\xc3", b"\xcb" + b"\0" * 8, b"\xc4\x00", b"\x90", b"\x80", b"\xd4\x00\x00"):
        with pytest.raises(ProtocolError):
            unpack(b"\x81" + key + b"\x01", int_keys=True)
    long, short = "k" * 40, "é"
    assert unpack(pack({long: 1, short: 2, "": 3})) == {long: 1, short: 2, "": 3}
    assert unpack(b"\x82\xa1a\x01\xa1a\x02") == {"a": 2}


def test_many_keys_survive_the_key_cache() -> None:
    for size in (1, 5, 31, 32, 33):
        value = {f"{i}".zfill(size): i for i in range(3000)}
        for _ in range(2):
            assert unpack(pack(value)) == value


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x91",
        b"\xa1\xff",
        b"\x01\x02",
        b"\xd4\x07\x00",
        b"\xdd\xff\xff\xff\xff",
        b"\xd4\xff\x00",
    ],
    ids=bytes.hex,
)
def test_damaged_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpack(data)


def test_timestamps_outside_the_years_of_datetime() -> None:
    for seconds in (2**62, -(2**62), 253402300800, -62135596801):
        data = b"\xc7\x0c\xff\0\0\0\0" + seconds.to_bytes(8, "big", signed=True)
        assert skip(data)[0] == len(data)
        with pytest.raises(SerializationError, match="years"):
            unpack(data)


def test_any_contiguous_buffer_is_read() -> None:
    data = pack({"a": [1, "x"]})
    buffers: tuple[Any, ...] = (
        bytearray(data),
        memoryview(data),
        array.array("B", data),
        np.frombuffer(data, "u1"),
    )
    for buffer in buffers:
        assert unpack(buffer) == {"a": [1, "x"]}
    with pytest.raises(SerializationError):
        unpack(memoryview(data)[::2])
    with pytest.raises(TypeError):
        unpack("text")  # type: ignore[arg-type]


# --- requests -------------------------------------------------------------------------------


def test_payloads_of_a_request_stay_unopened() -> None:
    request = {"cmd": "PUSH", "data": {"x": [1, {"data": 2}]}, "result": 5, "n": {"data": 1}, "results": 7}
    got = unpack_request(pack(request))
    assert got == {
        **request,
        "data": Packed(pack(request["data"])),
        "result": Packed(b"\x05"),
    }
    got = unpack_request(
        pack({"jobs": [{"name": "n", "data": {"k": b"x"}}, {"data": None}], "results": [1, None]})
    )
    assert got == {
        "jobs": [{"name": "n", "data": Packed(pack({"k": b"x"}))}, {"data": Packed(b"\xc0")}],
        "results": [Packed(b"\x01"), Packed(b"\xc0")],
    }
    for size in (15, 16, 70_000):
        assert unpack_request(pack({"results": [1] * size}))["results"] == [Packed(b"\x01")] * size


def test_undefined_payloads_of_a_request_are_absent() -> None:
    for undefined in (b"\xd4\x00\x00", b"\xc7\x01\x00\x00", b"\xc7\x00\x00"):
        assert unpack_request(b"\x82\xa4data" + undefined + b"\xa1x" + undefined) == {}
        assert unpack_request(b"\x81\xa7results\x91" + undefined) == {"results": [None]}
    kept = b"\xc7\x04\xff\0\0\0\0"
    assert unpack_request(b"\x81\xa4data" + kept) == {"data": Packed(kept)}
    kept = b"\x91\xd4\x00\x00"
    assert unpack_request(b"\x81\xa4data" + kept) == {"data": Packed(kept)}


@pytest.mark.parametrize(
    "data",
    [
        b"\x81\x01\x02",
        b"\x81\xa1x\xd6\xff\0\0\0\0",
        b"\x81\xa1x\xd4\x51\x00",
        b"\x81\xa4data\xa1\xff",
        b"\x81\xa4data",
        b"\x81\xa7results\x92\xc0",
        b"\x81\xa4data\xd4\x07\x00",
        b"\x81\xa4data" + b"\x91" * 600,
        b"\x80\xc0",
    ],
    ids=bytes.hex,
)
def test_damaged_requests_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpack_request(data)


def test_a_request_of_empty_lists_does_not_fill_the_memory() -> None:
    bomb = b"\x81\xa1x\xdd" + (4_000_000).to_bytes(4, "big") + b"\x90" * 4_000_000
    with pytest.raises(ProtocolError, match="too many values"):
        unpack_request(bomb)


def test_payloads_of_a_reply_stay_unopened() -> None:
    poison = Packed(b"\xc7\x0c\xff\0\0\0\0\x7f" + b"\0" * 7)
    jobs = [{"id": "1", "data": poison, "returnvalue": [1]}, {"id": "2", "data": None}]
    got = unpack_reply(pack({"ok": True, "jobs": jobs, "data": {"pong": True}, "result": {"a": 1}}))
    assert got == {
        "ok": True,
        "jobs": [
            {"id": "1", "data": poison, "returnvalue": Packed(b"\x91\x01")},
            {"id": "2", "data": Packed(b"\xc0")},
        ],
        "data": {"pong": True},
        "result": Packed(b"\x81\xa1a\x01"),
    }
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    assert unpack_reply(pack({"since": moment})) == {"since": moment}
    assert unpack_reply(b"\x81\xa6result\xd4\x00\x00") == {}
    with pytest.raises(ProtocolError):
        unpack_reply(b"\x81\xa6result\xc1")


@pytest.mark.parametrize(
    ("data", "split"),
    [
        ({"name": "legacy", "k": 1}, ("legacy", {"k": 1})),
        (
            {"a": [1, {"name": "inner"}], "name": "é", "b": b"x"},
            ("é", {"a": [1, {"name": "inner"}], "b": b"x"}),
        ),
        ({"name": ""}, ("", {})),
        ({"name": "n"} | {str(i): i for i in range(15)}, ("n", {str(i): i for i in range(15)})),
        ({"name": 5, "k": 1}, None),
        ({"name": None}, None),
        ({"names": "x"}, None),
        ({}, None),
        ([{"name": "x"}], None),
        ("name", None),
    ],
    ids=repr,
)
def test_the_name_of_an_older_client(data: object, split: tuple[str, object] | None) -> None:
    taken = take_name(Packed(pack(data)))
    if split is None:
        assert taken is None
    else:
        assert taken == (split[0], Packed(pack(split[1])))


def test_the_name_among_keys_of_other_types() -> None:
    assert take_name(Packed(b"\x83\x01\x02\xa4name\xa1x\xc0\xc0")) == ("x", Packed(b"\x82\x01\x02\xc0\xc0"))
    assert take_name(Packed(b"\x82\xa4name\xa1x\xa4name\xa1y")) == ("y", Packed(b"\x80"))


# --- buffers --------------------------------------------------------------------------------


def same(a: Any, b: Any) -> Any:
    """Equal value, type, format, shape and byte order."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray | np.generic):
        return bool(a.dtype == b.dtype) and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, memoryview):
        return a.format == b.format and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, array.array):
        return a.typecode == b.typecode and a == b
    return bool(a == b)


GRID = np.arange(24, dtype="f8").reshape(2, 3, 4)
ARRAYS = [
    GRID,
    GRID[::2, 1:, ::-1],
    GRID.T,
    np.asfortranarray(GRID),
    np.array(5, "i4"),
    np.zeros((0, 3)),
    np.zeros((3, 0, 2), "i2"),
    np.array([1, 2], ">i8"),
    np.array([[1, 2], [3, 4]], ">f4")[:, 1],
    np.array([True, False]),
    np.array([1, 2], "f2"),
    np.array([1 + 2j], "c8"),
    np.array(["a", "bb"]),
    np.array(["é"], ">U3"),
    np.array([b"ab", b"c"], "S3"),
    np.array(["2026-01-01", "NaT"], "M8[us]"),
    np.array([5], ">m8[D]"),
    np.array([b"xyz"], "V3"),
    np.array([(1, 2.5, [1, 2])], [("a", "<i4"), ("b", ">f8"), ("c", "u1", (2,))]),
    np.array([(1, 2.5)], np.dtype([("a", "u1"), ("b", "f8")], align=True)),
    np.array([((1, 2),)], [("in", [("x", "i2"), ("y", "i2")])]),
    np.broadcast_to(np.array([1.5]), (4, 2)),
    *[np.array([1, 2], code) for code in "bBhHiIlLqQ"],
]


@pytest.mark.parametrize("value", ARRAYS, ids=lambda v: f"{v.dtype.str}-{v.shape}")
def test_numpy_arrays(value: Any) -> None:
    data = pack(value, typed=True)
    assert skip(data) == (len(data), 2)
    back = unpack(data)
    assert same(back, np.asarray(value))
    if not value.dtype.metadata and value.size:
        assert back.flags.writeable
        assert back.flags.aligned
    raw = value.tobytes()
    assert unpack(data, typed=False) == raw
    assert pack(value) == by_msgpack(raw)
    assert same(unpack(pack({"k": [value, 1]}, typed=True))["k"][0], np.asarray(value))


@pytest.mark.parametrize(
    "value",
    [
        np.float32(0.1),
        np.float64(0.1),
        np.float16(0.5),
        np.int64(5),
        np.uint8(255),
        np.bool_(True),
        np.complex64(1j),
        np.datetime64("2026-01-01", "ns"),
        np.timedelta64(5, "D"),
    ],
    ids=repr,
)
def test_numpy_scalars(value: Any) -> None:
    assert same(unpack(pack(value, typed=True)), value)
    if value.dtype.kind in "biuf":
        assert pack(value) == by_msgpack(value.item())
    else:
        with pytest.raises(SerializationError, match="no plain form"):
            pack(value)


def test_numpy_texts_are_texts() -> None:
    assert pack(np.str_("é")) == pack("é")
    assert pack(np.bytes_(b"x")) == pack(b"x")
    assert pack(np.int64(2**40), int64=False) == pack(2.0**40)


@pytest.mark.parametrize("typed", [False, True])
def test_numpy_refusals(typed: bool) -> None:
    for value in (
        np.array([object()]),
        np.zeros(2, [("a", "O")]),
        np.ma.masked_array([1, 2], [True, False]),
    ):
        with pytest.raises(SerializationError):
            pack([value], typed=typed)
    if typed:
        meta = np.zeros(2, np.dtype("i4", metadata={"unit": "m"}))
        for other in (np.zeros(2, "V0"), meta, np.rec.array([(1,)], [("a", "i4")])):
            with pytest.raises(SerializationError):
                pack(other, typed=True)


def test_large_arrays_are_not_packed_item_by_item() -> None:
    value = np.arange(1_000_000, dtype="i4")
    assert len(pack(value, typed=True)) - value.nbytes < 32
    assert len(pack(value)) == value.nbytes + 5


@pytest.mark.parametrize("code", array.array("b").typecode and "bBhHiIlLqQfdu")
def test_arrays_of_the_standard_library(code: str) -> None:
    for items in ([], [1, 2, 100]):
        value = array.array(code, "héé"[: len(items)] if code == "u" else items)
        data = pack([value], typed=True)
        assert same(unpack(data)[0], value)
        assert pack(value) == by_msgpack(value.tobytes())


def view(value: Any) -> memoryview:
    return memoryview(value)


VIEWS = [
    memoryview(b"abcdef").cast("B", (2, 3)),
    memoryview(b""),
    memoryview(b"").cast("d"),
    memoryview(b"abc").cast("b"),
    memoryview(array.array("d", [1.5, 2.5])),
    memoryview(array.array("d", [1.5, 2.5, 3.5]))[::2],
    memoryview(array.array("h", [1, 2, 3]))[::-1],
    view(GRID),
    view(GRID[::2, ::-1]),
    view(GRID.T),
    view(np.array(5.0)),
    view(np.array([True])),
]


@pytest.mark.parametrize("value", VIEWS, ids=lambda v: f"{v.format}-{v.shape}")
def test_memoryviews(value: memoryview) -> None:
    raw = value.tobytes()
    assert pack(value) == by_msgpack(raw)
    back = unpack(pack(value, typed=True))
    if value.ndim == 1 and value.format == "B":
        assert back == raw
    else:
        assert same(back, value)


def test_memoryviews_that_would_not_survive() -> None:
    big_endian = view(np.array([1, 2], ">i4"))
    assert unpack(pack(big_endian)) == b"\0\0\0\1\0\0\0\2"
    record = view(np.zeros(2, [("O", "i4")]))
    assert unpack(pack(record)) == bytes(8)
    for value in (big_endian, record, view(np.zeros((0, 3))), view(np.array([1], "f2"))):
        with pytest.raises(SerializationError, match="would not survive"):
            pack(value, typed=True)
    released = memoryview(b"x")
    released.release()
    with pytest.raises(SerializationError, match="released"):
        pack(released)
    with pytest.raises(SerializationError, match="references"):
        pack(view(np.array([object()])))


def test_bytes_like_objects_go_as_bytes() -> None:
    for value in (bytearray(b"ab"), memoryview(b"ab"), memoryview(b"aXbX")[::2]):
        assert pack(value) == pack(value, typed=True) == by_msgpack(b"ab")


def typed_frame(header: object, data: bytes) -> bytes:
    return bytes(msgpack.packb(msgpack.ExtType(0x51, by_msgpack(header) + data)) or b"")


def test_the_other_byte_order_is_read() -> None:
    assert unpack(typed_frame(["a", ">i4", [2]], b"\0\0\0\1\0\0\0\2")) == array.array("i", [1, 2])
    back = unpack(typed_frame(["v", ">d8", [1, 2]], np.array([1.5, 2.5], ">f8").tobytes()))
    assert back.tolist() == [[1.5, 2.5]]
    assert back.format == "d"


def test_a_peer_with_other_sizes_is_read() -> None:
    """On a machine where a C long has 4 bytes, code l means what i means here."""
    assert unpack(typed_frame(["a", "<l4", [1]], b"\5\0\0\0")) == array.array("i", [5])
    assert unpack(typed_frame(["v", "<L4", [1]], b"\5\0\0\0")).tolist() == [5]
    with pytest.raises(SerializationError, match="no counterpart"):
        unpack(typed_frame(["a", "<b9", [1]], b"\0" * 9))


@pytest.mark.parametrize(
    ("header", "data"),
    [
        (None, b""),
        ([], b""),
        (["n", "<f8"], b""),
        (["n", "<f8", 1], b""),
        (["n", "<f8", [2]], b"\0" * 8),
        (["n", "<f8", [-1]], b""),
        (["n", "<f8", [True]], b"\0" * 8),
        (["n", "<f8", [2**40]], b""),
        (["n", "|O", [1]], b"\0" * 8),
        (["n", "|O8", [1]], b"\0" * 8),
        (["n", "f8,f8", [1]], b"\0" * 16),
        (["n", "<q8", [1]], b"\0" * 8),
        (["n", "|V0", [1]], b""),
        (["n", [["a", "<f8", [-1]]], [1]], b"\0" * 8),
        (["n", [["a", "|O"]], [1]], b"\0" * 8),
        (["n", [[5, "<f8"]], [1]], b"\0" * 8),
        (["n", [["a"]], [1]], b"\0" * 8),
        (["n", [], [1]], b""),
        (["s", "<f8", [1]], b"\0" * 8),
        (["v", "<d8", [2]], b"\0" * 8),
        (["v", "<d8", [0, 5]], b""),
        (["v", "d", [1]], b"\0" * 8),
        (["v", [["a", "<f8"]], [1]], b"\0" * 8),
        (["a", "<d8", [1, 1]], b"\0" * 8),
        (["x", "<d8", [1]], b"\0" * 8),
        ([None, "<d8", [1]], b"\0" * 8),
    ],
    ids=repr,
)
def test_malformed_typed_buffers_are_refused(header: object, data: bytes) -> None:
    with pytest.raises((ProtocolError, SerializationError)):
        unpack(typed_frame(header, data))


def test_typed_buffers_cannot_nest_in_their_headers() -> None:
    data = b"\xc0"
    for _ in range(2000):
        data = bytes(msgpack.packb(msgpack.ExtType(0x51, data)) or b"")
    with pytest.raises(ProtocolError):
        unpack(data)


# --- the cases of the payload table ---------------------------------------------------------


def made(row: dict[str, str]) -> Any:
    """The value of a row; the table describes some of them in words."""

    class Color(enum.IntEnum):
        RED = 1

    def nested(n: int) -> list[Any]:
        value: list[Any] = []
        for _ in range(n):
            value = [value]
        return value

    ring: list[Any] = []
    ring.append(ring)
    special: dict[str, Any] = {
        "snfd": "e\u0301",
        "fnan": math.nan,
        "finf": math.inf,
        "ssur": "\ud800",
        "deep100": nested(100),
        "deep10k": nested(10_000),
        "dtaware": dt.datetime(2026, 3, 29, 2, 30, 0, 123456, tzinfo=BERLIN),
        "dtnaive": dt.datetime(2026, 3, 29, 2, 30),
        "dec": Decimal("0.10"),
        "uuid": UUID(int=1),
        "enum": Color.RED,
        "ndf64": np.arange(6, dtype="float64").reshape(2, 3),
        "ndi64be": np.array([1, 2], dtype=">i8"),
        "npf32": np.float32(0.1),
        "arr": array.array("d", [1.0, 2.0]),
        "mv": memoryview(b"abc"),
        "self": ring,
    }
    if row["id"] in special:
        return special[row["id"]]
    return eval(row["value"], {"range": range, "list": list, "bytes": bytes})


REFUSED = {
    "i65",
    "ssur",
    "dint",
    "dmixed",
    "deep10k",
    "tuples_in_dict",
    "dtnaive",
    "dec",
    "uuid",
    "set",
    "gen",
    "lambda",
    "self",
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_payload_rows(row: dict[str, str]) -> None:
    value = made(row)
    if row["id"] in REFUSED:
        assert row["expect"] in ("refuse", "same_or_refuse", "refuse_or_documented")
        for typed in (False, True):
            with pytest.raises(SerializationError):
                pack({"k": [value]}, typed=typed)
        return
    back = unpack(pack(value, typed=True))
    match row["expect"]:
        case "list":
            assert back == list(value)
        case "bytes_or_refuse":
            assert back == bytes(value)
        case "int_or_refuse":
            assert back == int(value)
            assert type(back) is int
        case "same_nan":
            assert math.isnan(back)
        case _:
            assert same(back, value)
            if isinstance(value, float):
                assert math.copysign(1, back) == math.copysign(1, value)
    if row["msgpack_hex"]:
        golden = bytes.fromhex(row["msgpack_hex"])
        assert pack(value) == golden
        assert skip(golden)[0] == len(golden)
