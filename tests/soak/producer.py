"""The producer of a mixed soak: adds of every kind, each counted when it was confirmed."""

from __future__ import annotations

import random
import threading
import time
from array import array
from typing import Any

from tests.soak.line import Line, frame

MIXED, FLOWS, DEAD, CLIENT, TICKS = "mixed", "flows", "dead", "client", "ticks"

#: How often each kind is added; a batch has ten jobs, a flow four.
WEIGHTS = {
    "plain": 24,
    "bulk": 5,
    "durable": 8,
    "priority": 10,
    "delayed": 8,
    "retried": 6,
    "client": 8,
    "unique": 3,
    "custom": 1,
    "dead": 1,
    "flow": 1,
}
KINDS = list(WEIGHTS)
CHILDREN = 3
BULK = 10
UNIQUE_KEYS = 10
DEAD_ATTEMPTS = 2
TURN_S = 0.05


class Producer(threading.Thread):
    """Adds about ``rate`` jobs a second from its own connection until stopped.

    ``kinds[n]`` is the kind of job ``n``; a number that was dropped as a duplicate has -1.
    ``flows`` holds the numbers of a parent and its children, one after the other.
    """

    def __init__(self, port: int, rate: float, seed: int) -> None:
        super().__init__(daemon=True)
        self.kinds = array("b")
        self.flows = array("q")
        self.confirmed = 0
        self.duplicates = 0
        self.late_s = 0.0
        self.failure: BaseException | None = None
        self.hold = threading.Event()
        self.rate = rate
        self._rng = random.Random(seed)
        self._port = port
        self._ended = threading.Event()
        self._last_unique: dict[str, str] = {}

    def stop(self) -> None:
        self._ended.set()
        self.join()
        if self.failure is not None:
            raise self.failure

    def run(self) -> None:
        try:
            line = Line(self._port)
            due = time.monotonic()
            while not self._ended.is_set():
                if self.hold.is_set():
                    due = time.monotonic()
                else:
                    self._turn(line, round(self.rate * TURN_S))
                due += TURN_S
                left = due - time.monotonic()
                if left < -1.0:  # the machine is slower than the rate: no burst afterwards
                    self.late_s -= left
                    due = time.monotonic()
                self._ended.wait(max(0.0, left))
            line.close()
        except BaseException as failure:
            self.failure = failure

    def _turn(self, line: Line, jobs: int) -> None:
        """Some requests in one segment, then their replies."""
        frames: list[bytes] = []
        expected: list[tuple[list[int], str | None]] = []
        n = 0
        while n < jobs:
            kind = self._rng.choices(KINDS, WEIGHTS.values())[0]
            request, numbers, unique = self._request(kind)
            frames.append(frame(**request, reqId=str(len(expected))))
            expected.append((numbers, unique))
            n += len(numbers)
        line.send(*frames)
        for _ in expected:
            reply = line.read()  # what waits for its commit is answered later
            numbers, unique = expected[int(reply["reqId"])]
            if not reply.get("ok"):
                raise AssertionError(f"an add was refused: {reply}")
            if unique is not None and self._last_unique.get(unique) == reply["id"]:
                self.kinds[numbers[0]] = -1
                self.duplicates += 1
                continue
            if unique is not None:
                self._last_unique[unique] = reply["id"]
            self.confirmed += len(numbers)

    def _request(self, kind: str) -> tuple[dict[str, Any], list[int], str | None]:
        rng = self._rng
        size = {"bulk": BULK, "flow": 1 + CHILDREN}.get(kind, 1)
        numbers = list(range(len(self.kinds), len(self.kinds) + size))
        self.kinds.extend([KINDS.index(kind)] * size)
        job = self._job(numbers[0])
        request: dict[str, Any] = {"cmd": "PUSH", "queue": MIXED, **job}
        unique = None
        if kind == "bulk":
            request = {"cmd": "PUSHB", "queue": MIXED, "jobs": [self._job(n) for n in numbers]}
        elif kind == "durable":
            request["durable"] = True
        elif kind == "priority":
            request |= {"priority": rng.randrange(1_000_000), "lifo": rng.random() < 0.3}
        elif kind == "delayed":
            request["delay"] = rng.randrange(1, 3_000)
        elif kind == "retried":
            job["data"]["fails"] = rng.randint(1, 2)
            request |= {"maxAttempts": 5, "backoff": 500}
        elif kind == "client":
            request["queue"] = CLIENT
        elif kind == "unique":
            unique = request["uniqueKey"] = f"u{rng.randrange(UNIQUE_KEYS)}"
            request["delay"] = 200
        elif kind == "custom":
            request["jobId"] = f"custom-{numbers[0]}"
        elif kind == "dead":
            job["data"]["fails"] = 99
            request |= {"queue": DEAD, "maxAttempts": DEAD_ATTEMPTS, "backoff": 500}
        elif kind == "flow":
            request = {"cmd": "PUSHF", "jobs": self._flow(numbers)}
            self.flows.extend(numbers)
        return request, numbers, unique

    def _job(self, n: int) -> dict[str, Any]:
        data = {"n": n, "x": self._rng.randbytes(self._rng.choice((0, 20, 100, 400)))}
        job: dict[str, Any] = {"name": "job", "data": data}
        if self._rng.random() < 0.8:
            job["removeOnComplete"] = True
        return job

    def _flow(self, numbers: list[int]) -> list[dict[str, Any]]:
        ids = [f"flow-{n}" for n in numbers]
        parent, children = ids[0], ids[1:]
        jobs = [self._job(n) for n in numbers]
        jobs[0]["data"]["__childrenIds"] = children
        entries = [
            {
                "id": parent,
                "queue": FLOWS,
                "input": jobs[0] | {"childrenIds": children, "dependsOn": children},
            }
        ]
        for job, child in zip(jobs[1:], children, strict=True):
            job["data"] |= {"__parentId": parent, "__parentQueue": FLOWS}
            entries.append({"id": child, "queue": MIXED, "input": job | {"parentId": parent}})
        return entries
