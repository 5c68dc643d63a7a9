"""The TypeScript client of the protocol in front of our server, and in one queue with our Python client.

The npm packages ``bunqueue`` and ``bun``, at the versions of ``npm/package.json``, are
installed by ``make foreign``. Without them these tests fail rather than be skipped: that
they ran is what they are for.

``surface.ts`` calls every public part of the client and prints what its user sees. That
has to be what ``record.py`` wrote down of the reference server, but for the differences
that are listed here.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qclient
from qclient import JobState

SCRIPTS = Path(__file__).parent / "npm"
RECORDED = Path(__file__).parents[1] / "data" / "surface_npm.json"
PATIENCE_S = 60.0
_names = itertools.count(1)


# --- the whole surface ---------------------------------------------------------------------------

SECTIONS = [
    "add",
    "refusals",
    "bulk",
    "change",
    "pause",
    "clean",
    "worker",
    "concurrency",
    "retries",
    "moves",
    "manual",
    "logs",
    "finished",
    "batch",
    "close",
    "dlq",
    "redo",
    "stall",
    "limits",
    "throttle",
    "group-throttle",
    "to-children",
    "groups",
    "dedup",
    "schedules",
    "repeat",
    "flow",
    "flow-failures",
    "chains",
    "parent",
    "events",
    "metrics",
    "group-of-queues",
    "simple",
    "forward",
]


@pytest.fixture(scope="session")
def surfaces(bun: str, port_of: Callable[[str, str], int]) -> dict[str, dict[str, dict[str, Any]]]:
    """What the client saw of each server, by section."""
    running = {
        storage: subprocess.Popen(
            [bun, str(SCRIPTS / "surface.ts"), str(port_of(storage, ""))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for storage in ("memory", "sqlite")
    }
    seen = {"reference": json.loads(RECORDED.read_text("utf-8"))}
    for storage, process in running.items():
        out, errors = process.communicate(timeout=PATIENCE_S * 2)
        assert process.returncode == 0, f"{storage}: {errors}"
        seen[storage] = json.loads(out.splitlines()[-1])
    return seen


def without(value: Any, *path: str) -> None:
    """Take what lies at a path out of a value, if it is there."""
    for key in path[:-1]:
        value = value.get(key, {})
    value.pop(path[-1], None)


def comparable(section: str, seen: dict[str, Any]) -> dict[str, Any]:
    """A section without what differs from the reference on purpose."""
    seen = json.loads(json.dumps(seen))
    if section == "dedup":
        # A job that lost its key says so.
        for name in ("deduplicationId", "raw"):
            without(seen, "view", name)
        without(seen, "view", "json", "opts", "deduplication")
    elif section == "parent":
        # A payload is never written into; the child stands in `childrenIds`.
        without(seen, "parent", "json", "data")
        without(seen, "parent", "raw")
    return seen


@pytest.mark.parametrize("storage", ["memory", "sqlite"])
@pytest.mark.parametrize("section", SECTIONS)
def test_the_client_sees_what_it_sees_of_the_reference(
    surfaces: dict[str, dict[str, dict[str, Any]]], section: str, storage: str
) -> None:
    ours, theirs = surfaces[storage][section], surfaces["reference"][section]
    assert "threw" not in ours, ours["threw"]
    assert comparable(section, ours) == comparable(section, theirs)


def test_every_section_is_looked_at(surfaces: dict[str, dict[str, dict[str, Any]]]) -> None:
    assert list(surfaces["memory"]) == list(surfaces["reference"]) == SECTIONS


def test_what_the_client_sees_is_something(surfaces: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Two servers that answer nothing would agree as well."""
    seen = surfaces["memory"]
    assert seen["worker"]["counts"]["completed"] == 9
    assert seen["concurrency"]["sum"] == 2 * sum(range(200))
    assert seen["retries"]["tries"] == {"flaky": 3, "doomed": 2, "final": 1, "gone": 1, "thrown": 1}
    assert seen["flow"]["values"] == ["left done", "right done"]
    assert seen["flow-failures"]["failParentOnFailure"]["state"] == "failed"
    assert seen["chains"]["inOrder"] == [True] * 3
    assert len(seen["events"]["told"]) == 6
    assert seen["schedules"]["count"] == 2
    assert seen["dlq"]["stats"]["total"] == 5
    assert seen["groups"]["first"] != seen["groups"]["all"]
    assert [job[0] for job in seen["forward"]["jobs"]] == ["f"] * 3


# --- two languages, one queue --------------------------------------------------------------------

NUMBERS = [1, 2, 250, -3]


def hexed(values: Any, kind: str) -> list[Any]:
    return ["bytes", np.asarray(values).astype(kind).tobytes().hex()]


def described(value: Any) -> list[Any]:
    """A value in the words of ``interop.ts``."""
    match value:
        case None:
            return ["null"]
        case bool():
            return ["bool", value]
        case int():
            return ["int", str(value)]
        case float() if value.is_integer() and abs(value) <= 2**53 - 1:
            return ["int", str(int(value))]
        case float():
            if value != value or value in (float("inf"), float("-inf")):
                return ["float", {"nan": "nan", "inf": "infinity", "-inf": "-infinity"}[str(value)]]
            mantissa, exponent = f"{value:.6e}".split("e")
            return ["float", f"{mantissa}e{int(exponent):+d}"]
        case str():
            return ["text", value]
        case bytes():
            return ["bytes", value.hex()]
        case datetime():
            return ["date", round(value.timestamp() * 1000)]
        case list():
            return ["list", [described(v) for v in value]]
        case dict():
            by_units = sorted(value, key=lambda key: key.encode("utf-16-be"))
            return ["map", [[key, described(value[key])] for key in by_units]]
    raise AssertionError(f"unexpected {type(value)}")


def boxed(value: list[Any]) -> list[Any]:
    return ["map", [["v", value]]]


#: What each value of ``interop.ts`` is here. JavaScript's wide integers are exact on the way from it.
EXPECTED: dict[str, list[Any]] = {
    "nested": described({"a": [1, {"b": None, "c": [True, "ä語😀", -0.5]}], "": "empty key", "ключ": 1}),
    "date": described(
        {
            "at": datetime.fromtimestamp(1_700_000_000.123, UTC),
            "list": [datetime.fromtimestamp(0, UTC), datetime.fromtimestamp(-1, UTC)],
        }
    ),
    "int8": boxed(hexed([1, 2, -6, -3], "<i1")),
    "uint8": boxed(hexed([1, 2, 250, 253], "<u1")),
    "clamped": boxed(hexed([1, 2, 250, 0], "<u1")),
    "int16": boxed(hexed(NUMBERS, "<i2")),
    "uint16": boxed(hexed([1, 2, 250, 65533], "<u2")),
    "int32": boxed(hexed(NUMBERS, "<i4")),
    "uint32": boxed(hexed([1, 2, 250, 2**32 - 3], "<u4")),
    "float32": boxed(hexed([1.5, -2.25, 3e10], "<f4")),
    "float64": boxed(hexed([1.5, np.pi, -1e300], "<f8")),
    "bigint64": boxed(hexed([1, -(2**63)], "<i8")),
    "biguint64": boxed(hexed([2**64 - 1], "<u8")),
    "dataview": boxed(hexed([1.5, -2.25, 3e10], "<f4")),
    "buffer": boxed(["bytes", "00ff01"]),
    "bigint": described({"small": 5, "wide": 2**60 + 1, "negative": -(2**62), "top": 2**64 - 1}),
    "numbers": described(
        {
            "safe": 2**53 - 1,
            "below": -(2**40),
            "u32": 2**32 - 1,
            "half": 0.5,
            "huge": 1e300,
            "nan": float("nan"),
            "inf": float("-inf"),
        }
    ),
}


class Script:
    """A running ``interop.ts``; it prints a JSON document a line."""

    def __init__(self, bun: str, port: int, queue: str, mode: str) -> None:
        self.process = subprocess.Popen(
            [bun, str(SCRIPTS / "interop.ts"), str(port), queue, mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        timer = threading.Timer(PATIENCE_S, self.process.kill)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        assert line, "the script ended or fell silent"
        found = json.loads(line)
        assert isinstance(found, dict)
        return found

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("stop\n")
            self.process.stdin.close()
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.stdout.close()


@pytest.fixture(params=["memory", "sqlite"])
def port(request: pytest.FixtureRequest, port_of: Callable[[str, str], int]) -> int:
    return port_of(request.param, "")


@pytest.fixture
def name() -> str:
    return f"interop{os.getpid()}-{next(_names)}"


@pytest.fixture
def script(bun: str, port: int, name: str) -> Iterator[Callable[[str], Script]]:
    with contextlib.ExitStack() as stack:

        def start(mode: str) -> Script:
            return stack.enter_context(contextlib.closing(Script(bun, port, name, mode)))

        yield start


@pytest.fixture
def ours(port: int, name: str) -> Iterator[qclient.Queue]:
    with qclient.Queue(name, f"tcp://127.0.0.1:{port}") as queue:
        yield queue


def seen_by_javascript(expected: list[Any]) -> list[Any]:
    """The same where wide integers have been rounded to doubles."""
    match expected:
        case ["int", text] if abs(int(text)) > 2**53 - 1:
            return described(float(int(text)))
        case ["list", items]:
            return ["list", [seen_by_javascript(item) for item in items]]
        case ["map", pairs]:
            return ["map", [[key, seen_by_javascript(value)] for key, value in pairs]]
    return expected


def test_typescript_adds_and_python_runs(script: Callable[[str], Script], ours: qclient.Queue) -> None:
    producer = script("produce")
    added = producer.line()["added"]
    seen: dict[str, list[Any]] = {}

    def processor(job: qclient.JobContext) -> Any:
        seen[job.name] = described(job.data)
        if job.name == "broken":
            raise ValueError("broken here")
        if job.name == "slow":
            job.set_progress(25, "a quarter")
            job.set_progress(75)
        return job.data

    with qclient.Worker(ours, processor, handle_signals=False):
        report = producer.line()
    assert {kind: seen[kind] for kind in EXPECTED} == EXPECTED
    ended, read = report["ended"], report["read"]
    for kind, expected in EXPECTED.items():
        back = {"returned": seen_by_javascript(expected)}
        assert ended[kind] == back, kind
        assert read[kind] | back == read[kind] | {"state": "completed"}, kind
    assert ended["broken"] == {"failed": "ValueError: broken here"}
    assert read["broken"]["state"] == "failed"
    assert read["broken"]["reason"] == "ValueError: broken here"
    assert any("broken here" in line for line in read["broken"]["trace"])
    assert report["progress"] == [25, 75]
    assert ours.state(added["nested"]) == JobState.COMPLETED


def test_python_adds_and_typescript_runs(script: Callable[[str], Script], ours: qclient.Queue) -> None:
    floats = np.array([1.5, -2.25, 1e300])
    data: dict[str, Any] = {
        "array": {"v": floats, "strided": np.arange(6, dtype=np.int16)[::2], "swapped": floats.astype(">f8")},
        "wide": {"exact": 2**53 - 1, "wide": 2**60, "negative": -(2**62)},
        "when": {"at": datetime(2026, 3, 1, 12, 30, 0, 250_000, tzinfo=UTC)},
        "plain": {"nested": [1, {"deep": [None, True, "ä語😀"]}], "raw": b"\x00\xff"},
        "nothing": None,
    }
    jobs = {kind: ours.add(kind, value) for kind, value in data.items()}
    echoed = {kind: ours.add(kind, None) for kind in EXPECTED}  # the script has values for these names
    broken = ours.add("broken", {}, attempts=1)
    final = ours.add("final", {}, attempts=5)
    slow = ours.add("slow", {})
    worker = script("work")
    assert worker.line() == {"ready": True}
    ran = {}
    for _ in range(len(data) + len(EXPECTED) + 3):
        line = worker.line()
        ran[line["ran"]] = line["data"]
    assert ran["array"] == described(
        {
            "v": floats.tobytes(),
            "strided": np.array([0, 2, 4], np.int16).tobytes(),
            "swapped": floats.astype(">f8").tobytes(),
        }
    )
    for kind in ("wide", "when", "plain"):
        assert ran[kind] == seen_by_javascript(described(data[kind])), kind
    assert ran["nothing"] == ["null"]
    assert jobs["plain"].result(timeout=PATIENCE_S) == data["plain"]
    assert jobs["when"].result(timeout=PATIENCE_S) == data["when"]
    assert jobs["nothing"].result(timeout=PATIENCE_S) is None
    for kind, job in echoed.items():
        assert described(job.result(timeout=PATIENCE_S)) == EXPECTED[kind], kind
    with pytest.raises(qclient.JobFailedError, match="broken there"):
        broken.result(timeout=PATIENCE_S)
    assert broken.refresh().failed_reason == "broken there"
    assert "TypeError: broken there" in broken.stacktrace[0]
    assert any("interop.ts" in line for line in broken.stacktrace)
    with pytest.raises(qclient.JobFailedError, match="never again"):
        final.result(timeout=PATIENCE_S)
    assert final.refresh().attempts_made == 1
    assert slow.result(timeout=PATIENCE_S) == {}
    raw = ours.client.call("GetJob", {"id": slow.id})["job"]
    assert (raw["progress"], raw["progressMessage"]) == (75, "a quarter")


def test_workers_of_both_languages_share_a_queue(
    script: Callable[[str], Script], ours: qclient.Queue
) -> None:
    """Each job runs once, and both have had some."""
    worker = script("work")
    assert worker.line() == {"ready": True}
    here: list[str] = []
    there: list[str] = []
    both = threading.Event()

    def processor(job: qclient.JobContext) -> str:
        here.append(job.id)
        both.wait(PATIENCE_S)  # until the other one has had its share
        return "here"

    with qclient.Worker(ours, processor, handle_signals=False, concurrency=1, batch_size=1) as mine:
        assert mine.wait_ready(PATIENCE_S)
        jobs = ours.add_bulk([("shared", {"n": n}) for n in range(100)])
        there.append(worker.line()["ran"])
        both.set()
        results = [job.result(timeout=PATIENCE_S) for job in jobs]
    assert results.count("here") == len(here) == len(set(here)) >= 1
    assert [r for r in results if r != "here"] == [{"n": n} for n, r in enumerate(results) if r != "here"]
