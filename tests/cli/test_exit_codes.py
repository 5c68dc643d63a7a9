"""One rule for every verb: what the exit code says, and where the one line or the one document goes."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from qclient import cli
from qclient.cli.verbs import VERBS, Verb
from qcore.wire.commands import COMMANDS
from qcore.wire.fields import CLEANED_STATES, DEAD_REASONS, LISTED_STATES, Field

#: Nobody listens there: whoever asks it ends with 1.
NOBODY = "tcp://127.0.0.1:1"
TEXTS = {"url": "http://example.com/", "events": "job.failed", "type": "completed", "data": "{}"}
by_verb = pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.path)


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def refusal(self) -> str:
        """The error of a run with ``--json``, which must be all that it said."""
        assert self.out == ""
        document = json.loads(self.err)
        assert document.keys() == {"ok", "error"}
        assert document["ok"] is False
        return str(document["error"])


Run = Callable[..., Done]


@pytest.fixture
def qcore(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in list(os.environ):
        if name.startswith(("QCORE_", "BUNQUEUE_", "BQ_", "TCP_", "HOST", "FORCE_", "S3_")):
            monkeypatch.delenv(name)

    def run(*arguments: str) -> Done:
        code = cli.main(arguments)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Done(code, captured.out, captured.err)

    return run


def positional(verb: Verb) -> list[Field]:
    return [
        field
        for field in COMMANDS[verb.command].fields
        if field.name not in verb.fixed and (field.required or field.name in verb.places)
    ]


def usable(verb: Verb) -> list[str]:
    """A command line that names things which are not there."""
    given = [
        TEXTS.get(
            field.name, "1" if field.kind in ("int", "number", "duration", "finite", "option") else "nobody"
        )
        for field in positional(verb)
    ]
    more = ["--yes"] if verb.asks else []
    if verb.path == "cron add":
        given[0] = "made"
        more = ["--every", "1m"]
    return [*verb.path.split(), *(["empty"] if verb.path == "pull" else given), *more]


def names_one(verb: Verb) -> bool:
    """Whether it is about one job, schedule, worker or address that has to be there."""
    return (
        any(field.kind == "id" or field.name == "jobId" for field in positional(verb))
        or verb.path in ("cron get", "cron delete")
        or verb.path == "pull"  # about a job that is ready
    ) and verb.path != "cron add"


@by_verb
def test_what_is_not_there_is_1_and_a_queue_is_always_there(qcore: Run, server: str, verb: Verb) -> None:
    done = qcore(*usable(verb), "--json", "--url", server)
    if names_one(verb):
        assert done.code == 1
        assert done.refusal
        plain = qcore(*usable(verb), "--url", server)
        assert (plain.code, plain.out) == (1, "")
        assert plain.err.startswith(f"qcore {verb.path}: ")
        assert len(plain.err.splitlines()) == 1
    else:
        assert (done.code, done.err) == (0, "")
        json.loads(done.out)


@by_verb
def test_an_unusable_command_line_is_2_and_asks_nobody(qcore: Run, verb: Verb) -> None:
    line = usable(verb)
    required = [field for field in positional(verb) if field.required]
    lines = [[*line, "--nonsense"], [*line, "--timeout", "soon"], ["--url", "http://x", *line]]
    if not any(field.name in verb.places for field in positional(verb)) and not verb.takes_url:
        lines.append([*line, "one-too-many"])
    if required:
        lines.append(verb.path.split())
    if any(field.kind == "queue" for field in required):
        lines.append(["a b" if word in ("nobody", "empty") else word for word in line])
    for words in lines:
        done = qcore(*words, "--json", *([] if "http://x" in words else ["--url", NOBODY]))
        assert done.code == 2, words
        assert done.refusal, words
        plain = qcore(*words, *([] if "http://x" in words else ["--url", NOBODY]))
        assert (plain.code, plain.out) == (2, ""), words
        assert plain.err.startswith("qcore"), words
        assert len(plain.err.splitlines()) == 1, words


@by_verb
def test_a_server_that_cannot_be_reached_is_1(qcore: Run, verb: Verb) -> None:
    done = qcore(*usable(verb), "--json", "--url", NOBODY)
    assert done.code == 1
    assert done.refusal


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nonsense",
        "queue",
        "queue nonsense",
        "-p 1 start",
        "demo --nonsense",
        "demo --workers 0",
        "backup",
        "backup list",
        "backup now --to /nowhere",
        "commands Nonsense",
        "version --nonsense",
        "queue metrics",
        "queue metrics q nonsense",
        "push q {",
        "push q --name=",
        """push q --repeat {"pattern":"nonsense"}""",
        """push q --repeat {"every":1000,"tz":"Nowhere/None"}""",
        """push q --repeat {"every":1000,"endDate":1}""",
        "push q --depends-on a,,b --priority x",
        "cron add c q",
        "cron add c q --schedule nonsense",
        "cron add c q --schedule @hourly --timezone Nowhere/None",
        "cron add c q --every 1m --timezone Nowhere/None",
        "cron add c q --every 0",
        "webhook add ftp://example.com/ job.failed",
        "webhook add http:// job.failed",
        "webhook add http://example.com/ job.nonsense",
        "webhook add http://example.com/ job.failed --secret-file /nowhere",
        "queue clean q --grace 1s --state xx --yes",
        "queue clean q --state active --yes",
        "queue clean q --state= --yes",
        "queue jobs q --state bogus",
        "queue jobs q --state waiting,bogus",
        "queue jobs q --state=,",
        """dlq list q --filter {"reason":"bogus"}""",
        """dlq retry q --filter {"reason":"bogus"}""",
        """dlq retry q --filter {"raeson":"timeout"}""",
        """push q --backoff {"type":"bogus"}""",
        """push q --backoff {"dealy":5}""",
        """push q --dedup {"tll":5}""",
        """push q --remove-on-complete {"age":5,"cuont":5}""",
        """push q --repeat {"every":1000,"limti":5}""",
        """cron add c q --every 1m --job-options {"attempts":5}""",
        "push q --attempts -1",
        "push q --attempts 1.5",
        "rate-limit set q -1",
        "rate-limit set q 1.5",
        "rate-limit set q nan",
        "rate-limit set q 5 --duration 0",
        "rate-limit set q 5 --ttl 0",
        "concurrency set q 1.5",
        "concurrency set q -1",
        "job progress j 101",
        "job progress j -1",
        "stats --port 0",
        "stats --socket s --port 1",
        "stats --url sqlite:///x.db",
        "stats --token-file /nowhere",
        "stats --tls-ca /nowhere",
        *(" ".join(usable(verb)).replace(" --yes", "") for verb in VERBS if verb.asks),
    ],
)
def test_what_no_server_would_take_is_2(qcore: Run, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QCORE_URL", NOBODY if "tls" not in line else "tcps://127.0.0.1:1")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    done = qcore(*line.split(), "--json")
    assert done.code == 2, done
    assert done.refusal


def test_a_server_says_the_same_of_what_it_is_not_asked(qcore: Run, server: str) -> None:
    """What is found out here is in the words of the protocol."""
    from qclient.client import Client
    from qclient.url import resolve
    from qcore.errors import CommandError

    client = Client(resolve(server), 30.0)
    for line, command, fields in (
        (
            "cron add c q --schedule nonsense",
            "Cron",
            {"name": "c", "queue": "q", "schedule": "nonsense"},
        ),
        (
            "webhook add ftp://example.com/ job.failed",
            "AddWebhook",
            {"url": "ftp://example.com/", "events": ["job.failed"]},
        ),
    ):
        with pytest.raises(CommandError) as refused:
            client.call(command, fields)
        assert qcore(*line.split(), "--json").refusal == refused.value.message
    client.close()


@pytest.mark.parametrize(
    "line",
    [
        *(f"queue jobs q --state {state}" for state in LISTED_STATES),
        "queue jobs q --state waiting,paused",
        *(f"queue clean q --yes --state {state}" for state in (*CLEANED_STATES, "wait")),
        *(f"""dlq list q --filter {{"reason":"{reason}"}}""" for reason in DEAD_REASONS),
        "rate-limit set q 0 --duration 1ms --ttl 1ms",
        "rate-limit set q 5.0",
        "concurrency set q 0",
    ],
)
def test_every_value_that_means_something_is_taken(qcore: Run, server: str, line: str) -> None:
    done = qcore(*line.split(), "--url", server)
    assert (done.code, done.err) == (0, "")


def test_the_states_are_those_that_the_engine_counts(qcore: Run, server: str) -> None:
    counts = json.loads(qcore("queue", "counts", "q", "--json", "--url", server).out)["counts"]
    assert set(LISTED_STATES) == set(counts)
    reasons = json.loads(qcore("dlq", "stats", "q", "--json", "--url", server).out)["data"]["stats"]
    assert set(DEAD_REASONS) == set(reasons["byReason"])


@pytest.mark.parametrize("verb", ["ping", "stats"])
def test_a_hint_is_one_for_the_command_line(qcore: Run, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qclient.cli.place.DEFAULT_PORT", 1)
    refused = qcore(verb, "--json").refusal
    assert "`qcore start`" in refused
    assert "--url tcp://" in refused
    assert "sqlite" not in refused
    assert "url=" not in refused


@pytest.mark.parametrize(
    "url", ["jobs.db", "file:///jobs.db", "sqlite:///jobs.db", "sqlite://", "memory://x"]
)
def test_a_url_that_leads_to_no_server_suggests_only_what_does(qcore: Run, url: str) -> None:
    done = qcore("ping", "--json", "--url", url)
    assert done.code == 2
    assert done.refusal.endswith("expected tcp://host:port, tcps://host:port or unix:///path")


def test_an_interruption_is_130() -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("QCORE_", "BUNQUEUE_", "BQ_"))}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        asking = subprocess.Popen(
            [sys.executable, "-m", "qclient", "stats", "--json", "--url", url],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        peer, _ = listener.accept()
        with peer:
            peer.recv(4096)  # it waits for the reply now
            asking.send_signal(signal.SIGINT)
            out, err = asking.communicate(timeout=30)
    assert (asking.returncode, out) == (130, "")
    assert json.loads(err) == {"ok": False, "error": "interrupted"}


def test_the_page_says_what_the_codes_mean() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/command-line.md").read_text("utf-8")
    rows: dict[str, Any] = {
        cells[1].strip(): cells[2].strip() for line in page.splitlines() if len(cells := line.split("|")) == 4
    }
    assert {code for code in rows if code.isdigit()} == {"0", "1", "2", "130"}
    assert "without a terminal" in rows["2"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("push", "q", "{}", "--priority", "9" * 100_000),
        ("push", "q", "[" * 100_000),
        ("push", "q", "{}", "--nope" + "x" * 100_000),
        ("queue", "nope" * 30_000),
    ],
)
def test_what_was_written_is_not_repeated_without_end(qcore: Run, arguments: tuple[str, ...]) -> None:
    done = qcore(*arguments, "--json")
    assert done.code == 2
    assert len(done.refusal) < 1100


def test_the_parts_of_parts_of_a_map_are_looked_at(qcore: Run) -> None:
    """A misspelled key inside of another map, which a server passes over."""
    done = qcore(
        "cron", "add", "c", "q", "--every", "1m", "--job-options", '{"backoff": {"dealy": 5}}', "--json"
    )
    assert (done.code, done.out) == (2, "")
    expected = "a key of --job-options.backoff must be one of type, delay, maxDelay, jitter, not 'dealy'"
    assert expected in done.refusal


def closed(script: str) -> subprocess.CompletedProcess[str]:
    """What a shell makes of ``qcore`` with streams that take nothing."""
    full = script.replace("qcore", f"{sys.executable} -m qclient")
    return subprocess.run(["sh", "-c", full], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("verb", ["nope", "nope --json", "start --port x", "ping --url nope"])
@pytest.mark.parametrize("stream", ["2>&-", "2>/dev/full"])
def test_an_error_that_nobody_takes_leaves_the_exit_code_and_standard_output(verb: str, stream: str) -> None:
    done = closed(f"qcore {verb} {stream}")
    assert (done.returncode, done.stdout) == (2, "")


def test_a_full_disk_is_no_fault_of_ours() -> None:
    done = closed("qcore version >/dev/full")
    assert (done.returncode, done.stderr) == (1, "qcore version: No space left on device\n")
    assert closed("qcore version >&-").returncode == 0


def test_empty_texts_name_nothing(qcore: Run) -> None:
    assert qcore("ping", "--host", "", "--json").refusal == (
        "--host: expected an address or a name, got an empty text"
    )
    assert qcore("demo", "--data", "", "--json").refusal == "--data: expected a file name, got an empty text"
