"""Flows over the protocol: admitted as a whole, and what their commit decides."""

from __future__ import annotations

from typing import Any

import pytest
from broker_talk import Talk

from qcore.broker import open_broker
from qcore.broker.core import Broker
from qcore.broker.opening import commit, flush
from qcore.clock import ManualClock
from qcore.store.base import StoreFault
from qcore.store.memory import MemoryStore

SEED = bytes(range(16))


class Machine:
    """A store that outlives brokers."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.store = MemoryStore()
        self.n = 0

    def start(self) -> Talk:
        self.n += 1
        self.store = self.store.reopened()
        self.broker: Broker = open_broker(
            store=self.store, mode="server", clock=self.clock, seed=bytes([self.n] * 16)
        )
        self.broker.engine._check()
        return Talk(self.broker)


@pytest.fixture
def machine(clock: ManualClock) -> Machine:
    return Machine(clock)


def entry(job_id: str, queue: str = "q", **options: Any) -> dict[str, Any]:
    return {"id": job_id, "queue": queue, "input": {"name": "n", "data": {}, **options}}


def tree(children: int = 2, **options: Any) -> list[dict[str, Any]]:
    """A parent ``p`` in the queue ``top`` with children ``k0``, ``k1``, ... in ``kids``."""
    ids = [f"k{n}" for n in range(children)]
    parent = entry("p", "top", data={"__childrenIds": ids}, childrenIds=ids, dependsOn=ids)
    meta = {"__parentId": "p", "__parentQueue": "top"}
    return [parent, *(entry(i, "kids", data={**meta, "n": 1}, parentId="p", **options) for i in ids)]


def state(talk: Talk, job_id: str) -> str:
    return str(talk.good("GetState", id=job_id)["state"])


def test_reserved_keys_may_say_what_the_job_is_tied_to(machine: Machine) -> None:
    """As clients write chains: the job before is called the parent, and is only waited for."""
    talk = machine.start()
    above = {"__flowParentId": "a", "__parentId": "a", "__parentQueue": "q"}
    chain = [
        entry("a", data={"__flowParentId": None}),
        entry("b", data=above, dependsOn=["a"]),
        entry("c", data={"__flowParentIds": [], "__childrenIds": []}),
    ]
    assert [job["data"] for job in talk.good("PUSHF", jobs=chain)["data"]["jobs"]][1] == above


@pytest.mark.parametrize("policy", ["ignoreDependencyOnFailure", "continueParentOnFailure"])
def test_c051_a_parent_reads_that_a_child_was_discarded(machine: Machine, policy: str) -> None:
    talk = machine.start()
    talk.good("PUSHF", jobs=tree(1, **{policy: True}))
    talk.good("Discard", id="k0")
    ignored = talk.good("GetIgnoredChildrenFailures", id="p")["values"]
    failed = talk.good("GetFailedChildrenValues", id="p")["values"]
    assert {**ignored, **failed} == {"kids:k0": "discarded"}


@pytest.mark.parametrize(
    ("policy", "kind"),
    [
        ("failParentOnFailure", "failed"),
        ("continueParentOnFailure", "failed"),
        ("ignoreDependencyOnFailure", "ignored"),
    ],
)
def test_c051_a_child_whose_record_went_with_its_failure_is_no_missing_one(
    machine: Machine, policy: str, kind: str
) -> None:
    talk = machine.start()
    talk.good("PUSHF", jobs=tree(2, removeOnFail=True, maxAttempts=1, **{policy: True}))
    talk.good("PULL", queue="kids")
    talk.good("FAIL", id="k0", error="no")
    for _ in range(2):
        ties = talk.good("GetDependencies", id="p")["data"]
        assert (ties[kind], ties["missing"], ties["unprocessed"]) == (["k0"], [], ["k1"])
        flush(machine.broker)
        talk = machine.start()


def test_invariant_31_a_result_is_read_as_long_as_its_parent_may(machine: Machine) -> None:
    """Its job was removed with its completion, and the reader starts over after restarts."""
    talk = machine.start()
    talk.good("PUSHF", jobs=tree(2, removeOnComplete=True))
    for n in range(2):
        talk.good("PULL", queue="kids")
        talk.good("ACK", id=f"k{n}", result={"made": n})
    for _ in range(3):
        flush(machine.broker)
        talk = machine.start()
        assert state(talk, "k0") == "unknown"
        talk.good("PULL", queue="top")
        values = talk.good("GetChildrenValues", id="p")["data"]["values"]
        assert values == {"kids:k0": {"made": 0}, "kids:k1": {"made": 1}}
        talk.good("MoveToWait", id="p")
    talk.good("PULL", queue="top")
    talk.good("ACK", id="p")
    assert len(machine.broker.engine) == 1
    assert talk.good("GetChildrenValues", id="p")["data"]["values"] == {}


def test_defect_59_invariant_32_nothing_of_a_flow_is_there_before_its_commit(machine: Machine) -> None:
    talk, other = machine.start(), Talk(machine.broker)
    talk.send({"cmd": "PUSHF", "jobs": tree()})
    assert talk.replies() == []
    cut = machine.broker.begin_commit()
    assert cut is not None
    assert other.good("PULL", queue="kids")["job"] is None
    assert state(other, "p") == state(other, "k0") == "unknown"
    commit(machine.broker, cut)
    (reply,) = talk.replies()
    assert [job["id"] for job in reply["data"]["jobs"]] == ["p", "k0", "k1"]
    assert other.good("PULL", queue="kids")["job"]["id"] == "k0"
    assert state(other, "p") == "waiting-children"


def test_a_flow_whose_commit_fails_leaves_nothing(machine: Machine) -> None:
    talk = machine.start()
    machine.store.broken = StoreFault("no room", "full")
    assert "disk full" in talk.refused("PUSHF", jobs=tree())
    machine.broker.engine._check()
    assert state(talk, "p") == state(talk, "k0") == "unknown"
    machine.store.broken = None
    machine.clock.advance(60_000)
    flush(machine.broker)
    talk.good("PUSHF", jobs=tree())
    talk = machine.start()
    assert state(talk, "p") == "waiting-children"


def test_a_durable_child_whose_commit_fails_is_no_child(machine: Machine) -> None:
    talk = machine.start()
    talk.good("PUSH", queue="top", name="n", jobId="p")
    machine.store.broken = StoreFault("no room", "full")
    talk.refused("PUSH", queue="kids", name="n", jobId="k", parentId="p", durable=True)
    machine.broker.engine._check()
    assert state(talk, "p") == "waiting"


def test_a_flow_survives_a_crash_between_any_two_of_its_steps(machine: Machine) -> None:
    talk = machine.start()
    talk.good("PUSHF", jobs=tree(3, removeOnComplete=True))
    for n in range(3):
        talk = machine.start()
        assert state(talk, "p") == "waiting-children"
        assert talk.good("PULL", queue="kids")["job"]["id"] == f"k{n}"
        talk.good("ACK", id=f"k{n}", result={"n": n})
    talk = machine.start()
    job = talk.good("PULL", queue="top")["job"]
    assert (job["id"], job["childrenCompleted"]) == ("p", 3)
    values = talk.good("GetChildrenValues", id="p")["data"]["values"]
    assert values == {f"kids:k{n}": {"n": n} for n in range(3)}
    talk.good("ACK", id="p")
    machine.broker.engine._check()
    assert len(machine.broker.engine) == 1


@pytest.mark.parametrize(
    ("jobs", "text"),
    [
        (["x"], "flow jobs[0] must be an object"),
        ([entry("a" * 1025)], "flow job id is invalid or is not well-formed Unicode"),
        ([{"id": "a", "queue": "q", "input": 5}], "flow job input is invalid: a"),
        ([entry("a", customId="b")], "custom id does not match planned id: a"),
        ([entry("a", parentId=5)], "flow parent id is invalid: a"),
        ([entry("a", dependsOn="b")], "dependsOn must be an array of valid string job ids"),
        ([entry("a", childrenIds=[1])], "childrenIds must be an array of valid string job ids"),
        ([entry("a", name="")], "Job name must be a non-empty string of at most 256 characters"),
        ([entry("a", data=None)], "flow job data must be an object"),
        ([entry("a", maxAttempts="x")], "maxAttempts must be a number"),
        ([entry("a", debounceId="d")], "debounce is not supported inside an atomic flow"),
        ([entry("a", uniqueKey="k")], "deduplication is not supported inside an atomic flow"),
        ([entry("a", dependsOn=["a"])], "flow job cannot depend on itself: a"),
        (
            [entry("a", dependsOn=["b"]), entry("b", dependsOn=["a"])],
            "flow contains a dependency cycle",
        ),
        ([entry("a", childrenIds=["b"]), entry("b")], "flow child is missing from dependencies: b"),
        (
            [entry("a", childrenIds=["b"], dependsOn=["b"]), entry("b")],
            "flow child b does not point back to parent a",
        ),
        ([entry("a", parentId="b")], "flow parent not found: b"),
        ([entry("a", parentId="b"), entry("b")], "flow parent b does not own child a"),
        (
            [entry("a", childrenIds=["b"], dependsOn=["b"]), entry("b", parentId="a")],
            "flow metadata missing for child b",
        ),
        (
            [
                entry("a", childrenIds=["b"], dependsOn=["b"]),
                entry("b", parentId="a", data={"__parentId": "a", "__parentQueue": "other"}),
            ],
            "flow child b metadata does not match parent a",
        ),
        (
            [
                entry("a", childrenIds=["b"], dependsOn=["b"]),
                entry("b", parentId="a", data={"__parentId": "a", "__parentQueue": "q"}),
            ],
            "flow metadata missing for parent a",
        ),
        *(
            ([entry("a"), entry("b", data=data, dependsOn=["a"])], f"flow job data key is reserved: {key}")
            for key, data in [
                ("__parentId", {"__parentId": "x"}),
                ("__parentId", {"__parentId": ["a"]}),
                ("__parentQueue", {"__parentId": "a", "__parentQueue": "other"}),
                ("__parentQueue", {"__parentQueue": "q"}),
                ("__childrenIds", {"__childrenIds": ["a"]}),
                ("__flowParentId", {"__flowParentId": "x"}),
                ("__flowParentIds", {"__flowParentIds": ["a", "x"]}),
            ]
        ),
        (
            tree(1, failParentOnFailure=True, ignoreDependencyOnFailure=True),
            "flow failure policies are mutually exclusive",
        ),
        (
            [entry(str(n), dependsOn=[str(n - 1)] if n else []) for n in range(102)],
            "flow exceeds the depth limit of 100",
        ),
        ([entry(str(n)) for n in range(10_001)], "flow exceeds the 10000 job limit"),
    ],
)
def test_a_flow_that_does_not_fit_together_is_refused_whole(
    machine: Machine, jobs: list[dict[str, Any]], text: str
) -> None:
    talk = machine.start()
    assert talk.refused("PUSHF", jobs=jobs) == text
    assert len(machine.broker.engine) == 0
    machine.broker.engine._check()


def test_c015_a_key_inside_a_flow_is_refused(machine: Machine) -> None:
    """A flow is all or nothing, and a key would drop one of its jobs."""
    talk = machine.start()
    talk.good("PUSH", queue="q", name="n", uniqueKey="k")
    text = "deduplication is not supported inside an atomic flow"
    assert talk.refused("PUSHF", jobs=[entry("a"), entry("b", uniqueKey="k")]) == text
    assert talk.refused("PUSHF", jobs=[entry("a", uniqueKey="other")]) == text
    assert state(talk, "a") == "unknown"
    # A job that waits for others holds its key; its dependents do not lose it.
    talk.good("PUSH", queue="q", name="n", jobId="x")
    talk.good("PUSH", queue="q", name="n", jobId="d", dependsOn=["x"], uniqueKey="d")
    assert talk.good("PUSH", queue="q", name="n", uniqueKey="d")["id"] == "d"
    machine.broker.engine._check()


def test_ids_of_flows_are_never_used_again(machine: Machine) -> None:
    talk = machine.start()
    talk.good("PUSH", queue="q", name="n", jobId="a", removeOnComplete=True)
    talk.good("PUSH", queue="q", name="n", jobId="b")
    talk.good("PULL", queue="q")
    talk.good("ACK", id="a")
    for job_id in "ab":
        assert talk.refused("PUSHF", jobs=[entry("c"), entry(job_id)]) == f"Flow job {job_id} already exists"
    assert state(talk, "c") == "unknown"
    talk.good("PUSHF", jobs=[entry("c", dependsOn=["a", "b"])])
    assert state(talk, "c") == "waiting-children"


def test_a_flow_of_ten_thousand_jobs(machine: Machine) -> None:
    talk = machine.start()
    talk.good("PUSHF", jobs=tree(9_999, removeOnComplete=True))
    for _ in range(10):
        ids = [job["id"] for job in talk.good("PULLB", queue="kids", count=1000)["jobs"]]
        talk.good("ACKB", ids=ids, results=[1] * len(ids))
    talk = machine.start()
    assert state(talk, "p") == "waiting"
    assert len(talk.good("GetChildrenValues", id="p")["data"]["values"]) == 9_999


def test_an_update_keeps_what_says_where_a_job_belongs(machine: Machine) -> None:
    talk = machine.start()
    talk.good("PUSHF", jobs=tree(1))
    talk.good("Update", id="k0", data={"n": 2, "__parentId": "other"})
    data = talk.good("GetJob", id="k0")["job"]["data"]
    assert data == {"n": 2, "__parentId": "p", "__parentQueue": "top"}
    assert talk.refused("Update", id="k0", data=5) == "flow job data must be an object"
    assert talk.refused("Update", id="k0", data={"__x": 1}) == "flow job data key is reserved: __x"
    talk.good("PUSH", queue="q", name="n", jobId="plain", data={"a": 1})
    talk.good("Update", id="plain", data={"__x": 1})
    assert talk.good("GetJob", id="plain")["job"]["data"] == {"__x": 1}


def test_the_holder_of_a_parent_adds_children_by_its_token(machine: Machine) -> None:
    """Defect 61."""
    talk = machine.start()
    talk.good("PUSH", queue="top", name="n", jobId="p")
    token = talk.good("PULL", queue="top", owner="w")["token"]
    child = {"queue": "kids", "name": "n", "jobId": "k", "parentId": "p"}
    assert talk.refused("PUSH", **child) == "Parent job p is not linkable"
    talk.good("PUSH", **child, parentToken=token)
    assert talk.good("MoveToWaitingChildren", id="p", token=token)["data"] == {"moved": True}
    assert state(talk, "p") == "waiting-children"
    talk.good("PULL", queue="kids")
    talk.good("ACK", id="k", result=7)
    assert talk.good("PULL", queue="top")["job"]["attempts"] == 0
    assert talk.good("GetChildrenValues", id="p")["data"]["values"] == {"kids:k": 7}
    assert talk.good("MoveToWaitingChildren", id="p")["data"] == {"moved": True}
    assert state(talk, "p") == "waiting"
    assert talk.refused("MoveToWaitingChildren", id="p") == "Job is not active"


def test_children_that_come_before_their_parent_are_tied_later(machine: Machine) -> None:
    """As clients without PUSHF build a tree: leaves first, under a parent that is not there yet."""
    talk = machine.start()
    for n in range(3):
        talk.good("PUSH", queue="kids", name="n", jobId=f"k{n}", parentId="pending", removeOnComplete=True)
    talk.good("PULL", queue="kids")
    talk.good("ACK", id="k0", result=0)
    ids = ["k0", "k1", "k2"]
    talk.good("PUSH", queue="top", name="n", jobId="p", childrenIds=ids, dependsOn=ids)
    for n in range(3):
        talk.good("UpdateParent", childId=f"k{n}", parentId="p")
    talk = machine.start()
    assert state(talk, "p") == "waiting-children"
    for n in (1, 2):
        talk.good("PULL", queue="kids")
        talk.good("ACK", id=f"k{n}", result=n)
    assert talk.good("PULL", queue="top")["job"]["id"] == "p"
    assert talk.good("GetChildrenValues", id="p")["data"]["values"] == {"kids:k1": 1, "kids:k2": 2}


def test_a_batch_names_the_job_that_cannot_be_tied(machine: Machine) -> None:
    talk = machine.start()
    jobs = [{"name": "n"}, {"name": "n", "customId": "b", "dependsOn": ["no"]}]
    assert talk.refused("PUSHB", queue="q", jobs=jobs) == "jobs[1]: Dependency job not found: no"
    jobs = [
        {"name": "n", "customId": "a", "dependsOn": ["b"]},
        {"name": "n", "customId": "b", "dependsOn": ["a"]},
    ]
    assert talk.refused("PUSHB", queue="q", jobs=jobs).endswith("flow contains a dependency cycle")
    assert len(machine.broker.engine) == 0


def test_a_dependency_in_a_batch_is_the_job_that_the_batch_adds(machine: Machine) -> None:
    talk = machine.start()
    talk.good("PUSH", queue="q", name="n", jobId="x")
    talk.good("PULL", queue="q")
    talk.good("ACK", id="x", result=1)
    jobs = [{"name": "n", "customId": "d", "dependsOn": ["x"]}, {"name": "n", "customId": "x"}]
    talk.good("PUSHB", queue="q", jobs=jobs)
    machine.broker.engine._check()
    assert (state(talk, "d"), state(talk, "x")) == ("waiting-children", "waiting")
    talk = machine.start()
    assert (state(talk, "d"), state(talk, "x")) == ("waiting-children", "waiting")


def test_an_id_whose_result_is_needed_is_not_used_again(machine: Machine) -> None:
    talk = machine.start()
    talk.good("PUSH", queue="q", name="n", jobId="x")
    talk.good("PULL", queue="q")
    talk.good("ACK", id="x", result=1)
    talk.good("PUSH", queue="q", name="n", jobId="d", dependsOn=["x"], delay=1000)
    text = "Custom ID x still has unresolved dependency consumers"
    assert talk.refused("PUSH", queue="q", name="n", jobId="x") == text
    assert talk.refused("PUSHB", queue="q", jobs=[{"name": "n", "customId": "x"}]) == f"jobs[0]: {text}"
    talk.good("Cancel", id="d")
    talk.good("PUSH", queue="q", name="n", jobId="x")
    machine.broker.engine._check()


@pytest.mark.parametrize(("queue", "other"), [("a:b", "a"), ("a", "a:b")])
def test_c018_names_with_separators_stay_apart(machine: Machine, queue: str, other: str) -> None:
    talk = machine.start()
    for name in (queue, other):
        talk.good("PUSH", queue=name, name="n", jobId=f"parent/{name}")
        talk.good(
            "PUSH",
            queue=name + ":kids",
            name="n",
            jobId=f"kid {name}",
            parentId=f"parent/{name}",
            maxAttempts=1,
            failParentOnFailure=True,
        )
    talk.good("PULL", queue=queue + ":kids")
    talk.good("FAIL", id=f"kid {queue}", error="no")
    talk = machine.start()
    assert state(talk, f"parent/{queue}") == "failed"
    assert state(talk, f"parent/{other}") == "waiting-children"


def test_cleaning_leaves_the_children_that_a_live_parent_needs(machine: Machine) -> None:
    talk = machine.start()
    talk.good("PUSHB", queue="c", jobs=[{"customId": "a"}, {"customId": "b"}, {"customId": "alone"}])
    talk.good("PUSH", queue="p", jobId="parent", dependsOn=["a", "b"])
    for job_id in ("a", "alone"):
        talk.good("PULL", queue="c") if job_id == "a" else talk.good("PULLB", queue="c", count=2)
        talk.good("ACK", id=job_id, result=7)
    assert talk.good("Clean", queue="c", grace=0, state="completed")["ids"] == ["alone"]
    assert talk.good("GetState", id="a")["state"] == "completed"
    talk.good("ACK", id="b")
    talk.good("PULL", queue="p")
    talk.good("ACK", id="parent")
    assert sorted(talk.good("Clean", queue="c", grace=0, state="completed")["ids"]) == ["a", "b"]


def test_cases_c052_a_child_twice_in_one_list_is_refused(machine: Machine) -> None:
    talk = machine.start()
    twice = ["a", "a"]
    parent = {
        "id": "P",
        "queue": "p",
        "input": {"data": {"__childrenIds": twice}, "childrenIds": twice, "dependsOn": twice},
    }
    child = {
        "id": "a",
        "queue": "c",
        "input": {"data": {"__parentId": "P", "__parentQueue": "p"}, "parentId": "P"},
    }
    assert talk.refused("PUSHF", jobs=[parent, child]) == "flow job names a job twice: P"
    assert talk.good("ListQueues")["queues"] == []


def test_ties_do_not_show_a_job_that_is_still_to_be_committed(machine: Machine) -> None:
    talk = machine.start()
    talk.good("PUSH", queue="q", name="n", jobId="a")
    talk.good("PUSH", queue="q", name="n", jobId="d", dependsOn=["a"])
    talk.good("Cancel", id="a")
    talk.send({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": "a", "durable": True})
    assert talk.replies() == []
    ties = machine.broker.engine.dependencies("d")
    assert ties is not None
    assert (ties["missing"], ties["unprocessed"]) == (["a"], [])
