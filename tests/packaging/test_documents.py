"""Every code block of the documents runs as it stands there."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TIMEOUT_S = 100


@dataclass(frozen=True)
class Block:
    language: str
    text: str


def blocks(document: Path) -> list[Block]:
    return [Block(*found.groups()) for found in _BLOCK.finditer(document.read_text(encoding="utf-8"))]


WITH_BLOCKS = [document for document in DOCUMENTS if blocks(document)]


@pytest.fixture
def port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("document", WITH_BLOCKS, ids=lambda d: d.relative_to(ROOT).as_posix())
def test_blocks_run(document: Path, tmp_path: Path, port: int) -> None:
    """In one new directory for each document, with the default port replaced by a free one."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("QCORE_", "BUNQUEUE_", "BQ_"))}
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    environ["PYTHONWARNINGS"] = "error"
    environ["TCP_PORT"] = str(port)
    servers: list[subprocess.Popen[str]] = []
    try:
        for block in blocks(document):
            text = block.text.replace("6789", str(port))
            if block.language == "python":
                run_program(text, tmp_path, environ)
            elif block.language == "console":
                run_session(text, tmp_path, environ, servers)
            else:
                pytest.fail(f"{document.name} has a block of language {block.language!r}, which nothing runs")
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            assert server.wait(30) == 0
            assert server.stdout is not None
            server.stdout.close()


def run_program(text: str, place: Path, environ: dict[str, str]) -> None:
    named = re.match(r"# (\w+\.py)\n", text)
    path = place / (named[1] if named else "example.py")
    path.write_text(text, encoding="utf-8")
    if named:
        return  # a command further down runs it
    done = subprocess.run(
        [sys.executable, path.name], cwd=place, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert (done.returncode, done.stderr) == (0, "")


def run_session(
    text: str, place: Path, environ: dict[str, str], servers: list[subprocess.Popen[str]]
) -> None:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        if command.startswith("make "):
            # CI calls these themselves, from a clean checkout; here they would call this test.
            assert command in (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
        elif command.startswith("qcore start"):
            server = subprocess.Popen(
                command.split(), cwd=place, env=environ, stdout=subprocess.PIPE, text=True
            )
            servers.append(server)
            assert server.stdout is not None
            assert "listening on" in server.stdout.readline()
        else:
            done = subprocess.run(
                command, shell=True, cwd=place, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S
            )
            assert (done.returncode, done.stderr) == (0, ""), command
            if expected:
                assert done.stdout == expected


def test_named_programs_are_run() -> None:
    for document in WITH_BLOCKS:
        text = document.read_text(encoding="utf-8")
        for name in re.findall(r"^```python\n# (\w+\.py)$", text, re.MULTILINE):
            assert f"$ python {name}\n" in text


def test_links_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
