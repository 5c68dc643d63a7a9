"""Somebody who is told of events, and an engine of this process that tells it."""

from __future__ import annotations

import contextlib
import http.server
import ipaddress
import json
import queue
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

from broker_talk import Talk, frame, frames

from qcore.broker.embedded import EmbeddedEngine
from qcore.broker.webhooks import HookSettings

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)
PATIENCE_S = 30
EVERY = ["job.pushed", "job.started", "job.completed", "job.failed", "job.progress"]


class Ear:
    """A real HTTP server that notes what it is told, and answers as it is bidden."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.heard: queue.Queue[tuple[str, dict[str, str], bytes]] = queue.Queue()
        self.answers: queue.Queue[int] = queue.Queue()
        ear = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                # Noted before the answer: the next post, handled by another thread, comes after it.
                ear.heard.put((self.path, dict(self.headers), body))
                status = ear.answers.get_nowait() if not ear.answers.empty() else 200
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def next(self) -> tuple[str, dict[str, str], Any]:
        path, headers, body = self.heard.get(timeout=PATIENCE_S)
        return path, headers, json.loads(body)

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class Local:
    """A session of an engine of this process."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.session = engine.session()

    def good(self, cmd: str, **fields: object) -> Any:
        self.session.feed(frame({"cmd": cmd, **fields}))
        (reply,) = frames(self.session.take())
        assert reply["ok"] is True, reply
        return reply


def hook(talk: Local | Talk, ear: Ear, events: list[str] = EVERY, **more: object) -> str:
    url = f"http://127.0.0.1:{ear.port}/told?by=us"
    return str(talk.good("AddWebhook", url=url, events=events, **more)["data"]["webhookId"])


def wait_for(engine: EmbeddedEngine, n: int, hook_id: str | None = None) -> Any:
    """A hook, or the only one, as it is listed, once it was told ``n`` times in one way or another."""
    told = threading.Event()
    talk = Local(engine)

    def look() -> Any:
        listed = talk.good("ListWebhooks")["data"]["webhooks"]
        (shown,) = [one for one in listed if hook_id in (None, one["id"])]
        return shown

    for _ in range(PATIENCE_S * 100):
        shown = look()
        if shown["successCount"] + shown["failureCount"] >= n:
            return shown
        told.wait(0.01)
    raise AssertionError(f"told {shown}")


@contextlib.contextmanager
def telling(**settings: Any) -> Iterator[tuple[EmbeddedEngine, Local]]:
    """An engine that tells with these settings."""
    engine = EmbeddedEngine(None, hooks=HookSettings(allowed=LOOPBACK, **settings))
    try:
        yield engine, Local(engine)
    finally:
        engine.close()


class Silent:
    """Takes connections and says nothing, until it is closed."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE_S)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        self._taken: list[socket.socket] = []

    def take(self) -> socket.socket:
        """The next connection, once somebody posts over it."""
        taken, _ = self._listener.accept()
        self._taken.append(taken)
        taken.settimeout(PATIENCE_S)
        assert taken.recv(4) == b"POST"
        return taken

    def close(self) -> None:
        for sock in (*self._taken, self._listener):
            sock.close()
