"""What the demo works on: every source file of the standard library, and three broken ones."""

from __future__ import annotations

import platform
import sysconfig
from dataclasses import dataclass
from pathlib import Path

BROKEN = Path(__file__).parent / "demo_data"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file to count; ``job_id`` is the same in every run with the same Python."""

    job_id: str
    name: str
    path: str


def source_files(limit: int | None = None) -> list[SourceFile]:
    """The first ``limit`` files, or all, in a fixed order.

    The broken ones lead: their retries are over before the last good file is counted.
    """
    python = platform.python_version()
    stdlib = Path(sysconfig.get_path("stdlib"))
    paths = [(path.name, path) for path in sorted(BROKEN.glob("*.broken"))]
    paths += [
        (path.relative_to(stdlib).as_posix(), path)
        for path in sorted(stdlib.rglob("*.py"))
        if "site-packages" not in path.parts and "dist-packages" not in path.parts
    ]
    return [SourceFile(f"{python}/{name}", name, str(path)) for name, path in paths[:limit]]
