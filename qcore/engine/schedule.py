"""One schedule: what it adds, and when next. And the next run of a repeated job.

Plain arithmetic on the wall clock in ms. Missed slots are counted, never walked over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict

import msgpack

from qcore.engine.cron import Cron
from qcore.limits import MAX_TIME_MS

__all__ = ["Occurrence", "Schedule", "next_occurrence", "next_slot"]

#: What only one run of a job has; the run after it starts without.
RUN_STATE: Final = frozenset(
    (
        "attemptRecords",
        "autoRetry",
        "begun",
        "dlq",
        "failedReason",
        "keyExpires",
        "keyPassed",
        "lastToken",
        "logs",
        "losses",
        "progress",
        "progressMessage",
        "stacktrace",
        "successor",
        "timeline",
    )
)


class Occurrence(TypedDict, total=False):
    """The options of a job that a schedule adds; absent ones have the defaults of a push."""

    name: str
    priority: float
    delay_ms: int
    attempts: int
    backoff_ms: int
    lifo: bool
    remove_on_complete: bool
    remove_on_fail: bool
    extra: dict[str, Any] | None


def next_slot(slot_ms: int, every_ms: int, now_ms: int) -> int:
    """Return the first slot later than now of a row that one slot anchors."""
    if slot_ms > now_ms:
        return slot_ms
    return slot_ms + ((now_ms - slot_ms) // every_ms + 1) * every_ms


@dataclass(slots=True)
class Schedule:
    """A named schedule, its timing by ``pattern`` and ``zone`` or else ``every_ms``.

    ``next_ms`` is its next slot. Slots between ``created_ms`` and ``planned_ms`` are spent,
    however the wall clock moves. ``max_runs`` 0 means no bound.
    """

    name: str
    queue: str
    pattern: str | None
    every_ms: int | None
    zone: str | None
    data: bytes | None
    notes: int
    job: Occurrence
    max_runs: int = 0
    prevent_overlap: bool = True
    skip_missed: bool = True
    skip_if_no_worker: bool = False
    executions: int = 0
    next_ms: int = 0
    last_ms: int | None = None
    created_ms: int = 0
    planned_ms: int = 0
    cron: Cron | None = field(default=None, compare=False, repr=False)
    #: Places in the engine's structures.
    number: int = field(default=0, compare=False, repr=False)
    handle: int = field(default=0, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.pattern is not None:
            self.cron = Cron(self.pattern, self.zone)
        elif not isinstance(self.every_ms, int) or not self.every_ms > 0:
            raise ValueError("a schedule needs a pattern or a positive interval")

    @property
    def timing(self) -> tuple[object, ...]:
        return (self.pattern, self.zone) if self.pattern is not None else (self.every_ms,)

    @property
    def definition(self) -> tuple[object, ...]:
        """Everything that was asked for; two schedules with the same definition are one."""
        return (
            self.queue,
            self.pattern,
            self.every_ms,
            self.zone,
            self.data,
            self.job,
            self.max_runs,
            self.prevent_overlap,
            self.skip_missed,
            self.skip_if_no_worker,
        )

    def start(self, now_ms: int) -> bool:
        """Plan the first run. False: there will never be one."""
        self.created_ms = self.planned_ms = now_ms
        self.next_ms = now_ms + self.every_ms if self.cron is None and self.every_ms else now_ms
        return self.cron is None or self.plan(now_ms)

    def plan(self, now_ms: int) -> bool:
        """Plan the first run later than now. False: there is none before the calendar ends."""
        if self.cron is None:
            assert self.every_ms is not None
            # Ahead by more than one interval: the wall clock was set back.
            slot = self.next_ms if self.next_ms <= now_ms + self.every_ms else now_ms
            self.next_ms = next_slot(slot, self.every_ms, now_ms)
        else:
            found = self.cron.next_ms(now_ms)
            if found is not None and self.created_ms <= found <= self.planned_ms:
                found = self.cron.next_ms(self.planned_ms)
            if found is None:
                return False
            self.next_ms = found
        self.planned_ms = max(self.planned_ms, now_ms)
        return True

    def is_ahead(self, now_ms: int) -> bool:
        """Tell whether the wall clock was set back so far that the plan would hold the schedule up."""
        if self.cron is None:
            assert self.every_ms is not None
            return self.next_ms - now_ms > self.every_ms
        return now_ms < self.created_ms <= self.next_ms

    def pack(self) -> bytes:
        """Return what a store keeps."""
        packed: bytes = msgpack.packb({name: getattr(self, name) for name in _KEPT})
        return packed

    @classmethod
    def unpack(cls, name: str, packed: bytes, now_ms: int) -> Schedule:
        """Read a stored schedule; a next run that is no instant is planned anew.

        :raises ValueError: it cannot be read
        """
        try:
            fields = msgpack.unpackb(packed)
            fields = {key: fields[key] for key in _KEPT}
            instant = fields["next_ms"]
            broken = type(instant) is not int or abs(instant) > MAX_TIME_MS
            if broken:
                fields["next_ms"] = now_ms
            schedule = cls(name, **fields)
            if not isinstance(schedule.queue, str) or not isinstance(schedule.job, dict):
                raise ValueError("a field has the wrong type")
            if broken and not schedule.plan(now_ms):
                raise ValueError("it never comes due")
        except (KeyError, TypeError, AttributeError, OverflowError, msgpack.UnpackException) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None
        return schedule


_KEPT: Final = tuple(name for name in Schedule.__slots__ if name not in ("name", "cron", "number", "handle"))


def next_occurrence(repeat: Mapping[str, Any], now_ms: int, cron: Cron | None) -> int | None:
    """Return when the run after this one is due; None: it was the last.

    ``repeat`` are the options of the chain: ``every`` or ``pattern`` (then ``cron``), ``offset``,
    ``startDate``, ``endDate``, ``limit``, ``count`` of runs before this one, ``prevMillis`` its
    planned time.
    """
    limit = repeat.get("limit")
    if limit is not None and repeat.get("count", 0) >= limit:
        return None
    offset = _whole(repeat.get("offset", 0))
    start = repeat.get("startDate")
    previous = repeat.get("prevMillis")
    previous = None if previous is None else _whole(previous)
    if cron is None:
        every = max(1, _whole(repeat["every"]))
        if previous is not None:
            # One planned run may have been started by hand; further ahead the wall clock was set back.
            slot = min(previous, now_ms + every) + every
        elif start is not None and start + offset > now_ms:
            slot = start + offset
        else:
            slot = now_ms + every + offset
        found = next_slot(slot, every, max(now_ms, now_ms if start is None else start - 1))
    else:
        after = max(now_ms - offset, now_ms)
        if previous is not None:
            after = max(after, previous - offset)
        if start is not None:
            after = max(after, start - 1)
        tick = cron.next_ms(after)
        if tick is None:
            return None
        found = tick + offset
    end = repeat.get("endDate")
    if found > MAX_TIME_MS or (end is not None and found > end):
        return None
    return found


def _whole(value: float) -> int:
    return math.floor(max(-MAX_TIME_MS, min(MAX_TIME_MS, value)) + 0.5)
