"""The engine, its store, its wire protocol and its server."""

from __future__ import annotations

__version__ = "0.1.0"
