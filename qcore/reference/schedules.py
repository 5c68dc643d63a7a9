"""The plain engine with schedules, repeated jobs and workers.

What the compiled engine chooses or computes by a library is handed in: ``new_id``, called
with the queue of a job that the engine itself adds, and ``cron``, which compiles a pattern
and its zone to a function from an instant to the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from qcore.reference.copies import alike
from qcore.reference.engine import Delivery, Engine, Job, Saved

Next = Callable[[int], int | None]
LOOK_AGAIN_MS = 60_000
WORKER_ACTIVE_NS = 30_000_000_000
WORKER_FORGET_NS = 90_000_000_000
LIVE = ("ready", "delayed", "active", "parked")


@dataclass
class Plan:
    """A schedule. ``every_ms`` counts only without a pattern."""

    queue: str
    pattern: str | None
    every_ms: int
    zone: str | None
    data: bytes | None
    job: dict[str, Any]
    max_runs: int
    prevent_overlap: bool
    skip_missed: bool
    skip_if_no_worker: bool
    number: int = 0  # breaks ties between slots
    executions: int = 0
    next_ms: int = 0
    last_ms: int | None = None
    created_ms: int = 0
    planned_ms: int = 0

    def asks_what(self, other: Plan) -> bool:
        """Whether the same was asked for."""
        runtime = ("number", "executions", "next_ms", "last_ms", "created_ms", "planned_ms")
        mine, its = vars(self).copy(), vars(other).copy()
        for name in runtime:
            del mine[name], its[name]
        return mine == its


@dataclass
class SavedSchedules(Saved):
    plans: dict[str, Plan] = field(default_factory=dict)
    owned: dict[str, str] = field(default_factory=dict)
    repeats: dict[str, dict[str, Any]] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)


class ScheduledEngine(Engine):
    def __init__(self, *, new_id: Callable[[str], str], cron: Callable[[str, str | None], Next], **how: Any):
        super().__init__(**how)
        self.plans: dict[str, Plan] = {}
        self.owned: dict[str, str] = {}  # job -> schedule that prevents overlap with it
        self.repeats: dict[str, dict[str, Any]] = {}  # the options of the live run of each chain
        self.links: dict[str, str] = {}  # finished run -> the run after it
        self.workers: dict[str, tuple[list[str], int, int]] = {}  # queues, session, last seen
        self.new_id = new_id
        self.cron = cron
        self._free_numbers: list[int] = []
        self._numbers = 0
        self._looked_ms = 0  # the wall clock of the last look
        self._left: Delivery | None = None

    # --- schedules -----------------------------------------------------------------------

    def put_schedule(self, name: str, plan: Plan, now_ms: int, now_ns: int, *, immediately: bool) -> None:
        self._looked_ms = max(self._looked_ms, now_ms)
        old = self.plans.get(name)
        if old is not None and old.asks_what(plan):
            return
        plan.created_ms = plan.planned_ms = plan.next_ms = now_ms
        self._plan(plan, now_ms)
        if old is not None:
            plan.number, plan.executions = old.number, old.executions
            if (old.pattern, old.pattern and old.zone, not old.pattern and old.every_ms) == (
                plan.pattern,
                plan.pattern and plan.zone,
                not plan.pattern and plan.every_ms,
            ):
                plan.next_ms, plan.created_ms, plan.planned_ms = old.next_ms, old.created_ms, old.planned_ms
            self._drop_leftover(name)
        elif self._free_numbers:
            plan.number = self._free_numbers.pop()
        else:
            self._numbers += 1
            plan.number = self._numbers
        self.plans[name] = plan
        if old is None and immediately:
            if plan.pattern is None:
                plan.next_ms = now_ms
            self._fire(name, now_ms, now_ns)

    def remove_schedule(self, name: str) -> bool:
        if name not in self.plans:
            return False
        self._drop_leftover(name)
        self._free_numbers.append(self.plans.pop(name).number)
        return True

    def _is_empty(self, name: str, now_ns: int) -> bool:
        return (
            super()._is_empty(name, now_ns)
            and all(plan.queue != name for plan in self.plans.values())
            and all(name not in queues for queues, _, _ in self.workers.values())
        )

    def _occurrence(self, name: str) -> Job | None:
        live = [job for job in self.jobs.values() if self.owned.get(job.id) == name and job.state in LIVE]
        assert len(live) <= 1, f"{len(live)} jobs of schedule {name} at once"
        return live[0] if live else None

    def _may_restart(self, job: Job, now_ms: int) -> bool:
        live = self._occurrence(self.owned[job.id]) if job.id in self.owned else None
        return live in (None, job) and super()._may_restart(job, now_ms)

    def _drop_leftover(self, name: str) -> None:
        job = self._occurrence(name)
        if job is not None and job.state != "active":
            del self.jobs[job.id]

    def _plan(self, plan: Plan, now_ms: int) -> None:
        if plan.pattern is None:
            slot = plan.next_ms
            if slot > now_ms + plan.every_ms:
                slot = now_ms
            while slot <= now_ms:
                slot += plan.every_ms
        else:
            following = self.cron(plan.pattern, plan.zone)
            found = following(now_ms)
            assert found is not None
            if plan.created_ms <= found <= plan.planned_ms:  # spent
                found = following(plan.planned_ms)
                assert found is not None
            slot = found
        plan.next_ms = slot
        plan.planned_ms = max(plan.planned_ms, now_ms)

    def _is_ahead(self, plan: Plan, now_ms: int) -> bool:
        if plan.pattern is None:
            return plan.next_ms > now_ms + plan.every_ms
        return now_ms < plan.created_ms <= plan.next_ms

    def _fire(self, name: str, now_ms: int, now_ns: int) -> None:
        plan = self.plans[name]
        if plan.max_runs and plan.executions >= plan.max_runs:
            self._free_numbers.append(self.plans.pop(name).number)
            return
        self._plan(plan, now_ms)
        served = any(
            plan.queue in queues and now_ns - seen < WORKER_ACTIVE_NS
            for queues, _, seen in self.workers.values()
        )
        if plan.skip_if_no_worker and not served:
            return
        if plan.prevent_overlap and self._occurrence(name) is not None:
            return
        job_id = self.push(plan.queue, plan.data, now_ms, new_id=self.new_id(plan.queue), **plan.job)
        if plan.prevent_overlap:
            self.owned[job_id] = name
        plan.executions += 1
        plan.last_ms = now_ms

    def advance(self, now_ms: int, now_ns: int) -> None:
        super().advance(now_ms, now_ns)
        self.workers = {
            name: worker for name, worker in self.workers.items() if now_ns - worker[2] < WORKER_FORGET_NS
        }
        if now_ms < self._looked_ms - 1000:
            for plan in self.plans.values():
                if self._is_ahead(plan, now_ms):
                    self._plan(plan, now_ms)
        self._looked_ms = now_ms
        due = [
            (plan.next_ms, plan.number, name) for name, plan in self.plans.items() if plan.next_ms <= now_ms
        ]
        for _, _, name in sorted(due):
            self._fire(name, now_ms, now_ns)

    def next_due(self, now_ms: int, now_ns: int) -> int | None:
        waits = [
            max(0, min(LOOK_AGAIN_MS, plan.next_ms - now_ms)) * 1_000_000 for plan in self.plans.values()
        ]
        waits += [max(0, seen + WORKER_FORGET_NS - now_ns) for _, _, seen in self.workers.values()]
        first = super().next_due(now_ms, now_ns)
        return min(waits if first is None else [*waits, first], default=None)

    # --- occurrences go with their holder --------------------------------------------------

    def _leave_active(self, job: Job) -> Delivery:
        self._left = super()._leave_active(job)
        return self._left

    def _lose(
        self, job: Job, now_ms: int, error: str, dead: str, stalled: str, *, later: bool = False
    ) -> None:
        if job.id not in self.owned:
            super()._lose(job, now_ms, error, dead, stalled, later=later)
            return
        self._emit("stalled", job, now_ms)
        self._leave_active(job)
        self._return(job)

    def _return(self, job: Job) -> None:
        if job.id not in self.owned:
            super()._return(job)
            return
        assert self._left is not None
        self._finalise(self._left.token)
        del self.jobs[job.id]

    def close_session(self, session: int, now_ms: int) -> int:
        n = 0
        for job in list(self.jobs.values()):
            held = job.delivery
            if job.id not in self.owned or held is None or not session or held.session != session:
                continue
            if not held.renewals:
                self._leave_active(job)
                self._return(job)
                n += 1
        return n + super().close_session(session, now_ms)

    # --- repeated jobs -----------------------------------------------------------------------

    def push_repeated(
        self, queue: str, data: bytes, now_ms: int, *, repeat: dict[str, Any], **how: Any
    ) -> str:
        job_id = self.push(queue, data, now_ms, **how)
        self.repeats[job_id] = repeat
        return job_id

    def ack(self, job_id: str, now_ms: int, **how: Any) -> bool:
        job = self.jobs.get(job_id)
        done = super().ack(job_id, now_ms, **how)
        if done and job is not None:
            self._succeed(job, now_ms)
        return done

    def _fail(self, job: Job, now_ms: int, error: str | None, final: bool, remove: bool) -> None:
        super()._fail(job, now_ms, error, final, remove)
        if remove or job.remove_on_fail:
            self._after_failure(job, now_ms, gone=job.id not in self.jobs)

    def _bury(self, job: Job, now_ms: int, error: str | None = None) -> None:
        super()._bury(job, now_ms, error)
        self._after_failure(job, now_ms, gone=True)

    def _after_failure(self, job: Job, now_ms: int, *, gone: bool) -> None:
        if gone and self.repeats.get(job.id, {}).get("continueOnFailure", True):
            self._succeed(job, now_ms)

    def _succeed(self, job: Job, now_ms: int) -> None:
        repeat = self.repeats.get(job.id)
        if repeat is None:
            return
        planned = self._next_run(repeat, now_ms)
        if planned is None:
            return
        del self.repeats[job.id]
        key = None
        if job.key is not None and not job.key.passed and not job.key.keep:
            key = replace(job.key, expires_ms=None, holds=False)
            if not self._is_free(job.queue, key, now_ms):
                key = None
        self.links[job.id] = self.push_repeated(
            job.queue,
            job.data or b"",
            now_ms,
            repeat={**repeat, "count": repeat["count"] + 1, "prevMillis": planned},
            new_id=self.new_id(job.queue),
            priority=job.priority,
            delay_ms=planned - now_ms,
            attempts=job.max_attempts,
            lifo=job.lifo,
            remove_on_complete=job.remove_on_complete,
            remove_on_fail=job.remove_on_fail,
            key=key,
        )

    def _next_run(self, repeat: dict[str, Any], now_ms: int) -> int | None:
        if "limit" in repeat and repeat["count"] >= repeat["limit"]:
            return None
        before, start, offset = repeat.get("prevMillis"), repeat.get("startDate", 0), repeat.get("offset", 0)
        if "pattern" in repeat:
            following = self.cron(repeat["pattern"], repeat.get("tz"))
            least = now_ms if before is None else before - offset
            tick = following(max(now_ms, now_ms - offset, start - 1, least))
            if tick is None:
                return None
            slot = tick + offset
        else:
            every = repeat["every"]
            if before is not None:
                slot = min(before, now_ms + every) + every
            elif start + offset > now_ms:
                slot = start + offset
            else:
                slot = now_ms + every + offset
            while slot <= now_ms or slot < start:
                slot += every
        return None if slot > repeat.get("endDate", slot) else slot

    def _live_run(self, job_id: str) -> str:
        """The id itself, or that of the live run of its chain."""
        job = self.jobs.get(job_id)
        if job is not None and job.state in LIVE:
            return job_id
        while job_id in self.links:
            job_id = self.links[job_id]
        return job_id

    def cancel(self, job_id: str, now_ms: int) -> bool:
        job = self.jobs.get(job_id)
        queued = job is not None and job.state in ("ready", "delayed")
        return super().cancel(job_id if queued else self._follow(job_id), now_ms)

    def _follow(self, job_id: str) -> str:
        while job_id in self.links:
            job_id = self.links[job_id]
        return job_id

    def update(self, job_id: str, data: bytes) -> bool:
        return super().update(self._live_run(job_id), data)

    # --- a store -------------------------------------------------------------------------------

    def save(self, before: Saved, changed: set[int], now_ms: int, now_ns: int) -> SavedSchedules:
        saved = super().save(before, changed, now_ms, now_ns)
        return SavedSchedules(
            **vars(saved),
            plans={name: alike(plan) for name, plan in self.plans.items()},
            owned={job_id: name for job_id, name in self.owned.items() if job_id in self.jobs},
            repeats={job_id: repeat for job_id, repeat in self.repeats.items() if job_id in self.jobs},
            links={mine: its for mine, its in self.links.items() if mine in self.jobs},
        )

    def restart(self, saved: Saved, now_ms: int, now_ns: int, *, keep_leases: bool, charge: bool) -> None:
        assert isinstance(saved, SavedSchedules)
        self.owned, self.links = {**saved.owned}, {**saved.links}
        self.repeats = {**saved.repeats}
        self.plans = {name: alike(saved.plans[name]) for name in sorted(saved.plans)}
        self.workers = {}
        self._looked_ms = now_ms if self.plans else 0
        self._free_numbers = []
        self._numbers = len(self.plans)
        for number, plan in enumerate(self.plans.values(), 1):
            plan.number = number
            if self._is_ahead(plan, now_ms) or (plan.skip_missed and plan.next_ms <= now_ms):
                self._plan(plan, now_ms)
        super().restart(saved, now_ms, now_ns, keep_leases=keep_leases, charge=charge)
