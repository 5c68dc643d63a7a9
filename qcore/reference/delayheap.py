"""The heap of due times in plain Python: a dict and ``min``."""

from __future__ import annotations


class DelayHeap:
    """Elements (due, tie, item) in order of ``due``, then ``tie``, known by handle.

    Among elements with equal ``due`` and ``tie`` either may be the first.
    """

    def __init__(self) -> None:
        self._elements: dict[int, tuple[int, int, int]] = {}
        self._next_handle = 1

    @property
    def n(self) -> int:
        return len(self._elements)

    def push(self, due: int, tie: int, item: int) -> int:
        """Add an element and return its handle."""
        handle = self._next_handle
        self._next_handle += 1
        self._elements[handle] = (due, tie, item)
        return handle

    def change(self, handle: int, due: int, tie: int) -> None:
        """Give an element another time; an unknown handle raises ``KeyError``."""
        self._elements[handle] = (due, tie, self._elements[handle][2])

    def remove(self, handle: int) -> int:
        """Remove an element and return its item; an unknown handle raises ``KeyError``."""
        return self._elements.pop(handle)[2]

    def _first_handle(self) -> int:
        if not self._elements:
            raise IndexError("delay heap is empty")
        return min(self._elements, key=lambda handle: self._elements[handle][:2])

    def first(self) -> tuple[int, int, int]:
        """Return the earliest (due, tie, item); an empty heap raises ``IndexError``."""
        return self._elements[self._first_handle()]

    def pop(self) -> tuple[int, int, int]:
        """Remove and return the earliest (due, tie, item); an empty heap raises ``IndexError``."""
        return self._elements.pop(self._first_handle())

    def items(self) -> list[tuple[int, int, int]]:
        """Return all (due, tie, item) in no particular order."""
        return list(self._elements.values())

    def clear(self) -> None:
        """Remove all elements; all handles end."""
        self._elements.clear()

    def __contains__(self, handle: int) -> bool:
        return handle in self._elements

    def __len__(self) -> int:
        return len(self._elements)

    def _check(self) -> None:
        assert all(0 < handle < self._next_handle for handle in self._elements), self._elements
