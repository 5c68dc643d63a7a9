"""Events on a connection that also asks: they stand between the replies and disturb nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from qclient.client import Link
from qclient.local import shutdown_engine
from qclient.url import resolve


@pytest.mark.parametrize("where", ["memory", "file"])
def test_replies_are_found_among_events(where: str, tmp_path: Path) -> None:
    target = resolve("memory://" if where == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}", {})
    link = Link(target)
    try:
        assert link.call("SubscribeEvents", {"queue": "q"})["ok"]
        for n in range(50):
            assert link.call("PUSH", {"queue": "q", "name": "n", "jobId": f"job-{n}"})["id"] == f"job-{n}"
            job = link.call("PULL", {"queue": "q"})["job"]
            assert link.call("ACK", {"id": job["id"], "result": n})["ok"]
            assert link.call("GetResult", {"id": job["id"]})["result"] == n
    finally:
        link.close()
        shutdown_engine()
