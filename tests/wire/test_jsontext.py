"""The length of the JSON text of a payload, against the text itself."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qcore.limits import MAX_DATA_BYTES, MAX_DATA_CHARS
from qcore.wire.jsontext import fits, json_chars

UNDEFINED = msgpack.ExtType(0, b"\0")


def number(value: float) -> str:
    """A number as JavaScript writes it, by the steps of its specification."""
    if not math.isfinite(value):
        return "null"
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    mantissa, exponent = f"{abs(value)!r}e0".split("e")[:2]
    whole, _, rest = mantissa.partition(".")
    digits = (whole + rest).strip("0")
    # The value is 0.DIGITS times ten to the n.
    n = int(exponent) + (len(whole) if int(whole) else len(rest.lstrip("0")) - len(rest))
    k = len(digits)
    if k <= n <= 21:
        return sign + digits + "0" * (n - k)
    if 0 < n <= 21:
        return f"{sign}{digits[:n]}.{digits[n:]}"
    if -6 < n <= 0:
        return f"{sign}0.{'0' * -n}{digits}"
    e = f"e{'+' if n > 0 else '-'}{abs(n - 1)}"
    return sign + (digits + e if k == 1 else f"{digits[0]}.{digits[1:]}{e}")


def text(value: Any) -> str:
    """What JSON.stringify writes."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return number(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[{','.join('null' if item == UNDEFINED else text(item) for item in value)}]"
    pairs = (f"{text(str(key))}:{text(item)}" for key, item in value.items() if item != UNDEFINED)
    return f"{{{','.join(pairs)}}}"


def chars(value: Any) -> int:
    return len(text(value).encode("utf-16-le", "surrogatepass")) // 2


NUMBERS = {
    1e-7: "1e-7", 1.5e-7: "1.5e-7", 1e-6: "0.000001", 0.001: "0.001", 123.456: "123.456", 100.5: "100.5",
    1e16: "10000000000000000", 1e20: "100000000000000000000", 1e21: "1e+21", 1.5e300: "1.5e+300",
    -0.5: "-0.5", 5e-324: "5e-324", 1.7976931348623157e308: "1.7976931348623157e+308", -0.0: "0",
}  # fmt: skip


@pytest.mark.parametrize(("value", "written"), NUMBERS.items())
def test_numbers_are_those_of_javascript(value: float, written: str) -> None:
    assert number(value) == written
    assert json_chars(msgpack.packb(value)) == len(written)


def test_numbers_at_the_ends_of_their_intervals() -> None:
    """Powers of two and their neighbours, where the distance to the next number changes."""
    for exponent in range(-1074, 1024):
        for value in (2.0**exponent, 2.0**exponent * (1 + 2**-52), 2.0**exponent * (1 - 2**-53)):
            assert json_chars(msgpack.packb(value)) == len(number(value)), value


@given(st.floats())
def test_numbers_have_the_fewest_digits(value: float) -> None:
    assert json_chars(msgpack.packb(value)) == len(number(value))


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(st.characters(exclude_categories=("Cs",)))
    | st.just(UNDEFINED),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3) | st.integers(-300, 2**40), inner),
    max_leaves=15,
)


@given(st.lists(values))
@example([{"a": UNDEFINED, "b": 1}, {"a": 1, "b": UNDEFINED}, {"a": UNDEFINED}, {}, [], [[]], [UNDEFINED]])
@example(['\0\x1f\x7f"\\/\b\t\n\f\r', "é☃😀", {1: {-5: {}}}, {"": ""}])
def test_it_is_the_length_of_the_text(value: list[Any]) -> None:
    packed = msgpack.packb(value)
    assert json_chars(packed) == chars(value)
    # What makes it enough to look at the bytes of a short one.
    assert chars(value) <= 6 * len(packed)


@given(st.floats(width=32))
def test_single_precision_is_read_as_what_it_is(value: float) -> None:
    assert json_chars(b"\xca" + struct.pack(">f", value)) == len(number(value))


def test_what_json_has_no_form_for() -> None:
    assert json_chars(msgpack.packb(bytes(100))) == 102
    assert json_chars(msgpack.packb(msgpack.Timestamp(0))) == len('"1970-01-01T00:00:00.000Z"')
    assert json_chars(msgpack.packb(msgpack.ExtType(0x51, bytes(70_000)))) == 70_002


def test_the_widest_of_everything() -> None:
    """Each of the widths in which a length can be written."""
    for n in (0, 15, 16, 31, 32, 255, 256, 65_535, 65_536):
        for value in ("x" * n, [1] * n, {f"{i}": 1 for i in range(n)}):
            assert json_chars(msgpack.packb(value)) == chars(value)


@pytest.mark.parametrize(
    ("packed", "good"),
    [
        (msgpack.packb("x" * (MAX_DATA_CHARS - 2)), True),
        (msgpack.packb("x" * (MAX_DATA_CHARS - 1)), False),
        (msgpack.packb("\0" * (MAX_DATA_CHARS // 6)), True),
        (msgpack.packb("\0" * (MAX_DATA_CHARS // 6 + 1)), False),
        (msgpack.packb("☃" * (MAX_DATA_CHARS - 10)), True),
        (msgpack.packb("☃" * (MAX_DATA_CHARS - 1)), False),
        (msgpack.packb("😀" * (MAX_DATA_CHARS // 2 - 1)), True),
        (msgpack.packb("😀" * (MAX_DATA_CHARS // 2)), False),
        (msgpack.packb([False] * (MAX_DATA_CHARS // 6)), True),
        (msgpack.packb([False] * (MAX_DATA_CHARS // 6 + 1)), False),
        (msgpack.packb([0.0] * (MAX_DATA_BYTES // 9 - 1)), True),
        (msgpack.packb([0.0] * (MAX_DATA_BYTES // 9 + 1)), False),
        (msgpack.packb(bytes(MAX_DATA_CHARS - 2)), True),
        (msgpack.packb(bytes(MAX_DATA_CHARS - 1)), False),
        (msgpack.packb([0.1] * 1000), True),
    ],
)
def test_where_the_bound_is(packed: bytes, good: bool) -> None:
    assert fits(packed) is good
