"""Jobs as rows of a store, and the way back. What a record holds is in :mod:`qcore.broker.record`."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.ref cimport Py_INCREF, PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MIN, UINT32_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from qcore.broker.record cimport (
    FIXED_HEAD_BYTES, FIXED_RUN_BYTES, HAS_EXTRA, HAS_PRIORITY, HAS_RUN, HEAD_CUT, ID_CUT, OTHER_VERSION, READ_WELL,
    RECORD_PART_MOST, RECORD_VERSION, RUN_CUT, SEAL_BYTES, UNSEALED_VERSION, Record, RecordHead, RecordRun,
    record_check, record_put_head, record_put_run, record_read, record_seal,
)
from qcore.engine.bucket cimport TokenBucket
from qcore.engine.engine cimport Engine
from qcore.engine.ids cimport uuid_parse, uuid_text
from qcore.engine.job cimport (
    ACTIVE, COMPLETED, DELAYED, F_CUSTOM_ID, F_EVICTED, F_GROUPED, F_GUEST, F_KEEPS, F_KEYED, F_LINKED, F_LOGGED,
    F_NEEDED, F_PERSISTED, F_REPEATS, F_REWRITE, F_STORED, F_TEXT_ID, FAILED, KEPT, MAX_SPAN_MS, PARKED, READY,
    STAGED, Blob, Job, Run, blob_bytes, blob_new,
)
from qcore.engine.keys cimport key_of
from qcore.engine.queue cimport Queue, RunList
from qcore.engine.table cimport MARK_KEPT, MARK_QUEUE_ENDS, Mark
from qcore.structs.slab cimport slab_alloc
from qcore.structs.tokens cimport TokenEntry
from qcore.store.native cimport ROW_DELETE, ROW_INSERT, ROW_UPDATE, RawRow, RowCursor, RowHead, row_of
from qcore.wire.scan cimport c_skip, c_utf8
from qcore.wire.writer cimport Writer

import msgpack

from qcore import limits
from qcore.store.base import Cut

cdef enum:
    CHECK_SHIFT = 8         # of a checksum in the notes of a payload; below are the ``BlobNote`` bits
    READ_ROWS = 1000        # rows that are read again at once, by their numbers
    PIECE_BYTES = 192 * 1024    # of encoded rows that are kept together

cdef struct Parts:              # one record, gathered before it is written
    uint8_t[RECORD_PART_MOST] head
    uint8_t[RECORD_PART_MOST] tail
    Py_ssize_t head_n
    Py_ssize_t tail_n
    const unsigned char *id_p
    Py_ssize_t id_n
    Py_ssize_t n                # bytes in all


cdef uint32_t _notes_of(Blob *blob) noexcept:
    """The notes of a payload with its checksum, which is computed once."""
    if not blob.notes >> CHECK_SHIFT:
        blob.notes |= record_check(blob_bytes(blob), blob.size) << CHECK_SHIFT
    return blob.notes


cdef int _check_value(const uint8_t *p, Py_ssize_t n, uint32_t notes, str what) except -1:
    """Hold a payload as it was read against the notes of a sealed record."""
    if (record_check(p, n) if n >= 0 else 0) != notes >> CHECK_SHIFT:
        raise BadRow(f"the {what} is not what was written")
    return 0


cdef bytes _gather(Engine engine, Job *job, int64_t now_ms, int64_t now_ns, Parts *parts):
    """Fill ``parts``; returns the packed rare options, or None."""
    cdef RecordHead head
    cdef RecordRun tail
    cdef Run *run
    cdef bytes extra = None
    cdef uint64_t priority
    memcpy(&priority, &job.priority, 8)
    head.version = RECORD_VERSION
    head.parts = HAS_PRIORITY if priority else 0
    head.first_state = job.first_state
    head.flags = job.flags & F_PERSISTED
    head.created_ms = job.created_ms
    head.run_ms = job.run_ms
    head.priority = job.priority
    head.attempts = job.attempts
    head.max_attempts = job.max_attempts
    head.backoff_ms = job.backoff_ms
    head.name = job.name
    head.data_notes = _notes_of(job.data) if job.data != NULL else 0
    head.stalls = job.stalls
    if job.flags & F_TEXT_ID:
        parts.id_p = blob_bytes(<Blob *>job.id_hi)
        head.id_n = (<Blob *>job.id_hi).size
    else:
        parts.id_p = <const unsigned char *>&job.id_hi
        head.id_n = 16
    parts.id_n = head.id_n
    parts.tail_n = 0
    if job.run:
        head.parts |= HAS_RUN
        run = engine.run_at(job.run)
        tail.token_hi = run.token_hi
        tail.token_lo = run.token_lo
        tail.started_ms = run.started_ms
        tail.finished_ms = run.finished_ms
        tail.heartbeat_ms = run.heartbeat_ms
        tail.lease_ms = run.lease_ms
        # A monotonic reading means nothing to the next process.
        tail.expires_ms = now_ms + (run.expires_ns - now_ns) // 1000000 if run.expires_ns else 0
        if job.state == ACTIVE:
            tail.last.timeout_ms = now_ms + (run.timeout_ns - now_ns) // 1000000 if run.timeout_ns else 0
        else:
            tail.last.ahead = run.number - job.seq + 1 if run.number else 0
        tail.renewals = run.renewals
        tail.result_notes = _notes_of(run.result) if run.result != NULL else 0
        parts.tail_n = record_put_run(&tail, job.created_ms, parts.tail)
    if job.extra != NULL:
        extra = msgpack.packb(<dict>job.extra)
        head.parts |= HAS_EXTRA
    parts.head_n = record_put_head(&head, parts.head)
    parts.n = parts.head_n + parts.id_n + parts.tail_n + SEAL_BYTES
    if extra is not None:
        parts.n += PyBytes_GET_SIZE(extra)
    return extra


cdef void _write(Parts *parts, bytes extra, char *p, int64_t seq, uint32_t queue, uint32_t state) noexcept:
    """Write a gathered record of ``parts.n`` bytes, sealed for its row."""
    cdef const char *start = p
    cdef uint32_t seal
    memcpy(p, parts.head, parts.head_n)
    p += parts.head_n
    memcpy(p, parts.id_p, parts.id_n)
    p += parts.id_n
    memcpy(p, parts.tail, parts.tail_n)
    p += parts.tail_n
    if extra is not None:
        memcpy(p, PyBytes_AS_STRING(extra), PyBytes_GET_SIZE(extra))
        p += PyBytes_GET_SIZE(extra)
    seal = record_seal(seq, queue, state, start, p - start)
    memcpy(p, &seal, SEAL_BYTES)


cdef bytes _record(Engine engine, Job *job, uint32_t state, int64_t now_ms, int64_t now_ns):
    cdef Parts parts
    cdef bytes extra = _gather(engine, job, now_ms, now_ns, &parts)
    cdef bytes out = PyBytes_FromStringAndSize(NULL, parts.n)
    _write(&parts, extra, PyBytes_AS_STRING(out), job.seq, job.queue, state)
    return out


@cython.final
cdef class Encoder:
    """Encodes the changes of an engine straight into the buffer that the compiled writer takes.

    New jobs may be encoded ahead, in pieces: a cut of very many would hold everybody up. What happens
    to such a job before the cut is taken follows in a row of its own, which then counts.
    """

    def __cinit__(self):
        self.out = Writer()
        self.pieces = []

    cdef int c_row(self, Engine engine, Job *job, int64_t now_ms, int64_t now_ns) except -1:
        """Append the row of a changed job, or nothing."""
        cdef Writer w = self.out
        cdef Py_ssize_t start = w.n
        cdef Blob *data = NULL
        cdef Blob *result = engine.run_at(job.run).result if job.run else NULL
        cdef RowHead head
        cdef Parts parts
        cdef bytes extra = _gather(engine, job, now_ms, now_ns, &parts)
        head.op = ROW_UPDATE
        head.queue = job.queue
        if not job.flags & F_STORED or job.flags & F_REWRITE:
            head.op = ROW_INSERT
            data = job.data
        head.seq = job.seq
        head.state = job.state if job.state != STAGED else job.first_state
        head.record_n = <int32_t>parts.n
        head.data_n = -1 if data == NULL else <int32_t>data.size
        head.result_n = -1 if result == NULL else <int32_t>result.size
        w.c_need(sizeof(RowHead) + parts.n + max(head.data_n, 0) + max(head.result_n, 0))
        memcpy(w.p + start, &head, sizeof(RowHead))
        w.n += sizeof(RowHead)
        _write(&parts, extra, <char *>w.p + w.n, job.seq, job.queue, head.state)
        w.n += parts.n
        if data != NULL:
            memcpy(w.p + w.n, blob_bytes(data), data.size)
            w.n += data.size
            self.largest = max(self.largest, <Py_ssize_t>data.size)
        if result != NULL:
            memcpy(w.p + w.n, blob_bytes(result), result.size)
            w.n += result.size
        self.n += 1
        return 0

    cdef int c_ahead(self, Engine engine, uint32_t most, int64_t now_ms, int64_t now_ns) except -1:
        """Encode the new jobs among the oldest changes, until at most so many changes are left to be looked at."""
        cdef uint32_t slot
        while engine.n_dirty - engine.ahead_at > most:
            slot = engine.dirty[engine.ahead_at]
            # One that has run may be about to leave memory, which counts on its being listed.
            if slot and not engine.job_at(slot).flags & F_STORED and not engine.job_at(slot).run:
                self.c_row(engine, engine.job_at(slot), now_ms, now_ns)
                engine.c_taken_ahead(engine.ahead_at)
                if self.out.n >= PIECE_BYTES:
                    self.c_close_piece()
            engine.ahead_at += 1
        return 0

    cdef int c_close_piece(self) except -1:
        """Put what was written aside: a small buffer stays in the cache, and is not copied as it grows."""
        if self.out.n:
            self.pieces.append(self.out.take())
        return 0

    cdef object c_take(self, Engine engine, int64_t now_ms, int64_t now_ns):
        """Every changed and deleted job, encoded, as a cut. After an error everything is as it was."""
        cdef Writer w = self.out
        cdef uint32_t i, slot
        cdef RowHead head
        cdef object seq, cut
        cdef Py_ssize_t n = self.n, largest = self.largest, n_pieces
        cdef list pieces = []
        self.c_close_piece()
        n_pieces = len(self.pieces)
        try:
            for i in range(engine.n_dirty):
                slot = engine.dirty[i]
                if slot:
                    self.c_row(engine, engine.job_at(slot), now_ms, now_ns)
                    if w.n >= PIECE_BYTES:
                        self.c_close_piece()
            memset(&head, 0, sizeof(RowHead))
            head.op = ROW_DELETE
            head.record_n = head.data_n = head.result_n = -1
            for seq in engine.deleted:
                head.seq = seq
                w.c_raw(&head, sizeof(RowHead))
                self.n += 1
            self.c_close_piece()
            cut = Cut(packed=self.pieces, n_packed=self.n, largest=self.largest, names=engine.new_names,
                      queues=[(q.index, _queue_state(<Queue>q)) for q in engine.dirty_queues], side=_side(engine))
            engine.c_taken()
        except BaseException:
            del self.pieces[n_pieces:]
            w.c_clear()
            self.n = n
            self.largest = largest
            raise
        self.pieces = pieces
        self.n = self.largest = 0
        return cut


cdef dict _side(Engine engine):
    """The small values, packed as they are now."""
    return {at: _side_value(value) for at, value in engine.side.items()}


cdef object _side_value(object value):
    if callable(value):
        value = value()
    # An empty map says as much as none.
    return (msgpack.packb(value) if value else None) if isinstance(value, dict) else value


cdef object _blob(Blob *blob):
    return None if blob == NULL else PyBytes_FromStringAndSize(<char *>blob_bytes(blob), blob.size)


cdef object c_take_rows(Engine engine, int64_t now_ms, int64_t now_ns):
    cdef list inserts = [], updates = []
    cdef uint32_t i, slot
    cdef Job *job
    cdef object result
    cdef int state
    for i in range(engine.n_dirty):
        slot = engine.dirty[i]
        if not slot:
            continue
        job = engine.job_at(slot)
        state = job.state if job.state != STAGED else job.first_state
        result = _blob(engine.run_at(job.run).result) if job.run else None
        if job.flags & F_STORED and not job.flags & F_REWRITE:
            updates.append(job.seq)
            updates.append(state)
            updates.append(_record(engine, job, state, now_ms, now_ns))
            updates.append(result)
        else:
            inserts.append(job.seq)
            inserts.append(job.queue)
            inserts.append(state)
            inserts.append(_record(engine, job, state, now_ms, now_ns))
            inserts.append(_blob(job.data))
            inserts.append(result)
    cut = Cut(inserts, updates, engine.deleted, names=engine.new_names,
              queues=[(q.index, _queue_state(<Queue>q)) for q in engine.dirty_queues], side=_side(engine))
    engine.c_taken()
    return cut


def take_rows(Engine engine not None, int64_t now_ms, int64_t now_ns):
    """The changes since the last call, as a cut with its rows in lists, which the caller commits at once."""
    cut = c_take_rows(engine, now_ms, now_ns)
    engine.c_committed()
    return cut


cdef bytes _queue_state(Queue q):
    cdef dict state = {"name": q.name}
    if q.gone:
        return None
    if q.paused:
        state["paused"] = True
    if q.dlq_settings:
        state["dlq"] = q.dlq_settings
    if q.stall_settings:
        state["stall"] = q.stall_settings
    if q.floor_seq:
        state["floor"] = q.floor_seq
    # What a policy of removal no longer keeps, for as long as the rows may be there.
    if q.far_most_due >= 0:
        state["most"] = [q.far_most_due, q.far_most_ms]
    if q.far_until_ms > INT64_MIN:
        state["until"] = q.far_until_ms
    if q.concurrency >= 0:
        state["concurrency"] = q.concurrency
    if q.rate is not None:
        state["rate"] = {"max": q.rate.most, "duration": q.rate.span_ms, "debt": q.rate.debt_ns, "at": q.rate.at_ms,
                         "ttl": q.rate.ttl_ms, "ends": q.rate.ends_ms}
    return msgpack.packb(state)


class BadRow(ValueError):
    """A row that cannot be read; the message says why, without its contents."""


cdef int _restore_limits(Queue q, dict fields, int64_t now_ms, int64_t now_ns) except -1:
    cdef dict rate = fields.get("rate")
    q.concurrency = fields.get("concurrency", -1)
    if rate is not None and not (rate["ttl"] and rate["ends"] <= now_ms):
        # What was owed has been paid off since, if the wall clock went forward.
        q.rate = TokenBucket(rate["max"], rate["duration"], now_ms, now_ns, ttl_ms=rate["ttl"], ends_ms=rate["ends"],
                             debt_ns=rate["debt"] - max(0, now_ms - rate["at"]) * 1e6)
    q.limited = q.concurrency >= 0 or q.rate is not None
    return 0


def restore_groups(Engine engine not None, list entries, int64_t now_ms, int64_t now_ns):
    """Bring back what was set for groups, after the queues. Those that cannot be read are left out; their keys."""
    cdef list unreadable = []
    for key, packed in entries:
        try:
            queue, _, group = key.partition(":")
            engine.restore_group(int(queue), group, msgpack.unpackb(packed), now_ms, now_ns)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError):
            unreadable.append(key)
    return unreadable


def restore_names(Engine engine not None, list names, list queues, int64_t now_ms=0, int64_t now_ns=0):
    """Bring back interned names and queues, before any row.

    :raises BadRow: an entry cannot be read
    """
    cdef Queue q
    cdef bint tracking = engine.tracking
    engine.tracking = False
    try:
        for index, text in sorted(names):
            while len(engine.name_texts) < index:       # a gap left by a lost row keeps its number
                engine.name_texts.append(None)
                engine.name_packed.append(b"\xc0")
            engine.c_name(text)
        for index, state in sorted(queues):
            try:
                fields = msgpack.unpackb(state)
                name = fields["name"]
            except (ValueError, TypeError, KeyError):
                raise BadRow(f"queue {index} cannot be read") from None
            if not 0 < index <= UINT32_MAX or not isinstance(name, str) or name in engine.queues:
                raise BadRow(f"queue {index} cannot be read")
            q = Queue(index, name, engine.ids.c_random())
            engine.c_place_queue(q)
            engine.last_queue = max(engine.last_queue, q.index)
            q.paused = bool(fields.get("paused"))
            try:
                q.floor_seq = fields.get("floor", 0)
                # A number up to here would belong to what was obliterated.
                engine.seq = max(engine.seq, q.floor_seq)
                q.far_most, q.far_most_ms = fields.get("most", (-1, 0))
                q.far_most_due = q.far_most
                q.far_until_ms = fields.get("until", INT64_MIN)
                engine.trims = engine.trims or q.far_most >= 0 or q.far_until_ms > INT64_MIN
                engine.c_configure(q, fields.get("dlq", {}), fields.get("stall", {}))
                _restore_limits(q, fields, now_ms, now_ns)
            except (ValueError, TypeError, OverflowError, KeyError):
                raise BadRow(f"the settings of queue {index} cannot be read") from None
    finally:
        engine.tracking = tracking


cdef Queue _queue_of_row(Engine engine, int64_t index):
    """The queue of a good row. One that is not there lost its own row: what is forgotten has no jobs."""
    cdef Queue q = engine.c_queue_at(index)
    if q is not None:
        return q
    name = f"lost-{index}"
    while name in engine.queues:
        name += "-"
    q = Queue(<uint32_t>index, name, engine.ids.c_random())
    engine.c_place_queue(q)
    engine.c_mark_queue(q)
    return q


def restore_counts(Engine engine not None, list telemetry, list minutes):
    """Bring back what was counted of each queue, before anything is counted; how many values were unreadable."""
    cdef int bad = 0
    cdef Queue q
    cdef list forgotten = []
    for index, packed in telemetry:
        try:
            if index == 0:
                engine.c_restore_last_queue(packed)
                continue
            q = engine.c_queue_at(index)
            if q is None:
                forgotten.append((index, packed))
            elif engine.c_restore_counts(q, packed):
                engine.c_mark_counts(q)     # else a higher bound brought back what this one let go
        except (ValueError, TypeError, OverflowError):
            bad += 1
    bad += engine.c_restore_forgotten(forgotten)
    for key, packed in sorted(minutes):
        try:
            engine.c_restore_minute(key, packed)
        except (ValueError, TypeError, OverflowError):
            bad += 1
    return bad


def restore_journals(Engine engine not None, list entries):
    """Bring back the rows of events, after the counts. The keys of those that cannot be read, which are left alone."""
    cdef list bad = []
    for key, packed in sorted(entries):
        try:
            engine.c_restore_event_row(key, packed)
        except (ValueError, TypeError, OverflowError, msgpack.UnpackException):
            bad.append(key)
    engine.count_journals()
    engine.trim_journals()
    return bad


def restore_side(Engine engine not None, dict side):
    """Bring back what stands beside the jobs, after the queues and before any row.

    Returns (table, key) of the entries that cannot be read; they are left alone.
    """
    cdef list bad = []
    cdef Queue q
    for seq, packed in side["logs"]:
        try:
            lines = msgpack.unpackb(packed)
        except ValueError:
            lines = None
        if isinstance(seq, int) and isinstance(lines, list) and lines:
            engine.c_restore_log(seq, lines)
        else:
            bad.append(("logs", seq))
    for number, packed in side["keys"]:
        try:
            queue, key, expires_ms, job_id = msgpack.unpackb(packed, use_list=False)
            q = engine.c_queue_at(queue)
            if q is None:
                raise ValueError
            engine.c_restore_kept(number, q, key, expires_ms, job_id)
        except (ValueError, TypeError, IndexError, OverflowError):
            bad.append(("keys", number))
    return bad


cdef int _raw(object row, RawRow *raw) except -1:
    """A row as compiled code takes it, for as long as the row is kept. Raises BadRow where a column cannot be that."""
    seq, queue, state, record, data, result = row
    if not isinstance(record, bytes) or not isinstance(data, (bytes, type(None))) \
            or not isinstance(result, (bytes, type(None))):
        raise BadRow("a column has the wrong type")
    try:
        raw.seq = seq
        raw.queue = queue
        raw.state = state
    except OverflowError:
        raise BadRow("a number does not fit into 64 bits") from None
    raw.record = <const uint8_t *>PyBytes_AS_STRING(<bytes>record)
    raw.record_n = PyBytes_GET_SIZE(<bytes>record)
    raw.data_n = raw.result_n = -1
    if data is not None:
        raw.data = <const uint8_t *>PyBytes_AS_STRING(<bytes>data)
        raw.data_n = PyBytes_GET_SIZE(<bytes>data)
    if result is not None:
        raw.result = <const uint8_t *>PyBytes_AS_STRING(<bytes>result)
        raw.result_n = PyBytes_GET_SIZE(<bytes>result)
    return 0


cdef bint _has_good_id(const Record *record) noexcept:
    """Whether an id that is told as a text is one, and no number in disguise."""
    cdef uint64_t hi, lo
    return not record.head.flags & F_TEXT_ID or (
        c_utf8(record.id_p, record.head.id_n)
        and not uuid_parse(<const char *>record.id_p, record.head.id_n, &hi, &lo))


cdef bint _is_sealed(const RawRow *row) noexcept nogil:
    """Whether seq, queue, state and record belong together, and are as they were written."""
    cdef uint32_t seal
    cdef Py_ssize_t n = row.record_n - SEAL_BYTES
    if n < 1 or row.queue >> 32 or row.state >> 32:     # not of 32 bits
        return False
    memcpy(&seal, row.record + n, SEAL_BYTES)
    return seal == record_seal(row.seq, <uint32_t>row.queue, <uint32_t>row.state, <const char *>row.record, n)


def set_aside(Engine engine not None, row, str why not None, int64_t now_ms):
    """Replace a row that :func:`restore` refused by a dead letter that keeps its bytes; after all other rows.

    (its queue, its id), or None: the queue has no room for another dead letter, or has been
    obliterated. The job has the id of the row if the record is sound and no other job has it.
    """
    seq, queue, state, record, data, result = row
    cdef RawRow raw
    cdef Record found
    cdef RecordHead head
    cdef RecordRun tail
    cdef Queue q
    cdef bytes job_id = b"unreadable-%d" % seq
    cdef bytes extra, packed
    cdef uint32_t slot
    q = engine.c_queue_at(queue)
    if q is None:
        q = engine.c_queue("unreadable")
    if q.failed.n >= q.dlq_max_entries or seq <= q.floor_seq:
        return None
    memset(&head, 0, sizeof(head))
    memset(&tail, 0, sizeof(tail))
    head.flags = F_TEXT_ID | F_CUSTOM_ID
    if isinstance(record, bytes):
        _raw((seq, queue, state, record, None, None), &raw)
        if record_read(raw.record, raw.record_n, &found) == READ_WELL and found.head.version != UNSEALED_VERSION \
                and _is_sealed(&raw) and _has_good_id(&found) and not _find(engine, &found):
            head = found.head
            job_id = PyBytes_FromStringAndSize(<const char *>found.id_p, head.id_n)
            head.flags &= F_TEXT_ID | F_CUSTOM_ID
    head.version = UNSEALED_VERSION
    head.parts = HAS_RUN | HAS_EXTRA
    head.first_state = READY
    head.created_ms = head.created_ms or now_ms
    head.run_ms = head.run_ms or now_ms
    head.priority = 0
    head.max_attempts = head.max_attempts or 1
    head.name = head.data_notes = head.backoff_ms = 0
    head.id_n = <uint32_t>len(job_id)
    tail.finished_ms = now_ms
    extra = msgpack.packb({
        "name": "unreadable",
        "unreadable": True,
        "dlq": {"reason": "unknown", "error": f"Row {seq} of the data file cannot be read: {why}", "retryCount": 0,
                "lastRetryAt": None, "nextRetryAt": None, "expiresAt": None},
    })
    packed = msgpack.packb({"unreadable": why, "seq": seq, "queue": queue, "state": state, "record": record,
                            "data": data, "result": result})
    c_restore(engine, (
        seq, q.index, FAILED,
        PyBytes_FromStringAndSize(<char *>&head, FIXED_HEAD_BYTES) + job_id
        + PyBytes_FromStringAndSize(<char *>&tail, FIXED_RUN_BYTES) + extra,
        packed, None), now_ms, 0, False)
    text = _text_of(job_id, head.flags)
    slot = engine.c_slot(text)
    engine.c_end(engine.job_at(slot), now_ms)
    engine.job_at(slot).flags |= F_REWRITE
    engine.c_mark(slot, engine.job_at(slot))
    return q.name, text


cdef str _text_of(bytes job_id, uint32_t flags):
    cdef uint64_t ids[2]
    cdef char text[36]
    if flags & F_TEXT_ID:
        return job_id.decode("utf-8", "replace")
    memcpy(ids, PyBytes_AS_STRING(job_id), 16)
    uuid_text(ids[0], ids[1], text)
    return PyUnicode_DecodeUTF8(text, 36, NULL)


def restore(Engine engine not None, row, int64_t now_ms, int64_t now_ns):
    """Bring back one job from its row. Active ones are active again, under their stored lease.

    Rows come in order of seq, before any command. Of two rows with one id the later generation counts.

    :raises BadRow: the row cannot be read; the engine is unchanged
    """
    c_restore(engine, row, now_ms, now_ns, False)


cdef int c_restore(Engine engine, object row, int64_t now_ms, int64_t now_ns, bint guest) except -1:
    """See :func:`restore`; a ``guest`` is a row that :func:`c_is_far` says yes to."""
    cdef RawRow raw
    cdef Record record
    _raw(row, &raw)
    cdef int found = record_read(raw.record, raw.record_n, &record)
    return c_restore_raw(engine, &raw, found, &record, now_ms, now_ns, guest, False)


cdef int c_restore_raw(Engine engine, const RawRow *row, int found, const Record *record, int64_t now_ms,
                       int64_t now_ns, bint guest, bint unlined) except -1:
    """The same of a row in memory, with what ``record_read`` found in it.

    Left ``unlined``, ready jobs get their place by ``c_line_up``, after all others.
    """
    cdef const RecordHead *head = &record.head
    cdef const RecordRun *tail = &record.tail
    cdef int64_t seq = row.seq, queue = row.queue, state = row.state
    cdef object extra = None
    cdef uint32_t slot, other
    cdef uint64_t ids[2]
    cdef Job *job
    cdef Run *run
    cdef Queue q
    cdef TokenEntry evicted
    cdef bint terminal
    if row.record_n < 0:
        raise BadRow("a column has the wrong type")
    if found == OTHER_VERSION:
        raise BadRow(f"record version {head.version}, expected {RECORD_VERSION}")
    if row.record_n and head.version != UNSEALED_VERSION and not _is_sealed(row):
        raise BadRow("the record is not what was written")
    if found == HEAD_CUT:
        raise BadRow(f"record of {row.record_n} bytes, which is too short")
    if head.version != UNSEALED_VERSION:
        _check_value(row.data, row.data_n, head.data_notes, "data")
    if state not in (READY, DELAYED, ACTIVE, COMPLETED, FAILED, PARKED, KEPT):
        raise BadRow(f"unknown state {state}")
    if not 0 < queue <= engine.last_queue:
        raise BadRow(f"unknown queue {queue}")
    if head.name >= <uint32_t>len(engine.name_texts):
        raise BadRow(f"unknown name {head.name}")
    if head.first_state not in (READY, DELAYED, PARKED):
        raise BadRow(f"unknown first state {head.first_state}")
    if head.priority != head.priority:
        raise BadRow("priority is not a number")
    terminal = state in (COMPLETED, FAILED, KEPT)
    if (state == ACTIVE or terminal) != bool(head.parts & HAS_RUN):
        raise BadRow(f"state {state} does not fit the record")
    if found == ID_CUT:
        raise BadRow("the id is cut off")
    cdef const unsigned char *id_p = record.id_p
    if not _has_good_id(record):
        raise BadRow("the id is no text")
    if found == RUN_CUT:
        raise BadRow("the delivery is cut off")
    if head.version != UNSEALED_VERSION:
        _check_value(row.result, row.result_n, tail.result_notes, "result")
    if head.parts & HAS_EXTRA:
        try:
            extra = _extra_of(record)
        except (ValueError, msgpack.UnpackException):
            extra = None
        if not isinstance(extra, dict):
            raise BadRow("the options cannot be read")
        token = extra.get("lastToken")
        if isinstance(token, list):
            extra["lastToken"] = tuple(token)
    if state == FAILED:
        letter = (extra or {}).get("dlq")
        if not _is_letter(letter):
            raise BadRow("the dead letter cannot be read")
    if head.flags & F_KEYED and not _has_key(extra):
        raise BadRow("the unique key cannot be read")
    if head.flags & F_REPEATS and not isinstance((extra or {}).get("repeat"), dict):
        raise BadRow("how the job repeats cannot be read")
    if head.flags & F_KEEPS and extra is None:
        raise BadRow("the policy of removal is missing")
    if head.flags & F_GROUPED and (not isinstance((extra or {}).get("groupId"), str)
                                   or not 0 <= head.priority <= limits.MAX_GROUP_PRIORITY):
        raise BadRow("the group cannot be read")
    if head.flags & F_LINKED:
        if not _good_ties(extra):
            raise BadRow("what the job is tied to cannot be read")
        if state == PARKED and extra.get("settledEdges", 0) >= len(extra.get("dependsOn") or ()):
            raise BadRow("a job that waits for others says not for whom")
    elif state == PARKED:
        raise BadRow("a job that waits for others says not for whom")
    if head.name == 0 and not isinstance((extra or {}).get("name"), str):
        raise BadRow("the name is missing")
    _one_value(row.data, row.data_n)
    _one_value(row.result, row.result_n)
    q = _queue_of_row(engine, queue)
    if seq <= q.floor_seq and state != KEPT:
        # Its queue was obliterated when only the store had this row.
        engine.deleted.append(seq)
        engine.c_drop_log(seq)
        engine.seq = max(engine.seq, seq)
        return 0
    if head.flags & F_TEXT_ID:
        other = engine.c_find(<const char *>id_p, head.id_n)
    else:
        memcpy(ids, id_p, 16)
        other = engine.c_find_number(ids[0], ids[1])
    if other:
        engine.c_forget(other)
    slot = slab_alloc(&engine.jobs)
    job = engine.job_at(slot)
    job.seq = seq
    job.flags = (head.flags & F_PERSISTED) | F_STORED
    if engine.log_lines and seq in engine.log_lines:
        job.flags |= F_LOGGED
    job.priority = head.priority
    job.created_ms = head.created_ms
    job.run_ms = head.run_ms
    job.queue = <uint32_t>queue
    job.name = head.name
    job.attempts = head.attempts
    job.max_attempts = head.max_attempts
    job.backoff_ms = head.backoff_ms
    job.stalls = <uint16_t>min(head.stalls, 0xFFFF)
    job.first_state = head.first_state
    if row.data_n >= 0:
        job.data = blob_new(row.data, row.data_n, head.data_notes)
    if head.flags & F_TEXT_ID:
        job.id_hi = <uint64_t>blob_new(id_p, head.id_n, 0)
        job.id_lo = engine.c_hash(id_p, head.id_n)
    else:
        memcpy(&job.id_hi, id_p, 16)
        if not head.flags & F_CUSTOM_ID and job.id_hi > engine.ids.last_hi:
            engine.ids.last_hi = job.id_hi
    engine.index.c_put(engine.c_hash_of(job), slot)
    if extra is not None:
        Py_INCREF(extra)
        job.extra = <PyObject *>extra
        if head.flags & F_KEYED and not terminal:
            engine.c_restore_key(slot, job, now_ms)
    if seq > engine.seq:
        engine.seq = seq
    if state == PARKED:
        engine.c_put_parked(q, slot, job)
        return 0
    if not head.parts & HAS_RUN:
        if unlined and not job.flags & F_GROUPED and (state == READY or job.run_ms <= now_ms):
            return engine.c_enter_ready(q, slot, job)
        # A job that was ready stays so, also if the wall clock was set back meanwhile.
        engine.c_enqueue(q, slot, job, job.run_ms if state == READY and job.run_ms > now_ms else now_ms)
        return 0
    job.run = slab_alloc(&engine.runs)
    run = engine.run_at(job.run)
    run.job = slot
    run.token_hi = tail.token_hi
    run.token_lo = tail.token_lo
    run.started_ms = tail.started_ms
    run.finished_ms = tail.finished_ms
    run.heartbeat_ms = tail.heartbeat_ms
    run.renewals = tail.renewals
    if row.result_n >= 0:
        run.result = blob_new(row.result, row.result_n, tail.result_notes)
    job.state = <uint8_t>state
    if state == ACTIVE:
        engine.deliveries += 1
        run.number = engine.deliveries
        # No longer than the product grants, whatever the clock did meanwhile (C006).
        run.lease_ms = tail.lease_ms
        if run.token_hi:
            run.expires_ns = now_ns + max(1, min(tail.expires_ms - now_ms, tail.lease_ms)) * 1000000
        if tail.last.timeout_ms:
            run.timeout_ns = now_ns + max(1, tail.last.timeout_ms - now_ms) * 1000000
        # Nothing was heard meanwhile, so silence counts from now.
        run.quiet_ns = now_ns + q.grace_ns
        bound = (extra or {}).get("stallTimeout")
        if isinstance(bound, int):
            run.stall_ns = max(1, min(<int64_t>bound, MAX_SPAN_MS) * 1000000)
            run.quiet_ns = now_ns + q.c_grace_ns(run.stall_ns)
        engine.c_arm(slot, run)
        engine.c_watch(q, run)
        engine.c_enter_active(q, job, run)
        return 0
    run.number = _number_of(record, seq)
    engine.ends = max(engine.ends, run.number)
    if state == FAILED:
        engine.c_set_dead_end(slot, job, run)
        engine.c_list_append(&q.failed, job.run, run)
        return 0
    if guest:
        job.flags = (job.flags & ~<uint32_t>F_NEEDED) | F_GUEST
        engine.c_leave_memory(slot, job)
        engine.guests.append((slot, seq))
        return 0
    if state == COMPLETED:
        engine.c_list_append(&q.completed, job.run, run)
    else:
        q.n_hidden += 1
    cdef uint64_t hi = job.id_hi, lo = job.id_lo
    if job.flags & F_TEXT_ID:
        hi = lo
        lo = ~lo
    if engine.done.c_add(hi, lo, q.index, slot, &evicted) and evicted.value:
        engine.c_evict(evicted.value)
    if job.flags & F_NEEDED:
        engine.done.c_pin(hi, lo)
    return 0


# --- the archive -------------------------------------------------------------------------------

cdef bint _read(object column, Record *record) noexcept:
    """Read the record in a column; False: it is cut off, or no record."""
    if not isinstance(column, bytes):
        return False
    return record_read(<const unsigned char *>PyBytes_AS_STRING(column), PyBytes_GET_SIZE(column), record) == READ_WELL


cdef bint _read_finished(object column, Record *record) noexcept:
    return _read(column, record) and record.head.parts & HAS_RUN != 0


cdef object _extra_of(const Record *record):
    return msgpack.unpackb(PyBytes_FromStringAndSize(<const char *>record.extra_p, record.extra_n), strict_map_key=True)


cdef int64_t _number_of(const Record *record, int64_t seq) noexcept nogil:
    """The number of the end of a finished job; 0 = written before ends had numbers."""
    if record.head.version != RECORD_VERSION or not record.tail.last.ahead:
        return 0
    return seq + record.tail.last.ahead - 1


cdef uint64_t _hash_of(Engine engine, const Record *record) noexcept:
    return engine.c_hash(<const char *>record.id_p, record.head.id_n)


cdef uint32_t _find(Engine engine, const Record *record) noexcept:
    """The slot of the job with the id of this record."""
    cdef uint64_t ids[2]
    if record.head.flags & F_TEXT_ID:
        return engine.c_find(<const char *>record.id_p, record.head.id_n)
    memcpy(ids, record.id_p, 16)
    return engine.c_find_number(ids[0], ids[1])


cdef str _id(const Record *record):
    return _text_of(PyBytes_FromStringAndSize(<const char *>record.id_p, record.head.id_n), record.head.flags)


cdef bint c_is_far(Engine engine, tuple row, Record *record) except -1:
    """Whether this row, as it was read from the store, is that of an archived job; if so, its record."""
    cdef Queue q = engine.c_queue_at(row[1])
    cdef uint32_t slot
    if row[2] != COMPLETED or q is None or row[0] <= q.floor_seq or not _read_finished(row[3], record):
        return False
    slot = _find(engine, record)
    if slot:
        # Else it is an earlier row of a job that memory has, or of an earlier one with this id.
        return engine.job_at(slot).flags & F_EVICTED != 0 and engine.job_at(slot).seq == row[0]
    return not engine.c_is_going(row[0])


def far(Engine engine not None, list page not None, object queue):
    """What the archived jobs of a queue (None: any) have in a page of rows.

    (end in ms, number of the end, creation in ms, row) of each.
    """
    cdef Record record
    cdef list found = []
    for row in page:
        if (queue is None or row[1] == queue) and c_is_far(engine, row, &record):
            found.append((record.tail.finished_ms, _number_of(&record, row[0]), record.head.created_ms, row))
    return found


def id_of(row):
    """The id in a row of a finished job."""
    cdef Record record
    if not _read_finished(row[3], &record):
        raise BadRow("the record is cut off")
    return _id(&record)


def own_id_of(row):
    """The upper half of the id of a row, if it is one of ours; else None."""
    cdef Record record
    cdef uint64_t hi
    if not _read(row[3], &record) or record.head.flags & (F_CUSTOM_ID | F_TEXT_ID):
        return None
    memcpy(&hi, record.id_p, 8)
    return hi


def adopt(Engine engine not None, tuple row not None, int64_t now_ms, int64_t now_ns):
    """Let an archived job be a guest of the engine, for the present command; False when the row is of none.

    :raises BadRow: the row cannot be read; the engine is unchanged
    """
    cdef Record record
    if not c_is_far(engine, row, &record):
        return False
    if not _find(engine, &record):
        c_restore(engine, row, now_ms, now_ns, True)
    return True


def sweep(Engine engine not None, list page not None, int64_t until_ms, set doomed not None):
    """Remove the rows of a page whose archived jobs ended by then, and those of obliterated queues.

    As well those whose queue keeps none of their age, and those whose numbers are ``doomed``.
    (how many, earliest end in ms of those that stay, or None)
    """
    cdef Record record
    cdef Queue q
    cdef uint32_t slot
    cdef Py_ssize_t n = 0
    cdef int64_t seq
    cdef object earliest = None
    for row in page:
        seq = row[0]
        q = engine.c_queue_at(row[1])
        if row[2] != COMPLETED or q is None or not _read_finished(row[3], &record):
            continue
        slot = _find(engine, &record)
        if seq > q.floor_seq:
            if not c_is_far(engine, row, &record):
                continue
            if record.tail.finished_ms > until_ms and record.tail.finished_ms >= q.far_until_ms and seq not in doomed:
                if earliest is None or record.tail.finished_ms < earliest:
                    earliest = record.tail.finished_ms
                continue
            if slot:
                engine.c_forget(slot)       # its record is on its way out of memory
                n += 1
                continue
            q.n_archived -= 1
            engine.n_archived -= 1
        elif (slot and engine.job_at(slot).seq == seq) or engine.c_is_going(seq):
            continue
        engine.deleted.append(seq)
        engine.c_drop_log(seq)
        if record.head.flags & F_CUSTOM_ID:
            engine.c_forget_far(seq, _hash_of(engine, &record))
        n += 1
    return n, earliest


cdef int c_check_passed(Engine engine, const RawRow *row, const Record *record) except -1:
    """Hold the row of a completed job that is passed over against its seal; it may not be restored for long.

    :raises BadRow: it is not what was written
    """
    cdef object extra
    if record.head.version != UNSEALED_VERSION:
        if not _is_sealed(row):
            raise BadRow("the record is not what was written")
        _check_value(row.data, row.data_n, record.head.data_notes, "data")
        _check_value(row.result, row.result_n, record.tail.result_notes, "result")
    else:
        _one_value(row.data, row.data_n)
        _one_value(row.result, row.result_n)
        if record.head.parts & HAS_EXTRA:
            try:
                extra = _extra_of(record)
            except (ValueError, msgpack.UnpackException):
                extra = None
            if not isinstance(extra, dict):
                raise BadRow("the options cannot be read")
    if record.head.name >= <uint32_t>len(engine.name_texts):
        raise BadRow(f"unknown name {record.head.name}")
    return 0


cdef struct Passed:             # a completed job that is not restored yet
    int64_t number              # of its end
    int64_t finished_ms
    int64_t seq
    uint64_t id                 # hash of a custom id, upper half of one of ours, or 0
    uint32_t queue
    bint custom


cdef inline bint c_ended_before(const Passed *x, const Passed *y) noexcept nogil:
    if x.number != y.number:
        return x.number < y.number
    return x.finished_ms < y.finished_ms or (x.finished_ms == y.finished_ms and x.seq < y.seq)


cdef int _between_pages() except -1:
    """Let in what waits for the end of a page: an interrupt, and other threads."""
    PyErr_CheckSignals()
    with nogil:
        pass
    return 0


@cython.final
cdef class Loader:
    """Restores all rows of a store, which come in order of seq, before any command.

    Completed jobs that no live job is known to need are passed over at first. Then
    :meth:`load_rest` restores the newest of them, which memory keeps, and the others are
    archived. ``fences`` are pairs of (number of a row, upper half of an id of ours):
    rows after it have greater ids. ``unreadable`` has the number of each row that was
    refused, and why; ``damaged`` has the first ``most_damaged`` of them whole.
    """
    cdef Engine engine
    cdef int64_t now_ms, now_ns
    cdef Passed *passed                 # a heap: the newest so far of those passed over, the oldest of them first
    cdef Py_ssize_t n_passed, cap_passed
    cdef readonly Py_ssize_t n          # jobs that were restored
    cdef readonly list fences
    cdef readonly list links            # (seq, id, id of the successor) of finished runs of chains
    cdef readonly list unreadable
    cdef readonly list damaged
    cdef Py_ssize_t most_damaged
    cdef int64_t next_fence
    cdef Py_ssize_t every

    def __cinit__(self, Engine engine not None, int64_t now_ms, int64_t now_ns, Py_ssize_t every,
                  Py_ssize_t most_damaged):
        self.engine = engine
        self.now_ms = now_ms
        self.now_ns = now_ns
        self.fences = []
        self.links = []
        self.unreadable = []
        self.damaged = []
        self.every = every
        self.most_damaged = most_damaged

    def __dealloc__(self):
        PyMem_Free(self.passed)

    def load(self, found not None):
        """Restore rows, or note that they cannot be read; pass over those of completed jobs."""
        cdef RowCursor cursor
        cdef RawRow raw
        if not isinstance(found, RowCursor):
            for row in found:
                self._load_row(row, True)
            return
        cursor = found
        while not cursor.over:
            cursor.c_begin()
            try:
                while cursor.c_next(&raw):
                    self.c_load(&raw, True)
            finally:
                cursor.c_end()
            _between_pages()

    def load_rest(self, found not None, store not None):
        """Restore the newest of those that were passed over; ``found`` is what they were loaded from."""
        cdef RowCursor cursor
        cdef RawRow raw
        cdef Py_ssize_t at
        cdef list seqs = sorted([self.passed[at].seq for at in range(self.n_passed)])
        self.n_passed = self.cap_passed = 0
        PyMem_Free(self.passed)
        self.passed = NULL
        for at in range(0, len(seqs), READ_ROWS):
            if not isinstance(found, RowCursor):
                for row in store.read(seqs[at:at + READ_ROWS]):
                    self._load_row(row, False)
                continue
            cursor = found
            cursor.c_begin()
            try:
                for seq in seqs[at:at + READ_ROWS]:
                    if cursor.c_seek(seq, &raw):
                        self.c_load(&raw, False)
            finally:
                cursor.c_end()
            _between_pages()

    def line_up(self):
        """Give the ready jobs their places in line, once all rows are there."""
        self.engine.c_line_up()

    cdef int _load_row(self, tuple row, bint sift) except -1:
        cdef RawRow raw
        try:
            _raw(row, &raw)
        except BadRow as error:
            return self.c_refuse(row, error)
        return self.c_load(&raw, sift)

    cdef int c_load(self, const RawRow *raw, bint sift) except -1:
        cdef Record record
        cdef int found = record_read(raw.record, raw.record_n, &record)
        if sift and found == READ_WELL and self.c_holds(raw, &record):
            return 0
        try:
            c_restore_raw(self.engine, raw, found, &record, self.now_ms, self.now_ns, False, True)
        except BadRow as error:
            return self.c_refuse(row_of(raw), error)
        self.n += 1
        return 0

    cdef int c_refuse(self, tuple row, object error) except -1:
        self.engine.refused.add(row[0])
        self.unreadable.append((row[0], str(error)))
        if len(self.damaged) < self.most_damaged:
            self.damaged.append((row, str(error)))
        return 0

    cdef bint c_holds(self, const RawRow *row, const Record *record) except -1:
        """Whether the row is one to pass over."""
        cdef const RecordHead *head = &record.head
        cdef Engine engine = self.engine
        cdef Queue q
        cdef uint64_t hi = 0
        cdef Passed entry
        if not head.flags & (F_CUSTOM_ID | F_TEXT_ID):
            memcpy(&hi, record.id_p, 8)
            if row.seq >= self.next_fence and (head.version == UNSEALED_VERSION or _is_sealed(row)):
                self.fences.append((row.seq, hi))
                self.next_fence = row.seq + self.every
        if row.state != COMPLETED or not engine.archive:
            return False
        q = engine.c_queue_at(row.queue)
        if q is None or row.seq <= q.floor_seq or not head.parts & HAS_RUN:
            return False
        if head.flags & F_NEEDED:
            return False
        try:
            c_check_passed(engine, row, record)
        except BadRow as error:
            self.c_refuse(row_of(row), error)
            return True
        if row.seq > engine.seq:
            engine.seq = row.seq
        if hi > engine.ids.last_hi:
            engine.ids.last_hi = hi
        if head.flags & F_REPEATS and head.parts & HAS_EXTRA:
            self._link(row, record)
        entry.number = _number_of(record, row.seq)
        engine.ends = max(engine.ends, entry.number)
        entry.finished_ms = record.tail.finished_ms
        entry.seq = row.seq
        entry.queue = <uint32_t>row.queue
        entry.custom = head.flags & F_CUSTOM_ID != 0
        entry.id = _hash_of(engine, record) if entry.custom else hi
        self.c_pass(entry)
        return True

    cdef int c_pass(self, Passed entry) except -1:
        """Keep this one, or the oldest of those that are kept is archived."""
        cdef Passed oldest
        cdef Passed *wider
        cdef Py_ssize_t at = self.n_passed, other
        if at == <Py_ssize_t>self.engine.done.cap:
            if c_ended_before(&entry, self.passed):
                return self.c_archive(&entry)
            oldest = self.passed[0]
            at = 0
            while True:
                other = 2 * at + 1
                if other >= self.n_passed:
                    break
                if other + 1 < self.n_passed and c_ended_before(&self.passed[other + 1], &self.passed[other]):
                    other += 1
                if not c_ended_before(&self.passed[other], &entry):
                    break
                self.passed[at] = self.passed[other]
                at = other
            self.passed[at] = entry
            return self.c_archive(&oldest)
        if at == self.cap_passed:
            other = max(1024, 2 * at)
            wider = <Passed *>PyMem_Realloc(self.passed, other * sizeof(Passed))
            if wider == NULL:
                raise MemoryError
            self.passed = wider
            self.cap_passed = other
        self.n_passed += 1
        while at > 0 and c_ended_before(&entry, &self.passed[(at - 1) // 2]):
            self.passed[at] = self.passed[(at - 1) // 2]
            at = (at - 1) // 2
        self.passed[at] = entry
        return 0

    cdef _link(self, const RawRow *row, const Record *record):
        try:
            successor = _extra_of(record).get("successor")
        except (ValueError, AttributeError, msgpack.UnpackException):
            return
        if isinstance(successor, str):
            self.links.append((row.seq, _id(record), successor))

    cdef int c_archive(self, const Passed *entry) except -1:
        cdef Engine engine = self.engine
        cdef Queue q = engine.c_queue_at(entry.queue)
        q.n_archived += 1
        engine.n_archived += 1
        engine.far_ms = min(engine.far_ms, entry.finished_ms)
        if entry.custom:
            engine.c_note_far(entry.seq, entry.id)
        elif entry.id > engine.far_hi:
            engine.far_hi = entry.id
        return 0


cdef bint _has_key(object extra) except -1:
    """Whether the rare options of a keyed job have a key that can be one."""
    cdef object key = key_of(extra) if isinstance(extra, dict) else None
    if isinstance(key, tuple):
        key = key[1]
    return isinstance(key, str) and isinstance(extra.get("keyExpires"), (int, type(None)))


cdef bint _is_letter(object letter):
    """Whether this can be the entry of a dead letter; what its handling relies on is looked at."""
    if not isinstance(letter, dict) or not isinstance(letter.get("reason"), str) or "error" not in letter:
        return False
    for key in ("expiresAt", "nextRetryAt", "lastRetryAt"):
        if not (letter.get(key, "") is None or _is_number(letter.get(key, ""))):
            return False
    return _is_number(letter.get("retryCount")) and _is_number(letter.get("enteredAt", 0))


cdef bint _is_number(object value):
    return isinstance(value, int) and abs(value) <= limits.MAX_TIME_MS


cdef bint _good_ties(object extra) except -1:
    """Whether the ties of a job can be used; wrong ones would let it run too early."""
    if extra is None:
        return False
    for name in ("dependsOn", "childrenIds", "edgesDone"):
        ids = extra.get(name)
        if ids is not None and not (isinstance(ids, list) and all([isinstance(one, str) for one in ids])):
            return False
    deps = extra.get("dependsOn") or []
    settled = extra.get("settledEdges", 0)
    dropped = extra.get("edgesDropped", {})
    failed = extra.get("childFailed")
    return (
        isinstance(extra.get("parentId"), (str, type(None)))
        and isinstance(settled, int) and 0 <= settled <= len(deps) and len(set(deps)) == len(deps)
        and isinstance(dropped, dict)
        and all([isinstance(one, list) and len(one) == 3 for one in dropped.values()])
        and (failed is None or (isinstance(failed, list) and len(failed) == 2 and isinstance(failed[1], str)))
    )


def restore_evidence(Engine engine not None, list rows):
    """Bring back what is known of completed jobs without a row; before :func:`settle_active`.

    The keys of rows that cannot be read, which are left out.
    """
    cdef Py_ssize_t i, n
    cdef const Mark *mark
    cdef list bad = [], found
    for key, value in rows:
        engine.mark_row = max(engine.mark_row, <int64_t>key + 1)
        found = []
        try:
            numbers, texts = msgpack.unpackb(value)
            n = PyBytes_GET_SIZE(<bytes?>numbers)
            if n % sizeof(Mark):
                raise ValueError
            for i in range(n // <Py_ssize_t>sizeof(Mark)):
                mark = <const Mark *>PyBytes_AS_STRING(numbers) + i
                found.append((mark.at_ms, mark.kept, mark.queue, None, mark.hi, mark.lo))
            for text, at_ms, queue, kept in texts:
                found.append((<int64_t>at_ms, <uint32_t>kept, <uint32_t>queue, <str?>text, 0, 0))
        except (ValueError, TypeError, OverflowError, msgpack.UnpackException):
            bad.append(key)
            continue
        engine.mark_rows.append((key, len(found), sum([one[1] == MARK_KEPT for one in found])))
        engine.n_marked += len(found)
        engine.loaded_marks.extend(found)
    return bad


cdef list _loaded_evidence(Engine engine):
    """(ms, hi, lo, queue) of each id that has evidence and no job, oldest first."""
    cdef uint64_t hi, lo
    cdef dict last = {}
    cdef dict ends = {}         # (queue, is it of texts) -> place of its last end
    for n, (at_ms, kept, queue, text, hi, lo) in enumerate(engine.loaded_marks):
        if kept == MARK_QUEUE_ENDS:
            ends[queue, text is not None] = n
            continue
        if text is not None:
            engine.c_number_of(text, &hi, &lo)
        last.pop((hi, lo), None)
        if kept and not (engine.c_slot(text) if text is not None else engine.c_find_number(hi, lo)):
            last[(hi, lo)] = (at_ms, n, queue, text is not None)
    engine.loaded_marks = []
    found = sorted([(at_ms, n, hi, lo, queue) for (hi, lo), (at_ms, n, queue, is_text) in last.items()
                    if n > ends.get((queue, is_text), -1)])
    if engine.mark_rows:
        # What they take away from each other counts as of the last: until that goes, they are not counted too high.
        total = sum([row[2] for row in engine.mark_rows])
        key, n, lasting = engine.mark_rows.pop()
        engine.mark_rows.append((key, n, lasting - (total - len(found))))
        engine.n_lasting = len(found)
    return found


cdef int _one_value(const uint8_t *p, Py_ssize_t n) except -1:
    cdef uint32_t notes = 0
    if n >= 0 and c_skip(p, 0, n, &notes) != n:
        raise BadRow("a payload is not one valid value")
    return 0


cdef tuple _end_of(Engine engine, uint32_t at):
    """(number of the end, its time in ms, seq, Run slot): finished jobs in the order in which they finished."""
    cdef Run *run = engine.run_at(at)
    return run.number, run.finished_ms, engine.job_at(run.job).seq, at


cdef int _order_finished(Engine engine) except -1:
    """Finished jobs in the order in which they finished; rows come in order of admission."""
    cdef Queue q
    cdef uint32_t at, slot
    cdef Job *job
    cdef Run *run
    cdef RunList *list_
    cdef TokenEntry evicted
    cdef uint64_t hi, lo
    cdef list completed = [], order
    cdef int i
    cdef list gone = _loaded_evidence(engine)
    cdef Py_ssize_t next_gone = 0
    for q in list(engine.queues.values()):
        for i in range(2):
            list_ = &q.completed if i else &q.failed
            order = []
            at = list_.head
            while at:
                run = engine.run_at(at)
                order.append(_end_of(engine, at))
                at = run.next
            order.sort()
            list_.head = list_.tail = list_.n = 0
            for _, _, _, at in order:
                engine.c_list_append(list_, at, engine.run_at(at))
            if i:
                completed += order
    engine.done.c_clear()
    for slot in range(1, engine.jobs.fresh):
        if engine.job_at(slot).state == KEPT:
            completed.append(_end_of(engine, engine.job_at(slot).run))
    completed.sort()
    # What live jobs are tied to comes first, so that it takes no room from the others.
    needed = _needed_numbers(engine)
    for pins in ([True, False] if needed else [False]):
        next_gone = 0
        for _, ms, _, at in completed:
            while next_gone < len(gone) and gone[next_gone][0] <= ms:
                _add_gone(engine, gone[next_gone], needed, pins)
                next_gone += 1
            slot = engine.run_at(at).job
            job = engine.job_at(slot)
            hi, lo = job.id_hi, job.id_lo
            if job.flags & F_TEXT_ID:
                hi = lo
                lo = ~lo
            if ((hi, lo) in needed) != pins:
                continue
            if engine.done.c_add(hi, lo, job.queue, slot, &evicted) and evicted.value:
                engine.c_evict(evicted.value)
            if pins:
                engine.done.c_pin(hi, lo)
        while next_gone < len(gone):
            _add_gone(engine, gone[next_gone], needed, pins)
            next_gone += 1
    if completed:
        engine.done_ms = completed[len(completed) - 1][1]
    if gone:
        engine.done_ms = max(engine.done_ms, <int64_t>gone[len(gone) - 1][0])
    return 0


cdef set _needed_numbers(Engine engine):
    """The keys of the ids that live jobs are tied to."""
    cdef uint64_t hi, lo
    cdef uint32_t slot
    cdef Job *job
    cdef set needed = set()
    for slot in range(1, engine.jobs.fresh):
        job = engine.job_at(slot)
        if job.flags & F_LINKED and job.state not in (0, COMPLETED, FAILED, KEPT):
            for name in ("dependsOn", "childrenIds"):
                for job_id in (<dict>job.extra).get(name) or ():
                    engine.c_number_of(job_id, &hi, &lo)
                    needed.add((hi, lo))
    return needed


cdef int _add_gone(Engine engine, tuple entry, set needed, bint pins) except -1:
    cdef TokenEntry evicted
    if ((entry[2], entry[3]) in needed) != pins:
        return 0
    if engine.done.c_add(entry[2], entry[3], entry[4], 0, &evicted) and evicted.value:
        engine.c_evict(evicted.value)
    if pins:
        engine.done.c_pin(entry[2], entry[3])
    return 0


def settle_active(Engine engine not None, bint keep_leases, bint charge, int64_t now_ms):
    """After all rows: decide about the jobs that were active. How many were taken from their holders.

    With ``keep_leases`` a job with a lease stays with its holder, who may still renew and
    acknowledge it. The others go back to their queues, charged one attempt and one stall
    if ``charge`` (after a crash), else uncharged.
    """
    cdef Queue q
    cdef uint32_t at, following, slot
    cdef Job *job
    cdef int n = 0
    _order_finished(engine)
    engine.c_relink_all(now_ms)
    engine.c_retrim()
    for q in list(engine.queues.values()):
        engine.c_purge(q, q.dlq_max_entries)
        at = q.active.head
        while at:
            following = engine.run_at(at).next
            slot = engine.run_at(at).job
            job = engine.job_at(slot)
            if not (keep_leases and engine.run_at(at).token_hi):
                n += 1
                if charge:
                    engine.c_lost(slot, "The process that ran the job ended",
                                  f"Job reached max attempts ({job.attempts + 1}) during startup recovery",
                                  f"Job stalled {job.stalls + 1} times (recovered at startup)", now_ms)
                else:
                    engine.c_abandon(slot, now_ms)
            at = following
    engine.c_committed()    # what was too much to be kept in memory leaves it
    return n
