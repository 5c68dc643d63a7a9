"""The blocking client: a small pool of connections, one command on each at a time.

Threads that call at the same time each get a connection of their own, so a call
that waits for a job holds nobody up.
"""

from __future__ import annotations

import math
import os
import random
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from qclient.local import LocalPipe, shutdowns
from qclient.pipe import CONNECT_TIMEOUT_S, Pipe, SocketPipe
from qclient.protocol import CAPABILITIES, ClientProtocol
from qclient.replies import refused
from qclient.url import Target
from qcore.errors import AuthError, ClosedError, CommandTimeout, ConnectionLost, ForkedError, ProtocolError

COMMAND_TIMEOUT_S = 30.0
_IDLE_KEPT = 4
_TRUSTED_IDLE_S = 1.0
_RETRY_FIRST_S = 0.1
_RETRY_MOST_S = 5.0


class Link:
    """One connection, greeted and authenticated."""

    __slots__ = ("_pipe", "_protocol", "capabilities", "events", "last_used", "pid")

    def __init__(self, target: Target, timeout: float | None = None) -> None:
        self.pid = os.getpid()
        self.last_used = time.monotonic()
        self._protocol = ClientProtocol()
        self._pipe: Pipe = (
            LocalPipe(target) if target.embedded else SocketPipe(target, timeout or CONNECT_TIMEOUT_S)
        )
        self.capabilities: frozenset[str] = frozenset()
        #: Events are kept here, if they are wanted at all.
        self.events: deque[Any] | None = None
        try:
            self._greet(target, timeout or COMMAND_TIMEOUT_S)
        except BaseException:
            self._pipe.close()
            raise

    def _greet(self, target: Target, timeout: float) -> None:
        if target.token:
            reply = self.call("Auth", {"token": target.token}, timeout=timeout)
            if not reply.get("ok"):
                raise AuthError(f"{target} refused the token")
        reply = self.call(
            "Hello", {"protocolVersion": 3, "capabilities": list(CAPABILITIES)}, timeout=timeout
        )
        if not reply.get("ok"):
            raise refused(reply, "Hello")
        listed = reply.get("capabilities")
        self.capabilities = frozenset(listed if isinstance(listed, list) else ())

    def call(
        self,
        command: str,
        fields: Mapping[str, object] | None = None,
        raw: tuple[tuple[str, bytes], ...] = (),
        timeout: float = COMMAND_TIMEOUT_S,
    ) -> dict[str, Any]:
        """Send one command and return its reply, refused or not."""
        tag = object()
        self._pipe.write(self._protocol.request(command, fields, raw, tag), timeout)
        deadline = time.monotonic() + timeout
        left = timeout
        found: dict[str, Any] | None = None
        while True:
            try:
                data = self._pipe.read(left)
            except CommandTimeout:  # names what was left
                raise CommandTimeout(f"{command}: no reply within {timeout:g} s") from None
            for got, reply in self._protocol.feed(data):
                if got is tag:
                    found = reply
                elif got is None and self.events is not None:
                    self.events.append(reply.get("event"))
            if found is not None:
                self.last_used = time.monotonic()
                return found
            left = deadline - time.monotonic()
            if left <= 0:
                raise CommandTimeout(f"{command}: no reply within {timeout:g} s")

    def read_events(self, timeout: float) -> None:
        """Wait for bytes and keep the events among them."""
        assert self.events is not None
        for got, reply in self._protocol.feed(self._pipe.read(timeout)):
            if got is None:
                self.events.append(reply.get("event"))

    def engine_ms_at(self, moment: float) -> int:
        """What the engine's clock said at that reading of ours, or a little less: never more."""
        said: int = self.call("Ping")["data"]["time"]
        return said - math.ceil((time.monotonic() - moment) * 1000) - 1

    def usable(self) -> bool:
        """Look for a close by the peer, but only after a pause long enough for one."""
        return time.monotonic() - self.last_used < _TRUSTED_IDLE_S or self._pipe.alive()

    def close(self) -> None:
        self._pipe.close()

    def abort(self) -> None:
        """Close from another thread; a call under way ends with an error."""
        if self.pid == os.getpid():
            self._pipe.abort()
        else:
            self._pipe.close()


class Client:
    """Commands to one engine; thread-safe; opens nothing before the first command.

    ``connect_timeout`` bounds the connecting and each step of the greeting.
    """

    def __init__(self, target: Target, connect_timeout: float | None = None) -> None:
        self.target = target
        self._connect_timeout = connect_timeout
        self.capabilities: frozenset[str] | None = None
        self._idle: list[Link] = []
        self._busy: set[Link] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._shutdowns = 0  # of this process's engines, when the first connection was opened
        self._pid: int | None = None  # of the process that opened the first connection

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def greeted(self) -> frozenset[str]:
        """What the engine can do beyond the base protocol; connects if need be."""
        if self.capabilities is None:
            self._give_back(self._take())
            assert self.capabilities is not None
        return self.capabilities

    def call(
        self,
        command: str,
        fields: Mapping[str, object] | None = None,
        raw: tuple[tuple[str, bytes], ...] = (),
        *,
        repeatable: bool = True,
        dated: bool = False,
        timeout: float = COMMAND_TIMEOUT_S,
    ) -> dict[str, Any]:
        """Run one command and return its reply; refusals are raised.

        When the connection breaks, a ``repeatable`` command is sent again, with
        growing pauses, until ``timeout``; any other raises ``ConnectionLost``
        whose ``maybe_applied`` tells whether it may have run. A ``dated`` one says
        when it is sent again since when, so that an engine which has run it knows.
        """
        deadline = time.monotonic() + timeout
        pause = _RETRY_FIRST_S
        unreadable = False
        first: float | None = None  # when it may have been run
        while True:
            written = False
            try:
                link = self._take()
                written = True
                try:
                    if first is None:
                        first = time.monotonic()
                    elif dated:
                        fields = {**(fields or {}), "resentSince": float(link.engine_ms_at(first))}
                    reply = link.call(command, fields, raw, max(0.001, deadline - time.monotonic()))
                except BaseException:
                    self._discard(link)
                    raise
                self._give_back(link)
            except (ConnectionLost, ProtocolError, CommandTimeout) as exc:
                if self._closed.is_set():
                    raise ClosedError("the client was closed") from None
                if isinstance(exc, CommandTimeout) or (isinstance(exc, ProtocolError) and unreadable):
                    raise
                unreadable = isinstance(exc, ProtocolError)  # twice the same is no accident
                if written and not repeatable:
                    if isinstance(exc, ConnectionLost):
                        raise
                    raise ConnectionLost(str(exc), maybe_applied=True) from exc
                # A first connection that is refused is news, not an outage.
                if self.capabilities is None or time.monotonic() + pause >= deadline:
                    raise
                if self._closed.wait(pause * (1 + 0.3 * random.random())):
                    raise ClosedError("the client was closed") from None
                pause = min(pause * 2, _RETRY_MOST_S)
                continue
            if not reply.get("ok"):
                raise refused(reply, command)
            return reply

    def _notice_fork(self) -> bool:
        """Whether this is a forked child of the process that connected; the lock may have been held then."""
        pid = os.getpid()
        if self._pid is None or self._pid == pid:
            return False
        if not self.target.embedded:
            self._pid = pid
        self._lock = threading.Lock()
        return True

    def _take(self) -> Link:
        if self._notice_fork() and self.target.embedded:
            # Not a new engine in its place: what went into that would be lost with the child.
            raise ForkedError("this engine belongs to the parent process; open the queue after the fork")
        if self.target.embedded and self.capabilities is not None and self._shutdowns != shutdowns():
            # A new engine on the same file would own it again behind the back of who closed it.
            raise ClosedError("the engine of this process was closed")
        pid = os.getpid()
        while True:
            if self._closed.is_set():
                raise ClosedError("the client was closed")
            with self._lock:
                link = self._idle.pop() if self._idle else None
                if link is not None:
                    self._busy.add(link)
            if link is None:
                break
            if link.pid != pid and not self.target.embedded:
                # Inherited over a fork: the parent goes on using this socket.
                self._discard(link)
                continue
            if link.usable():
                return link
            self._discard(link)
        seen = shutdowns()
        link = Link(self.target, self._connect_timeout)
        if self.capabilities is None:
            self._shutdowns = seen
        self.capabilities = link.capabilities
        self._pid = pid
        with self._lock:
            self._busy.add(link)
        return link

    def _give_back(self, link: Link) -> None:
        with self._lock:
            self._busy.discard(link)
            if not self._closed.is_set() and len(self._idle) < _IDLE_KEPT:
                self._idle.append(link)
                return
        link.close()

    def _discard(self, link: Link) -> None:
        with self._lock:
            self._busy.discard(link)
        link.close()

    def close(self) -> None:
        """Close all connections; calls in other threads end with an error."""
        self._closed.set()
        self._notice_fork()
        with self._lock:
            links = [*self._idle, *self._busy]
            self._idle.clear()
            self._busy.clear()
        for link in links:
            link.abort()


__all__ = ["COMMAND_TIMEOUT_S", "Client", "Link"]
