"""The log of changes: what a commit alters in rows that exist, until it is moved into the tables.

To alter a row where it lies costs a page of the file, and finished jobs lie wherever
their priorities have scattered them. So a commit appends its changes to one page of a
log instead, and later a *fold* moves many of them into their tables, the last state of
each row only and in the order of the keys, so that each page is written once for many
rows. (The idea is that of the log-structured merge tree, O'Neil et al. 1996, with one
level in memory and the B-tree of SQLite below it.)

The log lies in a table of the same file, in rows of one page each that are written again
once they are folded: a commit of a few changes dirties one page and nothing else.
New rows are not logged, they are appended to their table at once; neither are large
changes. For those a mark in the log says that what it says of the row is out of date.

Entries carry whole states, never differences: to apply one twice is to apply it once.
So a fold may be cut into slices and broken off anywhere; while the log counts, what it
says wins over the tables.

This module knows no database. Its caller stages a cut, writes what was staged in one
transaction, and then accepts or drops it. Thread-safety: none, the caller has a lock.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from qcore.store.native cimport ROW_DELETE, ROW_INSERT, RowHead
from qcore.store.varint cimport unzigzag, varint_get, varint_put, zigzag

import msgpack

from qcore.store.base import SIDE_TABLES, StoreFault

cdef enum:
    VERSION = 1
    BLOCK_SHIFT = 5             # about as many rows lie on a page of the jobs table

#: The log is folded when it says something of so many rows, and of so many in each neighbourhood ...
FOLD_ROWS = 2048
ROWS_A_BLOCK = 16
#: ... or when it has so many pages, and one for each neighbourhood ...
FOLD_PAGES = 256
BLOCKS_A_PAGE = 1
#: ... or so many, and that many for each neighbourhood: the same rows over and over ...
FOLD_FEW_PAGES = 32
PAGES_A_BLOCK = 4
#: ... or so many, whatever they hold ...
MOST_PAGES = 8192
#: ... or when so much was added beside it, while rows that are gone keep their place ...
FOLD_BYTES = 2 * 1024 * 1024
#: ... or this part of the file.
FOLD_PART = 0.25

PAGE_BYTES = SLOT_BYTES
FIRST_SLOTS = 16

_TABLES = frozenset((*SIDE_TABLES, "queues"))


cdef struct Buffer:
    const uint8_t *p
    Py_ssize_t n


# --- a map of numbers ----------------------------------------------------------------------

cdef inline size_t _home(const Map *m, int64_t key) noexcept nogil:
    return <size_t>((<uint64_t>key * <uint64_t>0x9E3779B97F4A7C15) >> 20) & (m.size - 1)


cdef uint64_t map_find(const Map *m, int64_t key) noexcept nogil:
    cdef size_t i
    if m.n == 0:
        return 0
    i = _home(m, key)
    while m.values[i]:
        if m.keys[i] == key:
            return m.values[i]
        i = (i + 1) & (m.size - 1)
    return 0


cdef bint map_put(Map *m, int64_t key, uint64_t value) noexcept nogil:
    """Whether the key is new. There must be room."""
    cdef size_t i = _home(m, key)
    while m.values[i]:
        if m.keys[i] == key:
            m.values[i] = value
            return False
        i = (i + 1) & (m.size - 1)
    m.keys[i] = key
    m.values[i] = value
    m.n += 1
    return True


cdef int map_reserve(Map *m, size_t n) noexcept nogil:
    """Make room for ``n`` keys in all. -1 without memory, and nothing has changed."""
    cdef Map wider
    cdef size_t i
    if n * 2 <= m.size:
        return 0
    wider.n = 0
    wider.size = 64
    while wider.size < n * 2:
        wider.size *= 2
    wider.keys = <int64_t *>malloc(wider.size * sizeof(int64_t))
    wider.values = <uint64_t *>calloc(wider.size, sizeof(uint64_t))
    if wider.keys == NULL or wider.values == NULL:
        free(wider.keys)
        free(wider.values)
        return -1
    for i in range(m.size):
        if m.values[i]:
            map_put(&wider, m.keys[i], m.values[i])
    free(m.keys)
    free(m.values)
    m[0] = wider
    return 0


cdef void map_free(Map *m) noexcept nogil:
    free(m.keys)
    free(m.values)
    memset(m, 0, sizeof(Map))


# --- entries ---------------------------------------------------------------------------------

cdef Py_ssize_t _read_entry(const uint8_t *p, Py_ssize_t at, Py_ssize_t end, Entry *entry) noexcept nogil:
    """Read the entry at ``at``; where the next one begins, -1 for one that cannot be."""
    cdef uint64_t seq = 0, state = 0, record_n = 0, result_n = 0
    if at >= end:
        return -1
    entry.op = p[at]
    at += 1
    entry.seq = 0
    entry.record_n = 0
    entry.result_n = -1
    if entry.op == ENTRY_SIDE:
        at = varint_get(p, at, end, &record_n)
        if at < 0 or record_n > <uint64_t>(end - at):
            return -1
        entry.record = p + at
        entry.record_n = <int32_t>record_n
        return at + <Py_ssize_t>record_n
    if not ENTRY_UPDATE <= entry.op <= ENTRY_WRITTEN:
        return -1
    at = varint_get(p, at, end, &seq)
    if at < 0:
        return -1
    entry.seq = unzigzag(seq)
    if entry.op != ENTRY_UPDATE:
        return at
    at = varint_get(p, at, end, &state)
    if at < 0:
        return -1
    at = varint_get(p, at, end, &record_n)
    if at < 0:
        return -1
    at = varint_get(p, at, end, &result_n)
    if at < 0 or record_n > <uint64_t>(end - at) or result_n > <uint64_t>(end - at) - record_n + 1:
        return -1
    entry.state = <uint32_t>state
    entry.record = p + at
    entry.record_n = <int32_t>record_n
    at += <Py_ssize_t>record_n
    entry.result = p + at
    entry.result_n = <int32_t>result_n - 1
    return at + max(entry.result_n, 0)


cdef Py_ssize_t _note(SlotHead *head, Py_ssize_t at, Map *places, Map *blocks) noexcept nogil:
    """Note the row of an entry that can be read, in maps that have room; where the next one begins."""
    cdef Entry entry
    cdef Py_ssize_t following = _read_entry(<const uint8_t *>head + sizeof(SlotHead), at, head.used, &entry)
    if entry.op != ENTRY_SIDE and map_put(places, entry.seq, head.ordinal << 12 | <uint64_t>at):
        map_put(blocks, entry.seq >> BLOCK_SHIFT, 1)
    return following


cdef uint64_t _check_of(const SlotHead *head, const uint8_t *p) noexcept nogil:
    cdef uint64_t sum_ = head.ordinal * <uint64_t>0xD6E8FEB86659FD93 + head.used
    cdef uint64_t word
    cdef uint32_t at = 0
    while at < head.used:
        word = 0
        memcpy(&word, p + at, min(8, head.used - at))
        sum_ = (sum_ ^ word) * <uint64_t>0x9E3779B97F4A7C15
        sum_ ^= sum_ >> 29
        at += 8
    return sum_


cdef inline SlotHead *_head(Page *page) noexcept nogil:
    return <SlotHead *>page.bytes


cdef bytes _first_row(uint64_t base, uint64_t n_slots):
    """What row 0 holds: the ordinal of the first page that counts, how many pages there are, a check."""
    cdef uint64_t sum_ = (base * <uint64_t>0xD6E8FEB86659FD93 ^ n_slots) * <uint64_t>0x9E3779B97F4A7C15
    sum_ ^= sum_ >> 29
    return b"".join(int(n).to_bytes(8, "little") for n in (base, n_slots, sum_))


cdef void _sort(int64_t *a, int64_t *spare, Py_ssize_t n) noexcept nogil:
    """Sort numbers by their bytes, the lowest first. O(n) for each byte in which they differ."""
    cdef Py_ssize_t counts[256]
    cdef Py_ssize_t i, at, here
    cdef int shift
    cdef uint64_t key
    cdef int64_t *from_ = a
    cdef int64_t *to = spare
    for shift in range(0, 64, 8):
        memset(counts, 0, sizeof(counts))
        for i in range(n):
            counts[((<uint64_t>from_[i] ^ (<uint64_t>1 << 63)) >> shift) & 255] += 1
        key = <uint64_t>from_[0] ^ (<uint64_t>1 << 63)
        if counts[(key >> shift) & 255] == n:
            continue
        at = 0
        for i in range(256):
            here = counts[i]
            counts[i] = at
            at += here
        for i in range(n):
            key = ((<uint64_t>from_[i] ^ (<uint64_t>1 << 63)) >> shift) & 255
            to[counts[key]] = from_[i]
            counts[key] += 1
        from_, to = to, from_
    if from_ != a:
        memcpy(a, from_, n * sizeof(int64_t))


def _key_order(row):
    """The order of SQLite, also where a damaged key has another type."""
    key = row[0]
    return (isinstance(key, str), key)


# --- the log ---------------------------------------------------------------------------------

@cython.final
cdef class ChangeLog:
    """What has changed in rows since it was last folded. Memory: the pages, and 32 bytes for each row."""

    def __cinit__(self):
        self.base = 1
        self.side = {}
        self.side_after = {}
        self.staged_side = []
        self.fold_side = []
        self.max_seq = self.staged_max = INT64_MIN

    def __dealloc__(self):
        cdef Py_ssize_t i
        self.c_drop_staged()
        for i in range(self.n_pages):
            free(self.pages[i])
        free(self.pages)
        free(self.staged)
        free(self.free_slots)
        free(self.direct)
        free(self.fold_seqs)
        map_free(&self.places)
        map_free(&self.blocks)

    def __len__(self):
        """Rows and small values that the log says something about."""
        return self.places.n + len(self.side)

    @property
    def n_bytes(self):
        """Bytes of the pages that count."""
        return self.n_pages * SLOT_BYTES

    @property
    def n_staged_pages(self):
        return self.n_staged

    @property
    def n_written_bytes(self):
        """Bytes of the staged rows that are written where they belong."""
        return self.direct_bytes

    @property
    def n_scattered(self):
        """Those of them that replace a row or alter it, so that they lie anywhere."""
        return self.n_replaced

    @property
    def wants_fold(self):
        """Whether it is time to fold."""
        cdef Py_ssize_t rows = self.places.n, blocks = self.blocks.n
        if self.folding or self.n_pages == 0:
            return False
        return (
            rows >= FOLD_ROWS and rows >= ROWS_A_BLOCK * blocks
            or self.n_pages >= FOLD_PAGES and BLOCKS_A_PAGE * self.n_pages >= blocks
            or self.n_pages >= FOLD_FEW_PAGES and self.n_pages >= PAGES_A_BLOCK * blocks
            or self.n_pages >= MOST_PAGES
            or self.deletes and self.grown_bytes >= FOLD_BYTES and self.grown_bytes >= self.file_bytes * FOLD_PART
        )

    def _check(self):
        """Walk the log and compare what is noted with it. O(entries)."""
        cdef dict places = {}, side = {}
        cdef Py_ssize_t i, at, following
        cdef SlotHead *head
        cdef Entry entry
        cdef set slots = set()
        assert self.n_staged == self.n_entries == self.n_direct == 0 and not self.staged_side
        for i in range(self.n_pages):
            head = _head(self.pages[i])
            assert head.ordinal == self.base + <uint64_t>i, (head.ordinal, self.base, i)
            slots.add(self.pages[i].slot)
            at = 0
            while at < <Py_ssize_t>head.used:
                following = _read_entry(<const uint8_t *>head + sizeof(SlotHead), at, head.used, &entry)
                assert following > at
                if entry.op == ENTRY_SIDE:
                    table, key, *value = msgpack.unpackb(
                        PyBytes_FromStringAndSize(<char *>entry.record, entry.record_n))
                    side[table, key] = value[0] if value else ...
                else:
                    places[entry.seq] = head.ordinal << 12 | <uint64_t>at
                    assert entry.seq <= self.max_seq
                at = following
        for i in range(self.n_free):
            slots.add(self.free_slots[i])
        assert slots == set(range(1, self.n_slots + 1)), (slots, self.n_slots)
        assert len(slots) == self.n_pages + self.n_free
        assert side == self.side, (side, self.side)
        assert <Py_ssize_t>self.places.n == len(places)
        for seq, place in places.items():
            assert map_find(&self.places, seq) == place, (seq, place)
            assert map_find(&self.blocks, seq >> BLOCK_SHIFT)
        assert <Py_ssize_t>self.blocks.n == len({seq >> BLOCK_SHIFT for seq in places})

    # -- from the file

    def restore(self, first, rows, max_seq):
        """Begin with what the file holds: row 0, the other rows, and the largest seq of the jobs table.

        :raises StoreFault: a page is damaged or missing
        """
        cdef Page *page
        cdef SlotHead *head
        cdef uint64_t ordinal
        cdef dict found = {}
        cdef bytes content
        cdef int64_t slot
        if not isinstance(first, bytes) or first != _first_row(
                int.from_bytes(first[:8], "little"), int.from_bytes(first[8:16], "little")):
            raise StoreFault("the log of changes has lost its beginning", "corrupt")
        self.base = int.from_bytes(first[:8], "little")
        self.max_seq = INT64_MIN if max_seq is None else max_seq
        for slot, value in rows:
            if not isinstance(value, bytes) or len(value) != SLOT_BYTES:
                raise StoreFault(f"page {slot} of the log of changes has not its {SLOT_BYTES} bytes", "corrupt")
            self.n_slots += 1
            if slot != self.n_slots:
                raise StoreFault(f"page {self.n_slots} of the log of changes is missing", "corrupt")
            content = value
            head = <SlotHead *>PyBytes_AS_STRING(content)
            if head.ordinal == 0 and head.check == 0 and head.used == 0 and head.version == 0:
                self.c_push_free(slot)
                continue
            # One that no longer counts is looked at as well: what says so may be the damage.
            if head.version != VERSION or head.used > SLOT_BYTES - sizeof(SlotHead) \
                    or head.check != _check_of(head, <const uint8_t *>head + sizeof(SlotHead)):
                raise StoreFault(f"page {slot} of the log of changes is damaged", "corrupt")
            if head.ordinal < self.base:
                self.c_push_free(slot)
                continue
            if head.ordinal in found:
                raise StoreFault(f"the log of changes has page {head.ordinal} twice", "corrupt")
            found[head.ordinal] = (slot, content)
        if first != _first_row(self.base, self.n_slots):
            raise StoreFault(f"the log of changes has {self.n_slots} pages, expected "
                             f"{int.from_bytes(first[8:16], 'little')}", "corrupt")
        self.c_fit_pages(len(found))
        for ordinal in range(self.base, self.base + <uint64_t>len(found)):
            if ordinal not in found:
                raise StoreFault(f"the log of changes lacks page {ordinal}", "corrupt")
            slot, content = found.pop(ordinal)
            page = <Page *>malloc(sizeof(Page))
            if page == NULL:
                raise MemoryError
            page.slot = slot
            page.is_new = False
            memcpy(page.bytes, PyBytes_AS_STRING(content), SLOT_BYTES)
            self.pages[self.n_pages] = page
            self.n_pages += 1
            self.c_index(page)
        # What the last process left is not continued: a page that is whole stays as it is.
        self.sealed = True

    cdef int c_fit_pages(self, Py_ssize_t n) except -1:
        cdef Page **wider
        if n > self.cap_pages:
            n = max(n, 2 * self.cap_pages)
            wider = <Page **>realloc(self.pages, n * sizeof(Page *))
            if wider == NULL:
                raise MemoryError
            self.pages = wider
            self.cap_pages = n
        return 0

    cdef int c_fit_free(self, Py_ssize_t n) except -1:
        cdef int64_t *wider
        if n > self.cap_free:
            n = max(n, 2 * self.cap_free)
            wider = <int64_t *>realloc(self.free_slots, n * sizeof(int64_t))
            if wider == NULL:
                raise MemoryError
            self.free_slots = wider
            self.cap_free = n
        return 0

    cdef int c_push_free(self, int64_t slot) except -1:
        self.c_fit_free(self.n_free + 1)
        self.free_slots[self.n_free] = slot
        self.n_free += 1
        return 0

    cdef int c_index(self, Page *page) except -1:
        """Note the entries of a page that comes from the file."""
        cdef SlotHead *head = _head(page)
        cdef Py_ssize_t at = 0
        cdef const uint8_t *p = <const uint8_t *>head + sizeof(SlotHead)
        cdef Py_ssize_t following
        cdef Entry entry
        while at < <Py_ssize_t>head.used:
            following = _read_entry(p, at, head.used, &entry)
            if following < 0:
                raise StoreFault(f"page {page.slot} of the log of changes cannot be read", "corrupt")
            if entry.op == ENTRY_SIDE:
                self.c_index_side(PyBytes_FromStringAndSize(<char *>entry.record, entry.record_n))
            else:
                if map_reserve(&self.places, self.places.n + 1) < 0 or map_reserve(&self.blocks, self.blocks.n + 1) < 0:
                    raise MemoryError
                if map_put(&self.places, entry.seq, head.ordinal << 12 | <uint64_t>at):
                    map_put(&self.blocks, entry.seq >> BLOCK_SHIFT, 1)
                self.max_seq = max(self.max_seq, entry.seq)
            at = following
        return 0

    cdef int c_index_side(self, bytes packed) except -1:
        try:
            table, key, *value = msgpack.unpackb(packed)
        except (ValueError, TypeError):
            raise StoreFault("a small value in the log of changes cannot be read", "corrupt") from None
        if table not in _TABLES or len(value) > 1:
            raise StoreFault(f"the log of changes names a table {table!r}, which this program does not know", "corrupt")
        self.side[table, key] = value[0] if value else ...
        return 0

    cdef int c_index_from(self, Py_ssize_t first, Map *places, Map *blocks) noexcept nogil:
        """Note the rows that the pages from ``first`` on hold. -1 without memory."""
        cdef Py_ssize_t i, at
        cdef SlotHead *head
        for i in range(first, self.n_pages):
            head = _head(self.pages[i])
            at = 0
            while at < <Py_ssize_t>head.used:
                if map_reserve(places, places.n + 1) < 0 or map_reserve(blocks, blocks.n + 1) < 0:
                    return -1
                at = _note(head, at, places, blocks)
        return 0

    # -- reading

    cdef int c_find(self, int64_t seq, Entry *entry) noexcept nogil:
        """The last entry of a row, or 0."""
        cdef uint64_t place = map_find(&self.places, seq)
        cdef Page *page
        if not place:
            return 0
        page = self.pages[(place >> 12) - self.base]
        _read_entry(page.bytes + sizeof(SlotHead), place & 4095, _head(page).used, entry)
        return entry.op

    @property
    def stamp(self):
        """While this stays the same, and is not -1, table and log may be asked one after the other.

        Most commits take nothing away from what the two say together: they append to the
        log, or add rows. Those that replace a row, or drop a payload, and the end of a
        fold change the stamp; it is -1 while such a commit is under way.
        """
        return -1 if self.replaces else self.version

    def merge(self, list rows not None, bint payloads):
        """Rows as they are in their table, with what the log says of them; without ``payloads`` no result."""
        cdef list out
        cdef Entry entry
        cdef int op
        if self.places.n == 0:
            return rows
        out = []
        for row in rows:
            op = self.c_find(row[0], &entry)
            if op == ENTRY_UPDATE:
                seq, queue, state, _, data, _ = row
                if state >= 0 or queue:     # else the queue is unreadable: no state makes that good
                    state = entry.state
                row = (seq, queue, state, PyBytes_FromStringAndSize(<char *>entry.record, entry.record_n), data,
                       PyBytes_FromStringAndSize(<char *>entry.result, entry.result_n)
                       if payloads and entry.result_n >= 0 else None)
            if op != ENTRY_DELETE:
                out.append(row)
        return out

    def merge_side(self, str table not None, list rows not None):
        """Rows of a table of small values as the log has them, in order of the keys."""
        changed = {key: value for (of, key), value in self.side.items() if of == table and value is not ...}
        if not changed:
            return rows
        merged = [(key, changed.pop(key, value)) for key, value in rows if changed.get(key, value) is not None
                  or key not in changed]
        merged += [(key, value) for key, value in changed.items() if value is not None]
        merged.sort(key=_key_order)
        return merged

    # -- committing

    def stage(self, list packed not None, list side not None):
        """Divide a cut: what is appended to the log, and what is written where it belongs.

        ``packed`` has its rows, ``side`` its small values as (table, key, value). Returns
        the small values of the second kind; :meth:`written_rows` has the rows, whose
        bytes are those of ``packed``. Ends with :meth:`accept` or :meth:`drop`.
        """
        cdef bytes body
        cdef Py_ssize_t n
        cdef list written = []
        cdef uint8_t *room
        self.drop()
        self.staged_max = self.max_seq
        if packed:
            self.c_stage_all(packed)
        for table, key, value in side:
            if table not in _TABLES:
                self.drop()
                raise ValueError(f"no table {table!r} of small values")
            if isinstance(key, int) and not INT64_MIN <= key <= INT64_MAX:
                self.drop()
                raise OverflowError(f"key {key} of {table} does not fit into 64 bits")
            body = msgpack.packb((table, key, value))
            if PyBytes_GET_SIZE(body) > ENTRY_MOST:
                written.append((table, key, value))
                if (table, key) not in self.side:
                    continue
                value = ...
                body = msgpack.packb((table, key))      # fits: there is an entry that says more
            room = self.c_room(PyBytes_GET_SIZE(body) + 4)
            if room == NULL:
                self.drop()
                raise MemoryError
            room[0] = ENTRY_SIDE
            n = varint_put(room, 1, PyBytes_GET_SIZE(body))
            memcpy(room + n, PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))
            self.c_used(n + PyBytes_GET_SIZE(body))
            self.staged_side.append(((table, key), value))
        if map_reserve(&self.places, self.places.n + self.n_entries) < 0 \
                or map_reserve(&self.blocks, self.blocks.n + self.n_entries) < 0:
            self.drop()
            raise MemoryError
        self.c_fit_pages(self.n_pages + self.n_staged)
        for n in range(self.n_staged):
            _head(self.staged[n]).check = _check_of(_head(self.staged[n]), self.staged[n].bytes + sizeof(SlotHead))
        return written

    cdef void c_used(self, Py_ssize_t n) noexcept nogil:
        _head(self.staged[self.n_staged - 1]).used += <uint32_t>n
        self.n_entries += 1

    cdef int c_stage_all(self, list packed) except -1:
        """Stage the rows of all buffers, without the interpreter lock: each return to it would be a wait."""
        cdef bytes rows
        cdef Py_ssize_t i = 0, n = len(packed)
        cdef int rc = 0
        cdef Buffer *buffers = <Buffer *>malloc(n * sizeof(Buffer))
        if buffers == NULL:
            raise MemoryError
        try:
            for rows in packed:
                buffers[i].p = <const uint8_t *>PyBytes_AS_STRING(rows)
                buffers[i].n = PyBytes_GET_SIZE(rows)
                i += 1
            with nogil:
                for i in range(n):
                    rc = self.c_stage_rows(buffers[i].p, buffers[i].n)
                    if rc < 0:
                        break
        finally:
            free(buffers)
        if rc < 0:
            self.drop()
            raise MemoryError
        return 0

    cdef int c_stage_rows(self, const uint8_t *p, Py_ssize_t n) noexcept nogil:
        """Stage packed rows. -1 without memory."""
        cdef Py_ssize_t pos = 0, at
        cdef RowHead head
        cdef Entry entry
        cdef const uint8_t *start
        cdef const uint8_t *record
        cdef uint8_t *room
        cdef int op
        while pos < n:
            start = p + pos
            memcpy(&head, start, sizeof(RowHead))
            record = start + sizeof(RowHead)
            pos += sizeof(RowHead) + max(head.record_n, 0) + max(head.data_n, 0) + max(head.result_n, 0)
            if head.op == ROW_INSERT:
                if head.seq > self.staged_max:
                    self.staged_max = head.seq
                else:
                    self.n_replaced += 1
                    self.replaces = True
                    if ENTRY_UPDATE <= self.c_find(head.seq, &entry) <= ENTRY_DELETE \
                            and self.c_append_key(ENTRY_WRITTEN, head.seq) < 0:
                        return -1
                self.direct_bytes += p + pos - start
                if self.c_direct(start) < 0:
                    return -1
                continue
            if head.seq > self.staged_max:
                continue                    # there is no such row, and an update makes none
            if head.seq > self.max_seq:     # added by this very cut: the table alone has what it no longer is
                self.replaces = True
            if head.op == ROW_DELETE:
                if self.c_append_key(ENTRY_DELETE, head.seq) < 0:
                    return -1
                if self.has_payloads:
                    self.replaces = True
                    if self.c_direct(start) < 0:
                        return -1
                self.n_deletes += 1
                continue
            op = self.c_find(head.seq, &entry)
            if op == ENTRY_DELETE:
                continue
            if head.record_n < 0 or <int64_t>head.record_n + head.result_n > ENTRY_MOST:
                if op == ENTRY_UPDATE:
                    self.replaces = True
                    if self.c_append_key(ENTRY_WRITTEN, head.seq) < 0:
                        return -1
                if self.c_direct(start) < 0:
                    return -1
                self.n_replaced += 1
                self.direct_bytes += p + pos - start
                continue
            room = self.c_room(head.record_n + max(head.result_n, 0) + 26)
            if room == NULL:
                return -1
            room[0] = ENTRY_UPDATE
            at = varint_put(room, 1, zigzag(head.seq))
            at = varint_put(room, at, head.state)
            at = varint_put(room, at, head.record_n)
            at = varint_put(room, at, head.result_n + 1)
            memcpy(room + at, record, head.record_n)
            at += head.record_n
            if head.result_n > 0:
                memcpy(room + at, record + head.record_n + max(head.data_n, 0), head.result_n)
                at += head.result_n
            self.c_used(at)
        return 0

    cdef int c_append_key(self, int op, int64_t seq) noexcept nogil:
        cdef uint8_t *room = self.c_room(11)
        if room == NULL:
            return -1
        room[0] = op
        self.c_used(varint_put(room, 1, zigzag(seq)))
        return 0

    cdef int c_direct(self, const uint8_t *p) noexcept nogil:
        cdef const uint8_t **wider
        if self.n_direct == self.cap_direct:
            wider = <const uint8_t **>realloc(self.direct, (2 * self.cap_direct + 64) * sizeof(const uint8_t *))
            if wider == NULL:
                return -1
            self.direct = wider
            self.cap_direct = 2 * self.cap_direct + 64
        self.direct[self.n_direct] = p
        self.n_direct += 1
        return 0

    cdef uint8_t *c_room(self, Py_ssize_t n) noexcept nogil:
        """Where an entry of at most ``n`` bytes is written; NULL without memory."""
        cdef Page *page = NULL
        if self.n_staged:
            page = self.staged[self.n_staged - 1]
        elif self.n_pages and not self.sealed \
                and sizeof(SlotHead) + _head(self.pages[self.n_pages - 1]).used + n <= SLOT_BYTES:
            page = self.c_new_page()
            if page == NULL:
                return NULL
            memcpy(page, self.pages[self.n_pages - 1], sizeof(Page))
            page.is_new = False
            self.stages_tail = True
            self.tail_used = _head(page).used
        if page == NULL or sizeof(SlotHead) + _head(page).used + n > SLOT_BYTES:
            page = self.c_new_page()
            if page == NULL:
                return NULL
            _head(page).ordinal = self.base + self.n_pages + self.n_staged - 1 - self.stages_tail
            _head(page).version = VERSION
            if self.n_free:
                self.n_free -= 1
                page.slot = self.free_slots[self.n_free]
            else:
                self.staged_slots += 1
                page.slot = self.n_slots + self.staged_slots
                page.is_new = True
        return page.bytes + sizeof(SlotHead) + _head(page).used

    cdef Page *c_new_page(self) noexcept nogil:
        cdef Page **wider
        cdef Page *page
        if self.n_staged == self.cap_staged:
            wider = <Page **>realloc(self.staged, (2 * self.cap_staged + 16) * sizeof(Page *))
            if wider == NULL:
                return NULL
            self.staged = wider
            self.cap_staged = 2 * self.cap_staged + 16
        page = <Page *>calloc(1, sizeof(Page))
        if page != NULL:
            self.staged[self.n_staged] = page
            self.n_staged += 1
        return page

    cdef void c_drop_staged(self) noexcept nogil:
        cdef Py_ssize_t i
        cdef Page *page
        for i in range(self.n_staged - 1, -1, -1):
            page = self.staged[i]
            if page.slot and not page.is_new and not (i == 0 and self.stages_tail):
                self.free_slots[self.n_free] = page.slot        # it came from there, so there is room
                self.n_free += 1
            free(page)
        self.n_staged = self.n_entries = self.n_direct = self.n_replaced = self.direct_bytes = self.staged_slots = 0
        self.n_deletes = 0
        self.stages_tail = False
        self.version += self.replaces
        self.replaces = False

    def drop(self):
        """The cut was not committed: forget what was staged."""
        self.c_drop_staged()
        self.staged_side = []

    def accept(self):
        """The cut was committed: what was staged counts from now on."""
        cdef Py_ssize_t i, at
        cdef Page *page
        for i in range(self.n_staged):
            page = self.staged[i]
            page.is_new = False
            at = 0
            if i == 0 and self.stages_tail:
                free(self.pages[self.n_pages - 1])
                self.pages[self.n_pages - 1] = page
                at = self.tail_used
            else:
                self.pages[self.n_pages] = page
                self.n_pages += 1
                self.sealed = False
            while at < <Py_ssize_t>_head(page).used:     # there is room
                at = _note(_head(page), at, &self.places, &self.blocks)
        self.max_seq = self.staged_max
        self.grown_bytes += self.direct_bytes
        self.deletes = self.deletes or self.n_deletes > 0
        self.n_slots += self.staged_slots
        if self.staged_side:
            self.side.update(self.staged_side)
            if self.folding:
                self.side_after.update(self.staged_side)
            self.staged_side = []
        self.n_staged = self.n_entries = self.n_direct = self.n_replaced = self.direct_bytes = self.staged_slots = 0
        self.n_deletes = 0
        self.stages_tail = False
        self.version += self.replaces
        self.replaces = False

    @property
    def staged_first_row(self):
        """What row 0 is to say with the staged pages; None when that is what it says."""
        return _first_row(self.base, self.n_slots + self.staged_slots) if self.staged_slots else None

    def staged_pages(self):
        """What is to be written to the table: (row, bytes)."""
        cdef Py_ssize_t i
        return [(self.staged[i].slot, PyBytes_FromStringAndSize(<char *>self.staged[i].bytes, SLOT_BYTES))
                for i in range(self.n_staged)]

    def written_rows(self):
        """The rows that are written where they belong, packed."""
        cdef Py_ssize_t i
        cdef RowHead *head
        cdef list out = []
        for i in range(self.n_direct):
            head = <RowHead *>self.direct[i]
            out.append(PyBytes_FromStringAndSize(
                <char *>head, sizeof(RowHead) + max(head.record_n, 0) + max(head.data_n, 0) + max(head.result_n, 0)))
        return b"".join(out)

    # -- folding

    def begin_fold(self):
        """Set out to move everything that is in the log now; False when it is empty."""
        cdef size_t i
        cdef int64_t *spare
        if self.folding or self.n_pages == 0:
            return self.folding
        self.c_fit_free(self.n_slots)       # so that the end of it cannot fail
        self.n_fold = self.fold_at = 0
        if self.places.n:
            self.fold_seqs = <int64_t *>malloc(self.places.n * sizeof(int64_t))
            spare = <int64_t *>malloc(self.places.n * sizeof(int64_t))
            if self.fold_seqs == NULL or spare == NULL:
                free(spare)
                free(self.fold_seqs)
                self.fold_seqs = NULL
                raise MemoryError
            with nogil:
                for i in range(self.places.size):
                    if self.places.values[i]:
                        self.fold_seqs[self.n_fold] = self.places.keys[i]
                        self.n_fold += 1
                _sort(self.fold_seqs, spare, self.n_fold)
            free(spare)
        self.side_after = {}
        self.fold_side = sorted(self.side, reverse=True)
        self.fold_end = self.base + self.n_pages
        self.sealed = True
        self.folding = True
        self.deletes = False
        self.grown_bytes = 0
        return True

    def fold_rows(self, Py_ssize_t most):
        """The next rows to be moved: (how many were looked at, flat updates, deletes), in order of seq."""
        cdef Py_ssize_t i, n = min(most, self.n_fold - self.fold_at)
        cdef Entry entry
        cdef int op
        cdef list updates = [], deletes = []
        for i in range(self.fold_at, self.fold_at + n):
            op = self.c_find(self.fold_seqs[i], &entry)
            if op == ENTRY_UPDATE:
                updates += (entry.seq, entry.state, PyBytes_FromStringAndSize(<char *>entry.record, entry.record_n),
                            None if entry.result_n < 0
                            else PyBytes_FromStringAndSize(<char *>entry.result, entry.result_n))
            elif op == ENTRY_DELETE:
                deletes.append(entry.seq)
        return n, updates, deletes

    def fold_values(self, Py_ssize_t n_rows, Py_ssize_t most):
        """The next small values to be moved, if ``n_rows`` are the last: (how many were looked at, those)."""
        if self.fold_at + n_rows < self.n_fold:
            return 0, []
        keys = self.fold_side[-most:]
        return len(keys), [(table, key, self.side[table, key]) for table, key in reversed(keys)
                           if self.side[table, key] is not ...]

    def folds_all(self, Py_ssize_t n_rows, Py_ssize_t n_values):
        """Whether nothing is left after so many."""
        return self.fold_at + n_rows >= self.n_fold and n_values >= len(self.fold_side)

    def first_row_after_fold(self):
        """What row 0 says when the last of them has been moved."""
        return _first_row(self.fold_end, self.n_slots)

    def first_row_of(self, Py_ssize_t n_slots):
        """What row 0 says of a log that is empty and has so many pages."""
        return _first_row(self.base, n_slots)

    def advance(self, Py_ssize_t n_rows, Py_ssize_t n_values):
        """So much was moved, and committed; with the last of it the pages are free."""
        cdef Py_ssize_t i, n
        cdef Map places, blocks
        cdef int rc
        self.fold_at += n_rows
        if n_values:
            del self.fold_side[-n_values:]
        if self.fold_at < self.n_fold or self.fold_side:
            return
        n = <Py_ssize_t>(self.fold_end - self.base)
        memset(&places, 0, sizeof(Map))
        memset(&blocks, 0, sizeof(Map))
        with nogil:     # beside the old ones, for somebody may be reading
            rc = self.c_index_from(n, &places, &blocks)
        if rc < 0:
            map_free(&places)
            map_free(&blocks)
            raise MemoryError                   # the fold ends next time
        # First: an allocation below may run a collection, and so another thread.
        self.version += 1
        map_free(&self.places)
        map_free(&self.blocks)
        self.places, self.blocks = places, blocks
        for i in range(n):
            self.c_push_free(self.pages[i].slot)
            free(self.pages[i])
        for i in range(n, self.n_pages):
            self.pages[i - n] = self.pages[i]
        self.n_pages -= n
        self.base = self.fold_end
        self.folding = False
        free(self.fold_seqs)
        self.fold_seqs = NULL
        self.side, self.side_after = self.side_after, {}
