"""Real server processes for clients that are not ours."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

#: Tokens of a server that wants one; the transcripts use both.
TOKENS = "golden-token,second-token"


@contextlib.contextmanager
def _server(*options: str, tokens: str = "") -> Iterator[int]:
    """A server process on a free port; its port."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("QCORE_", "BUNQUEUE_", "BQ_", "DATA_"))}
    if tokens:
        env["AUTH_TOKENS"] = tokens
    command = [sys.executable, "-m", "qcore.server", "--port", "0", "--log-level", "warning", *options]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert "listening on 127.0.0.1:" in line, line
        yield int(line.rsplit(":", 1)[1])
    finally:
        # Deliveries that a test left open would hold a graceful stop for its whole bound.
        process.terminate()
        process.terminate()
        process.wait(20)
        process.stdout.close()


@pytest.fixture(scope="session")
def port_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, str], int]]:
    """``port_of(storage, needs)``: the port of a server, started when first asked for."""
    running: dict[tuple[str, str], int] = {}
    with contextlib.ExitStack() as stack:

        def port_of(storage: str, needs: str = "") -> int:
            if (storage, needs) not in running:
                file: Path = tmp_path_factory.mktemp("server") / "jobs.db"
                options = ("--data", str(file)) if storage == "sqlite" else ()
                tokens = TOKENS if needs == "auth" else ""
                running[storage, needs] = stack.enter_context(_server(*options, tokens=tokens))
            return running[storage, needs]

        yield port_of
