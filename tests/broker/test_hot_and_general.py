"""The compiled paths and the general one are two ways to the same place.

Every request is sent to two brokers with one seed and one clock: to the first as
clients write it, to the second with ``cmd`` as the last field, which sends it
through decode, check and handler. Reply bytes, and the rows that a store would
get, must be the same, for plain requests and for odd ones.
"""

from __future__ import annotations

import random
import struct
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcore.broker import handlers, open_broker
from qcore.broker.core import Broker
from qcore.broker.opening import commit, flush
from qcore.broker.session import Session
from qcore.clock import ManualClock
from qcore.store.memory import MemoryStore

SEED = bytes(range(16))
UNDEFINED = msgpack.ExtType(0, b"\0")
GONE = object()


def packed(request: dict[str, Any], *, cmd_last: bool) -> bytes:
    pairs = [(k, v) for k, v in request.items() if v is not GONE]
    if cmd_last:
        pairs = pairs[1:] + pairs[:1]
    body = msgpack.packb(dict(pairs))
    return struct.pack(">I", len(body)) + body


class Pair:
    """Two brokers that should never differ."""

    def __init__(self, **levels: Any) -> None:
        self.clocks = (ManualClock(), ManualClock())
        self.brokers: tuple[Broker, Broker] = tuple(  # type: ignore[assignment]
            open_broker(store=MemoryStore(), clock=clock, seed=SEED, mode="server", **levels)
            for clock in self.clocks
        )
        self.sessions = [Session(broker) for broker in self.brokers]
        self.ids: list[str] = ["one", "two"]
        self.tokens: dict[str, str] = {}

    def send(self, request: dict[str, Any]) -> list[Any]:
        out = []
        for session, cmd_last in zip(self.sessions, (False, True), strict=True):
            session.feed(packed(request, cmd_last=cmd_last))
            out.append(session.take())
        assert out[0] == out[1], (request, out)
        return self.read(out[0]) + self.commit(request)

    def commit(self, request: object = None) -> list[Any]:
        cuts = [broker.begin_commit() for broker in self.brokers]
        assert cuts[0] == cuts[1], request
        out = []
        for broker, session in zip(self.brokers, self.sessions, strict=True):
            broker.engine._check()
            if cuts[0] is not None:
                broker.end_commit()
            out.append(session.take())
        assert out[0] == out[1], (request, out)
        return self.read(out[0])

    def read(self, data: bytes) -> list[Any]:
        replies = []
        while data:
            (n,) = struct.unpack_from(">I", data)
            replies.append(msgpack.unpackb(data[4 : 4 + n], strict_map_key=False, timestamp=0))
            data = data[4 + n :]
        for reply in replies:
            self.ids += [i for i in (reply.get("id"), *reply.get("ids", ())) if i and i not in self.ids]
            jobs = reply.get("jobs", [reply.get("job")])
            for job, token in zip(jobs, reply.get("tokens", [reply.get("token")] * len(jobs)), strict=True):
                if job and token:
                    self.tokens[job["id"]] = token
        return replies

    def advance(self, ms: int) -> None:
        for clock, broker in zip(self.clocks, self.brokers, strict=True):
            clock.advance(ms)
            broker.pump()  # a returned cut is not wanted: nothing is due while nothing is held
        self.commit()


payloads = st.sampled_from(
    [None, 0, -1, "", "text", b"bytes", [1, [2.5, {}]], {"a": None}, 2**40, 1e300, UNDEFINED, GONE, {1: 2}]
)
flags = st.sampled_from([True, False, None, UNDEFINED, 0, 1, "yes", "", [], GONE])
odd = st.sampled_from(
    [None, UNDEFINED, "", "7", "x", True, [], {}, -1, 1.5, float("nan"), 1e300, b"", 2**63, GONE]
)
request_ids = st.sampled_from(
    [GONE, GONE, "r1", 7, -3, 1.5, None, True, "", 2**33, b"b", [1], {"a": 1}, {1: 2}, UNDEFINED]
)
queue_names = st.sampled_from(
    ["q"] * 6 + ["a:b.C-_9", "x" * 256, "x" * 257, "", "q ", "é", None, 5, UNDEFINED, GONE]
)
job_names = st.sampled_from(
    ["n"] * 4 + ["ünï", "x" * 256, "é" * 200, "é" * 256, "x" * 257, "", "\0", None, 5, UNDEFINED, GONE]
)
#: What each option is given as: plain values most of the time, sometimes anything.
OPTIONS: dict[str, Any] = {
    "data": payloads,
    "priority": st.sampled_from([0, 1, -5, 2.5, -0.0, 1e300, 2**32, 2**62]) | odd,
    "delay": st.sampled_from([0, 1, 5.0, 1000, 2**31, 4.32e15, 4.4e15]) | odd,
    "maxAttempts": st.sampled_from([1, 2, 3.0, 2**31 - 1, 2**31, 0, 2.5]) | odd,
    "timestamp": st.sampled_from([0, 1, 1_600_000_000_000, 1_800_000_000_000, 4.32e15, 4.4e15, -1]) | odd,
    "lifo": flags,
    "removeOnComplete": flags,
    "removeOnFail": flags,
    "durable": flags,
    "backoff": st.sampled_from([0, 1, 5000, 2**32, 1e12, {"type": "fixed", "delay": 5}]) | odd,
    "ttl": st.sampled_from([0, 10, 10**15]) | odd,
    "timeout": st.sampled_from([0, 10, 4.32e15]) | odd,
    "stackTraceLimit": st.sampled_from([0, 1, 2.5, -1]) | odd,
    "keepLogs": odd,
    "sizeLimit": st.sampled_from([0, 1, 100]) | odd,
    "tags": st.sampled_from([[], ["a"], "a", [1]]) | odd,
    "unknown": payloads,
}
COMMON = ("data", "priority", "delay", "maxAttempts", "lifo", "removeOnComplete", "durable")


@st.composite
def job_options(draw: st.DrawFn, id_key: str) -> dict[str, Any]:
    job: dict[str, Any] = {"name": draw(job_names)}
    keys = draw(st.lists(st.sampled_from([*COMMON, *COMMON, *OPTIONS]), max_size=4, unique=True))
    for key in keys:
        job[key] = draw(OPTIONS[key])
    custom = draw(
        st.sampled_from([GONE, GONE, "one", "two", "00000000-0000-7000-8000-000000000001", "é"]) | odd
    )
    if custom is not GONE:
        job[id_key] = custom
    return {k: v for k, v in draw(st.permutations(list(job.items()))) if v is not GONE}


def a_push(draw: Any, pair: Pair) -> dict[str, Any]:
    return {
        "cmd": "PUSH",
        "queue": draw(queue_names),
        "reqId": draw(request_ids),
        **draw(job_options("jobId")),
    }


def a_pushb(draw: Any, pair: Pair) -> dict[str, Any]:
    jobs = draw(st.lists(job_options("customId"), max_size=4) | odd)
    return {"cmd": "PUSHB", "queue": draw(queue_names), "reqId": draw(request_ids), "jobs": jobs}


def a_pull(draw: Any, pair: Pair) -> dict[str, Any]:
    request = {
        "cmd": "PULL",
        "queue": draw(queue_names),
        "reqId": draw(request_ids),
        "owner": draw(st.sampled_from(["w", "w", "w", "", GONE]) | odd),
        "lockTtl": draw(st.sampled_from([GONE, 100, 5000.0, 0, 1.5, 4.32e12, 4.32e15]) | odd),
        "detach": draw(flags),
        "timeout": draw(st.sampled_from([GONE, 0, 0.0, 50, 60_001, -1]) | odd),
    }
    if draw(st.booleans()):
        request["cmd"] = "PULLB"
        request["count"] = draw(st.sampled_from([1, 2, 5.0, 1000, 1001, 0, 1.5]) | odd)
    return {k: v for k, v in request.items() if k == "cmd" or v is not GONE}


def a_token(draw: Any, pair: Pair, job_id: object) -> object:
    right = pair.tokens.get(job_id, GONE) if isinstance(job_id, str) else GONE
    return draw(st.sampled_from([right] * 5 + [GONE, "no token", *pair.tokens.values()]) | odd)


def an_id(draw: Any, pair: Pair) -> object:
    known = list(pair.tokens) or pair.ids
    return draw(st.sampled_from([*known, *known, *known, *pair.ids, "absent"]) | odd)


def an_ack(draw: Any, pair: Pair) -> dict[str, Any]:
    job_id = an_id(draw, pair)
    return {
        "cmd": "ACK",
        "id": job_id,
        "token": a_token(draw, pair, job_id),
        "result": draw(payloads),
        "reqId": draw(request_ids),
        "removeOnComplete": draw(st.sampled_from([GONE, GONE, True, False, None, 5])),
    }


def an_ackb(draw: Any, pair: Pair) -> dict[str, Any]:
    ids = [an_id(draw, pair) for _ in range(draw(st.integers(0, 4)))]
    if draw(st.integers(0, 3)):
        ids = list(dict.fromkeys(i for i in ids if isinstance(i, str) and i))
    ids = [UNDEFINED if i is GONE else i for i in ids]
    tokens: Any = [a_token(draw, pair, job_id) for job_id in ids]
    tokens = [None if token is GONE else token for token in tokens]
    results: Any = [draw(payloads) for _ in ids]
    results = [UNDEFINED if result is GONE else result for result in results]
    return {
        "cmd": "ACKB",
        "ids": draw(st.sampled_from([ids] * 8 + [GONE, "x", None])),
        "tokens": draw(st.sampled_from([tokens] * 8 + [GONE, tokens[1:], "x", None, UNDEFINED])),
        "results": draw(st.sampled_from([results] * 4 + [GONE] * 4 + [results[1:], "x", None, UNDEFINED])),
        "reqId": draw(request_ids),
    }


def a_fail(draw: Any, pair: Pair) -> dict[str, Any]:
    job_id = an_id(draw, pair)
    return {
        "cmd": "FAIL",
        "id": job_id,
        "token": a_token(draw, pair, job_id),
        "error": draw(st.sampled_from(["why", 5, None, GONE])),
        "stack": draw(st.sampled_from([["a", "b", 5], [], None, "x", GONE])),
    }


REQUESTS = (a_push, a_push, a_pushb, a_pull, a_pull, an_ack, an_ackb, a_fail)
levels = st.fixed_dictionaries(
    {
        "adds": st.sampled_from(["buffered", "committed"]),
        "changes": st.sampled_from(["buffered", "committed"]),
    }
)


@given(data=st.data(), levels=levels)
def test_both_paths_give_the_same_bytes_and_the_same_rows(
    data: st.DataObject, levels: dict[str, Any]
) -> None:
    pair = Pair(**levels)
    for _ in range(12):
        what = data.draw(st.sampled_from([*REQUESTS, None]))
        if what is None:
            pair.advance(data.draw(st.sampled_from([1, 100, 5000])))
            continue
        request = {k: v for k, v in what(data.draw, pair).items() if v is not GONE}
        replies = pair.send(request)
        # An empty pull that waits is the one request without an answer yet; a push may answer it as well.
        assert replies or request.get("timeout"), request
    for job_id in pair.ids:
        pair.send({"cmd": "GetJob", "id": job_id})


PLAIN = [
    {"cmd": "PUSH", "queue": "q", "name": "n", "data": {"a": 1}},
    {"cmd": "PUSH", "queue": "q", "name": "n", "data": 1, "jobId": "one", "priority": 5, "reqId": "r"},
    {
        "cmd": "PUSH",
        "queue": "q",
        "name": "n",
        "delay": None,
        "ttl": UNDEFINED,
        "lifo": True,
        "durable": False,
    },
    {"cmd": "PUSHB", "queue": "q", "jobs": [{"name": "n", "data": i, "maxAttempts": 3} for i in range(5)]},
    {"cmd": "PUSHB", "queue": "q", "jobs": [], "reqId": 1},
    {"cmd": "PULL", "queue": "q", "owner": "w", "timeout": 0, "reqId": 9},
    {"cmd": "PULL", "queue": "empty"},
    {"cmd": "PULLB", "queue": "q", "owner": "w", "count": 2, "lockTtl": 5000},
]


@pytest.mark.parametrize("durable", [False, True])
def test_plain_requests_do_not_reach_the_general_path(monkeypatch: pytest.MonkeyPatch, durable: bool) -> None:
    """Or the test above would compare the general path with itself."""
    seen: list[bytes] = []

    def listen(session: Session, body: bytes, inner: Any = handlers.handle) -> int:
        seen.append(body)
        return int(inner(session, body))

    monkeypatch.setattr(handlers, "handle", listen)
    broker = open_broker(store=MemoryStore() if durable else None, clock=ManualClock(), seed=SEED)
    session = Session(broker)
    session.feed(packed(PLAIN[0], cmd_last=True))  # whose job name was not known yet
    assert len(seen) == 1
    for request in PLAIN:
        session.feed(packed(request, cmd_last=False))
    delivered = [broker.engine.pull("q", 0, 0, lease_ms=1000) for _ in range(3)]
    for job_id, token, _ in delivered[:1]:
        session.feed(packed({"cmd": "ACK", "id": job_id, "token": token, "result": 1}, cmd_last=False))
    ids, tokens, _ = zip(*delivered[1:], strict=True)
    session.feed(packed({"cmd": "ACKB", "ids": ids, "tokens": tokens, "results": [1, None]}, cmd_last=False))
    assert len(seen) == 1
    session.feed(packed({"cmd": "Ping"}, cmd_last=False))
    assert len(seen) == 2


OTHERS = [
    {"cmd": "FAIL", "id": "one", "error": "no", "stack": ["a", "b"], "unrecoverable": False},
    {"cmd": "ACK", "id": "one", "result": {"a": 1}, "removeOnComplete": True},
    {"cmd": "ACKB", "ids": ["one", "two"], "tokens": ["", None], "results": [1, 2]},
    {
        "cmd": "PUSH",
        "queue": "q",
        "name": "n",
        "jobId": "two",
        "backoff": {"type": "fixed", "delay": 1, "jitter": 0.5},
    },
    {
        "cmd": "PUSH",
        "queue": "q",
        "name": "n",
        "ttl": 5,
        "timeout": 5,
        "tags": ["a"],
        "keepLogs": 1,
        "repeat": None,
    },
    {"cmd": "PULLB", "queue": "q", "count": 3, "group": {"limit": {"max": 1, "duration": 5}}},
    {"cmd": "JobHeartbeat", "id": "one", "token": "x", "duration": 50},
    {"cmd": "JobHeartbeatB", "ids": ["one", "two"], "tokens": ["x", "y"], "duration": 50},
    {"cmd": "GetJob", "id": "one", "reqId": [1, {"a": None}]},
    {"cmd": "GetResult", "id": "one"},
    {"cmd": "Dlq", "queue": "q", "count": 3, "filter": {"reason": "stalled", "offset": 1, "olderThan": 5}},
    {"cmd": "RegisterWorker", "name": "w", "queues": ["q"], "workerId": "1", "concurrency": 5, "pid": 4},
    {"cmd": "Heartbeat", "id": "1", "activeJobs": 3, "processed": 1.5},
    {"cmd": "ListWorkers", "reqId": -5},
    {"cmd": "Hello", "capabilities": ["int64", "outcomes"], "protocolVersion": 3},
    {"cmd": "GetJobCounts", "queue": "q"},
]


@pytest.mark.parametrize("rounds", [4000])
def test_random_bytes_in_a_frame_get_one_reply_and_nothing_breaks(rounds: int) -> None:
    """Mutations of good requests, with a fixed seed; and whatever was admitted can be stored."""
    rng = random.Random(20)
    clock = ManualClock()
    broker = open_broker(store=MemoryStore(), changes="buffered", mode="server", clock=clock, seed=SEED)
    session = Session(broker)
    seeds = [packed(request, cmd_last=False)[4:] for request in PLAIN + OTHERS]
    for round_ in range(rounds):
        if round_ % 100 == 99:
            clock.advance(60_000)
            cut = broker.pump()[1]
            if cut is not None:
                commit(broker, cut)
            session.take()
        body = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(body))
            if rng.random() < 0.3:
                del body[at:]
                body += rng.randbytes(rng.randint(1, 4))
            elif rng.random() < 0.5:
                body[at] = rng.randrange(256)
            else:
                body[at:at] = rng.choice(seeds)[: rng.randint(1, 20)]
        session.feed(struct.pack(">I", len(body)) + bytes(body))
        out = session.take()
        if not out:  # it waits for its commit
            flush(broker)
            out = session.take()
        # Or it is a pull that waits for a job.
        assert out or b"timeout" in body, bytes(body)
    broker.engine._check()


def raw(*fields: bytes, cmd_last: bool) -> bytes:
    """A frame with these fields as they are, the first of them the command."""
    body = bytes([0x80 + len(fields)]) + b"".join(fields[1:] + fields[:1] if cmd_last else fields)
    return struct.pack(">I", len(body)) + body


RAW = (b"\xa3cmd\xa4PUSH", b"\xa5queue\xa1q", b"\xa4name\xa1n")


@pytest.mark.parametrize(
    "odd",
    [
        (b"\xa2\xff\xfe\xc0",),
        (b"\xa3odd\xd4\x00\x00",),
        (b"\xa3odd\x01",),
        (b"\xa7durable\xc3", b"\xa7durable\xc0"),
        (b"\xacremoveOnFail\xc3", b"\xacremoveOnFail\xd4\x00\x00"),
        (b"\xa5jobId\xa1j", b"\xa5jobId\xc0"),
        (b"\xa8priority\x05", b"\xa8priority\xc0"),
        (b"\xa5delay\x05", b"\xa5delay\xc0"),
        (b"\xabmaxAttempts\x05", b"\xabmaxAttempts\xc0"),
        (b"\xa4data\x05", b"\xa4data\xd4\x00\x00"),
        (b"\xa4data\xc7\x01\x00\x00",),
        (b"\xa4data\xc7\x00\x00",),
        (b"\xa8priority\xcb\x80\x00\x00\x00\x00\x00\x00\x00",),
        (b"\xa5reqId\xd9\x011",),
        (b"\xa5reqId\xce\x00\x00\x00\x01",),
        (b"\xa5reqId\xca\x3f\x80\x00\x00",),
        (b"\xa5reqId\xd1\xff\xff",),
        (b"\xa5reqId\xcd\x01\x00",),
    ],
    ids=repr,
)
def test_what_no_library_sends_is_the_same_as_well(odd: tuple[bytes, ...]) -> None:
    pair = Pair()
    fields = (*RAW, *odd)
    out = []
    for session, cmd_last in zip(pair.sessions, (False, True), strict=True):
        session.feed(raw(*fields, cmd_last=cmd_last))
        out.append(session.take())
    assert out[0] == out[1]
    pair.commit(fields)


def test_a_second_command_counts() -> None:
    session = Session(open_broker(seed=SEED))
    session.feed(raw(*RAW, b"\xa3cmd\xc0", cmd_last=False))
    assert b"Invalid command" in session.take()


def test_a_connection_keeps_no_room_for_a_great_batch() -> None:
    pair = Pair()
    pair.send({"cmd": "PUSHB", "queue": "q", "jobs": [{"name": "n"}] * 1500})
    pair.send({"cmd": "PUSHB", "queue": "q", "jobs": [{"name": "n"}] * 3})
    pair.send({"cmd": "PUSHB", "queue": "q", "jobs": [{"name": "n"}] * 1500})
