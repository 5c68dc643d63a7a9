"""Subscriptions, and the journal."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from qcore.broker.handlers.answer import Answer, Fields, Handler, Reply
from qcore.engine.table import EVENT_BITS

ALL_EVENTS = sum(EVENT_BITS.values())
MAX_EVENTS = 1000  # of a journal in one reply
_MOST = 1 << 62


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


def _get_events(answer: Answer, fields: Fields) -> Reply:
    session = answer.session
    queue = session.broker.engine.queue(fields["queue"])
    limit = min(fields["limit"], MAX_EVENTS)
    found = session.broker.journal_packed(session, fields["queue"], min(fields["after"], _MOST), limit)
    return {
        "data": {
            "events": [{"number": number, "event": event} for number, event in found],
            "count": 0 if queue is None else queue.n_events,
        }
    }


HANDLERS: Mapping[str, Handler] = {
    "SubscribeEvents": _subscribe_events,
    "UnsubscribeEvents": _unsubscribe_events,
    "TrimEvents": _trim_events,
    "GetEvents": _get_events,
}
