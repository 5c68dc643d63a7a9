"""Ties between jobs: who waits for whom, and what a failure does to a parent."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from qcore.broker import rows
from qcore.engine.engine import Engine
from qcore.engine.table import EVENT_BITS
from qcore.errors import FlowError, LeaseError, LimitError, NotFoundError, StateError
from qcore.store.memory import MemoryStore
from tests.records import read_record

NOW = 1_700_000_000_000
LEASE = 60_000
POLICIES = {
    "fail": "failParentOnFailure",
    "continue": "continueParentOnFailure",
    "ignore": "ignoreDependencyOnFailure",
    "remove": "removeDependencyOnFailure",
}


class Machine:
    """An engine over a store, so that it can be restarted at any step."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.store = MemoryStore()
        self.engine = Engine(bytes(16), tracking=True, archive=True, **options)
        self.starts = 0

    def save(self) -> None:
        self.store.commit(rows.take_rows(self.engine, NOW, 0))

    def restart(self, *, charge: bool = False) -> None:
        """Come back from what a cut taken now would hold."""
        self.save()
        self.starts += 1
        self.store = self.store.reopened()
        self.engine = Engine(bytes([self.starts] * 16), tracking=True, archive=True, **self.options)
        snapshot = self.store.load()
        rows.restore_names(self.engine, snapshot.names, snapshot.queues)
        for row in snapshot.jobs:
            rows.restore(self.engine, row, NOW, 0)
        assert rows.restore_evidence(self.engine, snapshot.side["evidence"]) == []
        rows.settle_active(self.engine, not charge, charge, NOW)
        self.engine._check()

    def add(self, job_id: str, *, queue: str = "q", depends: tuple[str, ...] = (), **options: Any) -> str:
        extra = options.pop("extra", {})
        if depends:
            extra = {**extra, "dependsOn": list(depends)}
        got = self.engine.push(queue, b"\x01", NOW, job_id=job_id, extra=extra or None, **options)
        self.engine._check()
        return got

    def child(self, job_id: str, parent: str, policy: str | None = None, **options: Any) -> str:
        extra: dict[str, Any] = {"parentId": parent}
        if policy is not None:
            extra[POLICIES[policy]] = True
        return self.add(job_id, queue="kids", extra=extra, attempts=1, **options)

    def take(self, queue: str = "q", lease_ms: int = LEASE) -> tuple[str, str | None]:
        got = self.engine.pull(queue, NOW, 0, lease_ms=lease_ms)
        assert got is not None
        return got[0], got[1]

    def finish(self, queue: str = "q", result: bytes = b"\x07", **how: Any) -> str:
        job_id, token = self.take(queue)
        self.engine.ack(job_id, NOW, token=token, result=result, **how)
        self.engine._check()
        return job_id

    def fail(self, queue: str = "kids", error: str = "boom", **how: Any) -> str:
        job_id, token = self.take(queue)
        self.engine.fail(job_id, NOW, token=token, error=error, unrecoverable=True, **how)
        self.engine._check()
        return job_id

    def state(self, job_id: str) -> str:
        return self.engine.state(job_id)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("remove", [False, True])
def test_invariant_29_a_dependent_runs_when_all_it_waits_for_is_completed(
    machine: Machine, remove: bool, restart: bool
) -> None:
    machine.add("a")
    machine.add("b")
    machine.add("d", depends=("a", "b", "a"))
    for first in "ab":
        assert machine.state("d") == "waiting-children"
        if restart:
            machine.restart()
        assert machine.finish(remove=remove) == first
    if restart:
        machine.restart()
    assert machine.state("d") == "waiting"
    assert machine.finish() == "d"


@pytest.mark.parametrize("restart", [False, True])
def test_defect_57_a_dependency_that_was_removed_on_completion_is_satisfied(
    machine: Machine, restart: bool
) -> None:
    machine.add("a")
    machine.add("00000000-0000-7000-8000-00000000000a")
    machine.finish(remove=True)
    machine.finish(remove=True)
    if restart:
        machine.restart()
    assert machine.state("a") == "unknown"
    machine.add("d", depends=("a", "00000000-0000-7000-8000-00000000000a"))
    assert machine.state("d") == "waiting"


def test_evidence_of_a_job_born_and_gone_between_two_cuts_is_written(machine: Machine) -> None:
    machine.save()
    machine.add("a")
    machine.finish(remove=True)
    machine.restart()
    machine.add("d", depends=("a",))
    assert machine.state("d") == "waiting"


def test_evidence_of_an_id_that_lives_again_is_forgotten_on_disk_too(machine: Machine) -> None:
    machine.add("a")
    machine.finish(remove=True)
    machine.save()
    machine.add("a")
    machine.restart()
    machine.add("d", depends=("a",))
    assert machine.state("d") == "waiting-children"
    machine.engine.cancel("a", NOW)
    machine.restart()
    with pytest.raises(FlowError, match="Dependency job not found: a"):
        machine.add("e", depends=("a",))


def shown(machine: Machine, job_id: str) -> dict[str, list[str]]:
    ties = machine.engine.dependencies(job_id)
    assert ties is not None
    return {kind: ids for kind, ids in ties.items() if ids}


def start_over(machine: Machine) -> None:
    machine.fail("z")
    machine.save()
    assert machine.engine.retry_dead("z", NOW) == 1


def complete_again(machine: Machine) -> None:
    start_over(machine)
    machine.save()
    machine.finish("z")


HOLDERS: dict[str, Callable[[Machine], object]] = {
    "failed": lambda machine: machine.fail("z"),
    "completed": lambda machine: machine.finish("z"),
    "started over": start_over,
    "completed after a failure": complete_again,
}


def obliterate_another(machine: Machine) -> None:
    machine.add("x", queue="other", remove_on_complete=True)
    machine.finish("other")
    machine.save()
    machine.engine.obliterate("other")


def open_edges(machine: Machine) -> None:
    """Each of them takes back what the file may hold of an earlier job of that id."""
    for n in range(5):
        machine.add(f"parent {n}", queue="parents")
        machine.add(f"kid {n}", queue="kids", extra={"parentId": f"parent {n}"})
        machine.save()


def use_an_id_again(machine: Machine) -> None:
    for _ in range(5):
        machine.add("again", queue="o")
        machine.finish("o", remove=True)
        machine.save()


@pytest.mark.parametrize("since", [obliterate_another, open_edges, use_an_id_again])
@pytest.mark.parametrize("holder", HOLDERS)
def test_what_is_shown_as_processed_is_so_after_a_restart(
    holder: str, since: Callable[[Machine], None]
) -> None:
    machine = Machine(max_completed=3)
    machine.add("c", remove_on_complete=True)
    machine.add("d", queue="z", depends=("c",))
    machine.finish()
    machine.save()
    HOLDERS[holder](machine)
    machine.save()
    since(machine)
    for _ in range(3):
        assert shown(machine, "d") == {"processed": ["c"]}
        machine.restart()


def test_what_a_job_that_was_started_over_is_tied_to_stays_known() -> None:
    """However many are completed meanwhile: it is pinned, and the job says so itself."""
    machine = Machine(max_completed=3)
    machine.add("c", remove_on_complete=True)
    machine.add("d", queue="z", depends=("c",))
    machine.finish()
    start_over(machine)
    for n in range(10):
        machine.add(f"other {n}", queue="o")
        machine.finish("o", remove=True)
        machine.save()
    for _ in range(3):
        assert shown(machine, "d") == {"processed": ["c"]}
        machine.restart()


def test_rows_of_evidence_are_bounded_whatever_is_taken_back() -> None:
    machine = Machine(max_completed=3)
    for _ in range(30):
        use_an_id_again(machine)
    assert len(machine.store.load().side["evidence"]) <= 4 * 3 + 1
    machine.restart()
    assert machine.engine.owns("again")


def test_rows_of_evidence_go_when_memory_has_forgotten_them() -> None:
    machine = Machine(max_completed=3)
    for n in range(20):
        machine.add(f"j{n}")
        machine.finish(remove=True)
        machine.save()
    assert len(machine.store.load().side["evidence"]) <= 4
    machine.restart()
    assert [machine.engine.owns(f"j{n}") for n in range(15, 20)] == [False, False, True, True, True]


def test_invariant_31_a_result_that_a_live_job_may_read_is_kept_until_it_is_finished(
    machine: Machine,
) -> None:
    machine.child("k", machine.add("p"))
    machine.finish("kids", remove=True)
    assert machine.state("k") == "unknown"
    assert len(machine.engine) == 2
    machine.restart()
    assert len(machine.engine) == 2
    assert machine.finish() == "p"
    assert len(machine.engine) == 1
    machine.restart()
    assert len(machine.engine) == 1


@pytest.mark.parametrize("removal", [True, 0, {"count": 0}])
def test_a_removed_job_that_is_needed_takes_no_other_with_it(machine: Machine, removal: Any) -> None:
    machine.add("other")
    machine.finish()
    machine.child("k", machine.add("p"))
    machine.finish("kids", remove=removal)
    machine.engine._check()
    assert (machine.state("k"), machine.state("other")) == ("unknown", "completed")


def test_defect_63_a_result_of_a_live_consumer_is_not_evicted() -> None:
    machine = Machine(max_completed=2)
    machine.add("a")
    machine.finish()
    machine.add("d", depends=("a",), delay_ms=10)
    for n in range(5):
        machine.add(f"j{n}")
        machine.finish()
    assert machine.state("a") == "completed"
    machine.restart()
    assert machine.state("a") == "completed"
    assert "a" not in machine.engine.clean("q", NOW + 1000, state="completed")
    assert machine.state("a") == "completed"
    assert machine.engine.remove("a")
    assert machine.state("a") == "unknown"
    machine.restart()
    assert machine.engine.dependencies("d") is not None
    with pytest.raises(FlowError, match="Custom ID a still has unresolved dependency consumers"):
        machine.add("a")


def test_defect_62_unknown_and_own_ids_are_refused(machine: Machine) -> None:
    with pytest.raises(FlowError, match="Dependency job not found: no"):
        machine.add("d", depends=("no",))
    with pytest.raises(FlowError, match="Job cannot depend on itself: d"):
        machine.add("d", depends=("d",))
    assert machine.state("d") == "unknown"
    assert len(machine.engine) == 0


def test_a_dependent_keeps_its_own_time(machine: Machine) -> None:
    machine.add("a")
    machine.add("d", depends=("a",), delay_ms=500)
    assert machine.state("d") == "waiting-children"
    machine.finish()
    assert machine.state("d") == "delayed"
    assert machine.engine.run_at_ms("d") == NOW + 500


def test_waiting_jobs_of_a_queue_are_bounded() -> None:
    machine = Machine(max_waiting_deps=2)
    machine.add("a")
    machine.add("d1", depends=("a",))
    machine.add("d2", depends=("a",))
    with pytest.raises(LimitError, match="maximum of 2 waiting jobs"):
        machine.add("d3", depends=("a",))
    machine.add("d3", depends=("a",), queue="other")
    machine.finish()
    machine.add("d4", depends=("a",))


def test_waiting_jobs_of_a_queue_are_bounded_by_every_way_in() -> None:
    """A child parks its parent; an active one that has children counts before it parks itself."""
    machine = Machine(max_waiting_deps=2)
    engine = machine.engine
    for name in ("p1", "p2", "p3", "p4"):
        machine.add(name)
    machine.add("loose", queue="kids")
    machine.child("c1", "p1")
    machine.child("more", "p1")
    got = engine.pull("q", NOW, 0, lease_ms=1000)
    assert got[0] == "p2"
    extra = {"parentId": "p2"}
    engine.push("kids", None, NOW, job_id="c2", extra=dict(extra), parent_token=got[1])
    before = engine.counts("kids", NOW)
    with pytest.raises(LimitError, match="Queue q has reached its maximum of 2 waiting jobs"):
        machine.child("c3", "p3")
    with pytest.raises(LimitError, match="Queue q has reached its maximum of 2 waiting jobs"):
        engine.update_parent("loose", "p3", NOW)
    assert engine.counts("kids", NOW) == before
    assert engine.state("p3") == "waiting"
    assert engine.dependencies("p3")["unprocessed"] == []
    assert engine.move_to_waiting_children("p2", NOW, token=got[1])
    engine.update_parent("loose", "p1", NOW)  # it waits already
    engine.push("kids", None, NOW, job_id="c4", extra=dict(extra))
    engine._check()
    assert engine.cancel("p1", NOW)
    machine.child("c5", "p3")
    assert engine.state("p3") == "waiting-children"
    engine._check()


def test_parked_jobs_are_counted_listed_changed_and_removed(machine: Machine) -> None:
    machine.add("a")
    for name in "cdefg":
        machine.add(name, depends=("a",))
    engine = machine.engine
    engine.pause("q")
    assert engine.counts("q", NOW)["waiting-children"] == 5
    assert engine.list_jobs("q", NOW, states=("waiting-children",)) == [*"cdefg"]
    assert engine.totals(NOW)["waiting-children"] == 5
    assert engine.update("c", b"\x09")
    assert engine.cancel("d", NOW)
    engine.discard("e", NOW)
    assert engine.state("e") == "failed"
    assert engine.remove("f")
    machine.restart()
    engine = machine.engine
    assert engine.list_jobs("q", NOW, states=("waiting-children",)) == ["c", "g"]
    assert engine.drain("q") == 1
    assert engine.state("g") == "waiting-children"
    assert set(engine.clean("q", NOW, state="waiting-children", limit=1)) == {"c"}
    engine.obliterate("q")
    engine._check()
    machine.restart()
    assert len(machine.engine) == 0


def test_defect_20_a_job_that_waits_long_is_not_dropped(machine: Machine) -> None:
    machine.add("a", queue="other")
    machine.add("d", depends=("a",))
    for hours in range(100):
        machine.engine.advance(NOW + hours * 3_600_000, hours * 3_600_000_000_000)
    assert machine.state("d") == "waiting-children"


def test_defect_16_a_promoted_job_is_not_parked_again() -> None:
    machine = Machine(max_completed=1)
    machine.add("a")
    machine.add("d", depends=("a",))
    machine.finish(remove=True)
    machine.save()
    job_id, token = machine.take()
    machine.engine.fail(job_id, NOW, token=token)
    for n in range(5):
        machine.add(f"j{n}", queue="other")
        machine.finish("other", remove=True)
    machine.restart()
    assert machine.state("d") == "delayed"


# --- parents and children --------------------------------------------------------------------


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(
    ("policy", "state"),
    [
        ("fail", "failed"),
        ("continue", "waiting"),
        ("ignore", "waiting-children"),
        ("remove", "waiting-children"),
        (None, "waiting-children"),
    ],
)
def test_a_failed_child_does_to_its_parent_what_it_says(
    machine: Machine, policy: str | None, state: str, restart: bool
) -> None:
    """C051, with a second child that goes on."""
    machine.add("p")
    machine.child("k1", "p", policy)
    machine.child("k2", "p", policy)
    assert machine.state("p") == "waiting-children"
    if restart:
        machine.restart()
    assert machine.fail() == "k1"
    if restart:
        machine.restart()
    assert machine.state("p") == state
    assert machine.state("k2") == "waiting"
    machine.finish("kids")
    if restart:
        machine.restart()
    ended = {"fail": "failed", None: "waiting-children"}.get(policy, "waiting")
    assert machine.state("p") == ended
    error = {"kids:k1": "boom"}
    assert machine.engine.child_failures("p", "ignore") == (error if policy == "ignore" else {})
    assert machine.engine.child_failures("p", "continue") == (error if policy == "continue" else {})
    if policy == "fail":
        (letter,) = machine.engine.dead_letters("q")
        assert (letter[2]["reason"], letter[2]["error"]) == ("unknown", "Child job k1 failed: boom")
    if policy is None:
        assert machine.engine.dependencies("p")["failed"] == ["k1"]
        machine.engine.retry_dead("kids", NOW)
        machine.finish("kids")
        assert machine.state("p") == "waiting"


def test_defect_58_invariant_30_two_failing_children_fail_their_parent_once(machine: Machine) -> None:
    machine.add("p")
    machine.child("k1", "p", "fail")
    machine.child("k2", "p", "fail")
    machine.engine.listen("q", sum(EVENT_BITS.values()))
    machine.fail()
    machine.fail()
    assert len(machine.engine.dead_letters("q")) == 1
    assert [event[0] for event in machine.engine.take_events()] == ["failed"]
    assert machine.engine.queue("q").total_failed == 1


def _stall(machine: Machine) -> None:
    machine.engine.configure("kids", stalls={"maxStalls": 1})
    machine.engine.pull("kids", NOW, 0, lease_ms=1)
    machine.engine.advance(NOW, 2_000_000)


def _lose(machine: Machine) -> None:
    machine.engine.pull("kids", NOW, 0, lease_ms=1)
    machine.engine.advance(NOW, 2_000_000)


def _time_out(machine: Machine) -> None:
    machine.engine.pull("kids", NOW, 0)
    machine.engine.advance(NOW, 2_000_000)


def _crash(machine: Machine) -> None:
    machine.engine.pull("kids", NOW, 0)
    machine.restart(charge=True)


@pytest.mark.parametrize(
    "end",
    [
        _stall,
        _lose,
        _time_out,
        _crash,
        lambda machine: machine.fail(),
        lambda machine: machine.fail(remove=True),
        lambda machine: machine.engine.discard("k", NOW),
    ],
    ids=["stall", "lease", "timeout", "recovery", "fail", "fail and remove", "discard"],
)
def test_defect_60_every_terminal_path_runs_the_policy(machine: Machine, end: Any) -> None:
    """With a grandparent that is failed in turn."""
    machine.add("g", queue="top")
    machine.child("p", "g", "fail")
    extra = {"parentId": "p", "failParentOnFailure": True, "timeout": 1}
    machine.add("k", queue="kids", extra=extra, attempts=1)
    end(machine)
    machine.engine._check()
    assert (machine.state("p"), machine.state("g")) == ("failed", "failed")
    machine.restart()
    assert (machine.state("p"), machine.state("g")) == ("failed", "failed")


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("end", [_stall, _lose, _time_out, _crash, lambda machine: machine.fail()])
@pytest.mark.parametrize("second", [*POLICIES, None])
@pytest.mark.parametrize("first", [*POLICIES, None])
def test_invariant_33_each_level_does_as_its_own_policy_says(
    machine: Machine, first: str | None, second: str | None, end: Any, restart: bool
) -> None:
    """C051, nested two deep."""
    machine.add("g", queue="top")
    machine.child("p", "g", second)
    extra: dict[str, Any] = {"parentId": "p", "timeout": 1}
    if first is not None:
        extra[POLICIES[first]] = True
    machine.add("k", queue="kids", extra=extra, attempts=1)
    end(machine)
    machine.engine._check()
    if restart:
        machine.restart()
    assert machine.state("k") == "failed"
    assert machine.state("p") == {"fail": "failed", None: "waiting-children"}.get(first, "waiting")
    above = {"fail": "failed", None: "waiting-children"}.get(second, "waiting")
    assert machine.state("g") == (above if first == "fail" else "waiting-children")


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("which", [0, 1, 2, None])
@pytest.mark.parametrize("policy", POLICIES)
def test_c051_whichever_child_fails_the_parent_ends(
    machine: Machine, policy: str, which: int | None, restart: bool
) -> None:
    """Also when the queue of the parent is paused; None: all children fail."""
    machine.add("p", queue="top")
    machine.engine.pause("top")
    for n in range(3):
        machine.child(f"k{n}", "p", policy)
    for n in range(3):
        if which is None or which == n:
            machine.fail()
        else:
            machine.finish("kids")
        if restart:
            machine.restart()
    assert machine.engine.counts("top", NOW)["waiting-children"] == 0
    if policy == "fail":
        assert [entry[0] for entry in machine.engine.dead_letters("top")] == ["p"]
        return
    assert machine.engine.counts("top", NOW)["paused"] == 1
    assert machine.engine.pull("top", NOW, 0) is None
    machine.engine.pause("top", False)
    assert machine.take("top")[0] == "p"
    failed = [0, 1, 2] if which is None else [which]
    if policy == "continue":
        failed = failed[:1]  # the others came too late for a parent that goes on
    told = {} if policy == "remove" else {f"kids:k{n}": "boom" for n in failed}
    assert machine.engine.child_failures("p", "ignore" if policy == "remove" else policy) == told


def test_invariant_30_a_dependent_is_promoted_once(machine: Machine) -> None:
    for name in "abc":
        machine.add(name)
    machine.add("d", queue="top", depends=("a", "b", "c"))
    for _ in "abc":
        machine.finish(remove=True)
        machine.restart()
    assert machine.take("top")[0] == "d"
    assert machine.engine.pull("top", NOW, 0) is None
    machine.restart()
    assert machine.state("d") == "active"
    assert machine.engine.pull("top", NOW, 0) is None


def test_a_job_is_not_its_own_parent(machine: Machine) -> None:
    with pytest.raises(FlowError, match="A flow job cannot be its own parent"):
        machine.add("p", extra={"parentId": "p"})
    machine.add("p")
    with pytest.raises(FlowError, match="A flow job cannot be its own parent"):
        machine.engine.update_parent("p", "p", NOW)
    assert len(machine.engine) == 1
    machine.engine._check()


@pytest.mark.parametrize("policy", [0, 1, {"count": 0}, {"count": 1, "age": 60}])
def test_a_policy_of_removal_passes_over_what_live_jobs_need(machine: Machine, policy: Any) -> None:
    extra = {"removeOnComplete": policy}
    machine.add("a")
    machine.add("d", queue="top", depends=("a",))
    machine.finish()
    for name in ("j1", "j2", "j3"):
        machine.add(name, extra=extra)
        machine.finish()
    assert machine.state("a") == "completed"
    assert machine.engine.result("a") == b"\x07"
    machine.restart()
    machine.finish("top")
    machine.add("j4", extra=extra)
    machine.finish()
    assert machine.state("a") == "unknown"
    machine.restart()
    assert machine.engine.owns("a")


def test_defect_92_a_released_pin_writes_one_entry_whatever_was_completed_before(machine: Machine) -> None:
    sizes = []
    for history in (0, 3000):
        for _ in range(history):
            machine.engine.push("q", None, NOW, remove_on_complete=True)
            machine.finish()
        machine.add(f"a{history}")
        machine.finish(remove=True)
        machine.add(f"d{history}", queue="top", depends=(f"a{history}",))
        machine.save()
        machine.engine.cancel(f"d{history}", NOW)
        cut = rows.take_rows(machine.engine, NOW, 0)
        machine.store.commit(cut)
        sizes.append([len(value or b"") for (table, _), value in cut.side.items() if table == "evidence"])
    assert sizes[0] == [sizes[0][0]]
    assert abs(sizes[0][0] - sizes[1][0]) < 10


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dependsOn", "ab"),
        ("dependsOn", ["a", 7]),
        ("dependsOn", ["a", "a"]),
        ("dependsOn", None),
        ("childrenIds", {"a": 1}),
        ("parentId", 5),
        ("settledEdges", 3),
        ("settledEdges", -1),
        ("edgesDone", [b"a"]),
        ("edgesDropped", {"a": "ignore"}),
        ("childFailed", ["a"]),
    ],
)
def test_defect_15_a_job_whose_ties_cannot_be_read_does_not_run(field: str, value: object) -> None:
    """It is refused as a row, so that the host sets it aside; it is not taken for a job without ties."""
    machine = Machine()
    machine.add("a")
    machine.add("d", depends=("a",))
    machine.save()
    snapshot = machine.store.reopened().load()
    first, (seq, queue, state, record, data, result) = snapshot.jobs
    whole = read_record(record)
    extra = {**msgpack.unpackb(whole.extra), field: value}
    if value is None:
        del extra[field]
    bad = (seq, queue, state, bytes(replace(whole, extra=msgpack.packb(extra)).plain), data, result)
    engine = Engine(bytes(16), tracking=True)
    rows.restore_names(engine, snapshot.names, snapshot.queues)
    rows.restore(engine, first, NOW, 0)
    with pytest.raises(rows.BadRow, match=r"what the job is tied to|says not for whom"):
        rows.restore(engine, bad, NOW, 0)
    rows.settle_active(engine, True, False, NOW)
    engine._check()
    assert engine.state("d") == "unknown"


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("form", ["j{}", "00000000-0000-7000-8000-00000000000{}"])
def test_an_obliterated_queue_is_not_known_as_completed(machine: Machine, form: str, restart: bool) -> None:
    names = [form.format(n) for n in range(4)]
    for name, queue in zip(names, "qqqr", strict=True):
        machine.add(name, queue=queue)
        machine.finish(queue, remove=True)
    dependent = machine.add("d", queue="late", depends=(names[0],), delay_ms=1000)
    machine.save()
    machine.engine.obliterate("q")
    machine.add("again")
    machine.finish(remove=True)
    for _ in range(2):
        machine.engine._check()
        if restart:
            machine.restart()
        owned = [machine.engine.owns(name) for name in (*names, "again")]
        assert owned == [True, False, False, True, True]
    with pytest.raises(FlowError, match="Dependency job not found"):
        machine.add("e", depends=(names[1],))
    # What a live job is tied to stays until that is finished, and then belongs to no queue.
    assert machine.state(dependent) == "delayed"
    machine.engine.cancel(dependent, NOW)
    machine.engine.obliterate("q")
    if restart:
        machine.restart()
    assert [machine.engine.owns(name) for name in (*names, "again")] == [True, False, False, True, False]


@pytest.mark.parametrize("form", ["j{}", "00000000-0000-7000-8000-00000000000{}"])
def test_evidence_that_a_live_job_is_tied_to_outlives_the_end_of_its_queue(
    machine: Machine, form: str
) -> None:
    """The parent was failed, so that nothing was tied to its done child, and was started over."""
    child = form.format(1)
    machine.add("p")
    machine.child(child, "p")
    machine.child("open", "p")
    machine.finish("kids", remove=True)
    machine.engine.discard("p", NOW)
    assert machine.engine.retry_dead("q", NOW) == 1
    machine.save()
    machine.engine.obliterate("kids")
    for _ in range(2):
        ties = machine.engine.dependencies("p")
        assert ties is not None
        assert ties["processed"] == [child]
        machine.restart()


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("form", ["j{}", "00000000-0000-7000-8000-00000000000{}"])
def test_invariant_28_evidence_is_bounded_beside_what_is_pinned(form: str, restarts: bool) -> None:
    """The plain model: a dict in order of completion, and the ids that live jobs are tied to."""
    machine = Machine(max_completed=4)
    draw = random.Random(28)
    names = [form.format(n) for n in range(9)]
    recent: dict[str, None] = {}
    pinned: dict[str, str] = {}  # id -> the job that is tied to it

    def newest(name: str) -> None:
        recent.pop(name, None)
        recent[name] = None
        while len(recent) > 4:
            del recent[next(iter(recent))]

    for step in range(600):
        name = draw.choice(names)
        if name in pinned:
            assert machine.engine.cancel(pinned.pop(name), NOW)
            newest(name)
        elif draw.random() < 0.3 and machine.engine.owns(name):
            pinned[name] = machine.add(f"d{step}", queue="late", depends=(name,), delay_ms=1000)
            recent.pop(name, None)
        else:
            machine.add(name)
            recent.pop(name, None)
            if draw.random() < 0.3:
                assert machine.engine.cancel(name, NOW)
            else:
                machine.finish(remove=True)
                newest(name)
        if restarts and draw.random() < 0.1:
            machine.restart()
        owned = {one for one in names if machine.engine.owns(one)}
        if restarts:  # which of the others are left depends on the rows that are
            assert {*pinned} <= owned, step
            assert len(owned) <= 4 + len(pinned)
        else:
            assert owned == {*recent, *pinned}, step


@pytest.mark.parametrize("remove_on_fail", [False, True])
def test_a_failure_climbs_ten_thousand_levels(machine: Machine, remove_on_fail: bool) -> None:
    engine = machine.engine
    engine.configure("q", dead={"maxEntries": 20_000})
    n = 10_000
    engine.push("q", None, NOW, job_id="0")
    for level in range(1, n):
        engine.push(
            "q",
            None,
            NOW,
            job_id=str(level),
            attempts=1,
            remove_on_fail=remove_on_fail,
            extra={"parentId": str(level - 1), "failParentOnFailure": True},
        )
    assert engine.counts("q", NOW)["waiting-children"] == n - 1
    machine.fail("q")
    assert engine.counts("q", NOW)["failed"] == (1 if remove_on_fail else n)
    assert engine.state("0") == "failed"


@pytest.mark.parametrize("how", ["cancel", "remove", "clean"])
def test_a_removed_child_leaves_an_edge_that_shows_as_missing(machine: Machine, how: str) -> None:
    machine.add("p")
    machine.child("k", "p", "fail")
    if how == "clean":
        assert machine.engine.clean("kids", NOW) == ["k"]
    elif how == "cancel":
        assert machine.engine.cancel("k", NOW)
    else:
        assert machine.engine.remove("k")
    machine.restart()
    assert machine.state("p") == "waiting-children"
    assert machine.engine.dependencies("p")["missing"] == ["k"]
    machine.add("k", queue="kids")
    machine.finish("kids")
    assert machine.state("p") == "waiting"


def test_a_parent_that_runs_or_is_finished_takes_no_child(machine: Machine) -> None:
    machine.add("p")
    job_id, token = machine.take()
    with pytest.raises(FlowError, match="Parent job p is not linkable"):
        machine.child("k", "p")
    machine.engine.ack(job_id, NOW, token=token)
    with pytest.raises(FlowError, match="Parent job p is not linkable"):
        machine.child("k", "p")
    assert machine.state("k") == "unknown"


def test_defect_61_the_holder_links_children_and_parks(machine: Machine) -> None:
    machine.add("p")
    job_id, token = machine.take()
    assert machine.engine.move_to_waiting_children(job_id, NOW, token=token) is False
    assert machine.state("p") == "active"
    with pytest.raises(LeaseError):
        machine.engine.move_to_waiting_children(job_id, NOW)
    machine.child("k", "p", parent_token=token)
    assert machine.state("p") == "active"
    assert machine.engine.move_to_waiting_children(job_id, NOW, token=token) is True
    machine.engine._check()
    assert machine.state("p") == "waiting-children"
    machine.restart()
    assert machine.state("p") == "waiting-children"
    machine.finish("kids")
    assert machine.state("p") == "waiting"
    assert machine.engine.attempts("p") == 0
    job_id, token = machine.take()
    assert machine.engine.move_to_waiting_children(job_id, NOW, token=token, leave=True) is False
    assert machine.state("p") == "waiting"
    with pytest.raises(StateError, match="Job is not active"):
        machine.engine.move_to_waiting_children("p", NOW)


@pytest.mark.parametrize("restart", [False, True])
def test_a_child_that_failed_before_its_parent_parked_counts(machine: Machine, restart: bool) -> None:
    machine.add("p")
    job_id, token = machine.take()
    machine.child("k", "p", "fail", parent_token=token)
    machine.fail()
    assert machine.state("p") == "active"
    if restart:
        machine.restart()
    assert machine.engine.move_to_waiting_children(job_id, NOW, token=token) is True
    assert machine.state("p") == "failed"
    machine.engine._check()


@pytest.mark.parametrize(
    ("before", "state"),
    [
        ("waiting", "waiting-children"),
        ("active", "waiting-children"),
        ("completed", "waiting"),
        ("removed", "waiting"),
        ("failed", "failed"),
    ],
)
def test_c052_a_child_counts_as_it_is(machine: Machine, before: str, state: str) -> None:
    machine.add("k", queue="kids", extra={"failParentOnFailure": True})
    if before == "active":
        machine.take("kids")
    elif before == "completed":
        machine.finish("kids")
    elif before == "removed":
        machine.finish("kids", remove=True)
    elif before == "failed":
        machine.fail()
    machine.add("p", depends=("k",), extra={"childrenIds": ["k"]})
    if before != "removed":
        machine.engine.update_parent("k", "p", NOW)
    machine.engine._check()
    assert machine.state("p") == state
    machine.restart()
    assert machine.state("p") == state


def test_c052_one_child_of_two_dependents_and_no_circle(machine: Machine) -> None:
    machine.add("x")
    machine.add("p1", depends=("x",))
    machine.add("p2", depends=("x", "p1"))
    with pytest.raises(FlowError, match="flow contains a dependency cycle"):
        machine.engine.update_parent("p2", "x", NOW)
    with pytest.raises(FlowError, match="A flow job cannot be its own parent"):
        machine.engine.update_parent("x", "x", NOW)
    with pytest.raises(FlowError, match="flow contains a dependency cycle"):
        machine.add("y", depends=("p2",), extra={"parentId": "x"})
    machine.engine.cancel("x", NOW)
    with pytest.raises(FlowError, match="flow contains a dependency cycle"):
        machine.add("x", depends=("p2",))
    machine.add("x")
    assert machine.finish() == "x"
    assert machine.finish() == "p1"
    assert machine.finish() == "p2"


def test_a_child_has_one_parent(machine: Machine) -> None:
    for name in ("p", "other"):
        machine.add(name)
    machine.child("k", "p")
    with pytest.raises(FlowError, match="Child job k already belongs to parent p"):
        machine.engine.update_parent("k", "other", NOW)
    for child, parent, text in (
        ("no", "p", "Child job not found: no"),
        ("k", "no", "Parent job not found: no"),
    ):
        with pytest.raises(NotFoundError, match=text):
            machine.engine.update_parent(child, parent, NOW)


def test_ties_can_be_undone(machine: Machine) -> None:
    engine = machine.engine
    machine.add("p")
    machine.child("k1", "p")
    machine.child("k2", "p")
    assert engine.remove_child_dependency("k1", NOW) is True
    with pytest.raises(FlowError, match="Job k1 has no parent"):
        engine.remove_child_dependency("k1", NOW)
    assert machine.state("p") == "waiting-children"
    machine.restart()
    engine = machine.engine
    engine.listen("q", EVENT_BITS["waiting"])
    assert engine.remove_child_dependency("k2", NOW) is True
    engine._check()
    assert engine.take_events() == [("waiting", "q", "p", NOW, "waiting-children")]
    machine.restart()
    assert machine.state("p") == "waiting"


def test_removing_unprocessed_children_frees_the_parent(machine: Machine) -> None:
    machine.add("p")
    for name in ("k1", "k2", "k3"):
        machine.child(name, "p")
    machine.engine.cancel("k3", NOW)
    taken, token = machine.take("kids")
    assert machine.engine.remove_unprocessed_children("p", NOW) == 1
    machine.engine._check()
    assert [machine.state(name) for name in ("k1", "k2", "p")] == ["active", "unknown", "waiting-children"]
    machine.engine.ack(taken, NOW, token=token)
    machine.restart()
    assert machine.state("p") == "waiting"
    assert machine.engine.remove_unprocessed_children("no", NOW) == 0


def test_a_child_that_was_removed_and_comes_back_is_waited_for(machine: Machine) -> None:
    """Its earlier life failed under a policy, which does not count for the later one."""
    machine.add("p")
    machine.child("k1", "p", "continue")
    taken, token = machine.take("kids")
    machine.engine.fail(taken, NOW, token=token, unrecoverable=True)
    assert machine.state("p") == "waiting"
    machine.engine.push("kids", None, NOW, job_id="k1")
    assert machine.engine.remove_unprocessed_children("p", NOW) == 1
    machine.child("k1", "p")
    machine.engine._check()
    assert machine.state("p") == "waiting-children"
    assert machine.engine.dependencies("p")["unprocessed"] == ["k1"]
    machine.restart()
    assert machine.state("p") == "waiting-children"


@pytest.mark.parametrize("n", [0, 1, 10_000])
def test_c053_however_many_children(n: int) -> None:
    machine = Machine(max_waiting_deps=20_000)
    engine = machine.engine
    kids = [f"k{i}" for i in range(n)]
    for name in kids:
        engine.push("kids", None, NOW, job_id=name)
    engine.push("q", None, NOW, job_id="p", extra={"dependsOn": kids, "childrenIds": kids})
    machine.save()
    for name in kids:
        assert engine.state("p") == "waiting-children"
        engine.pull("kids", NOW, 0)
        engine.ack(name, NOW)
    assert engine.state("p") == "waiting"
    # Completing a child writes nothing for its parent but the last one.
    assert rows.take_rows(engine, NOW, 0).n_jobs == n + (n > 0)
    engine._check()
