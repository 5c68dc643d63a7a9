"""Queues and workers for Python programs: in this process or on a server."""

from __future__ import annotations

from qclient.deadletters import DeadJob, DeadLetterConfig, DeadLetterStats, StallConfig
from qclient.delivery import JobContext, current_job
from qclient.events import QueueEvents
from qclient.figures import Outcomes, WorkerInfo
from qclient.flows import FlowNode, FlowProducer, Node
from qclient.job import Job, LogLine
from qclient.limits import GroupHandle
from qclient.local import shutdown_engine
from qclient.namespace import QueueGroup
from qclient.queue import JobSpec, Queue
from qclient.schedules import Schedule
from qclient.tls import TLS
from qclient.values import (
    Backoff,
    Counts,
    Debounce,
    Dedup,
    Group,
    GroupLimits,
    JobState,
    Keep,
    RateLimit,
    Repeat,
)
from qclient.webhooks import Webhook, verify_webhook
from qclient.worker import Worker, WorkerStats
from qcore.errors import (
    AuthError,
    ClosedError,
    CommandError,
    CommandTimeout,
    ConfigError,
    ConnectionLost,
    DelayedError,
    DuplicateError,
    EngineBusyError,
    FlowError,
    ForkedError,
    JobCancelled,
    JobControl,
    JobFailedError,
    JobLostError,
    LeaseError,
    LimitError,
    NotFoundError,
    ProtocolError,
    QError,
    RateLimitError,
    RetryJob,
    SerializationError,
    StateError,
    StoreError,
    TransportError,
    UnrecoverableError,
    WaitingChildrenError,
    WaitTimeout,
)

__all__ = [
    "TLS",
    "AuthError",
    "Backoff",
    "ClosedError",
    "CommandError",
    "CommandTimeout",
    "ConfigError",
    "ConnectionLost",
    "Counts",
    "DeadJob",
    "DeadLetterConfig",
    "DeadLetterStats",
    "Debounce",
    "Dedup",
    "DelayedError",
    "DuplicateError",
    "EngineBusyError",
    "FlowError",
    "FlowNode",
    "FlowProducer",
    "ForkedError",
    "Group",
    "GroupHandle",
    "GroupLimits",
    "Job",
    "JobCancelled",
    "JobContext",
    "JobControl",
    "JobFailedError",
    "JobLostError",
    "JobSpec",
    "JobState",
    "Keep",
    "LeaseError",
    "LimitError",
    "LogLine",
    "Node",
    "NotFoundError",
    "Outcomes",
    "ProtocolError",
    "QError",
    "Queue",
    "QueueEvents",
    "QueueGroup",
    "RateLimit",
    "RateLimitError",
    "Repeat",
    "RetryJob",
    "Schedule",
    "SerializationError",
    "StallConfig",
    "StateError",
    "StoreError",
    "TransportError",
    "UnrecoverableError",
    "WaitTimeout",
    "WaitingChildrenError",
    "Webhook",
    "Worker",
    "WorkerInfo",
    "WorkerStats",
    "current_job",
    "shutdown_engine",
    "verify_webhook",
]
