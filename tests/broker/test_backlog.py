"""Small requests for large replies wait for room."""

from __future__ import annotations

from broker_talk import Talk, frame, frames

from qcore.broker import open_broker

DATA = "x" * 1_000_000


def test_requests_wait_until_their_predecessors_replies_are_taken() -> None:
    talk = Talk(open_broker())
    talk.good("PUSH", queue="q", name="n", jobId="big", data=DATA)
    talk.session.feed(frame({"cmd": "GetJob", "id": "big", "reqId": 1}) * 100 + frame({"cmd": "Ping"})[:6])
    assert talk.session.backlogged
    assert talk.session.partial == 0
    got = 0
    rounds = 0
    while talk.session.has_output:
        data = talk.session.take()
        assert len(data) < 10_000_000
        got += len(frames(data))
        rounds += 1
        talk.session.resume()
    assert (got, talk.session.backlogged) == (100, False)
    assert rounds >= 10
    # What came meanwhile is not lost, nor what is not whole yet.
    talk.session.feed(frame({"cmd": "Ping"})[6:])
    assert [reply["ok"] for reply in talk.replies()] == [True]


def test_a_fault_of_ours_costs_its_caller_an_error_and_nobody_else_anything() -> None:
    talk = Talk(open_broker())
    for count in (1e300, 2**64 - 1):
        reply = talk.ask("RetryDlq", queue="q", count=count)
        assert reply["error"].startswith("count must be at most")
    assert talk.good("Ping")
