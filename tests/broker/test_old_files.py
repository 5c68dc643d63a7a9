"""Files that earlier versions left when they were killed: everything in them answers as it did.

``tests/data/old_files`` is made by ``make_old_file.py``, run by the code of its time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from broker_talk import Talk

from qcore.broker import open_broker
from qcore.broker.opening import close_broker
from qcore.clock import ManualClock
from qcore.store.base import Row
from qcore.store.native import NativeSqliteStore
from qcore.store.sqlite import SCHEMA_VERSION
from tests.faults.shim import EVERYBODY, Change, Faults

ARCHIVES = sorted(Path(__file__).parent.parent.joinpath("data", "old_files").glob("*.tar.gz"))
NAMES = [archive.name.removesuffix(".tar.gz") for archive in ARCHIVES]

OPEN = """
import os, sys
from qcore.store.native import NativeSqliteStore
store = NativeSqliteStore(sys.argv[1])
list(store.load().jobs)
os._exit(0)
"""


def unpack(archive: Path, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The data file, and what was said of it."""
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    return folder / "old.db", json.loads((folder / "said.json").read_bytes())


def as_json(reply: Any) -> Any:
    return json.loads(json.dumps(reply))


def pulled(talk: Talk, queue: str) -> list[str]:
    ids = []
    while (job := talk.good("PULL", queue=queue, owner="w")["job"]) is not None:
        ids.append(job["id"])
    return ids


def test_there_is_a_file_of_each_schema() -> None:
    assert {int(name.split("-")[1]) for name in NAMES} >= set(range(1, SCHEMA_VERSION))


@pytest.mark.parametrize("archive", ARCHIVES, ids=NAMES)
def test_what_was_in_it_answers_as_before(archive: Path, tmp_path: Path, clock: ManualClock) -> None:
    path, told = unpack(archive, tmp_path)
    for life in range(2):
        broker = open_broker(
            str(path), mode="server", clock=clock, seed=bytes([life + 1] * 16), keep_events=True
        )
        assert broker.recovery is not None
        assert (broker.recovery.crashed, broker.recovery.unreadable) == (life == 0, [])
        assert broker.recovery.log_damage is None
        talk = Talk(broker)
        found = [[question, as_json(talk.ask(**question))] for question, _ in told["said"]]
        assert [pair for pair in zip(found, told["said"], strict=True) if pair[0] != pair[1]] == []
        broker.engine._check()
        if life:
            for job_id, token in told["held"].items():
                talk.good("ACK", id=job_id, token=token, result=1)
            talk.good("Resume", queue="held")
            talk.good("ResumeGroup", queue="q", groupId="h")
            assert {queue: pulled(talk, queue) for queue in told["order"]} == told["order"]
        close_broker(broker)


def test_a_kill_at_any_step_of_the_migration(tmp_path: Path) -> None:
    """What is on the disk before each call that changes it is brought up to date as the whole was.

    The file of the first schema goes through every version.
    """
    path, _ = unpack(ARCHIVES[0], tmp_path)
    before = {suffix: Path(f"{path}{suffix}").read_bytes() for suffix in ("", "-wal")}
    faults = Faults(tmp_path, path)
    env = {**os.environ, **faults.env, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    faults.attach(EVERYBODY, record=True)
    subprocess.run([sys.executable, "-c", OPEN, str(path)], env=env, check=True)
    faults.attach(0, keep=True)
    changes = list(faults.changes())
    assert any(change.kind == "write" for change in changes)
    wanted = state_of(path)
    files = {suffix: bytearray(content) for suffix, content in before.items()}
    for n, change in enumerate(changes):
        copy = tmp_path / f"{n}.db"
        for suffix, content in files.items():
            Path(f"{copy}{suffix}").write_bytes(content)
        assert state_of(copy) == wanted, (n, change.kind, change.name)
        apply(files, change)


def state_of(path: Path) -> tuple[list[Row], dict[str, Any], list[Any], list[Any]]:
    store = NativeSqliteStore(path)
    try:
        assert store.log_damage is None
        found = store.load()
        assert store.integrity_check() == []
        return list(found.jobs), found.side, found.queues, found.names
    finally:
        store.close()


def apply(files: dict[str, bytearray], change: Change) -> None:
    """Do to these files what a call did."""
    if change.name not in ("", "-wal", "-journal") or change.kind == "sync":
        return
    if change.kind == "open":
        files[change.name] = bytearray()
    elif change.kind == "unlink":
        files.pop(change.name, None)
    else:
        content = files[change.name]
        if change.kind == "truncate":
            del content[change.offset :]
        content.extend(bytes(max(0, change.offset - len(content))))
        content[change.offset : change.offset + len(change.data)] = change.data
