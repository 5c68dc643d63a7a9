"""Where backups are kept, and what is kept of each.

A backup is two objects: ``<key>.json`` says what the payload ``<key>`` must be, and is
written before it. So the payload is the commit point: what has one without the other was
not finished, and is no backup.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import BinaryIO, Protocol

from qcore.backup.settings import BackupSettings
from qcore.errors import BackupError, ConfigError

META_SUFFIX = ".json"
META_VERSION = 1
#: A description of a backup is small; what is larger is none.
MOST_META_BYTES = 64 * 1024
#: What a run that was killed left behind is removed once it is this old.
STALE_S = 24 * 3600
WORK_PREFIX = ".qcore-backup-"

_KEY = re.compile(r"([A-Za-z0-9._-]+)-(\d{8}T\d{9}Z-[0-9a-f]{8})\.db\.gz")


@dataclass(frozen=True, slots=True)
class Backup:
    """What a backup says of itself: when it began, sizes in bytes, hashes SHA-256 in hex.

    ``lost``: what a damaged log of the data file no longer gave; empty if nothing is known to be lost.
    """

    key: str
    created_ms: int
    jobs: int
    packed_bytes: int
    sha256: str
    db_bytes: int
    db_sha256: str
    schema: int
    qcore: str
    lost: str = ""

    def packed(self) -> bytes:
        said = {name: value for name, value in asdict(self).items() if name != "lost" or value}
        return json.dumps({"version": META_VERSION, **said}, indent=1).encode()


class Place(Protocol):
    """A directory or a bucket. Keys are texts without the prefix of the place."""

    @property
    def name(self) -> str:
        """The place as an operator writes it."""

    @property
    def work_directory(self) -> Path:
        """Where what is to be put or was got may lie meanwhile."""

    def check(self) -> None:
        """Raise BackupError when the place is not there; listing a bucket finds that out itself."""

    def put(self, key: str, file: Path) -> None:
        """Keep a file whole under a key; it may be gone afterwards."""

    def put_bytes(self, key: str, data: bytes) -> None:
        """Keep a small object."""

    def sizes(self) -> dict[str, int]:
        """Every key and its size."""

    def read(self, key: str) -> bytes | None:
        """A small object; None when it is not there."""

    def pieces(self, key: str) -> Iterator[bytes]:
        """An object in pieces."""

    def delete(self, key: str) -> None:
        """Forget an object; one that is not there is no error."""


def open_place(settings: BackupSettings) -> Place:
    """The place that the settings name.

    :raises ConfigError: it needs an extra that is not installed
    """
    if settings.directory is not None:
        return Directory(Path(settings.directory))
    from qcore.backup.s3 import Bucket

    return Bucket(settings)


def list_backups(place: Place) -> list[Backup]:
    """Every finished backup, the newest first.

    One whose description cannot be read is left out: it cannot be restored either.
    """
    sizes = place.sizes()
    found = []
    for key in complete_keys(sizes):
        raw = place.read(key + META_SUFFIX)
        if raw is not None:  # else it was removed meanwhile
            with contextlib.suppress(BackupError):
                found.append(_parse(place, key, raw))
    return found


def source_name(data: Path) -> str:
    """What the keys of the backups of a data file begin with."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", data.stem).lstrip(".-") or "data"


def new_key(source: str, began_ms: int) -> str:
    """A key for a backup of that time."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(began_ms // 1000))
    return f"{source}-{stamp}{began_ms % 1000:03}Z-{os.urandom(4).hex()}.db.gz"


def complete_keys(sizes: dict[str, int], source: str | None = None) -> list[str]:
    """Keys that have payload and description, the newest first; only those of one source if given."""
    keys = [key for key in sizes if _KEY.fullmatch(key) and key + META_SUFFIX in sizes]
    if source is not None:
        keys = [key for key in keys if _parts(key)[0] == source]
    return sorted(keys, key=lambda key: _parts(key)[1], reverse=True)


def find_newest(place: Place, data: Path) -> Backup | None:
    """The newest backup of a data file."""
    keys = complete_keys(place.sizes(), source_name(Path(os.path.realpath(data))))
    return _described(place, keys[0]) if keys else None


def find_backup(place: Place, key: str, source: str) -> Backup:
    """The backup with a key, or for ``latest`` the newest one of a source, or of the only one there.

    :raises BackupError: there is none, or its description cannot be used
    """
    if key == "latest":
        sizes = place.sizes()
        keys = complete_keys(sizes, source)
        if not keys:
            keys = complete_keys(sizes)
            sources = sorted({_parts(key)[0] for key in keys})
            if len(sources) > 1:
                raise BackupError(f"{place.name} has backups of {', '.join(sources)}: name the key of one")
        if not keys:
            raise BackupError(f"{place.name} has no backup")
        return _described(place, keys[0])
    if not _KEY.fullmatch(key):
        raise BackupError(f"{key!r} is no key of a backup; expected one that list prints, or latest")
    sizes = place.sizes()
    if key not in sizes:
        unfinished = (
            " (its description is there: it was never finished)" if key + META_SUFFIX in sizes else ""
        )
        raise BackupError(f"{place.name} has no backup {key}{unfinished}")
    if key + META_SUFFIX not in sizes:
        raise BackupError(f"{place.name}: {key} has no description beside it, so that it cannot be verified")
    return _described(place, key)


def _described(place: Place, key: str) -> Backup:
    raw = place.read(key + META_SUFFIX)
    if raw is None:
        raise BackupError(f"{place.name}: {key} was removed meanwhile")
    return _parse(place, key, raw)


def _parse(place: Place, key: str, raw: bytes) -> Backup:
    try:
        found = json.loads(raw[: MOST_META_BYTES + 1])
        version = found.pop("version")
        if type(version) is not int:
            raise TypeError("version")
        if version != META_VERSION:
            raise BackupError(
                f"{key}: its description has version {version}, this program knows {META_VERSION}"
            )
        backup = Backup(**found)
        for field in fields(Backup):
            if type(getattr(backup, field.name)).__name__ != field.type:
                raise TypeError(field.name)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        raise BackupError(f"{place.name}: the description of {key} cannot be read") from None
    if backup.key != key:
        raise BackupError(f"{place.name}: the description of {key} is that of another backup")
    return backup


def prune(place: Place, keep: int, made: str) -> list[str]:
    """Remove all but the newest ``keep`` backups of a source, and what was never finished; the keys removed.

    ``made`` is the key of the last one, which stays whatever the clock of the machine says.

    :raises ValueError: ``keep`` is no number of backups; nothing is removed then
    """
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise ValueError(f"expected to keep 1 or more backups, got {keep!r}")
    sizes = place.sizes()
    source = _parts(made)[0]
    removed = [key for key in complete_keys(sizes, source) if key != made][keep - 1 :]
    for key in removed:
        # The payload first: without it, the description is no backup.
        place.delete(key)
        place.delete(key + META_SUFFIX)
    stale = time.strftime("%Y%m%dT%H%M%S", time.gmtime(time.time() - STALE_S))
    for meta in sizes:
        key = meta.removesuffix(META_SUFFIX)
        if meta == key or key in sizes or not _KEY.fullmatch(key):
            continue
        if _parts(key)[0] == source and _parts(key)[1] < stale:
            place.delete(meta)
    return removed


def _parts(key: str) -> tuple[str, str]:
    """Source and time of a key."""
    found = _KEY.fullmatch(key)
    assert found is not None
    return found[1], found[2]


class Directory:
    """Backups as files of one directory, readable by their owner only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = str(path)

    @property
    def work_directory(self) -> Path:
        with self._faults():
            if not self._path.parent.is_dir():
                raise BackupError(f"{self._path.parent} is not a directory; it must exist")
            self._path.mkdir(exist_ok=True)
        return self._path

    def check(self) -> None:
        if not self._path.is_dir():
            raise BackupError(
                f"{self._path} is not there"
                if not self._path.exists()
                else f"{self._path} is not a directory"
            )

    def put(self, key: str, file: Path) -> None:
        with self._faults():
            sync(file)
            os.replace(file, self._path / key)
            sync(self._path)

    def put_bytes(self, key: str, data: bytes) -> None:
        draft = self.work_directory / f"{WORK_PREFIX}{key}"
        with self._faults():
            with open(draft, "wb", opener=_private) as file:
                file.write(data)
            self.put(key, draft)

    def sizes(self) -> dict[str, int]:
        with self._faults():
            if not self._path.exists():
                return {}
            with os.scandir(self._path) as found:
                return {entry.name: entry.stat().st_size for entry in found if entry.is_file()}

    def read(self, key: str) -> bytes | None:
        with self._faults():
            try:
                with open(self._path / key, "rb") as file:
                    return file.read(MOST_META_BYTES + 1)
            except FileNotFoundError:
                return None

    def pieces(self, key: str) -> Iterator[bytes]:
        with self._faults(), open(self._path / key, "rb") as file:
            while piece := file.read(1 << 20):
                yield piece

    def delete(self, key: str) -> None:
        with self._faults():
            (self._path / key).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BackupError(f"{error.filename or self._path}: {error.strerror or error}") from None


def try_out(directory: str) -> None:
    """Find out whether backups can be made in a directory, by a file in it; nothing stays of that.

    :raises ConfigError: they cannot
    """
    path = Path(directory)
    is_new = not path.exists()
    try:
        draft = Directory(path).work_directory / f"{WORK_PREFIX}{os.urandom(8).hex()}"
        open_private(draft).close()
        draft.unlink()
        if is_new:
            path.rmdir()
    except (BackupError, OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error).removeprefix(f"{path}: ")
        raise ConfigError(f"backups cannot be made in {path}: {why}") from None


def remove_stale(directory: Path) -> None:
    """Remove what a run that was killed left there a day ago or more; never raises."""
    import shutil

    before = time.time() - STALE_S
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(directory)):
            if entry.name.startswith(WORK_PREFIX) and entry.stat(follow_symlinks=False).st_mtime < before:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)


def sync(path: Path) -> None:
    """Have a file or a directory on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def open_private(path: Path) -> BinaryIO:
    """A new file that only its owner can read."""
    return open(path, "xb", opener=_private)
