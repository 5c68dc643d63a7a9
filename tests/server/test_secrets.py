"""Nothing that a client keeps to itself comes out of a server: not in logs, not in errors."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qcore.broker import open_broker
from qcore.broker.handlers import HANDLERS
from qcore.broker.session import Session
from qcore.errors import described
from qcore.server.options import parse
from qcore.wire.packing import pack

Start = Callable[..., Any]

ECHO = "3CH0"  # what errors repeat
TOKEN, WRONG, SECRET, MARK = "t0k3n-of-the-test", "wr0ng-t0k3n", "h00k-s3cret", "p4yl0ad-m4rk"


def busy(line: Any) -> list[str]:
    """Everything that carries payloads, and much that is refused; the errors."""
    payload = {"mark": MARK, "deep": [MARK, {MARK: MARK}], "raw": MARK.encode()}
    errors: list[str] = []

    def ask(cmd: str, **fields: object) -> Any:
        reply = line.ask(cmd=cmd, **fields)
        if not reply["ok"]:
            errors.append(reply["error"])
        return reply

    ask("AddWebhook", url="https://192.0.2.1/hook", events=["job.completed"], secret=SECRET)
    ask("AddWebhook", url=f"http://127.0.0.1/{MARK}", events=["job.completed"], secret=SECRET)
    for i in range(20):
        ask("PUSH", queue="q", jobId=f"j{i}", name="n", data=payload, maxAttempts=1, durable=i % 2 == 0)
    ask("Cron", name="c", queue="q", repeatEvery=3_600_000, data=payload)
    ask("Cron", name="c", queue="q", schedule="never", data=payload)
    ask("PUSHF", jobs=[{"id": "f", "queue": "q", "input": {"name": "n", "data": MARK}}])
    ask("PUSHF", jobs=[{"id": "f", "queue": "q", "input": {"name": "n", "data": payload, "dependsOn": [1]}}])
    ask("Update", id="j19", data=payload)
    for i in range(10):
        job = ask("PULL", queue="q", owner="w")
        token = job["token"]
        ask("Progress", id=f"j{i}", token=token, progress=50, message=MARK)
        ask("AddLog", id=f"j{i}", token=token, message=MARK)
        ask("ACK", id=f"j{i}", token="not it", result=payload)
        if i % 2:
            ask("ACK", id=f"j{i}", token=token, result=payload)
        else:
            ask("FAIL", id=f"j{i}", token=token, error=MARK, stack=[MARK])
    # What is refused, with the payload in it, or in place of what was expected.
    for option in (
        "priority",
        "delay",
        "attempts",
        "maxAttempts",
        "backoff",
        "timeout",
        "repeat",
        "dedup",
        "tags",
    ):
        ask("PUSH", queue="q", name="n", data=payload, **{option: {"mark": MARK, "x": float("nan")}})
        ask("PUSHB", queue="q", jobs=[{"name": "n", "data": payload, option: [MARK]}])
    ask("PUSH", queue="q", data=payload, name=None)
    ask("PUSH", queue=[MARK], data=payload)
    ask("PUSHB", queue="q", jobs=payload)
    ask("ACKB", ids=["j1"], tokens=[1, 2], results=[payload])
    ask("SetDlqConfig", queue="q", config=MARK)
    ask("Auth", token=WRONG)
    ask("Auth", token={"token": WRONG})
    bodies = (pack(payload), pack(MARK), b"\xc1" + MARK.encode(), pack({"cmd": "PUSH", "data": payload})[:-3])
    for body in bodies:
        line.send(struct.pack(">I", len(body)) + body)
        errors.append(line.receive()["error"])
    errors.append(str(ask("ListWebhooks")))
    errors.append(str(ask("Prometheus")))
    errors.append(str(ask("DashboardOverview")))
    errors.append(str(ask("Stats")))
    return errors


def test_logs_and_errors_of_a_busy_server(start: Start, authority: Any, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    tokens.chmod(0o644)  # which is warned of
    cert, key = authority.issue("server")
    server = start(
        "--log-level", "debug", "--token-file", str(tokens), "--tls-cert", cert, "--tls-key", key,
        "--data", str(tmp_path / "jobs.db"), "--adds", "committed",
        SHUTDOWN_TIMEOUT_MS="0", TCP_IDLE_TIMEOUT_MS="200", WEBHOOK_RETRY_DELAY_MS="0",
    )  # fmt: skip
    stranger = server.connect(tls=authority.context())
    refused = stranger.ask(cmd="Auth", token=WRONG)["error"]
    refused += stranger.ask(cmd="PUSH", queue="q", data=MARK)["error"]
    stranger.send(struct.pack(">I", 1000) + MARK.encode())  # and no more
    plain = server.connect()
    plain.sock.sendall(MARK.encode() * 10)
    assert plain.ended()
    assert stranger.ended()
    line = server.connect(tls=authority.context())
    assert line.ask(cmd="Auth", token=TOKEN)["ok"]
    errors = [refused, *busy(line)]
    assert len(errors) > 30
    url = "https://example.com/"
    for fields in (
        {"cmd": ECHO * 50},
        {"cmd": "AddWebhook", "url": url, "events": [ECHO * 50]},
        {"cmd": "Cron", "name": "c", "queue": "q", "schedule": f"{ECHO * 20} * * * *"},
        {"cmd": "Cron", "name": "c", "queue": "q", "schedule": "* * * * *", "timezone": f"A/{ECHO * 40}"},
    ):
        error = line.ask(**fields)["error"]
        assert ECHO in error
        assert len(error) < 300
    for fields in ({"cmd": {MARK: MARK}}, {"cmd": "AddWebhook", "url": url, "events": [{MARK: MARK}]}):
        errors.append(line.ask(**fields)["error"])
    server.hang_up()
    said = server.log_until("tokens were read again")
    for peer in (line, stranger, plain):
        peer.close()
    server.process.terminate()
    out, _ = server.process.communicate(timeout=60)
    said += out + server.said()
    assert "every user of this machine" in said
    assert "TLS handshake failed" in said
    private = Path(key).read_text().splitlines()[1]
    assert ECHO not in said
    for secret in (TOKEN, WRONG, SECRET, MARK, private):
        assert secret not in said
        for error in errors:
            assert secret not in error.replace(f"/{MARK}", "")


def test_a_fault_of_ours_is_logged_without_what_it_says(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Texts of exceptions hold the values they are about."""

    def broken(answer: Any, fields: Any) -> Any:
        raise ValueError(fields)

    monkeypatch.setitem(HANDLERS, "Cancel", broken)  # type: ignore[arg-type]
    session = Session(open_broker())
    body = pack({"cmd": "Cancel", "id": MARK})
    with caplog.at_level(logging.DEBUG):
        session.feed(struct.pack(">I", len(body)) + body)
    assert b"Internal server error" in session.take()
    assert "Cancel failed: builtins.ValueError" in caplog.text
    assert "in broken" in caplog.text
    assert MARK not in caplog.text
    session.close()


def test_what_a_fault_is_described_by() -> None:
    try:
        raise KeyError(MARK)
    except KeyError as fault:
        text = described(fault)
    assert text.startswith("builtins.KeyError\n")
    assert "test_what_a_fault_is_described_by" in text
    assert MARK not in text


def test_options_show_no_token() -> None:
    options = parse(["--token", TOKEN], {})
    assert options.tokens == (TOKEN,)
    assert TOKEN not in repr(options)
