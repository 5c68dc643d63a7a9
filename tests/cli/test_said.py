"""What people read: options by the names they typed, and figures that say something to people."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from qclient import Queue, cli
from qclient.cli.arguments import add_fields, shown_name
from qclient.cli.parser import Parser
from qclient.cli.show import lasting
from qclient.cli.verbs import VERBS, Verb
from qcore.wire.commands import COMMANDS

#: Nobody listens there.
NOBODY = "tcp://127.0.0.1:1"
USABLE = {"url": "http://example.com/", "events": "job.failed", "type": "completed", "data": "{}"}
ODD = (
       "", "x", "{", "-7", "0", "1.5", "nan", "9" * 30, "99999999d", "-5s", ",", "a,,b", "[1]", "NaN",
       '{"nope": 1}', '{"type": "nope"}', '{"ttl": "x"}', '{"every": 0}', '{"delay": -1}', '{"age": -1}',
       '{"backoff": {"dealy": 5}}', '{"maxAttempts": []}', '{"reason": "nope"}', '"\\ud800"', "\0",
)  # fmt: skip
#: Texts of the protocol that name no field, or a part of one that is written as JSON.
_PLAIN = re.compile(r"Job name must|Queue name|Webhook|URL|Invalid|expected one of --schedule")


@pytest.fixture(autouse=True)
def _nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QCORE_URL", NOBODY)


def usable(verb: Verb) -> dict[str, str]:
    """Values for what a verb needs."""
    return {
        field.name: USABLE.get(
            field.name, "1" if field.kind in ("int", "number", "duration", "finite", "option") else "nobody"
        )
        for field in COMMANDS[verb.command].fields
        if field.name not in verb.fixed and (field.required or field.name in verb.places)
    }


def options_of(verb: Verb) -> set[str]:
    """The names that a verb takes, as they are shown to who uses it."""
    parser = Parser()
    add_fields(parser, verb)
    return {option for action in parser._actions for option in action.option_strings}


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.path)
def test_an_error_speaks_of_what_was_typed(verb: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    given = usable(verb)
    offered = options_of(verb)
    wire_names = {
        field.name for field in COMMANDS[verb.command].fields if re.search("[a-z][A-Z]", field.name)
    }
    for field in COMMANDS[verb.command].fields:
        name = shown_name(field, verb)
        by_place = field.name in given
        if field.kind == "flag" or not (by_place or name in offered):
            continue
        for odd in ODD:
            if not by_place and verb.path == "cron add" and field.name not in ("schedule", "repeatEvery"):
                more = [f"{name}={odd}", "--every", "1m"]
            else:
                more = [] if by_place else [f"{name}={odd}"]
            values = [odd if key == field.name else value for key, value in given.items()]
            code = cli.main([*verb.path.split(), *(["--yes"] if verb.asks else []), *more, "--", *values])
            said = capsys.readouterr().err
            assert "Traceback" not in said
            assert "(a fault of qcore)" not in said
            if code == 2:
                assert len(said.splitlines()) == 1
                assert name in said or _PLAIN.search(said), (name, odd, said)
                text = re.split("must be one of|, got ", said.partition(": ")[2])[0]
                assert not wire_names & set(
                    re.findall(r"[A-Za-z]+", text.split("must be one of")[0].split(", got ")[0])
                ), said
                assert not re.search(r"at (least|most) \d{4,}\b", said) or field.name not in verb.durations
            else:
                assert code == 1  # nobody was there


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            ["push", "q", "hello"],
            "argument DATA: expected JSON: Expecting value: line 1 column 1 (char 0); "
            "a text is written '\"hello\"', with both quotes",
        ),
        (["job", "update", "j", "NaN"], "argument DATA: expected JSON: NaN is none; a text is written"),
        (["ack", "j", "--result", "done"], "argument --result: expected JSON: Expecting value: line 1"),
        (["push", "q", "--attempts", "0"], "--attempts must be at least 1, not 0"),
        (["push", "q", "--backoff", "soon"], "argument --backoff: expected a duration like 500ms, 5s,"),
        (["push", "q", "--dedup", '{"ttl": 5}'], "--dedup says what a second job with the same key does"),
        (["push", "q", "--group", "g", "--priority", "-1"], "--priority of a job with --group must be"),
        (["push", "q", "--repeat", '{"every": 5}', "--job-id", "j"], "--repeat and --job-id cannot"),
        (["push", "q", "--tags", "a,,b"], "argument --tags: expected words with commas between them"),
        (["pull", "q", "--wait", "100s"], "argument --wait: expected at most 1m, got '100s'"),
        (["pull", "q", "--lock", "5s"], "--lock: without --owner there is no lock"),
        (["pull", "q", "--owner", "o", "--lock", "0"], "argument --lock: expected at least 1ms, got '0'"),
        (["rate-limit", "set", "q", "5", "--ttl", "0"], "argument --ttl: expected at least 1ms, got '0'"),
        (["cron", "add", "", "q", "--every", "1m"], "NAME: expected a text, got an empty one"),
        (["cron", "add", "c", "q", "--every", "0"], "argument --every: expected at least 1ms, got '0'"),
        (["cron", "add", "c", "q"], "expected one of --schedule and --every, got neither"),
        (
            ["cron", "add", "c", "q", "--every", "1m", "--schedule", "@daily"],
            "expected one of --schedule and --every, got both",
        ),
        (["cron", "add", "c", "q", "--every", "1m", "--timezone", "UTC"], "--timezone is that of an expr"),
        (
            ["cron", "add", "c", "q", "--every", "1m", "--max-limit", "x"],
            "argument --max-limit: expected a",
        ),
        (["queue", "metrics", "q", "--start", "-1"], "--start must be at least 0, not -1"),
        (["ping", "tcp://a:1", "--url", "tcp://b:1"], "URL and --url name two servers, expected one"),
        (["--url", "tcp://b:1", "healthcheck", "tcp://a:1"], "URL and --url name two servers, expected one"),
        (["ping", "tcp://a:1", "--port", "5"], "URL and --host or --port name two servers, expected one"),
        (["ping", "tcp://a:1", "--socket", "s"], "URL and --socket name two servers, expected one"),
        (["stats", "--tls-cert", "c"], "--tls-cert and --tls-key: expected both or neither"),
        (["stats", "--tls-server-name", ""], "--tls-server-name: expected a text, got an empty one"),
        (["stats", "--tls-ca", "c", "--tls-no-verify"], "--tls-no-verify trusts anybody, and --tls-ca says"),
    ],
)
def test_what_is_said(line: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(line) == 2
    [error] = capsys.readouterr().err.splitlines()
    assert error.partition(": ")[2].startswith(said)


def test_a_cleaning_says_what_it_would_remove(capsys: pytest.CaptureFixture[str]) -> None:
    for more, said in (
        ([], "remove at most 1000 queued jobs of q, and"),
        (
            ["--state", "completed", "--grace", "90m", "--limit", "5"],
            "remove at most 5 completed jobs of q that are older than 1h 30m, and",
        ),
    ):
        assert cli.main(["queue", "clean", "q", *more]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (0, "0s"), (0.25, "0.25ms"), (999, "999ms"), (1000, "1s"), (1500, "1.5s"), (60_000, "1m"),
        (5_400_000, "1h 30m"), (90_061_001, "1d 1h 1m 1.001s"), (604_800_000, "7d"), (-2, "-2ms"), (None, ""),
    ],
)  # fmt: skip
def test_times_are_said_as_people_do(ms: object, said: str) -> None:
    assert lasting(ms) == said


#: What a program may read and a person cannot: times in ms, sentinels, JSON.
_FOR_PROGRAMS = re.compile(r"\b\d{12,14}\b|(?<![\w-])-\d|None|null|[{}\[\]]|\b\d{5,} ms")


def test_no_table_holds_figures_for_programs(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Queue("full", server) as queue:
        queue.add_bulk([("n", i, {"delay": 3600 * (i % 2)}) for i in range(4)])
        queue.add("n", 1, job_id="dead", attempts=1)
        client = queue.client
        while (taken := client.call("PULL", {"queue": "full", "owner": "o"}))["job"]["id"] != "dead":
            client.call("ACK", {"id": taken["job"]["id"], "token": taken["token"]})
        client.call("FAIL", {"id": "dead", "token": taken["token"], "error": "no"})
        client.call("AddLog", {"id": "dead", "message": "a line"})
        client.call("RateLimit", {"queue": "full", "limit": 5, "duration": 90_000, "ttl": 60_000})
        client.call("SetConcurrency", {"queue": "full", "limit": 5})
        client.call("Cron", {"name": "c", "queue": "full", "repeatEvery": 86_400_000, "maxLimit": 5})
        client.call("AddWebhook", {"url": "http://example.com/", "events": ["job.failed"]})
        client.call("RegisterWorker", {"name": "w", "queues": ["full"], "startedAt": time.time() * 1000})
        for verb in VERBS:
            words = verb.path.split()
            if COMMANDS[verb.command].level != "none" or words[-1] in ("retry", "prometheus", "wait"):
                continue
            for name in ("full", "empty"):
                places = {"queue": name, "id": "dead", "name": "c", "type": "failed"}
                values = [places.get(key, "nobody") for key in usable(verb)]
                cli.main([*words, *values, "--url", server])
                out = capsys.readouterr().out
                assert not _FOR_PROGRAMS.search(re.sub(r"\S*-\S*-\S*-\S+", "", out)), (verb.path, out)


def test_a_parent_that_is_not_there_is_a_slip(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["push", "q", "--parent", "nope", "--url", server]) == 1
    assert capsys.readouterr().err == "qcore push: Parent job not found: nope\n"
    assert cli.main(["push", "q", "--backoff", "5s", "--job-id", "j", "--url", server]) == 0
    with Queue("q", server) as queue:
        assert len(queue) == 1
        assert queue.client.call("GetJob", {"id": "j"})["job"]["backoff"] == 5000


def test_the_page_names_the_verbs_and_their_options() -> None:
    """Every option that the page lists is one."""
    page = (Path(__file__).parents[2] / "docs/reference/command-line.md").read_text("utf-8")
    rows = re.findall(r"^\| (`[^|]+) \| (.*) \|$", page.replace("\\|", "/"), flags=re.M)
    by_path = {verb.path: verb for verb in VERBS}
    seen = set()
    for commands, text in rows:
        paths = [
            path
            for command in re.findall(r"`([^`]+)`", commands)
            for path in [" ".join(re.findall(r"^[a-z-]+(?: [a-z-]+)?", command))]
            if path in by_path
        ]
        seen |= set(paths)
        offered: set[str] = set().union(*(options_of(by_path[path]) for path in paths)) if paths else set()
        for option in re.findall(r"`(--[a-z-]+)", text) if paths else ():
            assert option in offered | {"--timeout"}, (commands, option)
    assert seen == set(by_path)
