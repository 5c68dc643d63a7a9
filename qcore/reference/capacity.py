"""What may start, found out plainly: limits of queues and groups, and whose turn it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

from qcore.errors import CommandError, LimitError
from qcore.reference.copies import alike

if TYPE_CHECKING:
    from qcore.reference.engine import Job

MS = 1_000_000
HALF = Fraction(1, 2)


@dataclass
class Bucket:
    """A token bucket as its exact debt: the time in ns until it is full."""

    most: int
    span_ms: int
    at_ms: int
    at_ns: int
    debt: Fraction = Fraction(0)
    ttl_ms: int = 0
    ends_ms: int = 0
    ends_ns: int = 0

    def debt_at(self, now_ns: int) -> Fraction:
        return max(Fraction(0), self.debt - (now_ns - self.at_ns))

    def used(self, now_ns: int) -> Fraction:
        return self.debt_at(now_ns) * self.most / (self.span_ms * MS)

    def wait_ns(self, now_ns: int) -> int:
        if self.most == 0:
            return -1
        over = self.debt_at(now_ns) - Fraction(self.span_ms * MS * (self.most - 1), self.most)
        return max(0, ceil(over - HALF))

    def take(self, now_ms: int, now_ns: int) -> None:
        self.debt = self.debt_at(now_ns) + Fraction(self.span_ms * MS, self.most)
        self.at_ms, self.at_ns = now_ms, now_ns


@dataclass
class Group:
    """What is set for a group, its window, and its place in the round."""

    paused: bool = False
    concurrency: int = 0
    rate: tuple[int, int] | None = None
    blocked_ms: int = 0
    blocked_span_ms: int = 0
    blocked_ns: int = 0
    window: tuple[int, int] | None = None
    window_end_ns: int = 0
    window_count: int = 0
    turn: int = 0

    def is_set(self, now_ns: int) -> bool:
        """Whether something holds for the group but its jobs."""
        return bool(
            self.paused
            or self.concurrency
            or self.rate is not None
            or self.blocked_ns > now_ns
            or self.window_end_ns > now_ns
        )


@dataclass
class Wishes:
    """What a pull wants of grouped jobs; see the compiled ``Wanted``."""

    concurrency: int = 0
    window_max: int = 0
    window_ms: int = 0
    affinity: str | None = None
    ungrouped_first: bool = True


@dataclass
class Limits:
    """All limits of one queue."""

    concurrency: int | None = None
    rate: Bucket | None = None
    groups: dict[str, Group] = field(default_factory=dict)
    turns: int = 0
    plain_turn: int = 0

    def group(self, name: str) -> Group:
        return self.groups.setdefault(name, Group())

    def copied(self) -> Limits:
        """A copy that shares nothing that is changed in place."""
        twin = alike(self)
        if self.rate is not None:
            twin.rate = alike(self.rate)
        twin.groups = {name: alike(group) for name, group in self.groups.items()}
        return twin

    def are_set(self, now_ns: int) -> bool:
        """Whether there is any limit."""
        rate = self.rate
        return (
            self.concurrency is not None
            or (rate is not None and not (rate.ttl_ms and now_ns >= rate.ends_ns))
            or any(group.is_set(now_ns) for group in self.groups.values())
        )

    def restarted(self, now_ms: int, now_ns: int) -> Limits:
        """What a restart leaves of it: settings, and what was spent of the rate."""
        fresh = Limits(self.concurrency)
        rate = self.rate
        if rate is not None and not (rate.ttl_ms and rate.ends_ms <= now_ms):
            left = rate.debt - max(0, now_ms - rate.at_ms) * MS
            debt = min(max(Fraction(0), left), Fraction(rate.span_ms * MS))
            fresh.rate = Bucket(
                rate.most, rate.span_ms, now_ms, now_ns, debt, rate.ttl_ms, rate.ends_ms, rate.ends_ns
            )
            if rate.ttl_ms:
                fresh.rate.ends_ns = now_ns + min(rate.ends_ms - now_ms, rate.ttl_ms) * MS
        for name, old in self.groups.items():
            group = fresh.group(name)
            group.paused, group.concurrency, group.rate = old.paused, old.concurrency, old.rate
            left_ms = min(old.blocked_ms - now_ms, old.blocked_span_ms)
            if left_ms > 0:
                group.blocked_ms, group.blocked_span_ms = now_ms + left_ms, left_ms
                group.blocked_ns = now_ns + left_ms * MS
        return fresh


class Capacity:
    """The part of the plain engine that says what may start."""

    jobs: dict[str, Job]

    def limits(self, queue: str) -> Limits:
        """The limits of a queue; of one that is not there, what holds without any."""
        raise NotImplementedError

    def limits_used(self, queue: str, *, make: bool = True) -> Limits:
        """The same to be changed: the queue counts as used, and with ``make`` is made if it is not there."""
        raise NotImplementedError

    def _of(self, queue: str, *states: str) -> list[Job]:
        raise NotImplementedError

    # --- limits of a queue -----------------------------------------------------------------

    def _rate(self, queue: str, now_ns: int) -> Bucket | None:
        limits = self.limits(queue)
        if limits.rate is not None and limits.rate.ttl_ms and now_ns >= limits.rate.ends_ns:
            limits.rate = None
        return limits.rate

    def set_concurrency(self, queue: str, limit: int | None) -> None:
        self.limits_used(queue, make=limit is not None).concurrency = limit

    def set_rate(
        self,
        queue: str,
        limit: int | None,
        now_ms: int,
        now_ns: int,
        *,
        duration_ms: int = 1000,
        ttl_ms: int = 0,
    ) -> None:
        limits = self.limits_used(queue, make=limit is not None)
        before = self._rate(queue, now_ns)
        if limit is None:
            limits.rate = None
            return
        used = Fraction(0) if before is None else before.used(now_ns)
        debt = min(used, Fraction(limit)) * duration_ms * MS / limit if limit else Fraction(0)
        limits.rate = Bucket(limit, duration_ms, now_ms, now_ns, debt, ttl_ms)
        if ttl_ms:
            limits.rate.ends_ms, limits.rate.ends_ns = now_ms + ttl_ms, now_ns + ttl_ms * MS

    def queue_limits(
        self, queue: str, now_ns: int, *, max_jobs: int | None = None
    ) -> tuple[tuple[int, int] | None, int, int | None, bool]:
        limits, rate = self.limits(queue), self._rate(queue, now_ns)
        most = limits.concurrency
        maxed = most is not None and len(self._of(queue, "active")) >= most
        if rate is None:
            return (None, -2, most, maxed)
        if rate.ttl_ms:
            wait = rate.ends_ns - now_ns
        elif max_jobs is not None and rate.used(now_ns) < max_jobs:
            wait = 0
        else:
            wait = rate.wait_ns(now_ns)
        wait = rate.span_ms if wait < 0 else -(-wait // MS)
        return ((rate.most, rate.span_ms), wait, most, maxed)

    def _has_room(self, queue: str, now_ns: int) -> bool:
        limits, rate = self.limits(queue), self._rate(queue, now_ns)
        if limits.concurrency is not None and len(self._of(queue, "active")) >= limits.concurrency:
            return False
        return rate is None or rate.wait_ns(now_ns) == 0

    # --- turns ----------------------------------------------------------------------------------

    def _line_up(self, job: Job) -> None:
        """A job became ready: if it is the only one of its group, the group goes to the end of the round."""
        if job.group is None:
            return
        limits = self.limits(job.queue)
        if not any(other.group == job.group and other is not job for other in self._of(job.queue, "ready")):
            limits.turns += 1
            limits.group(job.group).turn = limits.turns

    def _may(self, queue: str, name: str, wishes: Wishes, now_ns: int) -> bool:
        group = self.limits(queue).group(name)
        if group.paused or group.blocked_ns > now_ns:
            return False
        active = sum(job.group == name for job in self._of(queue, "active"))
        if wishes.concurrency and active >= (group.concurrency or wishes.concurrency):
            return False
        if wishes.window_max and group.window_end_ns > now_ns:
            window = group.rate or (wishes.window_max, wishes.window_ms)
            return group.window != window or group.window_count < window[0]
        return True

    def _candidate(self, queue: str, wishes: Wishes | None, now_ns: int) -> Job | None:
        wishes = wishes or Wishes()
        ready = self._of(queue, "ready")
        plain = [job for job in ready if job.group is None]
        if wishes.affinity:
            plain = []
        limits = self.limits(queue)
        names = {job.group for job in ready if job.group is not None}
        if wishes.affinity is not None:
            names &= {wishes.affinity}
        turns = [(limits.group(name).turn, name) for name in names if self._may(queue, name, wishes, now_ns)]
        first = not turns or wishes.ungrouped_first or limits.plain_turn <= min(turns)[0]
        if plain and first:
            return min(plain, key=lambda job: job.place)
        if not turns:
            return None
        name = min(turns)[1]
        return min((job for job in ready if job.group == name), key=lambda job: (job.priority, job.seq))

    def _started(self, job: Job, wishes: Wishes | None, now_ms: int, now_ns: int) -> None:
        """A pull took this job, which is active by now."""
        wishes = wishes or Wishes()
        limits = self.limits(job.queue)
        if limits.rate is not None:
            limits.rate.take(now_ms, now_ns)
        if job.group is None:
            if not wishes.ungrouped_first:
                limits.turns += 1
                limits.plain_turn = limits.turns
            return
        group = limits.group(job.group)
        limits.turns += 1
        group.turn = limits.turns
        if wishes.window_max:
            window = group.rate or (wishes.window_max, wishes.window_ms)
            if group.window_end_ns <= now_ns or group.window != window:
                group.window, group.window_count = window, 0
                group.window_end_ns = now_ns + window[1] * MS
            group.window_count += 1

    # --- settings of groups ----------------------------------------------------------------------

    def pause_group(self, queue: str, name: str, paused: bool = True) -> bool:
        if self.limits(queue).group(name).paused == paused:
            return False
        self.limits_used(queue).group(name).paused = paused
        return True

    def set_group_concurrency(self, queue: str, name: str, limit: int | None) -> bool:
        if limit is None and not self.limits(queue).group(name).concurrency:
            return False
        self.limits_used(queue).group(name).concurrency = limit or 0
        return True

    def set_group_rate(self, queue: str, name: str, limit: int | None, duration_ms: int = 0) -> bool:
        if limit is None and self.limits(queue).group(name).rate is None:
            return False
        group = self.limits_used(queue).group(name)
        group.rate = None if limit is None else (limit, duration_ms)
        group.window_end_ns = 0
        return True

    def block_group(self, queue: str, name: str, duration_ms: int, now_ms: int, now_ns: int) -> None:
        group = self.limits_used(queue).group(name)
        group.blocked_ms, group.blocked_span_ms = now_ms + duration_ms, duration_ms
        group.blocked_ns = now_ns + duration_ms * MS

    def group_wait_ms(self, queue: str, name: str, now_ns: int, *, max_jobs: int | None = None) -> int:
        group = self.limits(queue).group(name)
        if group.blocked_ns > now_ns:
            return -(-(group.blocked_ns - now_ns) // MS)
        if group.window_end_ns <= now_ns or group.window is None:
            return -2
        if group.window_count < (group.window[0] if max_jobs is None else max_jobs):
            return 0
        return -(-(group.window_end_ns - now_ns) // MS)

    def group_sizes(self, queue: str, name: str) -> tuple[int, int, int]:
        """Ready, delayed and active jobs of a group."""
        ready, delayed, active = (
            sum(job.group == name for job in self._of(queue, state))
            for state in ("ready", "delayed", "active")
        )
        return ready, delayed, active

    def demand_group_room(self, queue: str, adds: list[tuple[str, int | None]]) -> None:
        for n, (name, most) in enumerate(adds):
            before = sum(self.group_sizes(queue, name)[:2]) + sum(other == name for other, _ in adds[:n])
            if most is not None and before >= most:
                raise LimitError(f"Group {name} has reached its maximum size of {most}")


def check_group_priority(priority: float) -> None:
    if not (0 <= priority <= 2_097_151 and priority == int(priority)):
        raise CommandError("group.priority must be an integer between 0 and 2097151")
