"""Restoring a backup: verified beside the data file, then put in its place in one step."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sqlite3
import stat
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from qcore.backup.making import SPARE_BYTES, check_database
from qcore.backup.places import Backup, Place, find_backup, open_private, source_name, sync
from qcore.errors import BackupError, ConfigError
from qcore.store.datafile import APPLICATION_ID, ASIDE, DRAFT, remove_drafts
from qcore.store.owner import drop_lock, hold_file, take_lock

_GZIP = 16 + zlib.MAX_WBITS
_HEADER = b"SQLite format 3\0"


def restore_backup(
    data: str | os.PathLike[str], place: Place, key: str, *, force: bool = False
) -> tuple[Backup, list[Path]]:
    """Put a backup in the place of a data file; the backup, and where the old files are now.

    The old file is kept under another name, with its log if that could not be moved into
    it. Until the last step everything is as it was.

    :raises EngineBusyError: a broker owns the file
    :raises ConfigError: there is a file and ``force`` is not given, or it is not ours to replace
    :raises BackupError: there is no such backup, or it is not what it should be
    """
    path = Path(os.path.realpath(data))
    if not path.parent.is_dir():
        raise ConfigError(f"{path.parent} is not a directory; it must exist")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is not a file")
    fd = take_lock(str(path))
    held = -1
    try:
        held = hold_file(str(path))
        if path.exists() and not force:
            raise ConfigError(f"{path} exists and would be replaced: say --yes")
        backup = find_backup(place, key, source_name(path))
        with _draft(path) as draft:
            _fetch(place, backup, draft)
            try:
                check_database(draft)
            except BackupError as error:
                raise BackupError(f"{backup.key}: {error}") from None
            _own_like(path, draft)
            return backup, _swap(path, draft)
    except OSError as error:
        raise BackupError(f"{error.filename or path}: {error.strerror or error}") from None
    finally:
        if held >= 0:
            os.close(held)
        drop_lock(str(path), fd)


@contextlib.contextmanager
def _draft(path: Path) -> Iterator[Path]:
    remove_drafts(str(path))
    draft = path.with_name(f"{path.name}{DRAFT}{os.getpid()}")
    try:
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def _fetch(place: Place, backup: Backup, draft: Path) -> None:
    """Unpack the payload as it comes; never more of it than the description announces."""
    free = os.statvfs(draft.parent)
    if free.f_bavail * free.f_frsize < backup.db_bytes + SPARE_BYTES:
        raise BackupError(f"{draft.parent} has no room for {backup.db_bytes >> 20:,} MiB")
    packed_hash, plain_hash = hashlib.sha256(), hashlib.sha256()
    packed_bytes = plain_bytes = 0
    unpack = zlib.decompressobj(_GZIP)
    with open_private(draft) as target:
        for piece in place.pieces(backup.key):
            packed_bytes += len(piece)
            packed_hash.update(piece)
            if packed_bytes > backup.packed_bytes:
                break
            while piece:
                try:
                    plain = unpack.decompress(piece, 1 << 20)
                except zlib.error:
                    raise BackupError(f"{backup.key} is damaged: it cannot be unpacked") from None
                piece = unpack.unconsumed_tail
                plain_bytes += len(plain)
                if plain_bytes > backup.db_bytes:
                    raise BackupError(
                        f"{backup.key} is damaged: it unpacks to more than {backup.db_bytes} bytes"
                    )
                plain_hash.update(plain)
                target.write(plain)
        plain = unpack.flush()
        plain_bytes += len(plain)
        plain_hash.update(plain)
        target.write(plain)
        target.flush()
        os.fsync(target.fileno())
    for what, found, expected in (
        ("size", packed_bytes, backup.packed_bytes),
        ("SHA-256", packed_hash.hexdigest(), backup.sha256),
        ("unpacked size", plain_bytes, backup.db_bytes),
        ("SHA-256 of the database", plain_hash.hexdigest(), backup.db_sha256),
    ):
        if found != expected:
            raise BackupError(f"{backup.key} is damaged: its {what} is {found}, expected {expected}")


def _own_like(path: Path, draft: Path) -> None:
    """Let the new file be whose the old one was, or whose the directory is."""
    if path.exists():
        like = path.stat()
        draft.chmod(stat.S_IMODE(like.st_mode))
    else:
        like = path.parent.stat()
    if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
        with contextlib.suppress(PermissionError):
            os.chown(draft, like.st_uid, like.st_gid)


def _swap(path: Path, draft: Path) -> list[Path]:
    """Set the old files aside and rename the new one; the lock is ours."""
    aside = f"{ASIDE}{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"
    old: list[Path] = []
    if path.exists():
        _tidy(path)
        # A second name for the old file, so that there is a file at every moment. A start
        # that finds both after a kill takes this one away.
        old.append(path.with_name(path.name + aside))
        try:
            os.link(path, old[0])
        except OSError:  # a file system without such names
            _copy_aside(path, old[0])
    for suffix in ("-wal", "-shm"):
        # A log is for the file that it belongs to; beside the new one it would be taken for its own.
        side = Path(f"{path}{suffix}")
        if side.exists():
            old.append(path.with_name(f"{path.name}{aside}{suffix}"))
            os.rename(side, old[-1])
    os.replace(draft, path)
    sync(path.parent)
    return old


def _copy_aside(path: Path, target: Path) -> None:
    """Give a copy of the old file a name, so that the old one is there until it is replaced."""
    draft = path.with_name(f"{path.name}{DRAFT}{os.getpid()}-old")
    draft.unlink(missing_ok=True)
    try:
        with open(path, "rb") as source, open_private(draft) as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
            copy.flush()
            os.fsync(copy.fileno())
        _own_like(path, draft)
        os.rename(draft, target)
    finally:
        draft.unlink(missing_ok=True)


def _tidy(path: Path) -> None:
    """Move the log of the old file into it, if it is a database that can be opened.

    :raises ConfigError: it is a database of another program
    """
    with open(path, "rb") as file:
        if file.read(len(_HEADER)) != _HEADER:
            return  # SQLite would throw away a log that it finds beside such a file
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as con:
            ours = con.execute("PRAGMA application_id").fetchone()[0]
            if ours != APPLICATION_ID and con.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise ConfigError(f"{path} is a database of another program, which is not replaced")
            con.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except (sqlite3.Error, UnicodeDecodeError):
        pass  # damaged: it is set aside as it is
