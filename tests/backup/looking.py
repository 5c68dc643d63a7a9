"""What lies in files and folders."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

Rows = list[tuple[Any, ...]]


def rows(file: Path) -> Rows:
    """The jobs in a data file that nobody uses."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro&immutable=1", uri=True)) as con:
        return con.execute("SELECT seq, queue, state, record, data, result FROM jobs ORDER BY seq").fetchall()


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())
