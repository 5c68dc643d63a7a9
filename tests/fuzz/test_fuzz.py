"""Any bytes: an answer or a closed connection, bounded memory, and the next connection works.

The runs here are short ones of :mod:`tests.fuzz.campaign`. Their seed differs each time;
a failure names it, and ``QCORE_FUZZ_SEED`` repeats it.
"""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qcore.broker.opening import open_broker
from qcore.broker.session import Session
from tests.fuzz.campaign import PING, Finding, Round, framed, run_round
from tests.fuzz.frames import BROKEN, Frames, head_of_map, map_of, nested, packed
from tests.fuzz.sockets import storm
from tests.server.conftest import until

Start = Callable[..., Any]


@pytest.fixture
def seed() -> int:
    given = os.environ.get("QCORE_FUZZ_SEED")
    return int(given) if given else random.SystemRandom().randrange(10**6)


@pytest.mark.parametrize(("number", "n_frames", "stored"), [(0, 40_000, False), (1, 15_000, True)])
def test_any_frames(seed: int, number: int, n_frames: int, stored: bool) -> None:
    done = run_round(seed, number, n_frames, stored=stored)
    assert done.n_frames == n_frames
    # Both were there: requests that are carried out, and such that are refused.
    assert n_frames * 0.05 < done.n_ok < n_frames * 0.9


@pytest.mark.parametrize("fixed", [None, 33], ids=["any seed", "one seed"])
def test_any_frames_in_any_segments(start: Start, seed: int, fixed: int | None) -> None:
    """Case C033: mutations of valid frames, in 16 MiB."""
    seed = seed if fixed is None else fixed
    server = start(SHUTDOWN_TIMEOUT_MS="100")
    line = server.connect()
    assert line.ask(cmd="Ping")["ok"]
    line.close()
    before_mib, before = server.resident_mib(), server.descriptors()
    try:
        assert storm(server.port, seed, 12_000) > 6000
    except Finding as finding:
        finding.add_note(f"seed {seed}")
        raise
    assert server.resident_mib() - before_mib < 16
    until(lambda: server.descriptors() <= before + 1)  # it may have to notice yet that we have gone
    assert "Traceback" not in server.said()
    assert server.stop() == 0


def test_one_seed_gives_one_history() -> None:
    bodies = [[frames.body() for _ in range(3000)] for frames in (Frames(3), Frames(3), Frames(4))]
    assert bodies[0] == bodies[1] != bodies[2]


def test_a_missing_answer_is_a_finding() -> None:
    """The campaign must be able to fail."""
    one = Round(1, 0)
    for _ in range(20):
        one.batch(50)
    one.session.close()
    one._connect()
    one.expected += 1
    with pytest.raises(Finding, match="without an answer"):
        one.batch(50)


BOMBS = {
    **{f"broken-{i}": body for i, body in enumerate(BROKEN)},
    "lists 100,000 deep": nested(100_000),
    "maps 100,000 deep": nested(100_000, b"\x81\xa1a"),
    "data 100,000 deep": map_of(
        (b"\xa3cmd", packed("PUSH")), (b"\xa5queue", packed("q")), (b"\xa4data", nested(100_000))
    ),
    "list of 4 Gi as data": map_of(
        (b"\xa3cmd", packed("PUSH")), (b"\xa5queue", packed("q")), (b"\xa4data", b"\xdd\xff\xff\xff\xff")
    ),
    "jobs of 4 Gi": map_of(
        (b"\xa3cmd", packed("PUSHB")), (b"\xa5queue", packed("q")), (b"\xa4jobs", b"\xdd\xff\xff\xff\xff")
    ),
    "ids of 4 Gi": map_of((b"\xa3cmd", packed("ACKB")), (b"\xa3ids", b"\xdd\xff\xff\xff\xff")),
    "text of 4 GiB as id": map_of((b"\xa3cmd", packed("ACK")), (b"\xa2id", b"\xdb\xff\xff\xff\xffa")),
    "no UTF-8": map_of((b"\xa3cmd", packed("Ping")), (b"\xa5reqId", b"\xa2\xc3\x28")),
    "many counts that are not there": b"\xde\xff\xff" * 20_000,
    "lists in lists, each with a large count": b"\xdc\xff\xff" * 20_000,
    "array of as many as there are bytes": b"\xdd" + struct.pack(">I", 60_000) + b"\xdc\xff\xff" * 20_000,
}


@pytest.mark.parametrize("body", BOMBS.values(), ids=BOMBS.keys())
@pytest.mark.parametrize("key", [None, b"\xa1x", b"\xa4data", b"\xa5reqId"])
def test_a_bomb_costs_what_it_weighs(body: bytes, key: bytes | None) -> None:
    """Refused by what is there: what is only declared is never made room for."""
    if key is not None:
        body = head_of_map(2) + b"\xa3cmd" + packed("Ping") + key + body
    session = Session(open_broker())
    session.feed(framed(PING))
    session.take()
    stream = framed(body)
    tracemalloc.start()
    try:
        session.feed(stream)
        out = session.take()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (b"error" in out) != (b"pong" in out)  # the bound of the depth itself is let through
    assert len(out) < 2000
    assert peak < 3 * len(stream) + (1 << 19)
    session.feed(framed(PING))
    assert b"pong" in session.take()
    session.close()


def test_a_declared_frame_takes_room_for_what_came(start: Start) -> None:
    """64 MiB are announced by each of 40 connections, and 1 KiB of it comes."""
    server = start()
    first = server.connect()
    first.ask(cmd="Ping")
    before = server.resident_mib()
    lines = [server.connect() for _ in range(40)]
    for line in lines:
        line.send(struct.pack(">I", 64 << 20) + bytes(1024))
    assert first.ask(cmd="Ping")["ok"]
    assert server.resident_mib() - before < 8
    for line in [first, *lines]:
        line.close()


@pytest.mark.parametrize("stored", [False, True])
def test_a_round_can_be_repeated(tmp_path: Path, stored: bool) -> None:
    ends = [run_round(5, 9, 4000, stored=stored, keep=tmp_path / "last").n_ok for _ in range(2)]
    assert ends[0] == ends[1]
