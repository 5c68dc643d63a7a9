"""What every handler works with: the fields, the reply, the answer in the making."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from qcore.wire.commands import Command

if TYPE_CHECKING:
    from qcore.broker.session import Session

Fields = Mapping[str, Any]
Reply = dict[str, object]

#: Announced only to clients that list them; each changes what such a client gets.
EXTENSIONS = {"int64": 1, "typed": 2, "outcomes": 4, "codes": 8}


def coded(session: Session, code: str) -> Reply:
    """The code of a refusal, if the client asked for it."""
    return {"code": code} if session.announced("codes") else {}


class Answer:
    """The reply to one request in the making."""

    __slots__ = ("add", "command", "held", "request", "session")

    def __init__(self, session: Session, request: dict[str, object], command: Command) -> None:
        self.session = session
        self.request = request
        self.command = command
        self.held = False
        self.add = False

    def coded(self, code: str) -> Reply:
        """The code of a refusal, if the client asked for it."""
        return coded(self.session, code)

    def send(self, reply: Reply) -> int:
        ordered: Reply = {"ok": reply.pop("ok"), **reply}
        if "reqId" in self.request:
            ordered["reqId"] = self.request["reqId"]
        change = self.command.level == "committed"
        return self.session.reply(ordered, held=self.held, add=self.add, change=change)


Handler = Callable[[Answer, Fields], Reply | None]


def at_most(count: int | None) -> int:
    """A bound on a number of jobs; -1 = none."""
    return -1 if count is None else min(count, sys.maxsize)
