"""Greeting, authentication and signs of life."""

from __future__ import annotations

from collections.abc import Mapping

from qcore.broker.handlers.answer import EXTENSIONS, Answer, Fields, Handler, Reply
from qcore.errors import AuthError

PROTOCOL_VERSION = 3
SERVER_NAME = "bunqueue"  # some clients may look at it; the version is ours
CAPABILITIES = ("pipelining", "separate-job-name")


def _hello(answer: Answer, fields: Fields) -> Reply:
    from qcore import __version__

    session = answer.session
    asked = fields.get("capabilities") or ()
    extra = [name for name in EXTENSIONS if name in asked]
    session.announce(sum(EXTENSIONS[name] for name in extra))
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "capabilities": [*CAPABILITIES, *extra],
        "server": SERVER_NAME,
        "version": __version__,
    }


def _auth(answer: Answer, fields: Fields) -> Reply:
    session = answer.session
    settings = session.settings
    digest = settings.tokens.find(fields.get("token")) if settings is not None else None
    if digest is None:
        raise AuthError("Invalid token")
    session.state["token"] = digest
    session.authenticated = True
    return {}


def _ping(answer: Answer, fields: Fields) -> Reply:
    return {"data": {"pong": True, "time": answer.session.broker.wall_ms}}


HANDLERS: Mapping[str, Handler] = {
    "Hello": _hello,
    "Auth": _auth,
    "Ping": _ping,
}
