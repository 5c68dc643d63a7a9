"""Covers counts and events of queues: a drain on disk without their rows, with counts, with the journal."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import msgpack

from qcore.broker import open_broker
from qcore.broker.opening import close_broker
from qcore.broker.session import Session
from qcore.store import open_store
from qcore.store.base import Cut, Store

JOBS = 20_000


class WithoutCounts:
    """A store that forgets the rows of counts; everything else is the store's."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def commit(self, cut: Cut, *, sync: bool = False) -> None:
        for side in [side for side in cut.side if side[0] in ("telemetry", "minutes")]:
            del cut.side[side]
        self._store.commit(cut, sync=sync)


def frame(request: dict[str, object]) -> bytes:
    body: bytes = msgpack.packb(request)
    return len(body).to_bytes(4, "big") + body


class Drain:
    """Pull and acknowledge 20,000 jobs, each batch of acknowledgements in a commit of its own."""

    params = (["without", "counts", "journal"], [1, 20, 100])
    param_names = ("rows", "batch")
    number = 1
    repeat = (3, 10, 10.0)
    rounds = 2
    warmup_time = 0

    def setup(self, rows: str, batch: int) -> None:
        self.directory = tempfile.mkdtemp()
        store: Store = open_store(str(Path(self.directory) / "jobs.db"))
        if rows == "without":
            store = WithoutCounts(store)  # type: ignore[assignment]
        self.broker = open_broker(store=store, mode="server", keep_events=rows == "journal")
        self.session = Session(self.broker, lambda: None)
        jobs = [{"name": "n", "data": {"n": n}} for n in range(500)]
        for _ in range(0, JOBS, 500):
            self.ask({"cmd": "PUSHB", "queue": "q", "jobs": jobs})

    def teardown(self, rows: str, batch: int) -> None:
        close_broker(self.broker)
        shutil.rmtree(self.directory)

    def ask(self, request: dict[str, object]) -> dict[str, list[dict[str, object]]]:
        self.session.feed(frame(request))
        while self.session.waiting:
            _, cut = self.broker.settle(self.session)
            assert cut is not None
            self.broker.store.commit(cut, sync=self.broker.sync)
            self.broker.end_commit()
            self.broker.store.maintain()
        reply: dict[str, list[dict[str, object]]] = msgpack.unpackb(self.session.take()[4:])
        return reply

    def time_drain(self, rows: str, batch: int) -> None:
        for _ in range(0, JOBS, batch):
            got = self.ask({"cmd": "PULLB", "queue": "q", "count": batch, "owner": "w"})
            ids = [job["id"] for job in got["jobs"]]
            self.ask({"cmd": "ACKB", "ids": ids, "tokens": got["tokens"]})
