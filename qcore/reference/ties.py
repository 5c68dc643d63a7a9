"""What a job of the plain engine is tied to."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Ties:
    """Nothing in it is changed in place, so a shallow copy is one."""

    depends_on: list[str] = field(default_factory=list)
    children: list[str] = field(default_factory=list)
    parent: str | None = None
    policy: str | None = None  # fail, continue, ignore, remove
    settled: int = 0  # so many of depends_on are done with
    #: Satisfied by evidence alone, when it was admitted or started over.
    evidenced: frozenset[str] = frozenset()
    dropped: dict[str, tuple[str, str, str | None]] = field(default_factory=dict)  # policy, queue:id, error
    child_failed: tuple[str, str] | None = None

    @property
    def ids(self) -> list[str]:
        return list(dict.fromkeys([*self.depends_on, *self.children]))
