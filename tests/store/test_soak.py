"""A small soak: the write-ahead log and the file stay small; a foreign reader is named and got over."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from qcore.store.sqlite import CHECKPOINT_PAGES, PAGE_BYTES, WAL_LIMIT_BYTES
from tests.store.soak import WAL_MIB, Soak, pin


def test_cases_c030_c032_a_soak_levels_off(tmp_path: Path) -> None:
    soak = Soak(tmp_path / "jobs.db")
    soak.run(30_000)
    soak.close()
    assert max(soak.wal) < 3 * CHECKPOINT_PAGES * PAGE_BYTES / 2**20 < WAL_MIB
    # What lives at the end: 2,000 kept jobs, and the evidence of the others.
    assert max(soak.file) < 4


def test_cases_c030_a_foreign_reader_is_named_and_got_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    soak = Soak(tmp_path / "jobs.db")
    soak.batch()
    reader = pin(soak.path)
    with caplog.at_level(logging.WARNING):
        while soak.wal[-1] * 2**20 < WAL_LIMIT_BYTES + 2**21:
            assert soak.done < 100_000
            soak.batch(size=2000)
    assert caplog.text.count("another reader keeps the log") == 1
    assert soak.call("StorageStatus")["data"]
    reader.close()
    for _ in range(200):
        soak.batch(removeOnComplete=True)
        if soak.wal[-1] * 2**20 < WAL_LIMIT_BYTES:
            break
    else:
        raise AssertionError("the log is not cut back")
    soak.close()
