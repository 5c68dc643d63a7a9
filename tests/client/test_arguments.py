"""Every argument of every public call: what is not of its type is refused by its name, and asks nobody."""

from __future__ import annotations

import collections.abc
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from qclient import (
    TLS,
    Backoff,
    ConfigError,
    Debounce,
    Dedup,
    FlowProducer,
    Group,
    GroupLimits,
    Job,
    JobContext,
    Keep,
    Node,
    Queue,
    QueueEvents,
    QueueGroup,
    RateLimit,
    Repeat,
    Worker,
    verify_webhook,
)
from qclient.client import Client
from qclient.settings import worker_settings
from qclient.url import resolve
from qcore.errors import FlowError, SerializationError, TransportError

#: Nobody listens there: a call that comes so far has passed its checks.
NOBODY = "tcp://127.0.0.1:1"
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 2**70, math.nan, math.inf, "", "a", "x" * 300, "x" * 70_000, "\ud800", b"a", [],
    ["a"], [1], {}, {"a": 1}, object(), timedelta(seconds=5), timedelta(-1), datetime(2026, 1, 1),
    datetime(2026, 1, 1, tzinfo=UTC), lambda job: None, int,
)  # fmt: skip


def _noop(job: Any) -> None:
    pass


def _worker(**options: Any) -> Worker:
    return Worker("q", _noop, NOBODY, **options)


_worker.__signature__ = inspect.signature(worker_settings)  # type: ignore[attr-defined]
_QUEUE = Queue("q", NOBODY)
_JOB = Job(Client(resolve(NOBODY)), "q", "j")
#: What is made, with what it needs.
MADE: dict[Callable[..., Any], dict[str, Any]] = {
    Queue: {"name": "q", "url": NOBODY},
    QueueEvents: {"queue": "q", "url": NOBODY},
    QueueGroup: {"namespace": "n", "url": NOBODY},
    FlowProducer: {"url": NOBODY},
    Worker: {"queue": "q", "processor": _noop, "url": NOBODY},
    _worker: {},
    TLS: {},
    verify_webhook: {"headers": {}, "body": b"", "secret": "s"},
    RateLimit: {"max": 1},
    GroupLimits: {"concurrency": 1},
    Repeat: {"every": 1},
    Backoff.fixed: {"delay": 1},
    Backoff.exponential: {},
    Keep: {"count": 1},
    Dedup: {"id": "k", "ttl": 1},
    Debounce: {"id": "d", "wait": 1},
    Group: {"id": "g"},
    Node: {"name": "n", "queue": "q"},
}
#: Whose methods are called, and what arguments need that have no default.
OWNERS: tuple[Any, ...] = (
    _QUEUE, _QUEUE.dlq, _QUEUE.limits, _QUEUE.schedules, _QUEUE.stall, _QUEUE.dedup, _QUEUE.webhooks,
    _QUEUE.group("g"), _JOB, FlowProducer(NOBODY), QueueGroup("n", NOBODY), QueueEvents("q", NOBODY),
    _worker(),
)  # fmt: skip
NEEDED: dict[str, Any] = {
    "data": 1, "delay": 1, "event": "completed", "events": ["job.failed"], "id": "i", "job_id": "j",
    "job_ids": ["j"], "jobs": [("n", 1)], "key": "k", "listener": _noop, "max": 5, "max_length": 5,
    "message": "m", "n": 5, "name": "n", "node": Node("n", queue="q"), "nodes": [Node("n", queue="q")],
    "older_than": 5, "priority": 1, "processor": _noop, "progress": 5, "root": Node("n", queue="q"),
    "then": Node("t", queue="q"), "url": "http://example.com/", "for_": 5, "duration": 5, "kind": "completed",
    "state": "failed",
}  # fmt: skip
#: With these the other arguments are looked at as well.
BESIDE = {
    ("Schedules", "upsert"): {"every": 5},
    ("QueueEvents", "on"): {"name": "completed"},
}
#: They take no arguments, or what they do is no question of arguments.
LEFT_OUT = {"close", "aclose", "start", "run", "arun", "client", "wait_ready", "wait_closed"}
#: An argument may be called something else in what is said of it.
CALLED = {
    "base": "backoff", "callback": "listener", "children": "child", "config": "a", "events": "event",
    "id": "id", "kind": "completed", "types": "event", "url": "url", "n": "concurrency", "node": "Node",
    "nodes": "Node", "then": "Node", "root": "Node", "jobs": "job", "queue": "queue", "name": "name",
    "namespace": "name", "states": "state", "job_ids": "job_id", "for_": "hold", "state": "jobs",
    "event": "event", "duration": "duration", "every": "every", "cron": "cron",
}  # fmt: skip


def calls() -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    for make, needed in MADE.items():
        yield getattr(make, "__qualname__", str(make)), make, needed
    for owner in OWNERS:
        for name in dir(owner):
            method = getattr(owner, name) if callable(getattr(type(owner), name, None)) else None
            if method is None or name.startswith("_") or name in LEFT_OUT:
                continue
            needed = {
                parameter.name: NEEDED[parameter.name]
                for parameter in inspect.signature(method).parameters.values()
                if parameter.default is parameter.empty
                and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            }
            yield (
                f"{type(owner).__name__}.{name}",
                method,
                needed | BESIDE.get((type(owner).__name__, name), {}),
            )


CALLS = {name: (call, needed) for name, call, needed in calls()}


def hint(call: Callable[..., Any], name: str) -> Any:
    """The annotation of an argument."""
    plain = worker_settings if call is _worker else call
    holder = plain.__init__ if inspect.isclass(plain) else plain
    return typing.get_type_hints(holder)[name]


def fits(value: Any, expected: Any) -> bool:
    """Whether a value is of an annotation: what is not must be refused."""
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if expected is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in arguments)
    if origin is typing.Literal:
        return value in arguments
    if expected is type(None):
        return value is None
    if expected is float:
        return type(value) in (int, float)
    if expected is int:
        return type(value) is int
    if expected is bytes:
        return isinstance(value, (bytes, bytearray, memoryview))
    if origin is collections.abc.Callable:
        return callable(value)
    if origin in (collections.abc.Iterable, collections.abc.Mapping):
        maps = origin is collections.abc.Mapping
        return isinstance(value, Mapping) if maps else type(value) in (list, tuple)
    return isinstance(value, origin or expected)


def arguments() -> Iterator[tuple[str, str]]:
    for name, (call, _) in CALLS.items():
        for parameter in inspect.signature(call).parameters.values():
            if parameter.kind is not parameter.VAR_KEYWORD:
                yield name, parameter.name


@pytest.mark.parametrize(("name", "argument"), list(arguments()))
def test_what_an_argument_gets(name: str, argument: str) -> None:
    call, needed = CALLS[name]
    signature = inspect.signature(call)
    expected = hint(call, argument)
    several = signature.parameters[argument].kind is inspect.Parameter.VAR_POSITIONAL
    refused: dict[str, Any] = {}
    for odd in ODD:
        bound = signature.bind_partial()
        given = {**needed, argument: (odd,) if several else odd}
        # In the order of the signature: that is how they become arguments by place.
        bound.arguments.update({one: given[one] for one in signature.parameters if one in given})
        try:
            made = call(*bound.args, **bound.kwargs)
            if inspect.isgenerator(made):
                next(made)
        except (ConfigError, TypeError, SerializationError, FlowError) as refusal:
            refused[str(refusal)] = odd
            continue
        except (TransportError, StopIteration):
            pass
        assert fits(odd, expected), f"{odd!r} passed for {expected}"
    words = (
        argument,
        argument.replace("_", " "),
        CALLED.get(argument, argument),
        "lone surrogate",
        "unknown event",
    )
    for said, odd in refused.items():
        assert any(word in said for word in words), (odd, said)


@pytest.mark.parametrize("wait", ["wait_ready", "wait_closed"])
def test_a_wait_that_cannot_end_is_refused(wait: str) -> None:
    for odd in ("", "5", -1, math.nan, math.inf, [], True):
        with pytest.raises((ConfigError, TypeError), match="timeout must"):
            getattr(_worker(), wait)(odd)
    with pytest.raises(TypeError, match="timeout must"):
        QueueEvents("q", NOBODY).wait_ready("5")  # type: ignore[arg-type]


def test_what_a_running_job_reports_is_looked_at(engine_url: str, name: str) -> None:
    """It is not waited for, so what the engine refused would be lost."""
    seen: list[str] = []

    def report(job: JobContext) -> None:
        for call, wrong in (
            (job.set_progress, ("half",)),
            (job.set_progress, (math.nan,)),
            (job.set_progress, (5, 5)),
            (job.log, (5,)),
            (job.log, ("\ud800",)),
            (job.log, ("x" * 70_000,)),
            (job.log, ("line", 5)),
            (job.sleep, ("1",)),
            (job.sleep, (math.nan,)),
            (job.sleep, (1e30,)),
        ):
            with pytest.raises((TypeError, ConfigError)) as refused:
                call(*wrong)
            seen.append(str(refused.value))
        job.log("fine")
        job.set_progress(40, "half")
        job.sleep(-1)

    errors: list[Any] = []
    with Queue(name, engine_url) as queue:
        job = queue.add("n", attempts=1)
        with Worker(queue, report) as worker:
            worker.on("error", lambda error, what: errors.append(error))
            job.result(60)
        assert [line.message for line in job.logs()] == ["fine"]
    assert errors == []
    assert seen == [
        "progress must be a number, not str",
        "progress must be finite, not nan",
        "message must be a string, not int",
        "message must be a string, not int",
        "message holds a lone surrogate, which UTF-8 cannot carry",
        "message has 70000 characters; at most 65536",
        "level must be a string, not int",
        "seconds must be a number, not str",
        "seconds must be finite, not nan",
        "seconds must be at most 3.1536e+09 s, not 1e+30",
    ]
