from __future__ import annotations

from typing_extensions import Buffer

def skip(data: Buffer, pos: int = 0) -> tuple[int, int]: ...
