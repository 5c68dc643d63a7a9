"""What a job is tied to, from Python."""

from __future__ import annotations

from qclient import Dependencies, FlowProducer, Node, Queue


def test_a_child_that_is_gone_shows_as_missing(engine_url: str) -> None:
    with FlowProducer(engine_url) as flows, Queue("ties-asked", engine_url):
        children = [Node(queue="ties-asked", name=name) for name in ("stays", "goes")]
        top = flows.add(Node(queue="ties-asked", name="top", children=children))
        stays, goes = (child.job for child in top.children)
        assert goes.remove()
        assert top.job.dependencies() == Dependencies(
            processed={}, unprocessed=(stays.id,), failed=(), ignored=(), missing=(goes.id,)
        )
        counts = top.job.dependency_counts()
        assert (counts["unprocessed"], counts["missing"]) == (1, 1)
        found = flows.get(top.job.id)
        assert found is not None
        assert [child.job.id for child in found.children] == [stays.id]
        assert found.missing == (goes.id,)


def test_an_add_may_come_before_what_it_depends_on(engine_url: str) -> None:
    with Queue("ties-early", engine_url) as queue:
        early = queue.add("n", depends_on=["later-1"], allow_unknown_dependencies=True)
        assert early.dependencies().missing == ("later-1",)
        queue.add("n", job_id="later-1")
        assert early.dependencies().unprocessed == ("later-1",)
