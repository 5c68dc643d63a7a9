from __future__ import annotations

from typing import Any, final

from qcore.engine.lanes import Wanted
from qcore.engine.queries import Queries

def refusal(verdict: int, job_id: str) -> Exception: ...

@final
class Engine(Queries):
    def __new__(
        cls,
        seed: bytes,
        *,
        tracking: bool = False,
        archive: bool = False,
        max_completed: int = 50_000,
        max_events: int = 10_000,
        max_minutes: int = 20_160,
        max_waiting_deps: int = 10_000,
    ) -> Engine: ...
    def push(
        self,
        queue: str,
        data: bytes | None,
        now_ms: int,
        *,
        name: str = "default",
        job_id: str | None = None,
        priority: float = 0.0,
        delay_ms: int = 0,
        created_ms: int = -1,
        attempts: int = 3,
        backoff_ms: int = 1000,
        lifo: bool = False,
        remove_on_complete: bool = False,
        remove_on_fail: bool = False,
        extra: dict[str, Any] | None = None,
        parent_token: str | None = None,
    ) -> str: ...
    def push_many(self, queue: str, datas: list[bytes], now_ms: int) -> list[str]: ...
    def pull(
        self,
        queue: str,
        now_ms: int,
        now_ns: int,
        *,
        lease_ms: int = 0,
        session: int = 0,
        wanted: Wanted | None = None,
    ) -> tuple[str, str | None, bytes | None] | None: ...
    def pull_many(
        self,
        queue: str,
        count: int,
        now_ms: int,
        now_ns: int,
        *,
        lease_ms: int = 0,
        session: int = 0,
        wanted: Wanted | None = None,
    ) -> list[tuple[str, str | None, bytes | None]]: ...
    def ack(
        self,
        job_id: str,
        now_ms: int,
        *,
        token: str | None = None,
        result: bytes | None = None,
        result_notes: int = 0,
        remove: bool | int | dict[str, Any] = False,
        remember: bool = False,
    ) -> bool: ...
    def fail(
        self,
        job_id: str,
        now_ms: int,
        *,
        token: str | None = None,
        error: str = "",
        stack: list[str] | None = None,
        unrecoverable: bool = False,
        remove: bool | int | dict[str, Any] = False,
        remember: bool = False,
    ) -> bool: ...
    def renew(
        self, job_id: str, now_ms: int, now_ns: int, *, token: str | None = None, lease_ms: int = 0
    ) -> bool: ...
    def move_to_delayed(
        self, job_id: str, delay_ms: int, now_ms: int, *, token: str | None = None
    ) -> None: ...
    def move_to_wait(self, job_id: str, now_ms: int, *, token: str | None = None) -> None: ...
    def move_to_waiting_children(
        self, job_id: str, now_ms: int, *, token: str | None = None, leave: bool = False
    ) -> bool: ...
    def promote(self, job_id: str, now_ms: int) -> bool: ...
    def change_delay(self, job_id: str, delay_ms: int, now_ms: int, *, token: str | None = None) -> bool: ...
    def retry_dead(self, queue: str, now_ms: int, *, job_id: str | None = None, count: int = -1) -> int: ...
    def remove(self, job_id: str) -> bool: ...
    def cancel(self, job_id: str, now_ms: int) -> bool: ...
    def discard(self, job_id: str, now_ms: int, *, token: str | None = None) -> None: ...
    def drain(self, queue: str) -> int: ...
    def obliterate(self, queue: str) -> None: ...
    def clean(
        self, queue: str, now_ms: int, *, grace_ms: int = 0, state: str | None = None, limit: int = 1000
    ) -> list[str]: ...
    def promote_jobs(self, queue: str, now_ms: int, *, count: int = -1) -> int: ...
    def change_priority(
        self, job_id: str, priority: float, now_ms: int, *, lifo: bool | None = None
    ) -> bool: ...
    def update(self, job_id: str, data: bytes, *, notes: int = 0) -> bool: ...
    def set_progress(
        self, job_id: str, progress: float, now_ms: int, now_ns: int = 0, *, message: str | None = None
    ) -> None: ...
    def retry_completed(
        self,
        queue: str,
        now_ms: int,
        *,
        job_id: str | None = None,
        count: int = -1,
        until_ms: int | None = None,
    ) -> int: ...
    def purge_dead(self, queue: str) -> int: ...
    def remove_dead(self, queue: str, job_id: str) -> bool: ...
    def configure(
        self, queue: str, *, dead: dict[str, Any] | None = None, stalls: dict[str, Any] | None = None
    ) -> None: ...
    def remove_job_key(self, job_id: str) -> bool: ...
    def add_log(self, job_id: str, message: str, level: str, now_ms: int) -> None: ...
    def clear_logs(self, job_id: str, *, keep: int = 0) -> None: ...
    def close_session(self, session: int, now_ms: int) -> int: ...
    def advance(self, now_ms: int, now_ns: int) -> bool: ...
    def next_due(self, now_ms: int, now_ns: int) -> int | None: ...
    def pause(self, queue: str, paused: bool = True, *, now_ms: int = 0) -> None: ...
    def listen(self, queue: str, mask: int) -> None: ...
    def listen_everywhere(self, mask: int) -> None: ...
    def trim_events(self, queue: str, max_length: int) -> int: ...
    def take_events(self) -> list[tuple[str, str, str, int, Any]]: ...
    def watch(self, job_id: str) -> str: ...
    def _check(self) -> None: ...
