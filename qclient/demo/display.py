"""How the demo shows its progress: a bar on a terminal, lines elsewhere, nothing for ``--json``."""

from __future__ import annotations

import importlib.util
import sys
import time
from dataclasses import dataclass
from typing import Any, Protocol

LINE_INTERVAL_S = 0.5


@dataclass(frozen=True, slots=True)
class Progress:
    """Counts of one moment; ``done`` includes ``kept``, the jobs an earlier run had finished."""

    total: int
    done: int = 0
    kept: int = 0
    active: int = 0
    retried: int = 0
    failed: int = 0
    seconds: float = 0.0

    @property
    def per_second(self) -> float:
        """Jobs finished by this run, each second."""
        return (self.done - self.kept) / self.seconds if self.seconds > 0 else 0.0

    @property
    def eta_seconds(self) -> float | None:
        """Time left at this speed, None before there is one."""
        return (self.total - self.done) / self.per_second if self.per_second else None


class Display(Protocol):
    """Shows progress; ``update`` may be called often."""

    def update(self, progress: Progress) -> None: ...

    def close(self) -> None: ...


class Silent:
    """Shows nothing."""

    def update(self, progress: Progress) -> None:
        pass

    def close(self) -> None:
        pass


class Lines:
    """A line now and then, for pipes and logs."""

    def __init__(self) -> None:
        self._due = 0.0
        self._last: Progress | None = None

    def update(self, progress: Progress) -> None:
        self._last = progress
        now = time.monotonic()
        if now >= self._due:
            self._due = now + LINE_INTERVAL_S
            self._print(progress)

    def _print(self, p: Progress) -> None:
        eta = p.eta_seconds
        share = 100 * p.done // p.total if p.total else 100
        print(
            f"[{share:3}%] {p.done}/{p.total} active={p.active} retried={p.retried} failed={p.failed}"
            f" {p.per_second:.0f}/s eta={'?' if eta is None else f'{eta:.0f}s'}",
            flush=True,
        )
        self._last = None

    def close(self) -> None:
        if self._last is not None:
            self._print(self._last)


class Bar:
    """A live bar, drawn by rich."""

    def __init__(self, title: str) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TaskProgressColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._bar: Any = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[speed]}"),
            TextColumn("[dim]{task.fields[detail]}"),
            refresh_per_second=10,
            expand=True,
        )
        self._task: Any = None
        self._title = title

    def update(self, progress: Progress) -> None:
        eta = progress.eta_seconds
        values = {
            "speed": f"{progress.per_second:.0f}/s eta {'?' if eta is None else f'{eta:.0f} s'}",
            "detail": f"active {progress.active} retried {progress.retried} failed {progress.failed}",
        }
        if self._task is None:
            self._task = self._bar.add_task(self._title, total=progress.total, **values)
            self._bar.start()
        self._bar.update(self._task, completed=progress.done, **values)

    def close(self) -> None:
        if self._task is not None:
            self._bar.stop()


def choose_display(*, as_json: bool) -> Display:
    """What suits standard output."""
    if as_json:
        return Silent()
    if sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
        return Bar("counting")
    return Lines()
