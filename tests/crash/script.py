"""A client that does all that can be done to queues, one thing after the other, and what it must find.

Each part of the script has queues of its own, and its jobs have ids of its own. After a crash
an engine of this process, with a store in memory, goes through the same steps: the file must be in
the state after one of them, and none that was confirmed may be missing.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgpack

from qcore.broker import open_broker
from qcore.clock import ManualClock
from qcore.store.memory import MemoryStore
from qcore.store.sqlite import SqliteStore
from qcore.wire.commands import COMMANDS
from tests.crash.load import Caller, Entry, Log, Request

HOUR_MS = 3_600_000
#: So many are for what earlier parts have left.
FIRST_STEPS = 8
STATES = ("waiting", "delayed", "prioritized", "completed", "failed", "paused")
#: What moves with the clock.
_TIMES = frozenset(
    (
        "createdAt",
        "runAt",
        "startedAt",
        "completedAt",
        "enteredAt",
        "lastHeartbeat",
        "failedAt",
        "duration",
        "expiresAt",
        "nextRun",
        "timestamp",
    )
)


def queues_of(part: int) -> tuple[str, str]:
    return f"part{part}-a", f"part{part}-b"


def recite(log: Log, caller: Caller, rng: Random, part: int) -> Iterator[None]:
    """Do something at each step. Whatever earlier parts have left is removed first."""
    held: dict[str, str] = {}
    for old in (part - 1, part - 2):
        for queue in queues_of(old):
            yield _do(log, caller, part, {"cmd": "Obliterate", "queue": queue}, held)
        for name in ("x", "y"):
            yield _do(log, caller, part, {"cmd": "CronDelete", "name": f"part{old}-{name}"}, held)
    n = 0
    while True:
        n += 1
        yield _do(log, caller, part, request_of(part, n, held, rng), held)


def _do(log: Log, caller: Caller, part: int, request: Request, held: dict[str, str]) -> None:
    log.add("step", part, request)
    reply = perform(caller, request, held)
    log.add("stepped", part, said(reply))


def perform(caller: Caller, request: Request, held: dict[str, str]) -> Request:
    """Ask, with the token of whoever is held, and keep those of new ones."""
    token = held.get(request.get("id", ""))
    reply = caller.call({**request, "token": token} if token else request)
    if reply["ok"] and request["cmd"] == "PULL" and reply["job"]:
        held[reply["job"]["id"]] = reply["token"]
    elif reply["ok"] and request["cmd"] in ("ACK", "FAIL", "MoveToWait", "MoveToDelayed", "Discard"):
        held.pop(request["id"], None)
    return reply


def said(reply: Request) -> list[Any]:
    """What is the same wherever it is asked."""
    job = reply.get("job")
    return [reply["ok"], reply.get("error"), reply.get("count"), reply.get("id"), job and job["id"]]


# --- what is asked ---------------------------------------------------------------------------------


def request_of(part: int, n: int, held: dict[str, str], rng: Random) -> Request:
    a, b = queues_of(part)
    queue = a if rng.random() < 0.8 else b
    known = f"part{part}-{rng.randrange(max(1, n - 25), n + 1)}"
    mine = rng.choice([*held]) if held else known
    group = f"g{rng.randrange(2)}"
    key = f"k{rng.randrange(3)}"

    def job(suffix: str = "") -> Request:
        found: Request = {
            "jobId": f"part{part}-{n}{suffix}",
            "name": "n",
            "data": {"n": n, "x": "y" * rng.randrange(90)},
        }
        found["backoff"] = HOUR_MS
        chances: list[tuple[float, Request]] = [
            (0.3, {"priority": rng.randint(-2, 3)}),
            (0.2, {"delay": HOUR_MS}),
            (0.1, {"lifo": True}),
            (0.3, {"maxAttempts": rng.randint(1, 3)}),
            (0.2, {"groupId": group}),
            (0.2, {"uniqueKey": key}),
            (0.1, {"uniqueKey": key, "dedup": {"replace": True}}),
            (0.1, {"uniqueKey": key, "dedup": {"ttl": HOUR_MS, "extend": rng.random() < 0.5}}),
            (0.1, {"removeOnComplete": rng.choice([True, 1, 3])}),
            (0.1, {"removeOnFail": rng.choice([True, 1])}),
            (0.1, {"dependsOn": [known]}),
            (0.1, {"tags": ["t"], "keepLogs": 2, "stackTraceLimit": 1}),
            (0.3, {"durable": True}),
        ]
        for chance, options in chances:
            if rng.random() < chance:
                found |= options
        return found

    def batch() -> Request:
        jobs = [job(f".{i}") for i in range(rng.randint(2, 5))]
        for each in jobs:
            each["customId"] = each.pop("jobId")
        return {"cmd": "PUSHB", "queue": queue, "jobs": jobs}

    def flow() -> Request:
        ids = [f"part{part}-{n}{suffix}" for suffix in ("", ".0", ".1")]
        policy = rng.choice(["failParent", "ignoreDependency", "continueParent", "removeDependency"])
        top: Request = {"name": "top", "data": {"__childrenIds": ids[1:]}, "dependsOn": ids[1:]}
        top["childrenIds"] = ids[1:]
        kid: Request = {"name": "kid", "data": {"__parentId": ids[0], "__parentQueue": b}, "parentId": ids[0]}
        kid |= {"maxAttempts": 1, f"{policy}OnFailure": True}
        entries = [{"id": ids[0], "queue": b, "input": top}]
        return {"cmd": "PUSHF", "jobs": entries + [{"id": i, "queue": a, "input": kid} for i in ids[1:]]}

    def of_queue(cmd: str, **fields: Any) -> Request:
        return {"cmd": cmd, "queue": queue, **fields}

    def of_job(cmd: str, job_id: str = known, **fields: Any) -> Request:
        return {"cmd": cmd, "id": job_id, **fields}

    dead = {"autoRetry": False, "maxEntries": rng.randint(2, 9)}
    choices: list[tuple[int, Request]] = [
        (30, of_queue("PUSH", **job())),
        (6, batch()),
        (5, flow()),
        (18, of_queue("PULL", owner="script", lockTtl=600_000)),
        (9, of_job("ACK", mine, result={"of": mine})),
        (5, of_job("FAIL", mine, error="as planned", stack=["here", "there"])),
        (2, of_job("FAIL", mine, error="for good", unrecoverable=True)),
        (2, of_job("Progress", mine, progress=rng.randrange(101), message="on")),
        (3, of_job("AddLog", message=f"line {n}")),
        (1, of_job("ClearLogs", keepLogs=1)),
        (3, of_job("Promote")),
        (3, of_job("ChangePriority", priority=rng.randint(-3, 3))),
        (1, of_job("ChangeDelay", delay=HOUR_MS)),
        (2, of_job("Update", mine if rng.random() < 0.5 else known, data={"new": n})),
        (3, of_job("Cancel")),
        (1, of_job("Discard")),
        (2, of_job("MoveToWait")),
        (2, of_job("MoveToDelayed", mine, delay=HOUR_MS)),
        (1, of_job("RemoveJobDeduplicationKey")),
        (1, of_queue("RemoveDeduplicationKey", deduplicationId=key)),
        (1, of_queue("Pause")),
        (2, of_queue("Resume")),
        (1, of_queue("PauseGroup", groupId=group)),
        (1, of_queue("ResumeGroup", groupId=group)),
        (1, of_queue("SetConcurrency", limit=rng.randint(1, 9))),
        (1, of_queue("ClearConcurrency")),
        (1, of_queue("SetGroupConcurrency", groupId=group, concurrency=3)),
        (1, of_queue("RemoveGroupConcurrency", groupId=group)),
        (1, of_queue("SetDlqConfig", config=dead)),
        (1, of_queue("SetStallConfig", config={"maxStalls": rng.randint(1, 5)})),
        (1, of_queue("PromoteJobs")),
        (1, of_queue("RetryDlq")),
        (1, of_queue("PurgeDlq")),
        (1, of_queue("RetryCompleted")),
        (2, of_queue("Drain")),
        (3, of_queue("Clean", state=rng.choice(STATES))),
        (1, of_queue("Obliterate")),
        (2, of_queue("Cron", name=f"part{part}-{rng.choice('xy')}", repeatEvery=1000 * HOUR_MS, data={})),
        (1, {"cmd": "CronDelete", "name": f"part{part}-{rng.choice('xy')}"}),
        (1, of_job("RemoveUnprocessedChildren")),
        (1, of_job("RemoveChildDependency")),
    ]
    return rng.choices([request for _, request in choices], [weight for weight, _ in choices])[0]


# --- what is found ---------------------------------------------------------------------------------


_OF_QUEUE = (
    "GetJobCounts",
    "GetCountsPerPriority",
    "IsPaused",
    "Dlq",
    "GetDlqConfig",
    "GetStallConfig",
    "GetQueueLimits",
)


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if k not in _TIMES}
    return [_timeless(v) for v in value] if isinstance(value, list) else value


def picture(caller: Caller, part: int) -> dict[str, Any]:
    """Everything that can be asked about the queues of a part."""
    found: dict[str, Any] = {}

    def ask(cmd: str, **fields: Any) -> Any:
        reply = caller.call({"cmd": cmd, **fields})
        found[f"{cmd} {' '.join(map(str, fields.values()))}"] = _timeless(reply)
        return reply

    for queue in queues_of(part):
        jobs = ask("GetJobs", queue=queue, limit=1000)["jobs"]
        jobs.sort(key=lambda job: job["id"])
        found[f"GetJobs {queue} 1000"] = {job["id"]: _timeless(job) for job in jobs}
        for cmd in _OF_QUEUE:
            ask(cmd, queue=queue)
        # Exact counts are of the same cut as the jobs that they count.
        events = caller.call({"cmd": "GetEvents", "queue": queue, "limit": 1000})["data"]
        found[f"events {queue}"] = events["count"]
        # Where they are kept, they are those that are counted.
        assert len(events["events"]) in (0, events["count"]), events["count"]
        for kind in ("completed", "failed"):
            meta = caller.call({"cmd": "Metrics", "queue": queue, "type": kind})["data"]["meta"]
            found[f"{kind} {queue}"] = meta["count"]
        for key in ("k0", "k1", "k2"):
            ask("GetDeduplicationJobId", queue=queue, key=key, deduplicationId=key)
        for group in ("g0", "g1"):
            for cmd in ("IsGroupPaused", "GetGroupConcurrency", "GetGroupJobsCount", "GetGroupActiveCount"):
                ask(cmd, queue=queue, groupId=group)
        for job in jobs:
            ask("GetResult", id=job["id"])
            ask("GetLogs", id=job["id"])
            if job["childrenIds"]:
                for cmd in ("GetChildrenValues", "GetFailedChildrenValues", "GetIgnoredChildrenFailures"):
                    ask(cmd, id=job["id"])
    for name in ("x", "y"):
        ask("CronGet", name=f"part{part}-{name}")
    return found


class Twin:
    """An engine that goes through the steps of one part, and writes each to a store in memory.

    (With a store, since a durable add that another one of its batch replaces was never known.)
    """

    def __init__(self, caller_of: Any) -> None:
        self.clock = ManualClock()
        self.broker = open_broker(store=MemoryStore(), mode="server", clock=self.clock)
        self.caller: Caller = caller_of(self.broker)
        self._held: dict[str, str] = {}

    def step(self, request: Request) -> list[Any]:
        self.clock.advance(1)
        return said(perform(self.caller, request, self._held))


def order(caller: Caller, part: int) -> dict[tuple[str, str | None], list[str]]:
    """In which order the jobs of each group would be run. Ends the pauses and limits.

    (Whose turn it is among groups is not kept over a restart.)
    """
    found: dict[tuple[str, str | None], list[str]] = {}
    for queue in queues_of(part):
        for cmd in ("Resume", "ClearConcurrency"):
            caller.call({"cmd": cmd, "queue": queue})
        while (reply := caller.call({"cmd": "PULL", "queue": queue, "owner": "w"}))["job"]:
            found.setdefault((queue, reply["job"]["groupId"]), []).append(reply["job"]["id"])
    return found


class Critic:
    """Holds files against what the reciter was told."""

    def __init__(self, caller_of: Any) -> None:
        self._caller_of = caller_of
        self._part = 0
        self._gone: set[int] = set()
        self.steps = 0
        self.unsure = 0  # crashes that came while a step was on its way, or before its commit

    def check(self, entries: list[Entry], file: Path) -> None:
        """Hold the file of a dead process, a copy, against the steps of the last part."""
        # What went into a connection that was dead already comes first, in parts without answers.
        part = max((values[0] for what, _, *values in entries if what == "step"), default=0)
        requests = [values[1] for what, _, *values in entries if what == "step" and values[0] == part]
        answers = [values[1] for what, _, *values in entries if what == "stepped"]
        assert all(values[0] == part for what, _, *values in entries if what == "stepped")
        assert len(requests) - len(answers) in (0, 1)
        self.steps += len(answers)
        if part > self._part:
            self._part = part
            self._check_part(part, requests, answers, file)
            self._gone |= {part - 1, part - 2} if len(answers) >= FIRST_STEPS else set()
        self._check_gone(file)

    def _check_part(self, part: int, requests: list[Request], answers: list[list[Any]], file: Path) -> None:
        twin = Twin(self._caller_of)
        pictures = [picture(twin.caller, part)]
        least = 0
        for i, request in enumerate(requests):
            answer = twin.step(request)
            pictures.append(picture(twin.caller, part))
            if i < len(answers) and f"part{part}-" in str(request):
                assert answer == answers[i], f"step {i}, {request}: {answers[i]}, expected {answer}"
                # (One that changed nothing had nothing to wait for.)
                if _waits(request) and answer[0] and pictures[-1] != pictures[-2]:
                    least = i + 1
        twin.broker.engine._check()
        broker = open_broker(str(file), mode="server", keep_events=bool(os.environ.get("QCORE_JOURNAL")))
        try:
            caller = self._caller_of(broker)
            found = picture(caller, part)
            at = next((i for i in range(len(pictures) - 1, least - 1, -1) if pictures[i] == found), -1)
            if at < 0:
                raise AssertionError(_difference(pictures, found, least, requests))
            self.unsure += at != len(answers)
            again = Twin(self._caller_of)
            for request in requests[:at]:
                again.step(request)
            wanted, got = order(again.caller, part), order(caller, part)
            assert got == wanted, f"jobs would be run in the order {got}, not {wanted}: {requests[:at]}"
        finally:
            broker.mark_closed()
            broker.store.close()

    def _check_gone(self, file: Path) -> None:
        """Nothing in the file is left of queues that were obliterated (C021)."""
        if not self._gone:
            return
        newest = sorted(self._gone)[-4:]
        SqliteStore(file).close()  # so that everything lies in its table
        con = sqlite3.connect(file)
        try:
            tables = [name for (name,) in con.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
            # Names keep their numbers, and two are logs: their ends undo what stands before.
            for table in set(tables) - {"names", "evidence", "changelog"}:
                for row in con.execute(f"SELECT * FROM {table}"):
                    if table == "queues" and msgpack.unpackb(row[1]).keys() == {"name"}:
                        continue
                    for value in row:
                        text = value if isinstance(value, bytes) else str(value).encode()
                        for part in newest:
                            assert b"part%d-" % part not in text, (
                                f"{table} has a trace of part {part}: {str(row)[:400]}"
                            )
        finally:
            con.close()


def _waits(request: Request) -> bool:
    """Whether an answer of this kind comes after the commit."""
    if request["cmd"] in ("PUSH", "PUSHB"):
        jobs = request.get("jobs", [request])
        return any(job.get("durable") for job in jobs)
    return COMMANDS[request["cmd"]].level == "committed"


def _difference(
    pictures: list[dict[str, Any]], found: dict[str, Any], least: int, requests: list[Request]
) -> str:
    nearest = min(range(len(pictures)), key=lambda i: sum(pictures[i].get(k) != v for k, v in found.items()))
    wanted = pictures[nearest]
    lines = [f"the file is in no state of {least} to {len(pictures) - 1}; the nearest is {nearest}, after"]
    lines.append(str(requests[nearest - 1] if nearest else None))
    return "\n".join([*lines, *_differences(wanted, found, "")])


def _differences(wanted: Any, found: Any, where: str) -> Iterator[str]:
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key in sorted({*wanted, *found}):
            yield from _differences(wanted.get(key), found.get(key), f"{where} / {key}")
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        for i, (one, other) in enumerate(zip(wanted, found, strict=True)):
            yield from _differences(one, other, f"{where} / {i}")
    elif wanted != found:
        yield f"{where}: expected {wanted}, found {found}"
