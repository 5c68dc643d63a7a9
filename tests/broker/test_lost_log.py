"""What of the write-ahead log was lost before a start is told by engine, status and banner."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from broker_talk import Talk

from qcore.broker import open_broker
from qcore.broker.opening import close_broker
from qcore.server.loop import Server, banner
from qcore.server.options import parse


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A data file as a kill leaves it, with a damaged log."""
    made, path = tmp_path / "made.db", tmp_path / "jobs.db"
    broker = open_broker(str(made), mode="server")
    for n in range(10):
        Talk(broker).good("PUSH", queue="q", data=n, durable=True)
    for suffix in ("", "-wal", "-shm"):
        shutil.copyfile(f"{made}{suffix}", f"{path}{suffix}")
    close_broker(broker)
    with open(f"{path}-wal", "r+b") as log:
        log.seek(os.fstat(log.fileno()).st_size - 4120 * 3)
        log.write(bytes(100))
    return path


def test_the_engine_and_its_status_tell_what_was_lost(damaged: Path) -> None:
    for told in (True, False):
        broker = open_broker(str(damaged), mode="server")
        damage = broker.recovery.log_damage
        status = Talk(broker).good("StorageStatus")["data"]
        if told:
            assert damage is not None
            assert damage.copy == f"{damaged}-wal.damaged"
            assert status["lostAtStart"] == str(damage)
            assert "jobs.db-wal is damaged at frame" in str(damage)
            assert str(damaged.parent) not in str(damage)
        else:
            assert damage is None
            assert status["lostAtStart"] is None
        assert status["error"] is None
        close_broker(broker)
    broker = open_broker(None)
    assert Talk(broker).good("StorageStatus")["data"]["lostAtStart"] is None


def test_the_banner_tells_what_was_lost(damaged: Path) -> None:
    for told in (True, False):
        server = Server(parse(["--port", "0", "--data", str(damaged)], {}))
        try:
            text = banner(server)
        finally:
            server.stop()
            server.run()
        assert ("\n  lost        jobs.db-wal is damaged at frame" in text) is told
