"""``QueueGroup``: queues whose names begin alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from qclient.client import Client
from qclient.closing import Closing
from qclient.delivery import JobContext
from qclient.queue import Queue, queue_name
from qclient.settings import WorkerOptions
from qclient.url import resolve
from qclient.worker import Worker

SEPARATOR = ":"


class QueueGroup(Closing):
    """The queues ``namespace:name`` of one engine; ``url`` as for ``Queue``.

    What is done to all of them is done to one after the other, and to those that are there.
    """

    def __init__(self, namespace: str, url: str | None = None) -> None:
        self.namespace = queue_name(namespace)
        self._url = url
        self.client = Client(resolve(url))

    def _full(self, name: str) -> str:
        return queue_name(f"{self.namespace}{SEPARATOR}{queue_name(name)}")

    def queue(self, name: str) -> Queue:
        """One of them; it is to be closed by whoever asked."""
        return Queue(self._full(name), self._url)

    def worker(
        self, name: str, processor: Callable[[JobContext], Any], /, **options: Unpack[WorkerOptions]
    ) -> Worker:
        """A worker of one of them, not started."""
        return Worker(self._full(name), processor, self._url, **options)

    def names(self) -> list[str]:
        """Names of those that are there, without the namespace."""
        start = f"{self.namespace}{SEPARATOR}"
        listed: list[str] = self.client.call("ListQueues")["queues"]
        return sorted(name.removeprefix(start) for name in listed if name.startswith(start))

    def _each(self, command: str) -> list[dict[str, Any]]:
        return [
            self.client.call(command, {"queue": self._full(name)}, repeatable=False) for name in self.names()
        ]

    def pause_all(self) -> None:
        """Start nothing in any of them."""
        self._each("Pause")

    def resume_all(self) -> None:
        """Start jobs again in all of them."""
        self._each("Resume")

    def drain_all(self) -> int:
        """Remove the jobs that wait to run; returns how many."""
        return sum(int(reply["count"]) for reply in self._each("Drain"))

    def obliterate_all(self) -> None:
        """Remove everything of all of them, active jobs too."""
        self._each("Obliterate")

    def __repr__(self) -> str:
        return f"<QueueGroup {self.namespace!r} at {self.client.target}>"
