from __future__ import annotations

import socket

from typing_extensions import disjoint_base

from qcore.broker.session import Session

SILENT_PERIODS: int

@disjoint_base
class Connection:
    session: Session
    partial: bool
    ready: bool
    events: int
    def __init__(
        self, sock: socket.socket, room: bytearray, max_unsent_bytes: int, keepalive_s: int = 15
    ) -> None: ...
    @property
    def sock(self) -> socket.socket: ...
    @property
    def unsent(self) -> list[memoryview]: ...
    @property
    def closed(self) -> bool: ...
    def receive(self) -> bool: ...
    def _feed(self, data: bytes | bytearray, n: int) -> bool: ...
    def send(self) -> bool: ...
    def _take(self) -> bytes: ...
    def close(self, *, release: bool = True) -> None: ...
