"""Each bound that the manual names has a test, and the test is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    line
    for line in (ROOT / "docs/reference/bounds.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith(("| What |", "| --- |"))
]


def test_there_are_rows() -> None:
    assert len(ROWS) > 25


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:40])
def test_the_test_of_a_bound_is_there(row: str) -> None:
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert len(cells) == 5, row
    named = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", cells[4])
    assert named, f"no test: {cells[4]!r}"
    source = (ROOT / named[1]).read_text(encoding="utf-8")
    assert re.search(rf"^(async )?def {named[2]}\(", source, re.MULTILINE), row


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:40])
def test_the_setting_of_a_bound_is_one(row: str) -> None:
    """A variable that is named is read by the server."""
    readers = ("qcore/server/options.py", "qcore/backup/settings.py")
    options = "".join((ROOT / name).read_text(encoding="utf-8") for name in readers)
    for variable in re.findall(r"`([A-Z][A-Z_]+)`", row.split("|")[3]):
        assert f'"{variable}"' in options, variable
