"""A row of the data file that says which write-ahead log belongs to it, and whether there has to be one.

File and log can be told apart: a row that was moved into the file is there without its log
as well. So the row is written in turns, each into the log first:

* ``HAS_LOG`` before the log is moved into the file. With it there a log lies beside the file
  until the row says otherwise: it has been synced, name and all, and is never made shorter.
* ``IN_LOG`` right behind, at the start of the log. Whoever else moves the log and removes it
  moves this along, so that nothing is missed.
* ``NO_LOG`` before the log is emptied or removed, and behind a move that a reader held up: the
  file keeps the row of the turn before until all has been moved, since SQLite moves a page
  only if the newest form of it can be moved.

Somebody else may move the log while it is used, and with it a row that says that no log is
needed. The index of the log shows it, so the turns are gone through anew before the next
commit is confirmed. Two things are left: as long as a reader holds that up as well, a loss of
log and index is missed; and one that is killed between ``HAS_LOG`` and the row behind it, and
whose log another program then moves and removes, is told of a loss that was none.

Each turn has a number, and each opening of the file a random one, so a file and a log that
are of different turns, or different files, do not follow from each other.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import struct
from typing import Final, NamedTuple
from urllib.parse import quote

#: The key of the row in the table ``meta``; nobody but the store sees it.
META_LOG: Final = "log"

NO_LOG, HAS_LOG, IN_LOG, UNWRITTEN = range(4)

_PACKED = struct.Struct(">BQQQQ")


class LogMark(NamedTuple):
    """``before``: opening and turn that the file had without its log when it was opened."""

    state: int = NO_LOG
    opening: int = 0
    turn: int = 0
    before: tuple[int, int] = (0, 0)

    def packed(self) -> bytes:
        return _PACKED.pack(self.state, self.opening, self.turn, *self.before)

    def follows(self, of_file: LogMark) -> bool:
        """Whether file and log can have this row when the file alone has that one."""
        if self == of_file:
            return True
        if self.opening != of_file.opening:
            # Of an opening whose first turn has not come into the file.
            return self.before == (of_file.opening, of_file.turn) and self.turn == 1 and self.state != IN_LOG
        return self.turn - of_file.turn in ((0,) if self.state == IN_LOG else (0, 1))


def first_mark(found: LogMark, of_file: LogMark | None) -> LogMark:
    """The mark of a new opening of a file with these."""
    before = found.before if of_file is None else (of_file.opening, of_file.turn)
    return LogMark(UNWRITTEN, int.from_bytes(os.urandom(8), "big"), 0, before)


def read_mark(con: sqlite3.Connection) -> LogMark:
    """The mark as this connection sees it; NO_LOG of nobody if there is none."""
    row = con.execute("SELECT CAST(value AS BLOB) FROM meta WHERE key = ?", (META_LOG,)).fetchone()
    if row is None or len(row[0]) != _PACKED.size:
        return LogMark()
    state, opening, turn, *before = _PACKED.unpack(row[0])
    return LogMark(state, opening, turn, (before[0], before[1]))


def mark_of_file(path: str) -> LogMark | None:
    """The mark as the file has it without its log; None if that cannot be told.

    Closing it drops the locks of this process on the file, but for those of an open file description.
    """
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(path)}?mode=ro&immutable=1", uri=True)) as con:
            con.text_factory = bytes
            return read_mark(con)
    except (sqlite3.Error, UnicodeDecodeError):
        return None  # a new file, or one that a move of the log was killed in
