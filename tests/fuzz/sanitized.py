"""Build with the checks of gcc for addresses and undefined behaviour, and run a campaign on that.

    python -m tests.fuzz.sanitized --frames 40_000 --seed 7

The build goes to ``build/sanitize`` and stays there; only what has changed is compiled again.
Where gcc has no such libraries, that is said and nothing is run. What CPython itself never
frees is no finding, so leaks are not looked for.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "sanitize"
LIBRARIES = ("libasan.so", "libubsan.so")

#: Run in the child: what is checked must be what was built for it.
START = """
import runpy, sys
import qcore.broker.session as session
assert session.__file__.startswith(sys.argv[1]), session.__file__
assert "libasan" in open("/proc/self/maps").read(), "the checks are not loaded"
sys.argv = ["campaign", *sys.argv[2:]]
runpy.run_module("tests.fuzz.campaign", run_name="__main__")
"""


def libraries() -> list[str] | None:
    """Paths of the libraries, or None where they are not."""
    if shutil.which("gcc") is None or not sys.platform.startswith("linux"):
        return None
    found = []
    for name in LIBRARIES:
        asked = subprocess.run(
            ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
        )
        path = asked.stdout.strip()
        if not os.path.isabs(path) or not os.path.exists(path):
            return None
        found.append(path)
    return found


def build() -> Path:
    """Compile; where the modules are then."""
    BUILD.mkdir(parents=True, exist_ok=True)
    env = {k: v for k, v in os.environ.items() if k != "CFLAGS"} | {"QCORE_SANITIZE": "1", "CC": "gcc"}
    command = [sys.executable, "setup.py", "-q", "build", "--build-base", str(BUILD)]
    with (BUILD / "build.log").open("w+") as log:
        done = subprocess.run(command, cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT)
        if done.returncode:
            log.seek(0)
            sys.exit(log.read()[-4000:])
    version = f"{sys.version_info[0]}{sys.version_info[1]}"
    (made,) = BUILD.glob(f"lib.{sysconfig.get_platform()}-*{version}")
    return made


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", default="40_000")
    parser.add_argument("--seed", default="1")
    given = parser.parse_args()
    preload = libraries()
    if preload is None:
        print("not run: gcc with libasan and libubsan is not on this machine")
        return 0
    made = build()
    env = os.environ | {
        "LD_PRELOAD": " ".join(preload),
        # The allocator of Python would hide one object's bytes from the next one's.
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": os.pathsep.join((str(made), str(ROOT))),
    }
    command = [sys.executable, "-P", "-c", START, str(made), "--frames", given.frames, "--seed", given.seed]
    return subprocess.run(command, cwd=BUILD, env=env).returncode


if __name__ == "__main__":
    sys.exit(main())
