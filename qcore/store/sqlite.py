"""The store in one SQLite file, owned by one process.

The file is in write-ahead mode. Statements carry many rows, since each step of
SQLite gives the interpreter lock away and has to wait for it again; the sizes are
fixed, so that every statement is compiled once. Changes of rows that exist are appended
to a log of changes and folded into their tables later (see changelog.pyx). That, and the
checkpoint of SQLite's own log, is done between commits (see :meth:`SqliteStore.maintain`).

Other processes may read the file meanwhile, for a backup or a look.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TypeAlias, cast
from urllib.parse import quote

from qcore.errors import ClosedError, ForkedError, StoreError
from qcore.store.base import (
    INSERT_WIDTH,
    SIDE_TABLES,
    STATE_UNREADABLE,
    UPDATE_WIDTH,
    Cut,
    LogDamage,
    Row,
    Snapshot,
    StoreFault,
    pack_rows,
)
from qcore.store.changelog import FIRST_SLOTS, ChangeLog
from qcore.store.datafile import (
    APPLICATION_ID,
    SCHEMA_VERSION,
    about_log,
    foreign_fault,
    inspect_file,
    newer_fault,
    remove_drafts,
    size_of,
)
from qcore.store.faults import commit_fault_of, sqlite_fault, system_fault
from qcore.store.mark import (
    HAS_LOG,
    IN_LOG,
    META_LOG,
    NO_LOG,
    LogMark,
    first_mark,
    mark_of_file,
    read_mark,
)
from qcore.store.owner import claim, disclaim, drop_lock, hold_file, key_of, lock_file, own, take_lock
from qcore.store.walcheck import INDEX_HEAD_BYTES, WAL_HEADER_BYTES, keep_copy, look_at_log, moves_of

PAGE_BYTES = 4096
CACHE_KIB = 64_000
CHECK_CACHE_KIB = 4_000
BUSY_TIMEOUT_MS = 5_000
#: A payload above this lies in its own table; see schema.sql.
INLINE_DATA_BYTES = 1024

#: Checkpoint when the log holds this many pages that are not in the file yet. Pages that are written again
#: and again, those of the log of changes above all, go to the file once for all these.
CHECKPOINT_PAGES = 2_000
#: Cut the log file back once it is larger than this.
WAL_LIMIT_BYTES = 16 * 1024 * 1024

#: Rows, and small values, that one slice of a fold moves at most ...
FOLD_ROWS = 512
FOLD_VALUES = 64
#: ... and how long it may go on, where that can be looked at.
FOLD_SLICE_NS = 2_000_000
#: A fold that failed is tried again after this.
FOLD_RETRY_S = 1.0

#: Rows of one statement. Alone, 64 are as fast; beside a thread that never pauses each
#: further statement can wait 5 ms for the interpreter lock.
MAX_ROWS = 1_024
#: A value above this travels in a statement of one row: SQLite copies what is bound, and
#: a statement in the cache keeps its copies.
HEAVY_BYTES = 64 * 1024
LOAD_PAGE_ROWS = 1_000
#: What cannot be opened for writing just now is opened for reading, without a word, and so for ever.
TRY_TO_WRITE = ("BEGIN IMMEDIATE", f"PRAGMA user_version = {SCHEMA_VERSION}", "ROLLBACK")
#: A question that a commit has got in the way of is asked so often before it waits for one.
READ_TRIES = 3
MIN_SEQ = -(2**63)
MAX_SEQ = 2**63 - 1

_Step: TypeAlias = tuple[str, Sequence[object]]
#: Table, key and value of a small value.
_Value: TypeAlias = tuple[str, int | str, bytes | None]

_log = logging.getLogger("qcore.store")

_FRAME_BYTES = 24 + PAGE_BYTES

_INSERT = "REPLACE INTO jobs(seq, queue, state, record, data, result) VALUES "
_PAYLOAD = "REPLACE INTO payloads(seq, data) VALUES "
_PAGE = "REPLACE INTO changelog(n, page) VALUES (?,?)"
_NAME = "INSERT INTO names(id, text) VALUES (?,?) ON CONFLICT(id) DO UPDATE SET text = excluded.text"
_SELECT = f"""
    SELECT j.seq,
           CASE typeof(j.queue) WHEN 'integer' THEN j.queue ELSE 0 END,
           CASE WHEN typeof(j.state) = 'integer' AND typeof(j.queue) = 'integer'
                THEN j.state ELSE {STATE_UNREADABLE} END,
           CAST(j.record AS BLOB),
           CASE WHEN j.data = x'' THEN coalesce(p.data, x'') ELSE CAST(j.data AS BLOB) END,
           CAST(j.result AS BLOB)
    FROM jobs j LEFT JOIN payloads p ON p.seq = j.seq AND j.data = x''
"""
_SCAN = f"{_SELECT} WHERE j.seq >= ? ORDER BY j.seq LIMIT ?"
# The record comes before the payloads in a row, so those are not even read from the file.
_SCAN_HEADS = f"""
    SELECT seq,
           CASE typeof(queue) WHEN 'integer' THEN queue ELSE 0 END,
           CASE WHEN typeof(state) = 'integer' AND typeof(queue) = 'integer'
                THEN state ELSE {STATE_UNREADABLE} END,
           CAST(record AS BLOB), NULL, NULL
    FROM jobs WHERE seq >= ? ORDER BY seq LIMIT ?
"""

_REPAIR = "restore a backup, or save what can be read with: sqlite3 FILE .recover"

# To be given up in a forked child.
_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
_abandoned: list[object] = []


@lru_cache(maxsize=4096)
def _plan(n: int) -> tuple[tuple[int, int], ...]:
    """Split n rows into ``(statement size, rows)``, with few statements.

    Sizes are powers of two. A statement is filled up by repeating its last row
    where that wastes no more than a quarter of it, since a step costs more than a
    few repeated rows.
    """
    steps = []
    while n:
        size = min(MAX_ROWS, 1 << (n - 1).bit_length())
        if n * 4 < size * 3:
            size //= 2
        steps.append((size, min(size, n)))
        n -= min(size, n)
    return tuple(steps)


@cache
def _insert_sql(size: int) -> str:
    return _INSERT + ",".join(["(?,?,?,?,?,?)"] * size)


@cache
def _payload_sql(size: int) -> str:
    return _PAYLOAD + ",".join(["(?,?)"] * size)


@cache
def _update_sql(size: int) -> str:
    if size == 1:
        return "UPDATE jobs SET state = ?2, record = ?3, result = ?4 WHERE seq = ?1"
    return (
        "UPDATE jobs SET state = v.column2, record = v.column3, result = v.column4 FROM (VALUES "
        + ",".join(["(?,?,?,?)"] * size)
        + ") AS v WHERE jobs.seq = v.column1"
    )


@cache
def _delete_sql(size: int) -> str:
    return f"DELETE FROM jobs WHERE seq IN ({','.join('?' * size)})"


@cache
def _drop_sql(size: int) -> str:
    return f"DELETE FROM payloads WHERE seq IN ({','.join('?' * size)})"


class SqliteStore:
    """Keep cuts in the SQLite file at ``path``, creating it if it does not exist.

    Raises EngineBusyError when another engine owns the file, StoreFault when it
    cannot be used; a file that is refused is left as it was.

    Thread-safety: any thread may call; one call at a time runs, and one question beside it.
    """

    takes_packed: bool = False

    #: Tests make single statements fail with this.
    connection_class: type[sqlite3.Connection] = sqlite3.Connection

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: str = os.path.realpath(os.fspath(path))
        self._lock = threading.Lock()
        self._read_lock = threading.Lock()
        self._reader: sqlite3.Connection | None = None
        self._closed = False
        self._forked = False
        self._sync_full = False
        self._commits = 0
        self._syncs = 0
        self._failed_commits = 0
        self._rows = 0
        self._checkpoints = 0
        self._pages_due = CHECKPOINT_PAGES  # pages that may be written before the next look at the log
        self._pinned = False  # by a reader, so that the log could not be moved or reused
        self._retry = False
        self._warned = False
        self._last_error: str | None = None
        self._changes = ChangeLog()
        self._in_doubt = False  # whether the last commit came through, so whether they are what the file has
        self._folds = 0
        self._fold_failing = False
        self._fold_again_at = 0.0
        self._seen_commits = 0  # at the last maintenance
        self._unsettled = True  # something may be in a log that belongs into the file
        self._salt = b""
        self._salt_done = 0  # frames under this salt that are in the file
        self._wal_fd = -1
        self._lock_fd = -1
        self._data_fd = -1
        self._key: tuple[int, int] | None = None
        self._wal_key: tuple[int, int] | None = None
        self._moved = False
        self._damaged = False
        self.log_damage: LogDamage | None = None
        self._restart_log = False
        self._file_mark: LogMark | None = None  # as the file had it without its log, and with it
        self._found_mark = LogMark()
        self._mark: LogMark | None = None  # as it was written last
        self._turn_moved = True  # whether the file itself has its turn
        self._marked_commits = 0  # when it was written
        self._file_marked = False  # whether the file itself says that it has a log
        self._index_fd = -1
        self._index: mmap.mmap | None = None
        self._index_seen = b""  # as it was after the log was moved last
        claim(self.path)
        try:
            inspect_file(self.path)
            self._lock_fd = take_lock(self.path)
            self._data_fd = hold_file(self.path, write=True)
            remove_drafts(self.path)
            if os.fstat(self._data_fd).st_size:
                self._look_at_log()
            self._con = self._open()
            found = os.fstat(self._data_fd)
            self._key = (found.st_dev, found.st_ino)
            self._wal_fd = self._open_beside("-wal")
            self._index_fd = self._open_beside("-shm")
            self._index = mmap.mmap(self._index_fd, INDEX_HEAD_BYTES, access=mmap.ACCESS_READ)
            found = os.fstat(self._wal_fd)
            self._wal_key = (found.st_dev, found.st_ino)
            if found.st_size:
                self._pages_due = 0  # left by one that was killed: it may be large already
            self._check_place()
            own(self.path, self._key)
        except BaseException:
            self._release()
            raise
        _stores.add(self)

    def _look_at_log(self) -> None:
        """Before SQLite passes over it without a word: see what of the log cannot be read."""
        wal = self.path + "-wal"
        self._file_mark = mark_of_file(self.path)
        lock_file(self._data_fd, fcntl.F_WRLCK)  # anew: half of it went with the descriptor of that look
        expected = self._file_mark is not None and self._file_mark.state == HAS_LOG
        try:
            state = look_at_log(self.path, expected)
        except OSError as error:
            raise system_fault(error, f"{wal} cannot be read") from None
        damage = state.damage
        if (damage is not None or state.drop) and size_of(wal):
            try:
                copy = keep_copy(self.path)
                if state.drop:
                    os.truncate(wal, 0)
            except OSError as error:
                raise system_fault(error, f"{wal} is damaged, and cannot be copied") from None
            if damage is None:
                _log.warning("%s is damaged, and all of it is in the file; it was moved to %s", wal, copy)
            else:
                damage = replace(damage, copy=copy)
        self._restart_log = state.restart
        self.log_damage = damage
        if damage is not None:
            _log.error("%s: confirmed work is lost: %s", self.path, damage)

    def _open_beside(self, suffix: str) -> int:
        try:
            return os.open(self.path + suffix, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise system_fault(error, f"{self.path}{suffix} cannot be opened") from None

    def _check_place(self) -> None:
        """That the names of data file and log still mean what is open."""
        if key_of(self.path) != self._key or key_of(self.path + "-wal") != self._wal_key:
            raise self._moved_fault()
        self._moved = False

    def _moved_fault(self) -> StoreFault:
        gone = self.path if key_of(self.path) != self._key else self.path + "-wal"
        if not self._moved:
            self._moved = True
            place = f"/proc/{os.getpid()}/fd"
            _log.error(
                "%s was removed, renamed or replaced while it was open; nothing is written until it has its "
                "name again. If it was removed: stop the producers, copy %s/%d to RESCUE.db and %s/%d to "
                "RESCUE.db-wal while this process lives, and start with RESCUE.db",
                gone,
                place,
                self._data_fd,
                place,
                self._wal_fd,
            )
        return StoreFault(f"{gone} was removed, renamed or replaced while it was open", "missing")

    def _open(self) -> sqlite3.Connection:
        con = None
        try:
            con = sqlite3.connect(
                f"file:{quote(self.path)}?mode=rwc",
                uri=True,
                timeout=BUSY_TIMEOUT_MS / 1000,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=128,
                factory=self.connection_class,
            )
            con.text_factory = bytes  # a damaged text must not stop a load
            self._con = con
            self._settle()
        except sqlite3.Error as error:
            fault = sqlite_fault(error, self.path)
            if fault.kind == "corrupt":
                fault = StoreFault(f"{fault}; {_REPAIR}{about_log(self.path)}", "corrupt")
            if con is not None:
                with self._keeping_log(fault.kind == "corrupt"):
                    con.close()
            raise fault from error
        except UnicodeDecodeError:
            if con is not None:
                con.close()
            raise StoreFault(f"{self.path} is damaged: its schema is not text", "corrupt") from None
        except BaseException as error:
            if con is not None:
                with self._keeping_log(isinstance(error, StoreFault) and error.kind == "corrupt"):
                    con.close()
            raise
        return con

    def _settle(self) -> None:
        """Create or recognise the schema, then set the connection up."""
        con = self._con
        application = self._one("PRAGMA application_id")
        version = cast(int, self._one("PRAGMA user_version"))
        if application != APPLICATION_ID:
            if self._one("SELECT count(*) FROM sqlite_master"):
                raise foreign_fault(self.path)
            # In rollback mode, so that the header names its owner from the first page on.
            con.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            con.execute("PRAGMA journal_mode = DELETE").fetchall()
            self._build(
                *(_schema(version) for version in range(1, SCHEMA_VERSION + 1)),
                f"PRAGMA application_id = {APPLICATION_ID}",
                f"PRAGMA user_version = {SCHEMA_VERSION}",
            )
        elif version > SCHEMA_VERSION:
            raise newer_fault(self.path, version)
        else:
            self._check_mark()
            self._migrate(version)
        mode = con.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != b"wal":
            raise StoreFault(f"{self.path} cannot be switched to write-ahead mode", "io")
        for setting in (
            "synchronous = NORMAL",
            "wal_autocheckpoint = 0",
            f"cache_size = -{CACHE_KIB}",
            "temp_store = MEMORY",
            "secure_delete = OFF",
        ):
            con.execute("PRAGMA " + setting).fetchall()
        for sql in TRY_TO_WRITE:
            con.execute(sql)
        self._restore_changes()

    def _restore_changes(self) -> None:
        """Begin with the log of changes as the file has it."""
        changes = ChangeLog()
        first = self._con.execute("SELECT page FROM changelog WHERE n = 0").fetchone()
        changes.has_payloads = bool(self._one("SELECT EXISTS(SELECT 1 FROM payloads)"))
        changes.file_bytes = size_of(self.path)
        try:
            changes.restore(
                first[0] if first else None,
                self._con.execute("SELECT n, page FROM changelog WHERE n != 0 ORDER BY n"),
                cast(int | None, self._one("SELECT max(seq) FROM jobs")),
            )
        except StoreFault as fault:
            raise StoreFault(f"{self.path}: {fault}", fault.kind) from None
        self._changes = changes
        self._in_doubt = False

    def _check_mark(self) -> None:
        """That the log is that of this file, as far as their marks tell."""
        self._found_mark = read_mark(self._con)
        if self._file_mark is not None and not self._found_mark.follows(self._file_mark):
            raise StoreFault(
                f"{self.path}-wal is the log of another file, or of another state of this one: put the "
                "file back that it belongs to, or move the log away and start again; nothing was touched",
                "corrupt",
            )

    def _migrate(self, version: int) -> None:
        """Bring an older schema up to date, one version a transaction."""
        for following in range(version + 1, SCHEMA_VERSION + 1):
            self._build(_schema(following), f"PRAGMA user_version = {following}")

    def _build(self, *parts: str) -> None:
        """Change the schema in one transaction."""
        try:
            self._con.executescript("BEGIN EXCLUSIVE; " + "; ".join(parts) + "; COMMIT;")
        except BaseException:
            self._roll_back()
            raise

    def _one(self, sql: str) -> object:
        return self._con.execute(sql).fetchone()[0]

    # -- reading

    def load(self) -> Snapshot:
        """Read the last committed state; jobs come in pages, as they are iterated."""
        with self._lock:
            self._check_open()
            try:
                self._check_pages()
                self._begin_log()
                names = [
                    (id_, text.decode("utf-8", "replace"))
                    for id_, text in self._con.execute("SELECT id, CAST(text AS BLOB) FROM names ORDER BY id")
                ]
                queues = self._con.execute(
                    "SELECT id, CAST(state AS BLOB) FROM queues ORDER BY id"
                ).fetchall()
                queues = cast(list[tuple[int, bytes]], self._changes.merge_side("queues", queues))
                meta = {
                    key.decode("utf-8", "replace"): value
                    for key, value in self._con.execute(
                        "SELECT CAST(key AS BLOB), CAST(value AS BLOB) FROM meta WHERE key != ?", (META_LOG,)
                    )
                }
                side = {
                    table: self._changes.merge_side(
                        table,
                        [
                            (key.decode("utf-8", "replace") if isinstance(key, bytes) else key, value)
                            for key, value in self._con.execute(
                                f"SELECT key, CAST(value AS BLOB) FROM {table} ORDER BY key"
                            )
                        ],
                    )
                    for table in SIDE_TABLES
                }
            except sqlite3.Error as error:
                raise sqlite_fault(error, self.path) from error
        return Snapshot(names=names, queues=queues, meta=meta, side=side, jobs=self._pages())

    def _check_pages(self) -> None:
        # A damaged page may hide rows without an error; next to reading them all this costs little.
        # Each page is looked at once, so a cache would only hold memory.
        self._con.execute(f"PRAGMA cache_size = -{CHECK_CACHE_KIB}")
        try:
            first = self._con.execute("PRAGMA quick_check(1)").fetchone()[0]
            self._con.execute("PRAGMA shrink_memory").fetchall()
        finally:
            self._con.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        if first != b"ok":
            self._damaged = True
            problem = " ".join(str(first, "utf-8", "replace").split())
            raise StoreFault(f"{self.path} is damaged: {problem}; {_REPAIR}{about_log(self.path)}", "corrupt")

    def _begin_log(self) -> None:
        """Once an opening: move what its log holds into the file, and mark it as one that has a log.

        What lies behind the end of a damaged log would be met again by the next start; so that goes.
        """
        if self._mark is not None:
            return
        self._mark = first_mark(self._found_mark, self._file_mark)
        self._try_checkpoint(True)

    def _pages(self) -> Iterator[Row]:
        first = MIN_SEQ
        while True:
            with self._lock:
                self._check_open()
                try:
                    page = self._con.execute(_SCAN, (first, LOAD_PAGE_ROWS)).fetchall()
                except sqlite3.Error as error:
                    raise sqlite_fault(error, self.path) from error
                rows = self._changes.merge(page, True)
            yield from rows
            if len(page) < LOAD_PAGE_ROWS or page[-1][0] == MAX_SEQ:
                return
            first = page[-1][0] + 1

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """A connection for questions: it waits for no commit, and sees what is committed."""
        with self._read_lock:
            self._check_usable()
            try:
                if self._reader is None:
                    self._check_place()
                    self._reader = sqlite3.connect(
                        f"file:{quote(self.path)}?mode=rw",
                        uri=True,
                        timeout=BUSY_TIMEOUT_MS / 1000,
                        isolation_level=None,
                        check_same_thread=False,
                        factory=self.connection_class,
                    )
                    self._reader.text_factory = bytes
                    self._reader.execute("PRAGMA query_only = ON")
                yield self._reader
            except sqlite3.Error as error:
                raise sqlite_fault(error, self.path) from error

    def _ask(self, sql: str, parameters: Sequence[object], payloads: bool) -> tuple[list[Row], list[Row]]:
        """Rows as they lie in the jobs table, and as the log of changes has them.

        Table and log are asked one after the other. Where a commit between the two could
        make them disagree, they are asked again, and at last with commits held off.
        """
        with self._reading() as con:
            for _ in range(READ_TRIES):
                changes, stamp = self._changes, self._changes.stamp
                if stamp < 0 or self._in_doubt:
                    break
                found: list[Row] = con.execute(sql, parameters).fetchall()
                rows = changes.merge(found, payloads)
                if changes is self._changes and changes.stamp == stamp:
                    return found, rows
        with self._lock:
            self._check_open()
            try:
                found = self._con.execute(sql, parameters).fetchall()
            except sqlite3.Error as error:
                raise sqlite_fault(error, self.path) from error
            return found, self._changes.merge(found, payloads)

    def scan(self, first_seq: int, limit: int, *, payloads: bool = True) -> list[Row]:
        """Read up to ``limit`` rows in order of seq, from the first that is not below ``first_seq``.

        Without ``payloads`` data and results are None, and are not read.
        """
        rows: list[Row] = []
        while (missing := max(0, limit) - len(rows)) > 0:
            found, merged = self._ask(_SCAN if payloads else _SCAN_HEADS, (first_seq, missing), payloads)
            rows += merged
            if len(found) < missing or found[-1][0] == MAX_SEQ:
                break
            first_seq = found[-1][0] + 1  # rows that are gone may have lain in the table
        return rows

    def read(self, seqs: Sequence[int]) -> list[Row]:
        """Read single rows, in order of seq; those that do not exist are left out."""
        wanted = sorted(set(seqs))
        rows: list[Row] = []
        for size, n in _plan(len(wanted)):
            part = wanted[:n]
            del wanted[:n]
            part += part[-1:] * (size - n)
            rows += self._ask(
                f"{_SELECT} WHERE j.seq IN ({','.join('?' * size)}) ORDER BY j.seq", part, True
            )[1]
        return rows

    def integrity_check(self) -> list[str]:
        """Return what SQLite finds wrong with the file; empty when it is sound."""
        with self._lock:
            self._check_open()
            try:
                rows = self._con.execute("PRAGMA integrity_check").fetchall()
            except sqlite3.DatabaseError as error:
                return [str(error)]
        found = [str(row[0], "utf-8", "replace") for row in rows]
        return [] if found == ["ok"] else found

    # -- writing

    def commit(self, cut: Cut, *, sync: bool = False) -> None:
        """Write the whole cut in one transaction, or nothing."""
        with self._lock:
            self._check_open()
            changes = self._changes
            try:
                lists = pack_rows(cut)
                packed = [*cut.packed, lists] if lists else cut.packed
                values: list[_Value] = [("queues", queue, state) for queue, state in cut.queues]
                values += [(table, key, value) for (table, key), value in cut.side.items()]
                if cut.has_large(INLINE_DATA_BYTES):
                    changes.has_payloads = True
                values = changes.stage(packed, values)
                self._set_sync(sync)
                self._write(cut, values)
            except BaseException as error:
                # An interrupt may have come behind the end of the transaction.
                self._in_doubt = not isinstance(error, (sqlite3.Error, StoreFault))
                changes.drop()
                self._failed_commits += 1
                if isinstance(error, sqlite3.Error):
                    fault = commit_fault_of(getattr(error, "sqlite_errorcode", 0), str(error), self.path)
                    self._last_error = str(fault)
                    raise fault from error
                if isinstance(error, StoreFault):
                    self._last_error = str(error)
                raise
            # New rows follow each other; anything else may lie on a page of its own.
            n_pages = 1 + changes.n_staged_pages + changes.n_written_bytes // PAGE_BYTES + 2 * len(values)
            n_pages += changes.n_scattered
            changes.accept()
            self._last_error = None
            self._commits += 1
            self._syncs += sync
            self._rows += cut.n_jobs
            self._pages_due -= n_pages
            self._unsettled = True
            if self._mark is not None and moves_of(self._index) != self._index_seen:
                # Somebody else moved the log, so that the file says that it needs none. Before this
                # commit is confirmed, it says otherwise.
                self._file_marked = False
                self._try_checkpoint(False)

    def _set_sync(self, sync: bool) -> None:
        if sync is not self._sync_full:
            self._set("synchronous = " + ("FULL" if sync else "NORMAL"))
            self._sync_full = sync

    def _write(self, cut: Cut, values: list[_Value]) -> None:
        """Write what has been staged, the other parts of the cut and large values, in one transaction."""
        self._check_place()
        rows = Cut(packed=[self._changes.written_rows()]).unpacked()
        inserts, payloads = _split_payloads(rows.inserts)
        steps: list[_Step] = []
        _cut_up(steps, _insert_sql, inserts, INSERT_WIDTH, 5)
        _cut_up(steps, _payload_sql, payloads, 2, 1)
        _cut_up(steps, _update_sql, rows.updates, UPDATE_WIDTH, 3)
        _cut_up(steps, _drop_sql, rows.deletes, 1)  # the rows themselves are in the log
        steps += ((_NAME, name) for name in cut.names)
        steps += (("REPLACE INTO meta(key, value) VALUES (?,?)", item) for item in cut.meta.items())
        _add_values(steps, values)
        steps += ((_PAGE, page) for page in self._changes.staged_pages())
        if (first := self._changes.staged_first_row) is not None:
            steps.append((_PAGE, (0, first)))
        self._run(steps)

    def _run(self, steps: list[_Step]) -> None:
        """Run statements in one transaction."""
        con = self._con
        try:
            if len(steps) == 1:  # one statement is a transaction of its own
                con.execute(*steps[0])
            elif steps:
                con.execute("BEGIN IMMEDIATE")
                for sql, parameters in steps:
                    con.execute(sql, parameters)
                con.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def _set(self, setting: str) -> None:
        """Apply a PRAGMA to the connection that commits."""
        self._do("PRAGMA " + setting)

    def _do(self, sql: str) -> None:
        """Run one statement on the connection that commits."""
        self._con.execute(sql).fetchall()

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self._con.in_transaction:  # some errors have rolled back already
                self._con.execute("ROLLBACK")

    # -- folding the changes

    def _fold(self) -> None:
        """Move one slice of the changes into their tables; nothing has happened when it raises."""
        changes = self._changes
        if not changes.begin_fold():
            return
        self._set_sync(False)
        n_rows, n_values = self._fold_slice()
        changes.advance(n_rows, n_values)
        self._pages_due -= 2 + n_rows + n_values  # each may lie on a page of its own
        self._folds += not changes.folding
        self._unsettled = True

    def _fold_slice(self) -> tuple[int, int]:
        """Move the next rows and values; how many were looked at."""
        changes = self._changes
        n_rows, updates, deletes = changes.fold_rows(FOLD_ROWS)
        n_values, values = changes.fold_values(n_rows, FOLD_VALUES)
        steps: list[_Step] = []
        _cut_up(steps, _update_sql, updates, UPDATE_WIDTH, 3)
        _cut_up(steps, _delete_sql, deletes, 1)
        _add_values(steps, values)
        if changes.folds_all(n_rows, n_values):
            steps.append((_PAGE, (0, changes.first_row_after_fold())))
        self._run(steps)
        return n_rows, n_values

    def _fold_all(self) -> None:
        """Fold the whole log, before the file is given up."""
        changes = self._changes
        while changes.begin_fold():
            self._fold()
        if changes.n_slots > FIRST_SLOTS:
            self._run(
                [
                    ("DELETE FROM changelog WHERE n > ?", (FIRST_SLOTS,)),
                    (_PAGE, (0, changes.first_row_of(FIRST_SLOTS))),
                ]
            )

    # -- maintenance

    @property
    def wants_maintenance(self) -> bool:
        """Tell whether there is something to fold or to checkpoint at once; costs nothing."""
        if self._closed:
            return False
        if self._pages_due <= 0:
            return True
        changes = self._changes
        return (changes.folding or changes.wants_fold) and time.monotonic() >= self._fold_again_at

    def maintain(self) -> bool:
        """Fold a slice of the changes if that is due, and checkpoint; never raises.

        A checkpoint moves SQLite's log into the file once it holds about 2,000 pages.
        The log file is then written again from its start, or cut back when it had
        grown: behind a reader that pins it, or by one large cut. When nothing was
        committed since the last call, all that is left is folded and checkpointed.
        Returns True when something is left, so that it has to be called again in a while.
        """
        with self._lock:
            if self._closed or self._forked:
                return False
            if self._in_doubt:
                return True  # the next commit looks what the file has
            idle = self._commits == self._seen_commits
            self._seen_commits = self._commits
            changes = self._changes
            if (
                changes.folding or changes.wants_fold or (idle and len(changes))
            ) and time.monotonic() >= self._fold_again_at:
                self._try_fold()
            settle = idle and self._unsettled and not len(changes)
            # While a reader holds the log up, a try after every commit would cost more than the commits.
            due = self._pages_due <= 0 or settle or (self._retry and (idle or not self._pinned))
            moves = moves_of(self._index)
            if self._mark is not None and moves and moves != self._index_seen:
                self._file_marked = False  # somebody else moved the log, and not all of it
                due = True
            if due:
                self._try_checkpoint(settle)
            return self._retry or self._unsettled

    def _try_fold(self) -> None:
        try:
            self._fold()
        except Exception as error:
            self._fold_again_at = time.monotonic() + FOLD_RETRY_S
            if not self._fold_failing:
                _log.warning("%s: changes cannot be moved into their tables yet: %s", self.path, error)
            self._fold_failing = True
        except BaseException:
            self._in_doubt = True
            raise
        else:
            self._fold_failing = False

    def _try_checkpoint(self, settle: bool) -> None:
        try:
            self._tidy(settle)
        except (sqlite3.Error, OSError) as error:
            self._pages_due = CHECKPOINT_PAGES
            if not self._retry:
                _log.warning("%s: checkpoint failed: %s", self.path, error)
            self._retry = True
        else:
            self._retry = self._pinned

    def _tidy(self, settle: bool) -> None:
        salt, frames, size = self._frames()
        if salt != self._salt:
            self._salt, self._salt_done = salt, 0
        pending = frames - self._salt_done
        cut_back = size > WAL_LIMIT_BYTES or self._restart_log
        unmarked = self._mark is not None and not self._file_marked
        if pending < (1 if settle else CHECKPOINT_PAGES) and not (cut_back or unmarked):
            self._pinned = False
            self._pages_due = CHECKPOINT_PAGES - pending
            self._unsettled = pending > 0 or len(self._changes) > 0
            return
        # Never wait here for a reader: commits are waiting for this lock.
        self._con.execute("PRAGMA busy_timeout = 0")
        try:
            pinned, done = self._move_log(cut_back)
        finally:
            self._con.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
            self._index_seen = moves_of(self._index)
        self._checkpoints += 1
        self._salt, frames, _ = self._frames()
        # Unless a reader held it up, all that the log holds now is its mark.
        self._salt_done = max(done, 0) if pinned else frames
        self._pages_due = CHECKPOINT_PAGES
        if pinned and cut_back and not self._warned:
            self._warned = True
            _log.warning(
                "%s: another reader keeps the log from being reused; it has %d bytes", self.path, size
            )
        elif not pinned:
            self._warned = False
        self._pinned = pinned
        self._unsettled = pinned or len(self._changes) > 0
        self._changes.file_bytes = size_of(self.path)

    def _move_log(self, cut_back: bool) -> tuple[bool, int]:
        """Move the log into the file; whether a reader held it up, and the frames that were moved."""
        if self._pinned and self._commits == self._marked_commits:
            # The mark stands last in the log already; to write it again at each try would let the log grow.
            pinned, done = self._checkpoint("PASSIVE")
            if pinned:
                return pinned, done
        if cut_back:
            self._put_mark(NO_LOG)
            pinned, done = self._checkpoint("TRUNCATE")
            if pinned:
                return pinned, done
            self._restart_log = False
        self._put_mark(HAS_LOG)
        pinned, done = self._checkpoint("PASSIVE")
        # What stands last comes into the file when somebody else moves the rest.
        self._put_mark(NO_LOG if pinned else IN_LOG)
        return pinned, done

    def _checkpoint(self, mode: str) -> tuple[bool, int]:
        busy, log, done = self._con.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        pinned = bool(busy) or done < log
        if not pinned:
            self._turn_moved = True
            self._file_marked = self._mark is not None and self._mark.state == HAS_LOG
        return pinned, done

    def _put_mark(self, state: int) -> None:
        """Write the mark, if it can be written: without one, a loss of the log would only be missed."""
        mark = self._mark
        if mark is None or (state == IN_LOG and mark.state != HAS_LOG):
            return
        if mark.state == state and self._marked_commits == self._commits:
            return
        fresh = state != IN_LOG and self._turn_moved
        mark = mark._replace(state=state, turn=mark.turn + fresh)
        with contextlib.suppress(sqlite3.Error, StoreError):
            self._set_sync(False)
            self._do(f"REPLACE INTO meta(key, value) VALUES ('{META_LOG}', x'{mark.packed().hex()}')")
            self._mark = mark
            self._turn_moved = self._turn_moved and not fresh
            self._marked_commits = self._commits

    def _frames(self) -> tuple[bytes, int, int]:
        """Return the salt of the log, how many of its frames carry it, and its bytes.

        The file is not cut when it is started over, so its size says little; the
        frames since the start carry the salt of the header and form a prefix,
        whose end is found by bisection. (SQLite puts no locks on this file, so it
        may be opened beside it.)
        """
        fd = self._wal_fd
        salt = os.pread(fd, 8, 16)
        size = os.fstat(fd).st_size
        low, high = 0, (size - WAL_HEADER_BYTES) // _FRAME_BYTES
        while low < high:
            middle = (low + high) // 2
            if os.pread(fd, 8, WAL_HEADER_BYTES + middle * _FRAME_BYTES + 8) == salt:
                low = middle + 1
            else:
                high = middle
        return salt, low, size

    def status(self) -> dict[str, object]:
        """Describe the file; sizes in bytes. ``log_pinned``: a foreign reader holds the log."""
        return {
            "path": self.path,
            "file_bytes": size_of(self.path),
            "wal_bytes": size_of(self.path + "-wal"),
            "log_pinned": self._pinned,
            "commits": self._commits,
            "syncs": self._syncs,
            "failed_commits": self._failed_commits,
            "rows": self._rows,
            "checkpoints": self._checkpoints,
            "changelog_rows": len(self._changes),
            "changelog_bytes": self._changes.n_bytes,
            "folds": self._folds,
            "last_error": self._last_error,
        }

    # -- the end

    def close(self) -> None:
        """Put the log into the file, close it and give it up; a second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._forked:
                return
            if self._damaged:
                with self._keeping_log(True):
                    self._release()
                return
            with contextlib.suppress(sqlite3.Error, StoreError, MemoryError):
                self._settle_doubt()
                self._fold_all()
            self._mark = self._mark or first_mark(self._found_mark, self._file_mark)
            self._put_mark(NO_LOG)
            # The file may go on saying that it has a log: then there has to be one.
            unsaid = self._mark.state != NO_LOG
            if not unsaid:
                with contextlib.suppress(sqlite3.Error):
                    self._con.execute("PRAGMA busy_timeout = 0")
                    self._con.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            with self._keeping_log(unsaid):
                self._release()

    @contextlib.contextmanager
    def _keeping_log(self, keep: bool) -> Iterator[None]:
        """While the other connections are closed, keep SQLite from moving and removing the log.

        The last one to leave does that, unless it may only read. The log of a damaged file may be
        that of another one.
        """
        if not keep or size_of(self.path + "-wal") <= WAL_HEADER_BYTES:
            yield
            return
        with contextlib.closing(
            sqlite3.connect(f"file:{quote(self.path)}?mode=ro", uri=True, check_same_thread=False)
        ) as last:
            with contextlib.suppress(sqlite3.Error):
                last.execute("SELECT count(*) FROM sqlite_master").fetchone()
            yield

    def _release(self) -> None:
        with self._read_lock:
            if self._reader is not None:
                self._reader.close()
                self._reader = None
        con = getattr(self, "_con", None)
        if con is not None:
            con.close()
        self._close_descriptors()
        disclaim(self.path, self._key)
        if self._lock_fd >= 0:
            drop_lock(self.path, self._lock_fd)
            self._lock_fd = -1

    def _check_usable(self) -> None:
        if self._forked:
            raise ForkedError("the engine belongs to the parent process; open one of your own")
        if self._closed:
            raise ClosedError("the store is closed")

    def _check_open(self) -> None:
        """With the lock: that the store can be used, and that the log of changes is what the file has."""
        self._check_usable()
        self._settle_doubt()

    def _settle_doubt(self) -> None:
        if self._in_doubt:
            try:
                self._restore_changes()
            except sqlite3.Error as error:
                raise sqlite_fault(error, self.path) from error

    def _disown(self) -> None:
        # In a forked child. The lock of the parent must not outlive it in our copy of
        # the descriptor, and the connection must not be closed: that would touch the file.
        self._forked = True
        _abandoned.append((self._con, self._reader))
        self._lock = threading.Lock()
        self._read_lock = threading.Lock()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        # Those of data file and index only when SQLite has closed its own: its locks go with them.
        if self._index is not None:
            self._index.close()
            self._index = None
        for fd in (self._wal_fd, self._index_fd, self._data_fd):
            if fd >= 0:
                os.close(fd)
        self._wal_fd = self._index_fd = self._data_fd = -1


def _after_fork_in_child() -> None:
    for store in list(_stores):
        store._disown()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _split_payloads(inserts: list[object]) -> tuple[list[object], list[object]]:
    """Return the rows without their large payloads, and those as (seq, data)."""
    large = [
        i
        for i in range(4, len(inserts), INSERT_WIDTH)
        if (data := inserts[i]) is not None and len(cast(bytes, data)) > INLINE_DATA_BYTES
    ]
    payloads: list[object] = []
    if large:
        inserts = inserts.copy()
        for i in large:
            payloads += (inserts[i - 4], inserts[i])
            inserts[i] = b""
    return inserts, payloads


def _add_values(steps: list[_Step], values: list[_Value]) -> None:
    """Append the statements that write small values."""
    for table, key, value in values:
        at, column = ("id", "state") if table == "queues" else ("key", "value")
        if value is None:
            steps.append((f"DELETE FROM {table} WHERE {at} = ?", (key,)))
        else:
            steps.append((f"REPLACE INTO {table}({at}, {column}) VALUES (?,?)", (key, value)))


def _cut_up(
    steps: list[_Step],
    sql_of: Callable[[int], str],
    flat: Sequence[object],
    width: int,
    column: int | None = None,
) -> None:
    """Append the statements that carry the rows of ``flat``; ``column`` may hold heavy values."""
    if column is not None:
        heavy = {
            i - column
            for i in range(column, len(flat), width)
            if (value := flat[i]) is not None and len(cast(bytes, value)) > HEAVY_BYTES
        }
        if heavy:
            starts = range(0, len(flat), width)
            steps += [(sql_of(1), flat[i : i + width]) for i in starts if i in heavy]
            flat = [value for i in starts if i not in heavy for value in flat[i : i + width]]
    at = 0
    for size, n in _plan(len(flat) // width):
        part = flat[at : at + n * width]
        at += n * width
        if n < size:
            part = [*part, *(tuple(part[-width:]) * (size - n))]
        steps.append((sql_of(size), part))


def _schema(version: int) -> str:
    """What a version of the schema adds to the one before it."""
    name = "schema.sql" if version == 1 else f"schema-{version}.sql"
    return Path(__file__).with_name(name).read_text("utf-8")
