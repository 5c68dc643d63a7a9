"""The main job from end to end, embedded and over TCP: finished, interrupted, killed, resumed."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qclient.demo.counting import count_names
from qclient.demo.files import source_files

# Each test runs the demo, some of them four times.
pytestmark = pytest.mark.slow

TIMEOUT_S = 110
MODES = pytest.mark.parametrize("mode", [(), ("--tcp",)], ids=["embedded", "tcp"])
Mode = tuple[str, ...]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "qclient", "demo", *arguments]


def demo(place: Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        command(*arguments, "--json"), cwd=place, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert (done.returncode, done.stderr) == (0, "")
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def five_most_used(jobs: int) -> list[dict[str, Any]]:
    """The expected result, without a queue."""
    names: collections.Counter[str] = collections.Counter()
    for file in source_files(jobs):
        with contextlib.suppress(SyntaxError):
            names.update(count_names(file.path))
    return [{"name": name, "count": count} for name, count in names.most_common(5)]


def children(pid: int) -> list[int]:
    """Processes below ``pid``, as far as they can be seen."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                found += [int(child), *children(int(child))]
    return found


def wait_until_gone(pid: int) -> None:
    """A pidfd becomes readable when its process ends, whoever its parent is."""
    import select

    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([fd], [], [], 30)[0], f"process {pid} was left behind"
    finally:
        os.close(fd)


@MODES
def test_results_failures_and_a_second_run(mode: Mode, tmp_path: Path) -> None:
    summary = demo(tmp_path, *mode, "--jobs", "40", "--workers", "2")
    assert summary["files"] == summary["ran"] == 40
    assert summary["kept"] == 0
    assert summary["completed"] == 37
    assert summary["retried"] == 6
    assert summary["workers"] == 2
    assert [(f["name"], f["attempts"]) for f in summary["failed"]] == [
        ("bad_encoding.py.broken", 3),
        ("null_byte.py.broken", 3),
        ("unterminated_string.py.broken", 3),
    ]
    assert all(f["error"].startswith("SyntaxError: ") for f in summary["failed"])
    assert summary["names"] == five_most_used(40)

    again = demo(tmp_path, *mode, "--jobs", "40")
    assert (again["ran"], again["kept"], again["retried"]) == (0, 40, 0)
    assert again["names"] == summary["names"]
    assert again["failed"] == summary["failed"]

    more = demo(tmp_path, "--jobs", "45")
    assert (more["ran"], more["kept"]) == (5, 40)
    assert more["names"] == five_most_used(45)

    fresh = demo(tmp_path, *mode, "--jobs", "4", "--fresh")
    assert (fresh["ran"], fresh["kept"]) == (4, 0)


@MODES
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stopped_half_way_and_run_again(mode: Mode, number: signal.Signals, tmp_path: Path) -> None:
    jobs = 150
    child = subprocess.Popen(
        command(*mode, "--jobs", str(jobs), "--workers", "2"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    done = 0
    for line in child.stdout:
        found = re.match(r"\[ *\d+%\] (\d+)/", line)
        if found and (done := int(found[1])) >= 20:
            break
    below = children(child.pid)
    assert below
    if number == signal.SIGINT:
        os.killpg(child.pid, number)  # as a terminal does
    else:
        child.send_signal(number)
    rest, errors = child.communicate(timeout=60)
    for pid in below:
        wait_until_gone(pid)
    if number == signal.SIGKILL:
        assert (child.returncode, errors) == (-number, "")
    else:
        assert errors == "qcore demo: interrupted; run it again and it goes on where it was\n"
        assert child.returncode == 130
    assert "Traceback" not in rest

    summary = demo(tmp_path, *mode, "--jobs", str(jobs))
    assert summary["kept"] >= done  # what had finished was not run again
    assert summary["kept"] + summary["ran"] == jobs
    assert summary["names"] == five_most_used(jobs)
    assert {f["name"] for f in summary["failed"]} == {file.name for file in source_files(3)}


@MODES
def test_a_file_of_somebody_else_is_left_alone(mode: Mode, tmp_path: Path) -> None:
    path = tmp_path / "qcore-demo.db"
    path.write_bytes(b"precious")
    for fresh in ((), ("--fresh",)):
        done = subprocess.run(
            command(*mode, *fresh, "--jobs", "4"),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert "was not made by the demo" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == b"precious"


def test_fresh_deletes_only_what_the_demo_made(tmp_path: Path) -> None:
    demo(tmp_path, "--jobs", "4", "--data", "mine.db")
    others = [tmp_path / name for name in ("mine.db.backup", "other.db", "mine")]
    for path in others:
        path.write_bytes(b"precious")
    (tmp_path / "mine.db").write_bytes(b"damaged" * 1000)
    assert demo(tmp_path, "--jobs", "4", "--data", "mine.db", "--fresh")["ran"] == 4
    assert all(path.read_bytes() == b"precious" for path in others)


@MODES
@pytest.mark.parametrize("name", [".", "nowhere/at/all.db"])
def test_a_place_that_cannot_be_used_is_one_line(mode: Mode, name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        command(*mode, "--data", name), cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("qcore demo: ")
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@MODES
@pytest.mark.parametrize("fresh", [(), ("--fresh",)], ids=["again", "fresh"])
def test_a_data_file_in_use_is_one_line(mode: Mode, fresh: Mode, tmp_path: Path) -> None:
    demo(tmp_path, "--jobs", "4")
    holder = subprocess.Popen(
        [sys.executable, "-m", "qclient", "start", "--port", "0", "--data", "qcore-demo.db", "--watch-stdin"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert "listening on" in holder.stdout.readline()
        done = subprocess.run(
            command(*mode, *fresh, "--jobs", "4"),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert str(holder.pid) in done.stderr
        assert len(done.stderr.splitlines()) == 1
    finally:
        holder.stdin.close()
        holder.wait(30)
        holder.stdout.close()
    assert demo(tmp_path, "--jobs", "4")["kept"] == 4
