"""Fresh servers, what they use, and child processes that end with one line of JSON."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
HANG_S = 600.0
#: Who has written nothing for so long has settled: ours cleans up when a second has been quiet.
SETTLED_S = 2.5
_TICKS = os.sysconf("SC_CLK_TCK")


class SampleFailed(Exception):
    """A sample did not end, or its check found a job missing or doubled."""


@dataclass(frozen=True)
class Setup:
    """Where the parts of a run are."""

    node: Path | None  # folder with node_modules of the peers
    tools: Path  # compiled programs
    scratch: Path  # on the disk to measure

    def package(self, name: str) -> Path:
        if self.node is None:
            raise SystemExit(
                "the peers' folder is not known: npm install bunqueue bun bullmq ioredis somewhere, and name "
                "that folder with --reference or QCORE_BENCH_NODE"
            )
        return self.node / "node_modules" / name

    @property
    def bun(self) -> str:
        return str(self.package(".bin") / "bun")

    def version(self, name: str) -> str:
        return str(json.loads((self.package(name) / "package.json").read_text())["version"])

    def environment(self) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("BUNQUEUE_", "QCORE_"))}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH", "")]))
        if self.node is not None:
            env["QCORE_BENCH_NODE"] = str(self.node)
        return env

    @contextmanager
    def folder(self) -> Iterator[Path]:
        path = Path(tempfile.mkdtemp(prefix="bench-", dir=self.scratch))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def prepare(node: Path | None, scratch: Path | None) -> Setup:
    """Compile the load clients into a scratch folder."""
    base = Path(tempfile.mkdtemp(prefix="qcore-bench-", dir=scratch))
    compiler = shlex.split(os.environ.get("CC", "cc"))
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O2"]
    for name in ("rawload", "beanload"):
        subprocess.run([*compiler, *flags, "-o", base / name, HERE / f"{name}.c"], check=True)
    return Setup(node=node, tools=base, scratch=base)


# ---------------------------------------------------------------------------- processes


def stop(process: subprocess.Popen[Any], timeout_s: float = 10.0) -> None:
    """End a child by its own process id."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def run_json(setup: Setup, command: Sequence[str], env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a program to its end; the last line it writes is one JSON object."""
    done = subprocess.run(
        command,
        env={**setup.environment(), **(env or {})},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise SampleFailed(
            f"{command[0]} ended with {done.returncode}: {(done.stderr or done.stdout)[-2000:]}"
        )
    value: dict[str, Any] = json.loads(lines[-1])
    return value


def checked(report: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a report whose check passed."""
    if report.get("ok") is not True:
        raise SampleFailed(f"the check failed: {dict(report)}")
    return {k: float(v) for k, v in report.items() if k != "ok"}


# ------------------------------------------------------------------------------ servers


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@dataclass
class Server:
    """One server process on a free port of the loopback, with a folder of its own."""

    port: int
    process: subprocess.Popen[bytes]
    folder: Path
    _marks: list[tuple[float, int]] = field(default_factory=list)

    def _status(self, name: str) -> int:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1])
        raise KeyError(name)

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def written_bytes(self) -> int:
        """Bytes handed to write calls on files so far."""
        for line in Path(f"/proc/{self.process.pid}/io").read_text().splitlines():
            if line.startswith("wchar:"):
                return int(line.split()[1])
        raise KeyError("wchar")

    def settle(self) -> None:
        """Wait until it writes nothing any more."""
        before = -1
        while before != (before := self.written_bytes()):
            time.sleep(SETTLED_S)

    def mark(self) -> None:
        """The timed part begins."""
        self._marks.append((self.cpu_s(), self.written_bytes()))

    def used(self, n: int) -> dict[str, float]:
        """What the server has used for each of ``n`` jobs since :meth:`mark`, and its peak memory."""
        cpu, written = self._marks.pop()
        return {
            "server_cpu_us": (self.cpu_s() - cpu) / n * 1e6,
            "server_bytes_written": (self.written_bytes() - written) / n,
            "server_peak_mib": self._status("VmHWM") / 1024,
        }


def _command(
    setup: Setup, kind: str, disk: bool, port: int, folder: Path
) -> tuple[list[str], dict[str, str]]:
    if kind == "redis":
        return [
            "redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(folder),
            "--appendonly", "yes" if disk else "no", "--appendfsync", "everysec",
        ], {}  # fmt: skip
    if kind == "beanstalkd":
        binlog = ["-b", str(folder)] if disk else []
        return ["beanstalkd", "-l", "127.0.0.1", "-p", str(port), *binlog], {}
    env = {
        "HOST": "127.0.0.1",
        "TCP_PORT": str(port),
        "RATE_LIMIT_MAX_REQUESTS": "1000000000",
        "LOG_LEVEL": "error",
    }
    if disk:
        env["BUNQUEUE_DATA_PATH"] = str(folder / "queue.db")
    if kind == "echo":
        return [sys.executable, str(HERE / "echo_server.py"), str(port)], {}
    if kind == "ours":
        return [sys.executable, "-m", "qcore.server"], env
    env["HTTP_PORT"] = str(free_port())
    return [setup.bun, str(setup.package("bunqueue") / "dist" / "main.js")], env


@contextmanager
def server(setup: Setup, kind: str, disk: bool) -> Iterator[Server]:
    """A fresh ``ours``, ``bunqueue``, ``redis``, ``beanstalkd`` or ``echo``, ready to be connected to."""
    port = free_port()
    with setup.folder() as folder:
        command, env = _command(setup, kind, disk, port, folder)
        process = subprocess.Popen(
            command,
            env={**setup.environment(), **env},
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_for_port(process, port)
            yield Server(port, process, folder)
        finally:
            stop(process)


def _wait_for_port(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SampleFailed(f"the server ended with {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise SampleFailed("the server does not listen")


@contextmanager
def pinned(cores: int) -> Iterator[None]:
    """Processes that are started here stay on so many cores; all of them for 0."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[: cores or None])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def waiting_jobs(port: int) -> int:
    """Jobs of the queue ``bench`` that wait, as the server counts them."""
    body: bytes = msgpack.packb({"cmd": "GetJobCounts", "queue": "bench", "reqId": "count"})
    with socket.create_connection(("127.0.0.1", port), 30) as s, s.makefile("rb") as stream:
        s.sendall(struct.pack(">I", len(body)) + body)
        (n,) = struct.unpack(">I", stream.read(4))
        reply = msgpack.unpackb(stream.read(n))
    return int(reply["counts"]["waiting"])
