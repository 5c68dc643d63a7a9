"""A producer's view of one job."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from qclient.durations import Duration, to_seconds
from qclient.values import JobState, job_state
from qclient.waiting import wait_for_result
from qcore.errors import NotFoundError

if TYPE_CHECKING:
    from qclient.client import Client


def moment(ms: object) -> datetime | None:
    """An aware ``datetime`` from the milliseconds of the wire."""
    return None if not isinstance(ms, (int, float)) else datetime.fromtimestamp(ms / 1000, UTC)


class Job:
    """A handle: the id is known, everything else is read when first asked for.

    What was read is a snapshot; :meth:`refresh` reads again.
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
        return self.raw.get("data")

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
        return self.raw.get("returnvalue")

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
