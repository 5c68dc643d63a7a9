"""Commands that ask and change nothing, by what they ask about."""

from __future__ import annotations

OF_JOB = ("GetJob", "GetState", "GetResult", "GetProgress", "GetLogs", "GetChildrenValues")
OF_PARENT = ("GetFailedChildrenValues", "GetIgnoredChildrenFailures")
OF_QUEUE = (
    "Count",
    "Dlq",
    "GetCountsPerPriority",
    "GetDlqConfig",
    "GetGroupsJobsCount",
    "GetJobCounts",
    "GetJobs",
    "GetQueueLimits",
    "GetStallConfig",
    "IsPaused",
)
OF_GROUP = (
    "GetGroupActiveCount",
    "GetGroupConcurrency",
    "GetGroupJobsCount",
    "GetGroupRateLimit",
    "IsGroupPaused",
)
OF_ALL = ("ListQueues", "CronList", "ListWebhooks")
