from __future__ import annotations

from typing_extensions import disjoint_base

from qcore.engine.flows import Flows
from qcore.engine.schedule import Occurrence, Schedule
from qcore.engine.workers import Workers

@disjoint_base
class Schedules(Flows):
    @property
    def workers(self) -> Workers: ...
    def put_schedule(
        self,
        name: str,
        queue: str,
        now_ms: int,
        now_ns: int,
        *,
        pattern: str | None = None,
        every_ms: int | None = None,
        zone: str | None = None,
        data: bytes | None = None,
        notes: int = 0,
        job: Occurrence | None = None,
        max_runs: int = 0,
        immediately: bool = False,
        prevent_overlap: bool = True,
        skip_missed: bool = True,
        skip_if_no_worker: bool = False,
    ) -> Schedule: ...
    def schedule(self, name: str) -> Schedule | None: ...
    def list_schedules(self) -> list[Schedule]: ...
    def remove_schedule(self, name: str) -> bool: ...
    def restore_schedule(self, name: str, packed: bytes, now_ms: int) -> None: ...
    def restore_chains(self, archived: list[tuple[int, str, str]] | None = None) -> None: ...
