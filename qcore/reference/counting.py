"""What happened in a queue, counted plainly: its journal, and its outcomes by minute."""

from __future__ import annotations

from dataclasses import dataclass, field

MINUTE_MS = 60_000


@dataclass
class Outcomes:
    """Outcomes of one kind. What comes after the clock was set back counts in the newest minute.

    ``minutes`` is not changed in place, so a shallow copy is one.
    """

    total: int = 0
    prev_ms: int = 0
    minutes: dict[int, int] = field(default_factory=dict)

    def count(self, now_ms: int, most: int) -> None:
        newest = max([now_ms // MINUTE_MS, *self.minutes])
        self.total += 1
        self.prev_ms = now_ms
        minutes = {minute: n for minute, n in self.minutes.items() if minute > newest - most}
        self.minutes = {**minutes, newest: minutes.get(newest, 0) + 1}

    def latest(self) -> Outcomes:
        """The same without the minutes but the latest."""
        newest = {minute: n for minute, n in self.minutes.items() if minute == max(self.minutes)}
        return Outcomes(self.total, self.prev_ms, newest)

    def page(self, start: int, end: int) -> tuple[list[int], int]:
        """Numbers by minute, newest first, without gaps, and how many minutes there are."""
        if not self.minutes:
            return [], 0
        newest, oldest = max(self.minutes), min(self.minutes)
        every = [self.minutes.get(minute, 0) for minute in range(newest, oldest - 1, -1)]
        first = max(0, start + len(every) if start < 0 else start)
        last = end + len(every) if end < 0 else end
        return every[first : max(0, last + 1)], len(every)


@dataclass
class Journal:
    """Only the number of events is kept, up to a bound."""

    most: int
    n: int = 0

    def count(self) -> None:
        self.n = min(self.n + 1, self.most)

    def trim(self, length: int) -> int:
        dropped = max(0, self.n - length)
        self.n -= dropped
        return dropped
