"""The files of the demo, and how they are counted."""

from __future__ import annotations

import collections
import contextlib
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from qclient.demo.counting import CountingPool, count_names
from qclient.demo.files import BROKEN, source_files


def test_the_broken_files_lead_and_ids_are_unique() -> None:
    files = source_files()
    assert len(files) > 500
    assert len({file.job_id for file in files}) == len(files)
    assert [file.name for file in files[:3]] == [
        "bad_encoding.py.broken",
        "null_byte.py.broken",
        "unterminated_string.py.broken",
    ]
    assert source_files(7) == files[:7]
    assert all(Path(file.path).is_file() for file in files)


@pytest.mark.parametrize("name", ["bad_encoding", "null_byte", "unterminated_string"])
def test_broken_files_are_syntax_errors(name: str) -> None:
    with pytest.raises(SyntaxError):
        count_names(str(BROKEN / f"{name}.py.broken"))


def test_names_and_keywords_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_text("def f(a):\n    # f f f\n    return a + f('a f')\n", encoding="utf-8")
    assert count_names(str(path)) == {"def": 1, "f": 2, "a": 2, "return": 1}


def test_the_pool_counts_raises_and_survives_a_dead_child(tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_text("a = a\n", encoding="utf-8")
    pool = CountingPool(1)
    try:
        assert pool.count(str(path)) == collections.Counter(a=2)
        with pytest.raises(SyntaxError):
            pool.count(str(BROKEN / "null_byte.py.broken"))
        for process in list(pool._executor._processes.values()):
            process.kill()
            process.join()
        with contextlib.suppress(BrokenProcessPool):  # what a job would fail with, and be retried
            pool.count(str(path))
        assert pool.count(str(path)) == {"a": 2}
    finally:
        pool.close()
