"""A mixed load that knows what must be true after each of its requests.

One caller asks one thing after another, so the states that the engine goes through
form a list. What a crash leaves must be one of them, and not older than the last that
was confirmed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

QUEUE = "work"
FAR_MS = 3_600_000
NOTHING = "Nothing was stored"
UNKNOWN = "Outcome unknown"

Request = dict[str, Any]
Call = Callable[[Request], dict[str, Any]]


class Job(NamedTuple):
    state: str
    attempts: int = 0
    result: object = None


class State(NamedTuple):
    """What can be asked of the engine, as values that can be compared."""

    jobs: frozenset[tuple[str, Job]]
    paused: bool
    schedules: frozenset[str]


class Step(NamedTuple):
    """The state after a request, and until when an older one may have been on disk."""

    state: State
    confirmed_ns: int  # when the reply that promises it was read; 0 = nothing was promised
    sent_ns: int
    request: str


class WrongReply(AssertionError):
    pass


@dataclass
class Load:
    """``call`` asks; ``pull_held`` and ``adds_held`` say which replies promise a commit."""

    call: Call
    seed: int
    pull_held: bool = False
    adds_held: bool = False
    jobs: dict[str, Job] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    flows: dict[str, list[str]] = field(default_factory=dict)
    paused: bool = False
    schedules: set[str] = field(default_factory=set)
    steps: list[Step] = field(default_factory=list)
    refused: int = 0
    unknown: int = 0

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._n = 0
        self._note("start", 0, 0)

    @property
    def state(self) -> State:
        return State(frozenset(self.jobs.items()), self.paused, frozenset(self.schedules))

    def run(self, n: int) -> None:
        """Ask for ``n`` things."""
        kinds = [
            self.add,
            self.bulk,
            self.durable,
            self.durable,
            self.large,
            self.flow,
            self.delayed,
            self.pull,
            self.pull,
            self.pull_some,
            self.acknowledge,
            self.acknowledge,
            self.acknowledge_some,
            self.fail,
            self.fail_for_good,
            self.cancel,
            self.promote,
            self.revive,
            self.pause,
            self.schedule,
            self.log,
        ]
        for _ in range(n):
            self._rng.choice(kinds)()

    # --- what is asked --------------------------------------------------------------------

    def add(self) -> None:
        self._add({"data": {"n": 1}}, held=self.adds_held)

    def durable(self) -> None:
        self._add({"data": {"n": 2}, "durable": True}, held=True)

    def large(self) -> None:
        self._add({"data": self._rng.randbytes(9000), "durable": True}, held=True)

    def delayed(self) -> None:
        self._add({"data": None, "delay": FAR_MS}, held=self.adds_held, state="delayed")

    def bulk(self) -> None:
        durable = self._rng.random() < 0.4
        ids = [self._id() for _ in range(self._rng.randint(2, 30))]
        jobs: list[Request] = [
            {"name": "n", "data": b"x" * self._rng.randrange(400), "customId": i, "backoff": FAR_MS}
            for i in ids
        ]
        if durable:
            jobs[-1]["durable"] = True
        self._ask(
            {"cmd": "PUSHB", "queue": QUEUE, "jobs": jobs},
            lambda: self.jobs.update({i: Job("waiting") for i in ids}),
            held=durable or self.adds_held,
            adds=durable,
        )

    def flow(self) -> None:
        parent, kids = self._id(), [self._id(), self._id()]
        meta = {"__parentId": parent, "__parentQueue": QUEUE}
        jobs = [
            {
                "id": parent,
                "queue": QUEUE,
                "input": {
                    "name": "p",
                    "data": {"__childrenIds": kids},
                    "childrenIds": kids,
                    "dependsOn": kids,
                    "backoff": FAR_MS,
                },
            }
        ]
        jobs += [
            {
                "id": i,
                "queue": QUEUE,
                "input": {"name": "k", "data": meta, "parentId": parent, "backoff": FAR_MS},
            }
            for i in kids
        ]

        def apply() -> None:
            self.jobs.update({i: Job("waiting") for i in kids})
            self.jobs[parent] = Job("waiting-children")
            self.flows[parent] = kids

        self._ask({"cmd": "PUSHF", "jobs": jobs}, apply, held=True, adds=True)

    def pull(self) -> None:
        self._pull({"cmd": "PULL"})

    def pull_some(self) -> None:
        self._pull({"cmd": "PULLB", "count": self._rng.randint(2, 5)})

    def acknowledge(self) -> None:
        if job := self._one("active"):
            result = {"of": job, "y": "r" * self._rng.choice([0, 5, 3000])}
            request = {"cmd": "ACK", "id": job, "token": self.tokens[job], "result": result}
            self._ask(request, lambda: self._complete(job, tuple(sorted(result.items()))))

    def acknowledge_some(self) -> None:
        jobs = [i for i, job in self.jobs.items() if job.state == "active"][:4]
        if jobs:
            request = {"cmd": "ACKB", "ids": jobs, "tokens": [self.tokens[i] for i in jobs], "results": jobs}
            self._ask(request, lambda: [self._complete(i, i) for i in jobs])

    def fail(self) -> None:
        if job := self._one("active"):
            attempts = self.jobs[job].attempts + 1
            state = Job("delayed" if attempts < 3 else "failed", attempts)
            request = {"cmd": "FAIL", "id": job, "token": self.tokens[job], "error": "as planned"}
            self._ask(request, lambda: self.jobs.update({job: state}))

    def fail_for_good(self) -> None:
        # The failure of a child would need rules of its own here.
        kids = {kid for kids in self.flows.values() for kid in kids}
        if (job := self._one("active")) and job not in kids:
            request = {"cmd": "FAIL", "id": job, "token": self.tokens[job], "unrecoverable": True}
            state = Job("failed", self.jobs[job].attempts + 1)
            self._ask(request, lambda: self.jobs.update({job: state}))

    def cancel(self) -> None:
        tied = {*self.flows, *(kid for kids in self.flows.values() for kid in kids)}
        if (job := self._one("waiting")) and job not in tied:
            self._ask({"cmd": "Cancel", "id": job}, lambda: self.jobs.pop(job))

    def promote(self) -> None:
        if job := self._one("delayed"):
            state = Job("waiting", self.jobs[job].attempts)
            self._ask({"cmd": "Promote", "id": job}, lambda: self.jobs.update({job: state}))

    def revive(self) -> None:
        if job := self._one("failed"):
            self._ask(
                {"cmd": "RetryDlq", "queue": QUEUE, "jobId": job},
                lambda: self.jobs.update({job: Job("waiting")}),
            )

    def pause(self) -> None:
        def apply() -> None:
            self.paused = not self.paused

        self._ask({"cmd": "Resume" if self.paused else "Pause", "queue": QUEUE}, apply)
        if self.paused:
            self.pause()

    def schedule(self) -> None:
        name = self._rng.choice(["a", "b"])
        if name in self.schedules:
            self._ask({"cmd": "CronDelete", "name": name}, lambda: self.schedules.discard(name))
        else:
            request = {"cmd": "Cron", "name": name, "queue": "scheduled", "data": {}, "repeatEvery": FAR_MS}
            self._ask(request, lambda: self.schedules.add(name))

    def log(self) -> None:
        if job := self._one("active"):
            self._ask({"cmd": "AddLog", "id": job, "message": "seen"}, lambda: None, held=False)

    # --- how ----------------------------------------------------------------------------------

    def _id(self) -> str:
        self._n += 1
        return f"j{self.seed}-{self._n}"

    def _one(self, state: str) -> str | None:
        ids = [i for i, job in self.jobs.items() if job.state == state]
        return self._rng.choice(ids) if ids else None

    def _add(self, options: Request, *, held: bool, state: str = "waiting") -> None:
        job = self._id()
        request = {"cmd": "PUSH", "queue": QUEUE, "name": "n", "jobId": job, "backoff": FAR_MS, **options}
        self._ask(request, lambda: self.jobs.update({job: Job(state)}), held=held, adds="durable" in options)

    def _complete(self, job: str, result: object) -> None:
        self.jobs[job] = Job("completed", self.jobs[job].attempts, result)
        for parent, kids in self.flows.items():
            if (
                job in kids
                and self.jobs[parent].state == "waiting-children"
                and all(self.jobs[kid].state == "completed" for kid in kids)
            ):
                self.jobs[parent] = Job("waiting")

    def _pull(self, request: Request) -> None:
        sent = time.monotonic_ns()
        reply = self.call({**request, "queue": QUEUE, "owner": "w", "lockTtl": FAR_MS})
        if not reply["ok"]:
            raise WrongReply(f"{str(request)[:200]}: {reply}")
        jobs = reply["jobs"] if "jobs" in reply else [reply["job"]] if reply["job"] else []
        tokens = reply["tokens"] if "tokens" in reply else [reply["token"]]
        for job, token in zip(jobs, tokens, strict=bool(jobs)):
            before = self.jobs.get(job["id"])
            if before is None or before.state != "waiting" or before.attempts != job["attempts"]:
                raise WrongReply(f"{job['id']} was given out, and it is {before}")
            self.jobs[job["id"]] = Job("active", before.attempts)
            self.tokens[job["id"]] = token
        if not jobs and any(job.state == "waiting" for job in self.jobs.values()):
            raise WrongReply(f"nothing was given out, and there is {self.jobs}")
        # Even a pull that waits for its commit is answered when that fails, so it promises nothing.
        self._note(request["cmd"], sent, 0)

    def _ask(
        self, request: Request, apply: Callable[[], object], *, held: bool = True, adds: bool = False
    ) -> None:
        """``adds``: refused as a whole if it cannot be stored."""
        sent = time.monotonic_ns()
        reply = self.call(request)
        error = "" if reply["ok"] else str(reply["error"])
        if not error:
            apply()
            self._note(request["cmd"], sent, time.monotonic_ns() if held else 0)
        elif NOTHING in error and adds and held:
            self.refused += 1
        elif error.startswith(UNKNOWN) and held:
            self.unknown += 1
            before = (dict(self.jobs), dict(self.flows))
            apply()
            self._note(request["cmd"], sent, 0)
            if adds:  # in memory it is gone
                self.jobs, self.flows = before
                self._note(request["cmd"], sent, 0)
        else:
            raise WrongReply(f"{str(request)[:200]}: {reply}")

    def _note(self, request: str, sent: int, confirmed: int) -> None:
        self.steps.append(Step(self.state, confirmed, sent, request))


def look(call: Call, ids: set[str]) -> State:
    """What an engine says about these jobs, and that it has no others."""
    jobs: dict[str, Job] = {}
    for job_id in ids:
        state = call({"cmd": "GetState", "id": job_id})["state"]
        if state == "unknown":
            continue
        job = call({"cmd": "GetJob", "id": job_id})["job"]
        result = call({"cmd": "GetResult", "id": job_id}).get("result") if state == "completed" else None
        jobs[job_id] = Job(state, job["attempts"], _frozen(result))
    counts = call({"cmd": "GetJobCounts", "queue": QUEUE})["counts"]
    total = sum(
        counts[key]
        for key in ("waiting", "paused", "delayed", "active", "completed", "failed", "waiting-children")
    )
    assert total == len(jobs), f"{counts}, but known are {len(jobs)}"
    crons = call({"cmd": "CronList"})["crons"]
    paused = call({"cmd": "IsPaused", "queue": QUEUE})["paused"]
    return State(frozenset(jobs.items()), paused, frozenset(c["name"] for c in crons))


def _frozen(result: object) -> object:
    return tuple(sorted(result.items())) if isinstance(result, dict) else result


def difference(a: State, b: State) -> str:
    """What is in only one of two states, for a message."""
    return f"{sorted(a.jobs - b.jobs, key=str)} became {sorted(b.jobs - a.jobs, key=str)}; {a[1:]}, {b[1:]}"
