"""Let every call to the disk fail in turn, and fill disks up, under engines in all their phases.

    python -m tests.faults.campaign                      everything, some minutes
    python -m tests.faults.campaign --stride 20 --seed 3  a sample

For each kind of call and N = 1, 2, … until a run passes untouched: start, load, end,
start again, with the Nth call failing. Then disks that fail from the Nth call on and
recover while the engine runs. Prints one JSON line; stops at the first broken promise.
"""

from __future__ import annotations

import argparse
import errno
import itertools
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.faults.host import PATIENCE_S, Host, Mode, StartFailed
from tests.faults.shim import SHORT, Faults
from tests.faults.work import QUEUE, Load, State, difference, look

STEPS = 40
ERRORS = {
    "write": ("EIO", "ENOSPC", "SHORT"),
    "sync": ("EIO",),
    "truncate": ("EIO",),
    "open": ("ENOSPC", "EMFILE"),
    "read": ("EIO",),
    "unlink": ("EROFS",),
}
LASTING = ("full", "EIO", "EROFS", "sync")

Arm = Callable[[Faults], None]


class Campaign:
    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.seed = seed
        self.path = folder / "data" / "jobs.db"
        self.log = folder / "log"
        self.faults = Faults(folder, self.path)
        self.runs: Counter[str] = Counter()
        self.met: Counter[str] = Counter()
        self.verbose = False
        self.began = time.monotonic()

    def _clean(self) -> None:
        shutil.rmtree(self.path.parent, ignore_errors=True)
        self.path.parent.mkdir()
        self.log.unlink(missing_ok=True)

    def _host(self, mode: Mode, **levels: str) -> Host:
        return Host(
            mode, self.path, self.log, before=lambda pid: self.faults.attach(pid, keep=True), **levels
        )

    def _start(self, mode: Mode, **levels: str) -> Host:
        """Start; once more if the fault met the start."""
        before = sum(self.faults.failed.values())
        try:
            return self._host(mode, **levels)
        except StartFailed as error:
            why = str(error)
        assert sum(self.faults.failed.values()) > before, f"no reason to fail: {why}"
        assert str(self.path) in why, f"the file is not named: {why}"
        self.met["start"] += 1
        return self._host(mode, **levels)

    # --- one call fails --------------------------------------------------------------------------

    def one_fails(self, mode: Mode, kind: str, error: str, n: int, level: str) -> bool:
        """A life in which the ``n``\\ th call fails; whether it came to that."""
        self._clean()
        self.faults.attach(0)
        if error == "SHORT":
            # Half of the Nth, and no room for the rest.
            self.faults.arm(kind, n, n + 1, error=errno.ENOSPC, how=SHORT)
        else:
            self.faults.arm(kind, n, n, error=getattr(errno, error))
        levels = {"adds": level, "changes": level} if level != "buffered" else {}
        host = self._start(mode, **levels)
        load = Load(host.call, self.seed, adds_held=level != "buffered")
        load.run(STEPS)
        memory = look(host.call, _ids(load))
        assert memory == load.state, difference(load.state, memory)
        if n % 2:
            host.kill()
            exact = None
        else:
            code = host.stop()
            # The end may say that it could not write.
            assert code == 0 or self.faults.failed[kind], self.log.read_text()
            exact = memory if code == 0 else None
        self._check_again(mode, load, exact)
        self.runs[f"{kind} {error}"] += 1
        self.met["refused"] += load.refused
        self.met["unknown"] += load.unknown
        return bool(self.faults.failed[kind])

    def _check_again(self, mode: Mode, load: Load, exact: State | None) -> None:
        """Start on what is there, compare, and end well."""
        host = self._start("server")
        lost = host.call({"cmd": "StorageStatus"})["data"]["lostAtStart"]
        assert lost is None, f"a false alarm: {lost}"
        found = look(host.call, _ids(load))
        if exact is not None:
            assert found == exact, difference(exact, found)
        allowed = load.steps[_last_promise(load) :]
        if all(found != step.state for step in allowed):
            best = min(allowed, key=lambda step: len(step.state.jobs ^ found.jobs))
            raise AssertionError(
                f"no past state: {difference(best.state, found)} (nearest: {best.request},"
                f" {allowed.index(best)} of {len(allowed)})"
            )
        assert host.call({"cmd": "PUSH", "queue": "last", "durable": True})["ok"] or self.faults.failed
        self.faults.disarm()
        assert host.stop() == 0, self.log.read_text()
        assert os.listdir(self.path.parent) == [self.path.name]
        con = sqlite3.connect(self.path)
        assert con.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        con.close()

    # --- a disk fails, and comes back ------------------------------------------------------------

    def lasting(self, mode: Mode, how: str, n: int, level: str) -> bool:
        """A life in which the disk fails from the ``n``\\ th call on until it recovers; whether it failed."""
        self._clean()
        self.faults.attach(0)
        levels = {"adds": level, "changes": level} if level != "buffered" else {}
        host = self._start(mode, **levels)
        load = Load(host.call, self.seed, adds_held=level != "buffered")
        load.run(STEPS // 2)
        if how == "full":
            self.faults.fill_disk(self.faults.seen["write"] + n)
        elif how == "EROFS":
            self.faults.make_read_only()
        elif how == "sync":
            self.faults.arm("sync", self.faults.seen["sync"] + n)
        else:
            for kind in ("write", "sync", "truncate"):
                self.faults.arm(kind, self.faults.seen[kind] + n)
        load.run(STEPS)
        failed = sum(self.faults.failed.values()) > 0
        if load.refused and how != "sync":
            status = host.call({"cmd": "StorageStatus"})["data"]
            assert status["error"], status
            assert status["diskFull"] is (how == "full"), status
            reply = host.call({"cmd": "PUSH", "queue": "q", "durable": True})
            assert "disk full" in reply["error"] or how != "full", reply
        if n % 3 == 2:
            # It ends before the disk recovers.
            if n % 2:
                host.kill()
            else:
                host.stop()
            self.faults.disarm()
            self._check_again(mode, load, None)
        else:
            self.faults.disarm()
            self._wait_for_recovery(host)
            load.run(STEPS // 4)
            load.durable()
            memory = look(host.call, _ids(load))
            assert memory == load.state, difference(load.state, memory)
            host.kill()
            self._check_again(mode, load, memory)
        self.runs[f"lasting {how}"] += 1
        self.met["refused"] += load.refused
        self.met["unknown"] += load.unknown
        return failed

    def _wait_for_recovery(self, host: Host) -> None:
        end = time.monotonic() + PATIENCE_S
        while host.call({"cmd": "StorageStatus"})["data"]["error"]:
            # By itself it tries again after up to 30 s; sooner when somebody waits for a commit.
            host.call({"cmd": "Resume", "queue": QUEUE})
            assert time.monotonic() < end, "the service did not resume"
            time.sleep(0.005)

    # --- everything ----------------------------------------------------------------------------------

    def run(self, stride: int, modes: list[Mode], kinds: list[str]) -> None:
        rng = random.Random(self.seed)
        for mode, kind in itertools.product(modes, kinds):
            for error in ERRORS[kind]:
                level = rng.choice(["buffered", "committed", "synced"]) if kind != "sync" else "synced"
                # Of the others there are few.
                step = stride if kind in ("write", "read") else 1 + stride // 20
                n = rng.randint(1, step)
                while self._named(self.one_fails, mode, kind, error, n, level):
                    n += step
                self._say(f"{mode} {kind} {error} {level}: untouched at {n}")
        for mode, how in itertools.product(modes, LASTING):
            level = "synced" if how == "sync" else rng.choice(["buffered", "committed", "synced"])
            for n in range(rng.randint(1, 10), 200, stride):
                if not self._named(self.lasting, mode, how, n, level):
                    break
            self._say(f"{mode} lasting {how} {level}: to {n}")

    def _say(self, line: str) -> None:
        if self.verbose:
            print(f"{time.monotonic() - self.began:6.1f} s  {line}", file=sys.stderr, flush=True)

    def _named(self, life: Callable[..., bool], *how: object) -> bool:
        try:
            return life(*how)
        except BaseException:
            print(f"seed {self.seed}, {life.__name__}{how}; the files are in {self.folder}", file=sys.stderr)
            raise


def _ids(load: Load) -> set[str]:
    return {job for step in load.steps for job, _ in step.state.jobs}


def _last_promise(load: Load) -> int:
    return max(i for i, step in enumerate(load.steps) if step.confirmed_ns or not i)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stride", type=int, default=1, help="fail every so manieth call (1: each)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mode", choices=["server", "embedded"], action="append")
    parser.add_argument("--kind", choices=list(ERRORS), action="append")
    parser.add_argument("--folder", type=Path, help="where the files go; default a temporary one")
    parser.add_argument("--verbose", action="store_true", help="say how far it has come")
    options = parser.parse_args(argv)
    if "FAULTS" not in os.environ:
        folder = options.folder or Path(tempfile.mkdtemp(prefix="qcore-faults-"))
        env = os.environ | Faults(folder, folder / "data" / "jobs.db").env
        arguments = [*(sys.argv[1:] if argv is None else argv), "--folder", str(folder)]
        code = subprocess.run(
            [sys.executable, *_options(), "-m", "tests.faults.campaign", *arguments], env=env
        ).returncode
        if not code and options.folder is None:
            shutil.rmtree(folder)
        return code
    campaign = Campaign(options.folder, options.seed)
    campaign.verbose = options.verbose
    campaign.run(options.stride, options.mode or ["server", "embedded"], options.kind or list(ERRORS))
    print(json.dumps({"runs": campaign.runs, "met": campaign.met}), flush=True)
    return 0


def _options() -> list[str]:
    return [f"-W{option}" for option in sys.warnoptions]


if __name__ == "__main__":
    sys.exit(main())
