"""Unique keys: at most one live job of a queue holds a key.

What a job wants of its key stands in its rare options and so on disk: ``uniqueKey``,
``deduplicationTtl`` (ms), ``deduplicationExtend``, ``deduplicationReplace`` and
``deduplicationKeep``; or ``debounceId`` and ``debounceTtl``, which make a key of their
own kind. Admission adds ``keyExpires``, the end of its time on the wall clock, and
``keyPassed`` marks a live job that has lost its key to another. A queue maps its keys
to their holders; that index is rebuilt from the jobs after a restart, and nothing ever
pushes a live holder out of it.

A key with ``deduplicationKeep`` outlives its job until its time is over. Such keys have
rows of their own; their number is bounded, the one that would end first goes first.
"""

from libc.stdint cimport int64_t, uint32_t

from qcore.engine.job cimport ACTIVE, COMPLETED, F_KEYED, F_NEEDED, FAILED, PARKED, Job
from qcore.engine.logs cimport Logs
from qcore.engine.queue cimport Queue
from qcore.structs.delayheap cimport DelayHeap

import msgpack

from qcore import limits

_KEY_OPTIONS = (
    "uniqueKey", "deduplicationTtl", "deduplicationExtend", "deduplicationReplace", "deduplicationKeep",
    "debounceId", "debounceTtl", "keyExpires", "keyPassed",
)


cdef object key_of(dict extra):
    """What a job stands under in the keys of its queue: a text, or a pair for a debounce; None = nothing."""
    cdef object key = extra.get("uniqueKey")
    if key is not None:
        return key
    key = extra.get("debounceId")
    if key is not None and extra.get("debounceTtl") is not None:
        return ("debounce", key)
    return None


cdef inline bint _over(dict extra, int64_t now_ms) except -1:
    """Whether the time of a key is over."""
    cdef object expires = extra.get("keyExpires")
    return expires is not None and <int64_t>expires <= now_ms


cdef inline bint _replaces(dict extra) except -1:
    return extra.get("uniqueKey") is None or bool(extra.get("deduplicationReplace"))


cdef inline bint _extends(dict extra) except -1:
    return bool(extra.get("deduplicationExtend")) and extra.get("deduplicationTtl") is not None


cdef class Keys(Logs):
    """:class:`~qcore.engine.logs.Logs` with the unique keys of jobs."""

    def __cinit__(self):
        self.kept_keys = {}
        self.key_ends = DelayHeap()
        self.spare_numbers = []

    # --- adding ----------------------------------------------------------------------

    cdef int c_judge_key(self, Queue q, dict extra, int64_t now_ms, uint32_t *holder) except -1:
        """What an add with the key of these options comes to. ``holder`` is its holder, also one whose time is over.

        Changes nothing. Replacing goes before extending, extending before the default.
        """
        cdef object key = key_of(extra), found = q.keys.get(key)
        cdef Job *job
        cdef bint tied
        holder[0] = 0
        if found is None:
            found = q.kept.get(key)
            if found is not None and self.kept_keys[found][2] > now_ms:
                self.kept_by = self.kept_keys[found][3]
                return KEY_KEPT
            return KEY_FREE
        holder[0] = found
        job = self.job_at(holder[0])
        if _over(<dict>job.extra, now_ms):
            return KEY_FREE
        tied = job.state == PARKED or job.flags & F_NEEDED or self.c_id(job) in (extra.get("dependsOn") or ())
        if _replaces(extra):
            if job.state == ACTIVE:
                return KEY_PASSED
            return KEY_TIED if tied else KEY_REPLACED
        if _extends(extra):
            return KEY_BUSY if job.state == ACTIVE or tied else KEY_EXTENDED
        return KEY_HELD

    cdef str c_key_refusal(self, int verdict, str holder):
        if verdict == KEY_BUSY:
            return "Duplicate unique_key (extended TTL)"
        return f"Cannot replace deduplicated job {holder} because live jobs depend on it"

    cdef object c_missing(self, list members, set added, set gone, dict lost):
        """The (index, text) of the first member of a batch that waits for one that will not be there; see above."""
        return None

    def plan_keys(self, str queue not None, list members not None, int64_t now_ms, *, set unmade=None):
        """Whether jobs with these (custom id or None, rare options or None) can all be added, in order.

        None, or the (index, text) of the first one that would be refused for its key, or that
        waits for one that its key keeps out. Members see what the members before them do;
        nothing is changed. ``unmade`` gets the ids of members that are not added.
        """
        cdef Queue q = self.queues.get(queue)
        cdef dict extra, owners = {}        # key -> (custom id, tied, parent, place) of a member
        cdef set ids = set(), needed = set(), gone = set(), added = set()
        cdef dict lost = {}                 # custom ids of members that are not added -> True
        cdef uint32_t slot, holder
        cdef int verdict
        cdef Py_ssize_t i
        for i in range(len(members)):
            job_id, extra = members[i]
            if job_id is not None:
                slot = self.c_slot(job_id)
                if job_id in ids or (slot and job_id not in gone
                                     and self.job_at(slot).state not in (COMPLETED, FAILED)):
                    continue
            key = None if extra is None else key_of(extra)
            if key is not None:
                if key in owners:
                    name, tied, parent, place = owners[key]
                    tied = tied or name in needed
                    verdict = KEY_HELD
                    if _replaces(extra):
                        verdict = KEY_TIED if tied else KEY_REPLACED
                    elif _extends(extra):
                        verdict = KEY_BUSY if tied else KEY_EXTENDED
                    if verdict == KEY_REPLACED:
                        ids.discard(name)
                        added.discard(place)
                        lost[name] = True
                else:
                    holder = 0
                    verdict = KEY_FREE if q is None else self.c_judge_key(q, extra, now_ms, &holder)
                    name = self.c_id(self.job_at(holder)) if holder else None
                    parent = (<dict>self.job_at(holder).extra).get("parentId") if holder else None
                    if name in needed:
                        verdict = {KEY_REPLACED: KEY_TIED, KEY_EXTENDED: KEY_BUSY}.get(verdict, verdict)
                    if verdict == KEY_REPLACED:
                        gone.add(name)
                if verdict == KEY_BUSY or verdict == KEY_TIED:
                    return i, self.c_key_refusal(verdict, name if name is not None else "of the same batch")
                if verdict in (KEY_HELD, KEY_EXTENDED, KEY_KEPT):
                    # Nothing is added. A parent that is there would not wait for it.
                    wanted = extra.get("parentId")
                    if wanted is not None and parent != wanted and (
                            self.c_slot(wanted) or any([other == wanted for other, _ in members])):
                        return i, f"The unique key is held by a job that is not a child of {wanted}"
                    if job_id is not None:
                        lost[job_id] = True
                    continue
                ttl = extra.get("deduplicationTtl")
                if ttl is None or ttl > 0:
                    owners[key] = (job_id, bool(extra.get("dependsOn")), extra.get("parentId"), i)
                else:
                    owners.pop(key, None)
            if job_id is not None:
                ids.add(job_id)
            added.add(i)
            if extra is not None:
                needed.update(extra.get("dependsOn", ()))
        for job_id in ids:
            lost.pop(job_id, None)
        if unmade is not None:
            unmade.update(lost)
        return self.c_missing(members, added, gone - ids, lost)

    cdef int c_take_key(self, Queue q, uint32_t slot, dict extra, int64_t now_ms) except -1:
        """A new job holds its key from now on."""
        cdef object key = key_of(extra), ttl = None
        if extra.get("uniqueKey") is not None:
            ttl = extra.get("deduplicationTtl")
        if ttl is not None:
            extra["keyExpires"] = now_ms + <int64_t>ttl
        if key in q.kept:
            self.c_drop_kept(q.kept[key])
        q.keys[key] = slot
        return 0

    cdef int c_pass_key(self, Queue q, uint32_t slot) except -1:
        """A holder goes on without its key."""
        cdef Job *job = self.job_at(slot)
        del q.keys[key_of(<dict>job.extra)]
        if job.state != COMPLETED and job.state != FAILED:
            (<dict>job.extra)["keyPassed"] = True
            self.c_mark(slot, job)
        return 0

    # --- the end of a holder ------------------------------------------------------------

    cdef int c_release_key(self, uint32_t slot, Job *job) except -1:
        """A keyed job is terminal, or about to be removed: its key is free, if it was its holder."""
        cdef dict extra = <dict>job.extra
        cdef Queue q = self.c_queue_of(job)
        cdef object key = key_of(extra), found = q.keys.get(key)
        if found is None or <uint32_t>found != slot:
            return 0
        del q.keys[key]
        if extra.get("deduplicationKeep") and extra.get("keyExpires") is not None:
            self.c_keep_key(q, key, extra["keyExpires"], self.c_id(job))
        return 0

    cdef int c_keep_key(self, Queue q, object key, int64_t expires_ms, str job_id) except -1:
        """Hold a key without its job until its time is over."""
        cdef uint32_t number
        cdef int64_t due
        while len(self.kept_keys) >= limits.MAX_KEPT_KEYS:
            self.key_ends.c_first(&due, &number)
            self.c_drop_kept(number)
        if key in q.kept:
            self.c_drop_kept(q.kept[key])
        if self.spare_numbers:
            number = self.spare_numbers.pop()
        else:
            self.last_number += 1
            number = self.last_number
        self.c_restore_kept(number, q, key, expires_ms, job_id)
        self.c_side("keys", number, msgpack.packb([q.index, key, expires_ms, job_id]))
        return 0

    cdef int c_restore_kept(self, uint32_t number, Queue q, object key, int64_t expires_ms, str job_id) except -1:
        q.kept[key] = number
        self.kept_keys[number] = (q, key, expires_ms, job_id, self.key_ends.c_push(expires_ms, number, number))
        if number > self.last_number:
            self.spare_numbers += range(self.last_number + 1, number)
            self.last_number = number
        return 0

    cdef int c_drop_kept(self, uint32_t number) except -1:
        """Let go of a key without a job."""
        q, key, _, _, handle = self.kept_keys.pop(number)
        self.key_ends.c_remove(handle)
        del (<Queue>q).kept[key]
        self.spare_numbers.append(number)
        return self.c_side("keys", number, None)

    # --- starting over ------------------------------------------------------------------

    cdef bint c_key_free(self, uint32_t slot, int64_t now_ms) except -1:
        """Whether no other live job holds the key of this finished one, so that it may start over."""
        cdef Job *job = self.job_at(slot)
        cdef object found
        if not job.flags & F_KEYED:
            return True
        found = self.c_queue_of(job).keys.get(key_of(<dict>job.extra))
        return found is None or _over(<dict>self.job_at(found).extra, now_ms)

    cdef int c_retake_key(self, uint32_t slot, Job *job, int64_t now_ms) except -1:
        """A finished job starts over: it holds its key again, unless that is over or another's."""
        cdef dict extra = <dict>job.extra
        cdef Queue q = self.c_queue_of(job)
        cdef object key = key_of(extra), found
        if _over(extra, now_ms) or not self.c_key_free(slot, now_ms):
            extra["keyPassed"] = True
            return 0
        found = q.keys.get(key)
        if found is not None:
            self.c_pass_key(q, found)
        if key in q.kept:
            self.c_drop_kept(q.kept[key])
        extra.pop("keyPassed", None)
        q.keys[key] = slot
        return 0

    cdef int c_restore_key(self, uint32_t slot, Job *job, int64_t now_ms) except -1:
        """A live job comes back from its row, in order of admission.

        A key that is kept was a later job's, also where the clock was set back to a time of this one.
        """
        cdef dict extra = <dict>job.extra
        cdef Queue q = self.c_queue_of(job)
        # Also one whose time is over: who takes it from here marks it as passed, as without a restart.
        if not extra.get("keyPassed") and key_of(extra) not in q.kept:
            q.keys[key_of(extra)] = slot
        return 0

    # --- control --------------------------------------------------------------------------

    cdef int c_drop_key(self, Queue q, uint32_t slot) except -1:
        """Take its key from a holder for good, in its row as well."""
        cdef Job *job = self.job_at(slot)
        cdef dict extra = <dict>job.extra
        del q.keys[key_of(extra)]
        for name in _KEY_OPTIONS:
            extra.pop(name, None)
        job.flags &= ~<uint32_t>F_KEYED
        return self.c_mark(slot, job)

    def key_owner(self, str queue not None, str key not None, int64_t now_ms):
        """Id of the job that holds a key, or for which it is kept; None when the key is free."""
        cdef Queue q = self.queues.get(queue)
        cdef object found
        if q is None:
            return None
        found = q.keys.get(key)
        if found is not None:
            return None if _over(<dict>self.job_at(found).extra, now_ms) else self.c_id(self.job_at(found))
        found = q.kept.get(key)
        if found is None or self.kept_keys[found][2] <= now_ms:
            return None
        return self.kept_keys[found][3]

    def remove_key(self, str queue not None, str key not None, int64_t now_ms):
        """Free a key, whoever holds it; False when it is free. Its job goes on without it."""
        cdef Queue q = self.queues.get(queue)
        cdef bint held = q is not None and self.key_owner(queue, key, now_ms) is not None
        if q is None:
            return False
        if key in q.keys:
            self.c_drop_key(q, q.keys[key])
        if key in q.kept:
            self.c_drop_kept(q.kept[key])
        return held

    cdef int c_check_keys(self) except -1:
        """Every key has a live holder that knows it, or is kept for its time."""
        cdef Queue q
        cdef Job *job
        cdef uint32_t slot
        cdef Py_ssize_t n_kept = 0
        for q in self.queues.values():
            for key, found in q.keys.items():
                slot = found
                job = self.job_at(slot)
                assert job.state not in (0, COMPLETED, FAILED), f"{key!r} is held by a job in state {job.state}"
                assert job.queue == q.index and job.flags & F_KEYED
                assert key_of(<dict>job.extra) == key and "keyPassed" not in <dict>job.extra
                assert key not in q.kept
            for key, number in q.kept.items():
                assert self.kept_keys[number][:2] == (q, key)
                assert self.key_ends.c_due(self.kept_keys[number][4]) == self.kept_keys[number][2]
                n_kept += 1
        assert n_kept == len(self.kept_keys) == self.key_ends.n <= limits.MAX_KEPT_KEYS
        self.key_ends._check()
        return 0
