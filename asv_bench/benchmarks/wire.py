"""Covers ``qcore.wire``: what one message costs, and how that grows with it."""

from __future__ import annotations

from qcore.wire.commands import COMMANDS, check
from qcore.wire.packing import pack, unpack, unpack_request
from qcore.wire.scan import FrameBuffer, skip
from qcore.wire.writer import Writer

CALLS = 1000


def rows(n):
    return [{"id": i, "name": f"user{i}", "score": i * 1.5, "tags": ["a", "b"]} for i in range(n)]


class Values:
    """What do packing, unpacking and stepping over a payload of n rows cost?"""

    params = (1, 10, 1000)
    param_names = ("rows",)

    def setup(self, n):
        self.value = rows(n)
        self.data = pack(self.value)
        self.calls = range(max(1, CALLS // n))

    def time_pack(self, n):
        for _ in self.calls:
            pack(self.value)

    def time_unpack(self, n):
        for _ in self.calls:
            unpack(self.data)

    def time_skip(self, n):
        for _ in self.calls:
            skip(self.data)


class Request:
    """What does a thousand requests cost before the engine sees them?"""

    def setup(self):
        body = pack({"cmd": "PUSH", "queue": "emails", "reqId": "1", "name": "send", "data": rows(2)})
        self.body = body
        self.stream = (len(body).to_bytes(4, "big") + body) * CALLS
        self.request = unpack_request(body)
        self.reply = {"ok": True, "id": "0192f0c1-7a3b-7cc4-8f5e-0123456789ab", "reqId": "1"}

    def time_split(self):
        buffer = FrameBuffer()
        for i in range(0, len(self.stream), 65_536):
            buffer.feed(self.stream[i : i + 65_536])
            while buffer.next() is not None:
                pass

    def time_unpack_request(self):
        for _ in range(CALLS):
            unpack_request(self.body)

    def time_check(self):
        command = COMMANDS["PUSH"]
        for _ in range(CALLS):
            check(command, self.request)

    def time_write_reply(self):
        writer = Writer()
        for _ in range(CALLS):
            writer.frame(self.reply)
        writer.take()


class Batch:
    """What does checking a batch cost per job, from one to a thousand jobs?"""

    params = (1, 10, 100, 1000)
    param_names = ("jobs",)

    def setup(self, n):
        jobs = [{"name": "send", "data": {"n": i}} for i in range(n)]
        self.body = pack({"cmd": "PUSHB", "queue": "emails", "jobs": jobs})
        self.request = unpack_request(self.body)

    def time_unpack_request(self, n):
        unpack_request(self.body)

    def time_check(self, n):
        check(COMMANDS["PUSHB"], self.request)


class Buffers:
    """Does a typed buffer cost one copy, whatever its size?"""

    params = ((1024, 1_048_576, 16_777_216), (False, True))
    param_names = ("bytes", "typed")

    def setup(self, n, typed):
        self.value = memoryview(bytearray(n)).cast("d")
        self.data = pack(self.value, typed=typed)

    def time_pack(self, n, typed):
        pack(self.value, typed=typed)

    def time_unpack(self, n, typed):
        unpack(self.data)
