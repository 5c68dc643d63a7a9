"""Data files to back up, made by the engine itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qclient import Queue, shutdown_engine
from qcore.backup import Place, open_place, read_settings
from tests.soak.line import Server


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("QCORE_", "BUNQUEUE_", "BQ_", "S3_", "AWS_", "DATA_PATH", "SQLITE_PATH")):
            monkeypatch.delenv(name)


@pytest.fixture
def make_data(tmp_path: Path) -> Callable[..., Path]:
    """``make_data(n, name)``: a data file that was closed cleanly, with n jobs."""

    def make(jobs: int = 20, name: str = "jobs.db") -> Path:
        file = tmp_path / name
        with Queue("q", f"sqlite:///{file}") as queue:
            queue.add_bulk([("n", {"n": n, "x": "payload of the test"}) for n in range(jobs)])
        shutdown_engine()
        return file

    return make


@pytest.fixture
def data(make_data: Callable[..., Path]) -> Path:
    return make_data()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    settings = read_settings({}, to=str(tmp_path / "backups"))
    assert settings is not None
    return open_place(settings)


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """``serve(file, *options)``: a server process, killed after the test at the latest."""
    servers: list[Server] = []

    def start(file: Path, *options: str) -> Server:
        servers.append(Server(file, *options))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()
