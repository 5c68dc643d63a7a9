"""The compiled engine and its plain twin, in random walks over jobs that are tied to each other."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from qcore.reference.flows import FlowEngine

sys.path.insert(0, str(Path(__file__).parent))

from test_engine import StoredEngineMachine, answer

NAMES = ("one", "two", "three", "four", "00000000-0000-7000-8000-000000000001")
POLICIES = {
    "fail": "failParentOnFailure",
    "continue": "continueParentOnFailure",
    "ignore": "ignoreDependencyOnFailure",
    "remove": "removeDependencyOnFailure",
}
names = st.sampled_from(NAMES)
policies = st.sampled_from([None, *POLICIES])


class FlowMachine(StoredEngineMachine):
    twin_class = FlowEngine
    twin: FlowEngine

    @initialize(
        seed=st.binary(min_size=16, max_size=16),
        family=st.permutations(NAMES),
        kinds=st.lists(policies, min_size=2, max_size=4),
    )
    def start(self, seed: bytes, family: list[str], kinds: list[str | None]) -> None:  # type: ignore[override]
        """No walk is without ties."""
        super().start(seed)
        self.push_tree(family, kinds)

    @rule(
        queue=st.sampled_from("ab"),
        job_id=st.none() | names,
        depends_on=st.lists(names, max_size=3),
        parent=st.none() | names,
        policy=policies,
        data=st.data(),
        remove_on_complete=st.booleans(),
        remove_on_fail=st.booleans(),
        delay_ms=st.sampled_from([0, 0, 30]),
        attempts=st.integers(1, 2),
        ends=st.sampled_from(
            [{}, {}, {"ttl_ms": 20}, {"timeout_ms": 20}, {"ttl_ms": 1000, "timeout_ms": 50}]
        ),
    )
    def push_tied(
        self,
        queue: str,
        job_id: str | None,
        depends_on: list[str],
        parent: str | None,
        policy: str | None,
        data: st.DataObject,
        ends: dict[str, int],
        **options: Any,
    ) -> None:
        token = None
        if parent is not None:
            held = [token for name, token in self.deliveries if name == parent]
            token = held[-1] if held and data.draw(st.booleans()) else None
        extra: dict[str, Any] = {name.removesuffix("_ms"): ms for name, ms in ends.items()}
        if depends_on:
            extra["dependsOn"] = depends_on
        if parent is not None:
            extra["parentId"] = parent
        if policy is not None:
            extra[POLICIES[policy]] = True
        got = answer(
            lambda: self.engine.push(
                queue,
                b"\x02",
                self.ms,
                job_id=job_id,
                backoff_ms=0,
                extra=extra or None,
                parent_token=token,
                **options,
            )
        )
        new_id = got if isinstance(got, str) else "refused"
        assert got == answer(
            lambda: self.twin.push(
                queue,
                b"\x02",
                self.ms,
                new_id=new_id,
                job_id=job_id,
                depends_on=tuple(depends_on),
                parent=parent,
                policy=policy,
                parent_token=token,
                **ends,
                **options,
            )
        )
        if isinstance(got, str) and got not in self.ids:
            self.ids.append(got)

    def push_both(self, queue: str, job_id: str, extra: dict[str, Any], **ties: Any) -> None:
        got = answer(
            lambda: self.engine.push(
                queue, b"\x02", self.ms, job_id=job_id, backoff_ms=0, attempts=1, extra=extra or None
            )
        )
        assert got == answer(
            lambda: self.twin.push(queue, b"\x02", self.ms, new_id="", job_id=job_id, attempts=1, **ties)
        )
        if job_id not in self.ids:
            self.ids.append(job_id)

    @rule(family=st.permutations(NAMES), kinds=st.lists(policies, min_size=1, max_size=4))
    def push_tree(self, family: list[str], kinds: list[str | None]) -> None:
        """A parent, and as many children as there are policies."""
        self.push_both("a", family[0], {})
        for child, policy in zip(family[1:], kinds, strict=False):
            extra: dict[str, Any] = {"parentId": family[0]}
            if policy is not None:
                extra[POLICIES[policy]] = True
            self.push_both("b", child, extra, parent=family[0], policy=policy)

    @rule(
        outcomes=st.lists(
            st.sampled_from(
                ["done", "removed", "failed", "failed", "lost", "gone", "discarded", "cleaned", "late"]
            ),
            min_size=1,
            max_size=4,
        )
    )
    def run_children(self, outcomes: list[str]) -> None:
        for outcome in outcomes:
            self.pull("b", 1000, 0)
            if not self.deliveries:
                continue
            job_id, token = self.deliveries[-1]
            if outcome == "lost":
                self.advance(1000, True)
            elif outcome == "gone":
                self.same("remove", job_id)
            elif outcome == "discarded":
                self.both("discard", job_id, token=token)
            elif outcome == "cleaned":
                self.both("ack", job_id, token=token, result=b"\x07")
                self.same("clean", "b", self.ms, state="completed", grace_ms=0, limit=1000)
            elif outcome == "late":
                self.advance(1000, True)
                self.both("ack", job_id, token=token, result=b"\x07")
            elif outcome == "failed":
                self.both("fail", job_id, token=token, error="no")
            else:
                self.both("ack", job_id, token=token, result=b"\x07", remove=outcome == "removed")

    @rule(queue=st.sampled_from("ab"), keep=st.booleans(), remove=st.booleans())
    def finish_next(self, queue: str, keep: bool, remove: bool) -> None:
        self.pull(queue, 1000, 0)
        if self.deliveries:
            job_id, token = self.deliveries[-1]
            if keep:
                self.both("ack", job_id, token=token, result=b"\x07", remove=remove)
            else:
                self.both("fail", job_id, token=token, error="no", unrecoverable=True, remove=remove)

    @rule(data=st.data(), leave=st.booleans())
    def move_to_waiting_children(self, data: st.DataObject, leave: bool) -> None:
        job_id, token = self.some_delivery(data)
        self.both("move_to_waiting_children", job_id, token=token, leave=leave)

    @rule(child=names, parent=names, data=st.data())
    def update_parent(self, child: str, parent: str, data: st.DataObject) -> None:
        held = [token for name, token in self.deliveries if name == parent]
        token = held[-1] if held and data.draw(st.booleans()) else None
        self.same("update_parent", child, parent, self.ms, token=token)

    @rule(child=names)
    def remove_child_dependency(self, child: str) -> None:
        self.same("remove_child_dependency", child, self.ms)

    @rule(parent=names)
    def remove_unprocessed_children(self, parent: str) -> None:
        self.same("remove_unprocessed_children", parent, self.ms)

    @rule(job_id=names)
    def retry_tied(self, job_id: str) -> None:
        for queue in "ab":
            self.same("retry_dead", queue, self.ms, job_id=job_id)

    @invariant()
    def agree_on_ties(self) -> None:
        if not hasattr(self, "twin"):
            return
        for job_id in NAMES:
            assert self.engine.dependencies(job_id) == self.twin.dependencies(job_id), job_id
            for policy in ("continue", "ignore"):
                assert self.engine.child_failures(job_id, policy) == self.twin.child_failures(job_id, policy)


# What has nothing to do with ties is walked elsewhere; here it would only dilute.
for name in (
    "add_log",
    "configure",
    "metrics",
    "purge_dead",
    "remove_dead",
    "remove_job_key",
    "remove_key",
    "trim_events",
    "update",
    "change_priority",
    "clear_logs",
    "close_session",
    "look",
    "progress",
    "promote_jobs",
    "pull_and_finish",
    "pull_many",
    "push",
    "push_many",
    "renew",
    "save_nothing_new",
    "step_wall_clock",
):
    setattr(FlowMachine, name, None)

TestFlows = FlowMachine.TestCase
# What counts is deep in a walk, so more walks than usual.
TestFlows.settings = settings(max_examples=max(150, settings().max_examples), stateful_step_count=40)
