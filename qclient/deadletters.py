"""``queue.dlq`` and ``queue.stall``: jobs that failed for good, and deliveries that fell silent."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final, TypedDict, Unpack

from qclient.checks import filled, flag, whole
from qclient.durations import Duration, to_ms, wire_number
from qclient.job import Job, moment
from qclient.section import Section
from qcore.errors import ConfigError


class Unchanged(Enum):
    """A setting that is not given, where None is a value."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED


@dataclass(frozen=True, slots=True)
class DeadJob:
    """One entry of the dead letter queue."""

    job: Job
    reason: str
    error: str | None
    entered_at: datetime | None
    retries: int
    last_retry_at: datetime | None = None
    next_retry_at: datetime | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class DeadLetterStats:
    """Dead letters of a queue, counted."""

    total: int
    by_reason: Mapping[str, int]
    pending_retry: int
    expired: int
    oldest: datetime | None
    newest: datetime | None


@dataclass(frozen=True, slots=True)
class DeadLetterConfig:
    """How long dead letters are kept, and whether they are retried by themselves; times in seconds."""

    auto_retry: bool
    auto_retry_interval: float
    max_auto_retries: int
    max_age: float | None
    max_entries: int


@dataclass(frozen=True, slots=True)
class StallConfig:
    """When a delivery without a sign of life is given up; times in seconds."""

    enabled: bool
    interval: float
    max_stalls: int
    grace: float


class DeadLetterFilter(TypedDict, total=False):
    """Which dead letters are meant; ``older_than`` and ``newer_than`` are ages since their entry."""

    reason: str
    older_than: Duration
    newer_than: Duration
    retriable: bool
    expired: bool
    limit: int
    offset: int


def _filter(chosen: DeadLetterFilter) -> dict[str, object]:
    out: dict[str, object] = {}
    for name, value in chosen.items():
        if value is None:
            continue
        if name == "reason":
            out["reason"] = filled(value, name)
        elif name in ("older_than", "newer_than"):
            # The engine compares times of entry.
            age_ms = to_ms(value, name)  # type: ignore[arg-type]
            wire = "olderThan" if name == "older_than" else "newerThan"
            out[wire] = float(time.time_ns() // 1_000_000 - age_ms)
        elif name in ("retriable", "expired"):
            out[name] = flag(value, name)
        elif name in ("limit", "offset"):
            out[name] = whole(value, name, 0)
        else:
            raise TypeError(f"unknown filter {name!r} for dead letters")
    return out


class DeadLetters(Section):
    """``queue.dlq``: the jobs that failed for good."""

    __slots__ = ()

    def list(self, **filter: Unpack[DeadLetterFilter]) -> list[DeadJob]:
        """Entries, oldest first."""
        chosen = _filter(filter)
        reply = self._ask("Dlq", **({"filter": chosen} if chosen else {}))
        return [self._entry(entry) for entry in reply.get("entries") or ()]

    def _entry(self, entry: Mapping[str, Any]) -> DeadJob:
        raw = dict(entry["job"])
        raw.setdefault("state", "failed")
        return DeadJob(
            job=Job(self._client, self._queue, raw["id"], raw),
            reason=str(entry.get("reason")),
            error=entry.get("error"),
            entered_at=moment(entry.get("enteredAt")),
            retries=int(entry.get("retryCount") or 0),
            last_retry_at=moment(entry.get("lastRetryAt")),
            next_retry_at=moment(entry.get("nextRetryAt")),
            expires_at=moment(entry.get("expiresAt")),
        )

    def stats(self) -> DeadLetterStats:
        """How many there are, and why."""
        raw = self._ask("GetDlqStats")["data"]["stats"]
        return DeadLetterStats(
            total=int(raw["total"]),
            by_reason={reason: int(n) for reason, n in raw["byReason"].items()},
            pending_retry=int(raw["pendingRetry"]),
            expired=int(raw["expired"]),
            oldest=moment(raw["oldestEntry"]),
            newest=moment(raw["newestEntry"]),
        )

    def retry(self, job_id: str | None = None, **filter: Unpack[DeadLetterFilter]) -> int:
        """Start one, those of a filter or all of them over, with no attempts made; returns how many.

        A job whose unique key another job holds by now is left, and not counted.
        """
        fields: dict[str, object] = {}
        if job_id is not None:
            if filter:
                raise ConfigError("a job id and a filter were both given")
            fields["jobId"] = filled(job_id, "job_id")
        elif chosen := _filter(filter):
            fields["filter"] = chosen
        return int(self._change("RetryDlq", **fields)["count"])

    def remove(self, job_id: str) -> bool:
        """Remove one; False when it is not there."""
        return bool(self._change("RemoveDlqJob", jobId=filled(job_id, "job_id"))["data"]["removed"])

    def purge(self) -> int:
        """Remove all of them; returns how many."""
        return int(self._change("PurgeDlq")["count"])

    @property
    def config(self) -> DeadLetterConfig:
        """The settings; reads them each time."""
        raw = self._ask("GetDlqConfig")["config"]
        return DeadLetterConfig(
            auto_retry=bool(raw["autoRetry"]),
            auto_retry_interval=raw["autoRetryInterval"] / 1000,
            max_auto_retries=int(raw["maxAutoRetries"]),
            max_age=None if raw["maxAge"] is None else raw["maxAge"] / 1000,
            max_entries=int(raw["maxEntries"]),
        )

    def configure(
        self,
        *,
        auto_retry: bool | None = None,
        auto_retry_interval: Duration | None = None,
        max_auto_retries: int | None = None,
        max_age: Duration | Unchanged | None = UNCHANGED,
        max_entries: int | None = None,
    ) -> None:
        """Change what is given; ``max_age=None`` keeps them for ever."""
        config: dict[str, object] = {}
        if auto_retry is not None:
            config["autoRetry"] = flag(auto_retry, "auto_retry")
        if auto_retry_interval is not None:
            config["autoRetryInterval"] = wire_number(to_ms(auto_retry_interval, "auto_retry_interval"))
        if max_auto_retries is not None:
            config["maxAutoRetries"] = whole(max_auto_retries, "max_auto_retries", 0)
        if max_age is None:
            config["maxAge"] = None
        elif not isinstance(max_age, Unchanged):
            config["maxAge"] = wire_number(to_ms(max_age, "max_age"))
        if max_entries is not None:
            config["maxEntries"] = whole(max_entries, "max_entries", 1)
        self._ask("SetDlqConfig", config=config)


class Stalls(Section):
    """``queue.stall``: when a silent delivery is given up."""

    __slots__ = ()

    @property
    def config(self) -> StallConfig:
        """The settings; reads them each time."""
        raw = self._ask("GetStallConfig")["config"]
        return StallConfig(
            enabled=bool(raw["enabled"]),
            interval=raw["stallInterval"] / 1000,
            max_stalls=int(raw["maxStalls"]),
            grace=raw["gracePeriod"] / 1000,
        )

    def configure(
        self,
        *,
        enabled: bool | None = None,
        interval: Duration | None = None,
        max_stalls: int | None = None,
        grace: Duration | None = None,
    ) -> None:
        """Change what is given; ``max_stalls=0`` is no limit."""
        config: dict[str, object] = {}
        if enabled is not None:
            config["enabled"] = flag(enabled, "enabled")
        for wire, name, value in (("stallInterval", "interval", interval), ("gracePeriod", "grace", grace)):
            if value is not None:
                config[wire] = wire_number(to_ms(value, name))
        if max_stalls is not None:
            config["maxStalls"] = whole(max_stalls, "max_stalls", 0)
        self._ask("SetStallConfig", config=config)


class UniqueKeys(Section):
    """``queue.dedup``: who holds a unique key."""

    __slots__ = ()

    def owner(self, key: str) -> str | None:
        """The id of the job that holds it."""
        owner: str | None = self._ask("GetDeduplicationJobId", deduplicationId=filled(key, "key"))["data"][
            "jobId"
        ]
        return owner

    def release(self, key: str) -> bool:
        """Free it; the job that held it goes on. False when nobody held it."""
        return bool(
            self._change("RemoveDeduplicationKey", deduplicationId=filled(key, "key"))["data"]["count"]
        )
