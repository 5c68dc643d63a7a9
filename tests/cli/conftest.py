"""A server for the tests of the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A server that holds nothing."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("QCORE_", "BUNQUEUE_", "BQ_"))}
    process = subprocess.Popen(
        [sys.executable, "-m", "qcore.server", "--port", "0", "--watch-stdin"],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    yield f"tcp://127.0.0.1:{process.stdout.readline().split('listening on 127.0.0.1:')[1].split()[0]}"
    process.stdin.close()
    process.wait(30)
    process.stdout.close()
