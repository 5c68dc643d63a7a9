"""Make a failing history short, by leaving out whatever it fails without."""

from __future__ import annotations

import time
from collections.abc import Callable

from qcore.simulate.run import Result, replay
from qcore.simulate.world import Step


def shrink(failed: Result, *, seconds: float = 60, again: Callable[[list[Step]], Result] = replay) -> Result:
    """The shortest history found that fails in the same way (delta debugging, ddmin).

    The steps after the one that failed are gone already. First larger pieces are left
    out, then single steps, then requests within a step. Stops after ``seconds``.
    """
    best = failed
    end = time.monotonic() + seconds

    def fails(steps: list[Step]) -> bool:
        nonlocal best
        result = again(steps)
        if result.error is None or result.kind != failed.kind:
            return False
        best = result
        return True

    pieces = 2
    while len(best.steps) > 2 and time.monotonic() < end:
        # The first step boots, and stays.
        size = max(1, (len(best.steps) - 1) // pieces)
        at, progress = 1, False
        while at < len(best.steps) and time.monotonic() < end:
            if fails(best.steps[:at] + best.steps[at + size :]):
                progress = True
            else:
                at += size
        if size == 1 and not progress:
            break
        pieces = pieces if progress and size == 1 else min(pieces * 2, max(2, len(best.steps) - 1))
    _fewer_requests(lambda: best, fails, end)
    return best


def _fewer_requests(best: Callable[[], Result], fails: Callable[[list[Step]], bool], end: float) -> None:
    """Leave out single requests; their numbers are kept by empty places where others follow."""
    at = 0
    while at < len(best().steps) and time.monotonic() < end:
        steps = best().steps
        step = steps[at]
        requests = step.get("r", ())
        if len(requests) > 1 and fails([*steps[:at], {**step, "r": requests[:-1]}, *steps[at + 1 :]]):
            continue
        at += 1
