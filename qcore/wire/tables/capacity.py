"""Limits of queues and of groups."""

from __future__ import annotations

from typing import Final

from qcore.limits import MAX_TIME_MS
from qcore.wire.fields import MAX_SAFE_INTEGER, Field
from qcore.wire.tables.shape import QUEUE, Command

_GROUP: Final = Field("groupId", "group_id", required=True, help="1 to 256 characters")

COMMANDS: Final = (
    Command(
        "RateLimit",
        (
            QUEUE,
            Field(
                "limit",
                "finite",
                required=True,
                help="starts in one duration; of a fraction the whole part counts, 0 or less starts none",
                meant=(0, MAX_SAFE_INTEGER),
            ),
            Field(
                "duration",
                "span",
                1000,
                help="ms; also the time in which a burst is paid off",
                meant=(1, MAX_TIME_MS),
            ),
            Field("ttl", "span", help="ms after which the limit is gone", meant=(1, MAX_TIME_MS)),
        ),
        (),
        ("limit must be a finite number",),
        "Limit how many jobs of a queue start in a time.",
        "committed",
    ),
    Command("RateLimitClear", (QUEUE,), (), (), "Take the rate limit away.", "committed"),
    Command(
        "SetConcurrency",
        (
            QUEUE,
            Field(
                "limit",
                "finite",
                required=True,
                help="active jobs; of a fraction the whole part counts, 0 or less starts none",
                meant=(0, MAX_SAFE_INTEGER),
            ),
        ),
        (),
        ("limit must be a finite number",),
        "Limit how many jobs of a queue are active, those that are so already included.",
        "committed",
    ),
    Command("ClearConcurrency", (QUEUE,), (), (), "Take the concurrency limit away.", "committed"),
    Command(
        "GetQueueLimits",
        (QUEUE, Field("maxJobs", "number", help="starts that count as the limit, for rateLimitTtl")),
        ("data.limits",),
        (),
        "Read the limits of a queue; rateLimitTtl is -2 without one, else ms until a job may start.",
    ),
    Command("GetGroupJobsCount", (QUEUE, _GROUP), ("data.count",), (), "Count the queued jobs of a group."),
    Command(
        "GetGroupsJobsCount",
        (QUEUE, Field("maxCount", "any", help="not looked at")),
        ("data.count",),
        (),
        "Count the queued jobs of all groups of a queue.",
    ),
    Command("GetGroupActiveCount", (QUEUE, _GROUP), ("data.count",), (), "Count the active jobs of a group."),
    Command(
        "SetGroupRateLimit",
        (
            QUEUE,
            _GROUP,
            Field("max", "safe", required=True, help="starts in one window"),
            Field("duration", "safe", required=True, help="ms of a window"),
        ),
        (),
        (),
        "Replace, for one group, the rate of pulls that bring one along.",
        "committed",
    ),
    Command("GetGroupRateLimit", (QUEUE, _GROUP), ("data.limit",), (), "Read what SetGroupRateLimit set."),
    Command(
        "RemoveGroupRateLimit",
        (QUEUE, _GROUP),
        ("data.removed",),
        (),
        "Take back what SetGroupRateLimit set.",
        "committed",
    ),
    Command(
        "GetGroupRateLimitTtl",
        (QUEUE, _GROUP, Field("maxJobs", "number", help="starts that count as the limit")),
        ("data.ttl",),
        (),
        "Read the ms until a block or a used-up window ends; 0 when it is not used up, -2 without either.",
    ),
    Command(
        "SetGroupConcurrency",
        (QUEUE, _GROUP, Field("concurrency", "safe", required=True, help="active jobs of the group")),
        (),
        (),
        "Replace, for one group, the concurrency of pulls that bring one along.",
        "committed",
    ),
    Command(
        "GetGroupConcurrency",
        (QUEUE, _GROUP),
        ("data.concurrency",),
        (),
        "Read what SetGroupConcurrency set.",
    ),
    Command(
        "RemoveGroupConcurrency",
        (QUEUE, _GROUP),
        ("data.removed",),
        (),
        "Take back what SetGroupConcurrency set.",
        "committed",
    ),
    Command(
        "PauseGroup", (QUEUE, _GROUP), ("data.changed",), (), "Let nothing of a group start.", "committed"
    ),
    Command("ResumeGroup", (QUEUE, _GROUP), ("data.changed",), (), "End the pause of a group.", "committed"),
    Command("IsGroupPaused", (QUEUE, _GROUP), ("data.paused",), (), "Read whether a group is paused."),
    Command(
        "RateLimitGroup",
        (QUEUE, _GROUP, Field("duration", "safe", required=True, help="ms")),
        (),
        (),
        "Let nothing of a group start for a time.",
        "committed",
    ),
)
