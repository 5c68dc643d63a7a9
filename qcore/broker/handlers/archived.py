"""What commands need of the archive: single jobs before they run, or all of a queue in turns."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Generator, Iterable, Mapping

from qcore.broker.handlers.answer import Answer, Fields, Reply
from qcore.errors import LimitError, QError
from qcore.limits import ARCHIVE_PAGE_ROWS, MAX_ARCHIVE_OFFSET

logger = logging.getLogger("qcore.broker")

#: Turns of a walk before its command lets others run: an archive of two pages is answered at once.
FIRST_TURNS = 3
#: Jobs that a walk picks in one pass, and that it reads back at once.
MOST_PICKED = 100_000
READ_ROWS = ARCHIVE_PAGE_ROWS

Work = Generator[None, None, Reply]

# --- single jobs -------------------------------------------------------------------------------


def _named(*fields: str) -> Callable[[Fields], Iterable[str]]:
    return lambda request: [request[field] for field in fields if isinstance(request.get(field), str)]


def _of_add(request: Fields) -> Iterable[str]:
    for job in request.get("jobs", (request,)):
        job = job.get("input", job) if isinstance(job, dict) else {}
        yield from (job[key] for key in ("customId", "parentId") if isinstance(job.get(key), str))
        yield from (one for one in job.get("dependsOn") or () if isinstance(one, str))


def _of_flow(request: Fields) -> Iterable[str]:
    jobs = request.get("jobs")
    if isinstance(jobs, list):
        for job in jobs:
            if isinstance(job, dict) and isinstance(job.get("id"), str):
                yield job["id"]
                given = job.get("input")
                depends_on = given.get("dependsOn") if isinstance(given, dict) else None
                if isinstance(depends_on, list):
                    yield from (one for one in depends_on if isinstance(one, str))


_BY_ID = _named("id")
#: The ids of jobs in a request that may be finished ones.
_IDS: Mapping[str, Callable[[Fields], Iterable[str]]] = {
    "PUSH": _of_add,
    "PUSHB": _of_add,
    "PUSHF": _of_flow,
    "UpdateParent": _named("childId", "parentId"),
    **dict.fromkeys(
        (
            "MoveToDelayed",
            "MoveToWait",
            "Update",
            "Progress",
            "GetProgress",
            "AddLog",
            "GetLogs",
            "ClearLogs",
            "GetJob",
            "GetState",
            "GetResult",
            "WaitJob",
            "RetryCompleted",
            "RemoveChildDependency",
            "RemoveUnprocessedChildren",
            "GetChildrenValues",
            "GetDependencies",
            "GetFailedChildrenValues",
            "GetIgnoredChildrenFailures",
        ),
        _BY_ID,
    ),
}


def bring(answer: Answer, cmd: str, fields: Fields) -> None:
    """Read the archived jobs that a request names back, for as long as it runs."""
    broker = answer.session.broker
    ids = _IDS.get(cmd)
    if ids is None or not broker.engine.n_archived:
        return
    if cmd in ("GetChildrenValues", "GetDependencies"):
        broker.archive.bring_tied(fields["id"])
    else:
        broker.archive.bring(ids(fields))


# --- all of a queue ------------------------------------------------------------------------------


def in_turns(answer: Answer, work: Work) -> Reply | None:
    """The reply of ``work``; None when it goes on between other requests and answers then."""
    reply: Reply | None = None
    late = False

    def errand() -> Generator[None, None, None]:
        nonlocal reply
        try:
            reply = yield from work
        except QError as error:
            answer.held = False
            reply = {"ok": False, "error": str(error), **answer.coded(error.code)}
        except Exception:
            logger.exception("%s failed", answer.command.name)
            answer.held = False
            reply = {"ok": False, "error": "Internal server error", **answer.coded("internal")}
        if late and not answer.session.closed:
            answer.send({"ok": True, **reply})
            answer.session.broker.tell(answer.session)

    if answer.session.broker.archive.run(errand(), FIRST_TURNS):
        return reply
    late = True
    return None


def has_archived(answer: Answer, queue: str) -> bool:
    found = answer.session.broker.engine.queue(queue)
    return found is not None and found.n_archived > 0


def _oldest(answer: Answer, queue: str, until_ms: int, most: int) -> Generator[None, None, list[int]]:
    """Numbers of the rows of the archived jobs that ended first, in that order, by ``until_ms``."""
    archive = answer.session.broker.archive
    found = answer.session.broker.engine.queue(queue)
    heap: list[tuple[int, int, int]] = []  # of negated ends and rows, so that the latest is on top
    assert found is not None
    for page in archive.pages():
        for ended, number, _, row in archive.of_queue(found.index, page):
            if ended > until_ms:
                continue
            if len(heap) < most:
                heapq.heappush(heap, (-ended, -number, -row[0]))
            else:
                heapq.heappushpop(heap, (-ended, -number, -row[0]))
        yield
    return [-seq for _, _, seq in sorted(heap, reverse=True)]


def on_oldest(
    answer: Answer, queue: str, until_ms: int, limit: int, command: Callable[[int], int]
) -> Generator[None, None, None]:
    """Run ``command(most)``, which counts what it did, until it has done ``limit`` or finds nothing more.

    Before each run the oldest archived jobs are read back, so that of all jobs of the queue it
    finds the oldest first. ``limit`` -1 = all.
    """
    broker = answer.session.broker
    left = limit
    while left and has_archived(answer, queue):
        most = MOST_PICKED if left < 0 else min(left, MOST_PICKED)
        seqs = yield from _oldest(answer, queue, until_ms, most)
        picked, done = len(seqs), 0
        while seqs and left:
            part, seqs = seqs[:READ_ROWS], seqs[READ_ROWS:]
            broker.archive.bring_rows(part)
            n = command(READ_ROWS if left < 0 else min(left, READ_ROWS))
            left -= n if left > 0 else 0
            done += n
            # Later ones in memory may have come before some of these.
            stayed = {seq for _, _, seq, _ in broker.engine.leaving_memory(queue)}.intersection(part)
            broker.engine.release_guests()
            if n:
                seqs = [seq for seq in part if seq in stayed] + seqs
            yield
        if picked < most or not done:
            break
    while left:
        n = command(READ_ROWS if left < 0 else min(left, READ_ROWS))
        left -= n if left > 0 else 0
        if not n:
            return
        yield


def page_of_all(
    answer: Answer, queue: str, states: list[str] | None, offset: int, limit: int, asc: bool
) -> Work:
    """A page of a listing into which archived jobs come."""
    session = answer.session
    broker = session.broker
    archive, engine = broker.archive, broker.engine
    end = min(offset + limit, sum(engine.counts(queue, broker.wall_ms).values()))
    if end > MAX_ARCHIVE_OFFSET:
        raise LimitError(
            f"Completed jobs are listed up to the place {MAX_ARCHIVE_OFFSET}, and not up to {end}: "
            "ask for fewer"
        )
    found = engine.queue(queue)
    assert found is not None
    first = heapq.nsmallest if asc else heapq.nlargest
    kept: list[tuple[int, str, int]] = []
    for page in archive.pages():
        kept += [
            (created, archive.id_of(row), row[0])
            for _, _, created, row in archive.of_queue(found.index, page)
        ]
        if len(kept) > 2 * end + READ_ROWS:
            kept = first(end, kept)
        yield
    here = {seq: (created, job_id) for _, created, seq, job_id in engine.leaving_memory(queue)}
    listed: list[tuple[int, str, int]] = [
        *(
            (created, job_id, 0)
            for created, job_id in engine.listed(queue, broker.wall_ms, states=states, limit=end, asc=asc)
        ),
        *((created, job_id, 0) for created, job_id in here.values()),
        *(one for one in kept if one[2] not in here),
    ]
    chosen = first(end, listed)[offset:]
    jobs: list[object] = []
    for at in range(0, len(chosen), READ_ROWS):
        part = chosen[at : at + READ_ROWS]
        archive.bring_rows([seq for _, _, seq in part if seq])
        jobs += broker.listed_packed(session, queue, [job_id for _, job_id, _ in part], states is not None)
        broker.engine.release_guests()
    return {"jobs": jobs}
