"""``queue.webhooks``: addresses that are told of events, and how they know who tells them."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from qclient.checks import filled, flag, line, listed
from qclient.job import moment
from qclient.options import suggestion
from qclient.section import Section
from qcore.errors import CommandError, ConfigError, NotFoundError

EVENTS: Final = ("job.pushed", "job.started", "job.completed", "job.failed", "job.progress")
SIGNATURE_HEADER: Final = "X-Webhook-Signature"


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook as it stands; ``queue`` is None for those of all queues. The secret is never shown."""

    id: str
    url: str
    events: tuple[str, ...]
    queue: str | None
    enabled: bool
    created_at: datetime | None
    last_told: datetime | None
    told: int
    failed: int

    @classmethod
    def from_wire(cls, raw: Mapping[str, Any]) -> Webhook:
        """Read the reply of the engine."""
        return cls(
            id=raw.get("id") or raw["webhookId"],
            url=raw["url"],
            events=tuple(raw["events"]),
            queue=raw.get("queue"),
            enabled=bool(raw.get("enabled", True)),
            created_at=moment(raw.get("createdAt")),
            last_told=moment(raw.get("lastTriggered")),
            told=int(raw.get("successCount") or 0),
            failed=int(raw.get("failureCount") or 0),
        )


class Webhooks(Section):
    """``queue.webhooks``: who is told of what happens to the jobs of this queue."""

    __slots__ = ()

    def add(
        self, url: str, events: Iterable[str], *, every_queue: bool = False, secret: str | None = None
    ) -> Webhook:
        """Have ``url`` told of ``events`` of this queue, or of every queue.

        With a ``secret`` each post is signed; see :func:`verify_webhook`.

        :raises ConfigError: an event is not known, or the address may not be told
        """
        names = listed(events, "events", "names")
        if not names:
            raise ConfigError("events must name at least one kind of event")
        for name in names:
            if name not in EVENTS:
                raise ConfigError(f"unknown event {name!r}{suggestion(str(name), EVENTS)}")
        fields: dict[str, object] = {"url": filled(url, "url"), "events": names}
        if not flag(every_queue, "every_queue"):
            fields["queue"] = self._queue
        if secret is not None:
            fields["secret"] = filled(secret, "secret")
        try:
            reply = self._client.call("AddWebhook", fields, repeatable=False)
        except CommandError as exc:
            if exc.message.startswith(("Webhook URL", "Invalid URL")):
                raise ConfigError(exc.message) from None
            raise
        return Webhook.from_wire(reply["data"])

    def list(self) -> list[Webhook]:
        """Those that are told of this queue, the ones of every queue among them."""
        hooks = (Webhook.from_wire(raw) for raw in self._client.call("ListWebhooks")["data"]["webhooks"])
        return [hook for hook in hooks if hook.queue in (None, self._queue)]

    def remove(self, id: str) -> bool:
        """Remove one; False when it is not there."""
        try:
            self._client.call("RemoveWebhook", {"webhookId": filled(id, "id")}, repeatable=False)
        except NotFoundError:
            return False
        return True

    def enable(self, id: str) -> None:
        """Go on telling it."""
        self._client.call("SetWebhookEnabled", {"id": filled(id, "id"), "enabled": True})

    def disable(self, id: str) -> None:
        """Stop telling it for now."""
        self._client.call("SetWebhookEnabled", {"id": filled(id, "id"), "enabled": False})


def verify_webhook(headers: Mapping[str, str], body: bytes, secret: str) -> bool:
    """Whether a post was signed with ``secret``. ``body`` is what came, before it is read as JSON."""
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers must be a dict, not {type(headers).__name__}")
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise TypeError(f"body must be bytes, not {type(body).__name__}")
    line(filled(secret, "secret"), "secret")
    given = next((value for name, value in headers.items() if name.lower() == SIGNATURE_HEADER.lower()), "")
    expected = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected.encode(), given.encode("utf-8", "replace"))
