"""``python -m qcore.simulate``: run histories from seeds, and shrink one that fails."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from qcore.simulate.run import Result, replay, simulate
from qcore.simulate.shrink import shrink

#: Steps of a failing history that are printed.
SHOWN = 40


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m qcore.simulate", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default: 1)")
    parser.add_argument(
        "--seeds", type=int, default=1, help="how many seeds, one after the other (default: 1)"
    )
    parser.add_argument("--steps", type=int, default=10_000, help="steps of each (default: 10000)")
    parser.add_argument("--jobs", type=int, default=1, help="processes; 0: one for each core (default: 1)")
    parser.add_argument(
        "--shrink-seconds", type=float, default=60, help="time to make a failing history short"
    )
    parser.add_argument(
        "--replay", type=Path, help="run the history in this file instead: a step a line, JSON"
    )
    parser.add_argument("--save", type=Path, help="write a short failing history to this file")
    options = parser.parse_args(argv)
    if options.replay is not None:
        steps = [json.loads(line) for line in options.replay.read_text().splitlines() if line.strip()]
        return _report("history", replay(steps), options.shrink_seconds, options.save)
    seeds = range(options.seed, options.seed + options.seeds)
    if options.jobs == 1:
        for seed in seeds:
            print(f"seed {seed}", flush=True)
            if code := _report(
                f"seed {seed}", _timed(seed, options.steps), options.shrink_seconds, options.save
            ):
                return code
        return 0
    with ProcessPoolExecutor(options.jobs or os.cpu_count()) as pool:
        running = {pool.submit(_ends_well, seed, options.steps): seed for seed in seeds}
        for future in as_completed(running):
            seed, good, line = running[future], *future.result()
            print(f"seed {seed}: {line}", flush=True)
            if not good:
                pool.shutdown(cancel_futures=True)
                return _report(
                    f"seed {seed}", simulate(seed, options.steps), options.shrink_seconds, options.save
                )
    return 0


def _timed(seed: int, n_steps: int) -> Result:
    started = time.perf_counter()
    result = simulate(seed, n_steps)
    seconds = time.perf_counter() - started
    print(f"  {len(result.steps) / seconds:,.0f} steps a second", flush=True)
    return result


def _ends_well(seed: int, n_steps: int) -> tuple[bool, str]:
    """For another process: only what can be sent back."""
    result = simulate(seed, n_steps)
    return result.error is None, _summary(result)


def _summary(result: Result) -> str:
    return (
        f"{len(result.steps)} steps, {result.n_requests} requests, {result.n_crashes} crashes,"
        f" digest {result.digest}"
    )


def _report(name: str, result: Result, seconds: float, save: Path | None) -> int:
    print(f"{name}: {_summary(result)}", flush=True)
    if result.error is None:
        return 0
    print(f"{name} failed at step {len(result.steps)}: {result.error!r}", flush=True)
    short = shrink(result, seconds=seconds)
    error = short.error
    assert error is not None
    print(f"a history of {len(short.steps)} steps fails as well:")
    lines = [json.dumps(step) for step in short.steps]
    if save is not None:
        save.write_text("\n".join(lines) + "\n")
        print(f"it is in {save}")
    for line in lines[:SHOWN]:
        print(line)
    if len(lines) > SHOWN:
        print(f"… and {len(lines) - SHOWN} more")
    traceback.print_exception(error, file=sys.stdout)
    return 1


if __name__ == "__main__":
    sys.exit(main())
