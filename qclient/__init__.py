"""Queues and workers for Python programs: in this process or on a server."""

from __future__ import annotations

from qclient.job import Job
from qclient.queue import DeadJob, JobSpec, Queue
from qclient.values import Backoff, Counts, JobState, Keep

__all__ = ["Backoff", "Counts", "DeadJob", "Job", "JobSpec", "JobState", "Keep", "Queue"]
