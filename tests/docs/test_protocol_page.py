"""The page of the protocol says what the command table says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import get_args

from qcore.broker.handlers import EXTENSIONS
from qcore.errors import CODES
from qcore.wire.commands import COMMANDS
from qcore.wire.describe import KINDS, describe, protocol_tables
from qcore.wire.fields import MAPS, Kind

SCRIPT = Path(__file__).parents[2] / "docs/protocol_page.py"


def test_the_page_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("protocol_page", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    expected = script.page()
    assert script.PAGE.read_text(encoding="utf-8") == expected, (
        "the command table has changed: run `python docs/protocol_page.py`, then commit the page"
    )


def test_every_code_and_capability_is_there() -> None:
    text = SCRIPT.with_name("reference").joinpath("protocol.md").read_text(encoding="utf-8")
    for code, meaning in CODES.items():
        assert f"| `{code}` | {meaning} |\n" in text
    assert all(f"`{name}`" in text for name in EXTENSIONS)


def test_every_kind_is_described() -> None:
    assert KINDS.keys() == set(get_args(Kind)), (
        "describe each kind of qcore.wire.fields in qcore.wire.describe.KINDS"
    )


def test_every_command_field_and_error_is_there() -> None:
    text = protocol_tables()
    for command in COMMANDS.values():
        section = text.split(f"\n## {command.name}\n")[1].split("\n## ")[0]
        named = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
        if "[job options](#job-options)" in section:
            section += text.split("\n## Job options\n")[1].split("\n## ")[0].replace("`customId`", "`jobId`")
            named = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
        assert {field.name for field in command.fields} == named, command.name
        for error in command.errors:
            assert f"- Error: `{error}`\n" in section, command.name
        assert f"- Level: {command.level}" in section


def test_a_description_holds_everything() -> None:
    described = describe(COMMANDS["Clean"])
    assert described["level"] == "committed"
    assert described["reply"] == ["count", "ids"]
    assert described["fields"][1] == {  # type: ignore[index]
        "name": "grace",
        "kind": "time",
        "required": False,
        "help": "ms that a job must be old",
        "default": 0,
        "minimum": 0,
    }


def test_the_keys_of_maps_are_those_that_are_described() -> None:
    values = {"fixed", "exponential", "max", "duration"}
    hidden = {"prevMillis", "continueOnFailure"}  # of old clients
    for kind, parts in MAPS.items():
        keys = {part.name for part in parts}
        assert set(re.findall(r"`(\w+)`", KINDS[kind])) - values == keys - hidden, kind
