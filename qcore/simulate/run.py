"""Run histories: from a seed, or as they were written down."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from qcore.simulate.matching import Failure
from qcore.simulate.steps import Generator
from qcore.simulate.world import Step, World

#: The whole state is compared every so many steps, and at the end.
CHECK_EVERY = 200

#: Ids, numbers and names of queues: what differs between histories that fail alike.
NAMES = re.compile(r"\b(?:[0-9a-f]{8}-[0-9a-f-]+|c?\d+|[abct])\b")


@dataclass
class Result:
    """How a history ended. ``error`` None: as it should."""

    steps: list[Step]
    digest: str
    n_requests: int
    n_crashes: int
    error: BaseException | None = None

    @property
    def kind(self) -> str:
        """What went wrong, without names and numbers: shorter histories must fail alike."""
        if self.error is None:
            return ""
        if not isinstance(self.error, Failure):
            return type(self.error).__name__
        return NAMES.sub("", str(self.error).split(":")[0])[:60]


def run(steps: Iterable[Step], world: World, *, check_every: int = CHECK_EVERY) -> Result:
    """Do the steps until one fails, then bring everything to rest."""
    done: list[Step] = []
    error: BaseException | None = None
    try:
        for step in steps:
            done.append(step)
            world.step(step)
            if len(done) % check_every == 0:
                world.agree()
        world.finish()
    except Exception as failure:
        error = failure
    return Result(done, world.digest, world.n_requests, world.n_crashes, error)


def replay(steps: Iterable[Step], *, check_every: int = CHECK_EVERY) -> Result:
    """Run a history that was written down."""
    return run(steps, World(), check_every=check_every)


def simulate(seed: int, n_steps: int) -> Result:
    """Run a history of ``n_steps`` from a seed; the same one each time."""
    world = World()
    generator = Generator(random.Random(seed), world)

    def drawn() -> Iterator[Step]:
        for _ in range(n_steps):
            yield generator.next()

    return run(drawn(), world)
