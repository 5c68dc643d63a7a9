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
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

import _sqlite3
import os
from qcore.store.base import SIDE_TABLES, pack_rows
from qcore.store.sqlite import (
    BUSY_TIMEOUT_MS, CACHE_KIB, INLINE_DATA_BYTES, PAGE_BYTES, SqliteStore, commit_fault_of, fault_of,
)

cdef extern from "dlfcn.h" nogil:
    void *dlopen(const char *name, int flags)
    void *dlsym(void *handle, const char *name)
    int RTLD_NOW
    int RTLD_NOLOAD

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

cdef enum:
    SQLITE_OK = 0
    SQLITE_ROW = 100
    SQLITE_DONE = 101
    SQLITE_OPEN_READWRITE = 2
    SQLITE_OPEN_NOMUTEX = 0x8000        # the store's lock lets one thread in at a time

cdef enum:
    ST_BEGIN, ST_COMMIT, ST_ROLLBACK
    ST_INSERT, ST_UPDATE, ST_DELETE
    ST_PAYLOAD, ST_DROP
    ST_NAME, ST_QUEUE, ST_NO_QUEUE, ST_META
    N_STATEMENTS
    N_SIDE = 18                 # a replacing and a deleting statement for each side table

cdef list _SQL = [
    "BEGIN IMMEDIATE",
    "COMMIT",
    "ROLLBACK",
    "REPLACE INTO jobs(seq, queue, state, record, data, result) VALUES (?,?,?,?,?,?)",
    "UPDATE jobs SET state = ?2, record = ?3, result = ?4 WHERE seq = ?1",
    "DELETE FROM jobs WHERE seq = ?",
    "REPLACE INTO payloads(seq, data) VALUES (?,?)",
    "DELETE FROM payloads WHERE seq = ?",
    "INSERT INTO names(id, text) VALUES (?,?) ON CONFLICT(id) DO UPDATE SET text = excluded.text",
    "REPLACE INTO queues(id, state) VALUES (?,?)",
    "DELETE FROM queues WHERE id = ?",
    "REPLACE INTO meta(key, value) VALUES (?,?)",
]

for _table in SIDE_TABLES:
    _SQL.append(f"REPLACE INTO {_table}(key, value) VALUES (?,?)")
    _SQL.append(f"DELETE FROM {_table} WHERE key = ?")
cdef dict _SIDE_STATEMENTS = {table: N_STATEMENTS + 2 * i for i, table in enumerate(SIDE_TABLES)}
assert len(_SQL) <= N_STATEMENTS + N_SIDE

cdef Api api
cdef bint _loaded = False


cdef bint _load():
    global _loaded
    cdef void *handle
    cdef void **slots = <void **>&api
    cdef list names = ["open_v2", "close_v2", "prepare_v2", "finalize", "step", "reset", "bind_int64", "bind_blob",
                       "bind_text", "bind_null", "busy_timeout", "extended_errcode", "errmsg", "get_autocommit"]
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


@cython.final
cdef class _Connection:
    """A connection of its own to a file that the store has open, with its statements compiled once."""
    cdef Db db
    cdef Stmt statements[N_STATEMENTS + N_SIDE]
    cdef str path

    def __cinit__(self, str path not None):
        cdef bytes name = os.fsencode(path)
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

    cdef int c_rows(self, const uint8_t *p, Py_ssize_t n, bint payloads) noexcept nogil:
        """Write packed rows. Bound bytes stay where they are: nothing is copied before SQLite does."""
        cdef Py_ssize_t pos = 0
        cdef RowHead head
        cdef const uint8_t *record
        cdef const uint8_t *data
        cdef const uint8_t *result
        cdef Stmt st
        cdef bint large
        cdef int rc
        while pos < n:
            memcpy(&head, p + pos, sizeof(RowHead))
            pos += sizeof(RowHead)
            record = p + pos
            pos += max(head.record_n, 0)
            data = p + pos
            pos += max(head.data_n, 0)
            result = p + pos
            pos += max(head.result_n, 0)
            if head.op == ROW_UPDATE:
                st = self.statements[ST_UPDATE]
                api.bind_int64(st, 1, head.seq)
                api.bind_int64(st, 2, head.state)
                c_bind(st, 3, record, head.record_n)
                c_bind(st, 4, result, head.result_n)
                rc = self.c_step(ST_UPDATE)
            elif head.op == ROW_INSERT:
                large = head.data_n > INLINE_BYTES
                st = self.statements[ST_INSERT]
                api.bind_int64(st, 1, head.seq)
                api.bind_int64(st, 2, head.queue)
                api.bind_int64(st, 3, head.state)
                c_bind(st, 4, record, head.record_n)
                c_bind(st, 5, data, 0 if large else head.data_n)
                c_bind(st, 6, result, head.result_n)
                rc = self.c_step(ST_INSERT)
                if rc == SQLITE_DONE and large:
                    st = self.statements[ST_PAYLOAD]
                    api.bind_int64(st, 1, head.seq)
                    c_bind(st, 2, data, head.data_n)
                    rc = self.c_step(ST_PAYLOAD)
            else:
                api.bind_int64(self.statements[ST_DELETE], 1, head.seq)
                rc = self.c_step(ST_DELETE)
                if rc == SQLITE_DONE and payloads:
                    api.bind_int64(self.statements[ST_DROP], 1, head.seq)
                    rc = self.c_step(ST_DROP)
            if rc != SQLITE_DONE:
                return rc
        return SQLITE_DONE

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

    def commit(self, list packed, object cut, bint payloads):
        """One transaction with all of it, or nothing and a StoreFault."""
        cdef bytes rows
        cdef const uint8_t *p
        cdef Py_ssize_t n
        cdef int rc
        with nogil:
            rc = self.c_step(ST_BEGIN)
        if rc != SQLITE_DONE:
            raise self.fault()
        try:
            for rows in packed:
                p = <const uint8_t *>PyBytes_AS_STRING(rows)
                n = PyBytes_GET_SIZE(rows)
                with nogil:
                    rc = self.c_rows(p, n, payloads)
                if rc != SQLITE_DONE:
                    raise self.fault()
            for key, text in cut.names:
                self.c_small(ST_NAME, key, text)
            for key, state in cut.queues:
                if state is None:
                    self.c_small(ST_NO_QUEUE, key, None)
                else:
                    self.c_small(ST_QUEUE, key, state)
            for key, value in cut.meta.items():
                self.c_small(ST_META, key, value)
            for (table, key), value in cut.side.items():
                which = _SIDE_STATEMENTS[table]
                self.c_small(which if value is not None else which + 1, key, value)
            with nogil:
                rc = self.c_step(ST_COMMIT)
            if rc != SQLITE_DONE:
                raise self.fault()
        except BaseException:
            if not api.get_autocommit(self.db):     # some errors have rolled back already
                self.c_step(ST_ROLLBACK)
            raise

cdef int INLINE_BYTES = INLINE_DATA_BYTES


cdef inline int c_bind(Stmt st, int column, const uint8_t *p, int32_t n) noexcept nogil:
    if n < 0:
        return api.bind_null(st, column)
    return api.bind_blob(st, column, p, n, NULL)    # NULL: SQLITE_STATIC, the bytes outlive the step


class NativeSqliteStore(SqliteStore):
    """A :class:`~qcore.store.sqlite.SqliteStore` whose commits take no interpreter lock.

    Same file, same promises; only :meth:`commit` differs.
    """

    #: Cuts may carry their rows packed.
    takes_packed = True

    def __init__(self, path):
        self._native = None
        super().__init__(path)
        try:
            self._native = _Connection(self.path)
        except BaseException:
            self.close()
            raise

    def commit(self, cut, *, sync=False):
        """Write the whole cut in one transaction, or nothing."""
        cdef Py_ssize_t size
        with self._lock:
            self._check_open()
            packed = list(cut.packed)
            lists = pack_rows(cut)
            if lists:
                packed.append(lists)
            has_payloads = self._has_payloads or cut.has_large(INLINE_DATA_BYTES)
            native = self._native
            try:
                if sync is not self._sync_full:
                    native.run_sql("PRAGMA synchronous = " + ("FULL" if sync else "NORMAL"))
                    self._sync_full = sync
                native.commit(packed, cut, has_payloads)
            except BaseException as error:
                self._failed_commits += 1
                self._last_error = str(error)
                raise
            self._has_payloads = has_payloads
            self._last_error = None
            self._commits += 1
            self._syncs += sync
            self._rows += cut.n_jobs
            size = sum(map(len, packed))
            self._pages_due -= 2 + min(cut.n_jobs, 2 * size // PAGE_BYTES + 2) + size // PAGE_BYTES

    def _set(self, setting):
        self._native.run_sql("PRAGMA " + setting)

    def _release(self):
        if self._native is not None:
            self._native.close()
        super()._release()

    def _disown(self):
        if self._native is not None:
            self._native.abandon()
        super()._disown()
