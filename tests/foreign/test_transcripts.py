"""Recorded conversations of the reference protocol, revision 3, held against our server.

``tests/data/transcripts`` holds scenarios, one JSON object a line: a line with
``scenario`` opens one, each further line is a step of it. A step sends (``send``,
``pipeline``, ``raw``), waits (``await``, ``event``, ``closed``, ``silence_ms``,
``sleep_ms``) or closes, on the connection named ``conn``. What came is compared with
``expect``, in which texts that begin with ``$`` stand for values that differ from run
to run. Requests are written whole, once more in single bytes, and once more as many in
one write as need no reply of each other.
"""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

FOLDER = Path(__file__).parent.parent / "data" / "transcripts"
PATIENCE_S = 30.0
#: Of a longer request only the ends go out in single bytes.
SINGLE_BYTES = 600

ABSENT = object()
VARIABLE = re.compile(r"\$[a-z]+\d+")
EMBEDDED = re.compile(r"\$\{([a-z]+\d+)\}")


def scenarios() -> Iterator[Any]:
    for file in sorted(FOLDER.glob("*.jsonl")):
        head: dict[str, Any] = {}
        steps: list[dict[str, Any]] = []
        for line in [*file.read_text("utf-8").splitlines(), '{"scenario": null}']:
            entry = json.loads(line)
            if "scenario" not in entry:
                steps.append(entry)
                continue
            # "strict": of one old release, which later ones and this server correct.
            if head and head.get("needs") != "strict":
                yield pytest.param(head.get("needs", ""), steps, id=head["scenario"])
            head, steps = entry, []


def together(steps: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The same steps, with requests in one write where none needs a reply to one before it."""
    batch: list[dict[str, Any]] = []

    def flushed() -> Iterator[dict[str, Any]]:
        if batch:
            sends, replies = [s["send"] for s in batch], [s["expect"] for s in batch]
            yield {"conn": batch[0].get("conn", "a"), "pipeline": sends, "expect": replies}
            batch.clear()

    for step in steps:
        alone = "send" not in step or "async" in step
        if batch:
            learned = set(re.findall(r"[a-z]+\d+", " ".join(found_in([s["expect"] for s in batch]))))
            needed = set(re.findall(r"[a-z]+\d+", " ".join(found_in(step))))
            apart = step.get("conn", "a") != batch[0].get("conn", "a") or "sleep_ms" in step
            if alone or apart or learned & needed or batch[-1]["send"].get("timeout"):
                yield from flushed()
        if alone or "sleep_ms" in step:
            yield step
        else:
            batch.append(step)
    yield from flushed()


def found_in(value: Any) -> Iterator[str]:
    """The names of values that differ from run to run, wherever they stand."""
    if isinstance(value, str):
        yield from VARIABLE.findall(value)
        yield from EMBEDDED.findall(value)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from found_in(key)
            yield from found_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from found_in(inner)


# --- what may come over the wire ---------------------------------------------------------------


def end_of(frame: bytes, at: int = 0) -> int:
    """Walk one value; only what a JavaScript reader takes for a plain value may occur."""
    code, at = frame[at], at + 1
    if code <= 0x7F or code >= 0xE0 or code in (0xC0, 0xC2, 0xC3):
        return at
    if code <= 0x9F:
        return end_of_all(frame, at, (code & 15) * (2 if code <= 0x8F else 1))
    if code <= 0xBF:
        return at + (code & 31)
    fixed = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xD0: 1, 0xD1: 2, 0xD2: 4}
    if code in fixed:
        return at + fixed[code]
    if code == 0xD4:
        assert frame[at] == 0, f"extension type {frame[at]}"
        return at + 2
    sized = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
    listed = {0xDC: (">H", 1), 0xDD: (">I", 1), 0xDE: (">H", 2), 0xDF: (">I", 2)}
    assert code in sized or code in listed, f"type byte {code:#04x}"
    form, per_item = (sized[code], 0) if code in sized else listed[code]
    (n,) = struct.unpack_from(form, frame, at)
    at += struct.calcsize(form)
    return end_of_all(frame, at, n * per_item) if per_item else at + int(n)


def end_of_all(frame: bytes, at: int, n: int) -> int:
    for _ in range(n):
        at = end_of(frame, at)
    return at


def plain(value: Any) -> Any:
    """A decoded frame with what means "undefined" taken out."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if v is not ABSENT}
    if isinstance(value, list):
        return [None if v is ABSENT else plain(v) for v in value]
    return value


def encoded(request: Any) -> bytes:
    """A request as a JavaScript client writes it: wide integers are doubles."""

    def narrow(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: narrow(v) for k, v in value.items()}
        if isinstance(value, list):
            return [narrow(v) for v in value]
        if type(value) is int and not -(2**31) <= value < 2**31:
            return float(value)
        return msgpack.ExtType(0, b"\0") if value is ABSENT else value

    body: bytes = msgpack.packb(narrow(request))
    return len(body).to_bytes(4, "big") + body


# --- the conversation --------------------------------------------------------------------------


class Line:
    """One connection."""

    def __init__(self, port: int, dripping: bool) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.dripping = dripping
        self.n_requests = 0
        self.buffer = b""
        self.replies: dict[str, Any] = {}
        self.others: list[Any] = []

    def write(self, data: bytes) -> None:
        if self.dripping:
            edge = len(data) if len(data) <= SINGLE_BYTES else SINGLE_BYTES // 2
            for i in range(edge):
                self.sock.sendall(data[i : i + 1])
            self.sock.sendall(data[edge : len(data) - edge] if edge < len(data) else b"")
            data = data[max(edge, len(data) - edge) :]
            for i in range(len(data)):
                self.sock.sendall(data[i : i + 1])
        else:
            self.sock.sendall(data)

    def request(self, request: dict[str, Any]) -> tuple[str, bytes]:
        self.n_requests += 1
        key = f"k{self.n_requests}"
        return key, encoded({**request, "reqId": key})

    def listen(self, deadline: float) -> bool:
        """Read once and sort what is whole; False when time is up."""
        if not select.select([self.sock], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return False
        data = self.sock.recv(1 << 16)
        if not data:
            raise EOFError
        self.buffer += data
        while len(self.buffer) >= 4 and len(self.buffer) >= (
            end := 4 + int.from_bytes(self.buffer[:4], "big")
        ):
            frame, self.buffer = self.buffer[4:end], self.buffer[end:]
            assert end_of(frame) == len(frame)
            message = plain(msgpack.unpackb(frame, ext_hook=lambda code, data: ABSENT))
            if "reqId" in message:
                self.replies[message.pop("reqId")] = message
            else:
                self.others.append(message)
        return True

    def until(self, there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not there():
            assert self.listen(deadline), "nothing came"

    def reply(self, key: str) -> Any:
        self.until(lambda: key in self.replies)
        return self.replies.pop(key)

    def unasked(self) -> Any:
        self.until(lambda: bool(self.others))
        return self.others.pop(0)

    def silent(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.listen(deadline):
            pass
        assert not self.others

    def ended(self) -> None:
        with contextlib.suppress(EOFError, ConnectionResetError):
            self.until(lambda: False)


class Conversation:
    """Runs the steps of one scenario."""

    def __init__(self, port: int, dripping: bool) -> None:
        self._way = (port, dripping)
        self.lines: dict[str, Line] = {}
        self.promised: dict[str, tuple[Line, str]] = {}
        self.known: dict[str, Any] = {"$run": "r" + uuid.uuid4().hex[:10]}

    def line(self, name: str) -> Line:
        if name not in self.lines:
            self.lines[name] = Line(*self._way)
        return self.lines[name]

    def close(self) -> None:
        for line in self.lines.values():
            line.sock.close()

    def step(self, step: dict[str, Any]) -> Any:
        """Do one step; what came, or ABSENT when nothing was asked for."""
        time.sleep(step.get("sleep_ms", 0) / 1000)  # recorded as part of the conversation
        line = self.line(step.get("conn", "a"))
        if "raw" in step:
            line.write(bytes.fromhex(step["raw"]))
            return ABSENT if step["expect"] is None else line.unasked()
        if "send" in step:
            key, data = line.request(self.filled(step["send"]))
            line.write(data)
            if "async" in step:
                self.promised[step["async"]] = (line, key)
                return ABSENT
            return line.reply(key)
        if "pipeline" in step:
            requests = [line.request(self.filled(request)) for request in step["pipeline"]]
            line.write(b"".join(data for _, data in requests))
            return [line.reply(key) for key, _ in requests]
        if "await" in step:
            line, key = self.promised.pop(step["await"])
            return line.reply(key)
        if step.get("event"):
            return line.unasked()
        if "silence_ms" in step:
            line.silent(step["silence_ms"] / 1000)
        elif step.get("closed"):
            line.ended()
        elif not step.get("close"):
            assert "sleep_ms" in step, f"unknown step {step}"
            return ABSENT
        if step.get("close") or step.get("closed"):
            self.lines.pop(step.get("conn", "a")).sock.close()
        return ABSENT

    def text(self, text: str) -> str:
        text = EMBEDDED.sub(lambda m: str(self.known.get("$" + m[1], m[0])), text)
        return text.replace("$run", self.known["$run"])

    def filled(self, value: Any) -> Any:
        """A request with the values of this run in it."""
        match value:
            case {"$repeat": [text, n]}:
                return text * n
            case {"$list": [item, n]}:
                return [self.filled(item)] * n
            case dict():
                return {self.text(k): self.filled(v) for k, v in value.items()}
            case list():
                return [self.filled(v) for v in value]
            case "$undefined":
                return ABSENT
            case "$now":
                return int(time.time() * 1000)
            case str():
                return self.known[value] if value in self.known else self.text(value)
        return value

    # --- comparing -----------------------------------------------------------------------------

    def differs(self, want: Any, got: Any, at: str = "reply") -> str | None:
        """Where ``got`` is not what the pattern ``want`` says; None when it is."""
        wrong = f"{at}: expected {want!r}, got {'nothing' if got is ABSENT else repr(got)}"
        number = isinstance(got, int | float) and not isinstance(got, bool)
        match want:
            case "$any":
                return wrong if got is ABSENT else None
            case "$ms":
                return None if number and 1e12 <= got < 1e13 else wrong
            case "$num":
                return None if number else wrong
            case "$str":
                return None if isinstance(got, str) else wrong
            case "$bool":
                return None if isinstance(got, bool) else wrong
            case {"$maybe": inner}:
                return None if got is ABSENT or got is None else self.differs(inner, got, at)
            case {"$re": pattern}:
                return None if isinstance(got, str) and re.search(self.text(pattern), got) else wrong
            case {"$repeat": [text, n]}:
                return None if got == text * n else wrong
            case {"$set": items} | {"$has": items}:
                return self._differs_loosely(items, got, "$set" in want, wrong)
            case {"$open": inner}:
                return self._differs_map(inner, got, at, False) if isinstance(got, dict) else wrong
            case dict():
                return self._differs_map(want, got, at, True) if isinstance(got, dict) else wrong
            case list():
                if not isinstance(got, list) or len(got) != len(want):
                    return wrong
                pairs = enumerate(zip(want, got, strict=True))
                return next((d for i, (w, g) in pairs if (d := self.differs(w, g, f"{at}[{i}]"))), None)
            case str() if VARIABLE.fullmatch(want):
                if want not in self.known and (number or isinstance(got, str | bool)):
                    self.known[want] = got
                return None if want in self.known and self.known[want] == got else wrong
            case str():
                return None if got == self.text(want) else wrong
            case bool() | None:
                return None if got is want else wrong
        return None if number and abs(got - want) <= 1e-9 else wrong

    def _differs_map(self, want: dict[str, Any], got: dict[str, Any], at: str, whole: bool) -> str | None:
        wanted = {self.text(k): v for k, v in want.items()}
        for key, value in wanted.items():
            if found := self.differs(value, got.get(key, ABSENT), f"{at}.{key}"):
                return found
        extra = sorted(got.keys() - wanted.keys())
        return f"{at}: unexpected {extra}" if whole and extra else None

    def _differs_loosely(self, items: list[Any], got: Any, whole: bool, wrong: str) -> str | None:
        if not isinstance(got, list) or (whole and len(got) != len(items)):
            return wrong
        left = list(got)
        for item in items:
            before = dict(self.known)
            for i, candidate in enumerate(left):
                if self.differs(item, candidate) is None:
                    del left[i]
                    break
                self.known = dict(before)
            else:
                return wrong
        return None


@pytest.mark.parametrize(
    ("want", "got"),
    [
        ({"ok": True}, {"ok": 1}),
        ({"ok": True}, {"ok": True, "more": None}),
        ({"ok": True, "id": "$id1"}, {"ok": True}),
        (["$id1", "$id1"], ["a", "b"]),
        ({"$set": [1, 2]}, [2, 1, 1]),
        ({"$has": ["$id1", "$id1"]}, ["a", "b"]),
        ({"$open": {"a": "$ms"}}, {"a": 1}),
        ({"$maybe": "$str"}, 1),
        ("gone: ${id1}", "gone: x"),
        (1, 2),
        (1, "1"),
        (None, 0),
    ],
)
def test_a_difference_is_seen(want: object, got: object) -> None:
    talk = Conversation(0, False)
    assert talk.differs(want, want) is None or "$" in repr(want)
    assert talk.differs(want, got) is not None


def test_what_needs_a_reply_is_not_written_with_it() -> None:
    steps = [
        {"send": {"cmd": "PUSH"}, "expect": {"id": "$id1"}},
        {"send": {"cmd": "PULL"}, "expect": {"job": "$any"}},
        {"send": {"cmd": "ACK", "id": "$id1"}, "expect": {"ok": True}},
        {"send": {"cmd": "PULL", "timeout": 5}, "expect": {"job": None}},
        {"send": {"cmd": "Ping"}, "expect": {"ok": True}},
        {"send": {"cmd": "Ping"}, "expect": {"ok": True}, "conn": "b"},
        {"event": True, "expect": {}},
    ]
    sizes = [len(step["pipeline"]) if "pipeline" in step else 0 for step in together(steps)]
    assert sizes == [2, 2, 1, 1, 0]


@pytest.mark.parametrize("way", ["whole", "bytes", "pipelined"])
@pytest.mark.parametrize("storage", ["memory", "sqlite"])
@pytest.mark.parametrize(("needs", "steps"), list(scenarios()))
def test_scenario(
    port_of: Callable[[str, str], int], storage: str, needs: str, steps: list[dict[str, Any]], way: str
) -> None:
    talk = Conversation(port_of(storage, needs), way == "bytes")
    with contextlib.closing(talk):
        for number, step in enumerate(together(steps) if way == "pipelined" else steps, 1):
            got = talk.step(step)
            if got is not ABSENT:
                difference = talk.differs(step["expect"], got)
                assert difference is None, f"step {number} ({step}): {difference}"
