"""A sample of the campaign: calls to the disk fail, disks fill up, and no promise is broken."""

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


def campaign(*options: str) -> dict[str, Any]:
    command = [sys.executable, "-W", "error", "-m", "tests.faults.campaign", *options]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize("mode", ["server", "embedded"])
def test_a_sample_of_every_kind_of_fault(mode: str) -> None:
    # Another sample each time: a failure names its seed and the call that failed.
    seed = os.environ.get("QCORE_FAULTS_SEED") or str(random.SystemRandom().randrange(10**6))
    report = campaign("--mode", mode, "--stride", "400", "--seed", seed)
    # It came to faults, and callers were told of them.
    assert report["runs"].keys() >= {"write EIO", "sync EIO", "open ENOSPC", "read EIO", "lasting full"}
    assert report["met"]["refused"] > 0
    assert report["met"]["unknown"] > 0
