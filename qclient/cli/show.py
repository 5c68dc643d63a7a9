"""What a person reads: lines, pairs and tables; and what a program reads: one JSON document.

Views turn a reply into blocks; one of two printers writes them: rich on a terminal
where it is installed, plain aligned text everywhere else. Texts come from whoever
added a job, so nothing in them reaches the terminal as a control sequence.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, TypeAlias

from qclient.codec import Unreadable

Reply: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """A sentence."""

    text: str


@dataclass(frozen=True, slots=True)
class Pairs:
    """Names and their values."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a header; ``empty`` is said in place of a table without rows."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    empty: str


Block: TypeAlias = Line | Pairs | Table
View: TypeAlias = Callable[[Reply, Reply], Iterable[Block]]


# --- values ------------------------------------------------------------------------


def printable(text: str) -> str:
    """The text with everything escaped that a terminal could take for an instruction."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def plain(value: object) -> str:
    """One value in one line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return payload(value) if isinstance(value, dict | list | tuple) else printable(str(value))


def payload(value: object) -> str:
    """Job data or a result, as JSON in one line."""
    return (
        json.dumps(jsonable(value), ensure_ascii=False) if not isinstance(value, str) else json.dumps(value)
    )


def moment(value: object) -> str:
    """A time in ms since the epoch, in the zone of the reader."""
    if not isinstance(value, int | float):
        return ""
    try:
        return datetime.fromtimestamp(value / 1000).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return plain(value)


def lasting(value: object) -> str:
    """A time in ms as people say it: ``250ms``, ``1.5s``, ``2m``, ``1h 30m``, ``7d``."""
    if not isinstance(value, int | float):
        return ""
    if not math.isfinite(value):
        return plain(value)
    if abs(value) < 1000:
        return "0s" if value == 0 else f"{value:g}ms"
    left = value / 1000
    parts = []
    for unit, seconds in (("d", 86400), ("h", 3600), ("m", 60)):
        whole, left = divmod(left, seconds)
        parts += [f"{whole:.0f}{unit}"] * bool(whole)
    left = round(left, 3)
    return " ".join(parts + [f"{left:g}s"] * bool(left))


def figure(value: object) -> str:
    """A number that was measured."""
    return plain(round(value, 3) if isinstance(value, float) else value)


def brief(value: object) -> str:
    """A text that may be long, for a cell of a table."""
    text = plain(value)
    return text if len(text) <= 60 else text[:57] + "..."


def jsonable(value: object) -> Any:
    """The value as JSON can say it: bytes as base64, numbers that are none as null."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        # On the wire, whole numbers beyond 32 bits are floats: times are.
        return int(value) if value.is_integer() and 2**31 <= abs(value) < 2**53 else value
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(jsonable(key)): jsonable(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Unreadable):
        return {"unreadable": value.why}
    if hasattr(value, "tolist"):  # arrays
        return jsonable(value.tolist())
    return str(value)


def json_text(document: object) -> str:
    """One JSON document, in ASCII."""
    return json.dumps(jsonable(document), indent=2, allow_nan=False)


# --- views -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its header, where the value lies, and how it is written."""

    header: str
    path: str
    write: Callable[[Any], str] = plain


def at(value: Any, path: str) -> Any:
    """What lies at a path with dots; None where there is nothing."""
    for name in path.split(".") if path else ():
        value = value.get(name) if isinstance(value, dict) else None
    return value


def said(text: str) -> View:
    """A sentence with names of fields and of the reply in braces."""

    def view(reply: Reply, fields: Reply) -> Iterable[Block]:
        values = {**fields, **reply}
        yield Line(text.format_map({k: v if isinstance(v, float) else plain(v) for k, v in values.items()}))

    return view


def only(path: str, write: Callable[[Any], str] = plain) -> View:
    """One value alone."""

    def view(reply: Reply, fields: Reply) -> Iterable[Block]:
        yield Line(write(at(reply, path)))

    return view


def lines(path: str) -> View:
    """A text of many lines, as it is."""

    def view(reply: Reply, fields: Reply) -> Iterable[Block]:
        for line in str(at(reply, path)).splitlines():
            yield Line(printable(line))

    return view


def pairs(path: str, empty: str = "", /, **writes: Callable[[Any], str]) -> View:
    """A map, a line for each key; of some keys it is said how their values are written."""

    def view(reply: Reply, fields: Reply) -> Iterable[Block]:
        rows = [(plain(key), writes.get(key, plain)(value)) for key, value in (at(reply, path) or {}).items()]
        if rows or not empty:
            yield Pairs(rows)
        else:
            yield Line(empty)

    return view


def table(path: str, columns: Sequence[Column], empty: str) -> View:
    """A list of maps, a row for each; a column with an empty path takes an entry as a whole."""

    def view(reply: Reply, fields: Reply) -> Iterable[Block]:
        rows = [
            [column.write(at(entry, column.path)) for column in columns] for entry in at(reply, path) or ()
        ]
        yield Table([column.header for column in columns], rows, empty)

    return view


def details(path: str, columns: Sequence[Column], payloads: Sequence[Column] = ()) -> View:
    """One map, a line for each column that says something; payloads wherever they are there at all."""

    def view(reply: Reply, fields: Reply) -> Iterable[Block]:
        entry = at(reply, path) or {}
        rows = [(column.header, column.write(at(entry, column.path))) for column in columns]
        rows = [(name, text) for name, text in rows if text]
        for column in payloads:
            parent, _, name = column.path.rpartition(".")
            holder = at(entry, parent)
            if name in holder:
                rows.append((column.header, column.write(holder[name])))
        yield Pairs(rows)

    return view


# --- printers ----------------------------------------------------------------------


def print_blocks(blocks: Iterable[Block]) -> None:
    """Write to standard output, in colour where a person reads it."""
    write = _print_rich if _in_colour() else _print_plain
    for block in blocks:
        write(block)


def _in_colour() -> bool:
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    if not (sys.stdout.isatty() or os.environ.get("FORCE_COLOR")):
        return False
    return importlib.util.find_spec("rich") is not None


def _print_plain(block: Block) -> None:
    match block:
        case Line(text):
            print(text)
        case Pairs(rows):
            width = max((len(name) for name, _ in rows), default=0)
            for name, value in rows:
                print(f"{name:{width}}  {value}".rstrip())
        case Table(header, rows, empty):
            if not rows:
                print(empty)
                return
            widths = [max(map(len, cells)) for cells in zip(header, *rows, strict=True)]
            for row in (header, *rows):
                print("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def _print_rich(block: Block) -> None:
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text  # a text, unlike a str, is no markup

    console = Console()
    match block:
        case Line(text):
            console.print(Text(text))
        case Pairs(rows):
            grid = Grid.grid(padding=(0, 2))
            grid.add_column(style="bold")
            grid.add_column(overflow="fold")
            for name, value in rows:
                grid.add_row(Text(name), Text(value))
            console.print(grid)
        case Table(header, rows, empty):
            if not rows:
                console.print(Text(empty))
                return
            grid = Grid(box=None, padding=(0, 1), pad_edge=False)
            for name in header:
                grid.add_column(Text(name, style="bold"), overflow="fold")
            for row in rows:
                grid.add_row(*(Text(cell) for cell in row))
            console.print(grid)
