from __future__ import annotations

from tests.server.conftest import start

__all__ = ["start"]
