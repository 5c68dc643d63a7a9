"""The engine in plain Python: one dict of jobs, and everything else found by looking through it.

Obvious and slow. What the compiled engine decides by chance (ids, lease tokens,
jittered waits) is handed in, so that two engines can be driven side by side:
``new_id`` to :meth:`Engine.push`, ``token`` to :meth:`Engine.pull`, and
``retry_wait_ms``, called with the id of a job that is about to wait.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

from qcore.errors import LeaseError, NotFoundError, StateError
from qcore.reference.capacity import Capacity, Limits, Wishes, check_group_priority
from qcore.reference.copies import alike
from qcore.reference.counting import Journal, Outcomes
from qcore.reference.keys import Key, Keys
from qcore.reference.ties import Ties

LATE_ANSWERS = 10_000
ORPHAN_MS = 30 * 60_000
QUEUE_IDLE_NS = 600 * 1_000_000_000
DEAD = {"autoRetry": False, "autoRetryInterval": 3_600_000, "maxAutoRetries": 3, "maxAge": 604_800_000}
DEAD |= {"maxEntries": 10_000}
#: What parents are told of a failure that came without a text.
UNTOLD = "unknown error"
_TOKEN = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

Event = tuple[str, str, str, int, object]
#: What is done with a job at its end: removed or not, or how many are kept, or {age in seconds, count}.
Removal = bool | int | dict[str, float]


@dataclass
class Delivery:
    """A job in somebody's hands."""

    token: str | None
    session: int
    lease_ms: int
    expires_ns: int | None
    timeout_ns: int | None
    quiet_ns: int = 0  # since when silence counts
    number: int = 0
    renewals: int = 0


@dataclass
class Letter:
    entered_ms: int
    expires_ms: int | None
    retries: int = 0
    last_retry_ms: int | None = None
    next_retry_ms: int | None = None

    @property
    def due_ms(self) -> int | None:
        ends = [end for end in (self.expires_ms, self.next_retry_ms) if end is not None]
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
    key: Key | None = None
    keep_completed: Removal = False  # other than the two flags
    keep_failed: Removal = False
    group: str | None = None
    stall_ms: int | None = None  # silence that it permits
    state: str = "delayed"  # delayed, ready, active, completed, failed
    attempts: int = 0
    stalls: int = 0
    delivery: Delivery | None = None
    progress: tuple[float, str | None] = (0, None)
    log: list[list[object]] = field(default_factory=list)
    losses: int = 0  # connections that ended while they had it
    letter: Letter | None = None  # as a dead letter
    chain: Letter | None = None  # while a retry by itself is under way: what it was before
    last_token: str | None = None  # of a delivery that ran out; its holder may still report
    ties: Ties = field(default_factory=Ties)
    failed_reason: str | None = None
    result: bytes | None = None
    ended: tuple[int, int] = (0, 0)  # when it became terminal, and the number of that among all ends
    begun: bool = False  # it has started once, so its ttl says nothing any more

    @property
    def life_ms(self) -> int | None:
        """Until when it may wait for its first start."""
        return None if self.ttl_ms is None or self.begun else self.created_ms + self.ttl_ms

    @property
    def place(self) -> tuple[float, int, int, int]:
        """Where it stands in its run queue: priority, then newest first, then oldest first."""
        if self.lifo:
            return (-self.priority, 0, -self.seq, 0)
        return (-self.priority, 1, self.run_ms, self.seq)

    def copied(self) -> Job:
        """A copy that shares nothing that is changed in place."""
        twin = alike(self)
        twin.ties, twin.log = alike(self.ties), self.log[:]
        if self.delivery is not None:
            twin.delivery = alike(self.delivery)
        if self.key is not None:
            twin.key = alike(self.key)
        return twin


@dataclass
class Queue:
    paused: bool = False
    used: bool = True  # since the last look at it
    idle_ns: int | None = None  # since which look nothing is left of it, nor has it been used
    dead: dict[str, Any] = field(default_factory=lambda: dict(DEAD))
    stalls: dict[str, Any] = field(default_factory=dict)
    look_ns: int | None = None  # when to look for stalled jobs
    pushed: int = 0
    pulled: int = 0
    completed: int = 0
    failed: int = 0
    journal: Journal = field(default_factory=lambda: Journal(10_000))
    completions: Outcomes = field(default_factory=Outcomes)
    failures: Outcomes = field(default_factory=Outcomes)
    limits: Limits = field(default_factory=Limits)

    @property
    def enabled(self) -> bool:
        return bool(self.stalls.get("enabled", True))

    @property
    def silence_ms(self) -> int:
        interval = int(self.stalls.get("stallInterval", 30_000))
        return interval if self.enabled else max(interval, ORPHAN_MS)

    def copied(self) -> Queue:
        """A copy that shares nothing that is changed in place."""
        twin = alike(self)
        twin.journal, twin.limits = alike(self.journal), self.limits.copied()
        twin.completions, twin.failures = alike(self.completions), alike(self.failures)
        return twin


@dataclass
class Saved:
    """What a store holds: jobs and what is set for queues, and when they were written down."""

    jobs: dict[str, Job] = field(default_factory=dict)
    queues: dict[str, Queue] = field(default_factory=dict)
    forgotten: dict[str, tuple[Outcomes, Outcomes]] = field(default_factory=dict)
    kept: dict[tuple[str, tuple[str, bool]], tuple[int, str]] = field(default_factory=dict)
    #: By job: both clocks when its row was written.
    written: dict[str, tuple[int, int]] = field(default_factory=dict)
    evidence: dict[str, str] = field(default_factory=dict)  # completed ids without a row -> queue


def _copied(forgotten: dict[str, tuple[Outcomes, Outcomes]]) -> dict[str, tuple[Outcomes, Outcomes]]:
    return {name: (alike(completed), alike(failed)) for name, (completed, failed) in forgotten.items()}


def keeps_none(removal: Removal) -> bool:
    return (removal.get("count") if isinstance(removal, dict) else removal) == 0


def _as_row(job: Job, now: Job) -> Job:
    """A job as a row shows it, given what it is now.

    Promotion and sessions are in no row; the ends of leases are monotonic readings, which a
    restart counts anew.
    """
    row = job.copied()
    if row.state == "delayed" and now.state == "ready":
        row.state = "ready"
    row.log = now.log  # has a table of its own
    if row.key is not None and now.key is not None:
        row.key.holds = now.key.holds
    if row.delivery is not None:
        row.delivery.session = 0
        row.delivery.expires_ns = row.delivery.timeout_ns = None
        row.delivery.quiet_ns = row.delivery.number = 0
    return row


class Engine(Keys, Capacity):
    """All jobs of a broker. Times as in the compiled engine: wall clock in ms, monotonic clock in ns."""

    def __init__(
        self,
        *,
        max_completed: int = 50_000,
        max_events: int = 10_000,
        max_minutes: int = 20_160,
        retry_wait_ms: Callable[[str], int] = lambda job_id: 0,
    ) -> None:
        self.jobs = {}
        self.kept = {}
        self.queues: dict[str, Queue] = {}
        self.listening: set[str] = set()
        self.listening_everywhere = False
        self.events = []
        self.retry_wait_ms = retry_wait_ms
        self._max_completed = max_completed
        self._max_events = max_events
        self._max_minutes = max_minutes
        #: Outcomes of the queues that are forgotten, without their minutes but the latest.
        self.forgotten: dict[str, tuple[Outcomes, Outcomes]] = {}
        #: What passed through the queues that are forgotten.
        self.past = {"pushed": 0, "pulled": 0, "completed": 0, "failed": 0}
        self._evidence: dict[str, str] = {}  # completed ids, oldest first, also of removed jobs -> queue
        self._finals: dict[str, None] = {}
        self._seq = 0
        self._ended = 0
        self._deliveries = 0

    # --- looking -------------------------------------------------------------------------

    def _of(self, queue: str, *states: str) -> list[Job]:
        return [job for job in self.jobs.values() if job.state in states and job.queue == queue]

    def ready(self, queue: str) -> list[str]:
        """Ids of the run queue in the order in which they will be delivered."""
        return [job.id for job in sorted(self._of(queue, "ready"), key=lambda job: job.place)]

    def failed(self, queue: str) -> list[str]:
        """Dead letters, oldest first."""
        return [job.id for job in sorted(self._of(queue, "failed"), key=lambda job: job.ended[1])]

    def size(self) -> int:
        """Jobs known, in all states."""
        return len(self.jobs)

    def state(self, job_id: str) -> str:
        job = self.jobs.get(job_id)
        if job is None:
            return "unknown"
        if job.state == "ready":
            return "prioritized" if job.priority > 0 else "waiting"
        return "waiting-children" if job.state == "parked" else job.state

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
            "waiting-children": len(self._of(queue, "parked")),
            "paused": plain + urgent if q.paused else 0,
        }

    def next_due(self, now_ms: int, now_ns: int) -> int | None:
        waits = [
            max(0, job.run_ms - now_ms) * 1_000_000 for job in self.jobs.values() if job.state == "delayed"
        ]
        waits += [max(0, q.look_ns - now_ns) for q in self.queues.values() if q.look_ns is not None]
        for job in self.jobs.values():
            deadline = self._deadline_ns(job)
            if deadline is not None:
                waits.append(max(0, deadline - now_ns))
            if job.letter is not None and job.letter.due_ms is not None:
                waits.append(max(0, job.letter.due_ms - now_ms) * 1_000_000)
            if job.state in ("ready", "delayed", "parked") and job.life_ms is not None:
                waits.append(max(0, job.life_ms + 1 - now_ms) * 1_000_000)
        waits += [max(0, end - now_ms) * 1_000_000 for end, _ in self.kept.values()]
        return min(waits, default=None)

    # --- adding --------------------------------------------------------------------------

    def use(self, name: str) -> Queue:
        """The queue of that name, made by first use."""
        if name not in self.queues:
            self.queues[name] = Queue(journal=Journal(self._max_events))
            if name in self.forgotten:
                self.queues[name].completions, self.queues[name].failures = self.forgotten.pop(name)
        self.queues[name].used = True
        return self.queues[name]

    def touch(self, name: str, job_id: str) -> str:
        """The queue is used by an add that adds nothing, which makes none; the id that this comes to."""
        if name in self.queues:
            self.queues[name].used = True
        return job_id

    def forget_idle(self, now_ns: int, busy: Collection[str] = ()) -> list[str]:
        """Forget the queues that nothing is left of and that were not used for ten minutes; which.

        ``busy``: those that something outside of the engine needs.
        """
        gone = []
        for name, q in self.queues.items():
            if name in busy or not self._is_empty(name, now_ns):
                q.idle_ns = None
            elif q.used or q.idle_ns is None:
                q.idle_ns = now_ns
            elif now_ns - q.idle_ns >= QUEUE_IDLE_NS:
                gone.append(name)
            q.used = False
        for name in gone:
            q = self.queues.pop(name)
            self.forgotten[name] = (q.completions.latest(), q.failures.latest())
            for total in self.past:
                self.past[total] += getattr(q, total)
            # Later jobs of this name have nothing to do with what was completed before.
            self._evidence = {one: "" if of == name else of for one, of in self._evidence.items()}
        return gone

    def _is_empty(self, name: str, now_ns: int) -> bool:
        """Whether nothing of a queue is left but what was counted of it."""
        q = self.queues[name]
        return not (
            any(job.queue == name for job in self.jobs.values())
            or any(queue == name for queue, _ in self.kept)
            or name in self.listening
            or q.paused
            or q.stalls
            or q.dead != DEAD
            or q.limits.are_set(now_ns)
        )

    def _told(self, queue: str, job_id: str, now_ms: int) -> None:
        self._tell("duplicated", queue, job_id, now_ms, None)

    def limits(self, queue: str) -> Limits:
        return self.queues[queue].limits if queue in self.queues else Limits()

    def limits_used(self, queue: str, *, make: bool = True) -> Limits:
        return self.use(queue).limits if make or queue in self.queues else Limits()

    def _emit(self, kind: str, job: Job, now_ms: int, data: object = None) -> None:
        self._tell(kind, job.queue, job.id, now_ms, data)

    def _tell(self, kind: str, queue: str, job_id: str, now_ms: int, data: object) -> None:
        self.queues[queue].journal.count()
        if self.listening_everywhere or queue in self.listening:
            self.events.append((kind, queue, job_id, now_ms, data))

    def trim_events(self, queue: str, max_length: int) -> int:
        return self.queues[queue].journal.trim(max_length) if queue in self.queues else 0

    def metrics(
        self, queue: str, kind: str, *, start: int = 0, end: int = -1
    ) -> tuple[tuple[int, int, int], list[int], int]:
        if queue in self.queues:
            pair = (self.queues[queue].completions, self.queues[queue].failures)
        else:
            pair = self.forgotten.get(queue, (Outcomes(), Outcomes()))
        outcomes = pair[kind == "failed"]
        newest = outcomes.minutes[max(outcomes.minutes)] if outcomes.minutes else 0
        return (outcomes.total, outcomes.prev_ms, newest), *outcomes.page(start, end)

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
        key: Key | None = None,
        keep_completed: Removal = False,
        keep_failed: Removal = False,
        group: str | None = None,
        stall_ms: int | None = None,
    ) -> str:
        """Admit a job, unless a live one holds its id; the id either way."""
        if job_id is not None:
            holder = self.jobs.get(job_id)
            if holder is not None and holder.state not in ("completed", "failed"):
                return self.touch(queue, job_id)
        q = self.use(queue)
        if key is not None:
            held_by = self._make_way(queue, key, now_ms)
            if held_by is not None:
                return held_by
        if job_id is not None:
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
            key=key,
            keep_completed=keep_completed,
            keep_failed=keep_failed,
            group=group,
            stall_ms=stall_ms,
        )
        self.jobs[job.id] = job
        self._take(job, now_ms)
        self._enqueue(job, now_ms)
        q.pushed += 1
        self._emit("pushed", job, now_ms)
        return job.id

    def _enqueue(self, job: Job, now_ms: int) -> None:
        job.state = "delayed" if job.run_ms > now_ms else "ready"
        if job.state == "ready":
            self._line_up(job)

    def _promote(self, queue: str, now_ms: int) -> None:
        self._promote_all(self._of(queue, "delayed"), now_ms)

    def _promote_all(self, delayed: list[Job], now_ms: int) -> None:
        """Those whose time has come, in its order."""
        due = [job for job in delayed if job.run_ms <= now_ms]
        for job in sorted(due, key=lambda job: (job.run_ms, job.seq)):
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
        wishes: Wishes | None = None,
    ) -> tuple[str, str | None, bytes | None] | None:
        """Deliver the first ready job, under ``token`` if there is a lease."""
        if queue not in self.queues or self.queues[queue].paused:
            return None
        if not self._has_room(queue, now_ns):
            return None
        self._promote(queue, now_ms)
        while (job := self._candidate(queue, wishes, now_ns)) is not None:
            if job.life_ms is not None and now_ms > job.life_ms:
                self._drop(job.id)
                continue
            job.state = "active"
            job.begun = True
            job.delivery = Delivery(
                token=token if lease_ms else None,
                session=session,
                lease_ms=lease_ms,
                expires_ns=now_ns + lease_ms * 1_000_000 if lease_ms else None,
                timeout_ns=now_ns + job.timeout_ms * 1_000_000 if job.timeout_ms else None,
            )
            self._started(job, wishes, now_ms, now_ns)
            self._begin_silence(job, now_ns)
            self._watch(job)
            self.queues[queue].pulled += 1
            self._deliveries += 1
            job.delivery.number = self._deliveries
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
            and job.last_token is not None
            and job.last_token == (real or "")
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
        remove: Removal = False,
    ) -> bool:
        if self._judge(job_id, token) == "final":
            return False
        job = self.jobs[job_id]
        if not isinstance(remove, bool):
            job.keep_completed, job.remove_on_complete = remove, False
            remove = keeps_none(remove)
        self._release(job)
        job.delivery = job.last_token = None
        self.queues[job.queue].completed += 1
        self.queues[job.queue].completions.count(now_ms, self._max_minutes)
        self._emit("completed", job, now_ms, None if result is None else (result, 0))
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
        self._evidence[job_id] = job.queue
        if job_id in self.jobs:
            self._trim(job.queue, "completed", job.keep_completed, now_ms)
        return True

    def _trim(self, queue: str, state: str, policy: Removal, now_ms: int) -> None:
        """Remove what the policy of the last job to end does not keep, oldest first."""
        for job in self._beyond(queue, state, policy, now_ms):
            self._drop(job.id)

    def _beyond(self, queue: str, state: str, policy: Removal, now_ms: int) -> list[Job]:
        """The ended jobs that a policy does not keep, oldest first."""
        if isinstance(policy, bool):
            return []
        kept = policy if isinstance(policy, dict) else {"count": policy}
        ended = sorted(self._of(queue, state), key=lambda job: job.ended[1])
        n = max(0, len(ended) - int(kept.get("count", len(ended))))
        while n < len(ended) and "age" in kept and ended[n].ended[0] < now_ms - int(kept["age"] * 1000):
            n += 1
        return ended[:n]

    def _end(self, job: Job, now_ms: int) -> None:
        self._ended += 1
        job.ended = (now_ms, self._ended)

    def fail(
        self,
        job_id: str,
        now_ms: int,
        *,
        token: str | None = None,
        error: str | None = None,
        unrecoverable: bool = False,
        remove: Removal = False,
    ) -> bool:
        if self._judge(job_id, token) != "may":
            return False
        job = self.jobs[job_id]
        if not isinstance(remove, bool):
            if unrecoverable or job.attempts + 1 >= job.max_attempts:
                job.keep_failed, job.remove_on_fail = remove, False
            remove = keeps_none(remove)
        self._fail(job, now_ms, error, unrecoverable, remove)
        return True

    def _fail(self, job: Job, now_ms: int, error: str | None, final: bool, remove: bool) -> None:
        self._leave_active(job)
        job.attempts += 1
        final = final or job.attempts >= job.max_attempts
        self._emit("failed", job, now_ms, (error, final, job.data, 0))
        if not final:
            job.run_ms = now_ms + self.retry_wait_ms(job.id)
            self._enqueue(job, now_ms)
            self._emit("retried", job, now_ms)
            return
        if remove or job.remove_on_fail:
            self.queues[job.queue].failed += 1
            self.queues[job.queue].failures.count(now_ms, self._max_minutes)
            self._drop(job.id)
        else:
            self._bury(job, now_ms, UNTOLD if error is None else error)

    def _bury(self, job: Job, now_ms: int, error: str | None = None) -> None:
        q = self.queues[job.queue]
        q.failed += 1
        q.failures.count(now_ms, self._max_minutes)
        self._release(job)
        job.state = "failed"
        if job.chain is not None:
            over = not q.dead["autoRetry"] or job.chain.retries >= q.dead["maxAutoRetries"]
            job.letter = replace(job.chain, next_retry_ms=None) if over else job.chain
            job.chain = None
        else:
            age = q.dead["maxAge"]
            job.letter = Letter(now_ms, None if age is None else now_ms + age)
            if q.dead["autoRetry"] and q.dead["maxAutoRetries"] > 0:
                job.letter.next_retry_ms = now_ms + q.dead["autoRetryInterval"]
        self._end(job, now_ms)
        if not job.remove_on_fail:
            self._trim(job.queue, "failed", job.keep_failed, now_ms)
        self._purge(job.queue, q.dead["maxEntries"])

    def _purge(self, queue: str, kept: int) -> int:
        dead = self.failed(queue)
        drop = dead[: max(0, len(dead) - kept)]
        for job_id in drop:
            del self.jobs[job_id]
        return len(drop)

    # --- silence -------------------------------------------------------------------------

    def _max_stalls(self, job: Job) -> int:
        return int(self.queues[job.queue].stalls.get("maxStalls", 3))

    def _begin_silence(self, job: Job, now_ns: int) -> None:
        q = self.queues[job.queue]
        bound = q.silence_ms if job.stall_ms is None else max(0.000001, job.stall_ms)
        grace = max(0, q.stalls.get("gracePeriod", 5_000) - bound)
        assert job.delivery is not None
        job.delivery.quiet_ns = now_ns + round(grace * 1_000_000)
        self._deliveries += 1
        job.delivery.number = self._deliveries

    def _watched(self, job: Job) -> bool:
        """Whether its queue looks after its silence."""
        q = self.queues[job.queue]
        delivery = job.delivery
        if delivery is None:
            return False
        if q.enabled:
            return job.stall_ms is None and (delivery.token is None or "stallInterval" in q.stalls)
        return delivery.token is None and not delivery.session

    def _stall_ns(self, job: Job) -> int:
        """When its silence will have been too long."""
        assert job.delivery is not None
        return job.delivery.quiet_ns + self.queues[job.queue].silence_ms * 1_000_000

    def _watch(self, job: Job) -> None:
        q = self.queues[job.queue]
        if self._watched(job):
            q.look_ns = min(self._stall_ns(job), self._stall_ns(job) if q.look_ns is None else q.look_ns)

    def _deadline_ns(self, job: Job) -> int | None:
        """When something has to be done about its delivery, whatever its queue looks at."""
        if job.delivery is None:
            return None
        ends = [end for end in (job.delivery.expires_ns, job.delivery.timeout_ns) if end is not None]
        if job.stall_ms is not None and self.queues[job.queue].enabled:
            ends.append(job.delivery.quiet_ns + max(1, job.stall_ms * 1_000_000))
        return min(ends) if ends else None

    def _look(self, queue: str, now_ms: int, now_ns: int) -> None:
        q = self.queues[queue]
        if q.look_ns is None or q.look_ns > now_ns:
            return
        watched = sorted(
            (job for job in self._of(queue, "active") if self._watched(job)),
            key=lambda job: job.delivery.number if job.delivery else 0,
        )
        later = [self._stall_ns(job) for job in watched if self._stall_ns(job) > now_ns]
        pause_ns = min(q.silence_ms, 1000) * 1_000_000
        q.look_ns = max(min(later), now_ns + pause_ns) if later else None
        for job in watched:
            if self._stall_ns(job) <= now_ns:
                self._lose(job, now_ms, "Job stalled", *self._stall_words(job), later=True)

    def _stall_words(self, job: Job) -> tuple[str, str]:
        return (
            f"Job stalled at max attempts ({job.attempts + 1})",
            f"Job stalled {job.stalls + 1} times",
        )

    def _cut_off(self, job: Job, now_ms: int) -> None:
        """Its connection ended."""
        losses = job.losses + 1
        most = self._max_stalls(job)
        if most and job.stalls + losses >= most:
            dead = f"Connection lost at max attempts ({job.attempts + 1})"
            self._lose(job, now_ms, "Connection lost", dead, f"Connection lost {losses} times")
            return
        job.losses = losses
        self._leave_active(job)
        self._return(job)

    def _lose(
        self, job: Job, now_ms: int, error: str, dead: str, stalled: str, *, later: bool = False
    ) -> None:
        """The holder is gone: charge an attempt and a stall, then back to the queue or dead-lettered."""
        token = self._leave_active(job).token
        job.attempts += 1
        job.stalls += 1
        reason = None
        most = self._max_stalls(job)
        if job.attempts >= job.max_attempts:
            reason, error = "max_attempts_exceeded", dead
        elif most and job.stalls + job.losses >= most:
            reason, error = "stalled", stalled
        told = (job.stalls, "move_to_dlq" if reason is not None else "retry")
        self._emit("stalled", job, now_ms, told if reason is not None or later else None)
        if reason is None:
            job.last_token = token or ""
            if later:
                job.run_ms = now_ms + self.retry_wait_ms(job.id)
                self._enqueue(job, now_ms)
            else:
                self._return(job)
            return
        self._finalise(token)
        self._emit("failed", job, now_ms, (error, True, job.data, 0) if later else (error,))
        self._bury(job, now_ms, error)

    def _return(self, job: Job) -> None:
        """It was ready before, so it is again, whatever the wall clock did meanwhile."""
        job.state = "ready"
        self._line_up(job)

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
            delivery.quiet_ns = max(delivery.quiet_ns, now_ns)
            return True
        if delivery.expires_ns is None or token != delivery.token:
            return False
        delivery.renewals += 1
        delivery.quiet_ns = max(delivery.quiet_ns, now_ns)
        delivery.expires_ns = now_ns + (lease_ms or delivery.lease_ms) * 1_000_000
        return True

    # --- control -------------------------------------------------------------------------

    def _known(self, job_id: str, queue: str, state: str) -> Job | None:
        job = self.jobs.get(job_id)
        return job if job is not None and job.queue == queue and job.state == state else None

    def cancel(self, job_id: str, now_ms: int) -> bool:
        job = self.jobs.get(job_id)
        if job is None or job.state not in ("ready", "delayed", "parked"):
            return False
        self._emit("removed", job, now_ms, "waiting")
        self._drop(job_id)
        return True

    def discard(self, job_id: str, now_ms: int, *, token: str | None = None) -> None:
        """Dead-letter a queued or active job, uncharged."""
        job = self.jobs.get(job_id)
        if job is None or job.state not in ("ready", "delayed", "active", "parked"):
            raise NotFoundError("Job not found")
        if job.delivery is not None:
            if self._judge(job_id, token) != "may":
                raise LeaseError(f"Invalid or expired lock token for job {job_id}")
            self._leave_active(job)
        job.last_token = None
        self._bury(job, now_ms)

    def drain(self, queue: str) -> int:
        queued = self._of(queue, "ready", "delayed")
        for job in queued:
            self._drop(job.id)
        return len(queued)

    def obliterate(self, queue: str) -> None:
        for job in [
            job
            for state in ("ready", "delayed", "failed", "active", "completed", "parked")
            for job in self._of(queue, state)
        ]:
            del self.jobs[job.id]
            if job.state == "completed":
                self._evidence.pop(job.id, None)
        self._end_evidence(queue)
        self.forgotten.pop(queue, None)
        self.kept = {place: what for place, what in self.kept.items() if place[0] != queue}
        if queue in self.queues:
            q = self.queues[queue]
            q.paused, q.stalls, q.dead = False, {}, dict(DEAD)
            q.limits = Limits(turns=q.limits.turns, plain_turn=q.limits.plain_turn)
            q.journal = Journal(self._max_events)
            q.completions, q.failures = Outcomes(), Outcomes()

    def _is_needed(self, job: Job) -> bool:
        """Whether a live job may still read its result."""
        return False

    def _end_evidence(self, queue: str) -> None:
        self._evidence = {one: whose for one, whose in self._evidence.items() if whose != queue}

    def _listed_as(self, job: Job) -> str:
        if job.state == "ready" and self.queues[job.queue].paused:
            return "paused"
        return self.state(job.id)

    def clean(
        self, queue: str, now_ms: int, *, grace_ms: int = 0, state: str | None = None, limit: int = 1000
    ) -> list[str]:
        """Remove the oldest jobs of one state that are old enough; their ids."""
        if queue not in self.queues or limit <= 0 or state == "active":
            return []
        self._promote(queue, now_ms)
        states = (
            ["waiting", "prioritized", "delayed", "paused", "waiting-children"]
            if state is None
            else ["waiting" if state == "wait" else state]
        )
        old = []
        for job in self.jobs.values():
            ended = job.state in ("completed", "failed")
            age = job.ended if ended else (job.created_ms, job.seq)
            if job.queue == queue and self._listed_as(job) in states and age[0] <= now_ms - grace_ms:
                if self._is_needed(job):
                    continue
                old.append((age, job.id))
        ids = [job_id for _, job_id in sorted(old)[:limit]]
        for job_id in ids:
            self.remove(job_id)
        return ids

    def promote_jobs(self, queue: str, now_ms: int, *, count: int = -1) -> int:
        if queue not in self.queues or count == 0:
            return 0
        self._promote(queue, now_ms)
        oldest = sorted(self._of(queue, "delayed"), key=lambda job: (job.created_ms, job.id))
        chosen = oldest if count < 0 else oldest[:count]
        for job in chosen:
            job.run_ms = now_ms
            self._enqueue(job, now_ms)
        return len(chosen)

    def change_priority(self, job_id: str, priority: float, now_ms: int, *, lifo: bool | None = None) -> bool:
        job = self.jobs.get(job_id)
        if job is None or job.state not in ("ready", "delayed"):
            return False
        if job.group is not None:
            check_group_priority(priority)
        job.priority = priority
        job.lifo = job.lifo if lifo is None else lifo
        return True

    def update(self, job_id: str, data: bytes) -> bool:
        job = self.jobs.get(job_id)
        if job is None or job.state not in ("ready", "delayed", "active", "parked"):
            return False
        job.data = data
        return True

    def _active(self, job_id: str) -> Job:
        job = self.jobs.get(job_id)
        if job is None:
            raise NotFoundError("Job not found")
        if job.state != "active":
            raise StateError(f"Job is not active (current state: {self.state(job_id)})")
        return job

    def set_progress(
        self, job_id: str, progress: float, now_ms: int, now_ns: int = 0, *, message: str | None = None
    ) -> None:
        job = self._active(job_id)
        assert job.delivery is not None
        job.delivery.quiet_ns = max(job.delivery.quiet_ns, now_ns)
        said = job.progress[1] if message is None else message
        job.progress = (max(0, min(100, progress)), said)
        self._emit("progress", job, now_ms, job.progress)

    def progress(self, job_id: str) -> tuple[float, str | None]:
        return self._active(job_id).progress

    def add_log(self, job_id: str, message: str, level: str, now_ms: int) -> None:
        if job_id not in self.jobs:
            raise NotFoundError("Job not found")
        log = self.jobs[job_id].log
        log.append([now_ms, level, message])
        del log[:-100]

    def logs(self, job_id: str) -> list[list[object]]:
        return [list(line) for line in self.jobs[job_id].log] if job_id in self.jobs else []

    def clear_logs(self, job_id: str, *, keep: int = 0) -> None:
        if job_id in self.jobs:
            log = self.jobs[job_id].log
            del log[: max(0, len(log) - keep)]

    def retry_completed(
        self,
        queue: str,
        now_ms: int,
        *,
        job_id: str | None = None,
        count: int = -1,
        until_ms: int | None = None,
    ) -> int:
        done = sorted(self._of(queue, "completed"), key=lambda job: job.ended)
        if job_id is not None:
            done, count = [job for job in done if job.id == job_id], -1
        n = 0
        for job in done:
            if n == count:
                break
            if (until_ms is not None and job.ended[0] > until_ms) or not self._may_restart(job, now_ms):
                continue
            n += 1
            self._evidence.pop(job.id, None)
            job.result, job.progress = None, (0, None)
            self._start_over(job, now_ms, "completed")
        return n

    def retry_dead(self, queue: str, now_ms: int, *, job_id: str | None = None, count: int = -1) -> int:
        chosen = self.failed(queue)
        if job_id is not None:
            chosen, count = [one for one in chosen if one == job_id], -1
        n = 0
        for one in chosen:
            if n == count:
                break
            if self._may_restart(self.jobs[one], now_ms):
                self._start_over(self.jobs[one], now_ms, "failed")
                n += 1
        return n

    def _start_over(self, job: Job, now_ms: int, before: str) -> None:
        self._emit("waiting", job, now_ms, before)
        job.attempts = job.stalls = job.losses = 0
        job.begun = True
        job.letter = job.chain = None
        job.run_ms = now_ms
        self._retake(job, now_ms)
        self._enqueue(job, now_ms)

    def purge_dead(self, queue: str) -> int:
        return self._purge(queue, 0)

    def remove_dead(self, queue: str, job_id: str) -> bool:
        job = self._known(job_id, queue, "failed")
        return job is not None and self.remove(job.id)

    def configure(
        self, queue: str, *, dead: dict[str, Any] | None = None, stalls: dict[str, Any] | None = None
    ) -> None:
        if not dead and not stalls:
            return
        q = self.use(queue)
        q.dead = q.dead | (dead or {})
        q.stalls = q.stalls | (stalls or {})
        for job in self._of(queue, "active"):
            self._watch(job)
        self._purge(queue, q.dead["maxEntries"])

    def list_jobs(
        self,
        queue: str,
        now_ms: int,
        *,
        states: tuple[str, ...] | None = None,
        offset: int = 0,
        limit: int = 100,
        asc: bool = True,
    ) -> list[str]:
        """A page of jobs by creation time, then by id."""
        if limit > 0:
            self._promote(queue, now_ms)
        shown = [
            (job.created_ms, job.id)
            for job in self.jobs.values()
            if job.queue == queue and (states is None or self._listed_as(job) in states)
        ]
        return [job_id for _, job_id in sorted(shown, reverse=not asc)[offset : offset + limit]]

    def counts_by_priority(self, queue: str) -> dict[float, int]:
        return dict(Counter(job.priority for job in self._of(queue, "ready", "delayed")))

    # --- the rest ------------------------------------------------------------------------

    def remove(self, job_id: str) -> bool:
        if job_id not in self.jobs:
            return False
        self._drop(job_id)
        self._evidence.pop(job_id, None)
        return True

    def close_session(self, session: int, now_ms: int) -> int:
        """Give back what the session holds and never renewed; disown the rest."""
        n = 0
        held = [(job.delivery.number, job) for job in self.jobs.values() if job.delivery is not None]
        for _, job in sorted(held, key=lambda entry: -entry[0]):
            if job.delivery is None or job.delivery.session != session or not session:
                continue
            if job.delivery.renewals:
                job.delivery.session = 0
            else:
                self._cut_off(job, now_ms)
                n += 1
        return n

    def pause(self, queue: str, paused: bool = True, *, now_ms: int = 0) -> None:
        if not paused and queue not in self.queues:
            return
        self.use(queue).paused = paused
        self._tell("paused" if paused else "resumed", queue, "", now_ms, None)

    def listen(self, queue: str) -> None:
        self.listening.add(queue)

    def listen_everywhere(self) -> None:
        self.listening_everywhere = True

    def advance(self, now_ms: int, now_ns: int) -> None:
        self._promote_all([job for job in self.jobs.values() if job.state == "delayed"], now_ms)
        due = []
        for job in [job for job in self.jobs.values() if job.delivery is not None]:
            end = self._deadline_ns(job)
            if end is not None and end <= now_ns:
                due.append((end, job.seq, job))
        for _, _, job in sorted(due):
            delivery = job.delivery
            assert delivery is not None
            if delivery.timeout_ns is not None and delivery.timeout_ns <= now_ns:
                self._finalise(delivery.token)
                self._fail(job, now_ms, "Job timeout exceeded", False, False)
            elif delivery.expires_ns is None or delivery.expires_ns > now_ns:
                self._lose(job, now_ms, "Job stalled", *self._stall_words(job), later=True)
            else:
                self._lose(
                    job,
                    now_ms,
                    "Lock expired",
                    f"Lock expired at max attempts ({job.attempts + 1})",
                    f"Lock expired after {delivery.renewals} renewals",
                )
        for name in sorted(self.queues, key=lambda name: self.queues[name].look_ns or 0):
            self._look(name, now_ms, now_ns)
        while ended := self._outlived(now_ms):
            self._drop(ended.id)
        over = [
            (job.letter.due_ms, job.seq, job)
            for job in self.jobs.values()
            if job.letter is not None and job.letter.due_ms is not None and job.letter.due_ms <= now_ms
        ]
        for _, _, job in sorted(over):
            letter = job.letter
            assert letter is not None
            if letter.expires_ms is not None and letter.expires_ms <= now_ms:
                del self.jobs[job.id]
                continue
            interval_ms = self.queues[job.queue].dead["autoRetryInterval"]
            if not self._may_restart(job, now_ms):
                job.letter = replace(letter, next_retry_ms=now_ms + max(1, interval_ms))
                continue
            self._start_over(job, now_ms, "failed")
            wait_ms = interval_ms * 2**letter.retries
            job.chain = replace(
                letter, retries=letter.retries + 1, last_retry_ms=now_ms, next_retry_ms=now_ms + wait_ms
            )
        self.kept = {place: what for place, what in self.kept.items() if what[0] > now_ms}

    def _outlived(self, now_ms: int) -> Job | None:
        """The queued or parked job whose ttl was over first."""
        over = [
            (job.life_ms, job.seq, job)
            for job in self.jobs.values()
            if job.state in ("ready", "delayed", "parked")
            and job.life_ms is not None
            and job.life_ms < now_ms
        ]
        return min(over)[2] if over else None

    # --- a store -------------------------------------------------------------------------

    def save(self, before: Saved, changed: set[int], now_ms: int, now_ns: int) -> Saved:
        """What a store would hold if the jobs of these numbers were written now.

        The others keep their rows, and must not differ from them but by what needs no
        row: that their time has come, or which session holds them.
        """
        saved = Saved(
            jobs={job_id: job.copied() for job_id, job in self.jobs.items()},
            queues={name: q.copied() for name, q in self.queues.items()},
            forgotten=_copied(self.forgotten),
            kept=dict(self.kept),
        )
        for job_id, job in saved.jobs.items():
            if job.seq in changed:
                saved.written[job_id] = (now_ms, now_ns)
                continue
            row = before.jobs[job_id]
            assert _as_row(row, job) == _as_row(job, job), f"{job_id} changed and was not written"
            saved.jobs[job_id] = row.copied()
            saved.jobs[job_id].log = job.log
            saved.written[job_id] = before.written[job_id]
        return saved

    def _relink(self, saved: Saved, now_ms: int) -> None:
        """What a layer above has to bring back, once all jobs are there."""

    def restart(self, saved: Saved, now_ms: int, now_ns: int, *, keep_leases: bool, charge: bool) -> None:
        """Forget everything but what was saved, and recover from that."""
        # What recovery does is before anybody listens.
        listening, self.listening = self.listening, set()
        everywhere, self.listening_everywhere = self.listening_everywhere, False
        self.jobs = {job_id: job.copied() for job_id, job in saved.jobs.items()}
        self.kept = dict(saved.kept)
        self.forgotten = _copied(saved.forgotten)
        self._ended = max((job.ended[1] for job in self.jobs.values()), default=0)
        self.queues = {
            name: Queue(
                paused=q.paused,
                dead=q.dead,
                stalls=q.stalls,
                journal=alike(q.journal),
                completions=alike(q.completions),
                failures=alike(q.failures),
                limits=q.limits.restarted(now_ms, now_ns),
            )
            for name, q in saved.queues.items()
        }
        self._seq = max((job.seq for job in self.jobs.values()), default=0)
        self.events = []
        self._finals = {}
        self.past = dict.fromkeys(self.past, 0)
        done = [job for job in self.jobs.values() if job.state == "completed"]
        self._evidence = {job.id: job.queue for job in sorted(done, key=lambda job: job.ended[1])}
        admitted = sorted(self.jobs.values(), key=lambda job: job.seq)
        self._relink(saved, now_ms)
        for job in admitted:
            if job.state == "ready":
                job.state = "restoring"
        for job in admitted:
            if job.state == "restoring":
                Engine._return(self, job)  # nobody gives it back
            elif job.state == "delayed":
                self._enqueue(job, now_ms)
            self._restore_key(job, now_ms)
        queues = list(self.queues)
        for job in sorted(admitted, key=lambda job: (queues.index(job.queue), job.seq)):
            delivery = job.delivery
            if delivery is None:
                continue
            delivery.session = 0
            then_ms, then_ns = saved.written[job.id]
            if delivery.expires_ns is not None:
                left = then_ms + (delivery.expires_ns - then_ns) // 1_000_000 - now_ms
                delivery.expires_ns = now_ns + max(1, min(left, delivery.lease_ms)) * 1_000_000
            self._begin_silence(job, now_ns)
            self._watch(job)
            if delivery.timeout_ns is not None:
                left = then_ms + (delivery.timeout_ns - then_ns) // 1_000_000 - now_ms
                delivery.timeout_ns = now_ns + max(1, left) * 1_000_000
            if keep_leases and delivery.token is not None:
                continue
            if charge:
                self._lose(
                    job,
                    now_ms,
                    "The process that ran the job ended",
                    f"Job reached max attempts ({job.attempts + 1}) during startup recovery",
                    f"Job stalled {job.stalls + 1} times (recovered at startup)",
                )
            else:
                self._leave_active(job)
                self._return(job)
        self.listening, self.listening_everywhere = listening, everywhere
