"""The command ``qcore``, as a process: output, one-line errors, exit codes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qclient import cli

TIMEOUT_S = 60


def qcore(*arguments: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command, with no settings but those given."""
    env = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("QCORE_", "BUNQUEUE_", "BQ_", "TCP_", "HOST"))
    }
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "qclient", *arguments],
        cwd=cwd,
        env=env | environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock.getsockname()[1]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The URL of a running server."""
    child = subprocess.Popen(
        [sys.executable, "-m", "qclient", "start", "--port", "0", "--watch-stdin"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    first = child.stdout.readline()
    yield "tcp://" + first.split("listening on ")[1].split()[0]
    child.stdin.close()
    assert child.wait(30) == 0
    child.stdout.close()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "qcore: expected a command; qcore --help lists them"),
        (("frobnicate",), "qcore: argument COMMAND: invalid choice: 'frobnicate'"),
        (("--frobnicate",), "qcore: unrecognized arguments: --frobnicate"),
        (("demo", "--frobnicate"), "qcore: unrecognized arguments: --frobnicate"),
        (("demo", "--job", "5"), "qcore: unrecognized arguments: --job 5"),
        (("demo", "extra"), "qcore: unrecognized arguments: extra"),
        (("demo", "--jobs"), "qcore demo: argument --jobs: expected one argument"),
        (("demo", "--jobs", "many"), "qcore demo: argument --jobs: expected a whole number, got 'many'"),
        (("demo", "--jobs", "0"), "qcore demo: argument --jobs: expected 1 to 1000000, got 0"),
        (("demo", "--jobs", "1.5"), "qcore demo: argument --jobs: expected a whole number, got '1.5'"),
        (("demo", "--workers", "257"), "qcore demo: argument --workers: expected 1 to 256, got 257"),
        (("ping", "--url", "tcp"), "qcore ping: url 'tcp' has no scheme"),
        (("ping", "--url", "ftp://host"), "qcore ping: unknown url scheme 'ftp'"),
        (("ping", "--url", "tcp://host:port"), "qcore ping: port of the tcp url is not usable"),
        (("ping", "--url", "memory://"), "qcore ping: memory:// is no server"),
        (("queue",), "qcore queue: expected one of list, counts, jobs, "),
        (("queue", "frobnicate"), "qcore queue: argument COMMAND: invalid choice: 'frobnicate'"),
        (("queue", "pause"), "qcore queue pause: the following arguments are required: QUEUE"),
        (("queue", "pause", "a b"), "qcore queue pause: Queue name contains invalid characters"),
        (
            ("queue", "clean", "q", "--limit", "-1", "--yes"),
            "qcore queue clean: --limit must be at least 0, not -1",
        ),
        (
            ("queue", "clean", "q", "--grace", "soon"),
            "qcore queue clean: argument --grace: expected a",
        ),
        (("queue", "jobs", "q", "--limit", "many"), "qcore queue jobs: argument --limit: expected a number"),
        (("dlq", "list", "q", "--filter", "{"), "qcore dlq list: argument --filter: expected JSON: "),
        (
            ("queue", "drain", "q"),
            "qcore queue drain: this would remove the queued jobs of q, and there",
        ),
        (("stats", "--url", "tcp://h", "--port", "1"), "qcore stats: --url and --host or --port name two"),
        (("stats", "--port", "0"), "qcore stats: --port: expected 1 to 65535, got '0'"),
        (("stats", "--socket", ""), "qcore stats: --socket: expected a path"),
        (
            ("stats", "--token", "a", "--token-file", "b"),
            "qcore stats: --token and --token-file: expected one",
        ),
        (
            ("stats", "--token-file", "nothing"),
            "qcore stats: --token-file: cannot read nothing: No such file",
        ),
        (("stats", "--timeout", "-1"), "qcore stats: argument --timeout: expected a"),
        (("stats", "--timeout", "9" * 400), "qcore stats: argument --timeout: expected at most 36500d"),
        (("stats", "--url", "h:1?token=secret"), "qcore stats: url 'h:1' has no scheme"),
        (("commands", "Frobnicate"), "qcore commands: unknown command 'Frobnicate'"),
        (("-q", "start"), "qcore: the options of start come after it"),
        (("start", "--frobnicate"), "qcore start: unrecognized arguments: --frobnicate"),
        (("start", "--port", "x"), "qcore start: --port: expected a whole number"),
        (("start", "--port", "65536"), "qcore start: --port: expected 0 to 65535, got 65536"),
        (("start", "--data", "/"), "qcore start: "),
        (("start", "--data", "/nowhere/at/all/jobs.db", "--port", "0"), "qcore start: "),
        (("start", "--host", "0.0.0.0"), "qcore start: host 0.0.0.0 is reachable from other machines"),
    ],
)
def test_what_cannot_be_used_is_one_line(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = qcore(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_busy_port_is_one_line(busy_port: int) -> None:
    done = qcore("start", "--port", str(busy_port))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("qcore start: ")
    assert str(busy_port) in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("content", [b"not a database at all, but long enough to be one" * 100, b"short"])
def test_a_file_that_is_no_database_is_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    done = qcore("start", "--data", str(path), "--port", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert str(path) in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert path.read_bytes() == content


def test_probes_of_a_server(server: str) -> None:
    done = qcore("ping", "--url", server)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"pong from {server} in ")
    done = qcore("healthcheck", QCORE_URL=server)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


def test_probes_without_a_server(busy_port: int) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound but not listening: nothing else gets the port
        url = f"tcp://127.0.0.1:{closed.getsockname()[1]}"
        done = qcore("healthcheck", "--url", url)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1


def test_version_and_help() -> None:
    assert qcore("version").stdout == qcore("--version").stdout
    for arguments in (("--help",), ("demo", "--help"), ("start", "--help"), ("ping", "--help")):
        done = qcore(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("usage: qcore")


def test_a_reader_that_leaves_is_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "qclient", "version"],
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=TIMEOUT_S,
        )
    finally:
        os.close(writer)
    assert done.stderr == b""


def test_main_is_callable(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out.startswith("qcore-engine ")
