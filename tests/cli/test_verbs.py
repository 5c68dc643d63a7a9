"""The verbs that ask a server, against real servers: output, exit codes, no leaks."""

from __future__ import annotations

import json
import os
import pty
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme

from qclient import Queue, Worker, cli
from qclient.cli.arguments import add_fields
from qclient.cli.parser import Parser, build_parser
from qclient.cli.show import jsonable, printable
from qclient.cli.verbs import GROUPS, VERBS
from qclient.codec import Unreadable
from qcore.wire.commands import COMMANDS

TOKEN = "s3cr3t-of-the-test"


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Done]


class Server:
    """A server that wants a token."""

    def __init__(self, *arguments: str) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("QCORE_", "BUNQUEUE_", "BQ_"))}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "qcore.server", "--port", "0", "--watch-stdin", *arguments],
            env=env | {"AUTH_TOKENS": TOKEN},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = self.process.stdout.readline().split("listening on 127.0.0.1:")[1].split()[0]

    def stop(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(60) == 0
        self.process.stdout.close()


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """One server behind a port and a socket, and one whose port speaks TLS."""
    directory = tmp_path_factory.mktemp("s")
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    files = {name: str(directory / name) for name in ("ca", "cert", "key", "q.sock")}
    authority.cert_pem.write_to_path(files["ca"])
    issued.cert_chain_pems[0].write_to_path(files["cert"])
    issued.private_key_pem.write_to_path(files["key"])
    os.chmod(files["key"], 0o600)
    plain = Server("--socket", files["q.sock"])
    secure = Server("--tls-cert", files["cert"], "--tls-key", files["key"])
    yield {
        "tcp": f"tcp://127.0.0.1:{plain.port}",
        "unix": f"unix://{files['q.sock']}",
        "tls": f"tcps://localhost:{secure.port}",
        "ca": files["ca"],
    }
    plain.stop()
    secure.stop()


@pytest.fixture(params=["tcp", "unix", "tls"])
def url(request: pytest.FixtureRequest, addresses: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SSL_CERT_FILE", addresses["ca"])  # what the system trusts
    return addresses[request.param]


@pytest.fixture
def qcore(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in this process, with no settings but those given."""
    for name in list(os.environ):
        if name.startswith(("QCORE_", "BUNQUEUE_", "BQ_", "TCP_", "HOST", "FORCE_")):
            monkeypatch.delenv(name)

    def run(*arguments: str, **environ: str) -> Done:
        with monkeypatch.context() as patch:
            for name, value in environ.items():
                patch.setenv(name, value)
            try:
                code = cli.main(arguments)
            except SystemExit as exit_:
                code = int(exit_.code or 0)
        captured = capsys.readouterr()
        for text in captured:
            assert TOKEN not in text
            assert "Traceback" not in text
        return Done(code, captured.out, captured.err)

    return run


@pytest.fixture
def ask(qcore: Run, url: str) -> Run:
    """The same, with the address and the token."""
    return lambda *arguments, **environ: qcore(*arguments, QCORE_URL=url, QCORE_TOKEN=TOKEN, **environ)


@pytest.fixture
def queue(url: str, request: pytest.FixtureRequest) -> Iterator[Queue]:
    """A queue of the test's own."""
    name = f"q{abs(hash(request.node.nodeid))}"
    with Queue(name, f"{url}?token={TOKEN}") as queue:
        yield queue


def fail(queue: Queue, job_id: str, text: str) -> None:
    def refuse(job: Any) -> None:
        raise ValueError(text)

    queue.add("fails", {"secret": "payload"}, job_id=job_id, attempts=1)
    with Worker(queue, refuse):
        queue.client.call("WaitJob", {"id": job_id, "timeout": 30_000})


def test_control_of_a_queue(ask: Run, queue: Queue) -> None:
    name = queue.name
    for i in range(3):
        queue.add("n", i, job_id=f"{name}{i}", delay=3600 if i == 2 else 0)
    assert name in ask("queue", "list").out.split()
    assert name in ask("queue", "list", "--json").document["queues"]
    assert ask("queue", "pause", name) == (0, f"{name} is paused\n", "")
    assert ask("queue", "pause", name, "--json") == (0, '{\n  "ok": true\n}\n', "")
    counts = ask("queue", "counts", name, "--json").document["counts"]
    assert (counts["paused"], counts["delayed"]) == (2, 1)
    assert ask("queue", "resume", name) == (0, f"{name} is resumed\n", "")
    counted = dict(line.split() for line in ask("queue", "counts", name).out.splitlines())
    assert (counted["waiting"], counted["delayed"], counted["active"]) == ("2", "1", "0")
    done = ask("queue", "clean", name, "--state", "delayed", "--grace", "1h", "--yes", "--json")
    assert (done.code, done.out) == (0, '{\n  "ok": true,\n  "count": 0,\n  "ids": []\n}\n')
    assert ask("queue", "clean", name, "--state", "delayed", "--yes") == (0, "jobs removed: 1\n", "")
    assert ask("queue", "drain", name, "--yes", "--json").document == {"ok": True, "count": 2}
    assert ask("queue", "jobs", name) == (0, "no jobs\n", "")
    assert ask("queue", "obliterate", name, "-y") == (0, f"{name} is gone\n", "")
    assert set(ask("queue", "counts", name, "--json").document["counts"].values()) == {0}


def test_one_job(ask: Run, queue: Queue) -> None:
    job_id = f"{queue.name}-a"
    queue.add("double", {"n": 21, "raw": b"\x00\xff"}, job_id=job_id, priority=7)
    assert ask("job", "state", job_id) == (0, "prioritized\n", "")
    assert ask("job", "state", job_id, "--json").document == {
        "ok": True,
        "id": job_id,
        "state": "prioritized",
    }
    shown = ask("job", "get", job_id).out
    assert 'data      {"n": 21, "raw": "AP8="}\n' in shown
    assert f"id        {job_id}\nqueue     {queue.name}\nname      double\n" in shown
    job = ask("job", "get", job_id, "--json").document["job"]
    assert (job["data"], job["priority"]) == ({"n": 21, "raw": "AP8="}, 7)
    assert job.keys() == queue.client.call("GetJob", {"id": job_id})["job"].keys()
    assert isinstance(job["createdAt"], int)
    assert ask("job", "result", job_id) == (1, "", "qcore job result: Job has no result: it is prioritized\n")

    waited: list[Done] = []
    with Worker(queue, lambda job: (job.log("on it"), job.data["n"] * 2)[1]):
        waited.append(ask("job", "wait", job_id, "--timeout", "30s"))
    assert waited == [(0, "42\n", "")]
    assert ask("job", "wait", job_id, "--json").document == {"ok": True, "completed": True, "result": 42}
    assert ask("job", "result", job_id, "--json").document == {"ok": True, "id": job_id, "result": 42}
    assert ask("job", "logs", job_id).out.splitlines()[1].endswith("  info   on it")
    [line] = ask("job", "logs", job_id, "--json").document["data"]["logs"]
    assert (line["level"], line["message"]) == ("info", "on it")

    assert ask("job", "retry", job_id) == (0, f"{job_id} is queued again\n", "")
    done = ask("job", "retry", job_id)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("qcore job retry: Job is prioritized; only failed and completed")
    assert ask("job", "wait", job_id, "--timeout", "20ms").err.endswith("Job is prioritized after 0.02 s\n")
    assert ask("job", "cancel", job_id) == (0, f"{job_id} is cancelled\n", "")
    for verb in ("get", "state", "result", "retry", "cancel", "wait"):
        done = ask("job", verb, job_id)
        assert (done.code, done.out) == (1, ""), verb
        assert done.err.startswith(f"qcore job {verb}: Job not found"), verb


def test_dead_letters(ask: Run, queue: Queue) -> None:
    name = queue.name
    for job_id in ("x", "y"):
        fail(queue, f"{name}{job_id}", "no\x1b[2Jgood [red]x[/red] " + "e" * 100)
    listed = ask("dlq", "list", name)
    assert listed.code == 0
    assert "\x1b" not in listed.out
    head, first, second = listed.out.splitlines()
    assert head.split() == ["id", "name", "reason", "attempts", "entered", "error"]
    assert first.startswith(f"{name}x  fails  max_attempts_exceeded  1")
    assert first.endswith("...")
    assert second.startswith(f"{name}y")
    entries = ask("dlq", "list", name, "--json", "--count", "1").document["entries"]
    assert [entry["job"]["id"] for entry in entries] == [f"{name}x"]
    assert ask("dlq", "list", name, "--filter", '{"reason": "stalled"}') == (0, "no dead letters\n", "")
    wait = ask("job", "wait", f"{name}x")
    assert (wait.code, wait.out) == (1, "")
    assert wait.err.startswith("qcore job wait: Job failed: ")
    assert ask("job", "retry", f"{name}x", "--json").document == {
        "ok": True,
        "id": f"{name}x",
        "queue": name,
    }
    assert ask("dlq", "retry", name, f"{name}y", "--json").document == {"ok": True, "count": 1}
    assert ask("dlq", "retry", name) == (0, "jobs queued again: 0\n", "")
    assert ask("dlq", "purge", name, "--yes") == (0, "jobs removed: 0\n", "")


def test_a_wait_goes_on_beyond_one_request(ask: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qclient.cli.verbs.WAIT_ONCE_S", 0.05)
    job_id = f"{queue.name}-late"
    queue.add("late", 1, job_id=job_id, delay=1)
    with Worker(queue, lambda job: "came"):
        assert ask("job", "wait", job_id) == (0, '"came"\n', "")


def test_schedules(ask: Run, queue: Queue) -> None:
    name, cron = queue.name, f"cron-{queue.name}"
    added = ask("cron", "add", cron, name, "--every", "1h", "--data", '{"n": [1]}', "--job-name", "tick")
    assert (added.code, added.err) == (0, "")
    assert f"name      {cron}\nqueue     {name}\nwhen      every 1h\n" in added.out
    changed = ask(
        "cron", "add", cron, name, "--schedule", "0 3 * * *", "--timezone", "Europe/Berlin",
        "--no-prevent-overlap", "--job-options", '{"maxAttempts": 2}', "--json",
    )  # fmt: skip
    assert changed.document["cron"].items() >= {"schedule": "0 3 * * *", "timezone": "Europe/Berlin"}.items()
    [row] = [line for line in ask("cron", "list").out.splitlines() if line.startswith(cron)]
    assert row.split()[1:7] == [name, "0", "3", "*", "*", "*"]
    assert cron in [one["name"] for one in ask("cron", "list", "--json").document["crons"]]
    wrong = ask("cron", "add", cron, name, "--schedule", "never")
    assert (wrong.code, wrong.out) == (2, "")
    assert wrong.err.startswith("qcore cron add: Invalid cron expression: ")
    assert ask("cron", "delete", cron) == (0, f"{cron} is deleted\n", "")
    assert ask("cron", "delete", cron) == (1, "", "qcore cron delete: Cron job not found\n")


def test_a_job_by_hand(ask: Run, queue: Queue) -> None:
    """push, pull, ack and fail, each by a connection of its own."""
    name, job_id = queue.name, f"{queue.name}-h"
    pushed = ask(
        "push", name, '{"n": [1, null]}', "--name", "sum", "--job-id", job_id, "--priority", "3",
        "--attempts", "2", "--backoff", "0", "--tags", "a,b", "--job-timeout", "20s",
    )  # fmt: skip
    assert pushed == (0, f"{job_id}\n", "")
    assert ask("push", name, "--json", "--job-id", job_id).document == {"ok": True, "id": job_id}
    pulled = ask("pull", name, "--json").document["job"]
    assert (pulled["data"], pulled["name"], pulled["tags"]) == ({"n": [1, None]}, "sum", ["a", "b"])
    assert ask("pull", name) == (1, "", "qcore pull: no job is ready\n")
    assert ask("pull", name, "--wait", "10ms").code == 1
    assert ask("job", "progress", job_id, "40", "--message", "half") == (0, f"{job_id} is at 40\n", "")
    assert ask("job", "log", job_id, "a line", "--level", "warn").code == 0
    assert "a line" in ask("job", "logs", job_id).out
    assert ask("fail", job_id, "--error", "no luck") == (0, f"{job_id} has failed\n", "")
    # With an owner there is a lock, and its token is asked for.
    shown = dict(line.split(maxsplit=1) for line in ask("pull", name, "--owner", "me").out.splitlines())
    token = ask("job", "get", job_id).out and shown["lock"].split()[1]
    assert ask("ack", job_id).code == 1
    assert ask("ack", job_id, "--lock-token", token, "--result", '{"sum": 1}').code == 0
    assert ask("job", "result", job_id).out == '{"sum": 1}\n'
    assert ask("job", "clear-logs", job_id).code == 0
    assert ask("job", "logs", job_id).out == "no log\n"
    wrong = ask("push", name, "{not json")
    assert (wrong.code, len(wrong.err.splitlines())) == (2, 1)


def test_changes_of_one_job(ask: Run, queue: Queue) -> None:
    name, job_id = queue.name, f"{queue.name}-c"
    queue.add("n", 1, job_id=job_id, delay=3600)
    assert ask("job", "update", job_id, '"new"').code == 0
    assert ask("job", "get", job_id, "--json").document["job"]["data"] == "new"
    assert ask("job", "delay", job_id, "2h").code == 0
    job = ask("job", "get", job_id, "--json").document["job"]
    assert 7_100_000 < job["runAt"] - job["createdAt"] < 8_000_000
    assert ask("job", "promote", job_id) == (0, f"{job_id} is ready\n", "")
    assert ask("job", "promote", job_id).err == "qcore job promote: Job not found or not delayed\n"
    assert ask("job", "priority", job_id, "9") == (0, f"{job_id} has priority 9\n", "")
    assert ask("queue", "count", name) == (0, "1\n", "")
    assert ask("queue", "priorities", name, "--json").document["counts"] == {"9": 1}
    assert ask("job", "children", job_id, "--json").document["data"] == {"values": {}}
    assert ask("job", "discard", job_id) == (0, f"{job_id} is a dead letter\n", "")
    assert "unknown" in ask("dlq", "stats", name).out
    assert ask("dlq", "remove", name, job_id) == (0, f"{job_id} is removed\n", "")
    assert ask("dlq", "remove", name, job_id).code == 1
    assert "maxEntries" in ask("dlq", "config", name).out
    queue.add_bulk([("n", i, {"delay": 3600}) for i in range(3)])
    assert ask("queue", "promote", name, "--count", "2") == (0, "jobs made ready: 2\n", "")


def test_limits(ask: Run, queue: Queue) -> None:
    name = queue.name
    assert ask("queue", "paused", name) == (0, "no\n", "")
    assert ask("rate-limit", "set", name, "5", "--duration", "2s").code == 0
    assert ask("concurrency", "set", name, "3").code == 0
    limits = ask("queue", "limits", name, "--json").document["data"]["limits"]
    assert (limits["rateLimit"], limits["concurrencyLimit"]) == ({"max": 5, "duration": 2000}, 3)
    assert ask("queue", "limits", name).out == (
        "starts          5 in 2s\nnext start      now\nactive at once  3\nreached         no\n"
    )
    assert ask("rate-limit", "clear", name).code == 0
    assert ask("concurrency", "clear", name).code == 0
    limits = ask("queue", "limits", name, "--json").document["data"]["limits"]
    assert (limits["rateLimit"], limits["concurrencyLimit"]) == (None, None)
    assert ask("queue", "limits", name).out == "no limits\n"
    set_for = ask("rate-limit", "set", name, "1", "--duration", "2m", "--ttl", "90s")
    assert set_for.out == f"{name} starts at most 1 jobs in 2m, for 1m 30s\n"
    assert "at the latest in 1m " in ask("queue", "limits", name).out
    assert ask("rate-limit", "set", name, "4").out == f"{name} starts at most 4 jobs in 1s\n"
    wrong = ask("concurrency", "set", name, "many")
    assert (wrong.code, len(wrong.err.splitlines())) == (2, 1)


def test_webhooks(ask: Run, queue: Queue, tmp_path: Any) -> None:
    secret = tmp_path / "secret"
    secret.write_text("h00k\n")
    secret.chmod(0o600)
    url = f"https://hooks.example.com/{queue.name}"
    added = ask(
        "webhook", "add", url, "job.completed,job.failed", "--queue", queue.name, "--secret-file", str(secret)
    )
    assert (added.code, added.err) == (0, "")
    hook = added.out.strip()
    [row] = [line for line in ask("webhook", "list").out.splitlines() if line.startswith(hook)]
    assert row.split()[1:5] == [url, "job.completed,", "job.failed", queue.name]
    listed = ask("webhook", "list", "--json")
    assert "h00k" not in listed.out
    for verb, enabled in (("disable", False), ("enable", True)):
        assert ask("webhook", verb, hook).code == 0
        hooks = ask("webhook", "list", "--json").document["data"]["webhooks"]
        assert [one["enabled"] for one in hooks if one["id"] == hook] == [enabled]
    assert ask("webhook", "remove", hook) == (0, f"{hook} is removed\n", "")
    assert ask("webhook", "remove", hook).err == "qcore webhook remove: Webhook not found\n"
    wrong = ask("webhook", "add", "http://localhost/", "job.completed")
    assert wrong.err == "qcore webhook add: Webhook URL cannot point to localhost\n"
    assert ask("webhook", "add", url, "job.completed", "--secret-file", "/nowhere").code == 2


def test_workers(ask: Run, queue: Queue) -> None:
    with Worker(queue, lambda job: None) as worker:
        queue.add("n").result(timeout=30)
        listed = ask("worker-list", "--json").document["data"]["workers"]
        again = ask("--json", "worker-list").document["data"]["workers"]
        assert [one["id"] for one in again] == [one["id"] for one in listed]
        [found] = [one for one in listed if one["queues"] == [queue.name]]
        assert found["id"] in ask("worker", "list").out
        assert ask("worker", "unregister", found["id"]).code == 0
        assert worker.stats().completed == 1
    assert ask("worker-unregister", "nobody").err == "qcore worker unregister: Worker not found\n"


def test_lists_hold_no_payloads_unless_asked(ask: Run, queue: Queue) -> None:
    name = queue.name
    queue.add("n", "the-payload", job_id=f"{name}p")
    fail(queue, f"{name}f", "the error")
    for arguments in (("queue", "jobs", name), ("dlq", "list", name)):
        assert "payload" not in ask(*arguments).out
        assert "payload" not in ask(*arguments, "--json").out
        assert "payload" in ask(*arguments, "--json", "--payloads").out


def test_figures(ask: Run, url: str) -> None:
    assert ask("ping").out.startswith(f"pong from {url} in ")
    document = ask("ping", "--json").document
    assert (document["ok"], document["url"]) == (True, url)
    assert ask("healthcheck") == (0, "ok\n", "")
    assert ask("healthcheck", "--json").document == {"ok": True, "url": url}
    assert ask("healthcheck", url) == (0, "ok\n", "")
    assert ask("ping", "tcp://127.0.0.1:1").code == 1
    assert ask("ping", "http://127.0.0.1:1").code == 2
    assert ask("stats", "--json").document["stats"]["active"] == 0
    assert ask("stats", "-q") == (0, "", "")
    assert "DEBUG" not in ask("stats", "-v").out
    assert ask("health").out.startswith("waiting  ")
    assert ask("health", "--json").document["storage"]["diskFull"] is False
    assert ask("metrics").out.startswith("totalPushed  ")
    assert "\nbunqueue_" in ask("prometheus").out or "\nqcore_" in ask("prometheus").out
    assert ask("queue", "metrics", "none").out == "nothing\n"
    assert ask("queue", "metrics", "none", "failed", "--json").document["data"]["count"] == 0
    assert ask("queue", "metrics").code == 2
    assert ask("--json", "stats").document["stats"]["active"] == 0
    assert ask("stats").out.startswith("waiting  ")
    assert ask("worker", "list", "--json").document["ok"] is True


def test_health_tells_what_the_server_lost_before_its_start(qcore: Run, tmp_path: Path) -> None:
    made, data = tmp_path / "made.db", tmp_path / "jobs.db"
    server = Server("--data", str(made))
    url = f"tcp://127.0.0.1:{server.port}"
    for _ in range(5):
        assert qcore("push", "q", "1", "--durable", QCORE_URL=url, QCORE_TOKEN=TOKEN).code == 0
    for suffix in ("", "-wal", "-shm"):
        shutil.copyfile(f"{made}{suffix}", f"{data}{suffix}")
    server.stop()
    with open(f"{data}-wal", "r+b") as log:
        log.seek(32 + 4120 + 200)
        log.write(b"\xa5" * 100)
    server = Server("--data", str(data))
    done = qcore("health", QCORE_URL=f"tcp://127.0.0.1:{server.port}", QCORE_TOKEN=TOKEN)
    server.stop()
    assert done.code == 0
    assert "\nlost before the start: jobs.db-wal is damaged at frame" in done.out


def test_the_ways_to_a_server(qcore: Run, addresses: dict[str, str], tmp_path: Any) -> None:
    host, port = addresses["tcp"].removeprefix("tcp://").split(":")
    path = addresses["unix"].removeprefix("unix://")
    file = tmp_path / "token"
    file.write_text(f"\n{TOKEN}\nanother\n")
    file.chmod(0o600)
    with_file = ("--token-file", str(file))
    for way in (("--host", host, "--port", port), ("-H", host, "-p", port), ("--socket", path)):
        assert qcore("healthcheck", *way, *with_file) == (0, "ok\n", "")
        assert qcore("healthcheck", *way, "--token", TOKEN) == (0, "ok\n", "")
        for name in ("QCORE_TOKEN", "BQ_TOKEN", "BUNQUEUE_TOKEN"):
            assert qcore("healthcheck", *way, **{name: TOKEN}).code == 0
    assert qcore("healthcheck", "--url", f"{addresses['tcp']}?token={TOKEN}").code == 0
    for host_name, port_name in (("HOST", "TCP_PORT"), ("BQ_HOST", "BQ_TCP_PORT")):
        assert qcore("healthcheck", *with_file, **{host_name: host, port_name: port}).code == 0
    port = addresses["tls"].rpartition(":")[2]
    at = ("-H", "localhost", "-p", port, *with_file)
    ca = ("--tls-ca", addresses["ca"])
    assert qcore("healthcheck", *at, *ca) == (0, "ok\n", "")
    assert qcore("healthcheck", *at, "--tls", SSL_CERT_FILE=addresses["ca"]).code == 0
    assert qcore("healthcheck", *at, "--tls-no-verify").code == 0
    assert qcore("healthcheck", *at, *ca, "-H", "127.0.0.1", "--tls-server-name", "localhost").code == 0
    assert (
        qcore("healthcheck", "--url", f"{addresses['tls']}?ca_file={addresses['ca']}", *with_file).code == 0
    )
    for wrong, said in (
        (("--tls",), "certificate is not trusted"),
        ((), "the server speaks TLS: name it tcps://, or say --tls"),
        ((*ca, "-H", "127.0.0.1"), "certificate is not trusted"),
        (("--tls", "-p", addresses["tcp"].rpartition(":")[2]), "it speaks no TLS"),
    ):
        done = qcore("healthcheck", *at, *wrong)
        assert (done.code, len(done.err.splitlines())) == (1, 1), wrong
        assert said in done.err
    done = qcore("healthcheck", "--socket", path, "--tls")
    assert (done.code, done.err) == (
        2,
        f"qcore healthcheck: unix://{path} has no TLS; expected tcps://host:port\n",
    )
    # An option is stronger than the environment, and so is a URL than a host.
    assert qcore("healthcheck", "--socket", path, *with_file, QCORE_URL="tcp://127.0.0.1:1").code == 0
    assert qcore("healthcheck", *with_file, QCORE_URL=addresses["tcp"], TCP_PORT="1").code == 0


def test_a_port_that_an_orchestrator_invented(qcore: Run) -> None:
    done = qcore(
        "healthcheck", "--timeout", "1s", BUNQUEUE_TCP_PORT="tcp://10.0.0.1:6789", BQ_HOST="127.0.0.99"
    )
    assert done.err.splitlines()[0] == "qcore: BUNQUEUE_TCP_PORT is no port, 6789 is used"


def test_without_the_token(qcore: Run, url: str) -> None:
    for token in ({}, {"QCORE_TOKEN": "wrong"}):
        done = qcore("stats", QCORE_URL=url, **token)
        assert (done.code, done.out) == (1, "")
        assert len(done.err.splitlines()) == 1
    done = qcore("stats", "--json", QCORE_URL=url)
    assert (done.code, done.out) == (1, "")
    assert json.loads(done.err)["ok"] is False


def test_a_server_that_says_nothing(qcore: Run) -> None:
    """The probe has a bound of its own, the greeting included."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        done = qcore("healthcheck", "--url", url, "--timeout", "200ms")
    assert (done.code, done.out) == (1, "")
    assert "no reply within 0.2 s" in done.err


def test_a_server_that_goes_in_between_is_one_line(qcore: Run) -> None:
    """What was sent may have been done, so it is not sent again."""

    def answer_once(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        with peer:
            hello = b"\x82\xa2ok\xc3\xa5reqId\xa11"
            peer.recv(4096)
            peer.sendall(len(hello).to_bytes(4, "big") + hello)
            peer.recv(4096)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer_once, args=(listener,))
        thread.start()
        done = qcore("queue", "pause", "q", "--port", str(listener.getsockname()[1]))
        thread.join()
    assert (done.code, done.out) == (1, "")
    assert done.err == "qcore queue pause: the server closed the connection\n"


@pytest.mark.parametrize(("said", "code"), [("y\n", 0), ("n\n", 1), ("\n", 1)])
def test_what_removes_asks_on_a_terminal(addresses: dict[str, str], said: str, code: int) -> None:
    main, terminal = pty.openpty()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("QCORE_", "BUNQUEUE_", "BQ_"))}
    try:
        os.write(main, said.encode())
        done = subprocess.run(
            [sys.executable, "-m", "qclient", "queue", "obliterate", "nobodys"],
            env=env | {"QCORE_URL": addresses["unix"], "QCORE_TOKEN": TOKEN},
            stdin=terminal,
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        os.close(main)
        os.close(terminal)
    question = f"remove everything of nobodys, active jobs and settings too at {addresses['unix']}? [y/N] "
    assert done.returncode == code
    assert done.stderr == question + ("" if code == 0 else "qcore queue obliterate: nothing was done\n")
    assert done.stdout == ("nobodys is gone\n" if code == 0 else "")


def test_colour_is_not_what_a_job_says(ask: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    name = queue.name
    queue.add("[bold]evil[/bold]\x1b[31m", job_id=f"{name}e")
    coloured = ask("queue", "jobs", name, FORCE_COLOR="1", COLUMNS="200").out
    assert "\x1b[1m" in coloured  # the header is ours
    assert "\x1b[31m" not in coloured
    assert "[bold]evil[/bold]\\x1b[31m" in coloured
    for environ in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b" not in ask("queue", "jobs", name, FORCE_COLOR="1", **environ).out
    monkeypatch.setitem(sys.modules, "rich", None)  # as if it were not installed
    assert "\x1b" not in ask("queue", "jobs", name, FORCE_COLOR="1").out


def test_commands(qcore: Run) -> None:
    document = qcore("commands", "--json").document
    assert [command["name"] for command in document["commands"]] == list(COMMANDS)
    [pause] = qcore("commands", "Pause", "--json").document["commands"]
    assert pause == {
        "name": "Pause",
        "help": "Let nothing of a queue start.",
        "level": "committed",
        "blocking": False,
        "fields": [
            {
                "name": "queue",
                "kind": "queue",
                "required": True,
                "help": "1 to 256 of A-Z a-z 0-9 _ . : -",
            }
        ],
        "reply": [],
        "errors": [],
    }
    assert qcore("commands").out.splitlines()[0].split() == ["command", "level", "does"]
    assert qcore("commands", "Ping").out == "no fields\n"
    assert len(qcore("commands", "Clean").out.splitlines()) == 1 + len(COMMANDS["Clean"].fields)


def test_the_table_of_verbs_is_whole() -> None:
    build_parser()
    page = (Path(__file__).parents[2] / "docs/reference/command-line.md").read_text("utf-8")
    assert {verb.path.split()[0] for verb in VERBS if " " in verb.path} == set(GROUPS)
    assert len({verb.path for verb in VERBS}) == len(VERBS)
    for verb in VERBS:
        names = {field.name for field in COMMANDS[verb.command].fields}
        named = {
            *verb.places,
            *(verb.options or ()),
            *verb.renamed,
            *verb.durations,
            *verb.forms,
            *verb.fixed,
        }
        assert named <= names, verb.path
        assert f"`{verb.path}" in page, verb.path
        add_fields(Parser(), verb)
        # Whatever takes jobs away asks first; what names one job or schedule has been asked enough.
        assert bool(verb.asks) == (verb.command in ("Drain", "Clean", "Obliterate", "PurgeDlq")), verb.path


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (b"\x00\xff", "AP8="),
        (float("nan"), None),
        (float("-inf"), None),
        (1796054370935.0, 1796054370935),
        (2.0, 2.0),
        (1e300, 1e300),
        ({1: (b"a", None)}, {"1": ["YQ==", None]}),
        ({b"k": 1}, {"aw==": 1}),
        (2**64 - 1, 2**64 - 1),
        (Unreadable(b"\xc0", "no counterpart"), {"unreadable": "no counterpart"}),
    ],
)
def test_any_payload_is_json(value: object, written: object) -> None:
    assert jsonable(value) == written
    assert type(jsonable(value)) is type(written)
    json.dumps(jsonable(value), allow_nan=False)


def test_what_a_terminal_would_obey_is_escaped() -> None:
    assert printable("a\x1b[31m\r\n\x07\x9b\u202e\ud800é☃") == ("a\\x1b[31m\\r\\n\\x07\\x9b\\u202e\\ud800é☃")
