"""Telling hooks: one thread that posts, off every path that somebody waits for.

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
import ipaddress
import itertools
import json
import logging
import math
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, unquote

import msgpack

from qcore.broker.core import Broker
from qcore.broker.webhooks import HOOK_EVENTS, Hook, HookSettings, Network, Notice, forbidden, split_url

logger = logging.getLogger("qcore.webhooks")

_NAMES = {event: name for name, event in HOOK_EVENTS.items()}
_READ_BYTES = 65_536  # of an answer; its text is of no interest


class _Refused(OSError):
    """The name leads to no address that may be told."""


def _said(error: Exception) -> str:
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


class _Pinned(http.client.HTTPConnection):
    """A connection to an address that was resolved and checked just before."""

    def __init__(self, host: str, port: int, tls: bool, timeout: float, allowed: tuple[Network, ...]) -> None:
        super().__init__(host, port, timeout=timeout)
        self._tls = tls
        self._allowed = allowed

    def connect(self) -> None:
        error: OSError = _Refused("the name has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(
            self.host, self.port, type=socket.SOCK_STREAM
        ):
            found = ipaddress.ip_address(str(address[0]).partition("%")[0])
            why = forbidden(found, self._allowed)
            if why is not None:
                error = _Refused(f"the name leads to a {why}")
                continue
            sock = socket.socket(family, kind, protocol)
            try:
                sock.settimeout(self.timeout)
                sock.connect(address)
                if self._tls:
                    context = ssl.create_default_context()
                    sock = context.wrap_socket(sock, server_hostname=self.host)
            except OSError as failed:
                sock.close()
                error = failed
                continue
            self.sock = sock
            return
        raise error


class Poster:
    """Posts notices to hooks, each up to so many times. The thread starts with the first one.

    :meth:`submit` may be called from any thread and never waits. When more notices wait than
    the settings allow, further ones are dropped and counted as failures.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._settings: HookSettings = broker.hooks.settings
        self._wanted = threading.Condition()
        self._due: list[tuple[float, int, int, Notice]] = []  # when, tie, try, what
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.n_dropped = 0

    def submit(self, notices: Sequence[Notice]) -> None:
        """Take notices to be posted as soon as can be."""
        with self._wanted:
            for notice in notices:
                if self._closed or len(self._due) >= self._settings.max_waiting:
                    self.n_dropped += 1
                    continue
                heapq.heappush(self._due, (0.0, next(self._numbers), 1, notice))
            if self._due and self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="qcore-webhooks", daemon=True)
                self._thread.start()
            self._wanted.notify()

    def close(self, wait_s: float = 2.0) -> None:
        """Post nothing more; a post that is under way gets a moment to end."""
        with self._wanted:
            self._closed = True
            self._wanted.notify()
        if self._thread is not None:
            self._thread.join(wait_s)

    def _next(self) -> tuple[int, Notice] | None:
        with self._wanted:
            while not self._closed:
                if not self._due:
                    self._wanted.wait()
                    continue
                wait = self._due[0][0] - time.monotonic()
                if wait <= 0:
                    _, _, attempt, notice = heapq.heappop(self._due)
                    return attempt, notice
                self._wanted.wait(wait)
        return None

    def _run(self) -> None:
        while (found := self._next()) is not None:
            attempt, notice = found
            hook = self._broker.hooks.by_id.get(notice[0])
            if hook is None or not hook.enabled:
                continue
            try:
                status, good = self._post(hook, notice)
            except Exception as error:  # whatever a peer does must not end the thread
                status, good = _said(error)[:200], False
            if not good and attempt < self._settings.tries:
                due = time.monotonic() + attempt * self._settings.pause_ms / 1000
                with self._wanted:
                    heapq.heappush(self._due, (due, next(self._numbers), attempt + 1, notice))
                continue
            if not good:
                logger.warning("webhook %s was not told of a %s: %s", hook.id, notice[1], status)
            self._broker.hook_told(hook.id, good, status)

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
            self._settings.timeout_ms / 1000,
            self._settings.allowed,
        )
        with contextlib.closing(connection):
            path = quote(parts.path or "/", safe="/%:=&~+!$,;'@()*")
            query = f"?{quote(parts.query, safe='/%:=&?~+!$,;@()*')}" if parts.query else ""
            connection.request("POST", path + query, body, headers)
            response = connection.getresponse()
            response.read(_READ_BYTES)
            return str(response.status), 200 <= response.status < 300


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
    return _plain(
        msgpack.unpackb(packed, strict_map_key=False, ext_hook=lambda code, data: None, timestamp=3)
    )


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value.isoformat()  # a timestamp
