"""Backups of a data file: made while it is in use, kept in a directory or in S3, and restored."""

from __future__ import annotations

from qcore.backup.making import make_backup
from qcore.backup.places import Backup, Place, find_backup, list_backups, open_place
from qcore.backup.restoring import restore_backup
from qcore.backup.settings import BackupSettings, read_settings

__all__ = [
    "Backup",
    "BackupSettings",
    "Place",
    "find_backup",
    "list_backups",
    "make_backup",
    "open_place",
    "read_settings",
    "restore_backup",
]
