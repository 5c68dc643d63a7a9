"""What the demo shows while it runs."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from qclient.demo.display import Lines, Progress, Silent


def test_rates_count_this_run_only() -> None:
    progress = Progress(total=100, done=60, kept=40, seconds=2.0)
    assert progress.per_second == 10
    assert progress.eta_seconds == 4
    assert Progress(total=100).eta_seconds is None


def test_lines_are_rare_and_the_last_state_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    for done in range(1000):
        lines.update(Progress(total=1000, done=done, seconds=1.0))
    lines.update(Progress(total=1000, done=1000, failed=3, retried=6, seconds=2.0))
    lines.close()
    lines.close()
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("[  0%] 0/1000 ")
    assert out[-1] == "[100%] 1000/1000 active=0 retried=6 failed=3 500/s eta=0s"
    assert len(out) < 20


def test_silence(capsys: pytest.CaptureFixture[str]) -> None:
    display = Silent()
    display.update(Progress(total=1))
    display.close()
    assert capsys.readouterr().out == ""


def test_a_terminal_gets_a_bar(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "qclient", "demo", "--jobs", "5", "--workers", "1"],
        cwd=tmp_path,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # how Linux tells that the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert child.wait(60) == 0
    assert b"\x1b[" in shown
    assert b"5/5" in shown
    assert b"most used names" in shown
