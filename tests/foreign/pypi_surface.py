"""Drives the public surface of the PyPI package ``bunqueue-client`` and gives what its user sees.

Each section takes a :class:`Place` and returns plain values. Ids are numbered by first
sight and times are "ms", so that the same calls against two servers can be compared.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import bunqueue
from msgpack import ExtType

UNDEFINED = ExtType(0, b"\0")
PATIENCE_S = 30.0
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

Section = Callable[["Place"], Any]
SECTIONS: dict[str, Section] = {}


def section(function: Section) -> Section:
    SECTIONS[function.__name__] = function
    return function


def seen(port: int) -> dict[str, Any]:
    """What every section saw of the server at this port; a section that raised says what."""
    out: dict[str, Any] = {}
    for name, function in SECTIONS.items():
        with contextlib.ExitStack() as stack:
            place = Place(port, name.replace("_", "-"), stack)
            try:
                out[name] = Plain(place.run).of(function(place))
            except Exception as error:
                out[name] = {"threw": repr(error)}
    return out


class Plain:
    """Values without what differs from run to run."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._ids: dict[str, str] = {}

    def text(self, value: str) -> str:
        value = value.replace(self._run, "RUN")
        return _ID.sub(lambda found: self._ids.setdefault(found[0], f"id{len(self._ids) + 1}"), value)

    def of(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            left_out = ("_state", "duration", "lastHeartbeat")
            kept = {k: v for k, v in value.items() if k not in left_out and v != UNDEFINED}
            return {self.text(str(k)): self.of(v) for k, v in kept.items()}
        if isinstance(value, bytes):
            return {"bytes": value.hex()}
        if isinstance(value, list | tuple) and value != UNDEFINED:
            return [self.of(v) for v in value]
        if isinstance(value, float | int) and not isinstance(value, bool) and 1.5e12 < value < 4e12:
            return "ms"
        if isinstance(value, BaseException):
            return [type(value).__name__, self.text(str(value))]
        if isinstance(value, bunqueue.Job):
            return self.of(job_view(value))
        # How the reference writes "undefined", which this client hands on; ours leaves the key out.
        return None if value == UNDEFINED else value


def job_view(job: bunqueue.Job) -> dict[str, Any]:
    raw = dict(job.raw)
    # Of traces only that there are some: they name files.
    raw["stacktrace"] = bool(raw.get("stacktrace"))
    names = "name priority attempts max_attempts custom_id tags group_id parent_id children_ids depends_on"
    return {"raw": raw, **{name: getattr(job, name) for name in [*names.split(), "progress", "state"]}}


class Place:
    """A queue of its own on one server, and what a section needs around it."""

    def __init__(self, port: int, name: str, stack: contextlib.ExitStack) -> None:
        self.run = f"r{os.getpid()}{uuid.uuid4().hex[:8]}"
        self.name = f"{self.run}-{name}"
        self.at: dict[str, Any] = {"host": "127.0.0.1", "port": port}
        self.stack = stack
        self.queue = stack.enter_context(bunqueue.Queue(self.name, **self.at))

    def worker(self, processor: Callable[[bunqueue.Job], Any], name: str = "", **options: Any) -> Ends:
        options = {"concurrency": 1, "batch_size": 1, "poll_timeout_ms": 500, **options}
        worker = bunqueue.Worker(name or self.name, processor, autorun=False, **self.at, **options)
        self.stack.callback(worker.close, 10)
        return Ends(worker)

    def flow(self) -> bunqueue.FlowProducer:
        return self.stack.enter_context(bunqueue.FlowProducer(**self.at))


class Ends:
    """A worker, and what it told."""

    def __init__(self, worker: bunqueue.Worker) -> None:
        self.worker = worker
        self.told: list[list[Any]] = []
        self._more = threading.Condition()
        worker.on("completed", lambda job, result: self._tell("completed", job, result))
        worker.on("failed", lambda job, error: self._tell("failed", job, str(error)))

    def _tell(self, kind: str, job: bunqueue.Job, what: Any) -> None:
        with self._more:
            self.told.append([kind, job.raw["name"], what])
            self._more.notify_all()

    def wait(self, n: int) -> list[list[Any]]:
        """Run until n jobs have ended."""
        self.worker.start()
        with self._more:
            assert self._more.wait_for(lambda: len(self.told) >= n, PATIENCE_S), self.told
            return list(self.told)


def until(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not there():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.01)


def tried(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    try:
        return call(*args, **options)
    except bunqueue.BunqueueError as error:
        return error


# --- adding and looking --------------------------------------------------------------------------


@section
def connection(place: Place) -> Any:
    link = place.queue.connection
    hello = link.hello()
    place.queue.wait_until_ready()
    return [place.queue.ping(), hello["protocolVersion"], hello["capabilities"], hello["server"]]


@section
def add(place: Place) -> Any:
    q = place.queue
    a = q.add("plain", {"n": 1, "deep": {"list": [1, None, "ä語", b"\x00\xff"]}})
    b = q.add(
        "all",
        {"n": 2},
        priority=7,
        attempts=5,
        backoff={"type": "fixed", "delay": 1234},
        ttl=600_000,
        timeout=60_000,
        job_id=f"{place.run}-own",
        tags=["x", "y"],
        lifo=True,
        remove_on_complete=True,
        remove_on_fail=True,
        stall_timeout=40_000,
        durable=True,
        stack_trace_limit=3,
        keep_logs=4,
        size_limit=5000,
    )
    c = q.add("late", [1, 2], delay=3_600_000)
    d = q.add("grouped", "text", group_id="g1")
    again = q.add("all", {"n": 3}, job_id=f"{place.run}-own")
    jobs = [q.get_job(job.id) for job in (a, b, c, d)]
    states = [q.get_state(job.id) for job in (a, b, c, d)]
    found = [q.get_job_by_custom_id(f"{place.run}-own"), q.get_job_by_custom_id("nobody"), q.get_job("no")]
    return [jobs, states, again.id == b.id, found, q.get_state("nobody"), q.get_result(a.id)]


@section
def refusals(place: Place) -> Any:
    q = place.queue
    bad = bunqueue.Queue("no good!", connection=q.connection)
    calls: dict[str, Callable[[], Any]] = {
        "queue": lambda: bad.add("x"),
        "name": lambda: q.add(""),
        "long": lambda: q.add("x" * 300),
        "big": lambda: q.add("x", {"text": "x" * (11 << 20)}),
        "bulk": lambda: q.add_bulk([{"name": "a"}, {"name": ""}]),
        "depends": lambda: q.add("x", depends_on=["nobody"]),
        "remove": lambda: q.remove("nobody"),
        "discard": lambda: q.discard("nobody"),
        "promote": lambda: q.promote_job("nobody"),
        "retry": lambda: q.retry_job("nobody"),
        "update": lambda: q.update_job_data("nobody", {}),
        "progress": lambda: q.update_job_progress("nobody", 1),
        "priority": lambda: q.change_job_priority("nobody", 1),
        "delay": lambda: q.change_job_delay("nobody", 1),
        "later": lambda: q.move_job_to_delayed("nobody", 1),
        "lock": lambda: q.extend_job_lock("nobody", "t", 1000),
        "completed": lambda: q.move_job_to_completed("nobody", 1),
        "failed": lambda: q.move_job_to_failed("nobody", "x"),
        "log": lambda: q.add_job_log("nobody", "x"),
        "wait": lambda: q.wait_for_job("nobody", 50),
        "cron": lambda: q.upsert_job_scheduler("x", {}),
        "no cron": lambda: q.remove_job_scheduler("nobody"),
        "hook": lambda: q.add_webhook("http://127.0.0.1/", ["job.completed"]),
        "hook event": lambda: q.add_webhook("https://example.com/", ["job.nonsense"]),
        "no hook": lambda: q.remove_webhook("nobody"),
        "get progress": lambda: q.get_progress("nobody"),
        "unlink": lambda: q.remove_child_dependency("nobody"),
    }
    return {name: tried(call) for name, call in calls.items()}


@section
def bulk(place: Place) -> Any:
    q = place.queue
    later = {9: 600_000, 19: 600_000}
    jobs = [
        {"name": f"n{i % 3}", "data": {"i": i}, "priority": i % 4, "delay": later.get(i, 0)}
        for i in range(20)
    ]
    ids = q.add_bulk(jobs)
    more = q.add_bulk([{"name": "own", "job_id": f"{place.run}-b"}] * 2)

    def numbers(found: list[bunqueue.Job]) -> list[Any]:
        return [[job.raw["name"], (job.data or {}).get("i")] for job in found]

    return {
        "ids": [len(set(ids)), len(set(more))],
        "counts": q.get_job_counts(),
        "count": q.count(),
        "priorities": q.get_counts_per_priority(),
        "each": [
            q.get_waiting_count(),
            q.get_prioritized_count(),
            q.get_delayed_count(),
            q.get_active_count(),
            q.get_completed_count(),
            q.get_failed_count(),
            q.get_waiting_children_count(),
        ],
        "waiting": numbers(q.get_waiting()),
        "page": numbers(q.get_waiting(1, 3)),
        "delayed": numbers(q.get_delayed()),
        "prioritized": numbers(q.get_prioritized()),
        "all": numbers(q.get_jobs()),
        "two": numbers(q.get_jobs(["waiting", "delayed"], 1, 4)),
        "none": [q.get_active(), q.get_completed(), q.get_failed(), q.get_waiting_children()],
        "listed": place.name in q.list_queues(),
    }


@section
def change(place: Place) -> Any:
    q = place.queue
    job = q.add("j", {"v": 1}, delay=600_000)
    q.update_job_data(job.id, {"v": 2})
    q.change_job_priority(job.id, 9)
    q.change_job_delay(job.id, 500_000)
    changed = q.get_job(job.id)
    found = q.get_job(job.id)
    assert found is not None
    found.update_data([3])
    found.change_priority(4, lifo=True)
    found.change_delay(400_000)
    again = q.get_job(job.id)
    found.promote()
    promoted = found.get_state()
    ids = q.add_bulk([{"name": "d", "delay": 600_000 + i} for i in range(4)])
    some = [q.promote_jobs(2), q.promote_jobs()]
    q.move_job_to_delayed(ids[0], 300_000)
    q.move_job_to_wait(ids[0])
    q.remove(ids[1])
    q.cancel(ids[2])
    q.discard(ids[3])
    states = [q.get_state(i) for i in ids]
    found.retry()
    found.remove()
    return [changed, again, promoted, some, states, found.get_state(), q.get_job_counts()]


@section
def control(place: Place) -> Any:
    q = place.queue
    seen = [q.is_paused()]
    q.pause()
    seen.append(q.is_paused())
    q.add_bulk([{"name": "a"}, {"name": "b", "priority": 3}])
    counts = q.get_job_counts()
    paused = [job.raw["name"] for job in q.get_jobs("paused")]
    q.resume()
    seen.append(q.is_paused())
    drained = q.drain()
    q.add_bulk([{"name": "x"}] * 3)
    cleaned = [q.clean(3_600_000), q.clean(0, 2), q.clean(0, 10, "completed")]
    q.add("y")
    q.obliterate()
    return [seen, counts, paused, drained, cleaned, q.get_job_counts(), q.count()]


# --- workers -------------------------------------------------------------------------------------


@section
def worker(place: Place) -> Any:
    q = place.queue
    results: list[Any] = [{"a": 1}, None, 0, "", False, [1, [2]], "text", b"\x00\xff", 1.5]
    ids = q.add_bulk([{"name": f"j{i}", "data": {"i": i}} for i in range(len(results))])
    told: list[Any] = []

    def run(job: bunqueue.Job) -> Any:
        told.append(["runs", job.raw["name"], job.data, job.attempts, job.get_state()])
        job.update_progress(50, "half")
        job.log(f"line of {job.data['i']}", "warn")
        job.heartbeat()
        job.extend_lock(60_000)
        told.append(q.get_progress(job.id))
        return results[job.data["i"]]

    ends = place.worker(run)
    ends.worker.on("active", lambda job: told.append(["active", job.raw["name"]]))
    ends.worker.on("progress", lambda job, progress: told.append(["progress", progress]))
    drained = threading.Event()
    ends.worker.on("drained", lambda *args: drained.set())
    ended = ends.wait(len(results))
    assert drained.wait(PATIENCE_S)
    workers = q.get_workers()
    mine = [w for w in workers if place.name in w["queues"]]
    shown = [[w["concurrency"], w["status"], len(mine), sorted(w)] for w in mine]
    jobs = [q.get_job(i) for i in ids]
    back = [q.get_result(i) for i in ids]
    logs = [[(line["level"], line["message"]) for line in q.get_job_logs(i)] for i in ids]
    waited = [q.wait_for_job(ids[0], 1000), q.wait_job_until_finished(ids[6])]
    return [told, ended, jobs, back, logs, waited, shown, q.get_job_counts()]


@section
def concurrency(place: Place) -> Any:
    q = place.queue
    q.add_bulk([{"name": "j", "data": {"i": i}} for i in range(150)])
    lock, now, most = threading.Lock(), 0, 0
    ran: list[int] = []

    def run(job: bunqueue.Job) -> int:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
            ran.append(job.data["i"])
        time.sleep(0.002)
        with lock:
            now -= 1
        return int(job.data["i"]) * 2

    ends = place.worker(run, concurrency=8, batch_size=16, ack_batch={"max_size": 10, "max_delay_ms": 2})
    ended = ends.wait(150)
    until(lambda: q.get_job_counts()["completed"] == 150)
    return [1 < most <= 8, sorted(ran) == list(range(150)), sum(e[2] for e in ended)]


@section
def retries(place: Place) -> Any:
    q = place.queue
    ids = q.add_bulk(
        [
            {"name": "flaky", "attempts": 3, "backoff": {"type": "fixed", "delay": 2}},
            {"name": "doomed", "attempts": 2, "backoff": 1},
            {"name": "final", "attempts": 5},
            {"name": "gone", "attempts": 1, "remove_on_fail": True},
        ]
    )
    tries: dict[str, int] = {}

    def run(job: bunqueue.Job) -> str:
        name = job.raw["name"]
        tries[name] = tries.get(name, 0) + 1
        if name == "final":
            raise bunqueue.UnrecoverableError("never again")
        if name != "flaky" or tries[name] < 3:
            raise ValueError(f"try {tries[name]} of {name}")
        return "at last"

    ended = place.worker(run).wait(7)
    shown = []
    for job_id in ids:
        job = q.get_job(job_id)
        if job is not None:
            job.raw["runAt"] = 0
            shown.append(job)
    return [tries, sorted(map(str, ended)), shown, q.get_job_counts(), tried(q.wait_for_job, ids[1], 100)]


@section
def by_hand(place: Place) -> Any:
    """What a worker does, done by calls."""
    q = place.queue
    link = q.connection
    ids = q.add_bulk([{"name": "m", "data": {"i": i}, "attempts": 1} for i in range(4)])
    got = link.call({"cmd": "PULLB", "queue": q.name, "count": 4, "owner": "me", "lockTtl": 30_000})
    tokens = got["tokens"]
    q.extend_job_lock(ids[0], tokens[0], 60_000)
    q.update_job_progress(ids[0], 42, "on it")
    progress = q.get_progress(ids[0])
    wrong = tried(q.move_job_to_completed, ids[0], 1, "wrong")
    q.move_job_to_completed(ids[0], {"done": True}, tokens[0])
    q.move_job_to_failed(ids[1], ValueError("by hand"), tokens[1])
    back = tried(q.move_job_to_wait, ids[2])
    held = [q.get_state(i) for i in ids]
    failed = q.get_job(ids[1])
    return [len(got["jobs"]), progress, wrong, back, held, q.get_result(ids[0]), failed]


@section
def logs(place: Place) -> Any:
    q = place.queue
    job = q.add("l")
    for i in range(5):
        q.add_job_log(job.id, f"line {i}", "debug" if i == 3 else None)

    def lines(*bounds: int) -> list[Any]:
        return [[line["level"], line["message"]] for line in q.get_job_logs(job.id, *bounds)]

    all_of_them, some = lines(), lines(1, 2)
    q.clear_job_logs(job.id, 2)
    kept = lines()
    q.clear_job_logs(job.id)
    return [all_of_them, some, kept, lines(), q.get_job_logs("nobody")]


# --- dead letters and settings -------------------------------------------------------------------


@section
def dlq(place: Place) -> Any:
    q = place.queue
    q.add_bulk([{"name": "d", "data": {"i": i}, "attempts": 1} for i in range(5)])

    def run(job: bunqueue.Job) -> None:
        raise ValueError(f"broken {job.data['i']}")

    ends = place.worker(run)
    ends.wait(5)
    ends.worker.close(10)
    dead = q.get_dlq()
    config = q.get_dlq_config()
    q.set_dlq_config({"maxEntries": 50, "maxAge": 1_000_000, "autoRetry": False})
    found = [
        [[job["data"], job["attempts"]] for job in dead],
        len(q.get_dlq(2)),
        config,
        q.get_dlq_config(),
        len(q.get_failed()),
    ]
    one = q.retry_dlq(dead[0]["id"])
    q.retry_job(dead[1]["id"])
    states = [q.get_state(dead[i]["id"]) for i in range(3)]
    some = [q.retry_jobs("failed", 1), q.retry_dlq(count=1)]
    counts = q.get_job_counts()
    return [found, one, states, some, counts, q.purge_dlq(), q.get_job_counts()]


@section
def redo(place: Place) -> Any:
    q = place.queue
    ids = q.add_bulk([{"name": "r", "data": {"i": i}} for i in range(3)])
    ends = place.worker(lambda job: job.data["i"])
    ends.wait(3)
    ends.worker.close(10)
    again = [q.retry_completed(ids[0]), q.retry_completed("nobody"), q.retry_jobs("completed")]
    return [again, q.get_job_counts(), q.get_result(ids[0])]


@section
def settings(place: Place) -> Any:
    q = place.queue
    before = q.get_stall_config()
    q.set_stall_config({"stallInterval": 5000, "maxStalls": 2})
    changed = q.get_stall_config()
    q.add_bulk([{"name": "l"}] * 6)
    q.set_global_concurrency(2)
    lock, now, most = threading.Lock(), 0, 0

    def run(job: bunqueue.Job) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.01)
        with lock:
            now -= 1

    place.worker(run, concurrency=6, batch_size=6).wait(6)
    q.remove_global_concurrency()
    q.set_global_rate_limit(3)
    q.remove_global_rate_limit()
    return [before, changed, most <= 2, q.get_job_counts()]


@section
def groups(place: Place) -> Any:
    q = place.queue
    q.add_bulk([{"name": "g", "data": {"i": i}, "group_id": f"g{i % 3}"} for i in range(9)])
    order: list[int] = []
    place.worker(lambda job: order.append(job.data["i"])).wait(9)
    # Fair: each round has one of each group.
    return [[sorted(i % 3 for i in order[k : k + 3]) for k in (0, 3, 6)], len(set(order))]


@section
def dedup(place: Place) -> Any:
    q = place.queue
    a = q.add("d", {"n": 1}, deduplication={"id": "k"})
    b = q.add("d", {"n": 2}, unique_key="k")
    c = q.add("d", {"n": 3}, deduplication={"id": "k", "replace": True, "ttl": 60_000})
    d = q.add("d", {"n": 4}, job_id=f"{place.run}-c")
    found = [q.get_deduplication_job_id(f"{place.run}-c") == d.id, q.get_deduplication_job_id("other")]
    kept = [q.get_job(a.id), q.get_job(c.id)]
    return [a.id == b.id, b.id == c.id, found, kept, q.get_job_counts()]


# --- schedules, flows, hooks ---------------------------------------------------------------------


@section
def schedules(place: Place) -> Any:
    q = place.queue
    name = f"{place.run}-s"
    q.add_cron(f"{name}1", "0 * * * *", {"x": 1}, tz="Europe/Rome")
    template = {"name": "tick", "data": [1], "opts": {"priority": 3, "attempts": 2}}
    q.upsert_job_scheduler(f"{name}3", {"every": 3_600_000, "immediately": True}, template)
    listed = sorted(q.get_job_schedulers(), key=lambda cron: str(cron["name"]))
    for cron in listed:
        cron["executions"] = 0  # how many were due by now
    count = q.get_job_schedulers_count()
    q.every(f"{name}2", 40, {"y": 2}, limit=3, prevent_overlap=False)  # only now: it is soon over
    ran: list[Any] = []
    ends = place.worker(lambda job: ran.append([job.raw["name"], job.data, job.priority, job.max_attempts]))
    ends.wait(4)
    until(lambda: q.get_job_scheduler(f"{name}2") is None)
    one = q.get_job_scheduler(f"{name}1")
    q.remove_job_scheduler(f"{name}1")
    q.remove_job_scheduler(f"{name}3")
    return [listed, count, sorted(map(str, ran)), one, q.get_job_schedulers(), q.get_job_scheduler("nobody")]


def tree(node: bunqueue.FlowNode | None) -> Any:
    if node is None:
        return None
    return [node.job.queue, node.job.data, [tree(child) for child in node.children]]


@section
def flows(place: Place) -> Any:
    q, flow = place.queue, place.flow()
    down = f"{place.name}-down"
    leaf = {"name": "leaf", "queueName": down, "data": {"leaf": 1}}
    right = {"name": "right", "queueName": down, "data": {"right": 1}, "children": [leaf]}
    left = {"name": "left", "queueName": down, "data": {"left": 1}, "opts": {"attempts": 2}}
    top = flow.add({"name": "top", "queueName": place.name, "data": {"top": 1}, "children": [left, right]})
    states = [q.get_state(node.job.id) for node in (top, *top.children)]
    found = [tree(flow.get_flow(top.job.id)), tree(flow.get_flow(top.job.id, depth=1))]
    missing = tried(flow.get_flow, "nobody")
    chain = flow.add_chain([{"name": f"c{i}", "queueName": down, "data": {"i": i}} for i in range(3)])
    fan = flow.add_bulk_then(
        [{"name": f"p{i}", "queueName": down, "data": {"i": i}} for i in range(2)],
        {"name": "then", "queueName": down, "data": {}},
    )
    bulk = flow.add_bulk([{"name": f"b{i}", "queueName": down, "data": {}} for i in range(2)])
    counts = [q.get_job_counts(), bunqueue.Queue(down, connection=q.connection).get_job_counts()]
    values: dict[str, Any] = {}
    order: list[str] = []

    def run(job: bunqueue.Job) -> str:
        name = job.raw["name"]
        order.append(name)
        if name in ("top", "then"):
            values[name] = sorted(job.get_children_values().values())
        return f"{name} done"

    low = place.worker(run, name=down)
    low.wait(3 + 3 + 3 + 2)
    high = place.worker(run)
    high.wait(1)
    in_order = order.index("c0") < order.index("c1") < order.index("c2")
    last = order.index("then") > max(order.index("p0"), order.index("p1"))
    sizes = [len(chain), len(fan["parallel_ids"]), len(bulk)]
    children = sorted(q.get_children_values(top.job.id).values())
    return [states, found, missing, sizes, counts, values, in_order, last, order[-1], children]


@section
def flow_failures(place: Place) -> Any:
    q = place.queue
    down = bunqueue.Queue(f"{place.name}-down", connection=q.connection)
    policies = ["fail_parent_on_failure", "ignore_dependency_on_failure", "continue_parent_on_failure"]
    policies.append("remove_dependency_on_failure")
    parents, children = {}, []
    for policy in policies:
        flow = place.flow()
        child = {"name": "k", "queueName": down.name, "data": {}, "opts": {"attempts": 1, policy: True}}
        node = flow.add({"name": "p", "queueName": place.name, "data": {}, "children": [child]})
        parents[policy] = node.job.id
        children.append(node.children[0].job.id)

    def run(job: bunqueue.Job) -> None:
        raise ValueError("child broke")

    place.worker(run, name=down.name).wait(len(policies))
    until(lambda: q.get_state(parents["remove_dependency_on_failure"]) == "waiting")
    seen = {}
    for policy, parent in parents.items():
        failed = sorted(q.get_failed_children_values(parent).values())
        ignored = sorted(q.get_ignored_children_failures(parent).values())
        seen[policy] = [q.get_state(parent), failed, ignored]
    late = place.flow().add(
        {
            "name": "p",
            "queueName": place.name,
            "data": {},
            "children": [
                {"name": "k1", "queueName": down.name, "data": {}, "opts": {"delay": 600_000}},
                {"name": "k2", "queueName": down.name, "data": {}, "opts": {"delay": 600_000}},
            ],
        }
    )
    q.remove_child_dependency(late.children[0].job.id)
    q.remove_unprocessed_children(late.job.id)
    return [seen, [q.get_state(node.job.id) for node in late.children]]


@section
def webhooks(place: Place) -> Any:
    q = place.queue
    hook = q.add_webhook("https://example.com/hook", ["job.completed", "job.failed"], place.name, "secret")
    assert hook is not None
    q.set_webhook_enabled(hook, False)
    listed = [found for found in q.list_webhooks() if found["id"] == hook]
    q.remove_webhook(hook)
    return [listed, [found for found in q.list_webhooks() if found["id"] == hook]]


@section
def figures(place: Place) -> Any:
    q = place.queue
    q.add("x")
    stats, metrics = q.get_stats(), q.get_metrics()
    return [sorted(stats), sorted(metrics), stats["waiting"] > 0, metrics["totalPushed"] > 0]


@section
def simple(place: Place) -> Any:
    """The class that is queue and worker in one."""

    def broken(job: bunqueue.Job) -> None:
        raise ValueError("no")

    done: list[str] = []
    app = bunqueue.Bunqueue(
        f"{place.name}-app",
        **place.at,
        routes={None: lambda job: None, "": lambda job: (broken if job.data.get("bad") else dict)(job)},
        poll_timeout_ms=500,
        concurrency=1,
    )
    place.stack.callback(app.close, True)
    app.on("completed", lambda job, result: done.append("completed"))
    app.on("failed", lambda job, error: done.append("failed"))
    app.add("a", {"n": 1})
    app.add_bulk([{"name": "b", "data": {"n": 2}}, {"name": "c", "data": {"n": 3}, "attempts": 1}])
    until(lambda: len(done) >= 3)
    app.every(f"{place.run}-app", 3_600_000, {"n": 4})
    crons = [cron["name"] for cron in app.list_crons()]
    app.remove_cron(f"{place.run}-app")
    return [len(done) >= 3, crons, app.list_crons(), app.is_running()]
