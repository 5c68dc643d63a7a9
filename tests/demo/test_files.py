"""The files of the demo, and how they are counted."""

from __future__ import annotations

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


def test_a_file_that_is_not_in_its_encoding_is_a_syntax_error(tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_bytes(b"# coding: utf-8\n\n" + b"a = 1\n" * 5000 + b"b = '\xff'\n")
    with pytest.raises(SyntaxError, match="utf-8"):
        count_names(str(path))


def test_the_pool_counts_raises_and_survives_a_dead_child(tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_text("a = a\n", encoding="utf-8")
    pool = CountingPool()
    try:
        assert pool.count(str(path)) == {"a": 2}
        with pytest.raises(SyntaxError, match="null bytes"):
            pool.count(str(BROKEN / "null_byte.py.broken"))
        with pytest.raises(RuntimeError, match="FileNotFoundError"):
            pool.count(str(tmp_path / "nowhere.py"))
        (child,) = pool._all
        child._child.kill()
        child._child.wait()
        with pytest.raises(ChildProcessError):  # the job's failure, and the next attempt has a new child
            pool.count(str(path))
        assert pool.count(str(path)) == {"a": 2}
        assert len(pool._all) == 1
    finally:
        pool.close()
    with pytest.raises(ChildProcessError):
        pool.count(str(path))
