"""The registry of workers: who said that it serves which queues, and when last.

Kept by the engine, because schedules may ask whether somebody is there. Nothing of it
is stored: after a restart workers register anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

#: A worker counts as active until it has been silent for so long.
ACTIVE_NS: Final = 30_000_000_000
#: One that has been silent for so long is forgotten.
FORGET_NS: Final = 90_000_000_000


@dataclass(slots=True)
class Worker:
    """One worker as it registered, and what it reported since."""

    id: str
    name: str
    queues: list[str]
    concurrency: int
    hostname: str
    pid: int
    registered_ms: int
    seen_ms: int
    seen_ns: int
    session: int
    active_jobs: int | float = 0
    processed_jobs: int | float = 0
    failed_jobs: int | float = 0


class Workers:
    """All workers by id, the longest silent one first. Silence is measured on the monotonic clock."""

    __slots__ = ("_by_queue", "_by_session", "_workers")

    def __init__(self) -> None:
        self._workers: OrderedDict[str, Worker] = OrderedDict()
        self._by_queue: dict[str, OrderedDict[str, Worker]] = {}
        self._by_session: dict[int, set[str]] = {}

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def get(self, worker_id: str) -> Worker | None:
        return self._workers.get(worker_id)

    def register(self, worker: Worker) -> None:
        """Add a worker; one with its id is replaced."""
        self.remove(worker.id)
        self._workers[worker.id] = worker
        for queue in worker.queues:
            self._by_queue.setdefault(queue, OrderedDict())[worker.id] = worker
        self._by_session.setdefault(worker.session, set()).add(worker.id)

    def seen(self, worker: Worker, now_ms: int, now_ns: int) -> None:
        """Note a sign of life. O(its queues)."""
        worker.seen_ms, worker.seen_ns = now_ms, now_ns
        self._workers.move_to_end(worker.id)
        for queue in worker.queues:
            self._by_queue[queue].move_to_end(worker.id)

    def remove(self, worker_id: str) -> bool:
        """Forget a worker; False when it is not there."""
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            return False
        for queue in set(worker.queues):
            del self._by_queue[queue][worker_id]
            if not self._by_queue[queue]:
                del self._by_queue[queue]
        self._by_session[worker.session].discard(worker_id)
        if not self._by_session[worker.session]:
            del self._by_session[worker.session]
        return True

    def leave(self, session: int) -> None:
        """Forget the workers of a connection that ended."""
        self._remove_all(list(self._by_session.get(session, ())))

    def expire(self, now_ns: int) -> None:
        """Forget the workers that have been silent for too long. O(those)."""
        gone = []
        for worker in self._workers.values():
            if now_ns - worker.seen_ns < FORGET_NS:
                break
            gone.append(worker.id)
        self._remove_all(gone)

    def _remove_all(self, ids: Iterable[str]) -> None:
        for worker_id in ids:
            self.remove(worker_id)

    def next_expiry_ns(self) -> int | None:
        """When the next one is to be forgotten, if it stays silent. O(1)."""
        for worker in self._workers.values():
            return worker.seen_ns + FORGET_NS
        return None

    def is_active(self, worker: Worker, now_ns: int) -> bool:
        return now_ns - worker.seen_ns < ACTIVE_NS

    def serves(self, queue: str, now_ns: int) -> bool:
        """Tell whether an active worker serves a queue. O(1)."""
        there = self._by_queue.get(queue)
        return there is not None and self.is_active(next(reversed(there.values())), now_ns)

    def _check(self) -> None:
        silent = [worker.seen_ns for worker in self._workers.values()]
        assert silent == sorted(silent), "not in order of the last sign of life"
        for queue, there in self._by_queue.items():
            expected = [worker.id for worker in self if queue in worker.queues]
            assert list(there) == expected != [], f"workers of {queue}: {list(there)}, expected {expected}"
        assert {q for worker in self for q in worker.queues} == set(self._by_queue)
        sessions = {worker.session: {w.id for w in self if w.session == worker.session} for worker in self}
        assert sessions == self._by_session
