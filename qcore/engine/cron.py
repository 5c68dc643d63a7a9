"""When a cron expression comes due: calendar arithmetic over cronsim, with our rules for clock changes.

No clock is read here: an instant comes in, the next one goes out, both in ms since the
epoch. ``cronsim`` does the matching, on local time without a zone; this module keeps the
grammar to what the protocol knows and places local times on the time line.

Rules, one for every expression:

* Wildcard hour (``*`` or ``*/n``): every instant whose local time matches. A repeated hour
  matches twice, a skipped one never.
* Fixed hour: once for each matching local time. One that is skipped counts at the first
  instant after the gap (several of them together once); one that comes twice counts the
  first time.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

__all__ = ["Cron", "CronError", "check_zone", "shown"]

MAX_CHARS: Final = 1000
_EPOCH: Final = datetime(1970, 1, 1)
_SECOND: Final = timedelta(seconds=1)
_NOTHING: Final = timedelta(0)
_WORDS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
#: The fields, each with its least and greatest number and the names of its numbers from there on.
_FIELDS: Final[dict[str, tuple[int, int, tuple[str, ...]]]] = {
    "second": (0, 59, ()),
    "minute": (0, 59, ()),
    "hour": (0, 23, ()),
    "day of month": (1, 31, ()),
    "month": (1, 12, _MONTHS),
    "weekday": (0, 7, _WEEKDAYS),
}
#: What cronsim says of a day that no month has, like 30 February.
_NO_SUCH_DAY: Final = "Bad day-of-month"
_NUMBERS: Final = re.compile(r"[0-9*,/-]+")
_NAMES: Final = re.compile(r"[0-9A-Z*,/-]+")
_ZONE: Final = re.compile(r"[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+)*")
# Of the zone files these depend on the machine or count leap seconds.
_NO_ZONES: Final = ("localtime", "posixrules", "posix", "right", "Factory")


class CronError(ValueError):
    """An expression or a zone is not acceptable; the text says why."""


def _normal(expression: str) -> str:
    """Return six fields that cronsim reads as we mean them."""
    text = expression.strip()
    if len(text) > MAX_CHARS:
        raise CronError(f"it is longer than {MAX_CHARS} characters")
    if text.startswith("@"):
        known = _WORDS.get(text.lower())
        if known is None:
            raise CronError(f"unknown word {text[:20]!r}, expected one of {', '.join(_WORDS)}")
        text = known
    if not text.isascii():
        raise CronError("it holds characters other than ASCII")
    fields = text.upper().split()
    if len(fields) not in (5, 6):
        raise CronError(
            f"expected 5 fields, or 6 with seconds first, got {len(fields)}, in {shown(expression)}"
        )
    if len(fields) == 5:
        fields.insert(0, "0")
    for at, (name, value) in enumerate(zip(_FIELDS, fields, strict=True)):
        allowed = _NAMES if name in ("month", "weekday") else _NUMBERS
        if not allowed.fullmatch(value) or (name == "weekday" and re.search(r"[0-9]L", value)):
            raise CronError(f"{_fault(name, value) or f'bad {name} {value[:40]!r}'}, in {shown(text)}")
        # A field that starts with a star is unrestricted to cronsim; a step restricts it.
        if name in ("day of month", "weekday") and value.startswith("*") and value != "*":
            every = "1-31" if name == "day of month" else "0-6"
            fields[at] = "*" if value == "*/1" else every + value[1:]
    return " ".join(fields)


def shown(expression: str) -> str:
    """An expression as errors name it."""
    return repr(expression if len(expression) <= 60 else expression[:57] + "...")


def _fault(name: str, field: str) -> str | None:
    """What is wrong with a field, as a text that says what is expected; None if that is not known."""
    least, most, names = _FIELDS[name]
    expected = f"{name} must be {least}-{most}" + (f" or a name like {names[1]}" if names else "")
    for part in field.split(","):
        base, slash, step = part.partition("/")
        if slash and not step.strip("0"):
            return f"the step of {name} must be at least 1, not {step[:20]!r}"
        if base == "*":
            continue
        ends: list[int] = []
        for end in base.split("-"):
            if end in names:
                value = least + names.index(end)
            elif end.isdigit() and len(end) < 5:
                value = int(end)
            else:
                return f"{expected}, not {end[:20]!r}"
            if not least <= value <= most:
                return f"{expected}, not {value}"
            ends.append(value)
        if len(ends) == 2 and ends[0] > ends[1]:
            return f"the range {base!r} of {name} descends"
    return None


def _zone(name: str) -> tzinfo:
    if not _ZONE.fullmatch(name) or name.split("/")[0] in _NO_ZONES:
        raise CronError(f"unknown time zone {name[:60]!r}")
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise CronError(f"unknown time zone {name[:60]!r}") from None


def check_zone(name: str) -> None:
    """Raise :class:`CronError` unless this is the name of a time zone."""
    if name != "UTC":
        _zone(name)


class Cron:
    """A compiled cron expression in a time zone (None: UTC).

    :raises CronError: the expression or the zone is not acceptable, or nothing ever matches
    """

    __slots__ = ("_ahead", "_at", "_fields", "_wild_hour", "_zone")

    def __init__(self, expression: str, zone: str | None = None) -> None:
        self._fields = _normal(expression)
        self._zone = None if zone is None or zone == "UTC" else _zone(zone)
        self._wild_hour = self._fields.split()[2].startswith("*")
        self._at = _EPOCH
        try:
            self._ahead = CronSim(self._fields, _EPOCH)
            self._match(_EPOCH)
        except CronSimError as error:
            for name, field in zip(_FIELDS, self._fields.split(), strict=True):
                if (fault := _fault(name, field)) is not None:
                    raise CronError(f"{fault}, in {shown(expression)}") from None
            if str(error) != _NO_SUCH_DAY:
                raise CronError(f"{str(error).lower()}, in {shown(expression)}") from None
            raise CronError(f"{shown(expression)} never comes due") from None
        except StopIteration:
            raise CronError(f"{shown(expression)} never comes due") from None

    def next_ms(self, after_ms: int) -> int | None:
        """Return the first instant strictly later than ``after_ms``; None beyond the calendar.

        A few dozen microseconds, however far away the answer is.
        """
        try:
            after = _EPOCH + timedelta(seconds=after_ms // 1000)
            found = self._match(after) if self._zone is None else self._local(after)
        except (OverflowError, ValueError, StopIteration):
            return None
        return (found - _EPOCH) // _SECOND * 1000

    def _match(self, after: datetime) -> datetime:
        """Return the first local time after this one that matches, as if no clock ever changed."""
        if after != self._at:
            self._ahead = CronSim(self._fields, after)
        self._at = next(self._ahead)
        return self._at

    def _local(self, after: datetime) -> datetime:
        """Do the same on the clock of the zone. ``after`` and the answer are UTC."""
        zone = self._zone
        here = after.replace(tzinfo=UTC).astimezone(zone)
        local = here.replace(tzinfo=None, fold=0)
        back = self._step(local) < _NOTHING
        if back:
            end = self._end(local)
            start = end + self._step(local)
            if self._wild_hour and not here.fold:
                # The rest of the first pass, then the whole second one.
                found = self._match(local)
                if found >= end:
                    found = self._match(start - _SECOND)
                    if found < end:
                        return self._instant(found, fold=1)
                return self._instant(found)
            if here.fold:
                if self._wild_hour:
                    found = self._match(local)
                    if found < end:
                        return self._instant(found, fold=1)
                local = end - _SECOND  # everything of the second pass counted in the first
        found = self._match(local)
        while self._step(found) > _NOTHING:
            end = self._end(found)
            if not self._wild_hour:
                return self._instant(end)
            found = self._match(end - _SECOND)
        return self._instant(found)

    def _step(self, local: datetime) -> timedelta:
        """How far the clock jumps at this local time: forward over it, backward to before it, or not (0)."""
        return self._offset(local, 1) - self._offset(local, 0)

    def _offset(self, local: datetime, fold: int) -> timedelta:
        # In a gap fold 0 gives the offset before it; in a repeated hour, that of the first pass.
        offset = local.replace(tzinfo=self._zone, fold=fold).utcoffset()
        assert offset is not None
        return offset

    def _end(self, local: datetime) -> datetime:
        """Return the end of the gap or of the repeated time that holds this local time."""
        step = self._step(local)
        inside, outside = 0, int(abs(step) / _SECOND)
        while outside - inside > 1:
            middle = (inside + outside) // 2
            if self._step(local + middle * _SECOND) == step:
                inside = middle
            else:
                outside = middle
        return local + outside * _SECOND

    def _instant(self, local: datetime, fold: int = 0) -> datetime:
        return local - self._offset(local, fold)
