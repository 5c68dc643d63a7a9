"""Imports point downwards only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BASE = {"qcore.errors", "qcore.clock", "qcore.limits"}
#: What each part may import of this project, besides itself.
LAYERS: dict[str, set[str]] = {
    "qcore.errors": set(),
    "qcore.clock": set(),
    "qcore.limits": set(),
    "qcore.structs": {"qcore.errors", "qcore.limits"},
    "qcore.reference": {"qcore.errors", "qcore.limits"},
    "qcore.wire": {"qcore.errors", "qcore.limits"},
    "qcore.engine": {"qcore.engine.cron", "qcore.structs", "qcore.errors", "qcore.limits"},
    "qcore.engine.cron": set(),
    "qcore.store": {"qcore.errors", "qcore.limits"},
    "qcore.backup": {"qcore.store", "qcore.errors", "qcore"},
    "qcore.broker": {
        "qcore.engine",
        "qcore.engine.cron",
        "qcore.structs",
        "qcore.store",
        "qcore.wire",
        *BASE,
        "qcore",
    },
    "qcore.simulate": {
        "qcore.broker",
        "qcore.engine",
        "qcore.engine.cron",
        "qcore.reference",
        "qcore.store",
        *BASE,
    },
    "qcore.server": {"qcore"},
    "qclient": {
        "qcore.backup",
        "qcore.broker",
        "qcore.engine.cron",
        "qcore.server",
        "qcore.wire",
        *BASE,
        "qcore",
    },
}
FROM = re.compile(r"^\s*from\s+([\w.]+)\s+c?import\s+(?:\(([^)]*)\)|(.*))", re.MULTILINE)
PLAIN = re.compile(r"^\s*c?import\s+([\w.]+(?:\s*,\s*[\w.]+)*)", re.MULTILINE)
PURE = {
    "socket",
    "select",
    "selectors",
    "threading",
    "time",
    "asyncio",
    "os",
    "sqlite3",
    "random",
    "datetime",
}


#: Calendar arithmetic on instants that come in as arguments: what it may use, and what reads a clock there.
CALENDAR = {"qcore.engine.cron": {"datetime"}}
CLOCK_READS = {"now", "utcnow", "today", "localtime", "time_ns", "getenv", "environ"}


def part(module: str) -> str:
    """The layer of a module: the longest entry of the table that it lies in."""
    found = [layer for layer in LAYERS if module == layer or module.startswith(layer + ".")]
    return max(found, key=len, default=module)


def python_imports(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def cython_imports(source: str) -> Iterator[str]:
    source = re.sub(r'"""(?:.|\n)*?"""', "", source)
    source = re.sub(r"#.*", "", source)
    for start, several, line in FROM.findall(source):
        yield from (f"{start}.{name}" for name in re.findall(r"\w+", several or line))
    for names in PLAIN.findall(source):
        yield from re.split(r"\s*,\s*", names)


def modules() -> Iterator[tuple[str, Path]]:
    for top in ("qcore", "qclient"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix in (".py", ".pyi", ".pyx", ".pxd"):
                relative = path.relative_to(ROOT).with_suffix("")
                name = ".".join(relative.parts)
                yield name.removesuffix(".__init__"), path


FILES = [(name, path) for name, path in modules() if name != "qcore"]


def imports(path: Path) -> set[str]:
    source = path.read_text()
    return set((cython_imports if path.suffix in (".pyx", ".pxd") else python_imports)(source))


@pytest.mark.parametrize(
    ("name", "path"), FILES, ids=lambda value: value.name if isinstance(value, Path) else value
)
def test_imports_point_downwards(name: str, path: Path) -> None:
    mine = part(name)
    assert mine in LAYERS, f"{name} is in no layer"
    for imported in imports(path):
        if imported.split(".")[0] not in ("qcore", "qclient"):
            continue
        theirs = part(imported)
        if theirs.startswith("qcore") and theirs not in LAYERS:
            # `from qcore import limits` names a part, `from qcore import __version__` the package.
            theirs = "qcore"
        allowed = LAYERS[mine]
        if mine == "qcore.server":
            assert theirs.startswith("qcore"), f"{path.name} imports {imported}"
        else:
            assert theirs == mine or theirs in allowed, f"{path.name} imports {imported}"


@pytest.mark.parametrize(
    ("name", "path"),
    [(name, path) for name, path in FILES if part(name) in ("qcore.engine", "qcore.structs")],
    ids=lambda value: value.name if isinstance(value, Path) else value,
)
def test_the_engine_reads_no_clock_and_does_no_io(name: str, path: Path) -> None:
    roots = {imported.split(".")[0] for imported in imports(path)}
    if name in CALENDAR:
        # Local times need the calendar and its zones; they do not need to know what time it is.
        roots -= CALENDAR[name]
        used = {
            node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)
        }
        assert not used & CLOCK_READS, f"{path.name} uses {sorted(used & CLOCK_READS)}"
    assert not roots & PURE, f"{path.name} imports {sorted(roots & PURE)}"


def test_the_scan_sees_what_it_should() -> None:
    cython = "from a.b cimport c\ncimport d, e.f\nfrom g import (h,\n  i)\n    import j"
    assert set(cython_imports(cython)) == {
        "a.b.c", "d", "e.f", "g.h", "g.i", "j",
    }  # fmt: skip
    assert set(python_imports("import a.b\nfrom c import d, e\ndef f():\n    from g import h\n")) == {
        "a.b", "c.d", "c.e", "g.h",
    }  # fmt: skip
    assert {part("qcore.engine.engine"), part("qcore.limits"), part("qclient.worker")} == {
        "qcore.engine", "qcore.limits", "qclient",
    }  # fmt: skip
