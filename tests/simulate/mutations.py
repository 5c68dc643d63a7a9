"""Faults that are planted in a copy of the sources, to see whether the simulator finds them."""

from __future__ import annotations

from typing import NamedTuple

ENGINE = "qcore/engine/"
BROKER = "qcore/broker/"


class Mutation(NamedTuple):
    """What goes wrong, and the text that makes it so; ``old`` stands once in the file."""

    name: str
    file: str
    old: str
    new: str


MUTATIONS = (
    Mutation(
        "any token passes for the holder's",
        ENGINE + "transitions.pyx",
        "if run.token_hi == hi and run.token_lo == lo:\n                        return MAY",
        "if run.token_hi:\n                        return MAY",
    ),
    Mutation(
        "the order of ends does not outlive the process",
        BROKER + "rows.pyx",
        "tail.last.ahead = run.number - job.seq + 1 if run.number else 0",
        "tail.last.ahead = 0",
    ),
    Mutation(
        "one attempt too many",
        ENGINE + "transitions.pyx",
        "again = not final and job.attempts + 1 < job.max_attempts",
        "again = not final and job.attempts < job.max_attempts",
    ),
    Mutation(
        "a lost lease costs no attempt",
        ENGINE + "losses.pyx",
        "self.c_leave_active(q, slot, job, run)\n        job.attempts += 1\n        job.stalls = stalls",
        "self.c_leave_active(q, slot, job, run)\n        job.stalls = stalls",
    ),
    Mutation(
        "a job that becomes ready wakes nobody",
        ENGINE + "transitions.pyx",
        "            q.n_prioritized += 1\n        if q.n_waits:\n            self.c_wake(q)",
        "            q.n_prioritized += 1",
    ),
    Mutation(
        "a renewed delivery is given back with its connection",
        ENGINE + "engine.pyx",
        "            if run.renewals:\n                self.c_disown(run)",
        "            if run.renewals and False:\n                self.c_disown(run)",
    ),
    Mutation(
        "the record of a delivery is not freed",
        ENGINE + "transitions.pyx",
        'keeps its place.\n        """\n        slab_free(&self.runs, job.run)',
        'keeps its place.\n        """',
    ),
    Mutation(
        "a late acknowledgement counts after somebody else got the job",
        ENGINE + "transitions.pyx",
        "return TOKEN_WRONG      # of the delivery before this one",
        "return MAY",
    ),
    Mutation(
        "a late report is accepted without the last token",
        ENGINE + "transitions.pyx",
        "if last is not None and (last == (hi, lo) if kind == TOKEN else last == (0, 0)):",
        "if last is not None:",
    ),
    Mutation(
        "ttl is ignored",
        ENGINE + "transitions.pyx",
        "if ttl is not None and now_ms > job.created_ms + ttl and",
        "if ttl is not None and now_ms < 0 and",
    ),
    Mutation(
        "a renewal is not written",
        ENGINE + "transitions.pyx",
        "        self.c_arm(slot, run)\n        self.c_mark(slot, job)\n        return True",
        "        self.c_arm(slot, run)\n        return True",
    ),
    Mutation(
        "a removed job stays on disk",
        ENGINE + "transitions.pyx",
        "        if job.flags & F_STORED:\n            self.deleted.append(job.seq)",
        "        if job.flags & F_STORED and job.state != 4:\n            self.deleted.append(job.seq)",
    ),
    Mutation(
        "lower priorities run first",
        ENGINE + "table.pyx",
        "qcore_bits(-(priority + 0.0) + 0.0)",
        "qcore_bits(priority + 0.0)",
    ),
    Mutation(
        "the newest are the oldest",
        ENGINE + "table.pyx",
        "            key.b = INT64_MIN\n            key.c = -job.seq",
        "            key.b = INT64_MIN\n            key.c = job.seq",
    ),
    Mutation(
        "a pause does not outlive the process",
        ENGINE + "engine.pyx",
        "        q.paused = paused\n        self.c_mark_queue(q)",
        "        q.paused = paused",
    ),
    Mutation(
        "a durable add is answered before its commit",
        BROKER + "session.pyx",
        "            return broker.c_reply(self, True, True, sync)",
        "            return broker.c_reply(self, False, True, sync)",
    ),
    Mutation(
        "the older of two cuts wins",
        BROKER + "core.pyx",
        "self.unwritten.merge_under(newer)",
        "newer.merge_under(self.unwritten)",
    ),
    Mutation(
        "a cut that failed is forgotten",
        BROKER + "core.pyx",
        "                self.unwritten = self.flight_cut",
        "                self.unwritten = None",
    ),
    Mutation(
        "a pull that has got its jobs gets more",
        BROKER + "core.pyx",
        "self.c_end_wait(wait)\n                self.c_notify(wait.outlet)\n                if first.n:",
        "self.c_notify(wait.outlet)\n                if first.n:",
    ),
    Mutation(
        "a lease is longer after a restart when the clock was set back",
        BROKER + "rows.pyx",
        "max(1, min(tail.expires_ms - now_ms, tail.lease_ms))",
        "max(1, tail.expires_ms - now_ms)",
    ),
    Mutation(
        "recovery charges after a clean end",
        BROKER + "opening.py",
        'found.crashed = snapshot.meta.get(META_OPEN) == b"1"',
        "found.crashed = META_OPEN in snapshot.meta",
    ),
    Mutation(
        "an update takes the place of the insert that it follows",
        "qcore/store/base.py",
        "self._inserts[seq] = [seq, pending[1], state, record, pending[4], result]",
        "del self._inserts[seq]\n            self._updates[seq] = row",
    ),
    Mutation(
        "a failure is never final",
        BROKER + "handlers/delivery.py",
        'bool(fields.get("unrecoverable")),',
        "False,",
    ),
    Mutation(
        "a batch counts refused members as done",
        BROKER + "handlers/delivery.py",
        "            first = first or error\n            ignored.append(index)\n",
        "            first = first or error\n",
    ),
    Mutation(
        "the slot of a group is not freed",
        ENGINE + "transitions.pyx",
        "        if job.flags & F_GROUPED:\n            self.c_leave_group(q, job)\n        if q.n_waits:",
        "        if q.n_waits:",
    ),
    Mutation(
        "a key is not released",
        ENGINE + "keys.pyx",
        '        del q.keys[key]\n        if extra.get("deduplicationKeep")',
        '        if extra.get("deduplicationKeep")',
    ),
    Mutation(
        "a key whose time is over is forgotten at a restart",
        ENGINE + "keys.pyx",
        'if not extra.get("keyPassed") and key_of(extra) not in q.kept:',
        'if not extra.get("keyPassed") and not _over(extra, now_ms) and key_of(extra) not in q.kept:',
    ),
    Mutation(
        "a rate limit counts nothing",
        ENGINE + "transitions.pyx",
        "                q.rate.c_take(now_ms, now_ns)\n",
        "",
    ),
    Mutation(
        "a schedule fires once more after a crash",
        ENGINE + "schedules.pyx",
        'return self.c_side("schedules", name, schedule.pack)',
        'return 0 if schedule.executions else self.c_side("schedules", name, schedule.pack)',
    ),
    Mutation(
        "a dead letter does not come back by itself",
        ENGINE + "transitions.pyx",
        '"nextRetryAt": now_ms + q.dlq_retry_ms if q.dlq_auto_retry and q.dlq_max_retries > 0 else None',
        '"nextRetryAt": None',
    ),
    Mutation(
        "silent deliveries go on",
        ENGINE + "losses.pyx",
        "            if due <= now_ns:\n                silent",
        "            if due < 0:\n                silent",
    ),
    Mutation(
        "the index of a forgotten queue is given again",
        ENGINE + "table.pyx",
        "        q.gone = True\n        self.c_mark_queue(q)\n",
        "        q.gone = True\n        self.c_mark_queue(q)\n"
        "        if q.index == self.last_queue:\n            self.last_queue -= 1\n",
    ),
    Mutation(
        "a queue is forgotten while it is used",
        ENGINE + "idle.pyx",
        "elif q.used or q.idle_ns < 0:",
        "elif q.idle_ns < 0:",
    ),
    Mutation(
        "a batch that is all or nothing takes what it can",
        BROKER + "handlers/delivery.py",
        'if fields.get("atomic"):',
        'if fields.get("atomic") and False:',
    ),
    Mutation(
        "a job is added although its parent is not there",
        BROKER + "handlers/adding.py",
        'if parent_id is None or not jobs[index].get("parentRequired"):',
        "if True:",
    ),
)
