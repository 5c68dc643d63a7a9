"""Hooks that are many, slow, silent or told of too much: what the others and the server notice of it."""

from __future__ import annotations

import contextlib
import json
import logging
import random
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import msgpack
import pytest
import trustme
from broker_talk import Talk
from hook_ear import LOOPBACK, PATIENCE_S, Ear, Silent, hook, telling, wait_for

from qcore.broker import open_broker
from qcore.broker.lookups import Lookups
from qcore.broker.opening import commit
from qcore.broker.posting import encoded, weight
from qcore.broker.webhooks import HOOK_EVENTS, Hook, Hooks, HookSettings
from qcore.clock import ManualClock
from qcore.engine.table import EVENT_BITS
from qcore.limits import DEFAULT_MAX_WEBHOOKS, MAX_DATA_BYTES, MAX_NESTING, MIN_WAITING_POST_BYTES
from qcore.server.loop import Server
from qcore.server.options import Options
from qcore.store.memory import MemoryStore

SEED = bytes(range(16))
LONG_MS = 600_000


# --- slow ones -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "start", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n"]
)
def test_an_answer_in_drips_ends_with_the_time_of_a_post(start: bytes) -> None:
    ended = threading.Event()

    def drip(listener: socket.socket) -> None:
        sock, _ = listener.accept()
        with sock, contextlib.suppress(OSError):
            sock.sendall(start)
            while not ended.wait(0.01):
                sock.sendall(b"x")

    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        telling(timeout_ms=300, tries=1) as (engine, talk),
    ):
        thread = threading.Thread(target=drip, args=(listener,), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        hook_id = talk.good("AddWebhook", url=url, events=["job.pushed"])["data"]["webhookId"]
        talk.good("PUSH", queue="q", name="n")
        try:
            assert wait_for(engine, 1)["failureCount"] == 1
            assert engine.broker.hooks.by_id[hook_id].last_status == "no answer in time"
        finally:
            ended.set()
            thread.join(PATIENCE_S)


def test_a_body_that_is_not_read_ends_with_the_time_of_a_post(silent: Silent) -> None:
    with telling(timeout_ms=300, tries=1) as (engine, talk):
        talk.good("AddWebhook", url=silent.url, events=["job.completed"])
        talk.good("PUSH", queue="q", name="n", jobId="j")
        talk.good("PULL", queue="q")
        talk.good("ACK", id="j", result="x" * 9_000_000)
        assert wait_for(engine, 1)["failureCount"] == 1


def test_a_silent_hook_does_not_hold_up_the_others(ear: Ear, silent: Silent) -> None:
    with telling(timeout_ms=LONG_MS) as (_, talk):
        talk.good("AddWebhook", url=silent.url, events=["job.pushed"])
        hook(talk, ear, ["job.pushed"])
        for n in range(20):
            talk.good("PUSH", queue="q", name="n", jobId=str(n))
        silent.take()
        assert [ear.next()[2]["jobId"] for _ in range(20)] == [str(n) for n in range(20)]
        silent.close()


def test_slow_hooks_leave_threads_to_the_others(ear: Ear, silent: Silent) -> None:
    with telling(timeout_ms=LONG_MS, max_posts=2, tries=1) as (engine, talk):
        for _ in range(3):
            hook_id = talk.good("AddWebhook", url=silent.url, events=["job.pushed"])["data"]["webhookId"]
            engine.broker.hooks.by_id[hook_id].slow = True
        hook(talk, ear, ["job.pushed"])
        talk.good("PUSH", queue="q", name="n", jobId="a")
        taken = silent.take()
        assert ear.next()[2]["jobId"] == "a"
        talk.good("PUSH", queue="q", name="n", jobId="b")
        assert ear.next()[2]["jobId"] == "b"
        taken.close()
        silent.take()  # another of them has its turn
        silent.close()


def test_a_hook_that_took_long_is_slow(silent: Silent) -> None:
    with telling(timeout_ms=300, tries=1) as (engine, talk):
        hook_id = talk.good("AddWebhook", url=silent.url, events=["job.pushed"])["data"]["webhookId"]
        talk.good("PUSH", queue="q", name="n")
        wait_for(engine, 1)
        assert engine.broker.hooks.by_id[hook_id].slow
        assert b"slow" not in engine.broker.hooks.by_id[hook_id].packed()


def test_a_slow_hook_that_is_quick_is_a_slow_one_no_more(ear: Ear) -> None:
    with telling(timeout_ms=LONG_MS) as (engine, talk):
        kept = engine.broker.hooks.by_id[hook(talk, ear, ["job.pushed"])]
        kept.slow = True
        talk.good("PUSH", queue="q", name="n")
        wait_for(engine, 1)
        assert not kept.slow


def test_what_a_hook_is_told_comes_one_by_one_and_in_order(ear: Ear) -> None:
    with telling() as (engine, talk):
        hook(talk, ear, ["job.pushed"])
        for n in range(200):
            talk.good("PUSH", queue="q", name="n", jobId=str(n))
        assert [ear.next()[2]["jobId"] for _ in range(200)] == [str(n) for n in range(200)]
        assert wait_for(engine, 200)["successCount"] == 200


def test_a_hook_is_told_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer and a large body, within the one deadline, under a certificate that is checked."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    ear = Ear(context)
    try:
        with telling(tries=1) as (engine, talk):
            url = f"https://127.0.0.1:{ear.port}/"
            talk.good("AddWebhook", url=url, events=["job.completed"])
            talk.good("PUSH", queue="q", name="n", jobId="j")
            talk.good("PULL", queue="q")
            talk.good("ACK", id="j", result="x" * 3_000_000)
            assert len(ear.next()[2]["data"]) == 3_000_000
            assert wait_for(engine, 1)["successCount"] == 1
    finally:
        ear.close()


# --- too much ----------------------------------------------------------------------------------


def test_what_is_dropped_is_counted_and_logged(silent: Silent, caplog: pytest.LogCaptureFixture) -> None:
    with telling(timeout_ms=LONG_MS, max_waiting=4, tries=1) as (engine, talk):
        hook_id = talk.good("AddWebhook", url=silent.url, events=["job.pushed"])["data"]["webhookId"]
        for _ in range(10):
            talk.good("PUSH", queue="q", name="n")
        silent.take()
        assert wait_for(engine, 6)["failureCount"] == 6
        assert engine.broker.hooks.by_id[hook_id].last_status == "not posted: too many posts wait"
        engine._poster.hurry()  # somebody still posts
    lines = [record.getMessage() for record in caplog.records if "too many posts wait" in record.getMessage()]
    assert 1 <= len(lines) <= 2, lines  # at the first one, and at the end
    assert sum(int(re.findall(r"\d+", line)[-1]) for line in lines) == 6


def test_what_is_counted_as_dropped_is_in_the_log(silent: Silent, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody who sees the count and ends the process misses the line."""
    counted: list[int] = []
    with telling(timeout_ms=LONG_MS, max_waiting=4, tries=1) as (engine, talk):
        hook_id = talk.good("AddWebhook", url=silent.url, events=["job.pushed"])["data"]["webhookId"]

        def look(record: logging.LogRecord) -> bool:
            if "too many posts wait" in record.getMessage():
                counted.append(engine.broker.hooks.by_id[hook_id].n_failed)
            return True

        with caplog.filtering(look):
            for _ in range(5):
                talk.good("PUSH", queue="q", name="n")
            wait_for(engine, 1)
        engine._poster.hurry()  # somebody still posts
    assert counted == [0]


def test_a_hook_cannot_take_all_room(ear: Ear, silent: Silent) -> None:
    with telling(timeout_ms=LONG_MS, max_waiting=10) as (engine, talk):
        first = talk.good("AddWebhook", url=silent.url, events=["job.pushed"], queue="q")["data"]["webhookId"]
        hook(talk, ear, ["job.pushed"], queue="r")
        for _ in range(20):
            talk.good("PUSH", queue="q", name="n")
        silent.take()
        assert wait_for(engine, 11, first)["failureCount"] == 11
        talk.good("PUSH", queue="r", name="n", jobId="j")
        assert ear.next()[2]["jobId"] == "j"
        silent.close()


def test_bytes_that_wait_are_bounded(silent: Silent) -> None:
    with telling(timeout_ms=LONG_MS, max_waiting_bytes=20_000, tries=1) as (engine, talk):
        events = ["job.completed", "job.failed", "job.progress"]
        hook_id = talk.good("AddWebhook", url=silent.url, events=events)["data"]["webhookId"]
        payload = "x" * 3000
        for n in range(4):
            talk.good("PUSH", queue="q", name="n", jobId=str(n))
            talk.good("PULL", queue="q")
            talk.good("ACK", id=str(n), result=payload)
        talk.good("PUSH", queue="q", name="n", jobId="a", data=payload, maxAttempts=1)
        talk.good("PULL", queue="q")
        talk.good("Progress", id="a", progress=1, message=payload)
        talk.good("FAIL", id="a", error="no")
        assert 18_000 < engine._poster._poster.n_waiting_bytes <= 20_000
        talk.good("PUSH", queue="q", name="n", jobId="b", data=payload)
        talk.good("PULL", queue="q")
        talk.good("ACK", id="b", result=payload)
        silent.take()
        assert wait_for(engine, 1)["failureCount"] == 1
        assert engine.broker.hooks.by_id[hook_id].last_status == "not posted: too many posts wait"
        silent.close()
        wait_for(engine, 7)
        assert engine._poster._poster.n_waiting_bytes == 0


def test_bytes_of_one_hook_leave_room_for_the_others(ear: Ear, silent: Silent) -> None:
    with telling(timeout_ms=LONG_MS, max_waiting_bytes=100_000) as (engine, talk):
        url = silent.url
        first = talk.good("AddWebhook", url=url, events=["job.completed"], queue="q")["data"]["webhookId"]
        hook(talk, ear, ["job.completed"], queue="r")
        for n in range(30):
            talk.good("PUSH", queue="q", name="n", jobId=str(n))
            talk.good("PULL", queue="q")
            talk.good("ACK", id=str(n), result="x" * 5000)
        silent.take()
        assert wait_for(engine, 12, first)["failureCount"] == 12  # 18 of them are 90 % of the room
        talk.good("PUSH", queue="r", name="n", jobId="j")
        talk.good("PULL", queue="r")
        talk.good("ACK", id="j", result="x" * 5000)
        assert ear.next()[2]["jobId"] == "j"
        silent.close()


def test_the_greatest_payload_has_room() -> None:
    settings = HookSettings()
    payload = b"x" * MAX_DATA_BYTES
    assert weight(("h", "failed", "q", "j", 5, ("e", True, payload, 0))) <= MIN_WAITING_POST_BYTES
    assert settings.max_waiting_bytes >= MIN_WAITING_POST_BYTES
    assert weight(("h", "pushed", "q", "j", 5, None)) == 0


# --- names -------------------------------------------------------------------------------------


class Resolver:
    """What the system asks for names, which says nothing about some of them until it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: Queue[str] = Queue()
        self.answers = threading.Event()
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self)

    def __call__(self, host: str, *rest: Any, **more: Any) -> Any:
        if host.endswith(".example"):
            self.asked.put(host)
            assert self.answers.wait(PATIENCE_S)
            host = "127.0.0.1"
        return self._real(host, *rest, **more)


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    resolver = Resolver(monkeypatch)
    yield resolver
    resolver.answers.set()


def test_a_lookup_that_hangs_ends_with_the_time_of_a_post(ear: Ear, resolver: Resolver) -> None:
    with telling(timeout_ms=100, tries=1, max_posts=1) as (engine, talk):
        url = f"http://hangs.example:{ear.port}/"
        hook_id = talk.good("AddWebhook", url=url, events=["job.pushed"])["data"]["webhookId"]
        for n in range(3):
            talk.good("PUSH", queue="q", name="n", jobId=str(n))
        assert wait_for(engine, 3, hook_id)["failureCount"] == 3
        assert engine.broker.hooks.by_id[hook_id].last_status == "the name could not be looked up in time"
        assert resolver.asked.qsize() == 1  # the others joined the first
        hook(talk, ear, ["job.pushed"], queue="r")  # the only thread is free
        talk.good("PUSH", queue="r", name="n", jobId="j")
        assert ear.next()[2]["jobId"] == "j"


def test_a_name_is_told_at_the_address_that_was_found(ear: Ear, resolver: Resolver) -> None:
    resolver.answers.set()
    with telling(timeout_ms=LONG_MS, tries=1) as (engine, talk):
        talk.good("AddWebhook", url=f"http://there.example:{ear.port}/", events=["job.pushed"])
        talk.good("PUSH", queue="q", name="n", jobId="j")
        _, headers, body = ear.next()
        assert (headers["Host"], body["jobId"]) == (f"there.example:{ear.port}", "j")
        assert wait_for(engine, 1)["successCount"] == 1


def test_lookups_are_bounded_and_the_next_begins_when_one_ends(resolver: Resolver) -> None:
    lookups = Lookups(most=2)
    found: Queue[str] = Queue()

    def find(host: str) -> None:
        lookups.find(host, time.monotonic() + PATIENCE_S)
        found.put(host)

    hosts = [f"h{n}.example" for n in range(5)]
    threads = [threading.Thread(target=find, args=(host,), daemon=True) for host in hosts]
    for thread in threads[:2]:
        thread.start()
    assert {resolver.asked.get(timeout=PATIENCE_S) for _ in range(2)} == set(hosts[:2])
    with pytest.raises(TimeoutError):
        lookups.find("late.example", time.monotonic() + 0.05)
    assert lookups.find("127.0.0.1", 0.0)  # nobody is asked
    for thread in threads[2:]:
        thread.start()
    assert resolver.asked.empty()
    resolver.answers.set()
    assert {found.get(timeout=PATIENCE_S) for _ in hosts} == set(hosts)
    assert {resolver.asked.get(timeout=PATIENCE_S) for _ in range(3)} == set(hosts[2:])


def test_a_name_without_an_address_says_so(ear: Ear) -> None:
    with telling(tries=1) as (engine, talk):
        hook_id = talk.good("AddWebhook", url="http://a.invalid/", events=["job.pushed"])["data"]["webhookId"]
        talk.good("PUSH", queue="q", name="n")
        assert wait_for(engine, 1)["failureCount"] == 1
        assert "name" in str(engine.broker.hooks.by_id[hook_id].last_status).lower()


# --- the end -----------------------------------------------------------------------------------


def test_a_close_that_is_hurried_waits_for_no_post(silent: Silent) -> None:
    with telling(timeout_ms=LONG_MS) as (engine, talk):
        talk.good("AddWebhook", url=silent.url, events=["job.pushed"])
        talk.good("PUSH", queue="q", name="n")
        silent.take()
        closing = threading.Thread(target=engine._poster.close, args=(LONG_MS / 1000,), daemon=True)
        closing.start()
        engine._poster.hurry()
        closing.join(PATIENCE_S)
        assert not closing.is_alive()


def test_a_close_ends_with_the_last_post(silent: Silent) -> None:
    with telling(timeout_ms=LONG_MS, tries=1) as (engine, talk):
        talk.good("AddWebhook", url=silent.url, events=["job.pushed"])
        talk.good("PUSH", queue="q", name="n")
        silent.take().close()
        closing = threading.Thread(target=engine._poster.close, args=(LONG_MS / 1000,), daemon=True)
        closing.start()
        closing.join(PATIENCE_S)
        assert not closing.is_alive()


def test_the_second_stop_of_a_server_waits_for_no_post(silent: Silent) -> None:
    server = Server(Options(port=0, webhook_allowed=LOOPBACK))
    try:
        talk = Talk(server.broker)
        talk.good("AddWebhook", url=silent.url, events=["job.pushed"])
        talk.good("PUSH", queue="q", name="n")
        silent.take()
        server.stop()
        server.stop()
        closing = threading.Thread(target=server._poster.close, args=(LONG_MS / 1000,), daemon=True)
        closing.start()
        closing.join(PATIENCE_S)
        assert not closing.is_alive()
    finally:
        server.abandon()


# --- payloads ------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", [b"\x91", b"\x81\x01"], ids=["lists", "maps"])
def test_payloads_that_nest_as_deep_as_they_may(head: bytes) -> None:
    text = encoded(("h", "completed", "q", "j", 5, (head * MAX_NESTING + b"\xc0", 0)))
    found = json.loads(text)["data"]
    for _ in range(MAX_NESTING):
        (found,) = found.values() if isinstance(found, dict) else found
    assert found is None


def test_a_payload_that_nests_deep_is_told(ear: Ear) -> None:
    depth = MAX_NESTING - 6
    with telling() as (engine, talk):
        hook(talk, ear, ["job.completed"])
        result: object = 1
        for _ in range(depth):
            result = [result]
        talk.good("PUSH", queue="q", name="n", jobId="j")
        talk.good("PULL", queue="q")
        talk.good("ACK", id="j", result=result)
        assert ear.next()[2]["data"] == result
        assert wait_for(engine, 1)["successCount"] == 1


def test_times_are_texts_where_they_are_dates() -> None:
    packed = msgpack.packb([msgpack.Timestamp(0, 5000), msgpack.Timestamp(2**62, 0)])
    data = json.loads(encoded(("h", "completed", "q", "j", 5, (packed, 0))))["data"]
    assert data == ["1970-01-01T00:00:00.000005+00:00", None]


def test_a_fault_of_ours_is_named_as_ours(ear: Ear, caplog: pytest.LogCaptureFixture) -> None:
    with telling(tries=3) as (engine, talk):
        hook_id = hook(talk, ear, ["job.pushed"])
        with engine.broker as broker:
            broker.deliver([(hook_id, "completed", "q", "j", 5, (b"\xc1 secret", 0))])  # no MessagePack
        assert wait_for(engine, 1)["failureCount"] == 1
        assert engine.broker.hooks.by_id[hook_id].last_status == "a fault of the server"
        talk.good("PUSH", queue="q", name="n")
        assert ear.next()[2]["event"] == "job.pushed"
        assert wait_for(engine, 2)["successCount"] == 1
    assert f"webhook {hook_id}: a fault of ours: " in caplog.text
    assert "HTTP" not in caplog.text
    assert "secret" not in caplog.text


# --- many ----------------------------------------------------------------------------------------


def test_the_number_of_hooks_is_bounded(clock: ManualClock) -> None:
    talk = Talk(open_broker(clock=clock, seed=SEED))
    talk.good("Hello", capabilities=["codes"])
    url = "https://example.com/"
    for n in range(DEFAULT_MAX_WEBHOOKS):
        talk.good("AddWebhook", url=url, events=["job.pushed"], queue=f"q{n % 10}")
    refused = talk.ask("AddWebhook", url=url, events=[])
    assert refused["ok"] is False
    assert (refused["code"], refused["error"]) == (
        "limit",
        "There are 1000 webhooks, and 1000 are the most that there may be",
    )
    hooks = talk.good("ListWebhooks")["data"]["webhooks"]
    assert len(hooks) == DEFAULT_MAX_WEBHOOKS
    talk.good("SetWebhookEnabled", id=hooks[0]["id"], enabled=False)
    talk.good("RemoveWebhook", webhookId=hooks[0]["id"])
    talk.good("AddWebhook", url=url, events=[])


def test_a_smaller_number_keeps_those_that_are_there(clock: ManualClock) -> None:
    store = MemoryStore()
    broker = open_broker(store=store, mode="server", clock=clock, seed=SEED)
    ids = [
        Talk(broker).good("AddWebhook", url="https://example.com/", events=[])["data"]["webhookId"]
        for _ in range(3)
    ]
    while (cut := broker.begin_commit()) is not None:
        commit(broker, cut)
    again = Talk(
        open_broker(
            store=store.reopened(), mode="server", clock=clock, seed=SEED, hooks=HookSettings(max_hooks=2)
        )
    )
    expected = "There are 3 webhooks, and 2 are the most that there may be"
    assert again.refused("AddWebhook", url="https://example.com/", events=[]) == expected
    for hook_id in ids[:2]:
        again.good("RemoveWebhook", webhookId=hook_id)
    again.good("AddWebhook", url="https://example.com/", events=[])


def test_a_change_looks_at_no_other_hook(clock: ManualClock) -> None:
    looked = []

    class Watched(Hook):
        __slots__ = ()

        @property
        def mask(self) -> int:
            looked.append(self.id)
            return super().mask

    broker = open_broker(clock=clock, seed=SEED)
    talk = Talk(broker)
    for n in range(100):
        queue = None if n % 2 else "q"
        broker.keep_hook(Watched(f"h{n}", "https://example.com/", ("job.pushed",), queue, None, 0))
    looked.clear()
    talk.good("SetWebhookEnabled", id="h3", enabled=False)
    talk.good("SetWebhookEnabled", id="h4", enabled=False)
    talk.good("RemoveWebhook", webhookId="h5")
    talk.good("AddWebhook", url="https://example.com/", events=["job.pushed"])
    talk.good("PUSH", queue="q", name="n")
    assert set(looked) <= {"h3", "h4", "h5"}


def test_who_wants_what_is_as_a_plain_search_has_it() -> None:
    random_ = random.Random(5)
    hooks = Hooks(HookSettings())
    names = list(HOOK_EVENTS)
    queues = (None, "q", "r")

    def searched(queue: str | None) -> int:
        mask = 0
        for one in hooks.by_id.values():
            mask |= one.mask if one.queue == queue else 0
        return mask

    for n in range(2000):
        ids = list(hooks.by_id)
        before = {queue: searched(queue) for queue in queues}
        if len(ids) > 8 or (ids and random_.random() < 0.3):
            gone = hooks.drop(random_.choice(ids))
            assert gone is not None
        elif ids and random_.random() < 0.5:
            one = hooks.by_id[random_.choice(ids)]
            before = {queue: searched(queue) for queue in queues}
            one.enabled = not one.enabled
            assert hooks.keep(one) == (searched(one.queue) != before[one.queue])
        else:
            events = tuple(random_.choices(names, k=random_.randrange(4)))
            one = Hook(f"h{n}", "https://example.com/", events, random_.choice(queues), None, 0)
            assert hooks.keep(one) == (searched(one.queue) != before[one.queue])
        assert {queue: hooks.mask(queue) for queue in queues} == {queue: searched(queue) for queue in queues}
        assert hooks.whole_mask == searched(None) | searched("q") | searched("r")
        for name in HOOK_EVENTS.values():
            bit = EVENT_BITS[name]
            for queue in ("q", "r", "s"):
                found = [
                    one.id for one in hooks.by_id.values() if one.mask & bit and one.queue in (None, queue)
                ]
                assert sorted(hooks.wanting(bit, queue)) == sorted(found)
    assert hooks.drop("nobody") is None
