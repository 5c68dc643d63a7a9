"""What must be true of a data file after a crash, given what its clients were told.

The file is read without engine and store: its rows and its log of changes are decoded
here a second time, from the descriptions in :mod:`qcore.broker.record` (see :mod:`tests.records`)
and :mod:`qcore.store.changelog`.
"""

from __future__ import annotations

import sqlite3
import struct
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import msgpack

from tests.crash.load import FIRST_SCHEDULE, QUEUE, TICKS, Entry, Key, key_of, own_id, result_of
from tests.records import read_record, unzigzag, varints

READY, DELAYED, ACTIVE, COMPLETED, FAILED, PARKED = 1, 2, 3, 4, 5, 6
_PAGE = struct.Struct("<QQII")
UPDATE, DELETE, WRITTEN, SIDE = 1, 2, 3, 4


@dataclass(frozen=True, slots=True)
class Row:
    """One job as it lies in the file."""

    id: str
    state: int
    attempts: int
    max_attempts: int
    stalls: int
    token: str
    result: bytes | None
    unique: str = ""
    kids: int = 0  # a parent of so many, which follow it
    takes: bool = False  # its death is its parent's

    @property
    def lasting(self) -> tuple[object, ...]:
        """What time alone does not change: a delay may run out."""
        state = READY if self.state == DELAYED else self.state
        return (self.id, state, self.attempts, self.stalls, self.result)


Changed = dict[int, tuple[int, bytes, bytes | None] | None]
Values = dict[tuple[str, int | str], bytes | None]


def read_changes(con: sqlite3.Connection) -> tuple[Changed, Values]:
    """What the log of changes says.

    Of rows, by seq: state, record and result; of small values, by table and key. None of what is gone.
    """
    pages = dict(con.execute("SELECT n, page FROM changelog").fetchall())
    base = int.from_bytes(pages.pop(0)[:8], "little")
    rows: Changed = {}
    values: Values = {}
    for ordinal, page in sorted((_PAGE.unpack_from(page)[0], page) for page in pages.values()):
        if ordinal < base:
            continue
        at, end = _PAGE.size, _PAGE.size + _PAGE.unpack_from(page)[2]
        while at < end:
            op = page[at]
            (number,), at = varints(page, at + 1, 1)
            if op == SIDE:
                table, key, *value = msgpack.unpackb(page[at : at + number])
                at += number
                if value:
                    values[table, key] = value[0]
                else:
                    values.pop((table, key), None)
                continue
            seq = unzigzag(number)
            if op == UPDATE:
                (state, record_n, result_n), at = varints(page, at, 3)
                record = page[at : at + record_n]
                at += record_n + max(result_n - 1, 0)
                rows[seq] = (state, record, page[at - result_n + 1 : at] if result_n else None)
            elif op == DELETE:
                rows[seq] = None
            else:
                assert op == WRITTEN
                rows.pop(seq, None)
    return rows, values


def read_values(con: sqlite3.Connection, table: str) -> dict[int | str, bytes]:
    """The small values of a table."""
    key, value = ("id", "state") if table == "queues" else ("key", "value")
    found = dict(con.execute(f"SELECT {key}, {value} FROM {table}").fetchall())
    found |= {key: value for (of, key), value in read_changes(con)[1].items() if of == table}
    return {key: value for key, value in found.items() if value is not None}


def read_rows(path: Path) -> dict[Key, Row]:
    """The producers' jobs by what their data says they are; fails on a double or damaged one."""
    con = sqlite3.connect(path)
    try:
        assert con.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert not con.execute("SELECT seq FROM payloads EXCEPT SELECT seq FROM jobs").fetchall()
        queues = read_values(con, "queues")
        ours = [i for i, state in queues.items() if msgpack.unpackb(state)["name"] in (QUEUE, TICKS)]
        found = con.execute(
            "SELECT j.seq, j.state, j.record, coalesce(p.data, j.data), j.result FROM jobs j"
            " LEFT JOIN payloads p ON p.seq = j.seq WHERE j.queue IN (?, ?)",
            (*ours, -1, -1)[:2],
        ).fetchall()
        changes, _ = read_changes(con)
    finally:
        con.close()
    rows: dict[Key, Row] = {}
    ids: set[str] = set()
    for seq, state, record, data, result in found:
        change = changes.get(seq, (state, record, result))
        if change is None:
            continue
        state, record, result = change
        job = read_record(record)
        job_id = job.id
        value = msgpack.unpackb(data)
        key = key_of(value, job_id)
        assert key not in rows, f"{key} is in the file twice"
        assert job_id not in ids, f"the id {job_id} is in the file twice"
        ids.add(job_id)
        ties = (value.get("u", ""), value.get("kids", 0), "takes" in value)
        rows[key] = Row(job_id, state, job.attempts, job.max_attempts, job.stalls, job.token, result, *ties)
    return rows


def read_schedules(path: Path) -> dict[int, int]:
    """How often each schedule of the load in the file has run."""
    con = sqlite3.connect(path)
    try:
        found = read_values(con, "schedules")
    finally:
        con.close()
    return {
        int(str(name)[1:]): msgpack.unpackb(value)["executions"]
        for name, value in found.items()
        if str(name).startswith("s1")
    }


@dataclass(slots=True)
class Add:
    """One request of a producer: ``count`` jobs, numbered from ``key``."""

    key: Key
    count: int
    durable: bool
    custom: str | None
    unique: bool
    tried_at: int
    told_at: int = 0
    reply: str = ""

    @property
    def keys(self) -> list[Key]:
        return [(self.key[0], self.key[1] + i) for i in range(self.count)]


@dataclass(slots=True)
class Delivery:
    """One start of a job, as its worker saw it."""

    id: str
    token: str
    attempts: int
    removes: bool
    told_at: int
    how: str = ""
    end_sent_at: int = 0
    ended_at: int = 0
    kept: bool = False  # a crash of the server left it active in the file, so its holder keeps it


@dataclass(slots=True)
class Plan:
    """A schedule with a limit."""

    limit: int
    alone: bool  # no second job of it at a time
    told_at: int = 0
    end_sent_at: int = 0
    ended_at: int = 0


@dataclass(slots=True)
class Ledger:
    """The clients' view, fed with their logs after each crash."""

    server: bool
    adds: list[Add] = field(default_factory=list)
    deliveries: dict[Key, list[Delivery]] = field(default_factory=lambda: defaultdict(list))
    completed: dict[Key, int] = field(default_factory=dict)  # when it was known
    attempts: dict[Key, int] = field(default_factory=dict)  # as the last recovery left them
    plans: dict[int, Plan] = field(default_factory=dict)
    dropped: Counter[int] = field(default_factory=Counter)  # runs of schedules that a recovery dropped
    kills: list[int] = field(default_factory=list)
    ends: int = 0
    lost_buffered: int = 0
    oldest_loss_ms: float = 0.0
    charged: int = 0
    kept: int = 0
    _last: dict[Key, Row] = field(default_factory=dict)  # the file at the crash before
    _before: dict[Key, int] = field(default_factory=dict)  # ... and the attempts before its recovery
    _open: dict[int, Add] = field(default_factory=dict)
    _checked: int = 0  # adds before this index were held against an earlier crash

    # --- the logs ------------------------------------------------------------------------------

    def feed(self, entries: list[Entry]) -> int:
        """Take in what was logged. What was told before the returned time must be in the file.

        A confirmed commit carries all that was there when it was asked for.
        """
        safe = 0
        for what, at, *values in entries:
            match what, values:
                case "add", [producer, n, count, durable, custom, unique]:
                    self._open[producer] = Add((producer, n), count, durable, custom, unique, at)
                    self.adds.append(self._open[producer])
                case "added", [producer, reply]:
                    add = self._open.pop(producer)
                    add.told_at, add.reply = at, reply
                    if add.durable:
                        safe = max(safe, add.tried_at)
                case "pulled", [producer, n, job_id, token, attempts, most, removes, kids]:
                    assert attempts < most, f"{producer, n} was started after {attempts} attempts of {most}"
                    for kid in range(n + 1, n + 1 + kids) if kids else ():
                        ends = self.deliveries[producer, kid]
                        assert any(d.how == "ack" for d in ends), f"{producer, n} ran before {kid}"
                    self._pulled((producer, n), Delivery(job_id, token, attempts, removes, at))
                case "renewed", [producer, n, token, ok]:
                    delivery = self._find((producer, n), token)
                    if delivery.kept and not delivery.end_sent_at:
                        assert ok, f"{producer, n}: the lease that was kept could not be renewed"
                case "end", [producer, n, token, how]:
                    delivery = self._find((producer, n), token)
                    delivery.how = how
                    delivery.end_sent_at = delivery.end_sent_at or at
                case "ended", [producer, n, token, how, ok, why]:
                    if self._ended((producer, n), token, how, ok, why, at):
                        safe = max(safe, self._find((producer, n), token).end_sent_at)
                case "cron", [n, limit, alone]:
                    self.plans[n] = Plan(limit, alone)
                case "croned", [n]:
                    self.plans[n].told_at = at
                case "uncron", [n]:
                    self.plans[n].end_sent_at = at
                case "uncroned", [n, ok]:
                    self.plans[n].ended_at = at if ok else 0
                case "step" | "stepped", _:
                    pass  # of a script
                case _:
                    raise AssertionError(f"unknown entry {what} {values}")
        return safe

    def _find(self, key: Key, token: str) -> Delivery:
        return next(d for d in self.deliveries[key] if d.token == token)

    def _crashed(self, since: int, until: int) -> bool:
        return any(since < kill < until for kill in self.kills)

    def _pulled(self, key: Key, new: Delivery) -> None:
        assert key not in self.completed, f"{key} was confirmed as completed and was given out again"
        for old in self.deliveries[key]:
            failed = old.how == "fail"
            assert new.attempts > old.attempts or not (failed and old.ended_at), (
                f"{key}: a failure was forgotten"
            )
            # A lease that outlived the crash ends by its own failure only.
            assert failed or not old.kept, f"{key} was given out under a live lease"
            assert failed or self._crashed(old.told_at, new.told_at), f"{key} was given out twice"
        self.deliveries[key].append(new)

    def _ended(self, key: Key, token: str, how: str, ok: bool, why: str, at: int) -> bool:
        delivery = self._find(key, token)
        if not ok:
            assert self._crashed(delivery.told_at, at), f"{key}: {how} was refused without a crash: {why}"
            assert not delivery.kept, f"{key}: {how} under a lease that was kept was refused: {why}"
            return False
        delivery.ended_at = at
        self.ends += 1
        if how == "ack":
            self.completed[key] = at
        return True

    # --- after a crash -------------------------------------------------------------------------

    def check_crash(self, rows: dict[Key, Row], safe_at: int, killed_at: int) -> None:
        """Hold the file as the crash left it against what was told until then."""
        epoch_at = self.kills[-1] if self.kills else 0
        active = [key for key, row in rows.items() if row.state == ACTIVE]
        if not self.server and any(self._last.get(key) == rows[key] for key in active):
            # Killed before the recovery was committed, and so before anything else was.
            assert rows == self._last
            assert not safe_at
            self.attempts = self._before
        self._last, self._before = rows, self.attempts
        self.kills.append(killed_at)
        self._check_adds(rows, safe_at, killed_at)
        self._check_attempts(rows)
        self._check_ties(rows)
        for key, deliveries in self.deliveries.items():
            row = rows.get(key)
            if key in self.completed:
                self._check_completed(key, row)
                continue
            for d in deliveries:
                active = row is not None and row.state == ACTIVE and row.token == d.token
                assert active or d.end_sent_at or not d.kept, f"{key}: a lease that was kept is gone"
                if d.told_at > epoch_at and not d.end_sent_at and (d.told_at < safe_at or not self.server):
                    # Embedded, no job starts before its start is in the file.
                    assert active, f"{key}: its delivery should be in the file: {d} {row}"
                d.kept = self.server and active
        for key, row in rows.items():
            if row.state == COMPLETED:
                # The acknowledgement arrived although its reply did not.
                self.completed.setdefault(key, killed_at)
                self._check_completed(key, row)

    def _check_adds(self, rows: dict[Key, Row], safe_at: int, killed_at: int) -> None:
        holders = {row.id: key for key, row in rows.items()}
        newest = {add.custom: add for add in self.adds if add.custom}
        removed = {d.id for ds in self.deliveries.values() for d in ds if d.removes and d.how == "ack"}
        lost: dict[int, Add] = {}
        for add in self.adds[self._checked :]:
            if add.custom:
                if newest[add.custom] is not add or add.custom in removed:
                    continue
                holder = holders.get(add.custom)
                there = {holder is not None}
                if holder is not None and holder != add.key:
                    # An older job with this id was alive, so that nothing was to be added.
                    assert holder[1] < add.key[1], f"{add.custom} is held by {holder}, which came later"
                    over = self.completed.get(holder, killed_at)
                    assert not add.told_at or over > add.tried_at, (
                        f"{add.key} did not take the id of {holder}"
                    )
            else:
                if add.unique and add.told_at and add.reply != own_id(*add.key):
                    assert add.key not in rows, f"{add.key} is there, and was told to be {add.reply}"
                    continue
                there = {key in rows for key in add.keys if not self._removed(key)}
            assert len(there) < 2, f"the batch {add.key} is there in part"
            if there == {True}:
                before = lost.get(add.key[0])
                whole = all(key in rows for key in add.keys)
                assert not (before and whole), f"{add.key} is there, {before and before.key} before it is not"
            elif there == {False} and add.told_at:
                # (One without an answer may have gone into a dead connection, before the next server.)
                lost.setdefault(add.key[0], add)
                assert not add.durable, f"the durable add {add.key} was confirmed and is lost"
                assert add.told_at >= safe_at, f"{add.key} is lost, though a later commit was confirmed"
                self.lost_buffered += add.count
                self.oldest_loss_ms = max(self.oldest_loss_ms, (killed_at - add.told_at) / 1e6)
        self._checked = len(self.adds)

    def _check_ties(self, rows: dict[Key, Row]) -> None:
        """No key has two live holders; a parent waits exactly while a child is not done."""
        holders: dict[str, Key] = {}
        for key, row in rows.items():
            if row.unique and row.state not in (COMPLETED, FAILED):
                assert row.unique not in holders, f"{row.unique}: {holders[row.unique]} and {key} are alive"
                holders[row.unique] = key
            if row.kids:
                kids = [rows[key[0], key[1] + 1 + i] for i in range(row.kids)]
                if any(kid.takes and kid.state == FAILED for kid in kids):
                    assert row.state == FAILED, f"{key}: a child has died, and it is in state {row.state}"
                else:
                    waits = any(kid.state != COMPLETED for kid in kids)
                    assert waits == (row.state == PARKED), f"{key}: {row}, children {kids}"

    def check_schedules(self, rows: dict[Key, Row], executions: dict[int, int]) -> None:
        """``executions`` of the schedules in the file: each is one job, and none is beyond the limit."""
        runs: Counter[int] = Counter(key[0] for key in rows if key[0] >= FIRST_SCHEDULE)
        for n, plan in self.plans.items():
            assert runs[n] <= plan.limit, f"schedule {n} ran {runs[n]} times, limit {plan.limit}"
            ends = sum(key[0] == n for key in self.completed)
            assert ends <= plan.limit, f"schedule {n} had {ends} runs that were confirmed, limit {plan.limit}"
            if n in executions:
                assert not plan.ended_at, f"schedule {n} was deleted and is there"
                assert runs[n] <= executions[n] <= plan.limit, f"schedule {n}: {executions[n]}, {runs[n]}"
            elif plan.told_at and not plan.end_sent_at:
                spent = runs[n] + self.dropped[n] >= plan.limit
                assert spent, f"schedule {n} was confirmed and is gone"
            if plan.alone:
                live = [k for k, row in rows.items() if k[0] == n and row.state in (READY, DELAYED, ACTIVE)]
                assert len(live) < 2, f"schedule {n} has more than one job: {live}"
                queued = [k for k in live if rows[k].state != ACTIVE]
                assert not (queued and plan.ended_at), f"schedule {n} was deleted, {queued} was not"

    def _removed(self, key: Key) -> bool:
        """Whether the job may be gone because it was to be removed on completion."""
        return any(d.removes and d.how == "ack" for d in self.deliveries.get(key, ()))

    def _check_completed(self, key: Key, row: Row | None) -> None:
        if row is None:
            job_id = self.deliveries[key][-1].id
            reused = any(add.custom == job_id and add.key > key for add in self.adds)
            assert reused or self._removed(key), f"{key} was confirmed as completed and is gone"
            return
        assert row.state == COMPLETED, f"{key} was confirmed as completed and is in state {row.state}"
        assert row.result == msgpack.packb(result_of(*key)), f"{key} has another result"

    def _check_attempts(self, rows: dict[Key, Row]) -> None:
        """One for each failure, none for anything else."""
        for key, row in rows.items():
            before = self.attempts.get(key, 0)
            failures = [d for d in self.deliveries.get(key, ()) if d.how == "fail" and d.attempts >= before]
            least = before + sum(bool(d.ended_at) for d in failures)
            assert least <= row.attempts <= before + len(failures), f"{key}: {row}, at least {least} attempts"
            assert row.attempts <= row.max_attempts, f"{key}: {row}"

    def check_recovery(self, crashed: dict[Key, Row], rows: dict[Key, Row]) -> None:
        """Recovery loses and adds nothing, and charges exactly what was active, once."""
        assert rows.keys() <= crashed.keys()
        for key, before in crashed.items():
            if key not in rows:
                # The run of a schedule that lets none overlap: the next slot takes its place.
                plan = self.plans.get(key[0])
                dropped = not self.server and before.state == ACTIVE and plan is not None and plan.alone
                assert dropped, f"{key}: {before} is gone"
                self.dropped[key[0]] += 1
                continue
            after = rows[key]
            if before.state == PARKED and after.state == FAILED:
                kids = [rows[key[0], key[1] + 1 + i] for i in range(before.kids)]
                assert any(kid.takes and kid.state == FAILED for kid in kids), f"{key}: {after}"
                continue
            if self.server or before.state != ACTIVE:
                assert after.lasting == before.lasting, f"{key}: {before} became {after}"
                self.kept += before.state == ACTIVE
                continue
            self.charged += 1
            assert after.attempts == before.attempts + 1, f"{key}: {before} became {after}"
            assert after.stalls == before.stalls + 1, f"{key}: {before} became {after}"
            assert after.state in (READY, DELAYED, FAILED), f"{key}: {before} became {after}"
            if after.attempts >= after.max_attempts:
                assert after.state == FAILED, f"{key} has no attempt left: {after}"
        self.attempts = {key: row.attempts for key, row in rows.items()}

    def lapse(self, at: int) -> None:
        """A clean restart of an embedded engine: its holders are gone, their jobs are given back."""
        self.kills.append(at)
        for deliveries in self.deliveries.values():
            for d in deliveries:
                d.kept = False

    def check_end(self, rows: dict[Key, Row]) -> None:
        """Everything has run: what survived is completed or dead, with its result."""
        for key, row in rows.items():
            waits = row.kids and any(rows[key[0], key[1] + 1 + i].state == FAILED for i in range(row.kids))
            assert row.state in (COMPLETED, FAILED) or (waits and row.state == PARKED), f"{key}: {row}"
        self._check_ties(rows)
        for key in self.completed:
            self._check_completed(key, rows.get(key))
