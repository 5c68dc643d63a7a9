"""What clients were promised, written down as they heard it, and held against what happens.

Independent of the model: it knows requests, replies and what a durability level says.
Only jobs whose ids the broker drew are followed; those belong to one add for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qcore.engine.engine import Engine
from qcore.simulate.matching import Failure
from qcore.simulate.model import Config

#: Commands that may touch any job of their queue.
QUEUE_WIDE = frozenset(
    [
        "Drain",
        "Clean",
        "Obliterate",
        "RetryCompleted",
        "RetryDlq",
        "PurgeDlq",
        "SetDlqConfig",
        "SetStallConfig",
    ]
)
Order = tuple[int, int]


@dataclass
class Added:
    """An add that was confirmed and that nothing has touched since."""

    order: tuple[Order, int]  # of its request, and its place in that
    producer: int
    queue: str
    durable: bool


def _order(req_id: str) -> Order:
    step, _, index = req_id.partition(".")
    return int(step), int(index)


class Ledger:
    """Promises that were heard and still hold."""

    def __init__(self) -> None:
        self._added: dict[str, Added] = {}
        self._done: dict[str, int] = {}  # and when that was heard
        self._moment = 0
        #: Of deliveries since jobs were last asked to run once more: the end of an earlier one is no news.
        self._tokens: set[str | None] = set()
        self._touched: set[str] = set()  # delivered, perhaps before the reply to their add was heard
        self._reset: Order = (-1, 0)
        self._sent: dict[str, tuple[int, Mapping[str, Any], int]] = {}
        self._newest: Order = (-1, 0)  # of the requests sent
        self._everywhere: Order = (-1, 0)  # the last request that may have touched any job at all
        self._wide: dict[str, Order] = {}  # queue -> the last request that may have touched any of its jobs

    def sent(self, producer: int, req_id: str, request: Mapping[str, Any]) -> None:
        """A request is on its way: from here on it may take effect, heard of or not."""
        self._moment += 1
        self._newest = max(self._newest, _order(req_id))
        self._sent[req_id] = (producer, request, self._moment)
        named = [request.get(name) for name in ("id", "jobId", "parentId", "childId")]
        for job_id in (*named, *request.get("ids", ()), *request.get("dependsOn", ())):
            self._added.pop(job_id, None)
            if job_id is not None:
                self._touched.add(job_id)  # perhaps before the reply to its add was heard
        cmd = request["cmd"]
        if cmd in QUEUE_WIDE:
            queue = request["queue"]
            self._wide[queue] = _order(req_id)
            self._forget(queue)
        if cmd == "RemoveUnprocessedChildren":  # which may be anywhere
            self._everywhere = _order(req_id)
            self._added.clear()
        if cmd == "RetryCompleted":
            self._done.clear()
            self._tokens.clear()
            self._reset = _order(req_id)

    def closed(self, producer: int) -> None:
        """The connection is gone: it hears nothing more."""
        for req_id in [req_id for req_id, (whose, _, _) in self._sent.items() if whose == producer]:
            self._unheard(self._sent.pop(req_id)[1])

    def _unheard(self, request: Mapping[str, Any]) -> None:
        """What a lost reply may have delivered is nobody's promise any more."""
        if request["cmd"] in ("PULL", "PULLB"):
            self._forget(request["queue"])
            # Nor is an add whose own reply is still to be heard.
            self._wide[request["queue"]] = self._newest

    def _forget(self, queue: str) -> None:
        for job_id in [one for one, added in self._added.items() if added.queue == queue]:
            del self._added[job_id]

    def heard(self, reply: Mapping[str, Any]) -> None:
        order = _order(reply["reqId"])
        producer, request, sent_at = self._sent.pop(reply["reqId"])
        cmd = request["cmd"]
        if cmd in ("PULL", "PULLB"):
            for job in _jobs(reply):
                self._delivered(job, sent_at)
            if order > self._reset:
                self._tokens.update(reply.get("tokens", ()) or [reply.get("token")])
            return
        if not reply["ok"]:
            return
        if cmd in ("PUSH", "PUSHB"):
            self._confirmed(order, producer, request, reply)
        elif cmd in ("ACK", "ACKB") and order > self._reset:
            self._finished(request, reply)

    def _delivered(self, job: Mapping[str, Any], sent_at: int) -> None:
        self._added.pop(job["id"], None)
        self._touched.add(job["id"])
        if sent_at > self._done.get(job["id"], sent_at):
            raise Failure(f"job {job['id']} was confirmed as done and is delivered again")
        if job["attempts"] >= job["maxAttempts"]:
            raise Failure(f"job {job['id']} starts after {job['attempts']} of {job['maxAttempts']} attempts")

    def _confirmed(
        self, order: Order, producer: int, request: Mapping[str, Any], reply: Mapping[str, Any]
    ) -> None:
        queue = request["queue"]
        ids = reply["ids"] if "ids" in reply else [reply["id"]]
        options = request.get("jobs", [request])
        durable = any(option.get("durable") for option in options)
        for index, (job_id, option) in enumerate(zip(ids, options, strict=True)):
            drawn = not {"jobId", "customId", "uniqueKey", "debounceId"} & option.keys()
            if job_id in self._touched:
                continue
            seen = max(self._everywhere, self._wide.get(queue, (-1, 0)))
            if drawn and "ttl" not in option and order > seen:
                self._added[job_id] = Added((order, index), producer, queue, durable)

    def _finished(self, request: Mapping[str, Any], reply: Mapping[str, Any]) -> None:
        data = reply.get("data", {})
        if "applied" in data:
            return
        ids = request["ids"] if "ids" in request else [request["id"]]
        tokens = request.get("tokens") or [request.get("token")] * len(ids)
        ignored = {ids[index] for index in data.get("ignoredIndices", ())}
        for job_id, token in zip(ids, tokens, strict=True):
            news = token is None or token in self._tokens
            if news and job_id not in ignored and _drawn(job_id):
                self._done[job_id] = self._moment

    def crash(self, config: Config, *, power: bool) -> None:
        """The process ended; with ``power``, what was not synced may be gone as well."""

        def keeps(*levels: str) -> bool:
            return "synced" in levels or not power

        for _, request, _ in self._sent.values():
            self._unheard(request)
        self._sent.clear()
        if not (config.hold_changes and keeps(config.changes)):
            self._done.clear()
        for added in self._added.values():
            durable = added.durable and keeps(config.adds, config.changes)
            added.durable = durable or (config.hold_adds and keeps(config.adds))

    def reopened(self, engine: Engine) -> None:
        """What a new process found on the disk keeps the promises."""
        for job_id in self._done:
            if engine.state(job_id) not in ("completed", "unknown"):
                raise Failure(f"job {job_id} was confirmed as done and is {engine.state(job_id)}")
        lost: set[int] = set()
        for job_id, added in sorted(self._added.items(), key=lambda item: item[1].order):
            if engine.state(job_id) == "unknown":
                if added.durable:
                    raise Failure(f"job {job_id} was confirmed as committed and is gone")
                lost.add(added.producer)
            elif added.producer in lost:
                raise Failure(f"job {job_id} is there, and one that its producer added before is not")
        self._added.clear()
        self._touched.clear()


def _drawn(job_id: str) -> bool:
    """Whether the broker chose this id: those that clients choose here do not look so."""
    return len(job_id) == 36


def _jobs(reply: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if reply.get("job") is not None:
        yield reply["job"]
    yield from reply.get("jobs", ())
