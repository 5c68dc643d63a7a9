"""A server that stops answers everybody who waits: invariant 54."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize("out", [False, True], ids=["idle", "with a job out"])
def test_who_waits_at_a_stop_is_answered(start: Callable[..., Any], out: bool) -> None:
    server = start("--shutdown-timeout-ms", "200")
    holder, wait, pull, batch = (server.connect() for _ in range(4))
    assert holder.ask(cmd="PUSH", queue="q", name="n", jobId="a", delay=100_000)["ok"]
    if out:
        assert holder.ask(cmd="PUSH", queue="held", name="n")["ok"]
        assert holder.ask(cmd="PULL", queue="held", owner="w")["job"]
    wait.send(wait.frame(cmd="WaitJob", id="a", timeout=600_000, reqId="1"))
    pull.send(pull.frame(cmd="PULL", queue="z", timeout=60_000, owner="w", reqId="2"))
    batch.send(batch.frame(cmd="PULLB", queue="z", timeout=60_000, count=5, owner="w", reqId="3"))
    for line in (wait, pull, batch):
        # What was before it on this connection is waiting by now.
        assert line.ask(cmd="Ping", reqId="p")["reqId"] == "p"
    assert server.stop() == 0
    assert wait.receive() == {"ok": True, "completed": False, "reqId": "1"}
    assert pull.receive() == {"ok": True, "job": None, "token": None, "reqId": "2"}
    assert batch.receive() == {"ok": True, "jobs": [], "tokens": [], "reqId": "3"}
    for line in (holder, wait, pull, batch):
        assert line.rest() == b""
        line.close()
