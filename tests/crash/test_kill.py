"""SIGKILL at random moments: promises kept, whatever was going on.

The campaigns are also a command, for more than a test run can afford; see
:mod:`tests.crash.campaign`. Only the crash of a process is tested here: what a power
cut leaves depends on ``synchronous`` and on the disk.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def run_campaign(*options: str) -> dict[str, Any]:
    command = [sys.executable, "-W", "error", "-m", "tests.crash.campaign", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize(("mode", "kills"), [("server", 22), ("embedded", 32)])
def test_campaign(mode: str, kills: int) -> None:
    # Another seed each time: a failure names it, and `QCORE_CRASH_SEED` repeats the load.
    seed = os.environ.get("QCORE_CRASH_SEED") or str(random.SystemRandom().randrange(10**6))
    report = run_campaign("--mode", mode, "--kills", str(kills), "--seed", seed)
    assert report["kills"] == kills
    # The campaign was one: work was done, and work was under way when the killing came.
    assert report["jobs"] > 10 * kills
    assert report["confirmed_ends"] > 5 * kills
    assert report["charged" if mode == "embedded" else "kept_leases"] > 0
    assert report["oldest_loss_ms"] < 2000
