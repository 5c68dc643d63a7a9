"""What a broker has to do, in plain Python: replies, waits, commits and what survives a crash.

:class:`Model` wraps the plain engine with what a broker adds to it. It is told every
request, every reading of the clocks and every cut, and says which replies must be out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Literal

import msgpack

from qcore.clock import Clock
from qcore.reference.capacity import Bucket
from qcore.reference.copies import alike
from qcore.reference.engine import Job, Queue
from qcore.reference.schedules import SavedSchedules
from qcore.simulate.matching import Failure, Id, Some, Token
from qcore.simulate.plain import PlainEngine

Request = Mapping[str, Any]
Where = Literal["out", "held", "held_adds", "wait"]
Level = Literal["buffered", "committed", "synced"]

RETRY_FIRST_NS = 200_000_000
RETRY_MOST_NS = 30_000_000_000
DEFAULT_BACKOFF_MS = 1000
QUEUE_LOOK_NS = 300_000_000_000

#: States as rows have them.
ROW_STATES = {"ready": 1, "delayed": 2, "active": 3, "completed": 4, "failed": 5, "parked": 6, "kept": 8}
READY_ROW, DELAYED_ROW = 1, 2


def packed(value: object) -> bytes:
    return bytes(msgpack.packb(value))


def unpacked(data: bytes) -> Any:
    return msgpack.unpackb(data)


@dataclass
class Config:
    """How a broker was opened."""

    mode: Literal["embedded", "server"]
    adds: Level
    changes: Level
    takes_packed: bool
    flush_ms: int = 10

    @property
    def hold_adds(self) -> bool:
        return self.adds != "buffered"

    @property
    def hold_changes(self) -> bool:
        return self.changes != "buffered"

    @property
    def hold_pulls(self) -> bool:
        return self.mode == "embedded" and self.hold_changes


@dataclass
class Expected:
    """A reply that is due, or will be: where it is now."""

    reply: dict[str, Any]
    where: Where
    request: Request


@dataclass
class Wait:
    """A pull that waits for a job."""

    number: int
    key: tuple[int, str]
    queue: str
    count: int
    lease_ms: int
    session: int
    end_ns: int
    request: Request


@dataclass
class Watch:
    """A request that waits for the outcome of a job."""

    number: int
    key: tuple[int, str]
    job: Job
    end_ns: int
    request: Request
    outcome: tuple[bool, bytes | None] | None = None


@dataclass
class About:
    """What the model remembers of a job beside the plain engine, by its number."""

    tag: str
    custom: bool
    #: (base, kind) of a wait that is exact, or the base of one that is drawn.
    backoff: tuple[int, str] | int
    durable: bool = False


@dataclass
class RowOf:
    """What the last row of a job says of its state and its deadlines, and when it was encoded."""

    state: int
    now_ms: int
    now_ns: int
    content: tuple[object, ...]
    expires_ns: int | None = None
    timeout_ns: int | None = None
    #: The same and the renewals as they are in this process, whose clock may be another.
    holding: tuple[object, ...] = ()
    #: The job when it was last found to be as the row says, and what a store has of it then.
    seen: Job | None = None
    stored: Job | None = None


@dataclass
class CutState:
    """The whole model as one cut has it."""

    saved: SavedSchedules
    #: By number of a job.
    rows: dict[int, RowOf]
    #: By index: the queues that have rows; and the highest index that one had.
    indexes: dict[int, str] = field(default_factory=dict)
    highest: int = 0
    open: bool = True  # a process has the file open


@dataclass
class Flight:
    cut: CutState
    replies: dict[tuple[int, str], Expected] = field(default_factory=dict)
    staged: dict[str, None] = field(default_factory=dict)


class Model:
    """A broker as it should be."""

    def __init__(self, config: Config, clock: Clock, run_ms: Callable[[str], int | None]) -> None:
        """``run_ms`` looks up the run time of a job of the broker, by the model's id; None if it is gone."""
        self.config = config
        self.clock = clock
        self.plain = PlainEngine(self._retry_wait_ms, self.new_id, self._note_added)
        self.about: dict[int, About] = {}
        self.tags: dict[str, str] = {}  # tag -> job id
        self.expected: dict[tuple[int, str], Expected] = {}
        self.waits: dict[str, list[Wait]] = {}
        self.watches: list[Watch] = []
        #: Connections that may ask again for the outcome of a delivery.
        self.outcomes: set[int] = set()
        self.staged: dict[str, Job] = {}
        self.gathering: dict[str, None] = {}
        self.flight: Flight | None = None
        self.degraded: str | None = None
        self._failed_ns = self._retry_wait_ns = 0
        self._run_ms = run_ms
        self._numbers = 0
        self._waited = 0
        self._rows: dict[int, RowOf] = {}  # by number of a job
        #: By queue: what its row says of the rate, and its settings, as of the last one and of a restart.
        self._queue_rows: dict[str, tuple[Bucket | None, tuple[object, ...]]] = {}
        self._unwritten: dict[int, object] = {}
        self._look_ns = self.now_ns + QUEUE_LOOK_NS
        #: By index: the queues that have rows, and the highest index of all that had one.
        self._indexes: dict[int, str] = {}
        self._highest = 0

    # --- small things ----------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    @property
    def now_ns(self) -> int:
        return self.clock.now_ns()

    def new_id(self) -> str:
        self._numbers += 1
        return f"00000000-0000-7000-8000-{self._numbers:012d}"

    def new_token(self) -> str:
        self._numbers += 1
        return f"00000001-0000-4000-8000-{self._numbers:012d}"

    def _note_added(self, job: Job, before: Job | None) -> None:
        """The engine added a job by itself."""
        tag = f"{job.queue}+{job.seq}"
        backoff: tuple[int, str] | int = (
            DEFAULT_BACKOFF_MS if before is None else self.about[before.seq].backoff
        )
        self.about[job.seq] = About(tag, False, backoff)
        if before is not None:
            job.keep_completed, job.keep_failed = before.keep_completed, before.keep_failed
        self.tags[tag] = job.id

    def _retry_wait_ms(self, job_id: str) -> int:
        job = self.plain.jobs[job_id]
        backoff = self.about[job.seq].backoff
        if isinstance(backoff, tuple):
            base, kind = backoff
            return min(3_600_000, base if kind == "fixed" else base * 2 ** min(job.attempts - 1, 40))
        least, most = backoff * 2**job.attempts // 2, backoff * 2**job.attempts * 3 // 2
        run_ms = self._run_ms(job_id)
        # Of a job that has not lived until its wait was over nobody can say how long that was.
        wait = min(most, 3_600_000) if run_ms is None else run_ms - self.now_ms
        if not min(least, 3_600_000) <= wait <= min(most, 3_600_000):
            raise Failure(f"{job_id} waits {wait} ms after {job.attempts} attempts with a base of {backoff}")
        return wait

    def drawn_backoff(self, job_id: str) -> bool:
        """Whether the wait after a failure of this job has chance in it."""
        job = self.plain.jobs.get(job_id)
        return job is not None and not isinstance(self.about[job.seq].backoff, tuple)

    def stage(self, job_id: str) -> None:
        """Nobody sees this job before its commit."""
        job = self.staged[job_id] = self.plain.jobs[job_id]
        dict.__delitem__(self.plain.jobs, job_id)  # it is not gone, only out of sight
        self.gathering[job_id] = None
        self.plain.queues[job.queue].pushed -= 1

    # --- replies ---------------------------------------------------------------------------

    def answer(self, key: tuple[int, str], request: Request, reply: dict[str, Any], where: Where) -> None:
        reply = type(reply)({"ok": True, **reply})  # what is predicted in part stays so
        reply["reqId"] = key[1]
        self.expected[key] = Expected(reply, where, request)

    def deliver(
        self,
        key: tuple[int, str],
        request: Request,
        queue: str,
        count: int,
        lease_ms: int,
        session: int,
        empty_too: bool,
    ) -> int:
        """Claim and answer as one pull; how many."""
        got: list[tuple[str, str | None, bytes | None]] = []
        while len(got) < max(1, count):
            token = self.new_token() if lease_ms else None
            one = self.plain.pull(
                queue, self.now_ms, self.now_ns, token=token, lease_ms=lease_ms, session=session
            )
            if one is None:
                break
            got.append(one)
        if not got and not empty_too:
            return 0
        # As they were when they were delivered, whatever becomes of them before the reply goes out.
        jobs = [self.view(job_id) for job_id, _, _ in got]
        tokens = [Token(f"{job_id}/{token}") for job_id, token, _ in got]
        reply: dict[str, Any]
        if count:
            reply = {"jobs": jobs, "tokens": tokens} if lease_ms else {"jobs": jobs}
        else:
            reply = {"job": jobs[0] if jobs else None}
            if lease_ms:
                reply["token"] = tokens[0] if tokens else None
        self.answer(key, request, reply, "held" if got and self.config.hold_pulls else "out")
        return len(got)

    def view(self, job_id: str, state: str | None = None) -> Some:
        """A job as replies show it."""
        job = self.plain.jobs[job_id]
        about = self.about[job.seq]
        shown = Some(
            id=Id(job.id),
            queue=job.queue,
            priority=job.priority,
            createdAt=job.created_ms,
            runAt=job.run_ms,
            attempts=job.attempts,
            maxAttempts=job.max_attempts,
            stallCount=job.stalls,
            lifo=job.lifo,
            durable=about.durable,
            customId=job.id if about.custom else None,
        )
        if isinstance(job.keep_completed, bool):
            shown["removeOnComplete"] = job.remove_on_complete
        if isinstance(job.keep_failed, bool):
            shown["removeOnFail"] = job.remove_on_fail
        if job.data is not None:
            shown["data"] = unpacked(job.data)
        if state is not None:
            shown["state"] = state
            if job.state == "completed" and job.result is not None:
                shown["returnvalue"] = unpacked(job.result)
        return shown

    def wait(
        self,
        key: tuple[int, str],
        request: Request,
        queue: str,
        count: int,
        lease_ms: int,
        session: int,
        timeout_ms: int,
    ) -> None:
        self._waited += 1
        end_ns = self.now_ns + timeout_ms * 1_000_000
        self.waits.setdefault(queue, []).append(
            Wait(self._waited, key, queue, count, lease_ms, session, end_ns, request)
        )
        self.expected[key] = Expected({}, "wait", request)

    def watch(self, key: tuple[int, str], request: Request, job: Job, timeout_ms: int) -> None:
        self._waited += 1
        end_ns = self.now_ns + timeout_ms * 1_000_000
        self.watches.append(Watch(self._waited, key, job, end_ns, request))
        self.expected[key] = Expected({}, "wait", request)

    def note_outcomes(self) -> None:
        """See which of the watched jobs have ended."""
        if not self.watches:
            self.plain.completed_now.clear()
            self.plain.buried_now.clear()
            return
        done = {id(job): result for job, result in self.plain.completed_now}
        self.plain.completed_now.clear()
        buried = {id(job) for job in self.plain.buried_now}
        self.plain.buried_now.clear()
        for watch in self.watches:
            job = watch.job
            if watch.outcome is not None:
                continue
            if id(job) in done:
                watch.outcome = (True, done[id(job)])
            elif self.plain.jobs.get(job.id) is not job or job.state == "failed" or id(job) in buried:
                watch.outcome = (False, None)

    # --- what happens between requests -------------------------------------------------------

    def serve_waits(self) -> None:
        """Jobs that can start go to the pulls that wait for them, in the order in which those came."""
        for queue in list(self.waits):
            waiting = self.waits[queue]
            while waiting:
                wait = waiting[0]
                if not self.deliver(
                    wait.key, wait.request, queue, wait.count, wait.lease_ms, wait.session, False
                ):
                    break
                del waiting[0]
            if not waiting:
                del self.waits[queue]
        self.note_outcomes()

    def tell(self) -> None:
        """Answer those who wait for an outcome that has come."""
        for watch in [watch for watch in self.watches if watch.outcome is not None]:
            self.watches.remove(watch)
            self._answer_watch(watch)

    def _answer_watch(self, watch: Watch) -> None:
        completed, result = watch.outcome or (False, None)
        reply: dict[str, Any] = {"completed": completed}
        if result is not None:
            reply["result"] = unpacked(result)
        held = completed and self.config.hold_changes
        self.answer(watch.key, watch.request, reply, "held" if held else "out")

    def turn(self) -> None:
        """What is due by now: the engine's deadlines, waits that can be served, waits that end."""
        self.plain.advance(self.now_ms, self.now_ns)
        self.note_outcomes()
        self.serve_waits()
        self.tell()
        ending: list[Wait | Watch] = [wait for waits in self.waits.values() for wait in waits]
        ending += self.watches
        now_ns = self.now_ns
        for one in sorted(ending, key=lambda one: (one.end_ns, one.number)):
            if one.end_ns > now_ns:
                break
            if isinstance(one, Watch):
                self.watches.remove(one)
                one.outcome = None
                self._answer_watch(one)
            else:
                waits = self.waits[one.queue]
                waits.remove(one)
                if not waits:
                    del self.waits[one.queue]
                self.deliver(one.key, one.request, one.queue, one.count, one.lease_ms, one.session, True)
                self.note_outcomes()
        if now_ns >= self._look_ns:
            self._look_ns = now_ns + QUEUE_LOOK_NS
            busy = {*self.waits, *(job.queue for job in self.staged.values())}
            for name in self.plain.forget_idle(now_ns, busy):
                self._queue_rows.pop(name, None)

    def close_session(self, session: int, release: bool) -> None:
        """The connection ended: what it waited for is not answered any more."""
        for key in [key for key in self.expected if key[0] == session]:
            del self.expected[key]
        if self.flight is not None:
            for key in [key for key in self.flight.replies if key[0] == session]:
                del self.flight.replies[key]
        for queue, waits in list(self.waits.items()):
            waits[:] = [wait for wait in waits if wait.key[0] != session]
            if not waits:
                del self.waits[queue]
        self.watches = [watch for watch in self.watches if watch.key[0] != session]
        if release:
            self.plain.close_session(session, self.now_ms)
        self.note_outcomes()
        self.serve_waits()
        self.tell()

    # --- commits ---------------------------------------------------------------------------

    @property
    def trouble(self) -> str:
        """Why nothing can be written, as callers are told."""
        assert self.degraded is not None
        return {"full": "disk full", "locked": "the data file is locked by another program"}.get(
            self.degraded, "storage error"
        )

    @property
    def retry_at_ns(self) -> int:
        """When a failed commit is tried again; 0 when none failed."""
        if self.holding and self._retry_wait_ns:
            return self._failed_ns + RETRY_FIRST_NS
        return self._failed_ns + self._retry_wait_ns if self._retry_wait_ns else 0

    @property
    def holding(self) -> bool:
        """Whether a reply waits for a cut that is still to be taken."""
        return any(expected.where in ("held", "held_adds") for expected in self.expected.values())

    def begin_commit(
        self,
        rows: Mapping[int, tuple[int, object]],
        states: Mapping[int, Mapping[str, Any] | None],
    ) -> CutState:
        """A cut was taken.

        ``rows``: by number of a job, the state of its row and its bytes; ``states``: rows of queues
        by index, None of one that goes.
        """
        queues = {state["name"]: state for state in states.values() if state is not None}
        self._note_indexes(states)
        known, self._rows = self._rows, {}
        unwritten, self._unwritten = self._unwritten, dict(rows)
        plain = self.plain
        saved = SavedSchedules(
            queues={name: q.copied() for name, q in plain.queues.items()},
            kept=dict(plain.kept),
            plans={name: alike(plan) for name, plan in plain.plans.items()},
            owned={job_id: name for job_id, name in plain.owned.items() if job_id in plain.jobs},
            repeats={job_id: repeat for job_id, repeat in plain.repeats.items() if job_id in plain.jobs},
            links={job_id: later for job_id, later in plain.links.items() if job_id in plain.jobs},
            evidence=plain.stored_evidence(),
        )
        for name, q in saved.queues.items():
            settings = _settings(q)
            if name in queues:
                # Who looks finds that the time of a limit is over; that may be only one of the two so far.
                if "rate" not in queues[name]:
                    q.limits.rate = None
                elif q.limits.rate is None:
                    q.limits.rate = self._queue_rows[name][0]
                self._queue_rows[name] = (q.limits.rate, settings)
                continue
            rate, before = self._queue_rows[name]
            if settings[:-1] != before[:-1] or settings[-1] not in ((), before[-1]):
                raise Failure(f"queue {name} changed and was not written: {settings}, before: {before}")
            q.limits.rate = rate  # a restart that writes nothing tells it in its own time
        for job in [*plain.jobs.values(), *plain.held.values(), *self.staged.values()]:
            row = known.get(job.seq)
            fresh = rows.get(job.seq)
            # One that is written again as it was keeps the time at which it was encoded.
            if fresh is not None and unwritten.get(job.seq) != fresh:
                row = RowOf(fresh[0], self.now_ms, self.now_ns, _content(job), holding=_holding(job))
                if job.delivery is not None:
                    row.expires_ns, row.timeout_ns = job.delivery.expires_ns, job.delivery.timeout_ns
            if row is None:
                raise Failure(f"job {job.id} is not in the cut")
            self._rows[job.seq] = row
            # Most jobs are as they were: those need no second look, nor another copy.
            if row.seen is None or row.stored is None or vars(row.seen) != vars(job):
                if (row.content, row.holding) != (_content(job), _holding(job)):
                    raise Failure(f"job {job.id} changed and was not written: {job}, before: {row}")
                row.seen, row.stored = job.copied(), _stored(job, row)
            saved.jobs[job.id] = row.stored
            saved.written[job.id] = (row.now_ms, row.now_ns)
        cut = CutState(saved, self._rows, dict(self._indexes), self._highest)
        self.flight = Flight(cut, staged=self.gathering)
        self.gathering = {}
        for key, expected in list(self.expected.items()):
            if expected.where in ("held", "held_adds"):
                self.flight.replies[key] = self.expected.pop(key)
        return cut

    def _note_indexes(self, states: Mapping[int, Mapping[str, Any] | None]) -> None:
        """Queues that are forgotten leave no row, and no index is given twice."""
        for index, state in states.items():
            if state is None:
                self._indexes.pop(index, None)
            elif index in self._indexes:
                if self._indexes[index] != state["name"]:
                    raise Failure(f"queue {index} was {self._indexes[index]}, and is {state['name']}")
            elif index <= self._highest:
                raise Failure(f"index {index} is given again, to queue {state['name']}")
            else:
                self._indexes[index] = state["name"]
                self._highest = index
        if sorted(self._indexes.values()) != sorted(self.plain.queues):
            raise Failure(f"rows of queues: {self._indexes}, expected {list(self.plain.queues)}")

    def end_commit(self, fault: str | None, *, unsure: bool = False) -> None:
        """The cut is on disk, or is not; the replies that promised it."""
        flight = self.flight
        assert flight is not None
        self.flight = None
        for job_id in flight.staged:
            if fault is None:
                job = self.staged.pop(job_id)
                self.gathering.pop(job_id, None)
                self.plain.jobs[job_id] = job
                self.plain.queues[job.queue].pushed += 1
                if job.state == "delayed":  # one that was ready when it was added stays so
                    self.plain._enqueue(job, self.now_ms)
            elif job_id not in self.gathering:
                del self.staged[job_id]
        if fault is None:
            self._unwritten = {}
            self.degraded = None
            self._retry_wait_ns = 0
        else:
            self.degraded = fault
            self._retry_wait_ns = min(max(RETRY_FIRST_NS, self._retry_wait_ns * 2), RETRY_MOST_NS)
            self._failed_ns = self.now_ns
        for key, expected in flight.replies.items():
            if fault is not None and not expected.reply.keys() & {"job", "jobs"}:
                text = f"Nothing was stored ({self.trouble})"
                if expected.where == "held":
                    text = f"Outcome unknown: applied in memory, not yet on disk ({self.trouble})"
                elif unsure:
                    text = f"Outcome unknown: not in memory, perhaps on disk ({self.trouble})"
                expected.reply = {"ok": False, "error": text, "reqId": key[1]}
            expected.where = "out"
            self.expected[key] = expected
        self.serve_waits()

    # --- the end of a process ------------------------------------------------------------------

    def restart(self, config: Config, cut: CutState) -> None:
        """A new process opened what the disk holds, which is this cut. Holders are charged after a crash."""
        self.config = config
        self.plain.restart(
            cut.saved,
            self.now_ms,
            self.now_ns,
            keep_leases=config.mode == "server",
            charge=cut.open,
        )
        self.plain.completed_now.clear()
        self.plain.buried_now.clear()
        self.plain.remembered.clear()
        self.outcomes.clear()
        self._rows = {seq: replace(row, seen=None, stored=None) for seq, row in cut.rows.items()}
        for job in self.plain.jobs.values():
            if job.delivery is not None:
                self._rows[job.seq].holding = _holding(
                    job
                )  # recovery tells the time anew, and writes nothing
        self._queue_rows = {
            name: (cut.saved.queues[name].limits.rate, _settings(q)) for name, q in self.plain.queues.items()
        }
        self._unwritten = {}
        self._look_ns = self.now_ns + QUEUE_LOOK_NS
        self._indexes, self._highest = dict(cut.indexes), cut.highest
        self.expected, self.waits, self.watches = {}, {}, []
        self.staged, self.gathering, self.flight = {}, {}, None
        self.degraded = None
        self._retry_wait_ns = 0


def _content(job: Job) -> tuple[object, ...]:
    """What a row says beside its state."""
    return (
        job.queue,
        job.data,
        job.priority,
        job.lifo,
        job.run_ms,
        job.attempts,
        job.stalls,
        job.progress,
        job.last_token,
        job.result,
        job.ended,
        job.losses,
        None if job.letter is None else astuple(job.letter),
        None if job.chain is None else astuple(job.chain),
        job.group,
        None if job.key is None else (job.key.place, job.key.expires_ms, job.key.passed),
        job.failed_reason,
        _tied(job),
    )


def _tied(job: Job) -> tuple[object, ...]:
    ties = job.ties
    if not ties.depends_on and ties.parent is None and not ties.children:
        return ()
    return (
        tuple(ties.depends_on),
        tuple(ties.children),
        ties.parent,
        ties.policy,
        ties.settled,
        ties.evidenced,
        tuple(ties.dropped.items()),
        ties.child_failed,
    )


def _settings(q: Queue) -> tuple[object, ...]:
    rate = q.limits.rate
    spent = () if rate is None else (rate.most, rate.span_ms, rate.at_ms, rate.debt)
    return q.paused, dict(q.dead), dict(q.stalls), q.limits.concurrency, spent


def _stored(job: Job, row: RowOf) -> Job:
    """What a store has of a job whose last row is this one."""
    kept = job.copied()
    if row.state != ROW_STATES[job.state]:
        if not (row.state == DELAYED_ROW and job.state == "ready"):
            raise Failure(f"job {job.id} is {job.state}, and its row says {row.state}")
        kept.state = "delayed"  # promotion writes no row
    if kept.delivery is not None:
        # Deadlines count from when they were written, also by an earlier process.
        kept.delivery.expires_ns, kept.delivery.timeout_ns = row.expires_ns, row.timeout_ns
    return kept


def _holding(job: Job) -> tuple[object, ...]:
    delivery = job.delivery
    return () if delivery is None else (delivery.expires_ns, delivery.timeout_ns, delivery.renewals)


def limited(queue: Queue) -> bool:
    """Whether more than the order of its jobs decides what starts next."""
    limits = queue.limits
    return limits.rate is not None or limits.concurrency is not None or bool(limits.groups)
