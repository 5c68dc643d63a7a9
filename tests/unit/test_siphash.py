from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcore.structs.siphash import digest13, digest24, digest24_u64

KEY = bytes(range(16))

# SipHash-2-4 of the messages 00, 00 01, ... under the key 00 01 ... 0f, by the authors.
PUBLISHED = [
    "310e0edd47db6f72",
    "fd67dc93c539f874",
    "5a4fa9d909806c0d",
    "2d7efbd796666785",
    "b7877127e09427cf",
    "8da699cd64557618",
    "cee3fe586e46c9cb",
    "37d1018bf50002ab",
    "6224939a79f5f593",
]


def plain(key: bytes, data: bytes, compress: int, finish: int) -> int:
    """The algorithm as the paper words it."""
    mask = 2**64 - 1
    k0, k1 = (int.from_bytes(part, "little") for part in (key[:8], key[8:]))
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def rotate(x: int, bits: int) -> int:
        return (x << bits | x >> (64 - bits)) & mask

    def half(a: int, b: int, s: int, t: int, c: int, d: int) -> None:
        v[a] = (v[a] + v[b]) & mask
        v[c] = (v[c] + v[d]) & mask
        v[b] = rotate(v[b], s) ^ v[a]
        v[d] = rotate(v[d], t) ^ v[c]
        v[a] = rotate(v[a], 32)

    def rounds(count: int) -> None:
        for _ in range(count):
            half(0, 1, 13, 16, 2, 3)
            half(2, 1, 17, 21, 0, 3)

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) % 256])
    for i in range(0, len(padded), 8):
        word = int.from_bytes(padded[i : i + 8], "little")
        v[3] ^= word
        rounds(compress)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(finish)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


@pytest.mark.parametrize("length", range(len(PUBLISHED)))
def test_published_vectors(length: int) -> None:
    expected = int.from_bytes(bytes.fromhex(PUBLISHED[length]), "little")
    assert digest24(KEY, bytes(range(length))) == expected


def test_vector_of_the_paper() -> None:
    assert digest24(KEY, bytes(range(15))) == 0xA129CA6149BE45E5


@given(st.binary(min_size=16, max_size=16), st.binary(max_size=300))
def test_agrees_with_the_plain_form(key: bytes, data: bytes) -> None:
    assert digest13(key, data) == plain(key, data, 1, 3)
    assert digest24(key, data) == plain(key, data, 2, 4)


@given(st.integers(0, 2**64 - 1))
def test_counter_form_equals_eight_bytes(x: int) -> None:
    assert digest24_u64(KEY, x) == digest24(KEY, x.to_bytes(8, "little"))


@pytest.mark.skipif(sys.hash_info.algorithm != "siphash13", reason="the interpreter hashes otherwise")
@pytest.mark.skipif(sys.hash_info.cutoff != 0, reason="the interpreter hashes short strings otherwise")
def test_agrees_with_the_interpreter() -> None:
    samples = [bytes(range(n)) for n in range(1, 40)]
    code = f"print(*[hash(s) % 2**64 for s in {samples!r}])"
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert [int(word) for word in out.stdout.split()] == [digest13(bytes(16), s) for s in samples]


@pytest.mark.parametrize("length", [0, 15, 17])
def test_key_length_is_checked(length: int) -> None:
    with pytest.raises(ValueError, match=f"16 bytes, got {length}"):
        digest13(bytes(length), b"")
