"""A real server and subscribers of every temper."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from broker_talk import frame, frames

from qcore.server.loop import Server
from qcore.server.options import Options

PATIENCE_S = 60
LIMIT = 200_000
JOBS = 20_000


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(Options(port=0, max_write_queue_bytes=LIMIT))
    server.listen()
    thread = threading.Thread(target=server.run)
    thread.start()
    yield server
    server.stop()
    server.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


class Line:
    def __init__(self, server: Server, *, small: bool = False) -> None:
        self.sock = socket.socket()
        if small:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(server.address)
        self.buffer = b""

    def more(self) -> list[Any]:
        data = self.sock.recv(1 << 16)
        if not data:
            raise EOFError
        self.buffer += data
        whole = 0
        while len(self.buffer) - whole >= 4:
            n = 4 + int.from_bytes(self.buffer[whole : whole + 4], "big")
            if len(self.buffer) - whole < n:
                break
            whole += n
        got, self.buffer = frames(self.buffer[:whole]), self.buffer[whole:]
        return got

    def ask(self, **request: object) -> Any:
        self.sock.sendall(frame(request))
        while not (got := self.more()):
            pass
        (reply,) = got
        assert reply["ok"] is True
        return reply


def test_c035_who_never_reads_is_cut_off_and_the_others_get_everything(server: Server) -> None:
    with contextlib.ExitStack() as stack:

        def line(**how: bool) -> Line:
            one = Line(server, **how)
            stack.callback(one.sock.close)
            return one

        good, producer, slow = line(), line(), [line(small=True) for _ in range(8)]
        for one in (good, *slow):
            one.ask(cmd="SubscribeEvents", queue="q")
        heard: list[str] = []

        def listen() -> None:
            while len(heard) < 3 * JOBS:
                for message in good.more():
                    event = message["event"]
                    heard.append(event["eventType"] + " " + event["jobId"])

        ear = threading.Thread(target=listen)
        ear.start()
        expected = []
        for start in range(0, JOBS, 500):
            ids = [f"job-{start + i}" for i in range(500)]
            jobs = [{"name": "n", "customId": job_id} for job_id in ids]
            producer.ask(cmd="PUSHB", queue="q", jobs=jobs)
            producer.ask(cmd="PULLB", queue="q", count=1)
            expected += [f"pushed {job_id}" for job_id in ids]
            producer.sock.sendall(frame({"cmd": "PULLB", "queue": "q", "count": 499}))
            while not producer.more():
                pass
            expected += [f"pulled {job_id}" for job_id in ids]
            producer.ask(cmd="ACKB", ids=ids)
            expected += [f"completed {job_id}" for job_id in ids]
        ear.join(PATIENCE_S)
        assert heard == expected
        for one in slow:
            with pytest.raises((EOFError, ConnectionResetError)):
                list(iter(one.more, None))  # to the end
        assert server.broker.engine.queue("q").event_mask  # type: ignore[union-attr]
        good.ask(cmd="UnsubscribeEvents")
        assert server.broker.engine.queue("q").event_mask == 0  # type: ignore[union-attr]
