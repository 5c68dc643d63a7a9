"""Covers ``qcore.server``: what a command costs over a socket, by depth of pipelining, size and storage."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import msgpack

PUSHES = 2000
JOBS = 5000


class Server:
    """A server in a process of its own, and one connection to it."""

    timeout = 120
    number = 1
    repeat = (3, 10, 5.0)
    rounds = 2
    warmup_time = 0

    def start(self, storage):
        self.folder = tempfile.mkdtemp()
        command = [sys.executable, "-m", "qcore.server", "--port", "0", "--log-level", "error"]
        if storage == "disk":
            command += ["--data", str(Path(self.folder) / "jobs.db")]
        env = {
            k: v for k, v in os.environ.items() if not k.startswith(("BUNQUEUE_", "QCORE_", "TCP_", "HTTP_"))
        }
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=env, cwd=self.folder)
        line = self.process.stdout.readline().decode()
        self.sock = socket.create_connection(("127.0.0.1", int(line.rpartition(":")[2])))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = self.sock.makefile("rb")

    def teardown(self, *params):
        self.stream.close()
        self.sock.close()
        self.process.terminate()
        self.process.wait(30)
        self.process.stdout.close()
        shutil.rmtree(self.folder)

    def frame(self, **fields):
        body = msgpack.packb(fields)
        return struct.pack(">I", len(body)) + body

    def reply(self):
        (n,) = struct.unpack(">I", self.stream.read(4))
        reply = msgpack.unpackb(self.stream.read(n))
        assert reply["ok"], reply
        return reply

    def push(self, data, **options):
        return self.frame(cmd="PUSH", queue="q", name="job", data=data, reqId="1", **options)

    def fill(self, n):
        jobs = [{"name": "job", "data": {"i": i}} for i in range(1000)]
        for _ in range(n // 1000):
            self.sock.sendall(self.frame(cmd="PUSHB", queue="q", jobs=jobs, reqId="1"))
            self.reply()


class Push(Server):
    """What do 2,000 adds cost with ``unanswered`` of them under way?"""

    params = (["memory", "disk"], [1, 50, 500], [100, 10_000])
    param_names = ("storage", "unanswered", "payload_bytes")

    def setup(self, storage, unanswered, payload_bytes):
        self.start(storage)
        self.one = self.push({"text": "x" * payload_bytes})

    def time_push(self, storage, unanswered, payload_bytes):
        chunk = self.one * unanswered
        for _ in range(PUSHES // unanswered):
            self.sock.sendall(chunk)
            for _ in range(unanswered):
                self.reply()


class DurablePush(Server):
    """What do 200 adds cost when each is on disk before its answer, and the next waits for that?"""

    def setup(self):
        self.start("disk")
        self.one = self.push({"i": 1}, durable=True)

    def time_push(self):
        for _ in range(200):
            self.sock.sendall(self.one)
            self.reply()


class Drain(Server):
    """What does it cost to pull and acknowledge 5,000 jobs in batches on one connection?"""

    params = (["memory", "disk"], [1, 20, 100])
    param_names = ("storage", "batch")
    rounds = 1

    def setup(self, storage, batch):
        self.start(storage)
        self.fill(JOBS)

    def time_drain(self, storage, batch):
        pull = self.frame(cmd="PULLB", queue="q", count=batch, timeout=0, owner="bench", reqId="1")
        for _ in range((JOBS if batch > 1 else 1000) // batch):
            self.sock.sendall(pull)
            reply = self.reply()
            ids = [job["id"] for job in reply["jobs"]]
            self.sock.sendall(self.frame(cmd="ACKB", ids=ids, tokens=reply["tokens"], reqId="2"))
            self.reply()


class EmptyPull(Server):
    """What do 20,000 ``PULLB`` that find nothing cost the server, in CPU for each? Idle workers send many."""

    params = ([1, 100],)
    param_names = ("unanswered",)

    def setup(self, unanswered):
        self.start("memory")
        self.frames = (
            self.frame(cmd="PULLB", queue="q", count=10, timeout=0, owner="w", reqId="1") * unanswered
        )

    def ask(self, n, unanswered):
        for _ in range(n // unanswered):
            self.sock.sendall(self.frames)
            for _ in range(unanswered):
                self.reply()

    def cpu_s(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def time_empty_pulls(self, unanswered):
        self.ask(20_000, unanswered)

    def track_cpu_us(self, unanswered):
        self.ask(2000, unanswered)
        before = self.cpu_s()
        self.ask(20_000, unanswered)
        return (self.cpu_s() - before) / 20_000 * 1e6

    track_cpu_us.unit = "us"


class Start(Server):
    """How long does an empty server take to start, answer and stop?"""

    params = ("memory", "disk")
    param_names = ("storage",)

    def setup(self, storage):
        """The start itself is what is timed."""

    def teardown(self, storage):
        """Nothing is left: the timed part ends its server."""

    def time_start_and_stop(self, storage):
        self.start(storage)
        self.sock.sendall(self.frame(cmd="Ping", reqId="1"))
        self.reply()
        super().teardown()
