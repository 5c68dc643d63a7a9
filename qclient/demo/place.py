"""The demo's data file, and the mark beside it that says who made it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from urllib.parse import quote

from qclient.queue import Queue
from qcore.errors import ConfigError, EngineBusyError, QError

MARK = ".demo"
_SUFFIXES = ("", "-wal", "-shm", ".lock", MARK)


def sqlite_url(path: Path) -> str:
    """The URL of an absolute path."""
    return f"sqlite:///{quote(str(path))}"


def claim(name: str, *, fresh: bool) -> Path:
    """Return the absolute path of the data file, with the demo's mark beside it.

    With ``fresh`` the files of an earlier run are deleted. A file that the demo did
    not make is neither used nor deleted: ``ConfigError``.
    """
    if not name:
        raise ConfigError("--data: expected a file name, got an empty text")
    path = Path(os.path.realpath(name))
    mark = path.with_name(path.name + MARK)
    if path.is_dir():
        raise ConfigError(f"{name} is a directory, not a data file")
    if path.exists() and not mark.exists():
        raise ConfigError(f"{name} was not made by the demo and is left alone; name another file with --data")
    if fresh and mark.exists():
        _delete(path)
    try:
        mark.write_text(
            f"`qcore demo` made {path.name}; `qcore demo --fresh` deletes both.\n", encoding="utf-8"
        )
    except OSError as exc:
        raise ConfigError(f"cannot write {mark}: {exc.strerror}") from None
    return path


def _delete(path: Path) -> None:
    if path.exists():
        try:
            # Opening it is how to learn whether another process has it open.
            with contextlib.closing(Queue("demo", sqlite_url(path))) as queue:
                queue.counts()
        except EngineBusyError:
            raise
        except QError:
            pass  # not readable any more: one reason more to start over
    try:
        for suffix in _SUFFIXES:
            path.with_name(path.name + suffix).unlink(missing_ok=True)
    except OSError as exc:
        raise ConfigError(f"cannot delete {exc.filename}: {exc.strerror}") from None
