"""A turn of the server that runs out of memory is done again, and ends nothing."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.server.conftest import Running, until

MIB = 1 << 20
Start = Callable[..., Running]


def address_space(server: Running) -> int:
    """Bytes of its address space that are in use."""
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


def limited(server: Running, what: int, most: int) -> None:
    resource.prlimit(server.process.pid, what, (most, resource.RLIM_INFINITY))


@pytest.mark.parametrize("ends", ["kill", "stop"])
def test_a_commit_without_the_memory_for_it_is_made_later(start: Start, tmp_path: Path, ends: str) -> None:
    """The guard of the loop around what is due, with a fault that machines have.

    The disk is full, so a cut of 48 MiB waits; joining the next one to it takes as much again.
    What that one had taken out of the engine was lost with the error.
    """
    path = str(tmp_path / "q.db")
    server = start(BUNQUEUE_DATA_PATH=path)
    line = server.connect()
    line.ask(cmd="PUSH", queue="q", name="n", jobId="before", durable=True)
    limited(server, resource.RLIMIT_FSIZE, 1000)
    large = [{"name": "n", "customId": f"large-{n}", "data": "x" * (6 * MIB)} for n in range(8)]
    assert line.ask(cmd="PUSHB", queue="q", jobs=large)["ok"]
    until(lambda: line.ask(cmd="StorageStatus")["data"]["error"])
    limited(server, resource.RLIMIT_AS, address_space(server) + 12 * MIB)
    assert line.ask(cmd="PUSH", queue="q", name="n", jobId="late")["ok"]
    server.log_until("what was due was not done: builtins.MemoryError")
    other = server.connect()
    assert other.ask(cmd="Ping")["ok"]
    assert other.ask(cmd="GetState", id="late")["state"] == "waiting"
    assert server.process.poll() is None
    for what in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE):
        limited(server, what, resource.RLIM_INFINITY)
    until(lambda: line.ask(cmd="StorageStatus")["data"]["error"] is None)
    assert line.ask(cmd="PUSH", queue="q", name="n", jobId="after", durable=True)["ok"]
    line.close()
    other.close()
    server.kill() if ends == "kill" else server.stop()
    again = start(BUNQUEUE_DATA_PATH=path)
    line = again.connect()
    for job_id in ("before", *(f"large-{n}" for n in range(len(large))), "late", "after"):
        assert line.ask(cmd="GetState", id=job_id)["state"] == "waiting", job_id
    line.close()
