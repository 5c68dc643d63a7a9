from __future__ import annotations

import sys
from pathlib import Path

# Test modules are imported by file; this lets one machine build on another.
sys.path.insert(0, str(Path(__file__).parent))
