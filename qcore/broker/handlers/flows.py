"""Flows: jobs that are added together, and the ties between jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgpack

from qcore.broker.handlers.adding import admissible, admission, hold_add, lenient
from qcore.broker.handlers.answer import Answer, Fields, Handler, Reply
from qcore.errors import CommandError, DuplicateError, FlowError, NotFoundError
from qcore.limits import MAX_FLOW_BYTES, MAX_FLOW_DEPTH, MAX_FLOW_ID_CHARS, MAX_FLOW_JOBS
from qcore.wire import commands
from qcore.wire.fields import given, shape
from qcore.wire.jsontext import fits
from qcore.wire.packing import unpack
from qcore.wire.scan import skip
from qcore.wire.writer import Packed

#: Keys of a job's data that say what it is tied to; an update keeps them.
RESERVED_KEYS = ("__parentId", "__parentQueue", "__childrenIds", "__flowParentId", "__flowParentIds")
JOB_BYTES = 1000
_FLAGS = ("lifo", "durable", *commands.POLICIES)


class _Node:
    """One checked entry of a flow."""

    __slots__ = ("children", "depends_on", "id", "meta", "named", "options", "parent", "queue")

    def __init__(
        self, node_id: str, queue: str, options: dict[str, Any], meta: Mapping[str, Any], named: bool
    ) -> None:
        self.named = named
        self.id = node_id
        self.queue = queue
        self.options = options
        self.meta = meta
        self.parent: str | None = options.get("parentId")
        self.depends_on: list[str] = list(options.get("dependsOn", ()))
        self.children: list[str] = list(options.get("childrenIds", ()))


def _pushf(answer: Answer, fields: Fields) -> Reply:
    session = answer.session
    broker = session.broker
    engine = broker.engine
    nodes = _nodes(fields["jobs"])
    _check_graph(nodes, engine.owns)
    for node in nodes.values():
        if engine.owns(node.id):
            raise DuplicateError(f"Flow job {node.id} already exists")
    admissible(session, [{**node.options, "durable": True} for node in nodes.values()])
    ties = [(node.queue, node.id, node.depends_on, node.parent, None) for node in nodes.values()]
    bad = engine.check_links(ties, lenient(node.options for node in nodes.values()))
    if bad is not None:
        raise bad[1]
    outcome = session.add(None, [_planned(node, broker.wall_ms) for node in nodes.values()], staged=True)
    hold_add(answer, outcome)
    return {"data": {"jobs": [broker.added_packed(session, node_id) for node_id in outcome.ids]}}


def _planned(node: _Node, now_ms: int) -> dict[str, Any]:
    added = {**admission(node.options, now_ms), "queue": node.queue}
    # The id of a flow job is planned by its producer and is no custom id, unless it says so too.
    if not node.named:
        added["extra"] = {**(added["extra"] or {}), "plannedId": True}
    return added


def _nodes(jobs: object) -> dict[str, _Node]:
    if not isinstance(jobs, list):
        raise FlowError("flow jobs must be an array")
    if len(jobs) > MAX_FLOW_JOBS:
        raise FlowError(f"flow exceeds the {MAX_FLOW_JOBS} job limit")
    nodes: dict[str, _Node] = {}
    size = 0
    for index, entry in enumerate(jobs):
        if not isinstance(entry, dict):
            raise FlowError(f"flow jobs[{index}] must be an object")
        node_id = entry.get("id")
        if not isinstance(node_id, str):
            raise FlowError("flow job id must be a string")
        if not 1 <= len(node_id) <= MAX_FLOW_ID_CHARS:
            raise FlowError("flow job id is invalid or is not well-formed Unicode")
        if ":" in node_id:
            raise FlowError("flow job id cannot contain a colon")
        if node_id in nodes:
            raise FlowError(f"duplicate flow job id: {node_id}")
        node = _node(node_id, entry)
        # The reply must hold it all: what a job has beside its data, and its id in five places.
        size += len(node.options["data"]) + JOB_BYTES + 5 * len(node_id)
        if size > MAX_FLOW_BYTES:
            raise FlowError("flow data is too large (max 64MB per atomic batch)")
        nodes[node_id] = node
    return nodes


def _node(node_id: str, entry: Mapping[str, object]) -> _Node:
    queue, given_input = entry.get("queue"), entry.get("input")
    try:
        name = commands.queue_name(queue)
    except CommandError:
        shown = queue if isinstance(queue, str) else shape(queue)
        raise FlowError(f"invalid flow queue: {shown[:300]}") from None
    if not isinstance(given_input, dict):
        raise FlowError(f"flow job input is invalid: {node_id}")
    source = {key: value for key, value in given_input.items() if value is None or given(value)}
    custom_id = source.get("customId")
    if custom_id is not None and custom_id != node_id:
        raise FlowError(f"custom id does not match planned id: {node_id}")
    parent = source.get("parentId")
    if parent is not None and not (isinstance(parent, str) and 1 <= len(parent) <= MAX_FLOW_ID_CHARS):
        raise FlowError(f"flow parent id is invalid: {node_id}")
    for key in ("dependsOn", "childrenIds"):
        ids = source.get(key)
        if ids is not None and not (isinstance(ids, list) and all(isinstance(i, str) and i for i in ids)):
            raise FlowError(f"{key} must be an array of valid string job ids")
        if ids and len(set(ids)) != len(ids):
            raise FlowError(f"flow job names a job twice: {node_id}")
    if source.get("name") is None and "name" in source:
        commands.job_name(None)
    data = source.get("data")
    if not isinstance(data, Packed) or not _is_map(data.data):
        raise FlowError("flow job data must be an object")
    if not fits(data.data):
        raise FlowError("Job data too large (max 10MB)")
    for key in _FLAGS:
        if source.get(key) is not None and not isinstance(source[key], bool):
            raise FlowError(f"{key} must be a boolean")
    if source.get("repeat"):
        raise FlowError("repeat is not supported inside an atomic flow")
    if source.get("uniqueKey") or source.get("dedup"):
        raise FlowError("deduplication is not supported inside an atomic flow")
    if source.get("debounceId") or source.get("debounceTtl"):
        raise FlowError("debounce is not supported inside an atomic flow")
    source.pop("customId", None)
    policies = sum(bool(source.get(key)) for key in commands.POLICIES)
    if policies > 1:
        raise FlowError("flow failure policies are mutually exclusive")
    if policies and not parent:
        raise FlowError("a flow failure policy requires a parent")
    options = {**commands.job_options(source), "customId": node_id}
    meta = unpack(data.data, int_keys=True) if b"__" in data.data else {}
    return _Node(node_id, name, options, meta, custom_id is not None)


def _check_graph(nodes: Mapping[str, _Node], known: Any) -> None:
    """Every edge leads to a job, no circle, and both ends of a tie say the same."""
    for node in nodes.values():
        for other in node.depends_on:
            if other == node.id:
                raise FlowError(f"flow job cannot depend on itself: {node.id}")
            if other not in nodes and not known(other) and not node.options.get("allowUnknownDependencies"):
                raise FlowError(f"flow dependency not found: {other}")
    _check_depth(nodes)
    for node in nodes.values():
        depends_on = set(node.depends_on)
        for child in node.children:
            if child not in depends_on:
                raise FlowError(f"flow child is missing from dependencies: {child}")
            if child not in nodes:
                raise FlowError(f"flow child not found: {child}")
            if nodes[child].parent != node.id:
                raise FlowError(f"flow child {child} does not point back to parent {node.id}")
    owned = {parent.id: set(parent.children) for parent in nodes.values() if parent.children}
    for node in nodes.values():
        if node.parent is not None:
            if node.parent not in nodes:
                raise FlowError(f"flow parent not found: {node.parent}")
            if node.id not in owned.get(node.parent, ()):
                raise FlowError(f"flow parent {node.parent} does not own child {node.id}")
            if "__parentId" not in node.meta or "__parentQueue" not in node.meta:
                raise FlowError(f"flow metadata missing for child {node.id}")
            parent = nodes[node.parent]
            if (node.meta["__parentId"], node.meta["__parentQueue"]) != (parent.id, parent.queue):
                raise FlowError(f"flow child {node.id} metadata does not match parent {parent.id}")
    for parent_id, children in owned.items():
        listed = nodes[parent_id].meta.get("__childrenIds")
        if not isinstance(listed, list) or set(map(str, listed)) != children:
            raise FlowError(f"flow metadata missing for parent {parent_id}")
    for node in nodes.values():
        if node.meta:
            _check_reserved(node, nodes)


def _check_reserved(node: _Node, nodes: Mapping[str, _Node]) -> None:
    """The reserved keys of the data say what the job is tied to, or nothing.

    Clients build chains in which the job before is called the parent, though it is only waited for.
    """
    above = node.meta.get("__parentId")
    said: dict[str, tuple[object, list[str]]] = {
        "__parentId": (above, node.depends_on if node.parent is None else [node.parent]),
        "__childrenIds": (node.meta.get("__childrenIds"), node.children),
        "__flowParentId": (node.meta.get("__flowParentId"), node.depends_on),
        "__flowParentIds": (node.meta.get("__flowParentIds"), node.depends_on),
    }
    for key, (value, ties) in said.items():
        if value is None:
            continue
        named = value if isinstance(value, list) and key.endswith("Ids") else [value]
        if not set(map(str, named)) <= set(ties):
            raise FlowError(f"flow job data key is reserved: {key}")
    queue = node.meta.get("__parentQueue")
    if queue is not None and (above is None or (str(above) in nodes and nodes[str(above)].queue != queue)):
        raise FlowError("flow job data key is reserved: __parentQueue")


def _check_depth(nodes: Mapping[str, _Node]) -> None:
    """No circle, and no path of more edges than allowed. O(jobs + edges)."""
    left = {node.id: sum(other in nodes for other in node.depends_on) for node in nodes.values()}
    dependents: dict[str, list[str]] = {}
    for node in nodes.values():
        for other in node.depends_on:
            dependents.setdefault(other, []).append(node.id)
    depth = dict.fromkeys(nodes, 0)
    ready = [node_id for node_id, n in left.items() if n == 0]
    seen = 0
    while ready:
        node_id = ready.pop()
        seen += 1
        for following in dependents.get(node_id, ()):
            depth[following] = max(depth[following], depth[node_id] + 1)
            left[following] -= 1
            if not left[following]:
                ready.append(following)
    if seen < len(nodes):
        raise FlowError("flow contains a dependency cycle")
    if max(depth.values(), default=0) > MAX_FLOW_DEPTH:
        raise FlowError(f"flow exceeds the depth limit of {MAX_FLOW_DEPTH}")


# --- data that say what a job is tied to ---------------------------------------------------------


def _is_map(data: bytes) -> bool:
    return 0x80 <= data[0] <= 0x8F or data[0] in (0xDE, 0xDF)


def _items(data: bytes) -> list[tuple[object, bytes]]:
    """The items of a packed map, as (key, bytes of key and value)."""
    head = data[0]
    at = 1 if head < 0xDE else 3 if head == 0xDE else 5
    n = head & 0x0F if at == 1 else int.from_bytes(data[1:at], "big")
    items: list[tuple[object, bytes]] = []
    for _ in range(n):
        value, _ = skip(data, at)
        end, _ = skip(data, value)
        items.append((msgpack.unpackb(data[at:value], strict_map_key=False), data[at:end]))
        at = end
    return items


def keep_reserved(old: bytes | None, new: bytes) -> bytes:
    """New data of a job with the reserved keys of the old ones, if it has any.

    :raises FlowError: it has, and the new data are no map or have further keys of that kind
    """
    if old is None or b"__" not in old or not _is_map(old):
        return new
    kept = [item for key, item in _items(old) if key in RESERVED_KEYS]
    if not kept:
        return new
    if not _is_map(new):
        raise FlowError("flow job data must be an object")
    items: list[bytes] = []
    for key, item in _items(new):
        if key in RESERVED_KEYS:
            continue
        if isinstance(key, str) and key.startswith("__"):
            raise FlowError(f"flow job data key is reserved: {key}")
        items.append(item)
    return _map(items + kept)


def _map(items: Sequence[bytes]) -> bytes:
    n = len(items)
    head = bytes([0x80 | n]) if n < 16 else b"\xde" + n.to_bytes(2, "big") if n < 65536 else None
    return (head if head is not None else b"\xdf" + n.to_bytes(4, "big")) + b"".join(items)


# --- ties ------------------------------------------------------------------------------------------


def _move_to_waiting_children(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    broker.engine.move_to_waiting_children(
        fields["id"], broker.wall_ms, token=fields.get("token"), leave=True
    )
    # As recorded, also for a job without children: that one is back in its queue.
    return {"data": {"moved": True}}


def _update_parent(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    broker.engine.update_parent(
        fields["childId"], fields["parentId"], broker.wall_ms, token=fields.get("parentToken")
    )
    return {}


def _remove_child_dependency(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    return {"removed": broker.engine.remove_child_dependency(fields["id"], broker.wall_ms)}


def _remove_unprocessed_children(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    broker.engine.remove_unprocessed_children(fields["id"], broker.wall_ms)
    return {}


def _get_children_values(answer: Answer, fields: Fields) -> Reply:
    session = answer.session
    return {"data": {"values": session.broker.children_packed(session, fields["id"])}}


def _get_dependencies(answer: Answer, fields: Fields) -> Reply:
    session = answer.session
    found = session.broker.engine.dependencies(fields["id"])
    if found is None:
        raise NotFoundError("Job not found")
    data: Reply = {kind: ids[: fields.get("limit")] for kind, ids in found.items()}
    processed = found["processed"][: fields.get("limit")]
    results = session.broker.results_packed(session, processed)
    data["processed"] = {job_id: results.get(job_id) for job_id in processed}
    data["counts"] = {kind: len(ids) for kind, ids in found.items()}
    return {"data": data}


def _get_failed_children_values(answer: Answer, fields: Fields) -> Reply:
    return {"values": answer.session.broker.engine.child_failures(fields["id"], "continue")}


def _get_ignored_children_failures(answer: Answer, fields: Fields) -> Reply:
    return {"values": answer.session.broker.engine.child_failures(fields["id"], "ignore")}


HANDLERS: Mapping[str, Handler] = {
    "PUSHF": _pushf,
    "MoveToWaitingChildren": _move_to_waiting_children,
    "UpdateParent": _update_parent,
    "RemoveChildDependency": _remove_child_dependency,
    "RemoveUnprocessedChildren": _remove_unprocessed_children,
    "GetChildrenValues": _get_children_values,
    "GetDependencies": _get_dependencies,
    "GetFailedChildrenValues": _get_failed_children_values,
    "GetIgnoredChildrenFailures": _get_ignored_children_failures,
}
