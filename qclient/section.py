"""What the parts of a queue have in common: ``queue.dlq``, ``queue.limits`` and the others."""

from __future__ import annotations

from typing import Any

from qclient.client import Client


class Section:
    """Commands to one queue.

    Knows the client and the name, not the queue itself: a cycle would delay the warning
    of a queue that is dropped open.
    """

    __slots__ = ("_client", "_queue")

    def __init__(self, client: Client, queue: str) -> None:
        self._client = client
        self._queue = queue

    def _ask(self, command: str, **fields: object) -> dict[str, Any]:
        """Run a command that does no harm when it runs twice."""
        return self._client.call(command, {"queue": self._queue, **fields})

    def _change(self, command: str, **fields: object) -> dict[str, Any]:
        """Run a command that counts what it changes: after a lost reply the caller is told, and looks."""
        return self._client.call(command, {"queue": self._queue, **fields}, repeatable=False)
