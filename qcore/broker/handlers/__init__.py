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
from qcore.broker.handlers.answer import EXTENSIONS, Answer, Fields, Handler, Reply, coded
from qcore.errors import AuthError, CommandError, ProtocolError, QError, described
from qcore.wire import commands
from qcore.wire.packing import unpack_request

if TYPE_CHECKING:
    from qcore.broker.session import Session

__all__ = ["EXTENSIONS", "HANDLERS", "coded", "handle", "refuse_frame"]

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


def refuse_frame(session: Session, frame: bytes, text: str, code: str) -> Reply:
    """The error for a frame that is not run; its request id is echoed if it is a text."""
    reply: Reply = {"ok": False, "error": text, **coded(session, code)}
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
        return session.reply(_early(session, "Invalid command format", None))
    if request is None:
        return session.reply(_early(session, "Invalid command format", None))
    if not isinstance(request, dict) or not request.get("cmd"):
        return session.reply(_early(session, "Invalid command", request))
    if isinstance(request.get("reqId"), dict):
        return session.reply(_early(session, "reqId must not be a map", None))
    cmd = request["cmd"]
    if not session.authenticated and cmd != "Auth":
        return session.reply(_early(session, "Not authenticated", request, AuthError.code))
    handler = HANDLERS.get(cmd) if isinstance(cmd, str) else None
    try:
        if handler is None:
            commands.find(cmd)  # has the text
            raise commands.UnknownCommand(f"Unknown command: {cmd}")
    except CommandError as error:
        return session.reply(_early(session, error.message, request, error.code, _came(session, error)))
    command = commands.COMMANDS[cmd]
    answer = Answer(session, request, command)
    try:
        fields = commands.check(command, request)
        archived.bring(answer, cmd, fields)
        if command.level == "committed":
            answer.held = session.broker.holds(_named(fields))
        reply = handler(answer, fields)
    except QError as error:
        reply = {"ok": False, "error": str(error), **answer.coded(error.code), **_came(session, error)}
        answer.held = False
    except Exception as fault:
        # A fault of ours must cost its caller an error, and nobody else anything.
        logger.error("%s failed: %s", cmd, described(fault))
        reply = {"ok": False, "error": "Internal server error", **answer.coded("internal")}
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


def _early(
    session: Session,
    text: str,
    request: object,
    code: str = CommandError.code,
    more: Mapping[str, object] = NOTHING,
) -> Reply:
    reply: Reply = {"ok": False, "error": text, **coded(session, code), **more}
    if isinstance(request, dict) and isinstance(request.get("reqId"), str):
        reply["reqId"] = request["reqId"]
    return reply
