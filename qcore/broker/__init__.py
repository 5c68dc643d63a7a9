"""The broker: an engine with its store, clock and sessions, for one process."""

from __future__ import annotations

from qcore.broker.opening import open_broker

__all__ = ["open_broker"]
