"""Cases of the layer persistence on real files: answers over a restart, damaged rows, sizes of the files."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any, Literal

import pytest
from broker_talk import Talk
from questions import OF_GROUP, OF_JOB, OF_PARENT, OF_QUEUE

from qcore.broker import open_broker
from qcore.broker.core import Broker
from qcore.broker.opening import close_broker, commit, flush
from qcore.clock import ManualClock
from qcore.store.sqlite import CHECKPOINT_PAGES, PAGE_BYTES

Mode = Literal["embedded", "server"]
HOUR_MS = 3_600_000


class Home:
    """A data file and the brokers that have it, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.file = folder / "0.db"
        self.lives = 0
        self.broker: Broker | None = None

    def start(self, mode: Mode = "server", **options: Any) -> Talk:
        self.lives += 1
        self.broker = open_broker(
            str(self.file), mode=mode, clock=self.clock, seed=bytes([self.lives] * 16), **options
        )
        return Talk(self.broker)

    def close(self) -> None:
        assert self.broker is not None
        close_broker(self.broker)
        self.broker = None

    def kill(self) -> None:
        """Go on with what lies in the file now, as after SIGKILL."""
        assert self.broker is not None
        flush(self.broker)
        left = self.folder / f"{self.lives}.db"
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{self.file}{suffix}", f"{left}{suffix}")
        self.close()
        self.file = left

    @property
    def log_bytes(self) -> int:
        return Path(f"{self.file}-wal").stat().st_size


@pytest.fixture
def home(tmp_path: Path) -> Any:
    home = Home(tmp_path)
    yield home
    if home.broker is not None:
        home.close()


# --- C026 ------------------------------------------------------------------------------------------


def make_everything(talk: Talk, *, active: bool) -> list[str]:
    """Jobs in each state with all that a job can have; their ids."""
    ids: list[str] = []

    def add(job_id: str, **options: Any) -> str:
        ids.append(job_id)
        job = {"queue": "q", "name": "n", "data": {"of": job_id}, "backoff": HOUR_MS, **options}
        return str(talk.good("PUSH", jobId=job_id, **job)["id"])

    def take(job_id: str, queue: str = "q") -> str:
        got = talk.good("PULL", queue=queue, owner="w", lockTtl=HOUR_MS)
        assert got["job"]["id"] == job_id
        return str(got["token"])

    add("completed", tags=["a"], keepLogs=5, priority=9)
    token = take("completed")
    talk.good("AddLog", id="completed", message="line", level="warn")
    talk.good("Progress", id="completed", token=token, progress=40, message="on")
    talk.good("ACK", id="completed", token=token, result={"deep": [1, 2.5, None, "ä", b"x"]})
    add("large", data="x" * 30_000, priority=9)
    talk.good("ACK", id="large", token=take("large"), result="y" * 30_000)
    add("dead", priority=9, maxAttempts=1, uniqueKey="free")
    stack = ["line 1", "line 2"]
    talk.good("FAIL", id="dead", token=take("dead"), error="why", stack=stack)
    add("retried", priority=9)
    talk.good("FAIL", id="retried", token=take("retried"), error="not yet", stack=stack)
    flow = [("top", "tops", {"dependsOn": ["kid", "bad"], "childrenIds": ["kid", "bad"]})]
    flow += [("kid", "kids", {"parentId": "top"}), ("bad", "kids", {"parentId": "top", "maxAttempts": 1})]
    flow[2][2]["ignoreDependencyOnFailure"] = True
    flow.insert(1, ("other", "kids", {"parentId": "top"}))
    flow[0][2]["dependsOn"].append("other")
    flow[0][2]["childrenIds"].append("other")
    meta = {"__parentId": "top", "__parentQueue": "tops"}
    jobs = [
        {"id": i, "queue": queue, "input": {"name": "n", "data": dict(meta), **options}}
        for i, queue, options in flow
    ]
    jobs[0]["input"]["data"] = {"__childrenIds": ["kid", "bad", "other"]}
    talk.good("PUSHF", jobs=jobs)
    ids += ["top", "kid", "bad", "other"]
    assert talk.good("PULL", queue="kids")["job"]["id"] == "other"  # goes back: no lease
    talk.good("MoveToWait", id="other")
    talk.good("ChangePriority", id="kid", priority=5)
    talk.good("ChangePriority", id="bad", priority=4)
    talk.good("ACK", id="kid", token=take("kid", "kids"), result={"v": 1})
    talk.good("FAIL", id="bad", token=take("bad", "kids"), error="ignored")
    if active:
        add("active", priority=9, timeout=HOUR_MS, groupId="g", uniqueKey="taken")
        token = take("active")
        talk.good("Progress", id="active", token=token, progress=7, message="going")
        talk.good("AddLog", id="active", message="line")
    add("waiting", ttl=HOUR_MS, stallTimeout=9000, lifo=True, removeOnComplete=3)
    add("low", priority=-7)
    add("delayed", delay=HOUR_MS, uniqueKey="held")
    add("limited", groupId="h")
    talk.good("PauseGroup", queue="q", groupId="h")
    talk.good("SetGroupConcurrency", queue="q", groupId="g", concurrency=4)
    talk.good("SetGroupRateLimit", queue="q", groupId="g", max=1000, duration=60_000)
    talk.good("PUSH", queue="held", name="n", jobId="paused")
    ids.append("paused")
    talk.good("Pause", queue="held")
    talk.good("SetConcurrency", queue="held", limit=5)
    talk.good("SetDlqConfig", queue="q", config={"maxEntries": 7})
    talk.good("SetStallConfig", queue="q", config={"maxStalls": 9})
    talk.good("Cron", name="c", queue="held", schedule="0 0 1 1 *", data={"c": 1}, maxLimit=4)
    return ids


def answers(talk: Talk, ids: list[str]) -> dict[str, Any]:
    found = {f"{cmd} {i}": talk.ask(cmd, id=i) for cmd in (*OF_JOB, *OF_PARENT) for i in ids}
    for queue in ("q", "held", "kids", "tops", "none"):
        found |= {f"{cmd} {queue}": talk.good(cmd, queue=queue) for cmd in (*OF_QUEUE, "GetDlqStats")}
        for key in ("free", "held", "taken"):
            found[f"key {queue} {key}"] = talk.good("GetDeduplicationJobId", queue=queue, deduplicationId=key)
        for group in ("g", "h"):
            found |= {
                f"{cmd} {queue} {group}": talk.good(cmd, queue=queue, groupId=group) for cmd in OF_GROUP
            }
        for kind in ("completed", "failed"):
            found[f"Metrics {queue} {kind}"] = talk.good("Metrics", queue=queue, type=kind)
    for job_id in ids:
        found[f"custom {job_id}"] = talk.ask("GetJobByCustomId", customId=job_id)
    return found | {cmd: talk.good(cmd) for cmd in ("ListQueues", "CronList")}


@pytest.mark.parametrize("end", ["close", "kill"])
@pytest.mark.parametrize("mode", ["server", "embedded"])
def test_cases_c026_answers_outlive_a_restart(home: Home, mode: Mode, end: str) -> None:
    talk = home.start(mode)
    ids = make_everything(talk, active=mode == "server")
    before = answers(talk, ids)
    for _ in range(2):
        getattr(home, end)()
        talk = home.start(mode)
        after = answers(talk, ids)
        assert {k: (before[k], v) for k, v in after.items() if before[k] != v} == {}
        assert after.keys() == before.keys()
    assert talk.good("PUSH", queue="q", name="n", uniqueKey="held")["id"] == "delayed"
    new = [talk.good("PUSH", queue="q", name="n")["id"] for _ in range(3)]
    assert len({*new, *ids}) == len(ids) + 3
    if mode == "server":
        token = None  # whoever has it may go on, nobody else
        assert "token" in talk.refused("ACK", id="active", token=token, result=1).lower()


def test_cases_c026_active_jobs_of_an_embedded_engine_come_back(home: Home) -> None:
    """Uncharged after a clean end, charged one attempt and one stall after a crash; the rest stays."""
    for end, charge in (("close", 0), ("kill", 1)):
        talk = home.start("embedded")
        job_id = f"by-{end}"
        talk.good("PUSH", queue=end, name="n", jobId=job_id, uniqueKey="k", groupId="g", data=[1], backoff=0)
        token = talk.good("PULL", queue=end, owner="w")["token"]
        talk.good("AddLog", id=job_id, message="line")
        talk.good("Progress", id=job_id, token=token, progress=7, message="going")
        before = talk.good("GetJob", id=job_id)["job"]
        getattr(home, end)()
        talk = home.start("embedded")
        after = talk.good("GetJob", id=job_id)["job"]
        assert (after["attempts"], after["stallCount"]) == (charge, charge)
        for name in ("data", "name", "uniqueKey", "groupId", "createdAt", "maxAttempts", "customId"):
            assert after[name] == before[name]
        assert talk.good("GetLogs", id=job_id)["data"]["count"] == 1
        assert talk.good("PUSH", queue=end, name="n", uniqueKey="k")["id"] == job_id
        home.clock.advance(HOUR_MS)
        turn(home.broker)
        again = talk.good("PULL", queue=end, owner="w")
        assert again["job"]["id"] == job_id
        assert "token" in talk.refused("ACK", id=job_id, token=token).lower()
        talk.good("ACK", id=job_id, token=again["token"])
        home.close()


# --- C031 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [{}, {"max_completed": 1}])
def test_cases_c031_bad_rows_do_not_stop_the_queue(
    home: Home, caplog: pytest.LogCaptureFixture, bound: dict[str, int]
) -> None:
    """Each is named, set aside as a dead letter with its bytes, and can be removed; everything else runs."""
    talk = home.start(**bound)
    for n in range(107):
        talk.good("PUSH", queue="q", name="n", jobId=str(n), data={"n": n}, priority=int(n < 7))
    talk.good("ACK", id="6", token=_take(talk, 7)["6"], result={"r": "x" * 50})
    for n in range(3):  # with a small bound, the damaged row is then that of an archived job
        talk.good("PUSH", queue="done", name="n", jobId=f"done{n}")
        assert talk.good("PULL", queue="done")["job"]["id"] == f"done{n}"
        home.clock.advance(5)
        talk.good("ACK", id=f"done{n}")
    for name in ("good", "bad"):
        talk.good("Cron", name=name, queue="other", schedule="0 0 1 1 *", data={})
    home.close()
    con = sqlite3.connect(home.file)
    seqs = [seq for (seq,) in con.execute("SELECT seq FROM jobs ORDER BY seq LIMIT 7")]
    con.execute("UPDATE jobs SET data = substr(data, 1, 2) WHERE seq = ?", (seqs[0],))
    con.execute("UPDATE jobs SET data = x'c1' WHERE seq = ?", (seqs[1],))
    con.execute("UPDATE jobs SET record = substr(record, 1, 30) WHERE seq = ?", (seqs[2],))
    con.execute("UPDATE jobs SET state = 77 WHERE seq = ?", (seqs[3],))
    con.execute("UPDATE jobs SET record = zeroblob(200) WHERE seq = ?", (seqs[4],))
    con.execute("UPDATE jobs SET queue = 4711 WHERE seq = ?", (seqs[5],))
    con.execute("UPDATE jobs SET result = substr(result, 1, 9) WHERE seq = ?", (seqs[6],))
    con.execute("UPDATE schedules SET value = replace(value, '0 0 1 1 *', '0 0 99 1 ') WHERE key = 'bad'")
    con.commit()
    con.close()

    for first in (True, False):
        caplog.clear()
        talk = home.start(**bound)
        assert sorted(seq for seq, _ in home.broker.recovery.unreadable) == (seqs if first else [])
        assert len(caplog.records) <= 10, "no endless log"
        for seq in seqs if first else []:
            assert f"row {seq} " in caplog.text
        assert [cron["name"] for cron in talk.good("CronList")["crons"]] == ["good"]
        assert "schedule 'bad' cannot be read" in caplog.text
        # Under their own ids where the record is sound.
        entries = talk.good("Dlq", queue="q")["entries"]
        known = {"0", "1", "6", *(f"unreadable-{seq}" for seq in seqs[2:5])}
        assert {entry["job"]["id"] for entry in entries} == known
        assert all("cannot be read" in entry["error"] for entry in entries)
        assert [job["id"] for job in talk.good("Dlq", queue="unreadable")["jobs"]] == [
            f"unreadable-{seqs[5]}"
        ]
        home.close()
    talk = home.start(**bound)
    held = _take(talk, 200)
    assert [*held] == [str(n) for n in range(7, 107)]
    for job_id, token in held.items():
        talk.good("ACK", id=job_id, token=token)
    assert talk.good("PurgeDlq", queue="q")["count"] == 6
    assert talk.good("PurgeDlq", queue="unreadable")["count"] == 1
    talk.good("PUSH", queue="q", name="n", jobId="0", data="again")
    home.close()
    talk = home.start(**bound)
    assert home.broker.recovery.unreadable == []
    assert [*_take(talk, 9)] == ["0"]
    assert talk.good("Dlq", queue="q")["jobs"] == []


def _take(talk: Talk, count: int) -> dict[str, str]:
    got = talk.good("PULLB", queue="q", count=count, owner="w")
    return {job["id"]: token for job, token in zip(got["jobs"], got["tokens"], strict=True)}


# --- C030, C032 ------------------------------------------------------------------------------------


def turn(broker: Broker) -> None:
    """What a server does between two looks at its sockets."""
    _, cut = broker.pump()
    if cut is not None:
        commit(broker, cut)


def tidy(broker: Broker) -> None:
    """What the writer of a server does behind a commit, when no other one has come."""
    while broker.store.wants_maintenance:
        broker.store.maintain()


def churn(home: Home, talk: Talk, first: int, count: int, **options: Any) -> None:
    """Add and end so many jobs, 50 at a time."""
    for n in range(first, first + count, 50):
        home.clock.advance(1)
        jobs = [
            {"name": "n", "customId": str(i), "data": {"x": "d" * 900}, **options} for i in range(n, n + 50)
        ]
        talk.good("PUSHB", queue="q", jobs=jobs)
        flush(home.broker)
        held = _take(talk, 50)
        talk.good("ACKB", ids=[*held], tokens=[*held.values()])
        tidy(home.broker)


def test_cases_c030_the_log_stays_bounded_while_lists_are_paged(home: Home) -> None:
    """No call of ours keeps a read transaction open, also where pages come from the file."""
    talk = home.start(max_completed=200)
    bound = 2 * CHECKPOINT_PAGES * PAGE_BYTES
    seen: list[str] = []
    for n in range(0, 9000, 500):
        churn(home, talk, n, 500)
        talk.send({"cmd": "GetJobs", "queue": "q", "state": "completed", "offset": len(seen), "limit": 100})
        while not (replies := talk.replies()):
            turn(home.broker)  # a long walk is made in steps
        page = replies[0]["jobs"]
        assert len(page) == 100
        seen += [job["id"] for job in page]
        assert home.log_bytes < bound
    assert len({*seen}) == len(seen) == 1800
    checkpoints = home.broker.store.status()["checkpoints"]
    assert isinstance(checkpoints, int)
    assert checkpoints > 2


def test_cases_c032_churn_does_not_grow_the_file(home: Home) -> None:
    talk = home.start()
    talk.good("PUSHB", queue="q", jobs=[{"name": "n", "data": {"x": "d" * 1000}} for _ in range(200)])
    sizes = []
    for _ in range(60):
        held = _take(talk, 200)
        assert len(held) == 200
        for job_id, token in held.items():
            talk.send({"cmd": "MoveToDelayed", "id": job_id, "token": token, "delay": 1})
        flush(home.broker)
        assert all(reply["ok"] for reply in talk.replies())
        tidy(home.broker)
        home.clock.advance(1)
        turn(home.broker)
        sizes.append(home.file.stat().st_size)
    assert sizes[-1] <= 1.1 * max(*sizes[: len(sizes) // 10], PAGE_BYTES * 200)
    for job_id, token in _take(talk, 200).items():
        talk.good("ACK", id=job_id, token=token)
    talk.good("Obliterate", queue="q")
    sizes = []
    for n in range(0, 14_000, 500):
        churn(home, talk, n, 500, removeOnComplete=True)
        sizes.append(home.file.stat().st_size)
        assert home.log_bytes < 2 * CHECKPOINT_PAGES * PAGE_BYTES
    # Rows that are gone keep their place until the log of changes is folded, at 2,048 of them.
    assert sizes[-1] <= 1.1 * sizes[7]
    home.close()
    con = sqlite3.connect(home.file)
    pages, free = (con.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count"))
    con.close()
    # Nothing lives any more: what is not free are roots of tables and evidence of ids.
    assert pages - free < 200
