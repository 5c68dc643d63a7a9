"""Options of a worker, checked when they are given."""

from __future__ import annotations

import itertools
import os
import socket
from dataclasses import dataclass
from typing import TypedDict

from qclient.checks import filled, flag, line, whole
from qclient.durations import Duration, to_ms, to_seconds
from qclient.values import GroupLimits
from qcore.errors import ConfigError
from qcore.limits import MAX_NAME_CHARS

_number = itertools.count(1)


class WorkerOptions(TypedDict, total=False):
    """What ``Worker`` takes besides queue, processor and url; durations in seconds."""

    concurrency: int
    batch_size: int
    prefetch: int
    poll_timeout: Duration
    drain_delay: Duration
    lock_duration: Duration
    heartbeat_interval: Duration
    max_block: Duration
    ack_interval: Duration | None
    shutdown_timeout: Duration
    cancel_grace: Duration
    handle_signals: bool
    burst: bool
    group: GroupLimits | None
    name: str


@dataclass(slots=True)
class WorkerSettings:
    """Checked options; every duration in seconds unless its name says otherwise."""

    concurrency: int = 1
    batch_size: int = 10
    prefetch: int = 0
    poll_timeout: float = 5.0
    drain_delay: float = 0.05
    lock_ms: int = 30_000
    heartbeat_interval: float = 10.0
    max_block: float = 90.0
    ack_interval: float | None = None
    shutdown_timeout: float = 25.0
    cancel_grace: float = 3.0
    handle_signals: bool = True
    burst: bool = False
    group: dict[str, object] | None = None
    name: str = ""


def checked_concurrency(value: object) -> int:
    """A number of jobs that may run at once."""
    return whole(value, "concurrency", 1, 100_000)


def _made_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{next(_number)}"


def worker_settings(
    *,
    concurrency: int = 1,
    batch_size: int = 10,
    prefetch: int = 0,
    poll_timeout: Duration = 5,
    drain_delay: Duration = 0.05,
    lock_duration: Duration = 30,
    heartbeat_interval: Duration | None = None,
    max_block: Duration | None = None,
    ack_interval: Duration | None = None,
    shutdown_timeout: Duration = 25,
    cancel_grace: Duration = 3,
    handle_signals: bool = True,
    burst: bool = False,
    group: GroupLimits | None = None,
    name: str | None = None,
) -> WorkerSettings:
    """Check the options of a worker.

    Without ``heartbeat_interval`` a lease is renewed every 10 seconds, or a third
    of its length if that is shorter; 0 turns renewal off. ``ack_interval=None``
    follows the measured round trip, from 0.5 to 50 ms. ``group`` limits what runs of
    each group, over all workers that say so.
    """
    if group is not None and not isinstance(group, GroupLimits):
        raise TypeError(f"group must be GroupLimits, not {type(group).__name__}")
    lock_ms = to_ms(lock_duration, "lock_duration")
    if lock_ms < 1:
        raise ConfigError(f"lock_duration must be at least a millisecond, not {lock_duration!r}")
    if heartbeat_interval is None:
        beat = min(10.0, lock_ms / 3000)
    else:
        beat = to_seconds(heartbeat_interval, "heartbeat_interval")
        if beat * 2000 >= lock_ms:
            raise ConfigError(
                f"heartbeat_interval of {beat:g} s must be below half of lock_duration, {lock_ms / 1000:g} s"
            )
    poll = to_seconds(poll_timeout, "poll_timeout")
    if poll > 30:
        raise ConfigError(f"poll_timeout must be at most 30 s, not {poll:g}")
    interval = None
    if ack_interval is not None:
        interval = max(0.0005, to_seconds(ack_interval, "ack_interval"))
    block = max(3 * lock_ms / 1000, 90.0) if max_block is None else to_seconds(max_block, "max_block")
    return WorkerSettings(
        concurrency=checked_concurrency(concurrency),
        batch_size=whole(batch_size, "batch_size", 1, 1000),
        prefetch=whole(prefetch, "prefetch", 0, 100_000),
        poll_timeout=poll,
        drain_delay=max(0.001, to_seconds(drain_delay, "drain_delay")),
        lock_ms=lock_ms,
        heartbeat_interval=beat,
        max_block=block,
        ack_interval=interval,
        shutdown_timeout=to_seconds(shutdown_timeout, "shutdown_timeout"),
        cancel_grace=to_seconds(cancel_grace, "cancel_grace"),
        handle_signals=flag(handle_signals, "handle_signals"),
        burst=flag(burst, "burst"),
        group=None if group is None else group.to_wire(),
        name=_made_name() if name is None else line(filled(name, "name"), "name", MAX_NAME_CHARS),
    )
