"""The producer's side of a queue."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Unpack

from qclient.client import Client
from qclient.codec import NIL, pack_payload
from qclient.job import Job, moment
from qclient.options import JobOptions, to_wire
from qclient.protocol import array_header, map_body, map_header
from qclient.url import resolve
from qclient.values import Counts, JobState, job_state
from qcore.errors import ConfigError, NotFoundError, SerializationError
from qcore.limits import MAX_DATA_BYTES, MAX_NAME_CHARS

_BULK_JOBS = 1000
_BULK_BYTES = 16 * 1024 * 1024
_NAME_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:-")


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job of ``add_bulk``: a name, its data and options as for ``add``."""

    name: str
    data: Any = None
    options: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class DeadJob:
    """One entry of the dead letter queue."""

    job: Job
    reason: str
    error: str | None
    entered_at: datetime | None
    retries: int


def queue_name(name: str) -> str:
    """Check the name of a queue as the engine will."""
    if not isinstance(name, str):
        raise TypeError(f"queue name must be a string, not {type(name).__name__}")
    if not name:
        raise ConfigError("queue name must not be empty")
    if len(name) > MAX_NAME_CHARS:
        raise ConfigError(f"queue name has {len(name)} characters; at most {MAX_NAME_CHARS}")
    if not _NAME_CHARS.issuperset(name):
        raise ConfigError(f"queue name {name!r} may hold letters, digits and _ . : - only")
    return name


def _job_name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"job name must be a string, not {type(name).__name__}")
    if not 1 <= len(name) <= MAX_NAME_CHARS:
        raise ConfigError(f"job name must have 1 to {MAX_NAME_CHARS} characters, not {len(name)}")
    return name


class DeadLetters:
    """``queue.dlq``: the jobs that failed for good."""

    __slots__ = ("_client", "_name")

    def __init__(self, client: Client, name: str) -> None:
        # Not the queue itself: a cycle would delay the warning of a queue dropped open.
        self._client = client
        self._name = name

    def list(self, *, limit: int | None = None, offset: int = 0) -> list[DeadJob]:
        """Entries, oldest first."""
        fields: dict[str, object] = {"queue": self._name}
        chosen: dict[str, object] = {}
        if limit is not None:
            chosen["limit"] = limit
        if offset:
            chosen["offset"] = offset
        if chosen:
            fields["filter"] = chosen
        reply = self._client.call("Dlq", fields)
        return [self._entry(entry) for entry in reply.get("entries") or ()]

    def _entry(self, entry: Mapping[str, Any]) -> DeadJob:
        raw = dict(entry["job"])
        raw.setdefault("state", "failed")
        return DeadJob(
            job=Job(self._client, self._name, raw["id"], raw),
            reason=str(entry.get("reason")),
            error=entry.get("error"),
            entered_at=moment(entry.get("enteredAt")),
            retries=int(entry.get("retryCount") or 0),
        )


class Queue:
    """A named queue of one engine.

    ``url`` says where the engine runs: ``memory://``, ``sqlite:///jobs.db`` or
    ``tcp://host:port``; without it ``QCORE_URL``, ``BUNQUEUE_EMBEDDED`` and the
    default port are tried, in this order. Nothing is opened before the first
    command. Thread-safe.
    """

    def __init__(self, name: str, url: str | None = None) -> None:
        self.name = queue_name(name)
        self.client = Client(resolve(url))
        self.dlq = DeadLetters(self.client, name)

    # ------------------------------------------------------------------ adding

    def add(self, name: str, data: Any = None, **options: Unpack[JobOptions]) -> Job:
        """Add one job and return its handle once the engine has it.

        With a ``job_id`` that is alive already the existing job is meant and nothing
        is added. Raises ``ConfigError`` for an option, ``SerializationError`` for
        data that cannot be carried; nothing was sent then.
        """
        fields = to_wire(options)
        fields["queue"] = self.name
        fields["name"] = _job_name(name)
        payload = self._payload(data)
        reply = self.client.call(
            "PUSH", fields, (("data", payload),), repeatable="jobId" in fields, dated=True
        )
        return Job(self.client, self.name, reply["id"])

    def add_bulk(self, jobs: Iterable[JobSpec | tuple[Any, ...] | Mapping[str, Any]]) -> list[Job]:
        """Add many jobs; each is a ``JobSpec``, a ``(name, data, options)`` tuple or a dict.

        All are checked before anything is sent. Up to 1000 jobs or 16 MiB go in one
        command, which adds all of them or none; beyond that several commands are
        sent, in order.
        """
        packed: list[bytes] = []
        ids_given = True
        heads: dict[str, bytes] = {}
        for i, job in enumerate(jobs):
            try:
                body, has_id = self._bulk_item(job, heads)
            except ConfigError as exc:
                raise ConfigError(*(f"jobs[{i}]: {problem}" for problem in exc.problems)) from None
            except (SerializationError, TypeError) as exc:
                raise type(exc)(f"jobs[{i}]: {exc}") from None
            packed.append(body)
            ids_given = ids_given and has_id
        out: list[Job] = []
        start = 0
        while start < len(packed):
            stop = min(len(packed), start + _BULK_JOBS)
            # Mostly the first look says that all of them fit.
            while stop - start > 1 and sum(map(len, packed[start:stop])) > _BULK_BYTES:
                stop = start + (stop - start) // 2
            raw = array_header(stop - start) + b"".join(packed[start:stop])
            reply = self.client.call(
                "PUSHB", {"queue": self.name}, (("jobs", raw),), repeatable=ids_given, dated=True
            )
            out.extend(Job(self.client, self.name, job_id) for job_id in reply["ids"])
            start = stop
        return out

    def _bulk_item(self, job: Any, heads: dict[str, bytes]) -> tuple[bytes, bool]:
        """The packed entry of one job, and whether it has an id of its own.

        ``heads`` keeps what the plain jobs of one name begin with.
        """
        options: Mapping[str, Any]
        if type(job) is tuple and len(job) == 2 and type(job[0]) is str:
            head = heads.get(job[0])
            if head is None:
                head = map_header(2) + map_body({"name": _job_name(job[0])}) + b"\xa4data"
                heads[job[0]] = head
            return head + self._payload(job[1]), False
        if isinstance(job, JobSpec):
            name, data, options = job.name, job.data, job.options or {}
        elif isinstance(job, Mapping):
            rest = dict(job)
            name = rest.pop("name", None)
            data = rest.pop("data", None)
            options = rest
        elif isinstance(job, tuple) and 1 <= len(job) <= 3:
            name = job[0]
            data = job[1] if len(job) > 1 else None
            options = {} if len(job) < 3 or job[2] is None else job[2]
            if not isinstance(options, Mapping):
                raise TypeError(f"the options of a job are a dict, not {type(options).__name__}")
        else:
            raise TypeError(f"a job is a JobSpec, a tuple or a dict, not {type(job).__name__}")
        fields = to_wire(options)
        job_id = fields.pop("jobId", None)
        if job_id is not None:
            fields["customId"] = job_id
        fields["name"] = _job_name(name)
        payload = self._payload(data)
        body = map_header(len(fields) + 1) + map_body(fields) + b"\xa4data" + payload
        return body, job_id is not None

    def _payload(self, data: Any) -> bytes:
        if data is None:
            return NIL
        can = self.client.greeted()
        payload = pack_payload(data, typed="typed" in can, int64="int64" in can)
        if len(payload) > MAX_DATA_BYTES:
            raise SerializationError(f"data has {len(payload)} bytes; the limit is {MAX_DATA_BYTES}")
        return payload

    # ----------------------------------------------------------------- reading

    def get(self, job_id: str) -> Job | None:
        """The job with a fresh snapshot, or None when the engine does not know it."""
        try:
            return Job(self.client, self.name, job_id).refresh()
        except NotFoundError:
            return None

    def job(self, job_id: str) -> Job:
        """A handle without a read; it may name a job that is not there."""
        return Job(self.client, self.name, job_id)

    def state(self, job_id: str) -> JobState | str:
        """State of one job; ``NotFoundError`` when the engine does not know it."""
        state = self.client.call("GetState", {"id": job_id})["state"]
        if state == "unknown":
            raise NotFoundError(f"Job not found: {job_id}", "GetState")
        return job_state(state)

    def returnvalue(self, job_id: str) -> Any:
        """Result of a completed job, None while it has none."""
        reply = self.client.call("GetResult", {"id": job_id})
        if "result" not in reply or reply["result"] is None:
            self.state(job_id)
        return reply.get("result")

    def counts(self) -> Counts:
        """Number of jobs in each state."""
        return Counts.from_wire(self.client.call("GetJobCounts", {"queue": self.name})["counts"])

    def __len__(self) -> int:
        """Jobs that wait to run: waiting, prioritized and delayed."""
        return int(self.client.call("Count", {"queue": self.name})["count"])

    def __bool__(self) -> bool:
        # Without this an empty queue would be false, and asking would be a command.
        return True

    # -------------------------------------------------------------- life cycle

    def pause(self) -> None:
        """Stop handing out jobs, for all workers; adding goes on."""
        self.client.call("Pause", {"queue": self.name})

    def resume(self) -> None:
        """Hand out jobs again."""
        self.client.call("Resume", {"queue": self.name})

    def close(self) -> None:
        """Close the connections; may be called twice."""
        self.client.close()

    def __enter__(self) -> Queue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self, _warn: Any = warnings.warn) -> None:
        client = getattr(self, "client", None)
        if client is not None and client.capabilities is not None and not client.closed:
            _warn(f"queue {self.name!r} was not closed", ResourceWarning, stacklevel=2, source=self)
            client.close()

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} at {self.client.target}>"
