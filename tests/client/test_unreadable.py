"""Values of older files or other servers that Python has no counterpart of: they spoil their job only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest

from qclient import Queue, SerializationError, Worker, shutdown_engine
from qclient.codec import Unreadable
from qclient.events import Completed, read_event
from qcore.broker import open_broker
from qcore.broker.opening import close_broker, commit
from qcore.broker.session import Session
from qcore.wire.packing import unpack_frame
from qcore.wire.writer import Packed, Writer

ODD = {
    "key": msgpack.packb({None: 1, "n": 2}),
    "date": msgpack.packb([msgpack.Timestamp(253_402_300_800)]),
    # A typed buffer whose items are of no type.
    "typed": b"\xc7\x08\x51\x93\xa1v\xa1x\x91\x01\x00",
}


def replied(session: Session, request: dict[str, Any]) -> Any:
    body = msgpack.packb(request)
    session.feed(len(body).to_bytes(4, "big") + body)
    waiting, cut = session.broker.settle(session)
    while waiting:
        commit(session.broker, cut)
        waiting, cut = session.broker.settle(session)
    return msgpack.unpackb(session.take()[4:], strict_map_key=False, timestamp=0)


@pytest.fixture(params=ODD.values(), ids=list(ODD))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A data file with jobs 1 and 3 as usual, 2 with odd data, 0 with an odd result."""
    path = str(tmp_path / "jobs.db")
    broker = open_broker(path)
    session = Session(broker)
    for n in range(4):
        job = {"jobId": f"j{n}", "name": "n", "data": n, "maxAttempts": 1}
        replied(session, {"cmd": "PUSH", "queue": "q", **job})
    token = replied(session, {"cmd": "PULL", "queue": "q", "owner": "w"})["token"]
    session.finish("j0", token, request.param, False)
    session.update("j2", request.param)
    session.close()
    close_broker(broker)
    yield f"sqlite:///{path}"
    shutdown_engine()


def test_a_page_is_whole_and_one_job_of_it_says_what_is_wrong(url: str) -> None:
    with Queue("q", url) as queue:
        jobs = {job.id: job for job in queue.jobs()}
        assert sorted(jobs) == ["j0", "j1", "j2", "j3"]
        assert [jobs[key].data for key in ("j0", "j1", "j3")] == [0, 1, 3]
        for read in (
            lambda: jobs["j2"].data,
            lambda: queue.job("j2").data,
            lambda: jobs["j0"].returnvalue,
            lambda: jobs["j0"].result(),
            lambda: queue.returnvalue("j0"),
        ):
            with pytest.raises(SerializationError, match="the value cannot be read here: "):
                read()
        assert jobs["j2"].name == "n"
        assert isinstance(jobs["j2"].raw["data"], Unreadable)
        assert queue.counts().waiting == 3


def test_a_worker_fails_that_job_and_does_the_others(url: str) -> None:
    done = []
    with Queue("q", url) as queue:
        worker = Worker("q", lambda job: done.append(job.data), url)
        worker.start()
        assert all(queue.job(f"j{n}").wait(30) for n in (1, 2, 3))
        worker.close()
        assert sorted(done) == [1, 3]
        job = queue.job("j2")
        assert job.state == "failed"
        assert "Error" in str(job.stacktrace)


@pytest.mark.parametrize("packed", ODD.values(), ids=list(ODD))
def test_it_is_found_wherever_a_reply_has_payloads(packed: bytes) -> None:
    def read(reply: dict[str, Any], *, part: bool = False) -> Any:
        writer = Writer()
        writer.value(reply)
        return unpack_frame(writer.take(), part=part)

    odd = Packed(packed)
    assert read({"ok": True, "result": odd})["result"].data == packed
    job = {"id": "a", "data": odd, "returnvalue": odd}
    for got in (
        read({"job": job})["job"],
        read({"jobs": [{}, job]})["jobs"][1],
        read({"entries": [{"job": job}]})["entries"][0]["job"],
        read({"data": {"jobs": [job]}})["data"]["jobs"][0],
        read(job, part=True),
    ):
        assert got["id"] == "a"
        assert got["data"].data == got["returnvalue"].data == packed
    values = read({"data": {"values": {"q:a": 1, "q:b": odd}, "processed": {"q:c": odd, "q:d": [2]}}})["data"]
    assert (values["values"]["q:a"], values["processed"]["q:d"]) == (1, [2])
    assert values["values"]["q:b"].data == values["processed"]["q:c"].data == packed
    raw = read(
        {"type": "event", "event": {"eventType": "completed", "queue": "q", "jobId": "a", "data": odd}}
    )
    event = read_event(raw["event"])
    assert isinstance(event, Completed)
    assert event.returnvalue.data == packed
    # Where no payload is, such a value is no reply.
    with pytest.raises(Exception, match=r"map key|timestamp|typed"):
        read({"ok": True, "counts": odd})
