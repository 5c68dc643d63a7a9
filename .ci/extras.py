"""Print the requirements of the extras that are named: their tools are installed without another build."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

with Path("pyproject.toml").open("rb") as file:
    extras = tomllib.load(file)["project"]["optional-dependencies"]
for name in sys.argv[1:]:
    print("\n".join(extras[name]))
