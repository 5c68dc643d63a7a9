"""Telling hooks: a few threads that post, off every path that somebody waits for.

Best effort: what a hook was not told after its tries is gone, and what waits when the
process ends is, too. The connection is made to the very address that was checked, so
a name that resolves anew cannot lead elsewhere.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import heapq
import hmac
import http.client
import io
import ipaddress
import itertools
import json
import logging
import math
import queue
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from sys import getsizeof
from typing import Any, Literal
from urllib.parse import quote, unquote

import msgpack

from qcore.broker.core import Broker
from qcore.broker.lookups import Lookups
from qcore.broker.webhooks import HOOK_EVENTS, Hook, HookSettings, Network, Notice, forbidden, split_url
from qcore.errors import described

logger = logging.getLogger("qcore.webhooks")

_NAMES = {event: name for name, event in HOOK_EVENTS.items()}
_READ_BYTES = 65_536  # of an answer; its text is of no interest
_WRITE_BYTES = 65_536  # at once, between two looks at the time
#: A hook whose latest post took more than this part of its time is a slow one.
_SLOW_PART = 0.1
#: A hook may have so many times as many posts waiting as there is room left.
_ROOM_FACTOR = 9
#: Between two lines of the log about what was dropped.
_SAY_EVERY_S = 60.0


class _Refused(OSError):
    """The name leads, in time, to no address that may be told."""


def _said(error: OSError | http.client.HTTPException) -> str:
    """Why nothing was told, for the log: neither class names of ours nor what is in the URL."""
    if isinstance(error, _Refused):
        return str(error)
    if isinstance(error, ssl.SSLError):
        return f"no TLS: {error.reason or error}"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"no answer that is HTTP ({type(error).__name__})"


class _Timed:
    """What HTTP needs of a socket, with one deadline for all of it, however small the pieces come."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def heed(self) -> None:
        """Let the next call take no longer than what is left.

        :raises TimeoutError: nothing is
        """
        self._sock.settimeout(_left(self._deadline))

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            self.heed()
            view = view[self._sock.send(view[:_WRITE_BYTES]) :]

    def makefile(self, mode: Literal["rb"]) -> io.BufferedReader:
        return io.BufferedReader(_Answer(self, self._sock.makefile(mode, buffering=0)))

    def close(self) -> None:
        self._sock.close()


class _Answer(io.RawIOBase):
    """The bytes that come, within the deadline."""

    def __init__(self, timed: _Timed, raw: socket.SocketIO) -> None:
        self._timed = timed
        self._raw = raw

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._timed.heed()
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


class _Pinned(http.client.HTTPConnection):
    """A connection to an address that was resolved and checked just before."""

    def __init__(
        self,
        host: str,
        port: int,
        tls: bool,
        deadline: float,
        allowed: tuple[Network, ...],
        lookups: Lookups,
    ) -> None:
        super().__init__(host, port)
        self._tls = tls
        self._deadline = deadline
        self._allowed = allowed
        self._lookups = lookups

    def connect(self) -> None:
        error: OSError = _Refused("the name has no address")
        try:
            addresses = self._lookups.find(self.host, self._deadline)
        except TimeoutError:
            raise _Refused("the name could not be looked up in time") from None
        for family, kind, protocol, _, address in addresses:
            found = ipaddress.ip_address(str(address[0]).partition("%")[0])
            why = forbidden(found, self._allowed)
            if why is not None:
                error = _Refused(f"the name leads to a {why}")
                continue
            sock = socket.socket(family, kind, protocol)
            try:
                sock.settimeout(_left(self._deadline))
                sock.connect((address[0], self.port, *address[2:]))
                if self._tls:
                    context = ssl.create_default_context()
                    sock.settimeout(_left(self._deadline))  # of the whole handshake
                    sock = context.wrap_socket(sock, server_hostname=self.host)
            except OSError as failed:
                sock.close()
                error = failed
                continue
            self.sock = _Timed(sock, self._deadline)
            return
        raise error


@dataclass(slots=True)
class _Line:
    """What waits for one hook: its tries that may begin, how many posts are not over and what they hold."""

    ready: deque[tuple[int, Notice]] = field(default_factory=deque)
    n: int = 0
    n_bytes: int = 0
    busy: bool = False


class Poster:
    """Posts notices to hooks, each up to so many times, several at a time, but one at a time for each hook.

    Threads start as they are wanted. Hooks take turns; half of the threads are for those that
    answered quickly the last time, so slow ones cannot keep them all.

    :meth:`submit` may be called from any thread and never waits. When more notices or bytes wait
    than the settings allow, or more for one hook than its part, further ones are dropped: they are
    counted as failures of their hooks, and the log says once a minute how many there were.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._settings: HookSettings = broker.hooks.settings
        self._wanted = threading.Condition()
        self._lines: dict[str, _Line] = {}
        self._quick: deque[str] = deque()  # hooks whose turn comes
        self._slow: deque[str] = deque()
        self._later: list[tuple[float, int, int, Notice]] = []  # when, tie, try, what
        self._numbers = itertools.count()
        self._threads: set[threading.Thread] = set()
        self._n_idle = 0
        self._n_slow = 0  # posts to slow hooks that are under way
        self._closed = False
        self._given_up = False
        # A queue, whose put() a signal handler may call.
        self._news: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._dropped: dict[str, int] = {}
        self._unsaid = 0
        self._say_at = 0.0
        self._lookups = Lookups()
        self.n_waiting = 0  # or under way
        self.n_waiting_bytes = 0
        self.n_dropped = 0

    def submit(self, notices: Sequence[Notice]) -> None:
        """Take notices to be posted as soon as can be."""
        with self._wanted:
            if self._closed:
                self.n_dropped += len(notices)
                return
            for notice in notices:
                hook_id = notice[0]
                size = weight(notice)
                line = self._lines.get(hook_id)
                if not self._has_room(line, size):
                    self.n_dropped += 1
                    self._dropped[hook_id] = self._dropped.get(hook_id, 0) + 1
                    continue
                if line is None:
                    line = self._lines[hook_id] = _Line()
                line.n += 1
                line.n_bytes += size
                self.n_waiting += 1
                self.n_waiting_bytes += size
                self._ready(1, notice)
            self._staff()
            self._wanted.notify(len(notices))

    def hurry(self) -> None:
        """End the wait of :meth:`close`, also of one to come. May be called from a signal handler."""
        self._news.put(True)

    def close(self, wait_s: float = 2.0) -> None:
        """Post nothing more; posts that are under way get a moment to end."""
        with self._wanted:
            self._closed = True
            self._wanted.notify_all()
        until = time.monotonic() + wait_s
        with contextlib.suppress(queue.Empty):
            while self._threads and not self._given_up:
                self._given_up = self._news.get(timeout=max(0.0, until - time.monotonic()))
        self._given_up = True
        self._tell_dropped(last=True)

    # --- whose turn it is; all under the lock ---------------------------------------------

    def _has_room(self, line: _Line | None, size: int) -> bool:
        room = self._settings.max_waiting - self.n_waiting
        room_bytes = self._settings.max_waiting_bytes - self.n_waiting_bytes
        if room <= 0 or size > room_bytes:
            return False
        return line is None or (line.n < _ROOM_FACTOR * room and line.n_bytes <= _ROOM_FACTOR * room_bytes)

    def _ready(self, attempt: int, notice: Notice) -> None:
        line = self._lines[notice[0]]
        line.ready.append((attempt, notice))
        if not line.busy and len(line.ready) == 1:
            self._queue_up(notice[0])

    def _queue_up(self, hook_id: str) -> None:
        hook = self._broker.hooks.by_id.get(hook_id)
        (self._slow if hook is not None and hook.slow else self._quick).append(hook_id)

    def _turn(self) -> deque[str] | None:
        """The line of hooks whose first one may be told now."""
        while self._later and self._later[0][0] <= time.monotonic():
            _, _, attempt, notice = heapq.heappop(self._later)
            self._ready(attempt, notice)
        if self._slow and (self._n_slow == 0 or (not self._quick and self._n_slow < self._most_slow)):
            return self._slow
        return self._quick or None

    @property
    def _most_slow(self) -> int:
        return max(1, self._settings.max_posts // 2)

    def _staff(self) -> None:
        """Start threads for what can be posted, and one for what is tried again later."""
        n_slow = min(len(self._slow), self._most_slow - self._n_slow)
        n = len(self._quick) + n_slow + bool(self._later) + bool(self._dropped)
        while not self._closed and n > self._n_idle and len(self._threads) < self._settings.max_posts:
            thread = threading.Thread(target=self._run, name="qcore-webhooks", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system has no more; those that run go on
                return
            self._threads.add(thread)
            n -= 1

    # --- the threads ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait():
                self._tell_dropped()
                with self._wanted:
                    turn = self._turn()
                    if turn is None:
                        continue
                    hook_id = turn.popleft()
                    line = self._lines[hook_id]
                    attempt, notice = line.ready.popleft()
                    line.busy = True
                    slow = turn is self._slow
                    self._n_slow += slow
                again = False
                try:
                    again = self._tell(attempt, notice)
                finally:
                    self._over(line, attempt, notice, slow, again)
        finally:
            with self._wanted:
                self._threads.discard(threading.current_thread())
            self._news.put(False)

    def _wait(self) -> bool:
        """Wait until there is something to do; False at the end."""
        with self._wanted:
            while not self._closed:
                if self._turn() is not None or self._dropped:
                    return True
                wait_s = self._later[0][0] - time.monotonic() if self._later else None
                self._n_idle += 1
                self._wanted.wait(wait_s)
                self._n_idle -= 1
        return False

    def _over(self, line: _Line, attempt: int, notice: Notice, slow: bool, again: bool) -> None:
        with self._wanted:
            line.busy = False
            self._n_slow -= slow
            if again:
                due = time.monotonic() + attempt * self._settings.pause_ms / 1000
                heapq.heappush(self._later, (due, next(self._numbers), attempt + 1, notice))
                self._wanted.notify()
            else:
                size = weight(notice)
                line.n -= 1
                line.n_bytes -= size
                self.n_waiting -= 1
                self.n_waiting_bytes -= size
            if line.ready:
                self._queue_up(notice[0])
            elif not line.n:
                del self._lines[notice[0]]
            self._staff()

    def _tell(self, attempt: int, notice: Notice) -> bool:
        """One try; whether there is to be another."""
        hook = self._broker.hooks.by_id.get(notice[0])
        if hook is None or not hook.enabled:
            return False
        begun = time.monotonic()
        tries = self._settings.tries
        try:
            status, good = self._post(hook, notice)
        except (OSError, http.client.HTTPException) as error:
            status, good = _said(error)[:200], False
        except Exception as fault:  # what we cannot do at all must not end the thread
            logger.error("webhook %s: a fault of ours: %s", hook.id, described(fault))
            status, good, tries = "a fault of the server", False, 0
        hook.slow = time.monotonic() - begun > self._settings.timeout_ms / 1000 * _SLOW_PART
        if not good and attempt < tries:
            return True
        if not good:
            logger.warning("webhook %s was not told of a %s: %s", hook.id, notice[1], status)
        if not self._given_up:
            self._broker.hook_told(hook.id, good, status)
        return False

    def _tell_dropped(self, last: bool = False) -> None:
        """Count what was dropped, and let the log say it once a minute."""
        with self._wanted:
            dropped, self._dropped = self._dropped, {}
            self._unsaid += sum(dropped.values())
            n = 0
            if self._unsaid and (last or time.monotonic() >= self._say_at):
                n, self._unsaid = self._unsaid, 0
                self._say_at = time.monotonic() + _SAY_EVERY_S
        # Said before it counts: who sees the count, and stops the process, finds the line.
        if n:
            logger.warning("events that webhooks were not told of because too many posts wait: %d", n)
        for hook_id, times in dropped.items():
            self._broker.hook_told(hook_id, False, "not posted: too many posts wait", times)

    def _post(self, hook: Hook, notice: Notice) -> tuple[str, bool]:
        body = encoded(notice)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "qcore",
            "X-Webhook-Event": _NAMES[notice[1]],
            "X-Webhook-Timestamp": str(notice[4]),
        }
        if hook.secret:
            headers["X-Webhook-Signature"] = hmac.new(hook.secret.encode(), body, hashlib.sha256).hexdigest()
        parts = split_url(hook.url)
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode('ascii')}"
        tls = parts.scheme == "https"
        host = parts.hostname or ""
        if ":" not in host:
            host = host.encode("idna").decode()
        connection = _Pinned(
            host,
            parts.port or (443 if tls else 80),
            tls,
            time.monotonic() + self._settings.timeout_ms / 1000,
            self._settings.allowed,
            self._lookups,
        )
        with contextlib.closing(connection):
            path = quote(parts.path or "/", safe="/%:=&~+!$,;'@()*")
            query = f"?{quote(parts.query, safe='/%:=&?~+!$,;@()*')}" if parts.query else ""
            connection.request("POST", path + query, body, headers)
            response = connection.getresponse()
            response.read(_READ_BYTES)
            return str(response.status), 200 <= response.status < 300


def weight(notice: Notice) -> int:
    """Bytes that a notice that waits keeps in memory, in all that is not of a small and constant size."""
    data = notice[5]
    return sum(getsizeof(part) for part in data) if isinstance(data, tuple) else 0


def encoded(notice: Notice) -> bytes:
    """The JSON text of a notice. Binary values are base64 texts; what JSON has no word for is null."""
    _, kind, queue, job_id, at_ms, data = notice
    out: dict[str, Any] = {"event": _NAMES[kind], "timestamp": at_ms, "jobId": job_id, "queue": queue}
    if kind == "completed" and data is not None:
        out["data"] = _opened(data[0])
    elif kind == "failed":
        if data[0] is not None:
            out["error"] = data[0]
        out["terminal"] = True
        if len(data) == 4:
            out["terminal"] = data[1] is not False
            if data[2] is not None:
                out["data"] = _opened(data[2])
    elif kind == "progress":
        out["progress"] = data[0]
        out["data"] = {"progress": data[0], "message": data[1]}
    return json.dumps(out, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


def _opened(packed: bytes) -> Any:
    # Timestamps as they are: not each of them is a date.
    return _plain(
        msgpack.unpackb(packed, strict_map_key=False, ext_hook=lambda code, data: None, timestamp=0)
    )


def _plain(value: Any) -> Any:
    """The value as JSON can have it, changed in place. Without recursion, for which some nest too deep."""
    root = [value]
    found: list[Any] = [root]
    while found:
        holder = found.pop()
        pairs: Iterable[tuple[Any, Any]]
        if isinstance(holder, dict):
            pairs = [(key if isinstance(key, str) else str(key), one) for key, one in holder.items()]
            holder.clear()
        else:
            pairs = enumerate(holder)
        for key, one in pairs:
            if isinstance(one, list | dict):
                found.append(one)
                holder[key] = one
            else:
                holder[key] = _plain_scalar(one)
    return root[0]


def _plain_scalar(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, msgpack.Timestamp):
        try:
            return value.to_datetime().isoformat()
        except (ValueError, OverflowError):
            return None
    return value
