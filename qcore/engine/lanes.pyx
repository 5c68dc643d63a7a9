"""Groups of jobs within a queue: a lane each, served in turn.

Which groups may start a job depends on the limits that a pull brings along, so there
is a *view* for each distinct set of limits: the eligible groups in the order of their
turns. Whatever changes for a group changes its membership in each view, so a claim
takes the first of a view and never steps over groups that are blocked. What ends by
time, a block or a window, stands in one heap, and when it has ended the group is looked
at again in every view.

Knows slots of jobs, but nothing about them; the rules are in
:mod:`qcore.engine.transitions`.
"""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from qcore.engine.job cimport c_later
from qcore.structs.delayheap cimport DelayHeap
from qcore.structs.skiplist cimport Key, SkipList, SkipNode


@cython.final
cdef class Wanted:
    """What a pull wants of grouped jobs; limits of 0 are not set. Immutable.

    ``affinity`` None takes any job, ``""`` only jobs without a group, a name only jobs of
    that group. With ``ungrouped_first`` False the jobs without a group take their turn as
    if they were one.
    """

    def __cinit__(self, *, int64_t concurrency=0, int64_t window_max=0, int64_t window_ms=0, str affinity=None,
                  bint ungrouped_first=True):
        self.concurrency = concurrency
        self.window_max = window_max
        self.window_ms = window_ms if window_max else 0
        self.affinity = ANY if affinity is None else ONE_GROUP if affinity else UNGROUPED
        self.group = affinity or None
        self.ungrouped_first = ungrouped_first
        self.key = (concurrency, window_max, self.window_ms, affinity, ungrouped_first)


@cython.final
cdef class Group:
    """The jobs of one group in one queue, and what is set for it."""

    def __cinit__(self, str name not None, uint32_t index):
        self.name = name
        self.index = index
        self.ready = DelayHeap()

    @property
    def n_ready(self):
        """Jobs that could start now, paused or not."""
        return self.ready.n

    cdef bint c_has_settings(self) noexcept:
        return self.paused or self.concurrency != 0 or self.rate_max != 0 or self.blocked_ns != 0

    def settings(self):
        """What is set for the group, as it is stored; empty when nothing is."""
        cdef dict out = {}
        if self.paused:
            out["paused"] = True
        if self.concurrency:
            out["concurrency"] = self.concurrency
        if self.rate_max:
            out["max"] = self.rate_max
            out["duration"] = self.rate_ms
        if self.blocked_ns:
            out["blocked"] = [self.blocked_ms, self.blocked_span_ms]
        return out

    cdef bint c_is_idle(self) noexcept:
        return not (self.ready.n or self.n_delayed or self.n_active or self.n_staged or self.window_end_ns
                    or self.c_has_settings())


@cython.final
cdef class View:
    """The groups that may start a job under one set of limits."""


@cython.final
cdef class Lanes:
    """All groups of one queue that have jobs, settings or an open window.

    A claim and every change of a group cost O(log groups) for each view in use, at most
    ``MAX_VIEWS``; pulls with yet another set of limits take over the view that was not
    used for longest, which is then built anew in O(n log n).
    """

    def __cinit__(self, uint64_t seed=1):
        self.by_name = {}
        self.groups = []
        self.free = []
        self.views = [None] * MAX_VIEWS
        self.times = DelayHeap()
        self.seed = seed

    cdef Group c_find(self, str name):
        return <Group>self.by_name.get(name)

    cdef Group c_group(self, str name):
        """The group of that name, created by first use."""
        cdef object found = self.by_name.get(name)
        cdef Group g
        if found is not None:
            return <Group>found
        if self.free:
            g = Group(name, self.free.pop())
            self.groups[g.index] = g
        else:
            g = Group(name, len(self.groups))
            self.groups.append(g)
        self.by_name[name] = g
        return g

    cdef int c_drop_idle(self, Group g) except -1:
        """Forget a group of which nothing is left: no job, no setting, no open window."""
        if g.c_is_idle() and self.by_name.get(g.name) is g:
            del self.by_name[g.name]
            self.groups[g.index] = None
            self.free.append(g.index)
            if not self.by_name:
                self.groups.clear()
                self.free.clear()
        return 0

    # --- jobs -----------------------------------------------------------------------------

    cdef uint32_t c_add(self, Group g, int64_t priority, int64_t seq, uint32_t slot) except 0:
        """A job of the group is ready; its handle. A group that had none goes to the end of the round."""
        cdef uint32_t handle = g.ready.c_push(priority, seq, slot)
        self.n_ready += 1
        if g.turn == 0:
            self.turns += 1
            g.turn = self.turns
            self.c_touch(g)
        return handle

    cdef int c_remove(self, Group g, uint32_t handle) except -1:
        """A ready job goes, to run or for good."""
        g.ready.c_remove(handle)
        self.n_ready -= 1
        if g.ready.n == 0:
            g.turn = 0
            self.c_touch(g)
        return 0

    cdef int c_reorder(self, Group g, uint32_t handle, int64_t priority, int64_t seq) except -1:
        g.ready.c_change(handle, priority, seq)
        return 0

    cdef int c_enter(self, Group g) except -1:
        """A job of the group becomes active."""
        g.n_active += 1
        return self.c_touch(g)

    cdef int c_leave(self, Group g) except -1:
        """A job of the group is active no more."""
        g.n_active -= 1
        return self.c_touch(g)

    cdef int c_start(self, Group g, Wanted wanted, int64_t now_ns) except -1:
        """A pull takes a job of the group: count it in the window, and send the group to the end of the round.

        The job itself is taken by :meth:`c_remove` and :meth:`c_enter`.
        """
        cdef int64_t most = 0, ms = 0
        if g.turn:
            self.turns += 1
            g.turn = self.turns
        if wanted is not None and wanted.window_max:
            most, ms = (g.rate_max, g.rate_ms) if g.rate_max else (wanted.window_max, wanted.window_ms)
            if g.window_end_ns == 0 or g.window_max != most or g.window_ms != ms:
                g.window_end_ns = c_later(now_ns, ms)
                g.window_max = most
                g.window_ms = ms
                g.window_count = 0
                self.c_set_timer(g)
            g.window_count += 1
        return self.c_touch(g)

    # --- eligibility ------------------------------------------------------------------------

    cdef bint c_may(self, Group g, int64_t concurrency, int64_t window_max, int64_t window_ms) noexcept:
        """May the group start a job for a pull with these limits?"""
        if g.turn == 0 or g.paused or g.blocked_ns:
            return False
        if concurrency and g.n_active >= (g.concurrency if g.concurrency else concurrency):
            return False
        if window_max and g.window_end_ns:
            if g.rate_max:
                window_max = g.rate_max
                window_ms = g.rate_ms
            # A window of another size is not this pull's: it opens its own.
            if g.window_max == window_max and g.window_ms == window_ms and g.window_count >= window_max:
                return False
        return True

    cdef int c_touch(self, Group g) except -1:
        """Something changed for a group: put it where it belongs in each view."""
        cdef View view
        cdef int64_t turn
        cdef Key key
        cdef int i
        key.b = 0
        key.c = g.index
        for i in range(MAX_VIEWS):
            view = <View>self.views[i]
            if view is None:
                continue
            turn = g.turn if self.c_may(g, view.concurrency, view.window_max, view.window_ms) else 0
            if turn == g.listed[i]:
                continue
            if g.listed[i]:
                key.a = g.listed[i]
                view.eligible.c_remove(key)
                g.listed[i] = 0
            if turn:
                key.a = turn
                view.eligible.c_insert(key, g.index)
                g.listed[i] = turn
        return 0

    cdef View c_view(self, Wanted wanted):
        """The view for the limits of a pull; built when there is none."""
        cdef int64_t concurrency = 0, window_max = 0, window_ms = 0
        cdef View view
        cdef Group g
        cdef int i, at = 0
        cdef int64_t oldest = -1
        if wanted is not None:
            concurrency, window_max, window_ms = wanted.concurrency, wanted.window_max, wanted.window_ms
        self.uses += 1
        for i in range(MAX_VIEWS):
            view = <View>self.views[i]
            if view is None:
                if oldest != 0:
                    at, oldest = i, 0
            elif (view.concurrency == concurrency and view.window_max == window_max
                    and view.window_ms == window_ms):
                view.used = self.uses
                return view
            elif oldest < 0 or view.used < oldest:
                at, oldest = i, view.used
        view = View()
        view.concurrency = concurrency
        view.window_max = window_max
        view.window_ms = window_ms
        view.used = self.uses
        view.eligible = SkipList(self.seed)
        for g in self.by_name.values():
            g.listed[at] = 0
        self.views[at] = view
        for g in self.by_name.values():
            self.c_touch(g)
        return view

    cdef Group c_first(self, Wanted wanted):
        """The group whose turn it is among those that may start a job for this pull; None when none may."""
        cdef Key key
        cdef uint32_t index
        cdef Group g
        if self.n_ready == 0:
            return None
        if wanted is not None and wanted.affinity != ANY:
            if wanted.affinity == UNGROUPED:
                return None
            g = self.c_find(wanted.group)
            if g is None or not self.c_may(g, wanted.concurrency, wanted.window_max, wanted.window_ms):
                return None
            return g
        if not self.c_view(wanted).eligible.c_first(&key, &index):
            return None
        return <Group>self.groups[index]

    # --- what ends by time ----------------------------------------------------------------------

    cdef int c_set_timer(self, Group g) except -1:
        """Keep the entry of a group in the heap of times at the next end of its block or window."""
        cdef int64_t at = g.window_end_ns
        if g.blocked_ns and (at == 0 or g.blocked_ns < at):
            at = g.blocked_ns
        if at == 0:
            if g.timer:
                self.times.c_remove(g.timer)
                g.timer = 0
        elif g.timer:
            self.times.c_change(g.timer, at, g.index)
        else:
            g.timer = self.times.c_push(at, g.index, g.index)
        return 0

    cdef Group c_ended(self, int64_t now_ns):
        """End the block or window of one group whose time has come; None when none has.

        The caller drops the group if nothing is left of it. When a block has ended, ``blocked_ms`` is left
        for the caller to clear, who has to note that the settings have changed.
        """
        cdef int64_t at
        cdef uint32_t index
        cdef Group g
        if not self.times.c_first(&at, &index) or at > now_ns:
            return None
        g = <Group>self.groups[index]
        if g.blocked_ns and g.blocked_ns <= now_ns:
            g.blocked_ns = 0
        if g.window_end_ns and g.window_end_ns <= now_ns:
            g.window_end_ns = 0
        self.c_set_timer(g)
        self.c_touch(g)
        return g

    def __len__(self):
        """Groups that are known."""
        return len(self.by_name)

    def names(self):
        """Names of the groups that are known."""
        return list(self.by_name)

    def get(self, str name not None):
        """The group of that name, or None."""
        return self.by_name.get(name)

    cdef size_t c_nbytes(self):
        cdef size_t n = self.times.c_nbytes()
        cdef Group g
        cdef View view
        for g in self.by_name.values():
            n += g.ready.c_nbytes()
        for view in self.views:
            if view is not None:
                n += view.eligible.c_nbytes()
        return n

    def _check(self):
        """Every invariant, O(n); raises AssertionError that says which."""
        cdef Group g
        cdef View view
        cdef SkipNode *node
        cdef Py_ssize_t n_ready = 0, n_delayed = 0, n_timers = 0, n_listed
        cdef int64_t at
        cdef int i
        cdef set turns = set()
        self.times._check()
        assert len(self.by_name) + len(self.free) == len(self.groups)
        for name, g in self.by_name.items():
            assert g.name == name and self.groups[g.index] is g
            assert not g.c_is_idle(), f"group {name} is kept for nothing"
            g.ready._check()
            assert (g.turn != 0) == (g.ready.n != 0), f"group {name}: turn {g.turn}, {g.ready.n} ready"
            assert g.turn == 0 or g.turn not in turns
            assert 0 <= g.turn <= self.turns
            turns.add(g.turn)
            n_ready += g.ready.n
            n_delayed += g.n_delayed
            assert g.n_delayed >= 0 and g.n_active >= 0 and g.n_staged >= 0
            assert (g.rate_max != 0) == (g.rate_ms != 0)
            at = g.window_end_ns
            if g.blocked_ns and (at == 0 or g.blocked_ns < at):
                at = g.blocked_ns
            assert (g.timer != 0) == (at != 0)
            if g.timer:
                n_timers += 1
                assert self.times.c_due(g.timer) == at
        assert n_ready == self.n_ready and n_delayed == self.n_delayed and n_timers == self.times.n
        for i in range(MAX_VIEWS):
            view = <View>self.views[i]
            if view is None:
                continue
            view.eligible._check()
            n_listed = 0
            for g in self.by_name.values():
                at = g.turn if self.c_may(g, view.concurrency, view.window_max, view.window_ms) else 0
                assert g.listed[i] == at, f"group {g.name}: turn {at}, listed under {g.listed[i]} in view {i}"
                n_listed += at != 0
            assert n_listed == view.eligible.n
            node = view.eligible.c_begin()
            while node != NULL:
                assert node.key.a == (<Group>self.groups[node.value]).listed[i]
                node = view.eligible.c_after(node)
