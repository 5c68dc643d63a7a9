from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from qcore.clock import ManualClock

if TYPE_CHECKING:
    from hook_ear import Ear, Silent

# Test modules are imported by file; this lets them share `broker_talk`.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ear() -> Iterator[Ear]:
    from hook_ear import Ear

    ear = Ear()
    yield ear
    ear.close()


@pytest.fixture
def silent() -> Iterator[Silent]:
    from hook_ear import Silent

    silent = Silent()
    yield silent
    silent.close()
