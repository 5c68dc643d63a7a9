"""``python -m qcore.backup FILE MS``: one backup, as the environment says, for a server's schedule.

A process of its own, so that neither reading nor packing slows the server. Nothing is done
when the newest backup is younger than so many ms. Prints one JSON line; what went wrong
goes to stderr in one line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path

from qcore.backup.making import make_backup
from qcore.backup.places import find_newest, open_place
from qcore.backup.settings import read_settings
from qcore.errors import ConfigError, QError


def main(data: str, least_age_ms: int) -> int:
    """Make one backup; the exit code."""
    os.nice(10)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        settings = read_settings()
        if settings is None:
            raise ConfigError("no place for backups is set")
        place = open_place(settings)
        newest = find_newest(place, Path(data))
        age_ms = least_age_ms if newest is None else max(0, time.time_ns() // 1_000_000 - newest.created_ms)
        if age_ms < least_age_ms:
            created_ms = newest.created_ms if newest is not None else 0
            print(json.dumps({"made": False, "age_ms": age_ms, "created_ms": created_ms}))
            return 0
        backup, removed = make_backup(data, place, settings.keep)
    except QError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 1
    print(json.dumps({"made": True, "removed": removed, **asdict(backup)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
