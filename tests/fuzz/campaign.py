"""Feed a broker any bytes, and hold it to what it owes whoever sends them.

    python -m tests.fuzz.campaign --frames 10_000_000 --seed 7

Rounds of 200,000 frames, each with a fresh broker in this process, every eighth one (7, 15, …)
over an SQLite file that is opened again at the end. After each batch: every whole frame was
answered, waits, or its connection is closed; nothing was logged as a fault of ours; the
engine's invariants hold; and memory stays bounded. One seed gives one history; ``--round``
runs a single round of it again. Prints one JSON line; stops at the first finding.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import resource
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from qcore.broker.core import Broker
from qcore.broker.opening import close_broker, commit, open_broker
from qcore.broker.session import Session
from qcore.clock import ManualClock
from qcore.limits import MAX_FRAME_BYTES
from qcore.wire.packing import unpack_reply
from tests.fuzz.frames import IDS, Frames

ROUND_FRAMES = 200_000
BATCH_FRAMES = 200
#: Batches after which every invariant of the engine is looked at.
CHECK_EVERY = 50
#: Batches of which every reply is decoded.
DECODE_EVERY = 8
STORE_EVERY = 8
#: What the process may hold beyond what it held after the first round.
MEMORY_MIB = 96

EVENT = b"\x82\xa4type\xa5event"
PING = b"\x82\xa3cmd\xa4Ping\xa5reqId\xa1p"


class Finding(AssertionError):
    """Something that must not be."""


class Faults(logging.Handler):
    """Collects what is logged as a fault of ours."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(logging.Formatter().format(record))

    def unraisable(self, what: sys.UnraisableHookArgs) -> None:
        """An error where none can be raised, as in a destructor."""
        self.found.append(f"{what.err_msg} {what.object!r}: {what.exc_value!r}")


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def bodies_of(stream: bytes) -> list[bytes]:
    """The whole frames of a stream; a frame cut off is left out."""
    out = []
    pos, end = 0, len(stream)
    while end - pos >= 4:
        size = int.from_bytes(stream[pos : pos + 4], "big")
        if size > MAX_FRAME_BYTES or size > end - pos - 4:
            break
        out.append(stream[pos + 4 : pos + 4 + size])
        pos += 4 + size
    return out


class Round:
    """One broker and what happens to it."""

    def __init__(self, seed: int, number: int, path: str | None = None) -> None:
        self.frames = Frames(seed * 1_000_003 + number)
        self.rnd = self.frames.rnd
        self.clock = ManualClock()
        self.path = path
        self.seed = struct.pack(">QQ", seed, number)
        self.broker = self._open()
        self.faults = Faults()
        self.n_frames = self.n_batches = self.n_closed = self.n_answered = self.n_ok = 0
        self.slowest_s = 0.0
        self.slowest = b""
        self.last = b""
        self.session: Session
        self.listener: Session
        self.expected = 0
        self._connect()

    def _open(self) -> Broker:
        return open_broker(self.path, mode="server", clock=self.clock, seed=self.seed)

    def _connect(self) -> None:
        self.session = Session(self.broker)
        self.expected = 0
        self.listener = Session(self.broker)
        self._told(self.listener, b"\x82\xa3cmd\xafSubscribeEvents\xa5queue\xa2q0")

    def _told(self, session: Session, body: bytes) -> None:
        session.feed(framed(body))
        self._settle()
        session.take()

    def _settle(self) -> None:
        """Let time pass for the broker: what is due, and the commits that replies wait for."""
        while True:
            _, cut = self.broker.pump()
            if cut is None:
                return
            commit(self.broker, cut)

    # --- a batch ------------------------------------------------------------------------------

    def batch(self, n: int) -> None:
        rnd, body = self.rnd, self.frames.body
        parts: list[bytes] = []
        for _ in range(n):
            one = body()
            parts.append(struct.pack(">I", len(one)))
            parts.append(one)
        r = rnd()
        if r < 0.06:
            # The last frames of a connection: lengths that do not fit what follows.
            at = 2 * int(rnd() * n)
            lie = (0, 1, 5, 200, 70_000, MAX_FRAME_BYTES, MAX_FRAME_BYTES + 1, 2**31, 2**32 - 1)
            parts[at] = struct.pack(">I", lie[int(rnd() * len(lie))])
        elif r < 0.1:
            parts[-1] = parts[-1][: int(rnd() * len(parts[-1]))]
        stream = b"".join(parts)
        self.last = stream
        began = time.perf_counter()
        whole = bodies_of(stream)
        if rnd() < 0.2:
            self._feed_in_pieces(stream)
        else:
            self.session.feed(stream)
        out = self._answers()
        took = time.perf_counter() - began
        if took > self.slowest_s:
            self.slowest_s, self.slowest = took, stream
        self.n_frames += n
        self.n_batches += 1
        self._judge(len(whole), out)
        if self.n_batches % CHECK_EVERY == 0:
            self.broker.engine._check()
        if r < 0.1 or self.session.closing or rnd() < 0.1:
            self._next_connection()
        self.clock.advance(int(rnd() * 40))

    def _feed_in_pieces(self, stream: bytes) -> None:
        rnd = self.rnd
        pos, end = 0, len(stream)
        while pos < end:
            size = (1, 3, 40, 700, 9000, 262_144)[int(rnd() * 6)]
            if end - pos > 100_000:
                size = 65_536
            self.session.feed(stream[pos : pos + size])
            pos += size

    def _answers(self) -> bytes:
        out = []
        while True:
            self._settle()
            piece = self.session.take()
            if piece:
                out.append(piece)
            elif not self.session.backlogged:
                break
            if self.session.backlogged:
                self.session.resume()
        self.listener.take()
        return b"".join(out)

    def _judge(self, whole: int, out: bytes) -> None:
        if self.faults.found:
            raise Finding(self.faults.found[0])
        decode = self.n_batches % DECODE_EVERY == 0
        replies = 0
        pos, end = 0, len(out)
        while pos < end:
            size = int.from_bytes(out[pos : pos + 4], "big")
            pos += 4
            if pos + size > end:
                raise Finding("a reply is cut off")
            if not out.startswith(EVENT, pos):
                replies += 1
                if out.startswith(b"\xa2ok\xc3", pos + 1):
                    self.n_ok += 1
            if decode:
                self._look(out[pos : pos + size])
            pos += size
        self.n_answered += replies
        self.expected += whole - replies
        if self.session.closing:
            # The frame that closed it had an answer as well: it was not whole.
            self.n_closed += 1
            if self.expected < -1:
                raise Finding(f"{-self.expected} replies too many before the close")
            return
        waiting = self.broker.sizes()["waits"]
        if self.expected != waiting:
            raise Finding(f"{self.expected} frames without an answer, {waiting} waits")

    def _look(self, reply: bytes) -> None:
        value: Any = unpack_reply(reply)
        if not isinstance(value, dict) or ("ok" not in value and value.get("type") != "event"):
            raise Finding(f"a reply without ok: {reply[:80]!r}")
        if value.get("ok") is False and not isinstance(value.get("error"), str):
            raise Finding(f"a refusal without words: {reply[:80]!r}")
        job = value.get("job")
        if isinstance(job, dict) and isinstance(value.get("token"), str):
            self.frames.seen(job["id"], value["token"])
        jobs, tokens = value.get("jobs"), value.get("tokens")
        if isinstance(jobs, list) and isinstance(tokens, list):
            for one, token in zip(jobs, tokens, strict=True):
                self.frames.seen(one["id"], token)
        elif isinstance(value.get("id"), str) and value["id"] not in IDS:
            self.frames.seen_id(value["id"])

    def _next_connection(self) -> None:
        """The next connection works, whatever the last one did."""
        self.session.close()
        self.listener.close()
        self._connect()
        self.session.feed(framed(PING))
        if b"pong" not in self.session.take():
            raise Finding("a Ping is not answered")

    # --- a round --------------------------------------------------------------------------------

    def run(self, n_frames: int) -> None:
        loggers = [logging.getLogger("qcore.broker"), logging.getLogger("qcore.server")]
        for logger in loggers:
            logger.addHandler(self.faults)
        before, sys.unraisablehook = sys.unraisablehook, self.faults.unraisable
        try:
            while self.n_frames < n_frames:
                self.batch(min(BATCH_FRAMES, n_frames - self.n_frames))
            self._end()
        except BaseException as error:
            if not isinstance(error, Finding):
                raise Finding(f"{type(error).__name__}: {error}") from error
            raise
        finally:
            sys.unraisablehook = before
            for logger in loggers:
                logger.removeHandler(self.faults)

    def _end(self) -> None:
        self.session.close()
        self.listener.close()
        self._settle()
        self.broker.engine._check()
        sizes = self.broker.sizes()
        if sizes["sessions"] or sizes["waits"] or sizes["subscriptions"] or sizes["workers"]:
            raise Finding(f"connections left something behind: {sizes}")
        if self.path is None:
            return
        before = self._counts()
        close_broker(self.broker)
        self.broker = self._open()
        if self.broker.recovery.unreadable or self.broker.recovery.schedules_unreadable:
            raise Finding(f"unreadable after a restart: {self.broker.recovery}")
        self.broker.engine._check()
        after = self._counts()
        if after != before:
            changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
            raise Finding(
                f"a restart changed {[(name, before.get(name), after.get(name)) for name in changed]}"
            )
        close_broker(self.broker)

    def _counts(self) -> dict[str, Any]:
        """Jobs of each queue. What is active without a lease is queued again by a restart."""
        out = {}
        for name in self.broker.engine.queue_names():
            found = self.broker.engine.counts(name, self.clock.now_ms())
            if sum(found.values()):
                out[name] = {
                    "queued": sum(found[state] for state in ("waiting", "prioritized", "paused", "active")),
                    **{
                        state: found[state]
                        for state in ("delayed", "completed", "failed", "waiting-children")
                    },
                }
        return out


def run_round(seed: int, number: int, n_frames: int, *, stored: bool, keep: Path | None = None) -> Round:
    """One round; what was sent last is kept beside a finding."""
    with tempfile.TemporaryDirectory() as folder:
        one = Round(seed, number, str(Path(folder) / "jobs.db") if stored else None)
        try:
            one.run(n_frames)
        except Finding as finding:
            if keep is not None:
                keep.write_bytes(one.last)
            finding.add_note(f"seed {seed}, round {number}, batch {one.n_batches}, stored {stored}")
            raise
        return one


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=lambda text: int(text.replace("_", "")), default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--round", type=int, help="only this round")
    parser.add_argument("--keep", type=Path, default=Path("finding.bin"), help="where the last batch goes")
    given = parser.parse_args()
    numbers = range(-(-given.frames // ROUND_FRAMES)) if given.round is None else [given.round]
    began = time.perf_counter()
    base_mib = 0.0
    n_frames = n_ok = n_closed = 0
    slowest_s = 0.0
    for number in numbers:
        left = given.frames - number * ROUND_FRAMES if given.round is None else ROUND_FRAMES
        stored = number % STORE_EVERY == 0  # also in the shortest campaign, the one under the sanitizers
        one = run_round(given.seed, number, min(ROUND_FRAMES, left), stored=stored, keep=given.keep)
        n_frames += one.n_frames
        n_ok += one.n_ok
        n_closed += one.n_closed
        if one.slowest_s > slowest_s:
            slowest_s = one.slowest_s
            Path(str(given.keep) + ".slowest").write_bytes(one.slowest)
        rate = one.n_frames
        del one
        gc.collect()
        now_mib = resident_mib()
        base_mib = base_mib or now_mib
        if now_mib > base_mib + MEMORY_MIB:
            raise Finding(f"memory grew from {base_mib:.0f} to {now_mib:.0f} MiB by round {number}")
        seconds = time.perf_counter() - began
        print(
            f"round {number}: {rate:,} frames, {n_frames / seconds:,.0f}/s, {now_mib:.0f} MiB",
            file=sys.stderr,
        )
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        json.dumps(
            {
                "frames": n_frames,
                "ok": n_ok,
                "closed": n_closed,
                "seed": given.seed,
                "seconds": round(time.perf_counter() - began, 1),
                "slowest_batch_s": round(slowest_s, 3),
                "peak_mib": round(peak_mib),
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
