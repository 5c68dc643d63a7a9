"""A server that is stopped while clients go on keeps all that it confirmed."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BURST = 50


class Flood(threading.Thread):
    """Adds jobs in bursts, and takes and ends some, until the connection is closed."""

    def __init__(self, talk: Any) -> None:
        super().__init__(daemon=True)
        self.talk = talk
        self.sent = self.added = self.asked = self.done = 0
        self.under_way = threading.Event()

    def run(self) -> None:
        try:
            while True:
                for _ in range(BURST):
                    self.talk.send("PUSH", queue="q", name="n", data=self.sent, durable=self.sent % 10 == 0)
                    self.sent += 1
                for _ in range(BURST):
                    self.added += self.talk.read()["ok"]
                reply = self.talk.call("PULL", queue="q", owner="w")
                if reply.get("job"):
                    self.asked += 1
                    self.done += self.talk.call("ACK", id=reply["job"]["id"], token=reply["token"])["ok"]
                if self.added > 10 * BURST:
                    self.under_way.set()
        except (OSError, EOFError, AssertionError):
            self.under_way.set()


@pytest.mark.parametrize("signals", [1, 2])
def test_what_was_confirmed_is_in_the_file(
    start: Callable[..., Any], line: Callable[..., Any], tmp_path: Path, signals: int
) -> None:
    """Plain adds too: a stop writes what it holds, at the bound as well as at a second signal."""
    file = tmp_path / "jobs.db"
    bound_ms = "200" if signals == 1 else "600000"
    server = start("--data", str(file), "--shutdown-timeout-ms", bound_ms)
    holder = line(server)
    holder.call("PUSH", queue="held", name="n", data=0)
    held = holder.call("PULL", queue="held", owner="w", lockTtl=60_000)
    floods = [Flood(line(server)) for _ in range(3)]
    for flood in floods:
        flood.start()
    for flood in floods:
        assert flood.under_way.wait(60)
    server.signal(signal.SIGTERM)
    taken = 0
    if signals == 2:
        # Once nothing is given out any more, the first one has been taken.
        while holder.call("PULL", queue="q", owner="w").get("job"):
            taken += 1
        server.signal(signal.SIGTERM)
    code, err = server.end(30)
    assert (code, "Traceback" in err) == (signals - 1, False), err
    for flood in floods:
        flood.join(30)
        assert not flood.is_alive()
    assert not Path(f"{file}-wal").exists()
    assert not Path(f"{file}.lock").exists()
    talk = line(start("--data", str(file)))
    counts = talk.call("GetJobCounts", queue="q")["counts"]
    there = sum(counts[state] for state in ("waiting", "active", "completed", "failed", "delayed"))
    assert sum(flood.added for flood in floods) <= there <= sum(flood.sent for flood in floods)
    assert sum(flood.done for flood in floods) <= counts["completed"]
    assert counts["completed"] + counts["active"] <= sum(flood.asked + 1 for flood in floods) + taken
    assert talk.call("GetState", id=held["job"]["id"])["state"] == "active"
    assert talk.call("GetJob", id=held["job"]["id"])["job"]["attempts"] == 0
    assert talk.call("ACK", id=held["job"]["id"], token=held["token"])["ok"]


def test_a_signal_just_before_the_wait_stops_the_server(start: Callable[..., Any], tmp_path: Path) -> None:
    """An idle server sleeps up to an hour: a signal that did not interrupt the sleep must prevent it."""
    source = Path(__file__).with_name("signal_before_wait.c")
    shim, cue = tmp_path / "shim.so", tmp_path / "cue"
    compiler = shlex.split(os.environ.get("CC") or "gcc")
    flags = ["-O1", "-Wall", "-Werror", "-shared", "-fPIC"]
    subprocess.run([*compiler, *flags, "-o", str(shim), str(source), "-ldl"], check=True)
    cue.touch()
    server = start(LD_PRELOAD=str(shim), SIGNAL_FILE=str(cue))
    code, err = server.end(30)
    assert (code, cue.exists()) == (0, False), err
