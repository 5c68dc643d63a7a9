"""The engine: states and transitions of jobs, and nothing else.

A pure state machine. Both times come in with each command: ``now_ms``, the wall
clock, for what is stored (creation, due times), and ``now_ns``, a monotonic clock,
for leases and timeouts. Randomness comes from the :class:`IdSource` passed in. What
a transition wants done outside (rows to write, events to tell, pulls to wake) is
collected in the engine and taken by its host afterwards.

It is built in layers, a class and a file each: :mod:`~qcore.engine.table` (records),
:mod:`~qcore.engine.logs` (lines of jobs), :mod:`~qcore.engine.keys` (unique keys, what is
kept), :mod:`~qcore.engine.capacity` (what may start), :mod:`~qcore.engine.transitions` (the
life of one job), :mod:`~qcore.engine.losses` (what ends by time),
:mod:`~qcore.engine.flows` (what follows for other jobs), :mod:`~qcore.engine.schedules`
(what the clock adds), :mod:`~qcore.engine.idle` (the end of queues),
:mod:`~qcore.engine.queries` (what can be asked), and here the commands. The host's compiled
paths call the ``c_`` procedures; the commands wrap the same ones for general handlers,
tests and simulations. Payloads and results are packed bytes, None = none.

Not thread-safe: the host takes one lock per call.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, int64_t, uint32_t, uint64_t
from libc.string cimport memset

from qcore.engine.ids cimport uuid_parse, uuid_text
from qcore.engine.flows cimport OPEN
from qcore.engine.job cimport (
    ACTIVE, COMPLETED, DELAYED, F_DIRTY, F_EVICTED, F_GROUPED, F_KEEPS, F_KEYED, F_LIFO, F_LINKED, F_NEEDED,
    F_REMOVE_ON_COMPLETE, F_REMOVE_ON_FAIL, F_REWRITE, F_WATCHED, FAILED, KEPT, PARKED, READY, STAGED, Blob, Job, Run,
    blob_bytes, blob_free,
    blob_new,
)
from qcore.engine.keys cimport key_of
from qcore.engine.lanes cimport Group, Wanted
from qcore.engine.queue cimport Queue
from qcore.engine.queries cimport Queries
from qcore.engine.table cimport EV_DELAYED, EV_PAUSED, EV_REMOVED, EV_RESUMED, EV_WAITING
from qcore.engine.transitions cimport (
    ALREADY_FINAL, BAD_TOKEN, LATE, MAY, NO_TOKEN, NOT_ACTIVE, PROMOTIONS, TOKEN, TOKEN_MISSING, TOKEN_WRONG, Spec,
)
from qcore.structs.skiplist cimport Key, SkipNode

from qcore import limits
from qcore.errors import CommandError, LeaseError, LimitError, NotFoundError, StateError

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object o, Py_ssize_t *size) except NULL


cdef int present_token(object token, uint64_t *hi, uint64_t *lo) except -1:
    """Classify what a caller presents as its lease token."""
    cdef const char *text
    cdef Py_ssize_t n
    hi[0] = lo[0] = 0
    if token is None:
        return NO_TOKEN
    text = PyUnicode_AsUTF8AndSize(token, &n)
    if n == 0:
        return NO_TOKEN
    return TOKEN if uuid_parse(text, n, hi, lo) else BAD_TOKEN


def refusal(int verdict, str job_id):
    """The error for a :class:`Verdict` that is not ``MAY``."""
    if verdict == TOKEN_MISSING:
        return LeaseError(f"Lock token required for job {job_id}")
    if verdict == TOKEN_WRONG:
        return LeaseError(f"Invalid or expired lock token for job {job_id}")
    return StateError(f"Job not found or not in processing state: {job_id}")


cdef inline bint _is_set_aside(Job *job) except -1:
    """Whether this dead letter stands for a row that could not be read: it can be removed, not run."""
    return job.extra != NULL and "unreadable" in <dict>job.extra


@cython.final
cdef class Engine(Queries):
    """All jobs of a broker; see :class:`~qcore.engine.table.Table` for the arguments."""

    def push(self, str queue not None, bytes data, int64_t now_ms, *, str name="default", str job_id=None,
             double priority=0, int64_t delay_ms=0, int64_t created_ms=-1, uint32_t attempts=3,
             uint32_t backoff_ms=1000, bint lifo=False, bint remove_on_complete=False,
             bint remove_on_fail=False, dict extra=None, str parent_token=None):
        """Admit one job and return its id; that of the live job that holds its id or its unique key already.

        ``extra`` has its rare options and passes to the engine: see :mod:`~qcore.engine.keys` for those
        of a key; ``removeOnComplete`` and ``removeOnFail`` other than booleans stand there as well.

        :raises StateError: the unique key is held and does not permit what the job asks
        :raises FlowError: what ``extra`` says of ties (``dependsOn``, ``parentId``) cannot be
        :raises LimitError: too many jobs of the queue wait for others
        """
        cdef Spec spec
        cdef int how
        cdef uint32_t slot
        memset(&spec, 0, sizeof(spec))
        if job_id is not None:
            spec.id_text = PyUnicode_AsUTF8AndSize(job_id, &spec.id_n)
        linked = extra is not None and ("dependsOn" in extra or "parentId" in extra or "childrenIds" in extra)
        if linked or (job_id is not None and job_id in self.needed):
            extra = dict(extra or {})
            if "dependsOn" in extra:
                extra["dependsOn"] = list(dict.fromkeys(extra["dependsOn"]))
            bad = self.check_links([(queue, job_id, extra.get("dependsOn", ()), extra.get("parentId"), parent_token)])
            if bad is not None:
                raise bad[1]
        if data is not None:
            spec.data = blob_new(<const char *>data, len(data), 0)
        spec.priority = priority
        spec.created_ms = now_ms if created_ms < 0 else created_ms
        spec.run_ms = spec.created_ms + delay_ms
        spec.name = self.c_name(name)
        if not spec.name:
            extra = dict(extra or {}, name=name)
        spec.max_attempts = attempts
        spec.backoff_ms = backoff_ms
        spec.flags = ((F_LIFO if lifo else 0) | (F_REMOVE_ON_COMPLETE if remove_on_complete else 0)
                      | (F_REMOVE_ON_FAIL if remove_on_fail else 0) | (F_LINKED if linked else 0)
                      | (F_GROUPED if extra is not None and "groupId" in extra else 0))
        try:
            slot = self.c_add(self.c_queue_for(queue, spec.id_text, spec.id_n), &spec, extra, now_ms, False, &how)
        finally:
            blob_free(spec.data)
        return self.c_id(self.job_at(slot)) if slot else self.kept_by

    def push_many(self, str queue not None, list datas not None, int64_t now_ms):
        """Admit plain jobs, one for each packed payload; their ids in order."""
        cdef Queue q = self.c_queue(queue)
        cdef Spec spec
        cdef int how
        cdef uint32_t slot
        cdef bytes data
        cdef list ids = []
        memset(&spec, 0, sizeof(spec))
        spec.created_ms = spec.run_ms = now_ms
        spec.name = 1
        spec.max_attempts = limits.DEFAULT_ATTEMPTS
        spec.backoff_ms = limits.DEFAULT_BACKOFF_MS
        for data in datas:
            spec.data = blob_new(<const char *>data, len(data), 0)
            slot = self.c_add(q, &spec, None, now_ms, False, &how)
            ids.append(self.c_id(self.job_at(slot)))
        return ids

    def pull(self, str queue not None, int64_t now_ms, int64_t now_ns, *, int64_t lease_ms=0, uint32_t session=0,
             Wanted wanted=None):
        """Deliver the next job as ``(id, token or None, data)``; None when there is none.

        ``wanted`` says what the caller wants of grouped jobs; None: any, without limits of its own.
        """
        cdef object found = self.queues.get(queue)
        cdef uint32_t slot
        if found is None:
            return None
        slot = self.c_claim(<Queue>found, now_ms, now_ns, lease_ms, session, wanted)
        return self.c_delivery(slot) if slot else None

    def pull_many(self, str queue not None, Py_ssize_t count, int64_t now_ms, int64_t now_ns, *,
                  int64_t lease_ms=0, uint32_t session=0, Wanted wanted=None):
        """Deliver up to ``count`` ready jobs, as :meth:`pull` does."""
        cdef object found = self.queues.get(queue)
        cdef list out = []
        cdef uint32_t slot
        if found is None:
            return out
        while count > 0:
            slot = self.c_claim(<Queue>found, now_ms, now_ns, lease_ms, session, wanted)
            if not slot:
                break
            out.append(self.c_delivery(slot))
            count -= 1
        return out

    cdef tuple c_delivery(self, uint32_t slot):
        cdef Job *job = self.job_at(slot)
        cdef Run *run = self.run_at(job.run)
        cdef char text[36]
        cdef object token = None
        if run.token_hi:
            uuid_text(run.token_hi, run.token_lo, text)
            token = PyUnicode_DecodeUTF8(text, 36, NULL)
        return (self.c_id(job), token,
                None if job.data == NULL
                else PyBytes_FromStringAndSize(<char *>blob_bytes(job.data), job.data.size))

    def ack(self, str job_id not None, int64_t now_ms, *, str token=None, bytes result=None,
            uint32_t result_notes=0, object remove=False, bint remember=False):
        """Complete an active job; False when the engine had ended this delivery before.

        ``result_notes`` are the ``BlobNote`` bits of the result. With ``remember`` the outcome is
        kept by its token, so that the same call again, after a lost reply, answers the same.
        ``remove`` other than False takes the place of the job's own policy.

        :raises StateError: the job is not active
        :raises LeaseError: the token is missing or wrong
        """
        cdef uint64_t hi, lo
        cdef uint32_t slot = self.c_slot(job_id)
        cdef int verdict = self.c_judge(slot, present_token(token, &hi, &lo), hi, lo)
        cdef Blob *packed = NULL
        cdef Run *run
        if verdict == ALREADY_FINAL:
            return self.final_tokens[(hi, lo)] == "completed"
        if verdict != MAY and verdict != LATE:
            raise refusal(verdict, job_id)
        if result is not None:
            packed = blob_new(<const char *>result, len(result), result_notes)
        if remove is not False and remove is not True:
            remove = self.c_keep(slot, "removeOnComplete", remove)
        if verdict == LATE:
            self.c_complete_late(slot, packed, remove, now_ms)
        else:
            # A delivery without a lease takes any token, which is not its own.
            run = self.run_at(self.job_at(slot).run)
            hi, lo = run.token_hi, run.token_lo
            self.c_complete(slot, packed, remove, now_ms)
        if remember and hi:
            self.c_finalise(hi, lo, "completed")
        return True

    def demand_ack(self, str job_id not None, str token):
        """Raise what :meth:`ack` would raise for this token. Changes nothing."""
        cdef uint64_t hi, lo
        cdef int verdict = self.c_judge(self.c_slot(job_id), present_token(token, &hi, &lo), hi, lo)
        if verdict not in (MAY, LATE, ALREADY_FINAL):
            raise refusal(verdict, job_id)

    def fail(self, str job_id not None, int64_t now_ms, *, str token=None, str error=None, list stack=None,
             bint unrecoverable=False, object remove=False, bint remember=False):
        """Fail an active job: retry after its backoff, or dead-letter it. False as for :meth:`ack`.

        ``remove`` as there, if this is the end of the job.

        :raises StateError: the job is not active
        :raises LeaseError: the token is missing or wrong
        """
        cdef uint64_t hi, lo
        cdef uint32_t slot = self.c_slot(job_id)
        cdef Job *job
        cdef int verdict = self.c_judge(slot, present_token(token, &hi, &lo), hi, lo)
        cdef Run *run
        if verdict == ALREADY_FINAL:
            return self.final_tokens[(hi, lo)] == "failed"
        if verdict == LATE:
            return False
        if verdict != MAY:
            raise refusal(verdict, job_id)
        if remove is not False and remove is not True:
            job = self.job_at(slot)
            remove = ((unrecoverable or job.attempts + 1 >= job.max_attempts)
                      and self.c_keep(slot, "removeOnFail", remove))
        run = self.run_at(self.job_at(slot).run)
        hi, lo = run.token_hi, run.token_lo
        self.c_fail(slot, error, stack, "max_attempts_exceeded", unrecoverable, remove, now_ms)
        if remember and hi:
            self.c_finalise(hi, lo, "failed")
        return True

    cdef bint c_keep(self, uint32_t slot, str option, object policy) except -1:
        """Give a job that ends now another policy of removal; whether nothing at all is to be kept."""
        cdef Job *job = self.job_at(slot)
        self.c_extra(job)[option] = policy
        job.flags = (job.flags | F_KEEPS) & ~<uint32_t>(
            F_REMOVE_ON_COMPLETE if option == "removeOnComplete" else F_REMOVE_ON_FAIL)
        return (policy.get("count") if isinstance(policy, dict) else policy) == 0

    def renew(self, str job_id not None, int64_t now_ms, int64_t now_ns, *, str token=None, int64_t lease_ms=0):
        """Renew the lease of a delivery; False when it is not this token's any more."""
        cdef uint64_t hi, lo
        cdef int kind = present_token(token, &hi, &lo)
        return self.c_renew(self.c_slot(job_id), kind, hi, lo, lease_ms, now_ms, now_ns)

    cdef int c_demand(self, uint32_t slot, object token, str job_id) except -1:
        """Raise unless the holder of this token may act on this active job."""
        cdef uint64_t hi, lo
        cdef int verdict = self.c_judge(slot, present_token(token, &hi, &lo), hi, lo)
        if verdict != MAY:
            raise refusal(TOKEN_WRONG if verdict == ALREADY_FINAL else verdict, job_id)
        return 0

    def move_to_delayed(self, str job_id not None, int64_t delay_ms, int64_t now_ms, *, str token=None):
        """Put an active job off, uncharged, or change the time of a queued one (no token then).

        :raises NotFoundError: the job is not there
        :raises StateError: it is neither active nor queued
        :raises LeaseError: the token is missing or wrong
        """
        cdef uint32_t slot = self.c_slot(job_id)
        cdef Job *job
        cdef Queue q
        if not slot or self.job_at(slot).state >= STAGED:
            raise NotFoundError("Job not found")
        job = self.job_at(slot)
        if job.state == READY or job.state == DELAYED:
            self.c_retime(slot, now_ms + max(0, delay_ms), now_ms)
        elif job.state == ACTIVE:
            self.c_demand(slot, token, job_id)
            self.c_postpone(slot, now_ms + max(0, delay_ms), now_ms)
            q = self.c_queue_of(job)
            if self.c_event(q, EV_DELAYED):
                self.c_emit(EV_DELAYED, q, job, now_ms, max(0, delay_ms))
        else:
            raise StateError(f"Job is not active (current state: {self.c_state_name(job)})")

    def move_to_wait(self, str job_id not None, int64_t now_ms, *, str token=None):
        """Make a job ready: an active one is given back uncharged, a delayed one promoted, a dead one revived.

        :raises NotFoundError: the job is not there
        :raises StateError: it is in another state
        :raises LeaseError: the token is missing or wrong
        """
        cdef uint32_t slot = self.c_slot(job_id)
        cdef Job *job
        cdef Queue q
        if not slot or self.job_at(slot).state >= STAGED:
            raise NotFoundError("Cannot move job from state 'unknown' to waiting")
        job = self.job_at(slot)
        if job.state == ACTIVE:
            self.c_demand(slot, token, job_id)
            # Behind what is ready already: its holder said "not now".
            self.c_postpone(slot, now_ms, now_ms)
            q = self.c_queue_of(job)
            if self.c_event(q, EV_WAITING):
                self.c_emit(EV_WAITING, q, job, now_ms, "active")
        elif job.state == DELAYED:
            self.c_retime(slot, now_ms, now_ms)
        elif job.state == FAILED:
            if _is_set_aside(job):
                raise StateError(f"Cannot move job {job_id} to waiting: its row in the data file was damaged")
            if not self.c_key_free(slot, now_ms):
                raise StateError(f"Cannot move job {job_id} to waiting: another job holds its unique key")
            self.c_revive(slot, now_ms)
        elif job.state != READY:
            raise StateError(f"Cannot move job from state '{self.c_state_name(job)}' to waiting")

    def move_to_waiting_children(self, str job_id not None, int64_t now_ms, *, str token=None, bint leave=False):
        """Park an active job until its children are done; False when it has none that is not.

        ``leave`` puts it back to its queue in that case, uncharged.

        :raises StateError: the job is not active
        :raises LeaseError: the token is missing or wrong
        """
        cdef uint32_t slot = self.c_slot(job_id)
        if not slot or self.job_at(slot).state != ACTIVE:
            raise StateError("Job is not active")
        self.c_demand(slot, token, job_id)
        return self.c_park(slot, now_ms, leave)

    def promote(self, str job_id not None, int64_t now_ms):
        """Make a delayed job ready; False when it is not delayed."""
        cdef uint32_t slot = self.c_slot(job_id)
        if not slot or self.job_at(slot).state != DELAYED:
            return False
        self.c_retime(slot, now_ms, now_ms)
        return True

    def change_delay(self, str job_id not None, int64_t delay_ms, int64_t now_ms, *, str token=None):
        """As :meth:`move_to_delayed`, but False when the job is neither queued nor active."""
        cdef uint32_t slot = self.c_slot(job_id)
        if not slot or self.job_at(slot).state not in (READY, DELAYED, ACTIVE):
            return False
        self.move_to_delayed(job_id, delay_ms, now_ms, token=token)
        return True

    def retry_dead(self, str queue not None, int64_t now_ms, *, str job_id=None, Py_ssize_t count=-1):
        """Revive dead letters of a queue: one by id, the oldest ``count``, or all. How many."""
        cdef Queue q = self.queues.get(queue)
        cdef uint32_t slot, at
        cdef Py_ssize_t n = 0
        if q is None:
            return 0
        if job_id is not None:
            slot = self.c_slot(job_id)
            if not slot or self.job_at(slot).state != FAILED or self.job_at(slot).queue != q.index \
                    or _is_set_aside(self.job_at(slot)) or not self.c_key_free(slot, now_ms):
                return 0
            self.c_revive(slot, now_ms)
            return 1
        at = q.failed.head
        while at and n != count:
            slot = self.run_at(at).job
            at = self.run_at(at).next
            if not _is_set_aside(self.job_at(slot)) and self.c_key_free(slot, now_ms):
                self.c_revive(slot, now_ms)
                n += 1
        return n

    def remove(self, str job_id not None):
        """Remove a job in whatever state; False when it is not there.

        One whose durable add is still to be committed is not there yet, and stays.
        """
        cdef uint32_t slot = self.c_known(job_id)
        if not slot:
            return False
        self.c_forget(slot)
        return True

    # --- control -----------------------------------------------------------------------------

    def cancel(self, str job_id not None, int64_t now_ms):
        """Remove a queued job; False when it is not queued.

        The id of a finished run of a repeated job stands for the run to come.
        """
        cdef uint32_t slot = self.c_known(job_id)
        cdef Queue q
        if not slot or self.job_at(slot).state not in (READY, DELAYED, PARKED):
            slot = self.c_follow(job_id)
            if not slot or self.job_at(slot).state == ACTIVE:
                return False
        q = self.c_queue_of(self.job_at(slot))
        if self.c_event(q, EV_REMOVED):
            # As recorded, whatever state it was in.
            self.c_emit(EV_REMOVED, q, self.job_at(slot), now_ms, "waiting")
        self.c_forget(slot)
        return True

    def discard(self, str job_id not None, int64_t now_ms, *, str token=None):
        """Dead-letter a queued or active job, with the reason ``unknown`` and without an error.

        :raises NotFoundError: the job is not there, or is finished
        :raises LeaseError: the job is active, and the token is missing or wrong
        """
        cdef uint32_t slot = self.c_known(job_id)
        if not slot or self.job_at(slot).state not in (READY, DELAYED, ACTIVE, PARKED):
            raise NotFoundError("Job not found")
        if self.job_at(slot).state == ACTIVE:
            self.c_demand(slot, token, job_id)
        self.c_discard(slot, now_ms)

    def drain(self, str queue not None):
        """Remove the queued jobs of a queue, not the active and the finished ones. How many. O(n)."""
        cdef Queue q = self.queues.get(queue)
        return 0 if q is None else self.c_drain(q)

    def obliterate(self, str queue not None):
        """Remove all jobs of a queue, active ones too, and what was set for it. O(n)."""
        cdef Queue q = self.queues.get(queue)
        if q is not None:
            self.c_obliterate(q)
        else:
            self.c_forget_counts(queue)

    def clean(self, str queue not None, int64_t now_ms, *, int64_t grace_ms=0, str state=None,
              Py_ssize_t limit=1000):
        """Remove jobs of one state that are ``grace_ms`` old, oldest first; their ids.

        A finished job is as old as its end, another one as its creation. No state means
        every queued job. Of the completed ones those that no live job depends on, and of
        the archived those that the host has read back. O(removed).
        """
        cdef Queue q = self.queues.get(queue)
        cdef list slots, ids = []
        cdef uint32_t slot
        if q is None or limit <= 0 or state == "active":
            return ids
        self.c_promote(q, now_ms, PROMOTIONS)
        if state == "completed":
            slots = self.c_completed(q, now_ms - grace_ms, limit, False)
        elif state == "failed":
            slots = self.c_ended(&q.failed, now_ms - grace_ms, limit)
        elif state is None:
            slots = self.c_created(q, ("waiting", "prioritized", "delayed", "paused", "waiting-children"),
                                   now_ms - grace_ms, limit)
        else:
            slots = self.c_created(q, ("waiting" if state == "wait" else state,), now_ms - grace_ms, limit)
        for slot in slots:
            ids.append(self.c_id(self.job_at(slot)))
            self.c_forget(slot)
        return ids

    def promote_jobs(self, str queue not None, int64_t now_ms, *, Py_ssize_t count=-1):
        """Make delayed jobs ready: the oldest ``count``, or all. How many. O(n) of the delayed."""
        cdef Queue q = self.queues.get(queue)
        cdef list slots
        cdef uint32_t slot
        if q is None or count == 0:
            return 0
        self.c_promote(q, now_ms, PROMOTIONS)
        slots = self.c_select(q, ("delayed",), 0, q.delayed.n if count < 0 else count, True, now_ms)
        for slot in slots:
            self.c_retime(slot, now_ms, now_ms)
        return len(slots)

    def change_priority(self, str job_id not None, double priority, int64_t now_ms, *, object lifo=None):
        """Give a queued job another priority, and another side of its equals; False when it is not queued.

        :raises CommandError: the job has a group, and the priority is none of a group: 0 to 2097151, whole
        """
        cdef uint32_t slot = self.c_known(job_id)
        if not slot or self.job_at(slot).state not in (READY, DELAYED):
            return False
        if self.job_at(slot).flags & F_GROUPED and not (0 <= priority <= limits.MAX_GROUP_PRIORITY
                                                        and priority == <int64_t>priority):
            raise CommandError(f"group.priority must be an integer between 0 and {limits.MAX_GROUP_PRIORITY}")
        self.c_reprioritise(slot, priority, -1 if lifo is None else bool(lifo), now_ms)
        return True

    def update(self, str job_id not None, bytes data not None, *, uint32_t notes=0):
        """Give a queued or active job other packed data; False when it is neither.

        The id of a finished run of a repeated job stands for the run that is live.

        ``notes`` are the ``BlobNote`` bits of the data.

        :raises LimitError: the data are larger than the job's ``sizeLimit``
        """
        cdef uint32_t slot = self.c_known(job_id)
        cdef Job *job
        cdef object limit = None
        if not slot or self.job_at(slot).state not in (READY, DELAYED, ACTIVE, PARKED):
            slot = self.c_follow(job_id)
            if not slot:
                return False
        job = self.job_at(slot)
        if job.extra != NULL:
            limit = (<dict>job.extra).get("sizeLimit")
        if limit is not None and len(data) > limit:
            raise LimitError(f"Job data of {len(data)} bytes is over its sizeLimit of {limit}")
        self.c_replace_data(slot, blob_new(<const char *>data, len(data), notes))
        return True

    def demand_holder(self, str job_id not None, str token not None):
        """Raise unless the job is active, and under this lease if under one.

        :raises StateError: it is not active
        :raises LeaseError: the lease is another's
        """
        cdef uint32_t slot = self.c_known(job_id)
        if not slot or self.job_at(slot).state != ACTIVE:
            raise refusal(NOT_ACTIVE, job_id)
        self.c_demand(slot, token, job_id)

    def set_progress(self, str job_id not None, double progress, int64_t now_ms, int64_t now_ns=0, *,
                     str message=None):
        """Note how far an active job has come, 0 to 100; no message keeps the last one. A sign of life too.

        :raises NotFoundError: the job is not there
        :raises StateError: it is not active
        """
        cdef uint32_t slot = self.c_known(job_id)
        if not slot:
            raise NotFoundError("Job not found")
        if self.job_at(slot).state != ACTIVE:
            raise StateError(f"Job is not active (current state: {self.c_state_name(self.job_at(slot))})")
        progress = max(0.0, min(100.0, progress))
        self.c_progress(slot, int(progress) if progress == <int>progress else progress, message, now_ms,
                        now_ns)

    def retry_completed(self, str queue not None, int64_t now_ms, *, str job_id=None, Py_ssize_t count=-1,
                        object until_ms=None):
        """Start completed jobs over: one by id, the oldest ``count``, or all; how many.

        ``until_ms``: only those completed by then. Only those whose results nobody needs, and
        of the archived those that the host has read back.
        """
        cdef Queue q = self.queues.get(queue)
        cdef list slots
        cdef uint32_t slot
        cdef Py_ssize_t n = 0
        if q is None:
            return 0
        if job_id is not None:
            slot = self.c_known(job_id)
            if not slot or self.job_at(slot).state != COMPLETED or self.job_at(slot).queue != q.index:
                return 0
            slots = [slot]
            count = -1
        else:
            # What another job's key refuses does not count, nor what others need.
            slots = self.c_completed(q, INT64_MAX if until_ms is None else until_ms,
                                     -1 if q.keys or self.needed else count, True)
        for slot in slots:
            if n == count:
                break
            if self.job_at(slot).flags & F_NEEDED:
                continue
            if (until_ms is None or self.run_at(self.job_at(slot).run).finished_ms <= until_ms) \
                    and self.c_key_free(slot, now_ms):
                self.c_redo(slot, now_ms)
                n += 1
        return n

    def expire(self, int64_t until_ms, Py_ssize_t most):
        """Remove completed jobs that ended by then, but for those that live jobs need. How many; at most ``most``."""
        return self.c_expire(until_ms, most)

    def purge_dead(self, str queue not None):
        """Remove the dead letters of a queue; how many."""
        cdef Queue q = self.queues.get(queue)
        return 0 if q is None else self.c_purge(q, 0)

    def remove_dead(self, str queue not None, str job_id not None):
        """Remove one dead letter of a queue; False when it is not there."""
        cdef Queue q = self.queues.get(queue)
        cdef uint32_t slot = self.c_known(job_id)
        if q is None or not slot or self.job_at(slot).state != FAILED or self.job_at(slot).queue != q.index:
            return False
        self.c_forget(slot)
        return True

    def configure(self, str queue not None, *, dict dead=None, dict stalls=None):
        """Change settings of a queue: keys of ``DLQ_DEFAULTS`` and ``STALL_DEFAULTS`` with checked values.

        What holds for dead letters is fixed when they become that, but for their number.
        """
        if dead or stalls:
            self.c_configure(self.c_queue(queue), dead or {}, stalls or {})

    def remove_job_key(self, str job_id not None):
        """Take its unique key from a job; False when it does not hold one."""
        cdef uint32_t slot = self.c_known(job_id)
        cdef Job *job
        cdef Queue q
        cdef object found
        if not slot or not self.job_at(slot).flags & F_KEYED:
            return False
        job = self.job_at(slot)
        q = self.c_queue_of(job)
        found = q.keys.get(key_of(<dict>job.extra))
        if found is None or <uint32_t>found != slot:
            return False
        self.c_drop_key(q, slot)
        return True

    # --- log lines ---------------------------------------------------------------------------

    def add_log(self, str job_id not None, str message not None, str level not None, int64_t now_ms):
        """Append a line to the log of a job, which keeps its last 100, or fewer by its ``keepLogs``.

        :raises NotFoundError: the job is not there
        """
        cdef uint32_t slot = self.c_known(job_id)
        if not slot:
            raise NotFoundError("Job not found")
        self.c_add_log(self.job_at(slot), now_ms, level, message)

    def clear_logs(self, str job_id not None, *, Py_ssize_t keep=0):
        """Drop the log of a job but its newest ``keep`` lines."""
        cdef uint32_t slot = self.c_known(job_id)
        if slot:
            self.c_clear_log(self.job_at(slot).seq, keep)

    def close_session(self, uint32_t session, int64_t now_ms):
        """A connection ended: it loses the deliveries it never renewed. How many.

        They go back uncharged, until that was so often for a job that it has reached the limit of stalls.
        """
        cdef uint32_t at
        cdef Run *run
        cdef int n = 0
        if session >= self.cap_sessions:
            return 0
        while self.sessions[session]:
            at = self.sessions[session]
            run = self.run_at(at)
            if run.renewals:
                self.c_disown(run)      # another connection of the same worker may be renewing it
            else:
                self.c_cut_off(run.job, now_ms)
                n += 1
        return n

    def advance(self, int64_t now_ms, int64_t now_ns):
        """Do what is due; True when more is due at once (work in one call is bounded)."""
        return self.c_advance(now_ms, now_ns) != 0

    def next_due(self, int64_t now_ms, int64_t now_ns):
        """Nanoseconds until the engine next has something to do; None when nothing is due ever."""
        cdef int64_t left = self.c_next_due(now_ms, 0, now_ns)
        return None if left < 0 else left

    def pause(self, str queue not None, bint paused=True, *, int64_t now_ms=0):
        """Pause or resume a queue; told each time, also when it changes nothing. Resuming makes none."""
        cdef Queue q
        cdef int kind = EV_PAUSED if paused else EV_RESUMED
        if not paused and queue not in self.queues:
            return
        q = self.c_queue(queue)
        q.paused = paused
        self.c_mark_queue(q)
        if self.c_event(q, kind):
            self.c_emit(kind, q, NULL, now_ms, None)
        if not paused and q.n_waits:
            self.c_wake(q)

    def listen(self, str queue not None, int mask):
        """Choose the events of a queue that are built (bits of ``EVENT_BITS``), also if it is not there yet."""
        cdef Queue q = self.queues.get(queue)
        if mask:
            self.wanted[queue] = mask
        else:
            self.wanted.pop(queue, None)
        if q is not None:
            q.event_mask = self.everywhere | <uint32_t>mask

    def listen_everywhere(self, int mask):
        """Choose the events that are built of every queue, besides those of :meth:`listen`. O(queues)."""
        cdef Queue q
        self.everywhere = mask
        for q in self.queues.values():
            q.event_mask = self.everywhere | <uint32_t>self.wanted.get(q.name, 0)

    def take_events(self):
        """The events since the last call: (type, queue, job id, ms, data by type, see ``c_emit``)."""
        cdef list out = self.events
        self.events = []
        return out

    def trim_events(self, str queue not None, Py_ssize_t max_length):
        """Keep only the newest ``max_length`` of a queue's journal; how many were dropped."""
        cdef Queue q = self.queues.get(queue)
        cdef Py_ssize_t n
        if q is None or q.n_events <= max_length:
            return 0
        n = q.n_events - max_length
        q.n_events = max_length
        self.c_trim_journal(q)
        if not q.counted:
            self.c_mark_counts(q)
        return n

    def watch(self, str job_id not None):
        """Note the outcome of a job once it is known (see ``settled``).

        ``waiting`` when that is to come; else the outcome as it is: ``completed``, ``failed`` or ``removed``.
        A job that was removed when it was completed counts as completed for as long as that is known.
        """
        cdef uint32_t slot = self.c_slot(job_id)
        if not slot or self.job_at(slot).state >= STAGED:
            return "removed" if self.c_done_as(job_id) == OPEN else "completed"
        if self.job_at(slot).state == COMPLETED:
            return "completed"
        if self.job_at(slot).state == FAILED:
            return "failed"
        self.job_at(slot).flags |= F_WATCHED
        return "waiting"

    def _numbered(self):
        """The id of each job by its number of admission, also of those that nobody sees yet; O(n), for tests."""
        cdef uint32_t slot
        return {self.job_at(slot).seq: self.c_id(self.job_at(slot))
                for slot in range(1, self.jobs.fresh) if self.job_at(slot).state}

    def _check(self):
        """Every invariant of the engine, O(n); raises AssertionError that says which."""
        cdef uint32_t slot, at
        cdef Job *job
        cdef Run *run
        cdef Queue q
        cdef Key key
        cdef int64_t due
        cdef dict seen = {}
        cdef Py_ssize_t n_jobs = 0, n_runs = 0, n_deadlines = 0, n_dirty = 0, n_leaving = 0
        cdef SkipNode *node
        cdef Group g
        for slot in range(1, self.jobs.fresh):
            job = self.job_at(slot)
            if job.state == 0:
                continue
            n_jobs += 1
            assert 0 < job.state <= KEPT, f"slot {slot}: state {job.state}"
            assert self.c_slot(self.c_id(job)) == slot, f"slot {slot}: not found by its id"
            assert 0 < job.seq <= self.seq
            if job.flags & F_DIRTY:
                n_dirty += 1
                assert self.tracking and self.dirty[job.dirty_at] == slot
            self.c_check_logs(job, job.seq)
            assert not job.flags & F_REWRITE or job.flags & F_DIRTY or not self.tracking
            has_run = job.state in (ACTIVE, COMPLETED, FAILED, KEPT)
            assert (job.run != 0) == has_run, f"slot {slot}: state {job.state}, run {job.run}"
            assert (job.delayed != 0) == (job.state == DELAYED or job.flags & F_EVICTED != 0
                                          or (job.state == READY and job.flags & F_GROUPED != 0))
            if has_run:
                n_runs += 1
                run = self.run_at(job.run)
                assert run.job == slot
                if job.state == ACTIVE:
                    n_deadlines += run.deadline != 0
                else:
                    assert run.session == 0 and run.expires_ns == 0
            if job.flags & F_EVICTED:
                n_leaving += 1
                assert not job.flags & F_NEEDED
            else:
                seen.setdefault((job.queue, job.state), set()).add(slot)
        self.c_check_counts()
        assert n_jobs == self.index.n, f"{n_jobs} jobs, {self.index.n} in the index"
        assert n_jobs == self.jobs.n_used
        assert n_runs + (self.spare_run != 0) == self.runs.n_used
        assert n_deadlines == self.deadlines.n
        self.c_check_losses()
        assert n_leaving == self.n_leaving
        self.c_check_archive()
        assert n_dirty == sum(1 for i in range(self.n_dirty) if self.dirty[i])
        self.c_check_keys()
        self.c_check_schedules()
        self.c_check_flows()
        self.done._check()
        self.due._check()
        self.deadlines._check()
        self.index._check()
        self.checks._check()
        self.c_check_capacity()
        for q in self.queues.values():
            q.ready._check()
            q.delayed._check()
            mine = set()
            prioritized = 0
            node = q.ready.c_begin()
            while node != NULL:
                job = self.job_at(node.value)
                self.c_key(job, &key)
                assert key.a == node.key.a and key.b == node.key.b and key.c == node.key.c
                prioritized += job.priority > 0
                mine.add(node.value)
                node = q.ready.c_after(node)
            if q.lanes is not None:
                for g in q.lanes.by_name.values():
                    for i in range(g.ready.n):
                        slot = g.ready.c_at(i, &due)
                        prioritized += self.job_at(slot).priority > 0
                        mine.add(slot)
            assert mine == seen.pop((q.index, READY), set())
            assert prioritized == q.n_prioritized
            mine = set()
            for i in range(q.delayed.n):
                slot = q.delayed.c_at(i, &due)
                assert due == self.job_at(slot).run_ms
                mine.add(slot)
            assert mine == seen.pop((q.index, DELAYED), set())
            assert (q.due != 0) == (q.delayed.n > 0)
            for state, list_ in ((ACTIVE, q.active), (COMPLETED, q.completed), (FAILED, q.failed)):
                mine = set()
                at, before = list_.head, 0
                while at:
                    run = self.run_at(at)
                    assert run.prev == before
                    assert state == ACTIVE or not before or run.number >= self.run_at(before).number
                    assert state == ACTIVE or run.number <= self.ends
                    mine.add(run.job)
                    before, at = at, run.next
                assert list_.tail == before and list_.n == len(mine)
                assert mine == seen.pop((q.index, state), set())
            self.c_check_listing(q)
            assert q.n_staged == len(seen.pop((q.index, STAGED), set()))
            assert set(q.parked) == seen.pop((q.index, PARKED), set())
            assert q.n_hidden == len(seen.pop((q.index, KEPT), set()))
            assert self.c_queue_at(q.index) is q and self.queues[q.name] is q and not q.gone
            assert q.failed.n <= q.dlq_max_entries == q.dlq_config["maxEntries"]
            assert q.max_stalls == q.stall_config["maxStalls"]
        assert not seen, f"jobs in no structure: {seen}"
        for session in range(self.cap_sessions):
            at, before = self.sessions[session], 0
            while at:
                run = self.run_at(at)
                assert run.session == session and run.session_prev == before
                assert self.job_at(run.job).state == ACTIVE
                before, at = at, run.session_next
