"""Benchmarks of the wire layer, with msgpack on the same values beside it.

Run with ``pytest tests/benchmarks/test_bench_wire.py --benchmark-only``.
"""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest

from qcore.wire.commands import COMMANDS, check
from qcore.wire.packing import pack, unpack, unpack_request
from qcore.wire.scan import FrameBuffer, skip
from qcore.wire.writer import Writer

SMALL: dict[str, Any] = {
    "cmd": "PUSH",
    "queue": "emails",
    "reqId": "123",
    "name": "send",
    "data": {"to": "a@example.com", "n": 5, "f": 1.5, "l": [1, 2, 3, {"x": None, "y": True}]},
}
LARGE: dict[str, Any] = {
    "rows": [{"id": i, "name": f"user{i}", "score": i * 1.5, "tags": ["a", "b"]} for i in range(1000)]
}
VALUES = pytest.mark.parametrize("value", [SMALL, LARGE], ids=["small", "large"])


@VALUES
def test_pack(benchmark: Any, value: Any) -> None:
    assert benchmark(pack, value) == msgpack.packb(value)


@VALUES
def test_pack_by_msgpack(benchmark: Any, value: Any) -> None:
    """A packer that is kept, which is the quickest way to use msgpack."""
    benchmark(msgpack.Packer(autoreset=True).pack, value)


@VALUES
def test_unpack(benchmark: Any, value: Any) -> None:
    assert benchmark(unpack, pack(value)) == value


@VALUES
def test_unpack_by_msgpack(benchmark: Any, value: Any) -> None:
    benchmark(msgpack.unpackb, pack(value))


@VALUES
def test_skip(benchmark: Any, value: Any) -> None:
    benchmark(skip, pack(value))


def test_unpack_request(benchmark: Any) -> None:
    benchmark(unpack_request, pack(SMALL))


def test_write_a_reply(benchmark: Any) -> None:
    writer = Writer()
    reply = {"ok": True, "id": "0192f0c1-7a3b-7cc4-8f5e-0123456789ab", "reqId": "123"}

    def frame() -> bytes:
        writer.frame(reply)
        return writer.take()

    benchmark(frame)


@pytest.mark.parametrize("typed", [False, True], ids=["bin", "typed"])
def test_pack_a_megabyte_of_floats(benchmark: Any, typed: bool) -> None:
    benchmark(pack, np.arange(131_072.0), typed=typed)


def test_unpack_a_megabyte_of_floats(benchmark: Any) -> None:
    benchmark(unpack, pack(np.arange(131_072.0), typed=True))


def test_split_frames(benchmark: Any) -> None:
    """A thousand frames of 100 bytes out of slices of 64 KiB."""
    frame = (100).to_bytes(4, "big") + b"x" * 100
    stream = frame * 1000

    def split() -> int:
        buffer, n = FrameBuffer(), 0
        for i in range(0, len(stream), 65_536):
            buffer.feed(stream[i : i + 65_536])
            while buffer.next() is not None:
                n += 1
        return n

    assert benchmark(split) == 1000


@pytest.mark.parametrize(
    "request_",
    [
        unpack_request(pack(SMALL)),
        {"cmd": "PULL", "queue": "q", "timeout": 0, "owner": "w", "lockTtl": 30_000},
        {"cmd": "ACK", "id": "j", "token": "t"},
    ],
    ids=lambda request: str(request["cmd"]),
)
def test_check(benchmark: Any, request_: dict[str, Any]) -> None:
    benchmark(check, COMMANDS[request_["cmd"]], request_)
