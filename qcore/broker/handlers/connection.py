"""Greeting, authentication and signs of life."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import TYPE_CHECKING

from qcore.errors import CommandError

if TYPE_CHECKING:
    pass
from qcore.broker.handlers.answer import EXTENSIONS, Answer, Fields, Handler, Reply

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
    token = fields.get("token")
    known = session.settings.tokens if session.settings is not None else ()
    good = False
    if isinstance(token, str):
        for candidate in known:  # all of them, in constant time each
            good |= hmac.compare_digest(candidate.encode(), token.encode())
    if not good:
        raise CommandError("Invalid token")
    session.authenticated = True
    return {}


def _ping(answer: Answer, fields: Fields) -> Reply:
    return {"data": {"pong": True, "time": answer.session.broker.wall_ms}}


HANDLERS: Mapping[str, Handler] = {
    "Hello": _hello,
    "Auth": _auth,
    "Ping": _ping,
}
