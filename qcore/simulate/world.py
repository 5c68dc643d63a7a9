"""A whole broker and its surroundings, driven step by step beside its model.

A step is plain data, so a history can be written down, cut and run again. Where a
step names a job or a token, it does so by the request that made it (``@17.0.2``, the
third job of the first request of step 17), which means the same in a shorter history.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import msgpack

from qcore.broker.core import Broker
from qcore.broker.opening import close_broker, open_broker
from qcore.broker.session import Session
from qcore.clock import ManualClock
from qcore.errors import NotFoundError, StoreError
from qcore.reference.schedules import SavedSchedules
from qcore.simulate.disk import Disk
from qcore.simulate.ledger import Ledger
from qcore.simulate.matching import Failure, Id, Names
from qcore.simulate.model import Config, CutState, Model, limited
from qcore.simulate.plain import PlainEngine
from qcore.simulate.requests import serve
from qcore.store.base import INSERT_WIDTH, UPDATE_WIDTH, Cut

Step = dict[str, Any]

WRONG_TOKEN = "0badc0de-0000-4000-8000-000000000000"
DAY_MS = 86_400_000
#: So few that most cuts of a disk that takes packed rows have some that were encoded ahead.
AHEAD_ROWS = 2


def rows_of(cut: Cut) -> dict[int, tuple[int, object]]:
    """State and bytes of every row that a cut writes, by the number of the job."""
    cut = cut.unpacked()
    rows: dict[int, tuple[int, object]] = {}
    flat = cast(list[Any], cut.inserts)
    for i in range(0, len(flat), INSERT_WIDTH):
        rows[flat[i]] = (flat[i + 2], (flat[i + 3], flat[i + 4], flat[i + 5]))
    flat = cast(list[Any], cut.updates)
    for i in range(0, len(flat), UPDATE_WIDTH):
        rows[flat[i]] = (flat[i + 1], (flat[i + 2], flat[i + 3]))
    return rows


def queues_of(cut: Cut) -> dict[int, Mapping[str, Any] | None]:
    """What a cut writes of queues, by index, in order; None of those whose rows go."""
    states = sorted(cut.queues, key=lambda row: row[0])
    return {index: None if state is None else msgpack.unpackb(state) for index, state in states}


def _tied(ties: dict[str, list[str]] | None) -> dict[str, list[Id]]:
    return {kind: [Id(one) for one in ids] for kind, ids in (ties or {}).items()}


class World:
    """Everything that one history happens to. The first step must be ``boot``."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.names = Names()
        self.ledger = Ledger()
        self.n_requests = 0
        self.n_crashes = 0
        self.disk: Disk
        self.broker: Broker
        self.model: Model
        self.sessions: dict[int, Session] = {}
        self._connections: dict[int, int] = {}
        self._n_connections = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self._lag = 0
        self._in_flight: tuple[Cut, CutState, int] | None = None
        self._last_change_ns = 0
        #: The model as of the last sync, and as of every cut since then.
        self._cuts = [CutState(SavedSchedules(), {}, open=False)]

    @property
    def digest(self) -> str:
        """A hash of everything that the broker has said."""
        return self._digest.hexdigest()

    def step(self, step: Step) -> None:
        """Do one step and compare. Raises Failure, or whatever the broker raises."""
        self._digest.update(repr(step["u"]).encode())
        getattr(self, "_do_" + step["do"])(step)

    # --- beginnings and ends -----------------------------------------------------------------

    def _do_boot(self, step: Step) -> None:
        config = Config(**step["config"])
        self.disk = Disk(config.takes_packed)
        self.model = Model(config, self.clock, self._run_ms)
        self._open(step["u"])
        self._turn()

    def _open(self, u: int) -> None:
        config = self.model.config
        self.broker = open_broker(
            mode=config.mode,
            adds=config.adds,
            changes=config.changes,
            clock=self.clock,
            seed=u.to_bytes(16, "big"),
            store=self.disk.open(),
            flush_ms=config.flush_ms,
            ahead_rows=AHEAD_ROWS,
            completed_retention_ms=None,  # the model knows no end by age
        )
        # The mark of an open file went in as a cut of its own.
        self._cuts.append(replace(self._cuts[-1], open=True))
        self._changed()

    def _run_ms(self, model_id: str) -> int | None:
        real = self.names.real(model_id)
        if real is None:
            # Lost before the reply with its id went out: both give their jobs the same numbers.
            real = self.broker.engine._numbered().get(self.model.plain.jobs[model_id].seq)
            if real is None:
                return None
            self.names.bind(model_id, real)
        try:
            return self.broker.engine.run_at_ms(real)
        except NotFoundError:
            return None

    def _do_crash(self, step: Step) -> None:
        """The process ends without a word, perhaps in the middle of a commit; then a new one starts."""
        if step["commit"] != "none":
            if self._in_flight is None:
                self._take(self.broker.begin_commit())
            if self._in_flight is not None and step["commit"] == "written":
                self._write(None)
        n_lost = 0
        if step["power"]:
            n_lost = round(step["loss"] * self.disk.n_unsynced)
            self.disk.lose(n_lost)
            del self._cuts[len(self._cuts) - n_lost :]
        self.n_crashes += 1
        self.ledger.crash(self.model.config, power=step["power"])
        self._reopen(step)

    def _do_restart(self, step: Step) -> None:
        """A clean end: no session left, everything flushed, the file closed."""
        for session in list(self.sessions):
            self._close_session(session, release=False)
        self.disk.fault = None
        self._settle()
        close_broker(self.broker)
        self._cuts = [replace(self._cuts[-1], open=False)]
        self._reopen(step)

    def _reopen(self, step: Step) -> None:
        self.sessions.clear()
        self._connections.clear()
        self._in_flight = None
        self.disk.fault = None
        self.clock.advance(step["away_ms"])
        if step["reboot"]:
            self.clock = ManualClock(self.clock.now_ms(), 5)
            self.model.clock = self.clock
        if step["wall_ms"]:
            self.clock.set_wall(self.clock.now_ms() + step["wall_ms"])
        old = self.model.config
        config = Config(step["mode"], old.adds, old.changes, old.takes_packed, old.flush_ms)
        self.model.restart(config, self._cuts[-1])
        self._recover_twice(step["u"])
        self._open(step["u"])
        self.agree()
        self.ledger.reopened(self.broker.engine)
        self._turn()

    def _recover_twice(self, u: int) -> None:
        """Recovering from what recovery wrote gives what recovery gave, in the order of the model."""
        config = self.model.config
        disk = self.disk.copy()
        seen = []
        for attempt in range(2):
            broker = open_broker(
                mode=config.mode,
                adds=config.adds,
                changes=config.changes,
                clock=self.clock,
                seed=(u + attempt).to_bytes(16, "big"),
                store=disk.open(),
                completed_retention_ms=None,
            )
            engine = broker.engine
            engine._check()
            ids = [job_id for name in engine.queue_names() for job_id in self._listed(broker, name)]
            seen.append(
                [
                    (job_id, engine.state(job_id), engine.attempts(job_id), engine.run_at_ms(job_id))
                    for job_id in ids
                ]
            )
            cut = broker.begin_commit()
            if cut is not None:
                broker.store.commit(cut)
                broker.end_commit()
        if seen[0] != seen[1]:
            raise Failure(f"recovery gave {seen[0]}, and again {seen[1]}")
        plain = self.model.plain.twin()
        for name, q in plain.queues.items():
            if limited(q):
                continue
            engine.pause(name, False)
            plain.pause(name, False)
            order = engine.pull_many(name, 10_000, self.clock.now_ms(), self.clock.now_ns())
            expected = self._pulled(plain, name)
            got = [job_id for job_id, _, _ in order]
            if len(got) != len(expected):
                raise Failure(f"{name} holds {len(expected)} ready jobs, and {len(got)} after recovery")
            for model_id, real in zip(expected, got, strict=True):
                self.names.bind(model_id, real)
        now_ms = self.clock.now_ms()
        for name in plain.queues:
            cleaned = engine.clean(name, now_ms, state="completed", limit=10_000)
            ended = [
                self.names.real(one) for one in plain.clean(name, now_ms, state="completed", limit=10_000)
            ]
            if cleaned != ended:
                raise Failure(f"completed jobs of {name}, oldest first: {cleaned}, expected {ended}")

    def _pulled(self, plain: PlainEngine, name: str) -> list[str]:
        """What pulls get now, until there is nothing: the end of one whose time is over may let others go."""
        ids = []
        while (one := plain.pull(name, self.clock.now_ms(), self.clock.now_ns())) is not None:
            ids.append(one[0])
        return ids

    def _listed(self, broker: Broker, name: str) -> list[str]:
        return broker.engine.list_jobs(name, self.clock.now_ms(), limit=100_000)

    # --- talking -------------------------------------------------------------------------------

    def _session(self, number: int) -> int:
        """The connection that a client has open, with a number of its own."""
        if number not in self._connections:
            self._n_connections += 1
            self._connections[number] = self._n_connections
            self.sessions[self._n_connections] = self.broker.session()
        return self._connections[number]

    def _do_feed(self, step: Step) -> None:
        """Frames of one client, cut into pieces at random."""
        number = self._session(step["s"])
        session = self.sessions[number]
        frames = []
        for index, template in enumerate(step["r"]):
            req_id = f"{step['u']}.{index}"
            real, model = self._resolved(template)
            self.ledger.sent(number, req_id, real)
            frames.append((self._frame({**real, "reqId": req_id}), {**model, "reqId": req_id}))
        self.n_requests += len(frames)
        data = b"".join(frame for frame, _ in frames)
        cuts = sorted({int(part * len(data)) for part in step["cut"]} | {len(data)})
        ends, at = [], 0
        for frame, _ in frames:
            at += len(frame)
            ends.append(at)
        done = sent = 0
        for cut in cuts:
            session.feed(data[sent:cut])
            sent = cut
            while done < len(frames) and ends[done] <= cut:
                serve(self.model, (number, frames[done][1]["reqId"]), frames[done][1])
                done += 1
            self.model.serve_waits()
            self.model.tell()
            self._collect()
        self._changed()
        if step.get("turn", True):
            self._turn()

    @staticmethod
    def _frame(request: Mapping[str, Any]) -> bytes:
        body = msgpack.packb(request)
        return len(body).to_bytes(4, "big") + bytes(body)

    def _resolved(self, template: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """A request as it goes out, and as the model understands it."""
        real, model = dict(template), dict(template)
        for name in ("id", "jobId", "parentId", "childId"):
            if name in template:
                real[name], model[name] = self._job(template[name])
        if "ids" in template:
            pairs = [self._job(one) for one in template["ids"]]
            real["ids"], model["ids"] = [one for one, _ in pairs], [one for _, one in pairs]
        if "dependsOn" in template:
            pairs = [self._job(one) for one in template["dependsOn"]]
            real["dependsOn"], model["dependsOn"] = [one for one, _ in pairs], [one for _, one in pairs]
        if "token" in template:
            real["token"], model["token"] = self._token(template["token"], model["id"])
        if "parentToken" in template:
            held = self._token(template["parentToken"], model["parentId"])
            real["parentToken"], model["parentToken"] = held
        if "tokens" in template:
            known = [
                self._token(one, job_id) for one, job_id in zip(template["tokens"], model["ids"], strict=True)
            ]
            real["tokens"], model["tokens"] = [one for one, _ in known], [one for _, one in known]
        return real, model

    def _job(self, reference: str) -> tuple[str, str]:
        if not reference.startswith("@"):
            return reference, reference
        model_id = self.model.tags.get(reference[1:])
        real = None if model_id is None else self.names.real(model_id)
        if model_id is None or real is None:
            # Nobody has seen it yet, or it never was.
            return f"unseen-{reference}", f"unseen-{reference}"
        return real, model_id

    def _token(self, which: int | None, model_id: str) -> tuple[str | None, str | None]:
        """The token number ``which`` of a job, -1 the newest; None for none."""
        if which is None:
            return None, None
        known = self.names.tokens.get(model_id, [])
        if which >= 0 or -which > len(known):
            return WRONG_TOKEN, WRONG_TOKEN
        return known[which], self.names.token_model[known[which]]

    def _collect(self) -> None:
        """Every reply that is out must have been expected, and every one that is due must be out."""
        expected = self.model.expected
        for number, session in self.sessions.items():
            if not session.has_output:
                continue
            data = session.take()
            self._digest.update(data)
            at = 0
            while at < len(data):
                n = int.from_bytes(data[at : at + 4], "big")
                reply = msgpack.unpackb(data[at + 4 : at + 4 + n], strict_map_key=False)
                at += 4 + n
                key = (number, reply.get("reqId"))
                due = expected.get(key)
                if due is None:
                    raise Failure(f"a reply that nobody waits for: {reply}")
                if due.where != "out":
                    raise Failure(f"the reply to {due.request} is out, but {due.where} in the model: {reply}")
                self.names.match(due.reply, reply, str(due.request["cmd"]))
                self.ledger.heard(reply)
                del expected[key]
        for due in expected.values():
            if due.where == "out":
                raise Failure(f"no reply to {due.request}, expected {due.reply}")

    def _do_close(self, step: Step) -> None:
        number = self._connections.pop(step["s"], None)
        if number is not None:
            self._close_session(number, release=True)
            self._changed()
        self._turn()

    def _close_session(self, number: int, release: bool) -> None:
        self.sessions.pop(number).close(release=release)
        self.model.close_session(number, release)
        self.ledger.closed(number)
        self._collect()

    # --- time ------------------------------------------------------------------------------------

    def _do_time(self, step: Step) -> None:
        """Both clocks go on; then the wall clock alone may jump."""
        ms = step["ms"]
        if step.get("due"):
            left = self.broker.engine.next_due(self.clock.now_ms(), self.clock.now_ns())
            ms = 0 if left is None else min(left // 1_000_000 + ms, DAY_MS)
        self.clock.advance(max(0, ms))
        if step.get("wall_ms"):
            self.clock.set_wall(self.clock.now_ms() + step["wall_ms"])
        if step.get("turn", True) or self.model.waits:
            self._turn()

    # --- commits ---------------------------------------------------------------------------------

    def _do_disk(self, step: Step) -> None:
        self.disk.fault = step["fault"]
        self._lag = step["lag"]
        self._turn()

    def _do_sync(self, step: Step) -> None:
        self.disk.sync()
        del self._cuts[:-1]

    def _changed(self) -> None:
        self._last_change_ns = self.clock.now_ns()

    def _turn(self) -> None:
        """One round of the host: what is due, and a cut if one is wanted."""
        while True:
            clean = not self.broker.unflushed
            _, cut = self.broker.pump()
            self.model.turn()
            if clean:
                self._changed()  # what fell due just now is as fresh as what was asked for
            if cut is None:
                self._check_no_cut()
            self._take(cut)
            self._collect()
            if self._in_flight is None or self._in_flight[2] > 0:
                break
            self._write("fault")
            self._collect()
        if self._in_flight is not None:
            self._in_flight = (*self._in_flight[:2], self._in_flight[2] - 1)

    def _check_no_cut(self) -> None:
        """No cut was taken: nobody may wait for one, and nothing be dirty for long."""
        model = self.model
        if self._in_flight is not None:
            return
        now_ns = self.clock.now_ns()
        if model.retry_at_ns:
            if now_ns >= model.retry_at_ns:
                raise Failure("a failed commit is not tried again")
            return
        if model.holding:
            raise Failure("a reply waits for a commit, and none begins")
        if self.broker.unflushed and now_ns - self._last_change_ns > model.config.flush_ms * 1_000_000:
            raise Failure(f"{self.broker.unflushed} changes are not written after the flush window")

    def _take(self, cut: Cut | None) -> None:
        if cut is None:
            return
        if self._in_flight is not None:
            raise Failure("two commits at once")
        self._in_flight = (cut, self.model.begin_commit(rows_of(cut), queues_of(cut)), self._lag)

    def _write(self, report: str | None) -> None:
        """Write the cut that was taken. ``report`` None: the process dies before it hears of it."""
        assert self._in_flight is not None
        cut, state, _ = self._in_flight
        n_cuts = self.disk.n_cuts
        error = None
        try:
            self.broker.store.commit(cut, sync=self.broker.sync)
        except StoreError as fault:
            error = fault
        if self.disk.n_cuts > n_cuts:
            self._cuts.append(state)
            if not self.disk.n_unsynced:
                del self._cuts[:-1]
        self._in_flight = None
        if report is None:
            return
        clean = not self.broker.unflushed
        self.broker.end_commit(error)
        if clean:
            self._changed()  # what it published may have been delivered at once
        self.model.end_commit(
            None if error is None else getattr(error, "kind", "other"),
            unsure=getattr(error, "unsure", False),
        )

    def _settle(self) -> None:
        """Write until there is nothing to write."""
        while True:
            if self._in_flight is None:
                self._take(self.broker.begin_commit())
            if self._in_flight is None:
                return
            self._write("fault")
            self._collect()

    # --- agreement ---------------------------------------------------------------------------------

    def agree(self) -> None:
        """The whole state of the broker is that of the model; O(n)."""
        engine, plain = self.broker.engine, self.model.plain
        engine._check()
        engine._check_order()
        now_ms, now_ns = self.clock.now_ms(), self.clock.now_ns()
        if len(engine) != plain.size() + len(self.model.staged):
            raise Failure(f"{len(engine)} jobs, expected {plain.size()} and {len(self.model.staged)} staged")
        for name in plain.queues:
            self.names.match(plain.counts(name, now_ms), engine.counts(name, now_ms), f"counts of {name}")
            expected = plain.list_jobs(name, now_ms, limit=100_000)
            got = self._listed(self.broker, name)
            if len(expected) != len(got):
                raise Failure(f"{name} holds {len(got)} jobs, expected {len(expected)}")
            for model_id, real in zip(expected, got, strict=True):
                self.names.bind(model_id, real)
                job = plain.jobs[model_id]
                for what, mine, theirs in (
                    ("state", plain.state(model_id), engine.state(real)),
                    ("attempts", job.attempts, engine.attempts(real)),
                    ("run time", job.run_ms, engine.run_at_ms(real)),
                    ("result", plain.result(model_id), engine.result(real)),
                    ("log", plain.logs(model_id), engine.logs(real)),
                ):
                    if mine != theirs:
                        raise Failure(f"{what} of {real}: expected {mine!r}, got {theirs!r}")
                self.names.match(
                    _tied(plain.dependencies(model_id)), engine.dependencies(real), f"ties of {real}"
                )
                if job.attempts > job.max_attempts:
                    raise Failure(f"{real} was charged {job.attempts} of {job.max_attempts} attempts")
            dead = [entry[0] for entry in engine.dead_letters(name)]
            buried = [self.names.real(one) for one in plain.failed(name)]
            if dead != buried:
                raise Failure(f"dead letters of {name}: {dead}, expected {buried}")
            q, counted = engine.queue(name), plain.queues[name]
            if q is None:
                raise Failure(f"no queue {name}")
            totals = (q.total_pushed, q.total_pulled, q.total_completed, q.total_failed)
            if totals != (counted.pushed, counted.pulled, counted.completed, counted.failed):
                raise Failure(f"totals of {name}: {totals}, expected {counted}")
            if q.paused != counted.paused:
                raise Failure(f"{name}: paused is {q.paused}")
        names = sorted(engine.queue_names())
        if names != sorted(plain.queues):
            raise Failure(f"queues: {names}, expected {sorted(plain.queues)}")
        totals_of_all = engine.totals(now_ms)
        for what, named in (
            ("pushed", "pushed"),
            ("pulled", "pulled"),
            ("completed", "total_completed"),
            ("failed", "total_failed"),
        ):
            total = plain.past[what] + sum(getattr(q, what) for q in plain.queues.values())
            if totals_of_all[named] != total:
                raise Failure(f"{what} of all queues: {totals_of_all[named]}, expected {total}")
        plans = sorted((plan.next_ms, name, plan.executions) for name, plan in plain.plans.items())
        schedules = [(one.next_ms, one.name, one.executions) for one in engine.list_schedules()]
        if plans != schedules:
            raise Failure(f"schedules: {schedules}, expected {plans}")
        mine, theirs = plain.next_due(now_ms, now_ns), engine.next_due(now_ms, now_ns)
        if any(limited(q) for q in plain.queues.values()):
            # It may look at a limit earlier than the plain one, which finds out by trying.
            if mine is not None and (theirs is None or theirs > mine):
                raise Failure(f"the engine next wakes in {theirs} ns, expected {mine} or less")
        elif mine != theirs:
            raise Failure(f"the engine next wakes in {theirs} ns, expected {mine}")

    def finish(self) -> None:
        """Bring everything to rest: no fault, no connection, all time over."""
        self.disk.fault = None
        self._lag = 0
        # What schedules would add in all the time that follows is of no interest.
        ends = [{"cmd": "CronDelete", "name": name} for name in self.model.plain.plans]
        if ends:
            self._do_feed({"s": 0, "r": ends, "cut": [], "u": 1 << 40})
        self.clock.advance(60_000)
        self._turn()
        self._settle()
        self.agree()
        for due in self.model.expected.values():
            if due.where != "wait":
                raise Failure(f"no reply to {due.request} at rest")
        for number in list(self.sessions):
            self._close_session(number, release=True)
        self._connections.clear()
        self._changed()
        self.clock.advance(DAY_MS * 40_000)
        self._turn()
        self._settle()
        self.agree()
        for name in self.model.plain.queues:
            counts = self.broker.engine.counts(name, self.clock.now_ms())
            if counts["active"]:
                raise Failure(f"{name}: {counts['active']} jobs active at rest")
        for _ in range(3):
            # The first look finds what nobody uses, the third that it was so for long enough.
            self._changed()
            self.clock.advance(300_000)
            self._turn()
            self._settle()
            self.agree()
