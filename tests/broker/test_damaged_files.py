"""Data files with changed bits: each is refused with a reason, or the damaged rows are set aside and told."""

from __future__ import annotations

import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from broker_talk import Talk

from qcore.broker import open_broker, opening
from qcore.broker.core import Broker
from qcore.broker.opening import close_broker
from qcore.clock import ManualClock
from qcore.store.base import StoreFault
from tests.records import RECORD_VERSION, read_record

QUEUES = ("q0", "q1", "q2")
N_JOBS = 150


def fill(talk: Talk) -> None:
    for n in range(N_JOBS):
        options: dict[str, Any] = {"jobId": f"j{n}"} if n % 2 else {}
        options |= {"groupId": "g"} if n % 7 == 0 else {}
        options |= {"uniqueKey": f"k{n}"} if n % 5 == 0 else {}
        talk.good("PUSH", queue=QUEUES[n % 3], name="n", data={"n": n, "x": "d" * (7 * n)}, **options)
    for n in range(20):
        got = talk.good("PULL", queue="q1", owner="w", lockTtl=3_600_000)
        job_id, token = got["job"]["id"], got["token"]
        if n % 3 == 0:
            talk.good("ACK", id=job_id, token=token, result={"r": n})
        elif n % 3 == 1:
            talk.good("FAIL", id=job_id, token=token, error="e", unrecoverable=True)


def jobs_of(broker: Broker) -> dict[str, Any]:
    talk = Talk(broker)
    states = ("waiting", "prioritized", "delayed", "active", "completed", "failed")
    found: dict[str, Any] = {}
    for queue in (*QUEUES, "unreadable"):
        for state in states:
            for job in talk.good("GetJobs", queue=queue, state=state, limit=1000)["jobs"]:
                result = talk.ask("GetResult", id=job["id"]).get("result") if state == "completed" else None
                found[job["id"]] = (queue, state, job, result)
    return found


#: The default bound of completed jobs in memory, and one that leaves all but one to the archive.
BOUNDS: tuple[dict[str, int], ...] = ({}, {"max_completed": 1})


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ManualClock, dict[str, Any]]:
    """A data file with jobs of each kind, and what it holds."""
    path = tmp_path_factory.mktemp("sound") / "jobs.db"
    clock = ManualClock()
    broker = open_broker(str(path), mode="server", clock=clock, seed=bytes(16))
    fill(Talk(broker))
    found = jobs_of(broker)
    assert len(found) == N_JOBS
    close_broker(broker)
    return path, clock, found


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("seed", range(4))
def test_a_changed_bit_anywhere_is_told(
    sound: tuple[Path, ManualClock, dict[str, Any]],
    seed: int,
    tmp_path: Path,
    bound: dict[str, int],
) -> None:
    """At 4 times 50 places; nothing is lost, changed or run without a word (C031)."""
    path, clock, before = sound
    rnd = random.Random(seed)
    outcomes = {"refused": 0, "set aside": 0, "no harm": 0}
    for n in range(50):
        file = tmp_path / f"{n}.db"
        content = bytearray(path.read_bytes())
        at, bit = rnd.randrange(len(content)), 1 << rnd.randrange(8)
        content[at] ^= bit
        file.write_bytes(content)
        where = f"byte {at}, bit {bit}"
        broker: Broker | None
        try:
            broker = open_broker(str(file), mode="server", clock=clock, seed=bytes([1] * 16), **bound)
        except StoreFault as error:
            told_kind, text = error.kind, str(error)
            broker = None
        if broker is None:
            assert told_kind in ("corrupt", "foreign", "newer"), where
            assert "\n" not in text
            assert str(file) in text
            assert file.read_bytes() == content, "a refused file stays as it is"
            outcomes["refused"] += 1
            continue
        after = jobs_of(broker)
        told = broker.recovery.set_aside
        assert None not in told.values()
        assert len(told) == len(broker.recovery.unreadable) <= 1, where
        aside = {became[1] for became in told.values() if became is not None}
        changed = {job_id for job_id in before if before[job_id] != after.get(job_id)}
        assert len(changed) == len(told), (where, changed)
        assert after.keys() - before.keys() <= aside, where
        for job_id in aside:
            _, state, job, _ = after[job_id]
            assert state == "failed"
            assert job["data"].keys() == {"unreadable", "seq", "queue", "state", "record", "data", "result"}
        outcomes["set aside" if told else "no harm"] += 1
        broker.engine._check()
        close_broker(broker)
    assert min(outcomes["set aside"], outcomes["no harm"]) > 5, outcomes


def test_a_row_that_is_set_aside_is_listed_kept_and_removed_but_not_run(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")
    clock = ManualClock()
    broker = open_broker(path, mode="server", clock=clock, seed=bytes(16))
    talk = Talk(broker)
    for n in range(3):
        talk.good("PUSH", queue="q", name="n", jobId=f"j{n}", data={"n": n}, uniqueKey=f"k{n}", priority=n)
    talk.good(
        "SetDlqConfig", queue="q", config={"autoRetry": True, "autoRetryInterval": 1000, "maxAge": 5000}
    )
    close_broker(broker)
    damage(path)
    for life in range(2):
        broker = open_broker(path, mode="server", clock=clock, seed=bytes([life + 1] * 16))
        assert broker.recovery.set_aside == ({2: ("q", "j1")} if life == 0 else {})
        talk = Talk(broker)
        (entry,) = talk.good("Dlq", queue="q")["entries"]
        assert entry["reason"] == "unknown"
        assert "data is not what was written" in entry["error"]
        raw = entry["job"]["data"]
        assert (entry["job"]["name"], raw["seq"], raw["data"]) == ("unreadable", 2, b"\x81\xa1n\x02")
        assert raw["record"]
        assert talk.good("GetState", id="j1")["state"] == "failed"
        # Nothing runs it: no command, no time.
        assert talk.good("RetryDlq", queue="q")["count"] == 0
        assert talk.good("RetryDlq", queue="q", jobId="j1")["count"] == 0
        assert "damaged" in talk.refused("MoveToWait", id="j1")
        clock.advance(30 * 86_400_000)
        broker.pump()
        assert talk.good("GetState", id="j1")["state"] == "failed"
        broker.engine._check()
        close_broker(broker)
    broker = open_broker(path, mode="server", clock=clock, seed=bytes([9] * 16))
    talk = Talk(broker)
    assert talk.good("PUSH", queue="q", name="n", jobId="new", uniqueKey="k1")["id"] == "new"
    assert talk.good("RemoveDlqJob", queue="q", jobId="j1")["data"]["removed"]
    close_broker(broker)
    broker = open_broker(path, mode="server", clock=clock, seed=bytes([10] * 16))
    assert Talk(broker).good("GetState", id="j1")["state"] == "unknown"
    assert [job["id"] for job in Talk(broker).good("PULLB", queue="q", count=9)["jobs"]] == [
        "j2",
        "j0",
        "new",
    ]
    close_broker(broker)


def complete(talk: Talk, *ids: str) -> None:
    for job_id in ids:
        talk.good("PUSH", queue="q", name="n", jobId=job_id, data="D" * 50)
        talk.good("ACK", id=talk.good("PULL", queue="q")["job"]["id"], result="R" * 40)


DAMAGE = {
    "data": "data = CAST(replace(data, 'DDD', 'DXD') AS BLOB)",
    "result": "result = CAST(replace(result, 'RRR', 'RXR') AS BLOB)",
    "record": "record = CAST(substr(record, 1, length(record) - 2) || x'0000' AS BLOB)",
    "cut": "record = substr(record, 1, 30)",
}


@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.parametrize("room", [True, False])
def test_a_damaged_row_of_an_archived_job_is_set_aside_and_nothing_disagrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, room: bool
) -> None:
    """Or is left in the file, when there is no room for it; it is counted and listed nowhere then."""
    path = str(tmp_path / "jobs.db")
    clock = ManualClock()
    broker = open_broker(path, mode="server", clock=clock, seed=bytes(16), max_completed=2)
    complete(Talk(broker), *[f"a{n}" for n in range(6)])
    close_broker(broker)
    con = sqlite3.connect(path)
    con.execute(f"UPDATE jobs SET {DAMAGE[what]} WHERE seq = 2")
    con.commit()
    con.close()
    if not room:
        monkeypatch.setattr(opening, "SET_ASIDE_ROWS", 0)
    sound = ["a0", "a2", "a3", "a4", "a5"]
    dead = "a1" if what in ("data", "result") else "unreadable-2"
    for life in range(2):
        broker = open_broker(path, mode="server", clock=clock, seed=bytes([life + 1] * 16), max_completed=2)
        told = [2] if life == 0 or not room else []
        assert [seq for seq, _ in broker.recovery.unreadable] == told
        talk = Talk(broker)
        counts = talk.good("GetJobCounts", queue="q")["counts"]
        assert (counts["completed"], counts["failed"]) == (5, int(room))
        listed = talk.good("GetJobs", queue="q", state="completed", limit=50)["jobs"]
        assert [job["id"] for job in listed] == sound
        assert [talk.good("GetState", id=job_id)["state"] for job_id in sound] == ["completed"] * 5
        assert [entry["job"]["id"] for entry in talk.good("Dlq", queue="q")["entries"]] == [dead] * room
        if dead == "a1":
            assert talk.good("GetState", id="a1")["state"] == ("failed" if room else "unknown")
        broker.engine._check()
        close_broker(broker)
    broker = open_broker(path, mode="server", clock=clock, seed=bytes([9] * 16), max_completed=2)
    talk = Talk(broker)
    assert talk.good("Clean", queue="q", grace=0, state="completed", limit=100)["ids"] == sound
    assert talk.good("GetJobCounts", queue="q")["counts"]["completed"] == 0
    if room:
        assert talk.good("RemoveDlqJob", queue="q", jobId=dead)["data"]["removed"]
    talk.good("PUSH", queue="q", name="n", jobId="a1", data="new")
    broker.engine._check()
    close_broker(broker)
    broker = open_broker(path, mode="server", clock=clock, seed=bytes([10] * 16), max_completed=2)
    assert Talk(broker).good("PULL", queue="q")["job"]["data"] == "new"
    close_broker(broker)


def damage(path: str) -> None:
    """Change a byte of the data of the second row, as a bad disk does."""
    content = bytearray(Path(path).read_bytes())
    at = content.index(b"\x81\xa1n\x01")
    content[at + 3] = 2
    Path(path).write_bytes(content)


def test_a_row_without_a_seal_is_still_read(tmp_path: Path) -> None:
    """As the first version of records had it; the next write seals it."""
    path = str(tmp_path / "jobs.db")
    clock = ManualClock()
    broker = open_broker(path, mode="server", clock=clock, seed=bytes(16))
    talk = Talk(broker)
    talk.good("PUSH", queue="q", name="n", jobId="a", data=[1])
    close_broker(broker)
    con = sqlite3.connect(path)
    ((record,),) = con.execute("SELECT record FROM jobs")
    con.execute("UPDATE jobs SET record = ?", (bytes(read_record(record).plain),))
    con.commit()
    con.close()
    broker = open_broker(path, mode="server", clock=clock, seed=bytes([1] * 16))
    talk = Talk(broker)
    got = talk.good("PULL", queue="q", owner="w")
    assert got["job"]["data"] == [1]
    talk.good("FAIL", id="a", token=got["token"], error="e", unrecoverable=True)
    close_broker(broker)
    broker = open_broker(path, mode="server", clock=clock, seed=bytes([2] * 16))
    assert not broker.recovery.unreadable
    assert Talk(broker).good("GetState", id="a")["state"] == "failed"
    close_broker(broker)
    con = sqlite3.connect(path)
    ((record,),) = con.execute("SELECT record FROM jobs")
    con.close()
    assert record[0] == RECORD_VERSION


@pytest.mark.parametrize("flag", [1024, 2048])
def test_a_flag_without_its_options_is_damage(tmp_path: Path, flag: int) -> None:
    """Of a row without a seal, which nothing else tells that it was changed."""
    path = str(tmp_path / "jobs.db")
    clock = ManualClock()
    broker = open_broker(path, mode="server", clock=clock, seed=bytes(16))
    Talk(broker).good("PUSH", queue="q", name="n", jobId="a", data=[1])
    close_broker(broker)
    con = sqlite3.connect(path)
    ((record,),) = con.execute("SELECT record FROM jobs")
    plain = bytearray(read_record(record).plain)
    plain[4:8] = (int.from_bytes(plain[4:8], "little") | flag).to_bytes(4, "little")
    con.execute("UPDATE jobs SET record = ?", (bytes(plain),))
    con.commit()
    con.close()
    for n in range(2):
        broker = open_broker(path, mode="server", clock=clock, seed=bytes([n] * 16))
        assert len(broker.recovery.unreadable) == 1 - n
        assert Talk(broker).good("GetJobCounts", queue="q")["counts"]["failed"] == 1
        close_broker(broker)


def test_no_changed_bit_makes_another_version_of_a_record() -> None:
    assert not {RECORD_VERSION ^ (1 << bit) for bit in range(8)} & {1, 2, RECORD_VERSION}


def test_a_damaged_row_hides_no_others(tmp_path: Path) -> None:
    """The id of each thousandth row leads the way to those after it: not one that may be wrong."""
    path = str(tmp_path / "jobs.db")
    clock = ManualClock()
    broker = open_broker(path, mode="server", clock=clock, seed=bytes(16), max_completed=1)
    talk = Talk(broker)
    ids = []
    for _ in range(3):
        talk.good("PUSHB", queue="q", jobs=[{"name": "n", "data": n} for n in range(1000)])
        clock.advance(5)
        got = talk.good("PULLB", queue="q", owner="w", count=1000)
        ids += [job["id"] for job in got["jobs"]]
        talk.good("ACKB", ids=ids[-1000:], tokens=got["tokens"])
    close_broker(broker)
    con = sqlite3.connect(path)
    record = con.execute("SELECT record FROM jobs WHERE seq = 1025").fetchone()[0]
    upper = read_record(record).id_bytes[:8]
    assert record.count(upper) == 1
    spoilt = record.replace(upper, (int.from_bytes(upper, "little") | 1 << 63).to_bytes(8, "little"))
    con.execute("UPDATE jobs SET record = ? WHERE seq = 1025", (spoilt,))
    con.commit()
    con.close()
    broker = open_broker(path, mode="server", clock=clock, seed=bytes([1] * 16), max_completed=1)
    assert len(broker.recovery.unreadable) == 1
    states = {Talk(broker).good("GetState", id=one)["state"] for one in ids[::50]}
    assert states == {"completed"}
    close_broker(broker)


def test_a_file_that_is_cut_off_anywhere_is_refused(
    sound: tuple[Path, ManualClock, dict[str, Any]], tmp_path: Path
) -> None:
    path, clock, _ = sound
    size = path.stat().st_size
    for n, part in enumerate((0.01, 0.1, 0.37, 0.5, 0.83, 0.99)):
        file = tmp_path / f"{n}.db"
        shutil.copyfile(path, file)
        with file.open("r+b") as cut:
            cut.truncate(int(size * part))
        with pytest.raises(StoreFault) as caught:
            open_broker(str(file), mode="server", clock=clock)
        assert caught.value.kind in ("corrupt", "foreign")
        assert file.stat().st_size == int(size * part)


def test_a_flood_of_damaged_rows_is_taken_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is dropped for want of room; each start takes some more."""
    monkeypatch.setattr(opening, "SET_ASIDE_ROWS", 10)
    path = str(tmp_path / "jobs.db")
    clock = ManualClock()
    broker = open_broker(path, mode="server", clock=clock, seed=bytes(16))
    talk = Talk(broker)
    talk.good("PUSHB", queue="q", jobs=[{"name": "n", "data": n} for n in range(40)])
    talk.good("SetDlqConfig", queue="q", config={"maxEntries": 25})
    close_broker(broker)
    con = sqlite3.connect(path)
    con.execute("UPDATE jobs SET data = x'c1' WHERE seq <= 35")
    con.commit()
    con.close()
    for aside in (10, 20, 25, 25):
        broker = open_broker(path, mode="server", clock=clock, seed=bytes([aside] * 16))
        talk = Talk(broker)
        counts = talk.good("GetJobCounts", queue="q")["counts"]
        assert (counts["failed"], counts["waiting"]) == (aside, 5)
        assert len(broker.recovery.unreadable) == 35 - aside + len(
            [1 for became in broker.recovery.set_aside.values() if became is not None]
        )
        close_broker(broker)
    con = sqlite3.connect(path)
    assert con.execute("SELECT count(*) FROM jobs").fetchone() == (40,)
    con.close()
