"""Bring a broker up from its store, and down again."""

from __future__ import annotations

import contextlib
import gc
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from qcore.broker import rows
from qcore.broker.archive import FENCE_ROWS
from qcore.broker.core import Broker
from qcore.broker.webhooks import HookSettings
from qcore.clock import Clock
from qcore.errors import StoreError
from qcore.limits import (
    AHEAD_ROWS,
    DEFAULT_COMPLETED_RETENTION_MS,
    DEFAULT_MAX_COMPLETED_JOBS,
    DEFAULT_MAX_METRIC_MINUTES,
    DEFAULT_MAX_QUEUE_EVENTS,
    DEFAULT_MAX_WAITING_DEPS,
    DEFAULT_RETRY_MS,
)
from qcore.store import open_store
from qcore.store.base import Cut, LogDamage, Store

logger = logging.getLogger("qcore.broker")

Level = Literal["buffered", "committed", "synced"]
Mode = Literal["embedded", "server"]

#: Set while a process has the file open; what is found at the next start says how it ended.
META_OPEN = "open"
#: Rows that one start sets aside; what else cannot be read stays where it is until the next.
SET_ASIDE_ROWS = 1000


@dataclass(slots=True)
class Recovery:
    """What opening a data file brought back."""

    jobs: int = 0
    requeued: int = 0
    crashed: bool = False
    #: Number of a row that could not be read, and why.
    unreadable: list[tuple[int, str]] = field(default_factory=list)
    #: Queue and id of the dead letter that each of them became, or None: it was left in the file.
    set_aside: dict[int, tuple[str, str] | None] = field(default_factory=dict)
    schedules_unreadable: list[tuple[str, str]] = field(default_factory=list)
    #: What of the write-ahead log is lost.
    log_damage: LogDamage | None = None
    seconds: float = 0.0


def open_broker(
    path: str | None = None,
    *,
    mode: Mode = "embedded",
    adds: Level = "buffered",
    changes: Level = "committed",
    clock: Clock | None = None,
    seed: bytes | None = None,
    store: Store | None = None,
    flush_ms: int = 10,
    retry_ms: int = DEFAULT_RETRY_MS,
    ahead_rows: int = AHEAD_ROWS,
    max_completed: int = DEFAULT_MAX_COMPLETED_JOBS,
    completed_retention_ms: int | None = DEFAULT_COMPLETED_RETENTION_MS,
    max_waiting_deps: int = DEFAULT_MAX_WAITING_DEPS,
    max_events: int = DEFAULT_MAX_QUEUE_EVENTS,
    max_minutes: int = DEFAULT_MAX_METRIC_MINUTES,
    keep_events: bool = False,
    hooks: HookSettings | None = None,
) -> Broker:
    """A broker over the data file at ``path``, or in memory without one.

    ``adds`` is the durability of plain adds, ``changes`` of everything else. On a
    server a delivery that was out stays with its holder, under its stored lease;
    embedded, the holders died with the process, so their jobs go back at once,
    charged one attempt and one stall unless the last close was clean. The newest
    ``max_completed`` completed jobs are in memory; those older than
    ``completed_retention_ms`` go for good, None = never.

    :raises StoreError: the file cannot be used; it was not touched
    :raises EngineBusyError: another process has it open
    """
    if store is None and path is not None:
        store = open_store(path)
    try:
        broker = Broker(
            store,
            clock=clock,
            seed=seed,
            hold_adds=adds != "buffered",
            hold_changes=changes != "buffered",
            hold_pulls=mode == "embedded" and changes != "buffered",
            sync_adds=adds == "synced",
            sync_changes=changes == "synced",
            flush_ms=flush_ms,
            retry_ms=retry_ms,
            ahead_rows=ahead_rows,
            max_completed=max_completed,
            retention_ms=completed_retention_ms,
            max_waiting_deps=max_waiting_deps,
            max_events=max_events,
            max_minutes=max_minutes,
            keep_events=keep_events,
            hooks=hooks,
        )
        if store is not None:
            with _no_collections():
                recover(broker, store, keep_leases=mode == "server")
    except BaseException:
        if store is not None:
            store.close()
        raise
    return broker


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Hold the cycle collector off: a row is gone before the next, and looking through each costs a fifth."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def recover(broker: Broker, store: Store, *, keep_leases: bool) -> Recovery:
    """Rebuild the engine from the store. Doing it twice equals doing it once."""
    started = time.monotonic()
    engine = broker.engine
    found = Recovery(log_damage=store.log_damage)
    with broker:
        now_ms, now_ns = broker.wall_ms, broker.monotonic_ns
        snapshot = store.load()
        found.crashed = snapshot.meta.get(META_OPEN) == b"1"
        try:
            rows.restore_names(engine, snapshot.names, snapshot.queues, now_ms, now_ns)
        except rows.BadRow as error:
            raise StoreError(f"{store.path}: {error}") from None
        for lane in rows.restore_groups(engine, snapshot.side["lanes"], now_ms, now_ns):
            logger.error("%s: the settings of group %r cannot be read", store.path, lane)
        bad = rows.restore_counts(engine, snapshot.side["telemetry"], snapshot.side["minutes"])
        if bad:
            logger.error("%s: %d counts of queues cannot be read and begin anew", store.path, bad)
        for key in rows.restore_journals(engine, snapshot.side["journal"]):
            logger.error("%s: row %r of the journal cannot be read and was left in the file", store.path, key)
        bad = broker.hooks.restore(snapshot.side["webhooks"])
        if bad:
            logger.error("%s: %d webhooks cannot be read and are left alone", store.path, bad)
        broker.heed_hooks({hook.queue for hook in broker.hooks.by_id.values()})
        for table, key in rows.restore_side(engine, snapshot.side):
            logger.error("%s: entry %r of %s cannot be read and was left in the file", store.path, key, table)
        loader = rows.Loader(engine, now_ms, now_ns, FENCE_ROWS, SET_ASIDE_ROWS)
        loader.load(snapshot.jobs)
        for seq, last_id in loader.fences:
            broker.archive.fence(seq, last_id)
        loader.load_rest(snapshot.jobs, store)
        loader.line_up()
        found.unreadable = loader.unreadable
        found.jobs = loader.n + engine.n_archived
        engine.restore_chains(loader.links)
        for name, packed in snapshot.side["schedules"]:
            try:
                engine.restore_schedule(str(name), packed, now_ms)
            except ValueError as error:
                found.schedules_unreadable.append((str(name), str(error)))
        lost = rows.restore_evidence(engine, snapshot.side["evidence"])
        for row, why in loader.damaged:
            found.set_aside[row[0]] = rows.set_aside(engine, row, why, now_ms)
        found.requeued = rows.settle_active(engine, keep_leases, found.crashed, now_ms)
        for queue, seq in engine.floors().items():
            engine.end_floor(queue, seq)  # every row has been looked at
        broker.archive.begin()
        found.seconds = time.monotonic() - started
        broker.recovery = found
    # The mark goes in with what recovery changed: a crash from here on is one.
    store.commit(Cut(meta={META_OPEN: b"1"}))
    for name, why in found.schedules_unreadable:
        logger.error("%s: schedule %r cannot be read and was left in the file: %s", store.path, name, why)
    for seq, why in found.unreadable[:10]:
        became = found.set_aside.get(seq)
        if became is None:
            logger.error("%s: row %d cannot be read and was left in the file: %s", store.path, seq, why)
        else:
            logger.error(
                "%s: row %d cannot be read and is dead letter %r of queue %r now: %s",
                store.path,
                seq,
                became[1],
                became[0],
                why,
            )
    for key in lost:
        logger.error("%s: evidence row %d cannot be read and was left in the file", store.path, key)
    if len(found.unreadable) > 10:
        logger.error("%s: %d rows cannot be read", store.path, len(found.unreadable))
    return found


def flush(broker: Broker) -> None:
    """Commit everything that is buffered, from this thread. Raises StoreError if that fails."""
    while commit_next(broker, broker.begin_commit):
        if broker.degraded is not None:
            raise StoreError(f"the data file cannot be written: {broker.degraded[0]}")


def commit(broker: Broker, cut: Cut) -> None:
    """Commit one cut that the broker gave out, and report it back."""
    commit_next(broker, lambda: cut)


def commit_next(broker: Broker, take: Callable[[], Cut | None]) -> bool:
    """Take a cut, commit it and report it back; False when there is none.

    An interrupt at whatever point leaves the broker able to commit again: what was
    taken is then written with the next cut.
    """
    try:
        cut = take()
        if cut is None:
            return False
        broker.store.commit(cut, sync=broker.sync)
        broker.end_commit()
    except StoreError as error:
        broker.end_commit(error)
    except BaseException:
        if broker.committing:
            broker.end_commit(StoreError("the commit was interrupted"))
        raise
    return True


def close_broker(broker: Broker, again: Callable[[], bool] = lambda: False) -> None:
    """Flush, mark the file as cleanly closed, checkpoint and let it go.

    When that cannot be written, ``again`` waits and tells whether it is tried once more.

    :raises StoreError: it could not be written; the file was let go all the same
    """
    if broker.closed:
        return
    broker.mark_closed()
    if broker.store is None:
        return
    try:
        while not _write_end(broker, again):
            pass
    finally:
        broker.store.close()


def _write_end(broker: Broker, again: Callable[[], bool]) -> bool:
    try:
        flush(broker)
        with broker:
            broker.engine.trim_journals()  # durable adds count, and push out others, only after their commit
        flush(broker)
        broker.store.commit(Cut(meta={META_OPEN: b"0"}), sync=True)
    except StoreError:
        if not again():
            raise
        return False
    return True
