"""Events of a queue in Python, the same on every engine."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from qclient import ClosedError, ConfigError, Queue, QueueEvents, UnrecoverableError, WaitTimeout, Worker
from qclient import events as kinds
from qcore.errors import TransportError


def take(events: QueueEvents, n: int) -> list[kinds.Event]:
    return [events.get(60) for _ in range(n)]


def test_the_life_of_jobs(engine_url: str, name: str) -> None:
    def process(job: Any) -> Any:
        if job.name == "bad":
            raise UnrecoverableError("no")
        job.set_progress(50, "half")
        return {"n": job.data}

    with Queue(name, engine_url) as queue, QueueEvents(name, engine_url) as events:
        good = queue.add("good", 1, dedup="k")
        queue.add("good", 2, dedup="k")
        later = queue.add("good", delay=3600)
        queue.remove(later.id)
        queue.pause()
        queue.resume()
        assert [(type(e), e.job_id) for e in take(events, 6)] == [
            (kinds.Waiting, good.id),
            (kinds.Duplicated, good.id),
            (kinds.Waiting, later.id),
            (kinds.Removed, later.id),
            (kinds.Paused, ""),
            (kinds.Resumed, ""),
        ]
        with Worker(queue, process):
            good.result(60)
            active, progress, completed = take(events, 3)
            bad = queue.add("bad", attempts=3)
            assert bad.wait(60)
            _, _, failed = take(events, 3)
        assert isinstance(active, kinds.Active)
        assert isinstance(progress, kinds.Progress)
        assert (progress.value, progress.message) == (50, "half")
        assert isinstance(completed, kinds.Completed)
        assert completed.returnvalue == {"n": 1}
        assert completed.queue == name
        assert completed.at is not None
        assert isinstance(failed, kinds.Failed)
        assert (failed.reason, failed.terminal) == ("no", True)
        with pytest.raises(WaitTimeout):
            events.get(0.01)
    with pytest.raises(ClosedError):
        events.get()
    with pytest.raises(ClosedError):
        events.wait_ready()


def test_only_what_is_asked_for(engine_url: str, name: str) -> None:
    with Queue(name, engine_url) as queue:
        with QueueEvents(name, engine_url, types=["paused", "waiting_children"]) as events:
            queue.add("n")
            queue.pause()
            assert isinstance(events.get(60), kinds.Paused)
        with pytest.raises(ConfigError, match="did you mean 'completed'"):
            QueueEvents(name, engine_url, types=["complete"])
        with pytest.raises(ConfigError, match="at least one"):
            QueueEvents(name, engine_url, types=[])
        with pytest.raises(TypeError, match="types must be a list of names, not str"):
            QueueEvents(name, engine_url, types="completed")


def test_listeners_and_iteration(engine_url: str, name: str) -> None:
    heard: list[str] = []
    errors: list[BaseException] = []
    told = threading.Event()

    def broken(event: kinds.Event) -> None:
        raise ValueError(event.job_id)

    def note(event: kinds.Event) -> None:
        heard.append(event.job_id)
        if len(heard) == 2:
            told.set()

    with Queue(name, engine_url) as queue:
        events = QueueEvents(name, engine_url, types=["waiting"])
        events.on("error", errors.append)
        events.on("waiting", broken)
        events.on("waiting", note)
        events.wait_ready(60)
        ids = [queue.add("n").id for _ in range(2)]
        assert told.wait(60)
        assert heard == ids
        assert [str(error) for error in errors] == ids
        seen = []
        for event in events:
            seen.append(event.job_id)
            if len(seen) == 2:
                events.close()
        assert seen == ids
        events.close()


def test_a_slow_reader_is_told_what_it_lost(
    engine_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds, "MAX_BUFFERED", 3)
    with (
        Queue(name, engine_url) as queue,
        QueueEvents(name, engine_url, types=["waiting", "paused"]) as events,
    ):
        last = threading.Event()
        events.on("paused", lambda event: last.set())
        ids = [job.id for job in queue.add_bulk([("n", i) for i in range(5)])]
        queue.pause()
        assert last.wait(60)
        overflow = events.get(60)
        assert isinstance(overflow, kinds.Overflow)
        assert overflow.n == 3
        assert [event.job_id for event in take(events, 3)] == [*ids[3:], ""]


def test_after_an_outage_there_is_a_gap(proxy: Any, tcp_url: str, name: str) -> None:
    errors: list[object] = []
    with Queue(name, tcp_url) as queue:
        events = QueueEvents(name, proxy.url, types=["waiting"])
        events.on("error", errors.append)
        with events:
            first = queue.add("n")
            assert events.get(60).job_id == first.id
            proxy.kill()
            gap = events.get(60)
            assert isinstance(gap, kinds.Resubscribed)
            assert gap.gap
            assert len(errors) == 1  # of an outage, whatever it took
            second = queue.add("n")
            assert events.get(60).job_id == second.id
    assert len(proxy.commands("SubscribeEvents")) == 2


def test_nobody_at_the_address() -> None:
    events = QueueEvents("q", "tcp://127.0.0.1:1")
    events.on("error", lambda error: None)
    with pytest.raises(TransportError, match="no engine answers"):
        events.wait_ready(60)
    events.close()


def test_c044_closing_ends_in_every_state(proxy: Any, name: str) -> None:
    def closed_in_time(events: QueueEvents) -> None:
        started = time.monotonic()
        events.close()
        assert time.monotonic() - started < 5
        with pytest.raises(ClosedError):
            events.wait_ready(1)

    closed_in_time(QueueEvents(name, proxy.url))  # before it began
    frozen = QueueEvents(name, proxy.url)
    frozen.wait_ready(60)
    proxy.frozen.set()
    closed_in_time(frozen)
    silent = QueueEvents(name, proxy.url)  # in the middle of the greeting
    with pytest.raises(WaitTimeout):
        silent.wait_ready(0.2)
    closed_in_time(silent)
    proxy.frozen.clear()
    again = QueueEvents(name, proxy.url)
    lost = threading.Event()
    again.on("error", lambda error: lost.set())
    again.wait_ready(60)
    proxy.stop_listening()
    proxy.kill()
    assert lost.wait(60)
    closed_in_time(again)  # while it tries to connect


def test_c044_an_interpreter_ends_though_events_are_open(tcp_url: str, name: str) -> None:
    code = (
        "from qclient import *\n"
        f"events = QueueEvents({name!r}, {tcp_url!r})\n"
        f"local = QueueEvents({name!r}, 'memory://')\n"
        "events.wait_ready(60), local.wait_ready(60)\n"
        "print('open')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "open\n")
    assert "Traceback" not in done.stderr
