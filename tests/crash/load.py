"""Clients that write down what they were told: producers and workers of a crash campaign.

They speak the protocol themselves, so that a log entry stands for exactly one reply.
Every entry carries the machine's monotonic clock, which outlives the processes. An
entry "try" is written before a request goes out, its answer after the reply came;
what lies between may have been applied or not.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Protocol

import msgpack

QUEUE = "work"
#: Where the jobs of schedules go. What a schedule is called says which producer made it, and when.
TICKS = "ticks"
FIRST_SCHEDULE = 1_000_000_000
#: Longer than a campaign: an answer that never came must not end as a lease that ran out.
LEASE_MS = 36_000_000
#: Jobs of one epoch of a producer are numbered from a multiple of this.
EPOCH = 1_000_000
MOST_IN_BATCH = 40

Entry = list[Any]
Request = dict[str, Any]


Key = tuple[int, Any]


def key_of(data: Request, job_id: str) -> Key:
    """What a job is called here: its producer and number, or its schedule and id."""
    schedule = data["p"] >= FIRST_SCHEDULE
    return data["p"], job_id if schedule else data["n"]


class Caller(Protocol):
    """One conversation with an engine. Raises OSError when it ended."""

    def call(self, request: Request) -> dict[str, Any]: ...

    def close(self) -> None: ...


def framed(request: Request) -> bytes:
    body: bytes = msgpack.packb(request)
    return len(body).to_bytes(4, "big") + body


class TcpCaller:
    """Over a socket."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""

    def call(self, request: Request) -> dict[str, Any]:
        self._sock.sendall(framed(request))
        while len(self._buffer) < 4 or len(self._buffer) < 4 + int.from_bytes(self._buffer[:4], "big"):
            data = self._sock.recv(1 << 18)
            if not data:
                raise ConnectionResetError
            self._buffer += data
        end = 4 + int.from_bytes(self._buffer[:4], "big")
        frame, self._buffer = self._buffer[4:end], self._buffer[end:]
        reply: dict[str, Any] = msgpack.unpackb(frame)
        return reply

    def close(self) -> None:
        self._sock.close()


class LocalCaller:
    """Inside this process, over a session of an embedded engine."""

    def __init__(self, engine: Any) -> None:
        self._output = threading.Event()
        self._session = engine.session(self._output.set)

    def call(self, request: Request) -> dict[str, Any]:
        self._session.feed(framed(request))
        while True:
            self._output.clear()
            if data := self._session.take():
                reply: dict[str, Any] = msgpack.unpackb(data[4:])
                return reply
            if not self._output.wait(30):
                raise TimeoutError(request["cmd"])

    def close(self) -> None:
        self._session.close()


class Log:
    """Entries in order; in a file as well when a process that is to be killed writes them."""

    def __init__(self, fd: int = -1) -> None:
        self.entries: list[Entry] = []
        self.count = 0
        self._fd = fd
        self._lock = threading.Lock()

    def add(self, what: str, *values: Any) -> None:
        with self._lock:
            self.count += 1
            entry = [what, time.monotonic_ns(), *values]
            if self._fd >= 0:
                os.write(self._fd, framed({"e": entry}))
            else:
                self.entries.append(entry)


def entries_of(raw: bytes) -> list[Entry]:
    """The whole entries of a log file."""
    entries, at = [], 0
    while len(raw) - at >= 4 and len(raw) - at - 4 >= (n := int.from_bytes(raw[at : at + 4], "big")):
        entries.append(msgpack.unpackb(raw[at + 4 : at + 4 + n])["e"])
        at += 4 + n
    return entries


class Load:
    """Producers and workers against whatever ``connect`` reaches.

    ``connect(producer)`` waits until an engine is there and raises OSError when none will
    be. After :meth:`quiet` nothing is added any more; after :meth:`stop` nothing is taken.
    """

    def __init__(
        self,
        log: Log,
        connect: Callable[[bool], Caller],
        seed: int,
        first: int,
        *,
        producers: int,
        workers: int,
        script: Callable[[Log, Caller, Random, int], Iterator[None]] | None = None,
    ) -> None:
        self.log = log
        self.failed = threading.Event()
        self._connect = connect
        self._talking = 0
        self._calm = threading.Condition()
        self._quiet = threading.Event()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._produce, args=(p, first, Random(seed * 31 + p)), daemon=True)
            for p in range(producers)
        ] + [
            threading.Thread(target=self._work, args=(Random(seed * 37 + w), w == 0), daemon=True)
            for w in range(workers)
        ]
        scheduler = Random(seed * 41)
        self._threads.append(threading.Thread(target=self._plan, args=(first, scheduler), daemon=True))
        if script is not None:
            self._threads.append(
                threading.Thread(target=self._recite, args=(script, first, Random(seed * 43)), daemon=True)
            )

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def quiet(self) -> None:
        self._quiet.set()

    def stop(self) -> None:
        self._quiet.set()
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def settle(self) -> None:
        """Wait until nobody is between a request and the entry about its reply."""
        with self._calm:
            assert self._calm.wait_for(lambda: not self._talking, 60)

    @contextlib.contextmanager
    def _conversation(self) -> Iterator[None]:
        with self._calm:
            self._talking += 1
        try:
            yield
        finally:
            with self._calm:
                self._talking -= 1
                self._calm.notify_all()

    # --- producers -------------------------------------------------------------------------

    def _produce(self, producer: int, first: int, rng: Random) -> None:
        n = first
        caller: Caller | None = None
        while not self._quiet.is_set():
            try:
                caller = caller or self._connect(True)
                # A number is never tried twice: it may be there although no reply came.
                n += MOST_IN_BATCH
                with self._conversation():
                    add(self.log, caller, producer, n, rng)
            except OSError:
                caller = _dropped(caller)
            except BaseException:
                self.failed.set()
                raise
            self._quiet.wait(rng.random() * 0.004)
        if caller is not None:
            caller.close()

    # --- schedules and scripts -------------------------------------------------------------

    def _plan(self, first: int, rng: Random) -> None:
        """Make schedules that end by themselves, and delete some earlier."""
        n = FIRST_SCHEDULE + first
        made: list[int] = []
        caller: Caller | None = None
        while not self._quiet.is_set():
            try:
                caller = caller or self._connect(True)
                with self._conversation():
                    if made and rng.random() < 0.4:
                        unschedule(self.log, caller, made.pop(rng.randrange(len(made))))
                    else:
                        n += 1
                        schedule(self.log, caller, n, rng)
                        made.append(n)
            except OSError:
                caller = _dropped(caller)
            except BaseException:
                self.failed.set()
                raise
            self._quiet.wait(rng.random() * 0.05)
        if caller is not None:
            caller.close()

    def _recite(
        self, script: Callable[[Log, Caller, Random, int], Iterator[None]], first: int, rng: Random
    ) -> None:
        """Go through a script on one connection, and begin the next when that breaks."""
        while not self._quiet.is_set():
            first += 1
            caller: Caller | None = None
            try:
                caller = self._connect(True)
                steps = script(self.log, caller, rng, first)
                while not self._quiet.is_set():
                    with self._conversation():
                        next(steps)
                    self._quiet.wait(rng.random() * 0.003)
            except OSError:
                pass
            except BaseException:
                self.failed.set()
                raise
            finally:
                if caller is not None:
                    caller.close()

    # --- workers ---------------------------------------------------------------------------

    def _work(self, rng: Random, batches: bool) -> None:
        caller: Caller | None = None
        held: list[tuple[Request, str]] = []
        while held or not self._stop.is_set():
            try:
                if caller is None:
                    caller = self._connect(False)
                    with self._conversation():
                        for job, token in held:
                            renew(self.log, caller, job, token)
                if not held:
                    with self._conversation():
                        queue = TICKS if rng.random() < 0.25 else QUEUE
                        held = pull(self.log, caller, rng.randint(2, 8) if batches else 0, queue=queue)
                    if held:
                        # Now and then long enough to live through a crash of the server.
                        self._stop.wait(rng.random() * (0.3 if rng.random() < 0.1 else 0.004))
                with self._conversation():
                    if len(held) > 1:
                        finish_batch(self.log, caller, held)
                    while held:
                        finish(self.log, caller, *held[-1])
                        held.pop()
            except OSError:
                caller = _dropped(caller)
                if self._stop.is_set():
                    break
            except BaseException:
                self.failed.set()
                raise
        if caller is not None:
            caller.close()


def _dropped(caller: Caller | None) -> None:
    """Close a connection that broke, if there was one."""
    if caller is not None:
        caller.close()


def add(log: Log, caller: Caller, producer: int, n: int, rng: Random) -> None:
    """One request, with one job or some."""
    kinds = {"plain": 34, "bulk": 14, "durable": 20, "custom": 14, "flow": 8, "unique": 10}
    kind = rng.choices([*kinds], [*kinds.values()])[0]
    count = {"bulk": rng.randint(2, MOST_IN_BATCH), "flow": rng.randint(2, 4)}.get(kind, 1)
    durable = kind in ("durable", "flow") or (kind in ("custom", "unique") and rng.random() < 0.3)
    jobs = [_job(producer, n + i, rng) for i in range(count)]
    custom = f"c{producer}-{rng.randrange(12)}" if kind == "custom" else None
    request: Request = {"cmd": "PUSH", "queue": QUEUE, **jobs[0]}
    if kind == "bulk":
        request = {"cmd": "PUSHB", "queue": QUEUE, "jobs": jobs}
    elif kind == "flow":
        request = {"cmd": "PUSHF", "jobs": _flow(jobs, rng)}
    elif kind == "unique":
        # The newest, if it is taken, is told by the id of the answer.
        request |= {"jobId": own_id(producer, n), "uniqueKey": f"u{producer}-{rng.randrange(4)}"}
        request["data"]["u"] = request["uniqueKey"]
    if durable and kind != "flow":
        request["durable"] = True
    if custom:
        request["jobId"] = custom
    log.add("add", producer, n, count, durable, custom, kind == "unique")
    reply = caller.call(request)
    if not reply["ok"]:
        raise AssertionError(f"{kind} was refused: {reply}")
    log.add("added", producer, reply.get("id", ""))


def own_id(producer: int, n: int) -> str:
    """The id of a job with a unique key."""
    return f"u{producer}-n{n}"


def _flow(jobs: list[Request], rng: Random) -> list[Request]:
    """The first is the parent of the others. Only some take it along when they die."""
    ids = [f"f{job['data']['p']}-{job['data']['n']}" for job in jobs]
    for job in jobs:
        for name in ("removeOnComplete", "delay"):
            job.pop(name, None)
        job["data"].pop("rm", None)
    jobs[0] |= {"childrenIds": ids[1:], "dependsOn": ids[1:]}
    jobs[0]["data"] |= {"kids": len(ids) - 1, "__childrenIds": ids[1:]}
    for job in jobs[1:]:
        job["parentId"] = ids[0]
        job["data"] |= {"__parentId": ids[0], "__parentQueue": QUEUE}
        if rng.random() < 0.5:
            job["failParentOnFailure"] = job["data"]["takes"] = True
    return [{"id": id_, "queue": QUEUE, "input": job} for id_, job in zip(ids, jobs, strict=True)]


def schedule(log: Log, caller: Caller, n: int, rng: Random) -> None:
    request: Request = {"cmd": "Cron", "name": f"s{n}", "queue": TICKS, "data": {"p": n, "n": 0}}
    request |= {"repeatEvery": rng.randint(3, 60), "maxLimit": rng.randint(1, 9)}
    request["preventOverlap"] = rng.random() < 0.5
    request["immediately"] = rng.random() < 0.3
    log.add("cron", n, request["maxLimit"], request["preventOverlap"])
    reply = caller.call(request)
    assert reply["ok"], reply
    log.add("croned", n)


def unschedule(log: Log, caller: Caller, n: int) -> None:
    log.add("uncron", n)
    reply = caller.call({"cmd": "CronDelete", "name": f"s{n}"})
    # It may have come to its end.
    assert reply["ok"] or reply["error"] == "Cron job not found", reply
    log.add("uncroned", n, reply["ok"])


def _job(producer: int, n: int, rng: Random) -> Request:
    size = rng.choice([0, 10, 100, 2000]) if rng.random() < 0.99 else rng.randrange(200_000)
    data: Request = {"p": producer, "n": n, "x": rng.randbytes(size)}
    job: Request = {"name": rng.choice(["mail", "image", "n" * 50]), "data": data}
    if rng.random() < 0.3:
        data["fails"] = rng.choice([1, 1, 2, 9])
    if rng.random() < 0.1:
        job["removeOnComplete"] = data["rm"] = True
    if rng.random() < 0.4:
        job["priority"] = rng.choice([-5, 1, 7, 7, 1_000_000])
    if rng.random() < 0.2:
        job["delay"] = rng.randrange(1, 60)
    if rng.random() < 0.1:
        job["lifo"] = True
    job["backoff"] = rng.randrange(1, 15)
    job["maxAttempts"] = rng.choice([1, 2, 3, 3, 5])
    return job


def pull(
    log: Log, caller: Caller, count: int, wait_ms: int = 20, queue: str = QUEUE
) -> list[tuple[Request, str]]:
    request = {"cmd": "PULL", "queue": queue, "owner": "w", "lockTtl": LEASE_MS, "timeout": wait_ms}
    if count:
        request |= {"cmd": "PULLB", "count": count}
    reply = caller.call(request)
    assert reply["ok"], reply
    if count:
        jobs = list(zip(reply["jobs"], reply["tokens"], strict=True))
    else:
        jobs = [(reply["job"], reply["token"])] if reply["job"] else []
    for job, token in jobs:
        data, counts = job["data"], (job["attempts"], job["maxAttempts"])
        key = key_of(data, job["id"])
        log.add("pulled", *key, job["id"], token, *counts, "rm" in data, data.get("kids", 0))
    return jobs


def renew(log: Log, caller: Caller, job: Request, token: str) -> None:
    reply = caller.call({"cmd": "JobHeartbeat", "id": job["id"], "token": token})
    log.add("renewed", *key_of(job["data"], job["id"]), token, reply["ok"])


def finish(log: Log, caller: Caller, job: Request, token: str) -> None:
    data, key = job["data"], key_of(job["data"], job["id"])
    how = "fail" if job["attempts"] < data.get("fails", 0) else "ack"
    request: Request = {"id": job["id"], "token": token}
    if how == "fail":
        request |= {"cmd": "FAIL", "error": "as planned"}
    else:
        request |= {"cmd": "ACK", "result": result_of(*key)}
    log.add("end", *key, token, how)
    reply = caller.call(request)
    log.add("ended", *key, token, how, reply["ok"], reply.get("error", ""))


def finish_batch(log: Log, caller: Caller, held: list[tuple[Request, str]]) -> None:
    """Acknowledge in one frame what does not fail; the others are left for single ones."""
    good = [(job, token) for job, token in held if job["attempts"] >= job["data"].get("fails", 0)]
    bad = [entry for entry in held if entry not in good]
    if good:
        keys = [(*key_of(job["data"], job["id"]), token) for job, token in good]
        for key in keys:
            log.add("end", *key, "ack")
        reply = caller.call(
            {
                "cmd": "ACKB",
                "ids": [job["id"] for job, _ in good],
                "tokens": [token for _, token in good],
                "results": [result_of(p, n) for p, n, _ in keys],
            }
        )
        refused = {entry["index"]: entry["reason"] for entry in reply.get("data", {}).get("refused", ())}
        for i, key in enumerate(keys):
            why = refused.get(i, "") if reply["ok"] else reply["error"]
            log.add("ended", *key, "ack", not why, why)
    held[:] = bad


def result_of(producer: int, n: Any) -> Any:
    """What the job returns; now and then larger than a page."""
    size = len(n) if isinstance(n, str) else n % 7 if n % 50 else 9000
    return {"of": [producer, n], "y": "r" * size}
