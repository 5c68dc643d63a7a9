"""The engine in plain Python: one dict of jobs, and everything else found by looking through it.

Obvious and slow. What the compiled engine decides by chance (ids, lease tokens,
jittered waits) is handed in, so that two engines can be driven side by side:
``new_id`` to :meth:`Engine.push`, ``token`` to :meth:`Engine.pull`, and
``retry_wait_ms``, called with the id of a job that is about to wait.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from qcore.errors import LeaseError, StateError

LATE_ANSWERS = 10_000
_TOKEN = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

Event = tuple[str, str, str, int, object]


@dataclass
class Delivery:
    """A job in somebody's hands."""

    token: str | None
    session: int
    lease_ms: int
    expires_ns: int | None
    timeout_ns: int | None
    renewals: int = 0

    @property
    def deadline_ns(self) -> int | None:
        ends = [end for end in (self.expires_ns, self.timeout_ns) if end is not None]
        return min(ends) if ends else None


@dataclass
class Job:
    id: str
    queue: str
    data: bytes | None
    seq: int
    priority: float
    created_ms: int
    run_ms: int
    lifo: bool
    max_attempts: int
    remove_on_complete: bool
    remove_on_fail: bool
    ttl_ms: int | None
    timeout_ms: int | None
    state: str = "delayed"  # delayed, ready, active, completed, failed
    attempts: int = 0
    stalls: int = 0
    delivery: Delivery | None = None
    last_token: str | None = None  # of a delivery that ran out; its holder may still report
    result: bytes | None = None
    ended: tuple[int, int] = (0, 0)  # when it became terminal, and its place among those of that moment

    @property
    def place(self) -> tuple[float, int, int, int]:
        """Where it stands in its run queue: priority, then newest first, then oldest first."""
        if self.lifo:
            return (-self.priority, 0, -self.seq, 0)
        return (-self.priority, 1, self.run_ms, self.seq)


@dataclass
class Queue:
    paused: bool = False
    listening: bool = False
    max_stalls: int = 3
    pushed: int = 0
    pulled: int = 0
    completed: int = 0
    failed: int = 0


@dataclass
class Saved:
    """What a store holds: jobs and pauses, and when they were written down."""

    jobs: dict[str, Job] = field(default_factory=dict)
    paused: dict[str, bool] = field(default_factory=dict)
    now_ms: int = 0
    now_ns: int = 0


class Engine:
    """All jobs of a broker. Times as in the compiled engine: wall clock in ms, monotonic clock in ns."""

    def __init__(
        self,
        *,
        max_completed: int = 50_000,
        retry_wait_ms: Callable[[str], int] = lambda job_id: 0,
    ) -> None:
        self.jobs: dict[str, Job] = {}
        self.queues: dict[str, Queue] = {}
        self.events: list[Event] = []
        self.retry_wait_ms = retry_wait_ms
        self._max_completed = max_completed
        self._evidence: dict[str, None] = {}  # completed ids, oldest first, also of removed jobs
        self._finals: dict[str, None] = {}
        self._seq = 0
        self._ended = 0

    # --- looking -------------------------------------------------------------------------

    def _of(self, queue: str, *states: str) -> list[Job]:
        return [job for job in self.jobs.values() if job.queue == queue and job.state in states]

    def ready(self, queue: str) -> list[str]:
        """Ids of the run queue in the order in which they will be delivered."""
        return [job.id for job in sorted(self._of(queue, "ready"), key=lambda job: job.place)]

    def failed(self, queue: str) -> list[str]:
        """Dead letters, oldest first."""
        return [job.id for job in sorted(self._of(queue, "failed"), key=lambda job: job.ended)]

    def state(self, job_id: str) -> str:
        job = self.jobs.get(job_id)
        if job is None:
            return "unknown"
        if job.state == "ready":
            return "prioritized" if job.priority > 0 else "waiting"
        return job.state

    def result(self, job_id: str) -> bytes | None:
        job = self.jobs.get(job_id)
        return job.result if job is not None and job.state == "completed" else None

    def counts(self, queue: str, now_ms: int) -> dict[str, int]:
        self._promote(queue, now_ms)
        q = self.queues.get(queue, Queue())
        urgent = sum(job.priority > 0 for job in self._of(queue, "ready"))
        plain = len(self._of(queue, "ready")) - urgent
        return {
            "waiting": 0 if q.paused else plain,
            "prioritized": 0 if q.paused else urgent,
            "delayed": len(self._of(queue, "delayed")),
            "active": len(self._of(queue, "active")),
            "completed": len(self._of(queue, "completed")),
            "failed": len(self._of(queue, "failed")),
            "waiting-children": 0,
            "paused": plain + urgent if q.paused else 0,
        }

    def next_due(self, now_ms: int, now_ns: int) -> int | None:
        waits = [
            max(0, job.run_ms - now_ms) * 1_000_000 for job in self.jobs.values() if job.state == "delayed"
        ]
        for job in self.jobs.values():
            if job.delivery is not None and job.delivery.deadline_ns is not None:
                waits.append(max(0, job.delivery.deadline_ns - now_ns))
        return min(waits, default=None)

    # --- adding --------------------------------------------------------------------------

    def _queue(self, name: str) -> Queue:
        return self.queues.setdefault(name, Queue())

    def _emit(self, kind: str, job: Job, now_ms: int, data: object = None) -> None:
        if self._queue(job.queue).listening:
            self.events.append((kind, job.queue, job.id, now_ms, data))

    def push(
        self,
        queue: str,
        data: bytes | None,
        now_ms: int,
        *,
        new_id: str,
        job_id: str | None = None,
        priority: float = 0,
        delay_ms: int = 0,
        created_ms: int | None = None,
        attempts: int = 3,
        lifo: bool = False,
        remove_on_complete: bool = False,
        remove_on_fail: bool = False,
        ttl_ms: int | None = None,
        timeout_ms: int | None = None,
    ) -> str:
        """Admit a job, unless a live one holds its id; the id either way."""
        q = self._queue(queue)
        if job_id is not None:
            holder = self.jobs.get(job_id)
            if holder is not None and holder.state not in ("completed", "failed"):
                return job_id
            self.jobs.pop(job_id, None)
            self._evidence.pop(job_id, None)
        self._seq += 1
        created = now_ms if created_ms is None else created_ms
        job = Job(
            id=new_id if job_id is None else job_id,
            queue=queue,
            data=data,
            seq=self._seq,
            priority=priority,
            created_ms=created,
            run_ms=created + delay_ms,
            lifo=lifo,
            max_attempts=attempts,
            remove_on_complete=remove_on_complete,
            remove_on_fail=remove_on_fail,
            ttl_ms=ttl_ms,
            timeout_ms=timeout_ms,
        )
        self.jobs[job.id] = job
        self._enqueue(job, now_ms)
        q.pushed += 1
        self._emit("pushed", job, now_ms)
        return job.id

    def _enqueue(self, job: Job, now_ms: int) -> None:
        job.state = "delayed" if job.run_ms > now_ms else "ready"

    def _promote(self, queue: str, now_ms: int) -> None:
        for job in self._of(queue, "delayed"):
            self._enqueue(job, now_ms)

    # --- taking --------------------------------------------------------------------------

    def pull(
        self,
        queue: str,
        now_ms: int,
        now_ns: int,
        *,
        token: str | None = None,
        lease_ms: int = 0,
        session: int = 0,
    ) -> tuple[str, str | None, bytes | None] | None:
        """Deliver the first ready job, under ``token`` if there is a lease."""
        if queue not in self.queues or self.queues[queue].paused:
            return None
        self._promote(queue, now_ms)
        for job_id in self.ready(queue):
            job = self.jobs[job_id]
            if job.ttl_ms is not None and now_ms > job.created_ms + job.ttl_ms:
                del self.jobs[job_id]
                continue
            job.state = "active"
            job.delivery = Delivery(
                token=token if lease_ms else None,
                session=session,
                lease_ms=lease_ms,
                expires_ns=now_ns + lease_ms * 1_000_000 if lease_ms else None,
                timeout_ns=now_ns + job.timeout_ms * 1_000_000 if job.timeout_ms else None,
            )
            self.queues[queue].pulled += 1
            self._emit("pulled", job, now_ms)
            return (job.id, job.delivery.token, job.data)
        return None

    def _judge(self, job_id: str, token: str | None) -> str:
        """Whether the holder of a token may act: may, late or final; raises when not at all."""
        job = self.jobs.get(job_id)
        real = token if token and _TOKEN.fullmatch(token) else None
        if job is not None and job.delivery is not None:
            held = job.delivery.token
            if real is not None and real == held:
                return "may"
            if real is not None and real in self._finals:
                return "final"
            if held is None and (real is None or real != job.last_token):
                return "may"
            if not token:
                raise LeaseError(f"Lock token required for job {job_id}")
            raise LeaseError(f"Invalid or expired lock token for job {job_id}")
        if (
            job is not None
            and job.state in ("ready", "delayed")
            and real is not None
            and real == job.last_token
        ):
            return "late"
        if real is not None and real in self._finals:
            return "final"
        raise StateError(f"Job not found or not in processing state: {job_id}")

    def _leave_active(self, job: Job) -> Delivery:
        delivery = job.delivery
        assert delivery is not None
        job.delivery = None
        job.last_token = None
        return delivery

    def ack(
        self,
        job_id: str,
        now_ms: int,
        *,
        token: str | None = None,
        result: bytes | None = None,
        remove: bool = False,
    ) -> bool:
        if self._judge(job_id, token) == "final":
            return False
        job = self.jobs[job_id]
        job.delivery = job.last_token = None
        self._queue(job.queue).completed += 1
        self._emit("completed", job, now_ms, result)
        if remove or job.remove_on_complete:
            del self.jobs[job_id]
        else:
            job.state = "completed"
            job.result = result
            self._end(job, now_ms)
        if len(self._evidence) >= self._max_completed:
            oldest = next(iter(self._evidence))
            del self._evidence[oldest]
            if oldest in self.jobs and self.jobs[oldest].state == "completed":
                del self.jobs[oldest]
        self._evidence[job_id] = None
        return True

    def _end(self, job: Job, now_ms: int) -> None:
        self._ended += 1
        job.ended = (now_ms, self._ended)

    def fail(
        self,
        job_id: str,
        now_ms: int,
        *,
        token: str | None = None,
        error: str = "",
        unrecoverable: bool = False,
        remove: bool = False,
    ) -> bool:
        if self._judge(job_id, token) != "may":
            return False
        self._fail(self.jobs[job_id], now_ms, error, unrecoverable, remove)
        return True

    def _fail(self, job: Job, now_ms: int, error: str, final: bool, remove: bool) -> None:
        self._leave_active(job)
        job.attempts += 1
        final = final or job.attempts >= job.max_attempts
        self._emit("failed", job, now_ms, (error, final))
        if not final:
            job.run_ms = now_ms + self.retry_wait_ms(job.id)
            self._enqueue(job, now_ms)
            self._emit("retried", job, now_ms)
            return
        self._queue(job.queue).failed += 1
        if remove or job.remove_on_fail:
            del self.jobs[job.id]
        else:
            job.state = "failed"
            self._end(job, now_ms)

    def _lose(self, job: Job, now_ms: int, error: str, dead: str, stalled: str) -> None:
        """The holder is gone: charge an attempt and a stall, then back to the queue or dead-lettered."""
        token = self._leave_active(job).token
        job.attempts += 1
        job.stalls += 1
        reason = None
        most = self._queue(job.queue).max_stalls
        if job.attempts >= job.max_attempts:
            reason, error = "max_attempts_exceeded", dead
        elif most and job.stalls >= most:
            reason, error = "stalled", stalled
        self._emit("stalled", job, now_ms, reason)
        if reason is None:
            job.last_token = token
            self._return(job)
            return
        self._finalise(token)
        self._emit("failed", job, now_ms, (error, True))
        self._queue(job.queue).failed += 1
        job.state = "failed"
        self._end(job, now_ms)

    def _return(self, job: Job) -> None:
        """It was ready before, so it is again, whatever the wall clock did meanwhile."""
        job.state = "ready"

    def _finalise(self, token: str | None) -> None:
        if token is None:
            return
        self._finals[token] = None
        if len(self._finals) > LATE_ANSWERS:
            del self._finals[next(iter(self._finals))]

    def renew(
        self, job_id: str, now_ms: int, now_ns: int, *, token: str | None = None, lease_ms: int = 0
    ) -> bool:
        job = self.jobs.get(job_id)
        if job is None or job.delivery is None:
            return False
        delivery = job.delivery
        if not token:
            return True
        if delivery.expires_ns is None or token != delivery.token or now_ns >= delivery.expires_ns:
            return False
        delivery.renewals += 1
        delivery.expires_ns = now_ns + (lease_ms or delivery.lease_ms) * 1_000_000
        return True

    # --- the rest ------------------------------------------------------------------------

    def remove(self, job_id: str) -> bool:
        if self.jobs.pop(job_id, None) is None:
            return False
        self._evidence.pop(job_id, None)
        return True

    def close_session(self, session: int, now_ms: int) -> int:
        """Give back what the session holds and never renewed; disown the rest."""
        n = 0
        for job in self.jobs.values():
            if job.delivery is None or job.delivery.session != session or not session:
                continue
            if job.delivery.renewals:
                job.delivery.session = 0
            else:
                self._leave_active(job)
                self._return(job)
                n += 1
        return n

    def pause(self, queue: str, paused: bool = True) -> None:
        self._queue(queue).paused = paused

    def listen(self, queue: str) -> None:
        self._queue(queue).listening = True

    def advance(self, now_ms: int, now_ns: int) -> None:
        for queue in self.queues:
            self._promote(queue, now_ms)
        for job in list(self.jobs.values()):
            delivery = job.delivery
            if delivery is None or delivery.deadline_ns is None or delivery.deadline_ns > now_ns:
                continue
            if delivery.timeout_ns is not None and delivery.timeout_ns <= now_ns:
                self._finalise(delivery.token)
                self._fail(job, now_ms, "Job timeout exceeded", False, False)
            else:
                self._lose(
                    job,
                    now_ms,
                    "Lock expired",
                    f"Lock expired at max attempts ({job.attempts + 1})",
                    f"Lock expired after {delivery.renewals} renewals",
                )

    # --- a store -------------------------------------------------------------------------

    def save(self, now_ms: int, now_ns: int) -> Saved:
        """What a store would hold if it were written now."""
        return copy.deepcopy(
            Saved(
                jobs=self.jobs,
                paused={name: q.paused for name, q in self.queues.items()},
                now_ms=now_ms,
                now_ns=now_ns,
            )
        )

    def restart(self, saved: Saved, now_ms: int, now_ns: int, *, keep_leases: bool, charge: bool) -> None:
        """Forget everything but what was saved, and recover from that."""
        saved = copy.deepcopy(saved)
        listening = [name for name, q in self.queues.items() if q.listening]
        self.jobs = saved.jobs
        self.queues = {name: Queue(paused=paused) for name, paused in saved.paused.items()}
        self._seq = max((job.seq for job in self.jobs.values()), default=0)
        self.events = []
        self._finals = {}
        for job in self.jobs.values():
            job.ended = (job.ended[0], job.seq)  # all that is known of one moment afterwards
        self._ended = self._seq
        done = [job for job in self.jobs.values() if job.state == "completed"]
        self._evidence = dict.fromkeys(job.id for job in sorted(done, key=lambda job: job.ended))
        for job in sorted(self.jobs.values(), key=lambda job: job.seq):
            if job.state == "delayed":
                self._enqueue(job, now_ms)
            delivery = job.delivery
            if delivery is None:
                continue
            delivery.session = 0
            if delivery.expires_ns is not None:
                left = saved.now_ms + (delivery.expires_ns - saved.now_ns) // 1_000_000 - now_ms
                delivery.expires_ns = now_ns + max(1, min(left, delivery.lease_ms)) * 1_000_000
            if delivery.timeout_ns is not None:
                left = saved.now_ms + (delivery.timeout_ns - saved.now_ns) // 1_000_000 - now_ms
                delivery.timeout_ns = now_ns + max(1, left) * 1_000_000
            if keep_leases and delivery.token is not None:
                continue
            if charge:
                self._lose(job, now_ms, "", "", "")
            else:
                self._leave_active(job)
                self._return(job)
        for name in listening:
            self.listen(name)
