"""Clients that write down what they were told: producers and workers of a crash campaign.

They speak the protocol themselves, so that a log entry stands for exactly one reply.
Every entry carries the machine's monotonic clock, which outlives the processes. An
entry "try" is written before a request goes out, its answer after the reply came;
what lies between may have been applied or not.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgpack

QUEUE = "work"
LEASE_MS = 60_000
#: Jobs of one epoch of a producer are numbered from a multiple of this.
EPOCH = 1_000_000
MOST_IN_BATCH = 40

Entry = list[Any]
Request = dict[str, Any]


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
        self._fd = fd
        self._lock = threading.Lock()

    def add(self, what: str, *values: Any) -> None:
        with self._lock:
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
    ) -> None:
        self.log = log
        self.failed = threading.Event()
        self._connect = connect
        self._talking = 0
        self._calm = threading.Condition()
        self._quiet = threading.Event()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._produce, args=(p, first, random.Random(seed * 31 + p)), daemon=True)
            for p in range(producers)
        ] + [
            threading.Thread(target=self._work, args=(random.Random(seed * 37 + w), w == 0), daemon=True)
            for w in range(workers)
        ]

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

    def _produce(self, producer: int, first: int, rng: random.Random) -> None:
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

    # --- workers ---------------------------------------------------------------------------

    def _work(self, rng: random.Random, batches: bool) -> None:
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
                        held = pull(self.log, caller, rng.randint(2, 8) if batches else 0)
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


def add(log: Log, caller: Caller, producer: int, n: int, rng: random.Random) -> None:
    """One request, with one job or some."""
    kind = rng.choices(["plain", "bulk", "durable", "custom"], [40, 15, 25, 20])[0]
    count = rng.randint(2, MOST_IN_BATCH) if kind == "bulk" else 1
    durable = kind == "durable" or (kind == "custom" and rng.random() < 0.3)
    jobs = [_job(producer, n + i, rng) for i in range(count)]
    custom = f"c{producer}-{rng.randrange(12)}" if kind == "custom" else None
    request: Request = {"cmd": "PUSH", "queue": QUEUE, **jobs[0]}
    if kind == "bulk":
        request = {"cmd": "PUSHB", "queue": QUEUE, "jobs": jobs}
    if durable:
        request["durable"] = True
    if custom:
        request["jobId"] = custom
    log.add("add", producer, n, count, durable, custom)
    reply = caller.call(request)
    if not reply["ok"]:
        raise AssertionError(f"{kind} was refused: {reply}")
    log.add("added", producer)


def _job(producer: int, n: int, rng: random.Random) -> Request:
    size = rng.choice([0, 10, 100, 2000]) if rng.random() < 0.97 else rng.randrange(200_000)
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


def pull(log: Log, caller: Caller, count: int, wait_ms: int = 20) -> list[tuple[Request, str]]:
    request = {"cmd": "PULL", "queue": QUEUE, "owner": "w", "lockTtl": LEASE_MS, "timeout": wait_ms}
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
        log.add("pulled", data["p"], data["n"], job["id"], token, *counts, "rm" in data)
    return jobs


def renew(log: Log, caller: Caller, job: Request, token: str) -> None:
    reply = caller.call({"cmd": "JobHeartbeat", "id": job["id"], "token": token})
    log.add("renewed", job["data"]["p"], job["data"]["n"], token, reply["ok"])


def finish(log: Log, caller: Caller, job: Request, token: str) -> None:
    data = job["data"]
    how = "fail" if job["attempts"] < data.get("fails", 0) else "ack"
    request: Request = {"id": job["id"], "token": token}
    if how == "fail":
        request |= {"cmd": "FAIL", "error": "as planned"}
    else:
        request |= {"cmd": "ACK", "result": result_of(data["p"], data["n"])}
    log.add("end", data["p"], data["n"], token, how)
    reply = caller.call(request)
    log.add("ended", data["p"], data["n"], token, how, reply["ok"], reply.get("error", ""))


def finish_batch(log: Log, caller: Caller, held: list[tuple[Request, str]]) -> None:
    """Acknowledge in one frame what does not fail; the others are left for single ones."""
    good = [(job, token) for job, token in held if job["attempts"] >= job["data"].get("fails", 0)]
    bad = [entry for entry in held if entry not in good]
    if good:
        keys = [(job["data"]["p"], job["data"]["n"], token) for job, token in good]
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


def result_of(producer: int, n: int) -> Any:
    """What the job returns; now and then larger than a page."""
    return {"of": [producer, n], "y": "r" * (n % 7 if n % 50 else 9000)}
