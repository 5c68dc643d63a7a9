"""A server that is stopped for a while, as on a machine that was suspended (C001, C005)."""

from __future__ import annotations

import signal
import time
from typing import Any

LEASE_MS = 400


def test_c001_renewals_that_came_while_the_server_stood_still_count(start: Any, line: Any) -> None:
    server = start()
    worker, other = line(server), line(server)
    for name in ("renewed", "silent"):
        worker.call("PUSH", queue="q", name="n", jobId=name, maxAttempts=9)
    got = worker.call("PULLB", queue="q", count=2, owner="w", lockTtl=LEASE_MS)
    tokens = dict(zip((job["id"] for job in got["jobs"]), got["tokens"], strict=True))
    server.signal(signal.SIGSTOP)
    worker.send("JobHeartbeat", id="renewed", token=tokens["renewed"], duration=60_000)
    other.send("PULL", queue="q", timeout=20_000)
    end = time.monotonic() + 2 * LEASE_MS / 1000  # both leases run out meanwhile
    while (left := end - time.monotonic()) > 0:
        time.sleep(left)
    server.signal(signal.SIGCONT)
    assert worker.read()["ok"]
    job = other.read()["job"]
    assert (job["id"], job["attempts"]) == ("silent", 1)
    assert worker.call("GetState", id="renewed")["state"] == "active"
    assert worker.call("ACK", id="renewed", token=tokens["renewed"])["ok"]
    assert not worker.call("ACK", id="silent", token=tokens["silent"])["ok"]
