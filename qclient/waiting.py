"""Waiting for the outcome of a job: the one place that knows how."""

from __future__ import annotations

import time
from typing import Any

from qclient.client import COMMAND_TIMEOUT_S, Client
from qclient.codec import readable
from qcore.errors import CommandError, JobFailedError, JobLostError, NotFoundError, WaitTimeout

# An engine that answers a wait only at its end tells of a failure late: the
# first waits are short, later ones long enough to cost nothing.
_FIRST_WAIT_S = 0.25
_LONGEST_WAIT_S = 10.0
_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.5


def wait_for_result(client: Client, job_id: str, timeout: float | None) -> Any:
    """Return the result of ``job_id``, or raise how else it ended.

    None also when it was removed on completion before anybody waited: that it was
    completed is known then, what it returned is not.

    Raises ``JobFailedError`` when it failed for good, ``JobLostError`` when it is
    gone and ``WaitTimeout`` after ``timeout`` seconds.
    """
    started = time.monotonic()
    deadline = None if timeout is None else started + timeout
    wait, pause, can_wait = _FIRST_WAIT_S, _FIRST_PAUSE_S, True
    while True:
        now = time.monotonic()
        left = _LONGEST_WAIT_S if deadline is None else deadline - now
        slice_s = max(0.0, min(wait, left))
        if can_wait:
            try:
                reply = client.call(
                    "WaitJob",
                    {"id": job_id, "timeout": int(slice_s * 1000)},
                    timeout=slice_s + COMMAND_TIMEOUT_S,
                )
            except NotFoundError:
                raise JobLostError(f"job {job_id!r} is gone; its outcome is not known") from None
            except CommandError as exc:
                if not exc.message.startswith("Unknown command"):
                    raise
                can_wait = False
            else:
                if reply.get("completed") is True:
                    return readable(reply.get("result"))
        state = client.call("GetState", {"id": job_id}).get("state")
        if state == "completed":
            return readable(client.call("GetResult", {"id": job_id}).get("result"))
        if state == "failed":
            raise failure(client, job_id)
        if state == "unknown":
            raise JobLostError(f"job {job_id!r} is gone; its outcome is not known")
        now_after = time.monotonic()
        if deadline is not None and now_after >= deadline:
            raise WaitTimeout(f"job {job_id!r} is {state} after {timeout:g} s")
        if not can_wait or now_after - now < slice_s * 0.9:
            # Answered early without an outcome: do not turn that into a busy loop.
            nap = pause if deadline is None else min(pause, max(0.0, deadline - now_after))
            time.sleep(nap)
            pause = min(pause * 2, _LONGEST_PAUSE_S)
        wait = min(wait * 2, _LONGEST_WAIT_S)


def failure(client: Client, job_id: str) -> JobFailedError | JobLostError:
    """The exception that tells why ``job_id`` failed for good."""
    try:
        job = client.call("GetJob", {"id": job_id})["job"]
    except NotFoundError:
        return JobLostError(f"job {job_id!r} failed and was removed")
    return JobFailedError(
        str(job.get("failedReason") or "failed"),
        attempts=int(job.get("attempts") or 0),
        stacktrace=list(job.get("stacktrace") or ()),
    )
