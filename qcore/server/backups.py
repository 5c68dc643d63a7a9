"""Backups that a server makes by itself, each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from os import environ
from typing import Any

from qcore.backup import BackupSettings
from qcore.backup.settings import LEAST_INTERVAL_MS
from qcore.errors import StoreError

logger = logging.getLogger("qcore.server")

#: A backup that is under way when the server stops is given so long to clean up behind itself.
END_PATIENCE_S = 5.0
#: How long a flush may take before a backup; the disk is in trouble then.
FLUSH_PATIENCE_S = 60.0


class Flushes:
    """Who waits until everything that was accepted by now is in the file.

    :meth:`ask` may be called from any thread, the others by the one that commits.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._asked: list[_Flush] = []
        self._begun: list[_Flush] = []

    def ask(self, patience_s: float) -> str | None:
        """Wait; None, or why it did not succeed."""
        flush = _Flush()
        with self._lock:
            self._asked.append(flush)
        self._wake()
        return flush.error if flush.over.wait(patience_s) else "the data file is not written in time"

    @property
    def asked(self) -> bool:
        return bool(self._asked)

    def begin(self) -> None:
        """A commit of everything so far begins."""
        with self._lock:
            self._begun += self._asked
            self._asked.clear()

    def end(self, error: StoreError | None) -> None:
        """It has ended."""
        begun, self._begun = self._begun, []
        for flush in begun:
            flush.error = None if error is None else str(error)
            flush.over.set()

    def nothing(self) -> None:
        """There is nothing to commit."""
        self.begin()
        self.end(None)


class _Flush:
    def __init__(self) -> None:
        self.over = threading.Event()
        self.error: str | None = None


class Backups:
    """A thread that starts a backup whenever the newest one is older than the interval."""

    def __init__(self, data: str, settings: BackupSettings, flush: Callable[[float], str | None]) -> None:
        self._data = data
        self._settings = settings
        self._flush = flush
        self._stop = threading.Event()
        self._child: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run, name="qcore-backups", daemon=True)
        self._successes = self._failures = 0
        self._running = False
        self._newest_ms = 0

    def figures(self) -> dict[str, float]:
        """For monitoring. An attempt is one of the outcomes, or the one that is running."""
        return {
            "success": self._successes,
            "failure": self._failures,
            "running": int(self._running),
            "last_success_seconds": self._newest_ms / 1000,
        }

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Start no more, and end the one under way. Returns at once."""
        self._stop.set()
        child = self._child
        if child is not None:
            with contextlib.suppress(OSError):
                child.terminate()

    def close(self, patience_s: float = END_PATIENCE_S) -> None:
        """Let the one under way clean up behind itself, so long and no longer."""
        self.stop()
        if not self._thread.is_alive():
            return
        self._thread.join(patience_s)
        child = self._child
        if child is not None:
            with contextlib.suppress(OSError):
                child.kill()
            self._thread.join(END_PATIENCE_S)

    def _run(self) -> None:
        interval_s = self._settings.interval_ms / 1000
        retry_s = LEAST_INTERVAL_MS / 1000
        while not self._stop.is_set():
            self._running = True
            try:
                wait_s = self._make()
            except Exception as error:
                if self._stop.is_set():
                    return
                self._failures += 1
                logger.error("backup failed: %s", error)
                wait_s = min(retry_s, interval_s)
                retry_s *= 2
            else:
                retry_s = LEAST_INTERVAL_MS / 1000
            self._running = False
            self._stop.wait(wait_s)

    def _make(self) -> float:
        """One backup if it is time for it; seconds until the next."""
        interval_ms = self._settings.interval_ms
        error = self._flush(FLUSH_PATIENCE_S)
        if error is not None:
            raise StoreError(f"accepted jobs are not in the file: {error}")
        command = [sys.executable, "-m", "qcore.backup", self._data, str(interval_ms)]
        with subprocess.Popen(
            command,
            env={**environ, **self._settings.variables()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a Ctrl-C is for the server, which decides what becomes of it
        ) as child:
            self._child = child
            if self._stop.is_set():
                child.terminate()
            out, err = child.communicate()
            self._child = None
        if child.returncode:
            lines = err.split("\n")
            raise StoreError(
                next((line for line in reversed(lines) if line), f"exit code {child.returncode}")
            )
        found: dict[str, Any] = json.loads(out)
        self._newest_ms = found["created_ms"]
        if not found["made"]:
            return max(1.0, (interval_ms - int(found["age_ms"])) / 1000)
        self._successes += 1
        logger.info(
            "backup %s: %d jobs, %d bytes; %d older ones removed",
            found["key"],
            found["jobs"],
            found["packed_bytes"],
            len(found["removed"]),
        )
        return interval_ms / 1000
