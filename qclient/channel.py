"""The worker's connection: driven by an event loop, reconnecting until it is closed.

Commands may be sent at any time; while there is no connection they wait for the
next one. What was in flight when a connection broke is reported to its handler,
which knows whether it may be sent again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

from qclient.local import AsyncLocalPipe, shutdowns
from qclient.pipe import CONNECT_TIMEOUT_S, READ_BYTES, refused_address, server_name, tune
from qclient.protocol import CAPABILITIES, WorkerProtocol
from qclient.replies import refused
from qclient.url import Target
from qcore.errors import (
    AuthError,
    ClosedError,
    CommandTimeout,
    ConnectionLost,
    ForkedError,
    ProtocolError,
    QError,
)

RETRY_FIRST_S = 0.1
RETRY_MOST_S = 30.0
COMMAND_TIMEOUT_S = 30.0
PING_INTERVAL_S = 30.0
MAX_TIMEOUTS = 3
OUTBOUND_BYTES = 64 * 1024 * 1024

Handler = Callable[[Any, dict[str, Any] | None, Exception | None], None]


class Call:
    """One command under way: who is told of its reply, and until when it is expected."""

    __slots__ = ("arg", "command", "deadline", "handler")

    def __init__(self, handler: Handler, arg: Any, command: str, deadline: float) -> None:
        self.handler = handler
        self.arg = arg
        self.command = command
        self.deadline = deadline


class _Socket(asyncio.BufferedProtocol):
    """Receives into one buffer for the life of the connection."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._view = memoryview(bytearray(READ_BYTES))
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=OUTBOUND_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            tune(sock)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        self._channel._received(bytes(self._view[:nbytes]))

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._channel._lost(self, exc)

    def pause_writing(self) -> None:
        # The peer has not read 64 MiB: it is gone or frozen.
        self.transport.abort()

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def close(self) -> None:
        self.transport.close()
        if self.transport.get_extra_info("ssl_object") is not None:
            # Its goodbye is written; the loop may end before the peer has answered that.
            self.transport.abort()

    def abort(self) -> None:
        self.transport.abort()


class Channel:
    """See the module. Every method but ``__init__`` belongs to the loop's thread."""

    def __init__(
        self,
        target: Target,
        loop: asyncio.AbstractEventLoop,
        on_up: Callable[[], None],
        on_down: Callable[[Exception], None],
        on_received: Callable[[], None],
        owner: Any = None,
    ) -> None:
        self._owner = owner
        self.target = target
        self.up = False
        self.closed = False
        self.reconnects = 0
        self.capabilities: frozenset[str] = frozenset()
        self._loop = loop
        self._on_up = on_up
        self._on_down = on_down
        self._on_received = on_received
        self._pipe: Any = None
        self._protocol = WorkerProtocol(self._owner)
        self._shutdowns = 0
        self._out: list[bytes] = []
        self._waiting: list[tuple[str, Mapping[str, object] | None, tuple[tuple[str, bytes], ...], Call]] = []
        self._reconnecting: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._timeouts = 0
        self._ping_due = 0.0
        self._heard = 0.0

    # -------------------------------------------------------------- connecting

    async def open(self) -> None:
        """Connect for the first time; errors are raised."""
        self._shutdowns = shutdowns()
        await self._connect()

    async def _connect(self) -> None:
        self._protocol = WorkerProtocol(self._owner)
        self._out.clear()
        if self.target.embedded:
            if self._shutdowns != shutdowns():
                raise ClosedError("the engine of this process was closed")
            pipe: Any = AsyncLocalPipe(self.target, self._loop, self._received, self._lost_local)
        else:
            try:
                pipe = await asyncio.wait_for(self._open_socket(), CONNECT_TIMEOUT_S)
            except (OSError, TimeoutError) as exc:
                raise refused_address(self.target, exc) from None
        self._pipe = pipe
        try:
            await asyncio.wait_for(self._greet(), CONNECT_TIMEOUT_S)
        except BaseException as exc:
            self._pipe = None
            pipe.close()
            if isinstance(exc, TimeoutError):
                raise ConnectionLost(f"{self.target} accepted the connection and says nothing") from None
            raise
        if self.closed:
            pipe.close()
            raise ClosedError("the worker was closed")
        self.up = True
        self._timeouts = 0
        self._heard = self._loop.time()
        self._ping_due = self._heard + PING_INTERVAL_S
        if self._watch is None:
            self._watch = self._loop.call_later(1.0, self._look_around)
        # What waited goes first: outcomes settle before the next pull is answered.
        waiting, self._waiting = self._waiting, []
        for command, fields, raw, call in waiting:
            self._put(command, fields, raw, call)
        self._on_up()
        self.flush()

    async def _open_socket(self) -> _Socket:
        target = self.target
        if target.kind == "unix":
            _, pipe = await self._loop.create_unix_connection(lambda: _Socket(self), target.path)
        elif target.tls is not None:
            _, pipe = await self._loop.create_connection(
                lambda: _Socket(self),
                target.host,
                target.port,
                ssl=target.tls.context(),
                server_hostname=server_name(target),
                ssl_handshake_timeout=CONNECT_TIMEOUT_S,
            )
        else:
            _, pipe = await self._loop.create_connection(lambda: _Socket(self), target.host, target.port)
        return pipe

    async def _greet(self) -> None:
        if self.target.token:
            reply = await self._ask("Auth", {"token": self.target.token})
            if not reply.get("ok"):
                raise AuthError(f"{self.target} refused the token")
        reply = await self._ask("Hello", {"protocolVersion": 3, "capabilities": list(CAPABILITIES)})
        if not reply.get("ok"):
            raise refused(reply, "Hello")
        listed = reply.get("capabilities")
        self.capabilities = frozenset(listed if isinstance(listed, list) else ())

    async def _ask(self, command: str, fields: Mapping[str, object]) -> dict[str, Any]:
        future: asyncio.Future[dict[str, Any]] = self._loop.create_future()

        def done(_: Any, reply: dict[str, Any] | None, error: Exception | None) -> None:
            if future.done():
                return
            if reply is None:
                future.set_exception(error or ConnectionLost("connection broke"))
            else:
                future.set_result(reply)

        self._put(command, fields, (), Call(done, None, command, self._loop.time() + CONNECT_TIMEOUT_S))
        self.flush()
        return await future

    async def _reconnect(self) -> None:
        pause = RETRY_FIRST_S
        while not self.closed:
            await asyncio.sleep(pause * (1 + 0.3 * random.random()))
            pause = min(pause * 2, RETRY_MOST_S)
            try:
                await self._connect()
            except (QError, OSError) as exc:
                self._on_down(exc)
                if isinstance(exc, (ClosedError, ForkedError)):
                    return
                continue
            self.reconnects += 1
            return

    # ----------------------------------------------------------------- sending

    def request(
        self,
        command: str,
        fields: Mapping[str, object] | None,
        handler: Handler,
        arg: Any = None,
        raw: tuple[tuple[str, bytes], ...] = (),
        timeout: float = COMMAND_TIMEOUT_S,
    ) -> None:
        """Queue one command for the next :meth:`flush`; ``handler(arg, reply, error)`` follows."""
        call = Call(handler, arg, command, self._loop.time() + timeout)
        if self.up:
            self._put(command, fields, raw, call)
        elif self.closed:
            self._loop.call_soon(handler, arg, None, ClosedError("the worker was closed"))
        else:
            self._waiting.append((command, fields, raw, call))

    def _put(
        self,
        command: str,
        fields: Mapping[str, object] | None,
        raw: tuple[tuple[str, bytes], ...],
        call: Call,
    ) -> None:
        self._out.append(self._protocol.request(command, fields, raw, call))

    def flush(self) -> None:
        """Write everything queued, in one piece."""
        out = self._out
        if out and self._pipe is not None:
            data = out[0] if len(out) == 1 else b"".join(out)
            out.clear()
            self._pipe.write(data)

    # --------------------------------------------------------------- receiving

    def _received(self, data: bytes) -> None:
        protocol = self._protocol
        try:
            replies = protocol.feed(data)
        except ProtocolError as exc:
            self._drop(exc)
            return
        self._timeouts = 0
        for call, reply in replies:
            if call is not None:
                call.handler(call.arg, reply, None)
        if self.up:
            self._on_received()
            self.flush()

    def _lost_local(self, exc: Exception | None) -> None:
        self._lost(self._pipe, exc)

    def _drop(self, exc: Exception) -> None:
        """Give the connection up and tell everybody, without waiting for the socket."""
        pipe = self._pipe
        if pipe is None:
            return
        self._lost(pipe, exc)
        (pipe.abort if isinstance(pipe, _Socket) else pipe.close)()

    def _lost(self, pipe: Any, exc: Exception | None) -> None:
        if pipe is not self._pipe:
            return
        self._pipe = None
        was_up, self.up = self.up, False
        self._out.clear()
        if pipe is not None and not isinstance(pipe, _Socket):
            pipe.close()
        error = ConnectionLost(
            f"connection to {self.target} broke: {exc or 'closed by the peer'}", maybe_applied=True
        )
        calls = list(self._protocol.pending.values())
        self._protocol.pending.clear()
        for call in calls:
            call.handler(call.arg, None, error)
        if self.closed or not was_up:
            return
        self._on_down(error)
        self._reconnecting = self._loop.create_task(self._reconnect())

    # ---------------------------------------------------------------- watching

    def _look_around(self) -> None:
        """Once a second: time out what is overdue, ping a quiet peer."""
        self._watch = None
        if self.closed:
            return
        now = self._loop.time()
        self._watch = self._loop.call_later(1.0, self._look_around)
        for entry in [e for e in self._waiting if e[3].deadline < now]:
            self._waiting.remove(entry)
            call = entry[3]
            call.handler(call.arg, None, CommandTimeout(f"{call.command}: no connection in time"))
        if not self.up:
            return
        pending = self._protocol.pending
        overdue = [(key, call) for key, call in pending.items() if call.deadline < now]
        if any(call.command == "PULLB" for _, call in overdue):
            # A late answer would bring jobs that nobody expects any more; closing
            # gives them back.
            self._drop(ConnectionLost("a pull had no reply long after its wait was over"))
            return
        for key, call in overdue:
            del pending[key]
            self._timeouts += 1
            call.handler(call.arg, None, CommandTimeout(f"{call.command}: no reply in time"))
        if self._timeouts >= MAX_TIMEOUTS:
            self._drop(ConnectionLost(f"{self._timeouts} commands in a row had no reply"))
            return
        if now >= self._ping_due:
            self._ping_due = now + PING_INTERVAL_S
            self._put("Ping", None, (), Call(_ignore, None, "Ping", now + PING_INTERVAL_S / 3))
        self.flush()

    def close(self) -> None:
        """Close for good; calls under way end with an error."""
        if self.closed:
            return
        self.flush()
        self.closed = True
        self.up = False
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._reconnecting is not None:
            self._reconnecting.cancel()
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.close()
        error = ClosedError("the worker was closed")
        calls = [*self._protocol.pending.values(), *(entry[3] for entry in self._waiting)]
        self._protocol.pending.clear()
        self._waiting.clear()
        for call in calls:
            call.handler(call.arg, None, error)


def _ignore(arg: Any, reply: dict[str, Any] | None, error: Exception | None) -> None:
    return None
