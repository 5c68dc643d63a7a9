"""A backup of a file whose log is damaged says so, and leaves the traces that tell the next start."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from qclient import Queue, cli, shutdown_engine
from qcore.backup import Place, list_backups, make_backup
from qcore.broker import open_broker
from qcore.broker.opening import close_broker
from qcore.errors import BackupError
from tests.backup.looking import names

LAST = 3 * 4120


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A data file as a kill leaves it."""
    made, path = tmp_path / "made.db", tmp_path / "jobs.db"
    with Queue("q", f"sqlite:///{made}?adds=committed") as queue:
        for n in range(10):
            queue.add("n", n)
        for suffix in ("", "-wal", "-shm"):
            shutil.copyfile(f"{made}{suffix}", f"{path}{suffix}")
    shutdown_engine()
    return path


def files_of(path: Path) -> dict[str, bytes]:
    return {
        name: (path.parent / name).read_bytes() for name in names(path.parent) if name.startswith(path.name)
    }


def spoil_the_end(wal: Path) -> None:
    with open(wal, "r+b") as log:
        log.seek(os.fstat(log.fileno()).st_size - LAST)
        log.write(bytes(LAST))


def spoil_the_header(wal: Path) -> None:
    with open(wal, "r+b") as log:
        log.write(bytes(8))


@pytest.mark.parametrize("spoil", [spoil_the_end, spoil_the_header, Path.unlink])
def test_what_is_lost_is_said_and_said_again_by_the_next_start(
    killed: Path, place: Place, spoil: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    wal = Path(f"{killed}-wal")
    spoil(wal)
    before = files_of(killed)
    first, _ = make_backup(killed, place, 7)
    assert "jobs.db-wal" in first.lost
    assert first.jobs < 10
    assert [backup.lost for backup in list_backups(place)] == [first.lost]
    assert cli.main(["backup", "now", "--data", str(killed), "--to", place.name]) == 0
    assert f"lost    {first.lost}\n" in capsys.readouterr().out
    assert cli.main(["backup", "status", "--to", place.name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["newest"]["lost"] == first.lost
    assert files_of(killed) == before
    broker = open_broker(str(killed), mode="server")
    assert broker.recovery is not None
    found = broker.recovery.log_damage
    assert found is not None
    assert str(found).split("; the log as it was")[0] == first.lost
    assert broker.recovery.jobs == first.jobs
    close_broker(broker)
    whole, _ = make_backup(killed, place, 7)
    assert whole.lost == ""


def test_a_sound_log_is_no_loss(killed: Path, place: Place) -> None:
    backup, _ = make_backup(killed, place, 7)
    assert (backup.jobs, backup.lost) == (10, "")
    assert "lost" not in json.loads(backup.packed())


def test_the_log_of_another_state_is_refused(
    killed: Path, place: Place, make_data: Callable[..., Path]
) -> None:
    """It would be a mixture of the two."""
    shutil.copyfile(make_data(5, "other.db"), killed)
    before = killed.read_bytes()
    with pytest.raises(BackupError, match="is the log of another file"):
        make_backup(killed, place, 7)
    assert killed.read_bytes() == before
    assert not any(name.endswith(".gz") for name in names(Path(place.name)))
