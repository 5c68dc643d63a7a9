"""The lists that are kept by hand agree with the tree."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def modules_of_setup() -> list[str]:
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "MODULES":
            return list(ast.literal_eval(node.value))
    raise AssertionError("setup.py has no MODULES")


def in_tree(suffix: str) -> set[str]:
    return {
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for package in ("qcore", "qclient")
        for path in (ROOT / package).rglob(f"*{suffix}")
    }


def test_every_compiled_module_is_listed_once() -> None:
    modules = modules_of_setup()
    assert sorted(modules) == sorted(in_tree(".pyx"))


def test_every_stub_and_header_has_its_module() -> None:
    assert in_tree(".pyi") <= in_tree(".pyx")
    for name in in_tree(".pxd") - in_tree(".pyx"):
        # What is compiled into whoever takes it needs no module of its own.
        header = (ROOT / f"{name.replace('.', '/')}.pxd").read_text(encoding="utf-8")
        functions = re.findall(r"^cdef .*\(.*", header, re.MULTILINE)
        assert functions, f"{name}.pxd has no function and no module"
        assert all(one.startswith("cdef inline ") for one in functions), f"{name}.pxd has no module"


def test_every_directory_with_sources_is_a_package() -> None:
    for package in ("qcore", "qclient"):
        for path in (ROOT / package).rglob("*"):
            if path.suffix in (".py", ".pyx"):
                assert (path.parent / "__init__.py").exists(), f"{path.parent} has no __init__.py"


def test_the_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    out = subprocess.run(
        [sys.executable, "-m", "qclient", "version"], capture_output=True, text=True, check=True
    ).stdout
    assert out == f"{project['name']} {project['version']}\n"


def test_no_tool_takes_the_broken_files_for_sources() -> None:
    broken = sorted(path.name for path in (ROOT / "qclient/demo/demo_data").iterdir())
    assert broken == ["bad_encoding.py.broken", "null_byte.py.broken", "unterminated_string.py.broken"]


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"CC": "/nowhere/cc"}, "a C compiler is needed and '/nowhere/cc' was not found"),
        ({}, ""),
    ],
)
def test_a_missing_compiler_is_one_line(environ: dict[str, str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / ".ci/preflight.py"],
        env=environ | {"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == (1 if said else 0)
    assert done.stdout == ""
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == (1 if said else 0)


@pytest.mark.parametrize(
    ("page", "kind"), [("explanation/invariants.md", "invariant"), ("explanation/defects.md", "defect")]
)
def test_every_numbered_test_is_on_its_page(page: str, kind: str) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")
    for path in (ROOT / "tests").rglob("test_*.py"):
        for name in re.findall(rf"^ *def (test_{kind}s?_\d\w+)\(", path.read_text("utf-8"), re.MULTILINE):
            assert name in text, f"{path.name}::{name} is missing in {page}"
