"""Completed jobs that only the store has: finding them, reading them back, and their end by age.

Memory keeps the newest completed jobs; the rows of the others stay in the store. A row is
found by the id of its job: our own ids grow with the numbers of the rows, so a search halves
the rows that come into question, between *fences* that are kept in memory, one for about a
thousand rows, or fewer when there have been very many; of custom ids the engine remembers the
numbers. Who asks for all of a queue has the rows walked through, a page a turn. A row that a
command needs is adopted by the engine for as long as the command runs.

The rows of archived jobs are all committed, so the store may be read at any time; what was
deleted since, and may be there still, the engine knows.
"""

from __future__ import annotations

import bisect
import contextlib
import heapq
import logging
from array import array
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from qcore.broker import rows
from qcore.errors import LimitError, StoreError
from qcore.limits import (
    ARCHIVE_PAGE_ROWS,
    ARCHIVE_PASS_MOST_MS,
    ARCHIVE_TRIM_MS,
    ARCHIVE_TURN_MS,
    MAX_LEAVING_JOBS,
)
from qcore.store.base import Row, Store

if TYPE_CHECKING:
    from qcore.broker.core import Broker

#: At most one fence for so many rows.
FENCE_ROWS = 1024
#: With more than these (16 bytes each) every second one goes: a search takes a read more then.
MOST_FENCES = 1 << 16
#: Jobs that one pass picks by their number.
MOST_PICKED = 100_000
_FIRST_LOOK = 4

logger = logging.getLogger("qcore.broker")

#: A walk through the rows that other requests are served between; None: all of it is done.
Errand = Generator[None, None, None]


class Archive:
    """The archived jobs of a broker. Guarded by the broker's lock.

    ``retention_ms``: how long completed jobs are kept, in memory as well; None = for ever.
    """

    def __init__(self, broker: Broker, store: Store | None, retention_ms: int | None) -> None:
        self._broker = broker
        self._engine = broker.engine
        self._store = store
        self.retention_ms = retention_ms
        self._fence_seqs = array("q", [0])
        self._fence_ids = array("Q", [0])
        self._fence_rows = FENCE_ROWS
        self._errands: deque[Errand] = deque()
        self._sweep: Iterator[None] | None = None
        self._again = False
        self._began_ms = self._took_ms = 0
        #: When to look for what is over again, wall clock; None = never.
        self.due_ms: int | None = None

    # --- fences -----------------------------------------------------------------------------

    def fence(self, seq: int, last_id: int) -> None:
        """Rows up to ``seq`` have ids of ours up to ``last_id``, later ones greater ids.

        What was added counts, whether a row is left of it or not, so their number has a bound of its own.
        """
        if seq - self._fence_seqs[-1] < self._fence_rows or last_id <= self._fence_ids[-1]:
            return
        self._fence_seqs.append(seq)
        self._fence_ids.append(last_id)
        if len(self._fence_seqs) > MOST_FENCES:
            del self._fence_seqs[1::2], self._fence_ids[1::2]
            self._fence_rows *= 2

    # --- finding ------------------------------------------------------------------------------

    def find(self, job_id: str) -> Row | None:
        """The row of the archived job with this id. O(log n) reads at most."""
        if self._store is None or not self._engine.may_be_far(job_id):
            return None
        for row in self._store.read(self._engine.far_places(job_id)):
            if rows.id_of(row) == job_id:
                return row
        own = self._engine.own_id(job_id)
        return None if own is None or own > self._engine.far_end else self._search(own, job_id)

    def _search(self, own: int, job_id: str) -> Row | None:
        assert self._store is not None
        at = bisect.bisect_left(self._fence_ids, own)
        low = self._fence_seqs[at - 1] + 1
        high = self._fence_seqs[at] if at < len(self._fence_seqs) else self._engine.last_id[1]
        while low <= high:
            middle = (low + high) // 2
            found = self._next_own(middle, high)
            if found is None:
                high = middle - 1
            elif found[1] < own:
                low = found[0] + 1
            elif found[1] > own:
                high = middle - 1
            else:
                (row,) = self._store.read([found[0]]) or (None,)
                return row if row is not None and rows.id_of(row) == job_id else None
        return None

    def _next_own(self, first: int, last: int) -> tuple[int, int] | None:
        """(number, upper half of the id) of the first row in this range whose id is one of ours."""
        assert self._store is not None
        limit = _FIRST_LOOK
        while first <= last:
            page = self._store.scan(first, limit, payloads=False)
            for row in page:
                if row[0] > last:
                    return None
                own = rows.own_id_of(row)
                if own is not None:
                    return row[0], own
            if len(page) < limit:
                return None
            first = page[-1][0] + 1
            limit = min(limit * 4, ARCHIVE_PAGE_ROWS)
        return None

    # --- reading back ----------------------------------------------------------------------------

    def bring(self, ids: Iterable[str]) -> None:
        """Let the archived ones of these jobs be guests of the engine; the others are left alone."""
        for job_id in ids:
            row = self.find(job_id)
            if row is not None:
                self._adopt(row)

    def bring_tied(self, job_id: str) -> None:
        """Bring a job and what it is tied to."""
        self.bring((job_id,))
        self.bring(self._engine.tied_to(job_id))

    def bring_rows(self, seqs: Sequence[int]) -> None:
        """The same of rows by their numbers."""
        if self._store is not None:
            for row in self._store.read(seqs):
                self._adopt(row)

    def _adopt(self, row: Row) -> None:
        try:
            rows.adopt(self._engine, row, self._broker.wall_ms, self._broker.monotonic_ns)
        except rows.BadRow as error:
            logger.error("row %d cannot be read and was left in the file: %s", row[0], error)

    # --- walking ------------------------------------------------------------------------------------

    def pages(self) -> Iterator[list[Row]]:
        """The rows of the store in order, without payloads, a page at a time.

        Up to the newest as of now: else a walk beside adds would never end.
        """
        assert self._store is not None
        first, last = 0, self._engine.last_id[1]
        while first <= last and (page := self._store.scan(first, ARCHIVE_PAGE_ROWS, payloads=False)):
            yield page
            first = page[-1][0] + 1

    @staticmethod
    def id_of(row: Row) -> str:
        """The id in the row of a finished job."""
        return rows.id_of(row)

    def of_queue(self, queue: int, page: list[Row]) -> list[tuple[int, int, int, Row]]:
        """See :func:`qcore.broker.rows.far`."""
        return rows.far(self._engine, page, queue)

    def run(self, errand: Errand, turns: int) -> bool:
        """Take the first turns of an errand, later calls of :meth:`turn` the others; whether it is done.

        One goes on at a time. An errand that is given up because too many jobs are completed
        meanwhile gets a LimitError.
        """
        errand = self._held(errand)
        if not self._errands:
            for _ in range(turns):
                if next(errand, self) is self:
                    return True
        self._errands.append(errand)
        self._broker.ask_archive()
        return False

    def _held(self, errand: Errand) -> Errand:
        engine = self._engine
        engine.holds += 1  # what leaves memory meanwhile would be in no page
        try:
            for _ in errand:
                if engine.n_leaving > MAX_LEAVING_JOBS:
                    with contextlib.suppress(StopIteration):
                        errand.throw(LimitError("Jobs are completed faster than the archive can be read"))
                    return
                yield
        finally:
            engine.holds -= 1
            engine.release_guests()
            # Else the next one might begin before a commit ends, and so for ever.
            if not self._broker.committing and self._broker.degraded is None:
                engine.committed()

    # --- time ---------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Do a small part of what is to be done; more of it when :meth:`left_ms` says so."""
        if self._errands and next(self._errands[0], self) is self:
            self._errands.popleft()
        if self.due_ms is not None and self._broker.wall_ms >= self.due_ms:
            self._take_sweep()

    def left_ms(self, now_ms: int) -> int:
        """Milliseconds until :meth:`turn` has something to do; -1 = not within an hour.

        Hosts look at least once an hour, so a broker with nothing else to do says that it has nothing to do.
        The broker asks again when that time has come, when jobs leave memory, and after ``ask_archive``.
        """
        if self._errands:
            return 0
        if self._engine.trims and self._sweep is None:
            self._engine.trims = False
            trim_ms = max(now_ms, self._began_ms + max(ARCHIVE_TRIM_MS, 10 * self._took_ms))
            self.due_ms = trim_ms if self.due_ms is None else min(self.due_ms, trim_ms)
            self._broker.ask_archive()
        if self.due_ms is None or self.due_ms - now_ms > ARCHIVE_PASS_MOST_MS:
            return -1
        return max(0, self.due_ms - now_ms)

    def sweep_soon(self) -> None:
        """Walk through all rows once more: a queue was obliterated."""
        if self._sweep is not None:
            self._again = True
        else:
            self.due_ms = self._broker.wall_ms + ARCHIVE_TURN_MS
        self._broker.ask_archive()

    def begin(self) -> None:
        """Everything is there that the store has: look for what is over."""
        if self._engine.earliest_end() is not None and self.retention_ms is not None:
            self.due_ms = self._broker.wall_ms
        elif self.retention_ms is not None:
            self.due_ms = self._broker.wall_ms + self.retention_ms + 1
        self._broker.ask_archive()

    def _take_sweep(self) -> None:
        now_ms = self._broker.wall_ms
        if self._broker.unflushed * 2 > self._broker.unflushed_limit or self._broker.degraded is not None:
            self.due_ms = now_ms + ARCHIVE_TURN_MS  # the disk has enough to do
            return
        if self._sweep is None:
            self._sweep = self._sweeping(now_ms)
        self.due_ms = now_ms + ARCHIVE_TURN_MS
        try:
            done = next(self._sweep, self) is self
        except StoreError as error:
            logger.warning("what is over could not be removed: %s", error)
            self._end_trims(whole=False)
            done = True
            self.due_ms = now_ms + self._pass_ms()
        if done:
            self._sweep = None

    def _pass_ms(self) -> int:
        """The least time between the beginnings of two passes."""
        if self.retention_ms is None:
            return ARCHIVE_PASS_MOST_MS
        return min(max(self.retention_ms // 100, ARCHIVE_TURN_MS), ARCHIVE_PASS_MOST_MS)

    def _sweeping(self, began_ms: int) -> Generator[None, None, None]:
        """One pass over everything that is completed; a turn for each step."""
        engine, keep = self._engine, self.retention_ms
        self._began_ms = began_ms
        floors = engine.floors()
        until = began_ms - keep if keep is not None else -(2**62)
        if keep is not None:
            while engine.expire(until, ARCHIVE_PAGE_ROWS) == ARCHIVE_PAGE_ROWS:
                yield
        engine.note_ends()
        earliest = began_ms
        first_row: int | None = None
        capped = False
        if self._store is not None:
            doomed, capped = yield from self._surplus()
            for page in self.pages():
                if first_row is None:
                    first_row = page[0][0]
                _, kept = rows.sweep(engine, page, until, doomed)
                earliest = min(earliest, kept) if kept is not None else earliest
                yield
            self._drop_fences(first_row)
        self._end_trims(whole=not capped)
        for queue, seq in floors.items():
            engine.end_floor(queue, seq)
        self._took_ms = max(0, self._broker.wall_ms - began_ms)
        self.due_ms = self._broker.wall_ms + ARCHIVE_TURN_MS if self._again else None
        self._again = False
        if keep is not None and self.due_ms is None:
            # What is completed from now on is over no earlier than if it were now.
            ends = engine.earliest_end()
            earliest = earliest if ends is None else min(earliest, ends)
            self.due_ms = max(began_ms + self._pass_ms(), earliest + keep + 1)

    def _end_trims(self, *, whole: bool) -> None:
        """The policies that the pass began with are done; not ``whole``: they are still to be done."""
        for name in self._engine.queue_names():
            q = self._engine.queue(name)
            if q is not None:
                self._engine.end_trim(q, whole)

    def _surplus(self) -> Generator[None, None, tuple[set[int], bool]]:
        """Numbers of the rows of the jobs that ended first where a queue keeps only so many.

        And whether there are more than one pass picks.
        """
        capped = False
        picked: dict[int, tuple[int, list[tuple[int, int, int]]]] = {}
        for name in self._engine.queue_names():
            q = self._engine.queue(name)
            if q is not None and q.far_most >= 0:
                surplus = min(q.n_completed - q.far_most, q.n_archived)
                if surplus > 0:
                    picked[q.index] = (min(surplus, MOST_PICKED), [])
                    capped = capped or surplus > MOST_PICKED
                q.far_most = -1
        if not picked:
            return set(), False
        for page in self.pages():
            for ended, number, _, row in rows.far(self._engine, page, None):
                if row[1] in picked:
                    most, heap = picked[row[1]]
                    one = (-number, -ended, -row[0])
                    if len(heap) < most:
                        heapq.heappush(heap, one)
                    else:
                        heapq.heappushpop(heap, one)
            yield
        return {-seq for _, heap in picked.values() for _, _, seq in heap}, capped

    def _drop_fences(self, first_row: int | None) -> None:
        """Forget the fences before the first row that there is."""
        n = len(self._fence_seqs) if first_row is None else bisect.bisect_left(self._fence_seqs, first_row)
        if n > 1:
            del self._fence_seqs[: n - 1], self._fence_ids[: n - 1]
        if len(self._fence_seqs) < MOST_FENCES // 2:
            self._fence_rows = FENCE_ROWS
