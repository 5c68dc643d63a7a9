"""``queue.limits`` and ``queue.group(id)``: how much may start, and how much may run."""

from __future__ import annotations

from qclient.checks import group_id, whole
from qclient.client import Client
from qclient.durations import Duration, to_ms, wire_number
from qclient.section import Section
from qclient.values import RateLimit
from qcore.errors import ConfigError


def _left(ms: float) -> float | None:
    """Seconds of a time to wait; the engine says -2 where there is nothing to wait for."""
    return None if ms < 0 else ms / 1000


def _span(value: Duration, name: str) -> int | float:
    ms = to_ms(value, name)
    if not ms:
        raise ConfigError(f"{name} must be longer than 0, not {value!r}")
    return wire_number(ms)


class QueueLimits(Section):
    """``queue.limits``: limits of the whole queue, over all workers; they outlive a restart."""

    __slots__ = ()

    def set_rate(self, max: int, per: Duration = 1, *, ttl: Duration | None = None) -> None:
        """At most ``max`` starts in the time ``per``, as a token bucket; 0 starts none.

        With ``ttl`` the limit ends after that time.
        """
        fields: dict[str, object] = {"limit": whole(max, "max", 0), "duration": _span(per, "per")}
        if ttl is not None:
            fields["ttl"] = _span(ttl, "ttl")
        self._ask("RateLimit", **fields)

    def clear_rate(self) -> None:
        """No limit on starts."""
        self._ask("RateLimitClear")

    def rate(self) -> RateLimit | None:
        """The limit on starts."""
        return RateLimit.from_wire(self._ask("GetQueueLimits")["data"]["limits"]["rateLimit"])

    def rate_ttl(self, max_jobs: int | None = None) -> float | None:
        """Seconds until the next start is allowed, 0 for now, None without a limit.

        With ``max_jobs``, as if that were the limit; of a limit with a ``ttl``, the rest of it.
        """
        fields = {} if max_jobs is None else {"maxJobs": whole(max_jobs, "max_jobs", 1)}
        return _left(self._ask("GetQueueLimits", **fields)["data"]["limits"]["rateLimitTtl"])

    def set_concurrency(self, n: int) -> None:
        """At most ``n`` active jobs; 0 starts none."""
        self._ask("SetConcurrency", limit=whole(n, "concurrency", 0))

    def clear_concurrency(self) -> None:
        """Any number of active jobs."""
        self._ask("ClearConcurrency")

    def concurrency(self) -> int | None:
        """The limit on active jobs."""
        limit = self._ask("GetQueueLimits")["data"]["limits"]["concurrencyLimit"]
        return None if limit is None else int(limit)

    def is_maxed(self) -> bool:
        """Whether as many jobs are active as may be."""
        return bool(self._ask("GetQueueLimits")["data"]["limits"]["maxed"])


class GroupHandle(Section):
    """``queue.group(id)``: one lane of a queue.

    Its concurrency and rate replace the numbers that workers bring (``Worker(group=...)``);
    a worker that brings none is not limited by them. A pause holds for all.
    """

    __slots__ = ("id",)

    def __init__(self, client: Client, queue: str, group: str) -> None:
        super().__init__(client, queue)
        self.id = group_id(group)

    def count(self) -> int:
        """Jobs of the group that wait to run."""
        return int(self._ask("GetGroupJobsCount", groupId=self.id)["data"]["count"])

    def active(self) -> int:
        """Jobs of the group that run."""
        return int(self._ask("GetGroupActiveCount", groupId=self.id)["data"]["count"])

    def set_rate(self, max: int, per: Duration = 1) -> None:
        """At most ``max`` starts in each window of the time ``per``."""
        self._ask("SetGroupRateLimit", groupId=self.id, max=whole(max, "max", 1), duration=_span(per, "per"))

    def rate(self) -> RateLimit | None:
        """The rate of this group alone."""
        return RateLimit.from_wire(self._ask("GetGroupRateLimit", groupId=self.id)["data"]["limit"])

    def clear_rate(self) -> bool:
        """Back to the rate that workers bring; False when there was none of its own."""
        return bool(self._change("RemoveGroupRateLimit", groupId=self.id)["data"]["removed"])

    def rate_ttl(self, max_jobs: int | None = None) -> float | None:
        """Seconds until the window or the hold ends, 0 while starts are left, None without a window."""
        fields = {} if max_jobs is None else {"maxJobs": whole(max_jobs, "max_jobs", 1)}
        return _left(self._ask("GetGroupRateLimitTtl", groupId=self.id, **fields)["data"]["ttl"])

    def hold(self, for_: Duration) -> None:
        """Start nothing of the group for that time."""
        self._ask("RateLimitGroup", groupId=self.id, duration=_span(for_, "hold"))

    def set_concurrency(self, n: int) -> None:
        """At most ``n`` active jobs of the group."""
        self._ask("SetGroupConcurrency", groupId=self.id, concurrency=whole(n, "concurrency", 1))

    def concurrency(self) -> int | None:
        """The concurrency of this group alone."""
        limit = self._ask("GetGroupConcurrency", groupId=self.id)["data"]["concurrency"]
        return None if limit is None else int(limit)

    def clear_concurrency(self) -> bool:
        """Back to the concurrency that workers bring; False when there was none of its own."""
        return bool(self._change("RemoveGroupConcurrency", groupId=self.id)["data"]["removed"])

    def pause(self) -> bool:
        """Start nothing of the group; False when it was paused."""
        return bool(self._change("PauseGroup", groupId=self.id)["data"]["changed"])

    def resume(self) -> bool:
        """Start jobs of the group again; False when it was not paused."""
        return bool(self._change("ResumeGroup", groupId=self.id)["data"]["changed"])

    def is_paused(self) -> bool:
        """Whether the group is paused."""
        return bool(self._ask("IsGroupPaused", groupId=self.id)["data"]["paused"])

    def __repr__(self) -> str:
        return f"<Group {self.id!r} of {self._queue!r}>"
