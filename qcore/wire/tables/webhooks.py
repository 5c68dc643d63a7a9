"""Addresses that are told of events."""

from __future__ import annotations

from typing import Final

from qcore.wire.fields import Field
from qcore.wire.tables.shape import Command

COMMANDS: Final = (
    Command(
        "AddWebhook",
        (
            Field("url", "url", required=True, help="where it is posted", absent="Webhook URL is required"),
            Field(
                "events", "list", required=True, help="job.pushed, .started, .completed, .failed, .progress"
            ),
            Field("queue", "queue", help="only of this queue; absent: of every one"),
            Field("secret", "text", help="key of the signature that comes with each post"),
        ),
        ("data.webhookId", "data.url", "data.events", "data.queue", "data.createdAt"),
        (
            "Webhook URL ...",
            "Invalid URL format",
            "Invalid webhook event(s): <names>. Valid: <names>",
            "There are <n> webhooks, the most that there may be",
        ),
        "Have an address told of events by HTTP.",
        "committed",
    ),
    Command(
        "RemoveWebhook",
        (Field("webhookId", "id", required=True, help="id of the hook"),),
        ("data.removed",),
        ("Webhook not found",),
        "Forget an address.",
        "committed",
    ),
    Command(
        "SetWebhookEnabled",
        (
            Field("id", "id", required=True, help="id of the hook"),
            Field("enabled", "flag", required=True, help="whether it is told"),
        ),
        (),
        ("Webhook not found",),
        "Let an address be told, or not for now.",
        "committed",
    ),
    Command("ListWebhooks", (), ("data.webhooks", "data.stats"), (), "Read every address, without secrets."),
)
