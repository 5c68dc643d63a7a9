"""The worker's control loop: pulls, starts, outcomes and acknowledgements.

Everything here runs in one event loop's thread, unless a method says otherwise.

Acknowledgements are gathered by the rule of the reachable frontier. With P
outcomes gathered, U running deliveries that can still bring one, S deliveries
that could start now without an acknowledgement settling first, and B the batch
size, a batch is sent as soon as P >= min(B, P + U + S): when it is full, or when
nothing else can reach it. The rule is looked at whenever one of its terms
changes, and nowhere else. A timer stands beside it for one case only, a slow job
that runs beside finished ones.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from qclient.channel import COMMAND_TIMEOUT_S, Channel
from qclient.codec import NIL, SIZE_BOUND, fits, pack_payload
from qclient.delivery import ACKING, BUFFERED, LOST, REPORTING, SETTLED, STARTED, JobContext, set_current
from qclient.keeper import LeaseKeeper
from qclient.outcomes import UNUSABLE_RESULT, Flight, Report, report_of
from qclient.protocol import array_header
from qclient.replies import refused
from qclient.settings import WorkerSettings
from qclient.threads import Outcome, ProcessorThreads
from qclient.url import Target
from qcore.errors import (
    ClosedError,
    CommandError,
    CommandTimeout,
    ConnectionLost,
    ForkedError,
    JobCancelled,
    LeaseError,
    LimitError,
    NotFoundError,
    SerializationError,
    StateError,
)

_log = logging.getLogger("qclient.worker")

MAX_FLIGHTS = 4
ACK_FRAME_BYTES = 15 * 1024 * 1024
ACK_TRIES = 3
PULL_GRACE_S = 5.0
CLOSE_PATIENCE_S = 2.0
_MIN_ACK_S = 0.0005
_MAX_ACK_S = 0.05

Reply = dict[str, Any]


class Control:
    """State of one running worker."""

    def __init__(
        self,
        queue: str,
        target: Target,
        fn: Callable[[JobContext], Any],
        is_async: bool,
        settings: WorkerSettings,
        worker_id: str,
        listeners: dict[str, list[Any]],
        loop: asyncio.AbstractEventLoop,
        emit: Callable[..., None],
        emit_completed: Callable[[list[JobContext]], None],
    ) -> None:
        self._emit_completed = emit_completed
        self.queue = queue
        self.target = target
        self.settings = settings
        self.worker_id = worker_id
        self.loop = loop
        self._thread = threading.get_ident()
        self._fn = fn
        self._is_async = is_async
        self._emit = emit
        self._on_completed = listeners["completed"]
        self._on_active = listeners["active"]
        # Limits in force.
        self.concurrency = settings.concurrency
        self._batch = settings.batch_size
        self.paused = False
        self.closing = False
        self._held_until = 0.0
        # Deliveries.
        self.leased: set[JobContext] = set()
        self._buffer: deque[JobContext] = deque()
        self._slots = settings.concurrency
        self.running = 0
        self._gathered: list[JobContext] = []
        self._gathered_bytes = 0
        self._gathered_since = 0.0
        self._flights = 0
        self._flying = 0
        self._reports = 0
        # Pulls.
        self._pulls = 0
        self._asked = 0
        self._last_full = False
        self._empty_in_a_row = 0
        self._drained_at = float("-inf")
        self._pull_timer: asyncio.TimerHandle | None = None
        self._pull_pause = 0.0
        self._pulled_at = 0.0
        # Acknowledgement timer.
        self._ack_timer: asyncio.TimerHandle | None = None
        self._ack_interval = _MAX_ACK_S if settings.ack_interval is None else settings.ack_interval
        self._round_trip = 0.0
        # Statistics.
        self.completed = 0
        self.failed = 0
        self.cancelled = 0
        self.leases_lost_n = 0
        self.ack_frames = 0
        self.ack_members = 0
        self.fallback_flushes = 0
        self.pull_frames = 0
        self.abandoned = 0
        # Parts.
        self._idle = asyncio.Event()
        self._quiet = asyncio.Event()
        self._down_told = False
        self.finished = asyncio.Event()
        self.channel = Channel(target, loop, self._up, self._down, self._settled_turn, self)
        self._threads: ProcessorThreads | None = None
        if not is_async:
            self._threads = ProcessorThreads(fn, self._finish, self._outcomes, loop, f"qclient-{queue}")
            self._threads.size = settings.concurrency
        self._keeper: LeaseKeeper | None = None
        if settings.heartbeat_interval > 0:
            self._keeper = LeaseKeeper(self, settings.heartbeat_interval, settings.max_block)
        self._int64 = False
        self._typed = False

    # ---------------------------------------------------------------- life

    async def start(self) -> None:
        """Connect and begin to pull; a refused token or address is raised."""
        await self.channel.open()
        if self._keeper is not None:
            self._keeper.start()

    @property
    def in_loop(self) -> bool:
        """Whether the calling thread is the loop's."""
        return threading.get_ident() == self._thread

    def call_soon(self, fn: Callable[..., Any], *args: Any) -> None:
        """Run ``fn`` in the loop's thread; from any thread, also after the loop has ended."""
        try:
            self.loop.call_soon_threadsafe(fn, *args)
        except RuntimeError:
            return

    def post(self, command: str, fields: dict[str, object]) -> None:
        """Send a command whose reply nobody waits for; from any thread."""
        if threading.get_ident() == self._thread:
            self._post(command, fields)
        else:
            self.call_soon(self._post, command, fields)

    def _post(self, command: str, fields: dict[str, object]) -> None:
        self.channel.request(command, fields, self._posted, command)
        self.channel.flush()

    def _posted(self, command: str, reply: Reply | None, error: Exception | None) -> None:
        if reply is not None and not reply.get("ok"):
            self._emit("error", refused(reply, command), command)

    def ask(self, command: str, fields: dict[str, object]) -> Reply:
        """The reply to a command, refusals raised; from any thread but the loop's, which it would hold up."""
        if self.in_loop:
            raise RuntimeError(f"{command} waits for a reply; in a coroutine, await asyncio.to_thread(...)")
        answer: Future[Reply] = Future()
        self.call_soon(self._ask, command, fields, answer)
        try:
            reply = answer.result(COMMAND_TIMEOUT_S + PULL_GRACE_S)
        except TimeoutError:
            raise CommandTimeout(f"{command}: no reply in time") from None
        if not reply.get("ok"):
            raise refused(reply, command)
        return reply

    def _ask(self, command: str, fields: dict[str, object], answer: Future[Reply]) -> None:
        def told(_: Any, reply: Reply | None, error: Exception | None) -> None:
            if isinstance(error, ConnectionLost):
                # Only questions come here: again, with the next connection.
                self.loop.call_soon(self._ask, command, fields, answer)
            elif reply is None:
                answer.set_exception(error or ConnectionLost("connection broke"))
            else:
                answer.set_result(reply)

        self.channel.request(command, fields, told)
        self.channel.flush()

    def _up(self) -> None:
        can = self.channel.capabilities
        self._int64 = "int64" in can
        self._typed = "typed" in can
        self._down_told = False
        self._pulls = 0
        self._asked = 0
        self._last_full = False
        channel = self.channel
        channel.request(
            "RegisterWorker",
            {
                "name": self.settings.name,
                "workerId": self.worker_id,
                "queues": [self.queue],
                "concurrency": self.concurrency,
                "hostname": socket.gethostname(),
                "pid": os.getpid(),
                "startedAt": float(time.time_ns() // 1_000_000),
            },
            self._posted,
            "RegisterWorker",
        )
        if self.leased:
            jobs = [j for j in self.leased if j._state <= ACKING]
            for at in range(0, len(jobs), 1000):
                part = jobs[at : at + 1000]
                fields: dict[str, object] = {"ids": [j.id for j in part], "tokens": [j.token for j in part]}
                channel.request("JobHeartbeatB", fields, self._posted, "JobHeartbeatB")
        self._pull()
        channel.flush()
        self._emit("ready")

    def _down(self, exc: Exception) -> None:
        # An outage is told once, and the end of all tries as well.
        if (not self._down_told or isinstance(exc, (ClosedError, ForkedError))) and not self.closing:
            self._down_told = True
            self._emit("error", exc, "connection")

    # ------------------------------------------------------------- pulling

    def _pull(self) -> None:
        """Ask for as many jobs as there is room for, if that is due."""
        if self.paused or self.closing or not self.channel.up or self._pull_timer is not None:
            return
        if self.finished.is_set():
            return  # a burst that is over
        pulls = self._pulls
        while pulls == 0 or (pulls == 1 and self._last_full):
            # What waits for an acknowledgement that is written already settles before
            # the engine comes to this pull: it goes out behind it on the same stream.
            room = self.concurrency + self.settings.prefetch - (len(self.leased) - self._flying) - self._asked
            count = self._batch
            if room < count:
                # A second, smaller pull would only break the width of the waves.
                if room <= 0 or pulls:
                    return
                count = room
            if self._held_until and self.loop.time() < self._held_until:
                return
            wait = 0.0 if self.settings.burst else self.settings.poll_timeout
            self._pulls = pulls = pulls + 1
            self._asked += count
            self.pull_frames += 1
            self._pulled_at = self.loop.time()
            fields: dict[str, object] = {
                "queue": self.queue,
                "count": count,
                "owner": self.worker_id,
                "timeout": int(wait * 1000),
                "lockTtl": self.settings.lock_ms,
            }
            if self.settings.group is not None:
                fields["group"] = self.settings.group
            self.channel.request(
                "PULLB",
                fields,
                self._pulled,
                count,
                (),
                wait + PULL_GRACE_S,
            )

    def _pulled(self, count: int, reply: Reply | None, error: Exception | None) -> None:
        self._pulls = max(0, self._pulls - 1)
        self._asked = max(0, self._asked - count)
        if reply is None:
            return  # the connection broke; the next one pulls again
        if not reply.get("ok"):
            exc = refused(reply, "PULLB")
            self._pull_pause = min(30.0, max(0.1, self._pull_pause * 2))
            self._emit("error", exc, "pull")
            self._pull_later(self._pull_pause)
            return
        self._pull_pause = 0.0
        jobs: list[JobContext] = reply.get("jobs") or []
        if not jobs:
            self._last_full = False
            self._empty()
            return
        self._empty_in_a_row = 0
        self._last_full = len(jobs) >= count
        for job, token in zip(jobs, reply.get("tokens") or ("",) * len(jobs), strict=True):
            job.token = token
        self.leased.update(jobs)
        self._buffer.extend(jobs)
        if self.closing or self.paused:
            # Asked for before; nobody will start them here, so others may have them at once.
            self._release_buffer()
            return
        self._start_jobs()

    def _empty(self) -> None:
        now = self.loop.time()
        if now - self._drained_at >= 1.0:
            self._drained_at = now
            self._emit("drained")
        self._empty_in_a_row += 1
        settings = self.settings
        if settings.burst:
            if self._empty_in_a_row >= 2 and not self.leased:
                self._idle.set()
                self.finished.set()
                return
            self._pull_later(settings.drain_delay)
        elif now - self._pulled_at < settings.poll_timeout / 2 or settings.poll_timeout == 0:
            # An engine that does not hold polls (it drains, say): do not spin on it.
            self._pull_later(settings.drain_delay)

    def _pull_later(self, seconds: float) -> None:
        if self._pull_timer is None and not self.closing:
            self._pull_timer = self.loop.call_later(seconds, self._pull_now)

    def _pull_now(self) -> None:
        self._pull_timer = None
        self._start_jobs()
        self._pull()
        self.channel.flush()

    def _settled_turn(self) -> None:
        """After everything that one read brought has been handled."""
        self._pull()

    # ------------------------------------------------------------ starting

    def _gate(self) -> bool:
        """Whether starts are allowed now; arranges a look when a hold ends."""
        if self.paused or self.closing:
            return False
        if self._held_until:
            left = self._held_until - self.loop.time()
            if left > 0:
                self._pull_later(left)
                return False
            self._held_until = 0.0
        return True

    def _start_jobs(self) -> None:
        buffer = self._buffer
        if not buffer or self._slots <= 0 or not self._gate():
            return
        loop = self.loop
        # Without a task factory of the user's the class is called directly: the
        # loop's method costs as much again as the task.
        create_task = _task if loop.get_task_factory() is None else _task_of_factory
        threads = self._threads
        run = self._run
        on_active = self._on_active
        n = min(len(buffer), self._slots)
        self._slots -= n
        self.running += n
        for _ in range(n):
            job = buffer.popleft()
            job._state = STARTED
            if job.timeout is not None:
                self._arm_timeout(job)
            if on_active:
                self._emit("active", job)
            if threads is None:
                job._task = create_task(run(job), loop)
            else:
                threads.submit(job)

    def _arm_timeout(self, job: JobContext) -> None:
        seconds = job._start_clock()
        assert seconds is not None
        job._timer = self.loop.call_later(seconds, self._timed_out, job)

    def _timed_out(self, job: JobContext) -> None:
        self.cancel(job, "timeout")

    async def _run(self, job: JobContext) -> None:
        set_current(job)
        try:
            result = await self._fn(job)
        except BaseException as exc:  # whatever a processor raises is its job's failure
            if type(exc) is GeneratorExit and self.loop.is_closed():
                raise
            self._raised(job, exc)
            return
        if result is None:
            self._returned(job, None, None)
            return
        try:
            payload = self._finish(job, result)
        except BaseException as exc:
            self._raised(job, exc)
            return
        self._returned(job, payload[0], payload[1])

    def _finish(self, job: JobContext, result: Any) -> tuple[bytes | None, Any]:
        """Pack a result, in the thread of its processor."""
        if result is None:
            return None, None
        if asyncio.iscoroutine(result):
            result.close()
            raise SerializationError(f"{UNUSABLE_RESULT}: a coroutine that was not awaited")
        try:
            packed = pack_payload(result, typed=self._typed, int64=self._int64)
        except SerializationError as exc:
            raise SerializationError(f"{UNUSABLE_RESULT}: {exc}") from None
        if not fits(packed):
            raise SerializationError(
                f"{UNUSABLE_RESULT}: {len(packed)} bytes of it are too large; {SIZE_BOUND}"
            )
        return packed, result

    def _outcomes(self, done: list[Outcome]) -> None:
        """A wave from the threads."""
        for job, value, exc in done:
            if exc is None:
                self._returned(job, value[0], value[1])
            else:
                self._raised(job, exc)
        self._pull()
        self.channel.flush()

    # ------------------------------------------------------------ outcomes

    def _returned(self, job: JobContext, payload: bytes | None, value: Any) -> None:
        if job._state != STARTED:
            self._dropped(job)
            return
        job._state = ACKING
        job._result = payload
        job._value = value
        job._task = None
        if job._timer is not None:
            job._timer.cancel()
        gathered = self._gathered
        gathered.append(job)
        if payload is not None:
            self._gathered_bytes += len(payload)
        self.running = running = self.running - 1
        n = len(gathered)
        if n >= self._batch or (running == 0 and not self._startable()):
            self._flush()
        elif n == 1:
            self._gathered_since = self.loop.time()
            if self._ack_timer is None:
                self._ack_timer = self.loop.call_later(self._ack_interval, self._ack_due)

    def _startable(self) -> int:
        """S of the rule: what could start now without an acknowledgement settling first."""
        if not self._buffer or self._slots <= 0 or self.paused or self.closing:
            return 0
        if self._held_until and self.loop.time() < self._held_until:
            return 0
        return min(self._slots, len(self._buffer))

    def _reconsider(self) -> None:
        """Look at the rule after one of its terms has changed."""
        n = len(self._gathered)
        if n and (n >= self._batch or (self.running == 0 and not self._startable())):
            self._flush()

    def _ack_due(self) -> None:
        self._ack_timer = None
        if not self._gathered:
            return
        left = self._gathered_since + self._ack_interval - self.loop.time()
        if left > 0.0001:
            self._ack_timer = self.loop.call_later(left, self._ack_due)
            return
        self.fallback_flushes += 1
        self._flush()
        if self._gathered:
            self._ack_timer = self.loop.call_later(self._ack_interval, self._ack_due)

    def _flush(self) -> None:
        """Send what is gathered, and the next pull behind it in the same write."""
        while self._gathered and self._flights < MAX_FLIGHTS:
            gathered = self._gathered
            n = min(len(gathered), self._batch)
            if self._gathered_bytes > ACK_FRAME_BYTES:
                n = self._fitting(gathered, n)
            if n == len(gathered):
                jobs, self._gathered = gathered, []
            else:
                jobs, self._gathered = gathered[:n], gathered[n:]
            results = [job._result for job in jobs]
            raw: tuple[tuple[str, bytes], ...] = ()
            if any(results):
                self._gathered_bytes -= sum(len(r) for r in results if r is not None)
                raw = (("results", array_header(n) + b"".join([NIL if r is None else r for r in results])),)
            fields: dict[str, object] = {
                "ids": [job.id for job in jobs],
                "tokens": [job.token for job in jobs],
            }
            self._flying += n
            self._flights += 1
            self._send_flight(Flight(jobs, fields, raw))
            if len(self._gathered) < self._batch:
                break
        self._pull()
        self.channel.flush()

    @staticmethod
    def _fitting(jobs: list[JobContext], n: int) -> int:
        size = 0
        for i in range(n):
            size += len(jobs[i]._result or NIL)
            if size > ACK_FRAME_BYTES and i:
                return i
        return n

    def _send_flight(self, flight: Flight) -> None:
        flight.sent_at = self.loop.time()
        self.ack_frames += 1
        self.ack_members += len(flight.jobs)
        self.channel.request("ACKB", flight.fields, self._acked, flight, flight.raw)

    def _resend_flight(self, flight: Flight) -> None:
        flight.repeated = True
        self._send_flight(flight)
        self.channel.flush()

    def _acked(self, flight: Flight, reply: Reply | None, error: Exception | None) -> None:
        if reply is None:
            if isinstance(error, ConnectionLost):
                # Tokens make a repeat safe; it waits for the next connection.
                self.loop.call_soon(self._resend_flight, flight)
                return
            if isinstance(error, CommandTimeout) and flight.tries < ACK_TRIES:
                self._retry_flight(flight)
                return
            self._land(flight)
            self._unconfirmed(flight.jobs, error or ConnectionLost("connection broke"))
            return
        if reply.get("ok"):
            self._land(flight)
            if self.settings.ack_interval is None:
                trip = self.loop.time() - flight.sent_at
                self._round_trip = trip if not self._round_trip else self._round_trip * 0.8 + trip * 0.2
                self._ack_interval = min(_MAX_ACK_S, max(_MIN_ACK_S, 2 * self._round_trip))
            data = reply.get("data")
            if data:
                self._settle_partly(flight.jobs, data)
            else:
                self._settle_completed(flight.jobs)
        else:
            self._ack_refused(flight, reply)
        if self._buffer:
            self._start_jobs()
        if self._gathered:
            self._reconsider()

    def _land(self, flight: Flight) -> None:
        self._flights -= 1
        self._flying -= len(flight.jobs)

    def _retry_flight(self, flight: Flight) -> None:
        pause = 0.1 * 2**flight.tries
        flight.tries += 1
        self.loop.call_later(pause, self._resend_flight, flight)

    def _settle_completed(self, jobs: list[JobContext]) -> None:
        n = len(jobs)
        self.leased.difference_update(jobs)
        self._slots += n
        self.completed += n
        for job in jobs:
            job._state = SETTLED
        if self._on_completed:
            self._emit_completed(jobs)
        if self.closing or not self.leased:
            self._check_idle()

    def _settle_partly(self, jobs: list[JobContext], data: Reply) -> None:
        positions = data.get("ignoredIndices")
        if positions is None and not data.get("ignoredIds"):
            self._settle_completed(jobs)
            return
        n = len(jobs)
        if not isinstance(positions, list) or not all(isinstance(i, int) and 0 <= i < n for i in positions):
            self._unconfirmed(jobs, StateError("the engine did not say which outcomes were applied", "ACKB"))
            return
        ignored = set(positions)
        reasons = data.get("refused")
        for i in sorted(ignored):
            self._free(jobs[i])
        if isinstance(reasons, (list, dict)) and reasons:
            self.leases_lost_n += len(reasons)
            self._emit("error", LeaseError(f"{len(reasons)} outcomes came too late", "ACKB"), "ack")
        self._settle_completed([job for i, job in enumerate(jobs) if i not in ignored])

    def _ack_refused(self, flight: Flight, reply: Reply) -> None:
        exc = refused(reply, "ACKB")
        text = str(reply.get("error"))
        if (isinstance(exc, LimitError) or "nternal" in text) and flight.tries < ACK_TRIES:
            self._retry_flight(flight)
            return
        self._land(flight)
        jobs = flight.jobs
        if len(jobs) == 1 or not isinstance(exc, (LeaseError, StateError, NotFoundError)):
            self._unconfirmed(jobs, exc)
            return
        if "outcomes" in self.channel.capabilities:
            # This engine answers for each member; an error means that all were refused.
            self._unconfirmed(jobs, exc)
            return
        bad = next((job for job in jobs if text.endswith(job.id)), None)
        if bad is None:
            self._unconfirmed(jobs, exc)
            return
        rest = [job for job in jobs if job is not bad]
        self._unconfirmed([bad], exc)
        if isinstance(exc, LeaseError):
            # Tokens are checked before anything is applied: the others go again.
            self._flying += len(rest)
            self._flights += 1
            fields: dict[str, object] = {
                "ids": [job.id for job in rest],
                "tokens": [job.token for job in rest],
            }
            raw: tuple[tuple[str, bytes], ...] = ()
            if flight.raw:
                body = b"".join([job._result or NIL for job in rest])
                raw = (("results", array_header(len(rest)) + body),)
            again = Flight(rest, fields, raw)
            again.repeated = flight.repeated
            self._send_flight(again)
        elif flight.repeated:
            # Applied the first time, or given back when the connection broke: this
            # engine cannot tell, and a wrong "completed" would be worse than none.
            self._unconfirmed(rest, exc)
        else:
            for job in rest:
                self._ask_state(job, exc)

    def _ask_state(self, job: JobContext, exc: CommandError) -> None:
        """Settle a member of a batch that was refused on account of another."""

        def told(_: Any, reply: Reply | None, error: Exception | None) -> None:
            self._reports -= 1
            if reply is not None and reply.get("state") == "completed":
                self._settle_completed([job])
            else:
                self._unconfirmed([job], exc)
            self._start_jobs()
            self._reconsider()

        self._reports += 1
        self.channel.request("GetState", {"id": job.id}, told)

    def _unconfirmed(self, jobs: Iterable[JobContext], exc: Exception) -> None:
        """Outcomes that were not applied: the engine decides about these jobs."""
        for job in jobs:
            self._free(job)
            if isinstance(exc, (LeaseError, StateError, NotFoundError)):
                self.leases_lost_n += 1
            if not isinstance(exc, ClosedError):
                self._emit("error", exc, "ack")

    def _free(self, job: JobContext) -> None:
        """Release the slot and the lease of a delivery that had started."""
        job._state = SETTLED
        self.leased.discard(job)
        self._slots += 1
        self._check_idle()

    def _dropped(self, job: JobContext) -> None:
        """The late outcome of a delivery that is not ours any more."""
        if job._state == LOST:
            self._free(job)
            self._start_jobs()
            self._pull()
            self.channel.flush()

    def _check_idle(self) -> None:
        if self.running == 0 and not self._gathered and not self._flights and not self._reports:
            self._quiet.set()
        if self.running == 0:
            self._idle.set()

    # ------------------------------------------------------------ failures

    def _raised(self, job: JobContext, exc: BaseException) -> None:
        if job._state != STARTED:
            self._dropped(job)
            return
        job._task = None
        if job._timer is not None:
            job._timer.cancel()
        reason = job._reason
        if reason in ("lease_lost", "stalled"):
            self._leave(job)
            self._free(job)
        elif reason == "shutdown" and isinstance(exc, (asyncio.CancelledError, JobCancelled)):
            self._leave(job)
            self._report(Report(job, "MoveToWait", {"id": job.id, "token": job.token}, "released"))
        else:
            self._leave(job)
            report = report_of(job, exc)
            if report.hold is not None:
                self.hold(report.hold)
            self._report(report)
        self._reconsider()
        self._pull()
        self.channel.flush()

    def _leave(self, job: JobContext) -> None:
        job._state = REPORTING
        self.running -= 1

    def _report(self, report: Report) -> None:
        self._reports += 1
        self.channel.request(report.command, report.fields, self._reported, report)

    def _again(self, report: Report) -> None:
        self._report(report)
        self.channel.flush()

    def _reported(self, report: Report, reply: Reply | None, error: Exception | None) -> None:
        self._reports -= 1
        job = report.job
        if reply is None:
            if isinstance(error, ConnectionLost):
                self.loop.call_soon(self._again, report)
                return
            if isinstance(error, CommandTimeout) and report.tries < ACK_TRIES:
                report.tries += 1
                self._again(report)
                return
            self._unconfirmed([job], error or ConnectionLost("connection broke"))
        elif not reply.get("ok"):
            exc = refused(reply, report.command)
            if isinstance(exc, LimitError) and report.tries < ACK_TRIES:
                report.tries += 1
                self.loop.call_later(0.1 * 2**report.tries, self._again, report)
                return
            self._unconfirmed([job], exc)
        else:
            data = reply.get("data")
            applied = not (isinstance(data, dict) and data.get("applied") is False)
            if applied and report.after is not None:
                command, fields = report.after
                self.channel.request(command, fields, _ignore)
            self._free(job)
            if applied and report.kind == "failed":
                self.failed += 1
                _log.debug("job %s of %s failed: %s", job.id, self.queue, report.fields.get("error"))
                self._emit("failed", job, report.error)
        self._start_jobs()
        self._reconsider()

    # -------------------------------------------------------- cancellation

    def cancel(self, job: JobContext, reason: str) -> None:
        """Cancel one delivery; a coroutine at its next await, a thread when it looks."""
        if job._state != STARTED or job._reason is not None:
            return
        job._reason = reason
        self.cancelled += 1
        self._emit("cancelled", job.id, reason)
        if job._event is not None:
            job._event.set()
        if job._task is not None:
            job._task.cancel(reason)

    def cancel_id(self, job_id: str, reason: str) -> None:
        for job in list(self.leased):
            if job.id == job_id:
                self.cancel(job, reason)

    def cancel_all(self, reason: str) -> None:
        for job in list(self.leased):
            self.cancel(job, reason)

    def leases_lost(self, jobs: list[JobContext]) -> None:
        """The engine gave these deliveries to somebody else."""
        for job in jobs:
            if job._state == BUFFERED:
                self.leases_lost_n += 1
                self._buffer.remove(job)
                self.leased.discard(job)
                job._state = SETTLED
            elif job._state == STARTED:
                self.leases_lost_n += 1
                self.cancel(job, "lease_lost")
                # It leaves the frontier now; its slot is free when it has ended.
                job._state = LOST
                self.leased.discard(job)
                self.running -= 1
        self._reconsider()
        self._pull()
        self.channel.flush()

    # ------------------------------------------------------------- control

    def set_concurrency(self, n: int) -> None:
        self._slots += n - self.concurrency
        self.concurrency = n
        if self._threads is not None:
            self._threads.size = max(self._threads.size, n)
        self._start_jobs()
        self._reconsider()
        self._pull()
        self.channel.flush()

    def pause(self) -> None:
        if self.paused or self.closing:
            return
        self.paused = True
        self._reconsider()
        self.channel.flush()
        self.loop.call_later(5.0, self._paused_long)

    def _paused_long(self) -> None:
        if self.paused and not self.closing:
            self._release_buffer()

    def resume(self) -> None:
        if not self.paused or self.closing:
            return
        self.paused = False
        self._start_jobs()
        self._reconsider()
        self._pull()
        self.channel.flush()

    def hold(self, seconds: float) -> None:
        """No starts for ``seconds``; the longer of two holds wins."""
        self._held_until = max(self._held_until, self.loop.time() + seconds)
        self._reconsider()
        self._gate()
        self.channel.flush()

    def _release_buffer(self) -> None:
        """Give back what was pulled and has not started; no attempt is counted."""
        while self._buffer:
            job = self._buffer.popleft()
            job._state = REPORTING
            self._slots -= 1  # a report frees a slot when it is answered
            self._report(Report(job, "MoveToWait", {"id": job.id, "token": job.token}, "released"))
        self.channel.flush()

    # ------------------------------------------------------------- closing

    async def close(self, force: bool, timeout: float) -> int:
        """Stop in the documented order; return how many jobs had to be abandoned."""
        self.closing = True
        if self._pull_timer is not None:
            self._pull_timer.cancel()
            self._pull_timer = None
        self._release_buffer()
        self._reconsider()
        if not force and self.running:
            await self._wait(self._idle, lambda: self.running == 0, timeout)
        if self.running:
            self.cancel_all("shutdown")
            grace = 0.05 if force else self.settings.cancel_grace
            await self._wait(self._idle, lambda: self.running == 0, grace)
        self._flush_all()
        patience = 1.0 if force else CLOSE_PATIENCE_S
        await self._wait(self._quiet, self._is_quiet, patience, give_up_when_down=True)
        # What still runs is given back: its lease must not keep others waiting.
        left = [job for job in self.leased if job._state == STARTED]
        self.abandoned = len(left)
        for job in left:
            job._state = LOST
            self.running -= 1
            self._reports += 1
            report = Report(job, "MoveToWait", {"id": job.id, "token": job.token}, "released")
            self.channel.request("MoveToWait", report.fields, self._given_back, report)
        if self.channel.up:
            self.channel.request("UnregisterWorker", {"workerId": self.worker_id}, _ignore)
            self.channel.flush()
            await self._wait(self._quiet, self._is_quiet, 1.0, give_up_when_down=True)
        if self._keeper is not None:
            self._keeper.stop()
            await asyncio.to_thread(self._keeper.join, 1.0)
        if self._ack_timer is not None:
            self._ack_timer.cancel()
        self.channel.close()
        if self._threads is not None:
            self._threads.stop()
        self.finished.set()
        return self.abandoned

    def _given_back(self, report: Report, reply: Reply | None, error: Exception | None) -> None:
        self._reports -= 1
        self.leased.discard(report.job)
        self._check_idle()

    def _flush_all(self) -> None:
        if self._gathered:
            self._flush()

    def _is_quiet(self) -> bool:
        return not (self._gathered or self._flights or self._reports)

    async def _wait(
        self,
        event: asyncio.Event,
        done: Callable[[], bool],
        timeout: float,
        give_up_when_down: bool = False,
    ) -> bool:
        """Wait until ``done()``, which ``event`` announces, for at most ``timeout`` seconds."""
        deadline = self.loop.time() + timeout
        while not done():
            if give_up_when_down and not self.channel.up:
                timeout = min(timeout, 0.5)
                deadline = min(deadline, self.loop.time() + timeout)
            event.clear()
            left = deadline - self.loop.time()
            if left <= 0:
                return False
            try:
                await asyncio.wait_for(event.wait(), min(left, 0.25))
            except TimeoutError:
                continue
        return True


def _task(coroutine: Any, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
    return asyncio.Task(coroutine, loop=loop, name="qclient-job")


def _task_of_factory(coroutine: Any, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
    return loop.create_task(coroutine)


def _ignore(arg: Any, reply: Reply | None, error: Exception | None) -> None:
    return None
