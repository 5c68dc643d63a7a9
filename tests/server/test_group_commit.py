"""Producers that wait for the disk at the same time wait for one sync."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.shim import EVERYBODY, Faults
from tests.server.conftest import Running

PRODUCERS, ROUNDS = 64, 5
Start = Callable[..., Running]


@pytest.mark.parametrize("how", ["each add", "the server"])
def test_64_producers_share_a_sync(start: Start, tmp_path: Path, how: str) -> None:
    file = tmp_path / "data" / "jobs.db"
    file.parent.mkdir()
    faults = Faults(tmp_path, file)
    level = ("--adds" if how == "the server" else "--changes", "synced")
    faults.attach(EVERYBODY)  # before it opens the file
    server = start("--data", str(file), *level, **faults.env)
    lines = [server.connect() for _ in range(PRODUCERS)]
    for line in lines:
        line.ask(cmd="Ping")
    before = faults.seen["sync"]
    ids: set[str] = set()
    durable = {} if how == "the server" else {"durable": True}
    for round_ in range(ROUNDS):
        # While it stands still, all of them send: then it sees them at once, however slow the sender is.
        server.process.send_signal(signal.SIGSTOP)
        for i, line in enumerate(lines):
            line.send(line.frame(cmd="PUSH", queue="q", name="n", data=[round_, i], **durable))
        server.process.send_signal(signal.SIGCONT)
        for line in lines:
            reply = line.receive()
            assert reply["ok"], reply
            ids.add(reply["id"])
    assert len(ids) == PRODUCERS * ROUNDS
    # One for the log of each round, perhaps two where a turn of the server began before it was stopped,
    # and those of a checkpoint.
    assert ROUNDS <= faults.seen["sync"] - before <= 4 * ROUNDS
    for line in lines:
        line.close()
