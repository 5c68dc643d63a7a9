"""Frames from a seed: valid requests of every command, and what goes wrong with them.

A request is put together from packed pieces, so that it can be wrong in its structure
(a value of another type, a key twice, a length that is not there) and not in its bytes
alone; further frames are earlier ones with bytes changed, cut out, doubled, spliced.
One seed gives one sequence of frames, as long as the same ids come back in the replies.
"""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgpack

from qcore.wire.commands import COMMANDS
from qcore.wire.fields import EVENT_TYPES, Field

DATA: Final = Path(__file__).parents[1] / "data"

Rnd = Callable[[], float]
Pool = Sequence[bytes]

#: Served far more often than the others in real life, and by compiled paths of their own.
HOT: Final = ("PUSH", "PUSHB", "PULL", "PULLB", "ACK", "ACKB", "FAIL")
#: These cost much and change nothing: rarer than their share.
DEAR: Final = ("CompactMemory", "Prometheus", "DashboardOverview", "Metrics")
QUEUES: Final = ("q0", "q1", "q2", "a.b:c-d_e")
IDS: Final = tuple(f"j{i}" for i in range(24))
REMEMBERED: Final = 64
SHELF: Final = 512


def packed(value: object) -> bytes:
    out: bytes = msgpack.packb(value)
    return out


def pool(*values: object) -> list[bytes]:
    return [packed(value) for value in values]


def map_of(*pairs: tuple[bytes, bytes]) -> bytes:
    return head_of_map(len(pairs)) + b"".join(key + value for key, value in pairs)


def head_of_map(n: int) -> bytes:
    return bytes((0x80 | n,)) if n < 16 else b"\xde" + struct.pack(">H", n)


def head_of_array(n: int) -> bytes:
    return bytes((0x90 | n,)) if n < 16 else b"\xdc" + struct.pack(">H", n)


def nested(depth: int, opening: bytes = b"\x91") -> bytes:
    return opening * depth + b"\xc0"


NUMBERS: Final = [
    *pool(0, 1, 2, 3, 5, 7, 10, 100, 127, 128, 255, 256, 1000, 1001, 60_000, 60_001, 65_535, 65_536),
    *pool(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1),
    *pool(-1, -32, -33, -128, -129, -(2**31), -(2**31) - 1, -(2**53) - 1, -(2**63)),
    *pool(0.0, -0.0, 0.5, 1.0, 1.5, 5.0, -1.5, 1e15, 4.32e15, 4.33e15, 1e18, 2.0**63, 2.0**64, 1e300, 5e-324),
    *pool(float("nan"), float("inf"), float("-inf"), 1_700_000_000_000, 1_700_000_000_000.5),
    b"\xca\x3f\xc0\x00\x00",  # 1.5 in single precision, NaN, infinity
    b"\xca\x7f\xc0\x00\x00",
    b"\xca\xff\x80\x00\x00",
    b"\xd3" + bytes(7) + b"\x05",  # five, in all its lengths
    b"\xcf" + bytes(7) + b"\x05",
    b"\xd2" + bytes(3) + b"\x05",
    b"\xce" + bytes(3) + b"\x05",
    b"\xcd\x00\x05",
    b"\xd1\x00\x05",
    b"\xcc\x05",
    b"\xd0\x05",
]
TEXTS: Final = [
    *pool("", "a", "5", "-1", "1e5", "NaN", " ", "\0", "a\0b", "a b", "a/b", "ü", "\U0001f600", "q0", "j0"),
    *pool("__proto__", "constructor", "__class__", "__parentId", "x" * 31, "x" * 32, "x" * 255, "x" * 256),
    *pool("x" * 257, "x" * 1024, "x" * 1025, "ü" * 256, "ü" * 257, "x" * 65_536, "cron:s0", "%s%n{0}", "-0"),
    b"\xd9\x01a",  # "a", in all its lengths
    b"\xda\x00\x01a",
    b"\xdb\x00\x00\x00\x01a",
    b"\xa2\xc3\x28",  # no UTF-8: a broken pair, an overlong NUL, a surrogate, beyond Unicode, cut off
    b"\xa2\xc0\x80",
    b"\xa3\xed\xa0\x80",
    b"\xa4\xf4\x90\x80\x80",
    b"\xa1\xe2",
]
PLAIN: Final = [b"\xc0", b"\xc2", b"\xc3", b"\x80", b"\x90"]
EXTENSIONS: Final = [
    b"\xd4\x00\x00",  # undefined, in its forms
    b"\xc7\x00\x00",
    b"\xd5\x00\x00\x00",
    b"\xd6\xff\x00\x00\x00\x01",  # timestamps, good and not
    b"\xd7\xff\x00\x00\x00\x01\x00\x00\x00\x01",
    b"\xc7\x0c\xff\x00\x00\x00\x01" + bytes(8),
    b"\xd7\xff\xff\xff\xff\xff\x00\x00\x00\x01",
    b"\xc7\x0c\xff\xff\xff\xff\xff" + b"\xff" * 8,
    b"\xd5\xff\x00\x00",
    b"\xc7\x00\xff",
    *(
        bytes((0xC7, len(body), code)) + body
        for code in (1, 7, 42, 100, 127, 128)
        for body in (b"", b"\x00\x01i")
    ),
]
#: Lengths that are not there, types that are not, depths beyond the bounds.
BROKEN: Final = [
    b"\xc1",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x2a",
    b"\xdd\x7f\xff\xff\xff\xc0",
    b"\xde\xff\xff",
    b"\xdc\xff\xff\xc0",
    b"\xda\xff\xff",
    b"\xd9\xff",
    b"\xc5\x01",
    b"\xd8\x00",
    b"\xcb\x00",
    b"\x9f",
    b"\x8f\xa1a",
    nested(511),
    nested(512),
    nested(513),
    nested(520),
    nested(5000),
    nested(600, b"\x81\xa1a"),
    b"\x91" * 100_000,
]
DATAS: Final = [
    *pool(None, True, 0, "text", b"bytes", b"", [], {}, {"a": 1}, [1, 2, [3]], {"name": "old"}, {"name": 5}),
    *pool({"name": ""}, {"name": "x" * 300, "k": 1}, {"__parentId": "j0", "a": 1}, {"k": 2**63}, [2**64 - 1]),
    *pool({"x": "y" * 200}, list(range(40)), {"__childrenIds": ["j1"], "__parentQueue": "q0"}),
    b"\x82\xa1a\x01\xa1a\x02",  # a key twice, keys that are no texts
    b"\x81\x01\x02",
    b"\x81\xc0\x02",
    b"\x81\x90\x02",
    b"\x91\xd4\x00\x00",
    b"\x81\xa1t\xd6\xff\x00\x00\x00\x01",
    b"\x91\xc7\x05\x01\x01\x00i\x01\x02",
    b"\xcb\x7f\xf8" + bytes(6),
    nested(300),
    nested(511),
]
WILD: Final = [*NUMBERS, *TEXTS, *PLAIN, *EXTENSIONS, *BROKEN[:-1], *DATAS]

_MAPS: Final[dict[str, list[bytes]]] = {
    "backoff": pool(
        0,
        1000,
        {"type": "fixed", "delay": 5},
        {"type": "exponential", "delay": 10, "maxDelay": 50, "jitter": 1},
    ),
    "dedup": pool(
        {}, {"ttl": 50}, {"ttl": 50, "extend": True}, {"replace": True}, {"ttl": 90, "keepUntilExpiry": True}
    ),
    "repeat": pool(
        {"every": 100}, {"pattern": "* * * * *"}, {"every": 5, "limit": 3, "immediately": True}, {"every": 0}
    ),
    "group": pool(
        {},
        {"concurrency": 1},
        {"limit": {"max": 2, "duration": 50}},
        {"affinity": None},
        {"affinity": "g0"},
        {"ungroupedFirst": False, "concurrency": 3},
    ),
    "filter": pool(
        {}, {"reason": "unknown"}, {"olderThan": 2e12}, {"retriable": True, "limit": 2, "offset": 1}
    ),
    "dead_config": pool(
        {"maxEntries": 3}, {"autoRetry": True, "autoRetryInterval": 10}, {"maxAge": None}, {}
    ),
    "stall_config": pool({"enabled": True, "stallInterval": 20}, {"maxStalls": 1, "gracePeriod": 0}, {}),
    "occurrence": pool({"maxAttempts": 2, "backoff": 5}, {"removeOnComplete": True, "delay": 10}, {}),
    "removal": pool(True, False, 0, 1, 3, {"age": 1, "count": 2}, {"count": 0}),
}
_DURATIONS: Final = pool(0, 1, 5, 20, 100, 1000, -1, "5")
_PLAUSIBLE: Final[dict[str, list[bytes]]] = {
    **_MAPS,
    "any": DATAS,
    "data": DATAS,
    "duration": _DURATIONS,
    "event_types": pool([EVENT_TYPES[0]], list(EVENT_TYPES), ["completed", "failed"], [], ["no"]),
    "finite": pool(0, 1, 2, 5, 100, "3"),
    "flag": pool(True, False),
    "group_id": pool("g0", "g1", "g2"),
    "group_size": pool(1, 2, 50),
    "int": pool(1, 2, 5, 50),
    "length": pool(0, 1, 2, 50),
    "interval": pool(1, 10, 100),
    "list": pool([1], [None, {"a": 1}], []),
    "name": pool("default", "mail", "n0", "n1"),
    "number": pool(0, 1, 2, 5),
    "numbers": pool([1, 50], [1000], []),
    "option": pool(0, 1, 2, -5, 10, 2.5, "3"),
    "removals": pool([True, None], [False], []),
    "runs": pool(1, 2, 3),
    "safe": pool(1, 2, 5, 50),
    "span": pool(1, 10, 100),
    "stack": pool(["at a", "at b"], [], ["x" * 300] * 30),
    "states": pool(
        "waiting", ["active", "failed"], [], "completed", "paused", ["delayed", "waiting-children"]
    ),
    "string": pool("", "text"),
    "tags": pool(["a", "b"], []),
    "time": _DURATIONS,
    "words": pool(["waiting"], []),
}
#: Of some fields the name says more than the kind.
_BY_NAME: Final[dict[str, list[bytes]]] = {
    "schedule": pool("* * * * *", "*/5 * * * * *", "@hourly", "@daily", "0 0 31 2 *", "no", "* * * * * * *"),
    "name": pool("s0", "s1", "w0", "mail"),
    "owner": pool("w0", "w1", ""),
    "timezone": pool("UTC", "Europe/Berlin", "No/Where"),
    "reason": pool("unknown"),
    "uniqueKey": pool("u0", "u1", "u2"),
    "deduplicationId": pool("u0", "u1", "u2"),
    "debounceId": pool("d0", "d1"),
    "workerId": pool("w0", "w1", "w2"),
    "queues": pool(["q0"], ["q0", "q1"], []),
    "url": pool("http://192.0.2.1/h", "https://example.org/x", "ftp://x", "http://127.0.0.1/", "x" * 3000),
    "events": pool(["job.completed"], ["job.pushed", "job.failed"], [], ["no"]),
    "protocolVersion": pool(3, 2),
    "capabilities": pool(
        [],
        ["int64"],
        ["typed", "int64"],
        ["outcomes", "codes", "cancel"],
        ["int64", "typed", "outcomes", "codes"],
    ),
    "lockTtl": pool(1, 5, 50, 30_000),
    "timeout": pool(0, 0, 0, 1, 20),
    "state": pool("waiting", "completed", "failed", "delayed", ["waiting"], "active", "wait", "paused"),
    "includeJobs": pool(True),
    "message": pool("said", "x" * 400, ""),
    "type": pool("completed", "failed"),
    "webhookId": pool("none"),
}


def _transcribed() -> Iterator[bytes]:
    """Every request of the recorded conversations, with names of ours where theirs differ from run to run."""

    def settled(value: Any) -> Any:
        if isinstance(value, str):
            return re.sub(r"\$[a-z]+\d*|\$\{[a-z]+\d*\}", "q0", value)
        if isinstance(value, list):
            return [settled(one) for one in value]
        if isinstance(value, dict):
            return {settled(key): settled(one) for key, one in value.items()}
        return value

    for file in sorted((DATA / "transcripts").glob("*.jsonl")):
        for line in file.read_text("utf-8").splitlines():
            step = json.loads(line)
            for one in [step.get("send"), *[entry.get("send") for entry in step.get("pipeline", ())]]:
                if isinstance(one, dict) and "cmd" in one:
                    yield packed({**settled(one), "reqId": "t"})
            if isinstance(step.get("raw"), str):
                raw = bytes.fromhex(step["raw"])
                if len(raw) > 4:
                    yield raw[4:]


def _bad_rows() -> Iterator[bytes]:
    for row in json.loads((DATA / "frames_bad.json").read_text("utf-8"))["frames"]:
        if not row["hex"].startswith("generate"):
            yield bytes.fromhex(row["hex"])[4:]


class Frames:
    """An endless sequence of frames.

    ``seen`` tells it the id and the token of a delivery, so that later frames may be the
    holder's; :meth:`body` gives the body of the next frame.
    """

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.rnd: Rnd = rng.random
        self.bytes = rng.randbytes
        self._held: list[tuple[bytes, bytes]] = [(packed("j0"), packed("no token"))]
        self._ids = pool(*IDS)
        self._queues = pool(*QUEUES)
        self._tokens: list[bytes] = [packed("no token")]
        self._shelf = [*_transcribed(), *_bad_rows()]
        self._recorded = len(self._shelf)
        self._places = 0
        self._builders = {name: self._builder(name) for name in COMMANDS}
        self._names = [*COMMANDS, *HOT * 5]
        self._names = [n for n in self._names if n not in DEAR] * 32 + list(DEAR)

    # --- what the replies tell ------------------------------------------------------------------

    def seen(self, job_id: str, token: str) -> None:
        """A delivery came back in a reply."""
        pair = (packed(job_id), packed(token))
        self._keep(self._held, pair)
        self._keep(self._tokens, pair[1])
        self._keep(self._ids, pair[0])

    def seen_id(self, job_id: str) -> None:
        """An id of a job, a hook, a worker came back."""
        self._keep(self._ids, packed(job_id))

    def _keep(self, where: list[Any], what: Any) -> None:
        if len(where) < REMEMBERED:
            where.append(what)
        else:
            where[int(self.rnd() * REMEMBERED)] = what

    # --- frames -----------------------------------------------------------------------------------

    def body(self) -> bytes:
        """The next body: a request as it should be, or with something wrong."""
        r = self.rnd()
        if r < 0.42:
            out = self._request()
            if len(self._shelf) < self._recorded + SHELF:
                self._shelf.append(out)
            else:
                self._shelf[self._recorded + self._places] = out
                self._places = (self._places + 1) % SHELF
            return out
        if r < 0.45:
            return self._shelf[int(self.rnd() * len(self._shelf))]
        if r < 0.4502:
            return self._huge()
        return self._mutated(self._shelf[int(self.rnd() * len(self._shelf))])

    def _request(self) -> bytes:
        rnd, names = self.rnd, self._names
        name = names[int(rnd() * len(names))]
        pairs = self._builders[name]()
        head = (b"\xa3cmd", packed(name))
        if rnd() < 0.95:
            pairs.insert(0, head)
        elif rnd() < 0.8:
            pairs.insert(int(rnd() * (len(pairs) + 1)), head)
        if rnd() < 0.9:
            pairs.append((b"\xa5reqId", b"\xa1" + bytes((48 + int(rnd() * 10),))))
        elif rnd() < 0.6:
            pairs.append((b"\xa5reqId", WILD[int(rnd() * len(WILD))]))
        r = rnd()
        if r < 0.15:
            self._twist(pairs)
        n = len(pairs)
        if r > 0.98:
            n = max(0, n + int(rnd() * 5) - 2)  # a count that is not true
        if 0.96 < r < 0.98:
            start = (b"\xde" + struct.pack(">H", n)) if rnd() < 0.5 else b"\xdf" + struct.pack(">I", n)
        else:
            start = head_of_map(n)
        return start + b"".join([key + value for key, value in pairs])

    def _twist(self, pairs: list[tuple[bytes, bytes]]) -> None:
        """One thing wrong in the structure."""
        if not pairs:
            return
        rnd = self.rnd
        i = int(rnd() * len(pairs))
        key, value = pairs[i]
        r = rnd()
        if r < 0.55:
            pairs[i] = (key, WILD[int(rnd() * len(WILD))])
        elif r < 0.65:
            pairs[i] = (WILD[int(rnd() * len(WILD))], value)
        elif r < 0.75:
            pairs.append((key, WILD[int(rnd() * len(WILD))] if rnd() < 0.5 else value))
        elif r < 0.8:
            pairs[i] = (key, b"\x91" + value)
        elif r < 0.85:
            pairs[i] = (key, b"\x81\xa1a" + value)
        elif r < 0.9:
            pairs[i] = (key, BROKEN[int(rnd() * len(BROKEN))])
        elif r < 0.95:
            del pairs[i]
        else:
            j = int(rnd() * len(pairs))
            pairs[i], pairs[j] = (key, pairs[j][1]), (pairs[j][0], value)

    def _mutated(self, body: bytes) -> bytes:
        """Bytes changed, without a thought for what they mean."""
        rnd = self.rnd
        for _ in range(1 + int(rnd() * 3)):
            n = len(body)
            i = int(rnd() * (n + 1))
            r = rnd()
            if r < 0.3:
                body = body[:i] + bytes((int(rnd() * 256),)) + body[i + 1 :]
            elif r < 0.45:
                body = body[:i] + WILD[int(rnd() * len(WILD))] + body[i + 1 :]
            elif r < 0.55:
                body = body[:i] + body[i + 1 + int(rnd() * 8) :]
            elif r < 0.65:
                body = body[:i] + self.bytes(1 + int(rnd() * 6)) + body[i:]
            elif r < 0.75:
                body = body[:i]
            elif r < 0.85:
                j = i + int(rnd() * 24)
                body = body[:j] + body[i:j] + body[j:]
            elif r < 0.95:
                other = self._shelf[int(rnd() * len(self._shelf))]
                body = body[:i] + other[int(rnd() * len(other)) :]
            elif body:
                i = min(i, n - 1)
                body = body[:i] + bytes((body[i] ^ (1 << int(rnd() * 8)),)) + body[i + 1 :]
        return body[: 1 << 20]

    def _huge(self) -> bytes:
        """Large in one way or another."""
        rnd = self.rnd
        queue = self._queues[int(rnd() * len(self._queues))]
        which = int(rnd() * 7)
        cmd = (b"\xa3cmd", packed("PUSH"))
        if which == 0:
            return map_of((b"\xa3cmd", packed("x" * 100_000)))
        if which == 1:
            data = b"\xc6" + struct.pack(">I", 11_000_000) + bytes(11_000_000)
            return map_of(cmd, (b"\xa5queue", queue), (b"\xa4name", b"\xa1n"), (b"\xa4data", data))
        if which == 2:
            return b"\xde\x27\x10" + b"".join(b"\xcd" + struct.pack(">H", i) + b"\xc0" for i in range(10_000))
        if which == 3:
            jobs = b"\xdc\x03\xe8" + b"\x82\xa4name\xa7default\xa4data\x01" * 1000
            return map_of((b"\xa3cmd", packed("PUSHB")), (b"\xa5queue", queue), (b"\xa4jobs", jobs))
        if which == 4:
            return b"\x91" * 100_000
        if which == 5:
            return map_of(cmd, (b"\xa5queue", queue), (b"\xa4data", nested(100_000)))
        ids = b"\xdc\x03\xe8" + b"".join(packed(f"k{i}") for i in range(1000))
        return map_of((b"\xa3cmd", packed("ACKB")), (b"\xa3ids", ids))

    # --- fields -------------------------------------------------------------------------------------

    def _builder(self, name: str) -> Callable[[], list[tuple[bytes, bytes]]]:
        command = COMMANDS[name]
        required = [(packed(f.name), self._values(name, f)) for f in command.fields if f.required]
        optional = [(packed(f.name), self._values(name, f)) for f in command.fields if not f.required]
        holds = any(f.name == "id" for f in command.fields) and any(f.name == "token" for f in command.fields)
        rnd = self.rnd

        def build() -> list[tuple[bytes, bytes]]:
            pairs = []
            for key, values in required:
                if rnd() < 0.98:
                    pairs.append((key, values()))
            if optional:
                r = rnd()
                few = (
                    0
                    if r < 0.3
                    else 1
                    if r < 0.55
                    else 2
                    if r < 0.75
                    else 1 + int(rnd() * min(8, len(optional)))
                )
                for _ in range(few):
                    key, values = optional[int(rnd() * len(optional))]
                    pairs.append((key, values()))
            if holds and rnd() < 0.7:
                job_id, token = self._held[int(rnd() * len(self._held))]
                pairs = [pair for pair in pairs if pair[0] not in (b"\xa2id", b"\xa5token")]
                pairs += [(b"\xa2id", job_id), (b"\xa5token", token)]
            return pairs

        if name == "PUSH":

            def build_push() -> list[tuple[bytes, bytes]]:
                pairs = build()
                if rnd() < 0.6 and all(key != b"\xa4name" for key, _ in pairs):
                    pairs.append((b"\xa4name", b"\xa7default"))
                return pairs

            return build_push
        if name == "ACKB":

            def build_ackb() -> list[tuple[bytes, bytes]]:
                n = 1 + int(rnd() * 3)
                held = [self._held[int(rnd() * len(self._held))] for _ in range(n)]
                pairs = [
                    (b"\xa3ids", head_of_array(n) + b"".join([job_id for job_id, _ in held])),
                    (b"\xa6tokens", head_of_array(n) + b"".join([token for _, token in held])),
                ]
                if rnd() < 0.5:
                    results = b"".join([DATAS[int(rnd() * len(DATAS))] for _ in range(n)])
                    pairs.append((b"\xa7results", head_of_array(n) + results))
                if rnd() < 0.2:
                    pairs.append((b"\xb1removeOnCompletes", head_of_array(n) + b"\xc3" * n))
                return pairs

            return build_ackb
        return build

    def _values(self, command: str, field: Field) -> Callable[[], bytes]:
        """Where the values of a field come from: mostly what it is for, now and then anything."""
        rnd = self.rnd
        values = self._sensible(command, field)

        def odd() -> bytes:
            if rnd() < 0.06:
                return WILD[int(rnd() * len(WILD))]
            return values()

        return odd

    def _sensible(self, command: str, field: Field) -> Callable[[], bytes]:
        rnd = self.rnd
        kind = str(field.kind)
        if kind == "batch":
            return self._batch
        if command == "PUSHF" and field.name == "jobs":
            return self._flow
        if field.kind == "queue":
            return lambda: self._queues[int(rnd() * len(self._queues))]
        if field.name in ("token", "parentToken"):
            return lambda: self._tokens[int(rnd() * len(self._tokens))]
        if kind == "tokens":
            return lambda: self._several(self._tokens)
        if field.name in _BY_NAME and not (field.name == "name" and kind == "name"):
            here = _BY_NAME[field.name]
        elif kind in _PLAUSIBLE:
            here = _PLAUSIBLE[kind]
        elif kind == "ids":
            return lambda: self._several(self._ids)
        else:  # id, text
            return lambda: self._ids[int(rnd() * len(self._ids))]
        return lambda: here[int(rnd() * len(here))]

    def _several(self, values: list[bytes]) -> bytes:
        rnd = self.rnd
        n = int(rnd() * 4)
        return head_of_array(n) + b"".join([values[int(rnd() * len(values))] for _ in range(n)])

    def _batch(self) -> bytes:
        rnd = self.rnd
        n = int(rnd() * 5)
        jobs = []
        for _ in range(n):
            pairs = [pair for pair in self._builders["PUSH"]() if pair[0] != b"\xa5queue"]
            pairs = [(b"\xa8customId" if key == b"\xa5jobId" else key, value) for key, value in pairs]
            jobs.append(map_of(*pairs))
        return head_of_array(n) + b"".join(jobs)

    def _flow(self) -> bytes:
        """A parent with children, mostly as it should be."""
        rnd = self.rnd
        n = 1 + int(rnd() * 3)
        tag = int(rnd() * 1000)
        ids = [f"f{tag}-{i}" for i in range(n)]
        family = {"__childrenIds": ids[1:], "a": 1}
        entries = []
        for i, job_id in enumerate(ids):
            given: dict[str, Any] = {"name": "flow", "data": family if i == 0 else {"__parentId": ids[0]}}
            if i == 0:
                given |= {"childrenIds": ids[1:], "dependsOn": ids[1:]}
            else:
                given |= {"parentId": ids[0]}
                given["data"]["__parentQueue"] = "q0"
                policy = ("failParentOnFailure", "ignoreDependencyOnFailure", "continueParentOnFailure")
                if rnd() < 0.5:
                    given[policy[int(rnd() * 3)]] = True
            if rnd() < 0.1:
                given["dependsOn"] = [ids[int(rnd() * n)]]
            entry = {"id": job_id, "queue": "q0", "input": given}
            if rnd() < 0.05:
                del entry[("id", "queue", "input")[int(rnd() * 3)]]
            entries.append(entry)
        return packed(entries)
