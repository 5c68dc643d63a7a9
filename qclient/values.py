"""Small frozen values that callers pass in or get back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from qclient.durations import Duration, to_ms, wire_number
from qcore.errors import ConfigError


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long a failed attempt waits before the next; made by the two constructors."""

    kind: str
    delay: Duration
    max: Duration | None = None
    jitter: float | None = None

    def __post_init__(self) -> None:
        if self.jitter is not None and not (
            isinstance(self.jitter, (int, float))
            and not isinstance(self.jitter, bool)
            and 0 <= self.jitter <= 1
        ):
            raise ConfigError(f"backoff jitter must be a number from 0 to 1, not {self.jitter!r}")
        if self.kind not in ("fixed", "exponential"):
            raise ConfigError(f"backoff kind must be 'fixed' or 'exponential', not {self.kind!r}")
        to_ms(self.delay, "backoff delay")
        if self.max is not None:
            to_ms(self.max, "backoff max")

    @classmethod
    def fixed(cls, delay: Duration) -> Backoff:
        """The same pause before every attempt."""
        return cls(kind="fixed", delay=delay)

    @classmethod
    def exponential(cls, base: Duration = 1, *, max: Duration = 3600, jitter: float | None = None) -> Backoff:
        """``base`` doubled with every failed attempt, up to ``max``.

        With ``jitter`` (0 to 1) the first pause is ``base``, and each is shortened by up to
        that share; without it, the pauses are those of the protocol: twice as long, times
        0.5 to 1.5.
        """
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
    """How many finished jobs, and for how long, stay readable."""

    age: Duration | None = None
    count: int | None = None

    def to_wire(self) -> dict[str, object]:
        """The map form of the ``removeOn...`` fields."""
        out: dict[str, object] = {}
        if self.age is not None:
            out["age"] = wire_number(to_ms(self.age, "age"))
        if self.count is not None:
            if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 0:
                raise ConfigError(f"count must be a whole number of jobs, not {self.count!r}")
            out["count"] = self.count
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
