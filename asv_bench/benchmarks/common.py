"""What several benchmarks need: a quiet child server, and a skip for parts an old commit lacks."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from asv_runner.benchmarks.mark import SkipNotImplemented

_LISTENING = re.compile(rb"listening on 127\.0\.0\.1:(\d+)")


@contextlib.contextmanager
def needs(what: str) -> Iterator[None]:
    """Skip a benchmark whose imports fail: the commit is older than ``what``."""
    try:
        yield
    except ImportError as exc:
        raise SkipNotImplemented(f"no {what} in this commit") from exc


class ChildServer:
    """A server in a process of its own; use ``start`` in ``setup``, ``stop`` in ``teardown``.

    It ends with this process, since it watches its standard input.
    """

    def __init__(self, *options: str, durable: bool = True) -> None:
        self._directory = tempfile.mkdtemp(prefix="qcore-bench-")
        data = ["--data", os.path.join(self._directory, "jobs.db")] if durable else []
        self._command = [
            sys.executable,
            "-m",
            "qcore.server",
            "--watch-stdin",
            "--port",
            "0",
            *data,
            *options,
        ]
        self._child: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """Where a client finds it."""
        return f"tcp://127.0.0.1:{self.port}"

    def start(self) -> ChildServer:
        """Start it and wait until it listens; skip where the commit has no server."""
        with needs("server"):
            import qcore.server.__main__  # noqa: F401
        self._child = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._child.stdout is not None
        for line in self._child.stdout:
            found = _LISTENING.search(line)
            if found:
                self.port = int(found[1])
                return self
        self.stop()
        raise RuntimeError("the server ended before it listened")

    def stop(self) -> None:
        """Stop it and delete its files."""
        child, self._child = self._child, None
        if child is not None:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.close()
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            child.stdout.close()
        shutil.rmtree(self._directory, ignore_errors=True)
