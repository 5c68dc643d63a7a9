"""The verbs ``backup now``, ``list``, ``status`` and ``restore``.

They ask no server: a data file can be read while one owns it, and is restored only when none does.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias

from qclient.cli.show import Block, Column, Line, Pairs, json_text, moment, print_blocks, table
from qcore.errors import ConfigError, QError

if TYPE_CHECKING:
    from qcore.backup import Backup, BackupSettings

ABOUT = "make, list and restore backups of a data file"
_Made: TypeAlias = tuple[dict[str, Any], list[Block]]


def add_backup(words: Any, as_json: argparse.ArgumentParser) -> None:
    """Give the command line the verbs."""
    group = words.add_parser("backup", help=ABOUT, description=ABOUT)
    verbs = group.add_subparsers(metavar="COMMAND", required=True)

    def verb(name: str, about: str, *aliases: str, data: bool = True) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = verbs.add_parser(
            name, help=about, description=about, parents=[as_json], aliases=aliases
        )
        if data:
            parser.add_argument(
                "--data", metavar="FILE", default=None, help="the data file (BUNQUEUE_DATA_PATH)"
            )
        parser.add_argument(
            "--to",
            metavar="PLACE",
            default=None,
            help="a directory or s3://bucket/prefix (QCORE_BACKUP_TO, or S3_BUCKET and S3_BACKUP_PREFIX)",
        )
        parser.set_defaults(verb=f"backup {name}")
        return parser

    now = verb("now", "back the data file up, in use or not", "create")
    now.add_argument("--keep", metavar="N", default=None, help="how many backups of it stay (7)")
    verb("list", "list backups, the newest first", data=False)
    verb("status", "say how old the newest backup is, and how many there are", data=False)
    restore = verb("restore", "put a backup in the place of the data file")
    restore.add_argument("key", metavar="KEY", help="a key that list prints, or latest")
    restore.add_argument(
        "-y",
        "--yes",
        "-f",
        "--force",
        action="store_true",
        default=False,
        help="do not ask when there is a file to replace",
    )


def run_backup_verb(name: str, options: argparse.Namespace, as_json: bool) -> int:
    """Do it, and print what came of it; the exit code."""
    from qcore.backup import read_settings

    settings = read_settings(to=options.to, keep=getattr(options, "keep", None))
    if settings is None:
        raise ConfigError(
            "where the backups are is not known: say --to DIRECTORY or s3://bucket/prefix, "
            "or set QCORE_BACKUP_TO or S3_BUCKET"
        )
    document, blocks = _VERBS[name.split()[1]](options, settings)
    if as_json:
        print(json_text(document))
    else:
        print_blocks(blocks)
    return 0


def _data(options: argparse.Namespace) -> str:
    from qcore.server.options import DATA_VARIABLES

    given = options.data
    found = given if given is not None else next((v for n in DATA_VARIABLES if (v := os.environ.get(n))), "")
    if not found:
        raise ConfigError(f"--data: expected the data file, got none; {DATA_VARIABLES[0]} is not set either")
    return str(found)


def _now(options: argparse.Namespace, settings: BackupSettings) -> _Made:
    from qcore.backup import make_backup, open_place

    place = open_place(settings)
    backup, removed = make_backup(_data(options), place, settings.keep)
    rows = [
        ("backup", backup.key),
        ("in", place.name),
        ("jobs", f"{backup.jobs:,}"),
        ("size", _size(backup.packed_bytes)),
        *_lost(backup),
    ]
    rows += [("removed", key) for key in removed]
    return {"ok": True, "place": place.name, "backup": asdict(backup), "removed": removed}, [Pairs(rows)]


def _list(options: argparse.Namespace, settings: BackupSettings) -> _Made:
    from qcore.backup import list_backups, open_place

    place = open_place(settings)
    place.check()
    document = {"place": place.name, "backups": [asdict(backup) for backup in list_backups(place)]}
    columns = (
        Column("key", "key"),
        Column("made", "created_ms", moment),
        Column("jobs", "jobs", _count),
        Column("size", "packed_bytes", _size),
        Column("unpacked", "db_bytes", _size),
    )
    return document, list(table("backups", columns, f"no backup in {place.name}")(document, {}))


def _status(options: argparse.Namespace, settings: BackupSettings) -> _Made:
    from qcore.backup import list_backups, open_place

    place = open_place(settings)
    place.check()
    found = list_backups(place)
    newest = found[0] if found else None
    age_ms = None if newest is None else max(0, round(time.time() * 1000) - newest.created_ms)
    document = {
        "place": place.name,
        "backups": len(found),
        "bytes": sum(backup.packed_bytes for backup in found),
        "newest": None if newest is None else asdict(newest),
        "age_ms": age_ms,
        "keep": settings.keep,
        "interval_ms": settings.interval_ms if settings.scheduled else None,
    }
    if newest is None or age_ms is None:
        return document, [Line(f"no backup in {place.name}")]
    rows = [
        ("in", place.name),
        ("backups", f"{len(found):,}, {_size(document['bytes'])}"),
        ("newest", newest.key),
        ("made", f"{moment(newest.created_ms)}, {age_ms // 60_000:,} minutes ago"),
        *_lost(newest),
    ]
    return document, [Pairs(rows)]


def _restore(options: argparse.Namespace, settings: BackupSettings) -> _Made:
    from qcore.backup import open_place, restore_backup

    data = _data(options)
    place = open_place(settings)
    yes = options.yes
    if not yes and os.path.exists(data) and sys.stdin.isatty():
        print(f"replace {data} by {options.key} of {place.name}? [y/N] ", end="", file=sys.stderr, flush=True)
        yes = sys.stdin.readline().strip().lower() in ("y", "yes")
        if not yes:
            raise QError("nothing was done")
    backup, old = restore_backup(data, place, options.key, force=yes)
    rows = [("restored", backup.key), ("to", data), ("jobs", f"{backup.jobs:,}"), *_lost(backup)]
    rows += [("old file", str(path)) for path in old]
    document = {"ok": True, "data": data, "backup": asdict(backup), "old": [str(path) for path in old]}
    return document, [Pairs(rows)]


def _lost(backup: Backup) -> list[tuple[str, str]]:
    return [("lost", backup.lost)] if backup.lost else []


def _count(value: object) -> str:
    return f"{value:,}"


def _size(value: object) -> str:
    assert isinstance(value, int)
    return f"{value:,} B" if value < 10_000 else f"{value / 2**20:,.1f} MiB"


_VERBS: Mapping[str, Callable[[argparse.Namespace, BackupSettings], _Made]] = {
    "now": _now,
    "list": _list,
    "status": _status,
    "restore": _restore,
}
