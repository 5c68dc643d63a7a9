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
#: Variables of servers that are started for something in particular.
NEEDS: dict[str, dict[str, str]] = {
    "": {},
    "auth": {"AUTH_TOKENS": TOKENS},
    "limit": {"RATE_LIMIT_MAX_REQUESTS": "20"},
    "hooks": {"QCORE_WEBHOOK_ALLOW": "127.0.0.0/8"},
}


@contextlib.contextmanager
def _server(*options: str, **variables: str) -> Iterator[int]:
    """A server process on a free port; its port."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("QCORE_", "BUNQUEUE_", "BQ_", "DATA_"))}
    env |= variables
    command = [sys.executable, "-m", "qcore.server", "--port", "0", "--log-level", "warning", *options]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert "listening on 127.0.0.1:" in line, line
        yield int(line.rsplit(":", 1)[1])
    finally:
        # Deliveries that a test left open would hold a graceful stop for its whole bound, and two
        # signals that come together are one.
        for _ in range(40):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
                break
        else:
            process.kill()
            process.wait()
            pytest.fail("a server did not end when it was told to a second time", pytrace=False)
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
                running[storage, needs] = stack.enter_context(_server(*options, **NEEDS[needs]))
            return running[storage, needs]

        yield port_of


# --- what npm installed -------------------------------------------------------------------------

MODULES = Path(__file__).parent / "npm" / "node_modules"
#: bun comes as a package of its own for each kind of machine; `.bin/bun` is put there by a script of the
#: package, which npm may be told not to run.
_PLACES = (".bin/bun", "@oven/bun-*/bin/bun")


@pytest.fixture(scope="session")
def bun() -> str:
    """Path of the JavaScript engine. Where it is not there, the test fails and says how to get it."""
    for pattern in _PLACES:
        for path in sorted(MODULES.glob(pattern)):
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                subprocess.run([path, "--version"], check=True, stdout=subprocess.DEVNULL, timeout=60)
                if (MODULES / "bunqueue").is_dir():
                    return str(path)
    pytest.fail(
        "the npm packages bun and bunqueue are not there; `make foreign` installs them and needs node, npm "
        "and the npm registry",
        pytrace=False,
    )
