"""How processes with an engine start, end and are refused."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qclient import ClosedError, Queue, shutdown_engine
from qcore.store.datafile import SCHEMA_VERSION
from qcore.store.sqlite import SqliteStore

Start = Callable[..., Any]
Program = Callable[..., "subprocess.CompletedProcess[str]"]

#: A program that adds jobs, takes one, and then ends in some way.
HEAD = """
import os, sys, threading, time
from qclient import ClosedError, Queue, Worker
queue = Queue("q", sys.argv[1])
queue.add_bulk([("n", i) for i in range(20)])
queue.add("last", {})
"""

ENDINGS = {
    "end of the program": "",
    "closed": "queue.close()",
    "sys.exit": "sys.exit(5)",
    "exception": "raise RuntimeError('as planned')",
    "dropped": "del queue",
    "sys.exit in a thread": """
def leave():
    sys.exit(7)
thread = threading.Thread(target=leave)
thread.start()
thread.join()
""",
    "a daemon thread that goes on adding": """
added = threading.Event()
def add():
    try:
        while True:
            queue.add("more", {})
            added.set()
    except ClosedError:    # the engine is gone while the thread still runs
        pass
threading.Thread(target=add, daemon=True).start()
added.wait()
""",
    "a call in a daemon thread that waits for ever": """
waits = threading.Event()
def wait():
    job = queue.add("never", {})
    waits.set()
    try:
        job.result()
    except ClosedError:
        pass
threading.Thread(target=wait, daemon=True).start()
waits.wait()
""",
    "a worker left open": """
ran = threading.Event()
worker = Worker(queue, lambda job: ran.set(), handle_signals=False).start()
ran.wait()
""",
    "a job that still runs": """
ran = threading.Event()
def run(job):
    ran.set()
    time.sleep(1000)
worker = Worker(queue, run, handle_signals=False).start()
ran.wait()
""",
    "KeyboardInterrupt": "import signal\nsignal.raise_signal(signal.SIGINT)",
    "atexit of the program": """
import atexit
atexit.register(lambda: queue.add("late", {}))
""",
}
EXIT_CODES = {"sys.exit": 5, "exception": 1, "KeyboardInterrupt": -signal.SIGINT}


@pytest.mark.parametrize("how", ENDINGS)
def test_an_embedded_engine_flushes_when_the_interpreter_ends(
    program: Program, tmp_path: Path, how: str
) -> None:
    file = tmp_path / "jobs.db"
    source = HEAD + ENDINGS[how]
    # Resources that the program left open are the program's own affair.
    done = program(
        "import warnings\nwarnings.simplefilter('ignore', ResourceWarning)\n" + source, f"sqlite:///{file}"
    )
    assert done.returncode == EXIT_CODES.get(how, 0), done.stderr
    assert "Fatal Python error" not in done.stderr
    if how not in EXIT_CODES:
        # One line of a worker that is still there says as much.
        assert all("the engine closed the session" in line for line in done.stderr.splitlines())
    assert not Path(f"{file}-wal").exists() or not Path(f"{file}-wal").stat().st_size
    assert not Path(f"{file}.lock").exists()
    with Queue("q", f"sqlite:///{file}") as queue:
        counts = queue.counts()
        assert counts.waiting + counts.completed >= 21
        assert counts.active == counts.failed == counts.delayed == 0


def test_what_a_program_takes_at_its_end_is_not_charged(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    taken = ENDINGS["a job that still runs"].replace("ran.set()", "print(job.id, flush=True); ran.set()")
    done = program(HEAD + taken, f"sqlite:///{file}")
    assert done.returncode == 0, done.stderr
    with Queue("q", f"sqlite:///{file}") as queue:
        job = queue.job(done.stdout.strip()).refresh()
        assert (job.state, job.attempts_made) == ("waiting", 0)


# --- forks -------------------------------------------------------------------------------------

FORK = """
import os, sys
from qclient import ForkedError, Queue, shutdown_engine
from qcore.broker.embedded import EmbeddedEngine

queue = Queue("q", sys.argv[1])
first = queue.add("first", {})

def attempt(call):
    try:
        call()
    except ForkedError:
        return "forked"
    except BaseException as error:
        return repr(error)
    return "went through"

def child():
    said = [attempt(lambda: queue.add("child", {})), attempt(lambda: queue.add_bulk([("child", 1)] * 3)),
            attempt(queue.counts), attempt(lambda: first.refresh())]
    os.write(1, (" ".join(said) + "\\n").encode())

for ending in ("_exit", "exit"):
    pid = os.fork()
    if pid == 0:
        child()
        if ending == "exit":
            queue.close()
            shutdown_engine()
            sys.exit(0)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert status == 0, status
    queue.add("parent", {}, durable=True)

counts = queue.counts()
assert counts.waiting == 3, counts
assert os.path.exists(sys.argv[2] + ".lock")
print("parent", counts.waiting, flush=True)
"""


def test_cases_c029_a_forked_child_is_refused_and_harms_nothing(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    done = program(FORK, f"sqlite:///{file}", str(file))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [*["forked forked forked forked"] * 2, "parent 3"]
    store = SqliteStore(file)
    try:
        assert store.integrity_check() == []
    finally:
        store.close()
    with Queue("q", f"sqlite:///{file}") as queue:
        assert queue.counts().waiting == 3


def test_a_child_of_a_memory_engine_is_refused_too(program: Program) -> None:
    done = program(FORK.replace('assert os.path.exists(sys.argv[2] + ".lock")\n', ""), "memory://")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [*["forked forked forked forked"] * 2, "parent 3"]


def test_a_child_that_outlives_its_parent_holds_no_file(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    ending = """
pid = os.fork()
if pid == 0:
    for fd in (0, 1, 2):
        os.close(fd)
    time.sleep(60)
    os._exit(0)
print(pid, flush=True)
os.kill(os.getpid(), 9)
"""
    done = program(HEAD + ending, f"sqlite:///{file}")
    assert done.returncode == -signal.SIGKILL, done.stderr
    child = int(done.stdout)
    try:
        with Queue("q", f"sqlite:///{file}") as queue:
            assert queue.add("next", {}, durable=True).exists()
        os.kill(child, 0)  # it was there all the time
    finally:
        os.kill(child, signal.SIGKILL)


# --- the end of a server --------------------------------------------------------------------------


def held_job(line: Any, *, attempts: int = 1, lease_ms: int = 60_000) -> tuple[str, str]:
    """Add a job and take it: id and token."""
    line.call("PUSH", queue="q", name="n", data={"n": 1}, maxAttempts=attempts)
    reply = line.call("PULL", queue="q", owner="w", lockTtl=lease_ms)
    return reply["job"]["id"], reply["token"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_ends_at_once(start: Start, line: Any, tmp_path: Path, number: signal.Signals) -> None:
    file = tmp_path / "jobs.db"
    server = start("--data", str(file))
    talk = line(server)
    talk.call("PUSHB", queue="q", jobs=[{"name": "n", "data": i} for i in range(50)])
    server.signal(number)
    assert server.end(10)[0] == 0
    assert not Path(f"{file}-wal").exists()
    assert not Path(f"{file}.lock").exists()
    again = line(start("--data", str(file)))
    assert again.call("Count", queue="q")["count"] == 50


def test_a_reply_that_waited_for_its_commit_needs_no_traffic(start: Start, line: Any, tmp_path: Path) -> None:
    """Nobody else is connected: only the end of the commit can wake the server."""
    talk = line(start("--data", str(tmp_path / "jobs.db")))
    for n in range(20):
        assert talk.call("PUSH", queue="q", name="n", data=n, durable=True)["ok"]


def test_leases_outlive_a_graceful_stop_uncharged(start: Start, line: Any, tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    server = start("--data", str(file), "--shutdown-timeout-ms", "300")
    talk = line(server)
    renewed, finished, failed = (held_job(talk, attempts=2) for _ in range(3))
    server.signal(signal.SIGTERM)
    code, err = server.end(10)
    assert (code, "Traceback" in err) == (0, False), err
    again = line(start("--data", str(file)))
    assert again.call("PULL", queue="q", owner="other")["job"] is None
    for job_id, token in (renewed, finished, failed):
        assert again.call("GetJob", id=job_id)["job"]["attempts"] == 0
        assert again.call("GetState", id=job_id)["state"] == "active"
        assert not again.call("ACK", id=job_id, token=token[::-1])["ok"]
    assert again.call("JobHeartbeat", id=renewed[0], token=renewed[1])["ok"]
    assert again.call("ACK", id=renewed[0], token=renewed[1], result={"a": 1})["ok"]
    assert again.call("ACKB", ids=[finished[0]], tokens=[finished[1]], results=[2])["ok"]
    assert again.call("FAIL", id=failed[0], token=failed[1], error="x")["ok"]
    assert again.call("GetResult", id=renewed[0])["result"] == {"a": 1}
    assert again.call("GetJob", id=failed[0])["job"]["attempts"] == 1


def test_a_graceful_stop_waits_for_active_jobs(start: Start, line: Any, tmp_path: Path) -> None:
    """While it waits, nothing is given out and no connection accepted; everything else works."""
    file = tmp_path / "jobs.db"
    server = start("--data", str(file))
    talk, poll = line(server), line(server)
    job_id, token = held_job(talk)
    poll.send("PULL", queue="q", owner="w", timeout=30_000)
    server.signal(signal.SIGTERM)
    deadline = time.monotonic() + 20
    while True:  # until the port is closed
        try:
            socket.create_connection(("127.0.0.1", server.port), timeout=5).close()
        except ConnectionRefusedError:
            break
        except ConnectionResetError:
            pass  # it was in the line of those to be accepted
        assert time.monotonic() < deadline
    assert talk.call("PUSH", queue="q", name="n", data=2)["ok"]
    assert talk.call("PULL", queue="q", owner="w")["job"] is None
    assert poll.silent(0.05)
    assert talk.call("JobHeartbeat", id=job_id, token=token)["ok"]
    assert server.process.poll() is None
    assert talk.call("ACK", id=job_id, token=token, result="kept")["ok"]
    assert server.end(10)[0] == 0
    again = line(start("--data", str(file)))
    assert again.call("GetResult", id=job_id)["result"] == "kept"
    assert again.call("Count", queue="q")["count"] == 1


def test_a_second_signal_ends_it_at_once(start: Start, line: Any, tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    server = start("--data", str(file), "--shutdown-timeout-ms", "600000")
    talk = line(server)
    job_id, token = held_job(talk)
    talk.call("PUSH", queue="q", name="n", data=2)
    server.signal(signal.SIGTERM)
    assert talk.call("Ping")["ok"]
    assert server.process.poll() is None
    server.signal(signal.SIGTERM)
    code, err = server.end(10)
    assert (code, "Traceback" in err) == (1, False), err
    again = line(start("--data", str(file)))
    assert again.call("GetState", id=job_id)["state"] == "active"
    assert again.call("Count", queue="q")["count"] == 1
    assert again.call("ACK", id=job_id, token=token)["ok"]


def test_a_lease_that_ran_out_meanwhile_is_charged_once(start: Start, line: Any, tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    server = start("--data", str(file))
    talk = line(server)
    again_id, _ = held_job(talk, attempts=3, lease_ms=200)
    dead_id, _ = held_job(talk, attempts=1, lease_ms=200)
    assert talk.call("PUSH", queue="q", name="n", data=0, durable=True)["ok"]
    server.kill()
    talk = line(start("--data", str(file)))
    deadline = time.monotonic() + 20
    while "active" in (states := [talk.call("GetState", id=i)["state"] for i in (again_id, dead_id)]):
        assert time.monotonic() < deadline, states
    assert states[1] == "failed"
    assert talk.call("GetJob", id=again_id)["job"]["attempts"] == 1
    assert talk.call("GetJob", id=dead_id)["job"]["attempts"] == 1


def test_watch_stdin_ends_the_server_with_its_starter(start: Start, line: Any, tmp_path: Path) -> None:
    server = start("--data", str(tmp_path / "jobs.db"), "--watch-stdin", stdin=subprocess.PIPE)
    talk = line(server)
    server.process.stdin.write("not the end\n")
    server.process.stdin.flush()
    assert talk.call("Ping")["ok"]
    server.process.stdin.close()
    server.process.stdin = None
    assert server.end(10)[0] == 0


def test_watch_stdin_that_is_closed_from_the_start(start: Start) -> None:
    server = start("--watch-stdin", stdin=subprocess.DEVNULL)
    assert server.end(10)[0] == 0


# --- refused at the start ---------------------------------------------------------------------------


def refusal(server: Any) -> str:
    """The one line of a server that cannot start."""
    code, err = server.end(10)
    assert code == 2, err
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("qcore start: "), err
    return str(lines[0])


def test_cases_c029_two_servers_on_one_file(start: Start, line: Any, tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    other = tmp_path / "link.db"
    first = start("--data", str(file))
    talk = line(first)
    other.symlink_to(file)
    for name in (file, other):
        text = refusal(start("--data", str(name)))
        assert str(file) in text
        assert str(first.process.pid) in text
    first.signal(signal.SIGSTOP)
    assert str(first.process.pid) in refusal(start("--data", str(file)))
    first.signal(signal.SIGCONT)
    assert talk.call("PUSH", queue="q", name="n", data=1, durable=True)["ok"]
    first.kill()
    assert line(start("--data", str(file))).call("Count", queue="q")["count"] == 1


def test_cases_c029_a_server_on_the_file_of_an_embedded_engine(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    with Queue("q", f"sqlite:///{file}") as queue:
        queue.add("n", {})
        text = refusal(start("--data", str(file)))
        assert str(file) in text
        assert str(os.getpid()) in text
        queue.add("n", {}, durable=True)
    shutdown_engine()
    assert start("--data", str(file)).port


def test_cases_c029_an_embedded_engine_on_the_file_of_a_server(
    start: Start, program: Program, tmp_path: Path
) -> None:
    file = tmp_path / "jobs.db"
    server = start("--data", str(file))
    assert server.port
    done = program(HEAD, f"sqlite:///{file}")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "EngineBusyError" in last
    assert str(file) in last
    assert str(server.process.pid) in last


def test_a_busy_port(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = refusal(start("--data", str(file), "--port", str(port)))
    assert f"127.0.0.1:{port}" in text
    assert "in use" in text
    # What was opened before is given up.
    assert not Path(f"{file}.lock").exists()
    assert start("--data", str(file)).port


def _write(path: Path, how: str) -> None:
    if how == "text":
        path.write_text("a diary\n" * 100)
    elif how == "short":
        path.write_bytes(b"SQLite")
    elif how == "directory":
        path.mkdir()
    elif how == "broken":
        SqliteStore(path).close()
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (path.stat().st_size - 4096))
    elif how == "newer":
        SqliteStore(path).close()
        with sqlite3.connect(path) as con:
            con.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
        con.close()
    else:
        with sqlite3.connect(path) as con:
            con.execute("CREATE TABLE diary(day)")
        con.close()


@pytest.mark.parametrize("how", ["text", "short", "directory", "broken", "newer", "foreign"])
def test_a_file_that_is_not_ours(start: Start, tmp_path: Path, how: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    file = folder / "jobs.db"
    _write(file, how)

    def contents() -> dict[str, bytes]:
        return {p.name: p.read_bytes() if p.is_file() else b"" for p in folder.iterdir()}

    before = contents()
    assert str(file) in refusal(start("--data", str(file)))
    assert contents() == before


def test_a_directory_that_is_not_there(start: Start, tmp_path: Path) -> None:
    assert str(tmp_path / "no") in refusal(start("--data", str(tmp_path / "no" / "jobs.db")))


@pytest.mark.parametrize(
    ("options", "variables", "named"),
    [
        (["--prot", "1"], {}, "--prot"),
        (["--port", "many"], {}, "--port"),
        (["--port", "70000"], {}, "70000"),
        (["--data", ""], {}, "--data"),
        (["--adds", "sometimes"], {}, "sometimes"),
        (["--host", "0.0.0.0"], {}, "0.0.0.0"),
        (["--log-level", "loud"], {}, "loud"),
        ([], {"RATE_LIMIT_MAX_REQUESTS": "lots"}, "RATE_LIMIT_MAX_REQUESTS"),
        ([], {"SHUTDOWN_TIMEOUT_MS": "-1"}, "SHUTDOWN_TIMEOUT_MS"),
        ([], {"TCP_IDLE_TIMEOUT_MS": "1e3"}, "TCP_IDLE_TIMEOUT_MS"),
        ([], {"QCORE_CHANGES": "maybe"}, "QCORE_CHANGES"),
        ([], {"HOST": "no such host"}, "no such host"),
    ],
)
def test_settings_that_cannot_be(
    start: Start, options: list[str], variables: dict[str, str], named: str
) -> None:
    assert named in refusal(start(*options, **variables))


INTERRUPTED = """
import sys
from qclient import Queue
n = 0
with Queue("q", sys.argv[1]) as queue:
    queue.add("n")
    try:
        print("ready", flush=True)
        while True:
            queue.add("n", durable=sys.argv[2] == "durable")
            n += 1
    finally:
        print(n + 1, flush=True)
"""


@pytest.mark.parametrize("kind", ["plain", "durable"])
def test_an_interrupt_at_any_moment_ends_an_embedded_program_and_loses_nothing(
    tmp_path: Path, kind: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(INTERRUPTED)
    for n in range(12):
        url = f"sqlite:///{tmp_path}/{n}.db"
        with subprocess.Popen(
            [sys.executable, str(program), url, kind],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            time.sleep(0.002 * n)  # moments, not synchronisation: any of them will do
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=30)
        assert err.rstrip().endswith("KeyboardInterrupt"), err
        with Queue("q", url) as queue:
            assert len(queue) >= int(out.split()[-1])


def test_closing_the_engine_ends_calls_that_wait(tmp_path: Path) -> None:
    queue = Queue("q", f"sqlite:///{tmp_path}/jobs.db")
    job = queue.add("n")
    ended: list[BaseException] = []
    waits = threading.Event()

    def wait() -> None:
        waits.set()
        try:
            job.result(timeout=60)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    waits.wait()
    shutdown_engine()
    thread.join(timeout=20)
    assert not thread.is_alive()
    assert [type(error) for error in ended] == [ClosedError]
    queue.close()


FORKED = """
import os, sys
from qclient import Queue, Worker
queue = Queue("q", sys.argv[1])
worker = Worker("q", lambda job: 1, sys.argv[1]).start()
child = os.fork()
if child == 0:
    worker.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert queue.add("n").result(timeout=10) == 1    # the parent's worker goes on
worker.close()
queue.close()
"""


def test_closing_a_worker_in_a_forked_child_leaves_the_parents_alone(
    program: Program, tmp_path: Path
) -> None:
    done = program(FORKED, f"sqlite:///{tmp_path}/jobs.db")
    assert done.returncode == 0, done.stderr
