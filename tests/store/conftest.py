from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qcore.store.base import Cut, Row, Store
from qcore.store.native import NativeSqliteStore
from qcore.store.sqlite import SqliteStore

StartChild = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture(params=["module", "native"])
def store(db: Path, request: pytest.FixtureRequest) -> Iterator[SqliteStore]:
    """An open store, once over the sqlite3 module and once with the compiled writer."""
    made: SqliteStore = NativeSqliteStore(db) if request.param == "native" else SqliteStore(db)
    yield made
    made.close()


@pytest.fixture
def start_child() -> Iterator[StartChild]:
    """Start Python code in a process of its own; it is killed at the end of the test."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *arguments: object) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()


@pytest.fixture(scope="session")
def rows_of() -> Callable[[Store], list[Row]]:
    return lambda store: list(store.load().jobs)


@pytest.fixture(scope="session")
def adds() -> Callable[..., Cut]:
    """Make a cut that inserts jobs first..last, with payloads on both sides of the limit."""

    def make(first: int, last: int) -> Cut:
        return Cut(
            inserts=[
                value
                for seq in range(first, last + 1)
                for value in (seq, 1, 0, b"record-%d" % seq, b"d" * (seq * 700 % 3000), None)
            ]
        )

    return make
