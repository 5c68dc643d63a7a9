"""A server that is stopped while its disk is full: what was confirmed is written, or it says what is not."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.shim import EVERYBODY, Faults
from tests.server.conftest import PATIENCE_S, Running

Start = Callable[..., Running]
JOBS = 50
TRYING = "trying again in"


class Full:
    """A server with confirmed jobs that its full disk has no room for."""

    def __init__(self, start: Start, folder: Path, bound_ms: int) -> None:
        self.file = folder / "data" / "jobs.db"
        self.file.parent.mkdir()
        self.faults = Faults(folder, self.file)
        self.faults.attach(EVERYBODY)
        options = ("--data", str(self.file), "--shutdown-timeout-ms", str(bound_ms))
        self.server = start(*options, **self.faults.env)
        talk = self.server.connect()
        assert talk.ask(cmd="PUSH", queue="q", name="n", data=0, durable=True)["ok"]
        self.faults.fill_disk()
        assert not talk.ask(cmd="PUSH", queue="q", name="n", data=0, durable=True)["ok"]
        jobs = [{"name": "n", "data": "x" * 20_000} for _ in range(JOBS)]
        assert talk.ask(cmd="PUSHB", queue="q", jobs=jobs)["ok"]
        talk.close()

    def stop(self) -> None:
        self.server.process.send_signal(signal.SIGTERM)

    def ends(self) -> tuple[int, str]:
        return self.server.process.wait(PATIENCE_S), self.server.said()


def count(start: Start, file: Path) -> int:
    talk = start("--data", str(file)).connect()
    n: int = talk.ask(cmd="Count", queue="q")["count"]
    talk.close()
    return n


def test_room_that_comes_back_within_the_bound_is_used(start: Start, tmp_path: Path) -> None:
    full = Full(start, tmp_path, 600_000)
    full.stop()
    full.server.log_until(TRYING)
    full.faults.disarm()
    code, err = full.ends()
    assert (code, "Traceback" in err) == (0, False), err
    assert count(start, full.file) == 1 + JOBS


@pytest.mark.parametrize("how", ["the bound", "a second signal"])
def test_a_disk_that_stays_full_is_said_with_what_is_lost(start: Start, tmp_path: Path, how: str) -> None:
    full = Full(start, tmp_path, 500 if how == "the bound" else 600_000)
    full.stop()
    full.server.log_until(TRYING)
    if how == "a second signal":
        full.stop()
    code, err = full.ends()
    assert code == 3, err
    last = err.splitlines()[-1]
    assert re.fullmatch(
        rf"qcore start: stopped, but not everything .* jobs that are lost: {JOBS}; "
        r"the data file cannot be written since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC: .*full.*",
        last,
    ), err
    assert "Traceback" not in err
    full.faults.disarm()
    assert count(start, full.file) == 1


def test_an_end_that_cannot_be_noted_loses_nothing_and_is_tried_again(start: Start, tmp_path: Path) -> None:
    """Every change is in the file, and the disk is full only then."""
    file = tmp_path / "data" / "jobs.db"
    file.parent.mkdir()
    faults = Faults(tmp_path, file)
    faults.attach(EVERYBODY)
    server = start("--data", str(file), "--shutdown-timeout-ms", "300", **faults.env)
    talk = server.connect()
    assert talk.ask(cmd="PUSH", queue="q", name="n", data=0, durable=True)["ok"]
    talk.close()
    faults.fill_disk()
    server.process.send_signal(signal.SIGTERM)
    code, err = server.process.wait(PATIENCE_S), server.said()
    assert (code, TRYING in err) == (3, True), err
    assert "qcore start: stopped; every change is written, but not that it is the end: " in err
    faults.disarm()
    assert count(start, file) == 1
