"""What a command is, and the fields that many of them share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from qcore.wire.fields import Field

Level = Literal["none", "buffered", "committed"]


@dataclass(frozen=True, slots=True)
class Command:
    """One command: what it takes, what it answers, and how safe its effect is.

    ``reply`` names the fields of a successful answer, dots for nesting. ``level``
    says what must have happened to the effect before the reply is sent: ``none``
    (nothing to save), ``buffered`` (saved within the flush window), ``committed``.
    A ``blocking`` command may wait for work and answers out of order.
    """

    name: str
    fields: tuple[Field, ...] = ()
    reply: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    help: str = ""
    level: Level = "none"
    blocking: bool = False


QUEUE: Final = Field("queue", "queue", required=True, help="1 to 256 of A-Z a-z 0-9 _ . : -")
ID: Final = Field("id", "id", required=True, help="job id")
IDS: Final = Field("ids", "ids", required=True, help="job ids")
TOKEN: Final = Field("token", "text", help="lock token of the delivery")
TOKENS: Final = Field("tokens", "tokens", help="lock tokens, one an id")
#: What a command answers that needs the lock of a job.
LOCKED: Final = (
    "Lock token required for job <id>",
    "Invalid or expired lock token for job <id>",
    "Job not found or not in processing state: <id>",
)


def job_id_first(options: tuple[Field, ...]) -> tuple[Field, ...]:
    """A single add names its custom id ``jobId``; a batch and a flow say ``customId``."""
    return tuple(replace(field, name="jobId") if field.name == "customId" else field for field in options)
