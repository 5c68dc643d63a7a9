"""The compiled engine and its plain twin side by side, in random walks on one clock.

After every step both give the same states, attempts, counts, events and order, and
the compiled one passes its own check. Few queues, few custom ids, short leases and
small numbers: collisions are where the errors are.
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from qcore.broker import rows
from qcore.clock import ManualClock
from qcore.engine.engine import Engine
from qcore.engine.table import EVENT_BITS
from qcore.errors import QError
from qcore.reference.engine import Engine as Twin
from qcore.reference.engine import Removal, Saved, keeps_none
from qcore.reference.keys import Key
from qcore.store.base import INSERT_WIDTH, UPDATE_WIDTH
from qcore.store.memory import MemoryStore

QUEUES = ("a", "b")
CUSTOM_IDS = ("one", "two", "00000000-0000-7000-8000-000000000001")
LISTED = ("waiting", "prioritized", "delayed", "active", "completed", "failed", "paused", "waiting-children")
MAX_EVENTS = 12  # of a journal
MAX_MINUTES = 4
ALL_EVENTS = sum(EVENT_BITS.values())
BACKOFFS: dict[bytes, tuple[int, dict[str, object]]] = {  # told apart by the payload
    b"\x00": (1000, {}),
    b"\x01": (200, {"backoffConfig": {"type": "exponential", "delay": 200, "jitter": 0}}),
    b"\x02": (0, {}),
}
FOREIGN_TOKEN = "01890000-0000-7000-8000-000000000000"

queues = st.sampled_from("aaab")
policies = st.sampled_from([0, 1, 2, {"count": 1}, {"age": 0.02}, {"age": 1, "count": 2}, {"age": 0}])
removals = st.booleans() | policies
keys = st.builds(
    Key,
    st.sampled_from("kkl"),
    debounce=st.sampled_from([False, False, False, True]),
    ttl_ms=st.sampled_from([None, None, -5, 0, 20, 100, 2000]),
    extend=st.booleans(),
    replace=st.sampled_from([False, False, True]),
    keep=st.booleans(),
)
leases = st.sampled_from([0, 50, 1000])
sessions = st.integers(0, 2)
options = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.sampled_from([-1.5, -0.0, 0, 1, 1, 7.25]),
        "lifo": st.booleans(),
        "delay_ms": st.sampled_from([-1000, -1, 0, 1, 30, 500]),
        "attempts": st.integers(1, 3),
        "remove_on_complete": st.booleans(),
        "remove_on_fail": st.booleans(),
        "keep_completed": policies,
        "keep_failed": policies,
        "key": keys,
        "job_id": st.sampled_from(CUSTOM_IDS),
        "ttl_ms": st.sampled_from([0, 20, 1000]),
        "timeout_ms": st.sampled_from([0, 20, 50, 1000]),
        "stall_ms": st.sampled_from([0, 20, 700]),
    },
)


RARE = ("ttl_ms", "timeout_ms", "stall_ms", "key", "keep_completed", "keep_failed")


def key_options(key: Key) -> dict[str, object]:
    """A key as the compiled engine has it among the rare options of a job."""
    if key.debounce:
        key.ttl_ms = None
        key.keep = False
        return {"debounceId": key.name, "debounceTtl": 20}
    named = {
        "uniqueKey": key.name,
        "deduplicationTtl": key.ttl_ms,
        "deduplicationExtend": key.extend,
        "deduplicationReplace": key.replace,
        "deduplicationKeep": key.keep,
    }
    return {name: value for name, value in named.items() if value is not None and value is not False}


def answer(call: Callable[[], object]) -> object:
    """What a call returns, or which error it raises in which words."""
    try:
        return call()
    except QError as error:
        return (type(error), str(error))


class EngineMachine(RuleBasedStateMachine):
    tracking = False
    max_completed = 2
    twin_class: type[Twin] = Twin

    @initialize(seed=st.binary(min_size=16, max_size=16))
    def start(self, seed: bytes) -> None:
        self.clock = ManualClock()
        bounds = {"max_completed": self.max_completed, "max_events": MAX_EVENTS, "max_minutes": MAX_MINUTES}
        self.engine = Engine(b"\0" + seed[1:], tracking=self.tracking, **bounds)
        self.twin = self.twin_class(retry_wait_ms=self.retry_wait_ms, **bounds)
        self.ids: list[str] = list(CUSTOM_IDS)
        self.tokens: list[str | None] = [None, "", "no token", FOREIGN_TOKEN]
        self.deliveries: list[tuple[str, str | None]] = []
        self.numbers = itertools.count()
        self.listen()

    def listen(self) -> None:
        self.engine.listen_everywhere(ALL_EVENTS)
        self.twin.listen_everywhere()

    def retry_wait_ms(self, job_id: str) -> int:
        """The engine drew the jitter; the twin only judges that the wait is one of those allowed."""
        if self.engine.state(job_id) == "unknown":
            return 0  # its ttl was over as well
        wait = int(self.engine.run_at_ms(job_id)) - self.ms
        attempts = self.twin.jobs[job_id].attempts
        backoff_ms, config = BACKOFFS[bytes([(self.twin.jobs[job_id].data or b"")[0] & 15])]
        if config:
            assert wait == backoff_ms * 2 ** (attempts - 1)
        else:
            assert 0.5 * backoff_ms * 2**attempts <= wait <= 1.5 * backoff_ms * 2**attempts
        return wait

    @property
    def ms(self) -> int:
        return self.clock.now_ms()

    @property
    def ns(self) -> int:
        return self.clock.now_ns()

    def some_job(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(self.ids))

    def some_delivery(self, data: st.DataObject) -> tuple[str, str | None]:
        """Mostly a pair that was handed out at some time; sometimes an id with whatever token."""
        if self.deliveries and data.draw(st.integers(0, 4)):
            return self.deliveries[-1 - data.draw(st.integers(0, min(6, len(self.deliveries) - 1)))]
        return self.some_job(data), data.draw(st.sampled_from(self.tokens))

    # --- rules ---------------------------------------------------------------------------

    @rule(
        queue=queues,
        options=options,
        data=st.sampled_from([*BACKOFFS, b"\x02"]),
        created=st.sampled_from([None, None, 5, 10**12]),
    )
    def push(self, queue: str, options: dict[str, Any], data: bytes, created: int | None) -> None:
        backoff_ms, config = BACKOFFS[data]
        extra = dict(config)
        options = copy.deepcopy(options)
        for key, flag in (("keep_completed", "remove_on_complete"), ("keep_failed", "remove_on_fail")):
            if key in options:
                options[flag] = keeps_none(options[key])
        if "key" in options:
            extra |= key_options(options["key"])
        plain = {k: v for k, v in options.items() if k not in RARE}
        rare = (("keep_completed", "removeOnComplete"), ("keep_failed", "removeOnFail"))
        for key, name in (*rare, ("ttl_ms", "ttl"), ("timeout_ms", "timeout"), ("stall_ms", "stallTimeout")):
            if key in options:
                extra[name] = options[key]
        got = answer(
            lambda: self.engine.push(
                queue,
                data,
                self.ms,
                created_ms=-1 if created is None else created,
                backoff_ms=backoff_ms,
                extra=extra or None,
                **plain,
            )
        )
        new_id = got if isinstance(got, str) else "refused"
        assert got == answer(
            lambda: self.twin.push(queue, data, self.ms, new_id=new_id, created_ms=created, **options)
        )
        if isinstance(got, str) and got not in self.ids:
            self.ids.append(got)

    @rule(queue=queues, count=st.integers(0, 5))
    def push_many(self, queue: str, count: int) -> None:
        got = self.engine.push_many(queue, [b"\x00"] * count, self.ms)
        self.twin.use(queue)
        assert len(set(got)) == count
        assert got == sorted(got)
        for new_id in got:
            self.twin.push(queue, b"\x00", self.ms, new_id=new_id)
        self.ids += got

    def delivered(self, got: Any, queue: str, lease_ms: int, session: int, **how: Any) -> None:
        token = got[1] if got else None
        assert got == self.twin.pull(
            queue, self.ms, self.ns, token=token, lease_ms=lease_ms, session=session, **how
        )
        if got:
            assert (token is None) == (lease_ms == 0)
            assert token is None or token not in self.tokens
            self.deliveries.append((got[0], token))
            if token is not None:
                self.tokens.append(token)

    @rule(queue=queues, lease_ms=leases, session=sessions)
    def pull(self, queue: str, lease_ms: int, session: int) -> None:
        got = self.engine.pull(queue, self.ms, self.ns, lease_ms=lease_ms, session=session)
        self.delivered(got, queue, lease_ms, session)

    @rule(queue=queues, count=st.integers(0, 4), lease_ms=leases, session=sessions)
    def pull_many(self, queue: str, count: int, lease_ms: int, session: int) -> None:
        got = self.engine.pull_many(queue, count, self.ms, self.ns, lease_ms=lease_ms, session=session)
        assert len(got) <= count
        for one in got:
            self.delivered(one, queue, lease_ms, session)
        if len(got) < count:
            self.delivered(None, queue, lease_ms, session)

    @rule(queue=queues, lease_ms=leases, session=sessions, keep=st.booleans())
    def pull_and_finish(self, queue: str, lease_ms: int, session: int, keep: bool) -> None:
        self.pull(queue, lease_ms, session)
        if self.deliveries:
            job_id, token = self.deliveries[-1]
            if keep:
                self.both("ack", job_id, token=token, result=b"\x07")
            else:
                self.both("fail", job_id, token=token, error="no")

    @rule(queue=queues)
    def pull_and_lose(self, queue: str) -> None:
        """The holder sleeps past the end of its lease."""
        self.pull(queue, 50, 1)
        self.advance(50, True)

    def both(self, command: str, job_id: str, **how: Any) -> None:
        got = answer(lambda: getattr(self.engine, command)(job_id, self.ms, **how))
        assert got == answer(lambda: getattr(self.twin, command)(job_id, self.ms, **how))

    @rule(data=st.data(), result=st.sampled_from([None, b"\xc0", b"\xa2ok"]), remove=removals)
    def ack(self, data: st.DataObject, result: bytes | None, remove: Removal) -> None:
        job_id, token = self.some_delivery(data)
        self.both("ack", job_id, token=token, result=result, remove=remove)

    @rule(data=st.data(), unrecoverable=st.booleans(), remove=removals)
    def fail(self, data: st.DataObject, unrecoverable: bool, remove: Removal) -> None:
        job_id, token = self.some_delivery(data)
        self.both("fail", job_id, token=token, error="why", unrecoverable=unrecoverable, remove=remove)

    @rule(data=st.data(), lease_ms=st.sampled_from([0, 0, 30, 5000]))
    def renew(self, data: st.DataObject, lease_ms: int) -> None:
        job_id, token = self.some_delivery(data)
        how = {"token": token, "lease_ms": lease_ms}
        assert self.engine.renew(job_id, self.ms, self.ns, **how) == self.twin.renew(
            job_id, self.ms, self.ns, **how
        )

    @rule(ms=st.sampled_from([0, 1, 19, 20, 30, 200, 1000, 60_000]), handle=st.booleans())
    def advance(self, ms: int, handle: bool) -> None:
        self.clock.advance(ms)
        if handle:
            while self.engine.advance(self.ms, self.ns):
                pass
            self.twin.advance(self.ms, self.ns)

    @rule(times=st.integers(1, 4), listened=st.sampled_from([*QUEUES, None, None, None]))
    def forget_idle(self, times: int, listened: str | None) -> None:
        """Some looks for queues that nobody uses, five minutes apart; one of them may be listened to."""
        if listened is not None:
            self.engine.listen(listened, ALL_EVENTS)
            self.twin.listen(listened)
        for _ in range(times):
            self.advance(300_000, True)
            while self.engine.forget_idle(self.ns):
                pass
            self.twin.forget_idle(self.ns)
            self.agree()
        if listened is not None:
            self.engine.listen(listened, 0)
            self.twin.listening.clear()

    @rule(queue=queues, length=st.sampled_from([0, 1, 5, MAX_EVENTS]))
    def trim_events(self, queue: str, length: int) -> None:
        self.same("trim_events", queue, length)

    @rule(queue=queues, start=st.integers(-3, 2), end=st.integers(-3, 2))
    def metrics(self, queue: str, start: int, end: int) -> None:
        for kind in ("completed", "failed"):
            self.same("metrics", queue, kind, start=start, end=end)

    @rule(ms=st.sampled_from([-120_000, -100, 100, 120_000]))
    def step_wall_clock(self, ms: int) -> None:
        self.clock.set_wall(self.ms + ms)

    @rule(queue=queues, paused=st.booleans())
    def pause(self, queue: str, paused: bool) -> None:
        self.engine.pause(queue, paused, now_ms=self.ms)
        self.twin.pause(queue, paused, now_ms=self.ms)

    # --- control -------------------------------------------------------------------------

    def same(self, command: str, *args: Any, **how: Any) -> object:
        got = answer(lambda: getattr(self.engine, command)(*args, **how))
        assert got == answer(lambda: getattr(self.twin, command)(*args, **how))
        return got

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.same("cancel", self.some_job(data), self.ms)

    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        job_id, token = self.some_delivery(data)
        self.both("discard", job_id, token=token)

    @rule(queue=queues)
    def drain(self, queue: str) -> None:
        self.same("drain", queue)

    @precondition(lambda self: hasattr(self, "twin") and len(self.twin.jobs) > 4)
    @rule(queue=queues)
    def obliterate(self, queue: str) -> None:
        self.same("obliterate", queue)

    @rule(
        queue=queues,
        state=st.sampled_from([None, "wait", *LISTED, "no state"]),
        grace_ms=st.sampled_from([0, 0, 1, 500]),
        limit=st.sampled_from([0, 1, 2, 1000]),
    )
    def clean(self, queue: str, state: str | None, grace_ms: int, limit: int) -> None:
        self.same("clean", queue, self.ms, state=state, grace_ms=grace_ms, limit=limit)

    @rule(queue=queues, count=st.integers(-1, 2))
    def promote_jobs(self, queue: str, count: int) -> None:
        self.same("promote_jobs", queue, self.ms, count=count)

    @rule(
        data=st.data(),
        priority=st.sampled_from([-1.5, 0, 1, 7.25, 3]),
        lifo=st.sampled_from([None, True, False]),
    )
    def change_priority(self, data: st.DataObject, priority: float, lifo: bool | None) -> None:
        self.same("change_priority", self.some_job(data), priority, self.ms, lifo=lifo)

    @rule(data=st.data(), high=st.integers(0, 7))
    def update(self, data: st.DataObject, high: int) -> None:
        job_id = self.some_job(data)
        job = self.twin.jobs.get(job_id)
        old = job.data if job is not None and job.data else b"\x00"
        self.same("update", job_id, bytes([(old[0] & 15) | high << 4]))

    @rule(
        data=st.data(),
        progress=st.sampled_from([0, 12.5, 100, 1e300, -4]),
        message=st.sampled_from([None, "", "half"]),
    )
    def progress(self, data: st.DataObject, progress: float, message: str | None) -> None:
        self.same("set_progress", self.some_delivery(data)[0], progress, self.ms, self.ns, message=message)

    @rule(data=st.data(), lines=st.sampled_from([1, 1, 2, 60]))
    def add_log(self, data: st.DataObject, lines: int) -> None:
        job_id = self.some_job(data)
        for n in range(lines):
            self.same("add_log", job_id, f"line {n}", "info", self.ms)

    @rule(data=st.data(), keep=st.integers(0, 2))
    def clear_logs(self, data: st.DataObject, keep: int) -> None:
        self.same("clear_logs", self.some_job(data), keep=keep)

    @rule(data=st.data(), queue=queues, count=st.integers(-1, 2), ago=st.sampled_from([None, 0, 200]))
    def retry_completed(self, data: st.DataObject, queue: str, count: int, ago: int | None) -> None:
        job_id = data.draw(st.sampled_from([None, None, *self.ids]))
        until = None if ago is None else self.ms - ago
        self.same("retry_completed", queue, self.ms, job_id=job_id, count=count, until_ms=until)

    @rule(data=st.data(), queue=queues, count=st.integers(-1, 2))
    def retry_dead(self, data: st.DataObject, queue: str, count: int) -> None:
        job_id = data.draw(st.sampled_from([None, None, *self.ids]))
        self.same("retry_dead", queue, self.ms, job_id=job_id, count=count)

    @rule(queue=queues, data=st.data())
    def remove_dead(self, queue: str, data: st.DataObject) -> None:
        self.same("remove_dead", queue, self.some_job(data))

    @rule(queue=queues, name=st.sampled_from("kl"))
    def remove_key(self, queue: str, name: str) -> None:
        self.same("remove_key", queue, name, self.ms)

    @rule(data=st.data())
    def remove_job_key(self, data: st.DataObject) -> None:
        self.same("remove_job_key", self.some_job(data))

    @rule(queue=queues)
    def purge_dead(self, queue: str) -> None:
        self.same("purge_dead", queue)

    @rule(
        queue=queues,
        dead=st.fixed_dictionaries(
            {},
            optional={
                "maxEntries": st.sampled_from([1, 2, 10_000]),
                "maxAge": st.sampled_from([None, 0, 20, 604_800_000]),
                "autoRetry": st.booleans(),
                "autoRetryInterval": st.sampled_from([0, 1, 30, 1000]),
                "maxAutoRetries": st.integers(0, 2),
            },
        ),
        stalls=st.fixed_dictionaries(
            {},
            optional={
                "enabled": st.booleans(),
                "maxStalls": st.integers(0, 2),
                "stallInterval": st.sampled_from([0, 30, 1500]),
                "gracePeriod": st.sampled_from([0, 10, 100]),
            },
        ),
    )
    def configure(self, queue: str, dead: dict[str, Any], stalls: dict[str, Any]) -> None:
        self.same("configure", queue, dead=dead, stalls=stalls)

    @rule(
        queue=queues,
        states=st.none() | st.lists(st.sampled_from(LISTED), max_size=3).map(tuple),
        offset=st.integers(0, 3),
        limit=st.sampled_from([0, 1, 3, 100]),
        asc=st.booleans(),
    )
    def look(self, queue: str, states: tuple[str, ...] | None, offset: int, limit: int, asc: bool) -> None:
        self.same("list_jobs", queue, self.ms, states=states, offset=offset, limit=limit, asc=asc)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        job_id = self.some_job(data)
        assert self.engine.remove(job_id) == self.twin.remove(job_id)

    @rule(session=sessions)
    def close_session(self, session: int) -> None:
        assert self.engine.close_session(session, self.ms) == self.twin.close_session(session, self.ms)

    # --- agreement -----------------------------------------------------------------------

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "twin"):
            return
        engine, twin = self.engine, self.twin
        engine._check()
        assert Counter(engine.take_events()) == Counter(twin.events)
        twin.events = []
        assert len(engine) == twin.size()
        assert sorted(engine.queue_names()) == sorted(twin.queues)
        totals = engine.totals(0)  # at this time nothing is promoted
        for name in ("pushed", "pulled"):
            assert totals[name] == twin.past[name] + sum(getattr(q, name) for q in twin.queues.values())
        for job_id in self.ids:
            assert engine.state(job_id) == twin.state(job_id), job_id
            assert engine.result(job_id) == twin.result(job_id), job_id
            job = twin.jobs.get(job_id)
            if job is not None:
                assert engine.attempts(job_id) == job.attempts <= job.max_attempts
                assert engine.run_at_ms(job_id) == job.run_ms
                assert engine.logs(job_id) == twin.logs(job_id)
                if job.state == "active":
                    assert engine.progress(job_id) == twin.progress(job_id)
        for queue in QUEUES:
            for name in "kl":
                assert engine.key_owner(queue, name, self.ms) == twin.key_owner(queue, name, self.ms)
            assert [entry[0] for entry in engine.dead_letters(queue)] == twin.failed(queue)
            for job_id, _, letter in engine.dead_letters(queue):
                expected = twin.jobs[job_id].letter
                assert expected is not None
                assert (letter["retryCount"], letter["lastRetryAt"]) == (
                    expected.retries,
                    expected.last_retry_ms,
                )
                assert letter["nextRetryAt"] == expected.next_retry_ms
                assert letter["expiresAt"] == expected.expires_ms
            if engine.queue(queue) is not None:
                assert engine.queue(queue).n_events == twin.queues[queue].journal.n
            for kind in ("completed", "failed"):
                assert engine.metrics(queue, kind) == twin.metrics(queue, kind)
            assert engine.counts_by_priority(queue) == twin.counts_by_priority(queue)
        self.agree_on_time()

    def agree_on_time(self) -> None:
        assert self.engine.next_due(self.ms, self.ns) == self.twin.next_due(self.ms, self.ns)

    def lift(self, queue: str) -> None:
        """Take away what keeps ready jobs from being pulled."""
        self.pause(queue, False)

    @rule(queue=queues)
    def count(self, queue: str) -> None:
        assert self.engine.counts(queue, self.ms) == self.twin.counts(queue, self.ms)
        q, counted = self.engine.queue(queue), self.twin.queues.get(queue)
        if counted is not None and q is not None:
            assert (q.total_pushed, q.total_pulled, q.total_completed, q.total_failed) == (
                counted.pushed,
                counted.pulled,
                counted.completed,
                counted.failed,
            )

    def teardown(self) -> None:
        """Whatever happened, what is left comes out in the same order, and then nothing is left."""
        if not hasattr(self, "twin"):
            return
        self.clock.advance(10_000_000)
        while self.engine.advance(self.ms, self.ns):
            pass
        self.twin.advance(self.ms, self.ns)
        for queue in QUEUES:
            self.lift(queue)
            for one in self.engine.pull_many(queue, 1000, self.ms, self.ns):
                self.delivered(one, queue, 0, 0)
            self.delivered(None, queue, 0, 0)
            self.count(queue)
        self.agree()
        for job_id in self.ids:
            assert self.engine.remove(job_id) == self.twin.remove(job_id)
        for queue in QUEUES:
            for name in "kl":
                self.same("remove_key", queue, name, self.ms)
            self.same("obliterate", queue)
        assert len(self.engine) == 0
        self.clock.advance(10_000_000)
        self.engine.advance(self.ms, self.ns)
        assert self.engine.next_due(self.ms, self.ns) is None
        self.engine._check()
        self.forget_idle(3, None)
        assert self.engine.queue_names() == []


class StoredEngineMachine(EngineMachine):
    """The same with a store: what it holds is always a past state of the whole engine."""

    tracking = True
    max_completed = 1000

    @initialize()
    def open(self) -> None:
        self.store = MemoryStore()
        self.saved = Saved()
        self.restarts = 0

    @rule()
    def save(self) -> None:
        cut = rows.take_rows(self.engine, self.ms, self.ns)
        self.store.commit(cut)
        assert self.engine.n_changes == 0
        written = {*cut.inserts[::INSERT_WIDTH], *cut.updates[::UPDATE_WIDTH]}
        self.saved = self.twin.save(self.saved, written, self.ms, self.ns)

    @rule()
    def save_nothing_new(self) -> None:
        """A second cut right after a first is empty, so nothing is written twice."""
        self.save()
        assert rows.take_rows(self.engine, self.ms, self.ns).is_empty

    @precondition(lambda self: self.restarts < 4)
    @rule(
        save_first=st.booleans(),
        keep_leases=st.booleans(),
        charge=st.booleans(),
        away_ms=st.sampled_from([0, 0, 40, 700, 100_000]),
        reboot=st.booleans(),
        seed=st.binary(min_size=16, max_size=16),
    )
    def restart(
        self, save_first: bool, keep_leases: bool, charge: bool, away_ms: int, reboot: bool, seed: bytes
    ) -> None:
        if save_first:
            self.save()
        self.restarts += 1
        self.clock.advance(away_ms)
        if reboot:  # the monotonic clock begins anew; only the wall clock goes on
            self.clock = ManualClock(self.ms, 5)
        self.store = self.store.reopened()
        self.engine = Engine(
            bytes([self.restarts]) + seed[1:],  # never one from before
            tracking=True,
            max_completed=self.max_completed,
            max_events=MAX_EVENTS,
            max_minutes=MAX_MINUTES,
        )
        snapshot = self.store.load()
        rows.restore_names(self.engine, snapshot.names, snapshot.queues, self.ms, self.ns)
        assert rows.restore_groups(self.engine, snapshot.side["lanes"], self.ms, self.ns) == []
        assert rows.restore_counts(self.engine, snapshot.side["telemetry"], snapshot.side["minutes"]) == 0
        assert rows.restore_side(self.engine, snapshot.side) == []
        for row in snapshot.jobs:
            rows.restore(self.engine, row, self.ms, self.ns)
        assert rows.restore_evidence(self.engine, snapshot.side["evidence"]) == []
        rows.settle_active(self.engine, keep_leases, charge, self.ms)
        self.twin.restart(self.saved, self.ms, self.ns, keep_leases=keep_leases, charge=charge)
        self.listen()


TestEngine = EngineMachine.TestCase
TestStoredEngine = StoredEngineMachine.TestCase
TestEngine.settings = TestStoredEngine.settings = settings(stateful_step_count=40)
