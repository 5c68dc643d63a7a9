"""``queue.schedules``: jobs that are added by the clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Unpack

from qclient.checks import cron_expression, filled, flag, text, whole
from qclient.client import Client
from qclient.codec import pack_payload
from qclient.durations import Duration, to_ms, wire_number
from qclient.job import moment
from qclient.options import JobOptions, to_wire
from qclient.section import Section
from qcore.errors import CommandError, ConfigError, NotFoundError

#: Options of each job that stand in a map of their own, and those beside it.
_OCCURRENCE: Final = frozenset(
    {"maxAttempts", "backoff", "timeout", "delay", "stallTimeout", "removeOnComplete", "removeOnFail"}
)
_BESIDE: Final = frozenset({"priority", "uniqueKey", "dedup"})
_ALLOWED: Final = (
    "priority", "attempts", "backoff", "timeout", "delay", "stall_timeout",
    "remove_on_complete", "remove_on_fail", "dedup",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as it stands; ``every`` in seconds, ``runs`` counts those that were added."""

    id: str
    queue: str
    name: str
    cron: str | None
    every: float | None
    tz: str | None
    next_run: datetime | None
    runs: int
    limit: int | None
    priority: float

    @classmethod
    def from_wire(cls, raw: Mapping[str, Any]) -> Schedule:
        """Read the reply of the engine."""
        every, limit = raw["repeatEvery"], raw["maxLimit"]
        return cls(
            id=raw["name"],
            queue=raw["queue"],
            name=raw["jobName"],
            cron=raw["schedule"],
            every=None if every is None else every / 1000,
            tz=raw["timezone"],
            next_run=moment(raw["nextRun"]),
            runs=int(raw["executions"]),
            limit=None if limit is None else int(limit),
            priority=raw["priority"],
        )


class Schedules(Section):
    """``queue.schedules``: schedules that add jobs to this queue.

    Their ids are one set for all queues: an ``upsert`` under the id of another queue's
    schedule moves that one here.
    """

    __slots__ = ()

    def __init__(self, client: Client, queue: str) -> None:
        super().__init__(client, queue)

    def upsert(
        self,
        id: str,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str | None = None,
        limit: int | None = None,
        immediately: bool = False,
        skip_missed: bool = True,
        skip_if_no_worker: bool = False,
        prevent_overlap: bool = True,
        name: str | None = None,
        data: Any = None,
        **options: Unpack[JobOptions],
    ) -> Schedule:
        """Create or change a schedule; the same one again changes nothing.

        Exactly one of ``cron``, an expression in the zone ``tz`` (UTC), and ``every``.
        ``limit`` is the number of runs in all; ``immediately`` runs a new schedule at once.
        ``skip_missed``: what came due while the engine was down is not run.
        ``prevent_overlap``: a slot is passed over while the last job is not finished.
        Of the job options, those that say when and how often one job runs are taken.

        :raises ConfigError: an option, the expression or the zone is not usable
        """
        if (cron is None) == (every is None):
            raise ConfigError("a schedule needs exactly one of cron and every")
        fields: dict[str, object] = {"name": filled(id, "id")}
        if cron is not None:
            fields["schedule"] = cron_expression(cron, tz, "cron")
        if every is not None:
            every_ms = to_ms(every, "every")
            if not every_ms:
                raise ConfigError("every must be longer than 0")
            fields["repeatEvery"] = wire_number(every_ms)
        if tz is not None:
            if cron is None:
                raise ConfigError("a tz belongs to a cron expression")
            fields["timezone"] = filled(tz, "tz")
        if limit is not None:
            fields["maxLimit"] = whole(limit, "limit", 1)
        if name is not None:
            fields["jobName"] = filled(name, "name")
        for wire, what, value in (
            ("immediately", "immediately", immediately),
            ("skipMissedOnRestart", "skip_missed", skip_missed),
            ("skipIfNoWorker", "skip_if_no_worker", skip_if_no_worker),
            ("preventOverlap", "prevent_overlap", prevent_overlap),
        ):
            fields[wire] = flag(value, what)
        fields |= self._options(options)
        can = self._client.greeted()
        raw = (
            ()
            if data is None
            else (("data", pack_payload(data, typed="typed" in can, int64="int64" in can)),)
        )
        try:
            reply = self._client.call("Cron", {"queue": self._queue, **fields}, raw)
        except CommandError as exc:
            if exc.message.startswith(("Invalid cron expression", "Cron ")):
                raise ConfigError(exc.message) from None
            raise
        return Schedule.from_wire(reply["cron"])

    @staticmethod
    def _options(options: JobOptions) -> dict[str, object]:
        wire = to_wire(options)
        occurrence = {key: wire.pop(key) for key in list(wire) if key in _OCCURRENCE}
        if set(wire) - _BESIDE:
            taken = ", ".join(_ALLOWED)
            wrong = ", ".join(name for name in options if name not in _ALLOWED)
            raise ConfigError(f"job options that a schedule does not take: {wrong}; it takes {taken}")
        return {**wire, "jobOptions": occurrence} if occurrence else wire

    def get(self, id: str) -> Schedule | None:
        """One schedule of this queue, or None."""
        try:
            raw = self._client.call("CronGet", {"name": filled(id, "id")})["cron"]
        except NotFoundError:
            return None
        return Schedule.from_wire(raw) if raw["queue"] == self._queue else None

    def list(self) -> list[Schedule]:
        """The schedules of this queue, by their next run."""
        listed = self._client.call("CronList")["crons"]
        return [Schedule.from_wire(raw) for raw in listed if raw["queue"] == self._queue]

    def count(self) -> int:
        """How many there are."""
        return len(self.list())

    def remove(self, id: str) -> bool:
        """Remove one, with its queued job; False when this queue has none of that id."""
        if self.get(text(id, "id")) is None:
            return False
        try:
            self._client.call("CronDelete", {"name": id}, repeatable=False)
        except NotFoundError:
            return False
        return True
