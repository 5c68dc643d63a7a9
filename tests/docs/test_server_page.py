"""The page of the server names every option and variable that the server reads, with the defaults it has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from qcore.server.loop import UNWRITTEN
from qcore.server.options import parse, parser

PAGE = (Path(__file__).parents[2] / "docs/reference/server.md").read_text(encoding="utf-8")
BACKUPS = (Path(__file__).parents[2] / "docs/reference/backups.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("|") and not line.startswith("| ---")
]
OPTIONS = [row for row in ROWS if len(row) == 4 and row[0] != "Option"]
VARIABLES = [row for row in ROWS if len(row) == 3 and row[0] != "Variable"]


def names(cell: str, pattern: str) -> list[str]:
    return re.findall(rf"`({pattern})[^`]*`", cell)


def default(cell: str) -> str | None:
    """The default that a cell gives, as it would be written in a variable."""
    literal = re.fullmatch(r"`([^`]+)`", cell)
    return literal[1].replace(",", "") if literal else None


class Recorded(dict[str, str]):
    """An environment that knows what was looked for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.names.add(key)
        return super().get(key, default)


def test_every_option_is_there_and_no_other() -> None:
    there = [name for row in OPTIONS for name in names(row[0], "--[a-z-]+")]
    assert len(there) == len(set(there))
    known = {name for action in parser()._actions for name in action.option_strings}
    assert set(there) == known - {"-h", "--help"}


def test_every_variable_is_there_and_no_other() -> None:
    environment = Recorded()
    parse([], environment)
    there = [name for row in OPTIONS for name in names(row[1], "[A-Z][A-Z0-9_]+")]
    there += [row[0].strip("`") for row in VARIABLES]
    assert len(there) == len(set(there))
    assert set(there) <= environment.names
    for name in environment.names - set(there):
        assert f"`{name}`" in BACKUPS, name


@pytest.mark.parametrize("row", OPTIONS, ids=lambda row: row[0] or row[1])
def test_defaults_of_options(row: list[str]) -> None:
    value = default(row[3])
    if value is None:
        assert row[3] in ("none", "off")
        return
    for option in names(row[0], "--[a-z-]+"):
        assert parse([option, value], {}) == parse([], {})
    for variable in names(row[1], "[A-Z][A-Z0-9_]+"):
        assert parse([], {variable: value}) == parse([], {})


@pytest.mark.parametrize("row", VARIABLES, ids=lambda row: row[0])
def test_defaults_of_variables(row: list[str]) -> None:
    variable, value = row[0].strip("`"), default(row[2])
    if value is None:
        assert row[2] == "none"
        return
    assert parse([], {variable: value}) == parse([], {})
    # It is this one that the variable sets.
    assert parse([], {variable: str(int(value) + 1)}) != parse([], {})


def test_help_says_what_the_page_says() -> None:
    """Each option has its help, and a default in brackets is the one of the page."""
    for action in parser()._actions:
        assert action.help, action.option_strings
        row = next((row for row in OPTIONS if f"`{action.option_strings[-1]}" in row[0]), None)
        bracketed = re.search(r"\((\w[\w.]*)\)$", action.help)
        if row is not None and bracketed and default(row[3]) is not None:
            assert bracketed[1] == default(row[3]), action.option_strings


def test_signals_and_codes_are_there() -> None:
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGKILL"):
        assert f"`{name}`" in PAGE
    assert re.findall(r"^\| (\d) \|", PAGE, re.MULTILINE) == ["0", "1", "2", str(UNWRITTEN)]
