"""Worker processes that come and go."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.soak.line import PATIENCE_S, clean_env
from tests.soak.records import Life


class Crew:
    """Slots, each with a worker process; who is killed or ended is replaced."""

    def __init__(self, port: int, folder: Path) -> None:
        self._port = port
        self._folder = folder
        self._slots: list[tuple[subprocess.Popen[bytes], Path, tuple[str, ...]]] = []
        self.lives: list[Life] = []
        self.n_killed = self.n_ended = 0

    def hire(self, *work: str) -> None:
        """One more slot, for a kind of worker and its queues."""
        self._slots.append(self._start(work))

    def __len__(self) -> int:
        return len(self._slots)

    def busy(self) -> list[int]:
        """Slots whose worker has started a job."""
        return [slot for slot, (_, path, _) in enumerate(self._slots) if path.stat().st_size]

    def _start(self, work: tuple[str, ...]) -> tuple[subprocess.Popen[bytes], Path, tuple[str, ...]]:
        path = self._folder / f"worker-{len(self.lives) + len(self._slots):05}.records"
        while path.exists():
            path = path.with_name(f"worker-{int(path.stem[7:]) + 1:05}.records")
        path.touch()
        kind, *queues = work
        command = [sys.executable, "-m", "tests.soak.worker", kind, str(self._port), str(path), *queues]
        return subprocess.Popen(command, env=clean_env()), path, work

    def kill(self, slot: int) -> None:
        process, path, work = self._slots[slot]
        assert process.poll() is None, f"{path.name}: the worker ended by itself with {process.returncode}"
        now = time.monotonic_ns()
        process.kill()
        process.wait()
        self.n_killed += 1
        self.lives.append(Life(path, now))
        self._slots[slot] = self._start(work)

    def end(self, slot: int) -> None:
        """Let it finish what it has, and start another."""
        work = self._dismiss(slot)
        self._slots[slot] = self._start(work)

    def _dismiss(self, slot: int) -> tuple[str, ...]:
        process, path, work = self._slots[slot]
        assert process.poll() is None, f"{path.name}: the worker ended by itself with {process.returncode}"
        if not path.stat().st_size:
            # It may not have got as far as to heed a signal.
            now = time.monotonic_ns()
            process.kill()
            process.wait()
            self.lives.append(Life(path, now))
            return work
        process.terminate()
        code = process.wait(PATIENCE_S)
        assert code == 0, f"{path.name}: a graceful end has exit code {code}"
        self.n_ended += 1
        self.lives.append(Life(path))
        return work

    def close(self) -> None:
        """End them all gracefully."""
        for slot in range(len(self._slots)):
            self._dismiss(slot)
        self._slots.clear()

    def abandon(self) -> None:
        for process, _, _ in self._slots:
            process.kill()
            process.wait()
