"""Whole lives of a broker from seeds: nothing may differ from the model, and nothing may differ twice."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from qcore.simulate import Failure, Result, replay, shrink, simulate
from qcore.simulate.disk import Disk
from qcore.simulate.matching import Id, Names, Some, Values
from qcore.simulate.world import Step
from qcore.store.base import Cut, StoreFault


def well(result: Result) -> Result:
    if result.error is not None:
        short = shrink(result, seconds=20)
        lines = "\n".join(json.dumps(step) for step in short.steps)
        raise AssertionError(
            f"{result.error!r} at step {len(result.steps)}; as well:\n{lines}"
        ) from short.error
    return result


@pytest.mark.parametrize("seed", range(1, 7))
def test_a_broker_does_what_the_model_says(seed: int) -> None:
    result = well(simulate(seed, 1500))
    assert result.n_requests > 1500
    assert result.n_crashes > 2


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_long_lives() -> None:
    """200,000 steps, on two cores."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        lives = list(pool.map(simulate, (20, 21), (100_000, 100_000)))
    assert all(well(life).n_crashes > 250 for life in lives)


def test_a_seed_gives_the_same_history_each_time() -> None:
    first, second = simulate(7, 400), simulate(7, 400)
    assert first.steps == second.steps
    assert first.digest == second.digest != simulate(8, 400).digest


def test_a_history_is_plain_data_and_runs_again() -> None:
    first = well(simulate(9, 400))
    again = replay(json.loads(json.dumps(first.steps)))
    assert again.error is None
    assert again.digest == first.digest


def test_a_failing_history_is_made_short() -> None:
    steps: list[Step] = [{"do": "boot", "u": 0}, *({"do": "time", "u": n} for n in range(1, 100))]

    def fails_with_both(tried: list[Step]) -> Result:
        there = {step["u"] for step in tried}
        error = Failure("both") if {31, 77} <= there else Failure("only one") if 31 in there else None
        return Result(tried, "", 0, 0, error)

    short = shrink(fails_with_both(steps), again=fails_with_both)
    assert [step["u"] for step in short.steps] == [0, 31, 77]


def test_a_difference_is_found_and_printed() -> None:
    """A reply that the model does not know, and one that never comes."""
    names = Names()
    names.match({"id": Id("m")}, {"id": "r"}, "PUSH")
    for expected, got in (
        ({"id": Id("m")}, {"id": "other"}),
        ({"id": Id("n")}, {"id": "r"}),
        ({"ok": True}, {"ok": 1}),
        ({"ok": True}, {"ok": True, "more": 1}),
        (Some(a=1), {"b": 1}),
        ([1, 2], [1]),
    ):
        with pytest.raises(Failure):
            names.match(expected, got, "X")


def test_ids_in_keys_are_learned_when_they_are_first_seen() -> None:
    names = Names()
    mine = [f"00000000-0000-7000-8000-{n:012d}" for n in range(3)]
    real = [f"018cac3b-a484-7242-a3f1-{n:012d}" for n in range(3)]
    names.bind(mine[1], real[1])
    expected = Values({f"a:{one}": n for n, one in enumerate(mine)})
    with pytest.raises(Failure):
        Names().match(expected, {f"a:{one}": 0 for one in real}, "X")
    names.match(expected, {f"a:{one}": n for n, one in enumerate(real)}, "X")
    assert [names.real(one) for one in mine] == real
    with pytest.raises(Failure):
        names.match(expected, {f"a:{one}": n for n, one in enumerate(reversed(real))}, "X")


@pytest.mark.parametrize("takes_packed", [True, False])
def test_the_disk_loses_what_was_not_synced(takes_packed: bool) -> None:
    disk = Disk(takes_packed)
    store = disk.open()
    for n in range(3):
        store.commit(Cut(inserts=[n, 1, 1, b"r%d" % n, None, None]))
    disk.sync()
    for n in (3, 4):
        store.commit(Cut(inserts=[n, 1, 1, b"r", None, None]))
    disk.lose(1)
    assert [row[0] for row in disk.open().load().jobs] == [0, 1, 2, 3]
    disk.fault = "full"
    with pytest.raises(StoreFault):
        store.commit(Cut(deletes=[0]))
    assert len(store.read([0, 1])) == 2
    disk.fault = "unknown"
    with pytest.raises(StoreFault):
        store.commit(Cut(deletes=[0]))
    assert len(store.read([0, 1])) == 1
