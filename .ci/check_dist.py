"""Check what ``make dist`` built: what is inside, and that it runs where nothing can be compiled."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

MUST_COMPILE = "Cythonizing qcore/engine/engine.pyx"
# Of the Cython compiler and of the C compiler; setuptools has warnings of its own, about other things.
COMPLAINT = re.compile(
    r"performance hint|warning: \S+\.(?:pyx|pxd):|\.(?:c|h|pyx|pxd):\d+:\d+: warning", re.IGNORECASE
)
JOBS = 50


class Wrong(Exception):
    """What is not as it must be, in one line."""


def need(condition: object, message: str) -> None:
    if not condition:
        raise Wrong(message)


def check_log(log: str) -> None:
    need(MUST_COMPILE in log, "the build log does not show that anything was compiled")
    complaints = [line for line in log.splitlines() if COMPLAINT.search(line)]
    need(not complaints, "the build complained:\n  " + "\n  ".join(complaints[:20]))


def check_sdist(path: Path) -> None:
    with tarfile.open(path) as archive:
        names = ["/".join(name.split("/")[1:]) for name in archive.getnames()]
    for wanted in (
        "qcore/engine/engine.pyx",
        "qclient/delivery.pyx",
        "qcore/store/schema.sql",
        "qclient/demo/demo_data/null_byte.py.broken",
        "tests/conftest.py",
        "asv_bench/asv.conf.json",
        "Makefile",
        "README.md",
        "LICENSE",
    ):
        need(wanted in names, f"{path.name} lacks {wanted}")
    bad = [n for n in names if n.endswith((".so", ".pyc")) or re.match(r"q(core|client)/.*\.c$", n)]
    need(not bad, f"{path.name} has built files: {bad[:5]}")


def check_wheel(path: Path) -> None:
    need(
        not path.name.endswith("-none-any.whl"), f"{path.name} is a pure wheel: nothing was compiled into it"
    )
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    here = Path("setup.py").read_text(encoding="utf-8")
    modules = re.findall(r'^    "(q(?:core|client)\.[\w.]+)",$', here, re.MULTILINE)
    need(modules, "no module list found in setup.py")
    for module in modules:
        stem = module.replace(".", "/") + "."
        need(any(n.startswith(stem) and n.endswith(".so") for n in names), f"{path.name} lacks {module}")
    for wanted in (
        "qcore/py.typed",
        "qclient/py.typed",
        "qcore/structs/skiplist.pyi",
        "qcore/structs/skiplist.pxd",
        "qcore/store/schema.sql",
        "qclient/demo/demo_data/bad_encoding.py.broken",
        "qclient/demo/demo_data/null_byte.py.broken",
        "qclient/demo/demo_data/unterminated_string.py.broken",
    ):
        need(wanted in names, f"{path.name} lacks {wanted}")
    stray = [
        n for n in names if n.endswith((".c", ".pyx")) or n.startswith(("tests/", "docs/", "asv_bench/"))
    ]
    need(not stray, f"{path.name} has files that belong to the sdist: {stray[:5]}")


def check_installed(wheel: Path) -> None:
    """Install the wheel in a new environment, with no compiler to be found, and run the demo elsewhere."""
    with tempfile.TemporaryDirectory(prefix="qcore wheel ") as place:
        venv = Path(place, "venv")
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        without = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        without |= {"PATH": str(venv / "bin"), "CC": "/nowhere/cc", "CXX": "/nowhere/c++"}
        subprocess.run(
            [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", str(wheel.resolve())],
            check=True,
            env=without,
            cwd=place,
        )
        for mode in ([], ["--tcp", "--fresh"]):
            out = subprocess.run(
                [str(venv / "bin/qcore"), "demo", "--jobs", str(JOBS), "--json", *mode],
                check=True,
                env=without,
                cwd=place,
                stdout=subprocess.PIPE,
                timeout=120,
            ).stdout
            summary = json.loads(out)
            need(summary["files"] == JOBS, f"the demo did {summary['files']} of {JOBS} files")
            need(summary["ran"] == JOBS, f"the demo ran {summary['ran']} of {JOBS} files")
            need(
                len(summary["failed"]) == 3, f"the demo reports {len(summary['failed'])} failed files, not 3"
            )
            need(len(summary["names"]) == 5, "the demo did not print five names")


def main(directory: Path) -> None:
    sdists, wheels = list(directory.glob("*.tar.gz")), list(directory.glob("*.whl"))
    need(len(sdists) == 1, f"{len(sdists)} sdists in {directory}")
    need(len(wheels) == 1, f"{len(wheels)} wheels in {directory}")
    check_log((directory / "build.log").read_text(encoding="utf-8", errors="replace"))
    check_sdist(sdists[0])
    check_wheel(wheels[0])
    check_installed(wheels[0])
    print(f"{sdists[0].name} and {wheels[0].name} are as they must be")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except Wrong as exc:
        sys.exit(f"check_dist: {exc}")
