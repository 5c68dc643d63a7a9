"""Completed jobs beyond the bound of memory: their rows answer for them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from broker_talk import Talk, settle

from qcore.broker import archive, open_broker
from qcore.broker.handlers import archived
from qcore.broker.opening import close_broker, commit, flush
from qcore.clock import ManualClock
from qcore.store import open_store
from qcore.store.base import Store, StoreFault
from qcore.store.memory import MemoryStore

DAY_MS = 86_400_000
KEPT = 3  # completed jobs in memory


class Machine:
    """A store that outlives brokers: a file, or rows in memory that can be made to fail."""

    def __init__(self, path: Path | None) -> None:
        self.clock = ManualClock()
        self.path = path
        self.memory = MemoryStore()
        self.n = 0

    def start(self, **options: Any) -> Talk:
        self.n += 1
        self.memory = self.memory.reopened()
        store: Store = self.memory if self.path is None else open_store(self.path)
        self.broker = open_broker(
            store=store,
            mode="server",
            clock=self.clock,
            seed=bytes([self.n] * 16),
            **{"max_completed": KEPT, **options},
        )
        self.broker.engine._check()
        self.talk = Talk(self.broker)
        return self.talk

    def crash(self) -> Talk:
        """Come back from what the last commit left, as after a kill."""
        flush(self.broker)
        self.broker.engine._check()
        if self.path is not None:
            self.broker.store.close()
        return self.start()

    def restart(self) -> Talk:
        close_broker(self.broker)
        return self.start()

    def run(self, *ids: str, queue: str = "q", **options: Any) -> list[str]:
        """Add jobs and complete them, one a millisecond."""
        done = []
        for name in ids:
            options_now = {"jobId": name, **options} if name else options
            job_id = self.talk.good("PUSH", queue=queue, name="n", **options_now)["id"]
            self.finish(queue)
            done.append(job_id)
        flush(self.broker)
        return done

    def finish(self, queue: str = "q") -> str:
        job = self.talk.good("PULL", queue=queue)["job"]
        self.clock.advance(1)
        self.talk.good("ACK", id=job["id"], result={"of": job["id"]})
        return str(job["id"])

    def pump(self, turns: int = 1) -> None:
        for _ in range(turns):
            _, cut = self.broker.pump()
            if cut is not None:
                commit(self.broker, cut)

    def in_memory(self) -> int:
        return int(self.broker.engine.sizes()["completed"])


@pytest.fixture(params=["memory", "sqlite"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "jobs.db" if request.param == "sqlite" else None)
    made.start()
    yield made
    made.broker.engine._check()
    made.broker.store.close()


def lives(machine: Machine) -> Iterator[Talk]:
    """The broker as it is, after a kill, and after a clean stop."""
    yield machine.talk
    yield machine.crash()
    yield machine.restart()


@pytest.mark.parametrize("kept", [1, 2, 7, 39, 40, 1000])
def test_the_newest_are_in_memory_whatever_the_order_of_ends(machine: Machine, kept: int) -> None:
    rng = random.Random(kept)
    custom = [f"id{n}" if n % 2 else "" for n in range(40)]
    jobs = [{"name": "n", **({"customId": each} if each else {})} for each in custom]
    ids = machine.talk.good("PUSHB", queue="q", jobs=jobs)["ids"]
    assert len(machine.talk.good("PULLB", queue="q", count=40)["jobs"]) == 40
    rng.shuffle(ids)
    for job_id in ids:
        machine.clock.advance(rng.randrange(3))
        machine.talk.good("ACK", id=job_id, result={"of": job_id})
    flush(machine.broker)
    if machine.path is not None:
        machine.broker.store.close()
    talk = machine.start(max_completed=kept)
    engine = machine.broker.engine
    assert [job_id for job_id in ids if engine.state(job_id) == "completed"] == ids[-kept:]
    assert engine.n_archived == max(0, 40 - kept)
    # Those in the store, too, are removed in the order of their ends, of which some were at one time.
    assert talk.good("Clean", queue="q", grace=0, state="completed", limit=17)["ids"] == ids[:17]


def states(talk: Talk, ids: Iterable[str]) -> list[str]:
    return [talk.good("GetState", id=job_id)["state"] for job_id in ids]


def answers(talk: Talk, job_id: str) -> dict[str, Any]:
    """Everything that can be asked about one job."""
    return {
        cmd: talk.ask(cmd, id=job_id, **more)
        for cmd, more in (
            ("GetJob", {}),
            ("GetState", {}),
            ("GetResult", {}),
            ("GetProgress", {}),
            ("GetLogs", {}),
            ("WaitJob", {"timeout": 0}),
            ("GetChildrenValues", {}),
            ("GetFailedChildrenValues", {}),
            ("GetIgnoredChildrenFailures", {}),
        )
    }


@pytest.mark.parametrize("ids", [[""] * 10, [f"j{n}" for n in range(10)], ["", "own"] * 5])
def test_every_question_has_the_answer_that_it_had(machine: Machine, ids: list[str]) -> None:
    names = [name + str(n) if name else "" for n, name in enumerate(ids)]
    talk = machine.talk
    done: list[str] = []
    before: dict[str, Any] = {}
    for name in names:
        (job_id,) = machine.run(name)
        talk.good("AddLog", id=job_id, message=f"by {job_id}")
        done.append(job_id)
        before[job_id] = answers(talk, job_id)
        assert before[job_id]["GetState"]["state"] == "completed"
        assert before[job_id]["GetResult"]["result"] == {"of": job_id}
        assert before[job_id]["GetLogs"]["data"]["count"] == 1
    flush(machine.broker)
    assert len(machine.broker.engine) == KEPT
    counts = talk.good("GetJobCounts", queue="q")
    assert counts["counts"]["completed"] == 10
    listed = talk.good("GetJobs", queue="q", limit=100)
    for again in lives(machine):
        assert {job_id: answers(again, job_id) for job_id in done} == before
        assert again.good("GetJobCounts", queue="q") == counts
        assert again.good("GetJobs", queue="q", limit=100) == listed
        assert len(machine.broker.engine) == KEPT
    assert [job["id"] for job in listed["jobs"]] == done


def test_a_page_of_a_listing_goes_through_memory_and_archive(machine: Machine) -> None:
    done = [
        job_id for n in range(9) for job_id in machine.run(["", "m", "a"][n % 3] + str(n) if n % 3 else "")
    ]
    waiting = machine.talk.good("PUSH", queue="q", name="n")["id"]
    machine.run("elsewhere", queue="other")
    for asc in (True, False):
        want = [*done, waiting] if asc else [waiting, *reversed(done)]
        for limit in (1, 4, 100):
            got: list[str] = []
            for offset in range(0, 12, limit):
                page = machine.talk.good("GetJobs", queue="q", offset=offset, limit=limit, asc=asc)["jobs"]
                got += [job["id"] for job in page]
            assert got == want
    page = machine.talk.good("GetJobs", queue="q", state=["completed"], limit=100)["jobs"]
    assert [(job["id"], job["state"], job["returnvalue"]["of"]) for job in page] == [
        (job_id, "completed", job_id) for job_id in done
    ]
    assert machine.talk.good("GetJobs", queue="q", state=["waiting"])["jobs"][0]["id"] == waiting


def test_a_page_that_lies_too_deep_is_refused(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archived, "MAX_ARCHIVE_OFFSET", 5)
    done = machine.run("", "", "", "", "", "", "")
    page = machine.talk.good("GetJobs", queue="q", offset=3, limit=2)["jobs"]
    assert [job["id"] for job in page] == done[3:5]
    refused = machine.talk.refused("GetJobs", queue="q", offset=3, limit=3)
    assert refused == "Completed jobs are listed up to the place 5, and not up to 6: ask for fewer"


@pytest.mark.parametrize("again", ["PUSH", "PUSHB", "durable"])
def test_the_id_of_an_archived_job_starts_a_new_generation(machine: Machine, again: str) -> None:
    own, _ = machine.run("", "a")
    machine.talk.good("AddLog", id="a", message="of the first")
    machine.run(*"bcdef")
    assert len(machine.broker.engine) == KEPT
    for job_id in ("a", own):
        if again == "PUSHB":
            ids = machine.talk.good("PUSHB", queue="p", jobs=[{"name": "n", "customId": job_id}])["ids"]
            assert ids == [job_id]
        else:
            machine.talk.good("PUSH", queue="p", name="n", jobId=job_id, durable=again == "durable")
        assert machine.talk.good("GetState", id=job_id)["state"] == "waiting"
        assert machine.talk.good("GetLogs", id=job_id)["data"]["count"] == 0
        assert "result" not in machine.talk.good("GetResult", id=job_id)
    assert machine.talk.good("GetJobCounts", queue="q")["counts"]["completed"] == 5
    machine.crash()
    assert machine.talk.good("GetJobCounts", queue="q")["counts"]["completed"] == 5
    assert machine.talk.good("GetJobCounts", queue="p")["counts"]["waiting"] == 2
    assert machine.talk.good("GetJob", id="a")["job"]["queue"] == "p"


def test_a_flow_may_not_take_the_id_of_an_archived_job(machine: Machine) -> None:
    machine.run(*"abcdef")
    jobs = [{"id": "a", "queue": "q", "input": {"name": "n", "data": {}}}]
    assert machine.talk.refused("PUSHF", jobs=jobs) == "Flow job a already exists"


def test_a_resent_add_finds_its_first_sending(machine: Machine) -> None:
    since = machine.clock.now_ms()
    machine.run(*"abcdef")
    pushed = machine.talk.good("PUSH", queue="q", name="n", jobId="a", resentSince=since)
    assert pushed["id"] == "a"
    assert machine.talk.good("GetState", id="a")["state"] == "completed"


def test_a_job_may_depend_on_an_archived_one(machine: Machine) -> None:
    first = machine.run("", *"abcdef")
    machine.talk.good("PUSH", queue="q", name="n", jobId="x", dependsOn=[first[0], "a"])
    machine.talk.good("PUSHB", queue="q", jobs=[{"name": "n", "customId": "y", "dependsOn": ["b"]}])
    assert "not found: none" in machine.talk.refused("PUSH", queue="q", name="n", dependsOn=["none"])
    machine.broker.engine._check()
    values = {f"q:{job_id}": {"of": job_id} for job_id in (first[0], "a")}
    for _ in range(2):
        assert machine.talk.good("GetState", id="x")["state"] == "waiting"
        assert machine.talk.good("GetChildrenValues", id="x")["data"]["values"] == values
        assert machine.talk.good("GetJobCounts", queue="q")["counts"]["completed"] == 7
        # What it needs stays in memory while others come and go.
        assert machine.broker.engine.state("a") == "completed"
        machine.run("", "", "", "", queue="other")
        assert machine.talk.good("GetChildrenValues", id="x")["data"]["values"] == values
        machine.crash()
    assert machine.finish() == "x"
    assert machine.finish() == "y"
    machine.run("", "", "", "", queue="other")
    assert len(machine.broker.engine) == KEPT
    # Finished and archived itself, it still knows what its children answered.
    assert machine.talk.good("GetChildrenValues", id="x")["data"]["values"] == values
    machine.crash()
    assert len(machine.broker.engine) == KEPT
    assert machine.talk.good("GetChildrenValues", id="x")["data"]["values"] == values


def test_completed_jobs_are_started_over_by_id_by_number_and_all(machine: Machine) -> None:
    done = machine.run("", "b", "", "d", "e", "f", "g", "h")
    talk = machine.talk
    assert talk.good("RetryCompleted", queue="other", id="b")["count"] == 0
    assert talk.good("RetryCompleted", queue="q", id="b")["count"] == 1
    assert talk.good("GetState", id="b")["state"] == "waiting"
    assert talk.good("RetryCompleted", queue="q", count=2)["count"] == 2
    assert states(talk, done) == ["waiting"] * 3 + ["completed"] * 5
    talk = machine.crash()
    assert states(talk, done) == ["waiting"] * 3 + ["completed"] * 5
    assert talk.good("GetJobCounts", queue="q")["counts"]["completed"] == 5
    assert talk.good("RetryCompleted", queue="q")["count"] == 5
    assert talk.good("GetJobCounts", queue="q")["counts"]["completed"] == 0
    assert [talk.good("PULL", queue="q")["job"]["id"] for _ in done] == done


def test_a_time_bounds_what_is_started_over(machine: Machine) -> None:
    machine.run(*"abcd")
    until = machine.clock.now_ms()
    machine.run(*"efgh")
    assert machine.talk.good("RetryCompleted", queue="q", timestamp=until)["count"] == 4
    assert machine.talk.good("GetJobCounts", queue="q")["counts"]["waiting"] == 4


def test_cleaning_takes_the_oldest_wherever_they_are(machine: Machine) -> None:
    done = machine.run("", "b", "c", "", "e", "f", "g", "h")
    machine.run("other", queue="other")
    talk = machine.talk
    assert talk.good("Clean", queue="q", grace=0, state="completed", limit=2)["ids"] == done[:2]
    assert talk.good("Clean", queue="q", grace=5, state="completed", limit=100)["ids"] == [done[2], done[3]]
    assert talk.good("Clean", queue="q", grace=DAY_MS, state="completed", limit=100)["ids"] == []
    for again in lives(machine):
        assert states(again, done) == ["unknown"] * 4 + ["completed"] * 4
        assert again.good("GetJobCounts", queue="q")["counts"]["completed"] == 4
        assert "not found" in again.refused("PUSH", queue="q", name="n", dependsOn=[done[0]])
    assert machine.talk.good("Clean", queue="q", grace=0, state="completed", limit=100)["ids"] == done[4:]
    assert machine.talk.good("GetJobCounts", queue="other")["counts"]["completed"] == 1
    machine.crash()
    assert [row[0] for row in machine.broker.store.scan(0, 100)] == [9]


def test_what_was_cleaned_is_gone_before_its_commit(machine: Machine) -> None:
    done = machine.run("", "b", "c", "", "e", "f")
    machine.talk.send({"cmd": "Clean", "queue": "q", "grace": 0, "state": "completed", "limit": 2})
    machine.talk.send({"cmd": "GetState", "id": done[0]}, {"cmd": "GetState", "id": "b"})
    assert [reply["state"] for reply in machine.talk.replies()] == ["unknown", "unknown"]
    machine.talk.send({"cmd": "GetJobs", "queue": "q"})
    assert [job["id"] for job in machine.talk.replies()[0]["jobs"]] == done[2:]
    settle(machine.broker, machine.talk.session)


def test_an_obliterated_queue_leaves_no_row(machine: Machine) -> None:
    done = machine.run("", "b", "c", "", "e", "f")
    machine.run("other", queue="other")
    machine.talk.good("Obliterate", queue="q")
    for talk in lives(machine):
        assert set(states(talk, done)) == {"unknown"}
        assert talk.good("GetJobs", queue="q")["jobs"] == []
        assert talk.good("GetJobCounts", queue="q")["counts"]["completed"] == 0
        assert talk.good("GetState", id="other")["state"] == "completed"
    machine.run("b")
    assert machine.talk.good("GetJobCounts", queue="q")["counts"]["completed"] == 1


def test_numbers_of_an_obliterated_queue_are_not_given_again(machine: Machine) -> None:
    """What was added after such a restart was taken for a part of the obliterated queue at the next one."""
    machine.run("", "b", "", "d", "e")
    machine.talk.good("Obliterate", queue="q")
    machine.crash()
    new = machine.talk.good("PUSH", queue="q", name="n")["id"]
    machine.crash()
    assert machine.talk.good("GetState", id=new)["state"] == "waiting"


def test_rows_of_an_obliterated_queue_are_deleted_without_a_restart(machine: Machine) -> None:
    machine.run("", "b", "c", "", "e", "f")
    machine.run("other", queue="other")
    machine.talk.good("Obliterate", queue="q")
    for _ in range(5):
        machine.clock.advance(1000)
        machine.pump()
    flush(machine.broker)
    assert [row[0] for row in machine.broker.store.scan(0, 100)] == [7]


def test_other_changes_find_an_archived_job(machine: Machine) -> None:
    machine.run(*"abcdef")
    talk = machine.talk
    assert talk.refused("MoveToWait", id="a") == "Cannot move job from state 'completed' to waiting"
    assert talk.refused("Progress", id="a", progress=1) == "Job is not active (current state: completed)"
    assert talk.refused("Update", id="a", data=1) == "Job not found or cannot be updated"
    assert talk.good("AddLog", id="a", message="late")["data"] == {"added": True}
    parent = talk.good("PUSH", queue="q", name="n", delay=1000)["id"]
    talk.good("UpdateParent", childId="a", parentId=parent)
    assert talk.good("GetJob", id=parent)["job"]["childrenIds"] == ["a"]
    talk = machine.crash()
    assert talk.good("GetJob", id="a")["job"]["parentId"] == parent
    assert talk.good("GetLogs", id="a")["data"]["count"] == 1
    assert talk.good("GetChildrenValues", id=parent)["data"]["values"] == {"q:a": {"of": "a"}}


def test_an_id_that_nobody_has_is_unknown(machine: Machine) -> None:
    done = machine.run("", "", "c", "", "e", "")
    last = done[0]
    near = last[:-1] + ("0" if last[-1] != "0" else "1")
    for job_id in (
        "none",
        near,
        "00000000-0000-7000-8000-000000000000",
        "ffffffff-ffff-7fff-bfff-ffffffffffff",
    ):
        assert machine.talk.good("GetState", id=job_id)["state"] == "unknown"
        assert "not found" in machine.talk.refused("GetJob", id=job_id)


def test_without_a_store_the_oldest_is_gone() -> None:
    broker = open_broker(max_completed=2)
    talk = Talk(broker)
    for job_id in "abcd":
        talk.good("PUSH", queue="q", name="n", jobId=job_id)
        talk.good("PULL", queue="q")
        talk.good("ACK", id=job_id)
    assert states(talk, "abcd") == ["unknown"] * 2 + ["completed"] * 2
    assert talk.good("GetJobCounts", queue="q")["counts"]["completed"] == 2


def test_a_job_whose_last_row_is_not_committed_stays_in_memory() -> None:
    machine = Machine(None)
    machine.start()
    machine.memory.broken = StoreFault("made to fail", "full")
    talk = machine.talk
    for n in range(6):
        talk.send({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": str(n)}, {"cmd": "PULL", "queue": "q"})
        talk.send({"cmd": "ACK", "id": str(n), "result": n})
        settle(machine.broker, talk.session)
    talk.replies()
    assert len(machine.broker.engine) == 6
    for n in range(6):
        assert talk.good("GetResult", id=str(n))["result"] == n
    assert talk.good("GetJobCounts", queue="q")["counts"]["completed"] == 6
    machine.broker.engine._check()
    machine.memory.broken = None
    machine.clock.advance(60_000)
    machine.pump()
    assert len(machine.broker.engine) == KEPT
    machine.broker.engine._check()
    for n in range(6):
        assert talk.good("GetResult", id=str(n))["result"] == n


# --- the end by age ------------------------------------------------------------------------------


def age(machine: Machine, ms: int) -> None:
    machine.clock.advance(ms)
    for _ in range(20):
        machine.clock.advance(250)
        machine.pump()
    flush(machine.broker)


def test_completed_jobs_are_kept_seven_days_in_memory_and_in_the_store(machine: Machine) -> None:
    old = machine.run("", "b", "c", "", "e", "f")
    machine.talk.good("AddLog", id="b", message="line")
    age(machine, 3 * DAY_MS)
    young = machine.run("", "y")
    dead = machine.talk.good("PUSH", queue="q", name="n", maxAttempts=1)["id"]
    machine.talk.good("PULL", queue="q")
    machine.talk.good("FAIL", id=dead)
    waiting = machine.talk.good("PUSH", queue="q", name="n")["id"]
    age(machine, 3 * DAY_MS)
    assert machine.talk.good("GetJobCounts", queue="q")["counts"]["completed"] == 8
    age(machine, 1 * DAY_MS + 3_600_000)
    talk = machine.talk
    for _ in range(2):
        assert set(states(talk, old)) == {"unknown"}
        assert talk.good("GetLogs", id="b")["data"]["count"] == 0
        assert set(states(talk, young)) == {"completed"}
        assert talk.good("GetState", id=dead)["state"] == "failed"
        assert talk.good("GetState", id=waiting)["state"] == "waiting"
        assert talk.good("GetJobCounts", queue="q")["counts"]["completed"] == 2
        assert len(machine.broker.store.scan(0, 100)) == 4
        assert machine.broker.store.load().side["logs"] == []
        talk = machine.crash()


def test_what_became_old_while_nothing_ran_goes_after_the_start(machine: Machine) -> None:
    machine.run("", "b", "c", "", "e", "f")
    machine.clock.advance(8 * DAY_MS)
    machine.crash()
    age(machine, 0)
    assert machine.talk.good("GetJobCounts", queue="q")["counts"]["completed"] == 0
    assert machine.broker.store.scan(0, 100) == []


def test_what_a_live_job_needs_is_kept_beyond_its_time(machine: Machine) -> None:
    machine.run("a", "b")
    machine.talk.good("PUSH", queue="q", name="n", jobId="d", dependsOn=["a"], delay=30 * DAY_MS)
    age(machine, 8 * DAY_MS)
    assert machine.talk.good("GetState", id="a")["state"] == "completed"
    assert machine.talk.good("GetState", id="b")["state"] == "unknown"


@pytest.mark.parametrize(("policy", "left"), [(5, 5), ({"count": 2}, 2), ({"age": 1}, 1), (100, 9)])
def test_policies_of_removal_reach_into_the_archive(machine: Machine, policy: object, left: int) -> None:
    """Not at once: what is only in the store goes with the next look at it."""
    done = machine.run("", "b", "c", "", "e", "f", "g", "h")
    machine.run("other", "other2", "other3", "other4", queue="other")
    machine.clock.advance(60_000)
    done += machine.run("", removeOnComplete=policy)
    age(machine, 10_000)
    talk = machine.talk
    for _ in range(2):
        assert talk.good("GetJobCounts", queue="q")["counts"]["completed"] == left
        listed = [job["id"] for job in talk.good("GetJobs", queue="q", limit=100)["jobs"]]
        assert listed == done[-left:]
        assert talk.good("GetJobCounts", queue="other")["counts"]["completed"] == 4
        talk = machine.crash()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("policy", "left"), [(5, 5), (2, 2), (1, 1), ({"count": 2}, 2), ({"age": 1}, 1), (100, 9)]
)
@pytest.mark.parametrize("kept", [KEPT, 5, 50])
def test_a_restart_does_not_forget_what_a_policy_no_longer_keeps(
    machine: Machine, policy: object, left: int, clean: bool, kept: int
) -> None:
    """It ends before the next look at the archive; memory may have another bound then."""
    done = machine.run("", "b", "c", "", "e", "f", "g", "h")
    machine.run("other", "other2", "other3", "other4", queue="other")
    age(machine, 60_000)
    done += machine.run("", removeOnComplete=policy)
    later = machine.run("later", "later2") if policy != 100 else []
    if clean:
        close_broker(machine.broker)
    else:
        flush(machine.broker)
        machine.broker.store.close()
    talk = machine.start(max_completed=kept)
    age(machine, 60_000)
    for _ in range(2):
        counts = talk.good("GetJobCounts", queue="q")["counts"]
        listed = [job["id"] for job in talk.good("GetJobs", queue="q", limit=100)["jobs"]]
        assert counts["completed"] == len(listed)
        # Later ones without a policy may be counted, as without a restart.
        wanted = done[-left:] + later
        assert listed == wanted[-len(listed) :]
        assert left <= len(listed) <= left + len(later)
        assert talk.good("GetJobCounts", queue="other")["counts"]["completed"] == 4
        machine.broker.engine._check()
        talk = machine.restart()


def test_what_a_policy_no_longer_keeps_goes_also_when_the_look_at_it_was_cut_short(machine: Machine) -> None:
    machine.run("", "b", "c", "", "e", "f", "g", "h")
    machine.run("last", removeOnComplete=2)
    machine.clock.advance(10_000)
    for _ in range(3):
        machine.pump()  # the look has begun
        machine.crash()
    age(machine, 60_000)
    assert machine.talk.good("GetJobCounts", queue="q")["counts"]["completed"] == 2
    machine.crash()
    q = machine.broker.engine.queue("q")
    assert q is not None
    assert q.far_most == q.far_most_due == -1, "it is done"


def test_a_look_that_failed_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(None)
    machine.start()
    machine.run("", "b", "c", "", "e", "f", "g", "h")
    machine.run("last", removeOnComplete=2)

    def broken(*_: object, **__: object) -> None:
        raise StoreFault("the disk is broken", "io")

    with monkeypatch.context() as patch:
        patch.setattr(machine.broker.store, "scan", broken)
        age(machine, 10_000)
    assert machine.talk.good("GetJobCounts", queue="q")["counts"]["completed"] > 2
    age(machine, 8 * 3_600_000)
    assert machine.talk.good("GetJobCounts", queue="q")["counts"]["completed"] == 2


def test_walks_come_one_after_the_other_and_memory_is_let_go_between_them() -> None:
    """Else listings that overlap would keep everything in memory that is completed meanwhile."""
    machine = Machine(None)
    machine.start(max_completed=1)
    talk, engine = machine.talk, machine.broker.engine
    talk.good("PUSHB", queue="q", jobs=[{"name": "n"}] * 2100)
    while ids := [job["id"] for job in talk.good("PULLB", queue="q", count=700)["jobs"]]:
        talk.good("ACKB", ids=ids)
    flush(machine.broker)
    ask = {"cmd": "GetJobs", "queue": "q", "limit": 2}
    other = Talk(machine.broker)
    other.send(ask)
    left, answered = [], 0
    for n in range(24):
        machine.pump()
        answered += len(other.replies())
        if n % 3 == 0:
            other.send(ask)
        machine.run("", queue="other")
        left.append(engine.n_leaving)
    assert answered > 3, (left, answered)
    assert max(left) < 12
    while engine.holds:
        machine.pump()
    flush(machine.broker)
    assert engine.n_leaving == 0


def test_a_walk_ends_when_too_much_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_LEAVING_JOBS", 5)
    monkeypatch.setattr(archived, "FIRST_TURNS", 1)
    monkeypatch.setattr(archive, "ARCHIVE_PAGE_ROWS", 2)
    machine = Machine(None)
    machine.start(max_completed=1)
    machine.run(*[""] * 30)
    other = Talk(machine.broker)
    other.send({"cmd": "GetJobs", "queue": "q", "limit": 2})
    assert other.replies() == []
    machine.run(*[""] * 8)
    machine.pump()
    (reply,) = other.replies()
    assert reply == {"ok": False, "error": "Jobs are completed faster than the archive can be read"}
    machine.run("")
    assert machine.broker.engine.n_leaving == 0


def test_an_archived_job_with_an_id_of_ours_costs_no_memory() -> None:
    machine = Machine(None)
    machine.start(max_completed=1)
    talk, broker = machine.talk, machine.broker
    seen = []
    for custom in (False, False, True):
        jobs = [{"name": "n", **({"customId": f"c{n}"} if custom else {})} for n in range(3000)]
        talk.good("PUSHB", queue="q", jobs=jobs)
        while ids := [job["id"] for job in talk.good("PULLB", queue="q", count=1000)["jobs"]]:
            talk.good("ACKB", ids=ids)
        flush(broker)
        seen.append(broker.engine.sizes())
    assert seen[0] == seen[1]
    assert {name for name in seen[0] if seen[0][name] != seen[2][name]} == {"custom ids in the archive"}
    assert seen[2]["custom ids in the archive"] == 2999
    assert len(broker.archive._fence_seqs) < 9000 / 1024 + 2


@pytest.mark.parametrize("policy", [True, False])
def test_what_finds_rows_does_not_grow_with_the_jobs_that_have_been(
    monkeypatch: pytest.MonkeyPatch, policy: bool
) -> None:
    monkeypatch.setattr(archive, "FENCE_ROWS", 4)
    monkeypatch.setattr(archive, "MOST_FENCES", 16)
    machine = Machine(None)
    machine.start(max_completed=1)
    ids = machine.run(*[""] * 600, removeOnComplete=policy)
    assert len(machine.broker.archive._fence_seqs) == len(machine.broker.archive._fence_ids) <= 16
    assert states(machine.talk, ids[:-1]) == ["unknown" if policy else "completed"] * 599


def test_completed_jobs_may_be_kept_for_ever(machine: Machine) -> None:
    machine.broker.store.close()
    machine.start(completed_retention_ms=None)
    machine.run("", "b", "c", "", "e", "f")
    age(machine, 400 * DAY_MS)
    assert machine.talk.good("GetJobCounts", queue="q")["counts"]["completed"] == 6


def test_a_walk_takes_small_steps_and_a_broken_disk_pauses_it() -> None:
    machine = Machine(None)
    machine.start(max_completed=1)
    talk = machine.talk
    n = 1200
    talk.good("PUSHB", queue="q", jobs=[{"name": "n"}] * n)
    for _ in range(n // 400):
        ids = [job["id"] for job in talk.good("PULLB", queue="q", count=400)["jobs"]]
        talk.good("ACKB", ids=ids)
    flush(machine.broker)
    assert len(machine.broker.engine) == 1
    machine.clock.advance(8 * DAY_MS)
    left = []
    for _ in range(8):
        machine.broker.pump()
        left.append(talk.good("GetJobCounts", queue="q")["counts"]["completed"])
        flush(machine.broker)
        machine.clock.advance(250)
    assert all(0 <= before - after <= 513 for before, after in pairwise([n, *left]))
    assert left[-1] == 0
