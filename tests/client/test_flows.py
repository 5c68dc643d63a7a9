"""Flows from Python, the same on every engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qclient import (
    DuplicateError,
    FlowError,
    FlowNode,
    FlowProducer,
    JobFailedError,
    JobState,
    Node,
    Queue,
    UnrecoverableError,
    WaitingChildrenError,
    Worker,
    current_job,
)


def shape(node: FlowNode) -> Any:
    return (node.job.name, [shape(child) for child in node.children])


def test_a_tree_runs_from_its_leaves(engine_url: str, name: str) -> None:
    kids = f"{name}-kids"
    with Queue(name, engine_url) as queue, FlowProducer(engine_url) as flows:
        parts = [Node("part", {"n": n}, queue=kids, priority=n) for n in (1, 2)]
        made = flows.add(Node("sum", queue=name, children=[*parts, Node("own", {"n": 3})]))
        assert shape(made) == ("sum", [("part", []), ("part", []), ("own", [])])
        assert [child.job.queue for child in made.children] == [kids, kids, name]
        assert made.job.state is JobState.WAITING_CHILDREN
        assert made.children[0].job.parent_id == made.job.id
        assert made.job.children_ids == [child.job.id for child in made.children]

        def process(job: Any) -> Any:
            if job.name == "sum":
                assert queue.job(job.id).children_values() == job.children_values()
                return sum(job.children_values().values())
            return job.data["n"]

        with Worker(kids, process, engine_url), Worker(queue, process):
            assert made.job.result(60) == 6
        found = flows.get(made.job.id)
        assert found is not None
        assert shape(found) == shape(made)
        assert flows.get(made.job.id, depth=0) == FlowNode(made.job)
        clipped = flows.get(made.job.id, max_children=1)
        assert clipped is not None
        assert len(clipped.children) == 1
        assert flows.get("no-such-job") is None
        assert flows.results([made.job.id, "no-such-job"]) == {made.job.id: 6}


def test_chains_and_fans(engine_url: str, name: str) -> None:
    ran: list[str] = []
    with FlowProducer(engine_url) as flows, Queue(name, engine_url) as queue:
        chained = flows.chain(*(Node("step", {"at": i}, queue=name) for i in range(3)))
        fanned = flows.fan_in([Node("side", queue=name) for _ in range(2)], then=Node("end", queue=name))
        grown = flows.tree(
            Node("root", queue=name, children=[Node("a", children=[Node("c")]), Node("b", queue=name)])
        )
        assert shape(grown) == ("root", [("a", [("c", [])]), ("b", [])])
        assert chained[2].depends_on == [chained[1].id]
        assert chained[1].data["__flowParentId"] == chained[0].id
        assert fanned[2].data["__flowParentIds"] == [job.id for job in fanned[:2]]

        async def process(job: Any) -> str:
            ran.append(job.name + str(job.data.get("at", "")))
            return str(job.name)

        last = [chained[2], fanned[2], grown.children[0].children[0].job, grown.children[1].job]
        with Worker(queue, process):
            assert [job.result(60) for job in last] == ["step", "end", "c", "b"]
        assert [at for at in ran if at.startswith("step")] == ["step0", "step1", "step2"]
        assert ran.index("root") < ran.index("a") < ran.index("c")
        assert ran.index("root") < ran.index("b")
        assert ran.index("end") > max(i for i, at in enumerate(ran) if at == "side")
        assert flows.chain() == []


def test_a_chain_and_a_fan_end_with_what_fails_in_them(engine_url: str, name: str) -> None:
    def process(job: Any) -> Any:
        if job.name == "bad":
            raise UnrecoverableError("broken")
        return [*sorted(job.children_values().values(), key=str), job.name]

    with Queue(name, engine_url) as queue, FlowProducer(engine_url) as flows:
        whole = flows.chain(*(Node(step, queue=name) for step in "abc"))
        broken = flows.chain(*(Node(step, queue=name) for step in ("a", "bad", "c", "d")))
        ignoring = flows.chain(Node("bad", queue=name, on_child_failure="ignore"), Node("b", queue=name))
        sides = [Node("bad", queue=name, on_child_failure="remove"), Node("x", queue=name)]
        fanned = flows.fan_in(sides, then=Node("end", queue=name))
        with Worker(queue, process, concurrency=4):
            assert whole[2].result(60) == [[["a"], "b"], "c"]
            with pytest.raises(JobFailedError, match="broken"):
                broken[3].result(60)
            assert ignoring[1].result(60) == ["b"]
            assert fanned[2].result(60) == [["x"], "end"]
        assert list(ignoring[1].ignored_children().values()) == ["broken"]
        with pytest.raises(FlowError, match="the last node: on_child_failure"):
            flows.chain(Node("a", queue=name), Node("b", queue=name, on_child_failure="ignore"))


def test_what_the_failure_of_a_child_does(engine_url: str, name: str) -> None:
    async def process(job: Any) -> Any:
        if job.name == "bad":
            raise UnrecoverableError("broken")
        if job.name == "p":
            with pytest.raises(RuntimeError, match="to_thread"):
                job.failed_children()
            for read in (job.failed_children, job.ignored_children):
                read_by_workers.append(await asyncio.to_thread(read))
        return job.name

    read_by_workers: list[dict[str, str]] = []

    with Queue(name, engine_url) as queue, FlowProducer(engine_url) as flows:
        plain, ignored, continued, removed = flows.add_bulk(
            [
                Node("p", queue=name, children=[Node("bad")]),
                Node("p", queue=name, children=[Node("bad", on_child_failure="ignore"), Node("good")]),
                Node("p", queue=name, children=[Node("bad", on_child_failure="continue")]),
                Node("p", queue=name, children=[Node("bad")]),
            ],
            queue_defaults={name: {"attempts": 7}},
        )
        assert removed.job.max_attempts == 7
        # The last one is taken off before it fails.
        bad = removed.children[0].job
        assert bad.remove_child_dependency()
        with pytest.raises(Exception, match="has no parent"):
            bad.remove_child_dependency()
        with Worker(queue, process):
            with pytest.raises(JobFailedError, match="broken"):
                plain.job.result(60)
            for node in (ignored, continued, removed):
                assert node.job.result(60) == "p"
        assert sorted(len(read) for read in read_by_workers) == [0, 0, 0, 0, 1, 1]
        key = f"{name}:{ignored.children[0].job.id}"
        assert ignored.job.ignored_children() == {key: "broken"}
        assert list(ignored.job.children_values().values()) == ["good"]
        assert list(continued.job.failed_children().values()) == ["broken"]


def test_a_parent_may_wait_on_when_a_child_has_failed(engine_url: str, name: str) -> None:
    with Queue(name, engine_url) as queue, FlowProducer(engine_url) as flows:
        kept = [Node("bad", on_child_failure=None), Node("worse", on_child_failure="continue")]
        made = flows.add(
            Node("p", queue=name, children=kept[:1]), queue_defaults={name: {"on_child_failure": "ignore"}}
        )
        chain = flows.chain(Node("bad", queue=name, on_child_failure=None), Node("b", queue=name))
        gone_on = flows.add(Node("p", queue=name, children=kept[1:]))
        alone = queue.add("bad", parent=gone_on.job, on_child_failure=None)
        for job in (made.children[0].job, chain[0], alone, gone_on.children[0].job):
            job.discard()
        assert made.job.refresh().state is JobState.WAITING_CHILDREN
        assert made.job.dependencies().failed == (made.children[0].job.id,)
        assert chain[1].refresh().state is JobState.WAITING_CHILDREN
        assert gone_on.job.refresh().state is JobState.WAITING
        assert list(gone_on.job.failed_children().values()) == ["discarded"]
        made.children[0].job.retry()
        with Worker(queue, lambda job: job.name):
            assert made.job.result(60) == "p"
        queue.obliterate(force=True)


def test_children_that_are_added_later(engine_url: str, name: str) -> None:
    with Queue(name, engine_url) as queue:
        parent = queue.add("parent", delay=3600)
        child = queue.add("child", parent=parent, on_child_failure="ignore")
        assert parent.refresh().state is JobState.WAITING_CHILDREN
        assert child.parent_id == parent.id
        parent.remove_unprocessed_children()
        assert queue.get(child.id) is None
        assert parent.refresh().state is JobState.DELAYED
        parent.remove()

        def process(job: Any) -> Any:
            if job.name == "child":
                return 5
            found = job.children_values()
            if not found:
                # Who runs it may add to it, which its token shows.
                queue.add("child", parent=current_job())
                raise WaitingChildrenError
            return sum(found.values())

        running = queue.add("runs")
        with Worker(queue, process, concurrency=2):
            assert running.result(60) == 5


def test_a_flow_is_added_whole_or_not_at_all(engine_url: str, name: str) -> None:
    with Queue(name, engine_url) as queue, FlowProducer(engine_url) as flows:
        job_id = f"{name}-known"
        queue.add("n", job_id=job_id, delay=3600)
        with pytest.raises(DuplicateError, match="already exists"):
            flows.add(Node("p", queue=name, children=[Node("c", job_id=job_id), Node("d")]))
        with pytest.raises(FlowError, match="dependency not found"):
            flows.chain(Node("a", queue=name), Node("b", queue=name, depends_on=["no-such-job"]))
        assert len(queue) == 1
        assert queue.counts().total == 1


def deep(levels: int) -> Node:
    node = Node("leaf")
    for _ in range(levels):
        node = Node("n", children=[node])
    return Node("root", queue="q", children=[node])


SHARED = Node("shared", queue="q")


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (Node("n"), "node 0: expected a queue"),
        (Node("n", queue="q", children=[SHARED, SHARED]), "the same Node stands in the flow twice"),
        (Node("n", queue="q", job_id="a", children=[Node("m", job_id="a")]), "'a' stands in the flow twice"),
        (Node("n", queue="q", job_id="a:b"), "no colon"),
        (Node("n", {"__parentId": 1}, queue="q"), "begin with __ are reserved"),
        (Node("n", queue="q", dedup="k"), "dedup is not for jobs of a flow"),
        (Node("n", queue="q", parent="k"), "parent is not for jobs of a flow"),
        (Node("n", queue="q", on_child_failure="fail"), "on_child_failure is for children"),
        (Node("n", queue="q", children=[Node("m") for _ in range(10_000)]), "at most 10000 jobs"),
        (deep(100), "at most 100 levels"),
    ],
)
def test_flows_that_cannot_be_added(node: Node, said: str) -> None:
    with FlowProducer("memory://") as flows, Queue("q", "memory://") as queue:
        with pytest.raises(FlowError, match=said):
            flows.add(node)
        assert queue.counts().total == 0


def test_the_deepest_flow(name: str) -> None:
    with FlowProducer("memory://") as flows:
        node = flows.add(deep(99))
        depth = 0
        while node.children:
            node, depth = node.children[0], depth + 1
        assert depth == 100
        with pytest.raises(FlowError, match="children are for trees"):
            flows.chain(Node("n", queue="q", children=[Node("m")]))


@pytest.mark.parametrize("n", [0, 1, 3000])
def test_c053_any_number_of_children(engine_url: str, name: str, n: int) -> None:
    def process(job: Any) -> Any:
        if job.name == "child":
            return job.data["n"]
        values = job.children_values()
        assert isinstance(values, dict)
        return len(values), sum(values.values())

    with Queue(name, engine_url) as queue, FlowProducer(engine_url) as flows:
        children = [Node("child", {"n": i}) for i in range(n)]
        made = flows.add(Node("parent", queue=name, children=children))
        with Worker(queue, process, concurrency=20, batch_size=100):
            assert made.job.result(60) == [n, n * (n - 1) // 2]
        chained = flows.chain(*(Node("child", {"n": i}, queue=name) for i in range(min(n, 2))))
        assert len(chained) == min(n, 2)
