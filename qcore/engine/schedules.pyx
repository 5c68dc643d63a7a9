"""Jobs that are added by the clock: named schedules, and the next run of a repeated job.

A schedule has one slot ahead, in a heap by the wall clock. When it comes, the count of
runs and the next slot change in the same step as the job appears, so every cut has both
or neither: a crash neither loses nor doubles a slot that was saved. Arithmetic is in
:mod:`qcore.engine.schedule` and :mod:`qcore.engine.cron`.
"""

from libc.stdint cimport INT64_MIN, int64_t, uint32_t, uint64_t
from libc.string cimport memset

from qcore.engine.flows cimport Flows
from qcore.engine.job cimport (
    ACTIVE, DELAYED, F_DURABLE, F_GROUPED, F_KEYED, F_LIFO, F_REMOVE_ON_COMPLETE, F_REMOVE_ON_FAIL, F_REPEATS,
    PARKED, READY, Job, Run, blob_bytes, blob_free, blob_new, c_until,
)
from qcore.engine.keys cimport KEY_FREE
from qcore.engine.losses cimport AT_ONCE
from qcore.engine.queue cimport Queue
from qcore.engine.table cimport EV_STALLED
from qcore.engine.transitions cimport ADDED, REPLACED, Spec
from qcore.engine.workers cimport Workers
from qcore.structs.delayheap cimport DelayHeap

from qcore import limits
from qcore.engine.cron import Cron
from qcore.engine.schedule import RUN_STATE, Schedule, next_occurrence
from qcore.errors import StateError

# The wall clock may be set while nothing happens, and a machine may sleep: no slot is waited for longer at once.
cdef int64_t LOOK_AGAIN_NS = 60_000_000_000
# A smaller step back is the clock being steered.
cdef int64_t STEP_MS = 1000
cdef enum:
    CHAIN_LINKS = 10000
    COMPILED = 1000

cdef tuple KEY_OPTIONS = (
    "uniqueKey", "deduplicationTtl", "deduplicationExtend", "deduplicationReplace", "deduplicationKeep",
    "debounceTtl",
)
cdef tuple LIVE = (READY, DELAYED, ACTIVE, PARKED)


cdef class Schedules(Flows):
    """:class:`~qcore.engine.flows.Flows` with schedules, repeated jobs and the registry of workers."""

    def __cinit__(self, *args, **options):
        self.workers = Workers()
        self.schedules = {}
        self.schedule_at = [None]
        self.free_numbers = []
        self.scheduled = {}
        self.slots = DelayHeap()
        self.occurrences = {}
        self.looked_ms = INT64_MIN // 2
        self.successors = {}
        self.compiled = {}

    # --- schedules ---------------------------------------------------------------------

    def put_schedule(self, str name not None, str queue not None, int64_t now_ms, int64_t now_ns, *,
                     str pattern=None, object every_ms=None, str zone=None, bytes data=None, uint32_t notes=0,
                     dict job=None, int64_t max_runs=0, bint immediately=False, bint prevent_overlap=True,
                     bint skip_missed=True, bint skip_if_no_worker=False):
        """Create or change a schedule and return it. The same settings again change nothing.

        A pattern wins over an interval. A change keeps the count of runs, and the next slot
        if the timing stays; a queued job of the old settings is removed if overlap is
        prevented. ``immediately`` runs a new schedule at once. O(log n).

        :raises CronError: pattern or zone are not acceptable
        :raises ValueError: there is neither a pattern nor a positive interval
        """
        self.looked_ms = max(self.looked_ms, now_ms)
        made = Schedule(name, queue, pattern, every_ms, zone, data, notes, job or {}, max(0, max_runs),
                        prevent_overlap, skip_missed, skip_if_no_worker)
        old = self.schedules.get(name)
        if old is not None and old.definition == made.definition:
            return old
        if not made.start(now_ms):
            raise ValueError("it never comes due")
        if old is not None:
            made.executions = old.executions
            if old.timing == made.timing:
                made.next_ms = old.next_ms
                made.created_ms = old.created_ms
                made.planned_ms = old.planned_ms
            self.c_drop_leftover(old)
            self.c_schedules_of(old.queue, -1)
            made.number = old.number
            made.handle = old.handle
            self.schedule_at[made.number] = made
        elif self.free_numbers:
            made.number = self.free_numbers.pop()
            self.schedule_at[made.number] = made
        else:
            made.number = len(self.schedule_at)
            self.schedule_at.append(made)
        self.schedules[name] = made
        self.c_schedules_of(queue, 1)
        self.c_plan(made)
        if old is None and immediately:
            if made.cron is None:
                made.next_ms = now_ms
            self.c_fire(made, now_ms, now_ns)
        return made

    def schedule(self, str name not None):
        """The schedule of that name, or None."""
        return self.schedules.get(name)

    def list_schedules(self):
        """All schedules by their next slot, then by name. O(n log n)."""
        return sorted(self.schedules.values(), key=_by_slot)

    def remove_schedule(self, str name not None):
        """Remove a schedule, with its queued job if overlap is prevented; False when it is not there. O(log n)."""
        found = self.schedules.get(name)
        if found is None:
            return False
        self.c_drop_leftover(found)
        self.c_unschedule(found)
        return True

    cdef int c_schedules_of(self, str queue, int change) except -1:
        """A queue has one schedule more, or less."""
        cdef int n = self.scheduled.pop(queue, 0) + change
        if n:
            self.scheduled[queue] = n
        return 0

    cdef int c_plan(self, object schedule) except -1:
        """Put a schedule at its next slot, and into the next cut."""
        cdef str name = schedule.name
        if schedule.handle:
            self.slots.c_change(schedule.handle, schedule.next_ms, schedule.number)
        else:
            schedule.handle = self.slots.c_push(schedule.next_ms, schedule.number, schedule.number)
        return self.c_side("schedules", name, schedule.pack)

    cdef int c_unschedule(self, object schedule) except -1:
        self.slots.c_remove(schedule.handle)
        schedule.handle = 0
        del self.schedules[schedule.name]
        self.c_schedules_of(schedule.queue, -1)
        self.schedule_at[schedule.number] = None
        self.free_numbers.append(schedule.number)
        return self.c_side("schedules", schedule.name, None)

    cdef int c_fire(self, object schedule, int64_t now_ms, int64_t now_ns) except -1:
        """The slot of a schedule has come. A slot that is skipped is no run."""
        if schedule.max_runs and schedule.executions >= schedule.max_runs:
            return self.c_unschedule(schedule)
        cdef bint goes_on = schedule.plan(now_ms)
        if goes_on:
            self.c_plan(schedule)
        if not (schedule.skip_if_no_worker and not self.workers.serves(schedule.queue, now_ns)) \
                and not (schedule.prevent_overlap and self.c_occurrence(schedule.name)) \
                and self.c_add_occurrence(schedule, now_ms):
            schedule.executions += 1
            schedule.last_ms = now_ms
        return 0 if goes_on else self.c_unschedule(schedule)

    cdef int c_add_occurrence(self, object schedule, int64_t now_ms) except -1:
        """Add the job of a schedule; 0 when its unique key did not let it in."""
        cdef Spec spec
        cdef dict job = schedule.job
        cdef bytes data = schedule.data
        cdef dict extra = dict(job.get("extra") or ())
        cdef int how
        cdef uint32_t slot
        cdef str name = job.get("name", "default")
        memset(&spec, 0, sizeof(spec))
        spec.priority = job.get("priority", 0)
        spec.created_ms = now_ms
        spec.run_ms = now_ms + <int64_t>job.get("delay_ms", 0)
        spec.max_attempts = job.get("attempts", limits.DEFAULT_ATTEMPTS)
        spec.backoff_ms = job.get("backoff_ms", limits.DEFAULT_BACKOFF_MS)
        spec.flags = ((F_LIFO if job.get("lifo") else 0)
                      | (F_REMOVE_ON_COMPLETE if job.get("remove_on_complete") else 0)
                      | (F_REMOVE_ON_FAIL if job.get("remove_on_fail") else 0))
        spec.name = self.c_name(name)
        if not spec.name:
            extra["name"] = name
        if schedule.prevent_overlap:
            extra["schedule"] = schedule.name
            extra.setdefault("uniqueKey", "cron:" + schedule.name)
        if data is not None:
            spec.data = blob_new(<const char *>data, len(data), schedule.notes)
        try:
            slot = self.c_add(self.c_queue(schedule.queue), &spec, extra or None, now_ms, False, &how)
        except StateError:
            return 0        # another job holds its unique key
        finally:
            blob_free(spec.data)
        if how != ADDED and how != REPLACED:
            return 0
        if schedule.prevent_overlap:
            self.occurrences[schedule.name] = self.c_id(self.job_at(slot))
        return 1

    cdef uint32_t c_occurrence(self, str name) except? 0:
        """The job of the schedule of that name that is queued or active; 0 = none."""
        cdef object found = self.occurrences.get(name)
        return 0 if found is None else self.c_slot(found)

    cdef int c_end_occurrence(self, Job *job) except -1:
        """The job of a schedule is finished or gone: the next slot may add another."""
        cdef str name = (<dict>job.extra)["schedule"]
        if self.occurrences.get(name) == self.c_id(job):
            del self.occurrences[name]
        return 0

    cdef int c_drop_key(self, Queue q, uint32_t slot) except -1:
        cdef Job *job = self.job_at(slot)
        if self.c_is_occurrence(job):
            # Without its key it is a job like any other, and does not hold up the next slot.
            self.c_end_occurrence(job)
            del (<dict>job.extra)["schedule"]
        return Flows.c_drop_key(self, q, slot)

    cdef int c_drop_leftover(self, object schedule) except -1:
        """Remove what a schedule added and nobody has begun."""
        cdef uint32_t slot = self.c_occurrence(schedule.name)
        if slot and self.job_at(slot).state != ACTIVE:
            self.c_forget(slot)
        return 0

    cdef int c_look_back(self, int64_t now_ms) except -1:
        """The wall clock was set back: plan anew what would be held up by it. O(n)."""
        for schedule in self.schedules.values():
            if schedule.is_ahead(now_ms) and schedule.plan(now_ms):
                self.c_plan(schedule)
        return 0

    cdef int c_advance_more(self, int64_t now_ms, int64_t now_ns, int left) except -1:
        cdef int64_t due
        cdef uint32_t number
        if Flows.c_advance_more(self, now_ms, now_ns, left):
            return 1
        if self.workers.expires_ns:
            self.workers.c_expire(now_ns)
        if now_ms < self.looked_ms - STEP_MS:
            self.c_look_back(now_ms)
        self.looked_ms = now_ms
        while self.slots.c_first(&due, &number) and due <= now_ms:
            if left <= 0:
                return 1
            left -= 1
            schedule = self.schedule_at[number]
            try:
                self.c_fire(schedule, now_ms, now_ns)
            except MemoryError:
                raise
            except Exception as error:
                # One that fails must not hold up the others.
                self.c_fault(f"schedule {schedule.name!r} was put off", error)
                if schedule.handle and schedule.next_ms <= now_ms:
                    schedule.next_ms = now_ms + limits.SCHEDULE_RETRY_MS
                    self.c_plan(schedule)
        return 0

    cdef int64_t c_next_more(self, int64_t now_ms, int64_t past_ns, int64_t now_ns) except? -2:
        cdef int64_t left = Flows.c_next_more(self, now_ms, past_ns, now_ns), due, other
        cdef uint32_t number
        if self.slots.c_first(&due, &number):
            other = LOOK_AGAIN_NS
            if due - now_ms < LOOK_AGAIN_NS // 1000000:
                other = c_until(due, now_ms, past_ns)
            if left < 0 or other < left:
                left = other
        if self.workers.expires_ns:
            other = max(0, self.workers.expires_ns - now_ns)
            if left < 0 or other < left:
                left = other
        return left

    # --- an occurrence that starts over ------------------------------------------------------

    cdef bint c_key_free(self, uint32_t slot, int64_t now_ms) except -1:
        cdef Job *job = self.job_at(slot)
        cdef uint32_t live
        if self.c_is_occurrence(job):
            # Its key holds in its queue only, and the schedule may have gone to another.
            live = self.c_occurrence((<dict>job.extra)["schedule"])
            if live and live != slot:
                return False
        return Flows.c_key_free(self, slot, now_ms)

    cdef int c_retake_key(self, uint32_t slot, Job *job, int64_t now_ms) except -1:
        Flows.c_retake_key(self, slot, job, now_ms)
        if self.c_is_occurrence(job):
            self.occurrences[(<dict>job.extra)["schedule"]] = self.c_id(job)
        return 0

    # --- occurrences that are dropped with their holder -----------------------------------

    cdef bint c_is_occurrence(self, Job *job) except -1:
        return job.flags & F_KEYED and job.extra != NULL and "schedule" in <dict>job.extra

    cdef int c_lost(self, uint32_t slot, str error, str dead_error, str stalled_error, int64_t now_ms,
                    int how=AT_ONCE) except -1:
        if self.c_is_occurrence(self.job_at(slot)):
            return self.c_drop_occurrence(slot, True, now_ms)
        return Flows.c_lost(self, slot, error, dead_error, stalled_error, now_ms, how)

    cdef int c_cut_off(self, uint32_t slot, int64_t now_ms) except -1:
        if self.c_is_occurrence(self.job_at(slot)):
            return self.c_drop_occurrence(slot, False, now_ms)
        return Flows.c_cut_off(self, slot, now_ms)

    cdef int c_abandon(self, uint32_t slot, int64_t now_ms) except -1:
        if self.c_is_occurrence(self.job_at(slot)):
            return self.c_drop_occurrence(slot, False, now_ms)
        return Flows.c_abandon(self, slot, now_ms)

    cdef int c_drop_occurrence(self, uint32_t slot, bint stalled, int64_t now_ms) except -1:
        """Its holder is gone: the next slot brings a new one, so this one is not run again."""
        cdef Job *job = self.job_at(slot)
        cdef Run *run = self.run_at(job.run)
        cdef Queue q = self.c_queue_of(job)
        cdef uint64_t hi = run.token_hi, lo = run.token_lo
        if stalled and self.c_event(q, EV_STALLED):
            self.c_emit(EV_STALLED, q, job, now_ms, None)
        self.c_forget(slot)
        if hi:
            self.c_finalise(hi, lo, "dropped")
        return 0

    # --- repeated jobs -----------------------------------------------------------------------

    cdef int c_after_completed(self, uint32_t slot, int64_t now_ms) except -1:
        Flows.c_after_completed(self, slot, now_ms)
        cdef Job *job = self.job_at(slot)
        if self.c_is_occurrence(job):
            self.c_end_occurrence(job)
        if job.flags & F_REPEATS:
            self.c_try_succeed(slot, now_ms)
        return 0

    cdef int c_before_forgotten(self, uint32_t slot) except -1:
        Flows.c_before_forgotten(self, slot)
        if self.c_is_occurrence(self.job_at(slot)):
            self.c_end_occurrence(self.job_at(slot))
        return 0

    cdef int c_after_failed(self, uint32_t slot, str error, int64_t now_ms) except -1:
        Flows.c_after_failed(self, slot, error, now_ms)
        cdef Job *job = self.job_at(slot)
        if self.c_is_occurrence(job):
            self.c_end_occurrence(job)
        if job.flags & F_REPEATS and (<dict>job.extra)["repeat"].get("continueOnFailure", True):
            self.c_try_succeed(slot, now_ms)
        return 0

    cdef int c_try_succeed(self, uint32_t slot, int64_t now_ms) except -1:
        """The end of a run stands, whatever becomes of the run after it."""
        try:
            self.c_succeed(slot, now_ms)
        except Exception as error:
            self.c_fault(f"there is no next run after job {self.c_id(self.job_at(slot))!r}", error)
        return 0

    cdef int c_succeed(self, uint32_t slot, int64_t now_ms) except -1:
        """Add the run that follows this one, unless it was the last."""
        cdef Job *job = self.job_at(slot)
        cdef dict old = <dict>job.extra, repeat = dict(old["repeat"]), extra
        cdef object cron = None, at, planned
        cdef Spec spec
        cdef int how
        cdef uint32_t following, holder = 0
        cdef str mine, its
        if "pattern" in repeat:
            at = (repeat["pattern"], repeat.get("tz"))
            cron = self.compiled.get(at)
            if cron is None:
                if len(self.compiled) >= COMPILED:
                    self.compiled.clear()
                cron = self.compiled[at] = Cron(*at)
        planned = next_occurrence(repeat, now_ms, cron)
        if planned is None:
            return 0
        repeat["count"] = repeat.get("count", 0) + 1
        repeat["prevMillis"] = planned
        extra = {key: value for key, value in old.items() if key not in RUN_STATE}
        extra["repeat"] = repeat
        if F_KEYED & job.flags and (
                "keyPassed" in old or "deduplicationKeep" in old
                or self.c_judge_key(self.c_queue_of(job), extra, now_ms, &holder) != KEY_FREE):
            # The key is not free for it, and the chain must go on: whoever has it keeps it.
            for key in KEY_OPTIONS:
                extra.pop(key, None)
        memset(&spec, 0, sizeof(spec))
        spec.priority = job.priority
        spec.created_ms = now_ms
        spec.run_ms = planned
        spec.name = job.name
        spec.max_attempts = job.max_attempts
        spec.backoff_ms = job.backoff_ms
        # What follows from the options is found again from them.
        spec.flags = job.flags & (F_DURABLE | F_GROUPED | F_LIFO | F_REMOVE_ON_COMPLETE | F_REMOVE_ON_FAIL)
        if job.data != NULL:
            spec.data = blob_new(blob_bytes(job.data), job.data.size, job.data.notes)
        try:
            following = self.c_add(self.c_queue_of(job), &spec, extra, now_ms, False, &how)
        finally:
            blob_free(spec.data)
        if how != ADDED and how != REPLACED:
            return 0
        # The chain goes on there, also if this run is started over.
        job.flags &= ~<uint32_t>F_REPEATS
        mine = self.c_id(job)
        its = self.c_id(self.job_at(following))
        old["successor"] = its
        if len(self.successors) >= CHAIN_LINKS:
            del self.successors[next(iter(self.successors))]
        self.successors[mine] = its
        return 0

    cdef uint32_t c_follow(self, str job_id) except? 0:
        """The live run of the chain in which this id names a finished one; 0 = there is none."""
        cdef list passed = []
        cdef object following = self.successors.get(job_id)
        cdef uint32_t slot
        if following is None:
            return 0
        while following in self.successors:
            passed.append(following)
            following = self.successors[following]
        self.successors[job_id] = following
        for at in passed:
            self.successors[at] = following     # so that no chain is walked twice
        slot = self.c_slot(following)
        return slot if slot and self.job_at(slot).state in LIVE else 0

    # --- recovery ----------------------------------------------------------------------------

    def restore_schedule(self, str name not None, bytes packed not None, int64_t now_ms):
        """Bring back a stored schedule, after the jobs. What was missed meanwhile is run once, or not.

        :raises ValueError: it cannot be read
        """
        self.looked_ms = max(self.looked_ms, now_ms)
        made = Schedule.unpack(name, packed, now_ms)
        cdef bint changed = made.is_ahead(now_ms) or (made.skip_missed and made.next_ms <= now_ms)
        if changed and not made.plan(now_ms):
            raise ValueError("it never comes due")
        made.number = len(self.schedule_at)
        self.schedule_at.append(made)
        self.schedules[name] = made
        self.c_schedules_of(made.queue, 1)
        made.handle = self.slots.c_push(made.next_ms, made.number, made.number)
        if changed or made.pack() != packed:
            self.c_plan(made)

    def restore_chains(self, list archived=None):
        """Find the occurrences of schedules and the links of chains again, after the jobs. O(n).

        ``archived``: the links of archived jobs, as (seq, id, id of the successor).
        """
        cdef uint32_t slot
        cdef Job *job
        cdef dict extra
        cdef list links = [] if archived is None else list(archived)
        cdef dict newest = {}
        for slot in range(1, self.jobs.fresh):
            job = self.job_at(slot)
            if job.state == 0 or job.extra == NULL:
                continue
            extra = <dict>job.extra
            if "successor" in extra:
                links.append((job.seq, self.c_id(job), extra["successor"]))
            if self.c_is_occurrence(job) and job.state in LIVE and newest.get(extra["schedule"], 0) < job.seq:
                newest[extra["schedule"]] = job.seq
                self.occurrences[extra["schedule"]] = self.c_id(job)
        links.sort()
        self.successors = {mine: its for _, mine, its in links[-CHAIN_LINKS:]}

    cdef c_check_schedules(self):
        cdef uint32_t number
        cdef int64_t due
        cdef int i
        assert self.slots.n == len(self.schedules)
        self.slots._check()
        for i in range(self.slots.n):
            number = self.slots.c_at(i, &due)
            schedule = self.schedule_at[number]
            assert schedule.number == number and self.schedules[schedule.name] is schedule
            assert due == schedule.next_ms, f"schedule {schedule.name} at {due}, next run {schedule.next_ms}"
            assert self.slots.c_due(schedule.handle) == due
        assert len(self.schedules) + len(self.free_numbers) + 1 == len(self.schedule_at)
        queues = [one.queue for one in self.schedules.values()]
        assert self.scheduled == {queue: queues.count(queue) for queue in queues}
        for name, job_id in self.occurrences.items():
            number = self.c_slot(job_id)
            assert number and self.job_at(number).state in LIVE, f"{job_id} of schedule {name} is over"
            assert (<dict>self.job_at(number).extra)["schedule"] == name
        assert len(self.successors) <= CHAIN_LINKS
        self.workers._check()


def _by_slot(schedule):
    return (schedule.next_ms, schedule.name)
