"""Case C033: the rows of ``tests/data/frames_bad.json``, sent to a server and to a client."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest

from qclient.client import Client
from qclient.url import resolve
from qcore.errors import CommandError, CommandTimeout, ProtocolError, QError
from tests.server.conftest import until

Start = Callable[..., Any]
Row = dict[str, str]

ROWS: list[Row] = json.loads((Path(__file__).parents[1] / "data" / "frames_bad.json").read_text())["frames"]
DEADLINE_MS = 1000
#: Settings under which every row has its end within a test.
SHORT = {"TCP_IDLE_TIMEOUT_MS": str(DEADLINE_MS)}


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def bytes_of(row: Row) -> bytes:
    if not row["hex"].startswith("generate"):
        return bytes.fromhex(row["hex"])
    if row["id"] == "bomb_nest":
        return framed(b"\x91" * 100_000)
    assert row["id"] == "cmd_long"
    return framed(msgpack.packb({"cmd": "x" * 100_000, "reqId": "1"}))


class Player:
    """Plays rows to a server. Those that end by a time limit are looked at in the end."""

    def __init__(self, server: Any, pause_s: float = 0.0) -> None:
        self.server = server
        self.pause_s = pause_s
        self.silent: list[Any] = []

    def play(self, row: Row) -> None:
        line = self.server.connect()
        line.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._write(line, row)
        expect = row["expect"]
        if row["send"] == "write, then silence":
            self.silent.append(line)
        elif row["send"] == "write, then close":
            line.close()
        elif "the server closes this connection" in expect:
            self._closes(line)
        else:
            self._answers(line, row)
            line.close()
        fresh = self.server.connect()
        assert fresh.ask(cmd="Ping", reqId="f")["reqId"] == "f"
        if "queue stays empty" in expect:
            assert sum(fresh.ask(cmd="GetJobCounts", queue="q")["counts"].values()) == 0
        fresh.close()

    def _write(self, line: Any, row: Row) -> None:
        data = bytes_of(row)
        if row["send"].startswith("one byte per write"):
            for i in range(len(data)):
                line.send(data[i : i + 1])
                time.sleep(self.pause_s / 40)  # so that each is a segment of its own
        elif row["send"].startswith("2 bytes, pause"):
            line.send(data[:2])
            time.sleep(self.pause_s)
            line.send(data[2:])
        else:
            line.send(data)

    def _closes(self, line: Any) -> None:
        with contextlib.suppress(ConnectionError):  # it may be closed before it is read
            out = line.rest()
            if out:
                assert msgpack.unpackb(out[4:])["ok"] is False
        line.close()

    def _answers(self, line: Any, row: Row) -> None:
        expect = row["expect"]
        if expect.startswith("two replies"):
            replies = [line.receive(), line.receive()]
            assert [reply["ok"] for reply in replies] == [True, True]
            assert [reply["reqId"] for reply in replies] == (
                ["9", "9"] if row["id"] == "reqid_dup" else ["1", "2"]
            )
        else:
            reply = line.receive()
            assert isinstance(reply["ok"], bool)
            if expect.startswith("one reply"):
                assert reply["ok"]
                assert ("reqId" in reply) == ("without reqId" not in expect)
            elif expect.startswith("error reply"):
                assert not reply["ok"], reply
                assert len(reply["error"]) < 300
            elif row["id"] == "dup_key":
                assert reply["error"] == "Queue name is required"  # the later one counts
        assert line.ask(cmd="Ping", reqId="after")["reqId"] == "after"

    def end(self) -> None:
        for line in self.silent:
            assert line.rest() == b""
            line.close()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_each_row_alone(alone: Any, row: Row) -> None:
    player = Player(alone, pause_s=0.2)
    player.play(row)
    player.end()


@pytest.fixture(scope="module")
def alone() -> Any:
    from tests.server.conftest import Running

    server = Running(**SHORT)
    yield server
    said = server.said()
    server.close()
    assert said == ""


def test_all_in_order_and_in_twenty_random_orders(start: Start) -> None:
    server = start(TCP_IDLE_TIMEOUT_MS="300")
    keeper = server.connect()  # never idle in a frame: it must outlive all of this
    assert keeper.ask(cmd="Ping")["ok"]
    before_mib, before = server.resident_mib(), server.descriptors()
    orders = [ROWS, *[random.Random(seed).sample(ROWS, len(ROWS)) for seed in range(20)]]
    for i, rows in enumerate(orders):
        player = Player(server, pause_s=0.03 if i == 0 else 0.01)
        for row in rows:
            player.play(row)
        player.end()
    assert keeper.ask(cmd="Ping")["ok"]
    assert server.resident_mib() - before_mib < 16
    until(lambda: server.descriptors() <= before)
    assert server.said() == ""
    keeper.close()


def test_a_thousand_halves_leave_nothing(start: Start) -> None:
    server = start()
    before = server.descriptors()
    half = bytes_of(next(row for row in ROWS if row["id"] == "half_then_close"))
    for n in (50, 1000):
        for _ in range(n):
            with socket.create_connection(("127.0.0.1", server.port)) as sock:
                sock.sendall(half)
        line = server.connect()
        assert line.ask(cmd="Ping")["ok"]  # all were accepted before it
        line.close()
        until(lambda: server.descriptors() == before)
        if n == 50:
            before_mib = server.resident_mib()
    assert server.resident_mib() - before_mib < 4


# --- the same bytes, sent by a server to our client ------------------------------------------


class FakeServer:
    """Answers every connection's first request with given bytes, until it is told to behave."""

    def __init__(self, answer: bytes) -> None:
        self.answer: bytes | None = answer
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.socks: list[socket.socket] = []
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self.listener.accept()
                self.socks.append(sock)
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        buffer = b""
        with contextlib.suppress(OSError):
            while piece := sock.recv(65_536):
                buffer += piece
                while len(buffer) >= 4 and len(buffer) >= 4 + (n := int.from_bytes(buffer[:4], "big")):
                    request = msgpack.unpackb(buffer[4 : 4 + n])
                    buffer = buffer[4 + n :]
                    if self.answer is not None:
                        sock.sendall(self.answer)
                    else:
                        reply = {
                            "ok": True,
                            "reqId": request["reqId"],
                            "capabilities": [],
                            "data": {"time": 1},
                        }
                        sock.sendall(framed(msgpack.packb(reply)))

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()
        for sock in self.socks:
            sock.close()


#: What is no answer to the request: parts of frames, and frames with the id of another.
UNANSWERED = ("half_then_close", "half_then_idle", "reqid_dup", "reqid_map")


def error_of(row: Row) -> type[QError]:
    """What a client makes of a row that comes as the answer to its first request."""
    if row["id"] in UNANSWERED:
        return CommandTimeout
    data = bytes_of(row)
    try:
        first = msgpack.unpackb(data[4 : 4 + int.from_bytes(data[:4], "big")], strict_map_key=False)
    except ValueError:
        return ProtocolError
    # A map with the id of the request, and without ok: it is refused.
    return CommandError if isinstance(first, dict) and first.get("reqId") == "1" else ProtocolError


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_a_client_raises_one_named_error_and_goes_on(row: Row) -> None:
    fake = FakeServer(bytes_of(row))
    client = Client(resolve(f"tcp://127.0.0.1:{fake.port}"), connect_timeout=0.2)
    try:
        with pytest.raises(QError) as raised:
            client.call("Ping", timeout=0.4)
        assert type(raised.value) is error_of(row)
        assert len(str(raised.value)) < 200
        fake.answer = None
        assert client.call("Ping", timeout=20)["data"] == {"time": 1}
    finally:
        client.close()
        fake.close()
