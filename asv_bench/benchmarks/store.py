"""Covers qcore.store: what a commit costs, in time and in bytes, and how fast a file loads."""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
from pathlib import Path

from qcore.store.base import Cut
from qcore.store.sqlite import SqliteStore
from qcore.store.writer import Writer

RECORD = random.Random(1).randbytes(90)
DATA = random.Random(2).randbytes(100)
RESULT = random.Random(3).randbytes(20)
ROWS = 20_000


def cuts_of(kind: str, seqs: list[int], n_rows: int) -> list[Cut]:
    """Return cuts of ``n_rows`` rows each over all ``seqs``."""
    cuts = []
    for at in range(0, len(seqs), n_rows):
        part = seqs[at : at + n_rows]
        if kind == "insert":
            cuts.append(Cut(inserts=[v for seq in part for v in (seq, 1, 0, RECORD, DATA, None)]))
        elif kind == "update":
            cuts.append(Cut(updates=[v for seq in part for v in (seq, 3, RECORD, RESULT)]))
        else:
            cuts.append(Cut(deletes=part))
    return cuts


class _File:
    def setup(self, *params: object) -> None:
        self.directory = tempfile.mkdtemp()
        self.store = SqliteStore(Path(self.directory) / "jobs.db")

    def teardown(self, *params: object) -> None:
        self.store.close()
        shutil.rmtree(self.directory)

    def write(self, cuts: list[Cut]) -> None:
        for cut in cuts:
            self.store.commit(cut)
            self.store.maintain()


class Commit(_File):
    """Write 20,000 rows in cuts of one size; updates and deletes in the order of the keys."""

    params = (["insert", "update", "delete"], [10, 100, 1000])
    param_names = ("kind", "rows")
    number = 1
    repeat = (3, 10, 5.0)
    rounds = 2
    warmup_time = 0

    def setup(self, kind: str, rows: int) -> None:
        super().setup()
        seqs = list(range(ROWS))
        if kind != "insert":
            self.write(cuts_of("insert", seqs, 1000))
        self.cuts = cuts_of(kind, seqs, rows)

    def time_rows(self, kind: str, rows: int) -> None:
        self.write(self.cuts)


class BesideBusyThread(Commit):
    """The same while another thread runs Python code without a pause."""

    params = (["insert", "update", "delete"], [100, 1000])

    def setup(self, kind: str, rows: int) -> None:
        super().setup(kind, rows)
        self.stop = False
        self.thread = threading.Thread(target=self.spin)
        self.thread.start()

    def teardown(self, kind: str, rows: int) -> None:
        self.stop = True
        self.thread.join()
        super().teardown()

    def spin(self) -> None:
        while not self.stop:
            sum(range(1000))


class Bytes(_File):
    """Bytes handed to the kernel for a row: log and checkpoints together."""

    params = (["insert", "update", "delete", "delete in random order"], [50, 1000])
    param_names = ("kind", "rows")

    def track_bytes_per_row(self, kind: str, rows: int) -> float:
        seqs = list(range(ROWS))
        if kind != "insert":
            self.write(cuts_of("insert", seqs, 1000))
        if kind == "delete in random order":
            random.Random(4).shuffle(seqs)
        before = written_bytes()
        self.write(cuts_of(kind.split()[0], seqs, rows))
        return (written_bytes() - before) / ROWS

    track_bytes_per_row.unit = "bytes/row"


def written_bytes() -> int:
    """Return what this process has handed to write calls so far (Linux)."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])


class Hop(_File):
    """A thousand cuts of one row, each answered before the next one is made."""

    params = (["caller", "writer"],)
    param_names = ("thread",)
    number = 1

    def setup(self, thread: str) -> None:
        super().setup()
        self.done = threading.Event()
        self.writer = Writer(self.store, lambda epoch, error: self.done.set())
        self.cuts = cuts_of("insert", list(range(1000)), 1)

    def teardown(self, thread: str) -> None:
        self.writer.close()
        super().teardown()

    def time_answer(self, thread: str) -> None:
        for cut in self.cuts:
            if thread == "caller":
                self.writer.commit_here(cut)
            else:
                self.done.clear()
                self.writer.submit(0, cut)
                self.done.wait()


class Load(_File):
    """Read a file as an engine does when it starts."""

    params = ([10_000, 100_000],)
    param_names = ("rows",)

    def setup(self, rows: int) -> None:
        super().setup()
        self.write(cuts_of("insert", list(range(rows)), 1000))

    def time_load(self, rows: int) -> None:
        for _ in self.store.load().jobs:
            pass
