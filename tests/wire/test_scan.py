"""The scanner against MessagePack itself: whole values pass, damaged ones do not."""

from __future__ import annotations

import msgpack
import pytest

from qcore.errors import ProtocolError
from qcore.wire.scan import skip

INT64, TYPED, UNDEFINED = 1, 2, 4

WHOLE = [
    (b"\x00", 0),
    (b"\x7f", 0),
    (b"\xe0", 0),
    (b"\xc0", 0),
    (b"\xc2", 0),
    (b"\xc3", 0),
    (b"\xcc\xff", 0),
    (b"\xcd\xff\xff", 0),
    (b"\xce\xff\xff\xff\xff", 0),
    (b"\xcf" + b"\xff" * 8, INT64),
    (b"\xd0\x80", 0),
    (b"\xd1\x80\x00", 0),
    (b"\xd2\x80\x00\x00\x00", 0),
    (b"\xd3" + b"\x80" * 8, INT64),
    (b"\xca" + b"\x00" * 4, 0),
    (b"\xcb" + b"\x00" * 8, 0),
    (b"\xa0", 0),
    (b"\xbf" + b"a" * 31, 0),
    (b"\xd9\x03abc", 0),
    (b"\xda\x00\x03abc", 0),
    (b"\xdb\x00\x00\x00\x03abc", 0),
    (b"\xc4\x02\xff\xff", 0),
    (b"\xc5\x00\x02\xff\xff", 0),
    (b"\xc6\x00\x00\x00\x02\xff\xff", 0),
    (b"\xd4\x00\x00", UNDEFINED),
    (b"\xc7\x00\x00", UNDEFINED),
    (b"\xc8\x00\x01\x51\xff", TYPED),
    (b"\xc9\x00\x00\x00\x01\x51\xff", TYPED),
    (b"\xd6\xff\x00\x00\x00\x01", 0),
    (b"\xd7\xff" + b"\x00" * 8, 0),
    (b"\xc7\x0c\xff" + b"\x00" * 12, 0),
    (b"\x90", 0),
    (b"\x80", 0),
    (b"\x92\x01\xcf" + b"\x00" * 8, INT64),
    (b"\xdc\x00\x02\x01\x02", 0),
    (b"\xdd\x00\x00\x00\x02\x01\x02", 0),
    (b"\x81\x01\x02", 0),
    (b"\xde\x00\x01\xa1k\x90", 0),
    (b"\xdf\x00\x00\x00\x01\xa1k\xd4\x00\x00", UNDEFINED),
]


@pytest.mark.parametrize(("data", "notes"), WHOLE, ids=lambda v: v.hex() if isinstance(v, bytes) else "")
def test_whole_value_is_stepped_over(data: bytes, notes: int) -> None:
    assert skip(data) == (len(data), notes)
    assert skip(b"\xc1" + data + b"\xc1", 1) == (len(data) + 1, notes)


@pytest.mark.parametrize("data", [d for d, _ in WHOLE], ids=bytes.hex)
def test_every_cut_is_truncated(data: bytes) -> None:
    for n in range(len(data)):
        with pytest.raises(ProtocolError, match="end inside"):
            skip(data[:n])


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xc1", "c1"),
        (b"\xa1\xff", "UTF-8"),
        (b"\xa2\xc0\x80", "UTF-8"),
        (b"\xa3\xed\xa0\x80", "UTF-8"),
        (b"\xa4\xf4\x90\x80\x80", "UTF-8"),
        (b"\xd9\x01\x80", "UTF-8"),
        (b"\xd4\x01\x00", "extension"),
        (b"\xd4\x50\x00", "extension"),
        (b"\xd4\xff\x00", "extension"),
        (b"\xd7\xff\xff\xff\xff\xff\x00\x00\x00\x00", "extension"),
        (b"\xc7\x0c\xff\xff\xff\xff\xff" + b"\x00" * 8, "extension"),
        (b"\xdd\xff\xff\xff\xff", "end inside"),
        (b"\xdf\xff\xff\xff\xff" + b"\x00" * 64, "end inside"),
        (b"\xdb\xff\xff\xff\xff" + b"\x00" * 64, "end inside"),
        (b"\xc6\xff\xff\xff\xff", "end inside"),
    ],
    ids=lambda v: v[:6].hex() if isinstance(v, bytes) else v,
)
def test_damaged_value_is_refused(data: bytes, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        skip(data)


def test_nesting_bound() -> None:
    assert skip(b"\x91" * 511 + b"\x90")[0] == 512
    assert skip(b"\x81\xa0" * 512 + b"\xc0")[0] == 1025
    with pytest.raises(ProtocolError, match="512"):
        skip(b"\x91" * 512 + b"\x90")
    with pytest.raises(ProtocolError, match="512"):
        skip(b"\x91" * 1_000_000)


def test_every_utf8_length_at_every_offset() -> None:
    """The eight-byte fast path meets multi-byte characters at any alignment."""
    for pad in range(20):
        for char in ("\x7f", "\x80", "\u07ff", "\u0800", "\uffff", "\U00010000", "\U0010ffff"):
            text = "a" * pad + char + "b" * (20 - pad)
            data = msgpack.packb(text)
            assert skip(data)[0] == len(data)
            raw = text.encode()
            if len(char.encode()) > 1:
                broken = raw.replace(char.encode(), char.encode()[:-1])
                with pytest.raises(ProtocolError):
                    skip(msgpack.packb(broken, use_bin_type=False))
