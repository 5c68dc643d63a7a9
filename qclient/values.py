"""Small frozen values that callers pass in or get back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from typing import Any

from qclient.checks import cron_expression, filled, flag, group_id, number, whole
from qclient.durations import Duration, instant_ms, to_ms, to_seconds, wire_number
from qcore.errors import ConfigError
from qcore.limits import MAX_BACKOFF_OPTION_MS, MAX_GROUP_PRIORITY


class JobState(StrEnum):
    """Where a job is; compares equal to the plain string."""

    WAITING = "waiting"
    PRIORITIZED = "prioritized"
    DELAYED = "delayed"
    ACTIVE = "active"
    COMPLETED = "completed"
    FAILED = "failed"
    WAITING_CHILDREN = "waiting-children"
    UNKNOWN = "unknown"


def job_state(text: str) -> JobState | str:
    """The enum member of ``text``, or the text itself when a newer engine sent it."""
    try:
        return JobState(text)
    except ValueError:
        return text


def _backoff_ms(value: Duration, name: str) -> int:
    ms = to_ms(value, name)
    if ms > MAX_BACKOFF_OPTION_MS:
        raise ConfigError(f"{name} must be at most a day, not {value!r}")
    return ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """What a job is tied to: results by id of what is completed, ids of the rest.

    ``failed`` are those that failed for good, ``ignored`` those whose failure was passed over, and
    ``missing`` those that are gone without having completed, or not added yet: the job waits for them.
    """

    processed: Mapping[str, Any]
    unprocessed: tuple[str, ...]
    failed: tuple[str, ...]
    ignored: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long a failed attempt waits before the next; made by the two constructors."""

    kind: str
    delay: Duration
    max: Duration | None = None
    jitter: float | None = None

    def __post_init__(self) -> None:
        if self.jitter is not None and not 0 <= number(self.jitter, "backoff jitter") <= 1:
            raise ConfigError(f"backoff jitter must be a number from 0 to 1, not {self.jitter!r}")
        if self.kind not in ("fixed", "exponential"):
            raise ConfigError(f"backoff kind must be 'fixed' or 'exponential', not {self.kind!r}")
        _backoff_ms(self.delay, "backoff delay")
        if self.max is not None:
            _backoff_ms(self.max, "backoff max")

    @classmethod
    def fixed(cls, delay: Duration) -> Backoff:
        """The same pause before every attempt, exactly."""
        # Said in full: by themselves engines vary it by a fifth, and cut it to an hour.
        return cls(kind="fixed", delay=delay, max=delay, jitter=0)

    @classmethod
    def exponential(cls, base: Duration = 1, *, max: Duration = 3600, jitter: float | None = None) -> Backoff:
        """``base`` doubled with every failed attempt, up to ``max``.

        With ``jitter`` (0 to 1) the first pause is ``base``, and each is shortened by up to
        that share; without it, the pauses are those of the protocol: twice as long, times
        0.5 to 1.5.
        """
        _backoff_ms(base, "backoff base")
        _backoff_ms(max, "backoff max")
        return cls(kind="exponential", delay=base, max=max, jitter=jitter)

    def to_wire(self) -> dict[str, object]:
        """The map form of the ``backoff`` field."""
        out: dict[str, object] = {"type": self.kind, "delay": wire_number(to_ms(self.delay))}
        if self.max is not None:
            out["maxDelay"] = wire_number(to_ms(self.max))
        if self.jitter is not None:
            out["jitter"] = float(self.jitter)
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """How many finished jobs, and for how long, stay readable; at least one of the two is given."""

    age: Duration | None = None
    count: int | None = None

    def __post_init__(self) -> None:
        self.to_wire()

    def to_wire(self) -> dict[str, object]:
        """The map form of the ``removeOn...`` fields."""
        out: dict[str, object] = {}
        if self.age is not None:
            out["age"] = to_seconds(self.age, "age")  # the one time that the wire counts in seconds
        if self.count is not None:
            out["count"] = whole(self.count, "count", 0)
        if not out:
            raise ConfigError("Keep needs age or count")
        return out


@dataclass(frozen=True, slots=True)
class Counts:
    """Jobs of one queue by state; ``failed`` is the size of its dead letter queue.

    While the queue is paused its ready jobs are counted under ``paused``.
    """

    waiting: int = 0
    prioritized: int = 0
    delayed: int = 0
    active: int = 0
    completed: int = 0
    failed: int = 0
    waiting_children: int = 0
    paused: int = 0

    @classmethod
    def from_wire(cls, raw: Mapping[str, Any]) -> Counts:
        """Read the reply of the engine."""
        return cls(**{f.name: int(raw.get(f.name.replace("_", "-"), 0)) for f in fields(cls)})

    @property
    def total(self) -> int:
        """All jobs, finished ones included."""
        return sum(getattr(self, f.name) for f in fields(self))

    @property
    def unfinished(self) -> int:
        """Jobs that can still run."""
        return self.total - self.completed - self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Dedup:
    """At most one live job of the queue has the key ``id``.

    A second add is dropped and its handle names the first job. ``ttl`` frees the key after
    that time; ``extend`` starts the time anew with each dropped add; ``replace`` removes a
    job that has not started in favour of the new one; ``keep_until_expiry`` holds the key
    for the whole ``ttl``, whatever becomes of the job.
    """

    id: str = field(kw_only=False)
    ttl: Duration | None = None
    extend: bool = False
    replace: bool = False
    keep_until_expiry: bool = False

    def __post_init__(self) -> None:
        filled(self.id, "dedup id")
        if self.ttl is not None:
            to_ms(self.ttl, "dedup ttl")
        for name in ("extend", "replace", "keep_until_expiry"):
            flag(getattr(self, name), f"dedup {name}")
        if self.ttl is None and (self.extend or self.keep_until_expiry):
            raise ConfigError("dedup: extend and keep_until_expiry need a ttl")

    def to_wire(self) -> dict[str, object]:
        """The map form of the ``dedup`` field."""
        out: dict[str, object] = {}
        if self.ttl is not None:
            out["ttl"] = wire_number(to_ms(self.ttl))
        for name, said in (
            ("extend", self.extend),
            ("replace", self.replace),
            ("keepUntilExpiry", self.keep_until_expiry),
        ):
            if said:
                out[name] = True
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Debounce:
    """Of the adds with one ``id`` the last one counts, ``wait`` after it came."""

    id: str = field(kw_only=False)
    wait: Duration

    def __post_init__(self) -> None:
        filled(self.id, "debounce id")
        to_ms(self.wait, "debounce wait")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The lane of a queue that a job goes into; groups take turns.

    ``priority``: 0 to 2,097,151, lower first inside the group. ``max_size``: refuse the add
    when so many jobs of the group are queued.
    """

    id: str = field(kw_only=False)
    priority: int = 0
    max_size: int | None = None

    def __post_init__(self) -> None:
        group_id(self.id)
        whole(self.priority, "group priority", 0, MAX_GROUP_PRIORITY)
        if self.max_size is not None:
            whole(self.max_size, "group max_size", 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """Run a job again when a run of it has ended; exactly one of ``every`` and ``cron``.

    ``limit`` is the number of runs after the first. A run that fails for good ends the
    repetition if ``continue_on_failure`` is False. For work that belongs to the wall clock,
    see ``queue.schedules``.
    """

    every: Duration | None = None
    cron: str | None = None
    tz: str | None = None
    limit: int | None = None
    start: datetime | None = None
    end: datetime | None = None
    immediately: bool = False
    offset: Duration = 0
    continue_on_failure: bool = True

    def __post_init__(self) -> None:
        if (self.every is None) == (self.cron is None):
            raise ConfigError("repeat needs exactly one of every and cron")
        if self.tz is not None and self.cron is None:
            raise ConfigError("repeat: a tz belongs to a cron pattern")
        if self.cron is not None:
            cron_expression(self.cron, self.tz, "repeat cron")
        if self.limit is not None:
            whole(self.limit, "repeat limit", 0)
        self.to_wire()
        if self.start is not None and self.end is not None and self.end < self.start:
            raise ConfigError("repeat: end is before start")

    def to_wire(self) -> dict[str, object]:
        """The ``repeat`` field."""
        out: dict[str, object] = {}
        if self.every is not None:
            every_ms = to_ms(self.every, "repeat every")
            if not every_ms:
                raise ConfigError(f"repeat every must be longer than 0, not {self.every!r}")
            out["every"] = wire_number(every_ms)
        for name, text in (("pattern", self.cron), ("tz", self.tz)):
            if text is not None:
                out[name] = filled(text, f"repeat {name}")
        if self.limit is not None:
            out["limit"] = self.limit
        for name, moment in (("startDate", self.start), ("endDate", self.end)):
            if moment is not None:
                out[name] = wire_number(instant_ms(moment, name.removesuffix("Date")))
        offset_ms = to_ms(self.offset, "repeat offset")
        if offset_ms:
            out["offset"] = wire_number(offset_ms)
        # Both are said in either case: an engine has defaults of its own.
        out["immediately"] = flag(self.immediately, "repeat immediately")
        out["continueOnFailure"] = flag(self.continue_on_failure, "repeat continue_on_failure")
        return out


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most ``max`` starts in the time ``per``."""

    max: int
    per: Duration = 1

    def __post_init__(self) -> None:
        whole(self.max, "max", 0)
        if not to_ms(self.per, "per"):
            raise ConfigError(f"per must be longer than 0, not {self.per!r}")

    def to_wire(self) -> dict[str, object]:
        """The map form, as pulls send it for groups."""
        return {"max": self.max, "duration": wire_number(to_ms(self.per))}

    @classmethod
    def from_wire(cls, raw: Mapping[str, Any] | None) -> RateLimit | None:
        """Read the reply of the engine."""
        return None if raw is None else cls(int(raw["max"]), raw["duration"] / 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """What a worker allows each group: active jobs, and starts in a time."""

    concurrency: int | None = None
    rate: RateLimit | None = None

    def __post_init__(self) -> None:
        if self.concurrency is not None:
            whole(self.concurrency, "group concurrency", 1)
        if self.concurrency is None and self.rate is None:
            raise ConfigError("GroupLimits needs concurrency or rate")
        if self.rate is not None:
            if not isinstance(self.rate, RateLimit):
                raise TypeError(f"group rate must be a RateLimit, not {type(self.rate).__name__}")
            whole(self.rate.max, "group rate", 1)

    def to_wire(self) -> dict[str, object]:
        """The ``group`` field of a pull."""
        out: dict[str, object] = {}
        if self.concurrency is not None:
            out["concurrency"] = self.concurrency
        if self.rate is not None:
            out["limit"] = self.rate.to_wire()
        return out
