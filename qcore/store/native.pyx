"""Commits through SQLite's C interface, without the interpreter lock.

A step of the sqlite3 module gives the lock away and has to win it back; beside a
busy thread that costs more than the step. Here a whole cut is written by one call
that holds no lock at all. The library is the very one that the sqlite3 module uses:
its functions are looked up through that module's own file, since two copies of
SQLite in one process would drop each other's file locks. Where they cannot be found
(a module with SQLite linked into it and hidden), :func:`available` says so and the
sqlite3 module does the work.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset
from libc.time cimport time_t

from qcore.store.changelog cimport ENTRY_DELETE, ENTRY_UPDATE, SLOT_BYTES, ChangeLog, Entry, Page

import _sqlite3
import os
from qcore.store.base import SIDE_TABLES, STATE_UNREADABLE
from qcore.store.faults import commit_fault_of, fault_of
from qcore.store import sqlite
from qcore.store.sqlite import (
    BUSY_TIMEOUT_MS, CACHE_KIB, INLINE_DATA_BYTES, MAX_SEQ, MIN_SEQ, SqliteStore,
)

cdef extern from "dlfcn.h" nogil:
    void *dlopen(const char *name, int flags)
    void *dlsym(void *handle, const char *name)
    int RTLD_NOW
    int RTLD_NOLOAD

cdef extern from "time.h" nogil:
    cdef struct timespec:
        time_t tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec *t)
    int CLOCK_MONOTONIC

cdef extern from "sys/stat.h" nogil:
    cdef struct c_stat "stat":
        uint64_t st_dev
        uint64_t st_ino
    int c_stat_of "stat"(const char *path, c_stat *found)

# The part of sqlite3.h that is used; its interface is stable by promise.
ctypedef void *Db
ctypedef void *Stmt
ctypedef void (*destructor)(void *) noexcept nogil

cdef struct Api:
    int (*open_v2)(const char *, Db *, int, const char *) noexcept nogil
    int (*close_v2)(Db) noexcept nogil
    int (*prepare_v2)(Db, const char *, int, Stmt *, const char **) noexcept nogil
    int (*finalize)(Stmt) noexcept nogil
    int (*step)(Stmt) noexcept nogil
    int (*reset)(Stmt) noexcept nogil
    int (*bind_int64)(Stmt, int, int64_t) noexcept nogil
    int (*bind_blob)(Stmt, int, const void *, int, destructor) noexcept nogil
    int (*bind_text)(Stmt, int, const char *, int, destructor) noexcept nogil
    int (*bind_null)(Stmt, int) noexcept nogil
    int (*busy_timeout)(Db, int) noexcept nogil
    int (*extended_errcode)(Db) noexcept nogil
    const char *(*errmsg)(Db) noexcept nogil
    int (*get_autocommit)(Db) noexcept nogil
    int64_t (*column_int64)(Stmt, int) noexcept nogil
    int (*column_type)(Stmt, int) noexcept nogil
    const void *(*column_blob)(Stmt, int) noexcept nogil
    int (*column_bytes)(Stmt, int) noexcept nogil

cdef enum:
    SQLITE_OK = 0
    SQLITE_ROW = 100
    SQLITE_DONE = 101
    SQLITE_OPEN_READWRITE = 2
    SQLITE_OPEN_NOMUTEX = 0x8000        # the store's lock lets one thread in at a time
    SQLITE_INTEGER = 1
    SQLITE_BLOB = 4
    SQLITE_NULL = 5

cdef enum:
    ST_BEGIN, ST_COMMIT, ST_ROLLBACK
    ST_INSERT, ST_UPDATE, ST_DELETE, ST_DELETE_RUN
    ST_PAYLOAD, ST_DROP
    ST_NAME, ST_QUEUE, ST_NO_QUEUE, ST_META
    ST_PAGE
    ST_INSERTS
    N_STATEMENTS
    LEAST_RUN = 4               # neighbours that are deleted by one statement
    MOST_RUN = 256
    N_INSERTS = 16              # new rows that are inserted by one statement: each costs half of one alone
    N_SIDE = 32                 # a replacing and a deleting statement for each side table

cdef list _SQL = [
    "BEGIN IMMEDIATE",
    "COMMIT",
    "ROLLBACK",
    "REPLACE INTO jobs(seq, queue, state, record, data, result) VALUES (?,?,?,?,?,?)",
    "UPDATE jobs SET state = ?2, record = ?3, result = ?4 WHERE seq = ?1",
    "DELETE FROM jobs WHERE seq = ?",
    "DELETE FROM jobs WHERE seq BETWEEN ? AND ?",
    "REPLACE INTO payloads(seq, data) VALUES (?,?)",
    "DELETE FROM payloads WHERE seq = ?",
    "INSERT INTO names(id, text) VALUES (?,?) ON CONFLICT(id) DO UPDATE SET text = excluded.text",
    "REPLACE INTO queues(id, state) VALUES (?,?)",
    "DELETE FROM queues WHERE id = ?",
    "REPLACE INTO meta(key, value) VALUES (?,?)",
    "REPLACE INTO changelog(n, page) VALUES (?,?)",
    "REPLACE INTO jobs(seq, queue, state, record, data, result) VALUES " + ",".join(["(?,?,?,?,?,?)"] * N_INSERTS),
]
assert len(_SQL) == N_STATEMENTS

for _table in SIDE_TABLES:
    _SQL.append(f"REPLACE INTO {_table}(key, value) VALUES (?,?)")
    _SQL.append(f"DELETE FROM {_table} WHERE key = ?")
cdef dict _SIDE_STATEMENTS = {table: N_STATEMENTS + 2 * i for i, table in enumerate(SIDE_TABLES)}
_SIDE_STATEMENTS["queues"] = ST_QUEUE       # and the one after it
assert len(_SQL) <= N_STATEMENTS + N_SIDE

cdef Api api
cdef bint _loaded = False


cdef bint _load():
    global _loaded
    cdef void *handle
    cdef void **slots = <void **>&api
    cdef list names = ["open_v2", "close_v2", "prepare_v2", "finalize", "step", "reset", "bind_int64", "bind_blob",
                       "bind_text", "bind_null", "busy_timeout", "extended_errcode", "errmsg", "get_autocommit",
                       "column_int64", "column_type", "column_blob", "column_bytes"]
    cdef bytes name
    cdef Py_ssize_t i
    path = getattr(_sqlite3, "__file__", None)
    if path is None:
        return False
    encoded = os.fsencode(path)
    handle = dlopen(<const char *>encoded, RTLD_NOW | RTLD_NOLOAD)
    if handle == NULL:
        return False
    for i in range(len(names)):
        name = b"sqlite3_" + names[i].encode()
        slots[i] = dlsym(handle, name)
        if slots[i] == NULL:
            return False
    _loaded = True
    return True

_load()


def available():
    """Whether the C interface of the sqlite3 module's library can be reached."""
    return _loaded


class _Moved(Exception):
    """Data file or log were removed, renamed or replaced."""


@cython.final
cdef class _Connection:
    """A connection of its own to a file that the store has open, with its statements compiled once."""
    cdef Db db
    cdef Stmt statements[N_STATEMENTS + N_SIDE]
    cdef str path
    cdef bytes data_name, wal_name
    cdef const char *data_p
    cdef const char *wal_p
    cdef uint64_t data_dev, data_ino, wal_dev, wal_ino

    def __cinit__(self, str path not None, tuple data_key not None, tuple wal_key not None):
        cdef bytes name = os.fsencode(path)
        self.data_name, self.wal_name = name, name + b"-wal"
        self.data_p, self.wal_p = PyBytes_AS_STRING(self.data_name), PyBytes_AS_STRING(self.wal_name)
        self.data_dev, self.data_ino = data_key
        self.wal_dev, self.wal_ino = wal_key
        cdef int rc, i
        cdef bytes sql
        self.path = path
        rc = api.open_v2(name, &self.db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL)
        if rc != SQLITE_OK:
            self.close()
            raise fault_of(rc, "cannot be opened a second time", path)
        api.busy_timeout(self.db, BUSY_TIMEOUT_MS)
        for setting in ("synchronous = NORMAL", "wal_autocheckpoint = 0", f"cache_size = -{CACHE_KIB}",
                        "secure_delete = OFF"):
            self.run_sql("PRAGMA " + setting)
        for sql_text in sqlite.TRY_TO_WRITE:
            self.run_sql(sql_text)
        for i in range(<int>len(_SQL)):
            sql = _SQL[i].encode()
            rc = api.prepare_v2(self.db, sql, -1, &self.statements[i], NULL)
            if rc != SQLITE_OK:
                raise self.fault()

    def close(self):
        cdef int i
        for i in range(N_STATEMENTS + N_SIDE):
            if self.statements[i] != NULL:
                api.finalize(self.statements[i])
                self.statements[i] = NULL
        if self.db != NULL:
            api.close_v2(self.db)
            self.db = NULL

    def abandon(self):
        """In a forked child: forget the connection without touching the file."""
        memset(self.statements, 0, sizeof(self.statements))
        self.db = NULL

    def run_sql(self, str sql):
        """Run one statement and ignore its rows."""
        cdef Stmt st = NULL
        cdef bytes text = sql.encode()
        cdef int rc
        if api.prepare_v2(self.db, text, -1, &st, NULL) != SQLITE_OK:
            raise self.fault()
        rc = api.step(st)
        while rc == SQLITE_ROW:
            rc = api.step(st)
        api.finalize(st)
        if rc != SQLITE_DONE:
            raise self.fault()

    cdef object fault(self):
        return commit_fault_of(api.extended_errcode(self.db),
                               (<bytes>api.errmsg(self.db)).decode("utf-8", "replace"), self.path)

    cdef int c_step(self, int which) noexcept nogil:
        """Run a bound statement that gives no rows. SQLITE_DONE when it did."""
        cdef int rc = api.step(self.statements[which])
        api.reset(self.statements[which])
        return rc

    cdef int c_rows(self, ChangeLog changes) noexcept nogil:
        """Write staged rows. Bound bytes stay where they are: nothing is copied before SQLite does."""
        cdef Py_ssize_t i = 0, j, alone = 0
        cdef RowHead head
        cdef const uint8_t *record
        cdef const uint8_t *data
        cdef const uint8_t *result
        cdef Stmt st
        cdef Page *page
        cdef bint large
        cdef int rc
        while i < changes.n_direct:
            if i >= alone:
                j = c_n_new(changes, i)
                if j == N_INSERTS:
                    for j in range(N_INSERTS):
                        c_bind_row(self.statements[ST_INSERTS], 6 * <int>j, changes.direct[i + j], False)
                    rc = self.c_step(ST_INSERTS)
                    if rc != SQLITE_DONE:
                        return rc
                    i += N_INSERTS
                    continue
                alone = i + j + 1
            record = changes.direct[i]
            i += 1
            memcpy(&head, record, sizeof(RowHead))
            record += sizeof(RowHead)
            data = record + max(head.record_n, 0)
            result = data + max(head.data_n, 0)
            if head.op == ROW_UPDATE:
                rc = self.c_update(head.seq, head.state, record, head.record_n, result, head.result_n)
            elif head.op == ROW_DELETE:     # in the log: all but its payload
                api.bind_int64(self.statements[ST_DROP], 1, head.seq)
                rc = self.c_step(ST_DROP)
            else:
                large = head.data_n > INLINE_BYTES
                c_bind_row(self.statements[ST_INSERT], 0, changes.direct[i - 1], large)
                rc = self.c_step(ST_INSERT)
                if rc == SQLITE_DONE and large:
                    st = self.statements[ST_PAYLOAD]
                    api.bind_int64(st, 1, head.seq)
                    c_bind(st, 2, data, head.data_n)
                    rc = self.c_step(ST_PAYLOAD)
            if rc != SQLITE_DONE:
                return rc
        for i in range(changes.n_staged):
            page = changes.staged[i]
            api.bind_int64(self.statements[ST_PAGE], 1, page.slot)
            c_bind(self.statements[ST_PAGE], 2, page.bytes, SLOT_BYTES)
            rc = self.c_step(ST_PAGE)
            if rc != SQLITE_DONE:
                return rc
        return SQLITE_DONE

    cdef int c_update(self, int64_t seq, int64_t state, const uint8_t *record, int32_t record_n,
                      const uint8_t *result, int32_t result_n) noexcept nogil:
        cdef Stmt st = self.statements[ST_UPDATE]
        api.bind_int64(st, 1, seq)
        api.bind_int64(st, 2, state)
        c_bind(st, 3, record, record_n)
        c_bind(st, 4, result, result_n)
        return self.c_step(ST_UPDATE)

    cdef int c_delete(self, int64_t first, int64_t last) noexcept nogil:
        """Delete one row or a run of them."""
        cdef int which = ST_DELETE
        if first != last:
            which = ST_DELETE_RUN
            api.bind_int64(self.statements[which], 2, last)
        api.bind_int64(self.statements[which], 1, first)
        return self.c_step(which)

    cdef int c_fold(self, ChangeLog changes, int64_t most, int64_t end_ns, Py_ssize_t *done) noexcept nogil:
        """Move rows into their table, until there were ``most`` of them or it is late."""
        cdef Py_ssize_t i = changes.fold_at, n = min(changes.n_fold, i + most), look = i + 16, run
        cdef int64_t *seqs = changes.fold_seqs
        cdef Entry entry
        cdef int op, rc = SQLITE_DONE
        while i < n and rc == SQLITE_DONE:
            op = changes.c_find(seqs[i], &entry)
            run = 1
            if op == ENTRY_UPDATE:
                rc = self.c_update(entry.seq, entry.state, entry.record, entry.record_n, entry.result, entry.result_n)
            elif op == ENTRY_DELETE:
                while i + run < n and run < MOST_RUN and seqs[i + run] == seqs[i] + run \
                        and changes.c_find(seqs[i + run], &entry) == ENTRY_DELETE:
                    run += 1
                if run < LEAST_RUN:
                    run = 1
                rc = self.c_delete(seqs[i], seqs[i] + run - 1)
            i += run
            if i >= look:
                if c_now_ns() >= end_ns:
                    break
                look = i + 16
        done[0] = i - changes.fold_at
        return rc

    cdef int c_small(self, int which, object first, object second) except -1:
        """Run a statement with an integer or text key and an optional value, under the interpreter lock."""
        cdef Stmt st = self.statements[which]
        cdef bytes text = None, value = None
        if isinstance(first, int):
            api.bind_int64(st, 1, <int64_t>first)
        else:
            text = (<str>first).encode()
            api.bind_text(st, 1, PyBytes_AS_STRING(text), <int>PyBytes_GET_SIZE(text), NULL)
        if isinstance(second, str):
            value = (<str>second).encode()
            api.bind_text(st, 2, PyBytes_AS_STRING(value), <int>PyBytes_GET_SIZE(value), NULL)
        elif second is not None:
            value = second
            c_bind(st, 2, <const uint8_t *>PyBytes_AS_STRING(value), <int32_t>PyBytes_GET_SIZE(value))
        if self.c_step(which) != SQLITE_DONE:
            raise self.fault()
        return 0

    cdef bint c_in_place(self) noexcept nogil:
        """Whether the names of data file and log still mean what is open."""
        cdef c_stat found
        return (c_stat_of(self.data_p, &found) == 0
                and found.st_dev == self.data_dev and found.st_ino == self.data_ino
                and c_stat_of(self.wal_p, &found) == 0
                and found.st_dev == self.wal_dev and found.st_ino == self.wal_ino)

    cdef int c_begin(self) except -1:
        cdef int rc
        cdef bint here
        with nogil:
            here = self.c_in_place()
            rc = self.c_step(ST_BEGIN) if here else SQLITE_DONE
        if not here:
            raise _Moved
        if rc != SQLITE_DONE:
            raise self.fault()
        return 0

    cdef int c_end(self) except -1:
        cdef int rc
        with nogil:
            rc = self.c_step(ST_COMMIT)
        if rc != SQLITE_DONE:
            raise self.fault()
        return 0

    cdef int c_values(self, list values) except -1:
        for table, key, value in values:
            which = _SIDE_STATEMENTS[table]
            self.c_small(which if value is not None else which + 1, key, value)
        return 0

    def roll_back(self):
        if not api.get_autocommit(self.db):     # some errors have rolled back already
            self.c_step(ST_ROLLBACK)

    def commit(self, ChangeLog changes not None, object cut, list values not None):
        """One transaction with all that is staged, or nothing and a StoreFault."""
        cdef int rc = SQLITE_DONE
        cdef bint here, small = changes.staged_slots or cut.names or cut.meta or values
        try:
            # Most commits give the interpreter lock away once: beside a busy thread each return to it is a wait.
            with nogil:
                here = self.c_in_place()
                if here:
                    rc = self.c_step(ST_BEGIN)
                    if rc == SQLITE_DONE:
                        rc = self.c_rows(changes)
                    if rc == SQLITE_DONE and not small:
                        rc = self.c_step(ST_COMMIT)
            if not here:
                raise _Moved
            if rc != SQLITE_DONE:
                raise self.fault()
            if not small:
                return
            if changes.staged_slots:
                self.c_small(ST_PAGE, 0, changes.staged_first_row)
            for key, text in cut.names:
                self.c_small(ST_NAME, key, text)
            for key, value in cut.meta.items():
                self.c_small(ST_META, key, value)
            self.c_values(values)
            self.c_end()
        except BaseException:
            self.roll_back()
            raise

    def fold(self, ChangeLog changes not None, int64_t most, int64_t budget_ns, Py_ssize_t most_values):
        """Move a slice of the changes in one transaction: (rows, values) that were looked at."""
        cdef int rc
        cdef Py_ssize_t n_rows = 0, n_values
        self.c_begin()
        try:
            with nogil:
                rc = self.c_fold(changes, most, c_now_ns() + budget_ns, &n_rows)
            if rc != SQLITE_DONE:
                raise self.fault()
            n_values, values = changes.fold_values(n_rows, most_values)
            self.c_values(values)
            if changes.folds_all(n_rows, n_values):
                self.c_small(ST_PAGE, 0, changes.first_row_after_fold())
            self.c_end()
        except BaseException:
            self.roll_back()
            raise
        return n_rows, n_values

cdef int INLINE_BYTES = INLINE_DATA_BYTES


cdef int64_t c_now_ns() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <int64_t>t.tv_sec * 1000000000 + t.tv_nsec


cdef inline int c_bind(Stmt st, int column, const uint8_t *p, int32_t n) noexcept nogil:
    if n < 0:
        return api.bind_null(st, column)
    return api.bind_blob(st, column, p, n, NULL)    # NULL: SQLITE_STATIC, the bytes outlive the step


cdef inline void c_bind_row(Stmt st, int column, const uint8_t *p, bint large) noexcept nogil:
    """Bind a packed row from the column after this one on, without its data if they are large."""
    cdef RowHead head
    memcpy(&head, p, sizeof(RowHead))
    p += sizeof(RowHead)
    api.bind_int64(st, column + 1, head.seq)
    api.bind_int64(st, column + 2, head.queue)
    api.bind_int64(st, column + 3, head.state)
    c_bind(st, column + 4, p, head.record_n)
    p += max(head.record_n, 0)
    c_bind(st, column + 5, p, 0 if large else head.data_n)
    c_bind(st, column + 6, p + max(head.data_n, 0), head.result_n)


cdef inline Py_ssize_t c_n_new(ChangeLog changes, Py_ssize_t i) noexcept nogil:
    """How many rows from here on, at most ``N_INSERTS``, are small and come behind all those of the table."""
    cdef RowHead head
    cdef int64_t last = changes.max_seq
    cdef Py_ssize_t j, n = min(<Py_ssize_t>N_INSERTS, changes.n_direct - i)
    for j in range(n):
        memcpy(&head, changes.direct[i + j], sizeof(RowHead))
        if head.op != ROW_INSERT or head.seq <= last or head.data_n > INLINE_BYTES:
            return j
        last = head.seq
    return n


# Each page is read once, so a cache would only hold memory.
SCAN_CACHE_KIB = 1_000

cdef bytes _SCAN = b"SELECT seq, queue, state, record, data, result FROM jobs WHERE seq >= ? ORDER BY seq"
cdef bytes _GET_PAYLOAD = b"SELECT data FROM payloads WHERE seq = ?"
cdef uint8_t _NOTHING = 0
cdef int64_t MOST_SEQ = MAX_SEQ, LEAST_SEQ = MIN_SEQ, UNREADABLE = STATE_UNREADABLE


cdef inline int c_column(Stmt st, int column, const uint8_t **p, Py_ssize_t *n) noexcept nogil:
    """The bytes of a value, of whatever type; returns the type, or -1: no memory."""
    cdef int kind = api.column_type(st, column)
    n[0] = -1
    p[0] = NULL
    if kind == SQLITE_NULL:
        return kind
    p[0] = <const uint8_t *>api.column_blob(st, column)
    n[0] = api.column_bytes(st, column)
    if p[0] == NULL:
        if n[0] > 0:
            return -1
        p[0] = <const uint8_t *>&_NOTHING
    return kind


cdef object _bytes(const uint8_t *p, Py_ssize_t n):
    return None if n < 0 else PyBytes_FromStringAndSize(<const char *>p, n)


cdef tuple row_of(const RawRow *row):
    return (row.seq, row.queue, row.state, _bytes(row.record, row.record_n), _bytes(row.data, row.data_n),
            _bytes(row.result, row.result_n))


@cython.final
cdef class RowCursor:
    """The rows of jobs of a store in order of seq, as table and log of changes have them.

    They are read a page at a time, with no transaction open between the pages. A compiled
    caller gets them without an object being made; to others this is an iterator of rows.
    """

    def __cinit__(self, store not None):
        cdef _Connection connection = store._native
        self.store = store
        self.connection = connection
        self.db = connection.db
        self.first = LEAST_SEQ
        self.page = []
        if (api.prepare_v2(self.db, _SCAN, -1, &self.scan, NULL) != SQLITE_OK
                or api.prepare_v2(self.db, _GET_PAYLOAD, -1, &self.payload, NULL) != SQLITE_OK):
            raise self.c_fault()

    def __dealloc__(self):
        # A connection that was closed meanwhile waits for these.
        if self.scan != NULL:
            api.finalize(self.scan)
        if self.payload != NULL:
            api.finalize(self.payload)

    cdef object c_fault(self):
        return fault_of(api.extended_errcode(self.db) & 0xFF,
                        (<bytes>api.errmsg(self.db)).decode("utf-8", "replace"), self.store.path)

    cdef int c_begin(self) except -1:
        self.store._lock.acquire()
        try:
            self.store._check_open()
            self.connection.run_sql(f"PRAGMA cache_size = -{SCAN_CACHE_KIB}")
        except BaseException:
            self.store._lock.release()
            raise
        self.changes = self.store._changes
        self.left = sqlite.LOAD_PAGE_ROWS
        api.bind_int64(self.scan, 1, self.first)
        return 0

    cdef int c_end(self) except -1:
        api.reset(self.scan)
        api.reset(self.payload)
        try:
            self.connection.run_sql(f"PRAGMA cache_size = -{CACHE_KIB}")
        finally:
            self.store._lock.release()
        return 0

    cdef int c_next(self, RawRow *row) except -1:
        cdef Entry entry
        cdef int rc, op, queue_type, state_type, data_type
        while self.left > 0:
            rc = api.step(self.scan)
            if rc == SQLITE_DONE:
                self.over = True
                return 0
            if rc != SQLITE_ROW:
                raise self.c_fault()
            row.seq = api.column_int64(self.scan, 0)
            self.left -= 1
            if row.seq == MOST_SEQ:
                self.over = True
                self.left = 0
            else:
                self.first = row.seq + 1
            op = self.changes.c_find(row.seq, &entry)
            if op == ENTRY_DELETE:
                continue
            # As `_SELECT` has it: a number of the wrong type is none.
            queue_type = api.column_type(self.scan, 1)
            state_type = api.column_type(self.scan, 2)
            row.queue = api.column_int64(self.scan, 1) if queue_type == SQLITE_INTEGER else 0
            row.state = UNREADABLE
            if queue_type == SQLITE_INTEGER and state_type == SQLITE_INTEGER:
                row.state = api.column_int64(self.scan, 2)
            data_type = c_column(self.scan, 4, &row.data, &row.data_n)
            if data_type < 0:
                raise MemoryError
            if data_type == SQLITE_BLOB and row.data_n == 0:
                self.c_payload(row)
            if op == ENTRY_UPDATE:
                if row.state >= 0 or row.queue:     # see ChangeLog.merge
                    row.state = entry.state
                row.record, row.record_n = entry.record, entry.record_n
                row.result, row.result_n = entry.result, entry.result_n
            elif (c_column(self.scan, 3, &row.record, &row.record_n) < 0
                    or c_column(self.scan, 5, &row.result, &row.result_n) < 0):
                raise MemoryError
            return 1
        return 0

    cdef int c_seek(self, int64_t seq, RawRow *row) except -1:
        api.reset(self.scan)
        api.bind_int64(self.scan, 1, seq)
        self.left = 1
        return self.c_next(row) and row.seq == seq

    cdef int c_payload(self, RawRow *row) except -1:
        """Fetch the large payload of a row, if it has one."""
        cdef int rc
        api.reset(self.payload)
        api.bind_int64(self.payload, 1, row.seq)
        rc = api.step(self.payload)
        if rc == SQLITE_DONE:
            return 0
        if rc != SQLITE_ROW:
            raise self.c_fault()
        rc = c_column(self.payload, 0, &row.data, &row.data_n)
        if rc < 0:
            raise MemoryError
        if rc == SQLITE_NULL:
            row.data_n = 0
        return 0

    def __iter__(self):
        return self

    def __next__(self):
        cdef RawRow row
        while self.at == len(self.page):
            if self.over:
                raise StopIteration
            self.page = []
            self.at = 0
            self.c_begin()
            try:
                while self.c_next(&row):
                    self.page.append(row_of(&row))
            finally:
                self.c_end()
        self.at += 1
        return self.page[self.at - 1]


class NativeSqliteStore(SqliteStore):
    """A :class:`~qcore.store.sqlite.SqliteStore` whose commits take no interpreter lock.

    Same file, same promises; only the way in which rows are written differs.
    """

    #: Cuts may carry their rows packed.
    takes_packed = True

    def __init__(self, path):
        self._native = None
        super().__init__(path)
        try:
            self._native = _Connection(self.path, self._key, self._wal_key)
        except BaseException:
            self.close()
            raise

    def _write(self, cut, values):
        try:
            self._native.commit(self._changes, cut, values)
        except _Moved:
            raise self._moved_fault() from None
        self._moved = False

    def _pages(self):
        return RowCursor(self)

    def _fold_slice(self):
        if self._native is None:        # it could not be opened, and the file is closed again
            return super()._fold_slice()
        try:
            return self._native.fold(self._changes, sqlite.FOLD_ROWS, sqlite.FOLD_SLICE_NS, sqlite.FOLD_VALUES)
        except _Moved:
            raise self._moved_fault() from None

    def _do(self, sql):
        if self._native is None:        # it could not be opened, and the file is closed again
            super()._do(sql)
        else:
            self._native.run_sql(sql)

    def _release(self):
        if self._native is not None:
            self._native.close()
        super()._release()

    def _disown(self):
        if self._native is not None:
            self._native.abandon()
        super()._disown()
