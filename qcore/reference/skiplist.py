"""The ordered map in plain Python: a sorted list."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import pairwise


class SkipList:
    """Ordered map (a, b, c) -> value; keys unique, order ascending and lexicographic."""

    def __init__(self, seed: int = 0) -> None:
        self._entries: list[tuple[int, int, int, int]] = []

    @property
    def n(self) -> int:
        return len(self._entries)

    def _find(self, key: tuple[int, int, int]) -> tuple[int, bool]:
        i = bisect_left(self._entries, key)
        return i, i < len(self._entries) and self._entries[i][:3] == key

    def insert(self, a: int, b: int, c: int, value: int) -> None:
        """Add an entry; a key that is there already raises ``ValueError``."""
        if self._find((a, b, c))[1]:
            raise ValueError(f"key ({a}, {b}, {c}) is in the list already")
        insort(self._entries, (a, b, c, value))

    def fill(self, entries: list[tuple[int, int, int, int]]) -> None:
        """Add entries, in any order, to an empty list; see there for what raises ``ValueError``."""
        if self._entries:
            raise ValueError(f"expected an empty list, this one has {len(self._entries)} entries")
        found = sorted(entries)
        for (*before, _), (*key, _) in pairwise(found):
            if before == key:
                raise ValueError(f"key ({', '.join(map(str, key))}) comes twice")
        self._entries = found

    def remove(self, a: int, b: int, c: int) -> bool:
        """Remove an entry by key and tell whether it was there."""
        i, found = self._find((a, b, c))
        if found:
            del self._entries[i]
        return found

    def first(self) -> tuple[int, int, int, int]:
        """Return the least (a, b, c, value); an empty list raises ``IndexError``."""
        if not self._entries:
            raise IndexError("skip list is empty")
        return self._entries[0]

    def before(self, a: int, b: int, c: int) -> tuple[int, int, int, int] | None:
        """Return the last entry before a key, or None."""
        i, _ = self._find((a, b, c))
        return self._entries[i - 1] if i else None

    def first_from(self, a: int, b: int, c: int) -> tuple[int, int, int, int] | None:
        """Return the first entry that is not before a key, or None."""
        i, _ = self._find((a, b, c))
        return self._entries[i] if i < len(self._entries) else None

    def pop(self) -> tuple[int, int, int, int]:
        """Remove and return the least (a, b, c, value); an empty list raises ``IndexError``."""
        if not self._entries:
            raise IndexError("skip list is empty")
        return self._entries.pop(0)

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        return iter(self._entries.copy())

    def _check(self) -> None:
        keys = [entry[:3] for entry in self._entries]
        assert all(x < y for x, y in pairwise(keys)), keys
