from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, final

from _typeshed import ReadableBuffer

from qcore.broker.core import Broker, Outlet
from qcore.engine.lanes import Wanted
from qcore.engine.schedule import Schedule

_Removal = bool | int | dict[str, Any]

class Added(NamedTuple):
    how: str
    ids: list[str]

@final
class Session(Outlet):
    authenticated: bool
    state: dict[str, Any]
    def __new__(
        cls,
        broker: Broker,
        on_output: Callable[[], None] | None = None,
        *,
        authenticated: bool = True,
        rate_max: int = 0,
        rate_window_ms: int = 60_000,
        max_waits: int = 10_000,
        settings: object = None,
        in_order: bool = False,
    ) -> Session: ...
    @property
    def broker(self) -> Broker: ...
    @property
    def settings(self) -> Any: ...
    @property
    def backlogged(self) -> bool: ...
    @property
    def behind_adds(self) -> bool: ...
    def resume(self) -> None: ...
    @property
    def settled(self) -> bool: ...
    @property
    def has_output(self) -> bool: ...
    @property
    def n_frames(self) -> int: ...
    @property
    def partial(self) -> int: ...
    @property
    def waiting(self) -> bool: ...
    @property
    def rate_max(self) -> int: ...
    def feed(self, data: ReadableBuffer, n: int = -1) -> int: ...
    def take(self) -> bytes: ...
    def close(self, *, release: bool = True) -> None: ...
    def reply(
        self, reply: dict[str, object], *, held: bool = False, add: bool = False, change: bool = False
    ) -> int: ...
    def announce(self, caps: int) -> None: ...
    def announced(self, name: str) -> bool: ...
    def add(
        self,
        queue: str | None,
        admissions: list[dict[str, Any]],
        resent_since_ms: int | None = None,
        *,
        staged: bool = False,
    ) -> Added: ...
    def finish(self, job_id: str, token: str | None, result: bytes | None, remove: _Removal) -> bool: ...
    def update(self, job_id: str, data: bytes) -> bool: ...
    def put_schedule(self, name: str, queue: str, data: bytes | None, **options: Any) -> Schedule: ...
    def fail(
        self,
        job_id: str,
        token: str | None,
        error: str | None,
        stack: list[str] | None,
        unrecoverable: bool,
        remove: _Removal,
    ) -> bool: ...
    def renew(self, job_id: str, token: str | None, lease_ms: int) -> bool: ...
    def pull(
        self,
        queue: str,
        count: int,
        lease_ms: int,
        owned: bool,
        req_id: bytes | None,
        timeout_ms: int,
        wanted: Wanted | None = None,
    ) -> None: ...
