"""When cron expressions come due: the agreed rows, and a walk over every minute as a second opinion."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qcore.engine.cron import Cron, CronError

DATA: dict[str, Any] = json.loads((Path(__file__).parent.parent / "data" / "cron_next.json").read_text())
ROWS = [(row, "epoch_ms") for row in DATA["agreed"]] + [
    (row, "recommended_epoch_ms") for row in DATA["policy"]
]
EPOCH = datetime(1970, 1, 1)
MINUTE = timedelta(minutes=1)


def ms(text: str) -> int:
    at = datetime.fromisoformat(text)
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def due(expression: str, zone: str | None, after: str | int, n: int) -> list[int]:
    """The next ``n`` instants after one."""
    cron = Cron(expression, zone)
    at: int | None = ms(after) if isinstance(after, str) else after
    out = []
    for _ in range(n):
        assert at is not None
        at = cron.next_ms(at)
        assert at is not None
        out.append(at)
    return out


@pytest.mark.parametrize(
    ("row", "key"), ROWS, ids=lambda value: value["note"] if isinstance(value, dict) else ""
)
def test_case_047_next_fire_times(row: dict[str, Any], key: str) -> None:
    expected: list[int] = row[key]
    start = ms(row["from"])
    assert due(row["expr"], row["tz"], start, len(expected)) == expected
    # From around the start, and from each answer itself: no state but the instant counts.
    for shifted in (start - 1000, start + 1000):
        first = Cron(row["expr"], row["tz"]).next_ms(shifted)
        assert first is not None
        assert first > shifted
        assert first == expected[0] or shifted < first <= start
    for here, following in itertools.pairwise(expected):
        cron = Cron(row["expr"], row["tz"])
        assert cron.next_ms(here) == following
        assert cron.next_ms(here - 1) == here
        assert cron.next_ms(following - 1000) == following
        assert cron.next_ms(here + 1) == following


@pytest.mark.parametrize("row", DATA["refuse"], ids=lambda row: row["why"])
def test_case_047_refused_expressions(row: dict[str, Any]) -> None:
    with pytest.raises(CronError):
        Cron(row["expr"], row["tz"])


@pytest.mark.parametrize("machine", ["UTC", "America/St_Johns", "Asia/Kathmandu"])
def test_case_047_the_zone_of_the_machine_does_not_count(machine: str) -> None:
    code = (
        "import json, sys\nfrom qcore.engine.cron import Cron\n"
        "rows = json.load(sys.stdin)\nprint(json.dumps([Cron(e, z).next_ms(t) for e, z, t in rows]))"
    )
    rows = [(row["expr"], row["tz"], ms(row["from"])) for row, _ in ROWS]
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(rows),
        env={**os.environ, "TZ": machine},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [row[key][0] for row, key in ROWS]


@pytest.mark.parametrize(
    "expression",
    [
        "@reboot", "@every 5m", "10-5 * * * *", "0 0 L * *", "0 0 LW * *", "0 0 15W * *", "0 0 * * 5L",
        "0 0 * * L", "0 0 * * 1#2", "0 0 ? * *", "0 0 * * ?", "0 0 1 1 * 2027", "0 0 0 1 1 * 2027",
        "5/0 * * * *",
        "0 0 31 2,4,6,9,11 *", "0 0 30,31 2 *", "-1 * * * *", "1,,2 * * * *", "1, * * * *", "* * * *",
        "1.5 * * * *", "* * * * MON-", "* * * FOO *", "* * * * FRI-SUN", "０ * * * *", "H * * * *",
        "60 * * * * *", "*/-5 * * * *", "** * * * *", "0 0 1 13 *", "0 " * 600,
    ],
)  # fmt: skip
def test_what_is_refused(expression: str) -> None:
    with pytest.raises(CronError) as caught:
        Cron(expression)
    assert 0 < len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("61 * * * *", "minute must be 0-59, not 61, in '61 * * * *'"),
        ("* 24 * * *", "hour must be 0-23, not 24, in '* 24 * * *'"),
        ("61 0 0 1 1 *", "second must be 0-59, not 61, in '61 0 0 1 1 *'"),
        ("0 0 0 * *", "day of month must be 1-31, not 0, in '0 0 0 * *'"),
        ("0 0 1 13 *", "month must be 1-12 or a name like FEB, not 13, in '0 0 1 13 *'"),
        ("0 0 * foo *", "month must be 1-12 or a name like FEB, not 'FOO', in '0 0 * foo *'"),
        ("0 0 * * 1-8", "weekday must be 0-7 or a name like MON, not 8, in '0 0 * * 1-8'"),
        ("0 0 L * *", "day of month must be 1-31, not 'L', in '0 0 L * *'"),
        ("*/0 * * * *", "the step of minute must be at least 1, not '0', in '*/0 * * * *'"),
        ("10-5 * * * *", "the range '10-5' of minute descends, in '10-5 * * * *'"),
        ("1,,2 * * * *", "minute must be 0-59, not '', in '1,,2 * * * *'"),
        ("0 0 * *", "expected 5 fields, or 6 with seconds first, got 4, in '0 0 * *'"),
        ("0 0 30 2 *", "'0 0 30 2 *' never comes due"),
        ("0 0 31 4,6 *", "'0 0 31 4,6 *' never comes due"),
    ],
)
def test_what_is_refused_is_named_with_what_is_expected(expression: str, said: str) -> None:
    with pytest.raises(CronError) as caught:
        Cron(expression)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    "zone",
    ["localtime", "posixrules", "posix/UTC", "right/UTC", "", "Europe", "../etc", "/etc/localtime", "a b",
     "Europe/Berlin\0", "Europe//Berlin", "UTC+3", "x" * 5000],
)  # fmt: skip
def test_unknown_zones_are_refused(zone: str) -> None:
    with pytest.raises(CronError, match="unknown time zone"):
        Cron("* * * * *", zone)


@pytest.mark.parametrize(
    ("word", "same"),
    [
        ("@yearly", "0 0 1 1 *"), ("@annually", "0 0 1 1 *"), ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * SUN"),
        ("@daily", "0 0 * * *"), ("@midnight", "0 0 * * *"), ("@hourly", "0 * * * *"),
        (" @Daily ", "0 0 * * *"),
        ("*/1 0 * * */1", "* 0 * * *"), ("5/15 * * * *", "5,20,35,50 * * * *"),
        ("1-5/2 * * * *", "1,3,5 * * * *"),
        ("0 0 * jan,feb sun", "0 0 * 1,2 0"), ("0 0 * * 7", "0 0 * * 0"), ("0 0 * * 5-7", "0 0 * * 0,5,6"),
        ("0 0 */10 * *", "0 0 1,11,21,31 * *"), ("0\t0  1 1 *", "0 0 1 1 *"),
    ],
)  # fmt: skip
def test_words_names_and_steps(word: str, same: str) -> None:
    start = "2026-02-11T13:14:15"
    assert due(word, "Europe/Rome", start, 8) == due(same, "Europe/Rome", start, 8)


def test_two_restricted_day_fields_are_joined_by_or_also_with_steps() -> None:
    both = {*due("0 0 */10 * *", None, "2026-01-01", 30), *due("0 0 * * */3", None, "2026-01-01", 30)}
    got = due("0 0 */10 * */3", None, "2026-01-01", 20)
    assert got == sorted(both)[:20]
    # A day that no month of the list has is no fault then.
    assert due("0 0 31 4 */6", None, "2026-01-01", 1) == [ms("2026-04-04")]


def test_seconds_lead_in_six_fields() -> None:
    assert due("*/20 30 9 * * *", None, "2026-05-05T09:30:10", 3) == [
        ms("2026-05-05T09:30:20"), ms("2026-05-05T09:30:40"), ms("2026-05-06T09:30:00"),
    ]  # fmt: skip


def test_measured_behaviour_in_new_york() -> None:
    """A fixed hour runs once, a wildcard one by the real clock."""
    zone = "America/New_York"
    spring, autumn = "2026-03-08T05:30:00", "2026-11-01T04:30:00"
    assert due("*/10 2 * * *", zone, spring, 2) == [ms("2026-03-08T07:00:00"), ms("2026-03-09T06:00:00")]
    assert due("*/10 * * * *", zone, "2026-03-08T06:45:00", 2) == [
        ms("2026-03-08T06:50:00"), ms("2026-03-08T07:00:00"),
    ]  # fmt: skip
    assert due("30 1 * * *", zone, autumn, 2) == [ms("2026-11-01T05:30:00"), ms("2026-11-02T06:30:00")]
    assert due("*/30 1 * * *", zone, autumn, 3) == [
        ms("2026-11-01T05:00:00"), ms("2026-11-01T05:30:00"), ms("2026-11-02T06:00:00"),
    ]  # fmt: skip
    assert due("*/30 * * * *", zone, "2026-11-01T04:45:00", 5) == [
        ms(f"2026-11-01T{at}") for at in ("05:00:00", "05:30:00", "06:00:00", "06:30:00", "07:00:00")
    ]


#: Zones with their changes: to the next hour and back, by half an hour, at midnight, on the southern half.
CHANGES = [
    ("America/New_York", "2026-03-08T07:00", "2026-11-01T06:00"),
    ("Europe/Berlin", "2026-03-29T01:00", "2026-10-25T01:00"),
    ("Australia/Lord_Howe", "2026-10-03T15:30", "2026-04-04T15:00"),
    ("America/Sao_Paulo", "2018-11-04T03:00", "2019-02-17T02:00"),
    ("Africa/Cairo", "2024-04-25T22:00", "2024-10-31T21:00"),
    ("America/Havana", "2026-03-08T05:00", "2026-11-01T05:00"),
    ("Asia/Beirut", "2022-03-26T22:00", "2022-10-29T21:00"),
]


def walk(minutes: set[int], hours: set[int] | None, zone: str, start: datetime, n: int) -> list[int]:
    """The rules of the manual, followed minute by minute over ``n`` minutes of UTC."""
    here = ZoneInfo(zone)
    line = []
    for i in range(n):
        at = start + i * MINUTE
        line.append((at, at.replace(tzinfo=UTC).astimezone(here).replace(tzinfo=None, fold=0)))

    def matches(local: datetime) -> bool:
        return local.minute in minutes and (hours is None or local.hour in hours)

    if hours is None:
        return [int((at - EPOCH).total_seconds() * 1000) for at, local in line if matches(local)]
    first: dict[datetime, datetime] = {}
    for at, local in line:
        first.setdefault(local, at)
    found = set()
    local, last = line[0][1], line[-1][1]
    while local <= last:
        if matches(local):
            at = first[local] if local in first else next(at for at, there in line if there > local)
            found.add(int((at - EPOCH).total_seconds() * 1000))
        local += MINUTE
    return sorted(found)


@pytest.mark.parametrize("change", [0, 1], ids=["forward", "back"])
@pytest.mark.parametrize(
    ("zone", "forward", "back"), CHANGES, ids=lambda value: value if "/" in value else ""
)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_both_changes_of_several_zones(
    zone: str, forward: str, back: str, change: int, data: st.DataObject
) -> None:
    moment = datetime.fromisoformat(back if change else forward)
    before = data.draw(st.integers(5, 400))
    minutes = data.draw(st.sets(st.sampled_from([0, 1, 15, 20, 29, 30, 31, 45, 59]), min_size=1, max_size=3))
    hours = data.draw(st.none() | st.sets(st.sampled_from([22, 23, 0, 1, 2, 3, 4]), min_size=1, max_size=3))
    start = moment - before * MINUTE
    # From earlier on, since a local time may have been there first before the start.
    expected = walk(minutes, hours, zone, start - 120 * MINUTE, 16 * 60)
    fields = ",".join(map(str, sorted(minutes))), "*" if hours is None else ",".join(map(str, sorted(hours)))
    after = int((start - EPOCH).total_seconds() * 1000)
    cron = Cron(f"{fields[0]} {fields[1]} * * *", zone)
    got: list[int] = []
    at = cron.next_ms(after - 1)
    while at is not None and at < after + 14 * 60 * 60_000:
        got.append(at)
        at = cron.next_ms(at)
    assert got == [at for at in expected if at >= after]
    # An answer depends on the instant alone, not on the answers before it.
    probe = after + data.draw(st.integers(0, 14 * 60 - 1)) * 60_000 + 17
    assert Cron(f"{fields[0]} {fields[1]} * * *", zone).next_ms(probe) == next(
        (at for at in got if at > probe), at
    )


@settings(max_examples=60, deadline=None)
@given(
    expression=st.sampled_from(
        [
            "* * * * *",
            "*/7 * * * * *",
            "30 2 * * *",
            "0 0 29 2 *",
            "*/15 1-3 * * 0",
            "59 23 31 12 *",
            "0 */5 * * *",
        ]
    ),
    zone=st.sampled_from([None, *(zone for zone, _, _ in CHANGES), "Asia/Kathmandu"]),
    at=st.integers(-5_000_000_000_000, 9_000_000_000_000),
)
def test_answers_are_later_and_rise(expression: str, zone: str | None, at: int) -> None:
    cron = Cron(expression, zone)
    first = cron.next_ms(at)
    assert first is not None
    assert first > at
    assert first % 1000 == 0
    second = cron.next_ms(first)
    assert second is not None
    assert second > first
    assert Cron(expression, zone).next_ms(first - 1) == first


@pytest.mark.parametrize("expression", ["* * * * * *", "0 0 29 2 *", "*/5 * * * *", "0 0 1 1 *"])
def test_far_away_is_computed_not_walked(expression: str) -> None:
    cron = Cron(expression, "Europe/Paris")
    for year in (2200, 2500, 4000, 9000):
        at = ms(f"{year}-06-01T00:00:00")
        found = cron.next_ms(at)
        assert found is not None
        assert at < found < at + 9 * 366 * 86_400_000
    assert cron.next_ms(253_402_300_799_000) is None  # the calendar ends with the year 9999
    assert cron.next_ms(10**17) is None
