"""Imports point downwards only, in Python and in Cython."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BASE = {"qcore.errors", "qcore.clock", "qcore.limits"}

# What a part may import besides itself and the standard library; the longest name that fits counts.
ALLOWED: dict[str, set[str]] = {
    "qcore": set(),
    "qcore.errors": set(),
    "qcore.clock": set(),
    "qcore.limits": set(),
    "qcore.structs": BASE,
    "qcore.reference": {"qcore.errors", "qcore.limits"},
    "qcore.wire": BASE,
    "qcore.engine": {"qcore.structs", *BASE},
    "qcore.store": BASE,
    "qcore.broker": {"qcore.engine", "qcore.store", "qcore.wire", "qcore.structs", *BASE},
    "qcore.server": {"qcore"},
    "qclient": {"qcore.broker", "qcore.wire", *BASE},
    "qclient.cli": {"qcore", "qclient"},
    "qclient.demo": {"qcore.errors", "qclient"},
}
_CYTHON = re.compile(r"^\s*(?:from\s+(q[\w.]+)\s+c?import\s+(\(?[\w, ]+)|c?import\s+(q[\w.]+))", re.MULTILINE)


def sources() -> list[Path]:
    return sorted(p for top in ("qcore", "qclient") for p in (ROOT / top).rglob("*") if p.suffix in SUFFIXES)


SUFFIXES = {".py", ".pyx", ".pxd", ".pyi"}


def module_of(path: Path) -> str:
    name = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    return name.removesuffix(".__init__")


def imported(path: Path) -> Iterator[str]:
    """Our modules that ``path`` imports; of ``from package import name`` both, if that is a module."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".py", ".pyi"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path} has a relative import"
                yield from with_submodules(node.module or "", [alias.name for alias in node.names])
    else:
        for package, names, module in _CYTHON.findall(text):
            if module:
                yield module
            else:
                yield from with_submodules(package, re.findall(r"\w+", names))


def with_submodules(package: str, names: list[str]) -> Iterator[str]:
    place = ROOT / package.replace(".", "/")
    modules = [
        n for n in names if place.is_dir() and any((place / (n + s)).exists() for s in ("", *SUFFIXES))
    ]
    if modules:
        yield from (f"{package}.{name}" for name in modules)
    else:
        yield package


def within(module: str, part: str) -> bool:
    return module == part or module.startswith(part + ".")


def part_of(module: str) -> str:
    return max((part for part in ALLOWED if within(module, part)), key=len)


@pytest.mark.parametrize("path", sources(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_imports_point_downwards(path: Path) -> None:
    module = module_of(path)
    part = part_of(module)
    for other in imported(path):
        if other == "qcore" or not (within(other, "qcore") or within(other, "qclient")):
            continue  # the top package has the version and nothing else
        allowed = {part} | ALLOWED[part]
        assert any(within(other, name) for name in allowed), f"{module} must not import {other}"


def test_nothing_is_too_high_for_its_rule() -> None:
    """The engine is pure: no sockets, files, threads or clocks below the broker, the store aside."""
    forbidden = {"socket", "selectors", "threading", "asyncio", "time", "sqlite3", "os", "pathlib"}
    for path in sources():
        if part_of(module_of(path)) in ("qcore.engine", "qcore.structs", "qcore.wire", "qcore.reference"):
            text = path.read_text(encoding="utf-8")
            used = set(re.findall(r"^\s*(?:import|from)\s+(\w+)", text, re.MULTILINE)) & forbidden
            assert not used, f"{path.name} uses {sorted(used)}"
