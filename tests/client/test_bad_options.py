"""Options of odd types and extreme numbers: refused before anything is sent, or taken by the engine."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import qclient
from qclient import (
    Backoff,
    ConfigError,
    Counts,
    Debounce,
    Dedup,
    FlowProducer,
    Group,
    GroupLimits,
    Job,
    JobContext,
    Keep,
    NotFoundError,
    Queue,
    QueueEvents,
    RateLimit,
    Repeat,
    StateError,
    Worker,
    shutdown_engine,
)
from qclient.options import OPTION_NAMES
from qclient.settings import WorkerOptions
from qcore.errors import CommandError, JobControl, SerializationError

HUGE = 10**400
ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1.5,
    -0.0,
    2**31,
    2**53 - 1,
    2**53,
    2**63,
    2**64,
    10**30,
    HUGE,
    -HUGE,
    1e308,
    5e-324,
    math.nan,
    math.inf,
    -math.inf,
    "",
    "a",
    "\0",
    "\ud800",
    "x" * 300,
    b"a",
    [],
    [""],
    ["x" * 300],
    ["\ud800"],
    [1],
    {},
    {"a": 1},
    object(),
    timedelta.max,
    timedelta.min,
    timedelta(seconds=5),
    datetime.max,
    datetime.max.replace(tzinfo=UTC),
    datetime.min.replace(tzinfo=UTC),
    Keep,
    lambda: None,
)
REFUSED = (ConfigError, TypeError, SerializationError)
#: What only the engine can know.
UNKNOWN: dict[str, tuple[type[Exception], ...]] = {
    "depends_on": (NotFoundError,),
    "parent": (NotFoundError,),
    "on_child_failure": (NotFoundError,),
}


@pytest.mark.parametrize("option", sorted(OPTION_NAMES))
def test_whatever_an_option_gets(option: str) -> None:
    shutdown_engine()
    with Queue("q", "memory://") as queue:
        for value in ODD:
            more: dict[str, Any] = {"parent": "p"} if option == "on_child_failure" else {}
            for add in (
                lambda: queue.add("n", 1, **{option: value}, **more),  # noqa: B023
                lambda: queue.add_bulk([("n", 1, {option: value, **more})]),  # noqa: B023
            ):
                before = queue.counts()
                try:
                    add()
                except (*REFUSED, *UNKNOWN.get(option, ())):
                    assert queue.counts().total <= before.total  # some have run out of time
        assert queue.add("n").state == "waiting"  # and it is none the worse
        assert queue.jobs()
    shutdown_engine()


VALUES: dict[Callable[..., Any], dict[str, Any]] = {
    Dedup: {"id": "k", "ttl": 5},
    Debounce: {"id": "d", "wait": 5},
    Group: {"id": "g"},
    Keep: {"count": 1},
    Repeat: {"every": 5},
    RateLimit: {"max": 1, "per": 1},
    GroupLimits: {"concurrency": 1},
    Backoff.exponential: {"base": 1},
    Backoff.fixed: {"delay": 1},
}
_TAKEN_AS = {
    Dedup: "dedup",
    Debounce: "debounce",
    Group: "group",
    Keep: "remove_on_complete",
    Repeat: "repeat",
}


@pytest.mark.parametrize("make", VALUES, ids=lambda make: make.__name__)
def test_whatever_a_value_gets(make: Callable[..., Any]) -> None:
    shutdown_engine()
    with Queue("q", "memory://") as queue:
        for name in inspect.signature(make).parameters:
            for odd in ODD:
                try:
                    value = make(**{**VALUES[make], name: odd})
                except REFUSED:
                    continue
                if isinstance(value, RateLimit):
                    queue.limits.set_rate(value.max, value.per)
                    queue.limits.clear_rate()
                elif isinstance(value, GroupLimits):
                    queue.client.call("PULL", {"queue": "q", "owner": "o", "group": value.to_wire()})
                else:
                    option = _TAKEN_AS.get(make, "backoff")  # type: ignore[call-overload]
                    # Whether anything is left to run is judged by the engine.
                    with contextlib.suppress(CommandError, SerializationError):
                        queue.add("n", **{option: value})  # type: ignore[arg-type]
    shutdown_engine()


TOGETHER: dict[str, Any] = {
    "priority": 1.5,
    "delay": 5,
    "run_at": datetime(2026, 1, 1, tzinfo=UTC),
    "attempts": 5,
    "backoff": Backoff.exponential(),
    "timeout": 5,
    "ttl": 3600,
    "stall_timeout": 5,
    "job_id": "own",
    "lifo": True,
    "durable": True,
    "remove_on_complete": Keep(count=1),
    "remove_on_fail": 5,
    "timestamp": datetime.now(UTC),
    "stack_trace_limit": 5,
    "tags": ["a"],
    "depends_on": ["there"],
    "allow_unknown_dependencies": True,
    "parent": "there",
    "on_child_failure": "ignore",
    "dedup": "key",
    "debounce": Debounce("d", wait=5),
    "group": Group("g", priority=3),
    "repeat": Repeat(cron="0 * * * *"),
    "keep_logs": 5,
    "size_limit": 100,
}


def test_what_two_options_say_together_is_judged_before_it_is_sent() -> None:
    assert TOGETHER.keys() == OPTION_NAMES
    taken = 0
    shutdown_engine()
    with Queue("q", "memory://") as queue:
        for first, second in itertools.combinations(sorted(OPTION_NAMES), 2):
            options = {name: TOGETHER[name] for name in (first, second)}
            if {"depends_on", "parent"} == options.keys():
                continue  # a circle, which only the engine sees
            queue.obliterate(force=True)
            queue.add("n", job_id="there")
            before = queue.counts()
            said = ""
            try:
                queue.add("n", **options)
                taken += 1
            except (ConfigError, TypeError) as refusal:
                said = str(refusal)
                assert queue.counts() == before
            for wire in ("uniqueKey", "debounceId", "groupId", "jobId", "parentId", "dependsOn"):
                assert wire not in said
    assert taken > 200
    shutdown_engine()


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"repeat": Repeat(every=5), "job_id": "a"}, ConfigError, "repeat and job_id cannot"),
        ({"repeat": Repeat(every=5), "depends_on": ["a"]}, ConfigError, "repeat and depends_on cannot"),
        ({"dedup": "a", "debounce": Debounce("b", wait=1)}, ConfigError, "dedup and debounce cannot"),
        ({"group": "g", "priority": 1.5}, ConfigError, "of a group must be a whole number .*, not 1.5"),
        ({"group": "g", "priority": -1}, ConfigError, "of a group must be a whole number .*, not -1"),
        ({"job_id": "a", "depends_on": ["a"]}, ConfigError, "depends_on names the job itself: 'a'"),
        ({"job_id": "a", "parent": "a"}, ConfigError, "parent names the job itself: 'a'"),
        ({"priority": HUGE}, ConfigError, "priority must be at most"),
        ({"delay": HUGE}, ConfigError, "delay must be at most"),
        ({"delay": 10**30}, ConfigError, "delay must be at most"),
        ({"attempts": 10**30}, ConfigError, "attempts must be 1 to 2147483647"),
        ({"tags": ["x" * 300]}, ConfigError, "300 characters; at most 256"),
        ({"tags": None}, TypeError, "tags must be a list of strings"),
        ({"depends_on": None}, TypeError, "depends_on must be a list of jobs or ids"),
        ({"depends_on": [""]}, ConfigError, "must not be empty"),
        ({"size_limit": 0}, ConfigError, "size_limit must be at least 1"),
        ({"size_limit": 3}, SerializationError, "its size_limit is 3"),
        ({"job_id": "\ud800"}, SerializationError, "surrogate"),
        ({"on_child_failure": "fail"}, ConfigError, "on_child_failure needs a parent"),
        ({"parent": "nope"}, NotFoundError, "Parent job not found: nope"),
        ({"parent": "done"}, StateError, "not linkable"),
    ],
)
def test_what_is_said(engine_url: str, name: str, options: dict[str, Any], error: type, said: str) -> None:
    with Queue(name, engine_url) as queue:
        if options.get("parent") == "done":
            done = queue.add("n")
            taken = queue.client.call("PULL", {"queue": name, "owner": "o"})
            queue.client.call("ACK", {"id": done.id, "token": taken["token"]})
            options = {"parent": done}
        before = queue.counts()
        with pytest.raises(error, match=said):
            queue.add("n", "four", **options)
        with pytest.raises(error, match=said):
            queue.add_bulk([("n", "four", options)])
        assert queue.counts() == before


def test_a_parent_may_come_before_in_the_batch_and_may_be_gone_when_the_child_is_there(
    engine_url: str, name: str
) -> None:
    with Queue(name, engine_url) as queue:
        child = {"name": "n", "job_id": f"{name}-c", "parent": f"{name}-p"}
        parent = {"name": "n", "job_id": f"{name}-p"}
        with pytest.raises(NotFoundError, match=r"jobs\[0\]: Parent job not found"):
            queue.add_bulk([child, parent])
        assert len(queue) == 0
        made = queue.add_bulk([parent, child])
        assert queue.counts() == Counts(waiting=1, waiting_children=1)
        assert made[1].remove_child_dependency()
        made[0].remove()
        assert queue.add(**child) == made[1]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            {"cron": "61 * * * *"},
            r"Invalid cron expression: minute must be 0-59, not 61, in '61 \* \* \* \*'",
        ),
        ({"cron": "0 0 30 2 *"}, "Invalid cron expression: .* never comes due"),
        ({"cron": "* * * * *", "tz": "Mars/Base"}, "Invalid cron expression: unknown time zone 'Mars/Base'"),
        (
            {"every": 5, "start": datetime(2027, 1, 2, tzinfo=UTC), "end": datetime(2027, 1, 1, tzinfo=UTC)},
            "end is before start",
        ),
    ],
)
def test_a_repetition_is_judged_when_it_is_made(made: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Repeat(**made)


# --- the reference ------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "python.md"
_CALL = re.compile(r"`(?:queue\.)?([A-Za-z_.]+)\(([^()`]*)\)")


def _calls(*names: str) -> dict[str, str]:
    found = {name: args for name, args in _CALL.findall(PAGE.read_text()) if name in names}
    assert found.keys() == set(names)
    return found


def test_the_page_writes_values_as_they_are_called() -> None:
    written = _calls("Dedup", "Debounce", "Group", "Keep", "Repeat", "Backoff.fixed", "Backoff.exponential")
    for name, args in written.items():
        make: Any = qclient
        for part in name.split("."):
            make = getattr(make, part)
        bare = re.sub(r": [^,)]+| = [^,)]+", "", str(inspect.signature(make, eval_str=False)).split(" ->")[0])
        assert f"({args})" == bare, name


def test_the_page_lists_what_workers_and_processors_have() -> None:
    (text,) = re.findall(r"^## Worker\n(.*?)^## ", PAGE.read_text(), flags=re.M | re.S)
    assert set(re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]+ \|$", text, flags=re.M)) == set(
        WorkerOptions.__annotations__
    )
    for owner in (Worker, JobContext):
        public = {name for name in dir(owner) if not name.startswith("_")} - {"id", "queue"}
        assert public <= set(re.findall(r"`(\w+)", text))
    assert {kind.__name__ for kind in JobControl.__subclasses__()} <= set(re.findall(r"`(\w+)", text))


@pytest.mark.parametrize(
    ("heading", "owner"),
    [
        ("Queue", Queue),
        ("Job", Job),
        ("Worker", Worker),
        ("Worker", JobContext),
        ("Flows", FlowProducer),
        ("Events", QueueEvents),
    ],
)
def test_the_page_names_methods_and_their_arguments(heading: str, owner: type) -> None:
    section = re.split(r"^## ", PAGE.read_text(), flags=re.M)
    (text,) = [part for part in section if part.startswith(heading + "\n")]
    methods = [
        call
        for line in text.splitlines()
        if line.startswith("|")
        for call in _CALL.findall(line.split("|")[1])
    ]
    for name, args in methods:
        if name in dir(owner):
            parameters = inspect.signature(getattr(owner, name)).parameters
            by_name = False
            for part in (part.strip() for part in args.split(",") if part):
                if part.startswith("*"):
                    by_name = True
                    if part == "*":
                        continue
                parameter = parameters[part.split("=")[0].strip("*")]
                assert by_name or parameter.kind is parameter.POSITIONAL_OR_KEYWORD, (name, part)
