from __future__ import annotations

import sys
from pathlib import Path

import pytest

from qcore.clock import ManualClock

# Test modules are imported by file; this lets them share `broker_talk`.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()
