"""Kill engines under load, again and again, and compare their file with their clients' logs.

    python -m tests.crash.campaign --kills 200 --mode server --seed 7

The load is all of :mod:`tests.crash.load` at once, and :mod:`tests.crash.script` beside it.
``server``: a server process is killed; producers and workers live on, wait for the next
one and go on with the jobs in their hands. ``embedded``: the process that is killed
holds the engine, its producers and its workers. A file lives through so many crashes and is then
worked off, until all have been.
Prints one JSON line; fails with the first broken promise and keeps the files.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import msgpack

from qcore.broker import open_broker
from qcore.broker.embedded import EmbeddedEngine
from qcore.broker.opening import Mode, close_broker, commit, flush
from tests.crash.ledger import COMPLETED, FAILED, Ledger, Row, read_rows, read_schedules
from tests.crash.load import (
    EPOCH,
    FIRST_SCHEDULE,
    QUEUE,
    TICKS,
    Caller,
    Entry,
    Key,
    Load,
    LocalCaller,
    Log,
    TcpCaller,
    entries_of,
    finish,
    finish_batch,
    framed,
    pull,
)
from tests.crash.script import Critic, recite

PRODUCERS = 3
WORKERS = 4


def copy_file(source: Path, target: Path) -> Path:
    """A data file with its log, as they lie there."""
    for suffix in ("", "-wal"):
        Path(f"{target}{suffix}").unlink(missing_ok=True)
        if Path(f"{source}{suffix}").exists():
            shutil.copyfile(f"{source}{suffix}", f"{target}{suffix}")
    Path(f"{target}-shm").unlink(missing_ok=True)
    return target


def recovered(source: Path, target: Path, mode: Mode) -> dict[Key, Row]:
    """What recovery makes of a copy of ``source``; ``target`` is left as if killed right after it."""
    work = copy_file(source, target.with_name(target.name + "-work"))
    broker = open_broker(str(work), mode=mode, keep_events=keeps_events())
    try:
        assert not broker.recovery.unreadable, broker.recovery.unreadable
        assert broker.recovery.log_damage is None, str(broker.recovery.log_damage)
        broker.engine._check()
        flush(broker)
        assert not broker.store.integrity_check()
        copy_file(work, target)
        check_keys(broker, read_rows(copy_file(work, work.with_name(work.name + "-look"))))
    finally:
        close_broker(broker)
    return read_rows(copy_file(target, target.with_name(target.name + "-look")))


def check_keys(broker: Any, rows: dict[Key, Row]) -> None:
    """The key of a job that is alive is taken, any other is free."""
    caller = BrokerCaller(broker)
    alive = {row.unique: row.id for row in rows.values() if row.state not in (COMPLETED, FAILED)}
    for key in {row.unique for row in rows.values()} - {""}:
        new = f"new-{key}"
        reply = caller.call({"cmd": "PUSH", "queue": QUEUE, "jobId": new, "uniqueKey": key})
        assert reply["id"] == alive.get(key, new), f"{key}: {reply}, held by {alive.get(key)}"
    caller.close()


def keeps_events() -> bool:
    return bool(os.environ.get("QCORE_JOURNAL"))


class Campaign:
    """One file, many crashes."""

    def __init__(self, mode: Mode, seed: int, folder: Path, longest: int) -> None:
        self.mode: Mode = mode
        self.rng = random.Random(seed)
        self.seed = seed
        self.folder = folder
        self.longest = longest
        self.file = folder / "jobs.db"
        self.ledger = Ledger(server=mode == "server")
        self.critic = Critic(BrokerCaller)
        self.kills = 0
        broker = open_broker(str(self.file), mode=mode, keep_events=keeps_events())
        caller = BrokerCaller(broker)
        for queue in (QUEUE, TICKS):
            # The same holds for silence.
            assert caller.call({"cmd": "SetStallConfig", "queue": queue, "config": {"enabled": False}})["ok"]
        close_broker(broker)

    def check(self, entries: list[Entry], ended_at: int, *, clean: bool = False) -> None:
        """The process is dead: hold its file against the logs. After a clean end nothing is missing."""
        safe_at = self.ledger.feed(entries)
        if clean:
            safe_at = ended_at
        else:
            self.kills += 1
        crashed = read_rows(copy_file(self.file, self.folder / "crashed.db"))
        self.ledger.check_crash(crashed, safe_at, ended_at)
        self.ledger.check_schedules(crashed, read_schedules(self.folder / "crashed.db"))
        if not clean:
            self.critic.check(entries, copy_file(self.file, self.folder / "script.db"))
        once = recovered(self.file, self.folder / "once.db", self.mode)
        self.ledger.check_recovery(crashed, once)
        # A crash right after recovery, before anybody came: nothing is charged again.
        twice = recovered(self.folder / "once.db", self.folder / "twice.db", self.mode)
        assert {k: r.lasting for k, r in once.items()} == {k: r.lasting for k, r in twice.items()}

    def moment(self, count: Callable[[], int], failed: Callable[[], object], started_s: float) -> None:
        """Wait for the next kill: so many entries of the clients' logs, or a time within the start.

        (By what was done, not by the clock: on a busy machine little is done in a second.)
        """
        if self.kills % 7 == 6:
            time.sleep(self.rng.random() * started_s)
            return
        end, guard = count() + self.rng.randrange(self.longest), time.monotonic() + 60
        while count() < end:
            assert not failed(), "a client was told what it must not be told"
            assert time.monotonic() < guard, "nothing is done any more"
            time.sleep(0.001)
        time.sleep(self.rng.random() * 0.003)

    def finish(self) -> None:
        """Run what is left, in this process, and look at the sum of it all."""
        before = read_rows(copy_file(self.file, self.folder / "crashed.db"))
        close_broker(open_broker(str(self.file), mode=self.mode, keep_events=keeps_events()))
        self.ledger.check_recovery(before, read_rows(self.file))
        # That was a clean end, so that what is still active is given back uncharged now.
        self.ledger.lapse(time.monotonic_ns())
        log = Log()
        broker = open_broker(str(self.file), mode="embedded", keep_events=keeps_events())
        try:
            drain(broker, log)
            broker.engine._check()
        finally:
            close_broker(broker)
        self.ledger.feed(log.entries)
        self.ledger.check_end(read_rows(self.file))

    def report(self) -> dict[str, Any]:
        ledger = self.ledger
        return {
            "kills": self.kills,
            "jobs": sum(add.count for add in ledger.adds if add.told_at),
            "deliveries": sum(map(len, ledger.deliveries.values())),
            "confirmed_ends": ledger.ends,
            "lost_buffered_adds": ledger.lost_buffered,
            "oldest_loss_ms": round(ledger.oldest_loss_ms, 1),
            "schedules": len(ledger.plans),
            "runs_of_schedules": sum(key[0] >= FIRST_SCHEDULE for key in ledger.completed),
            "script_steps": self.critic.steps,
            "script_unsure": self.critic.unsure,
            "charged": ledger.charged,
            "kept_leases": ledger.kept,
        }


class BrokerCaller:
    """A conversation with a broker that has no thread: whoever asks commits."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self._session = broker.session()

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        self._session.feed(framed(request))
        flush(self._broker)
        reply: dict[str, Any] = msgpack.unpackb(self._session.take()[4:])
        return reply

    def close(self) -> None:
        self._session.close()


def drain(broker: Any, log: Log) -> None:
    """Run everything to its end."""
    caller = BrokerCaller(broker)
    for cron in caller.call({"cmd": "CronList"})["crons"]:
        assert caller.call({"cmd": "CronDelete", "name": cron["name"]})["ok"]
    while True:
        seconds, cut = broker.pump()
        if cut is not None:
            commit(broker, cut)
        held = pull(log, caller, 1000, 0) + pull(log, caller, 1000, 0, queue=TICKS)
        if held:
            finish_batch(log, caller, held)
            for job, token in held:
                finish(log, caller, job, token)
            continue
        counts = [broker.engine.counts(queue, broker.wall_ms) for queue in (QUEUE, TICKS)]
        if not any(count["delayed"] for count in counts):
            assert not any(count["active"] or count["waiting"] for count in counts), counts
            return
        time.sleep(min(0.05, seconds or 0.0))  # a retry becomes due


# --- embedded: the process is everything ---------------------------------------------------------


def _live(path: Path, log_fd: int, seed: int, first: int) -> NoReturn:
    """The process that is to be killed."""
    try:
        engine = EmbeddedEngine(str(path), keep_events=keeps_events())
        assert engine.broker.recovery.log_damage is None, str(engine.broker.recovery.log_damage)
        log = Log(log_fd)
        load = Load(
            log,
            lambda _: LocalCaller(engine),
            seed,
            first,
            producers=PRODUCERS,
            workers=WORKERS,
            script=recite,
        )
        load.start()
        load.failed.wait()
    except BaseException:
        traceback.print_exc()
    os._exit(3)


def run_embedded(campaign: Campaign, kills: int) -> None:
    log_path = campaign.folder / "log"
    for kill in range(kills):
        fd = os.open(log_path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND)
        pid = os.fork()
        if not pid:
            _live(campaign.file, fd, campaign.seed * 1000 + kill, kill * EPOCH)
        # An entry has some 60 bytes. One who was told a wrong thing ends the process.
        campaign.moment(
            lambda fd=fd: os.fstat(fd).st_size // 60,
            lambda pid=pid: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT),
            0.02,
        )
        os.close(fd)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), f"the process ended by itself with {os.waitstatus_to_exitcode(status)}"
        campaign.check(entries_of(log_path.read_bytes()), time.monotonic_ns())


# --- server: the clients live on -------------------------------------------------------------------


class Reach:
    """Where the present server listens; clients wait here while there is none."""

    def __init__(self) -> None:
        self._port = 0
        self._over = False
        self._changed = threading.Condition()

    def set(self, port: int, over: bool = False) -> None:
        with self._changed:
            self._port, self._over = port, over
            self._changed.notify_all()

    def connect(self, producer: bool) -> Caller:
        with self._changed:
            self._changed.wait_for(lambda: self._port or self._over)
            if not self._port:
                raise ConnectionRefusedError
            port = self._port
        return TcpCaller(port)


class Served:
    """A server process on the campaign's file; what it says when it should not have ended."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-m", "qcore.server", "--port", "0", "--data", str(path)]
        command += ["--log-level", "error", "--shutdown-timeout-ms", "100"]
        command += ["--journal"] if keeps_events() else []
        env = {k: v for k, v in os.environ.items() if not k.startswith(("QCORE_", "BUNQUEUE_", "BQ_"))}
        self._errors = path.with_name("server.err")
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                command, env=env, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def port(self) -> int:
        """Where it listens, once it does. There is no second try: one that does not start is a failure."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if "listening on 127.0.0.1:" not in line:
            raise AssertionError(f"the server did not start: {line!r}{self._end()}")
        return int(line.rsplit(":", 1)[1])

    def check(self) -> None:
        """It has not ended by itself."""
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended by itself{self._end()}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Let it go; what it had to say is said again."""
        self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()
        errors = self._errors.read_text("utf-8", "replace")
        sys.stderr.write(errors)
        assert "is lost" not in errors, "a false alarm"

    def _end(self) -> str:
        """Exit code and errors, of one that has ended or is about to."""
        try:
            code: object = self.process.wait(10)
        except subprocess.TimeoutExpired:
            code = "none, it still runs"
        return f"; exit code {code}, errors: {self._errors.read_text('utf-8', 'replace') or 'none'}"


def run_server(campaign: Campaign, kills: int) -> None:
    reach = Reach()
    log = Log()
    load = Load(log, reach.connect, campaign.seed, 0, producers=PRODUCERS, workers=WORKERS, script=recite)
    load.start()
    taken = 0
    started_s = 0.3
    for kill in range(kills + 1):
        server = Served(campaign.file)
        try:
            if kill == kills or kill % 7 != 6:
                began = time.monotonic()
                reach.set(server.port())
                started_s = 1.2 * (time.monotonic() - began)
            if kill == kills:
                load.quiet()
                assert not load.failed.wait(0.5), "a client was told what it must not be told"
            else:
                campaign.moment(lambda: log.count, load.failed.is_set, started_s)
            server.check()
            reach.set(0, over=kill == kills)
            if kill == kills:
                load.stop()
                server.process.terminate()
                code = server.process.wait(30)
                assert code == 0, f"the server ended with {code}"
            else:
                server.kill()
            load.settle()
        finally:
            server.close()
        entries = log.entries[taken:]
        taken += len(entries)
        campaign.check(entries, time.monotonic_ns(), clean=kill == kills)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--mode", choices=["server", "embedded"], default="server")
    parser.add_argument("--seed", type=int, default=None, help="of the moments and the load; printed")
    parser.add_argument("--longest", type=int, default=400, help="entries between start and kill, at most")
    parser.add_argument("--folder", type=Path, help="where the files go; emptied after each file")
    parser.add_argument("--per-file", type=int, default=50, help="kills that one file lives through")
    parser.add_argument("--journal", action="store_true", help="keep the events as well")
    options = parser.parse_args(argv)
    if options.journal:
        os.environ["QCORE_JOURNAL"] = "1"
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    total: Counter[str] = Counter()
    for life, left in enumerate(range(options.kills, 0, -options.per_file)):
        folder: Path = options.folder or Path(tempfile.mkdtemp(prefix="qcore-crash-"))
        folder.mkdir(parents=True, exist_ok=True)
        campaign = Campaign(options.mode, seed + life, folder, options.longest)
        try:
            run = run_server if options.mode == "server" else run_embedded
            run(campaign, min(left, options.per_file))
            campaign.finish()
        except BaseException:
            print(f"seed {seed + life}, after {campaign.kills} kills; see {folder}", file=sys.stderr)
            raise
        shutil.rmtree(folder)
        oldest_ms = max(total["oldest_loss_ms"], campaign.report()["oldest_loss_ms"])
        total.update(campaign.report())
        total["oldest_loss_ms"] = oldest_ms
    print(json.dumps({"mode": options.mode, "seed": seed, **total}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
