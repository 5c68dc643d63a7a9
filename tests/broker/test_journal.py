"""The events of a queue as rows: exactly those that are counted, in order, over restarts and failures."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgpack
import pytest
from broker_talk import Talk, frames

from qclient.url import parse_url
from qcore.broker import open_broker
from qcore.broker.core import Broker
from qcore.broker.opening import close_broker, commit, flush
from qcore.clock import ManualClock
from qcore.store.base import Cut, StoreFault
from qcore.store.memory import MemoryStore

SEED = bytes(range(16))
FULL = StoreFault("no space left", "full")


def opened(store: Any, clock: ManualClock, **options: Any) -> Broker:
    return open_broker(
        store=store,
        mode="server",
        clock=clock,
        seed=SEED,
        **{"keep_events": True, "max_events": 50, **options},
    )


class Ear:
    """A connection that gets every event of a queue."""

    def __init__(self, broker: Broker) -> None:
        self.talk = Talk(broker)
        self.talk.good("SubscribeEvents", queue="q")

    def heard(self) -> list[dict[str, Any]]:
        return [message["event"] for message in frames(self.talk.session.take())]


def journal(talk: Talk, **fields: Any) -> list[dict[str, Any]]:
    return [
        entry["event"]
        for entry in talk.good("GetEvents", queue="q", **{"limit": 1000, **fields})["data"]["events"]
    ]


def rows(store: MemoryStore) -> int:
    return len(store.load().side["journal"])


def committed(broker: Broker) -> None:
    while (cut := broker.begin_commit()) is not None:
        commit(broker, cut)


def act(talk: Talk, rng: random.Random, clock: ManualClock) -> None:
    """Something that happens to the queue; also under a disk that fails."""
    what = rng.choice(["add", "add", "durable", "batch", "work", "work", "fail", "cancel", "pause"])
    if what == "batch":
        jobs = [{"name": "n", "durable": rng.random() < 0.3} for _ in range(rng.randint(1, 9))]
        talk.send({"cmd": "PUSHB", "queue": "q", "jobs": jobs})
    elif what in ("add", "durable"):
        talk.send({"cmd": "PUSH", "queue": "q", "name": "n", "data": {"x": 1}, "durable": what == "durable"})
    elif what == "pause":
        talk.send({"cmd": "Resume", "queue": "q"})
    else:
        talk.session.take()
        talk.send({"cmd": "PULL", "queue": "q"})
        for reply in frames(talk.session.take()):
            if reply.get("job"):
                job_id = reply["job"]["id"]
                if what == "work":
                    talk.send({"cmd": "Progress", "id": job_id, "progress": 5, "message": "on"})
                    talk.send({"cmd": "ACK", "id": job_id, "result": {"a": rng.random()}})
                elif what == "fail":
                    talk.send({"cmd": "FAIL", "id": job_id, "error": "x"})
                else:
                    talk.send({"cmd": "MoveToWait", "id": job_id})
    clock.advance(rng.randint(0, 50))


def by_job(events: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The events of each job in order.

    A durable add is told when its commit has succeeded and written down in that commit, so that
    its time is another, and what happens meanwhile stands before it here and behind it there.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        told = {k: v for k, v in event.items() if event["eventType"] != "pushed" or k != "timestamp"}
        found.setdefault(event["jobId"], []).append(told)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_the_journal_is_what_was_told_and_counts(clock: ManualClock, seed: int) -> None:
    rng = random.Random(seed)
    store = MemoryStore()
    broker = opened(store, clock, max_events=100_000)
    expected: list[dict[str, Any]] = []
    for _ in range(40):
        ear, talk = Ear(broker), Talk(broker)
        for _ in range(rng.randint(1, 25)):
            if rng.random() < 0.1:
                store.broken = None if store.broken else FULL
            act(talk, rng, clock)
            if rng.random() < 0.3 and (cut := broker.begin_commit()) is not None:
                act(talk, rng, clock)  # while the commit is on its way
                commit(broker, cut)
            broker.pump()
            if broker.committing:  # a cut of the pump's own
                broker.end_commit(FULL)
        store.broken = None
        clock.advance(60_000)
        committed(broker)
        talk.session.take()
        expected += ear.heard()
        assert by_job(journal(talk)) == by_job(expected)
        if (queue := broker.engine.queue("q")) is None:
            assert not expected
        else:
            assert queue.n_events == len(expected)
        if rng.random() < 0.3:
            kept = rng.choice((0, 3, 20, 1000))
            removed = talk.good("TrimEvents", queue="q", maxLength=kept)["data"]["removed"]
            assert removed == max(0, len(expected) - kept)
            if removed:
                before = expected
                expected = journal(talk)
                assert len(expected) == kept
                assert all(event["jobId"] in by_job(before) for event in expected)
        if rng.random() < 0.1:
            talk.good("Obliterate", queue="q")
            expected = []
        committed(broker)
        broker.engine._check()
        # A row is written for a cut, and goes when all of it is too old.
        assert rows(store) <= len(expected) + 1
        store = store.reopened()
        broker = opened(store, clock, max_events=100_000)
        broker.engine._check()
        assert by_job(journal(Talk(broker))) == by_job(expected)


@pytest.mark.parametrize("seed", range(4))
def test_the_cap_holds_exactly_over_restarts(clock: ManualClock, seed: int) -> None:
    """The newest 50 count, however they were written, and no row is left that holds none of them."""
    rng = random.Random(seed)
    store = MemoryStore()
    told = 0
    for _ in range(60):
        broker = opened(store, clock)
        ear, talk = Ear(broker), Talk(broker)
        for _ in range(rng.randint(1, 25)):
            act(talk, rng, clock)
            if rng.random() < 0.5:
                committed(broker)
        committed(broker)
        talk.session.take()
        told = min(50, told + len(ear.heard()))
        found = journal(talk)
        queue = broker.engine.queue("q")
        assert len(found) == told == (0 if queue is None else queue.n_events)
        broker.engine._check()
        close_broker(broker)
        store = store.reopened()
        assert rows(store) <= told
    assert told == 50


@pytest.mark.parametrize("durable", [False, True], ids=["plain", "durable"])
@pytest.mark.parametrize("keep_events", [False, True], ids=["counted", "kept"])
@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_a_cap_that_changes_brings_nothing_back(
    tmp_path: Path, clock: ManualClock, keep_events: bool, durable: bool, clean: bool
) -> None:
    """What a lower cap let go is gone, from the count, the list and the file, also without any event."""
    home = tmp_path / "0"
    home.mkdir()
    rng = random.Random(5)
    expected: list[str] = []
    lives = [(100, 40), (10, 0), (100, 3), (10, 12), (5, 1), (1000, 5), (0, 0), (100, 2), (0, 3), (100, 4)]
    lives += [(rng.choice((0, 1, 4, 9, 30)), rng.randint(0, 12)) for _ in range(12)]
    for life, (cap, n) in enumerate(lives):
        path = str(home / "jobs.db")
        broker = open_broker(
            path, mode="server", clock=clock, seed=SEED, keep_events=keep_events, max_events=cap
        )
        broker.engine._check()
        talk = Talk(broker)
        expected = expected[max(0, len(expected) - cap) :]
        for i in range(n + 1):
            found = talk.good("GetEvents", queue="q", limit=1000)["data"]
            assert found["count"] == len(expected), (life, i)
            if keep_events:
                assert [entry["event"]["jobId"] for entry in found["events"]] == expected
            if i < n:
                talk.good("PUSH", queue="q", name="n", jobId=f"{life}-{i}", durable=durable)
                if rng.random() < 0.5:
                    flush(broker)
                expected = [*expected, f"{life}-{i}"][max(0, len(expected) + 1 - cap) :]
        if life % 3 == 2:
            kept = rng.choice((0, 3, 7))
            removed = talk.good("TrimEvents", queue="q", maxLength=kept)["data"]["removed"]
            assert removed == max(0, len(expected) - kept), life
            expected = expected[max(0, len(expected) - kept) :]
        flush(broker)
        if not clean:
            home = Path(shutil.copytree(home, tmp_path / f"{life + 1}"))
        close_broker(broker)
        if clean and durable:
            with closing(sqlite3.connect(path)) as con:
                (left,) = con.execute("SELECT count(*) FROM journal").fetchone()
            assert left == (len(expected) if keep_events else 0), life


def test_rows_go_from_the_file_exactly_when_they_do_not_count(clock: ManualClock) -> None:
    store = MemoryStore()
    broker = opened(store, clock)
    talk = Talk(broker)
    for _ in range(200):
        talk.good("PUSH", queue="q", name="n")
        flush(broker)
        assert rows(store) == min(50, broker.engine.queue("q").n_events)
    talk.good("TrimEvents", queue="q", maxLength=7)
    assert rows(store) == 7
    talk.good("TrimEvents", queue="q", maxLength=0)
    assert rows(store) == 0
    talk.good("PUSHB", queue="q", jobs=[{"name": "n"}] * 700)
    flush(broker)
    assert rows(store) == 1, "a batch that is larger than the cap leaves one row of what counts"
    assert len(journal(talk)) == 50


def test_a_closed_file_holds_no_more_than_the_cap(clock: ManualClock) -> None:
    """A durable add pushes out the oldest event once its commit is over, also when it is the last."""
    store = MemoryStore()
    broker = opened(store, clock, max_events=10)
    for n in range(15):
        Talk(broker).good("PUSH", queue="q", name="n", jobId=str(n), durable=True)
    close_broker(broker)
    store = store.reopened()
    assert rows(store) == 10
    broker = opened(store, clock, max_events=1000)
    assert [event["jobId"] for event in journal(Talk(broker))] == [str(n) for n in range(5, 15)]


def test_a_smaller_cap_and_a_journal_that_is_turned_off(clock: ManualClock) -> None:
    store = MemoryStore()
    broker = opened(store, clock)
    talk = Talk(broker)
    for n in range(20):
        talk.good("PUSH", queue="q", name="n", jobId=str(n))
        flush(broker)
    store = store.reopened()
    broker = opened(store, clock, max_events=5)
    assert [event["jobId"] for event in journal(Talk(broker))] == ["15", "16", "17", "18", "19"]
    flush(broker)
    assert rows(store) == 5
    store = store.reopened()
    broker = opened(store, clock, max_events=0)
    assert journal(Talk(broker)) == []
    Talk(broker).good("PUSH", queue="q", name="n")
    flush(broker)
    assert rows(store) == 0
    assert broker.engine.queue("q").n_events == 0
    assert broker.engine.queue("q").completions.total == 0

    store = MemoryStore()
    broker = opened(store, clock)
    Talk(broker).good("PUSH", queue="q", name="n")
    flush(broker)
    store = store.reopened()
    broker = opened(store, clock, keep_events=False)
    flush(broker)
    assert rows(store) == 0
    assert broker.engine.queue("q").n_events == 1, "what is counted stays"


def test_a_journal_that_is_turned_on_again_counts_what_is_there(clock: ManualClock) -> None:
    """Events of a time without rows counted beyond them, and a trim answered with more than it removed."""
    store = MemoryStore()
    for life, keep_events in enumerate((False, True, False, True, True)):
        broker = opened(store, clock, keep_events=keep_events)
        talk = Talk(broker)
        talk.good("PUSHB", queue="q", jobs=[{"name": "n", "customId": f"{life}-{n}"} for n in range(3)])
        flush(broker)
        found = talk.good("GetEvents", queue="q", limit=100)["data"]
        assert len(found["events"]) == (0, 3, 0, 3, 6)[life]
        # Without rows every event counts, with them those that are there.
        assert found["count"] == (3, 3, 6, 3, 6)[life]
        broker.engine._check()
        store = store.reopened()
    assert talk.good("TrimEvents", queue="q", maxLength=2)["data"]["removed"] == 4
    assert [event["jobId"] for event in journal(talk)] == ["4-1", "4-2"]


def test_pages_by_number(clock: ManualClock) -> None:
    broker = opened(MemoryStore(), clock, max_events=1000)
    talk = Talk(broker)
    for n in range(30):
        talk.good("PUSHB", queue="q", jobs=[{"name": "n", "customId": f"{n}-{i}"} for i in range(n)])
        if n % 3 == 0:
            flush(broker)
    seen: list[str] = []
    after = 0
    while page := talk.good("GetEvents", queue="q", after=after, limit=100)["data"]["events"]:
        assert len(page) <= 100
        numbers = [int(entry["number"]) for entry in page]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        seen += [entry["event"]["jobId"] for entry in page]
        after = numbers[-1]
    assert seen == [f"{n}-{i}" for n in range(30) for i in range(n)]
    assert talk.good("GetEvents", queue="none")["data"] == {"events": [], "count": 0}
    assert talk.good("GetEvents", queue="q", limit=0)["data"] == {"events": [], "count": len(seen)}
    # Numbers go on after a restart, also when nothing is left of the journal.
    talk.good("TrimEvents", queue="q", maxLength=0)
    clock.advance(1)
    again = Talk(opened(broker.store.reopened(), clock))
    again.good("PUSH", queue="q", name="n", jobId="new")
    (entry,) = again.good("GetEvents", queue="q", after=after)["data"]["events"]
    assert entry["event"]["jobId"] == "new"


def test_large_payloads_are_left_out(clock: ManualClock) -> None:
    broker = opened(MemoryStore(), clock)
    talk = Talk(broker)
    for size in (10, 5000):
        for job_id in (f"good-{size}", f"bad-{size}"):
            talk.good("PUSH", queue="q", name="n", jobId=job_id, data="d" * size)
        talk.good("PULLB", queue="q", count=2)
        talk.good("ACK", id=f"good-{size}", result="r" * size)
        talk.good("FAIL", id=f"bad-{size}", error="why", unrecoverable=True)
    ends = {event["jobId"]: event for event in journal(talk) if event["eventType"] in ("completed", "failed")}
    assert ends["good-10"]["data"] == "r" * 10
    assert ends["bad-10"]["data"] == "d" * 10
    assert "data" not in ends["good-5000"]
    assert "data" not in ends["bad-5000"]
    assert ends["bad-5000"]["error"] == "why"


def test_without_a_file_or_the_option_there_are_no_rows(clock: ManualClock) -> None:
    for broker in (opened(None, clock), opened(MemoryStore(), clock, keep_events=False)):
        talk = Talk(broker)
        talk.good("PUSH", queue="q", name="n")
        assert talk.good("GetEvents", queue="q")["data"] == {"events": [], "count": 1}


def test_an_unreadable_row_is_left_alone(tmp_path: Path, clock: ManualClock, caplog: Any) -> None:
    path = str(tmp_path / "jobs.db")
    broker = open_broker(path, mode="server", clock=clock, seed=SEED, keep_events=True)
    Talk(broker).good("PUSH", queue="q", name="n", durable=True)
    broker.store._con.execute("INSERT INTO journal VALUES (0, x'93010203')")
    close_broker(broker)
    broker = open_broker(path, mode="server", clock=clock, seed=SEED, keep_events=True)
    assert "row 0 of the journal cannot be read" in caplog.text
    assert len(journal(Talk(broker))) == 1
    assert broker.engine.queue("q").n_events == 1
    close_broker(broker)


def test_an_embedded_file_says_it_in_its_url() -> None:
    assert parse_url("sqlite:///a.db?journal=on", {}).journal is True
    assert parse_url("sqlite:///a.db?journal=off", {"QCORE_JOURNAL": "1"}).journal is False
    assert parse_url("sqlite:///a.db", {"QCORE_JOURNAL": "1"}).journal is True
    assert parse_url("sqlite:///a.db", {}).journal is None


@pytest.mark.parametrize(
    ("holder", "name"),
    [(msgpack, "packb"), (Cut, "__init__"), (Cut, "merge_under")],
    ids=["a row", "the cut", "its join"],
)
def test_nothing_is_journalled_twice_when_a_cut_could_not_be_made(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, holder: Any, name: str
) -> None:
    """Memory lacks for one more row each time, for the whole cut, or to join it to the one before it."""
    store = MemoryStore()
    broker = opened(store, clock)
    talk = Talk(broker)
    talk.send({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": "plain"})
    assert broker.begin_commit() is not None
    jobs = [{"name": "n", "customId": f"durable-{n}", "durable": True} for n in range(2)]
    talk.send({"cmd": "PUSHB", "queue": "q", "jobs": jobs})
    talk.send({"cmd": "PUSH", "queue": "other", "name": "n", "jobId": "elsewhere", "durable": True})
    broker.end_commit(FULL)
    real = getattr(holder, name)
    for n_made in range(3):
        left = n_made if name == "packb" else 0

        def no_memory(*args: Any, **more: Any) -> Any:
            nonlocal left
            if left == 0:
                raise MemoryError
            left -= 1
            return real(*args, **more)

        with monkeypatch.context() as patch:
            patch.setattr(holder, name, no_memory)
            with pytest.raises(MemoryError):
                broker.begin_commit()
        talk.send({"cmd": "PUSH", "queue": "q", "name": "n"})
    committed(broker)
    broker.engine._check()
    for life in range(2):
        if life:
            broker = opened(store.reopened(), clock)
        talk = Talk(broker)
        events = journal(talk)
        ids = [event["jobId"] for event in events if event["eventType"] == "pushed"]
        assert len(ids) == len(set(ids)) == 6
        assert {"plain", "durable-0", "durable-1"} < set(ids)
        found = talk.good("GetEvents", queue="other", limit=10)["data"]
        assert ([entry["event"]["jobId"] for entry in found["events"]], found["count"]) == (["elsewhere"], 1)


@pytest.mark.parametrize("error", [None, FULL])
def test_who_reads_on_during_a_commit_misses_nothing(clock: ManualClock, error: StoreFault | None) -> None:
    """What happens while a durable add is on its way has a number behind it, or the number it had."""
    store = MemoryStore()
    broker = opened(store, clock)
    talk, reader = Talk(broker), Talk(broker)
    talk.send({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": "before"})
    talk.send({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": "durable", "durable": True})
    cut = broker.begin_commit()
    assert cut is not None
    talk.send({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": "meanwhile"})
    read = reader.good("GetEvents", queue="q", limit=10)["data"]["events"]
    if error is None:
        store.commit(cut)
    broker.end_commit(error)
    talk.send({"cmd": "PUSH", "queue": "q", "name": "n", "jobId": "after"})
    read += reader.good("GetEvents", queue="q", limit=10, after=read[-1]["number"])["data"]["events"]
    expected = ["before", "durable", "meanwhile", "after"]
    if error is not None:
        expected.remove("durable")
    assert [entry["event"]["jobId"] for entry in read] == expected
    assert reader.good("GetEvents", queue="q", limit=10)["data"]["events"] == read
    committed(broker)
    again = Talk(opened(store.reopened(), clock))
    assert again.good("GetEvents", queue="q", limit=10)["data"]["events"] == read
