"""Flows: jobs that wait for each other, added together or not at all."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Unpack

from qclient.checks import filled, listed, whole
from qclient.client import Client
from qclient.closing import Closing
from qclient.codec import SIZE_BOUND, fits, pack_payload, readable
from qclient.job import Job
from qclient.options import CHILD_FAILURE_FIELDS, JobOptions, to_wire
from qclient.protocol import array_header, map_body, map_header
from qclient.queue import job_name, queue_name
from qclient.url import resolve
from qcore.errors import FlowError, NotFoundError
from qcore.limits import MAX_FLOW_DEPTH, MAX_FLOW_ID_CHARS, MAX_FLOW_JOBS

_REFUSED_OPTIONS = ("repeat", "dedup", "debounce", "parent")


@dataclass(frozen=True, slots=True, init=False)
class Node:
    """A job of a flow to be added, with its children; options as for ``Queue.add``.

    ``data`` is a dict, or None for an empty one: the protocol puts what ties the jobs
    together beside its keys, under names with ``__``. Without a ``queue``, that of the
    parent is meant. Without ``on_child_failure`` a child whose attempts are used up
    fails its parent; with None its parent waits on, until the child was retried and has completed.
    """

    name: str
    data: Mapping[str, Any] | None
    queue: str | None
    children: tuple[Node, ...]
    options: Mapping[str, Any] = field(repr=False)

    def __init__(
        self,
        name: str,
        data: Mapping[str, Any] | None = None,
        *,
        queue: str | None = None,
        children: Iterable[Node] = (),
        **options: Unpack[JobOptions],
    ) -> None:
        put = object.__setattr__
        below = listed(children, "children", "Nodes")
        for child in below:
            if not isinstance(child, Node):
                raise TypeError(f"a child is a Node, not {type(child).__name__}")
        if data is not None and not isinstance(data, Mapping):
            raise TypeError(f"data of a job of a flow must be a dict, not {type(data).__name__}")
        put(self, "name", job_name(name))
        put(self, "data", data)
        put(self, "queue", None if queue is None else queue_name(queue))
        put(self, "children", tuple(below))
        put(self, "options", options)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


@dataclass(frozen=True, slots=True)
class FlowNode:
    """A job of a flow that is there, with its children.

    ``missing`` are ids that it waits for in vain: they are gone without having completed.
    """

    job: Job
    children: tuple[FlowNode, ...] = ()
    missing: tuple[str, ...] = ()


class _Entry:
    """A node on its way into the command: where it goes, and what it is tied to."""

    __slots__ = ("children", "depends_on", "fails_parent", "id", "meta", "node", "options", "queue")

    def __init__(self, node: Node, queue: str, given_options: Mapping[str, Any]) -> None:
        self.node = node
        self.queue = queue
        self.options = options = to_wire(given_options)
        self.fails_parent = "on_child_failure" not in given_options
        given = options.pop("jobId", None)
        self.id = str(uuid.uuid4()) if given is None else str(given)
        self.children: list[str] = []
        self.depends_on: list[str] = []
        self.meta: dict[str, object] = {}

    def no_child(self, where: str) -> None:
        """It has no parent that waits for it, so it can have no say about that one."""
        if self.node.options.get("on_child_failure") is not None:
            raise FlowError(f"{where}: on_child_failure is for children that their parent waits for")
        for name in CHILD_FAILURE_FIELDS:  # a default of its queue
            self.options.pop(name, None)


class _Plan:
    """The jobs of one command, parents first."""

    def __init__(self, defaults: Mapping[str, JobOptions] | None) -> None:
        if defaults is not None and not isinstance(defaults, Mapping):
            raise TypeError(f"queue_defaults must be a dict, not {type(defaults).__name__}")
        self._defaults = defaults or {}
        for queue, options in self._defaults.items():
            queue_name(queue)
            if not isinstance(options, Mapping):
                raise TypeError(f"queue_defaults of {queue!r} must be a dict, not {type(options).__name__}")
        self.entries: list[_Entry] = []
        self._nodes: set[Node] = set()
        self._ids: set[str] = set()

    def add(self, node: Node, queue: str | None, where: str) -> _Entry:
        if not isinstance(node, Node):
            raise TypeError(f"{where} is a Node, not {type(node).__name__}")
        if node in self._nodes:
            raise FlowError(f"{where}: the same Node stands in the flow twice")
        self._nodes.add(node)
        chosen = node.queue or queue
        if chosen is None:
            raise FlowError(f"{where}: expected a queue")
        options = {**self._defaults.get(chosen, {}), **node.options}
        for name in _REFUSED_OPTIONS:
            if options.get(name) is not None:
                raise FlowError(f"{where}: {name} is not for jobs of a flow")
        _check_data(node, where)
        entry = _Entry(node, chosen, options)
        if ":" in entry.id or len(entry.id) > MAX_FLOW_ID_CHARS:
            raise FlowError(f"{where}: a job_id has 1 to {MAX_FLOW_ID_CHARS} characters and no colon")
        if entry.id in self._ids:
            raise FlowError(f"{where}: the job_id {entry.id!r} stands in the flow twice")
        self._ids.add(entry.id)
        self.entries.append(entry)
        if len(self.entries) > MAX_FLOW_JOBS:
            raise FlowError(f"a flow has at most {MAX_FLOW_JOBS} jobs")
        return entry

    def tree(self, root: Node, where: str) -> _Entry:
        """A node and all below it, each the parent of its children. No recursion: depth is the caller's."""
        top = self.add(root, None, where)
        top.no_child(where)
        left = [(top, 1)]
        while left:
            parent, depth = left.pop()
            if parent.node.children and depth > MAX_FLOW_DEPTH:
                raise FlowError(f"a flow is at most {MAX_FLOW_DEPTH} levels of children deep")
            for i, node in enumerate(parent.node.children):
                child = self.add(node, parent.queue, f"child {i} of {parent.node.name!r}")
                self.tie(child, parent)
                left.append((child, depth + 1))
        return top

    def tie(self, child: _Entry, parent: _Entry) -> None:
        """Let the parent wait for the child, and fail with it unless the child says otherwise."""
        if child.fails_parent:
            child.options["failParentOnFailure"] = True
        child.options["parentId"] = parent.id
        child.meta |= {"__parentId": parent.id, "__parentQueue": parent.queue}
        parent.children.append(child.id)
        parent.depends_on.append(child.id)
        parent.meta["__childrenIds"] = parent.children

    def lone(self, node: Node, where: str) -> _Entry:
        """A node without children of its own."""
        entry = self.add(node, None, where)
        if node.children:
            raise FlowError(f"{where}: children are for trees")
        return entry

    def packed(self, *, typed: bool, int64: bool) -> bytes:
        """The ``jobs`` field."""
        parts = [array_header(len(self.entries))]
        for entry in self.entries:
            fields = dict(entry.options)
            # What a job waits for may also be named as an option.
            given = fields.pop("dependsOn", [])
            depends_on = [*entry.depends_on, *(given if isinstance(given, list) else [])]
            fields |= {"name": entry.node.name, "customId": entry.id}
            if depends_on:
                fields["dependsOn"] = list(dict.fromkeys(depends_on))
            if entry.children:
                fields["childrenIds"] = entry.children
            data = pack_payload({**(entry.node.data or {}), **entry.meta}, typed=typed, int64=int64)
            if not fits(data):
                raise FlowError(
                    f"data of {entry.node.name!r}, {len(data)} bytes, are too large; {SIZE_BOUND}"
                )
            body = map_header(len(fields) + 1) + map_body(fields) + b"\xa4data" + data
            parts += [map_header(3), map_body({"id": entry.id, "queue": entry.queue}), b"\xa5input", body]
        return b"".join(parts)


def _check_data(node: Node, where: str) -> None:
    if node.data is None:
        return
    for key in node.data:
        if isinstance(key, str) and key.startswith("__"):
            raise FlowError(f"{where}: keys of data that begin with __ are reserved")


class FlowProducer(Closing):
    """Adds flows to one engine, and reads them; ``url`` as for ``Queue``. Thread-safe.

    Each call adds all of its jobs in one command, or none. After a lost reply it raises
    ``ConnectionLost`` with ``maybe_applied``; with a ``job_id`` for every node the call can
    be repeated then: what is there already is a ``DuplicateError``.
    """

    def __init__(self, url: str | None = None) -> None:
        self.client = Client(resolve(url))

    # ------------------------------------------------------------------ adding

    def add(self, node: Node, queue_defaults: Mapping[str, JobOptions] | None = None) -> FlowNode:
        """Add a tree: each job runs when its children have completed.

        ``queue_defaults`` are options of all jobs of a queue, which those of a node replace.

        :raises FlowError: the tree cannot be added, and nothing was
        """
        return self.add_bulk([node], queue_defaults)[0]

    def add_bulk(
        self, nodes: Iterable[Node], queue_defaults: Mapping[str, JobOptions] | None = None
    ) -> list[FlowNode]:
        """Add several trees as one: all or none."""
        plan = _Plan(queue_defaults)
        roots = [plan.tree(node, f"node {i}") for i, node in enumerate(listed(nodes, "nodes", "Nodes"))]
        jobs = self._send(plan)
        return [_grown(root, jobs, plan) for root in roots]

    def chain(self, *nodes: Node) -> list[Job]:
        """Add jobs of which each starts when the one before has completed.

        That one is its child: ``children_values()`` has its result, and when it fails for good
        the rest fails with it, unless its ``on_child_failure`` says otherwise.
        """
        plan = _Plan(None)
        entries = [plan.lone(node, f"node {i}") for i, node in enumerate(nodes)]
        for before, after in pairwise(entries):
            plan.tie(before, after)
            after.meta["__flowParentId"] = before.id
        if entries:
            entries[-1].no_child("the last node")
        return list(self._send(plan).values())

    def fan_in(self, nodes: Iterable[Node], *, then: Node) -> list[Job]:
        """Add jobs that run side by side, and one that starts when all of them have completed: the last.

        They are its children, as in :meth:`add`.
        """
        plan = _Plan(None)
        first = [plan.lone(node, f"node {i}") for i, node in enumerate(listed(nodes, "nodes", "Nodes"))]
        final = plan.lone(then, "then")
        final.no_child("then")
        for entry in first:
            plan.tie(entry, final)
        final.meta["__flowParentIds"] = [entry.id for entry in first]
        return list(self._send(plan).values())

    def tree(self, root: Node) -> FlowNode:
        """Add a tree that runs from its root: the children start when their parent has completed.

        If that fails for good they wait, until it is started over.
        """
        plan = _Plan(None)
        top = plan.add(root, None, "root")
        left = [top]
        below: dict[str, list[_Entry]] = {}
        while left:
            before = left.pop()
            for i, node in enumerate(before.node.children):
                entry = plan.add(node, before.queue, f"child {i} of {before.node.name!r}")
                entry.depends_on.append(before.id)
                entry.meta["__flowParentId"] = before.id
                below.setdefault(before.id, []).append(entry)
                left.append(entry)
        for entry in plan.entries:
            entry.no_child(repr(entry.node.name))
        jobs = self._send(plan)

        def grown(entry: _Entry) -> FlowNode:
            return FlowNode(jobs[entry.id], tuple(grown(one) for one in below.get(entry.id, ())))

        return grown(top)

    def _send(self, plan: _Plan) -> dict[str, Job]:
        can = self.client.greeted()
        raw = plan.packed(typed="typed" in can, int64="int64" in can)
        reply = self.client.call("PUSHF", {}, (("jobs", raw),), repeatable=False)
        return {job["id"]: Job(self.client, job["queue"], job["id"], job) for job in reply["data"]["jobs"]}

    # ----------------------------------------------------------------- reading

    def get(
        self, job_id: str, *, depth: int | None = None, max_children: int | None = None
    ) -> FlowNode | None:
        """A job with its children, and theirs; None when the engine does not know it.

        At most ``depth`` levels below it, and ``max_children`` of each job. Children that are
        gone are left out; those among them that never completed are the ``missing`` of their parent.
        """
        levels = MAX_FLOW_DEPTH if depth is None else whole(depth, "depth", 0)
        if max_children is not None:
            whole(max_children, "max_children", 0)
        return self._read(filled(job_id, "job_id"), levels, max_children)

    def _read(self, job_id: str, levels: int, max_children: int | None) -> FlowNode | None:
        try:
            raw = self.client.call("GetJob", {"id": job_id})["job"]
        except NotFoundError:
            return None
        job = Job(self.client, raw["queue"], job_id, raw)
        if not levels:
            return FlowNode(job)
        ids = job.children_ids[:max_children]
        found = [self._read(one, levels - 1, max_children) for one in ids]
        there = tuple(one for one in found if one is not None)
        if len(there) == len(ids):
            return FlowNode(job, there)
        try:
            # Of those that are gone, some completed.
            missing = set(job.dependencies().missing)
        except NotFoundError:
            missing = set()
        gone = (one for one, node in zip(ids, found, strict=True) if node is None)
        return FlowNode(job, there, tuple(one for one in gone if one in missing))

    def results(self, job_ids: Iterable[str]) -> dict[str, Any]:
        """Results of completed jobs by id, None among them; jobs without a result are left out."""
        out: dict[str, Any] = {}
        for job_id in [filled(one, "job_ids") for one in listed(job_ids, "job_ids", "ids")]:
            reply = self.client.call("GetResult", {"id": job_id})
            if "result" in reply:
                out[job_id] = readable(reply["result"])
        return out

    def __repr__(self) -> str:
        return f"<FlowProducer at {self.client.target}>"


def _grown(entry: _Entry, jobs: Mapping[str, Job], plan: _Plan) -> FlowNode:
    by_id = {one.id: one for one in plan.entries}

    def grown(one: _Entry) -> FlowNode:
        return FlowNode(jobs[one.id], tuple(grown(by_id[child]) for child in one.children))

    return grown(entry)
