"""Subscriptions, and the journal."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from qcore.broker.handlers.answer import Answer, Fields, Handler, Reply
from qcore.engine.table import EVENT_BITS

ALL_EVENTS = sum(EVENT_BITS.values())


def _subscribe_events(answer: Answer, fields: Fields) -> Reply:
    session = answer.session
    types = fields.get("eventTypes")
    mask = ALL_EVENTS if types is None else sum(EVENT_BITS[name] for name in set(types))
    session.broker.subscribe(session, fields["queue"], mask)
    return {}


def _unsubscribe_events(answer: Answer, fields: Fields) -> Reply:
    session = answer.session
    session.broker.unsubscribe(session)
    return {}


def _trim_events(answer: Answer, fields: Fields) -> Reply:
    engine = answer.session.broker.engine
    return {"data": {"removed": engine.trim_events(fields["queue"], min(fields["maxLength"], sys.maxsize))}}


HANDLERS: Mapping[str, Handler] = {
    "SubscribeEvents": _subscribe_events,
    "UnsubscribeEvents": _unsubscribe_events,
    "TrimEvents": _trim_events,
}
