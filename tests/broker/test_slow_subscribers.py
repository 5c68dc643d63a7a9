"""Case C035: a real server and subscribers of every temper."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from qcore.wire.packing import unpack
from tests.server.conftest import Line, Running, until

PATIENCE_S = 120.0
LIMIT_MIB = 4
#: The bound is looked at when a turn has been written, so that its events may be on top.
TURN_MIB = 0.5
N_SLOW = 8
JOBS = 200_000
WARM = 60_000
ROUND = 500
#: 4 MiB, and what the systems hold of a connection, are the events of so many of the jobs.
SHARE = 0.25
EVENTS = ("pushed", "pulled", "progress", "completed")


@pytest.fixture
def server() -> Iterator[Running]:
    server = Running(TCP_MAX_WRITE_QUEUE_BYTES=str(LIMIT_MIB << 20))
    yield server
    server.close()


class Listener(threading.Thread):
    """Reads every event of a queue."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self.line = line
        self.heard: list[str] = []
        self.awaited = 0
        self.there = threading.Event()

    def run(self) -> None:
        buffer = b""
        with contextlib.suppress(OSError):  # the end of the server, or of the test
            while piece := self.line.sock.recv(1 << 18):
                buffer = self._take(buffer + piece)
                if len(self.heard) >= self.awaited:
                    self.there.set()

    def _take(self, buffer: bytes) -> bytes:
        at = 0
        while len(buffer) - at >= 4:
            end = at + 4 + int.from_bytes(buffer[at : at + 4], "big")
            if end > len(buffer):
                break
            event = unpack(buffer[at + 4 : end])["event"]
            self.heard.append(f"{event['eventType']} {event['jobId']}")
            at = end
        return buffer[at:]

    def wait_for(self, n: int) -> None:
        self.there.clear()
        self.awaited = n
        assert len(self.heard) >= n or self.there.wait(PATIENCE_S)


def rounds(producer: Line, n: int) -> Iterator[list[str]]:
    """Let jobs pass, each with progress; what is to be heard of them, round by round."""
    for start in range(0, n, ROUND):
        ids = [f"job-{start + i}" for i in range(ROUND)]
        jobs = [{"name": "n", "customId": job_id, "removeOnComplete": True} for job_id in ids]
        assert producer.ask(cmd="PUSHB", queue="q", jobs=jobs)["ok"]
        assert len(producer.ask(cmd="PULLB", queue="q", count=ROUND)["jobs"]) == ROUND
        producer.send(*(producer.frame(cmd="Progress", id=job_id, progress=50) for job_id in ids))
        for _ in ids:
            assert producer.receive()["ok"]
        assert producer.ask(cmd="ACKB", ids=ids)["ok"]
        yield [f"{event} {job_id}" for event in EVENTS for job_id in ids]


def test_c035_who_never_reads_is_cut_off_and_the_others_get_everything(server: Running) -> None:
    with contextlib.ExitStack() as stack:

        def line(**how: Any) -> Line:
            one = server.connect(**how)
            stack.callback(one.close)
            return one

        good, producer = line(), line()
        assert good.ask(cmd="SubscribeEvents", queue="q")["ok"]
        good.sock.settimeout(PATIENCE_S)
        listener = Listener(good)
        listener.start()
        expected: list[str] = []
        # Warm, with one who listens: what remembers past jobs is nearly full.
        for heard in rounds(producer, WARM):
            expected += heard
            listener.wait_for(len(expected))
        descriptors = server.descriptors()
        base_mib = most_mib = server.resident_mib()
        slow = [line(receive_buffer=4096) for _ in range(N_SLOW)]
        for one in slow:
            assert one.ask(cmd="SubscribeEvents", queue="q")["ok"]
        with_slow = 0
        for heard in rounds(producer, JOBS):
            expected += heard
            listener.wait_for(len(expected))
            most_mib = max(most_mib, server.resident_mib())
            with_slow += ROUND * (server.descriptors() != descriptors)
        # After a share of the work that their bound sets they are gone, and the rest is as without them.
        assert with_slow <= SHARE * JOBS
        assert listener.heard == expected
        assert most_mib < base_mib + N_SLOW * (LIMIT_MIB + TURN_MIB)
        until(lambda: server.descriptors() == descriptors)  # those who read nothing are cut off
        for one in slow:
            assert len(one.rest()) < (LIMIT_MIB + 8) << 20  # what the systems still had, and then the end
        assert producer.ask(cmd="Ping")["ok"]
        server.kill()  # and the events end
        listener.join(PATIENCE_S)
        assert not listener.is_alive()
