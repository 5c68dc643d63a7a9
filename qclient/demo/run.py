"""The demo's main job: add what is missing, work, wait, merge."""

from __future__ import annotations

import collections
import contextlib
import platform
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from qclient.delivery import JobContext
from qclient.demo.counting import CountingPool
from qclient.demo.display import Display, Progress, Silent
from qclient.demo.files import SourceFile, source_files
from qclient.demo.place import claim, sqlite_url
from qclient.demo.server import DemoServer
from qclient.queue import JobSpec, Queue
from qclient.values import Backoff, JobState
from qclient.worker import Worker
from qcore.errors import NotFoundError

QUEUE = "demo"
DEFAULT_DATA = "qcore-demo.db"
# A crash of an embedded engine costs the jobs that were running one attempt.
ATTEMPTS = 3
BACKOFF_S = 0.2
LEASE_S = 10
TICK_S = 0.1
RECOUNT_S = 2.0
TOP = 5


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """What to do; ``jobs`` bounds the number of files, None takes all."""

    data: str = DEFAULT_DATA
    jobs: int | None = None
    workers: int = 1
    tcp: bool = False
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class FailedFile:
    """A file that could not be counted, after all its attempts."""

    name: str
    error: str
    attempts: int


@dataclass(frozen=True, slots=True)
class NameCount:
    """How often a name is used in all files together."""

    name: str
    count: int


@dataclass(frozen=True, kw_only=True)
class Summary:
    """How the demo ended. ``ran`` were finished by this run, ``kept`` by earlier ones."""

    url: str
    python: str
    workers: int
    files: int
    completed: int
    kept: int
    ran: int
    retried: int
    seconds: float
    failed: list[FailedFile]
    names: list[NameCount]


def run_demo(options: DemoOptions, display: Display | None = None) -> Summary:
    """Run the demo to its end and close everything that it opened.

    :raises ConfigError: the data file is not the demo's, or cannot be written
    :raises QError: the engine refused to open, or was lost
    """
    files = source_files(options.jobs)
    path = claim(options.data, fresh=options.fresh)
    with contextlib.ExitStack() as stack:
        check: Callable[[], None] = _nothing
        if options.tcp:
            server = stack.enter_context(DemoServer(path))
            url, check = server.url, server.check
        else:
            url = sqlite_url(path)
        queue = stack.enter_context(Queue(QUEUE, url))
        return MainJob(queue, files, options.workers, display or Silent(), check).run(url)


def _nothing() -> None:
    pass


class MainJob:
    """One run over one queue."""

    def __init__(
        self,
        queue: Queue,
        files: list[SourceFile],
        workers: int,
        display: Display,
        check: Callable[[], None],
    ) -> None:
        self._queue = queue
        self._files = {file.job_id: file for file in files}
        self._workers = workers
        self._display = display
        self._check = check
        self._finished = threading.Event()
        self._lock = threading.Lock()
        self._pending: set[str] = set()
        self._failed: set[str] = set()
        self._kept = 0
        self._retried = 0
        self._started = time.monotonic()

    def run(self, url: str) -> Summary:
        """Add, work, merge."""
        self._add_missing()
        self._started = time.monotonic()
        self._display.update(self._progress(0))
        try:
            if self._pending:
                with self._pool_and_worker() as worker:
                    self._wait(worker)
        finally:
            self._display.close()
        seconds = time.monotonic() - self._started
        failed = self._failed_files()
        names = self._merge()
        return Summary(
            url=url,
            python=platform.python_version(),
            workers=self._workers,
            files=len(self._files),
            completed=len(self._files) - len(self._failed),
            kept=self._kept,
            ran=len(self._files) - self._kept,
            retried=self._retried,
            seconds=round(seconds, 3),
            failed=failed,
            names=names,
        )

    def _add_missing(self) -> None:
        """Add a job for each file that the engine has none for.

        An id that is alive would not be added twice anyway; one that has finished
        would be run again, so the finished ones are left out here.
        """
        known: dict[str, JobState | str] = {}
        if self._queue.counts().total:
            for job_id in self._files:
                with contextlib.suppress(NotFoundError):
                    known[job_id] = self._queue.state(job_id)
        self._queue.add_bulk(
            JobSpec(
                "count names",
                {"path": file.path},
                {"job_id": job_id, "attempts": ATTEMPTS, "backoff": Backoff.fixed(BACKOFF_S)},
            )
            for job_id, file in self._files.items()
            if job_id not in known
        )
        self._failed = {job_id for job_id, state in known.items() if state == JobState.FAILED}
        self._pending = {
            job_id for job_id in self._files if known.get(job_id) not in (JobState.COMPLETED, JobState.FAILED)
        }
        self._kept = len(self._files) - len(self._pending)

    @contextlib.contextmanager
    def _pool_and_worker(self) -> Iterator[Worker]:
        with contextlib.closing(CountingPool()) as pool:

            def process(job: JobContext) -> dict[str, int]:
                return pool.count(job.data["path"])

            worker = Worker(
                self._queue, process, concurrency=self._workers, lock_duration=LEASE_S, handle_signals=False
            )
            worker.on("completed", self._on_completed)
            worker.on("failed", self._on_failed)
            with worker:
                yield worker

    # Listeners, in the worker's thread.

    def _on_completed(self, job: JobContext, value: object) -> None:
        self._settle(job.id, failed=False)

    def _on_failed(self, job: JobContext, error: BaseException) -> None:
        if job.is_last_attempt:
            self._settle(job.id, failed=True)
        else:
            with self._lock:
                self._retried += 1

    def _settle(self, job_id: str, *, failed: bool) -> None:
        with self._lock:
            if job_id not in self._pending:
                return
            self._pending.discard(job_id)
            if failed:
                self._failed.add(job_id)
            if not self._pending:
                self._finished.set()

    def _wait(self, worker: Worker) -> None:
        seen = self._progress(0)
        recount_due = time.monotonic() + RECOUNT_S
        while not self._finished.wait(TICK_S):
            self._check()
            progress = self._progress(worker.stats().active)
            self._display.update(progress)
            now = time.monotonic()
            if (progress.done, progress.retried) != (seen.done, seen.retried):
                seen = progress
                recount_due = now + RECOUNT_S
            elif now >= recount_due:
                recount_due = now + RECOUNT_S
                self._recount()
        self._display.update(self._progress(0))

    def _recount(self) -> None:
        """Ask the engine how the pending jobs stand: a job that was taken away tells no listener."""
        for job_id in sorted(self._pending):
            state = self._queue.state(job_id)
            if state in (JobState.COMPLETED, JobState.FAILED):
                self._settle(job_id, failed=state == JobState.FAILED)

    def _progress(self, n_active: int) -> Progress:
        with self._lock:
            return Progress(
                total=len(self._files),
                done=len(self._files) - len(self._pending),
                kept=self._kept,
                active=n_active,
                retried=self._retried,
                failed=len(self._failed),
                seconds=time.monotonic() - self._started,
            )

    def _failed_files(self) -> list[FailedFile]:
        dead = {entry.job.id: entry for entry in self._queue.dlq.list()} if self._failed else {}
        return [
            FailedFile(file.name, dead[job_id].error or dead[job_id].reason, dead[job_id].job.attempts_made)
            for job_id, file in self._files.items()
            if job_id in dead
        ]

    def _merge(self) -> list[NameCount]:
        """Add up what the engine kept of all runs."""
        names: collections.Counter[str] = collections.Counter()
        for job_id in self._files:
            if job_id not in self._failed:
                names.update(self._queue.returnvalue(job_id))
        return [NameCount(name, count) for name, count in names.most_common(TOP)]
