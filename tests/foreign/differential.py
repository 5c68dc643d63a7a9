"""Hold the server against the reference: the same requests to both, their replies compared.

    python tests/foreign/differential.py --seconds 60

The reference is in the npm packages ``bunqueue`` and ``bun``, which ``make foreign``
installs. Two kinds of requests are made, both from a seed: recorded conversations that
are varied (fields dropped, added, given odd values; steps dropped, doubled, exchanged),
and random walks over the command table. What differs is made as short as it will go and
printed, once for each command and place. Differences that are meant are listed in
``differential_meant.txt``, each with its reason.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import test_transcripts
from test_transcripts import ABSENT, FOLDER, Conversation

from qcore.wire.commands import COMMANDS

PATIENCE_S = 8.0
NPM = Path(__file__).parent / "npm"
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
#: Figures of a process or of moments, which no two servers share.
UNSTABLE = {"Stats", "Metrics", "DashboardOverview", "DashboardQueues", "Prometheus", "ListQueues", "Hello"}
UNSTABLE |= {"CronList", "ListWorkers", "ListWebhooks", "Auth"}
#: Commands that take the token of a delivery there as well.
HOLDERS = {"ACK", "FAIL", "MoveToWait", "MoveToDelayed", "MoveToWaitingChildren", "ChangeDelay", "Discard"}
HOLDERS |= {"ExtendLock", "JobHeartbeat"}


# --- the two servers ---------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
    return port


@contextlib.contextmanager
def server(command: list[str], folder: Path, stored: bool) -> Iterator[int]:
    port = free_port()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("QCORE_", "BUNQUEUE_"))}
    env |= {"TCP_PORT": str(port), "HTTP_PORT": str(free_port()), "HOST": "127.0.0.1"}
    env |= {"RATE_LIMIT_MAX_REQUESTS": "1000000000", "LOG_LEVEL": "error"}
    if stored:
        env["BUNQUEUE_DATA_PATH"] = str(folder / "jobs.db")
    folder.mkdir()
    process = subprocess.Popen(
        command, env=env, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(400):
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 0.2).close()
                break
            time.sleep(0.05)
        yield port
    finally:
        process.kill()
        process.wait()


# --- comparing ---------------------------------------------------------------------------------


class Pairs:
    """Which value of one server stands for which of the other."""

    def __init__(self) -> None:
        self.there: dict[str, str] = {}
        self.here: dict[str, str] = {}

    def same(self, there: str, here: str) -> bool:
        if there in self.there or here in self.here:
            return self.there.get(there) == here
        self.there[there], self.here[here] = here, there
        return True

    def text(self, there: str, here: str) -> bool:
        """Texts that are the same but for ids that stand for each other."""
        if there == here:
            return True
        if UUID.sub("*", there) != UUID.sub("*", here):
            return False
        return all(self.same(a, b) for a, b in zip(UUID.findall(there), UUID.findall(here), strict=True))


def moments(job: dict[str, Any]) -> list[Any]:
    """How the times of a job stand to each other, coarsely."""
    created, run = job.get("createdAt", 0), job.get("runAt", 0)
    # A job may start in the very millisecond in which it was added.
    started = [job.get(name) is None for name in ("startedAt", "completedAt")]
    return [(run > created) - (run < created), *started]


def is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 1e12 <= value < 4e12


def difference(there: Any, here: Any, pairs: Pairs, at: str = "") -> tuple[str, Any, Any] | None:
    """The first place in which two replies differ, and what is there."""
    if there is ABSENT or here is ABSENT:
        return None if there is here else (at, there, here)
    if isinstance(there, dict) and isinstance(here, dict):
        if "timeline" in there and "timeline" in here and moments(there) != moments(here):
            return at + ".moments", moments(there), moments(here)
        for key in sorted({*there, *here}, key=str):
            found = difference(
                there.get(key, ABSENT), here.get(key, ABSENT), pairs, f"{at}.{key}" if at else str(key)
            )
            if found:
                return found
        return None
    if isinstance(there, list) and isinstance(here, list):
        if len(there) != len(here):
            return at + "[]", there, here
        for a, b in zip(there, here, strict=True):
            if found := difference(a, b, pairs, at + "[]"):
                return found
        return None
    if isinstance(there, str) and isinstance(here, str):
        return None if pairs.text(there, here) else (at, there, here)
    if is_time(there) and is_time(here):
        return None if abs(there - here) < 5000 else (at, there, here)
    both_numbers = not (isinstance(there, bool) or isinstance(here, bool))
    if both_numbers and isinstance(there, int | float) and isinstance(here, int | float):
        close = there == here or (there != there and here != here)
        # Durations that were measured, not given.
        measured = at.rsplit(".", 1)[-1] in ("duration", "ttl", "rateLimitTtl", "uptime", "delay")
        if close and type(there) is int and type(here) is float and abs(there) < 2**32:
            return at + " (form)", there, here  # a client that is strict about types would stumble
        return None if close or (measured and abs(there - here) < 1000) else (at, there, here)
    return None if type(there) is type(here) and there == here else (at, there, here)


# --- the requests ------------------------------------------------------------------------------

ODD: list[Any] = [
    None,
    "",
    0,
    -1,
    1.5,
    5,
    "5",
    "x",
    True,
    False,
    [],
    {},
    [1],
    {"a": 1},
    2**31,
    1e15,
    -0.5,
    "a b",
    float("nan"),
    float("inf"),
    ["", "x"],
    "completed",
    "waiting",
    1000000,
    -1000000,
    1,
    2,
    10,
    100,
    "x" * 300,
    "é",
]  # fmt: skip


SENSIBLE: dict[str, list[Any]] = {
    "id": ["$id1", "$id2", "$id3", "nope", "c-$run"],
    "ids": [["$id1"], ["$id1", "$id2"], ["$id2", "$id1", "nope"], [], ["$id1", "$id1"]],
    "tokens": [["$token1"], ["$token1", "$token2"], ["$token1", "$token2", ""], []],
    "token": ["$token1", "$token2", "bad", ""],
    "jobId": ["c-$run", "d-$run", ""],
    "customId": ["c-$run", "d-$run"],
    "queue": ["q-$run", "r-$run"],
    "queues": [["q-$run"], ["q-$run", "r-$run"]],
    "uniqueKey": ["k1", "k2"],
    "deduplicationId": ["k1", "k2"],
    "groupId": ["g1", "g2"],
    "data": [{"a": 1}, [1, 2], "s", None, 7, {"name": "inner", "x": 1}],
    "result": [{"a": 1}, None, 0, "", False, "x"],
    "results": [[1], [None, 2], [{"a": 1}, "x", 0]],
    "removeOnCompletes": [[True], [None, True], [True, None, None]],
    "state": [
        "waiting",
        "active",
        "completed",
        "failed",
        "delayed",
        ["waiting", "completed"],
        "paused",
        "waiting-children",
        "prioritized",
        "unknown",
        [],
        "wait",
    ],
    "delay": [0, 60000, 100000],
    "priority": [0, 1, 5, -3, 10],
    "dependsOn": [["$id1"], ["$id1", "$id2"], ["nope"], []],
    "childrenIds": [["$id1"], ["nope"], []],
    "tags": [["a", "b"], []],
    "parentId": ["$id1", "$id2", "nope"],
    "childId": ["$id1", "$id2", "nope"],
    "owner": ["w", "w2", ""],
    "timeout": [0, 20, 100],
    "ttl": [60000, 100000],
    "stallTimeout": [60000, 100000],
    "count": [1, 2, 5, 0],
    "limit": [1, 2, 100],
    "offset": [0, 1, 2],
    "asc": [True, False],
    "start": [0, 1, -1, 5],
    "end": [0, 1, -1, 5],
    "grace": [0, 60000],
    "duration": [1000, 60000],
    "durations": [[60000], [60000, 1000], []],
    "lockTtl": [30000, 60000],
    "max": [1, 2, 5],
    "concurrency": [1, 2],
    "maxJobs": [1, 5],
    "maxCount": [5],
    "maxLength": [0, 1, 100],
    "dedup": [
        {},
        {"ttl": 60000},
        {"extend": True, "ttl": 60000},
        {"replace": True},
        {"replace": True, "ttl": 60000},
    ],
    "backoff": [0, 60000, 100000, {"type": "fixed", "delay": 60000}, {"type": "exponential", "delay": 60000}],
    "maxAttempts": [1, 2, 3],
    "removeOnComplete": [True, False],
    "removeOnFail": [True, False],
    "filter": [
        {"reason": "unknown"},
        {"limit": 1},
        {"offset": 1},
        {"retriable": True},
        {"expired": False},
        {"reason": "max_attempts_exceeded"},
        {"olderThan": 0},
        {"newerThan": 0},
    ],
    "group": [
        {},
        {"concurrency": 1},
        {"affinity": "g1"},
        {"affinity": None},
        {"limit": {"max": 1, "duration": 60000}},
    ],
    "groupMaxSize": [1, 2],
    "lifo": [True, False],
    "durable": [True, False],
    "detach": [True, False],
    "failParentOnFailure": [True, False],
    "removeDependencyOnFailure": [True, False],
    "ignoreDependencyOnFailure": [True, False],
    "continueParentOnFailure": [True, False],
    "stackTraceLimit": [1, 0, 10],
    "keepLogs": [1, 0, 10],
    "sizeLimit": [1000],
    "timestamp": [1700000000000, 1700000000001],
    "progress": [0, 50, 33.3, 150, -5],
    "message": ["hello", ""],
    "level": ["warn", "info"],
    "error": ["broke", "Error: broke"],
    "unrecoverable": [True, False],
    "stack": [["a", "b"], ["  at x", "", "y"], [1, "z"]],
    "name": ["n", "other"],
    "jobName": ["n"],
    "url": ["https://example.com/hook"],
    "events": [["job.completed"], []],
    "config": [
        {"autoRetry": True},
        {"maxAge": None},
        {"maxEntries": 5},
        {"enabled": False},
        {"maxStalls": 1},
        {"stallInterval": "5000"},
        {},
    ],
    "schedule": ["0 * * * *", "*/10 * * * * *"],
    "repeatEvery": [60000],
    "timezone": ["Europe/Rome"],
    "enabled": [True, False],
    "includeJobs": [True, False],
    "jobsLimit": [1, 10],
    "type": ["completed", "failed"],
    "eventTypes": [["completed"]],
    "workerId": ["w-$run"],
    "repeat": [{"every": 60000}, {"every": 60000, "limit": 2}],
    "debounceId": ["d1"],
    "debounceTtl": [1],  # kept, but not observed there
}  # fmt: skip


def recorded() -> list[tuple[str, list[dict[str, Any]]]]:
    found = []
    for file in sorted(FOLDER.glob("*.jsonl")):
        for line in file.read_text("utf-8").splitlines():
            entry = json.loads(line)
            if "scenario" in entry:
                steps: list[dict[str, Any]] = []
                if not entry.get("needs"):
                    found.append((entry["scenario"], steps))
            else:
                steps.append(entry)
    return found


class Varier:
    def __init__(self, seed: int, odd: float) -> None:
        self.rng = random.Random(seed)
        self.odd = odd

    def value(self, name: str, request: dict[str, Any]) -> Any:
        rng = self.rng
        if name == "timeout" and request.get("cmd") == "PUSH":
            return 60000
        if name == "parentId" and request.get("cmd") == "PUSH":
            return None  # there a parent waits for UpdateParent only
        if {name, *request} >= {"ttl", "timestamp"}:
            return None  # over before it began, and here such a job is dropped at once
        if name in SENSIBLE and rng.random() >= self.odd:
            return copy.deepcopy(rng.choice(SENSIBLE[name]))
        return copy.deepcopy(rng.choice(ODD if rng.random() < self.odd or name not in SENSIBLE else [None]))

    def varied(self, request: dict[str, Any]) -> dict[str, Any]:
        rng, request = self.rng, copy.deepcopy(request)
        command = COMMANDS.get(request.get("cmd", ""))
        for _ in range(rng.choice([1, 1, 1, 2])):
            names = [n for n in request if n != "cmd"]
            match rng.random():
                case r if r < 0.25 and names:
                    del request[rng.choice(names)]
                case r if r < 0.55 and names:
                    name = rng.choice(names)
                    inner = request[name]
                    if (
                        isinstance(inner, list)
                        and inner
                        and isinstance(inner[0], dict)
                        and rng.random() < 0.8
                    ):
                        place = rng.choice(inner)
                        if "input" in place and isinstance(place["input"], dict) and rng.random() < 0.7:
                            place = place["input"]
                        if isinstance(place, dict) and place:
                            key = rng.choice([*place, "priority", "delay", "name", "dependsOn", "customId"])
                            place[key] = self.value(key, request)
                    elif isinstance(inner, dict) and inner and rng.random() < 0.7:
                        key = rng.choice(list(inner))
                        inner[key] = self.value(key, request)
                    else:
                        request[name] = self.value(name, request)
                case _ if command is not None and command.fields:
                    name = rng.choice(command.fields).name
                    if name not in ("parentToken", "resentSince"):
                        request[name] = self.value(name, request)
        return request

    def conversation(self, steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
        rng = self.rng
        steps = copy.deepcopy(steps)
        for _ in range(rng.choice([1, 1, 2, 3])):
            at = rng.randrange(len(steps))
            step = steps[at]
            match rng.random():
                case r if r < 0.6 and "send" in step:
                    step["send"] = self.varied(step["send"])
                case r if r < 0.7 and "send" in step and "async" not in step:
                    del steps[at]
                case r if r < 0.8 and "send" in step and "async" not in step:
                    steps.insert(at, copy.deepcopy(step))
                case r if r < 0.9 and len(steps) > 1 and at:
                    if all("send" in s and "async" not in s for s in (steps[at], steps[at - 1])):
                        steps[at], steps[at - 1] = steps[at - 1], steps[at]
                case _:
                    queue = step.get("send", {}).get("queue", "q-$run")
                    ids = ["$id1", "$id2", "c-$run"]
                    ask = rng.choice(
                        [
                            {"cmd": "GetJob", "id": rng.choice(ids)},
                            {"cmd": "GetState", "id": rng.choice(ids)},
                            {"cmd": "GetResult", "id": rng.choice(ids)},
                            {"cmd": "GetJobs", "queue": queue},
                            {"cmd": "GetJobCounts", "queue": queue},
                            {"cmd": "Dlq", "queue": queue},
                            {"cmd": "GetDlqStats", "queue": queue},
                            {"cmd": "Count", "queue": queue},
                            {"cmd": "GetCountsPerPriority", "queue": queue},
                            {"cmd": "GetProgress", "id": rng.choice(ids)},
                            {"cmd": "GetLogs", "id": rng.choice(ids)},
                            {"cmd": "GetChildrenValues", "id": rng.choice(ids)},
                            {"cmd": "DashboardQueue", "queue": queue, "includeJobs": True},
                            {"cmd": "PULLB", "queue": queue, "count": 5, "owner": "w"},
                        ]
                    )
                    steps.insert(at + rng.randrange(2), {"send": ask, "expect": {"$open": {}}})
            if not steps:
                return [{"send": {"cmd": "Ping"}, "expect": {"$open": {}}}]
        return steps

    def walk(self) -> list[dict[str, Any]]:
        """Steps from nothing: ids are named as they come."""
        rng = self.rng
        steps: list[dict[str, Any]] = []
        n_ids = n_tokens = 0
        usual = ["PUSH"] * 8 + ["PULL"] * 6 + ["ACK"] * 4 + ["FAIL"] * 3 + ["GetJob"] * 3 + ["GetJobs"] * 2
        usual += [
            "MoveToWait",
            "MoveToDelayed",
            "Promote",
            "ChangeDelay",
            "ChangePriority",
            "Discard",
            "Cancel",
        ] * 2
        others = [c for c in COMMANDS if c not in UNSTABLE | {"PUSHF", "AddWebhook", "SubscribeEvents"}]
        for _ in range(rng.randrange(4, 25)):
            name = rng.choice(usual if rng.random() < 0.7 else others)
            request: dict[str, Any] = {"cmd": name}
            for field in COMMANDS[name].fields:
                likely = 0.97 if field.required else 0.12
                if field.name == "queue":
                    request["queue"] = rng.choice(["q-$run", "q-$run", "q-$run", "r-$run"])
                elif field.name == "owner":
                    request["owner"] = "w"
                elif field.name == "token":
                    if name in HOLDERS and rng.random() < 0.85 and n_tokens:
                        request["token"] = f"$token{rng.randrange(1, n_tokens + 1)}"
                elif field.name in ("id", "childId", "parentId", "customId") and field.required:
                    request[field.name] = f"$id{rng.randrange(1, n_ids + 1)}" if n_ids else "nope"
                elif field.name in ("parentToken", "resentSince"):
                    pass
                elif rng.random() < likely:
                    request[field.name] = self.value(field.name, request)
            expect: dict[str, Any] = {}
            if name == "PUSH":
                n_ids += 1
                expect = {"ok": True, "id": f"$id{n_ids}"}
                request.setdefault("name", "n")
            if name == "PULL":
                n_tokens += 1
                expect = {"job": {"$open": {}}, "token": f"$token{n_tokens}"}
            steps.append({"send": request, "expect": {"$open": expect}})
        return steps


# --- the run -----------------------------------------------------------------------------------


class Side(Conversation):
    """A conversation in which names that stand for nothing yet are words of this run."""

    def filled(self, value: Any) -> Any:
        if isinstance(value, str) and test_transcripts.VARIABLE.fullmatch(value) and value not in self.known:
            return f"{value[1:]}-{self.known['$run']}"
        return super().filled(value)


def play(steps: list[dict[str, Any]], there: int, here: int) -> tuple[int, str, Any, Any] | None:
    """The first step whose replies differ: its number, the place, and both values."""
    sides = Side(there, False), Side(here, False)
    run = "r" + uuid.uuid4().hex[:10]
    for side in sides:
        side.known["$run"] = run
    pairs = Pairs()
    try:
        for number, step in enumerate(steps):
            time.sleep(0.003)  # so that moments that are not the same are seen to be
            got = []
            for side in sides:
                try:
                    reply = side.step(step)
                except (AssertionError, EOFError, OSError, KeyError) as error:
                    reply = f"<{type(error).__name__}>"
                got.append(reply)
                if reply is not ABSENT and "expect" in step:
                    bind(side, step["expect"], reply)
            if all(isinstance(g, str) for g in got):
                return None
            found = refusal(*got) or difference(got[0], got[1], pairs)
            if found:
                return (number, *found)
    finally:
        for side in sides:
            side.close()
    return None


def refusal(there: Any, here: Any) -> tuple[str, Any, Any] | None:
    """Told first when one refuses what the other takes."""
    if isinstance(there, dict) and isinstance(here, dict) and there.get("ok") != here.get("ok"):
        return "error", there.get("error", ABSENT), here.get("error", ABSENT)
    return None


def bind(side: Side, want: Any, got: Any) -> None:
    """Take the names of a pattern for what came, as far as they agree in shape."""
    if isinstance(want, dict):
        want = want.get("$open", want)
        if isinstance(got, dict):
            for key, inner in want.items():
                if side.text(str(key)) in got:
                    bind(side, inner, got[side.text(str(key))])
    elif isinstance(want, list) and isinstance(got, list):
        for a, b in zip(want, got, strict=False):
            bind(side, a, b)
    elif isinstance(want, str) and test_transcripts.VARIABLE.fullmatch(want) and isinstance(got, str):
        side.known.setdefault(want, got)


def shorten(steps: list[dict[str, Any]], same: Any) -> list[dict[str, Any]]:
    at = len(steps) - 2
    while at >= 0:
        shorter = steps[:at] + steps[at + 1 :]
        if same(shorter):
            steps = shorter
        at -= 1
    for step in steps:
        request = step.get("send")
        for name in [n for n in request or () if n not in ("cmd", "queue")]:
            kept = request.pop(name)
            if not same(steps):
                request[name] = kept
    return steps


def pause_ms(step: dict[str, Any]) -> int:
    return int(step.get("silence_ms", 0) + step.get("sleep_ms", 0))


def name_of(step: dict[str, Any]) -> str:
    if "send" in step:
        return str(step["send"].get("cmd"))
    return next(iter(step))


#: Differences that are meant: command, place, and the two texts or values (regular expressions), with why.
MEANT: list[tuple[str, str, str, str, str]] = []
with contextlib.suppress(FileNotFoundError):
    for _line in (Path(__file__).parent / "differential_meant.txt").read_text("utf-8").splitlines():
        if _line and not _line.startswith("#"):
            MEANT.append(tuple(_line.split("\t")))  # type: ignore[arg-type]


#: What is refused before anything is looked up; the reference leaks a text of its engine, or takes the value.
CHECKED = re.compile(r"(\w+\[\d+\]: )?[\w.]+ (is required|must be .*|requires .*)", re.DOTALL)
N_CHECKED: dict[tuple[str, str, str], int] = {}


def meant(command: str, place: str, there: Any, here: Any) -> str | None:
    if place == "error" and isinstance(here, str) and CHECKED.fullmatch(here):
        key = (command, shown(there)[:60], here)
        N_CHECKED[key] = N_CHECKED.get(key, 0) + 1
        return "checked"
    for c, p, t, h, why in MEANT:
        texts = [(c, command), (p, place), (t, shown(there)), (h, shown(here))]
        if all(re.fullmatch(pattern, text, re.DOTALL) for pattern, text in texts):
            return why
    return None


def shown(value: Any) -> str:
    if value is ABSENT:
        return "absent"
    return value if isinstance(value, str) else repr(value)


def kind(value: Any) -> str:
    return re.sub(r"\d+|r[0-9a-f]{10}", "#", UUID.sub("*", shown(value)))[:100]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reference", type=Path, default=NPM, help="folder with node_modules")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stored", action="store_true", help="both servers on SQLite")
    parser.add_argument("--odd", type=float, default=0.02, help="share of values of the wrong kind")
    parser.add_argument("--walks", type=float, default=0.5, help="share of random walks")
    args = parser.parse_args()
    test_transcripts.PATIENCE_S = PATIENCE_S
    modules = args.reference / "node_modules"
    theirs = [str(modules / ".bin" / "bun"), str(modules / "bunqueue" / "dist" / "main.js")]
    ours = [sys.executable, "-m", "qcore.server"]
    seen: set[tuple[Any, ...]] = set()
    n = n_meant = 0
    end = time.monotonic() + args.seconds
    with (
        tempfile.TemporaryDirectory() as folder,
        server(theirs, Path(folder) / "there", args.stored) as there,
        server(ours, Path(folder) / "here", args.stored) as here,
    ):
        seed = args.seed * 1_000_000
        scenarios = [(t, s) for t, s in recorded() if s and sum(map(pause_ms, s)) < 300]
        while time.monotonic() < end:
            seed += 1
            varier = Varier(seed, args.odd)
            if varier.rng.random() < args.walks:
                title, steps = "walk", varier.walk()
            else:
                title, steps = varier.rng.choice(scenarios)
                steps = varier.conversation(steps)
            n += 1
            found = play(steps, there, here)
            if found is None:
                continue
            number, place, a, b = found
            command = name_of(steps[number])
            if command in UNSTABLE:
                continue
            if meant(command, place, a, b):
                n_meant += 1
                continue
            key = (command, place, kind(a), kind(b))
            if key in seen:
                continue
            seen.add(key)

            def same(
                shorter: list[dict[str, Any]],
                wanted: tuple[Any, ...] = (command, place, kind(a), kind(b)),
                there: int = there,
                here: int = here,
            ) -> bool:
                again = play(copy.deepcopy(shorter), there, here)
                return (
                    again is not None
                    and again[0] == len(shorter) - 1
                    and wanted == (name_of(shorter[again[0]]), again[1], kind(again[2]), kind(again[3]))
                )

            steps = steps[: number + 1]
            steady = same(steps)
            if steady:
                steps = shorten(steps, same)
            print(f"\n{title} seed {seed}{'' if steady else ' (not steady)'}: {command} at {place}")
            print(f"   there {shown(a)[:300]}\n   here  {shown(b)[:300]}")
            for step in steps:
                print("   ", json.dumps({k: v for k, v in step.items() if k != "expect"})[:300])
            sys.stdout.flush()
    for key, times in sorted(N_CHECKED.items()):
        print("   checked", times, *key, sep=" | ")
    print(f"{n} conversations, {n_meant} differ as meant, {len(seen)} otherwise")
    sys.exit(1 if seen else 0)


if __name__ == "__main__":
    main()
