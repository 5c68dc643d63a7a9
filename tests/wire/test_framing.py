"""Frames out of byte streams, compiled and plain, however the stream is sliced."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcore.errors import ProtocolError
from qcore.reference import framing as plain
from qcore.wire import scan

LIMIT = 64 * 1024 * 1024
ROWS = json.loads((Path(__file__).parents[1] / "data" / "frames_bad.json").read_text())["frames"]

# Both buffers have the same methods; the tests take either class.
Buffers = pytest.mark.parametrize("kind", [scan.FrameBuffer, plain.FrameBuffer], ids=["compiled", "plain"])


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def drained(buffer: Any) -> list[bytes]:
    out = []
    while (body := buffer.next()) is not None:
        out.append(body)
    return out


@Buffers
def test_byte_by_byte(kind: Any) -> None:
    buffer = kind()
    stream = framed(b"abc") + framed(b"") + framed(b"x" * 300)
    out = []
    for i in range(len(stream)):
        buffer.feed(stream[i : i + 1])
        out += drained(buffer)
    assert out == [b"abc", b"", b"x" * 300]
    assert buffer.pending == 0


@Buffers
def test_several_in_one_slice_and_a_partial_one(kind: Any) -> None:
    buffer = kind()
    assert buffer.next() is None
    buffer.feed(framed(b"1") + framed(b"2") + b"\0\0")
    assert drained(buffer) == [b"1", b"2"]
    assert buffer.pending == 2
    buffer.feed(b"\0\1z")
    assert drained(buffer) == [b"z"]


@Buffers
@pytest.mark.parametrize("length", [LIMIT + 1, 1195725856, 0xFFFFFFFF])
def test_a_length_over_the_limit_is_refused_at_once(kind: Any, length: int) -> None:
    buffer = kind()
    buffer.feed(framed(b"before") + length.to_bytes(4, "big"))
    assert buffer.next() == b"before"
    for _ in range(2):
        with pytest.raises(ProtocolError) as caught:
            buffer.next()
        assert str(caught.value) == f"Frame too large: {length} bytes exceeds maximum {LIMIT}"
        assert caught.value.length == length  # type: ignore[attr-defined]
        buffer.feed(framed(b"after"))
    assert buffer.pending == 0


@Buffers
def test_the_limit_itself_is_let_through(kind: Any) -> None:
    buffer = kind()
    buffer.feed(LIMIT.to_bytes(4, "big") + b"x")
    assert buffer.next() is None
    small = kind(3)
    small.feed(framed(b"abc"))
    assert small.next() == b"abc"
    small.feed(framed(b"abcd"))
    with pytest.raises(ProtocolError, match="exceeds maximum 3"):
        small.next()


def test_memory_follows_what_came_not_what_was_announced() -> None:
    buffer = scan.FrameBuffer()
    buffer.feed(LIMIT.to_bytes(4, "big"))
    assert buffer.next() is None
    assert buffer.nbytes <= 4096
    body = b"x" * 1_000_000
    buffer = scan.FrameBuffer()
    for _ in range(20):
        buffer.feed(framed(body))
        assert buffer.next() == body
        assert buffer.nbytes <= 4_000_000
    buffer.feed(b"\0")
    assert buffer.nbytes <= 4096


def test_a_consumer_that_lags_costs_no_quadratic_copying() -> None:
    """Frames pile up while one is taken per slice; memory stays within a small factor of them."""
    buffer = scan.FrameBuffer()
    frame = framed(b"x" * 96)
    held = 0
    for _ in range(3000):
        buffer.feed(frame * 3)
        assert buffer.next() == b"x" * 96
        held += 2 * len(frame)
        assert buffer.pending == held
        assert buffer.nbytes <= 4 * held + 4096
    assert len(drained(buffer)) == 6000


@given(
    st.lists(st.binary(max_size=40), max_size=8),
    st.lists(st.integers(0, 60), max_size=40),
    st.binary(max_size=9),
)
def test_any_slicing_gives_the_same_frames(bodies: list[bytes], cuts: list[int], tail: bytes) -> None:
    """Compiled and plain agree on frames, leftovers and refusals after every slice."""
    stream = b"".join(framed(body) for body in bodies) + tail
    buffers: list[Any] = [scan.FrameBuffer(50), plain.FrameBuffer(50)]
    out: list[list[bytes]] = [[], []]
    refused = [False, False]
    for n in [*cuts, len(stream)]:
        piece, stream = stream[:n], stream[n:]
        for i, buffer in enumerate(buffers):
            buffer.feed(piece)
            try:
                while (body := buffer.next()) is not None:
                    out[i].append(body)
            except ProtocolError:
                refused[i] = True
        assert out[0] == out[1]
        assert refused[0] == refused[1]
        assert buffers[0].pending == buffers[1].pending
    assert out[0][: len(bodies)] == bodies


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_bad_frames_give_a_body_or_a_refusal(row: dict[str, str]) -> None:
    """Whatever a peer sends, its bytes end as bodies, a refusal, or a wait for more; sliced or whole."""
    if row["hex"].startswith("generate"):
        body = b"\x91" * 100_000 if row["id"] == "bomb_nest" else b"\x82\xa3cmd\xda\x03\xe8" + b"x" * 1000
        stream = framed(body)
    else:
        stream = bytes.fromhex(row["hex"])
    results = []
    for size in (len(stream), 1, 7):
        buffer = scan.FrameBuffer()
        got: list[object] = []
        for i in range(0, len(stream), size):
            buffer.feed(stream[i : i + size])
            try:
                got += drained(buffer)
            except ProtocolError as error:
                got.append(str(error))
                break
        results.append(got)
    assert results[0] == results[1] == results[2]
    for whole in results[0]:
        if isinstance(whole, bytes):
            with contextlib.suppress(ProtocolError):
                scan.skip(whole)


def test_a_long_stream_in_random_slices() -> None:
    rng = random.Random(7)
    bodies = [rng.randbytes(rng.choice((0, 1, 50, 5000, 70_000))) for _ in range(200)]
    stream = b"".join(map(framed, bodies))
    buffer = scan.FrameBuffer()
    out, pos = [], 0
    while pos < len(stream):
        n = rng.choice((1, 3, 1000, 65_536))
        buffer.feed(memoryview(stream)[pos : pos + n])
        pos += n
        out += drained(buffer)
    assert out == bodies
