"""The protocol core: bytes in, bytes out, and the reader of pulled jobs."""

from __future__ import annotations

import random

import msgpack
import pytest

from qclient import JobContext, ProtocolError
from qclient.delivery import read_reply
from qclient.protocol import ClientProtocol, array_header, map_body, map_header


def frame(value: object) -> bytes:
    body = msgpack.packb(value)
    return len(body).to_bytes(4, "big") + body


def test_requests_are_whole_frames_with_ids() -> None:
    protocol = ClientProtocol()
    first = protocol.request("PUSH", {"queue": "q", "priority": 1}, (("data", msgpack.packb({"a": 1})),), "t")
    assert int.from_bytes(first[:4], "big") == len(first) - 4
    assert msgpack.unpackb(first[4:]) == {
        "cmd": "PUSH",
        "reqId": "1",
        "queue": "q",
        "priority": 1,
        "data": {"a": 1},
    }
    second = msgpack.unpackb(protocol.request("Ping")[4:])
    assert second == {"cmd": "Ping", "reqId": "2"}
    assert list(protocol.pending) == ["1", "2"]


@pytest.mark.parametrize("n", [0, 1, 15, 16, 65535, 65536])
def test_headers(n: int) -> None:
    assert map_header(n) == msgpack.Packer().pack_map_header(n)
    assert array_header(n) == msgpack.Packer().pack_array_header(n)
    if n < 100:
        pairs = {str(i): i for i in range(n)}
        assert map_header(n) + map_body(pairs) == msgpack.packb(pairs)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
def test_replies_in_any_order_and_any_pieces(size: int) -> None:
    protocol = ClientProtocol()
    for i in range(20):
        protocol.request("Ping", tag=i)
    order = list(range(20))
    random.Random(size).shuffle(order)
    stream = b"".join(frame({"ok": True, "reqId": str(i + 1), "pad": "x" * i}) for i in order)
    stream += frame({"type": "event", "event": {}})
    got = []
    for at in range(0, len(stream), size):
        got += protocol.feed(stream[at : at + size])
    assert [tag for tag, _ in got] == [*order, None]
    assert not protocol.pending


@pytest.mark.parametrize(
    "data",
    [
        (64 * 1024 * 1024 + 1).to_bytes(4, "big"),
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x01\xc1",
        frame([1, 2]),
        frame({"ok": False, "error": "Invalid command format"}),
        b"\x00\x00\x00\x02\xc0\xc0",
    ],
)
def test_what_no_server_sends_is_an_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        ClientProtocol().feed(data)


def test_the_answer_to_something_given_up_is_ignored() -> None:
    assert ClientProtocol().feed(frame({"ok": True, "reqId": "77"})) == []


JOB = {
    "id": "j1",
    "queue": "q",
    "name": "näme",
    "data": {"i": 1, "deep": [[{"x": b"\x00"}]], "name": "not this one", "attempts": 9},
    "priority": 2.5,
    "attempts": 2,
    "maxAttempts": 3,
    "timeout": 1500,
    "tags": ["a"],
    "timeline": [{"state": "waiting", "timestamp": 1.0}],
    "backoff": 4294967295,
    "createdAt": 1.7e12,
    "repeat": None,
}


def test_pulled_jobs_are_read_in_one_pass() -> None:
    bare = {"id": "j2", "name": "n"}
    body = msgpack.packb({"jobs": [JOB, bare], "tokens": ["t1", "t2"], "ok": True, "reqId": "5", "x": [1]})
    reply = read_reply(b"??" + body, 2, 2 + len(body), None)
    job, other = reply.pop("jobs")
    assert reply == {"ok": True, "reqId": "5", "tokens": ["t1", "t2"], "x": [1]}
    assert (job.id, job.name, job.data, job.raw) == ("j1", "näme", JOB["data"], JOB)
    assert job.data is job.data
    assert (job.attempts_made, job.attempt, job.max_attempts, job.is_last_attempt) == (2, 3, 3, True)
    assert (job.priority, job.timeout, job.cancelled) == (2.5, 1.5, False)
    assert (other.id, other.data, other.timeout, other.max_attempts) == ("j2", None, None, 1)
    with pytest.raises(TypeError):
        JobContext()


def test_cut_or_changed_bytes_are_an_error_or_a_reply_never_a_crash() -> None:
    body = msgpack.packb({"ok": True, "reqId": "5", "jobs": [JOB, JOB], "tokens": ["t1", "t2"]})
    for end in range(len(body)):
        with pytest.raises(ProtocolError):
            read_reply(body, 0, end, None)
    rng = random.Random(1)
    for _ in range(3000):
        bad = bytearray(body)
        for _ in range(rng.randint(1, 3)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        try:
            reply = read_reply(bytes(bad), 0, len(bad), None)
        except ProtocolError:
            continue
        assert isinstance(reply, dict)
