"""The engine alone behind a small interface: no server, no store, no threads.

``make()`` takes and returns Python values. Each push packs its value and each
pull unpacks it, results likewise, so the adapter's figures hold what a producer
and a worker would do in processes of their own. ``make_packed()`` takes and
returns packed bytes: what the engine itself carries. Both read the two clocks
for every call, as a host does, and build every id as text.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import monotonic_ns, time_ns
from typing import Any

from qcore.engine.engine import Engine
from qcore.engine.table import EVENT_BITS
from qcore.wire.packing import pack, unpack


class Packed:
    """Payloads and results are packed bytes."""

    def __init__(self) -> None:
        self.engine = Engine(os.urandom(16))
        self._push = self.engine.push
        self._pull = self.engine.pull
        self._ack = self.engine.ack
        self.listener: Callable[[Any], None] | None = None

    def push(self, queue: str, data: Any) -> str:
        job_id: str = self._push(queue, data, time_ns() // 1_000_000)
        return job_id

    def push_batch(self, queue: str, datas: list[Any]) -> list[str]:
        ids: list[str] = self.engine.push_many(queue, datas, time_ns() // 1_000_000)
        return ids

    def pull(self, queue: str) -> tuple[str, Any] | None:
        job = self._pull(queue, time_ns() // 1_000_000, monotonic_ns())
        return None if job is None else (job[0], job[2])

    def pull_batch(self, queue: str, count: int) -> list[tuple[str, Any]]:
        jobs = self.engine.pull_many(queue, count, time_ns() // 1_000_000, monotonic_ns())
        return [(job_id, data) for job_id, _, data in jobs]

    def ack(self, job_id: str) -> None:
        self._ack(job_id, time_ns() // 1_000_000)

    def ack_batch(self, outcomes: list[tuple[str, Any]]) -> None:
        """Complete jobs with their results, keep none of them, tell the listener of each."""
        now_ms, ack = time_ns() // 1_000_000, self._ack
        for job_id, result in outcomes:
            ack(job_id, now_ms, result=result, remove=True)
        self._tell()

    def _tell(self) -> None:
        if self.listener is not None:
            for _, _, _, _, result in self.engine.take_events():
                self.listener(result)

    def on_completed(self, listener: Callable[[Any], None]) -> None:
        """Hear of the result of every job that completes from now on."""
        self.listener = listener
        for queue in self.engine.queue_names():
            self.engine.listen(queue, EVENT_BITS["completed"])

    def waiting(self, queue: str) -> int:
        counts: dict[str, int] = self.engine.counts(queue, time_ns() // 1_000_000)
        return counts["waiting"]

    def drain(self, queue: str) -> None:
        """Take out every waiting job."""
        while jobs := self.engine.pull_many(queue, 1000, time_ns() // 1_000_000, monotonic_ns()):
            for job in jobs:
                self.engine.remove(job[0])

    def close(self) -> None:
        """Nothing is open."""


class Values(Packed):
    """Payloads and results are Python values, packed and unpacked on the way."""

    def push(self, queue: str, data: Any) -> str:
        job_id: str = self._push(queue, pack(data), time_ns() // 1_000_000)
        return job_id

    def push_batch(self, queue: str, datas: list[Any]) -> list[str]:
        return super().push_batch(queue, [pack(data) for data in datas])

    def pull(self, queue: str) -> tuple[str, Any] | None:
        job: Any = self._pull(queue, time_ns() // 1_000_000, monotonic_ns())
        return None if job is None else (job[0], unpack(job[2]))

    def pull_batch(self, queue: str, count: int) -> list[tuple[str, Any]]:
        jobs: list[Any] = self.engine.pull_many(queue, count, time_ns() // 1_000_000, monotonic_ns())
        return [(job_id, unpack(data)) for job_id, _, data in jobs]

    def ack_batch(self, outcomes: list[tuple[str, Any]]) -> None:
        now_ms, ack = time_ns() // 1_000_000, self._ack
        for job_id, result in outcomes:
            ack(job_id, now_ms, result=pack(result), remove=True)
        self._tell()

    def _tell(self) -> None:
        if self.listener is not None:
            for _, _, _, _, result in self.engine.take_events():
                self.listener(unpack(result))


def _in_memory(path: str | None) -> None:
    if path is not None:
        raise ValueError("the engine alone keeps no file")


def make(path: str | None = None) -> Values:
    """An engine that takes and returns Python values."""
    _in_memory(path)
    return Values()


def make_packed(path: str | None = None) -> Packed:
    """An engine that takes and returns packed bytes."""
    _in_memory(path)
    return Packed()
