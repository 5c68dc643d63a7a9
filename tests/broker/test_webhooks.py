"""Hooks: which may be, what they are told, how often it is tried, and what is kept of them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from broker_talk import Talk
from hook_ear import LOOPBACK, PATIENCE_S, Ear, Local, hook, wait_for

from qclient import verify_webhook
from qcore.broker import open_broker
from qcore.broker.core import Broker
from qcore.broker.embedded import EmbeddedEngine
from qcore.broker.opening import commit
from qcore.broker.posting import encoded
from qcore.broker.webhooks import Hook, HookSettings, LazyPoster, forbidden
from qcore.clock import ManualClock
from qcore.store.memory import MemoryStore

SEED = bytes(range(16))


@pytest.fixture
def engine() -> Iterator[EmbeddedEngine]:
    engine = EmbeddedEngine(None, hooks=HookSettings(allowed=LOOPBACK, pause_ms=1, tries=3))
    yield engine
    engine.close()


# --- telling -----------------------------------------------------------------------------


def test_what_a_hook_is_told(engine: EmbeddedEngine, ear: Ear) -> None:
    talk = Local(engine)
    hook(talk, ear, secret="s3")
    talk.good(
        "PUSH", queue="q", name="n", jobId="j", data={"b": b"\xff", "f": float("inf"), "é": [1]}, backoff=0
    )
    talk.good("PULL", queue="q")
    talk.good("Progress", id="j", progress=40, message="m")
    talk.good("FAIL", id="j", error="no")
    talk.good("PULL", queue="q")
    talk.good("ACK", id="j", result=[1.5, None])
    told = []
    for _ in range(6):
        path, headers, body = ear.heard.get(timeout=PATIENCE_S)
        message = json.loads(body)
        assert path == "/told?by=us"
        assert headers["Content-Type"] == "application/json"
        assert headers["X-Webhook-Event"] == message["event"]
        assert headers["X-Webhook-Timestamp"] == str(message.pop("timestamp"))
        assert headers["X-Webhook-Signature"] == hmac.new(b"s3", body, hashlib.sha256).hexdigest()
        assert verify_webhook(headers, body, "s3")
        assert not verify_webhook(headers, body + b" ", "s3")
        assert not verify_webhook({}, body, "s3")
        assert (message.pop("queue"), message.pop("jobId")) == ("q", "j")
        told.append(message)
    assert told == [
        {"event": "job.pushed"},
        {"event": "job.started"},
        {"event": "job.progress", "progress": 40, "data": {"progress": 40, "message": "m"}},
        {
            "event": "job.failed",
            "error": "no",
            "terminal": False,
            "data": {"b": "/w==", "f": None, "é": [1]},
        },
        {"event": "job.started"},
        {"event": "job.completed", "data": [1.5, None]},
    ]
    shown = wait_for(engine, 6)
    assert (shown["successCount"], shown["failureCount"]) == (6, 0)
    assert shown["lastTriggered"] > 0


def test_a_hook_is_told_of_its_queue_and_its_events_only(engine: EmbeddedEngine, ear: Ear) -> None:
    talk = Local(engine)
    one = hook(talk, ear, ["job.completed"], queue="q")
    talk.good("SetWebhookEnabled", id=hook(talk, ear), enabled=False)
    hook(talk, ear, [])
    for name in ("r", "q"):
        talk.good("PUSH", queue=name, name="n", jobId=name)
        talk.good("PULL", queue=name)
        talk.good("ACK", id=name)
    assert ear.next()[2]["jobId"] == "q"
    talk.good("RemoveWebhook", webhookId=one)
    talk.good("PUSH", queue="q", name="n", jobId="x")
    assert engine.broker.engine.queue("q").event_mask == 0  # type: ignore[union-attr]
    engine.close()
    assert ear.heard.empty()


def test_a_failure_is_tried_again_and_then_counted(engine: EmbeddedEngine, ear: Ear) -> None:
    talk = Local(engine)
    first = hook(talk, ear, ["job.pushed"])
    for status in (500, 302, 404, 503, 200):
        ear.answers.put(status)
    talk.good("PUSH", queue="q", name="n", jobId="a")
    assert [ear.next()[2]["jobId"] for _ in range(3)] == ["a"] * 3
    assert wait_for(engine, 1)["failureCount"] == 1
    assert engine.broker.hooks.by_id[first].last_status == "404"
    talk.good("RemoveWebhook", webhookId=first)
    hook(talk, ear, ["job.pushed"])
    talk.good("PUSH", queue="q", name="n", jobId="b")
    assert [ear.next()[0] for _ in range(2)] == ["/told?by=us"] * 2  # redirections are not followed
    assert wait_for(engine, 1)["successCount"] == 1


def test_defect_78_a_name_that_leads_inside_is_not_told(ear: Ear) -> None:
    """The address is checked when it is connected to, whatever the name led to before."""
    engine = EmbeddedEngine(None, hooks=HookSettings(pause_ms=1, tries=2))
    try:
        talk = Local(engine)
        inside = Hook("i", f"http://localhost:{ear.port}/", ("job.pushed",), None, None, 0)
        with engine.broker as broker:
            broker.keep_hook(inside)  # a name that was not that of this machine when it was added
        talk.good("PUSH", queue="q", name="n")
        assert wait_for(engine, 1)["failureCount"] == 1
        assert inside.last_status == "the name leads to a loopback IP"
    finally:
        engine.close()
    assert ear.heard.empty()


@pytest.mark.parametrize(
    ("user", "sent"), [("us:s3cr3t", "us:s3cr3t"), ("t0k3n", "t0k3n:"), ("a%40b:%2F", "a@b:/")]
)
def test_who_asks_is_in_the_post_and_never_shown(
    engine: EmbeddedEngine, ear: Ear, user: str, sent: str, caplog: pytest.LogCaptureFixture
) -> None:
    talk = Local(engine)
    url = f"http://{user}@127.0.0.1:{ear.port}/p?x=1"
    shown = f"http://***@127.0.0.1:{ear.port}/p?x=1"
    assert talk.good("AddWebhook", url=url, events=["job.pushed"])["data"]["url"] == shown
    assert talk.good("ListWebhooks")["data"]["webhooks"][0]["url"] == shown
    for _ in range(3):
        ear.answers.put(500)
    talk.good("PUSH", queue="q", name="n")
    path, headers, _ = ear.next()
    assert (path, headers["Host"]) == ("/p?x=1", f"127.0.0.1:{ear.port}")
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode() == sent
    wait_for(engine, 1)
    assert user not in caplog.text
    assert "was not told of a pushed: 500" in caplog.text


@pytest.mark.parametrize(("scheme", "said"), [("http", "Connection refused"), ("https", "no TLS: ")])
def test_the_log_says_in_words_why_a_hook_was_not_told(
    ear: Ear, caplog: pytest.LogCaptureFixture, scheme: str, said: str
) -> None:
    engine = EmbeddedEngine(None, hooks=HookSettings(allowed=LOOPBACK, pause_ms=1, tries=1))
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1] if scheme == "http" else ear.port
    try:
        talk = Local(engine)
        talk.good("AddWebhook", url=f"{scheme}://us:s3cr3t@127.0.0.1:{port}/", events=["job.pushed"])
        talk.good("PUSH", queue="q", name="n")
        wait_for(engine, 1)
    finally:
        engine.close()
    [line] = [record.getMessage() for record in caplog.records]
    assert line.partition("was not told of a pushed: ")[2].startswith(said)
    assert "Error" not in line
    assert "s3cr3t" not in line


def test_too_many_notices_are_dropped(clock: ManualClock) -> None:
    from qcore.broker.posting import Poster

    broker = open_broker(clock=clock, seed=SEED, hooks=HookSettings(max_waiting=2))
    poster = Poster(broker)
    poster.close()
    poster.submit([("h", "pushed", "q", str(n), 0, None) for n in range(5)])
    assert poster.n_dropped == 5


@pytest.mark.parametrize("stored", [False, True])
def test_a_hook_is_told_with_the_commit(stored: bool, clock: ManualClock) -> None:
    store = MemoryStore() if stored else None
    broker = open_broker(store=store, mode="server", clock=clock, seed=SEED)
    told: list[Any] = []
    broker.deliver = told.extend
    talk = Talk(broker)
    talk.good("AddWebhook", url="https://example.com/", events=["job.completed"])
    talk.good("PUSH", queue="q", name="n", jobId="a")
    talk.good("PULL", queue="q")
    talk.send({"cmd": "ACK", "id": "a", "result": 1})
    if stored:
        assert told == []
        cut = broker.pump()[1]
        assert cut is not None
        commit(broker, cut)
    ((_, kind, queue_name, job_id, _, data),) = told
    assert (kind, queue_name, job_id, data) == ("completed", "q", "a", (b"\x01", 0))


def test_payloads_as_json() -> None:
    notice = ("h", "completed", "q", "j", 5, (b"\x81\x01\x92\xc3\xa2\xc3\xa9", 0))
    assert json.loads(encoded(notice))["data"] == {"1": [True, "é"]}
    lost = json.loads(encoded(("h", "failed", "q", "j", 5, ("gone",))))
    assert (lost["error"], lost["terminal"], "data" in lost) == ("gone", True, False)


# --- what is kept ------------------------------------------------------------------------


def test_hooks_outlive_a_restart(clock: ManualClock) -> None:
    store = MemoryStore()
    broker = open_broker(store=store, mode="server", clock=clock, seed=SEED)
    talk = Talk(broker)
    ids = [
        talk.good("AddWebhook", url="https://example.com/", events=["job.failed"], **more)["data"][
            "webhookId"
        ]
        for more in ({}, {"queue": "q", "secret": "s"}, {"queue": "gone"})
    ]
    talk.good("SetWebhookEnabled", id=ids[0], enabled=False)
    talk.good("RemoveWebhook", webhookId=ids[2])
    broker.hook_told(ids[1], False, "500")
    before = talk.good("ListWebhooks")["data"]
    assert before["stats"] == {"total": 2, "enabled": 1}
    assert "s" not in before["webhooks"][1].values()
    while (cut := broker.begin_commit()) is not None:
        commit(broker, cut)
    again = open_broker(store=store.reopened(), clock=clock, seed=SEED, mode="server")
    assert Talk(again).good("ListWebhooks")["data"] == before
    assert again.hooks.by_id[ids[1]].secret == "s"
    told: list[Any] = []
    again.deliver = told.extend
    peer = Talk(again)
    for name in ("q", "r"):
        peer.good("PUSH", queue=name, name="n", jobId=name)
        peer.good("PULL", queue=name)
        peer.good("FAIL", id=name)
    assert [(notice[0], notice[2]) for notice in told] == [(ids[1], "q")]


def test_unreadable_hooks_are_left_alone(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    from qcore.store.base import Cut

    store = MemoryStore()
    store.commit(Cut(side={("webhooks", "a"): b"?", ("webhooks", "b"): b"\x80"}))
    broker = open_broker(store=store, mode="server", clock=clock, seed=SEED)
    assert broker.hooks.by_id == {}
    assert "2 webhooks cannot be read" in caplog.text


# --- which may be ------------------------------------------------------------------------

TEXTS = [
    (None, "Webhook URL is required"),
    ("", "Webhook URL is required"),
    (5, "Webhook URL is required"),
    ("https://example.com/" + "x" * 2029, "Webhook URL too long (max 2048 characters)"),
    ("example.com", "Invalid URL format"),
    ("https://", "Invalid URL format"),
    ("https://exa mple.com/", "Invalid URL format"),
    ("https://example.com/\n", "Invalid URL format"),
    ("https://example.com:99999/", "Invalid URL format"),
    ("https://[::1/", "Invalid URL format"),
    ("ftp://example.com/", "Webhook URL must use http or https protocol"),
    ("http://localhost/", "Webhook URL cannot point to localhost"),
    ("http://LOCALHOST:80/", "Webhook URL cannot point to localhost"),
    ("http://localhost./", "Webhook URL cannot point to localhost"),
    ("http://a.localhost/", "Webhook URL cannot point to localhost"),
    ("http://127.0.0.1/", "Webhook URL cannot point to localhost"),
    ("http://[::1]/", "Webhook URL cannot point to localhost"),
    ("http://127.0.0.2/", "Webhook URL cannot point to loopback IP"),
    ("http://2130706433/", "Webhook URL cannot point to loopback IP"),
    ("http://0x7f.1/", "Webhook URL cannot point to loopback IP"),
    ("http://[::ffff:127.0.0.1]/", "Webhook URL cannot point to loopback IP"),
    ("http://0.0.0.0/", "Webhook URL cannot point to unspecified IP"),
    ("http://0.1.2.3/", "Webhook URL cannot point to unspecified IP"),
    ("http://[::]/", "Webhook URL cannot point to unspecified IP"),
    ("http://[fd00::1]/", "Webhook URL cannot point to private (ULA) IP"),
    ("http://[fe80::1]/", "Webhook URL cannot point to link-local IP"),
    ("http://[fec0::1]/", "Webhook URL cannot point to private IP"),
    ("http://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/", "Webhook URL cannot point to private IP"),
    ("http://[::8.8.8.8]/", "Webhook URL cannot point to private IP"),
    ("http://169.254.169.254/latest", "Webhook URL cannot point to link-local IP"),
    ("http://[::ffff:a9fe:a9fe]/", "Webhook URL cannot point to link-local IP"),
    ("http://10.0.0.1/", "Webhook URL cannot point to private IP"),
    ("http://172.31.0.1/", "Webhook URL cannot point to private IP"),
    ("http://192.168.1.1/", "Webhook URL cannot point to private IP"),
    ("http://[::ffff:192.168.1.1]/", "Webhook URL cannot point to private IP"),
    ("http://[64:ff9b::10.0.0.1]/", "Webhook URL cannot point to private IP"),
    ("http://100.64.0.1/", "Webhook URL cannot point to private IP"),
    ("http://[::ffff:0:7f00:1]/", "Webhook URL cannot point to loopback IP"),
    ("http://[::ffff:0:10.0.0.1]/", "Webhook URL cannot point to private IP"),
    ("http://[64:ff9b:1::a9fe:a9fe]/", "Webhook URL cannot point to link-local IP"),
    ("http://[2606:4700::5efe:127.0.0.1]/", "Webhook URL cannot point to loopback IP"),
    ("http://[fe80::1%25eth0]/", "Webhook URL cannot point to link-local IP"),
    ("http://１２７.０.０.１/", "Webhook URL cannot point to localhost"),
    ("http://127。0。0。2/", "Webhook URL cannot point to loopback IP"),
    ("http://%31%32%37.0.0.1/", "Invalid URL format"),
    ("http://%6cocalhost/", "Invalid URL format"),
    ("http://127.0.0.1%2f@example.com%00/", "Invalid URL format"),
    ("http://256.0.0.1/", "Invalid URL format"),
    ("http://127.0.0.1.5/", "Invalid URL format"),
    ("http://x.0x7f/", "Invalid URL format"),
    ("http://[v1.x]/", "Invalid URL format"),
    ("http://a..b/", "Invalid URL format"),
    ("http://a<b/", "Invalid URL format"),
    ("http://user:secret@/", "Invalid URL format"),
    ("http://metadata.google.internal/", "Webhook URL cannot point to cloud metadata endpoints"),
]


@pytest.mark.parametrize(("url", "text"), TEXTS, ids=lambda value: str(value)[:40])
def test_urls_that_may_not_be_told(url: object, text: str, clock: ManualClock) -> None:
    talk = Talk(open_broker(clock=clock, seed=SEED))
    assert talk.refused("AddWebhook", url=url, events=[]) == text
    assert talk.good("ListWebhooks")["data"]["webhooks"] == []


@pytest.mark.parametrize(
    "url",
    ["http://example.com", "https://example.com:8443/x?y#z", "http://8.8.8.8/", "http://172.32.0.1/",
     "http://[2606:4700::1111]/", "https://bücher.example/", "http://internal.example/", "http://a_b.example./",
     "http://1.example/"],
)  # fmt: skip
def test_urls_that_may_be_told(url: str, clock: ManualClock) -> None:
    talk = Talk(open_broker(clock=clock, seed=SEED))
    assert talk.good("AddWebhook", url=url, events=[])["data"]["url"] == url


def test_other_things_that_are_refused(clock: ManualClock) -> None:
    talk = Talk(open_broker(clock=clock, seed=SEED))
    url = "https://example.com/"
    assert talk.refused("AddWebhook", url=url) == "events is required"
    assert talk.refused("AddWebhook", url=url, events="job.failed") == "events must be an array"
    assert talk.refused("AddWebhook", url=url, events=[1, [2]]).startswith(
        "Invalid webhook event(s): 1, an array of 1. "
    )
    assert talk.refused("AddWebhook", url=url, events=[{"secret": "x" * 9}, b"x", "y" * 500]).startswith(
        f"Invalid webhook event(s): an object of 1, binary data, {'y' * 100}.... "
    )
    assert (
        talk.refused("AddWebhook", url=url, events=[], queue="a b")
        == "Queue name contains invalid characters"
    )
    assert talk.refused("SetWebhookEnabled", id="x", enabled=True) == "Webhook not found"


def test_addresses_of_every_kind() -> None:
    for text, why in (
        ("224.0.0.1", "private IP"),
        ("255.255.255.255", "private IP"),
        ("2002:7f00:1::", "loopback IP"),
        ("::127.0.0.1", "loopback IP"),
        ("ff02::1", "link-local IP"),
        ("192.0.0.8", "private IP"),
        ("192.88.99.1", "private IP"),
        ("198.18.0.1", "private IP"),
        ("203.0.113.1", "private IP"),
        ("fec0::1", "private IP"),
        ("feff::1", "private IP"),
        ("100::1", "private IP"),
        ("200::1", "private IP"),
        ("5f00::1", "private IP"),
        ("3fff::1", "private IP"),
        ("2001:db8::1", "private IP"),
        ("2001::1", "private IP"),  # Teredo
        ("2001:1::1", "private IP"),
        ("2001:20::1", "private IP"),
        ("2002:a00:1::", "private IP"),
        ("2002:808:808::", None),
        ("64:ff9b::10.0.0.1", "private IP"),
        ("64:ff9b::8.8.8.8", None),
        ("64:ff9b:1::8.8.8.8", "private IP"),  # of some place: where the address of IPv4 is, is not known
        ("::ffff:0:8.8.8.8", "private IP"),
        ("::ffff:10.0.0.1", "private IP"),
        ("::ffff:8.8.8.8", None),
        ("2606:4700::1111", None),
        ("1.1.1.1", None),
    ):
        got = forbidden(ipaddress.ip_address(text))
        assert (got is None) == (why is None), (text, got)
        assert why in (None, "link-local IP") or got == why
    assert forbidden(ipaddress.ip_address("127.0.0.1"), LOOPBACK) is None
    assert forbidden(ipaddress.ip_address("::ffff:127.0.0.1"), LOOPBACK) is None


def test_an_engine_without_hooks_needs_no_http(clock: ManualClock) -> None:
    broker: Broker = open_broker(clock=clock, seed=SEED)
    poster = LazyPoster(broker)
    Talk(broker).good("PUSH", queue="q", name="n")
    assert poster._poster is None
    poster.close()
