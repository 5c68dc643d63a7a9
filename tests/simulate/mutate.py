"""``python -m tests.simulate.mutate``: plant each fault in a copy of the sources and let the simulator look.

Needs what a build needs. Prints a table with the seed and the step at which each
fault was found; ends with 1 if one was not.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.simulate.mutations import MUTATIONS, Mutation

NEEDED = "pip install 'Cython>=3.1,<4' 'setuptools>=77'"
ROOT = Path(__file__).parent.parent.parent
PROBE = """
import sys
from qcore.simulate import simulate
first, seeds, steps = map(int, sys.argv[1:])
for seed in range(first, first + seeds):
    result = simulate(seed, steps)
    if result.error is not None:
        print(f"{seed}\\t{len(result.steps)}\\t{result.error!r}"[:300])
        break
"""


def plant(mutation: Mutation, into: Path) -> None:
    """Change the sources under ``into``, and build what needs it."""
    path = into / mutation.file
    text = path.read_text()
    if text.count(mutation.old) != 1:
        raise SystemExit(
            f"{mutation.name}: the text stands {text.count(mutation.old)} times in {mutation.file}"
        )
    path.write_text(text.replace(mutation.old, mutation.new))
    if path.suffix == ".pyx":
        setup = into / "setup.py"
        setup.write_text(setup.read_text().replace('"-O2"', '"-O0"'))  # built once, run for seconds
        module = mutation.file.removesuffix(".pyx").replace("/", ".")
        built = subprocess.run(
            [sys.executable, "setup.py", "build_ext", "--inplace"],
            cwd=into,
            env={**os.environ, "QCORE_BUILD_ONLY": module},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if built.returncode:
            raise SystemExit(f"{mutation.name}: {mutation.file} cannot be built:\n{built.stdout[-2000:]}")


def look(into: Path, first: int, seeds: int, steps: int) -> list[str] | None:
    """Seed, step and error of the first history that fails there; None if all end well.

    What keeps the simulator from running is no find.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROBE, str(first), str(seeds), str(steps)],
            cwd=into,
            env={**os.environ, "PYTHONPATH": str(into)},
            capture_output=True,
            text=True,
            timeout=900,
        )
    except subprocess.TimeoutExpired:
        return ["?", "?", "it hangs"]
    if done.returncode > 0:
        raise SystemExit(f"the simulator does not run:\n{done.stderr[-2000:]}")
    if done.returncode:
        return ["?", "?", f"signal {-done.returncode} ended the process"]
    return done.stdout.strip().split("\t") if done.stdout.strip() else None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulate.mutate", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=10, help="seeds tried with each fault")
    parser.add_argument("--steps", type=int, default=5000, help="steps of each")
    parser.add_argument("--only", help="only faults whose name holds this text")
    options = parser.parse_args(argv)
    missing = [name for name in ("Cython", "setuptools") if importlib.util.find_spec(name) is None]
    if missing:
        parser.error(f"a build of the faults needs {' and '.join(missing)}: {NEEDED}")
    chosen = [mutation for mutation in MUTATIONS if not options.only or options.only in mutation.name]
    missed = 0
    print("| fault | file | seed | step | seen as |\n| --- | --- | ---: | ---: | --- |", flush=True)
    for mutation in chosen:
        with tempfile.TemporaryDirectory() as place:
            into = Path(place)
            shutil.copytree(ROOT / "qcore", into / "qcore", ignore=shutil.ignore_patterns("__pycache__"))
            for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
                shutil.copy2(ROOT / name, into / name)
            started = time.monotonic()
            plant(mutation, into)
            built = time.monotonic()
            found = look(into, options.seed, options.seeds, options.steps)
        if found is None:
            missed += 1
            found = ["-", "-", "not found"]
        seed, step, error = found
        error = error.replace("|", "/")[:90]
        print(f"| {mutation.name} | `{mutation.file}` | {seed} | {step} | {error} |", flush=True)
        print(
            f"  {built - started:.0f} s to build, {time.monotonic() - built:.0f} s to find",
            file=sys.stderr,
            flush=True,
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
