"""Making a backup: a snapshot by SQLite itself, checked, packed, kept.

The snapshot is taken with a connection of its own. Readers of a file in write-ahead mode
do not hold writers up; what they do is to keep the log from being started over until
they have finished.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from qcore import __version__
from qcore.backup.places import (
    META_SUFFIX,
    WORK_PREFIX,
    Backup,
    Place,
    new_key,
    open_private,
    prune,
    remove_stale,
    source_name,
)
from qcore.errors import BackupError, EngineBusyError
from qcore.store.base import StoreFault
from qcore.store.datafile import APPLICATION_ID, SCHEMA_VERSION
from qcore.store.mark import HAS_LOG, META_LOG, LogMark, mark_of_file, read_mark
from qcore.store.owner import LOCKS_FILES, drop_lock, hold_file, is_owned_here, take_lock
from qcore.store.sqlite import BUSY_TIMEOUT_MS
from qcore.store.walcheck import LogState, look_at_log

PIECE_BYTES = 1 << 20
GZIP_LEVEL = 6
#: An index of a log is at least so large; SQLite makes it in one step.
_INDEX_BYTES = 32 * 1024
#: Faults of a directory in which no file can be made.
_NO_FILE_BESIDE = ("full", "readonly")
#: Room that a snapshot leaves on its disk.
SPARE_BYTES = 64 * 1024 * 1024


def make_backup(data: str | os.PathLike[str], place: Place, keep: int) -> tuple[Backup, list[str]]:
    """Back a data file up, in use or not; the backup, and the keys of older ones that were removed.

    It holds what was committed when it began; a plain add is so within the flush window.
    What a damaged log no longer gives is not in it: ``Backup.lost`` says so.
    Of the backups of this file the newest ``keep`` stay.

    :raises BackupError: it could not be made, and nothing was removed; or older ones could not be removed
    """
    path = Path(os.path.realpath(data))
    if not path.is_file():
        raise BackupError(f"{path} is not there" if not path.exists() else f"{path} is not a file")
    with _alone(path), _work(place) as work:
        snapshot, packed = work / "snapshot.db", work / "snapshot.db.gz"
        _check_room(path, work)
        began_ms = time.time_ns() // 1_000_000
        with _readable(path, work) as (source, lost):
            _snapshot(source, snapshot)
        key = new_key(source_name(path), began_ms)
        backup = _pack(snapshot, packed, key, began_ms, check_database(snapshot), lost)
        snapshot.unlink()
        _keep(place, backup, packed)
        try:
            return backup, prune(place, keep, backup.key)
        except BackupError as error:
            raise BackupError(f"{backup.key} was made, but older ones were not removed: {error}") from None


def _keep(place: Place, backup: Backup, packed: Path) -> None:
    meta = backup.key + META_SUFFIX
    try:
        place.put_bytes(meta, backup.packed())
        place.put(backup.key, packed)
        kept = place.sizes().get(backup.key)
        if kept != backup.packed_bytes:
            raise BackupError(f"{place.name}: {backup.key} has {kept} bytes there, not {backup.packed_bytes}")
    except BackupError:
        for key in (backup.key, meta):
            with contextlib.suppress(BackupError):
                place.delete(key)
        raise


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One backup of a file at a time, whoever makes it.

    Two would cost double and harm nothing, so a backup never fails for want of a lock file.
    """
    name = f"{path}.backup"
    with contextlib.ExitStack() as held:
        try:
            held.callback(drop_lock, name, take_lock(name, named=False))
        except EngineBusyError as error:
            raise BackupError(f"another backup of {path} runs: {str(error).rsplit(' is ', 1)[1]}") from None
        except StoreFault as fault:
            if fault.kind not in _NO_FILE_BESIDE:
                raise
        yield


@contextlib.contextmanager
def _work(place: Place) -> Iterator[Path]:
    """A directory that only its owner can read, gone afterwards."""
    base = place.work_directory
    remove_stale(base)
    try:
        with tempfile.TemporaryDirectory(prefix=WORK_PREFIX, dir=base) as work:
            yield Path(work)
    except OSError as error:
        raise BackupError(f"{error.filename or base}: {error.strerror or error}") from None


def _check_room(path: Path, work: Path, *, copies: int = 1) -> None:
    size = sum(os.stat(f).st_size for f in (path, f"{path}-wal") if os.path.exists(f))
    needed = size * copies + SPARE_BYTES
    free = shutil.disk_usage(work).free
    if free < needed:
        raise BackupError(
            f"{work.parent} has {free >> 20:,} MiB free, a snapshot may need {needed >> 20:,} MiB"
        )


@contextlib.contextmanager
def _readable(path: Path, work: Path) -> Iterator[tuple[Path, str]]:
    """The file to read, and what is lost of its log.

    SQLite passes over a damaged log without a word, and wipes out the traces that would tell the
    next start. So it gets a copy to read.
    """
    with contextlib.ExitStack() as held:
        if not _is_sound(_look(path)) and _own(path, held) and not _is_sound(state := _look(path)):
            _check_room(path, work, copies=2)
            copy = work / path.name
            shutil.copyfile(path, copy)
            if not state.drop and os.path.exists(f"{path}-wal"):
                shutil.copyfile(f"{path}-wal", f"{copy}-wal")
            yield copy, "" if state.damage is None else str(state.damage)
            return
    yield path, ""


def _look(path: Path) -> LogState:
    """Judge the log; that of a file in use may look like anything."""
    try:
        if is_owned_here(str(path)):  # a look would cost this process the locks of SQLite
            return LogState()
        mark = mark_of_file(str(path))
        return look_at_log(str(path), mark is not None and mark.state == HAS_LOG)
    except OSError as error:
        raise BackupError(f"{path}-wal: {error.strerror or error}") from None


def _is_sound(state: LogState) -> bool:
    return state.damage is None and not state.drop


def _own(path: Path, held: contextlib.ExitStack) -> bool:
    """Own the file, so that no start gets in between; False if somebody does already."""
    try:
        try:
            held.callback(drop_lock, str(path), take_lock(str(path), named=False))
        except StoreFault as fault:
            # The lock of the file itself, which needs no room and no right to write, is enough.
            if not LOCKS_FILES or fault.kind not in _NO_FILE_BESIDE:
                raise
        if (fd := hold_file(str(path))) >= 0:
            held.callback(os.close, fd)
    except EngineBusyError:
        return False
    return True


def _check_belongs(path: Path, con: sqlite3.Connection, mark: LogMark | None) -> None:
    """That the log is that of the file; one in use may have gone on since its mark was read."""
    if mark is None or read_mark(con).follows(mark):
        return
    with contextlib.ExitStack() as held:
        if _own(path, held):
            raise BackupError(f"{path}-wal is the log of another file, or of another state of this one")


def _snapshot(path: Path, target: Path) -> None:
    mark = None if is_owned_here(str(path)) else mark_of_file(str(path))
    try:
        with contextlib.ExitStack() as held:
            con = _reader(path, held)
            if _application(con) != APPLICATION_ID:
                raise BackupError(f"{path} is no data file of this program")
            _known(path, con)
            _check_belongs(path, con, mark)
            con.execute("VACUUM INTO ?", (str(target),))
        with contextlib.closing(_connect(target, "rw")) as con:
            # No log belongs to it, whatever was said of the file.
            con.execute("DELETE FROM meta WHERE key = ?", (META_LOG,))
    except sqlite3.Error as error:
        raise BackupError(f"{path}: {error}") from None
    target.chmod(0o600)


def _reader(path: Path, held: contextlib.ExitStack) -> sqlite3.Connection:
    # Whoever may write tidies the log away when it is the last to leave; what is in it is not ours to move.
    con = _connect(path, "ro" if _has_log(path) else "rw")
    held.callback(con.close)
    try:
        _application(con)
    except sqlite3.OperationalError:
        # No room, or no right, for the index of a log. A file without one that stays as it is needs none.
        if not _own(path, held) or _has_log(path):
            raise
        con.close()
        _remove_empty_log(path)
        con = _connect(path, "ro&immutable=1")
        held.callback(con.close)
    return con


def _remove_empty_log(path: Path) -> None:
    """Remove what SQLite began to make, and found no room for; an index of full size may be in use."""
    with contextlib.suppress(OSError):
        for side, least_bytes in ((Path(f"{path}-shm"), _INDEX_BYTES), (Path(f"{path}-wal"), 1)):
            if side.exists():
                if side.stat().st_size >= least_bytes:
                    return
                side.unlink()


def _has_log(path: Path) -> bool:
    wal = Path(f"{path}-wal")
    return wal.exists() and wal.stat().st_size > 0


def _application(con: sqlite3.Connection) -> object:
    return con.execute("PRAGMA application_id").fetchone()[0]


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    con = sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}",
        uri=True,
        isolation_level=None,
        timeout=BUSY_TIMEOUT_MS / 1000,
    )
    con.text_factory = bytes
    # A look at signals now and then: a snapshot is one long step.
    con.set_progress_handler(lambda: 0, 100_000)
    return con


def _known(path: Path, con: sqlite3.Connection) -> int:
    found = int(con.execute("PRAGMA user_version").fetchone()[0])
    if found > SCHEMA_VERSION:
        raise BackupError(f"{path} has schema version {found}, this program knows {SCHEMA_VERSION}")
    return found


def check_database(path: Path) -> tuple[int, int]:
    """Number of jobs and schema version of a data file that nobody uses.

    :raises BackupError: it is damaged, or not ours
    """
    try:
        with contextlib.closing(_connect(path, "ro&immutable=1")) as con:
            found = [str(row[0], "utf-8", "replace") for row in con.execute("PRAGMA integrity_check(10)")]
            if found != ["ok"]:
                raise BackupError(f"the database is damaged: {found[0]}")
            if _application(con) != APPLICATION_ID:
                raise BackupError("the database is not one of this program")
            return int(con.execute("SELECT count(*) FROM jobs").fetchone()[0]), _known(path, con)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise BackupError(f"the database is damaged: {error}") from None


def _pack(snapshot: Path, packed: Path, key: str, began_ms: int, found: tuple[int, int], lost: str) -> Backup:
    """Compress a snapshot, and describe what came of it."""
    plain_hash, packed_hash = hashlib.sha256(), hashlib.sha256()
    with open(snapshot, "rb") as source, open_private(packed) as target:
        with gzip.GzipFile("", "wb", GZIP_LEVEL, target, mtime=0) as pack:
            while piece := source.read(PIECE_BYTES):
                plain_hash.update(piece)
                pack.write(piece)
        db_bytes = source.tell()
    with open(packed, "rb") as source:
        while piece := source.read(PIECE_BYTES):
            packed_hash.update(piece)
    return Backup(
        key=key,
        created_ms=began_ms,
        jobs=found[0],
        packed_bytes=packed.stat().st_size,
        sha256=packed_hash.hexdigest(),
        db_bytes=db_bytes,
        db_sha256=plain_hash.hexdigest(),
        schema=found[1],
        qcore=__version__,
        lost=lost,
    )
