"""The registry of workers: who said that it serves which queues, and when last.

Kept by the engine, because schedules may ask whether somebody is there. Nothing of it
is stored: after a restart workers register anew.
"""

cimport cython
from libc.stdint cimport int64_t

from collections import OrderedDict
from dataclasses import dataclass

#: A worker counts as active until it has been silent for so long.
ACTIVE_NS = 30_000_000_000
#: One that has been silent for so long is forgotten.
FORGET_NS = 90_000_000_000
cdef int64_t C_FORGET_NS = FORGET_NS


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


@cython.final
cdef class Workers:
    """All workers by id, the longest silent one first. Silence is measured on the monotonic clock."""

    def __cinit__(self):
        self._workers = OrderedDict()
        self._by_queue = {}
        self._by_session = {}

    def __len__(self):
        return len(self._workers)

    def __iter__(self):
        return iter(self._workers.values())

    cdef int c_expect(self) except -1:
        """Note when the first one is to be forgotten: every turn of the engine asks."""
        self.expires_ns = 0
        for worker in self._workers.values():
            self.expires_ns = worker.seen_ns + C_FORGET_NS
            break
        return 0

    def get(self, str worker_id not None):
        """The worker with this id, or None."""
        return self._workers.get(worker_id)

    def register(self, worker):
        """Add a worker; one with its id is replaced."""
        self.remove(worker.id)
        self._workers[worker.id] = worker
        for queue in worker.queues:
            self._by_queue.setdefault(queue, OrderedDict())[worker.id] = worker
        self._by_session.setdefault(worker.session, set()).add(worker.id)
        self.c_expect()

    def seen(self, worker, int64_t now_ms, int64_t now_ns):
        """Note a sign of life. O(its queues)."""
        worker.seen_ms, worker.seen_ns = now_ms, now_ns
        self._workers.move_to_end(worker.id)
        for queue in worker.queues:
            self._by_queue[queue].move_to_end(worker.id)
        self.c_expect()

    def remove(self, str worker_id not None):
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
        self.c_expect()
        return True

    def leave(self, session):
        """Forget the workers of a connection that ended."""
        for worker_id in list(self._by_session.get(session, ())):
            self.remove(worker_id)

    cdef int c_expire(self, int64_t now_ns) except -1:
        """Forget the workers that have been silent for too long. O(those)."""
        while self.expires_ns and self.expires_ns <= now_ns:
            self.remove(next(iter(self._workers)))
        return 0

    def expire(self, int64_t now_ns):
        """See above."""
        self.c_expire(now_ns)

    def is_active(self, worker, int64_t now_ns):
        """Whether it gave a sign of life not too long ago."""
        return now_ns - worker.seen_ns < ACTIVE_NS

    def serves(self, str queue not None, int64_t now_ns):
        """Tell whether an active worker serves a queue. O(1)."""
        there = self._by_queue.get(queue)
        return there is not None and self.is_active(next(reversed(there.values())), now_ns)

    cdef bint c_knows(self, str queue) except -1:
        """Whether a worker, active or not, is registered for a queue."""
        return queue in self._by_queue

    def _check(self):
        silent = [worker.seen_ns for worker in self._workers.values()]
        assert silent == sorted(silent), "not in order of the last sign of life"
        assert self.expires_ns == (silent[0] + FORGET_NS if silent else 0), f"to be forgotten at {self.expires_ns}"
        for queue, there in self._by_queue.items():
            expected = [worker.id for worker in self if queue in worker.queues]
            assert list(there) == expected != [], f"workers of {queue}: {list(there)}, expected {expected}"
        assert {q for worker in self for q in worker.queues} == set(self._by_queue)
        sessions = {worker.session: {w.id for w in self if w.session == worker.session} for worker in self}
        assert sessions == self._by_session
