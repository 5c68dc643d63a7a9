"""Schedules in the engine: when they fire, what they skip, what a change keeps. No store."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgpack
import pytest

from qcore.broker import rows
from qcore.clock import ManualClock
from qcore.engine.cron import Cron
from qcore.engine.engine import Engine
from qcore.engine.schedule import Schedule
from qcore.engine.table import EVENT_BITS
from qcore.engine.workers import Worker
from qcore.errors import NotFoundError, StateError

SEED = bytes(16)
START = int(datetime(2026, 3, 2, 10, 0, tzinfo=UTC).timestamp() * 1000)
SECOND, MINUTE, DAY = 1000, 60_000, 86_400_000


class World:
    """An engine, its clock, and a host that looks after it as hosts do."""

    def __init__(self) -> None:
        self.clock = ManualClock(START)
        self.engine = Engine(SEED)

    @property
    def ms(self) -> int:
        return self.clock.now_ms()

    @property
    def ns(self) -> int:
        return self.clock.now_ns()

    def put(self, name: str = "s", queue: str = "q", **options: Any) -> Schedule:
        if "pattern" not in options:
            options.setdefault("every_ms", 10 * SECOND)
        job = options.setdefault("job", {})
        if options.get("prevent_overlap", True):
            job["extra"] = {**job.get("extra", {}), "uniqueKey": f"cron:{name}"}
        return self.engine.put_schedule(name, queue, self.ms, self.ns, **options)

    def turn(self) -> None:
        while self.engine.advance(self.ms, self.ns):
            pass
        self.engine._check()

    def run(self, ms: int) -> None:
        """Let time pass, waking up only when the engine asked for it."""
        end = self.ns + ms * 1_000_000
        while True:
            self.turn()
            left = self.engine.next_due(self.ms, self.ns)
            if left is None or self.ns + left > end:
                break
            self.clock.advance(max(1, -(-left // 1_000_000)))
        self.clock.advance((end - self.ns) // 1_000_000)
        self.turn()

    def take(self, queue: str = "q") -> list[tuple[str, str | None, bytes | None]]:
        return list(self.engine.pull_many(queue, 1000, self.ms, self.ns, lease_ms=30 * SECOND))

    def work(self, queue: str = "q") -> int:
        """Run everything that is there; how many jobs that was."""
        jobs = self.take(queue)
        for job_id, token, _ in jobs:
            self.engine.ack(job_id, self.ms, token=token)
        return len(jobs)

    def worker(self, worker_id: str, *queues: str) -> None:
        self.engine.workers.register(
            Worker(worker_id, "w", list(queues), 1, "host", 1, self.ms, self.ms, self.ns, session=1)
        )


@pytest.fixture
def world() -> World:
    return World()


def test_a_schedule_adds_its_job_with_all_its_options(world: World) -> None:
    world.put(
        data=b"\x81\xa1k\x01",
        job={"name": "n", "priority": 7.5, "delay_ms": 500, "attempts": 9, "extra": {"timeout": 50}},
    )
    world.run(10 * SECOND - 1)
    assert world.take() == []
    world.run(1)
    assert world.engine.counts("q", world.ms)["delayed"] == 1
    world.run(500)
    ((job_id, token, data),) = world.take()
    assert data == b"\x81\xa1k\x01"
    assert world.engine.counts_by_priority("q") == {}
    for _ in range(8):
        world.engine.fail(job_id, world.ms, token=token)
        world.clock.advance(DAY)
        world.engine.counts("q", world.ms)
        _, token, _ = world.engine.pull("q", world.ms, world.ns, lease_ms=1000)
    assert world.engine.fail(job_id, world.ms, token=token)
    assert world.engine.state(job_id) == "failed"


def test_invariant_48_intervals_do_not_drift(world: World) -> None:
    schedule = world.put(every_ms=7 * SECOND)
    seen = []
    for step in (7000, 7003, 9100, 4000, 15_000, 1, 21_000):
        world.clock.advance(step)  # late by whatever it is
        before = schedule.executions
        world.turn()
        seen.append(schedule.executions - before)
        assert schedule.next_ms > world.ms
        assert (schedule.next_ms - START) % (7 * SECOND) == 0
        assert schedule.next_ms - world.ms <= 7 * SECOND
        world.work()
    assert seen == [1, 1, 1, 0, 1, 0, 1]


def test_defect_65_interval_drift(world: World) -> None:
    schedule = world.put(every_ms=10 * SECOND)
    for n in range(1, 50):
        world.clock.advance(10 * SECOND + 130 * (n % 3))
        world.turn()
        world.work()
    assert (schedule.next_ms - START) % (10 * SECOND) == 0
    assert schedule.executions == 49


def test_defect_66_a_slot_far_away_does_not_spin(world: World) -> None:
    world.put(pattern="0 0 1 1 *")
    world.put("leap", pattern="0 0 29 2 *")
    for _ in range(100):
        left = world.engine.next_due(world.ms, world.ns)
        assert left == 60 * SECOND * 1_000_000  # the wall clock is looked at again, and nothing else
        world.clock.advance(MINUTE)
        world.turn()
    assert world.take() == []


def test_defect_67_a_replaced_or_removed_entry_does_not_stop_the_others(world: World) -> None:
    for i in range(20):
        world.put(f"s{i}", f"q{i}", every_ms=10 * SECOND)
    for i in range(0, 20, 2):
        world.put(f"s{i}", f"q{i}", every_ms=20 * SECOND)
        assert world.engine.remove_schedule(f"s{i + 1}")
    world.engine._check()
    world.run(10 * SECOND)
    assert [len(world.take(f"q{i}")) for i in range(20)] == [0] * 20
    world.run(10 * SECOND)
    assert [len(world.take(f"q{i}")) for i in range(20)] == [1, 0] * 10


def test_defect_67_one_failing_entry_does_not_block_the_others(world: World) -> None:
    good = world.put("good")
    bad = Schedule("bad", "q", None, 10 * SECOND, None, None, 0, {"priority": "high"})  # type: ignore[typeddict-item]
    bad.start(START - 1)
    world.engine.restore_schedule("bad", bad.pack(), START)
    world.run(10 * SECOND)
    assert good.executions == 1
    assert [what for what, _ in world.engine.take_faults()] == ["schedule 'bad' was put off"]
    assert world.engine.take_faults() == []
    world.work()
    world.run(30 * SECOND)
    assert good.executions == 2  # the job of the second slot is still queued
    assert world.engine.schedule("bad").next_ms > world.ms


def test_defect_68_skipped_slots_burn_no_limit(world: World) -> None:
    schedule = world.put(max_runs=2, skip_if_no_worker=True)
    world.run(60 * SECOND)
    assert (schedule.executions, schedule.next_ms) == (0, START + 70 * SECOND)
    world.worker("w", "q")
    world.run(10 * SECOND)
    assert world.work() == 1
    world.engine.workers.remove("w")
    world.run(60 * SECOND)
    assert schedule.executions == 1
    world.worker("w", "q")
    world.run(10 * SECOND)
    assert world.work() == 1
    assert world.engine.schedule("s") is schedule  # until its next slot
    world.run(10 * SECOND)
    assert world.engine.schedule("s") is None
    world.run(60 * SECOND)
    assert world.take() == []


def test_defect_69_sub_minute_expressions_are_not_throttled(world: World) -> None:
    world.put(pattern="*/2 * * * * *")
    ran = 0
    for _ in range(9):
        world.run(SECOND)
        ran += world.work()
    assert ran == 4  # at 2, 4, 6 and 8 s


@pytest.mark.parametrize("every_ms", [None, 0, -1, -10_000, 1.5, "x"])
def test_defect_71_an_interval_that_is_not_positive_is_refused(world: World, every_ms: Any) -> None:
    with pytest.raises(ValueError, match="a pattern or a positive interval"):
        world.put(every_ms=every_ms)
    assert world.engine.list_schedules() == []
    assert world.engine.next_due(world.ms, world.ns) is None


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf"), None, "soon", 2**63, 1.5])
def test_a_stored_next_run_that_is_no_instant_is_repaired(world: World, broken: Any) -> None:
    made = Schedule("s", "q", None, 10 * SECOND, None, None, 0, {})
    made.start(START)
    fields = msgpack.unpackb(made.pack())
    fields["next_ms"] = broken
    if broken == 2**63:
        broken = fields["next_ms"]
    world.engine.restore_schedule("s", msgpack.packb(fields), START + 5)
    found = world.engine.schedule("s")
    assert START + 5 < found.next_ms <= START + 5 + 10 * SECOND
    world.run(11 * SECOND)
    assert found.executions == 1


@pytest.mark.parametrize("packed", [b"", b"\xc0", b"\x80", b"\x93\x01\x02\x03", msgpack.packb({"queue": 1})])
def test_a_schedule_that_cannot_be_read_says_so(world: World, packed: bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        world.engine.restore_schedule("s", packed, START)
    assert world.engine.schedule("s") is None
    world.engine._check()


# --- changes ---------------------------------------------------------------------------------


def test_defect_64_the_same_settings_again_neither_fire_nor_move(world: World) -> None:
    first = world.put(data=b"\x01", immediately=True)
    assert world.work() == 1
    for _ in range(30):
        world.clock.advance(700)
        world.turn()
        assert world.put(data=b"\x01", immediately=True) is first
    assert world.work() == 1  # of the slots at 10 and 20 s, the second met the first
    assert (first.executions, first.next_ms) == (2, START + 30 * SECOND)
    assert len(world.engine.list_schedules()) == 1


def test_a_change_keeps_the_count_and_never_fires(world: World) -> None:
    world.put(immediately=True)
    world.run(10 * SECOND)
    world.work()
    changed = world.put(every_ms=25 * SECOND, immediately=True)
    assert (changed.executions, changed.last_ms) == (1, None)  # at 10 s the first was still queued
    assert changed.next_ms == world.ms + 25 * SECOND
    world.turn()
    assert world.take() == []


def test_a_change_of_other_settings_keeps_the_slot(world: World) -> None:
    world.put(data=b"\x01")
    world.run(4 * SECOND)
    assert world.put(data=b"\x02").next_ms == START + 10 * SECOND
    world.run(6 * SECOND)
    assert [data for _, _, data in world.take()] == [b"\x02"]


def test_a_change_removes_the_queued_job_of_the_old_settings_and_no_other(world: World) -> None:
    world.put(data=b"\x01")
    world.run(10 * SECOND)
    world.engine.push("q", b"\x09", world.ms)
    world.put(data=b"\x02")
    world.run(10 * SECOND)
    assert [data for _, _, data in world.take()] == [b"\x09", b"\x02"]
    # One that runs is left alone.
    world.put(data=b"\x03")
    assert world.engine.counts("q", world.ms)["active"] == 2


@pytest.mark.parametrize("at_ms", [-1, 0, 1])
@pytest.mark.parametrize(
    "settings",
    [
        {"every_ms": 25 * SECOND},
        {"pattern": "5,35 * * * *"},
        {"pattern": "0 * * * *", "zone": "Asia/Kathmandu"},
        {"pattern": "*/10 * * * *"},
    ],
    ids=["interval", "pattern", "zone", "data"],
)
def test_c048_a_change_around_the_due_instant_moves_the_run_that_is_pending(
    world: World, settings: dict[str, Any], at_ms: int
) -> None:
    """Twenty processes register it, just before, at and after its slot."""
    world.put(pattern="*/10 * * * *", data=b"\x01")
    world.run(10 * MINUTE + at_ms)
    for _ in range(20):
        world.put(**settings, data=b"\x02")
        world.turn()
        assert len(world.engine.list_jobs("q", world.ms)) == 0  # the queued one of the old settings goes
    changed, ran = world.ms, []
    for _ in range(900):
        world.run(4 * SECOND)
        jobs = world.take()
        assert len(jobs) <= 1
        for job_id, token, data in jobs:
            ran.append(data)
            world.engine.ack(job_id, world.ms, token=token)
    if "every_ms" in settings:
        slots = (world.ms - changed) // settings["every_ms"]
    else:
        cron, slots = Cron(settings["pattern"], settings.get("zone")), -1
        slot: int | None = changed
        while slot is not None and slot <= world.ms:
            slot, slots = cron.next_ms(slot), slots + 1
    assert slots >= 1
    assert ran == [b"\x02"] * slots


def test_without_overlap_protection_a_change_leaves_jobs_alone(world: World) -> None:
    world.put(data=b"\x01", prevent_overlap=False)
    world.run(30 * SECOND)
    world.put(data=b"\x02", prevent_overlap=False)
    world.engine.remove_schedule("s")
    assert [data for _, _, data in world.take()] == [b"\x01"] * 3


def test_immediately_by_pattern_runs_now_and_then_by_the_pattern(world: World) -> None:
    schedule = world.put(pattern="0 12 * * *", immediately=True)
    assert world.work() == 1
    assert schedule.next_ms == START + 120 * MINUTE
    assert schedule.executions == 1


def test_schedules_are_listed_by_their_next_run_then_by_name(world: World) -> None:
    for name, every in (("b", 5), ("c", 3), ("a", 5), ("d", 9)):
        world.put(name, every_ms=every * SECOND)
    assert [s.name for s in world.engine.list_schedules()] == ["c", "a", "b", "d"]


def test_a_schedule_that_never_comes_due_is_refused(world: World) -> None:
    with pytest.raises(ValueError, match="'0 0 30 2 \\*' never comes due"):
        world.put(pattern="0 0 30 2 *")
    world.clock.set_wall(253_402_300_799_000)
    with pytest.raises(ValueError, match="never comes due"):
        world.put(pattern="* * * * *")
    assert world.engine.list_schedules() == []


# --- overlap ---------------------------------------------------------------------------------


def test_invariant_47_at_most_one_occurrence_is_queued_or_active(world: World) -> None:
    schedule = world.put(every_ms=SECOND)
    for _ in range(5):
        world.run(SECOND)
        counts = world.engine.counts("q", world.ms)
        assert counts["waiting"] + counts["active"] == 1
    assert schedule.executions == 1
    ((job_id, token, _),) = world.take()
    world.run(5 * SECOND)
    assert (world.take(), schedule.executions) == ([], 1)
    world.engine.fail(job_id, world.ms, token=token)  # it waits for its next attempt: still there
    assert world.engine.state(job_id) == "delayed"
    world.run(SECOND)
    assert schedule.executions == 1
    world.run(10 * SECOND)
    ((again, token, _),) = world.take()
    assert again == job_id
    world.engine.ack(job_id, world.ms, token=token)
    world.run(SECOND)
    assert schedule.executions == 2


def finish(world: World, how: str) -> str:
    """Bring the waiting occurrence to an end, and return its id."""
    ((job_id, token, _),) = world.take()
    if how == "completed":
        world.engine.ack(job_id, world.ms, token=token)
    else:
        world.engine.fail(job_id, world.ms, token=token, unrecoverable=True)
    assert world.engine.state(job_id) == how
    return job_id


def start_over(world: World, job_id: str, how: str) -> int:
    if how == "completed":
        return world.engine.retry_completed("q", world.ms, job_id=job_id)
    return world.engine.retry_dead("q", world.ms, job_id=job_id)


@pytest.mark.parametrize("how", ["completed", "failed"])
def test_invariant_47_an_occurrence_that_starts_over_is_one_again(world: World, how: str) -> None:
    schedule = world.put()
    world.run(10 * SECOND)
    job_id = finish(world, how)
    assert start_over(world, job_id, how) == 1
    world.run(10 * SECOND)
    assert schedule.executions == 1
    world.put(data=b"\x01")  # a change removes it, as it does what was never begun
    assert world.engine.state(job_id) == "unknown"
    world.run(10 * SECOND)
    assert world.work() == 1


@pytest.mark.parametrize("how", ["completed", "failed"])
def test_invariant_47_an_occurrence_does_not_start_over_beside_another(world: World, how: str) -> None:
    world.put()
    world.run(10 * SECOND)
    job_id = finish(world, how)
    world.put(queue="other")
    world.run(10 * SECOND)
    assert world.engine.counts("other", world.ms)["waiting"] == 1
    assert start_over(world, job_id, how) == 0
    if how == "failed":
        with pytest.raises(StateError, match="holds its unique key"):
            world.engine.move_to_wait(job_id, world.ms)
    assert world.work("other") == 1
    assert start_over(world, job_id, how) == 1
    world.engine._check()


def test_overlap_is_prevented_across_removal_and_a_new_start(world: World) -> None:
    world.put()
    world.run(10 * SECOND)
    ((job_id, token, _),) = world.take()
    world.engine.remove_schedule("s")
    again = world.put()
    world.run(10 * SECOND)
    assert again.executions == 0
    world.engine.ack(job_id, world.ms, token=token)
    world.run(10 * SECOND)
    assert again.executions == 1


@pytest.mark.parametrize("end", ["lease", "connection"])
def test_an_occurrence_is_dropped_with_its_holder(world: World, end: str) -> None:
    world.engine.listen("q", EVENT_BITS["stalled"])
    world.put(every_ms=MINUTE)
    world.run(MINUTE)
    job_id, token, _ = world.engine.pull("q", world.ms, world.ns, lease_ms=100, session=3)
    if end == "lease":
        world.run(100)
        assert [event[:3] for event in world.engine.take_events()] == [("stalled", "q", job_id)]
    else:
        assert world.engine.close_session(3, world.ms) == 1
    assert world.engine.state(job_id) == "unknown"
    assert world.engine.ack(job_id, world.ms, token=token) is False  # the engine ended this delivery
    assert world.engine.counts("q", world.ms)["failed"] == 0
    world.engine._check()
    world.run(MINUTE)
    assert world.work() == 1


def test_an_occurrence_whose_key_was_taken_holds_up_no_slot(world: World) -> None:
    world.put(every_ms=MINUTE)
    world.run(MINUTE)
    job_id = world.engine.key_owner("q", "cron:s", world.ms)
    assert job_id is not None
    assert world.engine.remove_job_key(job_id)
    world.engine._check()
    assert world.work() == 1
    world.engine._check()
    for _ in range(2):  # the finished one is still known
        world.run(MINUTE)
        assert world.work() == 1


def test_an_occurrence_without_protection_goes_back_to_its_queue(world: World) -> None:
    world.put(every_ms=MINUTE, prevent_overlap=False)
    world.run(MINUTE)
    job_id, _, _ = world.engine.pull("q", world.ms, world.ns, lease_ms=100)
    world.run(100)
    assert world.engine.state(job_id) == "waiting"


def test_a_holder_may_give_an_occurrence_back(world: World) -> None:
    world.put()
    world.run(10 * SECOND)
    ((job_id, token, _),) = world.take()
    world.engine.move_to_wait(job_id, world.ms, token=token)
    assert world.engine.state(job_id) == "waiting"


def test_case_049_remove_then_add_again(world: World) -> None:
    """1000 times in one millisecond, with finished runs kept: one pending run, at the right instant."""
    for i in range(1000):
        world.put(every_ms=3 * MINUTE, immediately=i % 2 == 0)
        assert world.work() == (i % 2 == 0)
        (schedule,) = world.engine.list_schedules()
        assert schedule.next_ms == world.ms + 3 * MINUTE
        if i < 999:
            assert world.engine.remove_schedule("s")
            assert not world.engine.remove_schedule("s")
    world.run(3 * MINUTE)
    assert world.work() == 1
    assert world.engine.counts("q", world.ms)["completed"] == 501


# --- the clock -------------------------------------------------------------------------------


def test_invariant_46_a_slot_fires_at_most_once(world: World) -> None:
    """Whatever the wall clock does, no slot of the pattern is run twice."""
    schedule = world.put(pattern="* * * * *", prevent_overlap=False)
    slots = set()
    for step in (60, 60, -100, 30, 30, 30, 30, -3000, 60, 60, 3100, 60, -20, 61):
        world.clock.set_wall(world.ms + step * SECOND)
        before, slot = schedule.executions, schedule.next_ms
        world.turn()
        assert schedule.executions - before <= 1
        if schedule.executions > before:
            assert slot not in slots
            slots.add(slot)
        assert schedule.next_ms > world.ms
    assert len(slots) > 4


@pytest.mark.parametrize("back_ms", [2 * MINUTE, 14 * 365 * DAY])
def test_case_011_clock_goes_back(world: World, back_ms: int) -> None:
    schedule = world.put(every_ms=10 * SECOND)
    due = world.engine.push("q2", None, world.ms, delay_ms=5 * SECOND)
    held = world.engine.push("q3", None, world.ms)
    _, token, _ = world.engine.pull("q3", world.ms, world.ns, lease_ms=30 * SECOND)
    world.run(3 * SECOND)
    world.clock.set_wall(world.ms - back_ms)
    ran = 0
    silent = 0
    for _ in range(600):
        world.run(100)
        got = world.work()
        ran += got
        silent = 0 if got else silent + 100
        assert silent <= 10 * SECOND  # the step costs no more than an interval has
        if world.ns == 25 * 1_000_000_000 + 1_000_000_000:
            assert world.engine.renew(held, world.ms, world.ns, token=token)
    assert ran >= 4
    assert schedule.next_ms - world.ms <= 10 * SECOND
    assert world.engine.state(due) == "delayed"  # a stored due time is by the wall clock
    assert world.engine.state(held) == "waiting"  # renewed once, then its lease ran out


def test_a_pattern_waits_out_a_small_step_back_and_goes_on_after_a_large_one(world: World) -> None:
    schedule = world.put(pattern="* * * * *")
    world.run(2 * MINUTE)
    world.work()
    world.clock.set_wall(START + 30 * SECOND)  # slots that were run already come again
    world.run(MINUTE)
    assert (schedule.next_ms, world.work()) == (START + 3 * MINUTE, 0)
    world.clock.set_wall(START - 10 * DAY)  # before it was made: none of those was run
    world.run(MINUTE)
    assert world.work() == 1
    assert schedule.next_ms == START - 10 * DAY + 2 * MINUTE
    world.clock.set_wall(START + 90 * SECOND)  # and back again
    world.turn()
    assert world.work() == 1  # the slot that was due
    assert schedule.next_ms == START + 3 * MINUTE  # not the one at 2 min, which was run


@pytest.mark.parametrize("to", ["2036-03-02T10:00:00", "2200-01-01T00:00:30"])
def test_case_012_clock_jumps_ahead(world: World, to: str) -> None:
    schedules = [
        world.put("interval", "a", every_ms=SECOND, prevent_overlap=False),
        world.put("pattern", "b", pattern="* * * * *", prevent_overlap=False, zone="Europe/Berlin"),
    ]
    world.clock.set_wall(int(datetime.fromisoformat(to).replace(tzinfo=UTC).timestamp() * 1000))
    world.turn()
    for schedule, queue in zip(schedules, "ab", strict=True):
        assert len(world.take(queue)) == 1
        assert schedule.executions == 1
        assert world.ms < schedule.next_ms <= world.ms + MINUTE


def test_a_clock_that_was_set_ahead_is_noticed_within_a_minute(world: World) -> None:
    """Also while nothing else happens, as on a machine that slept."""
    world.put(pattern="0 12 * * *")
    world.turn()
    left = world.engine.next_due(world.ms, world.ns)
    assert left == MINUTE * 1_000_000
    world.clock.set_wall(START + DAY)
    world.clock.advance(MINUTE)
    world.turn()
    assert world.work() == 1


def test_work_in_one_turn_is_bounded(world: World) -> None:
    for i in range(60_000):
        world.engine.put_schedule(f"s{i}", "q", world.ms, world.ns, every_ms=SECOND)
    world.clock.advance(SECOND)
    assert world.engine.advance(world.ms, world.ns) is True
    assert world.engine.counts("q", world.ms)["waiting"] == 50_000
    assert world.engine.advance(world.ms, world.ns) is False
    assert world.engine.counts("q", world.ms)["waiting"] == 60_000


# --- what a cut holds ------------------------------------------------------------------------


def test_count_slot_and_job_are_in_one_cut() -> None:
    world = World()
    world.engine = Engine(SEED, tracking=True)
    world.put()
    cut = rows.take_rows(world.engine, world.ms, world.ns)
    assert cut.n_jobs == 0
    assert list(cut.side) == [("schedules", "s")]
    world.run(10 * SECOND)
    cut = rows.take_rows(world.engine, world.ms, world.ns)
    assert cut.n_jobs == 1
    stored = msgpack.unpackb(cut.side["schedules", "s"])
    assert (stored["executions"], stored["next_ms"]) == (1, START + 20 * SECOND)
    assert rows.take_rows(world.engine, world.ms, world.ns).is_empty
    world.engine.remove_schedule("s")
    cut = rows.take_rows(world.engine, world.ms, world.ns)
    assert cut.side == {("schedules", "s"): None}
    assert len(cut.deletes) == 1


def test_nothing_is_left_of_schedules_that_are_gone(world: World) -> None:
    """Invariant 50 for what schedules keep."""
    for i in range(200):
        world.put(f"s{i}")
    world.run(10 * SECOND)
    world.work()
    for i in range(200):
        world.engine.remove_schedule(f"s{i}")
    world.engine._check()
    assert world.engine.list_schedules() == []
    assert world.engine.next_due(world.ms, world.ns) is None


# --- repeated jobs ---------------------------------------------------------------------------


def chain(world: World, **repeat: Any) -> str:
    extra = {"repeat": {"count": 0, **repeat}, "timeout": 5000}
    return world.engine.push("q", b"\x01", world.ms, priority=3, extra=extra, name="n", attempts=2)


def one(world: World) -> tuple[str, str | None]:
    ((job_id, token, _),) = world.take()
    return job_id, token


def test_invariant_49_a_chain_with_a_limit_ends(world: World) -> None:
    chain(world, every=50, limit=3)
    ran = 0
    for _ in range(40):
        ran += world.work()
        world.run(50)
    assert ran == 1 + 3
    assert world.engine.counts("q", world.ms)["completed"] == 4
    assert world.engine.next_due(world.ms, world.ns) is None


def test_a_successor_has_the_options_and_none_of_the_past(world: World) -> None:
    first = chain(world, every=SECOND)
    job_id, token = one(world)
    world.engine.set_progress(job_id, 50, world.ms, message="half")
    world.engine.fail(job_id, world.ms, token=token, error="once", stack=["line"])
    world.run(5 * SECOND)
    job_id, token = one(world)
    assert (job_id, world.engine.attempts(job_id)) == (first, 1)
    world.engine.ack(job_id, world.ms, token=token)
    assert world.engine.counts_by_priority("q") == {3.0: 1}
    world.run(SECOND)
    job_id, token = one(world)
    assert job_id != first
    assert world.engine.attempts(job_id) == 0
    assert world.engine.progress(job_id) == (0, None)
    world.run(5 * SECOND)  # its bound of execution was copied as well
    assert world.engine.attempts(job_id) == 1


def test_a_successor_starts_without_the_losses_of_the_run_before_it(world: World) -> None:
    world.engine.configure("q", stalls={"maxStalls": 2})
    chain(world, every=SECOND)
    for _ in range(3):  # each run may lose one connection
        (first,) = world.engine.pull_many("q", 1, world.ms, world.ns, lease_ms=SECOND, session=1)
        world.engine.close_session(1, world.ms)
        job_id, token = one(world)
        assert job_id == first[0]
        world.engine.ack(job_id, world.ms, token=token)
        world.run(SECOND)


def test_a_successor_starts_without_the_retries_by_itself_of_the_run_before_it(world: World) -> None:
    dead = {"autoRetry": True, "autoRetryInterval": SECOND, "maxAutoRetries": 1}
    world.engine.configure("q", dead=dead)
    chain(world, every=SECOND, continueOnFailure=False)
    job_id, token = one(world)
    world.engine.fail(job_id, world.ms, token=token, unrecoverable=True)
    world.run(SECOND)
    job_id, token = one(world)
    world.engine.ack(job_id, world.ms, token=token)
    world.run(SECOND)
    job_id, token = one(world)
    world.engine.fail(job_id, world.ms, token=token, unrecoverable=True)
    ((_, _, letter),) = world.engine.dead_letters("q")
    assert (letter["retryCount"], letter["nextRetryAt"]) == (0, world.ms + SECOND)


def test_elapsed_slots_of_a_chain_are_passed_over(world: World) -> None:
    chain(world, every=SECOND)
    world.work()  # planned for 1 s
    world.run(SECOND)
    job_id, token = one(world)
    world.clock.advance(3400)
    world.engine.ack(job_id, world.ms, token=token)
    (following,) = world.engine.list_jobs("q", world.ms, states=("delayed",))
    assert world.engine.run_at_ms(following) == START + 5 * SECOND


@pytest.mark.parametrize("going_on", [True, False])
def test_defect_70_a_chain_outlives_a_run_that_failed_for_good(world: World, going_on: bool) -> None:
    first = chain(world, every=SECOND, **({} if going_on else {"continueOnFailure": False}))
    job_id, token = one(world)
    world.engine.fail(job_id, world.ms, token=token, unrecoverable=True)
    assert world.engine.state(first) == "failed"
    world.run(SECOND)
    assert len(world.take()) == going_on
    # Started over by hand, the failed run brings no second chain.
    world.engine.retry_dead("q", world.ms)
    world.work()
    world.run(10 * SECOND)
    assert len(world.engine.list_jobs("q", world.ms, states=("waiting", "prioritized", "delayed"))) <= 1


@pytest.mark.parametrize("remove", [False, True])
def test_the_id_of_a_finished_run_stands_for_the_live_one(world: World, remove: bool) -> None:
    ids = [chain(world, every=SECOND)]
    for _ in range(5):
        job_id, token = one(world)
        world.engine.ack(job_id, world.ms, token=token, remove=remove)
        world.run(SECOND)
        ids.append(world.engine.list_jobs("q", world.ms, states=("prioritized",))[0])
    assert world.engine.update(ids[0], b"\x07")
    ((job_id, token, data),) = world.take()
    assert (job_id, data) == (ids[-1], b"\x07")
    assert world.engine.update(ids[3], b"\x08")
    assert not world.engine.cancel(ids[2], world.ms)  # the live one is active
    world.engine.ack(job_id, world.ms, token=token)
    assert world.engine.cancel(ids[1], world.ms)
    world.run(MINUTE)
    assert world.take() == []
    assert not world.engine.cancel(ids[0], world.ms)
    assert not world.engine.update(ids[0], b"\x09")


def test_links_of_chains_are_bounded(world: World) -> None:
    first = chain(world, every=1)
    for _ in range(10_050):
        world.clock.advance(1)
        world.work()
    world.engine._check()
    assert not world.engine.update(first, b"\x07")  # forgotten, first in first out
    (live,) = world.engine.list_jobs("q", world.ms, states=("delayed", "prioritized"))
    recent = world.engine.list_jobs("q", world.ms, states=("completed",), limit=9000, asc=False)[-1]
    assert world.engine.update(recent, b"\x07")
    world.clock.advance(1)
    assert [(job_id, data) for job_id, _, data in world.take()] == [(live, b"\x07")]


def test_a_chain_by_pattern_with_zone_and_offset(world: World) -> None:
    chain(world, pattern="0 12 * * *", tz="Europe/Rome", offset=-30 * MINUTE)
    world.work()
    (following,) = world.engine.list_jobs("q", world.ms, states=("delayed",))
    assert world.engine.run_at_ms(following) == START + 30 * MINUTE  # 11:30 in Rome
    world.engine.promote(following, world.ms)
    world.work()
    (following,) = world.engine.list_jobs("q", world.ms, states=("delayed",))
    assert world.engine.run_at_ms(following) == START + DAY + 30 * MINUTE  # its slot was run early


def test_a_chain_ends_at_its_end_date(world: World) -> None:
    chain(world, every=SECOND, endDate=START + 2500)
    ran = 0
    for _ in range(10):
        ran += world.work()
        world.run(SECOND)
    assert ran == 3


def test_a_start_date_moves_the_first_successor(world: World) -> None:
    chain(world, every=SECOND, startDate=START + DAY, offset=7)
    world.work()
    (following,) = world.engine.list_jobs("q", world.ms, states=("delayed",))
    assert world.engine.run_at_ms(following) == START + DAY + 7


def test_a_cancelled_run_ends_its_chain(world: World) -> None:
    first = chain(world, every=SECOND)
    assert world.engine.cancel(first, world.ms)
    world.run(MINUTE)
    assert len(world.engine) == 0
    with pytest.raises(NotFoundError):
        world.engine.attempts(first)
    with pytest.raises(StateError):
        world.engine.ack(first, world.ms)


def test_a_chain_takes_its_unique_key_along(world: World) -> None:
    options = {"repeat": {"every": SECOND, "count": 0}, "uniqueKey": "k"}
    first = world.engine.push("q", b"\x01", world.ms, extra=dict(options))
    assert world.engine.push("q", b"\x02", world.ms, extra={"uniqueKey": "k"}) == first
    for _ in range(3):
        assert world.work() == 1
        holder = world.engine.push("q", b"\x02", world.ms, extra={"uniqueKey": "k"})
        assert [holder] == world.engine.list_jobs("q", world.ms, states=("delayed",))
        world.run(SECOND)


@pytest.mark.parametrize(
    "how", [{"deduplicationReplace": True}, {"deduplicationTtl": DAY, "deduplicationKeep": True}]
)
def test_a_chain_whose_key_is_not_free_goes_on_without_it(world: World, how: dict[str, Any]) -> None:
    kept = {} if "deduplicationReplace" in how else how
    world.engine.push(
        "q", b"\x01", world.ms, extra={"repeat": {"every": SECOND, "count": 0}, "uniqueKey": "k", **kept}
    )
    ((job_id, token, _),) = world.take()
    if not kept:
        other = world.engine.push("q2", b"\x02", world.ms, extra={"uniqueKey": "k"})
        other = world.engine.push("q", b"\x02", world.ms, extra={"uniqueKey": "k", **how}, delay_ms=DAY)
        assert other != job_id
    world.engine.ack(job_id, world.ms, token=token)
    world.run(SECOND)
    assert world.work() == 1
    world.run(SECOND)
    assert world.work() == 1


def test_a_schedule_with_a_key_of_its_own_skips_while_another_job_holds_it(world: World) -> None:
    schedule = world.engine.put_schedule(
        "s",
        "q",
        world.ms,
        world.ns,
        every_ms=SECOND,
        prevent_overlap=False,
        job={"extra": {"uniqueKey": "k"}},
    )
    holder = world.engine.push("q", b"\x01", world.ms, extra={"uniqueKey": "k"})
    world.run(3 * SECOND)
    assert schedule.executions == 0
    assert world.engine.take_faults() == []
    world.engine.cancel(holder, world.ms)
    world.run(3 * SECOND)
    assert schedule.executions == 1


def test_the_end_of_a_run_stands_whatever_becomes_of_the_next(world: World) -> None:
    """Invariant 12: nothing that follows from a transition stops it."""
    repeat = {"pattern": "* * * * *", "tz": "No/Where", "count": 0}
    for end in ("ack", "fail", "timeout"):
        job_id = world.engine.push(
            end, b"\x01", world.ms, attempts=1, extra={"repeat": dict(repeat), "timeout": 500}
        )
        _, token, _ = world.engine.pull(end, world.ms, world.ns, lease_ms=DAY)
        if end == "ack":
            assert world.engine.ack(job_id, world.ms, token=token)
        elif end == "fail":
            assert world.engine.fail(job_id, world.ms, token=token)
        else:
            world.run(SECOND)
        world.engine._check()
        assert world.engine.state(job_id) == ("completed" if end == "ack" else "failed")
        ((what, error),) = world.engine.take_faults()
        assert what == f"there is no next run after job {job_id!r}"
        assert isinstance(error, Exception)
