"""Peers that are broken, slow, many, gone or greedy: what each may cost, and nobody pays for another."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import pytest

from tests.server.conftest import until

Start = Callable[..., Any]

LIMIT = 1 << 20  # unsent bytes of a connection, where a test sets it
RESET = struct.pack("ii", 1, 0)
SO_ATTACH_FILTER = 26


@contextlib.contextmanager
def descriptors(wanted: int) -> Iterator[int]:
    """Raise the limit of open files, for the servers started meanwhile as well; what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    try:
        yield max(soft, most)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def unpacked(out: bytes) -> list[dict[str, Any]]:
    """The whole replies in what came."""
    replies = []
    while len(out) >= 4 and len(out) >= 4 + (n := int.from_bytes(out[:4], "big")):
        replies.append(msgpack.unpackb(out[4 : 4 + n]))
        out = out[4 + n :]
    return replies


def works(server: Any) -> None:
    line = server.connect()
    assert line.ask(cmd="Ping")["ok"]
    line.close()


def reset(line: Any) -> None:
    """Close at once, as a peer that is killed with unread data does."""
    line.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    line.close()


# --- many -------------------------------------------------------------------------------------


def test_ten_thousand_idle_connections(start: Start, record_property: Callable[[str, object], None]) -> None:
    with descriptors(10_300) as most:
        n = min(10_000, most - 300)
        if n < 10_000:
            print(f"only {n} connections: the hard limit of open files is {most}")
        server = start()
        works(server)
        before_mib, before = server.resident_mib(), server.descriptors()
        socks = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(n)]
        try:
            works(server)
            assert server.descriptors() >= before + n - 1
            each = (server.resident_mib() - before_mib) * 2**20 / n
            record_property("bytes_per_connection", round(each))
            assert each < 16_384
            # They are of use: each of some is served.
            for sock in socks[:: n // 50]:
                sock.settimeout(30)
                sock.sendall(struct.pack(">I", 10) + b"\x81\xa3cmd\xa4Ping")
                assert sock.recv(100)
        finally:
            for sock in socks:
                sock.close()
        until(lambda: server.descriptors() <= before)
        works(server)


def test_connections_beyond_the_open_files_wait_for_their_turn(start: Start) -> None:
    server = start()
    works(server)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (server.descriptors() + 20, 1024))
    lines = [server.connect() for _ in range(40)]
    for line in lines:
        line.send(line.frame(cmd="Ping"))
    assert [line.receive()["ok"] for line in lines[:15]] == [True] * 15
    until(lambda: "cannot accept a connection" in server.said())
    assert lines[0].ask(cmd="Ping")["ok"]
    for line in lines[:25]:
        line.close()
    assert [line.receive()["ok"] for line in lines[25:]] == [True] * 15
    for line in lines[25:]:
        line.close()
    works(server)


def test_a_thousand_long_polls_do_not_block_a_ping(start: Start) -> None:
    server = start()
    line, other = server.connect(), server.connect()
    job_id = other.ask(cmd="PUSH", queue="held", name="n")["id"]
    token = line.ask(cmd="PULL", queue="held", owner="w")["token"]
    polls = [line.frame(cmd="PULL", queue=f"q{n % 7}", timeout=60_000, reqId=f"p{n}") for n in range(1000)]
    polls += [line.frame(cmd="WaitJob", id=job_id, timeout=600_000, reqId=f"w{n}") for n in range(100)]
    line.send(*polls, line.frame(cmd="Ping", reqId="ping"))
    assert line.receive()["reqId"] == "ping"
    assert line.ask(cmd="JobHeartbeatB", ids=[job_id], tokens=[token], reqId="beat")["data"]["count"] == 1
    # Nor do they block an acknowledgement, which ends some of them.
    line.send(line.frame(cmd="ACK", id=job_id, token=token, result=1, reqId="ack"))
    got = [line.receive()["reqId"] for _ in range(101)]
    assert set(got) == {"ack", *(f"w{n}" for n in range(100))}
    # The polls are there: each gets a job in its turn.
    for n in range(10):
        other.ask(cmd="PUSH", queue=f"q{n % 7}", name="n")
        assert line.receive()["reqId"] == f"p{n}"
    line.close()
    other.close()


def test_waiting_requests_of_a_connection_are_bounded(start: Start) -> None:
    server = start(QCORE_MAX_WAITS="50")
    line, other = server.connect(), server.connect()
    job_id = other.ask(cmd="PUSH", queue="held", name="n")["id"]
    line.send(*[line.frame(cmd="PULL", queue="q", timeout=60_000, reqId=f"p{n}") for n in range(51)])
    refused = line.receive()
    assert (refused["ok"], refused["reqId"]) == (False, "p50")
    assert refused["error"] == "Too many requests of this connection wait: at most 50 may"
    assert line.ask(cmd="WaitJob", id=job_id)["error"] == refused["error"]
    # What does not wait is served, and so is everybody else; one that ends makes room.
    assert line.ask(cmd="PULL", queue="held")["job"]["id"] == job_id
    assert line.ask(cmd="Ping")["ok"]
    other.send(other.frame(cmd="PULL", queue="q", timeout=60_000))
    other.send(other.frame(cmd="PUSH", queue="q", name="n"))
    assert line.receive()["reqId"] == "p0"
    assert other.receive()["ok"]
    line.send(line.frame(cmd="PULL", queue="q", timeout=60_000, reqId="late"))
    assert line.ask(cmd="PULL", queue="q", timeout=60_000)["error"] == refused["error"]
    line.close()
    other.close()


def test_a_storm_of_reconnects_leaves_nothing(start: Start) -> None:
    """Workers that register, take a job, wait for more and are gone, a thousand times over."""
    server = start()
    keeper = server.connect()
    keeper.ask(cmd="PUSHB", queue="q", jobs=[{"name": "n", "data": n} for n in range(20)])

    def life(n: int) -> Any:
        line = server.connect()
        line.send(
            line.frame(cmd="Hello", protocolVersion=3),
            line.frame(cmd="RegisterWorker", name="w", queues=["q"], workerId=f"w{n}"),
            line.frame(cmd="SubscribeEvents", queue="q"),
            line.frame(cmd="PULL", queue="q", owner="w", lockTtl=600_000),
            line.frame(cmd="PULL", queue="q2", owner="w", timeout=60_000),
            line.frame(cmd="PUSH", queue="q")[:9],
        )
        return line

    before = server.descriptors()
    for rounds in (5, 45):
        for _ in range(rounds):
            lines = [life(n) for n in range(20)]
            assert keeper.ask(cmd="Ping")["ok"]
            for n, line in enumerate(lines):
                reset(line) if n % 2 else line.close()
        until(lambda: server.descriptors() == before)
        until(lambda: keeper.ask(cmd="GetJobCounts", queue="q")["counts"]["active"] == 0)
        if rounds == 5:
            before_mib = server.resident_mib()
    counts = keeper.ask(cmd="GetJobCounts", queue="q")["counts"]
    assert counts["waiting"] + counts["failed"] == 20
    assert keeper.ask(cmd="ListWorkers")["data"]["workers"] == []
    assert server.resident_mib() - before_mib < 8
    assert server.said() == ""
    keeper.close()


# --- slow -------------------------------------------------------------------------------------


def test_a_frame_in_drips_is_cut_at_its_deadline(start: Start) -> None:
    """It runs from the first byte; that more come now and then changes nothing."""
    server = start(TCP_IDLE_TIMEOUT_MS="300")
    line, idle, busy = server.connect(), server.connect(), server.connect()
    assert idle.ask(cmd="Ping")["ok"]
    sent = 0
    with contextlib.suppress(ConnectionError, TimeoutError):
        line.send(struct.pack(">I", 1000))
        line.sock.settimeout(0.05)
        for _ in range(900):
            line.send(b"x")
            sent += 1
            with contextlib.suppress(TimeoutError):  # the pace of the drips
                if not line.sock.recv(1):
                    break
            assert busy.ask(cmd="Ping")["ok"]
    assert sent < 100
    # Who is between two frames may be silent for as long as it likes.
    assert idle.ask(cmd="Ping")["ok"]
    for one in (line, idle, busy):
        one.close()


def test_who_asks_for_lists_and_reads_nothing_costs_a_bounded_amount(start: Start) -> None:
    """Case C035: 10,000 list requests, of which each answer has 100 KB, on each of 8 connections."""
    server = start(TCP_MAX_WRITE_QUEUE_BYTES=str(LIMIT))
    good = server.connect()
    jobs = [{"name": "n", "data": bytes(900)} for _ in range(60)]
    good.ask(cmd="PUSHB", queue="q", jobs=jobs)
    assert len(good.ask(cmd="GetJobs", queue="q")["jobs"]) == 60
    before = server.resident_mib()
    lines = [server.connect(receive_buffer=4096) for _ in range(8)]
    for line in lines:
        line.sock.settimeout(0.2)
        with contextlib.suppress(TimeoutError, ConnectionError):
            line.send(line.frame(cmd="GetJobs", queue="q") * 10_000)
        assert good.ask(cmd="Ping")["ok"]
    # A request of each may run at the bound, and its reply is then in two places.
    assert server.resident_mib() - before < 8 * (8 + 2)
    for line in lines:
        # Cut off: what it had is there, and then comes the end.
        line.sock.settimeout(30)
        assert len(line.rest()) < 32 << 20
        line.close()
    assert good.ask(cmd="Ping")["ok"]
    good.close()


def test_what_was_never_read_goes_with_its_connection(start: Start) -> None:
    """At once, not with the next collection of cycles, which a server that allocates little rarely makes."""
    server = start()
    good = server.connect()
    good.ask(cmd="PUSHB", queue="q", jobs=[{"name": "n", "data": bytes(100_000)} for _ in range(60)])
    assert len(good.ask(cmd="GetJobs", queue="q")["jobs"]) == 60
    before, descriptors = server.resident_mib(), server.descriptors()
    for _ in range(40):
        line = server.connect(receive_buffer=4096)
        line.send(line.frame(cmd="GetJobs", queue="q"))
        assert line.sock.recv(1)  # it is on its way, 6 MB of which a little fits
        line.close()
        until(lambda: server.descriptors() == descriptors)
    assert server.resident_mib() - before < 40
    good.close()


def drop_everything(sock: socket.socket) -> None:
    """Let the system throw away what comes in, unread and unconfirmed: the host has vanished."""

    class Instruction(ctypes.Structure):
        _fields_ = [
            ("code", ctypes.c_ushort),
            ("jt", ctypes.c_ubyte),
            ("jf", ctypes.c_ubyte),
            ("k", ctypes.c_uint),
        ]

    program = (Instruction * 1)(Instruction(0x06, 0, 0, 0))  # return 0: keep nothing
    address = struct.pack("@HP", 1, ctypes.addressof(program))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, address)


@pytest.mark.parametrize("talking", [False, True], ids=["idle", "with something unconfirmed"])
def test_a_peer_that_vanished_is_noticed(start: Start, talking: bool) -> None:
    """Its lease has not ended, and its socket says nothing: the system asks for signs of life."""
    server = start(TCP_KEEPALIVE_S="1")
    other = server.connect()
    job_id = other.ask(cmd="PUSH", queue="q", name="n")["id"]
    gone, quiet = server.connect(), server.connect()
    assert quiet.ask(cmd="Ping")["ok"]
    assert gone.ask(cmd="PULL", queue="q", owner="w", lockTtl=3_600_000)["job"]["id"] == job_id
    if talking:
        assert gone.ask(cmd="SubscribeEvents", queue="q")["ok"]
    drop_everything(gone.sock)
    if talking:
        other.ask(cmd="PUSH", queue="q", name="later", priority=-1)
    until(lambda: other.ask(cmd="GetState", id=job_id)["state"] == "waiting", 60)
    # Silence alone is no fault: who is there answers for it without its program.
    assert quiet.ask(cmd="Ping")["ok"]
    for one in (gone, quiet, other):
        one.close()


# --- greedy -----------------------------------------------------------------------------------


def test_a_request_limit_holds_for_each_connection(start: Start) -> None:
    server = start(RATE_LIMIT_MAX_REQUESTS="20", RATE_LIMIT_WINDOW_MS="600000")
    line = server.connect()
    line.send(*[line.frame(cmd="PUSH", queue="q", name="n", reqId=str(n)) for n in range(30)])
    replies = [line.receive() for _ in range(30)]
    assert [reply["ok"] for reply in replies] == [True] * 20 + [False] * 10
    assert {reply.get("error") for reply in replies[20:]} == {"Rate limit exceeded"}
    assert [reply["reqId"] for reply in replies] == [str(n) for n in range(30)]
    fresh = server.connect()
    assert fresh.ask(cmd="Count", queue="q")["count"] == 20
    line.close()
    fresh.close()


def test_a_frame_may_be_as_long_as_the_limit_and_no_longer(start: Start) -> None:
    server = start()
    line = server.connect()
    data = line.frame(cmd="PUSH", queue="q", name="n", data=bytes(10_485_760 + 1))
    line.send(data)
    assert line.receive()["error"] == "Job data too large (max 10MB)"
    pad = (64 << 20) - len(line.frame(cmd="Ping", pad=bytes(1 << 20))) + 4
    whole = line.frame(cmd="Ping", pad=bytes((1 << 20) + pad))
    assert whole[:4] == struct.pack(">I", 64 << 20)
    line.send(whole)
    assert line.receive()["ok"]
    line.send(struct.pack(">I", (64 << 20) + 1))
    (refusal,) = unpacked(line.rest())
    assert refusal == {"ok": False, "error": "Frame too large: 67108865 bytes exceeds maximum 67108864"}
    line.close()
    works(server)


def test_a_stranger_may_send_little(start: Start) -> None:
    """Before its token a connection needs no more than 64 KiB; afterwards it has the room of all others."""
    server = start("--token", "secret")
    first = server.connect()
    assert first.ask(cmd="Auth", token="secret")["ok"]
    before = server.resident_mib()
    lines = [server.connect() for _ in range(50)]
    for line in lines:
        line.send(struct.pack(">I", 65_536) + bytes(60_000))
    large = server.connect()
    large.send(struct.pack(">I", 65_537) + bytes(10))
    assert unpacked(large.rest()) == [
        {"ok": False, "error": "Frame too large: 65537 bytes exceeds maximum 65536"}
    ]
    assert first.ask(cmd="Ping")["ok"]
    assert server.resident_mib() - before < 12
    # The limit is that of the moment at which the frame comes, also within one segment.
    late = server.connect()
    big = late.frame(cmd="PUSH", queue="q", name="n", data=bytes(1 << 20))
    late.send(late.frame(cmd="Stats") + late.frame(cmd="Auth", token="secret") + big)
    assert [late.receive()["ok"] for _ in range(3)] == [False, True, True]
    for line in [first, large, late, *lines]:
        line.close()


def test_replies_that_no_peer_would_take_are_refused(start: Start) -> None:
    """Case C036: a pull brings what fits, and a list that does not fit says what the limit is."""
    server = start()
    line = server.connect()
    for n in range(50):
        line.ask(cmd="PUSH", queue="q", name="n", jobId=str(n), data=bytes(2 << 20))
    refusal = line.ask(cmd="GetJobs", queue="q")
    assert not refusal["ok"]
    assert str(64 << 20) in refusal["error"]
    assert len(line.ask(cmd="GetJobs", queue="q", limit=20)["jobs"]) == 20
    got: list[str] = []
    while len(got) < 50:
        line.send(line.frame(cmd="PULLB", queue="q", count=50, owner="w"))
        n = struct.unpack(">I", line._exactly(4))[0]
        assert n <= 32 << 20
        reply = msgpack.unpackb(line._exactly(n))
        assert len(reply["jobs"]) == len(reply["tokens"]) > 0
        got += [job["id"] for job in reply["jobs"]]
        line.ask(cmd="ACKB", ids=[job["id"] for job in reply["jobs"]], tokens=reply["tokens"])
    assert got == [str(n) for n in range(50)]
    line.close()


def test_a_thousand_large_jobs_in_a_list_are_refused_and_come_in_pages(start: Start) -> None:
    server = start()
    line = server.connect()
    for _ in range(10):
        line.ask(cmd="PUSHB", queue="q", jobs=[{"name": "n", "data": bytes(100 << 10)} for _ in range(100)])
    refusal = line.ask(cmd="GetJobs", queue="q", limit=1000)
    assert refusal["error"] == "The reply would be over 67108864 bytes: ask for fewer jobs"
    pages = [line.ask(cmd="GetJobs", queue="q", limit=500, offset=offset)["jobs"] for offset in (0, 500)]
    assert len({job["id"] for page in pages for job in page}) == 1000
    line.close()
