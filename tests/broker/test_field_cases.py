"""Cases from the field about order, pauses, counts, pages and far-away times, over the protocol."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgpack
import pytest
from broker_talk import Talk, settle

from qcore.broker import open_broker
from qcore.broker.opening import close_broker, commit, flush
from qcore.clock import ManualClock
from qcore.limits import QUEUE_LOOK_MS
from qcore.store.memory import MemoryStore

Mode = Literal["embedded", "server"]
MODES: tuple[Mode, ...] = ("embedded", "server")
MINUTE = 60_000
DAY = 86_400_000
STATES = ("waiting", "prioritized", "delayed", "active", "completed", "failed", "paused", "waiting-children")


class Life:
    """A broker, its clock, and the store from which it starts again."""

    def __init__(self, clock: ManualClock, mode: Mode = "server", **options: Any) -> None:
        self.clock = clock
        self.options = options
        self.mode = mode
        self.store = MemoryStore()
        self.n = 0
        self.start()

    def start(self) -> None:
        self.n += 1
        self.broker = open_broker(
            store=self.store, mode=self.mode, clock=self.clock, seed=bytes([self.n] * 16), **self.options
        )
        self.talk = Talk(self.broker)

    def restart(self, *, crash: bool) -> None:
        if crash:
            flush(self.broker)
        else:
            close_broker(self.broker)
        self.store = self.store.reopened()
        self.start()

    def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        self.turn()

    def turn(self) -> None:
        while True:
            seconds, cut = self.broker.pump()
            if cut is not None:
                commit(self.broker, cut)
            elif seconds != 0:
                return

    def add(self, job_id: str, queue: str = "q", **options: Any) -> str:
        job = {"name": "n", "data": job_id, "backoff": 0, **options}
        return str(self.talk.good("PUSH", queue=queue, jobId=job_id, **job)["id"])

    def take(self, job_id: str, queue: str = "q", **options: Any) -> str:
        got = self.talk.good("PULL", queue=queue, owner="w", **options)
        assert got["job"]["id"] == job_id
        return str(got["token"])

    def line(self, queue: str = "q") -> list[str]:
        """All that can start now, in its order."""
        return [job["id"] for job in self.talk.good("PULLB", queue=queue, count=1000)["jobs"]]


# --- C007 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crash", [False, True])
def test_c007_jobs_of_one_millisecond_keep_their_order_over_a_restart(
    clock: ManualClock, crash: bool
) -> None:
    life = Life(clock)
    ids = [life.add(name) for name in ("z", "a", "10", "9", "m", "B", "b", "0", "zz", "k")]
    life.restart(crash=crash)
    life.add("urgent", priority=0.5)
    assert life.line() == ["urgent", *ids]


# --- C008 ------------------------------------------------------------------------------------------

FIVE: dict[str, Any] = {"priority": 5}


def _promoted(life: Life) -> Callable[[], None]:
    life.add("x", delay=DAY, **FIVE)
    return lambda: life.talk.good("Promote", id="x")


def _due(life: Life) -> Callable[[], None]:
    life.add("x", delay=15, **FIVE)
    return lambda: life.advance(5)


def _failed(life: Life) -> Callable[[], None]:
    life.add("x", **FIVE)
    token = life.take("x")
    return lambda: life.talk.good("FAIL", id="x", token=token, error="once more")


def _failed_with_a_wait(life: Life) -> Callable[[], None]:
    life.add("x", maxAttempts=2, **FIVE | {"backoff": {"type": "fixed", "delay": 15, "jitter": 0}})
    life.talk.good("FAIL", id="x", token=life.take("x"), error="once more")
    return lambda: life.advance(5)


def _stalled(life: Life) -> Callable[[], None]:
    life.add("x", **FIVE)
    life.take("x", lockTtl=15)
    return lambda: life.advance(5)


def _given_back(life: Life) -> Callable[[], None]:
    life.add("x", **FIVE)
    other = Talk(life.broker)
    assert other.good("PULL", queue="q", owner="w")["job"]["id"] == "x"
    return lambda: life.broker.dismiss(other.session)


def _moved(life: Life) -> Callable[[], None]:
    life.add("x", **FIVE)
    token = life.take("x")
    return lambda: life.talk.good("MoveToWait", id="x", token=token)


def _dead(life: Life) -> Callable[[], None]:
    life.add("x", maxAttempts=1, **FIVE)
    life.talk.good("FAIL", id="x", token=life.take("x"), error="no")
    return lambda: life.talk.good("RetryDlq", queue="q", jobId="x")


def _completed(life: Life) -> Callable[[], None]:
    life.add("x", **FIVE)
    life.talk.good("ACK", id="x", token=life.take("x"))
    return lambda: life.talk.good("RetryCompleted", queue="q", id="x")


def _parent(life: Life) -> Callable[[], None]:
    life.add("child", queue="kids")
    life.add("x", dependsOn=["child"], childrenIds=["child"], **FIVE)
    token = life.take("child", queue="kids")
    return lambda: life.talk.good("ACK", id="child", token=token)


def _resumed(life: Life) -> Callable[[], None]:
    life.talk.good("Pause", queue="q")
    life.add("x", **FIVE)
    return lambda: life.talk.good("Resume", queue="q")


WAYS_IN = {
    "promoted": _promoted,
    "delay over": _due,
    "failed": _failed,
    "wait over": _failed_with_a_wait,
    "lease over": _stalled,
    "connection lost": _given_back,
    "moved to wait": _moved,
    "dead letter": _dead,
    "run again": _completed,
    "child done": _parent,
    "resumed": _resumed,
}


@pytest.mark.parametrize("way", WAYS_IN)
def test_c008_however_a_job_becomes_ready_nobody_who_comes_later_is_before_it(
    clock: ManualClock, way: str
) -> None:
    life = Life(clock)
    become_ready = WAYS_IN[way](life)
    life.advance(10)
    ahead = [life.add(f"ahead {n}", **FIVE) for n in range(10)]
    become_ready()
    assert life.talk.good("GetState", id="x")["state"] == "prioritized"
    life.advance(1)
    later = [life.add(f"later {n}", **FIVE) for n in range(10)]
    life.add("low", priority=4)
    line = life.line()
    assert line.index("x") <= len(ahead)
    assert [job_id for job_id in line if job_id != "x"] == [*ahead, *later, "low"]


# --- C009 ------------------------------------------------------------------------------------------


def test_c009_jobs_of_the_far_future_cost_no_turns(clock: ManualClock) -> None:
    life = Life(clock)
    life.talk.good("PUSHB", queue="q", jobs=[{"delay": DAY * (30 + n)} for n in range(1000)])
    flush(life.broker)
    for _ in range(3):  # but one every five minutes, to look for queues that nobody uses
        assert life.broker.pump() == (pytest.approx(QUEUE_LOOK_MS / 1000), None)
        clock.advance(QUEUE_LOOK_MS)
    clock.advance(30 * DAY - 1 - 3 * QUEUE_LOOK_MS)
    assert life.broker.pump() == (pytest.approx(0.001), None)
    assert life.talk.good("GetJobCounts", queue="q")["counts"]["delayed"] == 1000
    clock.advance(1)
    life.turn()
    assert life.talk.good("GetJobCounts", queue="q")["counts"]["waiting"] == 1


# --- C013 ------------------------------------------------------------------------------------------


def test_c013_a_job_out_of_attempts_is_told_and_buried_once(clock: ManualClock) -> None:
    life = Life(clock)
    life.add("x", maxAttempts=3)
    listener = Talk(life.broker)
    listener.good("SubscribeEvents", queue="q", eventTypes=["failed"])
    for _ in range(3):
        life.talk.good("FAIL", id="x", token=life.take("x"), error="no")
        life.turn()
    told = [message["event"]["terminal"] for message in listener.replies()]
    life.restart(crash=True)
    assert told == [False, False, True]
    assert [entry["job"]["id"] for entry in life.talk.good("Dlq", queue="q")["entries"]] == ["x"]
    assert life.line() == []


# --- C018 ------------------------------------------------------------------------------------------

NAMES = json.loads((Path(__file__).parents[1] / "data" / "names.json").read_text("utf-8"))["queues"]


def test_c018_an_allowed_name_works_in_every_place(clock: ManualClock) -> None:
    """All of them in one broker: what is done under one name shows under no other."""
    life = Life(clock)
    names = [row["value"] for row in NAMES]
    names = [name for name in names if life.talk.ask("PUSH", queue=name, jobId=f"first {name}")["ok"]]
    assert {row["value"] for row in NAMES if row["expect"] == "ok"} <= set(names)
    listeners: dict[str, Talk] = {}

    def listen(crash: bool | None) -> None:
        if crash is not None:
            life.restart(crash=crash)
        for name in names:
            listeners[name] = Talk(life.broker)
            listeners[name].good("SubscribeEvents", queue=name)

    def check(name: str, *ids: str, **counted: int) -> None:
        """The jobs of one queue; all events since the last look were of it."""
        listed = life.talk.good("GetJobs", queue=name)["jobs"]
        assert sorted(job["id"] for job in listed) == sorted(ids)
        counts = life.talk.good("GetJobCounts", queue=name)["counts"]
        assert {state: n for state, n in counts.items() if n} == counted
        for other, ear in listeners.items():
            heard = {message["event"]["queue"] for message in ear.replies()}
            assert heard == ({name} if other == name else set())

    listen(None)
    for name in names:
        life.talk.good("ACK", id=f"first {name}", token=life.take(f"first {name}", queue=name))
        life.add(f"kid/{name}", queue=name)
        life.add(f"top:{name}", queue=name, dependsOn=[f"kid/{name}"], childrenIds=[f"kid/{name}"])
        life.talk.good("Pause", queue=name)
        ids = (f"first {name}", f"kid/{name}", f"top:{name}")
        check(name, *ids, completed=1, paused=1, **{"waiting-children": 1})
        life.talk.good("Cron", name=f"s {name}", queue=name, repeatEvery=DAY, maxLimit=1, data=name)
    listen(crash=True)
    crons = {cron["name"]: cron["queue"] for cron in life.talk.good("CronList")["crons"]}
    assert crons == {f"s {name}": name for name in names}
    for name in names:
        life.talk.good("Resume", queue=name)
        life.talk.good("ACK", id=f"kid/{name}", token=life.take(f"kid/{name}", queue=name), result=name)
        values = life.talk.good("GetChildrenValues", id=f"top:{name}")["data"]["values"]
        assert list(values.values()) == [name]
        life.talk.good("Cancel", id=f"top:{name}")
        check(name, f"first {name}", f"kid/{name}", completed=2)
    life.advance(DAY)
    listen(crash=False)
    assert sorted(life.talk.good("ListQueues")["queues"]) == sorted(names)
    for name in names:
        (tick,) = life.line(name)
        assert life.talk.good("GetJob", id=tick)["job"]["data"] == name
        life.talk.good("Obliterate", queue=name)
        check(name)


# --- C019 ------------------------------------------------------------------------------------------

#: The case asks for 5,000, which take minutes: ``C019_STEPS=5000 pytest -k c019 --timeout 1800``.
C019_STEPS = int(os.environ.get("C019_STEPS", "300"))


def _check_counts(life: Life, there: set[str], queues: tuple[str, ...]) -> None:
    """Counts, lists and the state of each job, by themselves and against what was added and removed."""
    found: set[str] = set()
    for queue in queues:
        counts = life.talk.good("GetJobCounts", queue=queue)["counts"]
        n = 0
        for state in STATES:
            jobs = life.talk.good("GetJobs", queue=queue, state=state, limit=1000)["jobs"]
            ids = [job["id"] for job in jobs]
            assert counts[state] == len(ids) == len(set(ids)), (queue, state)
            assert {job["state"] for job in jobs} <= {state}
            assert found.isdisjoint(ids), state
            found.update(ids)
            n += len(ids)
        assert sum(counts.values()) == n
        in_all = life.talk.good("GetJobs", queue=queue, limit=1000)["jobs"]
        assert len(in_all) == n
        for job in in_all:
            state = life.talk.good("GetState", id=job["id"])["state"]
            assert job["state"] == state == life.talk.good("GetJob", id=job["id"])["job"]["state"]
    assert found == there


@pytest.mark.parametrize("options", [{}, {"max_completed": 2}], ids=["in memory", "archived"])
@pytest.mark.parametrize("mode", MODES)
def test_c019_counts_lists_and_states_agree_at_every_step(
    clock: ManualClock, mode: Mode, options: dict[str, int]
) -> None:
    life = Life(clock, mode, **options)
    dice = random.Random(19)
    queues = ("q", "r")
    there: set[str] = set()
    held: dict[str, str] = {}
    numbers = iter(range(100_000))

    def add(**options: Any) -> None:
        queue = dice.choice(queues)
        choices: list[dict[str, Any]] = [{}, {"priority": dice.choice([-1, 2])}, {"delay": 30}]
        choices += [{"groupId": dice.choice("gh")}, {"lifo": True}, {"maxAttempts": 1}]
        there.add(life.add(f"j{next(numbers)}", queue, **dice.choice(choices), **options))

    def bulk() -> None:
        jobs = [{"customId": f"j{next(numbers)}", "priority": n % 2, "delay": 40 * (n % 3)} for n in range(4)]
        there.update(life.talk.good("PUSHB", queue=dice.choice(queues), jobs=jobs)["ids"])

    def flow() -> None:
        child, parent = f"j{next(numbers)}", f"j{next(numbers)}"
        queue = dice.choice(queues)
        above = {
            "name": "n",
            "dependsOn": [child],
            "childrenIds": [child],
            "data": {"__childrenIds": [child]},
        }
        below = {"name": "n", "parentId": parent, "data": {"__parentId": parent, "__parentQueue": queue}}
        tree = [
            {"id": parent, "queue": queue, "input": above},
            {"id": child, "queue": "q", "input": below},
        ]
        life.talk.good("PUSHF", jobs=tree)
        there.update((child, parent))

    def pull() -> None:
        got = life.talk.good("PULLB", queue=dice.choice(queues), count=3, owner="w", lockTtl=25)
        held.update(zip((job["id"] for job in got["jobs"]), got["tokens"], strict=True))

    def end(cmd: str, **fields: Any) -> None:
        if held:
            job_id, token = held.popitem()
            life.talk.ask(cmd, id=job_id, token=token, **fields)  # its lease may be over

    def some() -> str:
        return dice.choice(sorted(there)) if there else "none"

    def cancel() -> None:
        job_id = some()
        if life.talk.ask("Cancel", id=job_id)["ok"]:
            there.discard(job_id)

    def clean() -> None:
        state = dice.choice(["completed", "failed", "waiting", "delayed"])
        there.difference_update(life.talk.good("Clean", queue="q", grace=0, state=state, limit=2)["ids"])

    def forget() -> None:
        queue = dice.choice(queues)
        gone = [job["id"] for job in life.talk.good("GetJobs", queue=queue, limit=1000)["jobs"]]
        life.talk.good("Obliterate", queue=queue)
        there.difference_update(gone)

    steps: list[tuple[int, Callable[[], object]]] = [
        (12, add),
        (3, bulk),
        (3, flow),
        (14, pull),
        (8, lambda: end("ACK", result=1)),
        (5, lambda: end("FAIL", error="no")),
        (2, lambda: end("MoveToDelayed", delay=20)),
        (2, lambda: end("MoveToWait")),
        (4, lambda: life.talk.ask("Promote", id=some())),
        (2, lambda: life.talk.ask("ChangePriority", id=some(), priority=dice.choice([0, 3]))),
        (2, lambda: life.talk.good("Pause", queue=dice.choice(queues))),
        (3, lambda: life.talk.good("Resume", queue=dice.choice(queues))),
        (1, lambda: life.talk.good("PauseGroup", queue="q", groupId="g")),
        (1, lambda: life.talk.good("ResumeGroup", queue="q", groupId="g")),
        (2, lambda: life.talk.good("RetryDlq", queue=dice.choice(queues))),
        (1, lambda: life.talk.ask("RetryCompleted", queue="q")),
        (4, cancel),
        (3, clean),
        (0.3, forget),
        (12, lambda: life.advance(dice.choice([1, 10, 30]))),
        (1, lambda: life.restart(crash=dice.random() < 0.5)),
    ]  # type: ignore[list-item]
    for step in dice.choices([step for _, step in steps], [weight for weight, _ in steps], k=C019_STEPS):
        step()
        if options:
            life.turn()
        _check_counts(life, there, queues)


# --- C020 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asc", [True, False])
@pytest.mark.parametrize("size", [1, 9])
def test_c020_a_walk_beside_others_repeats_nothing(clock: ManualClock, size: int, asc: bool) -> None:
    """Jobs change their states and are removed between the pages."""
    life = Life(clock)
    dice = random.Random(size)
    for n in range(60):
        clock.advance(n % 2)
        life.add(f"{n:02}", delay=MINUTE if n % 5 == 0 else 0, priority=n % 3, maxAttempts=1)
    got = life.talk.good("PULLB", queue="q", count=20, owner="other")
    held = dict(zip((job["id"] for job in got["jobs"]), got["tokens"], strict=True))
    seen: list[str] = []
    offset = 0
    while True:
        jobs = life.talk.good("GetJobs", queue="q", offset=offset, limit=size, asc=asc)["jobs"]
        assert all(job is not None and job["id"] for job in jobs)
        seen += [job["id"] for job in jobs]
        if len(jobs) < size:
            break
        offset += size
        other = Talk(life.broker)
        for job_id in dice.sample(sorted(held), min(2, len(held))):
            cmd = dice.choice(["ACK", "FAIL", "MoveToDelayed", "MoveToWait"])
            fields = {"delay": 5} if cmd == "MoveToDelayed" else {}
            other.good(cmd, id=job_id, token=held.pop(job_id), **fields)
        other.ask("Cancel", id=f"{dice.randrange(60):02}")
        life.advance(1)
    assert len(seen) == len(set(seen)) > 10


# --- C022 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crash", [False, True])
def test_c022_a_pause_holds_schedules_and_parents_and_outlives_a_restart(
    clock: ManualClock, crash: bool
) -> None:
    life = Life(clock)
    life.talk.good("Pause", queue="q")
    life.add("kid", queue="kids")
    life.add("parent", dependsOn=["kid"], childrenIds=["kid"], priority=2)
    life.add("delayed", delay=20, priority=1)
    life.add("plain")
    life.talk.good("Cron", name="s", queue="q", repeatEvery=30, data="tick", maxLimit=1, priority=-1)
    life.talk.good("ACK", id="kid", token=life.take("kid", queue="kids"))
    life.restart(crash=crash)
    assert life.talk.good("IsPaused", queue="q")["paused"] is True
    life.add("late")
    life.talk.send({"cmd": "PULL", "queue": "q", "timeout": 10_000})
    for _ in range(50):
        life.advance(1)
    assert life.talk.replies() == []
    assert life.line() == []
    counts = life.talk.good("GetJobCounts", queue="q")["counts"]
    assert (counts["paused"], sum(counts.values())) == (5, 5)
    life.restart(crash=crash)
    assert life.talk.good("GetJobCounts", queue="q")["counts"] == counts
    life.talk.good("Resume", queue="q")
    *line, tick = life.line()
    assert line == ["parent", "delayed", "plain", "late"]
    assert life.talk.good("GetJob", id=tick)["job"]["data"] == "tick"


# --- C038 ------------------------------------------------------------------------------------------

PAYLOADS = json.loads((Path(__file__).parents[1] / "data" / "payloads.json").read_text("utf-8"))["items"]
SENT = {row["id"]: bytes.fromhex(row["msgpack_hex"]) for row in PAYLOADS if row["msgpack_hex"]}
SENT |= {
    "s1m": b"\xdb\x00\x10\x00\x00" + b"x" * 2**20,
    "b1m": b"\xc6\x00\x10\x00\x00" + b"\xff" * 2**20,
    "deep100": b"\x91" * 100 + b"\x90",
    "wide": b"\xdd\x00\x01\x86\xa0" + b"".join(b"\xce" + n.to_bytes(4, "big") for n in range(100_000)),
}


class Raw:
    """A peer that knows all types and compares bytes."""

    def __init__(self, life: Life) -> None:
        self.talk = Talk(life.broker)
        self.talk.good("Hello", protocolVersion=3, capabilities=["int64", "typed"])

    def send(self, cmd: str, fields: dict[str, Any], key: str, value: bytes) -> bytes:
        """One request whose field ``key`` has the bytes ``value``; the body of the reply."""
        packed = {k: v if isinstance(v, bytes) else msgpack.packb(v) for k, v in fields.items()}
        packed |= {"cmd": msgpack.packb(cmd), key: value}
        body = bytes([0x80 | len(packed)])
        body += b"".join(msgpack.packb(k) + v for k, v in packed.items())
        self.talk.session.feed(len(body).to_bytes(4, "big") + body)
        settle(self.talk.broker, self.talk.session)
        return bytes(self.talk.session.take()[4:])


@pytest.mark.parametrize("mode", MODES)
def test_c038_payloads_keep_their_bytes_by_every_way(clock: ManualClock, mode: Mode) -> None:
    """Data of single adds, of batches, of flows and of schedules, and results; over restarts."""
    life = Life(clock, mode)
    raw = Raw(life)
    ids: dict[str, bytes] = {}
    for key, value in SENT.items():
        job = b"\x82\xa8customId" + msgpack.packb(f"batch/{key}") + b"\xa4data" + value
        data = b"\xa4data\x81\xa1v" + value  # that of a flow is a map
        flow = b"\x83\xa2id" + msgpack.packb(f"flow/{key}") + b"\xa5queue\xa1q\xa5input\x81" + data
        schedule = {"name": f"s/{key}", "queue": "q", "repeatEvery": DAY, "immediately": True}
        for cmd, fields, field, sent in (
            ("PUSH", {"queue": "q", "jobId": f"one/{key}"}, "data", value),
            ("PUSHB", {"queue": "q"}, "jobs", b"\x91" + job),
            ("PUSHF", {}, "jobs", b"\x91" + flow),
            ("Cron", schedule, "data", value),
        ):
            assert b"\xa2ok\xc3" in raw.send(cmd, fields, field, sent), (cmd, key)
        ids |= {f"one/{key}": value, f"batch/{key}": value, f"flow/{key}": b"\x81\xa1v" + value}
        life.turn()
        known = {job["id"] for job in life.talk.good("GetJobs", queue="q", limit=1000)["jobs"]}
        (run,) = known - set(ids)
        ids[run] = value
    for crash in (True, False):
        life.restart(crash=crash)
        raw = Raw(life)
        for job_id, value in ids.items():
            assert b"\xa4data" + value in raw.send("GetJob", {}, "id", msgpack.packb(job_id)), job_id
    for _ in ids:
        got = raw.send("PULL", {"owner": "w"}, "queue", b"\xa1q")
        reply = msgpack.unpackb(got, strict_map_key=False)
        value = ids[reply["job"]["id"]]
        assert b"\xa4data" + value in got
        fields = {"id": reply["job"]["id"], "token": reply["token"]}
        assert b"\xa2ok\xc3" in raw.send("ACK", fields, "result", value)
    life.restart(crash=True)
    raw = Raw(life)
    for job_id, value in ids.items():
        assert b"\xa6result" + value in raw.send("GetResult", {}, "id", msgpack.packb(job_id)), job_id
