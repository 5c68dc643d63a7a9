"""The lease keeper: a thread with a connection of its own.

It renews leases although the event loop is blocked. It needs the interpreter's
lock for a moment: a call that holds that lock for longer than a lease lets the
lease run out. It stops renewing on purpose when the loop stood still for
``max_block``, or a job ran past its time.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

from qclient.client import Link
from qclient.delivery import ACKING, BUFFERED, STARTED, JobContext
from qcore.errors import ForkedError, QError

if TYPE_CHECKING:
    from qclient.control import Control

_log = logging.getLogger("qclient.worker")
_CHUNK = 1000


class LeaseKeeper:
    """Renews every lease of ``control`` each ``interval`` seconds, from :meth:`start` to :meth:`stop`."""

    def __init__(self, control: Control, interval: float, max_block: float) -> None:
        self._control = control
        self._interval = interval
        self._max_block = max_block
        self._stop = threading.Event()
        self._link: Link | None = None
        self._ticked = time.monotonic()
        self._blocked = False
        self._thread = threading.Thread(target=self._run, name="qclient-leases", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; it may be in a command for a moment."""
        self._stop.set()
        link = self._link
        if link is not None:
            link.abort()

    def join(self, timeout: float) -> None:
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _tick(self) -> None:
        self._ticked = time.monotonic()

    def _run(self) -> None:
        pause = self._interval
        timeout = max(1.0, self._interval)
        while not self._stop.wait(pause):
            pause = self._interval
            try:
                if self._link is None:
                    self._link = Link(self._control.target)
                self._beat(self._link, timeout)
            except ForkedError:
                return
            except (QError, OSError) as exc:
                link, self._link = self._link, None
                if link is not None:
                    link.close()
                if not self._stop.is_set():
                    _log.debug("leases were not renewed: %s", exc)
                # A lost beat is made up for well before the lease ends.
                pause = min(self._interval / 4, 1.0)
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _beat(self, link: Link, timeout: float) -> None:
        control = self._control
        control.call_soon(self._tick)
        now = time.monotonic()
        if now - self._ticked > self._max_block + self._interval:
            if not self._blocked:
                self._blocked = True
                self._report_block(now - self._ticked)
            return
        self._blocked = False
        while True:
            try:
                jobs = list(control.leased)
                break
            except RuntimeError:  # the set grew meanwhile
                continue
        jobs = [j for j in jobs if j._state <= ACKING and (j._deadline is None or j._deadline > now)]
        for at in range(0, len(jobs), _CHUNK):
            self._renew(link, jobs[at : at + _CHUNK], timeout)
        link.call(
            "Heartbeat",
            {
                "id": control.worker_id,
                "activeJobs": control.running,
                "processed": control.completed,
                "failed": control.failed,
            },
            timeout=timeout,
        )

    def _renew(self, link: Link, jobs: list[JobContext], timeout: float) -> None:
        reply = link.call(
            "JobHeartbeatB",
            {"ids": [j.id for j in jobs], "tokens": [j.token for j in jobs]},
            timeout=timeout,
        )
        if not reply.get("ok"):
            return
        data: dict[str, Any] = reply.get("data") or {}
        if data.get("count", len(jobs)) >= len(jobs):
            return
        # The count tells that some were refused, not which. Most of them have been
        # acknowledged meanwhile; of the rest each is asked about alone.
        lost = []
        for job in jobs:
            if job._state > STARTED:
                continue
            one = link.call("JobHeartbeat", {"id": job.id, "token": job.token}, timeout=timeout)
            if not one.get("ok") and job._state in (BUFFERED, STARTED):
                lost.append(job)
        if lost:
            self._control.call_soon(self._control.leases_lost, lost)

    def _report_block(self, seconds: float) -> None:
        stacks = []
        names = {t.ident: t.name for t in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            if ident != threading.get_ident():
                stacks.append(f"{names.get(ident, ident)}:\n" + "".join(traceback.format_stack(frame)[-8:]))
        _log.error(
            "the event loop stood still for %.1f s; leases are no longer renewed\n%s",
            seconds,
            "\n".join(stacks),
        )
