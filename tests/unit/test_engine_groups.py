"""Groups of jobs: turns, limits, blocks, and that a group costs only while it is used."""

from __future__ import annotations

import random
import string

import pytest

from qcore.broker import rows
from qcore.engine.engine import Engine
from qcore.engine.lanes import Wanted
from qcore.errors import CommandError, LimitError
from qcore.store.memory import MemoryStore

SEED = bytes(16)
NOW = 1_700_000_000_000
MS = 1_000_000
SECOND = 1_000_000_000
ONE = Wanted(concurrency=1)


def add(engine: Engine, group: str | None, n: int = 1, queue: str = "q", **how: object) -> list[str]:
    extra = None if group is None else {"groupId": group}
    ids = [
        engine.push(queue, None, NOW, extra=None if extra is None else dict(extra), **how)  # type: ignore[arg-type]
        for _ in range(n)
    ]
    engine._check()
    return ids


def take(
    engine: Engine, wanted: Wanted | None = None, ns: int = 0, queue: str = "q", lease_ms: int = 0
) -> str | None:
    got = engine.pull(queue, NOW + ns // MS, ns, wanted=wanted, lease_ms=lease_ms)
    engine._check()
    return None if got is None else got[0]


def take_all(engine: Engine, wanted: Wanted | None = None, ns: int = 0) -> list[str]:
    return list(iter(lambda: take(engine, wanted, ns), None))


# --- order -----------------------------------------------------------------------------------


def test_invariant_17_groups_take_turns_and_within_one_the_lower_number_comes_first() -> None:
    engine = Engine(SEED)
    names: dict[str, str] = {}
    rng = random.Random(3)
    plan = []
    for seq in range(400):
        group, priority = rng.choice("abcde"), rng.choice([0, 0, 1, 5, 2_097_151])
        (job_id,) = add(engine, group, priority=priority, lifo=rng.random() < 0.3)
        names[job_id] = group
        plan.append((group, priority, seq, job_id))
    order = take_all(engine)
    for group in "abcde":
        expected = [job_id for of, _, _, job_id in sorted(plan) if of == group]
        assert [job_id for job_id in order if names[job_id] == group] == expected
    shortest = min(sum(1 for group in names.values() if group == of) for of in "abcde")
    for start in range(5 * shortest - 4):
        assert {names[job_id] for job_id in order[start : start + 5]} == set("abcde")


def test_a_group_that_fills_up_again_waits_a_whole_turn() -> None:
    engine = Engine(SEED)
    (a1,), b, c = add(engine, "a"), add(engine, "b", 2), add(engine, "c", 2)
    assert take(engine) == a1
    (a2,) = add(engine, "a")
    assert [take(engine) for _ in range(5)] == [b[0], c[0], a2, b[1], c[1]]


def test_defect_45_ungrouped_jobs_go_first_or_take_their_turn() -> None:
    engine = Engine(SEED)
    low = add(engine, None, 3, priority=-5)
    a, b = add(engine, "a", 2), add(engine, "b", 2)
    assert take(engine) == low[0]
    fair = Wanted(ungrouped_first=False)
    # As one more lane of the round: never starved, and never starving.
    order = [take(engine, fair) for _ in range(6)]
    assert order == [low[1], a[0], b[0], low[2], a[1], b[1]]


def test_the_pull_chooses_with_its_affinity() -> None:
    engine = Engine(SEED)
    a, b, (free,) = add(engine, "a"), add(engine, "b", 2), add(engine, None)
    assert take(engine, Wanted(affinity="b")) == b[0]
    assert take(engine, Wanted(affinity="none")) is None
    assert take(engine, Wanted(affinity="")) == free
    assert take(engine, Wanted(affinity="")) is None
    assert take(engine) == a[0]
    assert take(engine) == b[1]


def test_delayed_jobs_of_a_group_come_with_their_time() -> None:
    engine = Engine(SEED)
    (late,) = add(engine, "a", delay_ms=100)
    (now,) = add(engine, "a", priority=3)
    assert take(engine) == now
    assert engine.counts("q", NOW)["delayed"] == 1
    assert take(engine, ns=99 * MS) is None
    assert take(engine, ns=100 * MS) == late


def test_another_priority_within_the_group_changes_the_order_and_not_the_turn() -> None:
    engine = Engine(SEED)
    a, b = add(engine, "a", 2), add(engine, "b", 1)
    assert engine.change_priority(a[0], 7, NOW)
    assert engine.state(a[0]) == "prioritized"
    engine._check()
    assert [take(engine) for _ in range(3)] == [a[1], b[0], a[0]]
    for bad in (-1, 0.5, 2_097_152, float("inf")):
        (job_id,) = add(engine, "a")
        with pytest.raises(CommandError, match="between 0 and 2097151"):
            engine.change_priority(job_id, bad, NOW)


# --- who may -----------------------------------------------------------------------------------


def test_defect_44_and_invariant_18_a_blocked_group_never_holds_up_the_others() -> None:
    engine = Engine(SEED)
    groups = string.ascii_lowercase
    first = {group: add(engine, group, 2)[0] for group in groups}
    engine.pause_group("q", "a")
    engine.block_group("q", "b", 1000, NOW, 0)
    for group in groups[2:12]:
        assert take(engine, ONE) == first[group]
    assert take(engine, ONE) == first["m"]
    engine.pause_group("q", "a", False)
    assert take(engine, ONE) == first["a"]  # it kept its place in the round
    rest = take_all(engine, ONE)
    assert rest == [first[group] for group in groups[13:]]
    assert take(engine, ONE, 1000 * MS) == first["b"]


def test_the_concurrency_of_a_group_counts_only_for_pulls_that_bring_one() -> None:
    engine = Engine(SEED)
    add(engine, "a", 9)
    engine.set_group_concurrency("q", "a", 3)
    assert all(take(engine) for _ in range(4))  # these pulls have no limit
    assert take(engine, ONE) is None
    engine.set_group_concurrency("q", "a", 6)
    assert len(take_all(engine, ONE)) == 2
    assert engine.set_group_concurrency("q", "a", None) is True
    assert engine.set_group_concurrency("q", "a", None) is False
    assert take(engine, ONE) is None
    assert take(engine, Wanted(concurrency=7)) is not None


def test_windows_are_fixed_and_open_with_the_first_start() -> None:
    engine = Engine(SEED)
    add(engine, "a", 9)
    two = Wanted(window_max=2, window_ms=100)
    assert engine.group_wait_ms("q", "a", 0) == -2
    assert take(engine, two, 50 * MS)
    assert engine.group_wait_ms("q", "a", 50 * MS) == 0
    assert take(engine, two, 149 * MS)
    assert take(engine, two, 149 * MS) is None
    assert engine.group_wait_ms("q", "a", 149 * MS) == 1
    assert engine.group_wait_ms("q", "a", 149 * MS, max_jobs=3) == 0
    assert len(take_all(engine, two, 150 * MS)) == 2
    # A pull with other numbers opens a window of its own.
    assert take(engine, Wanted(window_max=1, window_ms=100), 150 * MS)
    assert take(engine, Wanted(window_max=1, window_ms=100), 150 * MS) is None
    engine.set_group_rate("q", "a", 1, 60_000)  # drops the window, and counts instead of what pulls bring
    assert len(take_all(engine, two, 150 * MS)) == 1
    assert take(engine, two, 60_149 * MS) is None
    assert engine.set_group_rate("q", "a", None) is True
    assert engine.set_group_rate("q", "a", None) is False
    assert len(take_all(engine, two, 60_149 * MS)) == 2


def test_a_block_holds_for_every_pull_and_ends_by_itself() -> None:
    engine = Engine(SEED)
    a = add(engine, "a", 2)
    engine.block_group("q", "a", 400, NOW, 0)
    assert take(engine) is None
    assert take(engine, Wanted(affinity="a"), 399 * MS) is None
    assert engine.group_wait_ms("q", "a", 100 * MS) == 300
    assert take(engine, ns=400 * MS) == a[0]
    assert engine.group_wait_ms("q", "a", 400 * MS) == -2


WAYS_OUT = ["ack", "fail", "retry", "lease", "timeout", "moved", "returned", "discarded", "removed", "closed"]


@pytest.mark.parametrize("way", [*WAYS_OUT, "late", "restart"])
def test_case_024_and_invariant_13_every_way_out_of_active_frees_the_slot_of_the_group(way: str) -> None:
    engine = Engine(SEED, tracking=True)
    extra = {"groupId": "g", "timeout": 200}
    for _ in range(5):
        engine.push("q", None, NOW, extra=dict(extra))
    got = engine.pull("q", NOW, 0, lease_ms=100, session=1, wanted=ONE)
    assert got is not None
    job_id, token, _ = got
    assert take(engine, ONE) is None
    assert engine.group("q", "g").n_active == 1  # type: ignore[union-attr]
    ns = 0
    if way == "ack":
        engine.ack(job_id, NOW, token=token)
    elif way == "fail":
        engine.fail(job_id, NOW, token=token, unrecoverable=True)
    elif way == "retry":
        engine.fail(job_id, NOW, token=token)
    elif way in ("lease", "late"):
        ns = 100 * MS
        engine.advance(NOW + 100, ns)
        if way == "late":
            assert engine.ack(job_id, NOW + 100, token=token)
    elif way == "timeout":
        ns = 200 * MS
        engine.renew(job_id, NOW, 0, token=token, lease_ms=60_000)
        engine.advance(NOW + 200, ns)
    elif way == "moved":
        engine.move_to_delayed(job_id, 60_000, NOW, token=token)
    elif way == "returned":
        engine.move_to_wait(job_id, NOW, token=token)
    elif way == "discarded":
        engine.discard(job_id, NOW, token=token)
    elif way == "removed":
        engine.remove(job_id)
    elif way == "closed":
        engine.close_session(1, NOW)
    elif way == "restart":
        engine = reopened(engine, MemoryStore(), NOW, 0)[0]
    engine._check()
    assert take(engine, ONE, ns) is not None
    assert take(engine, ONE, ns) is None


# --- room ---------------------------------------------------------------------------------------


def test_a_group_has_room_for_all_or_none() -> None:
    engine = Engine(SEED)
    add(engine, "a", 2)
    add(engine, "a", 1, delay_ms=1000)
    engine.demand_group_room("q", [("a", 4), ("b", 1), ("a", None)])
    with pytest.raises(LimitError, match=r"^Group a has reached its maximum size of 4$"):
        engine.demand_group_room("q", [("a", 5), ("a", 4)])
    take(engine)  # what runs does not count
    engine.demand_group_room("q", [("a", 5), ("a", 4)])


# --- control and counts ------------------------------------------------------------------------------


def test_grouped_jobs_are_counted_listed_and_removed_like_all_others() -> None:
    engine = Engine(SEED)
    a = add(engine, "a", 2) + add(engine, "b", 1, priority=4)
    (late,) = add(engine, "a", delay_ms=1000)
    (free,) = add(engine, None)
    counts = engine.counts("q", NOW)
    assert (counts["waiting"], counts["prioritized"], counts["delayed"]) == (3, 1, 1)
    assert sorted(engine.list_jobs("q", NOW, states=("waiting", "prioritized"))) == sorted([*a, free])
    assert engine.counts_by_priority("q") == {0: 4, 4: 1}
    assert engine.totals(NOW)["waiting"] == 4
    group = engine.group("q", "a")
    assert group is not None
    assert (group.n_ready, group.n_delayed, group.n_active) == (2, 1, 0)
    engine.pause("q")
    assert engine.counts("q", NOW)["paused"] == 4
    engine.pause("q", False)
    assert engine.promote(late, NOW)
    assert engine.cancel(a[0], NOW)
    engine.discard(a[1], NOW)
    assert engine.clean("q", NOW, state="prioritized") == [a[2]]
    engine._check()
    assert engine.retry_dead("q", NOW) == 1
    assert engine.drain("q") == 3
    engine._check()
    assert engine.group_names("q") == []


def test_case_018_names_of_groups_and_queues_that_look_alike_are_kept_apart() -> None:
    pairs = [("a:b", "c", "a", "b:c"), ("q", "1:g", "q1", ":g"), ("q", "Ä", "q", "ä"), ("q", " ", "q", "  ")]
    for queue, group, other_queue, other_group in pairs:
        engine, store = Engine(SEED, tracking=True), MemoryStore()
        mine, other = add(engine, group, queue=queue), add(engine, other_group, queue=other_queue)
        engine.pause_group(queue, group)
        for _ in range(2):
            assert take(engine, queue=queue) == (None if queue != other_queue else other[0])
            if queue != other_queue:
                assert take(engine, queue=other_queue) == other[0]
            engine.move_to_wait(other[0], NOW)
            engine, store = reopened(engine, store, NOW, 0)
        engine.pause_group(queue, group, False)
        got = [take(engine, Wanted(affinity=group), queue=queue)]
        assert got == mine


# --- what is left ---------------------------------------------------------------------------------------


def reopened(engine: Engine, store: MemoryStore, now_ms: int, now_ns: int) -> tuple[Engine, MemoryStore]:
    store.commit(rows.take_rows(engine, now_ms, now_ns))
    store = store.reopened()
    fresh = Engine(SEED, tracking=True)
    found = store.load()
    rows.restore_names(fresh, found.names, found.queues, now_ms, now_ns)
    assert rows.restore_groups(fresh, found.side["lanes"], now_ms, now_ns) == []
    for row in found.jobs:
        rows.restore(fresh, row, now_ms, now_ns)
    rows.settle_active(fresh, False, False, now_ms)
    fresh._check()
    return fresh, store


def test_invariant_22_settings_of_groups_outlive_a_restart_and_their_rows_go_with_them() -> None:
    engine, store = Engine(SEED, tracking=True), MemoryStore()
    a, b = add(engine, "a", 2), add(engine, "b")
    engine.pause_group("q", "a")
    engine.set_group_concurrency("q", "a", 2)
    engine.set_group_rate("q", "a", 5, 1000)
    engine.block_group("q", "b", 500, NOW, 0)
    engine.pause_group("q", "empty")
    engine, store = reopened(engine, store, NOW + 200, 7 * SECOND)
    group = engine.group("q", "a")
    assert group is not None
    assert group.settings() == {
        "paused": True,
        "concurrency": 2,
        "max": 5,
        "duration": 1000,
    }
    assert take(engine, ns=7 * SECOND) is None
    assert engine.group_wait_ms("q", "b", 7 * SECOND) == 300
    # Set back by an hour, the wall clock prolongs no block.
    engine, store = reopened(engine, store, NOW - 3_600_000, 0)
    assert engine.group_wait_ms("q", "b", 0) <= 500
    assert take(engine, ns=500 * MS) == b[0]
    engine.pause_group("q", "a", False)
    engine.pause_group("q", "empty", False)
    engine.set_group_concurrency("q", "a", None)
    engine.set_group_rate("q", "a", None)
    engine, store = reopened(engine, store, NOW, 0)
    assert store.load().side["lanes"] == []
    assert [take(engine) for _ in range(3)] == [a[0], b[0], a[1]]


def test_a_setting_that_cannot_be_read_is_left_out_and_told() -> None:
    engine = Engine(SEED)
    add(engine, None)
    bad = [("7:g", b"\x80"), ("1", b"\x81\xa6paused\xc3"), ("x:g", b"\x80"), ("1:h", b"\xc1"), (3, b"\x80")]
    bad.append(("1:i", b"\x81\xabconcurrency\xa1x"))
    assert rows.restore_groups(engine, bad, NOW, 0) == ["7:g", "x:g", "1:h", 3, "1:i"]
    engine._check()


def test_invariant_50_and_a_group_costs_only_while_it_has_jobs_or_settings() -> None:
    engine = Engine(SEED, max_completed=10)
    window = Wanted(concurrency=2, window_max=3, window_ms=10)
    for i in range(300):
        add_one = engine.push("q", None, NOW, extra={"groupId": f"g{i}"}, remove_on_complete=True)
        assert add_one
    engine._check()
    while got := engine.pull("q", NOW, 0, wanted=window):
        engine.ack(got[0], NOW)
    assert len(engine.group_names("q")) == 300  # their windows are open still
    assert engine.next_due(NOW, 0) is not None
    while engine.advance(NOW + 1010, 1010 * MS):
        pass
    engine._check()
    assert engine.group_names("q") == []
    engine.advance(NOW + 31_000, 31_000 * MS)  # a look for silent deliveries, the last one
    assert engine.next_due(NOW + 31_000, 31_000 * MS) is None


def test_obliteration_takes_the_groups_too() -> None:
    engine = Engine(SEED)
    add(engine, "a", 3)
    take(engine, Wanted(window_max=1, window_ms=1000))
    engine.pause_group("q", "a")
    engine.block_group("q", "b", 1000, NOW, 0)
    engine.obliterate("q")
    engine._check()
    assert engine.group_names("q") == []
    a = add(engine, "a", 1)
    assert take(engine) == a[0]


def test_more_kinds_of_pulls_than_are_kept_in_view_change_nothing() -> None:
    engine = Engine(SEED)
    groups = string.ascii_letters
    for group in groups:
        add(engine, group, 3)
    kinds = [Wanted(concurrency=n) for n in range(1, 30)]
    rng = random.Random(1)
    seen = 0
    while True:
        wanted = rng.choice(kinds)
        got = take(engine, wanted)
        if got is None:
            if take(engine, kinds[-1]) is None:
                break
            seen += 1
            continue
        seen += 1
    assert seen == 3 * len(groups)
    assert all(engine.group("q", group).n_active == 3 for group in groups)  # type: ignore[union-attr]
