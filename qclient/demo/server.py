"""The server of ``qcore demo --tcp``: a child that ends with this process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType

from qcore.errors import ConfigError, ConnectionLost

STOP_S = 15.0
_LISTENING = re.compile(r"listening on (?:tcp://)?127\.0\.0\.1:(\d+)")
# Settings of some other server on this machine are none of the demo's.
_FOREIGN = ("AUTH_TOKENS", "HTTP_PORT", "TCP_PORT", "HOST", "RATE_LIMIT_MAX_REQUESTS")


class DemoServer:
    """``qcore start`` on a free port of the loopback interface.

    The child watches its standard input, whose other end only this process holds:
    when this process ends, in whatever way, the server stops in order.
    """

    def __init__(self, path: Path) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self._child = subprocess.Popen(
            # -P: a directory called qcore where the demo is run must not be imported.
            [sys.executable, "-P", "-m", "qcore.server", "--watch-stdin", "--log-level", "error",
             "--host", "127.0.0.1", "--port", "0", "--data", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={name: value for name, value in os.environ.items() if name not in _FOREIGN},
            process_group=0,  # Ctrl-C is for this process, which then stops the server
        )  # fmt: skip
        try:
            self.url = f"tcp://127.0.0.1:{self._port()}"
        except BaseException:
            self.close()
            raise

    def _port(self) -> int:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            found = _LISTENING.search(line.decode("utf-8", "replace"))
            if found:
                return int(found[1])
        self._child.wait()
        raise ConfigError(self._last_words() or "the server ended before it listened")

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1].removeprefix("qcore start: ") if lines else ""

    def check(self) -> None:
        """Raise ``ConnectionLost`` when the server has ended."""
        code = self._child.poll()
        if code is not None:
            raise ConnectionLost(f"the server ended with code {code}: {self._last_words() or 'no message'}")

    def close(self) -> None:
        """Stop the server in order, or kill it after 15 s."""
        child = self._child
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.close()
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        child.stdout.close()
        self._errors.close()

    def __enter__(self) -> DemoServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()
