"""Steps drawn at random: what clients, clocks, disks and power do.

The generator looks at the model to hit jobs that are worth it, but a step holds
nothing but plain data: a history is the list of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from qcore.simulate.model import Model
from qcore.simulate.world import Step, World

QUEUES = ("a", "b", "c")
#: Where schedules mostly add their jobs.
SCHEDULED = "t"
#: Queues that come and go.
BRIEF = ("v", "w", "x", "y", "z")
PRIORITIES = (0, 0, 0, 1, 5, -2, 2.5)
LEASES_MS = (20, 200, 1000, 30_000)
WALL_JUMPS_MS = (-3_600_000, -60_000, -700, -1, 1, 700, 60_000, 3_600_000)
LEVELS = ("buffered", "committed", "synced")
#: Policies of removal.
KEPT = (0, 1, 3, {"count": 2}, {"age": 1}, {"age": 1, "count": 5})
MOST_JOBS = 60
ADDS = ("PUSH", "PUSHB", "PUSHF")
#: Fields that name other jobs.
TIED = frozenset(["parentId", "dependsOn"])
#: Ids that jobs may depend on before they are there.
AWAITED = ("u0", "u1", "u2", "u3")
POLICIES = (
    "failParentOnFailure",
    "continueParentOnFailure",
    "ignoreDependencyOnFailure",
    "removeDependencyOnFailure",
)

Request = dict[str, Any]


class Generator:
    """An endless history from one source of chance."""

    def __init__(self, rng: random.Random, world: World) -> None:
        self._rng = rng
        self._world = world
        self._u = 0
        self._tags: list[str] = []
        self._customs = [f"c{n}" for n in range(12)]
        self._kinds: list[tuple[Callable[[], Step], int]] = [
            (self._feed, 100),
            (self._time, 30),
            (self._close, 3),
            (self._disk, 3),
            (self._sync, 1),
            (self._end, 1),
        ]
        self._requests: list[tuple[Callable[[], Request], int]] = [
            (self._push, 16),
            (self._pushb, 6),
            (self._pull, 26),
            (self._finish, 22),
            (self._ackb, 5),
            (self._renew, 6),
            (self._control_job, 10),
            (self._control_queue, 5),
            (self._ask_job, 5),
            (self._ask_queue, 4),
            (self._hello, 2),
            (self._schedule, 2),
            (self._tie, 8),
        ]

    @property
    def _model(self) -> Model:
        return self._world.model

    def next(self) -> Step:
        """The next step; the first one boots."""
        self._u += 1
        if self._u == 1:
            return {"do": "boot", "u": 0, "config": self._config()}
        step: Step = self._choice(self._kinds)()
        step["u"] = self._u
        return step

    def _choice(self, weighted: list[tuple[Any, int]]) -> Any:
        kinds, weights = zip(*weighted, strict=True)
        return self._rng.choices(kinds, weights)[0]

    def _chance(self, p: float) -> bool:
        return self._rng.random() < p

    def _config(self) -> dict[str, Any]:
        rng = self._rng
        return {
            "mode": rng.choice(("embedded", "server")),
            "adds": rng.choice(LEVELS),
            "changes": rng.choice(LEVELS),
            "takes_packed": self._chance(0.5),
            "flush_ms": rng.choice((0, 10, 500)),
        }

    # --- surroundings ---------------------------------------------------------------------------

    def _time(self) -> Step:
        rng = self._rng
        step: Step = {"do": "time", "ms": rng.choice((0, 1, 5, 20, 100, 300, 2000))}
        if self._chance(0.4):
            step.update(due=True, ms=rng.choice((-1, 0, 0, 1)))
        if self._chance(0.06):
            step["wall_ms"] = rng.choice(WALL_JUMPS_MS)
        if self._chance(0.01):
            step.update(ms=rng.choice((60_000, 3_600_000, 8 * 86_400_000)))
        if self._chance(0.05):
            step.update(ms=rng.choice((150_000, 300_000, 600_000)))  # empty queues are looked for
        if self._chance(0.3):
            step["turn"] = False
        return step

    def _close(self) -> Step:
        return {"do": "close", "s": self._rng.randrange(6)}

    def _disk(self) -> Step:
        rng = self._rng
        fault = rng.choice((None, None, None, "full", "io", "locked", "unknown"))
        return {"do": "disk", "fault": fault, "lag": rng.choice((0, 0, 0, 1, 2, 5))}

    def _sync(self) -> Step:
        return {"do": "sync"}

    def _end(self) -> Step:
        rng = self._rng
        step: Step = {
            "do": "crash" if self._chance(0.8) else "restart",
            "mode": rng.choice(("embedded", "server")),
            "away_ms": rng.choice((0, 0, 10, 500, 40_000)),
            "wall_ms": rng.choice((0, 0, 0, *WALL_JUMPS_MS)),
            "reboot": self._chance(0.5),
        }
        if step["do"] == "crash":
            step["power"] = self._chance(0.4)
            step["loss"] = rng.choice((0, 0.3, 0.7, 1))
            step["commit"] = rng.choice(("none", "torn", "written"))
        return step

    # --- requests ---------------------------------------------------------------------------------

    def _feed(self) -> Step:
        rng = self._rng
        states = [job.state for job in self._model.plain.jobs.values()]
        n_ended = states.count("completed") + states.count("failed")
        requests = [
            self._request(n_ended, len(states) - n_ended) for _ in range(rng.choice((1, 1, 1, 1, 2, 3, 6)))
        ]
        alone = [request for request in requests if request["cmd"] == "FAIL" or request.keys() & TIED]
        if alone:
            # A drawn wait is looked up after the request, and what is tied to must be there and not staged.
            requests = alone[:1]
        cuts = [round(rng.random(), 3) for _ in range(rng.choice((0, 0, 0, 1, 3)))]
        step: Step = {"do": "feed", "s": rng.randrange(6), "r": requests, "cut": cuts}
        if self._chance(0.2):
            step["turn"] = False
        self._tags += [
            f"{self._u}.{index}.{member}"
            for index, request in enumerate(requests)
            for member in range(len(request.get("jobs", "1")) if request["cmd"] in ADDS else 0)
        ]
        del self._tags[:-300]
        return step

    def _request(self, n_ended: int, n_live: int) -> Request:
        """One request. Where jobs pile up, some of them remove jobs, but never all: life goes on."""
        if n_ended > MOST_JOBS // 2 and self._chance(0.7):
            return self._tidy()
        if n_live > MOST_JOBS and self._chance(0.3):
            return self._relieve()
        make = self._choice(self._requests)
        if n_live > MOST_JOBS // 2 and make in (self._push, self._pushb):
            make = self._pull
        request: Request = make()
        return request

    def _tidy(self) -> Request:
        """What removes ended jobs; those that live ones still need stay."""
        queue = self._rng.choice((*QUEUES, SCHEDULED, *BRIEF))
        return self._rng.choice(
            (
                {"cmd": "Clean", "queue": queue, "state": "completed"},
                {"cmd": "Clean", "queue": queue, "state": "failed"},
                {"cmd": "PurgeDlq", "queue": queue},
            )
        )

    def _relieve(self) -> Request:
        """What removes live jobs."""
        queue = self._rng.choice((*QUEUES, SCHEDULED))
        return self._rng.choice(
            (
                self._with("Cancel", self._job("parked")),
                self._with("Cancel", self._job("parked")),
                {"cmd": "Clean", "queue": queue},
                {"cmd": "Drain", "queue": queue},
            )
        )

    def _queue(self) -> str:
        return self._rng.choice(BRIEF if self._chance(0.06) else QUEUES)

    def _job(self, *states: str) -> str:
        """A reference to a job, mostly to one in one of these states."""
        rng = self._rng
        if not self._chance(0.1):
            model = self._model
            jobs = [job for job in model.plain.jobs.values() if not states or job.state in states]
            if jobs:
                return f"@{model.about[rng.choice(jobs).seq].tag}"
        if self._chance(0.3):
            return rng.choice(self._customs)
        return f"@{rng.choice(self._tags)}" if self._tags else "nobody"

    def _token(self) -> int | None:
        return self._rng.choice((-1, -1, -1, -1, -1, -1, -2, 0, None))

    def _holder(self, reference: str) -> int | None:
        """The token that a careful holder of this job presents, or another one."""
        job = self._model.plain.jobs.get(self._model.tags.get(reference[1:], reference))
        if job is not None and job.delivery is not None and job.delivery.token is None:
            return self._rng.choice((None, None, None, -1))
        return self._token()

    def _options(self) -> Request:
        rng = self._rng
        options: Request = {
            "name": "n",
            "data": rng.choice((self._u, f"{self._u}", [self._u, None], {"n": 1})),
        }
        plain = self._chance(0.5)
        for name, p, values in (
            ("priority", 0.4, PRIORITIES),
            ("delay", 0.3, (0, 1, 30, 500, 5000)),
            ("lifo", 0.15, (True,)),
            ("maxAttempts", 0.3, (1, 2, 5)),
            ("removeOnComplete", 0.3, (True, False)),
            ("removeOnFail", 0.15, (True,)),
            ("durable", 0.2, (True,)),
            ("timestamp", 0.05, (0, 1_600_000_000_000, self._model.now_ms + 50)),
        ):
            if self._chance(p):
                options[name] = rng.choice(values)
        if plain:
            return options  # the compiled path takes these
        if self._chance(0.15):
            options["ttl"] = rng.choice((0, 50, 1000))
        if self._chance(0.3):
            options["timeout"] = rng.choice((10, 300))
        if self._chance(0.15):
            options["stallTimeout"] = rng.choice((30, 500))
        options["backoff"] = rng.choice(
            (
                0,
                200,
                {"type": "fixed", "delay": 50, "jitter": 0},
                {"type": "exponential", "delay": 20, "jitter": 0},
            )
        )
        return options

    def _hello(self) -> Request:
        caps = ["outcomes"] if self._chance(0.7) else []
        return {"cmd": "Hello", "protocolVersion": 3, "capabilities": caps}

    def _push(self) -> Request:
        request = {"cmd": "PUSH", "queue": self._queue(), **self._options()}
        if self._chance(0.08):
            self._repeated(request)
            if self._chance(0.6):
                self._unique(request)
            return request
        if self._chance(0.3):
            request["jobId"] = self._rng.choice(self._customs)
        elif self._chance(0.06):
            request.pop("durable", None)
            request["jobId"] = self._rng.choice(AWAITED)
        if self._chance(0.2):
            self._keyed(request)
        elif self._chance(0.1):
            request.pop("durable", None)
            request.update(groupId=self._rng.choice("xyz"), priority=self._rng.choice((0, 1, 5)))
        return request

    def _schedule(self) -> Request:
        """A schedule, asked about, changed or taken away."""
        rng = self._rng
        name = rng.choice("st")
        kind = rng.choice(("Cron", "Cron", "Cron", "CronGet", "CronList", "CronDelete"))
        if kind == "CronList":
            return {"cmd": kind}
        if kind != "Cron":
            return {"cmd": kind, "name": name}
        request: Request = {"cmd": kind, "name": name, "queue": rng.choice((SCHEDULED, SCHEDULED, "a"))}
        if self._chance(0.6):
            request["repeatEvery"] = rng.choice((1000, 1500, 60_000))
        else:
            request["schedule"] = rng.choice(("*/2 * * * * *", "* * * * *"))
        for option, p, values in (
            ("data", 0.5, (self._u, None)),
            ("priority", 0.2, PRIORITIES),
            ("maxLimit", 0.3, (1, 3)),
            ("immediately", 0.3, (True,)),
            ("preventOverlap", 0.4, (True, False)),
            ("skipMissedOnRestart", 0.4, (True, False)),
            ("skipIfNoWorker", 0.05, (True,)),
        ):
            if self._chance(p):
                request[option] = rng.choice(values)
        request["jobOptions"] = {
            option: rng.choice(values)
            for option, values in (
                ("delay", (0, 500)),
                ("maxAttempts", (1, 2)),
                ("timeout", (300,)),
                ("removeOnComplete", (True, False)),
                ("removeOnFail", (True, False)),
            )
            if self._chance(0.3)
        }
        return request

    def _tie(self) -> Request:
        """A job that waits for others, a child, or what is done with the ties of one."""
        rng = self._rng
        kind = rng.choice(
            ("flow", "child", "child", "child", "dependent", "dependent", "park", "ties", "ask")
        )
        if kind == "flow":
            return self._flow()
        if kind in ("child", "dependent"):
            request = {"cmd": "PUSH", "queue": self._queue(), **self._options()}
            request.pop("durable", None)
            if kind == "child" and self._chance(0.1):
                request["jobId"] = rng.choice(AWAITED)
            elif self._chance(0.2):
                request["jobId"] = f"d{rng.randrange(6)}"  # never tied to itself: that is refused unseen
            if kind == "dependent":
                request["dependsOn"] = [self._relative() for _ in range(rng.choice((1, 1, 2, 3)))]
                if self._chance(0.3):
                    # Jobs that are there, have been, or come later.
                    request["dependsOn"].append(rng.choice(AWAITED))
                    request["allowUnknownDependencies"] = self._chance(0.9)
                return request
            request["parentId"] = self._relative("ready", "delayed", "active", "parked")
            if self._chance(0.8):
                request[rng.choice(POLICIES)] = True
            if self._chance(0.3):
                request["parentRequired"] = True
                if self._chance(0.3):
                    request["parentId"] = rng.choice((*AWAITED, "nobody"))
            if (token := self._holder(request["parentId"])) is not None:
                request["parentToken"] = token
            return request
        if kind == "park":
            job = self._relative("active")
            request = {"cmd": "MoveToWaitingChildren", "id": job}
            if (token := self._holder(job)) is not None:
                request["token"] = token
            return request
        if kind == "ask":
            cmd = rng.choice(("GetDependencies", "GetFailedChildrenValues", "GetIgnoredChildrenFailures"))
            request = {"cmd": cmd, "id": self._relative()}
            if cmd == "GetDependencies" and self._chance(0.3):
                request["limit"] = rng.choice((0, 1))
            return request
        cmd = rng.choice(("UpdateParent", "RemoveChildDependency", "RemoveUnprocessedChildren"))
        if cmd != "UpdateParent":
            return {"cmd": cmd, "id": self._relative("ready", "delayed", "active", "parked")}
        request = {"cmd": cmd, "childId": self._relative(), "parentId": self._relative("ready", "parked")}
        if (token := self._holder(request["parentId"])) is not None:
            request["parentToken"] = token
        return request

    def _flow(self) -> Request:
        """A root that waits for some children, perhaps with a grandchild."""
        rng = self._rng

        def node(name: str, queue: str, meta: Request, **ties: Any) -> Request:
            options: Request = {"name": "n", "data": {"n": self._u, **meta}}
            for option, p, values in (
                ("priority", 0.3, PRIORITIES),
                ("delay", 0.2, (30, 500)),
                ("maxAttempts", 0.6, (1, 2)),
                ("removeOnComplete", 0.3, (True,)),
            ):
                if self._chance(p):
                    options[option] = rng.choice(values)
            if "parentId" in ties and self._chance(0.7):
                options[rng.choice(POLICIES)] = True
            return {"id": name, "queue": queue, "input": {**options, **ties}}

        root = f"f{self._u}"
        names = [f"{root}.{n}" for n in range(rng.choice((1, 2, 3)))]
        queue = self._queue()
        above = {"__parentId": root, "__parentQueue": queue}
        jobs = [node(name, self._queue(), above, parentId=root) for name in names]
        jobs.append(node(root, queue, {"__childrenIds": names}, dependsOn=names, childrenIds=names))
        return {"cmd": "PUSHF", "jobs": jobs}

    def _relative(self, *states: str) -> str:
        """A job that may be tied to others: those of schedules and chains go their own ways."""
        model = self._model
        jobs = [
            job
            for job in model.plain.jobs.values()
            if job.queue != SCHEDULED
            and not job.id.startswith("d")
            and job.id not in model.plain.repeats
            and job.id not in model.plain.links
            and (not states or job.state in states)
        ]
        return f"@{model.about[self._rng.choice(jobs).seq].tag}" if jobs else "nobody"

    def _repeated(self, request: Request) -> None:
        """Make a job the first run of a chain."""
        rng = self._rng
        for option in ("durable", "ttl", "timeout", "stallTimeout"):
            request.pop(option, None)
        repeat: Request = rng.choice(({"every": 300}, {"every": 2000}, {"pattern": "*/3 * * * * *"}))
        request["repeat"] = dict(repeat)
        if self._chance(0.7):
            request["repeat"]["limit"] = rng.choice((1, 2, 5))
        if self._chance(0.3):
            request["repeat"]["continueOnFailure"] = False

    def _keyed(self, request: Request) -> None:
        """A unique key, a debounce, or another policy of removal, on a job that is not durable."""
        rng = self._rng
        request.pop("durable", None)
        if self._chance(0.3):
            request["removeOnComplete"] = rng.choice(KEPT)
        if self._chance(0.3):
            request["removeOnFail"] = rng.choice(KEPT)
        if self._chance(0.2):
            request.update(debounceId=rng.choice("kl"), debounceTtl=rng.choice((0, 40)))
            return
        self._unique(request)

    def _unique(self, request: Request) -> None:
        rng = self._rng
        request["uniqueKey"] = rng.choice("klm")
        dedup: Request = {}
        if self._chance(0.5):
            dedup["ttl"] = rng.choice((1, 60, 5000))
            dedup["keepUntilExpiry"] = self._chance(0.3)
        if self._chance(0.3):
            dedup["replace"] = True
        if self._chance(0.3):
            dedup["extend"] = True
        if dedup:
            request["dedup"] = dedup

    def _pushb(self) -> Request:
        jobs = [self._options() for _ in range(self._rng.choice((0, 1, 2, 3, 5)))]
        for options in jobs:
            if self._chance(0.2):
                options["customId"] = self._rng.choice(self._customs)
        return {"cmd": "PUSHB", "queue": self._queue(), "jobs": jobs}

    def _pull(self) -> Request:
        rng = self._rng
        request: Request = {"cmd": "PULL", "queue": rng.choice((*QUEUES, *QUEUES, SCHEDULED, *BRIEF[:1]))}
        if self._chance(0.4):
            request.update(cmd="PULLB", count=rng.choice((1, 2, 5)))
        if self._chance(0.8):
            request.update(owner="w", lockTtl=rng.choice(LEASES_MS))
        elif self._chance(0.2):
            request["detach"] = True
        if self._chance(0.5):
            request["timeout"] = rng.choice((5, 100, 3000))
        return request

    def _finish(self) -> Request:
        rng = self._rng
        job = self._job("active")
        request: Request = {"cmd": rng.choice(("ACK", "ACK", "FAIL")), "id": job}
        if (token := self._holder(job)) is not None:
            request["token"] = token
        if request["cmd"] == "ACK":
            if self._chance(0.4):
                request["result"] = rng.choice((None, self._u, "done"))
            if self._chance(0.1):
                request["removeOnComplete"] = rng.choice((True, *KEPT))
        else:
            request["error"] = "no"
            if self._chance(0.1):
                request["unrecoverable"] = True
            if self._chance(0.1):
                request["removeOnFail"] = rng.choice((True, *KEPT))
        return request

    def _ackb(self) -> Request:
        ids = [self._job("active") for _ in range(self._rng.choice((1, 2, 4)))]
        request: Request = {"cmd": "ACKB", "ids": ids}
        if self._chance(0.9):
            request["tokens"] = [self._holder(job) for job in ids]
        if self._chance(0.3):
            request["results"] = [self._u for _ in ids]
        if self._chance(0.3):
            request["atomic"] = True
        return request

    def _renew(self) -> Request:
        rng = self._rng
        cmd = rng.choice(("JobHeartbeat", "JobHeartbeatB", "ExtendLock"))
        if cmd == "JobHeartbeatB":
            ids = [self._job("active") for _ in range(2)]
            return {"cmd": cmd, "ids": ids, "tokens": [self._holder(job) for job in ids]}
        job = self._job("active")
        request: Request = {"cmd": cmd, "id": job}
        if cmd == "ExtendLock" or self._chance(0.5):
            request["duration"] = rng.choice(LEASES_MS)
        if (token := self._holder(job)) is not None:
            request["token"] = token
        return request

    def _control_job(self) -> Request:
        rng = self._rng
        cmd = rng.choice(
            (
                "Promote",
                "ChangeDelay",
                "MoveToDelayed",
                "MoveToWait",
                "Cancel",
                "Discard",
                "ChangePriority",
                "Update",
                "Progress",
                "AddLog",
                "ClearLogs",
            )
        )
        if cmd in ("Promote", "Cancel", "ChangePriority"):
            return self._with(cmd, self._job("ready", "delayed"))
        if cmd in ("ChangeDelay", "MoveToDelayed", "MoveToWait", "Discard"):
            job = self._job("ready", "delayed", "active", "active", "failed")
            request = self._with(cmd, job)
            if (token := self._holder(job)) is not None:
                request["token"] = token
            return request
        return self._with(cmd, self._job("active" if cmd == "Progress" else ""))

    def _with(self, cmd: str, job: str) -> Request:
        rng = self._rng
        request: Request = {"cmd": cmd, "id": job}
        if cmd in ("ChangeDelay", "MoveToDelayed"):
            request["delay"] = rng.choice((0, 40, 2000))
        elif cmd == "ChangePriority":
            request["priority"] = rng.choice(PRIORITIES)
            if self._chance(0.3):
                request["lifo"] = self._chance(0.5)
        elif cmd == "Update":
            request["data"] = f"new {self._u}"
        elif cmd == "Progress":
            request["progress"] = rng.choice((0, 12.5, 100))
            if self._chance(0.5):
                request["message"] = "half"
        elif cmd == "AddLog":
            request["message"] = f"line {self._u}"
        elif cmd == "ClearLogs" and self._chance(0.5):
            request["keepLogs"] = 1
        return request

    def _control_queue(self) -> Request:
        rng = self._rng
        queue = rng.choice((*QUEUES, SCHEDULED))
        if self._model.plain.queues.get(queue) is not None and self._model.plain.queues[queue].paused:
            return {"cmd": "Resume", "queue": queue}
        request: Request = rng.choice(
            (
                {"cmd": "Pause"},
                {"cmd": "Pause"},
                {"cmd": "PromoteJobs"},
                {"cmd": "PromoteJobs", "count": 1},
                {"cmd": "Drain"},
                {"cmd": "Obliterate"},
                {"cmd": "Clean", "grace": rng.choice((0, 100)), "limit": rng.choice((1, 1000))},
                {
                    "cmd": "Clean",
                    "state": rng.choice(("waiting", "delayed", "prioritized", "completed", "failed")),
                },
                {"cmd": "RetryCompleted", "count": rng.choice((0, 1, 2))},
                {"cmd": "RetryCompleted"},
                {"cmd": "RetryDlq"},
                {"cmd": "RetryDlq", "count": 1},
                {"cmd": "PurgeDlq"},
                {"cmd": "SetStallConfig", "config": self._stalls()},
                {"cmd": "SetStallConfig", "config": self._stalls()},
                {
                    "cmd": "SetDlqConfig",
                    "config": {
                        "maxEntries": rng.choice((1, 3, 10_000)),
                        "maxAge": rng.choice((None, 100, 604_800_000)),
                    },
                },
                {"cmd": "SetDlqConfig", "config": self._retries()},
            )
        )
        request["queue"] = queue
        if self._chance(0.1):
            return self._limit(queue)
        if self._chance(0.1):
            cmd = rng.choice(("GetDeduplicationJobId", "RemoveDeduplicationKey"))
            return {"cmd": cmd, "queue": queue, "deduplicationId": rng.choice("klm")}
        if self._chance(0.1):
            return {"cmd": "RemoveDlqJob", "queue": queue, "jobId": self._job("failed")}
        return request

    def _stalls(self) -> Request:
        """How long holders may be silent, and how often."""
        rng = self._rng
        return {
            name: rng.choice(values)
            for name, values in (
                ("maxStalls", (0, 1, 2, 3)),
                ("stallInterval", (50, 400, 30_000)),
                ("gracePeriod", (0, 100, 5_000)),
                ("enabled", (True, True, True, False)),
            )
            if self._chance(0.4)
        }

    def _retries(self) -> Request:
        """How often dead letters come back by themselves."""
        rng = self._rng
        return {
            "autoRetry": self._chance(0.8),
            "autoRetryInterval": rng.choice((0, 50, 2000)),
            "maxAutoRetries": rng.choice((0, 1, 3)),
        }

    def _limit(self, queue: str) -> Request:
        rng = self._rng
        request: Request = rng.choice(
            (
                {"cmd": "RateLimit", "limit": rng.choice((1, 3)), "duration": rng.choice((50, 1000))},
                {"cmd": "RateLimit", "limit": 2, "duration": 100, "ttl": 400},
                {"cmd": "RateLimitClear"},
                {"cmd": "SetConcurrency", "limit": rng.choice((1, 2))},
                {"cmd": "ClearConcurrency"},
                {"cmd": "ClearConcurrency"},
                {"cmd": "GetQueueLimits"},
                {"cmd": "PauseGroup", "groupId": rng.choice("xyz")},
                {"cmd": "ResumeGroup", "groupId": rng.choice("xyz")},
            )
        )
        return {**request, "queue": queue}

    def _ask_job(self) -> Request:
        cmd = self._rng.choice(("GetJob", "GetState", "GetResult", "GetProgress", "GetLogs", "WaitJob"))
        request: Request = {"cmd": cmd, "id": self._job()}
        if cmd == "WaitJob":
            request["timeout"] = self._rng.choice((0, 50, 5000))
        return request

    def _ask_queue(self) -> Request:
        rng = self._rng
        cmd = rng.choice(
            ("GetJobs", "GetCountsPerPriority", "GetJobCounts", "Count", "ListQueues", "IsPaused", "Dlq")
        )
        request: Request = {"cmd": cmd, "queue": self._queue()}
        if cmd == "ListQueues":
            del request["queue"]
        if cmd == "GetJobs":
            request.update(offset=rng.choice((0, 0, 2)), limit=rng.choice((1, 5, 100)), asc=self._chance(0.5))
            if self._chance(0.5):
                request["state"] = rng.sample(
                    ("waiting", "delayed", "active", "paused", "completed", "failed"), 2
                )
        return request
