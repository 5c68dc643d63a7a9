"""A producer's view of one job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from qclient.checks import flag, line, log_level, number, whole
from qclient.codec import pack_payload, readable
from qclient.durations import Duration, to_ms, to_seconds, wire_number
from qclient.values import Dependencies, JobState, job_state
from qclient.waiting import wait_for_result
from qcore.errors import CommandError, JobFailedError, NotFoundError, StateError, WaitTimeout

if TYPE_CHECKING:
    from qclient.client import Client


def moment(ms: object) -> datetime | None:
    """An aware ``datetime`` from the milliseconds of the wire."""
    return None if not isinstance(ms, (int, float)) else datetime.fromtimestamp(ms / 1000, UTC)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the log of a job."""

    at: datetime | None
    level: str
    message: str


class Job:
    """A handle: the id is known, everything else is read when first asked for.

    What was read is a snapshot; :meth:`refresh` reads again. Changes are made as an
    administrator: of a job that a worker runs under a lease, some are refused with a
    ``LeaseError``. A change that comes too late answers False.
    """

    __slots__ = ("_client", "_raw", "id", "queue")

    def __init__(self, client: Client, queue: str, job_id: str, raw: dict[str, Any] | None = None) -> None:
        self._client = client
        self._raw = raw
        self.id = job_id
        self.queue = queue

    @property
    def raw(self) -> dict[str, Any]:
        """The snapshot as the engine sent it, times in milliseconds."""
        if self._raw is None:
            self.refresh()
        assert self._raw is not None
        return self._raw

    def refresh(self) -> Job:
        """Read the job again; ``NotFoundError`` when it is gone."""
        self._raw = self._client.call("GetJob", {"id": self.id})["job"]
        return self

    def result(self, timeout: Duration | None = None) -> Any:
        """Wait until the job ends and return its result.

        Of a job that was removed when it was completed, the result is there for those who
        waited for it by then; later it is None, also if the job returned something.
        Raises ``JobFailedError`` when it failed for good, ``JobLostError`` when it
        is gone and ``WaitTimeout`` after ``timeout``.
        """
        return wait_for_result(
            self._client, self.id, None if timeout is None else to_seconds(timeout, "timeout")
        )

    @property
    def state(self) -> JobState | str:
        """State in the snapshot."""
        raw = self.raw
        state = raw.get("state")
        if state is None:
            state = self._client.call("GetState", {"id": self.id})["state"]
            raw["state"] = state
        return job_state(state)

    @property
    def name(self) -> str:
        return str(self.raw["name"])

    @property
    def data(self) -> Any:
        """What it was added with; ``SerializationError`` when that has no counterpart here."""
        return readable(self.raw.get("data"))

    @property
    def priority(self) -> float:
        return self.raw["priority"]  # type: ignore[no-any-return]

    @property
    def progress(self) -> float:
        return self.raw.get("progress") or 0

    @property
    def attempts_made(self) -> int:
        """Failed attempts so far."""
        return int(self.raw["attempts"])

    @property
    def max_attempts(self) -> int:
        return int(self.raw["maxAttempts"])

    @property
    def returnvalue(self) -> Any:
        """What it returned; ``SerializationError`` when that has no counterpart here."""
        return readable(self.raw.get("returnvalue"))

    @property
    def failed_reason(self) -> str | None:
        return self.raw.get("failedReason")

    @property
    def stacktrace(self) -> list[str]:
        return list(self.raw.get("stacktrace") or ())

    @property
    def created_at(self) -> datetime | None:
        return moment(self.raw.get("createdAt"))

    @property
    def run_at(self) -> datetime | None:
        return moment(self.raw.get("runAt"))

    @property
    def started_at(self) -> datetime | None:
        return moment(self.raw.get("startedAt"))

    @property
    def finished_at(self) -> datetime | None:
        return moment(self.raw.get("completedAt"))

    @property
    def progress_message(self) -> str | None:
        return self.raw.get("progressMessage")

    @property
    def stalled_count(self) -> int:
        """Deliveries that were lost."""
        return int(self.raw.get("stallCount") or 0)

    @property
    def tags(self) -> list[str]:
        return list(self.raw.get("tags") or ())

    @property
    def group(self) -> str | None:
        return self.raw.get("groupId")

    @property
    def dedup_key(self) -> str | None:
        """The unique key that it was added with."""
        return self.raw.get("uniqueKey")

    @property
    def parent_id(self) -> str | None:
        return self.raw.get("parentId")

    @property
    def children_ids(self) -> list[str]:
        return list(self.raw.get("childrenIds") or ())

    @property
    def depends_on(self) -> list[str]:
        """Jobs that must complete first, those that have completed too."""
        return list(self.raw.get("dependsOn") or ())

    # ---------------------------------------------------------------- changing

    def _change(self, command: str, **fields: object) -> dict[str, Any]:
        # Not sent again: after a lost reply the caller is told, and looks.
        return self._client.call(command, {"id": self.id, **fields}, repeatable=False)

    def _may_be_late(self, command: str, **fields: object) -> bool:
        """Run a change that answers False when the job has gone on meanwhile."""
        try:
            self._change(command, **fields)
        except StateError:
            return False
        return True

    def promote(self) -> bool:
        """Make it ready; False when it is not delayed."""
        return self._may_be_late("Promote")

    def change_delay(self, delay: Duration) -> bool:
        """Let it start that much later from now; False when it cannot be delayed any more."""
        return self._may_be_late("ChangeDelay", delay=wire_number(to_ms(delay, "delay")))

    def change_priority(self, priority: float, *, lifo: bool | None = None) -> bool:
        """Give it another place; False when it is not queued."""
        checked = number(priority, "priority")
        wire = wire_number(checked) if isinstance(checked, int) else checked
        fields: dict[str, object] = {} if lifo is None else {"lifo": flag(lifo, "lifo")}
        return self._may_be_late("ChangePriority", priority=wire, **fields)

    def update_data(self, data: Any) -> None:
        """Give a job that is not finished new data; ``StateError`` when it is."""
        can = self._client.greeted()
        payload = pack_payload(data, typed="typed" in can, int64="int64" in can)
        self._client.call("Update", {"id": self.id}, (("data", payload),))

    def discard(self) -> None:
        """Make a queued job a dead letter."""
        self._change("Discard")

    def retry(self) -> None:
        """Start a failed or completed job over, with no attempts made.

        :raises StateError: it is neither, a job that is not finished needs its result, or another one
            holds its unique key
        """
        retried(self._client, self.id)

    def remove(self) -> bool:
        """Remove a queued or failed job; False when it is not there. ``StateError`` in other states."""
        return removed(self._client, self.id)

    def release_dedup(self) -> bool:
        """Free its unique key; False when it does not hold one."""
        return bool(self._change("RemoveJobDeduplicationKey")["data"]["removed"])

    # --------------------------------------------------------- progress and log

    def set_progress(self, progress: float, message: str | None = None) -> None:
        """Report the progress of an active job, 0 to 100."""
        fields: dict[str, object] = {} if message is None else {"message": line(message, "message")}
        self._client.call("Progress", {"id": self.id, "progress": number(progress, "progress"), **fields})

    def log(self, message: str, level: str = "info") -> None:
        """Add a line to its log."""
        self._change("AddLog", message=line(message, "message"), level=log_level(level))

    def logs(self, offset: int = 0, limit: int | None = None) -> list[LogLine]:
        """Lines of its log, oldest first."""
        start = whole(offset, "offset", 0)
        fields: dict[str, object] = {"id": self.id, "start": start}
        if limit is not None:
            if whole(limit, "limit", 0) == 0:
                return []
            fields["end"] = start + limit - 1
        lines = self._client.call("GetLogs", fields)["data"]["logs"]
        return [LogLine(moment(one["timestamp"]), one["level"], one["message"]) for one in lines]

    def clear_logs(self, keep: int = 0) -> None:
        """Remove its log but for the newest ``keep`` lines."""
        self._client.call("ClearLogs", {"id": self.id, "keepLogs": whole(keep, "keep", 0)})

    # ----------------------------------------------------------------- children

    def children_values(self) -> dict[str, Any]:
        """Results of the children that have completed, by ``"queue:id"``."""
        values = self._client.call("GetChildrenValues", {"id": self.id})["data"]["values"]
        return {child: readable(value) for child, value in values.items()}

    def failed_children(self) -> dict[str, str]:
        """Errors of children whose failure let this job go on (``on_child_failure="continue"``)."""
        return dict(self._client.call("GetFailedChildrenValues", {"id": self.id})["values"])

    def ignored_children(self) -> dict[str, str]:
        """Errors of children whose failure was ignored (``on_child_failure="ignore"``)."""
        return dict(self._client.call("GetIgnoredChildrenFailures", {"id": self.id})["values"])

    def dependencies(self, limit: int | None = None) -> Dependencies:
        """What it is tied to; of each kind at most ``limit``."""
        fields = {} if limit is None else {"limit": whole(limit, "limit", 0)}
        data = self._client.call("GetDependencies", {"id": self.id, **fields})["data"]
        return Dependencies(
            processed={child: readable(value) for child, value in data["processed"].items()},
            **{kind: tuple(data[kind]) for kind in ("unprocessed", "failed", "ignored", "missing")},
        )

    def dependency_counts(self) -> dict[str, int]:
        """How many of each kind of :meth:`dependencies` there are."""
        return dict(self._client.call("GetDependencies", {"id": self.id, "limit": 0})["data"]["counts"])

    def remove_child_dependency(self) -> bool:
        """Let the parent wait for this job no longer; False when it did not."""
        return bool(self._change("RemoveChildDependency")["removed"])

    def remove_unprocessed_children(self) -> None:
        """Remove the children that have not started; without any left, this job may run."""
        self._client.call("RemoveUnprocessedChildren", {"id": self.id})

    # ------------------------------------------------------------------ waiting

    def done(self) -> bool:
        """Whether it has ended, in success or for good."""
        return self.refresh().state in (JobState.COMPLETED, JobState.FAILED)

    def wait(self, timeout: Duration | None = None) -> bool:
        """Wait until it ends, in success or for good; False after ``timeout``."""
        try:
            self.result(timeout)
        except JobFailedError:
            return True
        except WaitTimeout:
            return False
        return True

    def exists(self) -> bool:
        """Whether the engine still knows the job."""
        try:
            self.refresh()
        except NotFoundError:
            return False
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id and other._client.target == self._client.target

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        state = "" if self._raw is None else f" {self._raw.get('name')!r} {self._raw.get('state', '?')}"
        return f"<Job {self.id!r} in {self.queue!r}{state}>"


def retried(client: Client, job_id: str) -> None:
    """Start a failed or completed job over."""
    job = client.call("GetJob", {"id": job_id})["job"]
    state, queue = job["state"], job["queue"]
    if state == "failed":
        reply = client.call("RetryDlq", {"queue": queue, "jobId": job_id}, repeatable=False)
    elif state == "completed":
        reply = client.call("RetryCompleted", {"queue": queue, "id": job_id}, repeatable=False)
    else:
        raise StateError(f"job {job_id!r} is {state}; only failed and completed jobs are retried")
    if reply["count"]:
        return
    if client.call("GetState", {"id": job_id})["state"] != state:
        raise StateError(f"job {job_id!r} has changed meanwhile")
    reasons = [] if state == "failed" else ["a job that is not finished needs its result"]
    if job.get("uniqueKey") is not None:
        reasons.append("another job holds its unique key")
    why = " or ".join(reasons) if reasons else "the engine refuses"
    raise StateError(f"job {job_id!r} is {state} and is not started over: {why}")


def removed(client: Client, job_id: str) -> bool:
    """Remove a queued or failed job; False when it is not there."""
    try:
        client.call("Cancel", {"id": job_id}, repeatable=False)
    except CommandError as refusal:
        state = client.call("GetState", {"id": job_id})["state"]
        if state == "unknown":
            return False
        if state != "failed":
            raise StateError(
                f"job {job_id!r} is {state}; only queued and failed jobs are removed"
            ) from refusal
        queue = client.call("GetJob", {"id": job_id})["job"]["queue"]
        gone = client.call("RemoveDlqJob", {"queue": queue, "jobId": job_id}, repeatable=False)
        return bool(gone["data"]["removed"])
    return True
