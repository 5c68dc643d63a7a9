"""Tests that the pages name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(page for page in ROOT.glob("docs/**/*.md") if "::test_" in page.read_text("utf-8"))
_NAMED = re.compile(r"(tests/[\w/]+\.py)?::(test_\w+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tests_that_a_page_names_are_there(page: Path) -> None:
    path = ""
    for line in page.read_text("utf-8").splitlines():
        for found in _NAMED.finditer(line):
            path = found[1] or path
            assert re.search(rf"^def {found[2]}\b", (ROOT / path).read_text("utf-8"), re.MULTILINE), found[0]
