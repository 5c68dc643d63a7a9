"""Case C038: values are read back equal in value and type, or refused by the call that takes them."""

from __future__ import annotations

import array
import datetime as dt
import enum
import json
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np

from qclient import (
    FlowProducer,
    JobFailedError,
    Node,
    Queue,
    QueueEvents,
    SerializationError,
    Worker,
    shutdown_engine,
)

ROWS = {
    row["id"]: row
    for row in json.loads((Path(__file__).parents[1] / "data/payloads.json").read_text("utf-8"))["items"]
}
BERLIN = dt.timezone(dt.timedelta(hours=1))


class Color(enum.IntEnum):
    RED = 1


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


MADE: dict[str, Callable[[], Any]] = {
    "nil": lambda: None, "true": lambda: True, "false": lambda: False, "zero": lambda: 0, "neg1": lambda: -1,
    "i53": lambda: 2**53 + 1, "i64max": lambda: 2**63 - 1, "i64min": lambda: -(2**63),
    "u64max": lambda: 2**64 - 1, "i65": lambda: 2**64, "fneg0": lambda: -0.0, "fnan": lambda: math.nan,
    "finf": lambda: math.inf, "ftiny": lambda: 5e-324, "fmax": lambda: 1.7976931348623157e308,
    "f03": lambda: 0.30000000000000004, "f1": lambda: 1.0, "sempty": lambda: "", "snul": lambda: "a\0b",
    "semoji": lambda: "\U0001f469\u200d\U0001f680", "srtl": lambda: "\u05e9\u05dc\u05d5\u05dd",
    "snfd": lambda: "e\u0301", "ssur": lambda: "\ud800", "s1m": lambda: "x" * 1048576, "bempty": lambda: b"",
    "ball": lambda: bytes(range(256)), "b1m": lambda: b"\xff" * 1048576, "lempty": list,
    "lmix": lambda: [1, "1", 1.0, True, None, b"1"], "ltuple": lambda: (1, 2), "dempty": dict,
    "dstr": lambda: {"": 1, "a.b": 2, "$x": 3, "__proto__": 4}, "dint": lambda: {1: "a", 2: "b"},
    "dmixed": lambda: {1: "a", "1": "b"}, "deep100": lambda: nested(100), "deep10k": lambda: nested(10_000),
    "wide": lambda: list(range(100_000)), "tuples_in_dict": lambda: {(1, 2): 3},
    "dtaware": lambda: dt.datetime(2026, 3, 29, 2, 30, 0, 123456, BERLIN),
    "dtnaive": lambda: dt.datetime(2026, 3, 29, 2, 30), "dec": lambda: Decimal("0.10"),
    "uuid": lambda: UUID(int=1), "set": lambda: {1, 2}, "enum": lambda: Color.RED,
    "ndf64": lambda: np.arange(6, dtype="float64").reshape(2, 3), "ndi64be": lambda: np.array([1, 2], ">i8"),
    "npf32": lambda: np.float32(0.1), "arr": lambda: array.array("d", [1.0, 2.0]),
    "mv": lambda: memoryview(b"abc"), "gen": lambda: (i for i in [1]), "lambda": lambda: lambda: 1,
    "self": endless,
}  # fmt: skip

REFUSED = "refused"


def same(found: Any, value: Any) -> bool:
    """Equal in value and type, at every depth."""
    if isinstance(value, (np.ndarray, np.generic)):
        return (
            type(found) is type(value)
            and found.dtype == value.dtype
            and found.shape == value.shape
            and found.tobytes() == value.tobytes()
        )
    if type(found) is not type(value):
        return False
    if isinstance(value, float):
        return (
            math.isnan(found)
            if math.isnan(value)
            else (found, math.copysign(1, found))
            == (
                value,
                math.copysign(1, value),
            )
        )
    if isinstance(value, dict):
        return list(map(repr, found)) == list(map(repr, value)) and all(
            same(found[key], one) for key, one in value.items()
        )
    if isinstance(value, list):
        while len(value) == 1:  # a deep one, without recursion
            if type(found) is not list or len(found) != 1:
                return False
            found, value = found[0], value[0]
            if not isinstance(value, list):
                return same(found, value)
        return (
            type(found) is list
            and len(found) == len(value)
            and all(same(one, other) for one, other in zip(found, value, strict=True))
        )
    return bool(found == value)


def judge(row_id: str, found: Any) -> str:
    """What became of a value: ``same``, another name that the row may expect, or an error."""
    value = MADE[row_id]()
    if same(found, value):
        return "same"
    if isinstance(value, tuple):
        return "list" if same(found, list(value)) else f"became {found!r}"
    if isinstance(value, enum.IntEnum):
        return "int" if same(found, int(value)) else f"became {found!r}"
    if isinstance(value, memoryview):
        return "bytes" if found == bytes(value) else f"became {found!r}"
    if isinstance(value, dt.datetime) and isinstance(found, dt.datetime) and value.tzinfo is not None:
        return "same" if found == value else f"became {found!r}"
    return f"became {str(found)[:80]} of {type(found).__name__}"


ALLOWED = {
    "same": {"same"},
    "same_nan": {"same"},
    "list": {"list"},
    "refuse": {REFUSED},
    "same_or_refuse": {"same", REFUSED},
    "int_or_refuse": {"int", REFUSED},
    "bytes_or_refuse": {"bytes", "same", REFUSED},
    "refuse_or_documented": {REFUSED},
}


def test_every_value_on_every_path(engine_url: str, name: str) -> None:
    assert MADE.keys() == ROWS.keys()
    outcomes: dict[str, dict[str, str]] = {row_id: {} for row_id in ROWS}
    ids: dict[tuple[str, str], str] = {}

    def attempt(row_id: str, way: str, send: Callable[[Any], str]) -> None:
        try:
            ids[row_id, way] = send(MADE[row_id]())
        except (SerializationError, TypeError, ValueError) as error:
            outcomes[row_id][way] = REFUSED if str(error) else "refused without a word"

    with Queue(name, engine_url) as queue, FlowProducer(engine_url) as flows:
        queue.pause()
        with QueueEvents(name, engine_url, types=["waiting"]) as events:
            for row_id in ROWS:

                def schedule(value: Any, row_id: str = row_id) -> str:
                    queue.schedules.upsert(f"{name}-{row_id}", every=3600, immediately=True, data=value)
                    return events.get(60).job_id

                attempt(row_id, "schedule", schedule)
        for row_id in ROWS:
            attempt(row_id, "add", lambda value: queue.add("n", value).id)
            attempt(row_id, "bulk", lambda value: queue.add_bulk([("n", 1), ("n", value)])[1].id)
            attempt(row_id, "flow", lambda value: flows.add(Node("n", {"v": value}, queue=name)).job.id)
        # What was refused has left nothing, and the connections go on.
        assert queue.counts().paused == len(ids) + sum(1 for _, way in ids if way == "bulk")
    if engine_url.startswith("sqlite"):
        shutdown_engine()
    with Queue(name, engine_url) as queue:
        for (row_id, way), job_id in ids.items():
            data = queue.job(job_id).data
            outcomes[row_id][way] = judge(row_id, data["v"] if way == "flow" else data)
        queue.obliterate()
        for schedule_ in queue.schedules.list():
            queue.schedules.remove(schedule_.id)

        results = {row_id: queue.add("n", row_id, attempts=1) for row_id in ROWS}
        with Worker(queue, lambda job: MADE[job.data](), concurrency=4):
            for row_id, job in results.items():
                try:
                    outcomes[row_id]["result"] = judge(row_id, job.result(60))
                except JobFailedError as error:
                    told = str(error).startswith("result cannot be stored: ")
                    outcomes[row_id]["result"] = REFUSED if told else str(error)
    for row_id, by_way in outcomes.items():
        assert len(by_way) == 5
        assert len(set(by_way.values())) == 1, (row_id, by_way)
        assert set(by_way.values()) <= ALLOWED[ROWS[row_id]["expect"]], (row_id, by_way)
