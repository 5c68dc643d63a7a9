"""Record what the foreign clients see of the reference server, for the tests to compare with.

    python tests/foreign/record.py

Runs the surfaces of both clients against the reference server of the npm package
``bunqueue``, each several times, and writes what all the runs agree on to
``tests/data/surface_npm.json`` and ``surface_pypi.json``; where runs differ it says so
and ends with status 1. Needs what ``make foreign`` installs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import differential
import pypi_surface

HERE = Path(__file__).parent
NPM = HERE / "npm"
BUN = NPM / "node_modules" / ".bin" / "bun"
RUNS = 3

Surface = dict[str, Any]


def npm(port: int) -> Surface:
    command = [str(BUN), str(NPM / "surface.ts"), str(port)]
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    found: Surface = json.loads(out.splitlines()[-1])
    return found


def pypi(port: int) -> Surface:
    return pypi_surface.seen(port)


def record(name: str, seen: Callable[[int], Surface]) -> bool:
    runs = []
    server = [str(BUN), str(NPM / "node_modules" / "bunqueue" / "dist" / "main.js")]
    with (
        tempfile.TemporaryDirectory() as folder,
        differential.server(server, Path(folder) / "data", False) as port,
    ):
        for _ in range(RUNS):
            runs.append(seen(port))
    steady = True
    for section in runs[0]:
        texts = {json.dumps(run[section], sort_keys=True) for run in runs}
        if len(texts) > 1:
            steady = False
            print(f"{name}: {section} differs between runs:", *sorted(texts), sep="\n  ")
    lines = [f"  {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in runs[0].items()]
    target = HERE.parent / "data" / f"surface_{name}.json"
    target.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    return steady


if __name__ == "__main__":
    sys.exit(not all([record("npm", npm), record("pypi", pypi)]))
