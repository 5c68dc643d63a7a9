from __future__ import annotations

from typing import Any, Final

RARE_FIELDS: Final[dict[str, Any]]
