"""A data file that others use: read, copied, or locked for a while, under a server at work (C028)."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Load:
    """One client that adds durable jobs and completes them, one after the other, and counts the answers."""

    def __init__(self, talk: Any) -> None:
        self.talk = talk
        self.added: list[str] = []
        self.refused: list[str] = []
        self.ended: list[str] = []
        self.unsure: list[tuple[str, str]] = []
        self.failed = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._once()
        except BaseException:
            self.failed = True
            raise

    def _once(self) -> None:
        reply = self.talk.call("PUSH", queue="q", name="n", data={"x": 1}, durable=True)
        if not reply["ok"]:
            self.refused.append(reply["error"])
            time.sleep(0.02)
            return
        self.added.append(reply["id"])
        got = self.talk.call("PULL", queue="q", owner="w", lockTtl=600_000)
        reply = self.talk.call("ACK", id=got["job"]["id"], token=got["token"], result=got["job"]["id"])
        if reply["ok"]:
            self.ended.append(got["job"]["id"])
        else:
            self.unsure.append((got["job"]["id"], reply["error"]))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        assert not self.failed


def until(load: Load, condition: Callable[[], object], seconds: float = 60) -> None:
    """A guard against hanging, not a measure."""
    end = time.monotonic() + seconds
    while not condition():
        assert not load.failed
        assert time.monotonic() < end, "nothing happened in time"
        time.sleep(0.01)


def test_cases_c028_a_busy_file_is_waited_for_and_then_named(start: Any, line: Any, tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    server = start("--data", str(file), "--log-level", "error")
    load, other = Load(line(server)), line(server)
    until(load, lambda: len(load.ended) > 20)

    # A reader with a snapshot, and a copy of the file meanwhile: nobody notices.
    reader = sqlite3.connect(file, isolation_level=None)
    reader.execute("BEGIN")
    rows = reader.execute("SELECT count(*) FROM jobs").fetchone()
    copy = sqlite3.connect(tmp_path / "copy.db")
    before = len(load.ended)
    reader.backup(copy)
    until(load, lambda: len(load.ended) > before + 20)
    assert reader.execute("SELECT count(*) FROM jobs").fetchone() == rows
    assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    reader.execute("COMMIT")
    copy.close()

    # A writer for less than the bound: calls wait, and others are served.
    reader.execute("BEGIN IMMEDIATE")
    done = len(load.added), len(load.ended)
    for _ in range(100):
        assert other.call("Ping")["ok"]
        time.sleep(0.01)
    assert len(load.added) <= done[0] + 1
    reader.execute("ROLLBACK")
    until(load, lambda: len(load.ended) > done[1] + 20)
    assert load.refused == load.unsure == []

    # For longer than that: one named error, and service resumes by itself.
    reader.execute("BEGIN EXCLUSIVE")
    until(load, lambda: load.refused)
    assert other.call("Ping")["ok"]
    status = other.call("StorageStatus")
    assert status["ok"]
    assert "locked" in str(status)
    assert len(load.unsure) <= 1
    reader.execute("ROLLBACK")
    reader.close()
    done = len(load.added), len(load.ended)
    until(load, lambda: len(load.ended) > done[1] + 20)
    load.stop()
    assert all("locked" in text for text in load.refused)
    assert all("locked" in text or "not on disk" in text for _, text in load.unsure)
    counts = other.call("GetJobCounts", queue="q")["counts"]
    assert counts["completed"] == len(load.added) == len(load.ended) + len(load.unsure)
    assert not counts["waiting"] + counts["active"] + counts["failed"]
    server.kill()
    again = line(start("--data", str(file)))
    # An answer that said that its change is not on disk yet was made good by a later commit.
    assert again.call("GetJobCounts", queue="q")["counts"]["completed"] == len(load.added)
    for job_id in (*load.ended[-5:], *(job_id for job_id, _ in load.unsure)):
        assert again.call("GetResult", id=job_id)["result"] == job_id
