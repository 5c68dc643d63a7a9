"""Addresses that are told of events."""

from __future__ import annotations

from collections.abc import Mapping

from qcore.broker.handlers.answer import Answer, Fields, Handler, Reply
from qcore.broker.webhooks import Hook, check_events, check_url, shown_url
from qcore.errors import LimitError, NotFoundError


def _add_webhook(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    hook = Hook(
        id=broker.new_id(),
        url=check_url(fields.get("url"), broker.hooks.settings.allowed),
        events=check_events(fields["events"]),
        queue=fields.get("queue"),
        secret=fields.get("secret"),
        created_ms=broker.wall_ms,
    )
    most = broker.hooks.settings.max_hooks
    if (n := len(broker.hooks.by_id)) >= most:
        raise LimitError(f"There are {n} webhooks, and {most} are the most that there may be")
    broker.keep_hook(hook)
    return {
        "data": {
            "webhookId": hook.id,
            "url": shown_url(hook.url),
            "events": list(hook.events),
            "queue": hook.queue,
            "createdAt": hook.created_ms,
        }
    }


def _remove_webhook(answer: Answer, fields: Fields) -> Reply:
    if not answer.session.broker.drop_hook(fields["webhookId"]):
        raise NotFoundError("Webhook not found")
    return {"data": {"removed": True}}


def _set_webhook_enabled(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    hook = broker.hooks.by_id.get(fields["id"])
    if hook is None:
        raise NotFoundError("Webhook not found")
    hook.enabled = fields["enabled"]
    broker.keep_hook(hook)
    return {}


def _list_webhooks(answer: Answer, fields: Fields) -> Reply:
    hooks = answer.session.broker.hooks.by_id.values()
    shown = [
        {
            "id": hook.id,
            "url": shown_url(hook.url),
            "events": list(hook.events),
            "queue": hook.queue,
            "createdAt": hook.created_ms,
            "lastTriggered": hook.last_ms,
            "successCount": hook.n_delivered,
            "failureCount": hook.n_failed,
            "enabled": hook.enabled,
        }
        for hook in hooks
    ]
    enabled = sum(hook.enabled for hook in hooks)
    return {"data": {"webhooks": shown, "stats": {"total": len(shown), "enabled": enabled}}}


HANDLERS: Mapping[str, Handler] = {
    "AddWebhook": _add_webhook,
    "RemoveWebhook": _remove_webhook,
    "SetWebhookEnabled": _set_webhook_enabled,
    "ListWebhooks": _list_webhooks,
}
