"""Commands in their general form: decode, check, run, answer.

Runs under the broker's lock, called by a session for every frame that its compiled
paths leave alone. Each handler gets the checked fields of one request and returns
the fields of the reply, or None when it has answered by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from qcore.broker.handlers import (
    adding,
    archived,
    capacity,
    connection,
    deadletters,
    delivery,
    events,
    flows,
    jobs,
    monitoring,
    queues,
    schedules,
    totals,
    webhooks,
    workers,
)
from qcore.broker.handlers.answer import EXTENSIONS, Answer, Fields, Handler, Reply
from qcore.errors import CommandError, ProtocolError, QError, described
from qcore.wire import commands
from qcore.wire.packing import unpack_request

if TYPE_CHECKING:
    from qcore.broker.session import Session

__all__ = ["EXTENSIONS", "HANDLERS", "handle", "refuse_frame"]

NOTHING: Mapping[str, object] = {}

logger = logging.getLogger("qcore.broker")

HANDLERS: Mapping[str, Handler] = {
    **connection.HANDLERS,
    **adding.HANDLERS,
    **flows.HANDLERS,
    **delivery.HANDLERS,
    **jobs.HANDLERS,
    **queues.HANDLERS,
    **capacity.HANDLERS,
    **deadletters.HANDLERS,
    **schedules.HANDLERS,
    **workers.HANDLERS,
    **events.HANDLERS,
    **webhooks.HANDLERS,
    **monitoring.HANDLERS,
    **totals.HANDLERS,
}


def refuse_frame(frame: bytes, text: str) -> Reply:
    """The error for a frame that is not run; its request id is echoed if it is a text."""
    reply: Reply = {"ok": False, "error": text}
    try:
        request = unpack_request(frame)
    except ProtocolError:
        return reply
    if isinstance(request, dict) and isinstance(request.get("reqId"), str):
        reply["reqId"] = request["reqId"]
    return reply


def handle(session: Session, frame: bytes) -> int:
    """Serve one frame. Every frame gets exactly one reply, now or later."""
    try:
        request = unpack_request(frame)
    except ProtocolError:
        return session.reply({"ok": False, "error": "Invalid command format"})
    if request is None:
        return session.reply({"ok": False, "error": "Invalid command format"})
    if not isinstance(request, dict) or not request.get("cmd"):
        return session.reply(_early("Invalid command", request))
    if isinstance(request.get("reqId"), dict):
        return session.reply({"ok": False, "error": "reqId must not be a map"})
    cmd = request["cmd"]
    if not session.authenticated and cmd != "Auth":
        return session.reply(_early("Not authenticated", request))
    handler = HANDLERS.get(cmd) if isinstance(cmd, str) else None
    try:
        if handler is None:
            commands.find(cmd)  # has the text
            raise CommandError(f"Unknown command: {cmd}")
        command = commands.COMMANDS[cmd]
        fields = commands.check(command, request)
    except CommandError as error:
        return session.reply(_early(error.message, request, _came(session, error)))
    answer = Answer(session, request, command)
    try:
        archived.bring(answer, cmd, fields)
        if command.level == "committed":
            answer.held = session.broker.holds(_named(fields))
        reply = handler(answer, fields)
    except QError as error:
        reply = {"ok": False, "error": str(error), **_came(session, error)}
        answer.held = False
    except Exception as fault:
        # A fault of ours must cost its caller an error, and nobody else anything.
        logger.error("%s failed: %s", cmd, described(fault))
        reply = {"ok": False, "error": "Internal server error"}
        answer.held = False
    finally:
        session.broker.engine.release_guests()
    if reply is None:
        return 0
    reply.setdefault("ok", True)
    return answer.send(reply)


def _named(fields: Fields) -> list[str]:
    """The jobs that a command names."""
    return [fields["id"]] if "id" in fields else fields.get("ids") or []


def _came(session: Session, error: QError) -> Reply:
    """What came instead of what was expected, for clients that asked to be told."""
    came = getattr(error, "came", None)
    return {} if came is None or not session.announced("codes") else {"came": came}


def _early(text: str, request: object, more: Mapping[str, object] = NOTHING) -> Reply:
    reply: Reply = {"ok": False, "error": text, **more}
    if isinstance(request, dict) and isinstance(request.get("reqId"), str):
        reply["reqId"] = request["reqId"]
    return reply
