"""Completion tokens in plain Python: two dicts, the recent one in order of arrival."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class CompletionTokens:
    """At most ``cap`` recent keys, the oldest forgotten first, and any number of pinned ones."""

    def __init__(self, cap: int = 50000, seed: int = 0) -> None:
        if cap < 1:
            raise ValueError(f"cap must be at least 1, got {cap}")
        self.cap = cap
        self._recent: dict[int, tuple[int, int]] = {}
        self._pinned: dict[int, tuple[int, int]] = {}

    @property
    def n_recent(self) -> int:
        return len(self._recent)

    @property
    def n_pinned(self) -> int:
        return len(self._pinned)

    def _append(self, key: int, entry: tuple[int, int]) -> int | None:
        evicted = None
        if len(self._recent) >= self.cap:
            evicted = next(iter(self._recent))
            del self._recent[evicted]
        self._recent[key] = entry
        return evicted

    def add(self, key: int, owner: int, value: int = 0) -> int | None:
        """Add a key as the newest recent one and return the key that it evicted, if any.

        A key that is there, recent or pinned, gets the owner and value and keeps its place.
        """
        for tier in (self._recent, self._pinned):
            if key in tier:
                tier[key] = (owner, value)
                return None
        return self._append(key, (owner, value))

    def pin(self, key: int) -> bool:
        """Move a recent key to the pinned ones; tell whether it was recent."""
        if key not in self._recent:
            return False
        self._pinned[key] = self._recent.pop(key)
        return True

    def unpin(self, key: int, retain: bool = True) -> int | None:
        """Make a pinned key the newest recent one, or forget it if not ``retain``.

        Return the key evicted for it, if any. A key that is not pinned stays as it is.
        """
        if key not in self._pinned:
            return None
        entry = self._pinned.pop(key)
        return self._append(key, entry) if retain else None

    def delete(self, key: int) -> bool:
        """Forget a key of either tier; tell whether it was there."""
        there = key in self
        self._recent.pop(key, None)
        self._pinned.pop(key, None)
        return there

    def delete_owner(self, owner: int, pins: bool = True) -> int:
        """Forget all keys of one owner; return how many.

        Without ``pins`` those that are pinned stay, and are of owner 0 then.
        """
        before = len(self)
        if not pins:
            for key, (whose, value) in self._pinned.items():
                self._pinned[key] = (0 if whose == owner else whose, value)
        for tier in (self._recent, self._pinned) if pins else (self._recent,):
            for key in [key for key, entry in tier.items() if entry[0] == owner]:
                del tier[key]
        return before - len(self)

    def get(self, key: int) -> tuple[int, int] | None:
        """Return (owner, value) of a key, or None."""
        return self._recent.get(key) or self._pinned.get(key)

    def hydrate(self, entries: Iterable[tuple[int, int, int]]) -> None:
        """Forget everything, then add each (key, owner, value), oldest first."""
        self.clear()
        for key, owner, value in entries:
            self.add(key, owner, value)

    def clear(self) -> None:
        """Forget everything."""
        self._recent.clear()
        self._pinned.clear()

    def pinned(self) -> list[int]:
        """Return the pinned keys, in no particular order."""
        return list(self._pinned)

    def __contains__(self, key: int) -> bool:
        return key in self._recent or key in self._pinned

    def __len__(self) -> int:
        return len(self._recent) + len(self._pinned)

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._recent))

    def _check(self) -> None:
        assert len(self._recent) <= self.cap, (len(self._recent), self.cap)
        assert not self._recent.keys() & self._pinned.keys()
